//! A conversation over a thin and lossy link: host a has a camera, a microphone and a speaker, host b the program that uses them.
//! Through Outboard with its defaults, beside ffmpeg's RTP with the same codecs at the rates that Outboard used.
//!
//! ```text
//! host a                                                       host b
//! camera.py ────────────────► share cam ─┐  network  ┌─ synchronize ─► Desk-camera ─► gst-launch-1.0
//! pw-play ─► node `mic` ────► share mic ─┴───────────┴─ synchronize ─► Desk-sound ──► pw-record
//! pw-record ◄─ node `room` ◄─ share speaker ◄─────────── attach ◄───── Desk-speaker ◄─ pw-play
//! ```
//!
//! Each picture has its number ([`stamp`]), and the sound has a beep in 3 s ([`tone`]). Further programs record the sound where it
//! begins. So the delay of each picture and of each beep is known, and the distance between picture and sound is the difference of the two.

mod ours;
mod recorder;
mod rival;
mod stamp;
mod summary;
mod tone;

use crate::camera;
use crate::display::{Program, is_installed};
use crate::lab::Lab;
use crate::pipewire::{self, Server};
use crate::plot::{Chart, Line, Scale};
use crate::processes::cpu_seconds;
use crate::programs::{Scratch, beside, has_sound, has_video_codec, progress};
use crate::setting::Failure;
use crate::sound::write_wav;
use clap::Args;
use recorder::{Recorder, Shown, Sound};
use serde_json::{Value, json};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};
use summary::Summary;

const HOST_A: &str = "10.77.0.1";
const HOST_B: &str = "10.77.0.2";
/// The time that is not measured: programs start, and the link is measured.
const SETTLING: Duration = Duration::from_secs(8);
/// The longest time until a link between two nodes of PipeWire is made.
const PATIENCE: Duration = Duration::from_secs(15);
/// The nodes of host a: the microphone, into which a program plays, and the speaker.
const NODES_A: &str = "context.objects = [
 { factory = adapter args = { factory.name = support.null-audio-sink node.name = mic media.class = Audio/Source/Virtual
   audio.position = [ FL FR ] } }
 { factory = adapter args = { factory.name = support.null-audio-sink node.name = room media.class = Audio/Sink
   audio.position = [ FL FR ] } } ]";
/// The node of host b that hears the other program.
const NODES_B: &str = "context.objects = [
 { factory = adapter args = { factory.name = support.null-audio-sink node.name = talk media.class = Audio/Sink
   audio.position = [ FL FR ] } } ]";
/// Required commands and their packages, besides those of PipeWire.
const NEEDED: [(&str, &str); 3] = [
    ("ffmpeg", "ffmpeg"),
    ("python3", "python3"),
    ("gst-launch-1.0", "gstreamer1.0-tools gstreamer1.0-pipewire"),
];

/// The settings of `conversation`.
#[derive(Args, Debug, Clone)]
pub(crate) struct ConversationSetting {
    /// Seconds of each conversation, besides the settling
    #[arg(long, default_value_t = 600)]
    seconds: u64,
    /// The link in each direction, in the words of `netlab`: a delay of 20 ms makes a round trip of 40 ms
    #[arg(long, default_value = "delay=20ms rate=2mbit loss=1%")]
    link: String,
    /// Measure Outboard only
    #[arg(long)]
    alone: bool,
    /// Write the pictures PREFIX-frames.svg and PREFIX-distance.svg
    #[arg(long, value_name = "PREFIX")]
    svg: Option<PathBuf>,
    /// The program `netlab` [default: beside this one]
    #[arg(long)]
    netlab: Option<PathBuf>,
}

/// The use of resources while a conversation is measured.
#[derive(Debug)]
struct Measured {
    /// From when to when, nanoseconds of the boot clock.
    time: Range<u64>,
    /// Bytes a second that left each host, with all headers.
    bytes_per_s: [f64; 2],
    /// Processor time of each host, as shares of one core.
    cpu_share: [f64; 2],
    /// The sound at the microphone, and that which the program on host b plays.
    spoken: [Sound; 2],
}

/// The recordings of a conversation.
struct Record {
    /// The time at which host b began to connect.
    begun_ns: u64,
    /// The pictures of the camera: their numbers and creation times.
    made: Vec<(u64, u64)>,
    shown: Vec<Shown>,
    sound: Sound,
    /// The sound at the speaker of host a.
    back: Sound,
    measured: Measured,
}

