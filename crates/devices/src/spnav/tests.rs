//! Tests with a daemon's socket on one side and a program on the other.

use super::device::QUEUE_MAX;
use super::protocol::{PACKET_BYTES, Packet, version_request};
use super::*;
use crate::stream::now;
use contract::{
    Attributes, Body, Ctl, CtlReply, Direction, FlowKey, FlowTemplate, Message, PartnerError, Pull, Pulled,
};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicU32, Ordering};
use testkit::partner::{Harness, conforms};
use wire::formats::motion::{AXES, Motion, Update};

/// A directory for a socket, removed when dropped.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Directory {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name =
            format!("outboard-spnav-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Directory(path)
    }

    fn socket(&self) -> PathBuf {
        self.0.join("spnav.sock")
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn template(direction: Direction) -> FlowTemplate {
    FlowTemplate { direction, format: Format::Motion, class: FlowClass::State }
}

fn opened(path: &Path, role: Role, like: Option<&Description>) -> Result<Opened, DeviceError> {
    let (class, spec) = crate::spec::parse(&format!("spnav:{}", path.display()), role).unwrap();
    class.open(&spec, role, like)
}

/// The state of a device with 2 buttons, as another host describes it.
fn description() -> Description {
    let facts = Facts { name: "SpaceNavigator".into(), ids: [0x46d, 0xc626], buttons: 2, model: 0x206 };
    let properties = emit(&facts).finish();
    let application = Spnav.application();
    Description { class: "spnav".into(), summary: facts.name, flows: flow(), application, properties }
}

fn motion(x: i32, period_us: u32) -> Vec<u8> {
    Update::Motion(Motion { axes: [x, 0, 0, 0, 0, -x], period_us }).to_bytes()
}

fn button(number: u16, pressed: bool) -> Vec<u8> {
    Update::Button { number, pressed }.to_bytes()
}

/// A daemon without a device of its own: the test sends its packets.
struct FakeDaemon {
    partner: Box<dyn Partner>,
    daemon: UnixStream,
    fed: i32,
    has_snapshot: bool,
}

impl FakeDaemon {
    fn new() -> FakeDaemon {
        let (daemon, socket) = UnixStream::pair().unwrap();
        socket.set_nonblocking(true).unwrap();
        let partner = Box::new(DaemonPartner::new("a daemon".into(), socket.into()));
        FakeDaemon { partner, daemon, fed: 0, has_snapshot: true }
    }

    fn open() -> FakeDaemon {
        let mut daemon = FakeDaemon::new();
        daemon.partner.open(&template(Direction::Out), &Attributes::default()).unwrap();
        daemon
    }

    fn send(&mut self, packet: [i32; 8]) {
        self.daemon.write_all(&Packet(packet).to_bytes()).unwrap();
    }

    fn pull(&mut self) -> Result<Vec<Update>, PartnerError> {
        let mut updates = Vec::new();
        loop {
            match self.partner.pull(FlowKey::DEFAULT, Pull::Yours)? {
                Pulled::Message(_, mut message) => {
                    updates.push(Update::parse(message.body.as_slice()).unwrap())
                }
                _ => return Ok(updates),
            }
        }
    }
}

impl Harness for FakeDaemon {
    fn partner(&mut self) -> &mut dyn Partner {
        self.partner.as_mut()
    }

    fn template(&self, direction: Direction) -> Option<FlowTemplate> {
        (direction == Direction::Out).then(|| template(direction))
    }

    fn feed(&mut self) -> Option<Vec<u8>> {
        if std::mem::take(&mut self.has_snapshot) {
            // Each opened flow begins with a snapshot.
            assert!(matches!(self.partner.pull(FlowKey::DEFAULT, Pull::Yours), Ok(Pulled::Message(..))));
        }
        self.fed += 1;
        self.send([0, self.fed, 0, 0, 0, 0, -self.fed, 16]);
        Some(motion(self.fed, if self.fed == 1 { 0 } else { 16_000 }))
    }

    fn end(&mut self) -> bool {
        false
    }

    fn body(&self, _number: u64) -> Vec<u8> {
        Vec::new()
    }

    fn taken(&mut self) -> Option<Vec<u8>> {
        None
    }
}

/// The socket, and a program that reads it.
struct FakeProgram {
    partner: Box<dyn Partner>,
    program: UnixStream,
    _directory: Directory,
}

impl FakeProgram {
    fn new() -> FakeProgram {
        let directory = Directory::new();
        let opened = opened(&directory.socket(), Role::Application, Some(&description())).unwrap();
        let partner = Spnav.partner(opened).unwrap();
        let mut program = UnixStream::connect(directory.socket()).unwrap();
        program.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        // The answer tells that the connection was accepted.
        program.write_all(&version_request()).unwrap();
        let mut word = [0; 4];
        program.read_exact(&mut word).unwrap();
        assert_eq!(word, version_request());
        FakeProgram { partner, program, _directory: directory }
    }

    fn read(&mut self) -> [i32; 8] {
        let mut bytes = [0; PACKET_BYTES];
        self.program.read_exact(&mut bytes).unwrap();
        Packet::from_bytes(&bytes).0
    }
}

impl Harness for FakeProgram {
    fn partner(&mut self) -> &mut dyn Partner {
        self.partner.as_mut()
    }

    fn template(&self, direction: Direction) -> Option<FlowTemplate> {
        (direction == Direction::In).then(|| template(direction))
    }

    fn feed(&mut self) -> Option<Vec<u8>> {
        None
    }

    fn end(&mut self) -> bool {
        false
    }

    fn body(&self, number: u64) -> Vec<u8> {
        motion(number as i32, 16_000)
    }

    fn taken(&mut self) -> Option<Vec<u8>> {
        // Motions that wait for a slow program are joined.
        None
    }
}

fn messages(bodies: &[Vec<u8>]) -> Vec<Message> {
    bodies.iter().map(|body| Message::new(now(), Body::from(body.clone()))).collect()
}

#[test]
fn a_daemon_conforms() {
    conforms(FakeDaemon::new);
}

#[test]
fn the_socket_conforms() {
    conforms(FakeProgram::new);
}

#[test]
fn a_daemon_that_loses_its_device_or_ends_leaves_it_neutral() {
    let mut daemon = FakeDaemon::open();
    let centred = Update::Snapshot { axes: [0; AXES], pressed: Vec::new() };
    daemon.send([0, 7, 0, 0, 0, 0, 0, 900]);
    daemon.send([1, 1, 1, 0, 0, 0, 0, 0]);
    // The first motion after a rest has no duration.
    let first = Update::Motion(Motion { axes: [7, 0, 0, 0, 0, 0], period_us: 0 });
    let press = Update::Button { number: 1, pressed: true };
    assert_eq!(daemon.pull().unwrap(), [centred.clone(), first, press]);
    let is_neutral = daemon.partner.ctl(FlowKey::DEFAULT, Ctl::IsNeutral);
    assert!(matches!(is_neutral, Ok(CtlReply::Count(0))), "{is_neutral:?}");
    daemon.send([3, 1, 0, 6, 0x46d, 0xc626, 0, 0]);
    assert_eq!(daemon.pull().unwrap(), std::slice::from_ref(&centred));
    daemon.send([0, 9, 0, 0, 0, 0, 0, 16]);
    daemon.daemon.shutdown(std::net::Shutdown::Both).unwrap();
    assert!(daemon.partner.pull(FlowKey::DEFAULT, Pull::Ask).is_ok());
    let mut last = None;
    let error = loop {
        match daemon.partner.pull(FlowKey::DEFAULT, Pull::Yours) {
            Ok(Pulled::Message(_, message)) => last = Some(message.body.into_bytes()),
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(error, PartnerError::Gone(_)), "{error}");
    assert_eq!(last.map(|body| body.to_vec()), Some(centred.to_bytes()));
}

#[test]
fn a_queue_that_nobody_reads_becomes_a_snapshot() {
    let mut daemon = FakeDaemon::open();
    let mut updates = Vec::new();
    for round in 0..40 {
        for x in 0..100 {
            daemon.send([0, round * 100 + x, 0, 0, 0, 0, 0, 8]);
        }
        // One message leaves for the hundred that arrive.
        match daemon.partner.pull(FlowKey::DEFAULT, Pull::Yours).unwrap() {
            Pulled::Message(_, mut message) => updates.push(Update::parse(message.body.as_slice()).unwrap()),
            other => panic!("{other:?}"),
        }
    }
    let snapshots = updates.iter().filter(|update| matches!(update, Update::Snapshot { .. })).count();
    // The first one opens the flow.
    assert!(snapshots > 1, "{updates:?}");
    updates.extend(daemon.pull().unwrap());
    assert!(updates.len() <= 40 + QUEUE_MAX, "{}", updates.len());
    let last = Update::Motion(Motion { axes: [3999, 0, 0, 0, 0, 0], period_us: 8000 });
    assert_eq!(updates.last(), Some(&last));
}

#[test]
fn programs_see_motions_buttons_and_snapshots() {
    let mut program = FakeProgram::new();
    let snapshot = Update::Snapshot { axes: [0, 5, 0, 0, 0, 0], pressed: vec![0] }.to_bytes();
    push_motion(&mut program, &[motion(3, 16_499), button(1, true), button(1, true), snapshot]);
    assert_eq!(program.read(), [0, 3, 0, 0, 0, 0, -3, 16]);
    assert_eq!(program.read(), [1, 1, 1, 0, 0, 0, 0, 0]);
    assert_eq!(program.read(), [2, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(program.read(), [1, 0, 1, 0, 0, 0, 0, 0]);
    assert_eq!(program.read(), [0, 0, 5, 0, 0, 0, 0, 0]);
    program.partner.ctl(FlowKey::DEFAULT, Ctl::Neutral).unwrap();
    assert_eq!(program.read(), [2, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(program.read(), [0; 8]);
}

fn push_motion(program: &mut FakeProgram, bodies: &[Vec<u8>]) {
    let flow = program.partner.open(&template(Direction::In), &Attributes::default()).unwrap();
    for message in messages(bodies) {
        program.partner.push(flow, message).unwrap();
    }
}

#[test]
fn a_slow_program_gets_its_motions_joined_and_no_button_lost() {
    const MOTIONS: i32 = 100_000;
    let mut program = FakeProgram::new();
    let mut bodies: Vec<Vec<u8>> = Vec::new();
    for x in 1..=MOTIONS {
        bodies.push(motion(x, 1000));
        if x % 10_000 == 0 {
            bodies.extend([button(0, true), button(0, false)]);
        }
    }
    push_motion(&mut program, &bodies);
    let (mut period_ms, mut buttons, mut x) = (0, 0, 0);
    while x < MOTIONS || buttons < 20 {
        match program.read() {
            [0, position, .., period] => (x, period_ms) = (position, period_ms + period),
            [1 | 2, 0, ..] => buttons += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((x, period_ms, buttons), (MOTIONS, MOTIONS, 20));
}

#[test]
fn both_sides_understand_each_other() {
    let directory = Directory::new();
    let application = opened(&directory.socket(), Role::Application, Some(&description())).unwrap();
    let mut application_partner = Spnav.partner(application.try_clone().unwrap()).unwrap();
    let device = opened(&directory.socket(), Role::Device, None).unwrap();
    assert_eq!(facts_of(&device.description).unwrap(), facts_of(&description()).unwrap());
    assert_eq!(device.description.summary, "SpaceNavigator (3d-mouse)");
    let mut device_partner = Spnav.partner(device).unwrap();
    device_partner.open(&template(Direction::Out), &Attributes::default()).unwrap();
    let flow = application_partner.open(&template(Direction::In), &Attributes::default()).unwrap();
    for message in messages(&[motion(4, 0), button(1, true)]) {
        application_partner.push(flow, message).unwrap();
    }
    let mut received = Vec::new();
    while received.len() < 3 {
        if let Pulled::Message(_, message) = device_partner.pull(FlowKey::DEFAULT, Pull::Yours).unwrap() {
            received.push(message.body.into_bytes().to_vec());
        }
    }
    assert_eq!(received[1..], [motion(4, 0), button(1, true)]);

    let second = opened(&directory.socket(), Role::Application, None).unwrap_err().to_string();
    assert!(second.contains("another program listens there") && second.contains("spnav:PATH"), "{second}");
    drop(application_partner);
    Spnav.release(&application);
    assert!(!directory.socket().exists());
}

#[test]
fn a_socket_that_a_killed_process_left_is_replaced_and_a_file_is_not() {
    let directory = Directory::new();
    drop(UnixListener::bind(directory.socket()).unwrap());
    let application = opened(&directory.socket(), Role::Application, None).unwrap();
    drop(application);
    fs::remove_file(directory.socket()).unwrap();
    fs::write(directory.socket(), "text").unwrap();
    let refused = opened(&directory.socket(), Role::Application, None).unwrap_err().to_string();
    assert!(refused.contains("no socket"), "{refused}");
    assert_eq!(fs::read(directory.socket()).unwrap(), b"text");
}

#[test]
fn a_daemon_of_version_0_is_used_without_its_facts() {
    let directory = Directory::new();
    let listener = UnixListener::bind(directory.socket()).unwrap();
    let daemon = std::thread::spawn(move || {
        let (mut program, _) = listener.accept().unwrap();
        let mut words = [0; 8];
        program.read_exact(&mut words).unwrap();
        words
    });
    let device = opened(&directory.socket(), Role::Device, None).unwrap();
    assert_eq!(device.description.summary, "3D mouse (3d-mouse)");
    let words = daemon.join().unwrap();
    assert_eq!(words, [version_request(), 1.0_f32.to_ne_bytes()].concat().as_slice());
}

#[test]
fn a_socket_of_another_protocol_is_refused() {
    let directory = Directory::new();
    let missing = opened(&directory.socket(), Role::Device, None).unwrap_err().to_string();
    assert!(missing.contains("spacenavd does not run"), "{missing}");
    let listener = UnixListener::bind(directory.socket()).unwrap();
    let server = std::thread::spawn(move || listener.accept().unwrap().0.write_all(b"HTTP/1.1 400\r\n\r\n"));
    let refused = opened(&directory.socket(), Role::Device, None).unwrap_err().to_string();
    assert!(refused.contains("is it the socket of spacenavd?"), "{refused}");
    server.join().unwrap().unwrap();
}

#[test]
fn a_description_from_the_network_is_checked() {
    assert_eq!(Spnav.kind(&description()).unwrap(), Kind::Mouse3d);
    for properties in [Vec::new(), vec![0xff; 3], [emit(&Facts::default()).finish(), vec![0]].concat()] {
        let described = Description { properties, ..description() };
        assert!(Spnav.kind(&described).is_err());
    }
    let many = Facts { buttons: BUTTONS_MAX + 1, ..Facts::default() };
    let described = Description { properties: emit(&many).finish(), ..description() };
    assert!(Spnav.kind(&described).is_err());
}
