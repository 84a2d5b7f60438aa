//! Messages of the control channel (paper N, section 4.9: out-of-band messages).
//!
//! On the channel each is a frame: `length: u32` (of what follows), `kind: u8`, body. The fields of each
//! kind stand in the order of the struct below; texts and blobs are preceded by their `u32` length. A
//! message whose fields are within the limits below fits a frame.

use crate::preamble::SessionToken;
use crate::{Reader, WireError, Writer};
use std::fmt;

/// Bytes of the longest frame, its length field not counted.
pub const FRAME_BYTES_MAX: usize = 1 << 20;
/// Bytes of the longest name of a device, host or application.
pub const NAME_BYTES_MAX: usize = 255;
/// Bytes of the longest pipeline text.
pub const PIPELINE_BYTES_MAX: usize = 4096;
/// Bytes of the longest reason; a longer one is cut when it is sent.
pub const REASON_BYTES_MAX: usize = 4096;
/// Bytes of the longest summary of a device; a longer one is cut when it is sent.
pub const SUMMARY_BYTES_MAX: usize = 255;
/// Bytes of the longest body of `Pair`, `Ask` and `Answer`.
pub const CONTROL_BODY_BYTES_MAX: usize = FRAME_BYTES_MAX - 16;
/// Bytes of the longest device description.
pub const DESCRIPTION_BYTES_MAX: usize = 64 << 10;
/// Entries of the longest catalogue.
pub const CATALOGUE_ENTRIES_MAX: usize = 1024;
/// Missing sequence ranges in one `Missing`.
pub const MISSING_RANGES_MAX: usize = 256;
/// Flows of one driver: at most one each way.
pub const FLOWS_MAX: usize = 2;

/// Which way a flow of a driver goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FlowDirection {
    /// Sourced at the device, sunk at the application.
    DeviceToApplication,
    /// Sourced at the application, sunk at the device.
    ApplicationToDevice,
}

/// What a flow promises (DESIGN: reliable, timely, state).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FlowClass {
    /// Nothing lost, in order.
    Reliable,
    /// Late is worthless.
    Timely,
    /// What matters is where things stand.
    State,
}

/// One device in a catalogue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CatalogueEntry {
    /// The name it is shared under.
    pub name: String,
    /// Its device class, such as `evdev`.
    pub class: String,
    /// One line for a person.
    pub summary: String,
    /// Whether it is plugged in now.
    pub present: bool,
}

/// One flow as both hosts agreed on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgreedFlow {
    /// Number of the flow in its session.
    pub flow: u32,
    /// Which way it goes.
    pub direction: FlowDirection,
    /// What it promises.
    pub class: FlowClass,
    /// Name of the format at its source, such as `evdev`.
    pub format: String,
    /// The pipeline in canonical form.
    pub pipeline: String,
}

