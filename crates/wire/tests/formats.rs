//! The typed formats: the byte vectors of their documents, and unique encodings.

use proptest::prelude::*;
use wire::WireError;
use wire::formats::audio::{
    CHANNELS_MAX, FRAMES_MAX, Frames, HEADER_BYTES, SampleFormat, SampleSpec, decode, encode,
};
use wire::formats::block::{self, Abilities, DATA_BYTES_MAX, Failure, FromDisk, Geometry, ToDisk};
use wire::formats::controls::{self, SETTINGS_MAX, Setting};
use wire::formats::evdev::code::*;
use wire::formats::evdev::{
    self, EFFECT_PARAMETERS_MAX, EFFECTS_MAX, EVENTS_MAX, Effect, Event, effect_parameters, is_motion,
};
use wire::formats::hid::{self, REPORT_BYTES_MAX, Refused, ReportKind, SNAPSHOT_REPORTS_MAX};
use wire::formats::midi::{MidiMessage, SYSEX_BYTES_MAX, data_bytes};
use wire::formats::motion::{self, AXES, BUTTONS_MAX, Motion};
use wire::formats::video::SIDE_MAX;
use wire::formats::viewer::{self, BUTTONS, TEXT_BYTES_MAX, button};

const AUDIO: &str = include_str!("../../../docs/reference/formats-audio.md");
const BLOCK: &str = include_str!("../../../docs/reference/formats-block.md");
const CONTROLS: &str = include_str!("../../../docs/reference/formats-controls.md");
const EVDEV: &str = include_str!("../../../docs/reference/formats-evdev.md");
const HID: &str = include_str!("../../../docs/reference/formats-hid.md");
const MIDI: &str = include_str!("../../../docs/reference/formats-midi.md");
const MOTION: &str = include_str!("../../../docs/reference/formats-motion.md");
const VIEWER: &str = include_str!("../../../docs/reference/formats-viewer.md");

/// Returns the bytes of the line in a document that starts with `title`.
fn vector(document: &str, title: &str) -> Vec<u8> {
    let line = document.lines().find(|line| line.starts_with(&format!("| {title}")));
    let hex = line.and_then(|line| line.split('`').rev().nth(1)).expect("a line with bytes");
    let digits: Vec<u32> = hex.chars().filter_map(|digit| digit.to_digit(16)).collect();
    digits.chunks(2).map(|pair| (pair[0] * 16 + pair[1]) as u8).collect()
}

#[test]
fn evdev_is_as_documented() {
    use evdev::Update;
    let mut rumble = [0; EFFECT_PARAMETERS_MAX];
    rumble[..2].copy_from_slice(&[0x8000, 0x4000]);
    let effect = Effect {
        kind: FF_RUMBLE,
        id: 2,
        direction: 0,
        trigger_button: 0,
        trigger_interval_ms: 0,
        length_ms: 500,
        delay_ms: 0,
        parameters: rumble,
    };
    let typed = vec![Event::new(EV_MSC, 4, 0x7_0004), Event::new(EV_KEY, 30, 1)];
    let stands = vec![Event::new(EV_KEY, 42, 1), Event::new(EV_ABS, 0, -1)];
    for (title, update) in [
        ("A frame: A pressed", Update::Frame(typed)),
        ("A frame: a mouse", Update::Frame(vec![Event::new(EV_REL, 0, 3), Event::new(EV_REL, 1, -2)])),
        ("A snapshot", Update::Snapshot(stands)),
        ("An upload", Update::Upload(effect)),
        ("An erase", Update::Erase(2)),
        ("A frame: play", Update::Frame(vec![Event::new(0x15, 2, 1)])),
    ] {
        assert_eq!(update.to_bytes(), vector(EVDEV, title), "{title}");
        assert_eq!(Update::parse(&vector(EVDEV, title)), Ok(update), "{title}");
    }
}

