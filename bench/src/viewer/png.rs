//! Writes PNG files (ISO/IEC 15948): true colour, unfiltered rows.

use crate::display::PIXEL_BYTES;
use flate2::{Compression, Crc, write::ZlibEncoder};
use std::io::Write;

/// Encodes rows of blue, green, red and an unused byte.
pub(super) fn encode(width: u32, pixels: &[u8]) -> std::io::Result<Vec<u8>> {
    let row_bytes = width as usize * PIXEL_BYTES;
    let rows = pixels.chunks_exact(row_bytes);
    let mut head = [width.to_be_bytes(), (rows.len() as u32).to_be_bytes()].concat();
    // Eight bits a colour, true colour, not interlaced.
    head.extend([8, 2, 0, 0, 0]);
    let mut data = ZlibEncoder::new(Vec::new(), Compression::best());
    for row in rows {
        let row: Vec<u8> =
            row.as_chunks::<PIXEL_BYTES>().0.iter().flat_map(|[b, g, r, _]| [*r, *g, *b]).collect();
        data.write_all(&[0])?;
        data.write_all(&row)?;
    }
    let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
    for (name, content) in [(b"IHDR", head), (b"IDAT", data.finish()?), (b"IEND", Vec::new())] {
        let mut check = Crc::new();
        check.update(name);
        check.update(&content);
        file.extend((content.len() as u32).to_be_bytes());
        file.extend(name);
        file.extend(content);
        file.extend(check.sum().to_be_bytes());
    }
    Ok(file)
}
