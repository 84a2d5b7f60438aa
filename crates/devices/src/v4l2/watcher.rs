//! Watches whether another program has a node of v4l2loopback open: only then a camera is wanted.
//!
//! There are three sources of information:
//!
//! - `inotify(7)` reports when the node is opened or closed. It may merge several events, so they cannot be counted.
//! - The module's reference count is the number of open descriptors of all its nodes.
//! - `/proc` shows the nodes that a process has open, for processes that this user may inspect. A worker has the open node of its
//!   broker, which is one reference for both.
//!
//! Open descriptors that cannot be assigned to a process may belong to a reader of this node. In case of doubt the
//! camera is on.
//!
//! A worker is locked and cannot read `/proc`. So the broker, which opens the node, starts a thread with a [`Watcher`],
//! and passes the worker one end of a socket pair for a [`WatcherClient`]:
//!
//! | message | direction | content |
//! |---|---|---|
//! | hello | worker → thread | the worker's process number, so that it does not count as a reader |
//! | status | thread → worker | in reply to hello, and after each change: is the camera wanted, number of readers |
//!
//! A worker that is restarted gets the same end and sends hello again. The thread exits when all copies of that end are
//! closed.

use crate::stream::now;
use contract::Time;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, fstat, major, minor, openat, readlinkat, statat,
};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;
use sys::poller::Poller;

/// The time for which a node counts as read after its last reader has closed it. Programs probe a camera before they
/// use it.
const LINGER: Duration = Duration::from_secs(3);
/// The module's reference count, the processes, and the devices by number.
const PATHS: [&str; 3] = ["/sys/module/v4l2loopback/refcnt", "/proc", "/sys/dev/char"];
/// The time limit for the reply to hello.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of a status message.
const STATUS_BYTES: usize = 9;

/// The status of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Status {
    /// The node has readers, or had some a moment ago.
    is_wanted: bool,
    readers: u64,
}

impl Status {
    fn emit(self) -> [u8; STATUS_BYTES] {
        let mut bytes = [u8::from(self.is_wanted); STATUS_BYTES];
        bytes[1..].copy_from_slice(&self.readers.to_le_bytes());
        bytes
    }

    fn parse([is_wanted, readers @ ..]: [u8; STATUS_BYTES]) -> Status {
        Status { is_wanted: is_wanted != 0, readers: u64::from_le_bytes(readers) }
    }
}

/// Starts a thread that watches the open `node` at `path`. Returns the worker's end of the socket pair.
pub(super) fn start(path: &Path, node: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    start_thread(Watcher::new(path, node, PATHS)?)
}

fn start_thread(watcher: Watcher) -> io::Result<OwnedFd> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let poller = Poller::new()?;
    std::thread::Builder::new().name("watcher".into()).spawn(move || watcher.run(&ours, poller))?;
    Ok(theirs)
}

/// The worker's end: receives the status from the thread.
#[derive(Debug)]
pub(super) struct WatcherClient {
    socket: OwnedFd,
    status: Status,
    /// The thread has exited: the status does not change any more.
    is_closed: bool,
}

impl WatcherClient {
    /// Sends hello on the worker's end, and waits for the reply.
    pub(super) fn new(socket: OwnedFd) -> io::Result<WatcherClient> {
        let status = Status { is_wanted: true, readers: 0 };
        let mut client = WatcherClient { socket, status, is_closed: false };
        // Drop messages to a worker that was killed.
        client.receive();
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        send(&client.socket, &std::process::id().to_le_bytes(), flags)?;
        let mut poller = Poller::new()?;
        poller.register(client.socket.as_fd(), true, false);
        poller.wait(Some(REPLY_TIMEOUT))?;
        client.receive();
        Ok(client)
    }

    /// Returns the descriptor that is readable after a change; `None` if there will be no more changes.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        (!self.is_closed).then(|| self.socket.as_fd())
    }

    /// Returns whether the camera is wanted.
    pub(super) fn is_wanted(&mut self) -> bool {
        self.receive();
        self.status.is_wanted
    }

    /// Receives all waiting status messages.
    fn receive(&mut self) {
        let mut bytes = [0; STATUS_BYTES];
        loop {
            match recv(&self.socket, &mut bytes[..], RecvFlags::DONTWAIT) {
                Ok((STATUS_BYTES, _)) => self.status = Status::parse(bytes),
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => {}
                _ => {
                    self.is_closed = true;
                    return;
                }
            }
        }
    }

    /// Returns the number of readers in the last status.
    pub(super) fn readers(&self) -> u64 {
        self.status.readers
    }
}

