//! Device classes: both sides of a kind of device, the device itself and the application's node.

use crate::{FlowClass, FlowDirection, Format, OptionSpec, Options, Partner};
use std::os::fd::OwnedFd;
use thiserror::Error;

/// Which side of a driver a spec stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// The device and its own driver: `share`, or the source of `connect`.
    Device,
    /// The node that an unmodified application opens: `attach --as`, or the sink of `connect`.
    Application,
}

/// `kind:rest`, taken apart: which class, what it stands for, its options.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceSpec {
    /// The class.
    pub class: String,
    /// A path, a command, an address: what the class says.
    pub target: String,
    /// Checked, with every default filled in.
    pub options: Options,
}

/// One flow that a device has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowOffer {
    /// Which way it goes.
    pub direction: FlowDirection,
    /// What its messages mean.
    pub format: Format,
    /// What it promises, unless the user says otherwise.
    pub class: FlowClass,
}

/// What a peer must know of a device to make a node like it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// Class of the device.
    pub class: String,
    /// One line for a person.
    pub summary: String,
    /// Its flows: at most one each way.
    pub flows: Vec<FlowOffer>,
    /// The application class that suits it, when none is named.
    pub application: &'static str,
    /// Everything else, in the class's own checked layout (ids, capabilities, ranges, settings).
    pub properties: Vec<u8>,
}

/// A device found on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    /// What to say to `share`.
    pub spec: String,
    /// One line for a person.
    pub summary: String,
    /// Why it cannot be opened now, if so, and what to do.
    pub problem: Option<String>,
    /// Whether Outboard made it: an application's node, which stands in for a device elsewhere.
    pub ours: bool,
}

/// What the broker hands a worker: descriptors and plain data, nothing else crosses that wall.
#[derive(Debug)]
pub struct Opened {
    /// What was opened.
    pub spec: DeviceSpec,
    /// As which side.
    pub role: Role,
    /// What it is.
    pub description: Description,
    /// Open descriptors, in the class's own order.
    pub descriptors: Vec<OwnedFd>,
}

impl Opened {
    /// The same, with descriptors of its own for what is open there.
    pub fn try_clone(&self) -> std::io::Result<Opened> {
        let Opened { spec, role, description, descriptors } = self;
        let descriptors = descriptors.iter().map(OwnedFd::try_clone).collect::<Result<_, _>>()?;
        Ok(Opened { spec: spec.clone(), role: *role, description: description.clone(), descriptors })
    }
}

/// Why a device could not be opened or driven.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The class has no such side.
    #[error("{class} cannot be {}", match .role { Role::Device => "shared: it is no device", Role::Application => "attached: it is no application side" })]
    Role {
        /// The class.
        class: &'static str,
        /// The side asked for.
        role: Role,
    },
    /// What the user wrote after the colon, or the peer's description, is wrong.
    #[error("{what}: {problem}")]
    Spec {
        /// The spec or the field.
        what: String,
        /// What is wrong and what to do.
        problem: String,
    },
    /// The system refused.
    #[error("{operation}: {error}{}", .advice.as_deref().map(|a| format!(" ({a})")).unwrap_or_default())]
    Os {
        /// What was tried, on what.
        operation: String,
        /// What the system said.
        error: std::io::Error,
        /// What to do about it.
        advice: Option<String>,
    },
}

/// A class of devices: one row in the table of `devices`.
///
/// `open` runs in the broker, which may open devices; `partner` runs in a worker, which may not: it needs nothing but
/// what `open` gave, no file, socket or program of its own.
pub trait DeviceClass: Sync {
    /// Its name before the colon.
    fn name(&self) -> &'static str;

    /// One line.
    fn summary(&self) -> &'static str;

    /// The whole documentation, Markdown: both sides, how it treats loss, what does not cross.
    fn doc(&self) -> &'static str;

    /// What stands after the colon, for help: `PATH`, `COMMAND`; empty if nothing does.
    fn target(&self) -> &'static str;

    /// Whether it has this side.
    fn has_role(&self, role: Role) -> bool;

    /// The class of the node that suits a device of this class, when the user names none.
    fn application(&self) -> &'static str {
        "stdout"
    }

    /// What is good for one of its flows where neither host says anything of a pipeline; empty: nothing is.
    fn pipeline(&self, direction: FlowDirection) -> &'static str {
        let _ = direction;
        ""
    }

    /// Options of a spec, given as `,name=value` behind the target.
    fn options(&self) -> &'static [OptionSpec];

    /// The kernel's name for the subsystem whose devices these are (`SUBSYSTEM` of its uevents), where they come and go
    /// and can be listed.
    fn subsystem(&self) -> Option<&'static str> {
        None
    }

    /// Devices of this class on this host, for `outboard devices`.
    fn list(&self) -> Vec<Listing> {
        Vec::new()
    }

    /// Opens the device, or makes the application's node. `like` is the device's description when a node
    /// is made for a device elsewhere: bytes from a stranger, to be checked.
    fn open(&self, spec: &DeviceSpec, role: Role, like: Option<&Description>) -> Result<Opened, DeviceError>;

    /// Finds the same device again after it went away, by what it is rather than where it was.
    fn reopen(&self, spec: &DeviceSpec, role: Role, known: &Description) -> Result<Opened, DeviceError> {
        self.open(spec, role, Some(known))
    }

    /// The broker lets go of what it opened, after the partner is gone: what that could not clear away in a worker
    /// process, such as a name in the file system, goes now.
    fn release(&self, _opened: &Opened) {}

    /// The partner that runs on what was opened.
    fn partner(&self, opened: Opened) -> Result<Box<dyn Partner>, DeviceError>;
}
