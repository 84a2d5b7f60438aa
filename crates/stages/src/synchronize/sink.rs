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
use super::stretch::{STEP, STEPS_APART, Stretch};
use crate::HELD_BYTES_MAX;
use crate::checkpoint::{CheckpointReader, CheckpointWriter, malformed};
use crate::playout::{MinMaxWindow, STEP_NS};
use contract::{
    Body, Fill, Format, Message, Offset, Options, Outbox, Port, Report, Stage, StageError, StageResult, Time,
};
use std::collections::VecDeque;
use std::time::Duration;

const LATE: &str = "late";
/// The other direction of [`STEP_NS`].
const NOT_RISEN: i64 = -STEP_NS;
/// The common delay falls by at most one part in this many of the elapsed time.
const SLEW: u32 = 1000;
/// The same while it is more than [`EXCESS`] too high, without sound.
const SLEW_EXCESS: u32 = 10;
/// A smaller change of a lead is wavering.
const LEAD_CHANGE_NS: u64 = 1_000_000;
/// The age of messages matters more than their spacing from this excess of the delay on.
const EXCESS: Duration = Duration::from_millis(40);

/// Treatment of a silent flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SilentPolicy {
    Wait,
    Skip,
    Last,
}

struct Held {
    /// Creation time less the flow's lead, raised to that of the previous message in its flow.
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
    /// Only of sound.
    stretch: Option<Stretch>,
    /// The time from release until the node plays a message: so much earlier than other flows' it is released.
    lead: Duration,
    /// With `silent=last`: its last message, and the time of the next repetition.
    repeatable: Option<(Message, Time)>,
    has_ended: bool,
}

impl Flow {
    fn new(port: Port, format: Option<&Format>) -> Self {
        let (queue, horizon, last_arrival) = (VecDeque::new(), Time::ZERO, Time::ZERO);
        let stretch = (format == Some(&Format::Audio)).then(Stretch::default);
        let lead = Duration::ZERO;
        Flow { port, queue, horizon, last_arrival, stretch, lead, repeatable: None, has_ended: false }
    }

    fn hold(&mut self, message: Message, created: Time, now: Time) {
        self.horizon = created;
        self.queue.push_back(Held { created, arrived: now, message });
    }

    fn next_created(&self) -> Option<Time> {
        self.queue.front().map(|held| held.created)
    }

    /// Appends its state to a checkpoint.
    fn put(&self, into: &mut CheckpointWriter) {
        // A successor fades sound in.
        let Flow { port, queue, horizon, last_arrival, stretch: _, lead, repeatable, has_ended } = self;
        into.put([port.0.into(), horizon.0, last_arrival.0, nanoseconds(*lead).cast_unsigned()]);
        into.put([(*has_ended).into(), queue.len() as u64]);
        into.put([repeatable.as_ref().map_or(0, |(_, at)| at.0)]);
        repeatable.iter().for_each(|(message, _)| into.put_message(message));
        for Held { created, arrived, message } in queue {
            into.put([created.0, arrived.0, message.attributes.stale.into()]);
            into.put_message(message);
        }
    }

    /// Reads the state of a flow.
    fn take(
        from: &mut CheckpointReader,
        flows_max: usize,
        messages_max: usize,
        formats: &[Format],
    ) -> StageResult<Flow> {
        let port = from.number_below(flows_max as u64)? as u16;
        let mut flow = Flow::new(Port(port), formats.get(usize::from(port)));
        (flow.horizon, flow.last_arrival) = (Time(from.number()?), Time(from.number()?));
        flow.lead = Duration::from_nanos(from.number()?);
        flow.has_ended = from.number_below(2)? == 1;
        let held = from.number_below(messages_max as u64 + 1)?;
        if let Some(at) = Some(Time(from.number()?)).filter(|at| *at > Time::ZERO) {
            flow.repeatable = Some((from.message()?, at));
        }
        for _ in 0..held {
            let (created, arrived) = (Time(from.number()?), Time(from.number()?));
            let is_stale = from.number_below(2)? == 1;
            let mut message = from.message()?;
            message.attributes.stale = is_stale;
            flow.queue.push_back(Held { created, arrived, message });
        }
        Ok(flow)
    }
}

pub(super) struct Sink {
    flows_max: usize,
    /// The formats of the ports, as far as they are known.
    formats: Vec<Format>,
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
    /// The last step.
    last_step: Time,
}

