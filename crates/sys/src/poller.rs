//! Waiting for descriptors and a time, to the nanosecond (`epoll_pwait2(2)`).

use rustix::event::epoll::{self, EventData, EventFlags};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Whether the kernel lets one wait for this descriptor (`epoll_ctl(2)`: EPERM if not). What it does not, a
/// regular file or `/dev/null`, is always ready.
pub fn can_wait(descriptor: BorrowedFd<'_>) -> rustix::io::Result<bool> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    match epoll::add(&epoll, descriptor, EventData::new_u64(0), EventFlags::empty()) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::PERM) => Ok(false),
        Err(error) => Err(error),
    }
}

const EVENTS_AT_ONCE: usize = 64;

/// How many descriptors were closed since the program began without a poller being told that may know them, such
/// as those of [`PollSet`]s. Their numbers come back as other files.
static CLOSED: AtomicU64 = AtomicU64::new(0);

/// Has every poller tell the kernel all anew, since a descriptor was closed without its poller at hand to
/// [`Poller::forget`] it.
pub fn note_closed() {
    CLOSED.fetch_add(1, Ordering::Release);
}

/// What a descriptor is waited for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Interests {
    read: bool,
    write: bool,
    /// Only what came since the last wait counts.
    news: bool,
}

/// What is known of one descriptor number.
#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    /// What the kernel has.
    told: Option<Interests>,
    /// What the coming wait is for.
    wanted: Option<Interests>,
    /// The last wait found it ready.
    ready: bool,
}

/// Descriptors that one thread waits for. It remembers what the kernel was told, so that waiting for the
/// same descriptors again costs one system call.
#[derive(Debug)]
pub struct Poller {
    epoll: OwnedFd,
    /// By descriptor number: the kernel gives the lowest that is free.
    slots: Vec<Slot>,
    /// Numbers that the kernel was told of.
    told: Vec<RawFd>,
    /// Numbers that the coming wait is for, as often as they were wanted.
    wanted: Vec<RawFd>,
    /// What the last wait found ready.
    ready: Vec<RawFd>,
    /// [`CLOSED`] as it was when the kernel was told first.
    closed: u64,
}

/// What one of several parties wanted of a [`Poller`] that they share.
#[derive(Debug, Default)]
pub struct Party(Vec<RawFd>);

