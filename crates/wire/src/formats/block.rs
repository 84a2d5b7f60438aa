//! The format `block`: requests to a disk, and its answers. `docs/reference/formats-block.md` has the layout, the rules for an
//! order of requests and for a restart of either side, and vectors.
//!
//! A request or an answer is a header of constant length, and data behind it. So data are never copied to be parsed.

use crate::{Reader, WireError, Writer};

/// The most data of one request or answer, in bytes: the limit of the NBD protocol for clients that do not ask for one.
pub const DATA_BYTES_MAX: usize = 32 << 20;

/// The length of the header of a request.
pub const REQUEST_BYTES: usize = 22;

/// The length of the header of an answer.
pub const ANSWER_BYTES: usize = 11;

/// The length of a message [`FromDisk::Described`].
pub const DESCRIBED_BYTES: usize = 34;

const READ: u8 = 0;
const WRITE: u8 = 1;
const FLUSH: u8 = 2;
const TRIM: u8 = 3;
const ZEROES: u8 = 4;
const BEGIN: u8 = 5;

const READY: u8 = 0;
const DESCRIBED: u8 = 1;
const ANSWER: u8 = 2;

const FORCE: u8 = 1;
const KEEP_SPACE: u8 = 2;

const READ_ONLY: u8 = 1;
const CAN_FLUSH: u8 = 2;
const CAN_FORCE: u8 = 4;
const CAN_TRIM: u8 = 8;
const CAN_ZERO: u8 = 16;
const MANY_CONNECTIONS: u8 = 32;
const ALL_ABILITIES: u8 = 63;

/// A disk has at most this many bytes: the largest offset of a file.
pub const SIZE_BYTES_MAX: u64 = i64::MAX as u64;

/// The instance of a disk that cannot tell whether it has lost writes.
pub const UNKNOWN_INSTANCE: u64 = 0;

/// The largest block that a disk may demand, in bytes.
pub const BLOCK_BYTES_MAX: u32 = 64 << 10;

/// The largest preferred length of a request, in bytes.
pub const PREFERRED_BYTES_MAX: u32 = 1 << 20;

/// The facts about a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Its size in bytes: a multiple of `block_bytes`.
    pub size_bytes: u64,
    /// Offsets and lengths of requests are multiples of this; a power of two.
    pub block_bytes: u32,
    /// Requests of this length and alignment are fast; a power of two, at least `block_bytes`.
    pub preferred_bytes: u32,
    /// The requests that it accepts.
    pub abilities: Abilities,
}

/// The requests that a disk accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Abilities {
    /// It refuses all requests that change data.
    pub read_only: bool,
    /// It accepts [`Command::Flush`].
    pub flush: bool,
    /// It accepts requests with [`Request::force`].
    pub force: bool,
    /// It accepts [`Command::Trim`].
    pub trim: bool,
    /// It accepts [`Command::Zeroes`].
    pub zeroes: bool,
    /// A flush covers the answered writes of all connections, so an application may use several.
    pub many_connections: bool,
}

impl Geometry {
    /// Checks facts from the network.
    pub fn check(&self) -> Result<(), WireError> {
        let value = |what, value: u64| Err(WireError::Value { what, value });
        if self.size_bytes > SIZE_BYTES_MAX {
            let (length, limit) = (self.size_bytes, SIZE_BYTES_MAX);
            return Err(WireError::TooLong { what: "size of the disk", length, limit });
        }
        match (self.block_bytes, self.preferred_bytes) {
            (block, _) if !block.is_power_of_two() || block > BLOCK_BYTES_MAX => {
                value("block size", block.into())
            }
            (block, preferred)
                if !preferred.is_power_of_two() || preferred < block || preferred > PREFERRED_BYTES_MAX =>
            {
                value("preferred block size", preferred.into())
            }
            (block, _) if !self.size_bytes.is_multiple_of(u64::from(block)) => {
                value("size of the disk", self.size_bytes)
            }
            _ => Ok(()),
        }
    }

