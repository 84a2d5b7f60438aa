//! Tests of descriptors and neutral states, and of both partners with a socket in the place of the kernel.
//! `tests/kernel_hid` has those with a real kernel.

use super::uhid::EVENT_BYTES;
use super::*;
use contract::{
    Attributes, Body, Ctl, CtlReply, Direction, FlowKey, FlowTemplate, Message, Pull, Pulled, Pushed,
};
use properties::Ids;
use proptest::prelude::*;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;
use sys::poller::Poller;
use wire::formats::hid::{Refused, ReportKind, Update};

const KEYBOARD: &str = "05010906a101050719e029e71500250175019508810295017508810395057501050819012905910295017503910395067508 \
                        1500256505071900296581 00c0";
const MOUSE: &str = "05010902a1010901a100050919012903150025019503750181029501750581030501093009310938158125 7f750895038106c0c0";
/// Two sticks, two triggers, a hat and ten buttons in report 1; media keys in report 2.
const GAMEPAD: &str = "05010905a1018501093009310932093309340935150026ff00750895068102 \
                       0939150025073500463b016514750495018142 6500750495018103050919 01290a150025017501950a8102750695018103c0 \
                       050c0901a10185020ae9000aea00150025017501950281027506950181 03c0";
const FIDO: &str = "06d0f10901a1010920150026ff007508954081020921150026ff00750895409102c0";
/// The beginning of a DualSense's: report 1, and report 2 for lights and motors; then its calibration.
const DUALSENSE: &str = "05010905a101850109300931093209350933093415002 6ff00750895068102 0600ff092095018102 \
                         050109391500250735004 63b01651475049501 8142 6500 05091901290f15002501750195 0f8102 \
                         0600ff0921950d8102 0600ff0922150026ff0075089534 8102 85020923952f9102 850509339528b102 c0";
/// By Bluetooth: report 1, which it sends at first, and report 0x11, which it sends to its driver.
const DUALSHOCK: &str = "05010905a101850109300931093209351500 26ff007508950481020509 1901290e250175019510810 2 \
                         0600ff8511092026ff007508954d8102 c0";
const SWITCH_BY_USB: &str = "050115000904a1018530050105091901290a150025017501950a5500650081020509190b290e150025017501950481027501950281030b01 \
                             000100a1000b300001000b310001000b320001000b35000100150027ffff0000751095048102c00b39000100150025073500463b01651475 \
                             04950181020509190f2912150025017501950481027508953481030600ff852109017508953f8103858109027508953f8103850109037508 \
                             953f9183851009047508953f9183858009057508953f9183858209067508953f9183c0";
/// The reports with all state, and the one with buttons that it sends at first.
const SWITCH_BY_BLUETOOTH: &str =
    "05010905a1010601ff8521092175089530810 285300930810 2853f05091901291025017501951081 02c0";

fn bytes(hexadecimal: &str) -> Vec<u8> {
    let digits: Vec<u32> = hexadecimal.chars().filter_map(|digit| digit.to_digit(16)).collect();
    digits.chunks(2).map(|pair| (pair[0] * 16 + pair[1]) as u8).collect()
}

fn parsed(hexadecimal: &str) -> Descriptor {
    Descriptor::parse(&bytes(hexadecimal)).unwrap()
}

fn properties(hexadecimal: &str) -> Properties {
    Properties {
        name: "A device".into(),
        phys: "usb-1/input0".into(),
        ids: Ids { bus: 3, vendor: 0x1234, product: 0x5678, version: 0x111 },
        descriptor: bytes(hexadecimal),
        ..Properties::default()
    }
}

fn dualsense() -> Properties {
    let ids = Ids { bus: 3, vendor: 0x54c, product: 0xce6, version: 0x111 };
    let calibration = [vec![5], vec![7; 40]].concat();
    Properties { ids, features: vec![calibration], ..properties(DUALSENSE) }
}

fn sold_as(vendor: u32, product: u32, descriptor: &str) -> Properties {
    Properties { ids: Ids { bus: 5, vendor, product, version: 0x111 }, ..properties(descriptor) }
}

fn inputs(properties: &Properties) -> Inputs {
    Inputs::new(properties, Descriptor::parse(&properties.descriptor).unwrap())
}

