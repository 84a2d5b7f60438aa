//! Parses bytes from a module's descriptors into containers, frames and lines. All buffers are bounded.

use super::ledger::ProtocolError;
use bytes::Bytes;
use contract::{Message, Time};
use rustix::buffer::spare_capacity;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use wire::module::{MODULE_HEADER_BYTES, ModuleHeader};
use wire::{BODY_BYTES_MAX, Container, ModuleFrame, WireError, Word};

/// Most bytes per read.
const READ_BYTES: usize = 64 << 10;
/// A larger body is read directly into memory of its own.
const SMALL_BYTES_MAX: usize = 16 << 10;
/// Longest line; the rest is cut off.
const LINE_BYTES_MAX: usize = 200;

/// Bytes read, and how many of them were consumed.
#[derive(Default)]
struct Buffer {
    bytes: Vec<u8>,
    used: usize,
}

impl Buffer {
    /// Reads once, at most [`READ_BYTES`].
    fn fill(&mut self, descriptor: impl AsFd) -> io::Result<usize> {
        self.bytes.drain(..self.used);
        self.used = 0;
        self.bytes.reserve_exact(READ_BYTES);
        read(descriptor, &mut self.bytes)
    }

    fn unused(&self) -> &[u8] {
        &self.bytes[self.used..]
    }
}

