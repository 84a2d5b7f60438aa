//! The partner vector (paper P, section 3.1): one message's bytes, in as many pieces as their owners
//! gave, never copied to be joined or to take a header.

use bytes::{Buf, Bytes, BytesMut};
use smallvec::SmallVec;
use std::io::IoSlice;

/// Bytes of headers that a body takes without an allocation.
pub const HEAD_BYTES: usize = 64;

/// A message's bytes: headers in front, then reference-counted pieces, in order.
///
/// Cloning shares the pieces. Equality is by content, wherever the pieces' borders lie.
#[derive(Clone)]
pub struct Body {
    /// Headers grow downward from the end, so that the next one fits in front.
    head: [u8; HEAD_BYTES],
    head_start: u8,
    pieces: SmallVec<[Bytes; 2]>,
    /// Bytes in `pieces`.
    pieces_bytes: usize,
}

impl Default for Body {
    #[inline]
    fn default() -> Self {
        Body { head: [0; HEAD_BYTES], head_start: HEAD_BYTES as u8, pieces: SmallVec::new(), pieces_bytes: 0 }
    }
}

impl Body {
    /// An empty body.
    #[inline]
    pub fn new() -> Self {
        Body::default()
    }

    /// Bytes in all.
    #[inline]
    pub fn len(&self) -> usize {
        self.head().len() + self.pieces_bytes
    }

