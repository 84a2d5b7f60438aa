//! Halves of pairs in processes of their own: which do, and what they are started with.
//!
//! A locked worker has them started by a warden of its broker's ([`links::process::Wardship`]), which is told before what a
//! pipeline may need ([`programs`]).

use contract::{Format, Half, Link, Options, Secret, Site, StageError};
use links::confine;
use links::process::{Allowed, Limits, Module, Process, SharedRun};
use pipeline::{Isolation, LinkKind, PairUse, Pipeline};
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;
use wire::ModuleFrame;
use wire::module::{MODULE_VERSION, ModuleKey};

/// How long one of our own modules may owe something without giving anything.
const PATIENCE: Duration = Duration::from_secs(5);

/// The program that runs modules and confines them.
static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// Has modules run by this `outboard`, where the calling program is another one (a test, a measurement). The
/// first call counts.
pub fn use_program(path: PathBuf) {
    PROGRAM.get_or_init(|| path);
}

/// The program that runs modules, by which a worker finds it as well.
pub(crate) fn program() -> OsString {
    // Under this name it is found even after its file was replaced by a newer one.
    PROGRAM.get_or_init(|| "/proc/self/exe".into()).into()
}

/// What the halves of a pipeline are started with that ask for processes of their own, wherever they stand among each
/// other. One that cannot be started so says why when it is.
pub(crate) fn programs(pipeline: &Pipeline, half: Half) -> Vec<Allowed> {
    let pairs = pipeline.pairs();
    let stands = || (1..=pairs.len()).map(Stand::Place).chain([Stand::Chain]);
    let of_pair = |used| stands().filter_map(move |stand| start(used, half, stand).ok());
    let asks = |used: &&PairUse| used.link_of(half) != LinkKind::Direct;
    let starts = pairs.iter().filter(asks).flat_map(of_pair);
    starts.map(|(words, environment)| Allowed { words, environment }).collect()
}

/// The link to a half that asks for a process of its own; `None` if it asks for none.
pub(crate) fn link(
    used: &PairUse,
    half: Half,
    format: &Format,
    site: &Site,
) -> Result<Option<Box<dyn Link>>, StageError> {
    Ok(Some(match used.link_of(half) {
        LinkKind::Direct => return Ok(None),
        LinkKind::Pipe => Box::new(Process::start(module(used, half, format, site, Stand::Chain)?)?),
        LinkKind::Shm => {
            let modules = vec![module(used, half, format, site, Stand::Place(1))?];
            let one = Process::start_run(modules, setting(&[used]))?.pop();
            Box::new(one.ok_or_else(|| StageError::Own("a run of no stage".into()))?)
        }
    }))
}

/// The links of halves that stand together on shared memory, or in a chain of pipes, in the order of `pairs` (source order);
/// `None` where a half is not one of several that do. What is isolated sees nobody's messages but its own, and so stands
/// alone, and so does a program of the user's.
pub(crate) fn runs(
    pairs: &[(&PairUse, &Format)],
    half: Half,
    site: &Site,
) -> Vec<Option<Result<Box<dyn Link>, StageError>>> {
    let stands = |used: &PairUse| {
        let is_own = used.pair.program(&used.options, half).is_none() && used.isolation.is_none();
        Some(used.link_of(half)).filter(|kind| is_own && *kind != LinkKind::Direct)
    };
    let mut links = Vec::with_capacity(pairs.len());
    for run in pairs.chunk_by(|(a, _), (b, _)| stands(a).is_some() && stands(a) == stands(b)) {
        match run {
            [_] => links.push(None),
            run => match start_run(run, half, site) {
                Ok(run) => {
                    links.extend(run.into_iter().map(|link| Some(Ok(Box::new(link) as Box<dyn Link>))))
                }
                // Nobody asks for the others once the first is refused.
                Err(error) => {
                    links.extend([Some(Err(error))].into_iter().chain((1..run.len()).map(|_| None)))
                }
            },
        }
    }
    links
}

