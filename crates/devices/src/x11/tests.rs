//! Tests with a real server (Xvfb), a client that paints on the screen, and unmodified X11 programs.

use super::client::{Client, Packet};
use super::connect;
use super::display::{SETUP_TIMEOUT, wait_reply};
use contract::{
    Attributes, Body, Ctl, CtlReply, Direction, FlowClass, FlowKey, FlowTemplate, Format, Message, Partner,
    PartnerError, PartnerResult, Pull, Pulled, Pushed, Role, Time,
};
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use sys::poller::Poller;
use wire::formats::video::{Content, Cursor, Geometry, Header, Kind, PixelFormat, Rectangle};
use wire::formats::viewer::{Event, button};
use x11rb_protocol::protocol::xproto::*;

/// The time limit of every wait, long enough for a slow machine.
pub(crate) const WATCHDOG: Duration = Duration::from_secs(60);

/// A child process, killed when dropped.
pub(super) struct Program(pub(super) Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a program of a Debian package with a pipe as standard output. Returns `None` if the program is not installed;
/// the test is then skipped.
pub(super) fn start(command: &mut Command, package: &str) -> Option<Program> {
    if !testkit::skip::has_program(&command.get_program().to_string_lossy(), package) {
        return None;
    }
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    Some(Program(child.expect("an installed program starts")))
}

/// Returns the next line that a program prints; empty if it has exited.
pub(super) fn next_line(output: &mut BufReader<ChildStdout>) -> String {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    if output.buffer().is_empty() {
        let timeout = Timespec { tv_sec: WATCHDOG.as_secs() as i64, tv_nsec: 0 };
        let ready = poll(&mut [PollFd::new(output.get_ref(), PollFlags::IN)], Some(&timeout));
        assert!(ready.unwrap() > 0, "no output");
    }
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    line
}

/// An X server with a virtual screen.
pub(super) struct Server {
    program: Program,
    pub(super) display: String,
}

impl Server {
    pub(super) fn start(size: &str) -> Option<Server> {
        Self::start_with(size, &[])
    }

    pub(super) fn start_with(size: &str, more: &[&str]) -> Option<Server> {
        let arguments = ["-noreset", "-screen", "0", size];
        Self::start_program(Command::new("Xvfb").args(arguments).args(more), "xvfb")
    }

    /// Starts a server of a Debian package, and waits for its display.
    pub(super) fn start_program(command: &mut Command, package: &str) -> Option<Server> {
        let mut program = start(command.args(["-displayfd", "1", "-nolisten", "tcp"]), package)?;
        let output = program.0.stdout.take().expect("it is a pipe");
        let number = next_line(&mut BufReader::new(output));
        Some(Server { program, display: format!(":{}", number.trim()) })
    }

    pub(super) fn device(&self, options: &str) -> Device {
        device_of(&format!("x11:{}{options}", self.display))
    }

    pub(super) fn window(&self) -> Viewer {
        self.window_with("")
    }

    pub(super) fn window_with(&self, options: &str) -> Viewer {
        let (class, spec) =
            crate::spec::parse(&format!("window:{}{options}", self.display), Role::Application).unwrap();
        let opened = class.open(&spec, Role::Application, None).unwrap();
        let mut partner = class.partner(opened).unwrap();
        let mut open = |direction, format| {
            let template = FlowTemplate { direction, format, class: FlowClass::State };
            partner.open(&template, &Attributes::default()).unwrap()
        };
        let pictures = open(Direction::In, Format::Video);
        let inputs = open(Direction::Out, Format::Viewer);
        Viewer { partner, pictures, inputs }
    }

    pub(super) fn painter(&self) -> Painter {
        let socket = connect::connect(&self.display, SETUP_TIMEOUT).unwrap();
        let mut client = Client::new(socket, Instant::now() + SETUP_TIMEOUT).unwrap();
        let root = client.setup().roots[0].root;
        let gc = client.resource();
        client.send(CreateGCRequest { cid: gc, drawable: root, value_list: Default::default() }.serialize());
        Painter { client, root, gc }
    }
}

/// Opens the device in a spec, and both of its flows.
pub(crate) fn device_of(text: &str) -> Device {
    let (class, spec) = crate::spec::parse(text, Role::Device).unwrap();
    let opened = class.open(&spec, Role::Device, None).unwrap();
    let mut partner = class.partner(opened).unwrap();
    let mut open = |direction, format| {
        let template = FlowTemplate { direction, format, class: FlowClass::State };
        partner.open(&template, &Attributes::default())
    };
    let out = open(Direction::Out, Format::Video).unwrap();
    let back = open(Direction::In, Format::Viewer).unwrap_or_default();
    Device { partner, out, back, poller: Poller::new().unwrap(), screen: Screen::default() }
}

/// A client that paints on the root window.
pub(super) struct Painter {
    pub(super) client: Client,
    pub(super) root: Window,
    gc: Gcontext,
}

impl Painter {
    /// Paints pixels and waits until the server has processed them.
    pub(super) fn put(&mut self, place: Rectangle, pixels: &[u8]) {
        let (width, height) = (place.width as u16, place.height as u16);
        let (dst_x, dst_y) = (place.x as i16, place.y as i16);
        let (drawable, gc, format) = (self.root, self.gc, ImageFormat::Z_PIXMAP);
        let (left_pad, depth, data) = (0, 24, pixels.into());
        let put =
            PutImageRequest { format, drawable, gc, width, height, dst_x, dst_y, left_pad, depth, data };
        let request = self.client.send(put.serialize());
        self.done(request);
    }

    pub(super) fn done(&mut self, request: u64) {
        assert_eq!(self.client.wait_done(request, Instant::now() + WATCHDOG).unwrap(), Ok(()));
    }

    /// Changes the size of the screen, to at most its initial size.
    fn resize(&mut self, width: u16, height: u16) {
        use x11rb_protocol::protocol::randr;
        let deadline = Instant::now() + WATCHDOG;
        let client = &mut self.client;
        let name = randr::X11_EXTENSION_NAME.as_bytes().into();
        let request = client.query(QueryExtensionRequest { name }.serialize());
        let extension: QueryExtensionReply = wait_reply(client, request, deadline).unwrap();
        let (opcode, window) = (extension.major_opcode, self.root);
        let request = client.query(randr::GetScreenResourcesCurrentRequest { window }.serialize(opcode));
        let resources: randr::GetScreenResourcesCurrentReply = wait_reply(client, request, deadline).unwrap();
        for crtc in resources.crtcs {
            let off = randr::SetCrtcConfigRequest {
                crtc,
                timestamp: 0,
                config_timestamp: resources.config_timestamp,
                x: 0,
                y: 0,
                mode: 0,
                rotation: randr::Rotation::ROTATE0,
                outputs: (&[]).into(),
            };
            let request = client.query(off.serialize(opcode));
            let _: randr::SetCrtcConfigReply = wait_reply(client, request, deadline).unwrap();
        }
        let (mm_width, mm_height) = (width.into(), height.into());
        let size = randr::SetScreenSizeRequest { window, width, height, mm_width, mm_height };
        let request = client.send(size.serialize(opcode));
        self.done(request);
    }

    /// Waits for a window on the screen, and returns it.
    pub(super) fn only_window(&mut self) -> Window {
        let deadline = Instant::now() + WATCHDOG;
        loop {
            let request = self.client.query(QueryTreeRequest { window: self.root }.serialize());
            let tree: QueryTreeReply = wait_reply(&mut self.client, request, deadline).unwrap();
            if let [window] = tree.children[..] {
                return window;
            }
            assert!(Instant::now() < deadline);
        }
    }

    /// Moves the pointer and waits until the server has done so.
    fn warp_pointer(&mut self, (dst_x, dst_y): (i16, i16)) {
        let (src_window, src_x, src_y, src_width, src_height) = (0, 0, 0, 0, 0);
        let dst_window = self.root;
        let warp =
            WarpPointerRequest { src_window, dst_window, src_x, src_y, src_width, src_height, dst_x, dst_y };
        let request = self.client.send(warp.serialize());
        self.done(request);
    }

    /// Waits until the pointer is at `place` and exactly these buttons and modifiers are down.
    pub(super) fn until_pointer(&mut self, place: (i16, i16), mask: KeyButMask) {
        let deadline = Instant::now() + WATCHDOG;
        loop {
            let request = self.client.query(QueryPointerRequest { window: self.root }.serialize());
            let pointer: QueryPointerReply = wait_reply(&mut self.client, request, deadline).unwrap();
            if (pointer.root_x, pointer.root_y) == place && pointer.mask == mask {
                return;
            }
            assert!(Instant::now() < deadline, "{pointer:?}");
        }
    }
}

/// A window under test.
pub(super) struct Viewer {
    pub(super) partner: Box<dyn Partner>,
    pub(super) pictures: FlowKey,
    pub(super) inputs: FlowKey,
}

impl Viewer {
    /// Pushes a message, as soon as the partner has room for it.
    pub(super) fn show(&mut self, body: Vec<u8>) -> PartnerResult {
        let deadline = Instant::now() + WATCHDOG;
        let mut message = Message::new(Time(1), body);
        loop {
            match self.partner.push(self.pictures, message) {
                Ok(Pushed::Taken) => return Ok(()),
                Ok(Pushed::Full(returned)) => message = returned,
                Err((error, _)) => return Err(error),
            }
            assert!(Instant::now() < deadline, "the partner stays full");
            std::thread::yield_now();
        }
    }

    /// Returns the next input event; `None` if the window was closed.
    pub(super) fn event(&mut self) -> Option<Event> {
        let deadline = Instant::now() + WATCHDOG;
        loop {
            match self.partner.pull(self.inputs, Pull::Yours).unwrap() {
                Pulled::Message(_, message) => {
                    return Some(Event::parse(&message.body.into_bytes()).unwrap());
                }
                Pulled::End => return None,
                _ => assert!(Instant::now() < deadline, "no event"),
            }
            std::thread::yield_now();
        }
    }

    /// Skips input events up to `wanted`.
    pub(super) fn until(&mut self, wanted: &Event) {
        while self.event().as_ref().unwrap() != wanted {}
    }
}

pub(super) fn picture(geometry: Geometry, pixels: &[u8]) -> Vec<u8> {
    [&Header::frame(geometry).emit()[..], pixels].concat()
}

/// The picture that results from the messages of a `video` flow.
#[derive(Default)]
pub(crate) struct Screen {
    pub(crate) geometry: Option<Geometry>,
    pub(crate) pixels: Vec<u8>,
    cursor: Option<(Cursor, Vec<u8>)>,
    pub(crate) texts: Vec<Option<String>>,
    pub(crate) frames: usize,
    pub(super) parts: Vec<Rectangle>,
    /// Messages that the test holds, with a copy of their bytes on arrival.
    pub(crate) held: Option<Vec<(Body, Vec<u8>)>>,
}

impl Screen {
    pub(crate) fn take(&mut self, message: Message) {
        let body = message.body.clone();
        let bytes = message.body.into_bytes();
        self.held.iter_mut().for_each(|held| held.push((body.clone(), bytes.to_vec())));
        let header = Header::parse(&bytes).unwrap();
        let geometry = header.geometry;
        match header.parse_content(&bytes[Header::BYTES..]).unwrap() {
            Content::Frame(pixels) => {
                (self.geometry, self.pixels) = (Some(geometry), pixels.to_vec());
                self.frames += 1;
            }
            Content::Rectangles(parts, mut pixels) => {
                assert_eq!(self.geometry, Some(geometry), "a part of another picture");
                for part in &parts {
                    let (part_pixels, remaining) = pixels.split_at(part.bytes(PixelFormat::Bgrx32));
                    pixels = remaining;
                    for (y, row) in part_pixels.chunks_exact(part.width as usize * 4).enumerate() {
                        let at = ((part.y as usize + y) * geometry.width() as usize + part.x as usize) * 4;
                        self.pixels[at..at + row.len()].copy_from_slice(row);
                    }
                }
                self.parts.extend(parts);
            }
            Content::Cursor(cursor, pixels) => self.cursor = Some((cursor, pixels.to_vec())),
            Content::Clipboard(text) => self.texts.push(text.map(String::from)),
            Content::Boxes(_) => panic!("a screen sends no boxes"),
        }
    }

    /// Returns the pixels of a place, without their unused byte.
    pub(super) fn at(&self, place: Rectangle) -> Vec<[u8; 3]> {
        let width = self.geometry.map_or(0, |geometry| geometry.width()) as usize;
        let rows = self.pixels.chunks_exact(width.max(1) * 4);
        let rows = rows.skip(place.y as usize).take(place.height as usize);
        let row = place.x as usize..(place.x + place.width) as usize;
        rows.flat_map(|pixels| colours(&pixels[row.start * 4..row.end * 4])).collect()
    }
}

pub(super) fn colours(pixels: &[u8]) -> Vec<[u8; 3]> {
    pixels.chunks_exact(4).map(|pixel| [pixel[0], pixel[1], pixel[2]]).collect()
}

pub(crate) fn noise(bytes: usize, seed: u32) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as u8
    };
    (0..bytes).map(|_| next()).collect()
}

