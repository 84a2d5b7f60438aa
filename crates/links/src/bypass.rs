//! The link of a half whose work is left out, to measure the gain of a faster one: virtual offloading with software emulation
//! ("Improving TCP Throughput for Cloud Applications" (2014), 3.4).
//!
//! Both halves learn from messages that the stages handle: the time for one message, and its output. For a message that equals
//! the last of these, the source half waits for the learned time divided by the speedup, then sends that output again; the sink
//! half does the same with its own time and output. A message of the same length passes as it is, since another half before this one
//! may never make the same output twice (`encrypt`). The network carries the same number of bytes as with the work.
//!
//! | source half gets | it sends |
//! |---|---|
//! | a message of another length than the last | [`WORKED`] and the output of its stage |
//! | a message of this length, until [`LEARN`] times are known | the same |
//! | the same message, afterwards | [`LEFT_OUT`] and the same output, after the wait |
//! | another message of this length, afterwards | [`PASSED`], the message and padding, after the wait; if the output is shorter than the message, [`WORKED`] and the output |
//!
//! The wait is a busy loop, as in the paper: a faster implementation still occupies the processor. Both the learned time and the wait
//! are processor time of this thread. Other programs take the processor away from long work often and from a short wait seldom, so
//! with the time of day the predictions would be wrong on a busy machine.

use contract::{
    Body, Choice, Half, Input, Link, Message, Outbox, Port, Readiness, Report, Stage, StageError,
    StageResult, Time,
};
use std::time::Duration;
use sys::clock::thread_cpu_ns;

/// In front of a message that the stage made.
const WORKED: u8 = 0;
/// In front of a message whose work was left out.
const LEFT_OUT: u8 = 1;
/// In front of a message that passes as it is: after this mark, the number of bytes of padding at its end.
const PASSED: u8 = 2;
/// The length of that number.
const PADDING_BYTES: usize = 4;
/// Messages whose times are learned before work is left out. Their median counts: the first ones find cold caches.
const LEARN: usize = 16;

/// A half whose work is left out.
pub struct Bypass {
    stage: Box<dyn Stage>,
    half: Half,
    speedup: f64,
    learned: Learned,
    worked: u64,
    left_out: u64,
}

/// The last message that was handled, its output, and the times of handling it.
#[derive(Default)]
struct Learned {
    input: Body,
    output: Option<Body>,
    times: Vec<Duration>,
}

impl Learned {
    /// Returns the median of the times, once there are as many as this half needs: the source half decides for both.
    fn time(&self, half: Half) -> Option<Duration> {
        let needed = if half == Half::Source { LEARN } else { 1 };
        (self.times.len() >= needed).then(|| self.times[self.times.len() / 2])
    }

    fn add(&mut self, time: Duration) {
        if self.times.len() < LEARN {
            let at = self.times.partition_point(|known| *known < time);
            self.times.insert(at, time);
        }
    }
}

impl Bypass {
    /// Creates a link to this half of a pair.
    pub fn new(stage: Box<dyn Stage>, half: Half, speedup: f64) -> Self {
        Bypass { stage, half, speedup, learned: Learned::default(), worked: 0, left_out: 0 }
    }

    fn message(&mut self, port: Port, message: Message, now: Time, out: &mut Outbox) -> StageResult {
        let begun = thread_cpu_ns();
        match self.half {
            Half::Source => {
                let carried = match message.body == self.learned.input {
                    true => self.leave_out(begun).map(|body| (LEFT_OUT, body)),
                    false => self.pass(begun, &message.body).map(|body| (PASSED, body)),
                };
                if let Some((mark, body)) = carried {
                    out.send(Port::MAIN, marked(mark, Message { body, ..message }));
                    return Ok(());
                }
                if message.body.len() != self.learned.input.len() {
                    self.learned = Learned::default();
                }
                self.learned.input = message.body.clone();
                self.work(port, message, now, out)
            }
            Half::Sink => {
                let mut message = message;
                match message.body.take_front::<1>() {
                    Some([WORKED]) => self.work(port, message, now, out),
                    Some([LEFT_OUT]) => {
                        let body = self.leave_out(begun).ok_or_else(|| {
                            StageError::Input("its work was left out before this half had learned it".into())
                        })?;
                        out.send(Port::MAIN, Message { body, ..message });
                        Ok(())
                    }
                    Some([PASSED]) => {
                        let body = self.take_passed(begun, message.body).ok_or_else(|| {
                            StageError::Input("its padding is longer, or its work was never learned".into())
                        })?;
                        out.send(Port::MAIN, Message { body, ..message });
                        Ok(())
                    }
                    _ => Err(StageError::Input(
                        "a message without the mark of a half whose work is left out".into(),
                    )),
                }
            }
        }
    }

