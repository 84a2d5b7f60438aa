//! The layout of a framebuffer's pixels in its file. The kernel describes it in sysfs; the file of an X server begins
//! with the header of an X window dump (`X11/XWDFile.h`).

use rustix::io::pread;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use wire::formats::video::{Geometry, PixelFormat};
use wire::{Reader, Writer};

/// The kernel's descriptions of framebuffers.
pub(super) const GRAPHICS: &str = "/sys/class/graphics";

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

/// The layout of the pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    /// The offset of the first pixel.
    pub(super) offset: u64,
    /// The size and the stride.
    pub(super) geometry: Geometry,
}

impl Layout {
    /// Determines the layout of an open file.
    pub(super) fn find(file: impl AsFd, path: &Path) -> Result<Layout, String> {
        let resolved = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
        let name = resolved.strip_prefix("/dev").ok().and_then(Path::to_str);
        match name.map(|name| Path::new(GRAPHICS).join(name)).filter(|node| node.exists()) {
            Some(node) => Self::from_sysfs(&node),
            None => Self::from_dump(file.as_fd()),
        }
    }

    fn from_sysfs(node: &Path) -> Result<Layout, String> {
        let read = |name: &str| {
            let path = node.join(name);
            std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))
        };
        let numbers = |name: &str| -> Result<Vec<u32>, String> {
            let text = read(name)?;
            let numbers: Option<_> = text.trim().split(',').map(|number| number.parse().ok()).collect();
            numbers.ok_or_else(|| format!("{name} is `{}`, which is not a number", text.trim()))
        };
        let [width, height] = numbers("virtual_size")?[..] else { return Err("it has no size".into()) };
        match (&numbers("bits_per_pixel")?[..], &numbers("stride")?[..]) {
            ([32], [stride]) => Self::new(0, width, height, *stride),
            ([bits], _) => {
                Err(format!("its pixels have {bits} bits; only 32 are supported: run `fbset -depth 32`"))
            }
            _ => Err("the kernel does not describe its pixels".into()),
        }
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
        Self::new(u64::from(header_bytes) + u64::from(colours) * XWD_COLOUR_BYTES, width, height, stride)
    }

    fn new(offset: u64, width: u32, height: u32, stride: u32) -> Result<Layout, String> {
        let geometry =
            Geometry::new(PixelFormat::Bgrx32, width, height).and_then(|tight| tight.with_stride(stride));
        Ok(Layout { offset, geometry: geometry.map_err(|error| error.to_string())? })
    }

    /// Encodes the layout, for the worker.
    pub(super) fn emit(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        let Layout { offset, geometry } = self;
        writer.u64(*offset).u32(geometry.width()).u32(geometry.height()).u32(geometry.stride());
        writer.finish()
    }

    /// Parses an encoded layout.
    pub(super) fn parse(bytes: &[u8]) -> Result<Layout, String> {
        let mut reader = Reader::new(bytes);
        let mut field = || -> Result<_, wire::WireError> {
            let (offset, width) = (reader.u64("offset")?, reader.u32("width")?);
            let fields = (offset, width, reader.u32("height")?, reader.u32("stride")?);
            reader.end("layout")?;
            Ok(fields)
        };
        let (offset, width, height, stride) = field().map_err(|error| error.to_string())?;
        Self::new(offset, width, height, stride)
    }
}
