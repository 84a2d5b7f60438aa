//! A small world of two hosts and one flow, for model checking. Everything possible may happen: faults of the
//! network for records and control messages, broken links, crashed processes that resume from their tickets,
//! changes of the pipeline, a change of the transport, and crashed brokers that lose all retained state.
//!
//! A [`World`] has neither time nor randomness: the caller chooses the next [`Move`]. After any sequence of
//! moves the promises of the flow hold, or [`World::step`] reports the broken one. The halves are driven as the
//! runtime drives them. Messages are empty; their creation time is their content: the number of messages so
//! far.

mod scope;

pub use scope::{Move, Scope};

use contract::{FlowClass, Message, Time};
use session::{Admission, Received, SinkFlow, SourceFlow, StoreFull};
use std::collections::VecDeque;
use std::fmt::Write;
use std::time::Duration;
use wire::ticket::{SinkTicket, SourceTicket};
use wire::{BODY_BYTES_MAX, Control, FlowControl, RecordHeader};

const FLOW: u32 = 7;

/// A control message of the flow.
fn control(message: FlowControl) -> Control {
    Control::Flow { flow: FLOW, message }
}
/// The distance from the current epoch to that of a change.
const EPOCHS_AHEAD: u32 = 2;
/// The most acknowledgements in flight.
const ACKNOWLEDGEMENTS_MAX: usize = 2;

/// The side that has changed to the other transport, while the other side has not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Switched {
    Source,
    Sink,
}

/// The state that the broker retains of the source: its ticket, and its records while there is no process.
#[derive(Debug, Clone)]
struct SavedSource {
    ticket: SourceTicket,
    records: Vec<Message>,
}

/// Two hosts and one flow.
#[derive(Debug, Clone)]
pub struct World {
    /// The faults and messages that are left.
    left: Scope,
    up: bool,
    source: Option<SourceFlow>,
    saved: SavedSource,
    /// The epoch of a change sent to the sink, and true after it has begun here.
    change: Option<(u32, bool)>,
    /// State flow: the peer is silent; the peer's state is stale; a snapshot must be sent.
    silent: bool,
    stale: bool,
    snapshot: bool,
    sink: Option<SinkFlow>,
    sink_ticket: SinkTicket,
    sink_silent: bool,
    /// Messages accepted since the sink's ticket; and how many of those come again and must be skipped.
    taken_since: u64,
    skips: u64,
    /// Epoch and content of the message that was delivered and not accepted yet.
    hands: Option<(u32, u64)>,
    air: Vec<RecordHeader>,
    /// A change of transport: the side that is ahead, and the records in flight on the transport that the sink
    /// does not read yet.
    switched: Option<Switched>,
    ahead: Vec<RecordHeader>,
    /// The hosts whose brokers restarted without the other's knowledge: the source's, the sink's.
    restarted: [bool; 2],
    /// Messages for a sink that crashed with its broker. The source's host sends them again.
    resent: VecDeque<u64>,
    /// The first and last of those that were only in a killed process: they are lost and counted.
    held: Option<(u64, u64)>,
    /// The last ones of those that were skipped. They stay lost even if messages before them come again.
    passed: Option<(u64, u64)>,
    acknowledgements: Vec<Control>,
    to_sink: VecDeque<Control>,
    to_source: VecDeque<Control>,
    /// The number of messages that the device made.
    made: u64,
    closed: bool,
    /// Epoch and content of the last accepted message, and the number of accepted messages.
    last: (u32, u64),
    taken: u64,
    /// State flow: the state that the application sees; `None` is neutral.
    seen: Option<u64>,
}

