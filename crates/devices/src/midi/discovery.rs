//! Ports of the sequencer and raw MIDI devices of this host: listing them, finding one, and finding it again.

use super::{Facts, FactsKind, OWN_PORT, Target};
use crate::plain::DENIED_BY_UNIT;
use contract::{DeviceError, Listing};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use sys::sequencer::{self, Address, Client, NAME_BYTES_MAX, Port, capability, port_type};

/// The kernel's sequencer.
const SEQUENCER: &str = "/dev/snd/seq";
/// The directory of raw MIDI devices, and the beginning of their names.
const NODES: &str = "/dev/snd";
const RAW: &str = "midiC";
/// The kernel's own clients: itself, and a port that returns what it receives.
const SYSTEM_CLIENTS: [u8; 2] = [0, 14];

/// A port with its client.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub(super) client: Client,
    pub(super) port: Port,
}

impl Found {
    pub(super) fn sends(&self) -> bool {
        let both = capability::READ | capability::SUBSCRIBE_READ;
        self.port.capabilities & both == both
    }

    pub(super) fn receives(&self) -> bool {
        let both = capability::WRITE | capability::SUBSCRIBE_WRITE;
        self.port.capabilities & both == both
    }

    fn is_ours(&self) -> bool {
        self.port.name == OWN_PORT
    }

    fn is_program(&self) -> bool {
        self.port.types & port_type::HARDWARE == 0
    }

    /// Leaves the process number of a program out of its names, so that it is the same one after its next start. If another program
    /// differs only in the number, they keep it.
    fn without_process(&self, all: &[Found]) -> Found {
        let name = without_process(&self.client.name);
        let is_like = |other: &Found| {
            let is_another = other.client.number != self.client.number && !other.is_ours();
            is_another && without_process(&other.client.name) == name
        };
        let mut found = self.clone();
        if self.is_program() && !all.iter().any(is_like) {
            found.client.name = name.into();
            found.port.name = without_process(&self.port.name).into();
        }
        found
    }

    pub(super) fn facts(&self) -> Facts {
        let kind = if self.is_program() { FactsKind::Software } else { FactsKind::Hardware };
        let (name, port) = (self.client.name.clone(), self.port.name.clone());
        Facts { name, port, kind, address: self.port.address }
    }
}

/// Returns a name without the process number at its end: that of fluidsynth is `FLUID Synth (1234)`, and `Synth input port (1234:0)`
/// that of its port.
fn without_process(name: &str) -> &str {
    let is_number = |text: &str| {
        let digits = text.split(':').next().unwrap_or_default();
        !digits.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b':')
    };
    match name.strip_suffix(')').and_then(|name| name.rsplit_once(" (")) {
        Some((rest, number)) if !rest.is_empty() && is_number(number) => rest,
        _ => name,
    }
}

/// Opens the sequencer as a new client.
pub(super) fn open() -> Result<OwnedFd, DeviceError> {
    open_node(SEQUENCER, OFlags::RDWR)
        .map_err(|error| super::os(format!("opening {SEQUENCER}"), error, Some(advice(error))))
}

fn open_node(path: &str, access: OFlags) -> rustix::io::Result<OwnedFd> {
    rustix::fs::open(path, access | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())
}

fn advice(error: Errno) -> &'static str {
    match error {
        Errno::PERM => DENIED_BY_UNIT,
        Errno::ACCESS => "join the group that owns it, usually `audio`",
        Errno::BUSY => "another program has opened it",
        _ => "load the kernel module: modprobe snd-seq",
    }
}

/// Opens a raw MIDI device, in both directions if it has both.
pub(super) fn open_raw(path: &str) -> Result<(OwnedFd, Facts), DeviceError> {
    let failed = |error| super::os(format!("opening {path}"), error, Some(advice(error)));
    let line = [OFlags::RDWR, OFlags::RDONLY, OFlags::WRONLY]
        .into_iter()
        .map(|access| open_node(path, access))
        .reduce(|first, next| match first {
            Err(Errno::NXIO | Errno::INVAL) => next,
            other => other,
        });
    let line = line.unwrap_or(Err(Errno::NOENT)).map_err(failed)?;
    let (name, port) = (raw_name(path), String::new());
    Ok((line, Facts { name, port, kind: FactsKind::Raw, address: Address::default() }))
}

