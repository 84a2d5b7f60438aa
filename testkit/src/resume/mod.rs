//! Two hosts and one flow as a small world in which everything may happen that can: what a network does to records
//! and words, links that end, processes that are killed and go on from their tickets, pipelines that change,
//! another transport in the place of the first, brokers that are killed with all that was kept.
//!
//! A [`World`] has no time and no randomness of its own: somebody chooses the next [`Move`], and whatever the choice,
//! what the flow promises holds, or [`World::step`] says what was broken. The halves are driven as the runtime
//! drives them. Messages are empty; what they say is their creation time: the count of messages so far.

mod scope;

pub use scope::{Move, Scope};

use contract::{FlowClass, Message, Time};
use session::{Admission, Received, SinkFlow, SourceFlow, StoreFull};
use std::collections::VecDeque;
use std::fmt::Write;
use std::time::Duration;
use wire::ticket::{SinkTicket, SourceTicket};
use wire::{BODY_BYTES_MAX, Control, RecordHeader};

const FLOW: u32 = 7;
/// How far ahead of the current epoch a change's stands.
const EPOCHS_AHEAD: u32 = 2;
/// Acknowledgements under way at once.
const ACKNOWLEDGEMENTS_MAX: usize = 2;

/// Who has taken the other transport, while the one has and the other has not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Switched {
    Source,
    Sink,
}

/// What the broker keeps of the source: its ticket, and the records while there is no process.
#[derive(Debug, Clone)]
struct KeptSource {
    ticket: SourceTicket,
    records: Vec<Message>,
}

/// Two hosts and one flow.
#[derive(Debug, Clone)]
pub struct World {
    /// What may still happen.
    left: Scope,
    up: bool,
    source: Option<SourceFlow>,
    kept: KeptSource,
    /// The epoch of a change that the sink was told, and whether it has begun here.
    change: Option<(u32, bool)>,
    /// State: the other host is not heard; what it knows is not to be relied on; where things stand is to be said.
    silent: bool,
    stale: bool,
    snapshot: bool,
    sink: Option<SinkFlow>,
    sink_ticket: SinkTicket,
    sink_silent: bool,
    /// Taken behind what the sink's ticket says; and of that, so many that come again.
    taken_since: u64,
    skips: u64,
    /// Epoch and content of what was handed on and not taken yet.
    hands: Option<(u32, u64)>,
    air: Vec<RecordHeader>,
    /// A change of transport: who is ahead, and what is under way where the sink does not look yet.
    switched: Option<Switched>,
    ahead: Vec<RecordHeader>,
    /// Hosts whose brokers have begun anew, of which the other does not know yet: the source's, the sink's.
    anew: [bool; 2],
    /// What the source's host had sent to a sink that is no more, and says again.
    legacy: VecDeque<u64>,
    /// Of that, the first and last that a killed process held and nobody else: counted, and gone.
    held: Option<(u64, u64)>,
    /// What of that was passed over last: it is as gone if what was taken before it comes again.
    passed: Option<(u64, u64)>,
    acknowledgements: Vec<Control>,
    to_sink: VecDeque<Control>,
    to_source: VecDeque<Control>,
    /// Messages that the device made.
    made: u64,
    closed: bool,
    /// Epoch and content of the last message taken, and how many were.
    last: (u32, u64),
    taken: u64,
    /// State: what the application sees; none is neutral.
    seen: Option<u64>,
}

