//! The half that unpacks, and releases at creation spacing.

use super::{COUNT_BYTES, ENTRY_BYTES};
use crate::playout::{Playout, STEP_NS, Window, transit};
use contract::{Message, Offset, Options, Outbox, Port, Report, Stage, StageError, Time};
use std::time::Duration;

pub(super) struct Sink {
    playout: Playout,
    count_max: usize,
    hold: Duration,
    /// Transits of the first messages of the last bundles.
    transits: Window,
    /// The longest time from the first message of a bundle to its last.
    span: i64,
    late: u64,
}

impl Sink {
    pub(super) fn new(options: &Options) -> Self {
        Sink {
            playout: Playout::new(options.count("held_max"), options.size("held_bytes")),
            count_max: options.count("count"),
            hold: options.duration("hold"),
            transits: Window::default(),
            span: 0,
            late: 0,
        }
    }

    /// Moves the shift where this bundle's first message, of this transit, would be late, or all are early.
    fn anchor(&mut self, transit: i64, span: i64, now: Time) {
        let longer = span.saturating_sub(self.span).max(0);
        self.span = self.span.max(span);
        let (cover, grown) = match i64::try_from(self.hold.as_nanos()).unwrap_or(i64::MAX) {
            0 => (self.span, longer),
            hold => (hold, 0),
        };
        let turned = self.transits.add(transit, now);
        let slowest = self.transits.high().unwrap_or(transit);
        let shift = match self.playout.shift() {
            None => transit.saturating_add(cover),
            Some(shift) if transit > shift => {
                self.late += 1;
                transit.saturating_add(grown)
            }
            Some(shift) => {
                let needed = slowest.saturating_add(cover);
                if turned && shift.saturating_sub(needed) > STEP_NS { needed } else { shift }
            }
        };
        self.playout.set_shift(Some(shift));
    }
}

/// Reads a bundle of at most `count_max` messages; a message costs far more memory than its entry.
fn unpack(bundle: Message, count_max: usize) -> Result<Vec<Message>, StageError> {
    let wrong = |problem: &str| StageError::Input(problem.into());
    let Message { created, attributes, mut body } = bundle;
    let count = body.take_front().map(u16::from_le_bytes).ok_or_else(|| wrong("it has no header"))?;
    if usize::from(count) > count_max {
        return Err(wrong(&format!("it has {count} messages, {count_max} were agreed on")));
    }
    let entries =
        body.split_front(ENTRY_BYTES * usize::from(count)).ok_or_else(|| wrong("its header is cut short"))?;
    let mut reader = wire::Reader::new(&entries);
    let mut messages = Vec::with_capacity(usize::from(count));
    let short = |error: wire::WireError| StageError::Input(error.to_string());
    for _ in 0..count {
        let after = reader.u64("bundled creation time").map_err(short)?.cast_signed();
        let length = reader.u32("bundled length").map_err(short)? as usize;
        let body = body.split_off_front(length).ok_or_else(|| wrong("a body is cut short"))?;
        messages.push(Message { created: created.shifted(Offset(after)), attributes, body });
    }
    match body.is_empty() {
        true => Ok(messages),
        false => Err(wrong("bytes are left over")),
    }
}

impl Stage for Sink {
    fn handle(
        &mut self,
        _port: Port,
        message: Message,
        now: Time,
        out: &mut Outbox,
    ) -> Result<(), StageError> {
        self.playout.release(now, out);
        let messages = unpack(message, self.count_max)?;
        if let (Some(first), Some(last)) = (messages.first(), messages.last()) {
            let span = last.created.signed_since(first.created);
            self.anchor(transit(first, now), span, now);
        }
        messages.into_iter().for_each(|message| self.playout.hold(message, now, out));
        Ok(())
    }

    fn handle_end(&mut self, _port: Port, _now: Time, out: &mut Outbox) -> Result<(), StageError> {
        self.playout.flush(out);
        Ok(())
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.playout.next_due()
    }

    fn handle_timeout(&mut self, now: Time, out: &mut Outbox) -> Result<(), StageError> {
        self.playout.release(now, out);
        Ok(())
    }

    fn held(&self) -> usize {
        self.playout.len()
    }

    fn report(&self) -> Vec<Report> {
        self.playout.figures(self.transits.low(), self.late)
    }
}

const _: () = assert!(COUNT_BYTES == size_of::<u16>() && ENTRY_BYTES == size_of::<i64>() + size_of::<u32>());