impl World {
    /// A world with its link up; but a state flow begins without a link, because it must send its state first.
    pub fn new(scope: &Scope) -> World {
        let limits = scope.limits();
        let source = SourceFlow::new(FLOW, scope.class, scope.lossy, &limits);
        let sink = SinkFlow::new(scope.class, &limits);
        let is_state = scope.class == FlowClass::State;
        World {
            left: scope.clone(),
            up: !is_state,
            saved: SavedSource { ticket: source.ticket(), records: Vec::new() },
            source: Some(source),
            change: None,
            silent: false,
            stale: is_state,
            snapshot: false,
            sink_ticket: sink.ticket(FLOW),
            sink: Some(sink),
            sink_silent: false,
            taken_since: 0,
            skips: 0,
            hands: None,
            air: Vec::new(),
            switched: None,
            ahead: Vec::new(),
            restarted: [false; 2],
            resent: VecDeque::new(),
            held: None,
            passed: None,
            acknowledgements: Vec::new(),
            to_sink: VecDeque::new(),
            to_source: VecDeque::new(),
            made: 0,
            closed: false,
            last: (0, 0),
            taken: 0,
            seen: None,
        }
    }

    /// Makes a move. Returns false if it is not possible now, and an error if it breaks a promise.
    pub fn step(&mut self, made: Move) -> Result<bool, String> {
        let done = match made {
            Move::Send => self.send(),
            Move::Arrive(index) => self.arrive(index.into(), true),
            Move::HandOn => self.hand_on(),
            Move::Take => self.take()?,
            Move::Acknowledge => self.acknowledge(),
            Move::Miss => self.miss(),
            Move::Acknowledged(index) => self.receive_acknowledged(index.into()),
            Move::Timeout => self.timeout(),
            Move::SendGone => self.send_gone(),
            Move::ReceiveAtSink => self.up && self.receive_next_at_sink(),
            Move::ReceiveAtSource => self.up && self.receive_next_at_source(),
            Move::Join => self.join()?,
            Move::StartSource => self.start_source()?,
            Move::StartSink => self.start_sink()?,
            Move::Lose(index) => {
                self.left.lossy
                    && (index as usize) < self.air.len()
                    && spend(&mut self.left.losses)
                    && self.drop_record(index.into())
            }
            Move::Repeat(index) => {
                self.left.lossy
                    && (index as usize) < self.air.len()
                    && spend(&mut self.left.repeats)
                    && self.arrive(index.into(), false)
            }
            Move::Cut => self.up && spend(&mut self.left.cuts) && self.cut(),
            Move::KillSource => self.source.is_some() && spend(&mut self.left.kills) && self.kill_source(),
            Move::KillSink => self.sink.is_some() && spend(&mut self.left.kills) && self.kill_sink(),
            Move::SilenceAtSource => self.fall_silent_at_source(),
            Move::SilenceAtSink => self.fall_silent_at_sink(),
            Move::Change => {
                self.change.is_none()
                    && self.source.is_some()
                    && spend(&mut self.left.changes)
                    && self.begin_change()
            }
            Move::SwitchSource => self.switch_source(),
            Move::SwitchSink => self.switch_sink(),
            Move::KillSourceBroker => {
                !self.is_state() && spend(&mut self.left.brokers) && self.kill_source_broker()
            }
            Move::KillSinkBroker => {
                !self.is_state() && spend(&mut self.left.brokers) && self.kill_sink_broker()
            }
        };
        self.skip_held();
        self.check()?;
        Ok(done)
    }

    /// Returns true if every message has reached its end, on this link and with these processes.
    pub fn is_done(&self) -> bool {
        let (Some(source), Some(sink)) = (&self.source, &self.sink) else { return false };
        let settled = self.up && (self.closed || self.made == self.left.messages);
        settled
            && match self.left.class {
                FlowClass::State => self.seen == Some(self.made) && sink.epoch() == source.epoch(),
                _ => {
                    source.is_settled()
                        && self.resent.is_empty()
                        && self.hands.is_none()
                        && self.taken + sink.counters().lost == self.made
                }
            }
    }

    /// Skips messages that are lost and counted.
    fn skip_held(&mut self) {
        let (_, last) = &mut self.last;
        if let Some((first, end)) = self.held.take_if(|(first, _)| *first == *last + 1) {
            *last = end;
            self.taken += end + 1 - first;
            self.passed = Some((first, end));
        }
    }

