#![doc = include_str!("tcp.md")]

mod held;
mod pace;
#[cfg(test)]
mod tests;

use crate::inbox::Inbox;
use crate::outgoing::{self, Limits, Outgoing, check_record};
use crate::seal::{Seal, TAG_BYTES};
use crate::socket;
use crate::watch::Watch;
use contract::{
    Attributes, Body, Ctl, CtlReply, DatagramFacts, Direction, End, FlowKey, FlowTemplate, Interest, Message,
    Next, OptionKind, OptionSpec, Options, Partner, PartnerError, Pull, PullSlot, Pulled, Pushed, Readiness,
    Scope, SealKeys, Time, TransportClass,
};
use held::Held;
use pace::Pace;
use rustix::net::{Shutdown, SocketType, shutdown, sockopt};
use smallvec::SmallVec;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

/// Bytes that are sent without waiting for the end of a burst.
const BURST_BYTES: usize = 64 << 10;
/// Most slices in one gathering call: 8 KiB of stack, and half of what the kernel takes.
const SLICES_MAX: usize = sys::net::SLICES_MAX / 2;
/// Bytes that a paced stream's kernel takes ahead of what it has sent.
const AHEAD_BYTES: u32 = 64 << 10;
/// Most calls that one pull makes, so that a fast peer leaves room for the loop's other work.
const RECEIVE_CALLS_MAX: usize = 32;

static OPTIONS: [OptionSpec; 6] = [
    outgoing::MAX,
    outgoing::OUTBOX,
    outgoing::OUTBOX_BYTES,
    OptionSpec {
        name: "keep",
        kind: OptionKind::Size { min: 0, max: 1 << 30 },
        default: "16MiB",
        scope: Scope::Local,
        doc: "memory for large records that is kept for the next ones, bytes",
    },
    OptionSpec {
        name: "socket_bytes",
        kind: OptionKind::Size { min: 0, max: 1 << 30 },
        default: "0",
        scope: Scope::Local,
        doc: "size of each of the kernel's two buffers, bytes; 0 lets the kernel adapt them",
    },
    OptionSpec {
        name: "congestion",
        kind: OptionKind::Text { max: 15 },
        default: "",
        scope: Scope::Local,
        doc: "congestion control, such as cubic or bbr; empty for the system's default",
    },
];

/// The transport `tcp`.
#[derive(Debug, Clone, Copy)]
pub struct Tcp;

impl TransportClass for Tcp {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn summary(&self) -> &'static str {
        "records in a stream: nothing lost, in order; what is late delays what follows"
    }

    fn doc(&self) -> &'static str {
        include_str!("tcp.md")
    }

    fn options(&self) -> &'static [OptionSpec] {
        &OPTIONS
    }

    fn facts(&self) -> DatagramFacts {
        DatagramFacts { may_lose: false, may_reorder: false }
    }

    fn is_datagram(&self) -> bool {
        false
    }

    fn dial(&self, peer: SocketAddr, options: &Options) -> Result<OwnedFd, PartnerError> {
        let socket = socket::dial(SocketType::STREAM, peer)?;
        tune(&socket, options)?;
        Ok(socket)
    }

    fn partner(
        &self,
        socket: OwnedFd,
        _end: End,
        options: &Options,
        keys: Option<&SealKeys>,
    ) -> Result<Box<dyn Partner>, PartnerError> {
        tune(&socket, options)?;
        Ok(Box::new(TcpPartner::new(socket, options, keys)))
    }
}

fn tune(socket: &OwnedFd, options: &Options) -> Result<(), PartnerError> {
    sockopt::set_tcp_nodelay(socket, true).map_err(|error| PartnerError::os("set TCP_NODELAY", error))?;
    // Older kernels wait longer.
    let _ = sys::net::resend_soon(socket);
    let congestion = options.text("congestion");
    if !congestion.is_empty() {
        sockopt::set_tcp_congestion(socket, congestion)
            .map_err(|error| PartnerError::os(format!("set the congestion control `{congestion}`"), error))?;
    }
    let bytes = options.size("socket_bytes");
    socket::set_buffers(socket.as_fd(), bytes, bytes)
}

