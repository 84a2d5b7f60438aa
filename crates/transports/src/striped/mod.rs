#![doc = include_str!("striped.md")]
//!
//! | part | purpose |
//! |---|---|
//! | `unit` | the bytes on a way: pieces of records and marks |
//! | `way` | one connection, and records whose pieces arrive |
//! | `sending`, `receiving` | the partner's two directions |
//!
//! # A way
//!
//! | step | application host | device host |
//! |---|---|---|
//! | the first way | connects; sends the join mark with the number of the link; sends records at once | answers with the join mark; then sends records |
//! | another way | asks its broker for a connection; sends the join mark | drops the way if the number is that of another link, else answers |
//! | the answer arrives | sends records | sends records since its answer |
//! | too many ways | sends the end mark on the newest one behind its last record | answers with the end mark behind its own last record |
//! | both end marks | closes the socket | closes the socket |
//!
//! The device host asks with a mark (`Want`). A way that closes before it has carried a record counts as refused, and the link
//! continues with fewer. Any other way that closes without an end mark fails the link.

mod receiving;
mod sending;
#[cfg(test)]
mod tests;
mod unit;
mod way;

use crate::send_queue::{self, SendQueue, check_record};
use crate::socket;
use crate::tcp::{self, Tcp};
use contract::{
    Attributes, Ctl, CtlReply, Direction, End, FlowKey, FlowTemplate, Interest, Message, ModuleEntry, Next,
    OptionKind, OptionSpec, Options, Partner, PartnerError, PartnerResult, Pull, PullSlot, Pulled, Pushed,
    Readiness, SealKeys, Time, TransportClass, TransportCtl, local,
};
use sending::Split;
use session::{Observation, Search, Searched, WAYS_MAX};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;
use sys::poller::PollSet;
use unit::Mark;
use way::{Assembly, Receiving, Sending, Way};
use wire::BODY_BYTES_MAX;

/// The longest piece on any way but the first, and the longest one that a sender makes for several ways.
const PIECE_BYTES_MAX: usize = 128 << 10;
/// Queued bytes at which a push flushes before the end of the burst.
const BURST_BYTES: usize = 256 << 10;
/// Time until a way that closed early, or never came, is requested again. It doubles each time.
const RETRY: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(64)];
/// Unsent bytes that the kernel accepts on a way: a record waits for the fastest way, not in the queue of a slow one.
const UNSENT_BYTES: u32 = 128 << 10;

static OPTIONS: [OptionSpec; 4] = [
    send_queue::OUTBOX,
    local(
        "ways",
        OptionKind::OrAuto(&OptionKind::Integer { min: 1, max: WAYS_MAX as i64 }),
        "auto",
        "number of connections for the records that this host sends; auto finds it",
    ),
    tcp::SOCKET_BYTES,
    local(
        "congestion",
        OptionKind::Text { max: 15 },
        "",
        "congestion control algorithm of each connection, such as cubic; empty for the system's default",
    ),
];

/// The transport `striped`.
#[derive(Debug, Clone, Copy)]
pub struct Striped;

impl TransportClass for Striped {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry {
            name: "striped",
            summary: "records over several TCP connections as one, for paths that one connection does not fill",
            doc: include_str!("striped.md"),
            options: &OPTIONS,
        }
    }

    fn is_datagram(&self) -> bool {
        false
    }

    fn has_ways(&self) -> bool {
        true
    }

    fn dial(&self, peer: SocketAddr, options: &Options) -> PartnerResult<OwnedFd> {
        Tcp.dial(peer, options)
    }

    fn partner(
        &self,
        socket: OwnedFd,
        end: End,
        options: &Options,
        keys: Option<&SealKeys>,
    ) -> PartnerResult<Box<dyn Partner>> {
        tcp::tune(&socket, options)?;
        Ok(Box::new(StripedPartner::new(socket, end, options, keys)?))
    }
}

/// The number of ways for the sending direction.
#[derive(Debug)]
enum Choice {
    Fixed(u32),
    Found(Search),
}

