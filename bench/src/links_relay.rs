//! Bare mechanisms of handing on: a process that does nothing else, and the chain of such processes.

use crate::Failure;
use clap::{Args, ValueEnum};
use rustix::event::{EventfdFlags, eventfd};
use rustix::pipe::{SpliceFlags, fcntl_setpipe_size, pipe, splice};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::futex;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering, fence};
use sys::memory::{self, Access, Shared};

/// What the pipes of a chain hold: the largest message, whole.
const PIPE_BYTES: usize = 1 << 20;
/// Each word that somebody waits for has a cache line of its own.
const LINE: usize = 64;
/// Entries of a ring, a line each, and lines of all that is between two processes.
const ENTRIES: usize = 64;
const RING_LINES: usize = ENTRIES + 2;
/// Bytes of an entry besides its number.
const ENTRY_BYTES: usize = LINE - 8;

/// Writes entry number `index` of a ring as `links::shm` does: all of it, its number, the count; and looks who sleeps.
fn put(words: &Shared, ring: usize, index: u32) -> Option<()> {
    let begin = ring * RING_LINES * LINE;
    let entry = begin + (2 + index as usize % ENTRIES) * LINE;
    words.copy_in(entry + 8, &[7; ENTRY_BYTES]);
    words.word(entry)?.store(u64::from(index) + 1, Ordering::Release);
    words.word(begin)?.store(u64::from(index) + 1, Ordering::Release);
    fence(Ordering::SeqCst);
    std::hint::black_box(words.word(begin + LINE + 8)?.load(Ordering::SeqCst));
    Some(())
}

/// Waits for it, and counts it as taken.
fn take(words: &Shared, ring: usize, index: u32) -> Option<()> {
    let begin = ring * RING_LINES * LINE;
    let entry = begin + (2 + index as usize % ENTRIES) * LINE;
    let number = words.word(entry)?;
    while number.load(Ordering::Acquire) != u64::from(index) + 1 {
        std::hint::spin_loop();
    }
    let mut bytes = [0; ENTRY_BYTES];
    words.copy_out(entry + 8, &mut bytes);
    std::hint::black_box(bytes);
    words.word(begin + LINE)?.store(u64::from(index) + 1, Ordering::Release);
    Some(())
}

/// How messages are handed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Means {
    /// A number through an eventfd.
    Eventfd,
    /// A word, by `futex(2)`.
    Futex,
    /// The same with all relays on one processor, and who waits for the last looking at its word on another.
    Together,
    /// A word that is looked at all the time.
    Spin,
    /// The lines that a hop of ours passes: a ring's entry, which is looked at all the time, and its counts.
    Ring,
    /// Whole messages through a pipe, read and written.
    Pipe,
    /// Whole messages through a pipe, never read.
    Splice,
}

/// A relay's words.
#[derive(Debug, Args)]
pub(crate) struct Relay {
    means: Means,
    /// Bytes of a message
    size: usize,
    /// Its number in the chain
    number: usize,
    /// At real-time priority
    #[arg(long)]
    realtime: bool,
}

/// Descriptors of a relay: what it reads, what it writes, the words.
const GIVEN: [i32; 3] = [3, 4, 5];

/// Hands on what comes until nothing comes any more.
pub(crate) fn relay(relay: &Relay) -> Result<(), Failure> {
    if relay.realtime && !sys::thread::be_urgent() {
        return Err("no real-time priority".into());
    }
    let [input, output, words] = GIVEN.map(sys::descriptor::inherited);
    let words = Shared::map(words?, Access::Write)?;
    let mut end = End {
        means: relay.means,
        input: input?,
        output: output?,
        words,
        number: relay.number,
        at: 0,
        is_end: false,
    };
    let mut buffer = vec![0; relay.size];
    loop {
        if relay.means == Means::Splice {
            end.splice(relay.size)?;
        } else {
            end.receive(&mut buffer)?;
            end.send(&buffer)?;
        }
    }
}

/// Where a process takes and gives.
struct End {
    means: Means,
    input: OwnedFd,
    output: OwnedFd,
    words: Shared,
    /// It waits for word `number`, and changes the one behind.
    number: usize,
    at: u32,
    /// It is that of who began the chain.
    is_end: bool,
}

impl End {
    fn word(&self, number: usize) -> Result<&AtomicU32, Failure> {
        self.words.half_word(number * LINE).ok_or_else(|| "a word outside of the memory".into())
    }

    fn receive(&mut self, buffer: &mut [u8]) -> Result<(), Failure> {
        match self.means {
            Means::Eventfd => drop(rustix::io::read(&self.input, &mut [0; 8])?),
            Means::Futex | Means::Together | Means::Spin => {
                let word = self.word(self.number)?;
                while word.load(Ordering::Acquire) == self.at {
                    match self.means {
                        Means::Together if self.is_end => std::hint::spin_loop(),
                        Means::Spin => std::hint::spin_loop(),
                        _ => drop(futex::wait(word, futex::Flags::empty(), self.at, None)),
                    }
                }
                self.at += 1;
            }
            Means::Ring => {
                take(&self.words, self.number, self.at).ok_or("a ring outside of the memory")?;
                self.at += 1;
            }
            Means::Pipe | Means::Splice => {
                let mut filled = 0;
                while filled < buffer.len() {
                    filled += match rustix::io::read(&self.input, &mut buffer[filled..])? {
                        0 => return Err("the chain has ended".into()),
                        count => count,
                    };
                }
            }
        }
        Ok(())
    }

