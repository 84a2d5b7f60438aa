//! Periodic work of a broker: every second while a session is awake, seldom while all rest (`docs/design/idle.md`).

use contract::Time;
use std::os::fd::AsFd;
use std::time::Duration;
use sys::poller::Poller;
use sys::watch::DirectoryWatch;
use trust::Known;

/// Interval of periodic work while a session is awake.
pub(crate) const AWAKE_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of checks while all sessions rest. They find what the kernel does not report, such as a change of a file on
/// another host.
pub(crate) const REST_INTERVAL: Duration = Duration::from_secs(30);

/// The time of the next check of the list of peers and of everything else that changes seldom.
pub(crate) struct Look {
    at: Time,
    /// Reports changes of the list of peers; `None` without a list, or if the kernel does not report them.
    watch: Option<DirectoryWatch>,
    /// Checks every second in any case.
    is_watchful: bool,
}

impl Look {
    pub(crate) fn new(known: Option<&Known>, now: Time) -> Look {
        let watch = known.and_then(|known| DirectoryWatch::new(known.trust.directory()).ok());
        let is_watchful = known.is_some() && watch.is_none();
        Look { at: now.after(AWAKE_INTERVAL), watch, is_watchful }
    }

    /// Returns whether a check is due, and schedules the next one.
    pub(crate) fn is_due(&mut self, rest_interval: Option<Duration>, poller: &Poller, now: Time) -> bool {
        let has_changed =
            self.watch.as_ref().is_some_and(|watch| poller.is_ready(watch.as_fd()) && watch.take());
        let interval = rest_interval.filter(|_| !self.is_watchful).unwrap_or(AWAKE_INTERVAL);
        let next = now.after(interval);
        if has_changed || now >= self.at {
            self.at = next;
            return true;
        }
        self.at = self.at.min(next);
        false
    }

    /// Registers the watch with the poller; returns the time of the next check.
    pub(crate) fn register(&self, poller: &mut Poller) -> Time {
        self.watch.iter().for_each(|watch| poller.register(watch.as_fd(), true, false));
        self.at
    }
}
