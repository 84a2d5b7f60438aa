//! Attacks on a sharer: whether any gets in, and what a running flow of a peer feels of them.
//!
//! The flow is that of [`victim`]; the attacker ([`attacker`]) is a process of its own, which runs only when nothing else
//! wants the processors, as if it were another machine: what is measured is what the attack makes the sharer do. Times with
//! and without the attack are taken in turns; over loopback also such in which another sharer is attacked, of which the flow
//! feels what the attacker's own work takes of the machine.

mod attacker;
mod awake;
mod bomber;
mod channel;
mod guests;
mod middle;
mod packets;
mod victim;

use crate::chapter6::{beside, progress};
use crate::measure::{Times, median, paired_ratio};
use crate::reliability::hosts::Service;
use crate::{Failure, processes};
use attacker::Priority;
use attacker::{Attack, Tally};
pub(crate) use attacker::{AttackerSetting, run as run_attacker};
use bomber::bombs_made;
use clap::{Args, ValueEnum};
use netsim::Rng;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command};
use std::thread;
use std::time::{Duration, Instant};
use victim::{Sharer, Victim};

/// How long an attack may take to begin.
const SETTLE: Duration = Duration::from_millis(200);
/// How long what it left behind may take to go.
const REST: Duration = Duration::from_millis(100);
/// How often memory is looked at.
const LOOK: Duration = Duration::from_millis(200);
/// How long a code is guessed at before another is shown: three guesses make it void.
const CODE: Duration = Duration::from_millis(400);
/// A running flow is not to be slower by more.
const RATIO_MAX: f64 = 1.1;
/// Of the rounds that are drawn.
const SEED: u64 = 1995;

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
    /// Rounds: a turn without the attack and one with it
    #[arg(long, default_value_t = 8)]
    rounds: usize,
    /// As many at most, where it is not shown whether the flow is disturbed
    #[arg(long, default_value_t = 24)]
    rounds_max: usize,
    /// Seconds of a turn
    #[arg(long, default_value_t = 0.8)]
    seconds: f64,
    /// The attacker's priority
    #[arg(long, value_enum, default_value = "idle")]
    priority: Priority,
    /// Write the page to this file, Markdown
    #[arg(long)]
    page: Option<PathBuf>,
}

/// What is known of what is promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Holds,
    /// The interval has the bound in it.
    NotShown,
    Broken,
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Verdict::Holds => "",
            Verdict::NotShown => "not shown",
            Verdict::Broken => "**broken**",
        }
    }
}

/// The turns of a round.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Calm,
    Elsewhere,
    During,
}

/// In which order they are taken this time: what one leaves behind is not always the same one's.
fn order(rng: &mut Rng) -> [Kind; 3] {
    let mut kinds = [Kind::Calm, Kind::Elsewhere, Kind::During];
    for last in 1..kinds.len() {
        kinds.swap(last, rng.up_to(last as u64) as usize);
    }
    kinds
}

/// The running flow in the turns of one kind.
#[derive(Default)]
struct Turns {
    times: Times,
    /// Of each turn, microseconds.
    medians_us: Vec<f64>,
}

impl Turns {
    /// Those of one that took so long: one in which nothing came counts as if that were what a unit took.
    fn add(&mut self, times: &Times, seconds: f64) {
        let is_empty = times.count() == 0;
        self.medians_us.push(if is_empty { seconds * 1e6 } else { times.percentile_us(0.5) });
        self.times.append(times);
    }

    /// The median of the turns' medians, and the 99th percentile of all times, microseconds.
    fn figures_us(&self) -> [f64; 2] {
        [median(&self.medians_us), self.times.percentile_us(0.99)]
    }
}

/// What came of an attack.
struct Outcome {
    attack: Attack,
    place: Place,
    transport: String,
    tally: Tally,
    /// Without it, while the attacker does the same elsewhere, and during it.
    calm: Turns,
    elsewhere: Option<Turns>,
    during: Turns,
    /// Units of the running flow that did not come as they had to.
    wrong: u64,
    /// The sharer's processor time during it, per cent.
    cpu_percent: f64,
    /// The sharer's memory before it, and the most since.
    memory_bytes: [f64; 2],
}

