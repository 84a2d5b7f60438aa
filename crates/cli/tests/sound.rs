//! Sound between two real PipeWire servers, with unmodified programs: `pw-play`, `parecord`, `pactl`.
//!
//! Without pairs, each frame of the sound has its own number as its samples. So each recorded frame tells its place in the sound, and
//! a run of consecutive numbers was carried sample by sample.
//!
//! With the default pipeline, which changes samples, the sound is a sine. Each of its samples follows from the two before it:
//! `x[n] = 2 cos(w) x[n-1] - x[n-2]`. A *click* is a sample that is far from this value. On a busy machine the programs miss quanta
//! themselves, which clicks, too. So the sine and its recorder are nodes that drive their graphs (`sound/graph.c`): a quantum begins
//! when every node has done the one before, however late. Each sample of the recording is one that Outboard handed to its server,
//! and no click is forgiven.
#![cfg(feature = "media")]

mod support;

use netsim::Params;
use std::io::Read;
use std::net::SocketAddr;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;
use support::pipewire::{Program, Server, kill_worker};
use support::relay::Relay;
use support::{Scratch, Service, command, end, figure, wait_until};
use testkit::skip::has_program;

/// The exact frames that show that sound is carried: 10 ms. On a busy machine the servers themselves miss quanta of 2.7 ms.
const RUN_FRAMES: usize = 480;
/// The frames of a silence: 50 ms.
const SILENCE_FRAMES: usize = 2400;
/// The sound: four minutes.
const SOUND_FRAMES: u32 = 240 * 48_000;
/// The period of the sine, in frames: 200 Hz.
const SINE_FRAMES: usize = 240;
/// The frames that show that the sine is carried: 200 ms. On a busy machine, concealment interrupts it more often than each second.
const SINE_RUN_FRAMES: usize = 9600;
const SINE_PEAK: f64 = 16_000.0;
/// The difference from a sine that is a click, as a share of the peak. Sound that ends is played backwards while it fades out, which
/// makes an edge, but no jump: 0.05 of the peak.
const CLICK: f64 = 0.1;
/// The pipeline of a device whose samples are to stay as they are.
const UNCHANGED: [&str; 4] = ["--via", "null", "--via-back", "null"];
/// A server with long quanta, which a busy machine does not miss.
const LONG_QUANTA: &str = "context.properties = { default.clock.min-quantum = 1024 }";

impl Server {
    /// Makes a device: a sink, or a source whose sound a program plays into it. Returns the number of its module.
    #[track_caller]
    fn load(&self, class: &str, name: &str) -> String {
        self.load_as(class, name, name)
    }

    /// Makes a device with a description.
    #[track_caller]
    fn load_as(&self, class: &str, name: &str, description: &str) -> String {
        let (class, name) = (format!("media.class={class}"), format!("sink_name={name}"));
        let described = format!("sink_properties=node.description={description}");
        let stereo = "channel_map=stereo";
        self.output("pactl", &["load-module", "module-null-sink", &class, &name, &described, stereo])
    }

    /// Waits until PulseAudio's list of `sources` or `sinks` has a name.
    #[track_caller]
    fn wait_for(&self, list: &str, name: &str) {
        let has = || {
            self.output("pactl", &["list", "short", list])
                .lines()
                .any(|line| line.split('\t').nth(1) == Some(name))
        };
        wait_until(&format!("{name} among the {list}"), has);
    }

    /// Plays numbered frames into a node. `port` is the beginning of the names of its ports.
    fn play(&self, node: &str, port: &str) -> Program {
        self.play_frames(node, port, |frame| frame + 1)
    }

    /// Plays the sine.
    fn play_sine(&self, node: &str, port: &str) -> Program {
        let period: Vec<u32> = (0..SINE_FRAMES)
            .map(|frame| {
                let phase = std::f64::consts::TAU * frame as f64 / SINE_FRAMES as f64;
                u32::from((phase.sin() * SINE_PEAK).round() as i16 as u16) * 0x1_0001
            })
            .collect();
        self.play_frames(node, port, |frame| period[frame as usize % SINE_FRAMES])
    }

