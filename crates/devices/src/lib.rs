//! Device classes: one folder each, with the device side and the application side together.
//!
//! [`DEVICES`] is the table of all classes, and [`spec::parse`] parses `kind:target,option=value`. Help, documentation
//! and checks use the table. To add a class, add a folder and a line to the table.

pub mod address;
// Without a sound library there is no sound thread, and nothing calls its half.
#[cfg_attr(not(feature = "media"), allow(dead_code))]
pub mod audio;
mod backlog;
mod bgrx;
pub mod block;
mod clipboard;
mod damage;
pub mod evdev;
pub mod exec;
pub mod fb;
pub mod file;
mod fitting;
mod flows;
#[cfg_attr(not(feature = "media"), allow(dead_code))]
mod helper_thread;
pub mod hid;
pub mod iscsi;
mod keys;
mod local_socket;
pub mod midi;
pub mod mjpeg;
pub mod nbd;
pub mod null;
mod pace;
pub mod pattern;
#[cfg_attr(not(feature = "media"), allow(dead_code))]
pub mod pipewire;
mod pixels;
mod plain;
mod portion;
mod positions;
mod received;
pub mod rfb;
pub mod serial;
mod sessions;
mod side;
#[cfg(feature = "media")]
mod signals;
#[cfg_attr(not(feature = "media"), allow(dead_code))]
mod slots;
pub mod socket;
pub mod spec;
pub mod spnav;
pub mod stdio;
mod stream;
#[cfg(feature = "media")]
mod stream_parameter;
pub mod tty;
pub mod v4l2;
pub mod wayland;
pub mod x11;
pub mod y4m;

use contract::DeviceClass;

/// All device classes.
pub static DEVICES: &[&dyn DeviceClass] = &[
    &evdev::Evdev,
    &evdev::Uinput,
    &hid::Hid,
    &spnav::Spnav,
    &midi::Midi,
    &audio::Audio,
    &serial::Serial,
    &serial::Pty,
    &tty::Tty,
    &block::Block,
    &nbd::Nbd,
    &iscsi::Iscsi,
    &file::File,
    &stdio::Stdin,
    &stdio::Stdout,
    &exec::Exec,
    &socket::Unix,
    &socket::Tcp,
    &pattern::Pattern,
    &v4l2::V4l2,
    &pipewire::PipeWire,
    &mjpeg::Mjpeg,
    &y4m::Y4m,
    &rfb::Rfb,
    &fb::Fb,
    &x11::X11,
    &wayland::Wayland,
    &x11::Window,
    &null::Null,
];

/// Returns the class with this name.
pub fn find(name: &str) -> Option<&'static dyn DeviceClass> {
    DEVICES.iter().copied().find(|class| class.name() == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use contract::{Options, Role};
    use std::collections::BTreeSet;

    #[test]
    fn every_class_has_a_unique_name_a_role_and_a_doc() {
        let mut names = BTreeSet::new();
        for class in DEVICES {
            let name = class.name();
            assert!(names.insert(name), "two classes have the name {name}");
            assert!(!name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit()));
            assert!(class.has_role(Role::Device) || class.has_role(Role::Application), "{name} has no role");
            assert!(
                !class.entry().summary.is_empty() && !class.entry().summary.contains('\n'),
                "summary of {name}"
            );
            assert!(class.entry().doc.contains(name), "the doc of {name} does not name it");
        }
    }

    #[test]
    fn every_device_names_an_existing_application_class() {
        for class in DEVICES.iter().filter(|class| class.has_role(Role::Device)) {
            let name = class.application();
            let has_side = find(name).is_some_and(|found| found.has_role(Role::Application));
            assert!(has_side, "{} names `{name}`, which is no application class", class.name());
        }
        for (device, application) in [("evdev", "uinput"), ("serial", "pty"), ("pattern", "stdout")] {
            assert_eq!(find(device).map(|class| class.application()), Some(application));
        }
    }

    #[test]
    fn every_option_has_a_unique_name_and_a_valid_default() {
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
