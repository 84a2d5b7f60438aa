//! A half that passes on each message as it is: in a chain of pipes what comes is moved on, words and all, and never read
//! (`splice(2)`); in a run on shared memory its descriptors are ([`links::shm::Passed`]). What is said on the control
//! channel is heard and means nothing.

use super::control::Control;
use super::place::Place;
use super::ways::{LOOK, broken};
use crate::error::RuntimeError;
use crate::share::now;
use links::shm::{Passed, Seat};
use rustix::io::Errno;
use rustix::pipe::{SpliceFlags, splice};
use std::io;
use std::os::fd::AsFd;
use sys::poller::Poller;

/// More than a pipe holds.
const MOST_BYTES: usize = 1 << 20;
const FLAGS: SpliceFlags = SpliceFlags::MOVE.union(SpliceFlags::NONBLOCK);

/// Moves everything from one ring to the next, to the end.
pub(super) fn pass_on(mut seat: Box<Seat>, control: &mut Control) -> Result<(), RuntimeError> {
    let failed = |error: io::Error| RuntimeError::os("the control channel", error);
    sys::thread::be_punctual();
    control.flush().map_err(failed)?;
    let mut was_told = true;
    loop {
        if was_told {
            control.receive().map_err(failed)?;
            while control.take().is_some() {}
        }
        let mut passed = seat.pass_on().map_err(broken)?;
        if passed == Passed::NoRoom {
            seat.want_room();
            passed = seat.pass_on().map_err(broken)?;
        }
        let is_unsent = !control.flush().map_err(failed)?;
        match passed {
            Passed::End => return Ok(()),
            Passed::All => {}
            Passed::Nothing if seat.go_to_sleep(now).map_err(broken)? => {}
            // Where nobody tells of room, it is looked for.
            Passed::Nothing if !is_unsent => seat.sleep(None),
            Passed::Nothing | Passed::NoRoom => seat.sleep(Some(LOOK)),
        }
        seat.wake_up(now);
        was_told = seat.was_told();
    }
}

/// Moves everything from one pipe to another, to the end.
pub(super) fn splice_on(place: Place, control: &mut Control) -> Result<(), RuntimeError> {
    let Some((input, output)) = place.into_ends() else { return Ok(()) };
    let os = |what: &'static str| move |error: io::Error| RuntimeError::os(what, error);
    let mut poller = Poller::new().map_err(os("epoll"))?;
    let mut is_full = false;
    loop {
        control.flush().map_err(os("the control channel"))?;
        control.want(&mut poller);
        match is_full {
            true => poller.want(output.as_fd(), false, true),
            false => poller.want(input.as_fd(), true, false),
        }
        poller.wait(None).map_err(os("waiting"))?;
        if control.is_ready(&poller) {
            control.receive().map_err(os("the control channel"))?;
            while control.take().is_some() {}
        }
        is_full = match splice(&input, None, &output, None, MOST_BYTES, FLAGS) {
            Ok(0) => return Ok(()),
            Ok(_) | Err(Errno::INTR) => false,
            // Either there is nothing, or no room.
            Err(Errno::AGAIN) => rustix::io::ioctl_fionread(&input).is_ok_and(|bytes| bytes > 0),
            // The next of the chain has gone, and with it all.
            Err(Errno::PIPE) => return Ok(()),
            Err(error) => return Err(RuntimeError::os("moving on what came", error)),
        };
    }
}
