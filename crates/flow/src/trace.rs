//! Traces the time of a message inside a host (Multimedia teleconferencing driver (1995), chapters 4 and 5).
//!
//! Each path stamps a sample of its messages ([`pipeline::Trace`]). A console client polls for the stamps. Tracing
//! stops when it no longer polls.

use crate::types::{FlowPlan, driver_of};
use contract::{
    Ctl, CtlReply, FlowDirection, FlowKey, Half, Message, Moment, Partner, Progress, Time, TraceCtl,
    TransportCtl,
};
use pipeline::{PAIRS_MAX, PairUse, Point, Stamps, Trace};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::time::Duration;
use wire::control::FLOWS_MAX;

/// Most stamps of one path that wait for a poll.
const STAMPS_MAX: usize = 8192;
/// Bytes of the longest name of a pair that a worker reports.
const PAIR_LABEL_BYTES_MAX: usize = 256;
/// Bytes of the longest stamp as JSON, with its comma.
const STAMP_JSON_BYTES: usize = 137;
/// Bytes for the other numbers of a flow's trace as JSON.
const FLOW_JSON_BYTES: usize = 1 << 10;
/// Bytes of the longest trace of one driver as JSON: full rings of both flows. A label has no character that JSON escapes.
pub const TRACE_JSON_BYTES_MAX: usize =
    FLOWS_MAX * (STAMPS_MAX * STAMP_JSON_BYTES + PAIRS_MAX * (PAIR_LABEL_BYTES_MAX + 3) + FLOW_JSON_BYTES);
/// How long tracing continues without a poll.
pub const LEASE: Duration = Duration::from_secs(3);
/// Shortest time between two records with kernel timestamps: each wakes the loop up to three times.
const WATCH_INTERVAL: Duration = Duration::from_millis(20);
/// Arrival timestamps of the kernel cost time for each packet of the connection, so they are enabled in short windows:
/// from this many records before a sampled one, for at least `ARRIVALS_OPEN`, then off for `ARRIVALS_PAUSE`.
const ARRIVALS_AHEAD: u64 = 16;
const ARRIVALS_OPEN: Duration = Duration::from_millis(20);
const ARRIVALS_PAUSE: Duration = Duration::from_millis(230);
/// Most marked records that wait in the transport for a write.
const UNWRITTEN_MAX: usize = 1024;
/// Most marked records that wait for kernel timestamps.
const WATCHED_MAX: usize = 16;

/// Creates an empty trace.
pub fn begin(one_in: NonZeroU32) -> Box<Trace> {
    Box::new(Trace::new(one_in, STAMPS_MAX, || Time(sys::clock::boot_ns())))
}

/// Stamps of one flow on one host.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FlowTrace {
    /// Name of the device.
    pub name: String,
    /// Name of the other host.
    pub peer: String,
    /// Number of the flow in its session.
    pub flow: u32,
    /// True if the flow runs from the device to the application.
    pub to_application: bool,
    /// True if the flow's source is on this host.
    pub is_source: bool,
    /// Pairs of the flow, in source order.
    pub pairs: Vec<String>,
    /// Offset to add to the other host's clock, nanoseconds; `None` until the clocks are synchronized.
    pub offset_ns: Option<i64>,
    /// Stamps since the last poll.
    pub stamps: Stamps,
}

impl FlowTrace {
    /// Takes the stamps of a path. The broker fills in the names.
    pub fn new(plan: &FlowPlan, half: Half, trace: &mut Trace) -> FlowTrace {
        FlowTrace {
            name: String::new(),
            peer: String::new(),
            flow: plan.flow,
            to_application: plan.direction == FlowDirection::DeviceToApplication,
            is_source: half == Half::Source,
            pairs: plan.pipeline.pairs().iter().map(pair_label).collect(),
            offset_ns: None,
            stamps: trace.take(),
        }
    }

    /// Returns whether the flow belongs to `driver` and its stamps and pairs are within their limits.
    pub fn is_within_limits(&self, driver: u32) -> bool {
        driver_of(self.flow) == driver
            && self.stamps.stamps.len() <= STAMPS_MAX
            && self.pairs.len() <= PAIRS_MAX
            && self.pairs.iter().all(|pair| pair.len() <= PAIR_LABEL_BYTES_MAX)
    }

    /// Sets the names of the device and of the other host.
    pub fn named(self, name: &str, peer: &str) -> FlowTrace {
        FlowTrace { name: name.into(), peer: peer.into(), ..self }
    }
}

/// Returns the name of a pair in the trace table. A pair in its own process is marked, since its time includes the
/// transfer.
fn pair_label(used: &PairUse) -> String {
    let name = used.pair.name();
    if used.isolation.is_some() { format!("{name} (process)") } else { name.into() }
}

/// Marked records of a source path between its stages and the network.
#[derive(Debug, Default)]
pub struct Departures {
    /// The source's next sequence when the last message was read, and the sequence expected for that message.
    read: Option<(u64, u64)>,
    /// Marked records in the transport: number of the push and mark.
    unwritten: VecDeque<(u64, u32)>,
    watched: VecDeque<(u64, u32)>,
    watched_at: Time,
    writing_at: Time,
    /// More kernel timestamps will arrive.
    expects_timestamps: bool,
}

