//! Tests without a server: the memory, the format of the node, and the partner with the thread's end of its memory.

use super::engine::{self, ThreadEnd};
use super::memory::{Pictures, Word};
use super::partner::{CameraPartner, Parts};
use super::{name, target};
use crate::slots::Slots;
use crate::spec;
use crate::v4l2::{CameraUser, PictureOptions};
use contract::{
    Attributes, Body, Ctl, Direction, FlowClass, FlowKey, FlowTemplate, Format, Message, Partner,
    PartnerError, Pull, Pulled, Pushed, Role, Time,
};
use proptest::prelude::*;
use std::os::fd::OwnedFd;
use std::thread;
use testkit::partner::{Harness, conforms};
use wire::formats::controls::Update;
use wire::formats::video::{Geometry, Header, PixelFormat};

const AUTO: PictureOptions = PictureOptions { size: None, rate_hz: None, pixels: None };

fn gray(width: u32, height: u32) -> Geometry {
    Geometry::new(PixelFormat::Gray8, width, height).unwrap().with_rate(30, 1)
}

fn message(geometry: Geometry, pixels: &[u8]) -> Vec<u8> {
    [&Header::frame(geometry).emit()[..], pixels].concat()
}

/// The thread's view: the newest picture.
fn shown(memory: &Pictures) -> Vec<u8> {
    memory.take();
    let mut picture = vec![0; memory.front_bytes().unwrap_or(0)];
    memory.copy_front(&mut picture);
    picture
}

/// A partner, and the thread's end of its memory.
struct Far {
    partner: Box<dyn Partner>,
    end: ThreadEnd,
    descriptors: [OwnedFd; 2],
}

impl Far {
    fn new(geometry: Option<Geometry>, has_controls: bool) -> Far {
        let (end, descriptors) = engine::ends().unwrap();
        if let Some(geometry) = geometry {
            end.memory.set_geometry(geometry);
        }
        let descriptors = <[OwnedFd; 2]>::try_from(descriptors).unwrap();
        let partner = Far::partner(&descriptors, has_controls);
        Far { partner, end, descriptors }
    }

    fn partner([control, memory]: &[OwnedFd; 2], has_controls: bool) -> Box<dyn Partner> {
        Box::new(CameraPartner::new(Parts {
            name: "Lab".into(),
            control: control.try_clone().unwrap(),
            memory: Pictures::map(memory).unwrap(),
            options: AUTO,
            user: CameraUser::new(Vec::new(), &[]),
            has_controls,
            is_on_demand: has_controls,
        }))
    }

    fn open(&mut self, direction: Direction) -> FlowKey {
        self.partner.open(&template(direction), &Attributes::default()).unwrap()
    }

    fn push(&mut self, key: FlowKey, body: Vec<u8>) -> Result<(), PartnerError> {
        match self.partner.push(key, Message::new(Time(1), Body::from(body))) {
            Ok(Pushed::Taken) => Ok(()),
            Ok(other) => panic!("{other:?}"),
            Err((error, _)) => Err(error),
        }
    }

    fn update(&mut self) -> Option<Update> {
        match self.partner.pull(FlowKey::DEFAULT, Pull::Yours).unwrap() {
            Pulled::Message(_, mut message) => Some(Update::parse(message.body.as_slice()).unwrap()),
            _ => None,
        }
    }
}

fn template(direction: Direction) -> FlowTemplate {
    match direction {
        Direction::In => FlowTemplate { direction, format: Format::Video, class: FlowClass::Timely },
        Direction::Out => FlowTemplate { direction, format: Format::Controls, class: FlowClass::State },
    }
}

struct Source(Far);

impl Harness for Source {
    fn partner(&mut self) -> &mut dyn Partner {
        self.0.partner.as_mut()
    }

    fn template(&self, direction: Direction) -> Option<FlowTemplate> {
        (direction == Direction::In).then(|| template(direction))
    }

    fn feed(&mut self) -> Option<Vec<u8>> {
        None
    }

    fn end(&mut self) -> bool {
        false
    }

    fn body(&self, number: u64) -> Vec<u8> {
        message(gray(8, 1), &number.to_le_bytes())
    }

