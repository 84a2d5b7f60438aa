//! A desktop of GNOME (mutter, headless) by its portal, with the real program and its locked workers: its user is asked, it is
//! seen, typed on and clicked, and its user ends the share.

mod support;

use std::process::{Child, Command};
use support::display::Display;
use support::screen::Screen;
use support::{Ended, Scratch, Service, command, wait_until, workers_of};
use testkit::gnome::{Answer, Gnome};

const BLUE: [u8; 3] = [0x20, 0x40, 0x60];
const ORANGE: [u8; 3] = [0xff, 0x80, 0x00];

/// A full screen of one colour, which another one replaces when the file `next` is there.
const COLOURS: &str = "foot --fullscreen --override colors.background=204060 sh -c 'printf \"\\033[?25l\"; touch shown; \
                       while ! [ -e next ]; do sleep 0.1; done; printf \"\\033]11;#ff8000\\007\"; sleep 1000'";
/// A terminal that writes its lines to a file.
const TYPING: &str =
    "foot --fullscreen sh -c 'touch shown; while read -r line; do echo \"$line\" >> typed; done'";
/// Writes the calls that keep the desktop from becoming idle. The monitor of a bus loses its own name first.
const MONITOR: &str = "stdbuf -oL dbus-monitor \"interface='org.freedesktop.portal.Inhibit'\" \
                       \"interface='org.freedesktop.portal.Request'\" > bus.log";

/// A program on the desktop, with a state of its own.
fn on_desktop(desktop: &Gnome, scratch: &Scratch, arguments: &[&str]) -> Command {
    let mut command = command(arguments);
    desktop.set(&mut command);
    command.env("XDG_STATE_HOME", scratch.path("state"));
    command
}

/// Starts a share, and returns it with its address.
#[track_caller]
fn share(desktop: &Gnome, scratch: &Scratch, device: &str) -> (Service, String) {
    let words = ["share", device, "--listen", "127.0.0.1:0", "--name", "desk"];
    let mut share = Service::start_as(on_desktop(desktop, scratch, &words));
    let address = share.wait("listening")["address"].as_str().unwrap().to_string();
    (share, address)
}

/// Starts a share of a pattern, and one of the desktop that joins it and waits for the dialog. Returns both, and their address.
#[track_caller]
fn ask_by_joining(desktop: &Gnome, scratch: &Scratch) -> (Service, Service, String) {
    let words = ["share", "pattern:rate=100", "--listen", "127.0.0.1:0", "--name", "pattern"];
    let mut first = Service::start_as(on_desktop(desktop, scratch, &words));
    let address = first.wait("listening")["address"].as_str().unwrap().to_string();
    let words = ["share", "wayland:wayland-0,view=only", "--listen", &address, "--name", "desk"];
    let mut joining = Service::start_as(on_desktop(desktop, scratch, &words));
    joining.wait("question");
    desktop.wait_for_dialog();
    (first, joining, address)
}

fn attach(scratch: &Scratch, address: &str, application: &str) -> Service {
    attach_device(scratch, &format!("{address}/desk"), application)
}

fn attach_device(scratch: &Scratch, device: &str, application: &str) -> Service {
    let mut command = command(&["attach", device, "--as", application, "--stats"]);
    command.env("XDG_STATE_HOME", scratch.path("state"));
    let mut attach = Service::start_as(command);
    attach.wait("attached");
    attach
}

fn run(mut command: Command) -> Ended {
    support::end(command.spawn().unwrap(), "outboard")
}

#[track_caller]
fn is_answered(answer: Child) {
    assert_eq!(support::end(answer, "the dialog").code, Some(0));
}

fn was_asked(share: &Service) -> bool {
    share.seen.iter().any(|event| event["event"] == "question")
}

