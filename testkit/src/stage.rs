//! The two halves of a pair in virtual time, and the conformance suite of pairs.
//!
//! ```text
//! testkit::stage::conforms(&Compress, &[("method", "lz4")], &Format::Bytes);
//! ```

use contract::{
    Body, Bytes, Format, Half, Message, Options, Outbox, Pair, Port, Promises, Secret, Shape, Site, Stage,
    StageError, StageResult, Time,
};
use netsim::{Link, Packet, Params};
use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

#[cfg(test)]
mod tests;

/// The largest body in the suite.
const LARGE_BYTES: usize = 16 << 20;
/// The number of flows that meet in a joint.
const JOINED: usize = 3;
/// The most calls at one moment of virtual time; a pair that needs more counts as stuck.
const CALLS_AT_ONCE: usize = 20_000;

/// Checks options of a pair; panics if they are invalid.
pub fn options(pair: &dyn Pair, given: &[(&str, &str)]) -> Options {
    let options = Options::check(pair.options(), given.iter().copied()).unwrap();
    pair.check(&options).unwrap();
    options
}

/// The site of the half number `number`: all halves share the key, and each has its own seed.
pub fn site(number: u64) -> Site {
    let mut seed = [0; 32];
    seed[..8].copy_from_slice(&number.to_le_bytes());
    Site { key: Some(Secret([7; 32])), seed, ..Site::default() }
}

/// A link that only delays.
pub fn steady(delay: Duration) -> Params {
    Params { delay_ns: delay.as_nanos() as u64, queue_packets: u32::MAX, ..Params::default() }
}

/// A message on the link: its number, and the random choice of a bit to flip.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Crossing {
    id: u64,
    flip: Option<u64>,
}

impl Packet for Crossing {
    fn corrupt(&mut self, random: u64) {
        self.flip = Some(random);
    }
}

/// Returns the body with one bit flipped; an empty body has none.
fn flipped(body: Body, random: u64) -> Body {
    let mut bytes = body.into_bytes().to_vec();
    Packet::corrupt(&mut bytes, random);
    Body::from(bytes)
}

/// Both halves of a pair, with a modelled link between them, and a control channel with a fixed delay.
///
/// A pair that divides a flow, or joins several, may have a link for each port ([`TwoHalves::with_lanes`]):
/// messages of lane `i` arrive at port `i` of the sink half. On a single link, messages of all ports travel in
/// one sequence, as in a pipeline of one flow.
///
/// Each half is called as its path would: messages wait outside while it has no room, and timeouts are called
/// exactly when they are due.
pub struct TwoHalves {
    /// The source half (one for each lane of a joint), then the sink half.
    stages: Vec<Box<dyn Stage>>,
    shape: Shape,
    outbox: Outbox,
    /// The messages that wait for room, for each stage.
    waiting: Vec<VecDeque<(Port, Message)>>,
    lanes: Vec<Link<Crossing>>,
    crossing: BTreeMap<u64, Message>,
    crossed: u64,
    /// The number of sites assigned to halves.
    sites: u64,
    control_delay: Duration,
    controls: VecDeque<(Time, Half, Vec<u8>)>,
    calls_at_once: usize,
    /// The virtual clock.
    pub now: Time,
    /// The messages from the sink half, with their times.
    pub received: Vec<(Time, Message)>,
    /// The port of each received message.
    pub ports: Vec<Port>,
    /// The messages from side ports.
    pub sides: Vec<(Half, Port, Message)>,
    /// Counted drops by half and reason.
    pub drops: BTreeMap<(Half, &'static str), u64>,
    /// The errors of the halves.
    pub errors: Vec<(Half, StageError)>,
    /// The number of control messages from each half.
    pub controls_sent: [u64; 2],
    /// The bodies that entered the link, for hostile tests.
    pub bodies: Vec<Body>,
}

impl TwoHalves {
    /// Makes both halves, connected by `link`. Control messages take as long as the link's fixed delay.
    pub fn new(pair: &dyn Pair, given: &[(&str, &str)], format: &Format, link: Params, seed: u64) -> Self {
        Self::with_lanes(pair, given, format, &[link], seed)
    }

