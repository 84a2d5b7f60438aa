//! Incoming QUIC control connections at the UDP port of the device host.
//!
//! The listener is stateless until a peer has proved its address (by a retry token); then the connection gets a
//! socket of its own.

use contract::Time;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;
use sys::datagram::{Ends, answer};
use sys::listening::connect_udp;
use transports::quic::{AddressValidator, ServerKeys, Validation};
use trust::Trust;
use trust::quic_stream::{QuicStream, QuicTrust};

/// Most first datagrams handled in a second, and in one burst. Each costs some microseconds of cryptography; a
/// dropped one is retransmitted.
const FIRSTS_PER_S: u64 = 2000;
const FIRSTS_AT_ONCE: u64 = 100;
/// Most stateless resets in a second: enough for the connections that some peers still have after a restart of this
/// host.
const RESETS_PER_S: u64 = 500;
const RESETS_AT_ONCE: u64 = 100;

/// A limit of events in a second; more are refused.
struct Allowance {
    per_s: u64,
    at_once: u64,
    /// The time at which the full burst is available again.
    whole_at: Time,
}

impl Allowance {
    fn new(per_s: u64, at_once: u64) -> Allowance {
        Allowance { per_s, at_once, whole_at: Time::ZERO }
    }

    /// Returns whether one more event is allowed now, and counts it.
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

/// Accepts QUIC control connections.
pub struct QuicListener {
    check: AddressValidator,
    keys: ServerKeys,
    firsts: Allowance,
    resets: Allowance,
}

impl QuicListener {
    /// Creates a listener at this address.
    pub fn new(trust: Option<&Trust>, address: SocketAddr) -> io::Result<QuicListener> {
        let keys = ServerKeys::new(trust.map(|trust| trust.reset_secret(address)).as_ref())?;
        let beginning = QuicTrust { trust }.listen([0; 8], &keys)?;
        let check = AddressValidator::new(&beginning).map_err(|error| io::Error::other(error.to_string()))?;
        Ok(QuicListener {
            check,
            keys,
            firsts: Allowance::new(FIRSTS_PER_S, FIRSTS_AT_ONCE),
            resets: Allowance::new(RESETS_PER_S, RESETS_AT_ONCE),
        })
    }

    /// Handles a first datagram that arrived at `udp`: returns whether a connection may begin with it. A peer that
    /// has not proved its address gets a retry packet.
    pub fn look(&mut self, (udp, datagram, ends): (&UdpSocket, &[u8], Ends), now: Time) -> bool {
        if !self.firsts.take(now) {
            return false;
        }
        match self.check.check(datagram, ends.peer) {
            Validation::Drop => false,
            Validation::Answer(retry) => {
                // If it is lost, the peer retransmits and gets another.
                let _ = answer(udp, retry, ends);
                false
            }
            Validation::Valid => true,
        }
    }

    /// Sends a stateless reset for a connection unknown to this host, which has restarted.
    pub fn reset(&mut self, (udp, datagram, ends): (&UdpSocket, &[u8], Ends), now: Time) {
        if self.resets.take(now)
            && let Validation::Answer(reset) = self.check.check(datagram, ends.peer)
        {
            // If it is lost, the peer's next datagram causes another.
            let _ = answer(udp, reset, ends);
        }
    }

    /// Starts a connection from its first datagram, on a socket of its own. Returns `None` on a system error; the peer
    /// will retry.
    pub fn let_in(&self, trust: Option<&Trust>, (datagram, ends): (&[u8], Ends)) -> Option<QuicStream> {
        let tag = sys::random::bytes().ok()?;
        let beginning = QuicTrust { trust }.listen(tag, &self.keys).ok()?;
        let socket = connect_udp(ends).ok()?;
        QuicStream::accept(socket, beginning, trust.is_some(), (datagram, ends.peer)).ok()
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
