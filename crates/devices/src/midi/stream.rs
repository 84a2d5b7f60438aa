//! Bytes of a MIDI cable into messages: running status is expanded, real-time messages inside of others come before them.

use wire::formats::midi::{MidiMessage, REAL_TIME, SYSEX, SYSEX_BYTES_MAX, SYSEX_END, data_bytes};

/// Bytes of [`Splitter::save`].
pub(super) const SAVED_BYTES: usize = 4;
/// The first status byte that belongs to no channel.
const SYSTEM: u8 = 0xf0;

/// Splits a stream of bytes.
///
/// | state | status byte | data byte | F7 |
/// |---|---|---|---|
/// | `partial` is empty | begins a message | with running status: begins a message of that status; else dropped | dropped |
/// | `partial` is a short message | drops it, begins another | completes it, if it was the last | drops it |
/// | `partial` is a system exclusive message | ends it, as many devices do, begins another | belongs to it | ends it |
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Splitter {
    /// Status of the last message of a channel; 0 if there is none.
    running: u8,
    partial: Vec<u8>,
    /// The system exclusive message is longer than [`SYSEX_BYTES_MAX`]: the rest of it is skipped.
    is_too_long: bool,
    /// Bytes that belong to no message.
    pub(super) stray_bytes: u64,
    /// System exclusive messages that were too long.
    pub(super) too_long: u64,
}

impl Splitter {
    /// Handles a byte. Returns up to two messages: a system exclusive one that a status byte ends, and a message of one byte.
    pub(super) fn push(&mut self, byte: u8) -> [Option<MidiMessage>; 2] {
        match byte {
            REAL_TIME.. => [None, self.complete(vec![byte])],
            SYSEX_END if self.partial.first() == Some(&SYSEX) => [self.end_sysex(), None],
            0x80.. => {
                let ended = match self.partial.first() {
                    Some(&SYSEX) => self.end_sysex(),
                    _ => None,
                };
                [ended, self.begin(byte)]
            }
            _ => [None, self.extend(byte)],
        }
    }

    fn begin(&mut self, status: u8) -> Option<MidiMessage> {
        self.stray_bytes += self.partial.len() as u64;
        self.partial.clear();
        self.running = if status < SYSTEM { status } else { 0 };
        match data_bytes(status) {
            Some(0) => return self.complete(vec![status]),
            None if status != SYSEX => self.stray_bytes += 1,
            _ => self.partial.push(status),
        }
        None
    }

    fn extend(&mut self, byte: u8) -> Option<MidiMessage> {
        match self.partial.first() {
            None if self.running == 0 => {
                self.stray_bytes += 1;
                return None;
            }
            None => self.partial.extend([self.running, byte]),
            // The last place belongs to the end.
            Some(&SYSEX) if self.partial.len() + 1 >= SYSEX_BYTES_MAX => self.is_too_long = true,
            Some(_) => self.partial.push(byte),
        }
        let length = self.partial.first().and_then(|status| data_bytes(*status))?;
        let complete = (self.partial.len() > length).then(|| std::mem::take(&mut self.partial))?;
        self.complete(complete)
    }

    fn end_sysex(&mut self) -> Option<MidiMessage> {
        let mut message = std::mem::take(&mut self.partial);
        if std::mem::take(&mut self.is_too_long) {
            self.too_long += 1;
            return None;
        }
        message.push(SYSEX_END);
        self.complete(message)
    }

    fn complete(&mut self, bytes: Vec<u8>) -> Option<MidiMessage> {
        let message = MidiMessage::parse(&bytes).ok();
        self.stray_bytes += if message.is_none() { bytes.len() as u64 } else { 0 };
        message
    }

    /// Returns the number of bytes of a message that is not complete.
    pub(super) fn partial_bytes(&self) -> usize {
        self.partial.len()
    }

    /// Returns the state for the next worker. It does not hold the bytes of a system exclusive message.
    pub(super) fn save(&self) -> [u8; SAVED_BYTES] {
        let short = Some(self.partial.as_slice()).filter(|partial| partial.len() < SAVED_BYTES - 1);
        let partial = short.filter(|partial| partial.first() != Some(&SYSEX)).unwrap_or_default();
        let mut saved = [self.running, partial.len() as u8, 0, 0];
        saved[2..2 + partial.len()].copy_from_slice(partial);
        saved
    }

    /// Continues the state of a worker that was killed. Anything but a state of [`Splitter::save`] is no state.
    pub(super) fn restore([running, length, partial @ ..]: [u8; SAVED_BYTES]) -> Splitter {
        let mut splitter = Splitter::default();
        let partial = partial.get(..length.into()).unwrap_or_default();
        partial.iter().for_each(|byte| drop(splitter.push(*byte)));
        if (0x80..SYSTEM).contains(&running) {
            splitter.running = running;
        }
        splitter
    }
}