/// A device under test, and the screen that results from its messages.
pub(crate) struct Device {
    pub(crate) partner: Box<dyn Partner>,
    pub(crate) out: FlowKey,
    pub(crate) back: FlowKey,
    poller: Poller,
    pub(crate) screen: Screen,
}

impl Device {
    /// Pulls messages until `done`, and waits between them as the path does.
    pub(crate) fn until(&mut self, expected: &str, done: impl Fn(&Screen) -> bool) {
        let deadline = Instant::now() + WATCHDOG;
        while !done(&self.screen) {
            assert!(Instant::now() < deadline, "{expected}: it does not arrive");
            self.step().unwrap();
        }
    }

    /// Pulls a message, or waits for one.
    pub(crate) fn step(&mut self) -> PartnerResult {
        if let Pulled::Message(_, message) = self.partner.pull(self.out, Pull::Yours)? {
            self.screen.take(message);
            return Ok(());
        }
        let readiness = self.partner.readiness(self.out, Direction::Out);
        let mut wait = Duration::from_secs(1);
        if let Some(at) = readiness.at {
            wait = wait.min(at.since(Time(sys::clock::boot_ns())));
        }
        for (descriptor, interest) in readiness.descriptors.into_iter().flatten() {
            let reads = interest == contract::Interest::Read;
            self.poller.register(descriptor, reads, !reads);
        }
        if !readiness.now {
            self.poller.wait(Some(wait)).unwrap();
        }
        Ok(())
    }

