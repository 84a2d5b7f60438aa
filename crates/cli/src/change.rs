//! `outboard change`: requests another pipeline for a flow, through the console of the process that runs it.

use crate::arguments::Change;
use crate::output::{Failure, print, print_json, printable};
use console::{Answer, Operation, PATIENCE, Status, ask_all, ask_patiently};
use pipeline::Edit;
use serde::Serialize;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Output of `--json`.
#[derive(Serialize)]
struct Changed<'a> {
    name: &'a str,
    back: bool,
    pipeline: &'a str,
}

/// The longest time for a change: it takes place behind the messages that were sent before it.
const CHANGE_PATIENCE: Duration = Duration::from_secs(60);

/// `outboard change`.
pub(crate) fn change(words: Change) -> Result<(), Failure> {
    let console = find(&words.name, true)?;
    let Change { name, back, edit, at, json } = words;
    let edit = match (edit.via, edit.insert, edit.remove, edit.set) {
        (Some(text), ..) => Edit::Via(text),
        (_, Some(pair), ..) => Edit::Insert { pair, at },
        (_, _, Some(pair), _) => Edit::Remove(pair),
        (.., Some(pair)) => Edit::Set(pair),
        _ => return Err(Failure::Usage("specify --via, --insert, --remove or --set".into())),
    };
    let operation = Operation::Change { name: name.clone(), back, edit };
    let mut is_told = false;
    let mut wait = || {
        if !std::mem::replace(&mut is_told, true) {
            eprintln!("waiting for the messages that were sent before the change");
        }
    };
    let answer = ask_patiently(&console, &operation, CHANGE_PATIENCE, &mut wait)
        .map_err(|error| Failure::Failed(format!("{}: no answer: {error}", console.display())))?;
    match answer {
        Answer::Changed { pipeline } => {
            if json.json {
                return print_json(&Changed { name: &name, back, pipeline: &pipeline });
            }
            let uses = if pipeline.is_empty() { "has no pairs".into() } else { format!("uses {pipeline}") };
            print(&printable(&format!("{name} now {uses}\n")))
        }
        Answer::Refused { problem } => Err(Failure::Failed(printable(&problem))),
        other => Err(Failure::Failed(format!("{}: unexpected answer {other:?}", console.display()))),
    }
}

/// Returns the console of the process with this device: of an `attach`, or else, if `may_share`, of a `share`.
pub(crate) fn find(name: &str, may_share: bool) -> Result<PathBuf, Failure> {
    let failed = |error| Failure::Failed(format!("cannot list the consoles of this user: {error}"));
    let mut names = Vec::new();
    let mut silent = String::new();
    let mut device_host = None;
    for (console, answer) in ask_all(Operation::Stats {}, PATIENCE).map_err(failed)? {
        let status = match answer {
            Ok(Answer::Status(status)) => status,
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                silent = format!("; {}: {error}", console.display());
                continue;
            }
            _ => continue,
        };
        let Status { role, drivers, .. } = status;
        let has_it = drivers.iter().any(|driver| driver.name == name);
        match role == "attach" {
            true if has_it => return Ok(console),
            // Device host and application host may be one machine. The application host has precedence.
            false if has_it && may_share => device_host = device_host.or(Some(console)),
            false if !may_share => {}
            _ => names.extend(drivers.into_iter().map(|driver| printable(&driver.name))),
        }
    }
    device_host.ok_or_else(|| {
        let there = match names.is_empty() {
            true => "no device is in use".into(),
            false => format!("in use: {}", names.join(", ")),
        };
        let role = if may_share { "share or attach" } else { "attach" };
        Failure::Failed(format!("no {role} of this user has a device `{name}` in use; {there}{silent}"))
    })
}
