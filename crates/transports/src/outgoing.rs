//! The bounded queue of records on their way into a socket.

use contract::{Body, CtlReply, Message, OptionKind, OptionSpec, Options, PartnerError, Scope};
use std::collections::VecDeque;
use wire::RecordHeader;

/// Records that wait to be sent, oldest first, each with what its transport notes of it.
#[derive(Debug)]
pub(crate) struct Outgoing<Note> {
    pub(crate) records: VecDeque<(Note, Body)>,
    /// Bytes not sent yet.
    pub(crate) bytes: usize,
    limits: Limits,
    /// Bytes of the last record that there was no room for; 0 if there was.
    refused_bytes: usize,
}

/// How much may wait.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Records.
    pub(crate) records_max: usize,
    /// Bytes; one record may wait whatever its size.
    pub(crate) bytes_max: usize,
}

/// The options that every transport has: bounds of a record, and of what waits.
pub(crate) const MAX: OptionSpec = OptionSpec {
    name: "max",
    kind: OptionKind::Size { min: 1, max: wire::BODY_BYTES_MAX as u64 },
    default: "64MiB",
    scope: Scope::Local,
    doc: "largest body of a record, bytes; a peer that announces more is dropped",
};
pub(crate) const OUTBOX: OptionSpec = OptionSpec {
    name: "outbox",
    kind: OptionKind::Integer { min: 1, max: 1 << 20 },
    default: "1024",
    scope: Scope::Local,
    doc: "records that may wait to be sent",
};
pub(crate) const OUTBOX_BYTES: OptionSpec = OptionSpec {
    name: "outbox_bytes",
    kind: OptionKind::Size { min: 1, max: 1 << 30 },
    default: "4MiB",
    scope: Scope::Local,
    doc: "bytes that may wait to be sent; one record may always wait",
};

impl Limits {
    /// As [`OUTBOX`] and [`OUTBOX_BYTES`] have it.
    pub(crate) fn of(options: &Options) -> Limits {
        Limits { records_max: options.count(OUTBOX.name), bytes_max: options.size(OUTBOX_BYTES.name) }
    }
}

impl<Note> Outgoing<Note> {
    pub(crate) fn new(limits: Limits) -> Self {
        Outgoing { records: VecDeque::new(), bytes: 0, limits, refused_bytes: 0 }
    }

    /// Whether `more` bytes do not fit now.
    pub(crate) fn is_full_for(&self, more: usize) -> bool {
        self.records.len() >= self.limits.records_max
            || (!self.records.is_empty() && self.bytes.saturating_add(more) > self.limits.bytes_max)
    }

    /// There was no room for a record of so many bytes.
    pub(crate) fn refuse(&mut self, bytes: usize) {
        self.refused_bytes = bytes;
    }

    /// Whether whoever was refused would not be now; nobody else has to wait.
    pub(crate) fn has_room(&self) -> bool {
        !self.is_full_for(self.refused_bytes.max(1))
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// The answer to a flush: whether the socket took everything.
    pub(crate) fn flushed(&self) -> CtlReply {
        if self.is_empty() { CtlReply::Done } else { CtlReply::Pending }
    }

    /// Appends a record that was checked and fits.
    pub(crate) fn push(&mut self, note: Note, record: Body) {
        self.refused_bytes = 0;
        self.bytes += record.len();
        self.records.push_back((note, record));
    }

    /// `count` bytes at the front were sent: forgets them. Says how many records ended with them.
    pub(crate) fn sent(&mut self, mut count: usize) -> u64 {
        self.bytes -= count;
        let mut ended = 0;
        while let Some((_, front)) = self.records.front_mut() {
            if front.len() > count {
                front.skip_front(count);
                break;
            }
            count -= front.len();
            self.records.pop_front();
            ended += 1;
        }
        ended
    }
}

/// Checks that a message is a record that says its own length, with a body of at most `body_bytes_max`.
pub(crate) fn check_record(message: &Message, body_bytes_max: usize) -> Result<(), PartnerError> {
    let wrong = |problem: String| Err(PartnerError::Message(problem));
    let Some(header) = message.body.peek_front::<{ RecordHeader::BYTES }>() else {
        return wrong(format!("{} bytes hold no record header", message.body.len()));
    };
    match RecordHeader::parse(&header, body_bytes_max) {
        Ok(header) if header.container.length as usize == message.body.len() - RecordHeader::BYTES => Ok(()),
        Ok(header) => wrong(format!(
            "its header says {} bytes, behind it are {}",
            header.container.length,
            message.body.len() - RecordHeader::BYTES
        )),
        Err(error) => wrong(format!("{error} (option `max`)")),
    }
}
