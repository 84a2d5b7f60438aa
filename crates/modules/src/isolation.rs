//! Starts halves of pairs as processes.
//!
//! A locked worker cannot start processes. A thread of its broker does it ([`crate::process::Spawner`]), but only
//! programs that the broker allowed before ([`programs`]).

use crate::process::{AllowedProgram, Limits, Module, Process, SharedRun};
use contract::{Format, Half, Link, Options, Secret, Site, StageError, StageResult};
use pipeline::{Isolation, LinkKind, PairUse, Pipeline};
use sandbox::confine;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;
use wire::ModuleFrame;
use wire::module::{MODULE_VERSION, ModuleKey, SHARED_MEMORY};

/// Default timeout of an own module with unfinished input and no output.
const PATIENCE: Duration = Duration::from_secs(5);

/// The program that runs and confines modules.
static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// Sets the `outboard` program that runs modules, for a caller that is another program (a test, a measurement).
/// Only the first call has an effect.
pub fn use_program(path: PathBuf) {
    PROGRAM.get_or_init(|| path);
}

/// The program that runs modules and workers.
pub fn program() -> OsString {
    // This name works even after an update replaced the file.
    PROGRAM.get_or_init(|| "/proc/self/exe".into()).into()
}

/// Returns the commands that may start the processes of a pipeline, for every position of a half. Skips a command
/// that cannot be built: starting that half fails with the reason.
pub fn programs(pipeline: &Pipeline, half: Half) -> Vec<AllowedProgram> {
    let pairs = pipeline.pairs();
    let positions = || (1..=pairs.len()).map(Position::Run).chain([Position::Chain]);
    let of_pair = |used| positions().filter_map(move |position| command(used, half, position).ok());
    let asks = |used: &&PairUse| used.link_of(half) != LinkKind::Direct;
    let starts = pairs.iter().filter(asks).flat_map(of_pair);
    starts.map(|(words, environment)| AllowedProgram { words, environment }).collect()
}

/// Starts the process of a half; `None` if the half runs in this process.
pub fn link(used: &PairUse, half: Half, format: &Format, site: &Site) -> StageResult<Option<Box<dyn Link>>> {
    Ok(Some(match used.link_of(half) {
        LinkKind::Direct => return Ok(None),
        LinkKind::Pipe => Box::new(Process::start(module(used, half, format, site, Position::Chain)?)?),
        LinkKind::Shm => {
            let modules = vec![module(used, half, format, site, Position::Run(1))?];
            let one = Process::start_run(modules, run_settings(&[used]))?.pop();
            Box::new(one.ok_or_else(|| StageError::Own("an empty run".into()))?)
        }
    }))
}

/// Starts neighbouring halves together, on shared memory or in a chain of pipes, and returns their links in the
/// order of `pairs` (source order); `None` for a half that has no such neighbour. An isolated half must not see the
/// messages of others, so it runs alone; a program of the user runs alone, too.
pub fn runs(
    pairs: &[(&PairUse, &Format)],
    half: Half,
    site: &Site,
) -> Vec<Option<StageResult<Box<dyn Link>>>> {
    let shared_kind = |used: &PairUse| {
        let is_own = used.pair.program(&used.options, half).is_none() && used.isolation.is_none();
        Some(used.link_of(half)).filter(|kind| is_own && *kind != LinkKind::Direct)
    };
    let mut links = Vec::with_capacity(pairs.len());
    for run in pairs.chunk_by(|(a, _), (b, _)| shared_kind(a).is_some() && shared_kind(a) == shared_kind(b)) {
        match run {
            [_] => links.push(None),
            run => match start_run(run, half, site) {
                Ok(run) => {
                    links.extend(run.into_iter().map(|link| Some(Ok(Box::new(link) as Box<dyn Link>))))
                }
                // The others are not asked for after the first one failed.
                Err(error) => {
                    links.extend([Some(Err(error))].into_iter().chain((1..run.len()).map(|_| None)))
                }
            },
        }
    }
    links
}

fn start_run(run: &[(&PairUse, &Format)], half: Half, site: &Site) -> StageResult<Vec<Process>> {
    let is_shared = run.iter().all(|(used, _)| used.link_of(half) == LinkKind::Shm);
    // The sink half undoes the last pair first.
    let position = |index: usize| match half {
        _ if !is_shared => Position::Chain,
        Half::Source => Position::Run(index + 1),
        Half::Sink => Position::Run(run.len() - index),
    };
    let one = |(index, (used, format)): (usize, &(&PairUse, &Format))| {
        module(used, half, format, site, position(index))
    };
    let mut modules = run.iter().enumerate().map(one).collect::<Result<Vec<_>, _>>()?;
    if half == Half::Sink {
        modules.reverse();
    }
    let used: Vec<&PairUse> = run.iter().map(|(used, _)| *used).collect();
    let mut links = match is_shared {
        true => Process::start_run(modules, run_settings(&used))?,
        false => Process::start_chain(modules)?,
    };
    if half == Half::Sink {
        links.reverse();
    }
    Ok(links)
}

