//! Authenticated encryption of the data connections of `tcp` and `udp`: AES-256-GCM (NIST SP 800-38D). Each direction
//! of a connection has its own key; a number used once under the key is the nonce.
//!
//! | on | number | altered, lost, repeated or reordered data |
//! |---|---|---|
//! | a stream | position of the record, not sent | fails to open, and the connection ends |
//! | datagrams | sent in front of the datagram | altered: fails to open; repeated: found by a window (RFC 6479) |
//!
//! Layouts: `docs/reference/protocol.md`.

use buffers::{Recycler, Window};
use bytes::BytesMut;
use contract::{Body, SealKeys, Secret};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, Tag, UnboundKey};
use wire::RecordHeader;

/// Size of an authentication tag.
pub(crate) const TAG_BYTES: usize = 16;
/// Size of a datagram's number.
pub(crate) const NUMBER_BYTES: usize = 8;
/// Bytes that sealing adds to a datagram.
pub(crate) const DATAGRAM_BYTES: usize = NUMBER_BYTES + TAG_BYTES;
/// Size of the replay window: a datagram may arrive this many numbers late.
const WINDOW: usize = 64 << 10;
/// Size of a slab, into which records are sealed one behind the other.
const SLAB_BYTES: usize = 256 << 10;
/// Buffers kept for reuse.
const SLABS_KEPT_MAX: usize = 32;
const KEPT_BYTES_MAX: usize = 32 << 20;

/// Reason why a record or datagram does not open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OpenError {
    /// Altered in transit, or sealed with another key.
    Altered,
    /// A repetition, or too old for the replay window.
    Repeated,
}

fn key(secret: &Secret) -> LessSafeKey {
    LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &secret.0).expect("a key of AES-256 has 32 bytes"))
}

/// The caller uses each number once under a key.
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

/// The sending direction.
#[derive(Debug)]
pub(crate) struct Sealer {
    key: LessSafeKey,
    next: u64,
    /// Slab with room for more records; `None` before the first one.
    slab: Option<BytesMut>,
    slabs: Recycler,
}

impl Sealer {
    fn new(secret: &Secret) -> Self {
        let slabs = Recycler::new(SLABS_KEPT_MAX, KEPT_BYTES_MAX);
        Sealer { key: key(secret), next: 0, slab: None, slabs }
    }

    fn number(&mut self) -> u64 {
        // It cannot overflow: at one message a nanosecond, 2^64 last 584 years.
        let number = self.next;
        self.next += 1;
        number
    }

    /// Returns an empty buffer with room for `bytes` bytes: the rest of the slab, or a new one.
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

    /// Returns the bytes written into `room` and keeps the rest of it for the next record.
    fn split_written(&mut self, mut room: BytesMut, capacity: usize) -> Body {
        let sealed = room.split().freeze();
        if capacity > SLAB_BYTES / 4 {
            self.slabs.retire(room, capacity)
        } else {
            self.slab = Some(room)
        }
        Body::from(sealed)
    }

    /// Seals a record for a stream. Its header is authenticated but not encrypted; the tag follows the body.
    pub(crate) fn record(&mut self, record: &Body) -> Body {
        let bytes = record.len() + TAG_BYTES;
        let mut room = self.room(bytes);
        record.chunks().for_each(|chunk| room.extend_from_slice(chunk));
        let number = nonce(self.number());
        let (header, body) = room.split_at_mut(RecordHeader::BYTES);
        let tag = self.key.seal_in_place_separate_tag(number, Aad::from(&*header), body);
        let tag = tag.expect("a record is far below the cipher's limit");
        room.extend_from_slice(tag.as_ref());
        self.split_written(room, bytes)
    }

    /// Seals a datagram made of `parts` and appends it to `to`.
    pub(crate) fn datagram<'a>(&mut self, parts: impl Iterator<Item = &'a [u8]>, to: &mut Vec<u8>) {
        let number = self.number();
        to.extend_from_slice(&number.to_le_bytes());
        let begin = to.len();
        parts.for_each(|part| to.extend_from_slice(part));
        let tag = self.key.seal_in_place_separate_tag(nonce(number), Aad::empty(), &mut to[begin..]);
        to.extend_from_slice(tag.expect("a datagram is far below the cipher's limit").as_ref());
    }
}

/// The receiving direction.
#[derive(Debug)]
pub(crate) struct Opener {
    key: LessSafeKey,
    /// Number of a stream's next record.
    next: u64,
    /// Numbers of recent datagrams.
    window: Window,
}

impl Opener {
    fn new(secret: &Secret) -> Self {
        Opener { key: key(secret), next: 0, window: Window::new(WINDOW) }
    }

    /// Opens the next record of a stream in place and removes its tag.
    pub(crate) fn record(&mut self, record: &mut BytesMut) -> Result<(), OpenError> {
        let end = record.len().checked_sub(TAG_BYTES).filter(|end| *end >= RecordHeader::BYTES);
        let end = end.ok_or(OpenError::Altered)?;
        let (sealed, tag) = record.split_at_mut(end);
        let (header, body) = sealed.split_at_mut(RecordHeader::BYTES);
        let tag = Tag::try_from(&*tag).map_err(|_| OpenError::Altered)?;
        let opened =
            self.key.open_in_place_separate_tag(nonce(self.next), Aad::from(&*header), tag, body, 0..);
        opened.map_err(|_| OpenError::Altered)?;
        self.next += 1;
        record.truncate(end);
        Ok(())
    }

    /// Opens a datagram in place. Returns the size of its plain text, which starts at [`NUMBER_BYTES`].
    pub(crate) fn datagram(&mut self, datagram: &mut [u8]) -> Result<usize, OpenError> {
        let (number, sealed) = datagram.split_first_chunk_mut::<NUMBER_BYTES>().ok_or(OpenError::Altered)?;
        let number = u64::from_le_bytes(*number);
        // Only authenticated numbers enter the window, so a check before decryption is safe, and cheap.
        if !self.window.is_new(number) {
            return Err(OpenError::Repeated);
        }
        let opened = self.key.open_in_place(nonce(number), Aad::empty(), sealed);
        let bytes = opened.map_err(|_| OpenError::Altered)?.len();
        self.window.insert(number);
        Ok(bytes)
    }
}
