//! A camera of 640x480 at 30 pictures a second over thin and lossy links: through Outboard with its default for cameras, beside
//! ffmpeg with the same codec over RTP.
//!
//! Host a has the camera, a program that shows a film ([`camera`]); host b has the viewer (`viewer.py`). Both note each picture
//! with its time, so that delay and gaps are those of the programs. ffmpeg sends the same film at the rate that Outboard used, and
//! its receiver writes raw pictures. Its picture quality is that of the encoder alone, without a network: behind a lossy one its
//! pictures break.

use crate::camera::{self, HEIGHT, PICTURE_BYTES, RATE_HZ, WIDTH, log, pictures};
use crate::display::{Program, is_installed};
use crate::lab::Lab;
use crate::measure::percentile;
use crate::processes::{cpu_seconds, with_descendants};
use crate::programs::{Scratch, beside, has_video_codec, progress, run as run_program};
use crate::setting::Failure;
use clap::Args;
use serde_json::{Value, json};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

/// Time after the first picture that is not measured: the link is measured in it.
const SETTLING: Duration = Duration::from_secs(3);
const PATIENCE: Duration = Duration::from_secs(30);
const HOST_A: &str = "10.77.0.1";
const HOST_B: &str = "10.77.0.2";
const PORT: u16 = 7845;
const RTP_PORT: u16 = 5004;
/// A gap counts as a freeze above this.
const FREEZE_MS: f64 = 100.0;

const VIEWER: &str = include_str!("viewer.py");

/// Required commands and their packages.
const NEEDED: [(&str, &str); 2] = [("ffmpeg", "ffmpeg"), ("python3", "python3")];

/// The settings of `encode`.
#[derive(Args, Debug, Clone)]
pub(crate) struct EncodeSetting {
    /// Seconds of each run, besides the settling
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// Rates of the link, in the words of `netlab`
    #[arg(long = "rate", value_delimiter = ',', default_value = "1mbit,4mbit")]
    rates: Vec<String>,
    /// Shares of lost packets in each direction
    #[arg(long = "loss", value_delimiter = ',', default_value = "0%,2%")]
    losses: Vec<String>,
    /// Delay of the link in each direction
    #[arg(long, default_value = "10ms")]
    delay: String,
    /// Outboard's pipeline
    #[arg(long, default_value = "encode")]
    via: String,
    /// The program `netlab` [default: beside this one]
    #[arg(long)]
    netlab: Option<PathBuf>,
}

/// The result of one run.
struct Seen {
    frames_per_s: f64,
    /// Times between the arrivals of consecutive pictures, milliseconds.
    gaps_ms: Vec<f64>,
    /// Time of each picture from the camera to the viewer less the link's delay, in pictures; empty if unknown.
    delays: Vec<f64>,
    psnr_db: f64,
    /// Bits a second that entered the link, with all headers.
    rate_bits: f64,
    /// Processor time a second, of both hosts.
    cpu_share: f64,
}

/// The sum of the squares of all differences.
fn square_error(one: &[u8], other: &[u8]) -> u64 {
    one.iter().zip(other).map(|(one, other)| u64::from(one.abs_diff(*other)).pow(2)).sum()
}

/// The PSNR of pictures with this sum of square errors.
fn psnr_db(squares: u64, pictures: usize) -> f64 {
    let mean = squares as f64 / (pictures * PICTURE_BYTES).max(1) as f64;
    10.0 * (255.0 * 255.0 / mean.max(1e-9)).log10()
}

fn gaps_ms(arrivals_ns: &[u64]) -> Vec<f64> {
    arrivals_ns.windows(2).map(|pair| (pair[1] - pair[0]) as f64 / 1e6).collect()
}

fn frames_per_s(arrivals_ns: &[u64]) -> f64 {
    match arrivals_ns {
        [first, .., last] => (arrivals_ns.len() - 1) as f64 * 1e9 / (last - first).max(1) as f64,
        _ => 0.0,
    }
}

