//! Runs the conformance suite on both partners. It does not compare the events that the far side receives, because the
//! kernel queues only a few for a side that does not read; the other tests compare them.

use crate::needs_uinput;
use crate::rig::*;
use contract::{DeviceClass, Direction, FlowTemplate, Partner, Role};
use devices::evdev::{Evdev, Uinput};
use sys::input::Event;
use sys::input::code::*;
use testkit::partner::{Harness, conforms};
use wire::formats::evdev::Update;

/// A partner, and a function by which its far side makes it send a message.
struct FarSide<F> {
    partner: Box<dyn Partner>,
    /// The first message, a snapshot.
    first: Option<Update>,
    emit: F,
    emitted: i32,
}

impl<F: FnMut(i32) -> Vec<Event>> Harness for FarSide<F> {
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
        Some(Update::Frame(to_format(&(self.emit)(self.emitted))).to_bytes())
    }

    fn end(&mut self) -> bool {
        false
    }

    fn body(&self, number: u64) -> Vec<u8> {
        let toggled = (number % 2) as i32;
        Update::Frame(to_format(&[Event::new(EV_LED, 1, toggled), key(KEY_A, toggled)])).to_bytes()
    }

    fn taken(&mut self) -> Option<Vec<u8>> {
        None
    }
}

#[test]
fn a_device_conforms() {
    needs_uinput!();
    conforms(|| {
        let device = Device::plug_in(&keyboard("conforming"));
        let opened = Evdev.open(&spec(&Evdev, &device.path, &[]), Role::Device, None).unwrap();
        let emit = move |number| {
            let events = vec![key(KEY_A, number % 2)];
            device.emit(&events);
            events
        };
        let first = Some(Update::Snapshot(Vec::new()));
        FarSide { partner: Evdev.partner(opened).unwrap(), first, emit, emitted: 0 }
    });
}

#[test]
fn a_node_conforms() {
    needs_uinput!();
    for (properties, code) in [(keyboard("conforming node"), 1), (gamepad("conforming pad"), FF_GAIN)] {
        conforms(move || {
            let device = Device::plug_in(&properties);
            let known = Evdev.open(&spec(&Evdev, &device.path, &[]), Role::Device, None).unwrap().description;
            let made = Uinput.open(&spec(&Uinput, "", &[]), Role::Application, Some(&known)).unwrap();
            let application = Application::open(made.description.summary.rsplit_once(" at ").unwrap().1);
            let kind = if code == FF_GAIN { EV_FF } else { EV_LED };
            let emit = move |number| {
                let events = vec![Event::new(kind, code, number % 2)];
                application.write(&events);
                events
            };
            let lights = properties.codes(EV_LED);
            let first: Vec<_> = lights.iter().map(|light| Event::new(EV_LED, light, 0)).collect();
            FarSide {
                partner: Uinput.partner(made).unwrap(),
                first: Some(Update::Snapshot(to_format(&first))),
                emit,
                emitted: 0,
            }
        });
    }
}
