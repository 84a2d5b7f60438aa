//! Sockets: receiving into memory that was never zeroed, and datagrams in batches that the kernel cuts and
//! joins (`UDP_SEGMENT` and `UDP_GRO`, `udp(7)`). When the kernel had what, it tells where it is asked to
//! (`SO_TIMESTAMPING`, the kernel's `networking/timestamping.rst`).

use crate::clock::real_to_boot_ns;
use bytes::BytesMut;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use std::io::{self, IoSlice};
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

/// Most slices that one gathering system call takes (`UIO_MAXIOV`).
pub const SLICES_MAX: usize = 1024;

/// Most datagrams that one [`send_datagrams`] takes on every kernel that has it (`UDP_MAX_SEGMENTS`).
pub const SEGMENTS_MAX: usize = 64;

/// Numbers of `linux/udp.h`, of which libc names none for glibc.
const UDP_SEGMENT: libc::c_int = 103;
const UDP_GRO: libc::c_int = 104;

/// Times of the kernel's own making, with numbers and without the data again.
const TIMES_KEPT: u32 =
    libc::SOF_TIMESTAMPING_SOFTWARE | libc::SOF_TIMESTAMPING_OPT_ID | libc::SOF_TIMESTAMPING_OPT_TSONLY;
/// Of a stream, numbers count from the byte that is written next (Linux 6.2).
const TIMES_OF_STREAM: u32 = 1 << 16;
/// Which times one call asks for.
const TIMES_ASKED: u32 =
    libc::SOF_TIMESTAMPING_TX_SCHED | libc::SOF_TIMESTAMPING_TX_SOFTWARE | libc::SOF_TIMESTAMPING_TX_ACK;
/// Numbers of `linux/errqueue.h`: what a time is of.
const TOLD_SCHEDULED: u32 = 1;
const TOLD_ACKNOWLEDGED: u32 = 2;

/// Where received bytes go: behind what `buffer` holds, at most `limit` of them and never beyond its capacity.
#[derive(Debug)]
pub struct Room<'a> {
    /// Grows by what was received.
    pub buffer: &'a mut BytesMut,
    /// Most bytes to receive here.
    pub limit: usize,
}

impl Room<'_> {
    /// How many bytes fit.
    pub fn bytes(&self) -> usize {
        self.limit.min(self.buffer.capacity() - self.buffer.len())
    }

    fn iovec(&mut self) -> libc::iovec {
        let bytes = self.bytes();
        libc::iovec { iov_base: self.buffer.spare_capacity_mut().as_mut_ptr().cast(), iov_len: bytes }
    }

    /// # Safety
    /// The first `count` bytes of what [`Room::iovec`] gave have been written, and `count` is at most its
    /// length.
    unsafe fn filled(&mut self, count: usize) {
        // SAFETY: they are written and within the capacity, as the caller promises.
        unsafe { self.buffer.set_len(self.buffer.len() + count) }
    }
}

