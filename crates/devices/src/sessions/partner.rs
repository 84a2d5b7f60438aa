//! The device partner of a disk with several sessions.

use super::connection::{CALLS_MAX, Connection, Loss, limit_unsent};
use super::demand::{Demand, Progress};
use super::schedule::Schedule;
use super::server::OUTLASTED;
use super::{CHUNK_BYTES, Session, SessionCount};
use crate::flows::{Endpoint, FlowPartner, invalid};
use contract::{
    Ctl, CtlReply, Direction, FlowKey, Format, Interest, Message, Next, PartnerError, PartnerResult,
    PullSlot, Readiness, RecoveryCtl, Time,
};
use rustix::net::{Shutdown, shutdown};
use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;
use sys::clock::boot_ns;
use sys::net::Room;
use sys::poller::PollSet;
use wire::formats::block::{Geometry, REQUEST_BYTES, ToDisk};

/// Time from the end of a lost session until none of its writes reaches the disk any more: a server may finish them after
/// it has closed the connection, and something else on the way may have closed it.
pub(crate) const LATE: Duration = Duration::from_secs(2);
/// The same if the server's end remains unknown.
const LATE_UNKNOWN: Duration = Duration::from_secs(30);
/// The same for a session whose bytes this host's kernel may still send, because the server is silent or reads nothing: the kernel ends it at
/// its next attempt, at most 120 s after the one before.
const LATE_SILENT: Duration = Duration::from_secs(180);
/// Time between two looks at the open sessions while requests wait.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Bytes of a lost session that are discarded at a time.
const DISCARD_BYTES: usize = 64 << 10;
/// Name of no session: the event of a socket that is not watched any more.
const FIRST_NAME: u64 = 1;

/// A disk on a server, as a device class describes it to its partner.
pub(crate) struct Disk {
    /// Its name for messages.
    pub(crate) name: String,
    /// Its facts.
    pub(crate) geometry: Geometry,
    /// The number of sessions.
    pub(crate) count: SessionCount,
    /// The server may let in one client only. A silent session stays then until another one is open: nobody else would tell the
    /// server that this client has gone, and it would let in no other one for ever.
    pub(crate) is_alone: bool,
    /// The longest time in which a connection becomes an open session.
    pub(crate) timeout: Duration,
    /// Starts the protocol on a connection. The argument is the slot of the session.
    pub(crate) session: Box<dyn Fn(u32) -> Box<dyn Session> + Send>,
}

/// A session that the server has not accepted yet.
struct Opening {
    connection: Connection,
    until: Time,
}

/// A session that is lost, and whose writes may still reach the disk.
struct Lost {
    name: u64,
    /// `None` for a session of an earlier process.
    slot: Option<u32>,
    /// `None` once the server has closed it.
    socket: Option<OwnedFd>,
    /// The socket may have bytes.
    may_receive: bool,
    until: Time,
}

/// A disk on a server as a partner.
pub(crate) struct DiskPartner {
    disk: Disk,
    schedule: Schedule,
    demand: Demand,
    /// The open sessions.
    connections: Vec<Connection>,
    opening: Vec<Opening>,
    lost: Vec<Lost>,
    check_at: Option<Time>,
    set: PollSet,
    next_name: u64,
    /// Sessions that were lost.
    losses: u64,
    round_trip: Duration,
    /// The shortest round trip that a session had when it opened: later ones include the queue of its own data.
    round_trip_min: Option<Duration>,
    notes: VecDeque<String>,
    is_finishing: bool,
}

impl DiskPartner {
    /// Creates a partner without a session; it wants the first one at once. `earlier`: the sessions of a process before this one.
    pub(crate) fn new(disk: Disk, earlier: Vec<OwnedFd>) -> io::Result<FlowPartner<DiskPartner>> {
        let partner = DiskPartner::begin(disk, earlier)?;
        Ok(FlowPartner::new(partner, Some(Format::Block), Some(Format::Block)))
    }

    fn begin(disk: Disk, earlier: Vec<OwnedFd>) -> io::Result<DiskPartner> {
        let mut partner = DiskPartner {
            schedule: Schedule::new(disk.geometry, CHUNK_BYTES),
            demand: Demand::new(disk.count),
            disk,
            connections: Vec::new(),
            opening: Vec::new(),
            lost: Vec::new(),
            check_at: None,
            set: PollSet::new()?,
            next_name: FIRST_NAME,
            losses: 0,
            round_trip: Duration::ZERO,
            round_trip_min: None,
            notes: VecDeque::new(),
            is_finishing: false,
        };
        for socket in earlier {
            rustix::io::ioctl_fionbio(&socket, true)?;
            let name = partner.take_name();
            partner.schedule.inherit(name);
            let longest = partner.longest(&socket);
            partner.watch(name, None, socket, longest)?;
        }
        partner.run_demand(now());
        Ok(partner)
    }