impl World {
    /// A link that is up, but for a state flow, whose first words are those of a new link.
    pub fn new(scope: &Scope) -> World {
        let limits = scope.limits();
        let source = SourceFlow::new(FLOW, scope.class, scope.lossy, &limits);
        let sink = SinkFlow::new(scope.class, &limits);
        let is_state = scope.class == FlowClass::State;
        World {
            left: scope.clone(),
            up: !is_state,
            kept: KeptSource { ticket: source.ticket(), records: Vec::new() },
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
            anew: [false; 2],
            legacy: VecDeque::new(),
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

    /// Makes a move; says whether it could be made, or what promise was broken.
    pub fn step(&mut self, made: Move) -> Result<bool, String> {
        let done = match made {
            Move::Send => self.send(),
            Move::Arrive(index) => self.arrive(index.into(), true),
            Move::HandOn => self.hand_on(),
            Move::Take => self.take()?,
            Move::Acknowledge => self.acknowledge(),
            Move::Miss => self.miss(),
            Move::Acknowledged(index) => self.hear_acknowledged(index.into()),
            Move::Timeout => self.timeout(),
            Move::TellGone => self.tell_gone(),
            Move::HearAtSink => self.up && self.hear_next_at_sink(),
            Move::HearAtSource => self.up && self.hear_next_at_source(),
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
        self.pass_over_held();
        self.check()?;
        Ok(done)
    }

    /// Whether everything that the device made came to its end, in this link and with these processes.
    pub fn is_done(&self) -> bool {
        let (Some(source), Some(sink)) = (&self.source, &self.sink) else { return false };
        let settled = self.up && (self.closed || self.made == self.left.messages);
        settled
            && match self.left.class {
                FlowClass::State => self.seen == Some(self.made) && sink.epoch() == source.epoch(),
                _ => {
                    source.is_settled()
                        && self.legacy.is_empty()
                        && self.hands.is_none()
                        && self.taken + sink.counters().lost == self.made
                }
            }
    }

    /// What is gone and counted is not waited for.
    fn pass_over_held(&mut self) {
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
            return Err(format!("{} taken and {lost} lost of {}", self.taken, self.made));
        }
        Ok(())
    }

    /// What tells this state from others: everything but figures that only grow.
    pub fn write_key(&self, key: &mut String) {
        key.clear();
        write!(key, "{self:?}").expect("a string takes everything");
        for counters in ["SourceCounters {", "SinkCounters {"] {
            if let Some(from) = key.find(counters)
                && let Some(length) = key[from..].find('}')
            {
                key.replace_range(from..from + length, "");
            }
        }
        let lost = self.sink.as_ref().map_or(0, |sink| sink.counters().lost);
        write!(key, "{lost}").expect("a string takes everything");
    }

    fn is_state(&self) -> bool {
        self.left.class == FlowClass::State
    }

    fn send(&mut self) -> bool {
        // A device is opened for who asks for it.
        if self.air.len().max(self.ahead.len()) == self.left.under_way || self.anew[0] {
            return false;
        }
        let Some(source) = self.source.as_mut() else { return false };
        if self.up
            && let Some(record) = source.poll_resend(Time::ZERO)
        {
            self.transmit(record);
            return true;
        }
        if let Some(content) = self.legacy.front() {
            let admitted = source.admit(Message::new(Time(*content), Vec::new()), Time::ZERO);
            let Admission::Record(record) = admitted else { return false };
            self.legacy.pop_front();
            self.keep_source();
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
                self.keep_source();
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
                // Nobody looks there any more.
                Some(Switched::Sink) => {}
            }
        }
    }

    /// The ticket is there before what it says is told. Acknowledgements alone do not change it.
    fn keep_source(&mut self) {
        if let Some(source) = &self.source {
            self.kept.ticket = source.ticket();
        }
    }

    fn keep_sink(&mut self) {
        if let Some(sink) = &self.sink {
            self.sink_ticket = sink.ticket(FLOW);
        }
    }

    fn arrive(&mut self, index: usize, for_good: bool) -> bool {
        let is_first = index == 0 || self.left.lossy;
        let Some(sink) = self.sink.as_mut().filter(|sink| self.left.lossy || !sink.is_waiting()) else {
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
        self.tell_begun();
        self.keep_sink();
    }

    /// What was taken of an epoch that is over does not come again.
    fn begin_at_sink(&mut self, epoch: u32) {
        let Some(sink) = self.sink.as_mut() else { return };
        if epoch > sink.epoch() {
            (self.taken_since, self.skips) = (0, 0);
        }
        sink.begin(epoch);
    }

    /// The source may wish another change once the sink is where the last one led to.
    fn tell_begun(&mut self) {
        if let (Some(sink), Some((following, _))) = (&self.sink, self.sink_ticket.following) {
            let epoch = sink.epoch();
            if following <= epoch {
                self.to_source.push_back(Control::Begun { flow: FLOW, epoch });
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
        self.tell_begun();
        self.keep_sink();
        true
    }

    /// The partner takes a message and, in the same breath, that it did is kept.
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
                "{content} of epoch {epoch} was handed on behind {last} of epoch {last_epoch}"
            ));
        }
        if self.left.class == FlowClass::State && sink.is_given_up() {
            return Err(format!("{content} was handed on after its epoch was given up"));
        }
        match self.left.remembers {
            true => self.taken_since += 1,
            false => sink.handle_taken(),
        }
        self.last = (epoch, content);
        self.taken += 1;
        self.seen = Some(content);
        self.keep_sink();
        Ok(true)
    }