    pub(crate) fn push(&mut self, event: Event) {
        let message = Message::new(Time(1), event.to_bytes());
        let pushed = self.partner.push(self.back, message);
        assert!(matches!(pushed, Ok(Pushed::Taken)), "{event:?}: {pushed:?}");
    }

    pub(crate) fn type_key(&mut self, keysym: u32) {
        self.push(Event::Key { keysym, pressed: true });
        self.push(Event::Key { keysym, pressed: false });
    }

    pub(crate) fn figure(&mut self, name: &str) -> f64 {
        let Ok(CtlReply::Report(report)) = self.partner.ctl(FlowKey::DEFAULT, Ctl::Report) else { panic!() };
        report.into_iter().find(|(known, _)| *known == name).unwrap().1
    }
}

const PLACE: Rectangle = Rectangle { x: 30, y: 7, width: 61, height: 20 };

#[test]
fn painted_pixels_and_no_others_arrive_exactly() {
    let Some(server) = Server::start("320x200x24") else { return };
    let mut painter = server.painter();
    let mut device = server.device("");
    device.until("the first picture", |screen| screen.frames == 1);
    device.until("the pointer shape", |screen| screen.cursor.is_some());
    let spec = format!("x11:{}", server.display);
    let listed = crate::find("x11").unwrap().list().into_iter().find(|listing| listing.spec == spec);
    assert_eq!(listed.map(|listing| listing.problem), Some(None));
    let geometry = device.screen.geometry.unwrap();
    assert_eq!((geometry.width(), geometry.height(), geometry.rate()), (320, 200, (60, 1)));
    for seed in 1..4 {
        let pixels = noise(PLACE.bytes(PixelFormat::Bgrx32), seed);
        painter.put(PLACE, &pixels);
        device.until("the painted pixels", |screen| screen.at(PLACE) == colours(&pixels));
    }
    assert_eq!(device.screen.frames, 1, "damage arrives in parts");
    let inside = |part: &Rectangle| part.intersection(&PLACE) == Some(*part);
    assert!(device.screen.parts.iter().all(inside), "{:?}", device.screen.parts);
    device.screen.pixels.fill(0);
    device.push(Event::Refresh);
    device.until("a whole picture", |screen| screen.frames == 2);
    assert_eq!(device.screen.at(PLACE), colours(&noise(PLACE.bytes(PixelFormat::Bgrx32), 3)));
}

