use super::ledger::{Death, Ledger, Limits, Rubbish};
use contract::{Message, Time};
use proptest::prelude::*;
use smallvec::SmallVec;
use std::collections::VecDeque;

/// What a model process makes of its inputs.
#[derive(Debug, Clone, Copy)]
enum Work {
    /// Each input is an output; it never says done.
    Silent,
    /// Each input is so many outputs.
    Several(u64),
    /// So many inputs are one output, their sum.
    Sum(usize),
    /// The inputs are differences: outputs are sums of all inputs of the era.
    History,
}

/// A process as the ledger sees it: bytes in, outputs and dones out, each when they please.
#[derive(Default)]
struct Process {
    pipe: VecDeque<u8>,
    held: Vec<u64>,
    sum: u64,
    inputs: u64,
    made: u64,
    outputs: VecDeque<u64>,
    dones: VecDeque<(u64, u64)>,
}

impl Process {
    /// Reads one input, if there is a whole one.
    fn work(&mut self, work: Work) {
        if self.pipe.len() < 20 {
            return;
        }
        let container: Vec<u8> = self.pipe.drain(..20).collect();
        assert_eq!(container[..4], 8u32.to_le_bytes());
        let value = u64::from_le_bytes(container[12..].try_into().unwrap());
        self.inputs += 1;
        match work {
            Work::Silent => self.outputs.push_back(value),
            Work::Several(count) => {
                self.outputs.extend((0..count).map(|_| value));
                self.made += count;
                self.dones.push_back((self.inputs, self.made));
            }
            Work::Sum(count) => {
                self.held.push(value);
                if self.held.len() == count {
                    self.give_held();
                }
            }
            Work::History => {
                self.sum += value;
                self.outputs.push_back(self.sum);
                self.made += 1;
                self.dones.push_back((self.inputs, self.made));
            }
        }
    }

    fn give_held(&mut self) {
        self.outputs.push_back(self.held.drain(..).sum());
        self.made += 1;
        self.dones.push_back((self.inputs, self.made));
    }

    fn end(&mut self, work: Work) {
        while !self.pipe.is_empty() {
            self.work(work);
        }
        if !self.held.is_empty() {
            self.give_held();
        }
    }
}

fn message(value: u64) -> Message {
    Message::new(Time(value), value.to_le_bytes().to_vec())
}

fn value(message: Message) -> u64 {
    u64::from_le_bytes(message.body.into_bytes()[..].try_into().unwrap())
}

fn hand_over(ledger: &mut Ledger, process: &mut Process, bytes_max: usize) {
    // A gap is told on the way of control frames; nothing is handed over before it is.
    ledger.next_gap();
    let mut slices = SmallVec::new();
    ledger.next_slices(&mut slices);
    let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).take(bytes_max).collect();
    drop(slices);
    ledger.hand_over(bytes.len());
    process.pipe.extend(bytes);
}

fn give_output(ledger: &mut Ledger, process: &mut Process) {
    if let Some(output) = process.outputs.pop_front() {
        ledger.take(message(output)).unwrap();
    }
}

fn give_done(ledger: &mut Ledger, process: &mut Process) {
    if let Some((inputs, outputs)) = process.dones.pop_front() {
        ledger.take_done(inputs, outputs).unwrap();
    }
}

/// The process ends well once it was handed everything of its era.
fn end(ledger: &mut Ledger, process: &mut Process, work: Work) {
    while ledger.has_next() {
        hand_over(ledger, process, usize::MAX);
    }
    process.end(work);
    while !process.outputs.is_empty() || !process.dones.is_empty() {
        give_output(ledger, process);
        give_done(ledger, process);
    }
    ledger.end();
    *process = Process::default();
}

