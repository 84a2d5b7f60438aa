//! One process of a run: control descriptor, standard error, exit status.

use super::launch::Started;
use super::ledger::ProtocolError;
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

/// Most bytes of frames that wait for a module that does not read them.
const FRAMES_BYTES_MAX: usize = 1 << 20;
/// Most reads of the last lines of a process. A pipe holds less, but a child of the process may write on.
const ERROR_READS_MAX: usize = 32;
/// How long to wait for a killed process before leaving it to the system.
const REAP_MS: i64 = 500;

/// Names of the descriptors of each process in the poll set. 0, 1 and 5 are those of the carrier.
const ERRORS: u64 = 2;
const CONTROL: u64 = 3;
const PROCESS: u64 = 4;
/// Names reserved for each process.
pub(super) const NAMES: u64 = 8;

/// Something that a process sent.
pub(super) enum MemberEvent {
    /// Position and frame.
    Frame(u64, ModuleFrame),
    Line(String),
}

/// A process to start.
pub(super) struct Start<'a> {
    pub(super) words: &'a [OsString],
    /// `None`: the environment of this process.
    pub(super) environment: Option<&'a [(OsString, OsString)]>,
    /// `None`: /dev/null.
    pub(super) input: Option<OwnedFd>,
    pub(super) output: Option<OwnedFd>,
    /// Descriptors from 4 on.
    pub(super) descriptors: Vec<OwnedFd>,
}

/// A running process. Dropping it kills and reaps it and its children.
pub(super) struct Member {
    pub(super) process: Started,
    set: Arc<PollSet>,
    /// Position in the run, from 0.
    index: u64,
    errors: Option<OwnedFd>,
    control: Option<OwnedFd>,
    /// The poll set waits for room in the control descriptor.
    waits_for_room: bool,
    frames_out: VecDeque<u8>,
    frames: Frames,
    lines: Lines,
    status: Option<ExitStatus>,
}

impl Member {
    pub(super) fn start(mut start: Start<'_>, index: usize, set: &Arc<PollSet>) -> io::Result<Member> {
        let (control, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let descriptors = [theirs].into_iter().chain(std::mem::take(&mut start.descriptors)).collect();
        let (process, errors) = Started::start(start, descriptors)?;
        let member = Member {
            errors: Some(errors),
            process,
            set: set.clone(),
            index: index as u64,
            control: Some(control),
            waits_for_room: false,
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

    /// Reads frames and lines; `names` are the ready descriptors of the set. Returns true if the process has ended.
    pub(super) fn read(
        &mut self,
        names: &[u64],
        take: &mut impl FnMut(MemberEvent) -> Result<(), ProtocolError>,
    ) -> Result<bool, ProtocolError> {
        let has_ended = self.status.is_none() && names.contains(&self.name(PROCESS));
        // Frames sent before the end count, too.
        if has_ended || names.contains(&self.name(CONTROL)) {
            self.read_control(has_ended, take)?;
        }
        if has_ended || names.contains(&self.name(ERRORS)) {
            self.read_errors(has_ended, take)?;
        }
        Ok(has_ended)
    }

    /// Reads control frames: those that are ready, or all `to_the_end`.
    pub(super) fn read_control(
        &mut self,
        to_the_end: bool,
        take: &mut impl FnMut(MemberEvent) -> Result<(), ProtocolError>,
    ) -> Result<(), ProtocolError> {
        while let Some(control) = &self.control {
            let more = self.frames.fill(control);
            while let Some((at, frame)) = self.frames.next()? {
                take(MemberEvent::Frame(at, frame))?;
            }
            match more {
                Ok(0) => {
                    // The process may close its end and continue: there are no more control frames.
                    self.set.remove(control);
                    self.control = None;
                }
                Ok(_) if to_the_end => {}
                _ => return Ok(()),
            }
        }
        Ok(())
    }

    /// Reads lines: those that are ready, or all `to_the_end`, and then also one without its end.
    pub(super) fn read_errors(
        &mut self,
        to_the_end: bool,
        take: &mut impl FnMut(MemberEvent) -> Result<(), ProtocolError>,
    ) -> Result<(), ProtocolError> {
        for _ in 0..if to_the_end { ERROR_READS_MAX } else { 1 } {
            let Some(errors) = &self.errors else { break };
            let more = self.lines.fill(errors);
            while let Some(line) = self.lines.next() {
                take(MemberEvent::Line(line))?;
            }
            match more {
                Ok(0) => {
                    self.set.remove(errors);
                    self.errors = None;
                }
                Ok(_) => {}
                Err(_) => break,
            }
        }
        if to_the_end && let Some(line) = self.lines.rest() {
            take(MemberEvent::Line(line))?;
        }
        Ok(())
    }

    /// Queues a frame, to be handled after `at` containers. Returns false if the module does not read frames.
    pub(super) fn queue_frame(&mut self, frame: &ModuleFrame, at: u64) -> bool {
        if self.control.is_none() || self.frames_out.len() > FRAMES_BYTES_MAX {
            return false;
        }
        self.frames_out.extend(frame.emit(at));
        true
    }

    /// Writes queued frames as far as there is room. Returns true if any bytes were written.
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
                    self.watch(true);
                    return has_written;
                }
                Err(_) => self.frames_out.clear(),
            }
        }
        self.watch(false);
        has_written
    }

    fn watch(&mut self, for_room: bool) {
        if self.waits_for_room != for_room
            && let Some(control) = &self.control
            && self.set.change(control, self.name(CONTROL), true, for_room).is_ok()
        {
            self.waits_for_room = for_room;
        }
    }

    /// Returns true if the process has read all control frames.
    pub(super) fn reads_control(&self) -> bool {
        let is_read = |control: &OwnedFd| sys::process::unread_bytes(control).is_ok_and(|bytes| bytes == 0);
        self.frames_out.is_empty() && self.control.as_ref().is_some_and(is_read)
    }

    /// Exit status, after [`Member::reap`].
    pub(super) fn status(&self) -> Option<ExitStatus> {
        self.status
    }

    /// Reaps the process if it has ended.
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
