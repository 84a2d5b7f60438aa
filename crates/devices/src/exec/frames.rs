//! Control frames on a program's descriptor 3 (`docs/reference/modules.md`), without blocking.
//!
//! Frames are read only whole, so that the next worker never begins within one. While only a part of one is there, which a program that
//! writes each frame with one call never causes, the socket is looked at every [`PART_INTERVAL`]. A frame of the runner has no body and is written
//! with one call. While there is no room for it, it waits: one of each kind is enough, because a later one includes the earlier.

use contract::{Interest, PartnerError, PartnerResult, Readiness, Time};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;
use wire::module::{DEVICE_FRAME_BYTES_MAX, MODULE_HEADER_BYTES};
use wire::{ModuleFrame, ModuleHeader};

/// Frames that a program may send in [`WINDOW_NS`], at most. It has little to tell here.
const FRAMES_MAX: u32 = 64;
const WINDOW_NS: u64 = 1_000_000_000;
/// Time for the rest of a frame.
const PART_NS: u64 = 1_000_000_000;
const PART_INTERVAL: Duration = Duration::from_millis(10);

/// This host's end of descriptor 3.
#[derive(Debug)]
pub(super) struct FrameSocket {
    socket: OwnedFd,
    /// Frames since the start of the window.
    window: (Time, u32),
    /// Places of the frames that wait for room.
    neutral: Option<u64>,
    snapshot: Option<u64>,
    /// The first part of a frame has arrived.
    part: Option<Part>,
    has_ended: bool,
}

#[derive(Debug, Clone, Copy)]
struct Part {
    since: Time,
    retry_at: Time,
}

/// A peeked frame.
enum Peeked {
    Nothing,
    /// A frame has not arrived completely.
    Part,
    /// The other end has no open descriptor any more.
    End,
    Frame(ModuleHeader, ModuleFrame),
}

impl FrameSocket {
    pub(super) fn new(socket: OwnedFd) -> FrameSocket {
        FrameSocket {
            socket,
            window: (Time(0), 0),
            neutral: None,
            snapshot: None,
            part: None,
            has_ended: false,
        }
    }

    /// Returns the next whole frame and its place. Errors contain no name.
    pub(super) fn next(&mut self, now: Time) -> Result<Option<(u64, ModuleFrame)>, String> {
        if self.has_ended {
            return Ok(None);
        }
        let before = self.part.take();
        match self.peek()? {
            Peeked::Nothing => Ok(None),
            Peeked::Part => {
                let since = before.map_or(now, |part| part.since);
                if now.0.saturating_sub(since.0) > PART_NS {
                    return Err("it sent a part of a control frame, and not the rest".into());
                }
                self.part = Some(Part { since, retry_at: now.after(PART_INTERVAL) });
                Ok(None)
            }
            Peeked::End => {
                self.has_ended = true;
                Ok(None)
            }
            Peeked::Frame(header, frame) => {
                let mut taken = vec![0; MODULE_HEADER_BYTES + header.length as usize];
                self.receive(&mut taken, RecvFlags::empty()).map_err(|error| error.to_string())?;
                if now.0.saturating_sub(self.window.0.0) > WINDOW_NS {
                    self.window = (now, 0);
                }
                self.window.1 += 1;
                if self.window.1 > FRAMES_MAX {
                    return Err(format!("it sent more than {FRAMES_MAX} control frames within a second"));
                }
                Ok(Some((header.at, frame)))
            }
        }
    }

    fn peek(&self) -> Result<Peeked, String> {
        let mut header = [0; MODULE_HEADER_BYTES];
        let invalid = |error: wire::WireError| format!("it sent an invalid control frame: {error}");
        match self.receive(&mut header, RecvFlags::PEEK) {
            Ok(0) => return Ok(Peeked::End),
            Ok(MODULE_HEADER_BYTES) => {}
            Ok(_) => return Ok(Peeked::Part),
            Err(Errno::AGAIN | Errno::INTR) => return Ok(Peeked::Nothing),
            Err(Errno::CONNRESET) => return Ok(Peeked::End),
            Err(error) => return Err(format!("reading its control frames: {error}")),
        }
        let header = ModuleHeader::parse(&header).map_err(invalid)?;
        let length = header.length as usize;
        if length > DEVICE_FRAME_BYTES_MAX {
            return Err(format!(
                "it sent a control frame of {length} bytes, over the limit of {DEVICE_FRAME_BYTES_MAX}"
            ));
        }
        let mut whole = vec![0; MODULE_HEADER_BYTES + length];
        match self.receive(&mut whole, RecvFlags::PEEK) {
            Ok(count) if count == whole.len() => {}
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => return Ok(Peeked::Part),
            Err(error) => return Err(format!("reading its control frames: {error}")),
        }
        let frame = ModuleFrame::parse(header.kind, &whole[MODULE_HEADER_BYTES..]).map_err(invalid)?;
        Ok(Peeked::Frame(header, frame))
    }

    fn receive(&self, into: &mut [u8], flags: RecvFlags) -> rustix::io::Result<usize> {
        recv(&self.socket, into, flags | RecvFlags::DONTWAIT).map(|(count, _)| count)
    }

    /// Sends `neutral`, which follows `at` containers.
    pub(super) fn send_neutral(&mut self, at: u64) -> PartnerResult {
        self.neutral = Some(at);
        self.flush()
    }

    /// Sends `snapshot`, which follows `at` containers.
    pub(super) fn send_snapshot(&mut self, at: u64) -> PartnerResult {
        self.snapshot = Some(at);
        self.flush()
    }

    /// Sends the waiting frames for which there is room. A program that has closed its end gets none.
    pub(super) fn flush(&mut self) -> PartnerResult {
        for (waiting, frame) in
            [(&mut self.neutral, ModuleFrame::Neutral), (&mut self.snapshot, ModuleFrame::Snapshot)]
        {
            let Some(at) = *waiting else { continue };
            match send(&self.socket, &frame.emit(at), SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(_) | Err(Errno::PIPE | Errno::CONNRESET) => *waiting = None,
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(error) => return Err(PartnerError::os("sending a control frame", error)),
            }
        }
        Ok(())
    }

    /// Returns true once the program has closed its end.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Adds the readiness for [`FrameSocket::next`] as the second descriptor, or as a time.
    pub(super) fn add_to<'a>(&'a self, readiness: &mut Readiness<'a>) {
        match self.part {
            _ if self.has_ended => {}
            Some(part) => *readiness = std::mem::take(readiness).or_at(Some(part.retry_at)),
            None => readiness.descriptors[1] = Some((self.socket.as_fd(), Interest::Read)),
        }
    }
}
