//! Tracing: where the time of a message goes inside a host (paper M, chapters 4 and 5).
//!
//! Each path stamps a sample of its messages ([`pipeline::Trace`]). Somebody asks for the stamps at the console,
//! again and again; who no longer asks has gone, and tracing ends with it.

use crate::console::{Answer, Traced};
use crate::driver::FlowPlan;
use contract::{
    Ctl, CtlReply, FlowDirection, FlowKey, Half, Message, Moment, Partner, Progress, Time, Watch,
};
use pipeline::{PairUse, Point, Stamps, Trace};
use rustix::process::getpid;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::time::Duration;

/// Stamps of one path that wait to be asked for.
const STAMPS_MAX: usize = 8192;
/// How long tracing goes on when nobody asks.
pub(crate) const LEASE: Duration = Duration::from_secs(3);
/// Shortest time between two records that the kernel is asked about: each wakes the loop up to three times.
const WATCH_INTERVAL: Duration = Duration::from_millis(20);
/// The kernel notes arrivals from so many records before one that is sampled, for this long at least, and not
/// again for this long: that costs every packet of the connection.
const ARRIVALS_AHEAD: u64 = 16;
const ARRIVALS_NOTED: Duration = Duration::from_millis(20);
const ARRIVALS_PAUSE: Duration = Duration::from_millis(230);
/// Marked records that the transport has and the kernel has not.
const UNWRITTEN_MAX: usize = 1024;
/// Marked records that the kernel has and will tell of.
const WATCHED_MAX: usize = 16;

/// A trace with nothing in it.
pub(crate) fn begin(one_in: NonZeroU32) -> Box<Trace> {
    Box::new(Trace::new(one_in, STAMPS_MAX, || Time(sys::clock::boot_ns())))
}

/// Stamps of one flow on one host.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FlowTrace {
    /// The device's name.
    pub name: String,
    /// The other host.
    pub peer: String,
    /// The flow's number in its session.
    pub flow: u32,
    /// It goes from the device to the application, not the other way.
    pub to_application: bool,
    /// It starts at this host.
    pub is_source: bool,
    /// Its pairs, in source order.
    pub pairs: Vec<String>,
    /// What is added to the other host's clock to get ours, nanoseconds; `None` until the clocks were compared.
    pub offset_ns: Option<i64>,
    /// Since the last time they were asked for.
    pub stamps: Stamps,
}

impl FlowTrace {
    /// What a driver knows of it; the broker puts the names in.
    pub(crate) fn new(plan: &FlowPlan, half: Half, trace: &mut Trace) -> FlowTrace {
        FlowTrace {
            name: String::new(),
            peer: String::new(),
            flow: plan.flow,
            to_application: plan.direction == FlowDirection::DeviceToApplication,
            is_source: half == Half::Source,
            pairs: plan.pipeline.pairs().iter().map(shown).collect(),
            offset_ns: None,
            stamps: trace.take(),
        }
    }

    /// The same, of this device and this other host.
    pub(crate) fn named(self, name: &str, peer: &str) -> FlowTrace {
        FlowTrace { name: name.into(), peer: peer.into(), ..self }
    }
}

/// A pair as a row of the table names it: what hands over to a process and takes back says so.
fn shown(used: &PairUse) -> String {
    let name = used.pair.name();
    if used.isolation.is_some() { format!("{name} (process)") } else { name.into() }
}

/// A broker's side: who traces, and what workers told since the last time.
#[derive(Debug, Default)]
pub(crate) struct Tracing {
    asker: Option<(u64, Time)>,
    flows: Vec<FlowTrace>,
}

impl Tracing {
    /// Whether this one may trace: nobody else does. Without a rate it is the end of it.
    pub(crate) fn ask(&mut self, asker: u64, one_in: Option<NonZeroU32>, now: Time) -> bool {
        let holds = self.holds(asker);
        let is_free = holds || self.asker.is_none_or(|(_, until)| now >= until);
        if is_free {
            if !holds {
                self.flows.clear();
            }
            self.asker = one_in.map(|_| (asker, now.after(LEASE)));
        }
        is_free
    }

    fn holds(&self, asker: u64) -> bool {
        self.asker.is_some_and(|(known, _)| known == asker)
    }

    /// Workers told of these. They are asked once for each time that all are taken.
    pub(crate) fn add(&mut self, flows: impl IntoIterator<Item = FlowTrace>) {
        self.flows.extend(flows);
    }

    /// Answers who traces with what there is.
    pub(crate) fn answer(&mut self, asker: u64, role: &str) -> Answer {
        let process = getpid().as_raw_nonzero().get();
        let flows = if self.holds(asker) { std::mem::take(&mut self.flows) } else { Vec::new() };
        Answer::Traced(Traced { role: role.into(), process, flows })
    }
}

/// A source path's marked records between its stages and the network.
#[derive(Debug, Default)]
pub(crate) struct Departures {
    /// The next sequence, as it was when the last message was read, and the one that was expected for it.
    read: Option<(u64, u64)>,
    /// By their numbers among what was pushed.
    unwritten: VecDeque<(u64, u32)>,
    watched: VecDeque<(u64, u32)>,
    watched_at: Time,
    writing_at: Time,
    /// The kernel will tell more.
    expects: bool,
}

/// When a sink path has the kernel note arrivals.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    noted_since: Option<Time>,
    paused_until: Time,
    /// One was told since.
    pub(crate) is_told: bool,
}

