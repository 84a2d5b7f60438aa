//! What goes wrong.

use super::hosts::{ADDRESS_A, Host, Hosts, PORT};
use super::subject::{Class, Disk, Subject};
use crate::Failure;
use crate::chapter6::progress;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};
use std::{fmt, fs, thread};
use wire::PROTOCOL_VERSION;

/// A cause. It lasts some time, and then it is gone.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Fault {
    /// Nothing comes through, seconds.
    Cut(u64),
    /// The application's host has another address from here on.
    Address,
    /// Packets are lost, per cent.
    Loss(f64),
    /// The processes that a host's own started are killed.
    KillWorkers(Host),
    /// The process that the user started is killed, with what it started, and started again.
    Kill(Host),
    /// A host stands still, as in a suspend, seconds.
    Halt(Host, u64),
    /// The disk that the application writes to has no room.
    DiskFull,
    /// The device is taken out.
    Unplug,
    /// Somebody comes who speaks the version before.
    OldPeer,
    /// The network lets no UDP through for so many seconds.
    NoUdp(u64),
    /// Everybody's wall clock is a day ahead for a while.
    WallClock,
    /// The machine that both hosts are is suspended to memory, seconds: nothing runs, no clock but the wall's goes on.
    Suspend(u64),
    /// The application's host is a machine of its own and is suspended to memory, seconds; the device's host stays awake.
    SuspendApplication(u64),
}

/// In a guest of `lab/vm` that can be suspended.
const IN_RAM: &str = "/in-ram";
const DAY_S: i64 = 24 * 60 * 60;

impl Fault {
    /// All, in the order of the table.
    pub(crate) const EVERY: [Fault; 24] = [
        Fault::Cut(1),
        Fault::Cut(10),
        Fault::Cut(60),
        Fault::Address,
        Fault::Loss(0.1),
        Fault::Loss(1.0),
        Fault::Loss(5.0),
        Fault::Loss(20.0),
        Fault::KillWorkers(Host::Device),
        Fault::KillWorkers(Host::Application),
        Fault::Kill(Host::Device),
        Fault::Kill(Host::Application),
        Fault::Halt(Host::Device, 10),
        Fault::Halt(Host::Application, 10),
        Fault::DiskFull,
        Fault::Unplug,
        Fault::OldPeer,
        Fault::NoUdp(15),
        Fault::WallClock,
        Fault::Suspend(5),
        Fault::Suspend(90),
        Fault::SuspendApplication(5),
        Fault::SuspendApplication(35),
        Fault::SuspendApplication(90),
    ];

