//! Attacks on a sharer: whether any gets in, and what a running flow of a peer feels of them.
//!
//! The flow is that of [`victim`]; the attacker ([`attacker`]) is a process of its own, which runs only when nothing else
//! wants the processors, as if it were another machine: what is measured is what the attack makes the sharer do. Times with
//! and without the attack are taken in turns.

mod attacker;
mod bomber;
mod channel;
mod middle;
mod packets;
mod victim;

use crate::chapter6::{beside, progress};
use crate::measure::Times;
use crate::reliability::hosts::Service;
use crate::{Failure, processes};
use attacker::{Attack, Tally};
pub(crate) use attacker::{AttackerSetting, run as run_attacker};
use bomber::BOMBS_MADE;
use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command};
use std::thread;
use std::time::{Duration, Instant};
use victim::Victim;

/// How long what an attack left behind may take to go.
const SETTLE: Duration = Duration::from_millis(500);
/// How often memory is looked at.
const LOOK: Duration = Duration::from_millis(250);
/// How long a code is guessed at before another is shown: three guesses make it void.
const CODE: Duration = Duration::from_millis(400);
/// A running flow is not to be slower by more.
const RATIO_MAX: f64 = 1.1;

/// Where the two hosts stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Place {
    /// Two namespaces, 5 ms each way
    Lab,
    /// This host
    Loopback,
}

/// What to try.
#[derive(Args, Debug, Clone)]
pub(crate) struct AttacksSetting {
    /// Attacks [default: all]
    #[arg(long = "attack", value_delimiter = ',')]
    attacks: Vec<Attack>,
    /// Where the hosts stand
    #[arg(long = "place", value_delimiter = ',', default_values = ["lab", "loopback"])]
    places: Vec<Place>,
    /// Transports of the running flow
    #[arg(long = "transport", value_delimiter = ',', default_values_t = ["quic".to_string()])]
    transports: Vec<String>,
    /// Transports of the running flow where its packets are said again
    #[arg(long, value_delimiter = ',', default_values_t = ["quic", "tcp", "udp"].map(String::from))]
    replayed: Vec<String>,
    /// Turns, each with the attack and without
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Seconds of each
    #[arg(long, default_value_t = 1.6)]
    seconds: f64,
    /// Write the page to this file, Markdown
    #[arg(long)]
    page: Option<PathBuf>,
}

/// What came of an attack.
struct Outcome {
    attack: Attack,
    place: Place,
    transport: String,
    tally: Tally,
    /// Median, 99th percentile, microseconds: without it and during it.
    calm_us: [f64; 2],
    during_us: [f64; 2],
    /// Units of the running flow that did not come as they had to.
    wrong: u64,
    /// The sharer's processor time during it, per cent.
    cpu_percent: f64,
    /// The sharer's memory before it, and the most since.
    memory_bytes: [f64; 2],
}

impl Outcome {
    fn ratio(&self, which: usize) -> f64 {
        self.during_us[which] / self.calm_us[which]
    }

    fn holds(&self) -> bool {
        self.tally.got_in.is_empty() && self.wrong == 0 && self.ratio(0) <= RATIO_MAX
    }
}

/// The attacker's process.
struct Attacker {
    child: Child,
    orders: ChildStdin,
    told: BufReader<ChildStdout>,
}

impl Attacker {
    fn start(victim: &Victim, setting: &AttackerSetting) -> Result<Attacker, Failure> {
        let mut child = victim.attacker(setting)?.spawn()?;
        let orders = child.stdin.take().ok_or("the attacker has no input")?;
        let mut told = BufReader::new(child.stdout.take().ok_or("the attacker has no output")?);
        let mut line = String::new();
        told.read_line(&mut line)?;
        match line.trim() {
            "ready" => Ok(Attacker { child, orders, told }),
            _ => Err(format!("the attacker is not ready: {line:?}").into()),
        }
    }

    fn order(&mut self, words: &str) -> Result<(), Failure> {
        Ok(writeln!(self.orders, "{words}")?)
    }

    fn end(self) -> Result<Tally, Failure> {
        let Attacker { mut child, orders, told } = self;
        drop(orders);
        let tally = serde_json::from_reader(told)?;
        child.wait()?;
        Ok(tally)
    }
}

