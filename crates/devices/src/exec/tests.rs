use crate::file::tests::Scratch;
use crate::spec;
use crate::stream::tests::{FarStream, open, pull_all, push_all};
use contract::{
    Attributes, Ctl, CtlReply, DeviceClass, DeviceSpec, Direction, FlowClass, FlowKey, FlowTemplate, Format,
    Message, Opened, Partner, PartnerError, Presence, Pull, Pulled, Role, Time,
};
use std::fs::{self, File};
use std::io::Write;
use std::time::{Duration, Instant};
use testkit::partner::{Harness, conforms};
use wire::formats::motion::Update;
use wire::{Container, ModuleFrame};

/// A program that copies from or to a FIFO.
struct FarProgram {
    stream: FarStream,
    _scratch: Scratch,
}

impl Harness for FarProgram {
    fn partner(&mut self) -> &mut dyn Partner {
        self.stream.partner()
    }

    fn template(&self, direction: Direction) -> Option<FlowTemplate> {
        self.stream.template(direction)
    }

    fn feed(&mut self) -> Option<Vec<u8>> {
        self.stream.feed()
    }

    fn end(&mut self) -> bool {
        // Closing the last descriptor of a FIFO discards its bytes: the program must have read them.
        let read = |file: &std::fs::File| rustix::io::ioctl_fionread(file).unwrap() == 0;
        eventually(|| self.stream.feeder.as_ref().is_none_or(read));
        self.stream.end()
    }

    fn body(&self, number: u64) -> Vec<u8> {
        self.stream.body(number)
    }

    fn seen(&self, body: &[u8]) -> Vec<u8> {
        self.stream.seen(body)
    }

    fn taken(&mut self) -> Option<Vec<u8>> {
        self.stream.taken()
    }
}

fn eventually(mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(60), "the condition never holds");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_program_that_writes_conforms() {
    conforms(|| {
        let scratch = Scratch::new();
        let (path, held) = scratch.fifo("feed");
        let partner = open(&format!("exec:cat {path}"), Role::Device);
        FarProgram { stream: FarStream::new(partner, Some(held), None), _scratch: scratch }
    });
}

#[test]
fn a_program_that_reads_conforms() {
    conforms(|| {
        let scratch = Scratch::new();
        let (path, held) = scratch.fifo("taken");
        let partner = open(&format!("exec:cat > {path}"), Role::Application);
        FarProgram { stream: FarStream::new(partner, None, Some(held)), _scratch: scratch }
    });
}

#[test]
fn output_is_pulled_to_its_end_and_a_failed_exit_is_an_error() {
    let mut good = open("exec:printf 'a\\nb\\n',frame=line", Role::Device);
    let bodies: Vec<_> = pull_all(good.as_mut()).unwrap().into_iter().map(|m| m.body.into_bytes()).collect();
    assert_eq!(bodies, [&b"a\n"[..], b"b\n"]);
    let error = pull_all(open("exec:echo x; exit 3", Role::Device).as_mut()).unwrap_err();
    assert!(error.to_string().contains("exited with status 3"), "{error}");
}

#[test]
fn finish_waits_for_the_programs_exit() {
    let scratch = Scratch::new();
    let path = scratch.path("out");
    let mut sink =
        open(&format!("exec:cat > {path}.part && sleep 0.2 && mv {path}.part {path}"), Role::Application);
    let key = push_all(sink.as_mut(), &[Message::new(Time(1), b"work".to_vec())]);
    eventually(|| matches!(sink.ctl(key, Ctl::Finish).unwrap(), CtlReply::Done));
    assert_eq!(std::fs::read(&path).unwrap(), b"work");
}

#[test]
fn unread_output_does_not_block_the_input() {
    let mut sink = open("exec:tee /dev/null", Role::Application);
    let key = push_all(sink.as_mut(), &[]);
    let chunk = Message::new(Time(1), vec![b'x'; 64 << 10]);
    for _ in 0..64 {
        eventually(|| matches!(sink.push(key, chunk.clone()).unwrap(), contract::Pushed::Taken));
    }
    eventually(|| matches!(sink.ctl(key, Ctl::Finish).unwrap(), CtlReply::Done));
}

