//! The device side: reads pictures from a YUV4MPEG2 stream and paces them.
//!
//! | state | event | next state |
//! |---|---|---|
//! | `Header` (initial) | the first line is complete | `FrameLine` |
//! | `FrameLine` | the line before a frame is complete | `Pixels` |
//! | | the stream ends | `Ended`; with `loop`, back to the start of the file and `Header` |
//! | `Pixels` | all bytes of the frame are read | `Due` |
//! | `Due` | its time has come | `FrameLine` |
//! | `Lost`: resumed within a frame | a line before a frame is found | `FrameLine` |
//! | | the stream ends | `Ended` |

use super::header::{self, FRAME_LINE};
use crate::pace::{self, Pace};
use crate::stream::{Channel, MessageReader};
use buffers::{Lease, Pool};
use contract::{Body, CtlReply, Interest, Message, Next, PartnerError, PartnerResult, Readiness, Time};
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use wire::formats::video::{Geometry, Header};

/// The most bytes of a line, and of a read in search of its end.
const LINE_BYTES_MAX: usize = 4096;
/// The most steps in one pull, so that a stream of small pieces does not occupy the thread.
const STEPS_MAX: usize = 64;
/// The number of picture buffers that are recycled.
const PICTURES_KEPT: usize = 8;

/// Reads pictures into pooled memory. Only bytes that were read together with a line are copied.
pub(super) struct Reader {
    name: String,
    channel: Channel,
    /// The user's frames per second; 0: frames are due at once.
    rate_hz: Option<f64>,
    loops: bool,
    state: State,
    lines: LineBuffer,
    geometry: Option<Geometry>,
    pool: Pool,
    pace: Pace,
    frames: u64,
    bytes: u64,
}

/// The state of the reader; see the table above.
enum State {
    Header,
    Lost,
    FrameLine,
    /// The memory of the frame, and the number of bytes that are filled.
    Pixels(Lease, usize),
    Due(Body, Time),
    Ended,
}

impl Reader {
    pub(super) fn new(name: String, channel: Channel, rate_hz: Option<f64>, loops: bool) -> Self {
        Reader {
            name,
            channel,
            rate_hz,
            loops,
            state: State::Header,
            lines: LineBuffer::default(),
            geometry: None,
            pool: Pool::new(0, 0),
            pace: Pace::default(),
            frames: 0,
            bytes: 0,
        }
    }

    fn wrong(&self, problem: impl std::fmt::Display) -> PartnerError {
        PartnerError::Data(format!("{}: {problem}", self.name))
    }

    /// Processes the first line.
    fn handle_header(&mut self, line: &[u8]) -> PartnerResult {
        let geometry = header::parse(line).map_err(|problem| self.wrong(problem))?;
        // The header of each picture has the actual rate.
        let geometry = match self.rate_hz.filter(|rate_hz| *rate_hz > 0.0) {
            Some(rate_hz) => geometry.with_rate_hz(rate_hz),
            None => geometry,
        };
        let stream_hz = match geometry.rate() {
            (0, _) => pace::rate_default(&self.channel),
            (numerator, denominator) => f64::from(numerator) / f64::from(denominator),
        };
        let rate_hz = self.rate_hz.unwrap_or(stream_hz);
        self.pace.set_rate(rate_hz);
        if self.pool.capacity() != geometry.bytes() {
            self.pool = Pool::new(geometry.bytes(), PICTURES_KEPT);
        }
        self.geometry = Some(geometry);
        Ok(())
    }

    /// Advances from `state` by one step, with at most one read. Returns `false` if the stream has no bytes now.
    fn advance(&mut self, state: State, now: Time) -> PartnerResult<bool> {
        match state {
            State::Due(..) | State::Ended => self.state = state,
            State::Lost => return self.search_frame(),
            State::Header | State::FrameLine => {
                let is_header = matches!(state, State::Header);
                match self.lines.take().map_err(|problem| self.wrong(problem))? {
                    Some(line) if is_header => {
                        self.handle_header(&line)?;
                        self.state = State::FrameLine;
                    }
                    Some(line)
                        if line.split(|byte| *byte == b' ').next() == Some(FRAME_LINE.trim_ascii_end()) =>
                    {
                        let mut picture = self.pool.take();
                        let filled = self.lines.take_bytes(&mut picture);
                        self.state = State::Pixels(picture, filled);
                    }
                    Some(_) => {
                        return Err(self.wrong(format!("frame {} does not begin with FRAME", self.frames)));
                    }
                    None => {
                        self.state = state;
                        return self.read_line(is_header);
                    }
                }
            }
            State::Pixels(picture, filled) if filled < picture.len() => {
                return self.read_pixels(picture, filled);
            }
            State::Pixels(picture, _) => {
                let mut body = Body::from(picture.freeze());
                if let Some(geometry) = self.geometry {
                    body.push_front(&Header::frame(geometry).emit());
                }
                self.frames += 1;
                self.state = State::Due(body, self.pace.next(now));
            }
        }
        Ok(true)
    }

    /// Searches for the next frame after a restart within a frame.
    fn search_frame(&mut self) -> PartnerResult<bool> {
        if self.lines.skip_to_frame() {
            self.state = State::FrameLine;
            return Ok(true);
        }
        self.state = State::Lost;
        let read = self.lines.read(&self.channel);
        if read == Ok(0) {
            self.state = State::Ended;
        }
        self.count_read(read)
    }

