//! Sound: microphones and speakers of the device host, and nodes for programs of the application host.
//!
//! | module | purpose |
//! |---|---|
//! | `engine` | the sound thread in the broker, and its connection to the worker |
//! | `pipewire`, `alsa` | the two things that a sound thread can have; behind the feature `media` |
//! | `memory` | the memory that thread and worker share |
//! | `partner`, `writer` | the worker's side |
//! | `player`, `recorder` | the thread's side |
//! | `joint` | gaps without clicks |
//!
//! ```text
//! device host                                          application host
//! microphone ─► Recorder ─► SlotReader ─► network ─► RingWriter ─► Player ─► virtual microphone ─► program
//! speaker ◄── Player ◄── RingWriter ◄── network ◄── SlotReader ◄── Recorder ◄── virtual speaker ◄── program
//! ```

#[cfg(feature = "media")]
mod alsa;
mod engine;
pub mod fuzz;
mod joint;
mod memory;
mod partner;
#[cfg(feature = "media")]
mod pipewire;
mod player;
mod recorder;
#[cfg(test)]
mod tests;
mod writer;

#[cfg(feature = "media")]
use crate::pipewire::server;
use crate::plain::{self, os};
use contract::{
    Description, DeviceClass, DeviceError, DeviceSpec, FlowClass, FlowDirection, FlowOffer, Format, Kind,
    Listing, ModuleEntry, NodeName, Opened, Partner, Role,
};
use engine::Running;
use partner::AudioPartner;
use std::os::fd::AsFd;
use wire::formats::audio::{SampleFormat, SampleSpec};
use wire::{Reader, WireError, Writer};

/// Frames a second: the rate of both sound servers, and of Opus.
const RATE_HZ: u32 = 48_000;
const CHANNELS: usize = 2;
const FRAME_BYTES: usize = 2 * CHANNELS;
/// The samples that devices and nodes exchange.
const SPEC: SampleSpec = SampleSpec { format: SampleFormat::S16, channels: CHANNELS as u8, rate_hz: RATE_HZ };
/// The quantum that Outboard asks for: 2.7 ms.
#[cfg(feature = "media")]
const QUANTUM_FRAMES: u32 = 128;
/// The rise or fall of the volume at a gap: 5 ms.
const FADE_FRAMES: usize = RATE_HZ as usize / 200;
/// The longest name of a device, in bytes.
const NAME_BYTES_MAX: usize = 128;

/// One sample for each channel.
type Frame = [i16; CHANNELS];

fn frame(bytes: [u8; FRAME_BYTES]) -> Frame {
    let [a, b, c, d] = bytes;
    [i16::from_le_bytes([a, b]), i16::from_le_bytes([c, d])]
}

/// Returns the name of this host, for the devices that have none of their own.
#[cfg(feature = "media")]
fn host_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("Sound of {name}")
}

/// True if this program was built with the libraries for sound.
pub const HAS_MEDIA: bool = cfg!(feature = "media");

/// The class `audio`.
#[derive(Debug)]
pub struct Audio;

/// A device as the user writes it.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Target {
    /// The default microphone and the default speaker.
    Both,
    Microphone,
    Speaker,
    /// A device of ALSA: its card, by name or number, and the number of the device.
    Card(String, u32),
    /// A source or a sink of the sound server.
    Name(String),
}

impl Target {
    fn parse(text: &str) -> Result<Target, DeviceError> {
        let card = |text: &str| match text.split_once(':') {
            None => Some(Target::Card(text.into(), 0)),
            Some((card, device)) => device.parse().ok().map(|device| Target::Card(card.into(), device)),
        };
        let is_plain = |name: &str| {
            !name.is_empty()
                && name.chars().all(|one| one.is_ascii_alphanumeric() || matches!(one, '_' | '-'))
        };
        match text {
            "" => Ok(Target::Both),
            "mic" | "microphone" => Ok(Target::Microphone),
            "speaker" => Ok(Target::Speaker),
            name if name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) => {
                Err(DeviceError::Spec {
                    what: "audio".into(),
                    problem: format!("a name has at most {NAME_BYTES_MAX} bytes, and no control characters"),
                })
            }
            name => match name.strip_prefix("hw:") {
                None => Ok(Target::Name(name.into())),
                Some(rest) => match card(rest) {
                    Some(Target::Card(name, device)) if is_plain(&name) => Ok(Target::Card(name, device)),
                    _ => Err(DeviceError::Spec {
                        what: format!("audio:{name}"),
                        problem: "a device of ALSA is `audio:hw:CARD` or `audio:hw:CARD:NUMBER`; `cat \
                                  /proc/asound/cards` lists the cards"
                            .into(),
                    }),
                },
            },
        }
    }
}

