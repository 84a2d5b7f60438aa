//! MIDI: a port of the ALSA sequencer or a raw MIDI device on the device host, a port of the sequencer on the application host.
//!
//! | module | purpose |
//! |---|---|
//! | `discovery` | lists and finds ports and raw devices |
//! | `partner` | both sides as a partner; its table of events |
//! | `input`, `output` | the two ends of a line |
//! | `event`, `stream` | events of the sequencer and bytes of a cable into messages, and back; without I/O |
//! | `held` | the notes and controls that messages leave at their receiver |

mod discovery;
mod event;
pub mod fuzz;
mod held;
mod input;
mod output;
mod partner;
mod stream;
#[cfg(test)]
mod tests;

use crate::plain::{self, os};
use contract::{
    Description, DeviceClass, DeviceError, DeviceSpec, FlowClass, FlowDirection, FlowOffer, Format, Kind,
    Listing, ModuleEntry, NodeName, Opened, Partner, Role,
};
use output::Receiver;
use partner::{Line, MEMORY_BYTES, Memory, MidiPartner};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use sys::sequencer::{self, ANNOUNCE, Address, NAME_BYTES_MAX, capability, port_type};
use wire::{Reader, WireError, Writer};

/// The class `midi`.
#[derive(Debug)]
pub struct Midi;

/// The name of the port at an application, and of the client at a device. Its node is recognized by it.
const OWN_PORT: &str = "Outboard";
/// Events that wait for Outboard, at most: the kernel's own limit. A MIDI cable fills it in 2 s.
const POOL_EVENTS: i32 = 2000;

fn flows() -> Vec<FlowOffer> {
    let flow = |direction| FlowOffer { direction, format: Format::Midi, class: FlowClass::Reliable };
    vec![flow(FlowDirection::DeviceToApplication), flow(FlowDirection::ApplicationToDevice)]
}

/// A port as the user writes it.
#[derive(Debug, PartialEq, Eq)]
enum Target<'a> {
    /// The only one.
    Any,
    Address(Address),
    /// The name of a client, and the number of its port.
    Name(&'a str, Option<u8>),
}

impl Target<'_> {
    fn parse(text: &str) -> Target<'_> {
        let split = text.rsplit_once(':').and_then(|(name, port)| Some((name, port.parse().ok()?)));
        match (split, text) {
            (_, "") => Target::Any,
            (Some((name, port)), _) => match name.parse() {
                Ok(client) => Target::Address(Address { client, port }),
                Err(_) => Target::Name(name, Some(port)),
            },
            (None, name) => match name.parse() {
                Ok(client) => Target::Address(Address { client, port: 0 }),
                Err(_) => Target::Name(name, None),
            },
        }
    }
}

/// Returns true if the target is the path of a raw MIDI device.
fn is_path(target: &str) -> bool {
    target.starts_with('/')
}

/// The kind of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FactsKind {
    Raw,
    Hardware,
    Software,
}

/// A MIDI device as its description tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Facts {
    name: String,
    /// Name of its port.
    port: String,
    kind: FactsKind,
    /// Its port, or that of a node; zeros for a raw device.
    address: Address,
}

impl Facts {
    fn emit(&self) -> Vec<u8> {
        let Facts { name, port, kind, address: Address { client, port: number } } = self;
        let name = &name[..name.floor_char_boundary(NAME_BYTES_MAX)];
        let port = &port[..port.floor_char_boundary(NAME_BYTES_MAX)];
        Writer::new().text(name).text(port).u8(*kind as u8).u8(*client).u8(*number).finish()
    }

    fn parse(bytes: &[u8]) -> Result<Facts, WireError> {
        let mut reader = Reader::new(bytes);
        let name = reader.text("name", NAME_BYTES_MAX)?.to_string();
        let port = reader.text("port", NAME_BYTES_MAX)?.to_string();
        let kind = match reader.u8("kind")? {
            0 => FactsKind::Raw,
            1 => FactsKind::Hardware,
            2 => FactsKind::Software,
            kind => return Err(WireError::Value { what: "kind", value: kind.into() }),
        };
        let address = Address { client: reader.u8("client")?, port: reader.u8("port number")? };
        reader.end("midi description")?;
        Ok(Facts { name, port, kind, address })
    }

