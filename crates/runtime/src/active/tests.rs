//! Ends of a way: what one pushes the other gets, once and in order, whoever holds the other end and however often that
//! is taken up anew; and nothing that is written into the memory between them does harm.

use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::time::Duration;
use sys::poller::Poller;

fn pair(capacity: usize, class: FlowClass) -> (Endpoint, FarEnd) {
    let (mut ours, far) = Endpoint::pair(capacity).unwrap();
    open(&mut ours, class);
    (ours, far)
}

fn open(end: &mut Endpoint, class: FlowClass) {
    for direction in [Direction::In, Direction::Out] {
        let template = FlowTemplate { direction, format: contract::Format::Bytes, class };
        end.open(&template, &Attributes::default()).unwrap();
    }
}

fn message(number: u64, bytes: usize) -> Message {
    let mut message = Message::new(contract::Time(number), vec![number as u8; bytes]);
    message.attributes = Attributes {
        deadline: number.is_multiple_of(3).then_some(contract::Time(number + 9)),
        priority: number as u8,
        key: number.is_multiple_of(2).then_some(number),
        droppable: number.is_multiple_of(5),
        stale: number.is_multiple_of(7),
        mark: 0,
    };
    message
}

#[derive(Debug, Clone)]
enum Step {
    Push(usize),
    PushOverOldest(usize),
    Neutral,
    Take,
    /// The process that has the far end is killed, and another takes that up.
    Kill,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let bytes = || prop_oneof![0usize..300, Just(0), 60_000usize..70_000];
    let step = prop_oneof![
        4 => bytes().prop_map(Step::Push),
        1 => bytes().prop_map(Step::PushOverOldest),
        1 => Just(Step::Neutral),
        4 => Just(Step::Take),
        1 => Just(Step::Kill),
    ];
    prop::collection::vec(step, 1..80)
}

/// What waits, as a list: `None` is the wish for the neutral state.
type Model = VecDeque<Option<Message>>;

/// Does a step at the end that writes, and in the model.
fn write(
    step: &Step,
    end: &mut Endpoint,
    model: &mut Model,
    (number, capacity, class): (u64, usize, FlowClass),
) {
    match *step {
        Step::Push(bytes) => {
            let pushed = end.push(FLOW, message(number, bytes)).unwrap();
            let is_full = model.len() == capacity;
            assert_eq!(matches!(pushed, Pushed::Full(_)), is_full);
            if !is_full {
                model.push_back(Some(message(number, bytes)));
            }
        }
        Step::PushOverOldest(bytes) => {
            let mut dropped = 0;
            while model.len() == capacity {
                dropped += u64::from(model.pop_front().unwrap().is_some());
            }
            model.push_back(Some(message(number, bytes)));
            assert_eq!(end.push_over_oldest(message(number, bytes)), dropped);
        }
        Step::Neutral => {
            if class != FlowClass::Reliable {
                model.clear();
            }
            if model.len() < capacity {
                model.push_back(None);
            }
            end.ctl(FLOW, Ctl::Neutral).unwrap();
        }
        Step::Take | Step::Kill => {}
    }
    assert_eq!(end.is_full(), model.len() == capacity);
}

