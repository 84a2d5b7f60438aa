use super::Prefetch;
use super::header::Header;
use contract::{Body, Format, Half, Message, Options, Outbox, Pair, PassThrough, Port, Site, Stage, Time};
use netsim::{Link, Params};
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use testkit::stage::{conforms, options, site, steady};

#[test]
fn it_conforms() {
    conforms(&Prefetch, &[], &Format::Bytes);
    conforms(&Prefetch, &[("flow", "answers")], &Format::Serial);
    conforms(&Prefetch, &[("only", "52"), ("others", "silent")], &Format::Bytes);
}

#[test]
fn header_layout() {
    let kinds = [
        Header::Request(0x0102),
        Header::Confirmed(1),
        Header::Other(u64::MAX),
        Header::Prefetch(3),
        Header::Answer(4),
        Header::Unsolicited,
        Header::Unmatched,
    ];
    let expected: [&[u8]; 7] = [
        b"\x00\x02\x01\0\0\0\0\0\0b",
        b"\x01\x01\0\0\0\0\0\0\0b",
        b"\x02\xff\xff\xff\xff\xff\xff\xff\xffb",
        b"\x03\x03\0\0\0\0\0\0\0b",
        b"\x04\x04\0\0\0\0\0\0\0b",
        b"\x05\0\0\0\0\0\0\0\0b",
        b"\x06\0\0\0\0\0\0\0\0b",
    ];
    for (kind, expected) in kinds.into_iter().zip(expected) {
        let mut body = Body::from(b"b".to_vec());
        kind.put(&mut body);
        assert_eq!(body.clone().into_bytes(), expected);
        assert_eq!(Header::take(&mut body), Ok(kind));
    }
    assert!(Header::take(&mut Body::from(vec![7; 9])).is_err());
    assert!(Header::take(&mut Body::from(vec![0; 8])).is_err());
}

#[test]
fn options_are_checked() {
    let check = |only| Prefetch.check(&Options::check(Prefetch.options(), [("only", only)]).unwrap());
    assert_eq!((check(""), check("00fF")), (Ok(()), Ok(())));
    assert!(check("0").is_err() && check("+1").is_err() && check("zz").is_err());
}

/// An access of an application to a memory of 64-bit words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    Read(u32),
    Write(u32, u64),
}

impl Act {
    /// `52`, tag, address; or `57`, address, value.
    fn request(self) -> Vec<u8> {
        match self {
            Act::Read(address) => [&b"R-tag-"[..], &address.to_le_bytes()].concat(),
            Act::Write(address, value) => [b"W", &address.to_le_bytes()[..], &value.to_le_bytes()].concat(),
        }
    }
}

/// The device: a memory that takes a millisecond for each request, one after another.
#[derive(Default)]
struct Memory {
    words: BTreeMap<u32, u64>,
    requests: VecDeque<Message>,
    done_at: Option<Time>,
    served: usize,
    /// Number of a request that it does not answer.
    ignores: Option<usize>,
}

const SERVICE: Duration = Duration::from_millis(1);

impl Memory {
    fn take(&mut self, request: Message, now: Time) {
        self.requests.push_back(request);
        self.done_at.get_or_insert(now.after(SERVICE));
    }

    fn answer(&mut self, request: &[u8]) -> Vec<u8> {
        let number = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap());
        match request[0] {
            b'R' => {
                let address = number(&request[6..]);
                let word = self.words.get(&address).copied().unwrap_or(u64::from(address) * 7);
                [&address.to_le_bytes()[..], &word.to_le_bytes()].concat()
            }
            b'W' => {
                let value = u64::from_le_bytes(request[5..].try_into().unwrap());
                self.words.insert(number(&request[1..5]), value);
                b"done".to_vec()
            }
            other => panic!("the device got a request that begins with {other}"),
        }
    }

    fn finish(&mut self, now: Time) -> Option<Message> {
        self.done_at.filter(|at| *at <= now)?;
        let request = self.requests.pop_front()?;
        self.done_at = (!self.requests.is_empty()).then(|| now.after(SERVICE));
        self.served += 1;
        let answer = self.answer(&request.body.into_bytes());
        (self.ignores != Some(self.served)).then(|| Message::new(now, answer))
    }
}