    fn take_name(&mut self) -> u64 {
        self.next_name += 1;
        self.next_name - 1
    }

    /// Returns the slot for the next session: the lowest that has a lost session and no other one, else the lowest free one.
    fn free_slot(&self) -> u32 {
        let used: BTreeSet<u32> = self
            .connections
            .iter()
            .chain(self.opening.iter().map(|one| &one.connection))
            .map(|one| one.slot)
            .collect();
        let lost = self.lost.iter().filter_map(|lost| lost.slot).filter(|slot| !used.contains(slot)).min();
        lost.unwrap_or_else(|| (0..).find(|slot| !used.contains(slot)).unwrap_or(0))
    }

    /// Begins a session.
    fn add(&mut self, socket: OwnedFd) -> io::Result<()> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        let (name, slot) = (self.take_name(), self.free_slot());
        self.set.add_changes(&socket, name)?;
        let connection = Connection::new(name, slot, socket, (self.disk.session)(slot));
        self.opening.push(Opening { connection, until: now().after(self.disk.timeout) });
        self.open_ready(now());
        Ok(())
    }

    /// Opens the sessions that the server has accepted.
    fn open_ready(&mut self, now: Time) {
        while let Some(index) = self.opening.iter().position(|one| one.connection.is_open()) {
            let connection = self.opening.remove(index).connection;
            if connection.replaces_earlier() {
                self.handle_replaced(connection.slot, now);
            }
            self.schedule.open(connection.name, connection.order_bytes_max());
            self.connections.push(connection);
            self.measure_way();
            self.end_silent();
            self.limit_lost();
            let progress = self.progress();
            self.demand.handle_opened(progress, now);
        }
    }

    /// Tells the sessions the round trip of the idle line: the shortest that any of them had. The kernel's own minimum grows again
    /// while a queue stands.
    fn measure_way(&mut self) {
        let states = self.connections.iter().filter_map(|one| sys::net::stream_state(&one.socket).ok());
        self.round_trip_min = states.map(|state| state.round_trip_min).chain(self.round_trip_min).min();
        if let Some(shortest) = self.round_trip_min {
            self.connections.iter_mut().for_each(|connection| connection.use_round_trip(shortest));
        }
    }

    /// Gives up the sessions whose server is silent, once another one is open.
    fn end_silent(&mut self) {
        while self.disk.is_alone
            && let Some(index) = self.connections.iter().position(|one| one.is_silent)
        {
            self.lose(index, &Loss::Silent);
        }
    }

    /// Returns the longest time to wait until the server has closed a session. Without another session nothing can be written. So the kernel
    /// may keep the bytes of the only one until there is another: the server may let in none before it has read the end of this one.
    fn longest(&self, socket: &OwnedFd) -> Duration {
        // A local socket has no such state, and its kernel keeps nothing that the server could not read at once.
        if sys::net::stream_state(socket).is_err() {
            return LATE_UNKNOWN;
        }
        if self.disk.is_alone {
            return OUTLASTED;
        }
        limit_unsent(socket);
        LATE_SILENT
    }

    /// Limits the wait for the lost sessions that outlast a failure, once another one is open: the kernel drops what they have not sent.
    fn limit_lost(&mut self) {
        if self.connections.is_empty() {
            return;
        }
        let until = now().after(LATE_SILENT);
        for lost in self.lost.iter_mut().filter(|lost| lost.until > until) {
            lost.socket.iter().for_each(limit_unsent);
            lost.until = until;
        }
    }

    /// Returns the number of sessions that an attempt to get another one counts on.
    fn count_open(&self) -> u32 {
        let is_usable = |one: &&Connection| !(self.disk.is_alone && one.is_silent);
        self.connections.iter().filter(is_usable).count() as u32
    }

    /// Handles that the server has ended the lost sessions of a slot. It may still finish their writes.
    fn handle_replaced(&mut self, slot: u32, now: Time) {
        for lost in self.lost.iter_mut().filter(|lost| lost.slot == Some(slot)) {
            lost.until = lost.until.min(now.after(LATE));
        }
    }

    /// Advances the sessions that the server has not accepted yet.
    fn run_opening(&mut self, now: Time) {
        let mut index = 0;
        while let Some(Opening { connection, until }) = self.opening.get_mut(index) {
            let run = connection.receive(&mut self.schedule).and_then(|()| connection.send());
            let problem = match run {
                Ok(()) if *until > now => {
                    index += 1;
                    continue;
                }
                Ok(()) => format!("it does not answer for {:?}", self.disk.timeout),
                Err(loss) => loss.reason().into(),
            };
            let connection = self.opening.remove(index).connection;
            self.set.remove(&connection.socket);
            let _ = shutdown(&connection.socket, Shutdown::Both);
            self.handle_failed(&problem, now);
        }
        self.open_ready(now);
    }

    /// Handles an attempt that has failed.
    fn handle_failed(&mut self, problem: &str, now: Time) {
        let open = self.count_open();
        if self.demand.handle_failed(open, now) {
            let left = if open == 0 { "requests wait".into() } else { format!("it continues with {open}") };
            self.note(format!(
                "no further session with {}: {problem}; {left}, and it tries again",
                self.disk.name
            ));
        }
    }

    /// Waits until the server has closed a lost session, for `longest` at most.
    fn watch(&mut self, name: u64, slot: Option<u32>, socket: OwnedFd, longest: Duration) -> io::Result<()> {
        // It fails for a connection that is closed already.
        let _ = shutdown(&socket, Shutdown::Write);
        self.set.add_changes(&socket, name)?;
        let until = now().after(longest);
        self.lost.push(Lost { name, slot, socket: Some(socket), may_receive: true, until });
        Ok(())
    }

    /// Waits for a lost session without a socket.
    fn wait(&mut self, name: u64, slot: u32, until: Time) {
        self.lost.push(Lost { name, slot: Some(slot), socket: None, may_receive: false, until });
    }

    fn progress(&self) -> Progress {
        Progress {
            done_bytes: self.schedule.done_bytes(),
            open: self.count_open(),
            round_trip: self.round_trip,
            is_limited: self.schedule.is_limited(),
            needs_session: self.schedule.needs_session(),
        }
    }

    /// Does everything that is due now.
    fn serve(&mut self) -> PartnerResult {
        self.take_events()?;
        self.receive();
        let waiting = self.lost.iter_mut().filter(|lost| lost.may_receive);
        waiting.for_each(|lost| discard(lost, &self.set));
        let now = now();
        self.run_opening(now);
        self.check_silence(now);
        let opening = self.opening.iter_mut().map(|one| &mut one.connection);
        self.connections.iter_mut().chain(opening).for_each(|connection| connection.run_pause(now));
        self.run_demand(now);
        self.end_late(now);
        let losses = self.losses;
        self.send();
        if self.losses > losses {
            // Nothing else would let it proceed.
            self.run_demand(now);
        }
        Ok(())
    }

    /// Looks for dead servers while requests wait. The kernel asks an idle connection.
    fn check_silence(&mut self, now: Time) {
        match self.check_at {
            _ if self.schedule.is_idle() => {
                self.check_at = None;
                if self.disk.is_alone {
                    self.connections.iter_mut().for_each(Connection::forget_silence);
                }
            }
            Some(at) if at > now => {}
            _ => {
                let may_end = !self.disk.is_alone;
                self.connections.iter_mut().for_each(|connection| connection.check_silence(now, may_end));
                self.measure_way();
                self.check_at = Some(now.after(CHECK_INTERVAL));
            }
        }
    }

    /// Notes the sockets that have become ready.
    fn take_events(&mut self) -> PartnerResult {
        let mut is_full = true;
        while is_full {
            let ready = self.set.ready().map_err(|error| PartnerError::os("epoll", error))?;
            let mut count = 0;
            for name in ready {
                count += 1;
                let opening = self.opening.iter_mut().map(|one| &mut one.connection);
                if let Some(connection) =
                    self.connections.iter_mut().chain(opening).find(|one| one.name == name)
                {
                    connection.handle_event();
                } else if let Some(lost) = self.lost.iter_mut().find(|lost| lost.name == name) {
                    lost.may_receive = true;
                }
            }
            is_full = count == PollSet::READY_MAX;
        }
        Ok(())
    }

    fn receive(&mut self) {
        let mut index = 0;
        while let Some(connection) = self.connections.get_mut(index) {
            match connection.receive(&mut self.schedule) {
                Ok(()) => index += 1,
                Err(loss) => self.lose(index, &loss),
            }
        }
    }

    /// Assigns what is ready, and sends it.
    fn send(&mut self) {
        for connection in &self.connections {
            if let Some(bytes_max) = connection.write_bytes_max() {
                self.schedule.limit_writes(connection.name, bytes_max);
            }
        }
        while let Some(assigned) = self.schedule.assign() {
            if let Some(connection) = self.connections.iter_mut().find(|one| one.name == assigned.session) {
                connection.submit(assigned);
            }
        }
        let mut index = 0;
        while let Some(connection) = self.connections.get_mut(index) {
            match connection.send() {
                Ok(()) => index += 1,
                Err(loss) => self.lose(index, &loss),
            }
        }
    }

    /// Removes a session that is lost.
    fn lose(&mut self, index: usize, loss: &Loss) {
        let Connection { name, slot, socket, has_replied, .. } = self.connections.remove(index);
        self.set.remove(&socket);
        self.losses += 1;
        if !has_replied {
            self.demand.handle_unused(self.count_open(), now());
        }
        self.note(format!("a session with {} is lost: {}", self.disk.name, loss.reason()));
        if !self.schedule.handle_lost(name, loss.order(), self.next_name) {
            let _ = shutdown(&socket, Shutdown::Both);
            return;
        }
        let longest = match loss {
            Loss::Closed(_) => {
                let _ = shutdown(&socket, Shutdown::Both);
                return self.wait(name, slot, now().after(LATE));
            }
            Loss::Failed(_) => return self.wait(name, slot, now().after(LATE_UNKNOWN)),
            Loss::Refused { .. } => self.longest(&socket),
            Loss::Silent => {
                // The network may be back, so the server may still get all of it: then it closes the session.
                limit_unsent(&socket);
                LATE_SILENT
            }
        };
        if self.watch(name, Some(slot), socket, longest).is_err() {
            self.wait(name, slot, now().after(longest));
        }
        self.limit_lost();
    }

    fn note(&mut self, note: String) {
        if self.notes.len() < NOTES_MAX {
            self.notes.push_back(note);
        }
    }

    fn run_demand(&mut self, now: Time) {
        if self.demand.due().is_some_and(|due| due <= now)
            && let Some(first) = self.connections.first()
            && let Ok(state) = sys::net::stream_state(&first.socket)
        {
            self.round_trip = state.round_trip;
        }
        let progress = self.progress();
        self.demand.run(progress, now);
        self.schedule.use_sessions(self.demand.used());
        while let Some(name) = self.schedule.take_surplus(self.demand.kept()) {
            if let Some(index) = self.connections.iter().position(|one| one.name == name) {
                let connection = self.connections.remove(index);
                self.set.remove(&connection.socket);
                connection.end(false);
            }
        }
    }

    /// Lets the requests proceed that waited for a lost session.
    fn end_late(&mut self, now: Time) {
        let (over, lost) = std::mem::take(&mut self.lost).into_iter().partition(|lost| lost.until <= now);
        self.lost = lost;
        let over: Vec<Lost> = over;
        for Lost { name, socket, .. } in over {
            if let Some(socket) = socket {
                self.set.remove(&socket);
                let _ = shutdown(&socket, Shutdown::Both);
            }
            self.schedule.handle_gone(name);
        }
    }

    fn is_due(&self) -> bool {
        let opening = self.opening.iter().map(|one| &one.connection);
        self.schedule.has_answer()
            || self.connections.iter().chain(opening).any(Connection::is_due)
            || self.lost.iter().any(|lost| lost.may_receive)
    }
}

