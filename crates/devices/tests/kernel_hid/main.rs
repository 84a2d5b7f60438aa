//! Both sides of `hid` on a real kernel: a device made with /dev/uhid is shared from its `hidraw` node, and copied with /dev/uhid. All
//! tests need /dev/uhid and are skipped without it. `tests/vm/cargo-tests` runs them in the virtual machine.

use contract::{
    Attributes, Ctl, DeviceClass, DeviceSpec, Direction, FlowClass, FlowKey, FlowTemplate, Format, Opened,
    Options, Partner, PartnerError, Pull, Pulled, Pushed, Role,
};
use devices::hid::Hid;
use rustix::fs::{Mode, OFlags};
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use testkit::partner::{Harness, conforms};
use wire::formats::hid::Update;

/// Time after which a test that waits fails.
const WATCHDOG: Duration = Duration::from_secs(60);
const MADE: &str = "/sys/devices/virtual/misc/uhid";
/// Two axes and eight buttons in report 1, eight lights in report 2.
const PAD: [u8; 47] = [
    5, 1, 9, 5, 0xa1, 1, 0x85, 1, 9, 0x30, 9, 0x31, 0x15, 0, 0x26, 0xff, 0, 0x75, 8, 0x95, 2, 0x81, 2, 5, 9,
    0x19, 1, 0x29, 8, 0x25, 1, 0x75, 1, 0x95, 8, 0x81, 2, 0x85, 2, 6, 0, 0xff, 9, 1, 0x91, 2, 0xc0,
];

/// Tests make devices one at a time: a device is found as the newest.
static MAKING: Mutex<()> = Mutex::new(());

fn open(path: impl AsRef<Path>) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path.as_ref(), flags, Mode::empty())?)
}

/// Checks that this kernel can make HID devices. The kernel of the virtual machine must.
fn has_uhid() -> bool {
    let found = open("/dev/uhid").is_ok();
    assert!(found || std::env::var_os("LAB_VM").is_none(), "the lab's machine has no /dev/uhid");
    if !found {
        testkit::skip::until_vm("no /dev/uhid that this user may write to");
    }
    found
}

