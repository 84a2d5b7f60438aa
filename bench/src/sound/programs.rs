//! Speech through whole programs: PipeWire servers on two hosts of `netlab`, joined by Outboard with its defaults or by PipeWire's own
//! modules for RTP, which send samples. `pw-play` plays on host a, `pw-record` records on host b.
//!
//! ```text
//! outboard   a: pw-play ─► node of `attach` ─► network ─► `share audio:room` ─► null sink `room` ─► b: pw-record
//! RTP        a: pw-play ─► module-rtp-sink  ─► network ─► module-rtp-source ───────────────────────► b: pw-record
//! one host   b: pw-play ─► null sink `room` ─► b: pw-record
//! ```
//!
//! The last one shows what the machine does to sound without a network: a busy one makes programs miss quanta.

use super::{Scored, SoundSetting, scores, write_wav};
use crate::display::{Program, is_installed};
use crate::lab::Lab;
use crate::pipewire::{self, Server};
use crate::processes::{cpu_seconds, with_descendants};
use crate::programs::{beside, has_sound, progress};
use crate::setting::Failure;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const HOST_A: &str = "10.77.0.1";
const HOST_B: &str = "10.77.0.2";
const PORT: u16 = 7846;
/// The time for a recorder to begin.
const BEGINS: Duration = Duration::from_secs(2);
/// A burst: nothing passes for the first time in each of the second.
const BURST: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(3)];
const ALIGN: &str = include_str!("align.py");
/// Host b's speaker.
const ROOM: &str = "context.objects = [ { factory = adapter args = { factory.name = support.null-audio-sink node.name = room \
     media.class = Audio/Sink audio.position = [ FL FR ] } } ]";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Carrier {
    Outboard,
    Rtp,
    OneHost,
}

impl Carrier {
    fn name(self) -> &'static str {
        match self {
            Carrier::Outboard => "outboard",
            Carrier::Rtp => "RTP",
            Carrier::OneHost => "one host",
        }
    }
}

/// A network: its name, its words for `netlab`, and whether it has bursts.
const NETWORKS: [(&str, &[&str], bool); 4] = [
    ("no loss", &["delay=20ms"], false),
    ("1 %", &["delay=20ms", "loss=1%"], false),
    ("5 %", &["delay=20ms", "loss=5%"], false),
    ("200 ms in 3 s", &["delay=20ms"], true),
];

/// Returns the configurations of the servers on both hosts.
fn configurations(carrier: Carrier) -> [String; 2] {
    match carrier {
        Carrier::Outboard | Carrier::OneHost => [String::new(), ROOM.into()],
        Carrier::Rtp => [
            format!(
                "context.modules = [ {{ name = libpipewire-module-rtp-sink args = {{ source.ip = {HOST_A} sap.ip = {HOST_B} \
                 destination.ip = {HOST_B} destination.port = 46000 sess.name = room \
                 stream.props = {{ node.name = Remote media.class = Audio/Sink }} }} }} ]"
            ),
            "context.modules = [ { name = libpipewire-module-rtp-source args = { sap.ip = 0.0.0.0 \
             stream.props = { media.class = Audio/Source } \
             stream.rules = [ { matches = [ { rtp.session = \"~.*\" } ] actions = { create-stream = { } } } ] } } ]"
                .into(),
        ],
    }
}

/// Results of one run.
struct Seen {
    scored: Option<Scored>,
    kbits: f64,
    /// Processor time of all servers and of Outboard, on both hosts, as a share of one core.
    cpu_share: f64,
}

/// Plays the speech; with bursts, the network fails meanwhile.
fn play(lab: &Lab, server: &Server<'_>, node: &str, file: &Path, has_bursts: bool) -> Result<(), Failure> {
    let mut player = server.command("pw-play", &["--target", node]);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let bursts = scope.spawn(|| -> Result<(), Failure> {
            while has_bursts && !is_over.load(Ordering::Relaxed) {
                lab.ask(&["cut", "--from", "a"]).map(drop)?;
                std::thread::sleep(BURST[0]);
                lab.ask(&["restore", "--from", "a"]).map(drop)?;
                std::thread::sleep(BURST[1] - BURST[0]);
            }
            Ok(())
        });
        let output = player.arg(file).output();
        is_over.store(true, Ordering::Relaxed);
        bursts.join().map_err(|_| "a thread panicked")??;
        let output = output?;
        match output.status.success() {
            true => Ok(()),
            false => Err(format!("pw-play: {}", String::from_utf8_lossy(&output.stderr).trim()).into()),
        }
    })
}

