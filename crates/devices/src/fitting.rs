//! Pictures in the format of a node: the programs that read it know that format.

use crate::pixels;
use buffers::{Lease, Pool};
use contract::Bytes;
use wire::formats::video::Geometry;

/// The number of pictures whose memory is recycled.
const PICTURES_KEPT: usize = 2;

/// Fits pictures, in recycled memory.
#[derive(Debug)]
pub(crate) struct Fitting {
    pool: Pool,
    converted: u64,
}

impl Fitting {
    pub(crate) fn new() -> Fitting {
        Fitting { pool: Pool::new(0, 0), converted: 0 }
    }

    /// The number of pictures that were converted.
    pub(crate) fn converted(&self) -> u64 {
        self.converted
    }

    fn memory(&mut self, bytes: usize) -> Lease {
        if self.pool.capacity() != bytes {
            self.pool = Pool::new(bytes, PICTURES_KEPT);
        }
        self.pool.take()
    }

    /// Returns a black picture, for a program that comes before the first one; `None` if the format has none.
    pub(crate) fn black(&mut self, to: &Geometry) -> Option<Lease> {
        pixels::is_convertible(to.pixels()).then(|| {
            let mut memory = self.memory(to.bytes());
            pixels::black(to, &mut memory);
            memory
        })
    }

    /// Returns the picture in another format; the same bytes, if it has that format already. The error is a text for the user.
    pub(crate) fn fit(&mut self, from: &Geometry, picture: Bytes, to: &Geometry) -> Result<Bytes, String> {
        if pixels::is_same_layout(from, to) {
            return Ok(picture);
        }
        pixels::check_convertible(from, to)?;
        let mut memory = self.memory(to.bytes());
        if pixels::is_same_layout(&from.tight(), to) {
            pixels::pack(from, &picture, to, &mut memory);
        } else {
            pixels::convert(from, &picture, to, &mut memory);
            self.converted += 1;
        }
        Ok(memory.freeze())
    }
}
