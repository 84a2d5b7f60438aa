//! Sockets: receiving into memory that is never zeroed; datagrams in batches that the kernel splits and joins
//! (`UDP_SEGMENT` and `UDP_GRO`, `udp(7)`); and kernel timestamps (`SO_TIMESTAMPING`, the kernel's
//! `networking/timestamping.rst`).

use crate::clock::real_to_boot_ns;
use crate::datagram::Destination;
use bytes::BytesMut;
use rustix::net::SendFlags;
use std::io::{self, IoSlice};
use std::mem::size_of;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

/// The most slices of one gathering system call (`UIO_MAXIOV`).
pub const SLICES_MAX: usize = 1024;

/// The most datagrams of one [`DatagramSplit::send`] on every kernel that supports it (`UDP_MAX_SEGMENTS`).
pub const SEGMENTS_MAX: usize = 64;

/// Constants of `linux/udp.h` that libc lacks for glibc.
const UDP_SEGMENT: libc::c_int = 103;
const UDP_GRO: libc::c_int = 104;

/// Software timestamps with record numbers, without a copy of the data.
const TIMES_BASE: u32 =
    libc::SOF_TIMESTAMPING_SOFTWARE | libc::SOF_TIMESTAMPING_OPT_ID | libc::SOF_TIMESTAMPING_OPT_TSONLY;
/// For a stream, count bytes from the next written one (Linux 6.2).
const TIMES_OF_STREAM: u32 = 1 << 16;
/// The timestamps that one call requests.
const TIMES_ASKED: u32 =
    libc::SOF_TIMESTAMPING_TX_SCHED | libc::SOF_TIMESTAMPING_TX_SOFTWARE | libc::SOF_TIMESTAMPING_TX_ACK;
/// Constants of `linux/errqueue.h`: the place of a timestamp.
const PASSED_SCHEDULED: u32 = 1;
const PASSED_ACKNOWLEDGED: u32 = 2;

/// The destination of received bytes: appended to `buffer`, at most `limit` bytes and never beyond its
/// capacity.
#[derive(Debug)]
pub struct Room<'a> {
    /// The buffer that grows.
    pub buffer: &'a mut BytesMut,
    /// The most bytes to receive here.
    pub limit: usize,
}

impl Room<'_> {
    /// The number of bytes that fit.
    pub fn bytes(&self) -> usize {
        self.limit.min(self.buffer.capacity() - self.buffer.len())
    }

    fn iovec(&mut self) -> libc::iovec {
        let bytes = self.bytes();
        libc::iovec { iov_base: self.buffer.spare_capacity_mut().as_mut_ptr().cast(), iov_len: bytes }
    }

    /// # Safety
    /// The first `count` bytes at [`Room::iovec`] have been written, and `count` is at most its length.
    unsafe fn filled(&mut self, count: usize) {
        // SAFETY: the bytes are written and within the capacity, as the caller guarantees.
        unsafe { self.buffer.set_len(self.buffer.len() + count) }
    }
}

/// Receives from a stream into `rooms`, in order, without blocking. Returns 0 at the end of the stream, or
/// without any room. Errors are those of `recvmsg(2)`: `WouldBlock` if nothing is there.
pub fn receive<const N: usize>(socket: impl AsFd, rooms: [Room<'_>; N]) -> io::Result<usize> {
    // SAFETY: a zeroed `msghdr` is valid: no address, no data, no control bytes.
    receive_rooms(socket.as_fd(), rooms, &mut unsafe { std::mem::zeroed() })
}

/// As [`receive`], with the kernel's timestamp of the last byte in nanoseconds of the system clock, if
/// [`keep_times`] enabled it. [`real_to_boot_ns`] converts it to the boot clock.
pub fn receive_timed<const N: usize>(
    socket: impl AsFd,
    rooms: [Room<'_>; N],
) -> io::Result<(usize, Option<u64>)> {
    let mut control = Control::new();
    let mut header = control.header();
    let received = receive_rooms(socket.as_fd(), rooms, &mut header)?;
    Ok((received, ancillary(&header).at_real_ns))
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
        // SAFETY: the kernel filled the rooms in order, with `received` bytes in total.
        unsafe { room.filled(here) };
        left -= here;
    }
    Ok(received)
}

/// The result of one [`receive_datagrams`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// The number of appended bytes.
    pub bytes: usize,
    /// The length of each datagram, except the last, which may be shorter.
    pub segment: usize,
    /// True if a datagram did not fit; its excess bytes are lost.
    pub truncated: bool,
    /// The kernel's timestamp in nanoseconds of the system clock, if [`keep_times`] enabled it.
    /// [`real_to_boot_ns`] converts it to the boot clock.
    pub arrived_real_ns: Option<u64>,
}

