//! Framing: converts a byte stream to messages and back. Sans-IO.

use contract::{
    Body, Bytes, Message, OptionKind, OptionSpec, PartnerError, PartnerResult, Time, Value, local,
    parse_value,
};
use wire::Container;

/// Framing of a byte stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Frame {
    /// The available bytes, at most this many. Boundaries have no meaning.
    Chunk(usize),
    /// A line with its newline.
    Line,
    /// A [`Container`] with its creation time.
    Container,
}

/// The option `frame`.
pub(crate) const FRAME_OPTION: OptionSpec = local(
    "frame",
    OptionKind::Text { max: 32 },
    "chunk(64KiB)",
    "framing of bytes into messages: `chunk(SIZE)`, `line` or `container`",
);

/// The option `max`.
pub(crate) const MAX_OPTION: OptionSpec = local(
    "max",
    OptionKind::OrAuto(&OptionKind::Size { min: 1, max: wire::BODY_BYTES_MAX as u64 }),
    "auto",
    "largest line or container, bytes; auto: 1 MiB for lines, 64 MiB for containers",
);

/// The largest line if the user names no other size.
const LINE_BYTES_MAX: usize = 1 << 20;

/// The size in `chunk(SIZE)`.
const CHUNK_SIZE: OptionSpec = local("chunk", OptionKind::Size { min: 1, max: 1 << 20 }, "64KiB", "bytes");

impl Frame {
    /// Reads the value of [`FRAME_OPTION`].
    pub(crate) fn parse(text: &str) -> Result<Frame, String> {
        let size = match text {
            "line" => return Ok(Frame::Line),
            "container" => return Ok(Frame::Container),
            "chunk" => CHUNK_SIZE.default,
            _ => text.strip_prefix("chunk(").and_then(|rest| rest.strip_suffix(')')).ok_or_else(|| {
                format!("`{text}` is not a value of `frame`, which takes chunk(SIZE), line or container")
            })?,
        };
        match parse_value(&CHUNK_SIZE, size).map_err(|error| error.problem)? {
            Value::Size(size) => Ok(Frame::Chunk(size as usize)),
            _ => unreachable!("the option has the kind Size"),
        }
    }

    /// Returns the default of [`MAX_OPTION`]: a container holds any message, and a line without an end is a fault.
    pub(crate) fn bytes_max(self) -> usize {
        match self {
            Frame::Container => wire::BODY_BYTES_MAX,
            Frame::Line | Frame::Chunk(_) => LINE_BYTES_MAX,
        }
    }
}

/// Splits a byte stream into messages. It holds at most one incomplete message, in the pieces in which it arrived.
#[derive(Debug)]
pub(crate) struct Deframer {
    frame: Frame,
    max: usize,
    held: Body,
    /// Size of the first message, once it is complete.
    complete: Option<usize>,
    /// Permanent error behind the last message.
    fault: Option<String>,
    /// Bytes at the front of `held` without a newline.
    searched: usize,
}

impl Deframer {
    pub(crate) fn new(frame: Frame, max: usize) -> Self {
        Deframer { frame, max, held: Body::new(), complete: None, fault: None, searched: 0 }
    }

    /// Returns true if [`Deframer::next`] would return a message or an error.
    pub(crate) fn is_ready(&self) -> bool {
        self.complete.is_some() || self.fault.is_some()
    }

    /// Returns the number of bytes that were pushed but not returned.
    pub(crate) fn held_bytes(&self) -> usize {
        self.held.len()
    }

    /// Returns true if pushing `filled` completes a message, or shows a fault. Its last `fresh` bytes are new since the
    /// last call. Pushing only then makes the pieces of a message few and large.
    pub(crate) fn is_complete_with(&self, filled: &[u8], fresh: usize) -> bool {
        match self.frame {
            Frame::Chunk(_) => !filled.is_empty(),
            Frame::Line => {
                filled[filled.len() - fresh..].contains(&b'\n') || self.held.len() + filled.len() > self.max
            }
            Frame::Container => {
                let mut header = [0; Container::BYTES];
                let bytes = self.held.chunks().chain([filled]).flatten();
                let copied = header.iter_mut().zip(bytes).map(|(slot, byte)| *slot = *byte).count();
                copied == header.len()
                    && Container::parse(&header, self.max).map_or(true, |container| {
                        container.length as usize + Container::BYTES <= self.held.len() + filled.len()
                    })
            }
        }
    }