    fn check(&self) -> Result<(), String> {
        let Some(sink) = &self.sink else { return Ok(()) };
        let lost = sink.counters().lost;
        if self.left.store_full != StoreFull::DropOldest && lost > 0 {
            return Err(format!("{lost} lost"));
        }
        let known = self.taken + u64::from(self.hands.is_some() && self.skips == 0) + lost;
        if self.left.class == FlowClass::Reliable && known > self.made {
            return Err(format!("{} accepted and {lost} lost of {}", self.taken, self.made));
        }
        Ok(())
    }

    /// Writes a key that identifies the state: everything except counters that only grow.
    pub fn write_key(&self, key: &mut String) {
        key.clear();
        write!(key, "{self:?}").expect("writing to a string");
        for counters in ["SourceCounters {", "SinkCounters {"] {
            if let Some(from) = key.find(counters)
                && let Some(length) = key[from..].find('}')
            {
                key.replace_range(from..from + length, "");
            }
        }
        // Time stands still, and a retransmission that is rarer is the same move.
        if let Some(from) = key.find("timeouts: ")
            && let Some(length) = key[from..].find([',', '}'])
        {
            key.replace_range(from..from + length, "");
        }
        let lost = self.sink.as_ref().map_or(0, |sink| sink.counters().lost);
        write!(key, "{lost}").expect("writing to a string");
    }

    fn is_state(&self) -> bool {
        self.left.class == FlowClass::State
    }

    fn send(&mut self) -> bool {
        // A device is opened only for a host that requests it.
        if self.air.len().max(self.ahead.len()) == self.left.under_way || self.restarted[0] {
            return false;
        }
        let Some(source) = self.source.as_mut() else { return false };
        if self.up
            && let Some(record) = source.poll_retransmit(Time::ZERO)
        {
            self.transmit(record);
            return true;
        }
        if let Some(content) = self.resent.front() {
            let admitted = source.admit(Message::new(Time(*content), Vec::new()), Time::ZERO);
            let Admission::Record(record) = admitted else { return false };
            self.resent.pop_front();
            self.save_source();
            self.transmit(record);
            return true;
        }
        let is_new = !self.snapshot;
        if self.closed || is_new && self.made == self.left.messages {
            return false;
        }
        let content = self.made + u64::from(is_new);
        if self.is_state() && (self.silent || self.stale) {
            self.made = content;
            return true;
        }
        let Some(source) = self.source.as_mut() else { return false };
        match source.admit(Message::new(Time(content), Vec::new()), Time::ZERO) {
            Admission::Record(record) => {
                self.made = content;
                self.snapshot = false;
                self.save_source();
                self.transmit(record);
            }
            Admission::Full(_) => return false,
            Admission::Closed(_) => self.closed = true,
        }
        true
    }

    fn transmit(&mut self, record: Message) {
        if self.up {
            let bytes = record.body.into_bytes();
            let header = RecordHeader::parse(&bytes, BODY_BYTES_MAX).expect("a source writes whole records");
            match self.switched {
                None => self.air.push(header),
                Some(Switched::Source) => self.ahead.push(header),
                // Nobody reads this transport any more.
                Some(Switched::Sink) => {}
            }
        }
    }

    /// Saves the ticket before the peer learns its content. Acknowledgements alone do not change it.
    fn save_source(&mut self) {
        if let Some(source) = &self.source {
            self.saved.ticket = source.ticket();
        }
    }

    fn save_sink(&mut self) {
        if let Some(sink) = &self.sink {
            self.sink_ticket = sink.ticket(FLOW);
        }
    }

    fn arrive(&mut self, index: usize, for_good: bool) -> bool {
        let is_first = index == 0 || self.left.lossy;
        let Some(sink) = self.sink.as_mut().filter(|sink| self.left.lossy || !sink.is_full()) else {
            return false;
        };
        let Some(header) = self.air.get(index).copied().filter(|_| is_first && self.up) else { return false };
        if for_good {
            self.air.remove(index);
        }
        let message = Message::new(Time(header.container.created), Vec::new());
        if let Received::NewEpoch(message) = sink.handle(&header, message) {
            self.begin(header.epoch);
            if let Some(sink) = self.sink.as_mut() {
                sink.handle(&header, message);
            }
        }
        true
    }