#[test]
fn block_is_as_documented() {
    use block::{Answer, Command, Request};
    let request = |id, command, offset, length| {
        ToDisk::Request(Request { id, command, force: false, keep_space: false, offset, length })
    };
    let forced = |id, command, keep_space, offset, length| {
        ToDisk::Request(Request { id, command, force: true, keep_space, offset, length })
    };
    let data = [0xab, 0xcd];
    for (title, message, data) in [
        ("A read", request(1, Command::Read, 1 << 20, 4096), &[][..]),
        ("A write", forced(2, Command::Write, false, 512, 2), &data),
        ("A flush", request(3, Command::Flush, 0, 0), &[]),
        ("A trim", request(4, Command::Trim, 0, 1 << 31), &[]),
        ("Zeroes", forced(5, Command::Zeroes, true, 4096, 4096), &[]),
        ("A begin", ToDisk::Begin { number: 7 }, &[]),
    ] {
        let bytes = vector(BLOCK, title);
        assert_eq!([&message.to_bytes(), data].concat(), bytes, "{title}");
        assert_eq!(parse_to_disk(&bytes), Ok(message), "{title}");
    }
    let abilities = Abilities {
        read_only: false,
        flush: true,
        force: true,
        trim: true,
        zeroes: true,
        many_connections: true,
    };
    let geometry = Geometry { size_bytes: 64 << 20, block_bytes: 512, preferred_bytes: 4096, abilities };
    for (title, message, data) in [
        ("A ready", FromDisk::Ready, &[][..]),
        ("A described", FromDisk::Described { number: 7, geometry, instance: 8 }, &[]),
        ("An answer: the data", FromDisk::Answer(Answer { id: 1, result: Ok(()) }), &data),
        ("An answer: no space", FromDisk::Answer(Answer { id: 2, result: Err(Failure::NoSpace) }), &[]),
    ] {
        let bytes = vector(BLOCK, title);
        assert_eq!([&message.to_bytes(), data].concat(), bytes, "{title}");
        assert_eq!(parse_from_disk(&bytes), Ok(message), "{title}");
    }
}

fn parse_to_disk(bytes: &[u8]) -> Result<ToDisk, WireError> {
    ToDisk::parse(&bytes[..bytes.len().min(block::REQUEST_BYTES)], bytes.len())
}

fn parse_from_disk(bytes: &[u8]) -> Result<FromDisk, WireError> {
    FromDisk::parse(&bytes[..bytes.len().min(FromDisk::HEADER_BYTES_MAX)], bytes.len())
}

#[test]
fn block_refuses_what_no_disk_does() {
    use block::{Answer, Command, Request};
    let header = |kind: u8, flags: u8, offset: u64, length: u32| {
        let mut bytes = vec![kind, flags];
        bytes.extend_from_slice(&[9; 8]);
        bytes.extend_from_slice(&offset.to_le_bytes());
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes
    };
    for wrong in [
        vec![],
        vec![6],
        vec![0, 0],
        header(0, 1, 0, 512),
        header(0, 0, 0, 0),
        header(0, 0, 0, DATA_BYTES_MAX as u32 + 1),
        header(1, 0, 0, 512),
        header(2, 0, 1, 0),
        header(3, 2, 0, 512),
        [header(0, 0, 0, 512), vec![1]].concat(),
        vec![5; 10],
    ] {
        assert!(parse_to_disk(&wrong).is_err(), "{wrong:?}");
    }
    let described = |size: u64, block: u32, preferred: u32, flags: u8| {
        let numbers =
            [&size.to_le_bytes()[..], &block.to_le_bytes(), &preferred.to_le_bytes(), &[flags]].concat();
        [vec![1; 9], numbers, vec![8; 8]].concat()
    };
    assert!(parse_from_disk(&described(4096, 512, 4096, 0)).is_ok());
    for wrong in [
        vec![],
        vec![3],
        vec![0, 0],
        described(4097, 512, 4096, 0),
        described(u64::MAX - 511, 512, 4096, 0),
        described(4096, 0, 4096, 0),
        described(4096, 3, 4096, 0),
        described(4096, 512, 256, 0),
        described(4096, 512, 1 << 21, 0),
        described(4096, 512, 4096, 64),
        [described(4096, 512, 4096, 0), vec![0]].concat(),
        vec![2, 2, 0, 1, 1, 1, 1, 1, 1, 1, 1],
        vec![2, 5, 0, 1, 1, 1, 1, 1, 1, 1, 1, 7],
        [Answer { id: 1, result: Ok(()) }.to_bytes().to_vec(), vec![0; DATA_BYTES_MAX + 1]].concat(),
    ] {
        assert!(parse_from_disk(&wrong).is_err(), "{wrong:?}");
    }
    let abilities = Abilities { flush: true, trim: true, ..Abilities::default() };
    let geometry = Geometry { size_bytes: 8192, block_bytes: 512, preferred_bytes: 4096, abilities };
    let request = |command, offset, length| {
        Request { id: 0, command, force: false, keep_space: false, offset, length }.refusal(&geometry)
    };
    assert_eq!(request(Command::Read, 0, 8192), None);
    assert_eq!(request(Command::Flush, 0, 0), None);
    assert_eq!(request(Command::Read, 512, 8192), Some(Failure::Invalid));
    assert_eq!(request(Command::Write, u64::MAX - 511, 512), Some(Failure::NoSpace));
    assert_eq!(request(Command::Write, 1, 512), Some(Failure::Invalid));
    assert_eq!(request(Command::Zeroes, 0, 512), Some(Failure::Unsupported));
    let read_only = Geometry { abilities: Abilities { read_only: true, ..abilities }, ..geometry };
    let write =
        Request { id: 0, command: Command::Write, force: false, keep_space: false, offset: 0, length: 512 };
    assert_eq!(write.refusal(&read_only), Some(Failure::Forbidden));
}

