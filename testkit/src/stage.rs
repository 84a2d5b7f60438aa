//! Two halves of a pair in virtual time, and the suite that every pair passes.
//!
//! ```text
//! testkit::stage::conforms(&Compress, &[("method", "lz4")], &Format::Bytes);
//! ```

use contract::{
    Body, Bytes, Format, Half, Message, Options, Outbox, Pair, Port, Promises, Site, Stage, StageError, Time,
};
use netsim::{Link, Params};
use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

#[cfg(test)]
mod tests;

/// Largest body of the suite.
const LARGE_BYTES: usize = 16 << 20;
/// Most calls at one moment of virtual time before a pair counts as stuck.
const CALLS_AT_ONCE: usize = 20_000;

/// Checked options of a pair; panics if they are wrong.
pub fn options(pair: &dyn Pair, given: &[(&str, &str)]) -> Options {
    let options = Options::check(pair.options(), given.iter().copied()).unwrap();
    pair.check(&options).unwrap();
    options
}

/// A link that only delays, in order.
pub fn steady(delay: Duration) -> Params {
    Params { delay_ns: delay.as_nanos() as u64, queue_packets: u32::MAX, ..Params::default() }
}

/// Both halves of a pair, a modelled link between them, and a control channel of a fixed delay.
///
/// Each half is called as its path would: messages wait outside while it has no room, and timeouts are called
/// exactly when they are due.
pub struct TwoHalves {
    stages: [Box<dyn Stage>; 2],
    outbox: Outbox,
    /// Messages that wait for room, at each half.
    waiting: [VecDeque<Message>; 2],
    link: Link<u64>,
    crossing: BTreeMap<u64, Message>,
    crossed: u64,
    control_delay: Duration,
    controls: VecDeque<(Time, Half, Vec<u8>)>,
    calls_at_once: usize,
    /// The virtual clock.
    pub now: Time,
    /// What left the sink half, and when.
    pub received: Vec<(Time, Message)>,
    /// What left by side ports.
    pub sides: Vec<(Half, Port, Message)>,
    /// Counted drops by half and reason.
    pub drops: BTreeMap<(Half, &'static str), u64>,
    /// What the halves returned.
    pub errors: Vec<(Half, StageError)>,
    /// Control messages sent by each half.
    pub controls_sent: [u64; 2],
    /// Bytes of the bodies that entered the link, kept for the wicked.
    pub bodies: Vec<Body>,
}

impl TwoHalves {
    /// Both halves, connected by `link`; control messages take as long as the link's fixed delay.
    pub fn new(pair: &dyn Pair, given: &[(&str, &str)], format: &Format, link: Params, seed: u64) -> Self {
        let options = options(pair, given);
        let stages = [
            pair.source(&options, format, &Site::default()).unwrap(),
            pair.sink(&options, format, &Site::default()).unwrap(),
        ];
        TwoHalves {
            stages,
            outbox: Outbox::default(),
            waiting: Default::default(),
            control_delay: Duration::from_nanos(link.delay_ns),
            link: Link::new(link, seed).hold_at_most(u64::MAX),
            crossing: BTreeMap::new(),
            crossed: 0,
            controls: VecDeque::new(),
            calls_at_once: 0,
            now: Time::from_millis(1000),
            received: Vec::new(),
            sides: Vec::new(),
            drops: BTreeMap::new(),
            errors: Vec::new(),
            controls_sent: [0; 2],
            bodies: Vec::new(),
        }
    }

    /// The source half takes `message` now, or as soon as it has room.
    pub fn push(&mut self, message: Message) {
        self.waiting[0].push_back(message);
        self.calls_at_once = 0;
        self.run_until(self.now);
    }

    /// Changes what the link does from now on.
    pub fn configure(&mut self, link: Params) {
        self.link.configure(self.now.0, link);
    }

    /// Tells a half that something was lost before it.
    pub fn gap(&mut self, half: Half) {
        self.call(half, |stage, now, out| stage.handle_gap(Port::MAIN, now, out));
        self.run_until(self.now);
    }

