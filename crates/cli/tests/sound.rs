//! Sound between two real PipeWire servers, with unmodified programs: `pw-play`, `parecord`, `pactl`.
//!
//! Each frame of the sound has its own number as its samples. So each recorded frame tells its place in the sound, and a run of
//! consecutive numbers was carried sample by sample.
#![cfg(feature = "media")]

mod support;

use rustix::process::{Pid, Signal, kill_process};
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;
use support::relay::Relay;
use support::{Scratch, Service, command, end, wait_until, workers_of};
use testkit::skip::has_program;

/// The exact frames that show that sound is carried: 10 ms. On a busy machine the servers themselves miss quanta of 2.7 ms.
const RUN_FRAMES: usize = 480;
/// The frames of a silence: 50 ms.
const SILENCE_FRAMES: usize = 2400;
/// The sound: four minutes.
const SOUND_FRAMES: u32 = 240 * 48_000;

/// A PipeWire server with its session manager and its PulseAudio socket, on a session bus of its own.
struct Server {
    scratch: Scratch,
    children: Vec<Child>,
}

impl Server {
    /// Starts a server without any device; `None` if a package is missing.
    fn start() -> Option<Server> {
        let needed = [
            ("dbus-daemon", "dbus"),
            ("pipewire", "pipewire"),
            ("wireplumber", "wireplumber"),
            ("pipewire-pulse", "pipewire-pulse"),
            ("pactl", "pulseaudio-utils"),
        ];
        if !needed.iter().all(|(program, package)| has_program(program, package)) {
            return None;
        }
        let mut server = Server { scratch: Scratch::new(), children: Vec::new() };
        let bus = format!("--address=unix:path={}", server.scratch.path("bus"));
        server.spawn("dbus-daemon", &["--session", "--nofork", "--nopidfile", &bus]);
        server.wait_for_socket("bus");
        server.spawn("pipewire", &[]);
        server.wait_for_socket("pipewire-0");
        server.spawn("wireplumber", &[]);
        server.spawn("pipewire-pulse", &[]);
        server.wait_for_socket("pulse/native");
        Some(server)
    }

    fn wait_for_socket(&self, name: &str) {
        wait_until(name, || std::fs::exists(self.scratch.path(name)).unwrap());
    }

    /// Lets a program use this server.
    fn set(&self, command: &mut Command) {
        let bus = format!("unix:path={}", self.scratch.path("bus"));
        command.env("XDG_RUNTIME_DIR", self.scratch.path("")).env("DBUS_SESSION_BUS_ADDRESS", bus);
        command
            .env("XDG_CONFIG_HOME", self.scratch.path("config"))
            .env("XDG_STATE_HOME", self.scratch.path("state"));
        command.env_remove("PIPEWIRE_RUNTIME_DIR").env_remove("PULSE_SERVER").env_remove("PIPEWIRE_REMOTE");
    }

    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        self.set(command.args(arguments).stdin(Stdio::null()));
        command
    }

    fn spawn(&mut self, program: &str, arguments: &[&str]) {
        let mut command = self.command(program, arguments);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        self.children.push(child);
    }

    /// Returns the output of a program that ends.
    #[track_caller]
    fn output(&self, program: &str, arguments: &[&str]) -> String {
        let child = self.command(program, arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        end(child.unwrap(), program).done().text().trim().to_string()
    }

    /// Makes a device: a sink, or a source whose sound a program plays into it. Returns the number of its module.
    #[track_caller]
    fn load(&self, class: &str, name: &str) -> String {
        let (class, name) = (format!("media.class={class}"), format!("sink_name={name}"));
        self.output("pactl", &["load-module", "module-null-sink", &class, &name, "channel_map=stereo"])
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

    /// Plays the sound into a node. `port` is the beginning of the names of its ports.
    fn play(&self, node: &str, port: &str) -> Program {
        let (path, name) = (self.scratch.path("sound.wav"), format!("player-of-{node}"));
        if !std::fs::exists(&path).unwrap() {
            std::fs::write(&path, wave()).unwrap();
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

    /// Records a source.
    fn record(&self, source: &str) -> Recording {
        let mut command =
            self.command("parecord", &["--raw", "--format=s16le", "--rate=48000", "--channels=2"]);
        command.args(["--latency-msec=20", "-d", source]).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
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
    fn share(&self, device: &str) -> (Service, String) {
        let mut command =
            command(&["share", device, "--name", "sound", "--listen", "127.0.0.1:0", "--insecure"]);
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

impl Drop for Server {
    fn drop(&mut self) {
        for child in self.children.iter_mut().rev() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A program that is killed at the end.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The sound as a file: frame number n has the bytes of n.
fn wave() -> Vec<u8> {
    let bytes = SOUND_FRAMES * 4;
    let mut file = b"RIFF".to_vec();
    file.extend((bytes + 36).to_le_bytes());
    file.extend(b"WAVEfmt \x10\0\0\0\x01\0\x02\0");
    file.extend(48_000_u32.to_le_bytes());
    file.extend((48_000_u32 * 4).to_le_bytes());
    file.extend(b"\x04\0\x10\0data");
    file.extend(bytes.to_le_bytes());
    // Never zero, which is silence.
    file.extend((1..=SOUND_FRAMES).flat_map(u32::to_le_bytes));
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

fn kill_worker(service: &Service) {
    let [worker] = workers_of(&service.child)[..] else { panic!("not one worker") };
    kill_process(Pid::from_raw(worker as i32).unwrap(), Signal::KILL).unwrap();
}

#[test]
fn a_microphone_is_recorded_sample_by_sample_and_never_ends() {
    let (Some(here), Some(there)) = (Server::start(), Server::start()) else { return };
    here.load("Audio/Source/Virtual", "mic");
    here.wait_for("sources", "mic");
    let (mut share, address) = here.share("audio:mic");
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
    let (mut share, address) = here.share("audio:loud");
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
    let (mut share, address) = here.share("audio:headset");
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

#[test]
fn nodes_return_with_their_server_and_wrong_names_are_refused() {
    let (Some(here), Some(mut there)) = (Server::start(), Server::start()) else { return };
    let mut wrong = command(&["share", "audio:no such thing", "--listen", "127.0.0.1:0", "--insecure"]);
    here.set(&mut wrong);
    let refused = end(wrong.spawn().unwrap(), "share");
    assert_ne!(refused.code, Some(0));
    assert!(refused.stderr.contains("outboard devices"), "{}", refused.stderr);

    let (share, address) = here.share("audio");
    let attach = there.attach(&address);
    there.wait_for("sources", "Remote");
    there.wait_for("sinks", "Remote");
    for mut child in there.children.drain(1..) {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    for name in ["pipewire-0", "pipewire-0.lock", "pulse/native"] {
        let _ = std::fs::remove_file(there.scratch.path(name));
    }
    there.spawn("pipewire", &[]);
    there.wait_for_socket("pipewire-0");
    there.spawn("wireplumber", &[]);
    there.spawn("pipewire-pulse", &[]);
    there.wait_for_socket("pulse/native");
    there.wait_for("sources", "Remote");
    there.wait_for("sinks", "Remote");
    assert_eq!([attach.stop(), share.stop()], [Some(0); 2]);
}
