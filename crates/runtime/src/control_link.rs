//! A session's control channel over its connection, and what is known through it: liveness and clock.

use crate::driver::LinkFacts;
use crate::trust::PeerKey;
use crate::trust::channel::ControlStream;
use crate::trust::link_keys::LinkKeys;
use crate::trust::quic_stream::QuicStream;
use contract::Time;
use session::{ChannelError, ClockEstimator, ControlChannel, Limits, Liveness};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;
use sys::poller::Poller;
use thiserror::Error;
use wire::Control;
use wire::preamble::Introduction;

/// Pings at the beginning that follow each other five times as fast.
const HURRIED_PINGS: u32 = 16;
const READ_BYTES: usize = 16 << 10;
/// Messages and reads of one turn: then others of the broker have theirs, however fast a peer speaks.
const STEPS_AT_ONCE: u32 = 64;
/// While data comes, the control channel may be silent for so many times longer before its connection is made
/// anew: what it says may be waiting behind the data, but not for ever.
const DATA_PATIENCE: u32 = 10;
/// Who slept for so many silences makes the connection anew at once: others send ever more rarely to who does not answer, and a new
/// connection knows of none of that.
const SLEEP: u32 = 3;

/// How long a goodbye may take to be heard: some round trips of a long way.
const PARTING: Duration = Duration::from_millis(500);

/// Why a control connection is of no more use.
#[derive(Debug, Error)]
pub(crate) enum LinkError {
    #[error("the other host closed the connection")]
    Closed,
    #[error("the other host ended the session: {0}")]
    Goodbye(String),
    #[error("the connection broke: {0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Channel(#[from] ChannelError),
}

/// The control channel of one session, with or without a connection.
pub(crate) struct ControlLink {
    channel: ControlChannel,
    stream: Option<ControlStream>,
    /// What seals the data connections that belong to the connection, if it is secure.
    keys: Option<LinkKeys>,
    clock: ClockEstimator,
    /// Of the peer, over whichever connection.
    liveness: Liveness,
    /// Of the control channel's own connection.
    own_liveness: Liveness,
    silence: Duration,
    ping_interval: Duration,
    ping_at: Time,
    ping_id: u32,
    /// Steps that are left of this turn.
    steps: u32,
    /// The last turn ended before all was taken that came.
    is_behind: bool,
}

impl ControlLink {
    /// A channel without a connection yet.
    pub(crate) fn new(limits: &Limits, now: Time) -> Self {
        ControlLink {
            channel: ControlChannel::new(limits.control_bytes),
            stream: None,
            keys: None,
            clock: ClockEstimator::new(),
            liveness: Liveness::new(limits.silence, now),
            own_liveness: Liveness::new(limits.silence.saturating_mul(DATA_PATIENCE), now),
            silence: limits.silence,
            ping_interval: limits.ping_interval,
            ping_at: now,
            ping_id: 0,
            steps: STEPS_AT_ONCE,
            is_behind: false,
        }
    }

    /// Goes on over a new connection, saying `first` on it; `theirs` numbered messages came to the peer.
    pub(crate) fn connect(
        &mut self,
        mut stream: ControlStream,
        theirs: u64,
        first: Option<&Control>,
        now: Time,
    ) -> Result<(), LinkError> {
        stream.make_prompt()?;
        self.channel.resume(theirs, first)?;
        // While a stranger is still greeted there are none.
        self.keys = stream.link_keys()?;
        self.stream = Some(stream);
        self.handle_heard(now);
        self.ping_at = now;
        self.write()
    }

    fn handle_heard(&mut self, now: Time) {
        self.liveness.handle_heard(now);
        self.own_liveness.handle_heard(now);
    }

    /// Something came of the peer over a data connection then: it lived, whatever became of its control messages.
    pub(crate) fn handle_data(&mut self, at: Time) {
        self.liveness.handle_heard(at);
    }

    /// Lets go of the connection.
    pub(crate) fn disconnect(&mut self, poller: &mut Poller) {
        drop(self.take_stream(poller));
    }

    /// Lets go of the connection for a reason, which is said where a connection's end can.
    pub(crate) fn part(&mut self, reason: &str, poller: &mut Poller) {
        if let Some(stream) = self.quic() {
            stream.close(reason);
        }
        self.disconnect(poller);
    }