    /// Ends the flow at the source, waits until the link is empty, and ends it at the sink.
    pub fn end(&mut self) {
        self.run_until(self.now);
        self.wait_for_room(Half::Source);
        self.call(Half::Source, |stage, now, out| stage.handle_end(Port::MAIN, now, out));
        while let Some(at) = self.link.deadline() {
            self.run_until(Time(at).max(self.now));
        }
        self.wait_for_room(Half::Sink);
        self.call(Half::Sink, |stage, now, out| stage.handle_end(Port::MAIN, now, out));
    }

    fn wait_for_room(&mut self, half: Half) {
        let started = self.now;
        while !self.waiting[half as usize].is_empty() {
            self.run_until(self.now.after(Duration::from_millis(10)));
            assert!(
                self.now.since(started) < Duration::from_secs(600),
                "the {half:?} half never has room again"
            );
        }
    }

    /// Lets virtual time pass until `end`.
    pub fn run_until(&mut self, end: Time) {
        loop {
            while self.move_one() {}
            let events = [
                self.link.deadline().map(Time),
                self.controls.front().map(|control| control.0),
                self.stages[0].poll_timeout(),
                self.stages[1].poll_timeout(),
            ];
            match events.into_iter().flatten().min() {
                Some(at) if at <= end => {
                    self.set_now(at);
                    self.happen();
                }
                _ => return self.set_now(end),
            }
        }
    }

    /// Counted drops of both halves.
    pub fn dropped(&self) -> u64 {
        self.drops.values().sum()
    }

    /// Messages lost on the link.
    pub fn lost(&self) -> u64 {
        self.link.counters().lost
    }

    /// Messages that a half holds and will give out by itself.
    pub fn held(&self, half: Half) -> usize {
        self.stages[half as usize].held()
    }

    /// A figure of a half's report; panics if it reports none by this name.
    pub fn figure(&self, half: Half, name: &str) -> f64 {
        let report = self.stages[half as usize].report();
        report.iter().find(|(known, _)| *known == name).unwrap_or_else(|| panic!("{name}: {report:?}")).1
    }

    /// Mean and largest |time between two messages when received - when created| (paper N, section 6.7), in
    /// nanoseconds, from the message number `skip` on.
    pub fn spacing_error(&self, skip: usize) -> (f64, f64) {
        let differences: Vec<f64> = self.received[skip..]
            .windows(2)
            .map(|pair| {
                let received = pair[1].0.signed_since(pair[0].0);
                let created = pair[1].1.created.signed_since(pair[0].1.created);
                (received - created).abs() as f64
            })
            .collect();
        let mean = differences.iter().sum::<f64>() / differences.len().max(1) as f64;
        (mean, differences.into_iter().fold(0.0, f64::max))
    }

    fn set_now(&mut self, at: Time) {
        if at > self.now {
            self.now = at;
            self.calls_at_once = 0;
        }
    }

    /// Whatever is due now, once.
    fn happen(&mut self) {
        while let Some((_, id)) = self.link.pop(self.now.0) {
            if let Some(message) = self.crossing.remove(&id) {
                self.waiting[1].push_back(message);
            }
        }
        while self.controls.front().is_some_and(|control| control.0 <= self.now) {
            let (_, half, bytes) = self.controls.pop_front().unwrap();
            self.call(half, |stage, now, out| stage.handle_control(&bytes, now, out));
        }
        for half in [Half::Source, Half::Sink] {
            if self.stages[half as usize].poll_timeout().is_some_and(|at| at <= self.now) {
                self.call(half, |stage, now, out| stage.handle_timeout(now, out));
            }
        }
    }

    /// Hands on one message that waits and finds room.
    fn move_one(&mut self) -> bool {
        for half in [Half::Source, Half::Sink] {
            if self.stages[half as usize].has_room()
                && let Some(message) = self.waiting[half as usize].pop_front()
            {
                self.call(half, |stage, now, out| stage.handle(Port::MAIN, message, now, out));
                return true;
            }
        }
        false
    }

