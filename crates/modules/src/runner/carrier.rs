//! The carrier of a half's messages: containers on descriptors, a chain of pipes, or a run on shared memory.

use super::chain_end::ChainEnd;
use super::reader::{ReadError, Reader};
use super::writer::Writer;
use crate::now;
use contract::ServiceError;
use contract::{Message, Port, Time};
use links::shm::{Broken, Received, StageEnd};
use std::time::Duration;
use sys::poller::Poller;

/// Polling interval while something waits for room without a notification.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Input and output of a half.
pub(super) enum Carrier {
    /// Containers on descriptors, by port.
    Pipes(Vec<Reader>, Vec<Writer>),
    /// An end of a chain.
    Chain(Box<ChainEnd>),
    /// An end of a run; true after the end of the flow.
    Run(Box<StageEnd>, bool),
}

impl Carrier {
    /// Number of input ports.
    pub(super) fn inputs(&self) -> usize {
        match self {
            Carrier::Pipes(readers, _) => readers.len(),
            Carrier::Chain(_) | Carrier::Run(..) => 1,
        }
    }

    /// Number of output ports.
    pub(super) fn outputs(&self) -> usize {
        match self {
            Carrier::Pipes(_, writers) => writers.len(),
            Carrier::Chain(_) | Carrier::Run(..) => 1,
        }
    }

    /// Reads from the ports for which `is_open` returns true. Returns true if one is always ready (a file).
    pub(super) fn receive(&mut self, is_open: impl Fn(usize) -> bool) -> Result<bool, ServiceError> {
        let readers = match self {
            Carrier::Pipes(readers, _) => &mut readers[..],
            Carrier::Chain(chain_end) => std::slice::from_mut(&mut chain_end.reader),
            Carrier::Run(..) => return Ok(false),
        };
        let mut always_ready = false;
        for (index, reader) in readers.iter_mut().enumerate() {
            if is_open(index) && !reader.has_next() {
                let fresh = reader.receive().map_err(read_failed)?;
                always_ready |= fresh && reader.waits_for().is_none();
            }
        }
        Ok(always_ready)
    }

    /// Returns true if a message is ready at a port.
    pub(super) fn has_next(&mut self, index: usize) -> Result<bool, ServiceError> {
        match self {
            Carrier::Pipes(readers, _) => Ok(readers[index].has_next()),
            Carrier::Chain(chain_end) => Ok(chain_end.reader.has_next()),
            Carrier::Run(stage_end, _) => stage_end.has_next().map_err(shared_memory_error),
        }
    }

    /// Receives the next item at a port.
    pub(super) fn next(&mut self, index: usize) -> Result<Option<Received>, ServiceError> {
        match self {
            Carrier::Pipes(readers, _) => {
                let message = readers[index].next_message().map_err(read_failed)?;
                Ok(message.map(|message| Received { message: Some(message), ..Received::default() }))
            }
            Carrier::Chain(chain_end) => chain_end.next().map_err(read_failed),
            Carrier::Run(stage_end, has_ended) => {
                let item = stage_end.receive().map_err(shared_memory_error)?;
                *has_ended |= item.as_ref().is_some_and(|item| item.is_end);
                Ok(item.filter(|item| !item.is_end))
            }
        }
    }

    /// Returns true if a port has ended and everything before the end was taken.
    pub(super) fn has_ended(&self, index: usize) -> bool {
        match self {
            Carrier::Pipes(readers, _) => readers[index].has_ended(),
            Carrier::Chain(chain_end) => chain_end.reader.has_ended(),
            Carrier::Run(_, has_ended) => *has_ended,
        }
    }

    /// Returns true if the output of another message fits.
    pub(super) fn has_room(&self) -> bool {
        match self {
            Carrier::Pipes(_, writers) => writers.iter().all(Writer::has_room),
            Carrier::Chain(chain_end) => chain_end.writer.has_room(),
            Carrier::Run(stage_end, _) => !stage_end.is_blocked(),
        }
    }

    /// Sends a message by a port. Returns it if it is too large for a container.
    pub(super) fn push(&mut self, index: usize, message: Message) -> Result<Option<Message>, ServiceError> {
        match self {
            Carrier::Pipes(_, writers) => Ok(writers[index].push(message).err()),
            Carrier::Chain(chain_end) => Ok(chain_end.push(message).err()),
            Carrier::Run(stage_end, _) => {
                stage_end.send(Port::MAIN, message).map(|()| None).map_err(shared_memory_error)
            }
        }
    }

    /// Writes the output of ports that have a full burst.
    pub(super) fn flush_bursts(&mut self, now: Time) -> Result<(), ServiceError> {
        match self {
            Carrier::Pipes(_, writers) => {
                writers.iter_mut().filter(|writer| writer.has_burst()).try_for_each(|w| flush(w, now))
            }
            // Messages are written together with the words that complete them.
            Carrier::Chain(_) | Carrier::Run(..) => Ok(()),
        }
    }

    /// Returns true if acknowledgements are sent in order with the messages ([`Carrier::cover`]).
    pub(super) fn has_covers(&self) -> bool {
        !matches!(self, Carrier::Pipes(..))
    }

