#![doc = include_str!("quic.md")]

mod alone;
mod arrivals;
mod check;
mod config;
mod connection;
mod gate;
mod ids;
mod ordered;
#[cfg(test)]
mod tests;

use crate::outgoing::{self, Limits, Outgoing, check_record};
use crate::socket::{self, DATAGRAM_BYTES_MAX, DATAGRAM_BYTES_MIN};
use alone::Alone;
use arrivals::Arrivals;
pub use check::{AddressCheck, Checked};
pub use config::{Beginning, Congestion, ServerKeys, Tuning, data_tag};
pub use connection::{Over, QuicConnection};
use contract::{
    Attributes, Ctl, CtlReply, DatagramFacts, Direction, End, FlowClass, FlowKey, FlowTemplate, Message,
    Next, OptionKind, OptionSpec, Options, Partner, PartnerError, Progress, Pull, PullSlot, Pulled, Pushed,
    Readiness, Scope, SealKeys, Time, TransportClass, Watch,
};
pub use ids::{Arrival, Tag, arrival};
use ordered::Ordered;
pub use quinn_proto::{Dir, ReadError, StreamId, VarInt, WriteError};
use rustix::net::SocketType;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// Bytes that are sent without waiting for the end of a burst.
const BURST_BYTES: usize = 64 << 10;
/// Bytes that may always be under way, or wait for it, within the connection; beyond that, two congestion windows.
const SEND_BYTES_MIN: u64 = 128 << 10;

static OPTIONS: [OptionSpec; 9] = [
    outgoing::MAX,
    outgoing::OUTBOX,
    outgoing::OUTBOX_BYTES,
    OptionSpec {
        name: "window",
        kind: OptionKind::Size { min: 64 << 10, max: 1 << 30 },
        default: "16MiB",
        scope: Scope::Local,
        doc: "bytes that may be under way to this host, and wait here to be read",
    },
    OptionSpec {
        name: "late",
        kind: OptionKind::Duration { min: Duration::from_millis(1), max: Duration::from_secs(60) },
        default: "500ms",
        scope: Scope::Local,
        doc: "a record of a timely flow that did not get there in this time is given up",
    },
    OptionSpec {
        name: "partial_bytes",
        kind: OptionKind::Size { min: 1 << 20, max: 1 << 30 },
        default: "96MiB",
        scope: Scope::Local,
        doc: "memory that records may hold that did not come whole; the oldest may always go on",
    },
    OptionSpec {
        name: "datagram",
        kind: OptionKind::Size { min: 0, max: 65_507 },
        default: "0",
        scope: Scope::Local,
        doc: "largest UDP datagram that is tried, bytes; 0 for what the way out of this host takes; the path may take less",
    },
    OptionSpec {
        name: "congestion",
        kind: OptionKind::Choice(&["cubic", "newreno", "bbr"]),
        default: "cubic",
        scope: Scope::Local,
        doc: "congestion control",
    },
    socket::BUFFERS,
];

/// Largest frame that any network has: a way that takes more does not leave this machine.
const FRAME_BYTES_MAX: usize = 16 << 10;
/// What may be under way within one machine: enough to keep both processors busy, and little enough for their caches.
const WINDOW_HERE_BYTES: usize = 2 << 20;
/// Least that may be under way: a few of the largest datagrams.
const WINDOW_BYTES_MIN: usize = 128 << 10;

/// What may be under way to this socket from this machine so that its buffer never overflows, which is all that loses
/// anything there. The kernel counts what it needs for itself too.
fn room_bytes(socket: BorrowedFd<'_>) -> usize {
    let buffer_bytes = rustix::net::sockopt::socket_recv_buffer_size(socket).unwrap_or(0);
    (buffer_bytes / 2).max(WINDOW_BYTES_MIN)
}

/// Messages of a timely flow that may be under way at once in streams of their own.
const STREAMS_MAX: u32 = 64;

/// The transport `quic`.
#[derive(Debug, Clone, Copy)]
pub struct Quic;

