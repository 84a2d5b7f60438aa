//! The contract of a partner (The Partner architecture (2002), 3.2 and 5.2), as checks that every
//! implementation runs.
//!
//! [`conforms`] takes a function that makes a fresh [`Harness`]: a partner, with access to its far side.

use contract::{
    Attributes, Body, Ctl, CtlReply, Direction, FlowKey, FlowTemplate, Interest, Message, Partner,
    PartnerError, PartnerResult, Pull, Pulled, Pushed, Readiness, Time,
};
use std::sync::mpsc;
use std::time::Duration;
use sys::poller::Poller;

/// The time limit of a whole run. It detects a partner that blocks.
const WATCHDOG: Duration = Duration::from_secs(600);

/// The time limit for progress that a partner has announced.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often a partner may announce progress without making any.
const FALSE_ALARMS_MAX: usize = 1000;
/// Each false alarm is followed by a pause that is longer by this.
const PACE: Duration = Duration::from_micros(100);

/// Messages pushed to fill the partner while the far side does not read.
const FLOOD_MESSAGES: u64 = 40_000;

/// The creation time of pushed messages.
pub const CREATED: Time = Time(12345);

/// A partner and its far side.
pub trait Harness {
    /// The partner.
    fn partner(&mut self) -> &mut dyn Partner;

    /// The flow in this direction, if the partner has one.
    fn template(&self, direction: Direction) -> Option<FlowTemplate>;

    /// Makes the next message available at the far side. Returns the bytes that a pull must return; `None` if
    /// this partner never produces any.
    fn feed(&mut self) -> Option<Vec<u8>>;

    /// Ends the far side, so that the outgoing flow ends after the messages fed before; `false` if it cannot.
    fn end(&mut self) -> bool;

    /// The body of a message to push, different for every number, of at least 2 bytes.
    fn body(&self, number: u64) -> Vec<u8>;

    /// The part of a pushed body that the far side receives.
    fn seen(&self, body: &[u8]) -> Vec<u8> {
        body.to_vec()
    }

    /// Returns the bytes that the far side has received since the last call; `None` if it cannot tell.
    fn taken(&mut self) -> Option<Vec<u8>>;
}

/// A promise, and its check.
type Check<H> = (&'static str, fn(H));

/// Runs every check on its own fresh harness, with a time limit.
///
/// # Panics
/// If the partner breaks a promise. The name of the check is printed before.
pub fn conforms<H: Harness>(make: impl Fn() -> H + Send + 'static) {
    let (done, finished) = mpsc::channel();
    let run = std::thread::spawn(move || {
        let checks: [Check<H>; 9] = [
            ("unknown flows are refused", unknown_flows),
            ("flows open and close", open_and_close),
            ("the four cases of pull answer alike", four_pulls),
            ("an idle partner is not ready", idle),
            ("pushed messages arrive", pushes_arrive),
            ("a full partner returns messages, and continues", flood),
            ("finishing delivers everything", finish),
            ("an end is for ever", end),
            ("control operations are answered", control),
        ];
        for (name, check) in checks {
            println!("partner conformance: {name}");
            check(make());
        }
        let _ = done.send(());
    });
    match finished.recv_timeout(WATCHDOG) {
        Ok(()) => {}
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("a partner blocks: no end after {WATCHDOG:?}"),
        Err(mpsc::RecvTimeoutError::Disconnected) => match run.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => unreachable!("the run ended without a result"),
        },
    }
}

const UNKNOWN: FlowKey = FlowKey(0x7fff_fff1);

fn open(harness: &mut impl Harness, direction: Direction) -> Option<FlowKey> {
    let template = harness.template(direction)?;
    let key = harness.partner().open(&template, &Attributes::default()).expect("it has this flow");
    assert_ne!(key, FlowKey::DEFAULT, "an open flow has a key of its own");
    Some(key)
}

fn message(body: &[u8]) -> Message {
    let attributes =
        Attributes { priority: 3, key: Some(7), deadline: Some(Time(u64::MAX)), ..Attributes::default() };
    Message { created: CREATED, attributes, body: Body::from(body.to_vec()) }
}

