//! Where one JPEG image ends and the next begins, without decoding it (ITU-T T.81, annex B).

/// What follows 0xff: begin and end of an image, and of its compressed pixels.
const BEGIN: u8 = 0xd8;
const END: u8 = 0xd9;
const SCAN: u8 = 0xda;

/// What an image begins with.
pub(super) const IMAGE: [u8; 3] = [0xff, BEGIN, 0xff];

/// Drops the rest of an image whose beginning is lost; whether another begins now. Pictures within an image, as cameras
/// put them there, are not taken for one: an image begins where another ends.
pub(super) fn skip_to_image(bytes: &mut Vec<u8>) -> bool {
    let border = [0xff, END, 0xff, BEGIN, 0xff];
    if bytes.starts_with(&IMAGE) {
        return true;
    }
    // Of the end of the image, what is lost may be part.
    let found = match bytes.starts_with(&border[1..]) {
        true => Some(1),
        false => bytes.windows(border.len()).position(|at| at == border).map(|place| place + 2),
    };
    let kept_from = match found {
        Some(place) => place,
        // It may be cut in two.
        None => bytes.len().saturating_sub(border.len() - 1),
    };
    // What an image begins with may have come in part.
    if found.is_some() || !IMAGE.starts_with(bytes) {
        bytes.drain(..kept_from);
    }
    found.is_some()
}

/// How many bytes at the front only fill up what is between two images: zeros, as cameras write them behind an image, and
/// 0xff, of which any number may stand before a marker (B.1.1.2).
pub(super) fn fill(bytes: &[u8]) -> usize {
    let rest = bytes.iter().position(|byte| !matches!(byte, 0 | 0xff)).unwrap_or(bytes.len());
    // The last 0xff belongs to the marker that follows it, or will.
    rest - usize::from(rest > 0 && bytes[rest - 1] == 0xff)
}

/// An image that is whole, or torn: another begins within it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Image {
    /// Its bytes.
    pub(super) length: usize,
    /// Pixels across.
    pub(super) width: u16,
    /// Pixels down.
    pub(super) height: u16,
}

/// Reads on through an image as more of it comes; nothing is looked at twice.
#[derive(Debug, Default)]
pub(super) struct Scanner {
    at: usize,
    /// In the compressed pixels, which end at the next marker that is none of theirs.
    in_pixels: bool,
    size: Option<(u16, u16)>,
}

impl Scanner {
    /// Nothing of an image was found yet.
    pub(super) fn is_new(&self) -> bool {
        self.at == 0
    }

    /// The image at the front of `bytes`, which are those of the call before and perhaps more; `None` if it is not
    /// whole yet.
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
                        "no JPEG image begins here (ffmpeg takes them out of other wrappings: -c copy -f mjpeg)",
                    );
                }
                (0xff, 0xff) => self.at += 1,
                (0xff, BEGIN) if self.at == 0 => self.at = 2,
                (0xff, END | BEGIN) => {
                    let (width, height) = self.size.ok_or("an image ends before it says its size")?;
                    // The beginning of the next one ends an image that is torn.
                    let length = if marker == END { self.at + 2 } else { self.at };
                    *self = Scanner::default();
                    return Ok(Some(Image { length, width, height }));
                }
                (0xff, 0xc0..=0xfe) => {
                    if !self.segment(bytes, marker)? {
                        return Ok(None);
                    }
                }
                _ => return Err("an image is no JPEG: no marker stands where one must"),
            }
        }
    }

    /// Passes over a segment; `false` if it is not there yet.
    fn segment(&mut self, bytes: &[u8], marker: u8) -> Result<bool, &'static str> {
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
            (true, _) => return Err("an image is no JPEG: its size is cut short"),
            (false, _) if length < 2 => return Err("an image is no JPEG: a segment without a length"),
            (false, _) => {}
        }
        self.at += 2 + length;
        self.in_pixels = marker == SCAN;
        Ok(true)
    }

    /// Goes on to the marker behind the pixels; `false` if it is not there yet.
    fn skip_pixels(&mut self, bytes: &[u8]) -> bool {
        while let Some(pair) = bytes.get(self.at..).and_then(|rest| rest.first_chunk::<2>()) {
            match pair {
                // A byte of 0xff among the pixels, and restarts.
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
