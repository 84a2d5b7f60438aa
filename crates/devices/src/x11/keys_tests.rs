//! Tests of typing with a real server (Xvfb) and an unmodified program.

use super::client::Client;
use super::connect;
use super::display::{Extension, Extensions, SETUP_TIMEOUT};
use super::layout::LayoutQuery;
use super::locks::LocksQuery;
use super::tests::{Device, Painter, Program, Server, Viewer, WATCHDOG, next_line, picture, start};
use crate::keys::keyboard::Locks;
use std::io::BufReader;
use std::process::{ChildStdout, Command};
use std::time::Instant;
use wire::formats::video::{Geometry, PixelFormat};
use wire::formats::viewer::Event;
use x11rb_protocol::protocol::xproto::{ChangeKeyboardMappingRequest, KEY_PRESS_EVENT, KEY_RELEASE_EVENT};
use x11rb_protocol::protocol::xtest::FakeInputRequest;

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
        loop {
            let line = next_line(&mut self.output);
            assert!(!line.is_empty(), "xev has ended");
            // "KeyPress event, serial 28, ...", then "    state 0x0, keycode 38 (keysym 0x61, a), same_screen YES,".
            if !line.starts_with(' ') {
                self.is_press = line.starts_with("KeyPress");
            }
            let keysym = line.split("(keysym 0x").nth(1).and_then(|rest| rest.split(',').next());
            let keysym = keysym.filter(|_| self.is_press).map(|hex| u32::from_str_radix(hex, 16).unwrap());
            if let Some(keysym) = keysym.filter(|keysym| !is_modifier(*keysym)) {
                return keysym;
            }
        }
    }
}

fn is_modifier(keysym: u32) -> bool {
    (0xffe1..=0xffee).contains(&keysym) || [0xfe03, 0xff7f].contains(&keysym)
}

/// The user of a display with several layouts.
struct User {
    client: Client,
    xtest: Extension,
    xkb: Extension,
    locks: LocksQuery,
}

impl User {
    /// Sets the layouts; `None` if a package is missing.
    fn new(server: &Server, layouts: &str) -> Option<User> {
        if !testkit::skip::has_program("setxkbmap", "x11-xkb-utils") {
            return None;
        }
        let mut setxkbmap = Command::new("setxkbmap");
        setxkbmap.args(["-display", &server.display, "-layout", layouts]);
        assert!(setxkbmap.status().unwrap().success());
        let deadline = Instant::now() + SETUP_TIMEOUT;
        let socket = connect::connect(&server.display, SETUP_TIMEOUT).unwrap();
        let mut client = Client::new(socket, deadline).unwrap();
        let extensions = Extensions::query(&mut client, deadline).unwrap();
        let (xtest, xkb) = (extensions.xtest.unwrap(), extensions.xkb.unwrap());
        let (locks, before) = LocksQuery::wait(&mut client, xkb, deadline).unwrap();
        assert_eq!(before, Locks { group: 0, has_caps: false });
        Some(User { client, xtest, xkb, locks })
    }

    /// Changes the group and Caps Lock, and waits until the server has done so.
    fn lock(&mut self, set: Locks) {
        self.locks.change(&mut self.client, set);
        while self.locks.is_pending() {
            self.client.flush().unwrap();
            self.client.receive().unwrap();
            while let Some(packet) = self.client.next_packet().unwrap() {
                self.locks.handle(&packet).unwrap();
            }
        }
    }

    fn present_locks(&mut self) -> Locks {
        LocksQuery::wait(&mut self.client, self.xkb, Instant::now() + SETUP_TIMEOUT).unwrap().1
    }

    /// Presses the keys in order, and releases them in reverse order.
    fn press(&mut self, keys: &[u8]) {
        let presses = keys.iter().map(|key| (KEY_PRESS_EVENT, *key));
        let releases = keys.iter().rev().map(|key| (KEY_RELEASE_EVENT, *key));
        for (type_, detail) in presses.chain(releases) {
            let (time, root, root_x, root_y, deviceid) = (0, 0, 0, 0, 0);
            let input = FakeInputRequest { type_, detail, time, root, root_x, root_y, deviceid };
            self.client.send(input.serialize(self.xtest.opcode));
        }
        self.client.flush().unwrap();
    }
}

const TYPED: [u32; 11] =
    [0x61, 0x41, 0x21, 0x7b, 0xe9, 0x0100_20ac, 0x0100_03c0, 0xff0d, 0xff51, 0xff9d, 0xffb5];
