//! What carries a half's messages: containers on descriptors, a place in a chain of pipes, or one in a run on shared
//! memory.

use super::place::Place;
use super::reader::{ReadError, Reader};
use super::writer::Writer;
use crate::error::RuntimeError;
use crate::share::now;
use contract::{Message, Port, Time};
use links::shm::{Broken, Came, Seat};
use std::time::Duration;
use sys::poller::Poller;

/// Where nobody tells of room, it is looked for so often.
pub(super) const LOOK: Duration = Duration::from_millis(1);

/// A half's ways in and out.
pub(super) enum Ways {
    /// Containers on descriptors, port by port.
    Pipes(Vec<Reader>, Vec<Writer>),
    /// A place in a chain.
    Chain(Box<Place>),
    /// A place in a run; whether its end came.
    Run(Box<Seat>, bool),
}

impl Ways {
    /// How many ports lead in.
    pub(super) fn inputs(&self) -> usize {
        match self {
            Ways::Pipes(readers, _) => readers.len(),
            Ways::Chain(_) | Ways::Run(..) => 1,
        }
    }

    /// How many ports lead out.
    pub(super) fn outputs(&self) -> usize {
        match self {
            Ways::Pipes(_, writers) => writers.len(),
            Ways::Chain(_) | Ways::Run(..) => 1,
        }
    }

