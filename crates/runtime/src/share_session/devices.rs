//! The devices of a session: which its peer sees, and how one is opened and closed.

use super::Session;
use crate::agree;
use crate::events::Event;
use crate::keys::KeyShare;
use crate::offers::{Offers, Shared};
use crate::worker::Command;
use contract::Role;
use wire::Control;
use wire::control::{CATALOGUE_ENTRIES_MAX, CatalogueEntry, FLOWS_MAX, PublicKey};

impl Session {
    /// What this peer sees.
    pub(super) fn catalogue(&self, shared: &Offers) -> Vec<CatalogueEntry> {
        let entry = |device: &Shared| CatalogueEntry {
            name: device.name.clone(),
            class: device.description.class.clone(),
            summary: device.description.summary.clone(),
            present: device.present,
        };
        let seen = shared.values().filter(|device| self.permit.covers(&device.name, &device.allow));
        seen.take(CATALOGUE_ENTRIES_MAX).map(entry).collect()
    }

    /// Tells a peer that asked once what there is now, if that is something else.
    pub(crate) fn push_catalogue(&mut self, shared: &Offers) {
        if self.catalogue.is_none() {
            return;
        }
        let entries = self.catalogue(shared);
        if self.catalogue.as_ref() != Some(&entries) {
            self.catalogue = Some(entries.clone());
            // A failing control channel shows when the session is next served.
            let _ = self.link.send(&Control::Catalogue { entries });
        }
    }

    pub(super) fn open(
        &mut self,
        driver: u32,
        (name, transport): (&str, &str),
        proposed: (Option<&str>, Option<&str>),
        their_key: &PublicKey,
        shared: &mut Offers,
        tell: &mut dyn FnMut(Event),
    ) -> Result<Control, String> {
        if self.drivers.contains_key(&driver) {
            return Err(format!("driver {driver} is open already"));
        }
        if self.drivers.len() >= self.limits.drivers || driver > u32::MAX / FLOWS_MAX as u32 - 1 {
            let most = self.limits.drivers;
            return Err(format!("this session has as many devices open as it may (--limit drivers={most})"));
        }
        let all: usize = shared.values().map(|device| device.users.len()).sum();
        let most = &self.limits.admission;
        if all >= most.drivers_of_all {
            let most = most.drivers_of_all;
            return Err(format!(
                "this host serves as many devices as it may (--limit drivers_of_all={most})"
            ));
        }
        // It is given only what there is room for in the worst case, so that nobody's store fails later.
        let each = self.limits.store_bytes.saturating_mul(FLOWS_MAX);
        if each.saturating_mul(all + 1) > most.store_bytes_of_all {
            let most = most.store_bytes_of_all;
            return Err(format!(
                "this host keeps as much for others to be sent again as it may (--limit store_bytes_of_all={most})"
            ));
        }
        // What the peer may not open is not there for it.
        let mut seen =
            shared.iter_mut().filter(|(_, device)| self.permit.covers(&device.name, &device.allow));
        let mut names = Vec::new();
        let found = seen.find(|(_, device)| {
            names.push(device.name.clone());
            device.name == name
        });
        let Some((&number, device)) = found else {
            let there = if names.is_empty() { "nothing".into() } else { names.join(", ") };
            return Err(format!("no device `{name}` is shared with this host; there is: {there}"));
        };
        device.check_free()?;
        let transport = device
            .transport(transport)
            .ok_or_else(|| format!("there is no transport `{transport}` on this host"))?;
        let share = KeyShare::new().map_err(|error| error.to_string())?;
        let key = share.public;
        let keys = share.agree(their_key, device.pipelines.key.as_ref())?;
        let (flows, mut plans) = agree::answer(
            &device.description,
            &device.pipelines,
            proposed,
            driver * FLOWS_MAX as u32,
            &keys,
        )?;
        let (origin, left) = device.begin_use((self.id, self.key), driver, &mut plans)?;
        self.workers.inherit(driver, left);
        self.drivers.insert(driver, number);
        self.transports.insert(driver, transport.clone());
        let pipelines = flows.iter().map(|flow| flow.pipeline.clone()).collect();
        let (class, description) = (device.description.class.clone(), device.description.properties.clone());
        self.plans.insert(driver, plans.clone());
        self.command(Command::Add { driver, origin, role: Role::Device, flows: plans, transport });
        tell(Event::Attached { name: name.into(), node: self.peer.clone(), pipelines });
        Ok(Control::Opened { driver, class, description, flows, key })
    }

    pub(super) fn close(
        &mut self,
        driver: u32,
        reason: &str,
        shared: &mut Offers,
        tell: &mut dyn FnMut(Event),
    ) {
        for step in self.changes.forget(driver) {
            let _ = self.step(step, shared);
        }
        if let Some(device) = self.drivers.remove(&driver).and_then(|number| shared.get_mut(&number)) {
            device.end_use(self.id, driver, self.workers.leave(driver));
            self.command(Command::Remove { driver });
            self.stats.remove(&driver);
            self.plans.remove(&driver);
            self.transports.remove(&driver);
            tell(Event::Detached { name: device.name.clone(), reason: reason.into() });
        }
    }
}
