//! A window that shows pictures through memory shared with the X server. The bare program also captures the screen through it.

use super::content::{Film, NUMBER_PIXELS, PIXEL_BYTES, number_pixels};
use crate::setting::Failure;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use x11rb::connection::Connection;
use x11rb::protocol::shm::{self, ConnectionExt as _};
use x11rb::protocol::xproto::{ConnectionExt as _, CreateGCAux, CreateWindowAux, ImageFormat, WindowClass};
use x11rb::rust_connection::RustConnection;

/// A square window in the upper left corner of a display, with its pictures.
pub(crate) struct Canvas {
    connection: RustConnection,
    root: u32,
    window: u32,
    context: u32,
    side: usize,
    /// The pictures in a row, and space for a captured one.
    memory: File,
    segment: shm::Seg,
    pictures: usize,
}

impl Canvas {
    /// Opens the window and copies the pictures to the server.
    pub(crate) fn open(display: &str, film: &Film, side: usize) -> Result<Canvas, Failure> {
        let (connection, screen) = x11rb::connect(Some(display))?;
        let root = &connection.setup().roots[screen];
        let (depth, visual, root) = (root.root_depth, root.root_visual, root.root);
        let memory: OwnedFd = rustix::fs::memfd_create("canvas", rustix::fs::MemfdFlags::CLOEXEC)?;
        let memory = File::from(memory);
        let bytes = side * side * PIXEL_BYTES;
        memory.set_len(((film.pictures.len() + 1) * bytes) as u64)?;
        for (at, picture) in film.pictures.iter().enumerate() {
            memory.write_all_at(picture, (at * bytes) as u64)?;
        }
        let segment = connection.generate_id()?;
        connection.shm_attach_fd(segment, OwnedFd::from(memory.try_clone()?), false)?.check()?;
        let (window, context) = (connection.generate_id()?, connection.generate_id()?);
        let attributes = CreateWindowAux::new().override_redirect(1);
        let (class, length) = (WindowClass::INPUT_OUTPUT, side as u16);
        connection
            .create_window(depth, window, root, 0, 0, length, length, 0, class, visual, &attributes)?
            .check()?;
        connection.map_window(window)?.check()?;
        connection.create_gc(context, window, &CreateGCAux::new().graphics_exposures(0))?.check()?;
        Ok(Canvas { connection, root, window, context, side, memory, segment, pictures: film.pictures.len() })
    }

    fn bytes(&self) -> usize {
        self.side * self.side * PIXEL_BYTES
    }

    /// Paints picture `number`, from 1, with its number. It is on the screen before the answer to the next request.
    pub(crate) fn paint(&self, number: u32) -> Result<(), Failure> {
        let at = number as usize % self.pictures * self.bytes();
        let pixels = number_pixels(number);
        self.memory.write_all_at(&pixels, at as u64)?;
        self.memory.write_all_at(&pixels, (at + self.bytes() - NUMBER_PIXELS * PIXEL_BYTES) as u64)?;
        let (side, format) = (self.side as u16, ImageFormat::Z_PIXMAP.into());
        self.connection.shm_put_image(
            self.window,
            self.context,
            side,
            side,
            0,
            0,
            side,
            side,
            0,
            0,
            24,
            format,
            false,
            self.segment,
            at as u32,
        )?;
        self.connection.flush()?;
        Ok(())
    }

    /// Captures the square from the screen.
    pub(crate) fn capture(&self, into: &mut [u8]) -> Result<(), Failure> {
        let (side, format) = (self.side as u16, ImageFormat::Z_PIXMAP.into());
        let at = self.pictures * self.bytes();
        let request = self.connection.shm_get_image(
            self.root,
            0,
            0,
            side,
            side,
            !0,
            format,
            self.segment,
            at as u32,
        )?;
        request.reply()?;
        Ok(self.memory.read_exact_at(into, at as u64)?)
    }
}
