use super::ledger::{Death, Ledger, Limits, Rubbish};
use contract::{Attributes, Drop, Message, Time};
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
    /// The inputs are differences: outputs are sums of all inputs of the era. Of some it drops the output.
    History,
    /// It drops some inputs, and tells of it by their place, or behind others and before the next done.
    Drops { by_place: bool },
}

/// Whether the output of this input is dropped, where any is.
fn is_dropped(value: u64) -> bool {
    value.is_multiple_of(3)
}

/// A frame of a process.
#[derive(Debug)]
enum Said {
    Drop(Option<u64>),
    Done(u64, u64),
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
    said: VecDeque<Said>,
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
                self.say_done();
            }
            Work::Sum(count) => {
                self.held.push(value);
                if self.held.len() == count {
                    self.give_held();
                }
            }
            Work::History => {
                self.sum += value;
                self.give_or_drop(value, self.sum, None);
            }
            Work::Drops { by_place } => self.give_or_drop(value, value, by_place.then_some(self.inputs)),
        }
    }

    fn give_or_drop(&mut self, input: u64, output: u64, place: Option<u64>) {
        match is_dropped(input) {
            true => self.said.push_back(Said::Drop(place)),
            false => {
                self.outputs.push_back(output);
                self.made += 1;
            }
        }
        // A done may stand for several.
        if input.is_multiple_of(2) {
            self.say_done();
        }
    }

    fn say_done(&mut self) {
        self.said.push_back(Said::Done(self.inputs, self.made));
    }

    fn give_held(&mut self) {
        self.outputs.push_back(self.held.drain(..).sum());
        self.made += 1;
        self.say_done();
    }

    fn end(&mut self, work: Work) {
        while !self.pipe.is_empty() {
            self.work(work);
        }
        if !self.held.is_empty() {
            self.give_held();
        }
        self.say_done();
    }
}

fn message(value: u64) -> Message {
    Message::new(Time(value), value.to_le_bytes().to_vec())
}

fn value(message: Message) -> u64 {
    u64::from_le_bytes(message.body.into_bytes()[..].try_into().unwrap())
}

fn ready(ledger: &mut Ledger) -> Option<Message> {
    ledger.ready().pop_front().map(|(_, message)| message)
}