    fn read_pixels(&mut self, mut picture: Lease, filled: usize) -> PartnerResult<bool> {
        let read = self.channel.read(&mut picture[filled..]);
        let count = match read {
            Ok(0) => {
                let frame_bytes = picture.len();
                return Err(self.wrong(format!("it ends {filled} bytes into a frame of {frame_bytes}")));
            }
            Ok(count) => count,
            Err(_) => 0,
        };
        self.state = State::Pixels(picture, filled + count);
        self.count_read(read)
    }

    /// Reads in search of a line's end. The stream may end only where the line before a frame would begin.
    fn read_line(&mut self, is_header: bool) -> PartnerResult<bool> {
        let read = self.lines.read(&self.channel);
        if read != Ok(0) {
            return self.count_read(read);
        }
        match (is_header, self.lines.is_empty()) {
            (true, _) => Err(self.wrong("it ends within its first line: it is empty or incomplete")),
            (false, false) => Err(self.wrong("it ends within the line before a frame")),
            (false, true) if self.loops && self.frames > 0 => {
                rustix::fs::seek(&self.channel, SeekFrom::Start(0)).map_err(|error| {
                    PartnerError::os(format!("going back to the start of {}", self.name), error)
                })?;
                // If no frame follows, the file has none: without this reset it would be read forever.
                self.frames = 0;
                self.state = State::Header;
                Ok(true)
            }
            (false, true) => {
                self.state = State::Ended;
                Ok(true)
            }
        }
    }

    /// Counts the bytes of a read. Returns `false` if there were none.
    fn count_read(&mut self, read: rustix::io::Result<usize>) -> PartnerResult<bool> {
        match read {
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
        for _ in 0..STEPS_MAX {
            match std::mem::replace(&mut self.state, State::Ended) {
                State::Ended => return Ok(Next::End),
                State::Due(body, due) if due <= now => {
                    self.state = State::FrameLine;
                    return Ok(Next::Message(Message::new(due, body)));
                }
                due @ State::Due(..) => {
                    self.state = due;
                    return Ok(Next::Nothing);
                }
                state => {
                    if !self.advance(state, now)? {
                        return Ok(Next::Nothing);
                    }
                }
            }
        }
        Ok(Next::Nothing)
    }

    fn readiness(&self) -> Readiness<'_> {
        match &self.state {
            State::Ended => Readiness::never(),
            State::Due(_, due) => Readiness::at(*due),
            State::Pixels(picture, filled) if *filled == picture.len() => Readiness::now(),
            _ if self.lines.has_line() => Readiness::now(),
            _ => self.channel.readiness(Interest::Read),
        }
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn ahead(&self) -> u64 {
        let picture = match &self.state {
            State::Pixels(_, filled) => FRAME_LINE.len() + filled,
            State::Due(body, _) => body.len(),
            _ => 0,
        };
        (picture + self.lines.pending().len()) as u64
    }

    /// Saves the first line, which cannot be read again from a FIFO.
    fn save_state(&self) -> PartnerResult<CtlReply> {
        let line = self.geometry.as_ref().and_then(header::emit);
        Ok(line.map_or(CtlReply::Pending, |line| CtlReply::Bytes(line.into_bytes())))
    }

    fn restore_state(&mut self, saved: &[u8]) -> PartnerResult<CtlReply> {
        self.handle_header(saved.trim_ascii_end())?;
        self.state = State::Lost;
        Ok(CtlReply::Done)
    }
}

/// A buffer for lines. A read may also return pixels after the line.
#[derive(Default)]
struct LineBuffer {
    bytes: Vec<u8>,
    start: usize,
}

impl LineBuffer {
    /// Returns the bytes that are not consumed.
    fn pending(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    fn is_empty(&self) -> bool {
        self.pending().is_empty()
    }

    fn has_line(&self) -> bool {
        self.pending().contains(&b'\n')
    }

    /// Takes a line without its newline, if there is a whole one.
    fn take(&mut self) -> Result<Option<Vec<u8>>, String> {
        match self.pending().iter().position(|byte| *byte == b'\n') {
            Some(end) => {
                let line = self.pending()[..end].to_vec();
                self.start += end + 1;
                Ok(Some(line))
            }
            None if self.pending().len() >= LINE_BYTES_MAX => Err(format!(
                "no line ends within {LINE_BYTES_MAX} bytes: it is not YUV4MPEG2 (ffmpeg: `-f yuv4mpegpipe`)"
            )),
            None => Ok(None),
        }
    }

    /// Moves the bytes after a line to `into`. Returns their number.
    fn take_bytes(&mut self, into: &mut [u8]) -> usize {
        let count = self.pending().len().min(into.len());
        into[..count].copy_from_slice(&self.pending()[..count]);
        self.start += count;
        count
    }

    /// Drops the bytes before the line of a frame. Returns whether there is such a line.
    fn skip_to_frame(&mut self) -> bool {
        let is_frame = |bytes: &[u8]| bytes == FRAME_LINE;
        match self.pending().windows(FRAME_LINE.len()).position(is_frame) {
            Some(at) => {
                self.start += at;
                true
            }
            None => {
                // Keep the end: it may be the first part of a line.
                self.start = self.bytes.len().saturating_sub(FRAME_LINE.len() - 1).max(self.start);
                false
            }
        }
    }

    /// Reads once. Returns the number of bytes; 0 at the end of the stream.
    fn read(&mut self, channel: &Channel) -> rustix::io::Result<usize> {
        self.bytes.drain(..self.start);
        self.start = 0;
        let prev_len = self.bytes.len();
        self.bytes.resize(LINE_BYTES_MAX.max(prev_len), 0);
        let read = channel.read(&mut self.bytes[prev_len..]);
        self.bytes.truncate(prev_len + read.unwrap_or(0));
        read
    }
}
