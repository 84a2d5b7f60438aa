//! A relay that applies the link model to real sockets, without privileges.
//!
//! It listens on one port for TCP and UDP, and forwards to one target. All traffic of a direction shares one
//! [`Link`](crate::Link), as on a real wire.
//!
//! - **UDP**: datagrams are delayed, lost, duplicated, damaged and reordered. 28 bytes of IP and UDP headers
//!   count for the rate. Each client address has its own socket towards the target.
//! - **TCP** is spliced: one connection from the client to the relay, another from the relay to the target. The
//!   model's packets are segments of up to 1448 bytes of the stream (and 52 bytes of headers). A byte stream
//!   can neither lose nor reorder data, so faults become delays, as with TCP itself: segments that arrive early
//!   wait, and a lost or damaged segment is retransmitted after 200 ms and a round trip, with exponential
//!   back-off. There is no fast retransmission and no congestion control. So a loss costs more, and a clean
//!   link carries more, than with a real TCP over a real network. A connection opens without any delay.
//! - **Full**: the relay buffers at most [`WINDOW_BYTES`] of a TCP direction, and no more than the link's queue
//!   accepts. Then it stops reading, which slows the sender. A UDP datagram that finds the queue full is lost.
//! - **Cut**: nothing passes. Bytes of a TCP connection wait until the link is restored, and those in flight
//!   are retransmitted. Datagrams are lost.

mod carrier;
mod splice;

use crate::{Counters, Params};
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use sys::event::Event;

/// The buffer for one direction of a TCP connection: 100 Mbit/s over a third of a second.
pub const WINDOW_BYTES: usize = 4 << 20;
/// Concurrent TCP connections. Others wait to be accepted.
pub const CONNECTIONS_MAX: usize = 256;
/// Concurrent UDP clients. A new one replaces the client that was silent for longest.
pub const CLIENTS_MAX: usize = 256;
/// The longest wait until the thread applies a change. It takes microseconds on a machine that is not
/// overloaded.
const TAKE_OVER_MAX: Duration = Duration::from_secs(1);
/// The attempts to find a port that is free for both TCP and UDP.
const PORT_ATTEMPTS: usize = 16;

/// One direction through a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the clients to the target.
    ToTarget = 0,
    /// From the target to the clients.
    FromTarget = 1,
}

impl Direction {
    /// Both directions, in the order of their numbers.
    pub const BOTH: [Direction; 2] = [Direction::ToTarget, Direction::FromTarget];
}

/// The state of one direction, in packets of the model.
#[derive(Clone, Debug, Default)]
pub struct Traffic {
    /// The parameters of the link.
    pub params: Params,
    /// The packet counters. A retransmitted TCP segment counts again.
    pub counters: Counters,
    /// Packets in the link.
    pub held_packets: u64,
    /// Bytes in the link, including headers.
    pub held_bytes: u64,
    /// Datagrams that passed the link but could not be sent on.
    pub refused: u64,
}

/// The state shared by the handle and the relay's thread.
struct Shared {
    state: Mutex<State>,
    /// Notified when the thread has applied changes.
    taken: Condvar,
    /// Wakes the thread to read `state`.
    wake: Event,
}

struct State {
    traffic: [Traffic; 2],
    /// Counts changes of the parameters, and those that the thread has applied.
    asked: u64,
    taken: u64,
    stop: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running relay. Dropping it ends all connections.
pub struct Relay {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Relay {
    /// Listens on `listen` (port 0 chooses one) for TCP and UDP, and forwards both to `target`, over a link
    /// with `params` in both directions. The same seed and the same traffic have the same result.
    pub fn start(listen: SocketAddr, target: SocketAddr, params: Params, seed: u64) -> io::Result<Relay> {
        let (tcp, udp) = bind(listen).map_err(|error| {
            io::Error::new(error.kind(), format!("relay cannot listen on {listen}: {error}"))
        })?;
        let address = tcp.local_addr()?;
        let traffic = || Traffic { params: params.clone(), ..Traffic::default() };
        let shared = Arc::new(Shared {
            state: Mutex::new(State { traffic: [traffic(), traffic()], asked: 0, taken: 0, stop: false }),
            taken: Condvar::new(),
            wake: Event::new()?,
        });
        let carrier = carrier::Carrier::new(shared.clone(), tcp, udp, target, &params, seed);
        let thread = std::thread::Builder::new().name("netsim-relay".into()).spawn(move || carrier.run())?;
        Ok(Relay { address, shared, thread: Some(thread) })
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes one direction. The change applies to all data sent after the return.
    pub fn set(&self, direction: Direction, params: Params) {
        self.change(|traffic| traffic[direction as usize].params = params);
    }

    /// Changes both directions.
    pub fn set_both(&self, params: Params) {
        self.change(|traffic| traffic.iter_mut().for_each(|one| one.params = params.clone()));
    }

    /// Cuts the link in both directions and keeps its other parameters.
    pub fn cut(&self) {
        self.change(|traffic| traffic.iter_mut().for_each(|one| one.params.down = true));
    }

    /// Restores the link after [`Relay::cut`].
    pub fn restore(&self) {
        self.change(|traffic| traffic.iter_mut().for_each(|one| one.params.down = false));
    }

    /// The state of a direction.
    pub fn traffic(&self, direction: Direction) -> Traffic {
        self.shared.lock().traffic[direction as usize].clone()
    }

    fn change(&self, how: impl FnOnce(&mut [Traffic; 2])) {
        let mut state = self.shared.lock();
        how(&mut state.traffic);
        state.asked += 1;
        self.shared.wake.signal();
        let pending = |state: &mut State| state.taken != state.asked;
        // Late or not, the thread applies the change.
        let _ = self.shared.taken.wait_timeout_while(state, TAKE_OVER_MAX, pending);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.wake.signal();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Binds one port for both protocols.
fn bind(listen: SocketAddr) -> io::Result<(TcpListener, UdpSocket)> {
    let mut attempts = if listen.port() == 0 { PORT_ATTEMPTS } else { 1 };
    loop {
        attempts -= 1;
        let tcp = TcpListener::bind(listen)?;
        match UdpSocket::bind(tcp.local_addr()?) {
            Ok(udp) => {
                tcp.set_nonblocking(true)?;
                udp.set_nonblocking(true)?;
                return Ok((tcp, udp));
            }
            Err(error) if error.kind() != io::ErrorKind::AddrInUse || attempts == 0 => return Err(error),
            Err(_) => {}
        }
    }
}
