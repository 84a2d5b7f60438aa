//! Writes that the disk has answered and not made durable. The disk may lose them: its host loses its power, or it is unplugged. It is
//! another instance then, and each connection fails one flush or forced request, as Linux reports a lost write once.
//!
//! | state of a connection | event | next |
//! |---|---|---|
//! | whole | another instance is described, and writes were answered and not flushed | lossy |
//! | whole | the disk fails a flush or a forced request of another connection | lossy |
//! | whole, lossy | the disk fails a flush or a forced request of this connection | reporting |
//! | lossy | a flush or a forced request is to be sent | reporting: it fails instead |
//! | reporting | its reply is in the pipe | whole |
//!
//! All of it is in the memory that outlives the worker, except for the flushes on their way: they are sent again after a restart.

use super::memory::{CONNECTIONS_MAX, DiskRecord, LOSSY, Place};
use std::collections::BTreeMap;
use std::sync::Arc;
use sys::memory::Shared;
use wire::formats::block::{Command, Request};
use wire::nbd::{self, Asked};

/// The writes of all connections that are not durable.
pub(super) struct Unflushed {
    memory: Arc<Shared>,
    record: DiskRecord,
    /// The answered writes that each flush without an answer covers, by the id of the flush.
    flushes: BTreeMap<u64, u64>,
}

impl Unflushed {
    pub(super) fn new(memory: Arc<Shared>) -> Unflushed {
        Unflushed { record: DiskRecord::new(memory.clone()), memory, flushes: BTreeMap::new() }
    }

    /// Handles the description of the disk. All requests without an answer are sent again.
    pub(super) fn handle_described(&mut self, instance: u64) {
        self.flushes.clear();
        if self.record.instance() == instance {
            return;
        }
        if self.record.written() != self.record.flushed() {
            // Also those that this worker does not have yet.
            (0..CONNECTIONS_MAX).for_each(|place| Place::new(self.memory.clone(), place).save_loss(LOSSY));
            self.record.save_flushed(self.record.written());
        }
        self.record.save_instance(instance);
    }

    /// Handles that the disk has failed a flush or a forced request of a connection. The kernel of the disk's host reports a lost write to
    /// one flush, so those of the other connections may succeed.
    pub(super) fn handle_failure(&self, place: usize, sequence: u64) {
        let own = Place::new(self.memory.clone(), place);
        // A lossy connection fails because of the loss that has made it so.
        if own.loss() != LOSSY {
            let others = (0..CONNECTIONS_MAX).filter(|other| *other != place);
            others.for_each(|other| Place::new(self.memory.clone(), other).save_loss(LOSSY));
        }
        own.save_loss(sequence);
    }

    /// Handles that a request is sent.
    pub(super) fn handle_sent(&mut self, request: &Request) {
        if request.command == Command::Flush {
            self.flushes.insert(request.id, self.record.written());
        }
    }

    /// Handles the answer to a request, before the client has it.
    pub(super) fn handle_answer(&mut self, id: u64, request: &nbd::Request, is_done: bool) {
        let covered = self.flushes.remove(&id);
        match (request.asked, covered) {
            _ if !is_done => {}
            (_, Some(written)) => self.record.save_flushed(written.max(self.record.flushed())),
            (Asked::Do(command), _) if command.changes_data() && !request.force => {
                self.record.save_written(self.record.written().wrapping_add(1));
            }
            _ => {}
        }
    }
}