    /// Returns a message of the learned length as it is, padded to the length of its output, after the rest of the time of the
    /// work. `None` until that time is learned, and if the output is shorter.
    fn pass(&mut self, begun: u64, message: &Body) -> Option<Body> {
        let output_bytes = self.learned.output.as_ref()?.len();
        let padding = output_bytes.checked_sub(message.len() + PADDING_BYTES)?;
        if message.len() != self.learned.input.len() {
            return None;
        }
        let mut body = message.clone();
        body.push_front(&u32::try_from(padding).ok()?.to_be_bytes());
        body.push(vec![0; padding].into());
        self.leave_out(begun).map(|_| body)
    }

    /// Returns a passed message without its padding, after the rest of the time of the work.
    fn take_passed(&mut self, begun: u64, mut body: Body) -> Option<Body> {
        let padding = u32::from_be_bytes(body.take_front::<PADDING_BYTES>()?) as usize;
        let message = body.split_off_front(body.len().checked_sub(padding)?)?;
        self.leave_out(begun).map(|_| message)
    }

    /// Waits for the rest of the time of the work, and returns its output. `None` until both are learned.
    fn leave_out(&mut self, begun: u64) -> Option<Body> {
        let time = self.learned.time(self.half)?;
        let output = self.learned.output.clone()?;
        let wait = time.div_f64(self.speedup);
        while !wait.is_zero() && since(begun) < wait {
            std::hint::spin_loop();
        }
        self.left_out += 1;
        Some(output)
    }

    /// Lets the stage work, and learns.
    fn work(&mut self, port: Port, message: Message, now: Time, out: &mut Outbox) -> StageResult {
        let before = out.messages.len();
        let begun = thread_cpu_ns();
        self.stage.handle(port, message, now, out)?;
        self.learned.add(since(begun));
        self.worked += 1;
        if out.messages.len() != before + 1 {
            let made = out.messages.len() - before;
            return Err(StageError::Own(format!(
                "it made {made} messages of one, so its work cannot be left out"
            )));
        }
        if let Some((_, made)) = out.messages.back_mut() {
            self.learned.output = Some(made.body.clone());
            if self.half == Half::Source {
                made.body.push_front(&[WORKED]);
            }
        }
        Ok(())
    }
}

/// Returns the processor time of this thread since an earlier one.
fn since(begun: u64) -> Duration {
    Duration::from_nanos(thread_cpu_ns().saturating_sub(begun))
}

fn marked(mark: u8, mut message: Message) -> Message {
    message.body.push_front(&[mark]);
    message
}

impl Link for Bypass {
    fn hand(&mut self, input: Input<'_>, now: Time, out: &mut Outbox) -> StageResult {
        match input {
            Input::Message(port, message) => self.message(port, message, now, out),
            Input::Control(bytes) => self.stage.handle_control(bytes, now, out),
            Input::End(port) => self.stage.handle_end(port, now, out),
            Input::Gap(port) => self.stage.handle_gap(port, now, out),
            Input::Feedback(feedback) => self.stage.handle_feedback(feedback, now, out),
            Input::Timeout => self.stage.handle_timeout(now, out),
            Input::Fill(port, fill) => self.stage.handle_fill(port, fill, now, out),
        }
    }

    fn collect(&mut self, _now: Time, _out: &mut Outbox) -> StageResult {
        Ok(())
    }

