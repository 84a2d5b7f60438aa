//! `pattern:size=1000,rate=62.5`: synthetic messages at an exact rate, with content that can be checked.

mod motion;
#[cfg(test)]
mod tests;
mod video;

use crate::flows::{Endpoint, FlowPartner};
use crate::null::Arrivals;
use crate::plain;
use crate::stream::now;
use buffers::Pool;
use contract::{
    Body, Ctl, CtlReply, Description, DeviceClass, DeviceError, DeviceSpec, Direction, FlowClass, FlowKey,
    FlowOffer, FlowTemplate, Format, Message, ModuleEntry, Next, Opened, OptionKind, OptionSpec, Options,
    Partner, PartnerError, PartnerResult, PullSlot, Pushed, Readiness, Report, Role, Time, local,
};
use motion::{Cap, Follower};
use std::time::Duration;
use video::Scene;
use wire::formats::video::{Header, SIDE_MAX};

/// The class `pattern`.
#[derive(Debug)]
pub struct Pattern;

const SIDE: OptionKind = OptionKind::Integer { min: 1, max: SIDE_MAX as i64 };

const OPTIONS: &[OptionSpec] = &[
    local("format", OptionKind::Choice(&["bytes", "motion", "video"]), "bytes", "format of the messages"),
    local("size", OptionKind::Size { min: 0, max: 64 << 20 }, "1000", "size of a message with format=bytes"),
    local(
        "rate",
        OptionKind::Number { min: 0.0, max: 1e7 },
        "62.5",
        "messages a second; 0: as fast as they are pulled",
    ),
    local("count", OptionKind::Integer { min: 0, max: i64::MAX }, "0", "number of messages; 0: no limit"),
    local("seed", OptionKind::Integer { min: 0, max: i64::MAX }, "1", "chooses the content"),
    local("width", SIDE, "640", "width of a picture, pixels"),
    local("height", SIDE, "480", "height of a picture, pixels"),
    local("pixels", OptionKind::Choice(video::PIXELS), "bgrx", "pixel format of a picture"),
];

impl DeviceClass for Pattern {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry {
            name: "pattern",
            summary: "synthetic messages at an exact rate, as a device; checks them, as an application",
            doc: include_str!("doc.md"),
            options: OPTIONS,
        }
    }

    fn target(&self) -> &'static str {
        ""
    }

    fn flows(&self, spec: &DeviceSpec) -> Result<Vec<FlowOffer>, DeviceError> {
        let (format, class) = match format(&spec.options) {
            Format::Motion => (Format::Motion, FlowClass::State),
            format => (format, FlowClass::Reliable),
        };
        if format == Format::Video {
            Scene::new(&spec.options).map_err(|problem| wrong_scene(spec, problem))?;
        }
        let flow = |flow| FlowOffer { format: format.clone(), class, ..flow };
        Ok(plain::forward_flow().into_iter().map(flow).collect())
    }

    fn open(&self, spec: &DeviceSpec, role: Role, _: Option<&Description>) -> Result<Opened, DeviceError> {
        let description = plain::description(spec, self.flows(spec)?, "null");
        Ok(Opened { spec: spec.clone(), role, description, descriptors: Vec::new() })
    }

    fn partner(&self, opened: Opened) -> Result<Box<dyn Partner>, DeviceError> {
        let options = &opened.spec.options;
        let content = Content { size: options.size("size"), seed: options.integer("seed") as u64 };
        let rate_hz = options.number("rate");
        let format = format(options);
        let scene = || Scene::new(options).map_err(|problem| wrong_scene(&opened.spec, problem));
        Ok(match opened.role {
            Role::Device => {
                let source = Source {
                    generator: match format {
                        Format::Motion => Generator::Motion(Cap::new(content.seed, nominal(rate_hz))),
                        Format::Video => {
                            let scene = scene()?;
                            let pool = Pool::new(scene.size(), 8);
                            Generator::Video(scene, pool)
                        }
                        _ => Generator::Bytes(content, Pool::new(content.size, 32)),
                    },
                    format: format.clone(),
                    rate_hz,
                    count: Some(options.integer("count") as u64).filter(|count| *count > 0),
                    start: None,
                    generated: 0,
                    needs_snapshot: false,
                    replaced: 0,
                    has_ended: false,
                };
                Box::new(FlowPartner::new(source, Some(format), None))
            }
            Role::Application => {
                let checker = Checker {
                    arrivals: Arrivals::default(),
                    check: match format {
                        Format::Motion => Check::Motion(Follower::default()),
                        Format::Video => Check::Video(Sequence::new(scene()?)),
                        _ => Check::Bytes(Sequence::new(content)),
                    },
                };
                Box::new(FlowPartner::new(checker, None, Some(format)))
            }
        })
    }
}

