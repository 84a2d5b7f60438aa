//! Messages of the control channel (out-of-band messages of Networked Device Driver Architecture (2012), 4.9).
//!
//! Each message is a frame: `length: u32` (of the rest), `kind: u8`, body. The fields of a body are in the
//! order of the structs below; texts and blobs start with their `u32` length. A message within the limits below
//! always fits a frame.

use crate::FlowControl;
use crate::preamble::SessionToken;
use crate::{Reader, WireError, Writer};
use std::fmt;

/// The longest frame in bytes, without its length field.
pub const FRAME_BYTES_MAX: usize = 1 << 20;
/// The longest frame of a `Hello`, which comes from a host that is not authenticated yet: room for all names and features.
pub const HELLO_BYTES_MAX: usize = 32 << 10;
/// The longest name of a device, a host or an application, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// The longest pipeline text in bytes.
pub const PIPELINE_BYTES_MAX: usize = 4096;
/// The longest reason in bytes; a longer one is truncated when it is sent.
pub const REASON_BYTES_MAX: usize = 4096;
/// The longest summary of a device in bytes; a longer one is truncated when it is sent.
pub const SUMMARY_BYTES_MAX: usize = 255;
/// The longest body of `Pair`, in bytes.
pub const CONTROL_BODY_BYTES_MAX: usize = FRAME_BYTES_MAX - 16;
/// The longest device description in bytes.
pub const DESCRIPTION_BYTES_MAX: usize = 64 << 10;
/// The longest catalogue, in entries.
pub const CATALOGUE_ENTRIES_MAX: usize = 1024;
/// The most sequence ranges in one `Missing`.
pub const MISSING_RANGES_MAX: usize = 256;
/// The most features of one host.
pub const FEATURES_MAX: usize = 64;
/// Flows of one driver: at most one in each direction.
pub const FLOWS_MAX: usize = 2;

/// The direction of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FlowDirection {
    /// Sourced at the device, sunk at the application.
    DeviceToApplication,
    /// Sourced at the application, sunk at the device.
    ApplicationToDevice,
}

/// The promise of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FlowClass {
    /// No loss, in order.
    Reliable,
    /// Late messages are worthless.
    Timely,
    /// Only the newest state matters.
    State,
}

/// One device in a catalogue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CatalogueEntry {
    /// The name that it is shared under.
    pub name: String,
    /// Its device class, such as `evdev`.
    pub class: String,
    /// One line of text for users.
    pub summary: String,
    /// True if it is plugged in.
    pub present: bool,
}

/// An ability beyond this version of the protocol, which a host offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Feature {
    /// Its name.
    pub name: String,
    /// The host refuses a peer without this feature. Other features are used only if both hosts list them.
    pub is_needed: bool,
}

/// One flow, as both hosts agreed on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgreedFlow {
    /// Number of the flow in its session.
    pub flow: u32,
    /// Its direction.
    pub direction: FlowDirection,
    /// Its class.
    pub class: FlowClass,
    /// Name of the format at its source, such as `evdev`.
    pub format: String,
    /// Its pipeline in canonical form.
    pub pipeline: String,
}

