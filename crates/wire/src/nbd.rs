//! The NBD protocol (<https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>), both roles, without I/O: the fixed
//! newstyle negotiation, and requests with simple replies. All numbers are big-endian.
//!
//! [`ServerNegotiation`] and [`ClientNegotiation`] are the negotiations. Each names the number of bytes that it needs next, and takes
//! exactly that many.

use crate::formats::block::{
    Abilities, BLOCK_BYTES_MAX, Command, DATA_BYTES_MAX, Failure, Geometry, PREFERRED_BYTES_MAX,
};
use crate::{Reader, WireError};

/// The longest name of an export, in bytes ("String values" of the protocol).
pub const NAME_BYTES_MAX: usize = 4096;
/// The most data of an option or of the reply to one, in bytes.
pub const OPTION_BYTES_MAX: usize = 64 << 10;
/// The most options that a client may send.
pub const OPTIONS_MAX: u32 = 256;
/// The length of the header of a request.
pub const REQUEST_BYTES: usize = 28;
/// The length of a simple reply, without data.
pub const REPLY_BYTES: usize = 16;

const GREETING_MAGIC: u64 = u64::from_be_bytes(*b"NBDMAGIC");
const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
const OPTION_REPLY_MAGIC: u64 = 0x3_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;

const GREETING_BYTES: usize = 18;
const CLIENT_FLAGS_BYTES: usize = 4;
const OPTION_HEADER_BYTES: usize = 16;
const OPTION_REPLY_HEADER_BYTES: usize = 20;
/// Zeroes behind the facts of an export, unless both sides omit them.
const PADDING_BYTES: usize = 124;
const EXPORT_BYTES: usize = 10;

const FIXED_NEWSTYLE: u16 = 1;
const NO_ZEROES: u16 = 2;

const OPTION_EXPORT_NAME: u32 = 1;
const OPTION_ABORT: u32 = 2;
const OPTION_LIST: u32 = 3;
const OPTION_INFO: u32 = 6;
const OPTION_GO: u32 = 7;

const REPLY_ACK: u32 = 1;
const REPLY_SERVER: u32 = 2;
const REPLY_INFO: u32 = 3;
const REPLY_ERROR: u32 = 1 << 31;
const ERROR_UNSUPPORTED: u32 = REPLY_ERROR | 1;
const ERROR_INVALID: u32 = REPLY_ERROR | 3;
const ERROR_UNKNOWN: u32 = REPLY_ERROR | 6;
const ERROR_TOO_BIG: u32 = REPLY_ERROR | 9;

const INFO_EXPORT: u16 = 0;
const INFO_BLOCK_SIZE: u16 = 3;

const HAS_FLAGS: u16 = 1;
const READ_ONLY: u16 = 2;
const SEND_FLUSH: u16 = 4;
const SEND_FUA: u16 = 8;
const SEND_TRIM: u16 = 32;
const SEND_WRITE_ZEROES: u16 = 64;
const CAN_MULTI_CONN: u16 = 256;

const COMMAND_READ: u16 = 0;
const COMMAND_WRITE: u16 = 1;
const COMMAND_DISCONNECT: u16 = 2;
const COMMAND_FLUSH: u16 = 3;
const COMMAND_TRIM: u16 = 4;
const COMMAND_WRITE_ZEROES: u16 = 6;

const FLAG_FUA: u16 = 1;
const FLAG_NO_HOLE: u16 = 2;

fn u16_of(reader: &mut Reader<'_>, what: &'static str) -> Result<u16, WireError> {
    reader.array(what).map(u16::from_be_bytes)
}

fn u32_of(reader: &mut Reader<'_>, what: &'static str) -> Result<u32, WireError> {
    reader.array(what).map(u32::from_be_bytes)
}

fn u64_of(reader: &mut Reader<'_>, what: &'static str) -> Result<u64, WireError> {
    reader.array(what).map(u64::from_be_bytes)
}

fn magic(reader: &mut Reader<'_>, expected: u64) -> Result<(), WireError> {
    match u64_of(reader, "magic number")? {
        value if value == expected => Ok(()),
        value => Err(WireError::Value { what: "magic number", value }),
    }
}

/// Returns the transmission flags of a disk.
fn transmission_flags(abilities: Abilities) -> u16 {
    let Abilities { read_only, flush, force, trim, zeroes, many_connections } = abilities;
    let flags = [
        (read_only, READ_ONLY),
        (flush, SEND_FLUSH),
        (force, SEND_FUA),
        (trim, SEND_TRIM),
        (zeroes, SEND_WRITE_ZEROES),
        (many_connections, CAN_MULTI_CONN),
    ];
    flags.iter().filter(|(has, _)| *has).fold(HAS_FLAGS, |all, (_, flag)| all | flag)
}

