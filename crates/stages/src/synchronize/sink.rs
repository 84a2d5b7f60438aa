//! The half that merges or aligns flows.
//!
//! A message is released when no other flow can bring an older one, that is when every other flow
//! has a horizon at or after it. With `align`, it is released at its creation time plus a common
//! shift instead. `wait` bounds both. The state of a flow:
//!
//! ```text
//! unknown   no message yet: not waited for
//! active    waited for until its next message
//! silent    no message for `silence`: waited for (wait), or not (skip, last)
//! ended     not waited for
//! ```

use super::skew::Skew;
use crate::HELD_BYTES_MAX;
use crate::playout::{MinMaxWindow, STEP_NS};
use contract::{Message, Offset, Options, Outbox, Port, Report, Stage, StageError, StageResult, Time};
use std::collections::VecDeque;
use std::time::Duration;

const LATE: &str = "late";
/// The common delay falls by at most one part in this many of the elapsed time.
const SLEW: u32 = 1000;

/// Treatment of a silent flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SilentPolicy {
    Wait,
    Skip,
    Last,
}

struct Held {
    /// Creation time, raised to that of the previous message in its flow.
    created: Time,
    arrived: Time,
    message: Message,
}

/// State of one flow.
struct Flow {
    port: Port,
    queue: VecDeque<Held>,
    /// Creation time that it has reached: no older message will be released from it.
    horizon: Time,
    /// Arrival of its last message.
    last_arrival: Time,
    /// With `silent=last`: its last message, and how often that was repeated.
    repeatable: Option<(Message, u32)>,
    has_ended: bool,
}

impl Flow {
    fn new(port: Port) -> Self {
        let (queue, horizon, last_arrival) = (VecDeque::new(), Time::ZERO, Time::ZERO);
        Flow { port, queue, horizon, last_arrival, repeatable: None, has_ended: false }
    }

    fn hold(&mut self, message: Message, created: Time, now: Time) {
        self.horizon = created;
        self.queue.push_back(Held { created, arrived: now, message });
    }

    fn next_created(&self) -> Option<Time> {
        self.queue.front().map(|held| held.created)
    }
}

pub(super) struct Sink {
    flows_max: usize,
    wait: Duration,
    silent_policy: SilentPolicy,
    silence: Duration,
    separate_ports: bool,
    drops_late: bool,
    messages_max: usize,
    /// State of `align`.
    align: Option<Align>,
    flows: Vec<Flow>,
    messages: usize,
    bytes: usize,
    /// Latest creation time released.
    released: Time,
    late: u64,
    early: u64,
    repeated: u64,
    skew: [Skew; 2],
}

/// The common delay of all flows.
#[derive(Default)]
struct Align {
    ages: MinMaxWindow,
    /// Release minus creation, nanoseconds.
    shift: i64,
    last_update: Option<Time>,
}

impl Align {
    /// Adapts to the slowest flow: rises at once, falls slowly, and never delays the fastest by
    /// more than `delay_max`.
    fn update(&mut self, age: i64, delay_max: Duration, now: Time) {
        self.ages.add(age, now);
        let (low, high) = (self.ages.low().unwrap_or(age), self.ages.high().unwrap_or(age));
        let target = high.min(low.saturating_add(nanoseconds(delay_max)));
        let above = self.shift.saturating_sub(target);
        let step = self.last_update.map_or(i64::MAX, |previous| nanoseconds(now.since(previous) / SLEW));
        self.last_update = Some(now);
        self.shift = match above {
            ..0 | STEP_NS.. => target,
            above => self.shift - above.min(step),
        };
    }
}

fn nanoseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

impl Sink {
    pub(super) fn new(options: &Options) -> Self {
        Sink {
            flows_max: options.count("flows"),
            wait: options.duration("wait"),
            silent_policy: match options.text("silent") {
                "wait" => SilentPolicy::Wait,
                "last" => SilentPolicy::Last,
                _ => SilentPolicy::Skip,
            },
            silence: options.duration("silence"),
            separate_ports: options.flag("apart"),
            drops_late: options.text("late") == "drop",
            messages_max: options.count("window"),
            align: options.flag("align").then(Align::default),
            flows: Vec::new(),
            messages: 0,
            bytes: 0,
            released: Time::ZERO,
            late: 0,
            early: 0,
            repeated: 0,
            skew: Default::default(),
        }
    }

    fn flow(&mut self, port: Port) -> StageResult<usize> {
        if usize::from(port.0) >= self.flows_max {
            return Err(StageError::Port(port));
        }
        Ok(self.flows.iter().position(|flow| flow.port == port).unwrap_or_else(|| {
            self.flows.push(Flow::new(port));
            self.flows.len() - 1
        }))
    }

    /// The flow with the oldest first message.
    fn first(&self) -> Option<(usize, Time)> {
        let heads =
            self.flows.iter().enumerate().filter_map(|(index, flow)| Some((index, flow.next_created()?)));
        heads.min_by_key(|(index, created)| (*created, self.flows[*index].port))
    }

    /// Release time of the oldest message if nothing else arrives; at the latest when any message
    /// has waited for `wait`.
    fn next_due(&self) -> Option<Time> {
        let (first, created) = self.first()?;
        let arrivals = self.flows.iter().filter_map(|flow| flow.queue.front()).map(|held| held.arrived);
        let latest = arrivals.min()?.after(self.wait);
        let due = match &self.align {
            Some(align) => created.shifted(Offset(align.shift)),
            None => self.others_ready_at(first, created),
        };
        Some(due.min(latest))
    }

