//! `tty:NAME`: a serial port with its lines for unmodified programs. There are two ways to make the terminal. `vhci` is taken
//! wherever the kernel has it.
//!
//! | way | the terminal |
//! |---|---|
//! | `vhci` | a simulated FTDI adapter on the kernel's virtual USB host controller; the kernel's own driver makes the terminal |
//! | `cuse` | a character device in user space, which behaves as a terminal |
//!
//! | module | content |
//! |---|---|
//! | `vhci` | plugs an adapter in (broker) |
//! | `adapter` | a thread of the broker that answers the kernel, whatever happens to the worker |
//! | `suspend` | the computer's suspend, during which the adapter is out of its port |
//! | `chip`, `usbip` | the adapter's behaviour, the kernel's packets; no I/O |
//! | `cuse` | the second way: its thread, behaviour and packets |
//! | `uplink` | the messages between the thread of either way and the worker |
//! | `terminal` | the worker's partner: passes messages between the flows and the thread |

mod adapter;
mod chip;
mod cuse;
mod suspend;
mod terminal;
#[cfg(test)]
mod test_worker;
#[cfg(test)]
mod tests;
mod uplink;
mod usbip;
mod vhci;

pub use adapter::fuzz;
pub use cuse::fuzz as fuzz_cuse;
pub(crate) use vhci::own_serial_number;

use crate::plain::{self, os};
use crate::serial::flows;
use crate::serial::path_link::{self, PathLink};
use crate::side::wrong_side;
use contract::{
    Description, DeviceClass, DeviceError, DeviceSpec, FlowOffer, Format, ModuleEntry, NodeName, Opened,
    Partner, Role,
};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use terminal::Terminal;

/// The class `tty`, the application side of a serial port.
#[derive(Debug)]
pub struct Tty;

/// Name of the class.
const CLASS: &str = "tty";

/// Longest name of an adapter.
const NAME_BYTES_MAX: usize = 64;

/// Directory of udev's links.
const UDEV_LINKS: &str = "/dev/serial/by-id/";
/// End of udev's link to the only port of an adapter.
const LINK_END: &str = "-if00-port0";

/// Returns the start of udev's links to Outboard's adapters.
fn link_start() -> String {
    format!("{UDEV_LINKS}usb-{}_{}_", chip::MANUFACTURER, chip::PRODUCT.replace(' ', "_"))
}

/// Returns the name of the adapter: the target, or the last part of its path. A claim to the node replaces a name by udev's link.
fn name(spec: &DeviceSpec) -> Result<&str, DeviceError> {
    let by_udev = spec.target.strip_prefix(&link_start()).and_then(|rest| rest.strip_suffix(LINK_END));
    let name = by_udev.unwrap_or_else(|| spec.target.rsplit('/').next().unwrap_or_default());
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(is_plain) {
        return Err(DeviceError::Spec {
            what: format!("`tty:{}`", spec.target),
            problem: "name the terminal with letters, digits, `_`, `-` and `.`, such as `tty:board` or `tty:/tmp/board`"
                .into(),
        });
    }
    Ok(name)
}

/// Returns the link that udev makes for the adapter with this name.
fn udev_link(name: &str) -> PathBuf {
    format!("{}{name}{LINK_END}", link_start()).into()
}

/// Returns the link that Outboard makes, if the target is a path and not one of udev's.
fn own_link(spec: &DeviceSpec) -> Option<&Path> {
    let is_own = spec.target.contains('/') && !spec.target.starts_with(UDEV_LINKS);
    is_own.then_some(Path::new(&spec.target))
}

/// Returns the link by which programs find the terminal.
fn link(spec: &DeviceSpec, name: &str) -> PathBuf {
    own_link(spec).map_or_else(|| udev_link(name), PathBuf::from)
}