    fn readiness(&self) -> Readiness<'_> {
        Readiness::never()
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.stage.poll_timeout()
    }

    fn has_room(&self) -> bool {
        self.stage.has_room()
    }

    fn report(&self) -> Vec<Report> {
        let time = self.learned.time(self.half).unwrap_or_default();
        vec![
            ("worked", self.worked as f64),
            ("left out", self.left_out as f64),
            ("work us", time.as_secs_f64() * 1e6),
        ]
    }

    fn choices(&self) -> Vec<Choice> {
        self.stage.choices()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reverses each message, slowly.
    struct Reverse;

    impl Stage for Reverse {
        fn handle(&mut self, port: Port, message: Message, _: Time, out: &mut Outbox) -> StageResult {
            let mut bytes = message.body.clone().into_bytes().to_vec();
            bytes.reverse();
            out.send(port, Message { body: Body::from(bytes), ..message });
            Ok(())
        }
    }

    /// Adds and removes a trailer.
    struct Trailer(Half);

    impl Stage for Trailer {
        fn handle(&mut self, port: Port, message: Message, _: Time, out: &mut Outbox) -> StageResult {
            let mut body = message.body.clone();
            match self.0 {
                Half::Source => body.push(vec![9; 16].into()),
                Half::Sink => body = body.split_off_front(body.len() - 16).expect("a trailer"),
            }
            out.send(port, Message { body, ..message });
            Ok(())
        }
    }

    /// Makes two messages of one.
    struct Twice;

    impl Stage for Twice {
        fn handle(&mut self, port: Port, message: Message, _: Time, out: &mut Outbox) -> StageResult {
            out.send(port, message.clone());
            out.send(port, message);
            Ok(())
        }
    }

    fn hand(link: &mut Bypass, message: Message) -> StageResult<Message> {
        let mut out = Outbox::default();
        link.hand(Input::Message(Port::MAIN, message), Time(0), &mut out)?;
        Ok(out.messages.pop_front().expect("one message for one").1)
    }

    fn message(at: u64, bytes: &[u8]) -> Message {
        Message::new(Time(at), Body::from(bytes.to_vec()))
    }

    fn figure(link: &Bypass, name: &str) -> f64 {
        link.report().into_iter().find(|(known, _)| *known == name).expect("a figure").1
    }

    #[test]
    fn the_work_is_left_out_after_it_is_learned_and_messages_stay_the_same() {
        let mut source = Bypass::new(Box::new(Reverse), Half::Source, f64::INFINITY);
        let mut sink = Bypass::new(Box::new(Reverse), Half::Sink, f64::INFINITY);
        for at in 0..200 {
            let given = message(at, b"again");
            let carried = hand(&mut source, given.clone()).unwrap();
            assert_eq!(carried.body.len(), 6);
            assert_eq!(hand(&mut sink, carried).unwrap(), given);
        }
        let left_out = (200 - LEARN) as f64;
        assert_eq!([&source, &sink].map(|link| figure(link, "left out")), [left_out; 2]);
        // Another message is worked on.
        let given = message(200, b"another");
        let carried = hand(&mut source, given.clone()).unwrap();
        assert_eq!(hand(&mut sink, carried).unwrap(), given);
        assert_eq!(figure(&source, "left out"), left_out);
    }

    /// A half before this one never makes the same output twice.
    #[test]
    fn messages_of_one_length_pass_as_they_are_if_the_output_has_room() {
        for (has_room, left_out) in [(true, (200 - LEARN) as f64), (false, 0.0)] {
            let links = [Half::Source, Half::Sink].map(|half| {
                let stage: Box<dyn Stage> =
                    if has_room { Box::new(Trailer(half)) } else { Box::new(Reverse) };
                Bypass::new(stage, half, f64::INFINITY)
            });
            let [mut source, mut sink] = links;
            for at in 0..200 {
                let given = message(at, &[at as u8; 300]);
                let carried = hand(&mut source, given.clone()).unwrap();
                assert_eq!(carried.body.len(), if has_room { 317 } else { 301 });
                assert_eq!(hand(&mut sink, carried).unwrap(), given);
            }
            assert_eq!([&source, &sink].map(|link| figure(link, "left out")), [left_out; 2]);
        }
    }

    #[test]
    fn an_unexpected_message_is_an_error_and_waits_for_nothing() {
        let mut sink = Bypass::new(Box::new(Reverse), Half::Sink, 1.0);
        for bytes in [&[LEFT_OUT, 1][..], &[PASSED, 0, 0, 0, 9, 1], &[PASSED, 0, 0], &[7, 1], &[]] {
            let error = hand(&mut sink, message(0, bytes)).unwrap_err();
            assert!(matches!(error, StageError::Input(_)), "{bytes:?}: {error}");
        }
        let mut source = Bypass::new(Box::new(Twice), Half::Source, 1.0);
        let mut out = Outbox::default();
        let twice = source.hand(Input::Message(Port::MAIN, message(0, b"x")), Time(0), &mut out).unwrap_err();
        assert!(twice.to_string().contains("2 messages"), "{twice}");
    }
}
