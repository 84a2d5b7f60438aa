//! The faults.

use super::hosts::{ADDRESS_A, Host, Hosts, PORT};
use super::subject::{Class, Disk, Subject};
use crate::lab::ip;
use crate::programs::{progress, run};
use crate::setting::Failure;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};
use std::{fmt, fs, thread};
use wire::PROTOCOL_VERSION;

/// A fault. Its cause lasts for some time and then ends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Fault {
    /// The link is cut, seconds.
    Cut(u64),
    /// The application host gets another address.
    Address,
    /// The link drops packets, per cent.
    Loss(f64),
    /// The workers of a host are killed.
    KillWorkers(Host),
    /// All processes of a host are killed, and the user's is started again.
    Kill(Host),
    /// The processes of a host are stopped, as in a suspend, seconds.
    Halt(Host, u64),
    /// The application's disk is full.
    DiskFull,
    /// The device is unplugged.
    Unplug,
    /// A peer with the previous protocol version connects.
    OldPeer,
    /// The network drops UDP, seconds.
    NoUdp(u64),
    /// The wall clock of both hosts is a day ahead.
    WallClock,
    /// The machine of both hosts is suspended to memory, seconds. Only the wall clock advances.
    Suspend(u64),
    /// The application host is a separate machine and is suspended to memory, seconds. The device host stays awake.
    SuspendApplication(u64),
}

/// Exists in a guest of `lab/vm` that can be suspended.
const IN_RAM: &str = "/in-ram";
const DAY_S: i64 = 24 * 60 * 60;

impl Fault {
    /// All faults in the order of the table.
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

    /// Returns the reason if the fault cannot be injected on this machine.
    pub(crate) fn is_possible(self) -> Result<(), &'static str> {
        match self {
            Fault::WallClock if !Path::new("/run/lab").exists() => {
                Err("it needs a whole machine: `lab/vm` boots one")
            }
            Fault::Suspend(_) if !Path::new(IN_RAM).exists() => {
                Err("it needs a whole machine: `lab/vm --in-ram` boots one")
            }
            _ => Ok(()),
        }
    }

    /// Returns true if the fault applies to a class of devices over a transport.
    pub(crate) fn applies_to(self, class: Class, transport: &str) -> bool {
        match self {
            // Only the default transport has a fallback.
            Fault::NoUdp(_) => transport == "quic",
            // The guest has no camera, and its application writes to no serial port.
            Fault::SuspendApplication(_) => !matches!(class, Class::Serial | Class::Camera),
            Fault::DiskFull => matches!(class, Class::File | Class::Video),
            Fault::Unplug => matches!(class, Class::Serial | Class::Input | Class::Camera),
            _ => true,
        }
    }

    /// Returns true if no other cell may run meanwhile: the fault affects the whole machine or needs a processor for a
    /// guest.
    pub(crate) fn needs_the_machine(self) -> bool {
        matches!(self, Fault::WallClock | Fault::Suspend(_) | Fault::SuspendApplication(_))
    }

    /// Returns true if the fault loses a replay store with its messages.
    pub(crate) fn loses_the_store(self) -> bool {
        matches!(self, Fault::Kill(_))
    }

    /// Injects the fault and ends its cause. Returns the time of the end, or the reason if the fault is impossible.
    pub(crate) fn inject(
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
                // Removing the first address of a subnet would remove a second one too.
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
                    return Ok(Err("the host has no workers"));
                }
            }
            Fault::Kill(host) => {
                hosts.restart(host, || match host {
                    Host::Device => subject.restart_source(),
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
                let resumed = subject.made_after_came(since);
                hosts.pass_udp(true)?;
                let took = resumed.ok_or("without UDP no unit arrives")?.saturating_duration_since(since);
                progress(&format!("without UDP the flow resumed after {:.0} ms", took.as_secs_f64() * 1e3));
            }
            Fault::WallClock => {
                turn_clock(DAY_S)?;
                thread::sleep(Duration::from_secs(5));
                turn_clock(-DAY_S)?;
            }
            Fault::Suspend(seconds) => suspend(seconds)?,
            Fault::SuspendApplication(_) => return Ok(Err("the application host is no separate machine")),
            Fault::OldPeer => {
                let answer = hosts.lab.on("b", greet_with_old_version)?;
                if !answer.contains(&PROTOCOL_VERSION.to_string()) {
                    return Err(format!("a peer with another version receives {answer:?}").into());
                }
            }
        }
        Ok(Ok(Instant::now()))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |host: &Host| match host {
            Host::Device => "the device host",
            Host::Application => "the application host",
        };
        match self {
            Fault::Cut(seconds) => write!(f, "link cut for {seconds} s"),
            Fault::Address => f.write_str("the application host gets another address"),
            Fault::Loss(percent) => write!(f, "{percent} % of packets lost, 10 s"),
            Fault::KillWorkers(host) => write!(f, "workers of {} killed", of(host)),
            Fault::Kill(host) => write!(f, "all of {} killed and restarted", of(host)),
            Fault::Halt(host, seconds) => write!(f, "{} stopped for {seconds} s", of(host)),
            Fault::DiskFull => f.write_str("disk full for 5 s"),
            Fault::Unplug => f.write_str("device unplugged for 3 s"),
            Fault::OldPeer => f.write_str("a peer with the previous version connects"),
            Fault::NoUdp(seconds) => write!(f, "no UDP for {seconds} s"),
            Fault::WallClock => f.write_str("wall clock a day ahead for 5 s"),
            Fault::Suspend(seconds) => write!(f, "both hosts suspended for {seconds} s"),
            Fault::SuspendApplication(seconds) => {
                write!(f, "the application host suspended for {seconds} s")
            }
        }
    }
}

/// Sends the preamble of the previous protocol version and returns the answer as text.
fn greet_with_old_version() -> Result<String, Failure> {
    let mut stream = TcpStream::connect((ADDRESS_A, PORT))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut preamble = wire::Preamble::SecureControl.emit();
    preamble[4..6].copy_from_slice(&(PROTOCOL_VERSION - 1).to_le_bytes());
    stream.write_all(&preamble)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// Moves the wall clock by this many seconds.
fn turn_clock(by_s: i64) -> Result<(), Failure> {
    let now_s = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
    run("date", &["-s", &format!("@{}", now_s.saturating_add_signed(by_s))])
}

/// Suspends this machine to memory until its clock's alarm. Returns after the resume.
pub(crate) fn suspend(seconds: u64) -> Result<(), Failure> {
    const ALARM: &str = "/sys/class/rtc/rtc0/wakealarm";
    // The kernel refuses a new alarm while one is set.
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

/// Returns the time of the clock that advances in a suspend.
fn boot_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}
