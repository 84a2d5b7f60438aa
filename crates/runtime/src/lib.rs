//! Runs it all: clocks, threads, the registry, brokers and workers. The only room that sees all others.
//!
//! A **broker** ([`Sharer`], [`Attacher`]) listens, dials, opens devices, makes nodes and speaks the control
//! channel. A **worker** ([`worker`]) is handed descriptors and runs paths; it opens nothing itself.

pub mod active;
mod agree;
mod application;
mod attach;
mod browse;
mod change;
pub mod config;
mod connect;
pub mod console;
mod control_link;
mod delays;
mod dial;
pub mod discovery;
mod drain;
pub mod driver;
mod error;
mod events;
mod fair;
mod feedback;
mod incoming;
mod isolation;
pub mod junction;
mod kept;
mod keys;
mod listening;
mod local_socket;
pub mod metrics;
mod module;
mod offers;
mod outgoing;
pub mod path;
mod random;
pub mod registry;
mod segment;
pub mod service;
mod share;
mod share_join;
mod share_quic;
mod share_session;
mod stats;
mod switch;
pub mod trace;
pub mod trust;
pub mod worker;

pub use agree::Pipelines;
pub use application::ApplicationChoice;
pub use attach::{AttachRequest, AttachTarget, Attacher};
pub use browse::{Offered, browse};
pub use connect::{Connected, Connection, connect};
pub use error::RuntimeError;
pub use events::{Event, Stop, Tell};
pub use isolation::use_program;
pub use junction::hub::{HubOptions, HubPolicy, HubStats};
pub use junction::joint::{Joint, JointPort, JointStats};
pub use keys::read_key_file;
pub use module::{Carried, ModuleEnd, ModuleRequest, run_module, serve_module};
pub use pipeline::{Edit, Point, Stamp, Stamps};
pub use segment::build_chain;
pub use session::Limits;
pub use share::{DeviceChoice, MakePartner, ShareDevice, ShareRequest, Sharer};
pub use share_join::Joined;
pub use stats::{ChoiceStats, DriverStats, FlowStats, StageStats, StoreStats};
