//! `outboard module`: one module as a process that reads and writes containers ("Networked Device Driver
//! Architecture (2012)", chapter 5). Format and rules: docs/reference/modules.md.
//!
//! A half of a **pair** runs in a [`StageLoop`](stage_loop::StageLoop), between pipes and a control channel. The
//! control channel leads to the other half (`-c`), or to the runner that started this process ([`serve_module`]). A
//! raw path connects a **device** or a **transport** with its pipes, like `outboard connect`.

mod carrier;
mod chain_end;
mod control;
pub mod pipes;
pub mod reader;
mod relay;
mod stage_loop;
pub mod writer;

use crate::registry;
use carrier::Carrier;
use chain_end::ChainEnd;
use contract::ServiceError;
use contract::{FlowDirection, Format, Half, OptionKind, Options, Pair, Secret, Shape, Shared, Site, Stage};
use control::Control;
use links::shm::StageEnd;
use reader::Reader;
use stage_loop::{HalfProperties, Peer, StageLoop};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use sys::poller::Poller;
use sys::random;
use sys::stop::Stop;
use trust::keys::{FlowKeys, read_key_file};
use wire::{MODULE_VERSION, ModuleFrame};
use writer::Writer;

/// Option in the module's hello: it reports `done`.
const REPORTS_DONE: &str = "done";

/// The arguments of `outboard module`.
#[derive(Debug, Clone, Default)]
pub struct ModuleRequest {
    /// A pair, `kind:rest`, or `TRANSPORT://HOST:PORT`.
    pub name: String,
    /// Options `NAME=VALUE`; the first option of a pair may omit its name.
    pub options: Vec<String>,
    /// Input pipes, by port; empty: standard input.
    pub read: Vec<PathBuf>,
    /// Output pipes, by port; empty: standard output.
    pub write: Vec<PathBuf>,
    /// Socket that connects the two halves of a pair.
    pub control: Option<PathBuf>,
    /// Sink half of a pair, or application side of a device.
    pub undo: bool,
    /// Format of the messages; `None`: `bytes`.
    pub format: Option<String>,
    /// Device after which an application's node is modelled.
    pub like: Option<String>,
    /// Key file of a pair that encrypts.
    pub key_file: Option<PathBuf>,
    /// Wait for the peer of a transport.
    pub listen: bool,
    /// Allow a transport to leave this host without encryption.
    pub insecure: bool,
}

/// Result of a module that did not fail.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModuleEnd {
    /// Dropped messages, by reason.
    pub drops: BTreeMap<String, u64>,
    /// Those among them that a failure lost.
    pub losses: BTreeMap<String, u64>,
    /// Error of the first container that the module rejected.
    pub refusal: Option<String>,
}

/// Runs a half of a pair to the end of its data, or until `stop` is requested.
pub fn run_pair(
    pair: &'static dyn Pair,
    request: &ModuleRequest,
    stop: &Stop,
) -> Result<ModuleEnd, ServiceError> {
    reject_options(
        pair.name(),
        &[("--like", request.like.is_some()), ("--listen", request.listen), ("--insecure", request.insecure)],
    )?;
    let half = if request.undo { Half::Sink } else { Half::Source };
    let given = parse_options(pair, &request.options)?;
    let format = request.format.as_deref().unwrap_or("bytes");
    let key = request.key_file.as_deref().map(read_key_file).transpose()?;
    let keys = key.as_ref().map(|key| FlowKeys::local(Some(key))).transpose()?;
    let mut site = match keys {
        Some(keys) => keys.site(FlowDirection::DeviceToApplication, &Shared::default()),
        None => Site::default(),
    };
    let prepared = prepare_half(pair, half, &given, format, &mut site)?;
    if prepared.properties.promises.needs_control && request.control.is_none() {
        return Err(ServiceError::Usage(format!(
            "the halves of `{}` exchange control messages: give both the same -c SOCKET",
            pair.name()
        )));
    }
    check_ports(pair, half, &prepared.options, request)?;
    let readers = match request.read.is_empty() {
        true => vec![pipes::standard_input()?],
        false => request.read.iter().map(|path| pipes::open_reader(path)).collect::<Result<_, _>>()?,
    };
    let writers = match request.write.is_empty() {
        true => vec![pipes::standard_output()?],
        false => request.write.iter().map(|path| pipes::open_writer(path)).collect::<Result<_, _>>()?,
    };
    let control = match &request.control {
        Some(path) => Control::connect(path).map_err(|error| {
            ServiceError::os(format!("connecting to the other half at {}", path.display()), error)
        })?,
        None => Control::none(),
    };
    let carrier = Carrier::Pipes(readers, writers);
    let stage_loop = StageLoop::new(prepared.stage, prepared.properties, carrier, control, Peer::OtherHalf);
    let ended = stage_loop.run(Some(stop))?;
    let refusal = ended.refusal.map(|error| error.to_string());
    Ok(ModuleEnd { drops: ended.drops.counts, losses: ended.drops.losses, refusal })
}

