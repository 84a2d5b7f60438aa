//! Tests with a socket in place of the sequencer or of a raw device: the virtual machine has the kernel's own.

use super::event::{EVENT_BYTES, Event};
use super::held::Held;
use super::stream::Splitter;
use super::*;
use contract::{
    Attributes, Body, Ctl, CtlReply, Direction, FlowKey, FlowTemplate, Message, PartnerError, Pull, Pulled,
    Pushed, RecoveryCtl,
};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use testkit::partner::{Harness, conforms};
use wire::formats::midi::{MidiMessage, SYSEX_BYTES_MAX};

/// The device's port, and any program.
const DEVICE: Address = Address { client: 20, port: 0 };
const PROGRAM: Address = Address { client: 130, port: 1 };
const OTHER: Address = Address { client: 131, port: 0 };
const OWN: Address = Address { client: 128, port: 0 };

fn template(direction: Direction) -> FlowTemplate {
    FlowTemplate { direction, format: Format::Midi, class: FlowClass::Reliable }
}

fn memory() -> OwnedFd {
    sys::memory::create("test", MEMORY_BYTES).unwrap()
}

/// A partner, and the far end of its line.
struct Far {
    partner: Box<dyn Partner>,
    far: UnixStream,
    kind: Line,
    fed: u8,
}

impl Far {
    fn with(kind: Line, memory: OwnedFd) -> Far {
        let (far, line) = UnixStream::pair().unwrap();
        line.set_nonblocking(true).unwrap();
        far.set_nonblocking(true).unwrap();
        let partner = Box::new(MidiPartner::new("a device".into(), line.into(), kind, Memory(memory)));
        Far { partner, far, kind, fed: 0 }
    }

    fn new(kind: Line) -> Far {
        Far::with(kind, memory())
    }

    fn open(kind: Line) -> Far {
        Far::new(kind).opened()
    }

    fn opened(mut self) -> Far {
        for direction in [Direction::Out, Direction::In] {
            self.partner.open(&template(direction), &Attributes::default()).unwrap();
        }
        self
    }

    fn push(&mut self, body: &[u8]) -> bool {
        let message = Message::new(crate::stream::now(), Body::from(body.to_vec()));
        match self.partner.push(FlowKey::DEFAULT, message).unwrap() {
            Pushed::Taken => true,
            Pushed::Full(_) => false,
        }
    }

    fn pull(&mut self) -> Result<Vec<Vec<u8>>, PartnerError> {
        let mut bodies = Vec::new();
        while let Pulled::Message(_, message) = self.partner.pull(FlowKey::DEFAULT, Pull::Yours)? {
            bodies.push(message.body.into_bytes().to_vec());
        }
        Ok(bodies)
    }

    /// Returns the messages that arrived at the far end.
    fn arrived(&mut self) -> Vec<Vec<u8>> {
        let mut bytes = Vec::new();
        match self.far.read_to_end(&mut bytes) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            other => panic!("reading the far end: {other:?}"),
        }
        if self.kind == Line::Raw {
            let mut splitter = Splitter::default();
            return bytes
                .iter()
                .flat_map(|byte| splitter.push(*byte))
                .flatten()
                .map(MidiMessage::into_bytes)
                .collect();
        }
        let (mut decoder, mut messages, mut left) = (event::Decoder::default(), Vec::new(), &bytes[..]);
        while let Some((head, rest)) = left.split_at_checked(EVENT_BYTES) {
            let length =
                if head[1] == 0 { 0 } else { u32::from_ne_bytes([head[16], head[17], head[18], head[19]]) };
            let (data, rest) = rest.split_at(length as usize);
            let padded = length.next_multiple_of(EVENT_BYTES as u32) as usize;
            let mut one = [head, data].concat();
            one.resize(EVENT_BYTES + padded, 0);
            let (event, _) = Event::first(&one).unwrap();
            decoder.decode(&event, |message| messages.push(message.into_bytes()));
            left = rest;
        }
        messages
    }

    fn neutral(&mut self) {
        self.partner.ctl(FlowKey::DEFAULT, Ctl::Neutral).unwrap();
    }

    fn is_neutral(&mut self) -> bool {
        matches!(self.partner.ctl(FlowKey::DEFAULT, Ctl::IsNeutral).unwrap(), CtlReply::Count(1))
    }
}