/// One message of the control channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Control {
    /// Application host to device host, first message. A token asks to resume that session.
    Hello {
        /// Name of the host, for users.
        host: String,
        /// The session to resume.
        resume: Option<SessionToken>,
        /// Numbered messages of that session that this host has received.
        received: u64,
        /// Rises with each connection that the application host makes. A delayed connection that arrives after
        /// a later one resumes nothing.
        attempt: u32,
        /// Features of this host.
        features: Vec<Feature>,
    },
    /// The answer to `Hello`.
    Welcome {
        /// Name of the host, for users.
        host: String,
        /// The session.
        session: SessionToken,
        /// True if the requested session was found and resumes.
        resumed: bool,
        /// Numbered messages of that session that this host has received.
        received: u64,
        /// Features of this host.
        features: Vec<Feature>,
    },
    /// The session ends; nothing follows.
    Goodbye {
        /// The reason, for users.
        reason: String,
    },
    /// Liveness and clock: the answer is `Pong`.
    Ping {
        /// Identifies the ping.
        id: u32,
        /// The sender's boot clock at sending, in nanoseconds.
        sent: u64,
        /// Numbered messages that this host has received. The other side no longer needs to retain them.
        received: u64,
    },
    /// The answer to `Ping`, with the four timestamps of RFC 5905, section 8.
    Pong {
        /// The `id` of the ping.
        id: u32,
        /// The `sent` of the ping.
        sent: u64,
        /// The answerer's boot clock when the ping arrived, in nanoseconds.
        received: u64,
        /// The answerer's boot clock when the answer was sent, in nanoseconds.
        replied: u64,
    },
    /// Requests the catalogue.
    List,
    /// The devices that the device host offers to this peer.
    Catalogue {
        /// The devices.
        entries: Vec<CatalogueEntry>,
    },
    /// Application host to device host: open a device.
    Open {
        /// The application host's number for this driver.
        driver: u32,
        /// Name of the device in the catalogue.
        name: String,
        /// Class of the application side; empty for the device's own choice.
        application: String,
        /// Transport of the records, such as `tcp`.
        transport: String,
        /// Proposed pipeline from device to application, in canonical form; `None` for the device host's
        /// choice.
        via: Option<String>,
        /// Proposed pipeline from application to device.
        via_back: Option<String>,
        /// The application host's share of the driver's key (X25519, RFC 7748).
        key: PublicKey,
    },
    /// The device is open. Both hosts now build these flows.
    Opened {
        /// The driver.
        driver: u32,
        /// Class of the device.
        class: String,
        /// Everything needed to make the application's node, in the class's own layout.
        description: Vec<u8>,
        /// The flows.
        flows: Vec<AgreedFlow>,
        /// The device host's share of the driver's key.
        key: PublicKey,
    },
    /// The device was not opened.
    Refused {
        /// The driver.
        driver: u32,
        /// The problem, its place, and how to fix it.
        reason: String,
    },
    /// From either side: this driver ends.
    Close {
        /// The driver.
        driver: u32,
        /// The reason, for users.
        reason: String,
    },
    /// A message of one flow.
    Flow {
        /// The flow.
        flow: u32,
        /// The message.
        message: FlowControl,
    },
    /// Device host to application host: the device was unplugged, or it returned.
    Presence {
        /// The driver.
        driver: u32,
        /// True if the device is there.
        present: bool,
        /// The reason, for users.
        reason: String,
    },
    /// Device host to application host: the driver's data connection has arrived; records may flow.
    Linked {
        /// The driver.
        driver: u32,
    },
    /// Device host to application host: the driver's data connection has failed; make another.
    Unlinked {
        /// The driver.
        driver: u32,
    },
    /// Device host to application host, with the feature `losses`: a failure on the device host lost messages of a
    /// reliable flow.
    Lost {
        /// The driver.
        driver: u32,
        /// Their number.
        messages: u64,
        /// The reason, for users.
        reason: String,
    },
}

/// One host's share of a key.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct PublicKey(pub [u8; 32]);

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PublicKey(")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str(")")
    }
}

const HELLO: u8 = 1;
const WELCOME: u8 = 2;
const GOODBYE: u8 = 3;
const PING: u8 = 4;
const PONG: u8 = 5;
const LIST: u8 = 6;
const CATALOGUE: u8 = 7;
const OPEN: u8 = 8;
const OPENED: u8 = 9;
const REFUSED: u8 = 10;
const CLOSE: u8 = 11;
const PRESENCE: u8 = 18;
const LINKED: u8 = 22;
const UNLINKED: u8 = 28;
const LOST: u8 = 29;

