//! The units of a way: pieces of records, and marks.
//!
//! A unit is a record header, a body, and a number of 8 bytes, then the tag of a sealed way. The header's length counts the
//! body alone. `docs/reference/transport-striped.md` has the layout.

use bytes::BytesMut;
use contract::{Body, Bytes};
use wire::{Container, Reader, RecordHeader, WireError, Writer};

/// Bytes of a number.
pub(super) const NUMBER_BYTES: usize = 8;
/// The number of a mark.
const MARK: u64 = u64::MAX;
/// Bit of a piece that another piece of the same record follows.
const CONTINUES: u64 = 1 << 62;
/// Numbers of pieces are below.
const NUMBERS_END: u64 = CONTINUES;

const JOIN: u8 = 1;
const WANT: u8 = 2;
const END: u8 = 3;

/// A message about the ways themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    /// The way belongs to this link.
    Join(u64),
    /// The sender wants this number of ways.
    Want(u64),
    /// The last unit on this way.
    End,
}

/// A piece of a record.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Pieces are numbered over all ways.
    pub(super) number: u64,
    /// The next piece belongs to the same record.
    pub(super) continues: bool,
    pub(super) flow: u32,
    /// Record header and body.
    pub(super) bytes: Bytes,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Piece(Piece),
    Mark(Mark),
}

impl Mark {
    /// Returns the unit of the mark.
    pub(super) fn emit(self) -> Body {
        let (kind, value) = match self {
            Mark::Join(link) => (JOIN, link),
            Mark::Want(ways) => (WANT, ways),
            Mark::End => (END, 0),
        };
        let mut w = Writer::new();
        w.u8(kind).u64(value);
        let body = w.finish();
        let container = Container { length: body.len() as u32, created: 0 };
        let header = RecordHeader { flow: 0, epoch: 0, sequence: 0, container };
        let unit = [&header.emit()[..], &body, &MARK.to_le_bytes()].concat();
        Body::from(unit)
    }

    fn parse(bytes: &[u8]) -> Result<Mark, WireError> {
        let header = RecordHeader::parse(bytes, bytes.len())?;
        let is_empty =
            header.flow == 0 && header.epoch == 0 && header.sequence == 0 && header.container.created == 0;
        if !is_empty {
            return Err(WireError::Value { what: "header of a mark", value: header.flow.into() });
        }
        let mut r = Reader::new(bytes.get(RecordHeader::BYTES..).unwrap_or_default());
        let (kind, value) = (r.u8("mark")?, r.u64("value of a mark")?);
        r.end("mark")?;
        match (kind, value) {
            (JOIN, link) => Ok(Mark::Join(link)),
            (WANT, ways) => Ok(Mark::Want(ways)),
            (END, 0) => Ok(Mark::End),
            (kind, _) => Err(WireError::Value { what: "mark", value: kind.into() }),
        }
    }
}

/// Appends the number to a piece, whose header announces its own length.
pub(super) fn emit_piece(mut piece: Body, number: u64, continues: bool) -> Body {
    let flags = if continues { CONTINUES } else { 0 };
    piece.push(Bytes::copy_from_slice(&(number | flags).to_le_bytes()));
    piece
}

impl Unit {
    /// Parses an opened unit of this flow: header, body and number.
    pub(super) fn parse(flow: u32, mut unit: BytesMut) -> Result<Unit, WireError> {
        let short =
            WireError::Short { what: "unit", needed: RecordHeader::BYTES + NUMBER_BYTES, left: unit.len() };
        let end =
            unit.len().checked_sub(NUMBER_BYTES).filter(|end| *end >= RecordHeader::BYTES).ok_or(short)?;
        let mut number = [0; NUMBER_BYTES];
        number.copy_from_slice(&unit[end..]);
        let number = u64::from_le_bytes(number);
        unit.truncate(end);
        if number == MARK {
            return Mark::parse(&unit).map(Unit::Mark);
        }
        let continues = number & CONTINUES != 0;
        let number = number & !CONTINUES;
        if number >= NUMBERS_END {
            return Err(WireError::Value { what: "number of a piece", value: number });
        }
        Ok(Unit::Piece(Piece { number, continues, flow, bytes: unit.freeze() }))
    }
}
