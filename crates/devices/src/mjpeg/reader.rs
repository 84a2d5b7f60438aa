//! The device: a stream of JPEG images to pictures, at a pace.

use super::scan::{self, Scanner};
use crate::pace::{Pace, RATE_DEFAULT};
use crate::stream::{Channel, Gives};
use contract::{Body, Bytes, CtlReply, Interest, Message, Next, PartnerError, Readiness, Time};
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use wire::formats::video::{Geometry, Header, PixelFormat};

/// What is read at once.
const READ_BYTES: usize = 64 << 10;
/// Reads of one search for an image, so that a slow stream does not hold up its thread.
const READS_MAX: usize = 64;

/// Reads images.
pub(super) struct Reader {
    name: String,
    channel: Channel,
    rate_hz: f64,
    loops: bool,
    image_bytes_max: usize,
    held: Vec<u8>,
    scanner: Scanner,
    /// How much stood between the last image and the next.
    fill_bytes: usize,
    /// An image that is there, until its time comes.
    whole: Option<(Body, Time)>,
    is_ended: bool,
    /// What is held has been looked through.
    is_searched: bool,
    /// Another read part of an image, which is lost.
    is_lost: bool,
    pace: Pace,
    images: u64,
    bytes: u64,
}

impl Reader {
    /// `rate_hz` 0: as fast as they are taken.
    pub(super) fn new(
        name: String,
        channel: Channel,
        rate_hz: Option<f64>,
        loops: bool,
        image_bytes_max: usize,
    ) -> Self {
        let rate_hz = rate_hz.unwrap_or(f64::from(RATE_DEFAULT.0));
        let mut pace = Pace::default();
        pace.set_rate(rate_hz);
        Reader {
            name,
            channel,
            rate_hz,
            loops,
            image_bytes_max,
            held: Vec::new(),
            scanner: Scanner::default(),
            fill_bytes: 0,
            whole: None,
            is_ended: false,
            is_searched: true,
            is_lost: false,
            pace,
            images: 0,
            bytes: 0,
        }
    }

    fn wrong(&self, problem: impl std::fmt::Display) -> PartnerError {
        PartnerError::Peer(format!("{}: image {}: {problem}", self.name, self.images))
    }

    /// Looks for an image in what is held, and reads on if there is none; says whether there may be more at once.
    fn advance(&mut self, now: Time) -> Result<bool, PartnerError> {
        if self.is_lost {
            self.is_lost = !scan::skip_to_image(&mut self.held);
        } else if self.scanner.is_new() {
            let fill = scan::fill(&self.held);
            self.held.drain(..fill);
            self.fill_bytes += fill;
            if self.fill_bytes > self.image_bytes_max {
                return Err(self.wrong(format!("it does not begin within {} bytes", self.image_bytes_max)));
            }
        }
        if self.is_lost {
            // Nothing to look into yet.
        } else if let Some(image) = self.scanner.find(&self.held).map_err(|problem| self.wrong(problem))? {
            let rest = self.held.split_off(image.length);
            let bytes = Bytes::from(std::mem::replace(&mut self.held, rest));
            let geometry = Geometry::new(PixelFormat::Mjpeg, image.width.into(), image.height.into())
                .map_err(|error| self.wrong(error))?;
            let mut body = Body::from(bytes);
            body.push_front(&Header::frame(geometry.with_rate_hz(self.rate_hz)).emit());
            (self.images, self.fill_bytes) = (self.images + 1, 0);
            self.is_searched = false;
            self.whole = Some((body, self.pace.next(now)));
            return Ok(true);
        }
        self.is_searched = true;
        if self.held.len() >= self.image_bytes_max {
            return Err(self.wrong(format!("it does not end within {} bytes", self.image_bytes_max)));
        }
        let before = self.held.len();
        self.held.resize(before + READ_BYTES, 0);
        let read = self.channel.read(&mut self.held[before..]);
        self.held.truncate(before + read.unwrap_or(0));
        match read {
            // A single 0xff filled up, too.
            Ok(0) if !matches!(self.held[..], [] | [0xff]) && !self.is_lost => {
                Err(self.wrong("the stream ends within it"))
            }
            Ok(0) if self.loops && self.images > 0 => {
                rustix::fs::seek(&self.channel, SeekFrom::Start(0)).map_err(|error| {
                    PartnerError::os(format!("going back to the start of {}", self.name), error)
                })?;
                // A file without a single image would be read for ever.
                self.images = 0;
                Ok(true)
            }
            Ok(0) => {
                self.is_ended = true;
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

impl Gives for Reader {
    fn next(&mut self, now: Time) -> Result<Next, PartnerError> {
        for _ in 0..READS_MAX {
            match self.whole.take() {
                Some((body, due)) if due <= now => return Ok(Next::Message(Message::new(due, body))),
                Some(early) => {
                    self.whole = Some(early);
                    return Ok(Next::Nothing);
                }
                None if self.is_ended => return Ok(Next::End),
                None => {
                    if !self.advance(now)? {
                        return Ok(Next::Nothing);
                    }
                }
            }
        }
        Ok(Next::Nothing)
    }

    fn readiness(&self) -> Readiness<'_> {
        match &self.whole {
            Some((_, due)) => Readiness::at(*due),
            None if self.is_ended => Readiness::never(),
            None => {
                let now = self.channel.readiness(Interest::Read);
                Readiness { now: now.now || !self.is_searched, ..now }
            }
        }
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn ahead(&self) -> u64 {
        (self.held.len() + self.whole.as_ref().map_or(0, |(body, _)| body.len())) as u64
    }

    /// That something was read.
    fn leave(&self) -> Result<CtlReply, PartnerError> {
        Ok(if self.bytes > 0 { CtlReply::Bytes(scan::IMAGE.into()) } else { CtlReply::Pending })
    }

    fn inherit(&mut self, _left: &[u8]) -> Result<CtlReply, PartnerError> {
        self.is_lost = true;
        Ok(CtlReply::Done)
    }
}