/// Second layouts, and keysyms that only they have: small and capital letters, and the third level of a key.
const SECOND: [(&str, [u32; 3]); 2] = [("us,ru", [0x6c6, 0x6e6, 0x6d1]), ("us,de", [0x20ac, 0xb2, 0xfc])];

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
    for (layouts, keysyms) in SECOND {
        let Some(server) = Server::start("320x200x24") else { return };
        let Some(mut user) = User::new(&server, layouts) else { return };
        let mut device = server.device("");
        let Some(mut typed) = Typed::start(&server, &mut device) else { return };
        for (group, has_caps) in [(1, false), (0, true), (1, true), (0, false)] {
            let set = Locks { group, has_caps };
            user.lock(set);
            for keysym in TYPED.into_iter().chain(keysyms) {
                device.type_key(keysym);
                assert_eq!(typed.next(), keysym, "{layouts}, {set:?}");
            }
            assert_eq!(user.present_locks(), set, "the user's own state stays");
        }
        assert_eq!(device.figure("inputs refused"), 0.0);
    }
}

/// Returns the keysym of the next key of a window that goes down and is no modifier.
fn next_keysym(viewer: &mut Viewer) -> u32 {
    loop {
        match viewer.event() {
            Some(Event::Key { keysym, pressed: true }) if !is_modifier(keysym) => return keysym,
            event => assert!(event.is_some(), "the window was closed"),
        }
    }
}

/// The user of the screen chooses a layout with other places for Y and Z.
#[test]
fn a_layout_that_the_screens_user_loads_later_is_typed() {
    let Some(server) = Server::start("320x200x24") else { return };
    let mut device = server.device("");
    let Some(mut typed) = Typed::start(&server, &mut device) else { return };
    let z = 0x7a;
    device.type_key(z);
    assert_eq!(typed.next(), z);
    let Some(_user) = User::new(&server, "de") else { return };
    let deadline = Instant::now() + WATCHDOG;
    loop {
        device.type_key(z);
        if typed.next() == z {
            break;
        }
        assert!(Instant::now() < deadline, "it is typed by the former layout");
    }
    assert_eq!(device.figure("inputs refused"), 0.0);
}

/// Keys by their codes: Q, E, A, the comma, 7 of the keypad, and the modifiers.
#[test]
fn a_window_sends_the_keysyms_of_every_layout_level_and_lock() {
    let [q, e, a, comma, keypad_7] = [24, 26, 38, 59, 79];
    let [shift, alt_gr, caps_lock, num_lock] = [50, 108, 66, 77];
    let [left_alt, left_control, left_super, print, pause] = [64, 37, 133, 107, 127];
    let Some(server) = Server::start("320x200x24") else { return };
    let Some(mut user) = User::new(&server, "us,de,ru,gr") else { return };
    let (mut glass, mut viewer) = (server.device(",view=only"), server.window());
    let geometry = Geometry::new(PixelFormat::Gray8, 320, 200).unwrap();
    viewer.show(picture(geometry, &[9; 320 * 200])).unwrap();
    glass.until("the window", |screen| screen.pixels.starts_with(&[9; 3]));
    let mut check = |group, keys: &[u8], expected: u32| {
        let has_caps = user.present_locks().has_caps;
        user.lock(Locks { group, has_caps });
        user.press(keys);
        assert_eq!(next_keysym(&mut viewer), expected, "group {group}, keys {keys:?}");
    };
    let (us, de, ru, gr) = (0, 1, 2, 3);
    check(us, &[q], 0x71);
    // Alt and Control select another level of these keys, and are sent as keys of their own.
    check(us, &[left_alt, print], 0xff61);
    check(us, &[left_control, pause], 0xff13);
    check(de, &[alt_gr, q], 0x40);
    check(de, &[alt_gr, e], 0x20ac);
    check(de, &[shift, alt_gr, q], 0x7d9);
    check(ru, &[a], 0x6c6);
    check(ru, &[shift, a], 0x6e6);
    check(gr, &[a], 0x7e1);
    // Shortcuts work where no key has the letters of these layouts. A Latin layout keeps its third level.
    check(ru, &[left_control, a], 0x61);
    check(ru, &[left_control, shift, a], 0x41);
    check(ru, &[left_control, comma], 0x2c);
    check(gr, &[left_alt, e], 0x65);
    check(gr, &[left_super, a], 0x61);
    check(de, &[left_control, alt_gr, e], 0x20ac);
    for group in [us, de, ru] {
        check(group, &[keypad_7], 0xff95);
    }
    check(us, &[num_lock, keypad_7], 0xffb7);
    for group in [us, de, ru] {
        check(group, &[keypad_7], 0xffb7);
        check(group, &[shift, keypad_7], 0xff95);
    }
    check(us, &[caps_lock, a], 0x41);
    check(us, &[shift, a], 0x61);
    check(ru, &[a], 0x6e6);
    check(ru, &[shift, a], 0x6c6);
    check(gr, &[a], 0x7c1);
    check(de, &[alt_gr, q], 0x40);
}

const EURO: u32 = 0x0100_20ac;

/// Returns the keys that give the character for the euro.
fn keys_of_euro(painter: &mut Painter) -> Vec<u8> {
    let layout = LayoutQuery::default().wait(&mut painter.client, Instant::now() + WATCHDOG).unwrap();
    layout.into_keys().keys_with(&[EURO])
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
