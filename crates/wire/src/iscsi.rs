//! The iSCSI protocol (RFC 7143), the initiator's side, without I/O: one connection for each session, no digests, error recovery
//! level 0. All numbers are big-endian.
//!
//! A unit of the protocol (PDU) is a header of [`HEADER_BYTES`], and a data segment behind it, padded to [`padded`] bytes.
//! [`ToTarget`] makes headers, and [`FromTarget`] parses them. [`offer`] and [`Agreed`] are the texts of the login.

use crate::scsi::Cdb;
use crate::{Reader, WireError};
use std::collections::BTreeMap;

/// The port of iSCSI targets (IANA).
pub const PORT: u16 = 3260;
/// The length of the basic header segment.
pub const HEADER_BYTES: usize = 48;
/// The longest data segment that this initiator accepts: `MaxRecvDataSegmentLength`.
pub const DATA_BYTES_MAX: usize = 256 << 10;
/// The longest data segment that is not the data of a read; the default of the protocol, which holds during the login.
pub const TEXT_BYTES_MAX: usize = 8192;
/// The longest name of an initiator or a target (RFC 7143, 4.2.7.1).
pub const NAME_BYTES_MAX: usize = 223;
/// The largest number of a logical unit that [`lun_field`] can name.
pub const LUN_MAX: u16 = 0x3fff;
/// The tag of a PDU that belongs to no task.
pub const NO_TAG: u32 = u32::MAX;

const NOP_OUT: u8 = 0;
const COMMAND: u8 = 1;
const LOGIN: u8 = 3;
const DATA_OUT: u8 = 5;
const LOGOUT: u8 = 6;
const NOP_IN: u8 = 0x20;
const RESPONSE: u8 = 0x21;
const LOGIN_RESPONSE: u8 = 0x23;
const DATA_IN: u8 = 0x25;
const LOGOUT_RESPONSE: u8 = 0x26;
const READY: u8 = 0x31;
const ASYNC: u8 = 0x32;
const REJECT: u8 = 0x3f;

const CODE: u8 = 0x3f;
const IMMEDIATE: u8 = 0x40;
const FINAL: u8 = 0x80;
const CONTINUES: u8 = 0x40;
const TASK_READS: u8 = 0x40;
const TASK_WRITES: u8 = 0x20;
const TASK_SIMPLE: u8 = 1;
const HAS_STATUS: u8 = 1;
/// Bytes are left over, or missing, of the data in the direction of the command.
const RESIDUAL: u8 = 6;
/// Stages of a login: from operational negotiation to full feature.
const OPERATIONAL: u8 = 1 << 2;
const FULL_FEATURE: u8 = 3;

/// Returns the length of a data segment with its padding.
pub fn padded(data_bytes: usize) -> usize {
    data_bytes.next_multiple_of(4)
}

/// Returns the field of a logical unit (SAM-5, 4.7). `None` if the number is over [`LUN_MAX`].
pub fn lun_field(number: u16) -> Option<u64> {
    match number {
        0..256 => Some(u64::from(number) << 48),
        256..=LUN_MAX => Some(u64::from(number | 0x4000) << 48),
        _ => None,
    }
}

/// The numbers of an initiator that each of its PDUs carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Numbers {
    /// The number of the next command.
    pub command: u32,
    /// The number of the next status that it expects.
    pub expected_status: u32,
}

/// The data of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transfer {
    /// None.
    Nothing,
    /// The target sends this many bytes, at most.
    Read(u32),
    /// The initiator sends this many bytes.
    Write {
        /// All of them.
        length: u32,
        /// Those behind the header.
        immediate: u32,
        /// Others follow without being asked for.
        continues: bool,
    },
}

/// The header of a PDU to the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToTarget<'a> {
    /// A step of the login.
    Login {
        /// Names the session, together with the initiator's name. A login ends an earlier session with that name.
        isid: [u8; 6],
        /// The initiator has nothing more to negotiate.
        is_final: bool,
        /// The length of the text behind it.
        text_bytes: usize,
    },
    /// A command.
    Command {
        /// The unit.
        lun: u64,
        /// Names the command.
        tag: u32,
        /// The command.
        cdb: &'a Cdb,
        /// Its data.
        transfer: Transfer,
    },
    /// Data of a write.
    Data {
        /// The unit.
        lun: u64,
        /// The tag of the command.
        tag: u32,
        /// The tag of the target's [`FromTarget::Ready`]; [`NO_TAG`] for data that it did not ask for.
        transfer_tag: u32,
        /// The number of the PDU in its sequence.
        number: u32,
        /// The offset of the first byte.
        offset: u32,
        /// The number of bytes.
        length: u32,
        /// The last of the sequence.
        is_final: bool,
    },
    /// The answer to a ping of the target.
    Pong {
        /// The unit of the ping.
        lun: u64,
        /// The tag of the ping.
        transfer_tag: u32,
    },
    /// Ends the session.
    Logout {
        /// Names the request.
        tag: u32,
    },
}

