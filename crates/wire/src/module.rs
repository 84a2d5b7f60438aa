//! Frames between a module in its own process and its runner. `docs/reference/modules.md` has the layout, the
//! rules and vectors.
//!
//! A frame is `length: u32` (of the body alone), `kind: u8`, `at: u64`, then the body; little-endian. `at` is
//! the number of containers sent before the frame on the data descriptor of the same direction.

use crate::{Reader, WireError, Writer};

/// The version of this interface.
pub const MODULE_VERSION: u16 = 1;

/// The largest body of a frame, in bytes.
pub const MODULE_FRAME_BYTES_MAX: usize = 1 << 20;

/// The length of a frame's header in bytes.
pub const MODULE_HEADER_BYTES: usize = 13;

/// The longest reason of a drop or of a choice, in bytes.
pub const REASON_BYTES_MAX: usize = 256;

/// The largest body of a frame of a device or an application, in bytes: a hello with a few values, or a reason.
pub const DEVICE_FRAME_BYTES_MAX: usize = 16 << 10;

/// The most statistics, and the most choices, in a report.
pub const REPORT_LINES_MAX: usize = 64;

/// The longest name and the longest value of a statistic or an option, in bytes.
const NAME_BYTES_MAX: usize = 64;

/// An option of the hello to a user's program that runs on shared memory, and of its answer, each with the value `true`.
pub const SHARED_MEMORY: &str = "shared_memory";
/// The kind of [`ModuleFrame::Hello`].
pub const HELLO: u8 = 1;
const PEER: u8 = 2;
const FLUSH: u8 = 3;
const DONE: u8 = 4;
const ERROR: u8 = 5;
const GAP: u8 = 6;
const KEY: u8 = 7;
const FEEDBACK: u8 = 8;
const DROP: u8 = 9;
const REPORT: u8 = 10;
const NEUTRAL: u8 = 11;
const SNAPSHOT: u8 = 12;
const ABSENT: u8 = 13;
const PRESENT: u8 = 14;

/// A flow's key, never printed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ModuleKey(pub [u8; 32]);

impl std::fmt::Debug for ModuleKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ModuleKey(..)")
    }
}

/// Measurements of the flow and its path since the last feedback, for a source half that adapts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ModuleFeedback {
    /// Records received.
    pub received: u64,
    /// Records that the network lost, including those that were retransmitted later.
    pub lost: u64,
    /// Median time from creation to delivery, in nanoseconds.
    pub delay_ns: u64,
    /// Jitter: the 99th less the 1st percentile of that time, in nanoseconds.
    pub jitter_ns: u64,
    /// Shortest recent round trip, in nanoseconds.
    pub round_trip_ns: u64,
    /// Received bytes of message bodies a second.
    pub rate_bytes: u64,
    /// Bytes of message bodies that wait at the source for the network.
    pub waiting_bytes: u64,
}

/// The report of a module, for users and scripts.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ModuleReport {
    /// Its own statistics.
    pub figures: Vec<(String, f64)>,
    /// The values of its `auto` options: option, value as a user would write it, and reason.
    pub choices: Vec<(String, String, String)>,
    /// The problem of the first message that it refused; empty if it refused none.
    pub problem: String,
}

