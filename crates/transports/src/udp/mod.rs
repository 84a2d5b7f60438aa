#![doc = include_str!("udp.md")]

mod fragment;
mod reassembly;
#[cfg(test)]
mod tests;

use crate::outgoing::{Limits as OutgoingLimits, Outgoing, check_record};
use crate::seal::{DATAGRAM_BYTES, NUMBER_BYTES, NotOpened, Seal, Sealer};
use crate::socket;
use crate::watch::Watch;
use buffers::Recycler;
use bytes::{Bytes, BytesMut};
use contract::{
    Attributes, Body, Ctl, CtlReply, DatagramFacts, Direction, End, FlowKey, FlowTemplate, Interest, Message,
    Next, OptionKind, OptionSpec, Options, Partner, PartnerError, Pull, PullSlot, Pulled, Pushed, Readiness,
    Scope, SealKeys, Time, TransportClass,
};
use fragment::{Fragment, ID_BYTES, RecordId};
use reassembly::{Limits, Reassembly, Slab};
use rustix::io::Errno;
use rustix::net::SocketType;
use smallvec::SmallVec;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;
use sys::net::SEGMENTS_MAX;
use wire::preamble::Introduction;

/// Bytes that are sent without waiting for the end of a burst: about one batch.
const BURST_BYTES: usize = 60 << 10;
/// Largest payload of one UDP packet over IPv4, and so of one batch.
const BATCH_BYTES_MAX: usize = 65_507;
/// A record in more pieces is joined before it is sent, so that any one datagram fits in one call.
const PIECES_MAX: usize = sys::net::SLICES_MAX - 1;
/// Whatever comes in one call fits in this.
const RECEIVE_BYTES: usize = 64 << 10;
/// Memory that datagrams are received into, one behind the other.
const SLAB_BYTES: usize = 4 * RECEIVE_BYTES;
/// Slabs that are remembered for another use.
const SLABS_KEPT_MAX: usize = 8;
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
    OptionSpec {
        name: "max",
        kind: OptionKind::Size { min: 1, max: wire::BODY_BYTES_MAX as u64 },
        default: "64MiB",
        scope: Scope::Local,
        doc: "largest body of a record, bytes; 65535 datagrams must hold it",
    },
    OptionSpec {
        name: "outbox",
        kind: OptionKind::Integer { min: 1, max: 1 << 20 },
        default: "1024",
        scope: Scope::Local,
        doc: "records that may wait to be sent",
    },
    OptionSpec {
        name: "outbox_bytes",
        kind: OptionKind::Size { min: 1, max: 1 << 30 },
        default: "4MiB",
        scope: Scope::Local,
        doc: "bytes that may wait to be sent; one record may always wait",
    },
    OptionSpec {
        name: "partials",
        kind: OptionKind::Integer { min: 1, max: 1024 },
        default: "64",
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
        default: "1s",
        scope: Scope::Local,
        doc: "how long a missing datagram is waited for before its record is counted as lost",
    },
    OptionSpec {
        name: "spin",
        kind: OptionKind::Duration { min: Duration::ZERO, max: Duration::from_millis(1) },
        default: "60us",
        scope: Scope::Local,
        doc: "amid a record whose datagrams come closer than this, ask for the next this long before sleeping",
    },
    OptionSpec {
        name: "socket_bytes",
        kind: OptionKind::Size { min: 0, max: 1 << 30 },
        default: "4MiB",
        scope: Scope::Local,
        doc: "size of each of the kernel's two buffers, bytes, as far as its limits allow; 0 leaves them",
    },
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
    /// Most bytes of a record in one datagram.
    part_bytes: usize,
    outgoing: Outgoing<Split>,
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
    reassembly: Reassembly,
    slot: PullSlot,
    /// Flow of the record in the slot.
    flow: FlowKey,
    counts: Counts,
    /// Once somebody traced.
    watch: Option<Box<Watch>>,
}

/// How a record is split. Its identity is taken off; which part is next follows from what is left.
#[derive(Debug, Clone, Copy)]
struct Split {
    id: RecordId,
    count: u16,
}

#[derive(Debug, Default)]
struct Counts {
    sent: u64,
    sent_bytes: u64,
    sent_datagrams: u64,
    send_calls: u64,
    /// Datagrams that the system refused: the network may be away for a while.
    unsent_datagrams: u64,
    received_datagrams: u64,
    /// Of those, the peer's own that came once.
    opened_datagrams: u64,
    receive_calls: u64,
    /// Datagrams whose end was cut off.
    truncated: u64,
    /// Datagrams that the seal does not open: altered, or from somebody else.
    altered: u64,
    /// Datagrams that came sealed once before.
    replayed: u64,
}

/// Datagrams at the front of what waits that one call sends: all of one size but the last.
#[derive(Debug, Default)]
struct Batch {
    headers: SmallVec<[[u8; Fragment::BYTES]; SEGMENTS_MAX]>,
    /// Bytes of the records in each.
    parts: SmallVec<[usize; SEGMENTS_MAX]>,
    /// Bytes of all datagrams, with what is around the parts.
    bytes: usize,
}