/// The most notes for the user that wait.
const NOTES_MAX: usize = 16;

fn now() -> Time {
    Time(boot_ns())
}

/// Discards what a lost session has received, until the server has closed it.
fn discard(lost: &mut Lost, set: &PollSet) {
    let Some(socket) = &lost.socket else { return };
    for _ in 0..CALLS_MAX {
        let mut buffer = bytes::BytesMut::with_capacity(DISCARD_BYTES);
        let received = sys::net::receive(socket, [Room { buffer: &mut buffer, limit: DISCARD_BYTES }]);
        let is_closed = match received {
            Ok(1..) => continue,
            Ok(0) => true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                lost.may_receive = false;
                return;
            }
            // Of a network that has failed, the server may not know.
            Err(error) => matches!(Loss::of(&error), Loss::Closed(_)),
        };
        set.remove(socket);
        let _ = shutdown(socket, Shutdown::Both);
        let late = if is_closed { LATE } else { LATE_UNKNOWN };
        lost.until = now().after(late).min(lost.until);
        (lost.socket, lost.may_receive) = (None, false);
        return;
    }
}

impl Endpoint for DiskPartner {
    fn accept(&mut self, message: &mut Message) -> PartnerResult<bool> {
        if self.is_finishing {
            return Err(PartnerError::Unsupported("accepting requests after the end"));
        }
        if !self.schedule.has_room() {
            return Ok(false);
        }
        let length = message.body.len();
        let mut front = [0; REQUEST_BYTES];
        let front = &mut front[..length.min(REQUEST_BYTES)];
        let mut at = 0;
        for chunk in message.body.chunks() {
            let count = chunk.len().min(front.len() - at);
            front[at..at + count].copy_from_slice(&chunk[..count]);
            at += count;
        }
        let request = ToDisk::parse(front, length).map_err(invalid)?;
        self.schedule.accept(request, std::mem::take(&mut message.body));
        Ok(true)
    }

