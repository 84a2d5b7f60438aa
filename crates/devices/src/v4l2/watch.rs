//! Whether anybody besides this program has a node of v4l2loopback open: that is when a camera is wanted.
//!
//! The kernel tells when the node is opened or closed (`inotify(7)`), but may tell of several times as one, so that
//! cannot be counted. How many have it open is what the module's own count of uses says; that is of all its nodes, so
//! that with several of them in use none is ever left.

use contract::Time;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{Mode, OFlags};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

/// How long a node counts as read after somebody had it open: programs try a camera before they use it.
const LINGER: Duration = Duration::from_secs(3);
/// How often its module is in use.
pub(super) const USES: &str = "/sys/module/v4l2loopback/refcnt";

/// What a watch is made of: the kernel's word of who opens and closes the node, and the count of uses at `uses`.
pub(super) fn start(node: &Path, uses: &str) -> rustix::io::Result<[OwnedFd; 2]> {
    let news = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    let flags = WatchFlags::OPEN | WatchFlags::CLOSE_WRITE | WatchFlags::CLOSE_NOWRITE;
    inotify::add_watch(&news, node, flags)?;
    Ok([news, rustix::fs::open(uses, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?])
}

/// A watch on a node.
#[derive(Debug)]
pub(super) struct Watch {
    news: OwnedFd,
    uses: OwnedFd,
    is_wanted: bool,
    /// When to ask for the number of uses.
    ask_at: Option<Time>,
}

impl Watch {
    /// On what [`start`] gave.
    pub(super) fn new([news, uses]: [OwnedFd; 2]) -> Self {
        let mut watch = Watch { news, uses, is_wanted: true, ask_at: None };
        watch.is_wanted = watch.others() > 0;
        watch
    }

    /// Readable when somebody opens or closes the node.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.news.as_fd()
    }

    /// Uses of the module besides this program's own; one if it cannot be told.
    pub(super) fn others(&self) -> u64 {
        let mut digits = [0; 20];
        let length = rustix::io::pread(&self.uses, &mut digits, 0).unwrap_or(0);
        let count = str::from_utf8(&digits[..length]).ok().and_then(|text| text.trim().parse::<u64>().ok());
        count.map_or(1, |count| count.saturating_sub(1))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::tests::Scratch;
    use std::fs::{self, File};

    #[test]
    fn a_node_is_wanted_from_when_it_is_opened_until_a_while_after_it_is_closed() {
        let scratch = Scratch::new();
        let (node, uses) = (scratch.path("node"), scratch.path("uses"));
        File::create(&node).unwrap();
        fs::write(&uses, "1\n").unwrap();
        let mut watch = Watch::new(start(Path::new(&node), &uses).unwrap());
        let at = |seconds: u64| Time(seconds * 1_000_000_000);
        assert!(!watch.look(at(1)));
        assert_eq!(watch.look_at(), None);
        fs::write(&uses, "3\n").unwrap();
        let (first, second) = (File::open(&node).unwrap(), File::open(&node).unwrap());
        assert!(watch.look(at(2)));
        assert_eq!((watch.others(), watch.look_at()), (2, Some(at(5))));
        assert!(watch.look(at(5)) && watch.look_at().is_none());
        drop((first, second));
        assert!(watch.look(at(6)), "a moment ago");
        fs::write(&uses, "1\n").unwrap();
        assert!(!watch.look(at(9)));
    }

    #[test]
    fn who_came_before_the_watch_counts_and_what_cannot_be_told_does_too() {
        let scratch = Scratch::new();
        let (node, uses) = (scratch.path("node"), scratch.path("uses"));
        File::create(&node).unwrap();
        for (text, wanted) in [("2\n", true), ("1\n", false), ("what", true)] {
            fs::write(&uses, text).unwrap();
            let mut watch = Watch::new(start(Path::new(&node), &uses).unwrap());
            assert_eq!(watch.look(Time(1)), wanted, "{text}");
        }
    }
}