#[test]
fn collections_tell_the_kind() {
    let joined = |one: &str, other: &str| [one, other].concat();
    // A mouse with media keys of every kind types.
    let consumer = "050c0901a1018503150026ff031900 2aff03751095018100c0";
    for (descriptor, kind) in [
        (KEYBOARD, Kind::Keyboard),
        (MOUSE, Kind::Mouse),
        (GAMEPAD, Kind::Gamepad),
        (DUALSENSE, Kind::Gamepad),
        (FIDO, Kind::SecurityKey),
        (&joined(GAMEPAD, KEYBOARD), Kind::Keyboard),
        (&joined(GAMEPAD, FIDO), Kind::Hid),
        (&joined(GAMEPAD, MOUSE), Kind::Hid),
        (&joined(GAMEPAD, consumer), Kind::Keyboard),
        // Usages from the page of games to that of keys.
        ("05010905a1011500250175019508 1b00000600 2b30000700 8102c0", Kind::Keyboard),
        // Enter and `a` in front of the page of the buttons, and the other way round, which are keys in older kernels.
        ("05010905a1010507092809040509090115002501750195038102 75059501810 3c0", Kind::Keyboard),
        ("05010905a1010509092809040507090115002501750195038102 c0", Kind::Keyboard),
        // Keys of 40 bits.
        ("05010905a1010507092809041500250175289502 8102c0", Kind::Keyboard),
        // Playback, alone, and as the end of a range that begins with 0; the beginning of the range before it; and a range backwards.
        ("05010905a101050c1a25022a2502150026250275109501 8100c0", Kind::Gamepad),
        ("05010905a101050c2a2502150026250275109501 8100c0", Kind::Keyboard),
        ("05010905a101050c19b029b32a2502150026250275109501 8100c0", Kind::Keyboard),
        ("05010905a101050c1a25022900150026250275109501 8100c0", Kind::Keyboard),
        // A vendor's own.
        ("0600ff0901a1010902150026ff00750895088102c0", Kind::Hid),
        // A touchpad, and the mouse that it is for systems without a driver.
        (&joined(MOUSE, "050d0905a10185040954250f75089501810 2c0"), Kind::Touchpad),
    ] {
        assert_eq!(parsed(descriptor).kind(), kind, "{descriptor}");
    }
}

#[test]
fn only_devices_with_a_state_lose_reports() {
    for (descriptor, class) in
        [(GAMEPAD, FlowClass::State), (KEYBOARD, FlowClass::State), (FIDO, FlowClass::Reliable)]
    {
        let described = describe(&properties(descriptor), &parsed(descriptor));
        assert!(described.flows.iter().all(|flow| flow.class == class), "{descriptor}");
    }
    let mut key = inputs(&properties(FIDO));
    assert!(key.observe(&[1; 64]) && key.is_neutral());
    assert_eq!(key.release(&[]), Vec::<Vec<u8>>::new(), "a key has nothing to release");
}

#[test]
fn keys_are_released() {
    let mut keyboard = inputs(&properties(KEYBOARD));
    assert_eq!(keyboard.release(&[]), [vec![0; 8]], "the state of a new worker is unknown");
    assert!(keyboard.observe(&[2, 0, 4, 5, 0, 0, 0, 0]) && !keyboard.is_neutral());
    assert_eq!(keyboard.release(&[]), [vec![0; 8]]);
    assert!(keyboard.is_neutral() && keyboard.release(&[]).is_empty());
}

#[test]
fn a_snapshot_has_no_distances() {
    let mut mouse = inputs(&properties(MOUSE));
    assert!(mouse.observe(&[1, 5, 0xfb, 1]));
    assert_eq!(mouse.snapshot(), [vec![1, 0, 0, 0]]);
    let mut copy = inputs(&properties(MOUSE));
    assert_eq!(copy.move_to(mouse.snapshot()), [vec![1, 0, 0, 0]]);
    assert!(copy.move_to(mouse.snapshot()).is_empty(), "nothing has changed");
    assert_eq!(copy.move_to(Vec::new()), [vec![0; 4]], "a report that is not in a snapshot is neutral");
}

