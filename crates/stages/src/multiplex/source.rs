//! The half that divides the flow.

use super::header::Header;
use super::{Mode, ways};
use crate::field::Field;
use crate::random::Random;
use contract::{Message, Options, Outbox, Port, Stage, StageResult, Time};

pub(super) struct Source {
    mode: Mode,
    ways: u16,
    key: Field,
    start: Option<u32>,
    sequence: u64,
}

impl Source {
    pub(super) fn new(options: &Options) -> Self {
        Source {
            mode: Mode::of(options),
            ways: ways(options),
            key: Field { at: options.count("at"), width: options.count("width") },
            start: None,
            sequence: 0,
        }
    }

    /// The way of a message's key: a hash, so that a key always has the same way, and keys spread
    /// evenly.
    fn way_of_key(&self, message: &Message) -> u16 {
        let key = message.attributes.key.or_else(|| self.key.read(&message.body));
        key.map_or(0, |key| (Random::new(key).draw() % u64::from(self.ways)) as u16)
    }

    fn split(&self, message: Message, header: Header, out: &mut Outbox) {
        let Message { created, attributes, mut body } = message;
        let bytes = body.len();
        let ways = usize::from(self.ways);
        for way in 0..self.ways {
            // The first parts are a byte longer where the bytes do not divide evenly.
            let part_bytes = bytes / ways + usize::from(usize::from(way) < bytes % ways);
            let body = body.split_off_front(part_bytes).unwrap_or_default();
            send(Message { created, attributes, body }, header, way, out);
        }
    }
}

fn send(mut message: Message, header: Header, way: u16, out: &mut Outbox) {
    Header { way: way as u8, ..header }.put(&mut message.body);
    out.send(Port(way), message);
}

impl Stage for Source {
    fn handle(&mut self, _port: Port, message: Message, now: Time, out: &mut Outbox) -> StageResult {
        let start = *self.start.get_or_insert((now.0 / 1_000_000) as u32);
        let header = Header { start, sequence: self.sequence, way: 0 };
        match self.mode {
            Mode::All => {
                (0..self.ways - 1).for_each(|way| send(message.clone(), header, way, out));
                send(message, header, self.ways - 1, out);
            }
            Mode::RoundRobin => {
                let way = (self.sequence % u64::from(self.ways)) as u16;
                send(message, header, way, out);
            }
            Mode::Key => {
                let way = self.way_of_key(&message);
                send(message, header, way, out);
            }
            Mode::Split => self.split(message, header, out),
        }
        self.sequence += 1;
        Ok(())
    }
}