fn read(end: &mut Endpoint, model: &mut Model) {
    match (end.take(), model.pop_front()) {
        (Taken::Message(came), Some(Some(sent))) => assert_eq!(came, sent),
        (Taken::Neutral, Some(None)) | (Taken::Nothing, None) => {}
        (came, sent) => panic!("{came:?} instead of {sent:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Both ways, as a queue would; who is killed leaves everything where it is.
    #[test]
    fn a_way_is_a_queue(steps in steps(), capacity in 1usize..6, reliable: bool, from_far: bool) {
        let class = if reliable { FlowClass::Reliable } else { FlowClass::State };
        let (mut near, held) = pair(capacity, class);
        let mut far = held.try_clone().unwrap().take_up().unwrap();
        open(&mut far, class);
        let mut model = Model::new();
        for (number, step) in (1..).zip(&steps) {
            if matches!(step, Step::Kill) {
                // Killed, it says nothing of its end.
                std::mem::forget(std::mem::replace(&mut far, held.try_clone().unwrap().take_up().unwrap()));
                open(&mut far, class);
                continue;
            }
            let (writer, reader) = if from_far { (&mut far, &mut near) } else { (&mut near, &mut far) };
            write(step, writer, &mut model, (number, capacity, class));
            if matches!(step, Step::Take) {
                read(reader, &mut model);
            }
        }
        let (writer, reader) = if from_far { (far, &mut near) } else { (near, &mut far) };
        drop(writer);
        while !model.is_empty() {
            read(reader, &mut model);
        }
        prop_assert!(matches!(reader.take(), Taken::End) && reader.is_other_closed());
    }

    /// Whoever has the far end writes what it likes, of plausible numbers and others.
    #[test]
    fn nothing_that_is_written_there_does_harm(
        scribbles in prop::collection::vec((0usize..12, edges(), 0u8..4), 1..60),
    ) {
        const CAPACITY: usize = 3;
        let (mut near, far) = pair(CAPACITY, FlowClass::State);
        let memory = Shared::map(&far.memory, Access::Write).unwrap();
        // The words of both lanes, and those of their first entries.
        let lane = Lane::bytes(CAPACITY);
        let words = [0, 64, 72, 128, 136, 144, 192, 200, 256, 512, 520, 528];
        for (number, (word, value, act)) in (1..).zip(scribbles) {
            for base in [0, lane] {
                memory.word(base + words[word]).unwrap().store(value, std::sync::atomic::Ordering::SeqCst);
            }
            match act {
                0 => drop(near.push(FLOW, message(number, 10))),
                1 => drop(near.push_over_oldest(message(number, 10))),
                2 => near.ctl(FLOW, Ctl::Neutral).map(drop).unwrap(),
                _ => {
                    if let Taken::Message(message) = near.take() {
                        prop_assert!(message.body.len() <= BODY_BYTES_MAX);
                    }
                }
            }
            for direction in [Direction::In, Direction::Out] {
                let _ = near.readiness(FLOW, direction);
            }
            let _ = (near.is_full(), near.is_other_closed(), near.take_snapshot_asked());
            let _ = near.inbound.lane.failure();
        }
    }
}

/// Numbers at the edges of what makes sense, and beyond.
fn edges() -> impl Strategy<Value = u64> {
    let near = |value: u64| (0u64..5).prop_map(move |more| value.wrapping_add(more).wrapping_sub(2));
    prop_oneof![
        4 => near(2),
        1 => near(BODY_BYTES_MAX as u64 + 1),
        1 => near(2 * BODY_BYTES_MAX as u64),
        1 => near(1 << 63),
        1 => near(0),
        1 => any::<u64>(),
    ]
}

/// More bytes than there is room for wait like more messages than may, and go round the end of the arena.
#[test]
fn what_is_too_much_at_once_waits() {
    const BYTES: usize = 40 << 20;
    let (mut near, far) = pair(8, FlowClass::Reliable);
    let mut far = far.take_up().unwrap();
    open(&mut far, FlowClass::Reliable);
    let mut model = Model::new();
    for number in 1..=6 {
        while let Pushed::Full(_) = near.push(FLOW, message(number, BYTES)).unwrap() {
            assert!(near.is_full() && !near.readiness(FLOW, Direction::In).now);
            read(&mut far, &mut model);
            assert!(!near.is_full());
        }
        model.push_back(Some(message(number, BYTES)));
        assert!(model.len() <= 3);
    }
    while !model.is_empty() {
        read(&mut far, &mut model);
    }
    let longest = message(1, BODY_BYTES_MAX + 1);
    assert!(matches!(near.push(FLOW, longest), Err((PartnerError::Message(_), _))));
}

/// Whoever waits is woken: by what comes, and by room.
#[test]
fn two_threads_wake_each_other() {
    const COUNT: u64 = 20_000;
    let (mut near, far) = pair(2, FlowClass::Reliable);
    let wait = |end: &Endpoint, direction: Direction, poller: &mut Poller| {
        let readiness = end.readiness(FLOW, direction);
        if !readiness.now {
            let (descriptor, _) = readiness.descriptors[0].unwrap();
            poller.want(descriptor, true, false);
            poller.wait(Some(Duration::from_secs(60))).unwrap();
            assert!(poller.is_ready(descriptor), "nobody woke it");
        }
    };
    let reader = std::thread::spawn(move || {
        let mut far = far.take_up().unwrap();
        open(&mut far, FlowClass::Reliable);
        let mut poller = Poller::new().unwrap();
        for number in 1..=COUNT {
            loop {
                match far.take() {
                    Taken::Message(came) => break assert_eq!(came, message(number, 100)),
                    Taken::Nothing => wait(&far, Direction::Out, &mut poller),
                    other => panic!("{other:?}"),
                }
            }
        }
    });
    let mut poller = Poller::new().unwrap();
    for number in 1..=COUNT {
        let mut next = message(number, 100);
        while let Pushed::Full(back) = near.push(FLOW, next).unwrap() {
            next = back;
            wait(&near, Direction::In, &mut poller);
        }
    }
    reader.join().unwrap();
}

/// A reason has a length, and the first is the one that counts.
#[test]
fn why_it_failed_is_said_once_and_shortly() {
    let (mut near, far) = pair(1, FlowClass::Reliable);
    let mut far = far.take_up().unwrap();
    open(&mut far, FlowClass::Reliable);
    near.push(FLOW, message(1, 3)).unwrap();
    near.fail(true, &"ö".repeat(1000));
    near.fail(false, "another");
    assert!(matches!(far.pull(FLOW, Pull::Yours), Ok(Pulled::Message(..))));
    let Err(PartnerError::Gone(what)) = far.pull(FLOW, Pull::Yours) else { panic!("it is gone") };
    assert!(what.len() < 300 && what.starts_with("öö"), "{what}");
    assert!(matches!(far.push(FLOW, message(2, 3)), Err((PartnerError::Gone(_), _))));
}
