//! A relay that carries the link model between real sockets, without privileges.
//!
//! It listens on one port, for TCP and UDP, and forwards to one target. Each direction has one
//! [`Link`](crate::Link) that all of its traffic shares, as on a real wire.
//!
//! - **UDP**: datagrams are really delayed, lost, doubled, damaged and reordered. 28 bytes of IP and UDP
//!   headers count for the rate. Each client address has a socket of its own towards the target.
//! - **TCP** is spliced: a connection from the client to the relay, another from the relay to the target.
//!   The model's packets are segments of up to 1448 bytes of the stream (and 52 bytes of headers).
//!   Since a byte stream can neither lose nor reorder, those show as lateness, as with TCP itself:
//!   what overtakes waits, and a lost or damaged segment is sent again after 200 ms and a round trip,
//!   doubling each time. There is no fast retransmission and no congestion control: a loss costs more,
//!   and a clean link carries more, than with a real TCP over a real network. A connection is made at once.
//! - **Full**: the relay holds at most [`WINDOW_BYTES`] of a TCP direction, and no more than the link's queue
//!   takes; then it stops reading, so the sender is held back. A UDP datagram that finds the queue full is lost.
//! - **Cut**: nothing passes. Bytes of a TCP connection wait and come after the link is restored (what was
//!   on its way is sent again); datagrams vanish.

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

/// What the relay holds of one direction of a TCP connection: 100 Mbit/s over a third of a second.
pub const WINDOW_BYTES: usize = 4 << 20;
/// TCP connections at a time. More wait to be accepted.
pub const CONNECTIONS_MAX: usize = 256;
/// UDP clients at a time. The one silent for longest makes room for one more.
pub const CLIENTS_MAX: usize = 256;
/// How long a change waits for the thread, which takes microseconds unless the machine stands still.
const TAKE_OVER_MAX: Duration = Duration::from_secs(1);
/// How often a free port is looked for that neither TCP nor UDP has taken.
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
    /// Both, in the order of their numbers.
    pub const BOTH: [Direction; 2] = [Direction::ToTarget, Direction::FromTarget];
}

/// What one direction is doing and has done, in the model's packets.
#[derive(Clone, Debug, Default)]
pub struct Traffic {
    /// What the link does.
    pub params: Params,
    /// What became of the packets. A segment of TCP that was lost counts again when it is sent again.
    pub counters: Counters,
    /// Packets in the link.
    pub held_packets: u64,
    /// Bytes in the link, headers included.
    pub held_bytes: u64,
    /// Datagrams that came through the link and that the system would not send on.
    pub refused: u64,
}

/// What the handle and the relay's thread share.
struct Shared {
    state: Mutex<State>,
    /// Told when the thread has taken changes over.
    taken: Condvar,
    /// Wakes the thread to look at `state`.
    wake: Event,
}

struct State {
    traffic: [Traffic; 2],
    /// Counts changes of the parameters, and how many of them the thread has taken over.
    asked: u64,
    taken: u64,
    stop: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running relay. Dropping it ends it, with all its connections.
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
    /// Listens on `listen` (port 0 finds one) for TCP and UDP and forwards both to `target`, over a link
    /// that does `params` in both directions. The same seed and the same traffic have the same fate.
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

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes one direction. What is sent after this returns meets the change.
    pub fn set(&self, direction: Direction, params: Params) {
        self.change(|traffic| traffic[direction as usize].params = params);
    }

    /// Changes both directions likewise.
    pub fn set_both(&self, params: Params) {
        self.change(|traffic| traffic.iter_mut().for_each(|one| one.params = params.clone()));
    }

    /// Cuts the link, both ways, and leaves its parameters alone.
    pub fn cut(&self) {
        self.change(|traffic| traffic.iter_mut().for_each(|one| one.params.down = true));
    }

    /// Mends it.
    pub fn restore(&self) {
        self.change(|traffic| traffic.iter_mut().for_each(|one| one.params.down = false));
    }

    /// What a direction is doing and has done.
    pub fn traffic(&self, direction: Direction) -> Traffic {
        self.shared.lock().traffic[direction as usize].clone()
    }

    fn change(&self, how: impl FnOnce(&mut [Traffic; 2])) {
        let mut state = self.shared.lock();
        how(&mut state.traffic);
        state.asked += 1;
        self.shared.wake.signal();
        let pending = |state: &mut State| state.taken != state.asked;
        // On time or not, the change is made.
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

/// One port for both protocols.
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
