//! Partners on a descriptor that carries a byte stream: files, standard input and output, programs and sockets.
//!
//! ```text
//! descriptor ─► Channel ─► ReadBuffer ─► Deframer ─► messages    (StreamReader)
//! messages ─► enframe ─► PendingWrite ─► Channel ─► descriptor   (StreamWriter)
//! ```
//!
//! [`StreamPartner`] combines a reader and a writer. Classes with a richer format implement [`MessageReader`] and
//! [`MessageWriter`] themselves.

mod frame;
mod memory;
mod reader;
mod terminal;
#[cfg(test)]
pub(crate) mod tests;
mod writer;

use frame::{Deframer, Frame};
pub(crate) use frame::{FRAME_OPTION, MAX_OPTION};
pub(crate) use memory::{PendingWrite, ReadBuffer};
pub(crate) use reader::StreamReader;
pub(crate) use writer::StreamWriter;

use crate::flows::{Endpoint, FlowPartner};
use crate::plain::is_lost;
use contract::{
    Ctl, CtlReply, DeviceError, DeviceSpec, Direction, FlowKey, Format, Message, Next, PartnerError,
    PartnerResult, PullSlot, Pushed, Readiness, RecoveryCtl, Time,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use smallvec::SmallVec;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use sys::poller::can_wait;

/// A write of this size does not block once poll reports a pipe or terminal as writable (`PIPE_BUF`, `pipe(7)`).
const ATOMIC_BYTES: usize = 4096;

/// Largest write. On a kernel without preemption (`PREEMPT_NONE`) no other thread runs on the processor during the copy.
const WRITE_BYTES_MAX: usize = 256 << 10;

/// Slices of one gathering write, at most (`UIO_MAXIOV`).
const SLICES_MAX: usize = 1024;

/// Method to avoid blocking calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NonBlocking {
    /// Calls never block: the descriptor is non-blocking, or a regular file.
    Always,
    /// A socket that other processes may share: each call has the flag `MSG_DONTWAIT`.
    PerCall,
    /// A shared descriptor of another kind: each call is preceded by a poll.
    Poll,
}

/// A descriptor with non-blocking reads and writes.
#[derive(Debug)]
pub(crate) struct Channel {
    descriptor: OwnedFd,
    non_blocking: NonBlocking,
    /// False for regular files and devices like `/dev/null`: they are always ready and cannot be polled.
    can_wait: bool,
    kind: FileType,
}

impl Channel {
    /// Creates a channel on a descriptor that only this process uses, and makes it non-blocking.
    pub(crate) fn own(descriptor: OwnedFd) -> rustix::io::Result<Channel> {
        let flags = rustix::fs::fcntl_getfl(&descriptor)?;
        rustix::fs::fcntl_setfl(&descriptor, flags | OFlags::NONBLOCK)?;
        Channel::new(descriptor, NonBlocking::Always)
    }

    fn new(descriptor: OwnedFd, non_blocking: NonBlocking) -> rustix::io::Result<Channel> {
        let can_wait = can_wait(descriptor.as_fd())?;
        let mode = rustix::fs::fstat(&descriptor)?.st_mode;
        Ok(Channel { descriptor, non_blocking, can_wait, kind: FileType::from_raw_mode(mode) })
    }

    /// Creates a channel on a descriptor that other processes use too. Its file flags stay unchanged.
    pub(crate) fn shared(descriptor: OwnedFd) -> rustix::io::Result<Channel> {
        // A blocking terminal may accept a part of a write and then block, so a poll is not enough. One that was
        // reopened has its own flags.
        if rustix::termios::isatty(&descriptor)
            && rustix::fs::fcntl_getfl(&descriptor)?.contains(OFlags::NONBLOCK)
        {
            return Channel::own(descriptor);
        }
        let non_blocking = match rustix::net::sockopt::socket_type(&descriptor) {
            Ok(_) => NonBlocking::PerCall,
            Err(_) if !can_wait(descriptor.as_fd())? => NonBlocking::Always,
            Err(_) => NonBlocking::Poll,
        };
        Channel::new(descriptor, non_blocking)
    }