    fn acknowledge(&mut self) -> bool {
        let Some(sink) = self.sink.as_mut().filter(|sink| sink.epoch() > 0) else { return false };
        if self.hands.is_none() && self.skips == 0 {
            sink.handle_taken();
            self.taken_since = 0;
        }
        let acknowledge = Control::Acknowledge { flow: FLOW, epoch: sink.epoch(), next: sink.taken() };
        self.keep_sink();
        self.say_again(acknowledge)
    }

    fn miss(&mut self) -> bool {
        let Some(sink) = self.sink.as_ref().filter(|sink| self.left.lossy && sink.has_gap()) else {
            return false;
        };
        self.say_again(Control::Missing { flow: FLOW, epoch: sink.epoch(), ranges: sink.missing() })
    }

    /// Says what could be said again: if too much is under way already, the oldest of it is lost.
    fn say_again(&mut self, word: Control) -> bool {
        if !self.up || self.acknowledgements.contains(&word) {
            return false;
        }
        if self.acknowledgements.len() == ACKNOWLEDGEMENTS_MAX {
            self.acknowledgements.remove(0);
        }
        self.acknowledgements.push(word);
        true
    }

    fn hear_acknowledged(&mut self, index: usize) -> bool {
        if !self.up || self.source.is_none() || index >= self.acknowledgements.len() {
            return false;
        }
        let word = self.acknowledgements.remove(index);
        self.hear_at_source(&word);
        true
    }

    fn timeout(&mut self) -> bool {
        let Some(source) = self.source.as_mut().filter(|_| self.up) else { return false };
        let Some(at) = source.poll_timeout(Duration::ZERO) else { return false };
        source.handle_timeout(at, Duration::ZERO);
        true
    }

    fn tell_gone(&mut self) -> bool {
        let Some(source) = self.source.as_mut().filter(|_| self.up) else { return false };
        let Some((epoch, sequence)) = source.poll_gone() else { return false };
        self.to_sink.push_back(Control::Gone { flow: FLOW, epoch, sequence });
        true
    }

    fn hear_next_at_sink(&mut self) -> bool {
        let Some(word) = self.to_sink.pop_front_if(|_| self.sink.is_some()) else { return false };
        self.hear_at_sink(&word);
        true
    }

    fn hear_next_at_source(&mut self) -> bool {
        let Some(word) = self.to_source.pop_front_if(|_| self.source.is_some()) else { return false };
        self.hear_at_source(&word);
        true
    }

