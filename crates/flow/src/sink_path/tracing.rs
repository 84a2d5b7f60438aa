//! Stamps of traced messages on the sink path.

use super::SinkPath;
use crate::trace::{Arrivals, FlowTrace};
use contract::{Half, Message, Partner, Time};
use pipeline::Point;
use std::num::NonZeroU32;
use wire::RecordHeader;

/// Most marked messages that wait for the partner's flush. Further ones get no stamp for it.
const UNFLUSHED_MAX: usize = 1024;

/// Start of a read from the network, and the kernel's arrival time of its data.
pub(super) type Read = (Time, Option<Time>);

/// Traced records between the network and the partner.
#[derive(Debug, Default)]
pub(super) struct SinkTracing {
    /// Likely sequence of the next record.
    expected: u64,
    pub(super) arrivals: Arrivals,
    /// Marked messages that wait for the partner's flush.
    unflushed: Vec<u32>,
}

impl SinkPath {
    /// Enables arrival timestamps before the next records, if they are needed.
    pub(super) fn trace_prepare(&mut self, transport: Option<&mut Box<dyn Partner>>, now: Time) {
        let SinkTracing { arrivals, expected, .. } = &mut self.tracing;
        if let (Some(trace), Some(transport)) = (self.stages.out.trace.as_deref(), transport) {
            arrivals.prepare(trace, *expected, transport.as_mut(), now);
        }
    }

    /// Returns the start time of a read from the network, if the next record is sampled.
    pub(super) fn trace_read_start(&mut self) -> Option<Time> {
        let trace = self.stages.out.trace.as_deref_mut()?;
        trace.picks(self.tracing.expected).then(|| trace.now())
    }

    pub(super) fn trace_received(&mut self, record: &mut Message, header: &RecordHeader, read: Option<Read>) {
        let Some(trace) = self.stages.out.trace.as_deref_mut() else { return };
        self.tracing.expected = header.sequence.wrapping_add(1);
        let read = read.filter(|_| trace.picks(header.sequence));
        if let (Some(mark), Some((read_at, arrived_at))) = (trace.pass(read.is_some()), read) {
            record.attributes.mark = mark;
            trace.stamp_at(mark, Point::Made, record.created);
            if let Some(arrived_at) = arrived_at {
                trace.stamp_at(mark, Point::Arrived, arrived_at);
                self.tracing.arrivals.has_timestamp = true;
            }
            trace.stamp_at(mark, Point::Read, read_at);
            trace.stamp_number(mark, Point::Received, record.body.len(), (header.epoch, header.sequence));
        }
    }

    /// Stamps a message that the partner accepted; it may still have to be flushed.
    pub(super) fn trace_handed(&mut self, mark: u32) {
        if let Some(trace) = self.stages.out.trace.as_deref_mut().filter(|_| mark != 0) {
            trace.stamp(mark, Point::Handed, 0);
            if self.tracing.unflushed.len() < UNFLUSHED_MAX {
                self.tracing.unflushed.push(mark);
            }
        }
    }

    /// Stamps the messages that the partner has written.
    pub fn trace_delivered(&mut self) {
        for mark in self.tracing.unflushed.drain(..) {
            if let Some(trace) = self.stages.out.trace.as_deref_mut() {
                trace.stamp(mark, Point::Delivered, 0);
            }
        }
    }

    /// Traces one message in `one_in`, or continues an active trace. Returns the stamps since the last call.
    pub fn trace(&mut self, one_in: NonZeroU32) -> Option<FlowTrace> {
        self.tracing.unflushed.reserve(UNFLUSHED_MAX);
        self.stages.trace(one_in, &self.plan, Half::Sink)
    }

    /// Ends the trace.
    pub fn end_trace(&mut self) {
        self.stages.out.trace = None;
        self.tracing = SinkTracing { expected: self.tracing.expected, ..SinkTracing::default() };
    }
}
