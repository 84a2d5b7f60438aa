//! The pipelines that the broker offered to its workers. A worker names one by its text; the broker compares the text
//! with its own, checked pipelines and parses nothing that a worker sends.
//!
//! | event | pipelines of the flow, the current one first |
//! |---|---|
//! | a driver is added or rebuilt | that of its plan |
//! | another pipeline is requested | added at the end |
//! | a worker reports a change | those before the named one are removed |

use super::codec::OFFERED_MAX;
use contract::{FlowDirection, Half, Role};
use flow::types::FlowPlan;
use pipeline::Pipeline;
use std::collections::{BTreeMap, VecDeque};

/// The offered pipelines of all drivers.
#[derive(Default)]
pub(super) struct Offers {
    flows: BTreeMap<(u32, FlowDirection), Offered>,
}

/// The pipelines of one flow, the current one first.
struct Offered {
    flow: u32,
    pipelines: VecDeque<Pipeline>,
}

impl Offers {
    /// Offers the pipelines of a new driver.
    pub(super) fn begin(&mut self, driver: u32, plans: &[FlowPlan]) {
        self.forget(driver);
        let offer = |plan: &FlowPlan| {
            let pipelines = VecDeque::from([plan.pipeline.clone()]);
            ((driver, plan.direction), Offered { flow: plan.flow, pipelines })
        };
        self.flows.extend(plans.iter().map(offer));
    }

    /// Offers another pipeline. The peer can repeat its requests, so the number of requests is bounded: the oldest one is
    /// withdrawn.
    pub(super) fn request(&mut self, driver: u32, direction: FlowDirection, pipeline: &Pipeline) {
        let Some(Offered { pipelines: offered, .. }) = self.flows.get_mut(&(driver, direction)) else {
            return;
        };
        // Equal pipelines may differ in their links, which the other host does not see.
        if offered.back().is_some_and(|last| last.text() == pipeline.text()) {
            return;
        }
        if offered.len() == OFFERED_MAX {
            offered.remove(1);
        }
        offered.push_back(pipeline.clone());
    }

    /// Makes the named pipeline the current one and returns it; `None` if it was not offered.
    pub(super) fn take(&mut self, driver: u32, direction: FlowDirection, text: &str) -> Option<&Pipeline> {
        let offered = &mut self.flows.get_mut(&(driver, direction))?.pipelines;
        let at = offered.iter().position(|pipeline| pipeline.text() == text)?;
        offered.drain(..at);
        offered.front()
    }

    /// Returns the current pipeline of a flow.
    pub(super) fn current(&self, driver: u32, direction: FlowDirection) -> Option<&Pipeline> {
        self.flows.get(&(driver, direction))?.pipelines.front()
    }

    /// Returns the direction of a driver's flow.
    pub(super) fn direction(&self, driver: u32, flow: u32) -> Option<FlowDirection> {
        let is_match = |((of, _), offered): &(&(u32, _), &Offered)| *of == driver && offered.flow == flow;
        self.flows.iter().find(is_match).map(|((_, direction), _)| *direction)
    }

    /// Adds what was offered to the plans of a driver, for its next worker.
    pub(super) fn complete(&self, driver: u32, plans: &mut [FlowPlan]) {
        for plan in plans {
            let Some(offered) = self.flows.get(&(driver, plan.direction)) else { continue };
            let mut offered = offered.pipelines.iter().cloned();
            plan.pipeline = offered.next().unwrap_or_default();
            plan.requested = offered.collect();
        }
    }

    /// Returns all pipelines of a driver.
    pub(super) fn of(&self, driver: u32) -> impl Iterator<Item = (FlowDirection, &Pipeline)> {
        let of_driver = self.flows.iter().filter(move |((of, _), _)| *of == driver);
        of_driver.flat_map(|((_, direction), offered)| {
            offered.pipelines.iter().map(|pipeline| (*direction, pipeline))
        })
    }

    pub(super) fn forget(&mut self, driver: u32) {
        self.flows.retain(|(of, _), _| *of != driver);
    }
}

/// Returns the half of the pairs that a host with this role runs for a flow in this direction.
pub(super) fn half_of(direction: FlowDirection, role: Role) -> Half {
    use FlowDirection::{ApplicationToDevice, DeviceToApplication};
    match (direction, role) {
        (DeviceToApplication, Role::Device) | (ApplicationToDevice, Role::Application) => Half::Source,
        (DeviceToApplication, Role::Application) | (ApplicationToDevice, Role::Device) => Half::Sink,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use contract::{FlowClass, Format, Site};
    use modules::registry;
    use pipeline::Origin;

    const DIRECTION: FlowDirection = FlowDirection::DeviceToApplication;

    fn read(text: &str) -> Pipeline {
        Pipeline::parse(text, registry::pairs(), Origin::Local).expect("a pipeline")
    }

    fn offers(pipelines: &[&str]) -> Offers {
        let plan = FlowPlan {
            flow: 7,
            direction: DIRECTION,
            class: FlowClass::Reliable,
            format: Format::Bytes,
            pipeline: read(pipelines[0]),
            requested: Vec::new(),
            site: Site::default(),
        };
        let mut offers = Offers::default();
        offers.begin(3, &[plan]);
        pipelines[1..].iter().for_each(|text| offers.request(3, DIRECTION, &read(text)));
        offers
    }

    fn texts(offers: &Offers) -> Vec<&str> {
        offers.of(3).map(|(_, pipeline)| pipeline.text()).collect()
    }

    #[test]
    fn a_worker_names_offered_pipelines_only() {
        let mut offers = offers(&["compress", "null"]);
        for foreign in ["exec(source=\"sh -c true\")", "", "compress | null", "NULL"] {
            assert!(offers.take(3, DIRECTION, foreign).is_none(), "{foreign}");
        }
        assert!(offers.take(2, DIRECTION, "null").is_none(), "the pipeline of another driver");
        assert_eq!(texts(&offers), ["compress", "null"]);
        assert_eq!(offers.take(3, DIRECTION, "null").map(Pipeline::text), Some("null"));
        assert!(offers.take(3, DIRECTION, "compress").is_none(), "a pipeline that the flow has left");
    }

    /// A restarted worker reports the current pipeline while another one is requested.
    #[test]
    fn a_report_of_the_current_pipeline_keeps_the_requested_ones() {
        let mut offers = offers(&["compress", "null", "compress"]);
        assert!(offers.take(3, DIRECTION, "compress").is_some());
        assert_eq!(texts(&offers), ["compress", "null", "compress"]);
        assert!(offers.take(3, DIRECTION, "null").is_some());
        assert!(offers.take(3, DIRECTION, "compress").is_some());
        assert_eq!(texts(&offers), ["compress"]);
    }

    #[test]
    fn endless_requests_are_bounded() {
        let mut offers = offers(&["compress"]);
        for count in 1..100 {
            offers.request(3, DIRECTION, &read(&format!("bundle(count={count})")));
        }
        let texts = texts(&offers);
        assert_eq!((texts.len(), texts[0]), (OFFERED_MAX, "compress"));
        assert_eq!(*texts.last().unwrap(), "bundle(count=99)");
    }
}