impl TransportClass for Quic {
    fn name(&self) -> &'static str {
        "quic"
    }

    fn summary(&self) -> &'static str {
        "records in one UDP port: nothing lost where that counts, nothing late where it does not"
    }

    fn doc(&self) -> &'static str {
        include_str!("quic.md")
    }

    fn options(&self) -> &'static [OptionSpec] {
        &OPTIONS
    }

    fn facts(&self) -> DatagramFacts {
        DatagramFacts { may_lose: false, may_reorder: false }
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
        end: End,
        options: &Options,
        keys: Option<&SealKeys>,
    ) -> Result<Box<dyn Partner>, PartnerError> {
        let socket_bytes = options.size("socket_bytes");
        socket::set_buffers(socket.as_fd(), socket_bytes, socket_bytes)?;
        let way_bytes_max = socket::datagram_bytes_max(socket.as_fd());
        let stays_here = way_bytes_max > FRAME_BYTES_MAX;
        let tuning = Tuning {
            window: match stays_here {
                true => options.size("window").min(WINDOW_HERE_BYTES).min(room_bytes(socket.as_fd())),
                false => options.size("window"),
            } as u32,
            streams: STREAMS_MAX + 1,
            datagram: match options.size("datagram") {
                0 => way_bytes_max,
                given => given.clamp(DATAGRAM_BYTES_MIN, DATAGRAM_BYTES_MAX),
            } as u16,
            is_known: stays_here,
            congestion: match options.text("congestion") {
                "newreno" => Congestion::NewReno,
                "bbr" => Congestion::Bbr,
                _ => Congestion::Cubic,
            },
        };
        let beginning = Beginning::data(end, keys, &tuning);
        let beginning = beginning.map_err(|error| PartnerError::os("setting up QUIC", error))?;
        let mut partner = QuicPartner {
            link: QuicConnection::begin(socket, beginning)?,
            socket_bytes,
            body_bytes_max: options.size("max"),
            is_timely: false,
            late: options.duration("late"),
            outgoing: Outgoing::new(Limits::of(options)),
            was_full: false,
            ordered: Ordered::default(),
            alone: Alone::default(),
            finish: Finish::No,
            arrivals: Arrivals::new(options.size("max"), options.size("partial_bytes")),
            slot: PullSlot::default(),
            flow: FlowKey::DEFAULT,
            has_looked: false,
            counts: Counts::default(),
        };
        partner.link.turn_out();
        Ok(Box::new(partner))
    }
}

/// Whether more is pushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Finish {
    No,
    /// What waits goes out, then the end.
    Asked,
    /// The end is said.
    Said,
}

#[derive(Debug, Default)]
struct Counts {
    sent: u64,
    sent_bytes: u64,
    /// Records of a timely flow that were given up.
    late: u64,
    /// Turns that found something of the peer's.
    heard: u64,
    heard_frames: u64,
}

/// Moves records over a QUIC connection.
#[derive(Debug)]
struct QuicPartner {
    link: QuicConnection,
    socket_bytes: usize,
    body_bytes_max: usize,
    /// What is pushed is worthless once it is late.
    is_timely: bool,
    late: Duration,
    /// Each with the time it was pushed at.
    outgoing: Outgoing<Time>,
    /// There was no room for the last that was pushed.
    was_full: bool,
    ordered: Ordered,
    alone: Alone,
    finish: Finish,
    arrivals: Arrivals,
    slot: PullSlot,
    /// Flow of the record in the slot.
    flow: FlowKey,
    /// A pull of this round has looked for what came.
    has_looked: bool,
    counts: Counts,
}

fn now() -> Time {
    Time(sys::clock::boot_ns())
}

impl QuicPartner {
    /// Why nothing more can be sent.
    fn check(&self) -> Result<(), PartnerError> {
        match self.link.over() {
            None => Ok(()),
            Some(Over::Closed(_)) => Err(self.gone("the other host closed it")),
            Some(Over::OtherPurpose) => Err(self.gone("it is for something else")),
            Some(Over::Broken(reason)) => Err(self.gone(reason)),
        }
    }

    fn gone(&self, reason: &str) -> PartnerError {
        PartnerError::Gone(format!("the connection to {} ({reason})", self.link.name()))
    }

    /// Takes what came and sends what can be sent.
    fn turn(&mut self) {
        let before = self.link.counts.received_datagrams;
        self.link.turn();
        if self.link.counts.received_datagrams != before {
            self.note_heard();
        }
        self.write();
    }

    /// What the peer's keys did not seal is not its.
    fn note_heard(&mut self) {
        let Some(connection) = self.link.state() else { return };
        let frames = connection.stats().frame_rx;
        let heard = frames.acks + frames.stream + frames.datagram + frames.ping;
        if heard != self.counts.heard_frames {
            self.counts.heard_frames = heard;
            self.counts.heard += 1;
        }
    }