/// The streams that a sound thread makes.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Plan {
    role: Role,
    target: Target,
    /// Name of the node for programs.
    name: String,
    /// A flow to the application. `None` if only the device itself can tell.
    to_application: Option<bool>,
    /// A flow to the device. `None` as above.
    to_device: Option<bool>,
}

/// A sound thread's first report.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Facts {
    name: String,
    to_application: bool,
    to_device: bool,
}

fn flows(to_application: bool, to_device: bool) -> Vec<FlowOffer> {
    let flow = |direction| FlowOffer { direction, format: Format::Audio, class: FlowClass::Timely };
    let directions = [
        (to_application, FlowDirection::DeviceToApplication),
        (to_device, FlowDirection::ApplicationToDevice),
    ];
    directions.into_iter().filter(|(has, _)| *has).map(|(_, direction)| flow(direction)).collect()
}

fn has_flow(description: &Description, direction: FlowDirection) -> bool {
    description.flows.iter().any(|flow| flow.direction == direction && flow.format == Format::Audio)
}

/// Returns the device's name in a description of this class. It comes from the network.
fn name_of(description: &Description) -> Result<String, DeviceError> {
    let parse = || -> Result<String, WireError> {
        let mut reader = Reader::new(&description.properties);
        let name = reader.text("name", NAME_BYTES_MAX)?.chars().filter(|one| !one.is_control()).collect();
        reader.end("audio description")?;
        Ok(name)
    };
    parse().map_err(|error| DeviceError::Spec {
        what: "the description of a sound device".into(),
        problem: error.to_string(),
    })
}

/// Returns true if PipeWire carries the sound of this user. A desktop may have it for pictures alone, beside PulseAudio: no stream of
/// sound is ever connected there.
#[cfg(feature = "media")]
fn has_pipewire() -> bool {
    server::is_running() && !(sys::sound_server::pulseaudio_runs() && pipewire::is_silent())
}

/// Starts the sound thread of a plan.
#[cfg(feature = "media")]
fn start(plan: Plan) -> Result<(Facts, Running), DeviceError> {
    match plan.target {
        Target::Card(..) => engine::start(plan, alsa::run),
        _ if has_pipewire() => engine::start(plan, pipewire::run),
        _ => engine::start(alsa::replaced(plan)?, alsa::run),
    }
}

/// Refuses: this program has no libraries for sound.
#[cfg(not(feature = "media"))]
fn start(_: Plan) -> Result<(Facts, Running), DeviceError> {
    Err(DeviceError::Spec {
        what: "audio".into(),
        problem: "this program was built without sound, which needs libraries of the system: install the package for \
                  Debian or Ubuntu, or build with `cargo build --features media`"
            .into(),
    })
}

