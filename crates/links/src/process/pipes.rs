//! Containers to a process through one pipe, and back through another; or into a chain of processes, each with a pipe to
//! the next, and back from the last.

use super::child::Event;
use super::ledger::{Ledger, Rubbish};
use super::member::Member;
use super::reader::{Containers, Part};
use contract::Time;
use rustix::io::Errno;
use smallvec::SmallVec;
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use sys::poller::PollSet;
use wire::{ModuleFrame, Word};

/// What a module's pipes hold: enough for a burst, little enough that what waits does not grow old.
const PIPE_BYTES: usize = 256 << 10;

/// So long after something moved last in a chain, what is not finished waits for more.
const QUIET: Duration = Duration::from_millis(20);

/// Names of the descriptors in the set.
const INPUT: u64 = 0;
const OUTPUT: u64 = 1;

/// A pipe's two ends.
pub(super) struct Input {
    end: OwnedFd,
    /// The other end of it, only to see what the process has not read.
    reader: OwnedFd,
}

/// The pipes of a process, or of a chain.
pub(super) struct Pipes {
    set: Arc<PollSet>,
    input: Option<OwnedFd>,
    reader: OwnedFd,
    output: Option<OwnedFd>,
    /// Whether the set waits for room in the input.
    waits: bool,
    containers: Containers,
    /// Whether there are words between containers.
    has_words: bool,
    /// A gap is to be told next.
    gap_waits: bool,
    /// Messages that are complete, by the words that came.
    complete: u64,
    /// When something went in or came out last.
    moved_at: Time,
}

impl Pipes {
    /// The input's pipe: ours, and what the process reads.
    pub(super) fn input() -> io::Result<(Input, OwnedFd)> {
        let (reader, end) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let theirs = reader.try_clone()?;
        Ok((Input { end, reader }, theirs))
    }

    /// A pipe from a process to the next: what that reads, and what the one writes.
    pub(super) fn between() -> io::Result<(OwnedFd, OwnedFd)> {
        Ok(rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?)
    }

    /// Into the first process, and out of the last. `has_words`: they are a chain.
    pub(super) fn new(
        input: Input,
        output: OwnedFd,
        has_words: bool,
        set: &Arc<PollSet>,
    ) -> io::Result<Pipes> {
        let Input { end, reader } = input;
        for pipe in [&end, &output] {
            // A smaller pipe is only slower.
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
            waits: false,
            containers: Containers::new(has_words),
            has_words,
            gap_waits: false,
            complete: 0,
            moved_at: Time::ZERO,
        })
    }

    /// Reads what came; whether anything did.
    pub(super) fn read(
        &mut self,
        now: Time,
        to_the_end: bool,
        take: &mut impl FnMut(Event) -> Result<(), Rubbish>,
    ) -> Result<bool, Rubbish> {
        let (mut budget, mut has_come) = (4 * PIPE_BYTES, false);
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
                    (self.moved_at, has_come) = (now, true);
                    budget = budget.saturating_sub(count);
                    if !to_the_end && (!may_be_more || budget == 0) {
                        break;
                    }
                }
                Err(_) => break,
            }
        }
        Ok(has_come)
    }

    /// Writes what there is, as far as the first process takes it; where a gap is to be told, it is told first. One
    /// input at a time, if `is_cautious`, and the next when nothing is on its way: `false` if that is waited for.
    pub(super) fn write(
        &mut self,
        ledger: &mut Ledger,
        member: &mut Member,
        is_cautious: bool,
        now: Time,
    ) -> bool {
        while let Some(input) = &self.input {
            let is_busy = !ledger.is_idle() && now < self.moved_at.after(QUIET);
            if is_cautious && is_busy && ledger.has_next() && !ledger.is_amidst() {
                return false;
            }
            if let Some(at) = ledger.next_gap() {
                match self.has_words {
                    true => self.gap_waits = true,
                    false => drop(member.tell(&ModuleFrame::Gap, at)),
                }
                continue;
            }
            // A frame is written before the containers behind it.
            member.write();
            let gap = Word::Gap.emit();
            let mut slices = SmallVec::new();
            match self.gap_waits {
                // Goes in whole or not at all (`pipe(7)`).
                true => slices.push(IoSlice::new(&gap)),
                false => ledger.next_slices(if is_cautious { 1 } else { usize::MAX }, &mut slices),
            }
            if slices.is_empty() {
                self.wait(false);
                break;
            }
            match rustix::io::writev(input, &slices) {
                Ok(_) if std::mem::take(&mut self.gap_waits) => {}
                Ok(count) => {
                    drop(slices);
                    self.moved_at = now;
                    ledger.hand_over(count);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    drop(slices);
                    self.wait(true);
                    break;
                }
                // A pipe whose other end is held here takes what it has room for, or is full.
                Err(_) => break,
            }
        }
        true
    }

    fn wait(&mut self, for_room: bool) {
        if self.waits != for_room
            && let Some(input) = &self.input
            && self.set.change(input, INPUT, false, for_room).is_ok()
        {
            self.waits = for_room;
        }
    }

    /// Ends the process's input.
    pub(super) fn end_input(&mut self) {
        if let Some(input) = self.input.take() {
            self.set.remove(&input);
        }
    }

    /// Bytes that it was handed and has not read.
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
