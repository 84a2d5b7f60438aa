//! Speech over a network that loses packets: plain samples with silence for a loss, `buffer(play)`, which conceals losses, and
//! `opus`, which also repeats. Virtual time, so every run is the same.
//!
//! A second table has the delay that a pipeline adds to that of a network: on a quiet one, and after 10 s of jitter; [`cost`] has the
//! processor time of the pairs; [`programs`] has whole programs, beside PipeWire's own RTP.
//!
//! Scores: the segmental signal-to-noise ratio, computed here; and, if Python has the packages `pesq` and `visqol-python`, PESQ
//! (ITU-T P.862.2) and ViSQOL ("ViSQOL v3: An open source production ready objective speech and audio metric" (2020)).

mod cost;
mod programs;

use crate::setting::Failure;
use clap::Args;
use contract::{Feedback, Format, Half, Message, Site, StageResult, Time};
use netsim::{Link, Params};
use pipeline::{Chain, ChainOut, Origin, PairUse, Pipeline};
use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use wire::formats::audio::{Frames, SampleFormat, SampleSpec, encode};

const SPEC: SampleSpec = SampleSpec { format: SampleFormat::S16, channels: 1, rate_hz: 48_000 };
/// Frames of a quantum: 5 ms.
const QUANTUM: usize = 240;
/// The time of the first quantum.
const STARTED: Time = Time::from_millis(1000);
/// The time between two reports of the sink's host.
const FEEDBACK: Duration = Duration::from_millis(250);
/// The segments of the signal-to-noise ratio, in frames.
const SEGMENT: usize = 960;
const SCORE: &str = include_str!("score.py");
const TEXT: &str = "The birch canoe slid on the smooth planks. Glue the sheet to the dark blue background. \
    It is easy to tell the depth of a well. These days a chicken leg is a rare dish. Rice is often served in round bowls.";

/// The settings of `sound`.
#[derive(Args, Debug, Clone)]
pub(crate) struct SoundSetting {
    /// Speech: a file that FFmpeg reads. Without it, espeak-ng speaks sentences of the Harvard list
    #[arg(long)]
    speech: Option<PathBuf>,
    /// Write what was sent and heard to this directory, as WAV files
    #[arg(long)]
    wav: Option<PathBuf>,
    /// Python with the packages `pesq` and `visqol-python`
    #[arg(long, default_value = "python3")]
    python: PathBuf,
    /// Measure only the processor time of the pairs
    #[arg(long)]
    cost: bool,
    /// Measure only whole programs
    #[arg(long)]
    programs: bool,
    /// The program `netlab` [default: beside this one]
    #[arg(long)]
    netlab: Option<PathBuf>,
    /// Seed of the losses
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// A kind of loss.
struct Loss {
    name: &'static str,
    share_ppm: u32,
    /// All packets of 200 ms in each 3 s are lost.
    has_bursts: bool,
    /// The jitter of a quiet network, and in between that of a bad one.
    has_jitter: bool,
}

const LOSSES: [Loss; 4] = [
    Loss { name: "no loss", share_ppm: 0, has_bursts: false, has_jitter: false },
    Loss { name: "1 %", share_ppm: 10_000, has_bursts: false, has_jitter: false },
    Loss { name: "5 %", share_ppm: 50_000, has_bursts: false, has_jitter: false },
    Loss { name: "200 ms in 3 s", share_ppm: 0, has_bursts: true, has_jitter: false },
];
/// The default of the class `audio`.
const DEFAULT: &str = "resample | buffer(play, delay=auto) | opus(when=needed)";
/// The same, once the network loses packets.
const DEFAULT_WITH_LOSS: &str = "resample | buffer(play, delay=auto) | opus";
const PIPELINES: [&str; 5] = [
    "null",
    "buffer(play, delay=40ms)",
    "buffer(play, delay=40ms) | opus",
    "buffer(play, delay=40ms) | opus(kbits=64)",
    DEFAULT,
];
const DELAYED: [&str; 3] =
    ["resample | buffer(play, delay=auto)", "buffer(play, delay=auto) | opus", DEFAULT];
/// The delay of the network.
const NETWORK: Duration = Duration::from_millis(20);
/// The jitter of a quiet network.
const QUIET_JITTER_NS: u64 = 200_000;
/// The jitter of the other one, and its time.
const JITTER_NS: u64 = 100_000_000;
const JITTER: [Duration; 2] = [Duration::from_secs(60), Duration::from_secs(70)];
const DELAYED_FOR: Duration = Duration::from_secs(120);
/// The first second of a flow is that in which `auto` learns the network.
const LEARNS: Duration = Duration::from_secs(1);
/// A delay that is longer than that of a quiet network by this has not returned. Shorter pieces than 2.5 ms are never left out.
const RETURNED: Duration = Duration::from_millis(3);

/// Returns the standard output of a command that reads `input`.
fn filter(command: &mut Command, input: Vec<u8>) -> Result<Vec<u8>, Failure> {
    let name = command.get_program().to_string_lossy().into_owned();
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("cannot run {name}: {error}"))?;
    let mut stdin = child.stdin.take().ok_or("no standard input")?;
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output()?;
    // A command that ends before it has read everything tells its reason by its status.
    let _ = writer.join();
    match output.status.success() {
        true => Ok(output.stdout),
        false => Err(format!("{name} failed: {}", output.status).into()),
    }
}