/// A message as events of a sender, as the kernel returns them.
fn events(source: Address, message: &[u8]) -> Vec<u8> {
    let (mut bytes, mut written) = (Vec::new(), 0);
    while written < message.len() {
        let (mut event, taken) = event::encode(message, written);
        event.resize(event.len().next_multiple_of(EVENT_BYTES), 0);
        (event[12], event[13]) = (source.client, source.port);
        bytes.extend(event);
        written += taken;
    }
    bytes
}

/// News of the kernel about a port and its other end.
fn news(kind: u8, first: Address, second: Address) -> Vec<u8> {
    let mut event = [0; EVENT_BYTES];
    [event[0], event[13]] = [kind, 1];
    event[16..20].copy_from_slice(&[first.client, first.port, second.client, second.port]);
    event.to_vec()
}

fn device() -> Line {
    Line::Sequencer { device: Some(DEVICE), receiver: Receiver::Hardware }
}

fn application() -> Line {
    Line::Sequencer { device: None, receiver: Receiver::Software }
}

impl Harness for Far {
    fn partner(&mut self) -> &mut dyn Partner {
        self.partner.as_mut()
    }

    fn template(&self, direction: Direction) -> Option<FlowTemplate> {
        Some(template(direction))
    }

    fn feed(&mut self) -> Option<Vec<u8>> {
        self.fed += 1;
        let message = vec![0x90, self.fed, 100];
        let bytes = match self.kind {
            Line::Raw => message.clone(),
            Line::Sequencer { device, .. } => events(device.unwrap_or(PROGRAM), &message),
        };
        self.far.write_all(&bytes).unwrap();
        Some(message)
    }

    fn end(&mut self) -> bool {
        false
    }

    fn body(&self, number: u64) -> Vec<u8> {
        vec![0xb0 | (number >> 14 & 0xf) as u8, 1 + (number >> 7 & 0x1f) as u8, (number & 0x7f) as u8]
    }

    fn taken(&mut self) -> Option<Vec<u8>> {
        Some(self.arrived().concat())
    }
}

#[test]
fn a_raw_device_conforms() {
    conforms(|| Far::new(Line::Raw));
}

/// A sound module has only an input, so its device is open for writing only. A pipe stands for it.
#[test]
fn a_raw_device_that_only_receives_gets_its_notes() {
    let (mut far, line) = std::io::pipe().unwrap();
    rustix::io::ioctl_fionbio(&line, true).unwrap();
    let mut partner = MidiPartner::new("a sound module".into(), line.into(), Line::Raw, Memory(memory()));
    for direction in [Direction::Out, Direction::In] {
        partner.open(&template(direction), &Attributes::default()).unwrap();
    }
    assert!(matches!(partner.pull(FlowKey::DEFAULT, Pull::Yours), Ok(Pulled::Nothing)));
    let note = Message::new(crate::stream::now(), Body::from(vec![0x90, 60, 100]));
    assert!(matches!(partner.push(FlowKey::DEFAULT, note), Ok(Pushed::Taken)));
    let mut bytes = [0; 3];
    far.read_exact(&mut bytes).unwrap();
    assert_eq!(bytes, [0x90, 60, 100]);
    drop(far);
    assert!(matches!(partner.pull(FlowKey::DEFAULT, Pull::Yours), Err(PartnerError::Gone(_))));
}

#[test]
fn a_port_of_a_device_conforms() {
    conforms(|| Far::new(device()));
}

#[test]
fn a_port_for_programs_conforms() {
    conforms(|| Far::new(application()));
}

#[test]
fn bytes_of_a_cable_become_messages() {
    let mut splitter = Splitter::default();
    let bytes = [
        60, // no status yet
        0x90, 60, 100, 0xf8, 62, 0xfe, 0, // running status, a clock and active sensing
        0xf0, 1, 2, 0xf8, 3, 0xf7, // a clock inside
        62,   // running status ends with it
        0xc3, 5, 0xf0, 9, 0xe0, 0, 0x40, // a status byte ends it
        0xf4, 0xf6, 0xf7, 0xff, 0xf2, 1, 2,
    ];
    let messages: Vec<_> = bytes.iter().flat_map(|byte| splitter.push(*byte)).flatten().collect();
    let expected: [&[u8]; 13] = [
        &[0x90, 60, 100],
        &[0xf8],
        &[0xfe],
        &[0x90, 62, 0],
        &[0xf8],
        &[0xf0, 1, 2, 3, 0xf7],
        &[0xc3, 5],
        &[0xf0, 9, 0xf7],
        &[0xe0, 0, 0x40],
        &[0xf6],
        &[0xff],
        &[0xf2, 1, 2],
        &[],
    ];
    let found: Vec<_> = messages.iter().map(MidiMessage::as_bytes).chain([&[][..]]).collect();
    assert_eq!(found, expected);
    assert_eq!(splitter.stray_bytes, 4, "60, 62, F4, F7");
}

