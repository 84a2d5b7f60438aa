//! The header in front of every request and answer.

use contract::{Body, StageError, StageResult};

/// Kind of a request or an answer. An answer has the number of its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Header {
    /// A request of the application.
    Request(u64),
    /// A request of the application that was prefetched under this number.
    Confirmed(u64),
    /// A request that may change the answers to others.
    Other(u64),
    /// A prefetched request.
    Prefetch(u64),
    /// The answer to the request of this number.
    Answer(u64),
    /// A message of the device without a request.
    Unsolicited,
    /// An answer after the device left a request unanswered: its request is unknown.
    Unmatched,
}

impl Header {
    /// Puts the header in front of a body.
    pub(super) fn put(self, body: &mut Body) {
        let (kind, number) = match self {
            Header::Request(number) => (0, number),
            Header::Confirmed(number) => (1, number),
            Header::Other(number) => (2, number),
            Header::Prefetch(number) => (3, number),
            Header::Answer(number) => (4, number),
            Header::Unsolicited => (5, 0),
            Header::Unmatched => (6, 0),
        };
        let mut bytes = [kind; 9];
        bytes[1..].copy_from_slice(&u64::to_le_bytes(number));
        body.push_front(&bytes);
    }

    /// Takes the header off a body.
    pub(super) fn take(body: &mut Body) -> StageResult<Header> {
        let short = || StageError::Input("its header is cut short".into());
        let [kind] = body.take_front().ok_or_else(short)?;
        let number = body.take_front().map(u64::from_le_bytes).ok_or_else(short)?;
        Ok(match kind {
            0 => Header::Request(number),
            1 => Header::Confirmed(number),
            2 => Header::Other(number),
            3 => Header::Prefetch(number),
            4 => Header::Answer(number),
            5 => Header::Unsolicited,
            6 => Header::Unmatched,
            kind => return Err(StageError::Input(format!("there is no kind {kind}"))),
        })
    }
}
