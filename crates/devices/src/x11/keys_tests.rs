//! Tests of typing with a real server (Xvfb) and an unmodified program.

use super::client::Client;
use super::connect;
use super::display::{Extensions, SETUP_TIMEOUT};
use super::layout::LayoutQuery;
use super::locks::LocksQuery;
use super::tests::{Device, Painter, Program, Server, WATCHDOG, next_line, start};
use crate::keys::keyboard::Locks;
use std::io::BufReader;
use std::process::{ChildStdout, Command};
use std::time::Instant;
use wire::formats::viewer::Event;
use x11rb_protocol::protocol::xproto::ChangeKeyboardMappingRequest;

/// The program `xev`, which prints its keyboard events.
struct Typed {
    output: BufReader<ChildStdout>,
    is_press: bool,
    _program: Program,
}

impl Typed {
    /// Starts the program below the pointer.
    fn start(server: &Server, device: &mut Device) -> Option<Typed> {
        let mut xev = Command::new("xev");
        xev.args(["-display", &server.display, "-geometry", "200x100+0+0", "-event", "keyboard"]);
        let mut program = start(&mut xev, "x11-utils")?;
        let output = BufReader::new(program.0.stdout.take().unwrap());
        device.until("its window", |screen| !screen.parts.is_empty());
        device.push(Event::Pointer { x: 100, y: 50, buttons: 0 });
        Some(Typed { output, is_press: false, _program: program })
    }

    /// Returns the keysym of the next key that goes down and is no modifier.
    fn next(&mut self) -> u32 {
        let is_modifier = |keysym: &u32| (0xffe1..=0xffee).contains(keysym) || *keysym == 0xfe03;
        loop {
            let line = next_line(&mut self.output);
            assert!(!line.is_empty(), "xev has ended");
            // "KeyPress event, serial 28, ...", then "    state 0x0, keycode 38 (keysym 0x61, a), same_screen YES,".
            if !line.starts_with(' ') {
                self.is_press = line.starts_with("KeyPress");
            }
            let keysym = line.split("(keysym 0x").nth(1).and_then(|rest| rest.split(',').next());
            let keysym = keysym.filter(|_| self.is_press).map(|hex| u32::from_str_radix(hex, 16).unwrap());
            if let Some(keysym) = keysym.filter(|keysym| !is_modifier(keysym)) {
                return keysym;
            }
        }
    }
}

const TYPED: [u32; 11] =
    [0x61, 0x41, 0x21, 0x7b, 0xe9, 0x0100_20ac, 0x0100_03c0, 0xff0d, 0xff51, 0xff9d, 0xffb5];
/// Small and capital letters of a second group.
const CYRILLIC: [u32; 3] = [0x6c6, 0x6e6, 0x6d1];

#[test]
fn an_unmodified_program_gets_every_typed_keysym() {
    let Some(server) = Server::start("320x200x24") else { return };
    let mut device = server.device("");
    let Some(mut typed) = Typed::start(&server, &mut device) else { return };
    // One at a time: a program that is still starting might miss a change of the layout.
    for keysym in TYPED {
        device.type_key(keysym);
        assert_eq!(typed.next(), keysym);
    }
    assert_eq!(device.figure("inputs refused"), 0.0);
}

#[test]
fn a_second_layout_and_caps_lock_of_the_screens_user_change_no_keysym() {
    if !testkit::skip::has_program("setxkbmap", "x11-xkb-utils") {
        return;
    }
    let Some(server) = Server::start("320x200x24") else { return };
    let mut setxkbmap = Command::new("setxkbmap");
    assert!(setxkbmap.args(["-display", &server.display, "-layout", "us,ru"]).status().unwrap().success());
    // The keyboard of the screen's user.
    let deadline = Instant::now() + SETUP_TIMEOUT;
    let mut user = Client::new(connect::connect(&server.display, SETUP_TIMEOUT).unwrap(), deadline).unwrap();
    let xkb = Extensions::query(&mut user, deadline).unwrap().xkb.unwrap();
    let (mut query, before) = LocksQuery::wait(&mut user, xkb, deadline).unwrap().unwrap();
    assert_eq!(before, Locks { group: 0, has_caps: false });
    let mut device = server.device("");
    let Some(mut typed) = Typed::start(&server, &mut device) else { return };
    for set in
        [(1, false), (0, true), (1, true), (0, false)].map(|(group, has_caps)| Locks { group, has_caps })
    {
        query.change(&mut user, set);
        while query.is_pending() {
            user.flush().unwrap();
            user.receive().unwrap();
            while let Some(packet) = user.next_packet().unwrap() {
                query.handle(&packet).unwrap();
            }
        }
        for keysym in TYPED.into_iter().chain(CYRILLIC) {
            device.type_key(keysym);
            assert_eq!(typed.next(), keysym, "{set:?}");
        }
        let (_, after) = LocksQuery::wait(&mut user, xkb, Instant::now() + SETUP_TIMEOUT).unwrap().unwrap();
        assert_eq!(after, set, "the user's own state stays");
    }
    assert_eq!(device.figure("inputs refused"), 0.0);
}

const EURO: u32 = 0x0100_20ac;

/// Returns the keys that give the character for the euro.
fn keys_of_euro(painter: &mut Painter) -> Vec<u8> {
    LayoutQuery::wait(&mut painter.client, Instant::now() + WATCHDOG).unwrap().keys_with(&[EURO])
}

fn until_bound(painter: &mut Painter) -> u8 {
    let deadline = Instant::now() + WATCHDOG;
    loop {
        if let [key] = keys_of_euro(painter)[..] {
            return key;
        }
        assert!(Instant::now() < deadline, "the keysym is not bound");
    }
}

#[test]
fn a_key_is_bound_until_the_flow_closes() {
    let Some(server) = Server::start("64x48x24") else { return };
    let (mut painter, mut device) = (server.painter(), server.device(""));
    assert_eq!(keys_of_euro(&mut painter), []);
    device.type_key(EURO);
    until_bound(&mut painter);
    device.partner.close(device.back).unwrap();
    let deadline = Instant::now() + WATCHDOG;
    while !keys_of_euro(&mut painter).is_empty() {
        assert!(Instant::now() < deadline, "the keysym is still bound");
    }
}

#[test]
fn a_new_worker_unbinds_the_keys_of_a_killed_one() {
    let Some(server) = Server::start("64x48x24") else { return };
    let mut painter = server.painter();
    let kill = |painter: &mut Painter| {
        let mut killed = server.device("");
        killed.type_key(EURO);
        let key = until_bound(painter);
        std::mem::forget(killed.partner);
        key
    };
    let key = kill(&mut painter);
    drop(server.device(",view=only"));
    assert_eq!(keys_of_euro(&mut painter), [key], "a viewer changes no keys");
    drop(server.device(""));
    assert_eq!(keys_of_euro(&mut painter), []);
    // The user of the screen gives the key a second keysym.
    let key = kill(&mut painter);
    let keysyms = [EURO, 0x61];
    let change = ChangeKeyboardMappingRequest {
        keycode_count: 1,
        first_keycode: key,
        keysyms_per_keycode: 2,
        keysyms: (&keysyms[..]).into(),
    };
    let request = painter.client.send(change.serialize());
    painter.done(request);
    drop(server.device(""));
    assert_eq!(keys_of_euro(&mut painter), [key]);
}
