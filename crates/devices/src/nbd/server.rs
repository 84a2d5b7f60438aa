//! The server as a partner: requests of all clients are pulled out of it, the answers of the disk are pushed into it.
//!
//! | state | event | action | next |
//! |---|---|---|---|
//! | beginning | the partner begins, *ready* | *begin* with a new number | beginning |
//! | beginning | *described* with this number | all requests without an answer, in their order | open |
//! | beginning | a request of a client | it waits | beginning |
//! | open | a request of a client | the request | open |
//! | open | *ready* | *begin* with a new number | beginning |
//! | beginning | an answer | none: its request is sent again | beginning |
//! | open | an answer | the reply to the client | open |

use super::acceptor::{BEGIN, CLOSED, PACKET_BYTES};
use super::connection::{Connection, Descriptors};
use super::memory::{self, CONNECTIONS_MAX, Place, REQUESTS_MAX};
use super::unflushed::Unflushed;
use crate::flows::{Endpoint, FlowPartner, invalid};
use crate::stream::now;
use bytes::{Bytes, BytesMut};
use contract::{
    Body, Ctl, CtlReply, Direction, FlowKey, Format, Interest, Message, Next, PartnerError, PartnerResult,
    PullSlot, Readiness, Time,
};
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::net::{SendFlags, send};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use sys::clock::boot_ns;
use sys::descriptor::receive_with;
use sys::memory::Shared;
use wire::formats::block::{ANSWER_BYTES, Answer, Failure, FromDisk, Geometry, REQUEST_BYTES, ToDisk};

/// Data of an event that is not that of a connection: a packet of the acceptor.
const ACCEPTOR: u64 = CONNECTIONS_MAX as u64;
/// Connections and events that are looked at before the path proceeds.
const EVENTS_MAX: usize = 2 * CONNECTIONS_MAX;
/// Times that events are looked at for one request.
const TURNS_MAX: usize = 8;

/// The agreement with the disk's side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Beginning { number: u64, is_sent: bool },
    Open,
}

/// Figures of [`Ctl::Report`].
#[derive(Debug, Default)]
struct Counts {
    connections: u64,
    requests: u64,
    repeated: u64,
    answers: u64,
    failures: u64,
    late: u64,
    beginnings: u64,
}

/// A connection in the server.
struct Client {
    connection: Connection,
    /// The events that the kernel reports; empty if it is not asked for any, because it would report a hang-up again and again.
    interest: EventFlags,
    /// Something happened that its state may follow from.
    is_changed: bool,
}

/// A request that is to be sent.
#[derive(Debug, Clone, Copy)]
struct Due {
    client: usize,
    id: u64,
    entry: usize,
    sequence: u64,
}

/// The NBD server as a partner.
pub(super) struct Server {
    name: String,
    geometry: Geometry,
    acceptor: OwnedFd,
    memory: Arc<Shared>,
    epoll: OwnedFd,
    nonce: u64,
    clients: [Option<Client>; CONNECTIONS_MAX],
    state: State,
    due: VecDeque<Due>,
    unflushed: Unflushed,
    counts: Counts,
}

/// The id of a request on the wire: its client, its entry, and the low bits of its number.
fn wire_id(client: usize, entry: usize, sequence: u64) -> u64 {
    (sequence << 12) | ((client as u64) << 8) | entry as u64
}

const _: () = assert!(CONNECTIONS_MAX <= 16 && REQUESTS_MAX <= 256);

