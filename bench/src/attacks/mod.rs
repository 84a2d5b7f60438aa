//! Attacks on a device host: their success, and their effect on a running flow of a peer.
//!
//! [`victim`] has the flow. The attacker ([`attacker`]) is a process at idle priority, as if it had its own machine: the
//! measurement shows the work that the attack causes at the device host. Turns with and without the attack alternate. Over
//! loopback there are also turns with an attack on another device host, which show the attacker's own load on the machine.

mod assault;
mod attacker;
mod awake;
mod bomber;
mod channel;
mod guests;
mod middle;
mod packets;
mod victim;

use crate::measure::{Times, median, paired_ratio};
use crate::processes;
use crate::programs::{beside, progress};
use crate::provenance::Provenance;
use crate::reliability::hosts::Service;
use crate::setting::Failure;
pub(crate) use assault::AttackerSetting;
use assault::{Attack, Priority, Tally};
pub(crate) use attacker::run as run_attacker;
use bomber::bombs_made;
use clap::{Args, ValueEnum};
use netsim::Rng;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout};
use std::thread;
use std::time::{Duration, Instant};
use victim::{DeviceHost, Place, SEED, Victim};

/// The start of an attack, which does not count.
const SETTLE: Duration = Duration::from_millis(200);
/// The pause after an attack.
const REST: Duration = Duration::from_millis(100);
/// The interval of memory checks.
const LOOK: Duration = Duration::from_millis(200);
/// The time until the next pairing code: three wrong guesses void a code.
const CODE: Duration = Duration::from_millis(400);
/// The bound of the running flow's slowdown.
const RATIO_MAX: f64 = 1.1;
/// The settings of `attacks`.
#[derive(Args, Debug, Clone)]
pub(crate) struct AttacksSetting {
    /// Attacks [default: all]
    #[arg(long = "attack", value_delimiter = ',')]
    attacks: Vec<Attack>,
    /// Places of the hosts
    #[arg(long = "place", value_delimiter = ',', default_values = ["lab", "loopback"])]
    places: Vec<Place>,
    /// Transports of the running flow
    #[arg(long = "transport", value_delimiter = ',', default_values_t = ["quic".to_string()])]
    transports: Vec<String>,
    /// Transports of the running flow for replayed packets
    #[arg(long, value_delimiter = ',', default_values_t = ["quic", "tcp", "udp"].map(String::from))]
    replayed: Vec<String>,
    /// Fewest rounds; a round has a turn of each kind
    #[arg(long, default_value_t = 8)]
    rounds: usize,
    /// Most rounds, while the result is not certain
    #[arg(long, default_value_t = 24)]
    rounds_max: usize,
    /// Seconds of a turn
    #[arg(long, default_value_t = 0.8)]
    seconds: f64,
    /// The attacker's priority
    #[arg(long, value_enum, default_value = "idle")]
    priority: Priority,
    /// Write the page to this file
    #[arg(long)]
    page: Option<PathBuf>,
}

/// The verdict on a promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Holds,
    /// The interval contains the bound.
    Uncertain,
    Broken,
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Verdict::Holds => "",
            Verdict::Uncertain => "uncertain",
            Verdict::Broken => "**broken**",
        }
    }
}

/// The kind of a turn.
#[derive(Debug, Clone, Copy)]
enum Kind {
    /// Without an attack.
    Calm,
    /// With an attack on another device host.
    Elsewhere,
    /// With an attack on the running flow's device host.
    During,
}

/// Draws the order of a round's turns, so that no kind always follows the same other one.
fn order(rng: &mut Rng) -> [Kind; 3] {
    let mut kinds = [Kind::Calm, Kind::Elsewhere, Kind::During];
    for last in 1..kinds.len() {
        kinds.swap(last, rng.up_to(last as u64) as usize);
    }
    kinds
}

/// The running flow's delays in the turns of one kind.
#[derive(Default)]
struct Turns {
    times: Times,
    /// Median of each turn, microseconds.
    medians_us: Vec<f64>,
}

impl Turns {
    /// Adds a turn. A turn without any unit counts with its whole duration.
    fn add(&mut self, times: &Times, seconds: f64) {
        let is_empty = times.count() == 0;
        self.medians_us.push(if is_empty { seconds * 1e6 } else { times.percentile_us(0.5) });
        self.times.append(times);
    }

