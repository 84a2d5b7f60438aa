#![doc = include_str!("udp.md")]
//!
//! # Structure
//!
//! ```text
//! push ─► Sender ─► seal ─► socket ─► network ─► socket ─► open ─┬─ fragment ─► Reassembly ─► pull
//!           ▲                                                    │                  │
//!      RateControl                                               │           ArrivalTracker
//!           ▲                                                    │                  │
//!           └───────────────────── receipt ◄─────────────────────┘               receipt ─► socket
//! ```
//!
//! All parts except this file are sans-IO. `unanswered` watches the sender for a peer that nothing reaches.

pub(crate) mod fragment;
#[cfg(test)]
mod link_tests;
pub(crate) mod reassembly;
mod receipt;
mod sender;
#[cfg(test)]
mod tests;
mod unanswered;

use crate::seal::{DATAGRAM_BYTES, NUMBER_BYTES, OpenError, Seal};
use crate::send_queue::{self, QUEUE_BYTES_MAX, check_record};
use crate::socket;
use crate::timestamps::KernelTimestamps;
use buffers::Recycler;
use bytes::{Bytes, BytesMut};
use contract::{
    Attributes, Body, Ctl, CtlReply, Direction, End, FlowKey, FlowTemplate, Interest, Message, ModuleEntry,
    Next, OptionKind, OptionSpec, Options, Partner, PartnerError, PartnerResult, Pull, PullSlot, Pulled,
    Pushed, Readiness, SealKeys, Time, TransportClass, TransportCtl, local,
};
use fragment::{Fragment, record_id};
use reassembly::{Reassembly, ReassemblyLimits, Slab};
use receipt::{ArrivalTracker, Receipt};
use rustix::io::Errno;
use rustix::net::{SocketType, sockopt};
use sender::{BATCH_BYTES_MAX, Batch, Permission, Sender, SenderLimits};
use smallvec::SmallVec;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;
use sys::net::DatagramSplit;
use sys::net::SEGMENTS_MAX;
use wire::preamble::Introduction;

/// Queued bytes at which a push flushes before the end of the burst: about one batch.
const BURST_BYTES: usize = 60 << 10;
/// A record in more pieces is joined before it is sent, so that one call can always send one datagram.
const PIECES_MAX: usize = sys::net::SLICES_MAX - 1;
/// Largest amount that one receive call returns.
const RECEIVE_BYTES: usize = 64 << 10;
/// Size of a slab, into which datagrams are received one behind the other.
const SLAB_BYTES: usize = 4 * RECEIVE_BYTES;
/// Slabs kept for reuse.
const SLABS_KEPT_MAX: usize = 8;
/// Retries of one flush after `ECONNREFUSED`.
const REFUSALS_MAX: usize = 2;
/// Receive calls of one pull or flush, at most, so that a fast peer does not starve the rest of the event loop.
const RECEIVE_CALLS_MAX: usize = 64;
/// A record is abandoned, sending or receiving, after no part of it arrived for this long.
const PATIENCE: Duration = Duration::from_secs(3);
const REASSEMBLY_LIMITS: ReassemblyLimits = ReassemblyLimits {
    body_bytes_max: wire::BODY_BYTES_MAX,
    partials_max: 1024,
    partial_bytes_max: 96 << 20,
    patience: PATIENCE,
};
/// Inside a record with datagrams closer than this, the socket is polled this long before sleeping.
const SPIN: Duration = Duration::from_micros(60);
/// Longest time without a datagram to the peer, so that address translators keep their bindings.
const KEEP_ALIVE: Duration = Duration::from_secs(20);

static OPTIONS: [OptionSpec; 3] = [
    local(
        "datagram",
        OptionKind::Size { min: 128, max: BATCH_BYTES_MAX as u64 },
        "1452",
        "payload of one UDP datagram, bytes; the default fits an Ethernet frame over IPv4 and IPv6",
    ),
    send_queue::OUTBOX,
    socket::BUFFERS,
];

/// The transport `udp`.
#[derive(Debug, Clone, Copy)]
pub struct Udp;

