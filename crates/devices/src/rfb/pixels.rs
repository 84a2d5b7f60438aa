//! Pixel formats of RFB (RFC 6143, 7.4), and their conversion from and to the native one: blue, green, red and an
//! unused byte (`XR24`).

use super::protocol::Fault;
pub(super) use crate::bgrx::PIXEL_BYTES;

/// The position of one colour in a pixel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Channel {
    /// The largest value, one less than a power of two.
    pub(super) max: u16,
    /// The number of bits to its right.
    pub(super) shift: u8,
}

/// A pixel format. Every value is valid: `parse` rejects others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PixelFormat {
    bits: u8,
    depth: u8,
    big_endian: bool,
    /// The channels of red, green and blue.
    channels: [Channel; 3],
}

impl PixelFormat {
    /// Bytes of an encoded pixel format.
    pub(super) const BYTES: usize = 16;

    /// The native format.
    pub(super) const NATIVE: PixelFormat = PixelFormat {
        bits: 32,
        depth: 24,
        big_endian: false,
        channels: [
            Channel { max: 255, shift: 16 },
            Channel { max: 255, shift: 8 },
            Channel { max: 255, shift: 0 },
        ],
    };

    /// Indices of the server's colour map. The bits of an index are the bits of red, green and blue.
    pub(super) const MAPPED: PixelFormat = PixelFormat {
        bits: 8,
        depth: 8,
        big_endian: false,
        channels: [Channel { max: 7, shift: 0 }, Channel { max: 7, shift: 3 }, Channel { max: 3, shift: 6 }],
    };

    pub(super) fn emit(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&[self.bits, self.depth, self.big_endian.into(), 1]);
        for (number, channel) in self.channels.iter().enumerate() {
            bytes[4 + 2 * number..][..2].copy_from_slice(&channel.max.to_be_bytes());
            bytes[10 + number] = channel.shift;
        }
        bytes
    }

    /// Parses a peer's pixel format. Returns also whether it uses a colour map; its format is then
    /// [`PixelFormat::MAPPED`].
    pub(super) fn parse(bytes: &[u8; Self::BYTES]) -> Result<(PixelFormat, bool), Fault> {
        let [bits, depth, big_endian, true_colour] = [bytes[0], bytes[1], bytes[2], bytes[3]];
        if true_colour == 0 {
            return match bits {
                8 => Ok((PixelFormat::MAPPED, true)),
                _ => Err(Fault(format!("it requests a colour map of {bits} bits; only 8 are supported"))),
            };
        }
        if !matches!(bits, 8 | 16 | 32) || depth > bits {
            return Err(Fault(format!(
                "it requests pixels of {bits} bits with depth {depth}; only 8, 16 and 32 bits are supported"
            )));
        }
        let channels = std::array::from_fn(|number| Channel {
            max: u16::from_be_bytes([bytes[4 + 2 * number], bytes[5 + 2 * number]]),
            shift: bytes[10 + number],
        });
        for Channel { max, shift } in channels {
            let width = u16::BITS - max.leading_zeros();
            // A colour without bits counts as one bit: a shift by all bits of the pixel would overflow.
            if u32::from(max) + 1 != 1 << width || u32::from(shift) + width.max(1) > bits.into() {
                return Err(Fault(format!(
                    "it requests a colour with maximum {max} and shift {shift} in pixels of {bits} bits"
                )));
            }
        }
        Ok((PixelFormat { bits, depth, big_endian: big_endian != 0, channels }, false))
    }

    /// Returns whether every colour has eight bits in a pixel of 32.
    fn is_full(&self) -> bool {
        self.bits == 32 && self.depth <= 24 && self.channels.iter().all(|channel| channel.max == 255)
    }

    /// Returns the byte layout of a plain pixel (`PIXEL`).
    pub(super) fn pixel(&self) -> Packing {
        let bytes = usize::from(self.bits / 8);
        let shifts = std::array::from_fn(|at| match self.big_endian {
            _ if at >= bytes => 0,
            true => 8 * (bytes - 1 - at) as u8,
            false => 8 * at as u8,
        });
        Packing { bytes, shifts }
    }

    /// Returns the byte layout of a ZRLE pixel (7.7.6, `CPIXEL`): without the unused byte, if there is one. By the
    /// specification, a depth over 24 prevents that. No other server does so, and viewers with a depth of 32 rely on it.
    pub(super) fn cpixel(&self) -> Packing {
        let used = self.channels.iter().fold(0u32, |used, c| used | u32::from(c.max) << c.shift);
        let base = match used {
            _ if self.bits != 32 => return self.pixel(),
            _ if used >> 24 == 0 => 0,
            _ if used & 0xff == 0 => 8,
            _ => return self.pixel(),
        };
        let shifts = match self.big_endian {
            true => [16 + base, 8 + base, base, 0],
            false => [base, 8 + base, 16 + base, 0],
        };
        Packing { bytes: 3, shifts }
    }

    /// Returns the byte layout of a Tight pixel (`TPIXEL`): red, green, blue, if each has eight bits.
    pub(super) fn tpixel(&self) -> Packing {
        let [red, green, blue] = self.channels.map(|channel| channel.shift);
        match self.is_full() && self.depth == 24 {
            true => Packing { bytes: 3, shifts: [red, green, blue, 0] },
            false => self.pixel(),
        }
    }
}

