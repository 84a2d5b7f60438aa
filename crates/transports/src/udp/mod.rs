#![doc = include_str!("udp.md")]

mod fragment;
#[cfg(test)]
mod link_tests;
mod loss;
mod rate;
mod reassembly;
mod receipt;
mod sending;
#[cfg(test)]
mod tests;

use crate::outgoing::{self, check_record};
use crate::seal::{DATAGRAM_BYTES, NUMBER_BYTES, NotOpened, Seal};
use crate::socket;
use crate::watch::Watch;
use buffers::Recycler;
use bytes::{Bytes, BytesMut};
use contract::{
    Attributes, Body, Ctl, CtlReply, DatagramFacts, Direction, End, FlowKey, FlowTemplate, Interest, Message,
    Next, OptionKind, OptionSpec, Options, Partner, PartnerError, Pull, PullSlot, Pulled, Pushed, Readiness,
    Scope, SealKeys, Time, TransportClass,
};
use fragment::Fragment;
use reassembly::{Limits, Reassembly, Slab};
use receipt::{Receipt, Seen};
use rustix::io::Errno;
use rustix::net::{SocketType, sockopt};
use sending::{BATCH_BYTES_MAX, Limits as SendingLimits, Sending, Turn};
use smallvec::SmallVec;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;
use sys::net::SEGMENTS_MAX;
use wire::preamble::Introduction;

/// Bytes that are sent without waiting for the end of a burst: about one batch.
const BURST_BYTES: usize = 60 << 10;
/// A record in more pieces is joined before it is sent, so that any one datagram fits in one call.
const PIECES_MAX: usize = sys::net::SLICES_MAX - 1;
/// Whatever comes in one call fits in this.
const RECEIVE_BYTES: usize = 64 << 10;
/// Memory that datagrams are received into, one behind the other.
const SLAB_BYTES: usize = 4 * RECEIVE_BYTES;
/// Slabs that are remembered for another use.
const SLABS_KEPT_MAX: usize = 8;
/// Whole records that are taken from the socket before somebody pulls them.
const AHEAD_RECORDS_MAX: usize = 64;
/// Times that one flush tries again after the peer's port was found closed.
const REFUSALS_MAX: usize = 2;
/// Most calls that one pull makes, so that a fast peer leaves room for the loop's other work.
const RECEIVE_CALLS_MAX: usize = 64;

static OPTIONS: [OptionSpec; 9] = [
    OptionSpec {
        name: "datagram",
        kind: OptionKind::Size { min: 128, max: BATCH_BYTES_MAX as u64 },
        default: "1452",
        scope: Scope::Local,
        doc: "payload of one UDP datagram, bytes; the default fits an Ethernet frame over IPv4 and IPv6",
    },
    OptionSpec { doc: "largest body of a record, bytes; 65535 datagrams must hold it", ..outgoing::MAX },
    outgoing::OUTBOX,
    outgoing::OUTBOX_BYTES,
    OptionSpec {
        name: "partials",
        kind: OptionKind::Integer { min: 1, max: 1 << 16 },
        default: "1024",
        scope: Scope::Local,
        doc: "records of which some datagrams are missing that may be waited for",
    },
    OptionSpec {
        name: "partial_bytes",
        kind: OptionKind::Size { min: 1 << 20, max: 1 << 30 },
        default: "96MiB",
        scope: Scope::Local,
        doc: "memory that records may hold of which some datagrams are missing, bytes",
    },
    OptionSpec {
        name: "patience",
        kind: OptionKind::Duration { min: Duration::from_millis(1), max: Duration::from_secs(60) },
        default: "3s",
        scope: Scope::Local,
        doc: "how long nothing of a record may come, or arrive, before the rest of it is given up",
    },
    OptionSpec {
        name: "spin",
        kind: OptionKind::Duration { min: Duration::ZERO, max: Duration::from_millis(1) },
        default: "60us",
        scope: Scope::Local,
        doc: "amid a record whose datagrams come closer than this, ask for the next this long before sleeping",
    },
    socket::BUFFERS,
];

/// The transport `udp`.
#[derive(Debug, Clone, Copy)]
pub struct Udp;

