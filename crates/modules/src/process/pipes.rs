//! Sends containers to a process through a pipe and receives them through another; or sends them into a chain of
//! processes, each with a pipe to the next, and receives them from the last.

use super::group::Event;
use super::ledger::{Ledger, ProtocolError};
use super::member::Member;
use super::reader::{Containers, Part};
use contract::Time;
use rustix::io::Errno;
use smallvec::SmallVec;
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use sys::poller::PollSet;
use wire::{ModuleFrame, Word};

/// Capacity of a pipe: enough for a burst, but small enough that messages do not become stale in it.
const PIPE_BYTES: usize = 256 << 10;

/// Names of the descriptors in the poll set.
const INPUT: u64 = 0;
const OUTPUT: u64 = 1;

/// Input pipe of a process.
pub(super) struct Input {
    end: OwnedFd,
    /// The reading end; only used to count unread bytes.
    reader: OwnedFd,
}

/// The pipes of a process or a chain.
pub(super) struct Pipes {
    set: Arc<PollSet>,
    input: Option<OwnedFd>,
    reader: OwnedFd,
    output: Option<OwnedFd>,
    /// The poll set waits for room in the input.
    waits_for_room: bool,
    containers: Containers,
    /// There are words between containers.
    has_words: bool,
    /// A gap word must be sent next.
    gap_pending: bool,
    /// Messages that are complete, by the words received.
    complete: u64,
    /// Time of the last read or write.
    pub(super) moved_at: Time,
}

impl Pipes {
    /// Creates the input pipe; also returns the end for the process.
    pub(super) fn input() -> io::Result<(Input, OwnedFd)> {
        let (reader, end) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let theirs = reader.try_clone()?;
        Ok((Input { end, reader }, theirs))
    }

    /// Creates a pipe between two processes: reading end, writing end.
    pub(super) fn between() -> io::Result<(OwnedFd, OwnedFd)> {
        Ok(rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?)
    }

    /// Takes the input of the first process and the output of the last. With `has_words` they are a chain.
    pub(super) fn new(
        input: Input,
        output: OwnedFd,
        has_words: bool,
        set: &Arc<PollSet>,
    ) -> io::Result<Pipes> {
        let Input { end, reader } = input;
        for pipe in [&end, &output] {
            // A smaller pipe only costs speed.
            let _ = rustix::pipe::fcntl_setpipe_size(pipe, PIPE_BYTES);
            rustix::io::ioctl_fionbio(pipe, true)?;
        }
        set.add(&end, INPUT, false, false)?;
        set.add(&output, OUTPUT, true, false)?;
        Ok(Pipes {
            set: set.clone(),
            input: Some(end),
            reader,
            output: Some(output),
            waits_for_room: false,
            containers: Containers::new(has_words),
            has_words,
            gap_pending: false,
            complete: 0,
            moved_at: Time::ZERO,
        })
    }

    /// Reads containers and words. Returns true if there were any bytes.
    pub(super) fn read(
        &mut self,
        now: Time,
        to_the_end: bool,
        take: &mut impl FnMut(Event) -> Result<(), ProtocolError>,
    ) -> Result<bool, ProtocolError> {
        let (mut budget, mut has_read) = (4 * PIPE_BYTES, false);
        while let Some(output) = &self.output {
            let more = self.containers.fill(output);
            while let Some(part) = self.containers.next()? {
                match part {
                    Part::Message(message) => take(Event::Output(message))?,
                    Part::Word(Word::Complete(messages)) => {
                        self.complete = self.complete.saturating_add(messages);
                        take(Event::Covers(self.complete))?;
                    }
                    Part::Word(Word::Gap) => {}
                }
            }
            match more {
                Ok((0, _)) => {
                    self.set.remove(output);
                    self.output = None;
                }
                Ok((count, may_be_more)) => {
                    (self.moved_at, has_read) = (now, true);
                    budget = budget.saturating_sub(count);
                    if !to_the_end && (!may_be_more || budget == 0) {
                        break;
                    }
                }
                Err(_) => break,
            }
        }
        Ok(has_read)
    }

    /// Writes the inputs before number `until`, as far as there is room; a gap goes before its message. Returns false if
    /// others wait.
    pub(super) fn write(&mut self, ledger: &mut Ledger, member: &mut Member, until: u64, now: Time) -> bool {
        while let Some(input) = &self.input {
            let most = usize::try_from(until.saturating_sub(ledger.handed())).unwrap_or(usize::MAX);
            if most == 0 && ledger.has_next() {
                return false;
            }
            if let Some(at) = ledger.next_gap() {
                match self.has_words {
                    true => self.gap_pending = true,
                    false => drop(member.queue_frame(&ModuleFrame::Gap, at)),
                }
                continue;
            }
            // Write a frame before the containers that follow it.
            member.write();
            let gap = Word::Gap.emit();
            let mut slices = SmallVec::new();
            match self.gap_pending {
                // Atomic (`pipe(7)`).
                true => slices.push(IoSlice::new(&gap)),
                false => ledger.next_slices(most, &mut slices),
            }
            if slices.is_empty() {
                self.watch(false);
                break;
            }
            match rustix::io::writev(input, &slices) {
                Ok(_) if std::mem::take(&mut self.gap_pending) => {}
                Ok(count) => {
                    drop(slices);
                    self.moved_at = now;
                    ledger.mark_sent(count);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    drop(slices);
                    self.watch(true);
                    break;
                }
                // This process holds both ends of the pipe, so a write fails only if the pipe is full.
                Err(_) => break,
            }
        }
        true
    }

    fn watch(&mut self, for_room: bool) {
        if self.waits_for_room != for_room
            && let Some(input) = &self.input
            && self.set.change(input, INPUT, false, for_room).is_ok()
        {
            self.waits_for_room = for_room;
        }
    }

    /// Ends the input of the process.
    pub(super) fn end_input(&mut self) {
        if let Some(input) = self.input.take() {
            self.set.remove(&input);
        }
    }

    /// Bytes sent that the process has not read.
    pub(super) fn unread(&self) -> u64 {
        rustix::io::ioctl_fionread(&self.reader).unwrap_or(0)
    }
}

impl Drop for Pipes {
    fn drop(&mut self) {
        for end in [&self.input, &self.output].into_iter().flatten() {
            self.set.remove(end);
        }
    }
}
