use crate::stream::tests::{FarStream, open, pull_all, push_all, read_available, template};
use contract::{Ctl, CtlReply, Direction, Message, Pull, Pulled, Pushed, Role, Time};
use rustix::fs::{CWD, FileType, Mode, OFlags};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use testkit::partner::conforms;

/// A directory that is removed on drop.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new() -> Self {
        let unique = format!("outboard-devices-{}-{}", std::process::id(), crate::stream::now().0);
        let path = std::env::temp_dir().join(unique);
        std::fs::create_dir(&path).unwrap();
        Scratch(path)
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().into()
    }

    /// Creates a FIFO and keeps it open, so that neither side waits for the other.
    pub(crate) fn fifo(&self, name: &str) -> (String, OwnedFd) {
        let path = self.path(name);
        rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let held = rustix::fs::open(&path, OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())
            .unwrap();
        (path, held)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn messages(bodies: &[&[u8]]) -> Vec<Message> {
    bodies.iter().zip(5..).map(|(body, time)| Message::new(Time(time), body.to_vec())).collect()
}

fn bodies(messages: &[Message]) -> Vec<Vec<u8>> {
    messages.iter().map(|message| message.body.clone().into_bytes().to_vec()).collect()
}

#[test]
fn a_fifo_as_a_source_conforms() {
    conforms(|| {
        let scratch = Scratch::new();
        let (path, held) = scratch.fifo("source");
        FarStream::new(open(&format!("file:{path}"), Role::Device), Some(held), None)
    });
}

#[test]
fn a_fifo_as_a_sink_conforms() {
    conforms(|| {
        let scratch = Scratch::new();
        let (path, held) = scratch.fifo("sink");
        let partner = open(&format!("file:{path},frame=container"), Role::Application);
        FarStream { in_containers: true, ..FarStream::new(partner, None, Some(held)) }
    });
}

#[test]
fn containers_written_to_a_file_are_read_with_their_times() {
    let scratch = Scratch::new();
    let path = scratch.path("recording");
    let sent = messages(&[b"one", b"", b"three"]);
    push_all(open(&format!("file:{path},frame=container"), Role::Application).as_mut(), &sent);
    let mut source = open(&format!("file:{path},frame=container"), Role::Device);
    assert_eq!(pull_all(source.as_mut()).unwrap(), sent);
}

#[test]
fn lines_and_chunks_copy_a_file() {
    let scratch = Scratch::new();
    let (from, to) = (scratch.path("from"), scratch.path("to"));
    let text = b"first\n\nthird, without an end".repeat(3000);
    std::fs::write(&from, &text).unwrap();
    for frame in ["line", "chunk(1000)", "chunk(64KiB)"] {
        let read = pull_all(open(&format!("file:{from},frame={frame}"), Role::Device).as_mut()).unwrap();
        let mut sink = open(&format!("file:{to}"), Role::Application);
        push_all(sink.as_mut(), &read);
        assert_eq!(std::fs::read(&to).unwrap(), text, "{frame}");
    }
}

#[test]
fn a_sink_empties_the_file_or_appends_to_it() {
    let scratch = Scratch::new();
    let path = scratch.path("log");
    std::fs::write(&path, "before\n").unwrap();
    let sent = messages(&[b"a", b"b\n"]);
    push_all(open(&format!("file:{path},frame=line,append=true"), Role::Application).as_mut(), &sent);
    assert_eq!(std::fs::read(&path).unwrap(), b"before\na\nb\n");
    push_all(open(&format!("file:{path}"), Role::Application).as_mut(), &sent);
    assert_eq!(std::fs::read(&path).unwrap(), b"ab\n");
}

/// A file system of one page, unmounted on drop.
struct SmallDisk(Scratch);

impl SmallDisk {
    fn mount() -> Option<SmallDisk> {
        let disk = SmallDisk(Scratch::new());
        disk.run("mount", &["-t", "tmpfs", "-o", "size=4k", "small"]).then_some(disk)
    }

    fn run(&self, program: &str, words: &[&str]) -> bool {
        let status = std::process::Command::new(program).args(words).arg(&self.0.0).status();
        status.is_ok_and(|status| status.success())
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        self.run("umount", &["--lazy"]);
    }
}

#[test]
fn a_full_disk_applies_backpressure() {
    let Some(disk) = SmallDisk::mount() else {
        return testkit::skip::until_vm("this user may mount no disk");
    };
    let path = disk.0.path("log");
    let mut sink = open(&format!("file:{path}"), Role::Application);
    let key = sink.open(&template(Direction::In), &contract::Attributes::default()).unwrap();
    let sent = messages(&[&[b'a'; 3000], &[b'b'; 3000], b"c"]);
    let mut waiting = None;
    for message in &sent {
        match sink.push(key, message.clone()).unwrap() {
            Pushed::Taken => {}
            Pushed::Full(message) => waiting = Some(message),
        }
    }
    let waiting = waiting.expect("6000 bytes do not fit on a page");
    let readiness = sink.readiness(key, Direction::In);
    assert!(!readiness.now && readiness.at.is_some(), "the disk is checked again later");
    assert!(disk.run("mount", &["-o", "remount,size=64k"]));
    while let Pushed::Full(_) = sink.push(key, waiting.clone()).unwrap() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(matches!(sink.ctl(key, Ctl::Finish), Ok(CtlReply::Done)));
    assert_eq!(std::fs::read(&path).unwrap(), bodies(&sent).concat());
}

#[test]
fn a_write_error_returns_the_message_and_names_the_file() {
    let mut sink = open("file:/dev/full", Role::Application);
    let key = sink.open(&template(Direction::In), &contract::Attributes::default()).unwrap();
    let sent = Message::new(Time(1), b"lost?".to_vec());
    let (error, back) = sink.push(key, sent.clone()).unwrap_err();
    assert_eq!(back, sent);
    assert!(error.to_string().contains("writing to /dev/full"), "{error}");
}

#[test]
fn the_error_for_a_missing_file_names_it() {
    let (class, spec) = crate::spec::parse("file:/nonexistent/x", Role::Device).unwrap();
    let error = class.open(&spec, Role::Device, None).unwrap_err();
    assert!(error.to_string().contains("opening /nonexistent/x"), "{error}");
}

#[test]
fn the_error_for_a_path_of_a_shell_or_without_its_directory_names_the_remedy() {
    let opening = |text: &str, role| {
        let (class, spec) = crate::spec::parse(text, role).unwrap();
        class.open(&spec, role, None).unwrap_err().to_string()
    };
    for role in [Role::Device, Role::Application] {
        let error = opening("file:~/no such directory/log", role);
        assert!(error.contains("write $HOME/no such directory/log in a shell"), "{error}");
    }
    let error = opening("y4m:/nonexistent/film", Role::Application);
    assert!(error.contains("the directory /nonexistent does not exist"), "{error}");
    let error = opening("file:/nonexistent/x", Role::Device);
    assert!(!error.contains("directory /nonexistent"), "{error}");
}

#[test]
fn a_truncated_recording_is_an_error_after_its_last_message() {
    let scratch = Scratch::new();
    let path = scratch.path("cut");
    push_all(
        open(&format!("file:{path},frame=container"), Role::Application).as_mut(),
        &messages(&[b"whole", b"cut short"]),
    );
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 3]).unwrap();
    let mut source = open(&format!("file:{path},frame=container"), Role::Device);
    let error = pull_all(source.as_mut()).unwrap_err();
    assert!(error.to_string().contains("/cut: the stream ends 18 bytes into a container"), "{error}");
}

