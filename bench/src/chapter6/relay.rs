//! The bare mechanism beside chains of processes: messages through pipes and programs that only read and write. Each
//! program reads a whole message before it writes it, as the dissertation's modules do (listing 5.9).

use super::instruments::noise;
use super::setting::Block;
use crate::measure::Times;
use crate::setting::{Failure, be_like_a_worker};
use std::fs::File;
use std::io::{ErrorKind, Read, Write, stdin, stdout};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The capacity of the pipes: the most that a program without a privilege may set.
const PIPE_BYTES: usize = 1 << 20;
/// Bytes of a message's header, the length of the body.
const HEADER_BYTES: usize = 8;

fn write_message(pipe: &mut impl Write, message: &[u8]) -> std::io::Result<()> {
    pipe.write_all(message)?;
    pipe.flush()
}

/// Reads a whole message, its header included.
fn read_message(pipe: &mut impl Read, message: &mut Vec<u8>) -> std::io::Result<()> {
    let mut header = [0; HEADER_BYTES];
    pipe.read_exact(&mut header)?;
    message.resize(HEADER_BYTES + u64::from_le_bytes(header) as usize, 0);
    message[..HEADER_BYTES].copy_from_slice(&header);
    pipe.read_exact(&mut message[HEADER_BYTES..])
}

/// Runs one of the programs.
pub(crate) fn run() -> Result<(), Failure> {
    be_like_a_worker();
    // Copies of the descriptors, without the standard streams' buffers.
    let (mut from, mut to) = (File::from(rustix::io::dup(stdin())?), File::from(rustix::io::dup(stdout())?));
    let mut message = Vec::new();
    loop {
        match read_message(&mut from, &mut message) {
            Ok(()) => write_message(&mut to, &message)?,
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Programs in a row. Dropping the value closes the first pipe, and the programs exit.
pub(crate) struct Chain {
    programs: Vec<Child>,
    to: Option<File>,
    from: File,
}

fn pipe() -> Result<(OwnedFd, OwnedFd), Failure> {
    let (from, to) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    // A smaller pipe works too.
    let _ = rustix::pipe::fcntl_setpipe_size(&to, PIPE_BYTES);
    Ok((from, to))
}

impl Chain {
    pub(crate) fn start(programs: usize) -> Result<Chain, Failure> {
        let (mut from, to) = pipe()?;
        let mut chain =
            Chain { programs: Vec::new(), to: Some(to.into()), from: File::from(from.try_clone()?) };
        for _ in 0..programs {
            let (next, to) = pipe()?;
            let mut command = Command::new(std::env::current_exe()?);
            let program = command.arg("relay").stdin(from).stdout(Stdio::from(to)).spawn()?;
            chain.programs.push(program);
            from = next;
        }
        chain.from = from.into();
        Ok(chain)
    }

    /// Sends messages through all programs, one at a time.
    pub(crate) fn measure(&mut self, block: &Block, pause: Duration) -> Result<Times, Failure> {
        be_like_a_worker();
        let Some(to) = self.to.as_mut() else { return Err("the chain is closed".into()) };
        let mut message = (block.bytes as u64).to_le_bytes().to_vec();
        message.extend(noise(block.bytes));
        let mut came = Vec::with_capacity(message.len());
        let mut times = Times::with_capacity(block.count);
        let begun = sys::clock::boot_ns();
        for sent in 0.. {
            if block.is_done(sent, sys::clock::boot_ns() - begun) {
                break;
            }
            std::thread::sleep(pause);
            let made = sys::clock::boot_ns();
            write_message(to, &message)?;
            read_message(&mut self.from, &mut came)?;
            if sent >= Block::WARM_UP {
                times.add(sys::clock::boot_ns() - made);
            }
        }
        Ok(times)
    }
}

impl Drop for Chain {
    fn drop(&mut self) {
        self.to = None;
        for program in &mut self.programs {
            let _ = program.wait();
        }
    }
}
