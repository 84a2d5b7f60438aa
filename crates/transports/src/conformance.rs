//! Runs the conformance suite of partners on every transport.
//!
//! A transport accepts any flow number, because the session opens the flows. [`OpenFlows`] plays the session's part
//! and refuses flows that are not open.

use crate::test_records::{WATCHDOG, figure, keys, partners, pattern, record, tcp_pair, udp_pair};
use contract::{
    Attributes, Body, Ctl, CtlReply, Direction, FlowClass, FlowKey, FlowTemplate, Format, Message, Partner,
    PartnerError, PartnerResult, Pull, Pulled, Pushed, Readiness, Time, TransportClass, TransportCtl,
};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use testkit::partner::{Harness, conforms};

const FLOW_IN: FlowKey = FlowKey(5);
const FLOW_OUT: FlowKey = FlowKey(9);

/// A transport with at most one open flow in each direction.
struct OpenFlows {
    transport: Box<dyn Partner>,
    open: [bool; 2],
}

impl OpenFlows {
    fn key(direction: Direction) -> (usize, FlowKey) {
        match direction {
            Direction::In => (0, FLOW_IN),
            Direction::Out => (1, FLOW_OUT),
        }
    }

    fn check(&self, flow: FlowKey, allowed: &[FlowKey]) -> PartnerResult {
        let is_open = (flow == FLOW_IN && self.open[0]) || (flow == FLOW_OUT && self.open[1]);
        let known = flow == FlowKey::DEFAULT || is_open;
        if known && allowed.contains(&flow) { Ok(()) } else { Err(PartnerError::NoFlow(flow)) }
    }
}

impl Partner for OpenFlows {
    fn open(&mut self, template: &FlowTemplate, attributes: &Attributes) -> PartnerResult<FlowKey> {
        self.transport.open(template, attributes)?;
        let (index, key) = OpenFlows::key(template.direction);
        self.open[index] = true;
        Ok(key)
    }

    fn close(&mut self, flow: FlowKey) -> PartnerResult {
        self.check(flow, &[FLOW_IN, FLOW_OUT])?;
        self.open[usize::from(flow == FLOW_OUT)] = false;
        self.transport.close(flow)
    }

    fn push(&mut self, flow: FlowKey, message: Message) -> Result<Pushed, (PartnerError, Message)> {
        match self.check(flow, &[FLOW_IN]) {
            Ok(()) => self.transport.push(flow, message),
            Err(error) => Err((error, message)),
        }
    }

    fn pull(&mut self, flow: FlowKey, request: Pull<'_>) -> PartnerResult<Pulled> {
        self.check(flow, &[FlowKey::DEFAULT, FLOW_OUT])?;
        self.transport.pull(flow, request)
    }

    fn ctl(&mut self, flow: FlowKey, operation: Ctl<'_>) -> PartnerResult<CtlReply> {
        self.check(flow, &[FlowKey::DEFAULT, FLOW_IN, FLOW_OUT])?;
        self.transport.ctl(flow, operation)
    }

    fn readiness(&self, flow: FlowKey, direction: Direction) -> Readiness<'_> {
        match self.check(flow, &[FlowKey::DEFAULT, FLOW_IN, FLOW_OUT]) {
            Ok(()) => self.transport.readiness(flow, direction),
            Err(_) => Readiness::never(),
        }
    }
}

/// The harness: the partner under test here, its peer there.
struct Two {
    here: OpenFlows,
    there: Arc<Mutex<Box<dyn Partner>>>,
    /// The transport loses nothing and reports the end.
    is_stream: bool,
    fed: u64,
    peer_loop: Option<Arc<PeerLoop>>,
}

/// Shared with the thread that runs the peer's protocol.
#[derive(Default)]
struct PeerLoop {
    /// From here on, the peer pulls.
    pulls: AtomicBool,
    arrived: Mutex<Vec<u8>>,
}

impl Two {
    fn new(class: &dyn TransportClass, sockets: [OwnedFd; 2], is_stream: bool, sealed: bool) -> Two {
        let options = [("outbox", "64")];
        Two::of(partners(class, sockets, sealed, &options), is_stream)
    }

    fn of([here, there]: [Box<dyn Partner>; 2], is_stream: bool) -> Two {
        let there = Arc::new(Mutex::new(there));
        Two {
            here: OpenFlows { transport: here, open: [false; 2] },
            there,
            is_stream,
            fed: 0,
            peer_loop: None,
        }
    }

