//! The two hosts that are attacked: a sharer with a serial port of which 24 bytes come 125 times a second, and who has
//! it attached. How long each of these took is noted, and that they came once, whole and in order.

use super::attacker::{Attack, AttackerSetting, Priority, Who};
use super::awake::Awake;
use super::{Place, SEED};
use crate::Failure;
use crate::chapter6::{Lab, beside};
use crate::measure::Times;
use crate::processes;
use crate::reliability::hosts::{ADDRESS_A, PORT, Service};
use crate::reliability::port::{Port, Written, serial_port};
use clap::ValueEnum;
use netsim::Rng;
use runtime::trust::{PeerKey, Trust};
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

/// A keyboard's, or a mouse's: 8 ms from one to the next, and up to 2 ms less or more, drawn anew for each. Of an even
/// interval all units of a turn, or of many, would fall at one place of the kernel's 4 ms between its ticks.
const INTERVAL_US: [u64; 2] = [6000, 10_000];
/// When it was made, and its number.
const UNIT_BYTES: usize = 24;
const PATIENCE: Duration = Duration::from_secs(20);
/// The processors of the sharer's host, and of the other: of one that both use, each would feel what the other's does.
const SHARER_CPU: usize = 0;
const OTHER_CPU: usize = 1;

/// Whose processor a sharer has, where there are two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seat {
    /// That of the running flow's sharer.
    Sharer,
    /// The attacker's, with its priority.
    Attacker(Priority),
}

impl Seat {
    /// Has this run there, and nothing that hears of it.
    fn start(self, command: Command) -> Result<Service, Failure> {
        let here = || {
            match self {
                Seat::Sharer => drop(sys::thread::pin_to_cpu(SHARER_CPU)),
                Seat::Attacker(priority) => priority.take(),
            }
            Service::spawn(command)
        };
        // What is started has what the thread has that starts it.
        let started = thread::scope(|scope| scope.spawn(here).join());
        let (child, tells) = started.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok(Service::of(child, tells))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What was seen of the flow.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) times: Times,
    /// Bytes that are not yet a unit.
    rest: Vec<u8>,
    next: u64,
    /// Units that are not what had to come next.
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

/// Makes the units, and takes them, until it is dropped.
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
            // It stands for hardware; without the right to it, it is late at times.
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
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}

/// A sharer that may be attacked.
pub(super) struct Sharer {
    seat: Seat,
    service: Service,
    pub(super) address: SocketAddr,
    /// Bytes that its toy was sent.
    swallowed: Arc<AtomicU64>,
}

impl Sharer {
    /// Shares this device, with attackers, too, where they need it, and what they may have or not; its own files are `name`'s.
    fn start(
        (place, lab): (Place, Option<&Lab>),
        (directory, name): (&Path, &str),
        (seat, priority): (Seat, Priority),
        (device, attack): (&str, Attack),
    ) -> Result<Sharer, Failure> {
        let toy = directory.join(format!("{name}-toy"));
        let swallowed = Arc::<AtomicU64>::default();
        swallow(UnixListener::bind(&toy)?, swallowed.clone(), priority);
        let listen = match place {
            Place::Loopback => "127.0.0.1:0".into(),
            Place::Lab => format!("{ADDRESS_A}:{PORT}"),
        };
        let (both, is_shared) = (["owner", Who::Guest.name()], attack == Attack::Member);
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
        let mut command = command(lab, "a", directory, ("sharer", name))?;
        command.arg("run").arg(&file);
        let mut service = seat.start(command)?;
        let address = service.wait("listening")?["address"].as_str().unwrap_or_default().parse()?;
        Ok(Sharer { seat, service, address, swallowed })
    }

    /// Where a code is shown, while one is.
    pub(super) fn pairing(&self) -> SocketAddr {
        SocketAddr::new(self.address.ip(), self.address.port() ^ 1)
    }

    /// Bytes that the toy was sent.
    pub(super) fn swallowed(&self) -> u64 {
        self.swallowed.load(Ordering::Relaxed)
    }

    /// It and its workers.
    pub(super) fn processes(&self) -> Vec<u32> {
        processes::with_descendants(self.service.child.id())
    }
}

/// See the module.
pub(super) struct Victim {
    probe: Probe,
    _attach: Service,
    pub(super) sharer: Sharer,
    /// One that nobody needs, with the processor and the priority of the attacker: what that does to the machine when it
    /// attacks this one is nothing that the running flow's sharer has a part in. Over the lab network there is none.
    pub(super) decoy: Option<Sharer>,
    /// Over loopback alone: over the lab network what a processor takes to wake is little.
    _awake: Option<Awake>,
    lab: Option<Lab>,
    directory: PathBuf,
}

