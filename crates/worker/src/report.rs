//! Reports from a worker to its broker, and their encoding. The broker does not trust a worker: it validates and limits
//! each report, and a worker may send messages to the other host for its own flows only.

use super::codec::*;
use super::line::next_frame;
use bytes::BytesMut;
use contract::Time;
use flow::stats::{DriverStats, STATS_JSON_BYTES_MAX};
use flow::trace::{FlowTrace, TRACE_JSON_BYTES_MAX};
use flow::types::{Notice, driver_of};
use wire::control::{CONTROL_BODY_BYTES_MAX, FLOWS_MAX};
use wire::{FlowControl, Reader, WireError, Writer};

/// A message from a worker to its broker.
#[derive(Debug)]
pub enum Report {
    /// A notice from one driver.
    Notice {
        /// Number of the driver.
        driver: u32,
        /// The notice.
        notice: Notice,
    },
    /// Answer of a driver's partner to a console client, or an error text.
    Said {
        /// Number of the console client.
        visitor: u64,
        /// Answer or error text.
        result: Result<String, String>,
    },
    /// Statistics of one driver.
    Stats {
        /// Number of the driver.
        driver: u32,
        /// Its statistics.
        stats: Box<DriverStats>,
    },
    /// Stamps of one driver's trace.
    Trace {
        /// Number of the driver.
        driver: u32,
        /// Stamps of each flow.
        flows: Vec<FlowTrace>,
    },
    /// Time at which a data connection last received something. Sent at most once per ping interval.
    Received(Time),
    /// The worker's flows hold something that the loss of the link would harm, or nothing any more.
    Holds(bool),
    /// A problem of the worker itself, after which it continues.
    Warning(String),
    /// The sandbox refused this system call. [`super::process::Process`] learns it from the worker's standard error.
    Refused(String),
}

/// Bytes of the longest report: a trace. A worker that announces a longer one is killed before the broker reads it.
pub(super) const REPORT_BYTES_MAX: usize = TRACE_JSON_BYTES_MAX + HEADER_BYTES;
/// Bytes of a report before its JSON or control message, at most.
const HEADER_BYTES: usize = 64;
const _: () = assert!(STATS_JSON_BYTES_MAX <= TRACE_JSON_BYTES_MAX);
const _: () = assert!(CONTROL_BODY_BYTES_MAX + HEADER_BYTES <= TRACE_JSON_BYTES_MAX);

const NOTICE: u8 = 0;
const SAID: u8 = 1;
const STATS: u8 = 2;
const TRACED: u8 = 3;
const ALIVE: u8 = 4;
const WARNING: u8 = 5;
const REFUSED: u8 = 6;
const HOLDS: u8 = 7;

const SEND: u8 = 0;
const PARTNER_GONE: u8 = 1;
const LINK_FAILED: u8 = 2;
const CHANGED: u8 = 3;
const FLOW_ENDED: u8 = 4;
const INCIDENT: u8 = 5;
const STORE_FULL: u8 = 6;
const FAILED: u8 = 7;
const MISSED: u8 = 10;
const LINK_HELD_BACK: u8 = 8;
const PARTNER_RETURNED: u8 = 9;
const LOST: u8 = 11;
const WAYS_WANTED: u8 = 12;
const PARTNER_ABSENT: u8 = 13;
const PARTNER_PRESENT: u8 = 14;
const CONNECTIONS_WANTED: u8 = 15;
/// The most connections that one report may request.
const WAYS_WANTED_MAX: u32 = 128;

/// Encodes a report.
pub(super) fn emit_report(report: &Report) -> Vec<u8> {
    let mut w = Writer::new();
    match report {
        Report::Notice { driver, notice } => {
            w.u8(NOTICE).u32(*driver);
            put_notice(&mut w, notice);
        }
        Report::Said { visitor, result } => {
            let (is_answer, text) = match result {
                Ok(answer) => (true, answer),
                Err(problem) => (false, problem),
            };
            w.u8(SAID).u64(*visitor).u8(is_answer.into()).text(cut(text));
        }
        Report::Stats { driver, stats } => drop(w.u8(STATS).u32(*driver).blob(&stats_json(*driver, stats))),
        Report::Trace { driver, flows } => drop(w.u8(TRACED).u32(*driver).blob(&json(flows))),
        Report::Received(at) => drop(w.u8(ALIVE).u64(at.0)),
        Report::Holds(holds) => drop(w.u8(HOLDS).u8((*holds).into())),
        Report::Warning(problem) => drop(w.u8(WARNING).text(cut(problem))),
        Report::Refused(call) => drop(w.u8(REFUSED).text(cut(call))),
    }
    w.finish()
}

/// Encodes a value as JSON. A value that cannot be encoded gives an empty text, which the decoder rejects.
fn json(value: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}

/// Encodes the statistics of a driver within their limits.
fn stats_json(driver: u32, stats: &DriverStats) -> Vec<u8> {
    let all = json(stats);
    match all.len() <= STATS_JSON_BYTES_MAX && stats.is_within_limits(driver) {
        true => all,
        false => json(&stats.without_lists()),
    }
}

