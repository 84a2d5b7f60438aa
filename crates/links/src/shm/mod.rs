//! The link that is shared memory (paper N, section 5.1.2): stages in processes of their own hand each other where a
//! message lies, and the message stays where it is.
//!
//! # What is shared
//!
//! A *run* is one or more consecutive stages, each a process, and the host they belong to. Each of them has a
//! *region* of slots that it alone writes; the host's is sealed so that nobody else can (`sys::memory`). A *block*
//! has a ring of descriptors from each process to the next, the last one back to the host: a message of a chain of
//! eight wakes nine processes, not sixteen. An entry of a ring ([`Entry`]) says in which slots a message lies, when
//! it was created, and which of the host's messages it completes.
//!
//! # The difficulties of shared memory (N, section 5.1.3), and what became of them
//!
//! - *The module's author must keep track of the memory used.* Nobody does. A process has a bit for each slot that it
//!   holds, set and cleared by the message's own life in it; who owns the region looks at the bits of all behind it
//!   when it needs a slot (`lender`). The bits of a process that died go with it.
//! - *Messages change their size.* A slot is as large as address space allows, and memory only where it was touched:
//!   N's "large amounts of wasted shared memory" are pages that are not there. A message is a list of pieces, so what
//!   a stage puts in front or behind is a piece of its own region beside pieces of somebody else's, which nobody
//!   copies; a message that is cut becomes two lists that point into the same slot, and messages that are joined, one list.
//! - *Who keeps messages keeps slots.* A process may keep [`Geometry::keeps`] slots. Of what comes beyond that, and of what
//!   is small, it makes a copy and gives the slot back: so a stage that gathers a thousand messages does not stop
//!   its flow. The host keeps what it may have to hand over again in memory of its own, or where it was made: that
//!   slot is nobody's to write as long as anybody holds it (`sys::memory::Slots`).
//! - *Slots batch, and batches are late* (N, section 6.9.2). The host hands over no more messages than keep to a latency
//!   at the flow's rate, however many slots are free; of `slots=N` alone it uses all.
//! - *Wake-ups.* Who sleeps says so, and is woken by an eventfd of its own (`bell`); who is awake costs nobody a system call. Before it
//!   sleeps it looks a moment longer where that has paid (`spin`). An entry is one cache line with its own number in it:
//!   nothing else has to cross from processor to processor for a message to be taken.
//! - *A stage that does nothing to messages* passes on entries, not messages (`pass`). The host knows by the entry that
//!   a message came back as it went, and goes on with the one that it kept (`Given::Back`): nothing is made of pieces.
//!
//! # Orderings
//!
//! - An entry's first word, with its number, is stored with *release* behind the others, which need no order among
//!   themselves, and loaded with *acquire* before them: who sees the number sees what it is the number of. A ring's counts
//!   likewise: who sees the reader's sees it has read, and may write over; who sees the writer's sees the entries.
//! - *Sequentially consistent* is what two words take by which two processes find each other: who sleeps stores that it
//!   does and then looks for entries, who writes stores an entry and then looks who sleeps, each with a fence between
//!   (`Block::go_to_sleep`, `Block::is_to_wake`); of two that do so at once one sees the other. The same goes for who
//!   wants room and who makes some.
//! - *Relaxed* is what only its own process reads back, and what is worth no more than a guess (`pins`, `be_calm`).
//!
//! # Whom to believe
//!
//! The host relies on nothing that a stage wrote: indices and pieces are checked, bytes are copied out of a stage's
//! region before they are used, and of pieces in the host's own region it uses what it put there itself. What cannot
//! be true ends the run's processes, which are started again. Stages of one run see each other's messages; a pair
//! that is isolated is therefore a run of its own.

mod arrival;
mod bell;
mod block;
mod entry;
mod lane;
mod lender;
mod pass;
mod seat;
mod spin;
#[cfg(test)]
mod tests;

pub use block::{Block, Broken, Consumer, Geometry, Producer, SLOTS_MAX, STAGES_MAX};
pub use entry::{Entry, PIECES_MAX, Piece};
pub(crate) use lane::{Given, Lane, geometry, slots};
pub use pass::Passed;
pub use seat::{Came, Seat};
pub(crate) use spin::may_look;
