//! The programs that the user of this host names in pipelines: a program belongs to the half that runs on this host, and
//! exists.

use contract::{FlowDirection, Half, Role, ServiceError};
use modules::{Pipelines, TransportPlan};
use pipeline::{PairUse, Pipeline};
use rustix::fs::{Access, access};
use std::path::{Path, PathBuf};

/// Returns the programs, with their arguments, that the pipelines name.
pub fn programs(pipelines: &Pipelines) -> Vec<&str> {
    let all = [&pipelines.via, &pipelines.via_back, &pipelines.require];
    let pairs = all.into_iter().flatten().flat_map(|pipeline| pipeline.pairs());
    pairs
        .flat_map(|used| [Half::Source, Half::Sink].map(|half| used.pair.program(&used.options, half)))
        .flatten()
        .collect()
}

/// Checks the programs in the pipelines of a host with this role. Both halves run on the host that connects a device to an
/// application of its own: `None`.
pub fn check_programs(pipelines: &Pipelines, host: Option<Role>) -> Result<(), ServiceError> {
    let [out, back] = [FlowDirection::DeviceToApplication, FlowDirection::ApplicationToDevice];
    for (pipeline, direction, option) in [
        (&pipelines.via, out, "--via"),
        (&pipelines.require, out, "--require"),
        (&pipelines.via_back, back, "--via-back"),
    ] {
        for used in pipeline.iter().flat_map(Pipeline::pairs) {
            let own = host.map(|host| half_of(host, direction));
            if let (Some(own), Some(host)) = (own, host) {
                check_half(used, own, host, option)?;
            }
            let halves = [Half::Source, Half::Sink];
            for half in halves.into_iter().filter(|half| own.is_none_or(|own| own == *half)) {
                let checked = used.pair.check_half(half, &used.options);
                checked.map_err(|problem| wrong(used, problem))?;
                used.pair.program(&used.options, half).map_or(Ok(()), |words| check_program(used, words))?;
            }
        }
    }
    Ok(())
}

/// The half of a pair that runs on the host with this role.
pub(crate) fn half_of(host: Role, direction: FlowDirection) -> Half {
    match (host, direction) {
        (Role::Device, FlowDirection::DeviceToApplication)
        | (Role::Application, FlowDirection::ApplicationToDevice) => Half::Source,
        _ => Half::Sink,
    }
}

/// Refuses a pair that names a program for the other host's half alone: nothing would run it.
fn check_half(used: &PairUse, own: Half, host: Role, option: &str) -> Result<(), ServiceError> {
    let program = |half| used.pair.program(&used.options, half);
    let (Some(words), None) = (program(own.other()), program(own)) else { return Ok(()) };
    let (pair, half) = (used.pair.name(), own.other());
    let text = format!("{pair}({half}=\"{words}\")");
    let text = shlex::try_quote(&text).unwrap_or_default();
    let (other, command) = match host {
        Role::Device => ("application", "outboard attach HOST/NAME"),
        Role::Application => ("device", "outboard share DEVICE"),
    };
    Err(ServiceError::Usage(format!(
        "`{pair}`: its {half} half runs on the {other} host, which starts `{words}` only if its own command names it: \
         leave the program out here\ntype there: {command} {option} {text}"
    )))
}

fn wrong(used: &PairUse, problem: String) -> ServiceError {
    ServiceError::Usage(format!("`{}`: {problem}", used.pair.name()))
}

/// Checks that the program exists and may be executed.
fn check_program(used: &PairUse, words: &str) -> Result<(), ServiceError> {
    let wrong = |problem| Err(wrong(used, problem));
    let Some(program) = shlex::split(words).and_then(|words| words.into_iter().next()) else {
        return wrong(format!("`{words}` is no command: a quotation mark is missing"));
    };
    match find(&program) {
        None => wrong(format!("there is no program `{program}`")),
        Some(path) if path.is_dir() => wrong(format!("`{program}` is a directory")),
        Some(path) if access(&path, Access::EXEC_OK).is_err() => {
            wrong(format!("`{program}` is not executable: chmod +x {program}"))
        }
        Some(_) => Ok(()),
    }
}

/// Checks that the program of a transport exists. A first word with a special meaning for the shell is not checked.
pub fn check_transport(transport: &TransportPlan) -> Result<(), ServiceError> {
    let command = transport.options.text("command");
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/' | '+');
    let Some(word) = transport.class.program().and_then(|_| command.split_whitespace().next()) else {
        return Ok(());
    };
    let is_known = !word.chars().all(is_plain) || word == "exec" || find(word).is_some();
    match is_known {
        true => Ok(()),
        false => {
            Err(ServiceError::Usage(format!("transport `exec:{command}`: there is no program `{word}`")))
        }
    }
}

/// Finds a program as the kernel and `execvp` do: a name without a slash is searched in `PATH`.
fn find(program: &str) -> Option<PathBuf> {
    if program.contains('/') {
        return Some(PathBuf::from(program)).filter(|path| path.exists());
    }
    let path = std::env::var_os("PATH")?;
    let is_program = |path: &Path| path.is_file() && access(path, Access::EXEC_OK).is_ok();
    std::env::split_paths(&path).map(|directory| directory.join(program)).find(|path| is_program(path))
}