impl TransportClass for Udp {
    fn name(&self) -> &'static str {
        "udp"
    }

    fn summary(&self) -> &'static str {
        "records in datagrams: what is lost is lost alone, and nothing waits for it"
    }

    fn doc(&self) -> &'static str {
        include_str!("udp.md")
    }

    fn options(&self) -> &'static [OptionSpec] {
        &OPTIONS
    }

    fn facts(&self) -> DatagramFacts {
        DatagramFacts { may_lose: true, may_reorder: true }
    }

    fn is_datagram(&self) -> bool {
        true
    }

    fn dial(&self, peer: SocketAddr, _options: &Options) -> Result<OwnedFd, PartnerError> {
        socket::dial(SocketType::DGRAM, peer)
    }

    fn partner(
        &self,
        socket: OwnedFd,
        _end: End,
        options: &Options,
        keys: Option<&SealKeys>,
    ) -> Result<Box<dyn Partner>, PartnerError> {
        let bytes = options.size("socket_bytes");
        socket::set_buffers(socket.as_fd(), bytes, bytes)?;
        // Without it, each datagram is received by itself.
        let _ = sys::net::join_datagrams(&socket);
        Ok(Box::new(UdpPartner::new(socket, options, keys)))
    }
}

/// Moves records over a connected socket.
#[derive(Debug)]
struct UdpPartner {
    socket: OwnedFd,
    peer: String,
    body_bytes_max: usize,
    /// What seals the datagrams, unless they travel bare.
    seal: Option<Box<Seal>>,
    /// The batch on its way, sealed.
    sealed: Vec<u8>,
    /// Bytes of a datagram beside its part of the record.
    around_bytes: usize,
    sending: Sending,
    /// The socket had no room.
    is_socket_full: bool,
    /// Whether the kernel cuts a batch into datagrams.
    can_batch: bool,
    is_finished: bool,
    slab: BytesMut,
    slab_number: u64,
    slabs: Recycler,
    /// When datagrams came last, and how long after those before, nanoseconds.
    came: Time,
    gap: Duration,
    spin: Duration,
    seen: Seen,
    reassembly: Reassembly,
    slot: PullSlot,
    /// Flow of the record in the slot.
    flow: FlowKey,
    counts: Counts,
    /// Once somebody traced.
    watch: Option<Box<Watch>>,
}

#[derive(Debug, Default)]
struct Counts {
    sent_bytes: u64,
    sent_datagrams: u64,
    send_calls: u64,
    /// Datagrams that the system refused: the network may be away for a while.
    unsent_datagrams: u64,
    received_datagrams: u64,
    /// Of those, the peer's own that came once.
    opened_datagrams: u64,
    receive_calls: u64,
    /// Receipts that were written, and that came.
    receipts_sent: u64,
    receipts: u64,
    /// Datagrams whose end was cut off.
    truncated: u64,
    /// Datagrams that the seal does not open: altered, or from somebody else.
    altered: u64,
    /// Datagrams that came sealed once before.
    replayed: u64,
}

impl UdpPartner {
    fn new(socket: OwnedFd, options: &Options, keys: Option<&SealKeys>) -> Self {
        let body_bytes_max = options.size("max");
        let around_bytes = Fragment::BYTES + if keys.is_some() { DATAGRAM_BYTES } else { 0 };
        let patience = options.duration("patience");
        let limits = SendingLimits {
            records_max: options.count("outbox"),
            bytes_max: options.size("outbox_bytes"),
            patience,
        };
        let room = sockopt::socket_recv_buffer_size(&socket).unwrap_or(SLAB_BYTES);
        UdpPartner {
            peer: socket::peer_name(socket.as_fd()),
            socket,
            body_bytes_max,
            seal: keys.map(|keys| Box::new(Seal::new(keys))),
            sealed: Vec::new(),
            around_bytes,
            sending: Sending::new(options.size("datagram") - around_bytes, around_bytes, limits),
            is_socket_full: false,
            can_batch: true,
            is_finished: false,
            slab: BytesMut::with_capacity(SLAB_BYTES),
            slab_number: 0,
            slabs: Recycler::new(SLABS_KEPT_MAX, SLABS_KEPT_MAX * SLAB_BYTES),
            came: Time::ZERO,
            gap: Duration::MAX,
            spin: options.duration("spin"),
            seen: Seen::new(room),
            reassembly: Reassembly::new(Limits {
                body_bytes_max,
                partials_max: options.count("partials"),
                partial_bytes_max: options.size("partial_bytes"),
                patience,
            }),
            slot: PullSlot::default(),
            flow: FlowKey::DEFAULT,
            counts: Counts::default(),
            watch: None,
        }
    }

