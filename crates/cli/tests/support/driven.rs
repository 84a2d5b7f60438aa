//! A module process, driven like a runner: containers on 0 and 1, control frames on 3.

use super::{Ended, PATIENCE, end};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;
use wire::module::MODULE_HEADER_BYTES;
use wire::{BODY_BYTES_MAX, Container, MODULE_VERSION, ModuleFrame, ModuleHeader};

/// Time to wait for output that must not arrive.
const QUIET: Duration = Duration::from_millis(100);

/// One message: its creation time and its body.
pub(crate) type Message = (u64, Vec<u8>);

/// A running module.
pub(crate) struct Driven {
    name: String,
    child: Option<Child>,
    data: Option<ChildStdin>,
    control: UnixStream,
    outputs: Receiver<Message>,
    frames: Receiver<(u64, ModuleFrame)>,
}

pub(crate) fn hello(role: &str, format: &str, options: &[(&str, &str)]) -> ModuleFrame {
    ModuleFrame::Hello {
        version: MODULE_VERSION,
        role: role.into(),
        format: format.into(),
        options: options.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect(),
    }
}

impl Driven {
    /// Starts a program and sends nothing yet.
    pub(crate) fn start(words: &[String]) -> Driven {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = sys::process::start_with(&mut command, vec![theirs]);
        let mut child = child.unwrap_or_else(|error| panic!("{words:?}: {error}"));
        let control = UnixStream::from(ours);
        let (from_child, from_control) = (child.stdout.take().unwrap(), control.try_clone().unwrap());
        Driven {
            name: words.join(" "),
            data: child.stdin.take(),
            child: Some(child),
            control,
            outputs: in_thread(from_child, read_container),
            frames: in_thread(from_control, read_frame),
        }
    }

    /// Starts the real program with one half of a pair.
    pub(crate) fn half(pair: &str) -> Driven {
        let words = [env!("CARGO_BIN_EXE_outboard"), "module", pair, "--fd-control", "3"];
        Driven::start(&words.map(String::from))
    }

    /// Sends a frame that follows `at` containers. A module that has exited ignores it.
    pub(crate) fn say(&mut self, at: u64, frame: &ModuleFrame) {
        let _ = self.control.write_all(&frame.emit(at));
    }

    /// Sends a message. A module that has exited ignores it.
    pub(crate) fn give(&mut self, created: u64, body: &[u8]) {
        let header = Container { length: body.len() as u32, created };
        self.give_bytes(&[&header.emit()[..], body].concat());
    }

    pub(crate) fn give_bytes(&mut self, bytes: &[u8]) {
        let _ = self.data.as_mut().expect("its input has not ended").write_all(bytes);
    }

    pub(crate) fn end_data(&mut self) {
        self.data = None;
    }

    /// Ends the control channel, as a runner that is gone.
    pub(crate) fn end_control(&self) {
        self.control.shutdown(std::net::Shutdown::Both).unwrap();
    }

    /// Returns the next message.
    #[track_caller]
    pub(crate) fn output(&self) -> Message {
        self.outputs.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("`{}` gives nothing", self.name))
    }

    /// Returns the next frame and its position.
    #[track_caller]
    pub(crate) fn frame(&self) -> (u64, ModuleFrame) {
        self.frames.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("`{}` says nothing", self.name))
    }

    /// Waits for the frame that reports `inputs` as done. Earlier frames may only report fewer.
    #[track_caller]
    pub(crate) fn done(&self, inputs: u64, outputs: u64) {
        loop {
            match self.frame() {
                (at, ModuleFrame::Done { inputs: found, outputs: made }) if found >= inputs => {
                    assert_eq!((found, made, at), (inputs, outputs, outputs), "{}", self.name);
                    return;
                }
                (_, ModuleFrame::Done { .. }) => {}
                other => panic!("`{}` says {other:?}", self.name),
            }
        }
    }

    /// Checks that the module sends neither messages nor frames.
    #[track_caller]
    pub(crate) fn is_quiet(&self) {
        assert_eq!(self.outputs.recv_timeout(QUIET), Err(RecvTimeoutError::Timeout), "{}", self.name);
        assert_eq!(self.frames.recv_timeout(QUIET), Err(RecvTimeoutError::Timeout), "{}", self.name);
    }

    /// Waits for the module to exit without more output.
    #[track_caller]
    pub(crate) fn ended(mut self) -> Ended {
        let ended = end(self.child.take().expect("it ends once"), &self.name);
        assert_eq!(self.outputs.recv_timeout(PATIENCE), Err(RecvTimeoutError::Disconnected), "{}", self.name);
        ended
    }

    /// Checks that the module reports an error with these words and exits with an error status.
    #[track_caller]
    pub(crate) fn fails(self, words: &str) {
        let error = loop {
            match self.frame().1 {
                ModuleFrame::Error(text) => break text,
                ModuleFrame::Hello { .. } | ModuleFrame::Done { .. } => {}
                other => panic!("`{}` says {other:?}", self.name),
            }
        };
        assert!(error.contains(words), "`{}` says {error:?}, not {words:?}", self.name);
        let name = self.name.clone();
        let ended = self.ended();
        assert!(matches!(ended.code, Some(1 | 2)), "`{name}` ended with {:?}", ended.code);
        assert!(ended.stderr.contains(words), "`{name}` complains of {:?}", ended.stderr);
    }
}

impl Drop for Driven {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn in_thread<T: Send + 'static>(
    mut from: impl Read + Send + 'static,
    read: impl Fn(&mut dyn Read) -> std::io::Result<T> + Send + 'static,
) -> Receiver<T> {
    let (to, receiver) = channel();
    thread::spawn(move || {
        while let Ok(item) = read(&mut from) {
            if to.send(item).is_err() {
                break;
            }
        }
    });
    receiver
}

fn read_container(from: &mut dyn Read) -> std::io::Result<Message> {
    let mut header = [0; Container::BYTES];
    from.read_exact(&mut header)?;
    let container = Container::parse(&header, BODY_BYTES_MAX).expect("a module gives containers");
    let mut body = vec![0; container.length as usize];
    from.read_exact(&mut body)?;
    Ok((container.created, body))
}

/// Reads the next frame and skips reports, which arrive at any time.
fn read_frame(from: &mut dyn Read) -> std::io::Result<(u64, ModuleFrame)> {
    loop {
        let mut header = [0; MODULE_HEADER_BYTES];
        from.read_exact(&mut header)?;
        let header = ModuleHeader::parse(&header).expect("a module says frames");
        let mut body = vec![0; header.length as usize];
        from.read_exact(&mut body)?;
        match ModuleFrame::parse(header.kind, &body).expect("a module says frames") {
            ModuleFrame::Report(_) => {}
            frame => return Ok((header.at, frame)),
        }
    }
}
