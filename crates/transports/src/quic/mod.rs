#![doc = include_str!("quic.md")]
//!
//! # Structure
//!
//! ```text
//!          reliable, state ─► OrderedStream ─┐                                    ┌─► Receiver ─► pull
//! push ─┬─►                                  ├─► QuicConnection ─► network ─► QuicConnection
//!       └─► timely ────────► RecordStreams ──┘     (quinn-proto, sockets)
//! ```
//!
//! | module | purpose |
//! |---|---|
//! | `connection` | quinn-proto with its sockets; also used for the control channel |
//! | `ack_bypass` | sends overdue acknowledgements past congestion control |
//! | `rate_controller` | the rate control of `udp` for quinn-proto |
//! | `config` | keys, windows, congestion control |
//! | `ids` | connection IDs that lead to their user on the accepting host |
//! | `address_validator` | datagrams of no known connection: Retry and stateless reset |
//! | `receive_window` | a receive window that grows with the path |
//! | `ordered_stream`, `record_streams`, `receiver` | records to and from streams and datagrams |

mod ack_bypass;
mod address_validator;
mod config;
mod connection;
mod ids;
mod ordered_stream;
mod rate_controller;
mod receive_window;
mod receiver;
mod record_streams;
#[cfg(test)]
mod tests;

use crate::send_queue::{self, SendQueue, check_record};
use crate::socket::{self, DATAGRAM_BYTES_MAX, DATAGRAM_BYTES_MIN, FRAME_BYTES_MAX, Route};
pub use address_validator::{AddressValidator, Validation};
pub use config::{Congestion, ConnectionConfig, ServerKeys, Tuning, data_tag};
pub use connection::{CloseReason, QuicConnection};
use contract::{
    Attributes, Ctl, CtlReply, Direction, End, FlowClass, FlowKey, FlowTemplate, Message, ModuleEntry, Next,
    OptionKind, OptionSpec, Options, Partner, PartnerError, PartnerResult, Progress, Pull, PullSlot, Pulled,
    Pushed, Readiness, SealKeys, Time, TraceCtl, TransportClass, TransportCtl, local,
};
pub use ids::{DatagramKind, Tag, classify};
use ordered_stream::OrderedStream;
pub use quinn_proto::{Dir, ReadError, StreamId, VarInt, WriteError};
use receive_window::ReceiveWindow;
use receiver::Receiver;
use record_streams::{RecordStreams, patience};
use rustix::net::SocketType;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Queued bytes at which a push flushes before the end of the burst.
const BURST_BYTES: usize = 64 << 10;
/// Send buffer of the connection: two congestion windows, and at least this.
const SEND_BYTES_MIN: u64 = 128 << 10;

const LATE: OptionKind = OptionKind::Duration { min: Duration::from_millis(1), max: Duration::from_secs(60) };

static OPTIONS: [OptionSpec; 6] = [
    send_queue::OUTBOX,
    local(
        "window",
        OptionKind::Size { min: 64 << 10, max: 1 << 30 },
        "16MiB",
        "receive window: bytes that the peer may have in flight to this host or unread on it; on a long and fast path up to \
         eight times as much",
    ),
    local(
        "late",
        OptionKind::OrAuto(&LATE),
        "auto",
        "abandon a record of a timely flow that has not arrived after this time; auto: three round trips, at least 500ms",
    ),
    local(
        "datagram",
        OptionKind::Size { min: 0, max: 65_507 },
        "0",
        "largest UDP datagram to probe for, bytes; 0 uses the limit of the outgoing interface; the path may carry less",
    ),
    local(
        "congestion",
        OptionKind::Choice(&["rate", "cubic", "newreno", "bbr"]),
        "rate",
        "congestion control: `rate` tells random loss from loss in a queue, and keeps the queue short",
    ),
    socket::BUFFERS,
];

/// Receive window within one machine: enough to keep both processors busy, and small enough for their caches.
const LOCAL_WINDOW_BYTES: usize = 2 << 20;
/// Smallest receive window: a few of the largest datagrams.
const WINDOW_BYTES_MIN: usize = 128 << 10;

/// Returns the window within one machine that never overflows the socket's receive buffer, the only place where data
/// are lost there. Half of the buffer is for the kernel's own overhead.
fn local_window_bytes(socket: BorrowedFd<'_>) -> usize {
    let buffer_bytes = rustix::net::sockopt::socket_recv_buffer_size(socket).unwrap_or(0);
    (buffer_bytes / 2).max(WINDOW_BYTES_MIN)
}

/// Streams in flight, at most: records of a timely flow, or segments of another flow, which then fill the largest receive window.
const STREAMS_MAX: u32 = 128;

/// The transport `quic`.
#[derive(Debug, Clone, Copy)]
pub struct Quic;

