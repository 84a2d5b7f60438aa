//! Test rig: devices made with the kernel's calls, applications that open nodes, and the two partners connected to each
//! other.

use contract::{
    Attributes, Ctl, CtlReply, Description, DeviceClass, DeviceSpec, Direction, FlowClass, FlowKey,
    FlowTemplate, Format, Message, Opened, Options, Partner, PartnerResult, Pull, Pulled, Pushed, Role,
};
use devices::evdev::{Evdev, Properties, Uinput};
use rustix::fs::{Mode, OFlags};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};
use sys::input::code::*;
use sys::input::{Axis, Bits, Event, Ids, evdev, read_events, uinput, write_events};
use wire::formats::evdev::{self as format, Update};

/// Time after which a test that waits fails.
pub(crate) const WATCHDOG: Duration = Duration::from_secs(60);

/// Checks that this kernel can make input devices. The kernel of the virtual machine must.
pub(crate) fn has_uinput() -> bool {
    let found = open("/dev/uinput").is_ok();
    let is_lab = std::env::var_os("LAB_VM").is_some();
    assert!(found || !is_lab, "the lab's machine has no /dev/uinput");
    if !found {
        testkit::skip::until_vm("no /dev/uinput that this user may write to");
    }
    found
}

/// Skips the test on a kernel without `/dev/uinput`.
#[macro_export]
macro_rules! needs_uinput {
    () => {
        if !$crate::rig::has_uinput() {
            return;
        }
    };
}

pub(crate) fn open(path: impl AsRef<Path>) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path.as_ref(), flags, Mode::empty())?)
}

pub(crate) fn key(code: u16, value: i32) -> Event {
    Event::new(EV_KEY, code, value)
}

pub(crate) fn abs(code: u16, value: i32) -> Event {
    Event::new(EV_ABS, code, value)
}

pub(crate) fn rel(code: u16, value: i32) -> Event {
    Event::new(EV_REL, code, value)
}

pub(crate) fn axis(minimum: i32, maximum: i32, fuzz: i32, resolution: i32) -> Axis {
    Axis { value: 0, minimum, maximum, fuzz, flat: 4, resolution }
}

fn named(name: &str) -> Properties {
    let mut properties = Properties::default();
    properties.name = name.into();
    properties.phys = format!("test-{name}/input0");
    properties.kinds.set(EV_SYN, true);
    properties.ids = Ids { bus: 3, vendor: 0x1234, product: 0x5678, version: 0x0111 };
    properties
}

pub(crate) fn keyboard(name: &str) -> Properties {
    let mut properties = named(name);
    properties.set_codes(EV_KEY, (1..=127).collect());
    properties.set_codes(EV_MSC, Bits::from_iter([4]));
    properties.set_codes(EV_LED, Bits::from_iter([0, 1, 2]));
    properties.set_codes(EV_REP, Bits::new());
    properties.repeat_ms = Some([180, 40]);
    properties
}

pub(crate) fn mouse(name: &str) -> Properties {
    let mut properties = named(name);
    properties.set_codes(EV_KEY, (BTN_LEFT..BTN_LEFT + 5).collect());
    properties.set_codes(EV_REL, Bits::from_iter([0, 1, 6, 8, 11, 12]));
    properties.set_codes(EV_MSC, Bits::from_iter([4]));
    properties
}

pub(crate) fn gamepad(name: &str) -> Properties {
    let mut properties = named(name);
    properties.set_codes(EV_KEY, (BTN_GAMEPAD..BTN_GAMEPAD + 15).collect());
    properties.kinds.set(EV_ABS, true);
    for stick in [ABS_X, ABS_Y, ABS_RX, ABS_RY] {
        properties.axes.insert(stick, axis(-32768, 32767, 16, 0));
    }
    for trigger in [ABS_Z, ABS_RZ] {
        properties.axes.insert(trigger, axis(0, 255, 0, 0));
    }
    for hat in [ABS_HAT0X, ABS_HAT0X + 1] {
        properties.axes.insert(hat, Axis { flat: 0, ..axis(-1, 1, 0, 0) });
    }
    let square = 0x58;
    properties.set_codes(EV_FF, Bits::from_iter([FF_RUMBLE, FF_PERIODIC, square, FF_GAIN]));
    properties.effects_max = 16;
    properties
}