    /// Appends bytes of the stream.
    pub(crate) fn push(&mut self, piece: Bytes) {
        self.held.push(piece);
        self.check();
    }

    /// Returns the next complete message. Its creation time is `now` unless the framing carries one. After the last
    /// message before a fault, returns the fault on every call.
    pub(crate) fn next(&mut self, now: Time) -> PartnerResult<Option<Message>> {
        let Some(bytes) = self.complete.take().and_then(|length| self.held.split_off_front(length)) else {
            return self.fault.clone().map_or(Ok(None), |fault| Err(PartnerError::Data(fault)));
        };
        self.searched = 0;
        self.check();
        Ok(Some(self.message(bytes, now)))
    }

    /// Returns the last messages after the end of the stream. The last line may lack its newline; a truncated container
    /// is an error.
    pub(crate) fn end(&mut self, now: Time) -> PartnerResult<Option<Message>> {
        match self.next(now)? {
            Some(message) => Ok(Some(message)),
            None if self.held.is_empty() => Ok(None),
            None if self.frame == Frame::Container => {
                let left = std::mem::take(&mut self.held).len();
                let problem = format!("the stream ends {left} bytes into a container");
                Err(PartnerError::Data(problem))
            }
            None => Ok(Some(Message::new(now, std::mem::take(&mut self.held)))),
        }
    }

    fn message(&self, mut bytes: Body, now: Time) -> Message {
        let created = match self.frame {
            Frame::Chunk(_) | Frame::Line => now,
            // The header of a complete container was parsed before.
            Frame::Container => bytes
                .take_front::<{ Container::BYTES }>()
                .and_then(|header| Container::parse(&header, self.max).ok())
                .map_or(now, |container| Time(container.created)),
        };
        Message::new(created, bytes)
    }

    /// Updates `complete` and `fault`.
    fn check(&mut self) {
        let complete = match self.frame {
            Frame::Chunk(size) => Ok(Some(self.held.len().min(size)).filter(|length| *length > 0)),
            Frame::Line => self.find_line(),
            Frame::Container => self.find_container(),
        };
        match complete {
            Ok(complete) => self.complete = complete,
            Err(fault) => self.fault = Some(fault),
        }
    }

    fn find_container(&self) -> Result<Option<usize>, String> {
        let Some(header) = self.held.peek_front::<{ Container::BYTES }>() else { return Ok(None) };
        let container = Container::parse(&header, self.max)
            .map_err(|error| format!("not a container: {error} (option `max`)"))?;
        Ok(Some(container.length as usize + header.len()).filter(|bytes| *bytes <= self.held.len()))
    }

    fn find_line(&mut self) -> Result<Option<usize>, String> {
        let (mut at, mut found) = (0, None);
        for chunk in self.held.chunks() {
            let skipped = self.searched.saturating_sub(at).min(chunk.len());
            found = chunk[skipped..].iter().position(|byte| *byte == b'\n').map(|end| at + skipped + end + 1);
            if found.is_some() {
                break;
            }
            at += chunk.len();
        }
        self.searched = found.unwrap_or(at);
        if self.searched > self.max {
            return Err(format!("a line of more than {} bytes (option `max`; or use frame=chunk)", self.max));
        }
        Ok(found)
    }
}

/// Converts a message to the bytes of a stream.
pub(crate) fn enframe(frame: Frame, message: Message) -> PartnerResult<Body> {
    let mut body = message.body;
    match frame {
        Frame::Chunk(_) => {}
        Frame::Line => {
            if body.chunks().last().and_then(|chunk| chunk.last()) != Some(&b'\n') {
                body.push(Bytes::from_static(b"\n"));
            }
        }
        Frame::Container => {
            let length = u32::try_from(body.len())
                .map_err(|_| PartnerError::Message(format!("{} bytes do not fit a container", body.len())))?;
            body.push_front(&Container { length, created: message.created.0 }.emit());
        }
    }
    Ok(body)
}
