//! zstd, zlib and lz4 behind one interface. Contexts are allocated once and reused for every
//! message.

use contract::{Options, StageError, StageResult};
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};
use zstd::bulk;
use zstd::zstd_safe::CParameter;

/// Compression method. Its number is the first byte of the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Method {
    Zlib = 1,
    Zstd = 2,
    Lz4 = 3,
}

/// Method number of a body that is not compressed.
pub(super) const STORED: u8 = 0;

/// Flag in the method number: the body is a picture in tiles.
pub(super) const TILED: u8 = 0x80;

/// Bytes of the length field, which a stored body does not have.
const LENGTH_BYTES: usize = 4;

/// True if compression from `before` to `after` bytes saves more than the length field costs.
pub(super) fn is_worth(after: usize, before: usize) -> bool {
    after + LENGTH_BYTES < before
}

impl Method {
    pub(super) fn from_options(options: &Options) -> Method {
        match options.text("method") {
            "zlib" => Method::Zlib,
            "lz4" => Method::Lz4,
            _ => Method::Zstd,
        }
    }
}

pub(super) enum Encoder {
    Zlib(Compress),
    Zstd(bulk::Compressor<'static>),
    Lz4(Box<lz4_flex::block::CompressTable>),
}

impl Encoder {
    pub(super) fn new(method: Method, level: i32) -> StageResult<Self> {
        Ok(match method {
            Method::Zlib => Encoder::Zlib(Compress::new(Compression::new(level.unsigned_abs()), true)),
            Method::Zstd => {
                let failed = |error: std::io::Error| StageError::Own(format!("zstd: {error}"));
                let mut context = bulk::Compressor::new(level).map_err(failed)?;
                context.set_parameter(CParameter::ContentSizeFlag(false)).map_err(failed)?;
                Encoder::Zstd(context)
            }
            Method::Lz4 => Encoder::Lz4(Box::new(lz4_flex::block::CompressTable::large())),
        })
    }

    /// Sets the level for the next bodies.
    pub(super) fn set_level(&mut self, level: i32) {
        if let Encoder::Zstd(context) = self {
            // zstd clamps levels that are out of its range.
            let _ = context.set_parameter(CParameter::CompressionLevel(level));
        }
    }

    /// Size that `into` must have for a body of this length. For zlib and zstd the length itself is
    /// enough: a body that does not fit has not shrunk.
    pub(super) fn room(&self, length: usize) -> usize {
        match self {
            Encoder::Lz4(_) => lz4_flex::block::get_maximum_output_size(length),
            Encoder::Zlib(_) | Encoder::Zstd(_) => length,
        }
    }

    /// Compresses `body` into the front of `into`. Returns the number of bytes, or `None` if it
    /// does not fit.
    pub(super) fn encode(&mut self, body: &[u8], into: &mut [u8]) -> Option<usize> {
        match self {
            Encoder::Zlib(context) => {
                context.reset();
                match context.compress(body, into, FlushCompress::Finish) {
                    Ok(Status::StreamEnd) => usize::try_from(context.total_out()).ok(),
                    _ => None,
                }
            }
            Encoder::Zstd(context) => context.compress_to_buffer(body, into).ok(),
            Encoder::Lz4(table) => lz4_flex::block::compress_into_with_table(body, into, table).ok(),
        }
    }
}

pub(super) enum Decoder {
    Zlib(Decompress),
    Zstd(bulk::Decompressor<'static>),
    Lz4,
}

impl Decoder {
    pub(super) fn new(method: Method) -> StageResult<Self> {
        Ok(match method {
            Method::Zlib => Decoder::Zlib(Decompress::new(true)),
            Method::Zstd => Decoder::Zstd(
                bulk::Decompressor::new().map_err(|error| StageError::Own(format!("zstd: {error}")))?,
            ),
            Method::Lz4 => Decoder::Lz4,
        })
    }

    /// Decompresses `bytes`, which must fill `into` exactly.
    pub(super) fn decode(&mut self, bytes: &[u8], into: &mut [u8]) -> Result<(), String> {
        let produced = match self {
            Decoder::Zlib(context) => {
                context.reset(true);
                match context.decompress(bytes, into, FlushDecompress::Finish) {
                    Ok(Status::StreamEnd) if context.total_in() == bytes.len() as u64 => {
                        usize::try_from(context.total_out()).unwrap_or(usize::MAX)
                    }
                    Ok(_) => return Err("the zlib stream does not end with the body".into()),
                    Err(error) => return Err(error.to_string()),
                }
            }
            Decoder::Zstd(context) => {
                context.decompress_to_buffer(bytes, into).map_err(|error| error.to_string())?
            }
            Decoder::Lz4 => {
                lz4_flex::block::decompress_into(bytes, into).map_err(|error| error.to_string())?
            }
        };
        match produced == into.len() {
            true => Ok(()),
            false => Err(format!("it claims {} bytes and has {produced}", into.len())),
        }
    }
}
