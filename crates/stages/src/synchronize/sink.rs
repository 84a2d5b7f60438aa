//! The half at which the flows meet.

use super::skew::Skew;
use crate::playout::{STEP_NS, Window};
use contract::{Message, Offset, Options, Outbox, Port, Report, Stage, StageError, Time};
use std::collections::VecDeque;
use std::time::Duration;

const LATE: &str = "came after its turn";
/// The common delay shrinks by at most one part in this many of the time that passes.
const SLEW: u32 = 1000;

/// What is done about a flow that falls silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Silent {
    Wait,
    Skip,
    Last,
}

struct Held {
    /// When it was made, but never before the one that went before it in its flow.
    made: Time,
    came: Time,
    message: Message,
}

/// One of the flows that meet.
struct Flow {
    port: Port,
    queue: VecDeque<Held>,
    /// How far it has spoken: nothing that was made before will come any more.
    reached: Time,
    /// When something of it came last.
    heard: Time,
    /// What came last, and how often it was repeated since, if that is done at all.
    last: Option<(Message, u32)>,
    ended: bool,
}

impl Flow {
    fn new(port: Port) -> Self {
        let (queue, reached, heard) = (VecDeque::new(), Time::ZERO, Time::ZERO);
        Flow { port, queue, reached, heard, last: None, ended: false }
    }

    fn hold(&mut self, message: Message, made: Time, now: Time) {
        self.reached = made;
        self.queue.push_back(Held { made, came: now, message });
    }

    fn next_made(&self) -> Option<Time> {
        self.queue.front().map(|held| held.made)
    }
}

pub(super) struct Sink {
    flows_max: usize,
    wait: Duration,
    silent: Silent,
    silence: Duration,
    keeps_apart: bool,
    drops_late: bool,
    messages_max: usize,
    bytes_max: usize,
    /// If flows are aligned.
    align: Option<Align>,
    flows: Vec<Flow>,
    messages: usize,
    bytes: usize,
    /// Up to when what was made has left.
    released: Time,
    late: u64,
    early: u64,
    repeated: u64,
    skew: [Skew; 2],
}

/// The delay that all flows have in common.
#[derive(Default)]
struct Align {
    ages: Window,
    /// What is added to a creation time, nanoseconds.
    shift: i64,
    slewed: Option<Time>,
}

