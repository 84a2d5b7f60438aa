//! Datagrams at the shared UDP port of the device host: those from addresses without a socket of their own.

use super::{Carrier, DeviceHost, Greeting};
use crate::events::Event;
use crate::share_session::Session;
use modules::now;
use std::os::fd::AsFd;
use sys::datagram::{self, Ends};
use sys::listening::{canonical, connect_udp};
use transports::quic::DatagramKind;
use wire::Preamble;
use wire::preamble::Introduction;

/// Most datagrams handled in one turn.
const DATAGRAMS_AT_ONCE: usize = 64;
/// No first datagram of a peer is longer.
const DATAGRAM_BYTES_MAX: usize = 2048;

impl DeviceHost {
    /// Handles datagrams at the shared port: introductions of data connections, first packets of QUIC control
    /// channels, and packets of peers that have moved.
    pub(super) fn receive_datagrams(&mut self, emit: &mut dyn FnMut(Event)) {
        if !self.poller.is_ready(self.udp.as_fd()) {
            return;
        }
        let mut bytes = [0; DATAGRAM_BYTES_MAX];
        for _ in 0..DATAGRAMS_AT_ONCE {
            let Ok((count, ends)) = datagram::receive(&self.udp, self.address, &mut bytes) else { return };
            let bytes = &bytes[..count];
            match Preamble::parse(bytes) {
                Ok(_) => self.introduce(bytes, ends),
                Err(_) => match transports::quic::classify(bytes) {
                    DatagramKind::Initial => self.begin_control(bytes, ends, emit),
                    DatagramKind::Tagged(tag) => {
                        let connect = || connect_udp(ends);
                        let mut sessions = self.sessions.values_mut();
                        let is_known = sessions.any(|session| session.follow(tag, ends.peer, bytes, connect))
                            || self.greetings.iter_mut().any(|greeting| greeting.tag() == Some(tag));
                        if !is_known {
                            self.quic.reset((&self.udp, bytes, ends), now());
                        }
                    }
                    DatagramKind::Other => {}
                },
            }
        }
    }

    /// Handles the introduction of a datagram transport: gives the connection a socket of its own.
    fn introduce(&mut self, bytes: &[u8], ends: Ends) {
        let peer = ends.peer;
        match (Preamble::parse(bytes), &self.known) {
            (Ok(Preamble::Data { session, driver }), None) if bytes.len() == Preamble::BYTES => {
                let is_its = |known: &&mut Session| known.token == session;
                let Some(session) = self.sessions.values_mut().find(is_its) else { return };
                if session.confirm_datagram_link(driver, peer) {
                    return;
                }
                if let Ok(socket) = connect_udp(ends) {
                    session.link_datagrams(driver, peer, socket, None);
                }
            }
            (Ok(Preamble::SecureData { .. }), _) => {
                let Ok(said) = Introduction::parse(bytes) else { return };
                let is_its = |known: &&mut Session| known.is_proven(&said);
                let Some(session) = self.sessions.values_mut().find(is_its) else { return };
                match session.accept(&said) {
                    Some(keys) => {
                        if let Ok(socket) = connect_udp(ends) {
                            session.link_datagrams(said.driver, peer, socket, Some(keys));
                        }
                    }
                    // A repeated introduction: the confirmation may have been lost.
                    None => drop(session.confirm_datagram_link(said.driver, peer)),
                }
            }
            _ => {}
        }
    }

    /// Handles the first packet of a QUIC control channel.
    fn begin_control(&mut self, bytes: &[u8], ends: Ends, emit: &mut dyn FnMut(Event)) {
        let peer = ends.peer;
        // A retransmission from before the connection had its own socket.
        let is_its = |greeting: &Greeting| {
            greeting.peer == canonical(peer) && matches!(greeting.carrier, Carrier::Quic(_))
        };
        if self.greetings.iter().any(is_its) {
            return;
        }
        // A packet of a data connection, sent before that connection had its socket. A retry packet from here would
        // make the peer repeat it with a token that the data connection does not know.
        if self.sessions.values().any(|session| session.has_datagram_link(peer)) {
            return;
        }
        let now = now();
        if !self.quic.look((&self.udp, bytes, ends), now) {
            return;
        }
        let admitted = self.admissions.connect(peer, now).and_then(|()| self.admissions.shake_hands(now));
        if let Err(reason) = admitted {
            // Do not answer, as an answer would cost as much as a handshake: the peer retransmits with backoff.
            if self.admissions.refuse(&reason) {
                emit(Event::Refused { peer: canonical(peer).to_string(), reason });
            }
            return;
        }
        let trust = self.known.as_ref().map(|known| &known.trust);
        if let Some(stream) = self.quic.let_in(trust, (bytes, ends)) {
            self.expect_greeting(Carrier::Quic(Some(Box::new(stream))), peer, emit);
        }
    }
}
