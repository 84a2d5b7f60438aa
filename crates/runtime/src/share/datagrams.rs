//! What comes to a sharer's port of UDP from addresses that have no socket of their own.

use super::{Carrier, Greeting, Sharer};
use crate::events::Event;
use crate::listening::{canonical, connect_udp};
use crate::share::now;
use crate::share_session::Session;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use transports::quic::Arrival;
use wire::Preamble;
use wire::preamble::Introduction;

/// Datagrams that are looked at before sessions have their turn.
const DATAGRAMS_AT_ONCE: usize = 64;
/// Nothing that a stranger has to say is longer.
const DATAGRAM_BYTES_MAX: usize = 2048;

impl Sharer {
    /// What comes to the port from addresses that have no socket of their own: introductions of data connections,
    /// beginnings of control channels over QUIC, and whatever peers say that have moved.
    pub(super) fn attend_datagrams(&mut self, tell: &mut dyn FnMut(Event)) {
        if !self.poller.is_ready(self.udp.as_fd()) {
            return;
        }
        let mut bytes = [0; DATAGRAM_BYTES_MAX];
        for _ in 0..DATAGRAMS_AT_ONCE {
            let Ok((count, peer)) = self.udp.recv_from(&mut bytes) else { return };
            let bytes = &bytes[..count];
            match Preamble::parse(bytes) {
                Ok(_) => self.introduce(bytes, peer),
                Err(_) => match transports::quic::arrival(bytes) {
                    Arrival::Initial => self.knock(bytes, peer, tell),
                    Arrival::Tagged(tag) => {
                        let address = self.address;
                        let connect = || connect_udp(address, peer);
                        let mut sessions = self.sessions.values_mut();
                        let is_known = sessions.any(|session| session.follow(tag, peer, bytes, connect))
                            || self.greetings.iter_mut().any(|greeting| greeting.tag() == Some(tag));
                        if !is_known {
                            self.quic.reset((&self.udp, bytes, peer), now());
                        }
                    }
                    Arrival::Other => {}
                },
            }
        }
    }

    /// A datagram transport introduces itself by a first datagram; each gets a socket of its own.
    fn introduce(&mut self, bytes: &[u8], peer: SocketAddr) {
        match (Preamble::parse(bytes), &self.known) {
            (Ok(Preamble::Data { session, driver }), None) if bytes.len() == Preamble::BYTES => {
                let is_its = |known: &&mut Session| known.token == session;
                let Some(session) = self.sessions.values_mut().find(is_its) else { return };
                if session.confirm_datagram_link(driver, peer) {
                    return;
                }
                if let Ok(socket) = connect_udp(self.address, peer) {
                    session.link_datagrams(driver, peer, socket, None);
                }
            }
            (Ok(Preamble::SecureData { .. }), _) => {
                let Ok(said) = Introduction::parse(bytes) else { return };
                let is_its = |known: &&mut Session| known.is_proven(&said);
                let Some(session) = self.sessions.values_mut().find(is_its) else { return };
                match session.accept(&said) {
                    Some(keys) => {
                        if let Ok(socket) = connect_udp(self.address, peer) {
                            session.link_datagrams(said.driver, peer, socket, Some(keys));
                        }
                    }
                    // Said again, as it may be that it was not heard.
                    None => drop(session.confirm_datagram_link(said.driver, peer)),
                }
            }
            _ => {}
        }
    }

    /// Somebody begins a control channel over QUIC.
    fn knock(&mut self, bytes: &[u8], peer: SocketAddr, tell: &mut dyn FnMut(Event)) {
        // What was said again before its socket was there.
        let is_its = |greeting: &Greeting| {
            greeting.peer == canonical(peer) && matches!(greeting.carrier, Carrier::Quic(_))
        };
        if self.greetings.iter().any(is_its) {
            return;
        }
        // Said before the socket was there of the data connection that it begins. Answered from here, it would be said
        // again with a proof of its address, which that connection does not know.
        if self.sessions.values().any(|session| session.has_datagram_link(peer)) {
            return;
        }
        let now = now();
        if !self.quic.look((&self.udp, bytes, peer), now) {
            return;
        }
        let admitted = self.admissions.connect(peer, now).and_then(|()| self.admissions.shake_hands(now));
        if let Err(reason) = admitted {
            // It is told nothing, which would cost as much as a handshake: it says its datagram again, later and later,
            // as it would if that had been lost.
            if self.admissions.refuse(&reason) {
                tell(Event::Refused { peer: canonical(peer).to_string(), reason });
            }
            return;
        }
        let trust = self.known.as_ref().map(|known| &known.trust);
        if let Some(stream) = self.quic.let_in(self.address, trust, (bytes, peer)) {
            self.expect_greeting(Carrier::Quic(Some(Box::new(stream))), peer, tell);
        }
    }
}