impl ToTarget<'_> {
    /// Returns the header.
    pub fn to_bytes(&self, numbers: Numbers) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(28, &numbers.expected_status.to_be_bytes());
        if !matches!(self, ToTarget::Data { .. }) {
            put(24, &numbers.command.to_be_bytes());
        }
        let length_of = |bytes: u32| bytes.to_be_bytes();
        match *self {
            ToTarget::Login { isid, is_final, text_bytes } => {
                let stages = if is_final { FINAL | OPERATIONAL | FULL_FEATURE } else { OPERATIONAL };
                put(0, &[LOGIN | IMMEDIATE, stages]);
                put(5, &length_of(text_bytes as u32)[1..]);
                put(8, &isid);
            }
            ToTarget::Command { lun, tag, cdb, transfer } => {
                let (flags, length, immediate) = match transfer {
                    Transfer::Nothing => (FINAL, 0, 0),
                    Transfer::Read(length) => (FINAL | TASK_READS, length, 0),
                    Transfer::Write { length, immediate, continues } => {
                        (TASK_WRITES | if continues { 0 } else { FINAL }, length, immediate)
                    }
                };
                put(0, &[COMMAND, flags | TASK_SIMPLE]);
                put(5, &length_of(immediate)[1..]);
                put(8, &lun.to_be_bytes());
                put(16, &tag.to_be_bytes());
                put(20, &length.to_be_bytes());
                put(32, cdb);
            }
            ToTarget::Data { lun, tag, transfer_tag, number, offset, length, is_final } => {
                put(0, &[DATA_OUT, if is_final { FINAL } else { 0 }]);
                put(5, &length_of(length)[1..]);
                put(8, &lun.to_be_bytes());
                put(16, &tag.to_be_bytes());
                put(20, &transfer_tag.to_be_bytes());
                put(36, &number.to_be_bytes());
                put(40, &offset.to_be_bytes());
            }
            ToTarget::Pong { lun, transfer_tag } => {
                put(0, &[NOP_OUT | IMMEDIATE, FINAL]);
                put(8, &lun.to_be_bytes());
                put(16, &NO_TAG.to_be_bytes());
                put(20, &transfer_tag.to_be_bytes());
            }
            ToTarget::Logout { tag } => {
                put(0, &[LOGOUT | IMMEDIATE, FINAL]);
                put(16, &tag.to_be_bytes());
            }
        }
        bytes
    }
}

/// The status of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    /// The SCSI status.
    pub code: u8,
    /// The target transferred more or fewer bytes than the command says.
    pub has_residual: bool,
}

/// The header of a PDU from the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FromTarget {
    /// A step of the login.
    Login {
        /// The session begins.
        is_final: bool,
        /// More text follows.
        continues: bool,
        /// Class and detail of a refusal; 0 if there is none.
        status: u16,
    },
    /// The end of a command.
    Response {
        /// The tag of the command.
        tag: u32,
        /// Its status. `None` if the target did not execute it.
        status: Option<Status>,
    },
    /// Data of a read.
    Data {
        /// The tag of the command.
        tag: u32,
        /// The offset of the first byte.
        offset: u32,
        /// The command ends with these data.
        status: Option<Status>,
    },
    /// The target asks for data of a write.
    Ready {
        /// The tag of the command.
        tag: u32,
        /// For [`ToTarget::Data`].
        transfer_tag: u32,
        /// The offset of the first byte.
        offset: u32,
        /// The number of bytes.
        length: u32,
    },
    /// A ping, if it has a tag.
    Ping {
        /// The unit.
        lun: u64,
        /// The tag for the answer; [`NO_TAG`] demands none.
        transfer_tag: u32,
    },
    /// The session has ended, as the initiator has asked for.
    Logout,
    /// An event (RFC 7143, 11.9.1).
    Event(u8),
    /// The target refuses a PDU for this reason (RFC 7143, 11.17.1).
    Reject(u8),
}