    fn next(&mut self, now: Time) -> PartnerResult<Next> {
        if !self.schedule.has_answer() {
            self.serve()?;
        }
        let answer = self.schedule.take_answer();
        Ok(answer.map_or(Next::Nothing, |body| {
            Next::Message(Message { created: now, body, ..Message::default() })
        }))
    }

    fn ctl(&mut self, _: FlowKey, operation: Ctl<'_>, _: &mut PullSlot) -> PartnerResult<CtlReply> {
        match operation {
            Ctl::Flush => self.serve().map(|()| CtlReply::Done),
            Ctl::Finish => {
                self.is_finishing = true;
                self.serve()?;
                Ok(if self.schedule.is_idle() { CtlReply::Done } else { CtlReply::Pending })
            }
            Ctl::Report => {
                let searched = self.demand.searched();
                let open = self.count_open();
                Ok(CtlReply::Report(vec![
                    ("sessions", f64::from(self.demand.used().min(open))),
                    ("sessions open", f64::from(open)),
                    ("sessions lost", self.losses as f64),
                    ("sessions refused", self.demand.failed() as f64),
                    ("orders sent again", self.schedule.reissued() as f64),
                    ("requests waiting", self.schedule.unanswered() as f64),
                    ("data bytes", self.schedule.done_bytes() as f64),
                    ("searches", searched.searches as f64),
                    ("search steps", f64::from(searched.steps)),
                    ("search seconds", searched.lasted.as_secs_f64()),
                ]))
            }
            // A disk has no state that a held key or a running motor would have.
            Ctl::Neutral => Ok(CtlReply::Done),
            Ctl::Recovery(RecoveryCtl::PartialWrite) => Ok(CtlReply::Done),
            _ => Err(PartnerError::Unsupported("this operation")),
        }
    }