impl SoundSetting {
    fn speech(&self) -> Result<Vec<f32>, Failure> {
        let (source, input) = match &self.speech {
            Some(file) => (file.clone(), Vec::new()),
            None => {
                let speech =
                    filter(Command::new("espeak-ng").args(["--stdout", "-s", "150", TEXT]), Vec::new())
                        .map_err(|error| {
                            format!("{error}: install espeak-ng, or give a file with --speech")
                        })?;
                ("pipe:".into(), speech)
            }
        };
        let mut convert = Command::new("ffmpeg");
        convert.args(["-v", "error", "-i"]).arg(source);
        convert.args(["-ar", "48000", "-ac", "1", "-f", "s16le", "pipe:"]);
        let samples = wire::formats::audio::decode(SampleFormat::S16, &filter(&mut convert, input)?);
        let frames = samples.len() / QUANTUM * QUANTUM;
        Ok(samples[..frames].to_vec())
    }
}

fn direct(used: &PairUse, half: Half, format: &Format) -> StageResult<Box<dyn contract::Link>> {
    let stage = used.pair.half(half, &used.options, format, &Site::default())?;
    Ok(Box::new(links::Direct::new(stage)))
}

/// The sound heard at the other end, each sample at its creation time; the bytes sent; and the packets sent and lost.
struct Heard {
    samples: Vec<f32>,
    bytes: u64,
    packets: [u64; 2],
    /// The time since the start, and the delay beyond that of the network, of each message released.
    delays: Vec<(Duration, Duration)>,
}

