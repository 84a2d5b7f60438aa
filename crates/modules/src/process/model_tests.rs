//! Random runs of modules that fail at random messages, on a virtual clock.

use super::model::{self, Behaviour, Poison};
use super::supervisor::Supervisor;
use super::{Limits, Module};
use contract::{Half, Incident, Input, Message, Port, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;
use sys::poller::PollSet;

/// Runs, and the threads that share them.
const RUNS: u64 = 10_000;
const THREADS: u64 = 2;
/// Steps of a run that makes no progress.
const STEPS_MAX: usize = 200_000;
/// Longest time without progress that the end of a flow waits for, as in `flow::chain_runner`.
const LINGER: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(1);

/// Pseudo-random numbers (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `below`.
    fn below(&mut self, below: u64) -> u64 {
        self.next() % below
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

/// A flow through modules.
#[derive(Debug)]
struct Scenario {
    behaviours: Vec<Behaviour>,
    half: Half,
    messages: u64,
    /// Time between messages.
    gap: Duration,
    /// Times at which a module is killed from outside.
    kills: Vec<Time>,
    /// Times at which another worker continues.
    moves: Vec<Time>,
}

impl Scenario {
    fn random(random: &mut Random) -> Scenario {
        let is_chain = random.below(4) == 0;
        let reports_done = !is_chain && random.below(3) > 0;
        let modules = if is_chain { 1 + random.below(3) } else { 1 };
        let messages = 1 + random.below(20);
        let behaviour = |random: &mut Random| Behaviour {
            has_words: is_chain,
            reports_done,
            batch: random.of(&[1, 3, 16, 64]),
            hold: if reports_done { random.of(&[0, 0, 0, 2, 5]) } else { 0 },
            is_deaf: false,
            start: Duration::from_millis(random.of(&[0, 1, 60])),
            work: Duration::from_millis(random.of(if is_chain { &[0, 1, 5] } else { &[0, 1, 20] })),
            poison: BTreeMap::new(),
        };
        let mut behaviours: Vec<_> = (0..modules).map(|_| behaviour(random)).collect();
        let one_in = random.of(&[2, 5, 10, 20, 1000]);
        let mut kinds = vec![Poison::Exception, Poison::Signal(11), Poison::Signal(6), Poison::Rubbish];
        if reports_done {
            kinds.extend([Poison::Stuck, Poison::Exit]);
        }
        // These need the most steps.
        if random.below(5) == 0 {
            kinds.extend([Poison::Hang, Poison::Signal(9)]);
        }
        for value in 1..=messages {
            if random.below(one_in) == 0 {
                let index = random.below(modules) as usize;
                let kind = random.of(&kinds);
                behaviours[index].poison.insert(value, kind);
            }
        }
        let times = |random: &mut Random| {
            let count = random.of(&[0, 0, 1, 2]);
            let mut times: Vec<_> = (0..count).map(|_| Time::from_millis(random.below(3000))).collect();
            times.sort_unstable();
            times
        };
        Scenario {
            behaviours,
            half: random.of(&[Half::Source, Half::Sink]),
            messages,
            gap: Duration::from_millis(random.of(&[0, 0, 1, 40])),
            kills: times(random),
            moves: times(random),
        }
    }

    fn modules(&self) -> Vec<Module> {
        let module = |index: usize| Module {
            words: vec![OsString::from(index.to_string())],
            environment: None,
            half: self.half,
            greeting: Vec::new(),
            is_own: self.behaviours[index].has_words,
            is_chained: self.behaviours[index].has_words,
            has_history: false,
            patience: PATIENCE,
            limits: Limits::default(),
        };
        (0..self.behaviours.len()).map(module).collect()
    }

    fn supervisor(&self) -> Supervisor {
        Supervisor::start(self.modules(), None, Arc::new(PollSet::new().unwrap())).unwrap()
    }

    fn poison(&self) -> BTreeSet<u64> {
        self.behaviours.iter().flat_map(|behaviour| behaviour.poison.keys().copied()).collect()
    }
}

/// Results of a run.
#[derive(Debug, Default)]
struct Outcome {
    values: Vec<u64>,
    drops: BTreeMap<&'static str, u64>,
    incidents: Vec<Incident>,
    ended_at: Time,
}

impl Outcome {
    fn take(&mut self, supervisor: &mut Supervisor, modules: usize) {
        for stage in 0..modules {
            let out = supervisor.outbox(stage);
            for (_, message) in out.messages.drain(..) {
                self.values.push(u64::from_le_bytes(message.body.into_bytes()[..].try_into().unwrap()));
            }
            for drop in out.drops.drain(..) {
                assert!(drop.is_loss);
                *self.drops.entry(drop.reason).or_default() += drop.count;
            }
            self.incidents.extend(supervisor.incidents(stage));
        }
    }

    /// The numbers of the lost messages that were named.
    fn named(&self) -> Vec<u64> {
        let losses = self.incidents.iter().filter(|incident| incident.is_loss);
        let number = |incident: &Incident| {
            let (_, rest) = incident.text.split_once("lost message ").expect("a number");
            rest.split_once(',').and_then(|(number, _)| number.parse().ok()).expect("a number")
        };
        losses.map(number).collect()
    }
}

/// Runs a flow to its end.
fn run(scenario: &Scenario) -> Outcome {
    model::use_models(scenario.behaviours.clone());
    let mut supervisor = scenario.supervisor();
    let modules = scenario.behaviours.len();
    let (mut outcome, mut now) = (Outcome::default(), Time::ZERO);
    let (mut next, mut is_told) = (1, false);
    let (mut kills, mut moves) = (scenario.kills.iter().peekable(), scenario.moves.iter().peekable());
    // The drain of a flow: the fewest messages held, and its deadline.
    let mut draining: Option<(usize, Time)> = None;
    for _ in 0..STEPS_MAX {
        let due = |value: u64| Time::ZERO.after(scenario.gap * (value - 1) as u32);
        while next <= scenario.messages && due(next) <= now && supervisor.has_room() {
            let message = Message::new(Time(next), next.to_le_bytes().to_vec());
            supervisor.hand(0, Input::Message(Port::MAIN, message), now).unwrap();
            next += 1;
        }
        if next > scenario.messages && !std::mem::replace(&mut is_told, true) {
            supervisor.hand(0, Input::End(Port::MAIN), now).unwrap();
        }
        supervisor.advance(now);
        outcome.take(&mut supervisor, modules);
        if is_told && !supervisor.is_ending() {
            outcome.ended_at = now;
            return outcome;
        }
        if is_told {
            let held = supervisor.held();
            let (least, mut until) = *draining.get_or_insert((held, now.after(LINGER)));
            if held < least || supervisor.is_settling() {
                until = now.after(LINGER);
                draining = Some((held, until));
            }
            assert!(now < until, "the end of the flow does not wait: {scenario:?}\n{outcome:?}");
        }
        if kills.next_if(|at| **at <= now).is_some() {
            model::kill_one(0);
        }
        if moves.next_if(|at| **at <= now).is_some() {
            let checkpoint = supervisor.checkpoint();
            supervisor = scenario.supervisor();
            supervisor.restore(checkpoint).unwrap();
            if is_told {
                supervisor.hand(0, Input::End(Port::MAIN), now).unwrap();
            }
        }
        if model::step(now) | supervisor.go_to_sleep() {
            continue;
        }
        let feed_at = (next <= scenario.messages && due(next) > now).then(|| due(next));
        let events = [supervisor.poll_timeout(), model::next_at(now), feed_at];
        let events = events.into_iter().flatten().chain(kills.peek().map(|at| **at));
        let event = events.chain(moves.peek().map(|at| **at)).min().expect("something happens next");
        now = event.max(Time(now.0 + 1));
    }
    panic!(
        "no end at {now:?} ({:?}, {:?}, {next}): {scenario:?}\n{outcome:?}",
        supervisor.poll_timeout(),
        model::next_at(now)
    );
}

/// Checks that exactly the messages that no module can process are lost and named.
fn check(seed: u64, scenario: &Scenario) {
    let poison = scenario.poison();
    let outcome = run(scenario);
    let expected: Vec<u64> = (1..=scenario.messages).filter(|value| !poison.contains(value)).collect();
    let context = || format!("seed {seed}: {scenario:#?}\n{outcome:#?}");
    assert_eq!(outcome.values, expected, "{}", context());
    assert!(outcome.named().into_iter().eq(poison.iter().copied()), "{}", context());
    assert_eq!(outcome.drops.values().sum::<u64>(), poison.len() as u64, "{}", context());
}

#[test]
fn ten_thousand_random_runs_lose_only_what_no_module_can_process() {
    let first: u64 = match std::env::var("OUTBOARD_SEED") {
        Ok(seed) => seed.parse().unwrap(),
        Err(_) => u64::from_le_bytes(sys::random::bytes().unwrap()) >> 16,
    };
    println!("{RUNS} runs from OUTBOARD_SEED={first}");
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                for seed in (first + thread..first + RUNS).step_by(THREADS as usize) {
                    check(seed, &Scenario::random(&mut Random(seed)));
                }
            });
        }
    });
}

