use crate::file::tests::Scratch;
use crate::stream::tests::{FarStream, open, pull_all, push_all};
use contract::{Ctl, CtlReply, Direction, FlowTemplate, Message, Partner, Role, Time};
use std::time::{Duration, Instant};
use testkit::partner::{Harness, conforms};

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
fn dropping_kills_all_processes_of_the_program() {
    let scratch = Scratch::new();
    let path = scratch.path("pid");
    let partner = open(&format!("exec:sleep 1000 & echo $! > {path}; wait"), Role::Device);
    let mut pid = String::new();
    eventually(|| {
        pid = std::fs::read_to_string(&path).unwrap_or_default();
        pid.ends_with('\n')
    });
    let state = format!("/proc/{}/stat", pid.trim());
    assert!(std::path::Path::new(&state).exists());
    drop(partner);
    // The killed process may be a zombie until its new parent reaps it.
    eventually(|| std::fs::read_to_string(&state).map_or(true, |stat| stat.contains(") Z ")));
}
