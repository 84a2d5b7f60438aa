//! Polls descriptors with a timeout in nanoseconds (`epoll_pwait2(2)`).

use rustix::event::epoll::{self, EventData, EventFlags};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Returns true if the kernel can poll this descriptor (`epoll_ctl(2)`: `EPERM` if not). A regular file or
/// `/dev/null`, which it cannot poll, is always ready.
pub fn can_wait(descriptor: BorrowedFd<'_>) -> rustix::io::Result<bool> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    match epoll::add(&epoll, descriptor, EventData::new_u64(0), EventFlags::empty()) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::PERM) => Ok(false),
        Err(error) => Err(error),
    }
}

const EVENTS_AT_ONCE: usize = 64;

/// Counts descriptors that were closed without a poller being notified, such as [`PollSet`]s. The kernel reuses
/// their numbers for other files.
static CLOSED: AtomicU64 = AtomicU64::new(0);

/// Makes every poller register its descriptors with the kernel again, because a descriptor was closed without a
/// call of [`Poller::forget`].
pub fn note_closed() {
    CLOSED.fetch_add(1, Ordering::Release);
}

/// The events to wait for on a descriptor.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Interests {
    read: bool,
    write: bool,
}

/// The state of one descriptor number.
#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    /// The events registered with the kernel.
    in_kernel: Option<Interests>,
    /// The events for the next wait.
    registered: Option<Interests>,
    /// The last wait found it ready.
    ready: bool,
}

/// The descriptors that one thread polls. It caches the kernel's registrations, so that polling the same
/// descriptors again costs one system call.
#[derive(Debug)]
pub struct Poller {
    epoll: OwnedFd,
    /// Indexed by descriptor number: the kernel allocates the lowest free one.
    slots: Vec<Slot>,
    /// Numbers registered with the kernel.
    in_kernel: Vec<RawFd>,
    /// Numbers for the next wait, possibly repeated.
    registered: Vec<RawFd>,
    /// Numbers that the last wait found ready.
    ready: Vec<RawFd>,
    /// The value of [`CLOSED`] at the first registration.
    closed: u64,
}

/// The descriptors that one of several users of a shared [`Poller`] registered.
#[derive(Debug, Default)]
pub struct Party(Vec<RawFd>);