    fn call(
        &mut self,
        half: Half,
        what: impl FnOnce(&mut dyn Stage, Time, &mut Outbox) -> Result<(), StageError>,
    ) {
        self.calls_at_once += 1;
        assert!(
            self.calls_at_once < CALLS_AT_ONCE,
            "stuck at {:?}: the {half:?} half makes no progress",
            self.now
        );
        if let Err(error) = what(&mut *self.stages[half as usize], self.now, &mut self.outbox) {
            self.errors.push((half, error));
        }
        let other = if half == Half::Source { Half::Sink } else { Half::Source };
        for bytes in self.outbox.controls.drain(..) {
            self.controls_sent[half as usize] += 1;
            self.controls.push_back((self.now.after(self.control_delay), other, bytes));
        }
        for drop in self.outbox.drops.drain(..) {
            *self.drops.entry((half, drop.reason)).or_default() += drop.count;
        }
        for (port, message) in self.outbox.messages.drain(..) {
            if port != Port::MAIN {
                self.sides.push((half, port, message));
            } else if half == Half::Sink {
                self.received.push((self.now, message));
            } else {
                self.bodies.push(message.body.clone());
                // Only the creation time and the body cross a network.
                let bytes = u32::try_from(message.body.len()).unwrap_or(u32::MAX);
                let _ = self.link.push(self.now.0, self.crossed, bytes);
                self.crossing.insert(self.crossed, Message::new(message.created, message.body));
                self.crossed += 1;
            }
        }
    }
}

/// Runs the whole suite on a pair with these options. What the pair does not declare in its [`Promises`], it
/// must not do. Panics with what went wrong.
pub fn conforms(pair: &dyn Pair, given: &[(&str, &str)], format: &Format) {
    declares_itself(pair, given, format);
    undoes_every_kind_of_body(pair, given, format);
    takes_a_burst(pair, given, format);
    goes_on_after_gaps(pair, given, format);
    survives_a_bad_link(pair, given, format);
    survives_hostile_bytes(pair, given, format);
}

fn declares_itself(pair: &dyn Pair, given: &[(&str, &str)], format: &Format) {
    let name = pair.name();
    let plain = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
    assert!(plain(name), "{name}: not a plain name");
    assert!(
        !pair.summary().is_empty() && !pair.summary().contains('\n'),
        "{name}: needs one line of summary"
    );
    for option in pair.options() {
        assert!(plain(option.name) && !option.doc.is_empty(), "{name}: option {} needs a line", option.name);
        assert!(
            pair.doc().contains(&format!("`{}`", option.name)),
            "{name}: doc is silent on {}",
            option.name
        );
    }
    pair.check(&Options::defaults(pair.options()).unwrap()).unwrap();
    pair.accept(format, &options(pair, given)).unwrap();
}

/// Sent and received agree, but for what the pair declares.
fn agree(run: &TwoHalves, sent: &[Message], promises: Promises) {
    assert_eq!(run.errors, [], "no half errs on what the other half made");
    let received: Vec<&Message> = run.received.iter().map(|(_, message)| message).collect();
    if promises.may_change {
        return;
    }
    let lost = sent.len() as u64 - received.len() as u64;
    assert_eq!(lost, run.dropped(), "each message is received or counted: {:?}", run.drops);
    assert!(promises.may_drop || lost == 0, "{:?} dropped without a promise", run.drops);
    if promises.may_reorder {
        each_once(&received, sent);
    } else {
        let mut rest = sent.iter();
        for message in received {
            assert!(rest.any(|sent| same(sent, message)), "changed, repeated or out of order: {message:?}");
        }
    }
}

fn same(a: &Message, b: &Message) -> bool {
    // Slices compare much faster than chains of pieces.
    a.created == b.created && a.body.len() == b.body.len() && {
        a.body.clone().into_bytes() == b.body.clone().into_bytes()
    }
}

/// Every message received is one of those sent, and not the same one twice.
fn each_once(received: &[&Message], sent: &[Message]) {
    let mut left: BTreeMap<(Time, Bytes), i64> = BTreeMap::new();
    for message in sent {
        *left.entry((message.created, message.body.clone().into_bytes())).or_default() += 1;
    }
    for message in received {
        let count = left.entry((message.created, message.body.clone().into_bytes())).or_default();
        *count -= 1;
        assert!(*count >= 0, "changed or repeated: {message:?}");
    }
}

fn rng(seed: u8) -> TestRng {
    TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32])
}