/// The answers of the memory itself.
fn answers(acts: &[Act]) -> Vec<Vec<u8>> {
    let mut memory = Memory::default();
    acts.iter().map(|act| memory.answer(&act.request())).collect()
}

const APPLICATION_REQUESTS: usize = 0;
const DEVICE_REQUESTS: usize = 1;
const DEVICE_ANSWERS: usize = 2;
const APPLICATION_ANSWERS: usize = 3;

/// A driver of two flows with the memory at one end and an application at the other.
struct Driver {
    stages: [Box<dyn Stage>; 4],
    /// At the application and at the device.
    sites: [Site; 2],
    links: [Link<u64>; 2],
    crossing: Vec<Message>,
    memory: Memory,
    now: Time,
    received: Vec<Vec<u8>>,
    drops: BTreeMap<&'static str, u64>,
    out: Outbox,
}

const READS: [(&str, &str); 3] = [("at", "6"), ("width", "4"), ("only", "52")];

impl Driver {
    /// With the pair in both flows, or with pass-through stages.
    fn new(given: Option<&[(&str, &str)]>, link: &Params, seed: u64) -> Self {
        let sites = [site(10), site(20)];
        let stages = match given {
            Some(given) => [
                half(given, "requests", Half::Source, &sites[0]),
                half(given, "requests", Half::Sink, &sites[1]),
                half(given, "answers", Half::Source, &sites[1]),
                half(given, "answers", Half::Sink, &sites[0]),
            ],
            None => std::array::from_fn(|_| Box::new(PassThrough) as Box<dyn Stage>),
        };
        Driver {
            stages,
            sites,
            links: [seed, seed + 1].map(|seed| Link::new(link.clone(), seed).hold_at_most(u64::MAX)),
            crossing: Vec::new(),
            memory: Memory::default(),
            now: Time::from_millis(1000),
            received: Vec::new(),
            drops: BTreeMap::new(),
            out: Outbox::default(),
        }
    }

    /// Restarts the flow of answers: makes both its halves again.
    fn restart_answers(&mut self, given: &[(&str, &str)]) {
        self.stages[DEVICE_ANSWERS] = half(given, "answers", Half::Source, &self.sites[1]);
        self.stages[APPLICATION_ANSWERS] = half(given, "answers", Half::Sink, &self.sites[0]);
    }

    /// Removes the pair from the flow of answers.
    fn remove_answers(&mut self) {
        for stage in [DEVICE_ANSWERS, APPLICATION_ANSWERS] {
            self.stages[stage] = Box::new(PassThrough);
        }
    }

    fn message(&mut self, stage: usize, message: Message) {
        self.stages[stage].handle(Port::MAIN, message, self.now, &mut self.out).unwrap();
        self.settle(stage);
    }

    fn settle(&mut self, stage: usize) {
        for drop in self.out.drops.drain(..) {
            *self.drops.entry(drop.reason).or_default() += drop.count;
        }
        for (_, message) in std::mem::take(&mut self.out.messages) {
            match stage {
                APPLICATION_REQUESTS | DEVICE_ANSWERS => {
                    let id = self.crossing.len() as u64;
                    let _ = self.links[stage / 2].push(self.now.0, id, 64);
                    self.crossing.push(Message::new(message.created, message.body));
                }
                DEVICE_REQUESTS => self.memory.take(message, self.now),
                _ => self.received.push(message.body.into_bytes().to_vec()),
            }
        }
    }

    /// Time of the next event.
    fn next(&self) -> Option<Time> {
        let links = self.links.iter().filter_map(Link::deadline).map(Time);
        let stages = self.stages.iter().filter_map(|stage| stage.poll_timeout());
        links.chain(stages).chain(self.memory.done_at).min()
    }

