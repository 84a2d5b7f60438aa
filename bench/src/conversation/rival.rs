//! The conversation through ffmpeg's RTP: one stream for each device, at the rates that Outboard used.
//!
//! A thread shows the film to ffmpeg as a camera does; `pw-record` gives it the microphone and the sound that the program on host b
//! plays. The receivers write raw pictures and samples.

use super::ours::sound_program;
use super::recorder::{self, Recorder, Shown, Sound};
use super::{HOST_A, HOST_B, Record, Stage};
use crate::camera::{HEIGHT, RATE_HZ, WIDTH};
use crate::encode;
use crate::pipewire::Server;
use crate::processes::with_descendants;
use crate::setting::Failure;
use std::fs;
use std::io::Write;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const PICTURES_PORT: u16 = 5004;
const SOUND_PORT: u16 = 5006;
const BACK_PORT: u16 = 5008;
/// The rate of Opus, and that of its packets of 10 ms with their headers.
const SOUND_BITS: f64 = 64_000.0;
const SOUND_SENT_BITS: f64 = SOUND_BITS + 100.0 * 8.0 * (12.0 + 8.0 + 20.0 + 14.0);
/// The share of the headers of pictures' packets.
const HEADERS: f64 = 0.05;
/// The least rate of pictures.
const PICTURES_BITS_MIN: f64 = 64_000.0;
/// The time for receivers to listen.
const BEGINS: Duration = Duration::from_secs(2);

/// A program that is killed with its descendants.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        for process in with_descendants(self.0.id()).into_iter().rev() {
            if let Some(process) = rustix::process::Pid::from_raw(process as i32) {
                let _ = rustix::process::kill_process(process, rustix::process::Signal::KILL);
            }
        }
        let _ = self.0.wait();
    }
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(String::from).collect()
}

/// Writes the description of a stream, and returns the command of its receiver.
fn receiver(
    stage: &Stage<'_>,
    server: &Server<'_>,
    to: &str,
    port: u16,
    media: &str,
    output: &str,
) -> Result<Command, Failure> {
    let path = stage.scratch.path(&format!("{port}.sdp"));
    let from = if to == HOST_A { HOST_B } else { HOST_A };
    let text = format!("v=0\no=- 0 0 IN IP4 {from}\ns=talk\nc=IN IP4 {to}\nt=0 0\n{media}\n");
    fs::write(&path, text).map_err(|error| format!("{path}: {error}"))?;
    let mut command = server.command("ffmpeg", &[]);
    command.args(words(&format!(
        "-v quiet -protocol_whitelist file,rtp,udp -fflags nobuffer -flags low_delay -probesize 32768 -analyzeduration 500000 -i {path} {output}"
    )));
    Ok(command)
}

fn pictures_receiver(stage: &Stage<'_>) -> Result<Recorder<Vec<Shown>>, Failure> {
    let media = format!("m=video {PICTURES_PORT} RTP/AVP 96\na=rtpmap:96 VP8/90000");
    let output = "-vsync passthrough -pix_fmt yuv420p -f rawvideo -";
    recorder::pictures(&mut receiver(stage, stage.b, HOST_B, PICTURES_PORT, &media, output)?)
}

fn sound_receiver(
    stage: &Stage<'_>,
    server: &Server<'_>,
    to: &str,
    port: u16,
) -> Result<Recorder<Sound>, Failure> {
    let media = format!("m=audio {port} RTP/AVP 97\na=rtpmap:97 opus/48000/2\na=fmtp:97 useinbandfec=1");
    // Without `async`, the sound is shorter by the lost part; by default, up to 100 ms of it are.
    let output = "-af aresample=async=1:min_hard_comp=0.005 -ar 48000 -ac 1 -f s16le -flush_packets 1 -";
    recorder::sound(&mut receiver(stage, server, to, port, &media, output)?)
}

