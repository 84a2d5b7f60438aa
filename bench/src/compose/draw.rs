//! Random pipelines, drawn from the table of pairs: whatever stands there, with options of the kinds it declares.

use contract::{FlowClass, Format, OptionKind, OptionSpec, Options, Pair, Shape};
use netsim::{Params, Rng};
use pipeline::{Origin, Pipeline};
use std::time::Duration;

/// Pairs that are not drawn, and why.
pub(super) const LEFT_OUT: [(&str, &str); 2] = [
    ("exec", "its halves are the user's programs"),
    ("prefetch", "it makes requests of its own, and stands in both flows of a driver"),
];

/// Most pairs of a pipeline.
const PAIRS_MAX: u64 = 8;
/// Messages of a flow, fewest and most.
const MESSAGES: [u64; 2] = [40, 100];
/// Flows are short: what waits, waits for less than this, milliseconds.
const WAIT_MS_MAX: u64 = 40;
/// Bytes that an option limits: more than the messages of a flow have together.
const LIMIT_BYTES: u64 = 16 << 20;
/// Whole numbers are drawn from so many above the least: a few messages, ways, keys.
const RANGE: i64 = 16;
/// Ways that pairs may divide a message among, all together: each may carry it whole.
const WAYS_MAX: u64 = 16;
/// Drawn options that a pair refuses are drawn again so many times.
const TRIES: usize = 20;

const FORMATS: [Format; 6] =
    [Format::Bytes, Format::Motion, Format::Video, Format::Evdev, Format::Audio, Format::Serial];

/// A flow between two hosts, and all that was drawn for it.
#[derive(Debug)]
pub(super) struct Case {
    pub(super) seed: u64,
    pub(super) format: Format,
    pub(super) class: FlowClass,
    pub(super) transport: &'static str,
    pub(super) network: Params,
    pub(super) pipeline: Pipeline,
    /// One of its stages runs in a process of its own.
    pub(super) is_isolated: bool,
    pub(super) messages: u64,
}

/// What a flow's pairs are drawn with.
struct Drawing {
    rng: Rng,
    /// Only pairs that neither drop nor change: everything must come.
    is_faithful: bool,
}

/// A pair with drawn options.
struct Drawn {
    pair: &'static dyn Pair,
    options: Options,
    arguments: Vec<String>,
}

impl Drawn {
    /// Ways that it divides a flow among.
    fn ways(&self) -> u64 {
        match self.pair.shape(&self.options) {
            Shape::Fan(ways) => ways.into(),
            _ => 1,
        }
    }

    fn text(&self) -> String {
        match self.arguments.is_empty() {
            true => self.pair.name().to_string(),
            false => format!("{}({})", self.pair.name(), self.arguments.join(", ")),
        }
    }

    /// Of so few at a time a flow that goes on makes more than it carries.
    fn carries_few(&self) -> bool {
        self.pair.name() == "delay" && self.options.count("held_max") <= RANGE as usize
    }

    /// A process of its own has one flow in and one out.
    fn may_be_isolated(&self) -> bool {
        self.pair.shape(&self.options) == Shape::Line && self.pair.side_ports().is_empty()
    }
}

/// Whether it changes what messages say. `replay` says itself when they were created, and changes nothing else.
pub(super) fn changes(pair: &dyn Pair, options: &Options) -> bool {
    pair.promises(options).may_change && pair.name() != "replay"
}

/// Pairs that are drawn.
pub(super) fn pairs() -> impl Iterator<Item = &'static dyn Pair> {
    stages::PAIRS.iter().copied().filter(|pair| LEFT_OUT.iter().all(|(name, _)| *name != pair.name()))
}

