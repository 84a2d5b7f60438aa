//! Many faults at once: random devices, pipelines and transports, and faults that may overlap, on two hosts that run the
//! program as a user does. All choices of a run come from its seed ([`draw`]); [`storm`] executes them in real time. Devices,
//! hosts and counts are those of `reliability`.

mod draw;
mod storm;

use crate::programs::{beside, progress};
use crate::provenance::Provenance;
use crate::reliability::count::Tally;
use crate::reliability::hosts::{Host, Reported};
use crate::reliability::subject::{Class, Ended};
use crate::setting::Failure;
use clap::Args;
use draw::{Case, Flow};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};
use storm::{KEEP, OpenCounts, Storm, name};

/// The undisturbed flow before the faults and after the recovery.
const CALM: Duration = Duration::from_secs(1);
/// The longest wait for recovery and for the last unit.
const PATIENCE: Duration = Duration::from_secs(30);
/// The log of a run is printed if its recovery took longer.
const SLOW: Duration = Duration::from_secs(1);
/// The longest time until descriptors and processes of a fault are closed.
const CLOSED: Duration = Duration::from_secs(5);
/// Longest time until a session that fell back, with a failed probe, and fell back again tries the first transport again.
const FALLEN_BACK: Duration = Duration::from_secs(45);
/// The hosts' reason for a message that a killed worker may have delivered.
const IN_DOUBT: &str = "in doubt when the worker ended";
/// A terminated host exits within ten seconds.
const END: Duration = Duration::from_secs(12);

/// The settings of `chaos`.
#[derive(Args, Debug, Clone)]
pub(crate) struct ChaosSetting {
    /// Seed of the first run; each further run adds 1
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Seconds in which faults start
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// Runs
    #[arg(long, default_value_t = 1)]
    runs: u64,
    /// The program `netlab` [default: beside this one]
    #[arg(long)]
    netlab: Option<PathBuf>,
    /// Write the result into this page, in place of its section of this name
    #[arg(long)]
    page: Option<PathBuf>,
}

/// The result of a device.
struct Seen {
    class: Class,
    ended: Ended,
    reported: Reported,
    recovery: Option<Duration>,
}

/// The result of a run.
#[derive(Default)]
struct Outcome {
    faults: BTreeMap<&'static str, u64>,
    answers: BTreeMap<String, u64>,
    seen: Vec<Seen>,
    /// True if restarts lost messages in memory.
    loses_the_store: bool,
    /// Broken promises.
    broken: Vec<String>,
}

impl Outcome {
    fn is_slow(&self) -> bool {
        self.seen.iter().any(|seen| seen.recovery.is_some_and(|recovery| recovery > SLOW))
    }
}

impl Seen {
    fn judge(&self, case: &Case, flow: &Flow) -> Result<(), String> {
        let Ended { tally, stuck, node_losses, gaps, .. } = self.ended;
        let dropped = self.reported.dropped();
        let is_right = if case.loses_the_store() {
            tally.disordered == 0 && (tally.repeated == 0 || dropped > 0)
        } else if case.kills() {
            // A killed worker at the source loses the messages that it has read. One at the sink loses none, and may or may not
            // have written its last one.
            let in_doubt = self.reported.reasons.get(IN_DOUBT).copied().unwrap_or_default();
            let may_lose = case.kills_source(flow);
            (may_lose || tally.lost == 0)
                && gaps <= dropped
                && tally.repeated <= in_doubt
                && Tally { lost: 0, repeated: 0, ..tally }.is_exact()
        } else {
            tally.is_exact() && dropped == 0
        };
        match () {
            () if !is_right => {
                Err(format!("{tally}, in {gaps} gaps; reported as lost: {:?}", self.reported.reasons))
            }
            () if stuck > 0 => Err(format!("{stuck} keys are stuck")),
            () if node_losses > 0 && !case.loses_the_store() => {
                Err(format!("the node was lost {node_losses} times"))
            }
            () if !self.reported.alive => Err("a host has exited".into()),
            () if self.recovery.is_none() => Err("no new unit arrives".into()),
            () => Ok(()),
        }
    }
}