#[test]
fn dev_null_is_always_ready_and_ends_at_once() {
    assert_eq!(bodies(&pull_all(open("file:/dev/null", Role::Device).as_mut()).unwrap()), [[0u8; 0]; 0]);
}

#[test]
fn closing_reports_unwritten_bytes() {
    let scratch = Scratch::new();
    let (path, held) = scratch.fifo("stuck");
    let mut sink = open(&format!("file:{path}"), Role::Application);
    let key = push_all(sink.as_mut(), &[Message::new(Time(1), vec![1; 1 << 20])]);
    assert!(matches!(sink.ctl(key, Ctl::Finish), Ok(CtlReply::Pending)));
    let error = sink.close(key).unwrap_err();
    assert!(error.to_string().contains("bytes are not written"), "{error}");
    assert!(!read_available(&mut held.into()).is_empty());
}

#[test]
fn a_fifo_waits_for_its_first_writer_and_ends_with_its_last() {
    let scratch = Scratch::new();
    let (path, held) = scratch.fifo("late");
    drop(held);
    let mut source = open(&format!("file:{path}"), Role::Device);
    let key = source.open(&template(Direction::Out), &contract::Attributes::default()).unwrap();
    assert!(matches!(source.pull(key, Pull::Ask).unwrap(), Pulled::Nothing));
    std::fs::write(&path, "late").unwrap();
    let Pulled::Message(_, message) = source.pull(key, Pull::Yours).unwrap() else { panic!("no message") };
    assert_eq!(message.body.into_bytes(), &b"late"[..]);
    // A read that took all that there was is followed by a wait, which the end of the FIFO ends.
    assert!(matches!(source.pull(key, Pull::Ask).unwrap(), Pulled::Nothing));
    assert!(matches!(source.pull(key, Pull::Ask).unwrap(), Pulled::End));
}

#[test]
fn a_fifo_without_a_reader_keeps_data_until_one_comes() {
    let scratch = Scratch::new();
    let (path, held) = scratch.fifo("unread");
    drop(held);
    let mut sink = open(&format!("file:{path}"), Role::Application);
    let key = push_all(sink.as_mut(), &messages(&[b"for a later reader"]));
    assert!(matches!(sink.ctl(key, Ctl::Finish).unwrap(), CtlReply::Pending));
    let reader = std::thread::spawn(move || std::fs::read(path).unwrap());
    while let CtlReply::Pending = sink.ctl(key, Ctl::Finish).unwrap() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(reader.join().unwrap(), b"for a later reader");
}