/// Returns the card and the device of a path such as `/dev/snd/midiC1D0`.
pub(super) fn raw_numbers(path: &str) -> Option<(u32, u32)> {
    let (card, device) = path.rsplit('/').next()?.strip_prefix(RAW)?.split_once('D')?;
    Some((card.parse().ok()?, device.parse().ok()?))
}

/// Returns the name that the driver gave a raw device.
fn raw_name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    let told = raw_numbers(path).and_then(|(card, device)| {
        let text = fs::read_to_string(format!("/proc/asound/card{card}/midi{device}")).ok()?;
        text.lines().next().map(|line| line.trim().to_string()).filter(|line| !line.is_empty())
    });
    told.unwrap_or_else(|| file.into())
}

fn raw_paths() -> Vec<String> {
    let entries = fs::read_dir(NODES).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut paths: Vec<_> =
        names.filter(|name| name.starts_with(RAW)).map(|name| format!("{NODES}/{name}")).collect();
    paths.sort();
    paths
}

/// Returns all ports that another client can connect to.
pub(super) fn ports(client: BorrowedFd<'_>) -> Vec<Found> {
    let ports_of = |found: Client| {
        let ports = sequencer::ports(client, found.number);
        ports.into_iter().map(move |port| Found { client: found.clone(), port })
    };
    let is_usable = |found: &Found| {
        let is_open = found.port.capabilities & capability::NO_EXPORT == 0;
        is_open && (found.sends() || found.receives())
    };
    sequencer::clients(client).into_iter().flat_map(ports_of).filter(is_usable).collect()
}

/// Finds the port that the user named.
pub(super) fn find(client: BorrowedFd<'_>, target: &str) -> Result<Found, DeviceError> {
    let all = ports(client);
    let problem = match named(&all, target).as_slice() {
        [one] => return Ok(one.without_process(&all)),
        [] => "there is no such MIDI port; `outboard devices` lists them".to_string(),
        [one, other, ..] => {
            let specs = [one, other].map(|found| format!("`midi:{}`", numbers(found)));
            format!("there are several: write {} or {}", specs[0], specs[1])
        }
    };
    Err(DeviceError::Spec { what: format!("`midi:{target}`"), problem })
}

/// Returns the ports that the user may mean. A program has the name that it had at an earlier start, or no process number in it, if
/// none has the name itself.
fn named<'a>(all: &'a [Found], target: &str) -> Vec<&'a Found> {
    let parsed = Target::parse(target);
    let with_name = |is_client: &dyn Fn(&Found, &str) -> bool| {
        let is_named = |found: &&Found| match &parsed {
            Target::Any => !found.is_ours() && !SYSTEM_CLIENTS.contains(&found.client.number),
            Target::Address(address) => found.port.address == *address,
            Target::Name(name, port) => {
                is_client(found, name) && port.is_none_or(|port| found.port.address.port == port)
            }
        };
        all.iter().filter(is_named).collect::<Vec<_>>()
    };
    let mut found = with_name(&|found: &Found, name: &str| found.client.name == name);
    if found.is_empty() {
        found = with_name(&|found: &Found, name: &str| {
            found.is_program() && without_process(&found.client.name) == without_process(name)
        });
    }
    // A client without a port number means its first port.
    if matches!(parsed, Target::Name(_, None)) {
        found.dedup_by_key(|found| found.client.number);
    }
    found
}

/// Finds a known port again. It keeps its known names.
pub(super) fn find_again(client: BorrowedFd<'_>, target: &str, known: &Facts) -> Result<Found, DeviceError> {
    let all = ports(client);
    let Some(mut found) = choose_again(&all, target, known).cloned() else {
        let operation = format!("looking for the MIDI port {}", known.name);
        let missing = std::io::Error::from(std::io::ErrorKind::NotFound);
        return Err(super::os(operation, missing, Some("plug it in again, or start its program")));
    };
    found.client.name.clone_from(&known.name);
    found.port.name.clone_from(&known.port);
    Ok(found)
}

