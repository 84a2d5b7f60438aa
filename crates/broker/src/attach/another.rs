//! A device that is another one than a node stands in for, since the device host or its `share` has restarted.
//!
//! It is given back at once. The node stays, and requests wait: a restarted `share` makes a new session, which opens the device again.
//! Within this session, a rule of the device host may return the first device. The next program makes the node of a disk anew
//! (`can_hand_over` of `nbd`), so the description is not handed over.

use super::{ApplicationHost, Opening};
use crate::events::Event;
use contract::Description;
use modules::{now, registry};
use std::time::Duration;
use wire::Control;
use worker::Command;

/// Interval before the device is opened again. Each opening takes it from other hosts for a moment.
const AGAIN_INTERVAL: Duration = Duration::from_secs(30);

impl ApplicationHost {
    /// Compares an opened device with the one that its node was made for, and gives back another one. Returns whether it did.
    pub(super) fn give_back_another(
        &mut self,
        number: u32,
        found: &Description,
        emit: &mut dyn FnMut(Event),
    ) -> bool {
        let Some(driver) = self.common.drivers.get_mut(&number) else { return false };
        let Some(known) = &driver.own.described else { return false };
        let class = registry::device_class(&known.class);
        let Some(reason) = class.and_then(|class| class.check_same(known, found).err()) else { return false };
        let is_new = driver.own.handle_gone(&reason, now());
        driver.own.opening = Opening::Unavailable { retry_at: now().after(AGAIN_INTERVAL) };
        if is_new {
            emit(Event::DeviceGone { name: driver.name.clone(), reason: reason.clone() });
        }
        self.common.workers.send(Command::Absence { driver: number });
        // If the control channel fails, the next turn notices.
        let _ = self.common.link.send(&Control::Close { driver: number, reason });
        true
    }
}