#[test]
fn unread_output_is_no_message_and_has_no_end() {
    for (prints, frame) in [("echo some words of text;", "container"), ("yes &", "line")] {
        let spec = format!("exec:{prints} cat >/dev/null,frame={frame}");
        let mut sink = open(&spec, Role::Application);
        let key = push_all(sink.as_mut(), &[]);
        let message = Message::new(Time(1), vec![b'x'; 1000]);
        for _ in 0..64 {
            eventually(|| matches!(sink.push(key, message.clone()).unwrap(), contract::Pushed::Taken));
        }
        eventually(|| matches!(sink.ctl(key, Ctl::Finish).unwrap(), CtlReply::Done));
    }
}

#[test]
fn dropping_kills_all_processes_of_the_program() {
    let scratch = Scratch::new();
    let path = scratch.path("pid");
    // The program waits for its process, or exits before it.
    for rest in ["wait", "true"] {
        let partner = open(&format!("exec:sleep 1000 & echo $$ $! > {path}; {rest}"), Role::Device);
        let mut pids = String::new();
        eventually(|| {
            pids = fs::read_to_string(&path).unwrap_or_default();
            pids.ends_with('\n')
        });
        fs::remove_file(&path).unwrap();
        let (shell, other) = pids.trim().split_once(' ').unwrap();
        // An ended process may be a zombie until its parent reaps it.
        let has_ended = |pid: &str| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
            stat.map_or(true, |stat| stat.contains(") Z "))
        };
        eventually(|| rest == "wait" || has_ended(shell));
        assert!(!has_ended(other));
        drop(partner);
        eventually(|| has_ended(other));
    }
}

#[test]
fn the_output_of_a_process_that_outlives_its_program_flows() {
    let scratch = Scratch::new();
    let (path, held) = scratch.fifo("feed");
    let mut device = open(&format!("exec:cat {path} & exit 0"), Role::Device);
    let key = open_out(device.as_mut(), Format::Bytes, FlowClass::Reliable);
    let mut feed = File::from(held);
    for word in [b"one", b"two"] {
        feed.write_all(word).unwrap();
        assert_eq!(pull(device.as_mut(), key).unwrap().unwrap().body.into_bytes(), &word[..]);
    }
    // The program exited long ago, so its status is known at the end of the output.
    drop(feed);
    assert!(pull(device.as_mut(), key).unwrap().is_none());
}

fn hello(role: &str, format: &str, values: &[(&str, &str)]) -> Vec<u8> {
    let options = values.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    ModuleFrame::Hello { version: wire::MODULE_VERSION, role: role.into(), format: format.into(), options }
        .emit(0)
}

/// The spec of a program that writes `frames` to descriptor 3 and then runs `rest`.
fn declared(scratch: &Scratch, frames: &[u8], rest: &str) -> String {
    let path = scratch.path("frames");
    fs::write(&path, frames).unwrap();
    format!("exec:cat {path} >&3; {rest},frame=declared")
}

#[test]
fn a_declared_device_conforms() {
    conforms(|| {
        let scratch = Scratch::new();
        let (path, held) = scratch.fifo("feed");
        let spec = declared(&scratch, &hello("device", "bytes", &[]), &format!("exec cat {path}"));
        let stream = FarStream::new(open(&spec, Role::Device), Some(held), None);
        FarProgram { stream: FarStream { in_containers: true, ..stream }, _scratch: scratch }
    });
}

#[test]
fn a_declared_application_conforms() {
    conforms(|| {
        let scratch = Scratch::new();
        let (path, held) = scratch.fifo("taken");
        let spec = declared(&scratch, &hello("application", "bytes", &[]), &format!("exec cat > {path}"));
        let stream = FarStream::new(open(&spec, Role::Application), None, Some(held));
        FarProgram { stream: FarStream { in_containers: true, ..stream }, _scratch: scratch }
    });
}

fn opened(text: &str, role: Role) -> Result<(&'static dyn DeviceClass, DeviceSpec, Opened), String> {
    let (class, spec) = spec::parse(text, role).map_err(|error| error.to_string())?;
    let opened = class.open(&spec, role, None).map_err(|error| error.to_string())?;
    Ok((class, spec, opened))
}

