//! One process of a module: its descriptors, what was read of them and what waits to be written.

use super::ledger::{Ledger, Rubbish};
use super::reader::{Containers, Frames, Lines};
use contract::Message;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use sys::poller::PollSet;
use wire::ModuleFrame;

/// What a module's pipes hold: enough for a burst, little enough that what waits does not grow old.
const PIPE_BYTES: usize = 256 << 10;
/// Frames that wait for a module that does not read them.
const FRAMES_BYTES_MAX: usize = 1 << 20;
/// How long a killed process may take to be gone before it is left to the system.
const REAP_MS: i64 = 500;

/// Names of the descriptors in the set.
const INPUT: u64 = 0;
const OUTPUT: u64 = 1;
const ERRORS: u64 = 2;
const CONTROL: u64 = 3;
const PROCESS: u64 = 4;

/// What a process did.
pub(super) enum Event {
    Output(Message),
    Frame(ModuleFrame),
    Line(String),
}

/// A running process. Dropped, it is killed with everything it started, and reaped.
pub(super) struct Child {
    process: std::process::Child,
    pidfd: OwnedFd,
    set: PollSet,
    input: Option<OwnedFd>,
    /// The other end of it, only to see what the process has not read.
    reader: OwnedFd,
    output: Option<OwnedFd>,
    errors: Option<OwnedFd>,
    control: Option<OwnedFd>,
    /// Whether the set waits for room in the input and in the control descriptor.
    waits: [bool; 2],
    frames_out: VecDeque<u8>,
    containers: Containers,
    frames: Frames,
    lines: Lines,
    status: Option<ExitStatus>,
}