/// Which axis is a stick and which a trigger, no descriptor tells.
#[test]
fn axes_return_to_where_they_were_first() {
    let mut pad = inputs(&properties(GAMEPAD));
    assert_eq!(pad.release(&[]), [vec![2, 0]], "the rest of the axes is unknown; the media keys are up");
    assert!(pad.observe(&[1, 0x7e, 0x82, 3, 0x80, 0x80, 0, 8, 0, 0]) && pad.is_neutral());
    assert!(pad.observe(&[1, 0xff, 0, 200, 0x80, 0x80, 255, 3, 1, 2]) && pad.observe(&[2, 1]));
    assert!(!pad.is_neutral());
    assert_eq!(pad.release(&[]), [vec![1, 0x80, 0x80, 0, 0x80, 0x80, 0, 8, 0, 0], vec![2, 0]]);
    assert!(!pad.observe(&[3, 0]) && !pad.observe(&[]), "it has no such report");
}

#[test]
fn axes_of_several_pages_in_one_item_are_released() {
    let stick = "05010905a101093009310502 09bb1581257f75089503 8102c0";
    let mut pad = inputs(&properties(stick));
    assert!(pad.observe(&[0, 0, 9]) && pad.observe(&[100, 50, 9]));
    assert_eq!(pad.release(&[]), [vec![0, 0, 9]], "the sticks are centred, the throttle stays");
}

#[test]
fn a_dualsense_is_released_below_its_vendor_bytes() {
    let mut pad = inputs(&dualsense());
    let mut report = vec![0; 64];
    report[..11].copy_from_slice(&[1, 0xff, 0x80, 0x80, 0x80, 0, 90, 17, 0x28, 0, 0]);
    report[16..29].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]);
    report[33] = 1;
    report[37] = 0x80;
    assert!(pad.observe(&report) && !pad.is_neutral());
    let released = pad.release(&[]).remove(0);
    assert_eq!(released[1..11], [0x80, 0x80, 0x80, 0x80, 0, 0, 17, 8, 0, 0]);
    assert_eq!(released[16..29], [0, 0, 0, 0, 0, 0, 7, 8, 9, 10, 11, 12, 13], "turns end, gravity stays");
    assert_eq!((released[33], released[37]), (0x81, 0x80), "the finger is lifted");
    assert!(pad.is_neutral());
}

/// Its descriptor has axes where its reports have buttons and halves of sticks.
#[test]
fn a_switch_controller_is_released_where_its_descriptor_lies() {
    for (descriptor, bytes) in [(SWITCH_BY_USB, 64), (SWITCH_BY_BLUETOOTH, 49)] {
        let mut pad = inputs(&sold_as(0x57e, 0x2009, descriptor));
        let report = |begin: [u8; 12]| [begin.to_vec(), vec![0; bytes - 12]].concat();
        let rest = [0x30, 0xc6, 0x91, 0x00, 0x80, 0x00, 0xf9, 0xe7, 0x7b, 0xa9, 0xd7, 0x7e];
        assert!(pad.observe(&report(rest)) && pad.is_neutral(), "{bytes} bytes");
        let held = [0x30, 0xc7, 0x91, 0x08, 0x80, 0x40, 0x12, 0xf0, 0x7b, 0xa9, 0xd7, 0x7e];
        assert!(pad.observe(&report(held)) && !pad.is_neutral(), "{bytes} bytes");
        let mut expected = report(rest);
        expected[1] = 0xc7;
        assert_eq!(pad.release(&[]).first(), Some(&expected));
        assert!(pad.is_neutral());
    }
}

#[test]
fn a_dualshock_by_bluetooth_is_released() {
    let mut pad = inputs(&sold_as(0x54c, 0x9cc, DUALSHOCK));
    let mut report = vec![0; 78];
    report[..12].copy_from_slice(&[0x11, 0xc0, 0, 0x80, 0x80, 0x80, 0xff, 0x28, 0, 0x54, 0, 90]);
    assert!(pad.observe(&report) && !pad.is_neutral());
    assert_eq!(
        pad.release(&[])[0][..12],
        [0x11, 0xc0, 0, 0x80, 0x80, 0x80, 0x80, 8, 0, 0x54, 0, 0],
        "the counter stays"
    );
    assert!(pad.is_neutral());
    assert!(
        pad.observe(&[1, 0x80, 0x80, 0x80, 0x80, 1, 0, 0]) && !pad.is_neutral(),
        "the descriptor tells it"
    );
}

