//! Faults and devices: what each fault costs a device of each class, on two hosts that know each other, with an emulated
//! network between them. Units flow all the time ([`subject`]), something goes wrong ([`fault`]), and then they are counted
//! ([`count`]).

mod camera;
pub(crate) mod count;
pub(crate) mod fault;
pub(crate) mod hosts;
pub(crate) mod port;
mod sleeper;
pub(crate) mod subject;
mod unit;

use crate::Failure;
use crate::chapter6::{beside, progress};
use clap::Args;
use count::Tally;
use fault::Fault;
use hosts::{DEVICE, Host, Hosts, Told};
use serde_json::{Value, json};
pub(crate) use sleeper::{SleeperSetting, sleep};
use std::fmt::Write as _;
use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use subject::{Class, Disk, Ended, Made, Subject};

/// Units flow for so long before something goes wrong, and after all is well again.
const CALM: Duration = Duration::from_secs(2);
/// Longest time to recover.
const PATIENCE: Duration = Duration::from_secs(30);

/// What to try.
#[derive(Args, Debug, Clone)]
pub(crate) struct ReliabilitySetting {
    /// Classes of devices [default: all]
    #[arg(long = "class", value_delimiter = ',')]
    classes: Vec<Class>,
    /// Only faults in whose name one of these is
    #[arg(long = "fault", value_delimiter = ',')]
    faults: Vec<String>,
    /// Transports
    #[arg(long = "transport", value_delimiter = ',', default_values_t = ["quic".to_string(), "tcp".to_string(), "udp".to_string()])]
    transports: Vec<String>,
    /// What the network's losses follow
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// So many at a time, each with hosts of its own. Most of the time of most is waiting
    #[arg(long, default_value_t = NonZeroUsize::MIN)]
    jobs: NonZeroUsize,
    /// The program `netlab` [default: beside this one]
    #[arg(long)]
    netlab: Option<PathBuf>,
    /// The program `lab/vm`, for a host that is a machine of its own and sleeps [default: none does]
    #[arg(long)]
    vm: Option<PathBuf>,
    /// Write the page to this file, Markdown
    #[arg(long)]
    page: Option<PathBuf>,
}

/// One fault, one class, one transport.
#[derive(Debug, Clone)]
pub(crate) struct Cell {
    class: Class,
    fault: Fault,
    transport: String,
}

/// What came of a cell.
#[derive(Debug, Clone)]
enum Outcome {
    /// It cannot happen here: why.
    Impossible(&'static str),
    /// What was to be seen did not come about: why.
    Failed(String),
    Seen(Seen),
}

#[derive(Debug, Clone)]
struct Seen {
    ended: Ended,
    /// From when the cause was gone until something made since was there, each way.
    recovery: Option<Duration>,
    told: Told,
}

impl Seen {
    /// The kernel told of losses, at the device or at the application, and not how many.
    fn is_unnumbered(&self) -> bool {
        self.told.is_unnumbered || self.ended.overruns > 0
    }

    /// Whether it is as promised.
    fn holds(&self, cell: &Cell) -> bool {
        let Ended { tally, stuck, node_losses, .. } = self.ended;
        let is_told = tally.lost <= self.told.dropped() || self.is_unnumbered();
        let is_right = match (cell.fault.takes_the_store(), cell.class.is_state()) {
            // What comes twice then is told to be in doubt.
            (true, _) => tally.disordered == 0 && (tally.repeated == 0 || self.told.dropped() > 0),
            (false, true) => is_told && Tally { lost: 0, ..tally }.is_exact(),
            // What is late is worthless, and what a camera does not take no host can count.
            (false, false) if cell.class == Class::Camera => Tally { lost: 0, ..tally }.is_exact(),
            (false, false) if cell.fault == Fault::KillWorkers(Host::Device) => {
                // What a worker had read was in no store yet.
                is_told && Tally { lost: 0, ..tally }.is_exact()
            }
            (false, false) => tally.is_exact(),
        };
        let node_stays = cell.fault == Fault::Kill(Host::Application) || node_losses == 0;
        is_right
            && node_stays
            && stuck == 0
            && self.told.alive
            && self.recovery.is_some_and(|recovery| recovery <= Duration::from_secs(1))
    }
}

/// Tries all of them, `jobs` at a time; what came of each, in their order.
fn run_cells(cells: &[Cell], setting: &ReliabilitySetting, netlab: &Path) -> Vec<Outcome> {
    let outcomes: Vec<OnceLock<Outcome>> = cells.iter().map(|_| OnceLock::new()).collect();
    let run = |at: usize| {
        let (cell, name) = (&cells[at], format!("outboard-reliability-{}-{at}", std::process::id()));
        let directory = std::env::temp_dir().join(name);
        let outcome = run_cell(cell, setting, netlab, &directory)
            .unwrap_or_else(|error| Outcome::Failed(format!("{error} (seed {})", setting.seed)));
        // A directory that stays is no harm.
        let _ = fs::remove_dir_all(&directory);
        progress(&format!("{}: {}", name_of(cell), words(cell, &outcome)));
        outcomes[at].get_or_init(|| outcome);
    };
    let (alone, beside): (Vec<usize>, Vec<usize>) =
        (0..cells.len()).partition(|at| cells[*at].fault.wants_the_machine());
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
    // Nothing stands in for a transport that is asked for.
    let transport = (!matches!(cell.fault, Fault::NoUdp(_))).then_some(cell.transport.as_str());
    let mut hosts = Hosts::new(transport, netlab, directory, setting.seed)?;
    let made = Made::new(cell.class, directory)?;
    if let (Fault::SuspendApplication(seconds), Some(vm)) = (cell.fault, &setting.vm) {
        return sleeper::look(seconds, &mut hosts, made, cell.class, vm).map(Outcome::Seen);
    }
    let told = hosts.begin(&made.shared, &made.used)?;
    let mut subject = made.begin(&told)?;
    let calm = Instant::now();
    if wait_for(&subject, calm).is_none() {
        return Err("nothing flows, before anything is done".into());
    }
    thread::sleep(CALM);
    let gone = match cell.fault.strike(&mut hosts, &mut subject, &disk)? {
        Ok(gone) => gone,
        Err(why) => return Ok(Outcome::Impossible(why)),
    };
    // What is seldom made is not waited for.
    subject.make_now();
    let recovery = wait_for(&subject, gone).map(|came| came.saturating_duration_since(gone));
    thread::sleep(CALM);
    let ended = subject.end(PATIENCE)?;
    let mut told = hosts.told(DEVICE, cell.class.unit());
    // The kernel keeps nothing for who has not opened yet what was plugged in.
    told.is_unnumbered |= cell.fault == Fault::Unplug && cell.class == Class::Input;
    Ok(Outcome::Seen(Seen { ended, recovery, told }))
}

/// Waits until something made after `since` is there, each way.
fn wait_for(subject: &Subject, since: Instant) -> Option<Instant> {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        if let Some(came) = subject.made_after_came(since) {
            return Some(came);
        }
        thread::sleep(Duration::from_millis(2));
    }
    None
}