    fn process_events(&mut self) {
        for direction in 0..2 {
            while let Some((_, id)) = self.links[direction].pop(self.now.0) {
                let message = self.crossing[id as usize].clone();
                self.message(2 * direction + 1, message);
            }
        }
        while let Some(answer) = self.memory.finish(self.now) {
            self.message(DEVICE_ANSWERS, answer);
        }
        for stage in 0..4 {
            if self.stages[stage].poll_timeout().is_some_and(|at| at <= self.now) {
                self.stages[stage].handle_timeout(self.now, &mut self.out).unwrap();
                self.settle(stage);
            }
        }
    }

    /// The application performs `acts`, with at most `depth` requests unanswered. Returns the time
    /// that this took.
    fn run(&mut self, acts: &[Act], depth: usize) -> Duration {
        let (started, already) = (self.now, self.received.len());
        let mut asked = 0;
        let mut finished = None;
        loop {
            while asked < acts.len()
                && asked < self.received.len() - already + depth
                && self.stages[APPLICATION_REQUESTS].has_room()
            {
                self.message(APPLICATION_REQUESTS, Message::new(self.now, acts[asked].request()));
                asked += 1;
            }
            if self.received.len() - already == acts.len() {
                finished.get_or_insert(self.now.since(started));
            }
            let Some(at) = self.next() else { break };
            self.now = self.now.max(at);
            assert!(self.now < Time::from_millis(10_000_000), "stuck");
            self.process_events();
        }
        finished.unwrap_or_else(|| self.now.since(started))
    }

    fn figure(&self, stage: usize, name: &str) -> f64 {
        let report = self.stages[stage].report();
        report.iter().find(|(known, _)| *known == name).unwrap_or_else(|| panic!("{name}: {report:?}")).1
    }
}

fn half(given: &[(&str, &str)], flow: &str, half: Half, site: &Site) -> Box<dyn Stage> {
    let given: Vec<_> = given.iter().chain(&READS).copied().chain([("flow", flow)]).collect();
    Prefetch.half(half, &options(&Prefetch, &given), &Format::Bytes, site).unwrap()
}

/// A network with a round trip of 50 ms.
fn network() -> Params {
    steady(Duration::from_millis(25))
}

/// Speed-up of these accesses, one after another, by the pair.
fn speed_up(acts: &[Act], given: &[(&str, &str)]) -> f64 {
    let bare = Driver::new(None, &network(), 1).run(acts, 1);
    let mut driver = Driver::new(Some(given), &network(), 1);
    let took = driver.run(acts, 1);
    assert_eq!(driver.received, answers(acts));
    bare.as_secs_f64() / took.as_secs_f64()
}

/// Numbers without any order.
fn scattered() -> Vec<Act> {
    (0..300u32).map(|i| Act::Read(i.wrapping_mul(0x9E37_79B9) >> 3)).collect()
}

#[test]
fn reads_in_a_row_are_faster_and_scattered_ones_not_slower() {
    let up: Vec<Act> = (5000..5300).map(Act::Read).collect();
    let down: Vec<Act> = (5000..5300).rev().map(Act::Read).collect();
    let two_rows: Vec<Act> = (0..300).map(|i| Act::Read(i / 2 + 100_000 * (i % 2))).collect();
    for (ahead, at_least) in [("1", 1.9), ("4", 4.5), ("16", 13.0), ("64", 25.0)] {
        let times = speed_up(&up, &[("ahead", ahead)]);
        assert!(times > at_least, "{ahead} ahead: {times:.2} times");
    }
    let down = speed_up(&down, &[("ahead", "16")]);
    let two_rows = speed_up(&two_rows, &[("ahead", "16")]);
    assert!(down > 13.0 && two_rows > 13.0, "down {down:.2}, two rows {two_rows:.2}");
    let run = speed_up(&scattered(), &[("ahead", "16")]);
    let around = speed_up(&scattered(), &[("ahead", "16"), ("guess", "around")]);
    assert!(run > 0.999 && around > 0.95, "run {run:.3}, around {around:.3}");
}

#[test]
fn neighbours_of_a_request_are_prefetched() {
    let acts = [500, 499, 502, 498, 501].map(Act::Read);
    let mut driver = Driver::new(Some(&[("guess", "around")]), &network(), 1);
    driver.run(&acts[..1], 1);
    let took = driver.run(&acts[1..], 1);
    assert_eq!((took, driver.received), (Duration::ZERO, answers(&acts)));
}