    fn failed(&self, error: io::Error) -> PartnerError {
        PartnerError::os(format!("datagrams to and from {}", self.peer), error)
    }

    /// Hears what became of what has left: at the end nobody may pull any more.
    fn settle(&mut self) -> Result<(), PartnerError> {
        while self.reassembly.ready() < AHEAD_RECORDS_MAX && self.receive()? {}
        self.sending.handle_timeout(Time(sys::clock::boot_ns()));
        Ok(())
    }

    /// Sends what waits, as far as its rate lets and the socket takes it.
    fn flush(&mut self) -> Result<(), PartnerError> {
        if self.is_finished && !self.is_done() {
            self.settle()?;
        }
        let mut refusals = 0;
        self.is_socket_full = false;
        while !self.sending.is_empty() {
            let now = Time(sys::clock::boot_ns());
            if self.sending.timeout().is_some_and(|at| at <= now) {
                // A host that had no time to look finds here the word that it missed.
                self.settle()?;
            }
            let bytes_max = match self.sending.turn(now) {
                Turn::Go(bytes_max) => bytes_max,
                // What the receiver told may have come, whether somebody pulls or not.
                Turn::Window if self.reassembly.ready() < AHEAD_RECORDS_MAX && self.receive()? => continue,
                _ => break,
            };
            let datagrams_max = if self.can_batch { SEGMENTS_MAX } else { 1 };
            let batch = self.sending.plan(datagrams_max, bytes_max);
            let mut slices = SmallVec::<[IoSlice<'_>; 256]>::new();
            let count = match &mut self.seal {
                None => batch.each(&self.sending, |pieces| {
                    let fits = slices.len() + pieces.len() <= sys::net::SLICES_MAX;
                    slices.extend(pieces.iter().filter(|_| fits).map(|piece| IoSlice::new(piece)));
                    fits
                }),
                // One that does not go is sealed anew, under new numbers.
                Some(seal) => {
                    self.sealed.clear();
                    batch.each(&self.sending, |pieces| {
                        seal.sealer.datagram(pieces.iter().copied(), &mut self.sealed);
                        true
                    })
                }
            };
            if self.seal.is_some() {
                slices.push(IoSlice::new(&self.sealed));
            }
            self.counts.send_calls += 1;
            let segment = (count > 1).then(|| (batch.parts[0] + self.around_bytes) as u16);
            let result = match (self.watch.as_deref_mut(), segment) {
                (Some(watch), segment) => watch.send(self.socket.as_fd(), &slices, segment),
                (None, None) => sys::net::send(&self.socket, &slices),
                (None, Some(segment)) => sys::net::send_datagrams(&self.socket, &slices, segment),
            };
            drop(slices);
            match result {
                Ok(_) => self.counts.sent_datagrams += count as u64,
                Err(error) if socket::is_not_now(&error) => {
                    self.is_socket_full = true;
                    break;
                }
                Err(error) if count > 1 && is_unbatchable(&error) => {
                    self.can_batch = false;
                    continue;
                }
                // It tells of a datagram sent before; this one did not go yet.
                Err(error) if is_refusal(&error) && refusals < REFUSALS_MAX => {
                    refusals += 1;
                    continue;
                }
                Err(error) if is_passing(&error) => self.counts.unsent_datagrams += count as u64,
                Err(error) => return Err(self.failed(error)),
            }
            self.counts.sent_bytes += batch.parts[..count].iter().sum::<usize>() as u64;
            self.sending.sent(&batch, count, now);
            if let Some(watch) = self.watch.as_deref_mut() {
                watch.written(self.sending.counts.sent);
            }
        }
        Ok(())
    }

    /// Writes the receipt that is due. One that does not go is lost, as it may be on the way.
    fn tell(&mut self, now: Time) {
        let Some(receipt) = self.seen.poll(now) else { return };
        let bytes = receipt.emit();
        self.counts.receipts_sent += 1;
        let _ = match &mut self.seal {
            None => sys::net::send(&self.socket, &[IoSlice::new(&bytes)]),
            Some(seal) => {
                self.sealed.clear();
                seal.sealer.datagram([&bytes[..]].into_iter(), &mut self.sealed);
                sys::net::send(&self.socket, &[IoSlice::new(&self.sealed)])
            }
        };
    }

    /// What is to be done besides, now that nothing more is there.
    fn tend(&mut self) -> Result<(), PartnerError> {
        let timers = [self.seen.due(), self.sending.timeout(), self.reassembly.expires()];
        if timers == [None; 3] && self.sending.is_empty() {
            return Ok(());
        }
        let now = Time(sys::clock::boot_ns());
        self.reassembly.expire(now);
        self.tell(now);
        self.sending.handle_timeout(now);
        self.flush()
    }

    /// Finds the next record, and notes its flow.
    fn next(&mut self) -> Result<Next, PartnerError> {
        for _ in 0..RECEIVE_CALLS_MAX {
            if let Some((flow, body)) = self.reassembly.next() {
                self.flow = FlowKey(flow);
                return Ok(Next::Message(Message::new(Time::ZERO, body)));
            }
            if !self.receive()? {
                self.tend()?;
                break;
            }
        }
        Ok(Next::Nothing)
    }

    /// Receives a datagram or several; `false` if there is none.
    fn receive(&mut self) -> Result<bool, PartnerError> {
        if self.slab.capacity() < RECEIVE_BYTES && !self.slab.try_reclaim(SLAB_BYTES) {
            let full = std::mem::replace(&mut self.slab, self.slabs.take(SLAB_BYTES));
            self.slabs.retire(full, SLAB_BYTES);
            self.slab_number += 1;
        }
        let received = loop {
            self.counts.receive_calls += 1;
            let error = match sys::net::receive_datagrams(&self.socket, &mut self.slab) {
                Ok(received) => break received,
                Err(error) => error,
            };
            match error {
                error if socket::is_not_now(&error) && self.is_streaming() => std::hint::spin_loop(),
                error if socket::is_not_now(&error) => return Ok(false),
                // The peer's port was closed when something we sent arrived: it may open again.
                error if is_passing(&error) => return Ok(true),
                error => return Err(self.failed(error)),
            }
        };
        // A kernel may tell it whenever anybody on this host asks for such times.
        if let Some(watch) = self.watch.as_deref_mut().filter(|watch| watch.notes_arrivals()) {
            watch.arrived_real_ns = received.arrived_real_ns;
        }
        let slab = Slab { number: self.slab_number, bytes: SLAB_BYTES };
        let mut datagrams = self.slab.split();
        if received.truncated {
            self.counts.truncated += 1;
            return Ok(true);
        }
        let now = Time(sys::clock::boot_ns());
        self.gap = now.since(self.came);
        self.came = now;
        while !datagrams.is_empty() {
            let datagram = datagrams.split_to(received.segment.min(datagrams.len()));
            self.counts.received_datagrams += 1;
            if let Some(datagram) = self.open(datagram) {
                self.counts.opened_datagrams += 1;
                self.take(datagram, slab, now);
            }
        }
        if self.seen.due().is_some_and(|due| due <= now) {
            self.tell(now);
        }
        Ok(true)
    }

    /// What is in a datagram, if it is one of the peer's that did not come yet.
    fn open(&mut self, mut datagram: BytesMut) -> Option<Bytes> {
        let Some(seal) = &mut self.seal else { return Some(datagram.freeze()) };
        // A peer that is not sure it was heard introduces itself again.
        if datagram.len() == Introduction::BYTES && Introduction::parse(&datagram).is_ok() {
            return None;
        }
        match seal.opener.datagram(&mut datagram) {
            Ok(bytes) => Some(datagram.freeze().slice(NUMBER_BYTES..NUMBER_BYTES + bytes)),
            Err(NotOpened::Altered) => {
                self.counts.altered += 1;
                None
            }
            Err(NotOpened::Repeated) => {
                self.counts.replayed += 1;
                None
            }
        }
    }

    /// A datagram as its sender laid it out.
    fn take(&mut self, datagram: Bytes, slab: Slab, now: Time) {
        if Receipt::is_one(&datagram) {
            self.counts.receipts += 1;
            let is_ours = Receipt::parse(&datagram).is_ok_and(|receipt| self.sending.hear(&receipt, now));
            self.reassembly.counts.malformed += u64::from(!is_ours);
            return;
        }
        let bytes = datagram.len();
        if let Some(fragment) = self.reassembly.datagram(datagram, slab, now) {
            self.seen.take(fragment.number, bytes, fragment.count > 1, now);
        }
    }

    /// Whether the next part of a record is likely to come at once. Asking again then beats sleeping: a wake-up
    /// across processors costs the sender several microseconds a batch, and slows the stream to where each
    /// batch costs one.
    fn is_streaming(&self) -> bool {
        let is_likely = self.reassembly.held().0 > 0 && self.gap < self.spin;
        is_likely && Time(sys::clock::boot_ns()).since(self.came) < self.spin
    }

    /// When something is to be sent, or given up.
    fn wakes_at(&self) -> Option<Time> {
        let at = (!self.is_socket_full && self.sending.may_leave()).then(|| self.sending.rate().next());
        [at, self.sending.timeout()].into_iter().flatten().min()
    }

    /// Whether everything has left; at the end, for good.
    fn is_done(&self) -> bool {
        self.sending.is_empty() && (!self.is_finished || self.sending.is_settled())
    }

    fn flushed(&self) -> CtlReply {
        if self.is_done() { CtlReply::Done } else { CtlReply::Pending }
    }

    fn report(&self) -> CtlReply {
        let (counts, records) = (&self.counts, &self.reassembly.counts);
        CtlReply::Report(vec![
            ("sent", self.sending.counts.sent as f64),
            ("sent_bytes", counts.sent_bytes as f64),
            ("sent_datagrams", counts.sent_datagrams as f64),
            ("unsent_datagrams", counts.unsent_datagrams as f64),
            ("send_calls", counts.send_calls as f64),
            ("received", records.received as f64),
            ("received_bytes", records.received_bytes as f64),
            ("received_datagrams", counts.received_datagrams as f64),
            ("receive_calls", counts.receive_calls as f64),
            ("partials", self.reassembly.held().0 as f64),
            ("partial_bytes", self.reassembly.held().1 as f64),
            ("lost_partial", records.lost_partial as f64),
            ("repeated_datagrams", records.repeated as f64),
            ("malformed_datagrams", records.malformed as f64),
            ("truncated_datagrams", counts.truncated as f64),
            ("altered_datagrams", counts.altered as f64),
            ("replayed_datagrams", counts.replayed as f64),
            ("waiting", self.sending.waiting() as f64),
            ("waiting_bytes", self.sending.waiting_bytes() as f64),
            ("under_way_bytes", self.sending.under_way() as f64),
            ("window_bytes", self.sending.rate().window() as f64),
            ("pace_bytes_per_s", self.sending.rate().pace().unwrap_or_default()),
            ("round_trip_us", self.sending.rate().round_trip().as_secs_f64() * 1e6),
            ("lost_datagrams", self.sending.counts.lost as f64),
            ("again_datagrams", self.sending.counts.again as f64),
            ("given_up", self.sending.counts.given_up as f64),
            ("receipts_sent", counts.receipts_sent as f64),
            ("receipts", counts.receipts as f64),
        ])
    }
}

fn is(error: &io::Error, numbers: &[Errno]) -> bool {
    Errno::from_io_error(error).is_some_and(|number| numbers.contains(&number))
}

/// The kernel or the device cannot cut a batch (`udp(7)`, UDP_SEGMENT), or not into datagrams of this size.
fn is_unbatchable(error: &io::Error) -> bool {
    is(error, &[Errno::IO, Errno::INVAL, Errno::MSGSIZE, Errno::OPNOTSUPP, Errno::NOPROTOOPT])
}

/// A datagram sent before found the peer's port closed.
fn is_refusal(error: &io::Error) -> bool {
    is(error, &[Errno::CONNREFUSED])
}

/// The network, or the peer, may come back; until then datagrams are lost, as they may be on the way.
fn is_passing(error: &io::Error) -> bool {
    let passing = [
        Errno::CONNREFUSED,
        Errno::NETUNREACH,
        Errno::HOSTUNREACH,
        Errno::HOSTDOWN,
        Errno::NETDOWN,
        Errno::NOBUFS,
        Errno::PERM,
        Errno::MSGSIZE,
    ];
    is(error, &passing)
}

impl Partner for UdpPartner {
    fn open(&mut self, _template: &FlowTemplate, _attributes: &Attributes) -> Result<FlowKey, PartnerError> {
        // Which flow a record belongs to stands in the record.
        Ok(FlowKey::DEFAULT)
    }