    /// Whether all that was pushed is the connection's.
    fn is_handed_over(&self) -> bool {
        self.outgoing.is_empty() && self.ordered.is_empty()
    }

    /// Hands the connection what waits, and sends what it lets go.
    fn write(&mut self) {
        if self.hand_over() {
            self.link.turn_out();
        }
    }

    /// Hands the connection what waits, as far as it takes it; whether it took anything.
    fn hand_over(&mut self) -> bool {
        if !self.link.is_established() {
            return false;
        }
        let Some(connection) = self.link.state() else { return false };
        // More in it would only stand in front of what comes later.
        connection.set_send_window((2 * connection.congestion_state().window()).max(SEND_BYTES_MIN));
        self.ordered.open(connection);
        let mut moved = false;
        let left = if self.is_timely {
            let given_up = self.alone.give_up(connection, &mut self.outgoing, (now(), self.late));
            self.counts.late += given_up;
            moved = given_up > 0;
            self.alone.write(connection, &mut self.outgoing)
        } else {
            self.ordered.write(connection, &mut self.outgoing)
        };
        self.counts.sent += left.records;
        self.counts.sent_bytes += left.bytes as u64;
        let is_handed_over = self.outgoing.is_empty() && self.ordered.is_empty();
        if self.finish == Finish::Asked && is_handed_over && self.ordered.finish(connection) {
            self.finish = Finish::Said;
            moved = true;
        }
        moved || left.bytes > 0
    }

    fn flush(&mut self) -> Result<CtlReply, PartnerError> {
        self.check()?;
        self.hand_over();
        self.link.turn_out();
        if !self.is_handed_over() {
            // What makes room for it may have come.
            self.turn();
        }
        Ok(match self.link.is_blocked() || !self.is_handed_over() {
            true => CtlReply::Pending,
            false => CtlReply::Done,
        })
    }

    /// Finds the next record, and notes its flow.
    fn next(&mut self) -> Result<Next, PartnerError> {
        let mut looked = false;
        loop {
            if let Some(connection) = self.link.state() {
                match self.arrivals.next(connection) {
                    Ok(None) => {}
                    Ok(Some((flow, record))) => {
                        self.flow = FlowKey(flow);
                        return Ok(Next::Message(Message::new(Time::ZERO, record)));
                    }
                    Err(problem) => {
                        return Err(PartnerError::Peer(format!("{}: {problem}", self.link.name())));
                    }
                }
            }
            if !looked {
                looked = true;
                self.has_looked = true;
                self.turn();
            } else if self.link.take_news() {
                // What was read made room for more.
                self.link.turn_out();
            } else {
                break;
            }
        }
        match self.link.over() {
            Some(Over::Closed(_)) => Ok(Next::End),
            Some(_) => self.check().map(|()| Next::End),
            None if self.arrivals.has_ended() => Ok(Next::End),
            None => Ok(Next::Nothing),
        }
    }

    fn is_full_for(&self, bytes: usize) -> bool {
        match self.is_timely {
            // What waits behind another gets late.
            true => !self.outgoing.is_empty(),
            false => self.outgoing.is_full_for(bytes),
        }
    }

    fn progress(&self) -> Progress {
        let pushed = self.counts.sent + self.outgoing.records.len() as u64;
        Progress { pushed, written: self.counts.sent, ..Progress::default() }
    }

    fn report(&mut self) -> CtlReply {
        let (counts, link) = (&self.counts, self.link.counts);
        let arrived = &self.arrivals.counts;
        let mut figures = vec![
            ("sent", counts.sent as f64),
            ("sent_bytes", counts.sent_bytes as f64),
            ("sent_alone", self.alone.streams as f64),
            ("sent_datagrams", link.sent_datagrams as f64),
            ("unsent_datagrams", link.unsent_datagrams as f64),
            ("send_calls", link.send_calls as f64),
            ("late", counts.late as f64),
            ("received", arrived.received as f64),
            ("received_bytes", arrived.received_bytes as f64),
            ("received_datagrams", link.received_datagrams as f64),
            ("receive_calls", link.receive_calls as f64),
            ("lost_partial", arrived.lost_partial as f64),
            ("malformed_datagrams", arrived.malformed as f64),
            ("moves", link.moves as f64),
            ("owed datagrams", link.owed_datagrams as f64),
            ("waiting", self.outgoing.records.len() as f64),
            ("waiting_bytes", self.outgoing.bytes as f64),
        ];
        if let Some(connection) = self.link.state() {
            let stats = connection.stats();
            figures.extend([
                ("round_trip_us", stats.path.rtt.as_secs_f64() * 1e6),
                ("congestion_bytes", stats.path.cwnd as f64),
                ("lost_packets", stats.path.lost_packets as f64),
                ("sent_packets", stats.path.sent_packets as f64),
                ("datagram_bytes", f64::from(stats.path.current_mtu)),
            ]);
        }
        CtlReply::Report(figures)
    }
}

