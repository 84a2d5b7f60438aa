//! A camera without `v4l2loopback`: a video source of a real PipeWire server, with an unmodified program (`pipewiresrc` of GStreamer).
//!
//! The camera is a film that repeats. Each of its pictures has its own pixels, so each picture that the program takes is found in the
//! film, pixel by pixel, or it was changed on the way.
#![cfg(feature = "media")]

mod support;

use std::collections::HashMap;
use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use support::pipewire::{Program, Server, kill_worker};
use support::relay::Relay;
use support::{Scratch, Service, command, figure, noise, wait_until};
use testkit::skip::has_program;

const WIDTH: usize = 160;
const HEIGHT: usize = 120;
/// Bytes of a picture: I420.
const PICTURE: usize = WIDTH * HEIGHT * 3 / 2;
/// The pictures of the film, at 30 a second.
const PICTURES: usize = 90;
/// Pictures that show that the film runs.
const RUN: usize = 15;

/// The film.
struct Film {
    path: String,
    numbers: HashMap<Vec<u8>, usize>,
}

impl Film {
    fn new(scratch: &Scratch) -> Film {
        let pixels = noise(PICTURE * PICTURES);
        let mut file = format!("YUV4MPEG2 W{WIDTH} H{HEIGHT} F30:1 Ip C420jpeg\n").into_bytes();
        for picture in pixels.chunks(PICTURE) {
            file.extend(b"FRAME\n");
            file.extend(picture);
        }
        let path = scratch.path("film.y4m");
        std::fs::write(&path, file).unwrap();
        let numbers = pixels.chunks(PICTURE).map(<[u8]>::to_vec).zip(0..).collect();
        Film { path, numbers }
    }

    fn share(&self) -> (Service, String) {
        let device = format!("y4m:{},loop=true", self.path);
        Service::share(&device, &["--name", "cam", "--via", "null", "--insecure"])
    }
}

/// Returns false if a package is missing.
fn has_gstreamer() -> bool {
    let has_source = || {
        let mut inspect = Command::new("gst-inspect-1.0");
        inspect.arg("pipewiresrc").stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success()
    };
    has_program("gst-inspect-1.0", "gstreamer1.0-tools")
        && (has_source() || has_program("pipewiresrc", "gstreamer1.0-pipewire"))
}

/// Attaches a camera; programs of this server find it as `Remote`.
fn attach(server: &Server, address: &str) -> Service {
    let device = format!("{address}/cam");
    let mut command = command(&["attach", &device, "--as", "pipewire:Remote", "--insecure", "--stats"]);
    server.set(&mut command);
    let mut service = Service::start_as(command);
    service.wait("attached");
    service
}

/// Waits until programs find a video source.
#[track_caller]
fn wait_for_source(server: &Server) {
    wait_until("the video source", || {
        let nodes = server.output("pw-cli", &["list-objects", "Node"]);
        nodes.contains("node.name = \"Remote\"") && nodes.contains("media.class = \"Video/Source\"")
    });
}

/// Waits until the camera is wanted, or not.
#[track_caller]
fn wait_for_wanted(attach: &mut Service, wanted: bool) {
    wait_until(&format!("wanted: {wanted}"), || {
        let stats = attach.wait("stats")["stats"]["partner"].take();
        (figure(&stats, "is wanted") == 1.0) == wanted
    });
}

/// A program that takes pictures: the number of each in the film, or `None` for another picture.
struct Player {
    program: Program,
    seen: Arc<Mutex<Vec<Option<usize>>>>,
}

impl Player {
    fn start(server: &Server, film: &Film) -> Player {
        let mut command = server.command("gst-launch-1.0", &["-q", "pipewiresrc", "target-object=Remote"]);
        command.args(["!", "video/x-raw,format=I420", "!", "fdsink", "fd=1"]).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut output = child.stdout.take().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (into, numbers) = (seen.clone(), film.numbers.clone());
        thread::spawn(move || {
            let mut picture = vec![0; PICTURE];
            while output.read_exact(&mut picture).is_ok() {
                into.lock().unwrap().push(numbers.get(&picture).copied());
            }
        });
        Player { program: Program(child), seen }
    }

    /// Waits until the pictures from now on have this property.
    #[track_caller]
    fn wait_for(&mut self, what: &str, has: impl Fn(&[Option<usize>]) -> bool) {
        let from = self.seen.lock().unwrap().len();
        wait_until(what, || {
            assert!(self.program.0.try_wait().unwrap().is_none(), "the player ended");
            has(&self.seen.lock().unwrap()[from..])
        });
    }

    /// Waits until the film runs. A busy machine misses pictures, but none comes before its predecessor.
    #[track_caller]
    fn wait_for_film(&mut self) {
        self.wait_for("the film", |seen| {
            let is_next = |pair: &[Option<usize>]| match pair {
                [Some(a), Some(b)] => (1..PICTURES / 2).contains(&((b + PICTURES - a) % PICTURES)),
                _ => false,
            };
            seen.windows(2).filter(|pair| is_next(pair)).count() >= RUN
        });
    }

    /// Waits until the last picture is repeated.
    #[track_caller]
    fn wait_for_repetition(&mut self) {
        self.wait_for("the last picture again", |seen| {
            seen.windows(4).any(|part| part[0].is_some() && part.iter().all(|one| *one == part[0]))
        });
    }

    /// Checks that each picture was one of the film.
    #[track_caller]
    fn assert_exact(&self) {
        let seen = self.seen.lock().unwrap();
        println!("{} pictures", seen.len());
        assert!(seen.iter().all(Option::is_some), "a changed picture: {seen:?}");
    }
}

#[test]
fn a_camera_is_shown_picture_by_picture_and_never_ends() {
    if !has_gstreamer() {
        return;
    }
    let Some(server) = Server::start() else { return };
    let film = Film::new(&server.scratch);
    let (mut share, address) = film.share();
    let relay = Relay::default();
    let mut attach = attach(&server, &relay.start(&address).to_string());
    wait_for_source(&server);
    let mut player = Player::start(&server, &film);
    player.wait_for_film();

    relay.set_down(true);
    player.wait_for_repetition();
    let mut late = Player::start(&server, &film);
    late.wait_for("a picture for a program that starts during the cut", |seen| !seen.is_empty());
    relay.set_down(false);
    player.wait_for_film();
    late.wait_for_film();
    for service in [&mut share, &mut attach] {
        kill_worker(service);
        service.wait("worker");
        player.wait_for_film();
    }
    player.assert_exact();
    late.assert_exact();
    assert_eq!([attach.stop(), share.stop()], [Some(0); 2]);
}

#[test]
fn a_camera_is_wanted_while_a_program_takes_pictures_and_returns_with_its_server() {
    if !has_gstreamer() {
        return;
    }
    let Some(mut server) = Server::start() else { return };
    let film = Film::new(&server.scratch);
    let (share, address) = film.share();
    let mut attach = attach(&server, &address);
    wait_for_source(&server);
    wait_for_wanted(&mut attach, false);
    let mut player = Player::start(&server, &film);
    player.wait_for_film();
    wait_for_wanted(&mut attach, true);
    drop(player);
    wait_for_wanted(&mut attach, false);

    server.stop_all();
    server.start_all();
    wait_for_source(&server);
    let mut player = Player::start(&server, &film);
    player.wait_for_film();
    player.assert_exact();
    assert_eq!([attach.stop(), share.stop()], [Some(0); 2]);
}