impl Arrivals {
    /// Before records are received, of which the first will have this number.
    pub(crate) fn prepare(&mut self, trace: &Trace, number: u64, transport: &mut dyn Partner, now: Time) {
        let is_all = trace.one_in().get() == 1;
        let begins = match self.noted_since {
            None if now < self.paused_until => return,
            None => {
                if !is_all && trace.before_pick(number).is_none_or(|before| before > ARRIVALS_AHEAD) {
                    return;
                }
                true
            }
            Some(since) => {
                let lasts = now.since(since);
                if is_all || lasts < ARRIVALS_NOTED || !self.is_told && lasts < ARRIVALS_PAUSE {
                    return;
                }
                false
            }
        };
        (self.noted_since, self.is_told) = (begins.then_some(now), false);
        self.paused_until = now.after(ARRIVALS_PAUSE);
        // A transport whose kernel tells nothing is traced without it.
        let _ = transport.ctl(FlowKey::DEFAULT, Ctl::Watch(Watch::Arrivals(begins)));
    }
}

/// A transport's answer, if it has one.
fn progress(transport: &mut dyn Partner) -> Option<Progress> {
    match transport.ctl(FlowKey::DEFAULT, Ctl::Watch(Watch::Progress)) {
        Ok(CtlReply::Progress(progress)) => Some(progress),
        _ => None,
    }
}

/// When the kernel had what the transport received last, if it tells.
pub(crate) fn arrival(transport: &mut dyn Partner) -> Option<Time> {
    progress(transport)?.arrived
}

impl Departures {
    /// The sequence that the message to be read next is likely to get: exactly, if the stages are one-in-one-out
    /// and hold nothing.
    pub(crate) fn expected(&self, next_sequence: u64) -> u64 {
        match self.read {
            Some((known, expected)) if known == next_sequence => expected.wrapping_add(1),
            _ => next_sequence,
        }
    }

    /// That message was read.
    pub(crate) fn read(&mut self, next_sequence: u64) {
        self.read = Some((next_sequence, self.expected(next_sequence)));
    }

    /// A marked record is about to be pushed.
    pub(crate) fn push(&mut self, mark: u32, transport: &mut dyn Partner, now: Time) {
        if now.since(self.watched_at) < WATCH_INTERVAL {
            return;
        }
        if let Some(progress) = progress(transport)
            && transport.ctl(FlowKey::DEFAULT, Ctl::Watch(Watch::Next)).is_ok()
        {
            add(&mut self.watched, (progress.pushed + 1, mark), WATCHED_MAX);
            (self.watched_at, self.expects) = (now, true);
        }
    }

    /// A marked record was pushed. A large one the transport has written already.
    pub(crate) fn pushed(&mut self, mark: u32, transport: &mut dyn Partner, trace: &mut Trace) {
        let progress = progress(transport).unwrap_or_default();
        if progress.pushed > 0 && progress.written >= progress.pushed {
            return trace.stamp(mark, Point::Written, 0);
        }
        trace.stamp(mark, Point::Pushed, 0);
        add(&mut self.unwritten, (progress.pushed, mark), UNWRITTEN_MAX);
    }

    /// The transport is about to be flushed.
    pub(crate) fn writing(&mut self, trace: Option<&Trace>) {
        if let Some(trace) = trace.filter(|_| !self.unwritten.is_empty()) {
            self.writing_at = trace.now();
        }
    }

    /// The transport may have written something since, and everything if `is_flushed`. What the kernel tells is
    /// taken after the end of the trace too, or whoever waits for the socket would find no rest.
    pub(crate) fn written(
        &mut self,
        transport: Option<&mut Box<dyn Partner>>,
        is_flushed: bool,
        mut trace: Option<&mut Trace>,
    ) {
        if self.unwritten.is_empty() && !self.expects {
            return;
        }
        let Some(transport) = transport else { return };
        let mut known = progress(transport.as_mut());
        let written = known.map_or(0, |known| known.written);
        let now = trace.as_deref().map_or(Time::ZERO, Trace::now);
        let mut stamp = |mark, point, at| {
            if let Some(trace) = trace.as_deref_mut() {
                trace.stamp_at(mark, point, at);
            }
        };
        while let Some((_, mark)) =
            self.unwritten.pop_front_if(|(record, _)| is_flushed || *record <= written)
        {
            stamp(mark, Point::Writing, self.writing_at);
            stamp(mark, Point::Written, now);
        }
        while let Some(Progress { told: Some(told), .. }) = known {
            let point = match told.moment {
                Moment::Scheduled => Point::Scheduled,
                Moment::Sent => Point::Sent,
                Moment::Acknowledged => Point::Acknowledged,
            };
            if let Some((_, mark)) = self.watched.iter().find(|(record, _)| *record == told.record) {
                stamp(*mark, point, told.at);
            }
            known = progress(transport.as_mut());
        }
        self.expects = known.is_some_and(|known| known.expects);
    }

    /// What was pushed before went to another connection.
    pub(crate) fn handle_link(&mut self) {
        *self = Departures { read: self.read, ..Departures::default() };
    }
}

fn add(queue: &mut VecDeque<(u64, u32)>, record: (u64, u32), max: usize) {
    match queue.len() {
        0 => queue.reserve_exact(max),
        full if full == max => _ = queue.pop_front(),
        _ => {}
    }
    queue.push_back(record);
}

/// A message was read from a device; if it is sampled, its read began at `read_at`, and its trace with it.
pub(crate) fn receive(trace: &mut Trace, message: &mut Message, read_at: Option<Time>) {
    if let (Some(mark), Some(read_at)) = (trace.pass(read_at.is_some()), read_at) {
        message.attributes.mark = mark;
        // Of what the device says nothing it was made when it was read.
        if message.created <= read_at {
            trace.stamp_at(mark, Point::Made, message.created);
        }
        trace.stamp_at(mark, Point::Read, read_at);
        trace.stamp(mark, Point::Received, message.body.len());
    }
}
