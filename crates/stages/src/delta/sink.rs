//! The half that restores bodies. It changes the memory of the last body in place if nothing else
//! uses it.

use super::difference::Patch;
use super::references::{Reference, References};
use crate::checkpoint::{CheckpointReader, CheckpointWriter};
use crate::varint;
use bytes::{Bytes, BytesMut};
use contract::{Body, Message, Options, Outbox, Port, Report, Stage, StageError, StageResult, Time};
use std::time::Duration;

/// Drop reason: the message that this one changes did not arrive.
pub(super) const LOST: &str = "its reference was lost";
/// Shortest interval between requests for a whole message. More requests would do no harm: the
/// source ignores those it has already served.
const REQUEST_INTERVAL: Duration = Duration::from_millis(50);

pub(super) struct Sink {
    references: References<Body>,
    /// The body before the last one: its memory may be free by now.
    spare: Bytes,
    /// Number of the newest restored message.
    newest: Option<u64>,
    last_request: Option<Time>,
    messages: u64,
    lost: u64,
    in_place: u64,
}

impl Sink {
    pub(super) fn new(options: &Options) -> Self {
        Sink {
            references: References::new(options.count("lengths"), options.size("held_bytes")),
            spare: Bytes::new(),
            newest: None,
            last_request: None,
            messages: 0,
            lost: 0,
            in_place: 0,
        }
    }

    /// Returns `body` in memory that nothing else uses.
    fn writable(&mut self, body: Body) -> BytesMut {
        match body.into_bytes().try_into_mut() {
            Ok(writable) => {
                self.in_place += 1;
                writable
            }
            Err(shared) => {
                let mut writable = std::mem::take(&mut self.spare).try_into_mut().unwrap_or_default();
                writable.clear();
                writable.extend_from_slice(&shared);
                self.spare = shared;
                writable
            }
        }
    }

    fn drop_incomplete(&mut self, sequence: u64, now: Time, out: &mut Outbox) {
        self.lost += 1;
        out.drop_counted(LOST, 1);
        // A message behind a restored one needs no request: its successors did without it.
        let is_ahead = self.newest.is_none_or(|newest| sequence > newest);
        if is_ahead
            && self.last_request.is_none_or(|last_request| now >= last_request.after(REQUEST_INTERVAL))
        {
            self.last_request = Some(now);
            out.control(sequence.to_le_bytes().to_vec());
        }
    }
}

impl Stage for Sink {
    fn handle(&mut self, port: Port, mut message: Message, now: Time, out: &mut Outbox) -> StageResult {
        let malformed = |problem: &str| StageError::Input(problem.into());
        let mut number =
            || varint::take(&mut message.body).ok_or_else(|| malformed("its header is cut short"));
        let (sequence, back) = (number()?, number()?);
        let base =
            sequence.checked_sub(back).ok_or_else(|| malformed("it changes a message before the first"))?;
        if back > 0 {
            let Some(reference) = self.references.take_sequence(base) else {
                self.drop_incomplete(sequence, now, out);
                return Ok(());
            };
            let patch = match Patch::parse(message.body.as_slice(), reference.length) {
                Ok(patch) => patch,
                Err(problem) => {
                    self.references.put(reference);
                    return Err(malformed(problem));
                }
            };
            let mut body = self.writable(reference.value);
            patch.apply(&mut body);
            message.body = body.freeze().into();
        }
        self.messages += 1;
        self.newest = self.newest.max(Some(sequence));
        let length = message.body.len();
        self.references.put(Reference { sequence, length, value: message.body.clone() });
        out.send(port, message);
        Ok(())
    }

    fn checkpoint(&self) -> Option<Body> {
        let mut checkpoint = CheckpointWriter::default();
        checkpoint.put([self.newest.map_or(0, |newest| newest.saturating_add(1))]);
        for Reference { sequence, value, .. } in self.references.iter() {
            checkpoint.put([*sequence]);
            checkpoint.put_body(value);
        }
        Some(checkpoint.finish())
    }

    fn restore(&mut self, checkpoint: Body) -> StageResult {
        let mut reader = CheckpointReader(checkpoint);
        self.newest = reader.number()?.checked_sub(1);
        while !reader.is_empty() {
            let (sequence, value) = (reader.number()?, reader.body()?);
            self.references.put(Reference { sequence, length: value.len(), value });
        }
        Ok(())
    }

    fn report(&self) -> Vec<Report> {
        vec![
            ("messages", self.messages as f64),
            ("lost", self.lost as f64),
            ("in_place", self.in_place as f64),
        ]
    }
}