impl TransportClass for Quic {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry {
            name: "quic",
            summary: "records over QUIC: reliable and ordered, or unordered and timely, as the flow needs",
            doc: include_str!("quic.md"),
            options: &OPTIONS,
        }
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
        let socket_bytes = options.size("socket_bytes");
        socket::prepare(socket.as_fd(), socket_bytes)?;
        let Route { datagram_bytes, is_local } = Route::of(socket.as_fd());
        let window = options.size("window");
        let datagram = match options.size("datagram") {
            0 => datagram_bytes,
            given => given.clamp(DATAGRAM_BYTES_MIN, DATAGRAM_BYTES_MAX),
        };
        let local_window = || window.min(LOCAL_WINDOW_BYTES).min(local_window_bytes(socket.as_fd()));
        let tuning = Tuning {
            window: if is_local { local_window() } else { window } as u32,
            streams: STREAMS_MAX + 1,
            datagram: datagram as u16,
            is_size_known: is_local,
            congestion: match options.text("congestion") {
                "cubic" => Congestion::Cubic,
                // Within one machine only the receiver's buffer can lose data. Datagrams that fit a frame may leave it
                // through a relay.
                "rate" if is_local && datagram > FRAME_BYTES_MAX => Congestion::Cubic,
                "newreno" => Congestion::NewReno,
                "bbr" => Congestion::Bbr,
                _ => Congestion::Rate,
            },
        };
        let config = ConnectionConfig::data(end, keys, &tuning);
        let config = config.map_err(|error| PartnerError::os("setting up QUIC", error))?;
        let mut partner = QuicPartner {
            link: QuicConnection::new(socket, config)?,
            socket_bytes,
            is_timely: false,
            late: (!options.is_auto("late")).then(|| options.duration("late")),
            queue: SendQueue::new(options.count("outbox")),
            was_full: false,
            ordered: OrderedStream::default(),
            record_streams: RecordStreams::default(),
            send_state: SendState::Open,
            receiver: Receiver::default(),
            receive_window: ReceiveWindow::new(tuning.window),
            slot: PullSlot::default(),
            flow: FlowKey::DEFAULT,
            has_received: false,
            counts: Counts::default(),
        };
        partner.link.drive_output();
        Ok(Box::new(partner))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SendState {
    /// Accepts records.
    Open,
    /// Sends the queue, then ends the sequence.
    Finishing,
    /// The sequence has ended.
    Finished,
}

#[derive(Debug, Default)]
struct Counts {
    sent: u64,
    sent_bytes: u64,
    /// Abandoned records of a timely flow.
    late: u64,
    /// Calls to `drive` that received authentic frames.
    signs_of_life: u64,
    /// At the last count: frames of records received and sent, and acknowledgements received.
    frames: [u64; 3],
    /// Frames that say that the peer's window is full, at the last report.
    blocked: u64,
}

/// One QUIC connection as a partner.
#[derive(Debug)]
struct QuicPartner {
    link: QuicConnection,
    socket_bytes: usize,
    /// The flow pushed here is timely.
    is_timely: bool,
    /// The option `late`; `None`: auto.
    late: Option<Duration>,
    /// With the time of the push.
    queue: SendQueue<Time>,
    /// The last push was refused.
    was_full: bool,
    ordered: OrderedStream,
    record_streams: RecordStreams,
    send_state: SendState,
    receiver: Receiver,
    receive_window: ReceiveWindow,
    slot: PullSlot,
    /// Flow of the record in the slot.
    flow: FlowKey,
    /// A pull has received datagrams since the last [`TransportCtl::Received`].
    has_received: bool,
    counts: Counts,
}

fn now() -> Time {
    Time(sys::clock::boot_ns())
}

impl QuicPartner {
    /// Returns an error if the connection is over.
    fn check(&self) -> PartnerResult {
        match self.link.close_reason() {
            None => Ok(()),
            Some(CloseReason::Closed(_)) => Err(self.gone("the other host closed it")),
            Some(CloseReason::WrongProtocol) => Err(self.gone("the other host expects another protocol")),
            Some(CloseReason::Failed(reason)) => Err(self.gone(reason)),
        }
    }

    fn gone(&self, reason: &str) -> PartnerError {
        PartnerError::Gone(format!("the connection to {} ({reason})", self.link.name()))
    }

    /// Receives and sends as much as possible.
    fn drive(&mut self) {
        let before = self.link.counts.received_datagrams;
        self.link.drive();
        if self.link.counts.received_datagrams != before {
            self.receive_window.update(&mut self.link, Instant::now());
            self.update_liveness();
        }
        self.write();
    }

