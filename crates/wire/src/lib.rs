//! Bytes to containers, records and control messages, and back.
//!
//! Nothing here does I/O or reads a clock. Every parser is checked: it returns an error that names
//! the field for any input whatever, allocates no more than the input holds, and never panics.
//! The layouts are described in `docs/protocol.md`, with byte vectors in `docs/vectors/`.

mod codec;
pub mod container;
pub mod control;
pub mod formats;
pub mod module;
pub mod pairing;
pub mod preamble;
pub mod record;
pub mod ticket;
pub mod word;

pub use codec::{Reader, WireError, Writer};
pub use container::Container;
pub use control::Control;
pub use module::{MODULE_VERSION, ModuleFeedback, ModuleFrame, ModuleHeader, ModuleKey, ModuleReport};
pub use preamble::Preamble;
pub use record::RecordHeader;
pub use ticket::Ticket;
pub use word::Word;

/// The version of everything in this room. Peers with another version are told so and dropped.
pub const PROTOCOL_VERSION: u16 = 4;

/// Largest body of one message, in bytes, unless an option sets less.
pub const BODY_BYTES_MAX: usize = 64 << 20;