/// The space for the control messages of one call.
const CONTROL_BYTES: usize = 256;

/// Space for control messages, aligned for the kernel.
#[repr(C, align(8))]
pub(crate) struct Control([u8; CONTROL_BYTES]);

impl Control {
    /// The longest content of one message that fits.
    pub(crate) const CONTENT_BYTES_MAX: usize = CONTROL_BYTES / 2;

    /// Empty space.
    pub(crate) fn new() -> Control {
        Control([0; CONTROL_BYTES])
    }

    /// A message header with this space and nothing else.
    pub(crate) fn header(&mut self) -> libc::msghdr {
        // SAFETY: a zeroed `msghdr` is valid: no address, no data, no control bytes.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_control = self.0.as_mut_ptr().cast();
        header.msg_controllen = self.0.len() as _;
        header
    }
}

/// Receives one datagram, or several of equal size that the kernel joined (see [`join_datagrams`]), and appends
/// them to `into`, without blocking. A spare capacity of 64 KiB is always enough.
pub fn receive_datagrams(socket: impl AsFd, into: &mut BytesMut) -> io::Result<Received> {
    let mut room = Room { buffer: into, limit: usize::MAX };
    let mut vector = [room.iovec()];
    let mut control = Control::new();
    let mut header = control.header();
    header.msg_iov = vector.as_mut_ptr();
    header.msg_iovlen = 1;
    let bytes = receive_message(socket.as_fd(), &mut header, 0)?.min(room.bytes());
    // SAFETY: the kernel wrote `bytes` bytes from the start of the room.
    unsafe { room.filled(bytes) };
    let data = ancillary(&header);
    Ok(Received {
        bytes,
        segment: data.segment.filter(|size| *size > 0).unwrap_or(bytes),
        truncated: header.msg_flags & libc::MSG_TRUNC != 0,
        arrived_real_ns: data.at_real_ns,
    })
}

