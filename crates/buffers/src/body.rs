//! The partner vector (The Partner architecture (2002), 3.1): the bytes of one message in one or more pieces.
//! Pieces are never copied to join them or to add a header.

use bytes::{Buf, Bytes, BytesMut};
use smallvec::SmallVec;
use std::io::IoSlice;
use std::ops::Range;

/// The space for headers in a body of several pieces; no header within it needs an allocation.
pub const HEAD_BYTES: usize = 64;

/// The bytes of a message: headers in front, then reference-counted pieces, in order.
///
/// A clone shares the pieces. Equality compares the bytes, not the borders of the pieces.
///
/// Moving a body is the most frequent operation, and most bodies have one piece. So the type is as small as one
/// piece, and anything larger is boxed.
#[derive(Clone)]
pub struct Body(Form);

#[derive(Clone)]
enum Form {
    /// One piece, possibly empty.
    One(Bytes),
    Many(Box<Many>),
}

/// Headers and pieces.
#[derive(Clone)]
struct Many {
    /// Headers grow downward from the end, so that the next one fits in front.
    head: [u8; HEAD_BYTES],
    head_start: u8,
    pieces: SmallVec<[Bytes; 2]>,
    /// The length of all `pieces`.
    pieces_bytes: usize,
}

const _: () = assert!(size_of::<Body>() == size_of::<Bytes>());

impl Default for Body {
    #[inline]
    fn default() -> Self {
        Body(Form::One(Bytes::new()))
    }
}

impl Body {
    /// An empty body.
    #[inline]
    pub fn new() -> Self {
        Body::default()
    }

