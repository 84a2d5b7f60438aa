//! netlab: hosts in network namespaces, joined by an emulated link, on any Linux kernel. The model of the link is
//! that of `netsim`; it runs in user space between TUN devices. For tests and benchmarks of network programs.
//!
//! This file is the command line; `lab` manages the life cycle of a lab, `emulator` carries the packets.
//!
//! Read `status` after a measurement: on a busy machine the link is late, and `late_over_200us` counts such
//! packets. An undisturbed packet takes about 0.05 ms more than the delay, each way.

mod emulator;
mod gso;
mod lab;

use emulator::{Setup, enter_namespace, serve};
use lab::{HOSTS_MAX, Lab, Result, wait_until};
use netsim::Params;
use std::ops::RangeInclusive;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitCode};
use std::sync::mpsc;
use std::time::Duration;
use sys::signal::Termination;

const USAGE: &str = "usage:
  netlab up      [--name lab] [--hosts 2] [--cc cubic|reno|bbr] [--mtu 1500] [--no-gso] [--seed N] [LINK...]
  netlab set     [--name lab] [--from HOST] LINK...    change the links live (one host's outgoing link, or all)
  netlab cut     [--name lab] [--from HOST]            nothing comes through
  netlab restore [--name lab] [--from HOST]
  netlab status  [--name lab]                          parameters and counters
  netlab exec    [--name lab] HOST -- COMMAND...       run a command in a host (a, b, ...)
  netlab down    [--name lab | --all]                  end the lab and the processes in it
  netlab run     [options of up] [LINK...] -- a: COMMAND... [-- b: COMMAND...]...
                 a lab for as long as the last command runs; exits with its status
LINK: delay=20ms jitter=5ms reorder|in-order loss=0.1% burst=1%/8 duplicate=0.1% corrupt=0.1%
      rate=900mbit|unlimited queue=1000 down|up
Host a is 10.77.0.1 and fd77::1, b is 10.77.0.2 and fd77::2, and so on; namespaces NAME-a, NAME-b, ...
Needs root, /dev/net/tun and iproute2.";

/// Exit status after an interrupt by the user, as in a shell.
const INTERRUPTED: u8 = 130;
/// Pause between the starts of the commands of `run`.
const START_GAP: Duration = Duration::from_millis(300);
/// After the last command of `run` has ended, time for the others to end.
const LINGER: Duration = Duration::from_millis(500);

/// Removes `flag` and its value from `args`.
fn option(args: &mut Vec<String>, flag: &str) -> Result<Option<String>> {
    let Some(at) = args.iter().position(|arg| arg == flag) else { return Ok(None) };
    if at + 1 == args.len() {
        return Err(format!("{flag} needs a value").into());
    }
    args.remove(at);
    Ok(Some(args.remove(at)))
}

/// Removes `flag` from `args`. Returns true if it was there.
fn switch(args: &mut Vec<String>, flag: &str) -> bool {
    let before = args.len();
    args.retain(|arg| arg != flag);
    args.len() < before
}

fn number(args: &mut Vec<String>, flag: &str, default: u64, range: RangeInclusive<u64>) -> Result<u64> {
    let Some(text) = option(args, flag)? else { return Ok(default) };
    let value = text.parse().ok().filter(|value| range.contains(value));
    value.ok_or_else(|| format!("{flag} {text}: give {} to {}", range.start(), range.end()).into())
}

/// Parses the arguments of `up`; rejects any others.
fn read_setup(mut args: Vec<String>) -> Result<Setup> {
    let by_chance = u64::from(std::process::id()) ^ sys::clock::boot_ns();
    Ok(Setup {
        hosts: number(&mut args, "--hosts", 2, 2..=HOSTS_MAX as u64)? as usize,
        mtu: number(&mut args, "--mtu", 1500, 1280..=65535)? as u32,
        congestion_control: option(&mut args, "--cc")?.unwrap_or("cubic".into()),
        large_segments: !switch(&mut args, "--no-gso"),
        seed: number(&mut args, "--seed", by_chance, 0..=u64::MAX)?,
        params: args.join(",").parse::<Params>()?,
    })
}

fn up(lab: &Lab, args: &[String]) -> Result<()> {
    let setup = read_setup(args.to_vec())?;
    lab.up(setup.hosts, args)
}

/// Executes the command in a host of the lab. Returns only on an error.
fn exec(lab: &Lab, host: &str, argv: &[String]) -> Result<u8> {
    let (program, args) = argv.split_first().ok_or("no command given after --")?;
    enter_namespace(&lab.open_namespace(host)?)?;
    let error = Command::new(program).args(args).exec();
    Err(format!("{program}: {error}").into())
}

/// `LINK... -- a: COMMAND -- b: COMMAND`: starts the commands in order. Soon after the last one has ended, removes
/// the lab with all processes that still run in it.
fn run(lab: &Lab, options: &[String], commands: &[String]) -> Result<u8> {
    let mut parsed = Vec::new();
    for part in commands.split(|word| word == "--").skip(1) {
        let (head, argv) = part.split_first().ok_or("nothing after --")?;
        let host = head.strip_suffix(':').ok_or_else(|| format!("write a: or b: after --, not {head}"))?;
        if argv.is_empty() {
            return Err(format!("no command after {head}").into());
        }
        parsed.push((host, argv));
    }
    if parsed.is_empty() {
        return Err("no commands given: -- a: COMMAND".into());
    }
    let termination = Termination::take_over()?;
    up(lab, options)?;
    let result = run_commands(lab, &parsed, termination);
    if matches!(result, Ok(status) if status != INTERRUPTED) {
        wait_until(LINGER, || lab.processes().is_empty());
    }
    lab.down()?;
    result
}

fn run_commands(lab: &Lab, commands: &[(&str, &[String])], termination: Termination) -> Result<u8> {
    let (ended, end) = mpsc::channel();
    let interrupted = ended.clone();
    std::thread::spawn(move || {
        termination.wait();
        let _ = interrupted.send(INTERRUPTED);
    });
    for (index, (host, argv)) in commands.iter().enumerate() {
        if index > 0 && end.recv_timeout(START_GAP).is_ok() {
            return Ok(INTERRUPTED);
        }
        lab.open_namespace(host)?;
        let mut child = Command::new("/proc/self/exe")
            .args(["exec", "--name", lab.name(), host, "--"])
            .args(*argv)
            .spawn()?;
        if index + 1 == commands.len() {
            let ended = ended.clone();
            std::thread::spawn(move || {
                let code = |status: std::process::ExitStatus| {
                    status.code().unwrap_or(128 + status.signal().unwrap_or(0)) as u8
                };
                let _ = ended.send(child.wait().map_or(1, code));
            });
        }
    }
    Ok(end.recv()?)
}

fn dispatch(mut args: Vec<String>) -> Result<u8> {
    let verb = if args.is_empty() { String::new() } else { args.remove(0) };
    // Options end at the first `--`; the rest is the command to run.
    let tail = args.split_off(args.iter().position(|arg| arg == "--").unwrap_or(args.len()));
    let default = if verb == "run" { format!("run-{}", std::process::id()) } else { "lab".into() };
    let lab = Lab::new(&option(&mut args, "--name")?.unwrap_or(default))?;
    match verb.as_str() {
        "up" => up(&lab, &args)?,
        "set" | "cut" | "restore" => {
            let from = option(&mut args, "--from")?.unwrap_or_default();
            let text = match verb.as_str() {
                "cut" => "down".into(),
                "restore" => "up".into(),
                _ if args.is_empty() => return Err("set what? delay=20ms, for example".into()),
                _ => args.join(","),
            };
            print!("{}", lab.request(&["set", &from, &text])?);
        }
        "status" => print!("{}", lab.request(&["status"])?),
        "exec" => match &args[..] {
            [host] => return exec(&lab, host, tail.get(1..).unwrap_or_default()),
            _ => return Err("usage: netlab exec [--name lab] HOST -- COMMAND...".into()),
        },
        "down" if switch(&mut args, "--all") => Lab::all().iter().try_for_each(Lab::down)?,
        "down" => lab.down()?,
        "run" => return run(&lab, &args, &tail),
        // Started by `up`, which has checked the arguments.
        "emulate" => serve(&lab, &read_setup(args)?)?,
        "help" | "--help" | "-h" => println!("{USAGE}"),
        _ => return Err(USAGE.into()),
    }
    Ok(0)
}

fn main() -> ExitCode {
    match dispatch(std::env::args().skip(1).collect()) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("netlab: {error}");
            ExitCode::from(2)
        }
    }
}
