//! The devices that nobody touches, and their events.

use crate::display::{Display, is_installed};
use crate::reliability::hosts::Use;
use crate::reliability::port::{End, Port, Written, gamepad, keyboard, serial_port};
use crate::reliability::subject::{Class, open_application};
use crate::reliability::unit::Unit;
use crate::setting::Failure;
use clap::ValueEnum;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// The longest wait for an event.
const PATIENCE: Duration = Duration::from_secs(3);

/// A class of devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// A keyboard (needs `/dev/uinput`)
    Keyboard,
    /// A gamepad in its centre (needs `/dev/uinput`)
    Gamepad,
    /// A serial port, two pseudo-terminals
    Serial,
    /// A desktop (needs `Xvfb`)
    Desktop,
}

impl Kind {
    /// Returns the classes that this machine can carry.
    pub(crate) fn carried() -> Vec<Kind> {
        let has_uinput = Path::new("/dev/uinput").exists();
        let is_carried = |kind: &Kind| match kind {
            Kind::Keyboard | Kind::Gamepad => has_uinput,
            Kind::Serial => true,
            Kind::Desktop => is_installed("Xvfb"),
        };
        [Kind::Keyboard, Kind::Gamepad, Kind::Serial, Kind::Desktop].into_iter().filter(is_carried).collect()
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Keyboard => "keyboard",
            Kind::Gamepad => "gamepad",
            Kind::Serial => "serial",
            Kind::Desktop => "desktop",
        }
    }
}

/// A device and its application.
pub(crate) struct Device {
    kind: Kind,
    hardware: Option<Port>,
    application: Option<Port>,
    /// Keeps the device's node open.
    _node: Option<File>,
    /// The screens of both hosts.
    _displays: Vec<Display>,
    used: Use,
    out: PathBuf,
    events: u64,
}

impl Device {
    pub(crate) fn new(kind: Kind, directory: &Path) -> Result<Device, Failure> {
        let out = directory.join(kind.name());
        let (mut hardware, mut node, mut displays) = (None, None, Vec::new());
        let mut plug = |made: (End, PathBuf)| -> Result<PathBuf, Failure> {
            let (end, path) = made;
            node = Some(File::options().read(true).write(true).open(&path)?);
            hardware = Some(Port::hardware(end));
            Ok(path)
        };
        let (device, application) = match kind {
            Kind::Keyboard => (format!("evdev:{}", plug(keyboard()?)?.display()), "uinput".into()),
            Kind::Gamepad => (format!("evdev:{}", plug(gamepad()?)?.display()), "uinput".into()),
            Kind::Serial => {
                (format!("serial:{}", plug(serial_port()?)?.display()), format!("pty:{}", out.display()))
            }
            Kind::Desktop => {
                let shared = Display::headless(1280, 720)?;
                let shown = Display::headless(1280, 720)?;
                let words = (format!("x11:{}", shared.name), format!("window:{}", shown.name));
                displays.extend([shared, shown]);
                words
            }
        };
        let used = Use { name: kind.name().into(), device, application, via: [None, None] };
        Ok(Device {
            kind,
            hardware,
            application: None,
            _node: node,
            _displays: displays,
            used,
            out,
            events: 0,
        })
    }

    pub(crate) fn used(&self) -> Use {
        self.used.clone()
    }

    /// Opens the application's node, if the device has events.
    pub(crate) fn open(&mut self, attached: &str) -> Result<(), Failure> {
        let class = match self.kind {
            Kind::Keyboard => Class::Input,
            Kind::Serial => Class::Serial,
            Kind::Gamepad | Kind::Desktop => return Ok(()),
        };
        self.application = Some(open_application(class, attached, &self.out)?.0);
        Ok(())
    }

    /// Returns true if [`Device::event`] works.
    pub(crate) fn has_events(&self) -> bool {
        self.application.is_some()
    }

    /// Makes an event of the device, and returns the time until the application has read it. A key that goes down goes up
    /// in the same event.
    pub(crate) fn event(&mut self) -> Result<Duration, Failure> {
        let (Some(hardware), Some(application)) = (&self.hardware, &self.application) else {
            return Err("this device has no events".into());
        };
        let unit = if self.kind == Kind::Serial { Unit::Line } else { Unit::Report };
        self.events += 1;
        let bytes = match unit {
            // All keys of the first round are pressed, those of the second released: press and release one.
            Unit::Report => [unit.bytes(0), unit.bytes(4)].concat(),
            _ => unit.bytes(self.events),
        };
        let (begun, mut read) = (Instant::now(), [0; 4096]);
        if hardware.write(&bytes, &AtomicBool::new(false)) != Written::All {
            return Err("the device takes no event".into());
        }
        loop {
            match application.read(&mut read) {
                Some(0) if begun.elapsed() > PATIENCE => return Err("the event does not arrive".into()),
                Some(0) => {}
                _ => break,
            }
        }
        let delay = begun.elapsed();
        // The rest of the event must not count as the next one.
        std::thread::sleep(Duration::from_millis(50));
        while application.read(&mut read) != Some(0) {}
        Ok(delay)
    }
}
