//! Agreement between two hosts about a driver: the flows of the device, each with one pipeline for both hosts.
//!
//! The application host proposes pipelines as canonical text. The device host parses that text as untrusted input
//! and answers with the final text, or with an error that names the pair it refuses.

use crate::programs::half_of;
use contract::{Description, FlowDirection, Format, Options, Role, Scope, Shared};
use flow::types::FlowPlan;
use modules::{Pipelines, registry};
use pipeline::{Origin, PairUse, Pipeline, Requirement};
use trust::keys::FlowKeys;
use wire::control::AgreedFlow;

/// The other host of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OtherHost {
    /// It has shown its key.
    Known,
    /// Any host (`--insecure`).
    Any,
}

/// Returns the device host's answer to a proposal: the flows of `description`, numbered from `first_flow`, and the
/// plans to run them.
pub fn answer(
    description: &Description,
    offered: &Pipelines,
    proposed: (Option<&str>, Option<&str>),
    first_flow: u32,
    (other, keys): (OtherHost, &FlowKeys),
) -> Result<(Vec<AgreedFlow>, Vec<FlowPlan>), String> {
    let mut agreed = Vec::new();
    let mut plans = Vec::new();
    let shared = Shared::default();
    for (index, offer) in description.flows.iter().enumerate() {
        let proposed = match offer.direction {
            FlowDirection::DeviceToApplication => proposed.0,
            FlowDirection::ApplicationToDevice => proposed.1,
        };
        let proposal = proposed.map_or(Proposal::Nothing, Proposal::First);
        let pipeline = choose(offer.direction, offered, proposal)?.with_outlets(&offered.outlets);
        check(&pipeline, &offer.format, Role::Device, offer.direction)?;
        check_work(&pipeline, other)?;
        let flow = first_flow + index as u32;
        agreed.push(AgreedFlow {
            flow,
            direction: offer.direction,
            class: offer.class,
            format: offer.format.name().into(),
            pipeline: pipeline.canonical().into(),
        });
        let (direction, class, format) = (offer.direction, offer.class, offer.format.clone());
        let site = keys.site(direction, &shared);
        plans.push(FlowPlan { flow, direction, class, format, pipeline, requested: Vec::new(), site });
    }
    Ok((agreed, plans))
}

/// Checks that the pipeline takes the format, and that the host with this role can make its halves.
fn check(pipeline: &Pipeline, format: &Format, host: Role, direction: FlowDirection) -> Result<(), String> {
    let formats = pipeline.check(format);
    formats.and_then(|_| pipeline.check_half(half_of(host, direction))).map_err(|error| error.to_string())
}

/// Checks that work is left out only where nothing is protected: a pair that does not work protects nothing.
fn check_work(pipeline: &Pipeline, other: OtherHost) -> Result<(), String> {
    let left_out = pipeline.pairs().iter().find(|used| used.speedup.is_some());
    match (left_out, other) {
        (Some(used), OtherHost::Known) => Err(format!(
            "`faster` leaves out the work of `{}`: for a measurement with --insecure on both hosts alone \
             (`outboard whatif`)",
            used.pair.name()
        )),
        (Some(_), OtherHost::Any) | (None, _) => Ok(()),
    }
}

