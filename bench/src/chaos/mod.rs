//! Many faults at once: random devices, pipelines and transports, and sequences of faults that may overlap, on two hosts
//! that run the program as a user does. Everything of a run is drawn from its seed ([`draw`]); what is done when follows it as
//! near as real time permits ([`storm`]). Devices, hosts and counts are those of `reliability`.

mod draw;
mod storm;

use crate::Failure;
use crate::chapter6::{beside, progress};
use crate::reliability::count::Tally;
use crate::reliability::hosts::{Host, Told};
use crate::reliability::subject::{Class, Ended};
use clap::Args;
use draw::Case;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};
use storm::{Held, KEEP, Storm, name};

/// Units flow for so long before something goes wrong, and after all is well again.
const CALM: Duration = Duration::from_secs(1);
/// Longest time to recover, and for all that waits to come.
const PATIENCE: Duration = Duration::from_secs(30);
/// Of a run that took longer to recover, what was done and told is shown, too.
const SLOW: Duration = Duration::from_secs(1);
/// Longest time in which what was opened for a fault is closed again.
const CLOSED: Duration = Duration::from_secs(5);
/// What hosts say of a message that a worker was handing over when it was killed.
const IN_DOUBT: &str = "in doubt when the worker ended";
/// A host that is told to end does so within ten seconds.
const END: Duration = Duration::from_secs(12);

/// What to try.
#[derive(Args, Debug, Clone)]
pub(crate) struct ChaosSetting {
    /// Seed of the first run; that of the next is one more
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Faults begin within so many seconds
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// Runs
    #[arg(long, default_value_t = 1)]
    runs: u64,
    /// The program `netlab` [default: beside this one]
    #[arg(long)]
    netlab: Option<PathBuf>,
    /// Put what came of them into this file, Markdown, as its section of this name
    #[arg(long)]
    page: Option<PathBuf>,
}

/// What came of a device.
struct Seen {
    class: Class,
    ended: Ended,
    told: Told,
    recovery: Option<Duration>,
}

/// What came of a run.
#[derive(Default)]
struct Outcome {
    faults: BTreeMap<&'static str, u64>,
    answers: BTreeMap<String, u64>,
    seen: Vec<Seen>,
    /// Whether what hosts alone had in memory went with them.
    takes_the_store: bool,
    /// What is not as promised.
    broken: Vec<String>,
}

impl Outcome {
    fn is_slow(&self) -> bool {
        self.seen.iter().any(|seen| seen.recovery.is_some_and(|recovery| recovery > SLOW))
    }
}

impl Seen {
    fn judge(&self, case: &Case) -> Result<(), String> {
        let Ended { tally, stuck, node_losses, gaps, .. } = self.ended;
        let dropped = self.told.dropped();
        let is_right = if case.takes_the_store() {
            tally.disordered == 0 && (tally.repeated == 0 || dropped > 0)
        } else if case.kills() {
            // What a worker had read was in no store yet; what it was writing may have been written.
            let in_doubt = self.told.reasons.get(IN_DOUBT).copied().unwrap_or_default();
            gaps <= dropped
                && tally.repeated <= in_doubt
                && Tally { lost: 0, repeated: 0, ..tally }.is_exact()
        } else {
            tally.is_exact() && dropped == 0
        };
        match () {
            () if !is_right => {
                Err(format!("{tally}, in {gaps} places; told as dropped: {:?}", self.told.reasons))
            }
            () if stuck > 0 => Err(format!("{stuck} keys are stuck")),
            () if node_losses > 0 && !case.takes_the_store() => {
                Err(format!("the node was lost {node_losses} times"))
            }
            () if !self.told.alive => Err("a host has ended".into()),
            () if self.recovery.is_none() => Err("nothing made since comes".into()),
            () => Ok(()),
        }
    }
}

