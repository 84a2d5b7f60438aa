//! Faults among received bytes, as a terminal with PARMRK marks them (`termios(3)`).
//!
//! | read | meaning |
//! |---|---|
//! | `ff 00 00` | a break |
//! | `ff 00 xx` | the byte `xx` with a wrong parity bit or without a stop bit |
//! | `ff ff` | the byte `ff` |
//!
//! A zero byte with a fault cannot be told from a break.

use super::message::{Fault, SerialMessage};
use contract::{Body, Bytes};
use std::collections::VecDeque;

const MARK: u8 = 0xff;

/// The part of a sequence that was read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Begun {
    #[default]
    Nothing,
    Mark,
    Fault,
}

/// Decodes marked bytes, in pieces of any size.
#[derive(Debug, Default)]
pub(crate) struct MarkDecoder {
    begun: Begun,
}

impl MarkDecoder {
    /// Decodes a piece and appends its messages. Bytes with the same fault in a row become one message.
    pub(crate) fn decode(&mut self, piece: Bytes, into: &mut VecDeque<SerialMessage>) {
        if self.begun == Begun::Nothing && !piece.contains(&MARK) {
            into.push_back(SerialMessage::Data(Body::from(piece)));
            return;
        }
        let (mut bytes, mut kind) = (Vec::with_capacity(piece.len()), None);
        let mut add = |byte: u8, fault: Option<Fault>| {
            if kind != fault && !bytes.is_empty() {
                into.push_back(message(kind, std::mem::take(&mut bytes)));
            }
            kind = fault;
            bytes.push(byte);
        };
        for byte in piece {
            self.begun = match (self.begun, byte) {
                (Begun::Nothing, MARK) => Begun::Mark,
                (Begun::Mark, 0) => Begun::Fault,
                (Begun::Fault, byte) => {
                    add(byte, Some(if byte == 0 { Fault::Break } else { Fault::Corrupt }));
                    Begun::Nothing
                }
                // A mark is followed by 0 or by itself. Anything else is data, as it was read.
                (Begun::Nothing | Begun::Mark, byte) => {
                    add(byte, None);
                    Begun::Nothing
                }
            };
        }
        if !bytes.is_empty() {
            into.push_back(message(kind, bytes));
        }
    }

    /// Returns the bytes of a sequence that is not complete.
    pub(crate) fn held_bytes(&self) -> u64 {
        match self.begun {
            Begun::Nothing => 0,
            Begun::Mark => 1,
            Begun::Fault => 2,
        }
    }
}

fn message(fault: Option<Fault>, bytes: Vec<u8>) -> SerialMessage {
    match fault {
        None => SerialMessage::Data(Body::from(bytes)),
        Some(fault) => SerialMessage::Fault(fault, Body::from(bytes)),
    }
}
