//! The bounded queue of records that wait for the socket.

use contract::{Body, CtlReply, Message, OptionKind, OptionSpec, PartnerError, PartnerResult, local};
use std::collections::VecDeque;
use std::time::Duration;
use wire::{BODY_BYTES_MAX, RecordHeader};

/// Bytes in a queue. An empty queue accepts one record of any size.
pub(crate) const QUEUE_BYTES_MAX: usize = 4 << 20;
/// Capacity of the queue of a paced connection, as time to send it.
const PACED_QUEUE_MAX: Duration = Duration::from_millis(100);

/// Returns the bytes at which the queue of a connection with this pace is full; bytes a second.
pub(crate) fn paced_queue_bytes(pace: f64) -> usize {
    (pace * PACED_QUEUE_MAX.as_secs_f64()) as usize
}

/// Unsent records, oldest first. `Note` is the transport's own data about each record.
#[derive(Debug)]
pub(crate) struct SendQueue<Note> {
    pub(crate) records: VecDeque<(Note, Body)>,
    /// Unsent bytes.
    pub(crate) bytes: usize,
    records_max: usize,
    /// Size of the record that was refused last; 0 once a record was accepted after it.
    refused_bytes: usize,
}

/// An option of every transport.
pub(crate) const OUTBOX: OptionSpec = local(
    "outbox",
    OptionKind::Integer { min: 1, max: 1 << 20 },
    "1024",
    "capacity of the send queue, records",
);

impl<Note> SendQueue<Note> {
    /// Creates a queue of at most `records_max` records and [`QUEUE_BYTES_MAX`] bytes.
    pub(crate) fn new(records_max: usize) -> Self {
        SendQueue { records: VecDeque::new(), bytes: 0, records_max, refused_bytes: 0 }
    }

    /// Returns true if a record of `more` bytes does not fit now.
    pub(crate) fn is_full_for(&self, more: usize) -> bool {
        self.records.len() >= self.records_max
            || (!self.records.is_empty() && self.bytes.saturating_add(more) > QUEUE_BYTES_MAX)
    }

    /// Notes that a record of this size was refused, for [`SendQueue::has_room`].
    pub(crate) fn refuse(&mut self, bytes: usize) {
        self.refused_bytes = bytes;
    }

    /// Returns true if the record that was refused last would fit now, or if none was refused and one byte fits.
    pub(crate) fn has_room(&self) -> bool {
        !self.is_full_for(self.refused_bytes.max(1))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Returns the reply to [`contract::Ctl::Flush`]: `Done` if the queue is empty.
    pub(crate) fn flushed(&self) -> CtlReply {
        if self.is_empty() { CtlReply::Done } else { CtlReply::Pending }
    }

    /// Appends a record. The caller has checked it and its size.
    pub(crate) fn push(&mut self, note: Note, record: Body) {
        self.refused_bytes = 0;
        self.bytes += record.len();
        self.records.push_back((note, record));
    }

    /// Takes the oldest record.
    pub(crate) fn pop(&mut self) -> Option<Body> {
        let (_, record) = self.records.pop_front()?;
        self.bytes -= record.len();
        Some(record)
    }

    /// Removes `count` sent bytes from the front. Returns the number of records that are now sent completely.
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

/// Checks that a message is one record: its header announces the length of its body, and the body is not too large.
pub(crate) fn check_record(message: &Message) -> PartnerResult {
    let wrong = |problem: String| Err(PartnerError::Message(problem));
    let Some(header) = message.body.peek_front::<{ RecordHeader::BYTES }>() else {
        return wrong(format!("{} bytes are too short for a record header", message.body.len()));
    };
    match RecordHeader::parse(&header, BODY_BYTES_MAX) {
        Ok(header) if header.container.length as usize == message.body.len() - RecordHeader::BYTES => Ok(()),
        Ok(header) => wrong(format!(
            "the record header announces {} bytes, but {} follow",
            header.container.length,
            message.body.len() - RecordHeader::BYTES
        )),
        Err(error) => wrong(error.to_string()),
    }
}