#[test]
fn controls_are_as_documented() {
    use controls::Update;
    let set = vec![Setting { id: 0x98_0900, value: 128 }, Setting { id: 0x98_0903, value: -1 }];
    for (title, update) in [
        ("Settings: brightness", Update::Settings(set)),
        ("Settings: none", Update::Settings(Vec::new())),
        ("Wanted: nobody", Update::Wanted(false)),
    ] {
        assert_eq!(update.to_bytes(), vector(CONTROLS, title), "{title}");
        assert_eq!(Update::parse(&vector(CONTROLS, title)), Ok(update), "{title}");
    }
    for wrong in [&[0, 1, 0][..], &[1, 2], &[1, 0, 0], &[2], &[], &[0, 1, 1]] {
        assert!(Update::parse(wrong).is_err(), "{wrong:?}");
    }
    let many = Update::Settings(vec![Setting { id: 1, value: 2 }; SETTINGS_MAX + 1]).to_bytes();
    assert_eq!(many.len(), 3 + 12 * SETTINGS_MAX);
    assert!(Update::parse(&many).is_ok());
}

#[test]
fn hid_is_as_documented() {
    use hid::Update;
    let kind = ReportKind::Feature;
    for (title, update) in [
        ("An input: A goes down", Update::Input(vec![0, 0, 4, 0, 0, 0, 0, 0])),
        ("An output: caps lock", Update::Output(vec![0, 2])),
        ("A snapshot: reports 1 and 2", Update::Snapshot(vec![vec![1, 0x80, 0x80], vec![2, 0]])),
        ("A snapshot: nothing", Update::Snapshot(Vec::new())),
        ("A get", Update::Get { request: 1, kind, number: 5 }),
        ("A set", Update::Set { request: 2, kind, report: vec![8, 0xff] }),
        ("An answer: the report", Update::Answer { request: 1, result: Ok(vec![5, 1, 2]) }),
        ("An answer: done", Update::Answer { request: 2, result: Ok(Vec::new()) }),
        ("An answer: refused", Update::Answer { request: 2, result: Err(Refused) }),
    ] {
        assert_eq!(update.to_bytes(), vector(HID, title), "{title}");
        assert_eq!(Update::parse(&vector(HID, title)), Ok(update), "{title}");
    }
    let wrong: [&[u8]; 9] = [
        &[],
        &[0],
        &[1],
        &[2, 0, 0],
        &[2, 2, 0, 1],
        &[3, 1, 0, 0, 0, 3, 5],
        &[3, 1, 0, 0, 0, 0, 5, 0],
        &[4, 1, 0, 0, 0, 0],
        &[5, 1, 0, 0, 0, 1, 9],
    ];
    for wrong in wrong {
        assert!(Update::parse(wrong).is_err(), "{wrong:?}");
    }
    for (length, is_valid) in [(REPORT_BYTES_MAX, true), (REPORT_BYTES_MAX + 1, false)] {
        assert_eq!(Update::parse(&Update::Input(vec![0; length]).to_bytes()).is_ok(), is_valid);
        assert_eq!(Update::parse(&Update::Snapshot(vec![vec![0; length]]).to_bytes()).is_ok(), is_valid);
    }
    let many = Update::Snapshot(vec![vec![0]; SNAPSHOT_REPORTS_MAX + 1]).to_bytes();
    assert!(Update::parse(&many).is_err());
    let large = Update::Snapshot(vec![vec![0; REPORT_BYTES_MAX]; 17]).to_bytes();
    assert!(Update::parse(&large).is_err());
}