impl Align {
    /// Follows the slowest: up at once, down slowly, and never so far that the fastest would be held for longer
    /// than `longest`.
    fn follow(&mut self, age: i64, longest: Duration, now: Time) {
        self.ages.add(age, now);
        let (low, high) = (self.ages.low().unwrap_or(age), self.ages.high().unwrap_or(age));
        let target = high.min(low.saturating_add(nanoseconds(longest)));
        let above = self.shift.saturating_sub(target);
        let step = self.slewed.map_or(i64::MAX, |before| nanoseconds(now.since(before) / SLEW));
        self.slewed = Some(now);
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
            silent: match options.text("silent") {
                "wait" => Silent::Wait,
                "last" => Silent::Last,
                _ => Silent::Skip,
            },
            silence: options.duration("silence"),
            keeps_apart: options.flag("apart"),
            drops_late: options.text("late") == "drop",
            messages_max: options.count("window"),
            bytes_max: options.size("held_bytes"),
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

    fn flow(&mut self, port: Port) -> Result<usize, StageError> {
        if usize::from(port.0) >= self.flows_max {
            return Err(StageError::Port(port));
        }
        Ok(self.flows.iter().position(|flow| flow.port == port).unwrap_or_else(|| {
            self.flows.push(Flow::new(port));
            self.flows.len() - 1
        }))
    }

    /// The flow whose first message was made first.
    fn first(&self) -> Option<(usize, Time)> {
        let heads =
            self.flows.iter().enumerate().filter_map(|(index, flow)| Some((index, flow.next_made()?)));
        heads.min_by_key(|(index, made)| (*made, self.flows[*index].port))
    }

    /// When the first message leaves if nothing else comes; at the latest when any was held for long enough.
    fn next_due(&self) -> Option<Time> {
        let (first, made) = self.first()?;
        let waited = self.flows.iter().filter_map(|flow| flow.queue.front()).map(|held| held.came);
        let latest = waited.min()?.after(self.wait);
        let due = match &self.align {
            Some(align) => made.shifted(Offset(align.shift)),
            None => self.others_reach(first, made),
        };
        Some(due.min(latest))
    }

    /// When no other flow is waited for any more that may still bring what was made before `made`.
    fn others_reach(&self, first: usize, made: Time) -> Time {
        let waited_for = self.flows.iter().enumerate().filter(|(index, flow)| {
            *index != first && !flow.ended && flow.queue.is_empty() && flow.reached < made
        });
        let left_out = waited_for.map(|(_, flow)| match self.silent {
            Silent::Wait => Time(u64::MAX),
            Silent::Skip | Silent::Last => flow.heard.after(self.silence),
        });
        left_out.max().unwrap_or(Time::ZERO)
    }

    fn release(&mut self, now: Time, out: &mut Outbox) {
        while self.messages > self.messages_max || self.bytes > self.bytes_max {
            self.early += 1;
            self.send_first(now, out);
        }
        while self.next_due().is_some_and(|due| due <= now) {
            self.send_first(now, out);
        }
    }

    fn send_first(&mut self, now: Time, out: &mut Outbox) {
        let Some((first, made)) = self.first() else { return };
        let Some(held) = self.flows[first].queue.pop_front() else { return };
        self.messages -= 1;
        self.bytes -= held.message.body.len();
        self.released = self.released.max(made);
        self.send(first, held.message, now, out);
    }

    fn send(&mut self, flow: usize, message: Message, now: Time, out: &mut Outbox) {
        if !message.attributes.stale {
            self.skew[1].add(flow, now.signed_since(message.created));
        }
        let port = if self.keeps_apart { self.flows[flow].port } else { Port::MAIN };
        out.send(port, message);
    }

    fn hold(&mut self, flow: usize, message: Message, made: Time, now: Time) {
        self.messages += 1;
        self.bytes += message.body.len();
        self.flows[flow].hold(message, made, now);
    }

    /// When a flow's last message is repeated next: while another flow is heard.
    fn repeat_at(&self, flow: &Flow) -> Option<Time> {
        let (_, repeats) = flow.last.as_ref().filter(|_| !flow.ended)?;
        let at = flow.heard.after(self.silence.saturating_mul(repeats + 1));
        let others = self.flows.iter().filter(|other| other.port != flow.port && !other.ended);
        others.map(|other| other.heard.after(self.silence)).any(|until| until > at).then_some(at)
    }

    /// Repeats what silent flows said last, as if it had been made anew.
    fn repeat(&mut self, now: Time) {
        for index in 0..self.flows.len() {
            while let Some(at) = self.repeat_at(&self.flows[index]).filter(|at| *at <= now) {
                let flow = &mut self.flows[index];
                let Some((last, repeats)) = &mut flow.last else { break };
                *repeats += 1;
                let silent = at.since(flow.heard);
                let mut message = last.clone();
                message.created = message.created.after(silent);
                message.attributes.stale = true;
                let made = message.created.min(now).max(flow.reached).max(self.released);
                self.repeated += 1;
                self.hold(index, message, made, now);
            }
        }
    }
}

impl Stage for Sink {
    fn handle(
        &mut self,
        port: Port,
        message: Message,
        now: Time,
        out: &mut Outbox,
    ) -> Result<(), StageError> {
        let index = self.flow(port)?;
        // Nothing is made much later than now: what says so must not hold its flow back for ever.
        let made = message.created.min(now.after(self.wait));
        let age = now.signed_since(made);
        self.skew[0].add(index, age);
        if let Some(align) = &mut self.align {
            align.follow(age, self.wait, now);
        }
        let flow = &mut self.flows[index];
        (flow.heard, flow.ended) = (now, false);
        if self.silent == Silent::Last {
            flow.last = Some((message.clone(), 0));
        }
        let made = made.max(flow.reached);
        if made < self.released {
            flow.reached = made;
            self.late += 1;
            match self.drops_late {
                true => out.drop_counted(LATE, 1),
                false => self.send(index, message, now, out),
            }
        } else {
            self.hold(index, message, made, now);
        }
        self.release(now, out);
        Ok(())
    }

    fn handle_end(&mut self, port: Port, now: Time, out: &mut Outbox) -> Result<(), StageError> {
        let index = self.flow(port)?;
        self.flows[index].ended = true;
        if self.flows.iter().all(|flow| flow.ended) {
            while self.messages > 0 {
                self.send_first(now, out);
            }
        }
        self.release(now, out);
        Ok(())
    }

    fn poll_timeout(&self) -> Option<Time> {
        let repeats = self.flows.iter().filter_map(|flow| self.repeat_at(flow));
        repeats.chain(self.next_due()).min()
    }

    fn handle_timeout(&mut self, now: Time, out: &mut Outbox) -> Result<(), StageError> {
        self.repeat(now);
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
