//! `outboard module`: one module as a process, containers in, containers out (paper N, chapter 5; the bytes and
//! the rules are in docs/modules.md).
//!
//! A **pair**'s half runs in a [`Runner`](runner::Runner), between pipes and a control channel: to the other
//! half (`-c`), or to whoever runs it ([`serve_module`]). A **device** and a **transport** are connected with
//! their pipes by a raw path, as `outboard connect` does it.

mod control;
mod ends;
mod pipes;
mod place;
mod reader;
mod relay;
mod runner;
mod transport;
mod ways;
mod writer;

use crate::agree::Pipelines;
use crate::connect::Connection;
use crate::error::RuntimeError;
use crate::events::Stop;
use crate::keys::{FlowKeys, read_key_file};
use crate::{random, registry};
use contract::{
    DeviceClass, FlowClass, FlowDirection, Format, Half, Options, Pair, Role, Secret, Shape, Shared, Site,
    Stage,
};
use control::Control;
use ends::Ends;
use links::shm::Seat;
use place::Place;
use reader::Reader;
use runner::{Nature, Runner, Talk};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use sys::poller::Poller;
use ways::Ways;
use wire::{MODULE_VERSION, ModuleFrame};
use writer::Writer;

/// The option of a module's own hello that says that it says done.
const SAYS_DONE: &str = "done";

/// What a user asks for.
#[derive(Debug, Clone, Default)]
pub struct ModuleRequest {
    /// A pair, `kind:rest`, or `TRANSPORT://HOST:PORT`.
    pub name: String,
    /// `NAME=VALUE`; the first option of a pair may stand without its name.
    pub options: Vec<String>,
    /// Where containers come from, by port; none is standard input.
    pub read: Vec<PathBuf>,
    /// Where containers go, by port; none is standard output.
    pub write: Vec<PathBuf>,
    /// Where the two halves of a pair meet.
    pub control: Option<PathBuf>,
    /// The sink half of a pair; the application's side of a device.
    pub undo: bool,
    /// What the messages mean; none is `bytes`.
    pub format: Option<String>,
    /// A device that an application's node is made like.
    pub like: Option<String>,
    /// What a sealing pair takes its key from.
    pub key_file: Option<PathBuf>,
    /// A transport waits for its peer.
    pub listen: bool,
    /// A transport may leave this machine.
    pub insecure: bool,
}

/// How a module ended that did not fail.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModuleEnd {
    /// Messages that ended in it, by reason.
    pub drops: BTreeMap<String, u64>,
    /// What was wrong with the first container that it refused.
    pub refusal: Option<String>,
}

/// Runs a module to the end of its data, or until `stop` is said.
pub fn run_module(request: &ModuleRequest, stop: &Stop) -> Result<ModuleEnd, RuntimeError> {
    let name = &request.name;
    if name.contains("://") {
        return run_transport(request, stop);
    }
    if name.contains(':') {
        return run_device(request, stop);
    }
    match registry::pairs().iter().find(|pair| pair.name() == *name) {
        Some(pair) => run_pair(*pair, request, stop),
        None if registry::device_class(name).is_some() => run_device(request, stop),
        None => Err(RuntimeError::Usage(format!(
            "there is no pair, device or transport `{name}`; `outboard modules` lists them"
        ))),
    }
}

fn run_pair(
    pair: &'static dyn Pair,
    request: &ModuleRequest,
    stop: &Stop,
) -> Result<ModuleEnd, RuntimeError> {
    refuse(
        pair.name(),
        &[("--like", request.like.is_some()), ("--listen", request.listen), ("--insecure", request.insecure)],
    )?;
    let half = if request.undo { Half::Sink } else { Half::Source };
    let given = words(pair, &request.options)?;
    let format = request.format.as_deref().unwrap_or("bytes");
    let key = request.key_file.as_deref().map(read_key_file).transpose()?;
    let keys = key.as_ref().map(|key| FlowKeys::local(Some(key))).transpose()?;
    let mut site = match keys {
        Some(keys) => keys.site(FlowDirection::DeviceToApplication, &Shared::default()),
        None => Site::default(),
    };
    let made = make(pair, half, &given, format, &mut site)?;
    if made.nature.promises.needs_control && request.control.is_none() {
        return Err(RuntimeError::Usage(format!(
            "the halves of `{}` talk to each other, and this one has no way to: give both the same -c SOCKET",
            pair.name()
        )));
    }
    check_ports(pair, half, &made.options, request)?;
    let readers = match request.read.is_empty() {
        true => vec![pipes::standard_input()?],
        false => request.read.iter().map(|path| pipes::open_reader(path)).collect::<Result<_, _>>()?,
    };
    let writers = match request.write.is_empty() {
        true => vec![pipes::standard_output()?],
        false => request.write.iter().map(|path| pipes::open_writer(path)).collect::<Result<_, _>>()?,
    };
    let control = match &request.control {
        Some(path) => Control::meet(path).map_err(|error| {
            RuntimeError::os(format!("meeting the other half at {}", path.display()), error)
        })?,
        None => Control::none(),
    };
    let ways = Ways::Pipes(readers, writers);
    let runner = Runner::new(made.stage, made.nature, ways, control, Talk::Half);
    let ended = runner.run(Some(stop))?;
    Ok(ModuleEnd { drops: ended.drops, refusal: ended.refusal.map(|error| error.to_string()) })
}