    /// Appends the facts.
    pub fn write(&self, writer: &mut Writer) {
        let Geometry { size_bytes, block_bytes, preferred_bytes, abilities: a } = *self;
        let flags = [
            (a.read_only, READ_ONLY),
            (a.flush, CAN_FLUSH),
            (a.force, CAN_FORCE),
            (a.trim, CAN_TRIM),
            (a.zeroes, CAN_ZERO),
            (a.many_connections, MANY_CONNECTIONS),
        ];
        let flags = flags.iter().filter(|(has, _)| *has).fold(0, |all, (_, flag)| all | flag);
        writer.u64(size_bytes).u32(block_bytes).u32(preferred_bytes).u8(flags);
    }

    /// Parses and checks the facts.
    pub fn read(reader: &mut Reader<'_>) -> Result<Geometry, WireError> {
        let (size_bytes, block_bytes) = (reader.u64("size of the disk")?, reader.u32("block size")?);
        let preferred_bytes = reader.u32("preferred block size")?;
        let flags = reader.u8("abilities")?;
        if flags & !ALL_ABILITIES != 0 {
            return Err(WireError::Value { what: "abilities", value: flags.into() });
        }
        let has = |flag| flags & flag != 0;
        let abilities = Abilities {
            read_only: has(READ_ONLY),
            flush: has(CAN_FLUSH),
            force: has(CAN_FORCE),
            trim: has(CAN_TRIM),
            zeroes: has(CAN_ZERO),
            many_connections: has(MANY_CONNECTIONS),
        };
        let geometry = Geometry { size_bytes, block_bytes, preferred_bytes, abilities };
        geometry.check().map(|()| geometry)
    }
}

/// The work of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Command {
    /// Returns data.
    Read,
    /// Stores data.
    Write,
    /// Makes all writes durable whose answers were sent before.
    Flush,
    /// The data are not needed any more; what a read returns is undefined.
    Trim,
    /// Stores zeroes.
    Zeroes,
}

impl Command {
    fn number(self) -> u8 {
        match self {
            Command::Read => READ,
            Command::Write => WRITE,
            Command::Flush => FLUSH,
            Command::Trim => TRIM,
            Command::Zeroes => ZEROES,
        }
    }

    /// Returns true if it changes the data of the disk.
    pub fn changes_data(self) -> bool {
        matches!(self, Command::Write | Command::Trim | Command::Zeroes)
    }
}

/// The header of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Chosen by the application host, and unique among the unanswered requests; the answer has the same.
    pub id: u64,
    /// The work.
    pub command: Command,
    /// The data have to be durable before the answer ("force unit access").
    pub force: bool,
    /// For [`Command::Zeroes`]: the disk keeps the space allocated.
    pub keep_space: bool,
    /// The first byte; 0 for a flush.
    pub offset: u64,
    /// The number of bytes; 0 for a flush.
    pub length: u32,
}

impl Request {
    /// Returns the header.
    pub fn to_bytes(&self) -> [u8; REQUEST_BYTES] {
        let mut bytes = [0; REQUEST_BYTES];
        bytes[0] = self.command.number();
        bytes[1] = (u8::from(self.force) * FORCE) | (u8::from(self.keep_space) * KEEP_SPACE);
        bytes[2..10].copy_from_slice(&self.id.to_le_bytes());
        bytes[10..18].copy_from_slice(&self.offset.to_le_bytes());
        bytes[18..].copy_from_slice(&self.length.to_le_bytes());
        bytes
    }

    fn parse(command: Command, reader: &mut Reader<'_>, data_bytes: usize) -> Result<Request, WireError> {
        let flags = reader.u8("flags")?;
        let allowed = match command {
            Command::Write | Command::Trim => FORCE,
            Command::Zeroes => FORCE | KEEP_SPACE,
            Command::Read | Command::Flush => 0,
        };
        if flags & !allowed != 0 {
            return Err(WireError::Value { what: "flags", value: flags.into() });
        }
        let (id, offset, length) = (reader.u64("id")?, reader.u64("offset")?, reader.u32("length")?);
        let too_long = |length: u64| {
            Err(WireError::TooLong { what: "length of a request", length, limit: DATA_BYTES_MAX as u64 })
        };
        match command {
            Command::Read | Command::Write if length as usize > DATA_BYTES_MAX => {
                return too_long(length.into());
            }
            Command::Flush if (offset, length) != (0, 0) => {
                return Err(WireError::Value { what: "range of a flush", value: offset | u64::from(length) });
            }
            Command::Flush => {}
            _ if length == 0 => return Err(WireError::Value { what: "length of a request", value: 0 }),
            _ => {}
        }
        let expected = if command == Command::Write { length as usize } else { 0 };
        check_data(expected, data_bytes)?;
        let (force, keep_space) = (flags & FORCE != 0, flags & KEEP_SPACE != 0);
        Ok(Request { id, command, force, keep_space, offset, length })
    }

