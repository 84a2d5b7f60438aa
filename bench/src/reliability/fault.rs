//! What goes wrong.

use super::hosts::{ADDRESS_A, Host, Hosts, PORT};
use super::subject::{Class, Disk, Subject};
use crate::Failure;
use std::fmt;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};
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
}

impl Fault {
    /// All, in the order of the table.
    pub(crate) const EVERY: [Fault; 17] = [
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
    ];

    /// Whether devices and applications of a class can have it.
    pub(crate) fn befalls(self, class: Class) -> bool {
        match self {
            Fault::DiskFull => matches!(class, Class::File | Class::Video),
            Fault::Unplug => matches!(class, Class::Serial | Class::Input),
            _ => true,
        }
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
                subject.unplug();
                thread::sleep(Duration::from_secs(3));
                subject.plug()?;
            }
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

fn ip(words: &[&str]) -> Result<(), Failure> {
    let output = Command::new("ip").args(words).output()?;
    match output.status.success() {
        true => Ok(()),
        false => {
            Err(format!("ip {}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim()).into())
        }
    }
}
