//! Both halves in separate processes. One of them is killed at random times.

use super::flow::{Tally, equal};
use super::messages;
use super::subject::{Compared, Subject};
use contract::{Body, Format, Half, Message, Time};
use modules::registry;
use netsim::Rng;
use pipeline::{Chain, ChainOut, Origin, Pipeline};
use rustix::process::{Pid, Signal, kill_process};
use std::time::{Duration, Instant};
use testkit::stage::{TwoHalves, site, steady};
use wire::formats::motion;

/// The longest wait for the last messages.
const PATIENCE: Duration = Duration::from_secs(60);
const MESSAGES: u64 = 300;
const BYTES_MAX: usize = 4096;
const KILLS_MAX: u32 = 6;

fn now() -> Time {
    Time(sys::clock::boot_ns())
}

/// One half with its process.
struct Side {
    chain: Chain,
    out: ChainOut,
    dropped: u64,
}

impl Side {
    fn new(subject: &Subject, half: Half) -> Side {
        let mut given: Vec<String> =
            subject.given.iter().map(|(name, value)| format!("{name}={value}")).collect();
        if !subject.is_program {
            given.extend(["isolate=true", "sandbox=possible"].map(String::from));
        }
        let text = format!("{}({})", subject.pair.name(), given.join(", "));
        let pipeline = Pipeline::parse(&text, registry::pairs(), Origin::Local)
            .unwrap_or_else(|e| panic!("{text}: {e}"));
        let chain = flow::build_chain(half, &pipeline, &subject.format, &site(half as u64));
        let chain = chain.unwrap_or_else(|error| panic!("it does not start: {error}"));
        Side { chain, out: ChainOut::default(), dropped: 0 }
    }

    /// Passes a message to the half, or returns it if the half is full.
    fn push(&mut self, message: Message) -> Option<Message> {
        if !self.chain.has_room() {
            return Some(message);
        }
        self.chain.handle(message, now(), &mut self.out);
        None
    }

    /// Passes the other half's control messages to this half and collects its output.
    fn turn(&mut self, controls: Vec<(usize, Vec<u8>)>) {
        let now = now();
        for (pair, body) in controls {
            self.chain.handle_control(pair, &body, now, &mut self.out);
        }
        self.chain.collect(now, &mut self.out);
        if self.chain.poll_timeout().is_some_and(|at| at <= now) {
            self.chain.handle_timeout(now, &mut self.out);
        }
        self.dropped += self.out.drops.drain(..).map(|drop| drop.count).sum::<u64>();
    }

    fn end(&mut self) {
        self.chain.handle_end(now(), &mut self.out);
    }

    fn has_ended(&self) -> bool {
        !self.chain.is_ending() && self.out.messages.is_empty()
    }
}

/// Kills a child process of this thread.
fn kill(number: usize) -> bool {
    let text = std::fs::read_to_string("/proc/thread-self/children").unwrap_or_default();
    let pid = text.split_whitespace().nth(number).and_then(|pid| Pid::from_raw(pid.parse().ok()?));
    pid.is_some_and(|pid| kill_process(pid, Signal::KILL).is_ok())
}

/// Returns the reason if the subject's halves cannot run in processes of their own.
pub(super) fn can_run(subject: &Subject) -> Result<(), String> {
    let options = testkit::stage::options(subject.pair, subject.given);
    subject.pair.isolates(&options)
}

/// Draws the messages to send. The creation time is the number.
fn messages(subject: &Subject, rng: &mut Rng) -> Vec<Message> {
    let body = |rng: &mut Rng| {
        let mut body = messages::body(rng, &subject.format);
        if subject.format == Format::Bytes && body.len() > BYTES_MAX {
            body = body.split_off_front(BYTES_MAX).unwrap_or_default();
        }
        body
    };
    (1..=MESSAGES).map(|number| Message::new(Time(number), body(rng))).collect()
}

/// Returns the pair's output without kills.
fn made_of(subject: &Subject, sent: &[Message]) -> Vec<Message> {
    let link = steady(Duration::from_millis(1));
    let mut run = TwoHalves::new(subject.pair, subject.given, &subject.format, link, 1);
    for message in sent {
        run.push(message.clone());
    }
    run.run_until(run.now.after(PATIENCE));
    run.end();
    run.received.into_iter().map(|(_, message)| message).collect()
}