/// Sends `speech` through a pipeline over a network that loses packets.
fn send(speech: &[f32], text: &str, loss: &Loss, seed: u64) -> Result<Heard, Failure> {
    let pairs = modules::registry::pairs();
    let pipeline = Pipeline::parse(text, pairs, Origin::Peer)?;
    let mut source =
        Chain::source(&pipeline, &Format::Audio, &mut direct).map_err(|error| error.to_string())?;
    let mut sink = Chain::sink(&pipeline, &Format::Audio, &mut direct).map_err(|error| error.to_string())?;
    let mut params = Params {
        delay_ns: NETWORK.as_nanos() as u64,
        jitter_ns: if loss.has_jitter { QUIET_JITTER_NS } else { 0 },
        loss_ppm: loss.share_ppm,
        queue_packets: u32::MAX,
        ..Params::default()
    };
    let mut network: Link<u64> = Link::new(params.clone(), seed).hold_at_most(u64::MAX);
    let mut crossing: Vec<Option<Message>> = Vec::new();
    let (mut sent_out, mut heard_out) = (ChainOut::default(), ChainOut::default());
    let mut heard = Heard { samples: vec![0.0; speech.len()], bytes: 0, packets: [0; 2], delays: Vec::new() };
    let (mut next, mut feedback_at) = (0, STARTED);
    let (mut reported, mut received, mut lost_before) = (0, 0, 0);
    let mut now = STARTED;
    let end =
        STARTED.after(Duration::from_nanos(SPEC.duration_ns(speech.len() as u64)) + Duration::from_secs(1));
    while now < end {
        if loss.has_jitter {
            let is_bad = (JITTER[0]..JITTER[1]).contains(&now.since(STARTED));
            let jitter_ns = if is_bad { JITTER_NS } else { QUIET_JITTER_NS };
            if std::mem::replace(&mut params.jitter_ns, jitter_ns) != jitter_ns {
                network.configure(now.0, params.clone());
            }
        }
        let quantum_at = STARTED.after(Duration::from_nanos(SPEC.duration_ns(next as u64)));
        if next < speech.len() && quantum_at <= now {
            let samples = encode(SPEC.format, &speech[next..next + QUANTUM]);
            let frames = Frames { spec: SPEC, position: next as u64, samples: &samples };
            source.handle(Message::new(quantum_at, frames.emit()), now, &mut sent_out);
            next += QUANTUM;
        }
        if now >= feedback_at {
            feedback_at = now.after(FEEDBACK);
            let lost = lost_before - std::mem::replace(&mut reported, lost_before);
            let feedback = Feedback { received: std::mem::take(&mut received), lost, ..Feedback::default() };
            source.handle_feedback(&feedback, now, &mut sent_out);
        }
        if source.poll_timeout().is_some_and(|at| at <= now) {
            source.handle_timeout(now, &mut sent_out);
        }
        for message in sent_out.messages.drain(..) {
            let elapsed_ms = now.since(STARTED).as_millis() as u64;
            heard.bytes += message.body.len() as u64;
            heard.packets[0] += 1;
            let in_burst = loss.has_bursts && (1500..1700).contains(&(elapsed_ms % 3000));
            let length = message.body.len() as u32;
            if !in_burst {
                let _ = network.push(now.0, crossing.len() as u64, length);
                crossing.push(Some(Message::new(message.created, message.body)));
            } else {
                heard.packets[1] += 1;
            }
        }
        while let Some((_, number)) = network.pop(now.0) {
            let message = crossing[number as usize].take();
            received += 1;
            if let Some(message) = message {
                sink.handle(message, now, &mut heard_out);
            }
        }
        lost_before = network.counters().lost + heard.packets[1];
        if sink.poll_timeout().is_some_and(|at| at <= now) {
            sink.handle_timeout(now, &mut heard_out);
        }
        for message in heard_out.messages.drain(..) {
            let delay = now.since(message.created).saturating_sub(NETWORK);
            heard.delays.push((now.since(STARTED), delay));
            place(&message, &mut heard.samples);
        }
        now = now.after(Duration::from_micros(250));
    }
    heard.packets[1] += network.counters().lost;
    Ok(heard)
}

/// Writes the samples of a message to their place.
fn place(message: &Message, samples: &mut [f32]) {
    let bytes = message.body.clone().into_bytes();
    let Ok(frames) = Frames::parse(&bytes) else { return };
    let first = message.created.signed_since(STARTED) as f64 * f64::from(SPEC.rate_hz) / 1e9;
    for (number, value) in frames.to_f32().into_iter().enumerate() {
        if let Ok(at) = usize::try_from(first.round() as i64 + number as i64)
            && let Some(sample) = samples.get_mut(at)
        {
            *sample = value;
        }
    }
}

/// The mean of the signal-to-noise ratios of segments that are not silent, each from -10 to 35 dB.
fn segmental_snr_db(sent: &[f32], heard: &[f32]) -> f64 {
    let energy =
        |samples: &mut dyn Iterator<Item = f32>| samples.map(|value| f64::from(value).powi(2)).sum::<f64>();
    let segments = sent.chunks_exact(SEGMENT).zip(heard.chunks_exact(SEGMENT));
    let ratios: Vec<f64> = segments
        .filter_map(|(sent, heard)| {
            let signal = energy(&mut sent.iter().copied());
            let noise = energy(&mut sent.iter().zip(heard).map(|(sent, heard)| sent - heard));
            let is_silent = signal < 1e-6 * SEGMENT as f64;
            (!is_silent).then(|| (10.0 * (signal / noise.max(1e-12)).log10()).clamp(-10.0, 35.0))
        })
        .collect();
    ratios.iter().sum::<f64>() / ratios.len().max(1) as f64
}

