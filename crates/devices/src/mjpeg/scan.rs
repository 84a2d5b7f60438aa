//! Finds the boundaries of JPEG images in a stream, without decoding them (ITU-T T.81, annex B).
//!
//! An image is a sequence of segments, each with a marker (0xff and a second byte) and a length. After the segment
//! `SCAN` follow compressed pixels without a length. They end at the next marker, except for restart markers and 0xff
//! 0, which stands for a pixel byte 0xff.

/// The second byte of the marker that begins an image.
const BEGIN: u8 = 0xd8;
/// The second byte of the marker that ends an image.
const END: u8 = 0xd9;
/// The second byte of the marker before compressed pixels.
const SCAN: u8 = 0xda;

/// The first bytes of an image.
pub(super) const IMAGE: [u8; 3] = [0xff, BEGIN, 0xff];

/// Drops the rest of an image whose beginning is lost. Returns whether `bytes` now starts with an image.
///
/// Some cameras embed a preview in an image. It is not mistaken for the next image, since only the end of an image
/// followed by the beginning of another counts, with or without padding in between.
pub(super) fn skip_to_image(bytes: &mut Vec<u8>) -> bool {
    let mut begins = (0..bytes.len()).filter(|at| bytes[*at..].starts_with(&IMAGE));
    if let Some(at) = begins.find(|at| is_between(&bytes[..*at])) {
        bytes.drain(..at);
        return true;
    }
    // Keep the end, which may be the first part of such a place. What is kept begins with padding or a lone `END` only if no
    // other byte has come: see `is_between`.
    let may_begin = if bytes.ends_with(&IMAGE[..2]) { bytes.len() - 2 } else { bytes.len() };
    let image = without_padding(&bytes[..may_begin]);
    let kept = if image.ends_with(&[END]) { 2 } else { 1 };
    bytes.drain(..image.len().saturating_sub(kept));
    false
}

/// Returns true if an image ends with `before`, which begins where the reader was restored: within an image, or after its end.
fn is_between(before: &[u8]) -> bool {
    match without_padding(before) {
        // The end of the image is lost, or the first byte of its marker.
        [] | [END] => true,
        image => image.ends_with(&[0xff, END]),
    }
}

/// Returns the bytes before the padding at the end: zeros and 0xff.
fn without_padding(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().rposition(|byte| !matches!(byte, 0 | 0xff));
    &bytes[..end.map_or(0, |end| end + 1)]
}

/// Returns the length of the padding at the front: zeros, which some cameras write after an image, and 0xff, any number
/// of which may precede a marker (B.1.1.2).
pub(super) fn padding(bytes: &[u8]) -> usize {
    let rest = bytes.iter().position(|byte| !matches!(byte, 0 | 0xff)).unwrap_or(bytes.len());
    // The last 0xff belongs to the next marker, whose second byte may still be missing.
    rest - usize::from(rest > 0 && bytes[rest - 1] == 0xff)
}

/// An image that is complete, or truncated by the beginning of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Image {
    /// The number of bytes.
    pub(super) length: usize,
    pub(super) width: u16,
    pub(super) height: u16,
}

/// Scans an image incrementally: later calls continue where the last one stopped.
#[derive(Debug, Default)]
pub(super) struct Scanner {
    /// The number of bytes scanned.
    at: usize,
    /// The scanner is within compressed pixels.
    in_pixels: bool,
    size: Option<(u16, u16)>,
}

impl Scanner {
    /// Returns whether no byte of an image is scanned yet.
    pub(super) fn is_new(&self) -> bool {
        self.at == 0
    }

    /// Returns the image at the front of `bytes`; `None` if it is incomplete. The caller then appends to `bytes` and
    /// calls again.
    pub(super) fn find(&mut self, bytes: &[u8]) -> Result<Option<Image>, &'static str> {
        loop {
            if self.in_pixels && !self.skip_pixels(bytes) {
                return Ok(None);
            }
            let Some(&[first, marker]) = bytes.get(self.at..).and_then(|rest| rest.first_chunk::<2>()) else {
                return Ok(None);
            };
            match (first, marker) {
                _ if self.at == 0 && (first, marker) != (0xff, BEGIN) => {
                    return Err(
                        "no JPEG image begins here (ffmpeg extracts images from containers: -c copy -f mjpeg)",
                    );
                }
                (0xff, 0xff) => self.at += 1,
                (0xff, BEGIN) if self.at == 0 => self.at = 2,
                (0xff, END | BEGIN) => {
                    let (width, height) = self.size.ok_or("an image ends before its size is known")?;
                    // The beginning of the next image ends a truncated one.
                    let length = if marker == END { self.at + 2 } else { self.at };
                    *self = Scanner::default();
                    return Ok(Some(Image { length, width, height }));
                }
                (0xff, 0xc0..=0xfe) => {
                    if !self.skip_segment(bytes, marker)? {
                        return Ok(None);
                    }
                }
                _ => return Err("an image is not a JPEG: a marker is missing"),
            }
        }
    }

    /// Skips a segment, and stores the size of the image if the segment has it. Returns `false` if it is incomplete.
    fn skip_segment(&mut self, bytes: &[u8], marker: u8) -> Result<bool, &'static str> {
        let Some(length) = bytes.get(self.at + 2..).and_then(|rest| rest.first_chunk::<2>()) else {
            return Ok(false);
        };
        let length = usize::from(u16::from_be_bytes(*length));
        let Some(segment) = bytes.get(self.at + 4..self.at + 2 + length.max(2)) else { return Ok(false) };
        let is_size = matches!(marker, 0xc0..=0xcf) && !matches!(marker, 0xc4 | 0xc8 | 0xcc);
        match (is_size, segment) {
            (true, [_, a, b, c, d, ..]) => {
                self.size = Some((u16::from_be_bytes([*c, *d]), u16::from_be_bytes([*a, *b])));
            }
            (true, _) => return Err("an image is not a JPEG: its size is truncated"),
            (false, _) if length < 2 => return Err("an image is not a JPEG: a segment without a length"),
            (false, _) => {}
        }
        self.at += 2 + length;
        self.in_pixels = marker == SCAN;
        Ok(true)
    }

    /// Skips compressed pixels up to the next marker. Returns `false` if it has not arrived yet.
    fn skip_pixels(&mut self, bytes: &[u8]) -> bool {
        while let Some(pair) = bytes.get(self.at..).and_then(|rest| rest.first_chunk::<2>()) {
            match pair {
                // A pixel byte 0xff, or a restart marker.
                [0xff, 0 | 0xd0..=0xd7] => self.at += 2,
                [0xff, 0xff] => self.at += 1,
                [0xff, _] => {
                    self.in_pixels = false;
                    return true;
                }
                _ => self.at += 1,
            }
        }
        false
    }
}