impl Control {
    /// Returns true for messages that survive a broken connection. Both hosts number them from 0 in each
    /// session. Those that did not arrive are retransmitted when the session resumes.
    pub fn is_numbered(&self) -> bool {
        !matches!(
            self,
            Control::Hello { .. }
                | Control::Welcome { .. }
                | Control::Goodbye { .. }
                | Control::Ping { .. }
                | Control::Pong { .. }
        )
    }

    /// Returns the message as a frame, with its length. Texts for users are truncated; any other field over its
    /// limit makes a message that the peer refuses.
    pub fn emit(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.u32(0);
        self.write(&mut w);
        let mut bytes = w.finish();
        let length = (bytes.len() - 4) as u32;
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        bytes
    }

    /// Parses one frame from the front of `bytes`: returns the message and its length, or `None` if more bytes
    /// are needed. A length over [`FRAME_BYTES_MAX`] is an error at once, before its bytes arrive.
    pub fn parse_frame(bytes: &[u8]) -> Result<Option<(Control, usize)>, WireError> {
        Control::parse_frame_within(bytes, FRAME_BYTES_MAX)
    }

    /// Does the same as [`Control::parse_frame`] with another limit.
    pub fn parse_frame_within(bytes: &[u8], limit: usize) -> Result<Option<(Control, usize)>, WireError> {
        let mut reader = Reader::new(bytes);
        if reader.left() < 4 {
            return Ok(None);
        }
        let length = reader.u32("frame length")? as usize;
        if length > limit {
            let (length, limit) = (length as u64, limit as u64);
            return Err(WireError::TooLong { what: "frame length", length, limit });
        }
        if reader.left() < length {
            return Ok(None);
        }
        Ok(Some((Control::parse(reader.bytes("frame", length)?)?, 4 + length)))
    }

    fn write(&self, w: &mut Writer) {
        match self {
            Control::Hello { host, resume, received, attempt, features } => {
                w.u8(HELLO).text(host);
                put_option(w, resume, |w, token| w.raw(&token.0));
                put_features(w.u64(*received).u32(*attempt), features);
            }
            Control::Welcome { host, session, resumed, received, features } => {
                w.u8(WELCOME).text(host).raw(&session.0).u8((*resumed).into());
                put_features(w.u64(*received), features);
            }
            Control::Goodbye { reason } => {
                w.u8(GOODBYE).text(cut(reason, REASON_BYTES_MAX));
            }
            Control::Ping { id, sent, received } => {
                w.u8(PING).u32(*id).u64(*sent).u64(*received);
            }
            Control::Pong { id, sent, received, replied } => {
                w.u8(PONG).u32(*id).u64(*sent).u64(*received).u64(*replied);
            }
            Control::List => {
                w.u8(LIST);
            }
            Control::Catalogue { entries } => {
                w.u8(CATALOGUE).u16(entries.len() as u16);
                for entry in entries {
                    w.text(&entry.name)
                        .text(&entry.class)
                        .text(cut(&entry.summary, SUMMARY_BYTES_MAX))
                        .u8(entry.present.into());
                }
            }
            Control::Open { driver, name, application, transport, via, via_back, key } => {
                w.u8(OPEN).u32(*driver).text(name).text(application).text(transport);
                put_option(w, via, |w, text| w.text(text));
                put_option(w, via_back, |w, text| w.text(text));
                w.raw(&key.0);
            }
            Control::Opened { driver, class, description, flows, key } => {
                w.u8(OPENED).u32(*driver).text(class).blob(description).u16(flows.len() as u16);
                for flow in flows {
                    w.u32(flow.flow).u8(flow.direction.code()).u8(flow.class.code());
                    w.text(&flow.format).text(&flow.pipeline);
                }
                w.raw(&key.0);
            }
            Control::Refused { driver, reason } => {
                w.u8(REFUSED).u32(*driver).text(cut(reason, REASON_BYTES_MAX));
            }
            Control::Close { driver, reason } => {
                w.u8(CLOSE).u32(*driver).text(cut(reason, REASON_BYTES_MAX));
            }
            Control::Flow { flow, message } => message.write(*flow, w),
            Control::Presence { driver, present, reason } => {
                w.u8(PRESENCE).u32(*driver).u8((*present).into()).text(cut(reason, REASON_BYTES_MAX));
            }
            Control::Linked { driver } => {
                w.u8(LINKED).u32(*driver);
            }
            Control::Unlinked { driver } => {
                w.u8(UNLINKED).u32(*driver);
            }
            Control::Lost { driver, messages, reason } => {
                w.u8(LOST).u32(*driver).u64(*messages).text(cut(reason, REASON_BYTES_MAX));
            }
        }
    }

