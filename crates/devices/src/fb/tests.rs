//! Tests with a file in the form of an X server's screen file.

use super::layout::Layout;
use crate::damage::TILE;
use contract::{
    Attributes, Body, Ctl, Direction, FlowClass, FlowKey, FlowTemplate, Format, Message, Partner,
    PartnerError, Pull, Pulled, Pushed, Role, Time,
};
use proptest::prelude::*;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use wire::formats::video::{Content, Geometry, Header, PixelFormat, Rectangle, emit_rectangles};

/// Returns a dump of 40 by 24 pixels with a stride of 42 pixels, and one entry in its colour table.
fn dump() -> Vec<u8> {
    let mut fields = [0u32; 25];
    for (number, value) in [
        (0, 104),
        (1, 7),
        (2, 2),
        (3, 24),
        (4, 40),
        (5, 24),
        (8, 32),
        (10, 32),
        (11, 32),
        (12, 168),
        (13, 4),
        (14, 0xff_0000),
        (15, 0xff00),
        (16, 0xff),
        (17, 8),
        (18, 1),
        (19, 1),
    ] {
        fields[number] = value;
    }
    let header: Vec<u8> = fields.iter().flat_map(|field| field.to_be_bytes()).collect();
    [&header[..], b"name", &[0; 12], &[0; 168 * 24]].concat()
}

const START: u64 = 116;

/// A temporary screen file, removed when dropped.
struct Screen(PathBuf, File);

