//! Captures an output (`zwlr_screencopy_manager_v1`): a frame for each pull.
//!
//! A frame is requested when the path pulls. The compositor copies it to shared memory as soon as something has changed since
//! the frame before; until the next request it accumulates the damage.
//!
//! | phase | event | next phase |
//! |---|---|---|
//! | `Idle` | pull, and the period has passed | `Announced` |
//! | `Announced` | the description of the buffer is complete | `Copying` |
//! | `Copying` | ready | `Idle`; the changed tiles are due |
//! | any but `Idle` | failed | `Idle`; the next frame is requested after a pause |

use super::client::{Client, Event, Object, Request, protocol_error};
use super::picture::{BufferLayout, Frame, Turn};
use super::protocol::{Interface, capture, memory};
use super::screen::{Screen, around};
use contract::Time;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use std::io;
use std::time::Duration;
use sys::memory::{Access, Shared};
use wire::formats::video::Rectangle;

/// The pause after a frame that the compositor could not copy, such as that of an output that is off.
const PAUSE: Duration = Duration::from_millis(100);

/// The phase of the state machine; see the table above.
#[derive(Debug)]
enum Phase {
    Idle,
    Announced(Requested),
    Copying(Requested),
}

/// A requested frame.
#[derive(Debug)]
struct Requested {
    object: Object,
    layout: Option<BufferLayout>,
    /// The format of a buffer that is not supported.
    other_format: Option<u32>,
    /// A rectangle around the damage; `None`: everything.
    damaged: Option<Rectangle>,
    upside_down: bool,
}

/// Memory shared with the compositor: one buffer.
#[derive(Debug)]
struct Buffer {
    object: Object,
    layout: BufferLayout,
    memory: Shared,
}

/// The objects of the compositor that a capture uses.
#[derive(Debug, Clone, Copy)]
pub(super) struct Objects {
    pub(super) manager: Object,
    pub(super) memory: Object,
    pub(super) output: Object,
}

/// The capture of one output.
#[derive(Debug)]
pub(super) struct Capture {
    objects: Objects,
    transform: u32,
    with_cursor: bool,
    phase: Phase,
    buffer: Option<Buffer>,
}

impl Capture {
    /// Makes the capture of an output that is turned by `transform`.
    pub(super) fn new(objects: Objects, transform: u32, with_cursor: bool) -> Capture {
        Capture { objects, transform, with_cursor, phase: Phase::Idle, buffer: None }
    }

    /// The output is turned.
    pub(super) fn set_transform(&mut self, transform: u32) {
        self.transform = transform;
    }

    /// Returns whether a frame is requested.
    pub(super) fn is_busy(&self) -> bool {
        !matches!(self.phase, Phase::Idle)
    }

    /// Requests a frame.
    pub(super) fn request(&mut self, client: &mut Client) -> io::Result<()> {
        let object = client.object(Interface::Frame)?;
        let request = Request::new(self.objects.manager, capture::CAPTURE_OUTPUT).with(object);
        client.send(request.with(self.with_cursor.into()).with(self.objects.output));
        self.phase = Phase::Announced(Requested {
            object,
            layout: None,
            other_format: None,
            damaged: None,
            upside_down: false,
        });
        Ok(())
    }

    /// Processes an event of a frame.
    pub(super) fn handle_event(
        &mut self,
        client: &mut Client,
        event: &mut Event,
        screen: &mut Screen,
        now: Time,
    ) -> io::Result<()> {
        let (Phase::Announced(frame) | Phase::Copying(frame)) = &mut self.phase else { return Ok(()) };
        if event.object != frame.object {
            return Ok(());
        }
        match event.number {
            capture::BUFFER => {
                let (format, width) = (event.number()?, event.number()?);
                let layout = BufferLayout { format, width, height: event.number()?, stride: event.number()? };
                match layout.is_known() {
                    true => frame.layout = Some(layout),
                    false => frame.other_format = Some(format),
                }
            }
            capture::BUFFER_DONE => self.copy(client, screen)?,
            capture::FLAGS => frame.upside_down = event.number()? & capture::UPSIDE_DOWN != 0,
            capture::DAMAGE => {
                let part = rectangle(event)?;
                frame.damaged = Some(frame.damaged.map_or(part, |all| around(&all, &part)));
            }
            capture::READY => self.complete(client, screen, now)?,
            capture::FAILED => {
                screen.figures.failed += 1;
                screen.rhythm.pause_until(now.after(PAUSE));
                if let Some(buffer) = self.buffer.take() {
                    client.destroy(buffer.object, memory::DESTROY_BUFFER);
                }
                self.end_frame(client);
            }
            _ => {}
        }
        Ok(())
    }