impl Outcome {
    /// How much longer the median is during it than in the turns of this kind, and the borders of the interval that this
    /// lies in.
    fn ratio_to(&self, others: &Turns) -> [f64; 3] {
        paired_ratio(&self.during.medians_us, &others.medians_us, SEED)
    }

    /// What it is compared with.
    fn without(&self) -> &Turns {
        self.elsewhere.as_ref().unwrap_or(&self.calm)
    }

    fn verdict(&self) -> Verdict {
        match self.tally.got_in.is_empty() && self.wrong == 0 {
            true => judged(self.ratio_to(self.without())),
            false => Verdict::Broken,
        }
    }

    /// What the turns of each kind came to, in words: a figure of each, of [`Turns::figures_us`].
    fn figures(&self, which: usize) -> String {
        let turns = [Some(&self.calm), self.elsewhere.as_ref(), Some(&self.during)];
        let figures = turns.iter().flatten().map(|turns| format!("{:.0}", turns.figures_us()[which]));
        figures.collect::<Vec<_>>().join(", ")
    }

    /// The 99th percentile during it, in those that it is compared with.
    fn p99_ratio(&self) -> f64 {
        self.during.figures_us()[1] / self.without().figures_us()[1]
    }
}

fn judged([_, low, high]: [f64; 3]) -> Verdict {
    match (low > RATIO_MAX, high > RATIO_MAX) {
        (true, _) => Verdict::Broken,
        (false, true) => Verdict::NotShown,
        (false, false) => Verdict::Holds,
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

/// Takes the times of one turn, and looks meanwhile at the sharer's memory, of which the most is kept; `look` looks at more.
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
        *most_bytes = most_bytes.max(processes::memory_bytes(&victim.sharer.processes()));
        look()?;
    }
    Ok(victim.take_times())
}

/// What came of a turn in which a sharer is attacked.
struct Attacked {
    times: Times,
    /// How long it took, and the processor time of the running flow's sharer in that.
    seconds: f64,
    cpu_seconds: f64,
}

