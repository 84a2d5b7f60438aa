//! Commands and reports as bytes, and the descriptors that go with them.
//!
//! What does not change often, or only people read, is text: pipelines as they were written, figures and traces as JSON.
//! Everything else is as in `wire`. A broker takes nothing on trust that a worker says: it is checked and bounded here,
//! and a worker speaks to the other host for its own flows only.

use super::{Command, OpenPort, PartnerOrigin, Report, TransportPlan};
use crate::active::FarEnd;
use crate::change::driver_of;
use crate::driver::{FlowPlan, LinkFacts, Notice};
use crate::junction::outlet::PORTS_MAX;
use crate::registry;
use contract::{
    Description, DeviceSpec, FlowClass, FlowDirection, FlowOffer, Format, Offset, Opened, OptionSpec,
    Options, Port, Role, SealKeys, Secret, Shared, Site, Time,
};
use pipeline::{Origin, Pipeline};
use session::{Admittance, Limits, Rates, StoreFull};
use std::ffi::OsStr;
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;
use thiserror::Error;
use wire::control::{CONTROL_BODY_BYTES_MAX, DESCRIPTION_BYTES_MAX, FLOWS_MAX, PIPELINE_BYTES_MAX};
use wire::{Control, Reader, WireError, Writer};

/// Bytes of the longest text: a user's words, a path, why something failed.
const TEXT_BYTES_MAX: usize = 64 << 10;
/// Options of a device or a transport.
const OPTIONS_MAX: usize = 64;
/// Bytes of the longest JSON.
const JSON_BYTES_MAX: usize = 16 << 20;

/// Why bytes are no command or report.
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
    #[error("it speaks for a flow of others")]
    Foreign,
}

type Parsed<T> = Result<T, CodecError>;

/// The first thing a worker hears.
pub(super) struct Begin {
    /// What its paths may take.
    pub(super) limits: Limits,
    /// It ends if the kernel does not take everything from it that it should.
    pub(super) requires_lock: bool,
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
            keep,
            drain,
            greeting,
            greetings,
            sessions,
            drivers,
            admission: _,
            rates:
                Rates {
                    device_messages,
                    device_bytes,
                    session_messages,
                    session_bytes,
                    cpu_percent_per_peer,
                    control_percent_per_peer: _,
                },
        } = &self.limits;
        let mut w = Writer::new();
        for count in [store_bytes, store_messages, held_records, held_bytes, message_bytes, control_bytes] {
            w.u64(*count as u64);
        }
        for count in [greetings, sessions, drivers] {
            w.u64(*count as u64);
        }
        for time in [silence, ping_interval, keep, drain, greeting] {
            put_duration(&mut w, *time);
        }
        for rate in [device_messages, device_bytes, session_messages, session_bytes, cpu_percent_per_peer] {
            w.u64(*rate);
        }
        w.text(store_full.word()).u8(self.requires_lock.into());
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
            keep: duration(r)?,
            drain: duration(r)?,
            greeting: duration(r)?,
            rates: Rates {
                device_messages: r.u64("a rate")?,
                device_bytes: r.u64("a rate")?,
                session_messages: r.u64("a rate")?,
                session_bytes: r.u64("a rate")?,
                cpu_percent_per_peer: r.u64("a rate")?,
                // What is said beside the flows the broker hears.
                ..Rates::default()
            },
            // Who may come in is the broker's own.
            admission: Admittance::default(),
            store_full: store_full(r)?,
        };
        let requires_lock = flag(r)?;
        r.end("limits")?;
        Ok(Begin { limits, requires_lock })
    }
}

const ADD: u8 = 0;
const REBUILD: u8 = 1;
const LINK: u8 = 2;
const LINKS_LOST: u8 = 3;
const SILENCE: u8 = 4;
const HEARD: u8 = 5;
const FACTS: u8 = 6;
const CONTROL: u8 = 7;
const CHANGE: u8 = 8;
const PREPARE: u8 = 9;
const ABSENCE: u8 = 10;
const RESYNC: u8 = 11;
const PARTNER: u8 = 12;
const SAY: u8 = 13;
const REMOVE: u8 = 14;
const STATS: u8 = 15;
const TRACE: u8 = 16;
const STOP: u8 = 17;
const MOVE: u8 = 18;
const MEMORY: u8 = 19;
const PORTS: u8 = 20;
const WARDEN: u8 = 21;
const PROCESSOR: u8 = 22;