    /// Returns the median of the turns' medians and the 99th percentile of all delays, microseconds.
    fn figures_us(&self) -> [f64; 2] {
        [median(&self.medians_us), self.times.percentile_us(0.99)]
    }
}

/// The result of an attack.
struct Outcome {
    attack: Attack,
    place: Place,
    transport: String,
    tally: Tally,
    /// Turns without the attack, with the attack elsewhere, and during it.
    calm: Turns,
    elsewhere: Option<Turns>,
    during: Turns,
    /// Units of the running flow that were not the expected next one.
    wrong: u64,
    /// The device host's processor time during the attack, per cent.
    cpu_percent: f64,
    /// The device host's memory before the attack and its peak.
    memory_bytes: [f64; 2],
}

impl Outcome {
    /// Returns the ratio of the medians during the attack to those of other turns, with its confidence interval.
    fn ratio_to(&self, others: &Turns) -> [f64; 3] {
        paired_ratio(&self.during.medians_us, &others.medians_us, SEED)
    }

    /// Returns the turns for the comparison.
    fn reference(&self) -> &Turns {
        self.elsewhere.as_ref().unwrap_or(&self.calm)
    }

    fn verdict(&self) -> Verdict {
        match self.tally.got_in.is_empty() && self.wrong == 0 {
            true => judged(self.ratio_to(self.reference())),
            false => Verdict::Broken,
        }
    }

    /// Formats one of [`Turns::figures_us`] of each kind of turn.
    fn figures(&self, which: usize) -> String {
        let turns = [Some(&self.calm), self.elsewhere.as_ref(), Some(&self.during)];
        let figures = turns.iter().flatten().map(|turns| format!("{:.0}", turns.figures_us()[which]));
        figures.collect::<Vec<_>>().join(", ")
    }

    /// Returns the ratio of the 99th percentiles.
    fn p99_ratio(&self) -> f64 {
        self.during.figures_us()[1] / self.reference().figures_us()[1]
    }
}

fn judged([_, low, high]: [f64; 3]) -> Verdict {
    match (low > RATIO_MAX, high > RATIO_MAX) {
        (true, _) => Verdict::Broken,
        (false, true) => Verdict::Uncertain,
        (false, false) => Verdict::Holds,
    }
}

