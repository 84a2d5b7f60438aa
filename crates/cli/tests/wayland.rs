//! A Wayland desktop (sway, headless) with the real program and its locked workers: seen, typed on and clicked by unmodified programs.

mod support;

use std::process::Command;
use support::display::Display;
use support::screen::Screen;
use support::{Ended, Scratch, Service, command, wait_until};
use testkit::desktop::Desktop;

/// Returns whether a screen has the pixels that `grim` sees.
fn is_like(screen: &Screen, desktop: &Desktop) -> bool {
    let (_, _, colours) = desktop.screenshot();
    screen.colours() == colours.as_chunks::<3>().0
}

fn of_desktop(mut command: Command, desktop: &Desktop) -> Ended {
    command.env("XDG_RUNTIME_DIR", desktop.directory());
    support::end(command.spawn().unwrap(), "outboard")
}

#[test]
fn a_desktop_is_seen_exactly_and_found_again_after_its_compositor_ended() {
    let terminal =
        "exec foot sh -c 'i=0; while sleep 0.2; do i=$((i+1)); echo $i; [ $i = 20 ] && sleep 1000; done'";
    let Some(mut desktop) = Desktop::start(terminal) else { return };
    let scratch = Scratch::new();
    let screen = Screen::new(scratch.path("screen"), 640, 480);
    let (mut share, address) = Service::share(&format!("wayland:{}", desktop.display()), &["--name", "desk"]);
    let mut attach =
        Service::start(&["attach", &format!("{address}/desk"), "--as", &format!("fb:{}", screen.path)]);
    attach.wait("attached");
    let background = desktop.screenshot().2[..3].to_vec();
    let has_text = || desktop.screenshot().2.chunks_exact(3).any(|colour| colour != background);
    wait_until("the whole text", || has_text() && is_like(&screen, &desktop));
    let worker = *support::workers_of(&share.child).first().expect("a worker");
    assert!(Command::new("kill").args(["-KILL", &worker.to_string()]).status().unwrap().success());
    share.wait("worker");
    desktop.message("output HEADLESS-1 bg #ff8000 solid_color");
    wait_until("the picture of the next worker", || is_like(&screen, &desktop));
    desktop.kill();
    let gone = share.wait("device-gone");
    assert!(gone["reason"].as_str().unwrap().contains("compositor"), "{gone}");
    attach.wait("device-gone");
    desktop.run();
    share.wait("device-back");
    wait_until("the picture of the next compositor", || is_like(&screen, &desktop));
    assert_eq!([attach.stop(), share.stop()], [Some(0); 2]);
}

#[test]
fn a_desktop_is_typed_on_and_clicked_in_a_window_of_x11() {
    let (Some(desktop), Some(here)) = (Desktop::start(""), Display::start()) else { return };
    if !testkit::skip::has_program("xdotool", "xdotool") {
        return;
    }
    let xdotool = |words: &[&str]| {
        let status = Command::new("xdotool").args(words).env("DISPLAY", &here.name).status().unwrap();
        assert!(status.success(), "{words:?}");
    };
    let (share, address) = Service::share(&format!("wayland:{}", desktop.display()), &["--name", "desk"]);
    let window = format!("window:{}", here.name);
    let mut attach = Service::start(&["attach", &format!("{address}/desk"), "--as", &window, "--stats"]);
    attach.wait("attached");
    attach.flows(1);
    // A program that starts now finds the keyboard.
    desktop.message("exec foot sh -c 'while read -r line; do echo \"$line\" >> typed; done'");
    xdotool(&["mousemove", "320", "240"]);
    wait_until("a line of the keyboard", || {
        xdotool(&["type", "x\n"]);
        desktop.text("typed").contains("x\n")
    });
    xdotool(&["type", "Hello, Wayland: 100% {ok}\n"]);
    desktop.wait_for_text("typed", "Hello, Wayland: 100% {ok}\n");
    desktop.message("exec stdbuf -oL wev > wev.log");
    desktop.wait_for_text("wev.log", "wl_keyboard");
    desktop.message("[app_id=wev] fullscreen enable");
    wait_until("a click", || {
        xdotool(&["mousemove", "200", "100", "click", "1"]);
        desktop.text("wev.log").contains("(left), state: 1 (pressed)")
    });
    desktop.wait_for_text("wev.log", "x, y: 200.000000, 100.000000");
    assert_eq!([attach.stop(), share.stop()], [Some(0); 2]);
}

#[test]
fn a_desktop_is_listed_and_checked() {
    let Some(desktop) = Desktop::start("") else { return };
    let listed = of_desktop(command(&["devices", "--json"]), &desktop).json_lines();
    let spec = "wayland:wayland-1,output=HEADLESS-1";
    assert!(listed.iter().any(|device| device["device"] == spec), "{listed:?}");
    let checks = of_desktop(command(&["doctor", "--json"]), &desktop).json_lines();
    let check = checks.iter().find(|check| check["name"] == "wayland").expect("the check");
    assert_eq!(check["state"], "ok", "{check}");
    assert!(check["found"].as_str().unwrap().contains("wlroots"), "{check}");
}