    /// The length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        match &self.0 {
            Form::One(piece) => piece.len(),
            Form::Many(many) => many.len(),
        }
    }

    /// Returns true if the body has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends a piece.
    #[inline]
    pub fn push(&mut self, piece: Bytes) {
        match &mut self.0 {
            Form::One(first) if first.is_empty() => *first = piece,
            _ if piece.is_empty() => {}
            _ => self.many().push(piece),
        }
    }

    /// Adds a header in front without touching the other bytes.
    #[inline]
    pub fn push_front(&mut self, header: &[u8]) {
        self.many().push_front(header);
    }

    /// Removes `length` bytes from the front and returns them as one piece; `None`, without any change, if
    /// there are fewer. Copies only if the bytes are in the head or cross a border between pieces.
    pub fn split_front(&mut self, length: usize) -> Option<Bytes> {
        if length > self.len() {
            return None;
        }
        match &mut self.0 {
            Form::One(piece) => Some(piece.split_to(length)),
            Form::Many(many) => Some(many.split_front(length)),
        }
    }

    /// Removes a header of `N` bytes from the front; `None`, without any change, if there are fewer.
    #[inline]
    pub fn take_front<const N: usize>(&mut self) -> Option<[u8; N]> {
        let header = self.peek_front()?;
        self.skip_front(N);
        Some(header)
    }

    /// Returns the first `N` bytes without removing them; `None` if there are fewer.
    #[inline]
    pub fn peek_front<const N: usize>(&self) -> Option<[u8; N]> {
        if let Form::One(piece) = &self.0 {
            return piece.first_chunk().copied();
        }
        let mut front = [0; N];
        (self.copy_front(&mut front) == N).then_some(front)
    }

    /// Drops `length` bytes from the front; `false`, without any change, if there are fewer.
    #[inline]
    pub fn skip_front(&mut self, length: usize) -> bool {
        if length > self.len() {
            return false;
        }
        match &mut self.0 {
            // Releases a piece without remaining bytes.
            Form::One(piece) if length == piece.len() => *piece = Bytes::new(),
            Form::One(piece) => piece.advance(length),
            Form::Many(many) => many.skip_front(length),
        }
        true
    }

    /// Copies bytes from the front to `into`, up to its length; returns the number of bytes.
    pub fn copy_front(&self, into: &mut [u8]) -> usize {
        let mut filled = 0;
        for chunk in self.chunks() {
            let count = chunk.len().min(into.len() - filled);
            into[filled..filled + count].copy_from_slice(&chunk[..count]);
            filled += count;
        }
        filled
    }

    /// Appends all bytes of `other`, sharing its pieces.
    pub fn append(&mut self, other: Body) {
        match other.0 {
            _ if self.is_empty() => *self = other,
            Form::One(piece) => self.push(piece),
            Form::Many(many) => self.many().append(*many),
        }
    }

    /// Splits off the first `length` bytes; the rest stays. Pieces are shared, not copied. `None`, without any
    /// change, if there are fewer.
    pub fn split_off_front(&mut self, length: usize) -> Option<Body> {
        if length > self.len() {
            return None;
        }
        match &mut self.0 {
            Form::One(piece) => Some(Body::from(piece.split_to(length))),
            Form::Many(many) => Some(many.split_off_front(length)),
        }
    }

    /// The number of pieces, including the head.
    pub fn pieces(&self) -> usize {
        self.chunks().count()
    }

    /// Iterates over the pieces in order, the head first.
    #[inline]
    pub fn chunks(&self) -> impl Iterator<Item = &[u8]> {
        let (head, pieces) = self.parts();
        std::iter::once(head).chain(pieces.iter().map(|piece| &piece[..])).filter(|c| !c.is_empty())
    }

    /// Iterates over shared pieces in order. The head, which comes first, is copied.
    #[inline]
    pub fn shares(&self) -> impl Iterator<Item = Bytes> {
        self.shares_behind(0)
    }

    /// As [`Body::shares`], without the first `skip` bytes.
    pub fn shares_behind(&self, skip: usize) -> impl Iterator<Item = Bytes> {
        let (head, pieces) = self.parts();
        let from_head = skip.min(head.len());
        let head = &head[from_head..];
        let head = Some(head).filter(|head| !head.is_empty()).map(Bytes::copy_from_slice);
        let mut left = skip - from_head;
        let pieces = pieces.iter().map(move |piece| {
            let skipped = left.min(piece.len());
            left -= skipped;
            if skipped == 0 { piece.clone() } else { piece.slice(skipped..) }
        });
        head.into_iter().chain(pieces).filter(|share| !share.is_empty())
    }

    /// Returns a part of a piece, numbered as in [`Body::chunks`], shared; a part of the head is copied. Panics
    /// if there is no such part.
    #[inline]
    pub fn share(&self, chunk: usize, part: Range<usize>) -> Bytes {
        let (head, pieces) = self.parts();
        match chunk.checked_sub(usize::from(!head.is_empty())) {
            Some(piece) => pieces[piece].slice(part),
            None => Bytes::copy_from_slice(&head[part]),
        }
    }

    /// Lists the pieces for a gathering system call (`writev`), without the first `skip` bytes.
    pub fn io_slices<'a>(&'a self, mut skip: usize, into: &mut SmallVec<[IoSlice<'a>; 8]>) {
        for chunk in self.chunks() {
            let skipped = skip.min(chunk.len());
            skip -= skipped;
            if skipped < chunk.len() {
                into.push(IoSlice::new(&chunk[skipped..]));
            }
        }
    }

    /// Returns all bytes as one piece. Copies only several pieces.
    pub fn into_bytes(self) -> Bytes {
        self.into_one(0).unwrap_or_else(BytesMut::freeze)
    }

    /// Returns all bytes as one writable piece. A single piece without other owners is reused in place.
    /// Otherwise the bytes are copied to fresh memory with room for `more` behind them.
    pub fn into_mut(self, more: usize) -> BytesMut {
        let copy = |piece: Bytes| {
            let mut copied = BytesMut::with_capacity(piece.len() + more);
            copied.extend_from_slice(&piece);
            copied
        };
        self.into_one(more).map_or_else(|joined| joined, |piece| piece.try_into_mut().unwrap_or_else(copy))
    }

    /// Returns the only piece, or several joined with room for `more` behind them.
    fn into_one(self, more: usize) -> Result<Bytes, BytesMut> {
        let join = |body: &Body| {
            let mut joined = BytesMut::with_capacity(body.len() + more);
            body.chunks().for_each(|chunk| joined.extend_from_slice(chunk));
            joined
        };
        match self.0 {
            Form::One(piece) => Ok(piece),
            Form::Many(mut many) if many.head().is_empty() && many.pieces.len() <= 1 => {
                Ok(many.pieces.pop().unwrap_or_default())
            }
            Form::Many(_) => Err(join(&self)),
        }
    }

    /// Returns all bytes as one slice. Joins several pieces in place, with one copy.
    pub fn as_slice(&mut self) -> &[u8] {
        if let Form::Many(_) = &self.0 {
            *self = Body::from(std::mem::take(self).into_bytes());
        }
        self.parts().1.first().map_or(&[], |piece| &piece[..])
    }

    /// Copies all bytes to the front of `into`; `false`, without any change, if it is too small.
    pub fn copy_to(&self, into: &mut [u8]) -> bool {
        let fits = self.len() <= into.len();
        if fits {
            self.copy_front(into);
        }
        fits
    }

    /// The head and the other pieces.
    #[inline]
    fn parts(&self) -> (&[u8], &[Bytes]) {
        match &self.0 {
            Form::One(piece) => (&[], std::slice::from_ref(piece)),
            Form::Many(many) => (many.head(), &many.pieces),
        }
    }

    /// Converts to the form with room for headers and pieces.
    fn many(&mut self) -> &mut Many {
        if let Form::One(piece) = &mut self.0 {
            let mut many = Many::new();
            many.push(std::mem::take(piece));
            self.0 = Form::Many(Box::new(many));
        }
        match &mut self.0 {
            Form::Many(many) => many,
            Form::One(_) => unreachable!("it was made one of many"),
        }
    }
}

