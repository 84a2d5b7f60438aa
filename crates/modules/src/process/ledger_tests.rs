use super::checkpoint::Saved;
use super::ledger::{Death, Ledger, Limits, ProtocolError};
use contract::{Attributes, Drop, Message, Time};
use proptest::prelude::*;
use smallvec::SmallVec;
use std::collections::VecDeque;

/// Work of a model process.
#[derive(Debug, Clone, Copy)]
enum Work {
    /// One output for each input; never reports `done`.
    Silent,
    /// This many outputs for each input.
    Several(u64),
    /// One output for this many inputs: their sum.
    Sum(usize),
    /// Inputs are differences; each output is the sum of the era's inputs. Some outputs are dropped.
    History,
    /// Drops some inputs. Reports each drop with its position, or before the next `done`.
    Drops { with_position: bool },
}

/// Returns true if the output of this input is dropped.
fn is_dropped(value: u64) -> bool {
    value.is_multiple_of(3)
}

/// A control frame of a process.
#[derive(Debug)]
enum Frame {
    Drop(Option<u64>),
    Done(u64, u64),
}

/// A model process: bytes in; outputs and frames out, at independent times.
#[derive(Default)]
struct Process {
    pipe: VecDeque<u8>,
    held: Vec<u64>,
    sum: u64,
    inputs: u64,
    made: u64,
    outputs: VecDeque<u64>,
    frames: VecDeque<Frame>,
}

impl Process {
    /// Reads an input if it is complete.
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
                self.send_done();
            }
            Work::Sum(count) => {
                self.held.push(value);
                if self.held.len() == count {
                    self.sum_held();
                }
            }
            Work::History => {
                self.sum += value;
                self.give_or_drop(value, self.sum, None);
            }
            Work::Drops { with_position } => {
                self.give_or_drop(value, value, with_position.then_some(self.inputs))
            }
        }
    }

    fn give_or_drop(&mut self, input: u64, output: u64, position: Option<u64>) {
        match is_dropped(input) {
            true => self.frames.push_back(Frame::Drop(position)),
            false => {
                self.outputs.push_back(output);
                self.made += 1;
            }
        }
        // One `done` may confirm several outputs.
        if input.is_multiple_of(2) {
            self.send_done();
        }
    }

    fn send_done(&mut self) {
        self.frames.push_back(Frame::Done(self.inputs, self.made));
    }

    fn sum_held(&mut self) {
        self.outputs.push_back(self.held.drain(..).sum());
        self.made += 1;
        self.send_done();
    }

    fn end(&mut self, work: Work) {
        while !self.pipe.is_empty() {
            self.work(work);
        }
        if !self.held.is_empty() {
            self.sum_held();
        }
        self.send_done();
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
    // A gap frame goes through the control descriptor; no input is sent before it.
    ledger.next_gap();
    let mut slices = SmallVec::new();
    ledger.next_slices(usize::MAX, &mut slices);
    let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).take(bytes_max).collect();
    drop(slices);
    ledger.mark_sent(bytes.len());
    process.pipe.extend(bytes);
}

fn give_output(ledger: &mut Ledger, process: &mut Process) {
    if let Some(output) = process.outputs.pop_front() {
        ledger.on_output(message(output)).unwrap();
    }
}

fn give_frame(ledger: &mut Ledger, process: &mut Process) {
    match process.frames.pop_front() {
        Some(Frame::Done(inputs, outputs)) => ledger.on_done(inputs, outputs).unwrap(),
        Some(Frame::Drop(position)) => {
            ledger.on_drop(0, Drop { reason: "dropped", count: 1, is_loss: false }, position).unwrap()
        }
        None => {}
    }
}

fn dropped(ledger: &mut Ledger) -> u64 {
    ledger.confirmed_drops().map(|(_, drop)| drop.count).sum()
}

/// The process receives the rest of its era and exits successfully.
fn end(ledger: &mut Ledger, process: &mut Process, work: Work) {
    while ledger.has_next() {
        hand_over(ledger, process, usize::MAX);
    }
    process.end(work);
    while !process.outputs.is_empty() || !process.frames.is_empty() {
        give_output(ledger, process);
        give_frame(ledger, process);
    }
    ledger.on_end();
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
    /// Another worker continues with the checkpoint.
    Move,
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
        1 => Just(Step::Move),
    ]
}

