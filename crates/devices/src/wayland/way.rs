//! The two ways to a desktop: the protocols of wlroots ([`wlroots`](super::wlroots)), and the portal
//! ([`portal`](super::portal)).

use super::screen::Screen;
use contract::{PartnerError, Readiness, Time};
use std::fmt::Debug;
use std::io;

/// A way to a desktop: frames of an output, and input to it.
pub(super) trait Way: Debug + Send {
    /// Processes the bytes that have arrived, and sends the queue.
    fn exchange(&mut self, screen: &mut Screen, now: Time) -> io::Result<()>;

    /// The path pulls: asks for a frame, or reads one that is there, unless it is too early.
    fn pull(&mut self, screen: &mut Screen, now: Time) -> io::Result<()>;

    /// The flow of pictures was opened or closed.
    fn set_watched(&mut self, is_watched: bool);

    /// Returns when [`Way::pull`] makes progress, or [`Way::exchange`] does.
    fn frame_readiness(&self, screen: &Screen) -> Readiness<'_>;

    /// Returns the size of the pictures before the first one, in pixels.
    fn size(&self) -> (u32, u32);

    /// Presses or releases a keysym. Returns whether the desktop can give it.
    fn change_key(&mut self, keysym: u32, pressed: bool) -> io::Result<bool>;

    /// Moves the pointer to a pixel of a picture of `size`, and changes its buttons.
    fn change_pointer(&mut self, position: (u32, u32), buttons: u16, size: (u32, u32)) -> io::Result<()>;

    /// Releases all keys and buttons.
    fn release_all(&mut self, size: (u32, u32)) -> io::Result<()>;

    /// Sends the queue, as much as there is room for.
    fn flush(&mut self) -> io::Result<()>;

    /// Returns whether so much is queued that the caller must not add more.
    fn is_full(&self) -> bool;

    /// Returns when queued input can be sent.
    fn input_readiness(&self) -> Readiness<'_>;

    /// Returns further figures for the report.
    fn figures(&self) -> Vec<contract::Report>;

    /// Describes a failure of this way.
    fn error(&self, error: io::Error) -> PartnerError;
}