#[test]
fn a_system_exclusive_message_has_a_bound() {
    let mut splitter = Splitter::default();
    let body = |length: usize| {
        std::iter::once(0xf0)
            .chain((0..length - 2).map(|at| at as u8 & 0x7f))
            .chain([0xf7])
            .collect::<Vec<u8>>()
    };
    for (length, arrives) in
        [(SYSEX_BYTES_MAX, true), (SYSEX_BYTES_MAX + 1, false), (200_000, false), (3, true)]
    {
        let sysex = body(length);
        let found: Vec<_> = sysex.iter().flat_map(|byte| splitter.push(*byte)).flatten().collect();
        assert_eq!(found.iter().any(|message| message.as_bytes() == sysex), arrives, "{length} bytes");
    }
    assert_eq!(splitter.too_long, 2);
    let mut far = Far::open(application());
    let sysex = body(5000);
    far.far.write_all(&events(PROGRAM, &sysex)).unwrap();
    far.far.write_all(&events(OTHER, &[0x90, 1, 1])).unwrap();
    assert_eq!(far.pull().unwrap(), [sysex, vec![0x90, 1, 1]], "its pieces are joined");
}

#[test]
fn pieces_of_two_programs_do_not_mix() {
    let mut far = Far::open(application());
    let long = |fill: u8| [&[0xf0][..], &[fill; 300], &[0xf7]].concat();
    let [first, second] = [(PROGRAM, 1), (OTHER, 2)].map(|(source, fill)| events(source, &long(fill)));
    let cut = EVENT_BYTES + 256_usize.next_multiple_of(EVENT_BYTES);
    for piece in [&first[..cut], &second[..cut], &first[cut..], &second[cut..]] {
        far.far.write_all(piece).unwrap();
    }
    assert_eq!(far.pull().unwrap(), [long(1), long(2)]);
}

/// The kernel's queue was full in the middle of a dump: its end must not be taken for the continuation of its beginning.
#[test]
fn a_system_exclusive_message_with_a_lost_piece_is_dropped() {
    let sysex = [&[0xf0][..], &[1; 600], &[0xf7]].concat();
    let pieces = events(DEVICE, &sysex);
    let (mut decoder, mut messages, mut left) = (event::Decoder::default(), Vec::new(), &pieces[..]);
    let mut number = 0;
    while let Some((event, length)) = Event::first(left) {
        match number {
            1 => decoder.drop_partial(),
            _ => decoder.decode(&event, |message| messages.push(message)),
        }
        (number, left) = (number + 1, &left[length..]);
    }
    assert_eq!((number, messages.len(), decoder.sysex_dropped), (3, 0, 1));
    let next = events(DEVICE, &[0xf0, 2, 0xf7]);
    decoder.decode(&Event::first(&next).unwrap().0, |message| messages.push(message));
    assert_eq!(messages.len(), 1, "the next one is whole");
}

#[test]
fn only_the_device_itself_is_heard() {
    let mut far = Far::open(device());
    far.far.write_all(&events(PROGRAM, &[0x90, 60, 1])).unwrap();
    far.far.write_all(&events(DEVICE, &[0x90, 61, 1])).unwrap();
    assert_eq!(far.pull().unwrap(), [[0x90, 61, 1]]);
}

#[test]
fn a_neutral_port_holds_nothing_and_its_controls_return() {
    for kind in [Line::Raw, device(), application()] {
        let mut far = Far::open(kind);
        for message in
            [[0x91, 60, 100], [0x91, 62, 100], [0x81, 62, 0], [0xb1, 64, 127], [0xe2, 1, 2], [0xb0, 7, 9]]
        {
            assert!(far.push(&message));
        }
        assert_eq!(far.arrived().len(), 6);
        assert!(!far.is_neutral());
        far.neutral();
        assert!(far.is_neutral());
        assert_eq!(far.arrived(), [[0xb1, 64, 0], [0x81, 60, 64], [0xe2, 0, 0x40]]);
        far.neutral();
        assert!(far.arrived().is_empty(), "it holds nothing any more");
        assert!(far.push(&[0x92, 50, 1]));
        assert_eq!(far.arrived(), [[0xb1, 64, 127], [0xe2, 1, 2], [0x92, 50, 1]]);
        far.neutral();
        far.arrived();
        assert!(far.push(&[0xb1, 64, 0]));
        assert_eq!(far.arrived(), [[0xe2, 1, 2], [0xb1, 64, 0]], "a message overrides what would return");
    }
}