/// Returns what a server with these transmission flags accepts.
fn abilities(flags: u16) -> Abilities {
    let has = |flag| flags & HAS_FLAGS != 0 && flags & flag != 0;
    Abilities {
        read_only: has(READ_ONLY),
        flush: has(SEND_FLUSH),
        force: has(SEND_FUA),
        trim: has(SEND_TRIM),
        zeroes: has(SEND_WRITE_ZEROES),
        many_connections: has(CAN_MULTI_CONN),
    }
}

fn export(geometry: &Geometry) -> [u8; EXPORT_BYTES] {
    let mut bytes = [0; EXPORT_BYTES];
    bytes[..8].copy_from_slice(&geometry.size_bytes.to_be_bytes());
    bytes[8..].copy_from_slice(&transmission_flags(geometry.abilities).to_be_bytes());
    bytes
}

/// The request of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// A request that the format `block` has, too.
    Do(Command),
    /// The client ends the connection, without a reply.
    Disconnect,
    /// A command of a later protocol. The number of bytes behind its header is unknown.
    Unknown(u16),
}

/// The header of a request. The data of a write follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The work.
    pub asked: Asked,
    /// The data have to be durable before the reply.
    pub force: bool,
    /// For [`Command::Zeroes`]: the server keeps the space allocated.
    pub keep_space: bool,
    /// The request has a flag that this server does not know.
    pub has_unknown_flags: bool,
    /// Chosen by the client; the reply has the same.
    pub cookie: u64,
    /// The first byte.
    pub offset: u64,
    /// The number of bytes.
    pub length: u32,
}

impl Request {
    /// Parses a header.
    pub fn parse(bytes: &[u8; REQUEST_BYTES]) -> Result<Request, WireError> {
        let mut reader = Reader::new(bytes);
        match u32_of(&mut reader, "magic number")? {
            REQUEST_MAGIC => {}
            value => return Err(WireError::Value { what: "magic number", value: value.into() }),
        }
        let flags = u16_of(&mut reader, "flags")?;
        let asked = match u16_of(&mut reader, "command")? {
            COMMAND_READ => Asked::Do(Command::Read),
            COMMAND_WRITE => Asked::Do(Command::Write),
            COMMAND_DISCONNECT => Asked::Disconnect,
            COMMAND_FLUSH => Asked::Do(Command::Flush),
            COMMAND_TRIM => Asked::Do(Command::Trim),
            COMMAND_WRITE_ZEROES => Asked::Do(Command::Zeroes),
            other => Asked::Unknown(other),
        };
        let cookie = u64_of(&mut reader, "cookie")?;
        let (offset, length) = (u64_of(&mut reader, "offset")?, u32_of(&mut reader, "length")?);
        let keeps = if asked == Asked::Do(Command::Zeroes) { FLAG_NO_HOLE } else { 0 };
        Ok(Request {
            asked,
            force: flags & FLAG_FUA != 0,
            keep_space: flags & keeps != 0,
            has_unknown_flags: flags & !(FLAG_FUA | keeps) != 0,
            cookie,
            offset,
            length,
        })
    }

    /// Returns the header.
    pub fn to_bytes(&self) -> [u8; REQUEST_BYTES] {
        let command = match self.asked {
            Asked::Do(Command::Read) => COMMAND_READ,
            Asked::Do(Command::Write) => COMMAND_WRITE,
            Asked::Do(Command::Flush) => COMMAND_FLUSH,
            Asked::Do(Command::Trim) => COMMAND_TRIM,
            Asked::Do(Command::Zeroes) => COMMAND_WRITE_ZEROES,
            Asked::Disconnect => COMMAND_DISCONNECT,
            Asked::Unknown(other) => other,
        };
        let flags = (u16::from(self.force) * FLAG_FUA) | (u16::from(self.keep_space) * FLAG_NO_HOLE);
        let mut bytes = [0; REQUEST_BYTES];
        bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        bytes[4..6].copy_from_slice(&flags.to_be_bytes());
        bytes[6..8].copy_from_slice(&command.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_be_bytes());
        bytes[24..].copy_from_slice(&self.length.to_be_bytes());
        bytes
    }
}