/// Runs a half of a pair for the runner that started this process. Messages use `carrier`, control frames use
/// `descriptor`. The runner's hello comes first; its options take precedence over `request`.
pub fn serve_module(
    request: &ModuleRequest,
    descriptor: BorrowedFd<'_>,
    carrier: CarrierKind,
) -> Result<(), ServiceError> {
    let failed = |error| ServiceError::os("the control channel", error);
    let mut control = Control::on(descriptor).map_err(failed)?;
    match prepare(request, carrier, &mut control) {
        Ok((prepared, Carrier::Chain(chain_end))) if prepared.stage.passes() => {
            relay::splice_all(*chain_end, &mut control)
        }
        Ok((prepared, Carrier::Run(stage_end, _))) if prepared.stage.passes() => {
            relay::forward(stage_end, &mut control)
        }
        Ok((prepared, carrier)) => {
            StageLoop::new(prepared.stage, prepared.properties, carrier, control, Peer::Runner)
                .run(None)
                .map(drop)
        }
        Err(error) => {
            control.send(0, &ModuleFrame::Error(error.to_string()));
            let _ = control.flush();
            Err(error)
        }
    }
}

fn prepare(
    request: &ModuleRequest,
    carrier: CarrierKind,
    control: &mut Control,
) -> Result<(PreparedStage, Carrier), ServiceError> {
    let name = &request.name;
    let pair = registry::pairs().iter().find(|pair| pair.name() == *name).ok_or_else(|| {
        ServiceError::Usage(format!("there is no pair `{name}`: only pairs run with --fd-control"))
    })?;
    let Greeting { key, role, format, options } = greeting(control)?;
    let half = match role.as_str() {
        "source" if !request.undo => Half::Source,
        "sink" => Half::Sink,
        "source" => {
            return Err(ServiceError::Usage("--undo requires role sink, the hello has source".into()));
        }
        other => {
            return Err(ServiceError::Peer(format!(
                "the hello has role `{other}`: it must be source or sink"
            )));
        }
    };
    let mut given = parse_options(*pair, &request.options)?;
    given.retain(|(name, _)| !options.iter().any(|(known, _)| known == name));
    given.extend(options);
    let mut site = Site { key, ..Site::default() };
    let prepared = prepare_half(*pair, half, &given, &format, &mut site)?;
    let mut options: Vec<_> =
        prepared.options.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    options.push((REPORTS_DONE.into(), "true".into()));
    control.send(0, &ModuleFrame::Hello { version: MODULE_VERSION, role, format, options });
    let carrier = open_carrier(carrier, rustix::stdio::stdout())?;
    Ok((prepared, carrier))
}

