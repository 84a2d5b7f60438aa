//! Pipeline changes as a broker sees them: the requester, the check on both hosts, and the result.
//!
//! A change can be requested at either host's console. The host at which the flow starts begins the change; the
//! other host proposes. One change of a flow runs at a time; further requests wait in a queue. The switch of the
//! records themselves is in `flow::pipeline_change`.

use crate::agree;
use crate::programs::half_of;
use console::Answer;
use contract::{FlowDirection, Half, Role};
use flow::types::{FlowPlan, driver_of};
use modules::Pipelines;
use modules::registry;
use pipeline::{Edit, Origin, Pipeline};
use std::collections::{BTreeMap, VecDeque};
use wire::{Control, FlowControl};
use worker::Command;

/// The next action of a broker.
pub enum Step {
    /// Send a command to the worker.
    Command(Command),
    /// Send a message to the peer.
    Send(Control),
    /// Answer a visitor of the console.
    Answer(u64, Answer),
    /// Do nothing now.
    Wait,
    /// Start the next queued request of this flow.
    Start(u32, ChangeRequest),
}

/// A request for another pipeline, queued behind a change in progress.
pub enum ChangeRequest {
    /// From a visitor of this host's console.
    Here {
        /// The visitor's number.
        visitor: u64,
        /// The requested edit.
        edit: Edit,
    },
    /// From the peer, as canonical text.
    There(String),
}

/// Most requests queued for one flow.
const REQUESTS_MAX: usize = 32;

/// The requester of a change in progress.
enum Requester {
    /// A visitor of this host's console, with the requested pipeline.
    Here { visitor: u64, pipeline: Pipeline },
    /// The peer, with the requested pipeline.
    There { pipeline: Pipeline },
}

/// The pipeline changes of one session, by flow.
#[derive(Default)]
pub struct PipelineChangeBroker {
    pending: BTreeMap<u32, Requester>,
    waiting: BTreeMap<u32, VecDeque<ChangeRequest>>,
}

