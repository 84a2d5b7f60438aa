//! The messages that a program carries, each the body of a container (`docs/reference/transport-exec.md`).
//!
//! | first byte | content |
//! |---|---|
//! | [`Kind::Introduction`] | an introduction |
//! | [`Kind::Sealed`] | a sealed datagram: its number, the encrypted content, a tag |
//! | [`Kind::Bare`] | content, without encryption |
//!
//! Content of one byte is a [`Signal`]; any other is a part of a record, behind the header of a [`Fragment`].

use crate::seal::{DATAGRAM_BYTES, Sealer};
use crate::udp::fragment::{Fragment, ID_BYTES, RecordId};
use contract::Body;
use wire::{Container, RecordHeader};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Introduction = 0,
    Sealed = 1,
    Bare = 2,
}

/// Content without a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Signal {
    /// Answer, so that this host knows that the connection works.
    Probe = 0,
    Answer = 1,
    /// No more records follow.
    End = 2,
}

impl Signal {
    pub(super) fn parse(byte: u8) -> Option<Signal> {
        [Signal::Probe, Signal::Answer, Signal::End].into_iter().find(|signal| *signal as u8 == byte)
    }
}

/// Returns a container with a message of this kind.
pub(super) fn container(kind: Kind, content: &[u8]) -> Vec<u8> {
    let mut container = Container { length: 1 + content.len() as u32, created: 0 }.emit().to_vec();
    container.push(kind as u8);
    container.extend_from_slice(content);
    container
}

/// The body of a container, and the bytes after it.
type Split<'a> = (&'a [u8], &'a [u8]);

/// Splits off the body of the container at the front; `None`: it is not complete. Refuses a body over `bytes_max`.
pub(super) fn split(bytes: &[u8], bytes_max: usize) -> Result<Option<Split<'_>>, String> {
    let Some((header, rest)) = bytes.split_first_chunk::<{ Container::BYTES }>() else { return Ok(None) };
    let container = Container::parse(header, bytes_max).map_err(|error| error.to_string())?;
    Ok(rest.split_at_checked(container.length as usize))
}

/// Appends a container with this content, sealed if there is a sealer.
pub(super) fn append<'a>(
    content: impl Iterator<Item = &'a [u8]> + Clone,
    sealer: Option<&mut Sealer>,
    to: &mut Vec<u8>,
) {
    let content_bytes: usize = content.clone().map(<[u8]>::len).sum();
    let (kind, more) = match sealer {
        Some(_) => (Kind::Sealed, DATAGRAM_BYTES),
        None => (Kind::Bare, 0),
    };
    let length = (1 + more + content_bytes) as u32;
    to.reserve(Container::BYTES + length as usize);
    to.extend_from_slice(&Container { length, created: 0 }.emit());
    to.push(kind as u8);
    match sealer {
        Some(sealer) => sealer.datagram(content, to),
        None => content.for_each(|part| to.extend_from_slice(part)),
    }
}

/// A record on its way into messages of a limited size.
#[derive(Debug)]
pub(super) struct Splitter {
    next: Fragment,
    rest: Body,
    part_bytes_max: usize,
}

impl Splitter {
    /// Splits a checked record into messages of at most `message_bytes_max` bytes.
    pub(super) fn new(mut record: Body, message_bytes_max: usize, is_sealed: bool) -> Splitter {
        let seal_bytes = if is_sealed { DATAGRAM_BYTES } else { 0 };
        let part_bytes_max = message_bytes_max - 1 - seal_bytes - Fragment::BYTES;
        const { assert!(ID_BYTES < RecordHeader::BYTES) };
        let id = record.take_front().expect("a checked record is longer than its identity");
        let count = record.len().div_ceil(part_bytes_max) as u16;
        Splitter { next: Fragment { id, index: 0, count, number: 0 }, rest: record, part_bytes_max }
    }

    /// Returns the identity of the record.
    pub(super) fn id(&self) -> RecordId {
        self.next.id
    }

    /// Appends the container of the next part. Returns false if there is none left.
    pub(super) fn append_next(&mut self, number: u32, sealer: Option<&mut Sealer>, to: &mut Vec<u8>) -> bool {
        let bytes = self.rest.len().min(self.part_bytes_max);
        if bytes == 0 {
            return false;
        }
        let part = self.rest.split_off_front(bytes).expect("it is that long");
        let header = Fragment { number, ..self.next }.emit();
        append(std::iter::once(&header[..]).chain(part.chunks()).collect::<Vec<_>>().into_iter(), sealer, to);
        self.next.index += 1;
        true
    }
}
