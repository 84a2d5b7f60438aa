//! The devices of a session: the peer's view of the catalogue, and opening and closing drivers.

use super::program::ProgramState;
use super::{OpenDevice, Session};
use crate::agree::{self, OtherHost};
use crate::events::Event;
use crate::offers::{Offers, Shared};
use crate::peer_session::Driver;
use contract::{Description, Role, Time};
use flow::nodes::{Misfit, misfit, suitable};
use modules::registry;
use trust::keys::KeyShare;
use wire::Control;
use wire::control::{CATALOGUE_ENTRIES_MAX, CatalogueEntry, FLOWS_MAX, PublicKey};
use worker::{Command, DriverPlan};

impl Session {
    /// Returns the catalogue as this peer may see it.
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

    /// Sends the catalogue to a peer that has requested one, if it has changed since.
    pub fn push_catalogue(&mut self, shared: &Offers) {
        if self.catalogue.is_none() {
            return;
        }
        let entries = self.catalogue(shared);
        if self.catalogue.as_ref() != Some(&entries) {
            self.catalogue = Some(entries.clone());
            // If the control channel fails, the next turn notices.
            let _ = self.common.link.send(&Control::Catalogue { entries });
        }
    }

    /// Returns the refusal of one more driver.
    pub(super) fn too_many_drivers(&self) -> String {
        format!("too many open devices in this session (--limit drivers={})", self.limits.drivers)
    }

    /// Opens a device that the peer asked for at `asked`. Returns `None` while the device's server delays that.
    pub(super) fn open(
        &mut self,
        (driver, asked): (u32, Time),
        (name, application, transport): (&str, &str, &str),
        proposed: (Option<&str>, Option<&str>),
        their_key: &PublicKey,
        shared: &mut Offers,
        emit: &mut dyn FnMut(Event),
    ) -> Result<Option<Control>, String> {
        if self.common.drivers.contains_key(&driver) {
            return Err(format!("driver {driver} is already open"));
        }
        if self.common.drivers.len() >= self.limits.drivers || driver > u32::MAX / FLOWS_MAX as u32 - 1 {
            return Err(self.too_many_drivers());
        }
        let all: usize = shared.values().map(|device| device.users.len()).sum();
        let most = &self.limits.admission;
        if all >= most.drivers_of_all {
            let most = most.drivers_of_all;
            return Err(format!("too many open devices on this host (limit drivers_of_all={most})"));
        }
        // Reserve the worst case, so that no replay store fails to grow later.
        let each = self.limits.store_bytes.saturating_mul(FLOWS_MAX);
        if each.saturating_mul(all + 1) > most.store_bytes_of_all {
            let most = most.store_bytes_of_all;
            return Err(format!(
                "the replay stores of this host are fully reserved (limit store_bytes_of_all={most})"
            ));
        }
        let hidden = shared.values().find(|device| device.name == name);
        let remedy = hidden.and_then(|device| self.permit.remedy(&self.name, name, &device.allow));
        // The peer repeats its request.
        if let Some(remedy) = remedy
            && self.forbidden.insert((name.into(), remedy.clone()))
        {
            emit(Event::Forbidden { peer: self.common.peer.clone(), name: name.into(), remedy });
        }
        // A device without permission is reported like one that does not exist.
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
        check_application(application, &device.description)?;
        device.check_free(self.key)?;
        if !device.prepare(asked).map_err(|error| error.to_string())? {
            return Ok(None);
        }
        let transport = device
            .transport(transport)
            .ok_or_else(|| match registry::transport(transport).is_some() {
                // A peer starts no program here.
                true => format!(
                    "`{name}` is not shared over a program: start its `outboard share` with --transport '{transport}:COMMAND'"
                ),
                false => format!("there is no transport `{transport}` on this host"),
            })?;
        let share = KeyShare::new().map_err(|error| error.to_string())?;
        let key = share.public;
        let keys = share.agree(their_key, device.pipelines.key.as_ref())?;
        let (flows, mut plans) = agree::answer(
            &device.description,
            &device.pipelines,
            proposed,
            driver * FLOWS_MAX as u32,
            (self.key.map_or(OtherHost::Any, |_| OtherHost::Known), &keys),
        )?;
        let (origin, left) = device.begin_use((self.id, self.key), driver, &mut plans)?;
        self.common.workers.inherit(driver, left);
        let pipelines = flows.iter().map(|flow| flow.pipeline.clone()).collect();
        let (class, description) = (device.description.class.clone(), device.description.properties.clone());
        let own = OpenDevice {
            number,
            transport: transport.clone(),
            program: ProgramState::Idle,
            program_begun_at: Time::ZERO,
        };
        let open = Driver::new(name.into(), device.pipelines.clone(), plans.clone(), own);
        self.common.drivers.insert(driver, open);
        let plan = DriverPlan { role: Role::Device, flows: plans, transport };
        self.command(Command::Add { driver, origin, plan });
        emit(Event::Attached { name: name.into(), node: self.common.peer.clone(), pipelines });
        Ok(Some(Control::Opened { driver, class, description, flows, key }))
    }

    pub(super) fn close(
        &mut self,
        driver: u32,
        reason: &str,
        shared: &mut Offers,
        emit: &mut dyn FnMut(Event),
    ) {
        self.common.forget_changes(driver);
        let open = self.common.drivers.remove(&driver);
        if let Some(device) = open.and_then(|open| shared.get_mut(&open.own.number)) {
            device.end_use(self.id, driver, self.common.workers.take_memory(driver));
            self.command(Command::Remove { driver });
            emit(Event::Detached { name: device.name.clone(), reason: reason.into() });
        }
    }
}

/// Checks that a node of the class `application` suits the device, which is not open yet.
fn check_application(application: &str, device: &Description) -> Result<(), String> {
    let Some(misfit) = misfit(application, device) else { return Ok(()) };
    let (class, suitable) = (&device.class, suitable(device));
    Err(match misfit {
        Misfit::Class(copied) => format!(
            "`{application}` copies a device of class `{copied}`, and this one is of class `{class}`: use `--as {suitable}`"
        ),
        Misfit::Format(taken, sent) => format!(
            "`{application}` takes the format `{taken}`, and this device of class `{class}` sends `{sent}`: use `--as {suitable}`"
        ),
    })
}