/// Receives from a stream into `rooms`, one after the other, without waiting. 0 is the end of the stream
/// (or no room). Errors as of `recvmsg(2)`; none to receive is `WouldBlock`.
pub fn receive<const N: usize>(socket: impl AsFd, rooms: [Room<'_>; N]) -> io::Result<usize> {
    // SAFETY: all zero is a valid `msghdr` of no address, no data and no control bytes.
    receive_rooms(socket.as_fd(), rooms, &mut unsafe { std::mem::zeroed() })
}

/// [`receive`], and when the kernel had the last of it, nanoseconds of the system's clock ([`real_to_boot_ns`]
/// makes the boot clock's of them), if it was told to [`keep_times`].
pub fn receive_timed<const N: usize>(
    socket: impl AsFd,
    rooms: [Room<'_>; N],
) -> io::Result<(usize, Option<u64>)> {
    let mut control = Control([0; CONTROL_BYTES]);
    let mut header = control.header();
    let received = receive_rooms(socket.as_fd(), rooms, &mut header)?;
    Ok((received, told(&header).at_real_ns))
}

fn receive_rooms<const N: usize>(
    socket: BorrowedFd<'_>,
    mut rooms: [Room<'_>; N],
    header: &mut libc::msghdr,
) -> io::Result<usize> {
    let mut vector = rooms.each_mut().map(Room::iovec);
    header.msg_iov = vector.as_mut_ptr();
    header.msg_iovlen = N as _;
    let received = receive_message(socket, header, 0)?;
    let mut left = received;
    for room in &mut rooms {
        let here = left.min(room.bytes());
        // SAFETY: the kernel filled the rooms in order, with `received` bytes in all.
        unsafe { room.filled(here) };
        left -= here;
    }
    Ok(received)
}

/// What one call of [`receive_datagrams`] brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// Bytes appended to the buffer.
    pub bytes: usize,
    /// Bytes in each datagram but the last, which may be shorter.
    pub segment: usize,
    /// Whether there was more than fitted; what was over is lost.
    pub truncated: bool,
    /// When the kernel had it, nanoseconds of the system's clock ([`real_to_boot_ns`] makes the boot clock's of
    /// them), if it was told to [`keep_times`].
    pub arrived_real_ns: Option<u64>,
}

/// Bytes for the control messages that one call has or brings.
const CONTROL_BYTES: usize = 256;

/// Room for them, aligned as the kernel wants it.
#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

impl Control {
    /// The header of a message with this room and nothing else.
    fn header(&mut self) -> libc::msghdr {
        // SAFETY: all zero is a valid `msghdr` of no address, no data and no control bytes.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_control = self.0.as_mut_ptr().cast();
        header.msg_controllen = self.0.len() as _;
        header
    }

    /// Puts a control message behind `used` bytes of others; says how many there are then.
    fn put<const N: usize>(&mut self, used: usize, level: i32, kind: i32, value: [u8; N]) -> usize {
        let mut header = self.header();
        header.msg_control = self.0[used..].as_mut_ptr().cast();
        header.msg_controllen = (CONTROL_BYTES - used) as _;
        // SAFETY: what is left of the room is larger than this message, or indexing had failed, as `N` is a few
        // bytes, and `used` is a sum of whole messages, so that it is aligned for the next.
        unsafe {
            let message = libc::CMSG_FIRSTHDR(&header);
            (*message).cmsg_level = level;
            (*message).cmsg_type = kind;
            (*message).cmsg_len = libc::CMSG_LEN(N as u32) as _;
            libc::CMSG_DATA(message).cast::<[u8; N]>().write_unaligned(value);
            used + libc::CMSG_SPACE(N as u32) as usize
        }
    }
}

/// Receives one datagram, or several of one size that the kernel joined (see [`join_datagrams`]), behind what
/// `into` holds, without waiting. 64 KiB of spare capacity hold whatever comes.
pub fn receive_datagrams(socket: impl AsFd, into: &mut BytesMut) -> io::Result<Received> {
    let mut room = Room { buffer: into, limit: usize::MAX };
    let mut vector = [room.iovec()];
    let mut control = Control([0; CONTROL_BYTES]);
    let mut header = control.header();
    header.msg_iov = vector.as_mut_ptr();
    header.msg_iovlen = 1;
    let bytes = receive_message(socket.as_fd(), &mut header, 0)?.min(room.bytes());
    // SAFETY: the kernel wrote `bytes` bytes from the start of the room.
    unsafe { room.filled(bytes) };
    let told = told(&header);
    Ok(Received {
        bytes,
        segment: told.segment.filter(|size| *size > 0).unwrap_or(bytes),
        truncated: header.msg_flags & libc::MSG_TRUNC != 0,
        arrived_real_ns: told.at_real_ns,
    })
}

fn receive_message(
    socket: BorrowedFd<'_>,
    header: &mut libc::msghdr,
    flags: libc::c_int,
) -> io::Result<usize> {
    loop {
        // SAFETY: every pointer in the header is to memory of the caller's that outlives the call, with its
        // length beside it; the kernel writes only there.
        let count = unsafe { libc::recvmsg(socket.as_raw_fd(), header, libc::MSG_DONTWAIT | flags) };
        match usize::try_from(count) {
            Ok(count) => return Ok(count),
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
}

/// What the kernel said beside the data.
#[derive(Debug, Default)]
struct Beside {
    segment: Option<usize>,
    at_real_ns: Option<u64>,
    error: Option<libc::sock_extended_err>,
}

fn told(header: &libc::msghdr) -> Beside {
    let mut told = Beside::default();
    // SAFETY: the kernel filled the header's control bytes, which are alive; the macros stay within them.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(header) };
    // SAFETY: the macros give null or a message within those bytes.
    while let Some(message) = unsafe { next.as_ref() } {
        match (message.cmsg_level, message.cmsg_type) {
            (libc::SOL_UDP, UDP_GRO) => {
                told.segment = content::<libc::c_int>(message).and_then(|size| usize::try_from(size).ok());
            }
            (libc::SOL_SOCKET, libc::SCM_TIMESTAMPING) => {
                let times = content::<[libc::timespec; 3]>(message);
                let ns = times
                    .map(|[software, ..]| software.tv_sec as u64 * 1_000_000_000 + software.tv_nsec as u64);
                told.at_real_ns = ns.filter(|ns| *ns > 0);
            }
            (libc::SOL_IP, libc::IP_RECVERR) | (libc::SOL_IPV6, libc::IPV6_RECVERR) => {
                told.error = content::<libc::sock_extended_err>(message);
            }
            _ => {}
        }
        // SAFETY: as above.
        next = unsafe { libc::CMSG_NXTHDR(header, message) };
    }
    told
}

/// What a control message says, if it is as long as that.
fn content<T: Copy>(message: &libc::cmsghdr) -> Option<T> {
    // SAFETY: a message has as many bytes behind its header as it says, and the kernel put plain C structures
    // of integers there, for which every bit pattern is one; they may lie unaligned.
    unsafe {
        (message.cmsg_len >= libc::CMSG_LEN(size_of::<T>() as u32) as usize)
            .then(|| libc::CMSG_DATA(message).cast::<T>().read_unaligned())
    }
}

/// Sends `slices` as one run of bytes of a stream, or as one datagram, without waiting and without SIGPIPE.
/// Says how many bytes went. Errors as of `sendmsg(2)`; no room is `WouldBlock`.
pub fn send(socket: impl AsFd, slices: &[IoSlice<'_>]) -> io::Result<usize> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let sent =
        rustix::io::retry_on_intr(|| sendmsg(&socket, slices, &mut SendAncillaryBuffer::default(), flags))?;
    Ok(sent)
}

/// Sends `slices` as datagrams of `segment` bytes each, the last of what is left, in one system call: all or
/// none. At most [`SEGMENTS_MAX`] of them and 64 KiB. A kernel or device that cannot answers EIO or EINVAL.
pub fn send_datagrams(socket: impl AsFd, slices: &[IoSlice<'_>], segment: u16) -> io::Result<usize> {
    send_message(socket.as_fd(), slices, Some(segment), false)
}

/// [`send`], or [`send_datagrams`] if there is a `segment`, and the kernel is asked when it hands on the last
/// byte: [`sent_time`] tells. To be used on a socket that [`keep_times`].
pub fn send_timed(socket: impl AsFd, slices: &[IoSlice<'_>], segment: Option<u16>) -> io::Result<usize> {
    send_message(socket.as_fd(), slices, segment, true)
}

fn send_message(
    socket: BorrowedFd<'_>,
    slices: &[IoSlice<'_>],
    segment: Option<u16>,
    is_timed: bool,
) -> io::Result<usize> {
    let mut control = Control([0; CONTROL_BYTES]);
    let mut used = 0;
    if let Some(segment) = segment {
        used = control.put(used, libc::SOL_UDP, UDP_SEGMENT, segment.to_ne_bytes());
    }
    if is_timed {
        used = control.put(used, libc::SOL_SOCKET, libc::SO_TIMESTAMPING, TIMES_ASKED.to_ne_bytes());
    }
    let mut header = control.header();
    header.msg_iov = slices.as_ptr().cast_mut().cast();
    header.msg_iovlen = slices.len() as _;
    header.msg_controllen = used as _;
    // SAFETY: `IoSlice` is guaranteed to be laid out like `iovec`, and the kernel only reads through it; the
    // control bytes outlive the call and their number is given.
    let count =
        unsafe { libc::sendmsg(socket.as_raw_fd(), &header, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

/// Has the kernel note when data comes ([`receive_timed`], [`Received::arrived_real_ns`]) and, of what is sent by
/// [`send_timed`], when it leaves; or, if not `on`, only that. An error says that this kernel does not.
pub fn keep_times(socket: impl AsFd, is_stream: bool, on: bool) -> io::Result<()> {
    let stream = if is_stream { TIMES_OF_STREAM } else { 0 };
    let arrivals = if on { libc::SOF_TIMESTAMPING_RX_SOFTWARE } else { 0 };
    let flags = (TIMES_KEPT | arrivals | stream) as libc::c_int;
    set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_TIMESTAMPING, flags)
}

/// Where in the kernel data is that was sent by [`send_timed`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SentMoment {
    /// It entered the packet scheduler.
    Scheduled,
    /// It was handed to the network's driver.
    Driver,
    /// The peer's kernel has it, and all before it (TCP).
    Acknowledged,
}

/// What the kernel tells of one call of [`send_timed`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SentTime {
    /// Of a stream: how many bytes, since [`keep_times`], went before its last byte. Else: how many such calls
    /// went before.
    pub number: u32,
    /// What.
    pub moment: SentMoment,
    /// When, nanoseconds of the boot clock.
    pub at_ns: u64,
}

/// The next thing that the kernel has to tell of what was sent; `None` if there is nothing now. While there is
/// something, whoever waits for the socket is woken.
pub fn sent_time(socket: impl AsFd) -> io::Result<Option<SentTime>> {
    loop {
        let mut control = Control([0; CONTROL_BYTES]);
        let mut header = control.header();
        match receive_message(socket.as_fd(), &mut header, libc::MSG_ERRQUEUE) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        }
        // Other errors of the network stand in the same queue: the next call on the socket tells of them too.
        if let Beside { at_real_ns: Some(at_real_ns), error: Some(error), .. } = told(&header)
            && error.ee_origin == libc::SO_EE_ORIGIN_TIMESTAMPING
        {
            let moment = match error.ee_info {
                TOLD_SCHEDULED => SentMoment::Scheduled,
                TOLD_ACKNOWLEDGED => SentMoment::Acknowledged,
                _ => SentMoment::Driver,
            };
            let at_ns = real_to_boot_ns(at_real_ns);
            return Ok(Some(SentTime { number: error.ee_data, moment, at_ns }));
        }
    }
}

/// How a connected stream fares (`TCP_INFO`, `tcp(7)`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StreamState {
    /// Bytes that the peer's kernel has.
    pub acknowledged_bytes: u64,
    /// The round trip, smoothed.
    pub round_trip: Duration,
    /// The shortest of the last minutes.
    pub round_trip_min: Duration,
    /// Segments that may be under way (the congestion window).
    pub window: u32,
    /// From this window on it grows slowly (the threshold of slow start).
    pub slow_start_until: u32,
    /// Segments that are under way.
    pub unacknowledged: u32,
    /// Segments that were sent again, since the beginning.
    pub resent: u32,
    /// Waits for an acknowledgement in a row that ended without one; each is twice as long as the one before.
    pub waits: u32,
    /// A wait for an acknowledgement ended without one: what is under way counts as lost (`TCP_CA_Loss`).
    pub is_timed_out: bool,
    /// How long ago the last acknowledgement came; in milliseconds.
    pub silent: Duration,
    /// Bytes of a segment.
    pub segment_bytes: u32,
}

/// Bytes of the kernel's `tcp_info` that are read, and where in them these stand (`linux/tcp.h`, from Linux 4.6 on).
const TCP_INFO_BYTES: usize = 152;
const TCP_INFO_CONGESTION_STATE: usize = 1;
const TCP_INFO_BACKOFF: usize = 4;
const TCP_INFO_SEGMENT: usize = 16;
const TCP_INFO_UNACKNOWLEDGED: usize = 24;
const TCP_INFO_ACKNOWLEDGED_AGO: usize = 56;
const TCP_INFO_ROUND_TRIP: usize = 68;
const TCP_INFO_SLOW_START: usize = 76;
const TCP_INFO_WINDOW: usize = 80;
const TCP_INFO_RESENT: usize = 100;
const TCP_INFO_ACKNOWLEDGED: usize = 120;
const TCP_INFO_ROUND_TRIP_MIN: usize = 148;
/// `TCP_CA_Loss` (`linux/tcp.h`).
const STATE_LOSS: u8 = 4;

/// Asks how a connected stream fares. `Unsupported` where the kernel does not tell all of it.
pub fn stream_state(socket: impl AsFd) -> io::Result<StreamState> {
    let mut info = [0_u8; TCP_INFO_BYTES];
    let mut length = TCP_INFO_BYTES as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `info`, which has so many.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    if (length as usize) < TCP_INFO_BYTES {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let word = |at: usize| u32::from_ne_bytes([info[at], info[at + 1], info[at + 2], info[at + 3]]);
    let microseconds = |at: usize| Duration::from_micros(word(at).into());
    let mut acknowledged = [0; size_of::<u64>()];
    acknowledged.copy_from_slice(&info[TCP_INFO_ACKNOWLEDGED..][..size_of::<u64>()]);
    Ok(StreamState {
        acknowledged_bytes: u64::from_ne_bytes(acknowledged),
        round_trip: microseconds(TCP_INFO_ROUND_TRIP),
        round_trip_min: microseconds(TCP_INFO_ROUND_TRIP_MIN),
        window: word(TCP_INFO_WINDOW),
        slow_start_until: word(TCP_INFO_SLOW_START),
        unacknowledged: word(TCP_INFO_UNACKNOWLEDGED),
        resent: word(TCP_INFO_RESENT),
        waits: info[TCP_INFO_BACKOFF].into(),
        is_timed_out: info[TCP_INFO_CONGESTION_STATE] == STATE_LOSS,
        silent: Duration::from_millis(word(TCP_INFO_ACKNOWLEDGED_AGO).into()),
        segment_bytes: word(TCP_INFO_SEGMENT),
    })
}

/// Has the kernel send a stream at most at so many bytes a second, and take only `ahead_bytes` more than it has sent
/// (`SO_MAX_PACING_RATE`, `socket(7)`; `TCP_NOTSENT_LOWAT`, `tcp(7)`); `None`: as it likes.
pub fn pace_stream(socket: impl AsFd, pace: Option<(u64, u32)>) -> io::Result<()> {
    let (rate, ahead) = pace.unwrap_or((u64::MAX, u32::MAX));
    // Bit for bit: the kernel's options are unsigned here, and of 32 bits on every kernel.
    let unsigned = |value: u64| u32::try_from(value).unwrap_or(u32::MAX).cast_signed();
    set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, unsigned(rate))?;
    set_option(socket.as_fd(), libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, unsigned(ahead.into()))
}

/// Longest and shortest wait for an acknowledgement before a stream's segment goes out again (`linux/tcp.h`, from Linux
/// 6.15 on, whose headers `libc` does not know yet), in ms and us.
const TCP_RTO_MAX_MS: libc::c_int = 44;
const TCP_RTO_MIN_US: libc::c_int = 45;
/// A receiver may put an acknowledgement off for 40 ms (`TCP_DELACK_MIN`); and a link that has lost much is tried again soon
/// enough that a flow goes on within a second once it loses less (no kernel takes less than a second here).
const RESEND_MIN_US: libc::c_int = 60_000;
const RESEND_MAX_MS: libc::c_int = 1000;

/// Has the kernel send a stream's segment again after 60 ms to a second without an acknowledgement (it takes 200 ms to 120 s
/// by itself), and not after twice as long each time while few are under way (`TCP_THIN_LINEAR_TIMEOUTS`). A kernel that
/// has no such thing goes on as it does: the first error, of `setsockopt(2)`.
pub fn resend_soon(socket: impl AsFd) -> io::Result<()> {
    let options = [
        (libc::TCP_THIN_LINEAR_TIMEOUTS, 1),
        (TCP_RTO_MAX_MS, RESEND_MAX_MS),
        (TCP_RTO_MIN_US, RESEND_MIN_US),
    ];
    let socket = socket.as_fd();
    let set = options.map(|(option, value)| set_option(socket, libc::IPPROTO_TCP, option, value));
    set.into_iter().collect()
}

/// Lets the kernel join datagrams of one size that came together (UDP_GRO), for [`receive_datagrams`].
/// Errors as of `setsockopt(2)` where the kernel has no such thing.
pub fn join_datagrams(socket: impl AsFd) -> io::Result<()> {
    set_option(socket.as_fd(), libc::SOL_UDP, UDP_GRO, 1)
}

/// Has a socket take nothing that comes, until [`take_all`] (`SO_ATTACH_FILTER`, `socket(7)`): between being bound and
/// being connected, what comes from anybody would be its. Errors as of `setsockopt(2)`.
pub fn take_nothing(socket: impl AsFd) -> io::Result<()> {
    let mut drop_whole =
        [libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: 0 }];
    let program = libc::sock_fprog { len: drop_whole.len() as u16, filter: drop_whole.as_mut_ptr() };
    set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, program)
}

/// Ends what [`take_nothing`] began. Errors as of `setsockopt(2)`.
pub fn take_all(socket: impl AsFd) -> io::Result<()> {
    set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_DETACH_FILTER, 0 as libc::c_int)
}

/// Has datagrams go out whole or not at all, whatever the kernel believes of the path's MTU
/// (`IP_PMTUDISC_PROBE`, `ip(7)`): for a protocol that looks for it by itself (RFC 8899).
/// Errors as of `setsockopt(2)`, of a socket that is none of IP.
pub fn never_fragment(socket: impl AsFd) -> io::Result<()> {
    let socket = socket.as_fd();
    let probe = |level, option| set_option(socket, level, option, libc::IP_PMTUDISC_PROBE);
    // A socket of IPv6 may carry datagrams of both.
    let four = probe(libc::IPPROTO_IP, libc::IP_MTU_DISCOVER);
    match rustix::net::sockopt::socket_domain(socket)? {
        rustix::net::AddressFamily::INET6 => probe(libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER),
        _ => four,
    }
}

/// Largest packet, IP's header included, that goes out whole by the way that this connected socket takes, as far as the
/// kernel knows (`IP_MTU`, `ip(7)`; `IPV6_MTU`, `ipv6(7)`). Errors as of `getsockopt(2)`.
pub fn path_mtu(socket: impl AsFd) -> io::Result<u32> {
    let socket = socket.as_fd();
    let (level, option) = match rustix::net::sockopt::socket_domain(socket)? {
        rustix::net::AddressFamily::INET6 => (libc::IPPROTO_IPV6, libc::IPV6_MTU),
        _ => (libc::IPPROTO_IP, libc::IP_MTU),
    };
    let (mut mtu, mut length) = (0 as libc::c_int, size_of::<libc::c_int>() as libc::socklen_t);
    // SAFETY: the kernel writes at most `length` bytes to `mtu`, which has so many.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, option, (&raw mut mtu).cast(), &raw mut length)
    };
    match result {
        0 => u32::try_from(mtu).map_err(io::Error::other),
        _ => Err(io::Error::last_os_error()),
    }
}

fn set_option<T: Copy>(socket: BorrowedFd<'_>, level: i32, option: i32, value: T) -> io::Result<()> {
    // SAFETY: the option's value lives through the call, as does what it leads to, and its length is given.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            std::ptr::from_ref(&value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::boot_ns;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::time::Instant;

    /// What the kernel tells of the call made last, in order, until it was acknowledged or handed on.
    fn told_of(socket: impl AsFd, last: SentMoment) -> Vec<SentTime> {
        let (since, mut all) = (Instant::now(), Vec::new());
        while !all.iter().any(|told: &SentTime| told.moment == last) {
            assert!(since.elapsed() < Duration::from_secs(20), "{all:?}");
            all.extend(sent_time(&socket).unwrap());
        }
        all
    }

    /// Counting from the byte that is written next is new; what a kernel does not have is not tested on it.
    fn is_told(socket: impl AsFd, is_stream: bool) -> bool {
        let result = keep_times(socket, is_stream, true);
        if let Err(error) = &result {
            eprintln!("SKIPPED: this kernel keeps no such times: {error}");
        }
        result.is_ok()
    }

    #[test]
    fn the_kernel_tells_when_bytes_of_a_stream_left_and_came() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        near.write_all(&[1; 1000]).unwrap();
        if !is_told(&near, true) || !is_told(&far, true) {
            return;
        }
        near.write_all(&[2; 100]).unwrap();
        let before = boot_ns();
        assert_eq!(send_timed(&near, &[IoSlice::new(&[3; 50])], None).unwrap(), 50);
        let told = told_of(&near, SentMoment::Acknowledged);
        let after = boot_ns();
        assert!(told.iter().all(|told| told.number == 149), "{told:?}");
        assert!(told.iter().any(|told| told.moment == SentMoment::Driver), "{told:?}");
        // The two clocks are not read at once.
        let slack = 1_000_000;
        assert!(told.iter().all(|told| (before - slack..after + slack).contains(&told.at_ns)), "{told:?}");
        let mut arrived = None;
        let since = Instant::now();
        // The kernel begins to note arrivals a moment after it was told to.
        while arrived.is_none() && since.elapsed() < Duration::from_secs(20) {
            let mut buffer = BytesMut::with_capacity(4096);
            near.write_all(&[4; 10]).unwrap();
            let room = Room { buffer: &mut buffer, limit: usize::MAX };
            arrived = receive_timed(&far, [room]).map_or(None, |(_, arrived)| arrived.map(real_to_boot_ns));
        }
        assert!(arrived.is_some_and(|at| at > before && at < boot_ns() + slack), "{arrived:?}");
        keep_times(&far, true, false).unwrap();
    }

    #[test]
    fn the_kernel_tells_how_large_a_packet_may_be() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(socket) = UdpSocket::bind(address) else {
                eprintln!("SKIPPED: no {address} here");
                continue;
            };
            assert!(path_mtu(&socket).is_err() || address.starts_with('['), "not connected");
            socket.connect(socket.local_addr().unwrap()).unwrap();
            assert!((1280..=65_536).contains(&path_mtu(&socket).unwrap()));
        }
    }

    #[test]
    fn the_kernel_tells_how_a_stream_fares() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        pace_stream(&near, Some((1_000_000, 4096))).unwrap();
        near.write_all(&[1; 2000]).unwrap();
        let since = Instant::now();
        // The connection itself counts as one.
        while !(2000..=2001).contains(&stream_state(&near).unwrap().acknowledged_bytes) {
            assert!(since.elapsed() < Duration::from_secs(20), "{:?}", stream_state(&near));
        }
        let state = stream_state(&near).unwrap();
        assert!(
            state.round_trip_min > Duration::ZERO && state.round_trip >= state.round_trip_min,
            "{state:?}"
        );
        pace_stream(&near, None).unwrap();
    }

    #[test]
    fn the_kernel_tells_when_datagrams_left_and_came() {
        let (near, far) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        near.connect(far.local_addr().unwrap()).unwrap();
        if !is_told(&near, false) || !is_told(&far, false) {
            return;
        }
        send(&near, &[IoSlice::new(b"not asked for")]).unwrap();
        for (number, segment) in [(0, None), (1, Some(100))] {
            send_timed(&near, &[IoSlice::new(&[5; 250])], segment).unwrap();
            let told = told_of(&near, SentMoment::Driver);
            assert!(told.iter().all(|told| told.number == number), "{told:?}");
        }
        let since = Instant::now();
        loop {
            let mut buffer = BytesMut::with_capacity(1 << 16);
            send(&near, &[IoSlice::new(b"x")]).unwrap();
            if receive_datagrams(&far, &mut buffer).is_ok_and(|received| received.arrived_real_ns.is_some()) {
                break;
            }
            assert!(since.elapsed() < Duration::from_secs(20), "no time of arrival");
        }
    }
}
