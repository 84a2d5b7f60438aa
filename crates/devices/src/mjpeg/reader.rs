//! The device side: reads JPEG images from a stream and paces them.
//!
//! | state | event | next state |
//! |---|---|---|
//! | `Search` (initial) | an image is complete | `Due` |
//! | | the stream ends between images | `Ended`; with `loop`, back to the start of the file |
//! | `Lost`: resumed within an image | the next image begins | `Search` |
//! | | the stream ends | `Ended` |
//! | `Due` | its time has come | `Search` |

use super::scan::{self, Image, Scanner};
use crate::pace::{self, Pace};
use crate::stream::{Channel, MessageReader};
use contract::{
    Body, Bytes, CtlReply, Interest, Message, Next, PartnerError, PartnerResult, Readiness, Time,
};
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use wire::formats::video::{Geometry, Header, PixelFormat};

/// The most bytes read at a time.
const READ_BYTES: usize = 64 << 10;
/// The most reads in one pull, so that a stream of small pieces does not occupy the thread.
const READS_MAX: usize = 64;

/// The state of the reader; see the table above.
enum State {
    Search,
    Lost,
    Due(Body, Time),
    Ended,
}

/// Reads images from a stream.
pub(super) struct Reader {
    name: String,
    channel: Channel,
    rate_hz: f64,
    loops: bool,
    image_bytes_max: usize,
    state: State,
    /// Bytes after the last image.
    buffer: Vec<u8>,
    scanner: Scanner,
    /// Padding since the last image, in bytes.
    padding_bytes: usize,
    /// The buffer may have another whole image, so a pull may succeed without a read.
    may_have_image: bool,
    pace: Pace,
    images: u64,
    bytes: u64,
}

impl Reader {
    /// Makes a reader. With a rate of 0, images are due at once. Without a rate, those of a pipe are, too: its writer paces them.
    pub(super) fn new(
        name: String,
        channel: Channel,
        rate_hz: Option<f64>,
        loops: bool,
        image_bytes_max: usize,
    ) -> Self {
        let rate_hz = rate_hz.unwrap_or(pace::rate_default(&channel));
        let mut pace = Pace::default();
        pace.set_rate(rate_hz);
        Reader {
            name,
            channel,
            rate_hz,
            loops,
            image_bytes_max,
            state: State::Search,
            buffer: Vec::new(),
            scanner: Scanner::default(),
            padding_bytes: 0,
            may_have_image: false,
            pace,
            images: 0,
            bytes: 0,
        }
    }

    fn wrong(&self, problem: impl std::fmt::Display) -> PartnerError {
        PartnerError::Data(format!("{}: image {}: {problem}", self.name, self.images))
    }

    /// Searches the buffer for an image, and reads once if there is none. Returns `false` if the stream has no bytes
    /// now.
    fn advance(&mut self, now: Time) -> PartnerResult<bool> {
        if matches!(self.state, State::Lost) {
            if scan::skip_to_image(&mut self.buffer) {
                self.state = State::Search;
            }
        } else if self.scanner.is_new() {
            self.skip_padding()?;
        }
        if matches!(self.state, State::Search)
            && let Some(image) = self.scanner.find(&self.buffer).map_err(|problem| self.wrong(problem))?
        {
            self.take_image(image, now)?;
            return Ok(true);
        }
        self.may_have_image = false;
        if self.buffer.len() >= self.image_bytes_max {
            return Err(self.wrong(format!("it does not end within {} bytes", self.image_bytes_max)));
        }
        self.read()
    }

    fn skip_padding(&mut self) -> PartnerResult {
        let padding = scan::padding(&self.buffer);
        self.buffer.drain(..padding);
        self.padding_bytes += padding;
        match self.padding_bytes > self.image_bytes_max {
            true => Err(self.wrong(format!("it does not begin within {} bytes", self.image_bytes_max))),
            false => Ok(()),
        }
    }

    fn take_image(&mut self, image: Image, now: Time) -> PartnerResult {
        let rest = self.buffer.split_off(image.length);
        let bytes = Bytes::from(std::mem::replace(&mut self.buffer, rest));
        let geometry = Geometry::new(PixelFormat::Mjpeg, image.width.into(), image.height.into())
            .map_err(|error| self.wrong(error))?;
        let mut body = Body::from(bytes);
        body.push_front(&Header::frame(geometry.with_rate_hz(self.rate_hz)).emit());
        (self.images, self.padding_bytes) = (self.images + 1, 0);
        self.may_have_image = true;
        self.state = State::Due(body, self.pace.next(now));
        Ok(())
    }

    fn read(&mut self) -> PartnerResult<bool> {
        let prev_len = self.buffer.len();
        self.buffer.resize(prev_len + READ_BYTES, 0);
        let read = self.channel.read(&mut self.buffer[prev_len..]);
        self.buffer.truncate(prev_len + read.unwrap_or(0));
        match read {
            // A single 0xff is padding.
            Ok(0) if !matches!(self.buffer[..], [] | [0xff]) && matches!(self.state, State::Search) => {
                Err(self.wrong("the stream ends within it"))
            }
            Ok(0) if self.loops && self.images > 0 => {
                rustix::fs::seek(&self.channel, SeekFrom::Start(0)).map_err(|error| {
                    PartnerError::os(format!("going back to the start of {}", self.name), error)
                })?;
                // If no image follows, the file has none: without this reset it would be read forever.
                self.images = 0;
                Ok(true)
            }
            Ok(0) => {
                self.state = State::Ended;
                Ok(true)
            }
            Ok(count) => {
                self.bytes += count as u64;
                Ok(true)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(error) => Err(PartnerError::os(format!("reading {}", self.name), error)),
        }
    }
}

impl MessageReader for Reader {
    fn next(&mut self, now: Time) -> PartnerResult<Next> {
        for _ in 0..READS_MAX {
            match std::mem::replace(&mut self.state, State::Search) {
                State::Due(body, due) if due <= now => return Ok(Next::Message(Message::new(due, body))),
                state => self.state = state,
            }
            match self.state {
                State::Due(..) => return Ok(Next::Nothing),
                State::Ended => return Ok(Next::End),
                State::Search | State::Lost => {
                    if !self.advance(now)? {
                        return Ok(Next::Nothing);
                    }
                }
            }
        }
        Ok(Next::Nothing)
    }

    fn readiness(&self) -> Readiness<'_> {
        match &self.state {
            State::Due(_, due) => Readiness::at(*due),
            State::Ended => Readiness::never(),
            State::Search | State::Lost => {
                let channel = self.channel.readiness(Interest::Read);
                Readiness { now: channel.now || self.may_have_image, ..channel }
            }
        }
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn ahead(&self) -> u64 {
        let due_bytes = if let State::Due(body, _) = &self.state { body.len() } else { 0 };
        (self.buffer.len() + due_bytes) as u64
    }

    /// Saves the fact that bytes were read. The value itself has no meaning.
    fn save_state(&self) -> PartnerResult<CtlReply> {
        Ok(if self.bytes > 0 { CtlReply::Bytes(scan::IMAGE.into()) } else { CtlReply::Pending })
    }

    fn restore_state(&mut self, _saved: &[u8]) -> PartnerResult<CtlReply> {
        self.state = State::Lost;
        Ok(CtlReply::Done)
    }
}
