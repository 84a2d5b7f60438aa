//! Whether anybody besides this program has a node of v4l2loopback open: that is when a camera is wanted.
//!
//! The kernel tells when the node is opened or closed (`inotify(7)`), but may tell of several times as one, so that
//! cannot be counted. How many have nodes open is what the module's own count of uses says, which is of all its nodes;
//! which of them are this one's is seen in `/proc`, as far as this user may look. Of what nobody could be found for, one
//! may be a reader of this node: a camera is rather left on than off.
//!
//! A locked worker cannot look into `/proc`. So the broker, which opens the node, has a thread of its own look, the
//! [`Lookout`]'s, and hands over one end of a socket pair. Whoever drives the node says its own number through it, to be
//! left out, and is answered; later it is told what changed. The thread ends when nobody has that end any more.

use crate::stream::now;
use contract::Time;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, fstat, major, minor, openat, readlinkat, statat,
};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use std::collections::BTreeSet;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;
use sys::poller::Poller;

/// How long a node counts as read after somebody had it open: programs try a camera before they use it.
const LINGER: Duration = Duration::from_secs(3);
/// How often its module is in use, the processes there are, and what devices of each number are.
pub(super) const PLACES: [&str; 3] = ["/sys/module/v4l2loopback/refcnt", "/proc", "/sys/dev/char"];
/// How long the lookout may take to answer whoever begins to drive the node.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of what the lookout says: whether the camera is wanted, and how many have the node open.
const SAID_BYTES: usize = 9;

/// What is known of a node's readers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Known {
    is_wanted: bool,
    readers: u64,
}

impl Known {
    fn emit(self) -> [u8; SAID_BYTES] {
        let mut bytes = [u8::from(self.is_wanted); SAID_BYTES];
        bytes[1..].copy_from_slice(&self.readers.to_le_bytes());
        bytes
    }

    fn parse([is_wanted, readers @ ..]: [u8; SAID_BYTES]) -> Known {
        Known { is_wanted: is_wanted != 0, readers: u64::from_le_bytes(readers) }
    }
}

/// Has a thread look who reads an open node, which is at `path`. What is given is for a [`Watch`]; the thread ends with it.
pub(super) fn start(path: &Path, node: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    start_at(Lookout::new(path, node, PLACES)?)
}

fn start_at(lookout: Lookout) -> io::Result<OwnedFd> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let poller = Poller::new()?;
    std::thread::Builder::new().name("lookout".into()).spawn(move || lookout.run(&ours, poller))?;
    Ok(theirs)
}

/// What whoever drives a node knows of its readers.
#[derive(Debug)]
pub(super) struct Watch {
    lookout: OwnedFd,
    known: Known,
    /// The lookout is gone, and says nothing more.
    is_over: bool,
}

impl Watch {
    /// On what [`start`] gave.
    pub(super) fn new(lookout: OwnedFd) -> io::Result<Watch> {
        let mut watch = Watch { lookout, known: Known { is_wanted: true, readers: 0 }, is_over: false };
        // What was said to a worker before this one, which was killed.
        watch.look();
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        send(&watch.lookout, &std::process::id().to_le_bytes(), flags)?;
        let mut poller = Poller::new()?;
        poller.want(watch.lookout.as_fd(), true, false);
        poller.wait(Some(PATIENCE))?;
        watch.look();
        Ok(watch)
    }

    /// Readable when there is news; none: there never will be.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        (!self.is_over).then(|| self.lookout.as_fd())
    }

    /// Takes in what happened; says whether somebody reads, or did a moment ago.
    pub(super) fn look(&mut self) -> bool {
        let mut said = [0; SAID_BYTES];
        loop {
            match recv(&self.lookout, &mut said[..], RecvFlags::DONTWAIT) {
                Ok((SAID_BYTES, _)) => self.known = Known::parse(said),
                Err(Errno::AGAIN) => return self.known.is_wanted,
                Err(Errno::INTR) => {}
                _ => {
                    self.is_over = true;
                    return self.known.is_wanted;
                }
            }
        }
    }

    /// How many had the node open when that last changed.
    pub(super) fn readers(&self) -> u64 {
        self.known.readers
    }
}

/// Looks who reads a node.
#[derive(Debug)]
struct Lookout {
    /// The kernel's word of who opens and closes the node.
    news: OwnedFd,
    uses: OwnedFd,
    processes: OwnedFd,
    numbers: OwnedFd,
    /// The node's device number.
    device: u64,
    /// Processes that are no readers: this one, and whoever drives the node for it.
    own: [u32; 2],
    is_wanted: bool,
    /// How many others had it open when that was last looked for.
    readers: u64,
    /// When to look who has it open.
    ask_at: Option<Time>,
}

