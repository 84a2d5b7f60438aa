//! Tests of connected endpoints: messages arrive once and in order, in any process and after any number
//! of restarts; corrupted memory does no harm.

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
    /// Kills the process of the far end; another process opens it.
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

/// The waiting items; `None` is a request for the neutral state.
type Model = VecDeque<Option<Message>>;

/// Performs a step at the writing end and in the model.
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
    match (end.receive(), model.pop_front()) {
        (Incoming::Message(received), Some(Some(sent))) => assert_eq!(received, sent),
        (Incoming::Neutral, Some(None)) | (Incoming::Nothing, None) => {}
        (received, sent) => panic!("{received:?} instead of {sent:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Both directions behave as a queue; a killed process leaves the items in place.
    #[test]
    fn an_endpoint_is_a_queue(steps in steps(), capacity in 1usize..6, reliable: bool, from_far: bool) {
        let class = if reliable { FlowClass::Reliable } else { FlowClass::State };
        let (mut near, held) = pair(capacity, class);
        let mut far = held.try_clone().unwrap().open().unwrap();
        open(&mut far, class);
        let mut model = Model::new();
        for (number, step) in (1..).zip(&steps) {
            if matches!(step, Step::Kill) {
                // A killed process does not close its end.
                std::mem::forget(std::mem::replace(&mut far, held.try_clone().unwrap().open().unwrap()));
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
        prop_assert!(matches!(reader.receive(), Incoming::End) && reader.is_other_closed());
    }

    /// The far end writes arbitrary numbers, plausible and not.
    #[test]
    fn hostile_memory_does_no_harm(
        scribbles in prop::collection::vec((0usize..12, edges(), 0u8..4), 1..60),
    ) {
        const CAPACITY: usize = 3;
        let (mut near, far) = pair(CAPACITY, FlowClass::State);
        let memory = Shared::map(&far.memory, Access::Write).unwrap();
        // The words of both rings, and those of their first entries.
        let ring = EndpointRing::bytes(CAPACITY);
        let words = [0, 64, 72, 128, 136, 144, 192, 200, 256, 512, 520, 528];
        for (number, (word, value, act)) in (1..).zip(scribbles) {
            for base in [0, ring] {
                memory.word(base + words[word]).unwrap().store(value, std::sync::atomic::Ordering::SeqCst);
            }
            match act {
                0 => drop(near.push(FLOW, message(number, 10))),
                1 => drop(near.push_over_oldest(message(number, 10))),
                2 => near.ctl(FLOW, Ctl::Neutral).map(drop).unwrap(),
                _ => {
                    if let Incoming::Message(message) = near.receive() {
                        prop_assert!(message.body.len() <= BODY_BYTES_MAX);
                    }
                }
            }
            for direction in [Direction::In, Direction::Out] {
                let _ = near.readiness(FLOW, direction);
            }
            let _ = (near.is_full(), near.is_other_closed(), near.take_snapshot_request());
            let _ = near.inbound.ring.failure();
        }
    }
}

/// Numbers at and beyond the limits of valid values.
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

/// Messages wait when they exceed the limit of bytes, as they do above the limit of messages, and wrap
/// around the arena.
#[test]
fn messages_beyond_the_byte_limit_wait() {
    const BYTES: usize = 40 << 20;
    let (mut near, far) = pair(8, FlowClass::Reliable);
    let mut far = far.open().unwrap();
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

/// A waiting side wakes when an item arrives and when there is room.
#[test]
fn two_threads_wake_each_other() {
    const COUNT: u64 = 20_000;
    let (mut near, far) = pair(2, FlowClass::Reliable);
    let wait = |end: &Endpoint, direction: Direction, poller: &mut Poller| {
        let readiness = end.readiness(FLOW, direction);
        if !readiness.now {
            let (descriptor, _) = readiness.descriptors[0].unwrap();
            poller.register(descriptor, true, false);
            poller.wait(Some(Duration::from_secs(60))).unwrap();
            assert!(poller.is_ready(descriptor), "no wakeup");
        }
    };
    let reader = std::thread::spawn(move || {
        let mut far = far.open().unwrap();
        open(&mut far, FlowClass::Reliable);
        let mut poller = Poller::new().unwrap();
        for number in 1..=COUNT {
            loop {
                match far.receive() {
                    Incoming::Message(received) => break assert_eq!(received, message(number, 100)),
                    Incoming::Nothing => wait(&far, Direction::Out, &mut poller),
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

/// The failure text has a length limit, and the first text is kept.
#[test]
fn the_first_failure_text_is_kept_and_cut() {
    let (mut near, far) = pair(1, FlowClass::Reliable);
    let mut far = far.open().unwrap();
    open(&mut far, FlowClass::Reliable);
    near.push(FLOW, message(1, 3)).unwrap();
    near.fail(Failure::Gone, &"ö".repeat(1000));
    near.fail(Failure::Data, "another");
    assert!(matches!(far.pull(FLOW, Pull::Yours), Ok(Pulled::Message(..))));
    let Err(PartnerError::Gone(reason)) = far.pull(FLOW, Pull::Yours) else { panic!("it is gone") };
    assert!(reason.len() < 300 && reason.starts_with("öö"), "{reason}");
    assert!(matches!(far.push(FLOW, message(2, 3)), Err((PartnerError::Gone(_), _))));
}

#[test]
fn a_fill_is_told_to_the_other_side_once() {
    let (ours, far) = pair(4, FlowClass::Timely);
    let mut theirs = far.try_clone().unwrap().open().unwrap();
    open(&mut theirs, FlowClass::Timely);
    assert!(matches!(theirs.ctl(FLOW, Ctl::Fill), Err(PartnerError::Unsupported(_))));
    let fill = |ms| {
        let [held, target, lead] = [ms, 5, 3].map(Duration::from_millis);
        Fill { held, target, lead, rate_hz: 44_100 }
    };
    ours.report_fill(fill(7));
    ours.report_fill(fill(8));
    let told = theirs.ctl(FLOW, Ctl::Fill).unwrap();
    assert!(matches!(told, CtlReply::Fill(told) if told == fill(8)), "{told:?}");
    assert!(theirs.ctl(FLOW, Ctl::Fill).is_err(), "a fill is not used twice");
}

/// The device has settings, for which the driver would say that it has none.
#[test]
fn a_setting_of_a_joined_device_is_refused_with_advice() {
    let (mut near, _far) = pair(1, FlowClass::Reliable);
    let Err(PartnerError::Message(problem)) = near.ctl(FLOW, Ctl::Command("brightness=128")) else {
        panic!("it is refused")
    };
    assert!(problem.contains("joined") && problem.contains("set="), "{problem}");
}