/// Opens the descriptors of a half. A pipe carries its messages to `output`.
fn open_carrier(carrier: CarrierKind, output: BorrowedFd<'_>) -> Result<Carrier, ServiceError> {
    if let CarrierKind::Shared { number, first } = carrier {
        let stage_end = StageEnd::open(number, (first..).map(sys::descriptor::inherited));
        let stage_end = stage_end.map_err(|error| ServiceError::os("the descriptors of a run", error))?;
        return Ok(Carrier::Run(Box::new(stage_end), false));
    }
    let open = |fd: BorrowedFd<'_>, name: &str| {
        pipes::duplicate(fd)
            .inspect(|fd| pipes::widen(fd.as_fd()))
            .map_err(|error| ServiceError::os(format!("opening {name}"), error))
    };
    let reader = Reader::new("descriptor 0", open(rustix::stdio::stdin(), "descriptor 0")?);
    let writer = Writer::new("descriptor 1", open(output, "descriptor 1")?);
    let failed = |error| ServiceError::os("preparing descriptors 0 and 1", error);
    let (reader, writer) = (reader.map_err(failed)?, writer.map_err(failed)?);
    Ok(match carrier {
        CarrierKind::Chain => Carrier::Chain(Box::new(ChainEnd::new(reader, writer))),
        _ => Carrier::Pipes(vec![reader], vec![writer]),
    })
}

/// Runs a stage of a test as [`serve_module`] runs those of a pair.
#[cfg(test)]
pub(crate) fn serve_stage(
    stage: Box<dyn Stage>,
    carrier: CarrierKind,
    output: BorrowedFd<'_>,
) -> Result<(), ServiceError> {
    let failed = |error| ServiceError::os("the control channel", error);
    let descriptor = sys::descriptor::inherited(3).map_err(failed)?;
    let mut control = Control::on(descriptor.as_fd()).map_err(failed)?;
    let Greeting { role, format, .. } = greeting(&mut control)?;
    let options = vec![(REPORTS_DONE.into(), "true".into())];
    control.send(0, &ModuleFrame::Hello { version: MODULE_VERSION, role, format, options });
    let (half, promises) = (Half::Source, contract::Promises::default());
    let properties = HalfProperties { half, promises, has_side_ports: false };
    let carrier = open_carrier(carrier, output)?;
    StageLoop::new(stage, properties, carrier, control, Peer::Runner).run(None).map(drop)
}

/// Carrier of the messages between a half and its runner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CarrierKind {
    /// Containers on descriptors 0 and 1.
    Pipes,
    /// Containers on descriptors 0 and 1, with words between them.
    Chain,
    /// Shared memory, at a place in a run.
    Shared {
        /// Stage number, from 1.
        number: usize,
        /// The first of its descriptors (`links::shm::StageEnd::open`).
        first: i32,
    },
}

/// The first frames of a runner.
struct Greeting {
    key: Option<Secret>,
    role: String,
    format: String,
    options: Vec<(String, String)>,
}

fn greeting(control: &mut Control) -> Result<Greeting, ServiceError> {
    let failed = |error| ServiceError::os("the control channel", error);
    let mut poller = Poller::new().map_err(|error| ServiceError::os("epoll", error))?;
    let mut key = None;
    loop {
        control.receive().map_err(failed)?;
        match control.take() {
            Some((_, ModuleFrame::Key(key_frame))) => key = Some(Secret(key_frame.0)),
            Some((_, ModuleFrame::Hello { version, role, format, options })) => {
                return match version {
                    MODULE_VERSION => Ok(Greeting { key, role, format, options }),
                    other => Err(ServiceError::Peer(format!(
                        "the hello is of version {other}, this program supports {MODULE_VERSION}"
                    ))),
                };
            }
            Some((_, ModuleFrame::Unknown(_))) => {}
            Some(_) => return Err(ServiceError::Peer("the first control frame is not a hello".into())),
            None if control.has_ended() => {
                return Err(ServiceError::Peer("the control channel ended before a hello".into()));
            }
            None => {
                control.register(&mut poller);
                poller.wait(None).map_err(|error| ServiceError::os("waiting", error))?;
            }
        }
    }
}