    /// Whether it can happen here, or why not.
    pub(crate) fn is_possible(self) -> Result<(), &'static str> {
        match self {
            Fault::WallClock if !Path::new("/run/lab").exists() => {
                Err("it happens to a whole machine; `lab/vm` boots one for it")
            }
            Fault::Suspend(_) if !Path::new(IN_RAM).exists() => {
                Err("it happens to a whole machine; `lab/vm --in-ram` boots one for it")
            }
            _ => Ok(()),
        }
    }

    /// Whether devices and applications of a class can have it, over a transport.
    pub(crate) fn befalls(self, class: Class, transport: &str) -> bool {
        match self {
            // Nothing stands in for a transport that was asked for, but for the one that nobody has to ask for.
            Fault::NoUdp(_) => transport == "quic",
            // A guest has no camera, and its application writes to no port.
            Fault::SuspendApplication(_) => !matches!(class, Class::Serial | Class::Camera),
            Fault::DiskFull => matches!(class, Class::File | Class::Video),
            Fault::Unplug => matches!(class, Class::Serial | Class::Input | Class::Camera),
            _ => true,
        }
    }

    /// Whether nothing else is tried meanwhile: everything on this machine has it, or the machine that has it takes a processor.
    pub(crate) fn wants_the_machine(self) -> bool {
        matches!(self, Fault::WallClock | Fault::Suspend(_) | Fault::SuspendApplication(_))
    }

    /// Whether a message that has entered a store may be lost: its keeper is gone.
    pub(crate) fn takes_the_store(self) -> bool {
        matches!(self, Fault::Kill(_))
    }

    /// Has it happen, and go away. `None`, with the reason, where it cannot happen.
    pub(crate) fn strike(
        self,
        hosts: &mut Hosts,
        subject: &mut Subject,
        disk: &Disk,
    ) -> Result<Result<Instant, &'static str>, Failure> {
        match self {
            Fault::Cut(seconds) => {
                hosts.lab.ask(&["cut"])?;
                thread::sleep(Duration::from_secs(seconds));
                hosts.lab.ask(&["restore"])?;
            }
            Fault::Address => {
                let namespace = hosts.lab.namespace("b");
                // The first address of a subnet would take the second with it.
                for (verb, address) in [("del", "10.77.0.2/24"), ("add", "10.77.0.12/24")] {
                    ip(&["-n", &namespace, "addr", verb, address, "dev", "wan0"])?;
                }
            }
            Fault::Loss(percent) => {
                hosts.lab.ask(&["set", &format!("loss={percent}%")])?;
                thread::sleep(Duration::from_secs(10));
                hosts.lab.ask(&["set", "loss=0%"])?;
            }
            Fault::KillWorkers(host) => {
                if hosts.kill_workers(host) == 0 {
                    return Ok(Err("it has no process but its own"));
                }
            }
            Fault::Kill(host) => {
                hosts.restart(host, || match host {
                    Host::Device => subject.begin_anew(),
                    Host::Application => Ok(()),
                })?;
            }
            Fault::Halt(host, seconds) => {
                hosts.halt(host, true);
                thread::sleep(Duration::from_secs(seconds));
                hosts.halt(host, false);
            }
            Fault::DiskFull => {
                disk.fill(true)?;
                thread::sleep(Duration::from_secs(5));
                disk.fill(false)?;
            }
            Fault::Unplug => {
                subject.unplug()?;
                thread::sleep(Duration::from_secs(3));
                subject.plug()?;
            }
            Fault::NoUdp(seconds) => {
                hosts.pass_udp(false)?;
                let since = Instant::now();
                thread::sleep(Duration::from_secs(seconds));
                let went_on = subject.made_after_came(since);
                hosts.pass_udp(true)?;
                let took =
                    went_on.ok_or("without UDP nothing flows any more")?.saturating_duration_since(since);
                progress(&format!("without UDP it went on after {:.0} ms", took.as_secs_f64() * 1e3));
            }
            Fault::WallClock => {
                turn_clock(DAY_S)?;
                thread::sleep(Duration::from_secs(5));
                turn_clock(-DAY_S)?;
            }
            Fault::Suspend(seconds) => suspend(seconds)?,
            Fault::SuspendApplication(_) => return Ok(Err("it has no machine of its own")),
            Fault::OldPeer => {
                let answer = hosts.lab.on("b", greet_as_of_old)?;
                if !answer.contains(&PROTOCOL_VERSION.to_string()) {
                    return Err(format!("a peer of another version is told {answer:?}").into());
                }
            }
        }
        Ok(Ok(Instant::now()))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |host: &Host| match host {
            Host::Device => "the device's host",
            Host::Application => "the application's host",
        };
        match self {
            Fault::Cut(seconds) => write!(f, "link cut for {seconds} s"),
            Fault::Address => f.write_str("the application's host gets another address"),
            Fault::Loss(percent) => write!(f, "{percent} % of packets lost, 10 s"),
            Fault::KillWorkers(host) => write!(f, "workers of {} killed", of(host)),
            Fault::Kill(host) => write!(f, "all of {} killed and started again", of(host)),
            Fault::Halt(host, seconds) => write!(f, "{} asleep for {seconds} s", of(host)),
            Fault::DiskFull => f.write_str("disk full for 5 s"),
            Fault::Unplug => f.write_str("device unplugged for 3 s"),
            Fault::OldPeer => f.write_str("a peer of the version before comes"),
            Fault::NoUdp(seconds) => write!(f, "no UDP for {seconds} s"),
            Fault::WallClock => f.write_str("wall clock a day ahead for 5 s"),
            Fault::Suspend(seconds) => write!(f, "both hosts suspended for {seconds} s"),
            Fault::SuspendApplication(seconds) => {
                write!(f, "the application's host suspended for {seconds} s")
            }
        }
    }
}

/// Says the preamble of the version before; what comes back, as text.
fn greet_as_of_old() -> Result<String, Failure> {
    let mut stream = TcpStream::connect((ADDRESS_A, PORT))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut preamble = wire::Preamble::SecureControl.emit();
    preamble[4..6].copy_from_slice(&(PROTOCOL_VERSION - 1).to_le_bytes());
    stream.write_all(&preamble)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// Sets the wall clock by so many seconds.
fn turn_clock(by_s: i64) -> Result<(), Failure> {
    let now_s = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
    done("date", &["-s", &format!("@{}", now_s.saturating_add_signed(by_s))])
}

/// Suspends this machine to memory; its clock's alarm wakes it. Comes back when everything runs again.
pub(crate) fn suspend(seconds: u64) -> Result<(), Failure> {
    const ALARM: &str = "/sys/class/rtc/rtc0/wakealarm";
    // What was set before must go first.
    fs::write(ALARM, "0")?;
    fs::write(ALARM, format!("+{seconds}"))?;
    let before = boot_time();
    fs::write("/sys/power/state", "mem")?;
    let slept = boot_time().saturating_sub(before);
    match slept.as_secs() + 2 >= seconds {
        true => Ok(()),
        false => Err(format!("it slept {:.1} s of {seconds}", slept.as_secs_f64()).into()),
    }
}

/// Of the clock that goes on in a suspend.
fn boot_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

pub(crate) fn ip(words: &[&str]) -> Result<(), Failure> {
    done("ip", words)
}

fn done(program: &str, words: &[&str]) -> Result<(), Failure> {
    let output = Command::new(program).args(words).output()?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(format!("{program} {}: {}", words.join(" "), said.trim()).into())
        }
    }
}
