//! Encodes the parts of commands and reports as bytes and descriptors.
//!
//! Rare and human-readable parts are text: pipelines as written, statistics and traces as JSON. Everything else uses
//! the encoding of `wire`.

use contract::{
    Description, DeviceSpec, FlowClass, FlowDirection, FlowOffer, Format, Opened, OptionSpec, Options, Port,
    Role, SealKeys, Secret, Shared, Site,
};
use flow::types::FlowPlan;
use hub::endpoint::FarEnd;
use hub::{OpenPort, PartnerOrigin};
use modules::TransportPlan;
use modules::registry;
use pipeline::{Origin, Pipeline};
use session::{Admittance, Limits, Rates, StoreFull};
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;
use thiserror::Error;
use wire::control::{CONTROL_BODY_BYTES_MAX, DESCRIPTION_BYTES_MAX, FLOWS_MAX, PIPELINE_BYTES_MAX};
use wire::{Control, FlowControl, Reader, WireError, Writer};

/// Bytes of the longest text: a command of a user, a path, an error.
pub(super) const TEXT_BYTES_MAX: usize = 64 << 10;
/// Most options of a device or a transport.
pub(super) const OPTIONS_MAX: usize = 64;
/// Most pipelines that a driver may have for one direction: the current one, and those requested since.
pub(super) const OFFERED_MAX: usize = 8;

/// Errors of encoded commands and reports.
#[derive(Debug, Error)]
pub(super) enum CodecError {
    #[error("{0}")]
    Wire(#[from] WireError),
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    #[error("{0}")]
    Meaning(String),
    #[error("a descriptor is missing")]
    Descriptor,
    #[error("its figures or stamps exceed their limits or belong to another driver")]
    Excess,
    #[error("it speaks for a flow of others")]
    Foreign,
}

pub(super) type Parsed<T> = Result<T, CodecError>;

/// The first frame that a worker receives.
pub(super) struct Begin {
    /// Limits of its paths.
    pub(super) limits: Limits,
    /// The worker exits if the kernel cannot apply the whole sandbox.
    pub(super) requires_lock: bool,
    /// The program that runs stages.
    pub(super) program: OsString,
}

impl Begin {
    pub(super) fn emit(&self) -> Vec<u8> {
        let Limits {
            store_bytes,
            store_messages,
            store_full,
            held_records,
            held_bytes,
            message_bytes,
            control_bytes,
            silence,
            ping_interval,
            rest_interval,
            keep,
            drain,
            greeting,
            greetings,
            sessions,
            drivers,
            admission: _,
            rates:
                Rates {
                    device_bytes,
                    session_bytes,
                    cpu_percent_per_peer,
                    control_messages_per_peer: _,
                    control_requests_per_peer: _,
                },
        } = &self.limits;
        let mut w = Writer::new();
        for count in [store_bytes, store_messages, held_records, held_bytes, message_bytes, control_bytes] {
            w.u64(*count as u64);
        }
        for count in [greetings, sessions, drivers] {
            w.u64(*count as u64);
        }
        for time in [silence, ping_interval, rest_interval, keep, drain, greeting] {
            put_duration(&mut w, *time);
        }
        for rate in [device_bytes, session_bytes, cpu_percent_per_peer] {
            w.u64(*rate);
        }
        w.text(store_full.word()).u8(self.requires_lock.into()).blob(self.program.as_bytes());
        w.finish()
    }