#[test]
fn a_program_without_a_valid_hello_is_refused_and_killed() {
    let scratch = Scratch::new();
    let frame = |kind: u8, length: u32| [&length.to_le_bytes()[..], &[kind], &[0; 8]].concat();
    let other_version =
        ModuleFrame::Hello { version: 9, role: "device".into(), format: "bytes".into(), options: Vec::new() };
    for (frames, rest, words) in [
        (Vec::new(), "exec 3>&-; exec sleep 1000", "closed descriptor 3 without a hello"),
        (Vec::new(), "exit 3", "exited with status 3, without a hello"),
        (Vec::new(), "kill -9 $$", "killed by signal 9, without a hello"),
        (b"#!/usr/bin/env python".to_vec(), "exec sleep 1000", "over the limit of"),
        (frame(1, 1 << 20), "exec sleep 1000", "over the limit of"),
        (frame(1, 0), "exec sleep 1000", "hello is invalid"),
        (frame(11, 0), "exec sleep 1000", "no hello, but Neutral"),
        (ModuleFrame::Error("no cap".into()).emit(0), "exec sleep 1000", "it reports: no cap"),
        (other_version.emit(0), "exec sleep 1000", "version 9"),
        (hello("application", "motion", &[]), "exec sleep 1000", "declares the role `application`"),
        (hello("device", "smell", &[]), "exec sleep 1000", "`smell`; there are: bytes, evdev"),
    ] {
        let pid = scratch.path("pid");
        let text = declared(&scratch, &frames, rest).replacen("exec:", &format!("exec:echo $$ >{pid}; "), 1);
        let error = opened(&text, Role::Device).err().expect("it is refused");
        assert!(error.contains(words), "{error}, not {words:?}");
        let pid: u32 = fs::read_to_string(&pid).unwrap().trim().parse().unwrap();
        let state = format!("/proc/{pid}/stat");
        eventually(|| fs::read_to_string(&state).map_or(true, |stat| stat.contains(") Z ")));
    }
}

