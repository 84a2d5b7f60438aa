//! The half that puts bodies together again. Where the memory of the last one is free, it is changed in place.

use super::difference::Patch;
use super::references::{Reference, References};
use crate::checkpoint::{Checkpoint, Remembered};
use crate::varint;
use bytes::{Bytes, BytesMut};
use contract::{Body, Message, Options, Outbox, Port, Report, Stage, StageError, Time};
use std::time::Duration;

/// What a message is counted as that tells of changes to one that never came.
pub(super) const LOST: &str = "what it changes was lost";
/// How often the source half is asked for a whole body. More often would not be wrong: it knows what was
/// mended on the way.
const ASK_EVERY: Duration = Duration::from_millis(50);

pub(super) struct Sink {
    references: References<Body>,
    /// The body before the last one, whose memory may be free by now.
    spare: Bytes,
    /// The newest message that could be put together.
    newest: Option<u64>,
    asked: Option<Time>,
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
            asked: None,
            messages: 0,
            lost: 0,
            in_place: 0,
        }
    }

    /// Memory that holds `body` and nobody else reads.
    fn own(&mut self, body: Body) -> BytesMut {
        match body.into_bytes().try_into_mut() {
            Ok(own) => {
                self.in_place += 1;
                own
            }
            Err(shared) => {
                let mut own = std::mem::take(&mut self.spare).try_into_mut().unwrap_or_default();
                own.clear();
                own.extend_from_slice(&shared);
                self.spare = shared;
                own
            }
        }
    }

    fn miss(&mut self, sequence: u64, now: Time, out: &mut Outbox) {
        self.lost += 1;
        out.drop_counted(LOST, 1);
        // What comes later than its successors was given up; they go on without it.
        let is_ahead = self.newest.is_none_or(|newest| sequence > newest);
        if is_ahead && self.asked.is_none_or(|asked| now >= asked.after(ASK_EVERY)) {
            self.asked = Some(now);
            out.control(sequence.to_le_bytes().to_vec());
        }
    }
}

impl Stage for Sink {
    fn handle(
        &mut self,
        port: Port,
        mut message: Message,
        now: Time,
        out: &mut Outbox,
    ) -> Result<(), StageError> {
        let wrong = |problem: &str| StageError::Input(problem.into());
        let mut number = || varint::take(&mut message.body).ok_or_else(|| wrong("its header is cut short"));
        let (sequence, back) = (number()?, number()?);
        let before = sequence.checked_sub(back).ok_or_else(|| wrong("it changes what was never sent"))?;
        if back > 0 {
            let Some(reference) = self.references.take_sequence(before) else {
                self.miss(sequence, now, out);
                return Ok(());
            };
            let patch = match Patch::parse(message.body.as_slice(), reference.length) {
                Ok(patch) => patch,
                Err(problem) => {
                    self.references.put(reference);
                    return Err(wrong(problem));
                }
            };
            let mut body = self.own(reference.held);
            patch.apply(&mut body);
            message.body = body.freeze().into();
        }
        self.messages += 1;
        self.newest = self.newest.max(Some(sequence));
        let length = message.body.len();
        self.references.put(Reference { sequence, length, held: message.body.clone() });
        out.send(port, message);
        Ok(())
    }

    fn checkpoint(&self) -> Option<Body> {
        let mut checkpoint = Checkpoint::default();
        checkpoint.put([self.newest.map_or(0, |newest| newest.saturating_add(1))]);
        for Reference { sequence, held, .. } in self.references.iter() {
            checkpoint.put([*sequence]);
            checkpoint.put_body(held);
        }
        Some(checkpoint.finish())
    }

    fn restore(&mut self, checkpoint: Body) -> Result<(), StageError> {
        let mut remembered = Remembered(checkpoint);
        self.newest = remembered.number()?.checked_sub(1);
        while !remembered.is_empty() {
            let (sequence, held) = (remembered.number()?, remembered.body()?);
            self.references.put(Reference { sequence, length: held.len(), held });
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