    pub(super) fn parse(bytes: &[u8]) -> Parsed<Begin> {
        let mut r = Reader::new(bytes);
        let r = &mut r;
        let count = |r: &mut Reader<'_>| -> Parsed<usize> { Ok(r.u64("a limit")? as usize) };
        let limits = Limits {
            store_bytes: count(r)?,
            store_messages: count(r)?,
            held_records: count(r)?,
            held_bytes: count(r)?,
            message_bytes: count(r)?,
            control_bytes: count(r)?,
            greetings: count(r)?,
            sessions: count(r)?,
            drivers: count(r)?,
            silence: duration(r)?,
            ping_interval: duration(r)?,
            rest_interval: duration(r)?,
            keep: duration(r)?,
            drain: duration(r)?,
            greeting: duration(r)?,
            rates: Rates {
                device_bytes: r.u64("a rate")?,
                session_bytes: r.u64("a rate")?,
                cpu_percent_per_peer: r.u64("a rate")?,
                // The broker enforces the limits on control messages.
                ..Rates::default()
            },
            // The broker decides on admission.
            admission: Admittance::default(),
            store_full: store_full(r)?,
        };
        let requires_lock = flag(r)?;
        let program = OsStr::from_bytes(r.blob("program", TEXT_BYTES_MAX)?).into();
        r.end("limits")?;
        Ok(Begin { limits, requires_lock, program })
    }
}

pub(super) const OPENED: u8 = 0;
pub(super) const WAY: u8 = 1;

/// A partner object of this process is not sent.
pub(super) fn put_origin(w: &mut Writer, origin: PartnerOrigin, given: &mut Vec<OwnedFd>) {
    match origin {
        PartnerOrigin::Opened(opened) => put_opened(w.u8(OPENED), *opened, given),
        PartnerOrigin::Hub(FarEnd { memory, wakeup, capacity }) => {
            w.u8(WAY).u32(capacity);
            given.extend([memory, wakeup]);
        }
        PartnerOrigin::Ready(_) => {}
    }
}

pub(super) fn origin(r: &mut Reader<'_>, given: &mut impl Iterator<Item = OwnedFd>) -> Parsed<PartnerOrigin> {
    Ok(match r.u8("origin")? {
        OPENED => PartnerOrigin::Opened(Box::new(opened(r, given)?)),
        WAY => {
            let capacity = r.u32("messages that wait")?;
            let mut next = || given.next().ok_or(CodecError::Descriptor);
            PartnerOrigin::Hub(FarEnd { memory: next()?, wakeup: next()?, capacity })
        }
        value => return Err(WireError::Value { what: "origin", value: value.into() }.into()),
    })
}

pub(super) fn put_opened(w: &mut Writer, opened: Opened, given: &mut Vec<OwnedFd>) {
    let Opened { spec, role, description, descriptors } = opened;
    w.u8(role_byte(role)).text(&spec.class).text(&spec.target);
    put_options(w, &spec.options);
    w.text(&description.class).text(&description.summary).text(description.application);
    w.u16(description.flows.len() as u16);
    for FlowOffer { direction, format, class } in &description.flows {
        w.u8(direction_byte(*direction)).text(format.name()).u8(class_byte(*class));
    }
    w.blob(&description.properties).u16(descriptors.len() as u16);
    given.extend(descriptors);
}

pub(super) fn open_port(r: &mut Reader<'_>, given: &mut impl Iterator<Item = OwnedFd>) -> Parsed<OpenPort> {
    let name = r.text("pair", TEXT_BYTES_MAX)?;
    let pair = registry::pairs().iter().find(|pair| pair.name() == name);
    let pair = pair.ok_or_else(|| unknown("pair", name))?.name();
    Ok(OpenPort { pair, port: Port(r.u16("port")?), origin: origin(r, given)? })
}

pub(super) fn opened(r: &mut Reader<'_>, given: &mut impl Iterator<Item = OwnedFd>) -> Parsed<Opened> {
    let role = role(r)?;
    let (class, target) = (text(r, "class")?, text(r, "target")?);
    let known = registry::device_class(&class).ok_or_else(|| unknown("device class", &class))?;
    let options = options(r, known.options())?;
    let (device, summary) = (text(r, "device")?, text(r, "summary")?);
    let application = r.text("application", TEXT_BYTES_MAX)?;
    let application =
        registry::device_class(application).ok_or_else(|| unknown("device class", application))?.name();
    let count = r.count("flows", FLOWS_MAX)?;
    let offer = |r: &mut Reader<'_>| -> Parsed<FlowOffer> {
        Ok(FlowOffer { direction: direction(r)?, format: format(r)?, class: flow_class(r)? })
    };
    let flows = (0..count).map(|_| offer(r)).collect::<Parsed<_>>()?;
    let properties = r.blob("properties", DESCRIPTION_BYTES_MAX)?.into();
    let count = r.u16("descriptors")?;
    let descriptors =
        (0..count).map(|_| given.next().ok_or(CodecError::Descriptor)).collect::<Parsed<_>>()?;
    Ok(Opened {
        spec: DeviceSpec { class, target, options },
        role,
        description: Description { class: device, summary, flows, application, properties },
        descriptors,
    })
}