/// Watches the readers of a node, in the broker.
#[derive(Debug)]
struct Watcher {
    /// Reports opens and closes of the node.
    inotify: OwnedFd,
    reference_count: OwnedFd,
    processes: OwnedFd,
    devices: OwnedFd,
    /// The node's device number.
    device: u64,
    /// The processes that are not readers: the broker and the worker.
    own: [u32; 2],
    status: Status,
    /// The time of the next count of readers; `None` until the node is opened or closed.
    count_at: Option<Time>,
}

impl Watcher {
    fn new(
        path: &Path,
        node: BorrowedFd<'_>,
        [reference_count, processes, devices]: [&str; 3],
    ) -> io::Result<Watcher> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let flags = WatchFlags::OPEN | WatchFlags::CLOSE_WRITE | WatchFlags::CLOSE_NOWRITE;
        inotify::add_watch(&inotify, path, flags)?;
        let open =
            |path: &str, flags| openat(CWD, path, flags | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let directory = |path| open(path, OFlags::DIRECTORY);
        let mut watcher = Watcher {
            inotify,
            reference_count: open(reference_count, OFlags::empty())?,
            processes: directory(processes)?,
            devices: directory(devices)?,
            device: fstat(node).map_or(0, |stat| stat.st_rdev),
            own: [std::process::id(); 2],
            status: Status { is_wanted: true, readers: 0 },
            count_at: None,
        };
        watcher.count();
        Ok(watcher)
    }

    fn run(mut self, worker: &OwnedFd, mut poller: Poller) {
        let mut last_sent = None;
        loop {
            let mut hello = [0; 4];
            match recv(worker, &mut hello[..], RecvFlags::DONTWAIT) {
                Ok((4, _)) => {
                    self.own[1] = u32::from_le_bytes(hello);
                    if self.count_at.is_none() {
                        self.count();
                    }
                    last_sent = None;
                }
                Err(Errno::AGAIN | Errno::INTR) => {}
                _ => return,
            }
            let status = self.update(now());
            // If the socket is full, no worker reads it. The next worker sends hello.
            if last_sent != Some(status)
                && send(worker, &status.emit(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT).is_ok()
            {
                last_sent = Some(status);
            }
            poller.register(worker.as_fd(), true, false);
            poller.register(self.inotify.as_fd(), true, false);
            if poller.wait(self.count_at.map(|at| at.since(now()))).is_err() {
                return;
            }
        }
    }

    /// Counts the readers: the processes that have the node open, as far as `/proc` shows them. If it shows none, the
    /// references that `/proc` does not explain.
    fn count_readers(&self) -> u64 {
        let mut digits = [0; 20];
        let length = rustix::io::pread(&self.reference_count, &mut digits, 0).unwrap_or(0);
        let count = str::from_utf8(&digits[..length]).ok().and_then(|text| text.trim().parse::<u64>().ok());
        // One reference is the broker's own descriptor.
        match count.map_or(1, |count| count.saturating_sub(1)) {
            0 => 0,
            references => match self.visible_users() {
                (0, elsewhere) => references.saturating_sub(elsewhere),
                (here, _) => here,
            },
        }
    }

    /// Returns the number of other processes that visibly have the node open, and the number of references to its siblings that
    /// `/proc` shows. Too low a number of references leaves the camera on, too high a number switches it off.
    fn visible_users(&self) -> (u64, u64) {
        let mut users = BTreeMap::new();
        for process in names(self.processes.as_fd()).iter().filter_map(|name| name.parse::<u32>().ok()) {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            // Fails for another user's process and for one that has exited.
            let Ok(open) = openat(&self.processes, format!("{process}/fd"), flags, Mode::empty()) else {
                continue;
            };
            let devices: BTreeSet<u64> = names(open.as_fd())
                .iter()
                .filter_map(|name| statat(&open, name.as_str(), AtFlags::empty()).ok())
                .filter(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice)
                .map(|stat| stat.st_rdev)
                .collect();
            if !devices.is_empty() {
                users.insert(process, devices);
            }
        }
        let here = users
            .iter()
            .filter(|(process, devices)| !self.own.contains(process) && devices.contains(&self.device))
            .count();
        let elsewhere = users.iter().flat_map(|(process, devices)| {
            // A process may have got an open device from its parent.
            let parent = self.parent(*process).and_then(|parent| users.get(&parent));
            let is_counted = move |device: &u64| parent.is_some_and(|devices| devices.contains(device));
            devices.iter().filter(move |device| self.is_sibling(**device) && !is_counted(device))
        });
        (here as u64, elsewhere.count() as u64)
    }

    /// Returns the parent of a process (`proc_pid_stat(5)`).
    fn parent(&self, process: u32) -> Option<u32> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let stat = openat(&self.processes, format!("{process}/stat"), flags, Mode::empty()).ok()?;
        let mut text = [0; 256];
        let length = rustix::io::pread(&stat, &mut text, 0).ok()?;
        // The number, the name in parentheses, the state, the parent. A name may have spaces and parentheses itself.
        let behind_name = text[..length].rsplit(|byte| *byte == b')').next()?;
        str::from_utf8(behind_name).ok()?.split_whitespace().nth(1)?.parse().ok()
    }

