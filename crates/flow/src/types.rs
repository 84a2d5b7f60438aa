//! Types that a driver and its paths share.

use contract::{
    Ctl, CtlReply, Direction, FlowClass, FlowDirection, FlowKey, Format, Interest, Offset, Partner,
    PartnerError, PartnerResult, Pulled, Readiness, Site, Time,
};
use pipeline::Pipeline;
use session::StoreFull;
use std::time::Duration;
use sys::poller::Poller;
use thiserror::Error;
use wire::FlowControl;
use wire::control::FLOWS_MAX;

/// One flow as this host builds it.
#[derive(Debug, Clone)]
pub struct FlowPlan {
    /// Number of the flow in its session.
    pub flow: u32,
    /// Direction of the flow.
    pub direction: FlowDirection,
    /// Delivery class: reliable, timely or state.
    pub class: FlowClass,
    /// Format of the messages at the source.
    pub format: Format,
    /// Pipeline that transforms the messages.
    pub pipeline: Pipeline,
    /// Pipelines that were requested since, oldest first. The previous worker may have changed to one of them.
    pub requested: Vec<Pipeline>,
    /// Keys and shared state that this host passes to the halves of the pairs.
    pub site: Site,
}

impl FlowPlan {
    /// Continues with the pipeline that the previous worker saved as `text`, if it is the current or a requested one. A
    /// text that the broker did not offer is ignored: the previous worker may have been compromised.
    pub(crate) fn resume_pipeline(&mut self, text: &str) {
        if let Some(at) = self.requested.iter().position(|pipeline| pipeline.text() == text) {
            self.pipeline = self.requested.swap_remove(at);
        }
    }
}

/// A report from a driver to its broker.
#[derive(Debug)]
pub enum Notice {
    /// Send this message to the other host.
    Flow {
        /// The flow.
        flow: u32,
        /// The message.
        message: FlowControl,
    },
    /// The device or the application's node disappeared.
    PartnerGone(String),
    /// The device is unplugged or in use elsewhere, and its partner waits for it ([`contract::Presence`]).
    PartnerAbsent(String),
    /// Its partner has the device again.
    PartnerPresent,
    /// The driver has taken over the device that returned: it misses no event from here on.
    PartnerReturned,
    /// The data connection failed.
    LinkFailed(String),
    /// The data connection works, but a new one would be faster.
    LinkHeldBack,
    /// The transport needs this number of further connections ([`contract::TransportCtl::ServeWays`]).
    WaysWanted(u32),
    /// The device needs this number of further connections ([`contract::Partner::connections_wanted`]).
    ConnectionsWanted(u32),
    /// A pipeline change finished or failed on this host.
    Changed {
        /// Direction of the changed flow.
        direction: FlowDirection,
        /// The text of the new pipeline, one of those that the broker offered, or the reason for the failure.
        result: Result<String, String>,
    },
    /// A flow ended and its sink has received everything.
    FlowEnded(FlowDirection),
    /// A module's process or a connection to the device failed. The text names the failure and the reaction.
    Incident(String),
    /// The worker was killed. A new worker resumes the driver, without its data connection.
    Restarted {
        /// How the worker exited.
        end: String,
    },
    /// A replay store is full, for the first time since everything was acknowledged.
    StoreFull(StoreFull),
    /// The peer was silent, and missed messages of the flow in this direction. They include unacknowledged ones, of which
    /// some may have arrived.
    Missed {
        /// Direction of the flow.
        direction: FlowDirection,
        /// Their number.
        messages: u64,
    },
    /// A failure lost messages of a reliable flow on this host.
    Lost {
        /// The reason, with the name of the pair.
        reason: String,
        /// Their number.
        messages: u64,
    },
    /// The driver failed and cannot continue.
    Failed(String),
}

/// Reasons why a driver cannot be built.
#[derive(Debug, Error)]
pub enum DriverError {
    /// The partner does not open a flow of this kind.
    #[error("{0}")]
    Partner(#[from] PartnerError),
    /// A pair cannot be built.
    #[error("{0}")]
    Pipeline(String),
}

/// Measurements of the link between the hosts.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LinkFacts {
    /// Offset to add to the peer's times.
    pub offset: Offset,
    /// Shortest recent round trip.
    pub round_trip: Duration,
}

/// The parts of a driver that a path uses while it runs.
pub struct PathContext<'a> {
    /// Device or application node; `None` while it is gone.
    pub partner: Option<&'a mut Box<dyn Partner>>,
    /// Data connection; `None` while there is none.
    pub transport: Option<&'a mut Box<dyn Partner>>,
    /// `None` until the clocks are synchronized.
    pub facts: Option<LinkFacts>,
    /// Time of this run.
    pub now: Time,
    /// Receives the reports for the broker.
    pub notices: &'a mut Vec<Notice>,
}

/// Time of a driver's next run.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wake {
    /// Run immediately.
    pub now: bool,
    /// Run at this time.
    pub at: Option<Time>,
}

impl Wake {
    /// Moves the next run forward to `time`, if that is earlier.
    pub fn at(&mut self, time: Option<Time>) {
        self.at = match (self.at, time) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
    }

    /// Returns the time until the next run; `None` means until a descriptor is ready.
    pub fn wait(&self, now: Time) -> Option<Duration> {
        if self.now { Some(Duration::ZERO) } else { self.at.map(|at| at.since(now)) }
    }

    /// Registers the descriptors of `readiness` with the poller and adds its timer.
    pub fn add(&mut self, poller: &mut Poller, readiness: Readiness<'_>) {
        self.now |= readiness.now;
        self.at(readiness.at);
        for (descriptor, interest) in readiness.descriptors.into_iter().flatten() {
            poller.register(descriptor, interest == Interest::Read, interest == Interest::Write);
        }
    }
}

/// The side that failed while a path ran.
#[derive(Debug)]
pub enum PathError {
    /// The device or the application's node.
    Partner(PartnerError),
    /// The data connection.
    Transport(PartnerError),
    /// The other host closed the data connection.
    Closed,
}

/// Result of one run of a path.
#[derive(Debug, Clone, Copy, Default)]
pub struct RunOutcome {
    /// The path can make more progress immediately.
    pub progress: bool,
    /// Something was pushed and needs a flush.
    pub pushed: bool,
    /// Messages that the path pulled.
    pub messages: u64,
    /// Bytes of their bodies.
    pub bytes: u64,
}

impl RunOutcome {
    /// Counts a pulled message.
    pub fn count(&mut self, pulled: &Pulled) {
        if let Pulled::Message(_, message) = pulled {
            self.messages += 1;
            self.bytes += message.body.len() as u64;
        }
    }
}

/// Flushes a partner; returns whether unwritten data remains.
pub fn flush(side: Option<&mut Box<dyn Partner>>) -> PartnerResult<bool> {
    let Some(side) = side else { return Ok(false) };
    Ok(!CtlReply::is_complete(side.ctl(FlowKey::DEFAULT, Ctl::Flush))?)
}

/// Removes all descriptors of a partner from the poller.
pub fn forget(poller: &mut Poller, partner: &dyn Partner) {
    let directions =
        [Direction::In, Direction::Out].map(|direction| partner.readiness(FlowKey::DEFAULT, direction));
    for readiness in directions.into_iter().chain([partner.upkeep()]) {
        for (descriptor, _) in readiness.descriptors.into_iter().flatten() {
            poller.forget(descriptor);
        }
    }
}

/// Returns the driver number of a flow.
pub fn driver_of(flow: u32) -> u32 {
    flow / FLOWS_MAX as u32
}
