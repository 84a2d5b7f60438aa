//! What a service tells while it runs, and how it is told to stop.

use crate::connect::Connected;
use crate::junction::hub::HubStats;
use crate::junction::joint::JointStats;
use crate::service::Reloaded;
use crate::stats::DriverStats;
use serde::Serialize;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use sys::event::Event as Wake;

/// Something a person or a script wants to know.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Event {
    /// A sharer listens.
    Listening {
        /// Where.
        address: String,
    },
    /// Whoever reaches this host, or is on the way to the other, may do as it likes (`--insecure`).
    Insecure {
        /// Where.
        address: String,
    },
    /// Only hosts that are paired are let in.
    Knows {
        /// Their names.
        peers: Vec<String>,
    },
    /// The other host could not be reached by one transport, and is by another.
    FellBack {
        /// The one that was wanted.
        from: String,
        /// The one that is used.
        to: String,
        /// Why.
        reason: String,
    },
    /// It is reached again by the transport that was wanted, which carries from now on.
    CameBack {
        /// The one that was used.
        from: String,
        /// The one that was wanted.
        to: String,
    },
    /// Something is not as it should be, and it goes on.
    Warning {
        /// What.
        problem: String,
    },
    /// A device is offered.
    Offered {
        /// Its name in the catalogue.
        name: String,
        /// What it is.
        summary: String,
    },
    /// A device is no longer offered: the process that offered it through this one is gone.
    Withdrawn {
        /// Its name.
        name: String,
    },
    /// This process offers its device through another sharer.
    Joined {
        /// That one's process id.
        process: i32,
    },
    /// A peer's session began.
    PeerJoined {
        /// Its name and address.
        peer: String,
    },
    /// A peer's session ended.
    PeerLeft {
        /// Its name.
        peer: String,
        /// Why.
        reason: String,
    },
    /// A peer, or somebody, was turned away.
    Refused {
        /// Who.
        peer: String,
        /// Why.
        reason: String,
    },
    /// A device is in use, by a peer or by an application here.
    Attached {
        /// Its name.
        name: String,
        /// What the application sees, or which peer uses it.
        node: String,
        /// The pipelines in canonical form, device to application first.
        pipelines: Vec<String>,
    },
    /// A device is no longer in use.
    Detached {
        /// Its name.
        name: String,
        /// Why.
        reason: String,
    },
    /// The other host is silent.
    LinkLost {
        /// Why it is thought so.
        reason: String,
    },
    /// The other host is heard again.
    LinkBack {
        /// Seconds without it.
        seconds: f64,
    },
    /// A device went away.
    DeviceGone {
        /// Its name.
        name: String,
        /// Why.
        reason: String,
    },
    /// A device is back.
    DeviceBack {
        /// Its name.
        name: String,
    },
    /// The process of a module failed: which, why, and what was done about it.
    Module {
        /// Its device's name.
        name: String,
        /// The rest.
        incident: String,
    },
    /// The worker of a device was killed, or died: how, and that another went on.
    Worker {
        /// The device's name.
        name: String,
        /// The rest.
        incident: String,
    },
    /// What a flow keeps to send again is as much as it may be.
    StoreFull {
        /// Its device's name.
        name: String,
        /// What becomes of the flow: `block`, `drop-oldest` or `close`.
        policy: &'static str,
    },
    /// A flow has ended and its sink has everything.
    FlowEnded {
        /// Its device's name.
        name: String,
    },
    /// What is known of the clocks and the link.
    Link {
        /// What the other host is called here, if it is known.
        peer: Option<String>,
        /// What is added to the peer's clock to get ours, milliseconds.
        offset_ms: f64,
        /// Bound of its error, milliseconds.
        error_ms: f64,
        /// Shortest round trip seen lately, milliseconds.
        round_trip_ms: f64,
    },
    /// A flow has another pipeline now.
    Changed {
        /// The device's name.
        name: String,
        /// Whether it is the flow from the application to the device.
        back: bool,
        /// The pipeline, canonical.
        pipeline: String,
    },
    /// The run file was read again.
    Reloaded {
        /// What that did.
        #[serde(flatten)]
        done: Reloaded,
    },
    /// Metrics are served.
    Metrics {
        /// Where.
        address: String,
    },
    /// A raw path of this host has ended.
    Connected {
        /// The side of the device.
        source: String,
        /// The side of the application.
        sink: String,
        /// What it moved.
        #[serde(flatten)]
        moved: Connected,
    },
    /// Figures of a device that several hosts use, at intervals.
    Hub {
        /// The device's name.
        name: String,
        /// The figures.
        hub: Box<HubStats>,
    },
    /// Figures of a joint of several devices, at intervals.
    Joint {
        /// The devices' names.
        name: String,
        /// The figures.
        joint: Box<JointStats>,
    },
    /// Figures, at intervals.
    Stats {
        /// The device's name.
        name: String,
        /// The figures.
        stats: Box<DriverStats>,
    },
}

/// Hears events, from whatever thread.
pub type Tell = Arc<dyn Fn(Event) + Send + Sync>;

/// Tells a service to stop; clones are handles on the same one.
#[derive(Debug, Clone)]
pub struct Stop {
    said: Arc<AtomicBool>,
    wake: Wake,
}

impl Stop {
    /// Not said yet.
    pub fn new() -> io::Result<Stop> {
        Ok(Stop { said: Arc::default(), wake: Wake::new()? })
    }

    /// Says it.
    pub fn stop(&self) {
        self.said.store(true, Ordering::Release);
        self.wake.signal();
    }

    /// Whether it was said.
    pub fn is_said(&self) -> bool {
        self.said.load(Ordering::Acquire)
    }

    pub(crate) fn wakes(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
