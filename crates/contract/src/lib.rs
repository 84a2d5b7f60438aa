//! The traits that every module implements, and the types that they use.
//!
//! - [`Partner`]: an endpoint of a flow (The Partner architecture (2002), 3.2).
//! - [`Stage`] and [`Pair`]: transformations of messages (Networked Device Driver Architecture (2012), 4.8).
//! - [`Link`]: how a stage is reached from its neighbours on the same host.
//! - [`DeviceClass`] and [`TransportClass`]: one row each in the tables of `devices` and `transports`.
//!
//! This crate holds only data and interfaces: no threads, no clock, no I/O.

mod device;
mod feedback;
mod format;
mod interned;
mod kind;
mod link;
mod message;
mod nearest;
mod options;
mod pair;
mod partner;
mod service_error;
mod site;
mod stage;
mod time;
mod transport;

pub use buffers::Body;
pub use bytes::Bytes;
pub use device::{
    Description, DeviceClass, DeviceError, DeviceSpec, FlowOffer, FurtherUse, Listing, NodeName, Opened, Role,
};
pub use feedback::{Feedback, Fill};
pub use format::Format;
pub use interned::interned;
pub use kind::{Kind, KindChange};
pub use link::{Incident, Input, Link};
pub use message::{Attributes, Message};
pub use nearest::nearest;
pub use options::{
    ModuleEntry, OptionError, OptionKind, OptionSpec, Options, Scope, Value, agreed, local, parse_value,
};
pub use pair::{Half, Pair, PassThrough, Promises, Shape, Work};
pub use partner::{
    Ctl, CtlReply, Direction, FlowKey, FlowTemplate, Interest, Moment, Next, Partner, PartnerError,
    PartnerResult, Presence, Progress, Pull, PullSlot, Pulled, Pushed, Readiness, RecoveryCtl,
    SAVED_STATE_BYTES_MAX, TraceCtl, TraceReport, TransportCtl,
};
pub use service_error::ServiceError;
pub use site::{Secret, Shared, Site};
pub use stage::{Choice, Drop, Outbox, Port, Report, Stage, StageError, StageResult};
pub use time::{Offset, Time};
pub use transport::{End, Meeting, ProgramTransport, SealKeys, TransportClass};
pub use wire::control::{FlowClass, FlowDirection};