fn hand_over(ledger: &mut Ledger, process: &mut Process, bytes_max: usize) {
    // A gap is told on the way of control frames; nothing is handed over before it is.
    ledger.next_gap();
    let mut slices = SmallVec::new();
    ledger.next_slices(usize::MAX, &mut slices);
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

fn give_said(ledger: &mut Ledger, process: &mut Process) {
    match process.said.pop_front() {
        Some(Said::Done(inputs, outputs)) => ledger.take_done(inputs, outputs).unwrap(),
        Some(Said::Drop(place)) => ledger.take_drop(0, Drop { reason: "dropped", count: 1 }, place).unwrap(),
        None => {}
    }
}

fn dropped(ledger: &mut Ledger) -> u64 {
    ledger.told_drops().map(|(_, drop)| drop.count).sum()
}

/// The process ends well once it was handed everything of its era.
fn end(ledger: &mut Ledger, process: &mut Process, work: Work) {
    while ledger.has_next() {
        hand_over(ledger, process, usize::MAX);
    }
    process.end(work);
    while !process.outputs.is_empty() || !process.said.is_empty() {
        give_output(ledger, process);
        give_said(ledger, process);
    }
    ledger.end();
    *process = Process::default();
}

fn expected(work: Work, inputs: &[(u64, u32)]) -> Vec<u64> {
    let values = inputs.iter().map(|(value, _)| *value);
    match work {
        Work::Silent => values.collect(),
        Work::Several(count) => values.flat_map(|value| (0..count).map(move |_| value)).collect(),
        Work::Drops { .. } => values.filter(|value| !is_dropped(*value)).collect(),
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
            let sums: Vec<_> = inputs.iter().map(add).collect();
            let kept = sums.into_iter().zip(inputs).filter(|(_, (value, _))| !is_dropped(*value));
            kept.map(|(sum, _)| sum).collect()
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
        any::<bool>().prop_map(|by_place| Work::Drops { by_place }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Killed wherever it is, whatever it had read, given or vouched for: nothing is lost, nothing comes
    /// twice, the order is kept, and what the process drops is counted once.
    #[test]
    fn kills_lose_and_repeat_nothing(work in work(), steps in prop::collection::vec(step(), 0..400)) {
        let has_history = matches!(work, Work::History);
        let says_done = !matches!(work, Work::Silent);
        let mut ledger = Ledger::new(Limits::default(), says_done, has_history);
        let mut process = Process::default();
        let (mut inputs, mut out, mut drops) = (Vec::new(), Vec::new(), 0);
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
                Step::Done => give_said(&mut ledger, &mut process),
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
            out.extend(std::iter::from_fn(|| ready(&mut ledger)).map(value));
            drops += dropped(&mut ledger);
        }
        // Of an era that is finished a process may be handed all again, and still owe its word.
        while ledger.unfinished() > 0 || ledger.has_next() || !ledger.is_idle() {
            end(&mut ledger, &mut process, work);
            out.extend(std::iter::from_fn(|| ready(&mut ledger)).map(value));
        }
        drops += dropped(&mut ledger);
        prop_assert_eq!(out, expected(work, &inputs));
        let drops_any = matches!(work, Work::History | Work::Drops { .. });
        let of_inputs = inputs.iter().filter(|(value, _)| drops_any && is_dropped(*value)).count();
        prop_assert_eq!(drops, of_inputs as u64);
        prop_assert_eq!(ledger.drops().count(), 0);
        prop_assert!(ledger.is_idle() && ledger.waiting() == 0);
    }

    /// Whatever a process says, the ledger neither panics nor grows without bound.
    #[test]
    fn rubbish_is_named_or_harmless(
        says_done: bool, has_history: bool,
        steps in prop::collection::vec((0..8u8, 0..50u64, 0..50u64), 0..200),
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
                6 => {
                    let place = (a % 2 == 0).then_some(b);
                    let _ = ledger.take_drop(0, Drop { reason: "dropped", count: a }, place);
                }
                _ => if !ledger.has_next() { ledger.end() },
            }
            prop_assert!(ledger.unfinished() <= 20 && ledger.waiting() <= ledger.place() as usize);
            ledger.ready().clear();
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
    assert_eq!(ready(&mut ledger).map(value), Some(2));
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
    assert_eq!(ready(&mut ledger), None);
    ledger.take_done(2, 2).unwrap();
    assert_eq!((ready(&mut ledger), ledger.unfinished()), (None, 2));
    ledger.take(message(2)).unwrap();
    assert_eq!(ready(&mut ledger).map(value), Some(1));
    assert_eq!(ready(&mut ledger).map(value), Some(2));
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
        give_said(&mut ledger, &mut process);
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

#[test]
fn a_drop_counts_with_what_it_belongs_to_however_late_it_is_heard() {
    let mut ledger = handed(&[1, 2, 3], true, false);
    let tell = |ledger: &mut Ledger, place| {
        ledger.take_drop(0, Drop { reason: "dropped", count: 1 }, Some(place)).unwrap();
    };
    tell(&mut ledger, 2);
    ledger.take_covers(1).unwrap();
    assert_eq!(dropped(&mut ledger), 0, "the second is not finished");
    tell(&mut ledger, 1);
    assert_eq!(dropped(&mut ledger), 1);
    ledger.die(0, true);
    hand_over(&mut ledger, &mut Process::default(), usize::MAX);
    tell(&mut ledger, 1);
    ledger.take_covers(1).unwrap();
    assert_eq!(dropped(&mut ledger), 1, "said by two processes, counted once");
}

#[test]
fn what_is_known_of_a_message_is_put_back_on_what_came_of_it() {
    let known = |priority| Attributes { priority, key: Some(7), droppable: true, ..Attributes::default() };
    let mut ledger = Ledger::new(Limits::default(), true, false);
    // Two were created at once, of one nothing is known.
    for (created, priority) in [(1, 1), (2, 2), (2, 3), (4, 0), (5, 5)] {
        let attributes = if priority > 0 { known(priority) } else { Attributes::default() };
        ledger.admit(Message { attributes: Attributes { mark: 9, ..attributes }, ..message(created) }, 0);
    }
    let came = |ledger: &mut Ledger, created: u64| ledger.take(message(created)).unwrap();
    for _ in 0..2 {
        hand_over(&mut ledger, &mut Process::default(), usize::MAX);
        came(&mut ledger, 1);
        ledger.die(0, true);
    }
    hand_over(&mut ledger, &mut Process::default(), usize::MAX);
    // One of its own making comes between.
    [1, 2, 3, 2, 4, 5].iter().for_each(|created| came(&mut ledger, *created));
    ledger.take_done(5, 6).unwrap();
    let all: Vec<_> = std::iter::from_fn(|| ready(&mut ledger)).map(|message| message.attributes).collect();
    let none = Attributes::default();
    assert_eq!(all, [known(1), known(2), none, known(3), none, known(5)]);
}

/// What somebody says to a ledger.
#[derive(Debug, Clone)]
enum Turn {
    Admit {
        known: bool,
    },
    HandOver,
    /// The first so many of what is handed over and not covered come back: the last as it went, of the others nothing.
    Back(usize),
    /// Another message, which covers nothing.
    Another,
    Drop(u64),
    Die,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// What comes back as it went might as well have come as a message that covers itself.
    #[test]
    fn giving_back_is_giving_and_covering(
        turns in prop::collection::vec(
            prop_oneof![
                4 => any::<bool>().prop_map(|known| Turn::Admit { known }),
                4 => Just(Turn::HandOver),
                6 => (1usize..3).prop_map(Turn::Back),
                1 => Just(Turn::Another),
                1 => (0u64..4).prop_map(Turn::Drop),
                1 => Just(Turn::Die),
            ],
            0..80,
        ),
        has_history in any::<bool>(),
    ) {
        let mut ledgers = [(); 2].map(|()| Ledger::of_run(Limits::default(), has_history));
        // Created, since the last process began: handed over, and covered.
        let (mut created, mut handed, mut covered) = (0, VecDeque::new(), 0u64);
        for turn in turns {
            if matches!(turn, Turn::Admit { .. }) {
                created += 1;
            }
            let is_over = ledgers[0].next_whole().map(|(created, ..)| created.0);
            let back = match turn {
                Turn::Back(count) => handed.get((covered as usize + count).saturating_sub(1)).copied(),
                _ => None,
            };
            for (index, ledger) in ledgers.iter_mut().enumerate() {
                match turn {
                    Turn::Admit { known } => {
                        let priority = u8::from(known);
                        let attributes = Attributes { priority, ..Attributes::default() };
                        ledger.admit(Message { attributes, ..message(created) }, 0);
                    }
                    Turn::HandOver => ledger.hand_over_whole(),
                    Turn::Back(count) => {
                        let Some(created) = back else { continue };
                        let inputs = covered + count as u64;
                        match index {
                            0 => ledger.take_back(inputs).unwrap(),
                            _ => {
                                ledger.take(message(created)).unwrap();
                                ledger.take_covers(inputs).unwrap();
                            }
                        }
                    }
                    Turn::Another => ledger.take(message(0)).unwrap(),
                    Turn::Drop(ahead) => {
                        let drop = Drop { reason: "dropped", count: 1 };
                        ledger.take_drop(0, drop, Some(covered + ahead)).unwrap();
                    }
                    Turn::Die => {
                        ledger.die(0, true);
                    }
                }
            }
            match turn {
                Turn::HandOver => handed.extend(is_over),
                Turn::Back(count) if back.is_some() => covered += count as u64,
                Turn::Die => (covered, _) = (0, handed.clear()),
                _ => {}
            }
            let states = ledgers.each_mut().map(|ledger| {
                let came: Vec<_> = ledger.ready().drain(..).collect();
                let (drops, told) = (ledger.drops().count(), ledger.told_drops().count());
                (came, drops, told, ledger.unfinished(), ledger.waiting(), ledger.committed(), ledger.is_idle())
            });
            prop_assert_eq!(&states[0], &states[1]);
        }
    }
}