/// The byte layout of a pixel: byte `n` is the pixel shifted right by `shifts[n]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Packing {
    /// The number of bytes: 1 to 4.
    pub(super) bytes: usize,
    shifts: [u8; 4],
}

impl Packing {
    /// Appends pixels.
    pub(super) fn put(&self, pixels: &[u32], out: &mut Vec<u8>) {
        match self.bytes {
            1 => self.put_as::<1>(pixels, out),
            2 => self.put_as::<2>(pixels, out),
            3 => self.put_as::<3>(pixels, out),
            _ => self.put_as::<4>(pixels, out),
        }
    }

    fn put_as<const BYTES: usize>(&self, pixels: &[u32], out: &mut Vec<u8>) {
        let start = out.len();
        out.resize(start + BYTES * pixels.len(), 0);
        let shifts: [u8; BYTES] = std::array::from_fn(|at| self.shifts[at]);
        for (into, pixel) in out[start..].as_chunks_mut::<BYTES>().0.iter_mut().zip(pixels) {
            *into = shifts.map(|shift| (pixel >> shift) as u8);
        }
    }

    /// Reads one pixel.
    pub(super) fn get(&self, bytes: &[u8]) -> u32 {
        let shifts = &self.shifts[..self.bytes];
        bytes.iter().zip(shifts).fold(0, |pixel, (byte, shift)| pixel | u32::from(*byte) << shift)
    }
}

/// Converts native pixels to another format.
#[derive(Debug)]
pub(super) struct Translator {
    format: PixelFormat,
    /// The converted bits of each value of blue, green and red; `None` if they do not change.
    tables: Option<Box<[[u32; 256]; 3]>>,
}

impl Translator {
    pub(super) fn new(format: PixelFormat) -> Translator {
        let [red, green, blue] = format.channels;
        let table = |channel: Channel| {
            std::array::from_fn(|value| {
                ((value as u32 * u32::from(channel.max) + 127) / 255) << channel.shift
            })
        };
        let is_native = format.channels == PixelFormat::NATIVE.channels;
        let tables = (!is_native).then(|| Box::new([table(blue), table(green), table(red)]));
        Translator { format, tables }
    }

    /// Returns the target format.
    pub(super) fn format(&self) -> &PixelFormat {
        &self.format
    }

    /// Returns whether the target format has the same bytes.
    pub(super) fn is_identity(&self) -> bool {
        self.tables.is_none() && !self.format.big_endian && self.format.bits == 32
    }

    /// Converts a row of native pixels and appends it.
    pub(super) fn row(&self, row: &[u8], out: &mut Vec<u32>) {
        let pixels = row.as_chunks::<PIXEL_BYTES>().0.iter();
        match &self.tables {
            None => out.extend(pixels.map(|pixel| u32::from_le_bytes(*pixel) & 0x00ff_ffff)),
            Some(tables) => {
                let [blue, green, red] = tables.as_ref();
                out.extend(pixels.map(|[b, g, r, _]| {
                    blue[usize::from(*b)] | green[usize::from(*g)] | red[usize::from(*r)]
                }));
            }
        }
    }
}

/// Converts pixels of another format to native ones.
#[derive(Debug, Clone, Copy)]
pub(super) struct Expander {
    channels: [Channel; 3],
    is_native: bool,
}

impl Expander {
    pub(super) fn new(format: &PixelFormat) -> Expander {
        Expander { channels: format.channels, is_native: format.channels == PixelFormat::NATIVE.channels }
    }