/// Writes samples of one channel at 48 kHz as a WAV file.
pub(crate) fn write_wav(path: &Path, samples: &[f32]) -> Result<(), Failure> {
    let data = encode(SampleFormat::S16, samples);
    let length = data.len() as u32;
    let mut bytes = Vec::new();
    bytes.extend(b"RIFF");
    bytes.extend((36 + length).to_le_bytes());
    bytes.extend(b"WAVEfmt ");
    bytes.extend([16, 0, 0, 0, 1, 0, 1, 0]);
    bytes.extend(SPEC.rate_hz.to_le_bytes());
    bytes.extend((SPEC.rate_hz * 2).to_le_bytes());
    bytes.extend([2, 0, 16, 0]);
    bytes.extend(b"data");
    bytes.extend(length.to_le_bytes());
    bytes.extend(data);
    std::fs::write(path, bytes).map_err(|error| format!("cannot write {}: {error}", path.display()).into())
}

/// PESQ and ViSQOL.
type Scored = [f64; 2];

/// PESQ and ViSQOL of two files, if Python has both.
fn scores(python: &Path, sent: &Path, heard: &Path) -> Option<Scored> {
    let output =
        Command::new(python).args(["-c", SCORE]).args([sent, heard]).stderr(Stdio::null()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let mut numbers = text.split_whitespace().map(|word| word.parse().ok());
    Some([numbers.next()??, numbers.next()??])
}

/// Formats a pipeline as the cell of a table, whose columns its bars would end.
fn cell(pipeline: &str) -> String {
    format!("`{}`", pipeline.replace('|', "\\|"))
}

/// The 99th percentile of the delays in a time.
fn delay_p99(delays: &[(Duration, Duration)], time: [Duration; 2]) -> Duration {
    let within = delays.iter().filter(|(at, _)| (time[0]..time[1]).contains(at));
    let mut sorted: Vec<Duration> = within.map(|(_, delay)| *delay).collect();
    sorted.sort_unstable();
    sorted.get(sorted.len() * 99 / 100).copied().unwrap_or_default()
}

/// Prints the delay that pipelines add, and the time after which it returns to that of a quiet network.
fn delays(speech: &[f32], seed: u64) -> Result<Vec<Value>, Failure> {
    let frames = (DELAYED_FOR.as_secs_f64() * f64::from(SPEC.rate_hz)) as usize / QUANTUM * QUANTUM;
    let speech: Vec<f32> = speech.iter().copied().cycle().take(frames).collect();
    let loss = Loss { name: "jitter", share_ppm: 0, has_bursts: false, has_jitter: true };
    println!(
        "\nThe delay beyond that of the network (20 ms, with up to 0.2 ms of jitter), 99th percentile of 60 s, then of 10 s with up to \
         100 ms\nof jitter; and the time after these until it is back for good, within 3 ms;\nand the delay at the end, 99th percentile of 10 s.\n"
    );
    println!("| pipeline | quiet | with jitter | back after | at the end |");
    println!("|---|---|---|---|---|");
    let mut rows = Vec::new();
    for text in DELAYED {
        let delays = send(&speech, text, &loss, seed)?.delays;
        let quiet = delay_p99(&delays, [LEARNS, JITTER[0]]);
        let bad = delay_p99(&delays, JITTER);
        // Behind the last quantum, its end is concealed.
        let last = DELAYED_FOR - LEARNS;
        let late = delays.iter().rev().find(|(at, delay)| *at < last && *delay > quiet + RETURNED);
        let back = late.map_or(Duration::ZERO, |(at, _)| at.saturating_sub(JITTER[1]));
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let end = delay_p99(&delays, [last - Duration::from_secs(10), last]);
        let [quiet_ms, bad_ms, end_ms] = [quiet, bad, end].map(ms);
        println!(
            "| {} | {quiet_ms:.1} ms | {bad_ms:.1} ms | {:.1} s | {end_ms:.1} ms |",
            cell(text),
            back.as_secs_f64()
        );
        rows.push(json!({ "experiment": "sound delay", "pipeline": text, "quiet_p99_ms": quiet_ms,
            "jitter_p99_ms": bad_ms, "back_s": back.as_secs_f64(), "end_p99_ms": end_ms }));
    }
    Ok(rows)
}

/// Prints the scores of pipelines, in virtual time.
fn pairs(setting: &SoundSetting, speech: &[f32], directory: &Path) -> Result<Vec<Value>, Failure> {
    let sent = directory.join("sent.wav");
    write_wav(&sent, speech)?;
    println!(
        "{:.1} s of speech, one channel, quanta of 5 ms, a network of 20 ms; seed {}. `null` plays silence for a loss. Segmental",
        speech.len() as f64 / f64::from(SPEC.rate_hz),
        setting.seed
    );
    println!(
        "SNR: dB, against the speech as it was sent. PESQ: 1 to 4.64. ViSQOL: 1 to 5. `–`: not measured.\n"
    );
    println!("| loss | pipeline | kbit/s | packets lost | segmental SNR | PESQ | ViSQOL |");
    println!("|---|---|---|---|---|---|---|");
    let mut rows = Vec::new();
    for loss in &LOSSES {
        for text in PIPELINES {
            let heard = send(speech, text, loss, setting.seed)?;
            let file = directory.join(format!("{}-{}.wav", loss.share_ppm / 10_000, rows.len()));
            write_wav(&file, &heard.samples)?;
            let seconds = speech.len() as f64 / f64::from(SPEC.rate_hz);
            let kbits = heard.bytes as f64 * 8.0 / 1000.0 / seconds;
            let lost = heard.packets[1] as f64 / heard.packets[0].max(1) as f64 * 100.0;
            let snr = segmental_snr_db(speech, &heard.samples);
            let scored = scores(&setting.python, &sent, &file);
            let score = |index: usize| scored.map_or("–".into(), |scores| format!("{:.2}", scores[index]));
            println!(
                "| {} | {} | {kbits:.0} | {lost:.1} % | {snr:.1} | {} | {} |",
                loss.name,
                cell(text),
                score(0),
                score(1)
            );
            rows.push(json!({ "experiment": "sound", "loss": loss.name, "pipeline": text, "kbits": kbits,
                "lost_percent": lost, "segmental_snr_db": snr, "pesq": scored.map(|scores| scores[0]),
                "visqol": scored.map(|scores| scores[1]) }));
        }
    }
    Ok(rows)
}

/// Runs `sound`.
pub(crate) fn run(setting: &SoundSetting) -> Result<Value, Failure> {
    let speech = setting.speech()?;
    if setting.cost {
        return Ok(Value::Array(cost::run(&speech)?));
    }
    let scratch = std::env::temp_dir().join(format!("outboard-sound-{}", std::process::id()));
    let directory = setting.wav.clone().unwrap_or(scratch.clone());
    std::fs::create_dir_all(&directory)?;
    let mut rows = Vec::new();
    if !setting.programs {
        rows.extend(pairs(setting, &speech, &directory)?);
        rows.extend(delays(&speech, setting.seed)?);
        rows.extend(cost::run(&speech)?);
    }
    rows.extend(programs::run(setting, &directory, &speech)?);
    if rows.iter().any(|row| row.get("pesq").is_some_and(Value::is_null)) {
        eprintln!(
            "sound: no PESQ and no ViSQOL: `{}` has not both packages: pip install pesq visqol-python",
            setting.python.display()
        );
    }
    if setting.wav.is_none() {
        std::fs::remove_dir_all(&scratch)?;
    }
    Ok(Value::Array(rows))
}
