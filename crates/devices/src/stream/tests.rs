use super::frame::{Deframer, Frame, enframe};
use super::now;
use crate::spec;
use contract::{
    Attributes, Body, Bytes, Direction, FlowClass, FlowKey, FlowTemplate, Format, Message, Opened, Partner,
    Pull, Pulled, Role, Time,
};
use proptest::prelude::*;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use testkit::partner::{CREATED, Harness};
use wire::Container;

/// A stream partner and the other ends of its descriptors.
pub(crate) struct FarStream {
    pub(crate) partner: Box<dyn Partner>,
    /// Source of the pulled bytes.
    pub(crate) feeder: Option<File>,
    /// Destination of the pushed bytes; non-blocking.
    pub(crate) taker: Option<File>,
    pub(crate) in_containers: bool,
    pub(crate) ends: bool,
    pub(crate) fed: u64,
}

impl FarStream {
    pub(crate) fn new(partner: Box<dyn Partner>, feeder: Option<OwnedFd>, taker: Option<OwnedFd>) -> Self {
        if let Some(taker) = &taker {
            rustix::io::ioctl_fionbio(taker, true).unwrap();
        }
        let (feeder, taker) = (feeder.map(File::from), taker.map(File::from));
        FarStream { partner, feeder, taker, in_containers: false, ends: true, fed: 0 }
    }

    fn framed(&self, body: &[u8]) -> Vec<u8> {
        let header = Container { length: body.len() as u32, created: CREATED.0 }.emit();
        if self.in_containers { [&header, body].concat() } else { body.to_vec() }
    }
}

impl Harness for FarStream {
    fn partner(&mut self) -> &mut dyn Partner {
        self.partner.as_mut()
    }

    fn template(&self, direction: Direction) -> Option<FlowTemplate> {
        let has_flow = match direction {
            Direction::Out => self.feeder.is_some(),
            Direction::In => self.taker.is_some(),
        };
        has_flow.then_some(template(direction))
    }

    fn feed(&mut self) -> Option<Vec<u8>> {
        self.fed += 1;
        let body = format!("message {}\n", self.fed).into_bytes();
        let framed = self.framed(&body);
        self.feeder.as_mut()?.write_all(&framed).unwrap();
        Some(body)
    }

    fn end(&mut self) -> bool {
        if self.ends {
            self.feeder = None;
        }
        self.ends
    }

    fn body(&self, number: u64) -> Vec<u8> {
        format!("{number:0200}\n").into_bytes()
    }

    fn seen(&self, body: &[u8]) -> Vec<u8> {
        self.framed(body)
    }

    fn taken(&mut self) -> Option<Vec<u8>> {
        Some(read_available(self.taker.as_mut()?))
    }
}

/// Reads all available bytes.
pub(crate) fn read_available(from: &mut File) -> Vec<u8> {
    let (mut got, mut buffer) = (Vec::new(), vec![0; 65536]);
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return got,
            Ok(count) => got.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return got,
            // EIO from a terminal's master: the last slave is closed and everything is read.
            Err(error) if error.raw_os_error() == Some(5) => return got,
            Err(error) => panic!("the far side: {error}"),
        }
    }
}

pub(crate) fn template(direction: Direction) -> FlowTemplate {
    FlowTemplate { direction, format: Format::Bytes, class: FlowClass::Reliable }
}

/// Opens the device with this specification.
pub(crate) fn open(text: &str, role: Role) -> Box<dyn Partner> {
    let (class, spec) = spec::parse(text, role).unwrap_or_else(|error| panic!("{error}"));
    let opened = class.open(&spec, role, None).unwrap_or_else(|error| panic!("{error}"));
    class.partner(opened).unwrap_or_else(|error| panic!("{error}"))
}

