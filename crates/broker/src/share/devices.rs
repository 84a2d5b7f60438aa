//! Periodic work for the devices of a host, between the turns of its sessions.

use super::DeviceHost;
use crate::events::Event;
use crate::offers::{REOPEN_INTERVAL, Shared, UserLiveness};
use modules::now;

impl DeviceHost {
    /// Records the liveness of users, moves devices to waiting peers, reopens devices that are back, and pushes
    /// changed catalogues.
    pub(super) fn update_devices(&mut self, emit: &mut dyn FnMut(Event)) {
        for device in self.shared.values_mut() {
            device.update_liveness(|user| match self.sessions.get(&user) {
                Some(session) => session.liveness(),
                None => UserLiveness { last_heard: Some(now()), is_refused: false },
            });
        }
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

    /// Takes devices from silent users, and notifies new owners.
    fn take_marked(&mut self, emit: &mut dyn FnMut(Event)) {
        let wanted: Vec<_> = self.shared.values_mut().flat_map(Shared::take_marked).collect();
        for (user, reason) in wanted {
            if let Some(session) = self.sessions.get_mut(&user.session) {
                session.take_device(user.driver, reason, &mut self.shared, emit);
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
        for device in self.shared.values_mut().filter(|device| !device.present) {
            if now() < device.reopen_at {
                continue;
            }
            device.reopen_at = now().after(REOPEN_INTERVAL);
            let Ok(opened) = device.find() else { continue };
            device.present = true;
            emit(Event::DeviceBack { name: device.name.clone() });
            for (user, origin) in device.take_back(opened) {
                if let Some(session) = self.sessions.get_mut(&user.session) {
                    session.return_device(user.driver, origin);
                }
            }
        }
    }
}