fn random_bytes(rng: &mut TestRng, length: usize) -> Bytes {
    let mut bytes = vec![0; length];
    rng.fill_bytes(&mut bytes);
    Bytes::from(bytes)
}

fn undoes_every_kind_of_body(pair: &dyn Pair, given: &[(&str, &str)], format: &Format) {
    let promises = pair.promises(&options(pair, given));
    let mut run = TwoHalves::new(pair, given, format, steady(Duration::from_millis(5)), 1);
    let mut rng = rng(1);
    let mut sent = Vec::new();
    for round in 0..40 {
        let body: Body = match round % 8 {
            0 => Body::new(),
            1 => Body::from(random_bytes(&mut rng, 1)),
            2 => Body::from(random_bytes(&mut rng, 24)),
            3 => (0..9).map(|i| random_bytes(&mut rng, i * 11)).collect(),
            4 => Body::from((0..3000).map(|i| (i % 7) as u8).collect::<Vec<_>>()),
            5 => {
                let mut body = Body::from(random_bytes(&mut rng, 2000));
                body.push_front(b"header of another stage");
                body
            }
            6 if round == 6 => Body::from((0..LARGE_BYTES).map(|i| (i >> 4) as u8).collect::<Vec<_>>()),
            _ => Body::from(random_bytes(&mut rng, 300)),
        };
        let mut message = Message::new(run.now.before(Duration::from_micros(rng.next_u64() % 900)), body);
        message.attributes.priority = 3;
        sent.push(message.clone());
        run.push(message);
        run.run_until(run.now.after(Duration::from_micros(rng.next_u64() % 20_000)));
    }
    run.end();
    agree(&run, &sent, promises);
    if !promises.may_delay && !promises.may_drop {
        let network = Duration::from_millis(5);
        let late = run
            .received
            .iter()
            .zip(&sent)
            .find(|((at, _), sent)| at.since(sent.created) > network + Duration::from_millis(1));
        assert!(late.is_none(), "delayed without a promise: {late:?}");
    }
    is_quiet_after_its_end(&mut run);
}

fn is_quiet_after_its_end(run: &mut TwoHalves) {
    let received = run.received.len();
    for _ in 0..600 {
        // Called more than 20 000 times within a tenth of a second, it would count as stuck.
        run.calls_at_once = 0;
        run.run_until(run.now.after(Duration::from_millis(100)));
    }
    assert_eq!(run.received.len(), received, "the end left something behind");
}

fn takes_a_burst(pair: &dyn Pair, given: &[(&str, &str)], format: &Format) {
    let promises = pair.promises(&options(pair, given));
    let mut run = TwoHalves::new(pair, given, format, steady(Duration::from_millis(1)), 2);
    let sent: Vec<Message> =
        (0..1500u64).map(|i| Message::new(Time(run.now.0 + i), i.to_le_bytes().to_vec())).collect();
    sent.iter().for_each(|message| run.push(message.clone()));
    holds_nothing_for_ever(&mut run);
    run.end();
    agree(&run, &sent, promises);
}

/// What is held leaves by itself: a path that has come to its end waits for that.
fn holds_nothing_for_ever(run: &mut TwoHalves) {
    let received = run.received.len() + run.held(Half::Source) + run.held(Half::Sink);
    run.run_until(run.now.after(Duration::from_secs(120)));
    assert_eq!((run.held(Half::Source), run.held(Half::Sink)), (0, 0), "held for ever");
    assert!(run.received.len() >= received, "held, and not given out");
}

fn goes_on_after_gaps(pair: &dyn Pair, given: &[(&str, &str)], format: &Format) {
    let promises = pair.promises(&options(pair, given));
    let mut run = TwoHalves::new(pair, given, format, steady(Duration::from_millis(3)), 3);
    let mut sent = Vec::new();
    for i in 0..200u64 {
        sent.push(Message::new(run.now, i.to_le_bytes().to_vec()));
        run.push(sent[sent.len() - 1].clone());
        run.run_until(run.now.after(Duration::from_millis(4)));
        match i {
            50 | 51 | 150 => run.gap(Half::Sink),
            70 | 151 => run.gap(Half::Source),
            _ => {}
        }
    }
    run.end();
    agree(&run, &sent, promises);
}

