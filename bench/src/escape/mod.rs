//! Attempts to leave the sandbox from inside the real processes: every system call beside the lists of allowed calls, known
//! ways out, and hostile messages to the broker. Another process makes the calls of a confined one ([`tracee`]), so the product
//! has no code for this.

mod attacks;
mod frames;
mod hosts;
mod messages;
mod sweep;
mod tracee;

use crate::programs::progress;
use crate::provenance::Provenance;
use crate::setting::Failure;
use attacks::Outcome;
use clap::Args;
use frames::Fuzzed;
use hosts::{Hosts, Unconfined, User};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use sweep::Sweep;
use tracee::Tracee;

/// Changed frames in the virtual machine, which is slow.
const VM_FRAMES: &str = "100000";

/// The settings of `escape`.
#[derive(Args, Debug, Clone)]
pub(crate) struct EscapeSetting {
    /// The program `lab/vm`, to repeat everything on the kernel of its virtual machine
    #[arg(long)]
    vm: Option<PathBuf>,
    /// Changed frames of reports that the broker's parser reads
    #[arg(long, default_value_t = 10_000_000)]
    frames: u64,
    /// Seed of the changed frames
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write the page to this file
    #[arg(long)]
    page: Option<PathBuf>,
}

/// A confined process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// The worker of a session.
    Worker,
    /// The process that names the refused calls of the worker.
    Watcher,
    /// A stage of this program with `isolate=true`.
    Stage,
    /// A program of the user with `isolate=true`.
    Module,
}

impl Role {
    const EVERY: [Role; 4] = [Role::Worker, Role::Watcher, Role::Stage, Role::Module];

    fn name(self) -> &'static str {
        match self {
            Role::Worker => "worker",
            Role::Watcher => "watcher of the worker",
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
        json!({
            "experiment": "escape", "params": { "role": self.role.name(), "user": self.user.name(), "kernel": kernel() },
            "calls": self.sweep, "attacks": shown(&self.attacks),
        })
    }
}