#[test]
fn gamepads_with_vendor_parts_are_listed_with_their_limits() {
    let listed = |vendor, product, text: &str| {
        let properties = sold_as(vendor, product, text);
        assert_eq!(parsed(text).kind(), Kind::Gamepad);
        (parsed(text).has_vendor_parts(), discovery::limit(&properties, &parsed(text), false).is_empty())
    };
    assert_eq!(listed(0x57e, 0x2009, SWITCH_BY_USB), (true, true), "its vendor-defined reports are constant");
    assert_eq!(listed(0x57e, 0x2009, SWITCH_BY_BLUETOOTH), (true, true));
    assert_eq!(listed(0x54c, 0x5c4, DUALSHOCK), (true, true));
    assert_eq!(listed(0x1234, 0x5678, DUALSHOCK), (true, false), "its buttons are unknown");
    assert_eq!(listed(0x1234, 0x5678, GAMEPAD), (false, true));
    // The report that starts an effect, with its number.
    let wheel = [GAMEPAD.trim_end_matches("c0"), "050f0921a1028503092215012528750895019102 c0c0"].concat();
    assert_eq!(listed(0x1234, 0x5678, wheel.as_str()), (false, false), "nothing stops its forces");
}

#[test]
fn a_driver_tells_forces_that_the_descriptor_does_not() {
    let limit = |vendor, product, plays_forces| {
        discovery::limit(&sold_as(vendor, product, GAMEPAD), &parsed(GAMEPAD), plays_forces)
    };
    assert!(limit(0x46d, 0xc262, true).contains("forces go on"), "a wheel with HID++");
    assert_eq!(limit(0x46d, 0xc262, false), "");
    assert_eq!(limit(0x54c, 0xce6, true), "", "the motors of a DualSense are stopped");

    let scratch = crate::file::tests::Scratch::new();
    let device = PathBuf::from(scratch.path("0003:046D:C262.0001"));
    assert!(!discovery::plays_forces(&device), "it has no input");
    let capabilities = device.join("input/input7/capabilities");
    std::fs::create_dir_all(&capabilities).unwrap();
    for (bits, plays) in [("0\n", false), ("0 0\n", false), ("107030000 0\n", true)] {
        std::fs::write(capabilities.join("ff"), bits).unwrap();
        assert_eq!(discovery::plays_forces(&device), plays, "{bits}");
    }
}

#[test]
fn a_driver_that_takes_no_copy_is_known_and_a_copy_without_a_driver_is_named() {
    let scratch = crate::file::tests::Scratch::new();
    let device = PathBuf::from(scratch.path("0003:046D:C24F.0001"));
    std::fs::create_dir(&device).unwrap();
    let fresh = [device.clone()];
    assert!(!discovery::refuses_copies(&device));
    for (kind, has_event_node) in [(Kind::Gamepad, true), (Kind::SecurityKey, false), (Kind::Hid, false)] {
        let words = without_node(&fresh, kind);
        assert!(words.contains("no driver"), "{words}");
        assert_eq!(words.contains("evdev"), has_event_node, "{kind}: {words}");
    }
    assert_eq!(without_node(&[], Kind::Gamepad), "", "the kernel has not made it yet");
    for (driver, refuses) in [("hid-generic", false), ("logitech", true)] {
        let _ = std::fs::remove_file(device.join("driver"));
        std::fs::create_dir(scratch.path(driver)).unwrap();
        std::os::unix::fs::symlink(scratch.path(driver), device.join("driver")).unwrap();
        assert_eq!(discovery::refuses_copies(&device), refuses, "{driver}");
        assert_eq!(without_node(&fresh, Kind::Gamepad), "", "{driver} may ask the device first");
    }
}