/// A command's bytes, and the descriptors that go with them. What holds a partner of this program's own cannot cross.
pub(super) fn emit_command(command: Command) -> Result<(Vec<u8>, Vec<OwnedFd>), Command> {
    let (mut w, mut given) = (Writer::new(), Vec::new());
    match command {
        command @ (Command::Add { origin: PartnerOrigin::Ready(_), .. }
        | Command::Partner { origin: PartnerOrigin::Ready(_), .. }) => return Err(command),
        Command::Add { driver, origin, role, flows, transport } => {
            w.u8(ADD).u32(driver).u8(role_byte(role));
            put_origin(&mut w, origin, &mut given);
            put_plans(&mut w, &flows);
            put_transport(&mut w, &transport);
        }
        Command::Partner { driver, origin } => {
            w.u8(PARTNER).u32(driver);
            put_origin(&mut w, origin, &mut given);
        }
        Command::Memory { driver, memory } => {
            w.u8(MEMORY).u32(driver);
            given.push(memory);
        }
        Command::Warden { socket, program } => {
            w.u8(WARDEN).blob(program.as_bytes());
            given.push(socket);
        }
        Command::Ports { driver, ports } => {
            w.u8(PORTS).u32(driver).u16(ports.len() as u16);
            for OpenPort { pair, port: Port(port), origin } in ports {
                w.text(pair).u16(port);
                put_origin(&mut w, origin, &mut given);
            }
        }
        Command::Rebuild { driver, flows } => {
            w.u8(REBUILD).u32(driver);
            put_plans(&mut w, &flows);
        }
        Command::Link { driver, transport, socket, keys } => {
            w.u8(LINK).u32(driver).u8(transport.is_some().into());
            transport.iter().for_each(|transport| put_transport(&mut w, transport));
            w.u8(keys.is_some().into());
            if let Some(SealKeys { sending, receiving }) = keys {
                w.raw(&sending.0).raw(&receiving.0);
            }
            given.push(socket);
        }
        Command::Move { driver, socket } => {
            w.u8(MOVE).u32(driver);
            given.push(socket);
        }
        Command::Processor { ns_per_second } => drop(w.u8(PROCESSOR).u64(ns_per_second)),
        Command::LinksLost => drop(w.u8(LINKS_LOST)),
        Command::Silence => drop(w.u8(SILENCE)),
        Command::Heard => drop(w.u8(HEARD)),
        Command::Facts(LinkFacts { offset, round_trip }) => {
            w.u8(FACTS).u64(offset.0.cast_unsigned());
            put_duration(&mut w, round_trip);
        }
        Command::Control { driver, message } => drop(w.u8(CONTROL).u32(driver).blob(&message.emit())),
        Command::Change { driver, direction, pipeline } => {
            put_pipeline(w.u8(CHANGE).u32(driver).u8(direction_byte(direction)), &pipeline);
        }
        Command::Prepare { driver, flow, epoch, pipeline } => {
            put_pipeline(w.u8(PREPARE).u32(driver).u32(flow).u32(epoch), &pipeline);
        }
        Command::Absence { driver } => drop(w.u8(ABSENCE).u32(driver)),
        Command::Resync { driver } => drop(w.u8(RESYNC).u32(driver)),
        Command::Say { driver, visitor, words } => {
            w.u8(SAY).u32(driver).u64(visitor).text(&words);
        }
        Command::Remove { driver } => drop(w.u8(REMOVE).u32(driver)),
        Command::Stats => drop(w.u8(STATS)),
        Command::Trace { driver, one_in } => {
            w.u8(TRACE).u32(driver).u32(one_in.map_or(0, NonZeroU32::get));
        }
        Command::Stop => drop(w.u8(STOP)),
    }
    Ok((w.finish(), given))
}

