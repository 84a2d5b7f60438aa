//! The thread of the relay: one loop over all sockets and both links. It sleeps in `ppoll` until a socket is
//! ready or a packet is due.

use super::splice::{SEGMENT_BYTES, SEGMENT_HEADER_BYTES, Segment, Splice};
use super::{CLIENTS_MAX, CONNECTIONS_MAX, Direction, Shared};
use crate::{Dropped, Link, Packet, Params};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::{BTreeMap, HashMap};
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The length of the headers of IPv4 and UDP.
const DATAGRAM_HEADER_BYTES: u32 = 28;
/// The most datagrams or connections accepted from one socket before due packets are served again.
const BATCH: usize = 64;
/// The most bytes of one read from a TCP socket.
const READ_BYTES: usize = 45 * SEGMENT_BYTES;
/// The first retransmission timeout: the minimum of Linux's TCP (`TCP_RTO_MIN`).
const RESEND_NS: u64 = 200_000_000;
/// The timeout doubles this often: from 200 ms to 51 s.
const RESEND_DOUBLINGS_MAX: u32 = 8;

/// The payload of a link.
#[derive(Clone)]
enum Parcel {
    Datagram { client: u64, body: Box<[u8]> },
    Segment { connection: u64, segment: Segment },
}

impl Packet for Parcel {
    fn corrupt(&mut self, random: u64) {
        match self {
            Parcel::Datagram { body, .. } => body.corrupt(random),
            Parcel::Segment { segment, .. } => segment.damaged = true,
        }
    }
}

/// A UDP client, and its socket towards the target.
struct Client {
    address: SocketAddr,
    socket: UdpSocket,
    last_used_ns: u64,
}

/// A ready descriptor.
#[derive(Clone, Copy)]
enum Ready {
    Control,
    Listener,
    Datagrams,
    Client(u64),
    Read(u64, Direction),
    Write(u64, Direction),
}

pub(super) struct Carrier {
    shared: Arc<Shared>,
    started: Instant,
    tcp: TcpListener,
    udp: UdpSocket,
    target: SocketAddr,
    links: [Link<Parcel>; 2],
    refused: [u64; 2],
    clients: HashMap<u64, Client>,
    splices: HashMap<u64, Splice>,
    /// The next identifier of a client or connection; never reused.
    next_id: u64,
    /// Lost segments by the time of their retransmission.
    resends: BTreeMap<(u64, u64), (Direction, u64, Segment)>,
    resend_count: u64,
    buffer: Vec<u8>,
}

impl Carrier {
    pub(super) fn new(
        shared: Arc<Shared>,
        tcp: TcpListener,
        udp: UdpSocket,
        target: SocketAddr,
        params: &Params,
        seed: u64,
    ) -> Carrier {
        Carrier {
            shared,
            started: Instant::now(),
            tcp,
            udp,
            target,
            links: [Link::new(params.clone(), seed), Link::new(params.clone(), !seed)],
            refused: [0; 2],
            clients: HashMap::new(),
            splices: HashMap::new(),
            next_id: 0,
            resends: BTreeMap::new(),
            resend_count: 0,
            buffer: vec![0; READ_BYTES.max(65_536)],
        }
    }

    pub(super) fn run(mut self) {
        sys::thread::be_punctual();
        let mut ready = Vec::new();
        loop {
            self.deliver();
            self.resend();
            self.publish();
            self.wait(&mut ready);
            if !self.take_over() {
                return;
            }
            for one in ready.drain(..) {
                self.attend(one);
            }
        }
    }

    fn now_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    /// Applies changes of the parameters. Returns false when the relay must end.
    fn take_over(&mut self) -> bool {
        let shared = self.shared.clone();
        let mut state = shared.lock();
        if state.asked != state.taken {
            state.taken = state.asked;
            shared.taken.notify_all();
            let now_ns = self.now_ns();
            for direction in Direction::BOTH {
                let params = state.traffic[direction as usize].params.clone();
                for parcel in self.links[direction as usize].configure(now_ns, params) {
                    self.lose(direction, parcel);
                }
            }
        }
        !state.stop
    }

    /// Publishes the state of the links to the handle.
    fn publish(&self) {
        let mut state = self.shared.lock();
        for (index, traffic) in state.traffic.iter_mut().enumerate() {
            traffic.counters = self.links[index].counters();
            (traffic.held_packets, traffic.held_bytes) = self.links[index].held();
            traffic.refused = self.refused[index];
        }
    }