/// Creates a partner with this specification on a descriptor of the test.
pub(crate) fn partner_on(text: &str, role: Role, descriptor: impl Into<OwnedFd>) -> Box<dyn Partner> {
    let (class, spec) = spec::parse(text, role).unwrap();
    let description = crate::plain::description(&spec, crate::plain::forward_flow(), "stdout");
    class.partner(Opened { spec, role, description, descriptors: vec![descriptor.into()] }).unwrap()
}

/// Opens the flow out and pulls all messages of a source that is always ready.
pub(crate) fn pull_all(partner: &mut dyn Partner) -> Result<Vec<Message>, contract::PartnerError> {
    let key = partner.open(&template(Direction::Out), &Attributes::default())?;
    let mut messages = Vec::new();
    loop {
        match partner.pull(key, Pull::Yours)? {
            Pulled::Message(_, message) => messages.push(message),
            Pulled::Nothing => {}
            Pulled::End => return Ok(messages),
            other => panic!("{other:?}"),
        }
    }
}

/// Opens the flow in and pushes the messages into a sink that is always ready.
pub(crate) fn push_all(partner: &mut dyn Partner, messages: &[Message]) -> FlowKey {
    let key = partner.open(&template(Direction::In), &Attributes::default()).unwrap();
    for message in messages {
        match partner.push(key, message.clone()) {
            Ok(contract::Pushed::Taken) => {}
            other => panic!("{other:?}"),
        }
    }
    key
}

fn deframe(frame: Frame, max: usize, pieces: &[&[u8]]) -> Result<Vec<Message>, String> {
    let mut deframer = Deframer::new(frame, max);
    let mut messages = Vec::new();
    for piece in pieces {
        deframer.push(Bytes::copy_from_slice(piece));
        while let Some(message) = deframer.next(Time(1)).map_err(|error| error.to_string())? {
            messages.push(message);
        }
        assert!(!deframer.is_ready());
    }
    while let Some(message) = deframer.end(Time(1)).map_err(|error| error.to_string())? {
        messages.push(message);
    }
    Ok(messages)
}

/// Splits the bytes at these places.
fn cut<'a>(bytes: &'a [u8], at: &[prop::sample::Index]) -> Vec<&'a [u8]> {
    let mut places: Vec<_> = at.iter().map(|at| at.index(bytes.len() + 1)).collect();
    places.extend([0, bytes.len()]);
    places.sort_unstable();
    places.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect()
}

fn joined(messages: &[Message]) -> Vec<u8> {
    messages.iter().flat_map(|message| message.body.clone().into_bytes()).collect()
}