#[test]
fn audio_is_as_documented() {
    let spec = |format, channels, rate_hz| SampleSpec { format, channels, rate_hz };
    let stereo: Vec<u8> = [1i16, 256, -1, i16::MAX].iter().flat_map(|sample| sample.to_le_bytes()).collect();
    for (title, spec, position, samples, values) in [
        ("Two frames", spec(SampleFormat::S16, 2, 48_000), 480, &stereo[..], &[1.0 / 32_768.0][..]),
        ("One frame, mono, signed", spec(SampleFormat::S32, 1, 44_100), 0, &[0, 0, 0, 0x40], &[0.5]),
        ("One frame, mono, floating", spec(SampleFormat::F32, 1, 8_000), 1, &[0, 0, 0, 0x3f], &[0.5]),
    ] {
        let frames = Frames { spec, position, samples };
        assert_eq!(frames.emit(), vector(AUDIO, title), "{title}");
        let emitted = vector(AUDIO, title);
        assert_eq!(Frames::parse(&emitted), Ok(frames), "{title}");
        assert!(frames.to_f32().starts_with(values), "{title}");
    }
    let two = vector(AUDIO, "Two frames");
    assert_eq!(Frames::parse(&two).map(|frames| (frames.count(), frames.duration_ns())), Ok((2, 41_666)));
    for (at, value, what) in [
        (0, 1, "kind"),
        (1, 3, "sample format"),
        (2, 0, "channels"),
        (2, CHANNELS_MAX + 1, "channels"),
        (5, 3, "rate"),
        (4, 0, "rate"),
        (2, 3, "frames"),
    ] {
        let mut wrong = two.clone();
        wrong[at] = value;
        let error = Frames::parse(&wrong).unwrap_err().to_string();
        assert!(error.starts_with(what), "{at} {value}: {error}");
    }
    for length in [0, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 3, HEADER_BYTES + 7] {
        assert!(Frames::parse(&two[..length]).is_err(), "{length}");
    }
    for (count, is_valid) in [(FRAMES_MAX, true), (FRAMES_MAX + 1, false)] {
        let samples = vec![0; 4 * count];
        let spec = spec(SampleFormat::S16, 2, 192_000);
        assert_eq!(
            Frames::parse(&Frames { spec, position: u64::MAX, samples: &samples }.emit()).is_ok(),
            is_valid
        );
    }
}

#[test]
fn samples_of_16_bits_survive_every_format() {
    let all: Vec<u8> = (i16::MIN..=i16::MAX).flat_map(i16::to_le_bytes).collect();
    let values = decode(SampleFormat::S16, &all);
    for format in [SampleFormat::S16, SampleFormat::S32, SampleFormat::F32] {
        let encoded = encode(format, &values);
        assert_eq!(decode(format, &encoded), values, "{format:?}");
        assert_eq!(encode(SampleFormat::S16, &decode(format, &encoded)), all, "{format:?}");
    }
    assert_eq!(encode(SampleFormat::S16, &[2.0, -2.0, f32::NAN]), [0xff, 0x7f, 0, 0x80, 0, 0]);
    let no_numbers = [f32::NAN, f32::INFINITY].map(f32::to_le_bytes).concat();
    assert_eq!(decode(SampleFormat::F32, &no_numbers), [0.0, 0.0]);
}