    fn drop_record(&mut self, index: usize) -> bool {
        self.air.remove(index);
        true
    }

    fn begin(&mut self, epoch: u32) {
        self.begin_at_sink(epoch);
        self.send_begun();
        self.save_sink();
    }

    /// Accepted messages of a finished epoch do not come again.
    fn begin_at_sink(&mut self, epoch: u32) {
        let Some(sink) = self.sink.as_mut() else { return };
        if epoch > sink.epoch() {
            (self.taken_since, self.skips) = (0, 0);
        }
        sink.begin(epoch);
    }

    /// The source may request the next change after the sink has completed the last one.
    fn send_begun(&mut self) {
        if let (Some(sink), Some((following, _))) = (&self.sink, self.sink_ticket.upcoming) {
            let epoch = sink.epoch();
            if following <= epoch {
                self.to_source.push_back(control(FlowControl::Begun { epoch }));
            }
        }
    }

    fn hand_on(&mut self) -> bool {
        let Some(sink) = self.sink.as_mut().filter(|_| self.hands.is_none()) else { return false };
        if let Some(message) = sink.poll() {
            self.hands = Some((sink.epoch(), message.created.0));
            return true;
        }
        if !sink.is_over() {
            return false;
        }
        sink.advance();
        self.taken_since = self.skips;
        self.send_begun();
        self.save_sink();
        true
    }

    /// The partner accepts a message, and the ticket is saved atomically.
    fn take(&mut self) -> Result<bool, String> {
        let (Some(sink), Some((epoch, content))) = (self.sink.as_mut(), self.hands) else { return Ok(false) };
        self.hands = None;
        if self.skips > 0 {
            self.skips -= 1;
            return Ok(true);
        }
        let (last_epoch, last) = self.last;
        let is_right = match (self.left.class, self.left.store_full) {
            (FlowClass::State, _) if epoch == last_epoch => content == last + 1,
            (FlowClass::State, _) => epoch > last_epoch && content >= last,
            (_, StoreFull::DropOldest) => epoch >= last_epoch && content > last,
            _ => epoch >= last_epoch && content == last + 1,
        };
        if !is_right {
            return Err(format!(
                "{content} of epoch {epoch} was delivered after {last} of epoch {last_epoch}"
            ));
        }
        if self.left.class == FlowClass::State && sink.is_abandoned() {
            return Err(format!("{content} was delivered after its epoch was abandoned"));
        }
        if self.left.remembers {
            self.taken_since += 1
        } else {
            sink.handle_delivered()
        }
        self.last = (epoch, content);
        self.taken += 1;
        self.seen = Some(content);
        self.save_sink();
        Ok(true)
    }

    fn acknowledge(&mut self) -> bool {
        let Some(sink) = self.sink.as_mut().filter(|sink| sink.epoch() > 0) else { return false };
        if self.hands.is_none() && self.skips == 0 {
            sink.handle_delivered();
            self.taken_since = 0;
        }
        let acknowledge = control(FlowControl::Acknowledge { epoch: sink.epoch(), next: sink.delivered() });
        self.save_sink();
        self.send_repeatable(acknowledge)
    }

    fn miss(&mut self) -> bool {
        let Some(sink) = self.sink.as_ref().filter(|sink| self.left.lossy && sink.has_gap()) else {
            return false;
        };
        self.send_repeatable(control(FlowControl::Missing { epoch: sink.epoch(), ranges: sink.missing() }))
    }

    /// Sends a control message that may be repeated: if too many are in flight, the oldest is lost.
    fn send_repeatable(&mut self, message: Control) -> bool {
        if !self.up || self.acknowledgements.contains(&message) {
            return false;
        }
        if self.acknowledgements.len() == ACKNOWLEDGEMENTS_MAX {
            self.acknowledgements.remove(0);
        }
        self.acknowledgements.push(message);
        true
    }

    fn receive_acknowledged(&mut self, index: usize) -> bool {
        if !self.up || self.source.is_none() || index >= self.acknowledgements.len() {
            return false;
        }
        let message = self.acknowledgements.remove(index);
        self.receive_at_source(&message);
        true
    }

