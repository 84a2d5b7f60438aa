//! A running process under `ptrace(2)` that makes chosen system calls. The kernel treats each as a call of the process: its
//! seccomp filters, its landlock domain and its credentials apply.

use crate::setting::Failure;
use nix::errno::Errno;
use nix::libc::{self as c, user_regs_struct};
use nix::sys::ptrace::{self, Options};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::fmt;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::{Duration, Instant};

/// The instructions of a system call, and of one through the entry of 32-bit programs (`int 0x80`).
const SYSCALL: [u8; 2] = [0x0f, 0x05];
const INT80: [u8; 2] = [0xcd, 0x80];
/// A call that lasts longer waits for something.
const WAITS: Duration = Duration::from_millis(200);
/// The longest wait for a stop.
const PATIENCE: Duration = Duration::from_secs(20);
/// Bytes of the memory for arguments.
const MEMORY_BYTES: u64 = 1 << 20;
/// Result of a call that a signal interrupted: `ERESTARTSYS` to `ERESTART_RESTARTBLOCK` of `linux/errno.h`.
const RESTARTS: std::ops::RangeInclusive<i64> = -516..=-512;

/// The result of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    Value(i64),
    Error(Errno),
    /// It waits for something.
    Waits,
    /// It ended the process with this signal (0: without one).
    Ended(i32),
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Answer::Value(value) => write!(f, "{value}"),
            Answer::Error(errno) => write!(f, "{errno:?}"),
            Answer::Waits => f.write_str("it waits"),
            Answer::Ended(0) => f.write_str("it exited"),
            Answer::Ended(signal) => {
                let name = nix::sys::signal::Signal::try_from(*signal);
                write!(f, "killed by {}", name.map_or("a signal", |signal| signal.as_str()))
            }
        }
    }
}

/// The state of a process after a step.
enum Stop {
    Stopped,
    Ended(i32),
}

/// A stopped process.
pub(super) struct Tracee {
    process: Pid,
    /// The registers at the stop.
    registers: user_regs_struct,
    /// Address of an instruction [`SYSCALL`].
    instruction: u64,
    memory: File,
    /// Address of the memory for arguments, 0 before its first use, and the bytes in use.
    arguments: (u64, u64),
}

impl Tracee {
    /// Stops a process. It is killed if this program ends first.
    pub(super) fn seize(process: u32) -> Result<Tracee, Failure> {
        let number = Pid::from_raw(process.cast_signed());
        let memory = File::options().read(true).write(true).open(format!("/proc/{process}/mem"))?;
        ptrace::seize(number, Options::PTRACE_O_EXITKILL)?;
        ptrace::interrupt(number)?;
        wait(number)?;
        let mut registers = ptrace::getregs(number)?;
        if !is_after_call(&memory, &registers)? {
            // It was awake. It stops at the begin of its next call, and at the end.
            for _ in 0..2 {
                ptrace::syscall(number, None)?;
                wait(number)?;
            }
            registers = ptrace::getregs(number)?;
        }
        if !is_after_call(&memory, &registers)? {
            return Err(format!("process {process} makes no calls").into());
        }
        let instruction = registers.rip - SYSCALL.len() as u64;
        Ok(Tracee { process: number, registers, instruction, memory, arguments: (0, 0) })
    }

    /// Maps the memory for arguments.
    fn map(&mut self) -> Result<u64, Failure> {
        let access = (c::PROT_READ | c::PROT_WRITE) as u64;
        let kind = (c::MAP_PRIVATE | c::MAP_ANONYMOUS) as u64;
        match self.call(c::SYS_mmap, [0, MEMORY_BYTES, access, kind, u64::MAX, 0])? {
            Answer::Value(address) => Ok(address.cast_unsigned()),
            answer => Err(format!("no memory for arguments in process {}: {answer}", self.process).into()),
        }
    }

    /// Returns the process id.
    pub(super) fn id(&self) -> u32 {
        self.process.as_raw().cast_unsigned()
    }

    /// Lets the process continue where it was stopped, or end if it was killed.
    pub(super) fn release(self) -> Result<(), Failure> {
        let process = self.process;
        let released = ptrace::setregs(process, self.registers).and_then(|()| ptrace::detach(process, None));
        match released {
            Err(Errno::ESRCH) => match waitpid(process, Some(WaitPidFlag::__WALL)) {
                // An earlier call has noticed its end.
                Ok(_) | Err(Errno::ECHILD) => Ok(()),
                Err(error) => Err(error.into()),
            },
            result => Ok(result?),
        }
    }

    /// Writes an argument to the memory of the process and returns its address. The address is valid until [`Tracee::clear`].
    pub(super) fn put(&mut self, bytes: &[u8]) -> Result<u64, Failure> {
        if self.arguments.0 == 0 {
            self.arguments.0 = self.map()?;
        }
        let (start, used) = self.arguments;
        if used + bytes.len() as u64 > MEMORY_BYTES {
            return Err("the arguments exceed their memory".into());
        }
        self.memory.write_all_at(bytes, start + used)?;
        // Each one starts at an address that any type may have.
        self.arguments.1 = (used + bytes.len() as u64).next_multiple_of(16);
        Ok(start + used)
    }