/// Chooses the port with the names of a known one, and if several have them, that at its number. Two devices of one model have the
/// same names: hardware that the user named by numbers returns only there. The kernel gives a card that returns its number again.
fn choose_again<'a>(all: &'a [Found], target: &str, known: &Facts) -> Option<&'a Found> {
    let is_numbered = matches!(Target::parse(target), Target::Address(_));
    let is_held = is_numbered && known.kind == FactsKind::Hardware;
    let has_names = |found: &Found| found.client.name == known.name && found.port.name == known.port;
    // The ports of a program may differ in their numbers alone.
    let has_names_of_program = |found: &Found| {
        let is_its_port = found.port.address.port == known.address.port;
        found.is_program() && is_its_port && has_names(&found.without_process(&[]))
    };
    let is_same = |found: &&Found| {
        let is_there = !is_held || found.port.address == known.address;
        !found.is_ours() && is_there && (has_names(found) || has_names_of_program(found))
    };
    let same = all.iter().filter(is_same);
    same.min_by_key(|found| (!has_names(found), found.port.address != known.address))
}

/// Finds a known raw device again, at its path only: another device of the same model has its name.
pub(super) fn find_raw_again(path: &str, known: &Facts) -> Result<(OwnedFd, Facts), DeviceError> {
    let name = raw_name(path);
    if name[..name.floor_char_boundary(NAME_BYTES_MAX)] != known.name {
        let operation = format!("looking for the MIDI device {} at {path}", known.name);
        let missing = std::io::Error::from(std::io::ErrorKind::NotFound);
        return Err(super::os(operation, missing, Some("plug it in again")));
    }
    open_raw(path)
}

/// Finds the port of a raw node that `snd-virmidi` made.
pub(super) fn find_virtual(client: BorrowedFd<'_>, path: &str) -> Result<Found, DeviceError> {
    let numbers = raw_numbers(path);
    let found = ports(client).into_iter().find(|found| {
        numbers.is_some_and(|(card, device)| {
            let is_its_name = found.client.name.ends_with(&format!(" {card}-{device}"));
            found.client.card.is_none_or(|own| own == card)
                && is_its_name
                && found.sends()
                && found.receives()
        })
    });
    found.ok_or_else(|| DeviceError::Spec {
        what: format!("`midi:{path}`"),
        problem: "it is no raw MIDI node of snd-virmidi: load it with `modprobe snd-virmidi`, or attach the device without a \
                  path"
            .into(),
    })
}

fn numbers(found: &Found) -> String {
    format!("{}:{}", found.port.address.client, found.port.address.port)
}

/// Returns the ports of the sequencer, or without one the raw devices.
pub(super) fn list() -> Vec<Listing> {
    let client = match open_node(SEQUENCER, OFlags::RDWR) {
        Ok(client) => client,
        Err(error) if raw_paths().is_empty() && error != Errno::ACCESS => return Vec::new(),
        Err(error) => {
            let problem = format!("opening {SEQUENCER}: {error}: {}", advice(error));
            let listing = |path: String| Listing {
                summary: format!("{} (raw midi)", raw_name(&path)),
                problem: (error == Errno::ACCESS).then(|| problem.clone()),
                spec: format!("midi:{path}"),
                ours: false,
            };
            return raw_paths().into_iter().map(listing).collect();
        }
    };
    let all = ports(client.as_fd());
    let is_device = |found: &&Found| !SYSTEM_CLIENTS.contains(&found.client.number);
    all.iter().filter(is_device).map(|found| listing(found, &all)).collect()
}