#[test]
fn frame_names_are_parsed_and_others_refused() {
    assert_eq!(Frame::parse("chunk"), Ok(Frame::Chunk(65536)));
    assert_eq!(Frame::parse("chunk(512)"), Ok(Frame::Chunk(512)));
    assert_eq!(Frame::parse("line"), Ok(Frame::Line));
    assert_eq!(Frame::parse("container"), Ok(Frame::Container));
    for wrong in ["", "chunk(", "chunk()", "chunk(0)", "chunk(1GiB)", "lines", "chunk(x)"] {
        assert!(Frame::parse(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn a_container_over_the_limit_is_an_error_before_it_is_read() {
    let huge = Container { length: u32::MAX, created: 0 }.emit();
    let error = deframe(Frame::Container, 1 << 20, &[&huge]).unwrap_err();
    assert!(error.contains("over the limit") && error.contains("`max`"), "{error}");
    let error = deframe(Frame::Container, 1 << 20, &[&huge[..5]]).unwrap_err();
    assert!(error.contains("5 bytes into a container"), "{error}");
}

#[test]
fn a_line_over_the_limit_is_an_error_after_the_lines_before_it() {
    let mut deframer = Deframer::new(Frame::Line, 4);
    deframer.push(Bytes::from_static(b"abc\nabcdef\nx\n"));
    assert_eq!(deframer.next(Time(1)).unwrap().unwrap().body, Body::from(&b"abc\n"[..]));
    assert!(deframer.is_ready());
    assert!(deframer.next(Time(1)).is_err());
    assert!(deframer.next(Time(1)).is_err(), "the error is permanent");
}

proptest! {
    #[test]
    fn lines_are_the_same_wherever_the_stream_is_cut(
        bytes in prop::collection::vec(prop_oneof![Just(b'\n'), any::<u8>()], 0..300),
        at in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let messages = deframe(Frame::Line, 1 << 20, &cut(&bytes, &at)).unwrap();
        let expected: Vec<_> = bytes.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
        let got: Vec<_> = messages.into_iter().map(|message| message.body.into_bytes().to_vec()).collect();
        prop_assert_eq!(got, expected);
    }

    #[test]
    fn containers_keep_their_times_wherever_the_stream_is_cut(
        sent in prop::collection::vec((any::<u64>(), prop::collection::vec(any::<u8>(), 0..100)), 0..8),
        at in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let messages: Vec<_> = sent.into_iter().map(|(time, body)| Message::new(Time(time), body)).collect();
        let bytes: Vec<u8> = messages
            .iter()
            .flat_map(|message| enframe(Frame::Container, message.clone()).unwrap().into_bytes())
            .collect();
        prop_assert_eq!(deframe(Frame::Container, 100, &cut(&bytes, &at)).unwrap(), messages);
    }

    #[test]
    fn chunks_lose_nothing_and_keep_their_limit(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        at in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        size in 1usize..64,
    ) {
        let messages = deframe(Frame::Chunk(size), 1 << 20, &cut(&bytes, &at)).unwrap();
        prop_assert_eq!(joined(&messages), bytes);
        prop_assert!(messages.iter().all(|message| (1..=size).contains(&message.body.len())));
    }

    #[test]
    fn any_bytes_as_containers_are_messages_or_an_error(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        at in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        if let Ok(messages) = deframe(Frame::Container, 256, &cut(&bytes, &at)) {
            let taken: usize = messages.iter().map(|message| message.body.len() + Container::BYTES).sum();
            prop_assert_eq!(taken, bytes.len());
        }
    }

    #[test]
    fn is_complete_with_predicts_a_complete_message(
        bytes in prop::collection::vec(prop_oneof![Just(b'\n'), Just(0), any::<u8>()], 1..100),
        held in any::<prop::sample::Index>(),
        frame in prop_oneof![Just(Frame::Line), Just(Frame::Container)],
    ) {
        let (held, gathered) = bytes.split_at(held.index(bytes.len()));
        let mut deframer = Deframer::new(frame, 1 << 16);
        deframer.push(Bytes::copy_from_slice(held));
        prop_assume!(!deframer.is_ready());
        let predicted = deframer.is_complete_with(gathered, gathered.len());
        deframer.push(Bytes::copy_from_slice(gathered));
        prop_assert_eq!(predicted, deframer.is_ready());
    }
}

#[test]
fn a_message_of_many_reads_is_not_copied() {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let mut partner = partner_on("stdin:frame=container", Role::Device, reader);
    let key = partner.open(&template(Direction::Out), &Attributes::default()).unwrap();
    let body: Vec<u8> = (0..300_000u32).flat_map(u32::to_le_bytes).take(300_000).collect();
    let sent = enframe(Frame::Container, Message::new(Time(7), body.clone())).unwrap().into_bytes();
    let feeding = std::thread::spawn(move || writer.write_all(&sent).unwrap());
    let deadline_ns = now().0 + 20_000_000_000;
    loop {
        match partner.pull(key, Pull::Yours).unwrap() {
            Pulled::Message(_, message) => {
                assert_eq!((message.created, message.body.len()), (Time(7), body.len()));
                assert!(message.body.chunks().count() < 300, "the pieces are too small");
                assert_eq!(message.body, Body::from(body));
                break;
            }
            Pulled::Nothing => std::thread::yield_now(),
            other => panic!("{other:?}"),
        }
        assert!(now().0 < deadline_ns, "the message is never complete");
    }
    feeding.join().unwrap();
}
