//! Two hosts in one process, in virtual time: one flow between them, over one modelled link for records and
//! another for the control channel, driven as the runtime does. The same seed gives the same run.

use crate::clock::VirtualClock;
use contract::{Body, FlowClass, Message, Time};
use netsim::{Link, Params};
use session::{Admission, ControlChannel, Limits, Received, SinkFlow, SourceFlow};
use std::collections::VecDeque;
use std::time::Duration;
use wire::{BODY_BYTES_MAX, Control, FlowControl, RecordHeader};

/// The size of a packet of the control connection in bytes.
const SEGMENT_BYTES: usize = 1400;
/// The delay of acknowledgements.
const ACKNOWLEDGE_WAIT: Duration = Duration::from_millis(5);
/// The tolerated duration of a gap: it may be mere reordering.
const REORDER_WAIT: Duration = Duration::from_millis(5);
/// The shortest time between two requests for missing records.
const MISSING_INTERVAL: Duration = Duration::from_millis(20);
/// The time between two acknowledgements of control messages, as pings carry them.
const PING_INTERVAL: Duration = Duration::from_millis(100);
const FLOW: u32 = 7;

/// The setup of two hosts.
#[derive(Debug, Clone)]
pub struct PeersSetup {
    /// The class of the flow.
    pub class: FlowClass,
    /// The transport may lose, repeat and reorder records. Its model does so only then.
    pub lossy: bool,
    /// The link for records.
    pub data: Params,
    /// The delay of the control channel. It is a stream, so it has no other faults.
    pub control_delay: Duration,
    /// The limits of both hosts.
    pub limits: Limits,
    /// The seed of all random numbers.
    pub seed: u64,
}

/// A message that the sink has delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivered {
    /// The time of delivery.
    pub at: Time,
    /// The epoch of the record.
    pub epoch: u32,
    /// Its body.
    pub body: Body,
}

/// Two hosts and one flow.
pub struct Peers {
    clock: VirtualClock,
    round_trip: Duration,
    lossy: bool,
    up: bool,
    data_up: Params,
    source: SourceFlow,
    source_channel: ControlChannel,
    /// Messages that wait for room in the flow.
    waiting: VecDeque<Message>,
    sink: SinkFlow,
    sink_channel: ControlChannel,
    acknowledged: Option<u64>,
    acknowledge_at: Option<Time>,
    missing_at: Option<Time>,
    ping_at: Time,
    data: Link<Vec<u8>>,
    to_sink: Link<Vec<u8>>,
    to_source: Link<Vec<u8>>,
    delivered: Vec<Delivered>,
}

impl Peers {
    /// Two hosts whose link is up.
    pub fn new(setup: PeersSetup) -> Self {
        let delay_ns = setup.control_delay.as_nanos() as u64;
        let control = Params { delay_ns, queue_packets: 1 << 20, ..Params::default() };
        Peers {
            clock: VirtualClock::new(Time::from_millis(1000)),
            round_trip: setup.control_delay * 2,
            lossy: setup.lossy,
            up: true,
            source: SourceFlow::new(FLOW, setup.class, setup.lossy, &setup.limits),
            source_channel: ControlChannel::new(setup.limits.control_bytes),
            waiting: VecDeque::new(),
            sink: SinkFlow::new(setup.class, &setup.limits),
            sink_channel: ControlChannel::new(setup.limits.control_bytes),
            acknowledged: None,
            acknowledge_at: None,
            missing_at: None,
            ping_at: Time::ZERO,
            data: Link::new(setup.data.clone(), setup.seed),
            data_up: setup.data,
            to_sink: Link::new(control.clone(), setup.seed),
            to_source: Link::new(control, setup.seed),
            delivered: Vec::new(),
        }
    }

    /// The current time.
    pub fn now(&self) -> Time {
        self.clock.now()
    }