impl Case {
    /// Everything from `seed`. `may_isolate`: there is a program to run stages in.
    pub(super) fn draw(seed: u64, may_isolate: bool) -> Result<Case, String> {
        let mut rng = Rng::new(seed, 1);
        let format = FORMATS[[0, 0, 0, 1, 2, 2, 3, 4, 5][rng.up_to(8) as usize]].clone();
        let class = if rng.chance(1, 4) { FlowClass::Timely } else { FlowClass::Reliable };
        let transport = ["tcp", "udp"][rng.up_to(1) as usize];
        let mut network = Params {
            delay_ns: rng.up_to(5_000_000),
            jitter_ns: 1_000_000 + rng.up_to(19_000_000),
            ..Params::default()
        };
        if transport == "udp" {
            network.loss_ppm = 10_000 + rng.up_to(40_000) as u32;
            network.reorder = true;
        }
        let messages = MESSAGES[0] + rng.up_to(MESSAGES[1] - MESSAGES[0]);
        let count = 1 + rng.up_to(PAIRS_MAX - 1);
        let mut drawing = Drawing { is_faithful: rng.chance(1, 2), rng };
        let mut pairs = drawing.fitting(&format, count)?;
        let which = drawing.rng.up_to(count - 1) as usize;
        let is_isolated = may_isolate && drawing.rng.chance(1, 16) && pairs[which].may_be_isolated();
        if is_isolated {
            pairs[which].arguments.push("isolate=true".into());
        }
        let pipeline = parse(&pairs)?;
        Ok(Case { seed, format, class, transport, network, pipeline, is_isolated, messages })
    }

    pub(super) fn network_text(&self) -> String {
        let Params { delay_ns, jitter_ns, loss_ppm, .. } = &self.network;
        let [delay, jitter] = [delay_ns, jitter_ns].map(|ns| *ns as f64 / 1e6);
        let loss = f64::from(*loss_ppm) / 1e4;
        format!(
            "{}, {:?}, {delay:.1} ms and up to {jitter:.1} ms more, loss {loss:.1} %",
            self.transport, self.class
        )
    }
}

/// The text of so many pairs for `format` through which every message comes whole and in order. Some of them run in
/// processes of their own.
pub(crate) fn exact(seed: u64, format: &Format, count: u64) -> Result<String, String> {
    let mut drawing = Drawing { rng: Rng::new(seed, 3), is_faithful: true };
    for _ in 0..TRIES {
        let pairs = drawing.fitting(format, count)?;
        if pairs.iter().any(|drawn| {
            // What keeps the rhythm of a flow keeps what stood still late.
            drawn.pair.name() == "replay"
                || drawn.carries_few()
                || drawn.pair.promises(&drawn.options).may_reorder
        }) {
            continue;
        }
        let mut one = |drawn: &Drawn| {
            let link = match drawn.may_be_isolated() && drawing.rng.chance(1, 6) {
                true => ["@shm ", "@pipe "][drawing.rng.up_to(1) as usize],
                false => "",
            };
            format!("{link}{}", drawn.text())
        };
        return Ok(pairs.iter().map(&mut one).collect::<Vec<_>>().join(" | "));
    }
    Err("no pairs were drawn that keep the order".into())
}

/// A pipeline with a pair in it that cannot take what comes to it.
#[derive(Debug)]
pub(super) struct Misfit {
    pub(super) format: Format,
    pub(super) pipeline: Pipeline,
    /// Both ends of the misfit, as an error has to name them.
    pub(super) maker: String,
    pub(super) taker: String,
}

impl Misfit {
    /// Everything from `seed`.
    pub(super) fn draw(seed: u64) -> Result<Misfit, String> {
        let mut drawing = Drawing { rng: Rng::new(seed, 2), is_faithful: false };
        for _ in 0..TRIES * TRIES {
            let format = FORMATS[drawing.rng.up_to(5) as usize].clone();
            let before = drawing.rng.up_to(PAIRS_MAX - 1);
            let mut pairs = drawing.fitting(&format, before)?;
            let made = made(&pairs, &format)?;
            let taker = drawing.pair()?;
            if taker.pair.accept(&made, &taker.options).is_ok() {
                continue;
            }
            let maker = match pairs.last() {
                Some(last) => format!("`{}` makes {made}", last.pair.name()),
                None => format!("the flow is {made}"),
            };
            let name = format!("`{}` cannot take", taker.pair.name());
            pairs.push(taker);
            for _ in 0..drawing.rng.up_to(PAIRS_MAX - 1 - before) {
                pairs.push(drawing.pair()?);
            }
            let pipeline = parse(&pairs)?;
            return Ok(Misfit { format, pipeline, maker, taker: name });
        }
        Err("no pair was drawn that does not fit".into())
    }
}

