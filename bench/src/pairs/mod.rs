//! Every pair of `stages` × undo, empty and large messages, loss, reordering, corruption and restart, in virtual time. A flow
//! must keep the pair's promises.
//!
//! A case is one message. All choices of a flow come from its seed: `--flow SEED` repeats it.

mod flow;
mod killed;
pub(crate) mod messages;
mod subject;

use crate::programs::use_outboard;
use crate::setting::Failure;
use clap::Args;
use flow::Tally;
use serde_json::{Value, json};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use subject::Subject;

/// The settings of `pairs`.
#[derive(Args, Debug, Clone)]
pub(crate) struct PairsSetting {
    /// Random messages for `undo`; the other columns have a share of it
    #[arg(long, default_value_t = 1_000_000)]
    cases: u64,
    /// Only this pair
    #[arg(long)]
    pair: Option<String>,
    /// Seed for the seeds of flows
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only the flow with this seed in each column of the pair
    #[arg(long, requires = "pair")]
    flow: Option<u64>,
    /// Threads
    #[arg(long, default_value_t = 2)]
    threads: usize,
}

/// One property of all pairs.
struct Column {
    name: &'static str,
    /// The number of messages for `--cases`.
    cases: fn(u64) -> u64,
    /// Returns the reason if the property does not apply to a subject.
    can_run: fn(&Subject) -> Result<(), String>,
    /// Runs one flow. A broken property panics.
    run: fn(&Subject, u64) -> Tally,
}

static COLUMNS: [Column; 8] = [
    Column { name: "undo", cases: |all| all, can_run: in_process, run: flow::undo },
    Column { name: "0 bytes", cases: |all| (all / 100).max(100), can_run: in_process, run: flow::empty },
    Column {
        name: "16 MiB",
        cases: |all| (all / 10_000).clamp(2, 100),
        can_run: in_process,
        run: flow::large,
    },
    Column { name: "loss 5 %", cases: |all| (all / 20).max(200), can_run: in_process, run: flow::loss },
    Column {
        name: "reordering",
        cases: |all| (all / 20).max(200),
        can_run: in_process,
        run: flow::reordering,
    },
    Column {
        name: "corruption",
        cases: |all| (all / 20).max(200),
        can_run: in_process,
        run: flow::corruption,
    },
    Column { name: "restart", cases: |all| (all / 20).max(200), can_run: in_process, run: flow::restart },
    Column {
        name: "process killed",
        cases: |all| (all / 100).clamp(3000, 12_000),
        can_run: killed::can_run,
        run: killed::killed,
    },
];

/// The result of one pair in one column.
struct Cell {
    tally: Tally,
    /// The first broken flow and the problem.
    broken: Option<(u64, String)>,
    /// The reason if the property does not apply to some options.
    not_run: Option<String>,
}

/// Runs `pairs`. A broken property is an error.
pub(crate) fn run(setting: &PairsSetting) -> Result<Value, Failure> {
    // The table has the problem of a broken flow with its seed.
    std::panic::set_hook(Box::new(|_| {}));
    use_outboard()?;
    let named = |pair: &&&dyn contract::Pair| setting.pair.as_deref().is_none_or(|name| name == pair.name());
    let pairs: Vec<_> = stages::PAIRS.iter().filter(named).collect();
    if pairs.is_empty() {
        return Err("there is no pair of this name".into());
    }
    println!("| pair | {} |", COLUMNS.each_ref().map(|column| column.name).join(" | "));
    println!("|---|{}", "---|".repeat(COLUMNS.len()));
    let (mut rows, mut broken) = (Vec::new(), Vec::new());
    let mut settings = Vec::new();
    for pair in pairs {
        let subjects = match subject::subjects(*pair) {
            Ok(subjects) => subjects,
            Err(problem) => {
                println!("| {} | {problem} |{}", pair.name(), " |".repeat(COLUMNS.len() - 1));
                rows.push(json!({ "pair": pair.name(), "not_run": problem }));
                continue;
            }
        };
        let cells: Vec<Cell> =
            COLUMNS.iter().enumerate().map(|(number, _)| fill(setting, &subjects, number)).collect();
        println!("| {} | {} |", pair.name(), cells.iter().map(Cell::text).collect::<Vec<_>>().join(" | "));
        let columns = COLUMNS.iter().zip(&cells);
        let figures = columns.clone().map(|(column, cell)| (column.name.to_string(), cell.figures()));
        rows.push(json!({ "pair": pair.name(), "columns": figures.collect::<serde_json::Map<_, _>>() }));
        for (column, cell) in columns {
            if let Some((seed, problem)) = &cell.broken {
                broken.push(format!("{}, {}, flow {seed}: {problem}", pair.name(), column.name));
            }
        }
        settings.push(format!("`{}`: {}", pair.name(), subject::describe(&subjects)));
    }
    println!("\n{LEGEND}\n\nOptions, taken in turn:\n");
    settings.iter().for_each(|line| println!("- {line}"));
    match broken.is_empty() {
        true => Ok(json!({ "cases": setting.cases, "seed": setting.seed, "pairs": rows })),
        false => Err(format!(
            "{} broken; `outboard-bench pairs --pair NAME --flow SEED` repeats one:\n{}",
            broken.len(),
            broken.join("\n")
        )
        .into()),
    }
}