    /// Sends an acknowledgement: all output of the host's first `covers` messages has been sent.
    pub(super) fn cover(&mut self, covers: u64) -> Result<(), ServiceError> {
        match self {
            Carrier::Pipes(..) => {}
            Carrier::Chain(chain_end) => chain_end.cover(covers),
            Carrier::Run(stage_end, _) => stage_end.cover(covers).map_err(shared_memory_error)?,
        }
        Ok(())
    }

    /// Marks the next message sent: messages were lost before it.
    pub(super) fn mark_gap(&mut self) {
        match self {
            Carrier::Pipes(..) => {}
            Carrier::Chain(chain_end) => chain_end.mark_gap(),
            Carrier::Run(stage_end, _) => stage_end.mark_gap(),
        }
    }

    /// Sends the end of the flow. Pipes signal it when they are closed.
    pub(super) fn end(&mut self) -> Result<(), ServiceError> {
        match self {
            Carrier::Pipes(..) | Carrier::Chain(_) => Ok(()),
            Carrier::Run(stage_end, _) => stage_end.end().map_err(shared_memory_error),
        }
    }

    /// Writes as far as there is room.
    pub(super) fn flush(&mut self, now: Time) -> Result<(), ServiceError> {
        match self {
            Carrier::Pipes(_, writers) => writers.iter_mut().try_for_each(|writer| flush(writer, now)),
            Carrier::Chain(chain_end) => {
                chain_end.flush(now).map_err(|error| ServiceError::os("writing to the next process", error))
            }
            Carrier::Run(stage_end, _) => stage_end.flush().map_err(shared_memory_error),
        }
    }

    /// Returns true if the next process of a chain has ended. The runner reports why.
    pub(super) fn is_disconnected(&self) -> bool {
        matches!(self, Carrier::Chain(chain_end) if chain_end.is_disconnected)
    }

    /// Returns true if everything is written.
    pub(super) fn is_written(&self) -> bool {
        match self {
            Carrier::Pipes(_, writers) => writers.iter().all(|writer| writer.waiting() == 0),
            Carrier::Chain(chain_end) => chain_end.writer.waiting() == 0,
            Carrier::Run(stage_end, _) => !stage_end.is_blocked(),
        }
    }

    /// Closes the outputs, so that readers see the end.
    pub(super) fn close(&mut self) {
        match self {
            Carrier::Pipes(_, writers) => writers.iter_mut().for_each(Writer::close),
            Carrier::Chain(chain_end) => chain_end.writer.close(),
            Carrier::Run(..) => {}
        }
    }

    /// Registers with `poller`, for input if `reads`. Returns when to continue otherwise, at once if there is input
    /// already.
    pub(super) fn register(
        &mut self,
        reads: bool,
        poller: &mut Poller,
    ) -> Result<Option<Time>, ServiceError> {
        let (readers, writers) = match self {
            Carrier::Pipes(readers, writers) => (&readers[..], &writers[..]),
            Carrier::Chain(chain_end) => {
                (std::slice::from_ref(&chain_end.reader), std::slice::from_ref(&chain_end.writer))
            }
            Carrier::Run(stage_end, _) => {
                let mut wake = None;
                if stage_end.is_blocked() {
                    let has_room = stage_end.wait_for_room().map_err(shared_memory_error)?;
                    wake = Some(if has_room { Time::ZERO } else { now().after(POLL_INTERVAL) });
                } else if reads && stage_end.go_to_sleep().map_err(shared_memory_error)? {
                    wake = Some(Time::ZERO);
                }
                return Ok(wake);
            }
        };
        let mut wake = None;
        for reader in readers.iter().filter(|reader| reads && !reader.has_ended()) {
            if reader.register(poller) {
                wake = Some(Time::ZERO);
            }
        }
        for at in writers.iter().filter_map(|writer| writer.register(poller)) {
            wake = Some(wake.map_or(at, |known: Time| known.min(at)));
        }
        Ok(wake)
    }

    /// Waits for the registered events, at most `timeout`.
    pub(super) fn wait(&mut self, poller: &mut Poller, timeout: Option<Duration>) -> std::io::Result<()> {
        match self {
            Carrier::Pipes(..) | Carrier::Chain(_) => drop(poller.wait(timeout)?),
            Carrier::Run(stage_end, _) => stage_end.sleep(timeout),
        }
        Ok(())
    }

    /// Call this after waiting.
    pub(super) fn wake_up(&mut self) {
        if let Carrier::Run(stage_end, _) = self {
            stage_end.wake_up();
        }
    }
}

fn flush(writer: &mut Writer, now: Time) -> Result<(), ServiceError> {
    match writer.flush(now) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {
            Err(ServiceError::Peer(format!("{}: the reader has closed it", writer.name())))
        }
        Err(error) => Err(ServiceError::os(format!("writing to {}", writer.name()), error)),
    }
}

fn read_failed(error: ReadError) -> ServiceError {
    match error {
        ReadError::Os(error) => ServiceError::os("reading containers", error),
        ReadError::Bytes(problem) => ServiceError::Peer(problem),
    }
}

pub(super) fn shared_memory_error(Broken(problem): Broken) -> ServiceError {
    ServiceError::Peer(format!("shared memory: {problem}"))
}