/// Both hosts, with the programs that speak.
struct Stage<'a> {
    setting: &'a ConversationSetting,
    lab: &'a Lab,
    scratch: &'a Scratch,
    a: &'a Server<'a>,
    b: &'a Server<'a>,
    /// The players, and their links to nodes.
    _players: [Program; 2],
}

impl<'a> Stage<'a> {
    fn set(
        setting: &'a ConversationSetting,
        lab: &'a Lab,
        scratch: &'a Scratch,
        [a, b]: [&'a Server<'a>; 2],
    ) -> Result<Stage<'a>, Failure> {
        let play = |server: &Server<'_>| {
            let words = ["--target", "0", "-P", "{ node.name = player }", &scratch.path("sound.wav")];
            Program::start(&mut server.command("pw-play", &words))
        };
        let players = [play(a)?, play(b)?];
        let stage = Stage { setting, lab, scratch, a, b, _players: players };
        a.wait_for_node("mic")?;
        b.wait_for_node("talk")?;
        link(a, "mic:input")?;
        link(b, "talk:playback")?;
        Ok(stage)
    }

    /// Lets the program on host b play to these ports, besides.
    fn play_back_to(&self, ports: &str) -> Result<(), Failure> {
        link(self.b, ports)
    }

    /// Lets the conversation go on, and measures it. `processes`: those of each host.
    fn measure(&self, processes: impl Fn() -> [Vec<u32>; 2]) -> Result<Measured, Failure> {
        let spoken = [(self.a, "mic", false), (self.b, "talk", true)]
            .map(|(server, node, is_sink)| recorder::sound(&mut ours::sound_program(server, node, is_sink)));
        let [spoken_a, spoken_b] = spoken;
        let spoken: [Recorder<Sound>; 2] = [spoken_a?, spoken_b?];
        thread::sleep(SETTLING);
        let sent =
            || -> Result<[f64; 2], Failure> { Ok([self.lab.sent_bytes("a")?, self.lab.sent_bytes("b")?]) };
        let processes = processes();
        let used = || [0, 1].map(|host: usize| cpu_seconds(&processes[host]));
        let (bytes, cpu, begun, from_ns) = (sent()?, used(), Instant::now(), sys::clock::boot_ns());
        thread::sleep(Duration::from_secs(self.setting.seconds));
        let seconds = begun.elapsed().as_secs_f64();
        let rate = |after: [f64; 2], before: [f64; 2]| {
            [0, 1].map(|host: usize| (after[host] - before[host]) / seconds)
        };
        let (bytes_per_s, cpu_share) = (rate(sent()?, bytes), rate(used(), cpu));
        let time = from_ns..sys::clock::boot_ns();
        // The last sound still arrives.
        thread::sleep(Duration::from_secs(1));
        let [spoken_a, spoken_b] = spoken;
        Ok(Measured { time, bytes_per_s, cpu_share, spoken: [spoken_a.end()?, spoken_b.end()?] })
    }
}

/// Links the player of a host to both ports of a node.
fn link(server: &Server<'_>, ports: &str) -> Result<(), Failure> {
    for channel in ["FL", "FR"] {
        let words = ["player:output_MONO", &format!("{ports}_{channel}")];
        let begun = Instant::now();
        loop {
            let output = server.command("pw-link", &words).output()?;
            if output.status.success() {
                break;
            }
            if begun.elapsed() > PATIENCE {
                let reason = String::from_utf8_lossy(&output.stderr).trim().to_string();
                return Err(format!("pw-link {}: {reason}", words.join(" ")).into());
            }
            thread::sleep(Duration::from_millis(100));
        }
    }
    Ok(())
}