impl Poller {
    /// A poller without descriptors.
    pub fn new() -> io::Result<Poller> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let closed = CLOSED.load(Ordering::Acquire);
        Ok(Poller {
            epoll,
            slots: Vec::new(),
            in_kernel: Vec::new(),
            registered: Vec::new(),
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

    /// Registers this descriptor for the next wait.
    pub fn register(&mut self, descriptor: BorrowedFd<'_>, read: bool, write: bool) {
        let number = descriptor.as_raw_fd();
        let interests = self.slot(number).registered.get_or_insert_default();
        (interests.read, interests.write) = (interests.read | read, interests.write | write);
        self.registered.push(number);
    }

    /// Records in `party` the descriptors that `register` registers.
    pub fn register_for<T>(&mut self, party: &mut Party, register: impl FnOnce(&mut Poller) -> T) -> T {
        let from = self.registered.len();
        let result = register(self);
        party.0.clear();
        party.0.extend_from_slice(self.registered.get(from..).unwrap_or_default());
        result
    }

    /// Forgets a descriptor. Call this before closing a descriptor that was ever registered, because its number
    /// may be reused for another file.
    pub fn forget(&mut self, descriptor: BorrowedFd<'_>) {
        let number = descriptor.as_raw_fd();
        let slot = self.slot(number);
        slot.registered = None;
        if slot.in_kernel.take().is_some() {
            self.in_kernel.retain(|known| *known != number);
            let _ = epoll::delete(&self.epoll, descriptor);
        }
    }

    /// Waits until a registered descriptor is ready or `timeout` has passed (`None` waits for ever). Afterwards
    /// no descriptor is registered for the next wait. Returns true if a descriptor is ready.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<bool> {
        let updated = self.update_kernel();
        for number in self.registered.drain(..) {
            self.slots[number as usize].registered = None;
        }
        updated?;
        self.sleep(timeout)?;
        Ok(!self.ready.is_empty())
    }

    /// Returns true if the last wait found this descriptor ready.
    pub fn is_ready(&self, descriptor: BorrowedFd<'_>) -> bool {
        self.is_number_ready(descriptor.as_raw_fd())
    }

    /// Returns true if the last wait found a descriptor of this party ready.
    pub fn is_ready_for(&self, party: &Party) -> bool {
        party.0.iter().any(|number| self.is_number_ready(*number))
    }

    fn is_number_ready(&self, number: RawFd) -> bool {
        self.slots.get(number as usize).is_some_and(|slot| slot.ready)
    }

    fn update_kernel(&mut self) -> io::Result<()> {
        let closed = CLOSED.load(Ordering::Acquire);
        if closed != self.closed {
            // A cached number may belong to another file now, so start with an empty epoll instance.
            self.epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            for number in self.in_kernel.drain(..) {
                self.slots[number as usize].in_kernel = None;
            }
            self.closed = closed;
        }
        for &number in &self.registered {
            let slot = &mut self.slots[number as usize];
            let Some(interests) = slot.registered.filter(|registered| slot.in_kernel != Some(*registered))
            else {
                continue;
            };
            let flags = flags(interests.read, interests.write);
            // SAFETY: the number comes from a live descriptor that `register` received in this round.
            let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
            let data = EventData::new_u64(number as u64);
            let result = match slot.in_kernel {
                Some(_) => epoll::modify(&self.epoll, descriptor, data, flags),
                None => epoll::add(&self.epoll, descriptor, data, flags),
            };
            match result {
                // The number was closed or reused without `forget`.
                Err(rustix::io::Errno::NOENT) => epoll::add(&self.epoll, descriptor, data, flags)?,
                Err(rustix::io::Errno::EXIST) => epoll::modify(&self.epoll, descriptor, data, flags)?,
                // A regular file is always ready; the kernel refuses to poll it.
                Err(rustix::io::Errno::PERM) => continue,
                other => other?,
            }
            if slot.in_kernel.replace(interests).is_none() {
                self.in_kernel.push(number);
            }
        }
        let (epoll, slots) = (&self.epoll, &mut self.slots);
        self.in_kernel.retain(|number| {
            let slot = &mut slots[*number as usize];
            if slot.registered.is_none() {
                slot.in_kernel = None;
                // SAFETY: the number goes only to the kernel, which replies `EBADF` if it is closed.
                let _ = epoll::delete(epoll, unsafe { BorrowedFd::borrow_raw(*number) });
            }
            slot.in_kernel.is_some()
        });
        Ok(())
    }

    fn sleep(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let timeout = timeout.map(|wait| libc::timespec {
            tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
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

/// A few descriptors that are polled as one: the set is itself a descriptor, readable while one of its members
/// is ready. It may be dropped while a [`Poller`] knows it.
#[derive(Debug)]
pub struct PollSet {
    epoll: OwnedFd,
}

impl PollSet {
    /// Makes an empty set.
    pub fn new() -> io::Result<PollSet> {
        Ok(PollSet { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)? })
    }

    /// The most names that [`PollSet::ready`] returns.
    pub const READY_MAX: usize = 8;

    /// Adds a descriptor under a name that the caller chooses.
    pub fn add(&self, descriptor: impl AsFd, name: u64, read: bool, write: bool) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, descriptor, EventData::new_u64(name), flags(read, write))?)
    }

    /// Adds a descriptor under a name. It is ready once for each change: bytes arrive, the stream ends, or a full
    /// socket has room again (`EPOLLET`, `epoll(7)`). So the owner reads or writes until the call would block.
    pub fn add_changes(&self, descriptor: impl AsFd, name: u64) -> io::Result<()> {
        let changes = flags(true, true) | EventFlags::RDHUP | EventFlags::ET;
        Ok(epoll::add(&self.epoll, descriptor, EventData::new_u64(name), changes)?)
    }

    /// Changes the events of a member.
    pub fn change(&self, descriptor: impl AsFd, name: u64, read: bool, write: bool) -> io::Result<()> {
        Ok(epoll::modify(&self.epoll, descriptor, EventData::new_u64(name), flags(read, write))?)
    }

    /// Removes a descriptor. Call this before closing it.
    pub fn remove(&self, descriptor: impl AsFd) {
        let _ = epoll::delete(&self.epoll, descriptor);
    }

    /// The names of the ready members, at most [`PollSet::READY_MAX`].
    pub fn ready(&self) -> io::Result<impl Iterator<Item = u64>> {
        let mut events =
            [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; Self::READY_MAX];
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

    /// Dropping a set makes every poller of the process register again. That is allowed, but these tests do not expect it.
    static CLOSING: Mutex<()> = Mutex::new(());

    #[test]
    fn a_party_is_ready_when_its_descriptor_is() {
        let _no_set_closes = CLOSING.lock().unwrap();
        let (mut poller, mut parties) = (Poller::new().unwrap(), [Party::default(), Party::default()]);
        let pairs = [UnixStream::pair().unwrap(), UnixStream::pair().unwrap()];
        (&pairs[1].0).write_all(b"x").unwrap();
        for _ in 0..2 {
            for (party, (_, theirs)) in parties.iter_mut().zip(&pairs) {
                poller.register_for(party, |poller| poller.register(theirs.as_fd(), true, false));
            }
            assert!(poller.wait(Some(Duration::from_secs(60))).unwrap());
            assert_eq!([0, 1].map(|at| poller.is_ready_for(&parties[at])), [false, true]);
        }
        // Neither an unregistered nor a forgotten descriptor ends a wait.
        poller.register(pairs[0].1.as_fd(), true, false);
        assert!(!poller.wait(Some(Duration::ZERO)).unwrap());
        assert!(!poller.is_ready_for(&parties[1]));
        poller.register(pairs[1].1.as_fd(), true, false);
        poller.forget(pairs[1].1.as_fd());
        assert!(!poller.wait(Some(Duration::ZERO)).unwrap());
    }

    /// The number of a closed set is reused for another set. A poller of the new one must be woken.
    #[test]
    fn a_set_with_a_reused_number_is_polled() {
        let _closing = CLOSING.lock().unwrap();
        let mut poller = Poller::new().unwrap();
        for _ in 0..3 {
            let (mut ours, theirs) = UnixStream::pair().unwrap();
            let set = PollSet::new().unwrap();
            set.add(&theirs, 7, true, false).unwrap();
            poller.register(set.as_fd(), true, false);
            assert!(!poller.wait(Some(Duration::ZERO)).unwrap());
            ours.write_all(b"x").unwrap();
            poller.register(set.as_fd(), true, false);
            assert!(poller.wait(Some(Duration::from_secs(60))).unwrap());
            assert_eq!(set.ready().unwrap().collect::<Vec<_>>(), [7]);
        }
    }
}
