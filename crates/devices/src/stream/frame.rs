//! Framing: a stream of bytes to messages and back, without I/O.

use contract::{Body, Bytes, Message, OptionKind, OptionSpec, PartnerError, Scope, Time, Value, parse_value};
use wire::Container;

/// How a stream of bytes is cut into messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Frame {
    /// What there is, at most so many bytes at once. Borders mean nothing.
    Chunk(usize),
    /// A line, its newline included.
    Line,
    /// A container of `wire`, with its creation time.
    Container,
}

/// The option that chooses the framing.
pub(crate) const FRAME_OPTION: OptionSpec = OptionSpec {
    name: "frame",
    kind: OptionKind::Text { max: 32 },
    default: "chunk(64KiB)",
    scope: Scope::Local,
    doc: "how bytes are cut into messages: `chunk(SIZE)`, `line` or `container`",
};

/// The option that bounds a message.
pub(crate) const MAX_OPTION: OptionSpec = OptionSpec {
    name: "max",
    kind: OptionKind::Size { min: 1, max: wire::BODY_BYTES_MAX as u64 },
    default: "1MiB",
    scope: Scope::Local,
    doc: "largest line or container, in bytes",
};

/// What stands in the parentheses of `chunk`.
const CHUNK_SIZE: OptionSpec = OptionSpec {
    name: "chunk",
    kind: OptionKind::Size { min: 1, max: 1 << 20 },
    default: "64KiB",
    scope: Scope::Local,
    doc: "bytes",
};

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
            _ => unreachable!("a size was asked for"),
        }
    }
}

/// Cuts a stream of bytes into messages. It holds at most one message that is not whole yet, in the pieces it
/// came in.
#[derive(Debug)]
pub(crate) struct Deframer {
    frame: Frame,
    max: usize,
    held: Body,
    /// Bytes of the first message, once it is whole.
    whole: Option<usize>,
    /// Why no message follows any more.
    fault: Option<String>,
    /// Bytes at the front of `held` known to hold no newline.
    searched: usize,
}

impl Deframer {
    pub(crate) fn new(frame: Frame, max: usize) -> Self {
        Deframer { frame, max, held: Body::new(), whole: None, fault: None, searched: 0 }
    }

    /// Whether a message, or an error, is there to take.
    pub(crate) fn is_ready(&self) -> bool {
        self.whole.is_some() || self.fault.is_some()
    }

    /// Bytes that were pushed and not given out.
    pub(crate) fn held_bytes(&self) -> usize {
        self.held.len()
    }

    /// Whether a message becomes whole when `gathered` is pushed, of which the last `fresh` bytes are new:
    /// until then there is no need to.
    pub(crate) fn is_whole_with(&self, gathered: &[u8], fresh: usize) -> bool {
        match self.frame {
            Frame::Chunk(_) => !gathered.is_empty(),
            Frame::Line => {
                gathered[gathered.len() - fresh..].contains(&b'\n')
                    || self.held.len() + gathered.len() > self.max
            }
            Frame::Container => {
                let mut header = [0; Container::BYTES];
                let bytes = self.held.chunks().chain([gathered]).flatten();
                let filled = header.iter_mut().zip(bytes).map(|(slot, byte)| *slot = *byte).count();
                filled == header.len()
                    && Container::parse(&header, self.max).map_or(true, |container| {
                        container.length as usize + Container::BYTES <= self.held.len() + gathered.len()
                    })
            }
        }
    }

    /// Takes the next bytes of the stream.
    pub(crate) fn push(&mut self, piece: Bytes) {
        self.held.push(piece);
        self.look();
    }

    /// The next message that is whole. `now` is its creation time, unless it brings its own. An error is said
    /// after the messages before it, and for ever.
    pub(crate) fn next(&mut self, now: Time) -> Result<Option<Message>, PartnerError> {
        let Some(bytes) = self.whole.take().and_then(|length| self.held.split_off_front(length)) else {
            return self.fault.clone().map_or(Ok(None), |fault| Err(PartnerError::Peer(fault)));
        };
        self.searched = 0;
        self.look();
        Ok(Some(self.message(bytes, now)))
    }

    /// The stream has ended: the last line may lack its newline, a container may not be cut short.
    pub(crate) fn end(&mut self, now: Time) -> Result<Option<Message>, PartnerError> {
        match self.next(now)? {
            Some(message) => Ok(Some(message)),
            None if self.held.is_empty() => Ok(None),
            None if self.frame == Frame::Container => {
                let left = std::mem::take(&mut self.held).len();
                let problem = format!("the stream ends {left} bytes into a container");
                Err(PartnerError::Peer(problem))
            }
            None => Ok(Some(Message::new(now, std::mem::take(&mut self.held)))),
        }
    }

    fn message(&self, mut bytes: Body, now: Time) -> Message {
        let created = match self.frame {
            Frame::Chunk(_) | Frame::Line => now,
            // Whole means that its header was read before.
            Frame::Container => bytes
                .take_front::<{ Container::BYTES }>()
                .and_then(|header| Container::parse(&header, self.max).ok())
                .map_or(now, |container| Time(container.created)),
        };
        Message::new(created, bytes)
    }

    /// Finds out whether the first message is whole, or can never be.
    fn look(&mut self) {
        let whole = match self.frame {
            Frame::Chunk(size) => Ok(Some(self.held.len().min(size)).filter(|length| *length > 0)),
            Frame::Line => self.find_line(),
            Frame::Container => self.find_container(),
        };
        match whole {
            Ok(whole) => self.whole = whole,
            Err(fault) => self.fault = Some(fault),
        }
    }

    fn find_container(&self) -> Result<Option<usize>, String> {
        let Some(header) = self.held.peek_front::<{ Container::BYTES }>() else { return Ok(None) };
        let container = Container::parse(&header, self.max)
            .map_err(|error| format!("no container: {error} (option `max`)"))?;
        Ok(Some(container.length as usize + header.len()).filter(|whole| *whole <= self.held.len()))
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

/// A message as the bytes of a stream.
pub(crate) fn enframe(frame: Frame, message: Message) -> Result<Body, PartnerError> {
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
                .map_err(|_| PartnerError::Message(format!("{} bytes in one container", body.len())))?;
            body.push_front(&Container { length, created: message.created.0 }.emit());
        }
    }
    Ok(body)
}