#[test]
fn midi_is_as_documented() {
    for (title, bytes) in [
        ("A note on", &[0x90, 60, 100][..]),
        ("A note off", &[0x8f, 60, 64]),
        ("A pedal", &[0xb0, 64, 127]),
        ("A program", &[0xc3, 5]),
        ("A clock", &[0xf8]),
        ("A system exclusive message", &[0xf0, 0x7e, 0x7f, 6, 1, 0xf7]),
    ] {
        assert_eq!(vector(MIDI, title), bytes, "{title}");
        assert_eq!(MidiMessage::parse(bytes).unwrap().as_bytes(), bytes, "{title}");
    }
    let sysex = |length: usize| [&[0xf0][..], &vec![1; length - 2], &[0xf7]].concat();
    assert!(MidiMessage::parse(&sysex(SYSEX_BYTES_MAX)).is_ok() && MidiMessage::parse(&[0xf0, 0xf7]).is_ok());
    let long = MidiMessage::parse(&sysex(SYSEX_BYTES_MAX + 1));
    assert!(matches!(long, Err(WireError::TooLong { what: "system exclusive", .. })));
    for (wrong, what) in [
        (&[][..], "status"),
        (&[0x3c], "status"),
        (&[0xf4], "status"),
        (&[0xf7], "status"),
        (&[0x90, 60], "data"),
        (&[0x90, 60, 0x80], "data"),
        (&[0xf0, 1], "data"),
        (&[0xf0, 0xf8, 0xf7], "data"),
        (&[0xf8, 0], "midi message"),
    ] {
        let error = MidiMessage::parse(wrong).unwrap_err().to_string();
        assert!(error.starts_with(what), "{wrong:?}: {error}");
    }
    for status in 0..=0xff {
        let body = std::iter::once(status).chain(std::iter::repeat_n(0, data_bytes(status).unwrap_or(0)));
        let is_message = MidiMessage::parse(&body.collect::<Vec<u8>>()).is_ok();
        assert_eq!(is_message, data_bytes(status).is_some(), "{status:x}");
    }
}

#[test]
fn motion_is_as_documented() {
    use motion::Update;
    let pushed = Motion { axes: [350, 0, 0, 0, 0, -2], period_us: 16_000 };
    let released = Motion { period_us: 16_000, ..Motion::default() };
    for (title, update) in [
        ("A motion: 350", Update::Motion(pushed)),
        ("A motion: the cap is let go", Update::Motion(released)),
        ("A button: number 1 goes down", Update::Button { number: 1, pressed: true }),
        ("A button: number 1 comes up", Update::Button { number: 1, pressed: false }),
        ("A snapshot", Update::Snapshot { axes: [0, 7, 0, 0, 0, 0], pressed: vec![0, 12] }),
    ] {
        assert_eq!(update.to_bytes(), vector(MOTION, title), "{title}");
        assert_eq!(Update::parse(&vector(MOTION, title)), Ok(update), "{title}");
    }
}

#[test]
fn viewer_is_as_documented() {
    use viewer::Event;
    let buttons = button::LEFT | button::FORWARD;
    for (title, event) in [
        ("A key: Return goes down", Event::Key { keysym: 0xff0d, pressed: true }),
        ("A key: a comes up", Event::Key { keysym: 0x61, pressed: false }),
        ("A pointer", Event::Pointer { x: 300, y: 5, buttons }),
        ("A text: h", Event::Text("hé".into())),
        ("A text: the clipboard is empty", Event::Text(String::new())),
        ("A fetch", Event::Fetch),
        ("A refresh", Event::Refresh),
        ("A size", Event::Size { width: 1280, height: 720 }),
    ] {
        assert_eq!(event.to_bytes(), vector(VIEWER, title), "{title}");
        assert_eq!(Event::parse(&vector(VIEWER, title)), Ok(event), "{title}");
    }
}

#[test]
fn invalid_messages_are_refused_by_field_name() {
    let events = vec![0; 1 + 8 * (EVENTS_MAX + 1)];
    assert!(matches!(evdev::Update::parse(&events), Err(WireError::TooLong { what: "events", .. })));
    for (bytes, what) in [
        (&[4][..], "kind"),
        (&[3, 96, 0], "effect number"),
        (&[2, 1, 0], "effect kind"),
        (&[0, 1, 0, 30, 0, 1, 0, 0], "evdev message"),
    ] {
        let error = evdev::Update::parse(bytes).unwrap_err().to_string();
        assert!(error.starts_with(what), "{bytes:?}: {error}");
    }
    for (bytes, what) in [
        (&[][..], "kind"),
        (&[3], "kind"),
        (&[0, 1], "axis"),
        (&[1, 0, 1, 0], "button"),
        (&[1, 0, 0, 2], "pressed"),
        (&[1, 0, 0, 1, 0], "motion message"),
        (&[&[2][..], &[0; 24], &[2, 0, 2, 0]].concat(), "button out of order"),
    ] {
        let error = motion::Update::parse(bytes).unwrap_err().to_string();
        assert!(error.starts_with(what), "{bytes:?}: {error}");
    }
    let text = [&[2][..], &vec![b'a'; TEXT_BYTES_MAX + 1]].concat();
    for (bytes, what) in [
        (&[][..], "kind"),
        (&[6], "kind"),
        (&[0, 1, 0, 0, 0, 2], "pressed"),
        (&[1, 0, 0x40, 0, 0, 0, 0, 0, 0, 0, 0], "pointer"),
        (&[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2], "buttons"),
        (&[2, 0xff], "text"),
        (&text, "text"),
        (&[3, 0], "viewer message"),
        (&[4, 0, 0, 0, 0, 1, 0, 0, 0], "width"),
        (&[4, 1, 0, 0, 0, 1, 0x40, 0, 0], "height"),
    ] {
        let error = viewer::Event::parse(bytes).unwrap_err().to_string();
        assert!(error.starts_with(what), "{error}");
    }
}

