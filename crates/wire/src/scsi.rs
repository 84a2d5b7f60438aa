//! SCSI commands for a disk, and their data: SPC-4 and SBC-3 of T10. All numbers are big-endian.

use crate::{Reader, WireError};

/// The length of the command descriptor blocks here; shorter ones end in zeroes.
pub const CDB_BYTES: usize = 16;

/// The most bytes that a target may return for [`inquiry`], [`pages`], [`limits`], [`capacity`] and [`mode`].
pub const FACTS_BYTES_MAX: u8 = 252;

/// The status of a command that was done.
pub const GOOD: u8 = 0;
/// The status of a command with sense data.
pub const CHECK_CONDITION: u8 = 2;
/// The status of a command that the target did not begin, because it has too much to do.
pub const BUSY: u8 = 8;
/// The status of a command for which the target's queue has no room.
pub const TASK_SET_FULL: u8 = 0x28;
/// The status of a command that the target has stopped, because another initiator has reset the unit.
pub const TASK_ABORTED: u8 = 0x40;

const TEST_UNIT_READY: u8 = 0;
const INQUIRY: u8 = 0x12;
const MODE_SENSE_6: u8 = 0x1a;
const READ_16: u8 = 0x88;
const WRITE_16: u8 = 0x8a;
const SYNCHRONIZE_CACHE_10: u8 = 0x35;
const SERVICE_ACTION_IN_16: u8 = 0x9e;
const READ_CAPACITY_16: u8 = 0x10;

/// INQUIRY: the facts are a page of vital product data.
const PAGE: u8 = 1;
const PAGE_OF_PAGES: u8 = 0;
const PAGE_OF_LIMITS: u8 = 0xb0;
/// The mode page with the facts about the cache.
const MODE_PAGE_CACHE: u8 = 8;
const FORCE_UNIT_ACCESS: u8 = 8;
/// Mode parameters: a header, whose last byte is the length of the block descriptors behind it; then the page.
const MODE_HEADER_BYTES: usize = 4;
const MODE_PAGE_CODE: u8 = 0x7f;
const WRITE_CACHE_ENABLED: u8 = 4;

/// A command descriptor block.
pub type Cdb = [u8; CDB_BYTES];

/// Asks for nothing. The target reports what has happened to the unit.
pub fn test_unit_ready() -> Cdb {
    cdb(&[TEST_UNIT_READY])
}

/// Asks for [`Inquiry`].
pub fn inquiry() -> Cdb {
    cdb(&[INQUIRY, 0, 0, 0, FACTS_BYTES_MAX])
}

/// Asks for the list of the pages that [`has_limits`] reads.
pub fn pages() -> Cdb {
    cdb(&[INQUIRY, PAGE, PAGE_OF_PAGES, 0, FACTS_BYTES_MAX])
}

/// Asks for the page that [`transfer_blocks_max`] reads.
pub fn limits() -> Cdb {
    cdb(&[INQUIRY, PAGE, PAGE_OF_LIMITS, 0, FACTS_BYTES_MAX])
}

/// Asks for [`Capacity`].
pub fn capacity() -> Cdb {
    let mut bytes = cdb(&[SERVICE_ACTION_IN_16, READ_CAPACITY_16]);
    bytes[13] = FACTS_BYTES_MAX;
    bytes
}

/// Asks for [`Mode`].
pub fn mode() -> Cdb {
    cdb(&[MODE_SENSE_6, 0, MODE_PAGE_CACHE, 0, FACTS_BYTES_MAX])
}

/// Reads blocks.
pub fn read(block: u64, blocks: u32) -> Cdb {
    transfer(READ_16, 0, block, blocks)
}

/// Writes blocks. With `force` they are durable before the status.
pub fn write(block: u64, blocks: u32, force: bool) -> Cdb {
    transfer(WRITE_16, if force { FORCE_UNIT_ACCESS } else { 0 }, block, blocks)
}

/// Makes all blocks durable whose writes have their status. The form with 10 bytes is the older one, which every target with a cache knows.
pub fn synchronize_cache() -> Cdb {
    cdb(&[SYNCHRONIZE_CACHE_10])
}

fn transfer(code: u8, flags: u8, block: u64, blocks: u32) -> Cdb {
    let mut bytes = cdb(&[code, flags]);
    bytes[2..10].copy_from_slice(&block.to_be_bytes());
    bytes[10..14].copy_from_slice(&blocks.to_be_bytes());
    bytes
}

fn cdb(front: &[u8]) -> Cdb {
    let mut bytes = [0; CDB_BYTES];
    bytes[..front.len()].copy_from_slice(front);
    bytes
}

/// The answer to [`inquiry`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inquiry {
    /// The logical unit exists.
    pub exists: bool,
    /// The type of the device; 0 is a disk.
    pub device_type: u8,
}

impl Inquiry {
    /// Parses the answer.
    pub fn parse(bytes: &[u8]) -> Result<Inquiry, WireError> {
        let first = Reader::new(bytes).u8("INQUIRY")?;
        Ok(Inquiry { exists: first >> 5 == 0, device_type: first & 0x1f })
    }
}

/// Returns whether the answer to [`pages`] lists the page of [`limits`].
pub fn has_limits(bytes: &[u8]) -> bool {
    let listed = bytes.get(3).map_or(0, |count| usize::from(*count));
    bytes.iter().skip(4).take(listed).any(|page| *page == PAGE_OF_LIMITS)
}