    fn play_frames(&self, node: &str, port: &str, frame: impl Fn(u32) -> u32) -> Program {
        let (path, name) = (self.scratch.path("sound.wav"), format!("player-of-{node}"));
        if !std::fs::exists(&path).unwrap() {
            std::fs::write(&path, wave(frame)).unwrap();
        }
        let properties = format!("{{ \"node.name\": \"{name}\" }}");
        let player =
            Program(self.command("pw-play", &["--target", "0", "-P", &properties, &path]).spawn().unwrap());
        for channel in ["FL", "FR"] {
            let (from, to) = (format!("{name}:output_{channel}"), format!("{node}:{port}_{channel}"));
            let linked =
                || self.command("pw-link", &[&from, &to]).stderr(Stdio::null()).status().unwrap().success();
            wait_until("the player is linked", linked);
        }
        player
    }

    /// Makes a microphone with a sine that drives its graph.
    fn sine(&self, graph: &str, name: &str) -> Program {
        let program = Program(self.command(graph, &["microphone", name]).spawn().unwrap());
        self.wait_for("sources", name);
        program
    }

    /// Records a source by a node that drives its graph.
    fn record_driven(&self, graph: &str, source: &str) -> Recording {
        Server::recording(self.command(graph, &["recorder", source]))
    }

    /// Records a source.
    fn record(&self, source: &str) -> Recording {
        let mut command =
            self.command("parecord", &["--raw", "--format=s16le", "--rate=48000", "--channels=2"]);
        command.args(["--latency-msec=20", "-d", source]);
        Server::recording(command)
    }

    fn recording(mut command: Command) -> Recording {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut output = child.stdout.take().unwrap();
        let frames = Arc::new(Mutex::new(Vec::new()));
        let into = frames.clone();
        thread::spawn(move || {
            let mut bytes = [0; 4];
            let mut buffered = std::io::BufReader::new(&mut output);
            while buffered.read_exact(&mut bytes).is_ok() {
                into.lock().unwrap().push(u32::from_le_bytes(bytes));
            }
        });
        Recording { program: Program(child), frames }
    }

    /// Shares a device of this server. Returns its address.
    fn share(&self, device: &str, more: &[&str]) -> (Service, String) {
        let fixed = ["share", device, "--name", "sound", "--listen", "127.0.0.1:0", "--insecure"];
        let mut command = command(&[&fixed[..], more].concat());
        self.set(&mut command);
        let mut service = Service::start_as(command);
        let address = service.wait("listening")["address"].as_str().unwrap().to_string();
        (service, address)
    }

    /// Attaches a device; programs of this server find it as `Remote`.
    fn attach(&self, address: &str) -> Service {
        let device = format!("{address}/sound");
        let mut command =
            command(&["attach", &device, "--as", "audio:Remote", "--insecure", "--expect", "audio"]);
        self.set(&mut command);
        let mut service = Service::start_as(command);
        service.wait("attached");
        service
    }
}

/// Builds `sound/graph.c`; `None` if a package is missing.
fn graph(scratch: &Scratch) -> Option<String> {
    if !has_program("cc", "gcc") || !has_program("pkg-config", "pkg-config") {
        return None;
    }
    let library =
        Command::new("pkg-config").args(["--cflags", "--libs", "libpipewire-0.3"]).output().unwrap();
    assert!(library.status.success(), "pkg-config knows no libpipewire-0.3: install libpipewire-0.3-dev");
    let library = String::from_utf8(library.stdout).unwrap();
    let (source, program) =
        (concat!(env!("CARGO_MANIFEST_DIR"), "/tests/sound/graph.c"), scratch.path("graph"));
    let mut compile = Command::new("cc");
    compile.args(["-O1", "-o", &program, source]).args(library.split_whitespace()).arg("-lm");
    assert!(compile.status().unwrap().success(), "cc does not build {source}");
    Some(program)
}