impl Many {
    fn new() -> Many {
        Many { head: [0; HEAD_BYTES], head_start: HEAD_BYTES as u8, pieces: SmallVec::new(), pieces_bytes: 0 }
    }

    fn len(&self) -> usize {
        self.head().len() + self.pieces_bytes
    }

    fn head(&self) -> &[u8] {
        &self.head[usize::from(self.head_start)..]
    }

    fn push(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.pieces_bytes += piece.len();
            self.pieces.push(piece);
        }
    }

    fn push_front(&mut self, header: &[u8]) {
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

    /// There are at least `length` bytes.
    fn split_front(&mut self, length: usize) -> Bytes {
        if self.head().is_empty()
            && let Some(first) = self.pieces.first_mut()
            && first.len() >= length
        {
            self.pieces_bytes -= length;
            let front = first.split_to(length);
            if first.is_empty() {
                self.pieces.remove(0);
            }
            return front;
        }
        self.split_off_front(length).into_bytes()
    }

    /// There are at least `length` bytes.
    fn skip_front(&mut self, length: usize) {
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
    }

    fn append(&mut self, mut other: Many) {
        other.spill_head();
        self.pieces_bytes += other.pieces_bytes;
        self.pieces.append(&mut other.pieces);
    }

    /// There are at least `length` bytes.
    fn split_off_front(&mut self, length: usize) -> Body {
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
        front
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
    #[inline]
    fn from(piece: Bytes) -> Self {
        Body(Form::One(piece))
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
        pieces.into_iter().for_each(|piece| body.push(piece));
        body
    }
}

impl PartialEq for Body {
    fn eq(&self, other: &Self) -> bool {
        if self.len() != other.len() {
            return false;
        }
        let (mut theirs, mut there) = (other.chunks(), &[][..]);
        for mut here in self.chunks() {
            while !here.is_empty() {
                if there.is_empty() {
                    there = theirs.next().unwrap_or_default();
                    continue;
                }
                let both = here.len().min(there.len());
                // Shared memory equals itself.
                if here.as_ptr() != there.as_ptr() && here[..both] != there[..both] {
                    return false;
                }
                (here, there) = (&here[both..], &there[both..]);
            }
        }
        true
    }
}

impl Eq for Body {}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Body({} bytes, {} pieces)", self.len(), self.parts().1.len())
    }
}