impl Choice {
    /// Returns the number of ways to send on.
    fn ways(&self) -> u32 {
        match self {
            Choice::Fixed(ways) => *ways,
            Choice::Found(search) => search.ways(),
        }
    }

    /// Returns the number of ways to keep open.
    fn ways_kept(&self) -> u32 {
        match self {
            Choice::Fixed(ways) => *ways,
            Choice::Found(search) => search.ways_kept(),
        }
    }

    fn due(&self) -> Option<Time> {
        match self {
            Choice::Fixed(_) => None,
            Choice::Found(search) => search.due(),
        }
    }
}

/// The agreement with the peer about the ways.
#[derive(Debug)]
struct Demand {
    /// The number that the peer wants for its direction.
    of_peer: u32,
    /// The number that the peer knows from this end.
    announced: u32,
    /// Ways to request from the broker.
    to_request: u32,
    /// Ways that were requested and have not arrived.
    requested: u32,
    /// Ways that closed before they carried a record.
    refused: u64,
    /// The time of the next retry, and the delay of the one behind it.
    retry_at: Option<Time>,
    retry_after: Duration,
}

impl Demand {
    fn new() -> Demand {
        Demand {
            of_peer: 1,
            announced: 1,
            to_request: 0,
            requested: 0,
            refused: 0,
            retry_at: None,
            retry_after: RETRY[0],
        }
    }

    /// Some ways are missing: they are requested again later.
    fn retry_later(&mut self) {
        self.retry_at = Some(Time(sys::clock::boot_ns()).after(self.retry_after));
    }

    /// As many ways as wanted are here.
    fn settle(&mut self) {
        (self.retry_at, self.retry_after) = (None, RETRY[0]);
    }
}

/// Several connected TCP sockets as a partner.
#[derive(Debug)]
struct StripedPartner {
    end: End,
    peer: String,
    options: Options,
    /// The number of the link; a device host learns it from the first way.
    link: Option<u64>,
    /// The first way is the oldest one.
    ways: Vec<Way>,
    next_name: u64,
    /// The sockets, once there are several.
    set: Option<PollSet>,
    choice: Choice,
    demand: Demand,
    /// The most ways that the peer grants for now.
    ways_most: u32,
    queue: SendQueue<()>,
    split: Option<Split>,
    /// Name of the way that sent last.
    turn: u64,
    /// Number of the next piece to send, and to receive.
    next_number: u64,
    expected: u64,
    assembly: Assembly,
    slot: PullSlot,
    /// Flow of the record in the slot.
    flow: FlowKey,
    is_finishing: bool,
    /// Start of the present wait for the network, and the duration of the earlier ones.
    limited_since: Option<Time>,
    limited: Duration,
    /// A stall was found since the last [`TransportCtl::HeldBack`].
    is_stalled: bool,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    sent: u64,
    received: u64,
    received_bytes: u64,
    /// Figures of ways that are closed.
    closed: WayCounts,
    acknowledged_bytes: u64,
}

#[derive(Debug, Default, Clone, Copy)]
struct WayCounts {
    sent_bytes: u64,
    send_calls: u64,
    received_bytes: u64,
    receive_calls: u64,
}

impl WayCounts {
    fn add(self, way: &Way) -> WayCounts {
        WayCounts {
            sent_bytes: self.sent_bytes + way.sent_bytes,
            send_calls: self.send_calls + way.send_calls,
            received_bytes: self.received_bytes + way.received_bytes,
            receive_calls: self.receive_calls + way.receive_calls,
        }
    }
}

impl StripedPartner {
    fn new(socket: OwnedFd, end: End, options: &Options, keys: Option<&SealKeys>) -> PartnerResult<Self> {
        let choice = match options.is_auto("ways") {
            true => Choice::Found(Search::new()),
            false => Choice::Fixed(options.count("ways") as u32),
        };
        let mut partner = StripedPartner {
            end,
            peer: socket::peer_name(socket.as_fd()),
            options: options.clone(),
            // Distinguishes the links of a driver; it is no secret.
            link: (end == End::Dialled).then(sys::clock::boot_ns),
            ways: Vec::new(),
            next_name: 0,
            set: None,
            choice,
            demand: Demand::new(),
            ways_most: WAYS_MAX,
            queue: SendQueue::new(options.count("outbox")),
            split: None,
            turn: 0,
            next_number: 0,
            expected: 0,
            assembly: Assembly::default(),
            slot: PullSlot::default(),
            flow: FlowKey::DEFAULT,
            is_finishing: false,
            limited_since: None,
            limited: Duration::ZERO,
            is_stalled: false,
            counts: Counts::default(),
        };
        partner.add_way(socket, keys)?;
        Ok(partner)
    }

