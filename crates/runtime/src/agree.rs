//! What two hosts build a driver of: the flows of the device, each with the pipeline both agree on.
//!
//! The attacher proposes canonical text; the sharer checks it as text from a stranger and answers with the
//! final text, or says which place it cannot accept.

use crate::driver::FlowPlan;
use crate::keys::FlowKeys;
use crate::registry;
use contract::{Description, FlowDirection, FlowOffer, Format, Secret, Shared};
use pipeline::{NamedOutlet, Origin, Pipeline, Requirement};
use wire::control::AgreedFlow;

/// The pipelines of a driver, as one host wants them.
#[derive(Debug, Clone, Default)]
pub struct Pipelines {
    /// Device to application.
    pub via: Option<Pipeline>,
    /// Application to device.
    pub via_back: Option<Pipeline>,
    /// Device to application, and nothing else.
    pub require: Option<Pipeline>,
    /// Of a key file: the other host must have the same.
    pub key: Option<Secret>,
    /// Where what leaves by side ports at this host goes.
    pub outlets: Vec<NamedOutlet>,
}

impl Pipelines {
    /// Reads this host's own texts.
    pub fn parse(
        via: Option<&str>,
        via_back: Option<&str>,
        require: Option<&str>,
    ) -> Result<Pipelines, String> {
        let read = |text: Option<&str>| {
            let parse = |text| Pipeline::parse(text, registry::pairs(), Origin::Local);
            text.map(parse).transpose().map_err(|error| error.to_string())
        };
        Ok(Pipelines {
            via: read(via)?,
            via_back: read(via_back)?,
            require: read(require)?,
            ..Pipelines::default()
        })
    }

    /// The same with what the device's class recommends for each flow of which nothing is said.
    pub(crate) fn or_recommended(mut self, description: &Description) -> Result<Pipelines, String> {
        let Some(class) = registry::device_class(&description.class) else { return Ok(self) };
        for flow in &description.flows {
            let own = match flow.direction {
                FlowDirection::DeviceToApplication if self.require.is_some() => continue,
                FlowDirection::DeviceToApplication => &mut self.via,
                FlowDirection::ApplicationToDevice => &mut self.via_back,
            };
            let recommended = class.pipeline(flow.direction);
            if own.is_none() && !recommended.is_empty() {
                let parsed = Pipeline::parse(recommended, registry::pairs(), Origin::Local);
                *own = Some(parsed.map_err(|error| error.to_string())?);
            }
        }
        Ok(self)
    }

    /// Checks that the pairs take what they are given in flows of these formats; an error names both ends of the
    /// misfit.
    pub fn check(&self, flows: &[FlowOffer]) -> Result<(), String> {
        for offer in flows {
            let pipeline = match offer.direction {
                FlowDirection::DeviceToApplication => &self.via,
                FlowDirection::ApplicationToDevice => &self.via_back,
            };
            if let Some(pipeline) = pipeline {
                pipeline.check(&offer.format).map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }
}

/// The sharer's answer to a proposal: the flows of `description`, numbered from `first_flow`.
pub(crate) fn answer(
    description: &Description,
    offered: &Pipelines,
    proposed: (Option<&str>, Option<&str>),
    first_flow: u32,
    keys: &FlowKeys,
) -> Result<(Vec<AgreedFlow>, Vec<FlowPlan>), String> {
    let mut agreed = Vec::new();
    let mut plans = Vec::new();
    let shared = Shared::default();
    for (index, offer) in description.flows.iter().enumerate() {
        let pipeline = choose(offer, offered, proposed)?.with_outlets(&offered.outlets);
        pipeline.check(&offer.format).map_err(|error| error.to_string())?;
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
        plans.push(FlowPlan { flow, direction, class, format, pipeline, site });
    }
    Ok((agreed, plans))
}

fn choose(
    offer: &FlowOffer,
    offered: &Pipelines,
    proposed: (Option<&str>, Option<&str>),
) -> Result<Pipeline, String> {
    let (own, proposal) = match offer.direction {
        FlowDirection::DeviceToApplication => (&offered.via, proposed.0),
        FlowDirection::ApplicationToDevice => (&offered.via_back, proposed.1),
    };
    let required = offered.require.as_ref().filter(|_| offer.direction == FlowDirection::DeviceToApplication);
    match (required, proposal) {
        (Some(required), None) => Ok(required.clone()),
        (Some(required), Some(text)) => Requirement::new(required.clone())
            .accept(text, registry::pairs())
            .map_err(|error| error.to_string()),
        (None, Some(text)) => accept(own.as_ref(), text),
        (None, None) => Ok(own.clone().unwrap_or_default()),
    }
}

/// Text from a peer. Where it says what this host wants too, this host's own options and links go with it.
fn accept(own: Option<&Pipeline>, text: &str) -> Result<Pipeline, String> {
    let own = own.and_then(|own| Requirement::new(own.clone()).accept(text, registry::pairs()).ok());
    let parse = || Pipeline::parse(text, registry::pairs(), Origin::Peer).map_err(|error| error.to_string());
    own.map_or_else(parse, Ok)
}

/// A pipeline that the other host wants for a flow that runs already.
pub(crate) fn reconsider(plan: &FlowPlan, own: &Pipelines, text: &str) -> Result<Pipeline, String> {
    let offer = FlowOffer { direction: plan.direction, format: plan.format.clone(), class: plan.class };
    let proposed = match plan.direction {
        FlowDirection::DeviceToApplication => (Some(text), None),
        FlowDirection::ApplicationToDevice => (None, Some(text)),
    };
    let pipeline = choose(&offer, own, proposed)?;
    pipeline.check(&plan.format).map_err(|error| error.to_string())?;
    pipeline.in_place_of(&plan.pipeline).map_err(|error| error.to_string())
}

/// The attacher's reading of the sharer's answer. Where the answer is its own proposal, its own pipeline
/// with its own local options and links is what runs.
pub(crate) fn read_answer(
    flows: &[AgreedFlow],
    own: &Pipelines,
    keys: &FlowKeys,
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
                _ => Pipeline::parse(&flow.pipeline, registry::pairs(), Origin::Peer).map_err(|error| {
                    format!("the other host answered with a pipeline this one refuses: {error}")
                })?,
            };
            let pipeline = match own {
                Some(own) => pipeline.in_place_of(own).map_err(|error| error.to_string())?,
                None => pipeline,
            }
            .with_outlets(outlets);
            let format = Format::from_name(&flow.format).ok_or_else(|| {
                format!("the other host's device has the format `{}`, unknown here", flow.format)
            })?;
            pipeline.check(&format).map_err(|error| error.to_string())?;
            let (direction, class) = (flow.direction, flow.class);
            let site = keys.site(direction, &shared);
            Ok(FlowPlan { flow: flow.flow, direction, class, format, pipeline, site })
        })
        .collect()
}