pub(crate) fn receive_message(
    socket: BorrowedFd<'_>,
    header: &mut libc::msghdr,
    flags: libc::c_int,
) -> io::Result<usize> {
    loop {
        // SAFETY: every pointer in the header is to memory of the caller that outlives the call, with its
        // length. The kernel writes only there.
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

/// The contents of the control messages of one call.
#[derive(Debug, Default)]
pub(crate) struct Ancillary {
    segment: Option<usize>,
    at_real_ns: Option<u64>,
    error: Option<libc::sock_extended_err>,
    pub(crate) destination: Option<Destination>,
}

pub(crate) fn ancillary(header: &libc::msghdr) -> Ancillary {
    let mut data = Ancillary::default();
    // SAFETY: the kernel filled the header's control bytes, which are alive; the macros stay within them.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(header) };
    // SAFETY: the macros return null or a message within those bytes.
    while let Some(message) = unsafe { next.as_ref() } {
        match (message.cmsg_level, message.cmsg_type) {
            (libc::SOL_UDP, UDP_GRO) => {
                data.segment = content::<libc::c_int>(message).and_then(|size| usize::try_from(size).ok());
            }
            (libc::SOL_SOCKET, libc::SCM_TIMESTAMPING) => {
                let times = content::<[libc::timespec; 3]>(message);
                let ns = times
                    .map(|[software, ..]| software.tv_sec as u64 * 1_000_000_000 + software.tv_nsec as u64);
                data.at_real_ns = ns.filter(|ns| *ns > 0);
            }
            (libc::SOL_IP, libc::IP_RECVERR) | (libc::SOL_IPV6, libc::IPV6_RECVERR) => {
                data.error = content::<libc::sock_extended_err>(message);
            }
            (libc::SOL_IP, libc::IP_PKTINFO) => {
                data.destination = content::<libc::in_pktinfo>(message).map(|info| Destination {
                    ip: Ipv4Addr::from(info.ipi_spec_dst.s_addr.to_ne_bytes()).into(),
                    interface: info.ipi_ifindex.cast_unsigned(),
                });
            }
            (libc::SOL_IPV6, libc::IPV6_PKTINFO) => {
                data.destination = content::<libc::in6_pktinfo>(message).map(|info| Destination {
                    ip: Ipv6Addr::from(info.ipi6_addr.s6_addr).into(),
                    interface: info.ipi6_ifindex,
                });
            }
            _ => {}
        }
        // SAFETY: as above.
        next = unsafe { libc::CMSG_NXTHDR(header, message) };
    }
    data
}

/// The content of a control message, if it has the right length.
fn content<T: Copy>(message: &libc::cmsghdr) -> Option<T> {
    // SAFETY: the message's length covers a `T`. The kernel wrote plain C structures of integers there, for
    // which every bit pattern is valid. They may be unaligned.
    unsafe {
        // The type of `cmsg_len` differs between C libraries.
        (message.cmsg_len >= libc::CMSG_LEN(size_of::<T>() as u32) as _)
            .then(|| libc::CMSG_DATA(message).cast::<T>().read_unaligned())
    }
}

/// Sends `slices` as consecutive bytes of a stream, or as one datagram. The socket must not block. Returns the number
/// of bytes sent. Errors are those of `send(2)` and `writev(2)`: a full socket is `WouldBlock`.
///
/// `sendmsg(2)` would do the same, but its address lies in memory, where a seccomp filter cannot see it: a locked worker
/// may not call it. `writev(2)` raises `SIGPIPE`, which the Rust runtime ignores.
pub fn send(socket: impl AsFd, slices: &[IoSlice<'_>]) -> io::Result<usize> {
    let sent = rustix::io::retry_on_intr(|| match slices {
        [one] => rustix::net::send(&socket, one, SendFlags::DONTWAIT | SendFlags::NOSIGNAL),
        slices => rustix::io::writev(&socket, slices),
    })?;
    Ok(sent)
}

/// The size of the datagrams into which the kernel splits the data of each call on a UDP socket (`UDP_SEGMENT`,
/// `udp(7)`). One value belongs to one socket.
#[derive(Debug, Default)]
pub struct DatagramSplit {
    /// The socket's option; `None`: each call is one datagram.
    segment: Option<u16>,
}

impl DatagramSplit {
    /// Sends `slices` in one system call, all or none: as one datagram, or as datagrams of `segment` bytes each, of which
    /// the last may be shorter. At most [`SEGMENTS_MAX`] datagrams and 64 KiB. A kernel or device that cannot split
    /// fails with `EIO`, `EINVAL` or `ENOPROTOOPT`.
    pub fn send(
        &mut self,
        socket: impl AsFd,
        slices: &[IoSlice<'_>],
        segment: Option<u16>,
    ) -> io::Result<usize> {
        if self.segment != segment {
            let option = libc::c_int::from(segment.unwrap_or(0));
            set_option(socket.as_fd(), libc::SOL_UDP, UDP_SEGMENT, option)?;
            self.segment = segment;
        }
        send(socket, slices)
    }
}

/// The kernel timestamps of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Timestamps {
    /// None.
    Off,
    /// Those of received data: [`receive_timed`], [`Received::arrived_real_ns`].
    Arrivals,
    /// Those of sent data: [`sent_time`].
    Sends,
    /// Both.
    All,
}

/// Sets the kernel timestamps of a socket. Those of sent data belong to the last byte of each call while they are on; the
/// kernel numbers them from the first call of this function. Fails if the kernel does not support them.
pub fn keep_times(socket: impl AsFd, is_stream: bool, timestamps: Timestamps) -> io::Result<()> {
    let stream = if is_stream { TIMES_OF_STREAM } else { 0 };
    let (arrivals, sends) = match timestamps {
        Timestamps::Off => (0, 0),
        Timestamps::Arrivals => (libc::SOF_TIMESTAMPING_RX_SOFTWARE, 0),
        Timestamps::Sends => (0, TIMES_ASKED),
        Timestamps::All => (libc::SOF_TIMESTAMPING_RX_SOFTWARE, TIMES_ASKED),
    };
    let flags = (TIMES_BASE | arrivals | sends | stream) as libc::c_int;
    set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_TIMESTAMPING, flags)
}

/// A place in the kernel that sent data passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SentMoment {
    /// The packet scheduler.
    Scheduled,
    /// The network driver.
    Driver,
    /// The peer's kernel, which has acknowledged this data and all before it (TCP).
    Acknowledged,
}

/// A timestamp of one call that sent data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SentTime {
    /// For a stream: the number of bytes before its last byte, since [`keep_times`]. For datagrams: the number
    /// of earlier calls.
    pub number: u32,
    /// The place.
    pub moment: SentMoment,
    /// The time in nanoseconds of the boot clock.
    pub at_ns: u64,
}