fn listing(found: &Found, all: &[Found]) -> Listing {
    let Found { client, port } = found;
    let is_same =
        |other: &&Found| other.client.name == client.name && other.port.address.port == port.address.port;
    // A comma begins an option, and a colon a port.
    let is_plain = !client.name.contains([',', ':', '=', '*', '?', '[']) && !client.name.is_empty();
    let name = match is_plain && all.iter().filter(is_same).count() == 1 {
        true => format!("{}:{}", client.name, port.address.port),
        false => numbers(found),
    };
    let directions = match (found.sends(), found.receives()) {
        (true, true) => "midi",
        (true, false) => "midi, sends only",
        _ => "midi, receives only",
    };
    let owner = if found.is_ours() { ", a node of Outboard" } else { "" };
    let summary = format!("{} ({directions}{owner})", found.facts().title());
    Listing { spec: format!("midi:{name}"), summary, problem: None, ours: found.is_ours() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A port 0 that sends.
    fn found(client: u8, name: &str, port: &str, kind: u32) -> Found {
        let address = Address { client, port: 0 };
        let capabilities = capability::READ | capability::SUBSCRIBE_READ;
        let client = Client { number: client, name: name.into(), card: None };
        Found { client, port: Port { address, name: port.into(), capabilities, types: kind } }
    }

    fn launchpad(client: u8) -> Found {
        found(client, "Launchpad", "Launchpad MIDI 1", port_type::HARDWARE)
    }

    fn number_again(all: &[Found], target: &str, known: &Facts) -> Option<u8> {
        choose_again(all, target, known).map(|found| found.client.number)
    }

    #[test]
    fn a_keyboard_is_not_taken_for_another_one_of_its_model() {
        let known = launchpad(20).facts();
        assert_eq!(number_again(&[launchpad(24)], "20:0", &known), None);
        assert_eq!(number_again(&[launchpad(24), launchpad(20)], "20:0", &known), Some(20));
        // A name belonged to one of them alone, so it is the same one at another number.
        assert_eq!(number_again(&[launchpad(24)], "Launchpad", &known), Some(24));
        // A program gets another number whenever it starts.
        let program = |client| found(client, "Sampler", "in", port_type::SOFTWARE);
        assert_eq!(number_again(&[program(131)], "128:0", &program(128).facts()), Some(131));
    }

    fn synthesizer(client: u8, process: u32) -> Found {
        let [name, port] = [format!("FLUID Synth ({process})"), format!("Synth input port ({process}:0)")];
        found(client, &name, &port, port_type::SOFTWARE)
    }

    #[test]
    fn a_program_that_is_started_again_is_the_same_one() {
        let first = [launchpad(20), synthesizer(128, 1234)];
        let known = first[1].without_process(&first).facts();
        assert_eq!([known.name.as_str(), known.port.as_str()], ["FLUID Synth", "Synth input port"]);
        let next = [launchpad(20), synthesizer(129, 77)];
        assert_eq!(number_again(&next, "FLUID Synth (1234):0", &known), Some(129));
        let clients = |all: &[Found], target: &str| -> Vec<u8> {
            named(all, target).iter().map(|found| found.client.number).collect()
        };
        for target in ["FLUID Synth", "FLUID Synth:0", "FLUID Synth (1234):0", "FLUID Synth (77)"] {
            assert_eq!(clients(&next, target), [129], "{target}");
        }
        assert!(clients(&next, "FLUID").is_empty() && clients(&next, "Launchpad (1)").is_empty());

        // Two at once are told apart.
        let both = [synthesizer(128, 1234), synthesizer(129, 77)];
        assert_eq!(clients(&both, "FLUID Synth (77)"), [129]);
        assert_eq!(clients(&both, "FLUID Synth"), [128, 129]);
        let known = both[0].without_process(&both).facts();
        assert_eq!(number_again(&next, "128:0", &known), None);
        for (name, expected) in
            [("A (1)", "A"), ("A (1:0)", "A"), ("A (b)", "A (b)"), ("A ()", "A ()"), ("(1)", "(1)")]
        {
            assert_eq!(without_process(name), expected);
        }
    }

    #[test]
    fn a_raw_device_is_not_taken_for_another_one() {
        let name = "Launchpad".into();
        let known = Facts { name, port: String::new(), kind: FactsKind::Raw, address: Address::default() };
        let error = find_raw_again("/dev/snd/midiC99D9", &known).unwrap_err().to_string();
        assert!(error.contains("Launchpad at /dev/snd/midiC99D9"), "{error}");
    }
}