/// Every operation on a closed flow fails, and a push returns its message.
fn refuses(partner: &mut dyn Partner, flow: FlowKey) {
    let sent = message(b"\0kept");
    match partner.push(flow, sent.clone()) {
        Err((PartnerError::NoFlow(named), back)) => assert_eq!((named, back), (flow, sent)),
        other => panic!("a push to a flow that is not open: {other:?}"),
    }
    for request in [Pull::Ask, Pull::Yours, Pull::Mine(&mut [0; 8]), Pull::Vector(&mut Body::new())] {
        let answer = partner.pull(flow, request);
        assert!(matches!(answer, Err(PartnerError::NoFlow(_))), "a pull: {answer:?}");
    }
    let answer = partner.ctl(flow, Ctl::Report);
    assert!(matches!(answer, Err(PartnerError::NoFlow(_))), "a ctl: {answer:?}");
    let answer = partner.close(flow);
    assert!(matches!(answer, Err(PartnerError::NoFlow(_))), "a close: {answer:?}");
    for direction in [Direction::In, Direction::Out] {
        assert!(!partner.readiness(flow, direction).now, "a flow that is not open is never ready");
    }
}

fn unknown_flows<H: Harness>(mut harness: H) {
    refuses(harness.partner(), UNKNOWN);
    open(&mut harness, Direction::Out);
    open(&mut harness, Direction::In);
    refuses(harness.partner(), UNKNOWN);
}

fn open_and_close<H: Harness>(mut harness: H) {
    let keys = [Direction::Out, Direction::In].map(|direction| (direction, open(&mut harness, direction)));
    assert!(keys.iter().any(|(_, key)| key.is_some()), "a partner has at least one flow");
    assert!(keys[0].1.is_none() || keys[0].1 != keys[1].1, "two flows, one key");
    for (direction, key) in keys {
        let Some(key) = key else { continue };
        harness.partner().close(key).expect("an open flow closes");
        refuses(harness.partner(), key);
        let again = open(&mut harness, direction).expect("a closed flow opens again");
        harness.partner().close(again).expect("and closes");
    }
}

/// Waits for the readiness of a partner.
fn wait(readiness: Readiness<'_>) {
    if readiness.now {
        return;
    }
    let mut poller = Poller::new().expect("a poller");
    let mut waits = readiness.at.is_some();
    for (descriptor, interest) in readiness.descriptors.into_iter().flatten() {
        waits = true;
        poller.register(descriptor, interest == Interest::Read, interest == Interest::Write);
    }
    assert!(waits, "a partner with pending work reports that it will never be ready");
    let until_ns = readiness.at.map_or(u64::MAX, |at| at.0);
    let left = Duration::from_nanos(until_ns.saturating_sub(sys::clock::boot_ns()));
    poller.wait(Some(left.min(PATIENCE))).expect("waiting");
}

/// Repeats until there is a result, and waits for readiness in between.
fn until<H: Harness, T>(
    harness: &mut H,
    key: FlowKey,
    direction: Direction,
    mut attempt: impl FnMut(&mut H) -> Option<T>,
) -> T {
    let deadline_ns = sys::clock::boot_ns() + PATIENCE.as_nanos() as u64;
    for alarm in 0..FALSE_ALARMS_MAX {
        if let Some(answer) = attempt(harness) {
            return answer;
        }
        assert!(sys::clock::boot_ns() < deadline_ns, "no progress within {PATIENCE:?}");
        wait(harness.partner().readiness(key, direction));
        // A partner that has room for a message is ready, although another process has yet to take those before it.
        std::thread::sleep(PACE * alarm as u32);
    }
    panic!("the partner was ready {FALSE_ALARMS_MAX} times without any progress");
}

/// Pulls until there is a message.
fn pull<H: Harness>(
    harness: &mut H,
    key: FlowKey,
    mut poll: impl FnMut(&mut dyn Partner) -> Pulled,
) -> Pulled {
    until(harness, key, Direction::Out, |harness| match poll(harness.partner()) {
        Pulled::Nothing => None,
        answer => Some(answer),
    })
}

fn answer(result: PartnerResult<Pulled>) -> Pulled {
    result.expect("a pull of an open flow")
}

