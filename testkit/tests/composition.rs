//! Pairs undo each other in any order: whole pipelines of lossless pairs, both halves, in virtual time.

use contract::{Format, Half, Link, Message, Site, StageResult, Time};
use pipeline::{Chain, ChainOut, Origin, PairUse, Pipeline};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::time::Duration;
use wire::formats::audio::{Frames, SampleFormat, SampleSpec, encode};

/// The one-way delay of messages and control messages.
const NETWORK: Duration = Duration::from_millis(7);

const PAIRS: [&str; 13] = [
    "null",
    "tap",
    "compress",
    "compress(zlib)",
    "compress(lz4)",
    "bundle",
    "bundle(count=3, wait=20ms)",
    "reorder",
    "delay(5ms, jitter=30ms)",
    "buffer(full=wait)",
    "buffer(min=2, max=4, source_max=3, full=wait)",
    "buffer(play)",
    "buffer(play, delay=auto)",
];

fn direct(used: &PairUse, half: Half, format: &Format) -> StageResult<Box<dyn Link>> {
    let stage = used.pair.half(half, &used.options, format, &Site::default())?;
    Ok(Box::new(links::Direct::new(stage)))
}

/// Two chains, and the messages in flight between them.
struct Hosts {
    source: Chain,
    sink: Chain,
    out: ChainOut,
    now: Time,
    outside: VecDeque<Message>,
    data: VecDeque<(Time, Message)>,
    arrived: VecDeque<Message>,
    to_source: VecDeque<(Time, usize, Vec<u8>)>,
    to_sink: VecDeque<(Time, usize, Vec<u8>)>,
    received: Vec<Message>,
}

impl Hosts {
    fn new(text: &str) -> Self {
        Hosts::with_format(text, &Format::Motion)
    }

    fn with_format(text: &str, format: &Format) -> Self {
        let pipeline = Pipeline::parse(text, stages::PAIRS, Origin::Peer).unwrap();
        let half = |make: fn(&Pipeline, &Format, &mut pipeline::MakeLink<'_>) -> _| -> Chain {
            Result::unwrap(make(&pipeline, format, &mut direct))
        };
        Hosts {
            source: half(Chain::source),
            sink: half(Chain::sink),
            out: ChainOut::default(),
            now: Time::from_millis(1000),
            outside: VecDeque::new(),
            data: VecDeque::new(),
            arrived: VecDeque::new(),
            to_source: VecDeque::new(),
            to_sink: VecDeque::new(),
            received: Vec::new(),
        }
    }

    fn left_source(&mut self) {
        assert_eq!((&self.out.errors, &self.out.drops), (&Vec::new(), &Vec::new()));
        let then = self.now.after(NETWORK);
        let crossing = self.out.messages.drain(..).map(|m| (then, Message::new(m.created, m.body)));
        self.data.extend(crossing);
        self.to_sink.extend(self.out.controls.drain(..).map(|(pair, bytes)| (then, pair, bytes)));
        self.out.sides.clear();
    }

    fn left_sink(&mut self) {
        assert_eq!((&self.out.errors, &self.out.drops), (&Vec::new(), &Vec::new()));
        let then = self.now.after(NETWORK);
        self.received.extend(self.out.messages.drain(..));
        self.to_source.extend(self.out.controls.drain(..).map(|(pair, bytes)| (then, pair, bytes)));
        self.out.sides.clear();
    }

    fn run_until(&mut self, end: Time) {
        loop {
            while self.source.has_room()
                && let Some(message) = self.outside.pop_front()
            {
                self.source.handle(message, self.now, &mut self.out);
                self.left_source();
            }
            while self.sink.has_room()
                && let Some(message) = self.arrived.pop_front()
            {
                self.sink.handle(message, self.now, &mut self.out);
                self.left_sink();
            }
            let events = [
                self.data.front().map(|data| data.0),
                self.to_source.front().map(|control| control.0),
                self.to_sink.front().map(|control| control.0),
                self.source.poll_timeout(),
                self.sink.poll_timeout(),
            ];
            let Some(at) = events.into_iter().flatten().min().filter(|at| *at <= end) else {
                self.now = self.now.max(end);
                return;
            };
            self.now = self.now.max(at);
            self.happen();
        }
    }