    /// Adds a connected socket as a way. Drops it if there are too many.
    fn add_way(&mut self, socket: OwnedFd, keys: Option<&SealKeys>) -> PartnerResult {
        self.demand.requested = self.demand.requested.saturating_sub(1);
        if self.demand.requested > 0 {
            self.demand.retry_later();
        }
        if self.ways.len() >= WAYS_MAX as usize || self.is_finishing {
            return Ok(());
        }
        tcp::tune(&socket, &self.options)?;
        // A kernel without the option lets more records wait in each way.
        let _ = sys::net::pace_stream(&socket, Some((u64::MAX, UNSENT_BYTES)));
        let is_first = self.ways.is_empty();
        let body_bytes_max = if is_first { BODY_BYTES_MAX } else { PIECE_BYTES_MAX };
        let mut way = Way::new(self.next_name, socket, keys, body_bytes_max);
        self.next_name += 1;
        if let Some(link) = self.link.filter(|_| self.end == End::Dialled) {
            way.mark(Mark::Join(link));
            if is_first {
                way.sending = Sending::Open;
            }
        }
        self.ways.push(way);
        if !is_first {
            self.poll_ways()?;
        }
        self.flush_ways()?;
        self.update_ways();
        Ok(())
    }

    /// Adds the newest way to the poll set; creates the set for the second way.
    fn poll_ways(&mut self) -> PartnerResult {
        let failed = |error: io::Error| PartnerError::os("epoll", error);
        let (set, from) = match self.set.take() {
            Some(set) => (set, self.ways.len().saturating_sub(1)),
            None => (PollSet::new().map_err(failed)?, 0),
        };
        for way in &self.ways[from..] {
            set.add_changes(&way.socket, way.name).map_err(failed)?;
        }
        self.set = Some(set);
        Ok(())
    }

    /// Notes the ways that have become ready.
    fn take_events(&mut self) -> PartnerResult {
        let Some(set) = &self.set else {
            // The only socket is polled by its level.
            self.ways.iter_mut().for_each(|way| (way.may_send, way.may_receive) = (true, true));
            return Ok(());
        };
        let mut is_full = true;
        while is_full {
            let ready = set.ready().map_err(|error| PartnerError::os("epoll", error))?;
            let mut count = 0;
            for name in ready {
                count += 1;
                if let Some(way) = self.ways.iter_mut().find(|way| way.name == name) {
                    (way.may_send, way.may_receive) = (true, true);
                }
            }
            is_full = count == PollSet::READY_MAX;
        }
        Ok(())
    }

    /// Handles a way whose connection has failed or closed too early.
    fn handle_cut(&mut self, index: usize, error: &io::Error) -> PartnerResult {
        if index == 0 || !self.ways[index].is_unused() {
            return Err(PartnerError::Gone(format!("the connection to {} ({error})", self.peer)));
        }
        self.drop_way(index);
        // The peer grants no more for now.
        self.demand.refused += 1;
        self.demand.retry_later();
        let open = self.ways.iter().filter(|way| way.is_open()).count() as u32;
        self.ways_most = open.max(1);
        if let Choice::Found(search) = &mut self.choice {
            search.on_refused(open);
        }
        Ok(())
    }

    /// Lets [`StripedPartner::remove_over`] remove a way.
    fn drop_way(&mut self, index: usize) {
        let way = &mut self.ways[index];
        (way.sending, way.receiving) = (Sending::Ended, Receiving::Ended);
        (way.may_send, way.may_receive) = (false, false);
    }