impl Poller {
    /// A poller that waits for nothing.
    pub fn new() -> io::Result<Poller> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let closed = CLOSED.load(Ordering::Acquire);
        Ok(Poller {
            epoll,
            slots: Vec::new(),
            told: Vec::new(),
            wanted: Vec::new(),
            ready: Vec::new(),
            closed,
        })
    }

    fn slot(&mut self, number: RawFd) -> &mut Slot {
        // Numbers of open descriptors are not negative.
        let index = number as usize;
        if index >= self.slots.len() {
            self.slots.resize(index + 1, Slot::default());
        }
        &mut self.slots[index]
    }

    /// The coming wait is also for this descriptor.
    pub fn want(&mut self, descriptor: BorrowedFd<'_>, read: bool, write: bool) {
        let number = descriptor.as_raw_fd();
        let interests = self.slot(number).wanted.get_or_insert_default();
        (interests.read, interests.write) = (interests.read | read, interests.write | write);
        self.wanted.push(number);
    }

    /// The coming wait is also for the next signal of an [`Event`](crate::event::Event), which needs no clearing: one
    /// that an earlier wait ended by does not end this one (EPOLLET, `epoll(7)`).
    pub fn want_signal(&mut self, event: BorrowedFd<'_>) {
        let number = event.as_raw_fd();
        self.slot(number).wanted = Some(Interests { read: true, write: false, news: true });
        self.wanted.push(number);
    }

    /// Has one of those who share this say what it wants, and notes what that is.
    pub fn want_for<T>(&mut self, party: &mut Party, want: impl FnOnce(&mut Poller) -> T) -> T {
        let from = self.wanted.len();
        let result = want(self);
        party.0.clear();
        party.0.extend_from_slice(self.wanted.get(from..).unwrap_or_default());
        result
    }

    /// Forgets a descriptor; to be called before one is closed that was ever wanted, since the number
    /// may come back as another file.
    pub fn forget(&mut self, descriptor: BorrowedFd<'_>) {
        let number = descriptor.as_raw_fd();
        let slot = self.slot(number);
        slot.wanted = None;
        if slot.told.take().is_some() {
            self.told.retain(|known| *known != number);
            let _ = epoll::delete(&self.epoll, descriptor);
        }
    }

    /// Waits until one of the wanted descriptors is ready or `timeout` has passed (`None`: for ever),
    /// and wants nothing afterwards. Says whether a descriptor is ready.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<bool> {
        let told = self.tell();
        for number in self.wanted.drain(..) {
            self.slots[number as usize].wanted = None;
        }
        told?;
        self.sleep(timeout)?;
        Ok(!self.ready.is_empty())
    }

    /// Whether the last wait found this descriptor ready.
    pub fn is_ready(&self, descriptor: BorrowedFd<'_>) -> bool {
        self.is_number_ready(descriptor.as_raw_fd())
    }

    /// Whether the last wait found something ready that this party wanted.
    pub fn is_ready_for(&self, party: &Party) -> bool {
        party.0.iter().any(|number| self.is_number_ready(*number))
    }

    fn is_number_ready(&self, number: RawFd) -> bool {
        self.slots.get(number as usize).is_some_and(|slot| slot.ready)
    }

    fn tell(&mut self) -> io::Result<()> {
        let closed = CLOSED.load(Ordering::Acquire);
        if closed != self.closed {
            // What is known under a number may be another file by now: the kernel is told all anew.
            self.epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            for number in self.told.drain(..) {
                self.slots[number as usize].told = None;
            }
            self.closed = closed;
        }
        for &number in &self.wanted {
            let slot = &mut self.slots[number as usize];
            let Some(interests) = slot.wanted.filter(|wanted| slot.told != Some(*wanted)) else { continue };
            let mut flags = flags(interests.read, interests.write);
            flags.set(EventFlags::ET, interests.news);
            // SAFETY: the number was taken from a live descriptor by `want`, in this same round.
            let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
            let data = EventData::new_u64(number as u64);
            let result = match slot.told {
                Some(_) => epoll::modify(&self.epoll, descriptor, data, flags),
                None => epoll::add(&self.epoll, descriptor, data, flags),
            };
            match result {
                // The number was closed, or came back as another file, without being forgotten.
                Err(rustix::io::Errno::NOENT) => epoll::add(&self.epoll, descriptor, data, flags)?,
                Err(rustix::io::Errno::EXIST) => epoll::modify(&self.epoll, descriptor, data, flags)?,
                // A regular file is always ready; the kernel refuses to watch it.
                Err(rustix::io::Errno::PERM) => continue,
                other => other?,
            }
            if slot.told.replace(interests).is_none() {
                self.told.push(number);
            }
        }
        let (epoll, slots) = (&self.epoll, &mut self.slots);
        self.told.retain(|number| {
            let slot = &mut slots[*number as usize];
            if slot.wanted.is_none() {
                slot.told = None;
                // SAFETY: the number only goes to the kernel, which answers EBADF if it is closed.
                let _ = epoll::delete(epoll, unsafe { BorrowedFd::borrow_raw(*number) });
            }
            slot.told.is_some()
        });
        Ok(())
    }

    fn sleep(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let timeout = timeout.map(|wait| libc::timespec {
            tv_sec: libc::time_t::try_from(wait.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: wait.subsec_nanos().into(),
        });
        let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS_AT_ONCE];
        for number in self.ready.drain(..) {
            self.slots[number as usize].ready = false;
        }
        // SAFETY: the event array and the timeout live through the call, and the array's length is given.
        let count = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                self.epoll.as_fd().as_raw_fd(),
                events.as_mut_ptr(),
                EVENTS_AT_ONCE as libc::c_int,
                timeout,
                std::ptr::null::<libc::sigset_t>(),
                0usize,
            )
        };
        match usize::try_from(count) {
            Ok(count) => {
                for event in events.iter().take(count) {
                    let number = event.u64 as RawFd;
                    self.slot(number).ready = true;
                    self.ready.push(number);
                }
            }
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
        Ok(())
    }
}

/// A few descriptors that are waited for as one: the set is itself a descriptor, readable while one of them is
/// ready. It may be dropped while a [`Poller`] knows it.
#[derive(Debug)]
pub struct PollSet {
    epoll: OwnedFd,
}

