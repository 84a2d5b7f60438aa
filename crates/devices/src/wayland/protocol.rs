//! The interfaces that this client uses, and the numbers of their requests and events: the order in the protocol's XML
//! files (`wayland.xml`, `wlr-screencopy-unstable-v1.xml`, `wlr-virtual-pointer-unstable-v1.xml`,
//! `virtual-keyboard-unstable-v1.xml`).

use super::client::Object;

/// The object that every connection begins with.
pub(super) const DISPLAY: Object = 1;

/// The interface of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Interface {
    Display,
    Registry,
    Callback,
    Seat,
    Output,
    Memory,
    Pool,
    Buffer,
    CaptureManager,
    Frame,
    KeyboardManager,
    Keyboard,
    PointerManager,
    Pointer,
    /// This client has destroyed it; the compositor has not confirmed that.
    Destroyed,
    /// No object has this number.
    Free,
}

impl Interface {
    /// Returns the name that the compositor announces.
    pub(super) fn name(self) -> &'static str {
        match self {
            Interface::Display => "wl_display",
            Interface::Registry => "wl_registry",
            Interface::Callback => "wl_callback",
            Interface::Seat => "wl_seat",
            Interface::Output => "wl_output",
            Interface::Memory => "wl_shm",
            Interface::Pool => "wl_shm_pool",
            Interface::Buffer => "wl_buffer",
            Interface::CaptureManager => "zwlr_screencopy_manager_v1",
            Interface::Frame => "zwlr_screencopy_frame_v1",
            Interface::KeyboardManager => "zwp_virtual_keyboard_manager_v1",
            Interface::Keyboard => "zwp_virtual_keyboard_v1",
            Interface::PointerManager => "zwlr_virtual_pointer_manager_v1",
            Interface::Pointer => "zwlr_virtual_pointer_v1",
            Interface::Destroyed | Interface::Free => "an object that was destroyed",
        }
    }
}

/// `wl_display`.
pub(super) mod display {
    pub(in super::super) const SYNC: u16 = 0;
    pub(in super::super) const GET_REGISTRY: u16 = 1;
    pub(in super::super) const ERROR: u16 = 0;
    pub(in super::super) const DELETE_ID: u16 = 1;
}

/// `wl_registry`.
pub(super) mod registry {
    pub(in super::super) const BIND: u16 = 0;
    pub(in super::super) const GLOBAL: u16 = 0;
    pub(in super::super) const GLOBAL_REMOVE: u16 = 1;
}

/// `wl_output`.
pub(super) mod output {
    pub(in super::super) const GEOMETRY: u16 = 0;
    pub(in super::super) const MODE: u16 = 1;
    pub(in super::super) const NAME: u16 = 4;
    /// The version with names.
    pub(in super::super) const VERSION: u32 = 4;
    /// The flag of the mode that is in use.
    pub(in super::super) const CURRENT: u32 = 1;
}

/// `wl_shm`, its pools and their buffers.
pub(super) mod memory {
    pub(in super::super) const CREATE_POOL: u16 = 0;
    pub(in super::super) const CREATE_BUFFER: u16 = 0;
    pub(in super::super) const DESTROY_POOL: u16 = 1;
    pub(in super::super) const DESTROY_BUFFER: u16 = 0;
    /// Formats: the first two have numbers of their own, the others are FourCC codes (`drm_fourcc.h`).
    pub(in super::super) const ARGB8888: u32 = 0;
    pub(in super::super) const XRGB8888: u32 = 1;
    pub(in super::super) const ABGR8888: u32 = u32::from_le_bytes(*b"AB24");
    pub(in super::super) const XBGR8888: u32 = u32::from_le_bytes(*b"XB24");
}

/// `zwlr_screencopy_manager_v1` and its frames.
pub(super) mod capture {
    /// The version with damage and `buffer_done`.
    pub(in super::super) const VERSION: u32 = 3;
    pub(in super::super) const CAPTURE_OUTPUT: u16 = 0;
    pub(in super::super) const COPY: u16 = 0;
    pub(in super::super) const DESTROY_FRAME: u16 = 1;
    pub(in super::super) const COPY_WITH_DAMAGE: u16 = 2;
    pub(in super::super) const BUFFER: u16 = 0;
    pub(in super::super) const FLAGS: u16 = 1;
    pub(in super::super) const READY: u16 = 2;
    pub(in super::super) const FAILED: u16 = 3;
    pub(in super::super) const DAMAGE: u16 = 4;
    pub(in super::super) const BUFFER_DONE: u16 = 6;
    /// The flag of a picture whose last row comes first.
    pub(in super::super) const UPSIDE_DOWN: u32 = 1;
}

/// `zwp_virtual_keyboard_manager_v1` and its keyboards.
pub(super) mod keyboard {
    pub(in super::super) const CREATE: u16 = 0;
    pub(in super::super) const KEYMAP: u16 = 0;
    pub(in super::super) const KEY: u16 = 1;
    pub(in super::super) const MODIFIERS: u16 = 2;
    /// The format of keymaps that libxkbcommon reads.
    pub(in super::super) const XKB_V1: u32 = 1;
}

/// `zwlr_virtual_pointer_manager_v1` and its pointers.
pub(super) mod pointer {
    /// The version with pointers of one output.
    pub(in super::super) const VERSION: u32 = 2;
    pub(in super::super) const CREATE_WITH_OUTPUT: u16 = 2;
    pub(in super::super) const MOTION_ABSOLUTE: u16 = 1;
    pub(in super::super) const BUTTON: u16 = 2;
    pub(in super::super) const FRAME: u16 = 4;
    pub(in super::super) const AXIS_SOURCE: u16 = 5;
    pub(in super::super) const AXIS_DISCRETE: u16 = 7;
    pub(in super::super) const WHEEL: u32 = 0;
}