/// Goes through the bytes of records, one behind the other.
struct Cursor<'a, Chunks> {
    chunks: Chunks,
    chunk: &'a [u8],
}

impl<'a, Chunks: Iterator<Item = &'a [u8]>> Cursor<'a, Chunks> {
    /// Takes the next `left` bytes, piece by piece.
    fn take(&mut self, mut left: usize, mut take: impl FnMut(&'a [u8])) {
        while left > 0 {
            if self.chunk.is_empty() {
                let Some(next) = self.chunks.next() else { break };
                self.chunk = next;
            }
            let (here, rest) = self.chunk.split_at(left.min(self.chunk.len()));
            take(here);
            left -= here.len();
            self.chunk = rest;
        }
    }
}

impl Batch {
    /// Plans the next datagrams that one call can send, at most `datagrams_max`.
    fn plan(
        outgoing: &Outgoing<Split>,
        part_bytes: usize,
        around_bytes: usize,
        datagrams_max: usize,
    ) -> Batch {
        let mut batch = Batch::default();
        for (split, record) in &outgoing.records {
            let mut left = record.len();
            while left > 0 {
                let part = left.min(part_bytes);
                let first = *batch.parts.first().unwrap_or(&part);
                let size = part + around_bytes;
                if part > first
                    || batch.bytes + size > BATCH_BYTES_MAX && batch.bytes > 0
                    || batch.parts.len() == datagrams_max
                {
                    return batch;
                }
                let index = split.count - left.div_ceil(part_bytes) as u16;
                batch.headers.push(Fragment { id: split.id, index, count: split.count }.emit());
                batch.parts.push(part);
                batch.bytes += size;
                left -= part;
                if part < first {
                    return batch;
                }
            }
        }
        batch
    }

    /// The slices of the batch. It is cut short where it has more than one call takes.
    fn slices<'a>(&'a self, outgoing: &'a Outgoing<Split>) -> (usize, SmallVec<[IoSlice<'a>; 256]>) {
        let mut slices = SmallVec::new();
        let mut records = Batch::bytes_of(outgoing);
        for (i, (header, &part)) in self.headers.iter().zip(&self.parts).enumerate() {
            let whole = slices.len();
            slices.push(IoSlice::new(header));
            records.take(part, |piece| slices.push(IoSlice::new(piece)));
            if slices.len() > sys::net::SLICES_MAX {
                slices.truncate(whole);
                return (i, slices);
            }
        }
        (self.parts.len(), slices)
    }

    fn bytes_of(outgoing: &Outgoing<Split>) -> Cursor<'_, impl Iterator<Item = &[u8]>> {
        Cursor { chunks: outgoing.records.iter().flat_map(|(_, record)| record.chunks()), chunk: &[] }
    }

    /// The batch sealed. One that did not go is sealed anew, under new numbers.
    fn seal(&self, outgoing: &Outgoing<Split>, sealer: &mut Sealer, to: &mut Vec<u8>) {
        to.clear();
        let mut records = Batch::bytes_of(outgoing);
        let mut pieces = SmallVec::<[&[u8]; 16]>::new();
        for (header, &part) in self.headers.iter().zip(&self.parts) {
            pieces.clear();
            pieces.push(header);
            records.take(part, |piece| pieces.push(piece));
            sealer.datagram(pieces.iter().copied(), to);
        }
    }
}