/// Returns the most blocks of one transfer in the answer to [`limits`], if there is a limit.
pub fn transfer_blocks_max(bytes: &[u8]) -> Option<u32> {
    let limit = bytes.get(8..12).and_then(|field| field.try_into().ok()).map(u32::from_be_bytes);
    limit.filter(|blocks| *blocks > 0)
}

/// The answer to [`capacity`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// The number of blocks.
    pub blocks: u64,
    /// The length of a block in bytes.
    pub block_bytes: u32,
    /// Blocks of the medium are longer by this power of two.
    pub physical_exponent: u8,
    /// Each block carries protection data, which this crate does not know.
    pub is_protected: bool,
}

impl Capacity {
    /// Parses the answer.
    pub fn parse(bytes: &[u8]) -> Result<Capacity, WireError> {
        let mut reader = Reader::new(bytes);
        let last = u64::from_be_bytes(reader.array("last block")?);
        let block_bytes = u32::from_be_bytes(reader.array("block size")?);
        let protection = reader.u8("protection")?;
        let physical_exponent = reader.u8("physical block size")? & 0xf;
        let blocks = last.checked_add(1).ok_or(WireError::Value { what: "last block", value: last })?;
        Ok(Capacity { blocks, block_bytes, physical_exponent, is_protected: protection & 1 != 0 })
    }
}

/// The answer to [`mode`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Mode {
    /// The unit refuses writes.
    pub is_read_only: bool,
    /// It accepts writes with `force`.
    pub can_force: bool,
    /// It says that it has no cache for writes.
    pub writes_through: bool,
}

impl Mode {
    /// Parses the answer.
    pub fn parse(bytes: &[u8]) -> Result<Mode, WireError> {
        let [_, _, flags] = Reader::new(bytes).array("mode parameters")?;
        let descriptors = bytes.get(3).map_or(0, |length| usize::from(*length));
        let page = bytes.get(MODE_HEADER_BYTES + descriptors..).unwrap_or_default();
        let writes_through = matches!(page, [code, _, cache, ..]
            if code & MODE_PAGE_CODE == MODE_PAGE_CACHE && cache & WRITE_CACHE_ENABLED == 0);
        Ok(Mode { is_read_only: flags & 0x80 != 0, can_force: flags & 0x10 != 0, writes_through })
    }
}

/// The kind of a failure in sense data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SenseKey {
    /// The unit has done the command that the status belongs to, with some effort.
    Recovered,
    /// The unit cannot work now.
    NotReady,
    /// The target does not know the command, or a field of it.
    IllegalRequest,
    /// Something has happened to the unit: a reset, another medium, another size.
    UnitAttention,
    /// The blocks are protected.
    DataProtect,
    /// The target has stopped the command.
    Aborted,
    /// Any other: the medium, the hardware, the vendor's own.
    Other(u8),
}

/// The reason why a target did not do a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sense {
    /// The kind.
    pub key: SenseKey,
    /// The additional sense code, and its qualifier.
    pub code: (u8, u8),
}

impl Sense {
    /// The target does not know the command.
    pub const UNKNOWN_COMMAND: u8 = 0x20;
    /// The block is behind the end.
    pub const OUT_OF_RANGE: u8 = 0x21;
    /// A thin disk has no space left, if the qualifier is 7.
    pub const WRITE_PROTECTED: u8 = 0x27;

    /// Parses sense data of both formats (SPC-4, 4.5). `None` if there are none.
    pub fn parse(bytes: &[u8]) -> Option<Sense> {
        let at = |index: usize| bytes.get(index).copied().unwrap_or(0);
        let (key, code) = match bytes.first()? & 0x7f {
            0x70 | 0x71 => (at(2), (at(12), at(13))),
            0x72 | 0x73 => (at(1), (at(2), at(3))),
            _ => return None,
        };
        // The second of each pair belongs to an earlier command.
        let is_deferred = bytes[0] & 1 != 0;
        let key = match key & 0xf {
            1 if !is_deferred => SenseKey::Recovered,
            2 => SenseKey::NotReady,
            5 => SenseKey::IllegalRequest,
            6 => SenseKey::UnitAttention,
            7 => SenseKey::DataProtect,
            0xb => SenseKey::Aborted,
            key => SenseKey::Other(key),
        };
        Some(Sense { key, code })
    }
}

/// Returns the status of a command: [`GOOD`] if the unit reports an error after which it has done the command.
pub fn result(status: u8, sense: Option<Sense>) -> u8 {
    let is_done = status == CHECK_CONDITION && sense.is_some_and(|sense| sense.key == SenseKey::Recovered);
    if is_done { GOOD } else { status }
}

impl std::fmt::Display for Sense {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let key = match self.key {
            SenseKey::Recovered => "recovered error",
            SenseKey::NotReady => "not ready",
            SenseKey::IllegalRequest => "illegal request",
            SenseKey::UnitAttention => "unit attention",
            SenseKey::DataProtect => "data protect",
            SenseKey::Aborted => "aborted command",
            SenseKey::Other(3) => "medium error",
            SenseKey::Other(4) => "hardware error",
            SenseKey::Other(key) => {
                return write!(formatter, "sense key {key}, code {:02x}/{:02x}", self.code.0, self.code.1);
            }
        };
        write!(formatter, "{key}, code {:02x}/{:02x}", self.code.0, self.code.1)
    }
}