    /// Removes the ways that both ends have ended.
    fn remove_over(&mut self) {
        let set = &self.set;
        let counts = &mut self.counts;
        let mut index = 0;
        self.ways.retain(|way| {
            index += 1;
            let is_over = index > 1 && way.is_over() && way.head.is_none();
            if is_over {
                // The set would continue to report a socket that another process has, too.
                set.iter().for_each(|set| set.remove(&way.socket));
                counts.closed = counts.closed.add(way);
                counts.acknowledged_bytes += way.acknowledged_bytes();
            }
            !is_over
        });
    }

    /// Requests, announces or ends ways, so that there are as many as either end wants.
    fn update_ways(&mut self) {
        let kept = self.choice.ways_kept();
        let is_ending = self.is_finishing || self.ways[0].receiving != Receiving::Open;
        if is_ending {
            return;
        }
        if self.end == End::Accepted {
            if kept != self.demand.announced {
                self.demand.announced = kept;
                self.ways[0].mark(Mark::Want(kept.into()));
            }
            return;
        }
        let wanted = kept.max(self.demand.of_peer);
        let target = wanted.clamp(1, self.ways_most) as usize;
        let is_lasting = |way: &&mut Way| matches!(way.sending, Sending::Joining | Sending::Open);
        let lasting = self.ways.iter_mut().filter(is_lasting).count();
        let coming = (self.demand.requested + self.demand.to_request) as usize;
        if target > lasting + coming {
            self.demand.to_request += (target - lasting - coming) as u32;
        }
        if self.ways.iter().filter(|way| way.is_open()).count() >= wanted as usize {
            // A later demand is not bound by what the peer refused before.
            self.ways_most = WAYS_MAX;
            self.demand.settle();
        }
        let surplus = lasting.saturating_sub(target);
        self.ways.iter_mut().skip(1).rev().filter(is_lasting).take(surplus).for_each(Way::end);
    }

    fn observe(&self, now: Time) -> Observation {
        let present = self.limited_since.map_or(Duration::ZERO, |since| now.since(since));
        let acknowledged: u64 = self.ways.iter().map(Way::acknowledged_bytes).sum();
        let round_trip = sys::net::stream_state(&self.ways[0].socket).map(|stream| stream.round_trip);
        Observation {
            acknowledged_bytes: self.counts.acknowledged_bytes + acknowledged,
            limited: self.limited + present,
            ways_open: self.ways.iter().filter(|way| way.is_open()).count() as u32,
            round_trip: round_trip.unwrap_or_default(),
        }
    }

    /// Runs the search if its time has come.
    fn run_search(&mut self) {
        let Some(due) = self.choice.due() else { return };
        let now = Time(sys::clock::boot_ns());
        if now < due {
            return;
        }
        let observation = self.observe(now);
        if let Choice::Found(search) = &mut self.choice {
            search.on_due(&observation, now);
        }
        self.update_ways();
    }

    /// Requests the ways again that are missing, if it is time.
    fn retry(&mut self) {
        if self.demand.retry_at.is_some_and(|at| at.0 <= sys::clock::boot_ns()) {
            self.ways_most = WAYS_MAX;
            (self.demand.requested, self.demand.retry_at) = (0, None);
            // A way that the peer has not joined by now may never carry a record.
            for index in 1..self.ways.len() {
                if self.ways[index].sending == Sending::Joining {
                    self.drop_way(index);
                }
            }
            self.remove_over();
            self.demand.retry_after = (self.demand.retry_after * 2).min(RETRY[1]);
            self.update_ways();
        }
    }

    /// Handles everything that the ways need apart from records. Returns the number of connections to make.
    fn serve(&mut self) -> PartnerResult<u32> {
        self.take_events()?;
        self.receive_ways()?;
        self.run_search();
        self.retry();
        self.flush()?;
        let requested = std::mem::take(&mut self.demand.to_request);
        self.demand.requested += requested;
        if requested > 0 {
            self.demand.retry_later();
        }
        Ok(requested)
    }