/// Takes the next report from the bytes that a worker sent; `None` until it is complete. An error explains why the worker can no
/// longer be trusted. Reports carry no descriptors.
pub fn next_report(received: &mut BytesMut) -> Result<Option<Report>, String> {
    match next_frame(received, 0, REPORT_BYTES_MAX) {
        Ok(Some((bytes, _))) => parse_report(&bytes).map(Some).map_err(|error| error.to_string()),
        Ok(None) => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

/// Decodes a report.
pub(super) fn parse_report(bytes: &[u8]) -> Parsed<Report> {
    let mut r = Reader::new(bytes);
    let r = &mut r;
    let report = match r.u8("report")? {
        NOTICE => {
            let driver = r.u32("driver")?;
            Report::Notice { driver, notice: notice(r, driver)? }
        }
        SAID => {
            let (visitor, is_answer) = (r.u64("visitor")?, flag(r)?);
            let text = text(r, "answer")?;
            Report::Said { visitor, result: if is_answer { Ok(text) } else { Err(text) } }
        }
        STATS => {
            let driver = r.u32("driver")?;
            let stats: Box<DriverStats> = serde_json::from_slice(r.blob("figures", STATS_JSON_BYTES_MAX)?)?;
            if !stats.is_within_limits(driver) {
                return Err(CodecError::Excess);
            }
            Report::Stats { driver, stats }
        }
        TRACED => {
            let driver = r.u32("driver")?;
            let flows: Vec<FlowTrace> = serde_json::from_slice(r.blob("traces", TRACE_JSON_BYTES_MAX)?)?;
            if flows.len() > FLOWS_MAX || !flows.iter().all(|flow| flow.is_within_limits(driver)) {
                return Err(CodecError::Excess);
            }
            Report::Trace { driver, flows }
        }
        ALIVE => Report::Received(Time(r.u64("time")?)),
        HOLDS => Report::Holds(flag(r)?),
        WARNING => Report::Warning(text(r, "warning")?),
        REFUSED => Report::Refused(text(r, "system call")?),
        value => return Err(WireError::Value { what: "report", value: value.into() }.into()),
    };
    r.end("report")?;
    Ok(report)
}

fn put_notice(w: &mut Writer, notice: &Notice) {
    match notice {
        Notice::Flow { flow, message } => put_flow_control(w.u8(SEND), *flow, message.clone()),
        Notice::PartnerGone(reason) => drop(w.u8(PARTNER_GONE).text(cut(reason))),
        Notice::PartnerReturned => drop(w.u8(PARTNER_RETURNED)),
        Notice::PartnerAbsent(reason) => drop(w.u8(PARTNER_ABSENT).text(cut(reason))),
        Notice::PartnerPresent => drop(w.u8(PARTNER_PRESENT)),
        Notice::LinkFailed(reason) => drop(w.u8(LINK_FAILED).text(cut(reason))),
        Notice::LinkHeldBack => drop(w.u8(LINK_HELD_BACK)),
        Notice::WaysWanted(ways) => drop(w.u8(WAYS_WANTED).u32(*ways)),
        Notice::ConnectionsWanted(count) => drop(w.u8(CONNECTIONS_WANTED).u32(*count)),
        Notice::Changed { direction, result } => {
            w.u8(CHANGED).u8(direction_byte(*direction)).u8(result.is_ok().into());
            let (Ok(text) | Err(text)) = result;
            w.text(cut(text));
        }
        Notice::FlowEnded(direction) => drop(w.u8(FLOW_ENDED).u8(direction_byte(*direction))),
        Notice::Incident(incident) => drop(w.u8(INCIDENT).text(cut(incident))),
        Notice::Missed { direction, messages } => {
            w.u8(MISSED).u8(direction_byte(*direction)).u64(*messages);
        }
        Notice::Lost { reason, messages } => drop(w.u8(LOST).u64(*messages).text(cut(reason))),
        Notice::StoreFull(policy) => drop(w.u8(STORE_FULL).text(policy.word())),
        // A worker never sends this notice; the broker creates it.
        Notice::Restarted { end, .. } => drop(w.u8(INCIDENT).text(cut(end))),
        Notice::Failed(reason) => drop(w.u8(FAILED).text(cut(reason))),
    }
}

fn notice(r: &mut Reader<'_>, driver: u32) -> Parsed<Notice> {
    Ok(match r.u8("notice")? {
        SEND => {
            let (flow, message) = flow_control(r)?;
            match message {
                // Only brokers propose.
                FlowControl::Propose { .. } => return Err(CodecError::Foreign),
                message if driver_of(flow) == driver => Notice::Flow { flow, message },
                _ => return Err(CodecError::Foreign),
            }
        }
        PARTNER_GONE => Notice::PartnerGone(text(r, "reason")?),
        PARTNER_RETURNED => Notice::PartnerReturned,
        PARTNER_ABSENT => Notice::PartnerAbsent(text(r, "reason")?),
        PARTNER_PRESENT => Notice::PartnerPresent,
        LINK_FAILED => Notice::LinkFailed(text(r, "reason")?),
        LINK_HELD_BACK => Notice::LinkHeldBack,
        WAYS_WANTED => match r.u32("ways")? {
            ways @ 1..=WAYS_WANTED_MAX => Notice::WaysWanted(ways),
            _ => return Err(CodecError::Excess),
        },
        CONNECTIONS_WANTED => match r.u32("connections")? {
            count @ 1..=WAYS_WANTED_MAX => Notice::ConnectionsWanted(count),
            _ => return Err(CodecError::Excess),
        },
        CHANGED => {
            let direction = direction(r)?;
            let is_done = flag(r)?;
            let text = text(r, "pipeline or reason")?;
            let result = if is_done { Ok(text) } else { Err(text) };
            Notice::Changed { direction, result }
        }
        FLOW_ENDED => Notice::FlowEnded(direction(r)?),
        INCIDENT => Notice::Incident(text(r, "incident")?),
        MISSED => Notice::Missed { direction: direction(r)?, messages: r.u64("missed messages")? },
        LOST => {
            let messages = r.u64("lost messages")?;
            Notice::Lost { reason: text(r, "reason")?, messages }
        }
        STORE_FULL => Notice::StoreFull(store_full(r)?),
        FAILED => Notice::Failed(text(r, "reason")?),
        value => return Err(WireError::Value { what: "notice", value: value.into() }.into()),
    })
}