impl TransportClass for Udp {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry {
            name: "udp",
            summary: "records in UDP datagrams: a lost record does not delay the others",
            doc: include_str!("udp.md"),
            options: &OPTIONS,
        }
    }

    fn may_lose(&self) -> bool {
        true
    }

    fn is_datagram(&self) -> bool {
        true
    }

    fn dial(&self, peer: SocketAddr, _options: &Options) -> PartnerResult<OwnedFd> {
        socket::dial(SocketType::DGRAM, peer)
    }

    fn partner(
        &self,
        socket: OwnedFd,
        end: End,
        options: &Options,
        keys: Option<&SealKeys>,
    ) -> PartnerResult<Box<dyn Partner>> {
        let bytes = options.size("socket_bytes");
        socket::prepare(socket.as_fd(), bytes)?;
        // Best effort: without UDP_GRO each call receives one datagram.
        let _ = sys::net::join_datagrams(&socket);
        let mut partner = UdpPartner::new(socket, options, keys);
        partner.keep_alive_at = (end == End::Dialled).then(|| Time(sys::clock::boot_ns()).after(KEEP_ALIVE));
        Ok(Box::new(partner))
    }
}

/// One connected UDP socket as a partner.
#[derive(Debug)]
struct UdpPartner {
    socket: OwnedFd,
    peer: String,
    /// `None` on an unencrypted connection.
    seal: Option<Box<Seal>>,
    /// Buffer for the sealed datagrams of one call.
    sealed: Vec<u8>,
    /// Bytes of a datagram besides its part of the record: header and seal.
    overhead_bytes: usize,
    sender: Sender,
    /// The last send returned `EAGAIN`.
    is_socket_full: bool,
    /// The kernel splits a batch into datagrams (UDP_SEGMENT); cleared after the first failure.
    can_batch: bool,
    /// [`Ctl::Finish`] was called: no more records are accepted.
    is_finishing: bool,
    receive_slab: ReceiveSlab,
    cadence: Cadence,
    arrivals: ArrivalTracker,
    reassembly: Reassembly,
    /// Memory of complete records at which further parts are dropped, because the application does not pull: the size of the
    /// kernel's buffer. Left in the socket, they would hold up the receipts behind them.
    ready_bytes_max: usize,
    slot: PullSlot,
    /// Flow of the record in the slot.
    flow: FlowKey,
    counts: Counts,
    /// The application host's end sends a datagram at this time if it sends nothing before.
    keep_alive_at: Option<Time>,
    /// Created by the first trace request.
    timestamps: Option<Box<KernelTimestamps>>,
    split: DatagramSplit,
}

/// Memory that datagrams are received into.
#[derive(Debug)]
struct ReceiveSlab {
    free: BytesMut,
    /// Identifies the current slab to [`Reassembly`].
    number: u64,
    slabs: Recycler,
}

impl ReceiveSlab {
    fn new() -> Self {
        ReceiveSlab {
            free: BytesMut::with_capacity(SLAB_BYTES),
            number: 0,
            slabs: Recycler::new(SLABS_KEPT_MAX, SLABS_KEPT_MAX * SLAB_BYTES),
        }
    }

    /// Returns a buffer with room for one receive call.
    fn with_room(&mut self) -> &mut BytesMut {
        if self.free.capacity() < RECEIVE_BYTES && !self.free.try_reclaim(SLAB_BYTES) {
            let full = std::mem::replace(&mut self.free, self.slabs.take(SLAB_BYTES));
            self.slabs.retire(full, SLAB_BYTES);
            self.number += 1;
        }
        &mut self.free
    }

    fn current(&self) -> Slab {
        Slab { number: self.number, bytes: SLAB_BYTES }
    }
}

/// Arrival times of datagrams, to decide whether polling for the next one pays.
#[derive(Debug)]
struct Cadence {
    last: Time,
    /// Between the last two arrivals.
    gap: Duration,
}