    /// Checks that the disk has the range and accepts the request. `None` if it does.
    pub fn refusal(&self, geometry: &Geometry) -> Option<Failure> {
        let Abilities { read_only, flush, force, trim, zeroes, .. } = geometry.abilities;
        let end = self.offset.checked_add(self.length.into());
        let block = u64::from(geometry.block_bytes) - 1;
        match self.command {
            command if command.changes_data() && read_only => Some(Failure::Forbidden),
            Command::Flush if !flush => Some(Failure::Unsupported),
            Command::Trim if !trim => Some(Failure::Unsupported),
            Command::Zeroes if !zeroes => Some(Failure::Unsupported),
            _ if self.force && !force => Some(Failure::Unsupported),
            _ if (self.offset | u64::from(self.length)) & block != 0 => Some(Failure::Invalid),
            command if end.is_none_or(|end| end > geometry.size_bytes) => match command {
                Command::Write | Command::Zeroes => Some(Failure::NoSpace),
                _ => Some(Failure::Invalid),
            },
            _ => None,
        }
    }
}

fn check_data(expected: usize, data_bytes: usize) -> Result<(), WireError> {
    match data_bytes {
        bytes if bytes < expected => Err(WireError::Short { what: "data", needed: expected, left: bytes }),
        bytes if bytes > expected => {
            Err(WireError::Trailing { what: "block message", left: bytes - expected })
        }
        _ => Ok(()),
    }
}

/// A message to the disk: a header, and for [`Command::Write`] the data behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToDisk {
    /// The application's side begins, or has restarted. The disk drops all requests until the first of these.
    Begin {
        /// Chosen by the application's side; [`FromDisk::Described`] has the same.
        number: u64,
    },
    /// A request.
    Request(Request),
}

impl ToDisk {
    /// Parses the front of a message of `length` bytes: its first [`REQUEST_BYTES`] bytes, or all if it is shorter. The data are
    /// the rest.
    pub fn parse(front: &[u8], length: usize) -> Result<ToDisk, WireError> {
        let mut reader = Reader::new(front);
        let data_bytes = length.saturating_sub(REQUEST_BYTES);
        let command = match reader.u8("kind")? {
            READ => Command::Read,
            WRITE => Command::Write,
            FLUSH => Command::Flush,
            TRIM => Command::Trim,
            ZEROES => Command::Zeroes,
            BEGIN => {
                let number = reader.u64("number")?;
                reader.end("block message")?;
                return Ok(ToDisk::Begin { number });
            }
            kind => return Err(WireError::Value { what: "kind", value: kind.into() }),
        };
        Request::parse(command, &mut reader, data_bytes).map(ToDisk::Request)
    }

    /// Returns the bytes without the data.
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            ToDisk::Begin { number } => Writer::new().u8(BEGIN).u64(*number).finish(),
            ToDisk::Request(request) => request.to_bytes().to_vec(),
        }
    }
}

/// The reason why a disk did not do a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Failure {
    /// The disk is read-only.
    Forbidden,
    /// The disk, or its driver, failed.
    Device,
    /// The disk has no memory for the request.
    NoMemory,
    /// The range is not one of the disk.
    Invalid,
    /// No space is left: behind the end of the disk, or in the file that it is.
    NoSpace,
    /// The disk does not support the request.
    Unsupported,
    /// The disk is gone, or going.
    Gone,
}

impl Failure {
    /// The failures with their numbers on the wire, which are those of the NBD protocol.
    const NUMBERS: [(Failure, u16); 7] = [
        (Failure::Forbidden, 1),
        (Failure::Device, 5),
        (Failure::NoMemory, 12),
        (Failure::Invalid, 22),
        (Failure::NoSpace, 28),
        (Failure::Unsupported, 95),
        (Failure::Gone, 108),
    ];

