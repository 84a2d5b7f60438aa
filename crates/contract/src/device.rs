//! Device classes. Each has two sides: the device itself, and the node that an application opens.

use crate::{FlowClass, FlowDirection, Format, Kind, ModuleEntry, OptionSpec, Options, Partner};
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// The side of a driver that a spec names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// The device and its own driver: `share`, or the source of `connect`.
    Device,
    /// The node that an unmodified application opens: `attach --as`, or the sink of `connect`.
    Application,
}

/// A parsed spec: `class:target,name=value`.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceSpec {
    /// Name of the class.
    pub class: String,
    /// The text after the colon: a path, a command or an address, as the class defines it.
    pub target: String,
    /// Checked options, with every default filled in.
    pub options: Options,
}

/// One flow of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowOffer {
    /// The direction of the flow.
    pub direction: FlowDirection,
    /// The format of its messages.
    pub format: Format,
    /// Its default class; the user may choose another.
    pub class: FlowClass,
}

/// Everything a peer needs to make a node for a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// Name of the device's class.
    pub class: String,
    /// One line of text for users.
    pub summary: String,
    /// At most one flow in each direction.
    pub flows: Vec<FlowOffer>,
    /// The class of node to make when the user names none.
    pub application: &'static str,
    /// All other facts, in the class's own checked layout (ids, capabilities, ranges, settings).
    pub properties: Vec<u8>,
}

impl Description {
    /// Class of a side port, which records what a pair sees.
    pub const SIDE_PORT: &str = "side port";
}

/// A device found on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    /// The spec to give to `share`.
    pub spec: String,
    /// One line of text for users.
    pub summary: String,
    /// Why it cannot be opened now, and how to fix that; `None` if it can.
    pub problem: Option<String>,
    /// True for a node that Outboard made itself: it represents a device on another host.
    pub ours: bool,
}

/// An opened device or node. The broker passes it to a worker: descriptors and plain data, nothing else.
#[derive(Debug)]
pub struct Opened {
    /// The spec it was opened from.
    pub spec: DeviceSpec,
    /// The side that was opened.
    pub role: Role,
    /// The device's description.
    pub description: Description,
    /// Open descriptors, in the class's own order.
    pub descriptors: Vec<OwnedFd>,
}

impl Opened {
    /// Returns a copy with its own duplicates of the descriptors.
    pub fn try_clone(&self) -> std::io::Result<Opened> {
        let Opened { spec, role, description, descriptors } = self;
        let descriptors = descriptors.iter().map(OwnedFd::try_clone).collect::<Result<_, _>>()?;
        Ok(Opened { spec: spec.clone(), role: *role, description: description.clone(), descriptors })
    }
}

/// A name on this host under which programs find an application's node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeName {
    /// A link in the file system, which is never followed.
    Link(PathBuf),
    /// A file, FIFO or device, followed through links.
    File(PathBuf),
    /// A file that several processes may extend at the same time.
    Appended(PathBuf),
    /// A TCP address with its port.
    Listener(SocketAddr),
}

impl NodeName {
    /// Returns the path, unless it is an address.
    pub fn path(&self) -> Option<&Path> {
        match self {
            NodeName::Link(path) | NodeName::File(path) | NodeName::Appended(path) => Some(path),
            NodeName::Listener(_) => None,
        }
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodeName::Link(path) | NodeName::File(path) | NodeName::Appended(path) => {
                write!(f, "`{}`", path.display())
            }
            NodeName::Listener(address) => write!(f, "the port {address}"),
        }
    }
}

/// A device could not be opened or driven.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The class does not have this side.
    #[error("{class} cannot be {} `{other}`", match .role { Role::Device => "shared, it stands in for a device: share", Role::Application => "attached, it is a device: its stand-in is" })]
    Role {
        /// Name of the class.
        class: &'static str,
        /// The requested side.
        role: Role,
        /// The class that has this side.
        other: &'static str,
    },
    /// The target that the user wrote, or the peer's description, is invalid.
    #[error("{what}: {problem}")]
    Spec {
        /// The invalid spec or field.
        what: String,
        /// The problem and how to fix it.
        problem: String,
    },
    /// A system call failed.
    #[error("{operation}: {error}{}", .advice.as_deref().map(|a| format!(" ({a})")).unwrap_or_default())]
    Os {
        /// The operation and its object.
        operation: String,
        /// The system's error.
        error: std::io::Error,
        /// How to fix it, if known.
        advice: Option<String>,
    },
    /// Another process has the node.
    #[error("{node} is in use by {holder}: {advice}")]
    InUse {
        /// The node.
        node: String,
        /// The process, and the device that it attaches.
        holder: String,
        /// The ways out.
        advice: &'static str,
    },
    /// Another process has taken the node from this one.
    #[error("{node} was taken over by {taker}")]
    TakenOver {
        /// The node.
        node: String,
        /// The process, and the device that it attaches.
        taker: String,
    },
}

/// Use of a device by one host several times at once. The first use alone writes to the device; all receive the same messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FurtherUse {
    /// Refused: the device only takes messages, or its answers belong to one application.
    Refused,
    /// Allowed: the device is closed, and opened again for all uses.
    Reopened,
    /// Allowed: the device stays open, because its last close has an effect (the lines of a serial port fall).
    KeptOpen,
}

/// A class of devices: one row in the table of the `devices` crate.
///
/// The broker calls `open`, because only the broker may open devices. A locked worker calls `partner` with the
/// result; it opens no file, no socket and no program.
pub trait DeviceClass: Sync {
    /// Name, help and options. The documentation covers both sides, the treatment of loss, and the limits. A spec
    /// has its options as `,name=value` after the target.
    fn entry(&self) -> ModuleEntry;