    /// Time at which no other flow is awaited that may still bring an older message.
    fn others_ready_at(&self, first: usize, created: Time) -> Time {
        let awaited = self.flows.iter().enumerate().filter(|(index, flow)| {
            *index != first && !flow.has_ended && flow.queue.is_empty() && flow.horizon < created
        });
        let skipped_at = awaited.map(|(_, flow)| match self.silent_policy {
            SilentPolicy::Wait => Time(u64::MAX),
            SilentPolicy::Skip | SilentPolicy::Last => flow.last_arrival.after(self.silence),
        });
        skipped_at.max().unwrap_or(Time::ZERO)
    }

    fn release(&mut self, now: Time, out: &mut Outbox) {
        while self.messages > self.messages_max || self.bytes > HELD_BYTES_MAX {
            self.early += 1;
            self.release_first(now, out);
        }
        while self.next_due().is_some_and(|due| due <= now) {
            self.release_first(now, out);
        }
    }

    fn release_first(&mut self, now: Time, out: &mut Outbox) {
        let Some((first, created)) = self.first() else { return };
        let Some(held) = self.flows[first].queue.pop_front() else { return };
        self.messages -= 1;
        self.bytes -= held.message.body.len();
        self.released = self.released.max(created);
        self.send(first, held.message, now, out);
    }

    fn send(&mut self, flow: usize, message: Message, now: Time, out: &mut Outbox) {
        if !message.attributes.stale {
            self.skew[1].add(flow, now.signed_since(message.created));
        }
        let port = if self.separate_ports { self.flows[flow].port } else { Port::MAIN };
        out.send(port, message);
    }

    fn hold(&mut self, flow: usize, message: Message, created: Time, now: Time) {
        self.messages += 1;
        self.bytes += message.body.len();
        self.flows[flow].hold(message, created, now);
    }

    /// Time of the next repetition of a flow's last message: only while another flow is active.
    fn repeat_due(&self, flow: &Flow) -> Option<Time> {
        let (_, repeat_count) = flow.repeatable.as_ref().filter(|_| !flow.has_ended)?;
        let at = flow.last_arrival.after(self.silence.saturating_mul(repeat_count + 1));
        let others = self.flows.iter().filter(|other| other.port != flow.port && !other.has_ended);
        others.map(|other| other.last_arrival.after(self.silence)).any(|until| until > at).then_some(at)
    }

    /// Repeats the last messages of silent flows, with current creation times.
    fn repeat_silent(&mut self, now: Time) {
        for index in 0..self.flows.len() {
            while let Some(at) = self.repeat_due(&self.flows[index]).filter(|at| *at <= now) {
                let flow = &mut self.flows[index];
                let Some((repeatable, repeat_count)) = &mut flow.repeatable else { break };
                *repeat_count += 1;
                let silence = at.since(flow.last_arrival);
                let mut message = repeatable.clone();
                message.created = message.created.after(silence);
                message.attributes.stale = true;
                let created = message.created.min(now).max(flow.horizon).max(self.released);
                self.repeated += 1;
                self.hold(index, message, created, now);
            }
        }
    }
}

impl Stage for Sink {
    fn handle(&mut self, port: Port, message: Message, now: Time, out: &mut Outbox) -> StageResult {
        let index = self.flow(port)?;
        // A creation time far in the future must not hold its flow back for ever.
        let created = message.created.min(now.after(self.wait));
        let age = now.signed_since(created);
        self.skew[0].add(index, age);
        if let Some(align) = &mut self.align {
            align.update(age, self.wait, now);
        }
        let flow = &mut self.flows[index];
        (flow.last_arrival, flow.has_ended) = (now, false);
        if self.silent_policy == SilentPolicy::Last {
            flow.repeatable = Some((message.clone(), 0));
        }
        let created = created.max(flow.horizon);
        if created < self.released {
            flow.horizon = created;
            self.late += 1;
            if self.drops_late { out.drop_counted(LATE, 1) } else { self.send(index, message, now, out) }
        } else {
            self.hold(index, message, created, now);
        }
        self.release(now, out);
        Ok(())
    }

    fn handle_end(&mut self, port: Port, now: Time, out: &mut Outbox) -> StageResult {
        let index = self.flow(port)?;
        self.flows[index].has_ended = true;
        if self.flows.iter().all(|flow| flow.has_ended) {
            while self.messages > 0 {
                self.release_first(now, out);
            }
        }
        self.release(now, out);
        Ok(())
    }

    fn poll_timeout(&self) -> Option<Time> {
        let repeats = self.flows.iter().filter_map(|flow| self.repeat_due(flow));
        repeats.chain(self.next_due()).min()
    }

    fn handle_timeout(&mut self, now: Time, out: &mut Outbox) -> StageResult {
        self.repeat_silent(now);
        self.release(now, out);
        Ok(())
    }

    fn held(&self) -> usize {
        self.messages
    }

    fn report(&self) -> Vec<Report> {
        let mut figures = vec![
            ("flows", self.flows.len() as f64),
            ("held", self.messages as f64),
            ("late", self.late as f64),
            ("early", self.early as f64),
            ("repeated", self.repeated as f64),
        ];
        figures.extend(self.align.as_ref().map(|align| ("delay_ms", align.shift as f64 / 1e6)));
        figures.extend(self.skew[0].figures(["skew_in_ms", "skew_in_p99_ms"]));
        figures.extend(self.skew[1].figures(["skew_out_ms", "skew_out_p99_ms"]));
        figures
    }
}
