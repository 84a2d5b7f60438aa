//! Input of a pair's half from a malicious peer: messages and control messages that the other half never makes,
//! or changed ones, in any order, to either half. The input starts with a line of text, a pipeline as a peer
//! writes it, of which the first pair is used; then a byte for the flow's format; then steps.
#![no_main]

use contract::{Format, Message, Outbox, Port, Secret, Site, Stage, Time};
use libfuzzer_sys::fuzz_target;
use pipeline::{Origin, Pipeline};
use stages::PAIRS;
use std::time::Duration;

const FORMATS: [Format; 8] = [
    Format::Bytes,
    Format::Evdev,
    Format::Motion,
    Format::Serial,
    Format::Video,
    Format::Viewer,
    Format::Controls,
    Format::Audio,
];
/// The most timeouts at one moment; a half that needs more counts as stuck.
const TIMERS_MAX: usize = 20_000;

fuzz_target!(|bytes: &[u8]| {
    let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else { return };
    let (text, mut steps) = (String::from_utf8_lossy(&bytes[..end]), &bytes[end + 1..]);
    let Ok(pipeline) = Pipeline::parse(&text, PAIRS, Origin::Peer) else { return };
    let (Some(used), Some((format, rest))) = (pipeline.pairs().first(), steps.split_first()) else { return };
    let format = &FORMATS[usize::from(*format) % FORMATS.len()];
    if used.pair.accept(format, &used.options).is_err() {
        return;
    }
    steps = rest;
    let site = || Site { key: Some(Secret([7; 32])), seed: [3; 32], ..Site::default() };
    let (Ok(source), Ok(sink)) =
        (used.pair.source(&used.options, format, &site()), used.pair.sink(&used.options, format, &site()))
    else {
        return;
    };
    let mut halves = Halves { source, sink, now: Time::from_millis(1000) };
    while let Some(step) = Step::parse(&mut steps) {
        halves.take(step);
    }
    halves.take(Step::End);
});

enum Step<'a> {
    /// To the undoing half, unchanged.
    Made(Port, &'a [u8]),
    /// To the transforming half. Its messages go on to the other half, each with at most one byte changed.
    Honest(&'a [u8], Option<(u8, u8)>),
    ControlToSink(&'a [u8]),
    ControlToSource(&'a [u8]),
    /// A checkpoint of another process.
    Restore(&'a [u8]),
    Pause(u8),
    Gap,
    End,
}

impl<'a> Step<'a> {
    fn parse(steps: &mut &'a [u8]) -> Option<Step<'a>> {
        let byte = |steps: &mut &[u8]| {
            let (first, rest) = steps.split_first()?;
            *steps = rest;
            Some(*first)
        };
        let kind = byte(steps)?;
        if kind % 8 >= 5 {
            return Some(match kind % 8 {
                5 => Step::Pause(byte(steps)?),
                6 => Step::Gap,
                _ => Step::End,
            });
        }
        let length = usize::from(byte(steps)?).min(steps.len());
        let (body, rest) = steps.split_at(length);
        *steps = rest;
        Some(match kind % 8 {
            0 => Step::Made(Port(u16::from(kind / 128)), body),
            1 => Step::Honest(body, (kind > 127).then(|| Some((byte(steps)?, byte(steps)?))).flatten()),
            2 => Step::ControlToSink(body),
            3 => Step::ControlToSource(body),
            _ => Step::Restore(body),
        })
    }
}

struct Halves {
    source: Box<dyn Stage>,
    sink: Box<dyn Stage>,
    now: Time,
}

impl Halves {
    fn take(&mut self, step: Step<'_>) {
        let (now, mut out) = (self.now, Outbox::default());
        // Every refusal has a text.
        let result = match step {
            Step::Made(port, body) => self.sink.handle(port, Message::new(now, body.to_vec()), now, &mut out),
            Step::Honest(body, change) => {
                let mut made = Outbox::default();
                let result = self.source.handle(Port::MAIN, Message::new(now, body.to_vec()), now, &mut made);
                self.pass(made, change, &mut out);
                result
            }
            Step::ControlToSink(control) => self.sink.handle_control(control, now, &mut out),
            Step::ControlToSource(control) => self.source.handle_control(control, now, &mut out),
            Step::Restore(from) => self.sink.restore(from.to_vec().into()),
            Step::Pause(ms) => {
                self.now = now.after(Duration::from_millis(ms.into()));
                self.run_timers(&mut out);
                Ok(())
            }
            Step::Gap => self.sink.handle_gap(Port::MAIN, now, &mut out),
            Step::End => self.sink.handle_end(Port::MAIN, now, &mut out),
        };
        if let Err(error) = result {
            assert!(!error.to_string().is_empty());
        }
        let bytes: usize = out.messages.iter().map(|(_, message)| message.body.len()).max().unwrap_or(0);
        assert!(bytes <= wire::BODY_BYTES_MAX, "a body of {bytes} bytes");
    }

    fn pass(&mut self, made: Outbox, change: Option<(u8, u8)>, out: &mut Outbox) {
        for (port, message) in made.messages {
            let mut bytes = message.body.into_bytes().to_vec();
            if let (Some((at, by)), length @ 1..) = (change, bytes.len()) {
                bytes[usize::from(at) % length] ^= by;
            }
            let _ = self.sink.handle(port, Message::new(message.created, bytes), self.now, out);
        }
        for control in made.controls {
            let _ = self.sink.handle_control(&control, self.now, out);
        }
    }

    fn run_timers(&mut self, out: &mut Outbox) {
        let mut made = Outbox::default();
        for (half, out) in [(&mut self.source, &mut made), (&mut self.sink, &mut *out)] {
            let mut left = TIMERS_MAX;
            while half.poll_timeout().is_some_and(|at| at <= self.now) {
                let _ = half.handle_timeout(self.now, out);
                left = left.checked_sub(1).expect("its timers run out without end");
            }
        }
        self.pass(made, None, out);
    }
}