    /// Parses a message: the kind and the body, without the frame's length.
    pub fn parse(bytes: &[u8]) -> Result<Control, WireError> {
        let mut r = Reader::new(bytes);
        let message = match r.u8("control kind")? {
            HELLO => Control::Hello {
                host: name(&mut r, "hello host")?,
                resume: option(&mut r, "hello resume", |r| Ok(SessionToken(r.array("hello token")?)))?,
                received: r.u64("hello received")?,
                attempt: r.u32("hello attempt")?,
                features: features(&mut r)?,
            },
            WELCOME => Control::Welcome {
                host: name(&mut r, "welcome host")?,
                session: SessionToken(r.array("welcome session")?),
                resumed: flag(&mut r, "welcome resumed")?,
                received: r.u64("welcome received")?,
                features: features(&mut r)?,
            },
            GOODBYE => Control::Goodbye { reason: reason(&mut r)? },
            PING => Control::Ping {
                id: r.u32("ping id")?,
                sent: r.u64("ping sent")?,
                received: r.u64("ping received")?,
            },
            PONG => Control::Pong {
                id: r.u32("pong id")?,
                sent: r.u64("pong sent")?,
                received: r.u64("pong received")?,
                replied: r.u64("pong replied")?,
            },
            LIST => Control::List,
            CATALOGUE => {
                let count = r.count("catalogue entries", CATALOGUE_ENTRIES_MAX)?;
                let entry = |r: &mut Reader<'_>| {
                    Ok(CatalogueEntry {
                        name: name(r, "catalogue name")?,
                        class: name(r, "catalogue class")?,
                        summary: r.text("catalogue summary", SUMMARY_BYTES_MAX)?.into(),
                        present: flag(r, "catalogue present")?,
                    })
                };
                Control::Catalogue { entries: (0..count).map(|_| entry(&mut r)).collect::<Result<_, _>>()? }
            }
            OPEN => Control::Open {
                driver: r.u32("open driver")?,
                name: name(&mut r, "open name")?,
                application: name(&mut r, "open application")?,
                transport: name(&mut r, "open transport")?,
                via: option(&mut r, "open pipeline", |r| pipeline(r, "open pipeline"))?,
                via_back: option(&mut r, "open back pipeline", |r| pipeline(r, "open back pipeline"))?,
                key: PublicKey(r.array("open key")?),
            },
            OPENED => {
                let driver = r.u32("opened driver")?;
                let class = name(&mut r, "opened class")?;
                let description = r.blob("opened description", DESCRIPTION_BYTES_MAX)?.into();
                let count = r.count("opened flows", FLOWS_MAX)?;
                let flow = |r: &mut Reader<'_>| {
                    Ok(AgreedFlow {
                        flow: r.u32("flow number")?,
                        direction: FlowDirection::from_code(r.u8("flow direction")?)?,
                        class: FlowClass::from_code(r.u8("flow class")?)?,
                        format: name(r, "flow format")?,
                        pipeline: pipeline(r, "flow pipeline")?,
                    })
                };
                let flows = (0..count).map(|_| flow(&mut r)).collect::<Result<_, _>>()?;
                Control::Opened { driver, class, description, flows, key: PublicKey(r.array("opened key")?) }
            }
            REFUSED => Control::Refused { driver: r.u32("refused driver")?, reason: reason(&mut r)? },
            CLOSE => Control::Close { driver: r.u32("close driver")?, reason: reason(&mut r)? },
            PRESENCE => Control::Presence {
                driver: r.u32("presence driver")?,
                present: flag(&mut r, "presence")?,
                reason: reason(&mut r)?,
            },
            LINKED => Control::Linked { driver: r.u32("linked driver")? },
            UNLINKED => Control::Unlinked { driver: r.u32("unlinked driver")? },
            LOST => Control::Lost {
                driver: r.u32("lost driver")?,
                messages: r.u64("lost messages")?,
                reason: reason(&mut r)?,
            },
            kind => match FlowControl::parse(kind, &mut r)? {
                Some((flow, message)) => Control::Flow { flow, message },
                None => return Err(WireError::Value { what: "control kind", value: kind.into() }),
            },
        };
        r.end("control message")?;
        Ok(message)
    }
}