#[test]
fn a_desktop_is_seen_by_its_portal_whose_user_is_asked_once() {
    let Some(mut desktop) = Gnome::start() else { return };
    let scratch = Scratch::new();
    desktop.run(COLOURS);
    desktop.wait("the colour", || std::path::Path::new(&desktop.path("shown")).exists());
    let answer = desktop.answer(Answer::Allow);
    let (mut first, address) = share(&desktop, &scratch, "wayland:wayland-0,view=only");
    is_answered(answer);
    assert!(was_asked(&first), "{:?}", first.seen);
    let screen = Screen::new(scratch.path("screen"), 640, 480);
    let viewer = attach(&scratch, &address, &format!("fb:{}", screen.path));
    wait_until("the first colour", || screen.share_of(BLUE) > 0.9);
    std::fs::write(desktop.path("next"), "").unwrap();
    wait_until("the next colour", || screen.share_of(ORANGE) > 0.9);
    // The next worker continues the share, and asks nobody.
    let worker = *workers_of(&first.child).first().expect("a worker");
    assert!(Command::new("kill").args(["-KILL", &worker.to_string()]).status().unwrap().success());
    first.wait("worker");
    let black = Screen::new(scratch.path("second"), 640, 480);
    assert_eq!(viewer.stop(), Some(0));
    let viewer = attach(&scratch, &address, &format!("fb:{}", black.path));
    wait_until("the whole picture for the next viewer", || black.share_of(ORANGE) > 0.9);
    assert_eq!([viewer.stop(), first.stop()], [Some(0); 2]);
    // The portal remembers the answer.
    let (again, address) = share(&desktop, &scratch, "wayland:wayland-0,view=only");
    assert!(!was_asked(&again), "{:?}", again.seen);
    let screen = Screen::new(scratch.path("third"), 640, 480);
    let viewer = attach(&scratch, &address, &format!("fb:{}", screen.path));
    wait_until("the picture without a question", || screen.share_of(ORANGE) > 0.9);
    assert_eq!([viewer.stop(), again.stop()], [Some(0); 2]);
}

#[test]
fn a_desktop_is_typed_on_and_clicked_by_its_portal() {
    let (Some(mut desktop), Some(here)) = (Gnome::start(), Display::start()) else { return };
    if !testkit::skip::has_program("xdotool", "xdotool") {
        return;
    }
    let xdotool = |words: &[&str]| {
        let status = Command::new("xdotool").args(words).env("DISPLAY", &here.name).status().unwrap();
        assert!(status.success(), "{words:?}");
    };
    let scratch = Scratch::new();
    let answer = desktop.answer(Answer::Allow);
    let (share, address) = share(&desktop, &scratch, "wayland:wayland-0");
    is_answered(answer);
    let mut viewer = attach(&scratch, &address, &format!("window:{}", here.name));
    viewer.flows(1);
    desktop.run(TYPING);
    desktop.wait("the terminal", || std::path::Path::new(&desktop.path("shown")).exists());
    xdotool(&["mousemove", "320", "240"]);
    wait_until("a line of the keyboard", || {
        xdotool(&["type", "x\n"]);
        desktop.text("typed").contains("x\n")
    });
    xdotool(&["type", "Hello, Portal: 100% {ok}\n"]);
    desktop.wait_for_text("typed", "Hello, Portal: 100% {ok}\n");
    desktop.run("stdbuf -oL wev > wev.log");
    desktop.wait_for_text("wev.log", "wl_keyboard");
    wait_until("a click", || {
        xdotool(&["mousemove", "320", "240", "click", "1"]);
        desktop.text("wev.log").contains("(left), state: 1 (pressed)")
    });
    xdotool(&["click", "5"]);
    desktop.wait_for_text("wev.log", "axis: 0 (vertical)");
    // A peer that is lost holds no button.
    xdotool(&["mousedown", "3"]);
    desktop.wait_for_text("wev.log", "(right), state: 1 (pressed)");
    viewer.child.kill().unwrap();
    desktop.wait_for_text("wev.log", "(right), state: 0 (released)");
    assert_eq!(share.stop(), Some(0));
}

#[test]
fn a_user_who_refuses_or_allows_only_pictures_is_named() {
    let Some(desktop) = Gnome::start() else { return };
    let scratch = Scratch::new();
    let words = ["share", "wayland:wayland-0", "--listen", "127.0.0.1:0"];
    for (answer, says) in [(Answer::Cancel, "refused"), (Answer::Look, "view=only")] {
        let answer = desktop.answer(answer);
        let ended = run(on_desktop(&desktop, &scratch, &words));
        is_answered(answer);
        assert_ne!(ended.code, Some(0));
        assert!(ended.stderr.contains(says), "{}", ended.stderr);
    }
    let ended = run(on_desktop(&desktop, &scratch, &["share", "wayland:wayland-0,output=HDMI-A-1"]));
    assert!(ended.stderr.contains("omit `output`"), "{}", ended.stderr);
}

/// The desktop of a process that joins opens in the process that listens.
#[test]
fn a_dialog_keeps_no_peer_of_another_device_waiting() {
    let Some(desktop) = Gnome::start() else { return };
    let scratch = Scratch::new();
    let (first, mut second, address) = ask_by_joining(&desktop, &scratch);
    let mut viewer = attach_device(&scratch, &format!("{address}/pattern"), "pattern");
    viewer.flows(1);
    assert!(second.pending().iter().all(|event| event["event"] != "offered"));
    is_answered(desktop.answer(Answer::Allow));
    assert_eq!(second.wait("offered")["name"], "desk");
    assert!(viewer.pending().iter().all(|event| event["event"] != "link-lost"));
    let screen = Screen::new(scratch.path("screen"), 640, 480);
    let mut desk = attach(&scratch, &address, &format!("fb:{}", screen.path));
    desk.flows(1);
    assert_eq!([desk.stop(), viewer.stop(), second.stop(), first.stop()], [Some(0); 4]);
}