/// A stage with its properties.
struct PreparedStage {
    stage: Box<dyn Stage>,
    properties: HalfProperties,
    options: Options,
}

fn prepare_half(
    pair: &'static dyn Pair,
    half: Half,
    given: &[(String, String)],
    format: &str,
    site: &mut Site,
) -> Result<PreparedStage, ServiceError> {
    let name = pair.name();
    let usage = |problem: String| {
        ServiceError::Usage(format!("`{name}`: {problem}; `outboard modules {name}` explains it"))
    };
    let given = given.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let options = Options::check(pair.options(), given).map_err(|error| usage(error.problem))?;
    pair.check(&options).map_err(usage)?;
    if let Some(program) = pair.program(&options, half) {
        return Err(ServiceError::Usage(format!(
            "`{program}` reads and writes containers itself: run it instead of `outboard module {name}`"
        )));
    }
    let format = Format::from_name(format).ok_or_else(|| usage(format!("there is no format `{format}`")))?;
    pair.accept(&format, &options).map_err(|problem| {
        usage(format!("it cannot take {format}: {problem} (--format sets the input format)"))
    })?;
    site.seed = random::bytes().map_err(|error| ServiceError::os("no random bytes", error))?;
    let stage = pair.half(half, &options, &format, site).map_err(|error| usage(error.to_string()))?;
    let properties = HalfProperties {
        half,
        promises: pair.promises(&options),
        has_side_ports: !pair.side_ports().is_empty(),
    };
    Ok(PreparedStage { stage, properties, options })
}

/// Checks that there are at most as many pipes as the half has ports.
fn check_ports(
    pair: &dyn Pair,
    half: Half,
    options: &Options,
    request: &ModuleRequest,
) -> Result<(), ServiceError> {
    let ports = 1 + pair.side_ports().len();
    let (inputs, outputs) = match (pair.shape(options), half) {
        (Shape::Line, _) | (Shape::Joint, Half::Source) => (1, ports),
        (Shape::Fan(branches), Half::Source) => (1, branches.into()),
        (Shape::Fan(branches), Half::Sink) => (branches.into(), ports),
        (Shape::Joint, Half::Sink) => (usize::from(u16::MAX), usize::from(u16::MAX)),
    };
    for (option, given, most) in [("-r", request.read.len(), inputs), ("-w", request.write.len(), outputs)] {
        if given > most {
            return Err(ServiceError::Usage(format!(
                "the {half} half of `{}` has {most} port{} for {option}, not {given}",
                pair.name(),
                if most == 1 { "" } else { "s" }
            )));
        }
    }
    Ok(())
}

/// Splits `NAME=VALUE`; the first option may omit its name, and contain `=` if it takes any text.
fn parse_options(pair: &dyn Pair, options: &[String]) -> Result<Vec<(String, String)>, ServiceError> {
    let is_text = pair.options().first().is_some_and(|spec| matches!(spec.kind, OptionKind::Text { .. }));
    let mut given = Vec::with_capacity(options.len());
    for (index, word) in options.iter().enumerate() {
        let known = |name: &str| pair.options().iter().any(|spec| spec.name == name);
        match (word.split_once('='), pair.options().first()) {
            (Some((name, value)), _) if known(name) || index > 0 || !is_text => {
                given.push((name.into(), value.into()))
            }
            (_, Some(first)) if index == 0 => given.push((first.name.into(), word.clone())),
            _ => {
                return Err(ServiceError::Usage(format!(
                    "`{word}` is not an option of `{}`: write NAME=VALUE",
                    pair.name()
                )));
            }
        }
    }
    Ok(given)
}

/// Rejects command-line options that do not apply to this kind of module.
pub fn reject_options(name: &str, given: &[(&str, bool)]) -> Result<(), ServiceError> {
    match given.iter().find(|(_, given)| *given) {
        Some((option, _)) => Err(ServiceError::Usage(format!("{option} does not apply to `{name}`"))),
        None => Ok(()),
    }
}