impl PipelineChangeBroker {
    /// Returns whether a change is in progress.
    pub fn is_busy(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Handles a request from this host's console.
    pub fn ask(&mut self, visitor: u64, role: Role, plan: &FlowPlan, edit: &Edit) -> Step {
        let refuse = |problem| Step::Answer(visitor, Answer::Refused { problem });
        if self.pending.contains_key(&plan.flow) {
            let request = ChangeRequest::Here { visitor, edit: edit.clone() };
            return self.wait(plan.flow, request).map_or_else(refuse, |()| Step::Wait);
        }
        self.begin(visitor, role, plan, edit).unwrap_or_else(refuse)
    }

    fn wait(&mut self, flow: u32, request: ChangeRequest) -> Result<(), String> {
        let waiting = self.waiting.entry(flow).or_default();
        if waiting.len() >= REQUESTS_MAX {
            return Err("too many changes of this flow are queued".into());
        }
        waiting.push_back(request);
        Ok(())
    }

    /// Starts a queued request.
    pub fn start(&mut self, request: &ChangeRequest, role: Role, plan: &FlowPlan, own: &Pipelines) -> Step {
        match request {
            ChangeRequest::Here { visitor, edit } => self.ask(*visitor, role, plan, edit),
            ChangeRequest::There(text) => self.handle_propose(plan, text, own),
        }
    }

    fn begin(&mut self, visitor: u64, role: Role, plan: &FlowPlan, edit: &Edit) -> Result<Step, String> {
        let text = edit.apply(plan.pipeline.text()).map_err(|error| error.to_string())?;
        let pipeline = Pipeline::parse(&text, registry::pairs(), Origin::Local)
            .and_then(|pipeline| pipeline.check(&plan.format).map(|_| pipeline))
            .and_then(|pipeline| pipeline.check_half(half_of(role, plan.direction)).map(|()| pipeline))
            .and_then(|pipeline| pipeline.in_place_of(&plan.pipeline))
            .map_err(|error| error.to_string())?;
        self.pending.insert(plan.flow, Requester::Here { visitor, pipeline: pipeline.clone() });
        let (flow, direction) = (plan.flow, plan.direction);
        Ok(match starts_at(direction, role) {
            true => Step::Command(Command::Change { driver: driver_of(flow), direction, pipeline }),
            false => Step::Send(Control::Flow {
                flow,
                message: FlowControl::Propose { pipeline: pipeline.canonical().into() },
            }),
        })
    }

    /// Handles a message of the peer about a change; `own` are this host's pipelines of the driver.
    pub fn handle(&mut self, message: &Control, plan: &FlowPlan, own: &Pipelines) -> Vec<Step> {
        match message {
            Control::Flow { message: FlowControl::Propose { pipeline, .. }, .. } => {
                vec![self.handle_propose(plan, pipeline, own)]
            }
            Control::Flow { message: FlowControl::Change { epoch, pipeline, .. }, .. } => {
                vec![self.handle_change(plan, *epoch, pipeline, own)]
            }
            Control::Flow {
                message: FlowControl::Changed { epoch: 0, refusal: Some(problem), .. }, ..
            } => {
                let problem = format!("the other host refuses it: {problem}");
                self.settle_flow(plan.flow, Err(&problem))
            }
            _ => Vec::new(),
        }
    }

    fn handle_propose(&mut self, plan: &FlowPlan, text: &str, own: &Pipelines) -> Step {
        let (flow, direction) = (plan.flow, plan.direction);
        let refuse = |problem| {
            Step::Send(Control::Flow {
                flow,
                message: FlowControl::Changed { epoch: 0, refusal: Some(problem) },
            })
        };
        if self.pending.contains_key(&flow) {
            return self.wait(flow, ChangeRequest::There(text.into())).map_or_else(refuse, |()| Step::Wait);
        }
        match agree::reconsider(plan, own, text) {
            Ok(pipeline) => {
                self.pending.insert(flow, Requester::There { pipeline: pipeline.clone() });
                Step::Command(Command::Change { driver: driver_of(flow), direction, pipeline })
            }
            Err(problem) => refuse(problem),
        }
    }

    fn handle_change(&self, plan: &FlowPlan, epoch: u32, text: &str, own: &Pipelines) -> Step {
        let flow = plan.flow;
        let known = match self.pending.get(&flow) {
            Some(Requester::Here { pipeline, .. }) if pipeline.canonical() == text => Some(pipeline.clone()),
            _ => None,
        };
        match known.map_or_else(|| agree::reconsider(plan, own, text), Ok) {
            Ok(pipeline) => {
                Step::Command(Command::Prepare { driver: driver_of(flow), flow, epoch, pipeline })
            }
            Err(problem) => Step::Send(Control::Flow {
                flow,
                message: FlowControl::Changed { epoch, refusal: Some(problem) },
            }),
        }
    }

    /// Records the result of a change: answers the requester and starts the next queued request.
    pub fn settle(&mut self, plan: &mut FlowPlan, result: &Result<Pipeline, String>) -> Vec<Step> {
        if let Ok(pipeline) = result {
            plan.pipeline = pipeline.clone();
        }
        self.settle_flow(plan.flow, result.as_ref().map_err(String::as_str))
    }

    fn settle_flow(&mut self, flow: u32, result: Result<&Pipeline, &str>) -> Vec<Step> {
        let reply = match (self.pending.get(&flow), result) {
            (None, _) => return Vec::new(),
            // This is the result of an earlier change; the requested one is still to come.
            (Some(Requester::Here { pipeline, .. }), Ok(other)) if pipeline != other => return Vec::new(),
            (Some(Requester::There { pipeline }), Ok(other)) if pipeline.canonical() != other.canonical() => {
                return Vec::new();
            }
            (Some(Requester::Here { visitor, .. }), Ok(pipeline)) => {
                Some(Step::Answer(*visitor, Answer::Changed { pipeline: pipeline.canonical().into() }))
            }
            (Some(Requester::Here { visitor, .. }), Err(problem)) => {
                Some(Step::Answer(*visitor, Answer::Refused { problem: problem.into() }))
            }
            // The peer sees the new epoch itself.
            (Some(Requester::There { .. }), Ok(_)) => None,
            (Some(Requester::There { .. }), Err(problem)) => Some(Step::Send(Control::Flow {
                flow,
                message: FlowControl::Changed { epoch: 0, refusal: Some(problem.into()) },
            })),
        };
        self.pending.remove(&flow);
        let next = self.waiting.get_mut(&flow).and_then(VecDeque::pop_front);
        reply.into_iter().chain(next.map(|request| Step::Start(flow, request))).collect()
    }

    /// Refuses the changes in progress after the worker was killed; the worker lost them.
    pub fn handle_restart(&mut self, role: Role, plans: &[FlowPlan]) -> Vec<Step> {
        let problem = "the worker of this flow was killed meanwhile: try again";
        let begun_here = plans.iter().filter(|plan| starts_at(plan.direction, role));
        begun_here.flat_map(|plan| self.settle_flow(plan.flow, Err(problem))).collect()
    }

    /// Refuses all changes of a driver that has gone.
    pub fn forget(&mut self, driver: u32) -> Vec<Step> {
        let problem = "the device is closed";
        let (gone, waiting) =
            std::mem::take(&mut self.waiting).into_iter().partition(|(flow, _)| driver_of(*flow) == driver);
        self.waiting = waiting;
        let gone: BTreeMap<u32, VecDeque<ChangeRequest>> = gone;
        let refused = gone.into_values().flatten().filter_map(|request| match request {
            ChangeRequest::Here { visitor, .. } => {
                Some(Step::Answer(visitor, Answer::Refused { problem: problem.into() }))
            }
            ChangeRequest::There(_) => None,
        });
        let flows: Vec<u32> =
            self.pending.keys().copied().filter(|flow| driver_of(*flow) == driver).collect();
        let refused: Vec<Step> = refused.collect();
        flows.into_iter().flat_map(|flow| self.settle_flow(flow, Err(problem))).chain(refused).collect()
    }
}

/// Returns the flow of a message about a change; `None` for other messages and for those that the flow itself handles.
pub fn flow_of(message: &Control) -> Option<u32> {
    match message {
        Control::Flow { flow, message: FlowControl::Propose { .. } }
        | Control::Flow { flow, message: FlowControl::Change { .. } } => Some(*flow),
        Control::Flow { flow, message: FlowControl::Changed { epoch: 0, .. } } => Some(*flow),
        _ => None,
    }
}

/// Returns the direction of a flow: to the device if `back`, otherwise from it.
pub fn direction(back: bool) -> FlowDirection {
    if back { FlowDirection::ApplicationToDevice } else { FlowDirection::DeviceToApplication }
}

/// Returns the refusal of a request that names a flow that does not exist.
pub fn no_such_flow(name: &str, back: bool) -> Answer {
    let way = if back { "to" } else { "from" };
    let problem =
        format!("there is no flow {way} a device `{name}` here; `outboard top` shows what there is");
    Answer::Refused { problem }
}

/// Returns whether a flow in this direction starts at the host with this role.
fn starts_at(direction: FlowDirection, role: Role) -> bool {
    half_of(role, direction) == Half::Source
}

#[cfg(test)]
mod tests {
    use super::*;
    use contract::{FlowClass, Format, Site};