fn run_one(
    setting: &SoundSetting,
    (words, has_bursts): (&[&str], bool),
    carrier: Carrier,
    scratch: &Path,
    speech: &[f32],
) -> Result<Seen, Failure> {
    let netlab = setting.netlab.clone().map_or_else(|| beside("netlab"), Ok)?;
    let lab = Lab::up(&netlab, words)?;
    let [at_a, at_b] = configurations(carrier);
    // The source of RTP must listen before the sink announces itself.
    let b = Server::start(&lab, "b", scratch, &at_b)?;
    let a = Server::start(&lab, "a", scratch, &at_a)?;
    let mut programs = Vec::new();
    if carrier == Carrier::Outboard {
        b.wait_for_node("room")?;
        let outboard = beside("outboard")?.display().to_string();
        let listen = format!("{HOST_B}:{PORT}");
        let mut share = b.command(&outboard, &["share", "audio:room", "--name", "room", "--insecure"]);
        programs.push(Program::start(share.args(["--listen", &listen]))?);
        std::thread::sleep(BEGINS);
        let mut attach = a.command(&outboard, &["attach", &format!("{listen}/room"), "--as", "audio:Remote"]);
        programs.push(Program::start(attach.args(["--insecure", "--expect", "audio"]))?);
    }
    b.wait_for_node("room")?;
    let (player_at, node) = if carrier == Carrier::OneHost { (&b, "room") } else { (&a, "Remote") };
    player_at.wait_for_node(node)?;

    // The first half is for the pairs to learn the network; the second is measured.
    let [sent, played, recorded, heard] =
        ["sent.wav", "played.wav", "recorded.wav", "heard.wav"].map(|name| scratch.join(name));
    write_wav(&sent, speech)?;
    write_wav(&played, &[speech, speech].concat())?;
    let _ = std::fs::remove_file(&recorded);
    let mut record = b.command("pw-record", &["--target", "room", "--rate", "48000", "--channels", "2"]);
    if carrier != Carrier::Rtp {
        record.args(["-P", "{ stream.capture.sink = true }"]);
    }
    let recorder = Program::start(record.args(["--format", "s16"]).arg(&recorded))?;
    std::thread::sleep(BEGINS);
    let outboard = programs.iter().flat_map(|one| with_descendants(one.id()));
    let processes: Vec<u32> = [a.processes(), b.processes()].concat().into_iter().chain(outboard).collect();
    let (bytes, cpu, begun) = (lab.sent_bytes("a")?, cpu_seconds(&processes), Instant::now());
    play(&lab, player_at, node, &played, has_bursts)?;
    let seconds = begun.elapsed().as_secs_f64();
    let kbits = (lab.sent_bytes("a")? - bytes) * 8.0 / 1000.0 / seconds;
    let cpu_share = (cpu_seconds(&processes) - cpu) / seconds;
    std::thread::sleep(BEGINS);
    // The recorder completes its file.
    for process in with_descendants(recorder.id()) {
        let _ = Pid::from_raw(process as i32).map(|process| kill_process(process, Signal::INT));
    }
    drop(recorder);
    let aligned =
        Command::new(&setting.python).args(["-c", ALIGN]).args([&sent, &recorded, &heard]).output()?;
    if !aligned.status.success() {
        progress(&format!(
            "the recording is not compared: {}",
            String::from_utf8_lossy(&aligned.stderr).trim()
        ));
    }
    let scored = aligned.status.success().then(|| scores(&setting.python, &sent, &heard)).flatten();
    Ok(Seen { scored, kbits, cpu_share })
}

/// Runs all programs over all networks, if this host can.
pub(super) fn run(setting: &SoundSetting, scratch: &Path, speech: &[f32]) -> Result<Vec<Value>, Failure> {
    if !rustix::process::geteuid().is_root() {
        progress("SKIPPED the programs of sound: they need root, for network namespaces");
        return Ok(Vec::new());
    }
    if let Some((command, package)) = pipewire::NEEDED.iter().find(|needed| !is_installed(needed.0)) {
        progress(&format!(
            "SKIPPED the programs of sound: there is no {command}: scripts/setup {command}:{package}"
        ));
        return Ok(Vec::new());
    }
    if !has_sound()? {
        progress(
            "SKIPPED the programs of sound: the program outboard beside this one has no sound: build it with --features media",
        );
        return Ok(Vec::new());
    }
    println!(
        "\nThe same speech through programs: PipeWire on two hosts, a network of 20 ms, `pw-play` and `pw-record`. `outboard`: its defaults.\n\
         `RTP`: PipeWire's modules `rtp-sink` and `rtp-source`, with their default of 100 ms. Processor: Outboard and the servers of both\n\
         hosts, in % of one core. `one host`: no network, so its scores are those of this machine. The speech is played twice; the\n\
         scores are those of the second time.\n"
    );
    println!("| loss | program | kbit/s | processor | PESQ | ViSQOL |");
    println!("|---|---|---:|---:|---:|---:|");
    let mut rows = Vec::new();
    for (name, words, has_bursts) in NETWORKS {
        let is_first = rows.is_empty();
        for carrier in [Carrier::OneHost, Carrier::Outboard, Carrier::Rtp] {
            if carrier == Carrier::OneHost && !is_first {
                continue;
            }
            let program = carrier.name();
            progress(&format!("sound, {name}, {program}"));
            let seen = run_one(setting, (words, has_bursts), carrier, scratch, speech)?;
            let score =
                |index: usize| seen.scored.map_or("–".into(), |scored| format!("{:.2}", scored[index]));
            let (kbits, cpu) = (seen.kbits, seen.cpu_share * 100.0);
            println!("| {name} | {program} | {kbits:.0} | {cpu:.1} | {} | {} |", score(0), score(1));
            rows.push(
                json!({ "experiment": "sound programs", "loss": name, "program": program, "kbits": kbits,
                "cpu_percent": cpu, "pesq": seen.scored.map(|scored| scored[0]),
                "visqol": seen.scored.map(|scored| scored[1]) }),
            );
        }
    }
    Ok(rows)
}
