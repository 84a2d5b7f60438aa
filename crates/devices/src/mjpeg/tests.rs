//! Tests with images that have the structure of JPEG, but no meaningful pixels.

use super::reader::Reader;
use super::scan::{Image, Scanner, skip_to_image};
use crate::file::tests::Scratch;
use crate::stream::tests::{open, partner_on, read_available};
use crate::stream::{Channel, MessageReader};
use contract::{
    Attributes, Body, Ctl, CtlReply, Direction, FlowClass, FlowTemplate, Format, Message, Next, Partner,
    PartnerError, Pull, Pulled, RecoveryCtl, Role, Time,
};
use proptest::prelude::*;
use std::fs::File;
use std::io::Write;
use testkit::partner::{Harness, conforms};
use wire::formats::video::{Geometry, Header, PixelFormat};

/// Returns the structure of an image of 6x2 pixels: its size, a restart marker and an escaped 0xff in the pixels, and a
/// second scan, as in progressive images.
fn image(number: u64) -> Vec<u8> {
    let bytes = number.to_le_bytes();
    let pixels: Vec<u8> = bytes.iter().flat_map(|byte| [*byte, 0xff, 0, 7]).collect();
    [
        &[0xff, 0xd8, 0xff, 0xe0, 0, 4, 0xff, 0xd9][..],
        &[0xff, 0xff, 0xc2, 0, 9, 8, 0, 2, 0, 6, 1, 0],
        &[0xff, 0xda, 0, 3, 1],
        &pixels,
        &[0xff, 0xd0, 3, 0xff, 0xda, 0, 2, 5, 0xff, 0xff, 0xd9],
    ]
    .concat()
}

fn body(number: u64) -> Vec<u8> {
    let geometry = Geometry::new(PixelFormat::Mjpeg, 6, 2).unwrap();
    [&Header::frame(geometry.with_rate(0, 1)).emit()[..], &image(number)].concat()
}

fn template(direction: Direction) -> FlowTemplate {
    FlowTemplate { direction, format: Format::Video, class: FlowClass::Reliable }
}

/// A partner at one end of a FIFO, and the test at the other.
struct Stream {
    _scratch: Scratch,
    partner: Box<dyn Partner>,
    far: Option<File>,
    direction: Direction,
    fed: u64,
}

impl Stream {
    fn new(role: Role) -> Stream {
        let scratch = Scratch::new();
        let (path, held) = scratch.fifo("film");
        let (options, direction) = match role {
            Role::Device => (",rate=0", Direction::Out),
            Role::Application => ("", Direction::In),
        };
        let partner = open(&format!("mjpeg:{path}{options}"), role);
        Stream { _scratch: scratch, partner, far: Some(File::from(held)), direction, fed: 0 }
    }
}

impl Harness for Stream {
    fn partner(&mut self) -> &mut dyn Partner {
        self.partner.as_mut()
    }

    fn template(&self, direction: Direction) -> Option<FlowTemplate> {
        (direction == self.direction).then(|| template(direction))
    }

    fn feed(&mut self) -> Option<Vec<u8>> {
        self.fed += 1;
        self.far.as_mut()?.write_all(&image(self.fed)).unwrap();
        Some(body(self.fed))
    }

    fn end(&mut self) -> bool {
        self.far = None;
        true
    }

    fn body(&self, number: u64) -> Vec<u8> {
        body(number)
    }

    fn seen(&self, body: &[u8]) -> Vec<u8> {
        body[Header::BYTES..].to_vec()
    }

    fn taken(&mut self) -> Option<Vec<u8>> {
        self.far.as_mut().filter(|_| self.direction == Direction::In).map(read_available)
    }
}

#[test]
fn a_device_conforms() {
    conforms(|| Stream::new(Role::Device));
}

#[test]
fn an_application_conforms() {
    conforms(|| Stream::new(Role::Application));
}

/// Returns the first error of a device that reads these bytes from a file; `None` if it reaches the end.
fn error(bytes: &[u8], options: &str) -> Option<PartnerError> {
    let scratch = Scratch::new();
    let path = scratch.path("film");
    std::fs::write(&path, bytes).unwrap();
    let mut partner = open(&format!("mjpeg:{path},rate=0{options}"), Role::Device);
    let key = partner.open(&template(Direction::Out), &Attributes::default()).unwrap();
    loop {
        match partner.pull(key, Pull::Yours) {
            Ok(Pulled::End) => return None,
            Ok(_) => {}
            Err(error) => return Some(error),
        }
    }
}

