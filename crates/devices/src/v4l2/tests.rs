//! Tests without a kernel driver: properties, settings, options, and the partners on /dev/null.

use super::camera::Camera;
use super::negotiate::{Offer, PictureOptions, choose, jpeg_note};
use super::node::{NodePartner, Parts};
use super::properties::{CameraControl, Properties, settings};
use super::recent::Recent;
use crate::spec;
use contract::{
    Attributes, Body, Ctl, CtlReply, Direction, FlowClass, FlowTemplate, Format, Message, Partner,
    PartnerError, Pull, Pulled, Pushed, Role, Time,
};
use proptest::prelude::*;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use sys::v4l2::PixelLayout;
use sys::v4l2::controls::{Control, Kind};
use wire::formats::controls::{Setting, Update};
use wire::formats::video::{Geometry, Header, PixelFormat};

fn control(id: u32, kind: Kind, name: &str, range: (i64, i64), menu: &[(i64, &str)]) -> CameraControl {
    let (minimum, maximum) = range;
    let info = Control { id, kind, name: name.into(), minimum, maximum, step: 1, default: minimum };
    let menu = menu.iter().map(|(value, text)| (*value, text.to_string())).collect();
    CameraControl { info, value: minimum, menu }
}

fn controls() -> Vec<CameraControl> {
    vec![
        control(1, Kind::Integer, "Brightness", (0, 255), &[]),
        control(2, Kind::Boolean, "White Balance, Automatic", (0, 1), &[]),
        control(3, Kind::Menu, "Power Line Frequency", (0, 2), &[(0, "Disabled"), (2, "60 Hz")]),
        control(4, Kind::Wide, "Far", (-1 << 40, 1 << 40), &[]),
        control(5, Kind::Bitmask, "Bits", (0, 0xffff), &[]),
    ]
}

fn properties() -> Properties {
    let geometry = Geometry::new(PixelFormat::Yuyv, 640, 480).unwrap().with_rate(30, 1);
    Properties { card: "Lab".into(), bus: "usb-1".into(), geometry, controls: controls() }
}

fn null() -> OwnedFd {
    File::options().read(true).write(true).open("/dev/null").unwrap().into()
}

fn no_options() -> PictureOptions {
    PictureOptions { size: None, rate_hz: None, pixels: None }
}

fn template(direction: Direction, format: Format) -> FlowTemplate {
    FlowTemplate { direction, format, class: FlowClass::State }
}

#[test]
fn properties_round_trip() {
    let properties = properties();
    assert_eq!(Properties::parse(&properties.to_bytes()), Ok(properties.clone()));
    assert!(properties.is_same_camera("Lab", "usb-1") && !properties.is_same_camera("Lab", "usb-2"));
    let twice = Properties { controls: [controls(), controls()].concat(), ..properties.clone() };
    assert!(Properties::parse(&twice.to_bytes()).is_err(), "the same control twice");
    let mut empty_range = properties;
    empty_range.controls[0].info.minimum = 256;
    assert!(Properties::parse(&empty_range.to_bytes()).is_err(), "a range without a value");
}

#[test]
fn settings_are_parsed_in_all_their_forms() {
    let set = |id, value| Setting { id, value };
    for (words, expected) in [
        ("brightness=128", vec![set(1, 128)]),
        ("(brightness=0, white_balance_automatic=on)", vec![set(1, 0), set(2, 1)]),
        ("Power Line Frequency=60 Hz\nfar=-5", vec![set(3, 2), set(4, -5)]),
        ("power_line_frequency=2,bits=0xf", vec![set(3, 2), set(5, 15)]),
        ("", vec![]),
    ] {
        assert_eq!(settings(&controls(), words), Ok(expected), "{words}");
    }
    for (words, part) in [
        ("brightness=256", "takes 0 to 255"),
        ("brightnes=1", "its controls are: brightness, white_balance_automatic"),
        ("brightness", "write NAME=VALUE"),
        ("power_line_frequency=1", "0 (Disabled), 2 (60 Hz)"),
        ("white_balance_automatic=maybe", "on or off"),
        ("bits=-1", "bits"),
    ] {
        let refusal = settings(&controls(), words).unwrap_err();
        assert!(refusal.contains(part), "{words}: {refusal}");
    }
    assert_eq!(settings(&[], "brightness=1").unwrap_err(), "this camera has no controls");
}

