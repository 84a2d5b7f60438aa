//! Changes of pipelines, as a broker sees them: who asked, whether both hosts may, and what became of it.
//! What happens to the messages is in `switch.rs`.

use crate::agree::{self, Pipelines};
use crate::console::Answer;
use crate::driver::FlowPlan;
use crate::registry;
use crate::worker::Command;
use contract::{FlowDirection, Role};
use pipeline::{Edit, Origin, Pipeline};
use std::collections::{BTreeMap, VecDeque};
use wire::Control;
use wire::control::FLOWS_MAX;

/// What a broker is to do next.
pub(crate) enum Step {
    /// Ask its worker.
    Command(Command),
    /// Tell the other host.
    Say(Control),
    /// Answer who asked.
    Answer(u64, Answer),
    /// Nothing for now.
    Wait,
    /// Take up a wish for this flow whose turn has come.
    TakeUp(u32, Wish),
}

/// A wish for another pipeline that waits for a change under way.
pub(crate) enum Wish {
    /// Of somebody at this host's console.
    Here { visitor: u64, edit: Edit },
    /// Of the other host, in canonical text.
    There(String),
}

/// Most wishes that wait for one flow.
const WISHES_MAX: usize = 32;

/// Who asked for a change that is under way.
enum Asked {
    /// Somebody at this host's console, for this pipeline.
    Here { visitor: u64, pipeline: Pipeline },
    /// The other host, for this one.
    There { pipeline: Pipeline },
}

/// Changes under way, by flow.
#[derive(Default)]
pub(crate) struct Changes {
    asked: BTreeMap<u32, Asked>,
    waiting: BTreeMap<u32, VecDeque<Wish>>,
}

impl Changes {
    /// Somebody at this host wants another pipeline for a flow.
    pub(crate) fn ask(&mut self, visitor: u64, role: Role, plan: &FlowPlan, edit: &Edit) -> Step {
        let refuse = |problem| Step::Answer(visitor, Answer::Refused { problem });
        if self.asked.contains_key(&plan.flow) {
            let wish = Wish::Here { visitor, edit: edit.clone() };
            return self.wait(plan.flow, wish).map_or_else(refuse, |()| Step::Wait);
        }
        self.begin(visitor, role, plan, edit).unwrap_or_else(refuse)
    }

    fn wait(&mut self, flow: u32, wish: Wish) -> Result<(), String> {
        let waiting = self.waiting.entry(flow).or_default();
        if waiting.len() >= WISHES_MAX {
            return Err("too many changes of this flow wait already".into());
        }
        waiting.push_back(wish);
        Ok(())
    }

    /// Takes up a wish whose turn has come.
    pub(crate) fn take_up(&mut self, wish: &Wish, role: Role, plan: &FlowPlan, own: &Pipelines) -> Step {
        match wish {
            Wish::Here { visitor, edit } => self.ask(*visitor, role, plan, edit),
            Wish::There(text) => self.handle_propose(plan, text, own),
        }
    }

    fn begin(&mut self, visitor: u64, role: Role, plan: &FlowPlan, edit: &Edit) -> Result<Step, String> {
        let text = edit.apply(plan.pipeline.text()).map_err(|error| error.to_string())?;
        let pipeline = Pipeline::parse(&text, registry::pairs(), Origin::Local)
            .and_then(|pipeline| pipeline.check(&plan.format).map(|_| pipeline))
            .and_then(|pipeline| pipeline.in_place_of(&plan.pipeline))
            .map_err(|error| error.to_string())?;
        self.asked.insert(plan.flow, Asked::Here { visitor, pipeline: pipeline.clone() });
        let (flow, direction) = (plan.flow, plan.direction);
        Ok(match starts_at(direction, role) {
            true => Step::Command(Command::Change { driver: driver_of(flow), direction, pipeline }),
            false => Step::Say(Control::Propose { flow, pipeline: pipeline.canonical().into() }),
        })
    }

