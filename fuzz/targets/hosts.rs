//! Two whole hosts: events of a flow between them, its control channel and its clocks, in any order. The
//! promises of the flow hold all the time, and without further faults everything comes to its end.
#![no_main]

use contract::{FlowClass, Time};
use libfuzzer_sys::fuzz_target;
use session::{ClockEstimator, ControlChannel, Handshake, Limits, Liveness, StoreFull};
use std::collections::VecDeque;
use std::time::Duration;
use testkit::resume::{Move, Scope, World};
use wire::preamble::SessionToken;
use wire::{Control, Reader, WireError};

const TOKEN: SessionToken = SessionToken([7; 16]);
/// The sink's clock is ahead of the source's by this.
const AHEAD: Duration = Duration::from_secs(1000);
/// Without faults, everything is finished after this many rounds.
const ROUNDS_MAX: usize = 10_000;

fuzz_target!(|bytes: &[u8]| {
    let mut reader = Reader::new(bytes);
    let Ok(mut hosts) = Hosts::new(&mut reader) else { return };
    // The run ends with the input.
    while hosts.play(&mut reader).is_ok() {}
    hosts.settle();
});

/// The parts of a host besides its half of the flow. Number 0 is the source's, a device host; number 1 is the
/// sink's, an application host.
struct Host {
    channel: ControlChannel,
    /// Control messages that arrived while there was no process.
    inbox: VecDeque<Control>,
    clock: ClockEstimator,
    liveness: Liveness,
    ping: u32,
}

struct Hosts {
    world: World,
    hosts: [Host; 2],
    /// Bytes in flight to each host.
    pipes: [VecDeque<u8>; 2],
    attempt: u32,
    now: Time,
}

impl Hosts {
    fn new(reader: &mut Reader<'_>) -> Result<Hosts, WireError> {
        let class = [FlowClass::Reliable, FlowClass::State][usize::from(reader.u8("class")? % 2)];
        let lossy = reader.u8("lossy")? % 2 == 0;
        // The store of a state flow is not full for long: its content is abandoned.
        let full = match class {
            FlowClass::State => StoreFull::Block,
            _ => [StoreFull::Block, StoreFull::DropOldest, StoreFull::Close]
                [usize::from(reader.u8("full")? % 3)],
        };
        let mut scope = Scope::unlimited(class, lossy, full);
        scope.store_messages = 1 + usize::from(reader.u8("store")? % 8);
        scope.held_records = 1 + usize::from(reader.u8("held")? % 8);
        let limits = Limits::default();
        let host = || Host {
            channel: ControlChannel::new(limits.control_bytes),
            inbox: VecDeque::new(),
            clock: ClockEstimator::new(),
            liveness: Liveness::new(limits.silence, Time::ZERO),
            ping: 0,
        };
        let (world, hosts) = (World::new(&scope), [host(), host()]);
        Ok(Hosts { world, hosts, pipes: Default::default(), attempt: 0, now: Time::ZERO })
    }

    fn play(&mut self, reader: &mut Reader<'_>) -> Result<(), WireError> {
        match reader.u8("event")? {
            0 => self.join(),
            1 => self.step(Move::Cut),
            event @ 2..=9 => {
                let to = usize::from(event % 2);
                let bytes = usize::from(reader.u8("bytes")?);
                self.carry(to, bytes);
            }
            event @ 10..=11 => self.ping(usize::from(event % 2)),
            12 => {
                self.now = self.now.after(Duration::from_millis(reader.u8("time")?.into()));
                for (host, silence) in [Move::SilenceAtSource, Move::SilenceAtSink].into_iter().enumerate() {
                    if self.hosts[host].liveness.is_silent(self.now) {
                        self.step(silence);
                    }
                }
            }
            event => self.step(Move::ALL[usize::from(event) % Move::ALL.len()]),
        }
        Ok(())
    }

    fn step(&mut self, made: Move) {
        // This target drives control messages and links itself.
        let ours =
            matches!(made, Move::ReceiveAtSink | Move::ReceiveAtSource | Move::Acknowledged(_) | Move::Join);
        if !ours {
            self.world.step(made).unwrap_or_else(|broken| panic!("{broken}"));
            self.deliver_waiting();
            self.send_messages();
        }
        if !self.world.is_up() {
            self.pipes.iter_mut().for_each(VecDeque::clear);
        }
    }

    /// Passes control messages of the halves to the control channel, which retains them while there is no link.
    fn send_messages(&mut self) {
        let (to_sink, to_source) = self.world.take_controls();
        for (host, messages) in [to_sink, to_source].into_iter().enumerate() {
            for message in messages {
                let channel = &mut self.hosts[host].channel;
                let result = if self.world.is_up() { channel.send(&message) } else { channel.keep(&message) };
                result.expect("there is room");
            }
        }
    }