/// Runs a half of a pair for whoever started this process: its messages come and go as `carried`, and control on
/// `descriptor`. It says hello first; what it says there goes before `request`.
pub fn serve_module(
    request: &ModuleRequest,
    descriptor: BorrowedFd<'_>,
    carried: Carried,
) -> Result<(), RuntimeError> {
    let failed = |error| RuntimeError::os("the control channel", error);
    let mut control = Control::on(descriptor).map_err(failed)?;
    match prepare(request, carried, &mut control) {
        Ok((made, Ways::Chain(place))) if made.stage.passes() => relay::splice_on(*place, &mut control),
        Ok((made, Ways::Run(seat, _))) if made.stage.passes() => relay::pass_on(seat, &mut control),
        Ok((made, ways)) => {
            Runner::new(made.stage, made.nature, ways, control, Talk::Runner).run(None).map(drop)
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
    carried: Carried,
    control: &mut Control,
) -> Result<(Made, Ways), RuntimeError> {
    let name = &request.name;
    let pair = registry::pairs().iter().find(|pair| pair.name() == *name).ok_or_else(|| {
        RuntimeError::Usage(format!("there is no pair `{name}`: only pairs run with --fd-control"))
    })?;
    let Greeting { key, role, format, options } = greeting(control)?;
    let half = match role.as_str() {
        "source" if !request.undo => Half::Source,
        "sink" => Half::Sink,
        "source" => return Err(RuntimeError::Usage("--undo says sink, the hello says source".into())),
        other => return Err(RuntimeError::Peer(format!("the hello says role `{other}`: source or sink"))),
    };
    let mut given = words(*pair, &request.options)?;
    given.retain(|(name, _)| !options.iter().any(|(said, _)| said == name));
    given.extend(options);
    let mut site = Site { key, ..Site::default() };
    let made = make(*pair, half, &given, &format, &mut site)?;
    let mut options: Vec<_> =
        made.options.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    options.push((SAYS_DONE.into(), "true".into()));
    control.send(0, &ModuleFrame::Hello { version: MODULE_VERSION, role, format, options });
    if let Carried::Shared { number, first } = carried {
        let seat = Seat::take(number, (first..).map(sys::descriptor::inherited));
        let seat = seat.map_err(|error| RuntimeError::os("the descriptors of a place in a run", error))?;
        return Ok((made, Ways::Run(Box::new(seat), false)));
    }
    let own = |fd: BorrowedFd<'_>, name: &str| {
        pipes::own(fd)
            .inspect(|fd| pipes::widen(fd.as_fd()))
            .map_err(|error| RuntimeError::os(format!("opening {name}"), error))
    };
    let reader = Reader::new("descriptor 0", own(rustix::stdio::stdin(), "descriptor 0")?);
    let writer = Writer::new("descriptor 1", own(rustix::stdio::stdout(), "descriptor 1")?);
    let failed = |error| RuntimeError::os("preparing descriptors 0 and 1", error);
    let (reader, writer) = (reader.map_err(failed)?, writer.map_err(failed)?);
    let ways = match carried {
        Carried::Chain => Ways::Chain(Box::new(Place::new(reader, writer))),
        _ => Ways::Pipes(vec![reader], vec![writer]),
    };
    Ok((made, ways))
}

/// How the messages of a half come and go that another program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carried {
    /// As containers on descriptors 0 and 1.
    Pipes,
    /// The same with words between the containers.
    Chain,
    /// In shared memory, at a place in a run.
    Shared {
        /// Its number, from 1.
        number: usize,
        /// The first of its descriptors (`links::shm::Seat::take`).
        first: i32,
    },
}

/// What a runner says first.
struct Greeting {
    key: Option<Secret>,
    role: String,
    format: String,
    options: Vec<(String, String)>,
}