impl Lookout {
    fn new(path: &Path, node: BorrowedFd<'_>, [uses, processes, numbers]: [&str; 3]) -> io::Result<Lookout> {
        let news = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let flags = WatchFlags::OPEN | WatchFlags::CLOSE_WRITE | WatchFlags::CLOSE_NOWRITE;
        inotify::add_watch(&news, path, flags)?;
        let open =
            |place: &str, flags| openat(CWD, place, flags | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let directory = |place| open(place, OFlags::DIRECTORY);
        let mut lookout = Lookout {
            news,
            uses: open(uses, OFlags::empty())?,
            processes: directory(processes)?,
            numbers: directory(numbers)?,
            device: fstat(node).map_or(0, |stat| stat.st_rdev),
            own: [std::process::id(); 2],
            is_wanted: true,
            readers: 0,
            ask_at: None,
        };
        lookout.ask();
        Ok(lookout)
    }

    fn run(mut self, driver: &OwnedFd, mut poller: Poller) {
        let mut told = None;
        loop {
            let mut number = [0; 4];
            match recv(driver, &mut number[..], RecvFlags::DONTWAIT) {
                Ok((4, _)) => {
                    self.own[1] = u32::from_le_bytes(number);
                    if self.ask_at.is_none() {
                        self.ask();
                    }
                    told = None;
                }
                Err(Errno::AGAIN | Errno::INTR) => {}
                _ => return,
            }
            let known = Known { is_wanted: self.look(now()), readers: self.readers };
            // Where there is no room, nobody listens; who comes next asks.
            if told != Some(known)
                && send(driver, &known.emit(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT).is_ok()
            {
                told = Some(known);
            }
            poller.want(driver.as_fd(), true, false);
            poller.want(self.news.as_fd(), true, false);
            if poller.wait(self.ask_at.map(|at| at.since(now()))).is_err() {
                return;
            }
        }
    }

    /// Who has the node open besides this program: those that are seen, or the uses of the module that nobody is seen for.
    fn others(&self) -> u64 {
        let mut digits = [0; 20];
        let length = rustix::io::pread(&self.uses, &mut digits, 0).unwrap_or(0);
        let count = str::from_utf8(&digits[..length]).ok().and_then(|text| text.trim().parse::<u64>().ok());
        match count.map_or(1, |count| count.saturating_sub(1)) {
            0 => 0,
            uses => match self.seen() {
                (0, elsewhere) => uses.saturating_sub(elsewhere),
                (here, _) => here,
            },
        }
    }

    /// Processes that are seen to have the node open, this one left out, and such that have another of the module's.
    fn seen(&self) -> (u64, u64) {
        let (mut here, mut elsewhere) = (0, 0);
        let own = self.own.map(|number| number.to_string());
        for process in names(self.processes.as_fd()).into_iter().filter(|name| name.parse::<u32>().is_ok()) {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            // Of another user, or gone.
            let Ok(open) = openat(&self.processes, format!("{process}/fd"), flags, Mode::empty()) else {
                continue;
            };
            let devices: BTreeSet<u64> = names(open.as_fd())
                .iter()
                .filter_map(|name| statat(&open, name.as_str(), AtFlags::empty()).ok())
                .filter(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice)
                .map(|stat| stat.st_rdev)
                .collect();
            here += u64::from(!own.contains(&process) && devices.contains(&self.device));
            elsewhere += devices.into_iter().filter(|device| self.is_sibling(*device)).count() as u64;
        }
        (here, elsewhere)
    }

    /// Whether a device is another node of the module: a video device that no hardware is behind.
    fn is_sibling(&self, device: u64) -> bool {
        let name = || format!("{}:{}", major(device), minor(device));
        let is_virtual = |link: &std::ffi::CString| link.to_string_lossy().contains("/virtual/");
        device != self.device
            && major(device) == major(self.device)
            && readlinkat(&self.numbers, name(), Vec::new()).is_ok_and(|link| is_virtual(&link))
    }

    /// Takes in what happened; says whether somebody reads, or did a moment ago.
    fn look(&mut self, now: Time) -> bool {
        let mut memory = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(&self.news, &mut memory);
        while let Ok(event) = events.next() {
            self.is_wanted |= event.events().contains(inotify::ReadFlags::OPEN);
            self.ask_at = Some(now.after(LINGER));
        }
        if self.ask_at.is_some_and(|at| now >= at) {
            self.ask_at = None;
            self.ask();
        }
        self.is_wanted
    }

    fn ask(&mut self) {
        self.readers = self.others();
        self.is_wanted = self.readers > 0;
    }
}

/// What stands in a directory.
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

    /// A node, the module's count of uses, and the others' open files: a watch on /dev/null as a node of the module,
    /// with /dev/zero as another.
    struct Rig {
        scratch: Scratch,
        node: String,
        uses: String,
    }

    impl Rig {
        fn new(uses: &str) -> Rig {
            let scratch = Scratch::new();
            let rig = Rig { node: scratch.path("node"), uses: scratch.path("uses"), scratch };
            File::create(&rig.node).unwrap();
            fs::create_dir_all(rig.scratch.path("processes")).unwrap();
            fs::create_dir_all(rig.scratch.path("numbers")).unwrap();
            for number in ["1:3", "1:5"] {
                symlink("../../devices/virtual/mem/one", rig.scratch.path(&format!("numbers/{number}")))
                    .unwrap();
            }
            rig.say(uses);
            rig
        }

        fn say(&self, uses: &str) {
            fs::write(&self.uses, uses).unwrap();
        }

        fn open(&self, process: u32, device: &str) {
            let directory = self.scratch.path(&format!("processes/{process}/fd"));
            fs::create_dir_all(&directory).unwrap();
            symlink(device, format!("{directory}/{}", fs::read_dir(&directory).unwrap().count())).unwrap();
        }

        fn watch(&self) -> Lookout {
            let (processes, numbers) = (self.scratch.path("processes"), self.scratch.path("numbers"));
            let node = File::open("/dev/null").unwrap();
            Lookout::new(Path::new(&self.node), node.as_fd(), [&self.uses, &processes, &numbers]).unwrap()
        }
    }

    #[test]
    fn a_node_is_wanted_from_when_it_is_opened_until_a_while_after_it_is_closed() {
        let rig = Rig::new("1\n");
        let mut watch = rig.watch();
        let at = |seconds: u64| Time(seconds * 1_000_000_000);
        assert!(!watch.look(at(1)));
        assert_eq!(watch.ask_at, None);
        rig.say("3\n");
        let (first, second) = (File::open(&rig.node).unwrap(), File::open(&rig.node).unwrap());
        assert!(watch.look(at(2)));
        assert_eq!((watch.others(), watch.ask_at), (2, Some(at(5))));
        assert!(watch.look(at(5)) && watch.ask_at.is_none());
        drop((first, second));
        assert!(watch.look(at(6)), "a moment ago");
        rig.say("1\n");
        assert!(!watch.look(at(9)));
    }

    #[test]
    fn who_came_before_the_watch_counts_and_what_cannot_be_told_does_too() {
        for (text, wanted) in [("2\n", true), ("1\n", false), ("what", true)] {
            assert_eq!(Rig::new(text).watch().look(Time(1)), wanted, "{text}");
        }
    }

    #[test]
    fn who_has_another_node_of_the_module_is_no_reader_of_this_one() {
        let rig = Rig::new("4\n");
        // This program has another node, and this one.
        rig.open(std::process::id(), "/dev/zero");
        rig.open(std::process::id(), "/dev/null");
        rig.open(7, "/dev/zero");
        rig.open(7, "/dev/zero");
        assert_eq!(rig.watch().others(), 1, "somebody whose files are not seen");
        rig.open(8, "/dev/zero");
        assert_eq!(rig.watch().others(), 0);
        rig.open(9, "/dev/null");
        assert_eq!(rig.watch().others(), 1);
    }

    /// Waits until the watch says so.
    fn wait(watch: &mut Watch, is_wanted: bool) {
        let since = std::time::Instant::now();
        while watch.look() != is_wanted {
            assert!(since.elapsed() < Duration::from_secs(60), "it never becomes {is_wanted}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    fn who_drives_a_node_is_told_of_its_readers_and_so_is_who_comes_after() {
        let rig = Rig::new("2\n");
        rig.open(std::process::id(), "/dev/null");
        let leash = start_at(rig.watch()).unwrap();
        let mut first = Watch::new(leash.try_clone().unwrap()).unwrap();
        assert!(first.look(), "somebody whose files are not seen");
        assert_eq!(first.readers(), 1);
        rig.say("1\n");
        drop(File::open(&rig.node).unwrap());
        wait(&mut first, false);
        // The first is killed, and says nothing.
        std::mem::forget(first);
        rig.say("2\n");
        let reader = File::open(&rig.node).unwrap();
        let mut second = Watch::new(leash).unwrap();
        wait(&mut second, true);
        drop(reader);
    }
}