#[derive(Debug, Default)]
struct Counts {
    sent_bytes: u64,
    sent_datagrams: u64,
    send_calls: u64,
    /// Datagrams dropped because the system refused them, for example without a route.
    unsent_datagrams: u64,
    received_datagrams: u64,
    /// Received datagrams that are authentic and new.
    opened_datagrams: u64,
    receive_calls: u64,
    receipts_sent: u64,
    receipts_received: u64,
    /// Received datagrams that were longer than the buffer.
    truncated: u64,
    /// Received datagrams that fail authentication.
    altered: u64,
    /// Received datagrams that are repetitions.
    replayed: u64,
    /// Received parts of records that were dropped because too many records wait for the application.
    overflowed: u64,
}

impl UdpPartner {
    fn new(socket: OwnedFd, options: &Options, keys: Option<&SealKeys>) -> Self {
        let overhead_bytes = Fragment::BYTES + if keys.is_some() { DATAGRAM_BYTES } else { 0 };
        let limits = SenderLimits {
            records_max: options.count("outbox"),
            bytes_max: QUEUE_BYTES_MAX,
            patience: PATIENCE,
        };
        let room = sockopt::socket_recv_buffer_size(&socket).unwrap_or(SLAB_BYTES);
        UdpPartner {
            peer: socket::peer_name(socket.as_fd()),
            socket,
            seal: keys.map(|keys| Box::new(Seal::new(keys))),
            sealed: Vec::new(),
            overhead_bytes,
            sender: Sender::new(options.size("datagram") - overhead_bytes, overhead_bytes, limits),
            is_socket_full: false,
            can_batch: true,
            is_finishing: false,
            receive_slab: ReceiveSlab::new(),
            cadence: Cadence { last: Time::ZERO, gap: Duration::MAX },
            arrivals: ArrivalTracker::new(room),
            reassembly: Reassembly::new(REASSEMBLY_LIMITS),
            ready_bytes_max: room,
            slot: PullSlot::default(),
            flow: FlowKey::DEFAULT,
            counts: Counts::default(),
            keep_alive_at: None,
            timestamps: None,
            split: DatagramSplit::default(),
        }
    }

    fn failed(&self, error: io::Error) -> PartnerError {
        PartnerError::os(format!("datagrams to and from {}", self.peer), error)
    }

    /// Processes received datagrams, for their receipts, and then the sender's timeout. The application may not pull,
    /// for example at the end.
    fn receive_receipts(&mut self) -> PartnerResult {
        // The receipt may be behind the datagrams that are left.
        if self.receive_waiting()? {
            self.sender.handle_timeout(Time(sys::clock::boot_ns()));
        }
        Ok(())
    }

