//! An application host like a laptop: a separate machine (`lab/vm`) on the same network, suspended while the device host
//! stays awake.

use super::fault::suspend;
use super::hosts::{DEVICE, Host, Hosts, Reported, Service, attach_words};
use super::outcome::{CALM, PATIENCE, Seen, wait_for};
use super::port::{End, Port};
use super::subject::{Class, Ended, Made, open_application, pressed};
use super::unit::Reader;
use crate::programs::beside;
use crate::setting::Failure;
use clap::{Args, ValueEnum};
use serde_json::json;
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use sys::input::Bits;

/// The longest boot of a guest.
const BOOT: Duration = Duration::from_secs(120);
/// The time in which a kernel suspends the machine.
const FALLING_ASLEEP: Duration = Duration::from_millis(500);
/// The flow has ended after this time without a unit.
const SILENCE: Duration = Duration::from_secs(5);
const READ_BYTES: usize = 64 << 10;

/// The arguments of the guest's program.
#[derive(Args, Debug, Clone)]
pub(crate) struct SleeperSetting {
    /// Class of the device
    class: Class,
    /// Address to attach
    from: String,
    /// Application side
    application: String,
    /// Path of the application's node
    out: PathBuf,
    /// Seconds of the suspend
    seconds: u64,
}

/// Runs the guest's program: attaches the device, writes the application's input to standard output, suspends the machine
/// after a while, and prints events to standard error.
pub(crate) fn sleep(setting: &SleeperSetting) -> Result<(), Failure> {
    let SleeperSetting { class, from, application, out, seconds } = setting;
    if let Some(directory) = out.parent() {
        fs::create_dir_all(directory)?;
    }
    let mut attach = Command::new(beside("outboard")?);
    attach.args(attach_words(from, application));
    let mut attach = Service::start(attach)?;
    let attached = attach.wait("attached")?;
    let (port, out) = open_application(*class, attached["node"].as_str().unwrap_or_default(), out)?;
    let mut reader = Reader::new(class.unit());
    let mut first = None;
    let mut last = Instant::now();
    let mut has_slept = false;
    let mut bytes = vec![0; READ_BYTES];
    while !has_slept || last.elapsed() < SILENCE {
        let length = port.read(&mut bytes).ok_or("the application's file starts again")?;
        std::io::stdout().write_all(&bytes[..length])?;
        std::io::stdout().flush()?;
        if !reader.read(&bytes[..length]).is_empty() {
            last = Instant::now();
            first.get_or_insert(last);
        }
        if first.is_none() && last.elapsed() > PATIENCE {
            return Err("no unit arrives before the suspend".into());
        }
        if !has_slept && first.is_some_and(|first| first.elapsed() > CALM) {
            print(&json!({ "event": "suspends" }));
            suspend(*seconds)?;
            print(&json!({ "event": "woke" }));
            (has_slept, last) = (true, Instant::now() + PATIENCE.saturating_sub(SILENCE));
        }
    }
    let pressed = if *class == Class::Input { pressed(&File::open(out)?)? } else { Bits::new() };
    print(&json!({
        "event": "ended",
        "reported": attach.reported(DEVICE, class.unit()),
        "node_losses": port.losses(),
        "pressed": pressed.iter().collect::<Vec<_>>(),
    }));
    Ok(())
}

fn print(event: &serde_json::Value) {
    eprintln!("{event}");
}

/// Shares `made` with a guest that attaches it and suspends. `vm` boots the guest.
pub(super) fn measure(
    seconds: u64,
    hosts: &mut Hosts,
    made: Made,
    class: Class,
    vm: &Path,
) -> Result<Seen, Failure> {
    hosts.share(&made.shared)?;
    let bench = std::env::current_exe()?;
    let mut guest = hosts.lab.program(Host::Application.letter(), &vm.display().to_string());
    guest.args(["--network", "--modules", "uinput,evdev"]);
    for program in [&bench, &beside("outboard")?] {
        guest.arg("--in-ram").arg(program);
    }
    for (name, home) in hosts.homes(Host::Application) {
        guest.arg("--in-ram").arg(&home).arg("--env").arg(format!("{name}={}", home.display()));
    }
    guest.arg("--").arg(&bench).arg("sleeper");
    guest.arg(class.to_possible_value().ok_or("the class has no name")?.get_name());
    guest.args([&hosts.from(), &made.used]).arg(&made.out).arg(seconds.to_string());
    let mut guest = guest.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let reads = guest.stdout.take().ok_or("it has no standard output")?;
    let events = guest.stderr.take().ok_or("it has no standard error")?;
    let mut guest = Service::of(guest, events);
    let reads = OwnedFd::from(reads);
    rustix::io::ioctl_fionbio(&reads, true)?;
    let mut subject = made.begin_far(Port::hardware(End::File(reads.into())));
    guest.wait_for("suspends", None, BOOT)?;
    // The emulator would queue packets for the suspended machine; a real network drops them.
    std::thread::sleep(FALLING_ASLEEP);
    hosts.lab.ask(&["cut"])?;
    let asleep = Duration::from_secs(seconds);
    guest.wait_for("woke", None, asleep + PATIENCE)?;
    hosts.lab.ask(&["restore"])?;
    let woke = Instant::now();
    let recovery = wait_for(&subject, woke).map(|came| came.saturating_duration_since(woke));
    std::thread::sleep(CALM);
    let ended = subject.end(PATIENCE)?;
    let (_, of_guest) = guest.wait_for("ended", None, 2 * PATIENCE)?;
    let reported: Reported = serde_json::from_value(of_guest["reported"].clone())?;
    let mut pressed = Bits::new();
    for code in of_guest["pressed"].as_array().into_iter().flatten() {
        pressed.set(code.as_u64().unwrap_or_default() as u16, true);
    }
    let stuck = if class == Class::Input { subject.stuck(&pressed)? } else { 0 };
    let node_losses = of_guest["node_losses"].as_u64().unwrap_or_default();
    let reported = reported.and(hosts.reported(DEVICE, class.unit()));
    Ok(Seen { ended: Ended { stuck, node_losses, ..ended }, recovery, reported })
}