/// A worker is killed within an image of a FIFO, or in the padding before or after it. Its successor loses that image and no
/// other.
#[test]
fn a_reader_resumed_within_an_image_finds_the_next() {
    for padding in [&[][..], &[0; 70], &[0xff], &[0, 0xff, 0, 0xff]] {
        resume_within_an_image(padding);
    }
}

/// Tests each byte of an image of a stream that has this padding between its images.
fn resume_within_an_image(padding: &[u8]) {
    let scratch = Scratch::new();
    let (path, far) = scratch.fifo("film");
    let mut far = File::from(far);
    let stream: Vec<u8> = (0..4).flat_map(|number| [&image(number), padding].concat()).collect();
    let second = image(0).len() + padding.len();
    for read in image(0).len()..=second + image(1).len() + padding.len() {
        let reader = || {
            let node = File::options().read(true).write(true).open(&path).unwrap();
            let mut partner = partner_on(&format!("mjpeg:{path},rate=0"), Role::Device, node);
            let key = partner.open(&template(Direction::Out), &Attributes::default()).unwrap();
            (partner, key)
        };
        let (mut first, key) = reader();
        far.write_all(&stream[..read]).unwrap();
        assert!(matches!(first.pull(key, Pull::Yours), Ok(Pulled::Message(..))));
        let _ = first.pull(key, Pull::Yours).unwrap();
        let Ok(CtlReply::Bytes(saved)) = first.ctl(key, Ctl::Recovery(RecoveryCtl::SaveState)) else {
            panic!("no saved state")
        };
        let (mut next, key) = reader();
        next.ctl(key, Ctl::Recovery(RecoveryCtl::RestoreState(&saved))).unwrap();
        far.write_all(&stream[read..]).unwrap();
        let mut found = Vec::new();
        while let Pulled::Message(_, message) = next.pull(key, Pull::Yours).unwrap() {
            found.push(
                (0..4).find(|n| message.body.clone().into_bytes()[Header::BYTES..] == image(*n)).unwrap(),
            );
        }
        // The second image is complete only if no byte of it was read before.
        let whole = if read <= second { &[1, 2, 3][..] } else { &[2, 3] };
        assert_eq!(found, whole, "{read} bytes were read of a stream with the padding {padding:?}");
    }
}

/// A live source paces its images itself: those of a FIFO are not held, but those of a file are.
#[test]
fn images_of_a_fifo_leave_as_they_arrive() {
    const MAX: usize = 1 << 20;
    let scratch = Scratch::new();
    let (path, held) = scratch.fifo("live");
    let mut far = File::from(held);
    let near = File::options().read(true).write(true).open(&path).unwrap();
    let mut live = Reader::new("live".into(), Channel::own(near.into()).unwrap(), None, false, MAX);
    // 200 images a second.
    for number in 0..100 {
        far.write_all(&image(number)).unwrap();
        let now = Time::from_millis(1000 + number * 5);
        let Ok(Next::Message(message)) = live.next(now) else { panic!("image {number} is held") };
        assert_eq!(message.created, now);
        assert!(matches!(live.next(now), Ok(Next::Nothing)));
    }
    let path = scratch.path("film");
    std::fs::write(&path, [image(0), image(1)].concat()).unwrap();
    let file = File::open(&path).unwrap();
    let mut film = Reader::new(path, Channel::own(file.into()).unwrap(), None, false, MAX);
    let mut leaves = |at_ms| matches!(film.next(Time::from_millis(at_ms)), Ok(Next::Message(_)));
    assert_eq!([1000, 1001, 1039, 1040].map(&mut leaves), [true, false, false, true]);
}

#[test]
fn errors_name_the_image() {
    let two = [image(1), image(2)].concat();
    assert!(error(&two, "").is_none());
    for (bytes, options, part) in [
        (&b"no images"[..], "", "image 0: no JPEG"),
        (&two[..two.len() - 1], "", "image 1: the stream ends within it"),
        (&[two.clone(), vec![1]].concat(), "", "image 2"),
        (&[two.clone(), vec![0; 5000]].concat(), ",max=1KiB", "image 2: it does not begin within 1024"),
        (&[&two[..9], &two].concat(), "", "before its size is known"),
        (&[&image(1)[..20], &vec![0; 5000]].concat(), ",max=1KiB", "image 0"),
        (&[0xff, 0xd8, 0xff, 0xd9], "", "before its size is known"),
        (&[0xff, 0xd8, 0xff, 0xe0, 0, 0, 0, 0], "", "without a length"),
    ] {
        let error = error(bytes, options).expect(part).to_string();
        assert!(error.contains(part), "{part}: {error}");
    }
}

