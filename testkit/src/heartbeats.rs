//! The heartbeats of two hosts in one process, in virtual time: a control channel between them, driven as the broker
//! does. One of the hosts may be of an earlier program, which always pings in the short rhythm.

use crate::clock::VirtualClock;
use contract::Time;
use netsim::{Link, Packet, Params};
use session::{Heartbeat, Limits, Liveness};
use std::time::Duration;

/// The bytes of a message of the control channel with its headers.
const MESSAGE_BYTES: u32 = 100;

#[derive(Debug, Clone, Copy)]
enum Message {
    Ping {
        sent_ns: u64,
    },
    Pong,
    /// A numbered message.
    News,
}

impl Packet for Message {
    fn corrupt(&mut self, _random: u64) {
        unreachable!("the link damages nothing");
    }
}

/// A host with its rhythm.
#[derive(Debug, Clone)]
enum Rhythm {
    /// This program.
    Idle(Box<Heartbeat>),
    /// A program that pings at the interval and expects a sign of life at all times.
    Constant { liveness: Liveness, ping_at: Time, interval: Duration },
}

impl Rhythm {
    fn ping_at(&self) -> Time {
        match self {
            Rhythm::Idle(heartbeat) => heartbeat.ping_at(),
            Rhythm::Constant { ping_at, .. } => *ping_at,
        }
    }

    fn silent_at(&self) -> Time {
        match self {
            Rhythm::Idle(heartbeat) => heartbeat.silent_at(),
            Rhythm::Constant { liveness, .. } => liveness.poll_timeout(),
        }
    }

    fn handle(&mut self, message: Message, round_trip: Duration, now: Time) {
        match (self, message) {
            (Rhythm::Idle(heartbeat), Message::Ping { sent_ns }) => {
                heartbeat.handle_message(now);
                heartbeat.handle_peer_ping(sent_ns, now);
            }
            (Rhythm::Idle(heartbeat), Message::Pong) => {
                heartbeat.handle_message(now);
                heartbeat.set_round_trip(round_trip);
            }
            (Rhythm::Idle(heartbeat), Message::News) => {
                heartbeat.handle_message(now);
                heartbeat.handle_news(now);
            }
            (Rhythm::Constant { liveness, .. }, _) => liveness.handle_heard(now),
        }
    }

    fn handle_ping_sent(&mut self, now: Time) {
        match self {
            Rhythm::Idle(heartbeat) => heartbeat.handle_ping(true, now),
            Rhythm::Constant { ping_at, interval, .. } => *ping_at = now.after(*interval),
        }
    }
}

/// The number of a host.
pub type Host = usize;

/// An application host, 0, and a device host, 1.
pub struct Heartbeats {
    clock: VirtualClock,
    round_trip: Duration,
    hosts: [Rhythm; 2],
    /// The link from each host to the other.
    links: [Link<Message>; 2],
    /// When each host found the other silent.
    silent_at: [Option<Time>; 2],
    messages: u64,
}

impl Heartbeats {
    /// Two hosts with this time on the way from one to the other. Delays differ by up to `jitter`, in order. `is_old`:
    /// the host is of an earlier program.
    pub fn new(delay: Duration, jitter: Duration, is_old: [bool; 2], seed: u64) -> Heartbeats {
        let (now, limits) = (Time::from_millis(1000), Limits::default());
        let params = Params {
            delay_ns: delay.as_nanos() as u64,
            jitter_ns: jitter.as_nanos() as u64,
            queue_packets: 1 << 20,
            ..Params::default()
        };
        let host = |is_old| match is_old {
            false => Rhythm::Idle(Box::new(Heartbeat::new(&limits, now))),
            true => Rhythm::Constant {
                liveness: Liveness::new(limits.silence, now),
                ping_at: now,
                interval: limits.ping_interval,
            },
        };
        let mut beats = Heartbeats {
            clock: VirtualClock::new(now),
            round_trip: delay * 2,
            hosts: is_old.map(host),
            links: [0, 1].map(|way| Link::new(params.clone(), seed ^ way)),
            silent_at: [None; 2],
            messages: 0,
        };
        if let Rhythm::Idle(heartbeat) = &mut beats.hosts[1] {
            heartbeat.follow();
        }
        // A session begins with hosts that hear each other.
        beats.run_for(delay * 4 + Duration::from_secs(1));
        beats.silent_at = [None; 2];
        beats
    }

    /// The current time.
    pub fn now(&self) -> Time {
        self.clock.now()
    }

    /// The messages that both hosts have sent so far.
    pub fn messages(&self) -> u64 {
        self.messages
    }

    /// When a host found the other one silent, if it has.
    pub fn silent_at(&self, host: Host) -> Option<Time> {
        self.silent_at[host]
    }

    /// A host begins or ceases to hold something.
    pub fn hold(&mut self, host: Host, is_held: bool) {
        let now = self.now();
        if let Rhythm::Idle(heartbeat) = &mut self.hosts[host] {
            heartbeat.hold(is_held, now);
        }
    }

    /// A host sends a numbered message.
    pub fn send(&mut self, host: Host) {
        let now = self.now();
        if let Rhythm::Idle(heartbeat) = &mut self.hosts[host] {
            heartbeat.handle_news(now);
        }
        self.push(host, Message::News);
    }

    /// Cuts the link. Everything in flight is lost.
    pub fn cut(&mut self) {
        let now = self.now().0;
        for link in &mut self.links {
            let down = Params { down: true, ..link.params().clone() };
            link.configure(now, down);
        }
    }

    fn push(&mut self, from: Host, message: Message) {
        self.messages += 1;
        // A cut link carries nothing.
        let _ = self.links[from].push(self.now().0, message, MESSAGE_BYTES);
    }

    /// Advances time.
    pub fn run_for(&mut self, time: Duration) {
        let until = self.now().after(time);
        while self.now() < until {
            let links = self.links.iter().filter_map(Link::deadline).map(Time);
            let timers = self.hosts.iter().flat_map(|host| [host.ping_at(), host.silent_at()]);
            let next = links.chain(timers.filter(|at| *at > self.now())).min().unwrap_or(until);
            self.clock.advance_to(next.min(until));
            self.pump();
        }
    }

    fn pump(&mut self) {
        let now = self.now();
        for host in 0..2 {
            while let Some((_, message)) = self.links[1 - host].pop(now.0) {
                self.hosts[host].handle(message, self.round_trip, now);
                if let Message::Ping { .. } = message {
                    self.push(host, Message::Pong);
                }
            }
            if now >= self.hosts[host].silent_at() {
                self.silent_at[host].get_or_insert(now);
            }
            if now >= self.hosts[host].ping_at() {
                self.push(host, Message::Ping { sent_ns: now.0 });
                self.hosts[host].handle_ping_sent(now);
            }
        }
    }
}