/// The parts of a header that every PDU from the target has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// The kind, and its fields.
    pub kind: FromTarget,
    /// The number of its status, if it has one.
    pub status_number: Option<u32>,
    /// The number of the last command that the target accepts now.
    pub command_max: u32,
    /// The length of the data segment.
    pub data_bytes: usize,
}

impl Received {
    /// Parses a header.
    pub fn parse(header: &[u8; HEADER_BYTES]) -> Result<Received, WireError> {
        let u32_at =
            |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let [code, flags, third, fourth, additional, ..] = *header;
        if additional != 0 {
            return Err(WireError::Value { what: "additional header", value: additional.into() });
        }
        let data_bytes = u32::from_be_bytes([0, header[5], header[6], header[7]]) as usize;
        let mut lun = [0; 8];
        lun.copy_from_slice(&header[8..16]);
        let tag = u32_at(16);
        let status = || Status { code: fourth, has_residual: flags & RESIDUAL != 0 };
        let mut has_status = true;
        let kind = match code & CODE {
            LOGIN_RESPONSE => {
                let status = u16::from_be_bytes([header[36], header[37]]);
                let is_final = flags & FINAL != 0 && flags & FULL_FEATURE == FULL_FEATURE;
                FromTarget::Login { is_final, continues: flags & CONTINUES != 0, status }
            }
            RESPONSE => FromTarget::Response { tag, status: (third == 0).then(status) },
            DATA_IN => {
                has_status = flags & HAS_STATUS != 0;
                FromTarget::Data { tag, offset: u32_at(40), status: has_status.then(status) }
            }
            READY => {
                has_status = false;
                FromTarget::Ready { tag, transfer_tag: u32_at(20), offset: u32_at(40), length: u32_at(44) }
            }
            NOP_IN => {
                has_status = tag != NO_TAG;
                FromTarget::Ping { lun: u64::from_be_bytes(lun), transfer_tag: u32_at(20) }
            }
            LOGOUT_RESPONSE => FromTarget::Logout,
            ASYNC => FromTarget::Event(header[36]),
            REJECT => FromTarget::Reject(third),
            code => return Err(WireError::Value { what: "kind of a PDU", value: code.into() }),
        };
        let limit = if matches!(kind, FromTarget::Data { .. }) { DATA_BYTES_MAX } else { TEXT_BYTES_MAX };
        if data_bytes > limit {
            let (length, limit) = (data_bytes as u64, limit as u64);
            return Err(WireError::TooLong { what: "data segment", length, limit });
        }
        let status_number = has_status.then(|| u32_at(24));
        Ok(Received { kind, status_number, command_max: u32_at(32), data_bytes })
    }
}

/// Returns the sense data in the data segment of a response.
pub fn sense(segment: &[u8]) -> Option<&[u8]> {
    let mut reader = Reader::new(segment);
    let length = u16::from_be_bytes(reader.array("length of sense data").ok()?);
    reader.bytes("sense data", length.into()).ok()
}

/// Returns the reason of a refused login (RFC 7143, 11.13.5).
pub fn login_refusal(status: u16) -> &'static str {
    match status {
        0x0101 | 0x0102 => "the target has moved to another address",
        0x0201 => "it demands a password (CHAP), which this client does not have",
        0x0202 => "it does not permit this initiator",
        0x0203 => "it has no target with this name",
        0x0204 => "the target was removed",
        0x0205 => "it speaks another version of the protocol",
        0x0206 => "it has too many connections",
        0x0207 => "a name is missing in the login",
        0x0300..0x0400 => "it has an error of its own, or is out of service",
        _ => "it refuses the login",
    }
}

/// The most keys of a login, and rounds of it.
pub const KEYS_MAX: usize = 64;

/// The keys that this initiator offers, with their values. The target's answer can only be one of these values, or a smaller number.
const OFFER: [(&str, &str); 14] = [
    ("SessionType", "Normal"),
    ("HeaderDigest", "None"),
    ("DataDigest", "None"),
    ("MaxConnections", "1"),
    ("InitialR2T", "No"),
    ("ImmediateData", "Yes"),
    ("MaxRecvDataSegmentLength", "262144"),
    ("MaxBurstLength", "262144"),
    ("FirstBurstLength", "262144"),
    ("DefaultTime2Wait", "0"),
    ("DefaultTime2Retain", "0"),
    ("MaxOutstandingR2T", "1"),
    ("DataPDUInOrder", "Yes"),
    ("DataSequenceInOrder", "Yes"),
];