/// Returns the next timestamp of sent data; `None` if there is none now. While there is one, the socket is
/// ready for its pollers.
pub fn sent_time(socket: impl AsFd) -> io::Result<Option<SentTime>> {
    loop {
        let mut control = Control::new();
        let mut header = control.header();
        match receive_message(socket.as_fd(), &mut header, libc::MSG_ERRQUEUE) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        }
        // Other network errors use the same queue; the next call on the socket returns them too.
        if let Ancillary { at_real_ns: Some(at_real_ns), error: Some(error), .. } = ancillary(&header)
            && error.ee_origin == libc::SO_EE_ORIGIN_TIMESTAMPING
        {
            let moment = match error.ee_info {
                PASSED_SCHEDULED => SentMoment::Scheduled,
                PASSED_ACKNOWLEDGED => SentMoment::Acknowledged,
                _ => SentMoment::Driver,
            };
            let at_ns = real_to_boot_ns(at_real_ns);
            return Ok(Some(SentTime { number: error.ee_data, moment, at_ns }));
        }
    }
}

/// The state of a connected stream (`TCP_INFO`, `tcp(7)`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StreamState {
    /// The number of bytes that the peer has acknowledged.
    pub acknowledged_bytes: u64,
    /// The smoothed round trip.
    pub round_trip: Duration,
    /// The shortest round trip of the last minutes.
    pub round_trip_min: Duration,
    /// The congestion window in segments.
    pub window: u32,
    /// The slow start threshold: above this window, the window grows slowly.
    pub slow_start_until: u32,
    /// Segments in flight.
    pub unacknowledged: u32,
    /// Retransmitted segments since the connection was opened.
    pub resent: u32,
    /// Consecutive retransmission timeouts; each is twice as long as the previous one.
    pub waits: u32,
    /// True after a retransmission timeout, while the segments in flight count as lost (`TCP_CA_Loss`).
    pub is_timed_out: bool,
    /// Probes without an answer: of a closed receive window, or of an idle connection. Any acknowledgement resets it to 0.
    pub probes: u32,
    /// The time since the last acknowledgement, with a precision of a millisecond.
    pub silent: Duration,
    /// The time since data was sent, also again. Probes carry none.
    pub sent_ago: Duration,
    /// The segment size in bytes.
    pub segment_bytes: u32,
}