impl Child {
    /// Starts `words`, in the environment given, or in this process's own.
    pub(super) fn start(
        words: &[OsString],
        environment: Option<&[(OsString, OsString)]>,
    ) -> io::Result<Child> {
        let (program, arguments) =
            words.split_first().ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no program"))?;
        let (control, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let (reader, input) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let mut command = Command::new(program);
        command
            .args(arguments)
            .stdin(Stdio::from(reader.try_clone()?))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        // A group of its own, so that whatever it starts can be ended with it.
        command.process_group(0);
        if let Some(environment) = environment {
            command.env_clear().envs(environment.iter().map(|(name, value)| (name, value)));
        }
        let mut process = sys::process::start_with_control(&mut command, theirs)?;
        let output = process.stdout.take().map(OwnedFd::from);
        let errors = process.stderr.take().map(OwnedFd::from);
        let (pidfd, set) = match (pidfd_open(Pid::from_child(&process), PidfdFlags::empty()), PollSet::new())
        {
            (Ok(pidfd), Ok(set)) => (pidfd, set),
            (pidfd, set) => {
                let _ = process.kill();
                let _ = process.wait();
                return Err(pidfd.err().map(io::Error::from).or(set.err()).unwrap_or(Errno::NOMEM.into()));
            }
        };
        let child = Child {
            process,
            pidfd,
            set,
            input: Some(input),
            reader,
            output,
            errors,
            control: Some(control),
            waits: [false; 2],
            frames_out: VecDeque::new(),
            containers: Containers::default(),
            frames: Frames::default(),
            lines: Lines::default(),
            status: None,
        };
        child.prepare()?;
        Ok(child)
    }

    fn prepare(&self) -> io::Result<()> {
        for pipe in [&self.input, &self.output].into_iter().flatten() {
            // A smaller pipe is only slower.
            let _ = rustix::pipe::fcntl_setpipe_size(pipe, PIPE_BYTES);
        }
        let ends = [&self.input, &self.output, &self.errors, &self.control];
        for (name, end) in (INPUT..).zip(ends) {
            let Some(end) = end else { continue };
            rustix::io::ioctl_fionbio(end, true)?;
            self.set.add(end, name, name != INPUT, false)?;
        }
        self.set.add(&self.pidfd, PROCESS, true, false)
    }

    /// Its number.
    pub(super) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Readable when [`Child::read`] or [`Child::write`] would find something to do.
    pub(super) fn wakes(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }

    /// Reads what there is; what it found goes to `take`. Says whether the process has ended, and how.
    pub(super) fn read(
        &mut self,
        mut take: impl FnMut(Event) -> Result<(), Rubbish>,
    ) -> Result<Option<ExitStatus>, Rubbish> {
        let mut ready = [false; 5];
        for name in self.set.ready().map_err(|error| Rubbish(error.to_string()))? {
            if let Some(ready) = ready.get_mut(name as usize) {
                *ready = true;
            }
        }
        let has_ended = ready[PROCESS as usize];
        // Its last words count, too.
        if ready[CONTROL as usize] || has_ended {
            self.read_control(has_ended, &mut take)?;
        }
        if ready[OUTPUT as usize] || has_ended {
            self.read_output(has_ended, &mut take)?;
        }
        if ready[ERRORS as usize] || has_ended {
            self.read_errors(&mut take)?;
        }
        if has_ended {
            self.reap();
        }
        Ok(self.status)
    }

    fn read_control(
        &mut self,
        to_the_end: bool,
        take: &mut impl FnMut(Event) -> Result<(), Rubbish>,
    ) -> Result<(), Rubbish> {
        while let Some(control) = &self.control {
            let more = self.frames.fill(control);
            while let Some(frame) = self.frames.next()? {
                take(Event::Frame(frame))?;
            }
            match more {
                Ok(0) => {
                    // It may close its end and go on: there is just no more control.
                    self.set.remove(control);
                    self.control = None;
                }
                Ok(_) if to_the_end => {}
                _ => return Ok(()),
            }
        }
        Ok(())
    }

    fn read_output(
        &mut self,
        to_the_end: bool,
        take: &mut impl FnMut(Event) -> Result<(), Rubbish>,
    ) -> Result<(), Rubbish> {
        let mut budget = 4 * PIPE_BYTES;
        while let Some(output) = &self.output {
            let more = self.containers.fill(output);
            while let Some(message) = self.containers.next()? {
                take(Event::Output(message))?;
            }
            match more {
                Ok(0) => {
                    self.set.remove(output);
                    self.output = None;
                }
                Ok(count) if to_the_end || count < budget => budget = budget.saturating_sub(count),
                _ => return Ok(()),
            }
        }
        Ok(())
    }

    fn read_errors(&mut self, take: &mut impl FnMut(Event) -> Result<(), Rubbish>) -> Result<(), Rubbish> {
        if let Some(errors) = &self.errors {
            let more = self.lines.fill(errors);
            while let Some(line) = self.lines.next() {
                take(Event::Line(line))?;
            }
            if let Ok(0) = more {
                self.set.remove(errors);
                self.errors = None;
            }
        }
        Ok(())
    }

    /// Queues a frame behind `at` containers; `false` if the module reads none.
    pub(super) fn tell(&mut self, frame: &ModuleFrame, at: u64) -> bool {
        if self.control.is_none() || self.frames_out.len() > FRAMES_BYTES_MAX {
            return false;
        }
        self.frames_out.extend(frame.emit(at));
        true
    }

    /// Writes what there is, as far as the process takes it.
    pub(super) fn write(&mut self, ledger: &mut Ledger) {
        while let Some(input) = &self.input {
            if let Some(at) = ledger.next_gap() {
                self.tell(&ModuleFrame::Gap, at);
                continue;
            }
            let mut slices = SmallVec::new();
            ledger.next_slices(&mut slices);
            if slices.is_empty() {
                self.wait(INPUT, false);
                break;
            }
            match rustix::io::writev(input, &slices) {
                Ok(count) => {
                    drop(slices);
                    ledger.hand_over(count);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    drop(slices);
                    self.wait(INPUT, true);
                    break;
                }
                // A pipe whose other end is held here takes what it has room for, or is full.
                Err(_) => break,
            }
        }
        self.write_frames();
    }

    fn write_frames(&mut self) {
        while let Some(control) = &self.control
            && !self.frames_out.is_empty()
        {
            let (front, _) = self.frames_out.as_slices();
            match rustix::net::send(control, front, rustix::net::SendFlags::NOSIGNAL) {
                Ok(count) => drop(self.frames_out.drain(..count)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return self.wait(CONTROL, true),
                Err(_) => self.frames_out.clear(),
            }
        }
        self.wait(CONTROL, false);
    }

    fn wait(&mut self, name: u64, for_room: bool) {
        let (end, waits) = match name {
            INPUT => (&self.input, &mut self.waits[0]),
            _ => (&self.control, &mut self.waits[1]),
        };
        if *waits != for_room
            && let Some(end) = end
            && self.set.change(end, name, name != INPUT, for_room).is_ok()
        {
            *waits = for_room;
        }
    }

    /// Ends its input.
    pub(super) fn end_input(&mut self) {
        if let Some(input) = self.input.take() {
            self.set.remove(&input);
        }
    }

    /// Whether its input was ended.
    pub(super) fn was_told_end(&self) -> bool {
        self.input.is_none()
    }

    /// Bytes that it was handed and has not read.
    pub(super) fn unread(&self) -> u64 {
        rustix::io::ioctl_fionread(&self.reader).unwrap_or(0)
    }

    /// Whether it reads what it is told.
    pub(super) fn listens(&self) -> bool {
        let is_read = |control: &OwnedFd| sys::process::unread_bytes(control).is_ok_and(|bytes| bytes == 0);
        self.frames_out.is_empty() && self.control.as_ref().is_some_and(is_read)
    }

    /// Takes its status, once it has ended; what it started is killed before its number can be another's.
    fn reap(&mut self) {
        if self.status.is_none() {
            let _ = kill_process_group(Pid::from_child(&self.process), Signal::KILL);
            self.status = match self.process.try_wait() {
                // Somebody else reaped it.
                Err(_) => Some(ExitStatus::from_raw(0)),
                Ok(status) => status,
            };
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.status.is_some() {
            return;
        }
        let _ = kill_process_group(Pid::from_child(&self.process), Signal::KILL);
        let wait = rustix::time::Timespec { tv_sec: 0, tv_nsec: REAP_MS * 1_000_000 };
        let _ = poll(&mut [PollFd::new(&self.pidfd.as_fd(), PollFlags::IN)], Some(&wait));
        self.reap();
    }
}
