//! VP8 (RFC 6386) by libvpx: an encoder for pictures that leave at once, and a decoder. `vp8.c` holds the calls whose
//! structures differ between versions of the library.
//!
//! Both run in the calling thread and start no other; they open nothing.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{self, NonNull};

/// Largest width and height: a VP8 key picture has 14 bits for each.
pub const SIDE_MAX: u32 = 16383;

/// Three planes of pixels: Y, then Cb and Cr with half the width and half the height, rounded up.
#[derive(Debug, Clone, Copy)]
pub struct Planes<'a> {
    /// Pixels across.
    pub width: u32,
    /// Pixels down.
    pub height: u32,
    /// The bytes of each plane.
    pub planes: [&'a [u8]; 3],
    /// Bytes between the starts of two rows of each plane.
    pub strides: [u32; 3],
}

impl Planes<'_> {
    /// Bytes in a row, and rows, of a plane.
    fn size(width: u32, height: u32, number: usize) -> (usize, usize) {
        let halved = |side: u32| if number == 0 { side } else { side.div_ceil(2) };
        (halved(width) as usize, halved(height) as usize)
    }

    /// Bytes from the first pixel of a plane to its last.
    fn bytes(width: u32, height: u32, stride: u32, number: usize) -> usize {
        let (row_bytes, rows) = Self::size(width, height, number);
        stride as usize * rows.saturating_sub(1) + row_bytes
    }

    /// Returns true if every row lies within its plane.
    fn is_complete(&self) -> bool {
        let has_size = [self.width, self.height].iter().all(|side| (1..=SIDE_MAX).contains(side));
        has_size
            && (0..3).all(|number| {
                let stride = self.strides[number];
                let (row_bytes, _) = Self::size(self.width, self.height, number);
                stride as usize >= row_bytes
                    && i32::try_from(stride).is_ok()
                    && self.planes[number].len() >= Self::bytes(self.width, self.height, stride, number)
            })
    }
}

/// libvpx refused a call. The text is the library's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VpxError(pub &'static str);

/// An encoded picture.
#[derive(Debug, Clone, Copy)]
pub struct Encoded<'a> {
    /// The picture as VP8.
    pub bytes: &'a [u8],
    /// It depends on no other picture.
    pub is_key: bool,
}

#[repr(C)]
#[derive(Debug)]
struct RawPlanes {
    plane: [*const u8; 3],
    stride: [u32; 3],
    width: u32,
    height: u32,
}

unsafe extern "C" {
    fn outboard_vp8_encoder_new(width: u32, height: u32, rate_kbit: u32) -> *mut c_void;
    fn outboard_vp8_encoder_free(encoder: *mut c_void);
    fn outboard_vp8_encoder_set_rate(encoder: *mut c_void, rate_kbit: u32) -> c_int;
    fn outboard_vp8_encode(
        encoder: *mut c_void,
        picture: *const RawPlanes,
        at_ticks: i64,
        ticks: u32,
        is_key: c_int,
        bytes: *mut *const u8,
        length: *mut usize,
        is_key_made: *mut c_int,
    ) -> c_int;
    fn outboard_vp8_decoder_new() -> *mut c_void;
    fn outboard_vp8_decoder_free(decoder: *mut c_void);
    fn outboard_vp8_key_size(bytes: *const u8, length: u32, width: *mut u32, height: *mut u32) -> c_int;
    fn outboard_vp8_decode(
        decoder: *mut c_void,
        bytes: *const u8,
        length: u32,
        picture: *mut RawPlanes,
    ) -> c_int;
    fn outboard_vpx_error(error: c_int) -> *const c_char;
}

fn check(error: c_int) -> Result<(), VpxError> {
    if error == 0 {
        return Ok(());
    }
    // SAFETY: the function takes any number.
    let text = unsafe { outboard_vpx_error(error) };
    // SAFETY: the library returns one of its constant strings, never null.
    let text: &'static CStr = unsafe { CStr::from_ptr(text) };
    Err(VpxError(text.to_str().unwrap_or("error of libvpx")))
}

/// Encodes pictures of one size.
#[derive(Debug)]
pub struct Encoder {
    raw: NonNull<c_void>,
    width: u32,
    height: u32,
}

// SAFETY: libvpx ties an encoder to no thread, and `&mut` keeps two threads from calling it at once.
unsafe impl Send for Encoder {}

