//! Tests of both partners on real sockets: the conformance suite, and a client connected to a server.

use super::Rfb;
use crate::file::tests::Scratch;
use crate::spec;
use crate::stream::now;
use crate::stream::tests::template;
use contract::{
    Body, Ctl, CtlReply, DeviceClass, Direction, FlowKey, FlowTemplate, Format, Message, Opened, Partner,
    PartnerError, Pull, Pulled, Pushed, Role, Time,
};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use testkit::partner::{Harness, conforms};
use wire::formats::video::{Content, Geometry, Header, PixelFormat, Rectangle};
use wire::formats::viewer::Event;

const SIDE: u32 = 24;

fn frame(shade: u64) -> Vec<u8> {
    frame_of(SIDE, shade)
}

fn frame_of(side: u32, shade: u64) -> Vec<u8> {
    let geometry = Geometry::new(PixelFormat::Bgrx32, side, side).unwrap();
    let pixels =
        (0..geometry.bytes() as u64 / 4).flat_map(|at| [at as u8, shade as u8, (shade >> 8) as u8, 0]);
    Header::frame(geometry).emit().into_iter().chain(pixels).collect()
}

fn key(number: u64) -> Event {
    Event::Key { keysym: 0x20 + number as u32 / 2, pressed: number.is_multiple_of(2) }
}

/// Returns the RFB message of a key event.
fn key_bytes(event: &Event) -> Vec<u8> {
    let Event::Key { keysym, pressed } = event else { panic!("{event:?}") };
    [&[4, u8::from(*pressed), 0, 0][..], &keysym.to_be_bytes()].concat()
}