    /// Says goodbye and lets go of the connection. A connection of QUIC ends with a word that is said once and may be
    /// lost (RFC 9000, section 10.2.1), and its peer would wait for this host: so the goodbye is said until it is
    /// heard, unless the peer is silent, and not for long. One of TCP that is closed before all that came is read takes what
    /// was said last with it (RFC 9293, 3.10.4): there the peer's end is waited for, as long.
    pub(crate) fn leave(&mut self, reason: &str, poller: &mut Poller) {
        let _ = self.send(&Control::Goodbye { reason: reason.into() });
        let is_silent = self.is_silent(Time(sys::clock::boot_ns()));
        if let Some(stream) = self.stream.as_mut().filter(|_| !is_silent) {
            let _ = stream.finish(PARTING);
        }
        self.part(reason, poller);
    }

    /// Lets go of the connection and gives it.
    pub(crate) fn take_stream(&mut self, poller: &mut Poller) -> Option<ControlStream> {
        self.keys = None;
        self.channel.handle_disconnect();
        let stream = self.stream.take()?;
        stream.forget(poller);
        Some(stream)
    }

    /// The key that the other host showed, if the connection is secure.
    pub(crate) fn peer(&mut self) -> Option<PeerKey> {
        self.stream.as_mut()?.peer()
    }

    /// Its connection, if it is one of QUIC.
    pub(crate) fn quic(&mut self) -> Option<&mut QuicStream> {
        self.stream.as_mut()?.quic()
    }

