//! QUIC at the sharer's UDP port: who begins a control channel has to show its address before anything is kept of
//! it, and then gets a socket of its own.

use crate::listening::connect_udp;
use crate::trust::Trust;
use crate::trust::quic_stream::{QuicStream, QuicTrust};
use contract::Time;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;
use transports::quic::{AddressCheck, Checked, ServerKeys};

/// First datagrams that are looked at in a second, and at once: each costs a few microseconds of cryptography, and
/// what is more than this may be repeated.
const FIRSTS_PER_S: u64 = 2000;
const FIRSTS_AT_ONCE: u64 = 100;
/// Likewise of connections that nobody here knows: all that a few peers say of theirs after this host has begun anew.
const RESETS_PER_S: u64 = 500;
const RESETS_AT_ONCE: u64 = 100;

/// Lets so many things happen in a second, and refuses the rest.
struct Allowance {
    per_s: u64,
    at_once: u64,
    /// When all of them will be allowed again.
    whole_at: Time,
}

impl Allowance {
    fn new(per_s: u64, at_once: u64) -> Allowance {
        Allowance { per_s, at_once, whole_at: Time::ZERO }
    }

    /// Whether one more is allowed now.
    fn take(&mut self, now: Time) -> bool {
        let one = Duration::from_nanos(1_000_000_000 / self.per_s);
        let from = self.whole_at.max(now);
        let allowed = from.since(now) < one * self.at_once as u32;
        if allowed {
            self.whole_at = from.after(one);
        }
        allowed
    }
}

/// Where control channels over QUIC begin.
pub(crate) struct QuicDoor {
    check: AddressCheck,
    keys: ServerKeys,
    firsts: Allowance,
    resets: Allowance,
}

impl QuicDoor {
    /// At this address.
    pub(crate) fn new(trust: Option<&Trust>, address: SocketAddr) -> io::Result<QuicDoor> {
        let keys = ServerKeys::new(trust.map(|trust| trust.reset_secret(address)).as_ref())?;
        let beginning = QuicTrust { trust }.listen([0; 8], &keys)?;
        let check = AddressCheck::new(&beginning).map_err(|error| io::Error::other(error.to_string()))?;
        Ok(QuicDoor {
            check,
            keys,
            firsts: Allowance::new(FIRSTS_PER_S, FIRSTS_AT_ONCE),
            resets: Allowance::new(RESETS_PER_S, RESETS_AT_ONCE),
        })
    }

    /// A first datagram came to `udp`: whether a connection may begin with it. Who has not shown its address is
    /// asked to.
    pub(crate) fn look(&mut self, (udp, datagram, peer): (&UdpSocket, &[u8], SocketAddr), now: Time) -> bool {
        if !self.firsts.take(now) {
            return false;
        }
        match self.check.look(datagram, peer) {
            Checked::Nothing => false,
            Checked::Answer(answer) => {
                // One that is lost is asked for again.
                let _ = udp.send_to(answer, peer);
                false
            }
            Checked::Shown => true,
        }
    }

    /// Tells whoever goes on with a connection that nobody here knows that it is over: this host has begun anew.
    pub(crate) fn reset(&mut self, (udp, datagram, peer): (&UdpSocket, &[u8], SocketAddr), now: Time) {
        if self.resets.take(now)
            && let Checked::Answer(answer) = self.check.look(datagram, peer)
        {
            // One that is lost is told again, as what goes on does.
            let _ = udp.send_to(answer, peer);
        }
    }

    /// Begins a connection with a first datagram, over a socket of its own at `address`. What the system refuses
    /// concerns only this peer, which tries again.
    pub(crate) fn let_in(
        &self,
        address: SocketAddr,
        trust: Option<&Trust>,
        (datagram, peer): (&[u8], SocketAddr),
    ) -> Option<QuicStream> {
        let tag = crate::random::bytes().ok()?;
        let beginning = QuicTrust { trust }.listen(tag, &self.keys).ok()?;
        let socket = connect_udp(address, peer).ok()?;
        QuicStream::accept(socket, beginning, trust.is_some(), (datagram, peer)).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allowance_lets_a_burst_through_and_then_its_rate() {
        let mut allowance = Allowance::new(10, 3);
        let start = Time::ZERO.after(Duration::from_secs(9));
        let allowed = |allowance: &mut Allowance, ms| {
            let now = start.after(Duration::from_millis(ms));
            (0..50).filter(|_| allowance.take(now)).count()
        };
        assert_eq!([0, 0, 100, 1000, 9000].map(|ms| allowed(&mut allowance, ms)), [3, 0, 1, 3, 3]);
    }
}
