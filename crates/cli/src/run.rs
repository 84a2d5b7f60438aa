//! `run`, `reload` and `health`: a file's words as a service.

use crate::arguments::{Log, Run};
use crate::output::{Events, Failure, print, print_json};
use crate::services::{stop_on_signals, use_worker_processes};
use runtime::console::{Answer, Operation, PATIENCE, Status, Survey, ask, survey};
use runtime::service::{Source, Supervisor};
use runtime::worker::require_sandbox;
use runtime::{Stop, metrics};
use serde::Serialize;
use std::sync::Arc;

/// `outboard run`: everything is checked before anything starts.
pub(crate) fn run(words: Run) -> Result<(), Failure> {
    // Their numbers are known only as long as nothing else was opened.
    let sockets = sys::activation::take_sockets()?;
    if words.require_sandbox {
        require_sandbox()?;
    }
    let source = Source::at(&words.file)?;
    if words.check {
        source.check()?;
        return print("it can be run\n");
    }
    let at = words.metrics.as_deref().map(metrics::address).transpose()?;
    let log = if words.report.json { Log::Events } else { words.log };
    let events = Arc::new(Events::of_service(log, words.report.stats, source.writes_stdout()));
    let tell = Arc::new(move |event| events.tell(event));
    use_worker_processes();
    let stop = Stop::new()?;
    stop_on_signals(&stop)?;
    Ok(Supervisor::start(source, at, sockets, tell)?.run(&stop)?)
}

/// What this user's processes say, or this one alone.
fn running(process: Option<i32>) -> Result<Survey, Failure> {
    let mut survey = survey(PATIENCE)?;
    let is_meant = |number: i32| process.is_none_or(|process| process == number);
    survey.told.retain(|(_, status)| is_meant(status.process));
    survey.silent.retain(|number| is_meant(*number));
    Ok(survey)
}

/// `outboard reload`.
pub(crate) fn reload(process: Option<i32>, json: bool) -> Result<(), Failure> {
    let mut running = running(process)?.told;
    running.retain(|(_, status)| status.role == "run");
    let (console, status) = match (running.pop(), running.len()) {
        (Some(one), 0) => one,
        (None, _) => return Err(Failure::Failed("no `outboard run` of this user runs here".into())),
        (Some(_), _) => {
            let problem =
                "several processes of this user run a file: say --process PID (`outboard health` lists them)";
            return Err(Failure::Usage(problem.into()));
        }
    };
    match ask(&console, &Operation::Reload {})? {
        Answer::Reloaded(done) if json => print_json(&done),
        Answer::Reloaded(done) => print(&format!(
            "process {}: {} started, {} ended, {} untouched\n",
            status.process, done.started, done.ended, done.unchanged
        )),
        Answer::Refused { problem } => Err(Failure::Failed(problem)),
        _ => Err(Failure::Failed("it answers something else".into())),
    }
}

/// One process of this user, as `health` sees it.
#[derive(Serialize)]
struct Health {
    process: i32,
    roles: Vec<String>,
    /// What keeps it from doing what it is to do.
    problems: Vec<String>,
    /// What is not its own fault: a silent host, a device that is not plugged in.
    waits: Vec<String>,
}

#[derive(Serialize)]
struct Report {
    healthy: bool,
    processes: Vec<Health>,
}

/// `outboard health`.
pub(crate) fn health(process: Option<i32>, json: bool) -> Result<(), Failure> {
    let mut processes: Vec<Health> = Vec::new();
    let Survey { told, silent } = running(process)?;
    for (_, status) in told {
        let index =
            processes.iter().position(|health| health.process == status.process).unwrap_or_else(|| {
                let process = status.process;
                processes.push(Health { process, roles: vec![], problems: vec![], waits: vec![] });
                processes.len() - 1
            });
        let health = &mut processes[index];
        health.waits.extend(waits(&status));
        health.problems.extend(status.problems);
        health.roles.push(status.role);
    }
    let hangs = |process| {
        let problem = format!("it does not answer for {} s: it hangs, or was stopped", PATIENCE.as_secs());
        Health { process, roles: vec![], problems: vec![problem], waits: vec![] }
    };
    processes.extend(silent.into_iter().map(hangs));
    let healthy = !processes.is_empty() && processes.iter().all(|health| health.problems.is_empty());
    let mut text = String::new();
    for health in &processes {
        let state = if health.problems.is_empty() { "healthy" } else { "NOT healthy" };
        let roles = match health.roles.is_empty() {
            true => String::new(),
            false => format!(" ({})", health.roles.join(", ")),
        };
        text.push_str(&format!("process {}{roles}: {state}\n", health.process));
        health.problems.iter().chain(&health.waits).for_each(|what| text.push_str(&format!("    {what}\n")));
    }
    match json {
        true => print_json(&Report { healthy, processes })?,
        false => print(&crate::output::printable(&text))?,
    }
    match healthy {
        true => Ok(()),
        false if text.is_empty() => Err(Failure::Failed("nothing of this user's runs here".into())),
        false => Err(Failure::Failed("something does not run although it should".into())),
    }
}

fn waits(status: &Status) -> Vec<String> {
    let mut waits = Vec::new();
    for peer in &status.peers {
        if let Some(seconds) = peer.silent_seconds {
            waits.push(format!("{}: nothing heard of {} for {seconds:.0} s", status.role, peer.name));
        }
    }
    for offer in status.offers.iter().filter(|offer| !offer.present) {
        waits.push(format!("share: {} is not plugged in", offer.name));
    }
    waits
}
