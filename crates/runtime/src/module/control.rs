//! Control frames on a descriptor: from and to a runner (`--fd-control`), or the other half of the pair (`-c`).

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

/// Bytes of frames that may wait to be handled, or to be written, before nothing more is taken.
const WAITING_BYTES_MAX: usize = MODULE_FRAME_BYTES_MAX + (64 << 10);
const READ_BYTES: usize = 16 << 10;
/// How long a socket that is there may refuse: between its making and its listening.
const REFUSAL: Duration = Duration::from_secs(1);
const RETRY: Duration = Duration::from_millis(5);

/// A frame that came: how many containers went before it, and what it says.
pub(super) type Placed = (u64, ModuleFrame);

/// Both ways of a control channel; never blocks.
pub(super) struct Control {
    state: State,
    received: BytesMut,
    frames: VecDeque<Placed>,
    /// Bytes of the frames.
    frames_bytes: usize,
    unsent: BytesMut,
    at_end: bool,
}

enum State {
    /// There is none: what is said goes nowhere.
    Nobody,
    /// The other half has not come yet.
    Listening(UnixListener, PathBuf),
    Joined(OwnedFd),
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

    /// No channel at all.
    pub(super) fn none() -> Control {
        Control::new(State::Nobody)
    }

    /// On a descriptor that the process was given for it.
    pub(super) fn on(descriptor: BorrowedFd<'_>) -> io::Result<Control> {
        Ok(Control::new(State::Joined(pipes::own(descriptor)?)))
    }

    /// With whoever names the same path: who comes first listens, the other connects.
    pub(super) fn meet(path: &Path) -> io::Result<Control> {
        let until = Instant::now() + REFUSAL;
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
                    return Ok(Control::new(State::Joined(stream.into())));
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused && Instant::now() >= until => {
                    let advice = format!(
                        "nobody listens there: if both halves have ended, `rm {}` and start them again",
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

    /// Whether there is somebody to talk to, now or later.
    pub(super) fn is_any(&self) -> bool {
        !matches!(self.state, State::Nobody)
    }

    /// Whether the other side has gone, and all that it said was handled.
    pub(super) fn has_ended(&self) -> bool {
        self.at_end && self.frames.is_empty()
    }

    /// Whether what is said still finds room: if not, nothing is done that could make more.
    pub(super) fn has_room(&self) -> bool {
        self.unsent.len() < WAITING_BYTES_MAX
    }

    /// Says something, at the end of what waits to be sent.
    pub(super) fn send(&mut self, at: u64, frame: &ModuleFrame) {
        if self.is_any() && !self.at_end {
            self.unsent.extend_from_slice(&frame.emit(at));
        }
    }

    /// The first frame that waits.
    pub(super) fn peek(&self) -> Option<&Placed> {
        self.frames.front()
    }

    /// Takes it.
    pub(super) fn take(&mut self) -> Option<Placed> {
        let placed = self.frames.pop_front();
        if self.frames.is_empty() {
            self.frames_bytes = 0;
        }
        placed
    }

    /// Reads all that there is, and cuts it into frames.
    pub(super) fn receive(&mut self) -> io::Result<()> {
        if let State::Listening(listener, path) = &self.state {
            match listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(true)?;
                    // The name has served: another pair may use it.
                    let _ = std::fs::remove_file(path);
                    self.state = State::Joined(stream.into());
                }
                Err(error) if is_not_now(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        while let State::Joined(descriptor) = &self.state
            && !self.at_end
            && self.frames_bytes < WAITING_BYTES_MAX
        {
            let mut bytes = [0; READ_BYTES];
            match rustix::io::read(descriptor, &mut bytes) {
                Ok(0) | Err(Errno::CONNRESET) => self.at_end = true,
                Ok(count) => {
                    self.received.extend_from_slice(&bytes[..count]);
                    self.cut().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Writes what there is room for; whether that was everything.
    pub(super) fn flush(&mut self) -> io::Result<bool> {
        while let State::Joined(descriptor) = &self.state
            && !self.unsent.is_empty()
        {
            match rustix::io::write(descriptor, &self.unsent) {
                Ok(count) => self.unsent.advance(count),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                // Nobody is left to hear it.
                Err(Errno::PIPE | Errno::CONNRESET) => self.unsent.clear(),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(self.unsent.is_empty())
    }

    /// Whether something waits for room.
    pub(super) fn is_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Whether the last wait in `poller` found something here.
    pub(super) fn is_ready(&self, poller: &Poller) -> bool {
        match &self.state {
            State::Nobody => false,
            State::Listening(listener, _) => poller.is_ready(listener.as_fd()),
            State::Joined(descriptor) => poller.is_ready(descriptor.as_fd()),
        }
    }

    /// Waits in `poller` for what comes, and for room if something waits.
    pub(super) fn want(&self, poller: &mut Poller) {
        match &self.state {
            State::Nobody => {}
            State::Listening(listener, _) => poller.want(listener.as_fd(), true, false),
            State::Joined(descriptor) => {
                let reads = !self.at_end && self.frames_bytes < WAITING_BYTES_MAX;
                if reads || !self.unsent.is_empty() {
                    poller.want(descriptor.as_fd(), reads, !self.unsent.is_empty());
                }
            }
        }
    }

    fn cut(&mut self) -> Result<(), WireError> {
        while self.received.len() >= MODULE_HEADER_BYTES {
            let header = ModuleHeader::parse(&self.received)?;
            let whole = MODULE_HEADER_BYTES + header.length as usize;
            if self.received.len() < whole {
                break;
            }
            let frame = ModuleFrame::parse(header.kind, &self.received[MODULE_HEADER_BYTES..whole])?;
            self.received.advance(whole);
            self.frames_bytes += whole;
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
