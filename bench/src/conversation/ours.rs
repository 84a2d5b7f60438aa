//! The conversation through Outboard: three devices of host a with their default pipelines, attached by host b as the guide says.

use super::recorder;
use super::{HOST_A, Record, Stage};
use crate::camera;
use crate::display::Program;
use crate::pipewire::Server;
use crate::processes::with_descendants;
use crate::programs::beside;
use crate::setting::Failure;
use std::fs;
use std::process::Command;
use std::thread;
use std::time::Duration;

const PORT: u16 = 7847;
/// The time for the device host to listen.
const BEGINS: Duration = Duration::from_secs(2);
/// The programs' picture and sound.
const CAMERA: &str = "Desk-camera";
const MICROPHONE: &str = "Desk-sound";
const SPEAKER: &str = "Desk-speaker";

/// Returns a program that writes the pictures of a camera.
pub(super) fn picture_program(server: &Server<'_>) -> Command {
    server.command(
        "gst-launch-1.0",
        &[
            "-q",
            "pipewiresrc",
            &format!("target-object={CAMERA}"),
            "!",
            "video/x-raw,format=I420",
            "!",
            "fdsink",
            "fd=1",
        ],
    )
}

/// Returns a program that writes the sound of a node; `is_sink`: the sound that is played to it.
pub(super) fn sound_program(server: &Server<'_>, node: &str, is_sink: bool) -> Command {
    let mut command = server.command("pw-record", &["--target", node, "--latency", "128"]);
    if is_sink {
        command.args(["-P", "{ stream.capture.sink = true }"]);
    }
    command.args(["--rate", "48000", "--channels", "1", "--format", "s16", "-"]);
    command
}

/// Holds the conversation.
pub(super) fn run(stage: &Stage<'_>) -> Result<Record, Failure> {
    let outboard = beside("outboard")?.display().to_string();
    let camera_log = stage.scratch.path("camera.log");
    let _ = fs::remove_file(&camera_log);
    let camera = camera::device(stage.scratch, &camera_log);
    // `encode` is the default of cameras of the kernel; this one is a program.
    let entry = |device: &str, more: &str| {
        let listens = format!("listen = '{HOST_A}:{PORT}'\ninsecure = true\n");
        format!("[[share]]\ndevice = '{device}'\n{more}\n{listens}")
    };
    let shares = [
        // `encode` is the default of cameras of the kernel; this one is a program.
        entry(&camera, "name = 'cam'\nvia = 'encode'"),
        entry("audio:mic", "name = 'mic'"),
        entry("audio:room", "name = 'speaker'"),
    ];
    let path = stage.scratch.path("share.toml");
    fs::write(&path, shares.concat()).map_err(|error| format!("{path}: {error}"))?;
    let share = Program::start(&mut stage.a.command(&outboard, &["run", &path]))?;
    thread::sleep(BEGINS);
    let begun_ns = sys::clock::boot_ns();
    let of = |name: &str| format!("{HOST_A}:{PORT}/{name}");
    let joined = ["--via", "synchronize(apart=true)", "--insecure"];
    let nodes = [format!("audio:{MICROPHONE}"), format!("pipewire:{CAMERA}")];
    let mut together = stage.b.command(&outboard, &["attach", &of("mic"), &of("cam")]);
    let together = Program::start(together.args(joined).args(["--as", &nodes[0], "--as", &nodes[1]]))?;
    let mut back = stage.b.command(&outboard, &["attach", &of("speaker"), "--insecure"]);
    let back = Program::start(back.args(["--as", &format!("audio:{SPEAKER}")]))?;
    for node in [MICROPHONE, CAMERA, SPEAKER] {
        stage.b.wait_for_node(node)?;
    }
    let pictures = recorder::pictures(&mut picture_program(stage.b))?;
    let sound = recorder::sound(&mut sound_program(stage.b, MICROPHONE, false))?;
    stage.play_back_to(&format!("{SPEAKER}:playback"))?;
    let heard_back = recorder::sound(&mut sound_program(stage.a, "room", true))?;

    let ours = |program: &Program| {
        let all = with_descendants(program.id()).into_iter();
        // A worker has another name, but the same program. The camera is none.
        all.filter(|process| {
            fs::read_link(format!("/proc/{process}/exe")).is_ok_and(|file| file.ends_with("outboard"))
        })
        .collect::<Vec<u32>>()
    };
    let processes = || {
        [
            [ours(&share), stage.a.processes()].concat(),
            [ours(&together), ours(&back), stage.b.processes()].concat(),
        ]
    };
    let measured = stage.measure(processes)?;
    Ok(Record {
        begun_ns,
        made: camera::log(&camera_log),
        shown: pictures.end()?,
        sound: sound.end()?,
        back: heard_back.end()?,
        measured,
    })
}