/// A turn in which `sharer` is attacked by `attacker`.
fn attack_once(
    (setting, attack): (&AttacksSetting, Attack),
    victim: &Victim,
    (sharer, attacker): (&Sharer, &mut Attacker),
    most_bytes: &mut f64,
) -> Result<Attacked, Failure> {
    let mut shown = None;
    if attack.wants_code() {
        shown = Some((show(victim, sharer, attacker)?, Instant::now()));
    }
    let of = victim.sharer.processes();
    let (cpu_before, begun) = (processes::cpu_seconds(&of), Instant::now());
    attacker.order("be hostile")?;
    thread::sleep(SETTLE);
    let times = watch(victim, setting.seconds, most_bytes, || {
        if let Some((shows, _)) = shown.take_if(|(_, since)| since.elapsed() >= CODE) {
            drop(shows);
            shown = Some((show(victim, sharer, attacker)?, Instant::now()));
        }
        Ok(())
    })?;
    let cpu_seconds = (processes::cpu_seconds(&victim.sharer.processes()) - cpu_before).max(0.0);
    let seconds = begun.elapsed().as_secs_f64();
    attacker.order("be calm")?;
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
    let start = |sharer: &Sharer| {
        let attacker = AttackerSetting {
            attack,
            address: sharer.address,
            pairing: sharer.pairing(),
            flow: victim.sharer.address,
            directory: own.clone(),
            program: program.clone(),
            priority: setting.priority,
        };
        Attacker::start(victim, &attacker)
    };
    let mut attacker = start(&victim.sharer)?;
    let mut decoy =
        victim.decoy.as_ref().map(|decoy| Ok::<_, Failure>((decoy, start(decoy)?))).transpose()?;
    let (known, wrong) = (victim.known()?, victim.wrong());
    let before = processes::memory_bytes(&victim.sharer.processes());
    let (mut calm, mut during) = (Turns::default(), Turns::default());
    let mut elsewhere = decoy.as_ref().map(|_| Turns::default());
    let (mut most, mut cpu_seconds, mut attacked) = (before, 0.0, 0.0);
    let mut rng = Rng::new(SEED, 1);
    for round in 0..setting.rounds_max.max(setting.rounds) {
        let is_shown = || {
            let without = elsewhere.as_ref().unwrap_or(&calm);
            judged(paired_ratio(&during.medians_us, &without.medians_us, SEED)) != Verdict::NotShown
        };
        if round >= setting.rounds && is_shown() {
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
                    let sharer = (&victim.sharer, &mut attacker);
                    let turn = attack_once((setting, attack), victim, sharer, &mut most)?;
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
        let made = fs::metadata(bombs_made(&own, victim.sharer.address));
        tally.tries = made.map(|made| made.len()).unwrap_or(0);
        let gone_off = victim.sharer.swallowed() / bytes as u64;
        match attack {
            Attack::Bombs if gone_off > 0 => tally.got_in.push(format!("{gone_off} went off")),
            _ => drop(tally.refused.insert("decompressed".into(), gone_off)),
        }
    }
    if victim.known()? != known {
        tally.got_in.push("the sharer knows somebody new".into());
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

/// Shows a code at a sharer's host, which who attacks in the middle knows.
fn show(victim: &Victim, sharer: &Sharer, attacker: &mut Attacker) -> Result<Service, Failure> {
    let (shows, code) = victim.show_code(sharer)?;
    attacker.order(&format!("code {code}"))?;
    Ok(shows)
}

/// When and how the page was written.
fn written(setting: &AttacksSetting, begun: Instant) -> String {
    let date = Command::new("date").args(["-u", "+on %Y-%m-%d at %H:%M UTC"]).output();
    let date = date.map(|date| String::from_utf8_lossy(&date.stdout).trim().to_string());
    format!(
        "Written {} by `outboard-bench attacks --rounds {} --rounds-max {} --seconds {}` in {} s.\n\n",
        date.unwrap_or_default(),
        setting.rounds,
        setting.rounds_max,
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
        let victim = Victim::start(place, transport, &directory, (*attack, setting.priority))?;
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

/// A ratio and the interval that it lies in.
fn words([ratio, low, high]: [f64; 3]) -> String {
    format!("{ratio:.2} [{low:.2}, {high:.2}]")
}

fn line(outcome: &Outcome) -> String {
    let Outcome { attack, place, transport, tally, wrong, cpu_percent, memory_bytes, .. } = outcome;
    format!(
        "{attack}, {place:?}, {transport}: {:?} after {} rounds; {} tries, got in: {:?}; {}; p50 {} us ({}; without: {}), \
         p99 {} us ({:.2}); {wrong} units wrong; CPU {cpu_percent:.0} %; {:.1} -> {:.1} MiB",
        outcome.verdict(),
        outcome.calm.medians_us.len(),
        tally.tries,
        tally.got_in.iter().take(3).collect::<Vec<_>>(),
        answers(tally),
        outcome.figures(0),
        words(outcome.ratio_to(outcome.without())),
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
        "| attack | network | flow over | tries | got in | answers | rounds | p50, µs: without, elsewhere, during | ratio, with 95 %: to without | to elsewhere | p99, µs: without, elsewhere, during | ratio | sharer's CPU, % | its MiB: before, most | |\n\
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
            "sharer_cpu_percent": outcome.cpu_percent, "sharer_bytes": outcome.memory_bytes,
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
    fn rounds_that_differ_say_nothing_of_their_turns() {
        assert_eq!(paired_ratio(&[2.0, 400.0, 3.0], &[1.0, 200.0, 1.5], 1), [2.0; 3]);
        let [forth, back] =
            [paired_ratio(&[1.0, 4.0], &[1.0; 2], 1), paired_ratio(&[1.0; 2], &[1.0, 4.0], 1)];
        assert_eq!((forth[0], back[0]), (2.0, 0.5));
    }

    #[test]
    fn broken_is_what_is_certainly_so() {
        assert_eq!(judged([1.05, 1.0, 1.1]), Verdict::Holds);
        assert_eq!(judged([1.2, 1.05, 1.3]), Verdict::NotShown);
        assert_eq!(judged([1.2, 1.11, 1.3]), Verdict::Broken);
    }
}
