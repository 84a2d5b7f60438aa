//! The few traits that everything implements, and the words they are written in.
//!
//! - [`Partner`]: what a flow starts or ends at (paper P, section 3.2).
//! - [`Stage`] and [`Pair`]: what happens to messages on the way (paper N, section 4.8).
//! - [`Link`]: how neighbours in one host hand messages on.
//! - [`DeviceClass`] and [`TransportClass`]: one row each in the tables of `devices` and `transports`.
//!
//! Everything here is data or an interface. There is no thread, no clock and no I/O.

mod device;
mod format;
mod link;
mod message;
mod options;
mod partner;
mod stage;
mod time;
mod transport;

pub use buffers::Body;
pub use bytes::Bytes;
pub use device::{Description, DeviceClass, DeviceError, DeviceSpec, FlowOffer, Listing, Opened, Role};
pub use format::Format;
pub use link::{Input, Link};
pub use message::{Attributes, Message};
pub use options::{OptionError, OptionKind, OptionSpec, Options, Scope, Value, parse_value};
pub use partner::{
    Ctl, CtlReply, Direction, FlowKey, FlowTemplate, Interest, Next, Partner, PartnerError, Pull, PullSlot,
    Pulled, Pushed, Readiness,
};
pub use stage::{Drop, Outbox, Pair, PassThrough, Port, Promises, Report, Stage, StageError};
pub use time::{Offset, Time};
pub use transport::{DatagramFacts, TransportClass};
pub use wire::control::{FlowClass, FlowDirection};