/// The length of `tcp_info` up to the fields used here, and their offsets (`linux/tcp.h`, since Linux 4.6).
const TCP_INFO_BYTES: usize = 152;
const TCP_INFO_CONGESTION_STATE: usize = 1;
const TCP_INFO_PROBES: usize = 3;
const TCP_INFO_BACKOFF: usize = 4;
const TCP_INFO_SEGMENT: usize = 16;
const TCP_INFO_UNACKNOWLEDGED: usize = 24;
const TCP_INFO_SENT_AGO: usize = 44;
const TCP_INFO_ACKNOWLEDGED_AGO: usize = 56;
const TCP_INFO_ROUND_TRIP: usize = 68;
const TCP_INFO_SLOW_START: usize = 76;
const TCP_INFO_WINDOW: usize = 80;
const TCP_INFO_RESENT: usize = 100;
const TCP_INFO_ACKNOWLEDGED: usize = 120;
const TCP_INFO_ROUND_TRIP_MIN: usize = 148;
/// `TCP_CA_Loss` (`linux/tcp.h`).
const STATE_LOSS: u8 = 4;

/// Returns the state of a connected stream. Fails with `Unsupported` if the kernel does not report all fields.
pub fn stream_state(socket: impl AsFd) -> io::Result<StreamState> {
    let mut info = [0_u8; TCP_INFO_BYTES];
    let mut length = TCP_INFO_BYTES as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `info`, which is that long.
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
    let milliseconds = |at: usize| Duration::from_millis(word(at).into());
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
        probes: info[TCP_INFO_PROBES].into(),
        silent: milliseconds(TCP_INFO_ACKNOWLEDGED_AGO),
        sent_ago: milliseconds(TCP_INFO_SENT_AGO),
        segment_bytes: word(TCP_INFO_SEGMENT),
    })
}

/// Limits the rate of a stream in bytes a second, and its unsent data in the kernel to `ahead_bytes`
/// (`SO_MAX_PACING_RATE`, `socket(7)`; `TCP_NOTSENT_LOWAT`, `tcp(7)`). `None` removes the limits.
pub fn pace_stream(socket: impl AsFd, pace: Option<(u64, u32)>) -> io::Result<()> {
    let (rate, ahead) = pace.unwrap_or((u64::MAX, u32::MAX));
    // The kernel's options are unsigned and 32 bits wide on every kernel.
    let unsigned = |value: u64| u32::try_from(value).unwrap_or(u32::MAX).cast_signed();
    set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, unsigned(rate))?;
    set_option(socket.as_fd(), libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, unsigned(ahead.into()))
}

/// Options for the longest and the shortest retransmission timeout, in ms and us (`linux/tcp.h` since Linux
/// 6.15; libc lacks them).
const TCP_RTO_MAX_MS: libc::c_int = 44;
const TCP_RTO_MIN_US: libc::c_int = 45;
/// The shortest timeout must exceed a receiver's delayed acknowledgement, 40 ms (`TCP_DELACK_MIN`). The longest
/// one is a second, the kernel's minimum, so that a flow resumes within a second after a bad link recovers.
const RESEND_MIN_US: libc::c_int = 60_000;
const RESEND_MAX_MS: libc::c_int = 1000;
/// The longest timeout of [`limit_backoff`].
const BACKOFF_MAX_MS: libc::c_int = 4000;

/// Sets the retransmission timeout of a stream to 60 ms up to a second (the defaults are 200 ms to 120 s),
/// without exponential growth while few segments are in flight (`TCP_THIN_LINEAR_TIMEOUTS`). A kernel without
/// these options keeps its defaults; the first error of `setsockopt(2)` is returned.
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

/// Limits the retransmission timeout of a stream. After 15 retransmissions (`tcp_retries2`) the connection has failed: then after
/// about a minute, while the default needs a quarter of an hour. A kernel before Linux 6.15 returns an error and keeps its default.
pub fn limit_backoff(socket: impl AsFd) -> io::Result<()> {
    set_option(socket.as_fd(), libc::IPPROTO_TCP, TCP_RTO_MAX_MS, BACKOFF_MAX_MS)
}

