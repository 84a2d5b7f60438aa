//! `rfb` with unmodified programs: a viewer shows the server under test on a desktop of TigerVNC's server, and the
//! client under test captures that desktop and sends input to it.
//!
//! Needs `vncviewer`, `Xtigervnc` and `xdotool`, which gives the window the keyboard in place of a window manager. A
//! test whose programs are missing is skipped.

use contract::{
    Attributes, DeviceClass, Direction, FlowClass, FlowKey, FlowTemplate, Format, Message, Partner, Pull,
    Pulled, Pushed, Role, Time,
};
use devices::rfb::Rfb;
use devices::spec;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use wire::formats::video::{Content, Cursor, Geometry, Header, Kind, PixelFormat, Rectangle};
use wire::formats::viewer::Event;

/// The time limit of every wait, long enough for a slow machine.
const WATCHDOG: Duration = Duration::from_secs(60);

const WIDTH: u32 = 300;
const HEIGHT: u32 = 200;

/// The Debian package of each program.
const PACKAGES: [(&str, &str); 7] = [
    ("vncviewer", "tigervnc-viewer"),
    ("Xtigervnc", "tigervnc-standalone-server"),
    ("xdotool", "xdotool"),
    ("xclip", "xclip"),
    ("xtightvncviewer", "xtightvncviewer"),
    ("ssvncviewer", "ssvnc"),
    ("gvncviewer", "gvncviewer"),
];

fn is_installed(name: &str) -> bool {
    let (_, package) =
        PACKAGES.into_iter().find(|(program, _)| *program == name).expect("its package is listed");
    testkit::skip::has_program(name, package)
}

/// A child process, killed when dropped.
struct Program(Child);