/// A flow through one module, with all messages at once.
fn plain(behaviour: Behaviour, messages: u64) -> Scenario {
    let (kills, moves) = (Vec::new(), Vec::new());
    Scenario { behaviours: vec![behaviour], half: Half::Source, messages, gap: Duration::ZERO, kills, moves }
}

/// The back-off starts anew with each message that is found: otherwise this flow would take minutes.
#[test]
fn twenty_messages_of_200_that_kill_take_seconds() {
    let poison = (1..=20).map(|index| (10 * index, Poison::Exception)).collect();
    let start = Duration::from_millis(50);
    let behaviour = Behaviour { reports_done: true, batch: 64, start, poison, ..Behaviour::default() };
    let scenario = plain(behaviour, 200);
    check(0, &scenario);
    let ended_at = run(&scenario).ended_at;
    assert!(ended_at < Time::from_millis(10_000), "{ended_at:?}");
}

/// It handles messages in groups of four and does not flush. The guilty one of a group is not known, but it and its
/// neighbours are all that is lost.
#[test]
fn a_module_that_ignores_flushes_loses_at_most_its_group() {
    for is_chain in [false, true] {
        let poison = BTreeMap::from([(6, Poison::Exception), (25, Poison::Signal(11))]);
        let behaviour = Behaviour {
            has_words: is_chain,
            reports_done: !is_chain,
            batch: 16,
            hold: 4,
            is_deaf: true,
            poison: poison.clone(),
            ..Behaviour::default()
        };
        let outcome = run(&plain(behaviour, 40));
        assert!(outcome.values.is_sorted() && !outcome.values.iter().any(|value| poison.contains_key(value)));
        let lost = outcome.drops.values().sum::<u64>();
        assert!(lost <= 2 * 4, "{outcome:?}");
        assert_eq!((outcome.values.len() as u64 + lost, outcome.named().len() as u64), (40, lost));
    }
}