/// The sound as a file. `frame` returns the bytes of a frame, by its number.
fn wave(frame: impl Fn(u32) -> u32) -> Vec<u8> {
    let bytes = SOUND_FRAMES * 4;
    let mut file = b"RIFF".to_vec();
    file.extend((bytes + 36).to_le_bytes());
    file.extend(b"WAVEfmt \x10\0\0\0\x01\0\x02\0");
    file.extend(48_000_u32.to_le_bytes());
    file.extend((48_000_u32 * 4).to_le_bytes());
    file.extend(b"\x04\0\x10\0data");
    file.extend(bytes.to_le_bytes());
    // Numbers are never zero, which is silence.
    file.extend((0..SOUND_FRAMES).flat_map(|number| frame(number).to_le_bytes()));
    file
}

struct Recording {
    program: Program,
    frames: Arc<Mutex<Vec<u32>>>,
}

impl Recording {
    /// Waits until frames recorded from now on have this property somewhere.
    #[track_caller]
    fn wait_for(&mut self, what: &str, has: impl Fn(&[u32]) -> bool) {
        let mut checked = self.frames.lock().unwrap().len();
        wait_until(what, || {
            assert!(self.program.0.try_wait().unwrap().is_none(), "the recorder ended");
            let frames = self.frames.lock().unwrap();
            let found = has(&frames[checked..]);
            // A property may begin before the end of what was there.
            checked = checked.max(frames.len().saturating_sub(2 * SILENCE_FRAMES));
            found
        });
    }

    #[track_caller]
    fn wait_for_sound(&mut self) {
        self.wait_for("exact sound", |frames| {
            let mut run = 0;
            frames.windows(2).any(|pair| {
                run = if pair[0] > 0 && pair[1] == pair[0] + 1 { run + 1 } else { 0 };
                run >= RUN_FRAMES
            })
        });
    }

    #[track_caller]
    fn wait_for_silence(&mut self) {
        self.wait_for("silence", |frames| {
            frames
                .chunks(SILENCE_FRAMES)
                .any(|part| part.len() == SILENCE_FRAMES && part.iter().all(|frame| *frame == 0))
        });
    }
}

/// Cuts the link, then kills the worker of each host: the sound returns each time.
#[track_caller]
fn returns_after_faults(recording: &mut Recording, relay: &Relay, hosts: [&mut Service; 2]) {
    relay.set_down(true);
    recording.wait_for_silence();
    relay.set_down(false);
    recording.wait_for_sound();
    for service in hosts {
        kill_worker(service);
        service.wait("worker");
        recording.wait_for_sound();
    }
}

/// The left samples.
fn left(frames: &[u32]) -> impl Iterator<Item = f64> + '_ {
    frames.iter().map(|frame| f64::from(*frame as u16 as i16))
}

/// The numbers of the samples that click.
fn clicks(frames: &[u32]) -> Vec<usize> {
    let twice_cos = 2.0 * (std::f64::consts::TAU / SINE_FRAMES as f64).cos();
    let samples: Vec<f64> = left(frames).collect();
    let is_click = |part: &[f64]| (part[2] - twice_cos * part[1] + part[0]).abs() > CLICK * SINE_PEAK;
    samples.windows(3).enumerate().filter(|(_, part)| is_click(part)).map(|(at, _)| at).collect()
}

/// Returns true if each period of these frames is loud.
fn is_loud(frames: &[u32]) -> bool {
    let peak = |period: &[u32]| left(period).fold(0.0, |peak: f64, sample| peak.max(sample.abs()));
    frames.chunks_exact(SINE_FRAMES).all(|period| peak(period) > 0.8 * SINE_PEAK)
}

impl Recording {
    #[track_caller]
    fn wait_for_sine(&mut self) {
        self.wait_for_run("sine without a click", |frames| is_loud(frames) && clicks(frames).is_empty());
    }