pub(crate) fn touchpad(name: &str) -> Properties {
    let mut properties = named(name);
    properties.props = Bits::from_iter([INPUT_PROP_POINTER]);
    properties.set_codes(EV_KEY, Bits::from_iter([BTN_LEFT, 0x145, BTN_TOUCH, 0x14d]));
    properties.kinds.set(EV_ABS, true);
    for code in [ABS_X, ABS_Y, ABS_MT_POSITION_X, ABS_MT_POSITION_X + 1] {
        properties.axes.insert(code, axis(0, 4000, 0, 40));
    }
    properties.axes.insert(ABS_MT_SLOT, Axis { flat: 0, ..axis(0, 4, 0, 0) });
    properties.axes.insert(ABS_MT_TRACKING_ID, Axis { flat: 0, ..axis(0, 65535, 0, 0) });
    properties
}

/// A device made with the kernel's calls, and its event node.
pub(crate) struct Device {
    pub(crate) driver: OwnedFd,
    pub(crate) path: String,
}

impl Device {
    pub(crate) fn plug_in(properties: &Properties) -> Device {
        let driver = open("/dev/uinput").unwrap();
        let fd = driver.as_fd();
        uinput::set_up(fd, &properties.name, properties.ids, properties.effects_max).unwrap();
        uinput::set_physical_location(fd, &CString::new(properties.phys.clone()).unwrap()).unwrap();
        for property in properties.props.iter() {
            uinput::enable_property(fd, property).unwrap();
        }
        for kind in properties.kinds.iter() {
            uinput::enable_kind(fd, kind).unwrap();
            for code in properties.codes(kind).iter() {
                uinput::enable_code(fd, kind, code).unwrap();
            }
        }
        for (code, axis) in &properties.axes {
            uinput::set_axis(fd, *code, *axis).unwrap();
        }
        uinput::create(fd).unwrap();
        let name = uinput::system_name(fd).unwrap();
        let event = std::fs::read_dir(format!("/sys/devices/virtual/input/{name}"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .find(|name| name.starts_with("event"))
            .unwrap();
        let device = Device { driver, path: format!("/dev/input/{event}") };
        if let Some([delay, period]) = properties.repeat_ms {
            device.emit(&[Event::new(EV_REP, 0, delay as i32), Event::new(EV_REP, 1, period as i32)]);
            drain(device.driver.as_fd());
        }
        device
    }

    /// Emits one frame.
    pub(crate) fn emit(&self, events: &[Event]) {
        let frame: Vec<Event> = events.iter().copied().chain([Event::REPORT]).collect();
        write_events(self.driver.as_fd(), &frame).unwrap();
    }

    pub(crate) fn unplug(&self) {
        uinput::destroy(self.driver.as_fd()).unwrap();
    }

    /// Returns the feedback that the device received.
    pub(crate) fn received(&self) -> Vec<Event> {
        drain(self.driver.as_fd())
    }
}

/// Reads all available events.
pub(crate) fn drain(descriptor: BorrowedFd<'_>) -> Vec<Event> {
    let mut events = Vec::new();
    while read_events(descriptor, &mut events).is_ok_and(|count| count > 0) {}
    events.into_iter().map(|(_, event)| event).collect()
}

/// An unmodified application that has a node open.
pub(crate) struct Application {
    pub(crate) node: OwnedFd,
}

impl Application {
    pub(crate) fn open(path: &str) -> Application {
        // udev may still be setting the node's owner.
        let start = Instant::now();
        loop {
            match open(path) {
                Ok(node) => return Application { node },
                Err(error) if start.elapsed() > WATCHDOG => panic!("{path}: {error}"),
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    pub(crate) fn read(&self) -> Vec<Event> {
        drain(self.node.as_fd())
    }

    pub(crate) fn write(&self, events: &[Event]) {
        let frame: Vec<Event> = events.iter().copied().chain([Event::REPORT]).collect();
        write_events(self.node.as_fd(), &frame).unwrap();
    }

    pub(crate) fn held(&self) -> Bits {
        evdev::state(self.node.as_fd(), EV_KEY).unwrap()
    }

    pub(crate) fn lights(&self) -> Bits {
        evdev::state(self.node.as_fd(), EV_LED).unwrap()
    }

    pub(crate) fn axis(&self, code: u16) -> i32 {
        evdev::axis(self.node.as_fd(), code).unwrap().value
    }
}

pub(crate) fn template(direction: Direction) -> FlowTemplate {
    FlowTemplate { direction, format: Format::Evdev, class: FlowClass::State }
}

pub(crate) fn spec(class: &dyn DeviceClass, target: &str, options: &[(&str, &str)]) -> DeviceSpec {
    let options = Options::check(class.options(), options.iter().copied()).unwrap();
    DeviceSpec { class: class.name().into(), target: target.into(), options }
}

/// A partner with its flows open.
pub(crate) struct End {
    pub(crate) partner: Box<dyn Partner>,
    pub(crate) out: Option<FlowKey>,
    pub(crate) into: Option<FlowKey>,
}

impl End {
    pub(crate) fn new(class: &dyn DeviceClass, opened: Opened) -> End {
        let mut partner = class.partner(opened).unwrap();
        let mut open = |direction| partner.open(&template(direction), &Attributes::default()).ok();
        let (out, into) = (open(Direction::Out), open(Direction::In));
        End { partner, out, into }
    }

    pub(crate) fn pull(&mut self) -> PartnerResult<Option<Message>> {
        match self.partner.pull(self.out.unwrap(), Pull::Yours)? {
            Pulled::Message(_, message) => Ok(Some(message)),
            Pulled::Nothing => Ok(None),
            other => panic!("pulled {other:?}"),
        }
    }

    pub(crate) fn push(&mut self, message: Message) {
        match self.partner.push(self.into.unwrap(), message) {
            Ok(Pushed::Taken) => {}
            other => panic!("pushed: {other:?}"),
        }
    }

    pub(crate) fn ctl(&mut self, operation: Ctl<'_>) -> CtlReply {
        self.partner.ctl(FlowKey::DEFAULT, operation).unwrap()
    }

    pub(crate) fn figure(&mut self, name: &str) -> f64 {
        let CtlReply::Report(report) = self.ctl(Ctl::Report) else { panic!("no report") };
        report.iter().find(|(known, _)| *known == name).unwrap_or_else(|| panic!("no figure {name}")).1
    }
}

/// A device, its partner, the node's partner, and an application on the node.
pub(crate) struct Joined {
    pub(crate) device: Device,
    pub(crate) known: Description,
    pub(crate) source: End,
    pub(crate) sink: End,
    pub(crate) node_path: String,
    pub(crate) application: Application,
}

impl Joined {
    pub(crate) fn new(properties: &Properties, options: &[(&str, &str)]) -> Joined {
        let device = Device::plug_in(properties);
        let opened = Evdev.open(&spec(&Evdev, &device.path, options), Role::Device, None).unwrap();
        let known = opened.description.clone();
        let made = Uinput.open(&spec(&Uinput, "", &[]), Role::Application, Some(&known)).unwrap();
        let node_path: String = made.description.summary.rsplit_once(" at ").unwrap().1.into();
        let application = Application::open(&node_path);
        let source = End::new(&Evdev, opened);
        let sink = End::new(&Uinput, made);
        let mut joined = Joined { device, known, source, sink, node_path, application };
        joined.carry();
        joined.application.read();
        joined
    }

    /// Carries all messages in both directions. Returns those of the device.
    pub(crate) fn carry(&mut self) -> Vec<Message> {
        let mut carried = Vec::new();
        loop {
            let mut is_idle = true;
            while let Some(message) = self.source.pull().unwrap() {
                carried.push(message.clone());
                self.sink.push(message);
                is_idle = false;
            }
            while self.sink.out.is_some()
                && let Some(message) = self.sink.pull().unwrap()
            {
                self.source.push(message);
                is_idle = false;
            }
            if is_idle {
                return carried;
            }
        }
    }

    /// Emits frames on the device and carries each. Returns the events that the application read.
    pub(crate) fn type_in(&mut self, frames: &[&[Event]]) -> Vec<Event> {
        for frame in frames {
            self.device.emit(frame);
            self.carry();
        }
        self.application.read()
    }
}

/// Converts events for a message.
pub(crate) fn to_format(events: &[Event]) -> Vec<format::Event> {
    events.iter().map(|event| format::Event::new(event.kind, event.code, event.value)).collect()
}

/// Decodes a message.
pub(crate) fn update(message: &Message) -> Update {
    Update::parse(message.body.clone().as_slice()).unwrap()
}

/// Calls `step` until it returns a value.
pub(crate) fn until<T>(expected: &str, mut step: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = step() {
            return answer;
        }
        assert!(start.elapsed() < WATCHDOG, "still waiting for {expected}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
