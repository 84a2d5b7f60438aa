//! The attacked hosts: a device host with a serial port that delivers 24 bytes 125 times a second, and an application host.
//! The probe records the delay of each unit and checks that it arrives once, whole and in order.

use super::assault::{Attack, AttackerSetting, Priority, Relation};
use super::awake::Awake;
use crate::lab::Lab;
use crate::measure::Times;
use crate::processes;
use crate::programs::beside;
use crate::reliability::hosts::{ADDRESS_A, PORT, Service};
use crate::reliability::port::{Port, Written, serial_port};
use crate::setting::Failure;
use clap::ValueEnum;
use netsim::Rng;
use serde_json::json;
use std::fs;
use std::io::Read;
use std::net::SocketAddr;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use trust::{PeerKey, Trust};

/// Seed of intervals and of the order of turns.
pub(super) const SEED: u64 = 1995;

/// The place of the two hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Place {
    /// Two namespaces, 5 ms each way
    Lab,
    /// One network namespace
    Loopback,
}

/// Shortest and longest interval of units, like a keyboard's or a mouse's. A constant interval of 8 ms would put all units
/// of a turn at the same phase of the kernel's tick of 4 ms.
const INTERVAL_US: [u64; 2] = [6000, 10_000];
/// Bytes of a unit: creation time and number.
const UNIT_BYTES: usize = 24;
const PATIENCE: Duration = Duration::from_secs(20);
/// The processors of the device host and of the other processes. On a shared one each would delay the other.
const DEVICE_HOST_CPU: usize = 0;
const OTHER_CPU: usize = 1;

/// The processor of a device host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Processor {
    /// The processor of the running flow's device host.
    DeviceHost,
    /// The attacker's processor, with its priority.
    Attacker(Priority),
}

impl Processor {
    /// Starts a program there. The thread that reads its events runs elsewhere.
    fn start(self, command: Command) -> Result<Service, Failure> {
        let here = || {
            match self {
                Processor::DeviceHost => drop(crate::setting::pin_to_cpu(DEVICE_HOST_CPU)),
                Processor::Attacker(priority) => priority.take(),
            }
            Service::spawn(command)
        };
        // A program inherits processor and priority of the starting thread.
        let started = thread::scope(|scope| scope.spawn(here).join());
        let (child, events) = started.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok(Service::of(child, events))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The received units of the flow.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) times: Times,
    /// Bytes of an incomplete unit.
    rest: Vec<u8>,
    next: u64,
    /// Units that are not the expected next one.
    pub(super) wrong: u64,
}

impl Seen {
    fn take(&mut self, bytes: &[u8]) {
        let now = sys::clock::boot_ns();
        self.rest.extend_from_slice(bytes);
        let whole = self.rest.len() / UNIT_BYTES * UNIT_BYTES;
        for unit in self.rest.drain(..whole).collect::<Vec<_>>().chunks(UNIT_BYTES) {
            let text = std::str::from_utf8(unit).unwrap_or_default();
            let made = text.get(..16).and_then(|hex| u64::from_str_radix(hex, 16).ok());
            let number = text.get(17..23).and_then(|digits| digits.parse::<u64>().ok());
            match (made, number) {
                (Some(made), Some(number)) if number == self.next % 1_000_000 => {
                    self.times.add(now.saturating_sub(made));
                }
                _ => self.wrong += 1,
            }
            self.next += 1;
        }
    }
}

/// Sends and receives units until it is dropped.
struct Probe {
    seen: Arc<Mutex<Seen>>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Probe {
    fn start(hardware: Port, application: Port) -> Probe {
        let (seen, stop) = (Arc::<Mutex<Seen>>::default(), Arc::<AtomicBool>::default());
        let (until, by) = (stop.clone(), stop.clone());
        let make = move || {
            sys::thread::be_punctual();
            // The thread simulates hardware. Without the privilege it is late at times.
            sys::thread::be_urgent();
            let mut due = Instant::now();
            let mut rng = Rng::new(SEED, 0);
            let mut number = 0u64;
            while !until.load(Ordering::Relaxed) {
                let unit = format!("{:016x} {:06}\n", sys::clock::boot_ns(), number % 1_000_000);
                number += u64::from(hardware.write(unit.as_bytes(), &until) == Written::All);
                let [least, most] = INTERVAL_US;
                due += Duration::from_micros(least + rng.up_to(most - least));
                thread::sleep(due.saturating_duration_since(Instant::now()));
            }
        };
        let came = seen.clone();
        let take = move || {
            sys::thread::be_urgent();
            let mut bytes = vec![0; 4096];
            while !by.load(Ordering::Relaxed) {
                let count = application.read(&mut bytes).unwrap_or(0);
                lock(&came).take(&bytes[..count]);
            }
        };
        Probe { seen, stop, threads: vec![thread::spawn(make), thread::spawn(take)] }
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A panic has been printed.
            let _ = thread.join();
        }
    }
}

