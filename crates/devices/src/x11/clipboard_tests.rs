//! Tests of the clipboard with a real server (Xvfb), unmodified programs (xclip, xsel), and owners that misbehave.

use super::client::{Client, Packet};
use super::display::{parse, wait_reply};
use super::tests::{Device, Painter, Program, Server, Viewer, WATCHDOG, start};
use contract::{Pull, Pulled};
use std::io::Read;
use std::process::Command;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use wire::formats::viewer::{Event, TEXT_BYTES_MAX};
use x11rb_protocol::protocol::xproto::*;

const SCRIPTS: &str = "Grüße, 世界 🦀\nسلام\tहिन्दी Ελλάδα\r\n";

/// Starts a program that copies a text, and owns the clipboard until it is dropped.
fn copy(server: &Server, program: &str, text: &str) -> Option<Program> {
    use std::io::Write;
    let mut arguments = match program {
        "xclip" => vec!["-quiet", "-in", "-selection", "clipboard", "-display"],
        _ => vec!["--nodetach", "--input", "--clipboard", "--display"],
    };
    arguments.push(&server.display);
    if !testkit::skip::has_program(program, program) {
        return None;
    }
    let mut command = Command::new(program);
    command.args(arguments).stdin(std::process::Stdio::piped()).stderr(std::process::Stdio::null());
    let mut child = command.spawn().unwrap();
    // The end of its input, at the drop of the pipe, starts it.
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    Some(Program(child))
}

/// Starts a program that pastes the clipboard's text.
fn paste(server: &Server, program: &str, target: &str) -> Option<JoinHandle<String>> {
    let mut command = Command::new(program);
    match program {
        "xclip" => command.args(["-out", "-selection", "clipboard", "-target", target]),
        _ => command.args(["--output", "--clipboard"]),
    };
    command.args([if program == "xclip" { "-display" } else { "--display" }, &server.display]);
    let mut program = start(&mut command, program)?;
    Some(std::thread::spawn(move || {
        let mut pasted = Vec::new();
        program.0.stdout.take().unwrap().read_to_end(&mut pasted).unwrap();
        String::from_utf8_lossy(&pasted).into_owned()
    }))
}

/// A screen, and a window on another screen that shows it: the messages pass as over a network.
struct Desk {
    here: Server,
    device: Device,
    there: Server,
    viewer: Viewer,
    /// The hand at the window's screen.
    hand: Device,
    fetches: usize,
    announcements: usize,
    texts_sent: usize,
}

impl Desk {
    fn new(options: &str) -> Option<Desk> {
        let (here, there) = (Server::start("64x48x24")?, Server::start("320x200x24")?);
        let (device, viewer, hand) = (here.device(options), there.window_with(""), there.device(""));
        let counts = (0, 0, 0);
        let (fetches, announcements, texts_sent) = counts;
        let mut desk = Desk { here, device, there, viewer, hand, fetches, announcements, texts_sent };
        desk.device.screen.held = Some(Vec::new());
        desk.until("the first picture", |desk| desk.device.screen.frames == 1);
        Some(desk)
    }

    /// Carries the messages of both sides.
    fn step(&mut self) {
        let Desk { device, viewer, .. } = self;
        while let Pulled::Message(_, message) = device.partner.pull(device.out, Pull::Yours).unwrap() {
            device.screen.take(message);
        }
        for text in std::mem::take(&mut device.screen.texts) {
            self.announcements += usize::from(text.is_none());
        }
        for (_, bytes) in device.screen.held.iter_mut().flat_map(std::mem::take) {
            viewer.show(bytes).unwrap();
        }
        while let Pulled::Message(_, message) = viewer.partner.pull(viewer.inputs, Pull::Yours).unwrap() {
            let event = Event::parse(&message.body.into_bytes()).unwrap();
            self.fetches += usize::from(event == Event::Fetch);
            self.texts_sent += usize::from(matches!(event, Event::Text(_)));
            device.push(event);
        }
        std::thread::sleep(Duration::from_millis(1));
    }

    fn until(&mut self, expected: &str, done: impl Fn(&Desk) -> bool) {
        let deadline = Instant::now() + WATCHDOG;
        while !done(self) {
            assert!(Instant::now() < deadline, "{expected}: it does not arrive");
            self.step();
        }
    }

    /// Gives the window the focus, or takes it. Without a window manager, the focus follows the pointer.
    fn focus(&mut self, has_focus: bool) {
        let x = if has_focus { 10 } else { 300 };
        self.hand.push(Event::Pointer { x, y: 10, buttons: 0 });
        let mut painter = self.there.painter();
        painter.until_pointer((x as i16, 10), KeyButMask::default());
        self.settle();
    }

