//! Commands from the broker to a worker, and their encoding. A new command is added here and in [`super::paths`],
//! which executes it.

use super::codec::*;
use contract::{FlowDirection, Offset, Port, Role, SealKeys};
use flow::types::{FlowPlan, LinkFacts};
use hub::outlet::PORTS_MAX;
use hub::{OpenPort, PartnerOrigin};
use modules::TransportPlan;
use pipeline::Pipeline;
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use wire::{FlowControl, Reader, WireError, Writer};

/// The parts of a driver that the hosts agree on.
#[derive(Clone)]
pub struct DriverPlan {
    /// Role of this host.
    pub role: Role,
    /// Flows of the driver.
    pub flows: Vec<FlowPlan>,
    /// Transport of the driver.
    pub transport: TransportPlan,
}

/// A request from the broker to a worker.
pub enum Command {
    /// Build a driver.
    Add {
        /// Number of the driver.
        driver: u32,
        /// Device or node.
        origin: PartnerOrigin,
        /// Its flows and their transport.
        plan: DriverPlan,
    },
    /// Set the recovery memory of a driver that is added next. The broker holds it too. If a previous worker saved
    /// state there, the driver resumes from it.
    Memory {
        /// Number of the driver.
        driver: u32,
        /// The memory.
        memory: OwnedFd,
    },
    /// Set the targets of the side ports of a driver that is added next, for all its pipelines.
    Ports {
        /// Number of the driver.
        driver: u32,
        /// Targets of the ports.
        ports: Vec<OpenPort>,
    },
    /// Rebuild a driver's paths on its current partner.
    Rebuild {
        /// Number of the driver.
        driver: u32,
        /// New flows.
        flows: Vec<FlowPlan>,
    },
    /// Install a data connection, after its handshake.
    Link {
        /// Number of the driver.
        driver: u32,
        /// New transport, if it changes. It must have the same delivery guarantees as the old one.
        transport: Option<TransportPlan>,
        /// Connected socket.
        socket: OwnedFd,
        /// Keys that encrypt the connection; `None` for a plain one.
        keys: Option<SealKeys>,
    },
    /// Add a connection to the data connection of a transport with several ([`contract::TransportClass::has_ways`]), after
    /// its handshake.
    AddWay {
        /// Number of the driver.
        driver: u32,
        /// Connected socket.
        socket: OwnedFd,
        /// Keys that encrypt the connection; `None` for a plain one.
        keys: Option<SealKeys>,
    },
    /// Pass a further connection to the device, or the reason why there is none
    /// ([`contract::Partner::connected`]).
    Connected {
        /// Number of the driver.
        driver: u32,
        /// The connected descriptor, or the reason.
        result: Result<OwnedFd, String>,
    },
    /// Move a data connection to other addresses, after this host or the peer changed its address.
    Move {
        /// Number of the driver.
        driver: u32,
        /// Connected socket between the new addresses.
        socket: OwnedFd,
    },
    /// Drop the data connection of a driver; another one follows.
    Unlink {
        /// Number of the driver.
        driver: u32,
    },
    /// Drop all data connections.
    LinksLost,
    /// The peer fell silent.
    Silence,
    /// The peer's silence has ended.
    SilenceEnded,
    /// Update the measurements of the link.
    Facts(LinkFacts),
    /// Set the limit on processor time.
    Processor {
        /// Nanoseconds per second; 0 disables the limit.
        ns_per_second: u64,
    },
    /// Handle a control message of the peer for one flow.
    Flow {
        /// The flow; its number determines the driver.
        flow: u32,
        /// The message.
        message: FlowControl,
    },
    /// Start a pipeline change of a flow whose source is on this host.
    Change {
        /// Number of the driver.
        driver: u32,
        /// Direction of the flow.
        direction: FlowDirection,
        /// New pipeline.
        pipeline: Pipeline,
    },
    /// Build the stages for a future epoch of a flow whose sink is on this host.
    Prepare {
        /// Number of the driver.
        driver: u32,
        /// Number of the flow.
        flow: u32,
        /// First epoch of the new stages.
        epoch: u32,
        /// New pipeline.
        pipeline: Pipeline,
    },
    /// The peer's device disappeared.
    Absence {
        /// Number of the driver.
        driver: u32,
    },
    /// The peer's device is back.
    AbsenceEnded {
        /// Number of the driver.
        driver: u32,
    },
    /// Request a snapshot from the peer, because the partner missed messages.
    Resync {
        /// Number of the driver.
        driver: u32,
    },
    /// This host's device returned.
    Partner {
        /// Number of the driver.
        driver: u32,
        /// Origin of the new partner.
        origin: PartnerOrigin,
    },
    /// Send a command to a driver's partner, for a console client.
    Say {
        /// Number of the driver.
        driver: u32,
        /// Number of the console client.
        visitor: u64,
        /// Command in the language of the partner's class.
        words: String,
    },
    /// Remove a driver.
    Remove {
        /// Number of the driver.
        driver: u32,
    },
    /// Report the statistics of all drivers.
    Stats,
    /// Trace a driver's flows, or continue an active trace, and report the stamps since the last time.
    Trace {
        /// Number of the driver.
        driver: u32,
        /// Sampling interval in messages; `None` ends the trace.
        one_in: Option<NonZeroU32>,
    },
    /// Close everything and exit.
    Stop,
    /// Exit at once and leave the devices as they are: another process resumes the drivers.
    Leave,
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
const ABSENCE_ENDED: u8 = 21;
const PROCESSOR: u8 = 22;
const LEAVE: u8 = 23;
const ADD_WAY: u8 = 24;
const UNLINK: u8 = 25;
const CONNECTED: u8 = 26;

/// Encodes a command. Returns it unchanged if its partner is an object of this process, which cannot be sent.
pub(super) fn emit_command(command: Command) -> Result<(Vec<u8>, Vec<OwnedFd>), Command> {
    let (mut w, mut given) = (Writer::new(), Vec::new());
    match command {
        command @ (Command::Add { origin: PartnerOrigin::Ready(_), .. }
        | Command::Partner { origin: PartnerOrigin::Ready(_), .. }) => return Err(command),
        Command::Add { driver, origin, plan: DriverPlan { role, flows, transport } } => {
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
            put_keys(&mut w, keys);
            given.push(socket);
        }
        Command::AddWay { driver, socket, keys } => {
            put_keys(w.u8(ADD_WAY).u32(driver), keys);
            given.push(socket);
        }
        Command::Connected { driver, result } => {
            w.u8(CONNECTED).u32(driver).u8(result.is_ok().into());
            match result {
                Ok(descriptor) => given.push(descriptor),
                Err(problem) => drop(w.text(cut(&problem))),
            }
        }
        Command::Move { driver, socket } => {
            w.u8(MOVE).u32(driver);
            given.push(socket);
        }
        Command::Processor { ns_per_second } => drop(w.u8(PROCESSOR).u64(ns_per_second)),
        Command::Unlink { driver } => drop(w.u8(UNLINK).u32(driver)),
        Command::LinksLost => drop(w.u8(LINKS_LOST)),
        Command::Silence => drop(w.u8(SILENCE)),
        Command::SilenceEnded => drop(w.u8(HEARD)),
        Command::Facts(LinkFacts { offset, round_trip }) => {
            w.u8(FACTS).u64(offset.0.cast_unsigned());
            put_duration(&mut w, round_trip);
        }
        Command::Flow { flow, message } => put_flow_control(w.u8(CONTROL), flow, message),
        Command::Change { driver, direction, pipeline } => {
            put_pipeline(w.u8(CHANGE).u32(driver).u8(direction_byte(direction)), &pipeline);
        }
        Command::Prepare { driver, flow, epoch, pipeline } => {
            put_pipeline(w.u8(PREPARE).u32(driver).u32(flow).u32(epoch), &pipeline);
        }
        Command::Absence { driver } => drop(w.u8(ABSENCE).u32(driver)),
        Command::AbsenceEnded { driver } => drop(w.u8(ABSENCE_ENDED).u32(driver)),
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
        Command::Leave => drop(w.u8(LEAVE)),
    }
    Ok((w.finish(), given))
}

/// Decodes a command.
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
            let plan = DriverPlan { role, flows, transport: transport(r)? };
            Command::Add { driver, origin, plan }
        }
        PARTNER => Command::Partner { driver: r.u32("driver")?, origin: origin(r, &mut given)? },
        MEMORY => {
            Command::Memory { driver: r.u32("driver")?, memory: given.next().ok_or(CodecError::Descriptor)? }
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
            let keys = keys(r)?;
            let socket = given.next().ok_or(CodecError::Descriptor)?;
            Command::Link { driver, transport, socket, keys }
        }
        ADD_WAY => {
            let (driver, keys) = (r.u32("driver")?, keys(r)?);
            Command::AddWay { driver, socket: given.next().ok_or(CodecError::Descriptor)?, keys }
        }
        CONNECTED => {
            let driver = r.u32("driver")?;
            let result = match flag(r)? {
                true => Ok(given.next().ok_or(CodecError::Descriptor)?),
                false => Err(text(r, "reason")?),
            };
            Command::Connected { driver, result }
        }
        MOVE => {
            Command::Move { driver: r.u32("driver")?, socket: given.next().ok_or(CodecError::Descriptor)? }
        }
        PROCESSOR => Command::Processor { ns_per_second: r.u64("processor time")? },
        UNLINK => Command::Unlink { driver: r.u32("driver")? },
        LINKS_LOST => Command::LinksLost,
        SILENCE => Command::Silence,
        HEARD => Command::SilenceEnded,
        FACTS => {
            let offset = Offset(r.u64("offset")?.cast_signed());
            Command::Facts(LinkFacts { offset, round_trip: duration(r)? })
        }
        CONTROL => {
            let (flow, message) = flow_control(r)?;
            Command::Flow { flow, message }
        }
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
        ABSENCE_ENDED => Command::AbsenceEnded { driver: r.u32("driver")? },
        RESYNC => Command::Resync { driver: r.u32("driver")? },
        SAY => {
            Command::Say { driver: r.u32("driver")?, visitor: r.u64("visitor")?, words: text(r, "words")? }
        }
        REMOVE => Command::Remove { driver: r.u32("driver")? },
        STATS => Command::Stats,
        TRACE => Command::Trace { driver: r.u32("driver")?, one_in: NonZeroU32::new(r.u32("one in")?) },
        STOP => Command::Stop,
        LEAVE => Command::Leave,
        value => return Err(WireError::Value { what: "command", value: value.into() }.into()),
    };
    r.end("command")?;
    Ok(command)
}
