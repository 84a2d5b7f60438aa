use super::*;
use crate::file::tests::Scratch;
use crate::pattern::Numbered;
use crate::serial::marks::MarkDecoder;
use crate::stream::tests::read_available;
use contract::{
    Attributes, Body, Ctl, CtlReply, Direction, FlowKey, FlowTemplate, Message, Pull, Pulled, Pushed, Time,
};
use proptest::prelude::*;
use rustix::termios::LocalModes;
use std::fs::File;
use std::io::{Read, Write};
use std::process::Command;
use std::time::{Duration, Instant};
use testkit::partner::{Harness, conforms};

/// Returns a raw pseudo-terminal, which acts as a serial line.
pub(crate) fn raw_pair() -> (OwnedFd, OwnedFd) {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = openpt(flags).unwrap();
    unlockpt(&master).unwrap();
    let slave = ioctl_tiocgptpeer(&master, flags).unwrap();
    let mut termios = tcgetattr(&slave).unwrap();
    termios.make_raw();
    tcsetattr(&slave, OptionalActions::Now, &termios).unwrap();
    (master, slave)
}

/// A partner on one end of a line, the test on the other.
struct FarLine {
    partner: Box<dyn Partner>,
    far: File,
    fed: u64,
    /// Keeps the line up.
    _near: Option<OwnedFd>,
}

fn serial_template(direction: Direction) -> FlowTemplate {
    FlowTemplate { direction, format: Format::Serial, class: FlowClass::Reliable }
}

impl Harness for FarLine {
    fn partner(&mut self) -> &mut dyn Partner {
        self.partner.as_mut()
    }

    fn template(&self, direction: Direction) -> Option<FlowTemplate> {
        Some(serial_template(direction))
    }

    fn feed(&mut self) -> Option<Vec<u8>> {
        self.fed += 1;
        let line = format!("line {}", self.fed);
        self.far.write_all(line.as_bytes()).unwrap();
        Some(data(line.as_bytes()))
    }

    fn end(&mut self) -> bool {
        false
    }

    fn body(&self, number: u64) -> Vec<u8> {
        data(format!("{number:0200}").as_bytes())
    }

    fn seen(&self, body: &[u8]) -> Vec<u8> {
        body[1..].to_vec()
    }

    fn taken(&mut self) -> Option<Vec<u8>> {
        Some(read_available(&mut self.far))
    }
}

fn data(bytes: &[u8]) -> Vec<u8> {
    [&[0], bytes].concat()
}

fn data_body(bytes: &[u8]) -> Body {
    Body::from(data(bytes))
}

/// Returns a port on a raw pseudo-terminal. It is not opened by its class, which would open it exclusively.
fn port() -> FarLine {
    let (master, slave) = raw_pair();
    rustix::io::ioctl_fionbio(&master, true).unwrap();
    let near = slave.try_clone().unwrap();
    let partner = Box::new(Port::new("port".into(), Channel::own(slave).unwrap()));
    FarLine { partner, far: master.into(), fed: 0, _near: Some(near) }
}

/// Returns the partner of a pseudo-terminal that programs open by `path`.
fn terminal_at(path: &str, like: Option<&Description>) -> Box<dyn Partner> {
    let (class, spec) = crate::spec::parse(&format!("pty:{path}"), Role::Application).unwrap();
    let opened = class.open(&spec, Role::Application, like).unwrap_or_else(|error| panic!("{error}"));
    class.partner(opened).unwrap()
}

fn program_opens(path: &str) -> File {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).unwrap().into()
}

fn terminal() -> (FarLine, Scratch) {
    let scratch = Scratch::new();
    let path = scratch.path("tty");
    let partner = terminal_at(&path, None);
    (FarLine { partner, far: program_opens(&path), fed: 0, _near: None }, scratch)
}

fn open_flow(partner: &mut dyn Partner, direction: Direction) -> FlowKey {
    partner.open(&serial_template(direction), &Attributes::default()).unwrap()
}

/// Pulls until a message arrives.
fn pull(partner: &mut dyn Partner, key: FlowKey) -> SerialMessage {
    let start = Instant::now();
    loop {
        match partner.pull(key, Pull::Yours).unwrap() {
            Pulled::Message(_, message) => return SerialMessage::parse(&message.body).unwrap(),
            Pulled::Nothing => std::thread::sleep(Duration::from_millis(1)),
            other => panic!("{other:?}"),
        }
        assert!(start.elapsed() < Duration::from_secs(60), "no message arrives");
    }
}