#[test]
fn a_flow_that_closes_ends_its_notes() {
    let mut far = Far::new(application());
    let key = far.partner.open(&template(Direction::In), &Attributes::default()).unwrap();
    far.push(&[0x90, 60, 1]);
    far.arrived();
    far.partner.close(key).unwrap();
    assert_eq!(far.arrived(), [[0x80, 60, 64]]);
}

#[test]
fn the_next_worker_knows_what_is_held() {
    let memory = memory();
    let mut killed = Far::with(application(), memory.try_clone().unwrap()).opened();
    killed.push(&[0x90, 60, 1]);
    killed.push(&[0xe0, 0, 0]);
    // A killed worker drops nothing.
    std::mem::forget(killed);
    let mut next = Far::with(application(), memory).opened();
    assert!(!next.is_neutral());
    next.neutral();
    assert_eq!(next.arrived(), [[0x80, 60, 64], [0xe0, 0, 0x40]]);
}

#[test]
fn the_next_worker_continues_running_status() {
    let memory = memory();
    let mut killed = Far::with(Line::Raw, memory.try_clone().unwrap()).opened();
    killed.far.write_all(&[0x93, 60, 1, 61]).unwrap();
    assert_eq!(killed.pull().unwrap(), [[0x93, 60, 1]]);
    std::mem::forget(killed);
    let mut next = Far::with(Line::Raw, memory).opened();
    next.far.write_all(&[2, 62, 3]).unwrap();
    assert_eq!(next.pull().unwrap(), [[0x93, 61, 2], [0x93, 62, 3]]);
}

#[test]
fn a_lost_device_ends_its_notes_first() {
    for lost in [news(64, DEVICE, Address::default()), news(61, DEVICE, Address::default())] {
        let mut far = Far::open(device());
        far.far.write_all(&events(DEVICE, &[0x90, 60, 1])).unwrap();
        far.far.write_all(&news(64, OTHER, Address::default())).unwrap();
        far.far.write_all(&lost).unwrap();
        let mut pulled = Vec::new();
        let error = loop {
            match far.partner.pull(FlowKey::DEFAULT, Pull::Yours) {
                Ok(Pulled::Message(_, message)) => pulled.push(message.body.into_bytes().to_vec()),
                Ok(other) => panic!("{other:?}"),
                Err(error) => break error,
            }
        };
        assert_eq!(pulled, [[0x90, 60, 1], [0x80, 60, 64]]);
        assert!(matches!(error, PartnerError::Gone(_)));
        let message = Message::new(crate::stream::now(), Body::from(vec![0xf8]));
        assert!(matches!(far.partner.push(FlowKey::DEFAULT, message), Err((PartnerError::Gone(_), _))));
    }
    let mut far = Far::open(Line::Raw);
    far.far.write_all(&[0x90, 60, 1]).unwrap();
    assert_eq!(far.pull().unwrap(), [[0x90, 60, 1]]);
    far.far.shutdown(std::net::Shutdown::Write).unwrap();
    let ended = far.partner.pull(FlowKey::DEFAULT, Pull::Yours).unwrap();
    assert!(matches!(ended, Pulled::Message(_, message) if message.body == Body::from(vec![0x80, 60, 64])));
}

#[test]
fn notes_end_when_the_last_program_leaves() {
    let mut far = Far::open(application());
    far.far.write_all(&news(66, PROGRAM, OWN)).unwrap();
    far.far.write_all(&news(66, OTHER, OWN)).unwrap();
    far.far.write_all(&events(PROGRAM, &[0x90, 60, 1])).unwrap();
    far.far.write_all(&news(67, PROGRAM, OWN)).unwrap();
    assert_eq!(far.pull().unwrap(), [[0x90, 60, 1]]);
    far.far.write_all(&news(67, OTHER, OWN)).unwrap();
    assert_eq!(far.pull().unwrap(), [[0x80, 60, 64]]);
}

