//! Containers to a process through one pipe, and back through another.

use super::ledger::{Ledger, Rubbish};
use super::member::Member;
use super::reader::Containers;
use contract::Message;
use rustix::io::Errno;
use smallvec::SmallVec;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use sys::poller::PollSet;
use wire::ModuleFrame;

/// What a module's pipes hold: enough for a burst, little enough that what waits does not grow old.
const PIPE_BYTES: usize = 256 << 10;

/// Names of the descriptors in the set.
const INPUT: u64 = 0;
const OUTPUT: u64 = 1;

/// A pipe's two ends.
pub(super) struct Input {
    end: OwnedFd,
    /// The other end of it, only to see what the process has not read.
    reader: OwnedFd,
}

/// Both pipes of a process.
pub(super) struct Pipes {
    set: Arc<PollSet>,
    input: Option<OwnedFd>,
    reader: OwnedFd,
    output: Option<OwnedFd>,
    /// Whether the set waits for room in the input.
    waits: bool,
    containers: Containers,
}

impl Pipes {
    /// The input's pipe: ours, and what the process reads.
    pub(super) fn input() -> io::Result<(Input, OwnedFd)> {
        let (reader, end) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let theirs = reader.try_clone()?;
        Ok((Input { end, reader }, theirs))
    }

    pub(super) fn new(input: Input, output: Option<OwnedFd>, set: &Arc<PollSet>) -> io::Result<Pipes> {
        let Input { end, reader } = input;
        for pipe in [Some(&end), output.as_ref()].into_iter().flatten() {
            // A smaller pipe is only slower.
            let _ = rustix::pipe::fcntl_setpipe_size(pipe, PIPE_BYTES);
            rustix::io::ioctl_fionbio(pipe, true)?;
        }
        set.add(&end, INPUT, false, false)?;
        if let Some(output) = &output {
            set.add(output, OUTPUT, true, false)?;
        }
        let (set, containers) = (set.clone(), Containers::default());
        Ok(Pipes { set, input: Some(end), reader, output, waits: false, containers })
    }

    /// Reads messages, if there are any or the process has ended.
    pub(super) fn read(
        &mut self,
        names: &[u64],
        to_the_end: bool,
        take: &mut impl FnMut(Message) -> Result<(), Rubbish>,
    ) -> Result<(), Rubbish> {
        if !to_the_end && !names.contains(&OUTPUT) {
            return Ok(());
        }
        let mut budget = 4 * PIPE_BYTES;
        while let Some(output) = &self.output {
            let more = self.containers.fill(output);
            while let Some(message) = self.containers.next()? {
                take(message)?;
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

    /// Writes what there is, as far as the process takes it; where a gap is to be told, it is told first.
    pub(super) fn write(&mut self, ledger: &mut Ledger, member: &mut Member) {
        while let Some(input) = &self.input {
            if let Some(at) = ledger.next_gap() {
                member.tell(&ModuleFrame::Gap, at);
                continue;
            }
            // A frame is written before the containers behind it.
            member.write();
            let mut slices = SmallVec::new();
            ledger.next_slices(&mut slices);
            if slices.is_empty() {
                self.wait(false);
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
                    self.wait(true);
                    break;
                }
                // A pipe whose other end is held here takes what it has room for, or is full.
                Err(_) => break,
            }
        }
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