    /// The buffer is described: asks for a copy.
    fn copy(&mut self, client: &mut Client, screen: &Screen) -> io::Result<()> {
        let frame = match std::mem::replace(&mut self.phase, Phase::Idle) {
            Phase::Announced(frame) => frame,
            other => {
                self.phase = other;
                return Ok(());
            }
        };
        let Some(layout) = frame.layout else {
            let format = frame.other_format.unwrap_or_default().to_le_bytes();
            return Err(io::Error::other(format!(
                "the output has pixels in the format {}; only 8 bits each of red, green and blue in 32 are supported",
                format.escape_ascii()
            )));
        };
        let buffer = match self.buffer.take() {
            Some(buffer) if buffer.layout == layout => buffer,
            other => {
                if let Some(buffer) = other {
                    client.destroy(buffer.object, memory::DESTROY_BUFFER);
                }
                self.share(client, layout)?
            }
        };
        let turn = Turn { transform: self.transform, upside_down: screen.turn().upside_down };
        // A picture of another size is due at once, also if nothing is damaged.
        let is_known = screen.picture().is_some_and(|picture| picture.fits(&layout, turn));
        let number = if is_known { capture::COPY_WITH_DAMAGE } else { capture::COPY };
        client.send(Request::new(frame.object, number).with(buffer.object));
        self.buffer = Some(buffer);
        self.phase = Phase::Copying(frame);
        Ok(())
    }

    /// Shares memory for such a buffer with the compositor.
    fn share(&self, client: &mut Client, layout: BufferLayout) -> io::Result<Buffer> {
        let bytes = layout.bytes()?;
        let file = memfd_create("outboard-wayland", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, bytes as u64)?;
        // A mapping of a file that shrinks would fault.
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
        let memory = Shared::map(&file, Access::Read)?;
        let pool = client.object(Interface::Pool)?;
        let create = Request::new(self.objects.memory, memory::CREATE_POOL).with(pool);
        client.send_with(create.with(bytes as u32), file);
        let object = client.object(Interface::Buffer)?;
        let BufferLayout { format, width, height, stride } = layout;
        let create = Request::new(pool, memory::CREATE_BUFFER).with(object).with(0);
        client.send(create.with(width).with(height).with(stride).with(format));
        client.destroy(pool, memory::DESTROY_POOL);
        Ok(Buffer { object, layout, memory })
    }

    /// The compositor has written a picture.
    fn complete(&mut self, client: &mut Client, screen: &mut Screen, now: Time) -> io::Result<()> {
        let Phase::Copying(requested) = &self.phase else {
            return Err(protocol_error("a frame is ready that was not to be copied"));
        };
        let Some(buffer) = &self.buffer else { return Ok(()) };
        let turn = Turn { transform: self.transform, upside_down: requested.upside_down };
        let frame = Frame { memory: &buffer.memory, start: 0, layout: buffer.layout, turn };
        screen.read(&frame, requested.damaged, now)?;
        self.end_frame(client);
        Ok(())
    }

    fn end_frame(&mut self, client: &mut Client) {
        if let Phase::Announced(frame) | Phase::Copying(frame) =
            std::mem::replace(&mut self.phase, Phase::Idle)
        {
            client.destroy(frame.object, capture::DESTROY_FRAME);
        }
    }
}

/// Takes a rectangle out of an event.
fn rectangle(event: &mut Event) -> io::Result<Rectangle> {
    let (x, y) = (event.number()?, event.number()?);
    Ok(Rectangle { x, y, width: event.number()?, height: event.number()? })
}