/// The decoy's port over loopback. Fixed ports, and those of pairing beside them, are outside the range of ephemeral ports.
const DECOY_PORT: u16 = PORT + 2;

/// A device host that may be attacked.
pub(super) struct DeviceHost {
    processor: Processor,
    service: Service,
    pub(super) address: SocketAddr,
    /// Bytes sent to its toy.
    swallowed: Arc<AtomicU64>,
}

impl DeviceHost {
    /// Shares the device, and the toys for attackers. The files have the prefix `name`.
    fn start(
        (place, lab): (Place, Option<&Lab>),
        (directory, name): (&Path, &str),
        (processor, priority): (Processor, Priority),
        (device, attack): (&str, Attack),
    ) -> Result<DeviceHost, Failure> {
        let toy = directory.join(format!("{name}-toy"));
        let swallowed = Arc::<AtomicU64>::default();
        swallow(UnixListener::bind(&toy)?, swallowed.clone(), priority);
        let listen = match place {
            Place::Loopback => format!("127.0.0.1:{}", if name == "decoy" { DECOY_PORT } else { PORT }),
            Place::Lab => format!("{ADDRESS_A}:{PORT}"),
        };
        let (both, is_shared) = (["owner", Relation::Guest.name()], attack == Attack::Member);
        let text: String = [
            ("device", device, if is_shared { &both[..] } else { &both[..1] }),
            ("secret", "pattern:rate=1", &both[..1]),
            ("toy", &format!("unix:{}", toy.display()), &both[1..]),
            ("spring", "pattern:size=64KiB,rate=0", &both[1..]),
        ]
        .iter()
        .map(|(name, device, allow)| {
            let hub = if *name == "device" && is_shared { "copy" } else { "exclusive" };
            format!(
                "[[share]]\ndevice = '{device}'\nname = '{name}'\nlisten = '{listen}'\nallow = {allow:?}\nhub = '{hub}'\n"
            )
        })
        .collect();
        let file = directory.join(format!("{name}.toml"));
        fs::write(&file, text)?;
        let mut command = command(lab, "a", directory, ("device-host", name))?;
        command.arg("run").arg(&file);
        let mut service = processor.start(command)?;
        let address = service.wait("listening")?["address"].as_str().unwrap_or_default().parse()?;
        Ok(DeviceHost { processor, service, address, swallowed })
    }

    /// Returns the address of the pairing.
    pub(super) fn pairing(&self) -> SocketAddr {
        SocketAddr::new(self.address.ip(), self.address.port() ^ 1)
    }

    /// Returns the bytes sent to the toy.
    pub(super) fn swallowed(&self) -> u64 {
        self.swallowed.load(Ordering::Relaxed)
    }

    /// Returns the process and its workers.
    pub(super) fn processes(&self) -> Vec<u32> {
        processes::with_descendants(self.service.child.id())
    }
}

/// The attacked hosts with the running flow.
pub(super) struct Victim {
    probe: Probe,
    _attach: Service,
    pub(super) device_host: DeviceHost,
    /// An unused device host with the attacker's processor and priority. Attacking it shows the attacker's own load on the
    /// machine. Only over loopback.
    pub(super) decoy: Option<DeviceHost>,
    /// Only over loopback: over the lab network the wake-up of a processor is a small part of the delay.
    _awake: Option<Awake>,
    lab: Option<Lab>,
    directory: PathBuf,
}

