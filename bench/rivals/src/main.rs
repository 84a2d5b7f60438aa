//! What handing a message on costs over iceoryx2 and over zenoh: a ping-pong of two processes, each on a processor
//! of its own, that `outboard-bench links --rivals` starts and asks for a number of messages at a time.
//!
//! `outboard-rivals MEANS BYTES`: a line with a number on standard input is answered by a line with as many times, half of
//! there and back, in nanoseconds. Messages are made outside the clock.

mod events;
mod network;

use rustix::process::{Signal, set_parent_process_death_signal};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Instant;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The processors of who asks and of who answers.
const CPUS: [usize; 2] = [0, 1];
/// The last argument of the process that answers: the name under which the two meet stands before it.
const ANSWERS: &str = "answers";

/// How messages go.
#[derive(Debug, Clone, Copy)]
enum Means {
    /// iceoryx2: publish and subscribe, with an event that wakes who waits.
    Iceoryx,
    /// zenoh between two peers on loopback TCP.
    Zenoh,
    /// The same with bodies in shared memory.
    ZenohShared,
}

/// The end that asks.
trait Asks {
    /// A message there and back.
    fn pass(&mut self) -> Result<(), Failure>;
}

/// The process that answers, until it is dropped.
struct Answerer(Child);

impl Drop for Answerer {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Takes a place on one of the two processors, as do threads that are started from now on.
fn settle(cpu: usize) -> Result<(), Failure> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

/// Starts the process that answers under a name, and waits until it is ready to.
fn answerer(means: &str, bytes: &str, name: &str) -> Result<Answerer, Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args([means, bytes, name, ANSWERS]).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = Answerer(command.spawn()?);
    let output = child.0.stdout.take().ok_or("the process that answers has no output")?;
    let mut output = BufReader::new(output);
    if output.read_line(&mut String::new())? == 0 {
        return Err("the process that answers has ended".into());
    }
    // Whoever waits for an answer then would wait for ever.
    std::thread::spawn(move || {
        let _ = output.read_line(&mut String::new());
        std::process::exit(1);
    });
    Ok(child)
}

/// The process that answers may be asked now.
fn tell_ready() -> Result<(), Failure> {
    println!("ready");
    Ok(std::io::stdout().flush()?)
}

/// Does as it is told on standard input.
fn serve(asks: &mut dyn Asks) -> Result<(), Failure> {
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
    let means = match name {
        "iceoryx2" => Means::Iceoryx,
        "zenoh" => Means::Zenoh,
        "zenoh-shm" => Means::ZenohShared,
        _ => return Err(format!("there is no {name}").into()),
    };
    let size: usize = bytes.parse()?;
    if let [_, _, meeting, ANSWERS] = words[..] {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        settle(CPUS[1])?;
        return match means {
            Means::Iceoryx => events::answer(meeting, size),
            Means::Zenoh | Means::ZenohShared => network::answer(meeting, size, means),
        };
    }
    settle(CPUS[0])?;
    let start = |meeting: &str| answerer(name, bytes, meeting);
    match means {
        Means::Iceoryx => serve(&mut events::Asker::new(size, start)?),
        Means::Zenoh | Means::ZenohShared => serve(&mut network::Asker::new(size, means, start)?),
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