/// Moves records over a connected socket.
#[derive(Debug)]
struct TcpPartner {
    socket: OwnedFd,
    peer: String,
    body_bytes_max: usize,
    /// What seals the records, unless they travel bare.
    seal: Option<Box<Seal>>,
    outgoing: Outgoing<()>,
    inbox: Inbox,
    slot: PullSlot,
    /// Flow of the record in the slot.
    flow: FlowKey,
    sending: Sending,
    receiving: Receiving,
    pace: Pace,
    held: Held,
    /// A new connection would do better, and nobody has asked since.
    is_held_back: bool,
    counts: Counts,
    /// Once somebody traced.
    watch: Option<Box<Watch>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sending {
    Open,
    /// No more is pushed; what waits goes out, then the end.
    Finishing,
    Finished,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Receiving {
    /// There may be more in the socket.
    Full,
    /// The last call took all there was: waiting is likely better than asking.
    Drained,
    /// The peer's stream has ended.
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
    /// Bytes that came, of records that are not whole too.
    heard_bytes: u64,
}

impl TcpPartner {
    fn new(socket: OwnedFd, options: &Options, keys: Option<&SealKeys>) -> Self {
        let body_bytes_max = options.size("max");
        let tag_bytes = if keys.is_some() { TAG_BYTES } else { 0 };
        TcpPartner {
            peer: socket::peer_name(socket.as_fd()),
            socket,
            body_bytes_max,
            seal: keys.map(|keys| Box::new(Seal::new(keys))),
            outgoing: Outgoing::new(Limits::of(options)),
            inbox: Inbox::new(body_bytes_max, tag_bytes, options.size("keep")),
            slot: PullSlot::default(),
            flow: FlowKey::DEFAULT,
            sending: Sending::Open,
            receiving: Receiving::Full,
            pace: Pace::default(),
            held: Held::default(),
            is_held_back: false,
            counts: Counts::default(),
            watch: None,
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

    /// Sends what waits, as far as the socket takes it.
    fn flush(&mut self) -> Result<(), PartnerError> {
        while !self.outgoing.is_empty() {
            let mut slices = SmallVec::<[IoSlice<'_>; SLICES_MAX]>::new();
            let chunks = self.outgoing.records.iter().flat_map(|(_, record)| record.chunks());
            slices.extend(chunks.take(SLICES_MAX).map(IoSlice::new));
            self.counts.send_calls += 1;
            let result = match self.watch.as_deref_mut() {
                None => sys::net::send(&self.socket, &slices),
                Some(watch) => watch.send(self.socket.as_fd(), &slices, None),
            };
            match result {
                Ok(count) => {
                    drop(slices);
                    self.counts.sent += self.outgoing.sent(count);
                    self.counts.sent_bytes += count as u64;
                    if let Some(watch) = self.watch.as_deref_mut() {
                        watch.written(self.counts.sent);
                    }
                }
                Err(error) if socket::is_not_now(&error) => {
                    drop(slices);
                    self.look_at_stream(true);
                    return Ok(());
                }
                Err(error) => return Err(self.failed(error)),
            }
        }
        self.pace.rest();
        self.held.rest();
        if self.pace.is_on() {
            self.look_at_stream(false);
        }
        if self.sending == Sending::Finishing {
            self.sending = Sending::Finished;
            // A peer that has gone has ended too.
            let _ = shutdown(&self.socket, Shutdown::Write);
        }
        Ok(())
    }

    /// Sees to it that what is sent does not stand in front of the network for long, nor behind what was lost. A kernel
    /// that does not tell how the stream fares, or does not pace it, does as it likes.
    fn look_at_stream(&mut self, is_busy: bool) {
        let now = Time(sys::clock::boot_ns());
        if now < self.next_look(is_busy) {
            return;
        }
        let Ok(stream) = sys::net::stream_state(&self.socket) else {
            self.pace.put_off(now);
            return self.held.put_off(now);
        };
        if is_busy && now >= self.held.due() {
            self.is_held_back |= self.held.look(&stream, now);
        }
        if self.pace.is_due(now)
            && let Some(rate) = self.pace.look(&stream, now, is_busy)
        {
            let _ = sys::net::pace_stream(&self.socket, rate.map(|rate| (rate, AHEAD_BYTES)));
        }
    }

    /// When the kernel is asked again how the stream fares.
    fn next_look(&self, is_busy: bool) -> Time {
        if is_busy { self.pace.due().min(self.held.due()) } else { self.pace.due() }
    }

    /// Finds the next record, and notes its flow.
    fn next(&mut self) -> Result<Next, PartnerError> {
        for _ in 0..RECEIVE_CALLS_MAX {
            let next = self.inbox.next();
            if let Some((flow, mut record)) = next.map_err(|error| self.broken(&error.to_string()))? {
                self.flow = FlowKey(flow);
                self.counts.received += 1;
                self.counts.received_bytes += record.len() as u64;
                if let Some(seal) = &mut self.seal
                    && seal.opener.record(&mut record).is_err()
                {
                    return Err(self.broken("a record was altered on the way, or is not of this session"));
                }
                return Ok(Next::Message(Message::new(Time::ZERO, Body::from(record.freeze()))));
            }
            match self.receiving {
                Receiving::Full => self.receive()?,
                Receiving::Drained => {
                    self.receiving = Receiving::Full;
                    return Ok(Next::Nothing);
                }
                Receiving::Ended if self.inbox.is_at_border() => return Ok(Next::End),
                Receiving::Ended => return Err(self.broken("it ended in the middle of a record")),
            }
        }
        Ok(Next::Nothing)
    }

    fn receive(&mut self) -> Result<(), PartnerError> {
        self.counts.receive_calls += 1;
        let socket = &self.socket;
        let watch = self.watch.as_deref_mut().filter(|watch| watch.notes_arrivals());
        let received = self.inbox.receive(|rooms| match watch {
            None => sys::net::receive(socket, rooms),
            Some(watch) => sys::net::receive_timed(socket, rooms).map(|(received, arrived_real_ns)| {
                watch.arrived_real_ns = arrived_real_ns;
                received
            }),
        });
        match received {
            Ok((0, _)) => self.receiving = Receiving::Ended,
            Ok((count, is_full)) => {
                self.counts.heard_bytes += count as u64;
                // The rest of a large record is on its way: it pays to ask once more before waiting.
                if !is_full && !self.inbox.is_amid_large() {
                    self.receiving = Receiving::Drained;
                }
            }
            Err(error) if socket::is_not_now(&error) => self.receiving = Receiving::Drained,
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
            ("waiting", self.outgoing.records.len() as f64),
            ("waiting_bytes", self.outgoing.bytes as f64),
        ])
    }
}

impl Partner for TcpPartner {
    fn open(&mut self, _template: &FlowTemplate, _attributes: &Attributes) -> Result<FlowKey, PartnerError> {
        // Which flow a record belongs to stands in the record.
        Ok(FlowKey::DEFAULT)
    }

    fn close(&mut self, _flow: FlowKey) -> Result<(), PartnerError> {
        self.flush()
    }

    fn push(&mut self, _flow: FlowKey, message: Message) -> Result<Pushed, (PartnerError, Message)> {
        if self.sending != Sending::Open {
            return Err((PartnerError::Unsupported("taking records after the end"), message));
        }
        if let Err(error) = check_record(&message, self.body_bytes_max) {
            return Err((error, message));
        }
        if self.outgoing.is_full_for(message.body.len()) {
            if let Err(error) = self.flush() {
                return Err((error, message));
            }
            if self.outgoing.is_full_for(message.body.len()) {
                self.outgoing.refuse(message.body.len());
                return Ok(Pushed::Full(message));
            }
        }
        let record = match &mut self.seal {
            None => message.body,
            Some(seal) => seal.sealer.record(&message.body),
        };
        self.outgoing.push((), record);
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
                if self.sending == Sending::Open {
                    self.sending = Sending::Finishing;
                }
                self.flush().map(|()| self.outgoing.flushed())
            }
            Ctl::Report => Ok(self.report()),
            Ctl::Heard => Ok(CtlReply::Count(self.counts.heard_bytes)),
            Ctl::HeldBack => Ok(CtlReply::Count(std::mem::take(&mut self.is_held_back).into())),
            Ctl::Snapshot | Ctl::Neutral | Ctl::Ask(..) => {
                Err(PartnerError::Unsupported("asking a transport for a device's state"))
            }
            operation => {
                let watch = self.watch.get_or_insert_with(|| Box::new(Watch::new(true)));
                let progress = (self.counts.sent + self.outgoing.records.len() as u64, self.counts.sent);
                watch.answer(operation, self.socket.as_fd(), progress)
            }
        }
    }

    fn readiness(&self, _flow: FlowKey, direction: Direction) -> Readiness<'_> {
        match direction {
            // What waits has to be flushed when the socket has room again, full or not.
            Direction::In if !self.outgoing.is_empty() => Readiness {
                now: self.outgoing.has_room(),
                ..Readiness::descriptor(self.socket.as_fd(), Interest::Write)
            },
            Direction::In => Readiness::now(),
            Direction::Out
                if self.slot.is_held() || self.inbox.has_next() || self.receiving == Receiving::Ended =>
            {
                Readiness::now()
            }
            Direction::Out => Readiness::descriptor(self.socket.as_fd(), Interest::Read),
        }
    }

    fn upkeep(&self) -> Readiness<'_> {
        // Where the network takes no more, somebody has to see why.
        Readiness::never().or_at((!self.outgoing.is_empty()).then(|| self.next_look(true)))
    }
}
