//! Every pair in the table of `stages` × what it must stand: undo, empty and large messages, loss, reordering,
//! corruption, both halves made anew. In virtual time; what must hold is what the pair promises, and no more.
//!
//! A case is one message. Every flow has its seed, from which everything else of it is drawn: `--flow SEED` repeats it.

mod flow;
mod killed;
pub(crate) mod messages;
mod subject;

use crate::Failure;
use clap::Args;
use flow::Tally;
use serde_json::{Value, json};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use subject::Subject;

/// What to run.
#[derive(Args, Debug, Clone)]
pub(crate) struct PairsSetting {
    /// Random messages for each undo property; the other columns take a share of it
    #[arg(long, default_value_t = 1_000_000)]
    cases: u64,
    /// Only this pair
    #[arg(long)]
    pair: Option<String>,
    /// What seeds of flows are drawn from
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only the flow with this seed, of each column of the pair
    #[arg(long, requires = "pair")]
    flow: Option<u64>,
    /// Threads
    #[arg(long, default_value_t = 2)]
    threads: usize,
}

/// One thing that every pair must stand.
struct Column {
    name: &'static str,
    /// How many messages of `--cases`, and how few at least.
    cases: fn(u64) -> u64,
    /// Whether it can be tried with this subject, or why not.
    can_run: fn(&Subject) -> Result<(), String>,
    /// Runs one flow; panics with what was broken.
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

/// What came of one pair in one column.
struct Cell {
    tally: Tally,
    /// The first flow that broke it, and how.
    broken: Option<(u64, String)>,
    /// Why it was not run, or not with all options.
    not_tried: Option<String>,
}

/// Prints the table; an error says what was broken.
pub(crate) fn run(setting: &PairsSetting) -> Result<Value, Failure> {
    // What a flow breaks is told in the table, with its seed.
    std::panic::set_hook(Box::new(|_| {}));
    let program = std::env::current_exe()?.with_file_name("outboard");
    if !program.is_file() {
        return Err(format!("{} is not built: cargo build -p outboard", program.display()).into());
    }
    runtime::use_program(program);
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
    println!("\n{LEGEND}\n\nSettings, taken in turn:\n");
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
The number is that of messages sent in flows that all held. Undone means: what leaves the sink half is what entered the
source half, in order, but for what the pair promises: `dropped` is dropped and counted by it; `changed` pairs change what messages say,
so that here they must only neither panic nor stop, and their own tests look at what they make. On a link that loses, reorders or corrupts, and when
both halves are made anew with messages of the old ones on their way, nothing wrong and nothing twice may come out; `refused`
messages ended in a counted error. After a restart, and where nothing is lost, all that is sent comes. Corruption
flips a bit of every fiftieth message between the halves, below which a session's seal would have refused it: `altered` came out all the
same (none may of `encrypt`), and no flow may stop: what is sent whole afterwards comes. Process killed: the halves
run in confined processes of their own, of which one is killed up to six times in a flow of 300 messages, and talk to each other; what
comes must be what the pair makes of the messages in one process, none lost, repeated or out of order but as it promises (of `average`: all
the motion, for the periods are the clock's).";

/// For what is run where there is no process.
fn in_process(subject: &Subject) -> Result<(), String> {
    match subject.is_program {
        true => Err("a program is a process".into()),
        false => Ok(()),
    }
}

/// Runs flows of one column until it has its cases or one breaks.
fn fill(setting: &PairsSetting, subjects: &[Subject], number: usize) -> Cell {
    let column = &COLUMNS[number];
    let not_tried = subjects.iter().find_map(|subject| (column.can_run)(subject).err());
    let subjects: Vec<&Subject> =
        subjects.iter().filter(|subject| (column.can_run)(subject).is_ok()).collect();
    let wanted = if subjects.is_empty() { 0 } else { (column.cases)(setting.cases) };
    let (next, done, is_broken) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let cell = Mutex::new(Cell { tally: Tally::default(), broken: None, not_tried });
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

/// Seeds of flows and columns differ in every bit.
fn flow_seed(seed: u64, column: u64, flow: u64) -> u64 {
    netsim::Rng::new(seed.wrapping_add(flow << 8), column).draw()
}

fn message_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked");
    text.chars().take(600).collect()
}

impl Cell {
    fn text(&self) -> String {
        if let Some((seed, _)) = &self.broken {
            return format!("**broken**, flow {seed}");
        }
        let tally = &self.tally;
        if let Some(reason) = self.not_tried.as_ref().filter(|_| tally.sent == 0) {
            return format!("not tried: {reason}");
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
            "not_tried": self.not_tried,
            "broken": self.broken.as_ref().map(|(seed, problem)| json!({ "flow": seed, "problem": problem })),
        })
    }
}