    /// Makes both halves, connected by one link for each port of a pair that divides or joins flows.
    pub fn with_lanes(
        pair: &dyn Pair,
        given: &[(&str, &str)],
        format: &Format,
        lanes: &[Params],
        seed: u64,
    ) -> Self {
        let options = options(pair, given);
        let shape = pair.shape(&options);
        let sources = if shape == Shape::Joint { lanes.len() } else { 1 };
        let mut stages: Vec<_> =
            (0..sources).map(|_| pair.source(&options, format, &site(0)).unwrap()).collect();
        stages.push(pair.sink(&options, format, &site(1)).unwrap());
        let link = |(lane, params): (u64, &Params)| {
            Link::new(params.clone(), seed.wrapping_add(lane << 32)).hold_at_most(u64::MAX)
        };
        TwoHalves {
            waiting: stages.iter().map(|_| VecDeque::new()).collect(),
            stages,
            shape,
            outbox: Outbox::default(),
            control_delay: Duration::from_nanos(lanes[0].delay_ns),
            lanes: (0..).zip(lanes).map(link).collect(),
            crossing: BTreeMap::new(),
            crossed: 0,
            sites: 2,
            controls: VecDeque::new(),
            calls_at_once: 0,
            now: Time::from_millis(1000),
            received: Vec::new(),
            ports: Vec::new(),
            sides: Vec::new(),
            drops: BTreeMap::new(),
            errors: Vec::new(),
            controls_sent: [0; 2],
            bodies: Vec::new(),
        }
    }

    /// Passes `message` to the source half now, or as soon as it has room.
    pub fn push(&mut self, message: Message) {
        self.push_at(0, message);
    }

    /// As a camera does: passes `message` to the source half now, if it has room and the link holds less than `bytes_max`
    /// bytes, the length of a transport's send queue. Returns whether it did.
    pub fn offer(&mut self, message: Message, bytes_max: usize) -> bool {
        let crossing: usize = self.crossing.values().map(|message| message.body.len()).sum();
        let has_room = self.waiting[0].is_empty() && self.stages[0].has_room() && crossing < bytes_max;
        if has_room {
            self.push(message);
        }
        has_room
    }

    /// As [`TwoHalves::push`], to the source half of one lane of a joint.
    pub fn push_at(&mut self, lane: usize, message: Message) {
        self.waiting[lane].push_back((Port::MAIN, message));
        self.calls_at_once = 0;
        self.run_until(self.now);
    }

    /// Pushes to the source halves in turn.
    fn push_in_turn(&mut self, number: usize, message: Message) {
        self.push_at(number % self.indexes(Half::Source).len(), message);
    }

    /// Changes the first link from now on.
    pub fn configure(&mut self, link: Params) {
        self.configure_lane(0, link);
    }

    /// Changes one link from now on.
    pub fn configure_lane(&mut self, lane: usize, link: Params) {
        self.lanes[lane].configure(self.now.0, link);
    }

    /// Replaces both halves during the flow, as after a crash. Held messages and control messages in flight are
    /// lost. Messages from the old source half reach the new sink half.
    pub fn restart(&mut self, pair: &dyn Pair, given: &[(&str, &str)], format: &Format) {
        let options = options(pair, given);
        for index in 0..self.stages.len() {
            let site = site(self.sites);
            self.sites += 1;
            self.stages[index] = pair.half(self.half(index), &options, format, &site).unwrap();
        }
        self.controls.clear();
    }

