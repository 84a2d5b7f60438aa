//! Tests with a real compositor (sway, headless) and unmodified programs: a terminal, a screenshot, an event viewer.

use super::client::{Client, Event as ServerEvent};
use super::desktop::Desktop as Offers;
use crate::x11::tests::{Device, Screen, WATCHDOG, device_of, noise};
use contract::{Ctl, PartnerError, Role};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use testkit::desktop::Desktop;
use wire::formats::viewer::{Event, button};

const RETURN: u32 = 0xff0d;
const SHIFT: u32 = 0xffe1;
const CONTROL: u32 = 0xffe3;

/// A terminal that shows a text and stays.
const TEXT: &str = "exec foot sh -c 'for i in 1 2 3 4 5 6 7 8 9; do echo $i: the quick brown fox; done; touch shown; sleep 1000'";

fn device(desktop: &Desktop, options: &str) -> Device {
    device_of(&format!("wayland:{}{options}", desktop.display()))
}

/// Makes a device, and then starts a program: it finds the seat with its keyboard, as on a desktop with a monitor.
fn device_before(desktop: &Desktop, options: &str, program: &str) -> Device {
    let mut device = device(desktop, options);
    device.until("the empty desktop", |screen| screen.frames > 0);
    desktop.message(program);
    device
}

/// Returns whether a screen has the pixels of a screenshot.
fn is_like(screen: &Screen, (width, height, colours): &(usize, usize, Vec<u8>)) -> bool {
    let size = screen.geometry.map(|geometry| (geometry.width() as usize, geometry.height() as usize));
    let mut pixels = screen.pixels.chunks_exact(4).zip(colours.chunks_exact(3));
    size == Some((*width, *height)) && pixels.all(|(bgrx, rgb)| bgrx[..3] == [rgb[2], rgb[1], rgb[0]])
}