pub(super) fn put_plans(w: &mut Writer, plans: &[FlowPlan]) {
    w.u16(plans.len() as u16);
    for FlowPlan { flow, direction, class, format, pipeline, requested, site } in plans {
        w.u32(*flow).u8(direction_byte(*direction)).u8(class_byte(*class)).text(format.name());
        put_pipeline(w, pipeline);
        w.u16(requested.len() as u16);
        requested.iter().for_each(|pipeline| put_pipeline(w, pipeline));
        w.u8(site.key.is_some().into());
        if let Some(Secret(key)) = &site.key {
            w.raw(key);
        }
    }
}

pub(super) fn plans(r: &mut Reader<'_>) -> Parsed<Vec<FlowPlan>> {
    let count = r.count("flows", FLOWS_MAX)?;
    // Both flows of a driver share this state.
    let shared = Shared::default();
    let plan = |r: &mut Reader<'_>| -> Parsed<FlowPlan> {
        let (flow, direction, class) = (r.u32("flow")?, direction(r)?, flow_class(r)?);
        let (format, current) = (format(r)?, pipeline(r)?);
        let count = r.count("requested pipelines", OFFERED_MAX)?;
        let requested = (0..count).map(|_| pipeline(r)).collect::<Parsed<_>>()?;
        let key = if flag(r)? { Some(Secret(r.array("a key")?)) } else { None };
        let site = Site { key, shared: shared.clone(), ..Site::default() };
        Ok(FlowPlan { flow, direction, class, format, pipeline: current, requested, site })
    };
    (0..count).map(|_| plan(r)).collect()
}

pub(super) fn put_transport(w: &mut Writer, transport: &TransportPlan) {
    w.text(transport.class.name());
    put_options(w, &transport.options);
}

pub(super) fn transport(r: &mut Reader<'_>) -> Parsed<TransportPlan> {
    let name = r.text("transport", TEXT_BYTES_MAX)?;
    let class = registry::transport(name).ok_or_else(|| unknown("transport", name))?;
    Ok(TransportPlan { class, options: options(r, class.options())? })
}

pub(super) fn put_keys(w: &mut Writer, keys: Option<SealKeys>) {
    w.u8(keys.is_some().into());
    if let Some(SealKeys { sending, receiving }) = keys {
        w.raw(&sending.0).raw(&receiving.0);
    }
}

pub(super) fn keys(r: &mut Reader<'_>) -> Parsed<Option<SealKeys>> {
    let key = |r: &mut Reader<'_>| Ok::<_, WireError>(Secret(r.array("a key")?));
    Ok(match flag(r)? {
        false => None,
        true => Some(SealKeys { sending: key(r)?, receiving: key(r)? }),
    })
}

pub(super) fn put_options(w: &mut Writer, options: &Options) {
    w.u16(options.iter().count() as u16);
    for (name, value) in options.iter() {
        w.text(name).text(&value.to_string());
    }
}

pub(super) fn options(r: &mut Reader<'_>, specs: &'static [OptionSpec]) -> Parsed<Options> {
    let count = r.count("options", OPTIONS_MAX)?;
    let mut given = Vec::with_capacity(count);
    for _ in 0..count {
        given.push((r.text("option", TEXT_BYTES_MAX)?, r.text("value", TEXT_BYTES_MAX)?));
    }
    Options::check(specs, given).map_err(|error| CodecError::Meaning(error.problem))
}

