//! The accepting side of QUIC: datagrams from anybody before the handshake, and a malicious peer that has the
//! keys: streams, datagrams and bytes in any order.
#![no_main]

use contract::{
    Attributes, Body, Ctl, Direction, End, FlowClass, FlowKey, FlowTemplate, Format, Message, Options,
    Partner, Pull, Pulled, SealKeys, Secret, Time, TransportCtl};
use libfuzzer_sys::fuzz_target;
use std::cell::RefCell;
use std::net::{Ipv4Addr, UdpSocket};
use transports::quic::{
    AddressValidator, Congestion, ConnectionConfig, Dir, QuicConnection, StreamId, Tuning, Validation,
    VarInt, classify,
};
use wire::{BODY_BYTES_MAX, Container, Reader, RecordHeader, WireError};

const TUNING: Tuning = Tuning {
    window: 1 << 20,
    streams: 4,
    datagram: 1200,
    is_size_known: false,
    congestion: Congestion::Cubic,
};
/// More datagrams than a handshake needs in both directions.
const ROUNDS_MAX: usize = 64;
/// The number of streams that the peer uses.
const STREAMS_MAX: usize = 8;

/// The inputs that one connection serves, because a handshake takes longer than an input. So a finding may
/// depend on earlier inputs.
const INPUTS_MAX: u32 = 64;

thread_local! {
    static CONNECTED: RefCell<Option<Connected>> = const { RefCell::new(None) };
}

fuzz_target!(|bytes: &[u8]| {
    let mut reader = Reader::new(bytes);
    match reader.u8("kind").map(|kind| kind % 4) {
        Ok(0) => before(&mut reader),
        Ok(1) => check(&mut reader),
        Ok(kind) => after(&mut reader, if kind == 2 { FlowClass::Reliable } else { FlowClass::Timely }),
        Err(_) => {}
    }
});

/// A peer that has the keys, and the partner that it is connected to.
struct Connected {
    peer: Peer,
    ours: Box<dyn Partner>,
    class: FlowClass,
    inputs: u32,
}

impl Connected {
    fn new(class: FlowClass) -> Connected {
        let (near, far) = sockets();
        let mut connected = Connected { peer: Peer::new(near), ours: ours(far, class), class, inputs: 0 };
        connected.peer.shake_hands(connected.ours.as_mut());
        connected
    }
}

fn after(reader: &mut Reader<'_>, class: FlowClass) {
    let held = CONNECTED.take().filter(|held| held.class == class && held.inputs < INPUTS_MAX);
    let mut connected = held.unwrap_or_else(|| Connected::new(class));
    connected.inputs += 1;
    let Connected { peer, ours, .. } = &mut connected;
    peer.begin();
    // The run ends with the input.
    while peer.act(reader, ours.as_mut()).is_ok() {
        if !take(ours.as_mut()) {
            return;
        }
    }
    CONNECTED.set(Some(connected));
}

fn keys() -> [SealKeys; 2] {
    let [one, other] = [Secret([1; 32]), Secret([2; 32])];
    [SealKeys { sending: one.clone(), receiving: other.clone() }, SealKeys { sending: other, receiving: one }]
}

fn sockets() -> (UdpSocket, UdpSocket) {
    let [near, far] = [(); 2].map(|()| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port"));
    near.connect(far.local_addr().expect("an address")).expect("connect");
    far.connect(near.local_addr().expect("an address")).expect("connect");
    for socket in [&near, &far] {
        socket.set_nonblocking(true).expect("a socket that does not block");
    }
    (near, far)
}

fn ours(socket: UdpSocket, class: FlowClass) -> Box<dyn Partner> {
    let quic = transports::find("quic").expect("it is in the table");
    let given = [("socket_bytes", "0"), ("datagram", "1200")];
    let options = Options::check(quic.options(), given).expect("its own options");
    let [_, keys] = keys();
    let mut ours = quic.partner(socket.into(), End::Accepted, &options, Some(&keys)).expect("a partner");
    for direction in [Direction::In, Direction::Out] {
        let template = FlowTemplate { direction, format: Format::Bytes, class };
        ours.open(&template, &Attributes::default()).expect("a flow");
    }
    ours
}

/// Datagrams from anybody to a connection's socket; each starts with a length of two bytes.
fn before(reader: &mut Reader<'_>) {
    let (near, far) = sockets();
    let mut ours = ours(far, FlowClass::Reliable);
    while let Ok(datagram) = piece(reader) {
        let _ = classify(datagram);
        let _ = near.send(datagram);
        if !take(ours.as_mut()) {
            return;
        }
    }
}

/// Datagrams from anybody to the port.
fn check(reader: &mut Reader<'_>) {
    let [_, keys] = keys();
    let server = ConnectionConfig::data(End::Accepted, Some(&keys), &TUNING).expect("a server");
    let mut check = AddressValidator::new(&server).expect("a check");
    while let Ok(datagram) = piece(reader) {
        if let Validation::Answer(answer) = check.check(datagram, (Ipv4Addr::LOCALHOST, 1).into()) {
            assert!(answer.len() <= datagram.len(), "{} bytes for {}", answer.len(), datagram.len());
        }
    }
}

fn piece<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8], WireError> {
    let length = usize::from(reader.u16("length")?).min(reader.left());
    reader.bytes("bytes", length)
}