/// Tries everything.
pub(crate) fn run(setting: &ReliabilitySetting) -> Result<Value, Failure> {
    if !rustix::process::geteuid().is_root() {
        progress("SKIPPED reliability: it needs root, for network namespaces");
        return Ok(json!([]));
    }
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
                progress(&format!("SKIPPED {fault}: it needs a machine of its own; `--vm lab/vm` boots one"));
            }
            Ok(()) => faults.push(fault),
            Err(why) => progress(&format!("SKIPPED {fault}: {why}")),
        }
    }
    let mut cells = Vec::new();
    for transport in &setting.transports {
        for fault in faults.iter().copied() {
            let befallen = classes.iter().copied().filter(|class| fault.befalls(*class, transport));
            cells.extend(befallen.map(|class| Cell { class, fault, transport: transport.clone() }));
        }
    }
    let outcomes = run_cells(&cells, setting, &netlab);
    let outcomes: Vec<(Cell, Outcome)> = cells.into_iter().zip(outcomes).collect();
    let text = table(&outcomes);
    if let Some(file) = &setting.page {
        fs::write(file, [include_str!("head.md"), &text].concat())
            .map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    }
    print!("{text}");
    match outcomes.iter().filter(|(_, outcome)| matches!(outcome, Outcome::Failed(_))).count() {
        0 => Ok(outcomes.iter().map(|(cell, outcome)| row(cell, outcome)).collect()),
        failed => Err(format!("{failed} of {} could not be looked at", outcomes.len()).into()),
    }
}

fn name_of(cell: &Cell) -> String {
    format!("{:?} over {}, {}", cell.class, cell.transport, cell.fault)
}

fn words(cell: &Cell, outcome: &Outcome) -> String {
    match outcome {
        Outcome::Impossible(why) => format!("not done: {why}"),
        Outcome::Failed(why) => format!("FAILED: {why}"),
        Outcome::Seen(seen) => format!(
            "{}; {}; recovered {}; {} keys stuck; the node was lost {} times; told as dropped: {:?}{}",
            if seen.holds(cell) { "holds" } else { "BROKEN" },
            seen.ended.tally,
            seen.recovery
                .map_or("never".into(), |recovery| format!("after {:.0} ms", recovery.as_secs_f64() * 1e3)),
            seen.ended.stuck,
            seen.ended.node_losses,
            seen.told.reasons,
            if seen.is_unnumbered() { ", and more that the kernel does not count" } else { "" },
        ),
    }
}

fn table(outcomes: &[(Cell, Outcome)]) -> String {
    let mut text = String::from(
        "| fault | class | transport | made | lost | repeated | out of order | torn | told as dropped | keys stuck | recovered, ms | node lost | |\n\
         |---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|\n",
    );
    for (cell, outcome) in outcomes {
        let class = format!("{:?}", cell.class).to_lowercase();
        // Writing to a string cannot fail.
        let _ = write!(text, "| {} | {class} | {} ", cell.fault, cell.transport);
        let _ = match outcome {
            Outcome::Impossible(why) => writeln!(text, "| | | | | | | | | | not done: {why} |"),
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
                let dropped = format!("{}{more}", seen.told.dropped());
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
            "disordered": tally.disordered, "torn": tally.torn, "dropped": seen.told.dropped(),
            "stuck": stuck, "node_losses": node_losses, "holds": seen.holds(cell),
        },
        "unit": "ms", "ours": recovery, "limit": null, "paper": null, "runs": 1, "p50": recovery, "p99": recovery,
    })
}