/// Reads once, into the spare capacity.
fn read(descriptor: impl AsFd, into: &mut Vec<u8>) -> io::Result<usize> {
    loop {
        match rustix::io::read(&descriptor, spare_capacity(into)) {
            Err(rustix::io::Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
}

/// A body that is being read into memory of its own.
struct Large {
    created: Time,
    body: Vec<u8>,
    length: usize,
}

/// An item in a stream of containers.
pub(super) enum Part {
    Message(Message),
    /// Only in a chain.
    Word(Word),
}

/// Parses a stream of containers, with words if it is a chain's.
#[derive(Default)]
pub(super) struct Containers {
    has_words: bool,
    buffer: Buffer,
    large: Option<Large>,
}

impl Containers {
    /// With `has_words`, for a chain.
    pub(super) fn new(has_words: bool) -> Containers {
        Containers { has_words, ..Containers::default() }
    }

    /// Reads once. Returns the number of bytes (0 is the end), and whether there may be more.
    pub(super) fn fill(&mut self, descriptor: &OwnedFd) -> io::Result<(usize, bool)> {
        match self.large.as_mut().filter(|large| large.body.len() < large.length) {
            Some(large) => {
                let room = large.body.capacity() - large.body.len();
                read(descriptor, &mut large.body).map(|count| (count, count == room))
            }
            None => self.buffer.fill(descriptor).map(|count| (count, count >= READ_BYTES)),
        }
    }

    /// Returns the next complete item.
    pub(super) fn next(&mut self) -> Result<Option<Part>, ProtocolError> {
        if let Some(large) = &mut self.large {
            if large.body.len() < large.length {
                return Ok(None);
            }
            // The allocation may have had room for more than the body.
            self.buffer.bytes.extend(large.body.drain(large.length..));
            let whole = self.large.take();
            return Ok(whole.map(|large| Part::Message(Message::new(large.created, large.body))));
        }
        let unused = self.buffer.unused();
        let Some((header, rest)) = unused.split_first_chunk::<{ Container::BYTES }>() else {
            return Ok(None);
        };
        if self.has_words
            && let Some(word) = Word::parse(header)
        {
            self.buffer.used += Word::BYTES;
            return Ok(Some(Part::Word(word)));
        }
        let header = Container::parse(header, BODY_BYTES_MAX).map_err(|error| {
            ProtocolError(format!("its output is not a container: {}", reason(header, &error)))
        })?;
        let (length, created) = (header.length as usize, Time(header.created));
        if let Some(body) = rest.get(..length) {
            let body = Bytes::copy_from_slice(body);
            self.buffer.used += Container::BYTES + length;
            return Ok(Some(Part::Message(Message::new(created, body))));
        }
        if length > SMALL_BYTES_MAX {
            let mut body = Vec::with_capacity(length);
            body.extend_from_slice(rest);
            self.buffer.used = self.buffer.bytes.len();
            self.large = Some(Large { created, body, length });
        }
        Ok(None)
    }
}

/// Returns the reason why the bytes are no container; a module that prints text is told where text goes.
fn reason(header: &[u8], error: &WireError) -> String {
    let is_text = |byte: &u8| byte.is_ascii_graphic() || byte.is_ascii_whitespace();
    match header.iter().all(is_text) {
        true => format!(
            "it begins with the text {:?}; standard output carries messages: print to standard error",
            String::from_utf8_lossy(header)
        ),
        false => error.to_string(),
    }
}

/// Parses a stream of frames.
#[derive(Default)]
pub(super) struct Frames {
    buffer: Buffer,
}

impl Frames {
    /// Reads once; 0 is the end.
    pub(super) fn fill(&mut self, descriptor: &OwnedFd) -> io::Result<usize> {
        self.buffer.fill(descriptor)
    }

    /// Returns the next complete frame with its position.
    pub(super) fn next(&mut self) -> Result<Option<(u64, ModuleFrame)>, ProtocolError> {
        let wrong =
            |error: wire::WireError| ProtocolError(format!("it sent an invalid control frame: {error}"));
        let Some((header, rest)) = self.buffer.unused().split_at_checked(MODULE_HEADER_BYTES) else {
            return Ok(None);
        };
        let header = ModuleHeader::parse(header).map_err(wrong)?;
        let Some(body) = rest.get(..header.length as usize) else { return Ok(None) };
        let frame = ModuleFrame::parse(header.kind, body).map_err(wrong)?;
        self.buffer.used += MODULE_HEADER_BYTES + header.length as usize;
        Ok(Some((header.at, frame)))
    }
}

/// Parses a stream of lines, without terminal control characters.
#[derive(Default)]
pub(super) struct Lines {
    buffer: Buffer,
}

impl Lines {
    /// Reads once; 0 is the end.
    pub(super) fn fill(&mut self, descriptor: &OwnedFd) -> io::Result<usize> {
        self.buffer.fill(descriptor)
    }

    /// Returns the next line that is not empty, up to the length limit.
    pub(super) fn next(&mut self) -> Option<String> {
        loop {
            let unused = self.buffer.unused();
            let end = unused.iter().position(|byte| *byte == b'\n');
            let length = end.or((unused.len() > LINE_BYTES_MAX).then_some(unused.len()))?;
            let line = printable(&unused[..length]);
            self.buffer.used += length + usize::from(end.is_some());
            if line.is_some() {
                return line;
            }
        }
    }

    /// Returns the last line, without its end.
    pub(super) fn rest(&mut self) -> Option<String> {
        let line = printable(self.buffer.unused());
        self.buffer.used = self.buffer.bytes.len();
        line
    }
}

/// The text of a line up to the length limit, unless it is empty.
fn printable(line: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(&line[..line.len().min(LINE_BYTES_MAX)]);
    let text: String = text.chars().filter(|character| !character.is_control()).collect();
    Some(text).filter(|text| !text.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    fn pipe(bytes: &[u8]) -> OwnedFd {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        let bytes = bytes.to_vec();
        std::thread::spawn(move || ours.write_all(&bytes)).join().unwrap().unwrap();
        theirs.into()
    }

    #[test]
    fn small_and_large_containers_arrive_complete() {
        let sizes = [0, 1, 12, 16 << 10, (16 << 10) + 1, 70_000, 5];
        let mut bytes = Vec::new();
        for (created, size) in (1..).zip(sizes) {
            bytes.extend(Container { length: size as u32, created }.emit());
            bytes.resize(bytes.len() + size, created as u8);
        }
        let descriptor = pipe(&bytes);
        let (mut containers, mut found) = (Containers::default(), Vec::new());
        while containers.fill(&descriptor).is_ok_and(|(count, _)| count > 0) {
            while let Some(Part::Message(message)) = containers.next().unwrap() {
                found.push((message.created.0, message.body.len()));
                assert!(message.body.chunks().flatten().all(|byte| u64::from(*byte) == message.created.0));
            }
        }
        assert_eq!(found, (1..).zip(sizes).collect::<Vec<_>>());
    }

    #[test]
    fn a_container_over_the_limit_is_rejected_but_in_a_chain_it_may_be_a_word() {
        let bytes =
            [Word::Complete(3).emit(), Container { length: u32::MAX - 9, created: 0 }.emit()].concat();
        let descriptor = pipe(&bytes);
        let mut containers = Containers::default();
        containers.fill(&descriptor).unwrap();
        assert!(containers.next().is_err());
        let mut containers = Containers::new(true);
        containers.fill(&pipe(&bytes)).unwrap();
        assert!(matches!(containers.next(), Ok(Some(Part::Word(Word::Complete(3))))));
        assert!(containers.next().is_err());
    }

    #[test]
    fn lines_are_cut_and_free_of_control_characters() {
        let mut text = b"one\n\n\x1b[2Jtwo\n".to_vec();
        text.extend([b'x'; 300]);
        text.extend(b"\nend");
        let descriptor = pipe(&text);
        let mut lines = Lines::default();
        lines.fill(&descriptor).unwrap();
        assert_eq!(lines.next().as_deref(), Some("one"));
        assert_eq!(lines.next().as_deref(), Some("[2Jtwo"));
        assert_eq!(lines.next(), Some("x".repeat(LINE_BYTES_MAX)));
        assert_eq!(lines.next(), None);
        assert_eq!((lines.rest().as_deref(), lines.rest()), (Some("end"), None));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        #[test]
        fn arbitrary_bytes_are_parsed_or_rejected(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            let descriptor = pipe(&bytes);
            let (mut frames, mut containers) = (Frames::default(), Containers::default());
            frames.fill(&descriptor).unwrap();
            while let Ok(Some(_)) = frames.next() {}
            containers.fill(&pipe(&bytes)).unwrap();
            while let Ok(Some(_)) = containers.next() {}
            let mut chained = Containers::new(true);
            chained.fill(&pipe(&bytes)).unwrap();
            while let Ok(Some(_)) = chained.next() {}
        }
    }
}
