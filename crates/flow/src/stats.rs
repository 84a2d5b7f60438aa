//! Statistics of a driver, for people and scripts.

use crate::types::driver_of;
use contract::Choice;
use pipeline::{PAIRS_MAX, PairReport};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use wire::control::FLOWS_MAX;

/// Most figures, drop reasons or choices in one list that a worker reports.
const LIST_MAX: usize = 1024;
/// Bytes of the longest text that a worker reports.
const TEXT_BYTES_MAX: usize = 64 << 10;
/// Bytes for the figures, choices and error of one stage as JSON: four times those of our largest pair.
const STAGE_JSON_BYTES: usize = 4 << 10;
/// Bytes for a list of figures, or for the other parts of a flow, as JSON.
const LIST_JSON_BYTES: usize = 64 << 10;
/// Bytes of the longest statistics of one driver as JSON: those of two flows with the longest pipelines, and the figures of the
/// device and the transport.
pub const STATS_JSON_BYTES_MAX: usize =
    FLOWS_MAX * (PAIRS_MAX * STAGE_JSON_BYTES + LIST_JSON_BYTES) + 2 * LIST_JSON_BYTES;

/// Statistics of one driver on one host.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct DriverStats {
    /// True if the data connection exists.
    pub linked: bool,
    /// True if the device or node exists.
    pub present: bool,
    /// True if a trace is active.
    #[serde(default)]
    pub traced: bool,
    /// True if the flows run in a sandboxed process, which can open neither devices nor sockets.
    #[serde(default)]
    pub locked: bool,
    /// Number of worker crashes after which a new worker resumed the driver.
    #[serde(default)]
    pub restarts: u64,
    /// Total duration of the driver's runs in its worker.
    #[serde(default)]
    pub busy_seconds: f64,
    /// Flow whose source is on this host.
    pub outgoing: Option<FlowStats>,
    /// Flow whose sink is on this host.
    pub incoming: Option<FlowStats>,
    /// Figures of the device or node.
    pub partner: Vec<(String, f64)>,
    /// Figures of the transport.
    pub transport: Vec<(String, f64)>,
}

impl DriverStats {
    /// Returns whether a flow has ended at its source, but its sink has not received everything.
    pub fn is_ending(&self) -> bool {
        self.outgoing.iter().chain(&self.incoming).any(|flow| flow.ending)
    }

    /// Returns the statistics without their lists: those of a driver whose modules exceed the limits.
    pub fn without_lists(&self) -> DriverStats {
        let without_lists = |flow: &FlowStats| FlowStats {
            drops: BTreeMap::new(),
            stages: Vec::new(),
            delay_us: flow.delay_us,
            pipeline: flow.pipeline.clone(),
            store: flow.store.clone(),
            ..*flow
        };
        DriverStats {
            outgoing: self.outgoing.as_ref().map(without_lists),
            incoming: self.incoming.as_ref().map(without_lists),
            partner: Vec::new(),
            transport: Vec::new(),
            ..*self
        }
    }

    /// Returns whether all lists and texts are within their limits and both flows belong to `driver`.
    pub fn is_within_limits(&self, driver: u32) -> bool {
        let mut flows = self.outgoing.iter().chain(&self.incoming);
        are_short([&self.partner, &self.transport]) && flows.all(|flow| flow.is_within_limits(driver))
    }
}

/// Statistics of one flow on one host, since it began.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct FlowStats {
    /// Number of the flow in its session.
    pub flow: u32,
    /// Current epoch.
    pub epoch: u32,
    /// Records sent or received.
    pub messages: u64,
    /// Bytes of their bodies.
    pub bytes: u64,
    /// Records retransmitted.
    pub resent: u64,
    /// Records received more than once.
    pub repeated: u64,
    /// Records lost.
    pub lost: u64,
    /// Records of abandoned epochs.
    pub stale: u64,
    /// True if the transport may lose records.
    pub lossy: bool,
    /// True if the source has ended and the sink has not received everything. Reliable flows only.
    #[serde(default)]
    pub ending: bool,
    /// State of the replay store, at the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<StoreStats>,
    /// Delay from creation to delivery: 1st, 50th and 99th percentile of the last messages, microseconds.
    pub delay_us: Option<[f64; 3]>,
    /// Dropped messages, by reason.
    pub drops: BTreeMap<String, u64>,
    /// Pipeline of the flow, in canonical form.
    pub pipeline: String,
    /// The stages of this host, in source order.
    pub stages: Vec<StageStats>,
}

impl FlowStats {
    fn is_within_limits(&self, driver: u32) -> bool {
        let mut texts =
            self.drops.keys().chain([&self.pipeline]).chain(self.store.as_ref().map(|store| &store.policy));
        driver_of(self.flow) == driver
            && self.drops.len() <= LIST_MAX
            && self.stages.len() <= PAIRS_MAX
            && texts.all(|text| is_short(text))
            && self.stages.iter().all(StageStats::is_within_limits)
    }
}

/// State of a replay store, which holds a flow's unacknowledged messages.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct StoreStats {
    /// Bytes in the store.
    pub bytes: u64,
    /// Messages in the store.
    pub messages: u64,
    /// True if the store is full.
    pub full: bool,
    /// Policy for a full store: `block`, `drop-oldest` or `close`.
    pub policy: String,
    /// Messages that a full store discarded. Those that did not arrive count as lost at the sink.
    pub discarded: u64,
}

/// Statistics of one stage.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct StageStats {
    /// Name of the pair.
    pub name: String,
    /// Figures that the stage reports.
    pub figures: Vec<(String, f64)>,
    /// Current values of the `auto` options, with reasons.
    pub choices: Vec<ChoiceStats>,
    /// First error of the stage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl StageStats {
    fn is_within_limits(&self) -> bool {
        let mut choices =
            self.choices.iter().flat_map(|choice| [&choice.option, &choice.value, &choice.reason]);
        are_short([&self.figures])
            && self.choices.len() <= LIST_MAX
            && choices.all(|text| is_short(text))
            && self.error.iter().chain([&self.name]).all(|text| is_short(text))
    }
}

fn are_short<const LISTS: usize>(figures: [&Vec<(String, f64)>; LISTS]) -> bool {
    figures.into_iter().all(|list| list.len() <= LIST_MAX && list.iter().all(|(name, _)| is_short(name)))
}

fn is_short(text: &str) -> bool {
    text.len() <= TEXT_BYTES_MAX
}

/// Value that an adaptive stage chose for an `auto` option.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ChoiceStats {
    /// Name of the option.
    pub option: String,
    /// Current value, in the syntax of a pipeline.
    pub value: String,
    /// Reason for the value.
    pub reason: String,
}

impl From<PairReport> for StageStats {
    fn from(report: PairReport) -> StageStats {
        let choice = |choice: Choice| ChoiceStats {
            option: choice.option.into(),
            value: choice.value.to_string(),
            reason: choice.why,
        };
        StageStats {
            name: report.name.into(),
            figures: report.figures.into_iter().map(|(name, value)| (name.into(), value)).collect(),
            choices: report.choices.into_iter().map(choice).collect(),
            error: report.error,
        }
    }
}
