//! The format `hid`: reports of a HID device, and the requests of drivers and programs for them.
//! `docs/reference/formats-hid.md` has the layout and vectors.

use crate::{Reader, WireError, Writer};

/// The longest report, with its number (`UHID_DATA_MAX` of `linux/uhid.h`).
pub const REPORT_BYTES_MAX: usize = 4096;

/// Reports of a snapshot, at most: one for each number.
pub const SNAPSHOT_REPORTS_MAX: usize = 256;

/// All reports of a snapshot together, at most.
pub const SNAPSHOT_BYTES_MAX: usize = 64 << 10;

const INPUT: u8 = 0;
const OUTPUT: u8 = 1;
const SNAPSHOT: u8 = 2;
const GET: u8 = 3;
const SET: u8 = 4;
const ANSWER: u8 = 5;

/// The kind of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ReportKind {
    /// Read and written on request: settings, calibration.
    Feature,
    /// Sent to the device: lights, rumble.
    Output,
    /// Sent by the device: buttons, axes.
    Input,
}

impl ReportKind {
    /// The kinds by their numbers on the wire, which are those of `linux/uhid.h`.
    pub const ALL: [ReportKind; 3] = [ReportKind::Feature, ReportKind::Output, ReportKind::Input];

    /// Returns the kind with this number.
    pub fn from_number(number: u8) -> Option<ReportKind> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// The number on the wire.
    pub fn number(self) -> u8 {
        self as u8
    }
}

/// One message of the format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Update {
    /// A report of the device, as `/dev/hidraw*` returns it: its number first if the device numbers its reports.
    Input(Vec<u8>),
    /// A report for the device, as `/dev/hidraw*` takes it: its number first, 0 if the device does not number them.
    Output(Vec<u8>),
    /// The last report of each number: input reports from the device, output reports to it.
    Snapshot(Vec<Vec<u8>>),
    /// Asks for a report.
    Get {
        /// Chosen by the asking side; the answer has the same.
        request: u32,
        /// The kind of the report.
        kind: ReportKind,
        /// Its number.
        number: u8,
    },
    /// Sets a report.
    Set {
        /// Chosen by the asking side; the answer has the same.
        request: u32,
        /// The kind of the report.
        kind: ReportKind,
        /// The report, its number first.
        report: Vec<u8>,
    },
    /// The answer to one of these requests.
    Answer {
        /// The request.
        request: u32,
        /// The device has refused it; otherwise the report, its number first, which is empty after a [`Update::Set`].
        result: Result<Vec<u8>, Refused>,
    },
}

/// The device has refused a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused;

impl Update {
    /// Parses a message from the network.
    pub fn parse(body: &[u8]) -> Result<Update, WireError> {
        let mut reader = Reader::new(body);
        let update = match reader.u8("kind")? {
            INPUT => Update::Input(parse_report(&mut reader, 1)?),
            OUTPUT => Update::Output(parse_report(&mut reader, 1)?),
            SNAPSHOT => Update::Snapshot(parse_snapshot(&mut reader)?),
            GET => Update::Get {
                request: reader.u32("request")?,
                kind: parse_kind(&mut reader)?,
                number: reader.u8("report number")?,
            },
            SET => Update::Set {
                request: reader.u32("request")?,
                kind: parse_kind(&mut reader)?,
                report: parse_report(&mut reader, 1)?,
            },
            ANSWER => {
                let request = reader.u32("request")?;
                let result = match reader.u8("result")? {
                    0 => Ok(parse_report(&mut reader, 0)?),
                    1 => Err(Refused),
                    value => return Err(WireError::Value { what: "result", value: value.into() }),
                };
                Update::Answer { request, result }
            }
            kind => return Err(WireError::Value { what: "kind", value: kind.into() }),
        };
        reader.end("hid message")?;
        Ok(update)
    }

    /// Returns the bytes that [`Update::parse`] reads.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        match self {
            Update::Input(report) => writer.u8(INPUT).raw(report),
            Update::Output(report) => writer.u8(OUTPUT).raw(report),
            Update::Snapshot(reports) => {
                writer.u8(SNAPSHOT);
                for report in reports {
                    writer.u16(report.len() as u16).raw(report);
                }
                &mut writer
            }
            Update::Get { request, kind, number } => {
                writer.u8(GET).u32(*request).u8(kind.number()).u8(*number)
            }
            Update::Set { request, kind, report } => {
                writer.u8(SET).u32(*request).u8(kind.number()).raw(report)
            }
            Update::Answer { request, result: Ok(report) } => {
                writer.u8(ANSWER).u32(*request).u8(0).raw(report)
            }
            Update::Answer { request, result: Err(Refused) } => writer.u8(ANSWER).u32(*request).u8(1),
        };
        writer.finish()
    }
}

fn parse_kind(reader: &mut Reader<'_>) -> Result<ReportKind, WireError> {
    let number = reader.u8("report kind")?;
    ReportKind::from_number(number).ok_or(WireError::Value { what: "report kind", value: number.into() })
}

/// The rest of the message, which is a report.
fn parse_report(reader: &mut Reader<'_>, least: usize) -> Result<Vec<u8>, WireError> {
    check_length(reader.left(), least)?;
    Ok(reader.rest().to_vec())
}

fn check_length(length: usize, least: usize) -> Result<(), WireError> {
    match length {
        length if length < least => Err(WireError::Short { what: "report", needed: least, left: length }),
        length if length > REPORT_BYTES_MAX => {
            Err(WireError::TooLong { what: "report", length: length as u64, limit: REPORT_BYTES_MAX as u64 })
        }
        _ => Ok(()),
    }
}

fn parse_snapshot(reader: &mut Reader<'_>) -> Result<Vec<Vec<u8>>, WireError> {
    let length = reader.left();
    if length > SNAPSHOT_BYTES_MAX {
        let limit = SNAPSHOT_BYTES_MAX as u64;
        return Err(WireError::TooLong { what: "snapshot", length: length as u64, limit });
    }
    let mut reports = Vec::new();
    while reader.left() > 0 {
        if reports.len() == SNAPSHOT_REPORTS_MAX {
            let limit = SNAPSHOT_REPORTS_MAX as u64;
            return Err(WireError::TooLong { what: "reports of a snapshot", length: limit + 1, limit });
        }
        let length = usize::from(reader.u16("length of a report")?);
        check_length(length, 1)?;
        reports.push(reader.bytes("report", length)?.to_vec());
    }
    Ok(reports)
}
