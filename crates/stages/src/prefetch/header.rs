//! What stands in front of every request and answer.

use contract::{Body, StageError};

/// What a request or an answer is, with the number that an answer has in common with its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Header {
    /// The application makes this request.
    Asked(u64),
    /// The application makes this request, which was made ahead by this number.
    AskedAfterAll(u64),
    /// As `Asked`, and it may change what the device answers to others.
    Other(u64),
    /// It is made ahead.
    Ahead(u64),
    /// The answer to a request.
    Answer(u64),
    /// The device says this without being asked.
    Unasked,
    /// The device left a request without an answer: from here on nobody knows which answer this is.
    Unknown,
}

impl Header {
    /// Puts it in front of a body.
    pub(super) fn put(self, body: &mut Body) {
        let (kind, number) = match self {
            Header::Asked(number) => (0, number),
            Header::AskedAfterAll(number) => (1, number),
            Header::Other(number) => (2, number),
            Header::Ahead(number) => (3, number),
            Header::Answer(number) => (4, number),
            Header::Unasked => (5, 0),
            Header::Unknown => (6, 0),
        };
        let mut bytes = [kind; 9];
        bytes[1..].copy_from_slice(&u64::to_le_bytes(number));
        body.push_front(&bytes);
    }

    /// Takes it off.
    pub(super) fn take(body: &mut Body) -> Result<Header, StageError> {
        let short = || StageError::Input("its header is cut short".into());
        let [kind] = body.take_front().ok_or_else(short)?;
        let number = body.take_front().map(u64::from_le_bytes).ok_or_else(short)?;
        Ok(match kind {
            0 => Header::Asked(number),
            1 => Header::AskedAfterAll(number),
            2 => Header::Other(number),
            3 => Header::Ahead(number),
            4 => Header::Answer(number),
            5 => Header::Unasked,
            6 => Header::Unknown,
            kind => return Err(StageError::Input(format!("there is no kind {kind}"))),
        })
    }
}
