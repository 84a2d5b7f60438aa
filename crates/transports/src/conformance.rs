//! Every transport runs the conformance suite of partners.
//!
//! A transport carries whatever flows its session numbers, so it refuses none; the session's part, to open
//! flows and to know which are, is played here.

use crate::test_records::{partner, pattern, record, sealed_partners};
use contract::{
    Attributes, Body, Ctl, CtlReply, Direction, FlowClass, FlowKey, FlowTemplate, Format, Message, Partner,
    PartnerError, Pull, Pulled, Pushed, Readiness, Time, TransportClass,
};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use testkit::partner::{Harness, conforms};

const FLOW_IN: FlowKey = FlowKey(5);
const FLOW_OUT: FlowKey = FlowKey(9);

/// A transport with at most one flow open each way.
struct Opened {
    transport: Box<dyn Partner>,
    open: [bool; 2],
}

impl Opened {
    fn key(direction: Direction) -> (usize, FlowKey) {
        match direction {
            Direction::In => (0, FLOW_IN),
            Direction::Out => (1, FLOW_OUT),
        }
    }

    fn check(&self, flow: FlowKey, allowed: &[FlowKey]) -> Result<(), PartnerError> {
        let is_open = (flow == FLOW_IN && self.open[0]) || (flow == FLOW_OUT && self.open[1]);
        let known = flow == FlowKey::DEFAULT || is_open;
        if known && allowed.contains(&flow) { Ok(()) } else { Err(PartnerError::NoFlow(flow)) }
    }
}

impl Partner for Opened {
    fn open(&mut self, template: &FlowTemplate, attributes: &Attributes) -> Result<FlowKey, PartnerError> {
        self.transport.open(template, attributes)?;
        let (which, key) = Opened::key(template.direction);
        self.open[which] = true;
        Ok(key)
    }

    fn close(&mut self, flow: FlowKey) -> Result<(), PartnerError> {
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

    fn pull(&mut self, flow: FlowKey, want: Pull<'_>) -> Result<Pulled, PartnerError> {
        self.check(flow, &[FlowKey::DEFAULT, FLOW_OUT])?;
        self.transport.pull(flow, want)
    }

    fn ctl(&mut self, flow: FlowKey, operation: Ctl<'_>) -> Result<CtlReply, PartnerError> {
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

struct Two {
    here: Opened,
    there: Box<dyn Partner>,
    /// Whether nothing is lost, so that the far side can tell, and end.
    is_stream: bool,
    fed: u64,
}

impl Two {
    fn new(class: &dyn TransportClass, sockets: [OwnedFd; 2], is_stream: bool, sealed: bool) -> Two {
        let options = [("outbox", "64")];
        let [here, there] = match sealed {
            false => sockets.map(|socket| partner(class, socket, &options)),
            true => sealed_partners(class, sockets, &options),
        };
        Two { here: Opened { transport: here, open: [false; 2] }, there, is_stream, fed: 0 }
    }
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
        crate::test_records::push(&mut *self.there, fed.clone());
        Some(fed.into_bytes().to_vec())
    }

    fn end(&mut self) -> bool {
        self.is_stream && matches!(self.there.ctl(FlowKey::DEFAULT, Ctl::Finish), Ok(CtlReply::Done))
    }

    fn body(&self, number: u64) -> Vec<u8> {
        record(FLOW_IN.0, number, &pattern(700, number)).into_bytes().to_vec()
    }

    fn taken(&mut self) -> Option<Vec<u8>> {
        let mut taken = Body::new();
        while let Ok(Pulled::Filled { created: Time::ZERO, .. }) =
            self.there.pull(FlowKey::DEFAULT, Pull::Vector(&mut taken))
        {}
        self.is_stream.then(|| taken.into_bytes().to_vec())
    }
}

#[test]
fn tcp_conforms() {
    for sealed in [false, true] {
        conforms(move || {
            let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
            let here = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
            let (there, _) = listener.accept().expect("accept");
            Two::new(&crate::tcp::Tcp, [here.into(), there.into()], true, sealed)
        });
    }
}

#[test]
fn udp_conforms() {
    for sealed in [false, true] {
        conforms(move || {
            let [here, there] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").expect("bind"));
            here.connect(there.local_addr().expect("address")).expect("connect");
            there.connect(here.local_addr().expect("address")).expect("connect");
            Two::new(&crate::udp::Udp, [here.into(), there.into()], false, sealed)
        });
    }
}