fn push(partner: &mut dyn Partner, key: FlowKey, body: Body) {
    let start = Instant::now();
    let mut message = Message::new(Time(1), body);
    while let Pushed::Full(back) = partner.push(key, message).unwrap() {
        message = back;
        std::thread::sleep(Duration::from_millis(1));
        assert!(start.elapsed() < Duration::from_secs(60), "the partner stays full");
    }
}

fn flush(partner: &mut dyn Partner) {
    let start = Instant::now();
    while let CtlReply::Pending = partner.ctl(FlowKey::DEFAULT, Ctl::Flush).unwrap() {
        std::thread::sleep(Duration::from_millis(1));
        assert!(start.elapsed() < Duration::from_secs(60), "the flush never ends");
    }
}

fn change(terminal: &File, change: impl FnOnce(&mut Termios)) {
    let mut termios = tcgetattr(terminal).unwrap();
    change(&mut termios);
    tcsetattr(terminal, OptionalActions::Now, &termios).unwrap();
}

fn speed(baud: u32) -> Settings {
    Settings { speed: Some(Speed { input_baud: baud, output_baud: baud }), ..Settings::default() }
}

fn baud_of(message: SerialMessage) -> u32 {
    match message {
        SerialMessage::Settings(Settings { speed: Some(speed), .. }) => speed.output_baud,
        other => panic!("no speed: {other:?}"),
    }
}

fn has_extproc(terminal: &File) -> bool {
    tcgetattr(terminal).unwrap().local_modes.contains(LocalModes::EXTPROC)
}

#[test]
fn a_port_conforms() {
    conforms(port);
}

#[test]
fn a_terminal_conforms() {
    conforms(|| {
        let (line, scratch) = terminal();
        // The program has opened the terminal and needs the link no longer.
        drop(scratch);
        line
    });
}