    /// Reads what there is, of ports that `is_open`; whether there is always something.
    pub(super) fn receive(&mut self, is_open: impl Fn(usize) -> bool) -> Result<bool, RuntimeError> {
        let readers = match self {
            Ways::Pipes(readers, _) => &mut readers[..],
            Ways::Chain(place) => std::slice::from_mut(&mut place.reader),
            Ways::Run(..) => return Ok(false),
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

    /// Whether there is something at a port.
    pub(super) fn has_next(&mut self, index: usize) -> Result<bool, RuntimeError> {
        match self {
            Ways::Pipes(readers, _) => Ok(readers[index].has_next()),
            Ways::Chain(place) => Ok(place.reader.has_next()),
            Ways::Run(seat, _) => seat.has_next().map_err(broken),
        }
    }

    /// Takes what is next at a port.
    pub(super) fn next(&mut self, index: usize) -> Result<Option<Came>, RuntimeError> {
        match self {
            Ways::Pipes(readers, _) => {
                let message = readers[index].next().map_err(read_failed)?;
                Ok(message.map(|message| Came { message: Some(message), ..Came::default() }))
            }
            Ways::Chain(place) => place.next().map_err(read_failed),
            Ways::Run(seat, has_ended) => {
                let came = seat.receive().map_err(broken)?;
                *has_ended |= came.as_ref().is_some_and(|came| came.is_end);
                Ok(came.filter(|came| !came.is_end))
            }
        }
    }

    /// Whether a port's end came, and all before it was taken.
    pub(super) fn has_ended(&self, index: usize) -> bool {
        match self {
            Ways::Pipes(readers, _) => readers[index].has_ended(),
            Ways::Chain(place) => place.reader.has_ended(),
            Ways::Run(_, has_ended) => *has_ended,
        }
    }

    /// Whether another message may be handled.
    pub(super) fn has_room(&self) -> bool {
        match self {
            Ways::Pipes(_, writers) => writers.iter().all(Writer::has_room),
            Ways::Chain(place) => place.writer.has_room(),
            Ways::Run(seat, _) => !seat.is_blocked(),
        }
    }

    /// Sends a message by a port; one that is too large for it comes back.
    pub(super) fn push(&mut self, index: usize, message: Message) -> Result<Option<Message>, RuntimeError> {
        match self {
            Ways::Pipes(_, writers) => Ok(writers[index].push(message).err()),
            Ways::Chain(place) => Ok(place.push(message).err()),
            Ways::Run(seat, _) => seat.send(Port::MAIN, message).map(|()| None).map_err(broken),
        }
    }

    /// Writes what so much waits of that it pays to write it at once.
    pub(super) fn flush_bursts(&mut self, now: Time) -> Result<(), RuntimeError> {
        match self {
            Ways::Pipes(_, writers) => {
                writers.iter_mut().filter(|writer| writer.has_burst()).try_for_each(|w| flush(w, now))
            }
            // What completes a message goes with it.
            Ways::Chain(_) | Ways::Run(..) => Ok(()),
        }
    }

    /// Whether what is done is said with the messages themselves ([`Ways::cover`]).
    pub(super) fn has_covers(&self) -> bool {
        !matches!(self, Ways::Pipes(..))
    }

    /// Everything that came of the host's first `covers` messages has been pushed.
    pub(super) fn cover(&mut self, covers: u64) -> Result<(), RuntimeError> {
        match self {
            Ways::Pipes(..) => {}
            Ways::Chain(place) => place.cover(covers),
            Ways::Run(seat, _) => seat.cover(covers).map_err(broken)?,
        }
        Ok(())
    }

    /// Something was lost before what is pushed next.
    pub(super) fn tell_gap(&mut self) {
        match self {
            Ways::Pipes(..) => {}
            Ways::Chain(place) => place.tell_gap(),
            Ways::Run(seat, _) => seat.tell_gap(),
        }
    }

    /// Everything has been pushed, and the flow ends; what closes says so otherwise.
    pub(super) fn end(&mut self) -> Result<(), RuntimeError> {
        match self {
            Ways::Pipes(..) | Ways::Chain(_) => Ok(()),
            Ways::Run(seat, _) => seat.end().map_err(broken),
        }
    }

    /// Writes all that there is room for.
    pub(super) fn flush(&mut self, now: Time) -> Result<(), RuntimeError> {
        match self {
            Ways::Pipes(_, writers) => writers.iter_mut().try_for_each(|writer| flush(writer, now)),
            Ways::Chain(place) => {
                place.flush(now).map_err(|error| RuntimeError::os("writing to the next", error))
            }
            Ways::Run(seat, _) => seat.flush().map_err(broken),
        }
    }

    /// Whether nobody is left to write to, and it is for others to say why.
    pub(super) fn is_cut_off(&self) -> bool {
        matches!(self, Ways::Chain(place) if place.is_cut_off)
    }

    /// Whether all is written.
    pub(super) fn is_written(&self) -> bool {
        match self {
            Ways::Pipes(_, writers) => writers.iter().all(|writer| writer.waiting() == 0),
            Ways::Chain(place) => place.writer.waiting() == 0,
            Ways::Run(seat, _) => !seat.is_blocked(),
        }
    }

    /// Lets readers see the end.
    pub(super) fn close(&mut self) {
        match self {
            Ways::Pipes(_, writers) => writers.iter_mut().for_each(Writer::close),
            Ways::Chain(place) => place.writer.close(),
            Ways::Run(..) => {}
        }
    }

    /// Puts what to wait for into the poller, `reads` or not; when to look again otherwise: at once, if there is
    /// something after all.
    pub(super) fn want(&mut self, reads: bool, poller: &mut Poller) -> Result<Option<Time>, RuntimeError> {
        let (readers, writers) = match self {
            Ways::Pipes(readers, writers) => (&readers[..], &writers[..]),
            Ways::Chain(place) => (std::slice::from_ref(&place.reader), std::slice::from_ref(&place.writer)),
            Ways::Run(seat, _) => {
                let mut wake = None;
                if seat.is_blocked() {
                    let has_room = seat.wait_for_room().map_err(broken)?;
                    wake = Some(if has_room { Time::ZERO } else { now().after(LOOK) });
                } else if reads && seat.go_to_sleep(now).map_err(broken)? {
                    wake = Some(Time::ZERO);
                }
                return Ok(wake);
            }
        };
        let mut wake = None;
        for reader in readers.iter().filter(|reader| reads && !reader.has_ended()) {
            if reader.want(poller) {
                wake = Some(Time::ZERO);
            }
        }
        for at in writers.iter().filter_map(|writer| writer.want(poller)) {
            wake = Some(wake.map_or(at, |known: Time| known.min(at)));
        }
        Ok(wake)
    }

    /// Waits for what is wanted, for so long at most.
    pub(super) fn wait(&mut self, poller: &mut Poller, timeout: Option<Duration>) -> std::io::Result<()> {
        match self {
            Ways::Pipes(..) | Ways::Chain(_) => drop(poller.wait(timeout)?),
            Ways::Run(seat, _) => seat.sleep(timeout),
        }
        Ok(())
    }

    /// After waiting.
    pub(super) fn wake_up(&mut self) {
        if let Ways::Run(seat, _) = self {
            seat.wake_up(now);
        }
    }
}

fn flush(writer: &mut Writer, now: Time) -> Result<(), RuntimeError> {
    match writer.flush(now) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {
            Err(RuntimeError::Peer(format!("{}: whoever read it has gone", writer.name())))
        }
        Err(error) => Err(RuntimeError::os(format!("writing to {}", writer.name()), error)),
    }
}

fn read_failed(error: ReadError) -> RuntimeError {
    match error {
        ReadError::Os(error) => RuntimeError::os("reading containers", error),
        ReadError::Bytes(problem) => RuntimeError::Peer(problem),
    }
}

pub(super) fn broken(Broken(what): Broken) -> RuntimeError {
    RuntimeError::Peer(format!("shared memory: {what}"))
}