    /// Delivers the packets that are due.
    fn deliver(&mut self) {
        let now_ns = self.now_ns();
        for direction in Direction::BOTH {
            while let Some((_, parcel)) = self.links[direction as usize].pop(now_ns) {
                match parcel {
                    Parcel::Datagram { client, body } => self.deliver_datagram(direction, client, &body),
                    Parcel::Segment { connection, segment } if segment.damaged => {
                        self.resend_later(direction, connection, segment);
                    }
                    Parcel::Segment { connection, segment } => {
                        if let Some(splice) = self.splices.get_mut(&connection) {
                            let result = splice.arrive(direction, segment);
                            self.conclude(connection, result);
                        }
                    }
                }
            }
        }
    }

    fn deliver_datagram(&mut self, direction: Direction, client: u64, body: &[u8]) {
        let Some(client) = self.clients.get(&client) else { return };
        let sent = match direction {
            Direction::ToTarget => client.socket.send(body),
            Direction::FromTarget => self.udp.send_to(body, client.address),
        };
        self.refused[direction as usize] += u64::from(sent.is_err());
    }

    /// Retransmits lost segments that are due and whose link is up.
    fn resend(&mut self) {
        let now_ns = self.now_ns();
        let due: Vec<_> = self
            .resends
            .range(..=(now_ns, u64::MAX))
            .filter(|(_, (direction, ..))| !self.links[*direction as usize].params().down)
            .map(|(key, _)| *key)
            .collect();
        for key in due {
            if let Some((direction, connection, segment)) = self.resends.remove(&key) {
                self.push(direction, Parcel::Segment { connection, segment });
            }
        }
    }

    fn push(&mut self, direction: Direction, parcel: Parcel) {
        let bytes = match &parcel {
            Parcel::Datagram { body, .. } => body.len() as u32 + DATAGRAM_HEADER_BYTES,
            Parcel::Segment { segment, .. } => segment.body.len() as u32 + SEGMENT_HEADER_BYTES,
        };
        let now_ns = self.now_ns();
        if let Err(Dropped { packet, .. }) = self.links[direction as usize].push(now_ns, parcel, bytes) {
            self.lose(direction, packet);
        }
    }

    /// A packet was lost, and its link has counted it. A segment will be retransmitted.
    fn lose(&mut self, direction: Direction, parcel: Parcel) {
        if let Parcel::Segment { connection, segment } = parcel {
            self.resend_later(direction, connection, segment);
        }
    }

    fn resend_later(&mut self, direction: Direction, connection: u64, mut segment: Segment) {
        if !self.splices.contains_key(&connection) {
            return;
        }
        let params = self.links[direction as usize].params();
        let wait_ns = RESEND_NS + 2 * (params.delay_ns + params.jitter_ns);
        let due_ns = self.now_ns() + (wait_ns << segment.resent.min(RESEND_DOUBLINGS_MAX));
        segment.resent += 1;
        segment.damaged = false;
        self.resend_count += 1;
        self.resends.insert((due_ns, self.resend_count), (direction, connection, segment));
    }