/// What pairs that fit make of `format`.
fn made(pairs: &[Drawn], format: &Format) -> Result<Format, String> {
    pairs.iter().try_fold(format.clone(), |format, drawn| drawn.pair.accept(&format, &drawn.options))
}

fn parse(pairs: &[Drawn]) -> Result<Pipeline, String> {
    let text = pairs.iter().map(Drawn::text).collect::<Vec<_>>().join(" | ");
    Pipeline::parse(&text, stages::PAIRS, Origin::Local).map_err(|error| error.to_string())
}

impl Drawing {
    /// Pairs of which each takes what the one before makes.
    fn fitting(&mut self, format: &Format, count: u64) -> Result<Vec<Drawn>, String> {
        let (mut pairs, mut format, mut ways) = (Vec::new(), format.clone(), 1);
        while (pairs.len() as u64) < count {
            let drawn = self.pair()?;
            // Behind a pair that makes bytes of a format no pair for that one fits any more.
            let may_hide = self.rng.chance(1, 2);
            if let Ok(made) = drawn.pair.accept(&format, &drawn.options)
                && (may_hide || made == format)
                && ways * drawn.ways() <= WAYS_MAX
            {
                ways *= drawn.ways();
                format = made;
                pairs.push(drawn);
            }
        }
        Ok(pairs)
    }

    fn pair(&mut self) -> Result<Drawn, String> {
        let all: Vec<_> = pairs().collect();
        for _ in 0..TRIES * TRIES {
            let pair = all[self.rng.up_to(all.len() as u64 - 1) as usize];
            let given = self.options(pair.options());
            let words = given.iter().map(|(name, value)| (*name, value.as_str()));
            let Ok(options) = Options::check(pair.options(), words) else { continue };
            let is_unfaithful = pair.promises(&options).may_drop || changes(pair, &options);
            if pair.check(&options).is_err() || self.is_faithful && is_unfaithful {
                continue;
            }
            let arguments = given.iter().map(|(name, value)| format!("{name}={value}")).collect();
            return Ok(Drawn { pair, options, arguments });
        }
        Err("no options were drawn that a pair takes".into())
    }

    /// Values for about a third of these options.
    fn options(&mut self, specs: &'static [OptionSpec]) -> Vec<(&'static str, String)> {
        let mut given = Vec::new();
        for spec in specs {
            if self.rng.chance(1, 3)
                && let Some(value) = self.value(&spec.kind)
            {
                given.push((spec.name, value));
            }
        }
        given
    }

    fn value(&mut self, kind: &OptionKind) -> Option<String> {
        Some(match *kind {
            OptionKind::Integer { min, max } => {
                let most = max.min(min.saturating_add(RANGE));
                (min + self.rng.up_to(most.abs_diff(min)) as i64).to_string()
            }
            OptionKind::Number { min, max } => {
                let share = self.rng.up_to(1000) as f64 / 1000.0;
                let (least, most) = (min.max(0.5), max.min(2.0));
                format!("{:.3}", least + share * (most - least))
            }
            OptionKind::Duration { min, max } => {
                let least = min.as_micros() as u64;
                let most = (max.min(Duration::from_millis(WAIT_MS_MAX)).as_micros() as u64).max(least);
                format!("{}us", least + self.rng.up_to(most - least))
            }
            OptionKind::Size { min, max } => LIMIT_BYTES.clamp(min, max).to_string(),
            OptionKind::Share => format!("{}%", self.rng.up_to(10)),
            OptionKind::Flag => ["false", "true"][self.rng.up_to(1) as usize].into(),
            OptionKind::Choice(words) => words[self.rng.up_to(words.len() as u64 - 1) as usize].into(),
            OptionKind::OrAuto(_) if self.rng.chance(1, 2) => "auto".into(),
            OptionKind::OrAuto(kind) => return self.value(kind),
            OptionKind::Text { .. } => return None,
        })
    }
}