#[test]
fn numbers_are_put_in_front_where_they_are_missing() {
    let keyboard = parsed(KEYBOARD);
    for (sent, report) in [(&[1][..], [0, 1]), (&[0, 1], [0, 1])] {
        assert_eq!(keyboard.with_number(ReportKind::Output, 0, sent), report);
    }
    assert_eq!(parsed(DUALSENSE).with_number(ReportKind::Output, 2, &[2, 0, 0]), [2, 0, 0]);
    let key = parsed(FIDO);
    assert_eq!(key.with_number(ReportKind::Output, 0, &[7; 64]), [&[0][..], &[7; 64]].concat());
    assert_eq!(
        key.with_number(ReportKind::Output, 0, &[0, 7, 8]),
        [0, 7, 8],
        "a program's short report has a number"
    );
    assert_eq!(parsed(DUALSENSE).bytes_of(ReportKind::Feature, 5), Some(41));
}

#[test]
fn a_description_from_the_network_is_checked() {
    let (properties, descriptor) = (dualsense(), parsed(DUALSENSE));
    let described = describe(&properties, &descriptor);
    assert_eq!(Hid.kind(&described).unwrap(), Kind::Gamepad);
    assert_eq!(parse_properties(&described).unwrap().0, properties);
    let long =
        |properties: Properties| Description { properties: properties.to_bytes(), ..described.clone() };
    for wrong in [
        Description { class: "evdev".into(), ..described.clone() },
        Description { properties: Vec::new(), ..described.clone() },
        Description { properties: [described.properties.clone(), vec![0]].concat(), ..described.clone() },
        long(Properties { name: "n".repeat(128), ..properties.clone() }),
        long(Properties { descriptor: vec![0; 4097], ..properties.clone() }),
        long(Properties { descriptor: Vec::new(), ..properties.clone() }),
        long(Properties { features: vec![vec![6, 0]], ..properties.clone() }),
        // A report of 16 MB, more parts than reports have bits, and collections without an end.
        long(Properties { descriptor: bytes("752096ffff8102"), ..properties.clone() }),
        long(Properties { descriptor: bytes("05091901290175019 6ff7f8102").repeat(3), ..properties.clone() }),
        long(Properties { descriptor: [0xa1, 1].repeat(100), ..properties.clone() }),
    ] {
        assert!(Hid.kind(&wrong).is_err(), "{wrong:?}");
    }
}

proptest! {
    #[test]
    fn any_descriptor_is_parsed_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
        let _ = Descriptor::parse(&bytes);
    }

    #[test]
    fn a_changed_descriptor_keeps_its_promises(at in 0..60_usize, byte in any::<u8>(), report in prop::collection::vec(any::<u8>(), 1..80)) {
        let mut properties = properties(GAMEPAD);
        properties.descriptor[at] = byte;
        super::fuzz::device(&[&[0xff, 0xff], properties.to_bytes().as_slice()].concat());
        let described = properties.to_bytes();
        let length = (described.len() as u16).to_le_bytes();
        super::fuzz::device(&[&length, described.as_slice(), &report].concat());
    }
}

fn template(direction: Direction) -> FlowTemplate {
    FlowTemplate { direction, format: Format::Hid, class: FlowClass::State }
}

/// A partner with both flows open, and the kernel's end of its node.
struct Rig {
    partner: Box<dyn Partner>,
    kernel: UnixDatagram,
    /// The partner's end.
    node: UnixDatagram,
}

impl Rig {
    fn new(role: Role, properties: &Properties) -> Rig {
        let (kernel, node) = UnixDatagram::pair().unwrap();
        node.set_nonblocking(true).unwrap();
        let (class, spec) = crate::spec::parse("hid:/dev/hidraw0", role).unwrap();
        let description = describe(properties, &Descriptor::parse(&properties.descriptor).unwrap());
        let opened = Opened { spec, role, description, descriptors: vec![node.try_clone().unwrap().into()] };
        let mut partner = class.partner(opened).unwrap();
        for direction in [Direction::Out, Direction::In] {
            partner.open(&template(direction), &Attributes::default()).unwrap();
        }
        Rig { partner, kernel, node }
    }

    fn push(&mut self, update: &Update) {
        let message = Message::new(contract::Time(1), update.to_bytes());
        assert!(matches!(self.partner.push(FlowKey(2), message), Ok(Pushed::Taken)));
    }