    pub(crate) fn readiness(&self, interest: contract::Interest) -> Readiness<'_> {
        match self.can_wait {
            true => Readiness::descriptor(self.descriptor.as_fd(), interest),
            false => Readiness::now(),
        }
    }

    /// Returns true if polling tells when a read finds bytes.
    fn can_wait(&self) -> bool {
        self.can_wait
    }

    /// Ends the stream for its reader.
    fn end(self) {
        // Another descriptor may keep a socket open for reading, so it needs a shutdown. For other kinds, closing the
        // descriptor ends the stream.
        if self.non_blocking == NonBlocking::Always {
            let _ = rustix::net::shutdown(&self.descriptor, rustix::net::Shutdown::Write);
        }
    }

    /// Polls for `flags` without waiting. Returns those that are set, and the error flags.
    fn poll(&self, flags: PollFlags) -> rustix::io::Result<PollFlags> {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut polled = [PollFd::new(&self.descriptor, flags)];
        poll(&mut polled, Some(&now))?;
        Ok(polled[0].revents())
    }

    /// Returns true for a regular file: its disk may be full for a while.
    pub(crate) fn is_on_disk(&self) -> bool {
        self.kind == FileType::RegularFile
    }

    /// Returns true for an error of a connection that is lost.
    fn is_lost(&self, error: Errno) -> bool {
        !self.is_on_disk() && is_lost(io::Error::from(error).kind())
    }

    /// Returns true if the file position is not 0: this or a duplicated descriptor was read or written. Always false
    /// for other kinds of files.
    pub(crate) fn is_in_use(&self) -> bool {
        self.is_on_disk() && self.position().is_ok_and(|position| position > 0)
    }

    /// Returns the position in a regular file.
    pub(crate) fn position(&self) -> PartnerResult<u64> {
        rustix::fs::tell(&self.descriptor)
            .map_err(|error| PartnerError::os("reading the position in a file", error))
    }

    /// Continues a regular file at this position.
    pub(crate) fn seek(&self, position: u64) -> PartnerResult {
        rustix::fs::seek(&self.descriptor, rustix::fs::SeekFrom::Start(position))
            .map(drop)
            .map_err(|error| PartnerError::os("going back in a file", error))
    }

    /// Returns the unread bytes in a FIFO that only this descriptor may keep open for reading; 0 otherwise.
    pub(crate) fn unread_bytes(&self) -> rustix::io::Result<u64> {
        let both = rustix::fs::fcntl_getfl(&self.descriptor)? & OFlags::ACCMODE == OFlags::RDWR;
        if self.kind == FileType::Fifo && both { rustix::io::ioctl_fionread(&self.descriptor) } else { Ok(0) }
    }

    /// Reads the available bytes. Returns `AGAIN` if there are none, 0 at the end.
    pub(crate) fn read(&self, into: &mut [u8]) -> rustix::io::Result<usize> {
        let count = match self.non_blocking {
            NonBlocking::PerCall => {
                rustix::net::recv(&self.descriptor, into, RecvFlags::DONTWAIT).map(|(count, _)| count)
            }
            NonBlocking::Poll if self.poll(PollFlags::IN)?.is_empty() => Err(Errno::AGAIN),
            NonBlocking::Poll | NonBlocking::Always => rustix::io::read(&self.descriptor, into),
        }?;
        // A read returns 0 also before a FIFO's first writer. Only after a writer has closed it is the hang-up flag set.
        if count == 0 && self.kind == FileType::Fifo && !self.poll(PollFlags::IN)?.contains(PollFlags::HUP) {
            return Err(Errno::AGAIN);
        }
        Ok(count)
    }

    /// Writes as many bytes as there is room for. Returns `AGAIN` if there is none.
    fn write(&self, slices: &[IoSlice<'_>]) -> rustix::io::Result<usize> {
        let first = slices.first().map_or(&[][..], |slice| slice);
        match self.non_blocking {
            NonBlocking::PerCall => {
                rustix::net::send(&self.descriptor, first, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
            }
            NonBlocking::Poll if self.poll(PollFlags::OUT)?.is_empty() => Err(Errno::AGAIN),
            NonBlocking::Poll => rustix::io::write(&self.descriptor, &first[..first.len().min(ATOMIC_BYTES)]),
            NonBlocking::Always => {
                rustix::io::writev(&self.descriptor, &slices[..slices.len().min(SLICES_MAX)])
            }
        }
    }

    /// Writes as much of `body` from `start` on as there is room for.
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

/// Opens the file of a descriptor again, non-blocking: the new descriptor has its own file flags.
pub(crate) fn reopen(descriptor: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
    let access = rustix::fs::fcntl_getfl(descriptor)? & OFlags::ACCMODE;
    let path = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
    rustix::fs::open(path, access | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK, Mode::empty())
}

/// The framing options of a stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Framing {
    pub(crate) frame: Frame,
    /// Largest message, bytes.
    pub(crate) max: usize,
}

impl Framing {
    /// Writes messages unchanged.
    pub(crate) fn none() -> Framing {
        Framing { frame: Frame::Chunk(1), max: wire::BODY_BYTES_MAX }
    }

    /// Containers of any size.
    pub(crate) fn containers() -> Framing {
        Framing { frame: Frame::Container, max: wire::BODY_BYTES_MAX }
    }

    /// Reads [`FRAME_OPTION`] and [`MAX_OPTION`] of a spec.
    pub(crate) fn of(spec: &DeviceSpec) -> Result<Framing, DeviceError> {
        let frame = Frame::parse(spec.options.text(FRAME_OPTION.name)).map_err(|problem| {
            DeviceError::Spec { what: format!("`{}:{}`", spec.class, spec.target), problem }
        })?;
        let max = match spec.options.is_auto(MAX_OPTION.name) {
            true => frame.bytes_max(),
            false => spec.options.size(MAX_OPTION.name),
        };
        Ok(Framing { frame, max })
    }
}

/// Returns the current time of the boot clock.
pub(crate) fn now() -> Time {
    Time(sys::clock::boot_ns())
}

/// The half of a partner that messages are pulled out of.
pub(crate) trait MessageReader: Send {
    /// Returns the next message.
    fn next(&mut self, now: Time) -> PartnerResult<Next>;

    /// Returns the readiness for [`MessageReader::next`].
    fn readiness(&self) -> Readiness<'_>;

    /// Returns the bytes read so far.
    fn bytes(&self) -> u64;

    /// Returns the bytes read but not yet returned in a message.
    fn ahead(&self) -> u64;

    /// Performs [`RecoveryCtl::SaveState`].
    fn save_state(&self) -> PartnerResult<CtlReply> {
        Err(UNSUPPORTED)
    }

    /// Performs [`RecoveryCtl::RestoreState`].
    fn restore_state(&mut self, state: &[u8]) -> PartnerResult<CtlReply> {
        let _ = state;
        Err(UNSUPPORTED)
    }
}

const UNSUPPORTED: PartnerError = PartnerError::Unsupported("this operation");

/// The half of a partner that messages are pushed into.
pub(crate) trait MessageWriter: Send {
    /// The stream that it writes.
    fn stream(&self) -> &StreamWriter;

    /// The stream that it writes.
    fn stream_mut(&mut self) -> &mut StreamWriter;

    /// Accepts a message, or returns it while the previous one is not written completely.
    fn push(&mut self, message: Message) -> Result<Pushed, (PartnerError, Message)>;

    /// Returns the pending write, if another process can resume it.
    fn pending(&mut self) -> Option<&mut PendingWrite> {
        Some(self.stream_mut().pending())
    }

    /// Performs [`RecoveryCtl::PartialWrite`] and [`RecoveryCtl::Skip`].
    fn resume_write(&mut self, operation: Ctl<'_>) -> PartnerResult<CtlReply> {
        self.pending().map_or(Err(UNSUPPORTED), |pending| pending.resume(operation))
    }

    /// Performs [`RecoveryCtl::Abandon`].
    fn abandon(&mut self, bytes: u64) -> PartnerResult<CtlReply> {
        let _ = bytes;
        Err(UNSUPPORTED)
    }

    /// Performs [`RecoveryCtl::SaveState`].
    fn save_state(&self) -> PartnerResult<CtlReply> {
        Err(UNSUPPORTED)
    }

    /// Performs [`RecoveryCtl::RestoreState`].
    fn restore_state(&mut self, state: &[u8]) -> PartnerResult<CtlReply> {
        let _ = state;
        Err(UNSUPPORTED)
    }
}

/// A reader, a writer, or both, as a partner.
#[derive(Debug)]
pub(crate) struct StreamPartner<R = StreamReader, W = StreamWriter> {
    reader: Option<R>,
    writer: Option<W>,
}

impl StreamPartner {
    /// Creates a partner of plain bytes.
    pub(crate) fn new(reader: Option<StreamReader>, writer: Option<StreamWriter>) -> FlowPartner<Self> {
        StreamPartner::of(Format::Bytes, reader, writer)
    }
}

impl<R: MessageReader, W: MessageWriter> StreamPartner<R, W> {
    /// Creates a partner for messages of this format.
    pub(crate) fn of(format: Format, reader: Option<R>, writer: Option<W>) -> FlowPartner<Self> {
        let out = reader.as_ref().map(|_| format.clone());
        let into = writer.as_ref().map(|_| format);
        FlowPartner::new(StreamPartner { reader, writer }, out, into)
    }
}

impl<R: MessageReader, W: MessageWriter> Endpoint for StreamPartner<R, W> {
    fn closed(&mut self, direction: Direction, _slot: &mut PullSlot) -> PartnerResult {
        match (direction, &mut self.writer) {
            (Direction::In, Some(writer)) => writer.stream_mut().close(),
            _ => Ok(()),
        }
    }

    fn push(&mut self, message: Message) -> Result<Pushed, (PartnerError, Message)> {
        match &mut self.writer {
            Some(writer) => writer.push(message),
            None => Err((UNSUPPORTED, message)),
        }
    }

    fn next(&mut self, now: Time) -> PartnerResult<Next> {
        self.reader.as_mut().map_or(Err(UNSUPPORTED), |reader| reader.next(now))
    }

    fn ctl(&mut self, _flow: FlowKey, operation: Ctl<'_>, _slot: &mut PullSlot) -> PartnerResult<CtlReply> {
        match operation {
            Ctl::Flush => {
                self.writer.as_mut().map_or(Ok(CtlReply::Done), |writer| writer.stream_mut().flush())
            }
            Ctl::Finish => {
                self.writer.as_mut().map_or(Ok(CtlReply::Done), |writer| writer.stream_mut().finish())
            }
            Ctl::Neutral => Ok(CtlReply::Done),
            Ctl::Recovery(RecoveryCtl::PartialWrite) | Ctl::Recovery(RecoveryCtl::Skip(_)) => {
                match &mut self.writer {
                    Some(writer) => writer.resume_write(operation),
                    None => Err(UNSUPPORTED),
                }
            }
            Ctl::Recovery(RecoveryCtl::Abandon(bytes)) => {
                self.writer.as_mut().map_or(Err(UNSUPPORTED), |writer| writer.abandon(bytes))
            }
            Ctl::Recovery(RecoveryCtl::ReadAhead) => match &self.reader {
                Some(reader) => Ok(CtlReply::Count(reader.ahead())),
                None => Err(UNSUPPORTED),
            },
            Ctl::Recovery(RecoveryCtl::SaveState) => match (&self.reader, &self.writer) {
                (Some(reader), None) => reader.save_state(),
                (None, Some(writer)) => writer.save_state(),
                _ => Err(UNSUPPORTED),
            },
            Ctl::Recovery(RecoveryCtl::RestoreState(state)) => match (&mut self.reader, &mut self.writer) {
                (Some(reader), None) => reader.restore_state(state),
                (None, Some(writer)) => writer.restore_state(state),
                _ => Err(UNSUPPORTED),
            },
            Ctl::Report => {
                let read = self.reader.as_ref().map(|reader| ("read bytes", reader.bytes() as f64));
                let written =
                    self.writer.as_ref().map(|writer| ("written bytes", writer.stream().bytes() as f64));
                let full =
                    self.writer.as_ref().map(|writer| writer.stream().disk_full()).filter(|full| *full > 0);
                let full = full.map(|full| ("disk full", full as f64));
                Ok(CtlReply::Report(read.into_iter().chain(written).chain(full).collect()))
            }
            _ => Err(UNSUPPORTED),
        }
    }

    fn readiness(&self, direction: Direction) -> Readiness<'_> {
        match direction {
            Direction::Out => self.reader.as_ref().map_or(Readiness::never(), R::readiness),
            Direction::In => {
                self.writer.as_ref().map_or(Readiness::never(), |writer| writer.stream().readiness())
            }
        }
    }
}