/// The command that these bytes and descriptors are.
pub(super) fn parse_command(bytes: &[u8], given: Vec<OwnedFd>) -> Parsed<Command> {
    let mut given = given.into_iter();
    let mut r = Reader::new(bytes);
    let r = &mut r;
    let kind = r.u8("command")?;
    let command = match kind {
        ADD => {
            let (driver, role) = (r.u32("driver")?, role(r)?);
            let origin = origin(r, &mut given)?;
            let flows = plans(r)?;
            Command::Add { driver, origin, role, flows, transport: transport(r)? }
        }
        PARTNER => Command::Partner { driver: r.u32("driver")?, origin: origin(r, &mut given)? },
        MEMORY => {
            Command::Memory { driver: r.u32("driver")?, memory: given.next().ok_or(CodecError::Descriptor)? }
        }
        WARDEN => {
            let program = OsStr::from_bytes(r.blob("program", TEXT_BYTES_MAX)?).into();
            Command::Warden { socket: given.next().ok_or(CodecError::Descriptor)?, program }
        }
        PORTS => {
            let (driver, count) = (r.u32("driver")?, r.count("ports", PORTS_MAX)?);
            let ports = (0..count).map(|_| open_port(r, &mut given)).collect::<Parsed<_>>()?;
            Command::Ports { driver, ports }
        }
        REBUILD => Command::Rebuild { driver: r.u32("driver")?, flows: plans(r)? },
        LINK => {
            let driver = r.u32("driver")?;
            let transport = flag(r)?.then(|| transport(r)).transpose()?;
            let keys = match flag(r)? {
                false => None,
                true => Some(SealKeys {
                    sending: Secret(r.array("a key")?),
                    receiving: Secret(r.array("a key")?),
                }),
            };
            let socket = given.next().ok_or(CodecError::Descriptor)?;
            Command::Link { driver, transport, socket, keys }
        }
        MOVE => {
            Command::Move { driver: r.u32("driver")?, socket: given.next().ok_or(CodecError::Descriptor)? }
        }
        PROCESSOR => Command::Processor { ns_per_second: r.u64("processor time")? },
        LINKS_LOST => Command::LinksLost,
        SILENCE => Command::Silence,
        HEARD => Command::Heard,
        FACTS => {
            let offset = Offset(r.u64("offset")?.cast_signed());
            Command::Facts(LinkFacts { offset, round_trip: duration(r)? })
        }
        CONTROL => Command::Control { driver: r.u32("driver")?, message: control(r)? },
        CHANGE => {
            Command::Change { driver: r.u32("driver")?, direction: direction(r)?, pipeline: pipeline(r)? }
        }
        PREPARE => Command::Prepare {
            driver: r.u32("driver")?,
            flow: r.u32("flow")?,
            epoch: r.u32("epoch")?,
            pipeline: pipeline(r)?,
        },
        ABSENCE => Command::Absence { driver: r.u32("driver")? },
        RESYNC => Command::Resync { driver: r.u32("driver")? },
        SAY => {
            Command::Say { driver: r.u32("driver")?, visitor: r.u64("visitor")?, words: text(r, "words")? }
        }
        REMOVE => Command::Remove { driver: r.u32("driver")? },
        STATS => Command::Stats,
        TRACE => Command::Trace { driver: r.u32("driver")?, one_in: NonZeroU32::new(r.u32("one in")?) },
        STOP => Command::Stop,
        value => return Err(WireError::Value { what: "command", value: value.into() }.into()),
    };
    r.end("command")?;
    Ok(command)
}

const NOTICE: u8 = 0;
const SAID: u8 = 1;
const ALL_STATS: u8 = 2;
const TRACED: u8 = 3;
const ALIVE: u8 = 4;
const WARNING: u8 = 5;

const SEND: u8 = 0;
const PARTNER_GONE: u8 = 1;
const LINK_FAILED: u8 = 2;
const CHANGED: u8 = 3;
const FLOW_ENDED: u8 = 4;
const INCIDENT: u8 = 5;
const STORE_FULL: u8 = 6;
const FAILED: u8 = 7;
const LINK_HELD_BACK: u8 = 8;

