//! The device: a stream of YUV4MPEG2 to pictures, at its own pace or another.

use super::header::{self, FRAME_LINE};
use crate::pace::{Pace, RATE_DEFAULT};
use crate::stream::{Channel, Gives};
use buffers::{Lease, Pool};
use contract::{Body, CtlReply, Interest, Message, Next, PartnerError, Readiness, Time};
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use wire::formats::video::{Geometry, Header};

/// Longest line of the stream, and what is read at once in search of its end.
const LINE_BYTES_MAX: usize = 4096;
/// Reads of one search for a picture, so that a slow stream does not hold up its thread.
const READS_MAX: usize = 64;
/// Pictures' worth of memory kept for use again.
const PICTURES_KEPT: usize = 8;

/// Reads pictures into pooled memory, without a copy but for the little that came with a line.
pub(super) struct Reader {
    name: String,
    channel: Channel,
    /// Frames a second that the user asked for; 0: as fast as they are taken.
    rate_hz: Option<f64>,
    loops: bool,
    state: State,
    line: Line,
    geometry: Option<Geometry>,
    pool: Pool,
    pace: Pace,
    frames: u64,
    bytes: u64,
}

enum State {
    /// In the first line.
    Header,
    /// Another read part of a frame, which is lost: before the next.
    Lost,
    /// In the line before a frame.
    Frame,
    /// So many bytes of a frame are there.
    Pixels(Lease, usize),
    /// A frame is there, until its time comes.
    Whole(Body, Time),
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
            line: Line::default(),
            geometry: None,
            pool: Pool::new(0, 0),
            pace: Pace::default(),
            frames: 0,
            bytes: 0,
        }
    }

    fn wrong(&self, problem: impl std::fmt::Display) -> PartnerError {
        PartnerError::Peer(format!("{}: {problem}", self.name))
    }

    /// Reads the first line.
    fn begin(&mut self, line: &[u8]) -> Result<(), PartnerError> {
        let geometry = header::parse(line).map_err(|problem| self.wrong(problem))?;
        // What goes on at another rate is told so.
        let geometry = match self.rate_hz.filter(|rate_hz| *rate_hz > 0.0) {
            Some(rate_hz) => geometry.with_rate_hz(rate_hz),
            None => geometry,
        };
        let (numerator, denominator) = match geometry.rate() {
            (0, _) => RATE_DEFAULT,
            rate => rate,
        };
        let file_hz = f64::from(numerator) / f64::from(denominator);
        let rate_hz = self.rate_hz.unwrap_or(file_hz);
        self.pace.set_rate(rate_hz);
        if self.pool.capacity() != geometry.bytes() {
            self.pool = Pool::new(geometry.bytes(), PICTURES_KEPT);
        }
        self.geometry = Some(geometry);
        Ok(())
    }

    /// Goes on from `state` as far as one read gets; says whether there may be more at once.
    fn advance(&mut self, state: State, now: Time) -> Result<bool, PartnerError> {
        match state {
            State::Whole(..) | State::Ended => self.state = state,
            State::Lost => {
                if self.line.skip_to_frame() {
                    self.state = State::Frame;
                    return Ok(true);
                }
                self.state = State::Lost;
                let read = self.line.read(&self.channel);
                if read == Ok(0) {
                    self.state = State::Ended;
                }
                return self.gone_on(read);
            }
            State::Header | State::Frame => {
                let is_header = matches!(state, State::Header);
                match self.line.take().map_err(|problem| self.wrong(problem))? {
                    Some(line) if is_header => {
                        self.begin(&line)?;
                        self.state = State::Frame;
                    }
                    Some(line)
                        if line.split(|byte| *byte == b' ').next() == Some(FRAME_LINE.trim_ascii_end()) =>
                    {
                        let mut picture = self.pool.take();
                        let filled = self.line.take_bytes(&mut picture);
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
            State::Pixels(mut picture, filled) if filled < picture.len() => {
                let read = self.channel.read(&mut picture[filled..]);
                let count = match read {
                    Ok(0) => {
                        let of = picture.len();
                        return Err(self.wrong(format!("it ends {filled} bytes into a frame of {of}")));
                    }
                    Ok(count) => count,
                    Err(_) => 0,
                };
                self.state = State::Pixels(picture, filled + count);
                return self.gone_on(read);
            }
            State::Pixels(picture, _) => {
                let mut body = Body::from(picture.freeze());
                if let Some(geometry) = self.geometry {
                    body.push_front(&Header::frame(geometry).emit());
                }
                self.frames += 1;
                self.state = State::Whole(body, self.pace.next(now));
            }
        }
        Ok(true)
    }

    /// Reads on in search of a line's end. The stream may end where a frame would begin.
    fn read_line(&mut self, is_header: bool) -> Result<bool, PartnerError> {
        let read = self.line.read(&self.channel);
        if read != Ok(0) {
            return self.gone_on(read);
        }
        match (is_header, self.line.is_empty()) {
            (true, _) => Err(self.wrong("it ends before its first line does")),
            (false, false) => Err(self.wrong("it ends in the line before a frame")),
            (false, true) if self.loops && self.frames > 0 => {
                rustix::fs::seek(&self.channel, SeekFrom::Start(0)).map_err(|error| {
                    PartnerError::os(format!("going back to the start of {}", self.name), error)
                })?;
                // A file without a single frame would be read for ever.
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

    fn gone_on(&mut self, read: rustix::io::Result<usize>) -> Result<bool, PartnerError> {
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

impl Gives for Reader {
    fn next(&mut self, now: Time) -> Result<Next, PartnerError> {
        for _ in 0..READS_MAX {
            match std::mem::replace(&mut self.state, State::Ended) {
                State::Ended => return Ok(Next::End),
                State::Whole(body, due) if due <= now => {
                    self.state = State::Frame;
                    return Ok(Next::Message(Message::new(due, body)));
                }
                whole @ State::Whole(..) => {
                    self.state = whole;
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
            State::Whole(_, due) => Readiness::at(*due),
            State::Pixels(picture, filled) if *filled == picture.len() => Readiness::now(),
            _ if self.line.is_whole() => Readiness::now(),
            _ => self.channel.readiness(Interest::Read),
        }
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn ahead(&self) -> u64 {
        let picture = match &self.state {
            State::Pixels(_, filled) => FRAME_LINE.len() + filled,
            State::Whole(body, _) => body.len(),
            _ => 0,
        };
        (picture + self.line.held().len()) as u64
    }

    /// The first line, which cannot be read twice of a FIFO.
    fn leave(&self) -> Result<CtlReply, PartnerError> {
        let line = self.geometry.as_ref().and_then(header::emit);
        Ok(line.map_or(CtlReply::Pending, |line| CtlReply::Bytes(line.into_bytes())))
    }

    fn inherit(&mut self, left: &[u8]) -> Result<CtlReply, PartnerError> {
        self.begin(left.trim_ascii_end())?;
        self.state = State::Lost;
        Ok(CtlReply::Done)
    }
}

/// What was read in search of a line's end.
#[derive(Default)]
struct Line {
    held: Vec<u8>,
    start: usize,
}

impl Line {
    fn held(&self) -> &[u8] {
        &self.held[self.start..]
    }

    fn is_empty(&self) -> bool {
        self.held().is_empty()
    }

    fn is_whole(&self) -> bool {
        self.held().contains(&b'\n')
    }

    /// The line, if it is whole, without its newline.
    fn take(&mut self) -> Result<Option<Vec<u8>>, String> {
        match self.held().iter().position(|byte| *byte == b'\n') {
            Some(end) => {
                let line = self.held()[..end].to_vec();
                self.start += end + 1;
                Ok(Some(line))
            }
            None if self.held().len() >= LINE_BYTES_MAX => Err(format!(
                "no line ends within {LINE_BYTES_MAX} bytes: it is no YUV4MPEG2 (ffmpeg writes it with `-f yuv4mpegpipe`)"
            )),
            None => Ok(None),
        }
    }

    /// Moves what was read behind the line into `into`; says how much that was.
    fn take_bytes(&mut self, into: &mut [u8]) -> usize {
        let count = self.held().len().min(into.len());
        into[..count].copy_from_slice(&self.held()[..count]);
        self.start += count;
        count
    }

    /// Drops what is before the line of a frame; whether there is one.
    fn skip_to_frame(&mut self) -> bool {
        let is_frame = |at: &[u8]| at == FRAME_LINE;
        match self.held().windows(FRAME_LINE.len()).position(is_frame) {
            Some(place) => {
                self.start += place;
                true
            }
            None => {
                // A line may be cut in two.
                self.start = self.held.len().saturating_sub(FRAME_LINE.len() - 1).max(self.start);
                false
            }
        }
    }

    /// Reads on; 0 at the end.
    fn read(&mut self, channel: &Channel) -> rustix::io::Result<usize> {
        self.held.drain(..self.start);
        self.start = 0;
        let before = self.held.len();
        self.held.resize(LINE_BYTES_MAX.max(before), 0);
        let read = channel.read(&mut self.held[before..]);
        self.held.truncate(before + read.unwrap_or(0));
        read
    }
}