    /// Only the newest picture is kept, so the far side does not receive everything: other tests look.
    fn taken(&mut self) -> Option<Vec<u8>> {
        None
    }
}

#[test]
fn a_video_source_conforms() {
    conforms(|| Source(Far::new(None, false)));
}

#[test]
fn the_newest_picture_is_shown_until_the_next_one() {
    let memory = Pictures::map(Pictures::create().unwrap()).unwrap();
    assert_eq!((memory.front_bytes(), memory.is_fresh(), memory.take()), (None, false, false));
    for number in 1..=5 {
        memory.write(&[number; 9]);
    }
    assert!(memory.is_fresh());
    assert_eq!(shown(&memory), [5; 9]);
    memory.write(&[6; 9]);
    assert!(memory.is_fresh());
    let mut front = [0; 9];
    memory.copy_front(&mut front);
    assert_eq!(front, [5; 9], "a picture stays whole while the next one is written");
    assert_eq!(shown(&memory), [6; 9]);
    assert_eq!((shown(&memory), memory.is_fresh()), (vec![6; 9], false));
}

/// A writer and a reader at full speed: no picture is mixed of two, and none is older than the one before.
#[test]
fn pictures_stay_whole_while_both_sides_are_busy() {
    const PICTURE: usize = 64 << 10;
    let descriptor = Pictures::create().unwrap();
    let (writer, reader) = (Pictures::map(&descriptor).unwrap(), Pictures::map(&descriptor).unwrap());
    let writing = thread::spawn(move || {
        for number in 1..=2000_u32 {
            writer.write(&number.to_le_bytes().repeat(PICTURE / 4));
        }
    });
    let (mut last, mut seen) = (0, 0);
    while last < 2000 {
        let picture = shown(&reader);
        let Some(first) = picture.as_chunks().0.first().copied().map(u32::from_le_bytes) else { continue };
        assert!(picture.as_chunks().0.iter().all(|word| u32::from_le_bytes(*word) == first), "mixed");
        assert!(first >= last, "{first} after {last}");
        (last, seen) = (first, seen + 1);
    }
    println!("{seen} pictures seen");
    writing.join().unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn numbers_of_a_compromised_worker_do_no_harm(words in prop::collection::vec((0..5_usize, any::<u64>()), 0..40)) {
        // The order of the slots comes first.
        const WORDS: [usize; 5] = [0, Word::Length0 as usize, Word::Length1 as usize, Word::Length2 as usize, Word::HasGeometry as usize];
        let descriptor = Pictures::create().unwrap();
        let (memory, compromised) = (Pictures::map(&descriptor).unwrap(), Slots::map(&descriptor).unwrap());
        for (word, value) in words {
            // Values near the valid ones find more than arbitrary ones.
            compromised.store(WORDS[word], if value % 2 == 0 { value >> 1 } else { value >> 58 });
            memory.take();
            if memory.front_bytes().is_some() {
                memory.copy_front(&mut [0; 16]);
            }
            let _ = memory.geometry();
            memory.write(&[1; 16]);
        }
    }

    #[test]
    fn any_message_is_shown_or_refused(mut bytes in prop::collection::vec(any::<u8>(), 0..64), at in any::<prop::sample::Index>(), byte: u8) {
        let mut far = Far::new(None, false);
        let key = far.open(Direction::In);
        let _ = far.push(key, bytes.clone());
        bytes = message(gray(4, 4), &bytes);
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let _ = far.push(key, bytes);
    }
}

#[test]
fn a_node_of_a_camera_is_black_before_its_first_picture_and_keeps_the_last_one() {
    let mut far = Far::new(Some(gray(2, 2)), false);
    let memory = far.end.memory.clone();
    assert_eq!(shown(&memory), [0; 4]);
    assert!(memory.is(Word::IsStale));
    let key = far.open(Direction::In);
    far.push(key, message(gray(2, 2), b"abcd")).unwrap();
    assert!(!memory.is(Word::IsStale));
    assert_eq!(shown(&memory), b"abcd");
    far.partner.ctl(FlowKey::DEFAULT, Ctl::Neutral).unwrap();
    assert!(memory.is(Word::IsStale), "the link is silent");
    far.push(key, message(gray(2, 2), b"efgh")).unwrap();
    assert!(!memory.is(Word::IsStale));
    // The worker is killed, so its partner is not closed.
    std::mem::forget(std::mem::replace(&mut far.partner, Far::partner(&far.descriptors, false)));
    assert_eq!(shown(&memory), b"efgh", "no black picture after a restart");
    assert!(memory.is(Word::IsStale));
}