    /// The application at the source sends a message.
    pub fn send(&mut self, body: impl Into<Body>) {
        self.waiting.push_back(Message::new(self.now(), body));
        self.pump();
    }

    /// Cuts the link. Everything in flight is lost.
    pub fn cut(&mut self) {
        let now = self.now().0;
        self.up = false;
        for link in [&mut self.data, &mut self.to_sink, &mut self.to_source] {
            let down = Params { down: true, ..link.params().clone() };
            link.configure(now, down);
        }
    }

    /// Restores the link. Both hosts resume the session.
    pub fn join(&mut self) {
        let now = self.now().0;
        self.up = true;
        self.data.configure(now, self.data_up.clone());
        for link in [&mut self.to_sink, &mut self.to_source] {
            let up = Params { down: false, ..link.params().clone() };
            link.configure(now, up);
        }
        let (at_source, at_sink) = (self.source_channel.received(), self.sink_channel.received());
        self.source_channel.resume(at_sink, None).expect("the sink counts its messages");
        self.sink_channel.resume(at_source, None).expect("the source counts its messages");
        self.source.handle_link(self.now());
        self.pump();
    }

    /// The sink abandons this epoch and requests another.
    pub fn give_up(&mut self) {
        self.sink.abandon();
        self.ask_anew();
        self.pump();
    }

    fn ask_anew(&mut self) {
        let resync = Control::Flow { flow: FLOW, message: FlowControl::Resync { epoch: self.sink.epoch() } };
        say(&mut self.sink_channel, self.up, &resync);
    }

    /// The source begins an epoch, as for a change of the pipeline.
    pub fn restart(&mut self) {
        self.source.restart();
        self.send_epoch();
        self.pump();
    }

    /// The source continues in a later epoch that the sink expects, as for a change of the pipeline. Returns
    /// false while the last such change is in progress.
    pub fn go_on(&mut self) -> bool {
        let (before, is_new) = (self.source.epoch(), self.sink.epoch() == 0);
        if self.sink.epoch() != before && !is_new {
            return false;
        }
        if is_new {
            self.begin(before);
        }
        assert!(self.sink.expect(before + 3), "no other epoch follows");
        self.source.continue_in(before + 3);
        self.send_epoch();
        self.pump();
        true
    }

    fn send_epoch(&mut self) {
        let (epoch, prev, continues) = (self.source.epoch(), self.source.prev(), self.source.continues());
        say(
            &mut self.source_channel,
            self.up,
            &Control::Flow { flow: FLOW, message: FlowControl::Epoch { epoch, prev, continues } },
        );
    }

    /// The source ends the flow.
    pub fn end(&mut self) {
        let (epoch, sequence) = (self.source.epoch(), self.source.next_sequence());
        say(
            &mut self.source_channel,
            self.up,
            &Control::Flow { flow: FLOW, message: FlowControl::End { epoch, sequence } },
        );
        self.pump();
    }

    /// Advances time.
    pub fn run_for(&mut self, time: Duration) {
        let until = self.now().after(time);
        self.run_while(until, |_| true);
    }

    /// Advances time until all messages are accepted and acknowledged. Returns false if that takes longer than
    /// `time`.
    pub fn run_until_settled(&mut self, time: Duration) -> bool {
        let until = self.now().after(time);
        self.run_while(until, |peers| !peers.is_settled());
        self.is_settled()
    }

    fn is_settled(&self) -> bool {
        self.waiting.is_empty() && self.source.is_settled()
    }

    fn run_while(&mut self, until: Time, go_on: impl Fn(&Self) -> bool) {
        while go_on(self) && self.now() < until {
            // Time always advances, even if a timer is late. So every run ends.
            let soonest = self.now().after(Duration::from_micros(200));
            self.clock.advance_to(self.next_event().max(soonest).min(until));
            self.pump();
        }
    }

