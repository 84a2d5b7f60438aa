//! One flow through both halves of a pair over a modelled network, in virtual time.

use super::networks::{Draw, Network};
use crate::setting::Failure;
use contract::{
    Choice, Direction, Feedback, Format, Message, Options, Outbox, Pair, Port, Site, Stage, Time,
};
use netsim::Link;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use wire::RecordHeader;

/// Interval of the sink's feedback, as in a changing flow.
const FEEDBACK_INTERVAL: Duration = Duration::from_millis(250);
/// The start of a run that does not count: adaptive settings are still learning.
pub(super) const SETTLING: Duration = Duration::from_secs(10);
/// The start of virtual time.
const START: Time = Time(1_000_000_000);

/// The messages of a device.
#[derive(Clone, Copy)]
pub(super) struct Traffic {
    pub(super) period: Duration,
    /// Draws a body.
    pub(super) body: fn(&mut Draw) -> Vec<u8>,
}

/// The times of one delivered message.
#[derive(Debug, Clone, Copy)]
pub(super) struct Delivery {
    pub(super) created: Time,
    /// Arrival of the record.
    pub(super) arrived: Time,
    /// Output of the sink half.
    pub(super) delivered: Time,
}

/// The result of a flow after [`SETTLING`].
#[derive(Debug, Default)]
pub(super) struct Journey {
    pub(super) messages: u64,
    pub(super) records: u64,
    pub(super) deliveries: Vec<Delivery>,
    pub(super) choices: Vec<Choice>,
}

impl Journey {
    /// Counts late messages: delivered on arrival and later than the rhythm of the messages before.
    pub(super) fn late(&self) -> usize {
        let mut rhythm = i64::MAX;
        let is_late = |delivery: &&Delivery| {
            let delay = delivery.delivered.signed_since(delivery.created);
            let is_late = delivery.delivered == delivery.arrived && delay > rhythm.saturating_add(1000);
            if delivery.delivered > delivery.arrived || rhythm == i64::MAX {
                rhythm = delay;
            }
            is_late
        };
        self.deliveries.iter().filter(is_late).count()
    }

    /// Returns the mean time from creation to delivery in milliseconds.
    pub(super) fn mean_ms(&self) -> f64 {
        let all: i64 =
            self.deliveries.iter().map(|delivery| delivery.delivered.signed_since(delivery.created)).sum();
        all as f64 / 1e6 / self.deliveries.len() as f64
    }

    /// Returns the 99th percentile of the time from creation to delivery in milliseconds.
    pub(super) fn p99_ms(&self) -> f64 {
        let delay = |delivery: &Delivery| delivery.delivered.signed_since(delivery.created);
        let mut delays: Vec<i64> = self.deliveries.iter().map(delay).collect();
        delays.sort_unstable();
        delays.get(delays.len() * 99 / 100).map_or(f64::INFINITY, |ns| *ns as f64 / 1e6)
    }
}

/// A running flow.
struct Flow {
    source: Box<dyn Stage>,
    sink: Box<dyn Stage>,
    outbox: Outbox,
    link: Link<u64>,
    packet_bytes: u32,
    crossing: BTreeMap<u64, (Message, Vec<Time>)>,
    crossed: u64,
    /// Messages that wait for the source half, and the end of its current work.
    waiting: VecDeque<Message>,
    source_free: Time,
    sink_free: Time,
    /// Creation times of the messages in the source half.
    in_source: Vec<Time>,
    /// Output of the source half by time.
    departing: VecDeque<(Time, Message)>,
    arrived: BTreeMap<Time, Time>,
    controls: VecDeque<(Time, Direction, Vec<u8>)>,
    feedback: VecDeque<(Time, Feedback)>,
    counted: Counted,
    journey: Journey,
}

/// The sink's counts since its last feedback.
#[derive(Default)]
struct Counted {
    received: u64,
    bytes: u64,
    next: u64,
    lost: u64,
    delays: Vec<i64>,
}