/// A simple reply. The data of a successful read follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reply {
    /// The cookie of the request.
    pub cookie: u64,
    /// Done, or the reason of the failure. A number that this protocol does not have is [`Failure::Device`].
    pub result: Result<(), Failure>,
}

impl Reply {
    /// Parses a reply.
    pub fn parse(bytes: &[u8; REPLY_BYTES]) -> Result<Reply, WireError> {
        let mut reader = Reader::new(bytes);
        match u32_of(&mut reader, "magic number")? {
            REPLY_MAGIC => {}
            value => return Err(WireError::Value { what: "magic number", value: value.into() }),
        }
        let result = match u32_of(&mut reader, "error")? {
            0 => Ok(()),
            number => {
                let known = u16::try_from(number).ok().and_then(Failure::from_number);
                Err(known.unwrap_or(Failure::Device))
            }
        };
        Ok(Reply { cookie: u64_of(&mut reader, "cookie")?, result })
    }

    /// Returns the bytes.
    pub fn to_bytes(&self) -> [u8; REPLY_BYTES] {
        let mut bytes = [0; REPLY_BYTES];
        bytes[..4].copy_from_slice(&REPLY_MAGIC.to_be_bytes());
        let error = self.result.err().map_or(0, Failure::number);
        bytes[4..8].copy_from_slice(&u32::from(error).to_be_bytes());
        bytes[8..].copy_from_slice(&self.cookie.to_be_bytes());
        bytes
    }
}

/// The state of a server's negotiation. A copy of it in memory that outlives a process continues the negotiation.
///
/// | state | bytes that it needs | next |
/// |---|---|---|
/// | `Flags` | the client's flags | `Option` |
/// | `Option` | the header of an option | `Data`, or `Refused` if it is too long |
/// | `Data` | the data of the option | `Option`, `Done`, `Ended` |
/// | `Done` | none: requests follow | |
/// | `Ended` | none: the connection ends | |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerNegotiation {
    /// The greeting was sent.
    Flags,
    /// The client chooses an option.
    Option {
        /// Neither side wants the padding.
        no_zeroes: bool,
        /// Options so far.
        count: u32,
    },
    /// The data of the option come.
    Data {
        /// Neither side wants the padding.
        no_zeroes: bool,
        /// Options so far.
        count: u32,
        /// The option.
        option: u32,
        /// Length of its data, at most [`OPTION_BYTES_MAX`].
        length: u32,
    },
    /// The client sends requests now.
    Done,
    /// The client, or an error, has ended the negotiation.
    Ended,
}

impl ServerNegotiation {
    /// Returns the greeting, which a server sends first.
    pub fn greeting() -> Vec<u8> {
        let mut bytes = GREETING_MAGIC.to_be_bytes().to_vec();
        bytes.extend(OPTION_MAGIC.to_be_bytes());
        bytes.extend((FIXED_NEWSTYLE | NO_ZEROES).to_be_bytes());
        bytes
    }

    /// The number of bytes that [`ServerNegotiation::take`] needs next, at most [`OPTION_BYTES_MAX`].
    pub fn needs(&self) -> usize {
        match self {
            ServerNegotiation::Flags => CLIENT_FLAGS_BYTES,
            ServerNegotiation::Option { .. } => OPTION_HEADER_BYTES,
            ServerNegotiation::Data { length, .. } => *length as usize,
            ServerNegotiation::Done | ServerNegotiation::Ended => 0,
        }
    }

    /// Takes exactly the bytes that it needs. `geometry` describes the only export, whose name is empty. Returns the bytes to send
    /// and the next state.
    pub fn take(self, bytes: &[u8], geometry: &Geometry) -> Result<(Vec<u8>, ServerNegotiation), WireError> {
        let mut reader = Reader::new(bytes);
        match self {
            ServerNegotiation::Flags => {
                let flags = u32_of(&mut reader, "flags of the client")?;
                let known = u32::from(FIXED_NEWSTYLE | NO_ZEROES);
                match flags & !known {
                    0 if flags & u32::from(FIXED_NEWSTYLE) != 0 => {
                        let no_zeroes = flags & u32::from(NO_ZEROES) != 0;
                        Ok((Vec::new(), ServerNegotiation::Option { no_zeroes, count: 0 }))
                    }
                    _ => Err(WireError::Value { what: "flags of the client", value: flags.into() }),
                }
            }
            ServerNegotiation::Option { no_zeroes, count } => {
                magic(&mut reader, OPTION_MAGIC)?;
                let (option, length) =
                    (u32_of(&mut reader, "option")?, u32_of(&mut reader, "length of an option")?);
                let too_long = |length: u32, limit: u64| {
                    Err(WireError::TooLong { what: "length of an option", length: length.into(), limit })
                };
                if length as usize > OPTION_BYTES_MAX {
                    return too_long(length, OPTION_BYTES_MAX as u64);
                }
                if count == OPTIONS_MAX {
                    let (length, limit) = (u64::from(count) + 1, OPTIONS_MAX.into());
                    return Err(WireError::TooLong { what: "options of a client", length, limit });
                }
                let data = ServerNegotiation::Data { no_zeroes, count: count + 1, option, length };
                match length {
                    0 => data.take(&[], geometry),
                    _ => Ok((Vec::new(), data)),
                }
            }
            ServerNegotiation::Data { no_zeroes, count, option, .. } => {
                Ok(answer_option(option, bytes, geometry, no_zeroes, count))
            }
            ServerNegotiation::Done | ServerNegotiation::Ended => Ok((Vec::new(), self)),
        }
    }
}