#[test]
fn every_capture_mode_gives_the_same_picture() {
    let Some(server) = Server::start("97x33x24") else { return };
    let all = Rectangle { x: 0, y: 0, width: 97, height: 33 };
    for (number, options) in [",damage=whole", ",damage=false", ",rate=0,delay=0ms"].into_iter().enumerate() {
        let mut device = server.device(options);
        device.until("the first picture", |screen| screen.frames == 1);
        let pixels = noise(all.bytes(PixelFormat::Bgrx32), number as u32 + 7);
        server.painter().put(all, &pixels);
        device.until(options, |screen| screen.at(all) == colours(&pixels));
    }
}

/// Without a pull no messages are made: all damage until the next pull is in one message.
#[test]
fn damage_accumulates_until_a_pull() {
    let Some(server) = Server::start("320x200x24") else { return };
    let mut painter = server.painter();
    let mut device = server.device(",rate=0,delay=0ms,cursor=false");
    device.until("the first picture", |screen| screen.frames == 1);
    let pixels = noise(PLACE.bytes(PixelFormat::Bgrx32), 9);
    for number in 0..500 {
        painter.put(Rectangle { x: number % 200, ..PLACE }, &pixels);
    }
    let last = Rectangle { x: 499 % 200, ..PLACE };
    device.until("the last rectangle", |screen| screen.at(last) == colours(&pixels));
    assert!(device.figure("partial") < 5.0, "{} messages", device.figure("partial"));
}