    /// A word of the source comes to the sink.
    pub fn hear_at_sink(&mut self, word: &Control) {
        let Some(sink) = self.sink.as_mut() else { return };
        match word {
            Control::Epoch { epoch, before, goes_on, .. } => {
                let following = self.sink_ticket.following.is_some_and(|(following, _)| following == *epoch);
                if *goes_on && *epoch > sink.epoch() && following {
                    self.begin_at_sink(before.0);
                    let Some(sink) = self.sink.as_mut() else { return };
                    sink.expect_end(before.1);
                    if sink.is_given_up() {
                        let epoch = sink.epoch();
                        self.to_source.push_back(Control::Resync { flow: FLOW, epoch });
                    }
                } else {
                    sink.handle_past(before.0, before.1);
                    self.begin_at_sink(*epoch);
                }
            }
            Control::Gone { epoch, sequence, .. } => sink.handle_gone(*epoch, *sequence),
            Control::Change { epoch, .. } => {
                let refusal = (!sink.expect(*epoch)).then(|| "not now".into());
                self.to_source.push_back(Control::Changed { flow: FLOW, epoch: *epoch, refusal });
            }
            other => panic!("a source does not say {other:?}"),
        }
        self.tell_begun();
        self.keep_sink();
    }

    /// A word of the sink comes to the source.
    pub fn hear_at_source(&mut self, word: &Control) {
        let Some(source) = self.source.as_mut() else { return };
        match word {
            Control::Acknowledge { epoch, next, .. } => source.handle_acknowledge(*epoch, *next),
            Control::Missing { epoch, ranges, .. } => source.handle_missing(*epoch, ranges),
            Control::Resync { epoch, .. } if *epoch == source.epoch() => self.restart(),
            Control::Changed { epoch, refusal, .. } if self.change == Some((*epoch, false)) => {
                self.change = refusal.is_none().then_some((*epoch, true));
                if refusal.is_none() {
                    source.go_on(*epoch);
                    self.tell_epoch();
                }
            }
            Control::Begun { epoch, .. } => {
                source.handle_acknowledge(*epoch, 0);
                self.change.take_if(|(change, has_begun)| *has_begun && epoch >= change);
            }
            _ => {}
        }
    }

    /// Only a state flow begins anew of its own accord, and says where things stand.
    fn restart(&mut self) {
        if let Some(source) = self.source.as_mut() {
            source.restart();
            let epoch = source.epoch();
            self.change.take_if(|(change, has_begun)| !*has_begun && *change <= epoch);
            (self.stale, self.snapshot) = (false, true);
            self.tell_epoch();
        }
    }

    fn tell_epoch(&mut self) {
        self.keep_source();
        if let Some(source) = &self.source {
            let (epoch, before, goes_on) = (source.epoch(), source.before(), source.goes_on());
            self.to_sink.push_back(Control::Epoch { flow: FLOW, epoch, before, goes_on });
        }
    }

    fn begin_change(&mut self) -> bool {
        let Some(source) = &self.source else { return false };
        let epoch = source.epoch() + EPOCHS_AHEAD;
        self.change = Some((epoch, false));
        self.to_sink.push_back(Control::Change { flow: FLOW, epoch, pipeline: String::new() });
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
        self.build_anew()?;
        let (Some(source), Some(sink)) = (self.source.as_mut(), &self.sink) else { return Ok(false) };
        self.up = true;
        self.silent = false;
        self.sink_silent = false;
        if sink.is_given_up() {
            self.to_source.push_back(Control::Resync { flow: FLOW, epoch: sink.epoch() });
        }
        source.handle_link(Time::ZERO);
        match self.stale {
            true => self.restart(),
            false => self.tell_epoch(),
        }
        Ok(true)
    }