    /// What the other host says of changes of a flow; `own` is what this host wants of its driver.
    pub(crate) fn handle(&mut self, message: &Control, plan: &FlowPlan, own: &Pipelines) -> Vec<Step> {
        match message {
            Control::Propose { pipeline, .. } => vec![self.handle_propose(plan, pipeline, own)],
            Control::Change { epoch, pipeline, .. } => vec![self.handle_change(plan, *epoch, pipeline, own)],
            Control::Changed { epoch: 0, refusal: Some(problem), .. } => {
                let problem = format!("the other host refuses it: {problem}");
                self.settle_flow(plan.flow, Err(&problem))
            }
            _ => Vec::new(),
        }
    }

    fn handle_propose(&mut self, plan: &FlowPlan, text: &str, own: &Pipelines) -> Step {
        let (flow, direction) = (plan.flow, plan.direction);
        let refuse = |problem| Step::Say(Control::Changed { flow, epoch: 0, refusal: Some(problem) });
        if self.asked.contains_key(&flow) {
            return self.wait(flow, Wish::There(text.into())).map_or_else(refuse, |()| Step::Wait);
        }
        match agree::reconsider(plan, own, text) {
            Ok(pipeline) => {
                self.asked.insert(flow, Asked::There { pipeline: pipeline.clone() });
                Step::Command(Command::Change { driver: driver_of(flow), direction, pipeline })
            }
            Err(problem) => refuse(problem),
        }
    }

    fn handle_change(&self, plan: &FlowPlan, epoch: u32, text: &str, own: &Pipelines) -> Step {
        let flow = plan.flow;
        let known = match self.asked.get(&flow) {
            Some(Asked::Here { pipeline, .. }) if pipeline.canonical() == text => Some(pipeline.clone()),
            _ => None,
        };
        match known.map_or_else(|| agree::reconsider(plan, own, text), Ok) {
            Ok(pipeline) => {
                Step::Command(Command::Prepare { driver: driver_of(flow), flow, epoch, pipeline })
            }
            Err(problem) => Step::Say(Control::Changed { flow, epoch, refusal: Some(problem) }),
        }
    }

    /// What became of a change of this flow: who asked is told, and the next wish is taken up.
    pub(crate) fn settle(&mut self, plan: &mut FlowPlan, result: &Result<Pipeline, String>) -> Vec<Step> {
        if let Ok(pipeline) = result {
            plan.pipeline = pipeline.clone();
        }
        self.settle_flow(plan.flow, result.as_ref().map_err(String::as_str))
    }

    fn settle_flow(&mut self, flow: u32, result: Result<&Pipeline, &str>) -> Vec<Step> {
        let told = match (self.asked.get(&flow), result) {
            (None, _) => return Vec::new(),
            // Another was begun before; what was asked for is still to come, or to be refused.
            (Some(Asked::Here { pipeline, .. }), Ok(other)) if pipeline != other => return Vec::new(),
            (Some(Asked::There { pipeline }), Ok(other)) if pipeline.canonical() != other.canonical() => {
                return Vec::new();
            }
            (Some(Asked::Here { visitor, .. }), Ok(pipeline)) => {
                Some(Step::Answer(*visitor, Answer::Changed { pipeline: pipeline.canonical().into() }))
            }
            (Some(Asked::Here { visitor, .. }), Err(problem)) => {
                Some(Step::Answer(*visitor, Answer::Refused { problem: problem.into() }))
            }
            // The other host sees for itself that the new epoch has begun.
            (Some(Asked::There { .. }), Ok(_)) => None,
            (Some(Asked::There { .. }), Err(problem)) => {
                Some(Step::Say(Control::Changed { flow, epoch: 0, refusal: Some(problem.into()) }))
            }
        };
        self.asked.remove(&flow);
        let next = self.waiting.get_mut(&flow).and_then(VecDeque::pop_front);
        told.into_iter().chain(next.map(|wish| Step::TakeUp(flow, wish))).collect()
    }