impl Victim {
    /// Starts all hosts below `directory`, with the flow over `transport`.
    pub(super) fn start(
        place: Place,
        transport: &str,
        directory: &Path,
        (attack, priority): (Attack, Priority),
    ) -> Result<Victim, Failure> {
        // The device host's processor runs neither the toys nor the network.
        crate::setting::pin_to_cpu(OTHER_CPU);
        let lab = match place {
            Place::Loopback => None,
            Place::Lab => Some(Lab::up(&beside("netlab")?, &["delay=5ms"])?),
        };
        let trust = |name: &str| -> Result<Trust, Failure> {
            fs::create_dir_all(directory.join(name))?;
            Ok(Trust::at(&directory.join(name).join("outboard"))?)
        };
        let (device_host, owner) = (trust("device-host")?, trust("owner")?);
        let mut known = vec![(owner.key(), "owner", None)];
        for relation in Relation::EVERY {
            let attacker = trust(relation.name())?;
            match relation {
                Relation::Stranger => {}
                Relation::Removed | Relation::Guest => known.push((attacker.key(), relation.name(), None)),
                Relation::Restricted => known.push((attacker.key(), relation.name(), Some(Vec::new()))),
            }
            pair(&attacker, &[(device_host.key(), "device-host", None)])?;
        }
        pair(&device_host, &known)?;
        pair(&owner, &[(device_host.key(), "device-host", None)])?;
        device_host.edit(|peers| peers.remove(Relation::Removed.name()))?;

        let (hardware, port) = serial_port()?;
        let device = format!("serial:{}", port.display());
        let on = (place, lab.as_ref());
        let processor = (Processor::DeviceHost, priority);
        let device_host = DeviceHost::start(on, (directory, "device-host"), processor, (&device, attack))?;
        let (decoy, awake) = match place {
            Place::Loopback => {
                let decoy = (directory, "decoy");
                let processor = (Processor::Attacker(priority), priority);
                let decoy = DeviceHost::start(on, decoy, processor, ("pattern:size=24,rate=125", attack))?;
                (Some(decoy), Some(Awake::keep(DEVICE_HOST_CPU, OTHER_CPU)))
            }
            Place::Lab => (None, None),
        };
        let out = directory.join("tty");
        let mut command = command(lab.as_ref(), "b", directory, ("owner", "owner"))?;
        command.args([
            "attach",
            &format!("{transport}://device-host@{}/device", device_host.address),
            "--as",
            &format!("pty:{}", out.display()),
        ]);
        let mut attach = Service::start(command)?;
        attach.wait("attached")?;
        let begun = Instant::now();
        while !out.exists() && begun.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(5));
        }
        let probe = Probe::start(Port::hardware(hardware), Port::application(&out)?);
        Ok(Victim {
            probe,
            _attach: attach,
            device_host,
            decoy,
            _awake: awake,
            lab,
            directory: directory.into(),
        })
    }

    /// Returns the delays since the last call.
    pub(super) fn take_times(&self) -> Times {
        std::mem::take(&mut lock(&self.probe.seen).times)
    }

    /// Returns the number of units that were not the expected next one.
    pub(super) fn wrong(&self) -> u64 {
        lock(&self.probe.seen).wrong
    }

    /// Returns the number of the device host's peers.
    pub(super) fn peers(&self) -> Result<usize, Failure> {
        Ok(Trust::at(&self.directory.join("device-host/outboard"))?.peers()?.iter().count())
    }

    /// Returns the command of the attacker on the application host.
    pub(super) fn attacker(&self, setting: &AttackerSetting) -> Result<Command, Failure> {
        let program = std::env::current_exe()?;
        let mut command = match &self.lab {
            Some(lab) => lab.program("b", &program.display().to_string()),
            None => Command::new(program),
        };
        let value = |name: Option<clap::builder::PossibleValue>| {
            name.map(|value| value.get_name().to_string()).ok_or("a value without a name")
        };
        command.arg("attacker").arg(value(setting.attack.to_possible_value())?);
        command.args([setting.address, setting.pairing, setting.flow].map(|address| address.to_string()));
        command
            .arg(&setting.directory)
            .arg(&setting.program)
            .arg(value(setting.priority.to_possible_value())?);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        Ok(command)
    }

    /// Shows a pairing code at a device host.
    pub(super) fn show_code(&self, host: &DeviceHost) -> Result<(Service, String), Failure> {
        let mut command = command(self.lab.as_ref(), "a", &self.directory, ("device-host", "device-host"))?;
        command.args(["pair", "--listen", &host.pairing().to_string()]).stderr(Stdio::null());
        let mut pair = host.processor.start(command)?;
        let code = pair.wait("code")?["code"].as_str().unwrap_or_default().to_string();
        Ok((pair, code))
    }
}

/// Returns the command of the program on a host, with the identity of `user` and the runtime files of `name`.
fn command(
    lab: Option<&Lab>,
    host: &str,
    directory: &Path,
    (user, name): (&str, &str),
) -> Result<Command, Failure> {
    let program = beside("outboard")?;
    let mut command = match lab {
        Some(lab) => lab.program(host, &program.display().to_string()),
        None => Command::new(program),
    };
    let run = directory.join(user).join(format!("run-{name}"));
    fs::create_dir_all(&run)?;
    command.env("XDG_STATE_HOME", directory.join(user)).env("XDG_RUNTIME_DIR", run);
    Ok(command)
}

/// Adds these peers, as if they had paired.
fn pair(trust: &Trust, known: &[(PeerKey, &str, Option<Vec<String>>)]) -> Result<(), Failure> {
    let of = |(key, name, may_open): &(PeerKey, &str, Option<Vec<String>>)| match may_open {
        None => json!({ "name": name, "key": key }),
        Some(devices) => json!({ "name": name, "key": key, "may_open": devices }),
    };
    let all = json!({ "peers": known.iter().map(of).collect::<Vec<_>>() });
    let all = serde_json::from_value(all)?;
    trust.edit(|peers| {
        *peers = all;
        Ok(())
    })?;
    Ok(())
}

/// Reads everything that a toy receives, at the attacker's priority.
fn swallow(listener: UnixListener, swallowed: Arc<AtomicU64>, priority: Priority) {
    thread::spawn(move || {
        priority.take();
        let mut bytes = vec![0; 64 << 10];
        for mut stream in listener.incoming().flatten() {
            while let Ok(count @ 1..) = stream.read(&mut bytes) {
                swallowed.fetch_add(count as u64, Ordering::Relaxed);
            }
        }
    });
}