/// Runs a flow of `traffic` for `seconds` of virtual time.
pub(super) fn run(
    pair: &dyn Pair,
    given: &[(&str, &str)],
    traffic: &Traffic,
    network: &Network,
    seconds: u64,
    seed: u64,
) -> Result<Journey, Failure> {
    let options = Options::check(pair.options(), given.iter().copied())?;
    let site = |half: u8| Site { seed: [half; 32], ..Site::default() };
    let course = network.course(seconds, seed);
    let mut flow = Flow {
        source: pair.source(&options, &Format::Bytes, &site(0))?,
        sink: pair.sink(&options, &Format::Bytes, &site(1))?,
        outbox: Outbox::default(),
        link: Link::new(course[0].1.clone(), seed).hold_at_most(u64::MAX),
        packet_bytes: network.packet_bytes + RecordHeader::BYTES as u32,
        crossing: BTreeMap::new(),
        crossed: 0,
        waiting: VecDeque::new(),
        source_free: START,
        sink_free: START,
        in_source: Vec::new(),
        departing: VecDeque::new(),
        arrived: BTreeMap::new(),
        controls: VecDeque::new(),
        feedback: VecDeque::new(),
        counted: Counted::default(),
        journey: Journey::default(),
    };
    let mut draw = Draw(!seed);
    let end = START.after(Duration::from_secs(seconds));
    let mut changes = course.into_iter().skip(1).peekable();
    let (mut next_message, mut next_feedback) = (START, START.after(FEEDBACK_INTERVAL));
    while next_message < end {
        let next_change = changes.peek().map(|(at_ms, _)| START.after(Duration::from_millis(*at_ms)));
        let due = [Some(next_message), Some(next_feedback), next_change, flow.due()];
        let now = due.into_iter().flatten().min().unwrap_or(end);
        if next_change == Some(now)
            && let Some((_, params)) = changes.next()
        {
            flow.link.configure(now.0, params);
        }
        flow.run(now)?;
        if now == next_message {
            flow.journey.messages += u64::from(is_settled(now));
            flow.waiting.push_back(Message::new(now, (traffic.body)(&mut draw)));
            flow.work(now)?;
            next_message = now.after(traffic.period);
        }
        if now == next_feedback {
            flow.send_feedback(now);
            next_feedback = now.after(FEEDBACK_INTERVAL);
        }
    }
    flow.journey.choices = flow.sink.choices();
    flow.journey.choices.extend(flow.source.choices());
    Ok(flow.journey)
}

fn is_settled(created: Time) -> bool {
    created.since(START) >= SETTLING
}

/// Returns the time of a half's work, if it reports one. Virtual time does not advance during work.
fn worked(stage: &dyn Stage) -> Duration {
    let figures = stage.report();
    let work_ms = figures.iter().find(|(name, _)| *name == "work_ms").map_or(0.0, |(_, ms)| *ms);
    Duration::from_secs_f64(work_ms / 1e3)
}

impl Flow {
    fn due(&self) -> Option<Time> {
        let link = self.link.deadline().map(Time);
        let arriving = [self.controls.front().map(|(at, ..)| *at), self.feedback.front().map(|(at, ..)| *at)];
        let stages = [self.source.poll_timeout(), self.sink.poll_timeout()];
        let departs = self.departing.front().map(|(at, _)| *at);
        let takes = self.waiting.front().map(|_| self.source_free);
        arriving.into_iter().chain(stages).chain([link, departs, takes]).flatten().min()
    }

    /// Passes waiting messages to the source half, one at a time.
    fn work(&mut self, now: Time) -> Result<(), Failure> {
        while self.source_free <= now
            && let Some(message) = self.waiting.pop_front()
        {
            let before = worked(&*self.source);
            self.in_source.push(message.created);
            self.source.handle(Port::MAIN, message, now, &mut self.outbox)?;
            self.source_free = now.after(worked(&*self.source).saturating_sub(before));
            self.settle_source(self.source_free);
        }
        Ok(())
    }