fn option_reply(into: &mut Vec<u8>, option: u32, kind: u32, data: &[&[u8]]) {
    let length: usize = data.iter().map(|part| part.len()).sum();
    into.extend(OPTION_REPLY_MAGIC.to_be_bytes());
    into.extend(option.to_be_bytes());
    into.extend(kind.to_be_bytes());
    into.extend((length as u32).to_be_bytes());
    data.iter().for_each(|part| into.extend_from_slice(part));
}

fn answer_option(
    option: u32,
    data: &[u8],
    geometry: &Geometry,
    no_zeroes: bool,
    count: u32,
) -> (Vec<u8>, ServerNegotiation) {
    let mut out = Vec::new();
    let next = ServerNegotiation::Option { no_zeroes, count };
    let next = match option {
        OPTION_EXPORT_NAME if data.is_empty() => {
            out.extend(export(geometry));
            out.resize(out.len() + if no_zeroes { 0 } else { PADDING_BYTES }, 0);
            ServerNegotiation::Done
        }
        // The protocol has no error for this option.
        OPTION_EXPORT_NAME => ServerNegotiation::Ended,
        OPTION_ABORT => {
            option_reply(&mut out, option, REPLY_ACK, &[]);
            ServerNegotiation::Ended
        }
        OPTION_LIST if data.is_empty() => {
            option_reply(&mut out, option, REPLY_SERVER, &[&0u32.to_be_bytes()]);
            option_reply(&mut out, option, REPLY_ACK, &[]);
            next
        }
        OPTION_LIST => {
            option_reply(&mut out, option, ERROR_INVALID, &[]);
            next
        }
        OPTION_INFO | OPTION_GO => match export_name(data) {
            Ok([]) => {
                option_reply(&mut out, option, REPLY_INFO, &[&INFO_EXPORT.to_be_bytes(), &export(geometry)]);
                let sizes = [geometry.block_bytes, geometry.preferred_bytes, DATA_BYTES_MAX as u32];
                let sizes = sizes.map(u32::to_be_bytes).concat();
                option_reply(&mut out, option, REPLY_INFO, &[&INFO_BLOCK_SIZE.to_be_bytes(), &sizes]);
                option_reply(&mut out, option, REPLY_ACK, &[]);
                if option == OPTION_GO { ServerNegotiation::Done } else { next }
            }
            Ok(_) => {
                option_reply(&mut out, option, ERROR_UNKNOWN, &[b"the only export has the empty name"]);
                next
            }
            Err(_) => {
                option_reply(&mut out, option, ERROR_INVALID, &[]);
                next
            }
        },
        _ => {
            option_reply(&mut out, option, ERROR_UNSUPPORTED, &[]);
            next
        }
    };
    (out, next)
}

/// Returns the name in the data of an option "info" or "go".
fn export_name(data: &[u8]) -> Result<&[u8], WireError> {
    let mut reader = Reader::new(data);
    let length = u32_of(&mut reader, "length of a name")? as usize;
    if length > NAME_BYTES_MAX {
        let (length, limit) = (length as u64, NAME_BYTES_MAX as u64);
        return Err(WireError::TooLong { what: "length of a name", length, limit });
    }
    let name = reader.bytes("name", length)?;
    let wanted = usize::from(u16_of(&mut reader, "number of facts")?);
    reader.bytes("facts", 2 * wanted)?;
    reader.end("option").map(|()| name)
}