/// The content of a frame.
#[derive(Debug, Clone, PartialEq)]
pub enum ModuleFrame {
    /// The runner's first frame, except for a key. The module may reply with its own.
    Hello {
        /// The sender's [`MODULE_VERSION`].
        version: u16,
        /// `source` or `sink`, `device` or `application`.
        role: String,
        /// The flow's format at this half.
        format: String,
        /// Options: name and value, as a user would write them.
        options: Vec<(String, String)>,
    },
    /// A control message from or for the other half of the pair.
    Peer(Vec<u8>),
    /// To the module: the flow ends or changes its pipeline here. Output all held messages, then send `Done`.
    Flush,
    /// From the module: its first `outputs` containers hold all results of its first `inputs` containers.
    Done {
        /// Containers read and finished.
        inputs: u64,
        /// Containers written.
        outputs: u64,
    },
    /// From the module: an error. The module is about to exit.
    Error(String),
    /// To the module: messages were lost before the next container.
    Gap,
    /// To a built-in module, before the hello: the flow's key. A foreign program never receives it.
    Key(ModuleKey),
    /// To a built-in module: measurements for a half that adapts.
    Feedback(ModuleFeedback),
    /// From the module: it dropped messages on purpose.
    Drop {
        /// The number of messages.
        count: u64,
        /// The reason.
        reason: String,
    },
    /// From the module, now and then: its report.
    Report(ModuleReport),
    /// To a device or an application: go to the neutral state.
    Neutral,
    /// To a device: send the complete state.
    Snapshot,
    /// From a device: it is unplugged. The program goes on and waits for it.
    Absent(String),
    /// From a device: it is back.
    Present,
    /// A kind that this version does not know; it is ignored.
    Unknown(u8),
}

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModuleHeader {
    /// The length of the body in bytes.
    pub length: u32,
    /// The kind of frame.
    pub kind: u8,
    /// Containers sent earlier on the data descriptor of the same direction.
    pub at: u64,
}

impl ModuleHeader {
    /// Parses a header. Refuses a body over [`MODULE_FRAME_BYTES_MAX`].
    pub fn parse(bytes: &[u8]) -> Result<ModuleHeader, WireError> {
        let mut reader = Reader::new(bytes);
        let length = reader.u32("frame length")?;
        if length as usize > MODULE_FRAME_BYTES_MAX {
            let limit = MODULE_FRAME_BYTES_MAX as u64;
            return Err(WireError::TooLong { what: "frame length", length: length.into(), limit });
        }
        Ok(ModuleHeader { length, kind: reader.u8("frame kind")?, at: reader.u64("frame place")? })
    }
}

impl ModuleFrame {
    /// Makes a [`ModuleFrame::Drop`], with its reason truncated to the limit.
    pub fn drop(reason: &str, count: u64) -> ModuleFrame {
        ModuleFrame::Drop { count, reason: cut(reason, REASON_BYTES_MAX).into() }
    }

    /// Returns header and body.
    pub fn emit(&self, at: u64) -> Vec<u8> {
        let mut body = Writer::new();
        let kind = match self {
            ModuleFrame::Hello { version, role, format, options } => {
                body.u16(*version).text(role).text(format).u16(options.len().min(u16::MAX.into()) as u16);
                for (name, value) in options.iter().take(u16::MAX.into()) {
                    body.text(name).text(value);
                }
                HELLO
            }
            ModuleFrame::Peer(bytes) => {
                body.raw(bytes);
                PEER
            }
            ModuleFrame::Flush => FLUSH,
            ModuleFrame::Done { inputs, outputs } => {
                body.u64(*inputs).u64(*outputs);
                DONE
            }
            ModuleFrame::Error(what) => {
                body.raw(what.as_bytes());
                ERROR
            }
            ModuleFrame::Gap => GAP,
            ModuleFrame::Key(key) => {
                body.raw(&key.0);
                KEY
            }
            ModuleFrame::Feedback(feedback) => {
                let ModuleFeedback {
                    received,
                    lost,
                    delay_ns,
                    jitter_ns,
                    round_trip_ns,
                    rate_bytes,
                    waiting_bytes,
                } = *feedback;
                body.u64(received).u64(lost).u64(delay_ns).u64(jitter_ns).u64(round_trip_ns);
                body.u64(rate_bytes).u64(waiting_bytes);
                FEEDBACK
            }
            ModuleFrame::Drop { count, reason } => {
                body.u64(*count).text(reason);
                DROP
            }
            ModuleFrame::Report(ModuleReport { figures, choices, problem }) => {
                body.u16(figures.len().min(REPORT_LINES_MAX) as u16);
                for (name, value) in figures.iter().take(REPORT_LINES_MAX) {
                    body.text(cut(name, NAME_BYTES_MAX)).u64(value.to_bits());
                }
                body.u16(choices.len().min(REPORT_LINES_MAX) as u16);
                for (option, value, why) in choices.iter().take(REPORT_LINES_MAX) {
                    body.text(cut(option, NAME_BYTES_MAX)).text(cut(value, NAME_BYTES_MAX));
                    body.text(cut(why, REASON_BYTES_MAX));
                }
                body.text(cut(problem, REASON_BYTES_MAX));
                REPORT
            }
            ModuleFrame::Neutral => NEUTRAL,
            ModuleFrame::Snapshot => SNAPSHOT,
            ModuleFrame::Absent(reason) => {
                body.text(cut(reason, REASON_BYTES_MAX));
                ABSENT
            }
            ModuleFrame::Present => PRESENT,
            ModuleFrame::Unknown(kind) => *kind,
        };
        let body = body.finish();
        let mut frame = Writer::new();
        frame.u32(body.len() as u32).u8(kind).u64(at).raw(&body);
        frame.finish()
    }