fn shown(outcomes: &[(&'static str, Outcome)]) -> Value {
    let shown = |(name, outcome): &(&str, Outcome)| json!({ "name": name, "outcome": outcome.text, "breach": outcome.is_breach });
    outcomes.iter().map(shown).collect()
}

fn kernel() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().into()
}

/// The results on one kernel.
struct Results {
    trials: Vec<Trial>,
    unconfined: Sweep,
    messages: Vec<(User, Vec<(&'static str, Outcome)>)>,
    fuzzed: Fuzzed,
}

impl Results {
    fn measure(setting: &EscapeSetting) -> Result<Results, Failure> {
        let (mut trials, mut messages) = (Vec::new(), Vec::new());
        for user in User::possible() {
            for role in Role::EVERY {
                progress(&format!("{}, {}", role.name(), user.name()));
                trials.push(Trial::run(role, user)?);
            }
            progress(&format!("messages to the broker, {}", user.name()));
            messages.push((user, messages::run(user)?));
        }
        let program = Unconfined::start()?;
        let unconfined = sweep::sweep_unconfined(&mut Tracee::seize(program.find()?)?)?;
        progress(&format!("{} frames", setting.frames));
        Ok(Results { trials, unconfined, messages, fuzzed: frames::fuzz(setting.frames, setting.seed) })
    }

    fn breaches(&self) -> usize {
        let outcomes = self.messages.iter().flat_map(|(_, outcomes)| outcomes);
        self.trials.iter().map(Trial::breaches).sum::<usize>()
            + outcomes.filter(|(_, outcome)| outcome.is_breach).count()
            + usize::from(self.fuzzed.finding.is_some())
    }

    fn markdown(&self) -> String {
        let messages: Vec<_> =
            self.messages.iter().map(|(user, outcomes)| (user.name().to_string(), &outcomes[..])).collect();
        let attacks: Vec<_> = self
            .trials
            .iter()
            .filter(|trial| trial.role != Role::Watcher)
            .map(|trial| (format!("{}, {}", trial.role.name(), trial.user.name()), &trial.attacks[..]))
            .collect();
        format!(
            "{}\n{}\n{}\n{}",
            calls(&self.trials, &self.unconfined),
            table("attack", attacks::names(), &attacks),
            table("messages of a worker to its broker", messages::names(), &messages),
            self.fuzzed,
        )
    }

    fn json(&self) -> Value {
        let trials = self.trials.iter().map(Trial::json);
        let messages = self.messages.iter().map(|(user, outcomes)| {
            let params = json!({ "user": user.name(), "kernel": kernel() });
            json!({ "experiment": "escape", "params": params, "messages": shown(outcomes) })
        });
        let Fuzzed { frames, seed, accepted, refused, slowest, finding } = &self.fuzzed;
        let fuzzed = json!({
            "experiment": "escape", "params": { "frames": frames, "seed": seed }, "accepted": accepted, "refused": refused,
            "slowest_us": slowest.as_micros() as u64, "finding": finding,
        });
        trials.chain(messages).chain([fuzzed]).collect()
    }
}

/// Runs `escape`.
pub(crate) fn run(setting: &EscapeSetting) -> Result<Value, Failure> {
    let provenance = Provenance::of_this_run();
    let results = Results::measure(setting)?;
    let mut text = results.markdown();
    print!("{text}");
    let mut failure_in_vm = None;
    if let Some(vm) = &setting.vm {
        let (section, failure) = in_vm(vm)?;
        print!("\n{section}");
        let _ = write!(text, "\n{section}");
        failure_in_vm = failure;
    }
    if let Some(file) = &setting.page {
        let head = include_str!("head.md");
        fs::write(file, format!("{head}\n## This machine\n\n{provenance}\n\n{text}"))
            .map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    }
    match (results.breaches(), failure_in_vm) {
        (0, None) => Ok(results.json()),
        (0, Some(failure)) => Err(failure.into()),
        (breaches, _) => Err(format!("{breaches} breaches").into()),
    }
}

/// Runs this experiment in the virtual machine. Returns its section of the page, and the reason if it failed after that.
fn in_vm(vm: &Path) -> Result<(String, Option<String>), Failure> {
    let output = Command::new(vm)
        .args(["--timeout", "3600", "--"])
        .arg(std::env::current_exe()?)
        .args(["escape", "--section", "In a virtual machine", "--frames", VM_FRAMES])
        .stderr(Stdio::inherit())
        .output()?;
    let section = String::from_utf8(output.stdout)?;
    let failure = (!output.status.success()).then(|| format!("{}: {}", vm.display(), output.status));
    match (section.is_empty(), failure) {
        (true, Some(failure)) => Err(failure.into()),
        (_, failure) => Ok((section, failure)),
    }
}

fn calls(trials: &[Trial], unconfined: &Sweep) -> String {
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
    text
}

/// Returns a table with a row for each name and a column for each of `columns`.
fn table(
    title: &str,
    names: impl Iterator<Item = &'static str>,
    columns: &[(String, &[(&'static str, Outcome)])],
) -> String {
    let heads: Vec<&str> = columns.iter().map(|(head, _)| head.as_str()).collect();
    let mut text = format!("| {title} | {} |\n|---|{}\n", heads.join(" | "), "---|".repeat(heads.len()));
    for name in names {
        let cells = columns.iter().map(|(_, outcomes)| {
            let outcome = outcomes.iter().find(|(own, _)| *own == name);
            outcome.map_or("–".into(), |(_, outcome)| match outcome.is_breach {
                true => format!("**breach**: {}", outcome.text),
                false => outcome.text.clone(),
            })
        });
        let _ = writeln!(text, "| {name} | {} |", cells.collect::<Vec<_>>().join(" | "));
    }
    text
}