/// A report's bytes.
pub(super) fn emit_report(report: &Report) -> Vec<u8> {
    let mut w = Writer::new();
    match report {
        Report::Notice { driver, notice } => {
            w.u8(NOTICE).u32(*driver);
            put_notice(&mut w, notice);
        }
        Report::Said { visitor, result } => {
            let (is_answer, text) = match result {
                Ok(answer) => (true, answer),
                Err(problem) => (false, problem),
            };
            w.u8(SAID).u64(*visitor).u8(is_answer.into()).text(cut(text));
        }
        Report::Stats(stats) => drop(w.u8(ALL_STATS).blob(&json(stats))),
        Report::Trace { driver, flows } => drop(w.u8(TRACED).u32(*driver).blob(&json(flows))),
        Report::Heard(at) => drop(w.u8(ALIVE).u64(at.0)),
        Report::Warning(problem) => drop(w.u8(WARNING).text(cut(problem))),
    }
    w.finish()
}

/// What a type of ours is in JSON; nothing, which no parser takes, should it have no words for it.
fn json(value: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}

/// The report that these bytes are.
pub(super) fn parse_report(bytes: &[u8]) -> Parsed<Report> {
    let mut r = Reader::new(bytes);
    let r = &mut r;
    let report = match r.u8("report")? {
        NOTICE => {
            let driver = r.u32("driver")?;
            Report::Notice { driver, notice: notice(r, driver)? }
        }
        SAID => {
            let (visitor, is_answer) = (r.u64("visitor")?, flag(r)?);
            let text = text(r, "answer")?;
            Report::Said { visitor, result: if is_answer { Ok(text) } else { Err(text) } }
        }
        ALL_STATS => Report::Stats(serde_json::from_slice(r.blob("figures", JSON_BYTES_MAX)?)?),
        TRACED => Report::Trace {
            driver: r.u32("driver")?,
            flows: serde_json::from_slice(r.blob("traces", JSON_BYTES_MAX)?)?,
        },
        ALIVE => Report::Heard(Time(r.u64("time")?)),
        WARNING => Report::Warning(text(r, "warning")?),
        value => return Err(WireError::Value { what: "report", value: value.into() }.into()),
    };
    r.end("report")?;
    Ok(report)
}

fn put_notice(w: &mut Writer, notice: &Notice) {
    match notice {
        Notice::Control(message) => drop(w.u8(SEND).blob(&message.emit())),
        Notice::PartnerGone(reason) => drop(w.u8(PARTNER_GONE).text(cut(reason))),
        Notice::LinkFailed(reason) => drop(w.u8(LINK_FAILED).text(cut(reason))),
        Notice::LinkHeldBack => drop(w.u8(LINK_HELD_BACK)),
        Notice::Changed { direction, result } => {
            w.u8(CHANGED).u8(direction_byte(*direction)).u8(result.is_ok().into());
            match result {
                Ok(pipeline) => put_pipeline(w, pipeline),
                Err(reason) => drop(w.text(cut(reason))),
            }
        }
        Notice::FlowEnded(direction) => drop(w.u8(FLOW_ENDED).u8(direction_byte(*direction))),
        Notice::Incident(incident) => drop(w.u8(INCIDENT).text(cut(incident))),
        Notice::StoreFull(policy) => drop(w.u8(STORE_FULL).text(policy.word())),
        // Only a broker tells that of its worker.
        Notice::Restarted { end, .. } => drop(w.u8(INCIDENT).text(cut(end))),
        Notice::Failed(reason) => drop(w.u8(FAILED).text(cut(reason))),
    }
}

fn notice(r: &mut Reader<'_>, driver: u32) -> Parsed<Notice> {
    Ok(match r.u8("notice")? {
        SEND => {
            let message = control(r)?;
            match flow_of(&message) {
                Some(flow) if driver_of(flow) == driver => Notice::Control(message),
                _ => return Err(CodecError::Foreign),
            }
        }
        PARTNER_GONE => Notice::PartnerGone(text(r, "reason")?),
        LINK_FAILED => Notice::LinkFailed(text(r, "reason")?),
        LINK_HELD_BACK => Notice::LinkHeldBack,
        CHANGED => {
            let direction = direction(r)?;
            let result = if flag(r)? { Ok(pipeline(r)?) } else { Err(text(r, "reason")?) };
            Notice::Changed { direction, result }
        }
        FLOW_ENDED => Notice::FlowEnded(direction(r)?),
        INCIDENT => Notice::Incident(text(r, "incident")?),
        STORE_FULL => Notice::StoreFull(store_full(r)?),
        FAILED => Notice::Failed(text(r, "reason")?),
        value => return Err(WireError::Value { what: "notice", value: value.into() }.into()),
    })
}