fn until<T>(mut find: impl FnMut() -> Option<T>, what: &str) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = find() {
            return found;
        }
        assert!(start.elapsed() < WATCHDOG, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A device made with the kernel's calls, and its `hidraw` node.
struct Device {
    uhid: OwnedFd,
    path: String,
}

/// The `hidraw` nodes of the devices that programs have made.
fn made() -> Vec<OsString> {
    let entries = std::fs::read_dir(MADE).into_iter().flatten().flatten();
    let nodes =
        entries.flat_map(|entry| std::fs::read_dir(entry.path().join("hidraw")).into_iter().flatten());
    nodes.flatten().map(|node| node.file_name()).collect()
}

/// Waits for a `hidraw` node that was not there before, and until a program can open it: udev may still be setting its owner.
fn newest(before: &[OsString]) -> (String, OwnedFd) {
    let find = || made().into_iter().find(|name| !before.contains(name));
    let path = format!("/dev/{}", until(find, "the kernel makes a hidraw node").to_str().unwrap());
    let node = until(|| open(&path).ok(), "a program can open the node");
    (path, node)
}

impl Device {
    fn plug_in(name: &str) -> Device {
        let _making = MAKING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let before = made();
        let uhid = open("/dev/uhid").unwrap();
        let mut event = 11_u32.to_ne_bytes().to_vec();
        for (text, length) in [(name, 128), ("test/input0", 64), ("", 64)] {
            event.extend(text.bytes());
            event.resize(event.len() + length - text.len(), 0);
        }
        event.extend([PAD.len() as u16, 3].into_iter().flat_map(u16::to_ne_bytes));
        event.extend([0x1234_u32, 0x5678, 0x111, 0].into_iter().flat_map(u32::to_ne_bytes));
        event.extend(PAD);
        rustix::io::write(&uhid, &event).unwrap();
        let (path, _) = newest(&before);
        Device { uhid, path }
    }

    fn send(&self, report: &[u8]) {
        let mut event = 12_u32.to_ne_bytes().to_vec();
        event.extend((report.len() as u16).to_ne_bytes());
        event.extend(report);
        rustix::io::write(&self.uhid, &event).unwrap();
    }

    /// Waits for an output report.
    fn received(&self) -> Vec<u8> {
        let mut event = vec![0; 4376];
        until(
            || {
                let length = rustix::io::read(&self.uhid, event.as_mut_slice()).ok()?;
                let size = u16::from_ne_bytes([event[4 + 4096], event[4 + 4097]]);
                (length > 4 && event[0] == 6).then(|| event[4..4 + usize::from(size)].to_vec())
            },
            "the device gets an output report",
        )
    }
}

fn spec(target: &str) -> DeviceSpec {
    let options = Options::check(Hid.options(), []).unwrap();
    DeviceSpec { class: "hid".into(), target: target.into(), options }
}

fn shared(device: &Device) -> Opened {
    Hid.open(&spec(&device.path), Role::Device, None).unwrap()
}

/// A copy of a device, and the `hidraw` node that programs open.
fn copied(device: &Device) -> (Opened, OwnedFd) {
    let _making = MAKING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let known = shared(device).description;
    let before = made();
    let made = Hid.open(&spec(""), Role::Application, Some(&known)).unwrap();
    (made, newest(&before).1)
}

fn template(direction: Direction) -> FlowTemplate {
    FlowTemplate { direction, format: Format::Hid, class: FlowClass::State }
}

fn opened(made: Opened) -> Box<dyn Partner> {
    let mut partner = Hid.partner(made).unwrap();
    for direction in [Direction::Out, Direction::In] {
        partner.open(&template(direction), &Attributes::default()).unwrap();
    }
    partner
}

fn pull(partner: &mut dyn Partner) -> Update {
    until(
        || match partner.pull(FlowKey(1), Pull::Yours).unwrap() {
            Pulled::Message(_, mut message) => Some(Update::parse(message.body.as_slice()).unwrap()),
            _ => None,
        },
        "a message",
    )
}

fn push(partner: &mut dyn Partner, update: &Update) {
    let message = contract::Message::new(contract::Time(1), update.to_bytes());
    assert!(matches!(partner.push(FlowKey(2), message), Ok(Pushed::Taken)));
}

fn read(program: &OwnedFd) -> Vec<u8> {
    let mut report = vec![0; 64];
    let length = until(|| rustix::io::read(program, report.as_mut_slice()).ok(), "a program reads a report");
    report.truncate(length);
    report
}

/// A partner, and a function by which its far side makes it send a message.
struct FarSide<F> {
    partner: Box<dyn Partner>,
    /// The first message, a snapshot.
    first: Option<Update>,
    emit: F,
    emitted: u8,
    takes: fn(u8) -> Update,
}

impl<F: FnMut(u8) -> Update> Harness for FarSide<F> {
    fn partner(&mut self) -> &mut dyn Partner {
        self.partner.as_mut()
    }

    fn template(&self, direction: Direction) -> Option<FlowTemplate> {
        Some(template(direction))
    }

    fn feed(&mut self) -> Option<Vec<u8>> {
        if let Some(first) = self.first.take() {
            return Some(first.to_bytes());
        }
        self.emitted += 1;
        Some((self.emit)(self.emitted).to_bytes())
    }

    fn end(&mut self) -> bool {
        false
    }

    fn body(&self, number: u64) -> Vec<u8> {
        (self.takes)(number as u8).to_bytes()
    }

    /// The kernel queues only a few reports for a side that does not read; the other tests compare them.
    fn taken(&mut self) -> Option<Vec<u8>> {
        None
    }
}

#[test]
fn a_device_conforms() {
    if !has_uhid() {
        return;
    }
    conforms(|| {
        let device = Device::plug_in("conforming");
        let partner = Hid.partner(shared(&device)).unwrap();
        let emit = move |number| {
            let report = vec![1, number, 0x80, 0];
            device.send(&report);
            Update::Input(report)
        };
        let first = Some(Update::Snapshot(Vec::new()));
        FarSide { partner, first, emit, emitted: 0, takes: |number| Update::Output(vec![2, number]) }
    });
}

#[test]
fn a_copy_conforms() {
    if !has_uhid() {
        return;
    }
    conforms(|| {
        let device = Device::plug_in("conforming copy");
        let (made, program) = copied(&device);
        let partner = Hid.partner(made).unwrap();
        let emit = move |number| {
            let report = vec![2, number];
            rustix::io::write(&program, &report).unwrap();
            Update::Output(report)
        };
        let first = Some(Update::Snapshot(Vec::new()));
        FarSide { partner, first, emit, emitted: 0, takes: |number| Update::Input(vec![1, number, 0x80, 0]) }
    });
}

#[test]
fn reports_cross_and_a_copy_goes_neutral() {
    if !has_uhid() {
        return;
    }
    let device = Device::plug_in("crossing");
    let mut source = opened(shared(&device));
    let (made, program) = copied(&device);
    let mut sink = opened(made);
    assert_eq!(pull(source.as_mut()), Update::Snapshot(Vec::new()));
    assert_eq!(pull(sink.as_mut()), Update::Snapshot(Vec::new()));
    for report in [vec![1, 0x80, 0x7f, 0], vec![1, 0xff, 0x00, 0b101]] {
        device.send(&report);
        let update = pull(source.as_mut());
        assert_eq!(update, Update::Input(report.clone()));
        push(sink.as_mut(), &update);
        assert_eq!(read(&program), report);
    }
    rustix::io::write(&program, &[2, 7]).unwrap();
    let update = pull(sink.as_mut());
    push(source.as_mut(), &update);
    assert_eq!(device.received(), [2, 7]);
    sink.ctl(FlowKey(2), Ctl::Neutral).unwrap();
    assert_eq!(read(&program), [1, 0x80, 0x80, 0]);
}

#[test]
fn an_unplugged_device_is_neutral_then_gone_and_found_again() {
    if !has_uhid() {
        return;
    }
    let device = Device::plug_in("returning");
    let known = shared(&device);
    let mut source = opened(shared(&device));
    assert_eq!(pull(source.as_mut()), Update::Snapshot(Vec::new()));
    for report in [vec![1, 0x80, 0x80, 0], vec![1, 0x80, 0x80, 2]] {
        device.send(&report);
        assert_eq!(pull(source.as_mut()), Update::Input(report));
    }
    drop(device);
    assert_eq!(pull(source.as_mut()), Update::Input(vec![1, 0x80, 0x80, 0]));
    assert!(matches!(source.pull(FlowKey(1), Pull::Yours), Err(PartnerError::Gone(_))));
    assert!(Hid.reopen(&known.spec, Role::Device, &known.description).is_err());
    let device = Device::plug_in("returning");
    let found = until(|| Hid.reopen(&known.spec, Role::Device, &known.description).ok(), "it is found again");
    let mut source = opened(found);
    assert_eq!(pull(source.as_mut()), Update::Snapshot(Vec::new()));
    device.send(&[1, 0, 0, 1]);
    assert_eq!(pull(source.as_mut()), Update::Input(vec![1, 0, 0, 1]));
}