#[test]
fn an_answer_is_cached_until_it_is_requested() {
    let acts = [10, 11, 12, 11, 12].map(Act::Read);
    let mut driver = Driver::new(Some(&[("ahead", "1")]), &network(), 1);
    driver.run(&acts, 1);
    assert_eq!(driver.received, answers(&acts));
    let figure = |name| driver.figure(APPLICATION_REQUESTS, name);
    assert_eq!(figure("hits") + figure("joined"), 1.0);
}

#[test]
fn the_cache_is_bounded_and_expires() {
    let given = [("ahead", "8"), ("cache", "2KiB"), ("fresh", "1s")];
    let mut driver = Driver::new(Some(&given), &network(), 1);
    driver.run(&[1, 2].map(Act::Read), 1);
    assert!(driver.figure(APPLICATION_REQUESTS, "cache_bytes") <= 2048.0);
    assert_eq!(driver.drops[&"prefetched but never requested"], 5, "three of eight fit");
    driver.now = driver.now.after(Duration::from_secs(2));
    driver.run(&[Act::Read(9)], 1);
    assert_eq!(
        driver.figure(APPLICATION_REQUESTS, "hits"),
        0.0,
        "10 is cached but too old; 3 to 7 were evicted"
    );
    assert_eq!(driver.received, answers(&[1, 2, 9].map(Act::Read)));
}

#[test]
fn an_unanswered_request_stops_prefetching() {
    let given = [("wait", "300ms")];
    let mut driver = Driver::new(Some(&given), &network(), 1);
    driver.memory.ignores = Some(7);
    let acts: Vec<Act> = (0..40).map(Act::Read).collect();
    driver.run(&acts, 3);
    let expected = answers(&acts);
    // Only the unanswered request may lack an answer; all others arrive in order, once.
    assert!((39..=40).contains(&driver.received.len()), "{}", driver.received.len());
    assert!(driver.received.windows(2).all(|two| two[0][..4] < two[1][..4]));
    assert!(driver.received.iter().all(|answer| expected.contains(answer)));
    assert_eq!(driver.figure(DEVICE_REQUESTS, "unmatched"), 1.0);
    let served = driver.memory.served;
    driver.run(&acts, 3);
    assert_eq!(driver.memory.served, served + 40, "each request reaches the device once");
    driver.restart_answers(&given);
    driver.run(&acts, 3);
    assert!(
        driver.figure(APPLICATION_REQUESTS, "hits") + driver.figure(APPLICATION_REQUESTS, "joined") > 20.0,
        "a new epoch prefetches again"
    );
    assert_eq!(driver.received[driver.received.len() - 40..], expected);
}

#[test]
fn requests_pass_after_the_pair_left_the_flow_of_answers() {
    let given = [("ahead", "8")];
    let mut driver = Driver::new(Some(&given), &network(), 1);
    driver.run(&[1, 2, 3].map(Act::Read), 1);
    assert!(driver.figure(APPLICATION_REQUESTS, "cache_bytes") > 0.0);
    // The first request is not answered any more, and the second waits behind it with an answer from the cache.
    for request in [900, 4].map(Act::Read) {
        driver.message(APPLICATION_REQUESTS, Message::new(driver.now, request.request()));
    }
    assert_eq!(driver.stages[APPLICATION_ANSWERS].held(), 1);
    driver.remove_answers();
    driver.run(&[], 1);
    driver.received.clear();
    let acts: Vec<Act> = (4..2004).map(Act::Read).collect();
    driver.run(&acts, 1);
    assert_eq!(driver.received.len(), acts.len());
    assert!(driver.received == answers(&acts));
    driver.restart_answers(&given);
    let prefetched = driver.figure(APPLICATION_REQUESTS, "prefetched");
    driver.run(&acts[..40], 1);
    assert!(driver.figure(APPLICATION_REQUESTS, "prefetched") > prefetched + 20.0, "prefetches again");
    assert_eq!(driver.received[acts.len()..], answers(&acts[..40]));
}