fn survives_a_bad_link(pair: &dyn Pair, given: &[(&str, &str)], format: &Format) {
    let promises = pair.promises(&options(pair, given));
    for (seed, reorder) in [(4, false), (5, true), (6, true)] {
        let link =
            Params { jitter_ns: 60_000_000, loss_ppm: 50_000, reorder, ..steady(Duration::from_millis(10)) };
        let mut run = TwoHalves::new(pair, given, format, link, seed);
        let mut sent = Vec::new();
        for i in 0..600u64 {
            sent.push(Message::new(run.now, i.to_le_bytes().to_vec()));
            run.push(sent[sent.len() - 1].clone());
            run.run_until(run.now.after(Duration::from_millis(8)));
        }
        run.run_until(run.now.after(Duration::from_secs(3)));
        run.end();
        if promises.may_change {
            continue;
        }
        let received: Vec<&Message> = run.received.iter().map(|(_, message)| message).collect();
        each_once(&received, &sent);
        let at_least = sent.len() / 2;
        assert!(
            promises.may_drop || received.len() >= at_least,
            "seed {seed}: {} of {} with 5 % lost",
            received.len(),
            sent.len()
        );
        let in_order = received.windows(2).all(|pair| pair[0].created <= pair[1].created);
        assert!(
            reorder || promises.may_reorder || in_order,
            "seed {seed}: out of order on a link that is not"
        );
    }
}

fn survives_hostile_bytes(pair: &dyn Pair, given: &[(&str, &str)], format: &Format) {
    let options = options(pair, given);
    let mut honest = TwoHalves::new(pair, given, format, steady(Duration::from_millis(1)), 7);
    for i in 0..60u64 {
        honest.push(Message::new(honest.now, vec![i as u8; 40]));
        honest.run_until(honest.now.after(Duration::from_millis(9)));
    }
    honest.end();
    let mut rng = rng(8);
    let mut out = Outbox::default();
    for round in 0..40 {
        let mut stages = [
            pair.source(&options, format, &Site::default()).unwrap(),
            pair.sink(&options, format, &Site::default()).unwrap(),
        ];
        let mut now = Time::from_millis(1000);
        for body in &honest.bodies {
            let mut bytes = body.clone().into_bytes().to_vec();
            match (round + rng.next_u64()) % 5 {
                0 => bytes.truncate(rng.next_u64() as usize % (bytes.len() + 1)),
                1 if !bytes.is_empty() => {
                    for _ in 0..1 + rng.next_u64() % 4 {
                        let at = rng.next_u64() as usize % bytes.len();
                        bytes[at] = rng.next_u64() as u8;
                    }
                }
                2 => bytes = random_bytes(&mut rng, body.len()).to_vec(),
                3 => bytes.splice(..bytes.len().min(12), std::iter::repeat_n(0xff, 12)).for_each(drop),
                _ => bytes.extend_from_slice(&random_bytes(&mut rng, 9)),
            }
            let created = if rng.next_u64().is_multiple_of(4) { Time(rng.next_u64()) } else { now };
            let _ = stages[1].handle(Port::MAIN, Message::new(created, bytes), now, &mut out);
            let length = rng.next_u64() as usize % 40;
            let control = random_bytes(&mut rng, length);
            for stage in &mut stages {
                let _ = stage.handle_control(&control, now, &mut out);
                if stage.poll_timeout().is_some_and(|at| at <= now) {
                    let _ = stage.handle_timeout(now, &mut out);
                }
            }
            let bytes: usize = out.messages.iter().map(|(_, message)| message.body.len()).sum();
            assert!(bytes <= wire::BODY_BYTES_MAX, "{bytes} bytes made of one hostile message");
            out = Outbox::default();
            now = now.after(Duration::from_millis(9));
        }
        for stage in &mut stages {
            let _ = stage.handle_end(Port::MAIN, now, &mut out);
        }
        out = Outbox::default();
    }
}