impl Partner for QuicPartner {
    fn open(&mut self, template: &FlowTemplate, _attributes: &Attributes) -> Result<FlowKey, PartnerError> {
        // Which flow a record belongs to stands in the record. One is pushed at most.
        if template.direction == Direction::In {
            self.is_timely = template.class == FlowClass::Timely;
        }
        Ok(FlowKey::DEFAULT)
    }

    fn close(&mut self, _flow: FlowKey) -> Result<(), PartnerError> {
        self.flush().map(drop)
    }

    fn push(&mut self, _flow: FlowKey, message: Message) -> Result<Pushed, (PartnerError, Message)> {
        if self.finish != Finish::No {
            return Err((PartnerError::Unsupported("taking records after the end"), message));
        }
        if let Err(error) = check_record(&message, self.body_bytes_max).and_then(|()| self.check()) {
            return Err((error, message));
        }
        let bytes = message.body.len();
        if self.is_full_for(bytes) {
            self.write();
            self.was_full = self.is_full_for(bytes);
            if self.was_full {
                self.outgoing.refuse(bytes);
                return Ok(Pushed::Full(message));
            }
        }
        self.was_full = false;
        self.outgoing.push(now(), message.body);
        if self.is_timely {
            self.hand_over();
        } else if self.outgoing.bytes >= BURST_BYTES {
            self.write();
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
            Ctl::Flush => self.flush(),
            Ctl::Finish => {
                if self.finish == Finish::No {
                    self.finish = Finish::Asked;
                }
                self.turn();
                self.flush()?;
                let sent =
                    self.link.state().is_some_and(|connection| connection.streams().send_streams() == 0);
                Ok(if self.finish == Finish::Said && sent { CtlReply::Done } else { CtlReply::Pending })
            }
            Ctl::Report => Ok(self.report()),
            Ctl::Heard => {
                // Nobody may have pulled because there is no room for more; the connection lives all the same.
                if !std::mem::take(&mut self.has_looked) {
                    self.turn();
                }
                Ok(CtlReply::Count(self.counts.heard))
            }
            Ctl::Probe => {
                self.link.probe();
                Ok(CtlReply::Done)
            }
            Ctl::Move(socket) => {
                socket::set_buffers(socket.as_fd(), self.socket_bytes, self.socket_bytes)?;
                self.link.add_way(socket)?;
                Ok(CtlReply::Done)
            }
            Ctl::Watch(Watch::Progress) => Ok(CtlReply::Progress(self.progress())),
            Ctl::Watch(_) => Ok(CtlReply::Done),
            _ => Err(PartnerError::Unsupported("asking a transport for a device's state")),
        }
    }

    fn readiness(&self, _flow: FlowKey, direction: Direction) -> Readiness<'_> {
        match direction {
            // Whoever was refused waits for room, and whoever flushes for the end.
            Direction::In => {
                // An end that was asked for waits for the other host, and what is blocked for the socket.
                let rests = self.finish == Finish::No && !self.link.is_blocked();
                let now = match (self.was_full, self.is_timely) {
                    (true, true) => self.outgoing.is_empty(),
                    (true, false) => self.outgoing.has_room(),
                    (false, _) => rests && self.is_handed_over(),
                };
                Readiness { now, ..self.link.readiness() }
            }
            Direction::Out => {
                let now = self.slot.is_held() || self.link.has_news() || self.link.over().is_some();
                Readiness { now, ..self.link.readiness() }
            }
        }
    }

    fn upkeep(&self) -> Readiness<'_> {
        self.link.readiness()
    }
}