    /// A session of which one host knows nothing: the other builds its half anew as well.
    fn build_anew(&mut self) -> Result<(), String> {
        let [at_source, at_sink] = std::mem::take(&mut self.anew);
        if at_source {
            // What the first broker kept is gone, and what the sink held of its session is given up.
            self.begin_sink();
            (self.last, self.taken, self.held) = ((0, self.made), self.made, None);
            self.passed = None;
        } else if at_sink {
            let unacknowledged: VecDeque<u64> =
                self.source.iter().flat_map(SourceFlow::kept).map(|record| record.created.0).collect();
            let behind = unacknowledged.front().or(self.legacy.front()).map_or(self.made, |first| first - 1);
            let gone = self.passed.filter(|(first, _)| *first > behind);
            let come_again = unacknowledged.len() as u64 + gone.map_or(0, |(first, end)| end + 1 - first);
            // What was taken and not acknowledged comes again: it is in doubt, and no more than is kept.
            if behind > self.taken || self.taken - behind > come_again {
                return Err(format!(
                    "{} were taken, and {unacknowledged:?} of {} are said again",
                    self.taken, self.made
                ));
            }
            self.legacy = unacknowledged.into_iter().chain(std::mem::take(&mut self.legacy)).collect();
            self.begin_source();
            (self.last, self.taken, self.held) = ((0, behind), behind, gone.or(self.held));
        }
        Ok(())
    }

    fn begin_source(&mut self) {
        let source = SourceFlow::new(FLOW, self.left.class, self.left.lossy, &self.left.limits());
        self.kept = KeptSource { ticket: source.ticket(), records: Vec::new() };
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
        self.legacy.clear();
        self.anew[0] = true;
        true
    }

    fn kill_sink_broker(&mut self) -> bool {
        self.end_session();
        self.begin_sink();
        self.anew[1] = true;
        true
    }

    fn end_session(&mut self) {
        self.cut();
        self.to_sink.clear();
        self.to_source.clear();
    }

    /// The source leaves a link that may live, for one that is new.
    fn switch_source(&mut self) -> bool {
        let is_second = self.switched == Some(Switched::Sink);
        let begins =
            is_second || self.switched.is_none() && self.sink.is_some() && spend(&mut self.left.switches);
        let Some(source) = self.source.as_mut().filter(|_| self.up && begins) else { return false };
        self.switched = if is_second { None } else { Some(Switched::Source) };
        source.handle_link_lost();
        source.handle_link(Time::ZERO);
        self.tell_epoch();
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

    /// The sink relies on nothing that was said before, and the application's node is neutral.
    fn give_up(&mut self) {
        if let Some(sink) = self.sink.as_mut().filter(|sink| !sink.is_given_up()) {
            sink.give_up();
        }
        (self.hands, self.seen) = (None, None);
        self.keep_sink();
    }

    fn kill_source(&mut self) -> bool {
        if let Some(source) = self.source.take() {
            self.kept.records = source.kept().collect();
            if let (Some(first), Some(last)) = (self.legacy.front(), self.legacy.back()) {
                self.held = Some((self.held.map_or(*first, |(known, _)| known), *last));
                self.legacy.clear();
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
        let records = std::mem::take(&mut self.kept.records);
        let source = SourceFlow::resume(&self.kept.ticket, records, class, lossy, &self.left.limits());
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

    /// What is said and has not come, to be carried by somebody else: to the sink, and to the source.
    pub fn take_words(&mut self) -> (VecDeque<Control>, VecDeque<Control>) {
        let mut to_source = std::mem::take(&mut self.to_source);
        to_source.extend(self.acknowledgements.drain(..));
        (std::mem::take(&mut self.to_sink), to_source)
    }

    /// The device makes nothing more.
    pub fn stop_making(&mut self) {
        self.left.messages = self.made;
    }

    /// Whether the link is there.
    pub fn is_up(&self) -> bool {
        self.up
    }

    /// Whether there is a process at the source, and one at the sink.
    pub fn is_alive(&self) -> (bool, bool) {
        (self.source.is_some(), self.sink.is_some())
    }
}

/// Uses one up, if there is one left.
fn spend(left: &mut u32) -> bool {
    let some = *left > 0;
    *left -= u32::from(some);
    some
}
