//! Units as bytes: a line of a serial port or a file, a frame of a film, a report of a keyboard, a picture of a camera.

use super::camera::{HEAD_BYTES, SHADES, SIZE, pixel, shade};
use sys::input::Event;
use sys::input::code::{EV_KEY, EV_MSC, EV_SYN, KEY_A, MSC_SCAN, SYN_DROPPED};

/// The unit of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    /// A number of twelve digits and a newline.
    Line,
    /// A picture in YUV4MPEG2. Every byte depends on the number.
    Frame,
    /// A key press or release with the number as its scan code.
    Report,
    /// The node's sequence number and a picture in the number's shade of grey.
    Shade,
}

/// Bytes of a camera's picture with its sequence number.
const SHADE_BYTES: usize = HEAD_BYTES + SIZE.0 * SIZE.1;
const DIGITS: usize = 12;
/// Side of a frame.
const SIDE: usize = 64;
/// Bytes of a frame in 4:2:0.
const PICTURE_BYTES: usize = SIDE * SIDE * 3 / 2;
const FRAME: &[u8] = b"FRAME\n";
/// Number of keys: all are pressed one after another, then released.
pub(crate) const KEYS: u64 = 4;
/// `struct input_event`: a time of 16 bytes, which the kernel sets, then kind, code and value.
const EVENT_BYTES: usize = 24;
/// Most bytes of a film's first line.
const HEAD_BYTES_MAX: usize = 256;

/// Returns a word of a frame.
fn word(number: u64, at: usize) -> u64 {
    number ^ (at as u64) << 48
}

impl Unit {
    /// Returns the units a second.
    pub(crate) fn rate_hz(self) -> f64 {
        match self {
            Unit::Line => 200.0,
            Unit::Frame => 30.0,
            Unit::Report => 50.0,
            Unit::Shade => 4.0,
        }
    }

    /// Returns the header before the first unit.
    pub(crate) fn head(self) -> Vec<u8> {
        match self {
            Unit::Line | Unit::Report | Unit::Shade => Vec::new(),
            Unit::Frame => format!("YUV4MPEG2 W{SIDE} H{SIDE} F30:1 Ip A1:1 C420jpeg\n").into_bytes(),
        }
    }

    /// Returns the bytes of a unit.
    pub(crate) fn bytes(self, number: u64) -> Vec<u8> {
        match self {
            Unit::Line => format!("{number:0DIGITS$}\n").into_bytes(),
            Unit::Frame => {
                let words = (0..PICTURE_BYTES / 8).flat_map(|at| word(number, at).to_le_bytes());
                FRAME.iter().copied().chain(words).collect()
            }
            Unit::Report => {
                let key = KEY_A + (number % KEYS) as u16;
                let pressed = (number / KEYS).is_multiple_of(2);
                let scan = Event::new(EV_MSC, MSC_SCAN, number as i32);
                let events = [scan, Event::new(EV_KEY, key, pressed.into()), Event::REPORT];
                events.iter().flat_map(event_bytes).collect()
            }
            Unit::Shade => {
                let head = (number as u32).to_le_bytes();
                head.into_iter().chain(std::iter::repeat_n(pixel(number), SHADE_BYTES - HEAD_BYTES)).collect()
            }
        }
    }

    /// Returns the newest of the `made` units whose picture has this number.
    pub(crate) fn newest(self, number: u64, made: u64) -> u64 {
        match (self, made.checked_sub(number + 1)) {
            (Unit::Shade, Some(after)) => number + after / SHADES * SHADES,
            _ => number,
        }
    }
}

fn event_bytes(event: &Event) -> [u8; EVENT_BYTES] {
    let mut bytes = [0; EVENT_BYTES];
    bytes[16..18].copy_from_slice(&event.kind.to_ne_bytes());
    bytes[18..20].copy_from_slice(&event.code.to_ne_bytes());
    bytes[20..].copy_from_slice(&event.value.to_ne_bytes());
    bytes
}

/// Returns the number of a report from the event with its scan code.
fn scan_code(event: &[u8]) -> Option<u64> {
    let value = event.get(20..EVENT_BYTES)?;
    let number = i32::from_ne_bytes(value.try_into().ok()?);
    is_event(event, EV_MSC, MSC_SCAN).then_some(number.try_into().ok()?)
}

fn is_event(event: &[u8], kind: u16, code: u16) -> bool {
    event.get(16..20) == Some(&[kind.to_ne_bytes(), code.to_ne_bytes()].concat()[..])
}

/// Finds units in the bytes that an application reads.
#[derive(Debug)]
pub(crate) struct Reader {
    unit: Unit,
    begun: bool,
    bytes: Vec<u8>,
    /// Number of overruns that the kernel reported.
    overruns: u64,
    /// Sequence number and shade of the last picture.
    last: Option<(u32, Option<u64>)>,
}

impl Reader {
    pub(crate) fn new(unit: Unit) -> Reader {
        Reader { unit, begun: unit != Unit::Frame, bytes: Vec::new(), overruns: 0, last: None }
    }