/// A negotiation of a client failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NegotiationError {
    /// The bytes are not those of an NBD server.
    #[error("it is no NBD server that this client understands: {0}")]
    Protocol(#[from] WireError),
    /// The server has no export with this name.
    #[error("the server has no export `{name}`{}", said(.message))]
    NoExport {
        /// The name.
        name: String,
        /// The server's text, which may be empty.
        message: String,
    },
    /// The server refuses.
    #[error("the server refuses the export `{name}`: {reason}{}", said(.message))]
    Refused {
        /// The name.
        name: String,
        /// The meaning of its number.
        reason: &'static str,
        /// The server's text, which may be empty.
        message: String,
    },
}

fn said(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(" ({message})") }
}

/// A step of a client's negotiation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientStep {
    /// These bytes are to be sent; more are needed.
    Send(Vec<u8>),
    /// The negotiation is complete: the server expects requests.
    Done {
        /// The facts about the disk.
        geometry: Geometry,
        /// The longest read or write that the server accepts, at most [`DATA_BYTES_MAX`].
        request_bytes_max: u32,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClientState {
    Greeting,
    /// The header of a reply to "go".
    Header,
    /// The data of a reply to "go".
    Data {
        kind: u32,
        length: u32,
    },
    /// The facts behind "export name".
    Export,
}

/// The negotiation of a client for one export.
///
/// | state | bytes | sends | next |
/// |---|---|---|---|
/// | `Greeting` | greeting of a fixed newstyle server | its flags, "go" with the name | `Header` |
/// | `Header` | header of a reply | | `Data` |
/// | `Data` | a fact | | `Header` |
/// | `Data` | acknowledgement | | done |
/// | `Data` | "go" is unsupported | "export name" | `Export` |
/// | `Data` | another error | | failed |
/// | `Export` | facts | | done |
#[derive(Debug, Clone)]
pub struct ClientNegotiation {
    name: String,
    state: ClientState,
    no_zeroes: bool,
    export: Option<(u64, Abilities)>,
    /// The smallest and the preferred block.
    blocks: [u32; 2],
    request_bytes_max: u32,
    replies: u32,
}

impl ClientNegotiation {
    /// Begins for the export with this name.
    pub fn new(name: &str) -> ClientNegotiation {
        ClientNegotiation {
            name: name.into(),
            state: ClientState::Greeting,
            no_zeroes: false,
            export: None,
            blocks: [1, 4096],
            request_bytes_max: DATA_BYTES_MAX as u32,
            replies: 0,
        }
    }

    /// The number of bytes that [`ClientNegotiation::take`] needs next, at most [`OPTION_BYTES_MAX`].
    pub fn needs(&self) -> usize {
        match self.state {
            ClientState::Greeting => GREETING_BYTES,
            ClientState::Header => OPTION_REPLY_HEADER_BYTES,
            ClientState::Data { length, .. } => length as usize,
            ClientState::Export => EXPORT_BYTES + if self.no_zeroes { 0 } else { PADDING_BYTES },
        }
    }

    /// Takes exactly the bytes that it needs.
    pub fn take(&mut self, bytes: &[u8]) -> Result<ClientStep, NegotiationError> {
        let mut reader = Reader::new(bytes);
        match self.state {
            ClientState::Greeting => {
                magic(&mut reader, GREETING_MAGIC)?;
                magic(&mut reader, OPTION_MAGIC)?;
                let flags = u16_of(&mut reader, "flags of the server")?;
                if flags & FIXED_NEWSTYLE == 0 {
                    Err(WireError::Value { what: "flags of the server", value: flags.into() })?;
                }
                self.no_zeroes = flags & NO_ZEROES != 0;
                let mut out = u32::from(flags & (FIXED_NEWSTYLE | NO_ZEROES)).to_be_bytes().to_vec();
                let name = self.name.as_bytes();
                let wanted = [1u16.to_be_bytes(), INFO_BLOCK_SIZE.to_be_bytes()].concat();
                option(&mut out, OPTION_GO, &[&(name.len() as u32).to_be_bytes(), name, &wanted]);
                self.state = ClientState::Header;
                Ok(ClientStep::Send(out))
            }
            ClientState::Header => {
                magic(&mut reader, OPTION_REPLY_MAGIC)?;
                match u32_of(&mut reader, "option of a reply")? {
                    OPTION_GO => {}
                    value => Err(WireError::Value { what: "option of a reply", value: value.into() })?,
                }
                let kind = u32_of(&mut reader, "kind of a reply")?;
                let length = u32_of(&mut reader, "length of a reply")?;
                self.replies += 1;
                if length as usize > OPTION_BYTES_MAX || self.replies > OPTIONS_MAX {
                    let (length, limit) = (length.max(self.replies).into(), OPTION_BYTES_MAX as u64);
                    Err(WireError::TooLong { what: "reply to an option", length, limit })?;
                }
                self.state = ClientState::Data { kind, length };
                if length == 0 { self.take(&[]) } else { Ok(ClientStep::Send(Vec::new())) }
            }
            ClientState::Data { kind: REPLY_INFO, .. } => {
                match u16_of(&mut reader, "kind of a fact")? {
                    INFO_EXPORT => self.export = Some(parse_export(&mut reader)?),
                    INFO_BLOCK_SIZE => {
                        let (least, preferred) = (
                            u32_of(&mut reader, "block size")?,
                            u32_of(&mut reader, "preferred block size")?,
                        );
                        let most = u32_of(&mut reader, "largest block size")?;
                        let is_valid = least.is_power_of_two() && least <= BLOCK_BYTES_MAX && most >= least;
                        if !is_valid {
                            Err(WireError::Value { what: "block size", value: least.into() })?;
                        }
                        let preferred = if preferred.is_power_of_two() { preferred } else { 4096 };
                        self.blocks = [least, preferred.clamp(least, PREFERRED_BYTES_MAX)];
                        self.request_bytes_max = most.min(DATA_BYTES_MAX as u32);
                    }
                    _ => _ = reader.rest(),
                }
                reader.end("fact about an export")?;
                self.state = ClientState::Header;
                Ok(ClientStep::Send(Vec::new()))
            }
            ClientState::Data { kind: REPLY_ACK, .. } => {
                let missing = WireError::Short { what: "facts of the export", needed: EXPORT_BYTES, left: 0 };
                let (size, abilities) = self.export.ok_or(missing)?;
                self.done(size, abilities)
            }
            ClientState::Data { kind: ERROR_UNSUPPORTED, .. } => {
                let mut out = Vec::new();
                option(&mut out, OPTION_EXPORT_NAME, &[self.name.as_bytes()]);
                self.state = ClientState::Export;
                Ok(ClientStep::Send(out))
            }
            ClientState::Data { kind, .. } => Err(self.refused(kind, bytes)),
            ClientState::Export => {
                let (size, abilities) = parse_export(&mut reader)?;
                self.done(size, abilities)
            }
        }
    }

    fn done(&self, size: u64, abilities: Abilities) -> Result<ClientStep, NegotiationError> {
        let [block_bytes, preferred_bytes] = self.blocks;
        // The rest of a size that is no multiple of the block cannot be read anyway.
        let size_bytes = size - size % u64::from(block_bytes);
        let geometry = Geometry { size_bytes, block_bytes, preferred_bytes, abilities };
        geometry.check()?;
        Ok(ClientStep::Done { geometry, request_bytes_max: self.request_bytes_max })
    }

    fn refused(&self, kind: u32, text: &[u8]) -> NegotiationError {
        let text = String::from_utf8_lossy(&text[..text.len().min(NAME_BYTES_MAX)]);
        let message: String = text.chars().filter(|letter| !letter.is_control()).collect();
        let name = self.name.clone();
        let reason = match kind {
            ERROR_UNKNOWN => return NegotiationError::NoExport { name, message },
            kind if kind == REPLY_ERROR | 2 => "its rules forbid it",
            ERROR_INVALID => "it takes the request for invalid",
            kind if kind == REPLY_ERROR | 4 => "it does not support this client's platform",
            kind if kind == REPLY_ERROR | 5 => "it demands TLS",
            kind if kind == REPLY_ERROR | 7 => "it is shutting down",
            ERROR_TOO_BIG => "the request is too long for it",
            _ => "for an unknown reason",
        };
        NegotiationError::Refused { name, reason, message }
    }
}

fn option(into: &mut Vec<u8>, option: u32, data: &[&[u8]]) {
    let length: usize = data.iter().map(|part| part.len()).sum();
    into.extend(OPTION_MAGIC.to_be_bytes());
    into.extend(option.to_be_bytes());
    into.extend((length as u32).to_be_bytes());
    data.iter().for_each(|part| into.extend_from_slice(part));
}

fn parse_export(reader: &mut Reader<'_>) -> Result<(u64, Abilities), WireError> {
    let (size, flags) = (u64_of(reader, "size of the export")?, u16_of(reader, "flags of the export")?);
    Ok((size, abilities(flags)))
}