    fn ping(&mut self, from: usize) {
        if !self.world.is_up() {
            return;
        }
        let sent = self.time(from).0;
        let host = &mut self.hosts[from];
        host.ping += 1;
        let received = host.channel.received();
        host.channel.send(&Control::Ping { id: host.ping, sent, received }).expect("there is room");
    }

    fn time(&self, host: usize) -> Time {
        self.now.after(AHEAD * host as u32)
    }

    /// Sends this many bytes and delivers as many.
    fn carry(&mut self, to: usize, bytes: usize) {
        if !self.world.is_up() {
            return;
        }
        let from = &mut self.hosts[1 - to].channel;
        let mut left = bytes;
        while left > 0 && !from.front().is_empty() {
            let count = from.front().len().min(left);
            self.pipes[to].extend(&from.front()[..count]);
            from.handle_sent(count);
            left -= count;
        }
        let count = self.pipes[to].len().min(bytes);
        let came: Vec<u8> = self.pipes[to].drain(..count).collect();
        self.hosts[to].channel.handle_bytes(&came);
        while let Some(message) = self.hosts[to].channel.poll().expect("both keep to the protocol") {
            self.receive(to, message);
        }
        self.deliver_waiting();
        self.send_messages();
    }

    fn receive(&mut self, at: usize, message: Control) {
        let now = self.time(at);
        let host = &mut self.hosts[at];
        host.liveness.handle_heard(self.now);
        match message {
            Control::Ping { id, sent, received } => {
                host.channel.handle_received(received).expect("the other host counts its messages");
                let pong = Control::Pong { id, sent, received: now.0, replied: now.0 };
                host.channel.send(&pong).expect("there is room");
            }
            Control::Pong { sent, received, replied, .. } => {
                host.clock.handle_pong(sent, received, replied, now);
                let ahead = AHEAD.as_nanos() as i64;
                let truth = if at == 1 { ahead } else { -ahead };
                let offset = host.clock.offset().expect("an answer came").0;
                assert!(offset.abs_diff(truth) <= host.clock.error_ns().expect("an answer came"));
            }
            message => host.inbox.push_back(message),
        }
    }

    /// Delivers arrived messages in order, once there is a process.
    fn deliver_waiting(&mut self) {
        let (at_source, at_sink) = self.world.is_alive();
        while let Some(message) = self.hosts[0].inbox.pop_front_if(|_| at_source) {
            self.world.receive_at_source(&message);
        }
        while let Some(message) = self.hosts[1].inbox.pop_front_if(|_| at_sink) {
            self.world.receive_at_sink(&message);
        }
    }

    /// A new connection resumes the session: missed messages are retransmitted before any new one.
    fn join(&mut self) {
        if self.world.is_up() || self.world.is_alive() != (true, true) {
            return;
        }
        self.attempt += 1;
        let received = self.hosts[1].channel.received();
        let handshake = Handshake::new("sink", Some(TOKEN), received, self.attempt);
        let Control::Hello { received, resume, .. } = across(&handshake.hello()) else { panic!("no hello") };
        assert_eq!(resume, Some(TOKEN));
        let device_host = &mut self.hosts[0].channel;
        let welcome = Control::Welcome {
            host: "source".into(),
            session: TOKEN,
            resumed: true,
            received: device_host.received(),
            features: Vec::new(),
        };
        device_host.resume(received, Some(&welcome)).expect("the sink counts its messages");
        let first = device_host.front().to_vec();
        device_host.handle_sent(first.len());
        let (answer, _) = Control::parse_frame(&first).expect("our own").expect("a whole frame");
        let welcomed = handshake.handle(answer).expect("a welcome");
        assert!(welcomed.resumed);
        self.hosts[1].channel.resume(welcomed.received, None).expect("the source counts its messages");
        self.world.step(Move::Join).unwrap_or_else(|broken| panic!("{broken}"));
        self.hosts.iter_mut().for_each(|host| host.liveness.handle_heard(self.now));
        self.send_messages();
    }

    /// From here on nothing goes wrong and no message is made, so everything comes to its end.
    fn settle(&mut self) {
        self.world.stop_device();
        for _ in 0..ROUNDS_MAX {
            if self.world.is_done() {
                return;
            }
            self.step(Move::StartSource);
            self.step(Move::StartSink);
            self.join();
            for made in Move::ALL.iter().filter(|made| made.is_good()) {
                self.step(*made);
            }
            self.carry(0, usize::MAX);
            self.carry(1, usize::MAX);
        }
        panic!("a standstill: {:#?}", self.world);
    }
}

/// Converts a message to bytes and back.
fn across(message: &Control) -> Control {
    Control::parse_frame(&message.emit()).expect("our own").expect("a whole frame").0
}