impl Encoder {
    /// Ticks a second of the times in [`Encoder::encode`].
    pub const TICKS_HZ: u64 = 90_000;

    /// Makes an encoder for pictures of this size at this rate, in thousands of bits a second. `None` if the library refuses
    /// the size or has no memory.
    pub fn new(width: u32, height: u32, rate_kbit: u32) -> Option<Encoder> {
        if ![width, height].iter().all(|side| (1..=SIDE_MAX).contains(side)) {
            return None;
        }
        // SAFETY: plain numbers; the result is null or a new encoder, which only this value owns.
        let raw = NonNull::new(unsafe { outboard_vp8_encoder_new(width, height, rate_kbit.max(1)) })?;
        Some(Encoder { raw, width, height })
    }

    /// Changes the rate from the next picture on.
    pub fn set_rate(&mut self, rate_kbit: u32) -> Result<(), VpxError> {
        // SAFETY: `raw` is a live encoder, and nothing else uses it during the call.
        check(unsafe { outboard_vp8_encoder_set_rate(self.raw.as_ptr(), rate_kbit.max(1)) })
    }

    /// Encodes a picture of the encoder's size, made at `at_ticks`, which rises from picture to picture, and shown for
    /// `ticks`. `is_key` demands a picture that depends on no other.
    pub fn encode(
        &mut self,
        picture: &Planes<'_>,
        at_ticks: i64,
        ticks: u32,
        is_key: bool,
    ) -> Result<Encoded<'_>, VpxError> {
        if (picture.width, picture.height) != (self.width, self.height) || !picture.is_complete() {
            return Err(VpxError("the picture has another size than its encoder"));
        }
        let raw = RawPlanes {
            plane: picture.planes.map(<[u8]>::as_ptr),
            stride: picture.strides,
            width: picture.width,
            height: picture.height,
        };
        let (mut bytes, mut length, mut is_key_made) = (ptr::null(), 0, 0);
        // SAFETY: `raw` is a live encoder that nothing else uses. The library reads the rows of the picture, which lie within
        // the slices (checked above), and writes the three results.
        let error = unsafe {
            outboard_vp8_encode(
                self.raw.as_ptr(),
                &raw,
                at_ticks,
                ticks.max(1),
                c_int::from(is_key),
                &mut bytes,
                &mut length,
                &mut is_key_made,
            )
        };
        check(error)?;
        // SAFETY: after success `length` is above 0, and the bytes belong to the encoder until its next call, which needs
        // `&mut self` and so outlives the result.
        let bytes = unsafe { std::slice::from_raw_parts(bytes, length) };
        Ok(Encoded { bytes, is_key: is_key_made != 0 })
    }
}

impl Drop for Encoder {
    fn drop(&mut self) {
        // SAFETY: `raw` is a live encoder, freed only here.
        unsafe { outboard_vp8_encoder_free(self.raw.as_ptr()) }
    }
}

/// Decodes pictures.
#[derive(Debug)]
pub struct Decoder {
    raw: NonNull<c_void>,
    /// The planes of the last decoded picture, which belong to the decoder.
    picture: Option<RawPlanes>,
}

// SAFETY: libvpx ties a decoder to no thread, `&mut` keeps two threads from calling it at once, and `picture` points into the
// decoder's own memory.
unsafe impl Send for Decoder {}

impl Decoder {
    /// Makes a decoder. `None` if there is no memory.
    pub fn new() -> Option<Decoder> {
        // SAFETY: no argument; the result is null or a new decoder, which only this value owns.
        let raw = NonNull::new(unsafe { outboard_vp8_decoder_new() })?;
        Some(Decoder { raw, picture: None })
    }