fn wrong_scene(spec: &DeviceSpec, problem: String) -> DeviceError {
    DeviceError::Spec { what: format!("`{}:`", spec.class), problem }
}

fn format(options: &Options) -> Format {
    Format::from_name(options.text("format")).unwrap_or(Format::Bytes)
}

/// Returns the rate that messages state; with rate 0 they state the default rate.
fn nominal(rate_hz: f64) -> f64 {
    if rate_hz > 0.0 { rate_hz } else { 62.5 }
}

/// Content of format `bytes`: the message's number, then noise that depends on the number and the seed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Content {
    pub(crate) size: usize,
    pub(crate) seed: u64,
}

/// Content that depends only on the message's number and starts with it, so that any message can be checked.
pub(crate) trait Numbered {
    /// Returns the size of a message.
    fn size(&self) -> usize;

    /// Writes message `number` into `into`.
    fn fill(&self, number: u64, into: &mut [u8]);
}

impl Numbered for Content {
    fn size(&self) -> usize {
        self.size
    }

    fn fill(&self, number: u64, into: &mut [u8]) {
        let mut state = self.seed ^ number.wrapping_mul(0x2545_f491_4f6c_dd1d);
        let mut word = number;
        // Words of known length are stored, not copied by a call each.
        let (words, rest) = into.as_chunks_mut();
        for place in words {
            *place = word.to_le_bytes();
            word = split_mix(&mut state);
        }
        rest.copy_from_slice(&word.to_le_bytes()[..rest.len()]);
    }
}

/// Returns the next word of SplitMix64 (Steele, Lea and Flood 2014).
fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut word = *state;
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// Generates messages by their number.
#[derive(Debug)]
enum Generator {
    Bytes(Content, Pool),
    Motion(Cap),
    Video(Scene, Pool),
}

fn filled(content: &impl Numbered, pool: &Pool, number: u64) -> Body {
    let mut memory = pool.take();
    content.fill(number, &mut memory);
    memory.freeze().into()
}

impl Generator {
    fn generate(&self, number: u64) -> Body {
        match self {
            Generator::Bytes(content, pool) => filled(content, pool, number),
            Generator::Video(scene, pool) => {
                let mut body = filled(scene, pool, number);
                body.push_front(&scene.header().emit());
                body
            }
            Generator::Motion(cap) => cap.update(number).to_bytes().into(),
        }
    }

    /// Returns a snapshot of the state before message `number`, if the format has snapshots.
    fn snapshot(&self, number: u64) -> Option<Body> {
        match self {
            Generator::Bytes(..) | Generator::Video(..) => None,
            Generator::Motion(cap) => Some(cap.snapshot(number).to_bytes().into()),
        }
    }
}

#[derive(Debug)]
struct Source {
    format: Format,
    generator: Generator,
    rate_hz: f64,
    count: Option<u64>,
    /// Time of the first message.
    start: Option<Time>,
    generated: u64,
    /// The next pull returns a snapshot.
    needs_snapshot: bool,
    /// Messages replaced by a snapshot.
    replaced: u64,
    has_ended: bool,
}

impl Source {
    /// Returns the time of the next message, computed from the start, so that errors do not accumulate. `None` without
    /// a rate.
    fn due(&self) -> Option<Time> {
        let start = self.start.filter(|_| self.rate_hz > 0.0)?;
        Some(start.after(Duration::from_nanos((self.generated as f64 * 1e9 / self.rate_hz) as u64)))
    }
}

impl Endpoint for Source {
    fn opened(&mut self, _template: &FlowTemplate, _slot: &mut PullSlot) -> PartnerResult {
        self.start.get_or_insert_with(now);
        Ok(())
    }

    fn next(&mut self, now: Time) -> PartnerResult<Next> {
        if std::mem::take(&mut self.needs_snapshot)
            && let Some(body) = self.generator.snapshot(self.generated)
        {
            return Ok(Next::Message(Message::new(now, body)));
        }
        if self.count.is_some_and(|count| self.generated >= count) {
            self.has_ended = true;
            return Ok(Next::End);
        }
        let created = match self.due() {
            Some(due) if due > now => return Ok(Next::Nothing),
            due => due.unwrap_or(now),
        };
        let body = self.generator.generate(self.generated);
        self.generated += 1;
        Ok(Next::Message(Message::new(created, body)))
    }