    /// Adds bytes. Returns the numbers of completed units, or the bytes of torn ones.
    pub(crate) fn read(&mut self, bytes: &[u8]) -> Vec<Result<u64, Vec<u8>>> {
        self.bytes.extend_from_slice(bytes);
        let mut found = Vec::new();
        while let Some(piece) = self.piece() {
            match (self.unit, self.begun) {
                // Other events follow from the number or are part of a snapshot.
                (Unit::Report, _) => {
                    self.overruns += u64::from(is_event(&piece, EV_SYN, SYN_DROPPED));
                    found.extend(scan_code(&piece).map(Ok));
                }
                (Unit::Shade, _) => found.extend(self.shade(piece).transpose()),
                (_, true) => found.push(self.number(&piece).ok_or(piece)),
                (_, false) => self.begun = true,
            }
        }
        found
    }

    /// Returns the shade of a picture, or `None` if it is that of the previous picture: a camera takes several pictures
    /// of each number, and its node repeats the last one. A picture with several shades is torn.
    fn shade(&mut self, piece: Vec<u8>) -> Result<Option<u64>, Vec<u8>> {
        let (head, pixels) = piece.split_at(HEAD_BYTES);
        let sequence = head.try_into().map_or(0, u32::from_le_bytes);
        if pixels.iter().any(|pixel| *pixel != pixels[0]) {
            return Err(piece);
        }
        let shown = shade(pixels[0]);
        let previous = self.last.replace((sequence, shown));
        self.overruns += u64::from(previous.is_some_and(|(previous, _)| sequence > previous + 1));
        Ok(shown.filter(|_| previous.is_none_or(|(_, previous)| previous != shown)))
    }

    /// Returns the overruns since the last call.
    pub(crate) fn take_overruns(&mut self) -> u64 {
        std::mem::take(&mut self.overruns)
    }

    fn piece(&mut self) -> Option<Vec<u8>> {
        let line = || self.bytes.iter().position(|byte| *byte == b'\n').map(|at| at + 1);
        let length = match (self.unit, self.begun) {
            (Unit::Line, _) => line()?,
            (Unit::Report, _) => EVENT_BYTES,
            (Unit::Shade, _) => SHADE_BYTES,
            (Unit::Frame, false) => line().or((self.bytes.len() > HEAD_BYTES_MAX).then_some(1))?,
            (Unit::Frame, true) => FRAME.len() + PICTURE_BYTES,
        };
        (self.bytes.len() >= length).then(|| self.bytes.drain(..length).collect())
    }

    fn number(&self, piece: &[u8]) -> Option<u64> {
        let number = match self.unit {
            Unit::Line => str::from_utf8(&piece[..piece.len() - 1]).ok()?.parse().ok()?,
            Unit::Frame => {
                let first = piece.get(FRAME.len()..FRAME.len() + 8)?;
                u64::from_le_bytes(first.try_into().ok()?)
            }
            Unit::Report => scan_code(piece)?,
            Unit::Shade => shade(*piece.last()?)?,
        };
        (self.unit.bytes(number) == piece).then_some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_found_in_pieces_of_any_size() {
        for unit in [Unit::Line, Unit::Frame, Unit::Report, Unit::Shade] {
            let made: Vec<u8> = [unit.head(), unit.bytes(0), unit.bytes(7)].concat();
            for size in [1, 5, 4096, made.len()] {
                let mut reader = Reader::new(unit);
                let found: Vec<_> = made.chunks(size).flat_map(|piece| reader.read(piece)).collect();
                assert_eq!(found, [Ok(0), Ok(7)], "{unit:?} in pieces of {size}");
            }
        }
    }

    #[test]
    fn a_dropped_event_counts_as_an_overrun() {
        let mut reader = Reader::new(Unit::Report);
        let dropped = event_bytes(&Event::new(EV_SYN, SYN_DROPPED, 0));
        assert_eq!(reader.read(&[dropped.to_vec(), Unit::Report.bytes(3)].concat()), [Ok(3)]);
        assert_eq!((reader.take_overruns(), reader.take_overruns()), (1, 0));
    }

    #[test]
    fn a_torn_unit_is_returned_as_bytes() {
        let mut line = Unit::Line.bytes(5);
        line.remove(3);
        assert_eq!(Reader::new(Unit::Line).read(&line), [Err(line)]);
        let mut film = [Unit::Frame.head(), Unit::Frame.bytes(5)].concat();
        *film.last_mut().unwrap() ^= 1;
        assert!(matches!(Reader::new(Unit::Frame).read(&film)[..], [Err(_)]));
        // The last rows are those of the previous picture.
        let mut picture = Unit::Shade.bytes(5);
        picture[SHADE_BYTES - 2 * SIZE.0..].fill(pixel(4));
        assert!(matches!(Reader::new(Unit::Shade).read(&picture)[..], [Err(_)]));
    }

    #[test]
    fn repeated_pictures_count_once_and_older_ones_are_out_of_order() {
        let mut reader = Reader::new(Unit::Shade);
        let mut read = |number: u64, sequence: u32| {
            let mut picture = Unit::Shade.bytes(number);
            picture[..HEAD_BYTES].copy_from_slice(&sequence.to_le_bytes());
            reader.read(&picture)
        };
        assert_eq!([read(5, 0), read(5, 1), read(6, 2), read(6, 2)].concat(), [Ok(5), Ok(6)]);
        assert_eq!(read(5, 3), [Ok(5)]);
        assert_eq!(reader.take_overruns(), 0);
        assert_eq!(Unit::Shade.newest(5, 6), 5);
        assert_eq!(Unit::Shade.newest(5, SHADES + 5), 5);
        assert_eq!(Unit::Shade.newest(5, SHADES + 6), SHADES + 5);
    }
}