impl Server {
    /// Creates a partner on the acceptor's socket and the memory of the connections.
    pub(super) fn new(
        name: String,
        geometry: Geometry,
        acceptor: OwnedFd,
        memory: OwnedFd,
    ) -> io::Result<FlowPartner<Self>> {
        let (memory, epoll) = (memory::map(memory)?, epoll::create(CreateFlags::CLOEXEC)?);
        epoll::add(&epoll, &acceptor, EventData::new_u64(ACCEPTOR), EventFlags::IN)?;
        let nonce = boot_ns();
        let request = [&[BEGIN][..], &nonce.to_le_bytes()].concat();
        send(&acceptor, &request, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
        let server = Server {
            name,
            geometry,
            acceptor,
            unflushed: Unflushed::new(memory.clone()),
            memory,
            epoll,
            nonce,
            clients: std::array::from_fn(|_| None),
            state: State::Beginning { number: nonce, is_sent: false },
            due: VecDeque::new(),
            counts: Counts::default(),
        };
        Ok(FlowPartner::new(server, Some(Format::Block), Some(Format::Block)))
    }

    fn failed(&self, error: io::Error) -> PartnerError {
        PartnerError::os(format!("serving {}", self.name), error)
    }

    /// Takes the connections that the acceptor has sent.
    fn accept_clients(&mut self) -> PartnerResult {
        let (mut packet, mut descriptors) = (BytesMut::new(), VecDeque::new());
        loop {
            packet.clear();
            descriptors.clear();
            match receive_with(&self.acceptor, &mut packet, PACKET_BYTES, Some(&mut descriptors)) {
                Ok(0) => return Err(PartnerError::Gone(self.name.clone())),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(self.failed(error)),
            }
            let numbers = packet.split_first_chunk().and_then(|(nonce, rest)| {
                let (place, id) = rest.split_first()?;
                Some((
                    u64::from_le_bytes(*nonce),
                    usize::from(*place),
                    u64::from_le_bytes(*id.first_chunk()?),
                ))
            });
            let given: [Option<OwnedFd>; 3] = std::array::from_fn(|_| descriptors.pop_front());
            let (Some((nonce, place, id)), [Some(socket), Some(read), Some(write)]) = (numbers, given) else {
                continue;
            };
            if nonce == self.nonce && place < CONNECTIONS_MAX && self.clients[place].is_none() {
                self.add_client(place, id, Descriptors { socket, pipe: [read, write] })?;
            }
        }
    }

    fn add_client(&mut self, place: usize, id: u64, descriptors: Descriptors) -> PartnerResult {
        let connection = Connection::new(id, descriptors, Place::new(self.memory.clone(), place));
        self.counts.connections += 1;
        // While the state is not open, all requests follow with the description.
        if self.state == State::Open {
            let unanswered = connection.unanswered();
            let due = unanswered.iter().map(|(entry, sequence)| Due {
                client: place,
                id,
                entry: *entry,
                sequence: *sequence,
            });
            self.due.extend(due);
        }
        self.clients[place] = Some(Client { connection, interest: EventFlags::empty(), is_changed: true });
        self.turn(place)
    }

    /// Lets a client proceed as far as it can.
    fn turn(&mut self, place: usize) -> PartnerResult {
        let Some(client) = self.clients.get_mut(place).and_then(Option::as_mut) else { return Ok(()) };
        client.is_changed = false;
        let (connection, due, counts) = (&mut client.connection, &mut self.due, &mut self.counts);
        let id = connection.id;
        let is_open = self.state == State::Open;
        connection.proceed(&self.geometry, |entry, sequence| {
            counts.requests += 1;
            if is_open {
                due.push_back(Due { client: place, id, entry, sequence });
            }
        });
        if connection.is_over() {
            let packet = [&[CLOSED, place as u8][..], &id.to_le_bytes()].concat();
            // It fails when the broker is gone, and with it the connection.
            let _ = send(&self.acceptor, &packet, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
            let watched = self.watch(place, EventFlags::empty());
            self.clients[place] = None;
            return watched;
        }
        let mut interest = EventFlags::empty();
        interest.set(EventFlags::IN, connection.wants_input());
        interest.set(EventFlags::OUT, connection.wants_output());
        self.watch(place, interest)
    }

    /// Asks the kernel for these events of a client.
    fn watch(&mut self, place: usize, interest: EventFlags) -> PartnerResult {
        let Some(client) = self.clients[place].as_mut() else { return Ok(()) };
        let (socket, data) = (client.connection.socket(), EventData::new_u64(place as u64));
        let before = std::mem::replace(&mut client.interest, interest);
        let changed = match (before.is_empty(), interest.is_empty()) {
            _ if before == interest => Ok(()),
            (true, _) => epoll::add(&self.epoll, socket, data, interest),
            (false, true) => epoll::delete(&self.epoll, socket),
            (false, false) => epoll::modify(&self.epoll, socket, data, interest),
        };
        changed.map_err(|error| self.failed(error.into()))
    }

    /// Handles the events of sockets. Returns false if there are none.
    fn poll(&mut self) -> PartnerResult<bool> {
        let mut events = Vec::with_capacity(EVENTS_MAX);
        let timeout = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(self.failed(error.into())),
        }
        for event in &events {
            // A copy, because the field is not aligned.
            let data = event.data;
            match data.u64() {
                ACCEPTOR => self.accept_clients()?,
                place => self.turn(place as usize)?,
            }
        }
        Ok(!events.is_empty())
    }

    /// Lets all clients proceed to whom something happened.
    fn turn_changed(&mut self) -> PartnerResult {
        for place in 0..CONNECTIONS_MAX {
            if self.clients[place].as_ref().is_some_and(|client| client.is_changed) {
                self.turn(place)?;
            }
        }
        Ok(())
    }

    /// Returns the next request to send.
    fn next_due(&mut self) -> Option<Message> {
        while let Some(Due { client: place, id, entry, sequence }) = self.due.pop_front() {
            let Some(client) = self.clients[place].as_mut().filter(|client| client.connection.id == id)
            else {
                continue;
            };
            let connection = &mut client.connection;
            let Some(request) = connection.request(entry, sequence) else { continue };
            let header = request.for_disk(wire_id(place, entry, sequence), &self.geometry);
            match header {
                Ok(_) if request.is_durable() && connection.reports_loss(sequence) => {
                    self.refuse(place, entry, sequence, Failure::Device);
                }
                Ok(header) => {
                    self.unflushed.handle_sent(&header);
                    let mut bytes = BytesMut::with_capacity(REQUEST_BYTES + request.data_bytes());
                    bytes.extend_from_slice(&header.to_bytes());
                    connection.append_data(request, &mut bytes);
                    return Some(Message::new(now(), bytes.freeze()));
                }
                Err(failure) => self.refuse(place, entry, sequence, failure),
            }
        }
        None
    }

    /// Answers a request that the disk does not get.
    fn refuse(&mut self, place: usize, entry: usize, sequence: u64, failure: Failure) {
        self.counts.failures += 1;
        if let Some(client) = self.clients[place].as_mut() {
            client.connection.answer(entry, sequence, Err(failure));
            client.is_changed = true;
        }
    }

    /// Makes all requests without an answer due.
    fn repeat(&mut self) {
        self.due.clear();
        for (place, client) in self.clients.iter().enumerate() {
            let Some(Client { connection, .. }) = client else { continue };
            let id = connection.id;
            let all = connection.unanswered().into_iter();
            self.due.extend(all.map(|(entry, sequence)| Due { client: place, id, entry, sequence }));
        }
        self.counts.repeated += self.due.len() as u64;
    }

    fn handle_answer(&mut self, answer: Answer, data: Body) {
        if self.state != State::Open {
            self.counts.late += 1;
            return;
        }
        let (place, entry) = ((answer.id >> 8 & 0xf) as usize, (answer.id & 0xff) as usize);
        let client = self.clients[place].as_mut();
        let known = client.and_then(|client| {
            let requests = client.connection.unanswered_at(entry)?;
            (wire_id(place, entry, requests) == answer.id).then_some((client, requests))
        });
        match known {
            Some((client, sequence)) => {
                if let Some(request) = client.connection.request(entry, sequence) {
                    self.unflushed.handle_answer(answer.id, &request.request, answer.result.is_ok());
                    if request.is_durable() && answer.result.is_err_and(Failure::may_report_loss) {
                        self.unflushed.handle_failure(place, sequence);
                    }
                }
                self.counts.answers += 1;
                self.counts.failures += u64::from(answer.result.is_err());
                client.connection.answer(entry, sequence, answer.result.map(|()| data));
                client.is_changed = true;
            }
            None => self.counts.late += 1,
        }
    }
}

impl Endpoint for Server {
    fn accept(&mut self, message: &mut Message) -> PartnerResult<bool> {
        let length = message.body.len();
        let mut front = [0; FromDisk::HEADER_BYTES_MAX];
        let filled = message.body.copy_front(&mut front);
        match FromDisk::parse(&front[..filled], length).map_err(invalid)? {
            FromDisk::Ready => {
                self.due.clear();
                self.counts.beginnings += 1;
                self.state = State::Beginning { number: boot_ns(), is_sent: false };
            }
            FromDisk::Described { number, geometry, instance } => {
                if matches!(self.state, State::Beginning { number: last, is_sent: true } if last == number) {
                    self.unflushed.handle_described(instance);
                    self.geometry = geometry;
                    self.state = State::Open;
                    self.repeat();
                }
            }
            FromDisk::Answer(answer) => {
                let mut data = std::mem::take(&mut message.body);
                data.skip_front(ANSWER_BYTES);
                self.handle_answer(answer, data);
            }
        }
        Ok(true)
    }

