//! Sealing of what crosses a data connection: AES-256-GCM (NIST SP 800-38D). A connection has a key of its own in
//! each direction, and everything sealed under it a number of its own, which is the nonce.
//!
//! On a stream, records are numbered by their place: one that is altered, left out, repeated or moved opens as
//! nothing, and the connection ends. In datagrams the number travels, and a window tells repeats (RFC 6479).
//! Layouts: `docs/protocol.md`.

use buffers::{Recycler, Window};
use bytes::BytesMut;
use contract::{Body, SealKeys, Secret};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, Tag, UnboundKey};
use wire::RecordHeader;

/// Bytes of a tag.
pub(crate) const TAG_BYTES: usize = 16;
/// Bytes of a datagram's number.
pub(crate) const NUMBER_BYTES: usize = 8;
/// What sealing adds to a datagram.
pub(crate) const DATAGRAM_BYTES: usize = NUMBER_BYTES + TAG_BYTES;
/// Datagrams that one may come late by and still be told from a repeat.
const WINDOW: usize = 64 << 10;
/// Records are sealed into memory of this size, one behind the other.
const SLAB_BYTES: usize = 256 << 10;
/// Memory that is remembered for another use.
const SLABS_KEPT_MAX: usize = 32;
const KEPT_BYTES_MAX: usize = 32 << 20;

/// What a sealed thing that does not open is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotOpened {
    /// Altered on the way, or sealed by somebody else.
    Altered,
    /// It came before, or so late that it may have.
    Repeated,
}

fn key(secret: &Secret) -> LessSafeKey {
    LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &secret.0).expect("a key of AES-256 has 32 bytes"))
}

/// Each number serves once under a key.
fn nonce(number: u64) -> Nonce {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&number.to_le_bytes());
    Nonce::assume_unique_for_key(nonce)
}

/// Both directions of one connection.
#[derive(Debug)]
pub(crate) struct Seal {
    pub(crate) sealer: Sealer,
    pub(crate) opener: Opener,
}

impl Seal {
    pub(crate) fn new(keys: &SealKeys) -> Self {
        Seal { sealer: Sealer::new(&keys.sending), opener: Opener::new(&keys.receiving) }
    }
}

/// Seals what is sent.
#[derive(Debug)]
pub(crate) struct Sealer {
    key: LessSafeKey,
    next: u64,
    /// Once a record was sealed.
    slab: Option<BytesMut>,
    slabs: Recycler,
}

impl Sealer {
    fn new(secret: &Secret) -> Self {
        let slabs = Recycler::new(SLABS_KEPT_MAX, KEPT_BYTES_MAX);
        Sealer { key: key(secret), next: 0, slab: None, slabs }
    }

    fn number(&mut self) -> u64 {
        // 2^64 messages are not to be had: at one a nanosecond they last 584 years.
        let number = self.next;
        self.next += 1;
        number
    }

    /// Empty memory for `bytes` bytes, behind what was sealed before.
    fn room(&mut self, bytes: usize) -> BytesMut {
        if bytes > SLAB_BYTES / 4 {
            return self.slabs.take(bytes);
        }
        if let Some(mut slab) = self.slab.take() {
            if slab.capacity() >= bytes || slab.try_reclaim(SLAB_BYTES) {
                return slab;
            }
            self.slabs.retire(slab, SLAB_BYTES);
        }
        self.slabs.take(SLAB_BYTES)
    }

    /// What was written into `room`; the rest of it serves again.
    fn written(&mut self, mut room: BytesMut, capacity: usize) -> Body {
        let sealed = room.split().freeze();
        match capacity > SLAB_BYTES / 4 {
            true => self.slabs.retire(room, capacity),
            false => self.slab = Some(room),
        }
        Body::from(sealed)
    }

    /// Seals a record for a stream: its header stays readable and is authenticated, its tag stands behind it.
    pub(crate) fn record(&mut self, record: &Body) -> Body {
        let bytes = record.len() + TAG_BYTES;
        let mut room = self.room(bytes);
        record.chunks().for_each(|chunk| room.extend_from_slice(chunk));
        let number = nonce(self.number());
        let (header, body) = room.split_at_mut(RecordHeader::BYTES);
        let tag = self.key.seal_in_place_separate_tag(number, Aad::from(&*header), body);
        let tag = tag.expect("a record is far below the cipher's limit");
        room.extend_from_slice(tag.as_ref());
        self.written(room, bytes)
    }

    /// Seals a datagram, of which `parts` are the pieces, behind what stands in `to`.
    pub(crate) fn datagram<'a>(&mut self, parts: impl Iterator<Item = &'a [u8]>, to: &mut Vec<u8>) {
        let number = self.number();
        to.extend_from_slice(&number.to_le_bytes());
        let begin = to.len();
        parts.for_each(|part| to.extend_from_slice(part));
        let tag = self.key.seal_in_place_separate_tag(nonce(number), Aad::empty(), &mut to[begin..]);
        to.extend_from_slice(tag.expect("a datagram is far below the cipher's limit").as_ref());
    }
}

/// Opens what is received.
#[derive(Debug)]
pub(crate) struct Opener {
    key: LessSafeKey,
    /// The next record of a stream.
    next: u64,
    window: Window,
}

impl Opener {
    fn new(secret: &Secret) -> Self {
        Opener { key: key(secret), next: 0, window: Window::new(WINDOW) }
    }

    /// Opens the next record of a stream in place, and takes its tag off.
    pub(crate) fn record(&mut self, record: &mut BytesMut) -> Result<(), NotOpened> {
        let end = record.len().checked_sub(TAG_BYTES).filter(|end| *end >= RecordHeader::BYTES);
        let end = end.ok_or(NotOpened::Altered)?;
        let (sealed, tag) = record.split_at_mut(end);
        let (header, body) = sealed.split_at_mut(RecordHeader::BYTES);
        let tag = Tag::try_from(&*tag).map_err(|_| NotOpened::Altered)?;
        let opened =
            self.key.open_in_place_separate_tag(nonce(self.next), Aad::from(&*header), tag, body, 0..);
        opened.map_err(|_| NotOpened::Altered)?;
        self.next += 1;
        record.truncate(end);
        Ok(())
    }

    /// Opens a datagram in place: what is left of it stands from [`NUMBER_BYTES`] on, so many bytes.
    pub(crate) fn datagram(&mut self, datagram: &mut [u8]) -> Result<usize, NotOpened> {
        let (number, sealed) = datagram.split_first_chunk_mut::<NUMBER_BYTES>().ok_or(NotOpened::Altered)?;
        let number = u64::from_le_bytes(*number);
        // It costs nothing to tell a repeat before it is opened, and tells a stranger nothing.
        if !self.window.is_new(number) {
            return Err(NotOpened::Repeated);
        }
        let opened = self.key.open_in_place(nonce(number), Aad::empty(), sealed);
        let bytes = opened.map_err(|_| NotOpened::Altered)?.len();
        self.window.insert(number);
        Ok(bytes)
    }
}
