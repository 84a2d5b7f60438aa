//! The layout of a framebuffer's pixels in its file. The kernel describes it; the file of an X server begins
//! with the header of an X window dump (`X11/XWDFile.h`).

use crate::bgrx::PIXEL_BYTES;
use rustix::io::pread;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use sys::framebuffer::Screen;
use wire::formats::video::{Geometry, PixelFormat};
use wire::{Reader, Writer};

/// The kernel's descriptions of framebuffers.
pub(super) const GRAPHICS: &str = "/sys/class/graphics";

/// The kernel's drivers of its text console, each with its name and whether it draws.
const CONSOLES: &str = "/sys/class/vtconsole";

/// Bytes of the fields of a dump's header.
const XWD_BYTES: usize = 100;
const XWD_VERSION: u32 = 7;
/// The format with whole pixels, row by row (`ZPixmap`).
const XWD_Z_PIXMAP: u32 = 2;
/// Bytes of an entry of a dump's colour table.
const XWD_COLOUR_BYTES: u64 = 12;
/// The most bytes of a header, including the window's name.
const XWD_HEADER_BYTES_MAX: u32 = 1 << 16;
const XWD_COLOURS_MAX: u32 = 1 << 16;

/// The order of the channels in the bytes of a pixel; the fourth byte is unused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// Blue, green, red: that of messages.
    BlueFirst,
    /// Red, green, blue.
    RedFirst,
}

impl Order {
    /// Converts pixels between this order and that of messages.
    pub(super) fn convert(self, pixels: &mut [u8]) {
        if self == Order::RedFirst {
            pixels.as_chunks_mut::<PIXEL_BYTES>().0.iter_mut().for_each(|pixel| pixel.swap(0, 2));
        }
    }
}

/// The layout of the pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    /// The offset of the first pixel.
    pub(super) offset: u64,
    /// The size and the stride.
    pub(super) geometry: Geometry,
    pub(super) order: Order,
    /// The kernel's text console draws here, too.
    pub(super) has_console: bool,
}

/// Returns true if the kernel's text console draws on framebuffers.
fn has_console() -> bool {
    let drivers = std::fs::read_dir(CONSOLES).into_iter().flatten().flatten();
    let read = |driver: &std::fs::DirEntry, file| {
        std::fs::read_to_string(driver.path().join(file)).unwrap_or_default()
    };
    drivers
        .into_iter()
        .any(|driver| read(&driver, "name").contains("frame buffer") && read(&driver, "bind").trim() == "1")
}

impl Layout {
    /// Determines the layout of an open file.
    pub(super) fn find(file: impl AsFd, path: &Path) -> Result<Layout, String> {
        let resolved = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
        let name = resolved.strip_prefix("/dev").ok().and_then(Path::to_str);
        match name.map(|name| Path::new(GRAPHICS).join(name)).filter(|node| node.exists()) {
            Some(node) => Self::of_kernel(file.as_fd(), &node),
            None => Self::from_dump(file.as_fd()),
        }
    }

    /// Determines the layout of the visible part of a framebuffer of the kernel.
    fn of_kernel(file: BorrowedFd<'_>, node: &Path) -> Result<Layout, String> {
        let screen =
            Screen::of(file).map_err(|error| format!("the kernel does not describe its pixels: {error}"))?;
        let order = match (screen.pixel_bits, screen.channel_lengths, screen.channel_bits) {
            (32, [8, 8, 8], [16, 8, 0]) => Order::BlueFirst,
            (32, [8, 8, 8], [0, 8, 16]) => Order::RedFirst,
            (bits, ..) => {
                return Err(format!(
                    "its pixels have {bits} bits; only 8 each of red, green and blue in 32 are supported: run `fbset -depth 32`"
                ));
            }
        };
        // The kernel tells the stride to who maps the memory, and here.
        let path = node.join("stride");
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let stride: u32 = text
            .trim()
            .parse()
            .map_err(|_| format!("its stride is `{}`, which is no number", text.trim()))?;
        let offset = u64::from(screen.y) * u64::from(stride) + u64::from(screen.x) * PIXEL_BYTES as u64;
        let layout = Self::new(offset, (screen.width, screen.height), stride, order)?;
        Ok(Layout { has_console: has_console(), ..layout })
    }

    fn from_dump(file: BorrowedFd<'_>) -> Result<Layout, String> {
        let mut header = [0; XWD_BYTES];
        let read = pread(file, &mut header, 0).map_err(|error| error.to_string())?;
        if read < XWD_BYTES {
            return Err("is neither a framebuffer of the kernel nor a screen file of an X server".into());
        }
        Self::parse_dump(&header)
    }

    /// Parses the header of a dump. Its numbers are big-endian.
    pub(super) fn parse_dump(header: &[u8; XWD_BYTES]) -> Result<Layout, String> {
        let fields = header.as_chunks::<4>().0;
        let field = |number: usize| u32::from_be_bytes(fields[number]);
        let (header_bytes, version, format, width, height) =
            (field(0), field(1), field(2), field(4), field(5));
        let (byte_order, pixel_bits, stride) = (field(7), field(11), field(12));
        let (masks, colours) = ([field(14), field(15), field(16)], field(19));
        if version != XWD_VERSION
            || format != XWD_Z_PIXMAP
            || !(XWD_BYTES as u32..=XWD_HEADER_BYTES_MAX).contains(&header_bytes)
            || colours > XWD_COLOURS_MAX
        {
            return Err("is not an X window dump with whole pixels".into());
        }
        if pixel_bits != 32 || byte_order != 0 || masks != [0xff_0000, 0xff00, 0xff] {
            return Err(format!(
                "its pixels have {pixel_bits} bits; only 8 each of red, green and blue in 32 are supported: run the X \
                 server with a depth of 24"
            ));
        }
        let offset = u64::from(header_bytes) + u64::from(colours) * XWD_COLOUR_BYTES;
        Self::new(offset, (width, height), stride, Order::BlueFirst)
    }

    fn new(offset: u64, (width, height): (u32, u32), stride: u32, order: Order) -> Result<Layout, String> {
        let geometry =
            Geometry::new(PixelFormat::Bgrx32, width, height).and_then(|tight| tight.with_stride(stride));
        let geometry = geometry.map_err(|error| error.to_string())?;
        Ok(Layout { offset, geometry, order, has_console: false })
    }

    /// Encodes the layout, for the worker.
    pub(super) fn emit(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        let Layout { offset, geometry, order, has_console } = self;
        writer.u64(*offset).u32(geometry.width()).u32(geometry.height()).u32(geometry.stride());
        writer.u8((*order == Order::RedFirst).into()).u8((*has_console).into());
        writer.finish()
    }

    /// Parses an encoded layout.
    pub(super) fn parse(bytes: &[u8]) -> Result<Layout, String> {
        let mut reader = Reader::new(bytes);
        let mut field = || -> Result<_, wire::WireError> {
            let (offset, width) = (reader.u64("offset")?, reader.u32("width")?);
            let (height, stride, order) = (reader.u32("height")?, reader.u32("stride")?, reader.u8("order")?);
            let has_console = reader.u8("console")? != 0;
            reader.end("layout")?;
            Ok((offset, (width, height), stride, order, has_console))
        };
        let (offset, size, stride, order, has_console) = field().map_err(|error| error.to_string())?;
        let order = if order == 0 { Order::BlueFirst } else { Order::RedFirst };
        Ok(Layout { has_console, ..Self::new(offset, size, stride, order)? })
    }
}