    fn timeout(&mut self) -> bool {
        let Some(source) = self.source.as_mut().filter(|_| self.up) else { return false };
        let Some(at) = source.poll_timeout(Duration::ZERO) else { return false };
        source.handle_timeout(at, Duration::ZERO);
        true
    }

    fn send_gone(&mut self) -> bool {
        let Some(source) = self.source.as_mut().filter(|_| self.up) else { return false };
        let Some((epoch, sequence)) = source.poll_trimmed() else { return false };
        self.to_sink.push_back(control(FlowControl::Trimmed { epoch, sequence }));
        true
    }

    fn receive_next_at_sink(&mut self) -> bool {
        let Some(message) = self.to_sink.pop_front_if(|_| self.sink.is_some()) else { return false };
        self.receive_at_sink(&message);
        true
    }

    fn receive_next_at_source(&mut self) -> bool {
        let Some(message) = self.to_source.pop_front_if(|_| self.source.is_some()) else { return false };
        self.receive_at_source(&message);
        true
    }

    /// A control message of the source arrives at the sink.
    pub fn receive_at_sink(&mut self, message: &Control) {
        let Some(sink) = self.sink.as_mut() else { return };
        match message {
            Control::Flow { message: FlowControl::Epoch { epoch, prev, continues, .. }, .. } => {
                let following = self.sink_ticket.upcoming.is_some_and(|(following, _)| following == *epoch);
                if *continues && *epoch > sink.epoch() && following {
                    self.begin_at_sink(prev.0);
                    let Some(sink) = self.sink.as_mut() else { return };
                    sink.expect_end(prev.1);
                    if sink.is_abandoned() {
                        let epoch = sink.epoch();
                        self.to_source.push_back(control(FlowControl::Resync { epoch }));
                    }
                } else {
                    sink.handle_epoch_end(prev.0, prev.1);
                    self.begin_at_sink(*epoch);
                }
            }
            Control::Flow { message: FlowControl::Trimmed { epoch, sequence, .. }, .. } => {
                sink.handle_trimmed(*epoch, *sequence)
            }
            Control::Flow { message: FlowControl::Change { epoch, .. }, .. } => {
                let refusal = (!sink.expect(*epoch)).then(|| "not now".into());
                self.to_source.push_back(control(FlowControl::Changed { epoch: *epoch, refusal }));
            }
            other => panic!("a source does not send {other:?}"),
        }
        self.send_begun();
        self.save_sink();
    }

    /// A control message of the sink arrives at the source.
    pub fn receive_at_source(&mut self, message: &Control) {
        let Some(source) = self.source.as_mut() else { return };
        match message {
            Control::Flow { message: FlowControl::Acknowledge { epoch, next, .. }, .. } => {
                source.handle_acknowledge(*epoch, *next, Time::ZERO)
            }
            Control::Flow { message: FlowControl::Missing { epoch, ranges, .. }, .. } => {
                source.handle_missing(*epoch, ranges)
            }
            Control::Flow { message: FlowControl::Resync { epoch, .. }, .. } if *epoch == source.epoch() => {
                self.restart()
            }
            Control::Flow { message: FlowControl::Changed { epoch, refusal, .. }, .. }
                if self.change == Some((*epoch, false)) =>
            {
                self.change = refusal.is_none().then_some((*epoch, true));
                if refusal.is_none() {
                    source.continue_in(*epoch);
                    self.send_epoch();
                }
            }
            Control::Flow { message: FlowControl::Begun { epoch, .. }, .. } => {
                source.handle_acknowledge(*epoch, 0, Time::ZERO);
                self.change.take_if(|(change, has_begun)| *has_begun && epoch >= change);
            }
            _ => {}
        }
    }

    /// Only a state flow restarts by itself, with a snapshot.
    fn restart(&mut self) {
        if let Some(source) = self.source.as_mut() {
            source.restart();
            let epoch = source.epoch();
            self.change.take_if(|(change, has_begun)| !*has_begun && *change <= epoch);
            (self.stale, self.snapshot) = (false, true);
            self.send_epoch();
        }
    }