    /// The name before the colon.
    fn name(&self) -> &'static str {
        self.entry().name
    }

    /// The options.
    fn options(&self) -> &'static [OptionSpec] {
        self.entry().options
    }

    /// The target's name in help texts: `PATH`, `COMMAND`. Empty if the class takes no target.
    fn target(&self) -> &'static str;

    /// The ioctls that a locked worker may call on open devices of this class: direction, group and
    /// number of each, as `sys::ioctl::code` composes them.
    fn ioctls(&self) -> &'static [u32] {
        &[]
    }

    /// Returns true if the class has this side. Most classes have both.
    fn has_role(&self, role: Role) -> bool {
        let _ = role;
        true
    }

    /// The class of node to make for such a device when the user names none.
    fn application(&self) -> &'static str {
        "stdout"
    }

    /// The class of node to make on this host when the user names none: [`DeviceClass::application`], or another one if this host
    /// cannot make that.
    fn application_here(&self) -> &'static str {
        self.application()
    }

    /// The class of device that a node of this class copies; `None` if it stands in for any device.
    fn copies(&self) -> Option<&'static str> {
        None
    }

    /// The format that a node of this class takes from the device; `None` if it takes any.
    fn takes(&self) -> Option<Format> {
        None
    }

    /// The kind of a device that a peer describes with this class. The description comes from the network, so it must
    /// be checked.
    fn kind(&self, described: &Description) -> Result<Kind, DeviceError> {
        Ok(Kind::of_flows(described))
    }

    /// The recommended pipeline for a flow when neither host names one; empty for no pipeline.
    fn pipeline(&self, direction: FlowDirection) -> &'static str {
        let _ = direction;
        ""
    }

    /// The kernel subsystem of these devices (`SUBSYSTEM` in a uevent), if they can be listed and plugged in.
    fn subsystem(&self) -> Option<&'static str> {
        None
    }

    /// Further uses of such a device by the host that uses it. Only a class with a [`subsystem`](DeviceClass::subsystem) allows them:
    /// its device can be opened again.
    fn further_use(&self) -> FurtherUse {
        FurtherUse::Refused
    }

    /// The devices of this class on this host, for `outboard devices`.
    fn list(&self) -> Vec<Listing> {
        Vec::new()
    }

    /// The flows of a device that its spec alone determines, without opening it; empty if there are none. Checks the
    /// options of the spec.
    fn flows(&self, spec: &DeviceSpec) -> Result<Vec<FlowOffer>, DeviceError> {
        let _ = spec;
        Ok(Vec::new())
    }

    /// Returns the names of the node that [`DeviceClass::open`] would make or write, the preferred one first. The caller
    /// claims one of them before. Empty if several processes can use the target at the same time.
    fn nodes(&self, spec: &DeviceSpec) -> Vec<NodeName> {
        let _ = spec;
        Vec::new()
    }

    /// Returns the question that [`DeviceClass::open`] asks in a dialog of this host; `None` if it asks none.
    fn question(&self, spec: &DeviceSpec) -> Option<String> {
        let _ = spec;
        None
    }

    /// Closes the dialog of an [`DeviceClass::open`] that waits for its answer, which then returns an error.
    fn withdraw(&self, spec: &DeviceSpec) {
        let _ = spec;
    }

    /// Returns whether opening a device of this class waits for another host, which may not answer.
    fn waits_for_host(&self) -> bool {
        false
    }

    /// Opens the device, or makes the application's node. `like` describes the remote device that a node is
    /// made for. It comes from the network, so it must be checked.
    fn open(&self, spec: &DeviceSpec, role: Role, like: Option<&Description>) -> Result<Opened, DeviceError>;

    /// Finds the same device after it was unplugged: by its identity, not by its path.
    fn reopen(&self, spec: &DeviceSpec, role: Role, known: &Description) -> Result<Opened, DeviceError> {
        self.open(spec, role, Some(known))
    }

    /// Checks that a device which the other host describes anew is the one that a node was made for, so that nothing that was meant for
    /// one device reaches another. Both descriptions come from the network. The error tells the user how they differ. Most
    /// devices can replace each other.
    fn check_same(&self, known: &Description, found: &Description) -> Result<(), String> {
        let _ = (known, found);
        Ok(())
    }

    /// Replaces the descriptors and the properties for the next worker, if the connection behind them has a state that the exited
    /// worker alone knew. Otherwise the next worker continues with them.
    fn renew(&self, _opened: &mut Opened) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Makes one more connection to a device that several connections serve; `known` is its description. The partner asks for them
    /// ([`Partner::connections_wanted`]). The call may wait; a thread of the broker makes it.
    fn connect(&self, spec: &DeviceSpec, known: &Description) -> Result<OwnedFd, DeviceError> {
        let _ = known;
        let problem = "a device of this class has one connection".into();
        Err(DeviceError::Spec { what: format!("`{}:{}`", spec.class, spec.target), problem })
    }

    /// Removes leftovers of an opened device, such as a name in the file system. The broker calls it after the
    /// partner is dropped, because a locked worker cannot remove them.
    fn release(&self, _opened: &Opened) {}

    /// Ends the access to an opened device for every process that holds its descriptors, if the kernel can do this. The
    /// broker calls it when the peer loses the permission.
    fn revoke(&self, _opened: &Opened) {}

    /// Returns whether the opened device or node consists of its descriptors alone, so that the next program can continue it
    /// when this one is upgraded. It does not if a thread or a program of this process belongs to it.
    fn can_hand_over(&self, opened: &Opened) -> bool {
        let _ = opened;
        true
    }

    /// Makes the partner that runs the opened device.
    fn partner(&self, opened: Opened) -> Result<Box<dyn Partner>, DeviceError>;
}
