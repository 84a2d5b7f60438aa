//! Control frames on a descriptor, between a half and its runner (`--fd-control`) or the other half of the pair
//! (`-c`).

use super::pipes;
use bytes::{Buf, BytesMut};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use sys::poller::Poller;
use wire::module::{MODULE_FRAME_BYTES_MAX, MODULE_HEADER_BYTES};
use wire::{ModuleFrame, ModuleHeader, WireError};

/// Most bytes of frames that wait to be handled; most bytes that wait to be written.
const WAITING_BYTES_MAX: usize = MODULE_FRAME_BYTES_MAX + (64 << 10);
const READ_BYTES: usize = 16 << 10;
/// How long a socket may refuse connections after it was created, before its owner listens.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);
const RETRY: Duration = Duration::from_millis(5);

/// A received frame, with the number of containers to handle before it.
pub(super) type PositionedFrame = (u64, ModuleFrame);

/// A control channel. It never blocks.
pub(super) struct Control {
    state: State,
    received: BytesMut,
    frames: VecDeque<PositionedFrame>,
    /// Size of the waiting frames.
    frames_bytes: usize,
    unsent: BytesMut,
    at_end: bool,
}

enum State {
    /// No channel; sent frames are discarded.
    Absent,
    /// The other half has not connected yet.
    Listening(UnixListener, PathBuf),
    Connected(OwnedFd),
}

impl Control {
    fn new(state: State) -> Control {
        Control {
            state,
            received: BytesMut::new(),
            frames: VecDeque::new(),
            frames_bytes: 0,
            unsent: BytesMut::new(),
            at_end: false,
        }
    }

    /// Creates no channel.
    pub(super) fn none() -> Control {
        Control::new(State::Absent)
    }

    /// Uses a descriptor that the process inherited.
    pub(super) fn on(descriptor: BorrowedFd<'_>) -> io::Result<Control> {
        Ok(Control::new(State::Connected(pipes::duplicate(descriptor)?)))
    }

    /// Connects to the other half, which names the same path: the first one listens, the second connects.
    pub(super) fn connect(path: &Path) -> io::Result<Control> {
        let until = Instant::now() + REFUSAL_TIMEOUT;
        loop {
            match UnixListener::bind(path) {
                Ok(listener) => {
                    listener.set_nonblocking(true)?;
                    return Ok(Control::new(State::Listening(listener, path.into())));
                }
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) => return Err(error),
            }
            match UnixStream::connect(path) {
                Ok(stream) => {
                    stream.set_nonblocking(true)?;
                    return Ok(Control::new(State::Connected(stream.into())));
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused && Instant::now() >= until => {
                    let advice = format!(
                        "no process listens there: if both halves have ended, run `rm {}` and start them again",
                        path.display()
                    );
                    return Err(io::Error::new(error.kind(), advice));
                }
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) =>
                {
                    std::thread::sleep(RETRY);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns true if there is a channel, or will be.
    pub(super) fn is_present(&self) -> bool {
        !matches!(self.state, State::Absent)
    }

    /// Returns true if the other side has closed the channel and all its frames were handled.
    pub(super) fn has_ended(&self) -> bool {
        self.at_end && self.frames.is_empty()
    }

    /// Returns true if there is room for more frames. If not, the caller handles nothing that could send one.
    pub(super) fn has_room(&self) -> bool {
        self.unsent.len() < WAITING_BYTES_MAX
    }

    /// Queues a frame to send.
    pub(super) fn send(&mut self, at: u64, frame: &ModuleFrame) {
        if self.is_present() && !self.at_end {
            self.unsent.extend_from_slice(&frame.emit(at));
        }
    }

    /// The waiting frames, in order.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &PositionedFrame> {
        self.frames.iter()
    }

    /// Takes the next waiting frame.
    pub(super) fn take(&mut self) -> Option<PositionedFrame> {
        self.take_at(0)
    }

    /// Takes the waiting frame with this index.
    pub(super) fn take_at(&mut self, index: usize) -> Option<PositionedFrame> {
        let frame = self.frames.remove(index);
        if self.frames.is_empty() {
            self.frames_bytes = 0;
        }
        frame
    }

    /// Accepts a connection if one waits; reads and parses all frames that are ready.
    pub(super) fn receive(&mut self) -> io::Result<()> {
        if let State::Listening(listener, path) = &self.state {
            match listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(true)?;
                    // Free the path for another pair.
                    let _ = std::fs::remove_file(path);
                    self.state = State::Connected(stream.into());
                }
                Err(error) if is_not_now(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        while let State::Connected(descriptor) = &self.state
            && !self.at_end
            && self.frames_bytes < WAITING_BYTES_MAX
        {
            let mut bytes = [0; READ_BYTES];
            match rustix::io::read(descriptor, &mut bytes) {
                Ok(0) | Err(Errno::CONNRESET) => self.at_end = true,
                Ok(count) => {
                    self.received.extend_from_slice(&bytes[..count]);
                    self.parse_frames().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Writes as far as there is room. Returns true if everything was written.
    pub(super) fn flush(&mut self) -> io::Result<bool> {
        while let State::Connected(descriptor) = &self.state
            && !self.unsent.is_empty()
        {
            match rustix::io::write(descriptor, &self.unsent) {
                Ok(count) => self.unsent.advance(count),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                // The other side has closed the channel.
                Err(Errno::PIPE | Errno::CONNRESET) => self.unsent.clear(),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(self.unsent.is_empty())
    }

    /// Returns true if frames wait for room.
    pub(super) fn is_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Returns true if the last wait in `poller` found this channel ready.
    pub(super) fn is_ready(&self, poller: &Poller) -> bool {
        match &self.state {
            State::Absent => false,
            State::Listening(listener, _) => poller.is_ready(listener.as_fd()),
            State::Connected(descriptor) => poller.is_ready(descriptor.as_fd()),
        }
    }

    /// Registers with `poller`: for input, and for room if frames wait.
    pub(super) fn register(&self, poller: &mut Poller) {
        match &self.state {
            State::Absent => {}
            State::Listening(listener, _) => poller.register(listener.as_fd(), true, false),
            State::Connected(descriptor) => {
                let reads = !self.at_end && self.frames_bytes < WAITING_BYTES_MAX;
                if reads || !self.unsent.is_empty() {
                    poller.register(descriptor.as_fd(), reads, !self.unsent.is_empty());
                }
            }
        }
    }

    fn parse_frames(&mut self) -> Result<(), WireError> {
        while self.received.len() >= MODULE_HEADER_BYTES {
            let header = ModuleHeader::parse(&self.received)?;
            let bytes = MODULE_HEADER_BYTES + header.length as usize;
            if self.received.len() < bytes {
                break;
            }
            let frame = ModuleFrame::parse(header.kind, &self.received[MODULE_HEADER_BYTES..bytes])?;
            self.received.advance(bytes);
            self.frames_bytes += bytes;
            self.frames.push_back((header.at, frame));
        }
        Ok(())
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        if let State::Listening(_, path) = &self.state {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn is_not_now(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