impl Screen {
    fn new(bytes: &[u8]) -> Screen {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("outboard-fb-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::write(&path, bytes).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        Screen(path, file)
    }

    fn partner(&self, role: Role, options: &str) -> (Box<dyn Partner>, FlowKey) {
        let (class, spec) = crate::spec::parse(&format!("fb:{}{options}", self.0.display()), role).unwrap();
        let mut partner = class.partner(class.open(&spec, role, None).unwrap()).unwrap();
        let direction = if role == Role::Device { Direction::Out } else { Direction::In };
        let template = FlowTemplate { direction, format: Format::Video, class: FlowClass::State };
        let flow = partner.open(&template, &Attributes::default()).unwrap();
        (partner, flow)
    }

    fn pixel(&self, x: u64, y: u64) -> [u8; 4] {
        let mut pixel = [0; 4];
        self.1.read_exact_at(&mut pixel, START + y * 168 + x * 4).unwrap();
        pixel
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn pull(partner: &mut dyn Partner, flow: FlowKey) -> Option<Vec<u8>> {
    match partner.pull(flow, Pull::Yours).unwrap() {
        Pulled::Message(_, message) => Some(message.body.into_bytes().to_vec()),
        _ => None,
    }
}

#[test]
fn the_first_picture_is_whole_and_changes_follow() {
    let screen = Screen::new(&dump());
    let (mut device, flow) = screen.partner(Role::Device, ",rate=0");
    let first = pull(&mut *device, flow).unwrap();
    let header = Header::parse(&first).unwrap();
    let geometry = header.geometry;
    assert_eq!((geometry.width(), geometry.height(), geometry.stride()), (40, 24, 168));
    assert_eq!(header.parse_content(&first[Header::BYTES..]), Ok(Content::Frame(&[0; 168 * 24])));
    assert_eq!(pull(&mut *device, flow), None);
    screen.1.write_all_at(&[1, 2, 3, 4], START + 20 * 168 + 39 * 4).unwrap();
    screen.1.write_all_at(&[9; 8], START + 160).unwrap();
    let changed = pull(&mut *device, flow).unwrap();
    let header = Header::parse(&changed).unwrap();
    let Ok(Content::Rectangles(parts, pixels)) = header.parse_content(&changed[Header::BYTES..]) else {
        panic!()
    };
    assert_eq!(parts, [Rectangle { x: 32, y: TILE, width: 8, height: 8 }], "the padding of rows is ignored");
    assert_eq!(pixels[(4 * 8 + 7) * 4..][..4], [1, 2, 3, 4]);
    assert_eq!(pull(&mut *device, flow), None);
    device.ctl(flow, Ctl::Snapshot).unwrap();
    assert_eq!(pull(&mut *device, flow).unwrap().len(), Header::BYTES + 168 * 24);
    screen.1.set_len(500).unwrap();
    assert!(matches!(device.pull(flow, Pull::Yours), Err(PartnerError::Gone(_))));
}

#[test]
fn the_option_whole_sends_whole_pictures() {
    let screen = Screen::new(&dump());
    let (mut device, flow) = screen.partner(Role::Device, ",rate=0,whole=true");
    for number in 1..4 {
        screen.1.write_all_at(&[number], START + 5).unwrap();
        assert_eq!(pull(&mut *device, flow).unwrap()[Header::BYTES + 5], number);
        assert_eq!(pull(&mut *device, flow), None);
    }
}

#[test]
fn pictures_and_parts_are_written_cropped() {
    let screen = Screen::new(&dump());
    let (mut node, flow) = screen.partner(Role::Application, "");
    let mut push = |bytes: Vec<u8>| match node.push(flow, Message::new(Time(1), Body::from(bytes))) {
        Ok(Pushed::Taken) => Ok(()),
        Err((error, _)) => Err(error.to_string()),
        Ok(other) => panic!("{other:?}"),
    };
    let wide = Geometry::new(PixelFormat::Rgb24, 60, 30).unwrap();
    let pixels: Vec<u8> =
        (0..60 * 30).flat_map(|number| [(number % 60) as u8, (number / 60) as u8, 7]).collect();
    push([&Header::frame(wide).emit()[..], &pixels].concat()).unwrap();
    assert_eq!(
        [screen.pixel(0, 0), screen.pixel(39, 23), screen.pixel(40, 3)],
        [[7, 0, 0, 0], [7, 23, 39, 0], [0; 4]]
    );
    let header = Header { kind: wire::formats::video::Kind::Rectangles, geometry: wide }.emit();
    let parts =
        [Rectangle { x: 38, y: 22, width: 5, height: 5 }, Rectangle { x: 50, y: 0, width: 1, height: 1 }];
    push([&header[..], &emit_rectangles(&parts), &[5; 78]].concat()).unwrap();
    assert_eq!(
        [screen.pixel(38, 22), screen.pixel(37, 22), screen.pixel(40, 22)],
        [[5, 5, 5, 0], [7, 22, 37, 0], [0; 4]]
    );
    assert_eq!(fs::metadata(&screen.0).unwrap().len(), dump().len() as u64);
    assert!(push(vec![1]).unwrap_err().contains("shorter"));
}

#[test]
fn unsupported_files_are_refused_with_a_reason() {
    for (at, value, expected) in [
        (4, 8u32, "not an X window dump"),
        (0, 99, "not an X window dump"),
        (76, u32::MAX, "not an X window dump"),
        (44, 16, "16 bits"),
        (16, 0, "picture width"),
        (48, 100, "picture stride"),
    ] {
        let mut bytes = dump();
        bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
        let error = Layout::parse_dump(bytes[..100].try_into().unwrap()).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
    let screen = Screen::new(b"short");
    let (class, spec) = crate::spec::parse(&format!("fb:{}", screen.0.display()), Role::Device).unwrap();
    let error = class.open(&spec, Role::Device, None).unwrap_err().to_string();
    assert!(error.contains("neither a framebuffer"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn any_header_is_parsed_or_rejected_and_layouts_round_trip(
        fields in prop::collection::vec((0..25usize, any::<u32>()), 0..4),
        bytes in prop::collection::vec(any::<u8>(), 0..30),
    ) {
        let mut header = dump();
        for (number, value) in fields {
            header[number * 4..][..4].copy_from_slice(&value.to_be_bytes());
        }
        if let Ok(layout) = Layout::parse_dump(header[..100].try_into().unwrap()) {
            prop_assert_eq!(Layout::parse(&layout.emit()), Ok(layout));
        }
        let _ = Layout::parse(&bytes);
    }
}