    /// Replaces the sink half by one that restores its checkpoint, as in another process.
    pub fn hand_over(&mut self, pair: &dyn Pair, given: &[(&str, &str)], format: &Format) {
        let sink = self.stages.len() - 1;
        let mut next = pair.sink(&options(pair, given), format, &site(self.sites)).unwrap();
        self.sites += 1;
        if let Some(checkpoint) = self.stages[sink].checkpoint() {
            next.restore(checkpoint.clone()).unwrap();
            assert_eq!(next.checkpoint(), Some(checkpoint), "restored to something else");
        }
        self.stages[sink] = next;
    }

    /// Reports a loss to a half.
    pub fn gap(&mut self, half: Half) {
        for (index, port) in self.inputs(half) {
            self.call(index, |stage, now, out| stage.handle_gap(port, now, out));
        }
        self.run_until(self.now);
    }

    /// The indexes of a half's stages.
    fn indexes(&self, half: Half) -> std::ops::Range<usize> {
        let sink = self.stages.len() - 1;
        match half {
            Half::Source => 0..sink,
            Half::Sink => sink..sink + 1,
        }
    }

    fn half(&self, index: usize) -> Half {
        if index + 1 == self.stages.len() { Half::Sink } else { Half::Source }
    }

    /// Every input of a half: the stage and its port.
    fn inputs(&self, half: Half) -> Vec<(usize, Port)> {
        let sink = self.stages.len() - 1;
        match half {
            Half::Source => (0..sink).map(|index| (index, Port::MAIN)).collect(),
            Half::Sink => (0..self.lanes.len()).map(|lane| (sink, Port(lane as u16))).collect(),
        }
    }

    fn end_half(&mut self, half: Half) {
        self.wait_for_room(half);
        for (index, port) in self.inputs(half) {
            self.call(index, |stage, now, out| stage.handle_end(port, now, out));
        }
    }

    /// Ends the flow at the source, waits until the links are empty, and ends it at the sink.
    pub fn end(&mut self) {
        self.run_until(self.now);
        self.end_half(Half::Source);
        while let Some(at) = self.link_deadline() {
            self.run_until(at.max(self.now));
        }
        self.end_half(Half::Sink);
    }

    fn link_deadline(&self) -> Option<Time> {
        self.lanes.iter().filter_map(Link::deadline).min().map(Time)
    }

    fn wait_for_room(&mut self, half: Half) {
        let started = self.now;
        while self.indexes(half).any(|index| !self.waiting[index].is_empty()) {
            self.run_until(self.now.after(Duration::from_millis(10)));
            assert!(
                self.now.since(started) < Duration::from_secs(600),
                "the {half:?} half never has room again"
            );
        }
    }

    /// Advances virtual time to `end`.
    pub fn run_until(&mut self, end: Time) {
        loop {
            while self.move_one() {}
            let events = [self.link_deadline(), self.controls.front().map(|control| control.0)];
            let timeouts = self.stages.iter().filter_map(|stage| stage.poll_timeout());
            match events.into_iter().flatten().chain(timeouts).min() {
                Some(at) if at <= end => {
                    self.set_now(at);
                    self.happen();
                }
                _ => return self.set_now(end),
            }
        }
    }

    /// The counted drops of both halves.
    pub fn dropped(&self) -> u64 {
        self.drops.values().sum()
    }

    /// The messages lost on the link.
    pub fn lost(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.counters().lost).sum()
    }

    /// The messages that a half holds and will release in time.
    pub fn held(&self, half: Half) -> usize {
        self.indexes(half).map(|index| self.stages[index].held()).sum()
    }

    /// A statistic of a half; panics if there is none with this name.
    pub fn figure(&self, half: Half, name: &str) -> f64 {
        let report = self.stages[self.indexes(half).start].report();
        report.iter().find(|(known, _)| *known == name).unwrap_or_else(|| panic!("{name}: {report:?}")).1
    }

    /// The mean and the maximum of
    /// time between two received messages - time between their creations
    /// (Networked Device Driver Architecture (2012), 6.7), in nanoseconds, from message number `skip` on.
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