    /// Waits for frames with this property, [`SINE_RUN_FRAMES`] of those recorded from now on.
    #[track_caller]
    fn wait_for_run(&mut self, what: &str, has: impl Fn(&[u32]) -> bool) {
        let mut from = self.frames.lock().unwrap().len();
        wait_until(what, || {
            assert!(self.program.0.try_wait().unwrap().is_none(), "the recorder ended");
            let frames = self.frames.lock().unwrap();
            while let Some(run) = frames.get(from..from + SINE_RUN_FRAMES) {
                if has(run) {
                    return true;
                }
                from += SINE_RUN_FRAMES / 10;
            }
            false
        });
    }

    /// Runs `event`, and waits for the sine. Nothing may click in between.
    #[track_caller]
    fn survives(&mut self, what: &str, event: impl FnOnce(&mut Recording)) {
        let from = self.frames.lock().unwrap().len();
        event(self);
        self.wait_for_sine();
        let frames = self.frames.lock().unwrap()[from..].to_vec();
        let found = clicks(&frames);
        println!("{what}: {} frames, {} clicks", frames.len(), found.len());
        let around = found.first().map(|at| left(&frames[at.saturating_sub(8)..(at + 8).min(frames.len())]));
        let around: Option<Vec<f64>> = around.map(Iterator::collect);
        assert!(found.is_empty(), "{what}: clicks at {found:?} of {} frames: {around:?}", frames.len());
    }
}

#[test]
fn a_microphone_is_recorded_sample_by_sample_and_never_ends() {
    let (Some(here), Some(there)) = (Server::start(), Server::start()) else { return };
    here.load("Audio/Source/Virtual", "mic");
    here.wait_for("sources", "mic");
    let (mut share, address) = here.share("audio:mic", &UNCHANGED);
    let relay = Relay::default();
    let mut attach = there.attach(&relay.start(&address).to_string());
    there.wait_for("sources", "Remote");
    let mut recording = there.record("Remote");
    recording.wait_for_silence();
    let _player = here.play("mic", "input");
    recording.wait_for_sound();

    returns_after_faults(&mut recording, &relay, [&mut share, &mut attach]);
    assert_eq!([attach.stop(), share.stop()], [Some(0); 2]);
}

#[test]
fn a_speaker_plays_sample_by_sample_and_the_player_never_notices() {
    let (Some(here), Some(there)) = (Server::start(), Server::start()) else { return };
    here.load("Audio/Sink", "loud");
    here.wait_for("sinks", "loud");
    let (mut share, address) = here.share("audio:loud", &UNCHANGED);
    let relay = Relay::default();
    let mut attach = there.attach(&relay.start(&address).to_string());
    there.wait_for("sinks", "Remote");
    let mut recording = here.record("loud.monitor");
    let mut player = there.play("Remote", "playback");
    recording.wait_for_sound();

    returns_after_faults(&mut recording, &relay, [&mut share, &mut attach]);
    assert!(player.0.try_wait().unwrap().is_none(), "the player ended");
    assert_eq!([attach.stop(), share.stop()], [Some(0); 2]);
}

#[test]
fn a_headset_that_is_unplugged_returns_and_no_other_microphone_is_heard() {
    let (Some(here), Some(there)) = (Server::start(), Server::start()) else { return };
    let module = here.load("Audio/Source/Virtual", "headset");
    here.wait_for("sources", "headset");
    here.load("Audio/Source/Virtual", "private");
    let listed = {
        let mut command = command(&["devices"]);
        here.set(&mut command);
        end(command.spawn().unwrap(), "devices").done()
    };
    assert!(
        listed.text().contains("audio:headset") && listed.text().contains("audio:private"),
        "{}",
        listed.text()
    );
    let (mut share, address) = here.share("audio:headset", &UNCHANGED);
    let mut attach = there.attach(&address);
    there.wait_for("sources", "Remote");
    let mut recording = there.record("Remote");
    let player = here.play("headset", "input");
    recording.wait_for_sound();

    let _private = here.play("private", "input");
    here.output("pactl", &["unload-module", &module]);
    share.wait("device-gone");
    attach.wait("device-gone");
    recording.wait_for_silence();
    drop(player);
    thread::sleep(Duration::from_secs(1));
    recording.wait_for_silence();
    here.load("Audio/Source/Virtual", "headset");
    attach.wait("device-back");
    let _player = here.play("headset", "input");
    recording.wait_for_sound();
    assert_eq!([attach.stop(), share.stop()], [Some(0); 2]);
}