/// Merges the settings of the pairs of a run on shared memory.
fn run_settings(run: &[&PairUse]) -> SharedRun {
    let running = || run.iter().map(|used| used.running);
    SharedRun {
        slots: running().filter_map(|running| running.slots).max(),
        latency: running().filter_map(|running| running.latency).min(),
    }
}

/// Position of an own module: at a place in a run on shared memory, counted from 1, or in a chain of pipes.
#[derive(Debug, Clone, Copy)]
enum Position {
    Run(usize),
    Chain,
}

/// Describes the process of a half.
fn module(
    used: &PairUse,
    half: Half,
    format: &Format,
    site: &Site,
    position: Position,
) -> StageResult<Module> {
    let is_own = used.pair.program(&used.options, half).is_none();
    let (words, environment) = command(used, half, position)?;
    let patience = match used.options.duration("patience") {
        Duration::ZERO => PATIENCE,
        patience => patience,
    };
    let has_history = used.pair.promises(&used.options).needs_order;
    Ok(Module {
        words,
        environment,
        half,
        greeting: greeting(used, half, format, site.key.as_ref().filter(|_| is_own)),
        is_own,
        is_chained: is_own && matches!(position, Position::Chain),
        has_history,
        patience,
        limits: Limits::default(),
    })
}

/// Command and environment of a half.
fn command(used: &PairUse, half: Half, position: Position) -> StageResult<Command> {
    let words = match used.pair.program(&used.options, half) {
        Some(text) => split(text)?,
        None => own_command(used, half, position),
    };
    match &used.isolation {
        Some(isolation) => confined(words, isolation, &used.options),
        None => Ok((words, None)),
    }
}

fn split(text: &str) -> StageResult<Vec<OsString>> {
    let words = shlex::split(text).filter(|words| !words.is_empty());
    let words = words.ok_or_else(|| StageError::Own(format!("`{text}` is not a command line")))?;
    Ok(words.into_iter().map(OsString::from).collect())
}

fn own_command(used: &PairUse, half: Half, position: Position) -> Vec<OsString> {
    let name = used.pair.name();
    let mut words = vec![program(), "module".into(), name.into(), "--fd-control".into(), "3".into()];
    if half == Half::Sink {
        words.push("--undo".into());
    }
    match position {
        Position::Run(number) => words.extend(["--place".into(), number.to_string().into()]),
        Position::Chain => words.push("--chain".into()),
    }
    words
}

type Command = (Vec<OsString>, Option<Vec<(OsString, OsString)>>);

/// Prefixes a command with the launcher that confines it, and removes secrets from its environment.
fn confined(program_words: Vec<OsString>, isolation: &Isolation, options: &Options) -> StageResult<Command> {
    if isolation.is_required {
        confine::check_kernel()
            .map_err(|error| StageError::Own(format!("it cannot be isolated: {error}")))?;
    }
    let mut words = vec![program(), "confined".into(), "--memory".into()];
    words.push(isolation.memory_bytes.to_string().into());
    if !isolation.is_required {
        words.push("--possible".into());
    }
    for path in options.text("reads").split(':').filter(|path| !path.is_empty()) {
        words.extend(["--read".into(), path.into()]);
    }
    words.push("--".into());
    words.extend(program_words);
    Ok((words, Some(confine::environment())))
}

/// The first frames that a module receives. A program of the user gets no key.
fn greeting(used: &PairUse, half: Half, format: &Format, key: Option<&Secret>) -> Vec<ModuleFrame> {
    let mut options: Vec<_> =
        used.options.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    if used.pair.program(&used.options, half).is_some() && used.link_of(half) == LinkKind::Shm {
        options.push((SHARED_MEMORY.into(), "true".into()));
    }
    let hello = ModuleFrame::Hello {
        version: MODULE_VERSION,
        role: half.to_string(),
        format: format.name().into(),
        options,
    };
    key.map(|key| ModuleFrame::Key(ModuleKey(key.0))).into_iter().chain([hello]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_split_into_words_without_a_shell() {
        let words = split("./blur.py --title 'a  b' $HOME;x").unwrap();
        assert_eq!(words, ["./blur.py", "--title", "a  b", "$HOME;x"].map(OsString::from));
        assert!(split("'open").is_err());
    }
}
