//! What a sharer does for its devices between the turns of its peers.

use super::{Sharer, now};
use crate::events::Event;
use crate::offers::{REOPEN_INTERVAL, Shared, Signs};

impl Sharer {
    /// Notes who is silent, gives devices to who asks for them, finds those that went away, and tells what there is.
    pub(super) fn attend_devices(&mut self, tell: &mut dyn FnMut(Event)) {
        for device in self.shared.values_mut() {
            device.handle_signs(|user| match self.sessions.get(&user) {
                Some(session) => session.signs(),
                None => Signs { heard: Some(now()), is_refused: false },
            });
        }
        self.take_wanted(tell);
        self.find_devices(tell);
        self.sessions.values_mut().for_each(|session| session.push_catalogue(&self.shared));
    }

    /// Takes devices from silent users for those who ask for them, and gives each to its next owner.
    fn take_wanted(&mut self, tell: &mut dyn FnMut(Event)) {
        let wanted: Vec<_> = self.shared.values_mut().flat_map(Shared::take_wanted).collect();
        for (user, reason) in wanted {
            if let Some(session) = self.sessions.get_mut(&user.session) {
                session.dispossess(user.driver, reason, &mut self.shared, tell);
            }
        }
        for heir in self.shared.values_mut().filter_map(Shared::take_heir) {
            if let Some(session) = self.sessions.get_mut(&heir.session) {
                session.resync(heir.driver);
            }
        }
    }

    /// Looks for devices that went away, and hands them to whoever uses them when they are back.
    fn find_devices(&mut self, tell: &mut dyn FnMut(Event)) {
        for device in self.shared.values_mut().filter(|device| !device.present) {
            if now() < device.reopen_at {
                continue;
            }
            device.reopen_at = now().after(REOPEN_INTERVAL);
            let Ok(opened) = device.find() else { continue };
            device.present = true;
            tell(Event::DeviceBack { name: device.name.clone() });
            for (user, origin) in device.take_back(opened) {
                if let Some(session) = self.sessions.get_mut(&user.session) {
                    session.return_device(user.driver, origin);
                }
            }
        }
    }
}
