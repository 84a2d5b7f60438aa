//! The announcement of a device host on the local network. It lasts while the host's own request, or a process that has
//! joined, asks for it.

use super::DeviceHost;
use crate::events::Event;
use hosts::discovery::Announcement;
use std::collections::BTreeSet;
use std::thread;

/// The announcement, and the joined processes that ask for it.
#[derive(Default)]
pub(super) struct Announcing {
    visitors: BTreeSet<u64>,
    is_wanted: bool,
    /// `None` also after a failure.
    announcement: Option<Announcement>,
}

impl Announcing {
    /// Records that a joined process asks for the announcement.
    pub(super) fn ask(&mut self, visitor: u64) {
        self.visitors.insert(visitor);
    }

    /// Forgets the processes that have left; returns whether the announcement starts (true) or ends (false).
    fn change(&mut self, is_own: bool, is_joined: impl Fn(u64) -> bool) -> Option<bool> {
        self.visitors.retain(|visitor| is_joined(*visitor));
        let is_wanted = is_own || !self.visitors.is_empty();
        let was_wanted = std::mem::replace(&mut self.is_wanted, is_wanted);
        (is_wanted != was_wanted).then_some(is_wanted)
    }
}

impl DeviceHost {
    /// Starts or ends the announcement of this host. A failure is only a warning: peers can still connect.
    pub(super) fn announce(&mut self, is_joined: impl Fn(u64) -> bool, emit: &mut dyn FnMut(Event)) {
        match self.announcing.change(self.request.announce, is_joined) {
            None => {}
            Some(true) => match Announcement::start(&self.request.host, self.address) {
                Ok(announcement) => self.announcing.announcement = Some(announcement),
                Err(error) => emit(Event::Warning {
                    problem: format!("this host is not announced on the network: {error}"),
                }),
            },
            Some(false) => {
                let announcement = self.announcing.announcement.take();
                // It waits for its goodbye to be sent. Without a thread, it does so here.
                let _ = thread::Builder::new().spawn(|| drop(announcement));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_announcement_lasts_while_a_process_asks_for_it() {
        let mut announcing = Announcing::default();
        assert_eq!(announcing.change(false, |_| true), None);
        announcing.ask(1);
        announcing.ask(2);
        assert_eq!(announcing.change(false, |_| true), Some(true));
        assert_eq!(announcing.change(false, |visitor| visitor == 2), None);
        assert_eq!(announcing.change(false, |_| false), Some(false));
        assert_eq!(announcing.change(true, |_| false), Some(true));
        announcing.ask(3);
        assert_eq!(announcing.change(true, |_| false), None, "the host's own request stays");
    }
}