/// Enables joined datagrams (`UDP_GRO`) for [`receive_datagrams`]. Errors are those of `setsockopt(2)`.
pub fn join_datagrams(socket: impl AsFd) -> io::Result<()> {
    set_option(socket.as_fd(), libc::SOL_UDP, UDP_GRO, 1)
}

/// Makes a socket drop all input until [`take_all`] (`SO_ATTACH_FILTER`, `socket(7)`). Between `bind` and
/// `connect` a socket would otherwise accept datagrams from anybody. Errors are those of `setsockopt(2)`.
pub fn take_nothing(socket: impl AsFd) -> io::Result<()> {
    let mut drop_whole =
        [libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: 0 }];
    let program = libc::sock_fprog { len: drop_whole.len() as u16, filter: drop_whole.as_mut_ptr() };
    set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, program)
}

/// Ends [`take_nothing`]. Errors are those of `setsockopt(2)`.
pub fn take_all(socket: impl AsFd) -> io::Result<()> {
    set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_DETACH_FILTER, 0 as libc::c_int)
}

/// Sends datagrams whole or not at all, regardless of the kernel's path MTU (`IP_PMTUDISC_PROBE`, `ip(7)`), for
/// a protocol that discovers the MTU itself (RFC 8899). Errors are those of `setsockopt(2)`; the socket must be
/// an IP socket.
pub fn never_fragment(socket: impl AsFd) -> io::Result<()> {
    let socket = socket.as_fd();
    let probe = |level, option| set_option(socket, level, option, libc::IP_PMTUDISC_PROBE);
    // An IPv6 socket may carry datagrams of both versions.
    let four = probe(libc::IPPROTO_IP, libc::IP_MTU_DISCOVER);
    match rustix::net::sockopt::socket_domain(socket)? {
        rustix::net::AddressFamily::INET6 => probe(libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER),
        _ => four,
    }
}

/// The path MTU of this connected socket: the largest packet, including the IP header, that the kernel sends
/// unfragmented (`IP_MTU`, `ip(7)`; `IPV6_MTU`, `ipv6(7)`). Errors are those of `getsockopt(2)`.
pub fn path_mtu(socket: impl AsFd) -> io::Result<u32> {
    let socket = socket.as_fd();
    let (level, option) = match rustix::net::sockopt::socket_domain(socket)? {
        rustix::net::AddressFamily::INET6 => (libc::IPPROTO_IPV6, libc::IPV6_MTU),
        _ => (libc::IPPROTO_IP, libc::IP_MTU),
    };
    let (mut mtu, mut length) = (0 as libc::c_int, size_of::<libc::c_int>() as libc::socklen_t);
    // SAFETY: the kernel writes at most `length` bytes to `mtu`, which is that long.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, option, (&raw mut mtu).cast(), &raw mut length)
    };
    match result {
        0 => u32::try_from(mtu).map_err(io::Error::other),
        _ => Err(io::Error::last_os_error()),
    }
}