fn work() -> impl Strategy<Value = Work> {
    prop_oneof![
        Just(Work::Silent),
        (0..4u64).prop_map(Work::Several),
        (1..5usize).prop_map(Work::Sum),
        Just(Work::History),
        any::<bool>().prop_map(|with_position| Work::Drops { with_position }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Whenever the process is killed: nothing is lost, nothing is duplicated, the order is kept, and each drop is
    /// counted once.
    #[test]
    fn kills_lose_and_duplicate_nothing(work in work(), steps in prop::collection::vec(step(), 0..400)) {
        let has_history = matches!(work, Work::History);
        let reports_done = !matches!(work, Work::Silent);
        let mut ledger = Ledger::new(Limits::default(), reports_done, has_history);
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
                Step::Done => give_frame(&mut ledger, &mut process),
                Step::Kill if deaths_in_row < 11 => {
                    deaths_in_row += 1;
                    let death = ledger.on_death(0, true);
                    prop_assert_eq!((death.dropped, death.unreadable), (None, 0));
                    process = Process::default();
                }
                Step::Move if deaths_in_row < 11 => {
                    deaths_in_row += 1;
                    let saved = Saved::parse(ledger.save().emit(), 1 << 16).unwrap();
                    ledger = Ledger::new(Limits::default(), reports_done, has_history);
                    ledger.restore(saved);
                    process = Process::default();
                    continue;
                }
                Step::Kill | Step::Move => {}
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
        // A process may be replaying a finished era, and still owe its `done`.
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

    /// Whatever a process sends, the ledger neither panics nor grows without bound.
    #[test]
    fn garbage_is_rejected_or_harmless(
        reports_done: bool, has_history: bool,
        steps in prop::collection::vec((0..8u8, 0..50u64, 0..50u64), 0..200),
    ) {
        let limits = Limits { kept_messages: 20, kept_bytes: 2000, ahead_messages: 4, ahead_bytes: 200 };
        let mut ledger = Ledger::new(limits, reports_done, has_history);
        let mut process = Process::default();
        for (step, a, b) in steps {
            match step {
                0 | 1 if ledger.has_room() => ledger.admit(message(a), (b / 10) as u32),
                2 => hand_over(&mut ledger, &mut process, a as usize),
                3 => if ledger.on_output(message(a)).is_err() { ledger.on_death(0, false); },
                4 => if ledger.on_done(a, b).is_err() { ledger.on_death(0, false); },
                5 => { ledger.on_death(0, false); }
                6 => {
                    let position = (a % 2 == 0).then_some(b);
                    let _ = ledger.on_drop(0, Drop { reason: "dropped", count: a, is_loss: false }, position);
                }
                _ => if !ledger.has_next() { ledger.on_end(); },
            }
            prop_assert!(ledger.unfinished() <= 20 && ledger.waiting() <= ledger.position() as usize);
            ledger.ready().clear();
        }
    }
}

fn ledger_with_inputs(values: &[u64], reports_done: bool, has_history: bool) -> Ledger {
    let mut ledger = Ledger::new(Limits::default(), reports_done, has_history);
    values.iter().for_each(|value| ledger.admit(message(*value), 0));
    hand_over(&mut ledger, &mut Process::default(), usize::MAX);
    ledger
}

/// Hands over one input, which must be allowed.
fn hand_over_one(ledger: &mut Ledger) {
    assert_eq!(ledger.sendable(), ledger.handed() + 1);
    ledger.next_gap();
    let mut slices = SmallVec::new();
    ledger.next_slices(1, &mut slices);
    let bytes = slices.iter().map(|slice| slice.len()).sum();
    drop(slices);
    ledger.mark_sent(bytes);
}

#[test]
fn after_a_death_inputs_are_on_trial_and_the_one_that_kills_alone_is_dropped() {
    let mut ledger = ledger_with_inputs(&[1, 2, 3], false, false);
    assert!(!ledger.is_on_trial());
    assert_eq!(ledger.on_death(0, false), Death { replayed: 3, ..Death::default() });
    ledger.admit(message(4), 0);
    hand_over_one(&mut ledger);
    assert_eq!(ledger.sendable(), ledger.handed(), "the first is in flight");
    ledger.on_output(message(1)).unwrap();
    for _ in 0..2 {
        hand_over_one(&mut ledger);
        let death = Death { replayed: 1, suspect: Some(2), ..Death::default() };
        assert_eq!(ledger.on_death(0, false), death);
    }
    hand_over_one(&mut ledger);
    assert_eq!(ledger.on_death(0, false), Death { dropped: Some(2), ..Death::default() });
    let drops: Vec<_> = ledger.drops().map(|drop| (drop.reason, drop.count, drop.is_loss)).collect();
    assert_eq!(drops, [("the module failed on each", 1, true)]);
    assert_eq!(ledger.next_gap(), Some(0), "the next process is told that something is missing");
    hand_over_one(&mut ledger);
    ledger.on_output(message(3)).unwrap();
    assert!(!ledger.is_on_trial());
    hand_over(&mut ledger, &mut Process::default(), usize::MAX);
    ledger.on_output(message(4)).unwrap();
    assert_eq!(std::iter::from_fn(|| ready(&mut ledger)).map(value).collect::<Vec<_>>(), [1, 3, 4]);
    assert_eq!(ledger.unfinished(), 0);
}

#[test]
fn a_death_by_an_external_signal_counts_as_a_quarter() {
    let mut ledger = ledger_with_inputs(&[1], false, false);
    for _ in 0..11 {
        assert_eq!(ledger.on_death(0, true).suspect, Some(1));
        hand_over_one(&mut ledger);
    }
    assert_eq!(ledger.on_death(0, true).dropped, Some(1));
}

#[test]
fn a_process_that_holds_inputs_on_trial_is_asked_to_flush() {
    let mut ledger = ledger_with_inputs(&[1, 2, 3], true, false);
    ledger.on_death(0, false);
    assert!(ledger.is_on_trial() && !ledger.has_flushes());
    hand_over(&mut ledger, &mut Process::default(), usize::MAX);
    assert_eq!(ledger.on_death(20, false).suspect, None, "it has read two");
    assert!(ledger.has_flushes());
    // It ignores flushes: the oldest one is dropped, so the end is reached.
    for _ in 0..2 {
        hand_over(&mut ledger, &mut Process::default(), usize::MAX);
        assert_eq!(ledger.on_death(20, false).suspect, Some(1));
    }
    hand_over(&mut ledger, &mut Process::default(), usize::MAX);
    assert_eq!(ledger.on_death(20, false).dropped, Some(1));
}

#[test]
fn inputs_of_the_history_are_not_on_trial() {
    let mut ledger = ledger_with_inputs(&[1, 2, 3, 4], true, true);
    (1..=2).for_each(|value| ledger.on_output(message(value)).unwrap());
    ledger.on_done(2, 2).unwrap();
    assert_eq!(ledger.on_death(0, false), Death { replayed: 2, ..Death::default() });
    assert_eq!(ledger.sendable(), 2, "the history at once");
    hand_over(&mut ledger, &mut Process::default(), 40);
    assert_eq!(ledger.sendable(), 2, "then a pause, until it is processed");
    (1..=2).for_each(|value| ledger.on_output(message(value)).unwrap());
    ledger.on_done(2, 2).unwrap();
    assert_eq!(ledger.sendable(), 3);
}

#[test]
fn the_next_process_gets_a_gap_for_earlier_messages() {
    let mut ledger = ledger_with_inputs(&[1, 2], false, false);
    ledger.on_death(0, false);
    assert_eq!(ledger.next_gap(), None, "nothing was");
    hand_over(&mut ledger, &mut Process::default(), usize::MAX);
    ledger.on_output(message(1)).unwrap();
    ledger.on_death(0, false);
    assert_eq!(ledger.next_gap(), Some(0));
    hand_over(&mut ledger, &mut Process::default(), usize::MAX);
    ledger.on_output(message(2)).unwrap();
    ledger.on_death(0, false);
    ledger.admit(message(3), 0);
    assert_eq!(ledger.next_gap(), Some(0), "also where nothing waits");
}

#[test]
fn an_unread_message_is_not_blamed_for_a_death() {
    let mut ledger = ledger_with_inputs(&[1, 2], false, false);
    for _ in 0..10 {
        assert_eq!(ledger.on_death(40, false), Death { replayed: 2, ..Death::default() });
        hand_over(&mut ledger, &mut Process::default(), usize::MAX);
    }
    ledger.on_output(message(1)).unwrap();
    for _ in 0..10 {
        assert_eq!(ledger.on_death(20, false), Death { replayed: 1, ..Death::default() });
        hand_over(&mut ledger, &mut Process::default(), usize::MAX);
    }
    ledger.on_death(0, false);
    hand_over(&mut ledger, &mut Process::default(), usize::MAX);
    ledger.on_death(19, false);
    hand_over(&mut ledger, &mut Process::default(), usize::MAX);
    assert_eq!(ledger.on_death(1, false).dropped, Some(2));
}

#[test]
fn an_output_waits_for_its_done_and_a_done_waits_for_its_outputs() {
    let mut ledger = ledger_with_inputs(&[1, 2], true, false);
    ledger.on_output(message(1)).unwrap();
    assert_eq!(ready(&mut ledger), None);
    ledger.on_done(2, 2).unwrap();
    assert_eq!((ready(&mut ledger), ledger.unfinished()), (None, 2));
    ledger.on_output(message(2)).unwrap();
    assert_eq!(ready(&mut ledger).map(value), Some(1));
    assert_eq!(ready(&mut ledger).map(value), Some(2));
    assert_eq!(ledger.unfinished(), 0);
}

#[test]
fn impossible_reports_are_rejected() {
    assert!(matches!(ledger_with_inputs(&[], false, false).on_output(message(1)), Err(ProtocolError(_))));
    assert!(matches!(ledger_with_inputs(&[1], true, false).on_done(2, 0), Err(ProtocolError(_))));
    let mut ledger = ledger_with_inputs(&[1, 2], true, false);
    ledger.on_done(1, 1).unwrap();
    assert!(matches!(ledger.on_done(1, 0), Err(ProtocolError(_))));
}

#[test]
fn an_era_that_is_too_long_is_lost_with_its_process_and_the_next_one_is_complete() {
    let limits = Limits { kept_messages: 8, ..Limits::default() };
    let mut ledger = Ledger::new(limits, true, true);
    let mut process = Process::default();
    for value in 1..=10 {
        ledger.admit(message(value), 0);
        hand_over(&mut ledger, &mut process, usize::MAX);
        process.work(Work::History);
        give_frame(&mut ledger, &mut process);
        give_output(&mut ledger, &mut process);
    }
    assert!(ledger.is_era_long());
    ledger.admit(message(11), 0);
    hand_over(&mut ledger, &mut process, usize::MAX);
    assert_eq!(ledger.on_death(0, false).unreadable, 1);
    ledger.admit(message(12), 0);
    assert_eq!(ledger.drops().map(|drop| drop.count).sum::<u64>(), 2);
    ledger.admit(message(1), 1);
    assert_eq!(ledger.next_era(), Some(1));
    ledger.begin_era();
    assert!(ledger.has_next() && !ledger.is_era_long());
}

#[test]
fn a_full_ledger_has_no_room_until_inputs_are_sent() {
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
fn a_drop_counts_with_its_inputs_however_late_it_is_reported() {
    let mut ledger = ledger_with_inputs(&[1, 2, 3], true, false);
    let report = |ledger: &mut Ledger, position| {
        ledger.on_drop(0, Drop { reason: "dropped", count: 1, is_loss: false }, Some(position)).unwrap();
    };
    report(&mut ledger, 2);
    ledger.on_covers(1).unwrap();
    assert_eq!(dropped(&mut ledger), 0, "the second is not finished");
    report(&mut ledger, 1);
    assert_eq!(dropped(&mut ledger), 1);
    ledger.on_death(0, true);
    hand_over(&mut ledger, &mut Process::default(), usize::MAX);
    report(&mut ledger, 1);
    ledger.on_covers(1).unwrap();
    assert_eq!(dropped(&mut ledger), 1, "frames by two processes, counted_drops once");
}

#[test]
fn attributes_of_an_input_are_restored_on_its_output() {
    let known = |priority| Attributes { priority, key: Some(7), droppable: true, ..Attributes::default() };
    let mut ledger = Ledger::new(Limits::default(), true, false);
    // Two have the same creation time; one has no attributes.
    for (created, priority) in [(1, 1), (2, 2), (2, 3), (4, 0), (5, 5)] {
        let attributes = if priority > 0 { known(priority) } else { Attributes::default() };
        ledger.admit(Message { attributes: Attributes { mark: 9, ..attributes }, ..message(created) }, 0);
    }
    let add_output = |ledger: &mut Ledger, created: u64| ledger.on_output(message(created)).unwrap();
    for _ in 0..2 {
        hand_over(&mut ledger, &mut Process::default(), usize::MAX);
        add_output(&mut ledger, 1);
        ledger.on_death(0, true);
    }
    hand_over(&mut ledger, &mut Process::default(), usize::MAX);
    // The process adds a message of its own in between.
    [1, 2, 3, 2, 4, 5].iter().for_each(|created| add_output(&mut ledger, *created));
    ledger.on_done(5, 6).unwrap();
    let all: Vec<_> = std::iter::from_fn(|| ready(&mut ledger)).map(|message| message.attributes).collect();
    let none = Attributes::default();
    assert_eq!(all, [known(1), known(2), none, known(3), none, known(5)]);
}

/// An event in the life of a ledger.
#[derive(Debug, Clone)]
enum Event {
    Admit {
        known: bool,
    },
    HandOver,
    /// The first `n` messages in flight come back: the last one unchanged, the others without output.
    Unchanged(usize),
    /// Another message that acknowledges nothing.
    Another,
    Drop(u64),
    Die,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// A message that comes back unchanged has the same effect as an equal message that acknowledges itself.
    #[test]
    fn returning_unchanged_equals_an_output_and_an_acknowledgement(
        turns in prop::collection::vec(
            prop_oneof![
                4 => any::<bool>().prop_map(|known| Event::Admit { known }),
                4 => Just(Event::HandOver),
                6 => (1usize..3).prop_map(Event::Unchanged),
                1 => Just(Event::Another),
                1 => (0u64..4).prop_map(Event::Drop),
                1 => Just(Event::Die),
            ],
            0..80,
        ),
        has_history in any::<bool>(),
    ) {
        let mut ledgers = [(); 2].map(|()| Ledger::of_run(Limits::default(), has_history));
        // Creation times: last used; in flight to the present process; number acknowledged.
        let (mut created, mut handed, mut covered) = (0, VecDeque::new(), 0u64);
        for turn in turns {
            if matches!(turn, Event::Admit { .. }) {
                created += 1;
            }
            let sent = ledgers[0].next_whole().map(|(created, ..)| created.0);
            let back = match turn {
                Event::Unchanged(count) => handed.get((covered as usize + count).saturating_sub(1)).copied(),
                _ => None,
            };
            for (index, ledger) in ledgers.iter_mut().enumerate() {
                match turn {
                    Event::Admit { known } => {
                        let priority = u8::from(known);
                        let attributes = Attributes { priority, ..Attributes::default() };
                        ledger.admit(Message { attributes, ..message(created) }, 0);
                    }
                    Event::HandOver => ledger.mark_sent_whole(),
                    Event::Unchanged(count) => {
                        let Some(created) = back else { continue };
                        let inputs = covered + count as u64;
                        match index {
                            0 => ledger.on_unchanged(inputs).unwrap(),
                            _ => {
                                ledger.on_output(message(created)).unwrap();
                                ledger.on_covers(inputs).unwrap();
                            }
                        }
                    }
                    Event::Another => ledger.on_output(message(0)).unwrap(),
                    Event::Drop(offset) => {
                        let drop = Drop { reason: "dropped", count: 1, is_loss: false };
                        ledger.on_drop(0, drop, Some(covered + offset)).unwrap();
                    }
                    Event::Die => {
                        ledger.on_death(0, true);
                    }
                }
            }
            match turn {
                Event::HandOver => handed.extend(sent),
                Event::Unchanged(count) if back.is_some() => covered += count as u64,
                Event::Die => (covered, _) = (0, handed.clear()),
                _ => {}
            }
            let states = ledgers.each_mut().map(|ledger| {
                let outputs: Vec<_> = ledger.ready().drain(..).collect();
                let (drops, confirmed) = (ledger.drops().count(), ledger.confirmed_drops().count());
                (outputs, drops, confirmed, ledger.unfinished(), ledger.waiting(), ledger.committed(), ledger.is_idle())
            });
            prop_assert_eq!(&states[0], &states[1]);
        }
    }
}