impl FlowDirection {
    fn code(self) -> u8 {
        match self {
            FlowDirection::DeviceToApplication => 0,
            FlowDirection::ApplicationToDevice => 1,
        }
    }

    fn from_code(code: u8) -> Result<Self, WireError> {
        match code {
            0 => Ok(FlowDirection::DeviceToApplication),
            1 => Ok(FlowDirection::ApplicationToDevice),
            other => Err(WireError::Value { what: "flow direction", value: other.into() }),
        }
    }
}

impl FlowClass {
    fn code(self) -> u8 {
        match self {
            FlowClass::Reliable => 0,
            FlowClass::Timely => 1,
            FlowClass::State => 2,
        }
    }

    fn from_code(code: u8) -> Result<Self, WireError> {
        match code {
            0 => Ok(FlowClass::Reliable),
            1 => Ok(FlowClass::Timely),
            2 => Ok(FlowClass::State),
            other => Err(WireError::Value { what: "flow class", value: other.into() }),
        }
    }
}

fn put_features(w: &mut Writer, features: &[Feature]) {
    w.u16(features.len() as u16);
    for feature in features {
        w.text(&feature.name).u8(feature.is_needed.into());
    }
}

fn features(r: &mut Reader<'_>) -> Result<Vec<Feature>, WireError> {
    let count = r.count("features", FEATURES_MAX)?;
    let feature = |r: &mut Reader<'_>| {
        Ok(Feature { name: name(r, "feature name")?, is_needed: flag(r, "feature needed")? })
    };
    (0..count).map(|_| feature(r)).collect()
}

fn name(r: &mut Reader<'_>, what: &'static str) -> Result<String, WireError> {
    Ok(r.text(what, NAME_BYTES_MAX)?.into())
}

pub(crate) fn pipeline(r: &mut Reader<'_>, what: &'static str) -> Result<String, WireError> {
    Ok(r.text(what, PIPELINE_BYTES_MAX)?.into())
}

pub(crate) fn reason(r: &mut Reader<'_>) -> Result<String, WireError> {
    Ok(r.text("reason", REASON_BYTES_MAX)?.into())
}

pub(crate) fn flag(r: &mut Reader<'_>, what: &'static str) -> Result<bool, WireError> {
    match r.u8(what)? {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(WireError::Value { what, value: other.into() }),
    }
}

/// Truncates a text for users to the limit of a message.
pub(crate) fn cut(text: &str, limit: usize) -> &str {
    &text[..text.floor_char_boundary(limit)]
}

pub(crate) fn put_option<T>(
    w: &mut Writer,
    value: &Option<T>,
    put: impl for<'w> FnOnce(&'w mut Writer, &T) -> &'w mut Writer,
) {
    match value {
        None => {
            w.u8(0);
        }
        Some(value) => {
            put(w.u8(1), value);
        }
    }
}

pub(crate) fn option<'a, T>(
    r: &mut Reader<'a>,
    what: &'static str,
    read: impl FnOnce(&mut Reader<'a>) -> Result<T, WireError>,
) -> Result<Option<T>, WireError> {
    if flag(r, what)? { read(r).map(Some) } else { Ok(None) }
}
