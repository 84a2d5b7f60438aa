//! The half that sends differences.

use super::difference::Runs;
use super::references::{Reference, References};
use crate::varint;
use contract::{Body, Message, Options, Outbox, Port, Report, Stage, StageError, StageResult, Time};
use smallvec::SmallVec;

pub(super) struct Source {
    key_every: u64,
    /// The last body of each length, and the number of differences since the last whole message.
    references: References<(Body, u64)>,
    runs: Runs,
    /// Number of the next message.
    sequence: u64,
    /// Number of the next message when the references were last cleared on request.
    cleared_at: u64,
    keys: u64,
    keys_requested: u64,
    bytes_before: u64,
    bytes_after: u64,
}

impl Source {
    pub(super) fn new(options: &Options) -> Self {
        Source {
            key_every: match options.count("key_every") as u64 {
                0 => u64::MAX,
                count => count,
            },
            references: References::new(options.count("lengths"), options.size("held_bytes")),
            runs: Runs::default(),
            sequence: 0,
            cleared_at: 0,
            keys: 0,
            keys_requested: 0,
            bytes_before: 0,
            bytes_after: 0,
        }
    }

    /// Encodes the difference of `body` from the reference; `None` if the whole body is no larger,
    /// or due.
    fn difference(&mut self, reference: &Reference<(Body, u64)>, body: &Body) -> Option<Vec<u8>> {
        let (base, since_key) = &reference.value;
        if since_key + 1 >= self.key_every || !self.runs.find(base, body, body.len() - body.len() / 8) {
            return None;
        }
        let mut encoded = Vec::new();
        varint::put(&mut encoded, self.sequence);
        varint::put(&mut encoded, self.sequence - reference.sequence);
        self.runs.put(body, &mut encoded);
        (encoded.len() < body.len()).then_some(encoded)
    }
}

impl Stage for Source {
    fn handle(&mut self, port: Port, mut message: Message, _now: Time, out: &mut Outbox) -> StageResult {
        let length = message.body.len();
        let reference = self.references.take_length(length);
        let difference = reference.as_ref().and_then(|reference| self.difference(reference, &message.body));
        let since_key = match (&difference, &reference) {
            (Some(_), Some(reference)) => reference.value.1 + 1,
            _ => 0,
        };
        self.references.put(Reference {
            sequence: self.sequence,
            length,
            value: (message.body.clone(), since_key),
        });
        match difference {
            Some(difference) => message.body = difference.into(),
            None => {
                let mut header = SmallVec::<[u8; 16]>::new();
                varint::put(&mut header, self.sequence);
                varint::put(&mut header, 0);
                message.body.push_front(&header);
                self.keys += 1;
            }
        }
        self.sequence += 1;
        self.bytes_before += length as u64;
        self.bytes_after += message.body.len() as u64;
        out.send(port, message);
        Ok(())
    }

    fn handle_control(&mut self, control: &[u8], _now: Time, _out: &mut Outbox) -> StageResult {
        let malformed = |problem: &str| StageError::Control(problem.into());
        let lost = <[u8; 8]>::try_from(control).map_err(|_| malformed("it is not a sequence number"))?;
        let lost = u64::from_le_bytes(lost);
        if lost >= self.sequence {
            return Err(malformed("it names a message not yet sent"));
        }
        // A loss before the references were cleared is already repaired.
        if lost >= self.cleared_at {
            self.references.clear();
            self.cleared_at = self.sequence;
            self.keys_requested += 1;
        }
        Ok(())
    }

    fn report(&self) -> Vec<Report> {
        vec![
            ("messages", self.sequence as f64),
            ("keys", self.keys as f64),
            ("keys_requested", self.keys_requested as f64),
            ("bytes_saved", self.bytes_before as f64 - self.bytes_after as f64),
            ("ratio", self.bytes_before as f64 / self.bytes_after.max(1) as f64),
        ]
    }
}