    /// Waits for the next message.
    fn pull(&mut self) -> Update {
        let mut poller = Poller::new().unwrap();
        loop {
            if let Pulled::Message(_, message) = self.partner.pull(FlowKey(1), Pull::Yours).unwrap() {
                return parse(message.body);
            }
            let readiness = self.partner.readiness(FlowKey(1), Direction::Out);
            for (descriptor, _) in readiness.descriptors.into_iter().flatten() {
                poller.register(descriptor, true, false);
            }
            if !readiness.now {
                poller.wait(None).unwrap();
            }
        }
    }

    /// Reads the bytes that were written to the node.
    fn written(&self) -> Vec<u8> {
        let mut buffer = vec![0; EVENT_BYTES];
        let length = self.kernel.recv(&mut buffer).unwrap();
        buffer.truncate(length);
        buffer
    }

    /// An event of the kernel.
    fn event(&self, kind: u32, body: &[u8]) {
        let mut event = [&kind.to_ne_bytes(), body].concat();
        event.resize(EVENT_BYTES, 0);
        self.kernel.send(&event).unwrap();
    }

    fn asks_for(&self, request: u32, number: u8) {
        self.event(9, &[&request.to_ne_bytes()[..], &[number, 0]].concat());
    }

    fn ctl(&mut self, flow: u32, operation: Ctl<'_>) -> CtlReply {
        self.partner.ctl(FlowKey(flow), operation).unwrap()
    }
}

fn parse(mut body: Body) -> Update {
    Update::parse(body.as_slice()).unwrap()
}

#[test]
fn requests_are_answered_from_the_description_and_from_memory() {
    let mut rig = Rig::new(Role::Application, &dualsense());
    assert_eq!(rig.pull(), Update::Snapshot(Vec::new()));
    rig.asks_for(1, 5);
    let calibration = [vec![5], vec![7; 40]].concat();
    assert_eq!(rig.written(), uhid::got(1, Some(&calibration)), "nobody is asked");

    let mut rig = Rig::new(Role::Application, &Properties { features: Vec::new(), ..dualsense() });
    assert_eq!(rig.pull(), Update::Snapshot(Vec::new()));
    rig.asks_for(2, 5);
    assert_eq!(rig.pull(), Update::Get { request: 2, kind: ReportKind::Feature, number: 5 });
    rig.push(&Update::Answer { request: 1, result: Ok(calibration.clone()) });
    rig.push(&Update::Answer { request: 2, result: Ok(calibration.clone()) });
    assert_eq!(rig.written(), uhid::got(2, Some(&calibration)), "the answer to another request is ignored");
    rig.asks_for(3, 5);
    rig.pull();
    rig.push(&Update::Answer { request: 3, result: Err(Refused) });
    assert_eq!(rig.written(), uhid::got(3, None), "while it answers, the device knows best");
    rig.ctl(0, Ctl::Neutral);
    rig.asks_for(4, 5);
    assert_eq!(rig.written(), uhid::got(4, Some(&calibration)), "without a link the last answer counts");
}

#[test]
fn a_request_that_nobody_answers_fails_in_time() {
    let mut rig = Rig::new(Role::Application, &dualsense());
    rig.pull();
    rig.event(13, &[&7_u32.to_ne_bytes()[..], &[8, 0], &2_u16.to_ne_bytes(), &[8, 1]].concat());
    assert_eq!(rig.pull(), Update::Set { request: 7, kind: ReportKind::Feature, report: vec![8, 1] });
    assert_eq!(rig.written(), uhid::set(7, false));
}

#[test]
fn a_copy_is_neutral_after_a_cut_and_as_the_snapshot_says_then() {
    let mut rig = Rig::new(Role::Application, &properties(KEYBOARD));
    let pressed = vec![0, 0, 4, 0, 0, 0, 0, 0];
    rig.push(&Update::Input(pressed.clone()));
    assert_eq!(rig.written(), uhid::input(&pressed));
    assert!(matches!(rig.ctl(2, Ctl::IsNeutral), CtlReply::Count(0)));
    rig.ctl(2, Ctl::Neutral);
    assert_eq!(rig.written(), uhid::input(&[0; 8]));
    assert!(matches!(rig.ctl(2, Ctl::IsNeutral), CtlReply::Count(1)));
    rig.push(&Update::Snapshot(vec![pressed.clone()]));
    assert_eq!(rig.written(), uhid::input(&pressed));
    rig.push(&Update::Snapshot(Vec::new()));
    assert_eq!(rig.written(), uhid::input(&[0; 8]), "a key that is not in the snapshot is up");
}