/// Waits until a unit created after `since` has arrived from every device. Returns the times of all devices.
fn recoveries(storm: &Storm, since: Instant) -> Vec<Option<Duration>> {
    let begun = Instant::now();
    loop {
        let arrivals: Vec<_> = storm.subjects.iter().map(|subject| subject.made_after_came(since)).collect();
        if arrivals.iter().all(Option::is_some) || begun.elapsed() > PATIENCE {
            let took = |arrival: Instant| arrival.saturating_duration_since(since);
            return arrivals.into_iter().map(|arrival| arrival.map(took)).collect();
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// Runs one case and writes its actions to `log`. A failure before the faults is an error.
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
        return Err("no unit arrives before the faults".into());
    }
    thread::sleep(CALM);
    let before = Host::BOTH.map(|host| storm.open_counts(host));
    let faults = storm.run(case);
    log.append(&mut storm.log);
    let mut outcome =
        Outcome { faults: faults?, loses_the_store: case.loses_the_store(), ..Outcome::default() };
    let since = storm.restore()?;
    let recoveries = recoveries(&storm, since);
    if recoveries.contains(&None) {
        outcome.broken.push(format!("recovered: {recoveries:?}"));
    }
    outcome.broken.append(&mut storm.restore_pipelines()?);
    thread::sleep(CALM);
    check_open(&mut storm, &before, &mut outcome);
    let subjects = std::mem::take(&mut storm.subjects);
    for (device, (mut subject, recovery)) in subjects.into_iter().zip(recoveries).enumerate() {
        let class = subject.class();
        let ended = subject.end(PATIENCE)?;
        // Statistics are reported once a second.
        thread::sleep(CALM);
        let reported = storm.hosts.reported(&name(device), class.unit());
        let seen = Seen { class, ended, reported, recovery };
        if let Err(problem) = seen.judge(case, &case.flows[device]) {
            outcome.broken.push(format!("{} ({class:?}): {problem}", name(device)));
        }
        outcome.seen.push(seen);
    }
    if !outcome.broken.is_empty() || outcome.is_slow() {
        log.extend(Host::BOTH.into_iter().flat_map(|host| storm.hosts.log(host, storm.begun)));
    }
    outcome.answers = std::mem::take(&mut storm.answers);
    if outcome.answers.contains_key("no answer") {
        outcome.broken.push("a request for another pipeline got no answer".into());
    }
    end(&mut storm, &mut outcome)?;
    Ok(outcome)
}

/// Checks that the hosts have no more open than before. The session of a killed `attach` stays until it resumes or times
/// out.
fn check_open(storm: &mut Storm, before: &[OpenCounts; 2], outcome: &mut Outcome) {
    let begun = Instant::now();
    let mut patience = if outcome.loses_the_store { KEEP + CLOSED } else { CLOSED };
    if storm.has_fallen_back() {
        patience = patience.max(FALLEN_BACK);
    }
    for (host, before) in Host::BOTH.into_iter().zip(before) {
        let mut more = storm.open_counts(host).more_than(before);
        while !more.is_empty() && begun.elapsed() < patience {
            thread::sleep(Duration::from_millis(50));
            more = storm.open_counts(host).more_than(before);
        }
        if !more.is_empty() {
            outcome.broken.push(format!("{host:?} has more open: {}", more.join("; ")));
        }
    }
}

/// Terminates both hosts and checks for remaining processes.
fn end(storm: &mut Storm, outcome: &mut Outcome) -> Result<(), Failure> {
    let processes = Host::BOTH.map(|host| storm.hosts.processes(host)).concat();
    for host in Host::BOTH.into_iter().rev() {
        let end = storm.hosts.stop(host, END)?;
        if end.is_none_or(|status| !status.success()) {
            outcome.broken.push(format!("{host:?}, terminated: {end:?}"));
        }
    }
    let left = processes.iter().filter(|process| Path::new(&format!("/proc/{process}")).exists()).count();
    if left > 0 {
        outcome.broken.push(format!("{left} processes outlive their hosts"));
    }
    Ok(())
}

/// Runs `chaos`.
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
    let provenance = Provenance::of_this_run();
    let mut outcomes = Vec::new();
    for seed in setting.seed..setting.seed + setting.runs {
        let case = Case::draw(seed, Duration::from_secs(setting.seconds), &classes)?;
        progress(&headline(seed, &case));
        let directory = std::env::temp_dir().join(format!("outboard-chaos-{}-{seed}", std::process::id()));
        let mut log = Vec::new();
        let outcome = run_case(&case, &netlab, &directory, seed, &mut log).unwrap_or_else(|error| {
            let loses_the_store = case.loses_the_store();
            Outcome { broken: vec![error.to_string()], loses_the_store, ..Outcome::default() }
        });
        progress(&words(&outcome));
        if outcome.is_slow() || !outcome.broken.is_empty() {
            eprintln!("{}", log.join("\n"));
        }
        if outcome.broken.is_empty() {
            // A directory that stays does no harm.
            let _ = fs::remove_dir_all(&directory);
        } else {
            progress(&format!(
                "BROKEN: {}; logs: {}; repeat with: outboard-bench chaos --seed {seed} --seconds {}",
                outcome.broken.join("; "),
                directory.display(),
                setting.seconds
            ));
        }
        outcomes.push((seed, outcome));
    }
    let text = table(&outcomes, &provenance);
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
    let flow = |flow: &Flow| format!("{:?} by {:?}", flow.class, flow.via);
    let flows: Vec<_> = case.flows.iter().map(flow).collect();
    let faults = case.steps.iter().filter(|step| step.act.kind().is_some()).count();
    let transport = case.transport.unwrap_or("default transport");
    format!("seed {seed}: {transport}, limits {:?}, {faults} faults: {}", case.limits, flows.join("; "))
}

