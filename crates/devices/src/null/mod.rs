//! `null`: an application that discards and counts all messages; a device that ends at once.

#[cfg(test)]
mod tests;

use crate::flows::Flows;
use crate::plain;
use crate::stream::now;
use contract::{
    Attributes, Ctl, CtlReply, Description, DeviceClass, DeviceError, DeviceSpec, Direction, FlowKey,
    FlowTemplate, Format, Message, ModuleEntry, Opened, Partner, PartnerError, Pull, Pulled, Pushed,
    Readiness, Report, Role, Time,
};

/// The class `null`.
#[derive(Debug)]
pub struct Null;

impl DeviceClass for Null {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry {
            name: "null",
            summary: "discards and counts messages, as an application; ends at once, as a device",
            doc: include_str!("doc.md"),
            options: &[],
        }
    }

    fn target(&self) -> &'static str {
        ""
    }

    fn has_role(&self, _role: Role) -> bool {
        true
    }

    fn open(&self, spec: &DeviceSpec, role: Role, _: Option<&Description>) -> Result<Opened, DeviceError> {
        let description = plain::description(spec, plain::forward_flow(), "null");
        Ok(Opened { spec: spec.clone(), role, description, descriptors: Vec::new() })
    }

    fn partner(&self, opened: Opened) -> Result<Box<dyn Partner>, DeviceError> {
        let flows = Flows::new(opened.role == Role::Device, opened.role == Role::Application);
        Ok(Box::new(NullPartner { flows, arrivals: Arrivals::default(), has_ended: false }))
    }
}

/// Counts messages and measures the intervals between them.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    messages: u64,
    bytes: u64,
    last: Option<Time>,
    intervals: u64,
    mean_ns: f64,
    /// Sum of squared differences from the mean, ns².
    squares: f64,
}

impl Arrivals {
    /// Counts one message of `bytes` at `now`. Updates mean and variance incrementally (Welford 1962).
    pub(crate) fn count(&mut self, bytes: usize, now: Time) {
        self.messages += 1;
        self.bytes += bytes as u64;
        if let Some(last) = self.last.replace(now) {
            self.intervals += 1;
            let interval_ns = now.since(last).as_nanos() as f64;
            let difference = interval_ns - self.mean_ns;
            self.mean_ns += difference / self.intervals as f64;
            self.squares += difference * (interval_ns - self.mean_ns);
        }
    }

    /// Returns the counts, and mean and standard deviation of the intervals in ms.
    pub(crate) fn report(&self) -> Vec<Report> {
        let deviation_ns = (self.squares / self.intervals.max(1) as f64).sqrt();
        vec![
            ("messages", self.messages as f64),
            ("bytes", self.bytes as f64),
            ("interval mean ms", self.mean_ns / 1e6),
            ("interval deviation ms", deviation_ns / 1e6),
        ]
    }
}

#[derive(Debug)]
struct NullPartner {
    flows: Flows,
    arrivals: Arrivals,
    has_ended: bool,
}

impl Partner for NullPartner {
    fn open(&mut self, template: &FlowTemplate, _attributes: &Attributes) -> Result<FlowKey, PartnerError> {
        self.flows.open(template, &Format::Bytes)
    }

    fn close(&mut self, flow: FlowKey) -> Result<(), PartnerError> {
        self.flows.close(flow).map(|_| ())
    }

    fn push(&mut self, flow: FlowKey, message: Message) -> Result<Pushed, (PartnerError, Message)> {
        match self.flows.check(flow, Direction::In) {
            Ok(()) => {
                self.arrivals.count(message.body.len(), now());
                Ok(Pushed::Taken)
            }
            Err(error) => Err((error, message)),
        }
    }

    fn pull(&mut self, flow: FlowKey, _request: Pull<'_>) -> Result<Pulled, PartnerError> {
        self.flows.check(flow, Direction::Out)?;
        self.has_ended = true;
        Ok(Pulled::End)
    }

    fn ctl(&mut self, flow: FlowKey, operation: Ctl<'_>) -> Result<CtlReply, PartnerError> {
        self.flows.check_any(flow)?;
        match operation {
            Ctl::Flush | Ctl::Finish | Ctl::Neutral => Ok(CtlReply::Done),
            Ctl::Report => Ok(CtlReply::Report(self.arrivals.report())),
            _ => Err(PartnerError::Unsupported("this operation")),
        }
    }

    fn readiness(&self, flow: FlowKey, direction: Direction) -> Readiness<'_> {
        match self.flows.names(flow, direction) && !self.has_ended {
            true => Readiness::now(),
            false => Readiness::never(),
        }
    }
}