    /// Returns the facts in a description of this class.
    fn of(described: &Description) -> Result<Facts, DeviceError> {
        Facts::parse(&described.properties).map_err(|error| DeviceError::Spec {
            what: "the description of a MIDI device".into(),
            problem: error.to_string(),
        })
    }

    fn opened(
        &self,
        spec: &DeviceSpec,
        role: Role,
        line: OwnedFd,
        summary: String,
    ) -> Result<Opened, DeviceError> {
        let memory = sys::memory::create("outboard-midi", MEMORY_BYTES)
            .map_err(|error| os("making memory for a MIDI device".into(), error, None))?;
        let description = Description {
            class: Midi.name().into(),
            summary,
            flows: flows(),
            application: Midi.application(),
            properties: self.emit(),
        };
        Ok(Opened { spec: spec.clone(), role, description, descriptors: vec![line, memory] })
    }

    /// Returns the device's name for users.
    fn title(&self) -> String {
        match (self.name.as_str(), self.port.as_str()) {
            (name, "") => name.into(),
            (name, port) if port.starts_with(name) => port.into(),
            (name, port) => format!("{name}, {port}"),
        }
    }

    fn opened_device(&self, spec: &DeviceSpec, line: OwnedFd) -> Result<Opened, DeviceError> {
        self.opened(spec, Role::Device, line, format!("{} ({})", self.title(), Kind::Midi))
    }
}

/// Sets up a new client and its port.
fn set_up(client: BorrowedFd<'_>, name: &str, capabilities: u32) -> Result<Address, DeviceError> {
    let types = port_type::MIDI_GENERIC | port_type::SOFTWARE | port_type::PORT;
    sequencer::set_name(client, name)
        .and_then(|()| sequencer::set_input_pool(client, POOL_EVENTS))
        .and_then(|()| sequencer::create_port(client, OWN_PORT, capabilities, types))
        .map_err(|error| os("making a port of the sequencer".into(), error, None))
}

fn connect(
    client: BorrowedFd<'_>,
    sender: Address,
    receiver: Address,
    name: &str,
) -> Result<(), DeviceError> {
    sequencer::subscribe(client, sender, receiver).map_err(|error| {
        let advice = "another program may use it alone: `aconnect -l` lists the connections";
        os(format!("connecting to the MIDI port {name}"), error, Some(advice))
    })
}

/// Connects a new client to a device's port.
fn open_port(spec: &DeviceSpec, client: OwnedFd, found: &discovery::Found) -> Result<Opened, DeviceError> {
    let capabilities = capability::READ | capability::WRITE | capability::NO_EXPORT;
    let (own, device, name) =
        (set_up(client.as_fd(), OWN_PORT, capabilities)?, found.port.address, &found.client.name);
    // First, so that the end of the device is not missed.
    connect(client.as_fd(), ANNOUNCE, own, "of the kernel's news")?;
    if found.sends() {
        connect(client.as_fd(), device, own, name)?;
    }
    if found.receives() {
        connect(client.as_fd(), own, device, name)?;
    }
    found.facts().opened_device(spec, client)
}