fn open(text: &str, role: Role) -> Opened {
    let (_, spec) = spec::parse(text, role).unwrap();
    Rfb.open(&spec, role, None).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// Starts a server at a free port. Returns it with its address.
fn serve(options: &str) -> (Box<dyn Partner>, String) {
    let opened = open(&format!("rfb:0{options}"), Role::Application);
    let address = opened.description.summary.rsplit(' ').next().unwrap().to_string();
    (Rfb.partner(opened).unwrap(), address)
}

fn of(direction: Direction, format: Format) -> FlowTemplate {
    FlowTemplate { format, ..template(direction) }
}

/// A server, and a viewer after the handshake.
struct Serving {
    partner: Box<dyn Partner>,
    viewer: TcpStream,
    fed: u64,
}

impl Serving {
    fn new() -> Serving {
        let (partner, address) = serve("");
        let mut viewer = TcpStream::connect(address).unwrap();
        viewer.write_all(b"RFB 003.008\n\x01\x01").unwrap();
        viewer.read_exact(&mut [0; 12 + 2 + 4]).unwrap();
        Serving { partner, viewer, fed: 0 }
    }
}

impl Harness for Serving {
    fn partner(&mut self) -> &mut dyn Partner {
        self.partner.as_mut()
    }

    fn template(&self, direction: Direction) -> Option<FlowTemplate> {
        let format = if direction == Direction::In { Format::Video } else { Format::Viewer };
        Some(of(direction, format))
    }

    fn feed(&mut self) -> Option<Vec<u8>> {
        let event = key(self.fed);
        self.fed += 1;
        self.viewer.write_all(&key_bytes(&event)).unwrap();
        Some(event.to_bytes())
    }

    fn end(&mut self) -> bool {
        false
    }

    fn body(&self, number: u64) -> Vec<u8> {
        frame(number)
    }

    fn taken(&mut self) -> Option<Vec<u8>> {
        None
    }
}

/// A client, and the test's end of its connection.
struct Viewing {
    partner: Box<dyn Partner>,
    server: UnixStream,
    fed: u8,
    received: Vec<u8>,
}

impl Viewing {
    fn new() -> Viewing {
        Viewing::with("")
    }

    fn with(options: &str) -> Viewing {
        let (server, socket) = UnixStream::pair().unwrap();
        server.set_nonblocking(true).unwrap();
        let init = super::ServerInit { width: SIDE, height: SIDE, name: String::new() };
        let (_, spec) = spec::parse(&format!("rfb:server{options}"), Role::Device).unwrap();
        let partner = Box::new(super::DevicePartner::new(&spec, OwnedFd::from(socket), &init));
        Viewing { partner, server, fed: 0, received: Vec::new() }
    }
}

impl Harness for Viewing {
    fn partner(&mut self) -> &mut dyn Partner {
        self.partner.as_mut()
    }

    fn template(&self, direction: Direction) -> Option<FlowTemplate> {
        let format = if direction == Direction::In { Format::Viewer } else { Format::Video };
        Some(of(direction, format))
    }

    fn feed(&mut self) -> Option<Vec<u8>> {
        let geometry = Geometry::new(PixelFormat::Bgrx32, SIDE, SIDE).unwrap();
        self.fed += 1;
        let pixel = [self.fed, 2, 3, 0];
        self.server.write_all(&[0, 0, 0, 1, 0, 5, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0]).unwrap();
        self.server.write_all(&pixel).unwrap();
        if self.fed == 1 {
            // The first picture is whole.
            let mut pixels = vec![0; geometry.bytes()];
            pixels[20..24].copy_from_slice(&pixel);
            return Some([&Header::frame(geometry).emit()[..], &pixels].concat());
        }
        let header = Header { kind: wire::formats::video::Kind::Rectangles, geometry };
        let place = Rectangle { x: 5, y: 0, width: 1, height: 1 };
        let table = wire::formats::video::emit_rectangles(&[place]);
        Some([&header.emit()[..], &table, &pixel].concat())
    }

    fn end(&mut self) -> bool {
        false
    }

    fn body(&self, number: u64) -> Vec<u8> {
        key(number).to_bytes()
    }

    fn seen(&self, body: &[u8]) -> Vec<u8> {
        key_bytes(&Event::parse(body).unwrap())
    }

    /// Returns the key events among the client's messages.
    fn taken(&mut self) -> Option<Vec<u8>> {
        let mut buffer = [0; 4096];
        match self.server.read(&mut buffer) {
            Ok(count) => self.received.extend(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => panic!("{error}"),
        }
        let (mut keys, mut at) = (Vec::new(), 0);
        while let Some(kind) = self.received.get(at) {
            let length = match kind {
                0 => 20,
                2 => 4 + 4 * usize::from(*self.received.get(at + 3)?),
                3 => 10,
                4 => 8,
                other => panic!("a message of type {other}"),
            };
            let Some(message) = self.received.get(at..at + length) else { break };
            if *kind == 4 {
                keys.extend(message);
            }
            at += length;
        }
        self.received.drain(..at);
        Some(keys)
    }
}

#[test]
fn a_server_conforms() {
    conforms(Serving::new);
}

#[test]
fn a_client_conforms() {
    conforms(Viewing::new);
}

/// Repeats an attempt until it returns a value, for at most 20 seconds.
fn until<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    let deadline = Time(now().0 + 20_000_000_000);
    loop {
        if let Some(answer) = attempt() {
            return answer;
        }
        assert!(now() < deadline, "no result within 20 s");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

fn push(partner: &mut dyn Partner, key: FlowKey, body: Vec<u8>) {
    let mut message = Some(Message::new(now(), body));
    until(|| match partner.push(key, message.take()?).unwrap() {
        Pushed::Taken => Some(()),
        Pushed::Full(returned) => {
            message = Some(returned);
            None
        }
    });
}

fn pull(partner: &mut dyn Partner, key: FlowKey) -> Body {
    until(|| match partner.pull(key, Pull::Yours).unwrap() {
        Pulled::Message(_, message) => Some(message.body),
        Pulled::Nothing => None,
        other => panic!("{other:?}"),
    })
}

/// A server and a client that is connected to it.
struct Joined {
    server: Box<dyn Partner>,
    client: Box<dyn Partner>,
}

const OUT: FlowKey = FlowKey(1);
const IN: FlowKey = FlowKey(2);

fn opened(mut partner: Box<dyn Partner>, formats: [Format; 2]) -> Box<dyn Partner> {
    let [out, into] = formats;
    partner.open(&of(Direction::Out, out), &Default::default()).unwrap();
    partner.open(&of(Direction::In, into), &Default::default()).unwrap();
    partner
}

impl Joined {
    fn new(server_options: &str, client_options: &str) -> Joined {
        let (server, address) = serve(server_options);
        let mut server = opened(server, [Format::Viewer, Format::Video]);
        push(server.as_mut(), IN, frame(0));
        Joined { server, client: client(&address, client_options) }
    }
}

fn client(address: &str, options: &str) -> Box<dyn Partner> {
    let device = Rfb.partner(open(&format!("rfb:{address}{options}"), Role::Device)).unwrap();
    opened(device, [Format::Video, Format::Viewer])
}

/// Returns the pixels of a message with a whole picture.
fn whole(body: Body) -> Option<Vec<u8>> {
    let bytes = body.into_bytes();
    let header = Header::parse(&bytes).unwrap();
    match header.parse_content(&bytes[Header::BYTES..]).unwrap() {
        Content::Frame(pixels) => Some(pixels.to_vec()),
        _ => None,
    }
}

#[test]
fn pictures_reach_the_client_and_input_reaches_the_server() {
    let Joined { mut server, mut client } = Joined::new("", "");
    assert_eq!(whole(pull(client.as_mut(), OUT)).unwrap(), frame(0)[Header::BYTES..]);
    let mut changed = frame(0);
    changed[Header::BYTES] ^= 0xff;
    push(server.as_mut(), IN, changed.clone());
    assert_eq!(whole(pull(client.as_mut(), OUT)), None, "changes are sent as rectangles");
    client.ctl(OUT, Ctl::Snapshot).unwrap();
    until(|| (whole(pull(client.as_mut(), OUT))? == changed[Header::BYTES..]).then_some(()));

    let pressed = [Event::Key { keysym: 0x61, pressed: true }, Event::Pointer { x: 3, y: 4, buttons: 1 }];
    pressed.iter().for_each(|event| push(client.as_mut(), IN, event.to_bytes()));
    let next = |server: &mut dyn Partner| Event::parse(&pull(server, OUT).into_bytes()).unwrap();
    pressed.iter().for_each(|event| assert_eq!(next(server.as_mut()), *event));
    server.ctl(OUT, Ctl::Snapshot).unwrap();
    pressed.iter().for_each(|event| assert_eq!(next(server.as_mut()), *event, "the state again"));
    // The viewer disconnects, and the server releases its keys and buttons.
    drop(client);
    assert_eq!(next(server.as_mut()), Event::Key { keysym: 0x61, pressed: false });
    assert_eq!(next(server.as_mut()), Event::Pointer { x: 3, y: 4, buttons: 0 });
}

/// A viewer's positions that arrive together: those between two others are skipped, unless a button changed there.
#[test]
fn buttons_change_where_the_viewer_changed_them() {
    let pointer = |&(buttons, x): &(u8, u16)| [&[5, buttons][..], &x.to_be_bytes(), &[0, 7]].concat();
    let cases: [[&[(u8, u16)]; 2]; 3] = [
        [&[(1, 3), (0, 3), (0, 9)], &[(1, 3), (0, 3), (0, 9)]],
        [&[(1, 3), (1, 9), (0, 9)], &[(1, 3), (1, 9), (0, 9)]],
        [&[(0, 1), (0, 2), (0, 3), (1, 3), (1, 4), (1, 5)], &[(0, 1), (0, 3), (1, 3), (1, 5)]],
    ];
    for [sent, expected] in cases {
        let mut serving = Serving::new();
        serving.partner = opened(serving.partner, [Format::Viewer, Format::Video]);
        push(serving.partner.as_mut(), IN, frame(0));
        // The server's init message shows that the handshake is over.
        serving.viewer.read_exact(&mut [0; 2 + 2 + 16]).unwrap();
        let bytes = [sent.iter().flat_map(pointer).collect(), key_bytes(&key(0))].concat();
        serving.viewer.write_all(&bytes).unwrap();
        for &(buttons, x) in expected {
            let event = Event::Pointer { x: x.into(), y: 7, buttons: buttons.into() };
            assert_eq!(pull(serving.partner.as_mut(), OUT), Body::from(event.to_bytes()), "{sent:?}");
        }
        assert_eq!(pull(serving.partner.as_mut(), OUT), Body::from(key(0).to_bytes()), "{sent:?}");
    }
}

#[test]
fn a_new_worker_connects_again_and_gets_the_present_size() {
    let (server, address) = serve(",viewers=2");
    let mut server = opened(server, [Format::Viewer, Format::Video]);
    push(server.as_mut(), IN, frame(0));
    let mut device = open(&format!("rfb:{address}"), Role::Device);
    let killed = Rfb.partner(device.try_clone().unwrap()).unwrap();
    let mut killed = opened(killed, [Format::Video, Format::Viewer]);
    assert!(whole(pull(killed.as_mut(), OUT)).is_some());
    // It closes nothing.
    std::mem::forget(killed);
    let larger = frame_of(2 * SIDE, 1);
    push(server.as_mut(), IN, larger.clone());
    Rfb.renew(&mut device).unwrap();
    let mut next = opened(Rfb.partner(device).unwrap(), [Format::Video, Format::Viewer]);
    until(|| (whole(pull(next.as_mut(), OUT))? == larger[Header::BYTES..]).then_some(()));
}

#[test]
fn a_neutral_client_releases_its_keys() {
    let Joined { mut server, mut client } = Joined::new("", "");
    push(client.as_mut(), IN, Event::Key { keysym: 0x62, pressed: true }.to_bytes());
    client.ctl(IN, Ctl::Neutral).unwrap();
    for pressed in [true, false] {
        let event = Event::Key { keysym: 0x62, pressed };
        assert_eq!(pull(server.as_mut(), OUT), Body::from(event.to_bytes()));
    }
}

#[test]
fn a_password_is_required_and_checked() {
    let scratch = Scratch::new();
    let [right, wrong] = [("right", "sesame\n"), ("wrong", "please\n")].map(|(name, text)| {
        let path = scratch.path(name);
        std::fs::write(&path, text).unwrap();
        format!(",password_file={path}")
    });
    let mut joined = Joined::new(&right, &right);
    assert!(whole(pull(joined.client.as_mut(), OUT)).is_some());
    let (_server, address) = serve(&right);
    let (_, spec) = spec::parse(&format!("rfb:{address}{wrong}"), Role::Device).unwrap();
    let refusal = Rfb.open(&spec, Role::Device, None).unwrap_err().to_string();
    assert!(refusal.contains("the password is wrong"), "{refusal}");
}

#[test]
fn five_wrong_passwords_lock_new_viewers_out() {
    let scratch = Scratch::new();
    let [right, wrong] = [("right", "sesame\n"), ("wrong", "please\n")].map(|(name, text)| {
        let path = scratch.path(name);
        std::fs::write(&path, text).unwrap();
        format!(",password_file={path}")
    });
    let (_server, address) = serve(&right);
    let attempt = |options: &str| {
        let (_, spec) = spec::parse(&format!("rfb:{address}{options}"), Role::Device).unwrap();
        Rfb.open(&spec, Role::Device, None).map(|_| ()).map_err(|error| error.to_string())
    };
    for _ in 0..5 {
        assert!(attempt(&wrong).unwrap_err().contains("the password is wrong"));
    }
    assert!(
        !attempt(&right).unwrap_err().contains("the password is wrong"),
        "the right password is not checked either"
    );
}

#[test]
fn a_viewer_above_the_limit_is_refused() {
    let (server, address) = serve(",viewers=1");
    let mut server = opened(server, [Format::Viewer, Format::Video]);
    push(server.as_mut(), IN, frame(1));
    let mut first = client(&address, "");
    assert!(whole(pull(first.as_mut(), OUT)).is_some());
    let (_, spec) = spec::parse(&format!("rfb:{address}"), Role::Device).unwrap();
    assert!(Rfb.open(&spec, Role::Device, None).is_err());
    drop(first);
    until(|| Rfb.open(&spec, Role::Device, None).ok());
}

#[test]
fn errors_of_the_handshake_name_the_problem() {
    // A silent server, a closed connection, another protocol, an unsupported security type (VeNCrypt).
    for (sent, is_closed, timeout, expected) in [
        (&b""[..], false, "1ms", "sends nothing for 1ms"),
        (b"RFB", true, "20s", "closes the connection"),
        (b"SSH-2.0-open\n", false, "20s", "does not speak RFB"),
        (b"RFB 003.008\n\x01\x13", false, "20s", "configure it to offer one"),
    ] {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            socket.write_all(sent).unwrap();
            (!is_closed).then_some(socket)
        });
        let (_, spec) = spec::parse(&format!("rfb:{address},timeout={timeout}"), Role::Device).unwrap();
        let refusal = Rfb.open(&spec, Role::Device, None).unwrap_err().to_string();
        assert!(refusal.contains(expected), "{expected}: {refusal}");
        drop(server.join());
    }
}

/// A fence request without payload. The reply has the same length.
const FENCE: [u8; 9] = [248, 0, 0, 0, 0x80, 0, 0, 0, 0];

#[test]
fn an_update_follows_a_reply_that_was_requested_with_it() {
    let mut serving = Serving::new();
    serving.partner = opened(serving.partner, [Format::Viewer, Format::Video]);
    push(serving.partner.as_mut(), IN, frame(1));
    // Skip the server's init message.
    serving.viewer.read_exact(&mut [0; 2 + 2 + 16]).unwrap();
    let mut length = [0; 4];
    serving.viewer.read_exact(&mut length).unwrap();
    serving.viewer.read_exact(&mut vec![0; u32::from_be_bytes(length) as usize]).unwrap();
    let request = [3, 0, 0, 0, 0, 0, 0, SIDE as u8, 0, SIDE as u8];
    serving.viewer.write_all(&[&FENCE[..], &request].concat()).unwrap();
    serving.viewer.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
    let mut received = [0; 9 + 4];
    serving.viewer.read_exact(&mut received).unwrap();
    assert_eq!(received[9..], [0, 0, 0, 1]);
}

#[test]
fn a_viewer_that_reads_no_replies_is_no_longer_read() {
    let mut serving = Serving::new();
    serving.viewer.set_write_timeout(Some(std::time::Duration::from_secs(1))).unwrap();
    let fences = FENCE.repeat(1 << 12);
    let mut taken = 0;
    while let Ok(count) = serving.viewer.write(&fences) {
        taken += count;
        assert!(taken < 64 << 20, "the server stores unread replies without a limit");
    }
}

#[test]
fn a_server_that_reads_no_requests_is_an_error() {
    let mut viewing = Viewing::new();
    let partner = viewing.partner.as_mut();
    partner.open(&of(Direction::Out, Format::Video), &Default::default()).unwrap();
    // Empty updates. The client requests the next one after each.
    let updates = [0; 4].repeat(1 << 12);
    for _ in 0..1 << 12 {
        match viewing.server.write(&updates) {
            Ok(count) => assert_eq!(count % 4, 0, "an update is truncated"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        match partner.pull(OUT, Pull::Yours) {
            Ok(_) => {}
            Err(PartnerError::Peer(problem)) => {
                return assert!(problem.contains("does not read"), "{problem}");
            }
            Err(error) => panic!("{error}"),
        }
    }
    panic!("the client stores unread requests without a limit");
}

#[test]
fn all_viewers_get_the_same_picture() {
    let (server, address) = serve("");
    let mut server = opened(server, [Format::Viewer, Format::Video]);
    push(server.as_mut(), IN, frame(3));
    for mut viewer in [0, 1, 2].map(|_| client(&address, "")) {
        assert_eq!(whole(pull(viewer.as_mut(), OUT)).unwrap(), frame(3)[Header::BYTES..]);
    }
    let report = server.ctl(FlowKey::DEFAULT, Ctl::Report).unwrap();
    assert!(
        matches!(report, CtlReply::Report(figures) if figures.iter().any(|(name, n)| *name == "updates" && *n >= 3.0))
    );
}

#[test]
fn a_closed_server_is_reported_as_gone() {
    let Joined { server, mut client } = Joined::new("", "");
    pull(client.as_mut(), OUT);
    drop(server);
    until(|| match client.pull(OUT, Pull::Yours) {
        Err(PartnerError::Gone(_)) => Some(()),
        Ok(_) => None,
        Err(other) => panic!("{other}"),
    });
}

#[test]
fn an_unsupported_picture_is_refused_with_advice() {
    let (server, _) = serve("");
    let mut server = opened(server, [Format::Viewer, Format::Video]);
    let geometry = Geometry::new(PixelFormat::Mjpeg, 16, 16).unwrap();
    let film = Header::frame(geometry).emit().to_vec();
    match server.push(IN, Message::new(now(), film)) {
        Err((PartnerError::Message(problem), _)) => assert!(problem.contains("raw format"), "{problem}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn unsafe_or_incomplete_addresses_are_refused_with_advice() {
    for (text, role, expected) in [
        ("rfb:", Role::Application, "rfb:ADDRESS:PORT"),
        ("rfb:everywhere", Role::Application, "rfb:0.0.0.0:5901"),
        ("rfb:0.0.0.0:0", Role::Application, "password_file"),
        ("rfb:127.0.0.1:1", Role::Device, "port 5900 + N"),
    ] {
        let refusal = match spec::parse(text, role) {
            Ok((_, spec)) => Rfb.open(&spec, role, None).unwrap_err(),
            Err(error) => error,
        };
        assert!(refusal.to_string().contains(expected), "{text}: {refusal}");
    }
    open("rfb:0.0.0.0:0,anyone=true", Role::Application);
    open("rfb:[::1]:0", Role::Application);
}

#[test]
fn a_screen_that_is_only_viewed_refuses_all_input() {
    let mut viewing = Viewing::with(",view=only");
    let refused = viewing.partner.open(&of(Direction::In, Format::Viewer), &Default::default());
    assert!(matches!(refused, Err(PartnerError::Unsupported(_))), "{refused:?}");
    let out = viewing.partner.open(&of(Direction::Out, Format::Video), &Default::default()).unwrap();
    let mut opening = vec![0; 1 << 12];
    let count = viewing.server.read(&mut opening).unwrap();
    assert!(count > 0, "pictures are requested");
    for event in [key(0), Event::Pointer { x: 1, y: 1, buttons: 1 }, Event::Text("text".into())] {
        for flow in [FlowKey(2), FlowKey::DEFAULT, out] {
            let pushed = viewing.partner.push(flow, Message::new(Time(1), event.to_bytes()));
            assert!(pushed.is_err(), "{event:?} on {flow:?}");
        }
    }
    viewing.partner.ctl(FlowKey::DEFAULT, Ctl::Neutral).unwrap();
    let error = viewing.server.read(&mut opening).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock, "the server received input");
    let (_, spec) = spec::parse("rfb:0,view=only", Role::Application).unwrap();
    let problem = Rfb.open(&spec, Role::Application, None).unwrap_err().to_string();
    assert!(problem.contains("give it to `share`"), "{problem}");
}