    /// The number on the wire.
    pub fn number(self) -> u16 {
        Self::NUMBERS.iter().find(|(failure, _)| *failure == self).map_or(5, |(_, number)| *number)
    }

    /// Returns whether a flush or a forced request with this failure may be the kernel's only report of a lost write. A full or forbidden
    /// place shows up so late if the disk is a file on a network, or a device that has less space than it promises.
    pub fn may_report_loss(self) -> bool {
        matches!(self, Failure::Device | Failure::NoSpace | Failure::Forbidden)
    }

    /// Returns the failure with this number.
    pub fn from_number(number: u16) -> Option<Failure> {
        Self::NUMBERS.iter().find(|(_, known)| *known == number).map(|(failure, _)| *failure)
    }
}

/// The header of an answer. The data of a successful read follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// The id of the request.
    pub id: u64,
    /// Done, or the reason of the failure.
    pub result: Result<(), Failure>,
}

impl Answer {
    /// Returns the header.
    pub fn to_bytes(&self) -> [u8; ANSWER_BYTES] {
        let mut bytes = [0; ANSWER_BYTES];
        bytes[0] = ANSWER;
        bytes[1..3].copy_from_slice(&self.result.err().map_or(0, Failure::number).to_le_bytes());
        bytes[3..].copy_from_slice(&self.id.to_le_bytes());
        bytes
    }

    fn parse(reader: &mut Reader<'_>, data_bytes: usize) -> Result<Answer, WireError> {
        let number = reader.u16("result")?;
        let id = reader.u64("id")?;
        let result = match (number, Failure::from_number(number)) {
            (0, _) => Ok(()),
            (_, Some(failure)) => Err(failure),
            (number, None) => return Err(WireError::Value { what: "result", value: number.into() }),
        };
        match data_bytes {
            bytes if bytes > DATA_BYTES_MAX => {
                let (length, limit) = (bytes as u64, DATA_BYTES_MAX as u64);
                Err(WireError::TooLong { what: "data", length, limit })
            }
            bytes if result.is_err() => check_data(0, bytes).map(|()| Answer { id, result }),
            _ => Ok(Answer { id, result }),
        }
    }
}

/// A message from the disk: a header, and behind the answer to a read its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FromDisk {
    /// The disk's side begins, or has restarted. Requests without an answer before this message get none.
    Ready,
    /// The answer to [`ToDisk::Begin`]: the disk accepts requests, and all earlier ones have had their answers or never will.
    Described {
        /// The number of [`ToDisk::Begin`].
        number: u64,
        /// The facts.
        geometry: Geometry,
        /// Another number than before: writes that were answered and not flushed may be lost.
        instance: u64,
    },
    /// The answer to a request.
    Answer(Answer),
}

impl FromDisk {
    /// The longest header of these messages, in bytes.
    pub const HEADER_BYTES_MAX: usize = DESCRIBED_BYTES;

    /// Parses the front of a message of `length` bytes: its first [`FromDisk::HEADER_BYTES_MAX`] bytes, or all if it is shorter. The
    /// data of an answer begin at [`ANSWER_BYTES`].
    pub fn parse(front: &[u8], length: usize) -> Result<FromDisk, WireError> {
        let mut reader = Reader::new(front);
        let message = match reader.u8("kind")? {
            READY => FromDisk::Ready,
            DESCRIBED => {
                let number = reader.u64("number")?;
                let geometry = Geometry::read(&mut reader)?;
                FromDisk::Described { number, geometry, instance: reader.u64("instance")? }
            }
            ANSWER => {
                let data_bytes = length.saturating_sub(ANSWER_BYTES);
                return Answer::parse(&mut reader, data_bytes).map(FromDisk::Answer);
            }
            kind => return Err(WireError::Value { what: "kind", value: kind.into() }),
        };
        reader.end("block message")?;
        check_data(0, length.saturating_sub(front.len()))?;
        Ok(message)
    }

    /// Returns the bytes without the data.
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            FromDisk::Ready => vec![READY],
            FromDisk::Described { number, geometry, instance } => {
                let mut writer = Writer::new();
                writer.u8(DESCRIBED).u64(*number);
                geometry.write(&mut writer);
                writer.u64(*instance).finish()
            }
            FromDisk::Answer(answer) => answer.to_bytes().to_vec(),
        }
    }
}