fn abs(code: u16, value: i32) -> Event {
    Event::new(EV_ABS, code, value)
}

const X: u16 = 0x35;

#[test]
fn key_presses_and_finger_changes_are_not_motion() {
    assert!(is_motion(&[Event::new(EV_REL, 8, 1), abs(0, 5), abs(ABS_MT_SLOT, 1), abs(X, 1)]));
    let hats = ABS_HAT0X..=ABS_HAT3Y;
    let named = [ABS_PROFILE, ABS_MISC, ABS_MT_TOOL_TYPE, ABS_MT_BLOB_ID, ABS_MT_TRACKING_ID];
    for event in hats.chain(named).map(|code| abs(code, 1)).chain([
        Event::new(EV_KEY, 30, 1),
        Event::new(EV_SW, 0, 1),
        Event::new(EV_LED, 0, 1),
        Event::new(EV_MSC, 4, 1),
        Event::new(EV_SYN, 2, 0),
    ]) {
        assert!(!is_motion(&[abs(0, 5), event]), "{event:?}");
        assert!(!evdev::Movement::default().add(&[event]));
    }
    assert!(!is_motion(&[]));
}

#[test]
fn distances_are_added_and_the_last_position_counts() {
    let mut movement = evdev::Movement::default();
    let timed = |time| Event::new(EV_MSC, MSC_TIMESTAMP, time);
    assert!(movement.add(&[Event::new(EV_REL, 0, 3), timed(10)]));
    assert!(movement.add(&[Event::new(EV_REL, 0, -5), abs(0, 8), timed(20)]));
    assert!(movement.add(&[abs(0, 9), Event::new(EV_REL, 0, i32::MIN)]));
    assert_eq!(movement.take_last(), [abs(0, 9), Event::new(EV_REL, 0, i32::MIN), timed(20)]);
    assert!(movement.is_empty());
}

#[test]
fn a_mean_is_followed_by_the_final_position() {
    let mut movement = evdev::Movement::default();
    for position in [-100, -50, -1] {
        assert!(movement.add(&[abs(0, position), abs(1, 7)]));
    }
    assert_eq!(movement.take_mean(), [abs(0, -50), abs(1, 7)]);
    assert!(!movement.is_empty());
    assert_eq!(movement.take_mean(), [abs(0, -1)]);
    assert!(movement.is_empty());
    assert_eq!(movement.take_mean(), []);
    assert!(movement.add(&[abs(0, 10)]) && movement.add(&[abs(0, 20)]));
    assert_eq!(movement.take_mean(), [abs(0, 15)]);
    assert!(movement.add(&[abs(0, 30)]), "it moved again");
    assert_eq!(movement.take_mean(), [abs(0, 30)]);
    assert!(movement.is_empty());
}

