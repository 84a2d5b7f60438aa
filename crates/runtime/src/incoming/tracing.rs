//! Stamps of traced messages on the sink path.

use super::{HANDED_MAX, Incoming, Read};
use crate::trace::{Arrivals, FlowTrace};
use contract::{Half, Message, Time};
use pipeline::Point;
use std::num::NonZeroU32;
use wire::RecordHeader;

impl Incoming {
    /// When a read of the network begins whose record is sampled.
    pub(super) fn read_begins(&mut self) -> Option<Time> {
        let trace = self.segment.out.trace.as_deref_mut()?;
        trace.picks(self.expected).then(|| trace.now())
    }

    pub(super) fn trace_received(&mut self, record: &mut Message, header: &RecordHeader, read: Option<Read>) {
        let Some(trace) = self.segment.out.trace.as_deref_mut() else { return };
        self.expected = header.sequence.wrapping_add(1);
        let read = read.filter(|_| trace.picks(header.sequence));
        if let (Some(mark), Some((read_at, arrived_at))) = (trace.pass(read.is_some()), read) {
            record.attributes.mark = mark;
            trace.stamp_at(mark, Point::Made, record.created);
            if let Some(arrived_at) = arrived_at {
                trace.stamp_at(mark, Point::Arrived, arrived_at);
                self.arrivals.is_told = true;
            }
            trace.stamp_at(mark, Point::Read, read_at);
            trace.stamp_number(mark, Point::Received, record.body.len(), (header.epoch, header.sequence));
        }
    }

    /// The partner has written what it has taken.
    pub(crate) fn trace_delivered(&mut self) {
        for mark in self.handed.drain(..) {
            if let Some(trace) = self.segment.out.trace.as_deref_mut() {
                trace.stamp(mark, Point::Delivered, 0);
            }
        }
    }

    /// Traces one message in `one_in`, or goes on with it; what was traced since the last time.
    pub(crate) fn trace(&mut self, one_in: NonZeroU32) -> Option<FlowTrace> {
        self.handed.reserve(HANDED_MAX);
        self.segment.trace(one_in, &self.plan, Half::Sink)
    }

    /// Nobody asks any more.
    pub(crate) fn end_trace(&mut self) {
        self.segment.out.trace = None;
        (self.arrivals, self.handed) = (Arrivals::default(), Vec::new());
    }
}
