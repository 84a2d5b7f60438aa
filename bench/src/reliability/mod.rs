//! The cost of each fault for each class of devices, on two paired hosts with an emulated network. Units flow all the time
//! ([`subject`]), a fault is injected ([`fault`]), and the units are counted ([`count`]).

mod camera;
pub(crate) mod count;
pub(crate) mod fault;
pub(crate) mod hosts;
mod outcome;
pub(crate) mod port;
mod sleeper;
pub(crate) mod subject;
pub(crate) mod unit;

use crate::programs::{beside, progress};
use crate::provenance::Provenance;
use crate::setting::Failure;
use clap::Args;
use count::Tally;
use fault::Fault;
use hosts::{DEVICE, Hosts};
use outcome::{CALM, Cell, Outcome, PATIENCE, Seen, wait_for};
use serde_json::{Value, json};
pub(crate) use sleeper::{SleeperSetting, sleep};
use std::fmt::Write as _;
use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Instant;
use subject::{Class, Disk, Ended, Made};

/// The settings of `reliability`.
#[derive(Args, Debug, Clone)]
pub(crate) struct ReliabilitySetting {
    /// Classes of devices [default: all]
    #[arg(long = "class", value_delimiter = ',')]
    classes: Vec<Class>,
    /// Only faults whose name contains one of these
    #[arg(long = "fault", value_delimiter = ',')]
    faults: Vec<String>,
    /// Transports
    #[arg(long = "transport", value_delimiter = ',', default_values_t = ["quic".to_string(), "tcp".to_string(), "udp".to_string()])]
    transports: Vec<String>,
    /// Seed of the network's losses
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Cells that run at the same time, each with its own hosts
    #[arg(long, default_value_t = NonZeroUsize::MIN)]
    jobs: NonZeroUsize,
    /// The program `netlab` [default: beside this one]
    #[arg(long)]
    netlab: Option<PathBuf>,
    /// The program `lab/vm`, for an application host that is a separate machine [default: skip those faults]
    #[arg(long)]
    vm: Option<PathBuf>,
    /// Write the page to this file
    #[arg(long)]
    page: Option<PathBuf>,
}

/// Runs all cells, `jobs` at a time. Returns their results in order.
fn run_cells(cells: &[Cell], setting: &ReliabilitySetting, netlab: &Path) -> Vec<Outcome> {
    let outcomes: Vec<OnceLock<Outcome>> = cells.iter().map(|_| OnceLock::new()).collect();
    let run = |at: usize| {
        let (cell, name) = (&cells[at], format!("outboard-reliability-{}-{at}", std::process::id()));
        let directory = std::env::temp_dir().join(name);
        let outcome = run_cell(cell, setting, netlab, &directory)
            .unwrap_or_else(|error| Outcome::Failed(format!("{error} (seed {})", setting.seed)));
        // A directory that stays does no harm.
        let _ = fs::remove_dir_all(&directory);
        progress(&format!("{}: {}", name_of(cell), words(cell, &outcome)));
        outcomes[at].get_or_init(|| outcome);
    };
    let (alone, beside): (Vec<usize>, Vec<usize>) =
        (0..cells.len()).partition(|at| cells[*at].fault.needs_the_machine());
    let queue = Mutex::new(beside.into_iter());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    thread::scope(|scope| {
        for _ in 0..setting.jobs.get() {
            scope.spawn(|| std::iter::from_fn(next).for_each(run));
        }
    });
    alone.into_iter().for_each(run);
    outcomes.into_iter().map(|outcome| outcome.into_inner().expect("every cell was run")).collect()
}

fn run_cell(
    cell: &Cell,
    setting: &ReliabilitySetting,
    netlab: &Path,
    directory: &Path,
) -> Result<Outcome, Failure> {
    fs::create_dir_all(directory)?;
    let disk = Disk::mount(directory)?;
    // Only the default transport has a fallback.
    let transport = (!matches!(cell.fault, Fault::NoUdp(_))).then_some(cell.transport.as_str());
    let mut hosts = Hosts::new(transport, netlab, directory, setting.seed)?;
    let made = Made::new(cell.class, directory)?;
    if let (Fault::SuspendApplication(seconds), Some(vm)) = (cell.fault, &setting.vm) {
        return sleeper::measure(seconds, &mut hosts, made, cell.class, vm).map(Outcome::Seen);
    }
    let attached = hosts.begin(&made.shared, &made.used)?;
    let mut subject = made.begin(&attached)?;
    let calm = Instant::now();
    if wait_for(&subject, calm).is_none() {
        return Err("no unit arrives before the fault".into());
    }
    thread::sleep(CALM);
    let ended_at = match cell.fault.inject(&mut hosts, &mut subject, &disk)? {
        Ok(ended_at) => ended_at,
        Err(why) => return Ok(Outcome::Impossible(why)),
    };
    // Slow classes create a unit at once.
    subject.make_now();
    let recovery = wait_for(&subject, ended_at).map(|came| came.saturating_duration_since(ended_at));
    thread::sleep(CALM);
    let ended = subject.end(PATIENCE)?;
    let mut reported = hosts.reported(DEVICE, cell.class.unit());
    // The kernel keeps no events of a keyboard between the plug and the open.
    reported.is_unnumbered |= cell.fault == Fault::Unplug && cell.class == Class::Input;
    Ok(Outcome::Seen(Seen { ended, recovery, reported }))
}