    fn ctl(&mut self, _flow: FlowKey, operation: Ctl<'_>, slot: &mut PullSlot) -> PartnerResult<CtlReply> {
        match operation {
            Ctl::Flush | Ctl::Finish | Ctl::Neutral => Ok(CtlReply::Done),
            Ctl::Snapshot if self.format == Format::Motion => {
                self.replaced += u64::from(std::mem::take(slot).is_held());
                self.needs_snapshot = true;
                Ok(CtlReply::Done)
            }
            Ctl::Report => Ok(CtlReply::Report(vec![
                ("messages", self.generated as f64),
                ("replaced", self.replaced as f64),
            ])),
            _ => Err(PartnerError::Unsupported("this operation")),
        }
    }

    fn readiness(&self, _direction: Direction) -> Readiness<'_> {
        if self.has_ended {
            return Readiness::never();
        }
        match self.due().filter(|_| !self.needs_snapshot && self.count != Some(self.generated)) {
            Some(due) => Readiness::at(due),
            None => Readiness::now(),
        }
    }
}

/// Checks that messages come from a [`Source`] with the same options, in order.
#[derive(Debug)]
struct Sequence<C> {
    content: C,
    /// Expected number of the next message.
    expected: u64,
    missing: u64,
    repeated: u64,
    wrong: u64,
}

impl<C: Numbered> Sequence<C> {
    fn new(content: C) -> Self {
        Sequence { content, expected: 0, missing: 0, repeated: 0, wrong: 0 }
    }

    fn check(&mut self, body: &[u8]) {
        let mut number = [0; 8];
        let known = body.len().min(8);
        number[..known].copy_from_slice(&body[..known]);
        // A message that is too short for a number counts as the next.
        let number = if known == 8 { u64::from_le_bytes(number) } else { self.expected };
        let mut correct = vec![0; body.len()];
        self.content.fill(number, &mut correct);
        if body.len() != self.content.size() || body != correct {
            self.wrong += 1;
            self.expected += 1;
        } else if number < self.expected {
            self.repeated += 1;
        } else {
            self.missing += number - self.expected;
            self.expected = number.saturating_add(1);
        }
    }

    fn report(&self) -> [Report; 3] {
        [("missing", self.missing as f64), ("repeated", self.repeated as f64), ("wrong", self.wrong as f64)]
    }
}

/// Checks messages of one format.
#[derive(Debug)]
enum Check {
    Bytes(Sequence<Content>),
    Motion(Follower),
    Video(Sequence<Scene>),
}

#[derive(Debug)]
struct Checker {
    arrivals: Arrivals,
    check: Check,
}

impl Endpoint for Checker {
    fn push(&mut self, mut message: Message) -> Result<Pushed, (PartnerError, Message)> {
        self.arrivals.count(message.body.len(), now());
        match &mut self.check {
            Check::Bytes(sequence) => sequence.check(message.body.as_slice()),
            Check::Motion(follower) => follower.apply(message.body.as_slice()),
            Check::Video(sequence) => {
                let (start, pixels) =
                    message.body.as_slice().split_at_checked(Header::BYTES).unwrap_or_default();
                // A picture with another geometry counts as wrong, like one without pixels.
                let has_header = start == sequence.content.header().emit();
                sequence.check(if has_header { pixels } else { &[] });
            }
        }
        Ok(Pushed::Taken)
    }

    fn ctl(&mut self, _flow: FlowKey, operation: Ctl<'_>, _slot: &mut PullSlot) -> PartnerResult<CtlReply> {
        match operation {
            Ctl::Flush | Ctl::Finish => Ok(CtlReply::Done),
            Ctl::Neutral => {
                if let Check::Motion(follower) = &mut self.check {
                    follower.release_all();
                }
                Ok(CtlReply::Done)
            }
            Ctl::Report => {
                let mut report = self.arrivals.report();
                match &self.check {
                    Check::Bytes(sequence) => report.extend(sequence.report()),
                    Check::Motion(follower) => report.extend(follower.report()),
                    Check::Video(sequence) => report.extend(sequence.report()),
                }
                Ok(CtlReply::Report(report))
            }
            _ => Err(PartnerError::Unsupported("this operation")),
        }
    }

    fn readiness(&self, _direction: Direction) -> Readiness<'_> {
        Readiness::now()
    }
}
