#![doc = include_str!("tcp.md")]

mod pacer;
mod random_loss;
pub(crate) mod stall;
#[cfg(test)]
mod tests;

use crate::deframer::Deframer;
use crate::seal::{Seal, TAG_BYTES};
use crate::send_queue::{self, SendQueue, check_record};
use crate::socket;
use crate::timestamps::KernelTimestamps;
use contract::{
    Attributes, Body, Ctl, CtlReply, Direction, End, FlowKey, FlowTemplate, Interest, Message, ModuleEntry,
    Next, OptionKind, OptionSpec, Options, Partner, PartnerError, PartnerResult, Pull, PullSlot, Pulled,
    Pushed, Readiness, SealKeys, Time, TransportClass, TransportCtl, local,
};
use pacer::Pacer;
use random_loss::RandomLossDetector;
use rustix::net::{Shutdown, SocketType, shutdown, sockopt};
use smallvec::SmallVec;
use stall::StallDetector;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;
use wire::BODY_BYTES_MAX;

/// Queued bytes at which a push flushes before the end of the burst: four reads of a stream, about 50 us.
const BURST_BYTES: usize = 256 << 10;
/// Slices in one gathering send: 8 KiB of stack, and half of the kernel's limit.
const SLICES_MAX: usize = sys::net::SLICES_MAX / 2;
/// Unsent bytes that the kernel accepts on a paced stream (`TCP_NOTSENT_LOWAT`).
const UNSENT_BYTES: u32 = 64 << 10;
/// The algorithm for a stream that random loss slows down, where the kernel has it.
const RANDOM_LOSS_CONGESTION: &str = "bbr";
/// Receive calls of one pull, at most, so that a fast peer does not starve the rest of the event loop.
const RECEIVE_CALLS_MAX: usize = 32;
/// Unused buffers for large records that are kept for reuse, bytes.
const KEPT_BYTES_MAX: usize = 16 << 20;

/// Idle time before the kernel's first probe, time between further ones, and their number before the connection is lost.
const KEEP_ALIVE: (Duration, Duration, u32) = (Duration::from_secs(20), Duration::from_secs(5), 3);

/// Option for the kernel's socket buffers of a stream.
pub(crate) const SOCKET_BYTES: OptionSpec = local(
    "socket_bytes",
    OptionKind::Size { min: 0, max: 1 << 30 },
    "0",
    "size of each of the kernel's two socket buffers, bytes; 0 lets the kernel adapt them",
);

static OPTIONS: [OptionSpec; 3] = [
    send_queue::OUTBOX,
    SOCKET_BYTES,
    local(
        "congestion",
        OptionKind::Text { max: 15 },
        "",
        "congestion control algorithm, such as cubic or bbr; empty for the system's default, and for bbr once random loss \
         slows the connection down",
    ),
];

/// The transport `tcp`.
#[derive(Debug, Clone, Copy)]
pub struct Tcp;

impl TransportClass for Tcp {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry {
            name: "tcp",
            summary: "records in one TCP stream: reliable, in order; a late record delays those behind it",
            doc: include_str!("tcp.md"),
            options: &OPTIONS,
        }
    }

    fn is_datagram(&self) -> bool {
        false
    }

    fn dial(&self, peer: SocketAddr, options: &Options) -> PartnerResult<OwnedFd> {
        let socket = socket::dial(SocketType::STREAM, peer)?;
        tune(&socket, options)?;
        // Best effort: the records of a session find a lost connection, too.
        let _ = keep_alive(&socket);
        Ok(socket)
    }

    fn partner(
        &self,
        socket: OwnedFd,
        _end: End,
        options: &Options,
        keys: Option<&SealKeys>,
    ) -> PartnerResult<Box<dyn Partner>> {
        tune(&socket, options)?;
        Ok(Box::new(TcpPartner::new(socket, options, keys)))
    }
}

/// Sets the options of a stream's socket.
pub(crate) fn tune(socket: &OwnedFd, options: &Options) -> PartnerResult {
    sockopt::set_tcp_nodelay(socket, true).map_err(|error| PartnerError::os("set TCP_NODELAY", error))?;
    // Best effort: kernels before Linux 6.15 do not know the option and retransmit later.
    let _ = sys::net::resend_soon(socket);
    let congestion = options.text("congestion");
    if !congestion.is_empty() {
        sockopt::set_tcp_congestion(socket, congestion)
            .map_err(|error| PartnerError::os(format!("set the congestion control `{congestion}`"), error))?;
    }
    let bytes = options.size("socket_bytes");
    socket::prepare(socket.as_fd(), bytes)
}