#[test]
fn lights_of_a_copy_travel_back() {
    let mut rig = Rig::new(Role::Application, &properties(KEYBOARD));
    rig.pull();
    let mut output = vec![0; 4096];
    output[0] = 2;
    output.extend(1_u16.to_ne_bytes());
    output.push(1);
    rig.event(6, &output);
    assert_eq!(rig.pull(), Update::Output(vec![0, 2]));
    rig.ctl(1, Ctl::Snapshot);
    assert_eq!(rig.pull(), Update::Snapshot(vec![vec![0, 2]]));
}

#[test]
fn a_device_sends_its_state_and_takes_reports() {
    let mut rig = Rig::new(Role::Device, &properties(KEYBOARD));
    assert_eq!(rig.pull(), Update::Snapshot(Vec::new()));
    let pressed = vec![0, 0, 4, 0, 0, 0, 0, 0];
    rig.kernel.send(&pressed).unwrap();
    assert_eq!(rig.pull(), Update::Input(pressed.clone()));
    rig.ctl(1, Ctl::Snapshot);
    assert_eq!(rig.pull(), Update::Snapshot(vec![pressed]));
    rig.push(&Update::Output(vec![0, 1]));
    assert_eq!(rig.written(), [0, 1]);
    rig.push(&Update::Snapshot(vec![vec![0, 1]]));
    rig.push(&Update::Output(vec![0, 3]));
    assert_eq!(rig.written(), [0, 3], "a snapshot that changes nothing sends nothing");
    rig.push(&Update::Get { request: 1, kind: ReportKind::Feature, number: 9 });
    assert_eq!(rig.pull(), Update::Answer { request: 1, result: Err(Refused) }, "it has no such report");
    // A socket takes no ioctl, as a device that answers nothing.
    rig.push(&Update::Get { request: 2, kind: ReportKind::Input, number: 0 });
    assert_eq!(rig.pull(), Update::Answer { request: 2, result: Err(Refused) });
}

/// The kernel's event of an output report.
fn output_event(report: &[u8]) -> Vec<u8> {
    let mut event = report.to_vec();
    event.resize(4096, 0);
    event.extend((report.len() as u16).to_ne_bytes());
    event.push(1);
    event
}

#[test]
fn motors_stop_when_the_application_is_gone() {
    let mut rig = Rig::new(Role::Device, &dualsense());
    let mut rumble = vec![0; 63];
    rumble[..5].copy_from_slice(&[2, 3, 0, 0x40, 0x80]);
    rig.push(&Update::Output(rumble.clone()));
    assert_eq!(rig.written(), rumble);
    assert!(matches!(rig.ctl(2, Ctl::IsNeutral), CtlReply::Count(0)));
    rig.ctl(2, Ctl::Neutral);
    assert_eq!(rig.written()[..5], [2, 3, 0, 0, 0]);
    assert!(matches!(rig.ctl(2, Ctl::IsNeutral), CtlReply::Count(1)));
}

#[test]
fn motors_of_a_dualshock_stop_and_its_light_stays() {
    // Its outputs by USB.
    let descriptor = [DUALSHOCK.trim_end_matches("c0"), "8505092195 1f9102c0"].concat();
    let mut rig = Rig::new(Role::Device, &sold_as(0x54c, 0x9cc, &descriptor));
    let report = |begin: [u8; 9]| [begin.to_vec(), vec![0; 23]].concat();
    for report in [report([5, 1, 0, 0, 0x40, 0x80, 0, 0, 0]), report([5, 2, 0, 0, 0, 0, 1, 2, 3])] {
        rig.push(&Update::Output(report.clone()));
        assert_eq!(rig.written(), report);
    }
    assert!(matches!(rig.ctl(2, Ctl::IsNeutral), CtlReply::Count(0)));
    rig.ctl(2, Ctl::Neutral);
    assert_eq!(rig.written(), report([5, 3, 0, 0, 0, 0, 1, 2, 3]));
    assert!(matches!(rig.ctl(2, Ctl::IsNeutral), CtlReply::Count(1)));
}