/// Runs Outboard.
fn outboard(
    setting: &EncodeSetting,
    lab: &Lab,
    scratch: &Scratch,
    film: &[Vec<u8>],
) -> Result<Seen, Failure> {
    let outboard = beside("outboard")?.display().to_string();
    let (camera_log, viewer_log, out) =
        (scratch.path("camera.log"), scratch.path("viewer.log"), scratch.path("out.y4m"));
    for old in [&camera_log, &viewer_log, &out] {
        let _ = fs::remove_file(old);
    }
    let directory = scratch.path("");
    let device = camera::device(scratch, &camera_log);
    let mut share = lab.program("a", &outboard);
    share.env("XDG_STATE_HOME", scratch.path("a"));
    share.args(["share", &device, "--name", "cam", "--insecure", "--via", &setting.via]);
    let share = Program::start(share.args(["--listen", &format!("{HOST_A}:{PORT}")]))?;
    thread::sleep(Duration::from_secs(2));
    let application =
        format!("exec:exec python3 {directory}/viewer.py {directory} {out} {viewer_log},frame=declared");
    let mut attach = lab.program("b", &outboard);
    attach.env("XDG_STATE_HOME", scratch.path("b"));
    attach.args(["attach", &format!("{HOST_A}:{PORT}/cam"), "--insecure", "--as", &application]);
    let attach = Program::start(&mut attach)?;
    let begun = Instant::now();
    while log(&viewer_log).is_empty() {
        if begun.elapsed() > PATIENCE {
            return Err("no picture arrives through Outboard".into());
        }
        thread::sleep(Duration::from_millis(50));
    }
    thread::sleep(SETTLING);
    let processes: Vec<u32> = [&share, &attach]
        .into_iter()
        .flat_map(|program| with_descendants(program.id()))
        // A worker has another name, but the same program.
        .filter(|process| {
            fs::read_link(format!("/proc/{process}/exe")).is_ok_and(|file| file.ends_with("outboard"))
        })
        .collect();
    let (bytes, cpu, from) = (lab.sent_bytes("a")?, cpu_seconds(&processes), Instant::now());
    let first = log(&viewer_log).last().map_or(0, |(_, arrived)| *arrived);
    thread::sleep(Duration::from_secs(setting.seconds));
    let seconds = from.elapsed().as_secs_f64();
    let rate_bits = (lab.sent_bytes("a")? - bytes) * 8.0 / seconds;
    let cpu_share = (cpu_seconds(&processes) - cpu) / seconds;
    drop((attach, share));
    let (made, seen) = (log(&camera_log), log(&viewer_log));
    let skipped = seen.iter().filter(|(_, arrived)| *arrived < first).count();
    let measured = &seen[skipped..];
    let arrivals: Vec<u64> = measured.iter().map(|(_, arrived)| *arrived).collect();
    let distance_ns = delay_ns(&setting.delay)?;
    let in_pictures = |ns: f64| ns / 1e9 * RATE_HZ;
    let delays = measured
        .iter()
        .map(|(created, arrived)| in_pictures(arrived.saturating_sub(*created) as f64 - distance_ns));
    // Only what the viewer has written completely can be compared.
    let shown = pictures(&out)?;
    let (mut squares, mut compared) = (0, 0);
    for ((created, _), picture) in seen.iter().zip(&shown).skip(skipped) {
        // The clocks of both hosts are one clock, up to the error of its measurement.
        let Some((number, _)) = made.iter().min_by_key(|(_, at)| at.abs_diff(*created)) else { continue };
        squares += square_error(picture, &film[*number as usize % film.len()]);
        compared += 1;
    }
    Ok(Seen {
        frames_per_s: frames_per_s(&arrivals),
        gaps_ms: gaps_ms(&arrivals),
        delays: delays.collect(),
        psnr_db: psnr_db(squares, compared),
        rate_bits,
        cpu_share,
    })
}

/// Parses a delay in milliseconds.
fn delay_ns(text: &str) -> Result<f64, Failure> {
    let ms = text.strip_suffix("ms").and_then(|ms| ms.parse::<f64>().ok());
    Ok(ms.ok_or_else(|| format!("the delay `{text}` is not in ms"))? * 1e6)
}