/// A path that rests after each message gets large damage in parts, or in one message if its pipeline merges changes.
#[test]
fn a_pipeline_that_merges_gets_large_damage_in_one_message() {
    let Some(server) = Server::start("320x200x24") else { return };
    let mut painter = server.painter();
    let mut device = server.device(",rate=0,delay=0ms,portion=1ms,cursor=false");
    device.until("the first picture", |screen| screen.frames == 1);
    let film = Rectangle { x: 16, y: 16, width: 240, height: 160 };
    for (merges, seed) in [(false, 1), (true, 2), (false, 3)] {
        device.partner.ctl(device.out, Ctl::Merging(merges)).unwrap();
        for (place, seed) in [(PLACE, seed), (PLACE, seed + 10), (film, seed + 20)] {
            let pixels = noise(place.bytes(PixelFormat::Bgrx32), seed);
            painter.put(place, &pixels);
            let before = device.figure("partial");
            device.until("the painted pixels", |screen| {
                std::thread::sleep(Duration::from_millis(8));
                screen.at(place) == colours(&pixels)
            });
            let is_whole = device.figure("partial") - before == 1.0;
            assert_eq!(is_whole, merges || place == PLACE, "{place:?} of seed {seed}");
        }
    }
}

/// The size changes during the capture (RandR).
#[test]
fn a_resized_screen_gives_pictures_of_the_new_size() {
    let Some(server) = Server::start("320x200x24") else { return };
    let mut painter = server.painter();
    let mut device = server.device(",rate=0,delay=0ms");
    device.until("the first picture", |screen| screen.frames == 1);
    for (width, height) in [(200, 100), (320, 200), (64, 200)] {
        painter.resize(width, height);
        let all = Rectangle { x: 0, y: 0, width: width.into(), height: height.into() };
        let pixels = noise(all.bytes(PixelFormat::Bgrx32), width.into());
        painter.put(all, &pixels);
        device.until("a picture of that size", |screen| {
            screen.geometry.map(|geometry| geometry.width()) == Some(width.into())
                && screen.at(all) == colours(&pixels)
        });
    }
    assert_eq!(device.figure("sizes"), 3.0);
}

/// Messages borrow the memory that the server writes to. The test holds more messages than there are slots, also across
/// a resize.
#[test]
fn held_pictures_are_not_overwritten() {
    let Some(server) = Server::start("320x200x24") else { return };
    let mut painter = server.painter();
    painter.resize(160, 100);
    let mut device = server.device(",rate=0,delay=0ms,damage=whole,portion=0ms,cursor=false");
    device.screen.held = Some(Vec::new());
    for (width, height) in [(160, 100), (320, 200)] {
        painter.resize(width, height);
        let all = Rectangle { x: 0, y: 0, width: width.into(), height: height.into() };
        for seed in 1..6 {
            let pixels = noise(all.bytes(PixelFormat::Bgrx32), u32::from(width) + seed);
            painter.put(all, &pixels);
            device.until("the painted pixels", |screen| {
                screen.geometry.map(|geometry| geometry.width()) == Some(width.into())
                    && screen.at(all) == colours(&pixels)
            });
        }
    }
    let held = device.screen.held.take().unwrap();
    assert!(held.len() >= 10);
    for (number, (body, copy)) in held.into_iter().enumerate() {
        assert!(body.into_bytes() == copy, "message {number} was overwritten");
    }
}