fn greeting(control: &mut Control) -> Result<Greeting, RuntimeError> {
    let failed = |error| RuntimeError::os("the control channel", error);
    let mut poller = Poller::new().map_err(|error| RuntimeError::os("epoll", error))?;
    let mut key = None;
    loop {
        control.receive().map_err(failed)?;
        match control.take() {
            Some((_, ModuleFrame::Key(said))) => key = Some(Secret(said.0)),
            Some((_, ModuleFrame::Hello { version, role, format, options })) => {
                return match version {
                    MODULE_VERSION => Ok(Greeting { key, role, format, options }),
                    other => Err(RuntimeError::Peer(format!(
                        "the hello is of version {other}, this program speaks {MODULE_VERSION}"
                    ))),
                };
            }
            Some((_, ModuleFrame::Unknown(_))) => {}
            Some(_) => return Err(RuntimeError::Peer("the first control frame is no hello".into())),
            None if control.has_ended() => {
                return Err(RuntimeError::Peer("the control channel ended before a hello".into()));
            }
            None => {
                control.want(&mut poller);
                poller.wait(None).map_err(|error| RuntimeError::os("waiting", error))?;
            }
        }
    }
}

/// A half that was made, and what of.
struct Made {
    stage: Box<dyn Stage>,
    nature: Nature,
    options: Options,
}

fn make(
    pair: &'static dyn Pair,
    half: Half,
    given: &[(String, String)],
    format: &str,
    site: &mut Site,
) -> Result<Made, RuntimeError> {
    let name = pair.name();
    let usage = |problem: String| {
        RuntimeError::Usage(format!("`{name}`: {problem}; `outboard modules {name}` explains it"))
    };
    let given = given.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let options = Options::check(pair.options(), given).map_err(|error| usage(error.problem))?;
    pair.check(&options).map_err(usage)?;
    if let Some(program) = pair.program(&options, half) {
        return Err(RuntimeError::Usage(format!(
            "`{program}` reads and writes containers itself: say it in the place of `outboard module {name}`"
        )));
    }
    let format = Format::from_name(format).ok_or_else(|| usage(format!("there is no format `{format}`")))?;
    pair.accept(&format, &options).map_err(|problem| {
        usage(format!("it cannot take {format}: {problem} (--format says what it is given)"))
    })?;
    site.seed = random::bytes().map_err(|error| RuntimeError::os("no random bytes", error))?;
    let stage = pair.half(half, &options, &format, site).map_err(|error| usage(error.to_string()))?;
    let nature = Nature { half, promises: pair.promises(&options), has_sides: !pair.side_ports().is_empty() };
    Ok(Made { stage, nature, options })
}

/// As many pipes as the half has ports, or one for all.
fn check_ports(
    pair: &dyn Pair,
    half: Half,
    options: &Options,
    request: &ModuleRequest,
) -> Result<(), RuntimeError> {
    let sides = 1 + pair.side_ports().len();
    let (inputs, outputs) = match (pair.shape(options), half) {
        (Shape::Line, _) | (Shape::Joint, Half::Source) => (1, sides),
        (Shape::Fan(ways), Half::Source) => (1, ways.into()),
        (Shape::Fan(ways), Half::Sink) => (ways.into(), sides),
        (Shape::Joint, Half::Sink) => (usize::from(u16::MAX), usize::from(u16::MAX)),
    };
    for (option, given, most) in [("-r", request.read.len(), inputs), ("-w", request.write.len(), outputs)] {
        if given > most {
            return Err(RuntimeError::Usage(format!(
                "the {half} half of `{}` has {most} port{} for {option}, not {given}",
                pair.name(),
                if most == 1 { "" } else { "s" }
            )));
        }
    }
    Ok(())
}

/// `NAME=VALUE` taken apart; the first option may stand without its name.
fn words(pair: &dyn Pair, options: &[String]) -> Result<Vec<(String, String)>, RuntimeError> {
    let mut given = Vec::with_capacity(options.len());
    for (index, word) in options.iter().enumerate() {
        let known = |name: &str| pair.options().iter().any(|spec| spec.name == name);
        match (word.split_once('='), pair.options().first()) {
            (Some((name, value)), _) if known(name) || index > 0 => given.push((name.into(), value.into())),
            (_, Some(first)) if index == 0 => given.push((first.name.into(), word.clone())),
            (Some((name, value)), None) => given.push((name.into(), value.into())),
            _ => {
                return Err(RuntimeError::Usage(format!(
                    "`{word}` is no option of `{}`: write NAME=VALUE",
                    pair.name()
                )));
            }
        }
    }
    Ok(given)
}