/// ffmpeg's words for libvpx at a rate: realtime, one pass, a constant rate.
pub(crate) fn codec(rate_bits: f64) -> Vec<String> {
    let rate = format!("{rate_bits:.0}");
    let words = format!(
        "-c:v libvpx -deadline realtime -cpu-used 8 -lag-in-frames 0 -error-resilient 1 -auto-alt-ref 0 -g 120 \
         -b:v {rate} -minrate {rate} -maxrate {rate} -bufsize {rate}"
    );
    words.split_whitespace().map(String::from).collect()
}

/// Runs ffmpeg at this rate.
fn ffmpeg(
    setting: &EncodeSetting,
    lab: &Lab,
    scratch: &Scratch,
    film: &[Vec<u8>],
    rate_bits: f64,
) -> Result<Seen, Failure> {
    let film_path = scratch.path("film.y4m");
    let (coded, decoded) = (scratch.path("coded.webm"), scratch.path("decoded.y4m"));
    let words = |words: &str| words.split_whitespace().map(String::from).collect::<Vec<_>>();
    let quietly = |words: Vec<String>| {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        run_program("ffmpeg", &words)
    };
    quietly([words(&format!("-v error -y -i {film_path}")), codec(rate_bits), vec![coded.clone()]].concat())?;
    quietly(words(&format!("-v error -y -i {coded} -pix_fmt yuv420p -f yuv4mpegpipe {decoded}")))?;
    let shown = pictures(&decoded)?;
    let squares = shown.iter().zip(film).map(|(one, other)| square_error(one, other)).sum();
    let psnr_db = psnr_db(squares, shown.len().min(film.len()));

    let session = scratch.path("session.sdp");
    fs::write(
        &session,
        format!(
            "v=0\no=- 0 0 IN IP4 {HOST_A}\ns=film\nc=IN IP4 {HOST_B}\nt=0 0\nm=video {RTP_PORT} RTP/AVP 96\na=rtpmap:96 VP8/90000\n"
        ),
    )?;
    let mut receiver = lab.program("b", "ffmpeg");
    receiver.args(words(&format!(
        "-v quiet -protocol_whitelist file,rtp,udp -fflags nobuffer -flags low_delay -i {session} -vsync passthrough \
         -pix_fmt yuv420p -f rawvideo -"
    )));
    let mut receiver = receiver.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let mut output = receiver.stdout.take().ok_or("ffmpeg has no output")?;
    let reader = thread::spawn(move || {
        let (mut picture, mut arrivals) = (vec![0; PICTURE_BYTES], Vec::new());
        while output.read_exact(&mut picture).is_ok() {
            arrivals.push(sys::clock::boot_ns());
        }
        arrivals
    });
    thread::sleep(Duration::from_secs(2));
    let mut sender = lab.program("a", "ffmpeg");
    sender.args(words(&format!("-v quiet -re -stream_loop -1 -i {film_path}")));
    sender.args(codec(rate_bits)).args(["-f", "rtp", &format!("rtp://{HOST_B}:{RTP_PORT}?pkt_size=1200")]);
    let sender = Program::start(&mut sender)?;
    // ffmpeg reads the beginning of the stream before it shows any of it.
    thread::sleep(SETTLING * 2);
    let processes: Vec<u32> = [sender.id(), receiver.id()].into_iter().flat_map(with_descendants).collect();
    let (bytes, cpu, from) = (lab.sent_bytes("a")?, cpu_seconds(&processes), Instant::now());
    let first = sys::clock::boot_ns();
    thread::sleep(Duration::from_secs(setting.seconds));
    let seconds = from.elapsed().as_secs_f64();
    let sent = (lab.sent_bytes("a")? - bytes) * 8.0 / seconds;
    let cpu_share = (cpu_seconds(&processes) - cpu) / seconds;
    drop(sender);
    for process in with_descendants(receiver.id()).into_iter().rev() {
        if let Some(process) = rustix::process::Pid::from_raw(process as i32) {
            let _ = rustix::process::kill_process(process, rustix::process::Signal::KILL);
        }
    }
    receiver.wait()?;
    let arrivals: Vec<u64> = reader.join().map_err(|_| "a thread panicked")?;
    let arrivals: Vec<u64> = arrivals.into_iter().filter(|arrived| *arrived >= first).collect();
    Ok(Seen {
        frames_per_s: frames_per_s(&arrivals),
        gaps_ms: gaps_ms(&arrivals),
        delays: Vec::new(),
        psnr_db,
        rate_bits: sent,
        cpu_share,
    })
}

