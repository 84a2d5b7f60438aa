//! One flow through both halves of a pair, and the properties that must hold.

use super::messages::{self, log_uniform};
use super::subject::{Compared, Subject};
use contract::{Body, Format, Half, Message, Time};
use netsim::{Params, Rng};
use std::collections::HashMap;
use std::time::Duration;
use testkit::stage::{TwoHalves, steady};

const DELAY: Duration = Duration::from_millis(5);
/// Longest time between two messages.
const GAP_NS: u64 = 20_000_000;
/// The longest wait for a pair before the end of a flow.
const PATIENCE: Duration = Duration::from_secs(120);

/// The result of some flows.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Tally {
    pub(super) sent: u64,
    pub(super) received: u64,
    /// Drops that the pair counted.
    pub(super) dropped: u64,
    /// Messages that a half refused with an error.
    pub(super) refused: u64,
    /// Received messages that were never sent, or that were repeated.
    pub(super) altered: u64,
    /// True if the pair changes bodies.
    pub(super) is_changed: bool,
}

impl Tally {
    pub(super) fn add(&mut self, other: &Tally) {
        self.sent += other.sent;
        self.received += other.received;
        self.dropped += other.dropped;
        self.refused += other.refused;
        self.altered += other.altered;
        self.is_changed |= other.is_changed;
    }
}

struct Flow<'a> {
    subject: &'a Subject,
    rng: Rng,
    run: TwoHalves,
    sent: Vec<Message>,
}

impl<'a> Flow<'a> {
    fn new(subject: &'a Subject, seed: u64, link: Params) -> Self {
        let lanes = vec![link; subject.lanes];
        let run = TwoHalves::with_lanes(subject.pair, subject.given, &subject.format, &lanes, seed);
        Flow { subject, rng: Rng::new(seed, 3), run, sent: Vec::new() }
    }

    /// Sends a message now.
    fn send(&mut self, created: Time, body: Body) {
        let message = Message::new(created, body);
        let lane = self.sent.len() % self.subject.lanes;
        self.sent.push(message.clone());
        self.run.push_at(lane, message);
    }

    /// Sends messages at random intervals, each created at its own time.
    fn send_some(&mut self, count: u64, make: impl Fn(&mut Rng, &Format) -> Body) {
        for _ in 0..count {
            let gap = 1 + log_uniform(&mut self.rng, GAP_NS);
            self.pass(gap);
            let body = make(&mut self.rng, &self.subject.format);
            self.send(self.run.now, body);
        }
    }

    fn pass(&mut self, ns: u64) {
        self.run.run_until(self.run.now.after(Duration::from_nanos(ns)));
    }

    fn end(&mut self) {
        let until = self.run.now.after(PATIENCE);
        while self.run.now < until && self.run.held(Half::Source) + self.run.held(Half::Sink) > 0 {
            self.pass(50_000_000);
        }
        self.run.end();
    }

    fn tally(&self) -> Tally {
        Tally {
            sent: self.sent.len() as u64,
            received: self.run.received.len() as u64,
            dropped: self.run.dropped(),
            refused: self.run.errors.len() as u64,
            is_changed: self.subject.compared == Compared::Nothing,
            ..Tally::default()
        }
    }

    /// Returns how often each sent message was received, and the number of received messages that were never sent.
    fn matches(&self) -> (Vec<u32>, u64) {
        let by_time: HashMap<Time, usize> =
            self.sent.iter().enumerate().map(|(number, message)| (message.created, number)).collect();
        let (mut arrived, mut strange) = (vec![0; self.sent.len()], 0);
        for (_, message) in &self.run.received {
            match by_time.get(&message.created) {
                Some(number) if equal(&self.sent[*number].body, &message.body) => arrived[*number] += 1,
                _ => strange += 1,
            }
        }
        (arrived, strange)
    }

    /// Asserts that no received message is wrong or repeated.
    fn assert_nothing_wrong(&self) -> Vec<u32> {
        let (arrived, strange) = self.matches();
        assert_eq!(strange, 0, "messages arrived that nobody sent");
        assert!(arrived.iter().all(|times| *times <= 1), "a message arrived twice");
        arrived
    }
}