const LEGEND: &str = "\
Each cell has the number of sent messages; all flows of a cell without **broken** held. `undo`: the sink half's output is the source
half's input in order, up to the pair's promises. `dropped` messages are dropped and counted by the pair. Pairs with `changed` change
bodies: here they must neither panic nor stop. Loss, reordering, corruption and restart (both halves restart with old messages on their
way): no received message may be wrong or repeated; `refused` messages ended in a counted error. After a restart, and without loss,
every message must arrive. `corruption` flips a bit of every fiftieth message between the halves, behind the session's seal: `altered`
messages were received even so (`encrypt` may have none), and intact messages must arrive afterwards. `process killed`: the halves run in
sandboxed processes, one of which is killed up to six times in a flow of 300 messages; the received messages must be those of an
undisturbed run, up to the promises (for `average`: the total motion, since its periods depend on the clock).";

/// Returns the reason if a subject cannot run in this process.
fn in_process(subject: &Subject) -> Result<(), String> {
    match subject.is_program {
        true => Err("the halves are programs".into()),
        false => Ok(()),
    }
}

/// Runs flows of one column until it has its cases or one is broken.
fn fill(setting: &PairsSetting, subjects: &[Subject], number: usize) -> Cell {
    let column = &COLUMNS[number];
    let not_run = subjects.iter().find_map(|subject| (column.can_run)(subject).err());
    let subjects: Vec<&Subject> =
        subjects.iter().filter(|subject| (column.can_run)(subject).is_ok()).collect();
    let wanted = if subjects.is_empty() { 0 } else { (column.cases)(setting.cases) };
    let (next, done, is_broken) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let cell = Mutex::new(Cell { tally: Tally::default(), broken: None, not_run });
    let work = || {
        while done.load(Ordering::Relaxed) < wanted && !is_broken.load(Ordering::Relaxed) {
            let flow = next.fetch_add(1, Ordering::Relaxed);
            if setting.flow.is_some() && flow > 0 {
                return;
            }
            let seed = setting.flow.unwrap_or_else(|| flow_seed(setting.seed, number as u64, flow));
            let subject = subjects[(seed % subjects.len() as u64) as usize];
            let result = catch_unwind(AssertUnwindSafe(|| (column.run)(subject, seed)));
            let Ok(mut cell) = cell.lock() else { return };
            match result {
                Ok(tally) => {
                    done.fetch_add(tally.sent, Ordering::Relaxed);
                    cell.tally.add(&tally);
                }
                Err(panic) => {
                    is_broken.store(true, Ordering::Relaxed);
                    let problem = format!("{}: {}", subject.options_text(), message_of(&*panic));
                    cell.broken.get_or_insert((seed, problem));
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..setting.threads.max(1) {
            scope.spawn(work);
        }
    });
    cell.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Returns the seed of a flow, independent of those of other flows and columns.
fn flow_seed(seed: u64, column: u64, flow: u64) -> u64 {
    netsim::Rng::new(seed.wrapping_add(flow << 8), column).draw()
}

fn message_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message");
    text.chars().take(600).collect()
}

impl Cell {
    fn text(&self) -> String {
        if let Some((seed, _)) = &self.broken {
            return format!("**broken**, flow {seed}");
        }
        let tally = &self.tally;
        if let Some(reason) = self.not_run.as_ref().filter(|_| tally.sent == 0) {
            return format!("not run: {reason}");
        }
        let notes = [
            ("changed", u64::from(tally.is_changed)),
            ("dropped", tally.dropped),
            ("refused", tally.refused),
            ("altered", tally.altered),
        ];
        let notes: Vec<String> = notes
            .iter()
            .filter(|(_, count)| *count > 0)
            .map(|(name, count)| if *name == "changed" { (*name).into() } else { format!("{count} {name}") })
            .collect();
        match notes.is_empty() {
            true => tally.sent.to_string(),
            false => format!("{} ({})", tally.sent, notes.join(", ")),
        }
    }

    fn figures(&self) -> Value {
        let Tally { sent, received, dropped, refused, altered, .. } = self.tally;
        json!({
            "held": self.broken.is_none(),
            "sent": sent,
            "received": received,
            "dropped": dropped,
            "refused": refused,
            "altered": altered,
            "not_run": self.not_run,
            "broken": self.broken.as_ref().map(|(seed, problem)| json!({ "flow": seed, "problem": problem })),
        })
    }
}
