//! Workers: they run paths on descriptors that they were handed.
//!
//! The wall between broker and workers: what crosses it is [`Command`] and [`Report`], which are plain data
//! and open descriptors. A worker opens neither devices nor sockets.
//!
//! A session's [`Workers`] are a *process* ([`run_in_processes`]), which locks itself up before its first command
//! (`links::confine::lock_up`), and a *thread* of the broker ([`Worker`]) for what cannot be there: partners of this
//! program's own (instruments). The paths of a junction, and those that share a side port, run in processes too: what these
//! share with the junction is the memory of their own ways ([`crate::active`]).
//! Both run the same loop, in `paths`. What a locked process cannot do itself is done for it by threads of the broker's that
//! see no message: a *warden* starts the processes of stages, and only those that a pipeline of its driver names
//! (`links::process`); another waits for the program of `exec`, another looks who reads a camera's node.

mod codec;
mod line;
mod paths;
mod process;
#[cfg(test)]
mod tests;
mod thread;
mod turns;
mod workers;

use crate::active::FarEnd;
use crate::driver::{FlowPlan, LinkFacts, Notice};
use crate::registry;
use crate::stats::DriverStats;
use crate::trace::FlowTrace;
use contract::{
    FlowDirection, Opened, Options, Partner, PartnerError, Port, Role, SealKeys, Time, TransportClass,
};
use pipeline::Pipeline;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use wire::Control;

pub use process::{is_sandbox_required, require_sandbox, run_in_processes, serve_worker};
pub use thread::Worker;
pub(crate) use workers::{Parting, Workers};

/// What a driver's partner is made of.
pub enum PartnerOrigin {
    /// Descriptors of a device class.
    Opened(Box<Opened>),
    /// The path's end of a way that leads to a junction in the broker.
    Way(FarEnd),
    /// A partner of this program's own (a measuring instrument, a synthetic device).
    Ready(Box<dyn Partner>),
}

impl PartnerOrigin {
    /// The same, with descriptors of its own; nothing of what is not made of descriptors.
    pub(crate) fn try_clone(&self) -> Option<PartnerOrigin> {
        match self {
            PartnerOrigin::Opened(opened) => Some(PartnerOrigin::Opened(Box::new(opened.try_clone().ok()?))),
            PartnerOrigin::Way(far) => far.try_clone().ok().map(PartnerOrigin::Way),
            PartnerOrigin::Ready(_) => None,
        }
    }
}

/// The transport of a driver, with its checked options.
#[derive(Clone)]
pub struct TransportPlan {
    /// Which.
    pub class: &'static dyn TransportClass,
    /// How.
    pub options: Options,
}

impl TransportPlan {
    /// The transport of this name, with its defaults; `None` if there is none.
    pub(crate) fn defaults(name: &str) -> Option<TransportPlan> {
        let class = registry::transport(name)?;
        Some(TransportPlan { class, options: Options::defaults(class.options()).ok()? })
    }

    /// Whether a driver that was built for `other` can go on over this.
    pub(crate) fn may_replace(&self, other: &TransportPlan) -> bool {
        self.class.facts() == other.class.facts()
    }

    /// Whether the control channel goes the same way.
    pub(crate) fn is_quic(&self) -> bool {
        self.class.name() == transports::quic::Quic.name()
    }
}

/// What a side port of a driver's pipelines leads to, open.
pub struct OpenPort {
    /// The pair that has the port.
    pub pair: &'static str,
    /// Which of its ports.
    pub port: Port,
    /// What is open there, or the way to it.
    pub origin: PartnerOrigin,
}

impl OpenPort {
    /// The same, with descriptors of its own.
    pub(crate) fn try_clone(&self) -> Option<OpenPort> {
        let OpenPort { pair, port, origin } = self;
        Some(OpenPort { pair, port: *port, origin: origin.try_clone()? })
    }
}