impl UdpPartner {
    fn new(socket: OwnedFd, options: &Options, keys: Option<&SealKeys>) -> Self {
        let body_bytes_max = options.size("max");
        let around_bytes = Fragment::BYTES + if keys.is_some() { DATAGRAM_BYTES } else { 0 };
        UdpPartner {
            peer: socket::peer_name(socket.as_fd()),
            socket,
            body_bytes_max,
            seal: keys.map(|keys| Box::new(Seal::new(keys))),
            sealed: Vec::new(),
            around_bytes,
            part_bytes: options.size("datagram") - around_bytes,
            outgoing: Outgoing::new(OutgoingLimits {
                records_max: options.count("outbox"),
                bytes_max: options.size("outbox_bytes"),
            }),
            can_batch: true,
            is_finished: false,
            slab: BytesMut::with_capacity(SLAB_BYTES),
            slab_number: 0,
            slabs: Recycler::new(SLABS_KEPT_MAX, SLABS_KEPT_MAX * SLAB_BYTES),
            came: Time::ZERO,
            gap: Duration::MAX,
            spin: options.duration("spin"),
            reassembly: Reassembly::new(Limits {
                body_bytes_max,
                partials_max: options.count("partials"),
                partial_bytes_max: options.size("partial_bytes"),
                patience: options.duration("patience"),
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

    /// Sends what waits, as far as the socket takes it.
    fn flush(&mut self) -> Result<(), PartnerError> {
        let mut refusals = 0;
        while !self.outgoing.is_empty() {
            let datagrams_max = if self.can_batch { SEGMENTS_MAX } else { 1 };
            let batch = Batch::plan(&self.outgoing, self.part_bytes, self.around_bytes, datagrams_max);
            let (count, slices) = match &mut self.seal {
                None => batch.slices(&self.outgoing),
                Some(seal) => {
                    batch.seal(&self.outgoing, &mut seal.sealer, &mut self.sealed);
                    (batch.parts.len(), [IoSlice::new(&self.sealed)].into_iter().collect())
                }
            };
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
                Err(error) if socket::is_not_now(&error) => return Ok(()),
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
            let bytes = batch.parts[..count].iter().sum();
            self.counts.sent += self.outgoing.sent(bytes);
            self.counts.sent_bytes += bytes as u64;
            if let Some(watch) = self.watch.as_deref_mut() {
                watch.written(self.counts.sent);
            }
        }
        Ok(())
    }

    /// How a checked record is to be split.
    fn split(&self, record: &Body) -> Result<Split, PartnerError> {
        let id = record.peek_front().unwrap_or_default();
        match u16::try_from((record.len() - ID_BYTES).div_ceil(self.part_bytes)) {
            Ok(count) => Ok(Split { id, count }),
            Err(_) => Err(PartnerError::Message(format!(
                "{} bytes are more than {} datagrams hold (option `datagram`)",
                record.len(),
                u16::MAX
            ))),
        }
    }

    /// Finds the next record, and notes its flow.
    fn next(&mut self) -> Result<Next, PartnerError> {
        for _ in 0..RECEIVE_CALLS_MAX {
            if let Some((flow, body)) = self.reassembly.next() {
                self.flow = FlowKey(flow);
                return Ok(Next::Message(Message::new(Time::ZERO, body)));
            }
            if !self.receive()? {
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
            let now = Time(sys::clock::boot_ns());
            self.reassembly.expire(now);
            match error {
                error if socket::is_not_now(&error) && self.is_streaming(now) => std::hint::spin_loop(),
                error if socket::is_not_now(&error) => return Ok(false),
                // The peer's port was closed when something we sent arrived: it may open again.
                error if is_passing(&error) => return Ok(true),
                error => return Err(self.failed(error)),
            }
        };
        if let Some(watch) = self.watch.as_deref_mut() {
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
        self.reassembly.expire(now);
        while !datagrams.is_empty() {
            let datagram = datagrams.split_to(received.segment.min(datagrams.len()));
            self.counts.received_datagrams += 1;
            if let Some(datagram) = self.open(datagram) {
                self.counts.opened_datagrams += 1;
                self.reassembly.datagram(datagram, slab, now);
            }
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

    /// Whether the next part of a record is likely to come at once. Asking again then beats sleeping: a wake-up
    /// across processors costs the sender several microseconds a batch, and slows the stream to where each
    /// batch costs one.
    fn is_streaming(&self, now: Time) -> bool {
        self.reassembly.held().0 > 0 && self.gap < self.spin && now.since(self.came) < self.spin
    }

    fn report(&self) -> CtlReply {
        let (counts, records) = (&self.counts, &self.reassembly.counts);
        CtlReply::Report(vec![
            ("sent", counts.sent as f64),
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
            ("waiting", self.outgoing.records.len() as f64),
            ("waiting_bytes", self.outgoing.bytes as f64),
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
        let checked = check_record(&message, self.body_bytes_max).and_then(|()| self.split(&message.body));
        let split = match checked {
            Ok(split) => split,
            Err(error) => return Err((error, message)),
        };
        let bytes = message.body.len();
        if self.outgoing.is_full_for(bytes) {
            if let Err(error) = self.flush() {
                return Err((error, message));
            }
            if self.outgoing.is_full_for(bytes) {
                return Ok(Pushed::Full(message));
            }
        }
        let mut record = message.body;
        record.skip_front(ID_BYTES);
        if record.pieces() > PIECES_MAX {
            record = Body::from(record.into_bytes());
        }
        self.outgoing.push(split, record);
        if self.outgoing.bytes >= BURST_BYTES {
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
            Ctl::Flush => self.flush().map(|()| self.outgoing.flushed()),
            Ctl::Finish => {
                self.is_finished = true;
                self.flush().map(|()| self.outgoing.flushed())
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
                let progress = (self.counts.sent + self.outgoing.records.len() as u64, self.counts.sent);
                watch.answer(operation, self.socket.as_fd(), progress)
            }
        }
    }

    fn readiness(&self, _flow: FlowKey, direction: Direction) -> Readiness<'_> {
        match direction {
            // What waits has to be flushed when the socket has room again, full or not.
            Direction::In if !self.outgoing.is_empty() => Readiness {
                now: !self.outgoing.is_full_for(1),
                ..Readiness::descriptor(self.socket.as_fd(), Interest::Write)
            },
            Direction::In => Readiness::now(),
            Direction::Out if self.slot.is_held() || self.reassembly.has_next() => Readiness::now(),
            Direction::Out => Readiness::descriptor(self.socket.as_fd(), Interest::Read),
        }
    }
}