/// One conversation between hosts of their own.
fn converse(
    setting: &ConversationSetting,
    scratch: &Scratch,
    run: impl FnOnce(&Stage<'_>) -> Result<Record, Failure>,
) -> Result<Summary, Failure> {
    let netlab = setting.netlab.clone().map_or_else(|| beside("netlab"), Ok)?;
    let words: Vec<&str> = setting.link.split_whitespace().collect();
    let lab = Lab::up(&netlab, &words)?;
    let directory = PathBuf::from(scratch.path(""));
    let a = Server::start(&lab, "a", &directory, NODES_A)?;
    let b = Server::start(&lab, "b", &directory, NODES_B)?;
    let stage = Stage::set(setting, &lab, scratch, [&a, &b])?;
    Ok(Summary::of(&run(&stage)?))
}

/// Makes the film with its numbers, and the sound.
fn prepare(setting: &ConversationSetting, scratch: &Scratch) -> Result<Vec<Vec<u8>>, Failure> {
    let mut film = camera::prepare(scratch)?;
    film.iter_mut().enumerate().for_each(|(number, picture)| stamp::draw(picture, number));
    camera::write_film(&scratch.path("film.y4m"), &film)?;
    // The players begin before everything else, and end after it.
    let seconds = setting.seconds as usize + 90;
    write_wav(Path::new(&scratch.path("sound.wav")), &tone::sound(seconds))?;
    Ok(film)
}

/// Draws the course of the conversations.
fn draw(prefix: &Path, summaries: &[(&str, Summary)]) -> Result<(), Failure> {
    let lines = |points: fn(&Summary) -> &Vec<[f64; 2]>| {
        summaries.iter().map(|(name, summary)| Line::solid(*name, points(summary).clone())).collect()
    };
    let charts = [
        ("frames", "Pictures a second", "pictures/s", lines(|summary| &summary.frames_course)),
        ("distance", "Distance between picture and sound", "ms", lines(|summary| &summary.distance_course)),
    ];
    for (name, title, unit, lines) in charts {
        let chart = Chart { title, axes: ["time, s", unit], scales: [Scale::Linear; 2], lines };
        let file = format!("{}-{name}.svg", prefix.display());
        std::fs::write(&file, chart.svg()).map_err(|error| format!("cannot write {file}: {error}"))?;
    }
    Ok(())
}

/// Returns the reason why this host cannot run the experiment.
fn obstacle() -> Result<Option<String>, Failure> {
    if !rustix::process::geteuid().is_root() {
        return Ok(Some("it needs root, for network namespaces".into()));
    }
    let mut needed = NEEDED.iter().chain(&pipewire::NEEDED);
    if let Some((command, package)) = needed.find(|needed| !is_installed(needed.0)) {
        return Ok(Some(format!("there is no {command}: scripts/setup {command}:{package}")));
    }
    if !has_sound()? || !has_video_codec()? {
        return Ok(Some(
            "the program outboard beside this one has no sound or no codec: build it with --features media"
                .into(),
        ));
    }
    Ok(None)
}

/// Runs `conversation`.
pub(crate) fn run(setting: &ConversationSetting) -> Result<Value, Failure> {
    if let Some(reason) = obstacle()? {
        progress(&format!("SKIPPED conversation: {reason}"));
        return Ok(json!([]));
    }
    let scratch = Scratch::new("conversation")?;
    let film = prepare(setting, &scratch)?;
    progress("conversation, outboard");
    let ours = converse(setting, &scratch, ours::run)?;
    let rates = ours.rates();
    let mut summaries = vec![("outboard", ours)];
    if !setting.alone {
        progress("conversation, ffmpeg");
        let theirs = converse(setting, &scratch, |stage| rival::run(stage, &film, rates))?;
        summaries.push(("ffmpeg", theirs));
    }
    println!(
        "A camera of {}x{} at {:.0} pictures a second, a microphone and a speaker for {} s over `{}` in each direction. \
         `outboard`: the defaults of\nall devices, microphone and camera attached together with `synchronize(apart=true)`. \
         `ffmpeg`: VP8 and Opus over RTP at the rates that Outboard used,\none stream for each device, a key \
         picture every 4 s and no retransmission; its receivers write raw\npictures and samples to a pipe, Outboard's devices are \
         nodes of PipeWire. Delay: from the camera, the microphone or the\nplaying program to the recording one, with the link's. \
         Distance: delay of the picture less that of the sound.\n",
        camera::WIDTH,
        camera::HEIGHT,
        camera::RATE_HZ,
        setting.seconds,
        setting.link,
    );
    summary::print(&summaries);
    if let Some(prefix) = &setting.svg {
        draw(prefix, &summaries)?;
    }
    Ok(summaries.iter().map(|(name, summary)| summary.json(name, &setting.link)).collect())
}
