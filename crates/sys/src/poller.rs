//! Waiting for descriptors and a time, to the nanosecond (`epoll_pwait2(2)`).

use rustix::event::epoll::{self, EventData, EventFlags};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

/// Descriptors that one thread waits for. It remembers what the kernel was told, so that waiting for the
/// same descriptors again costs one system call.
#[derive(Debug)]
pub struct Poller {
    epoll: OwnedFd,
    /// What the kernel has: descriptor to (readable, writable).
    told: HashMap<RawFd, (bool, bool)>,
    /// What the coming wait is for.
    wanted: Vec<(RawFd, (bool, bool))>,
}

impl Poller {
    /// A poller that waits for nothing.
    pub fn new() -> io::Result<Poller> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Poller { epoll, told: HashMap::new(), wanted: Vec::new() })
    }

    /// The coming wait is also for this descriptor.
    pub fn want(&mut self, descriptor: BorrowedFd<'_>, read: bool, write: bool) {
        let number = descriptor.as_raw_fd();
        match self.wanted.iter_mut().find(|(known, _)| *known == number) {
            Some((_, what)) => *what = (what.0 | read, what.1 | write),
            None => self.wanted.push((number, (read, write))),
        }
    }

    /// Forgets a descriptor; must be called before one is closed that was ever wanted, since the number
    /// may come back as another file.
    pub fn forget(&mut self, descriptor: BorrowedFd<'_>) {
        if self.told.remove(&descriptor.as_raw_fd()).is_some() {
            let _ = epoll::delete(&self.epoll, descriptor);
        }
    }

    /// Waits until one of the wanted descriptors is ready or `timeout` has passed (`None`: for ever),
    /// and wants nothing afterwards. Says whether a descriptor is ready.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<bool> {
        let wanted = std::mem::take(&mut self.wanted);
        let told = self.tell(&wanted);
        self.wanted = wanted;
        self.wanted.clear();
        told?;
        self.sleep(timeout)
    }

    fn tell(&mut self, wanted: &[(RawFd, (bool, bool))]) -> io::Result<()> {
        for &(number, what) in wanted {
            if self.told.get(&number) == Some(&what) {
                continue;
            }
            let mut flags = EventFlags::empty();
            flags.set(EventFlags::IN, what.0);
            flags.set(EventFlags::OUT, what.1);
            // SAFETY: the number was taken from a live descriptor by `want`, in this same round.
            let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
            let data = EventData::new_u64(number as u64);
            let known = self.told.contains_key(&number);
            let result = match known {
                true => epoll::modify(&self.epoll, descriptor, data, flags),
                false => epoll::add(&self.epoll, descriptor, data, flags),
            };
            match result {
                // The number was closed and came back, or was never forgotten: tell the kernel anew.
                Err(rustix::io::Errno::NOENT) => epoll::add(&self.epoll, descriptor, data, flags)?,
                Err(rustix::io::Errno::EXIST) => epoll::modify(&self.epoll, descriptor, data, flags)?,
                other => other?,
            }
            self.told.insert(number, what);
        }
        if self.told.len() > wanted.len() {
            self.withdraw(wanted);
        }
        Ok(())
    }

    /// Tells the kernel of descriptors no longer wanted.
    fn withdraw(&mut self, wanted: &[(RawFd, (bool, bool))]) {
        let epoll = &self.epoll;
        self.told.retain(|number, _| {
            let keep = wanted.iter().any(|(known, _)| known == number);
            if !keep {
                // SAFETY: the number is only passed to the kernel, which answers EBADF if it is closed.
                let _ = epoll::delete(epoll, unsafe { BorrowedFd::borrow_raw(*number) });
            }
            keep
        });
    }

    fn sleep(&self, timeout: Option<Duration>) -> io::Result<bool> {
        let timeout = timeout.map(|wait| libc::timespec {
            tv_sec: libc::time_t::try_from(wait.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: wait.subsec_nanos().into(),
        });
        let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 8];
        // SAFETY: the event array and the timeout live through the call, and its length is given.
        let count = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                self.epoll.as_fd().as_raw_fd(),
                events.as_mut_ptr(),
                events.len() as libc::c_int,
                timeout,
                std::ptr::null::<libc::sigset_t>(),
                0usize,
            )
        };
        match count {
            0.. => Ok(count > 0),
            _ => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => Ok(false),
                error => Err(error),
            },
        }
    }
}