pub(crate) fn set_option<T: Copy>(
    socket: BorrowedFd<'_>,
    level: i32,
    option: i32,
    value: T,
) -> io::Result<()> {
    // SAFETY: the option's value, and the memory it points to, live through the call, and its length is given.
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

    /// The kernel's timestamps of the last call, in order, up to the place `last`.
    fn sent_times(socket: impl AsFd, last: SentMoment) -> Vec<SentTime> {
        let (since, mut all) = (Instant::now(), Vec::new());
        while !all.iter().any(|time: &SentTime| time.moment == last) {
            assert!(since.elapsed() < Duration::from_secs(60), "{all:?}");
            all.extend(sent_time(&socket).unwrap());
        }
        all
    }

    /// Returns true if the kernel supports the option. It is new for streams, and tests skip without it.
    fn has_timestamps(socket: impl AsFd, is_stream: bool) -> bool {
        let result = keep_times(socket, is_stream, Timestamps::Arrivals);
        if let Err(error) = &result {
            eprintln!("SKIPPED: this kernel keeps no such times: {error}");
        }
        result.is_ok()
    }

    #[test]
    fn stream_bytes_have_timestamps() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        near.write_all(&[1; 1000]).unwrap();
        if !has_timestamps(&near, true) || !has_timestamps(&far, true) {
            return;
        }
        near.write_all(&[2; 100]).unwrap();
        let before = boot_ns();
        keep_times(&near, true, Timestamps::All).unwrap();
        assert_eq!(send(&near, &[IoSlice::new(&[3; 50])]).unwrap(), 50);
        keep_times(&near, true, Timestamps::Arrivals).unwrap();
        let times = sent_times(&near, SentMoment::Acknowledged);
        let after = boot_ns();
        assert!(times.iter().all(|time| time.number == 149), "{times:?}");
        assert!(times.iter().any(|time| time.moment == SentMoment::Driver), "{times:?}");
        // The two clocks are not read at the same moment.
        let slack = 1_000_000;
        assert!(times.iter().all(|time| (before - slack..after + slack).contains(&time.at_ns)), "{times:?}");
        let mut arrived = None;
        let since = Instant::now();
        // Receive timestamps start shortly after they are enabled.
        while arrived.is_none() && since.elapsed() < Duration::from_secs(60) {
            let mut buffer = BytesMut::with_capacity(4096);
            near.write_all(&[4; 10]).unwrap();
            let room = Room { buffer: &mut buffer, limit: usize::MAX };
            arrived = receive_timed(&far, [room]).map_or(None, |(_, arrived)| arrived.map(real_to_boot_ns));
        }
        assert!(arrived.is_some_and(|at| at > before && at < boot_ns() + slack), "{arrived:?}");
        keep_times(&far, true, Timestamps::Off).unwrap();
    }

    #[test]
    fn the_path_mtu_is_known() {
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
    fn the_state_of_a_stream_is_known() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        pace_stream(&near, Some((1_000_000, 4096))).unwrap();
        near.write_all(&[1; 2000]).unwrap();
        let since = Instant::now();
        // The connection itself counts as one byte.
        while !(2000..=2001).contains(&stream_state(&near).unwrap().acknowledged_bytes) {
            assert!(since.elapsed() < Duration::from_secs(60), "{:?}", stream_state(&near));
        }
        let state = stream_state(&near).unwrap();
        assert!(
            state.round_trip_min > Duration::ZERO && state.round_trip >= state.round_trip_min,
            "{state:?}"
        );
        pace_stream(&near, None).unwrap();
    }

    #[test]
    fn datagrams_have_timestamps() {
        let (near, far) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        near.connect(far.local_addr().unwrap()).unwrap();
        if !has_timestamps(&near, false) || !has_timestamps(&far, false) {
            return;
        }
        send(&near, &[IoSlice::new(b"not asked for")]).unwrap();
        let mut split = DatagramSplit::default();
        for (number, segment) in [(0, None), (1, Some(100))] {
            keep_times(&near, false, Timestamps::All).unwrap();
            split.send(&near, &[IoSlice::new(&[5; 250])], segment).unwrap();
            keep_times(&near, false, Timestamps::Arrivals).unwrap();
            let times = sent_times(&near, SentMoment::Driver);
            assert!(times.iter().all(|time| time.number == number), "{times:?}");
        }
        let since = Instant::now();
        loop {
            let mut buffer = BytesMut::with_capacity(1 << 16);
            split.send(&near, &[IoSlice::new(b"x")], None).unwrap();
            if receive_datagrams(&far, &mut buffer).is_ok_and(|received| received.arrived_real_ns.is_some()) {
                break;
            }
            assert!(since.elapsed() < Duration::from_secs(60), "no time of arrival");
        }
    }
}