fn print_row(link: &str, program: &str, seen: &Seen) -> Value {
    let longest = seen.gaps_ms.iter().copied().fold(0.0, f64::max);
    let freezes = seen.gaps_ms.iter().filter(|gap| **gap > FREEZE_MS).count();
    let [p50, p99] = [0.5, 0.99].map(|share| percentile(&seen.delays, share));
    let delay = match seen.delays.is_empty() {
        true => "– | –".into(),
        false => format!("{p50:.2} | {p99:.2}"),
    };
    println!(
        "| {link} | {program} | {:.1} | {:.1} | {longest:.0} | {freezes} | {delay} | {:.2} | {:.0} |",
        seen.frames_per_s,
        seen.psnr_db,
        seen.rate_bits / 1e6,
        seen.cpu_share * 100.0
    );
    json!({
        "experiment": "encode",
        "params": {
            "link": link, "program": program, "psnr_db": seen.psnr_db, "longest_gap_ms": longest, "freezes": freezes,
            "delay_p50_pictures": p50, "delay_p99_pictures": p99, "rate_bits": seen.rate_bits, "cpu_share": seen.cpu_share,
        },
        "unit": "pictures/s", "ours": seen.frames_per_s, "bare": null, "paper": null, "runs": seen.gaps_ms.len() + 1,
        "p50": null, "p99": null,
    })
}

/// Runs `encode`.
pub(crate) fn run(setting: &EncodeSetting) -> Result<Value, Failure> {
    if !rustix::process::geteuid().is_root() {
        progress("SKIPPED encode: it needs root, for network namespaces");
        return Ok(json!([]));
    }
    if let Some((command, package)) = NEEDED.iter().find(|needed| !is_installed(needed.0)) {
        progress(&format!("SKIPPED encode: there is no {command}: scripts/setup {command}:{package}"));
        return Ok(json!([]));
    }
    if !has_video_codec()? {
        progress(
            "SKIPPED encode: the program outboard beside this one has no codec: build it with --features media",
        );
        return Ok(json!([]));
    }
    let netlab = setting.netlab.clone().map_or_else(|| beside("netlab"), Ok)?;
    let scratch = Scratch::new("encode")?;
    let film = camera::prepare(&scratch)?;
    fs::write(scratch.path("viewer.py"), VIEWER)?;
    println!(
        "A camera of {WIDTH}x{HEIGHT} at {RATE_HZ:.0} pictures a second for {} s over a link with {} in each direction, through\n`{}` of Outboard \
         and through ffmpeg with libvpx over RTP, which gets the rate that Outboard used. Delay: from the camera to\nthe viewer less that of the link, \
         in pictures. PSNR of ffmpeg: of its encoder without a network. Processor: both hosts.\n",
        setting.seconds, setting.delay, setting.via
    );
    println!(
        "| link, loss | program | pictures/s | PSNR, dB | longest gap, ms | gaps above 100 ms | delay p50 | p99 | rate, Mbit/s | processor, % |"
    );
    println!("|---|---|---:|---:|---:|---:|---:|---:|---:|---:|");
    let mut rows = Vec::new();
    for rate in &setting.rates {
        for loss in &setting.losses {
            let link = format!("{rate}, {loss}");
            progress(&format!("encode, {link}"));
            let words = [format!("delay={}", setting.delay), format!("rate={rate}"), format!("loss={loss}")];
            let lab = Lab::up(Path::new(&netlab), &words.each_ref().map(String::as_str))?;
            let ours = outboard(setting, &lab, &scratch, &film)?;
            rows.push(print_row(&link, "outboard", &ours));
            let theirs = ffmpeg(setting, &lab, &scratch, &film, ours.rate_bits)?;
            rows.push(print_row(&link, "ffmpeg", &theirs));
        }
    }
    Ok(Value::Array(rows))
}