    fn report(&self) -> CtlReply {
        let ways = self.ways.iter().fold(self.counts.closed, WayCounts::add);
        let searched = match &self.choice {
            Choice::Fixed(_) => Searched::default(),
            Choice::Found(search) => search.searched(),
        };
        let open = self.ways.iter().filter(|way| way.is_open()).count();
        CtlReply::Report(vec![
            ("sent", self.counts.sent as f64),
            ("sent_bytes", ways.sent_bytes as f64),
            ("send_calls", ways.send_calls as f64),
            ("received", self.counts.received as f64),
            ("received_bytes", self.counts.received_bytes as f64),
            ("receive_calls", ways.receive_calls as f64),
            ("waiting", self.queue.records.len() as f64),
            ("waiting_bytes", self.queue.bytes as f64),
            ("ways", f64::from(self.choice.ways().min(open as u32))),
            ("ways_open", open as f64),
            ("ways_refused", self.demand.refused as f64),
            ("searches", searched.searches as f64),
            ("search_steps", f64::from(searched.steps)),
            ("search_seconds", searched.lasted.as_secs_f64()),
        ])
    }

    fn is_sent(&self) -> bool {
        self.queue.is_empty() && self.split.is_none() && self.ways.iter().all(Way::is_flushed)
    }

    fn flushed(&self) -> CtlReply {
        if self.is_sent() { CtlReply::Done } else { CtlReply::Pending }
    }
}

impl Partner for StripedPartner {
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
        self.queue.push((), message.body);
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
            Ctl::Flush => self.flush().map(|()| self.flushed()),
            Ctl::Finish => {
                self.is_finishing = true;
                self.flush()?;
                let is_over = self.ways.iter().all(|way| way.sending == Sending::Ended);
                Ok(if is_over { CtlReply::Done } else { CtlReply::Pending })
            }
            Ctl::Report => Ok(self.report()),
            Ctl::Transport(TransportCtl::Received) => {
                let ways = self.ways.iter().fold(self.counts.closed, WayCounts::add);
                Ok(CtlReply::Count(ways.received_bytes))
            }
            Ctl::Transport(TransportCtl::HeldBack) => Ok(CtlReply::Count(self.is_held_back().into())),
            Ctl::Transport(TransportCtl::AddWay(socket, keys)) => {
                self.add_way(socket, keys.as_ref()).map(|()| CtlReply::Done)
            }
            Ctl::Transport(TransportCtl::ServeWays) => self.serve().map(|ways| CtlReply::Count(ways.into())),
            _ => Err(PartnerError::Unsupported("this operation")),
        }
    }

    fn readiness(&self, _flow: FlowKey, direction: Direction) -> Readiness<'_> {
        let first = &self.ways[0];
        let wait = |interest| match &self.set {
            Some(set) => Readiness::descriptor(set.as_fd(), Interest::Read),
            None => Readiness::descriptor(first.socket.as_fd(), interest),
        };
        match direction {
            // Nothing leaves before the peer has joined the first way.
            Direction::In if !self.is_sent() => {
                let interest =
                    if first.sending == Sending::Joining { Interest::Read } else { Interest::Write };
                Readiness { now: self.queue.has_room() && !self.is_finishing, ..wait(interest) }
            }
            Direction::In => Readiness::now(),
            Direction::Out if self.slot.is_held() || self.has_next() => Readiness::now(),
            Direction::Out => wait(Interest::Read),
        }
    }

    fn upkeep(&self) -> Readiness<'_> {
        let is_waiting = self.ways.len() == 1 && !self.is_sent();
        let check_at = is_waiting.then(|| self.ways[0].stall_detector.due());
        let sent_due = self.ways.iter().filter_map(|way| way.stall_detector.sent_due()).min();
        let polled = self.set.as_ref().map(|set| Readiness::descriptor(set.as_fd(), Interest::Read));
        // A flush may have taken the event of a way that has bytes.
        let is_readable = self.may_receive();
        Readiness { now: is_readable, ..polled.unwrap_or_default() }
            .or_at(self.choice.due())
            .or_at(check_at)
            .or_at(sent_due)
            .or_at(self.demand.retry_at)
    }
}