/// What a broker asks of a worker.
pub enum Command {
    /// Build a driver.
    Add {
        /// Its number.
        driver: u32,
        /// Its device or node.
        origin: PartnerOrigin,
        /// Which side this host is.
        role: Role,
        /// Its flows.
        flows: Vec<FlowPlan>,
        /// Its transport.
        transport: TransportPlan,
    },
    /// What is kept of a driver that is added next lies in this memory, which the broker holds too. If a worker before
    /// this one wrote there, the driver goes on where that stood.
    Memory {
        /// Its number.
        driver: u32,
        /// The memory.
        memory: OwnedFd,
    },
    /// Processes of stages are started by the warden at the other end of this; Outboard's own run this program.
    Warden {
        /// The socket.
        socket: OwnedFd,
        /// The program.
        program: OsString,
    },
    /// What leaves by side ports of a driver that is added next goes here, in all pipelines that it will have.
    Ports {
        /// Its number.
        driver: u32,
        /// Where to.
        ports: Vec<OpenPort>,
    },
    /// Build a driver's paths anew on the partner it has.
    Rebuild {
        /// Its number.
        driver: u32,
        /// Its flows.
        flows: Vec<FlowPlan>,
    },
    /// A data connection, introduced and connected.
    Link {
        /// Its driver.
        driver: u32,
        /// How records travel from now on, if otherwise than before: by one that loses no more and no less.
        transport: Option<TransportPlan>,
        /// The socket.
        socket: OwnedFd,
        /// What seals it, unless it is bare.
        keys: Option<SealKeys>,
    },
    /// A data connection goes on by other addresses: this host has moved, or the other.
    Move {
        /// Its driver.
        driver: u32,
        /// A socket between them, connected.
        socket: OwnedFd,
    },
    /// The data connections are of no more use.
    LinksLost,
    /// The other host fell silent.
    Silence,
    /// The other host is heard again.
    Heard,
    /// What is known of the link.
    Facts(LinkFacts),
    /// So much processor time may be used in a second from now on.
    Processor {
        /// Nanoseconds; 0 is no bound.
        ns_per_second: u64,
    },
    /// From the other host, for one driver.
    Control {
        /// The driver.
        driver: u32,
        /// The message.
        message: Control,
    },
    /// Give a flow that starts here another pipeline.
    Change {
        /// The driver.
        driver: u32,
        /// Which flow.
        direction: FlowDirection,
        /// The pipeline.
        pipeline: Pipeline,
    },
    /// Build the stages of a flow that ends here for an epoch to come.
    Prepare {
        /// The driver.
        driver: u32,
        /// The flow.
        flow: u32,
        /// The epoch.
        epoch: u32,
        /// The pipeline.
        pipeline: Pipeline,
    },
    /// The other host's device went away.
    Absence {
        /// The driver.
        driver: u32,
    },
    /// What the other host says to this driver's partner is to be said anew, whole.
    Resync {
        /// The driver.
        driver: u32,
    },
    /// This host's device is back.
    Partner {
        /// The driver.
        driver: u32,
        /// What its partner is made of.
        origin: PartnerOrigin,
    },
    /// Say something to a driver's partner, for a visitor of the console.
    Say {
        /// The driver.
        driver: u32,
        /// Who asks.
        visitor: u64,
        /// In words of the partner's class.
        words: String,
    },
    /// Take a driver down.
    Remove {
        /// The driver.
        driver: u32,
    },
    /// Report figures.
    Stats,
    /// Trace a driver's flows, or go on with it, and report what was traced since the last time.
    Trace {
        /// The driver.
        driver: u32,
        /// One message in so many; none is the end of it.
        one_in: Option<NonZeroU32>,
    },
    /// Take everything down and end.
    Stop,
}

/// What people are told of a worker that ended so.
pub(crate) fn restarted(end: &str) -> String {
    format!("its worker {end}; another goes on")
}

/// What a worker tells its broker.
#[derive(Debug)]
pub enum Report {
    /// From one driver.
    Notice {
        /// The driver.
        driver: u32,
        /// What.
        notice: Notice,
    },
    /// What a driver's partner answered to a visitor of the console, or why not.
    Said {
        /// Who asked.
        visitor: u64,
        /// The answer.
        result: Result<String, String>,
    },
    /// Figures of all drivers.
    Stats(BTreeMap<u32, DriverStats>),
    /// What was traced of one driver.
    Trace {
        /// The driver.
        driver: u32,
        /// Its flows.
        flows: Vec<FlowTrace>,
    },
    /// Something came of the other host over a data connection, at this time. Told no more often than pings are sent.
    Heard(Time),
    /// Something is not as it should be with the worker itself, and it goes on.
    Warning(String),
}

pub(crate) fn make_partner(origin: PartnerOrigin) -> Result<Box<dyn Partner>, PartnerError> {
    match origin {
        PartnerOrigin::Opened(opened) => registry::partner(*opened),
        PartnerOrigin::Way(far) => {
            let taken_up = far.take_up();
            let end = taken_up.map_err(|error| PartnerError::os("a junction's memory", error))?;
            Ok(Box::new(end))
        }
        PartnerOrigin::Ready(partner) => Ok(partner),
    }
}