/// Pulls until there is a message, the end or an error.
fn pull(partner: &mut dyn Partner, key: FlowKey) -> Result<Option<Message>, PartnerError> {
    let start = Instant::now();
    loop {
        match partner.pull(key, Pull::Yours)? {
            Pulled::Message(_, message) => return Ok(Some(message)),
            Pulled::End => return Ok(None),
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
        assert!(start.elapsed() < Duration::from_secs(60), "neither a message nor an end");
    }
}

fn open_out(partner: &mut dyn Partner, format: Format, class: FlowClass) -> FlowKey {
    let template = FlowTemplate { direction: Direction::Out, format, class };
    partner.open(&template, &Attributes::default()).unwrap()
}

fn container(created: u64, body: &[u8]) -> Vec<u8> {
    [&Container { length: body.len() as u32, created }.emit()[..], body].concat()
}

/// A 3D mouse whose containers and frames come from FIFOs.
struct Mouse {
    data: File,
    frames: File,
    sent: String,
    partner: Box<dyn Partner>,
    key: FlowKey,
    _scratch: Scratch,
}

impl Mouse {
    fn new() -> Mouse {
        let scratch = Scratch::new();
        let ((data_path, data), (frames_path, frames)) = (scratch.fifo("data"), scratch.fifo("more"));
        let sent = scratch.path("sent");
        let values = [("summary", "cap"), ("snapshot", "true"), ("back", "bytes")];
        let rest = format!("cat {frames_path} >&3 & cat <&3 >{sent} & exec cat {data_path}");
        let text = declared(&scratch, &hello("device", "motion", &values), &rest);
        let (class, _, opened) = opened(&text, Role::Device).unwrap();
        assert_eq!(opened.description.summary, "cap");
        let offered: Vec<_> = opened.description.flows.iter().map(|flow| flow.format.name()).collect();
        assert_eq!(offered, ["motion", "bytes"]);
        let mut partner = class.partner(opened).unwrap();
        let key = open_out(partner.as_mut(), Format::Motion, FlowClass::State);
        Mouse { data: data.into(), frames: frames.into(), sent, partner, key, _scratch: scratch }
    }

    fn say(&mut self, at: u64, frame: &ModuleFrame) {
        self.frames.write_all(&frame.emit(at)).unwrap();
    }

    fn pull(&mut self) -> Result<Option<Message>, PartnerError> {
        pull(self.partner.as_mut(), self.key)
    }

    fn error(&mut self) -> String {
        loop {
            match self.pull() {
                Ok(Some(_)) => {}
                Ok(None) => panic!("the flow ended"),
                Err(error) => return error.to_string(),
            }
        }
    }

    fn presence(&mut self) -> Presence {
        let mut found = None;
        eventually(|| {
            let _ = self.partner.pull(self.key, Pull::Ask);
            found = self.partner.presence();
            found.is_some()
        });
        found.unwrap()
    }
}

#[test]
fn an_absent_device_is_neutral_after_its_messages_until_it_is_present() {
    let mut mouse = Mouse::new();
    let pressed = Update::Button { number: 3, pressed: true }.to_bytes();
    mouse.data.write_all(&container(77, &pressed)).unwrap();
    eventually(|| matches!(mouse.partner.pull(mouse.key, Pull::Ask), Ok(Pulled::Available(_))));
    mouse.data.write_all(&container(78, &pressed)).unwrap();
    eventually(|| rustix::io::ioctl_fionread(&mouse.data).unwrap() == 0);
    std::thread::sleep(Duration::from_millis(50));
    // The frame waits for both messages, of which none has been pulled.
    mouse.say(2, &ModuleFrame::Absent("pulled".into()));
    assert_eq!(mouse.pull().unwrap().unwrap().created, Time(77));
    assert_eq!(mouse.pull().unwrap().unwrap().created, Time(78));
    let neutral = mouse.pull().unwrap().unwrap().body.into_bytes();
    assert_eq!(Update::parse(&neutral).unwrap(), Update::Snapshot { axes: [0; 6], pressed: Vec::new() });
    assert_eq!(mouse.presence(), Presence::Absent("pulled".into()));
    mouse.say(2, &ModuleFrame::Present);
    assert_eq!(mouse.presence(), Presence::Present);
    let before = crate::stream::now();
    mouse.data.write_all(&container(0, &pressed)).unwrap();
    let created = mouse.pull().unwrap().unwrap().created;
    assert!(created >= before, "a message without a time has the time of reading");
}

#[test]
fn a_snapshot_drops_the_messages_before_it_and_is_requested() {
    let mut mouse = Mouse::new();
    mouse.data.write_all(&container(1, b"stale").repeat(9)).unwrap();
    eventually(|| matches!(mouse.partner.pull(mouse.key, Pull::Ask), Ok(Pulled::Available(_))));
    eventually(|| rustix::io::ioctl_fionread(&mouse.data).unwrap() == 0);
    std::thread::sleep(Duration::from_millis(50));
    assert!(matches!(mouse.partner.ctl(mouse.key, Ctl::Snapshot), Ok(CtlReply::Done)));
    let discarded = mouse.partner.ctl(mouse.key, Ctl::Recovery(contract::RecoveryCtl::Discarded));
    assert!(matches!(discarded, Ok(CtlReply::Count(9))), "{discarded:?}");
    mouse.data.write_all(&container(2, b"fresh")).unwrap();
    assert_eq!(mouse.pull().unwrap().unwrap().created, Time(2));
    let template =
        FlowTemplate { direction: Direction::In, format: Format::Bytes, class: FlowClass::Reliable };
    let back = mouse.partner.open(&template, &Attributes::default()).unwrap();
    assert!(matches!(
        mouse.partner.push(back, Message::new(Time(1), b"x".to_vec())),
        Ok(contract::Pushed::Taken)
    ));
    assert!(matches!(mouse.partner.ctl(back, Ctl::Neutral), Ok(CtlReply::Done)));
    let expected = [ModuleFrame::Snapshot.emit(0), ModuleFrame::Neutral.emit(1)].concat();
    eventually(|| fs::read(&mouse.sent).unwrap().ends_with(&expected));
}

#[test]
fn a_frame_of_a_new_worker_has_its_place_behind_the_messages_of_a_killed_one() {
    let scratch = Scratch::new();
    let (sent, values) = (scratch.path("sent"), [("summary", "log"), ("back", "bytes")]);
    let rest = format!("cat <&3 >{sent} & exec cat >/dev/null");
    let text = declared(&scratch, &hello("device", "motion", &values), &rest);
    let (class, _, opened) = opened(&text, Role::Device).unwrap();
    let descriptors = opened.descriptors.iter().map(|descriptor| descriptor.try_clone().unwrap()).collect();
    let again =
        Opened { spec: opened.spec.clone(), description: opened.description.clone(), descriptors, ..opened };
    for opened in [opened, again] {
        let mut partner = class.partner(opened).unwrap();
        let template =
            FlowTemplate { direction: Direction::In, format: Format::Bytes, class: FlowClass::Reliable };
        let back = partner.open(&template, &Attributes::default()).unwrap();
        for _ in 0..3 {
            let pushed = partner.push(back, Message::new(Time(1), b"x".to_vec()));
            assert!(matches!(pushed, Ok(contract::Pushed::Taken)));
        }
        assert!(matches!(partner.ctl(back, Ctl::Neutral), Ok(CtlReply::Done)));
        // A killed worker closes nothing in order.
        std::mem::forget(partner);
    }
    let places = [ModuleFrame::Neutral.emit(3), ModuleFrame::Neutral.emit(6)].concat();
    eventually(|| fs::read(&sent).is_ok_and(|sent| sent.ends_with(&places)));
}

#[test]
fn a_program_that_breaks_a_rule_fails_with_its_name() {
    type Break = fn(&mut Mouse);
    let cases: [(Break, &str); 7] = [
        (|mouse| mouse.data.write_all(&[0xff; 64]).unwrap(), "not a container"),
        (
            |mouse| (0..65).for_each(|_| mouse.say(0, &ModuleFrame::Unknown(200))),
            "more than 64 control frames",
        ),
        (|mouse| mouse.frames.write_all(&[0xff; 13]).unwrap(), "over the limit"),
        (|mouse| mouse.frames.write_all(&[0, 0]).unwrap(), "a part of a control frame"),
        (|mouse| mouse.say(0, &ModuleFrame::Error("broken".into())), "it reports: broken"),
        (|mouse| mouse.frames.write_all(&hello("device", "video", &[])).unwrap(), "other flows than before"),
        (
            |mouse| {
                mouse.say(0, &ModuleFrame::Absent(String::new()));
                assert_eq!(mouse.presence(), Presence::Absent("unplugged".into()));
                mouse.data.write_all(&container(1, b"x")).unwrap();
            },
            "while its device is absent",
        ),
    ];
    for (breaks, words) in cases {
        let mut mouse = Mouse::new();
        breaks(&mut mouse);
        let error = mouse.error();
        assert!(error.starts_with("`cat ") && error.contains(words), "{error}, not {words:?}");
        assert_eq!(mouse.error(), error, "the error is permanent");
    }
}

#[test]
fn a_program_that_closes_its_control_frames_must_exit() {
    let scratch = Scratch::new();
    let text = declared(&scratch, &hello("device", "bytes", &[]), "exec 3>&-; exec sleep 1000");
    let mut partner = open(&text, Role::Device);
    let key = open_out(partner.as_mut(), Format::Bytes, FlowClass::Reliable);
    let error = pull(partner.as_mut(), key).unwrap_err().to_string();
    assert!(error.contains("closed descriptor 3"), "{error}");
    let text = declared(&scratch, &hello("device", "bytes", &[]), "exit 4");
    let error = pull_all(open(&text, Role::Device).as_mut()).unwrap_err().to_string();
    assert!(error.contains("exited with status 4"), "{error}");
}

#[test]
fn a_killed_worker_loses_no_message_unless_it_had_read_a_part_of_one() {
    let scratch = Scratch::new();
    let (path, held) = scratch.fifo("feed");
    let mut feed = File::from(held);
    let text = declared(&scratch, &hello("device", "bytes", &[]), &format!("exec cat {path}"));
    let (class, _, opened) = opened(&text, Role::Device).unwrap();
    let next_worker = || {
        let mut partner = class.partner(opened.try_clone().unwrap()).unwrap();
        let key = open_out(partner.as_mut(), Format::Bytes, FlowClass::Reliable);
        (partner, key)
    };
    let large = vec![7; 50_000];
    feed.write_all(&[container(1, b"one"), container(2, b"two"), container(3, &large)].concat()).unwrap();
    for expected in [&b"one"[..], b"two", &large] {
        let (mut partner, key) = next_worker();
        assert!(pull(partner.as_mut(), key).unwrap().unwrap().body.into_bytes() == expected);
        // A killed worker runs no destructor.
        std::mem::forget(partner);
    }
    feed.write_all(&container(4, b"four")[..9]).unwrap();
    let (mut partner, key) = next_worker();
    eventually(|| {
        assert!(matches!(partner.pull(key, Pull::Yours), Ok(Pulled::Nothing)));
        matches!(partner.ctl(key, Ctl::Recovery(contract::RecoveryCtl::ReadAhead)), Ok(CtlReply::Count(9)))
    });
    std::mem::forget(partner);
    let (mut partner, key) = next_worker();
    let error = pull(partner.as_mut(), key).unwrap_err();
    assert!(matches!(error, PartnerError::Gone(_)), "{error}");
}
