//! One host's half of a driver: the source path and the sink path between its partner and its transport.

pub mod chain_runner;
pub mod delays;
pub mod drain;
pub mod driver;
pub mod fair;
pub mod feedback;
mod neutral;
pub mod nodes;
pub mod pipeline_change;
pub mod raw_path;
pub mod recovery;
pub mod sink_path;
pub mod source_path;
pub mod stats;
pub mod stats_timer;
pub mod trace;
pub mod types;

pub use chain_runner::build_chain;
pub use driver::Driver;
pub use stats::{ChoiceStats, DriverStats, FlowStats, StageStats, StoreStats};
pub use types::{FlowPlan, LinkFacts, Notice};