    /// Sleeps until a descriptor is ready or a packet is due.
    fn wait(&mut self, ready: &mut Vec<Ready>) {
        let now_ns = self.now_ns();
        let mut wake_ns: Option<u64> = None;
        let mut wake_at = |at_ns: Option<u64>| wake_ns = wake_ns.into_iter().chain(at_ns).min();
        let mut open = [false; 2];
        for (link, open) in self.links.iter_mut().zip(&mut open) {
            *open = !link.params().down && link.room(now_ns) > 0;
            wake_at(link.deadline());
            wake_at(link.room_at());
        }
        let is_up = |direction: &Direction| !self.links[*direction as usize].params().down;
        let resend = self.resends.iter().find(|(_, (direction, ..))| is_up(direction));
        wake_at(resend.map(|((due_ns, _), _)| *due_ns));

        let mut who = vec![Ready::Control, Ready::Datagrams];
        let mut polled =
            vec![PollFd::new(&self.shared.wake, PollFlags::IN), PollFd::new(&self.udp, PollFlags::IN)];
        if self.splices.len() < CONNECTIONS_MAX {
            who.push(Ready::Listener);
            polled.push(PollFd::new(&self.tcp, PollFlags::IN));
        }
        for (id, client) in &self.clients {
            who.push(Ready::Client(*id));
            polled.push(PollFd::new(&client.socket, PollFlags::IN));
        }
        for (id, splice) in &self.splices {
            for direction in Direction::BOTH {
                // Leave out a socket without requested events: its hang-up would wake the loop constantly.
                if open[direction as usize] && splice.wants_more(direction) {
                    who.push(Ready::Read(*id, direction));
                    polled.push(PollFd::new(splice.source(direction), PollFlags::IN));
                }
                if splice.wants_to_write(direction) {
                    who.push(Ready::Write(*id, direction));
                    polled.push(PollFd::new(splice.sink(direction), PollFlags::OUT));
                }
            }
        }
        let left = wake_ns.map(|at_ns| Duration::from_nanos(at_ns.saturating_sub(self.now_ns())));
        let left = left
            .map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) });
        // An interrupted sleep is merely short.
        if poll(&mut polled, left.as_ref()).is_ok() {
            ready.extend(
                polled.iter().zip(who).filter(|(fd, _)| !fd.revents().is_empty()).map(|(_, who)| who),
            );
        }
    }

    fn attend(&mut self, ready: Ready) {
        match ready {
            Ready::Control => {
                self.shared.wake.clear();
            }
            Ready::Listener => self.accept(),
            Ready::Datagrams => self.take_from_clients(),
            Ready::Client(id) => self.take_from_target(id),
            Ready::Read(id, direction) => self.take_from_stream(id, direction),
            Ready::Write(id, direction) => {
                if let Some(splice) = self.splices.get_mut(&id) {
                    let result = splice.write(direction);
                    self.conclude(id, result);
                }
            }
        }
    }

    fn accept(&mut self) {
        for _ in 0..BATCH.min(CONNECTIONS_MAX - self.splices.len()) {
            // A connection that fails here is closed.
            let Ok((socket, _)) = self.tcp.accept() else { return };
            if let Ok(splice) = Splice::new(socket, self.target) {
                self.next_id += 1;
                self.splices.insert(self.next_id, splice);
            }
        }
    }

    fn take_from_stream(&mut self, id: u64, direction: Direction) {
        let now_ns = self.now_ns();
        let room = self.links[direction as usize].room(now_ns) as usize;
        let Some(splice) =
            self.splices.get_mut(&id).filter(|splice| room > 0 && splice.wants_more(direction))
        else {
            return;
        };
        match splice.read(direction, room, &mut self.buffer) {
            Ok(segments) => {
                for segment in segments {
                    self.push(direction, Parcel::Segment { connection: id, segment });
                }
            }
            Err(error) => self.conclude(id, Err(error)),
        }
    }

    /// Removes a connection that has ended or failed.
    fn conclude(&mut self, id: u64, result: io::Result<()>) {
        let over = result.is_err() || self.splices.get(&id).is_some_and(Splice::is_done);
        let Some(splice) = over.then(|| self.splices.remove(&id)).flatten() else { return };
        self.resends.retain(|_, (_, connection, _)| *connection != id);
        if result.is_err() {
            splice.abort();
        }
    }

    fn take_from_clients(&mut self) {
        let mut buffer = std::mem::take(&mut self.buffer);
        for _ in 0..BATCH {
            match self.udp.recv_from(&mut buffer) {
                // Without a socket for a client, drop its datagrams, as a full router does.
                Ok((count, address)) => match self.client(address) {
                    Ok(client) => {
                        self.push(
                            Direction::ToTarget,
                            Parcel::Datagram { client, body: buffer[..count].into() },
                        );
                    }
                    Err(_) => self.refused[Direction::ToTarget as usize] += 1,
                },
                // Linux reports here that the other end refused an earlier datagram.
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
                Err(_) => break,
            }
        }
        self.buffer = buffer;
    }

    fn take_from_target(&mut self, id: u64) {
        for _ in 0..BATCH {
            let Some(client) = self.clients.get(&id) else { return };
            match client.socket.recv(&mut self.buffer) {
                Ok(count) => {
                    let body = self.buffer[..count].into();
                    self.push(Direction::FromTarget, Parcel::Datagram { client: id, body });
                }
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
                Err(_) => return,
            }
        }
    }

    /// Returns the client at this address; makes a new one if needed.
    fn client(&mut self, address: SocketAddr) -> io::Result<u64> {
        let now_ns = self.now_ns();
        if let Some((id, client)) = self.clients.iter_mut().find(|(_, client)| client.address == address) {
            client.last_used_ns = now_ns;
            return Ok(*id);
        }
        if self.clients.len() >= CLIENTS_MAX {
            let oldest = self.clients.iter().min_by_key(|(_, client)| client.last_used_ns).map(|(id, _)| *id);
            oldest.and_then(|id| self.clients.remove(&id));
        }
        let any: SocketAddr = match self.target {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = UdpSocket::bind(any)?;
        socket.connect(self.target)?;
        socket.set_nonblocking(true)?;
        self.next_id += 1;
        self.clients.insert(self.next_id, Client { address, socket, last_used_ns: now_ns });
        Ok(self.next_id)
    }
}
