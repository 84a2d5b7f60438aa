//! Keyboards that are driven by keysyms, for the classes that type on a desktop (`x11`, `wayland`).

pub(crate) mod keyboard;
pub(crate) mod layout;