pub(super) fn put_pipeline(w: &mut Writer, pipeline: &Pipeline) {
    w.text(pipeline.text()).u8(pipeline.is_first_in_junction().into());
}

/// Decodes a pipeline of a command. Its names were authorized when the broker first parsed it. A report holds none.
pub(super) fn pipeline(r: &mut Reader<'_>) -> Parsed<Pipeline> {
    let text = r.text("pipeline", PIPELINE_BYTES_MAX)?;
    let mut pipeline = Pipeline::parse(text, registry::pairs(), Origin::Local)
        .map_err(|error| CodecError::Meaning(error.to_string()))?;
    if flag(r)? {
        pipeline.leave_first_to_junction();
    }
    Ok(pipeline)
}

pub(super) fn put_flow_control(w: &mut Writer, flow: u32, message: FlowControl) {
    w.blob(&Control::Flow { flow, message }.emit());
}

pub(super) fn flow_control(r: &mut Reader<'_>) -> Parsed<(u32, FlowControl)> {
    let bytes = r.blob("control message", CONTROL_BODY_BYTES_MAX + 64)?;
    match Control::parse_frame(bytes)? {
        Some((Control::Flow { flow, message }, used)) if used == bytes.len() => Ok((flow, message)),
        Some(_) => Err(CodecError::Foreign),
        None => Err(WireError::Short { what: "control message", needed: 0, left: bytes.len() }.into()),
    }
}

pub(super) fn text(r: &mut Reader<'_>, what: &'static str) -> Parsed<String> {
    Ok(r.text(what, TEXT_BYTES_MAX)?.into())
}

pub(super) fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_BYTES_MAX)]
}

pub(super) fn unknown(what: &str, name: &str) -> CodecError {
    CodecError::Meaning(format!("there is no {what} `{name}`"))
}

pub(super) fn flag(r: &mut Reader<'_>) -> Parsed<bool> {
    match r.u8("flag")? {
        0 => Ok(false),
        1 => Ok(true),
        value => Err(WireError::Value { what: "flag", value: value.into() }.into()),
    }
}

pub(super) fn put_duration(w: &mut Writer, duration: Duration) {
    w.u64(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX));
}

pub(super) fn duration(r: &mut Reader<'_>) -> Parsed<Duration> {
    Ok(Duration::from_nanos(r.u64("duration")?))
}

pub(super) fn store_full(r: &mut Reader<'_>) -> Parsed<StoreFull> {
    let word = r.text("policy", TEXT_BYTES_MAX)?;
    StoreFull::parse(word).ok_or_else(|| unknown("policy", word))
}

pub(super) fn format(r: &mut Reader<'_>) -> Parsed<Format> {
    let name = r.text("format", TEXT_BYTES_MAX)?;
    Format::from_name(name).ok_or_else(|| unknown("format", name))
}

pub(super) fn role_byte(role: Role) -> u8 {
    (role == Role::Application).into()
}

pub(super) fn role(r: &mut Reader<'_>) -> Parsed<Role> {
    Ok(if flag(r)? { Role::Application } else { Role::Device })
}

pub(super) fn direction_byte(direction: FlowDirection) -> u8 {
    (direction == FlowDirection::ApplicationToDevice).into()
}

pub(super) fn direction(r: &mut Reader<'_>) -> Parsed<FlowDirection> {
    Ok(if flag(r)? { FlowDirection::ApplicationToDevice } else { FlowDirection::DeviceToApplication })
}

pub(super) fn class_byte(class: FlowClass) -> u8 {
    match class {
        FlowClass::Reliable => 0,
        FlowClass::Timely => 1,
        FlowClass::State => 2,
    }
}

pub(super) fn flow_class(r: &mut Reader<'_>) -> Parsed<FlowClass> {
    match r.u8("class of a flow")? {
        0 => Ok(FlowClass::Reliable),
        1 => Ok(FlowClass::Timely),
        2 => Ok(FlowClass::State),
        value => Err(WireError::Value { what: "class of a flow", value: value.into() }.into()),
    }
}
