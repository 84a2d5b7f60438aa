//! Runs a half that leaves messages unchanged. In a chain of pipes it moves all bytes unread (`splice(2)`); in a
//! run on shared memory it forwards entries ([`links::shm::Forwarded`]). Control frames are read and ignored.

use super::carrier::{POLL_INTERVAL, shared_memory_error};
use super::chain_end::ChainEnd;
use super::control::Control;
use contract::ServiceError;
use links::shm::{Forwarded, StageEnd};
use rustix::io::Errno;
use rustix::pipe::{SpliceFlags, splice};
use std::io;
use std::os::fd::AsFd;
use sys::poller::Poller;

/// More than the capacity of a pipe.
const MOST_BYTES: usize = 1 << 20;
const FLAGS: SpliceFlags = SpliceFlags::MOVE.union(SpliceFlags::NONBLOCK);

/// Forwards entries from one ring to the next, until the flow ends.
pub(super) fn forward(mut stage_end: Box<StageEnd>, control: &mut Control) -> Result<(), ServiceError> {
    let failed = |error: io::Error| ServiceError::os("the control channel", error);
    sys::thread::be_punctual();
    control.flush().map_err(failed)?;
    let mut has_control = true;
    loop {
        if has_control {
            control.receive().map_err(failed)?;
            while control.take().is_some() {}
        }
        let mut passed = stage_end.forward().map_err(shared_memory_error)?;
        if passed == Forwarded::NoRoom {
            stage_end.prepare_sleep();
            passed = stage_end.forward().map_err(shared_memory_error)?;
        }
        let is_unsent = !control.flush().map_err(failed)?;
        match passed {
            Forwarded::End => return Ok(()),
            Forwarded::All => {}
            Forwarded::Nothing if stage_end.go_to_sleep().map_err(shared_memory_error)? => {}
            // No notification comes when the control channel has room: poll it.
            Forwarded::Nothing if !is_unsent => stage_end.sleep(None),
            Forwarded::Nothing | Forwarded::NoRoom => stage_end.sleep(Some(POLL_INTERVAL)),
        }
        stage_end.wake_up();
        has_control = stage_end.take_control();
    }
}

/// Moves bytes from one pipe to the next, until the flow ends.
pub(super) fn splice_all(chain_end: ChainEnd, control: &mut Control) -> Result<(), ServiceError> {
    let Some((input, output)) = chain_end.into_ends() else { return Ok(()) };
    let os = |context: &'static str| move |error: io::Error| ServiceError::os(context, error);
    let mut poller = Poller::new().map_err(os("epoll"))?;
    let mut is_full = false;
    loop {
        control.flush().map_err(os("the control channel"))?;
        control.register(&mut poller);
        match is_full {
            true => poller.register(output.as_fd(), false, true),
            false => poller.register(input.as_fd(), true, false),
        }
        poller.wait(None).map_err(os("waiting"))?;
        if control.is_ready(&poller) {
            control.receive().map_err(os("the control channel"))?;
            while control.take().is_some() {}
        }
        is_full = match splice(&input, None, &output, None, MOST_BYTES, FLAGS) {
            Ok(0) => return Ok(()),
            Ok(_) | Err(Errno::INTR) => false,
            // There may be no input, or no room for output.
            Err(Errno::AGAIN) => rustix::io::ioctl_fionread(&input).is_ok_and(|bytes| bytes > 0),
            // The next process has ended, and the chain with it.
            Err(Errno::PIPE) => return Ok(()),
            Err(error) => return Err(ServiceError::os("splice", error)),
        };
    }
}