    /// This host's address, if the connection is one of TCP.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.stream.as_ref()?.address()
    }

    /// What seals the data connections; `None` if they are bare, or there is no connection.
    pub(crate) fn keys(&mut self) -> Option<&mut LinkKeys> {
        self.keys.as_mut()
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.stream.is_some()
    }

    /// Whether the other end of this very connection said this.
    pub(crate) fn is_proven(&self, said: &Introduction) -> bool {
        self.keys.as_ref().is_some_and(|keys| keys.is_proven(said))
    }

    /// Numbered messages that came.
    pub(crate) fn received(&self) -> u64 {
        self.channel.received()
    }

    /// Whether nothing came that [`ControlLink::poll`] has not given.
    pub(crate) fn is_drained(&self) -> bool {
        self.channel.is_drained()
    }

    /// Sends a message with what is said next, at the latest when the link is polled; or keeps it for the next connection.
    pub(crate) fn put(&mut self, message: &Control) -> Result<(), LinkError> {
        match self.stream {
            None => Ok(self.channel.keep(message)?),
            Some(_) => Ok(self.channel.send(message)?),
        }
    }

    /// Sends a message, or keeps it for the next connection.
    pub(crate) fn send(&mut self, message: &Control) -> Result<(), LinkError> {
        match self.stream {
            None => Ok(self.channel.keep(message)?),
            Some(_) => {
                self.channel.send(message)?;
                self.write()
            }
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

    /// Whether what was said still waits here to be sent.
    fn is_waiting(&self) -> bool {
        !self.channel.front().is_empty() || self.stream.as_ref().is_some_and(ControlStream::is_waiting)
    }

    /// The next message for the session; pings, their answers and what is waiting to be written are dealt with
    /// here. None, too, when this turn has taken its part: the rest is for after [`ControlLink::want`].
    pub(crate) fn poll(&mut self, now: Time) -> Result<Option<Control>, LinkError> {
        while let Some(message) = self.hear(now)? {
            match message {
                Control::Ping { id, sent, received } => {
                    self.channel.handle_received(received)?;
                    let replied = sys::clock::boot_ns();
                    self.send(&Control::Pong { id, sent, received: now.0, replied })?;
                }
                Control::Pong { sent, received, replied, .. } => {
                    self.clock.handle_pong(sent, received, replied, now);
                }
                message => return Ok(Some(message)),
            }
        }
        Ok(None)
    }

    /// The next message, whatever it is: of a stranger, of whom no ping is answered.
    pub(crate) fn hear(&mut self, now: Time) -> Result<Option<Control>, LinkError> {
        self.write()?;
        while self.steps > 0 {
            self.steps -= 1;
            if let Some(message) = self.channel.poll()? {
                self.handle_heard(now);
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

    /// Sends a ping if it is time. Where that is long past, this host slept: it is no silence that nobody listened to,
    /// unless that was for long.
    pub(crate) fn run_timeouts(&mut self, now: Time) -> Result<(), LinkError> {
        let slept = now.since(self.ping_at);
        let is_short = slept >= self.silence && slept < self.silence.saturating_mul(SLEEP);
        if self.stream.is_some() && is_short && !self.is_silent(self.ping_at) {
            self.handle_heard(now);
        }
        if self.stream.is_some() && now >= self.ping_at {
            // While the peer takes nothing, more pings would only fill the queue.
            if !self.is_waiting() {
                self.ping_id = self.ping_id.wrapping_add(1);
                let received = self.channel.received();
                self.send(&Control::Ping { id: self.ping_id, sent: sys::clock::boot_ns(), received })?;
            } else {
                self.write()?;
            }
            // The first answers are wanted soon: until the clocks are compared well, times are known badly.
            let hurried = self.ping_id < HURRIED_PINGS;
            self.ping_at = now.after(if hurried { self.ping_interval / 5 } else { self.ping_interval });
        }
        Ok(())
    }

    /// When something last came of the peer.
    pub(crate) fn heard(&self) -> Time {
        self.liveness.heard()
    }

    /// Whether the peer has nobody who listens any more, as far as its host says: it may be another's word.
    pub(crate) fn is_refused(&self) -> bool {
        self.stream.as_ref().is_some_and(ControlStream::is_refused)
    }

    pub(crate) fn is_silent(&self, now: Time) -> bool {
        self.liveness.is_silent(now) || self.own_liveness.is_silent(now)
    }

    /// When the peer will have been silent for too long, if nothing comes.
    pub(crate) fn silent_at(&self) -> Time {
        self.liveness.poll_timeout().min(self.own_liveness.poll_timeout())
    }

    /// When to look at the channel again, if nothing comes. `silent`: the peer is known to be.
    pub(crate) fn poll_timeout(&self, silent: bool) -> Time {
        let never = Time(u64::MAX);
        let ping_at = if self.is_connected() { self.ping_at } else { never };
        let stream_at = self.stream_timeout().unwrap_or(never);
        ping_at.min(stream_at).min(if silent { never } else { self.silent_at() })
    }

    /// When its connection has something to do of its own, if it has: at once, if not all was taken that came.
    pub(crate) fn stream_timeout(&self) -> Option<Time> {
        if self.is_behind {
            return Some(Time::ZERO);
        }
        let wait = self.stream.as_ref().and_then(ControlStream::timeout)?;
        Some(Time(sys::clock::boot_ns()).after(wait))
    }

    /// What the paths need to know of the link; `None` before the clocks were compared.
    pub(crate) fn facts(&self) -> Option<LinkFacts> {
        let round_trip = Duration::from_nanos(self.clock.round_trip_ns()?);
        Some(LinkFacts { offset: self.clock.offset()?, round_trip })
    }

    /// Bound of the clock offset's error, nanoseconds.
    pub(crate) fn clock_error_ns(&self) -> Option<u64> {
        self.clock.error_ns()
    }

    /// The coming wait is for this too, and ends the turn.
    pub(crate) fn want(&mut self, poller: &mut Poller) {
        self.is_behind = self.stream.is_some() && self.steps == 0;
        self.steps = STEPS_AT_ONCE;
        if let Some(stream) = &self.stream {
            stream.want(poller, self.is_waiting());
        }
    }

    /// Whether the last wait found something to do here.
    pub(crate) fn is_ready(&self, poller: &Poller) -> bool {
        self.is_behind || self.stream.as_ref().is_some_and(|stream| stream.is_ready(poller))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn data_keep_a_session_alive_but_not_for_ever_a_silent_control_channel() {
        let limits = Limits::default();
        let mut link = ControlLink::new(&limits, Time::ZERO);
        let dead = Time::ZERO.after(limits.silence * DATA_PATIENCE);
        let mut now = Time::ZERO;
        while now < dead {
            assert!(!link.is_silent(now), "{now:?}");
            link.handle_data(now);
            now = now.after(limits.silence / 2);
        }
        assert!(link.is_silent(dead));
        let link = ControlLink::new(&limits, Time::ZERO);
        assert!(link.is_silent(Time::ZERO.after(limits.silence)), "nothing came at all");
    }
    #[test]
    fn silence_that_nobody_listened_to_is_none() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (limits, begun) = (Limits::default(), Time::from_millis(1000));
        let connected = || {
            let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let mut link = ControlLink::new(&limits, begun);
            link.connect(ControlStream::Bare(stream), 0, None, begun).unwrap();
            link
        };
        let later = begun.after(limits.silence * (SLEEP - 1));
        let mut asleep = connected();
        asleep.run_timeouts(later).unwrap();
        assert!(!asleep.is_silent(later) && asleep.is_silent(later.after(limits.silence)));
        let much_later = begun.after(limits.silence * SLEEP);
        let mut long_asleep = connected();
        long_asleep.run_timeouts(much_later).unwrap();
        assert!(long_asleep.is_silent(much_later), "a connection that slept for long is made anew");
        let mut awake = connected();
        let mut now = begun;
        while !awake.is_silent(now) {
            awake.run_timeouts(now).unwrap();
            now = now.after(limits.ping_interval);
        }
        awake.run_timeouts(now).unwrap();
        awake.run_timeouts(later).unwrap();
        assert!(awake.is_silent(later), "it was before this host slept");
    }
}