    /// Waits until both partners have processed everything that their servers have sent so far.
    fn settle(&mut self) {
        for _ in 0..3 {
            let frames = self.device.screen.frames;
            self.device.push(Event::Refresh);
            self.until("a refresh", |desk| desk.device.screen.frames > frames);
        }
    }

    fn pasted(&mut self, thread: &JoinHandle<String>) {
        self.until("the end of a paste", |_| thread.is_finished());
    }

    /// Waits until another program than `prev` owns a screen's clipboard. A request to xclip is lost if it comes while
    /// xclip ends because it is the owner no more, and a program that pastes then waits for ever.
    fn until_owner_is_not(&mut self, is_here: bool, prev: Window) {
        self.until("a new owner", |desk| {
            let server = if is_here { &desk.here } else { &desk.there };
            ![0, prev].contains(&owner_of(server))
        });
    }

    /// Copies a text on one screen, and waits until the program owns the clipboard.
    fn copy(&mut self, is_here: bool, program: &str, text: &str) -> Option<Program> {
        let server = if is_here { &self.here } else { &self.there };
        let prev = owner_of(server);
        let copied = copy(server, program, text)?;
        self.until_owner_is_not(is_here, prev);
        Some(copied)
    }

    /// Copies a text on one screen, and waits until it has crossed to the other.
    fn cross(&mut self, is_from_here: bool, program: &str, text: &str) -> Option<Program> {
        let [from, to] = match is_from_here {
            true => [&self.here, &self.there],
            false => [&self.there, &self.here],
        };
        let prev = owner_of(to);
        let copied = copy(from, program, text)?;
        self.until_owner_is_not(!is_from_here, prev);
        Some(copied)
    }

    /// Pastes on one of the screens until the text is the expected one.
    fn expect(&mut self, is_here: bool, program: &str, expected: &str) {
        let deadline = Instant::now() + WATCHDOG;
        loop {
            let server = if is_here { &self.here } else { &self.there };
            let thread = paste(server, program, "UTF8_STRING").unwrap();
            self.pasted(&thread);
            let text = thread.join().unwrap();
            if text == expected {
                return;
            }
            assert!(Instant::now() < deadline, "{text:.80} instead of {expected:.80}");
        }
    }
}

/// A text of almost the largest size.
fn long_text() -> String {
    SCRIPTS.repeat(TEXT_BYTES_MAX / SCRIPTS.len() - 1)
}

#[test]
fn texts_cross_both_ways_with_unmodified_programs_on_both_sides() {
    let Some(mut desk) = Desk::new("") else { return };
    desk.focus(true);
    for program in ["xclip", "xsel"] {
        for text in ["short".into(), format!("{program}: {SCRIPTS}"), long_text() + program] {
            let Some(_ours) = desk.cross(false, program, &text) else { return };
            desk.expect(true, program, &text);
            let text = format!("from the device: {}", &text[..text.floor_char_boundary(TEXT_BYTES_MAX - 20)]);
            let _theirs = desk.cross(true, program, &text);
            desk.expect(false, program, &text);
        }
    }
    assert_eq!(desk.device.figure("inputs refused"), 0.0);
    assert_eq!(desk.device.figure("texts"), 6.0);
}

#[test]
fn a_text_leaves_neither_host_while_the_window_has_no_focus() {
    let Some(mut desk) = Desk::new("") else { return };
    desk.focus(false);
    let Some(_ours) = desk.copy(false, "xclip", "a secret of the application host") else { return };
    let _theirs = desk.copy(true, "xclip", "a secret of the device host");
    desk.until("the announcement", |desk| desk.announcements == 1);
    desk.settle();
    assert_eq!((desk.fetches, desk.texts_sent), (0, 0));
    // The last copy wins: the device's.
    let ours = owner_of(&desk.there);
    desk.focus(true);
    desk.until_owner_is_not(false, ours);
    desk.expect(false, "xclip", "a secret of the device host");
    desk.focus(false);
    let _ours = desk.copy(false, "xclip", "now ours");
    desk.settle();
    assert_eq!((desk.fetches, desk.texts_sent), (1, 0));
    let theirs = owner_of(&desk.here);
    desk.focus(true);
    desk.until_owner_is_not(true, theirs);
    desk.expect(true, "xclip", "now ours");
}