    /// Decodes a picture.
    pub fn decode(&mut self, bytes: &[u8]) -> Result<Planes<'_>, VpxError> {
        let length = u32::try_from(bytes.len()).map_err(|_| VpxError("the picture is too long"))?;
        self.picture = None;
        if bytes.is_empty() {
            // For the library, this would be a lost picture, which it would replace.
            return Err(VpxError("the picture is empty"));
        }
        let mut raw = RawPlanes { plane: [ptr::null(); 3], stride: [0; 3], width: 0, height: 0 };
        // SAFETY: `raw` is a live decoder that nothing else uses; the library reads `length` bytes and checks them itself,
        // and writes the result.
        check(unsafe { outboard_vp8_decode(self.raw.as_ptr(), bytes.as_ptr(), length, &mut raw) })?;
        self.picture = Some(raw);
        self.planes().ok_or(VpxError("no picture"))
    }

    /// Returns the picture that the last call of [`Decoder::decode`] decoded; `None` before the first, and after an error.
    pub fn planes(&self) -> Option<Planes<'_>> {
        let RawPlanes { plane, stride, width, height } = *self.picture.as_ref()?;
        let slice = |number: usize| {
            let length = Planes::bytes(width, height, stride[number], number);
            // SAFETY: after success, each plane has rows of its stride for the whole picture. They belong to the decoder
            // until its next call, which needs `&mut self` and so outlives the result.
            unsafe { std::slice::from_raw_parts(plane[number], length) }
        };
        Some(Planes { width, height, planes: [slice(0), slice(1), slice(2)], strides: stride })
    }
}

impl Drop for Decoder {
    fn drop(&mut self) {
        // SAFETY: `raw` is a live decoder, freed only here.
        unsafe { outboard_vp8_decoder_free(self.raw.as_ptr()) }
    }
}

/// Returns the width and the height that a key picture claims, without decoding it; `None` for a picture that is no key picture.
pub fn key_size(bytes: &[u8]) -> Result<Option<(u32, u32)>, VpxError> {
    let length = u32::try_from(bytes.len()).map_err(|_| VpxError("the picture is too long"))?;
    let (mut width, mut height) = (0, 0);
    if bytes.is_empty() {
        return Err(VpxError("the picture is empty"));
    }
    // SAFETY: the library reads at most `length` bytes and writes the two numbers.
    check(unsafe { outboard_vp8_key_size(bytes.as_ptr(), length, &mut width, &mut height) })?;
    Ok((width > 0 && height > 0).then_some((width, height)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A grey slope that moves with `number`.
    fn picture(number: u32, width: u32, height: u32) -> [Vec<u8>; 3] {
        let half = (width.div_ceil(2) * height.div_ceil(2)) as usize;
        let luma = (0..width * height).map(|at| ((at % width) * 2 + number * 3) as u8).collect();
        [luma, vec![100; half], vec![150; half]]
    }

    fn planes(pixels: &[Vec<u8>; 3], width: u32, height: u32) -> Planes<'_> {
        let half = width.div_ceil(2);
        Planes { width, height, planes: [&pixels[0], &pixels[1], &pixels[2]], strides: [width, half, half] }
    }

    #[test]
    fn pictures_of_any_size_return() {
        for (width, height) in [(1, 1), (17, 33), (64, 48), (320, 241)] {
            let (mut encoder, mut decoder) =
                (Encoder::new(width, height, 4000).unwrap(), Decoder::new().unwrap());
            for number in 0..4 {
                let pixels = picture(number, width, height);
                let encoded = encoder
                    .encode(&planes(&pixels, width, height), i64::from(number) * 3000, 3000, false)
                    .unwrap();
                assert_eq!(encoded.is_key, number == 0);
                let size = encoded.is_key.then_some((width, height));
                assert_eq!(key_size(encoded.bytes), Ok(size), "{width}x{height}");
                let decoded = decoder.decode(encoded.bytes).unwrap();
                assert_eq!((decoded.width, decoded.height), (width, height));
                assert!(decoded.is_complete());
            }
        }
    }

    #[test]
    fn bad_bytes_and_sizes_are_errors() {
        assert!(Encoder::new(0, 10, 100).is_none() && Encoder::new(10, SIDE_MAX + 1, 100).is_none());
        let mut encoder = Encoder::new(64, 48, 1000).unwrap();
        let pixels = picture(0, 32, 48);
        assert!(encoder.encode(&planes(&pixels, 32, 48), 0, 3000, false).is_err(), "another size");
        assert!(encoder.encode(&planes(&pixels, 64, 48), 0, 3000, false).is_err(), "too few bytes");
        let mut decoder = Decoder::new().unwrap();
        for bytes in [&[][..], &[0], &[1, 2, 3, 4], &[0xff; 100], &[0; 100]] {
            assert!(decoder.decode(bytes).is_err(), "{bytes:?}");
        }
    }
}