    /// Converts one pixel.
    pub(super) fn pixel(&self, pixel: u32) -> [u8; PIXEL_BYTES] {
        if self.is_native {
            return (pixel & 0x00ff_ffff).to_le_bytes();
        }
        let [red, green, blue] = self.channels.map(|Channel { max, shift }| {
            let (value, max) = ((pixel >> shift) & u32::from(max), u32::from(max.max(1)));
            ((value * 255 + max / 2) / max) as u8
        });
        [blue, green, red, 0]
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    fn format(bits: u8, depth: u8, big_endian: bool, channels: [(u16, u8); 3]) -> PixelFormat {
        let channels = channels.map(|(max, shift)| Channel { max, shift });
        PixelFormat { bits, depth, big_endian, channels }
    }

    /// Formats that viewers request.
    pub(in super::super) fn formats() -> Vec<PixelFormat> {
        vec![
            PixelFormat::NATIVE,
            format(32, 24, true, [(255, 16), (255, 8), (255, 0)]),
            format(32, 24, false, [(255, 0), (255, 8), (255, 16)]),
            format(32, 24, false, [(255, 24), (255, 16), (255, 8)]),
            format(32, 30, false, [(1023, 20), (1023, 10), (1023, 0)]),
            format(32, 32, false, [(255, 16), (255, 8), (255, 0)]),
            format(16, 16, false, [(31, 11), (63, 5), (31, 0)]),
            format(16, 15, true, [(31, 10), (31, 5), (31, 0)]),
            format(8, 8, false, [(7, 0), (7, 3), (3, 6)]),
            format(8, 6, false, [(3, 4), (3, 2), (3, 0)]),
        ]
    }

    #[test]
    fn formats_round_trip_and_invalid_ones_are_rejected() {
        for format in formats() {
            assert_eq!(PixelFormat::parse(&format.emit()), Ok((format, false)));
        }
        let native = PixelFormat::NATIVE.emit();
        for (at, value) in [(0, 24), (0, 0), (1, 33), (3, 0), (5, 254), (10, 25)] {
            let mut wrong = native;
            wrong[at] = value;
            assert!(PixelFormat::parse(&wrong).is_err(), "byte {at} is {value}");
        }
    }

    #[test]
    fn byte_layouts_match_the_specification() {
        let packings = |format: PixelFormat| {
            let mut rows = Vec::new();
            for packing in [format.pixel(), format.cpixel(), format.tpixel()] {
                let mut row = Vec::new();
                packing.put(&[0x0012_3456], &mut row);
                rows.push(row);
            }
            rows
        };
        let native = [vec![0x56, 0x34, 0x12, 0], vec![0x56, 0x34, 0x12], vec![0x12, 0x34, 0x56]];
        assert_eq!(packings(PixelFormat::NATIVE), native);
        let big = [vec![0, 0x12, 0x34, 0x56], vec![0x12, 0x34, 0x56], vec![0x12, 0x34, 0x56]];
        assert_eq!(packings(formats()[1]), big);
        let upper = format(32, 24, false, [(255, 24), (255, 16), (255, 8)]);
        assert_eq!(packings(upper)[1], vec![0x34, 0x12, 0], "the upper three bytes");
        assert_eq!(packings(formats()[7])[0], vec![0x34, 0x56], "two bytes, the upper byte first");
        // macOS Screen Sharing gives the depth 32.
        let deep = formats()[5];
        assert_eq!((deep.depth, deep.cpixel().bytes, deep.tpixel().bytes), (32, 3, 4));
        assert_eq!(formats()[4].cpixel().bytes, 4, "30 bits are used");
    }

    #[test]
    fn a_colour_without_bits_must_lie_inside_the_pixel() {
        let without_red = |shift| format(32, 24, false, [(0, shift), (255, 8), (255, 0)]);
        assert!(PixelFormat::parse(&without_red(32).emit()).is_err());
        let without_red = without_red(31);
        assert_eq!(PixelFormat::parse(&without_red.emit()), Ok((without_red, false)));
        let mut values = Vec::new();
        Translator::new(without_red).row(&[1, 2, 3, 0], &mut values);
        assert_eq!(values, [0x0201]);
        assert_eq!(Expander::new(&without_red).pixel(values[0]), [1, 2, 0, 0]);
        assert_eq!(without_red.cpixel().bytes, 3);
    }

    /// Bytes that are a valid format more often than random bytes.
    fn nearly_formats() -> impl Strategy<Value = [u8; 16]> {
        let bits = prop_oneof![Just(8u8), Just(16), Just(32)];
        let channel = (0u32..=16, 0u8..=33);
        (bits, 0u8..=32, any::<bool>(), [channel.clone(), channel.clone(), channel]).prop_map(
            |(bits, depth, big_endian, channels)| {
                let channels = channels.map(|(width, shift)| (((1u32 << width) - 1) as u16, shift));
                format(bits, depth, big_endian, channels).emit()
            },
        )
    }

    proptest! {
        #[test]
        fn a_pixel_round_trips_within_the_precision_of_its_format(pixel in any::<[u8; 3]>()) {
            for format in formats() {
                let translator = Translator::new(format);
                let mut values = Vec::new();
                translator.row(&[pixel[0], pixel[1], pixel[2], 9], &mut values);
                for packing in [format.pixel(), format.cpixel(), format.tpixel()] {
                    let mut bytes = Vec::new();
                    packing.put(&values, &mut bytes);
                    prop_assert_eq!(packing.get(&bytes), values[0]);
                }
                let back = Expander::new(&format).pixel(values[0]);
                let [red, green, blue] = format.channels.map(|channel| 128 / i32::from(channel.max) + 1);
                for ((before, after), tolerance) in pixel.iter().zip(back).zip([blue, green, red]) {
                    let difference = (i32::from(*before) - i32::from(after)).abs();
                    prop_assert!(difference <= tolerance, "{:?} {:?}", pixel, back);
                }
            }
        }

        #[test]
        fn any_sixteen_bytes_are_a_valid_format_or_rejected(bytes in prop_oneof![any::<[u8; 16]>(), nearly_formats()]) {
            if let Ok((format, _)) = PixelFormat::parse(&bytes) {
                let mut values = Vec::new();
                Translator::new(format).row(&[1, 2, 3, 4], &mut values);
                for packing in [format.pixel(), format.cpixel(), format.tpixel()] {
                    packing.put(&values, &mut Vec::new());
                }
                Expander::new(&format).pixel(values[0]);
            }
        }
    }
}