    fn readiness(&self, direction: Direction) -> Readiness<'_> {
        let waits = || {
            let lost = self.lost.iter().map(|lost| lost.until).min();
            let opening = self.opening.iter().map(|one| one.until).min();
            let agreeing = self.opening.iter().map(|one| &one.connection);
            let pause = self.connections.iter().chain(agreeing).filter_map(|one| one.resume_at).min();
            let due = [self.demand.due(), lost, opening, pause, self.check_at].into_iter().flatten().min();
            Readiness::descriptor(self.set.as_fd(), Interest::Read).or_at(due)
        };
        match direction {
            Direction::In => Readiness { now: self.schedule.has_room() && !self.is_finishing, ..waits() },
            Direction::Out => Readiness { now: self.is_due(), ..waits() },
        }
    }

    fn connections_wanted(&mut self) -> u32 {
        if self.demand.has_requested() { self.demand.take_requested() } else { 0 }
    }

    fn connected(&mut self, result: Result<OwnedFd, String>) -> PartnerResult {
        let now = now();
        let added = result.and_then(|socket| self.add(socket).map_err(|error| error.to_string()));
        if let Err(problem) = added {
            self.handle_failed(&problem, now);
        }
        self.serve()
    }

    fn note(&mut self) -> Option<String> {
        self.notes.pop_front()
    }
}

impl Drop for DiskPartner {
    fn drop(&mut self) {
        let has_orders = !self.schedule.is_idle();
        for connection in self.connections.drain(..).chain(self.opening.drain(..).map(|one| one.connection)) {
            self.set.remove(&connection.socket);
            connection.end(has_orders);
        }
        // Nobody waits for them any more.
        self.lost.iter().filter_map(|lost| lost.socket.as_ref()).for_each(limit_unsent);
    }
}

#[cfg(test)]
mod tests;