fn run_one(
    setting: &AttacksSetting,
    victim: &Victim,
    directory: &Path,
    (attack, place, transport): (Attack, Place, &str),
) -> Result<Outcome, Failure> {
    let attacker = AttackerSetting {
        attack,
        address: victim.address,
        pairing: victim.pairing(),
        directory: directory.join(attack.attacker().name()).join("outboard"),
        program: beside("outboard")?,
    };
    let mut attacker = Attacker::start(victim, &attacker)?;
    let window = Duration::from_secs_f64(setting.seconds);
    let (known, wrong) = (victim.known()?, victim.wrong());
    let before = processes::memory_bytes(&victim.processes());
    let (mut calm, mut during) = (Times::default(), Times::default());
    let (mut most, mut cpu_seconds, mut attacked) = (before, 0.0, 0.0);
    for _ in 0..setting.rounds {
        victim.take_times();
        thread::sleep(window);
        calm.append(&victim.take_times());
        let mut shown = None;
        if attack.wants_code() {
            shown = Some((show(victim, &mut attacker)?, Instant::now()));
        }
        let (cpu_before, begun) = (processes::cpu_seconds(&victim.processes()), Instant::now());
        attacker.order("be hostile")?;
        victim.take_times();
        while begun.elapsed() < window {
            thread::sleep(LOOK);
            most = most.max(processes::memory_bytes(&victim.processes()));
            if let Some((shows, _)) = shown.take_if(|(_, since)| since.elapsed() >= CODE) {
                drop(shows);
                shown = Some((show(victim, &mut attacker)?, Instant::now()));
            }
        }
        during.append(&victim.take_times());
        cpu_seconds += (processes::cpu_seconds(&victim.processes()) - cpu_before).max(0.0);
        attacked += begun.elapsed().as_secs_f64();
        attacker.order("be calm")?;
        drop(shown);
        thread::sleep(SETTLE);
    }
    victim.take_times();
    thread::sleep(window);
    calm.append(&victim.take_times());
    let mut tally = attacker.end()?;
    if let Some(bytes) = attack.bomb_bytes() {
        let made = fs::metadata(directory.join(attack.attacker().name()).join("outboard").join(BOMBS_MADE));
        tally.tries = made.map(|made| made.len()).unwrap_or(0);
        let gone_off = victim.swallowed() / bytes as u64;
        match attack {
            Attack::Bombs if gone_off > 0 => tally.got_in.push(format!("{gone_off} went off")),
            _ => drop(tally.refused.insert("decompressed".into(), gone_off)),
        }
    }
    if victim.known()? != known {
        tally.got_in.push("the sharer knows somebody new".into());
    }
    let of = |times: &Times| [0.5, 0.99].map(|share| times.percentile_us(share));
    Ok(Outcome {
        attack,
        place,
        transport: transport.into(),
        tally,
        calm_us: of(&calm),
        during_us: of(&during),
        wrong: victim.wrong() - wrong,
        cpu_percent: cpu_seconds / attacked * 100.0,
        memory_bytes: [before, most],
    })
}

/// Shows a code at the sharer's host, which who attacks in the middle knows.
fn show(victim: &Victim, attacker: &mut Attacker) -> Result<Service, Failure> {
    let (shows, code) = victim.show_code()?;
    attacker.order(&format!("code {code}"))?;
    Ok(shows)
}

/// When and how the page was written.
fn written(setting: &AttacksSetting, begun: Instant) -> String {
    let date = Command::new("date").args(["-u", "+on %Y-%m-%d at %H:%M UTC"]).output();
    let date = date.map(|date| String::from_utf8_lossy(&date.stdout).trim().to_string());
    format!(
        "Written {} by `outboard-bench attacks --rounds {} --seconds {}` in {} s.\n\n",
        date.unwrap_or_default(),
        setting.rounds,
        setting.seconds,
        begun.elapsed().as_secs()
    )
}