/// The microphone and the speaker of a headset have one description. It takes another profile for a call, and returns to the first.
#[test]
fn a_speaker_that_returns_is_not_replaced_by_its_microphone() {
    let (Some(here), Some(there)) = (Server::start(), Server::start()) else { return };
    let speaker = here.load_as("Audio/Sink", "output", "Headset");
    here.wait_for("sinks", "output");
    let (mut share, address) = here.share("audio:Headset", &UNCHANGED);
    let mut attach = there.attach(&address);
    there.wait_for("sinks", "Remote");
    let _player = there.play("Remote", "playback");
    here.record("output.monitor").wait_for_sound();

    here.load_as("Audio/Source/Virtual", "input", "Headset");
    here.wait_for("sources", "input");
    here.output("pactl", &["unload-module", &speaker]);
    share.wait("device-gone");
    attach.wait("device-gone");
    here.load_as("Audio/Sink", "output", "Headset");
    attach.wait("device-back");
    here.record("output.monitor").wait_for_sound();
    assert_eq!([attach.stop(), share.stop()], [Some(0); 2]);
}

#[test]
fn nodes_return_with_their_server_and_wrong_names_are_refused() {
    let (Some(here), Some(mut there)) = (Server::start(), Server::start()) else { return };
    let mut wrong = command(&["share", "audio:no such thing", "--listen", "127.0.0.1:0", "--insecure"]);
    here.set(&mut wrong);
    let refused = end(wrong.spawn().unwrap(), "share");
    assert_ne!(refused.code, Some(0));
    assert!(refused.stderr.contains("outboard devices"), "{}", refused.stderr);

    let (share, address) = here.share("audio", &UNCHANGED);
    let attach = there.attach(&address);
    there.wait_for("sources", "Remote");
    there.wait_for("sinks", "Remote");
    there.stop_all();
    there.start_all();
    there.wait_for("sources", "Remote");
    there.wait_for("sinks", "Remote");
    assert_eq!([attach.stop(), share.stop()], [Some(0); 2]);
}

/// As Ubuntu 22.04 has it: streams at this server would be silent for ever.
#[test]
fn a_pipewire_for_pictures_beside_pulseaudio_gets_no_sound() {
    let Some(server) = Server::start_for_pictures() else { return };
    let run = |arguments: &[&str]| {
        let mut command = command(arguments);
        server.set(&mut command);
        end(command.spawn().unwrap(), &arguments.join(" "))
    };
    let checks = run(&["doctor", "--json"]).done().json_lines();
    let sound = checks.iter().find(|check| check["name"] == "sound").expect("a check of sound");
    assert_eq!(sound["state"], "limited", "{sound}");
    let refused = run(&["share", "audio:Headset", "--listen", "127.0.0.1:0", "--insecure"]);
    assert_ne!(refused.code, Some(0));
    assert!(refused.stderr.contains("PulseAudio has the sound"), "{}", refused.stderr);
}

/// The default pipeline: resampled to the clock of the device that plays, held until its time, concealed.
#[test]
fn a_sine_crosses_cuts_and_killed_workers_without_a_click() {
    let scratch = Scratch::new();
    let (Some(here), Some(there), Some(graph)) = (Server::start(), Server::start(), graph(&scratch)) else {
        return;
    };
    let _microphone = here.sine(&graph, "mic");
    let (mut share, address) = here.share("audio:mic", &[]);
    let relay = Relay::default();
    let mut attach = there.attach(&relay.start(&address).to_string());
    there.wait_for("sources", "Remote");
    let mut recording = there.record_driven(&graph, "Remote");
    recording.wait_for_sine();
    recording.survives("no event", |recording| {
        (0..10).for_each(|_| recording.wait_for_sine());
    });
    recording.survives("a cut", |recording| {
        relay.set_down(true);
        recording.wait_for_silence();
        relay.set_down(false);
    });
    recording.survives("a killed worker of the device host", |_| {
        kill_worker(&share);
        share.wait("worker");
    });
    recording.survives("a killed worker of the application host", |_| {
        kill_worker(&attach);
        attach.wait("worker");
    });
    assert_eq!([attach.stop(), share.stop()], [Some(0); 2]);
}