impl DeviceClass for Audio {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry {
            name: "audio",
            summary: "a microphone, a speaker or both; the application is a microphone and a speaker that programs choose",
            doc: include_str!("doc.md"),
            options: &[],
        }
    }

    fn target(&self) -> &'static str {
        "[mic|speaker|NAME|hw:CARD[:NUMBER]]"
    }

    fn application(&self) -> &'static str {
        "audio"
    }

    fn takes(&self) -> Option<Format> {
        Some(Format::Audio)
    }

    fn kind(&self, described: &Description) -> Result<Kind, DeviceError> {
        name_of(described).map(|_| Kind::Audio)
    }

    /// Two clocks are never equal, and a network is never even. Packets of the codec are larger than a quantum, so it delays sound; it
    /// codes only where the network demands it.
    fn pipeline(&self, _direction: FlowDirection) -> &'static str {
        match HAS_MEDIA {
            true => "resample | buffer(play, delay=auto) | opus(when=needed)",
            false => "resample | buffer(play, delay=auto)",
        }
    }

    fn subsystem(&self) -> Option<&'static str> {
        Some("sound")
    }

    #[cfg(feature = "media")]
    fn list(&self) -> Vec<Listing> {
        if has_pipewire() { pipewire::list() } else { alsa::list() }
    }

    #[cfg(not(feature = "media"))]
    fn list(&self) -> Vec<Listing> {
        Vec::new()
    }

    fn flows(&self, spec: &DeviceSpec) -> Result<Vec<FlowOffer>, DeviceError> {
        Ok(match Target::parse(&spec.target)? {
            Target::Both => flows(true, true),
            Target::Microphone => flows(true, false),
            Target::Speaker => flows(false, true),
            Target::Card(..) | Target::Name(_) => Vec::new(),
        })
    }

    fn nodes(&self, _spec: &DeviceSpec) -> Vec<NodeName> {
        // Several nodes of a sound server may have the same name.
        Vec::new()
    }

    fn open(&self, spec: &DeviceSpec, role: Role, like: Option<&Description>) -> Result<Opened, DeviceError> {
        let target = Target::parse(&spec.target)?;
        let like = like.filter(|_| role == Role::Application);
        let like_name = like.filter(|like| like.class == self.name()).map(name_of).transpose()?;
        let name = match (&target, like_name) {
            (Target::Name(name), _) => name.clone(),
            (_, Some(name)) if !name.is_empty() => name,
            _ => "Outboard".into(),
        };
        let (to_application, to_device) = match (role, like, &target) {
            (Role::Application, Some(like), _) => {
                let has = |direction| Some(has_flow(like, direction));
                (has(FlowDirection::DeviceToApplication), has(FlowDirection::ApplicationToDevice))
            }
            (Role::Application, None, _) | (Role::Device, _, Target::Both) => (Some(true), Some(true)),
            (Role::Device, _, Target::Microphone) => (Some(true), Some(false)),
            (Role::Device, _, Target::Speaker) => (Some(false), Some(true)),
            (Role::Device, _, Target::Card(..) | Target::Name(_)) => (None, None),
        };
        let (facts, running) = start(Plan { role, target, name, to_application, to_device })?;
        let Facts { name, to_application, to_device } = facts;
        let directions = match (to_application, to_device) {
            (true, true) => "microphone and speaker",
            (true, false) => "microphone",
            _ => "speaker",
        };
        let description = Description {
            class: self.name().into(),
            summary: format!("{name} ({directions})"),
            flows: flows(to_application, to_device),
            application: self.application(),
            properties: Writer::new().text(&name[..name.floor_char_boundary(NAME_BYTES_MAX)]).finish(),
        };
        Ok(Opened { spec: spec.clone(), role, description, descriptors: running.descriptors })
    }

    fn can_hand_over(&self, _: &Opened) -> bool {
        false
    }

    fn release(&self, opened: &Opened) {
        if let Some(control) = opened.descriptors.first() {
            engine::release(control.as_fd());
        }
    }

    fn revoke(&self, opened: &Opened) {
        self.release(opened);
    }

    fn partner(&self, opened: Opened) -> Result<Box<dyn Partner>, DeviceError> {
        let (role, name) = (opened.role, name_of(&opened.description)?);
        let to_application = has_flow(&opened.description, FlowDirection::DeviceToApplication);
        let to_device = has_flow(&opened.description, FlowDirection::ApplicationToDevice);
        let (has_out, has_in) = match role {
            Role::Device => (to_application, to_device),
            Role::Application => (to_device, to_application),
        };
        let [control, memory] = plain::descriptors(opened)?;
        let partner = AudioPartner::new(name, control, memory, has_out, has_in)
            .map_err(|error| os("mapping the memory of a sound device".into(), error, None))?;
        Ok(Box::new(partner))
    }
}
