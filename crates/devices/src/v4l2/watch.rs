//! Whether anybody besides this program has a node of v4l2loopback open: that is when a camera is wanted.
//!
//! The kernel tells when the node is opened or closed (`inotify(7)`), but may tell of several times as one, so that
//! cannot be counted. How many have nodes open is what the module's own count of uses says, which is of all its nodes;
//! which of them are this one's is seen in `/proc`, as far as this user may look. Of what nobody could be found for, one
//! may be a reader of this node: a camera is rather left on than off.

use contract::Time;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, fstat, major, minor, openat, readlinkat, statat,
};
use std::collections::BTreeSet;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

/// How long a node counts as read after somebody had it open: programs try a camera before they use it.
const LINGER: Duration = Duration::from_secs(3);
/// How often its module is in use, the processes there are, and what devices of each number are.
pub(super) const PLACES: [&str; 3] = ["/sys/module/v4l2loopback/refcnt", "/proc", "/sys/dev/char"];
/// What a watch is made of: see [`start`].
pub(super) const DESCRIPTORS: usize = 4;

/// What a watch is made of: the kernel's word of who opens and closes the node, and the three [`PLACES`].
pub(super) fn start(node: &Path, [uses, processes, numbers]: [&str; 3]) -> rustix::io::Result<[OwnedFd; 4]> {
    let news = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    let flags = WatchFlags::OPEN | WatchFlags::CLOSE_WRITE | WatchFlags::CLOSE_NOWRITE;
    inotify::add_watch(&news, node, flags)?;
    let open =
        |place: &str, flags| openat(CWD, place, flags | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let directory = |place| open(place, OFlags::DIRECTORY);
    Ok([news, open(uses, OFlags::empty())?, directory(processes)?, directory(numbers)?])
}

/// A watch on a node.
#[derive(Debug)]
pub(super) struct Watch {
    news: OwnedFd,
    uses: OwnedFd,
    processes: OwnedFd,
    numbers: OwnedFd,
    /// The node's device number.
    device: u64,
    is_wanted: bool,
    /// When to look who has it open.
    ask_at: Option<Time>,
}

impl Watch {
    /// On what [`start`] gave, for an open node.
    pub(super) fn new(descriptors: [OwnedFd; DESCRIPTORS], node: BorrowedFd<'_>) -> Self {
        let [news, uses, processes, numbers] = descriptors;
        let device = fstat(node).map_or(0, |stat| stat.st_rdev);
        let mut watch = Watch { news, uses, processes, numbers, device, is_wanted: true, ask_at: None };
        watch.is_wanted = watch.others() > 0;
        watch
    }

    /// Readable when somebody opens or closes the node.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.news.as_fd()
    }

    /// Who has the node open besides this program: those that are seen, or the uses of the module that nobody is seen for.
    pub(super) fn others(&self) -> u64 {
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
        let own = std::process::id().to_string();
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
            here += u64::from(process != own && devices.contains(&self.device));
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
    pub(super) fn look(&mut self, now: Time) -> bool {
        let mut memory = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(&self.news, &mut memory);
        while let Ok(event) = events.next() {
            self.is_wanted |= event.events().contains(inotify::ReadFlags::OPEN);
            self.ask_at = Some(now.after(LINGER));
        }
        if self.ask_at.is_some_and(|at| now >= at) {
            self.ask_at = None;
            self.is_wanted = self.others() > 0;
        }
        self.is_wanted
    }

    /// When to look again, though nothing is told.
    pub(super) fn look_at(&self) -> Option<Time> {
        self.ask_at
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

        fn watch(&self) -> Watch {
            let (processes, numbers) = (self.scratch.path("processes"), self.scratch.path("numbers"));
            let started = start(Path::new(&self.node), [&self.uses, &processes, &numbers]).unwrap();
            Watch::new(started, File::open("/dev/null").unwrap().as_fd())
        }
    }

    #[test]
    fn a_node_is_wanted_from_when_it_is_opened_until_a_while_after_it_is_closed() {
        let rig = Rig::new("1\n");
        let mut watch = rig.watch();
        let at = |seconds: u64| Time(seconds * 1_000_000_000);
        assert!(!watch.look(at(1)));
        assert_eq!(watch.look_at(), None);
        rig.say("3\n");
        let (first, second) = (File::open(&rig.node).unwrap(), File::open(&rig.node).unwrap());
        assert!(watch.look(at(2)));
        assert_eq!((watch.others(), watch.look_at()), (2, Some(at(5))));
        assert!(watch.look(at(5)) && watch.look_at().is_none());
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
}