/// One message of the control channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Control {
    /// Attacher to sharer, first: who I am; an old token asks to resume.
    Hello {
        /// Name of the host, for people.
        host: String,
        /// The session to resume.
        resume: Option<SessionToken>,
        /// Numbered messages of that session that came here.
        received: u64,
        /// Rises with each connection that the attacher makes: one that was held up on the way, and comes after a
        /// later one, resumes nothing.
        attempt: u32,
    },
    /// The answer to `Hello`.
    Welcome {
        /// Name of the host, for people.
        host: String,
        /// The session.
        session: SessionToken,
        /// Whether the session asked for was found and goes on.
        resumed: bool,
        /// Numbered messages of that session that came here.
        received: u64,
    },
    /// The session ends, and why; nothing follows.
    Goodbye {
        /// For people.
        reason: String,
    },
    /// Liveness and clock: the answer is `Pong`.
    Ping {
        /// Tells pings apart.
        id: u32,
        /// Sender's boot clock when sent, nanoseconds.
        sent: u64,
        /// Numbered messages that came here: the other side need not keep them.
        received: u64,
    },
    /// The answer to `Ping` (the four times of RFC 5905, section 8).
    Pong {
        /// The ping's.
        id: u32,
        /// The ping's.
        sent: u64,
        /// Answerer's boot clock when the ping came, nanoseconds.
        received: u64,
        /// Answerer's boot clock when the answer left, nanoseconds.
        replied: u64,
    },
    /// Asks for the catalogue.
    List,
    /// What the sharer offers this peer.
    Catalogue {
        /// The devices.
        entries: Vec<CatalogueEntry>,
    },
    /// Attacher to sharer: open a device.
    Open {
        /// The attacher's number for this driver.
        driver: u32,
        /// Name of the device in the catalogue.
        name: String,
        /// Class of the application side; empty: the device's own choice.
        application: String,
        /// Transport of the records, such as `tcp`.
        transport: String,
        /// Proposed pipeline, device to application, canonical; empty: what the sharer offers.
        via: Option<String>,
        /// Proposed pipeline, application to device.
        via_back: Option<String>,
        /// The attacher's share of the driver's key (X25519, RFC 7748).
        key: PublicKey,
    },
    /// The device is open; both hosts build these flows.
    Opened {
        /// The driver.
        driver: u32,
        /// Device class.
        class: String,
        /// What the application's node must look like, in the class's own layout.
        description: Vec<u8>,
        /// The flows.
        flows: Vec<AgreedFlow>,
        /// The sharer's share of the driver's key.
        key: PublicKey,
    },
    /// The device was not opened.
    Refused {
        /// The driver.
        driver: u32,
        /// What was wrong, where, and what to do.
        reason: String,
    },
    /// Either side: this driver ends.
    Close {
        /// The driver.
        driver: u32,
        /// For people.
        reason: String,
    },
    /// Sink to source: everything before `next` was taken by the sink's partner.
    Acknowledge {
        /// The flow.
        flow: u32,
        /// Its epoch.
        epoch: u32,
        /// The first sequence not taken yet.
        next: u64,
    },
    /// Sink to source: these sequences of a reliable flow did not come.
    Missing {
        /// The flow.
        flow: u32,
        /// Its epoch.
        epoch: u32,
        /// First and one past the last of each gap.
        ranges: Vec<(u64, u64)>,
    },
    /// Sink to source: what I have of this epoch is useless; start the next with where things stand.
    Resync {
        /// The flow.
        flow: u32,
        /// The epoch given up.
        epoch: u32,
    },
    /// Source to sink: an epoch has begun, and those before it are over.
    Epoch {
        /// The flow.
        flow: u32,
        /// The new epoch.
        epoch: u32,
        /// The epoch before it, 0 if there is none, and one past its last sequence.
        before: (u32, u64),
        /// It goes on behind that one; else what of it is not acknowledged is given up.
        goes_on: bool,
    },
    /// Source to sink: what was not taken before `sequence` of this epoch is kept no longer, and will not come.
    Gone {
        /// The flow.
        flow: u32,
        /// Its epoch; epochs before it are meant too.
        epoch: u32,
        /// One past the last sequence that was given up.
        sequence: u64,
    },
    /// Source to sink: the flow ends before `sequence`.
    End {
        /// The flow.
        flow: u32,
        /// Its epoch.
        epoch: u32,
        /// One past the last sequence.
        sequence: u64,
    },
    /// One half of a pair to the other.
    Pair {
        /// The flow.
        flow: u32,
        /// Its epoch.
        epoch: u32,
        /// Which pair of the pipeline, from 0.
        pair: u16,
        /// The pair's own bytes.
        body: Vec<u8>,
    },
    /// Sharer to attacher: the device went away, or came back.
    Presence {
        /// The driver.
        driver: u32,
        /// Whether it is there.
        present: bool,
        /// For people.
        reason: String,
    },
    /// A question to the other side's device or application.
    Ask {
        /// The driver.
        driver: u32,
        /// Tells questions apart.
        id: u32,
        /// Operation of the device class.
        operation: u16,
        /// Its arguments.
        body: Vec<u8>,
    },
    /// The answer to `Ask`.
    Answer {
        /// The driver.
        driver: u32,
        /// The question's.
        id: u32,
        /// 0, or an errno.
        status: u16,
        /// The result.
        body: Vec<u8>,
    },
    /// Sink to source: how the flow fares, for pairs that tune themselves.
    Feedback {
        /// The flow.
        flow: u32,
        /// Records that came since the flow began.
        received: u64,
        /// Records declared lost since the flow began.
        lost: u64,
        /// One-way delay, median of the last interval, microseconds.
        delay_us: u32,
        /// Variation of the delay, 99th less 1st percentile of the last interval, microseconds.
        jitter_us: u32,
    },
    /// Sharer to attacher: the driver's data connection is here; records may flow.
    Linked {
        /// The driver.
        driver: u32,
    },
    /// Sharer to attacher: the driver's data connection is of no more use here; make another.
    Unlinked {
        /// The driver.
        driver: u32,
    },
    /// Sink to source: let this flow have another pipeline.
    Propose {
        /// The flow.
        flow: u32,
        /// The pipeline, canonical.
        pipeline: String,
    },
    /// Source to sink: from this epoch on the flow has another pipeline.
    Change {
        /// The flow.
        flow: u32,
        /// The first epoch with it.
        epoch: u32,
        /// The pipeline, canonical.
        pipeline: String,
    },
    /// To a `Change`: the sink is ready for it. To that or a `Propose`: it is refused.
    Changed {
        /// The flow.
        flow: u32,
        /// The change's epoch; 0 for what was proposed.
        epoch: u32,
        /// Why not, if not.
        refusal: Option<String>,
    },
    /// Sink to source: the flow's messages come through the pipeline of this epoch now.
    Begun {
        /// The flow.
        flow: u32,
        /// The epoch.
        epoch: u32,
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
const ACKNOWLEDGE: u8 = 12;
const MISSING: u8 = 13;
const RESYNC: u8 = 14;
const EPOCH: u8 = 15;
const END: u8 = 16;
const PAIR: u8 = 17;
const PRESENCE: u8 = 18;
const ASK: u8 = 19;
const ANSWER: u8 = 20;
const FEEDBACK: u8 = 21;
const LINKED: u8 = 22;
const PROPOSE: u8 = 23;
const CHANGE: u8 = 24;
const CHANGED: u8 = 25;
const BEGUN: u8 = 26;
const GONE: u8 = 27;
const UNLINKED: u8 = 28;

impl Control {
    /// Whether the message counts among those that survive a broken connection: sender and receiver number
    /// them from 0 in each session, and what did not come is sent again when the session is resumed.
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

    /// The message as a frame, its length in front. A field over its limit makes a message that the peer
    /// refuses, save that texts for people are cut.
    pub fn emit(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.u32(0);
        self.write(&mut w);
        let mut bytes = w.finish();
        let length = (bytes.len() - 4) as u32;
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        bytes
    }

    /// Takes one frame off the front of `bytes`: the message and the bytes it took, or `None` if more
    /// bytes are needed. A length over [`FRAME_BYTES_MAX`] is an error before its bytes are waited for.
    pub fn parse_frame(bytes: &[u8]) -> Result<Option<(Control, usize)>, WireError> {
        let mut reader = Reader::new(bytes);
        if reader.left() < 4 {
            return Ok(None);
        }
        let length = reader.u32("frame length")? as usize;
        if length > FRAME_BYTES_MAX {
            let limit = FRAME_BYTES_MAX as u64;
            return Err(WireError::TooLong { what: "frame length", length: length as u64, limit });
        }
        if reader.left() < length {
            return Ok(None);
        }
        Ok(Some((Control::parse(reader.bytes("frame", length)?)?, 4 + length)))
    }

    fn write(&self, w: &mut Writer) {
        match self {
            Control::Hello { host, resume, received, attempt } => {
                w.u8(HELLO).text(host);
                put_option(w, resume, |w, token| w.raw(&token.0));
                w.u64(*received).u32(*attempt);
            }
            Control::Welcome { host, session, resumed, received } => {
                w.u8(WELCOME).text(host).raw(&session.0).u8((*resumed).into()).u64(*received);
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
            Control::Acknowledge { flow, epoch, next } => {
                w.u8(ACKNOWLEDGE).u32(*flow).u32(*epoch).u64(*next);
            }
            Control::Missing { flow, epoch, ranges } => {
                w.u8(MISSING).u32(*flow).u32(*epoch).u16(ranges.len() as u16);
                for (from, to) in ranges {
                    w.u64(*from).u64(*to);
                }
            }
            Control::Resync { flow, epoch } => {
                w.u8(RESYNC).u32(*flow).u32(*epoch);
            }
            Control::Epoch { flow, epoch, before, goes_on } => {
                w.u8(EPOCH).u32(*flow).u32(*epoch).u32(before.0).u64(before.1).u8((*goes_on).into());
            }
            Control::End { flow, epoch, sequence } => {
                w.u8(END).u32(*flow).u32(*epoch).u64(*sequence);
            }
            Control::Pair { flow, epoch, pair, body } => {
                w.u8(PAIR).u32(*flow).u32(*epoch).u16(*pair).blob(body);
            }
            Control::Presence { driver, present, reason } => {
                w.u8(PRESENCE).u32(*driver).u8((*present).into()).text(cut(reason, REASON_BYTES_MAX));
            }
            Control::Ask { driver, id, operation, body } => {
                w.u8(ASK).u32(*driver).u32(*id).u16(*operation).blob(body);
            }
            Control::Answer { driver, id, status, body } => {
                w.u8(ANSWER).u32(*driver).u32(*id).u16(*status).blob(body);
            }
            Control::Feedback { flow, received, lost, delay_us, jitter_us } => {
                w.u8(FEEDBACK).u32(*flow).u64(*received).u64(*lost).u32(*delay_us).u32(*jitter_us);
            }
            Control::Linked { driver } => {
                w.u8(LINKED).u32(*driver);
            }
            Control::Unlinked { driver } => {
                w.u8(UNLINKED).u32(*driver);
            }
            Control::Propose { flow, pipeline } => {
                w.u8(PROPOSE).u32(*flow).text(pipeline);
            }
            Control::Change { flow, epoch, pipeline } => {
                w.u8(CHANGE).u32(*flow).u32(*epoch).text(pipeline);
            }
            Control::Changed { flow, epoch, refusal } => {
                w.u8(CHANGED).u32(*flow).u32(*epoch);
                put_option(w, refusal, |w, reason| w.text(cut(reason, REASON_BYTES_MAX)));
            }
            Control::Begun { flow, epoch } => {
                w.u8(BEGUN).u32(*flow).u32(*epoch);
            }
            Control::Gone { flow, epoch, sequence } => {
                w.u8(GONE).u32(*flow).u32(*epoch).u64(*sequence);
            }
        }
    }

    /// Reads a message: the kind and what follows it, without the frame's length.
    pub fn parse(bytes: &[u8]) -> Result<Control, WireError> {
        let mut r = Reader::new(bytes);
        let message = match r.u8("control kind")? {
            HELLO => Control::Hello {
                host: name(&mut r, "hello host")?,
                resume: option(&mut r, "hello resume", |r| Ok(SessionToken(r.array("hello token")?)))?,
                received: r.u64("hello received")?,
                attempt: r.u32("hello attempt")?,
            },
            WELCOME => Control::Welcome {
                host: name(&mut r, "welcome host")?,
                session: SessionToken(r.array("welcome session")?),
                resumed: flag(&mut r, "welcome resumed")?,
                received: r.u64("welcome received")?,
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
            ACKNOWLEDGE => Control::Acknowledge {
                flow: r.u32("acknowledge flow")?,
                epoch: r.u32("acknowledge epoch")?,
                next: r.u64("acknowledge next")?,
            },
            MISSING => {
                let flow = r.u32("missing flow")?;
                let epoch = r.u32("missing epoch")?;
                let count = r.count("missing ranges", MISSING_RANGES_MAX)?;
                let range = |r: &mut Reader<'_>| Ok((r.u64("missing from")?, r.u64("missing to")?));
                let ranges = (0..count).map(|_| range(&mut r)).collect::<Result<_, _>>()?;
                Control::Missing { flow, epoch, ranges }
            }
            RESYNC => Control::Resync { flow: r.u32("resync flow")?, epoch: r.u32("resync epoch")? },
            EPOCH => Control::Epoch {
                flow: r.u32("epoch flow")?,
                epoch: r.u32("epoch")?,
                before: (r.u32("ended epoch")?, r.u64("ended sequence")?),
                goes_on: flag(&mut r, "epoch goes on")?,
            },
            END => Control::End {
                flow: r.u32("end flow")?,
                epoch: r.u32("end epoch")?,
                sequence: r.u64("end sequence")?,
            },
            PAIR => Control::Pair {
                flow: r.u32("pair flow")?,
                epoch: r.u32("pair epoch")?,
                pair: r.u16("pair number")?,
                body: r.blob("pair body", CONTROL_BODY_BYTES_MAX)?.into(),
            },
            PRESENCE => Control::Presence {
                driver: r.u32("presence driver")?,
                present: flag(&mut r, "presence")?,
                reason: reason(&mut r)?,
            },
            ASK => Control::Ask {
                driver: r.u32("ask driver")?,
                id: r.u32("ask id")?,
                operation: r.u16("ask operation")?,
                body: r.blob("ask body", CONTROL_BODY_BYTES_MAX)?.into(),
            },
            ANSWER => Control::Answer {
                driver: r.u32("answer driver")?,
                id: r.u32("answer id")?,
                status: r.u16("answer status")?,
                body: r.blob("answer body", CONTROL_BODY_BYTES_MAX)?.into(),
            },
            FEEDBACK => Control::Feedback {
                flow: r.u32("feedback flow")?,
                received: r.u64("feedback received")?,
                lost: r.u64("feedback lost")?,
                delay_us: r.u32("feedback delay")?,
                jitter_us: r.u32("feedback jitter")?,
            },
            LINKED => Control::Linked { driver: r.u32("linked driver")? },
            UNLINKED => Control::Unlinked { driver: r.u32("unlinked driver")? },
            PROPOSE => Control::Propose {
                flow: r.u32("propose flow")?,
                pipeline: pipeline(&mut r, "propose pipeline")?,
            },
            CHANGE => Control::Change {
                flow: r.u32("change flow")?,
                epoch: r.u32("change epoch")?,
                pipeline: pipeline(&mut r, "change pipeline")?,
            },
            CHANGED => Control::Changed {
                flow: r.u32("changed flow")?,
                epoch: r.u32("changed epoch")?,
                refusal: option(&mut r, "changed refusal", reason)?,
            },
            BEGUN => Control::Begun { flow: r.u32("begun flow")?, epoch: r.u32("begun epoch")? },
            GONE => Control::Gone {
                flow: r.u32("gone flow")?,
                epoch: r.u32("gone epoch")?,
                sequence: r.u64("gone sequence")?,
            },
            other => return Err(WireError::Value { what: "control kind", value: other.into() }),
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

fn name(r: &mut Reader<'_>, what: &'static str) -> Result<String, WireError> {
    Ok(r.text(what, NAME_BYTES_MAX)?.into())
}

fn pipeline(r: &mut Reader<'_>, what: &'static str) -> Result<String, WireError> {
    Ok(r.text(what, PIPELINE_BYTES_MAX)?.into())
}

fn reason(r: &mut Reader<'_>) -> Result<String, WireError> {
    Ok(r.text("reason", REASON_BYTES_MAX)?.into())
}

pub(crate) fn flag(r: &mut Reader<'_>, what: &'static str) -> Result<bool, WireError> {
    match r.u8(what)? {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(WireError::Value { what, value: other.into() }),
    }
}

/// As much of a text for people as a message takes.
pub(crate) fn cut(text: &str, limit: usize) -> &str {
    &text[..text.floor_char_boundary(limit)]
}

fn put_option<T>(
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

fn option<'a, T>(
    r: &mut Reader<'a>,
    what: &'static str,
    read: impl FnOnce(&mut Reader<'a>) -> Result<T, WireError>,
) -> Result<Option<T>, WireError> {
    match flag(r, what)? {
        false => Ok(None),
        true => read(r).map(Some),
    }
}