/// The attacker's process.
struct Attacker {
    child: Child,
    orders: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Attacker {
    fn start(victim: &Victim, setting: &AttackerSetting) -> Result<Attacker, Failure> {
        let mut child = victim.attacker(setting)?.spawn()?;
        let orders = child.stdin.take().ok_or("the attacker has no input")?;
        let mut output = BufReader::new(child.stdout.take().ok_or("the attacker has no output")?);
        let mut line = String::new();
        output.read_line(&mut line)?;
        match line.trim() {
            "ready" => Ok(Attacker { child, orders, output }),
            _ => Err(format!("the attacker is not ready: {line:?}").into()),
        }
    }

    fn order(&mut self, words: &str) -> Result<(), Failure> {
        Ok(writeln!(self.orders, "{words}")?)
    }

    fn end(self) -> Result<Tally, Failure> {
        let Attacker { mut child, orders, output } = self;
        drop(orders);
        let tally = serde_json::from_reader(output)?;
        child.wait()?;
        Ok(tally)
    }
}

/// Measures one turn. It updates the device host's peak memory and calls `look` meanwhile.
fn watch(
    victim: &Victim,
    seconds: f64,
    most_bytes: &mut f64,
    mut look: impl FnMut() -> Result<(), Failure>,
) -> Result<Times, Failure> {
    victim.take_times();
    let begun = Instant::now();
    while begun.elapsed().as_secs_f64() < seconds {
        thread::sleep(LOOK);
        *most_bytes = most_bytes.max(processes::memory_bytes(&victim.device_host.processes()));
        look()?;
    }
    Ok(victim.take_times())
}

/// The result of a turn with an attack.
struct Attacked {
    times: Times,
    /// Duration and processor time of the running flow's device host.
    seconds: f64,
    cpu_seconds: f64,
}

/// Measures a turn in which `attacker` attacks `host`.
fn attack_once(
    (setting, attack): (&AttacksSetting, Attack),
    victim: &Victim,
    (host, attacker): (&DeviceHost, &mut Attacker),
    most_bytes: &mut f64,
) -> Result<Attacked, Failure> {
    let mut shown = None;
    if attack.needs_code() {
        shown = Some((show(victim, host, attacker)?, Instant::now()));
    }
    let cpu_seconds = || processes::cpu_seconds(&victim.device_host.processes());
    let (cpu_before, begun) = (cpu_seconds(), Instant::now());
    attacker.order("attack")?;
    thread::sleep(SETTLE);
    let times = watch(victim, setting.seconds, most_bytes, || {
        if let Some((pair, _)) = shown.take_if(|(_, since)| since.elapsed() >= CODE) {
            drop(pair);
            shown = Some((show(victim, host, attacker)?, Instant::now()));
        }
        Ok(())
    })?;
    let cpu_seconds = (cpu_seconds() - cpu_before).max(0.0);
    let seconds = begun.elapsed().as_secs_f64();
    attacker.order("pause")?;
    drop(shown);
    thread::sleep(REST);
    Ok(Attacked { times, seconds, cpu_seconds })
}

fn run_one(
    setting: &AttacksSetting,
    victim: &Victim,
    directory: &Path,
    (attack, place, transport): (Attack, Place, &str),
) -> Result<Outcome, Failure> {
    let own = directory.join(attack.attacker().name()).join("outboard");
    let program = beside("outboard")?;
    let start = |host: &DeviceHost| {
        let attacker = AttackerSetting {
            attack,
            address: host.address,
            pairing: host.pairing(),
            flow: victim.device_host.address,
            directory: own.clone(),
            program: program.clone(),
            priority: setting.priority,
        };
        Attacker::start(victim, &attacker)
    };
    let mut attacker = start(&victim.device_host)?;
    let mut decoy =
        victim.decoy.as_ref().map(|decoy| Ok::<_, Failure>((decoy, start(decoy)?))).transpose()?;
    let (peers, wrong) = (victim.peers()?, victim.wrong());
    let before = processes::memory_bytes(&victim.device_host.processes());
    let (mut calm, mut during) = (Turns::default(), Turns::default());
    let mut elsewhere = decoy.as_ref().map(|_| Turns::default());
    let (mut most, mut cpu_seconds, mut attacked) = (before, 0.0, 0.0);
    let mut rng = Rng::new(SEED, 1);
    for round in 0..setting.rounds_max.max(setting.rounds) {
        let is_certain = || {
            let reference = elsewhere.as_ref().unwrap_or(&calm);
            judged(paired_ratio(&during.medians_us, &reference.medians_us, SEED)) != Verdict::Uncertain
        };
        if round >= setting.rounds && is_certain() {
            break;
        }
        for kind in order(&mut rng) {
            match (kind, &mut decoy, &mut elsewhere) {
                (Kind::Calm, ..) => {
                    calm.add(&watch(victim, setting.seconds, &mut most, || Ok(()))?, setting.seconds)
                }
                (Kind::Elsewhere, Some((decoy, attacker)), Some(elsewhere)) => {
                    let turn = attack_once((setting, attack), victim, (decoy, attacker), &mut most)?;
                    elsewhere.add(&turn.times, setting.seconds);
                }
                (Kind::Elsewhere, ..) => {}
                (Kind::During, ..) => {
                    let host = (&victim.device_host, &mut attacker);
                    let turn = attack_once((setting, attack), victim, host, &mut most)?;
                    during.add(&turn.times, setting.seconds);
                    cpu_seconds += turn.cpu_seconds;
                    attacked += turn.seconds;
                }
            }
        }
    }
    if let Some((_, attacker)) = decoy {
        attacker.end()?;
    }
    let mut tally = attacker.end()?;
    if let Some(bytes) = attack.bomb_bytes() {
        let made = fs::metadata(bombs_made(&own, victim.device_host.address));
        tally.tries = made.map(|made| made.len()).unwrap_or(0);
        let expanded = victim.device_host.swallowed() / bytes as u64;
        match attack {
            Attack::Bombs if expanded > 0 => tally.got_in.push(format!("{expanded} were decompressed")),
            _ => drop(tally.refused.insert("decompressed".into(), expanded)),
        }
    }
    if victim.peers()? != peers {
        tally.got_in.push("the device host has another peer".into());
    }
    Ok(Outcome {
        attack,
        place,
        transport: transport.into(),
        tally,
        calm,
        elsewhere,
        during,
        wrong: victim.wrong() - wrong,
        cpu_percent: cpu_seconds / attacked * 100.0,
        memory_bytes: [before, most],
    })
}

/// Shows a pairing code at a device host and tells it to the attacker's honest side.
fn show(victim: &Victim, host: &DeviceHost, attacker: &mut Attacker) -> Result<Service, Failure> {
    let (pair, code) = victim.show_code(host)?;
    attacker.order(&format!("code {code}"))?;
    Ok(pair)
}

/// Runs `attacks`.
pub(crate) fn run(setting: &AttacksSetting) -> Result<Value, Failure> {
    let provenance = Provenance::of_this_run();
    let is_root = rustix::process::geteuid().is_root();
    let attacks = if setting.attacks.is_empty() { Attack::value_variants() } else { &setting.attacks };
    let mut outcomes = Vec::new();
    for place in &setting.places {
        if *place == Place::Lab && !is_root {
            progress("SKIPPED the emulated network: it needs root, for network namespaces");
            continue;
        }
        let others = setting.replayed.iter().filter(|name| !setting.transports.contains(name));
        for transport in setting.transports.iter().chain(others) {
            let applies = |attack: &Attack| match attack {
                Attack::Replay if !is_root => false,
                Attack::Replay => setting.replayed.contains(transport),
                _ => setting.transports.contains(transport),
            };
            let attacks: Vec<_> = attacks.iter().copied().filter(applies).collect();
            if attacks.is_empty() {
                continue;
            }
            let directory = std::env::temp_dir().join(format!("outboard-attacks-{}", std::process::id()));
            fs::create_dir_all(&directory)?;
            let result = attack_all(setting, &attacks, *place, transport, &directory, &mut outcomes);
            // A directory that stays does no harm.
            let _ = fs::remove_dir_all(&directory);
            result?;
        }
    }
    let text = table(&outcomes);
    if let Some(file) = &setting.page {
        fs::write(file, format!("{}\n{provenance}\n\n{text}", include_str!("head.md")))
            .map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    }
    print!("{text}");
    Ok(outcomes.iter().map(row).collect())
}

fn attack_all(
    setting: &AttacksSetting,
    attacks: &[Attack],
    place: Place,
    transport: &str,
    directory: &Path,
    outcomes: &mut Vec<Outcome>,
) -> Result<(), Failure> {
    for attack in attacks {
        // Each attack has its own hosts, so that it cannot affect the next one.
        let name = attack.to_possible_value().ok_or("no such attack")?;
        let directory = directory.join(name.get_name());
        fs::create_dir_all(&directory)?;
        let victim = Victim::start(place, transport, &directory, (*attack, setting.priority))?;
        thread::sleep(SETTLE);
        let outcome = run_one(setting, &victim, &directory, (*attack, place, transport))
            .map_err(|error| format!("{attack}, {place:?}, {transport}: {error}"))?;
        progress(&line(&outcome));
        outcomes.push(outcome);
    }
    Ok(())
}

/// Formats the most frequent answers with their counts.
fn answers(tally: &Tally) -> String {
    let mut answers: Vec<_> = tally.refused.iter().collect();
    answers.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    let words: Vec<_> = answers.iter().take(3).map(|(why, count)| format!("{count} × {why}")).collect();
    if words.is_empty() { "no answer".into() } else { words.join("; ") }
}

/// Formats a ratio with its confidence interval.
fn words([ratio, low, high]: [f64; 3]) -> String {
    format!("{ratio:.2} [{low:.2}, {high:.2}]")
}

fn line(outcome: &Outcome) -> String {
    let Outcome { attack, place, transport, tally, wrong, cpu_percent, memory_bytes, .. } = outcome;
    format!(
        "{attack}, {place:?}, {transport}: {:?} after {} rounds; {} attempts, succeeded: {:?}; {}; p50 {} us ({}; to calm turns: {}), \
         p99 {} us ({:.2}); {wrong} units wrong; CPU {cpu_percent:.0} %; {:.1} -> {:.1} MiB",
        outcome.verdict(),
        outcome.calm.medians_us.len(),
        tally.tries,
        tally.got_in.iter().take(3).collect::<Vec<_>>(),
        answers(tally),
        outcome.figures(0),
        words(outcome.ratio_to(outcome.reference())),
        words(outcome.ratio_to(&outcome.calm)),
        outcome.figures(1),
        outcome.p99_ratio(),
        memory_bytes[0] / MIB,
        memory_bytes[1] / MIB,
    )
}

const MIB: f64 = (1u64 << 20) as f64;

fn table(outcomes: &[Outcome]) -> String {
    let mut text = String::from(
        "| attack | network | flow over | attempts | succeeded | answers | rounds | p50, µs: without, elsewhere, during | ratio, 95 % interval: to without | to elsewhere | p99, µs: without, elsewhere, during | ratio | device host's CPU, % | its MiB: before, peak | verdict |\n\
         |---|---|---|---:|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---|\n",
    );
    for outcome in outcomes {
        let Outcome { attack, place, transport, tally, cpu_percent, memory_bytes, .. } = outcome;
        let place = format!("{place:?}").to_lowercase();
        let to_elsewhere = outcome.elsewhere.as_ref().map(|elsewhere| words(outcome.ratio_to(elsewhere)));
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "| {attack} | {place} | {transport} | {} | {} | {} | {} | {} | {} | {} | {} | {:.2} | {cpu_percent:.0} | \
             {:.1}, {:.1} | {} |",
            tally.tries,
            tally.got_in.len(),
            answers(tally).replace('|', "\\|"),
            outcome.calm.medians_us.len(),
            outcome.figures(0),
            words(outcome.ratio_to(&outcome.calm)),
            to_elsewhere.unwrap_or_default(),
            outcome.figures(1),
            outcome.p99_ratio(),
            memory_bytes[0] / MIB,
            memory_bytes[1] / MIB,
            outcome.verdict().word(),
        );
    }
    text
}