    /// A restarted worker reports the start of the flow's old pipeline just after it was asked for another one, which
    /// it then refuses.
    #[test]
    fn the_requester_gets_the_result_of_its_own_request() {
        let read = |text| Pipeline::parse(text, registry::pairs(), Origin::Local).expect("a pipeline");
        let mut plan = FlowPlan {
            flow: 0,
            direction: FlowDirection::DeviceToApplication,
            class: FlowClass::Reliable,
            format: Format::Bytes,
            pipeline: read("null"),
            requested: Vec::new(),
            site: Site::default(),
        };
        let mut changes = PipelineChangeBroker::default();
        let asked = Control::Flow {
            flow: 0,
            message: FlowControl::Propose { pipeline: read("tap").canonical().into() },
        };
        let steps = changes.handle(&asked, &plan, &Pipelines::default());
        assert!(matches!(steps[..], [Step::Command(Command::Change { .. })]));
        assert!(changes.settle(&mut plan, &Ok(read("null"))).is_empty(), "still to come");
        let steps = changes.settle(&mut plan, &Err("another is under way".into()));
        assert!(matches!(
            steps[..],
            [Step::Send(Control::Flow {
                message: FlowControl::Changed { epoch: 0, refusal: Some(_), .. },
                ..
            })]
        ));
    }
}