    fn send_epoch(&mut self) {
        self.save_source();
        if let Some(source) = &self.source {
            let (epoch, prev, continues) = (source.epoch(), source.prev(), source.continues());
            self.to_sink.push_back(control(FlowControl::Epoch { epoch, prev, continues }));
        }
    }

    fn begin_change(&mut self) -> bool {
        let Some(source) = &self.source else { return false };
        let epoch = source.epoch() + EPOCHS_AHEAD;
        self.change = Some((epoch, false));
        self.to_sink.push_back(control(FlowControl::Change { epoch, pipeline: String::new() }));
        true
    }

    fn cut(&mut self) -> bool {
        self.up = false;
        self.switched = None;
        self.ahead.clear();
        self.air.clear();
        self.acknowledgements.clear();
        if let Some(source) = self.source.as_mut() {
            source.handle_link_lost();
        }
        true
    }

    fn join(&mut self) -> Result<bool, String> {
        if self.up || self.source.is_none() || self.sink.is_none() {
            return Ok(false);
        }
        self.rebuild()?;
        let (Some(source), Some(sink)) = (self.source.as_mut(), &self.sink) else { return Ok(false) };
        self.up = true;
        self.silent = false;
        self.sink_silent = false;
        if sink.is_abandoned() {
            self.to_source.push_back(control(FlowControl::Resync { epoch: sink.epoch() }));
        }
        source.handle_link(Time::ZERO);
        if self.stale {
            self.restart()
        } else {
            self.send_epoch()
        }
        Ok(true)
    }

    /// One host has lost the session: the other rebuilds its half too.
    fn rebuild(&mut self) -> Result<(), String> {
        let [at_source, at_sink] = std::mem::take(&mut self.restarted);
        if at_source {
            // The state that the source's broker retained is lost, and the sink's records of that session are
            // abandoned.
            self.begin_sink();
            (self.last, self.taken, self.held) = ((0, self.made), self.made, None);
            self.passed = None;
        } else if at_sink {
            let unacknowledged: VecDeque<u64> =
                self.source.iter().flat_map(SourceFlow::stored).map(|record| record.created.0).collect();
            let behind = unacknowledged.front().or(self.resent.front()).map_or(self.made, |first| first - 1);
            let gone = self.passed.filter(|(first, _)| *first > behind);
            let come_again = unacknowledged.len() as u64 + gone.map_or(0, |(first, end)| end + 1 - first);
            // Messages that were accepted but not acknowledged come again. No more than the stored records may.
            if behind > self.taken || self.taken - behind > come_again {
                return Err(format!(
                    "{} were accepted, and {unacknowledged:?} of {} are sent again",
                    self.taken, self.made
                ));
            }
            self.resent = unacknowledged.into_iter().chain(std::mem::take(&mut self.resent)).collect();
            self.begin_source();
            (self.last, self.taken, self.held) = ((0, behind), behind, gone.or(self.held));
        }
        Ok(())
    }

    fn begin_source(&mut self) {
        let source = SourceFlow::new(FLOW, self.left.class, self.left.lossy, &self.left.limits());
        self.saved = SavedSource { ticket: source.ticket(), records: Vec::new() };
        self.source = Some(source);
        self.change = None;
    }

    fn begin_sink(&mut self) {
        let sink = SinkFlow::new(self.left.class, &self.left.limits());
        self.sink_ticket = sink.ticket(FLOW);
        self.sink = Some(sink);
        self.hands = None;
        (self.taken_since, self.skips) = (0, 0);
    }

    fn kill_source_broker(&mut self) -> bool {
        self.end_session();
        self.begin_source();
        self.resent.clear();
        self.restarted[0] = true;
        true
    }

    fn kill_sink_broker(&mut self) -> bool {
        self.end_session();
        self.begin_sink();
        self.restarted[1] = true;
        true
    }

    fn end_session(&mut self) {
        self.cut();
        self.to_sink.clear();
        self.to_source.clear();
    }