    /// Writes a text with a zero at its end.
    pub(super) fn put_text(&mut self, text: &str) -> Result<u64, Failure> {
        self.put(&[text.as_bytes(), &[0]].concat())
    }

    /// Writes numbers one after the other.
    pub(super) fn put_words(&mut self, words: &[u64]) -> Result<u64, Failure> {
        self.put(&words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>())
    }

    /// Reads from the memory of the process.
    pub(super) fn get(&self, address: u64, bytes: &mut [u8]) -> Result<(), Failure> {
        Ok(self.memory.read_exact_at(bytes, address)?)
    }

    /// Forgets all arguments.
    pub(super) fn clear(&mut self) {
        self.arguments.1 = 0;
    }

    /// Makes a system call.
    pub(super) fn call(&mut self, number: i64, arguments: [u64; 6]) -> Result<Answer, Failure> {
        let [rdi, rsi, rdx, r10, r8, r9] = arguments;
        // Without the number of the interrupted call, the kernel does not restart it.
        let registers = user_regs_struct {
            rip: self.instruction,
            rax: number.cast_unsigned(),
            orig_rax: u64::MAX,
            rdi,
            rsi,
            rdx,
            r10,
            r8,
            r9,
            ..self.registers
        };
        self.step(registers)
    }

    /// Makes a system call through the entry of 32-bit programs.
    pub(super) fn call_32(&mut self, number: i64) -> Result<Answer, Failure> {
        self.memory.write_all_at(&INT80, self.instruction)?;
        let answer = self.call(number, [0; 6])?;
        if !matches!(answer, Answer::Ended(_)) {
            self.memory.write_all_at(&SYSCALL, self.instruction)?;
        }
        Ok(answer)
    }

    /// Runs one instruction.
    fn step(&mut self, registers: user_regs_struct) -> Result<Answer, Failure> {
        match self.try_step(registers) {
            // Another process killed it.
            Err(error) if error.downcast_ref() == Some(&Errno::ESRCH) => match wait(self.process)? {
                Stop::Ended(signal) => Ok(Answer::Ended(signal)),
                Stop::Stopped => Err(error),
            },
            result => result,
        }
    }

    fn try_step(&mut self, registers: user_regs_struct) -> Result<Answer, Failure> {
        ptrace::setregs(self.process, registers)?;
        loop {
            ptrace::step(self.process, None)?;
            if let Stop::Ended(signal) = wait(self.process)? {
                return Ok(Answer::Ended(signal));
            }
            let after = ptrace::getregs(self.process)?;
            // A stop that was requested during the last call, or a signal, can come before the instruction.
            if after.rip == registers.rip && after.rax == registers.rax {
                continue;
            }
            return Ok(match after.rax.cast_signed() {
                result if RESTARTS.contains(&result) => Answer::Waits,
                result @ -4095..=-1 => Answer::Error(Errno::from_raw(-result as i32)),
                result => Answer::Value(result),
            });
        }
    }

    /// Returns the open descriptors that are sockets.
    pub(super) fn sockets(&self) -> Result<Vec<u64>, Failure> {
        let mut sockets = Vec::new();
        for entry in fs::read_dir(format!("/proc/{}/fd", self.process))?.flatten() {
            let is_socket =
                fs::read_link(entry.path()).is_ok_and(|to| to.to_string_lossy().starts_with("socket:"));
            sockets.extend(
                entry.file_name().to_str().filter(|_| is_socket).and_then(|name| name.parse::<u64>().ok()),
            );
        }
        sockets.sort_unstable();
        Ok(sockets)
    }
}

/// Returns true if the last instruction was a system call.
fn is_after_call(memory: &File, registers: &user_regs_struct) -> Result<bool, Failure> {
    let mut found = [0; SYSCALL.len()];
    memory.read_exact_at(&mut found, registers.rip - SYSCALL.len() as u64)?;
    Ok(found == SYSCALL)
}

/// Waits until the process stops or ends. Interrupts a call that waits.
fn wait(process: Pid) -> Result<Stop, Failure> {
    let begun = Instant::now();
    let mut is_interrupted = false;
    loop {
        match waitpid(process, Some(WaitPidFlag::WNOHANG | WaitPidFlag::__WALL))? {
            WaitStatus::StillAlive => {}
            WaitStatus::Exited(..) => return Ok(Stop::Ended(0)),
            WaitStatus::Signaled(_, signal, _) => return Ok(Stop::Ended(signal as i32)),
            _ => return Ok(Stop::Stopped),
        }
        if begun.elapsed() > PATIENCE {
            return Err(format!("process {process} does not stop").into());
        }
        if begun.elapsed() > WAITS && !is_interrupted {
            ptrace::interrupt(process)?;
            is_interrupted = true;
        }
        thread::sleep(Duration::from_micros(10));
    }
}