fn run_device(request: &ModuleRequest, stop: &Stop) -> Result<ModuleEnd, RuntimeError> {
    refuse(
        &request.name,
        &[
            ("--format", request.format.is_some()),
            ("-c", request.control.is_some()),
            ("--key-file", request.key_file.is_some()),
            ("--listen", request.listen),
            ("--insecure", request.insecure),
        ],
    )?;
    let kind = request.name.split(':').next().unwrap_or_default();
    let class = registry::device_class(kind);
    let role = class.map_or(Role::Device, |class| side(class, request));
    let mut text = request.name.clone();
    for option in &request.options {
        let separator = if text.contains(':') { ',' } else { ':' };
        text.push(separator);
        text.push_str(option);
    }
    let spec = registry::device_spec(&text, role)?;
    let like = match &request.like {
        Some(like) => {
            let spec = registry::device_spec(like, Role::Device)?;
            Some(registry::open(&spec, Role::Device, None)?.description)
        }
        None => None,
    };
    let opened = registry::open(&spec, role, like.as_ref())?;
    let flows = opened.description.flows.clone();
    let has = |direction| flows.iter().any(|offer| offer.direction == direction);
    let (out, into) = match role {
        Role::Device => (FlowDirection::DeviceToApplication, FlowDirection::ApplicationToDevice),
        Role::Application => (FlowDirection::ApplicationToDevice, FlowDirection::DeviceToApplication),
    };
    // A flow that is asked for by name, or is the device's own and has the standard stream.
    let ends = ends(
        request,
        has(into) && (!request.read.is_empty() || role == Role::Application),
        has(out) && (!request.write.is_empty() || role == Role::Device),
    )?;
    let partner = registry::partner(opened)
        .map_err(|error| RuntimeError::Peer(format!("{}: {error}", request.name)))?;
    let pipelines = Pipelines::default();
    let connection = match role {
        Role::Device => Connection::new(partner, Box::new(ends), &flows, &pipelines)?,
        Role::Application => Connection::new(Box::new(ends), partner, &flows, &pipelines)?,
    };
    Ok(ModuleEnd { drops: connection.run(stop)?.drops, refusal: None })
}

/// Which side of a device is meant: the one there is; else what `--undo` says, or what the pipes say.
fn side(class: &dyn DeviceClass, request: &ModuleRequest) -> Role {
    let only_reads = !request.read.is_empty() && request.write.is_empty();
    match (class.has_role(Role::Device), class.has_role(Role::Application)) {
        (true, false) => Role::Device,
        (false, true) => Role::Application,
        _ if request.undo || only_reads => Role::Application,
        _ => Role::Device,
    }
}

fn run_transport(request: &ModuleRequest, stop: &Stop) -> Result<ModuleEnd, RuntimeError> {
    refuse(
        &request.name,
        &[
            ("--format", request.format.is_some()),
            ("-c", request.control.is_some()),
            ("--key-file", request.key_file.is_some()),
            ("--like", request.like.is_some()),
        ],
    )?;
    // What comes from the connection is the way back: `--undo`, or `-w` alone.
    let writes = !request.write.is_empty() || (request.undo && request.read.is_empty());
    let reads = !request.read.is_empty() || !writes;
    let ends = ends(request, reads, writes)?;
    let options = request.options.join(",");
    let connected = transport::connect(&request.name, &options, request.listen, request.insecure, stop)?;
    let Some(records) = connected else { return Ok(ModuleEnd::default()) };
    let flows = transport::flows(FlowClass::Reliable);
    let connection = Connection::new(Box::new(records), Box::new(ends), &flows, &Pipelines::default())?;
    Ok(ModuleEnd { drops: connection.run(stop)?.drops, refusal: None })
}

/// The pipes of a device or a transport: at most one each way.
fn ends(request: &ModuleRequest, reads: bool, writes: bool) -> Result<Ends, RuntimeError> {
    for (option, paths) in [("-r", &request.read), ("-w", &request.write)] {
        if paths.len() > 1 {
            return Err(RuntimeError::Usage(format!("`{}` takes one {option}", request.name)));
        }
    }
    for (option, given, used) in
        [("-r", !request.read.is_empty(), reads), ("-w", !request.write.is_empty(), writes)]
    {
        if given && !used {
            return Err(RuntimeError::Usage(format!("`{}` has no flow for {option}", request.name)));
        }
    }
    let reader =
        reads.then(|| request.read.first().map_or_else(pipes::standard_input, |p| pipes::open_reader(p)));
    let writer =
        writes.then(|| request.write.first().map_or_else(pipes::standard_output, |p| pipes::open_writer(p)));
    Ok(Ends::new(reader.transpose()?, writer.transpose()?))
}

/// Options of the command line that mean nothing to this kind of module.
fn refuse(name: &str, given: &[(&str, bool)]) -> Result<(), RuntimeError> {
    match given.iter().find(|(_, given)| *given) {
        Some((option, _)) => Err(RuntimeError::Usage(format!("{option} means nothing to `{name}`"))),
        None => Ok(()),
    }
}
