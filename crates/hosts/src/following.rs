//! The QUIC connections of a peer, which a device host follows to the peer's other addresses: a datagram from an unknown
//! address has the connection's tag.
//!
//! | event | control connection | data connection |
//! |---|---|---|
//! | a datagram from another address | moves | moves |
//! | [`LAG`] after the control connection has moved | – | is left behind, unless it has moved too |
//!
//! An address translator that restarts maps the peer's connections to other ports. The control connection moves with its next
//! ping. A data connection at rest sends nothing, so the packets of this host go to a port that nobody has.

use contract::Time;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;
use transports::quic::Tag;

/// Shortest interval between two moves of one connection: an attacker on the path can forge many addresses.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(20);
/// All connections move within this time, if their peer has changed its address itself.
const LAG: Duration = Duration::from_millis(300);

/// A connection that is found by its tag.
#[derive(Debug)]
struct Reached {
    /// The driver that it carries; `None` for the control channel.
    driver: Option<u32>,
    /// The latest address of the peer.
    peer: Option<SocketAddr>,
    /// Time of the last move.
    at: Time,
}

/// The sender of a datagram.
#[derive(Debug, PartialEq, Eq)]
pub enum Sender {
    /// None of the connections.
    Unknown,
    /// A connection that remains where it is.
    Known,
    /// The connection of this driver, or the control connection, at another address.
    Moved(Option<u32>),
}

/// The connections of one peer.
#[derive(Debug, Default)]
pub struct Following {
    connections: BTreeMap<Tag, Reached>,
    /// The control connection moved at this time, and the data connections may follow.
    control_moved: Option<Time>,
}

impl Following {
    /// Adds a connection; `driver` is `None` for the control connection.
    pub fn insert(&mut self, tag: Tag, driver: Option<u32>, peer: Option<SocketAddr>, now: Time) {
        self.connections.insert(tag, Reached { driver, peer, at: now });
    }

    /// Removes the connection of a driver.
    pub fn remove(&mut self, driver: u32) {
        self.connections.retain(|_, reached| reached.driver != Some(driver));
    }

    /// Returns the sender of a datagram from `peer`.
    pub fn sender(&self, tag: &Tag, peer: SocketAddr, now: Time) -> Sender {
        match self.connections.get(tag) {
            None => Sender::Unknown,
            Some(reached) if reached.peer == Some(peer) || now < reached.at.after(FOLLOW_INTERVAL) => {
                Sender::Known
            }
            Some(reached) => Sender::Moved(reached.driver),
        }
    }

    /// A connection has moved.
    pub fn handle_move(&mut self, tag: &Tag, peer: SocketAddr, now: Time) {
        if let Some(reached) = self.connections.get_mut(tag) {
            (reached.peer, reached.at) = (Some(peer), now);
        }
    }

    /// The control connection has moved from a former address.
    pub fn handle_control_move(&mut self, now: Time) {
        self.control_moved = Some(now);
    }

    /// Returns, once, the drivers whose connections were left behind. They need new ones.
    pub fn poll_left_behind(&mut self, now: Time) -> Vec<u32> {
        let Some(moved) = self.control_moved.take_if(|moved| moved.after(LAG) <= now) else {
            return Vec::new();
        };
        let behind = self.connections.values().filter(|reached| reached.at.after(LAG) < moved);
        behind.filter_map(|reached| reached.driver).collect()
    }

    /// The time of the next [`Following::poll_left_behind`].
    pub fn poll_timeout(&self) -> Time {
        self.control_moved.map_or(Time(u64::MAX), |moved| moved.after(LAG))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTROL: Tag = [0; 8];

    fn at(ms: u64) -> Time {
        Time::from_millis(ms)
    }

    fn from(port: u16) -> SocketAddr {
        ([192, 0, 2, 1], port).into()
    }

    /// The control connection and those of the drivers 1 to 3, since long ago.
    fn following() -> Following {
        let mut following = Following::default();
        following.insert(CONTROL, None, None, at(0));
        for driver in 1..4 {
            following.insert([driver; 8], Some(driver.into()), Some(from(driver.into())), at(0));
        }
        following
    }

    #[test]
    fn connections_that_do_not_move_with_the_control_connection_are_left_behind() {
        let mut following = following();
        // Driver 1 moves before the control connection, driver 2 after it.
        following.handle_move(&[1; 8], from(11), at(9_900));
        assert_eq!(following.sender(&CONTROL, from(10), at(10_000)), Sender::Moved(None));
        following.handle_move(&CONTROL, from(10), at(10_000));
        following.handle_control_move(at(10_000));
        assert_eq!(following.sender(&[2; 8], from(12), at(10_100)), Sender::Moved(Some(2)));
        following.handle_move(&[2; 8], from(12), at(10_100));
        assert_eq!(following.poll_timeout(), at(10_300));
        assert!(following.poll_left_behind(at(10_299)).is_empty());
        assert_eq!(following.poll_left_behind(at(10_300)), [3]);
        assert!(following.poll_left_behind(at(20_000)).is_empty(), "once");
        assert_eq!(following.poll_timeout(), Time(u64::MAX));
    }

    #[test]
    fn a_new_connection_is_not_left_behind() {
        let mut following = following();
        following.handle_control_move(at(10_000));
        for driver in 1..4 {
            following.remove(driver.into());
            following.insert([driver + 10; 8], Some(driver.into()), Some(from(20)), at(10_200));
        }
        assert!(following.poll_left_behind(at(10_300)).is_empty());
    }

    #[test]
    fn a_connection_moves_only_now_and_then() {
        let mut following = following();
        assert_eq!(following.sender(&[9; 8], from(1), at(50)), Sender::Unknown);
        assert_eq!(following.sender(&[1; 8], from(1), at(50)), Sender::Known);
        following.handle_move(&[1; 8], from(11), at(50));
        assert_eq!(following.sender(&[1; 8], from(12), at(60)), Sender::Known);
        assert_eq!(following.sender(&[1; 8], from(12), at(70)), Sender::Moved(Some(1)));
    }
}