    fn send(&self, buffer: &[u8]) -> Result<(), Failure> {
        match self.means {
            Means::Eventfd => drop(rustix::io::write(&self.output, &1u64.to_ne_bytes())?),
            Means::Futex | Means::Together | Means::Spin => {
                let word = self.word(self.number + 1)?;
                word.fetch_add(1, Ordering::Release);
                if self.means != Means::Spin {
                    futex::wake(word, futex::Flags::empty(), 1)?;
                }
            }
            Means::Ring => {
                // What was taken last.
                let put = put(&self.words, self.number + 1, self.at.wrapping_sub(1));
                put.ok_or("a ring outside of the memory")?;
            }
            Means::Pipe | Means::Splice => {
                let mut written = 0;
                while written < buffer.len() {
                    written += rustix::io::write(&self.output, &buffer[written..])?;
                }
            }
        }
        Ok(())
    }

    fn splice(&self, size: usize) -> Result<(), Failure> {
        let mut left = size;
        while left > 0 {
            left -= match splice(&self.input, None, &self.output, None, left, SpliceFlags::MOVE)? {
                0 => return Err("the chain has ended".into()),
                count => count,
            };
        }
        Ok(())
    }
}

/// A chain of relays that begins and ends here.
pub(crate) struct Chain {
    end: End,
    relays: Vec<Child>,
    buffer: Vec<u8>,
}

impl Chain {
    /// So many processes.
    pub(crate) fn new(means: Means, relays: usize, size: usize) -> Result<Chain, Failure> {
        Chain::begin(means, relays, size, &[])
    }

    /// The same at real-time priority.
    pub(crate) fn realtime(means: Means, relays: usize, size: usize) -> Result<Chain, Failure> {
        Chain::begin(means, relays, size, &["--realtime"])
    }

    fn begin(means: Means, relays: usize, size: usize, more: &[&str]) -> Result<Chain, Failure> {
        let words = memory::create("words", (relays + 2) * RING_LINES * LINE)?;
        // Links 0 to `relays`: the ends to write and to read.
        let mut links = Vec::new();
        for _ in 0..=relays {
            links.push(match means {
                Means::Pipe | Means::Splice => {
                    let (read, write) = pipe()?;
                    fcntl_setpipe_size(&write, PIPE_BYTES)?;
                    (read, write)
                }
                _ => {
                    let event = eventfd(0, EventfdFlags::CLOEXEC)?;
                    (event.try_clone()?, event)
                }
            });
        }
        let own = std::env::current_exe()?;
        let name = means.to_possible_value().map(|value| value.get_name().to_string()).unwrap_or_default();
        let mut children = Vec::new();
        for number in 0..relays {
            let given = vec![
                links[number].0.try_clone()?,
                links[number + 1].1.try_clone()?,
                words.as_fd().try_clone_to_owned()?,
            ];
            let mut command = Command::new(&own);
            command.args(["links-relay", &name, &size.to_string(), &number.to_string()]).args(more);
            children.push(sys::process::start_with(&mut command, given)?);
        }
        let (input, output) = (links[relays].0.try_clone()?, links[0].1.try_clone()?);
        let words = Shared::map(words, Access::Write)?;
        // It changes word 0 and waits for the last.
        let end = End { means, input, output, words, number: relays, at: 0, is_end: true };
        Ok(Chain { end, relays: children, buffer: vec![7; size] })
    }

    /// The relays' numbers.
    pub(crate) fn processes(&self) -> impl Iterator<Item = u32> {
        self.relays.iter().map(Child::id)
    }

    /// Has relays that look all the time do so only while it is their turn: a processor is theirs alone then. Has those
    /// that are kept together be so where the caller is not.
    pub(crate) fn take_part(&self, is_its_turn: bool) {
        if self.end.means == Means::Together {
            let other = usize::from(rustix::thread::sched_getcpu() == 0);
            self.processes().for_each(|relay| _ = sys::thread::pin_process_to_cpu(relay, other));
        }
        let signal = if is_its_turn { Signal::CONT } else { Signal::STOP };
        for relay in self.relays.iter().filter(|_| matches!(self.end.means, Means::Spin | Means::Ring)) {
            // One that is gone is missed soon.
            let _ = kill_process(Pid::from_child(relay), signal);
        }
    }

    /// Once through all.
    pub(crate) fn pass(&mut self) -> Result<(), Failure> {
        let End { means, words, .. } = &self.end;
        match means {
            Means::Futex | Means::Together | Means::Spin => {
                let word = words.half_word(0).ok_or("no words")?;
                word.fetch_add(1, Ordering::Release);
                if *means != Means::Spin {
                    futex::wake(word, futex::Flags::empty(), 1)?;
                }
            }
            Means::Ring => put(words, 0, self.end.at).ok_or("no ring")?,
            _ => self.end.send(&self.buffer)?,
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        let result = self.end.receive(&mut buffer);
        self.buffer = buffer;
        result
    }
}

impl Drop for Chain {
    fn drop(&mut self) {
        for relay in &mut self.relays {
            let _ = relay.kill();
            let _ = relay.wait();
        }
    }
}
