//! The control channel of a session over its present connection, with the peer's liveness and clock offset.

use contract::Time;
use flow::types::LinkFacts;
use session::{ChannelError, ClockEstimator, ControlChannel, Heartbeat, Limits, SavedChannel};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;
use sys::poller::Poller;
use thiserror::Error;
use trust::PeerKey;
use trust::channel::ControlStream;
use trust::link_keys::LinkKeys;
use trust::quic_stream::QuicStream;
use wire::Control;
use wire::preamble::Introduction;

const READ_BYTES: usize = 16 << 10;
/// Most messages and reads in one turn, so that a fast peer does not starve the others.
const STEPS_AT_ONCE: u32 = 64;
/// Timeout for the delivery of a goodbye: some round trips of a long path.
const PARTING: Duration = Duration::from_millis(500);

/// The reason why a control connection has failed.
#[derive(Debug, Error)]
pub enum LinkError {
    #[error("the other host closed the connection")]
    /// The peer closed the connection.
    Closed,
    #[error("the other host ended the session: {0}")]
    /// The peer said goodbye.
    Goodbye(String),
    #[error("the connection broke: {0}")]
    /// The socket failed.
    Io(#[from] io::Error),
    #[error("{0}")]
    /// The peer violated the protocol of the control channel.
    Channel(#[from] ChannelError),
}

/// The control channel of one session, with or without a connection.
pub struct ControlLink {
    channel: ControlChannel,
    stream: Option<ControlStream>,
    /// The keys for the session's data connections, if the connection is secure.
    keys: Option<LinkKeys>,
    clock: ClockEstimator,
    heartbeat: Heartbeat,
    ping_id: u32,
    /// Steps left in this turn.
    steps: u32,
    /// Set if the last turn ended with input left to read.
    is_behind: bool,
}

impl ControlLink {
    /// Creates a channel without a connection.
    pub fn new(limits: &Limits, now: Time) -> Self {
        ControlLink {
            channel: ControlChannel::new(limits.control_bytes),
            stream: None,
            keys: None,
            clock: ClockEstimator::new(),
            heartbeat: Heartbeat::new(limits, now),
            ping_id: 0,
            steps: STEPS_AT_ONCE,
            is_behind: false,
        }
    }

    /// Creates a channel for a peer that is not authenticated yet.
    pub(crate) fn for_hello(limits: &Limits, now: Time) -> Self {
        let channel = ControlChannel::for_hello(limits.control_bytes);
        ControlLink { channel, ..ControlLink::new(limits, now) }
    }

    /// Creates a channel without a connection, which continues a session of another program.
    pub(crate) fn restore(limits: &Limits, saved: SavedChannel, now: Time) -> Self {
        let channel = ControlChannel::restore(limits.control_bytes, saved);
        ControlLink { channel, ..ControlLink::new(limits, now) }
    }

    /// Returns the state from which another program continues the session.
    pub(crate) fn save(&self) -> SavedChannel {
        self.channel.save()
    }

    /// Continues on a new connection. Sends `first`, then all numbered messages after `theirs`, the number that the
    /// peer has received.
    pub fn connect(
        &mut self,
        mut stream: ControlStream,
        theirs: u64,
        first: Option<&Control>,
        now: Time,
    ) -> Result<(), LinkError> {
        stream.make_prompt()?;
        self.channel.resume(theirs, first)?;
        // There are no keys while the handshake is still in progress.
        self.keys = stream.link_keys()?;
        self.stream = Some(stream);
        self.heartbeat.handle_connection(now);
        self.write()
    }

    /// Records that the session holds something, or nothing any more ([`Heartbeat::hold`]).
    pub fn hold(&mut self, is_held: bool, now: Time) {
        self.heartbeat.hold(is_held || self.channel.has_unacknowledged(), now);
    }

    /// Makes this the control channel of a device host.
    pub fn follow(&mut self) {
        self.heartbeat.follow();
    }

    /// Makes the next ping due.
    pub fn ping_now(&mut self, now: Time) {
        self.heartbeat.ping_now(now);
    }

    /// Returns whether the session has held nothing for some time.
    pub fn is_resting(&self) -> bool {
        self.heartbeat.is_resting()
    }

    /// Records that data of the peer arrived at `at`: the peer is alive even if its control messages are late.
    pub fn handle_data(&mut self, at: Time) {
        self.heartbeat.handle_data(at);
    }

    /// Closes the connection.
    pub fn disconnect(&mut self, poller: &mut Poller) {
        drop(self.take_stream(poller));
    }

    /// Closes the connection; a QUIC connection carries the reason to the peer.
    pub fn part(&mut self, reason: &str, poller: &mut Poller) {
        if let Some(stream) = self.quic() {
            stream.close(reason);
        }
        self.disconnect(poller);
    }

    /// Says goodbye, waits briefly until the peer has received it, and closes the connection.
    ///
    /// Both transports can lose the last message, and the peer would then wait for this host. QUIC sends its close frame once
    /// (RFC 9000, 10.2.1), so this waits for the acknowledgement of the goodbye. TCP resets a connection that is closed with
    /// unread input (RFC 9293, 3.10.4), so this waits for the peer to close first. It does not wait for a silent peer.
    pub fn leave(&mut self, reason: &str, poller: &mut Poller) {
        let _ = self.send(&Control::Goodbye { reason: reason.into() });
        let is_silent = self.is_silent(Time(sys::clock::boot_ns()));
        if let Some(stream) = self.stream.as_mut().filter(|_| !is_silent) {
            let _ = stream.finish(PARTING);
        }
        self.part(reason, poller);
    }

    /// Closes the channel's connection and returns the stream.
    pub fn take_stream(&mut self, poller: &mut Poller) -> Option<ControlStream> {
        self.keys = None;
        self.channel.handle_disconnect();
        let stream = self.stream.take()?;
        stream.forget(poller);
        Some(stream)
    }

    /// Returns the key that the peer has shown, if the connection is secure.
    pub fn peer(&mut self) -> Option<PeerKey> {
        self.stream.as_mut()?.peer()
    }

    /// Returns the stream, if it is QUIC.
    pub fn quic(&mut self) -> Option<&mut QuicStream> {
        self.stream.as_mut()?.quic()
    }

    /// Returns this host's address, if the connection is TCP.
    pub fn address(&self) -> Option<SocketAddr> {
        self.stream.as_ref()?.address()
    }

    /// Returns the keys for data connections; `None` without a connection or with an insecure one.
    pub fn keys(&mut self) -> Option<&mut LinkKeys> {
        self.keys.as_mut()
    }

    /// Returns whether there is a connection.
    pub fn is_connected(&self) -> bool {
        self.stream.is_some()
    }

    /// Returns whether the peer of this very connection made this introduction.
    pub fn is_proven(&self, said: &Introduction) -> bool {
        self.keys.as_ref().is_some_and(|keys| keys.is_proven(said))
    }

    /// Returns the number of numbered messages received.
    pub fn received(&self) -> u64 {
        self.channel.received()
    }

    /// Returns whether [`ControlLink::poll`] has returned everything that has arrived.
    pub fn is_drained(&self) -> bool {
        self.channel.is_drained()
    }

    /// Queues a message for the next write, at the latest when the link is polled. Without a connection, keeps it for the next one.
    pub fn put(&mut self, message: &Control) -> Result<(), LinkError> {
        self.note_news(message);
        match self.stream {
            None => Ok(self.channel.keep(message)?),
            Some(_) => Ok(self.channel.send(message)?),
        }
    }

    /// Sends a message. Without a connection, keeps it for the next one.
    pub fn send(&mut self, message: &Control) -> Result<(), LinkError> {
        self.note_news(message);
        match self.stream {
            None => Ok(self.channel.keep(message)?),
            Some(_) => {
                self.channel.send(message)?;
                self.write()
            }
        }
    }

    /// The peer has to learn soon that a numbered message arrived, and so has this host.
    fn note_news(&mut self, message: &Control) {
        if message.is_numbered() {
            self.heartbeat.handle_news(Time(sys::clock::boot_ns()));
        }
    }

    fn write(&mut self) -> Result<(), LinkError> {
        let Some(stream) = self.stream.as_mut() else { return Ok(()) };
        while !self.channel.front().is_empty() {
            match stream.write(self.channel.front()) {
                Ok(count) => self.channel.handle_sent(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        match stream.flush() {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Returns whether unsent bytes are waiting.
    fn is_waiting(&self) -> bool {
        !self.channel.front().is_empty() || self.stream.as_ref().is_some_and(ControlStream::is_waiting)
    }

    /// Returns the next message for the session. Writes pending bytes, answers pings and evaluates pongs on the way.
    ///
    /// Returns `None` also when the turn has used up its steps; the rest follows in the next turn, which
    /// [`ControlLink::register`] starts.
    pub fn poll(&mut self, now: Time) -> Result<Option<Control>, LinkError> {
        while let Some(message) = self.receive(now)? {
            match message {
                Control::Ping { id, sent, received } => {
                    self.channel.handle_received(received)?;
                    self.heartbeat.handle_peer_ping(sent, now);
                    let replied = sys::clock::boot_ns();
                    let is_blocked = self.is_waiting();
                    self.put(&Control::Pong { id, sent, received: now.0, replied })?;
                    // One packet carries the answer and a ping that follows.
                    self.ping_when_due(is_blocked, now)?;
                    self.write()?;
                }
                Control::Pong { sent, received, replied, .. } => {
                    self.clock.handle_pong(sent, received, replied, now);
                    let round_trip = self.clock.round_trip_ns().map(Duration::from_nanos);
                    round_trip.into_iter().for_each(|round_trip| self.heartbeat.set_round_trip(round_trip));
                }
                message => return Ok(Some(message)),
            }
        }
        Ok(None)
    }

    /// Returns the next message of any kind. Used for peers that are not authenticated yet: their pings get no answer.
    pub fn receive(&mut self, now: Time) -> Result<Option<Control>, LinkError> {
        self.write()?;
        while self.steps > 0 {
            self.steps -= 1;
            if let Some(message) = self.channel.poll()? {
                self.heartbeat.handle_message(now);
                self.note_news(&message);
                return Ok(Some(message));
            }
            let Some(stream) = self.stream.as_mut().filter(|_| self.channel.has_room()) else {
                return Ok(None);
            };
            let mut bytes = [0; READ_BYTES];
            match stream.read(&mut bytes) {
                Ok(0) => return Err(LinkError::Closed),
                Ok(count) => self.channel.handle_bytes(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }

    /// Sends a ping when it is due. If the ping is long overdue, this host slept ([`Heartbeat::handle_sleep`]).
    pub fn run_timeouts(&mut self, now: Time) -> Result<(), LinkError> {
        if self.stream.is_none() {
            return Ok(());
        }
        self.heartbeat.handle_sleep(now);
        if self.heartbeat.is_ping_due(now) {
            self.ping_when_due(self.is_waiting(), now)?;
            self.write()?;
        }
        Ok(())
    }

    /// Queues a ping when it is due. If the peer does not read, more pings would only fill the queue.
    fn ping_when_due(&mut self, is_blocked: bool, now: Time) -> Result<(), LinkError> {
        if self.heartbeat.is_ping_due(now) {
            if !is_blocked {
                self.ping_id = self.ping_id.wrapping_add(1);
                let received = self.channel.received();
                self.put(&Control::Ping { id: self.ping_id, sent: sys::clock::boot_ns(), received })?;
            }
            self.heartbeat.handle_ping(!is_blocked, now);
        }
        Ok(())
    }

    /// Returns the time of the last arrival from the peer.
    pub fn heard(&self) -> Time {
        self.heartbeat.heard()
    }

    /// Returns whether the peer's host reports that nothing listens there. This is a hint only: others can forge it.
    pub fn is_refused(&self) -> bool {
        self.stream.as_ref().is_some_and(ControlStream::is_refused)
    }

    /// Returns whether the peer has been silent for longer than the limit.
    pub fn is_silent(&self, now: Time) -> bool {
        self.heartbeat.is_silent(now)
    }

    /// Returns the time at which the peer counts as silent if nothing arrives.
    pub fn silent_at(&self) -> Time {
        self.heartbeat.silent_at()
    }

    /// Returns the time of the next timeout; `silent` says that the peer already counts as silent.
    pub fn poll_timeout(&self, silent: bool) -> Time {
        let never = Time(u64::MAX);
        let ping_at = if self.is_connected() { self.heartbeat.ping_at() } else { never };
        let stream_at = self.stream_timeout().unwrap_or(never);
        ping_at.min(stream_at).min(if silent { never } else { self.silent_at() })
    }

    /// Returns the connection's own next timeout, if it has one; the present if input is left to read.
    pub fn stream_timeout(&self) -> Option<Time> {
        if self.is_behind {
            return Some(Time::ZERO);
        }
        let wait = self.stream.as_ref().and_then(ControlStream::timeout)?;
        Some(Time(sys::clock::boot_ns()).after(wait))
    }

    /// Returns the clock offset and round trip for the paths; `None` until both are measured.
    pub fn facts(&self) -> Option<LinkFacts> {
        let round_trip = Duration::from_nanos(self.clock.round_trip_ns()?);
        Some(LinkFacts { offset: self.clock.offset()?, round_trip })
    }

    /// Returns the bound of the clock offset's error, in nanoseconds.
    pub fn clock_error_ns(&self) -> Option<u64> {
        self.clock.error_ns()
    }

    /// Messages and reads that are left in this turn.
    pub fn steps_left(&self) -> u32 {
        self.steps
    }

    /// Registers the connection with the poller, and starts the next turn.
    pub fn register(&mut self, poller: &mut Poller) {
        self.is_behind = self.stream.is_some() && self.steps == 0;
        self.steps = STEPS_AT_ONCE;
        if let Some(stream) = &self.stream {
            stream.register(poller, self.is_waiting());
        }
    }

    /// Returns whether the last wait found work for this link.
    pub fn is_ready(&self, poller: &Poller) -> bool {
        self.is_behind || self.stream.as_ref().is_some_and(|stream| stream.is_ready(poller))
    }
}

impl From<LinkError> for contract::ServiceError {
    fn from(error: LinkError) -> Self {
        contract::ServiceError::Peer(error.to_string())
    }
}