#[test]
fn an_option_on_either_side_keeps_texts_from_both_hosts() {
    for (device, window) in [(",clipboard=no", ""), ("", ",clipboard=no")] {
        let Some(mut desk) = Desk::new(device) else { return };
        desk.viewer = desk.there.window_with(window);
        desk.focus(true);
        let Some(_ours) = copy(&desk.there, "xclip", "of the application host") else { return };
        let _theirs = copy(&desk.here, "xclip", "of the device host");
        desk.device.push(Event::Fetch);
        let is_announced = device.is_empty();
        desk.until("the announcement", |desk| !is_announced || desk.announcements == 1);
        desk.settle();
        desk.expect(true, "xclip", "of the device host");
        desk.expect(false, "xclip", "of the application host");
    }
}

#[test]
fn a_screen_that_is_only_viewed_does_not_announce_texts() {
    let Some(server) = Server::start("64x48x24") else { return };
    let mut device = server.device(",view=only");
    device.until("the first picture", |screen| screen.frames == 1);
    let Some(_copy) = copy(&server, "xclip", "a secret") else { return };
    let deadline = Instant::now() + WATCHDOG;
    while owner_of(&server) == 0 {
        assert!(Instant::now() < deadline, "nobody copies");
    }
    device.partner.ctl(device.out, contract::Ctl::Snapshot).unwrap();
    device.until("a whole picture", |screen| screen.frames == 2);
    assert_eq!(device.screen.texts, []);
}

/// The worker of the device is killed: its successor has an empty clipboard.
#[test]
fn a_device_that_starts_again_gets_the_newest_text_again() {
    let Some(mut desk) = Desk::new("") else { return };
    desk.focus(true);
    let Some(_ours) = desk.cross(false, "xclip", "of the application host") else { return };
    desk.device = desk.here.device("");
    desk.device.screen.held = Some(Vec::new());
    desk.viewer.partner.ctl(desk.viewer.inputs, contract::Ctl::Snapshot).unwrap();
    desk.until_owner_is_not(true, 0);
    desk.expect(true, "xclip", "of the application host");
    // A newer text of the device is not replaced.
    let Some(_theirs) = desk.cross(true, "xclip", "of the device host") else { return };
    desk.viewer.partner.ctl(desk.viewer.inputs, contract::Ctl::Snapshot).unwrap();
    desk.settle();
    desk.expect(true, "xclip", "of the device host");
}

/// Only the last of many copies crosses, and the earlier ones cause no traffic.
#[test]
fn the_last_of_many_quick_copies_crosses() {
    let Some(mut desk) = Desk::new("") else { return };
    desk.focus(false);
    let mut owner = Owner::new(&desk.here);
    for _ in 0..500 {
        owner.copy();
    }
    let Some(_last) = copy(&desk.here, "xclip", "the last") else { return };
    desk.until("an announcement", |desk| desk.announcements > 0);
    desk.focus(true);
    desk.until_owner_is_not(false, 0);
    desk.expect(false, "xclip", "the last");
    assert!(desk.fetches <= desk.announcements, "{} fetches", desk.fetches);
}

fn atom(client: &mut Client, name: &str) -> Atom {
    let name = name.as_bytes().into();
    let request = client.query(InternAtomRequest { only_if_exists: false, name }.serialize());
    wait_reply::<InternAtomReply>(client, request, Instant::now() + WATCHDOG).unwrap().atom
}

/// Returns the window of the program that owns a screen's clipboard.
fn owner_of(server: &Server) -> Window {
    let mut painter = server.painter();
    let selection = atom(&mut painter.client, "CLIPBOARD");
    let request = painter.client.query(GetSelectionOwnerRequest { selection }.serialize());
    let deadline = Instant::now() + WATCHDOG;
    wait_reply::<GetSelectionOwnerReply>(&mut painter.client, request, deadline).unwrap().owner
}

/// A program that owns the clipboard, and answers as the test says.
struct Owner {
    painter: Painter,
    clipboard: Atom,
    utf8: Atom,
    incr: Atom,
}

impl Owner {
    fn new(server: &Server) -> Owner {
        let mut painter = server.painter();
        let [clipboard, utf8, incr] =
            ["CLIPBOARD", "UTF8_STRING", "INCR"].map(|name| atom(&mut painter.client, name));
        Owner { painter, clipboard, utf8, incr }
    }

    fn copy(&mut self) {
        let (owner, selection, time) = (self.painter.root, self.clipboard, 0);
        let own = self.painter.client.send(SetSelectionOwnerRequest { owner, selection, time }.serialize());
        self.painter.done(own);
    }

