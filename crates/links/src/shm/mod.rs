//! The shared-memory link: stages in processes of their own pass each other descriptors of messages, and each
//! message stays where it was written. See "Networked Device Driver Architecture (2012)", 5.1.2.
//!
//! # Layout
//!
//! A *run* is the host and one or more consecutive stages, each of them a process. Every process has a *region* of
//! slots that only it writes; the host seals its region (`sys::memory`). A *block*, mapped by all, has a ring of
//! descriptors from each process to the next one, and the last ring leads back to the host:
//!
//! ```text
//!          ring 0          ring 1            ring n
//!   host ---------> stage 1 ---------> ... stage n ---------> host
//!    |                |                       |
//!   region 0        region 1               region n        (slots: only the owner writes them)
//! ```
//!
//! So a message of a chain of eight stages wakes nine processes, not sixteen. An entry of a ring ([`Entry`]) names
//! the slots of a message, its creation time, and the host's messages that it completes (`covers`, a cumulative
//! acknowledgement).
//!
//! # The difficulties of shared memory (ibid., 5.1.3) and their solutions
//!
//! - *The author of a module must keep track of the memory in use.* Here the link does. A process has a bit for
//!   each slot that it holds; the lifetime of the message sets and clears it. The owner of a region reads the bits
//!   of all later processes when it needs a slot (`lender`). The bits of a process that died are discarded with its
//!   block.
//! - *Message sizes vary.* A slot reserves address space; the kernel allocates memory only for pages that were
//!   touched, so the "large amounts of wasted shared memory" do not arise. A message is a list of pieces. A header
//!   that a stage adds is a piece in its own region, next to the pieces of other regions, which are not copied. A
//!   message that is cut becomes two lists that point into the same slot; joined messages become one list.
//! - *A stage that keeps messages keeps slots.* A process may hold [`Geometry::held_max`] slots. It copies any further
//!   message, and any small one, and releases the slot at once. So a stage that gathers a thousand messages does
//!   not stop its flow. The host keeps the messages that it may have to send again in its own memory.
//! - *Slots batch messages, and batches add latency* (ibid., 6.9.2). The host keeps only as many messages in flight
//!   as a latency target allows at the flow's rate, however many slots are free. With `slots=N` alone it uses all
//!   of them.
//! - *Wake-ups cost system calls.* A process sets a flag before it sleeps, and another one wakes it through its
//!   eventfd (`wakeup`). Waking costs nothing while the process is awake. No process polls: a hop within a host takes
//!   microseconds and the network milliseconds, but a process that polls occupies a processor. An entry is one cache
//!   line and carries its own sequence number, so a reader fetches one line per message.
//! - *A stage may leave messages unchanged.* Such a stage forwards entries and never builds a message (`forward`).
//!   The host recognizes an entry that returns unchanged and continues with its own copy of the message
//!   ([`Returned::Unchanged`]).
//!
//! # Memory ordering
//!
//! - The writer stores the first word of an entry, which has the sequence number, with *release* after the other
//!   words; the reader loads it with *acquire* before them. The other words need no order among themselves. The
//!   counters of a ring use the same pair: a writer that sees the reader's counter may overwrite the entries before
//!   it; a reader that sees the writer's counter sees the entries.
//! - *Sequential consistency* is needed where two processes must not miss each other. A process that sleeps sets
//!   its flag and then looks for entries; a writer stores an entry and then looks at the flag; each has a fence in
//!   between ([`Block::mark_asleep`], [`Block::claim_wakeup`]). If both happen at once, at least one sees the
//!   other. The same holds for waiting for room and freeing room.
//! - *Relaxed* is used for words that only their own process reads back, and for hints (`held_count`).
//!
//! # Trust
//!
//! The host trusts nothing that a stage wrote. It checks indices and pieces, copies bytes out of a stage's region
//! before it uses them, and for pieces in its own region uses the bytes that it put there itself. Anything
//! impossible is a [`Broken`] error: the processes of the run are killed and restarted. Stages of one run see each
//! other's messages, so an isolated pair is a run of its own, and so is a program of the user, which implements this layout with
//! `sdk/c/outboard_module.h`.

mod arrival;
mod block;
mod entry;
mod forward;
mod host_end;
mod lender;
mod stage_end;
#[cfg(test)]
mod tests;
mod wakeup;

pub use block::{Block, Broken, Consumer, Geometry, Producer, SLOTS_MAX, STAGES_MAX};
pub use entry::{Entry, PIECES_MAX, Piece};
pub use forward::Forwarded;
pub use host_end::{HostEnd, Returned, geometry};
pub use stage_end::{Received, StageEnd};