    /// Receives the waiting datagrams. Returns true if the socket is empty.
    fn receive_waiting(&mut self) -> PartnerResult<bool> {
        for _ in 0..RECEIVE_CALLS_MAX {
            if !self.receive()? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Sends as much as the rate, the window and the socket allow.
    fn flush(&mut self) -> PartnerResult {
        if self.is_finishing && !self.is_done() {
            self.receive_receipts()?;
        }
        let (mut refusals, mut receive_calls) = (0, 0);
        self.is_socket_full = false;
        // The pace permits what it did at the start: it would go on to permit a few datagrams, and meanwhile nothing would be received.
        let began = Time(sys::clock::boot_ns());
        while !self.sender.is_empty() {
            let now = Time(sys::clock::boot_ns());
            if self.sender.timeout().is_some_and(|at| at <= now) {
                // This thread may have slept past the timeout while the receipt waited in the socket.
                self.receive_receipts()?;
            }
            let bytes_max = match self.sender.permission(began) {
                Permission::Send(bytes_max) => bytes_max,
                // The receipt that opens the window may have arrived, even if the application does not pull.
                Permission::WindowFull if receive_calls < RECEIVE_CALLS_MAX && self.receive()? => {
                    receive_calls += 1;
                    continue;
                }
                // The poller reports what stays unread again and again.
                Permission::At(_) => {
                    self.receive_waiting()?;
                    break;
                }
                _ => break,
            };
            let datagrams_max = if self.can_batch { SEGMENTS_MAX } else { 1 };
            let batch = self.sender.plan(datagrams_max, bytes_max);
            let (count, result) = self.send_batch(&batch);
            match result {
                Ok(_) => self.counts.sent_datagrams += count as u64,
                Err(error) if socket::would_block(&error) => {
                    self.is_socket_full = true;
                    break;
                }
                Err(error) if count > 1 && is_unbatchable(&error) => {
                    self.can_batch = false;
                    continue;
                }
                // The error belongs to an earlier datagram; this batch was not sent.
                Err(error) if is_refusal(&error) && refusals < REFUSALS_MAX => {
                    refusals += 1;
                    continue;
                }
                Err(error) if socket::is_transient(&error) => self.counts.unsent_datagrams += count as u64,
                Err(error) => return Err(self.failed(error)),
            }
            self.counts.sent_bytes += batch.parts[..count].iter().sum::<usize>() as u64;
            self.sender.sent(&batch, count, now);
            self.postpone_keep_alive(now);
            if let Some(timestamps) = self.timestamps.as_deref_mut() {
                timestamps.on_written(self.sender.counts.sent);
            }
        }
        Ok(())
    }

    /// Sends a batch in one call. Returns the number of its datagrams in the call, and the call's result.
    fn send_batch(&mut self, batch: &Batch) -> (usize, io::Result<usize>) {
        let mut slices = SmallVec::<[IoSlice<'_>; 256]>::new();
        let count = match &mut self.seal {
            None => batch.each(&self.sender, |pieces| {
                let fits = slices.len() + pieces.len() <= sys::net::SLICES_MAX;
                slices.extend(pieces.iter().filter(|_| fits).map(|piece| IoSlice::new(piece)));
                fits
            }),
            // A batch that is not sent is sealed again with new numbers, so no nonce repeats.
            Some(seal) => {
                self.sealed.clear();
                batch.each(&self.sender, |pieces| {
                    seal.sealer.datagram(pieces.iter().copied(), &mut self.sealed);
                    true
                })
            }
        };
        if self.seal.is_some() {
            slices.push(IoSlice::new(&self.sealed));
        }
        self.counts.send_calls += 1;
        let segment = (count > 1).then(|| (batch.parts[0] + self.overhead_bytes) as u16);
        let mut send = || self.split.send(&self.socket, &slices, segment);
        let result = match self.timestamps.as_deref_mut() {
            Some(timestamps) => timestamps.send(self.socket.as_fd(), send),
            None => send(),
        };
        (count, result)
    }

    /// Sends a receipt if one is due. A failed send is ignored: receipts may be lost anyway.
    fn send_receipt(&mut self, now: Time) {
        let Some(receipt) = self.arrivals.poll_receipt(now) else { return };
        self.counts.receipts_sent += 1;
        self.send_datagram(&receipt.emit(), now);
    }

    /// Sends one datagram, which may be lost.
    fn send_datagram(&mut self, content: &[u8], now: Time) {
        self.postpone_keep_alive(now);
        let _ = match &mut self.seal {
            None => self.split.send(&self.socket, &[IoSlice::new(content)], None),
            Some(seal) => {
                self.sealed.clear();
                seal.sealer.datagram([content].into_iter(), &mut self.sealed);
                self.split.send(&self.socket, &[IoSlice::new(&self.sealed)], None)
            }
        };
    }

    fn postpone_keep_alive(&mut self, now: Time) {
        self.keep_alive_at = self.keep_alive_at.map(|_| now.after(KEEP_ALIVE));
    }

    /// Sends what is due, retransmissions included. Nobody may pull, because the receiving direction is blocked.
    fn run_upkeep(&mut self) -> PartnerResult {
        let now = Time(sys::clock::boot_ns());
        if self.sender.timeout().is_some_and(|at| at <= now) {
            self.receive_receipts()?;
        }
        if self.is_socket_full || self.next_send().is_some_and(|at| at <= now) {
            self.flush()?;
        }
        if self.keep_alive_at.is_some_and(|at| at <= now) {
            // It keeps the path open.
            self.send_datagram(&[], now);
        }
        Ok(())
    }

    /// Handles all timers, once the socket is empty.
    fn handle_timers(&mut self) -> PartnerResult {
        let timers = [self.arrivals.due(), self.sender.timeout(), self.reassembly.expires()];
        if timers == [None; 3] && self.sender.is_empty() {
            return Ok(());
        }
        let now = Time(sys::clock::boot_ns());
        self.reassembly.expire(now);
        self.send_receipt(now);
        self.sender.handle_timeout(now);
        self.flush()
    }

    /// Receives until a record is complete, and stores its flow.
    fn next(&mut self) -> PartnerResult<Next> {
        for _ in 0..RECEIVE_CALLS_MAX {
            if let Some((flow, body)) = self.reassembly.next() {
                self.flow = FlowKey(flow);
                return Ok(Next::Message(Message::new(Time::ZERO, body)));
            }
            if !self.receive()? {
                self.handle_timers()?;
                break;
            }
        }
        Ok(Next::Nothing)
    }

    /// Receives one or more datagrams. Returns false if the socket is empty.
    fn receive(&mut self) -> PartnerResult<bool> {
        let received = loop {
            self.counts.receive_calls += 1;
            let error = match sys::net::receive_datagrams(&self.socket, self.receive_slab.with_room()) {
                Ok(received) => break received,
                Err(error) => error,
            };
            match error {
                error if socket::would_block(&error) && self.is_streaming() => std::hint::spin_loop(),
                error if socket::would_block(&error) => return Ok(false),
                // For example, an earlier datagram found the peer's port closed. The port may open again.
                error if socket::is_transient(&error) => return Ok(true),
                error => return Err(self.failed(error)),
            }
        };
        // The kernel may deliver timestamps that another program on this host has enabled: check the mode.
        if let Some(timestamps) =
            self.timestamps.as_deref_mut().filter(|timestamps| timestamps.has_arrivals())
        {
            timestamps.arrived_real_ns = received.arrived_real_ns;
        }
        let slab = self.receive_slab.current();
        let mut datagrams = self.receive_slab.free.split();
        if received.truncated {
            self.counts.truncated += 1;
            return Ok(true);
        }
        let now = Time(sys::clock::boot_ns());
        self.cadence.gap = now.since(self.cadence.last);
        self.cadence.last = now;
        while !datagrams.is_empty() {
            let datagram = datagrams.split_to(received.segment.min(datagrams.len()));
            self.counts.received_datagrams += 1;
            // An empty datagram only keeps the path open.
            if let Some(datagram) = self.open(datagram).filter(|datagram| !datagram.is_empty()) {
                self.counts.opened_datagrams += 1;
                self.handle_datagram(datagram, slab, now);
            }
        }
        if self.arrivals.due().is_some_and(|due| due <= now) {
            self.send_receipt(now);
        }
        Ok(true)
    }

    /// Opens a datagram. Returns its contents if it is authentic and new.
    fn open(&mut self, mut datagram: BytesMut) -> Option<Bytes> {
        let Some(seal) = &mut self.seal else { return Some(datagram.freeze()) };
        // The peer repeats its introduction until it is answered.
        if datagram.len() == Introduction::BYTES && Introduction::parse(&datagram).is_ok() {
            return None;
        }
        match seal.opener.datagram(&mut datagram) {
            Ok(bytes) => Some(datagram.freeze().slice(NUMBER_BYTES..NUMBER_BYTES + bytes)),
            Err(OpenError::Altered) => {
                self.counts.altered += 1;
                None
            }
            Err(OpenError::Repeated) => {
                self.counts.replayed += 1;
                None
            }
        }
    }

    /// Processes a receipt or a part of a record.
    fn handle_datagram(&mut self, datagram: Bytes, slab: Slab, now: Time) {
        if Receipt::is_receipt(&datagram) {
            self.counts.receipts_received += 1;
            let is_valid =
                Receipt::parse(&datagram).is_ok_and(|receipt| self.sender.handle_receipt(&receipt, now));
            if is_valid {
                self.sender.unanswered.on_arrival();
            }
            self.reassembly.counts.malformed += u64::from(!is_valid);
            return;
        }
        if self.reassembly.ready_bytes() >= self.ready_bytes_max {
            self.counts.overflowed += 1;
            return;
        }
        let bytes = datagram.len();
        if let Some(fragment) = self.reassembly.insert(datagram, slab, now) {
            self.sender.unanswered.on_arrival();
            self.arrivals.on_arrival(fragment.number, bytes, fragment.count > 1, now);
        }
    }

    /// Returns true if the next part of a record is likely to arrive at once. Polling then beats sleeping: waking
    /// this thread from another processor costs the sender several microseconds per batch, and the stream slows down
    /// until every batch needs such a wake-up.
    fn is_streaming(&self) -> bool {
        let Cadence { last, gap } = self.cadence;
        let is_likely = self.reassembly.held().0 > 0 && gap < SPIN;
        is_likely && Time(sys::clock::boot_ns()).since(last) < SPIN
    }

    /// Returns the time of the next transmission or timeout.
    fn next_send(&self) -> Option<Time> {
        let at = (!self.is_socket_full && self.sender.may_send()).then(|| self.sender.rate().next());
        [at, self.sender.timeout()].into_iter().flatten().min()
    }

    /// Returns true if everything is sent and, after [`Ctl::Finish`], needs no retransmission.
    fn is_done(&self) -> bool {
        self.sender.is_empty() && (!self.is_finishing || self.sender.is_acknowledged())
    }

    fn flushed(&self) -> CtlReply {
        if self.is_done() { CtlReply::Done } else { CtlReply::Pending }
    }

    fn report(&self) -> CtlReply {
        let (counts, records) = (&self.counts, &self.reassembly.counts);
        let mut figures = vec![
            ("sent", self.sender.counts.sent as f64),
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
            ("overflowed_datagrams", counts.overflowed as f64),
            ("waiting", self.sender.waiting() as f64),
            ("waiting_bytes", self.sender.waiting_bytes() as f64),
            ("in_flight_bytes", self.sender.in_flight() as f64),
            ("window_bytes", self.sender.rate().window() as f64),
            ("round_trip_us", self.sender.rate().round_trip().as_secs_f64() * 1e6),
            ("lost_datagrams", self.sender.counts.lost as f64),
            ("retransmitted_datagrams", self.sender.counts.retransmitted as f64),
            ("abandoned", self.sender.counts.abandoned as f64),
            ("receipts_sent", counts.receipts_sent as f64),
            ("receipts", counts.receipts_received as f64),
        ];
        figures.extend(self.sender.rate().view().figures());
        CtlReply::Report(figures)
    }
}

/// Returns true if the kernel or the network device cannot split this batch (`udp(7)`, UDP_SEGMENT).
fn is_unbatchable(error: &io::Error) -> bool {
    socket::is(error, &[Errno::IO, Errno::INVAL, Errno::MSGSIZE, Errno::OPNOTSUPP, Errno::NOPROTOOPT])
}

/// Returns true if an earlier datagram found the peer's port closed.
fn is_refusal(error: &io::Error) -> bool {
    socket::is(error, &[Errno::CONNREFUSED])
}

impl Partner for UdpPartner {
    fn open(&mut self, _template: &FlowTemplate, _attributes: &Attributes) -> PartnerResult<FlowKey> {
        // The record header names the flow.
        Ok(FlowKey::DEFAULT)
    }

    fn close(&mut self, _flow: FlowKey) -> PartnerResult {
        self.flush()
    }

    fn push(&mut self, _flow: FlowKey, message: Message) -> Result<Pushed, (PartnerError, Message)> {
        if self.is_finishing {
            return Err((PartnerError::Unsupported("accepting records after the end"), message));
        }
        let bytes = message.body.len();
        let checked = check_record(&message).and_then(|()| {
            let too_large = || {
                let most = u16::MAX;
                format!("{bytes} bytes do not fit {most} datagrams (option `datagram`)")
            };
            self.sender.parts(bytes).ok_or_else(|| PartnerError::Message(too_large()))
        });
        let parts = match checked {
            Ok(parts) => parts,
            Err(error) => return Err((error, message)),
        };
        if self.sender.is_full_for(bytes) {
            // If everything is sent, unacknowledged records fill the queue. A flush would not read receipts then.
            let received = if self.sender.is_empty() { self.receive_receipts() } else { Ok(()) };
            if let Err(error) = received.and_then(|()| self.flush()) {
                return Err((error, message));
            }
            if self.sender.is_full_for(bytes) {
                return Ok(Pushed::Full(message));
            }
        }
        let mut record = message.body;
        if record.pieces() > PIECES_MAX {
            record = Body::from(record.into_bytes());
        }
        self.sender.push(record, parts, Time(sys::clock::boot_ns()));
        if self.sender.waiting_bytes() >= BURST_BYTES {
            // The record is in the queue, so this push succeeds. The next push or flush returns the error.
            let _ = self.flush();
        }
        Ok(Pushed::Taken)
    }

    fn pull(&mut self, _flow: FlowKey, request: Pull<'_>) -> PartnerResult<Pulled> {
        let next = if self.slot.is_held() { Next::Nothing } else { self.next()? };
        self.slot.answer(self.flow, request, || Ok(next))
    }

    fn ctl(&mut self, _flow: FlowKey, operation: Ctl<'_>) -> PartnerResult<CtlReply> {
        match operation {
            Ctl::Flush => self.flush().map(|()| self.flushed()),
            Ctl::Finish => {
                self.is_finishing = true;
                self.flush().map(|()| self.flushed())
            }
            Ctl::Report => Ok(self.report()),
            Ctl::Transport(TransportCtl::Received) => {
                self.run_upkeep()?;
                Ok(CtlReply::Count(self.counts.opened_datagrams - self.reassembly.counts.malformed))
            }
            Ctl::Transport(TransportCtl::Overflow { flow, epoch, sequence }) => {
                self.reassembly.forget(&record_id(flow, epoch, sequence));
                Ok(CtlReply::Done)
            }
            Ctl::Transport(TransportCtl::HeldBack) => {
                let is_held_back = self.sender.unanswered.is_reported(Time(sys::clock::boot_ns()));
                Ok(CtlReply::Count(is_held_back.into()))
            }
            Ctl::Transport(TransportCtl::Probe) => {
                self.sender.probe(Time(sys::clock::boot_ns()));
                self.flush().map(|()| CtlReply::Done)
            }
            Ctl::Snapshot | Ctl::Neutral => {
                Err(PartnerError::Unsupported("asking a transport for a device's state"))
            }
            operation => {
                let timestamps =
                    self.timestamps.get_or_insert_with(|| Box::new(KernelTimestamps::new(false)));
                let sent = self.sender.counts.sent;
                let progress = (sent + self.sender.waiting(), sent);
                timestamps.ctl(operation, self.socket.as_fd(), progress)
            }
        }
    }

    fn readiness(&self, _flow: FlowKey, direction: Direction) -> Readiness<'_> {
        match direction {
            // Unsent records need a flush when the socket is writable, the pace permits or a receipt arrives, even if
            // the queue is not full.
            Direction::In if !self.is_done() => {
                let interest = if self.is_socket_full { Interest::Write } else { Interest::Read };
                let now = !self.sender.is_full_for(1);
                Readiness { now, ..Readiness::descriptor(self.socket.as_fd(), interest) }
                    .or_at(self.next_send())
            }
            Direction::In => Readiness::now(),
            Direction::Out if self.slot.is_held() || self.reassembly.has_next() => Readiness::now(),
            Direction::Out => Readiness::descriptor(self.socket.as_fd(), Interest::Read)
                .or_at(self.arrivals.due())
                .or_at(self.next_send()),
        }
    }

    fn upkeep(&self) -> Readiness<'_> {
        let wait = match self.is_socket_full {
            true => Readiness::descriptor(self.socket.as_fd(), Interest::Write),
            false => Readiness::never(),
        };
        wait.or_at(self.next_send()).or_at(self.keep_alive_at)
    }
}