#[test]
fn a_partial_message_continues_in_the_next_worker() {
    let sysex = [&[0xf0][..], &[5; 5000], &[0xf7]].concat();
    let mut far = Far::open(device());
    assert!(far.push(&sysex));
    assert!(!far.push(&[0xf8]), "a driver gets a long message at the pace of a cable");
    let CtlReply::Count(written) =
        far.partner.ctl(FlowKey::DEFAULT, Ctl::Recovery(RecoveryCtl::PartialWrite)).unwrap()
    else {
        panic!("the write was partial")
    };
    assert!((512..5000).contains(&written), "{written}");
    let mut next = Far::open(device());
    next.partner.ctl(FlowKey::DEFAULT, Ctl::Recovery(RecoveryCtl::Skip(written))).unwrap();
    next.push(&sysex);
    let mut bytes = Vec::new();
    next.far.read_to_end(&mut bytes).unwrap_err();
    let first = u32::from_ne_bytes([bytes[16], bytes[17], bytes[18], bytes[19]]) as usize;
    assert_eq!(&bytes[EVENT_BYTES..EVENT_BYTES + 2], &[5, 5], "it begins behind the written bytes");
    assert_eq!(first, 256.min(sysex.len() - written as usize));
}

#[test]
fn messages_of_a_peer_are_checked() {
    let mut far = Far::open(application());
    for wrong in
        [&[][..], &[60], &[0x90, 60], &[0x90, 60, 128], &[0x90, 60, 1, 1], &[0xf0, 1], &[0xf7], &[0xf4]]
    {
        let message = Message::new(crate::stream::now(), Body::from(wrong.to_vec()));
        let answer = far.partner.push(FlowKey::DEFAULT, message);
        assert!(matches!(answer, Err((PartnerError::Message(_), _))), "{wrong:?}: {answer:?}");
    }
    assert!(far.arrived().is_empty());
}

#[test]
fn any_memory_is_a_state() {
    let mut held = Held::default();
    for channel in 0..16 {
        for message in [[0x90, 0, 1], [0x90, 127, 1], [0xb0, 64, 127], [0xb0, 69, 1], [0xe0, 127, 127]] {
            held.apply(&MidiMessage::parse(&[message[0] | channel, message[1], message[2]]).unwrap());
        }
    }
    assert_eq!(Held::from_bytes(&held.to_bytes()), held);
    assert_eq!(held.release().messages.len(), 16 * 5);
    assert_eq!(Held::from_bytes(&[0; held::HELD_BYTES]), Held::default());
    let everything = Held::from_bytes(&[0xff; held::HELD_BYTES]).release();
    assert_eq!(everything.messages.len(), 16 * (128 + 3 + 1), "all of it is valid MIDI");
    let _ = Splitter::restore([0xff; 4]);
}

#[test]
fn every_event_of_the_fuzzer_is_read() {
    for bytes in
        [&[0x90, 60, 1][..], &[0xf0, 0xf7], &[0xe0, 1, 2], &[0xf2, 3, 4], &[0xf1, 1], &[0xff], &[0xd0, 9]]
    {
        fuzz::message(bytes);
        fuzz::cable(bytes);
        fuzz::events(&events(PROGRAM, bytes));
    }
}

#[test]
fn a_description_is_checked() {
    let facts = Facts {
        name: "Launchkey Mini".into(),
        port: "Launchkey Mini MIDI 1".into(),
        kind: FactsKind::Hardware,
        address: DEVICE,
    };
    assert_eq!(Facts::parse(&facts.emit()), Ok(facts.clone()));
    assert_eq!(facts.title(), "Launchkey Mini MIDI 1");
    let properties = facts.emit();
    let described = Description {
        class: "midi".into(),
        summary: String::new(),
        flows: flows(),
        application: "midi",
        properties: properties.clone(),
    };
    assert_eq!(Midi.kind(&described).unwrap(), Kind::Midi);
    for length in 0..properties.len() {
        let properties = properties[..length].to_vec();
        assert!(Midi.kind(&Description { properties, ..described.clone() }).is_err(), "{length} bytes");
    }
    let long = Facts { name: "é".repeat(100), ..facts };
    assert_eq!(Facts::parse(&long.emit()).unwrap().name, "é".repeat(31));
}

#[test]
fn targets_name_a_port() {
    let named = Target::Name;
    for (text, target) in [
        ("", Target::Any),
        ("20:1", Target::Address(Address { client: 20, port: 1 })),
        ("20", Target::Address(Address { client: 20, port: 0 })),
        ("Launchkey Mini", named("Launchkey Mini", None)),
        ("Launchkey Mini:1", named("Launchkey Mini", Some(1))),
        ("FLUID: Synth", named("FLUID: Synth", None)),
    ] {
        assert_eq!(Target::parse(text), target, "{text}");
    }
    assert_eq!(discovery::raw_numbers("/dev/snd/midiC10D2"), Some((10, 2)));
    assert_eq!(discovery::raw_numbers("/dev/snd/pcmC0D0p"), None);
}