    fn next_event(&self) -> Time {
        let links = [self.data.deadline(), self.to_sink.deadline(), self.to_source.deadline()];
        let timers = [self.acknowledge_at, self.missing_at, Some(self.ping_at)];
        let retransmit = self.source.poll_timeout(self.round_trip).filter(|_| self.up);
        let links = links.into_iter().flatten().map(Time);
        links.chain(timers.into_iter().flatten()).chain(retransmit).min().unwrap_or(Time(u64::MAX))
    }

    /// Does all work that is due now.
    fn pump(&mut self) {
        let now = self.now();
        // A stream waits in front of a full sink; datagrams do not.
        while (self.lossy || !self.sink.is_full())
            && let Some((_, record)) = self.data.pop(now.0)
        {
            self.take_record(&record);
        }
        while let Some((_, bytes)) = self.to_sink.pop(now.0) {
            self.sink_channel.handle_bytes(&bytes);
            while let Some(message) = self.sink_channel.poll().expect("the source keeps to the protocol") {
                self.receive_at_sink(&message);
            }
        }
        while let Some((_, bytes)) = self.to_source.pop(now.0) {
            self.source_channel.handle_bytes(&bytes);
            while let Some(message) = self.source_channel.poll().expect("the sink keeps to the protocol") {
                self.receive_at_source(&message);
            }
        }
        if self.up {
            self.run_source();
        }
        self.run_sink();
        if now >= self.ping_at {
            for channel in [&mut self.source_channel, &mut self.sink_channel] {
                let ping = Control::Ping { id: 0, sent: now.0, received: channel.received() };
                say(channel, self.up, &ping);
            }
            self.ping_at = now.after(PING_INTERVAL);
        }
        if self.up {
            carry(&mut self.source_channel, &mut self.to_sink, now);
            carry(&mut self.sink_channel, &mut self.to_source, now);
        }
    }

    fn run_source(&mut self) {
        let now = self.now();
        self.source.handle_timeout(now, self.round_trip);
        loop {
            let record = match self.source.poll_retransmit(now) {
                Some(record) => record,
                None => match self.waiting.pop_front().map(|message| self.source.admit(message, now)) {
                    None => break,
                    Some(Admission::Record(record)) => record,
                    Some(Admission::Full(message) | Admission::Closed(message)) => {
                        self.waiting.push_front(message);
                        break;
                    }
                },
            };
            let bytes = record.body.into_bytes().to_vec();
            let length = bytes.len() as u32;
            // A record that the link refuses is lost, like a datagram.
            let _ = self.data.push(now.0, bytes, length);
        }
    }

    fn take_record(&mut self, record: &[u8]) {
        let header = RecordHeader::parse(record, BODY_BYTES_MAX).expect("the source writes whole records");
        let message = Message::new(Time(header.container.created), record[RecordHeader::BYTES..].to_vec());
        match self.sink.handle(&header, message) {
            Received::NewEpoch(message) => {
                self.begin(header.epoch);
                // Accepted, or too early to buffer.
                self.sink.handle(&header, message);
            }
            // It would not come again if the acknowledgement had arrived.
            Received::Repeated if header.epoch == self.sink.epoch() => self.acknowledged = None,
            _ => {}
        }
        self.hand_on();
    }

    fn hand_on(&mut self) {
        loop {
            while let Some(message) = self.sink.poll() {
                self.delivered.push(Delivered {
                    at: self.now(),
                    epoch: self.sink.epoch(),
                    body: message.body,
                });
            }
            if !self.sink.is_over() {
                return;
            }
            self.sink.advance();
            self.acknowledged = None;
        }
    }

    fn begin(&mut self, epoch: u32) {
        if epoch > self.sink.epoch() {
            self.sink.begin(epoch);
            self.acknowledged = None;
        }
    }

