//! The hosts that use the output of a device (format `controls`).
//!
//! A camera is on while a program uses its pictures. Each host knows only its own programs, so a device with several hosts is
//! wanted while one of them wants it, whichever owns the flow to it. A host wants the device until it says otherwise, and a
//! device that was just opened counts as wanted.

use crate::spread::Clients;
use contract::{
    FlowClass, FlowDirection, FlowKey, FlowOffer, Format, Message, Partner, PartnerError, PartnerResult,
    Pushed, Time,
};
use std::collections::BTreeSet;
use wire::formats::controls::Update;

/// The sum of [`Update::Wanted`] over the clients.
pub(crate) struct Wanted {
    /// The flow to the device has the format, with the class that repeats the value after an interruption.
    has_format: bool,
    /// The clients that do not want the device.
    idle: BTreeSet<u16>,
    /// The last value that the device has.
    at_device: bool,
}

impl Wanted {
    /// `flows`: the flows of the device.
    pub(crate) fn new(flows: &[FlowOffer]) -> Wanted {
        let has_format = |flow: &FlowOffer| {
            flow.direction == FlowDirection::ApplicationToDevice
                && flow.format == Format::Controls
                && flow.class == FlowClass::State
        };
        Wanted { has_format: flows.iter().any(has_format), idle: BTreeSet::new(), at_device: true }
    }

    /// Records the value in a message of a client. Returns false if the message has none.
    pub(crate) fn record(&mut self, number: u16, message: &mut Message) -> bool {
        if !self.has_format {
            return false;
        }
        let Ok(Update::Wanted(wanted)) = Update::parse(message.body.as_slice()) else { return false };
        match wanted {
            true => self.idle.remove(&number),
            false => self.idle.insert(number),
        };
        true
    }

    /// Forgets the value of a client.
    pub(crate) fn forget(&mut self, number: u16) {
        self.idle.remove(&number);
    }

    /// Continues with a reopened device.
    pub(crate) fn reopen(&mut self) {
        self.at_device = true;
    }

    /// Returns the value that the device does not have yet.
    fn change(&self, clients: &Clients) -> Option<bool> {
        let wanted = clients.keys().any(|number| !self.idle.contains(number));
        (self.has_format && !clients.is_empty() && wanted != self.at_device).then_some(wanted)
    }

    /// Returns true if the device does not have the present value yet.
    pub(crate) fn is_due(&self, clients: &Clients) -> bool {
        self.change(clients).is_some()
    }

    /// Sends a changed value to this flow of the device. Returns true if the device took it.
    pub(crate) fn send(
        &mut self,
        device: &mut dyn Partner,
        key: Option<FlowKey>,
        clients: &Clients,
        now: Time,
    ) -> PartnerResult<bool> {
        let (Some(key), Some(wanted)) = (key, self.change(clients)) else { return Ok(false) };
        let is_taken = match device.push(key, Message::new(now, Update::Wanted(wanted).to_bytes())) {
            Ok(Pushed::Full(_)) => return Ok(false),
            Ok(Pushed::Taken) => true,
            // It would refuse the same message again.
            Err((PartnerError::Message(_), _)) => false,
            Err((error, _)) => return Err(error),
        };
        self.at_device = wanted;
        Ok(is_taken)
    }
}