    /// Processes everything that is due now, once.
    fn happen(&mut self) {
        let sink = self.stages.len() - 1;
        let mut arrived = Vec::new();
        for (port, lane) in (0..).zip(&mut self.lanes) {
            let due = std::iter::from_fn(|| lane.pop(self.now.0));
            arrived.extend(due.map(|(at, crossing)| (at, crossing, Port(port))));
        }
        arrived.sort_unstable();
        for (_, crossing, port) in arrived {
            if let Some(mut message) = self.crossing.remove(&crossing.id) {
                if let Some(random) = crossing.flip {
                    message.body = flipped(message.body, random);
                }
                self.waiting[sink].push_back((port, message));
            }
        }
        while self.controls.front().is_some_and(|control| control.0 <= self.now) {
            let (_, half, bytes) = self.controls.pop_front().unwrap();
            for index in self.indexes(half) {
                self.call(index, |stage, now, out| stage.handle_control(&bytes, now, out));
            }
        }
        for index in 0..self.stages.len() {
            if self.stages[index].poll_timeout().is_some_and(|at| at <= self.now) {
                self.call(index, |stage, now, out| stage.handle_timeout(now, out));
            }
        }
    }

    /// Passes on one waiting message that finds room.
    fn move_one(&mut self) -> bool {
        for index in 0..self.stages.len() {
            if self.stages[index].has_room()
                && let Some((port, message)) = self.waiting[index].pop_front()
            {
                self.call(index, |stage, now, out| stage.handle(port, message, now, out));
                return true;
            }
        }
        false
    }

    fn call(&mut self, index: usize, call: impl FnOnce(&mut dyn Stage, Time, &mut Outbox) -> StageResult) {
        let half = self.half(index);
        self.calls_at_once += 1;
        assert!(
            self.calls_at_once < CALLS_AT_ONCE,
            "stuck at {:?}: the {half:?} half makes no progress",
            self.now
        );
        if let Err(error) = call(&mut *self.stages[index], self.now, &mut self.outbox) {
            self.errors.push((half, error));
        }
        for bytes in self.outbox.controls.drain(..) {
            self.controls_sent[half as usize] += 1;
            self.controls.push_back((self.now.after(self.control_delay), half.other(), bytes));
        }
        for drop in self.outbox.drops.drain(..) {
            *self.drops.entry((half, drop.reason)).or_default() += drop.count;
        }
        for (port, message) in self.outbox.messages.drain(..) {
            let goes_on = match (half, self.shape) {
                (Half::Source, Shape::Fan(ways)) => port.0 < ways,
                (Half::Sink, Shape::Joint) => usize::from(port.0) < self.lanes.len(),
                _ => port == Port::MAIN,
            };
            if !goes_on {
                self.sides.push((half, port, message));
            } else if half == Half::Sink {
                self.received.push((self.now, message));
                self.ports.push(port);
            } else {
                self.bodies.push(message.body.clone());
                // The lane is the port of a divided flow, or the source half of a joint.
                let lane = if self.shape == Shape::Joint { index } else { usize::from(port.0) };
                let lane = lane % self.lanes.len();
                // Only the creation time and the body cross a network.
                let bytes = u32::try_from(message.body.len()).unwrap_or(u32::MAX);
                let _ = self.lanes[lane].push(self.now.0, Crossing { id: self.crossed, flip: None }, bytes);
                self.crossing.insert(self.crossed, Message::new(message.created, message.body));
                self.crossed += 1;
            }
        }
    }
}

/// A pair and its options in the suite.
struct Rig<'a> {
    pair: &'a dyn Pair,
    given: &'a [(&'a str, &'a str)],
    format: &'a Format,
    /// The number of links between the halves.
    lanes: usize,
}

impl Rig<'_> {
    fn run(&self, link: Params, seed: u64) -> TwoHalves {
        TwoHalves::with_lanes(self.pair, self.given, self.format, &vec![link; self.lanes], seed)
    }

    fn promises(&self) -> Promises {
        let options = options(self.pair, self.given);
        let mut promises = self.pair.promises(&options);
        // Separate flows have no common order.
        promises.may_reorder |= self.lanes > 1 && self.pair.shape(&options) == Shape::Joint;
        promises
    }
}

