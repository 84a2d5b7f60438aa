//! A laptop: the application's host as a machine of its own (`lab/vm`), on the same network, which is suspended while the device's
//! host stays awake.

use super::fault::suspend;
use super::hosts::{DEVICE, Host, Hosts, Service, Told, attach_words};
use super::port::{End, Port};
use super::subject::{Class, Ended, Made, open_application, pressed};
use super::unit::Reader;
use super::{CALM, PATIENCE, Seen, wait_for};
use crate::Failure;
use crate::chapter6::beside;
use clap::{Args, ValueEnum};
use serde_json::json;
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use sys::input::Bits;

/// For a guest to boot, and to begin.
const BOOT: Duration = Duration::from_secs(120);
/// For a kernel to suspend the machine.
const FALLING_ASLEEP: Duration = Duration::from_millis(500);
/// When nothing came for so long, nothing more comes.
const SILENCE: Duration = Duration::from_secs(5);
const READ_BYTES: usize = 64 << 10;

/// What the guest's program is told.
#[derive(Args, Debug, Clone)]
pub(crate) struct SleeperSetting {
    /// Class of the device
    class: Class,
    /// What is attached
    from: String,
    /// As what
    application: String,
    /// Where that is
    out: PathBuf,
    /// How long it sleeps, seconds
    seconds: u64,
}

/// The guest's program: it attaches the device, and writes what the application reads to standard output. When units have
/// come for a while, it suspends the machine. What happens it tells as events on standard error.
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
        let length = port.read(&mut bytes).ok_or("what the application reads begins anew")?;
        std::io::stdout().write_all(&bytes[..length])?;
        std::io::stdout().flush()?;
        if !reader.read(&bytes[..length]).is_empty() {
            last = Instant::now();
            first.get_or_insert(last);
        }
        if first.is_none() && last.elapsed() > PATIENCE {
            return Err("nothing flows, before anything is done".into());
        }
        if !has_slept && first.is_some_and(|first| first.elapsed() > CALM) {
            tell(&json!({ "event": "suspends" }));
            suspend(*seconds)?;
            tell(&json!({ "event": "woke" }));
            (has_slept, last) = (true, Instant::now() + PATIENCE.saturating_sub(SILENCE));
        }
    }
    let pressed = if *class == Class::Input { pressed(&File::open(out)?)? } else { Bits::new() };
    tell(&json!({
        "event": "ended",
        "told": attach.told(DEVICE, class.unit()),
        "node_losses": port.losses(),
        "pressed": pressed.iter().collect::<Vec<_>>(),
    }));
    Ok(())
}

fn tell(event: &serde_json::Value) {
    eprintln!("{event}");
}

/// Shares `made`, has a guest attach it and sleep, and counts. `vm` boots it.
pub(super) fn look(
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
    let tells = guest.stderr.take().ok_or("it has no standard error")?;
    let mut guest = Service::of(guest, tells);
    let reads = OwnedFd::from(reads);
    rustix::io::ioctl_fionbio(&reads, true)?;
    let mut subject = made.begin_far(Port::hardware(End::File(reads.into())));
    guest.wait_for("suspends", None, BOOT)?;
    // No network keeps packets for who sleeps, but the emulator does.
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
    let told: Told = serde_json::from_value(of_guest["told"].clone())?;
    let mut pressed = Bits::new();
    for code in of_guest["pressed"].as_array().into_iter().flatten() {
        pressed.set(code.as_u64().unwrap_or_default() as u16, true);
    }
    let stuck = if class == Class::Input { subject.stuck(&pressed)? } else { 0 };
    let node_losses = of_guest["node_losses"].as_u64().unwrap_or_default();
    let told = told.and(hosts.told(DEVICE, class.unit()));
    Ok(Seen { ended: Ended { stuck, node_losses, ..ended }, recovery, told })
}
