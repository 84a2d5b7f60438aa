//! Typed formats: message bodies that both devices and stages understand. Each starts with a kind byte.
//!
//! `docs/reference/formats-*.md` describe the layouts, with byte vectors.

pub mod audio;
pub mod block;
pub mod controls;
pub mod evdev;
pub mod hid;
pub mod midi;
pub mod motion;
pub mod video;
pub mod viewer;