    /// Does all work that is due.
    fn run(&mut self, now: Time) -> Result<(), Failure> {
        self.depart(now);
        self.work(now)?;
        while let Some((_, number)) = self.link.pop(now.0) {
            let Some((message, created)) = self.crossing.remove(&number) else { continue };
            self.counted.received += 1;
            self.counted.bytes += message.body.len() as u64;
            self.counted.lost += number.saturating_sub(self.counted.next);
            self.counted.next = self.counted.next.max(number + 1);
            self.arrived.extend(created.into_iter().map(|created| (created, now)));
            let before = worked(&*self.sink);
            self.sink.handle(Port::MAIN, message, now, &mut self.outbox)?;
            let work = worked(&*self.sink).saturating_sub(before);
            self.sink_free = self.sink_free.max(now).after(work);
            self.settle_sink(if work.is_zero() { now } else { self.sink_free });
        }
        while self.controls.front().is_some_and(|(at, ..)| *at <= now)
            && let Some((_, to, bytes)) = self.controls.pop_front()
        {
            match to {
                Direction::Out => {
                    self.source.handle_control(&bytes, now, &mut self.outbox)?;
                    self.settle_source(now);
                }
                Direction::In => {
                    self.sink.handle_control(&bytes, now, &mut self.outbox)?;
                    self.settle_sink(now);
                }
            }
        }
        while self.feedback.front().is_some_and(|(at, _)| *at <= now)
            && let Some((_, feedback)) = self.feedback.pop_front()
        {
            self.source.handle_feedback(&feedback, now, &mut self.outbox)?;
            self.settle_source(now);
        }
        if self.source.poll_timeout().is_some_and(|at| at <= now) {
            self.source.handle_timeout(now, &mut self.outbox)?;
            self.settle_source(now);
        }
        if self.sink.poll_timeout().is_some_and(|at| at <= now) {
            self.sink.handle_timeout(now, &mut self.outbox)?;
            self.settle_sink(now);
        }
        Ok(())
    }

    /// Queues the output of the source half at `now`.
    fn settle_source(&mut self, now: Time) {
        let messages = std::mem::take(&mut self.outbox.messages);
        self.departing.extend(messages.into_iter().map(|(_, message)| (now, message)));
        self.settle_controls(Direction::In, now);
    }

    fn depart(&mut self, now: Time) {
        while self.departing.front().is_some_and(|(at, _)| *at <= now)
            && let Some((_, message)) = self.departing.pop_front()
        {
            self.journey.records += u64::from(is_settled(message.created));
            let bytes =
                u32::try_from(message.body.len()).unwrap_or(u32::MAX).saturating_add(self.packet_bytes);
            // A lost record shows as a gap in the numbers.
            let _ = self.link.push(now.0, self.crossed, bytes);
            let message = Message::new(message.created, message.body);
            self.crossing.insert(self.crossed, (message, std::mem::take(&mut self.in_source)));
            self.crossed += 1;
        }
    }

    fn settle_sink(&mut self, now: Time) {
        let messages = std::mem::take(&mut self.outbox.messages);
        for (_, Message { created, .. }) in messages {
            let arrived = self.arrived.remove(&created).unwrap_or(now);
            self.counted.delays.push(now.signed_since(created));
            if is_settled(created) {
                self.journey.deliveries.push(Delivery { created, arrived, delivered: now });
            }
        }
        self.settle_controls(Direction::Out, now);
    }

    /// Queues control messages to arrive after the link's fixed delay.
    fn settle_controls(&mut self, to: Direction, now: Time) {
        let at = now.after(Duration::from_nanos(self.link.params().delay_ns));
        self.controls.extend(self.outbox.controls.drain(..).map(|bytes| (at, to, bytes)));
        self.outbox.drops.clear();
    }

    /// Sends the sink's feedback.
    fn send_feedback(&mut self, now: Time) {
        let Counted { received, bytes, lost, next, mut delays } = std::mem::take(&mut self.counted);
        self.counted.next = next;
        delays.sort_unstable();
        let at = |share: usize| delays.get(delays.len() * share / 100).copied().unwrap_or_default().max(0);
        let one_way = Duration::from_nanos(self.link.params().delay_ns);
        let feedback = Feedback {
            received,
            lost,
            delay: Duration::from_nanos(at(50).unsigned_abs()),
            jitter: Duration::from_nanos((at(99) - at(1)).unsigned_abs()),
            round_trip: one_way * 2,
            rate_bytes: (bytes as f64 / FEEDBACK_INTERVAL.as_secs_f64()) as u64,
            waiting_bytes: 0,
        };
        self.feedback.push_back((now.after(one_way), feedback));
    }
}