/// Compares two bodies with different chunk borders.
pub(super) fn equal(a: &Body, b: &Body) -> bool {
    if a.len() != b.len() {
        return false;
    }
    let (mut ours, mut theirs) = (a.chunks(), b.chunks());
    let (mut left, mut right) = (&[][..], &[][..]);
    loop {
        if left.is_empty() {
            left = ours.next().unwrap_or(&[]);
        }
        if right.is_empty() {
            right = theirs.next().unwrap_or(&[]);
        }
        let both = left.len().min(right.len());
        if both == 0 {
            return true;
        }
        if left[..both] != right[..both] {
            return false;
        }
        (left, right) = (&left[both..], &right[both..]);
    }
}

/// The sink half's output is the source half's input, up to the pair's promises.
pub(super) fn undo(subject: &Subject, seed: u64) -> Tally {
    undone(subject, seed, 2000, 0, messages::body)
}

/// `undo` with every other message empty.
pub(super) fn empty(subject: &Subject, seed: u64) -> Tally {
    undone(subject, seed, 200, 0, |rng, format| match rng.up_to(1) {
        0 => Body::new(),
        _ => messages::body(rng, format),
    })
}

/// `undo` with messages of 16 MiB.
pub(super) fn large(subject: &Subject, seed: u64) -> Tally {
    undone(subject, seed, 3, 10_000_000, messages::large)
}

fn undone(
    subject: &Subject,
    seed: u64,
    count_max: u64,
    gap_ns: u64,
    make: impl Fn(&mut Rng, &Format) -> Body,
) -> Tally {
    let mut flow = Flow::new(subject, seed, steady(DELAY));
    for _ in 0..=log_uniform(&mut flow.rng, count_max) {
        let gap = match flow.rng.up_to(3) {
            0 => 0,
            _ => log_uniform(&mut flow.rng, GAP_NS),
        };
        flow.pass(gap_ns + gap);
        // A device's creation times are those of its events and may precede the previous message's.
        let created = flow.run.now.before(Duration::from_nanos(flow.rng.up_to(900_000)));
        let body = make(&mut flow.rng, &subject.format);
        flow.send(created, body);
    }
    flow.end();
    let tally = flow.tally();
    // A pair for one format may refuse other bodies.
    assert!(subject.format != Format::Bytes || tally.refused == 0, "a half failed: {:?}", flow.run.errors);
    if subject.compared == Compared::Nothing {
        return tally;
    }
    let accounted = tally.received + tally.dropped + tally.refused;
    assert_eq!(accounted, tally.sent, "each message arrives or is counted: {:?}", flow.run.drops);
    assert!(subject.promises.may_drop || tally.dropped == 0, "{:?} without a promise", flow.run.drops);
    let same = |sent: &Message, arrived: &Message| {
        (subject.compared == Compared::Body || sent.created == arrived.created)
            && equal(&sent.body, &arrived.body)
    };
    let mut is_left = vec![true; flow.sent.len()];
    let mut from = 0;
    for (_, arrived) in &flow.run.received {
        let found =
            (from..flow.sent.len()).find(|number| is_left[*number] && same(&flow.sent[*number], arrived));
        let number = found.unwrap_or_else(|| panic!("changed, repeated or out of order: {arrived:?}"));
        is_left[number] = false;
        if !subject.promises.may_reorder {
            from = number + 1;
        } else {
            while from < is_left.len() && !is_left[from] {
                from += 1;
            }
        }
    }
    tally
}

/// The link between the halves loses one message in twenty.
pub(super) fn loss(subject: &Subject, seed: u64) -> Tally {
    let link = Params { loss_ppm: 50_000, jitter_ns: 5_000_000, ..steady(DELAY) };
    let mut flow = Flow::new(subject, seed, link);
    let count = 100 + log_uniform(&mut flow.rng, 1000);
    flow.send_some(count, small);
    flow.end();
    let tally = flow.tally();
    if subject.compared == Compared::Whole {
        let arrived = flow.assert_nothing_wrong();
        let half = arrived.len() as u64 / 2;
        assert!(subject.promises.may_drop || tally.received >= half, "only {} arrived", tally.received);
        let in_order = flow.run.received.windows(2).all(|pair| pair[0].1.created < pair[1].1.created);
        assert!(subject.promises.may_reorder || in_order, "out of order on a link that is not");
    }
    tally
}