    fn close(&mut self, _flow: FlowKey) -> Result<(), PartnerError> {
        self.flush()
    }

    fn push(&mut self, _flow: FlowKey, message: Message) -> Result<Pushed, (PartnerError, Message)> {
        if self.is_finished {
            return Err((PartnerError::Unsupported("taking records after the end"), message));
        }
        let bytes = message.body.len();
        let checked = check_record(&message, self.body_bytes_max).and_then(|()| {
            let too_large = || {
                let most = u16::MAX;
                format!("{bytes} bytes are more than {most} datagrams hold (option `datagram`)")
            };
            self.sending.parts(bytes).ok_or_else(|| PartnerError::Message(too_large()))
        });
        let parts = match checked {
            Ok(parts) => parts,
            Err(error) => return Err((error, message)),
        };
        if self.sending.is_full_for(bytes) {
            // Full of what has left and is not heard of yet: a flush has nothing to do with that.
            let heard = if self.sending.is_empty() { self.settle() } else { Ok(()) };
            if let Err(error) = heard.and_then(|()| self.flush()) {
                return Err((error, message));
            }
            if self.sending.is_full_for(bytes) {
                return Ok(Pushed::Full(message));
            }
        }
        let mut record = message.body;
        if record.pieces() > PIECES_MAX {
            record = Body::from(record.into_bytes());
        }
        self.sending.push(record, parts, Time(sys::clock::boot_ns()));
        if self.sending.waiting_bytes() >= BURST_BYTES {
            // The message is taken: an error shows again at the next push or flush.
            let _ = self.flush();
        }
        Ok(Pushed::Taken)
    }

