//! The few traits that everything implements, and the words they are written in.
//!
//! - [`Partner`]: what a flow starts or ends at (paper P, section 3.2).
//! - [`Stage`] and [`Pair`]: what happens to messages on the way (paper N, section 4.8).
//! - [`Link`]: how neighbours in one host hand messages on.
//! - [`DeviceClass`] and [`TransportClass`]: one row each in the tables of `devices` and `transports`.
//!
//! Everything here is data or an interface. There is no thread, no clock and no I/O.

mod device;
mod feedback;
mod format;
mod link;
mod message;
mod options;
mod pair;
mod partner;
mod site;
mod stage;
mod time;
mod transport;

pub use buffers::Body;
pub use bytes::Bytes;
pub use device::{Description, DeviceClass, DeviceError, DeviceSpec, FlowOffer, Listing, Opened, Role};
pub use feedback::Feedback;
pub use format::Format;
pub use link::{Input, Link};
pub use message::{Attributes, Message};
pub use options::{OptionError, OptionKind, OptionSpec, Options, Scope, Value, parse_value};
pub use pair::{Half, Pair, PassThrough, Promises, Shape};
pub use partner::{
    Ctl, CtlReply, Direction, FlowKey, FlowTemplate, Interest, LEGACY_BYTES_MAX, Moment, Next, Partner,
    PartnerError, Progress, Pull, PullSlot, Pulled, Pushed, Readiness, Told, Watch,
};
pub use site::{Secret, Shared, Site};
pub use stage::{Choice, Drop, Outbox, Port, Report, Stage, StageError};
pub use time::{Offset, Time};
pub use transport::{DatagramFacts, End, SealKeys, TransportClass};
pub use wire::control::{FlowClass, FlowDirection};