fn start_run(run: &[(&PairUse, &Format)], half: Half, site: &Site) -> Result<Vec<Process>, StageError> {
    let is_shared = run.iter().all(|(used, _)| used.link_of(half) == LinkKind::Shm);
    // The sink half undoes the last pair first.
    let place = |index: usize| match half {
        _ if !is_shared => Stand::Chain,
        Half::Source => Stand::Place(index + 1),
        Half::Sink => Stand::Place(run.len() - index),
    };
    let one = |(index, (used, format)): (usize, &(&PairUse, &Format))| {
        module(used, half, format, site, place(index))
    };
    let mut modules = run.iter().enumerate().map(one).collect::<Result<Vec<_>, _>>()?;
    if half == Half::Sink {
        modules.reverse();
    }
    let used: Vec<&PairUse> = run.iter().map(|(used, _)| *used).collect();
    let mut links = match is_shared {
        true => Process::start_run(modules, setting(&used))?,
        false => Process::start_chain(modules)?,
    };
    if half == Half::Sink {
        links.reverse();
    }
    Ok(links)
}

/// How a run of these on shared memory is set.
fn setting(run: &[&PairUse]) -> SharedRun {
    let running = || run.iter().map(|used| used.running);
    SharedRun {
        slots: running().filter_map(|running| running.slots).max(),
        latency: running().filter_map(|running| running.latency).min(),
        spins: true,
        is_realtime: running().all(|running| running.is_realtime),
    }
}

/// Where one of Outboard's own stands: at a place in a run on shared memory, or in a chain of pipes.
#[derive(Debug, Clone, Copy)]
enum Stand {
    Place(usize),
    Chain,
}

/// What a half is started with.
fn module(
    used: &PairUse,
    half: Half,
    format: &Format,
    site: &Site,
    stand: Stand,
) -> Result<Module, StageError> {
    let is_own = used.pair.program(&used.options, half).is_none();
    let (words, environment) = start(used, half, stand)?;
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
        is_chained: is_own && matches!(stand, Stand::Chain),
        has_history,
        patience,
        limits: Limits::default(),
    })
}

/// A half's program with its arguments, and its environment.
fn start(used: &PairUse, half: Half, stand: Stand) -> Result<Start, StageError> {
    let words = match used.pair.program(&used.options, half) {
        Some(text) => split(text)?,
        None => own_words(used, half, stand),
    };
    match &used.isolation {
        Some(isolation) => confined(words, isolation, &used.options),
        None => Ok((words, None)),
    }
}

fn split(text: &str) -> Result<Vec<OsString>, StageError> {
    let words = shlex::split(text).filter(|words| !words.is_empty());
    let words = words.ok_or_else(|| StageError::Own(format!("`{text}` is no program and arguments")))?;
    Ok(words.into_iter().map(OsString::from).collect())
}

fn own_words(used: &PairUse, half: Half, stand: Stand) -> Vec<OsString> {
    let name = used.pair.name();
    let mut words = vec![program(), "module".into(), name.into(), "--fd-control".into(), "3".into()];
    if half == Half::Sink {
        words.push("--undo".into());
    }
    match stand {
        Stand::Place(place) => words.extend(["--place".into(), place.to_string().into()]),
        Stand::Chain => words.push("--chain".into()),
    }
    if used.running.is_realtime {
        words.push("--realtime".into());
    }
    words
}

type Start = (Vec<OsString>, Option<Vec<(OsString, OsString)>>);

/// The same program behind the launcher that confines it, with an environment that holds no secrets.
fn confined(
    program_words: Vec<OsString>,
    isolation: &Isolation,
    options: &Options,
) -> Result<Start, StageError> {
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

/// What the module is told first. A program of the user's gets no key.
fn greeting(used: &PairUse, half: Half, format: &Format, key: Option<&Secret>) -> Vec<ModuleFrame> {
    let options = used.options.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
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
    fn a_command_is_words_and_no_shell() {
        let words = split("./blur.py --title 'a  b' $HOME;x").unwrap();
        assert_eq!(words, ["./blur.py", "--title", "a  b", "$HOME;x"].map(OsString::from));
        assert!(split("'open").is_err());
    }
}
