//! The way by the desktop's portal: GNOME, KDE and others share a monitor, and take input, when their user allows it.
//!
//! | module | purpose |
//! |---|---|
//! | `bus` | the portal on the session bus: asks the user, sends input |
//! | `cast` | the stream of PipeWire with the frames |
//! | `share` | a granted share, its threads in the broker, and the worker that uses it |
//! | `shares` | the shares of this process, by wish and display |
//! | `token` | the portal's memory of the user's answer |
//! | `memory` | the frames that thread and worker share |
//! | `order`, `keys` | the worker's orders; the keysyms that are held |
//! | `compositor`, `pointer` | the compositor behind the portal; the steps of the pointer to a pixel |
//! | `way` | the worker's side |
//!
//! ```text
//! broker  portal-input ──► session bus ──► portal        PipeWire ──► portal-pictures
//!              ▲ orders (control socket)                            frames │ (memory)
//! worker  DevicePartner<Portal> ◄──────────────────────────────────────────┘
//! ```
//!
//! A share lasts as long as this process, so the user is asked once. When the user ends it on the desktop, it is not asked for
//! again until the device is shared anew. GNOME ends it when the screen is locked, so the share keeps GNOME from becoming idle.

#[cfg(feature = "media")]
mod bus;
#[cfg(feature = "media")]
mod cast;
mod compositor;
mod keys;
mod memory;
mod order;
mod pointer;
#[cfg(feature = "media")]
mod share;
#[cfg(feature = "media")]
mod shares;
#[cfg(feature = "media")]
mod token;
mod way;

pub(super) use order::Order;
#[cfg(feature = "media")]
pub(super) use shares::{open, problem, question, reopen, withdraw};
pub(super) use way::Portal;

use std::os::fd::OwnedFd;

/// An opened share.
#[derive(Debug)]
pub(super) struct OpenedShare {
    /// The size before the first picture, in pixels.
    pub(super) size: (u32, u32),
    /// The worker's socket and memory.
    pub(super) descriptors: Vec<OwnedFd>,
}

/// The error of a program without the portal.
#[cfg(not(feature = "media"))]
const WITHOUT: &str = "this program was built without the portal of desktops, which needs a library of the system: install the package for \
                       Debian or Ubuntu, or build with `cargo build --features media`";

/// Returns the reason why the portal cannot share the desktop.
#[cfg(not(feature = "media"))]
pub(super) fn problem(_is_view_only: bool) -> Option<String> {
    Some(WITHOUT.into())
}

/// Returns the question of the dialog.
#[cfg(not(feature = "media"))]
pub(super) fn question(_spec: &contract::DeviceSpec) -> Option<String> {
    None
}

/// There is no dialog.
#[cfg(not(feature = "media"))]
pub(super) fn withdraw(_spec: &contract::DeviceSpec) {}

/// Refuses: this program has no portal.
#[cfg(not(feature = "media"))]
pub(super) fn open(_spec: &contract::DeviceSpec) -> Result<OpenedShare, contract::DeviceError> {
    Err(contract::DeviceError::Spec { what: "wayland".into(), problem: WITHOUT.into() })
}

/// Refuses: this program has no portal.
#[cfg(not(feature = "media"))]
pub(super) fn reopen(spec: &contract::DeviceSpec) -> Result<OpenedShare, contract::DeviceError> {
    open(spec)
}
