//! `null`: an application that discards and counts all messages; a device that ends at once.

#[cfg(test)]
mod tests;

use crate::flows::{Endpoint, FlowPartner};
use crate::plain;
use crate::stream::now;
use contract::{
    Ctl, CtlReply, Description, DeviceClass, DeviceError, DeviceSpec, Direction, FlowKey, FlowOffer, Format,
    Message, ModuleEntry, Next, Opened, Partner, PartnerError, PartnerResult, PullSlot, Pushed, Readiness,
    Report, Role, Time,
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

    fn flows(&self, _spec: &DeviceSpec) -> Result<Vec<FlowOffer>, DeviceError> {
        Ok(plain::forward_flow())
    }

    fn open(&self, spec: &DeviceSpec, role: Role, _: Option<&Description>) -> Result<Opened, DeviceError> {
        let description = plain::description(spec, self.flows(spec)?, "null");
        Ok(Opened { spec: spec.clone(), role, description, descriptors: Vec::new() })
    }

    fn partner(&self, opened: Opened) -> Result<Box<dyn Partner>, DeviceError> {
        let format = |role| (opened.role == role).then_some(Format::Bytes);
        let partner = NullPartner { arrivals: Arrivals::default(), has_ended: false };
        Ok(Box::new(FlowPartner::new(partner, format(Role::Device), format(Role::Application))))
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
    arrivals: Arrivals,
    has_ended: bool,
}

impl Endpoint for NullPartner {
    fn push(&mut self, message: Message) -> Result<Pushed, (PartnerError, Message)> {
        self.arrivals.count(message.body.len(), now());
        Ok(Pushed::Taken)
    }

    fn next(&mut self, _now: Time) -> PartnerResult<Next> {
        self.has_ended = true;
        Ok(Next::End)
    }

    fn ctl(&mut self, _flow: FlowKey, operation: Ctl<'_>, _slot: &mut PullSlot) -> PartnerResult<CtlReply> {
        match operation {
            Ctl::Flush | Ctl::Finish | Ctl::Neutral => Ok(CtlReply::Done),
            Ctl::Report => Ok(CtlReply::Report(self.arrivals.report())),
            _ => Err(PartnerError::Unsupported("this operation")),
        }
    }

    fn readiness(&self, _direction: Direction) -> Readiness<'_> {
        if self.has_ended { Readiness::never() } else { Readiness::now() }
    }
}