    /// Returns the next event of a kind, while the device runs.
    fn event(&mut self, device: &mut Device, code: u8) -> [u8; 32] {
        let deadline = Instant::now() + WATCHDOG;
        loop {
            assert!(Instant::now() < deadline, "no event {code}");
            run(device);
            self.painter.client.flush().unwrap();
            self.painter.client.receive().unwrap();
            while let Some(packet) = self.painter.client.next_packet().unwrap() {
                if let Packet::Event(event) = packet
                    && event[0] & 0x7f == code
                {
                    return event;
                }
            }
        }
    }

    fn request(&mut self, device: &mut Device) -> SelectionRequestEvent {
        parse(&self.event(device, SELECTION_REQUEST_EVENT)).unwrap()
    }

    fn put(&mut self, request: &SelectionRequestEvent, type_: Atom, data: &[u8]) {
        let format = if type_ == self.incr { 32 } else { 8 };
        let (window, property, mode) = (request.requestor, request.property, PropMode::REPLACE);
        let data_len = (data.len() * 8 / usize::from(format)) as u32;
        let data = data.into();
        self.painter.client.send(
            ChangePropertyRequest { mode, window, property, type_, format, data_len, data }.serialize(),
        );
    }

    fn notify(&mut self, request: &SelectionRequestEvent, property: Atom) {
        let event = SelectionNotifyEvent {
            response_type: SELECTION_NOTIFY_EVENT,
            sequence: 0,
            time: request.time,
            requestor: request.requestor,
            selection: request.selection,
            target: request.target,
            property,
        };
        let (propagate, destination) = (false, request.requestor);
        let event_mask = EventMask::NO_EVENT;
        let event = std::borrow::Cow::Owned(event.into());
        self.painter.client.send(SendEventRequest { propagate, destination, event_mask, event }.serialize());
        self.painter.client.flush().unwrap();
    }

    /// Waits until the device has taken the last piece.
    fn until_deleted(&mut self, device: &mut Device, request: &SelectionRequestEvent) {
        loop {
            let event: PropertyNotifyEvent = parse(&self.event(device, PROPERTY_NOTIFY_EVENT)).unwrap();
            if event.atom == request.property && event.state == Property::DELETE {
                return;
            }
        }
    }

    /// Watches the properties of the device's window.
    fn watch(&mut self, request: &SelectionRequestEvent) {
        let values = ChangeWindowAttributesAux::new().event_mask(EventMask::PROPERTY_CHANGE);
        let (window, value_list) = (request.requestor, std::borrow::Cow::Owned(values));
        self.painter.client.send(ChangeWindowAttributesRequest { window, value_list }.serialize());
    }
}

/// Lets a device process the packets that have arrived.
fn run(device: &mut Device) {
    while let Pulled::Message(_, message) = device.partner.pull(device.out, Pull::Yours).unwrap() {
        device.screen.take(message);
    }
}

/// Returns a device whose viewer fetches each text that is announced.
fn fetch(device: &mut Device) {
    let announced = device.screen.texts.len();
    device.until("the announcement", |screen| screen.texts.len() > announced);
    device.push(Event::Fetch);
}

#[test]
fn owners_that_misbehave_do_not_stop_the_clipboard() {
    let Some(server) = Server::start("64x48x24") else { return };
    let (mut device, mut owner) = (server.device(""), Owner::new(&server));
    device.until("the first picture", |screen| screen.frames == 1);
    let (utf8, incr, string) = (owner.utf8, owner.incr, Atom::from(AtomEnum::STRING));
    let copied = |owner: &mut Owner, device: &mut Device| {
        owner.copy();
        fetch(device);
        owner.request(device)
    };
    // It never answers. The next copy does not wait for it.
    let silent = copied(&mut owner, &mut device);
    // It refuses every target.
    for target in [utf8, string] {
        let request = match target == utf8 {
            true => copied(&mut owner, &mut device),
            false => owner.request(&mut device),
        };
        assert_eq!(request.target, target);
        owner.notify(&request, 0);
    }
    // Its text is too long, in one piece and in many. It is of another type. It has no text, but a late answer.
    let request = copied(&mut owner, &mut device);
    owner.watch(&request);
    owner.put(&request, incr, &[0; 4]);
    owner.notify(&request, request.property);
    owner.until_deleted(&mut device, &request);
    for _ in 0..9 {
        owner.put(&request, utf8, &vec![b'x'; 1 << 17]);
        owner.until_deleted(&mut device, &request);
    }
    owner.put(&request, utf8, &[]);
    owner.until_deleted(&mut device, &request);
    let request = copied(&mut owner, &mut device);
    owner.put(&request, AtomEnum::CARDINAL.into(), b"numbers");
    owner.notify(&request, request.property);
    let request = copied(&mut owner, &mut device);
    owner.notify(&request, request.property);
    owner.put(&silent, utf8, b"late");
    owner.notify(&silent, silent.property);
    let texts = |device: &Device| device.screen.texts.iter().flatten().cloned().collect::<Vec<_>>();
    assert_eq!(texts(&device), [""; 0]);
    // After all of that, texts arrive: in pieces, with the last one empty, and in Latin-1.
    let request = copied(&mut owner, &mut device);
    owner.watch(&request);
    owner.put(&request, incr, &[0; 4]);
    owner.notify(&request, request.property);
    owner.until_deleted(&mut device, &request);
    // A letter is divided.
    for piece in [&"世界".as_bytes()[..2], &"世界".as_bytes()[2..], &[]] {
        owner.put(&request, utf8, piece);
        owner.until_deleted(&mut device, &request);
    }
    device.until("the pieces", |screen| screen.texts.contains(&Some("世界".into())));
    let request = copied(&mut owner, &mut device);
    owner.notify(&request, 0);
    let request = owner.request(&mut device);
    owner.put(&request, string, b"d\xe9j\xe0 vu");
    owner.notify(&request, request.property);
    device.until("the text in Latin-1", |screen| screen.texts.contains(&Some("déjà vu".into())));
    assert_eq!(texts(&device), ["世界", "déjà vu"]);
}