fn four_pulls<H: Harness>(mut harness: H) {
    let Some(key) = open(&mut harness, Direction::Out) else { return };
    let Some(first) = harness.feed() else { return };
    for _ in 0..2 {
        let asked = pull(&mut harness, key, |partner| answer(partner.pull(FlowKey::DEFAULT, Pull::Ask)));
        assert!(matches!(asked, Pulled::Available(named) if named == key), "asked: {asked:?}");
    }
    assert!(harness.partner().readiness(key, Direction::Out).now, "ready: a message is held");
    let mut small = vec![0; first.len() - 1];
    let answered = answer(harness.partner().pull(key, Pull::Mine(&mut small)));
    assert!(matches!(answered, Pulled::TooSmall { needed } if needed == first.len()), "{answered:?}");
    let mut memory = vec![0; first.len() + 3];
    match answer(harness.partner().pull(key, Pull::Mine(&mut memory))) {
        Pulled::Filled { flow, length, .. } => {
            assert_eq!((flow, &memory[..length]), (key, &first[..]), "into my memory");
        }
        other => panic!("a message that was held is gone: {other:?}"),
    }

    let second = harness.feed().expect("it fed before");
    match pull(&mut harness, key, |partner| answer(partner.pull(key, Pull::Yours))) {
        Pulled::Message(flow, message) => assert_eq!((flow, message.body), (key, Body::from(second))),
        other => panic!("your memory: {other:?}"),
    }

    let third = harness.feed().expect("it fed before");
    let mut vector = Body::from(b"before".to_vec());
    match pull(&mut harness, key, |partner| answer(partner.pull(key, Pull::Vector(&mut vector)))) {
        Pulled::Filled { flow, length, .. } => assert_eq!((flow, length), (key, third.len())),
        other => panic!("my vector: {other:?}"),
    }
    assert_eq!(vector, Body::from([&b"before"[..], &third].concat()), "appended to my vector");

    let fourth = harness.feed().expect("it fed before");
    match pull(&mut harness, key, |partner| answer(partner.pull(FlowKey::DEFAULT, Pull::Yours))) {
        Pulled::Message(flow, message) => {
            assert_eq!((flow, message.body), (key, Body::from(fourth)), "the answer names the sharper key");
        }
        other => panic!("by the default key: {other:?}"),
    }
}

fn idle<H: Harness>(mut harness: H) {
    let Some(key) = open(&mut harness, Direction::Out) else { return };
    // Settings and the like may come first, whatever the far side does.
    for _ in 0..FALSE_ALARMS_MAX {
        match answer(harness.partner().pull(key, Pull::Yours)) {
            Pulled::Nothing => {
                let now = harness.partner().readiness(key, Direction::Out).now;
                assert!(!now, "an empty partner reports that it is ready");
                return;
            }
            Pulled::End => return,
            _ => {}
        }
    }
}

/// Pushes until the message is accepted, and checks that a returned message is unchanged. The far side reads.
fn push<H: Harness>(harness: &mut H, key: FlowKey, body: &[u8], arrived: &mut Vec<u8>) {
    until(harness, key, Direction::In, |harness| {
        arrived.extend(harness.taken().unwrap_or_default());
        push_once(harness.partner(), key, body).then_some(())
    });
}

fn push_once(partner: &mut dyn Partner, key: FlowKey, body: &[u8]) -> bool {
    let sent = message(body);
    match partner.push(key, sent.clone()) {
        Ok(Pushed::Taken) => true,
        Ok(Pushed::Full(back)) => {
            assert_eq!(back, sent, "a full partner returns the message unchanged");
            false
        }
        Err((error, _)) => panic!("a push of an open flow: {error}"),
    }
}

/// Repeats a control operation while it is pending. The far side reads.
fn settle<H: Harness>(harness: &mut H, key: FlowKey, operation: fn() -> Ctl<'static>, arrived: &mut Vec<u8>) {
    until(harness, key, Direction::In, |harness| {
        arrived.extend(harness.taken().unwrap_or_default());
        match harness.partner().ctl(key, operation()) {
            Ok(CtlReply::Pending) => None,
            Ok(_) | Err(PartnerError::Unsupported(_)) => Some(()),
            Err(error) => panic!("control: {error}"),
        }
    });
}

