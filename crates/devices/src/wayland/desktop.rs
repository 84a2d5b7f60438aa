//! The setup of a client: the globals of a compositor, and its outputs.

use super::client::{Client, Event, Global, Object, protocol_error};
use super::protocol::{Interface, capture, output, pointer, registry};
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// The time limit for the answers of a compositor during setup.
pub(super) const SETUP_TIMEOUT: Duration = Duration::from_secs(5);

/// The most globals, and the most outputs among them, that are remembered.
const GLOBALS_MAX: usize = 1024;
const OUTPUTS_MAX: usize = 64;

/// An output: a monitor, or a window that shows a nested desktop.
#[derive(Debug, Clone)]
pub(super) struct Output {
    global: Global,
    pub(super) object: Object,
    /// Such as `HDMI-A-1`.
    pub(super) name: String,
    /// In pixels, before the output is turned.
    pub(super) size: (u32, u32),
    /// How the output is turned: quarter turns, and 4 if it is mirrored.
    pub(super) transform: u32,
}

impl Output {
    /// Processes an event of this output.
    pub(super) fn handle(&mut self, event: &mut Event) -> io::Result<()> {
        match event.number {
            output::GEOMETRY => {
                for _ in 0..5 {
                    event.number()?;
                }
                // The maker and the model.
                event.text()?;
                event.text()?;
                self.transform = event.number()? % 8;
            }
            output::MODE => {
                let (flags, size) = (event.number()?, (event.number()?, event.number()?));
                if flags & output::CURRENT != 0 {
                    self.size = size;
                }
            }
            output::NAME => self.name = event.text()?,
            _ => {}
        }
        Ok(())
    }

    /// Returns whether this is the output whose global the compositor has removed.
    pub(super) fn is(&self, global: u32) -> bool {
        self.global.name == global
    }

    /// Returns the size of its pictures, upright.
    pub(super) fn upright_size(&self) -> (u32, u32) {
        let (width, height) = self.size;
        if self.transform.is_multiple_of(2) { (width, height) } else { (height, width) }
    }
}

/// A compositor, and its offers.
#[derive(Debug)]
pub(super) struct Desktop {
    pub(super) client: Client,
    globals: Vec<Global>,
    pub(super) outputs: Vec<Output>,
}

impl Desktop {
    /// Asks the compositor at a connected socket for its globals and its outputs.
    pub(super) fn query(socket: OwnedFd, deadline: Instant) -> io::Result<Desktop> {
        let mut client = Client::new(socket)?;
        let mut globals = Vec::new();
        client.wait(deadline, |mut event| {
            if (event.interface, event.number) == (Interface::Registry, registry::GLOBAL) {
                let (name, interface, version) = (event.number()?, event.text()?, event.number()?);
                globals.push(Global { name, interface, version });
            }
            match globals.len() {
                0..=GLOBALS_MAX => Ok(()),
                _ => Err(protocol_error("it has too many globals")),
            }
        })?;
        let mut outputs = Vec::new();
        for global in globals.iter().filter(|global| global.interface == Interface::Output.name()) {
            if outputs.len() >= OUTPUTS_MAX {
                break;
            }
            let object = client.bind(global, Interface::Output, global.version.min(output::VERSION))?;
            // Outputs of an older version have no name of their own.
            let name = (outputs.len() + 1).to_string();
            outputs.push(Output { global: global.clone(), object, name, size: (0, 0), transform: 0 });
        }
        client.wait(deadline, |mut event| {
            let of = outputs.iter_mut().find(|output| output.object == event.object);
            of.map_or(Ok(()), |output| output.handle(&mut event))
        })?;
        Ok(Desktop { client, globals, outputs })
    }

    /// Returns the global with an interface, in this version or a newer one.
    fn global(&self, interface: Interface, version: u32) -> Option<&Global> {
        let is = |global: &&Global| global.interface == interface.name() && global.version >= version;
        self.globals.iter().find(is)
    }

    /// Returns the output with this name; the first one for an empty name.
    pub(super) fn output(&self, name: &str) -> Option<&Output> {
        self.outputs.iter().find(|output| name.is_empty() || output.name == name)
    }

    /// Returns the first interface that pictures need and this compositor lacks.
    pub(super) fn missing_for_pictures(&self) -> Option<&'static str> {
        self.missing(&[(Interface::CaptureManager, capture::VERSION), (Interface::Memory, 1)])
    }

    /// Returns the first interface that input needs and this compositor lacks.
    pub(super) fn missing_for_input(&self) -> Option<&'static str> {
        let needed = [
            (Interface::KeyboardManager, 1),
            (Interface::PointerManager, pointer::VERSION),
            (Interface::Seat, 1),
        ];
        self.missing(&needed)
    }

    fn missing(&self, needed: &[(Interface, u32)]) -> Option<&'static str> {
        let missing = needed.iter().find(|(interface, version)| self.global(*interface, *version).is_none());
        missing.map(|(interface, _)| interface.name())
    }

    /// Binds a global.
    pub(super) fn bind(&mut self, interface: Interface, version: u32) -> io::Result<Object> {
        let lacks = || io::Error::other(format!("the compositor lacks {}", interface.name()));
        let global = self.global(interface, version).cloned().ok_or_else(lacks)?;
        self.client.bind(&global, interface, version)
    }
}