    /// Counts a sign of life if the connection has received records or acknowledgements of records. Datagrams that fail
    /// authentication have none. The packets that keep an idle connection alive say nothing that the control channel does
    /// not say, and would wake the broker.
    fn update_liveness(&mut self) {
        let Some(connection) = self.link.state() else { return };
        let stats = connection.stats();
        let received = stats.frame_rx.stream + stats.frame_rx.datagram;
        let sent = stats.frame_tx.stream + stats.frame_tx.datagram;
        let acknowledgements = stats.frame_rx.acks;
        let [was_received, was_sent, was_acknowledged] = self.counts.frames;
        if received != was_received || sent != was_sent && acknowledgements != was_acknowledged {
            self.counts.frames = [received, sent, acknowledgements];
            self.counts.signs_of_life += 1;
        }
    }

    /// Returns true if the connection has accepted all records.
    fn is_all_written(&self) -> bool {
        self.queue.is_empty() && self.ordered.is_empty()
    }

    /// Writes the queue to the connection and sends datagrams.
    fn write(&mut self) {
        if self.write_queue() {
            self.link.drive_output();
        }
    }

    /// Writes the queue to the connection. Returns true if there is something new to send.
    fn write_queue(&mut self) -> bool {
        if !self.link.is_established() {
            return false;
        }
        let Some(connection) = self.link.state() else { return false };
        // A larger buffer would only delay later records.
        connection.set_send_window((2 * connection.congestion_state().window()).max(SEND_BYTES_MIN));
        self.ordered.open(connection);
        let mut has_news = false;
        let written = if self.is_timely {
            let patience = self.late.unwrap_or_else(|| patience(connection.rtt()));
            let late = self.record_streams.abandon_late(connection, &mut self.queue, (now(), patience));
            self.counts.late += late;
            has_news = late > 0;
            self.record_streams.write(connection, &mut self.queue)
        } else {
            self.ordered.write(connection, &mut self.queue)
        };
        self.counts.sent += written.records;
        self.counts.sent_bytes += written.bytes as u64;
        let is_all_written = self.queue.is_empty() && self.ordered.is_empty();
        if self.send_state == SendState::Finishing && is_all_written && self.ordered.finish(connection) {
            self.send_state = SendState::Finished;
            has_news = true;
        }
        has_news || written.bytes > 0
    }

    fn flush(&mut self) -> PartnerResult<CtlReply> {
        self.check()?;
        self.write_queue();
        self.link.drive_output();
        if !self.is_all_written() {
            // An acknowledgement that makes room may be in the socket.
            self.drive();
        }
        Ok(if self.link.is_blocked() || !self.is_all_written() { CtlReply::Pending } else { CtlReply::Done })
    }

