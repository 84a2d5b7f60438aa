//! Periodic work for the devices of a host, between the turns of its sessions.

use super::{DeviceHost, NODE_INTERVAL};
use crate::events::Event;
use crate::offers::{Shared, UserLiveness};
use contract::Time;
use modules::now;
use std::os::fd::AsFd;
use std::time::Duration;
use sys::uevent::Uevents;

/// A device counts as requested for this time after a request.
const WANTED: Duration = Duration::from_millis(500);

impl DeviceHost {
    /// Records the liveness of users, moves devices to waiting peers, reopens devices that are back, and pushes changed catalogues.
    pub(super) fn update_devices(&mut self, emit: &mut dyn FnMut(Event)) {
        for device in self.shared.values_mut() {
            device.update_liveness(|user| match self.sessions.get(&user) {
                Some(session) => session.liveness(),
                None => {
                    UserLiveness { last_heard: Some(now()), is_refused: false, round_trip: Duration::ZERO }
                }
            });
        }
        self.wake_wanted();
        self.take_marked(emit);
        self.find_devices(emit);
        self.sessions.values_mut().for_each(|session| session.push_catalogue(&self.shared));
    }

    /// Notices devices that were unplugged while no peer uses them.
    pub(super) fn find_unplugged(&mut self, emit: &mut dyn FnMut(Event)) {
        for device in self.shared.values_mut() {
            if let Some(reason) = device.unplugged() {
                device.mark_gone();
                emit(Event::DeviceGone { name: device.name.clone(), reason: reason.into() });
            }
        }
    }

    /// Asks the users of a device that another peer requests for a sign of life: at rest they give one seldom.
    fn wake_wanted(&mut self) {
        let since = Time(now().0.saturating_sub(WANTED.as_nanos() as u64));
        for device in self.shared.values().filter(|device| device.is_wanted_since(since)) {
            for user in &device.users {
                if let Some(session) = self.sessions.get_mut(&user.session) {
                    session.handle_request_of_other();
                }
            }
        }
    }

    /// Registers the devices that no peer uses, to notice when they are unplugged. Returns the time of the next check of
    /// those of which the kernel may report nothing.
    pub(super) fn register_devices(&mut self) -> Time {
        let mut needs_check = false;
        for device in self.shared.values_mut() {
            needs_check |= device.register(&mut self.poller);
        }
        if self.uevents.is_none() && self.shared.values().any(Shared::is_pluggable) {
            self.uevents = Uevents::open().ok();
        }
        if let Some(uevents) = &self.uevents {
            self.poller.register(uevents.as_fd(), true, false);
        }
        if !needs_check {
            self.nodes_at = Time(u64::MAX);
        } else if self.nodes_at == Time(u64::MAX) {
            self.nodes_at = now().after(NODE_INTERVAL);
        }
        self.nodes_at
    }

    /// Returns whether a device may have been unplugged while no peer uses it.
    pub(super) fn has_unplugged(&mut self) -> bool {
        let mut is_due = now() >= self.nodes_at;
        if is_due {
            self.nodes_at = Time(u64::MAX);
        }
        if let Some(uevents) = self.uevents.as_ref().filter(|uevents| self.poller.is_ready(uevents.as_fd())) {
            while uevents.poll().is_some() {
                is_due = true;
            }
        }
        for device in self.shared.values_mut() {
            is_due |= device.has_hung_up(&self.poller);
        }
        is_due
    }

    /// Takes devices from silent users, and notifies new owners.
    fn take_marked(&mut self, emit: &mut dyn FnMut(Event)) {
        let wanted: Vec<_> = self.shared.values_mut().flat_map(Shared::take_marked).collect();
        for (user, reason) in wanted {
            if let Some(session) = self.sessions.get_mut(&user.session) {
                session.take_device(user.driver, reason, &mut self.shared, emit);
            }
        }
        for (user, origin) in self.shared.values_mut().filter_map(Shared::take_moved) {
            if let Some(session) = self.sessions.get_mut(&user.session) {
                session.return_device(user.driver, origin);
            }
        }
        for next_owner in self.shared.values_mut().filter_map(Shared::take_next_owner) {
            if let Some(session) = self.sessions.get_mut(&next_owner.session) {
                session.resync(next_owner.driver);
            }
        }
    }

    /// Reopens unavailable devices, and returns them to their users.
    fn find_devices(&mut self, emit: &mut dyn FnMut(Event)) {
        for device in self.shared.values_mut() {
            let Some((opened, was_gone)) = device.try_reopen() else { continue };
            if was_gone {
                emit(Event::DeviceBack { name: device.name.clone() });
            }
            for (user, origin) in device.take_back(opened, was_gone) {
                if let Some(session) = self.sessions.get_mut(&user.session) {
                    session.return_device(user.driver, origin);
                }
            }
        }
    }
}
