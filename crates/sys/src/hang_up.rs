//! Devices whose drivers report that they are gone (`poll(2)`, `POLLHUP`).

use crate::poller::PollSet;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, fstat};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Some devices. The watch is itself a descriptor, which becomes readable when one of them hangs up. It may be dropped
/// while a [`Poller`](crate::poller::Poller) knows it, and before the devices are passed on.
#[derive(Debug)]
pub struct HangUpWatch(PollSet);

impl HangUpWatch {
    /// Watches these descriptors. Returns `None` if none of them is a device that can hang up.
    pub fn new(descriptors: &[OwnedFd]) -> Option<HangUpWatch> {
        let set = PollSet::new().ok()?;
        let mut devices = (0..).zip(descriptors.iter().filter(|descriptor| is_device(descriptor))).peekable();
        devices.peek()?;
        // A hang-up is reported although nothing is asked for.
        let are_watched = devices.all(|(name, descriptor)| set.add(descriptor, name, false, false).is_ok());
        are_watched.then_some(HangUpWatch(set))
    }
}

impl AsFd for HangUpWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn is_device(descriptor: &OwnedFd) -> bool {
    fstat(descriptor).is_ok_and(|known| FileType::from_raw_mode(known.st_mode) == FileType::CharacterDevice)
}

/// Returns true if the driver of an open device reports that the device is gone.
pub fn is_hung_up(descriptor: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(descriptor, PollFlags::empty())];
    is_device(descriptor)
        && poll(&mut polled, Some(&Timespec::default())).is_ok()
        && polled[0].revents().contains(PollFlags::HUP)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::poller::Poller;
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use std::fs::File;
    use std::time::Duration;

    #[test]
    fn a_terminal_hangs_up_when_its_master_closes() {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        let terminal = OwnedFd::from(File::options().read(true).write(true).open(name).unwrap());
        let devices = [terminal];
        let (watch, mut poller) = (HangUpWatch::new(&devices).unwrap(), Poller::new().unwrap());
        let is_ready = |poller: &mut Poller, wait| {
            poller.register(watch.as_fd(), true, false);
            poller.wait(wait).unwrap()
        };
        assert!(!is_ready(&mut poller, Some(Duration::ZERO)) && !is_hung_up(&devices[0]));
        drop(master);
        assert!(is_ready(&mut poller, None) && is_hung_up(&devices[0]));
        assert!(HangUpWatch::new(&[]).is_none());
    }
}