/// Decides when a sink path enables arrival timestamps of the kernel.
#[derive(Debug, Default)]
pub struct Arrivals {
    open_since: Option<Time>,
    paused_until: Time,
    /// A timestamp arrived in this window.
    pub has_timestamp: bool,
}

impl Arrivals {
    /// Opens or closes a window before records are received. `number` is the expected sequence of the next one.
    pub fn prepare(&mut self, trace: &Trace, number: u64, transport: &mut dyn Partner, now: Time) {
        let is_all = trace.one_in().get() == 1;
        let opens = match self.open_since {
            None if now < self.paused_until => return,
            None => {
                if !is_all && trace.before_pick(number).is_none_or(|distance| distance > ARRIVALS_AHEAD) {
                    return;
                }
                true
            }
            Some(since) => {
                let duration = now.since(since);
                if is_all || duration < ARRIVALS_OPEN || !self.has_timestamp && duration < ARRIVALS_PAUSE {
                    return;
                }
                false
            }
        };
        (self.open_since, self.has_timestamp) = (opens.then_some(now), false);
        self.paused_until = now.after(ARRIVALS_PAUSE);
        // A transport without kernel timestamps returns an error; the trace then lacks those points.
        let _ =
            transport.ctl(FlowKey::DEFAULT, Ctl::Transport(TransportCtl::Trace(TraceCtl::Arrivals(opens))));
    }
}

/// Returns the transport's progress, if it reports any.
fn progress(transport: &mut dyn Partner) -> Option<Progress> {
    match transport.ctl(FlowKey::DEFAULT, Ctl::Transport(TransportCtl::Trace(TraceCtl::Progress))) {
        Ok(CtlReply::Progress(progress)) => Some(progress),
        _ => None,
    }
}

/// Returns the kernel's arrival time of the data that the transport received last, if known.
pub fn arrival(transport: &mut dyn Partner) -> Option<Time> {
    progress(transport)?.arrived
}

impl Departures {
    /// Returns the likely sequence of the next message to be read. The prediction is exact if each stage emits one
    /// message per input and holds none.
    pub fn expected(&self, next_sequence: u64) -> u64 {
        match self.read {
            Some((known, expected)) if known == next_sequence => expected.wrapping_add(1),
            _ => next_sequence,
        }
    }

    /// Updates the prediction after a message was read.
    pub fn read(&mut self, next_sequence: u64) {
        self.read = Some((next_sequence, self.expected(next_sequence)));
    }

    /// Requests kernel timestamps for a marked record before its push.
    pub fn push(&mut self, mark: u32, transport: &mut dyn Partner, now: Time) {
        if now.since(self.watched_at) < WATCH_INTERVAL {
            return;
        }
        if let Some(progress) = progress(transport)
            && transport.ctl(FlowKey::DEFAULT, Ctl::Transport(TransportCtl::Trace(TraceCtl::Next))).is_ok()
        {
            add(&mut self.watched, (progress.pushed + 1, mark), WATCHED_MAX);
            (self.watched_at, self.expects_timestamps) = (now, true);
        }
    }

    /// Stamps a marked record after its push. The transport writes a large record immediately.
    pub fn pushed(&mut self, mark: u32, transport: &mut dyn Partner, trace: &mut Trace) {
        let progress = progress(transport).unwrap_or_default();
        if progress.pushed > 0 && progress.written >= progress.pushed {
            return trace.stamp(mark, Point::Written, 0);
        }
        trace.stamp(mark, Point::Pushed, 0);
        add(&mut self.unwritten, (progress.pushed, mark), UNWRITTEN_MAX);
    }

    /// Notes the time before a flush of the transport.
    pub fn writing(&mut self, trace: Option<&Trace>) {
        if let Some(trace) = trace.filter(|_| !self.unwritten.is_empty()) {
            self.writing_at = trace.now();
        }
    }

    /// Stamps the records that the transport has written: all of them if `is_flushed`. The kernel's timestamps are
    /// read even after the trace has ended, because a pending one keeps the socket ready.
    pub fn written(
        &mut self,
        transport: Option<&mut Box<dyn Partner>>,
        is_flushed: bool,
        mut trace: Option<&mut Trace>,
    ) {
        if self.unwritten.is_empty() && !self.expects_timestamps {
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
        while let Some(Progress { report: Some(report), .. }) = known {
            let point = match report.moment {
                Moment::Scheduled => Point::Scheduled,
                Moment::Sent => Point::Sent,
                Moment::Acknowledged => Point::Acknowledged,
            };
            if let Some((_, mark)) = self.watched.iter().find(|(record, _)| *record == report.record) {
                stamp(*mark, point, report.at);
            }
            known = progress(transport.as_mut());
        }
        self.expects_timestamps = known.is_some_and(|known| known.expects);
    }

    /// Forgets the records that were pushed to the previous connection.
    pub fn handle_link(&mut self) {
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

/// Stamps a message that was read from a device. `read_at` is the start of the read, if the message is sampled.
pub fn receive(trace: &mut Trace, message: &mut Message, read_at: Option<Time>) {
    if let (Some(mark), Some(read_at)) = (trace.pass(read_at.is_some()), read_at) {
        message.attributes.mark = mark;
        // A device without timestamps sets the creation time after the read.
        if message.created <= read_at {
            trace.stamp_at(mark, Point::Made, message.created);
        }
        trace.stamp_at(mark, Point::Read, read_at);
        trace.stamp(mark, Point::Received, message.body.len());
    }
}