fn expected(work: Work, inputs: &[(u64, u32)]) -> Vec<u64> {
    let values = inputs.iter().map(|(value, _)| *value);
    match work {
        Work::Silent => values.collect(),
        Work::Several(count) => values.flat_map(|value| (0..count).map(move |_| value)).collect(),
        Work::Sum(count) => {
            values.collect::<Vec<_>>().chunks(count).map(|chunk| chunk.iter().sum()).collect()
        }
        Work::History => {
            let (mut sum, mut now) = (0, 0);
            let add = |(value, era): &(u64, u32)| {
                sum = if *era == now { sum + value } else { *value };
                now = *era;
                sum
            };
            inputs.iter().map(add).collect()
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Admit,
    NewEra,
    HandOver(usize),
    Work,
    Output,
    Done,
    Kill,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => Just(Step::Admit),
        1 => Just(Step::NewEra),
        6 => (1..60usize).prop_map(Step::HandOver),
        8 => Just(Step::Work),
        8 => Just(Step::Output),
        8 => Just(Step::Done),
        1 => Just(Step::Kill),
    ]
}

fn work() -> impl Strategy<Value = Work> {
    prop_oneof![
        Just(Work::Silent),
        (0..4u64).prop_map(Work::Several),
        (1..5usize).prop_map(Work::Sum),
        Just(Work::History),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Killed wherever it is, whatever it had read, given or vouched for: nothing is lost, nothing comes
    /// twice, and the order is kept.
    #[test]
    fn kills_lose_and_repeat_nothing(work in work(), steps in prop::collection::vec(step(), 0..400)) {
        let has_history = matches!(work, Work::History);
        let says_done = !matches!(work, Work::Silent);
        let mut ledger = Ledger::new(Limits::default(), says_done, has_history);
        let mut process = Process::default();
        let (mut inputs, mut out) = (Vec::new(), Vec::new());
        let (mut era, mut deaths_in_row) = (1, 0);
        for step in steps {
            let committed = ledger.committed();
            match step {
                Step::Admit => {
                    let next = inputs.len() as u64 + 1;
                    let era = if has_history { era } else { 0 };
                    inputs.push((next, era));
                    ledger.admit(message(next), era);
                }
                Step::NewEra => era += 1,
                Step::HandOver(bytes) => hand_over(&mut ledger, &mut process, bytes),
                Step::Work => process.work(work),
                Step::Output => give_output(&mut ledger, &mut process),
                Step::Done => give_done(&mut ledger, &mut process),
                Step::Kill if deaths_in_row < 11 => {
                    deaths_in_row += 1;
                    let death = ledger.die(0, true);
                    prop_assert_eq!((death.poison, death.unreadable), (0, 0));
                    process = Process::default();
                }
                Step::Kill => {}
            }
            if ledger.committed() > committed {
                deaths_in_row = 0;
            }
            if ledger.next_era().is_some() && !ledger.has_next() {
                end(&mut ledger, &mut process, work);
            }
            out.extend(std::iter::from_fn(|| ledger.ready()).map(value));
        }
        while ledger.unfinished() > 0 || ledger.has_next() {
            end(&mut ledger, &mut process, work);
            out.extend(std::iter::from_fn(|| ledger.ready()).map(value));
        }
        prop_assert_eq!(out, expected(work, &inputs));
        prop_assert_eq!(ledger.drops().count(), 0);
        prop_assert!(ledger.is_idle() && ledger.waiting() == 0);
    }

    /// Whatever a process says, the ledger neither panics nor grows without bound.
    #[test]
    fn rubbish_is_named_or_harmless(
        says_done: bool, has_history: bool,
        steps in prop::collection::vec((0..7u8, 0..50u64, 0..50u64), 0..200),
    ) {
        let limits = Limits { kept_messages: 20, kept_bytes: 2000, ahead_messages: 4, ahead_bytes: 200 };
        let mut ledger = Ledger::new(limits, says_done, has_history);
        let mut process = Process::default();
        for (step, a, b) in steps {
            match step {
                0 | 1 if ledger.has_room() => ledger.admit(message(a), (b / 10) as u32),
                2 => hand_over(&mut ledger, &mut process, a as usize),
                3 => if ledger.take(message(a)).is_err() { ledger.die(0, false); },
                4 => if ledger.take_done(a, b).is_err() { ledger.die(0, false); },
                5 => { ledger.die(0, false); }
                _ => if !ledger.has_next() { ledger.end() },
            }
            prop_assert!(ledger.unfinished() <= 20 && ledger.waiting() <= ledger.place() as usize);
            while ledger.ready().is_some() {}
        }
    }
}

fn handed(values: &[u64], says_done: bool, has_history: bool) -> Ledger {
    let mut ledger = Ledger::new(Limits::default(), says_done, has_history);
    values.iter().for_each(|value| ledger.admit(message(*value), 0));
    hand_over(&mut ledger, &mut Process::default(), usize::MAX);
    ledger
}

#[test]
fn a_message_that_was_first_in_line_at_three_deaths_is_dropped_by_name() {
    let mut ledger = handed(&[1, 2], false, false);
    assert_eq!(ledger.die(0, false), Death { again: 2, ..Death::default() });
    hand_over(&mut ledger, &mut Process::default(), usize::MAX);
    assert_eq!(ledger.die(0, false), Death { again: 2, ..Death::default() });
    hand_over(&mut ledger, &mut Process::default(), 1);
    assert_eq!(ledger.die(0, false), Death { again: 0, poison: 1, ..Death::default() });
    let drops: Vec<_> = ledger.drops().map(|drop| (drop.reason, drop.count)).collect();
    assert_eq!(drops, [("killed the module three times", 1)]);
    assert_eq!(ledger.next_gap(), Some(0), "the next process is told that something is missing");
    hand_over(&mut ledger, &mut Process::default(), usize::MAX);
    ledger.take(message(2)).unwrap();
    assert_eq!(ledger.ready().map(value), Some(2));
    assert_eq!(ledger.unfinished(), 0);
}

#[test]
fn the_next_process_is_told_that_something_was_before_it() {
    let mut ledger = handed(&[1, 2], false, false);
    ledger.die(0, false);
    assert_eq!(ledger.next_gap(), None, "nothing was");
    hand_over(&mut ledger, &mut Process::default(), usize::MAX);
    ledger.take(message(1)).unwrap();
    ledger.die(0, false);
    assert_eq!(ledger.next_gap(), Some(0));
    hand_over(&mut ledger, &mut Process::default(), usize::MAX);
    ledger.take(message(2)).unwrap();
    ledger.die(0, false);
    ledger.admit(message(3), 0);
    assert_eq!(ledger.next_gap(), Some(0), "also where nothing waits");
}

#[test]
fn what_was_not_read_killed_nobody() {
    let mut ledger = handed(&[1, 2], false, false);
    for _ in 0..10 {
        assert_eq!(ledger.die(40, false), Death { again: 2, ..Death::default() });
        hand_over(&mut ledger, &mut Process::default(), usize::MAX);
    }
    ledger.take(message(1)).unwrap();
    for _ in 0..10 {
        assert_eq!(ledger.die(20, false), Death { again: 1, ..Death::default() });
        hand_over(&mut ledger, &mut Process::default(), usize::MAX);
    }
    ledger.die(0, false);
    hand_over(&mut ledger, &mut Process::default(), usize::MAX);
    ledger.die(19, false);
    hand_over(&mut ledger, &mut Process::default(), usize::MAX);
    assert_eq!(ledger.die(1, false).poison, 1);
}

#[test]
fn an_output_waits_for_its_done_and_a_done_for_its_outputs() {
    let mut ledger = handed(&[1, 2], true, false);
    ledger.take(message(1)).unwrap();
    assert_eq!(ledger.ready(), None);
    ledger.take_done(2, 2).unwrap();
    assert_eq!((ledger.ready(), ledger.unfinished()), (None, 2));
    ledger.take(message(2)).unwrap();
    assert_eq!(ledger.ready().map(value), Some(1));
    assert_eq!(ledger.ready().map(value), Some(2));
    assert_eq!(ledger.unfinished(), 0);
}

#[test]
fn what_no_process_could_have_made_is_rubbish() {
    assert!(matches!(handed(&[], false, false).take(message(1)), Err(Rubbish(_))));
    assert!(matches!(handed(&[1], true, false).take_done(2, 0), Err(Rubbish(_))));
    let mut ledger = handed(&[1, 2], true, false);
    ledger.take_done(1, 1).unwrap();
    assert!(matches!(ledger.take_done(1, 0), Err(Rubbish(_))));
}

#[test]
fn an_era_too_long_to_be_kept_dies_with_its_process_and_the_next_one_is_whole() {
    let limits = Limits { kept_messages: 8, ..Limits::default() };
    let mut ledger = Ledger::new(limits, true, true);
    let mut process = Process::default();
    for value in 1..=10 {
        ledger.admit(message(value), 0);
        hand_over(&mut ledger, &mut process, usize::MAX);
        process.work(Work::History);
        give_done(&mut ledger, &mut process);
        give_output(&mut ledger, &mut process);
    }
    assert!(ledger.is_long());
    ledger.admit(message(11), 0);
    hand_over(&mut ledger, &mut process, usize::MAX);
    assert_eq!(ledger.die(0, false), Death { unreadable: 1, ..Death::default() });
    ledger.admit(message(12), 0);
    assert_eq!(ledger.drops().map(|drop| drop.count).sum::<u64>(), 2);
    ledger.admit(message(1), 1);
    assert_eq!(ledger.next_era(), Some(1));
    ledger.begin_era();
    assert!(ledger.has_next() && !ledger.is_long());
}

#[test]
fn a_full_ledger_says_so_until_there_is_room() {
    let limits = Limits { ahead_messages: 2, ..Limits::default() };
    let mut ledger = Ledger::new(limits, false, false);
    ledger.admit(message(1), 0);
    assert!(ledger.has_room());
    ledger.admit(message(2), 0);
    assert!(!ledger.has_room());
    hand_over(&mut ledger, &mut Process::default(), usize::MAX);
    assert!(ledger.has_room());
}
