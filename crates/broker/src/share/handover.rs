//! A `share` as one program leaves it to the next ([`crate::handover`]): its sockets, and its sessions with their devices.

use super::DeviceHost;
use crate::events::Event;
use crate::handover::{Left, LeftDriver, LeftSession, put_driver, spec_text};
use crate::share_session::{PeerIdentity, Session};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use trust::Permit;
use wire::{Control, Writer};
use worker::Handover;

impl DeviceHost {
    /// Leaves the sockets and the sessions to the next program. Sessions that it cannot continue stay here, and end.
    pub(super) fn hand_over(&mut self) -> std::io::Result<Handover> {
        let tcp = self.listener.as_fd().try_clone_to_owned()?;
        let mut descriptors = vec![tcp, self.udp.as_fd().try_clone_to_owned()?];
        let (mut w, mut count) = (Writer::new(), 0u16);
        let can = |session: &mut Session| session.can_hand_over(&self.shared);
        let leaving: Vec<_> = self.sessions.extract_if(.., |_, session| can(session)).collect();
        for (_, mut session) in leaving {
            let Ok((saved, drivers)) = session.hand_over(&mut self.poller) else { continue };
            count += 1;
            saved.write(&mut w);
            w.text(session.name()).u8(session.has_catalogue().into()).u16(drivers.len() as u16);
            for (number, driver) in drivers {
                let device = session.device_of(number).and_then(|device| self.shared.get(&device));
                let (name, spec) = device.map_or(("", String::new()), |device| {
                    (device.name.as_str(), device.spec().map_or_else(String::new, spec_text))
                });
                w.text(name).text(&spec);
                put_driver(&mut w, driver, &mut descriptors);
            }
        }
        let mut head = Writer::new();
        head.u16(count).raw(w.bytes());
        Ok(Handover { bytes: head.finish(), descriptors })
    }

    /// Continues the sessions of the previous program, whose devices are offered from now on as if they had been opened here.
    /// Call it before the devices are offered.
    pub fn take_over(&mut self, left: Left) {
        self.left = Some(left);
    }

    /// Resumes the sessions of the previous program: their peers have lost their links, and return.
    pub(super) fn resume_sessions(&mut self, emit: &mut dyn FnMut(Event)) {
        let Some(left) = self.left.take() else { return };
        for LeftSession { saved, name, has_catalogue, drivers } in left.sessions {
            let known = match (&self.known, &saved.key) {
                (None, _) => Some((name, Permit::All)),
                (Some(known), Some(key)) => known.name_of(key).map(String::from).zip(known.permit(key)),
                (Some(_), None) => None,
            };
            let address = saved.address.parse::<SocketAddr>();
            let (Some((name, permit)), Ok(address)) = (known, address) else { continue };
            let id = self.next_session;
            self.next_session += 1;
            let identity = PeerIdentity { name, address, key: saved.key, permit, has_losses: None };
            let mut session = Session::take_over(id, identity, saved, has_catalogue, &self.request);
            for LeftDriver { name, taken, .. } in drivers {
                let number = taken.driver;
                let device = self.shared.iter_mut().find(|(_, device)| device.name == name);
                if let Err(reason) = session.resume_driver(device, taken) {
                    session.refuse(&Control::Close { driver: number, reason });
                }
            }
            emit(Event::PeerJoined { peer: session.common.peer.clone() });
            self.sessions.insert(id, session);
        }
        self.divide_processor(emit);
    }
}