/// Returns the first text of a login.
pub fn offer(initiator: &str, target: &str) -> Vec<u8> {
    let names = [("InitiatorName", initiator), ("TargetName", target), ("ErrorRecoveryLevel", "0")];
    text(names.into_iter().chain(OFFER))
}

fn text<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<u8> {
    pairs.into_iter().flat_map(|(key, value)| format!("{key}={value}\0").into_bytes()).collect()
}

/// Parses a number: decimal or hexadecimal (RFC 7143, 6.1).
fn number(value: &str) -> Option<u32> {
    let (digits, radix) = match value.strip_prefix("0x").or_else(|| value.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None => (value, 10),
    };
    // `from_str_radix` accepts a sign.
    let is_number = digits.chars().all(|digit| digit.is_digit(radix));
    is_number.then(|| u32::from_str_radix(digits, radix).ok()).flatten()
}

/// The result of a login.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agreed {
    /// The longest data segment that the target accepts.
    pub segment_bytes: u32,
    /// The most data of a write that are sent before the target asks for them.
    pub first_bytes: u32,
    /// These may be more than those behind the header of the command.
    pub sends_first: bool,
    /// Data may be behind the header of the command.
    pub sends_immediate: bool,
    /// The most data that the target asks for at a time.
    pub burst_bytes: u32,
}

impl Default for Agreed {
    /// Returns the protocol's default values (RFC 7143, 13).
    fn default() -> Agreed {
        Agreed {
            segment_bytes: TEXT_BYTES_MAX as u32,
            first_bytes: 64 << 10,
            sends_first: false,
            sends_immediate: true,
            burst_bytes: 256 << 10,
        }
    }
}

impl Agreed {
    /// Handles the target's text. Returns the text of the answer, which is empty if the target offers nothing itself.
    pub fn handle(&mut self, bytes: &[u8]) -> Result<Vec<u8>, String> {
        let mut answer = BTreeMap::new();
        for (index, pair) in bytes.split(|byte| *byte == 0).filter(|pair| !pair.is_empty()).enumerate() {
            if index >= KEYS_MAX {
                return Err(format!("the target sends more than {KEYS_MAX} keys"));
            }
            let pair =
                str::from_utf8(pair).map_err(|_| "the target sends a key that is no text".to_string())?;
            let (key, value) =
                pair.split_once('=').ok_or_else(|| format!("the target sends `{pair}`, no key"))?;
            if !self.apply(key, value)? {
                answer.insert(key, "NotUnderstood");
            }
        }
        Ok(text(answer))
    }

    /// Applies one key. Returns false if it is not known.
    fn apply(&mut self, key: &str, value: &str) -> Result<bool, String> {
        let wrong = || format!("the target demands {key}={value}, which this client does not support");
        let number = |least: u32, most: u32| {
            let number = number(value).filter(|number| (least..=most).contains(number));
            number.ok_or_else(wrong)
        };
        let flag = || match value {
            "Yes" => Ok(true),
            "No" => Ok(false),
            _ => Err(wrong()),
        };
        match key {
            // Another key makes it so; both sides keep what they have.
            key if value == "Irrelevant" && OFFER.iter().any(|(offered, _)| *offered == key) => {}
            "MaxRecvDataSegmentLength" => self.segment_bytes = number(512, (1 << 24) - 1)?,
            "FirstBurstLength" => self.first_bytes = number(512, 262_144)?,
            "MaxBurstLength" => self.burst_bytes = number(512, 262_144)?,
            "InitialR2T" => self.sends_first = !flag()?,
            "ImmediateData" => self.sends_immediate = flag()?,
            // The target waits at least as long before it forgets a session; this client makes a new one.
            "DefaultTime2Wait" | "DefaultTime2Retain" => _ = number(0, 3600)?,
            "TargetAlias" | "TargetAddress" | "TargetPortalGroupTag" => {}
            "AuthMethod" if value == "None" => {}
            "AuthMethod" => return Err(wrong()),
            "ErrorRecoveryLevel" => _ = number(0, 0)?,
            key => match OFFER.iter().find(|(offered, _)| *offered == key) {
                Some((_, offered)) if *offered == value => {}
                Some(_) => return Err(wrong()),
                None => return Ok(false),
            },
        }
        Ok(true)
    }
}