#[test]
fn picture_options_are_parsed() {
    let of = |text: &str| PictureOptions::parse(&spec::parse(text, Role::Device).unwrap().1.options);
    assert_eq!(of("v4l2:/dev/video0"), Ok(no_options()));
    let expected =
        PictureOptions { size: Some((1280, 720)), rate_hz: Some(30.0), pixels: Some(PixelFormat::Mjpeg) };
    assert_eq!(of("v4l2:/dev/video0,size=1280x720,rate=30,pixels=MJPG"), Ok(expected));
    for size in ["1280", "0x5", "99999x2", "ax2"] {
        assert!(of(&format!("v4l2:/dev/video0,size={size}")).unwrap_err().contains("WIDTHxHEIGHT"), "{size}");
    }
    let several = spec::parse("v4l2:/dev/video1,set=(brightness=1,hue=2),start=always", Role::Application);
    assert_eq!(several.unwrap().1.options.text("set"), "(brightness=1,hue=2)");
}

/// A format of a camera without a driver: its name, the only size and the frames per second.
type Pictures = (&'static [u8; 4], (u32, u32), u32);

const YUYV: Pictures = (b"YUYV", (640, 480), 30);
const JPEG: Pictures = (b"MJPG", (640, 480), 30);

fn layout((fourcc, (width, height), _): Pictures) -> PixelLayout {
    PixelLayout { width, height, fourcc: *fourcc, stride: width * 4, size_bytes: 0 }
}

/// Returns the format that is chosen for a camera that is set to `current`. Another program uses the formats in `busy`.
fn chosen_with(
    busy: &[Pictures],
    current: Pictures,
    formats: &[Pictures],
    options: &PictureOptions,
) -> io::Result<Option<[u8; 4]>> {
    let offer = Offer {
        current: layout(current),
        interval: (1, current.2),
        formats: formats.iter().map(|format| *format.0).collect(),
    };
    choose(&offer, options, |fourcc| {
        let format = *formats.iter().find(|format| *format.0 == fourcc).unwrap();
        if busy.contains(&format) { Err(Errno::BUSY.into()) } else { Ok((layout(format), (1, format.2))) }
    })
}

fn chosen(current: Pictures, formats: &[Pictures], options: &PictureOptions) -> Option<[u8; 4]> {
    chosen_with(&[], current, formats, options).unwrap()
}

#[test]
fn a_camera_returns_to_the_announced_pictures() {
    let announced = PictureOptions::of(&properties().geometry);
    let size = Some((640, 480));
    assert_eq!(announced, PictureOptions { size, rate_hz: Some(30.0), pixels: Some(PixelFormat::Yuyv) });
    // A local program has left another format, or another size.
    let other = (b"MJPG", (1280, 720), 30);
    assert_eq!(chosen(other, &[other, YUYV], &announced), Some(*YUYV.0));
    let large = (b"YUYV", (1280, 720), 10);
    assert_eq!(chosen(large, &[JPEG, YUYV], &announced), Some(*YUYV.0));
    // A camera that has lost the format is set by the options.
    assert_eq!(chosen(JPEG, &[JPEG], &announced), None);
    let film = Geometry::new(PixelFormat::Rgb24, 2, 2).unwrap();
    assert_eq!(PictureOptions::of(&film).rate_hz, None);
    assert_eq!(PictureOptions::of(&film.with_rate(30000, 1001)).rate_hz, Some(30000.0 / 1001.0));
}

#[test]
fn a_camera_set_to_jpeg_sends_raw_pictures_where_they_are_as_fast() {
    let auto = no_options();
    let at = |rate_hz| (b"YUYV", (640, 480), rate_hz);
    assert_eq!(chosen(JPEG, &[JPEG, YUYV], &auto), Some(*YUYV.0));
    assert_eq!(chosen((b"H264", (640, 480), 30), &[JPEG, YUYV], &auto), Some(*YUYV.0));
    let fast = (b"MJPG", (640, 480), 60);
    for (jpeg, raw) in [(fast, 30), (JPEG, 25), ((b"MJPG", (640, 480), 15), 15)] {
        assert_eq!(chosen(jpeg, &[jpeg, at(raw)], &auto), Some(*YUYV.0), "{raw}/s");
    }
    let smaller = (b"YUYV", (320, 240), 30);
    let gray = (b"GREY", (640, 480), 30);
    for formats in [&[JPEG][..], &[JPEG, at(10)], &[JPEG, at(20)], &[JPEG, smaller], &[gray, JPEG]] {
        assert_eq!(chosen(JPEG, formats, &auto), Some(*JPEG.0), "{formats:?}");
    }
    let wants = |pixels, rate_hz| PictureOptions { pixels, rate_hz, ..auto };
    assert_eq!(chosen(JPEG, &[JPEG, YUYV], &wants(Some(PixelFormat::Mjpeg), None)), Some(*JPEG.0));
    assert_eq!(chosen(fast, &[fast, YUYV], &wants(None, Some(60.0))), Some(*JPEG.0));
    assert_eq!(chosen(fast, &[fast, YUYV], &wants(None, Some(30.0))), Some(*YUYV.0));
    assert_eq!(chosen(gray, &[JPEG, YUYV, gray], &auto), Some(*gray.0), "raw pictures stay as they are set");
}

#[test]
fn a_camera_that_another_program_uses_keeps_its_format() {
    let busy = |current, busy: &[Pictures]| chosen_with(busy, current, &[JPEG, YUYV], &no_options());
    assert_eq!(busy(JPEG, &[YUYV]).unwrap(), Some(*JPEG.0));
    assert_eq!(busy(YUYV, &[JPEG]).unwrap(), Some(*YUYV.0));
    assert_eq!(busy(JPEG, &[YUYV, JPEG]).unwrap_err().raw_os_error(), Some(Errno::BUSY.raw_os_error()));
}

#[test]
fn a_camera_that_sends_jpeg_says_so_unless_the_user_asked_for_it() {
    let note = jpeg_note("Lab", &[*b"MJPG", *b"GREY", *b"H264", *b"AR24"]);
    assert!(note.contains("Lab sends JPEG") && note.contains("`pixels=XR24,size=640x480`"), "{note}");
    let note = jpeg_note("Lab", &[*b"MJPG", *b"GREY"]);
    assert!(!note.contains("pixels="), "this camera has nothing else: {note}");
    let jpeg = Geometry::new(PixelFormat::Mjpeg, 640, 480).unwrap();
    let note = |geometry, pixels| {
        let options = PictureOptions { pixels, ..no_options() };
        Camera::new("Lab".into(), null(), Properties { geometry, ..properties() }, options, true).note()
    };
    assert!(note(jpeg, None).unwrap().contains("Lab sends JPEG"));
    assert_eq!(note(jpeg, Some(PixelFormat::Mjpeg)), None);
    assert_eq!(note(properties().geometry, None), None);
}

fn next(partner: &mut dyn Partner) -> Option<Update> {
    match partner.pull(contract::FlowKey::DEFAULT, Pull::Yours).unwrap() {
        Pulled::Message(_, mut message) => Some(Update::parse(message.body.as_slice()).unwrap()),
        _ => None,
    }
}

#[test]
fn settings_are_sent_to_the_camera_and_repeated_in_a_snapshot() {
    let mut node = NodePartner::new(Parts {
        name: "Lab at /dev/video10".into(),
        node: null(),
        pictures: None,
        options: no_options(),
        controls: controls(),
        settings: vec![Setting { id: 2, value: 1 }],
        watcher: None,
    });
    let flow = node.open(&template(Direction::Out, Format::Controls), &Attributes::default()).unwrap();
    assert_eq!(next(&mut node), Some(Update::Settings(vec![Setting { id: 2, value: 1 }])));
    assert_eq!(next(&mut node), None);
    assert!(!node.readiness(flow, Direction::Out).now);

    let CtlReply::Bytes(all) = node.ctl(contract::FlowKey::DEFAULT, Ctl::Command("")).unwrap() else {
        panic!()
    };
    let all = String::from_utf8(all).unwrap();
    assert_eq!(all.lines().count(), controls().len(), "{all}");
    assert!(all.contains("white_balance_automatic=1"), "{all}");
    node.ctl(contract::FlowKey::DEFAULT, Ctl::Command("brightness=7")).unwrap();
    node.ctl(contract::FlowKey::DEFAULT, Ctl::Command("brightness=9")).unwrap();
    assert!(node.readiness(flow, Direction::Out).now);
    let both = Update::Settings(vec![Setting { id: 1, value: 9 }, Setting { id: 2, value: 1 }]);
    assert_eq!(next(&mut node), Some(both.clone()));
    let refusal = node.ctl(contract::FlowKey::DEFAULT, Ctl::Command("brightness=900"));
    assert!(matches!(refusal, Err(PartnerError::Message(_))), "{refusal:?}");
    assert_eq!(next(&mut node), None);
    node.ctl(flow, Ctl::Snapshot).unwrap();
    assert_eq!(next(&mut node), Some(both));
}

#[test]
fn frames_between_two_sequence_numbers_are_missed() {
    for (last, sequence, expected) in [(7, 8, 0), (7, 10, 2), (u32::MAX, 0, 0), (u32::MAX - 1, 2, 3)] {
        assert_eq!(super::camera::missed(last, sequence), expected, "{last} to {sequence}");
    }
    for (last, sequence) in [(0, 0), (7, 7), (7, 0), (u32::MAX, u32::MAX)] {
        assert_eq!(super::camera::missed(last, sequence), 0, "{last} to {sequence}: the driver counts anew");
    }
}

/// Returns the ages of the frames, in frame times, that a reader gets from a driver with six buffers. It begins to read after each
/// of these pauses, and waits for a frame then.
fn ages(pauses: &[u64]) -> Vec<u64> {
    let (mut recent, mut filled, mut now) = (Recent::default(), VecDeque::new(), 0);
    let mut ages = Vec::new();
    for pause in pauses {
        let mut frame_times = *pause;
        let taken = loop {
            for _ in 0..frame_times {
                now += 1;
                if filled.len() < 6 {
                    filled.push_back(now);
                }
            }
            let is_full = filled.len() == 6;
            if let Some(frame) = recent.take(is_full, || Ok(filled.pop_front()), drop).unwrap() {
                break frame;
            }
            frame_times = 1;
        };
        ages.push(now - taken);
    }
    ages
}

#[test]
fn a_reader_that_is_slower_than_the_camera_gets_recent_frames() {
    assert_eq!(ages(&[1; 20]), [0; 20], "it keeps up");
    assert_eq!(ages(&[4, 0, 0, 0, 1]), [3, 2, 1, 0, 0], "a short pause drops nothing");
    for slow in [2, 3, 5, 6, 10, 30] {
        let ages = ages(&[slow; 40]);
        assert!(ages[10..].iter().all(|age| *age == 0), "a frame in {slow}: {ages:?}");
    }
    let back = [&[30; 4][..], &[1; 20], &[4, 0, 0, 0]].concat();
    assert_eq!(ages(&back)[24..], [3, 2, 1, 0], "after a while it keeps up again");
}

/// A machine that is too slow for the camera at every moment gets frames nevertheless.
#[test]
fn a_reader_that_always_finds_a_full_driver_gets_frames() {
    let mut recent = Recent::default();
    let take = |_| {
        let mut filled: VecDeque<u64> = (0..6).collect();
        recent.take(true, || Ok(filled.pop_front()), drop).unwrap()
    };
    assert_eq!((0..10).filter_map(take).collect::<Vec<u64>>(), [5; 5]);
}

#[test]
fn a_node_refuses_unsupported_pictures_with_a_reason() {
    let mut node = NodePartner::new(Parts {
        name: "Lab".into(),
        node: null(),
        pictures: Some(properties().geometry),
        options: no_options(),
        controls: Vec::new(),
        settings: Vec::new(),
        watcher: None,
    });
    let flow = node.open(&template(Direction::In, Format::Video), &Attributes::default()).unwrap();
    assert!(node.open(&template(Direction::Out, Format::Controls), &Attributes::default()).is_err());
    let mut frame = Body::from(vec![0; 4]);
    frame.push_front(&Header::frame(Geometry::new(PixelFormat::Gray8, 2, 2).unwrap()).emit());
    for (body, part) in [
        (Body::new(), "shorter"),
        (Body::from(vec![9; 99]), "not a picture"),
        (frame, "takes neither GREY pictures"),
    ] {
        match node.push(flow, Message::new(Time(1), body)) {
            Err((PartnerError::Message(problem), _)) => assert!(problem.contains(part), "{problem}"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_camera_is_off_without_readers_and_counts_refused_settings() {
    let mut camera = Camera::new("Lab".into(), null(), properties(), no_options(), true);
    let out = camera.open(&template(Direction::Out, Format::Video), &Attributes::default()).unwrap();
    let back = camera.open(&template(Direction::In, Format::Controls), &Attributes::default()).unwrap();
    let push = |camera: &mut dyn Partner, bytes: Vec<u8>| {
        camera.push(back, Message::new(Time(1), bytes)).map_err(|(error, _)| error)
    };
    assert!(camera.readiness(out, Direction::Out).now, "wanted by default");
    assert!(matches!(push(&mut camera, Update::Wanted(false).to_bytes()), Ok(Pushed::Taken)));
    let readiness = camera.readiness(out, Direction::Out);
    assert!(!readiness.now && readiness.at.is_none() && readiness.descriptors.iter().all(Option::is_none));
    assert!(matches!(camera.pull(out, Pull::Yours), Ok(Pulled::Nothing)));
    let unknown = Update::Settings(vec![Setting { id: 77, value: 1 }]).to_bytes();
    assert!(matches!(push(&mut camera, unknown), Ok(Pushed::Taken)));
    assert!(matches!(push(&mut camera, vec![9]), Err(PartnerError::Message(_))));
    let Ok(CtlReply::Report(report)) = camera.ctl(out, Ctl::Report) else { panic!() };
    assert!(report.contains(&("settings refused", 1.0)), "{report:?}");
    push(&mut camera, Update::Wanted(true).to_bytes()).unwrap();
    assert!(camera.pull(out, Pull::Yours).is_err(), "/dev/null is not a camera");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Corrupted bytes are rejected, or are the encoding of other properties. Truncated bytes are rejected.
    #[test]
    fn any_properties_are_parsed_or_rejected(at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<prop::sample::Index>()) {
        let mut bytes = properties().to_bytes();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(properties) = Properties::parse(&bytes) {
            prop_assert_eq!(properties.to_bytes(), &bytes[..]);
        }
        prop_assert!(Properties::parse(&bytes[..cut.index(bytes.len())]).is_err());
    }

    #[test]
    fn any_settings_are_parsed_or_rejected(text in "\\PC{0,60}") {
        let _ = settings(&controls(), &text);
    }
}