#[test]
fn text_is_offered_on_the_clipboard() {
    let Some(server) = Server::start("64x48x24") else { return };
    let (mut painter, mut device) = (server.painter(), server.device(""));
    device.until("the first picture", |screen| screen.frames == 1);
    device.push(Event::Text("déjà vu".into()));
    device.push(Event::Refresh);
    device.until("the refresh", |screen| screen.frames == 2);
    let deadline = Instant::now() + WATCHDOG;
    let client = &mut painter.client;
    let [clipboard, utf8, property] = ["CLIPBOARD", "UTF8_STRING", "HERE"].map(|name| atom(client, name));
    for (selection, target, expected) in [
        (clipboard, utf8, "déjà vu".as_bytes()),
        (AtomEnum::PRIMARY.into(), AtomEnum::STRING.into(), b"d\xe9j\xe0 vu"),
    ] {
        let (requestor, time) = (painter.root, 0);
        painter
            .client
            .send(ConvertSelectionRequest { requestor, selection, target, property, time }.serialize());
        let got = loop {
            let (window, type_, delete) = (painter.root, 0, true);
            let get = GetPropertyRequest { delete, window, property, type_, long_offset: 0, long_length: 99 };
            let request = painter.client.query(get.serialize());
            let reply: GetPropertyReply = wait_reply(&mut painter.client, request, deadline).unwrap();
            if reply.type_ == target {
                break reply.value;
            }
            device.step().unwrap();
        };
        assert_eq!(got, expected);
    }
}

/// VNC viewers send an empty text when a picture is copied.
#[test]
fn an_empty_text_leaves_the_clipboard_to_its_owner() {
    let Some(server) = Server::start("64x48x24") else { return };
    let (mut device, mut owner) = (server.device(""), Owner::new(&server));
    device.until("the first picture", |screen| screen.frames == 1);
    owner.copy();
    device.push(Event::Text(String::new()));
    device.push(Event::Refresh);
    device.until("the refresh", |screen| screen.frames == 2);
    assert_eq!(owner_of(&server), owner.painter.root);
    assert_eq!(device.figure("inputs refused"), 0.0);
}

/// The text is longer than one request may be.
#[test]
fn an_unmodified_program_pastes_a_long_text() {
    let Some(server) = Server::start("64x48x24") else { return };
    let mut device = server.device("");
    device.until("the first picture", |screen| screen.frames == 1);
    let text = "Grüße, 世界 🦀\n".repeat(wire::formats::viewer::TEXT_BYTES_MAX / 22);
    device.push(Event::Text(text.clone()));
    device.push(Event::Refresh);
    device.until("the refresh", |screen| screen.frames == 2);
    // Toolkits prefer the last name.
    for target in ["UTF8_STRING", "TEXT", "text/plain;charset=utf-8"] {
        let Some(thread) = paste(&server, "xclip", target) else { return };
        while !thread.is_finished() {
            run(&mut device);
        }
        assert!(thread.join().unwrap() == text, "{target}");
    }
    assert_eq!(device.figure("inputs refused"), 0.0);
}