/// A change of the common delay in which the sound that plays is made longer or shorter.
enum Step {
    Rise(Duration),
    Fall(Duration),
}

impl Align {
    /// Adapts to the slowest flow: rises at once, falls slowly, and never delays the fastest by more than `delay_max`. While sound
    /// plays it rises, and leaves an excess, in small steps, and returns them.
    fn update(&mut self, age: i64, delay_max: Duration, now: Time, plays_sound: bool) -> Option<Step> {
        self.ages.add(age, now);
        let (low, high) = (self.ages.low().unwrap_or(age), self.ages.high().unwrap_or(age));
        let target = high.min(low.saturating_add(nanoseconds(delay_max)));
        let above = self.shift.saturating_sub(target);
        let slew = if above > nanoseconds(EXCESS) && !plays_sound { SLEW_EXCESS } else { SLEW };
        let fall = self.last_update.map_or(i64::MAX, |previous| nanoseconds(now.since(previous) / slew));
        self.last_update = Some(now);
        let may_step = plays_sound && now >= self.last_step.after(STEPS_APART);
        let (shift, step) = match above {
            // The clocks or the route have changed.
            STEP_NS.. | ..=NOT_RISEN => (target, None),
            ..0 if may_step => {
                let rise = STEP.min(Duration::from_nanos(above.unsigned_abs()));
                (self.shift.saturating_add(nanoseconds(rise)), Some(Step::Rise(rise)))
            }
            ..0 if plays_sound => (self.shift, None),
            ..0 => (target, None),
            above if may_step && above > nanoseconds(EXCESS) => {
                (self.shift - nanoseconds(STEP), Some(Step::Fall(STEP)))
            }
            above => (self.shift - above.min(fall), None),
        };
        self.shift = shift;
        if step.is_some() {
            self.last_step = now;
        }
        step
    }
}

fn nanoseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

impl Sink {
    pub(super) fn new(options: &Options, formats: &[Format]) -> Self {
        Sink {
            flows_max: options.count("flows"),
            formats: formats.to_vec(),
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
            self.flows.push(Flow::new(port, self.formats.get(usize::from(port.0))));
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
            self.skew[1].add(flow, now.after(self.flows[flow].lead).signed_since(message.created));
        }
        let message = match &mut self.flows[flow].stretch {
            Some(stretch) => stretch.pass(message, now),
            None => Some(message),
        };
        if let Some(message) = message {
            out.send(self.port_of(flow), message);
        }
    }

    fn port_of(&self, flow: usize) -> Port {
        if self.separate_ports { self.flows[flow].port } else { Port::MAIN }
    }

    /// Makes the sound that plays longer or shorter.
    fn stretch_sound(&mut self, step: &Step, now: Time, out: &mut Outbox) {
        for flow in 0..self.flows.len() {
            let port = self.port_of(flow);
            let Some(stretch) = &mut self.flows[flow].stretch else { continue };
            match step {
                Step::Rise(rise) => {
                    stretch.rise(*rise, now).into_iter().for_each(|sound| out.send(port, sound))
                }
                Step::Fall(fall) => stretch.fall(*fall, now),
            }
        }
    }

    fn hold(&mut self, flow: usize, message: Message, created: Time, now: Time) {
        self.messages += 1;
        self.bytes += message.body.len();
        self.flows[flow].hold(message, created, now);
    }

    /// Time of the next repetition of a flow's last message: only while another flow is active.
    fn repeat_due(&self, flow: &Flow) -> Option<Time> {
        let (_, at) = flow.repeatable.as_ref().filter(|_| !flow.has_ended)?;
        let others = self.flows.iter().filter(|other| other.port != flow.port && !other.has_ended);
        others.map(|other| other.last_arrival.after(self.silence)).any(|until| until > *at).then_some(*at)
    }

    /// Repeats the last messages of silent flows, with current creation times. Of the repetitions missed while all
    /// flows were silent, only the last is made.
    fn repeat_silent(&mut self, now: Time) {
        for index in 0..self.flows.len() {
            let Some(due) = self.repeat_due(&self.flows[index]).filter(|due| *due <= now) else { continue };
            let flow = &mut self.flows[index];
            let Some((repeatable, next)) = &mut flow.repeatable else { continue };
            let late_ns = now.since(due).as_nanos() % self.silence.as_nanos();
            let at = now.before(Duration::from_nanos(late_ns as u64));
            *next = at.after(self.silence);
            let mut message = repeatable.clone();
            message.created = message.created.after(at.since(flow.last_arrival));
            message.attributes.stale = true;
            let created = message.created.min(now).max(flow.horizon).max(self.released);
            self.repeated += 1;
            self.hold(index, message, created, now);
        }
    }
}