/// Pulls all messages; returns true while the connection is open.
fn take(ours: &mut dyn Partner) -> bool {
    let _ = ours.ctl(FlowKey::DEFAULT, Ctl::Transport(TransportCtl::Received));
    loop {
        match ours.pull(FlowKey::DEFAULT, Pull::Yours) {
            Ok(Pulled::Message(_, record)) => {
                let bytes = record.body.into_bytes();
                let header = RecordHeader::parse(&bytes, BODY_BYTES_MAX).expect("a whole record");
                assert_eq!(header.container.length as usize, bytes.len() - RecordHeader::BYTES);
            }
            Ok(Pulled::Nothing) => return true,
            Ok(_) | Err(_) => return false,
        }
    }
}

fn record(length: u16) -> Vec<u8> {
    let container = Container { length: length.into(), created: 0 };
    let mut record = RecordHeader { flow: 1, epoch: 0, sequence: 0, container }.emit().to_vec();
    record.resize(record.len() + usize::from(length), 7);
    record
}

/// A malicious peer that has the keys.
struct Peer {
    connection: QuicConnection,
    raw: UdpSocket,
    streams: Vec<StreamId>,
}

impl Peer {
    fn new(socket: UdpSocket) -> Peer {
        let [keys, _] = keys();
        let beginning = ConnectionConfig::data(End::Dialled, Some(&keys), &TUNING).expect("a client");
        let raw = socket.try_clone().expect("a socket");
        let connection = QuicConnection::new(socket.into(), beginning).expect("a connection");
        Peer { connection, raw, streams: Vec::new() }
    }

    fn shake_hands(&mut self, ours: &mut dyn Partner) {
        for _ in 0..ROUNDS_MAX {
            self.connection.drive();
            if self.connection.is_established() {
                return;
            }
            take(ours);
        }
        panic!("no handshake");
    }

    /// Abandons the streams of the last input.
    fn begin(&mut self) {
        let Some(connection) = self.connection.state() else { return };
        for stream in self.streams.drain(..) {
            let _ = connection.send_stream(stream).reset(VarInt::from_u32(0));
        }
    }

    /// Performs the next action of the input.
    fn act(&mut self, reader: &mut Reader<'_>, ours: &mut dyn Partner) -> Result<(), WireError> {
        let (action, which) = (reader.u8("action")?, usize::from(reader.u8("which")?));
        let stream = self.streams.get(which % self.streams.len().max(1)).copied();
        let Some(connection) = self.connection.state() else { return Ok(()) };
        match (action % 9, stream) {
            (0, _) if self.streams.len() < STREAMS_MAX => {
                self.streams.extend(connection.streams().open(Dir::Uni));
            }
            (1, Some(stream)) => drop(connection.send_stream(stream).write(piece(reader)?)),
            (2, Some(stream)) => {
                let length = reader.u16("length")?;
                drop(connection.send_stream(stream).write(&record(length)));
            }
            (3, Some(stream)) => drop(connection.send_stream(stream).finish()),
            (4, Some(stream)) => drop(connection.send_stream(stream).reset(VarInt::from_u32(which as u32))),
            (5, _) => {
                let bytes = piece(reader)?.to_vec();
                drop(connection.datagrams().send(bytes.into(), true));
            }
            (6, _) => drop(connection.datagrams().send(record(which as u16).into(), true)),
            (7, _) => drop(self.raw.send(piece(reader)?)),
            (8, _) => {
                let body = Body::from(record(which as u16));
                let _ = ours.push(FlowKey::DEFAULT, Message::new(Time::ZERO, body));
                let _ = ours.ctl(FlowKey::DEFAULT, Ctl::Flush);
            }
            _ => {}
        }
        self.connection.drive();
        Ok(())
    }
}
