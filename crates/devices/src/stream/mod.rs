//! Streams: partners on a descriptor that carries bytes, cut into messages by a [`Frame`]. Files, standard
//! input and output, programs and sockets differ only in where the descriptor comes from.

mod frame;
mod inlet;
mod memory;
mod outlet;
#[cfg(test)]
pub(crate) mod tests;

use frame::{Deframer, Frame};
pub(crate) use frame::{FRAME_OPTION, MAX_OPTION};
pub(crate) use inlet::Inlet;
pub(crate) use memory::{ReadBuffer, Unwritten};
pub(crate) use outlet::Outlet;

use crate::flows::Flows;
use contract::{
    Attributes, Ctl, CtlReply, DeviceError, DeviceSpec, Direction, FlowKey, FlowTemplate, Format, Message,
    Next, Partner, PartnerError, Pull, PullSlot, Pulled, Pushed, Readiness, Time,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use smallvec::SmallVec;
use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use sys::poller::can_wait;

/// Bytes that a write of at most this length, after the kernel said that there is room, puts into a pipe or a
/// terminal without waiting (`PIPE_BUF`, `pipe(7)`).
const ATOMIC_BYTES: usize = 4096;

/// Most bytes of one write: while the kernel copies them, it may give the processor to nobody else (`PREEMPT_NONE`).
const WRITE_BYTES_MAX: usize = 256 << 10;

/// Most slices of one gathering write (`UIO_MAXIOV`).
const SLICES_MAX: usize = 1024;

/// How a descriptor is kept from blocking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// It never waits: non-blocking, or a regular file.
    Free,
    /// A socket that others may hold too: every call says for itself that it must not wait.
    Socket,
    /// Neither can be had: the kernel is asked before every call.
    Asked,
}

/// A descriptor that never makes its user wait.
#[derive(Debug)]
pub(crate) struct Channel {
    descriptor: OwnedFd,
    manner: Manner,
    /// Regular files, and devices like `/dev/null`, cannot be waited for: they are always ready.
    can_wait: bool,
    kind: FileType,
}

impl Channel {
    /// A descriptor of our own, which is set to be non-blocking.
    pub(crate) fn own(descriptor: OwnedFd) -> rustix::io::Result<Channel> {
        let flags = rustix::fs::fcntl_getfl(&descriptor)?;
        rustix::fs::fcntl_setfl(&descriptor, flags | OFlags::NONBLOCK)?;
        Channel::new(descriptor, Manner::Free)
    }

    fn new(descriptor: OwnedFd, manner: Manner) -> rustix::io::Result<Channel> {
        let can_wait = can_wait(descriptor.as_fd())?;
        let mode = rustix::fs::fstat(&descriptor)?.st_mode;
        Ok(Channel { descriptor, manner, can_wait, kind: FileType::from_raw_mode(mode) })
    }

    /// A descriptor that other processes hold too: its flags are theirs and stay as they are.
    pub(crate) fn shared(descriptor: OwnedFd) -> rustix::io::Result<Channel> {
        // A terminal takes part of a write and waits with the rest, unless it was opened anew.
        if rustix::termios::isatty(&descriptor)
            && rustix::fs::fcntl_getfl(&descriptor)?.contains(OFlags::NONBLOCK)
        {
            return Channel::own(descriptor);
        }
        let manner = match rustix::net::sockopt::socket_type(&descriptor) {
            Ok(_) => Manner::Socket,
            Err(_) if !can_wait(descriptor.as_fd())? => Manner::Free,
            Err(_) => Manner::Asked,
        };
        Channel::new(descriptor, manner)
    }