    /// Parses the body of a frame of this kind.
    pub fn parse(kind: u8, body: &[u8]) -> Result<ModuleFrame, WireError> {
        let mut reader = Reader::new(body);
        let frame = match kind {
            HELLO => {
                let version = reader.u16("version")?;
                let role = reader.text("role", 16)?.to_string();
                let format = reader.text("format", 64)?.to_string();
                let count = reader.u16("number of options")?;
                let mut options = Vec::new();
                for _ in 0..count {
                    let name = reader.text("option", 64)?.to_string();
                    options.push((name, reader.text("value", 4096)?.to_string()));
                }
                ModuleFrame::Hello { version, role, format, options }
            }
            PEER => return Ok(ModuleFrame::Peer(body.to_vec())),
            FLUSH => ModuleFrame::Flush,
            DONE => ModuleFrame::Done { inputs: reader.u64("inputs")?, outputs: reader.u64("outputs")? },
            ERROR => {
                let what = std::str::from_utf8(body).map_err(|_| WireError::Text { what: "error" })?;
                return Ok(ModuleFrame::Error(what.into()));
            }
            GAP => ModuleFrame::Gap,
            KEY => ModuleFrame::Key(ModuleKey(reader.array("key")?)),
            FEEDBACK => ModuleFrame::Feedback(ModuleFeedback {
                received: reader.u64("received")?,
                lost: reader.u64("lost")?,
                delay_ns: reader.u64("delay")?,
                jitter_ns: reader.u64("jitter")?,
                round_trip_ns: reader.u64("round trip")?,
                rate_bytes: reader.u64("rate")?,
                waiting_bytes: reader.u64("waiting")?,
            }),
            DROP => ModuleFrame::Drop {
                count: reader.u64("count")?,
                reason: reader.text("reason", REASON_BYTES_MAX)?.to_string(),
            },
            REPORT => ModuleFrame::Report(parse_report(&mut reader)?),
            NEUTRAL => ModuleFrame::Neutral,
            SNAPSHOT => ModuleFrame::Snapshot,
            ABSENT => ModuleFrame::Absent(reader.text("reason", REASON_BYTES_MAX)?.to_string()),
            PRESENT => ModuleFrame::Present,
            unknown => return Ok(ModuleFrame::Unknown(unknown)),
        };
        reader.end("frame")?;
        Ok(frame)
    }
}

fn parse_report(reader: &mut Reader<'_>) -> Result<ModuleReport, WireError> {
    let mut report = ModuleReport::default();
    for _ in 0..reader.count("figures", REPORT_LINES_MAX)? {
        let name = reader.text("figure", NAME_BYTES_MAX)?.to_string();
        report.figures.push((name, f64::from_bits(reader.u64("value of a figure")?)));
    }
    for _ in 0..reader.count("choices", REPORT_LINES_MAX)? {
        let option = reader.text("option", NAME_BYTES_MAX)?.to_string();
        let value = reader.text("value", NAME_BYTES_MAX)?.to_string();
        report.choices.push((option, value, reader.text("why", REASON_BYTES_MAX)?.to_string()));
    }
    report.problem = reader.text("problem", REASON_BYTES_MAX)?.to_string();
    Ok(report)
}

fn cut(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}
