//! Both halves in processes of their own, one of which is killed at random moments.

use super::flow::{Tally, equal};
use super::messages;
use super::subject::{Compared, Subject};
use contract::{Body, Format, Half, Message, Time};
use netsim::Rng;
use pipeline::{Chain, ChainOut, Origin, Pipeline};
use runtime::registry;
use rustix::process::{Pid, Signal, kill_process};
use std::time::{Duration, Instant};
use testkit::stage::{TwoHalves, site, steady};
use wire::formats::motion;

/// Longest wait for what must still come.
const PATIENCE: Duration = Duration::from_secs(60);
const MESSAGES: u64 = 300;
const BYTES_MAX: usize = 4096;
const KILLS_MAX: u32 = 6;

fn now() -> Time {
    Time(sys::clock::boot_ns())
}

/// One half, and its process.
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
        let chain = runtime::build_chain(half, &pipeline, &subject.format, &site(half as u64));
        let chain = chain.unwrap_or_else(|error| panic!("it does not start: {error}"));
        Side { chain, out: ChainOut::default(), dropped: 0 }
    }

    /// Hands it a message, or gives it back.
    fn push(&mut self, message: Message) -> Option<Message> {
        if !self.chain.has_room() {
            return Some(message);
        }
        self.chain.handle(message, now(), &mut self.out);
        None
    }

    /// Lets it do what can be done now, and hear what the other half said.
    fn turn(&mut self, heard: Vec<(usize, Vec<u8>)>) {
        let now = now();
        for (pair, body) in heard {
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

/// Kills one of the processes that this thread has started.
fn kill(number: usize) -> bool {
    let text = std::fs::read_to_string("/proc/thread-self/children").unwrap_or_default();
    let pid = text.split_whitespace().nth(number).and_then(|pid| Pid::from_raw(pid.parse().ok()?));
    pid.is_some_and(|pid| kill_process(pid, Signal::KILL).is_ok())
}

/// Whether this subject's halves can live in processes of their own, or why not.
pub(super) fn can_run(subject: &Subject) -> Result<(), String> {
    let options = testkit::stage::options(subject.pair, subject.given);
    subject.pair.isolates(&options)
}

/// What is sent, at its number as its time.
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

/// What the pair makes of the messages where nothing is killed.
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

/// Some hundred messages while a process is killed now and then.
pub(super) fn killed(subject: &Subject, seed: u64) -> Tally {
    let mut rng = Rng::new(seed, 5);
    let sent = messages(subject, &mut rng);
    let (mut source, mut sink) = (Side::new(subject, Half::Source), Side::new(subject, Half::Sink));
    let mut to_source = sent.iter().cloned();
    let (mut waits_at_source, mut waits_at_sink) = (to_source.next(), None);
    let mut received = Vec::new();
    let (mut tries, mut kills) = (0, 0);
    let (mut source_told, mut sink_told, begun) = (false, false, Instant::now());
    while !(sink_told && sink.has_ended()) {
        assert!(begun.elapsed() < PATIENCE, "{} of {MESSAGES} came, {kills} kills", received.len());
        if let Some(message) = waits_at_source.take() {
            waits_at_source = source.push(message).or_else(|| to_source.next());
        } else if !source_told && source.chain.held() == 0 {
            source_told = true;
            source.end();
        }
        source.turn(std::mem::take(&mut sink.out.controls));
        waits_at_sink = waits_at_sink.or_else(|| source.out.messages.pop_front());
        if let Some(message) = waits_at_sink.take() {
            // Only the creation time and the body cross a network.
            waits_at_sink = sink.push(Message::new(message.created, message.body));
        } else if source_told && source.has_ended() && !sink_told && sink.chain.held() == 0 {
            sink_told = true;
            sink.end();
        }
        sink.turn(std::mem::take(&mut source.out.controls));
        received.extend(sink.out.messages.drain(..));
        if rng.up_to(60) == 0 && kills < KILLS_MAX && !sink_told {
            tries += 1;
            kills += u32::from(kill(rng.up_to(1) as usize));
        }
        std::thread::sleep(Duration::from_micros(300));
    }
    // One that is just being started cannot be killed.
    assert!(kills > 0 || tries < 5, "no process was found to kill");
    let dropped = source.dropped + sink.dropped;
    check(subject, &sent, &received, dropped)
        .unwrap_or_else(|problem| panic!("{problem} after {kills} kills"));
    let received = received.len() as u64;
    Tally { sent: MESSAGES, received, dropped, ..Tally::default() }
}

/// Whether what came is what the pair makes of what was sent, but for what it promises.
fn check(subject: &Subject, sent: &[Message], received: &[Message], dropped: u64) -> Result<(), String> {
    let promises = &subject.promises;
    if subject.pair.name() == "average" {
        // What falls into one period is a matter of the clock: what must stay is how much was moved, and for how long.
        let (sent, came) = (motion_of(sent), motion_of(received));
        return (sent == came).then_some(()).ok_or(format!("{sent} µs of motion were sent, {came} came"));
    }
    let expected =
        if promises.may_drop || subject.is_program { sent.to_vec() } else { made_of(subject, sent) };
    let mut from = 0;
    let mut is_left = vec![true; expected.len()];
    for came in received {
        let is_it = |number: &usize| {
            let known = &expected[*number];
            is_left[*number]
                && (known.created == came.created || subject.compared == Compared::Body)
                && equal(&known.body, &came.body)
        };
        let found = (from..expected.len()).find(is_it);
        let number = found.ok_or_else(|| format!("changed, repeated or out of order: {came:?}"))?;
        is_left[number] = false;
        from = if promises.may_reorder { 0 } else { number + 1 };
    }
    let lost = (expected.len() - received.len()) as u64;
    match lost == 0 || promises.may_drop && lost <= dropped {
        true => Ok(()),
        false => Err(format!("{lost} lost, {dropped} counted")),
    }
}

/// How long the motion in these messages lasts, microseconds.
fn motion_of(messages: &[Message]) -> u64 {
    let length = |body: &Body| match motion::Update::parse(&body.clone().into_bytes()) {
        Ok(motion::Update::Motion(motion)) => u64::from(motion.period_us),
        _ => 0,
    };
    messages.iter().map(|message| length(&message.body)).sum()
}