/// Without shared memory the pixels pass through the connection.
#[test]
fn capture_and_window_work_without_shared_memory() {
    let Some(server) = Server::start_with("97x33x24", &["-extension", "MIT-SHM"]) else { return };
    let mut device = server.device(",rate=0,delay=0ms");
    let mut viewer = server.window();
    let geometry = Geometry::new(PixelFormat::Bgrx32, 80, 30).unwrap();
    let place = Rectangle { x: 0, y: 0, width: 80, height: 30 };
    for seed in 1..5 {
        let pixels = noise(geometry.bytes(), seed);
        viewer.show(picture(geometry, &pixels)).unwrap();
        device.until("a picture", |screen| screen.at(place) == colours(&pixels));
    }
}

#[test]
fn the_fb_device_reads_the_file_of_an_xvfb_screen() {
    let directory = std::env::temp_dir().join(format!("outboard-fbdir-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let Some(server) = Server::start_with("160x120x24", &["-fbdir", &directory.to_string_lossy()]) else {
        return;
    };
    let text = format!("fb:{}/Xvfb_screen0,rate=0", directory.display());
    let mut device = device_of(&text);
    let mut painter = server.painter();
    for seed in 1..4 {
        let pixels = noise(PLACE.bytes(PixelFormat::Bgrx32), seed);
        painter.put(PLACE, &pixels);
        device.until("the painted pixels", |screen| screen.at(PLACE) == colours(&pixels));
    }
    drop(server);
    let _ = std::fs::remove_dir_all(&directory);
}

#[test]
fn the_pointer_follows_events_and_neutral_releases_everything() {
    let Some(server) = Server::start("320x200x24") else { return };
    let mut painter = server.painter();
    let mut device = server.device("");
    device.push(Event::Pointer { x: 123, y: 45, buttons: button::LEFT | button::RIGHT });
    let pressed = KeyButMask::BUTTON1 | KeyButMask::BUTTON3;
    painter.until_pointer((123, 45), pressed);
    device.push(Event::Pointer { x: 124, y: 45, buttons: button::LEFT });
    painter.until_pointer((124, 45), KeyButMask::BUTTON1);
    device.push(Event::Key { keysym: 0xffe1, pressed: true });
    painter.until_pointer((124, 45), KeyButMask::BUTTON1 | KeyButMask::SHIFT);
    device.partner.ctl(FlowKey::DEFAULT, Ctl::Neutral).unwrap();
    painter.until_pointer((124, 45), KeyButMask::default());
}

/// The user of the screen, or a program, moves the pointer between two events of the viewer.
#[test]
fn a_button_changes_at_the_position_of_the_viewer() {
    let Some(server) = Server::start("320x200x24") else { return };
    let mut painter = server.painter();
    let mut device = server.device("");
    device.push(Event::Pointer { x: 0, y: 0, buttons: button::LEFT });
    painter.until_pointer((0, 0), KeyButMask::BUTTON1);
    for (buttons, mask) in [(0, KeyButMask::default()), (button::RIGHT, KeyButMask::BUTTON3)] {
        painter.warp_pointer((200, 90));
        device.push(Event::Pointer { x: 0, y: 0, buttons });
        painter.until_pointer((0, 0), mask);
    }
    painter.warp_pointer((200, 90));
    device.partner.ctl(FlowKey::DEFAULT, Ctl::Neutral).unwrap();
    painter.until_pointer((200, 90), KeyButMask::default());
}

#[test]
fn a_new_worker_releases_the_keys_and_buttons_of_a_killed_one() {
    let Some(server) = Server::start("320x200x24") else { return };
    let mut painter = server.painter();
    let mut killed = server.device("");
    killed.push(Event::Pointer { x: 12, y: 34, buttons: button::LEFT | button::RIGHT });
    killed.push(Event::Key { keysym: 0xffe1, pressed: true });
    let pressed = KeyButMask::BUTTON1 | KeyButMask::BUTTON3 | KeyButMask::SHIFT;
    painter.until_pointer((12, 34), pressed);
    // It releases nothing.
    std::mem::forget(killed.partner);
    let viewing = server.device(",view=only");
    painter.until_pointer((12, 34), pressed);
    drop(viewing);
    let _device = server.device("");
    painter.until_pointer((12, 34), KeyButMask::default());
}

#[test]
fn a_screen_that_is_only_viewed_refuses_all_input() {
    let Some(server) = Server::start("320x200x24") else { return };
    let text = format!("x11:{},view=only", server.display);
    let (class, spec) = crate::spec::parse(&text, Role::Device).unwrap();
    let opened = class.open(&spec, Role::Device, None).unwrap();
    assert_eq!(opened.description.summary, format!("x11 {} (view only)", server.display));
    let formats: Vec<_> = opened.description.flows.iter().map(|flow| flow.format.clone()).collect();
    assert_eq!(formats, [Format::Video]);
    let mut painter = server.painter();
    let mut controlled = server.device("");
    controlled.push(Event::Pointer { x: 50, y: 60, buttons: 0 });
    painter.until_pointer((50, 60), KeyButMask::default());
    let mut device = server.device(",view=only");
    device.until("the screen", |screen| screen.frames == 1);
    let template = FlowTemplate { direction: Direction::In, format: Format::Viewer, class: FlowClass::State };
    assert!(device.partner.open(&template, &Attributes::default()).is_err());
    let shift = Event::Key { keysym: 0xffe1, pressed: true };
    for event in [shift, Event::Pointer { x: 9, y: 9, buttons: button::LEFT }, Event::Text("text".into())] {
        for flow in [FlowKey(2), FlowKey::DEFAULT] {
            assert!(device.partner.push(flow, Message::new(Time(1), event.to_bytes())).is_err(), "{event:?}");
        }
    }
    drop(device);
    // The server handles clients in turn, so it has handled all requests of the partner before this motion.
    controlled.push(Event::Pointer { x: 51, y: 60, buttons: 0 });
    painter.until_pointer((51, 60), KeyButMask::default());
}

#[test]
fn a_killed_server_is_reported_as_gone() {
    let Some(mut server) = Server::start("64x48x24") else { return };
    let mut device = server.device("");
    device.until("the first picture", |screen| screen.frames == 1);
    server.program.0.kill().unwrap();
    let deadline = Instant::now() + WATCHDOG;
    let error = loop {
        assert!(Instant::now() < deadline);
        if let Err(error) = device.step() {
            break error;
        }
    };
    assert!(
        matches!(&error, PartnerError::Gone(server_name) if server_name.contains(&server.display)),
        "{error}"
    );
    let message = Message::new(Time(1), Event::Key { keysym: 0x61, pressed: true }.to_bytes());
    assert!(matches!(device.partner.push(device.back, message), Err((PartnerError::Gone(_), _))));
}

#[test]
fn an_invalid_display_is_rejected_with_advice() {
    for (target, expected) in
        [("nonsense", "write [HOST]:NUMBER"), (":7999", "is it running"), (":65535", "write [HOST]:NUMBER")]
    {
        let (class, spec) = crate::spec::parse(&format!("x11:{target}"), Role::Device).unwrap();
        let error = class.open(&spec, Role::Device, None).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_window_displays_whole_pictures_and_parts_of_every_format() {
    let Some(server) = Server::start("320x200x24") else { return };
    let mut glass = server.device(",rate=0,delay=0ms");
    let mut viewer = server.window();
    let place = Rectangle { x: 0, y: 0, width: 100, height: 60 };
    let geometry = |pixels| Geometry::new(pixels, place.width, place.height).unwrap();
    let screen = geometry(PixelFormat::Bgrx32);
    for seed in 1..20 {
        let pixels = noise(screen.bytes(), seed);
        viewer.show(picture(screen, &pixels)).unwrap();
        glass.until("a picture", |screen| screen.at(place) == colours(&pixels));
    }
    let padded = screen.with_stride(screen.stride() + 4).unwrap();
    viewer.show(picture(padded, &vec![77; padded.bytes()])).unwrap();
    glass.until("a picture with padded rows", |screen| screen.at(place) == vec![[77; 3]; 6000]);
    let red = vec![81; 6000].into_iter().chain(vec![90; 1500]).chain(vec![240; 1500]).collect::<Vec<u8>>();
    viewer.show(picture(geometry(PixelFormat::I420), &red)).unwrap();
    glass.until("a picture in planes", |screen| screen.at(place) == vec![[0, 0, 255]; 6000]);
    let parts =
        [Rectangle { x: 1, y: 2, width: 3, height: 4 }, Rectangle { x: 90, y: 50, width: 10, height: 10 }];
    let pixels = noise(112 * 4, 5);
    let header = Header { kind: Kind::Rectangles, geometry: screen }.emit();
    let changed = [&header[..], &wire::formats::video::emit_rectangles(&parts), &pixels].concat();
    viewer.show(changed.clone()).unwrap();
    glass.until("the changed parts", |screen| {
        screen.at(parts[0]) == colours(&pixels[..48]) && screen.at(parts[1]) == colours(&pixels[48..])
    });
    let larger = Geometry::new(PixelFormat::Gray8, 150, 90).unwrap();
    viewer.show(picture(larger, &vec![9; larger.bytes()])).unwrap();
    let all = Rectangle { width: 150, height: 90, ..place };
    glass.until("a larger picture", |screen| screen.at(all) == vec![[9; 3]; 150 * 90]);
    viewer.show(changed).unwrap();
    viewer.until(&Event::Refresh);
    for wrong in [vec![], vec![9; 40], picture(screen, &[1; 7])] {
        assert!(matches!(viewer.show(wrong), Err(PartnerError::Message(_))));
    }
}

/// Two displays: a window on one shows the screen of the other, and input to the window reaches that screen.
#[test]
fn a_window_shows_and_controls_another_screen() {
    let (Some(here), Some(there)) = (Server::start("160x120x24"), Server::start("320x200x24")) else {
        return;
    };
    let (mut painter, mut device) = (here.painter(), here.device(""));
    let (mut glass, mut viewer) = (there.device(""), there.window());
    let all = Rectangle { x: 0, y: 0, width: 160, height: 120 };
    let pixels = noise(all.bytes(PixelFormat::Bgrx32), 3);
    painter.put(all, &pixels);
    device
        .until("the painted pixels", |screen| screen.at(all) == colours(&pixels) && screen.cursor.is_some());
    let (cursor, shape) = device.screen.cursor.clone().unwrap();
    let geometry = device.screen.geometry.unwrap();
    let header = Header { kind: Kind::Cursor, geometry }.emit();
    viewer.show([&header[..], &cursor.emit(), &shape].concat()).unwrap();
    viewer.show(picture(geometry, &device.screen.pixels)).unwrap();
    glass.until("the same pixels", |screen| screen.at(all) == colours(&pixels));
    // Input to the window. Without a window manager a window has the keyboard while the pointer is over it.
    let buttons = button::LEFT;
    glass.push(Event::Pointer { x: 70, y: 30, buttons });
    viewer.until(&Event::Pointer { x: 70, y: 30, buttons });
    glass.until("the pointer shape", |screen| screen.cursor.as_ref() == Some(&(cursor, shape.clone())));
    glass.push(Event::Pointer { x: 70, y: 30, buttons: 0 });
    for keysym in [0x51, 0xff0d, 0x0100_20ac] {
        glass.type_key(keysym);
        viewer.until(&Event::Key { keysym, pressed: true });
        viewer.until(&Event::Key { keysym, pressed: false });
    }
    device.push(Event::Pointer { x: 70, y: 30, buttons });
    painter.until_pointer((70, 30), KeyButMask::BUTTON1);
}

#[test]
fn closing_the_window_ends_the_flow() {
    let Some(server) = Server::start("160x120x24") else { return };
    // The window is the only one.
    let mut viewer = server.window_with(",clipboard=no");
    let geometry = Geometry::new(PixelFormat::Gray8, 16, 8).unwrap();
    viewer.show(picture(geometry, &[0; 128])).unwrap();
    let mut painter = server.painter();
    let window = painter.only_window();
    let request = painter.client.send(DestroyWindowRequest { window }.serialize());
    painter.done(request);
    while viewer.event().is_some() {}
    assert!(matches!(viewer.show(picture(geometry, &[0; 128])), Err(PartnerError::Gone(_))));
}

/// Random bytes instead of packets, some after a valid setup.
#[test]
fn random_bytes_from_a_server_are_an_error() {
    use std::io::Write;
    let setup = {
        let Some(server) = Server::start("64x48x24") else { return };
        let socket = connect::connect(&server.display, SETUP_TIMEOUT).unwrap();
        let mut bytes = vec![0; 65536];
        let (length, _) =
            rustix::net::recv(&socket, &mut bytes[..], rustix::net::RecvFlags::empty()).unwrap();
        bytes.truncate(length);
        bytes
    };
    for seed in 0..200u32 {
        let (ours, mut theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let random = noise(96, seed);
        theirs.write_all(if seed % 8 == 0 { &random } else { &setup }).unwrap();
        theirs.write_all(&random).unwrap();
        drop(theirs);
        let Ok(mut client) = Client::new(ours.into(), Instant::now() + SETUP_TIMEOUT) else { continue };
        client.query(GetInputFocusRequest.serialize());
        let mut packets = 0;
        while client.receive().is_ok() {
            match client.next_packet() {
                Ok(Some(packet)) => packets += usize::from(!matches!(packet, Packet::Reply(..))),
                Ok(None) => {}
                Err(_) => break,
            }
        }
        assert!(packets <= 3);
    }
}
