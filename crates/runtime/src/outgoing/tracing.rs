//! Stamps of traced messages on the source path.

use super::Outgoing;
use crate::trace::{self, FlowTrace};
use contract::{Half, Message, Partner, Time};
use pipeline::Point;
use std::num::NonZeroU32;

impl Outgoing {
    /// When a read of the device begins whose message is sampled.
    pub(super) fn read_begins(&mut self) -> Option<Time> {
        let trace = self.segment.out.trace.as_deref_mut()?;
        trace.picks(self.departures.expected(self.source.next_sequence())).then(|| trace.now())
    }

    pub(super) fn trace_received(&mut self, message: &mut Message, read_at: Option<Time>) {
        if let Some(trace) = self.segment.out.trace.as_deref_mut() {
            self.departures.read(self.source.next_sequence());
            trace::receive(trace, message, read_at);
        }
    }

    pub(super) fn trace_numbered(&mut self, record: &Message) {
        let mark = record.attributes.mark;
        if let Some(trace) = self.segment.out.trace.as_deref_mut().filter(|_| mark != 0) {
            let number = (self.source.epoch(), self.source.next_sequence() - 1);
            trace.stamp_number(mark, Point::Numbered, record.body.len(), number);
        }
    }

    /// The transport is about to be flushed.
    pub(crate) fn trace_writing(&mut self) {
        self.departures.writing(self.segment.out.trace.as_deref());
    }

    /// The transport may have written something since, and everything if `is_flushed`.
    pub(crate) fn trace_written(&mut self, transport: Option<&mut Box<dyn Partner>>, is_flushed: bool) {
        self.departures.written(transport, is_flushed, self.segment.out.trace.as_deref_mut());
    }

    /// Traces one message in `one_in`, or goes on with it; what was traced since the last time.
    pub(crate) fn trace(&mut self, one_in: NonZeroU32) -> Option<FlowTrace> {
        self.segment.trace(one_in, &self.plan, Half::Source)
    }

    /// Nobody asks any more.
    pub(crate) fn end_trace(&mut self) {
        self.segment.out.trace = None;
    }
}