#[test]
fn fingers_never_mix_and_the_selected_one_stays_selected() {
    let mut movement = evdev::Movement::default();
    movement.pass(&[abs(ABS_MT_SLOT, 0), abs(ABS_MT_TRACKING_ID, 7), abs(ABS_MT_SLOT, 1)]);
    assert!(movement.is_empty());
    assert!(movement.add(&[abs(X, 100), abs(ABS_MT_SLOT, 0), abs(X, 10)]));
    assert!(movement.add(&[abs(X, 20), abs(0, 5), abs(ABS_MT_SLOT, 1), abs(X, 300)]));
    assert!(movement.add(&[abs(ABS_MT_SLOT, 2)]));
    let selects = |finger| abs(ABS_MT_SLOT, finger);
    let told = [abs(0, 5), selects(0), abs(X, 15), selects(1), abs(X, 200), selects(2)];
    assert_eq!(movement.take_mean(), told);
    assert_eq!(movement.take_last(), [selects(0), abs(X, 20), selects(1), abs(X, 300), selects(2)]);
    assert!(movement.add(&[abs(X, 1)]));
    assert_eq!(movement.take_last(), [abs(X, 1)], "finger 2 is selected on both sides");
}

#[test]
fn a_movement_always_fits_a_frame() {
    let mut movement = evdev::Movement::default();
    let taken = (0..).take_while(|code| movement.add(&[Event::new(EV_REL, *code, 1)])).count();
    assert!(taken > 1000);
    assert!(movement.take_last().len() <= EVENTS_MAX);
}

#[test]
fn joined_motions_keep_distance_and_final_position() {
    let mut movement = motion::Movement::default();
    let motion = |x, period_us| Motion { axes: [x, 0, 0, 0, 0, -x], period_us };
    assert_eq!(movement.take(), None);
    assert!(movement.add(&motion(100, 10_000)) && movement.add(&motion(400, 20_000)));
    assert_eq!(movement.take(), Some(motion(300, 30_000)));
    assert_eq!(movement.take(), Some(motion(400, 0)));
    assert_eq!(movement.take(), None);
    assert!(movement.add(&motion(7, 0)) && movement.add(&motion(8, 0)), "no time passed");
    assert_eq!(movement.take(), Some(motion(8, 0)));
    assert!(movement.is_empty());
    assert!(movement.add(&motion(1, u32::MAX)));
    assert!(!movement.add(&motion(1, 1)), "more than one motion holds");
    assert!(movement.take().is_some());
    assert!(movement.add(&motion(2, 10)) && movement.add(&motion(4, 10)));
    assert_eq!(movement.take(), Some(motion(3, 20)));
    movement.pass_snapshot();
    assert!(movement.is_empty());
}

fn any_events() -> impl Strategy<Value = Vec<Event>> {
    let event = (any::<u16>(), any::<u16>(), any::<i32>());
    prop::collection::vec(event.prop_map(|(kind, code, value)| Event { kind, code, value }), 0..40)
}

fn any_effect() -> impl Strategy<Value = Effect> {
    let head = (FF_RUMBLE..=FF_RAMP, 0..EFFECTS_MAX, any::<[u16; 5]>());
    (head, any::<[u16; EFFECT_PARAMETERS_MAX]>()).prop_map(|((kind, id, rest), mut parameters)| {
        parameters[effect_parameters(kind).unwrap()..].fill(0);
        let [direction, trigger_button, trigger_interval_ms, length_ms, delay_ms] = rest;
        Effect { kind, id, direction, trigger_button, trigger_interval_ms, length_ms, delay_ms, parameters }
    })
}

fn any_evdev() -> impl Strategy<Value = evdev::Update> {
    use evdev::Update;
    prop_oneof![
        any_events().prop_map(Update::Frame),
        any_events().prop_map(Update::Snapshot),
        any_effect().prop_map(Update::Upload),
        (0..EFFECTS_MAX).prop_map(Update::Erase),
    ]
}

fn any_motion() -> impl Strategy<Value = motion::Update> {
    use motion::Update;
    let button = 0..BUTTONS_MAX;
    prop_oneof![
        any::<([i32; AXES], u32)>().prop_map(|(axes, period_us)| Update::Motion(Motion { axes, period_us })),
        (button.clone(), any::<bool>()).prop_map(|(number, pressed)| Update::Button { number, pressed }),
        (any::<[i32; AXES]>(), prop::collection::btree_set(button, 0..20)).prop_map(|(axes, pressed)| {
            Update::Snapshot { axes, pressed: pressed.into_iter().collect() }
        }),
    ]
}