/// Sends the sound of a node.
fn send_sound(
    server: &Server<'_>,
    (node, is_sink): (&str, bool),
    to: &str,
    port: u16,
) -> Result<[Running; 2], Failure> {
    let mut recorder = sound_program(server, node, is_sink)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let sound = recorder.stdout.take().ok_or("pw-record has no output")?;
    let mut sender = server.command("ffmpeg", &[]);
    sender.args(words(&format!(
        "-v quiet -f s16le -ar 48000 -ac 1 -probesize 32 -i - -c:a libopus -b:a {SOUND_BITS:.0} -application lowdelay \
         -frame_duration 10 -fec:a 1 -packet_loss 1 -flush_packets 1 -f rtp rtp://{to}:{port}?pkt_size=1200"
    )));
    let sender = sender.stdin(sound).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    Ok([Running(recorder), Running(sender)])
}

/// Shows the film at the rate of a camera until `is_over`. Returns the number and the time of each picture.
fn show(film: &[Vec<u8>], mut into: ChildStdin, is_over: &AtomicBool) -> Vec<(u64, u64)> {
    let (mut made, begun) = (Vec::new(), Instant::now());
    for number in 0.. {
        let due = begun + Duration::from_secs_f64(f64::from(number) / RATE_HZ);
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let place = number as usize % film.len();
        let created_ns = sys::clock::boot_ns();
        if is_over.load(Ordering::Relaxed) || into.write_all(&film[place]).is_err() {
            break;
        }
        made.push((place as u64, created_ns));
    }
    made
}

/// Holds the conversation. `rates`: the bits a second that host a and host b sent through Outboard.
pub(super) fn run(stage: &Stage<'_>, film: &[Vec<u8>], rates: [f64; 2]) -> Result<Record, Failure> {
    let pictures = pictures_receiver(stage)?;
    let sound = sound_receiver(stage, stage.b, HOST_B, SOUND_PORT)?;
    let back = sound_receiver(stage, stage.a, HOST_A, BACK_PORT)?;
    thread::sleep(BEGINS);
    let begun_ns = sys::clock::boot_ns();
    let rate = ((rates[0] - SOUND_SENT_BITS) * (1.0 - HEADERS)).max(PICTURES_BITS_MIN);
    let mut camera = stage.a.command("ffmpeg", &[]);
    camera
        .args(words(&format!("-v quiet -f rawvideo -pix_fmt yuv420p -s {WIDTH}x{HEIGHT} -r {RATE_HZ} -i -")));
    camera.args(encode::codec(rate)).args([
        "-f",
        "rtp",
        &format!("rtp://{HOST_B}:{PICTURES_PORT}?pkt_size=1200"),
    ]);
    let mut camera =
        Running(camera.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?);
    let into = camera.0.stdin.take().ok_or("ffmpeg has no input")?;
    let [_source, sender] = send_sound(stage.a, ("mic", false), HOST_B, SOUND_PORT)?;
    let [_source_back, sender_back] = send_sound(stage.b, ("talk", true), HOST_A, BACK_PORT)?;
    let is_over = AtomicBool::new(false);
    let processes = || {
        let of = |running: &[&Running]| {
            running.iter().flat_map(|one| with_descendants(one.0.id())).collect::<Vec<u32>>()
        };
        [
            [of(&[&camera, &sender]), back.processes(), stage.a.processes()].concat(),
            [of(&[&sender_back]), pictures.processes(), sound.processes(), stage.b.processes()].concat(),
        ]
    };
    let (made, measured) = thread::scope(|scope| {
        let showing = scope.spawn(|| show(film, into, &is_over));
        let measured = stage.measure(processes);
        is_over.store(true, Ordering::Relaxed);
        (showing.join().map_err(|_| "a thread panicked"), measured)
    });
    Ok(Record {
        begun_ns,
        made: made?,
        shown: pictures.end()?,
        sound: sound.end()?,
        back: back.end()?,
        measured: measured?,
    })
}
