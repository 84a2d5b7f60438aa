//! The three methods behind one face. Contexts are made once and used for every message.

use contract::{Options, StageError};
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};
use zstd::bulk;
use zstd::zstd_safe::CParameter;

/// How a body is compressed; its number is the first byte of the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Method {
    Zlib = 1,
    Zstd = 2,
    Lz4 = 3,
}

/// The number of a body that travels as it is.
pub(super) const STORED: u8 = 0;

/// Is added to the number where a picture was said in tiles first.
pub(super) const TILED: u8 = 0x80;

/// Bytes of the header that a stored body does without.
const LENGTH_BYTES: usize = 4;

/// Whether a body of `before` bytes, of which `after` are left, is better off so.
pub(super) fn is_worth(after: usize, before: usize) -> bool {
    after + LENGTH_BYTES < before
}

impl Method {
    pub(super) fn chosen(options: &Options) -> Method {
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
    pub(super) fn new(method: Method, level: i32) -> Result<Self, StageError> {
        Ok(match method {
            Method::Zlib => Encoder::Zlib(Compress::new(Compression::new(level.unsigned_abs()), true)),
            Method::Zstd => {
                let own = |error: std::io::Error| StageError::Own(format!("zstd: {error}"));
                let mut context = bulk::Compressor::new(level).map_err(own)?;
                context.set_parameter(CParameter::ContentSizeFlag(false)).map_err(own)?;
                Encoder::Zstd(context)
            }
            Method::Lz4 => Encoder::Lz4(Box::new(lz4_flex::block::CompressTable::large())),
        })
    }

    /// Compresses at this level from now on.
    pub(super) fn set_level(&mut self, level: i32) {
        if let Encoder::Zstd(context) = self {
            // Out of its range, zstd takes the nearest.
            let _ = context.set_parameter(CParameter::CompressionLevel(level));
        }
    }

    /// How large `into` has to be for a body of this length. More than fits into less has not shrunk.
    pub(super) fn room(&self, length: usize) -> usize {
        match self {
            Encoder::Lz4(_) => lz4_flex::block::get_maximum_output_size(length),
            Encoder::Zlib(_) | Encoder::Zstd(_) => length,
        }
    }

    /// Compresses `body` into the front of `into`: how many bytes, or `None` if it does not fit.
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
    pub(super) fn new(method: Method) -> Result<Self, StageError> {
        Ok(match method {
            Method::Zlib => Decoder::Zlib(Decompress::new(true)),
            Method::Zstd => Decoder::Zstd(
                bulk::Decompressor::new().map_err(|error| StageError::Own(format!("zstd: {error}")))?,
            ),
            Method::Lz4 => Decoder::Lz4,
        })
    }

    /// Decompresses all of `bytes`, which must fill `into` exactly.
    pub(super) fn decode(&mut self, bytes: &[u8], into: &mut [u8]) -> Result<(), String> {
        let made = match self {
            Decoder::Zlib(context) => {
                context.reset(true);
                match context.decompress(bytes, into, FlushDecompress::Finish) {
                    Ok(Status::StreamEnd) if context.total_in() == bytes.len() as u64 => {
                        usize::try_from(context.total_out()).unwrap_or(usize::MAX)
                    }
                    Ok(_) => return Err("the zlib stream does not end where it should".into()),
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
        match made == into.len() {
            true => Ok(()),
            false => Err(format!("it says {} bytes and has {made}", into.len())),
        }
    }
}