/// The unit for the service of a user, as systemd runs it: its command line, its file, its report of readiness and its signals.
#[test]
fn the_service_of_a_user_shares_a_microphone() {
    const UNIT: &str = include_str!("../../../packaging/systemd/user/outboard.service");
    let (Some(here), Some(there)) = (Server::start(), Server::start()) else { return };
    here.load("Audio/Source/Virtual", "mic");
    here.wait_for("sources", "mic");
    let configuration = here.scratch.path("config");
    std::fs::create_dir_all(format!("{configuration}/outboard")).unwrap();
    let entry =
        "[[share]]\ndevice = \"audio:mic\"\nname = \"sound\"\nlisten = \"127.0.0.1:0\"\ninsecure = true\n";
    std::fs::write(format!("{configuration}/outboard/outboard.toml"), entry).unwrap();
    let notified = UnixDatagram::bind(here.scratch.path("notify")).unwrap();

    let value = |name: &str| UNIT.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    let line = value("ExecStart=").replace("%E", &configuration);
    let words: Vec<&str> = line.split(' ').collect();
    assert_eq!((words[0], value("Type="), value("NoNewPrivileges=")), ("@bindir@/outboard", "notify", "yes"));
    let mut unit = command(&words[1..]);
    here.set(&mut unit);
    unit.env("NOTIFY_SOCKET", here.scratch.path("notify"));
    let mut service = Service::start_as(unit);
    let address = service.wait("listening")["address"].as_str().unwrap().to_string();
    let mut text = [0; 256];
    let said = notified.recv(&mut text).unwrap();
    assert!(String::from_utf8_lossy(&text[..said]).contains("READY=1"), "{:?}", &text[..said]);

    let attach = there.attach(&address);
    there.wait_for("sources", "Remote");
    let mut recording = there.record("Remote");
    let _player = here.play_sine("mic", "input");
    recording.wait_for("the sine", |frames| frames.chunks_exact(RUN_FRAMES).any(is_loud));
    assert_eq!([attach.stop(), service.stop()], [Some(0); 2]);
}

/// A network that loses records, and one that is slower than samples: both get packets, and the sine goes on.
#[test]
fn a_lossy_and_a_slow_network_get_packets_of_opus() {
    let lossy = Params { delay_ns: 5_000_000, loss_ppm: 30_000, ..Params::default() };
    let slow = Params { delay_ns: 5_000_000, rate_bps: 1_000_000, ..Params::default() };
    for (name, link) in [("lossy", lossy), ("slow", slow)] {
        let servers = (Server::start_with(LONG_QUANTA), Server::start_with(LONG_QUANTA));
        let (Some(here), Some(there)) = servers else { return };
        here.load("Audio/Source/Virtual", "mic");
        here.wait_for("sources", "mic");
        let (mut share, address) = here.share("audio:mic", &["--stats"]);
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let network = netsim::relay::Relay::start(any, address.parse().unwrap(), link, 1).unwrap();
        let attach = there.attach(&network.address().to_string());
        there.wait_for("sources", "Remote");
        let mut recording = there.record("Remote");
        let _player = here.play_sine("mic", "input");
        let packets = |share: &mut Service| {
            let stats = share.wait("stats")["stats"]["outgoing"]["stages"].take();
            let opus =
                stats.as_array().and_then(|stages| stages.iter().find(|stage| stage["name"] == "opus"));
            opus.map_or(0.0, |opus| figure(&opus["figures"], "packets"))
        };
        wait_until(name, || packets(&mut share) > 0.0);
        recording.wait_for("the sine", |frames| frames.chunks_exact(RUN_FRAMES * 10).any(is_loud));
        println!("{name}: {} packets", packets(&mut share));
        assert_eq!([attach.stop(), share.stop()], [Some(0); 2]);
    }
}
