//! Halves of pairs in processes of their own: which do, and what they are started with.

use contract::{Format, Half, Link, Options, Secret, Site, StageError};
use links::confine;
use links::process::{Limits, Module, Process};
use pipeline::{Isolation, PairUse};
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

fn program() -> OsString {
    // Under this name it is found even after its file was replaced by a newer one.
    PROGRAM.get_or_init(|| "/proc/self/exe".into()).into()
}

/// The link to a half that asks for a process of its own; `None` if it asks for none.
pub(crate) fn link(
    used: &PairUse,
    half: Half,
    format: &Format,
    site: &Site,
) -> Result<Option<Box<dyn Link>>, StageError> {
    let foreign = used.pair.program(&used.options, half);
    let (words, is_own) = match (foreign, &used.isolation) {
        (Some(text), _) => (split(text)?, false),
        (None, Some(_)) => (own_words(used.pair.name(), half), true),
        (None, None) => return Ok(None),
    };
    let patience = match used.options.duration("patience") {
        Duration::ZERO => PATIENCE,
        patience => patience,
    };
    let (words, environment) = match &used.isolation {
        Some(isolation) => confined(words, isolation, &used.options)?,
        None => (words, None),
    };
    let module = Module {
        words,
        environment,
        half,
        greeting: greeting(used, half, format, site.key.as_ref().filter(|_| is_own)),
        is_own,
        has_history: used.pair.promises(&used.options).needs_order,
        patience,
        limits: Limits::default(),
    };
    Ok(Some(Box::new(Process::start(module)?)))
}

fn split(text: &str) -> Result<Vec<OsString>, StageError> {
    let words = shlex::split(text).filter(|words| !words.is_empty());
    let words = words.ok_or_else(|| StageError::Own(format!("`{text}` is no program and arguments")))?;
    Ok(words.into_iter().map(OsString::from).collect())
}

fn own_words(name: &str, half: Half) -> Vec<OsString> {
    let mut words = vec![program(), "module".into(), name.into(), "--fd-control".into(), "3".into()];
    if half == Half::Sink {
        words.push("--undo".into());
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