#[test]
fn other_pictures_are_fitted_to_the_first_ones() {
    let mut far = Far::new(None, false);
    let key = far.open(Direction::In);
    let memory = far.end.memory.clone();
    far.push(key, message(gray(2, 2), &[100; 4])).unwrap();
    assert_eq!(memory.geometry(), Some(gray(2, 2)));
    let padded = gray(2, 2).with_stride(3).unwrap();
    far.push(key, message(padded, b"ab.cd.")).unwrap();
    assert_eq!(shown(&memory), b"abcd", "without padding, and otherwise the same");
    let colour = Geometry::new(PixelFormat::Bgrx32, 2, 2).unwrap();
    far.push(key, message(colour, &[255; 16])).unwrap();
    assert_eq!(shown(&memory), [255; 4]);
    let jpeg = Geometry::new(PixelFormat::Mjpeg, 2, 2).unwrap();
    let refused = far.push(key, message(jpeg, b"jpeg")).unwrap_err().to_string();
    assert!(refused.contains("attach again"), "{refused}");
}

#[test]
fn the_camera_is_wanted_while_programs_take_pictures() {
    let mut far = Far::new(Some(gray(2, 2)), true);
    let key = far.open(Direction::Out);
    assert_eq!(far.update(), Some(Update::Settings(Vec::new())));
    assert_eq!(far.update(), Some(Update::Wanted(false)));
    assert_eq!(far.update(), None);
    assert!(!far.partner.readiness(key, Direction::Out).now);
    far.end.set_wanted(true);
    assert_eq!(far.update(), Some(Update::Wanted(true)));
    far.end.set_wanted(false);
    assert_eq!(far.update(), Some(Update::Wanted(false)));
    drop(far.end);
    assert!(matches!(far.partner.pull(key, Pull::Yours), Err(PartnerError::Gone(_))));
}

#[test]
fn the_node_has_a_format_that_programs_take() {
    let of = |pixels, width, height| Geometry::new(pixels, width, height).unwrap().with_rate(30, 1);
    let same = of(PixelFormat::I420, 640, 480);
    assert_eq!(target(&same, &AUTO), Ok(same));
    let padded = gray(5, 5).with_stride(8).unwrap();
    assert_eq!(target(&padded, &AUTO), Ok(gray(5, 5)));
    assert_eq!(target(&of(PixelFormat::I444, 5, 5), &AUTO), Ok(of(PixelFormat::Yuyv, 6, 5)));
    let small = PictureOptions { size: Some((3, 3)), rate_hz: Some(25.0), pixels: Some(PixelFormat::I420) };
    let expected = Geometry::new(PixelFormat::I420, 4, 4).unwrap().with_rate(25, 1);
    assert_eq!(target(&same, &small), Ok(expected));
    let jpeg = of(PixelFormat::Mjpeg, 640, 480);
    assert_eq!(target(&jpeg, &AUTO), Ok(jpeg));
    for options in [small, PictureOptions { pixels: None, ..small }] {
        assert!(target(&jpeg, &options).unwrap_err().contains("omit"));
    }
}

#[test]
fn a_node_has_the_name_of_its_camera_unless_the_user_gives_another() {
    let of = |text: &str| spec::parse(text, Role::Application).unwrap().1;
    assert_eq!(name(&of("pipewire:Desk"), Some("C920")).unwrap(), "Desk");
    assert_eq!(name(&of("pipewire"), Some("C920\n")).unwrap(), "C920");
    assert_eq!(name(&of("pipewire"), None).unwrap(), "Outboard");
    assert!(name(&of(&format!("pipewire:{}", "a".repeat(200))), None).is_err());
    assert!(spec::parse("pipewire:Desk", Role::Device).is_err());
}
