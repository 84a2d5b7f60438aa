//! Conversion between bytes and containers, records and control messages.
//!
//! This crate does no I/O and reads no clock. Every parser checks its input: for any bytes it returns an error
//! that names the field, it allocates no more than the input holds, and it never panics.
//! `docs/reference/protocol.md` describes the layouts, with byte vectors in `docs/reference/vectors/`.

mod codec;
pub mod container;
pub mod control;
mod flow_control;
pub mod formats;
pub mod iscsi;
pub mod module;
pub mod nbd;
pub mod pairing;
pub mod preamble;
pub mod record;
pub mod scsi;
pub mod ticket;
pub mod word;

pub use codec::{Reader, WireError, Writer};
pub use container::Container;
pub use control::Control;
pub use flow_control::FlowControl;
pub use module::{MODULE_VERSION, ModuleFeedback, ModuleFrame, ModuleHeader, ModuleKey, ModuleReport};
pub use preamble::Preamble;
pub use record::RecordHeader;
pub use word::Word;

/// The version of everything in this crate. A peer with another version is notified and disconnected.
pub const PROTOCOL_VERSION: u16 = 7;

/// The largest body of a message in bytes, unless an option sets a lower limit.
pub const BODY_BYTES_MAX: usize = 64 << 20;
