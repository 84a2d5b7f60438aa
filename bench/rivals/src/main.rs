//! The cost of a message between two processes with iceoryx2 and zenoh. `outboard-bench links --rivals` starts the program.
//! Each process runs on a processor of its own.
//!
//! `outboard-rivals LIBRARY BYTES` reads counts from standard input. For each count it passes that many messages back and
//! forth, and writes a line with half the time of each round trip in nanoseconds. Creating messages is not part of the time.

mod events;
mod network;

use rustix::process::{Signal, set_parent_process_death_signal};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Instant;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The processors of the asking and of the answering process.
const CPUS: [usize; 2] = [0, 1];
/// The last argument of the answering process. The common name of both processes is the argument before it.
const ANSWERS: &str = "answers";

/// The library that carries the messages.
#[derive(Debug, Clone, Copy)]
enum Library {
    /// iceoryx2: publish and subscribe, with an event that wakes the waiting process.
    Iceoryx,
    /// zenoh between two peers on loopback TCP.
    Zenoh,
    /// zenoh with bodies in shared memory.
    ZenohShared,
}

/// The asking end.
trait Ask {
    /// Passes a message to the other process and back.
    fn pass(&mut self) -> Result<(), Failure>;
}

/// The answering process. Dropping the value kills it.
struct Answerer(Child);

impl Drop for Answerer {
    fn drop(&mut self) {
        // The process may have exited.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Binds the thread, and all threads that it starts later, to one processor.
fn settle(cpu: usize) -> Result<(), Failure> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

/// Starts the answering process with a name and waits until it is ready.
fn answerer(library: &str, bytes: &str, name: &str) -> Result<Answerer, Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args([library, bytes, name, ANSWERS]).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = Answerer(command.spawn()?);
    let output = child.0.stdout.take().ok_or("the answering process has no output")?;
    let mut output = BufReader::new(output);
    if output.read_line(&mut String::new())? == 0 {
        return Err("the answering process has exited".into());
    }
    // When the answering process exits, no answer arrives any more.
    std::thread::spawn(move || {
        let _ = output.read_line(&mut String::new());
        std::process::exit(1);
    });
    Ok(child)
}

/// Reports that the answering process is ready.
fn report_ready() -> Result<(), Failure> {
    println!("ready");
    Ok(std::io::stdout().flush()?)
}

/// Serves the counts from standard input.
fn serve(asks: &mut dyn Ask) -> Result<(), Failure> {
    for line in std::io::stdin().lines() {
        let count: usize = line?.trim().parse()?;
        let mut times = Vec::with_capacity(count);
        for _ in 0..count {
            let begun = Instant::now();
            asks.pass()?;
            times.push((begun.elapsed().as_nanos() / 2).to_string());
        }
        println!("{}", times.join(" "));
        std::io::stdout().flush()?;
    }
    Ok(())
}

fn run() -> Result<(), Failure> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (name, bytes) = match words[..] {
        [name, bytes] | [name, bytes, _, ANSWERS] => (name, bytes),
        _ => return Err("usage: outboard-rivals iceoryx2|zenoh|zenoh-shm BYTES".into()),
    };
    let library = match name {
        "iceoryx2" => Library::Iceoryx,
        "zenoh" => Library::Zenoh,
        "zenoh-shm" => Library::ZenohShared,
        _ => return Err(format!("no library {name}").into()),
    };
    let size: usize = bytes.parse()?;
    if let [_, _, meeting, ANSWERS] = words[..] {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        settle(CPUS[1])?;
        return match library {
            Library::Iceoryx => events::answer(meeting, size),
            Library::Zenoh | Library::ZenohShared => network::answer(meeting, size, library),
        };
    }
    settle(CPUS[0])?;
    let start = |meeting: &str| answerer(name, bytes, meeting);
    match library {
        Library::Iceoryx => serve(&mut events::Asker::new(size, start)?),
        Library::Zenoh | Library::ZenohShared => serve(&mut network::Asker::new(size, library, start)?),
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("outboard-rivals: {error}");
            ExitCode::FAILURE
        }
    }
}