/// Waits until the far side has received the pushed bytes.
fn expect_arrival<H: Harness>(harness: &mut H, mut arrived: Vec<u8>, expected: &[u8]) {
    let deadline_ns = sys::clock::boot_ns() + PATIENCE.as_nanos() as u64;
    while let Some(more) = harness.taken() {
        arrived.extend(more);
        if arrived.len() >= expected.len() || sys::clock::boot_ns() > deadline_ns {
            assert_eq!(arrived.len(), expected.len(), "bytes at the far side");
            let first = arrived.iter().zip(expected).position(|(got, sent)| got != sent);
            assert_eq!(first, None, "the first byte that arrived wrong");
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn pushes_arrive<H: Harness>(mut harness: H) {
    let Some(key) = open(&mut harness, Direction::In) else { return };
    let (mut arrived, mut expected) = (Vec::new(), Vec::new());
    for number in 0..20 {
        let body = harness.body(number);
        expected.extend(harness.seen(&body));
        push(&mut harness, key, &body, &mut arrived);
    }
    settle(&mut harness, key, || Ctl::Flush, &mut arrived);
    expect_arrival(&mut harness, arrived, &expected);
}

fn flood<H: Harness>(mut harness: H) {
    let Some(key) = open(&mut harness, Direction::In) else { return };
    let (mut arrived, mut expected) = (Vec::new(), Vec::new());
    for number in 0..FLOOD_MESSAGES {
        let body = harness.body(number);
        expected.extend(harness.seen(&body));
        if !push_once(harness.partner(), key, &body) {
            // From here on the far side reads. One message in many is enough to see progress.
            push(&mut harness, key, &body, &mut arrived);
            break;
        }
    }
    settle(&mut harness, key, || Ctl::Flush, &mut arrived);
    expect_arrival(&mut harness, arrived, &expected);
}

fn finish<H: Harness>(mut harness: H) {
    let Some(key) = open(&mut harness, Direction::In) else { return };
    let (mut arrived, mut expected) = (Vec::new(), Vec::new());
    for number in 0..3 {
        let body = harness.body(number);
        expected.extend(harness.seen(&body));
        push(&mut harness, key, &body, &mut arrived);
    }
    settle(&mut harness, key, || Ctl::Finish, &mut arrived);
    expect_arrival(&mut harness, arrived, &expected);
    harness.partner().close(key).expect("a finished flow closes");
}

fn end<H: Harness>(mut harness: H) {
    let Some(key) = open(&mut harness, Direction::Out) else { return };
    let fed = harness.feed();
    if !harness.end() {
        return;
    }
    let mut found = fed.is_none();
    loop {
        match pull(&mut harness, key, |partner| answer(partner.pull(key, Pull::Yours))) {
            Pulled::Message(_, message) => found |= fed.clone().is_some_and(|fed| message.body == fed.into()),
            Pulled::End => break,
            other => panic!("before the end: {other:?}"),
        }
    }
    assert!(found, "messages fed before the end are pulled before it");
    for request in [Pull::Ask, Pull::Yours, Pull::Mine(&mut []), Pull::Vector(&mut Body::new()), Pull::Yours]
    {
        let answered = answer(harness.partner().pull(key, request));
        assert!(matches!(answered, Pulled::End), "after the end: {answered:?}");
    }
}

fn control<H: Harness>(mut harness: H) {
    open(&mut harness, Direction::Out);
    open(&mut harness, Direction::In);
    let partner = harness.partner();
    let unknown = partner.ctl(FlowKey::DEFAULT, Ctl::Command("no such command"));
    let refused = matches!(unknown, Err(PartnerError::Unsupported(_) | PartnerError::Message(_)));
    assert!(refused, "an unknown command: {unknown:?}");
    let report = partner.ctl(FlowKey::DEFAULT, Ctl::Report);
    assert!(matches!(report, Ok(CtlReply::Report(_))), "a report: {report:?}");
    for operation in [Ctl::Neutral, Ctl::Flush] {
        let reply = partner.ctl(FlowKey::DEFAULT, operation);
        let answered = matches!(reply, Ok(_) | Err(PartnerError::Unsupported(_)));
        assert!(answered, "neutral and flush: {reply:?}");
    }
}