fn words(outcome: &Outcome) -> String {
    let seen = |seen: &Seen| {
        format!(
            "{:?}: {}, reported {:?}, recovered {:?}",
            seen.class, seen.ended.tally, seen.reported.reasons, seen.recovery
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

/// Title of the section.
const TITLE: &str = "## Many faults at once\n";

fn table(outcomes: &[(u64, Outcome)], provenance: &Provenance) -> String {
    let mut text = format!(
        "{TITLE}\n{provenance}\n\nOne to three devices (serial, file, video, and a keyboard where the kernel has uinput) with random \
         pipelines and transports, and faults at random times. {} s after the last fault a host has no more open than before; \
         with restarted brokers after {} s, because they keep sessions for {} s (`keep`). Messages of killed workers may be \
         lost if the hosts report them; messages of restarted brokers may be lost.\n\n\
         | brokers | runs | created | lost | repeated | out of order | torn | worst recovery, ms | broken runs |\n\
         |---|---:|---:|---:|---:|---:|---:|---:|---:|\n",
        CLOSED.as_secs(),
        (KEEP + CLOSED).as_secs(),
        KEEP.as_secs()
    );
    for (loses_the_store, name) in [(false, "not restarted"), (true, "killed or restarted")] {
        let of = || outcomes.iter().filter(|(_, outcome)| outcome.loses_the_store == loses_the_store);
        let seen = || of().flat_map(|(_, outcome)| &outcome.seen);
        let Tally { made, lost, repeated, disordered, torn } =
            seen().fold(Tally::default(), |sum, seen| sum.and(seen.ended.tally));
        let worst = seen().filter_map(|seen| seen.recovery).max().unwrap_or_default().as_secs_f64() * 1e3;
        let broken = of().filter(|(_, outcome)| !outcome.broken.is_empty()).count();
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "| {name} | {} | {made} | {lost} | {repeated} | {disordered} | {torn} | {worst:.0} | {broken} |",
            of().count()
        );
    }
    let mut faults = BTreeMap::<_, u64>::new();
    for (kind, count) in outcomes.iter().flat_map(|(_, outcome)| &outcome.faults) {
        *faults.entry(kind).or_default() += count;
    }
    let faults: Vec<_> = faults.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    let _ = writeln!(text, "\nFaults: {}.", faults.join(", "));
    let broken = outcomes.iter().filter(|(_, outcome)| !outcome.broken.is_empty());
    let broken: Vec<_> =
        broken.map(|(seed, outcome)| format!("- seed {seed}: {}", outcome.broken.join("; "))).collect();
    if !broken.is_empty() {
        let _ = writeln!(text, "\nBroken runs:\n\n{}", broken.join("\n").replace('|', "\\|"));
    }
    text
}

/// Writes the section into a page, in place of its predecessor or at the end.
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
            "loses_the_store": outcome.loses_the_store,
        },
        "unit": "ms", "ours": worst, "runs": 1,
    })
}