#[test]
fn an_unmodified_stty_sets_the_speed_before_the_data_that_follows() {
    let (mut line, scratch) = terminal();
    let key = open_flow(line.partner(), Direction::Out);
    for baud in ["9600", "230400", "300"] {
        let output = Command::new("stty").args(["-F", &scratch.path("tty"), baud]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        line.far.write_all(b"after").unwrap();
        assert_eq!(baud_of(pull(line.partner(), key)).to_string(), baud);
        assert_eq!(pull(line.partner(), key), SerialMessage::Data(Body::from(&b"after"[..])));
    }
}

#[test]
fn speed_stop_bits_and_flow_control_are_sent() {
    let (mut line, _scratch) = terminal();
    let key = open_flow(line.partner(), Direction::Out);
    change(&line.far, |termios| {
        termios.set_speed(123_457).unwrap();
        termios.control_modes.insert(ControlModes::CSTOPB | ControlModes::CRTSCTS);
        termios.input_modes.insert(InputModes::IXON);
    });
    let expected = Settings {
        stop_bits: Some(2),
        flow: Some(FlowControl { xon_output: true, xoff_input: false, rts_cts: true }),
        ..speed(123_457)
    };
    assert_eq!(pull(line.partner(), key), SerialMessage::Settings(expected));
    change(&line.far, |termios| {
        termios.set_input_speed(75).unwrap();
        termios.set_output_speed(1200).unwrap();
    });
    let SerialMessage::Settings(settings) = pull(line.partner(), key) else { panic!("no settings") };
    assert_eq!(settings.speed, Some(Speed { input_baud: 75, output_baud: 1200 }));
}

#[test]
fn a_change_without_data_makes_the_terminal_ready() {
    let (mut line, _scratch) = terminal();
    let key = open_flow(line.partner(), Direction::Out);
    assert!(matches!(line.partner().pull(key, Pull::Ask).unwrap(), Pulled::Nothing));
    change(&line.far, |termios| termios.set_speed(4800).unwrap());
    let mut poller = sys::poller::Poller::new().unwrap();
    for (descriptor, _) in line.partner().readiness(key, Direction::Out).descriptors.into_iter().flatten() {
        poller.register(descriptor, true, false);
    }
    assert!(poller.wait(Some(Duration::from_secs(60))).unwrap(), "the kernel reports no change");
    assert!(matches!(line.partner().pull(key, Pull::Ask).unwrap(), Pulled::Available(_)));
}

/// A program may open the terminal before the worker creates its partner.
#[test]
fn settings_from_before_the_partner_are_sent() {
    let scratch = Scratch::new();
    let path = scratch.path("tty");
    let (class, spec) = crate::spec::parse(&format!("pty:{path}"), Role::Application).unwrap();
    let opened = class.open(&spec, Role::Application, None).unwrap();
    change(&program_opens(&path), |termios| termios.set_speed(1200).unwrap());
    let mut partner = class.partner(opened).unwrap();
    let key = open_flow(partner.as_mut(), Direction::Out);
    assert_eq!(baud_of(pull(partner.as_mut(), key)), 1200);
}

#[test]
fn extproc_is_set_again_after_a_program_clears_it() {
    let (mut line, _scratch) = terminal();
    let key = open_flow(line.partner(), Direction::Out);
    change(&line.far, |termios| termios.local_modes.remove(LocalModes::EXTPROC));
    change(&line.far, |termios| termios.set_speed(19_200).unwrap());
    assert_eq!(baud_of(pull(line.partner(), key)), 19_200);
    let start = Instant::now();
    while !has_extproc(&line.far) {
        assert!(matches!(line.partner().pull(key, Pull::Ask).unwrap(), Pulled::Nothing));
        assert!(start.elapsed() < Duration::from_secs(60), "EXTPROC stays off");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_program_in_cooked_mode_gets_lines_and_echo() {
    let (mut line, _scratch) = terminal();
    let out = open_flow(line.partner(), Direction::Out);
    let into = open_flow(line.partner(), Direction::In);
    change(&line.far, |termios| {
        termios.local_modes.insert(LocalModes::ICANON | LocalModes::ECHO);
        termios.input_modes.insert(InputModes::ICRNL);
        termios.set_speed(2400).unwrap();
    });
    assert_eq!(baud_of(pull(line.partner(), out)), 2400);
    assert!(!has_extproc(&line.far), "EXTPROC would disable line editing");
    push(line.partner(), into, data_body(b"hel"));
    push(line.partner(), into, data_body(b"lo\r"));
    let mut echo = Vec::new();
    while echo != b"hello\n" {
        let SerialMessage::Data(more) = pull(line.partner(), out) else { panic!("unexpected settings") };
        echo.extend_from_slice(&more.into_bytes());
        assert!(b"hello\n".starts_with(&echo), "the echo: {echo:?}");
    }
    let mut line_read = [0; 100];
    assert_eq!(line.far.read(&mut line_read).unwrap(), 6);
    assert_eq!(&line_read[..6], b"hello\n");
    change(&line.far, |termios| termios.make_raw());
    let start = Instant::now();
    while !has_extproc(&line.far) {
        let _ = line.partner().pull(out, Pull::Ask).unwrap();
        assert!(start.elapsed() < Duration::from_secs(60), "EXTPROC stays off");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn programs_may_close_and_reopen_the_terminal() {
    let (mut line, scratch) = terminal();
    let out = open_flow(line.partner(), Direction::Out);
    let into = open_flow(line.partner(), Direction::In);
    for round in 0..3 {
        line.far = program_opens("/dev/null");
        assert!(matches!(line.partner().pull(out, Pull::Ask).unwrap(), Pulled::Nothing));
        push(line.partner(), into, data_body(b"while it was closed"));
        line.far = program_opens(&scratch.path("tty"));
        let expected = b"while it was closed";
        let (start, mut got) = (Instant::now(), Vec::new());
        while got.len() < expected.len() {
            got.extend(read_available(&mut line.far));
            assert!(start.elapsed() < Duration::from_secs(60), "round {round}: only {got:?}");
        }
        assert_eq!(got, expected);
    }
}

#[test]
fn a_program_that_used_the_terminal_exclusively_leaves_it_to_the_next() {
    // TIOCGEXCL: the administrator may open the terminal in any case.
    const ASK: &str = "import fcntl, os, sys; terminal = os.open(sys.argv[1], os.O_RDWR | os.O_NOCTTY); \
                       print(fcntl.ioctl(terminal, 0x80045440, bytes(4))[0])";
    let (mut line, scratch) = terminal();
    let path = scratch.path("tty");
    let is_free = || Command::new("python3").args(["-c", ASK, &path]).output().unwrap().stdout == b"0\n";
    let key = open_flow(line.partner(), Direction::Out);
    rustix::termios::ioctl_tiocexcl(&line.far).unwrap();
    assert!(!is_free());
    line.far = File::open("/dev/null").unwrap();
    let _ = line.partner().pull(key, Pull::Ask).unwrap();
    assert!(is_free());
}

#[test]
fn the_terminal_shows_the_ports_settings_without_sending_them_back() {
    let settings = Settings { stop_bits: Some(2), ..speed(57_600) };
    let like = Description {
        class: "serial".into(),
        summary: String::new(),
        flows: flows(),
        application: "pty",
        properties: emit_properties(&settings, "/dev/serial/by-id/x"),
    };
    let scratch = Scratch::new();
    let path = scratch.path("tty");
    let mut partner = terminal_at(&path, Some(&like));
    let program = program_opens(&path);
    assert_eq!(tcgetattr(&program).unwrap().output_speed(), 57_600);
    let out = open_flow(partner.as_mut(), Direction::Out);
    let into = open_flow(partner.as_mut(), Direction::In);
    push(partner.as_mut(), into, SerialMessage::Settings(speed(1200)).emit());
    assert_eq!(tcgetattr(&program).unwrap().output_speed(), 1200);
    let until = Instant::now() + Duration::from_millis(250);
    while Instant::now() < until {
        assert!(matches!(partner.pull(out, Pull::Ask).unwrap(), Pulled::Nothing));
    }
    partner.ctl(FlowKey::DEFAULT, Ctl::Snapshot).unwrap();
    assert_eq!(baud_of(pull(partner.as_mut(), out)), 1200);
}

#[test]
fn a_port_changes_its_settings_after_the_data_before_them() {
    let mut line = port();
    let near = line._near.take().unwrap();
    let into = open_flow(line.partner(), Direction::In);
    // More than the line accepts at once.
    let before = vec![b'x'; 200_000];
    push(line.partner(), into, data_body(&before));
    let first = tcgetattr(&near).unwrap().output_speed();
    let mut got = Vec::new();
    let start = Instant::now();
    let mut message = Message::new(Time(1), SerialMessage::Settings(speed(1_000_001)).emit());
    while let Pushed::Full(back) = line.partner.push(into, message).unwrap() {
        assert_eq!(tcgetattr(&near).unwrap().output_speed(), first, "set while data waits");
        got.extend(read_available(&mut line.far));
        message = back;
        assert!(start.elapsed() < Duration::from_secs(60), "the partner stays full");
    }
    push(line.partner(), into, data_body(b"after"));
    assert_eq!(tcgetattr(&near).unwrap().output_speed(), 1_000_001);
    flush(line.partner());
    while got.len() < before.len() + 5 {
        got.extend(read_available(&mut line.far));
        assert!(start.elapsed() < Duration::from_secs(60), "bytes are lost: {}", got.len());
    }
    assert_eq!(got, [&before[..], b"after"].concat());
}

#[test]
fn the_actual_value_of_a_refused_setting_is_sent_back() {
    let mut line = port();
    let out = open_flow(line.partner(), Direction::Out);
    let into = open_flow(line.partner(), Direction::In);
    // A pseudo-terminal stays at 8 data bits without parity.
    let wanted = Settings { data_bits: Some(7), parity: Some(Parity::Even), ..speed(9600) };
    push(line.partner(), into, SerialMessage::Settings(wanted).emit());
    flush(line.partner());
    let actual = Settings { data_bits: Some(8), parity: Some(Parity::None), ..speed(9600) };
    assert_eq!(pull(line.partner(), out), SerialMessage::Settings(actual));
}

/// A pseudo-terminal has no modem lines, so only the order and the times of the changes can be seen here; `tests/vm/journey-serial-lines`
/// has a port with lines.
#[test]
fn changes_of_lines_wait_for_the_bytes_before_them_and_keep_their_spacing() {
    let mut line = port();
    let into = open_flow(line.partner(), Direction::In);
    let outputs = |dtr, since_us| {
        let lines = OutputLines { dtr, rts: false, breaks: false };
        SerialMessage::Outputs(Outputs { lines, since_us }).emit()
    };
    push(line.partner(), into, data_body(b"before"));
    let start = Instant::now();
    push(line.partner(), into, outputs(true, Outputs::UNRELATED));
    assert!(start.elapsed() >= spacing::HOLD_MIN, "the first change is held");
    assert!(matches!(line.partner().ctl(FlowKey::DEFAULT, Ctl::IsNeutral), Ok(CtlReply::Count(0))));
    let first = Instant::now();
    push(line.partner(), into, outputs(false, 100_000));
    // The first change may have been made a moment before the push returned.
    assert!(first.elapsed() >= Duration::from_millis(50), "{:?}", first.elapsed());
    push(line.partner(), into, data_body(b"after"));
    push(line.partner(), into, outputs(true, Outputs::UNRELATED));
    line.partner().ctl(FlowKey::DEFAULT, Ctl::Neutral).unwrap();
    assert!(matches!(line.partner().ctl(FlowKey::DEFAULT, Ctl::IsNeutral), Ok(CtlReply::Count(1))));
    assert_eq!(read_available(&mut line.far), b"beforeafter");
    let wrong = SerialMessage::Inputs(Inputs::default()).emit();
    let refused = line.partner().push(into, Message::new(Time(1), wrong));
    assert!(matches!(refused, Err((contract::PartnerError::Message(_), _))), "{refused:?}");
}

#[test]
fn a_pseudo_terminal_gets_faulty_bytes_as_data_and_no_lines() {
    let (mut line, _scratch) = terminal();
    let into = open_flow(line.partner(), Direction::In);
    let messages = [
        SerialMessage::Inputs(Inputs { cts: true, ..Inputs::default() }),
        SerialMessage::Fault(Fault::Corrupt, Body::from(&b"x"[..])),
        SerialMessage::Fault(Fault::Break, Body::from(&b"\0"[..])),
        SerialMessage::Data(Body::from(&b"y"[..])),
    ];
    for message in messages {
        push(line.partner(), into, message.emit());
    }
    let (start, mut got) = (Instant::now(), Vec::new());
    while got.len() < 3 {
        got.extend(read_available(&mut line.far));
        assert!(start.elapsed() < Duration::from_secs(60), "only {got:?}");
    }
    assert_eq!(got, b"x\0y");
}

#[test]
fn a_port_that_was_unplugged_is_gone() {
    let mut line = port();
    let out = open_flow(line.partner(), Direction::Out);
    line.far = program_opens("/dev/null");
    let answer = line.partner().pull(out, Pull::Yours);
    assert!(matches!(answer, Err(contract::PartnerError::Gone(_))), "{answer:?}");
}

/// Carries messages between two partners in both directions until `stop`.
fn join(mut a: Box<dyn Partner>, mut b: Box<dyn Partner>, stop: std::sync::mpsc::Receiver<()>) {
    let keys = [&mut a, &mut b]
        .map(|p| (open_flow(p.as_mut(), Direction::Out), open_flow(p.as_mut(), Direction::In)));
    let mut held: [Option<Message>; 2] = [None, None];
    while stop.try_recv().is_err() {
        let mut progress = false;
        for direction in 0..2 {
            let (from, to) = if direction == 0 { (&mut a, &mut b) } else { (&mut b, &mut a) };
            let (from_key, to_key) = (keys[direction].0, keys[1 - direction].1);
            let message =
                held[direction].take().or_else(|| match from.pull(from_key, Pull::Yours).unwrap() {
                    Pulled::Message(_, message) => Some(message),
                    _ => None,
                });
            if let Some(message) = message {
                match to.push(to_key, message).unwrap() {
                    Pushed::Taken => progress = true,
                    Pushed::Full(back) => held[direction] = Some(back),
                }
            }
            to.ctl(FlowKey::DEFAULT, Ctl::Flush).unwrap();
        }
        if !progress {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut noise = vec![0; bytes];
    crate::pattern::Content { size: bytes, seed }.fill(seed, &mut noise);
    noise
}

/// Sends `sent` and receives as many bytes at the same time, on a blocking terminal.
fn exchange(terminal: File, sent: Vec<u8>, expected: usize) -> std::thread::JoinHandle<Vec<u8>> {
    rustix::io::ioctl_fionbio(&terminal, false).unwrap();
    let mut writer = terminal.try_clone().unwrap();
    std::thread::spawn(move || {
        let writing = std::thread::spawn(move || {
            for piece in sent.chunks(1000) {
                writer.write_all(piece).unwrap();
            }
        });
        let mut got = vec![0; expected];
        let mut terminal = terminal;
        terminal.read_exact(&mut got).unwrap();
        writing.join().unwrap();
        got
    })
}

#[test]
fn a_megabyte_in_both_directions_arrives_unchanged() {
    const BYTES: usize = 1 << 20;
    let device = port();
    let (application, _scratch) = terminal();
    let (stop, stopped) = std::sync::mpsc::channel();
    let (near, port_partner, far_end) = (device._near, device.partner, device.far);
    // The side that finishes first must not hang up.
    let kept = (far_end.try_clone().unwrap(), application.far.try_clone().unwrap());
    let joining = std::thread::spawn(move || join(port_partner, application.partner, stopped));
    let (down, up) = (noise(1, BYTES), noise(2, BYTES));
    let (done, finished) = std::sync::mpsc::channel();
    let expected = (down.clone(), up.clone());
    std::thread::spawn(move || {
        let at_device = exchange(far_end, down, BYTES);
        let at_program = exchange(application.far, up, BYTES);
        let _ = done.send((at_program.join(), at_device.join()));
    });
    let (at_program, at_device) =
        finished.recv_timeout(Duration::from_secs(60)).expect("the exchange stalls");
    assert!(at_program.unwrap() == expected.0, "device to program");
    assert!(at_device.unwrap() == expected.1, "program to device");
    stop.send(()).unwrap();
    joining.join().unwrap();
    drop((near, kept));
}

#[test]
fn partners_of_another_format_exchange_plain_bytes() {
    let mut line = port();
    let template = crate::stream::tests::template;
    let out = line.partner().open(&template(Direction::Out), &Attributes::default()).unwrap();
    let into = line.partner().open(&template(Direction::In), &Attributes::default()).unwrap();
    line.far.write_all(b"plain").unwrap();
    let start = Instant::now();
    let got = loop {
        match line.partner().pull(out, Pull::Yours).unwrap() {
            Pulled::Message(_, message) => break message.body,
            _ => assert!(start.elapsed() < Duration::from_secs(60), "nothing came"),
        }
    };
    assert_eq!(got, Body::from(&b"plain"[..]));
    push(line.partner(), into, Body::from(&b"\x07raw"[..]));
    let mut seen = Vec::new();
    while seen.len() < 4 {
        seen.extend(read_available(&mut line.far));
        assert!(start.elapsed() < Duration::from_secs(60), "only {seen:?}");
    }
    assert_eq!(seen, b"\x07raw");
}

#[test]
fn a_link_replaces_only_stale_links_and_is_removed_with_its_terminal() {
    let scratch = Scratch::new();
    let path = scratch.path("tty");
    let refusal = || {
        let (class, spec) = crate::spec::parse(&format!("pty:{path}"), Role::Application).unwrap();
        class.open(&spec, Role::Application, None).unwrap_err().to_string()
    };
    let first = terminal_at(&path, None);
    let target = std::fs::read_link(&path).unwrap();
    assert!(refusal().contains("its terminal still exists"), "{}", refusal());
    assert_eq!(std::fs::read_link(&path).unwrap(), target, "the link of the first terminal");
    drop(first);
    assert!(std::fs::symlink_metadata(&path).is_err(), "the link stays");
    std::os::unix::fs::symlink("/dev/pts/999999", &path).unwrap();
    let second = terminal_at(&path, None);
    assert!(std::fs::read_link(&path).unwrap().exists(), "the stale link stays");
    drop(second);
    for make in [
        |path: &str| std::fs::write(path, "precious"),
        |path: &str| std::os::unix::fs::symlink("/etc/hostname", path),
    ] {
        make(&path).unwrap();
        let error = refusal();
        assert!(error.contains(&path) && error.contains("remove it"), "{error}");
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn a_terminal_without_a_path_is_named_in_its_description() {
    let (class, spec) = crate::spec::parse("pty", Role::Application).unwrap();
    let opened = class.open(&spec, Role::Application, None).unwrap();
    assert!(opened.description.summary.contains("/dev/pts/"), "{}", opened.description.summary);
}

#[test]
fn a_port_is_opened_raw_with_the_options_and_described() {
    let (master, slave) = raw_pair();
    let path = pts_path(&master).unwrap();
    change(&slave.try_clone().unwrap().into(), |t| {
        t.local_modes.insert(LocalModes::ICANON | LocalModes::ECHO)
    });
    let text = format!("serial:{},baud=31250,stop=2,flow=rtscts", path.display());
    let (class, spec) = crate::spec::parse(&text, Role::Device).unwrap();
    let opened = class.open(&spec, Role::Device, None).unwrap_or_else(|error| panic!("{error}"));
    let (settings, identity) = parse_properties(&opened.description.properties).unwrap();
    assert_eq!((settings.stop_bits, identity.as_str()), (Some(2), ""));
    assert!(opened.description.summary.contains("31250 baud"), "{}", opened.description.summary);
    assert!(!tcgetattr(&slave).unwrap().local_modes.intersects(LocalModes::ICANON | LocalModes::ECHO));
    let known = opened.description.clone();
    drop(opened);
    assert_eq!(class.reopen(&spec, Role::Device, &known).unwrap().description, known);
}

#[test]
fn a_raw_port_keeps_the_settings_that_no_option_gives() {
    let (_master, slave) = raw_pair();
    let mut termios = tcgetattr(&slave).unwrap();
    let xon_xoff = FlowControl { xon_output: true, xoff_input: true, rts_cts: false };
    let before = Settings {
        data_bits: Some(7),
        parity: Some(Parity::Even),
        stop_bits: Some(2),
        flow: Some(xon_xoff),
        speed: None,
    };
    let settings = |termios: &Termios| Settings { speed: None, ..Settings::from_port(termios) };
    before.apply(&mut termios).unwrap();
    prepare_port(&mut termios, &Settings::default()).unwrap();
    assert_eq!(settings(&termios), before);
    let given = Settings { parity: Some(Parity::None), ..Settings::default() };
    prepare_port(&mut termios, &given).unwrap();
    assert_eq!(settings(&termios), Settings { parity: Some(Parity::None), ..before });

    let xon_alone = FlowControl { xoff_input: false, ..xon_xoff };
    Settings { flow: Some(xon_alone), ..before }.apply(&mut termios).unwrap();
    prepare_port(&mut termios, &Settings::default()).unwrap();
    assert_eq!(settings(&termios).flow, Some(FlowControl::default()), "binary data keeps all bytes");
}

#[test]
fn a_file_that_is_not_a_serial_port_is_refused_with_advice() {
    for (text, expected) in [("serial:/nonexistent", "outboard devices"), ("serial:/dev/null", "serial port")]
    {
        let (class, spec) = crate::spec::parse(text, Role::Device).unwrap();
        let error = class.open(&spec, Role::Device, None).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    assert!(advice(Errno::ACCESS).contains("dialout") && advice(Errno::PERM).contains("DeviceAllow="));
}

#[test]
fn the_listing_contains_only_ports() {
    for listing in Serial.list() {
        assert!(listing.spec.starts_with("serial:/dev/tty"), "{listing:?}");
    }
}

#[test]
fn messages_have_the_documented_bytes() {
    let settings = Settings {
        speed: Some(Speed { input_baud: 9600, output_baud: 115_200 }),
        data_bits: Some(7),
        parity: Some(Parity::Even),
        stop_bits: Some(1),
        flow: Some(FlowControl { xon_output: true, xoff_input: false, rts_cts: true }),
    };
    let rts = OutputLines { dtr: false, rts: true, breaks: false };
    let all = OutputLines { dtr: true, rts: true, breaks: true };
    let messages = [
        SerialMessage::Data(Body::from(&b"ab"[..])),
        SerialMessage::Settings(settings),
        SerialMessage::Outputs(Outputs { lines: rts, since_us: 100_000 }),
        SerialMessage::Outputs(Outputs { lines: all, since_us: Outputs::UNRELATED }),
        SerialMessage::Inputs(Inputs { cts: true, dsr: false, dcd: true, ri: false }),
        SerialMessage::Fault(Fault::Break, Body::from(&b"\0"[..])),
        SerialMessage::Fault(Fault::Corrupt, Body::from(&b"x"[..])),
    ];
    let page = include_str!("../../../../docs/reference/formats-serial.md");
    let (_, vectors) = page.split_once("## Vectors").unwrap();
    let hex = |row: &str| {
        let digits: String = row.split('`').rev().nth(1).unwrap().replace(' ', "");
        let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
        (0..digits.len()).step_by(2).map(byte).collect::<Vec<u8>>()
    };
    let rows: Vec<_> = vectors.lines().filter(|line| line.ends_with("` |")).map(hex).collect();
    assert_eq!(rows.len(), messages.len());
    for (message, bytes) in messages.into_iter().zip(rows) {
        assert_eq!(SerialMessage::parse(&Body::from(bytes.clone())).unwrap(), message);
        assert_eq!(message.emit(), Body::from(bytes));
    }
}

fn any_settings() -> impl Strategy<Value = Settings> {
    let speed =
        (any::<u32>(), any::<u32>()).prop_map(|(input_baud, output_baud)| Speed { input_baud, output_baud });
    let parity =
        prop::sample::select(vec![Parity::None, Parity::Odd, Parity::Even, Parity::Mark, Parity::Space]);
    let flow = any::<(bool, bool, bool)>().prop_map(|(xon_output, xoff_input, rts_cts)| FlowControl {
        xon_output,
        xoff_input,
        rts_cts,
    });
    let option = prop::option::of::<BoxedStrategy<_>>;
    (
        option(speed.boxed()),
        prop::option::of(5u8..=8),
        prop::option::of(parity),
        prop::option::of(1u8..=2),
        prop::option::of(flow),
    )
        .prop_map(|(speed, data_bits, parity, stop_bits, flow)| Settings {
            speed,
            data_bits,
            parity,
            stop_bits,
            flow,
        })
}

proptest! {
    #[test]
    fn encoded_settings_decode_to_the_same(settings in any_settings()) {
        let body = SerialMessage::Settings(settings).emit();
        prop_assert_eq!(SerialMessage::parse(&body).unwrap(), SerialMessage::Settings(settings));
    }

    #[test]
    fn any_bytes_that_decode_encode_to_the_same(
        kind in 0u8..6,
        bytes in prop::collection::vec(prop_oneof![0u8..9, any::<u8>()], 0..20),
    ) {
        let body = Body::from([&[kind], &bytes[..]].concat());
        if let Ok(message) = SerialMessage::parse(&body) {
            prop_assert_eq!(message.emit(), body);
        }
        prop_assert!(SerialMessage::parse(&Body::new()).is_err());
    }

    #[test]
    fn marked_bytes_are_decoded_in_pieces_of_any_size(
        bytes in prop::collection::vec((prop_oneof![Just(0u8), Just(0xff), any::<u8>()], 0u8..3), 0..50),
        cuts in prop::collection::vec(1usize..5, 1..50),
    ) {
        // Bytes without a fault, with one, and breaks, as the kernel marks them.
        let fault = |(byte, kind): &(u8, u8)| match (kind, byte) {
            (0, _) => (*byte, None),
            (1, 1..) => (*byte, Some(Fault::Corrupt)),
            _ => (0, Some(Fault::Break)),
        };
        let expected: Vec<_> = bytes.iter().map(fault).collect();
        let marked: Vec<u8> = expected.iter().flat_map(|(byte, fault)| match fault {
            Some(_) => vec![0xff, 0, *byte],
            None if *byte == 0xff => vec![0xff; 2],
            None => vec![*byte],
        }).collect();
        let (mut decoder, mut messages, mut rest) = (MarkDecoder::default(), Default::default(), &marked[..]);
        for cut in cuts.iter().cycle() {
            let (piece, behind) = rest.split_at(rest.len().min(*cut));
            decoder.decode(contract::Bytes::copy_from_slice(piece), &mut messages);
            rest = behind;
            if rest.is_empty() {
                break;
            }
        }
        let found: Vec<_> = messages.into_iter().flat_map(|message| {
            let (fault, body) = match message {
                SerialMessage::Data(body) => (None, body),
                SerialMessage::Fault(fault, body) => (Some(fault), body),
                other => panic!("{other:?}"),
            };
            body.into_bytes().to_vec().into_iter().map(move |byte| (byte, fault))
        }).collect();
        prop_assert_eq!(found, expected);
        prop_assert_eq!(decoder.held_bytes(), 0);
    }

    #[test]
    fn any_description_that_decodes_encodes_to_the_same(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        if let Ok((settings, identity)) = parse_properties(&bytes) {
            prop_assert_eq!(emit_properties(&settings, &identity), bytes);
        }
    }

    #[test]
    fn applied_settings_are_read_back(settings in any_settings()) {
        let (_master, slave) = raw_pair();
        let mut termios = tcgetattr(&slave).unwrap();
        settings.apply(&mut termios).unwrap();
        let mut expected = settings;
        // Equal speeds are stored as one.
        if let Some(speed) = settings.speed
            && speed.input_baud == speed.output_baud
        {
            expected.speed = Some(Speed { input_baud: 0, ..speed });
        }
        prop_assert_eq!(Settings::from_port(&termios).restricted_to(&settings), expected);
    }
}