    /// Whether there is no byte.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends a piece.
    #[inline]
    pub fn push(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.pieces_bytes += piece.len();
            self.pieces.push(piece);
        }
    }

    /// Puts a header in front, without touching what is there.
    #[inline]
    pub fn push_front(&mut self, header: &[u8]) {
        let start = usize::from(self.head_start);
        if let Some(new_start) = start.checked_sub(header.len()) {
            self.head[new_start..start].copy_from_slice(header);
            self.head_start = new_start as u8;
        } else {
            self.spill_head();
            self.pieces_bytes += header.len();
            self.pieces.insert(0, Bytes::copy_from_slice(header));
        }
    }

    /// Takes `length` bytes off the front as one piece; `None` (and nothing taken) if there are fewer.
    /// Copies only where the bytes lie in the head or cross a border between pieces.
    pub fn split_front(&mut self, length: usize) -> Option<Bytes> {
        if length > self.len() {
            return None;
        }
        if self.head().is_empty()
            && let Some(first) = self.pieces.first_mut()
            && first.len() >= length
        {
            self.pieces_bytes -= length;
            let front = first.split_to(length);
            if first.is_empty() {
                self.pieces.remove(0);
            }
            return Some(front);
        }
        let mut front = vec![0; length];
        self.copy_front(&mut front);
        Some(Bytes::from(front))
    }

    /// Takes a header of `N` bytes off the front; `None` (and nothing taken) if there are fewer.
    #[inline]
    pub fn take_front<const N: usize>(&mut self) -> Option<[u8; N]> {
        if N > self.len() {
            return None;
        }
        let mut header = [0; N];
        self.copy_front(&mut header);
        Some(header)
    }

    /// The first `N` bytes, which stay; `None` if there are fewer.
    pub fn peek_front<const N: usize>(&self) -> Option<[u8; N]> {
        let mut front = [0; N];
        let mut filled = 0;
        for chunk in self.chunks() {
            let count = chunk.len().min(N - filled);
            front[filled..filled + count].copy_from_slice(&chunk[..count]);
            filled += count;
            if filled == N {
                break;
            }
        }
        (filled == N).then_some(front)
    }

    /// Drops `length` bytes off the front; `false` (and nothing dropped) if there are fewer.
    pub fn skip_front(&mut self, length: usize) -> bool {
        if length > self.len() {
            return false;
        }
        let from_head = length.min(self.head().len());
        self.head_start += from_head as u8;
        let mut left = length - from_head;
        self.pieces_bytes -= left;
        let whole = self.pieces.iter().take_while(|piece| match left.checked_sub(piece.len()) {
            Some(rest) => {
                left = rest;
                true
            }
            None => false,
        });
        let whole = whole.count();
        self.pieces.drain(..whole);
        if left > 0 {
            self.pieces[0].advance(left);
        }
        true
    }

    /// Moves bytes off the front into `into`, which must not be longer than the body.
    fn copy_front(&mut self, into: &mut [u8]) {
        let from_head = into.len().min(self.head().len());
        into[..from_head].copy_from_slice(&self.head()[..from_head]);
        self.head_start += from_head as u8;
        let mut filled = from_head;
        while filled < into.len() {
            let first = &mut self.pieces[0];
            let count = first.len().min(into.len() - filled);
            into[filled..filled + count].copy_from_slice(&first[..count]);
            filled += count;
            self.pieces_bytes -= count;
            if count == first.len() {
                self.pieces.remove(0);
            } else {
                first.advance(count);
            }
        }
    }

    /// Moves all bytes of `other` behind these, sharing its pieces.
    pub fn append(&mut self, mut other: Body) {
        other.spill_head();
        self.pieces_bytes += other.pieces_bytes;
        self.pieces.append(&mut other.pieces);
    }

    /// Splits the body: the first `length` bytes go, the rest stays; pieces are shared, not copied.
    /// `None` (and nothing taken) if there are fewer.
    pub fn split_off_front(&mut self, length: usize) -> Option<Body> {
        if length > self.len() {
            return None;
        }
        let mut front = Body::new();
        let from_head = length.min(self.head().len());
        if from_head > 0 {
            front.push(Bytes::copy_from_slice(&self.head()[..from_head]));
            self.head_start += from_head as u8;
        }
        while front.len() < length {
            let wanted = length - front.len();
            let first = &mut self.pieces[0];
            let count = first.len().min(wanted);
            front.push(first.split_to(count));
            self.pieces_bytes -= count;
            if first.is_empty() {
                self.pieces.remove(0);
            }
        }
        Some(front)
    }

    /// How many pieces there are, the head included.
    pub fn pieces(&self) -> usize {
        usize::from(!self.head().is_empty()) + self.pieces.len()
    }

    /// The pieces in order, the head first.
    #[inline]
    pub fn chunks(&self) -> impl Iterator<Item = &[u8]> {
        std::iter::once(self.head())
            .chain(self.pieces.iter().map(|piece| &piece[..]))
            .filter(|c| !c.is_empty())
    }

    /// The pieces in order, shared; the head, first, is copied.
    #[inline]
    pub fn shares(&self) -> impl Iterator<Item = Bytes> {
        self.shares_behind(0)
    }

    /// The same of what lies behind the first `skip` bytes.
    pub fn shares_behind(&self, skip: usize) -> impl Iterator<Item = Bytes> {
        let from_head = skip.min(self.head().len());
        let head = &self.head()[from_head..];
        let head = Some(head).filter(|head| !head.is_empty()).map(Bytes::copy_from_slice);
        let mut left = skip - from_head;
        let pieces = self.pieces.iter().map(move |piece| {
            let skipped = left.min(piece.len());
            left -= skipped;
            if skipped == 0 { piece.clone() } else { piece.slice(skipped..) }
        });
        head.into_iter().chain(pieces).filter(|share| !share.is_empty())
    }

    /// The pieces as a list for a gathering system call (`writev`), skipping the first `skip` bytes.
    pub fn io_slices<'a>(&'a self, mut skip: usize, into: &mut SmallVec<[IoSlice<'a>; 8]>) {
        for chunk in self.chunks() {
            let skipped = skip.min(chunk.len());
            skip -= skipped;
            if skipped < chunk.len() {
                into.push(IoSlice::new(&chunk[skipped..]));
            }
        }
    }

    /// All bytes as one piece; copies only if there are several.
    pub fn into_bytes(mut self) -> Bytes {
        if self.head().is_empty() && self.pieces.len() <= 1 {
            return self.pieces.pop().unwrap_or_default();
        }
        let mut joined = Vec::with_capacity(self.len());
        self.chunks().for_each(|chunk| joined.extend_from_slice(chunk));
        Bytes::from(joined)
    }

    /// All bytes as one piece to be written over, with room for `more` behind them where they are copied: in
    /// place if they are one piece that nobody else holds, in fresh memory if not.
    pub fn into_mut(mut self, more: usize) -> BytesMut {
        if self.head().is_empty() && self.pieces.len() == 1 {
            match self.pieces.remove(0).try_into_mut() {
                Ok(piece) => return piece,
                Err(shared) => self.pieces.push(shared),
            }
        }
        let mut joined = BytesMut::with_capacity(self.len() + more);
        self.chunks().for_each(|chunk| joined.extend_from_slice(chunk));
        joined
    }

    /// All bytes in one slice, joining the pieces in place (one copy) if there are several.
    pub fn as_slice(&mut self) -> &[u8] {
        if self.pieces.is_empty() {
            return self.head();
        }
        if !self.head().is_empty() || self.pieces.len() > 1 {
            *self = Body::from(std::mem::take(self).into_bytes());
        }
        self.pieces.first().map_or(&[], |piece| &piece[..])
    }

    /// Copies all bytes to the front of `into`; `false` (and nothing written) if it is too small.
    pub fn copy_to(&self, into: &mut [u8]) -> bool {
        if into.len() < self.len() {
            return false;
        }
        let mut at = 0;
        for chunk in self.chunks() {
            into[at..at + chunk.len()].copy_from_slice(chunk);
            at += chunk.len();
        }
        true
    }

    #[inline]
    fn head(&self) -> &[u8] {
        &self.head[usize::from(self.head_start)..]
    }

    fn spill_head(&mut self) {
        if !self.head().is_empty() {
            let head = Bytes::copy_from_slice(self.head());
            self.pieces_bytes += head.len();
            self.pieces.insert(0, head);
            self.head_start = HEAD_BYTES as u8;
        }
    }
}

impl From<Bytes> for Body {
    fn from(piece: Bytes) -> Self {
        let mut body = Body::new();
        body.push(piece);
        body
    }
}

impl From<Vec<u8>> for Body {
    fn from(piece: Vec<u8>) -> Self {
        Body::from(Bytes::from(piece))
    }
}

impl From<&'static [u8]> for Body {
    fn from(piece: &'static [u8]) -> Self {
        Body::from(Bytes::from_static(piece))
    }
}

impl FromIterator<Bytes> for Body {
    fn from_iter<I: IntoIterator<Item = Bytes>>(pieces: I) -> Self {
        let mut body = Body::new();
        let pieces = pieces.into_iter();
        body.pieces.reserve(pieces.size_hint().0);
        pieces.for_each(|piece| body.push(piece));
        body
    }
}

impl PartialEq for Body {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.chunks().flatten().eq(other.chunks().flatten())
    }
}

impl Eq for Body {}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Body({} bytes, {} pieces)", self.len(), self.pieces.len())
    }
}