    /// Receives until a record is complete, and stores its flow.
    fn next(&mut self) -> PartnerResult<Next> {
        let mut has_turned = false;
        loop {
            if let Some(connection) = self.link.state() {
                match self.receiver.next(connection) {
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
            if !has_turned {
                has_turned = true;
                self.has_received = true;
                self.drive();
            } else if self.link.take_news() {
                // Sends the flow-control window that reading has freed.
                self.link.drive_output();
            } else {
                break;
            }
        }
        match self.link.close_reason() {
            Some(CloseReason::Closed(_)) => Ok(Next::End),
            Some(_) => self.check().map(|()| Next::End),
            None if self.receiver.has_ended() => Ok(Next::End),
            None => Ok(Next::Nothing),
        }
    }

    fn is_full_for(&self, bytes: usize) -> bool {
        match self.is_timely {
            // A timely record must not wait behind another: the source keeps or drops it.
            true => !self.queue.is_empty(),
            false => self.queue.is_full_for(bytes),
        }
    }

    fn progress(&self) -> Progress {
        let pushed = self.counts.sent + self.queue.records.len() as u64;
        Progress { pushed, written: self.counts.sent, ..Progress::default() }
    }

    fn report(&mut self) -> CtlReply {
        let (counts, link) = (&self.counts, self.link.counts);
        let received = &self.receiver.counts;
        let mut figures = vec![
            ("sent", counts.sent as f64),
            ("sent_bytes", counts.sent_bytes as f64),
            ("sent_on_streams", self.record_streams.count as f64),
            ("sent_datagrams", link.sent_datagrams as f64),
            ("unsent_datagrams", link.unsent_datagrams as f64),
            ("send_calls", link.send_calls as f64),
            ("late", counts.late as f64),
            ("received", received.received as f64),
            ("received_bytes", received.received_bytes as f64),
            ("received_datagrams", link.received_datagrams as f64),
            ("receive_calls", link.receive_calls as f64),
            ("lost_partial", received.lost_partial as f64),
            ("malformed_datagrams", received.malformed as f64),
            ("migrations", link.moves as f64),
            ("ack_datagrams", link.ack_datagrams as f64),
            ("waiting", self.queue.records.len() as f64),
            ("waiting_bytes", self.queue.bytes as f64),
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
            let blocked = stats.frame_tx.data_blocked + stats.frame_tx.stream_data_blocked;
            let is_full = std::mem::replace(&mut self.counts.blocked, blocked) != blocked;
            figures.push(("peer_window_full", f64::from(u8::from(is_full))));
            figures.extend(ack_bypass::rate(connection).iter().flat_map(|rate| rate.view().figures()));
        }
        CtlReply::Report(figures)
    }
}

impl Partner for QuicPartner {
    fn open(&mut self, template: &FlowTemplate, _attributes: &Attributes) -> PartnerResult<FlowKey> {
        // The record header names the flow. At most one flow is pushed.
        let is_timely = template.class == FlowClass::Timely;
        match template.direction {
            Direction::In => self.is_timely = is_timely,
            Direction::Out => self.receiver.is_timely = is_timely,
        }
        Ok(FlowKey::DEFAULT)
    }

    fn close(&mut self, _flow: FlowKey) -> PartnerResult {
        self.flush().map(drop)
    }

    fn push(&mut self, _flow: FlowKey, message: Message) -> Result<Pushed, (PartnerError, Message)> {
        if self.send_state != SendState::Open {
            return Err((PartnerError::Unsupported("accepting records after the end"), message));
        }
        if let Err(error) = check_record(&message).and_then(|()| self.check()) {
            return Err((error, message));
        }
        let bytes = message.body.len();
        if self.is_full_for(bytes) {
            self.write();
            self.was_full = self.is_full_for(bytes);
            if self.was_full {
                self.queue.refuse(bytes);
                return Ok(Pushed::Full(message));
            }
        }
        self.was_full = false;
        self.queue.push(now(), message.body);
        if self.is_timely {
            self.write_queue();
        } else if self.queue.bytes >= BURST_BYTES {
            self.write();
        }
        Ok(Pushed::Taken)
    }

    fn pull(&mut self, _flow: FlowKey, request: Pull<'_>) -> PartnerResult<Pulled> {
        let next = if self.slot.is_held() { Next::Nothing } else { self.next()? };
        self.slot.answer(self.flow, request, || Ok(next))
    }

    fn ctl(&mut self, _flow: FlowKey, operation: Ctl<'_>) -> PartnerResult<CtlReply> {
        match operation {
            Ctl::Flush => self.flush(),
            Ctl::Finish => {
                if self.send_state == SendState::Open {
                    self.send_state = SendState::Finishing;
                }
                self.drive();
                self.flush()?;
                let is_acknowledged =
                    self.link.state().is_some_and(|connection| connection.streams().send_streams() == 0);
                let is_done = self.send_state == SendState::Finished && is_acknowledged;
                Ok(if is_done { CtlReply::Done } else { CtlReply::Pending })
            }
            Ctl::Report => Ok(self.report()),
            Ctl::Transport(TransportCtl::Received) => {
                // Backpressure may keep the path from pulling; the connection must run all the same.
                if !std::mem::take(&mut self.has_received) {
                    self.drive();
                }
                Ok(CtlReply::Count(self.counts.signs_of_life))
            }
            Ctl::Transport(TransportCtl::Probe) => {
                self.link.probe();
                Ok(CtlReply::Done)
            }
            Ctl::Transport(TransportCtl::Move(socket)) => {
                socket::prepare(socket.as_fd(), self.socket_bytes)?;
                self.link.add_path(socket)?;
                Ok(CtlReply::Done)
            }
            Ctl::Transport(TransportCtl::Trace(TraceCtl::Progress)) => {
                Ok(CtlReply::Progress(self.progress()))
            }
            Ctl::Transport(TransportCtl::Trace(_)) => Ok(CtlReply::Done),
            _ => Err(PartnerError::Unsupported("asking a transport for a device's state")),
        }
    }

    fn readiness(&self, _flow: FlowKey, direction: Direction) -> Readiness<'_> {
        match direction {
            Direction::In => {
                // After a refused push, room matters. Otherwise a flush is pending: it ends when all is written, except
                // that the end needs the peer's acknowledgement and a blocked datagram needs the socket.
                let is_settled = self.send_state == SendState::Open && !self.link.is_blocked();
                let now = match (self.was_full, self.is_timely) {
                    (true, true) => self.queue.is_empty(),
                    (true, false) => self.queue.has_room(),
                    (false, _) => is_settled && self.is_all_written(),
                };
                Readiness { now, ..self.link.readiness() }
            }
            Direction::Out => {
                let now = self.slot.is_held() || self.link.has_news() || self.link.close_reason().is_some();
                Readiness { now, ..self.link.readiness() }
            }
        }
    }

    fn upkeep(&self) -> Readiness<'_> {
        self.link.readiness()
    }
}