impl Stage for Sink {
    fn handle(&mut self, port: Port, message: Message, now: Time, out: &mut Outbox) -> StageResult {
        let index = self.flow(port)?;
        // A creation time far in the future must not hold its flow back for ever.
        let created = message.created.min(now.after(self.wait)).before(self.flows[index].lead);
        let age = now.signed_since(created);
        self.skew[0].add(index, age);
        let plays_sound =
            self.flows.iter().filter_map(|flow| flow.stretch.as_ref()).any(|stretch| stretch.plays(now));
        if let Some(align) = &mut self.align
            && let Some(step) = align.update(age, self.wait, now, plays_sound)
        {
            self.stretch_sound(&step, now, out);
        }
        let flow = &mut self.flows[index];
        (flow.last_arrival, flow.has_ended) = (now, false);
        if self.silent_policy == SilentPolicy::Last {
            flow.repeatable = Some((message.clone(), now.after(self.silence)));
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

    /// The device was cut off, and what it held was made neutral: a repetition would press its keys again.
    fn handle_gap(&mut self, port: Port, _now: Time, _out: &mut Outbox) -> StageResult {
        self.flows.iter_mut().filter(|flow| flow.port == port).for_each(|flow| flow.repeatable = None);
        Ok(())
    }

    /// Releases sound earlier, because its node plays it later: a program plays sound and picture of the same time together.
    fn handle_fill(&mut self, port: Port, fill: Fill, _now: Time, _out: &mut Outbox) -> StageResult {
        let index = self.flow(port)?;
        let flow = &mut self.flows[index];
        let Some(align) = self.align.as_mut().filter(|_| self.separate_ports && flow.stretch.is_some())
        else {
            return Ok(());
        };
        let lead = fill.lead.min(self.wait);
        let rise = nanoseconds(lead) - nanoseconds(flow.lead);
        if rise.unsigned_abs() < LEAD_CHANGE_NS {
            return Ok(());
        }
        flow.lead = lead;
        // The sound goes on as before, and the other flows move.
        align.shift = align.shift.saturating_add(rise);
        // The ages so far have the old lead. A slower flow raises them again with its next message.
        if rise < 0 {
            align.ages.lower(rise.saturating_neg());
        }
        let earlier = |time: Time| time.shifted(Offset(-rise));
        flow.horizon = earlier(flow.horizon);
        flow.queue.iter_mut().for_each(|held| held.created = earlier(held.created));
        if rise > 0 {
            self.released = earlier(self.released);
        }
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

    fn checkpoint(&self) -> Option<Body> {
        let mut checkpoint = CheckpointWriter::default();
        let (shift, update) = self.align.as_ref().map_or((0, None), |align| (align.shift, align.last_update));
        checkpoint.put([
            self.released.0,
            shift.cast_unsigned(),
            update.is_some().into(),
            update.unwrap_or(Time::ZERO).0,
        ]);
        self.flows.iter().for_each(|flow| flow.put(&mut checkpoint));
        Some(checkpoint.finish())
    }

    fn restore(&mut self, checkpoint: Body) -> StageResult {
        let mut from = CheckpointReader(checkpoint);
        let released = Time(from.number()?);
        let (shift, has_update) = (from.number()?.cast_signed(), from.number_below(2)? == 1);
        let update = Some(Time(from.number()?)).filter(|_| has_update);
        let (mut flows, mut messages, mut bytes) = (Vec::<Flow>::new(), 0, 0);
        while !from.is_empty() {
            let flow = Flow::take(&mut from, self.flows_max, self.messages_max, &self.formats)?;
            messages += flow.queue.len();
            bytes += flow.queue.iter().map(|held| held.message.body.len()).sum::<usize>();
            let is_known = flows.iter().any(|other| other.port == flow.port);
            if is_known || messages > self.messages_max || bytes > HELD_BYTES_MAX {
                return Err(malformed());
            }
            flows.push(flow);
        }
        // All or nothing: a refused checkpoint leaves the state whole.
        self.align.iter_mut().for_each(|align| (align.shift, align.last_update) = (shift, update));
        (self.released, self.flows, self.messages, self.bytes) = (released, flows, messages, bytes);
        Ok(())
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