/// Of which flow a path speaks; `None` for what only brokers say.
fn flow_of(message: &Control) -> Option<u32> {
    match message {
        Control::Acknowledge { flow, .. }
        | Control::Missing { flow, .. }
        | Control::Resync { flow, .. }
        | Control::Epoch { flow, .. }
        | Control::Gone { flow, .. }
        | Control::End { flow, .. }
        | Control::Pair { flow, .. }
        | Control::Feedback { flow, .. }
        | Control::Change { flow, .. }
        | Control::Changed { flow, .. }
        | Control::Begun { flow, .. } => Some(*flow),
        _ => None,
    }
}

const OPENED: u8 = 0;
const WAY: u8 = 1;

/// A partner of this program's own is nothing that crosses.
fn put_origin(w: &mut Writer, origin: PartnerOrigin, given: &mut Vec<OwnedFd>) {
    match origin {
        PartnerOrigin::Opened(opened) => put_opened(w.u8(OPENED), *opened, given),
        PartnerOrigin::Way(FarEnd { memory, bell, capacity }) => {
            w.u8(WAY).u32(capacity);
            given.extend([memory, bell]);
        }
        PartnerOrigin::Ready(_) => {}
    }
}

fn origin(r: &mut Reader<'_>, given: &mut impl Iterator<Item = OwnedFd>) -> Parsed<PartnerOrigin> {
    Ok(match r.u8("origin")? {
        OPENED => PartnerOrigin::Opened(Box::new(opened(r, given)?)),
        WAY => {
            let capacity = r.u32("messages that wait")?;
            let mut next = || given.next().ok_or(CodecError::Descriptor);
            PartnerOrigin::Way(FarEnd { memory: next()?, bell: next()?, capacity })
        }
        value => return Err(WireError::Value { what: "origin", value: value.into() }.into()),
    })
}

fn put_opened(w: &mut Writer, opened: Opened, given: &mut Vec<OwnedFd>) {
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

fn open_port(r: &mut Reader<'_>, given: &mut impl Iterator<Item = OwnedFd>) -> Parsed<OpenPort> {
    let name = r.text("pair", TEXT_BYTES_MAX)?;
    let pair = registry::pairs().iter().find(|pair| pair.name() == name);
    let pair = pair.ok_or_else(|| unknown("pair", name))?.name();
    Ok(OpenPort { pair, port: Port(r.u16("port")?), origin: origin(r, given)? })
}

fn opened(r: &mut Reader<'_>, given: &mut impl Iterator<Item = OwnedFd>) -> Parsed<Opened> {
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

fn put_plans(w: &mut Writer, plans: &[FlowPlan]) {
    w.u16(plans.len() as u16);
    for FlowPlan { flow, direction, class, format, pipeline, site } in plans {
        w.u32(*flow).u8(direction_byte(*direction)).u8(class_byte(*class)).text(format.name());
        put_pipeline(w, pipeline);
        w.u8(site.key.is_some().into());
        if let Some(Secret(key)) = &site.key {
            w.raw(key);
        }
    }
}

fn plans(r: &mut Reader<'_>) -> Parsed<Vec<FlowPlan>> {
    let count = r.count("flows", FLOWS_MAX)?;
    // The halves of a driver meet here as they would have there.
    let shared = Shared::default();
    let plan = |r: &mut Reader<'_>| -> Parsed<FlowPlan> {
        let (flow, direction, class) = (r.u32("flow")?, direction(r)?, flow_class(r)?);
        let (format, pipeline) = (format(r)?, pipeline(r)?);
        let key = if flag(r)? { Some(Secret(r.array("a key")?)) } else { None };
        let site = Site { key, shared: shared.clone(), ..Site::default() };
        Ok(FlowPlan { flow, direction, class, format, pipeline, site })
    };
    (0..count).map(|_| plan(r)).collect()
}

fn put_transport(w: &mut Writer, transport: &TransportPlan) {
    w.text(transport.class.name());
    put_options(w, &transport.options);
}

fn transport(r: &mut Reader<'_>) -> Parsed<TransportPlan> {
    let name = r.text("transport", TEXT_BYTES_MAX)?;
    let class = registry::transport(name).ok_or_else(|| unknown("transport", name))?;
    Ok(TransportPlan { class, options: options(r, class.options())? })
}

fn put_options(w: &mut Writer, options: &Options) {
    w.u16(options.iter().count() as u16);
    for (name, value) in options.iter() {
        w.text(name).text(&value.to_string());
    }
}

fn options(r: &mut Reader<'_>, specs: &'static [OptionSpec]) -> Parsed<Options> {
    let count = r.count("options", OPTIONS_MAX)?;
    let mut given = Vec::with_capacity(count);
    for _ in 0..count {
        given.push((r.text("option", TEXT_BYTES_MAX)?, r.text("value", TEXT_BYTES_MAX)?));
    }
    Options::check(specs, given).map_err(|error| CodecError::Meaning(error.problem))
}

fn put_pipeline(w: &mut Writer, pipeline: &Pipeline) {
    w.text(pipeline.text()).u8(pipeline.is_first_in_junction().into());
}

/// As it was written on this host or came from the other: who may name what was decided when it was read first.
fn pipeline(r: &mut Reader<'_>) -> Parsed<Pipeline> {
    let text = r.text("pipeline", PIPELINE_BYTES_MAX)?;
    let mut pipeline = Pipeline::parse(text, registry::pairs(), Origin::Local)
        .map_err(|error| CodecError::Meaning(error.to_string()))?;
    if flag(r)? {
        pipeline.leave_first_to_junction();
    }
    Ok(pipeline)
}

fn control(r: &mut Reader<'_>) -> Parsed<Control> {
    let bytes = r.blob("control message", CONTROL_BODY_BYTES_MAX + 64)?;
    match Control::parse_frame(bytes)? {
        Some((message, used)) if used == bytes.len() => Ok(message),
        _ => Err(WireError::Short { what: "control message", needed: 0, left: bytes.len() }.into()),
    }
}

fn text(r: &mut Reader<'_>, what: &'static str) -> Parsed<String> {
    Ok(r.text(what, TEXT_BYTES_MAX)?.into())
}

fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_BYTES_MAX)]
}