/// Tries everything.
pub(crate) fn run(setting: &AttacksSetting) -> Result<Value, Failure> {
    let begun = Instant::now();
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
            let is_meant = |attack: &Attack| match attack {
                Attack::Replay if !is_root => false,
                Attack::Replay => setting.replayed.contains(transport),
                _ => setting.transports.contains(transport),
            };
            let attacks: Vec<_> = attacks.iter().copied().filter(is_meant).collect();
            if attacks.is_empty() {
                continue;
            }
            let directory = std::env::temp_dir().join(format!("outboard-attacks-{}", std::process::id()));
            fs::create_dir_all(&directory)?;
            let result = attack_all(setting, &attacks, *place, transport, &directory, &mut outcomes);
            // A directory that stays is no harm.
            let _ = fs::remove_dir_all(&directory);
            result?;
        }
    }
    let text = table(&outcomes);
    if let Some(file) = &setting.page {
        fs::write(file, [include_str!("head.md"), &written(setting, begun), &text].concat())
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
        // What one attack left behind is not the next one's doing.
        let name = attack.to_possible_value().ok_or("no such attack")?;
        let directory = directory.join(name.get_name());
        fs::create_dir_all(&directory)?;
        let victim = Victim::start(place, transport, &directory)?;
        thread::sleep(SETTLE);
        let outcome = run_one(setting, &victim, &directory, (*attack, place, transport))
            .map_err(|error| format!("{attack}, {place:?}, {transport}: {error}"))?;
        progress(&line(&outcome));
        outcomes.push(outcome);
    }
    Ok(())
}

/// The answers that were given most, and how often.
fn answers(tally: &Tally) -> String {
    let mut told: Vec<_> = tally.refused.iter().collect();
    told.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    let words: Vec<_> = told.iter().take(3).map(|(why, count)| format!("{count} × {why}")).collect();
    if words.is_empty() { "not answered".into() } else { words.join("; ") }
}

fn line(outcome: &Outcome) -> String {
    let Outcome { attack, place, transport, tally, calm_us, during_us, wrong, cpu_percent, memory_bytes } =
        outcome;
    format!(
        "{attack}, {place:?}, {transport}: {}; {} tries, got in: {:?}; {}; p50 {:.0} -> {:.0} us ({:.2}), p99 {:.0} -> \
         {:.0} us ({:.2}); {wrong} units wrong; CPU {cpu_percent:.0} %; {:.1} -> {:.1} MiB",
        if outcome.holds() { "holds" } else { "BROKEN" },
        tally.tries,
        tally.got_in.iter().take(3).collect::<Vec<_>>(),
        answers(tally),
        calm_us[0],
        during_us[0],
        outcome.ratio(0),
        calm_us[1],
        during_us[1],
        outcome.ratio(1),
        memory_bytes[0] / MIB,
        memory_bytes[1] / MIB,
    )
}

const MIB: f64 = (1u64 << 20) as f64;

fn table(outcomes: &[Outcome]) -> String {
    let mut text = String::from(
        "| attack | network | flow over | tries | got in | answers | p50, µs: without, during | ratio | p99, µs: without, during | ratio | sharer's CPU, % | its MiB: before, most | |\n\
         |---|---|---|---:|---:|---|---:|---:|---:|---:|---:|---:|---|\n",
    );
    for outcome in outcomes {
        let Outcome {
            attack, place, transport, tally, calm_us, during_us, cpu_percent, memory_bytes, ..
        } = outcome;
        let place = format!("{place:?}").to_lowercase();
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "| {attack} | {place} | {transport} | {} | {} | {} | {:.0}, {:.0} | {:.2} | {:.0}, {:.0} | {:.2} | \
             {cpu_percent:.0} | {:.1}, {:.1} | {} |",
            tally.tries,
            tally.got_in.len(),
            answers(tally).replace('|', "\\|"),
            calm_us[0],
            during_us[0],
            outcome.ratio(0),
            calm_us[1],
            during_us[1],
            outcome.ratio(1),
            memory_bytes[0] / MIB,
            memory_bytes[1] / MIB,
            if outcome.holds() { "" } else { "**broken**" },
        );
    }
    text
}

fn row(outcome: &Outcome) -> Value {
    json!({
        "experiment": "attacks",
        "params": {
            "attack": outcome.attack.to_string(), "place": format!("{:?}", outcome.place).to_lowercase(),
            "transport": outcome.transport, "tries": outcome.tally.tries, "got_in": outcome.tally.got_in,
            "answers": outcome.tally.refused, "wrong": outcome.wrong, "holds": outcome.holds(),
            "sharer_cpu_percent": outcome.cpu_percent, "sharer_bytes": outcome.memory_bytes,
            "calm_us": outcome.calm_us,
        },
        "unit": "us", "p50": outcome.during_us[0], "p99": outcome.during_us[1],
    })
}
