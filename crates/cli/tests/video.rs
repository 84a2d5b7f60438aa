//! Pictures from one unchanged program to another: ffmpeg writes a film, and ffprobe and ffmpeg read the result.

mod support;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};
use support::{PATIENCE, Scratch, Service, children, command, end, outboard};

const FRAMES: usize = 12;

/// Runs a tool to its end and returns its output.
#[track_caller]
fn tool(name: &str, arguments: &[&str]) -> Vec<u8> {
    let output = Command::new(name).args(arguments).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{name} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

fn has_ffmpeg() -> bool {
    ["ffmpeg", "ffprobe"].iter().all(|name| testkit::skip::has_program(name, "ffmpeg"))
}

/// Creates a film of ffmpeg's test picture.
fn film(scratch: &Scratch, pixels: &str) -> String {
    let path = scratch.path(&format!("{pixels}.y4m"));
    let source = "testsrc=size=320x240:rate=30";
    let frames = FRAMES.to_string();
    tool(
        "ffmpeg",
        &[
            "-v",
            "error",
            "-y",
            "-f",
            "lavfi",
            "-i",
            source,
            "-frames:v",
            &frames,
            "-pix_fmt",
            pixels,
            "-f",
            "yuv4mpegpipe",
            &path,
        ],
    );
    path
}

/// Returns size, pixel format, rate and frame count from ffprobe.
fn probe(path: &str) -> String {
    let entries = "stream=width,height,pix_fmt,r_frame_rate,nb_read_frames";
    let told =
        tool("ffprobe", &["-v", "error", "-count_frames", "-show_entries", entries, "-of", "csv=p=0", path]);
    String::from_utf8(told).unwrap().trim().into()
}

#[test]
fn ffmpeg_reads_a_scaled_gray_film() {
    if !has_ffmpeg() {
        return;
    }
    let scratch = Scratch::new();
    for pixels in ["yuv420p", "yuv422p", "yuv444p"] {
        let from = film(&scratch, pixels);
        let to = scratch.path("out.y4m");
        let (source, sink) = (format!("y4m:{from},rate=0"), format!("y4m:{to}"));
        let via = "scale(width=160, filter=box) | gray";
        let told = outboard(&["connect", &source, &sink, "--via", via, "--json"]).done().json();
        assert_eq!(
            (told["messages"].as_u64(), &told["drops"]),
            (Some(FRAMES as u64), &serde_json::json!({}))
        );
        assert_eq!(probe(&to), format!("160,120,gray,30/1,{FRAMES}"), "{pixels}");
        let seen = tool("ffmpeg", &["-v", "error", "-i", &to, "-f", "rawvideo", "-pix_fmt", "gray", "-"]);
        let right = halved(&std::fs::read(&from).unwrap(), pixels);
        assert_eq!(seen.len(), right.len());
        let off = seen.iter().zip(&right).map(|(seen, right)| seen.abs_diff(*right)).max();
        assert!(off <= Some(1), "{pixels}: off by {off:?}");
    }
}

/// Returns the brightness planes of a film of 320 by 240, at half the size.
fn halved(film: &[u8], pixels: &str) -> Vec<u8> {
    let bytes = match pixels {
        "yuv420p" => 320 * 240 * 3 / 2,
        "yuv422p" => 320 * 240 * 2,
        _ => 320 * 240 * 3,
    };
    let start = film.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    let frames = film[start..].chunks_exact(b"FRAME\n".len() + bytes);
    assert_eq!(frames.len(), FRAMES);
    let mean = |frame: &[u8], at: usize| {
        let first = b"FRAME\n".len() + at / 160 * 640 + at % 160 * 2;
        let sum: u16 =
            [first, first + 1, first + 320, first + 321].iter().map(|at| u16::from(frame[*at])).sum();
        ((sum + 2) / 4) as u8
    };
    frames.flat_map(|frame| (0..160 * 120).map(move |at| mean(frame, at))).collect()
}

#[test]
fn crop_cuts_the_same_part_as_ffmpeg() {
    if !has_ffmpeg() {
        return;
    }
    let scratch = Scratch::new();
    let from = film(&scratch, "yuv420p");
    let to = scratch.path("out.y4m");
    let (source, sink) = (format!("y4m:{from},rate=0"), format!("y4m:{to}"));
    outboard(&["connect", &source, &sink, "--via", "crop(x=20, y=10, width=100, height=80)"]).done();
    assert_eq!(probe(&to), format!("100,80,yuv420p,30/1,{FRAMES}"));
    let raw = |path: &str, filters: &[&str]| {
        let arguments = [&["-v", "error", "-i", path][..], filters, &["-f", "rawvideo", "-"]].concat();
        tool("ffmpeg", &arguments)
    };
    assert_eq!(raw(&to, &[]), raw(&from, &["-vf", "crop=100:80:20:10"]));
}

#[test]
fn a_live_program_writes_into_a_pipe_and_another_reads_from_one() {
    if !has_ffmpeg() {
        return;
    }
    let camera = [
        "-v",
        "error",
        "-f",
        "lavfi",
        "-i",
        "testsrc=size=160x120:rate=30",
        "-frames:v",
        "12",
        "-pix_fmt",
        "yuv420p",
        "-f",
        "yuv4mpegpipe",
        "-",
    ];
    let mut camera =
        Command::new("ffmpeg").args(camera).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let arguments = ["connect", "y4m", "y4m", "--via", "colour(hue=90) | compress"];
    let mut between = command(&arguments).stdin(camera.stdout.take().unwrap()).spawn().unwrap();
    let viewer =
        ["-v", "error", "-f", "yuv4mpegpipe", "-i", "-", "-f", "rawvideo", "-pix_fmt", "yuv420p", "-"];
    let viewer = Command::new("ffmpeg")
        .args(viewer)
        .stdin(between.stdout.take().unwrap())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let seen = thread::spawn(move || viewer.wait_with_output().unwrap());
    let ended = end(between, "connect y4m y4m");
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(camera.wait().unwrap().success());
    let seen = seen.join().unwrap();
    assert!(seen.status.success(), "{}", String::from_utf8_lossy(&seen.stderr));
    assert_eq!(seen.stdout.len(), 12 * 160 * 120 * 3 / 2);
}

/// The writer into a pipe does not notice a change of hosts, although only the first host received the film's header.
#[test]
fn a_film_in_a_pipe_continues_at_the_next_host() {
    let scratch = Scratch::new();
    let path = scratch.path("film");
    mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let (mut share, address) = Service::share(&format!("y4m:{path},rate=0"), &["--name", "film"]);
    let mut camera = fs::File::options().write(true).open(&path).unwrap();
    camera.write_all(b"YUV4MPEG2 W16 H16 F30:1 C420jpeg\n").unwrap();
    let frames = |of: u8| [b"FRAME\n".as_slice(), &[of; 16 * 16 * 3 / 2]].concat().repeat(3);
    for host in 0..3 {
        let seen = scratch.path(&format!("seen-{host}"));
        let application = format!("y4m:{seen}");
        let mut attach = Service::start(&["attach", &format!("{address}/film"), "--as", &application]);
        attach.wait("attached");
        camera.write_all(&frames(host)).unwrap();
        let since = Instant::now();
        while !fs::read(&seen).is_ok_and(|film| film.ends_with(&frames(host))) {
            assert!(since.elapsed() < PATIENCE, "host {host} sees nothing");
            thread::sleep(Duration::from_millis(2));
        }
        let film = fs::read(&seen).unwrap();
        assert!(film.starts_with(b"YUV4MPEG2 W16 H16 "), "{:?}", film.escape_ascii().to_string());
        assert_eq!(film.windows(6).filter(|line| line == b"FRAME\n").count(), 3, "at host {host}");
        attach.stop();
        share.wait("peer-left");
    }
}

/// The workers die so early that the broker starts no more of them and opens the device again.
#[test]
fn a_film_in_a_pipe_continues_when_the_device_is_opened_again() {
    let scratch = Scratch::new();
    let (path, seen) = (scratch.path("film"), scratch.path("seen"));
    mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let (mut share, address) = Service::share(&format!("y4m:{path},rate=0"), &["--name", "film"]);
    let mut camera = fs::File::options().write(true).open(&path).unwrap();
    camera.write_all(b"YUV4MPEG2 W16 H16 F30:1 C420jpeg\n").unwrap();
    let frame = |of: u8| [b"FRAME\n".as_slice(), &[of; 16 * 16 * 3 / 2]].concat();
    let _attach = Service::start(&["attach", &format!("{address}/film"), "--as", &format!("y4m:{seen}")]);
    let mut see = |of: u8| {
        let since = Instant::now();
        while !fs::read(&seen).is_ok_and(|film| film.ends_with(&frame(of))) {
            assert!(since.elapsed() < PATIENCE, "no frame {of}");
            camera.write_all(&frame(of)).unwrap();
            thread::sleep(Duration::from_millis(10));
        }
    };
    see(1);
    let since = Instant::now();
    while !share.pending().iter().any(|event| event["event"] == "detached") {
        assert!(since.elapsed() < PATIENCE, "workers begin again and again");
        for worker in children(share.child.id()) {
            let worker = rustix::process::Pid::from_raw(worker).unwrap();
            let _ = rustix::process::kill_process(worker, rustix::process::Signal::KILL);
        }
    }
    see(2);
}

/// `make prove` transfers the same film for five minutes.
#[test]
fn a_film_arrives_complete_and_in_order() {
    if !testkit::skip::has_program("python3", "python3") {
        return;
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/film");
    let played =
        Command::new(script).arg("2").env("OUTBOARD", env!("CARGO_BIN_EXE_outboard")).output().unwrap();
    let said = String::from_utf8_lossy(&played.stdout);
    assert!(played.status.success(), "{said}{}", String::from_utf8_lossy(&played.stderr));
    let told: serde_json::Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
    assert_eq!(
        (&told["sent"], &told["arrived"], &told["lost"]),
        (&60.into(), &60.into(), &0.into()),
        "{told}"
    );
}

#[test]
fn generated_pictures_are_correct_and_other_pairs_are_refused() {
    let (source, sink) = ("pattern:format=video,rate=0,count=30", "pattern:format=video");
    let told = outboard(&["connect", source, sink, "--via", "compress", "--json"]).done().json();
    assert_eq!((told["messages"].as_u64(), &told["drops"]), (Some(30), &serde_json::json!({})));
    outboard(&["connect", "pattern", "null", "--via", "gray"])
        .refused(2, &["the flow is bytes", "`gray`", "takes only video"]);
    let no_order = ["connect", source, sink, "--via", "compress | gray"];
    outboard(&no_order).refused(2, &["`compress` makes bytes", "`gray`"]);
    let rubbish = Scratch::new();
    std::fs::write(rubbish.path("film"), "no film\n").unwrap();
    let film = format!("y4m:{}", rubbish.path("film"));
    outboard(&["connect", &film, "null"])
        .refused(1, &["does not begin with YUV4MPEG2", &rubbish.path("film")]);
}
