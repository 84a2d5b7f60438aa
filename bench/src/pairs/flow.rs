//! One flow through both halves of a pair, and what must hold of it.

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
/// Longest time that a pair is waited for before a flow ends.
const PATIENCE: Duration = Duration::from_secs(120);

/// What came of some flows.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Tally {
    pub(super) sent: u64,
    pub(super) received: u64,
    /// Counted by the pair.
    pub(super) dropped: u64,
    /// Messages that a half returned an error for.
    pub(super) refused: u64,
    /// Came out, and were never sent so, or came twice.
    pub(super) altered: u64,
    /// The pair changes what messages say.
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

    /// Sends a message, now.
    fn send(&mut self, created: Time, body: Body) {
        let message = Message::new(created, body);
        let lane = self.sent.len() % self.subject.lanes;
        self.sent.push(message.clone());
        self.run.push_at(lane, message);
    }

    /// Sends so many, each created at a time of its own, a while apart.
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

    /// How often each message sent came out, and how many came that were never sent so.
    fn matches(&self) -> (Vec<u32>, u64) {
        let by_time: HashMap<Time, usize> =
            self.sent.iter().enumerate().map(|(number, message)| (message.created, number)).collect();
        let (mut came, mut strange) = (vec![0; self.sent.len()], 0);
        for (_, message) in &self.run.received {
            match by_time.get(&message.created) {
                Some(number) if equal(&self.sent[*number].body, &message.body) => came[*number] += 1,
                _ => strange += 1,
            }
        }
        (came, strange)
    }

    /// Nothing wrong and nothing twice came out.
    fn assert_nothing_wrong(&self) -> Vec<u32> {
        let (came, strange) = self.matches();
        assert_eq!(strange, 0, "messages came out that were never sent");
        assert!(came.iter().all(|times| *times <= 1), "a message came out twice");
        came
    }
}

/// Compares chunk by chunk, wherever their borders lie.
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

/// What leaves the sink half is what entered the source half, but for what the pair promises.
pub(super) fn undo(subject: &Subject, seed: u64) -> Tally {
    undone(subject, seed, 2000, 0, messages::body)
}

/// The same, with every other message empty.
pub(super) fn empty(subject: &Subject, seed: u64) -> Tally {
    undone(subject, seed, 200, 0, |rng, format| match rng.up_to(1) {
        0 => Body::new(),
        _ => messages::body(rng, format),
    })
}

/// The same, with messages of 16 MiB.
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
        // Devices say when something happened, which may be before what was said last.
        let created = flow.run.now.before(Duration::from_nanos(flow.rng.up_to(900_000)));
        let body = make(&mut flow.rng, &subject.format);
        flow.send(created, body);
    }
    flow.end();
    let tally = flow.tally();
    // Of a format of its own, a pair may refuse what is none of it.
    assert!(subject.format != Format::Bytes || tally.refused == 0, "a half erred: {:?}", flow.run.errors);
    if subject.compared == Compared::Nothing {
        return tally;
    }
    let accounted = tally.received + tally.dropped + tally.refused;
    assert_eq!(accounted, tally.sent, "each message comes or is counted: {:?}", flow.run.drops);
    assert!(subject.promises.may_drop || tally.dropped == 0, "{:?} without a promise", flow.run.drops);
    let same = |sent: &Message, came: &Message| {
        (subject.compared == Compared::Body || sent.created == came.created) && equal(&sent.body, &came.body)
    };
    let mut is_left = vec![true; flow.sent.len()];
    let mut from = 0;
    for (_, came) in &flow.run.received {
        let found =
            (from..flow.sent.len()).find(|number| is_left[*number] && same(&flow.sent[*number], came));
        let number = found.unwrap_or_else(|| panic!("changed, repeated or out of order: {came:?}"));
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

/// One message in twenty is lost between the halves.
pub(super) fn loss(subject: &Subject, seed: u64) -> Tally {
    let link = Params { loss_ppm: 50_000, jitter_ns: 5_000_000, ..steady(DELAY) };
    let mut flow = Flow::new(subject, seed, link);
    let count = 100 + log_uniform(&mut flow.rng, 1000);
    flow.send_some(count, small);
    flow.end();
    let tally = flow.tally();
    if subject.compared == Compared::Whole {
        let came = flow.assert_nothing_wrong();
        let half = came.len() as u64 / 2;
        assert!(subject.promises.may_drop || tally.received >= half, "only {} came", tally.received);
        let in_order = flow.run.received.windows(2).all(|pair| pair[0].1.created < pair[1].1.created);
        assert!(subject.promises.may_reorder || in_order, "out of order on a link that is not");
    }
    tally
}

/// Messages overtake each other by up to 60 ms between the halves.
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

/// A bit of every fiftieth message is flipped between the halves.
pub(super) fn corruption(subject: &Subject, seed: u64) -> Tally {
    let mut flow = Flow::new(subject, seed, Params { corrupt_ppm: 20_000, ..steady(DELAY) });
    let count = 100 + log_uniform(&mut flow.rng, 1000);
    flow.send_some(count, small);
    (0..subject.lanes).for_each(|lane| flow.run.configure_lane(lane, steady(DELAY)));
    // What waits for something that never comes is given up by then.
    flow.pass(5_000_000_000);
    let before = flow.sent.len();
    flow.send_some(count, small);
    flow.end();
    let mut tally = flow.tally();
    if subject.compared == Compared::Whole {
        let (came, strange) = flow.matches();
        let twice: u64 = came.iter().map(|times| u64::from(times.saturating_sub(1))).sum();
        tally.altered = strange + twice;
        let goes_on = came[before..].iter().any(|times| *times > 0);
        assert!(goes_on, "nothing came any more of what was sent whole afterwards");
        assert!(tally.dropped <= 100 * tally.sent, "{:?} of {} messages", flow.run.drops, tally.sent);
        assert!(subject.pair.name() != "encrypt" || tally.altered == 0, "altered messages came out");
    }
    tally
}

/// Both halves are made anew in mid-flow, with messages of the old ones on their way.
pub(super) fn restart(subject: &Subject, seed: u64) -> Tally {
    let mut flow = Flow::new(subject, seed, steady(DELAY));
    let count = 20 + log_uniform(&mut flow.rng, 200);
    for _ in 0..3 {
        // What a sink half made anew meets is a flow that is under way.
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
        let came = flow.assert_nothing_wrong();
        let missing = came[before..].iter().filter(|times| **times == 0).count();
        let excused = (flow.run.dropped() - dropped) as usize + flow.run.errors.len() - refused;
        assert!(missing <= excused, "{missing} messages sent after the restart did not come");
        assert!(subject.promises.may_drop || missing == 0, "{missing} dropped without a promise");
    }
    tally
}

/// A body of at most some thousand bytes.
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