    /// Returns whether a device is a sibling of the node: another video device without hardware.
    fn is_sibling(&self, device: u64) -> bool {
        let name = || format!("{}:{}", major(device), minor(device));
        let is_virtual = |link: &std::ffi::CString| link.to_string_lossy().contains("/virtual/");
        device != self.device
            && major(device) == major(self.device)
            && readlinkat(&self.devices, name(), Vec::new()).is_ok_and(|link| is_virtual(&link))
    }

    /// Processes the kernel's events. An open makes the camera wanted at once; readers are counted `LINGER` after the
    /// last event.
    fn update(&mut self, now: Time) -> Status {
        let mut memory = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(&self.inotify, &mut memory);
        while let Ok(event) = events.next() {
            self.status.is_wanted |= event.events().contains(inotify::ReadFlags::OPEN);
            self.count_at = Some(now.after(LINGER));
        }
        if self.count_at.is_some_and(|at| now >= at) {
            self.count_at = None;
            self.count();
        }
        self.status
    }

    fn count(&mut self) {
        let readers = self.count_readers();
        self.status = Status { is_wanted: readers > 0, readers };
    }
}

/// Returns the names in a directory.
fn names(directory: BorrowedFd<'_>) -> Vec<String> {
    let entries = Dir::read_from(directory).into_iter().flatten().filter_map(Result::ok);
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::tests::Scratch;
    use std::fs::{self, File};
    use std::os::unix::fs::symlink;

    /// A file as the node, a reference count, and processes with their open files. /dev/null has the node's device
    /// number, and /dev/zero is a sibling.
    struct Rig {
        scratch: Scratch,
        node: String,
        reference_count: String,
    }

    impl Rig {
        fn new(reference_count: &str) -> Rig {
            let scratch = Scratch::new();
            let rig = Rig { node: scratch.path("node"), reference_count: scratch.path("count"), scratch };
            File::create(&rig.node).unwrap();
            fs::create_dir_all(rig.scratch.path("processes")).unwrap();
            fs::create_dir_all(rig.scratch.path("devices")).unwrap();
            for number in ["1:3", "1:5"] {
                symlink("../../devices/virtual/mem/one", rig.scratch.path(&format!("devices/{number}")))
                    .unwrap();
            }
            rig.set_count(reference_count);
            rig
        }

        fn set_count(&self, count: &str) {
            fs::write(&self.reference_count, count).unwrap();
        }

        fn open(&self, process: u32, device: &str) {
            let directory = self.scratch.path(&format!("processes/{process}/fd"));
            fs::create_dir_all(&directory).unwrap();
            symlink(device, format!("{directory}/{}", fs::read_dir(&directory).unwrap().count())).unwrap();
        }

        fn set_parent(&self, process: u32, parent: u32) {
            let stat = self.scratch.path(&format!("processes/{process}/stat"));
            fs::write(stat, format!("{process} (out) board) S {parent} 1 1 0 -1 4194304")).unwrap();
        }

        fn watcher(&self) -> Watcher {
            let (processes, devices) = (self.scratch.path("processes"), self.scratch.path("devices"));
            let node = File::open("/dev/null").unwrap();
            let paths: [&str; 3] = [&self.reference_count, &processes, &devices];
            Watcher::new(Path::new(&self.node), node.as_fd(), paths).unwrap()
        }
    }

    #[test]
    fn a_node_is_wanted_while_it_is_open_and_for_some_time_afterwards() {
        let rig = Rig::new("1\n");
        let mut watcher = rig.watcher();
        let at = |seconds: u64| Time(seconds * 1_000_000_000);
        assert!(!watcher.update(at(1)).is_wanted);
        assert_eq!(watcher.count_at, None);
        rig.set_count("3\n");
        let (first, second) = (File::open(&rig.node).unwrap(), File::open(&rig.node).unwrap());
        assert!(watcher.update(at(2)).is_wanted);
        assert_eq!((watcher.count_readers(), watcher.count_at), (2, Some(at(5))));
        assert!(watcher.update(at(5)).is_wanted && watcher.count_at.is_none());
        drop((first, second));
        assert!(watcher.update(at(6)).is_wanted, "a moment ago");
        rig.set_count("1\n");
        assert!(!watcher.update(at(9)).is_wanted);
    }

    #[test]
    fn earlier_readers_and_an_unreadable_count_make_a_node_wanted() {
        for (text, wanted) in [("2\n", true), ("1\n", false), ("no number", true)] {
            assert_eq!(Rig::new(text).watcher().update(Time(1)).is_wanted, wanted, "{text}");
        }
    }

    /// A worker has the open nodes of its broker, one reference for both of them.
    #[test]
    fn a_worker_of_a_sibling_node_is_not_counted_twice() {
        let rig = Rig::new("3\n");
        let broker = std::process::id();
        rig.open(broker, "/dev/null");
        rig.open(broker, "/dev/zero");
        rig.open(7, "/dev/zero");
        rig.set_parent(7, broker);
        assert_eq!(rig.watcher().count_readers(), 1, "a process whose files are not visible");
        rig.open(8, "/dev/zero");
        rig.set_parent(8, 1);
        assert_eq!(rig.watcher().count_readers(), 0, "the sibling has a reader");
        rig.open(9, "/dev/null");
        rig.set_parent(9, broker);
        assert_eq!(rig.watcher().count_readers(), 1, "a program that the broker's process has started");
    }

    #[test]
    fn readers_of_sibling_nodes_do_not_count() {
        let rig = Rig::new("4\n");
        // This process has the node and a sibling open.
        rig.open(std::process::id(), "/dev/zero");
        rig.open(std::process::id(), "/dev/null");
        rig.open(7, "/dev/zero");
        rig.open(7, "/dev/zero");
        assert_eq!(rig.watcher().count_readers(), 1, "a process whose files are not visible");
        rig.open(8, "/dev/zero");
        assert_eq!(rig.watcher().count_readers(), 0);
        rig.open(9, "/dev/null");
        assert_eq!(rig.watcher().count_readers(), 1);
    }

    /// Waits until the client has this status.
    fn wait(client: &mut WatcherClient, is_wanted: bool) {
        let since = std::time::Instant::now();
        while client.is_wanted() != is_wanted {
            assert!(since.elapsed() < Duration::from_secs(60), "it never becomes {is_wanted}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    fn a_worker_and_its_successor_receive_the_status() {
        let rig = Rig::new("2\n");
        rig.open(std::process::id(), "/dev/null");
        let socket = start_thread(rig.watcher()).unwrap();
        let mut first = WatcherClient::new(socket.try_clone().unwrap()).unwrap();
        assert!(first.is_wanted(), "a process whose files are not visible");
        assert_eq!(first.readers(), 1);
        rig.set_count("1\n");
        drop(File::open(&rig.node).unwrap());
        wait(&mut first, false);
        // The first worker is killed.
        std::mem::forget(first);
        rig.set_count("2\n");
        let reader = File::open(&rig.node).unwrap();
        let mut second = WatcherClient::new(socket).unwrap();
        wait(&mut second, true);
        drop(reader);
    }
}