/// Plugs a simulated adapter in. Returns its terminal, and the worker's end of its connection.
fn plug_adapter(spec: &DeviceSpec, name: &str) -> Result<(PathBuf, OwnedFd), DeviceError> {
    let (path, serial_number) = (own_link(spec).map(PathBuf::from), name.to_string());
    let link = Mutex::new(None);
    // Plugged in again after a suspend, the adapter may have another terminal.
    let plug = move |kernel: OwnedFd| {
        let mut link = link.lock().unwrap_or_else(PoisonError::into_inner);
        drop(link.take());
        let terminal = vhci::plug(&kernel)?;
        if let Some(path) = &path {
            // A link to another adapter of ours is stale, since its own terminal is gone; one to a port of this host is its user's.
            let is_live = |_: &_, path: &Path| {
                std::fs::read_link(path).is_ok_and(|target| {
                    target != terminal
                        && own_serial_number(&target)
                            .map_or_else(|| target.exists(), |number| number == serial_number)
                })
            };
            path_link::create(path, &terminal, CLASS, "/dev/ttyUSB", is_live)?;
            *link = Some(PathLink { path: path.clone(), target: terminal.clone() });
        }
        Ok(terminal)
    };
    let announcements = suspend::announcements()
        .map_err(|error| os("watching for the suspend of the computer".into(), error, None))?;
    adapter::start(name.into(), Arc::new(plug), announcements)
}

/// Makes a character device in user space, and its link: udev makes none.
fn make_terminal(spec: &DeviceSpec, name: &str) -> Result<(PathBuf, OwnedFd), DeviceError> {
    let (terminal, worker) = cuse::plug(name)?;
    let path = link(spec, name);
    if path.starts_with(UDEV_LINKS) {
        std::fs::create_dir_all(UDEV_LINKS)
            .map_err(|error| os(format!("making {UDEV_LINKS}"), error, None))?;
    }
    let is_live = |_: &_, path: &Path| {
        let target = std::fs::read_link(path).ok();
        // Its own terminal is new, so an old link to it is a stale one.
        target.is_some_and(|target| target != terminal && cuse::is_live(&target))
    };
    path_link::create(&path, &terminal, CLASS, cuse::TERMINALS, is_live)?;
    Ok((terminal, worker))
}

impl DeviceClass for Tty {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry {
            name: CLASS,
            summary: "a serial port with its modem lines and breaks, as a terminal that programs open",
            doc: include_str!("doc.md"),
            options: &[],
        }
    }

    fn target(&self) -> &'static str {
        "NAME|PATH"
    }

    fn has_role(&self, role: Role) -> bool {
        role == Role::Application
    }

    fn takes(&self) -> Option<Format> {
        Some(Format::Serial)
    }

    fn flows(&self, spec: &DeviceSpec) -> Result<Vec<FlowOffer>, DeviceError> {
        name(spec)?;
        Ok(flows())
    }

    fn nodes(&self, spec: &DeviceSpec) -> Vec<NodeName> {
        let path = own_link(spec).map(PathBuf::from).or_else(|| name(spec).ok().map(udev_link));
        path.map(NodeName::Link).into_iter().collect()
    }

    fn open(&self, spec: &DeviceSpec, role: Role, _: Option<&Description>) -> Result<Opened, DeviceError> {
        if role != Role::Application {
            return Err(wrong_side(self.name(), role));
        }
        let name = name(spec)?;
        let (terminal, worker) = match vhci::is_present() {
            true => plug_adapter(spec, name)?,
            false => make_terminal(spec, name)?,
        };
        let shown = link(spec, name);
        let description = Description {
            class: self.name().into(),
            summary: format!("serial terminal {} ({})", shown.display(), terminal.display()),
            flows: flows(),
            application: self.name(),
            properties: terminal.to_string_lossy().into_owned().into_bytes(),
        };
        Ok(Opened { spec: spec.clone(), role, description, descriptors: vec![worker] })
    }

    fn release(&self, opened: &Opened) {
        let terminal = String::from_utf8_lossy(&opened.description.properties).into_owned();
        // The link of a terminal without udev's, too.
        if let Ok(name) = name(&opened.spec) {
            drop(PathLink { path: link(&opened.spec, name), target: terminal.into() });
        }
    }

    /// A thread of this process is the adapter, or the terminal.
    fn can_hand_over(&self, _: &Opened) -> bool {
        false
    }

    fn partner(&self, opened: Opened) -> Result<Box<dyn Partner>, DeviceError> {
        let name = opened.description.summary.clone();
        let [socket] = plain::descriptors(opened)?;
        Ok(Box::new(Terminal::new(name, socket)))
    }
}