fn any_viewer() -> impl Strategy<Value = viewer::Event> {
    use viewer::Event;
    let place = 0..SIDE_MAX;
    prop_oneof![
        any::<(u32, bool)>().prop_map(|(keysym, pressed)| Event::Key { keysym, pressed }),
        (place.clone(), place.clone(), 0..1u16 << BUTTONS).prop_map(|(x, y, buttons)| Event::Pointer {
            x,
            y,
            buttons
        }),
        any::<String>().prop_map(Event::Text),
        Just(Event::Refresh),
        (place.clone(), place)
            .prop_map(|(width, height)| Event::Size { width: width + 1, height: height + 1 }),
    ]
}

proptest! {
    #[test]
    fn messages_survive_their_bytes(event in any_evdev(), motion in any_motion(), viewer in any_viewer()) {
        prop_assert_eq!(viewer::Event::parse(&viewer.to_bytes()), Ok(viewer));
        prop_assert_eq!(evdev::Update::parse(&event.to_bytes()), Ok(event));
        prop_assert_eq!(motion::Update::parse(&motion.to_bytes()), Ok(motion));
    }

    #[test]
    fn any_bytes_have_one_meaning_or_none(kind in 0..6u8, rest in prop::collection::vec(any::<u8>(), 0..200)) {
        let bytes = [vec![kind], rest].concat();
        if let Ok(update) = evdev::Update::parse(&bytes) {
            prop_assert_eq!(update.to_bytes(), bytes.clone());
        }
        if let Ok(update) = controls::Update::parse(&bytes) {
            prop_assert_eq!(update.to_bytes(), &bytes[..]);
        }
        if let Ok(update) = motion::Update::parse(&bytes) {
            prop_assert_eq!(update.to_bytes(), bytes.clone());
        }
        if let Ok(event) = viewer::Event::parse(&bytes) {
            prop_assert_eq!(event.to_bytes(), bytes.clone());
        }
        if let Ok(message) = parse_to_disk(&bytes) {
            let header = message.to_bytes();
            prop_assert_eq!(&header, &bytes[..header.len()]);
        }
        if let Ok(message) = parse_from_disk(&bytes) {
            let header = message.to_bytes();
            prop_assert_eq!(&header, &bytes[..header.len()]);
        }
    }

    #[test]
    fn a_joined_motion_keeps_the_distance(
        motions in prop::collection::vec((any::<[i16; AXES]>(), 0..100_000u32), 1..30),
    ) {
        let mut movement = motion::Movement::default();
        let mut far = [0i64; AXES];
        for (axes, period_us) in &motions {
            let motion = Motion { axes: axes.map(i32::from), period_us: *period_us };
            prop_assert!(movement.add(&motion));
            far.iter_mut().zip(motion.axes).for_each(|(far, x)| *far += i64::from(x) * i64::from(*period_us));
        }
        let told = movement.take().unwrap();
        for (far, axis) in far.iter().zip(told.axes) {
            let off = far - i64::from(axis) * i64::from(told.period_us);
            prop_assert!(off.abs() * 2 <= i64::from(told.period_us), "off by {}", off);
        }
        let stands = movement.take().unwrap_or(told).axes;
        prop_assert_eq!(stands, motions[motions.len() - 1].0.map(i32::from));
    }

    /// However frames are joined, all fingers end at the right positions.
    #[test]
    fn fingers_keep_their_final_position(
        frames in prop::collection::vec((prop::collection::vec((0..4i32, 0..3u16, -99..99i32), 1..6), 0..3u8), 1..40),
    ) {
        use std::collections::BTreeMap;
        let follow = |state: &mut (i32, BTreeMap<(i32, u16), i32>), events: &[Event]| {
            for event in events {
                match event.code {
                    ABS_MT_SLOT => state.0 = event.value,
                    code => _ = state.1.insert((state.0, code), event.value),
                }
            }
        };
        let (mut device, mut node) = (<_>::default(), <_>::default());
        let mut movement = evdev::Movement::default();
        for (touches, then) in &frames {
            let mut frame = Vec::new();
            for (finger, axis, value) in touches {
                frame.extend([abs(ABS_MT_SLOT, *finger), abs(X + axis % 2, *value)]);
            }
            prop_assert!(movement.add(&frame));
            follow(&mut device, &frame);
            match then {
                0 => follow(&mut node, &movement.take_mean()),
                1 => follow(&mut node, &movement.take_last()),
                _ => {}
            }
        }
        while !movement.is_empty() {
            follow(&mut node, &movement.take_mean());
        }
        prop_assert_eq!(node, device);
    }
}
