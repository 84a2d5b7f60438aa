//! The worker's end of a terminal, for the tests of both ways to make one.

use super::terminal::Terminal;
use crate::serial::{OutputLines, Outputs, SerialMessage};
use contract::{
    Attributes, Ctl, CtlReply, Direction, FlowClass, FlowKey, FlowTemplate, Format, Message, Partner, Pull,
    Pulled, Pushed, Time,
};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use testkit::partner::{Harness, conforms};

const PATIENCE: Duration = Duration::from_secs(60);

/// The descriptor of a worker, and the partner that it makes of it.
pub(super) struct TestWorker {
    descriptor: OwnedFd,
    partner: Box<dyn Partner>,
}

impl TestWorker {
    /// The first worker of a terminal that no program has opened yet.
    pub(super) fn new(descriptor: OwnedFd) -> TestWorker {
        let mut worker = TestWorker { partner: partner(&descriptor), descriptor };
        let off = Outputs { lines: OutputLines::default(), since_us: Outputs::UNRELATED };
        assert_eq!(worker.pull(), SerialMessage::Outputs(off), "the lines are off at first");
        worker
    }

    /// Replaces the worker by the next one, as after its death.
    pub(super) fn restart(&mut self) {
        self.partner = partner(&self.descriptor);
    }

    fn open(&mut self, direction: Direction) -> FlowKey {
        self.partner.open(&template(direction), &Attributes::default()).unwrap()
    }

    /// Closes the flow from the terminal.
    pub(super) fn close(&mut self) {
        self.partner.close(crate::flows::OUT).unwrap();
    }

    pub(super) fn pull(&mut self) -> SerialMessage {
        let (key, start) = (self.open(Direction::Out), Instant::now());
        loop {
            match self.partner.pull(key, Pull::Yours).unwrap() {
                Pulled::Message(_, message) => return SerialMessage::parse(&message.body).unwrap(),
                _ => std::thread::sleep(Duration::from_millis(1)),
            }
            assert!(start.elapsed() < PATIENCE, "no message arrives");
        }
    }

    /// Pulls a change of the lines.
    pub(super) fn pull_outputs(&mut self) -> Outputs {
        match self.pull() {
            SerialMessage::Outputs(outputs) => outputs,
            other => panic!("no lines: {other:?}"),
        }
    }

    pub(super) fn push(&mut self, message: SerialMessage) {
        let key = self.open(Direction::In);
        let pushed = self.partner.push(key, Message::new(Time(1), message.emit())).unwrap();
        assert!(matches!(pushed, Pushed::Taken));
    }

    pub(super) fn ctl(&mut self, ctl: Ctl<'_>) -> CtlReply {
        self.partner.ctl(FlowKey::DEFAULT, ctl).unwrap()
    }

    /// Waits until the worker notices that the kernel removed the terminal.
    pub(super) fn await_removal(mut self) {
        let (key, start) = (self.open(Direction::Out), Instant::now());
        while self.partner.pull(key, Pull::Ask).is_ok() {
            assert!(start.elapsed() < PATIENCE, "the terminal is not gone");
        }
    }
}

fn partner(descriptor: &OwnedFd) -> Box<dyn Partner> {
    Box::new(Terminal::new("terminal".into(), descriptor.try_clone().unwrap()))
}

fn template(direction: Direction) -> FlowTemplate {
    FlowTemplate { direction, format: Format::Serial, class: FlowClass::Reliable }
}

/// The kernel's end of a terminal, which a program has open and raw.
pub(super) trait KernelEnd: 'static {
    fn worker(&mut self) -> &mut TestWorker;

    /// The program writes.
    fn write_text(&mut self, text: &[u8]);

    /// Returns what the program can read, until nothing more comes.
    fn read_all(&mut self) -> Vec<u8>;
}

/// A terminal in the suite of all partners, with the number of its last line.
struct Conforming<K>(K, u32);

/// Runs the suite of all partners.
pub(super) fn terminal_conforms<K: KernelEnd>(make: fn() -> K) {
    conforms(move || Conforming(make(), 0));
}

impl<K: KernelEnd> Harness for Conforming<K> {
    fn partner(&mut self) -> &mut dyn Partner {
        self.0.worker().partner.as_mut()
    }

    fn template(&self, direction: Direction) -> Option<FlowTemplate> {
        Some(template(direction))
    }

    fn feed(&mut self) -> Option<Vec<u8>> {
        self.1 += 1;
        let text = format!("line {}", self.1);
        self.0.write_text(text.as_bytes());
        Some([&[0], text.as_bytes()].concat())
    }

    fn end(&mut self) -> bool {
        false
    }

    fn body(&self, number: u64) -> Vec<u8> {
        format!("\0{number:0200}").into_bytes()
    }

    fn seen(&self, body: &[u8]) -> Vec<u8> {
        body[1..].to_vec()
    }

    fn taken(&mut self) -> Option<Vec<u8>> {
        Some(self.0.read_all())
    }
}