/// The text of a pipeline for a flow.
enum Proposal<'a> {
    Nothing,
    /// For a flow that begins: if it is only a pair that joins flows, this host's own pipeline completes it.
    First(&'a str),
    /// For a flow that runs: the whole pipeline.
    Change(&'a str),
}

fn choose(direction: FlowDirection, offered: &Pipelines, proposal: Proposal<'_>) -> Result<Pipeline, String> {
    let (own, required) = match direction {
        FlowDirection::DeviceToApplication => (offered.via.as_ref(), offered.require.as_ref()),
        FlowDirection::ApplicationToDevice => (offered.via_back.as_ref(), None),
    };
    match (required, proposal) {
        (Some(required), Proposal::Nothing) => Ok(required.clone()),
        (Some(required), Proposal::First(text) | Proposal::Change(text)) => {
            Requirement::new(required.clone())
                .accept(text, registry::pairs())
                .map_err(|error| format!("{error}\ntype on the application host: --via {}", typed(required)))
        }
        (None, Proposal::First(text)) => {
            let accepted = accept(own, text)?;
            let completed = own.map(|own| accepted.clone().completed_by(own));
            completed.unwrap_or(Ok(accepted)).map_err(|error| error.to_string())
        }
        (None, Proposal::Change(text)) => accept(own, text),
        (None, Proposal::Nothing) => Ok(own.cloned().unwrap_or_default()),
    }
}

/// Parses pipeline text from a peer. If the text equals this host's own pipeline, the own pipeline with its local options
/// and links is used.
fn accept(own: Option<&Pipeline>, text: &str) -> Result<Pipeline, String> {
    let own = own.and_then(|own| Requirement::new(own.clone()).accept(text, registry::pairs()).ok());
    let parse = || Pipeline::parse(text, registry::pairs(), Origin::Peer).map_err(|error| error.to_string());
    own.map_or_else(parse, Ok)
}

/// Returns a pipeline as a word for a shell: without defaults, if that gives the same pipeline.
fn typed(pipeline: &Pipeline) -> String {
    let pair = |used: &PairUse| {
        let defaults = Options::defaults(used.pair.options()).unwrap_or_default();
        let is_agreed = |name: &str| {
            used.pair.options().iter().any(|option| option.name == name && option.scope == Scope::Agreed)
        };
        let changed = used.options.iter().filter(|(name, value)| defaults.value(name) != Some(*value));
        let changed = changed.filter(|(name, _)| is_agreed(name));
        let options: Vec<_> = changed.map(|(name, value)| format!("{name}={value}")).collect();
        match options.is_empty() {
            true => used.pair.name().to_string(),
            false => format!("{}({})", used.pair.name(), options.join(", ")),
        }
    };
    let short = pipeline.pairs().iter().map(pair).collect::<Vec<_>>().join(" | ");
    let text = match Pipeline::parse(&short, registry::pairs(), Origin::Local) {
        Ok(same) if same.canonical() == pipeline.canonical() => &short,
        _ => pipeline.canonical(),
    };
    shlex::try_quote(text).map_or_else(|_| "PIPELINE".into(), String::from)
}

/// Checks a pipeline that the peer proposes for a flow that already runs.
pub fn reconsider(plan: &FlowPlan, own: &Pipelines, text: &str) -> Result<Pipeline, String> {
    let pipeline = choose(plan.direction, own, Proposal::Change(text))?;
    check(&pipeline, &plan.format, Role::Device, plan.direction)?;
    check_work(&pipeline, OtherHost::Known)?;
    pipeline.in_place_of(&plan.pipeline).map_err(|error| error.to_string())
}

/// Reads the device host's answer on the application host. If the answer repeats this host's proposal, this host's
/// own pipeline runs, with its local options and links.
pub fn read_answer(
    flows: &[AgreedFlow],
    own: &Pipelines,
    (other, keys): (OtherHost, &FlowKeys),
) -> Result<Vec<FlowPlan>, String> {
    let (shared, outlets) = (Shared::default(), &own.outlets);
    flows
        .iter()
        .map(|flow| {
            let own = match flow.direction {
                FlowDirection::DeviceToApplication => &own.via,
                FlowDirection::ApplicationToDevice => &own.via_back,
            };
            let pipeline = match own {
                Some(own) if own.canonical() == flow.pipeline => own.clone(),
                _ => Pipeline::parse(&flow.pipeline, registry::pairs(), Origin::Peer)
                    .map_err(|error| format!("this host refuses the pipeline of the device host: {error}"))?,
            };
            let pipeline = match own {
                Some(own) => pipeline.in_place_of(own).map_err(|error| error.to_string())?,
                None => pipeline,
            }
            .with_outlets(outlets);
            let format = Format::from_name(&flow.format).ok_or_else(|| {
                format!(
                    "the other host's device has the format `{}`, which this host does not support",
                    flow.format
                )
            })?;
            check(&pipeline, &format, Role::Application, flow.direction)?;
            check_work(&pipeline, other)?;
            let (direction, class) = (flow.direction, flow.class);
            let site = keys.site(direction, &shared);
            Ok(FlowPlan { flow: flow.flow, direction, class, format, pipeline, requested: Vec::new(), site })
        })
        .collect()
}