    fn run_sink(&mut self) {
        let (now, epoch) = (self.now(), self.sink.epoch());
        let next = self.sink.next_sequence();
        if epoch > 0 && self.acknowledged != Some(next) {
            let due = *self.acknowledge_at.get_or_insert(now.after(ACKNOWLEDGE_WAIT));
            if now >= due {
                say(
                    &mut self.sink_channel,
                    self.up,
                    &Control::Flow { flow: FLOW, message: FlowControl::Acknowledge { epoch, next } },
                );
                self.acknowledged = Some(next);
                self.acknowledge_at = None;
            }
        } else {
            self.acknowledge_at = None;
        }
        if self.lossy && self.sink.has_gap() {
            let due = *self.missing_at.get_or_insert(now.after(REORDER_WAIT));
            if now >= due {
                let ranges = self.sink.missing();
                say(
                    &mut self.sink_channel,
                    self.up,
                    &Control::Flow { flow: FLOW, message: FlowControl::Missing { epoch, ranges } },
                );
                self.missing_at = Some(now.after((self.round_trip * 2).max(MISSING_INTERVAL)));
            }
        } else {
            self.missing_at = None;
        }
    }

    fn receive_at_sink(&mut self, message: &Control) {
        match message {
            Control::Flow { message: FlowControl::Epoch { epoch, prev, continues: true, .. }, .. }
                if *epoch > self.sink.epoch() =>
            {
                self.begin(prev.0);
                self.sink.expect_end(prev.1);
                if self.sink.is_abandoned() {
                    self.ask_anew();
                }
                self.hand_on();
            }
            Control::Flow { message: FlowControl::Epoch { epoch, prev, .. }, .. } => {
                self.sink.handle_epoch_end(prev.0, prev.1);
                self.begin(*epoch);
            }
            Control::Flow { message: FlowControl::End { epoch, sequence, .. }, .. } => {
                self.sink.handle_end(*epoch, *sequence)
            }
            Control::Ping { received, .. } => {
                self.sink_channel.handle_received(*received).expect("the source counts its messages");
            }
            other => panic!("the source sent {other:?}"),
        }
    }

    fn receive_at_source(&mut self, message: &Control) {
        match message {
            Control::Flow { message: FlowControl::Acknowledge { epoch, next, .. }, .. } => {
                self.source.handle_acknowledge(*epoch, *next, self.clock.now())
            }
            Control::Flow { message: FlowControl::Missing { epoch, ranges, .. }, .. } => {
                self.source.handle_missing(*epoch, ranges)
            }
            Control::Flow { message: FlowControl::Resync { epoch, .. }, .. }
                if *epoch == self.source.epoch() =>
            {
                self.restart()
            }
            Control::Flow { message: FlowControl::Resync { .. }, .. } => {}
            Control::Ping { received, .. } => {
                self.source_channel.handle_received(*received).expect("the sink counts its messages");
            }
            other => panic!("the sink sent {other:?}"),
        }
    }

    /// The source's half of the flow.
    pub fn source(&self) -> &SourceFlow {
        &self.source
    }

    /// The sink's half of the flow.
    pub fn sink(&self) -> &SinkFlow {
        &self.sink
    }

    /// The counters of the link for records.
    pub fn link(&self) -> netsim::Counters {
        self.data.counters()
    }

    /// The number of messages that wait for room in the flow.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// The messages that the sink has delivered, in order.
    pub fn delivered(&self) -> &[Delivered] {
        &self.delivered
    }
}

fn say(channel: &mut ControlChannel, up: bool, message: &Control) {
    if up { channel.send(message) } else { channel.keep(message) }.expect("the control channel has room");
}

fn carry(channel: &mut ControlChannel, link: &mut Link<Vec<u8>>, now: Time) {
    while !channel.front().is_empty() {
        let count = channel.front().len().min(SEGMENT_BYTES);
        let segment = channel.front()[..count].to_vec();
        assert!(
            link.push(now.0, segment, count as u32).is_ok(),
            "a stream loses nothing while its link is up"
        );
        channel.handle_sent(count);
    }
}