    /// When it is ready.
    pub(crate) fn readiness(&self, interest: contract::Interest) -> Readiness<'_> {
        match self.can_wait {
            true => Readiness::descriptor(self.descriptor.as_fd(), interest),
            false => Readiness::now(),
        }
    }

    /// Lets the reader see the end.
    fn end(self) {
        // A socket of our own may be held elsewhere for reading, so it has to be told; anything else sees
        // the end when the descriptor goes.
        if self.manner == Manner::Free {
            let _ = rustix::net::shutdown(&self.descriptor, rustix::net::Shutdown::Write);
        }
    }

    /// What of `flags`, or of the flags that are always told, holds now.
    fn state(&self, flags: PollFlags) -> rustix::io::Result<PollFlags> {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut asked = [PollFd::new(&self.descriptor, flags)];
        poll(&mut asked, Some(&now))?;
        Ok(asked[0].revents())
    }

    /// Whether it lies on a disk, which may be full for now.
    pub(crate) fn is_on_disk(&self) -> bool {
        self.kind == FileType::RegularFile
    }

    /// Whether something was read or written already, through this descriptor or one that it is a copy of. What is no file
    /// on a disk does not say.
    pub(crate) fn is_begun(&self) -> bool {
        self.is_on_disk() && rustix::fs::tell(&self.descriptor).is_ok_and(|place| place > 0)
    }

    /// Bytes in a FIFO that this side itself keeps open for reading: nobody else may have taken them yet.
    pub(crate) fn kept_bytes(&self) -> rustix::io::Result<u64> {
        let both = rustix::fs::fcntl_getfl(&self.descriptor)? & OFlags::ACCMODE == OFlags::RDWR;
        if self.kind == FileType::Fifo && both { rustix::io::ioctl_fionread(&self.descriptor) } else { Ok(0) }
    }

    /// Reads what there is. `AGAIN` if there is nothing; 0 at the end.
    pub(crate) fn read(&self, into: &mut [u8]) -> rustix::io::Result<usize> {
        let count = match self.manner {
            Manner::Socket => rustix::net::recv(&self.descriptor, into, RecvFlags::DONTWAIT).map(|(n, _)| n),
            Manner::Asked if self.state(PollFlags::IN)?.is_empty() => Err(Errno::AGAIN),
            Manner::Asked | Manner::Free => rustix::io::read(&self.descriptor, into),
        }?;
        // A FIFO reads like one at its end until its first writer comes; only then it can be hung up.
        if count == 0 && self.kind == FileType::Fifo && !self.state(PollFlags::IN)?.contains(PollFlags::HUP) {
            return Err(Errno::AGAIN);
        }
        Ok(count)
    }

    /// Writes what there is room for. `AGAIN` if there is none.
    fn write(&self, slices: &[IoSlice<'_>]) -> rustix::io::Result<usize> {
        let first = slices.first().map_or(&[][..], |slice| slice);
        match self.manner {
            Manner::Socket => {
                rustix::net::send(&self.descriptor, first, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
            }
            Manner::Asked if self.state(PollFlags::OUT)?.is_empty() => Err(Errno::AGAIN),
            Manner::Asked => rustix::io::write(&self.descriptor, &first[..first.len().min(ATOMIC_BYTES)]),
            Manner::Free => rustix::io::writev(&self.descriptor, &slices[..slices.len().min(SLICES_MAX)]),
        }
    }

    /// Writes what there is room for of `body`, from `start` on.
    fn write_from(&self, body: &contract::Body, start: usize) -> rustix::io::Result<usize> {
        let mut slices: SmallVec<[IoSlice<'_>; 8]> = SmallVec::new();
        let (mut skip, mut room) = (start, WRITE_BYTES_MAX);
        for chunk in body.chunks() {
            let skipped = skip.min(chunk.len());
            let taken = room.min(chunk.len() - skipped);
            (skip, room) = (skip - skipped, room - taken);
            if taken > 0 {
                slices.push(IoSlice::new(&chunk[skipped..skipped + taken]));
            }
        }
        self.write(&slices)
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// The same file by a descriptor with flags of its own, one of which is that it does not block.
pub(crate) fn reopen(descriptor: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
    let access = rustix::fs::fcntl_getfl(descriptor)? & OFlags::ACCMODE;
    let path = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
    rustix::fs::open(path, access | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK, Mode::empty())
}

/// How the user wants a stream cut.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Framing {
    /// Into what.
    pub(crate) frame: Frame,
    /// Largest message, in bytes.
    pub(crate) max: usize,
}

impl Framing {
    /// Messages are written as they are.
    pub(crate) fn none() -> Framing {
        Framing { frame: Frame::Chunk(1), max: wire::BODY_BYTES_MAX }
    }

    /// Reads [`FRAME_OPTION`] and [`MAX_OPTION`] of a spec.
    pub(crate) fn of(spec: &DeviceSpec) -> Result<Framing, DeviceError> {
        let frame = Frame::parse(spec.options.text(FRAME_OPTION.name)).map_err(|problem| {
            DeviceError::Spec { what: format!("`{}:{}`", spec.class, spec.target), problem }
        })?;
        Ok(Framing { frame, max: spec.options.size(MAX_OPTION.name) })
    }
}

/// The current time of the boot clock.
pub(crate) fn now() -> Time {
    Time(sys::clock::boot_ns())
}

/// The half of a partner that messages are pulled out of.
pub(crate) trait Gives: Send {
    /// The next message.
    fn next(&mut self, now: Time) -> Result<Next, PartnerError>;

    /// When there is one, or more of one.
    fn readiness(&self) -> Readiness<'_>;

    /// Bytes read so far.
    fn bytes(&self) -> u64;

    /// Bytes read and not given out yet.
    fn ahead(&self) -> u64;

    /// What another has to know of what was read ([`Ctl::Leave`]).
    fn leave(&self) -> Result<CtlReply, PartnerError> {
        Err(UNSUPPORTED)
    }

    /// Another left this.
    fn inherit(&mut self, left: &[u8]) -> Result<CtlReply, PartnerError> {
        let _ = left;
        Err(UNSUPPORTED)
    }
}

const UNSUPPORTED: PartnerError = PartnerError::Unsupported("this operation");

/// The half of a partner that messages are pushed into.
pub(crate) trait Takes: Send {
    /// Takes a message, or gives it back while the one before it does not fit.
    fn push(&mut self, message: Message) -> Result<Pushed, (PartnerError, Message)>;

    /// Writes what is unwritten.
    fn flush(&mut self) -> Result<CtlReply, PartnerError>;

    /// What is unwritten, if it can be gone on with by another.
    fn unwritten(&mut self) -> Option<&mut Unwritten> {
        None
    }

    /// [`Ctl::Partway`] and [`Ctl::Skip`].
    fn go_on(&mut self, operation: Ctl<'_>) -> Result<CtlReply, PartnerError> {
        match (self.unwritten(), operation) {
            (Some(unwritten), Ctl::Partway) => Ok(unwritten.partway()),
            (Some(unwritten), Ctl::Skip(bytes)) => {
                unwritten.skip(bytes);
                Ok(CtlReply::Done)
            }
            _ => Err(UNSUPPORTED),
        }
    }

    /// Writes what is unwritten and lets the reader see the end.
    fn finish(&mut self) -> Result<CtlReply, PartnerError>;

    /// Lets go; an error if something stays unwritten.
    fn close(&mut self) -> Result<(), PartnerError>;

    /// When there is room.
    fn readiness(&self) -> Readiness<'_>;

    /// Bytes written so far.
    fn bytes(&self) -> u64;

    /// How often the disk was found full, and what was pushed had to wait for room.
    fn disk_full(&self) -> u64;

    /// What another has to know of what was written ([`Ctl::Leave`]).
    fn leave(&self) -> Result<CtlReply, PartnerError> {
        Err(UNSUPPORTED)
    }

    /// Another left this.
    fn inherit(&mut self, left: &[u8]) -> Result<CtlReply, PartnerError> {
        let _ = left;
        Err(UNSUPPORTED)
    }
}

/// A partner on one descriptor each way, or only one way.
#[derive(Debug)]
pub(crate) struct StreamPartner<O = Outlet, I = Inlet> {
    outlet: Option<O>,
    inlet: Option<I>,
    format: Format,
    flows: Flows,
    slot: PullSlot,
}

impl StreamPartner {
    /// Of plain bytes.
    pub(crate) fn new(outlet: Option<Outlet>, inlet: Option<Inlet>) -> Self {
        StreamPartner::of(Format::Bytes, outlet, inlet)
    }
}

impl<O: Gives, I: Takes> StreamPartner<O, I> {
    /// Of messages of this format.
    pub(crate) fn of(format: Format, outlet: Option<O>, inlet: Option<I>) -> Self {
        let flows = Flows::new(outlet.is_some(), inlet.is_some());
        StreamPartner { outlet, inlet, format, flows, slot: PullSlot::default() }
    }
}

impl<O: Gives, I: Takes> Partner for StreamPartner<O, I> {
    fn open(&mut self, template: &FlowTemplate, _attributes: &Attributes) -> Result<FlowKey, PartnerError> {
        self.flows.open(template, &self.format)
    }

    fn close(&mut self, flow: FlowKey) -> Result<(), PartnerError> {
        match (self.flows.close(flow)?, &mut self.inlet) {
            (Direction::In, Some(inlet)) => inlet.close(),
            _ => Ok(()),
        }
    }

    fn push(&mut self, flow: FlowKey, message: Message) -> Result<Pushed, (PartnerError, Message)> {
        match (self.flows.check(flow, Direction::In), &mut self.inlet) {
            (Ok(()), Some(inlet)) => inlet.push(message),
            (Err(error), _) => Err((error, message)),
            (Ok(()), None) => Err((PartnerError::NoFlow(flow), message)),
        }
    }

    fn pull(&mut self, flow: FlowKey, want: Pull<'_>) -> Result<Pulled, PartnerError> {
        self.flows.check(flow, Direction::Out)?;
        match &mut self.outlet {
            Some(outlet) => self.slot.answer(crate::flows::OUT, want, || outlet.next(now())),
            None => Err(PartnerError::NoFlow(flow)),
        }
    }

    fn ctl(&mut self, flow: FlowKey, operation: Ctl<'_>) -> Result<CtlReply, PartnerError> {
        self.flows.check_any(flow)?;
        match operation {
            Ctl::Flush => self.inlet.as_mut().map_or(Ok(CtlReply::Done), I::flush),
            Ctl::Finish => self.inlet.as_mut().map_or(Ok(CtlReply::Done), I::finish),
            Ctl::Neutral => Ok(CtlReply::Done),
            Ctl::Partway | Ctl::Skip(_) => match &mut self.inlet {
                Some(inlet) => inlet.go_on(operation),
                None => Err(UNSUPPORTED),
            },
            Ctl::Ahead => match &self.outlet {
                Some(outlet) => Ok(CtlReply::Count(outlet.ahead())),
                None => Err(UNSUPPORTED),
            },
            Ctl::Leave => match (&self.outlet, &self.inlet) {
                (Some(outlet), None) => outlet.leave(),
                (None, Some(inlet)) => inlet.leave(),
                _ => Err(UNSUPPORTED),
            },
            Ctl::GoOn(left) => match (&mut self.outlet, &mut self.inlet) {
                (Some(outlet), None) => outlet.inherit(left),
                (None, Some(inlet)) => inlet.inherit(left),
                _ => Err(UNSUPPORTED),
            },
            Ctl::Report => {
                let read = self.outlet.as_ref().map(|outlet| ("read bytes", outlet.bytes() as f64));
                let written = self.inlet.as_ref().map(|inlet| ("written bytes", inlet.bytes() as f64));
                let full = self.inlet.as_ref().map(I::disk_full).filter(|full| *full > 0);
                let full = full.map(|full| ("disk full", full as f64));
                Ok(CtlReply::Report(read.into_iter().chain(written).chain(full).collect()))
            }
            _ => Err(UNSUPPORTED),
        }
    }

    fn readiness(&self, flow: FlowKey, direction: Direction) -> Readiness<'_> {
        if !self.flows.names(flow, direction) {
            return Readiness::never();
        }
        match direction {
            Direction::Out if self.slot.is_held() => Readiness::now(),
            Direction::Out => self.outlet.as_ref().map_or(Readiness::never(), O::readiness),
            Direction::In => self.inlet.as_ref().map_or(Readiness::never(), I::readiness),
        }
    }
}