/// Sends messages while processes are killed.
pub(super) fn killed(subject: &Subject, seed: u64) -> Tally {
    let mut rng = Rng::new(seed, 5);
    let sent = messages(subject, &mut rng);
    let (mut source, mut sink) = (Side::new(subject, Half::Source), Side::new(subject, Half::Sink));
    let mut to_source = sent.iter().cloned();
    let (mut waits_at_source, mut waits_at_sink) = (to_source.next(), None);
    let mut received = Vec::new();
    let (mut tries, mut kills) = (0, 0);
    let (mut source_ended, mut sink_ended, begun) = (false, false, Instant::now());
    while !(sink_ended && sink.has_ended()) {
        assert!(begun.elapsed() < PATIENCE, "{} of {MESSAGES} arrived, {kills} kills", received.len());
        if let Some(message) = waits_at_source.take() {
            waits_at_source = source.push(message).or_else(|| to_source.next());
        } else if !source_ended && source.chain.held() == 0 {
            source_ended = true;
            source.end();
        }
        source.turn(std::mem::take(&mut sink.out.controls));
        waits_at_sink = waits_at_sink.or_else(|| source.out.messages.pop_front());
        if let Some(message) = waits_at_sink.take() {
            // Only the creation time and the body cross a network.
            waits_at_sink = sink.push(Message::new(message.created, message.body));
        } else if source_ended && source.has_ended() && !sink_ended && sink.chain.held() == 0 {
            sink_ended = true;
            sink.end();
        }
        sink.turn(std::mem::take(&mut source.out.controls));
        received.extend(sink.out.messages.drain(..));
        if rng.up_to(60) == 0 && kills < KILLS_MAX && !sink_ended {
            tries += 1;
            kills += u32::from(kill(rng.up_to(1) as usize));
        }
        std::thread::sleep(Duration::from_micros(300));
    }
    // A starting process cannot be killed.
    assert!(kills > 0 || tries < 5, "no process was found to kill");
    let dropped = source.dropped + sink.dropped;
    check(subject, &sent, &received, dropped)
        .unwrap_or_else(|problem| panic!("{problem} after {kills} kills"));
    let received = received.len() as u64;
    Tally { sent: MESSAGES, received, dropped, ..Tally::default() }
}

/// Checks that the received messages are the pair's output, up to its promises.
fn check(subject: &Subject, sent: &[Message], received: &[Message], dropped: u64) -> Result<(), String> {
    let promises = &subject.promises;
    if subject.pair.name() == "average" {
        // Periods depend on the clock. The total motion must stay.
        let (sent, arrived) = (motion_of(sent), motion_of(received));
        return (sent == arrived)
            .then_some(())
            .ok_or(format!("{sent} µs of motion were sent, {arrived} arrived"));
    }
    let expected =
        if promises.may_drop || subject.is_program { sent.to_vec() } else { made_of(subject, sent) };
    let mut from = 0;
    let mut is_left = vec![true; expected.len()];
    for arrived in received {
        let is_it = |number: &usize| {
            let known = &expected[*number];
            is_left[*number]
                && (known.created == arrived.created || subject.compared == Compared::Body)
                && equal(&known.body, &arrived.body)
        };
        let found = (from..expected.len()).find(is_it);
        let number = found.ok_or_else(|| format!("changed, repeated or out of order: {arrived:?}"))?;
        is_left[number] = false;
        from = if promises.may_reorder { 0 } else { number + 1 };
    }
    let lost = (expected.len() - received.len()) as u64;
    match lost == 0 || promises.may_drop && lost <= dropped {
        true => Ok(()),
        false => Err(format!("{lost} lost, {dropped} counted")),
    }
}

/// Returns the duration of the motion in messages in microseconds.
fn motion_of(messages: &[Message]) -> u64 {
    let length = |body: &Body| match motion::Update::parse(&body.clone().into_bytes()) {
        Ok(motion::Update::Motion(motion)) => u64::from(motion.period_us),
        _ => 0,
    };
    messages.iter().map(|message| length(&message.body)).sum()
}
