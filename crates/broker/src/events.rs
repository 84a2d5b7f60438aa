//! Events that a service reports to people and scripts.

use console::Reloaded;
use flow::raw_path::Connected;
use flow::stats::DriverStats;
use hub::hub::HubStats;
use hub::joint::{JointEvent, JointStats};
use serde::Serialize;
use std::sync::Arc;

/// An event of a service.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Event {
    /// A device host listens.
    Listening {
        /// The address.
        address: String,
    },
    /// Authentication and encryption are off (`--insecure`): any host can connect and any router can read.
    Insecure {
        /// The address.
        address: String,
    },
    /// The peers that may connect.
    KnownPeers {
        /// Their names.
        peers: Vec<String>,
    },
    /// The preferred transport does not connect; the fallback is in use.
    FallbackStarted {
        /// The preferred transport.
        from: String,
        /// The transport in use.
        to: String,
        /// The reason.
        reason: String,
    },
    /// The preferred transport connects again and is in use.
    FallbackEnded {
        /// The fallback that was in use.
        from: String,
        /// The preferred transport.
        to: String,
    },
    /// This host asks its user in a dialog, and waits for the answer.
    Question {
        /// The question.
        question: String,
    },
    /// A problem that does not stop the service.
    Warning {
        /// The problem.
        problem: String,
    },
    /// A rule has started, and no device matches it yet.
    Waiting {
        /// The rule: a device with `*` in its name.
        device: String,
    },
    /// A device is offered.
    Offered {
        /// Its name in the catalogue.
        name: String,
        /// Its description.
        summary: String,
    },
    /// A device is no longer offered: the process that added it has exited.
    Withdrawn {
        /// Its name.
        name: String,
    },
    /// This process offers its device through another `share`.
    Joined {
        /// The process id of that `share`.
        process: i32,
    },
    /// A peer's session began.
    PeerJoined {
        /// Its name and address.
        peer: String,
    },
    /// A peer's session ended.
    PeerLeft {
        /// Its name and address.
        peer: String,
        /// The reason.
        reason: String,
    },
    /// A connection was refused.
    Refused {
        /// The peer, or its address.
        peer: String,
        /// The reason.
        reason: String,
    },
    /// A device of another host is about to be attached.
    Kind {
        /// Its name.
        name: String,
        /// Its class.
        class: &'static str,
        /// Its kind.
        kind: &'static str,
        /// This host has attached it as this kind before.
        known: bool,
    },
    /// A device is in use by a peer, or by a local application.
    Attached {
        /// Its name.
        name: String,
        /// The application's node, or the peer that uses the device.
        node: String,
        /// The pipelines in canonical form, device to application first.
        pipelines: Vec<String>,
    },
    /// A device is no longer in use.
    Detached {
        /// Its name.
        name: String,
        /// The reason.
        reason: String,
    },
    /// The other host is silent.
    LinkLost {
        /// The sign of it.
        reason: String,
    },
    /// The other host answers again.
    LinkBack {
        /// Seconds of silence.
        seconds: f64,
    },
    /// The other host was silent and missed messages of a device. Afterwards it got the present state, such as the pressed keys.
    Missed {
        /// The device's name.
        name: String,
        /// Their number. Some of the last ones before the silence may have arrived.
        messages: u64,
        /// `input events` of a keyboard, pointer or gamepad, or `messages`.
        unit: &'static str,
    },
    /// A peer asked for a device that it may not use. The peer is told that there is no such device.
    Forbidden {
        /// Its name and address.
        peer: String,
        /// The device's name.
        name: String,
        /// The command that permits it.
        remedy: String,
    },
    /// A device is unavailable.
    DeviceGone {
        /// Its name.
        name: String,
        /// The reason.
        reason: String,
    },
    /// A device is available again.
    DeviceBack {
        /// Its name.
        name: String,
    },
    /// The process of a module failed.
    Module {
        /// The device's name.
        name: String,
        /// The module, the failure, and the reaction.
        incident: String,
    },
    /// The worker of a device died or was killed, and was restarted.
    Worker {
        /// The device's name.
        name: String,
        /// The cause.
        incident: String,
    },
    /// The replay store of a flow is full.
    StoreFull {
        /// The device's name.
        name: String,
        /// The consequence for the flow: `block`, `drop-oldest` or `close`.
        policy: &'static str,
    },
    /// Lines of the log were dropped, because its reader did not read.
    LinesDropped {
        /// Their number.
        lines: u64,
    },
    /// A flow has ended and the sink has received all of it.
    FlowEnded {
        /// The device's name.
        name: String,
    },
    /// The clock offset and round trip of a link.
    Link {
        /// The local name of the other host, if it is a peer.
        peer: Option<String>,
        /// Offset to add to the peer's clock to get this host's, milliseconds.
        offset_ms: f64,
        /// Bound of the offset's error, milliseconds.
        error_ms: f64,
        /// Shortest recent round trip, milliseconds.
        round_trip_ms: f64,
    },
    /// The pipeline of a flow has changed.
    Changed {
        /// The device's name.
        name: String,
        /// Set if this is the flow from the application to the device.
        back: bool,
        /// The new pipeline, canonical.
        pipeline: String,
    },
    /// The run file was read again.
    Reloaded {
        /// The result.
        #[serde(flatten)]
        done: Reloaded,
    },
    /// Metrics are served.
    Metrics {
        /// The address.
        address: String,
    },
    /// A raw path between two partners of this host has ended.
    Connected {
        /// The device's side.
        source: String,
        /// The application's side.
        sink: String,
        /// The amount of data moved.
        #[serde(flatten)]
        moved: Connected,
    },
    /// Periodic statistics of a device that several hosts use.
    Hub {
        /// The device's name.
        name: String,
        /// The statistics.
        hub: Box<HubStats>,
    },
    /// Periodic statistics of a joint of several devices.
    Joint {
        /// The devices' names.
        name: String,
        /// The statistics.
        joint: Box<JointStats>,
    },
    /// Periodic statistics of a device.
    Stats {
        /// The device's name.
        name: String,
        /// The statistics.
        stats: Box<DriverStats>,
    },
}

impl From<JointEvent> for Event {
    fn from(event: JointEvent) -> Event {
        match event {
            JointEvent::Attached { name, node, pipelines } => Event::Attached { name, node, pipelines },
            JointEvent::Stats { name, stats } => Event::Joint { name, joint: stats },
        }
    }
}

/// A sink for events, callable from any thread.
pub type EmitEvent = Arc<dyn Fn(Event) + Send + Sync>;
