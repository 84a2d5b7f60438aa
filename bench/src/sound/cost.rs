//! Processor time of the sound pairs: each pipeline gets stereo sound for some time, without a network, in virtual time.

use super::{FEEDBACK, STARTED, direct};
use crate::setting::Failure;
use contract::{Feedback, Fill, Format, Message};
use pipeline::{Chain, ChainOut, Origin, Pipeline};
use serde_json::{Value, json};
use std::time::Duration;
use sys::clock::process_cpu_ns;
use wire::formats::audio::{Frames, SampleFormat, SampleSpec, encode};

/// The samples and the quantum of the class `audio`.
const SPEC: SampleSpec = SampleSpec { format: SampleFormat::S16, channels: 2, rate_hz: 48_000 };
const QUANTUM: usize = 128;
/// The time of the sound.
const SECONDS: usize = 60;
/// The transit of the network.
const TRANSIT: Duration = Duration::from_millis(20);
const PIPELINES: [&str; 6] =
    ["null", "resample", "buffer(play, delay=auto)", "opus", super::DEFAULT, super::DEFAULT_WITH_LOSS];

/// Processor time of both halves of a pipeline, as shares of one core.
fn shares(text: &str, speech: &[f32]) -> Result<[f64; 2], Failure> {
    let pipeline = Pipeline::parse(text, modules::registry::pairs(), Origin::Peer)?;
    let mut source =
        Chain::source(&pipeline, &Format::Audio, &mut direct).map_err(|error| error.to_string())?;
    let mut sink = Chain::sink(&pipeline, &Format::Audio, &mut direct).map_err(|error| error.to_string())?;
    let (mut sent, mut heard) = (ChainOut::default(), ChainOut::default());
    let target = Duration::from_micros(5_333);
    let fill = Fill {
        held: target + Duration::from_micros(300),
        target,
        lead: Duration::ZERO,
        rate_hz: SPEC.rate_hz,
    };
    let mut spent_ns = [0; 2];
    let mut next_feedback = STARTED;
    for number in 0..SECONDS * SPEC.rate_hz as usize / QUANTUM {
        let frames = number * QUANTUM..(number + 1) * QUANTUM;
        let samples = frames.flat_map(|frame| [speech[frame % speech.len()]; 2]).collect::<Vec<f32>>();
        let samples = encode(SPEC.format, &samples);
        let body = Frames { spec: SPEC, position: (number * QUANTUM) as u64, samples: &samples }.emit();
        let created = STARTED.after(Duration::from_nanos(SPEC.duration_ns((number * QUANTUM) as u64)));

        let begun = process_cpu_ns();
        if created >= next_feedback {
            next_feedback = created.after(FEEDBACK);
            let feedback = Feedback { received: 90, lost: 0, ..Feedback::default() };
            source.handle_feedback(&feedback, created, &mut sent);
        }
        if source.poll_timeout().is_some_and(|at| at <= created) {
            source.handle_timeout(created, &mut sent);
        }
        source.handle(Message::new(created, body), created, &mut sent);
        spent_ns[0] += process_cpu_ns() - begun;

        let now = created.after(TRANSIT);
        let messages: Vec<Message> = sent.messages.drain(..).collect();
        let begun = process_cpu_ns();
        for message in messages {
            sink.handle(Message::new(message.created, message.body), now, &mut heard);
        }
        if sink.poll_timeout().is_some_and(|at| at <= now) {
            sink.handle_timeout(now, &mut heard);
        }
        if heard.messages.drain(..).count() > 0 {
            sink.handle_fill(fill, now, &mut heard);
        }
        spent_ns[1] += process_cpu_ns() - begun;
    }
    Ok(spent_ns.map(|spent_ns| spent_ns as f64 / 1e9 / SECONDS as f64))
}

/// Prints the processor time of the pairs.
pub(super) fn run(speech: &[f32]) -> Result<Vec<Value>, Failure> {
    println!(
        "\nProcessor time of the pairs alone, in % of one core: {SECONDS} s of two channels in quanta of {QUANTUM} frames, without a network.\n"
    );
    println!("| pipeline | source half | sink half |");
    println!("|---|---:|---:|");
    let mut rows = Vec::new();
    for text in PIPELINES {
        let [source, sink] = shares(text, speech)?.map(|share| share * 100.0);
        println!("| {} | {source:.2} | {sink:.2} |", super::cell(text));
        rows.push(json!({ "experiment": "sound cost", "pipeline": text, "source_percent": source,
            "sink_percent": sink }));
    }
    Ok(rows)
}
