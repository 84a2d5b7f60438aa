//! The tables of all modules and limits, and modules that run as processes.

mod clock;
pub mod connector;
pub mod isolation;
pub mod limits;
mod pipelines;
pub mod process;
pub mod registry;
pub mod runner;
pub mod search;
mod transport_plan;

pub use clock::now;
pub use isolation::use_program;
pub use pipelines::Pipelines;
pub use runner::{CarrierKind, ModuleEnd, ModuleRequest, serve_module};
pub use transport_plan::{TransportPlan, check_options, transport_plan};