    fn happen(&mut self) {
        while self.data.front().is_some_and(|data| data.0 <= self.now) {
            self.arrived.extend(self.data.pop_front().map(|data| data.1));
        }
        while self.to_source.front().is_some_and(|control| control.0 <= self.now) {
            let (_, pair, bytes) = self.to_source.pop_front().unwrap();
            self.source.handle_control(pair, &bytes, self.now, &mut self.out);
            self.left_source();
        }
        while self.to_sink.front().is_some_and(|control| control.0 <= self.now) {
            let (_, pair, bytes) = self.to_sink.pop_front().unwrap();
            self.sink.handle_control(pair, &bytes, self.now, &mut self.out);
            self.left_sink();
        }
        self.source.handle_timeout(self.now, &mut self.out);
        self.left_source();
        self.sink.handle_timeout(self.now, &mut self.out);
        self.left_sink();
    }

    fn end(&mut self) {
        let patience = self.now.after(Duration::from_secs(600));
        while !self.outside.is_empty() && self.now < patience {
            self.run_until(self.now.after(Duration::from_millis(5)));
        }
        assert!(self.outside.is_empty(), "the source never has room again");
        self.source.handle_end(self.now, &mut self.out);
        self.left_source();
        while (!self.data.is_empty() || !self.arrived.is_empty()) && self.now < patience {
            self.run_until(self.now.after(Duration::from_millis(5)));
        }
        assert!(self.arrived.is_empty(), "the sink never has room again");
        self.sink.handle_end(self.now, &mut self.out);
        self.left_sink();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn any_lossless_pipeline_returns_its_input(
        pairs in prop::collection::vec(prop::sample::select(PAIRS.to_vec()), 0..8),
        messages in prop::collection::vec((0u64..40, prop::collection::vec(any::<u8>(), 0..60), 1usize..9), 1..60),
        gap_at in 0usize..60,
    ) {
        let mut hosts = Hosts::new(&pairs.join(" | "));
        let mut sent = Vec::new();
        for (number, (wait_ms, bytes, times)) in messages.into_iter().enumerate() {
            hosts.run_until(hosts.now.after(Duration::from_millis(wait_ms)));
            let message = Message::new(hosts.now, bytes.repeat(times));
            sent.push(message.clone());
            hosts.outside.push_back(message);
            if number == gap_at {
                hosts.sink.handle_gap(hosts.now, &mut hosts.out);
                hosts.left_sink();
            }
        }
        hosts.end();
        prop_assert_eq!(hosts.received.len(), sent.len());
        for (received, sent) in hosts.received.iter().zip(&sent) {
            prop_assert_eq!(received.created, sent.created);
            prop_assert_eq!(&received.body, &sent.body);
        }
    }
}

/// The pairs of sound, in the order that the documentation names: all of a tone arrives, and in order.
#[test]
fn sound_passes_all_its_pairs() {
    let spec = SampleSpec { format: SampleFormat::S16, channels: 2, rate_hz: 48_000 };
    let has_opus = stages::PAIRS.iter().filter(|pair| pair.name() == "opus").any(|pair| {
        let options = contract::Options::defaults(pair.options()).unwrap();
        pair.check_half(contract::Half::Source, &options).is_ok()
    });
    let last = if has_opus { " | opus" } else { "" };
    for text in [
        "resample",
        "resample | buffer(play, delay=auto)",
        "resample | buffer(play, delay=30ms) | compress(lz4) | reorder",
    ] {
        let text = if text.contains("compress") { text.to_owned() } else { format!("{text}{last}") };
        let mut hosts = Hosts::with_format(&text, &Format::Audio);
        for quantum in 0..200u64 {
            let value = |frame: u64| (0.4 * (frame as f64 * 0.05).sin()) as f32;
            let frames = quantum * 240..quantum * 240 + 240;
            let samples: Vec<f32> = frames.flat_map(|frame| [value(frame); 2]).collect();
            let samples = encode(spec.format, &samples);
            let frames = Frames { spec, position: quantum * 240, samples: &samples };
            hosts.outside.push_back(Message::new(hosts.now, frames.emit()));
            hosts.run_until(hosts.now.after(Duration::from_millis(5)));
        }
        hosts.end();
        let (mut count, mut next) = (0, None);
        for message in &hosts.received {
            let bytes = message.body.clone().into_bytes();
            let frames = Frames::parse(&bytes).unwrap();
            assert_eq!((frames.spec, next.unwrap_or(frames.position)), (spec, frames.position), "{text}");
            (count, next) = (count + frames.count(), Some(frames.position + frames.count() as u64));
        }
        assert!((47_900..48_960).contains(&count), "{text}: {count} frames of 48000");
    }
}