fn row(outcome: &Outcome) -> Value {
    let [p50, p99] = outcome.during.figures_us();
    let elsewhere = outcome.elsewhere.as_ref();
    json!({
        "experiment": "attacks",
        "params": {
            "attack": outcome.attack.to_string(), "place": format!("{:?}", outcome.place).to_lowercase(),
            "transport": outcome.transport, "tries": outcome.tally.tries, "got_in": outcome.tally.got_in,
            "answers": outcome.tally.refused, "wrong": outcome.wrong,
            "verdict": format!("{:?}", outcome.verdict()).to_lowercase(),
            "ratio": outcome.ratio_to(&outcome.calm),
            "ratio_to_elsewhere": elsewhere.map(|elsewhere| outcome.ratio_to(elsewhere)),
            "device_host_cpu_percent": outcome.cpu_percent, "device_host_bytes": outcome.memory_bytes,
            "calm_us": outcome.calm.figures_us(), "elsewhere_us": elsewhere.map(Turns::figures_us),
            "turns_us": [
                Some(&outcome.calm.medians_us), elsewhere.map(|turns| &turns.medians_us),
                Some(&outcome.during.medians_us),
            ],
        },
        "unit": "us", "p50": p50, "p99": p99,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_taken_within_rounds() {
        assert_eq!(paired_ratio(&[2.0, 400.0, 3.0], &[1.0, 200.0, 1.5], 1), [2.0; 3]);
        let [forth, back] =
            [paired_ratio(&[1.0, 4.0], &[1.0; 2], 1), paired_ratio(&[1.0; 2], &[1.0, 4.0], 1)];
        assert_eq!((forth[0], back[0]), (2.0, 0.5));
    }

    #[test]
    fn a_promise_is_broken_only_with_certainty() {
        assert_eq!(judged([1.05, 1.0, 1.1]), Verdict::Holds);
        assert_eq!(judged([1.2, 1.05, 1.3]), Verdict::Uncertain);
        assert_eq!(judged([1.2, 1.11, 1.3]), Verdict::Broken);
    }
}