fn unknown(what: &str, name: &str) -> CodecError {
    CodecError::Meaning(format!("there is no {what} `{name}`"))
}

fn flag(r: &mut Reader<'_>) -> Parsed<bool> {
    match r.u8("flag")? {
        0 => Ok(false),
        1 => Ok(true),
        value => Err(WireError::Value { what: "flag", value: value.into() }.into()),
    }
}

fn put_duration(w: &mut Writer, duration: Duration) {
    w.u64(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX));
}

fn duration(r: &mut Reader<'_>) -> Parsed<Duration> {
    Ok(Duration::from_nanos(r.u64("duration")?))
}

fn store_full(r: &mut Reader<'_>) -> Parsed<StoreFull> {
    let word = r.text("policy", TEXT_BYTES_MAX)?;
    StoreFull::parse(word).ok_or_else(|| unknown("policy", word))
}

fn format(r: &mut Reader<'_>) -> Parsed<Format> {
    let name = r.text("format", TEXT_BYTES_MAX)?;
    Format::from_name(name).ok_or_else(|| unknown("format", name))
}

fn role_byte(role: Role) -> u8 {
    (role == Role::Application).into()
}

fn role(r: &mut Reader<'_>) -> Parsed<Role> {
    Ok(if flag(r)? { Role::Application } else { Role::Device })
}

fn direction_byte(direction: FlowDirection) -> u8 {
    (direction == FlowDirection::ApplicationToDevice).into()
}

fn direction(r: &mut Reader<'_>) -> Parsed<FlowDirection> {
    Ok(match flag(r)? {
        true => FlowDirection::ApplicationToDevice,
        false => FlowDirection::DeviceToApplication,
    })
}

fn class_byte(class: FlowClass) -> u8 {
    match class {
        FlowClass::Reliable => 0,
        FlowClass::Timely => 1,
        FlowClass::State => 2,
    }
}

fn flow_class(r: &mut Reader<'_>) -> Parsed<FlowClass> {
    match r.u8("class of a flow")? {
        0 => Ok(FlowClass::Reliable),
        1 => Ok(FlowClass::Timely),
        2 => Ok(FlowClass::State),
        value => Err(WireError::Value { what: "class of a flow", value: value.into() }.into()),
    }
}
