//! Device classes, one folder a class, both sides together.
//!
//! [`DEVICES`] is the table of all classes; [`spec::parse`] takes apart what a user writes. Help, docs and checks derive
//! from the table. A new class is a folder and one line here.

mod bgrx;
mod damage;
pub mod evdev;
pub mod exec;
pub mod fb;
pub mod file;
mod flows;
pub mod mjpeg;
pub mod null;
mod pace;
pub mod pattern;
mod pixels;
mod plain;
pub mod rfb;
pub mod serial;
pub mod socket;
pub mod spec;
pub mod stdio;
mod stream;
pub mod v4l2;
pub mod x11;
pub mod y4m;

use contract::DeviceClass;

/// Every device class.
pub static DEVICES: &[&dyn DeviceClass] = &[
    &evdev::Evdev,
    &evdev::Uinput,
    &serial::Serial,
    &serial::Pty,
    &file::File,
    &stdio::Stdin,
    &stdio::Stdout,
    &exec::Exec,
    &socket::Unix,
    &socket::Tcp,
    &pattern::Pattern,
    &v4l2::V4l2,
    &mjpeg::Mjpeg,
    &y4m::Y4m,
    &rfb::Rfb,
    &fb::Fb,
    &x11::X11,
    &x11::Window,
    &null::Null,
];

/// The class of this name.
pub fn find(name: &str) -> Option<&'static dyn DeviceClass> {
    DEVICES.iter().copied().find(|class| class.name() == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use contract::{Options, Role};
    use std::collections::BTreeSet;

    #[test]
    fn every_class_has_a_name_of_its_own_a_side_and_a_doc() {
        let mut names = BTreeSet::new();
        for class in DEVICES {
            let name = class.name();
            assert!(names.insert(name), "two classes are called {name}");
            assert!(!name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit()));
            assert!(class.has_role(Role::Device) || class.has_role(Role::Application), "{name} has no side");
            assert!(!class.summary().is_empty() && !class.summary().contains('\n'), "summary of {name}");
            assert!(class.doc().contains(name), "the doc of {name} does not name it");
        }
    }

    #[test]
    fn every_device_names_an_application_side_that_there_is() {
        for class in DEVICES.iter().filter(|class| class.has_role(Role::Device)) {
            let name = class.application();
            let has_side = find(name).is_some_and(|found| found.has_role(Role::Application));
            assert!(has_side, "{} is to be attached as `{name}`", class.name());
        }
        for (device, application) in [("evdev", "uinput"), ("serial", "pty"), ("pattern", "stdout")] {
            assert_eq!(find(device).map(|class| class.application()), Some(application));
        }
    }

    #[test]
    fn every_option_has_a_name_of_its_own_and_a_default_that_it_takes() {
        for class in DEVICES {
            let mut names = BTreeSet::new();
            for option in class.options() {
                assert!(names.insert(option.name), "{}: two options {}", class.name(), option.name);
            }
            let defaults = Options::defaults(class.options());
            assert!(defaults.is_ok(), "{}: {defaults:?}", class.name());
        }
    }
}