    /// The source leaves a link that may still work for a new one.
    fn switch_source(&mut self) -> bool {
        let is_second = self.switched == Some(Switched::Sink);
        let begins =
            is_second || self.switched.is_none() && self.sink.is_some() && spend(&mut self.left.switches);
        let Some(source) = self.source.as_mut().filter(|_| self.up && begins) else { return false };
        self.switched = if is_second { None } else { Some(Switched::Source) };
        source.handle_link_lost();
        source.handle_link(Time::ZERO);
        self.send_epoch();
        true
    }

    fn switch_sink(&mut self) -> bool {
        let is_second = self.switched == Some(Switched::Source);
        let begins =
            is_second || self.switched.is_none() && self.source.is_some() && spend(&mut self.left.switches);
        if !self.up || self.sink.is_none() || !begins {
            return false;
        }
        self.switched = if is_second { None } else { Some(Switched::Sink) };
        self.air = std::mem::take(&mut self.ahead);
        true
    }

    fn fall_silent_at_source(&mut self) -> bool {
        let falls = self.is_state() && !self.up && !self.silent;
        if falls {
            (self.silent, self.stale) = (true, true);
        }
        falls
    }

    fn fall_silent_at_sink(&mut self) -> bool {
        let falls = self.is_state() && !self.up && !self.sink_silent && self.sink.is_some();
        if falls {
            self.sink_silent = true;
            self.give_up();
        }
        falls
    }

    /// The sink abandons its epoch, and the application's node is neutral.
    fn give_up(&mut self) {
        if let Some(sink) = self.sink.as_mut().filter(|sink| !sink.is_abandoned()) {
            sink.abandon();
        }
        (self.hands, self.seen) = (None, None);
        self.save_sink();
    }

    fn kill_source(&mut self) -> bool {
        if let Some(source) = self.source.take() {
            self.saved.records = source.stored().collect();
            if let (Some(first), Some(last)) = (self.resent.front(), self.resent.back()) {
                self.held = Some((self.held.map_or(*first, |(known, _)| known), *last));
                self.resent.clear();
            }
        }
        self.change = None;
        self.snapshot = false;
        self.cut()
    }

    fn start_source(&mut self) -> Result<bool, String> {
        if self.source.is_some() {
            return Ok(false);
        }
        let (class, lossy) = (self.left.class, self.left.lossy);
        let records = std::mem::take(&mut self.saved.records);
        let source = SourceFlow::resume(&self.saved.ticket, records, class, lossy, &self.left.limits());
        self.source = Some(source.map_err(|error| error.to_string())?);
        self.stale = self.is_state();
        Ok(true)
    }

    fn kill_sink(&mut self) -> bool {
        self.sink = None;
        self.hands = None;
        self.cut()
    }

    fn start_sink(&mut self) -> Result<bool, String> {
        if self.sink.is_some() {
            return Ok(false);
        }
        let sink = SinkFlow::resume(&self.sink_ticket, self.left.class, &self.left.limits());
        self.sink = Some(sink.map_err(|error| error.to_string())?);
        self.skips = self.taken_since;
        if self.is_state() {
            self.give_up();
        }
        Ok(true)
    }

    /// Takes the control messages in flight, so that the caller can deliver them: to the sink, and to the
    /// source.
    pub fn take_controls(&mut self) -> (VecDeque<Control>, VecDeque<Control>) {
        let mut to_source = std::mem::take(&mut self.to_source);
        to_source.extend(self.acknowledgements.drain(..));
        (std::mem::take(&mut self.to_sink), to_source)
    }

    /// The device makes no more messages.
    pub fn stop_device(&mut self) {
        self.left.messages = self.made;
    }

    /// Returns true if the link is up.
    pub fn is_up(&self) -> bool {
        self.up
    }

    /// Returns true for each process that runs: the source's and the sink's.
    pub fn is_alive(&self) -> (bool, bool) {
        (self.source.is_some(), self.sink.is_some())
    }
}

/// Uses up one, if any are left.
fn spend(left: &mut u32) -> bool {
    let some = *left > 0;
    *left -= u32::from(some);
    some
}
