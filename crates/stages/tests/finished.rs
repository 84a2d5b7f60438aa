//! Tests of [`Stage::finished`]: no further message comes of a finished mark, and a half that
//! always holds messages is never far behind.

use contract::{Format, Message, Outbox, Port, Stage, Time};
use testkit::stage::{options, site};

/// A half whose input is marked, with its finished mark and its output.
struct Marked {
    stage: Box<dyn Stage>,
    last: u32,
    finished: u32,
    most_unfinished: u32,
    out: Outbox,
    outputs: Vec<Message>,
    controls: Vec<Vec<u8>>,
}

impl Marked {
    fn new(stage: Box<dyn Stage>) -> Marked {
        // Marks soon wrap to 0.
        let last = u32::MAX - 20;
        let (out, outputs, controls) = Default::default();
        Marked { stage, last, finished: last, most_unfinished: 0, out, outputs, controls }
    }

    fn handle(&mut self, mut message: Message, now: Time) {
        self.last = self.last.wrapping_add(1);
        message.attributes.mark = self.last;
        self.stage.handle(Port::MAIN, message, now, &mut self.out).unwrap();
        self.check();
    }

    fn handle_timeouts(&mut self, now: Time) {
        while self.stage.poll_timeout().is_some_and(|at| at <= now) {
            self.stage.handle_timeout(now, &mut self.out).unwrap();
            self.check();
        }
    }

    fn handle_control(&mut self, controls: &[u8], now: Time) {
        self.stage.handle_control(controls, now, &mut self.out).unwrap();
        self.check();
    }

    /// Checks that no output belongs to a mark that was finished before, and updates the finished
    /// mark.
    fn check(&mut self) {
        for (_, message) in self.out.messages.drain(..) {
            let (mark, finished) = (message.attributes.mark, self.finished);
            assert!(
                finished.wrapping_sub(mark) > u32::MAX / 2,
                "output of mark {mark}, but all up to {finished} were finished"
            );
            self.outputs.push(message);
        }
        self.controls.append(&mut self.out.controls);
        if let Some(finished) = self.stage.finished(self.last) {
            self.finished = finished;
            self.most_unfinished = self.most_unfinished.max(self.last.wrapping_sub(finished));
        }
    }
}

/// Runs both halves of a pair over a link without delay, with a message every 5 ms. Returns the
/// largest number of unfinished marks at each half.
fn unfinished(name: &str, given: &[(&str, &str)]) -> [u32; 2] {
    let pair = *stages::PAIRS.iter().find(|pair| pair.name() == name).unwrap();
    let (options, format) = (options(pair, given), Format::Bytes);
    let mut source = Marked::new(pair.source(&options, &format, &site(1)).unwrap());
    let mut sink = Marked::new(pair.sink(&options, &format, &site(2)).unwrap());
    for step in 1..10_000 {
        let now = Time::from_millis(step);
        if step % 5 == 0 {
            source.handle(Message::new(now, vec![7; 10]), now);
        }
        source.handle_timeouts(now);
        sink.handle_timeouts(now);
        source.outputs.drain(..).for_each(|message| sink.handle(message, now));
        source.controls.drain(..).for_each(|controls| sink.handle_control(&controls, now));
        sink.controls.drain(..).for_each(|controls| source.handle_control(&controls, now));
    }
    assert!(sink.outputs.len() > 1_500, "{name}: {} messages arrived", sink.outputs.len());
    [source.most_unfinished, sink.most_unfinished]
}

#[test]
fn finished_marks_are_correct_and_soon() {
    let at_most = |name, given: &[(&str, &str)], bounds: [u32; 2]| {
        let unfinished = unfinished(name, given);
        assert!(
            unfinished.iter().zip(bounds).all(|(unfinished, bounds)| *unfinished <= bounds),
            "{name}: {unfinished:?}"
        );
    };
    at_most("bundle", &[("count", "4")], [0, 2]);
    at_most("buffer", &[("mode", "play"), ("delay", "40ms")], [0, 9]);
    at_most("buffer", &[("mode", "request")], [10, 10]);
    at_most("delay", &[("delay", "40ms")], [9, 0]);
    at_most("delay", &[("delay", "40ms"), ("jitter", "30ms"), ("reorder", "true")], [15, 0]);
}