/// The link between the halves reorders messages by up to 60 ms.
pub(super) fn reordering(subject: &Subject, seed: u64) -> Tally {
    let link = Params { jitter_ns: 60_000_000, reorder: true, ..steady(DELAY) };
    let mut flow = Flow::new(subject, seed, link);
    let count = 100 + log_uniform(&mut flow.rng, 1000);
    flow.send_some(count, small);
    flow.end();
    let tally = flow.tally();
    if subject.compared == Compared::Whole {
        flow.assert_nothing_wrong();
        let accounted = tally.received + tally.dropped + tally.refused;
        assert!(accounted >= tally.sent, "{accounted} of {} are accounted for", tally.sent);
        assert!(subject.promises.may_drop || tally.received == tally.sent, "dropped without a promise");
    }
    tally
}

/// The link between the halves flips a bit of every fiftieth message.
pub(super) fn corruption(subject: &Subject, seed: u64) -> Tally {
    let mut flow = Flow::new(subject, seed, Params { corrupt_ppm: 20_000, ..steady(DELAY) });
    let count = 100 + log_uniform(&mut flow.rng, 1000);
    flow.send_some(count, small);
    (0..subject.lanes).for_each(|lane| flow.run.configure_lane(lane, steady(DELAY)));
    // By then the pair has given up on missing messages.
    flow.pass(5_000_000_000);
    let before = flow.sent.len();
    flow.send_some(count, small);
    flow.end();
    let mut tally = flow.tally();
    if subject.compared == Compared::Whole {
        let (arrived, strange) = flow.matches();
        let twice: u64 = arrived.iter().map(|times| u64::from(times.saturating_sub(1))).sum();
        tally.altered = strange + twice;
        let continues = arrived[before..].iter().any(|times| *times > 0);
        assert!(continues, "no intact message arrived after the corruption");
        assert!(tally.dropped <= 100 * tally.sent, "{:?} of {} messages", flow.run.drops, tally.sent);
        assert!(subject.pair.name() != "encrypt" || tally.altered == 0, "altered messages arrived");
    }
    tally
}

/// Both halves restart in mid-flow with old messages on their way.
pub(super) fn restart(subject: &Subject, seed: u64) -> Tally {
    let mut flow = Flow::new(subject, seed, steady(DELAY));
    let count = 20 + log_uniform(&mut flow.rng, 200);
    for _ in 0..3 {
        // A restarted sink half joins a running flow.
        flow.send_some(10, small);
        flow.pass(100_000_000);
        flow.send_some(count, small);
        flow.run.restart(subject.pair, subject.given, &subject.format);
        // A process takes a while to start.
        let while_ns = 2_000_000 + flow.rng.up_to(20_000_000);
        flow.pass(while_ns);
    }
    let (before, dropped) = (flow.sent.len(), flow.run.dropped());
    let refused = flow.run.errors.len();
    flow.send_some(count, small);
    flow.end();
    let tally = flow.tally();
    if subject.compared == Compared::Whole {
        let arrived = flow.assert_nothing_wrong();
        let missing = arrived[before..].iter().filter(|times| **times == 0).count();
        let excused = (flow.run.dropped() - dropped) as usize + flow.run.errors.len() - refused;
        assert!(missing <= excused, "{missing} messages sent after the restart did not come");
        assert!(subject.promises.may_drop || missing == 0, "{missing} dropped without a promise");
    }
    tally
}

/// Draws a body of at most 4096 bytes.
fn small(rng: &mut Rng, format: &Format) -> Body {
    match format {
        Format::Bytes => {
            let mut body = messages::body(rng, format);
            let length = body.len().min(4096);
            body.split_off_front(length).unwrap_or_default()
        }
        _ => messages::body(rng, format),
    }
}