impl Victim {
    /// Makes them all, below `directory`, with the flow over `transport`.
    pub(super) fn start(
        place: Place,
        transport: &str,
        directory: &Path,
        (attack, priority): (Attack, Priority),
    ) -> Result<Victim, Failure> {
        // What a device is sent is not taken by the sharer's processor, nor is what is under way carried by it.
        sys::thread::pin_to_cpu(OTHER_CPU);
        let lab = match place {
            Place::Loopback => None,
            Place::Lab => Some(Lab::up(&beside("netlab")?, &["delay=5ms"])?),
        };
        let of = |who: &str| directory.join(who).join("outboard");
        let trust = |who: &str| -> Result<Trust, Failure> {
            fs::create_dir_all(directory.join(who))?;
            Ok(Trust::at(&of(who))?)
        };
        let (known_sharer, owner) = (trust("sharer")?, trust("owner")?);
        let mut known = vec![(owner.key(), "owner", None)];
        for who in Who::EVERY {
            let attacker = trust(who.name())?;
            match who {
                Who::Stranger => {}
                Who::Removed | Who::Guest => known.push((attacker.key(), who.name(), None)),
                Who::Restricted => known.push((attacker.key(), who.name(), Some(Vec::new()))),
            }
            know(&attacker, &[(known_sharer.key(), "sharer", None)])?;
        }
        know(&known_sharer, &known)?;
        know(&owner, &[(known_sharer.key(), "sharer", None)])?;
        known_sharer.edit(|peers| peers.remove(Who::Removed.name()))?;

        let (hardware, port) = serial_port()?;
        let device = format!("serial:{}", port.display());
        let on = (place, lab.as_ref());
        let sharer = Sharer::start(on, (directory, "sharer"), (Seat::Sharer, priority), (&device, attack))?;
        let (decoy, awake) = match place {
            Place::Loopback => {
                let decoy = (directory, "decoy");
                let seat = (Seat::Attacker(priority), priority);
                let decoy = Sharer::start(on, decoy, seat, ("pattern:size=24,rate=125", attack))?;
                (Some(decoy), Some(Awake::keep(SHARER_CPU, OTHER_CPU)))
            }
            Place::Lab => (None, None),
        };
        let out = directory.join("tty");
        let mut command = command(lab.as_ref(), "b", directory, ("owner", "owner"))?;
        command.args([
            "attach",
            &format!("{transport}://{}/device", sharer.address),
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
        Ok(Victim { probe, _attach: attach, sharer, decoy, _awake: awake, lab, directory: directory.into() })
    }

    /// Begins to note anew; what came since the last call.
    pub(super) fn take_times(&self) -> Times {
        std::mem::take(&mut lock(&self.probe.seen).times)
    }

    /// Units that were not what had to come next.
    pub(super) fn wrong(&self) -> u64 {
        lock(&self.probe.seen).wrong
    }

    /// Whom the sharer knows.
    pub(super) fn known(&self) -> Result<usize, Failure> {
        Ok(Trust::at(&self.directory.join("sharer/outboard"))?.peers()?.iter().count())
    }

    /// The attacker, on the application's host, not yet at work.
    pub(super) fn attacker(&self, setting: &AttackerSetting) -> Result<Command, Failure> {
        let program = std::env::current_exe()?;
        let mut command = match &self.lab {
            Some(lab) => lab.program("b", &program.display().to_string()),
            None => Command::new(program),
        };
        let value = |name: Option<clap::builder::PossibleValue>| {
            name.map(|value| value.get_name().to_string()).ok_or("it has no name")
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

    /// Shows a code at a sharer's host.
    pub(super) fn show_code(&self, sharer: &Sharer) -> Result<(Service, String), Failure> {
        let mut command = command(self.lab.as_ref(), "a", &self.directory, ("sharer", "sharer"))?;
        command.args(["pair", "--listen", &sharer.pairing().to_string()]).stderr(Stdio::null());
        let mut shows = sharer.seat.start(command)?;
        let code = shows.wait("code")?["code"].as_str().unwrap_or_default().to_string();
        Ok((shows, code))
    }
}

/// The program, on a host, as one of the users, with the files of a process of this name.
fn command(
    lab: Option<&Lab>,
    host: &str,
    directory: &Path,
    (who, name): (&str, &str),
) -> Result<Command, Failure> {
    let program = beside("outboard")?;
    let mut command = match lab {
        Some(lab) => lab.program(host, &program.display().to_string()),
        None => Command::new(program),
    };
    let run = directory.join(who).join(format!("run-{name}"));
    fs::create_dir_all(&run)?;
    command.env("XDG_STATE_HOME", directory.join(who)).env("XDG_RUNTIME_DIR", run);
    Ok(command)
}

/// Knows these, as if they had paired.
fn know(trust: &Trust, known: &[(PeerKey, &str, Option<Vec<String>>)]) -> Result<(), Failure> {
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

/// Takes what a device is sent, as long as this process lives, at an attacker's priority.
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
