//! Programs that carry records ([`contract::ProgramTransport`]), on the device host. The application host starts its program, and
//! tells that with `Unlinked`.
//!
//! | state | event | next state | action |
//! |---|---|---|---|
//! | `Idle` | `Unlinked`, sooner than [`RETRY_INTERVAL`] after the last start | `Failed` | |
//! | `Idle` | `Unlinked` | `Meeting` | drop the former data connection, start the program |
//! | `Meeting` | the introduction of the application host arrives | `Idle` | give the socket to the worker, confirm with `Linked` |
//! | `Meeting` | the program ends, or something else arrives | `Failed` | tell the user |
//! | `Meeting` | `Unlinked`, and the program is older than [`FRESH`] | `Meeting` | start the program again: it may have met one that is gone |
//! | `Failed` | its time has come, or `Unlinked` | `Meeting` | start the program |
//! | any | the control channel breaks | `Idle` | |

use super::Session;
use crate::events::Event;
use contract::{End, Meeting, SealKeys, Time};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;
use wire::preamble::Introduction;
use wire::{Control, Preamble};
use worker::Command;

/// A waiting program of this age is kept when the application host starts its own.
const FRESH: Duration = Duration::from_secs(4);
/// Interval between two looks for the introduction: an eighth of the time so far, within these limits. The program's output cannot
/// wake this host, because a part of a message would wake it without end.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);
const LOOK_INTERVAL_MAX: Duration = Duration::from_millis(500);
/// Delay before a program that has ended is started again; it doubles.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
const RETRY_INTERVAL_MAX: Duration = Duration::from_secs(5);

/// The program of a driver.
pub(crate) enum ProgramState {
    /// No program waits for the application host's.
    Idle,
    Meeting {
        socket: OwnedFd,
        since: Time,
        look_at: Time,
        /// Delay before the next start, if this program ends.
        retry_interval: Duration,
    },
    Failed {
        at: Time,
        retry_interval: Duration,
    },
}

impl Session {
    /// Handles the start of the application host's program.
    pub(super) fn handle_program_begun(&mut self, driver: u32, now: Time) {
        let Some(open) = self.common.drivers.get_mut(&driver) else { return };
        let start_at = open.own.program_begun_at.after(RETRY_INTERVAL);
        match open.own.program {
            ProgramState::Idle if now < start_at => {
                open.own.program = ProgramState::Failed { at: start_at, retry_interval: RETRY_INTERVAL };
            }
            ProgramState::Meeting { since, .. } if now < since.after(FRESH) => {}
            ProgramState::Failed { retry_interval, .. } => self.begin_program(driver, retry_interval, now),
            _ => self.begin_program(driver, RETRY_INTERVAL, now),
        }
    }

    fn begin_program(&mut self, driver: u32, retry_interval: Duration, now: Time) {
        let peer = self.address.ip();
        let Some(open) = self.common.drivers.get_mut(&driver) else { return };
        let Some(program) = open.own.transport.class.program() else { return };
        let meeting = Meeting { end: End::Accepted, peer, device: &open.name, driver };
        // The former program ends first, because the new one may use the same place.
        (open.own.program, open.own.program_begun_at) = (ProgramState::Idle, now);
        self.common.workers.send(Command::Unlink { driver });
        open.own.program = match program.begin(&meeting, &open.own.transport.options) {
            Ok(socket) => ProgramState::Meeting { socket, since: now, look_at: now, retry_interval },
            Err(_) => ProgramState::Failed { at: now.after(retry_interval), retry_interval },
        };
    }

    /// Looks for introductions, and starts programs again that have ended.
    pub(super) fn run_programs(&mut self, now: Time, emit: &mut dyn FnMut(Event)) {
        let (mut found, mut due) = (Vec::new(), Vec::new());
        for (&driver, open) in &mut self.common.drivers {
            let looked = match &mut open.own.program {
                ProgramState::Failed { at, retry_interval } if now >= *at => {
                    due.push((driver, (*retry_interval * 2).min(RETRY_INTERVAL_MAX)));
                    continue;
                }
                ProgramState::Meeting { socket, since, look_at, .. } if now >= *look_at => {
                    *look_at = now.after((now.since(*since) / 8).clamp(LOOK_INTERVAL, LOOK_INTERVAL_MAX));
                    open.own.transport.class.program().map(|program| program.look(socket.as_fd()))
                }
                _ => continue,
            };
            match looked {
                Some(Ok(None)) | None => {}
                Some(Ok(Some(said))) => found.push((driver, Ok(said))),
                Some(Err(error)) => found.push((driver, Err(error.to_string()))),
            }
        }
        for (driver, looked) in found {
            let keys = looked.and_then(|said| self.accept_from_program(driver, &said));
            let Some(open) = self.common.drivers.get_mut(&driver) else { continue };
            let ProgramState::Meeting { socket, retry_interval, .. } =
                std::mem::replace(&mut open.own.program, ProgramState::Idle)
            else {
                continue;
            };
            match keys {
                Ok(keys) => {
                    let transport = Some(open.own.transport.clone());
                    self.common.workers.send(Command::Link { driver, transport, socket, keys });
                    // If the control channel fails, the next turn notices.
                    let _ = self.common.link.send(&Control::Linked { driver });
                }
                Err(problem) => {
                    let problem = format!("{}: {problem}; starting it again", open.name);
                    emit(Event::Warning { problem });
                    open.own.program = ProgramState::Failed { at: now.after(retry_interval), retry_interval };
                }
            }
        }
        for (driver, retry_interval) in due {
            self.begin_program(driver, retry_interval, now);
        }
    }

    /// Checks that this session's peer made the introduction, for this driver. Returns the keys of the connection.
    fn accept_from_program(&mut self, driver: u32, said: &[u8]) -> Result<Option<SealKeys>, String> {
        let stranger = || "the program brought the introduction of another connection".to_string();
        match self.common.link.keys() {
            Some(keys) => {
                let said = Introduction::parse(said).map_err(|_| stranger())?;
                let is_its = said.driver == driver && !said.is_way;
                keys.accept(&said).filter(|_| is_its).map(Some).ok_or_else(stranger)
            }
            None => match Preamble::parse(said) {
                Ok(Preamble::Data { session, driver: named }) if (session, named) == (self.token, driver) => {
                    Ok(None)
                }
                _ => Err(stranger()),
            },
        }
    }

    /// Returns the time of the next work of [`Session::run_programs`].
    pub(super) fn programs_at(&self) -> Time {
        let at = |state: &ProgramState| match state {
            ProgramState::Idle => Time(u64::MAX),
            ProgramState::Meeting { look_at, .. } => *look_at,
            ProgramState::Failed { at, .. } => *at,
        };
        self.common.drivers.values().map(|open| at(&open.own.program)).min().unwrap_or(Time(u64::MAX))
    }
}
