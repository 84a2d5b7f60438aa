//! Finds a port again after it was unplugged, by its identity: the name of udev's link to it in `/dev/serial/by-id` and,
//! behind a space, its place: the USB interface in sysfs and the number of the port there.
//!
//! | adapter | identity | found again |
//! |---|---|---|
//! | with a serial number of its own | link | in any socket |
//! | without one, or with that of another adapter | link and place | in its socket only |
//! | without a link | empty | by the path that the user gave |
//!
//! Identical adapters have the same link, and udev moves it to the other one when one is pulled. So the place decides, and
//! the link only tells the model.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Shorter serial numbers are those of a chip that nobody has numbered, such as 0001 of a CP2102.
const SERIAL_CHARS_MIN: usize = 6;

/// The ports of a host.
pub(super) struct Ports<'a> {
    /// `/`, except in tests.
    pub(super) root: &'a Path,
}

/// A port of a USB adapter.
struct UsbPort {
    node: PathBuf,
    interface: PathBuf,
    place: String,
}

/// Vendor, product and serial number.
type Model = [Option<String>; 3];

impl UsbPort {
    /// Returns the directory of the USB device.
    fn device(&self) -> Option<&Path> {
        self.interface.parent()
    }

    fn model(&self) -> Model {
        ["idVendor", "idProduct", "serial"].map(|name| {
            let text = fs::read_to_string(self.device()?.join(name)).ok()?;
            Some(text.trim().to_string())
        })
    }
}