/// Lets the kernel probe an idle connection, so that address translators keep their bindings.
fn keep_alive(socket: &OwnedFd) -> Result<(), rustix::io::Errno> {
    let (idle, interval, count) = KEEP_ALIVE;
    sockopt::set_tcp_keepidle(socket, idle)?;
    sockopt::set_tcp_keepintvl(socket, interval)?;
    sockopt::set_tcp_keepcnt(socket, count)?;
    sockopt::set_socket_keepalive(socket, true)
}

/// One connected TCP socket as a partner.
#[derive(Debug)]
struct TcpPartner {
    socket: OwnedFd,
    peer: String,
    /// `None` on an unencrypted connection.
    seal: Option<Box<Seal>>,
    queue: SendQueue<()>,
    deframer: Deframer,
    slot: PullSlot,
    /// Flow of the record in the slot.
    flow: FlowKey,
    send_state: SendState,
    receive_state: ReceiveState,
    pacer: Pacer,
    stall_detector: StallDetector,
    random_loss_detector: RandomLossDetector,
    /// A stall was found since the last [`TransportCtl::HeldBack`].
    is_stalled: bool,
    counts: Counts,
    /// Created by the first trace request.
    timestamps: Option<Box<KernelTimestamps>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SendState {
    /// Accepts records.
    Open,
    /// Sends the queue, then shuts the socket's sending side down.
    Finishing,
    Finished,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReceiveState {
    /// The socket may have more data: receive again.
    MayHaveMore,
    /// The last call emptied the socket: poll before the next one.
    Drained,
    /// The peer has closed its sending side.
    Ended,
}

#[derive(Debug, Default)]
struct Counts {
    sent: u64,
    sent_bytes: u64,
    send_calls: u64,
    received: u64,
    received_bytes: u64,
    receive_calls: u64,
    /// Bytes read from the socket, those of incomplete records included.
    raw_bytes: u64,
}

impl TcpPartner {
    fn new(socket: OwnedFd, options: &Options, keys: Option<&SealKeys>) -> Self {
        let tag_bytes = if keys.is_some() { TAG_BYTES } else { 0 };
        let mut random_loss_detector = RandomLossDetector::default();
        if !options.text("congestion").is_empty() {
            random_loss_detector.end();
        }
        TcpPartner {
            peer: socket::peer_name(socket.as_fd()),
            socket,
            seal: keys.map(|keys| Box::new(Seal::new(keys))),
            queue: SendQueue::new(options.count("outbox")),
            deframer: Deframer::new(BODY_BYTES_MAX, tag_bytes, KEPT_BYTES_MAX),
            slot: PullSlot::default(),
            flow: FlowKey::DEFAULT,
            send_state: SendState::Open,
            receive_state: ReceiveState::MayHaveMore,
            pacer: Pacer::default(),
            stall_detector: StallDetector::default(),
            random_loss_detector,
            is_stalled: false,
            counts: Counts::default(),
            timestamps: None,
        }
    }

    fn failed(&self, error: io::Error) -> PartnerError {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, TimedOut};
        match error.kind() {
            BrokenPipe | ConnectionAborted | ConnectionReset | NotConnected | TimedOut => {
                PartnerError::Gone(format!("the connection to {} ({error})", self.peer))
            }
            _ => PartnerError::os(format!("the connection to {}", self.peer), error),
        }
    }

    /// Sends the queue until it is empty or the socket is full.
    fn flush(&mut self) -> PartnerResult {
        let sent_bytes = self.counts.sent_bytes;
        while !self.queue.is_empty() {
            let mut slices = SmallVec::<[IoSlice<'_>; SLICES_MAX]>::new();
            let chunks = self.queue.records.iter().flat_map(|(_, record)| record.chunks());
            slices.extend(chunks.take(SLICES_MAX).map(IoSlice::new));
            self.counts.send_calls += 1;
            let result = match self.timestamps.as_deref_mut() {
                None => sys::net::send(&self.socket, &slices),
                Some(timestamps) => {
                    timestamps.send(self.socket.as_fd(), || sys::net::send(&self.socket, &slices))
                }
            };
            match result {
                Ok(count) => {
                    drop(slices);
                    self.counts.sent += self.queue.sent(count);
                    self.counts.sent_bytes += count as u64;
                    if let Some(timestamps) = self.timestamps.as_deref_mut() {
                        timestamps.on_written(self.counts.sent);
                    }
                }
                Err(error) if socket::would_block(&error) => {
                    drop(slices);
                    self.check_stream(true);
                    return Ok(());
                }
                Err(error) => return Err(self.failed(error)),
            }
        }
        self.pacer.on_idle();
        self.stall_detector.on_idle();
        if sent_bytes != self.counts.sent_bytes {
            self.stall_detector.on_sent(|| Time(sys::clock::boot_ns()));
        }
        if self.pacer.is_on() {
            self.check_stream(false);
        }
        if self.send_state == SendState::Finishing {
            self.send_state = SendState::Finished;
            // It fails only if the connection is gone, which the next call reports.
            let _ = shutdown(&self.socket, Shutdown::Write);
        }
        Ok(())
    }

    /// Samples `TCP_INFO` when it is due, for the pacer and the detectors. `is_busy`: the socket is full. Does
    /// nothing on kernels without `TCP_INFO` or pacing.
    fn check_stream(&mut self, is_busy: bool) {
        let now = Time(sys::clock::boot_ns());
        if now < self.next_check(is_busy) {
            return;
        }
        let Ok(stream) = sys::net::stream_state(&self.socket) else {
            self.pacer.postpone(now);
            self.random_loss_detector.end();
            return self.stall_detector.postpone(now);
        };
        if is_busy && now >= self.random_loss_detector.due() && self.random_loss_detector.check(&stream, now)
        {
            // A kernel without the algorithm, or without the permission to use it, keeps the one that it has.
            let _ = sockopt::set_tcp_congestion(&self.socket, RANDOM_LOSS_CONGESTION);
            self.random_loss_detector.end();
        }
        if is_busy && now >= self.stall_detector.due() {
            self.is_stalled |= self.stall_detector.check(&stream, now);
        }
        if self.pacer.is_due(now)
            && let Some(rate) = self.pacer.update(&stream, now, is_busy)
        {
            let _ = sys::net::pace_stream(&self.socket, rate.map(|rate| (rate, UNSENT_BYTES)));
        }
    }

    /// Returns true once if the stream is stalled, after a check if one is due.
    fn is_held_back(&mut self) -> bool {
        let now = Time(sys::clock::boot_ns());
        if self.stall_detector.sent_due().is_some_and(|at| at <= now) {
            let stream = sys::net::stream_state(&self.socket).ok();
            self.is_stalled |= self.stall_detector.check_sent(stream.as_ref(), now);
        }
        std::mem::take(&mut self.is_stalled)
    }

    /// Returns the time of the next [`TcpPartner::check_stream`].
    fn next_check(&self, is_busy: bool) -> Time {
        let busy = self.stall_detector.due().min(self.random_loss_detector.due());
        if is_busy { self.pacer.due().min(busy) } else { self.pacer.due() }
    }

    /// Receives until a record is complete, and stores its flow.
    fn next(&mut self) -> PartnerResult<Next> {
        for _ in 0..RECEIVE_CALLS_MAX {
            let next = self.deframer.next();
            if let Some((flow, mut record)) = next.map_err(|error| self.broken(&error.to_string()))? {
                self.flow = FlowKey(flow);
                self.counts.received += 1;
                self.counts.received_bytes += record.len() as u64;
                if let Some(seal) = &mut self.seal
                    && seal.opener.record(&mut record).is_err()
                {
                    return Err(self.broken("a record was altered in transit, or belongs to another session"));
                }
                return Ok(Next::Message(Message::new(Time::ZERO, Body::from(record.freeze()))));
            }
            match self.receive_state {
                ReceiveState::MayHaveMore => self.receive()?,
                ReceiveState::Drained => {
                    self.receive_state = ReceiveState::MayHaveMore;
                    return Ok(Next::Nothing);
                }
                ReceiveState::Ended if self.deframer.is_at_record_boundary() => return Ok(Next::End),
                ReceiveState::Ended => return Err(self.broken("it ended in the middle of a record")),
            }
        }
        Ok(Next::Nothing)
    }

    fn receive(&mut self) -> PartnerResult {
        self.counts.receive_calls += 1;
        let socket = &self.socket;
        let timestamps = self.timestamps.as_deref_mut().filter(|timestamps| timestamps.has_arrivals());
        let received = self.deframer.receive(|rooms| match timestamps {
            None => sys::net::receive(socket, rooms),
            Some(timestamps) => sys::net::receive_timed(socket, rooms).map(|(received, arrived_real_ns)| {
                timestamps.arrived_real_ns = arrived_real_ns;
                received
            }),
        });
        match received {
            Ok((0, _)) => self.receive_state = ReceiveState::Ended,
            Ok((count, is_full)) => {
                self.counts.raw_bytes += count as u64;
                // The rest of a large record arrives soon: one more call is cheaper than a poll.
                if !is_full && !self.deframer.is_inside_large() {
                    self.receive_state = ReceiveState::Drained;
                }
            }
            Err(error) if socket::would_block(&error) => self.receive_state = ReceiveState::Drained,
            Err(error) => return Err(self.failed(error)),
        }
        Ok(())
    }

    fn broken(&self, problem: &str) -> PartnerError {
        PartnerError::Peer(format!("{}: {problem}", self.peer))
    }

    fn report(&self) -> CtlReply {
        let counts = &self.counts;
        CtlReply::Report(vec![
            ("sent", counts.sent as f64),
            ("sent_bytes", counts.sent_bytes as f64),
            ("send_calls", counts.send_calls as f64),
            ("received", counts.received as f64),
            ("received_bytes", counts.received_bytes as f64),
            ("receive_calls", counts.receive_calls as f64),
            ("waiting", self.queue.records.len() as f64),
            ("waiting_bytes", self.queue.bytes as f64),
        ])
    }
}

impl Partner for TcpPartner {
    fn open(&mut self, _template: &FlowTemplate, _attributes: &Attributes) -> PartnerResult<FlowKey> {
        // The record header names the flow.
        Ok(FlowKey::DEFAULT)
    }

    fn close(&mut self, _flow: FlowKey) -> PartnerResult {
        self.flush()
    }

    fn push(&mut self, _flow: FlowKey, message: Message) -> Result<Pushed, (PartnerError, Message)> {
        if self.send_state != SendState::Open {
            return Err((PartnerError::Unsupported("accepting records after the end"), message));
        }
        if let Err(error) = check_record(&message) {
            return Err((error, message));
        }
        if self.queue.is_full_for(message.body.len()) {
            if let Err(error) = self.flush() {
                return Err((error, message));
            }
            if self.queue.is_full_for(message.body.len()) {
                self.queue.refuse(message.body.len());
                return Ok(Pushed::Full(message));
            }
        }
        let record = match &mut self.seal {
            None => message.body,
            Some(seal) => seal.sealer.record(&message.body),
        };
        self.queue.push((), record);
        if self.queue.bytes >= BURST_BYTES {
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
            Ctl::Flush => self.flush().map(|()| self.queue.flushed()),
            Ctl::Finish => {
                if self.send_state == SendState::Open {
                    self.send_state = SendState::Finishing;
                }
                self.flush().map(|()| self.queue.flushed())
            }
            Ctl::Report => Ok(self.report()),
            Ctl::Transport(TransportCtl::Received) => Ok(CtlReply::Count(self.counts.raw_bytes)),
            Ctl::Transport(TransportCtl::HeldBack) => Ok(CtlReply::Count(self.is_held_back().into())),
            Ctl::Snapshot | Ctl::Neutral => {
                Err(PartnerError::Unsupported("asking a transport for a device's state"))
            }
            operation => {
                let timestamps = self.timestamps.get_or_insert_with(|| Box::new(KernelTimestamps::new(true)));
                let progress = (self.counts.sent + self.queue.records.len() as u64, self.counts.sent);
                timestamps.ctl(operation, self.socket.as_fd(), progress)
            }
        }
    }

    fn readiness(&self, _flow: FlowKey, direction: Direction) -> Readiness<'_> {
        match direction {
            // A queue that is not full must also be flushed when the socket becomes writable.
            Direction::In if !self.queue.is_empty() => Readiness {
                now: self.queue.has_room(),
                ..Readiness::descriptor(self.socket.as_fd(), Interest::Write)
            },
            Direction::In => Readiness::now(),
            Direction::Out
                if self.slot.is_held()
                    || self.deframer.has_next()
                    || self.receive_state == ReceiveState::Ended =>
            {
                Readiness::now()
            }
            Direction::Out => Readiness::descriptor(self.socket.as_fd(), Interest::Read),
        }
    }

    fn upkeep(&self) -> Readiness<'_> {
        // A full socket does not become writable while the stream is stalled, and one that has accepted everything stays
        // writable: a timer checks them.
        let full = (!self.queue.is_empty()).then(|| self.next_check(true));
        Readiness::never().or_at(full).or_at(self.stall_detector.sent_due())
    }
}