/// Makes a port that programs connect to.
fn make_node(spec: &DeviceSpec, like: Option<&Description>) -> Result<Opened, DeviceError> {
    let like = like.filter(|like| like.class == Midi.name()).map(Facts::of).transpose()?;
    let copied = like.map(|facts| facts.name.chars().filter(|one| !one.is_control()).collect::<String>());
    let name = match (is_path(&spec.target), copied.filter(|name| !name.is_empty())) {
        (false, _) if !spec.target.is_empty() => spec.target.clone(),
        (_, Some(name)) => name,
        _ => "Outboard MIDI".into(),
    };
    let client = discovery::open()?;
    let sends = capability::READ | capability::SUBSCRIBE_READ;
    let receives = capability::WRITE | capability::SUBSCRIBE_WRITE;
    let address = set_up(client.as_fd(), &name, sends | receives | capability::DUPLEX)?;
    let mut summary = format!("MIDI port {}:{} `{name}`", address.client, address.port);
    if is_path(&spec.target) {
        let found = discovery::find_virtual(client.as_fd(), &spec.target)?;
        connect(client.as_fd(), address, found.port.address, &found.client.name)?;
        connect(client.as_fd(), found.port.address, address, &found.client.name)?;
        summary = format!("{summary} at {}", spec.target);
    }
    let facts = Facts { name, port: OWN_PORT.into(), kind: FactsKind::Software, address };
    facts.opened(spec, Role::Application, client, summary)
}

impl DeviceClass for Midi {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry {
            name: "midi",
            summary: "a MIDI keyboard, synthesizer or program; the application is a port of the sequencer",
            doc: include_str!("doc.md"),
            options: &[],
        }
    }

    fn target(&self) -> &'static str {
        "[CLIENT[:PORT]|PATH]"
    }

    fn application(&self) -> &'static str {
        "midi"
    }

    fn takes(&self) -> Option<Format> {
        Some(Format::Midi)
    }

    fn kind(&self, described: &Description) -> Result<Kind, DeviceError> {
        Facts::of(described).map(|_| Kind::Midi)
    }

    fn subsystem(&self) -> Option<&'static str> {
        Some("sound")
    }

    fn list(&self) -> Vec<Listing> {
        discovery::list()
    }

    fn flows(&self, _spec: &DeviceSpec) -> Result<Vec<FlowOffer>, DeviceError> {
        Ok(flows())
    }

    fn nodes(&self, spec: &DeviceSpec) -> Vec<NodeName> {
        // Ports of the sequencer may have the same name.
        is_path(&spec.target).then(|| NodeName::File((&spec.target).into())).into_iter().collect()
    }

    fn open(&self, spec: &DeviceSpec, role: Role, like: Option<&Description>) -> Result<Opened, DeviceError> {
        match role {
            Role::Application => make_node(spec, like),
            Role::Device if is_path(&spec.target) => {
                let (line, facts) = discovery::open_raw(&spec.target)?;
                facts.opened_device(spec, line)
            }
            Role::Device => {
                let client = discovery::open()?;
                let found = discovery::find(client.as_fd(), &spec.target)?;
                open_port(spec, client, &found)
            }
        }
    }

    fn reopen(&self, spec: &DeviceSpec, role: Role, known: &Description) -> Result<Opened, DeviceError> {
        let facts = Facts::of(known)?;
        match role {
            Role::Application => self.open(spec, role, Some(known)),
            Role::Device if is_path(&spec.target) => {
                let (line, facts) = discovery::find_raw_again(&spec.target, &facts)?;
                facts.opened_device(spec, line)
            }
            Role::Device => {
                let client = discovery::open()?;
                let found = discovery::find_again(client.as_fd(), &spec.target, &facts)?;
                open_port(spec, client, &found)
            }
        }
    }

    fn partner(&self, opened: Opened) -> Result<Box<dyn Partner>, DeviceError> {
        let (role, facts) = (opened.role, Facts::of(&opened.description)?);
        let [line, memory] = plain::descriptors(opened)?;
        let kind = match (role, facts.kind) {
            (Role::Application, _) => Line::Sequencer { device: None, receiver: Receiver::Software },
            (Role::Device, FactsKind::Raw) => Line::Raw,
            (Role::Device, kind) => {
                let is_hardware = kind == FactsKind::Hardware;
                let receiver = if is_hardware { Receiver::Hardware } else { Receiver::Software };
                Line::Sequencer { device: Some(facts.address), receiver }
            }
        };
        Ok(Box::new(MidiPartner::new(facts.name, line, kind, Memory(memory))))
    }
}
