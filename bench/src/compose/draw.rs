//! Random pipelines from the table of pairs, with random options of the declared kinds.

use contract::{FlowClass, Format, OptionKind, OptionSpec, Options, Pair, Shape};
use netsim::{Params, Rng};
use pipeline::{Origin, Pipeline};
use std::time::Duration;

/// Pairs that are never drawn, with the reason.
pub(super) const LEFT_OUT: [(&str, &str); 2] = [
    ("exec", "its halves are the user's programs"),
    ("prefetch", "it creates requests of its own, and is part of both flows of a driver"),
];

/// Most pairs of a pipeline.
const PAIRS_MAX: u64 = 8;
/// Fewest and most messages of a flow.
const MESSAGES: [u64; 2] = [40, 100];
/// Longest wait that an option sets, milliseconds: flows are short.
const WAIT_MS_MAX: u64 = 40;
/// Byte limit that an option sets: more than all messages of a flow.
const LIMIT_BYTES: u64 = 16 << 20;
/// Range of drawn integers above the minimum.
const RANGE: i64 = 16;
/// Most lanes of all pairs together: each may carry the whole message.
const LANES_MAX: u64 = 16;
/// Attempts to draw options that a pair accepts.
const TRIES: usize = 20;

const FORMATS: [Format; 6] =
    [Format::Bytes, Format::Motion, Format::Video, Format::Evdev, Format::Audio, Format::Serial];

/// A flow between two hosts with all its random choices.
#[derive(Debug)]
pub(super) struct Case {
    pub(super) seed: u64,
    pub(super) format: Format,
    pub(super) class: FlowClass,
    pub(super) transport: &'static str,
    pub(super) network: Params,
    pub(super) pipeline: Pipeline,
    /// True if one stage runs in a process of its own.
    pub(super) is_isolated: bool,
    pub(super) messages: u64,
}

/// The state of drawing a flow's pairs.
struct Drawing {
    rng: Rng,
    /// Draw only pairs that neither drop nor change messages.
    is_faithful: bool,
}

/// A pair with drawn options.
struct Drawn {
    pair: &'static dyn Pair,
    options: Options,
    arguments: Vec<String>,
}

impl Drawn {
    /// Returns the lanes that the pair divides a flow into.
    fn lanes(&self) -> u64 {
        match self.pair.shape(&self.options) {
            Shape::Fan(lanes) => lanes.into(),
            _ => 1,
        }
    }

    fn text(&self) -> String {
        match self.arguments.is_empty() {
            true => self.pair.name().to_string(),
            false => format!("{}({})", self.pair.name(), self.arguments.join(", ")),
        }
    }

    /// Returns true if the pair can run in a process of its own, with one flow in and one out.
    fn may_be_isolated(&self) -> bool {
        self.pair.shape(&self.options) == Shape::Line && self.pair.side_ports().is_empty()
    }
}

/// Returns true if the pair changes bodies. `replay` changes creation times only.
pub(super) fn changes(pair: &dyn Pair, options: &Options) -> bool {
    pair.promises(options).may_change && pair.name() != "replay"
}

/// Returns the pairs to draw from.
pub(super) fn pairs() -> impl Iterator<Item = &'static dyn Pair> {
    stages::PAIRS.iter().copied().filter(|pair| LEFT_OUT.iter().all(|(name, _)| *name != pair.name()))
}

impl Case {
    /// Draws a flow from `seed`. Stages may run in processes of their own if `may_isolate`.
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
            "{}, {:?}, delay {delay:.1} ms, jitter {jitter:.1} ms, loss {loss:.1} %",
            self.transport, self.class
        )
    }
}

/// Draws a pipeline of `count` pairs for `format` that delivers every message whole and in order. Some pairs run in
/// processes of their own.
pub(crate) fn exact(seed: u64, format: &Format, count: u64) -> Result<String, String> {
    let mut drawing = Drawing { rng: Rng::new(seed, 3), is_faithful: true };
    for _ in 0..TRIES {
        let pairs = drawing.fitting(format, count)?;
        if pairs.iter().any(|drawn| {
            // `replay` keeps the rhythm of a flow, so that a delay stays after a fault.
            drawn.pair.name() == "replay" || drawn.pair.promises(&drawn.options).may_reorder
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
    Err("all drawn pairs may reorder".into())
}

/// A pipeline with a pair that cannot take its input.
#[derive(Debug)]
pub(super) struct Misfit {
    pub(super) format: Format,
    pub(super) pipeline: Pipeline,
    /// Both ends of the misfit, as an error must name them.
    pub(super) source: String,
    pub(super) sink: String,
}

impl Misfit {
    /// Draws a misfit from `seed`.
    pub(super) fn draw(seed: u64) -> Result<Misfit, String> {
        let mut drawing = Drawing { rng: Rng::new(seed, 2), is_faithful: false };
        for _ in 0..TRIES * TRIES {
            let format = FORMATS[drawing.rng.up_to(5) as usize].clone();
            let before = drawing.rng.up_to(PAIRS_MAX - 1);
            let mut pairs = drawing.fitting(&format, before)?;
            let made = made(&pairs, &format)?;
            let sink = drawing.pair()?;
            if sink.pair.accept(&made, &sink.options).is_ok() {
                continue;
            }
            let source = match pairs.last() {
                Some(last) => format!("`{}` makes {made}", last.pair.name()),
                None => format!("the flow is {made}"),
            };
            let name = format!("`{}` cannot take", sink.pair.name());
            pairs.push(sink);
            for _ in 0..drawing.rng.up_to(PAIRS_MAX - 1 - before) {
                pairs.push(drawing.pair()?);
            }
            let pipeline = parse(&pairs)?;
            return Ok(Misfit { format, pipeline, source, sink: name });
        }
        Err("all drawn pairs fit".into())
    }
}

/// Returns the output format of fitting pairs.
fn made(pairs: &[Drawn], format: &Format) -> Result<Format, String> {
    pairs.iter().try_fold(format.clone(), |format, drawn| drawn.pair.accept(&format, &drawn.options))
}

fn parse(pairs: &[Drawn]) -> Result<Pipeline, String> {
    let text = pairs.iter().map(Drawn::text).collect::<Vec<_>>().join(" | ");
    Pipeline::parse(&text, stages::PAIRS, Origin::Local).map_err(|error| error.to_string())
}

impl Drawing {
    /// Draws pairs: each takes the previous one's output.
    fn fitting(&mut self, format: &Format, count: u64) -> Result<Vec<Drawn>, String> {
        let (mut pairs, mut format, mut lanes) = (Vec::new(), format.clone(), 1);
        while (pairs.len() as u64) < count {
            let drawn = self.pair()?;
            // A pair that turns the format into bytes hides it from the pairs behind. Half of the time draw another.
            let may_hide = self.rng.chance(1, 2);
            if let Ok(made) = drawn.pair.accept(&format, &drawn.options)
                && (may_hide || made == format)
                && lanes * drawn.lanes() <= LANES_MAX
            {
                lanes *= drawn.lanes();
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
        Err("no pair accepts its drawn options".into())
    }

    /// Draws values for about a third of these options.
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