    fn next(&mut self, _now: Time) -> PartnerResult<Next> {
        if let State::Beginning { number, is_sent } = &mut self.state
            && !std::mem::replace(is_sent, true)
        {
            let begin = Bytes::from(ToDisk::Begin { number: *number }.to_bytes());
            return Ok(Next::Message(Message::new(now(), begin)));
        }
        // Clients that only send what is refused do not hold up the path.
        for _ in 0..TURNS_MAX {
            if self.state == State::Open
                && let Some(message) = self.next_due()
            {
                return Ok(Next::Message(message));
            }
            self.turn_changed()?;
            if !self.poll()? {
                break;
            }
        }
        Ok(Next::Nothing)
    }

    fn ctl(&mut self, _flow: FlowKey, operation: Ctl<'_>, _slot: &mut PullSlot) -> PartnerResult<CtlReply> {
        match operation {
            Ctl::Flush | Ctl::Finish => self.turn_changed().map(|()| CtlReply::Done),
            Ctl::Report => {
                let counts = &self.counts;
                let clients = self.clients.iter().flatten().count();
                Ok(CtlReply::Report(vec![
                    ("clients", clients as f64),
                    ("connections", counts.connections as f64),
                    ("requests", counts.requests as f64),
                    ("answers", counts.answers as f64),
                    ("failures", counts.failures as f64),
                    ("requests sent again", counts.repeated as f64),
                    ("late answers", counts.late as f64),
                    ("restarts of the disk", counts.beginnings as f64),
                ]))
            }
            _ => Err(PartnerError::Unsupported("this control operation")),
        }
    }

    fn readiness(&self, direction: Direction) -> Readiness<'_> {
        let is_due = match self.state {
            State::Beginning { is_sent, .. } => !is_sent,
            State::Open => !self.due.is_empty(),
        };
        match direction {
            Direction::In => Readiness::now(),
            Direction::Out if is_due => Readiness::now(),
            Direction::Out => Readiness::descriptor(self.epoll.as_fd(), Interest::Read),
        }
    }
}