/// Waits until something made after `since` is there, of every device; how long it took each.
fn recoveries(storm: &Storm, since: Instant) -> Vec<Option<Duration>> {
    let begun = Instant::now();
    loop {
        let came: Vec<_> = storm.subjects.iter().map(|subject| subject.made_after_came(since)).collect();
        if came.iter().all(Option::is_some) || begun.elapsed() > PATIENCE {
            let took = |came: Instant| came.saturating_duration_since(since);
            return came.into_iter().map(|came| came.map(took)).collect();
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// Of what is wrong before the storm, an error tells. What was done is in `log`.
fn run_case(
    case: &Case,
    netlab: &Path,
    directory: &Path,
    seed: u64,
    log: &mut Vec<String>,
) -> Result<Outcome, Failure> {
    let mut storm = Storm::new(case, netlab, directory, seed)?;
    if recoveries(&storm, Instant::now()).contains(&None) {
        log.extend(Host::BOTH.into_iter().flat_map(|host| storm.hosts.log(host, storm.begun)));
        return Err("nothing flows, before anything is done".into());
    }
    thread::sleep(CALM);
    let before = Host::BOTH.map(|host| storm.held(host));
    let raged = storm.rage(case);
    log.append(&mut storm.log);
    let mut outcome =
        Outcome { faults: raged?, takes_the_store: case.takes_the_store(), ..Outcome::default() };
    let since = storm.lift()?;
    let recoveries = recoveries(&storm, since);
    if recoveries.contains(&None) {
        outcome.broken.push(format!("recovered: {recoveries:?}"));
    }
    outcome.broken.append(&mut storm.change_back()?);
    thread::sleep(CALM);
    look(&mut storm, &before, &mut outcome);
    let subjects = std::mem::take(&mut storm.subjects);
    for (device, (mut subject, recovery)) in subjects.into_iter().zip(recoveries).enumerate() {
        let class = subject.class();
        let ended = subject.end(PATIENCE)?;
        // Figures are told once a second.
        thread::sleep(CALM);
        let told = storm.hosts.told(&name(device), class.unit());
        let seen = Seen { class, ended, told, recovery };
        if let Err(problem) = seen.judge(case) {
            outcome.broken.push(format!("{} ({class:?}): {problem}", name(device)));
        }
        outcome.seen.push(seen);
    }
    if !outcome.broken.is_empty() || outcome.is_slow() {
        log.extend(Host::BOTH.into_iter().flat_map(|host| storm.hosts.log(host, storm.begun)));
    }
    outcome.answers = std::mem::take(&mut storm.answers);
    if outcome.answers.contains_key("no answer") {
        outcome.broken.push("who asked for another pipeline got no answer".into());
    }
    end(&mut storm, &mut outcome)?;
    Ok(outcome)
}

/// Whether hosts have no more open than they had. The session of an `attach` that was killed is kept for it to come back.
fn look(storm: &mut Storm, before: &[Held; 2], outcome: &mut Outcome) {
    let begun = Instant::now();
    let patience = if outcome.takes_the_store { KEEP + CLOSED } else { CLOSED };
    for (host, before) in Host::BOTH.into_iter().zip(before) {
        let mut more = storm.held(host).more_than(before);
        while !more.is_empty() && begun.elapsed() < patience {
            thread::sleep(Duration::from_millis(50));
            more = storm.held(host).more_than(before);
        }
        if !more.is_empty() {
            outcome.broken.push(format!("{host:?} has more open: {}", more.join("; ")));
        }
    }
}

/// Has both hosts end, and looks at what they leave.
fn end(storm: &mut Storm, outcome: &mut Outcome) -> Result<(), Failure> {
    let processes = Host::BOTH.map(|host| storm.hosts.processes(host)).concat();
    for host in Host::BOTH.into_iter().rev() {
        let end = storm.hosts.stop(host, END)?;
        if end.is_none_or(|status| !status.success()) {
            outcome.broken.push(format!("{host:?}, told to end: {end:?}"));
        }
    }
    let left = processes.iter().filter(|process| Path::new(&format!("/proc/{process}")).exists()).count();
    if left > 0 {
        outcome.broken.push(format!("{left} processes outlive their hosts"));
    }
    Ok(())
}

/// Tries as many as are asked for.
pub(crate) fn run(setting: &ChaosSetting) -> Result<Value, Failure> {
    if !rustix::process::geteuid().is_root() {
        progress("SKIPPED chaos: it needs root, for network namespaces");
        return Ok(json!([]));
    }
    let netlab = setting.netlab.clone().map_or_else(|| beside("netlab"), Ok)?;
    let classes: Vec<Class> = [Class::Serial, Class::File, Class::Video, Class::Input]
        .into_iter()
        .filter(|class| class.is_possible().is_ok())
        .collect();
    let mut outcomes = Vec::new();
    for seed in setting.seed..setting.seed + setting.runs {
        let case = Case::draw(seed, Duration::from_secs(setting.seconds), &classes)?;
        progress(&headline(seed, &case));
        let directory = std::env::temp_dir().join(format!("outboard-chaos-{}-{seed}", std::process::id()));
        let mut log = Vec::new();
        let outcome = run_case(&case, &netlab, &directory, seed, &mut log).unwrap_or_else(|error| {
            let takes_the_store = case.takes_the_store();
            Outcome { broken: vec![error.to_string()], takes_the_store, ..Outcome::default() }
        });
        progress(&words(&outcome));
        if outcome.is_slow() || !outcome.broken.is_empty() {
            eprintln!("{}", log.join("\n"));
        }
        if outcome.broken.is_empty() {
            // A directory that stays is no harm.
            let _ = fs::remove_dir_all(&directory);
        } else {
            progress(&format!(
                "BROKEN; logs: {}; again: outboard-bench chaos --seed {seed} --seconds {}",
                directory.display(),
                setting.seconds
            ));
        }
        outcomes.push((seed, outcome));
    }
    let text = table(&outcomes, setting.seconds);
    print!("{text}");
    if let Some(page) = &setting.page {
        put(page, &text)?;
    }
    let broken: Vec<u64> =
        outcomes.iter().filter(|(_, outcome)| !outcome.broken.is_empty()).map(|(seed, _)| *seed).collect();
    match broken.is_empty() {
        true => Ok(outcomes.iter().map(|(seed, outcome)| row(*seed, outcome)).collect()),
        false => Err(format!("broken: seeds {broken:?}").into()),
    }
}

fn headline(seed: u64, case: &Case) -> String {
    let flow = |flow: &draw::Flow| format!("{:?} by {:?}", flow.class, flow.via);
    let flows: Vec<_> = case.flows.iter().map(flow).collect();
    let faults = case.steps.iter().filter(|step| step.act.kind().is_some()).count();
    let transport = case.transport.unwrap_or("any transport");
    format!("seed {seed}: {transport}, limits {:?}, {faults} faults: {}", case.limits, flows.join("; "))
}

fn words(outcome: &Outcome) -> String {
    let seen = |seen: &Seen| {
        format!(
            "{:?}: {}, told {:?}, recovered {:?}",
            seen.class, seen.ended.tally, seen.told.reasons, seen.recovery
        )
    };
    let seen: Vec<_> = outcome.seen.iter().map(seen).collect();
    let Outcome { answers, broken, .. } = outcome;
    format!(
        "{}; answers {answers:?}{}{}",
        seen.join("; "),
        if broken.is_empty() { "" } else { "\n  " },
        broken.join("\n  ")
    )
}

/// Title of what is written.
const TITLE: &str = "## Many faults at once\n";

fn table(outcomes: &[(u64, Outcome)], seconds: u64) -> String {
    let first = outcomes.first().map_or(0, |(seed, _)| *seed);
    let mut text = format!(
        "{TITLE}\n`outboard-bench chaos --seed {first} --runs {} --seconds {seconds}`: one to three devices (serial, file, video) through \
         random pipelines and transports, with faults at random moments. A host may have no more open than before {} s after \
         they end; where brokers are killed or begun anew, {} s, as sessions are kept for {} s there (`keep`).\n\n\
         | runs | | made | lost | repeated | out of order | torn | worst recovery, ms | broken |\n\
         |---|---:|---:|---:|---:|---:|---:|---:|---:|\n",
        outcomes.len(),
        CLOSED.as_secs(),
        (KEEP + CLOSED).as_secs(),
        KEEP.as_secs()
    );
    for (takes_the_store, what) in
        [(false, "no broker begun anew"), (true, "brokers killed or begun anew, too")]
    {
        let of = || outcomes.iter().filter(|(_, outcome)| outcome.takes_the_store == takes_the_store);
        let seen = || of().flat_map(|(_, outcome)| &outcome.seen);
        let Tally { made, lost, repeated, disordered, torn } =
            seen().fold(Tally::default(), |sum, seen| sum.and(seen.ended.tally));
        let worst = seen().filter_map(|seen| seen.recovery).max().unwrap_or_default().as_secs_f64() * 1e3;
        let broken = of().filter(|(_, outcome)| !outcome.broken.is_empty()).count();
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "| {what} | {} | {made} | {lost} | {repeated} | {disordered} | {torn} | {worst:.0} | {broken} |",
            of().count()
        );
    }
    let mut faults = BTreeMap::<_, u64>::new();
    for (kind, count) in outcomes.iter().flat_map(|(_, outcome)| &outcome.faults) {
        *faults.entry(kind).or_default() += count;
    }
    let faults: Vec<_> = faults.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    let _ = writeln!(text, "\nFaults: {}.", faults.join(", "));
    text
}

/// Puts the section into a page, in place of what it was, or at its end.
fn put(page: &Path, section: &str) -> Result<(), Failure> {
    let text =
        fs::read_to_string(page).map_err(|error| format!("cannot read {}: {error}", page.display()))?;
    let (before, after) = text.split_once(TITLE).unwrap_or((text.as_str(), ""));
    let after = after.split_once("\n## ").map(|(_, after)| format!("\n## {after}")).unwrap_or_default();
    Ok(fs::write(page, [before.trim_end(), "\n\n", section, &after].concat())?)
}

fn row(seed: u64, outcome: &Outcome) -> Value {
    let tally = outcome.seen.iter().fold(Tally::default(), |sum, seen| sum.and(seen.ended.tally));
    let worst =
        outcome.seen.iter().filter_map(|seen| seen.recovery).max().map(|worst| worst.as_secs_f64() * 1e3);
    json!({
        "experiment": "chaos",
        "params": {
            "seed": seed, "faults": outcome.faults, "made": tally.made, "lost": tally.lost,
            "repeated": tally.repeated, "disordered": tally.disordered, "torn": tally.torn,
            "takes_the_store": outcome.takes_the_store,
        },
        "unit": "ms", "ours": worst, "limit": null, "paper": null, "runs": 1, "p50": worst, "p99": worst,
    })
}
