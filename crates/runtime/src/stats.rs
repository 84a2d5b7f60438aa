//! What a driver can tell of itself, for people and scripts.

use contract::Choice;
use pipeline::PairReport;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Figures of one driver on one host.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct DriverStats {
    /// Whether its data connection is there.
    pub linked: bool,
    /// Whether its device or node is there.
    pub present: bool,
    /// Whether somebody traces it.
    #[serde(default)]
    pub traced: bool,
    /// Whether its flows run in a process that can open neither device nor socket.
    #[serde(default)]
    pub locked: bool,
    /// How often its worker was killed and another went on.
    #[serde(default)]
    pub restarts: u64,
    /// How long its turns took its worker, all together.
    #[serde(default)]
    pub busy_seconds: f64,
    /// The flow that starts here.
    pub outgoing: Option<FlowStats>,
    /// The flow that ends here.
    pub incoming: Option<FlowStats>,
    /// The device's or node's own figures.
    pub partner: Vec<(String, f64)>,
    /// The transport's own figures.
    pub transport: Vec<(String, f64)>,
}

impl DriverStats {
    /// Whether a flow of it has ended at its source and is not yet whole at its sink.
    pub(crate) fn is_ending(&self) -> bool {
        self.outgoing.iter().chain(&self.incoming).any(|flow| flow.ending)
    }
}

/// Figures of one flow on one host, since it began.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct FlowStats {
    /// Its number in the session.
    pub flow: u32,
    /// Its epoch.
    pub epoch: u32,
    /// Records sent, or received.
    pub messages: u64,
    /// Bytes of their bodies.
    pub bytes: u64,
    /// Records sent again.
    pub resent: u64,
    /// Records that came again.
    pub repeated: u64,
    /// Records that never came.
    pub lost: u64,
    /// Records of an epoch given up.
    pub stale: u64,
    /// Whether its transport may lose records.
    pub lossy: bool,
    /// Whether its source has ended and not all of it is where it ends; of reliable flows alone.
    #[serde(default)]
    pub ending: bool,
    /// At its source: what is kept to be sent again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<StoreStats>,
    /// From creation to hand-over, 1st, 50th and 99th percentile of the last messages, microseconds.
    pub delay_us: Option<[f64; 3]>,
    /// Messages that ended on the way, by reason.
    pub drops: BTreeMap<String, u64>,
    /// What happens to its messages on the way, in canonical form.
    pub pipeline: String,
    /// The stages of this host, in source order.
    pub stages: Vec<StageStats>,
}

/// What a flow keeps to be sent again, until its sink has it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct StoreStats {
    /// Bytes.
    pub bytes: u64,
    /// Messages.
    pub messages: u64,
    /// Whether it is as much as it may be.
    pub full: bool,
    /// What becomes of the flow then: `block`, `drop-oldest` or `close`.
    pub policy: String,
    /// Messages given up for want of room. The sink counts those of them that did not arrive as lost.
    pub given_up: u64,
}

/// Figures of one stage.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct StageStats {
    /// Its pair's name.
    pub name: String,
    /// Its own figures.
    pub figures: Vec<(String, f64)>,
    /// What its `auto` options stand at, and why.
    pub choices: Vec<ChoiceStats>,
    /// What first went wrong in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// What an adaptive stage set an `auto` option to.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ChoiceStats {
    /// The option.
    pub option: String,
    /// What it stands at, written as a user would.
    pub value: String,
    /// Why.
    pub why: String,
}

impl From<PairReport> for StageStats {
    fn from(report: PairReport) -> StageStats {
        let choice = |choice: Choice| ChoiceStats {
            option: choice.option.into(),
            value: choice.value.to_string(),
            why: choice.why,
        };
        StageStats {
            name: report.name.into(),
            figures: report.figures.into_iter().map(|(name, value)| (name.into(), value)).collect(),
            choices: report.choices.into_iter().map(choice).collect(),
            error: report.error,
        }
    }
}