/// Runs the whole suite on a pair with these options. The pair must have no effect that its [`Promises`] do not
/// declare. Panics at the first violation.
pub fn conforms(pair: &dyn Pair, given: &[(&str, &str)], format: &Format) {
    declares_itself(pair, given, format);
    let rig = Rig { pair, given, format, lanes: 1 };
    conforms_on(&rig);
    survives_hostile_bytes(pair, given, format);
    match pair.shape(&options(pair, given)) {
        Shape::Line => {}
        Shape::Fan(ways) => conforms_on(&Rig { lanes: ways.into(), ..rig }),
        Shape::Joint => conforms_on(&Rig { lanes: JOINED, ..rig }),
    }
}

fn conforms_on(rig: &Rig<'_>) {
    undoes_every_kind_of_body(rig);
    takes_a_burst(rig);
    goes_on_after_gaps(rig);
    restores_a_checkpoint(rig);
    survives_a_bad_link(rig);
}

fn declares_itself(pair: &dyn Pair, given: &[(&str, &str)], format: &Format) {
    let name = pair.name();
    let plain = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
    assert!(plain(name), "{name}: not a plain name");
    assert!(
        !pair.entry().summary.is_empty() && !pair.entry().summary.contains('\n'),
        "{name}: needs one line of summary"
    );
    for option in pair.options() {
        assert!(plain(option.name) && !option.doc.is_empty(), "{name}: option {} needs a line", option.name);
        assert!(
            pair.entry().doc.contains(&format!("`{}`", option.name)),
            "{name}: doc is silent on {}",
            option.name
        );
    }
    pair.check(&Options::defaults(pair.options()).unwrap()).unwrap();
    pair.accept(format, &options(pair, given)).unwrap();
}

/// Sent and received messages are equal, except for declared effects.
fn agree(run: &TwoHalves, sent: &[Message], promises: Promises) {
    assert_eq!(run.errors, [], "no half fails on messages of the other half");
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
    // Comparing slices is much faster than comparing chains of pieces.
    a.created == b.created && a.body.len() == b.body.len() && {
        a.body.clone().into_bytes() == b.body.clone().into_bytes()
    }
}

/// Every received message was sent, and none is received twice.
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

fn undoes_every_kind_of_body(rig: &Rig<'_>) {
    let promises = rig.promises();
    let mut run = rig.run(steady(Duration::from_millis(5)), 1);
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
        run.push_in_turn(round, message);
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
        // More than 20 000 calls within a tenth of a second would count as stuck.
        run.calls_at_once = 0;
        run.run_until(run.now.after(Duration::from_millis(100)));
    }
    assert_eq!(run.received.len(), received, "the end left something behind");
}

fn takes_a_burst(rig: &Rig<'_>) {
    let promises = rig.promises();
    let mut run = rig.run(steady(Duration::from_millis(1)), 2);
    let sent: Vec<Message> =
        (0..1500u64).map(|i| Message::new(Time(run.now.0 + i), i.to_le_bytes().to_vec())).collect();
    (0..).zip(&sent).for_each(|(i, message)| run.push_in_turn(i, message.clone()));
    holds_nothing_for_ever(&mut run);
    run.end();
    agree(&run, &sent, promises);
}

/// Held messages are released in time: a path waits for that at the end of its flow.
fn holds_nothing_for_ever(run: &mut TwoHalves) {
    let received = run.received.len() + run.held(Half::Source) + run.held(Half::Sink);
    run.run_until(run.now.after(Duration::from_secs(120)));
    assert_eq!((run.held(Half::Source), run.held(Half::Sink)), (0, 0), "held for ever");
    assert!(run.received.len() >= received, "held and never released");
}