#[test]
fn a_truncated_image_is_sent_and_padding_is_dropped() {
    let truncated = &image(7)[..33];
    let parts =
        [&[0][..], &image(1), &[0; 70], truncated, &image(2), &[0xff; 3], &image(3), &[0, 0xff, 0xff]];
    let scratch = Scratch::new();
    let path = scratch.path("film");
    std::fs::write(&path, parts.concat()).unwrap();
    let mut partner = open(&format!("mjpeg:{path},rate=0"), Role::Device);
    let key = partner.open(&template(Direction::Out), &Attributes::default()).unwrap();
    for expected in [&image(1)[..], truncated, &image(2), &image(3)] {
        let Ok(Pulled::Message(_, message)) = partner.pull(key, Pull::Yours) else { panic!("an image") };
        assert_eq!(message.body.into_bytes()[Header::BYTES..], *expected);
    }
    assert!(matches!(partner.pull(key, Pull::Yours), Ok(Pulled::End)));
}

#[test]
fn pictures_of_other_formats_are_refused() {
    let scratch = Scratch::new();
    let mut partner = open(&format!("mjpeg:{}", scratch.path("film")), Role::Application);
    let key = partner.open(&template(Direction::In), &Attributes::default()).unwrap();
    let mut gray = Body::from(vec![1]);
    gray.push_front(&Header::frame(Geometry::new(PixelFormat::Gray8, 1, 1).unwrap()).emit());
    match partner.push(key, Message::new(Time(1), gray)) {
        Err((PartnerError::Message(problem), _)) => assert!(problem.contains("only JPEG"), "{problem}"),
        other => panic!("{other:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// The images do not depend on the pieces in which a stream arrives.
    #[test]
    fn images_are_found_in_any_pieces(cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6)) {
        let film = [image(1), image(u64::MAX)].concat();
        let mut ends: Vec<usize> = cuts.iter().map(|cut| cut.index(film.len())).chain([film.len()]).collect();
        ends.sort_unstable();
        let (mut scanner, mut start, mut found) = (Scanner::default(), 0, Vec::new());
        for end in ends {
            while let Some(image) = scanner.find(&film[start..end.max(start)]).unwrap() {
                start += image.length;
                found.push(image);
            }
        }
        let length = film.len() / 2;
        prop_assert_eq!(found, vec![Image { length, width: 6, height: 2 }; 2]);
    }

    /// A reader that is restored within an image finds the next one in any pieces, and takes no preview for it.
    #[test]
    fn the_next_image_is_found_in_any_pieces(
        padding in prop::collection::vec(prop::sample::select(&[0u8, 0xff][..]), 0..9),
        read in 1usize..83, cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
    ) {
        // The first image has a preview behind zeros, and pixels like those of `image`.
        let preview = [&[0xff, 0xd8, 0xff, 0xe0, 0, 20, 7, 0, 0][..], &[0xff, 0xd8, 0xff, 0xda, 1, 0xff, 0xd9, 9]].concat();
        let first = [&preview[..], &image(1)[2..]].concat();
        let stream = [&first[..], &padding, &image(2)].concat();
        // A reader that is restored just before the preview takes it for an image.
        prop_assume!(!(7..=9).contains(&read));
        let rest = &stream[read..];
        let mut ends: Vec<usize> = cuts.iter().map(|cut| cut.index(rest.len())).chain([rest.len()]).collect();
        ends.sort_unstable();
        let (mut buffer, mut start, mut is_found) = (Vec::new(), 0, false);
        for end in ends {
            buffer.extend_from_slice(&rest[start..end]);
            start = end;
            is_found = is_found || skip_to_image(&mut buffer);
        }
        prop_assert!(is_found);
        prop_assert_eq!(buffer, image(2));
    }

    /// Random bytes after the beginning of an image cause no panic and no image longer than the input.
    #[test]
    fn any_bytes_are_scanned_or_rejected(bytes in prop::collection::vec(any::<u8>(), 0..200), marks in prop::collection::vec(any::<prop::sample::Index>(), 0..20)) {
        let mut film = [vec![0xff, 0xd8], bytes].concat();
        marks.iter().for_each(|mark| { let at = mark.index(film.len()); film[at] = 0xff; });
        if let Ok(Some(image)) = Scanner::default().find(&film) {
            prop_assert!(image.length <= film.len());
        }
    }
}