#[test]
fn lost_messages_do_not_stop_the_flow() {
    let link = Params { loss_ppm: 50_000, ..network() };
    for seed in 0..5 {
        let mut driver = Driver::new(Some(&[("wait", "400ms"), ("ahead", "4")]), &link, seed);
        let acts: Vec<Act> = (0..200).map(Act::Read).collect();
        driver.run(&acts, 200);
        let expected = answers(&acts);
        assert!(driver.received.iter().all(|answer| expected.contains(answer)), "seed {seed}");
        assert!(driver.received.windows(2).all(|two| two[0] < two[1]), "seed {seed}: in order, once");
        assert!(driver.received.len() > 150, "seed {seed}: {}", driver.received.len());
    }
}

#[test]
fn unsolicited_messages_pass() {
    let mut driver = Driver::new(Some(&[]), &network(), 1);
    driver.message(DEVICE_ANSWERS, Message::new(Time(1), b"event".to_vec()));
    driver.run(&[Act::Read(1)], 1);
    assert_eq!(driver.received, [b"event".to_vec(), answers(&[Act::Read(1)]).remove(0)]);
}

/// Runs up and down, jumps and writes among a few addresses.
fn acts() -> impl Strategy<Value = Vec<Act>> {
    let some = prop_oneof![
        4 => (0u32..40, 1u32..8, any::<bool>()).prop_map(|(from, count, up)| {
            let run = (from..from + count).map(Act::Read);
            if up { run.collect::<Vec<_>>() } else { run.rev().collect() }
        }),
        2 => (0u32..40).prop_map(|address| vec![Act::Read(address)]),
        1 => (0u32..40, any::<u64>()).prop_map(|(address, value)| vec![Act::Write(address, value)]),
        1 => Just(vec![Act::Read(0), Act::Read(u32::MAX), Act::Read(u32::MAX - 1)]),
    ];
    prop::collection::vec(some, 1..25).prop_map(|some| some.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn halves_with_shared_state_survive_hostile_bytes(
        calls in prop::collection::vec((0usize..4, prop::collection::vec(any::<u8>(), 0..24)), 1..100),
    ) {
        let mut driver = Driver::new(Some(&[("guess", "around")]), &network(), 1);
        for (stage, mut bytes) in calls {
            // Mostly valid kinds.
            if let Some(kind) = bytes.first_mut().filter(|_| stage != APPLICATION_REQUESTS) {
                *kind %= 8;
            }
            let message = Message::new(Time(1), bytes);
            let _ = driver.stages[stage].handle(Port::MAIN, message, driver.now, &mut driver.out);
            driver.out = Outbox::default();
            driver.now = driver.now.after(Duration::from_millis(700));
            for stage in &mut driver.stages {
                if stage.poll_timeout().is_some_and(|at| at <= driver.now) {
                    let _ = stage.handle_timeout(driver.now, &mut driver.out);
                }
            }
        }
        prop_assert!(driver.figure(DEVICE_REQUESTS, "outstanding") <= 200.0);
        prop_assert!(driver.figure(APPLICATION_REQUESTS, "cache_bytes") <= 1048576.0);
    }

    /// Each request gets the same answer as without the pair, in order.
    #[test]
    fn answers_are_the_same_as_without_the_pair(
        acts in acts(),
        depth in 1usize..9,
        ahead in 1u32..12,
        guess in prop::sample::select(vec!["run", "around"]),
        cache in prop::sample::select(vec!["1", "3KiB", "1MiB"]),
        jitter_ms in 0u64..30,
        restarts in any::<bool>(),
        seed in any::<u32>(),
    ) {
        let ahead = ahead.to_string();
        let given = [("ahead", &ahead[..]), ("guess", guess), ("cache", cache)];
        let link = Params { jitter_ns: jitter_ms * 1_000_000, ..network() };
        let mut driver = Driver::new(Some(&given), &link, seed.into());
        let (first, second) = acts.split_at(acts.len() / 2);
        driver.run(first, depth);
        if restarts {
            driver.restart_answers(&given);
        }
        driver.run(second, depth);
        prop_assert_eq!(driver.received, answers(&acts));
    }
}