impl Ports<'_> {
    /// Returns udev's link to a port; `None` if there is none.
    pub(super) fn link(&self, path: &Path) -> Option<PathBuf> {
        let port = fs::canonicalize(path).ok()?;
        let links = fs::read_dir(self.root.join("dev/serial/by-id")).into_iter().flatten().flatten();
        links.map(|entry| entry.path()).find(|link| fs::canonicalize(link).is_ok_and(|to| to == port))
    }

    /// Returns the identity of a port; empty if it has no link.
    pub(super) fn identity(&self, path: &Path) -> String {
        let link = self.link(path);
        let Some(link) = link.as_deref().and_then(Path::to_str) else { return String::new() };
        match self.usb_port(path).filter(|port| !self.has_own_serial_number(port)) {
            Some(port) => format!("{link} {}", port.place),
            None => link.into(),
        }
    }

    /// Returns the path of the port with this identity, which is not empty.
    pub(super) fn find(&self, identity: &str) -> io::Result<PathBuf> {
        let (link, place) = identity.split_once(' ').unwrap_or((identity, ""));
        let link = Path::new(link);
        // Fails if no adapter of this model is plugged in.
        fs::metadata(link)?;
        if place.is_empty() {
            return Ok(link.into());
        }
        let model = self.usb_port(link).map(|port| port.model());
        let found = self.usb_ports().find(|port| port.place == place && Some(port.model()) == model);
        found.map(|port| port.node).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn usb_port(&self, path: &Path) -> Option<UsbPort> {
        let node = fs::canonicalize(path).ok()?;
        let device =
            fs::canonicalize(self.root.join("sys/class/tty").join(node.file_name()?).join("device")).ok()?;
        let interface = device.ancestors().find(|directory| directory.join("bInterfaceNumber").exists())?;
        let number = fs::read_to_string(device.join("port_number")).unwrap_or_default();
        let place = format!("{}:{}", interface.to_str()?, number.trim());
        Some(UsbPort { node, interface: interface.into(), place })
    }

    fn usb_ports(&self) -> impl Iterator<Item = UsbPort> {
        let names = fs::read_dir(self.root.join("sys/class/tty")).into_iter().flatten().flatten();
        names.filter_map(|entry| self.usb_port(&self.root.join("dev").join(entry.file_name())))
    }

    /// Returns true if the adapter has a serial number that no other adapter here has.
    fn has_own_serial_number(&self, port: &UsbPort) -> bool {
        let model = port.model();
        let is_twin = |other: UsbPort| other.device() != port.device() && other.model() == model;
        model[2].as_ref().is_some_and(|serial| serial.len() >= SERIAL_CHARS_MIN)
            && !self.usb_ports().any(is_twin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::tests::Scratch;
    use std::os::unix::fs::symlink;

    const LINK: &str = "usb-1a86_USB_Serial-if00-port0";

    /// A host with directories in the place of sysfs and `/dev`.
    struct Host {
        root: PathBuf,
        _scratch: Scratch,
    }

    impl Host {
        fn new() -> Host {
            let scratch = Scratch::new();
            let root = fs::canonicalize(scratch.path("")).unwrap();
            for directory in ["dev/serial/by-id", "sys/class/tty", "sys/devices"] {
                fs::create_dir_all(root.join(directory)).unwrap();
            }
            Host { root, _scratch: scratch }
        }

        fn ports(&self) -> Ports<'_> {
            Ports { root: &self.root }
        }

        fn node(&self, name: &str) -> PathBuf {
            self.root.join("dev").join(name)
        }

        fn plug(&self, name: &str, socket: &str, product: &str, serial: Option<&str>) {
            let usb = self.root.join("sys/devices").join(socket);
            let port = usb.join("1.0").join(name);
            fs::create_dir_all(&port).unwrap();
            fs::write(usb.join("1.0/bInterfaceNumber"), "00\n").unwrap();
            fs::write(usb.join("idVendor"), "1a86\n").unwrap();
            fs::write(usb.join("idProduct"), product).unwrap();
            serial.into_iter().for_each(|serial| fs::write(usb.join("serial"), serial).unwrap());
            fs::write(port.join("port_number"), "0\n").unwrap();
            fs::create_dir(self.root.join("sys/class/tty").join(name)).unwrap();
            symlink(port, self.root.join("sys/class/tty").join(name).join("device")).unwrap();
            fs::write(self.node(name), "").unwrap();
        }

        fn pull(&self, name: &str, socket: &str) {
            fs::remove_file(self.node(name)).unwrap();
            fs::remove_dir_all(self.root.join("sys/class/tty").join(name)).unwrap();
            fs::remove_dir_all(self.root.join("sys/devices").join(socket)).unwrap();
        }

        fn link_to(&self, name: &str) {
            let link = self.root.join("dev/serial/by-id").join(LINK);
            let _ = fs::remove_file(&link);
            symlink(self.node(name), link).unwrap();
        }

        /// Returns the name of the port that is found.
        fn found(&self, identity: &str) -> Option<String> {
            let found = fs::canonicalize(self.ports().find(identity).ok()?).unwrap();
            Some(found.file_name()?.to_str()?.into())
        }
    }

    #[test]
    fn of_identical_adapters_only_the_one_in_the_same_socket_returns() {
        for serial in [None, Some("0001"), Some("12345678")] {
            let host = Host::new();
            host.plug("ttyUSB0", "1-1", "7523", serial);
            host.plug("ttyUSB1", "1-2", "7523", serial);
            host.link_to("ttyUSB0");
            let identity = host.ports().identity(&host.node("ttyUSB0"));
            assert_eq!(host.found(&identity).as_deref(), Some("ttyUSB0"));
            host.pull("ttyUSB0", "1-1");
            host.link_to("ttyUSB1");
            assert_eq!(host.found(&identity), None, "{serial:?}: the other adapter has the link");
            host.plug("ttyUSB0", "1-1", "6001", serial);
            assert_eq!(host.found(&identity), None, "another model is in the socket");
            host.pull("ttyUSB0", "1-1");
            host.plug("ttyUSB2", "1-1", "7523", serial);
            assert_eq!(host.found(&identity).as_deref(), Some("ttyUSB2"), "the link need not move back");
        }
    }

    #[test]
    fn an_adapter_with_its_own_serial_number_returns_in_any_socket() {
        let host = Host::new();
        host.plug("ttyUSB0", "1-1", "7523", Some("A10K3XYZ"));
        host.link_to("ttyUSB0");
        let identity = host.ports().identity(&host.node("ttyUSB0"));
        host.pull("ttyUSB0", "1-1");
        assert_eq!(host.found(&identity), None);
        host.plug("ttyUSB1", "1-2", "7523", Some("A10K3XYZ"));
        host.link_to("ttyUSB1");
        assert_eq!(host.found(&identity).as_deref(), Some("ttyUSB1"));
        assert_eq!(host.ports().identity(&host.node("none")), "");
    }
}
