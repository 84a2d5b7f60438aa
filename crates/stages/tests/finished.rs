//! What a half says that it has finished ([`Stage::finished`]): nothing more comes of that, and it is not long behind
//! although it always holds something.

use contract::{Format, Message, Outbox, Port, Stage, Time};
use testkit::stage::{options, site};

/// A half whose messages are marked, and what it says of them.
struct Marked {
    stage: Box<dyn Stage>,
    last: u32,
    finished: u32,
    longest_behind: u32,
    out: Outbox,
    made: Vec<Message>,
    said: Vec<Vec<u8>>,
}

impl Marked {
    fn new(stage: Box<dyn Stage>) -> Marked {
        // Marks begin again at 0 soon.
        let last = u32::MAX - 20;
        let (out, made, said) = Default::default();
        Marked { stage, last, finished: last, longest_behind: 0, out, made, said }
    }

    fn handle(&mut self, mut message: Message, now: Time) {
        self.last = self.last.wrapping_add(1);
        message.attributes.mark = self.last;
        self.stage.handle(Port::MAIN, message, now, &mut self.out).unwrap();
        self.check();
    }

    fn wake(&mut self, now: Time) {
        while self.stage.poll_timeout().is_some_and(|at| at <= now) {
            self.stage.handle_timeout(now, &mut self.out).unwrap();
            self.check();
        }
    }

    fn hear(&mut self, said: &[u8], now: Time) {
        self.stage.handle_control(said, now, &mut self.out).unwrap();
        self.check();
    }

    /// What came of a call is of nothing that was finished before.
    fn check(&mut self) {
        for (_, message) in self.out.messages.drain(..) {
            let (mark, finished) = (message.attributes.mark, self.finished);
            assert!(
                finished.wrapping_sub(mark) > u32::MAX / 2,
                "{mark} comes, and all to {finished} was finished"
            );
            self.made.push(message);
        }
        self.said.append(&mut self.out.controls);
        if let Some(finished) = self.stage.finished(self.last) {
            self.finished = finished;
            self.longest_behind = self.longest_behind.max(self.last.wrapping_sub(finished));
        }
    }
}

/// Both halves of a pair, a message every 5 ms, at a link that takes no time; how far each was behind at most.
fn behind(name: &str, given: &[(&str, &str)]) -> [u32; 2] {
    let pair = *stages::PAIRS.iter().find(|pair| pair.name() == name).unwrap();
    let (options, format) = (options(pair, given), Format::Bytes);
    let mut source = Marked::new(pair.source(&options, &format, &site(1)).unwrap());
    let mut sink = Marked::new(pair.sink(&options, &format, &site(2)).unwrap());
    for step in 1..10_000 {
        let now = Time::from_millis(step);
        if step % 5 == 0 {
            source.handle(Message::new(now, vec![7; 10]), now);
        }
        source.wake(now);
        sink.wake(now);
        source.made.drain(..).for_each(|message| sink.handle(message, now));
        source.said.drain(..).for_each(|said| sink.hear(&said, now));
        sink.said.drain(..).for_each(|said| source.hear(&said, now));
    }
    assert!(sink.made.len() > 1_500, "{name}: {} messages came", sink.made.len());
    [source.longest_behind, sink.longest_behind]
}

#[test]
fn what_is_said_to_be_finished_is_and_soon() {
    let at_most = |name, given: &[(&str, &str)], most: [u32; 2]| {
        let behind = behind(name, given);
        assert!(behind.iter().zip(most).all(|(behind, most)| *behind <= most), "{name}: {behind:?}");
    };
    at_most("bundle", &[("count", "4")], [0, 2]);
    at_most("buffer", &[("mode", "play"), ("delay", "40ms")], [0, 9]);
    at_most("buffer", &[("mode", "request")], [10, 10]);
    at_most("delay", &[("delay", "40ms")], [9, 0]);
    at_most("delay", &[("delay", "40ms"), ("jitter", "30ms"), ("reorder", "true")], [15, 0]);
}