/// A game that sets its light while the motors run, as most do.
#[test]
fn a_light_does_not_hide_the_motors() {
    let mut rumble = vec![0; 63];
    rumble[..5].copy_from_slice(&[2, 3, 0, 0x40, 0x80]);
    let mut light = vec![0; 63];
    light[..3].copy_from_slice(&[2, 0, 4]);
    light[45..48].copy_from_slice(&[1, 2, 3]);
    let mut rig = Rig::new(Role::Device, &dualsense());
    for report in [&rumble, &light] {
        rig.push(&Update::Output(report.clone()));
        assert_eq!(rig.written(), *report);
    }
    assert!(matches!(rig.ctl(2, Ctl::IsNeutral), CtlReply::Count(0)));
    rig.ctl(2, Ctl::Neutral);
    assert_eq!(rig.written()[..5], [2, 3, 0, 0, 0]);
    assert!(matches!(rig.ctl(2, Ctl::IsNeutral), CtlReply::Count(1)));

    let mut copy = Rig::new(Role::Application, &dualsense());
    copy.pull();
    for report in [&rumble, &light] {
        copy.event(6, &output_event(report));
        assert_eq!(copy.pull(), Update::Output(report.clone()));
    }
    assert!(matches!(copy.ctl(1, Ctl::IsNeutral), CtlReply::Count(0)));
    copy.ctl(1, Ctl::Snapshot);
    let Update::Snapshot(reports) = copy.pull() else { panic!("a snapshot") };
    assert_eq!(reports[0][..5], [2, 3, 4, 0x40, 0x80], "motors and light");
    assert_eq!(reports[0][45..48], [1, 2, 3]);
}

/// Another device may use the same report for its lights, its firmware or a key.
#[test]
fn reports_of_other_devices_are_not_taken_for_motors() {
    let mut rig = Rig::new(Role::Device, &Properties { ids: Ids::default(), ..dualsense() });
    let mut report = vec![0; 63];
    report[..5].copy_from_slice(&[2, 3, 0, 0x40, 0x80]);
    rig.push(&Update::Output(report.clone()));
    assert_eq!(rig.written(), report);
    assert!(matches!(rig.ctl(2, Ctl::IsNeutral), CtlReply::Count(1)));
    rig.ctl(2, Ctl::Neutral);
    report[4] = 0;
    rig.push(&Update::Output(report.clone()));
    assert_eq!(rig.written(), report, "nothing was sent before");
    let mut copy = Rig::new(Role::Application, &Properties { ids: Ids::default(), ..dualsense() });
    copy.pull();
    copy.event(6, &output_event(&report));
    assert_eq!(copy.pull(), Update::Output(report));
    assert!(matches!(copy.ctl(1, Ctl::IsNeutral), CtlReply::Count(1)));
}

#[test]
fn motors_stop_also_when_the_partner_is_dropped_with_reports_queued() {
    const REPORTS: usize = device::WORK_MAX - 1;
    let mut rig = Rig::new(Role::Device, &dualsense());
    let mut rumble = vec![0; 63];
    rumble[..5].copy_from_slice(&[2, 3, 0, 0x40, 0x80]);
    // The kernel takes a few of the reports, then blocks the thread.
    rig.node.set_nonblocking(false).unwrap();
    (0..REPORTS).for_each(|_| rig.push(&Update::Output(rumble.clone())));
    rig.partner.close(FlowKey(2)).unwrap();
    let Rig { partner, kernel, node } = rig;
    drop((partner, node));
    kernel.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut report = [0; 64];
    (0..REPORTS).for_each(|_| _ = kernel.recv(&mut report).unwrap());
    assert_eq!(report[..5], [2, 3, 0, 0x40, 0x80]);
    kernel.recv(&mut report).expect("the last report arrives");
    assert_eq!(report[..5], [2, 3, 0, 0, 0]);
}