impl PollSet {
    /// An empty set.
    pub fn new() -> io::Result<PollSet> {
        Ok(PollSet { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)? })
    }

    /// Adds a descriptor under a name of the caller's.
    pub fn add(&self, descriptor: impl AsFd, name: u64, read: bool, write: bool) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, descriptor, EventData::new_u64(name), flags(read, write))?)
    }

    /// Waits for something else of a descriptor that is in the set.
    pub fn change(&self, descriptor: impl AsFd, name: u64, read: bool, write: bool) -> io::Result<()> {
        Ok(epoll::modify(&self.epoll, descriptor, EventData::new_u64(name), flags(read, write))?)
    }

    /// Takes a descriptor out; to be called before it is closed.
    pub fn remove(&self, descriptor: impl AsFd) {
        let _ = epoll::delete(&self.epoll, descriptor);
    }

    /// The names of those that are ready now, eight at most.
    pub fn ready(&self) -> io::Result<impl Iterator<Item = u64>> {
        let mut events = [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 8];
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        let count = match epoll::wait(&self.epoll, &mut events[..], Some(&now)) {
            Err(rustix::io::Errno::INTR) => 0,
            other => other?,
        };
        Ok(events.into_iter().take(count).map(|event| event.data.u64()))
    }
}

fn flags(read: bool, write: bool) -> EventFlags {
    let mut flags = EventFlags::empty();
    flags.set(EventFlags::IN, read);
    flags.set(EventFlags::OUT, write);
    flags
}

impl AsFd for PollSet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl Drop for PollSet {
    fn drop(&mut self) {
        note_closed();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::sync::Mutex;

    /// Whoever closes a set has every poller of the process tell the kernel anew, which ends a wait by a signal
    /// that ended one before: allowed, but not what these tests are about.
    static CLOSING: Mutex<()> = Mutex::new(());

    #[test]
    fn a_party_is_ready_when_what_it_wanted_is() {
        let _no_set_closes = CLOSING.lock().unwrap();
        let (mut poller, mut parties) = (Poller::new().unwrap(), [Party::default(), Party::default()]);
        let pairs = [UnixStream::pair().unwrap(), UnixStream::pair().unwrap()];
        (&pairs[1].0).write_all(b"x").unwrap();
        for _ in 0..2 {
            for (party, (_, theirs)) in parties.iter_mut().zip(&pairs) {
                poller.want_for(party, |poller| poller.want(theirs.as_fd(), true, false));
            }
            assert!(poller.wait(Some(Duration::from_secs(10))).unwrap());
            assert_eq!([0, 1].map(|at| poller.is_ready_for(&parties[at])), [false, true]);
        }
        // What nobody wants any more ends no wait, nor what was forgotten.
        poller.want(pairs[0].1.as_fd(), true, false);
        assert!(!poller.wait(Some(Duration::ZERO)).unwrap());
        assert!(!poller.is_ready_for(&parties[1]));
        poller.want(pairs[1].1.as_fd(), true, false);
        poller.forget(pairs[1].1.as_fd());
        assert!(!poller.wait(Some(Duration::ZERO)).unwrap());
    }

    #[test]
    fn a_signal_ends_one_wait() {
        let _no_set_closes = CLOSING.lock().unwrap();
        let (event, mut poller) = (crate::event::Event::new().unwrap(), Poller::new().unwrap());
        let mut wait = || {
            poller.want_signal(event.as_fd());
            poller.wait(Some(Duration::ZERO)).unwrap()
        };
        assert!(!wait());
        event.signal();
        assert!(wait() && !wait(), "once");
        event.signal();
        event.signal();
        assert!(wait() && !wait(), "and again");
    }

    /// The number of a closed set comes back as another set: whoever waits for that one must be woken.
    #[test]
    fn a_set_that_takes_the_number_of_a_closed_one_is_waited_for() {
        let _closing = CLOSING.lock().unwrap();
        let mut poller = Poller::new().unwrap();
        for _ in 0..3 {
            let (mut ours, theirs) = UnixStream::pair().unwrap();
            let set = PollSet::new().unwrap();
            set.add(&theirs, 7, true, false).unwrap();
            poller.want(set.as_fd(), true, false);
            assert!(!poller.wait(Some(Duration::ZERO)).unwrap());
            ours.write_all(b"x").unwrap();
            poller.want(set.as_fd(), true, false);
            assert!(poller.wait(Some(Duration::from_secs(10))).unwrap());
            assert_eq!(set.ready().unwrap().collect::<Vec<_>>(), [7]);
        }
    }
}