    fn pull(&mut self, _flow: FlowKey, want: Pull<'_>) -> Result<Pulled, PartnerError> {
        if self.slot.is_held() {
            return self.slot.answer(self.flow, want, || Ok(Next::Nothing));
        }
        let next = self.next()?;
        self.slot.answer(self.flow, want, || Ok(next))
    }

    fn ctl(&mut self, _flow: FlowKey, operation: Ctl<'_>) -> Result<CtlReply, PartnerError> {
        match operation {
            Ctl::Flush => self.flush().map(|()| self.flushed()),
            Ctl::Finish => {
                self.is_finished = true;
                self.flush().map(|()| self.flushed())
            }
            Ctl::Report => Ok(self.report()),
            Ctl::Heard => {
                Ok(CtlReply::Count(self.counts.opened_datagrams - self.reassembly.counts.malformed))
            }
            Ctl::Snapshot | Ctl::Neutral | Ctl::Ask(..) => {
                Err(PartnerError::Unsupported("asking a transport for a device's state"))
            }
            operation => {
                let watch = self.watch.get_or_insert_with(|| Box::new(Watch::new(false)));
                let sent = self.sending.counts.sent;
                let progress = (sent + self.sending.waiting(), sent);
                watch.answer(operation, self.socket.as_fd(), progress)
            }
        }
    }

    fn readiness(&self, _flow: FlowKey, direction: Direction) -> Readiness<'_> {
        match direction {
            // What waits has to be flushed when the socket has room again, the time has come or the receiver
            // has told, full or not.
            Direction::In if !self.is_done() => {
                let interest = if self.is_socket_full { Interest::Write } else { Interest::Read };
                let now = !self.sending.is_full_for(1);
                Readiness { now, ..Readiness::descriptor(self.socket.as_fd(), interest) }
                    .or_at(self.wakes_at())
            }
            Direction::In => Readiness::now(),
            Direction::Out if self.slot.is_held() || self.reassembly.has_next() => Readiness::now(),
            Direction::Out => Readiness::descriptor(self.socket.as_fd(), Interest::Read)
                .or_at(self.seen.due())
                .or_at(self.wakes_at()),
        }
    }
}
