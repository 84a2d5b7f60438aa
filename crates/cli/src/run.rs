//! `run`, `reload` and `health`: runs the entries of a file as a service.

use crate::arguments::{Log, Run};
use crate::output::{Events, Failure, print, print_json, printable};
use crate::services::{stop_or_hand_over_on_signals, use_worker_processes};
use console::{Answer, Operation, PATIENCE, Status, Survey, ask, survey};
use daemon::metrics;
use daemon::service::{Source, Supervisor};
use sandbox::require_sandbox;
use serde::Serialize;
use std::sync::Arc;
use sys::stop::Stop;

/// `outboard run`. Checks the whole file before it starts an entry.
pub(crate) fn run(words: Run) -> Result<(), Failure> {
    // Take the inherited descriptors first: their numbers are fixed.
    let passed = sys::activation::take_passed()?;
    if words.require_sandbox {
        require_sandbox()?;
    }
    let source = Source::at(&words.file)?;
    if words.check {
        let remarks: String = source.check()?.iter().map(|remark| format!("{remark}\n")).collect();
        return print(&printable(&format!("{remarks}the file is valid\n")));
    }
    let at = words.metrics.as_deref().map(metrics::address).transpose()?;
    let log = if words.report.json { Log::Events } else { words.log };
    let events = Arc::new(Events::of_service(log, words.report.stats, source.writes_stdout()));
    let tell = Arc::new(move |event| events.emit(event));
    use_worker_processes();
    let stop = Stop::new()?;
    stop_or_hand_over_on_signals(&stop)?;
    Ok(Supervisor::start(source, at, passed, tell)?.run(&stop)?)
}

/// Requests the status of all processes of this user, or of `process` only.
fn running(process: Option<i32>) -> Result<Survey, Failure> {
    let mut survey = survey(PATIENCE)?;
    let is_meant = |number: i32| process.is_none_or(|process| process == number);
    survey.statuses.retain(|(_, status)| is_meant(status.process));
    survey.silent.retain(|number| is_meant(*number));
    Ok(survey)
}

/// `outboard reload`.
pub(crate) fn reload(process: Option<i32>, json: bool) -> Result<(), Failure> {
    let mut running = running(process)?.statuses;
    running.retain(|(_, status)| status.role == "run");
    let (console, status) = match (running.pop(), running.len()) {
        (Some(one), 0) => one,
        (None, _) => return Err(Failure::Failed("this user runs no `outboard run` here".into())),
        (Some(_), _) => {
            let problem = "several processes of this user run a file: specify --process PID (`outboard health` lists them)";
            return Err(Failure::Usage(problem.into()));
        }
    };
    match ask(&console, &Operation::Reload {})? {
        Answer::Reloaded(done) if json => print_json(&done),
        Answer::Reloaded(done) => print(&format!(
            "process {}: {} started, {} ended, {} unchanged\n",
            status.process, done.started, done.ended, done.unchanged
        )),
        Answer::Refused { problem } => Err(Failure::Failed(problem)),
        _ => Err(Failure::Failed("unexpected answer of the service".into())),
    }
}

/// The health of one process.
#[derive(Serialize)]
struct Health {
    process: i32,
    roles: Vec<String>,
    /// Problems that make the process unhealthy.
    problems: Vec<String>,
    /// External conditions: a silent host, an unplugged device. The process is still healthy.
    waiting: Vec<String>,
}

#[derive(Serialize)]
struct Report {
    healthy: bool,
    processes: Vec<Health>,
}

/// `outboard health`.
pub(crate) fn health(process: Option<i32>, json: bool) -> Result<(), Failure> {
    let mut processes: Vec<Health> = Vec::new();
    let Survey { statuses, silent } = running(process)?;
    for (_, status) in statuses {
        let index =
            processes.iter().position(|health| health.process == status.process).unwrap_or_else(|| {
                let process = status.process;
                processes.push(Health { process, roles: vec![], problems: vec![], waiting: vec![] });
                processes.len() - 1
            });
        let health = &mut processes[index];
        health.waiting.extend(waiting(&status));
        health.problems.extend(status.problems);
        health.roles.push(status.role);
    }
    let hangs = |process| {
        let problem = format!("no answer for {} s: the process hangs or is stopped", PATIENCE.as_secs());
        Health { process, roles: vec![], problems: vec![problem], waiting: vec![] }
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
        health
            .problems
            .iter()
            .chain(&health.waiting)
            .for_each(|line| text.push_str(&format!("    {line}\n")));
    }
    if json {
        print_json(&Report { healthy, processes })?
    } else {
        print(&crate::output::printable(&text))?
    }
    match healthy {
        true => Ok(()),
        false if text.is_empty() => Err(Failure::Failed("this user runs no service here".into())),
        false => Err(Failure::Failed("a service is not healthy".into())),
    }
}

fn waiting(status: &Status) -> Vec<String> {
    let mut waiting = status.waiting.clone();
    for peer in &status.peers {
        if let Some(seconds) = peer.silent_seconds {
            waiting.push(format!("{}: {} is silent for {seconds:.0} s", status.role, peer.name));
        }
    }
    for offer in status.offers.iter().filter(|offer| !offer.present) {
        waiting.push(format!("share: {} is not plugged in", offer.name));
    }
    waiting
}
