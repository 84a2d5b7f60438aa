//! Stamps of traced messages on the source path.

use super::SourcePath;
use crate::trace::{self, FlowTrace};
use contract::{Half, Message, Partner, Time};
use pipeline::Point;
use std::num::NonZeroU32;

impl SourcePath {
    /// Returns the start time of a read from the device, if the next message is sampled.
    pub(super) fn trace_read_start(&mut self) -> Option<Time> {
        let trace = self.stages.out.trace.as_deref_mut()?;
        trace.picks(self.departures.expected(self.source.next_sequence())).then(|| trace.now())
    }

    pub(super) fn trace_received(&mut self, message: &mut Message, read_at: Option<Time>) {
        if let Some(trace) = self.stages.out.trace.as_deref_mut() {
            self.departures.read(self.source.next_sequence());
            trace::receive(trace, message, read_at);
        }
    }

    pub(super) fn trace_numbered(&mut self, record: &Message) {
        let mark = record.attributes.mark;
        if let Some(trace) = self.stages.out.trace.as_deref_mut().filter(|_| mark != 0) {
            let number = (self.source.epoch(), self.source.next_sequence() - 1);
            trace.stamp_number(mark, Point::Numbered, record.body.len(), number);
        }
    }

    /// Notes the time before a flush of the transport.
    pub fn trace_writing(&mut self) {
        self.departures.writing(self.stages.out.trace.as_deref());
    }

    /// Stamps the records that the transport has written: all of them if `is_flushed`.
    pub fn trace_written(&mut self, transport: Option<&mut Box<dyn Partner>>, is_flushed: bool) {
        self.departures.written(transport, is_flushed, self.stages.out.trace.as_deref_mut());
    }

    /// Traces one message in `one_in`, or continues an active trace. Returns the stamps since the last call.
    pub fn trace(&mut self, one_in: NonZeroU32) -> Option<FlowTrace> {
        self.stages.trace(one_in, &self.plan, Half::Source)
    }

    /// Ends the trace.
    pub fn end_trace(&mut self) {
        self.stages.out.trace = None;
    }
}