/// Runs `reliability`.
pub(crate) fn run(setting: &ReliabilitySetting) -> Result<Value, Failure> {
    if !rustix::process::geteuid().is_root() {
        progress("SKIPPED reliability: it needs root, for network namespaces");
        return Ok(json!([]));
    }
    let provenance = Provenance::of_this_run();
    let netlab = setting.netlab.clone().map_or_else(|| beside("netlab"), Ok)?;
    let wanted = if setting.classes.is_empty() { &Class::EVERY[..] } else { &setting.classes };
    let mut classes = Vec::new();
    for class in wanted {
        match class.is_possible() {
            Ok(()) => classes.push(*class),
            Err(why) => progress(&format!("SKIPPED {class:?}: {why}")),
        }
    }
    let is_wanted = |fault: &Fault| {
        let is_named = |part: &String| fault.to_string().contains(part.as_str());
        setting.faults.is_empty() || setting.faults.iter().any(is_named)
    };
    let mut faults = Vec::new();
    for fault in Fault::EVERY.into_iter().filter(is_wanted) {
        match fault.is_possible() {
            Ok(()) if setting.vm.is_none() && matches!(fault, Fault::SuspendApplication(_)) => {
                progress(&format!("SKIPPED {fault}: it needs a separate machine: `--vm lab/vm` boots one"));
            }
            Ok(()) => faults.push(fault),
            Err(why) => progress(&format!("SKIPPED {fault}: {why}")),
        }
    }
    let mut cells = Vec::new();
    for transport in &setting.transports {
        for fault in faults.iter().copied() {
            let classes = classes.iter().copied().filter(|class| fault.applies_to(*class, transport));
            cells.extend(classes.map(|class| Cell { class, fault, transport: transport.clone() }));
        }
    }
    let outcomes = run_cells(&cells, setting, &netlab);
    let outcomes: Vec<(Cell, Outcome)> = cells.into_iter().zip(outcomes).collect();
    let text = table(&outcomes);
    if let Some(file) = &setting.page {
        fs::write(
            file,
            format!(
                "{}\n## Without a kernel's own devices\n\n{provenance}\n\n{text}",
                include_str!("head.md")
            ),
        )
        .map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    }
    print!("{text}");
    match outcomes.iter().filter(|(_, outcome)| matches!(outcome, Outcome::Failed(_))).count() {
        0 => Ok(outcomes.iter().map(|(cell, outcome)| row(cell, outcome)).collect()),
        failed => Err(format!("{failed} of {} cells failed", outcomes.len()).into()),
    }
}

fn name_of(cell: &Cell) -> String {
    format!("{:?} over {}, {}", cell.class, cell.transport, cell.fault)
}

fn words(cell: &Cell, outcome: &Outcome) -> String {
    match outcome {
        Outcome::Impossible(why) => format!("impossible: {why}"),
        Outcome::Failed(why) => format!("FAILED: {why}"),
        Outcome::Seen(seen) => format!(
            "{}; {}; recovered {}; {} keys stuck; node lost {} times; reported as lost: {:?}{}",
            if seen.holds(cell) { "holds" } else { "BROKEN" },
            seen.ended.tally,
            seen.recovery
                .map_or("never".into(), |recovery| format!("after {:.0} ms", recovery.as_secs_f64() * 1e3)),
            seen.ended.stuck,
            seen.ended.node_losses,
            seen.reported.reasons,
            if seen.is_unnumbered() { ", and more without a count" } else { "" },
        ),
    }
}

fn table(outcomes: &[(Cell, Outcome)]) -> String {
    let mut text = String::from(
        "| fault | class | transport | created | lost | repeated | out of order | torn | reported as lost | keys stuck | recovered, ms | node lost | |\n\
         |---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|\n",
    );
    for (cell, outcome) in outcomes {
        let class = format!("{:?}", cell.class).to_lowercase();
        // Writing to a string cannot fail.
        let _ = write!(text, "| {} | {class} | {} ", cell.fault, cell.transport);
        let _ = match outcome {
            Outcome::Impossible(why) => writeln!(text, "| | | | | | | | | | impossible: {why} |"),
            Outcome::Failed(why) => {
                let why = why.replace(['\n', '|'], " ");
                writeln!(text, "| | | | | | | | | | **broken**: {why} |")
            }
            Outcome::Seen(seen) => {
                let Ended { tally, stuck, node_losses, .. } = seen.ended;
                let Tally { made, lost, repeated, disordered, torn } = tally;
                let recovery =
                    seen.recovery.map_or("never".into(), |at| format!("{:.0}", at.as_secs_f64() * 1e3));
                let holds = if seen.holds(cell) { "" } else { "**broken**" };
                let more = if seen.is_unnumbered() { " and more" } else { "" };
                let dropped = format!("{}{more}", seen.reported.dropped());
                writeln!(
                    text,
                    "| {made} | {lost} | {repeated} | {disordered} | {torn} | {dropped} | {stuck} | {recovery} | {node_losses} | {holds} |"
                )
            }
        };
    }
    text
}

fn row(cell: &Cell, outcome: &Outcome) -> Value {
    let Outcome::Seen(seen) = outcome else { return json!(null) };
    let recovery = seen.recovery.map(|recovery| recovery.as_secs_f64() * 1e3);
    let Ended { tally, stuck, node_losses, .. } = seen.ended;
    json!({
        "experiment": "reliability",
        "params": {
            "class": format!("{:?}", cell.class).to_lowercase(), "fault": cell.fault.to_string(), "transport": cell.transport,
            "made": tally.made, "lost": tally.lost, "repeated": tally.repeated,
            "disordered": tally.disordered, "torn": tally.torn, "dropped": seen.reported.dropped(),
            "stuck": stuck, "node_losses": node_losses, "holds": seen.holds(cell),
        },
        "unit": "ms", "ours": recovery, "runs": 1,
    })
}
