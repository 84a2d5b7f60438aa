//! Attempts to leave the sandbox from inside the real processes: every system call beside the lists of allowed calls, known
//! ways out, and hostile messages to the broker. Another process makes the calls of a confined one ([`tracee`]), so the product
//! has no code for this.

mod attacks;
mod hosts;
mod sweep;
mod tracee;

use crate::programs::progress;
use crate::provenance::Provenance;
use crate::setting::Failure;
use attacks::Outcome;
use clap::Args;
use hosts::{Hosts, Unconfined, User};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use sweep::Sweep;
use tracee::Tracee;

/// The settings of `escape`.
#[derive(Args, Debug, Clone)]
pub(crate) struct EscapeSetting {
    /// The program `lab/vm`, to repeat everything on the kernel of its virtual machine
    #[arg(long)]
    vm: Option<PathBuf>,
    /// Write the page to this file
    #[arg(long)]
    page: Option<PathBuf>,
}

/// A confined process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// The worker of a session.
    Worker,
    /// A stage of this program with `isolate=true`.
    Stage,
    /// A program of the user with `isolate=true`.
    Module,
}

impl Role {
    const EVERY: [Role; 3] = [Role::Worker, Role::Stage, Role::Module];

    fn name(self) -> &'static str {
        match self {
            Role::Worker => "worker",
            Role::Stage => "isolated stage",
            Role::Module => "foreign module",
        }
    }
}

/// The results for one role and one user.
struct Trial {
    role: Role,
    user: User,
    sweep: Sweep,
    attacks: Vec<(&'static str, Outcome)>,
}

impl Trial {
    fn run(role: Role, user: User) -> Result<Trial, Failure> {
        let mut hosts = Hosts::start(user, role)?;
        let mut tracee = Tracee::seize(hosts.find(role)?)?;
        let sweep = sweep::sweep(role, &mut tracee)?;
        let attacks = attacks::run(&hosts, role, &mut tracee)?;
        Ok(Trial { role, user, sweep, attacks })
    }

    fn breaches(&self) -> usize {
        self.sweep.breaches.len() + self.attacks.iter().filter(|(_, outcome)| outcome.is_breach).count()
    }

    fn json(&self) -> Value {
        let attacks = self.attacks.iter().map(
            |(name, outcome)| json!({ "attack": name, "outcome": outcome.text, "breach": outcome.is_breach }),
        );
        json!({
            "experiment": "escape", "params": { "role": self.role.name(), "user": self.user.name(), "kernel": kernel() },
            "calls": self.sweep, "attacks": attacks.collect::<Vec<_>>(),
        })
    }
}

fn kernel() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().into()
}

/// Runs `escape`.
pub(crate) fn run(setting: &EscapeSetting) -> Result<Value, Failure> {
    let provenance = Provenance::of_this_run();
    let mut trials = Vec::new();
    for user in User::possible() {
        for role in Role::EVERY {
            let trial = Trial::run(role, user)?;
            progress(&format!("{}, {}: {} breaches", role.name(), user.name(), trial.breaches()));
            trials.push(trial);
        }
    }
    let unconfined = {
        let program = Unconfined::start()?;
        sweep::sweep_unconfined(&mut Tracee::seize(program.find()?)?)?
    };
    let mut text = table(&trials, &unconfined);
    print!("{text}");
    if let Some(vm) = &setting.vm {
        let section = in_vm(vm)?;
        print!("\n{section}");
        let _ = write!(text, "\n{section}");
    }
    if let Some(file) = &setting.page {
        let head = include_str!("head.md");
        fs::write(file, format!("{head}\n## This machine\n\n{provenance}\n\n{text}"))
            .map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    }
    match trials.iter().map(Trial::breaches).sum::<usize>() {
        0 => Ok(trials.iter().map(Trial::json).collect()),
        breaches => Err(format!("{breaches} breaches").into()),
    }
}

/// Runs this experiment in the virtual machine and returns its section of the page.
fn in_vm(vm: &PathBuf) -> Result<String, Failure> {
    let output = Command::new(vm)
        .args(["--timeout", "3600", "--"])
        .arg(std::env::current_exe()?)
        .args(["escape", "--section", "In a virtual machine"])
        .stderr(Stdio::inherit())
        .output()?;
    match output.status.success() {
        true => Ok(String::from_utf8(output.stdout)?),
        false => Err(format!("{}: {}", vm.display(), output.status).into()),
    }
}

fn table(trials: &[Trial], unconfined: &Sweep) -> String {
    let mut text = String::from(
        "| process | user | kernel | calls tried | on the list | by arguments | refused: EPERM | refused: ENOSYS | not filtered | breaches |\n\
         |---|---|---|---:|---:|---:|---:|---:|---:|---|\n",
    );
    for Trial { role, user, sweep, .. } in trials {
        let Sweep { tried, listed, by_arguments, eperm, enosys, unfiltered, breaches } = sweep;
        let breaches = if breaches.is_empty() { "0".into() } else { format!("**{}**", breaches.join("; ")) };
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "| {} | {} | {} | {tried} | {listed} | {by_arguments} | {eperm} | {enosys} | {unfiltered} | {breaches} |",
            role.name(),
            user.name(),
            kernel()
        );
    }
    let Sweep { tried, eperm, enosys, .. } = unconfined;
    let _ = writeln!(
        text,
        "| without a sandbox | ordinary | {} | {tried} | | | {eperm} | {enosys} | | |",
        kernel()
    );
    let columns: Vec<String> =
        trials.iter().map(|trial| format!("{}, {}", trial.role.name(), trial.user.name())).collect();
    let _ = writeln!(text, "\n| attack | {} |\n|---|{}", columns.join(" | "), "---|".repeat(columns.len()));
    for name in attacks::names() {
        let cells = trials.iter().map(|trial| {
            let outcome = trial.attacks.iter().find(|(own, _)| *own == name);
            outcome.map_or("–".into(), |(_, outcome)| match outcome.is_breach {
                true => format!("**breach**: {}", outcome.text),
                false => outcome.text.clone(),
            })
        });
        let _ = writeln!(text, "| {name} | {} |", cells.collect::<Vec<_>>().join(" | "));
    }
    text
}
