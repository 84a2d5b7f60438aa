//! One process of a run: its control descriptor, its last words, its end.

use super::launch::Started;
use super::ledger::Rubbish;
use super::reader::{Frames, Lines};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::process::ExitStatus;
use std::sync::Arc;
use sys::poller::PollSet;
use wire::ModuleFrame;

/// Frames that wait for a module that does not read them.
const FRAMES_BYTES_MAX: usize = 1 << 20;
/// How long a killed process may take to be gone before it is left to the system.
const REAP_MS: i64 = 500;

/// Names of its descriptors in the set, beside those of what carries data, for each process of a run.
const ERRORS: u64 = 2;
const CONTROL: u64 = 3;
const PROCESS: u64 = 4;
/// So many names has each process.
pub(super) const NAMES: u64 = 8;

/// What a process said.
pub(super) enum Said {
    /// Its place, and what it says.
    Frame(u64, ModuleFrame),
    Line(String),
}

/// What to start.
pub(super) struct Start<'a> {
    pub(super) words: &'a [OsString],
    /// `None`: that of this process.
    pub(super) environment: Option<&'a [(OsString, OsString)]>,
    /// `None`: nothing comes, and what it writes goes nowhere.
    pub(super) input: Option<OwnedFd>,
    pub(super) output: Option<OwnedFd>,
    /// Its descriptors from 4 on.
    pub(super) given: Vec<OwnedFd>,
}

/// A running process. Dropped, it is killed with everything it started, and reaped.
pub(super) struct Member {
    pub(super) process: Started,
    set: Arc<PollSet>,
    /// Its number in the run.
    index: u64,
    errors: Option<OwnedFd>,
    control: Option<OwnedFd>,
    /// Whether the set waits for room in the control descriptor.
    waits: bool,
    frames_out: VecDeque<u8>,
    frames: Frames,
    lines: Lines,
    status: Option<ExitStatus>,
}

impl Member {
    pub(super) fn start(mut start: Start<'_>, index: usize, set: &Arc<PollSet>) -> io::Result<Member> {
        let (control, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let given = [theirs].into_iter().chain(std::mem::take(&mut start.given)).collect();
        let (process, errors) = Started::start(start, given)?;
        let member = Member {
            errors: Some(errors),
            process,
            set: set.clone(),
            index: index as u64,
            control: Some(control),
            waits: false,
            frames_out: VecDeque::new(),
            frames: Frames::default(),
            lines: Lines::default(),
            status: None,
        };
        for (name, end) in [(ERRORS, &member.errors), (CONTROL, &member.control)] {
            let Some(end) = end else { continue };
            rustix::io::ioctl_fionbio(end, true)?;
            set.add(end, member.name(name), true, false)?;
        }
        set.add(member.process.end(), member.name(PROCESS), true, false)?;
        Ok(member)
    }

    fn name(&self, name: u64) -> u64 {
        self.index * NAMES + name
    }

    /// Reads what it says; `names` are the ready descriptors of the set. Says whether it has ended.
    pub(super) fn read(
        &mut self,
        names: &[u64],
        take: &mut impl FnMut(Said) -> Result<(), Rubbish>,
    ) -> Result<bool, Rubbish> {
        let has_ended = self.status.is_none() && names.contains(&self.name(PROCESS));
        // Its last words count, too.
        if has_ended || names.contains(&self.name(CONTROL)) {
            self.read_control(has_ended, take)?;
        }
        if has_ended || names.contains(&self.name(ERRORS)) {
            self.read_errors(take)?;
        }
        Ok(has_ended)
    }

    /// Reads what it says there: what there is now, or `to_the_end` of it.
    pub(super) fn read_control(
        &mut self,
        to_the_end: bool,
        take: &mut impl FnMut(Said) -> Result<(), Rubbish>,
    ) -> Result<(), Rubbish> {
        while let Some(control) = &self.control {
            let more = self.frames.fill(control);
            while let Some((at, frame)) = self.frames.next()? {
                take(Said::Frame(at, frame))?;
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

    fn read_errors(&mut self, take: &mut impl FnMut(Said) -> Result<(), Rubbish>) -> Result<(), Rubbish> {
        if let Some(errors) = &self.errors {
            let more = self.lines.fill(errors);
            while let Some(line) = self.lines.next() {
                take(Said::Line(line))?;
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

    /// Writes the frames that wait, as far as it takes them; whether it took any.
    pub(super) fn write(&mut self) -> bool {
        let mut has_written = false;
        while let Some(control) = &self.control
            && !self.frames_out.is_empty()
        {
            let (front, _) = self.frames_out.as_slices();
            match rustix::net::send(control, front, rustix::net::SendFlags::NOSIGNAL) {
                Ok(count) => {
                    drop(self.frames_out.drain(..count));
                    has_written = true;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    self.wait(true);
                    return has_written;
                }
                Err(_) => self.frames_out.clear(),
            }
        }
        self.wait(false);
        has_written
    }

    fn wait(&mut self, for_room: bool) {
        if self.waits != for_room
            && let Some(control) = &self.control
            && self.set.change(control, self.name(CONTROL), true, for_room).is_ok()
        {
            self.waits = for_room;
        }
    }

    /// Whether it reads what it is told.
    pub(super) fn listens(&self) -> bool {
        let is_read = |control: &OwnedFd| sys::process::unread_bytes(control).is_ok_and(|bytes| bytes == 0);
        self.frames_out.is_empty() && self.control.as_ref().is_some_and(is_read)
    }

    /// How it ended.
    pub(super) fn status(&self) -> Option<ExitStatus> {
        self.status
    }

    /// Takes its status, once it has ended.
    pub(super) fn reap(&mut self) {
        if self.status.is_none() {
            self.status = self.process.reap();
        }
        if self.status.is_some() {
            self.set.remove(self.process.end());
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        for end in [&self.errors, &self.control].into_iter().flatten() {
            self.set.remove(end);
        }
        if self.status.is_some() {
            return;
        }
        self.process.kill();
        let wait = rustix::time::Timespec { tv_sec: 0, tv_nsec: REAP_MS * 1_000_000 };
        let _ = poll(&mut [PollFd::from_borrowed_fd(self.process.end(), PollFlags::IN)], Some(&wait));
        self.reap();
        self.set.remove(self.process.end());
    }
}
