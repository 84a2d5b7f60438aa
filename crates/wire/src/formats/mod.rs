//! Typed formats: the bodies of messages that both devices and stages understand. Each opens with a kind byte.
//!
//! The layouts are described in `docs/formats-*.md`, with byte vectors.

pub mod controls;
pub mod evdev;
pub mod motion;
pub mod video;
pub mod viewer;
