//! The visible part of a framebuffer (`linux/fb.h`).

use crate::ioctl::answer;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// `FBIOGET_VSCREENINFO`; its number has no size.
const GET_VARIABLE: libc::Ioctl = 0x4600;
/// Fields of `struct fb_var_screeninfo`, 4 bytes each.
const FIELDS: usize = 40;

/// The visible part of a framebuffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Screen {
    /// Pixels.
    pub width: u32,
    /// Pixels.
    pub height: u32,
    /// The column of the upper left corner in the framebuffer, pixels.
    pub x: u32,
    /// Its row, pixels.
    pub y: u32,
    /// Bits of a pixel.
    pub pixel_bits: u32,
    /// The lowest bits of red, green and blue in a pixel.
    pub channel_bits: [u32; 3],
    /// The numbers of their bits.
    pub channel_lengths: [u32; 3],
}

impl Screen {
    /// Asks the kernel.
    ///
    /// # Errors
    /// `ENOTTY` if the file is no framebuffer.
    pub fn of(file: impl AsFd) -> io::Result<Screen> {
        let mut fields = [0u32; FIELDS];
        let file = file.as_fd().as_raw_fd();
        // SAFETY: the kernel writes a `struct fb_var_screeninfo`, which has the size and alignment of `fields`.
        answer(unsafe { libc::ioctl(file, GET_VARIABLE, fields.as_mut_ptr()) })?;
        let [width, height, _, _, x, y, pixel_bits, _, ..] = fields;
        let channels = [8, 11, 14];
        Ok(Screen {
            width,
            height,
            x,
            y,
            pixel_bits,
            channel_bits: channels.map(|field| fields[field]),
            channel_lengths: channels.map(|field| fields[field + 1]),
        })
    }
}