/// Types lines until a program reads them: a new window has the focus later than its first picture.
fn until_read(desktop: &Desktop, device: &mut Device) {
    let deadline = Instant::now() + WATCHDOG;
    while !desktop.text("typed").contains("x\n") {
        assert!(Instant::now() < deadline, "no program reads the keyboard");
        device.type_key('x'.into());
        device.type_key(RETURN);
        device.step().unwrap();
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Pulls until the screen is what an unmodified program sees. The desktop may change until then.
#[track_caller]
fn until_like_screenshot(desktop: &Desktop, device: &mut Device) {
    let deadline = Instant::now() + WATCHDOG;
    while !is_like(&device.screen, &desktop.screenshot()) {
        assert!(Instant::now() < deadline, "the pictures stay different");
        let until = Instant::now() + Duration::from_millis(100);
        while Instant::now() < until {
            device.step().unwrap();
        }
    }
}

fn error_of(device: &mut Device) -> PartnerError {
    let deadline = Instant::now() + WATCHDOG;
    loop {
        match device.step() {
            Err(error) => return error,
            Ok(()) => assert!(Instant::now() < deadline, "no error"),
        }
    }
}

#[test]
fn pictures_are_those_of_a_screenshot_also_after_turns_and_resizes() {
    let Some(desktop) = Desktop::start(TEXT) else { return };
    let mut device = device(&desktop, "");
    desktop.wait("the text", || std::path::Path::new(&desktop.path("shown")).exists());
    until_like_screenshot(&desktop, &mut device);
    let geometry = device.screen.geometry.unwrap();
    assert_eq!((geometry.width(), geometry.height(), geometry.rate()), (640, 480, (60, 1)));
    for turn in ["90", "180", "270", "flipped", "flipped-90", "flipped-180", "flipped-270", "normal"] {
        desktop.message(&format!("output HEADLESS-1 transform {turn}"));
        until_like_screenshot(&desktop, &mut device);
    }
    for mode in ["mode --custom 1000x300", "mode --custom 502x334", "scale 2", "bg #ff0000 solid_color"] {
        desktop.message(&format!("output HEADLESS-1 {mode}"));
        until_like_screenshot(&desktop, &mut device);
    }
    let geometry = device.screen.geometry.unwrap();
    assert_eq!((geometry.width(), geometry.height()), (502, 334));
    let frames = device.screen.frames;
    device.push(Event::Refresh);
    device.until("a whole picture", |screen| screen.frames > frames);
}

#[test]
fn small_changes_arrive_in_parts_and_nothing_arrives_from_a_still_screen() {
    let typing = "exec foot sh -c 'touch shown; while read -r line; do :; done'";
    let Some(desktop) = Desktop::start("") else { return };
    let mut device = device_before(&desktop, ",portion=0", typing);
    desktop.wait("the terminal", || std::path::Path::new(&desktop.path("shown")).exists());
    until_like_screenshot(&desktop, &mut device);
    let type_until_part = |device: &mut Device| {
        let (parts, deadline) = (device.figure("partial"), Instant::now() + WATCHDOG);
        while device.figure("partial") == parts {
            assert!(Instant::now() < deadline, "no change");
            device.type_key('x'.into());
            device.step().unwrap();
        }
        until_like_screenshot(&desktop, device);
    };
    // The first part shows that the terminal is there, and has the keyboard.
    type_until_part(&mut device);
    let frames = device.screen.frames;
    type_until_part(&mut device);
    assert_eq!(device.screen.frames, frames, "a letter is no whole picture");
    let (parts, bytes) = (device.figure("partial"), device.figure("rectangles"));
    for _ in 0..3 {
        device.step().unwrap();
    }
    assert_eq!((device.figure("partial"), device.figure("rectangles")), (parts, bytes));
    let mut whole = device_of(&format!("wayland:{},damage=whole", desktop.display()));
    until_like_screenshot(&desktop, &mut whole);
    let frames = whole.screen.frames;
    whole.type_key('y'.into());
    whole.until("the picture with the letter", |screen| screen.frames > frames);
    assert_eq!(whole.figure("partial"), 0.0);
}

#[test]
fn typed_text_of_any_script_reaches_a_terminal() {
    let reading =
        "exec foot sh -c 'while read -r line; do echo \"$line\" >> typed; done; echo ended > ended'";
    let Some(desktop) = Desktop::start("") else { return };
    let mut device = device_before(&desktop, "", reading);
    until_read(&desktop, &mut device);
    let line = "Hello, World! {[(~|\\`^)]} Grüße € λόγος";
    for letter in line.chars() {
        let keysym = if letter < '\u{100}' { letter.into() } else { 0x0100_0000 + u32::from(letter) };
        device.type_key(keysym);
    }
    device.type_key(RETURN);
    desktop.wait_for_text("typed", line);
    // A viewer sends Shift, and the capital: the layout of its own keyboard.
    device.push(Event::Key { keysym: SHIFT, pressed: true });
    device.type_key('A'.into());
    device.type_key('!'.into());
    device.push(Event::Key { keysym: SHIFT, pressed: false });
    device.type_key('b'.into());
    device.type_key(RETURN);
    desktop.wait_for_text("typed", "A!b\n");
    assert_eq!(device.figure("inputs refused"), 0.0);
    // Ctrl+D ends the input of the terminal's program.
    device.push(Event::Key { keysym: CONTROL, pressed: true });
    device.type_key('d'.into());
    desktop.wait_for_text("ended", "ended");
    device.push(Event::Text("no clipboard".into()));
    assert_eq!(device.figure("inputs refused"), 1.0);
}

#[test]
fn the_pointer_clicks_and_scrolls_where_the_viewer_points() {
    let Some(desktop) = Desktop::start("") else { return };
    let mut device = device_before(&desktop, "", "exec stdbuf -oL wev > wev.log");
    desktop.wait_for_text("wev.log", "wl_keyboard");
    until_like_screenshot(&desktop, &mut device);
    let mut point = |x, y, buttons| device.push(Event::Pointer { x, y, buttons });
    point(100, 50, 0);
    desktop.wait_for_text("wev.log", "x, y: 100.000000, 50.000000");
    for (bit, name) in [(button::LEFT, "left"), (button::MIDDLE, "middle"), (button::RIGHT, "right")] {
        point(101, 50, bit);
        desktop.wait_for_text("wev.log", &format!("({name}), state: 1 (pressed)"));
        point(101, 50, 0);
        desktop.wait_for_text("wev.log", &format!("({name}), state: 0 (released)"));
    }
    point(101, 50, button::WHEEL_DOWN);
    desktop.wait_for_text("wev.log", "axis: 0 (vertical), value: 15.000000");
    point(101, 50, 0);
    point(101, 50, button::WHEEL_UP);
    desktop.wait_for_text("wev.log", "axis: 0 (vertical), value: -15.000000");
    point(639, 479, button::BACK);
    desktop.wait_for_text("wev.log", "x, y: 639.000000, 479.000000");
    let released = || desktop.text("wev.log").matches("state: 0 (released)").count();
    let before = released();
    assert!(device.partner.ctl(device.back, Ctl::Neutral).is_ok());
    desktop.wait("the release of the button", || released() > before);
}

#[test]
fn a_screen_that_is_only_viewed_takes_no_input() {
    let Some(desktop) = Desktop::start(TEXT) else { return };
    let spec = format!("wayland:{},view=only", desktop.display());
    let (class, parsed) = crate::spec::parse(&spec, Role::Device).unwrap();
    let opened = class.open(&parsed, Role::Device, None).unwrap();
    assert_eq!(opened.description.summary, "Wayland screen HEADLESS-1 of 640x480 (view only)");
    assert_eq!(opened.description.flows.len(), 1);
    let mut device = device_of(&spec);
    desktop.wait("the text", || std::path::Path::new(&desktop.path("shown")).exists());
    until_like_screenshot(&desktop, &mut device);
}

#[test]
fn a_compositor_that_ends_is_told_and_found_again() {
    let Some(mut desktop) = Desktop::start("") else { return };
    let spec = format!("wayland:{}", desktop.display());
    let (class, parsed) = crate::spec::parse(&spec, Role::Device).unwrap();
    let known = class.open(&parsed, Role::Device, None).unwrap().description;
    let mut first = device_of(&spec);
    first.until("the first picture", |screen| screen.frames == 1);
    desktop.kill();
    let error = error_of(&mut first);
    assert!(matches!(&error, PartnerError::Gone(gone) if gone.contains("compositor")), "{error:?}");
    let error = class.reopen(&parsed, Role::Device, &known).unwrap_err().to_string();
    assert!(error.contains("is a Wayland desktop running"), "{error}");
    desktop.run();
    desktop.wait("the output", || class.reopen(&parsed, Role::Device, &known).is_ok());
    let mut second = device_of(&spec);
    second.until("the first picture", |screen| screen.frames == 1);
}

#[test]
fn an_unknown_output_and_a_socket_of_no_compositor_are_refused_with_a_way_out() {
    let Some(desktop) = Desktop::start("") else { return };
    let open = |text: String| {
        let (class, spec) = crate::spec::parse(&text, Role::Device).unwrap();
        class.open(&spec, Role::Device, None).unwrap_err().to_string()
    };
    let display = desktop.display();
    let error = open(format!("wayland:{display},output=HDMI-A-1"));
    assert!(error.contains("no output `HDMI-A-1`; its outputs are: HEADLESS-1"), "{error}");
    let error = open(format!("wayland:{display}-none"));
    assert!(error.contains("is a Wayland desktop running"), "{error}");
}

/// Random bytes instead of events, some after a valid start.
#[test]
fn random_bytes_from_a_compositor_are_an_error() {
    let event = |object: u32, number: u32, arguments: &[u32]| -> Vec<u8> {
        let length = 8 + 4 * arguments.len() as u32;
        let words = [&[object, length << 16 | number][..], arguments].concat();
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    };
    for seed in 0..400u32 {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let text = u32::from_ne_bytes(*b"wl_\0");
        // A global, an object that is destroyed, and the end of the first answer.
        let start = [event(2, 0, &[seed, 4, text, 1]), event(1, 1, &[seed % 5]), event(3, 0, &[0])].concat();
        let random = noise(4 * (seed as usize % 64), seed);
        let header = event(seed % 6, seed / 6 % 4, &[seed, seed.wrapping_mul(77), u32::MAX]);
        let bytes = [if seed % 8 == 0 { &[][..] } else { &start }, &header, &random].concat();
        theirs.write_all(&bytes).unwrap();
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        let deadline = Instant::now() + WATCHDOG;
        assert!(Offers::query(ours.into(), deadline).is_err(), "seed {seed}");
        assert!(Instant::now() < deadline, "seed {seed}");
    }
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    theirs.write_all(&event(2, 0, &[7, u32::MAX])).unwrap();
    let mut client = Client::new(ours.into()).unwrap();
    client.receive().unwrap();
    let mut event: ServerEvent = client.next_event().unwrap().unwrap();
    assert_eq!(event.number().unwrap(), 7);
    assert!(event.text().is_err());
}