    fn there(&self) -> MutexGuard<'_, Box<dyn Partner>> {
        self.there.lock().expect("no thread panicked while it held the lock")
    }

    /// Runs the peer's protocol in a thread, as the peer's event loop would. It also pulls, once the test reads: bytes that wait in
    /// a program must not keep this end from writing.
    fn with_peer_loop(mut self) -> Two {
        let there = Arc::downgrade(&self.there);
        let peer_loop = Arc::<PeerLoop>::default();
        self.peer_loop = Some(peer_loop.clone());
        std::thread::spawn(move || {
            while let Some(there) = there.upgrade() {
                let mut peer = there.lock().expect("no thread panicked while it held the lock");
                let _ = peer.ctl(FlowKey::DEFAULT, Ctl::Transport(TransportCtl::Received));
                if peer_loop.pulls.load(Ordering::Relaxed) {
                    let arrived = pull_all(peer.as_mut());
                    peer_loop.arrived.lock().expect("the other thread did not panic").extend(arrived);
                }
                drop(peer);
                drop(there);
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        self
    }
}

/// Pulls until nothing is there. Returns the bytes.
fn pull_all(partner: &mut dyn Partner) -> Vec<u8> {
    let mut taken = Body::new();
    while let Ok(Pulled::Filled { created: Time::ZERO, .. }) =
        partner.pull(FlowKey::DEFAULT, Pull::Vector(&mut taken))
    {}
    taken.into_bytes().to_vec()
}

impl Harness for Two {
    fn partner(&mut self) -> &mut dyn Partner {
        &mut self.here
    }

    fn template(&self, direction: Direction) -> Option<FlowTemplate> {
        Some(FlowTemplate { direction, format: Format::Bytes, class: FlowClass::Reliable })
    }

    fn feed(&mut self) -> Option<Vec<u8>> {
        let fed = record(FLOW_OUT.0, self.fed, &pattern(40 + self.fed as usize * 700, self.fed));
        self.fed += 1;
        crate::test_records::push(self.there().as_mut(), fed.clone());
        Some(fed.into_bytes().to_vec())
    }

    fn end(&mut self) -> bool {
        let begun = Instant::now();
        while self.is_stream && begun.elapsed() < WATCHDOG {
            let finished = self.there().ctl(FlowKey::DEFAULT, Ctl::Finish).expect("finish");
            if matches!(finished, CtlReply::Done) {
                return true;
            }
            // The partner under test must answer.
            let _ = self.here.transport.ctl(FlowKey::DEFAULT, Ctl::Transport(TransportCtl::Received));
        }
        false
    }

    fn body(&self, number: u64) -> Vec<u8> {
        record(FLOW_IN.0, number, &pattern(700, number)).into_bytes().to_vec()
    }

    fn taken(&mut self) -> Option<Vec<u8>> {
        // The event loop of this end runs while the peer pulls.
        let _ = self.here.transport.ctl(FlowKey::DEFAULT, Ctl::Transport(TransportCtl::Received));
        let taken = match &self.peer_loop {
            Some(peer_loop) => {
                peer_loop.pulls.store(true, Ordering::Relaxed);
                std::mem::take(&mut *peer_loop.arrived.lock().expect("the other thread did not panic"))
            }
            None => pull_all(self.there().as_mut()),
        };
        self.is_stream.then_some(taken)
    }
}

#[test]
fn tcp_conforms() {
    for sealed in [false, true] {
        conforms(move || Two::new(&crate::tcp::Tcp, tcp_pair(), true, sealed));
    }
}

#[test]
fn one_way_of_striped_conforms() {
    for sealed in [false, true] {
        conforms(move || Two::new(&crate::striped::Striped, tcp_pair(), true, sealed));
    }
}

#[test]
fn several_ways_of_striped_conform() {
    for sealed in [false, true] {
        conforms(move || {
            let options = [("outbox", "64"), ("ways", "4")];
            let mut ends = partners(&crate::striped::Striped, tcp_pair(), sealed, &options);
            let serve = |end: &mut Box<dyn Partner>| {
                let served = end.ctl(FlowKey::DEFAULT, Ctl::Transport(TransportCtl::ServeWays));
                let Ok(CtlReply::Count(ways)) = served else { panic!("{served:?}") };
                ways
            };
            while figure(ends[0].as_mut(), "ways_open") < 4.0 {
                serve(&mut ends[1]);
                for _ in 0..serve(&mut ends[0]) {
                    for ((end, socket), keys) in ends.iter_mut().zip(tcp_pair()).zip(keys()) {
                        let way = TransportCtl::AddWay(socket, sealed.then_some(keys));
                        end.ctl(FlowKey::DEFAULT, Ctl::Transport(way)).expect("a way");
                    }
                }
            }
            Two::of(ends, true)
        });
    }
}

#[test]
fn udp_conforms() {
    for sealed in [false, true] {
        conforms(move || Two::new(&crate::udp::Udp, udp_pair(), false, sealed));
    }
}

#[test]
fn quic_conforms() {
    for sealed in [false, true] {
        conforms(move || Two::new(&crate::quic::Quic, udp_pair(), true, sealed).with_peer_loop());
    }
}

#[test]
fn a_program_conforms() {
    let Some(program) = crate::exec::tests::carrier() else { return };
    for sealed in [false, true] {
        let program = program.clone();
        conforms(move || {
            let options = [("outbox", "64"), ("patience", "3600s")];
            Two::of(crate::exec::tests::partners(&program, sealed, &options), true).with_peer_loop()
        });
    }
}