    /// The worker of flows was killed: a change that it was told of went with it.
    pub(crate) fn handle_restart(&mut self, role: Role, plans: &[FlowPlan]) -> Vec<Step> {
        let problem = "its worker was killed meanwhile: ask again";
        let begun_here = plans.iter().filter(|plan| starts_at(plan.direction, role));
        begun_here.flat_map(|plan| self.settle_flow(plan.flow, Err(problem))).collect()
    }

    /// A driver is gone, and its changes with it.
    pub(crate) fn forget(&mut self, driver: u32) -> Vec<Step> {
        let problem = "the device is gone";
        let (gone, waiting) =
            std::mem::take(&mut self.waiting).into_iter().partition(|(flow, _)| driver_of(*flow) == driver);
        self.waiting = waiting;
        let gone: BTreeMap<u32, VecDeque<Wish>> = gone;
        let refused = gone.into_values().flatten().filter_map(|wish| match wish {
            Wish::Here { visitor, .. } => {
                Some(Step::Answer(visitor, Answer::Refused { problem: problem.into() }))
            }
            Wish::There(_) => None,
        });
        let flows: Vec<u32> = self.asked.keys().copied().filter(|flow| driver_of(*flow) == driver).collect();
        let refused: Vec<Step> = refused.collect();
        flows.into_iter().flat_map(|flow| self.settle_flow(flow, Err(problem))).chain(refused).collect()
    }
}

/// The driver of a flow.
pub(crate) fn driver_of(flow: u32) -> u32 {
    flow / FLOWS_MAX as u32
}

/// The flow that a message about a change is about; `None` if it is none, or goes to the flow itself.
pub(crate) fn flow_of(message: &Control) -> Option<u32> {
    match message {
        Control::Propose { flow, .. } | Control::Change { flow, .. } => Some(*flow),
        Control::Changed { flow, epoch: 0, .. } => Some(*flow),
        _ => None,
    }
}

/// From the device, or back to it.
pub(crate) fn direction(back: bool) -> FlowDirection {
    match back {
        true => FlowDirection::ApplicationToDevice,
        false => FlowDirection::DeviceToApplication,
    }
}

/// The answer to who names a flow that is not there.
pub(crate) fn no_such_flow(name: &str, back: bool) -> Answer {
    let way = if back { "to" } else { "from" };
    let problem =
        format!("there is no flow {way} a device `{name}` here; `outboard top` shows what there is");
    Answer::Refused { problem }
}

/// Whether a flow in this direction starts at the host that has this side of the driver.
fn starts_at(direction: FlowDirection, role: Role) -> bool {
    (direction == FlowDirection::DeviceToApplication) == (role == Role::Device)
}

#[cfg(test)]
mod tests {
    use super::*;
    use contract::{FlowClass, Format, Site};

    /// A worker that goes on says that the flow has begun anew when it was just asked for something else, which it refuses.
    #[test]
    fn who_asked_is_told_of_what_was_asked_for() {
        let read = |text| Pipeline::parse(text, registry::pairs(), Origin::Local).expect("a pipeline");
        let mut plan = FlowPlan {
            flow: 0,
            direction: FlowDirection::DeviceToApplication,
            class: FlowClass::Reliable,
            format: Format::Bytes,
            pipeline: read("null"),
            site: Site::default(),
        };
        let mut changes = Changes::default();
        let asked = Control::Propose { flow: 0, pipeline: read("tap").canonical().into() };
        let steps = changes.handle(&asked, &plan, &Pipelines::default());
        assert!(matches!(steps[..], [Step::Command(Command::Change { .. })]));
        assert!(changes.settle(&mut plan, &Ok(read("null"))).is_empty(), "still to come");
        let steps = changes.settle(&mut plan, &Err("another is under way".into()));
        assert!(matches!(steps[..], [Step::Say(Control::Changed { epoch: 0, refusal: Some(_), .. })]));
    }
}