fn goes_on_after_gaps(rig: &Rig<'_>) {
    let promises = rig.promises();
    let mut run = rig.run(steady(Duration::from_millis(3)), 3);
    let mut sent = Vec::new();
    for i in 0..200u64 {
        sent.push(Message::new(run.now, i.to_le_bytes().to_vec()));
        run.push_in_turn(i as usize, sent[sent.len() - 1].clone());
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

/// The checkpoint of a sink half holds all its memory. A joint of several flows runs in no worker
/// and is never killed alone, so it is not tested.
fn restores_a_checkpoint(rig: &Rig<'_>) {
    if rig.lanes > 1 {
        return;
    }
    let dropped = [None, Some(7)].map(|every| drops_handed_over(rig, every));
    assert!(dropped[1] <= dropped[0], "{dropped:?} dropped by one half, and by its successors");
}

/// The number of dropped messages if the sink half is replaced after every `every` messages.
fn drops_handed_over(rig: &Rig<'_>, every: Option<u64>) -> u64 {
    let mut run = rig.run(steady(Duration::from_millis(3)), 3);
    let mut rng = rng(9);
    let mut sent = Vec::new();
    for i in 0..300u64 {
        let mut body = vec![i as u8 / 50; 60 + i as usize % 3];
        body[..8].copy_from_slice(&i.to_le_bytes());
        sent.push(Message::new(run.now, body));
        run.push_in_turn(i as usize, sent[sent.len() - 1].clone());
        run.run_until(run.now.after(Duration::from_micros(rng.next_u64() % 8000)));
        if every.is_some_and(|every| i % every == 3) {
            run.hand_over(rig.pair, rig.given, rig.format);
        }
    }
    run.end();
    agree(&run, &sent, rig.promises());
    run.dropped()
}

fn survives_a_bad_link(rig: &Rig<'_>) {
    let promises = rig.promises();
    for (seed, reorder) in [(4, false), (5, true), (6, true)] {
        let link =
            Params { jitter_ns: 60_000_000, loss_ppm: 50_000, reorder, ..steady(Duration::from_millis(10)) };
        let mut run = rig.run(link, seed);
        let mut sent = Vec::new();
        for i in 0..600u64 {
            sent.push(Message::new(run.now, i.to_le_bytes().to_vec()));
            run.push_in_turn(i as usize, sent[sent.len() - 1].clone());
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
    let shape = pair.shape(&options);
    let mut honest = TwoHalves::new(pair, given, format, steady(Duration::from_millis(1)), 7);
    for i in 0..60u64 {
        honest.push(Message::new(honest.now, vec![i as u8; 40]));
        honest.run_until(honest.now.after(Duration::from_millis(9)));
    }
    let checkpoint = honest.stages[1].checkpoint().map_or_else(Vec::new, |it| it.into_bytes().to_vec());
    honest.end();
    let mut rng = rng(8);
    let mut out = Outbox::default();
    for round in 0..40 {
        let mut stages = [
            pair.source(&options, format, &site(0)).unwrap(),
            pair.sink(&options, format, &site(1)).unwrap(),
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
            if round % 2 == 0 && body.len() % 2 == 0 {
                let mut checkpoint = checkpoint.clone();
                checkpoint.truncate(rng.next_u64() as usize % (checkpoint.len() * 2 + 1));
                for _ in 0..rng.next_u64() as usize % (checkpoint.len() + 1) % 4 {
                    let at = rng.next_u64() as usize % checkpoint.len();
                    checkpoint[at] = rng.next_u64() as u8;
                }
                stages[1] = pair.sink(&options, format, &site(1)).unwrap();
                if stages[1].restore(checkpoint.into()).is_err() {
                    stages[1] = pair.sink(&options, format, &site(1)).unwrap();
                }
            }
            let created = if rng.next_u64().is_multiple_of(4) { Time(rng.next_u64()) } else { now };
            let port = if shape == Shape::Line { Port::MAIN } else { Port((rng.next_u64() % 70) as u16) };
            let _ = stages[1].handle(port, Message::new(created, bytes), now, &mut out);
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