impl Program {
    fn start(command: &mut Command) -> Program {
        Program(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn until<T>(expected: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = attempt() {
            return answer;
        }
        assert!(start.elapsed() < WATCHDOG, "{expected}: not within {WATCHDOG:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn partner(text: &str, role: Role) -> (Box<dyn Partner>, String) {
    let (_, spec) = spec::parse(text, role).unwrap();
    let opened = Rfb.open(&spec, role, None).unwrap_or_else(|error| panic!("{text}: {error}"));
    let summary = opened.description.summary.clone();
    let mut partner = Rfb.partner(opened).unwrap();
    for direction in [Direction::Out, Direction::In] {
        let format = match (role, direction) {
            (Role::Device, Direction::Out) | (Role::Application, Direction::In) => Format::Video,
            _ => Format::Viewer,
        };
        let template = FlowTemplate { direction, format, class: FlowClass::State };
        partner.open(&template, &Attributes::default()).unwrap();
    }
    (partner, summary)
}

const OUT: FlowKey = FlowKey(1);
const IN: FlowKey = FlowKey(2);

fn push(partner: &mut dyn Partner, body: Vec<u8>) {
    let mut message = Some(Message::new(Time(1), body));
    until("room", || match partner.push(IN, message.take()?).unwrap() {
        Pushed::Taken => Some(()),
        Pushed::Full(returned) => {
            message = Some(returned);
            None
        }
    });
}

fn send(partner: &mut dyn Partner, event: &Event) {
    push(partner, event.to_bytes());
}

/// Returns the viewers' input so far.
fn events(partner: &mut dyn Partner) -> Vec<Event> {
    let mut events = Vec::new();
    while let Pulled::Message(_, message) = partner.pull(OUT, Pull::Yours).unwrap() {
        events.push(Event::parse(&message.body.into_bytes()).unwrap());
    }
    events
}

fn geometry() -> Geometry {
    Geometry::new(PixelFormat::Bgrx32, WIDTH, HEIGHT).unwrap()
}

/// Returns a picture with areas of one colour, two, a few and many colours.
fn picture(seed: u32) -> Vec<u8> {
    let pixel = |x: u32, y: u32| match (x * 4 / WIDTH, y * 2 / HEIGHT) {
        (0, 0) => 0x0020_4060,
        (1, 0) => u32::from((x ^ y) & 4 == 0) * 0x00ff_ffff,
        (2, 0) => (x / 7 + y / 5 + seed) % 11 * 0x0010_1721,
        (3, 0) => (x + y * 3) % 200 * 0x0001_0101,
        _ => (x * y + seed).wrapping_mul(0x9e37_79b9) >> 8,
    };
    let pixels = (0..HEIGHT).flat_map(|y| (0..WIDTH).map(move |x| (x, y)));
    pixels.flat_map(|(x, y)| pixel(x, y).to_le_bytes()).collect()
}

/// The screen that the client under test receives.
#[derive(Default)]
struct Seen {
    width: usize,
    pixels: Vec<u8>,
    cursors: usize,
    /// `None` for an announcement.
    texts: Vec<Option<String>>,
}

impl Seen {
    fn take(&mut self, partner: &mut dyn Partner) {
        while let Pulled::Message(_, message) = partner.pull(OUT, Pull::Yours).unwrap() {
            let bytes = message.body.into_bytes();
            let header = Header::parse(&bytes).unwrap();
            self.width = header.geometry.width() as usize;
            match header.parse_content(&bytes[Header::BYTES..]).unwrap() {
                Content::Frame(pixels) => self.pixels = pixels.to_vec(),
                Content::Rectangles(places, mut pixels) => {
                    for Rectangle { x, y, width, height } in places {
                        for row in y..y + height {
                            let (row_pixels, remaining) = pixels.split_at(width as usize * 4);
                            let start = (row as usize * self.width + x as usize) * 4;
                            self.pixels[start..start + row_pixels.len()].copy_from_slice(row_pixels);
                            pixels = remaining;
                        }
                    }
                }
                Content::Cursor(..) => self.cursors += 1,
                Content::Clipboard(text) => self.texts.push(text.map(String::from)),
                Content::Boxes(_) => panic!("a screen has no boxes"),
            }
        }
    }

    fn row(&self, x: usize, y: usize, width: usize) -> Option<&[u8]> {
        self.pixels.get((y * self.width + x) * 4..)?.get(..width * 4)
    }

    /// Returns the position of a picture on the screen. Colours may differ by `tolerance`.
    fn find(&self, picture: &[u8], tolerance: u8) -> Option<(usize, usize)> {
        let alike = |a: &[u8], b: &[u8]| {
            let pairs = a.as_chunks::<4>().0.iter().zip(b.as_chunks::<4>().0);
            pairs
                .map(|(a, b)| (&a[..3], &b[..3]))
                .all(|(a, b)| a.iter().zip(b).all(|(a, b)| a.abs_diff(*b) <= tolerance))
        };
        let width = WIDTH as usize;
        let rows: Vec<_> = picture.chunks_exact(width * 4).collect();
        // Search only the upper left corner: a window has a border and a title at most.
        let places = (0..60).flat_map(|y| (0..60).map(move |x| (x, y)));
        places.into_iter().find(|&(x, y)| {
            let mut all = rows.iter().enumerate();
            all.all(|(row, line)| self.row(x, y + row, width).is_some_and(|seen| alike(seen, line)))
        })
    }
}

/// The number of desktops started.
static DESKTOPS: AtomicU32 = AtomicU32::new(0);

/// A desktop of TigerVNC's server, and the client under test.
struct Desktop {
    _server: Program,
    display: u32,
    client: Box<dyn Partner>,
    seen: Seen,
}

impl Desktop {
    fn new() -> Desktop {
        let is_free = |number: &u32| {
            !Path::new(&format!("/tmp/.X11-unix/X{number}")).exists()
                && !Path::new(&format!("/tmp/.X{number}-lock")).exists()
        };
        // Tests of this process run in parallel: each searches from another number.
        let first = 100 + std::process::id() % 700 + 1000 * DESKTOPS.fetch_add(1, Ordering::Relaxed);
        let display = (first..).find(is_free).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let server = Program::start(Command::new("Xtigervnc").arg(format!(":{display}")).args([
            "-geometry",
            "500x360",
            "-depth",
            "24",
            "-SecurityTypes",
            "None",
            "-localhost",
            "-nolisten",
            "tcp",
            "-rfbport",
            &port.to_string(),
        ]));
        until("the desktop", || TcpStream::connect(("127.0.0.1", port)).ok());
        let (client, summary) = partner(&format!("rfb:127.0.0.1:{port}"), Role::Device);
        assert!(summary.contains("500x360"), "{summary}");
        Desktop { _server: server, display, client, seen: Seen::default() }
    }

    fn view(&self, address: &str, arguments: &[&str]) -> Program {
        let (host, port) = address.rsplit_once(':').unwrap();
        let mut command = self.program("vncviewer");
        command.args(arguments);
        command.args(["-RemoteResize=0", "-AlertOnFatalError=0", "-ReconnectOnError=0", "-geometry", "+0+0"]);
        Program::start(command.arg(format!("{host}::{port}")))
    }

    /// Returns the command of a program on this desktop.
    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(name);
        command.env("DISPLAY", format!(":{}", self.display));
        command
    }

    fn xdotool(&self, arguments: &[&str]) -> String {
        let output = self.program("xdotool").args(arguments).output().unwrap();
        assert!(output.status.success(), "xdotool {arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Gives the keyboard to the window under the pointer.
    fn focus(&self) {
        let place = self.xdotool(&["getmouselocation", "--shell"]);
        let window = place.lines().find_map(|line| line.strip_prefix("WINDOW=")).unwrap();
        self.xdotool(&["windowfocus", "--sync", window]);
    }

    /// Starts a program that copies a text on this desktop, and keeps it until it is dropped.
    fn copy(&self, text: &str) -> Program {
        use std::io::Write;
        let mut command = self.program("xclip");
        command.args(["-quiet", "-in", "-selection", "clipboard"]);
        let mut child = command.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        Program(child)
    }

    /// Waits until a program on this desktop pastes the expected text. The client runs meanwhile.
    fn await_paste(&mut self, expected: &str) {
        until("a pasted text", || {
            let mut command = self.program("timeout");
            // A request to the old owner, which ends, may be lost: xclip would wait for ever.
            command.args(["5", "xclip", "-out", "-selection", "clipboard", "-target", "UTF8_STRING"]);
            let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
            let output = child.stdout.take().unwrap();
            let pasted = std::thread::spawn(move || std::io::read_to_string(output).unwrap());
            until("the end of a paste", || {
                self.seen.take(self.client.as_mut());
                child.try_wait().unwrap()
            });
            (pasted.join().unwrap() == expected).then_some(())
        });
    }

    /// Waits for a picture on the screen. Returns its position.
    fn await_picture(&mut self, expected: &str, picture: &[u8], tolerance: u8) -> (usize, usize) {
        until(expected, || {
            self.seen.take(self.client.as_mut());
            self.seen.find(picture, tolerance)
        })
    }
}

#[test]
fn an_unmodified_viewer_shows_pictures_and_sends_input() {
    if !["vncviewer", "Xtigervnc", "xdotool"].into_iter().all(is_installed) {
        return;
    }
    let mut desktop = Desktop::new();
    let (mut server, summary) = partner("rfb:0", Role::Application);
    let address = summary.rsplit(' ').next().unwrap();
    let frame = |seed| [&Header::frame(geometry()).emit()[..], &picture(seed)].concat();
    push(server.as_mut(), frame(0));
    // Every encoding and several formats. Only a format with few colours allows differences.
    let variants: [(&[&str], u8); 4] = [
        (&["-AutoSelect=0", "-NoJPEG", "-PreferredEncoding=Tight"], 0),
        (&["-AutoSelect=0", "-PreferredEncoding=ZRLE"], 0),
        (&["-AutoSelect=0", "-PreferredEncoding=Raw"], 0),
        (&["-AutoSelect=0", "-PreferredEncoding=Tight", "-FullColor=0", "-LowColorLevel=2"], 50),
    ];
    for (number, (arguments, off)) in variants.into_iter().enumerate() {
        let viewer = desktop.view(address, arguments);
        desktop.await_picture(&format!("the first picture {arguments:?}"), &picture(0), off);
        push(server.as_mut(), frame(number as u32 + 1));
        let (x, y) = desktop.await_picture("the next picture", &picture(number as u32 + 1), off);
        if number == 0 {
            point_and_type(&mut desktop, server.as_mut(), x as u32, y as u32);
        }
        drop(viewer);
        push(server.as_mut(), frame(0));
        until("the window to close", || {
            desktop.seen.take(desktop.client.as_mut());
            desktop.seen.find(&picture(number as u32 + 1), off).is_none().then_some(())
        });
    }
}

#[test]
fn viewers_of_other_projects_show_pictures() {
    if !["Xtigervnc", "xdotool"].into_iter().all(is_installed) {
        return;
    }
    let mut desktop = Desktop::new();
    let (mut server, summary) = partner("rfb:0", Role::Application);
    // Move the pointer out of the way: viewers that do not draw it have it in the picture.
    send(desktop.client.as_mut(), &Event::Pointer { x: 499, y: 359, buttons: 0 });
    let (_, port) = summary.rsplit_once(':').unwrap();
    let frame = |seed| [&Header::frame(geometry()).emit()[..], &picture(seed)].concat();
    push(server.as_mut(), frame(0));
    let [by_port, by_display] =
        [format!("127.0.0.1::{port}"), format!("127.0.0.1:{}", port.parse::<i32>().unwrap() - 5900)];
    // Viewers based on TightVNC and UltraVNC, libvncclient and GTK, with their formats and encodings.
    let place = ["-geometry", "300x200+0+0"];
    let variants: [(&str, &[&str], &str, u8); 7] = [
        ("xtightvncviewer", &[&["-encodings", "tight"][..], &place].concat(), &by_port, 0),
        ("xtightvncviewer", &[&["-encodings", "hextile"][..], &place].concat(), &by_port, 0),
        ("xtightvncviewer", &[&["-bgr233"][..], &place].concat(), &by_port, 50),
        ("ssvncviewer", &place, &by_port, 0),
        ("ssvncviewer", &[&["-16bpp", "-encodings", "zrle"][..], &place].concat(), &by_port, 8),
        ("ssvncviewer", &[&["-bgr222", "-encodings", "tight"][..], &place].concat(), &by_port, 50),
        ("gvncviewer", &[], &by_display, 0),
    ];
    let installed = variants.into_iter().filter(|(name, ..)| is_installed(name));
    for (number, (name, arguments, address, off)) in installed.enumerate() {
        let viewer = Program::start(desktop.program(name).args(arguments).arg(address));
        desktop.await_picture(&format!("the first picture, {name} {arguments:?}"), &picture(0), off);
        let next = picture(number as u32 + 1);
        push(server.as_mut(), frame(number as u32 + 1));
        desktop.await_picture(&format!("the next picture, {name} {arguments:?}"), &next, off);
        drop(viewer);
        push(server.as_mut(), frame(0));
        until("the window to close", || {
            desktop.seen.take(desktop.client.as_mut());
            desktop.seen.find(&next, off).is_none().then_some(())
        });
    }
}

/// Moves the pointer over the viewer's window and types into it. Checks the server's events. `x, y` is the position of
/// the picture.
fn point_and_type(desktop: &mut Desktop, server: &mut dyn Partner, x: u32, y: u32) {
    let shape = Cursor { width: 9, height: 9, hot_x: 4, hot_y: 4 };
    let header = Header { kind: Kind::Cursor, geometry: geometry() };
    push(server, [&header.emit()[..], &shape.emit(), &[0xff; 9 * 9 * 4]].concat());
    let point = |desktop: &mut Desktop, buttons| {
        send(desktop.client.as_mut(), &Event::Pointer { x: x + 100, y: y + 50, buttons });
    };
    let before = desktop.seen.cursors;
    let await_event = |server: &mut dyn Partner, name: &str, expected: Event| {
        until(name, || events(server).contains(&expected).then_some(()));
    };
    point(desktop, 0);
    await_event(server, "the pointer", Event::Pointer { x: 100, y: 50, buttons: 0 });
    until("the pointer shape", || {
        desktop.seen.take(desktop.client.as_mut());
        (desktop.seen.cursors > before).then_some(())
    });
    point(desktop, 1);
    await_event(server, "a button", Event::Pointer { x: 100, y: 50, buttons: 1 });
    point(desktop, 0);
    await_event(server, "a released button", Event::Pointer { x: 100, y: 50, buttons: 0 });
    desktop.focus();
    for pressed in [true, false] {
        let key = Event::Key { keysym: 0x71, pressed };
        send(desktop.client.as_mut(), &key);
        await_event(server, "a key", key);
    }
}

const SCRIPTS: &str = "Grüße, 世界 🦀\nسلام\tहिन्दी Ελλάδα";

/// The device's message about its clipboard: a text, or the announcement of one.
fn clipboard(text: &str) -> Vec<u8> {
    [&Header { kind: Kind::Clipboard, geometry: geometry() }.emit()[..], text.as_bytes()].concat()
}

/// Only a viewer with the focus gets a text, and only its desktop's texts leave it.
#[test]
fn texts_cross_to_an_unmodified_viewer_and_back_while_it_has_the_focus() {
    if !["vncviewer", "Xtigervnc", "xdotool", "xclip"].into_iter().all(is_installed) {
        return;
    }
    let mut desktop = Desktop::new();
    let (mut server, summary) = partner("rfb:0", Role::Application);
    let server = server.as_mut();
    let address = summary.rsplit(' ').next().unwrap();
    push(server, [&Header::frame(geometry()).emit()[..], &picture(0)].concat());
    let _viewer = desktop.view(address, &[]);
    let (x, y) = desktop.await_picture("the first picture", &picture(0), 0);
    let point = |desktop: &mut Desktop, server: &mut dyn Partner, at: u32| {
        let (x, y) = (x as u32 + at, y as u32 + at);
        send(desktop.client.as_mut(), &Event::Pointer { x, y, buttons: 0 });
        let mut seen = Vec::new();
        until("the pointer", || {
            seen.extend(events(server));
            seen.contains(&Event::Pointer { x: at, y: at, buttons: 0 }).then_some(())
        });
        seen
    };
    let await_event = |server: &mut dyn Partner, expected: Event| {
        until(&format!("{expected:.60?}"), || events(server).contains(&expected).then_some(()));
    };
    let has_text = |event: &Event| matches!(event, Event::Text(_) | Event::Fetch);
    point(&mut desktop, server, 50);
    desktop.focus();
    for text in [SCRIPTS.into(), SCRIPTS.repeat(200_000 / SCRIPTS.len())] {
        let _ours = desktop.copy(&text);
        await_event(server, Event::Text(text.clone()));
        let theirs = format!("from the device: {text}");
        push(server, clipboard(""));
        await_event(server, Event::Fetch);
        push(server, clipboard(&theirs));
        desktop.await_paste(&theirs);
    }
    // The focus is elsewhere: in the dialog of another viewer, below the first one.
    let _dialog = Program::start(&mut desktop.program("vncviewer"));
    let dialog = desktop.xdotool(&["search", "--sync", "--onlyvisible", "--name", "^VNC Viewer: Connection"]);
    let dialog = dialog.lines().next().unwrap();
    desktop.xdotool(&["windowmove", "--sync", dialog, "0", "250"]);
    desktop.xdotool(&["windowfocus", "--sync", dialog]);
    let mut seen = point(&mut desktop, server, 60);
    let _ours = desktop.copy("a secret of the application host");
    desktop.await_paste("a secret of the application host");
    push(server, clipboard(""));
    seen.extend(point(&mut desktop, server, 70));
    push(server, clipboard("a secret that nobody fetched"));
    seen.extend(point(&mut desktop, server, 80));
    assert!(!seen.iter().any(has_text), "{seen:?}");
    desktop.await_paste("a secret of the application host");
}

#[test]
fn texts_cross_to_an_unmodified_server_and_back() {
    if !["Xtigervnc", "xclip"].into_iter().all(is_installed) {
        return;
    }
    let mut desktop = Desktop::new();
    for text in [SCRIPTS.into(), SCRIPTS.repeat(200_000 / SCRIPTS.len())] {
        let texts = desktop.seen.texts.len();
        let _theirs = desktop.copy(&text);
        until("the announcement", || {
            desktop.seen.take(desktop.client.as_mut());
            (desktop.seen.texts.len() > texts).then_some(())
        });
        assert_eq!(desktop.seen.texts.pop(), Some(None), "no text leaves before it is fetched");
        send(desktop.client.as_mut(), &Event::Fetch);
        until("the text", || {
            desktop.seen.take(desktop.client.as_mut());
            desktop.seen.texts.contains(&Some(text.clone())).then_some(())
        });
        let ours = format!("from the viewer: {text}");
        send(desktop.client.as_mut(), &Event::Text(ours.clone()));
        desktop.await_paste(&ours);
    }
}
