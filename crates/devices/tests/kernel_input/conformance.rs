//! Both partners do what every partner must. What they were told is not compared here: the kernel keeps no
//! more than a few events for a far side that does not read (the other tests compare it).

use crate::needs_uinput;
use crate::rig::*;
use contract::{DeviceClass, Direction, FlowTemplate, Partner, Role};
use devices::evdev::{Evdev, Uinput};
use sys::input::Event;
use sys::input::code::*;
use testkit::partner::{Harness, conforms};
use wire::formats::evdev::Update;

/// A partner, and what its far side does to give it a message.
struct Ends<F> {
    partner: Box<dyn Partner>,
    /// What the first message, a snapshot, says.
    first: Option<Update>,
    say: F,
    said: i32,
}

impl<F: FnMut(i32) -> Vec<Event>> Harness for Ends<F> {
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
        self.said += 1;
        Some(Update::Frame(to_format(&(self.say)(self.said))).to_bytes())
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
        let say = move |said| {
            let events = vec![key(KEY_A, said % 2)];
            device.say(&events);
            events
        };
        let first = Some(Update::Snapshot(Vec::new()));
        Ends { partner: Evdev.partner(opened).unwrap(), first, say, said: 0 }
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
            let say = move |said| {
                let events = vec![Event::new(kind, code, said % 2)];
                application.write(&events);
                events
            };
            let lights = properties.codes(EV_LED);
            let first: Vec<_> = lights.iter().map(|light| Event::new(EV_LED, light, 0)).collect();
            Ends {
                partner: Uinput.partner(made).unwrap(),
                first: Some(Update::Snapshot(to_format(&first))),
                say,
                said: 0,
            }
        });
    }
}
