//! The bare mechanisms of `links`: a process that only passes messages on, and a chain of such processes.

use crate::setting::Failure;
use clap::{Args, ValueEnum};
use rustix::event::{EventfdFlags, eventfd};
use rustix::pipe::{SpliceFlags, fcntl_setpipe_size, pipe, splice};
use rustix::thread::futex;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use sys::memory::{self, Words};

/// The capacity of a chain's pipes: the largest message fits.
const PIPE_BYTES: usize = 1 << 20;
/// Bytes of a cache line. Each word that a process waits for has a line of its own.
const LINE: usize = 64;

/// The medium between two processes of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Medium {
    /// A number through an eventfd.
    Eventfd,
    /// A word in shared memory and `futex(2)`.
    Futex,
    /// `Futex` with all relays on one processor. The chain's end spins on its word on the other processor.
    Together,
    /// Messages through a pipe, read and written.
    Pipe,
    /// Messages through a pipe, spliced.
    Splice,
}

/// The arguments of one relay.
#[derive(Debug, Args)]
pub(crate) struct Relay {
    medium: Medium,
    /// Bytes of a message
    size: usize,
    /// Its number in the chain
    number: usize,
}

/// Descriptors of a relay: input, output, shared memory.
const GIVEN: [i32; 3] = [3, 4, 5];

/// Passes messages on until the chain ends.
pub(crate) fn relay(relay: &Relay) -> Result<(), Failure> {
    let [input, output, words] = GIVEN.map(sys::descriptor::inherited);
    let words = Words::map(words?)?;
    let mut end = End {
        medium: relay.medium,
        input: input?,
        output: output?,
        words,
        number: relay.number,
        at: 0,
        is_end: false,
    };
    let mut buffer = vec![0; relay.size];
    loop {
        if relay.medium == Medium::Splice {
            end.splice(relay.size)?;
        } else {
            end.receive(&mut buffer)?;
            end.send(&buffer)?;
        }
    }
}

/// One process's ends of the media before and behind it.
struct End {
    medium: Medium,
    input: OwnedFd,
    output: OwnedFd,
    words: Words,
    /// The process waits for word `number` and writes word `number + 1`.
    number: usize,
    at: u32,
    /// True in the process that started the chain.
    is_end: bool,
}

impl End {
    fn word(&self, number: usize) -> &AtomicU32 {
        self.words.half(number * LINE / 8)
    }

    fn receive(&mut self, buffer: &mut [u8]) -> Result<(), Failure> {
        match self.medium {
            Medium::Eventfd => drop(rustix::io::read(&self.input, &mut [0; 8])?),
            Medium::Futex | Medium::Together => {
                let word = self.word(self.number);
                while word.load(Ordering::Acquire) == self.at {
                    match self.medium {
                        Medium::Together if self.is_end => std::hint::spin_loop(),
                        _ => drop(futex::wait(word, futex::Flags::empty(), self.at, None)),
                    }
                }
                self.at += 1;
            }
            Medium::Pipe | Medium::Splice => {
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
        match self.medium {
            Medium::Eventfd => drop(rustix::io::write(&self.output, &1u64.to_ne_bytes())?),
            Medium::Futex | Medium::Together => {
                let word = self.word(self.number + 1);
                word.fetch_add(1, Ordering::Release);
                futex::wake(word, futex::Flags::empty(), 1)?;
            }
            Medium::Pipe | Medium::Splice => {
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

/// A chain of relays that begins and ends in this process.
pub(crate) struct Chain {
    end: End,
    relays: Vec<Child>,
    buffer: Vec<u8>,
}

impl Chain {
    /// Starts the relays.
    pub(crate) fn new(medium: Medium, relays: usize, size: usize) -> Result<Chain, Failure> {
        let words = memory::create("words", (relays + 2) * LINE)?;
        // Media 0 to `relays`: the ends to read and to write.
        let mut links = Vec::new();
        for _ in 0..=relays {
            links.push(match medium {
                Medium::Pipe | Medium::Splice => {
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
        let name = medium.to_possible_value().map(|value| value.get_name().to_string()).unwrap_or_default();
        let mut children = Vec::new();
        for number in 0..relays {
            let given = vec![
                links[number].0.try_clone()?,
                links[number + 1].1.try_clone()?,
                words.as_fd().try_clone_to_owned()?,
            ];
            let mut command = Command::new(&own);
            command.args(["links-relay", &name, &size.to_string(), &number.to_string()]);
            children.push(sys::process::start_with(&mut command, given)?);
        }
        let (input, output) = (links[relays].0.try_clone()?, links[0].1.try_clone()?);
        let words = Words::map(words)?;
        // The end writes word 0 and waits for the last word.
        let end = End { medium, input, output, words, number: relays, at: 0, is_end: true };
        Ok(Chain { end, relays: children, buffer: vec![7; size] })
    }

    /// Returns the relays' process ids.
    pub(crate) fn processes(&self) -> impl Iterator<Item = u32> {
        self.relays.iter().map(Child::id)
    }

    /// Moves `Together` relays to the processor that the caller does not use.
    pub(crate) fn begin_turn(&self) {
        if self.end.medium == Medium::Together {
            let other = usize::from(rustix::thread::sched_getcpu() == 0);
            self.processes().for_each(|relay| _ = crate::setting::pin_process_to_cpu(relay, other));
        }
    }

    /// Passes one message through the whole chain.
    pub(crate) fn pass(&mut self) -> Result<(), Failure> {
        match self.end.medium {
            Medium::Futex | Medium::Together => {
                let word = self.end.word(0);
                word.fetch_add(1, Ordering::Release);
                futex::wake(word, futex::Flags::empty(), 1)?;
            }
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