/// A process that opens the device and one that joins it; neither leaves a socket.
#[test]
fn a_stop_waits_for_no_dialog() {
    let Some(desktop) = Gnome::start() else { return };
    let scratch = Scratch::new();
    let words = ["share", "wayland:wayland-0,view=only", "--listen", "127.0.0.1:0", "--name", "desk"];
    let mut asking = Service::start_as(on_desktop(&desktop, &scratch, &words));
    asking.wait("question");
    desktop.wait_for_dialog();
    assert_eq!(asking.stop(), Some(0));
    desktop.wait_for_no_dialog();
    let (first, joining, _) = ask_by_joining(&desktop, &scratch);
    assert_eq!(joining.stop(), Some(0));
    desktop.wait_for_no_dialog();
    assert_eq!(first.stop(), Some(0));
    let left: Vec<_> =
        std::fs::read_dir(desktop.path("outboard")).unwrap().flatten().map(|file| file.path()).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// The watchdog of a service manager asks the same as `health`.
#[test]
fn a_service_answers_while_its_user_is_asked_and_asks_once() {
    let Some(desktop) = Gnome::start() else { return };
    let scratch = Scratch::new();
    let file = scratch.path("run.toml");
    let text = "[[share]]\ndevice = 'wayland:wayland-0,view=only'\nlisten = '127.0.0.1:0'\n";
    std::fs::write(&file, text).unwrap();
    let mut service = Service::start_as(on_desktop(&desktop, &scratch, &["run", &file]));
    let process = service.child.id().to_string();
    let says = |command: &str| run(on_desktop(&desktop, &scratch, &[command, "--process", &process]));
    service.wait("question");
    desktop.wait_for_dialog();
    says("health").done();
    is_answered(desktop.answer(Answer::Cancel));
    service.wait("warning");
    assert_eq!(says("health").code, Some(1));
    assert!(service.pending().iter().all(|event| event["event"] != "question"));
    says("reload").done();
    service.wait("question");
    desktop.wait_for_dialog();
    assert_eq!(service.stop(), Some(0));
    desktop.wait_for_no_dialog();
}

#[test]
fn a_share_that_ends_on_the_desktop_is_unplugged_and_asks_nobody() {
    let Some(mut desktop) = Gnome::start() else { return };
    let scratch = Scratch::new();
    desktop.run(MONITOR);
    desktop.wait_for_text("bus.log", "NameLost");
    let answer = desktop.answer(Answer::Allow);
    let (mut share, address) = share(&desktop, &scratch, "wayland:wayland-0");
    is_answered(answer);
    desktop.wait_for_text("bus.log", "member=Inhibit\n   string \"\"\n   uint32 8\n");
    let screen = Screen::new(scratch.path("screen"), 640, 480);
    let mut viewer = attach(&scratch, &address, &format!("fb:{}", screen.path));
    viewer.flows(1);
    desktop.end_program("xdg-desktop-portal-gnome");
    let gone = share.wait("device-gone");
    let reason = gone["reason"].as_str().unwrap();
    assert!(reason.contains("outboard share") && reason.contains("locked"), "{gone}");
    viewer.wait("device-gone");
    desktop.wait_for_text("bus.log", "interface=org.freedesktop.portal.Request; member=Close");
    // It does not return by itself, although the portal is back when it is called.
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert!(share.pending().iter().all(|event| event["event"] != "device-back"));
    assert_eq!([viewer.stop(), share.stop()], [Some(0); 2]);
}

#[test]
fn a_desktop_with_a_portal_is_listed_and_checked() {
    let Some(desktop) = Gnome::start() else { return };
    let scratch = Scratch::new();
    let listed = run(on_desktop(&desktop, &scratch, &["devices", "--json"])).json_lines();
    let found = listed.iter().find(|device| device["device"] == "wayland:wayland-0").expect("the desktop");
    assert!(found["problem"].is_null(), "{found}");
    let checks = run(on_desktop(&desktop, &scratch, &["doctor", "--json"])).json_lines();
    let check = checks.iter().find(|check| check["name"] == "wayland").expect("the check");
    assert_eq!(check["state"], "ok", "{check}");
    assert!(check["found"].as_str().unwrap().contains("portal"), "{check}");
}
