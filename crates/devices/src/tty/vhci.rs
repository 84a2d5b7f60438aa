//! The kernel's virtual USB host controller (`drivers/usb/usbip/vhci_sysfs.c`): plugs an adapter in, and finds its terminal.

use super::chip::MANUFACTURER;
use crate::plain::os;
use contract::DeviceError;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The controller's directory.
const CONTROLLER: &str = "/sys/devices/platform/vhci_hcd.0";
/// Number of a device on its own host, which is this one: bus 1, device 1.
const DEVICE: u32 = 0x1_0001;
/// `USB_SPEED_FULL` (`linux/usb/ch9.h`).
const FULL_SPEED: u32 = 2;
/// `VDEV_ST_NULL` and `VDEV_ST_USED` (`drivers/usb/usbip/usbip_common.h`).
const FREE: &str = "004";
const USED: &str = "006";
/// Time limit for the kernel to find the adapter and its driver.
const PLUG_TIMEOUT: Duration = Duration::from_secs(20);
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// A line of the controller's status: hub, port, state, speed, device, socket, name of the USB device.
fn ports() -> io::Result<Vec<Vec<String>>> {
    let mut ports = Vec::new();
    for entry in fs::read_dir(CONTROLLER)?.flatten() {
        if entry.file_name().to_string_lossy().starts_with("status") {
            let text = fs::read_to_string(entry.path())?;
            ports
                .extend(text.lines().skip(1).map(|line| line.split_whitespace().map(String::from).collect()));
        }
    }
    Ok(ports)
}

/// Returns true if the kernel has the controller.
pub(super) fn is_present() -> bool {
    Path::new(CONTROLLER).join("attach").exists()
}

/// Plugs the adapter behind `socket` in. Returns the path of its terminal.
pub(super) fn plug(socket: &OwnedFd) -> Result<PathBuf, DeviceError> {
    let missing = |error| {
        os(
            format!("looking for {CONTROLLER}"),
            error,
            Some(
                "sudo modprobe vhci-hcd; if the module is missing, install a kernel with CONFIG_USBIP_VHCI_HCD, or use \
                  `pty`, which has no modem lines",
            ),
        )
    };
    let found = ports().map_err(missing)?;
    let mut refusal = io::Error::other("every port is in use");
    for port in found.iter().filter(|port| port[0] == "hs" && port.get(2).is_some_and(|state| state == FREE))
    {
        let Ok(number) = port[1].parse::<u32>() else { continue };
        let request = format!("{number} {} {DEVICE} {FULL_SPEED}", socket.as_raw_fd());
        match fs::write(Path::new(CONTROLLER).join("attach"), request) {
            Ok(()) => return find_terminal(number),
            // Another process was faster.
            Err(error)
                if error.kind() == ErrorKind::InvalidInput || error.kind() == ErrorKind::ResourceBusy =>
            {
                refusal = error;
            }
            Err(error) => {
                refusal = error;
                break;
            }
        }
    }
    let advice = match refusal.kind() {
        ErrorKind::PermissionDenied => {
            "root may write it; the packaged service has a udev rule for its group, see the guide"
        }
        // The unit makes the file writable at the service's start, if it exists.
        ErrorKind::ReadOnlyFilesystem => {
            "the module was loaded after the service has started: systemctl restart outboard"
        }
        _ => "detach other virtual USB devices",
    };
    Err(os(format!("writing to {CONTROLLER}/attach"), refusal, Some(advice)))
}

/// Waits for the terminal of the adapter at this port.
fn find_terminal(number: u32) -> Result<PathBuf, DeviceError> {
    let until = Instant::now() + PLUG_TIMEOUT;
    while Instant::now() < until {
        if let Some(terminal) = terminal_at(number) {
            return Ok(terminal);
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
    Err(os(
        format!("waiting for the terminal of the adapter at port {number} of {CONTROLLER}"),
        io::Error::from(ErrorKind::TimedOut),
        Some(
            "sudo modprobe ftdi_sio; if the module is missing, install a kernel with CONFIG_USB_SERIAL_FTDI_SIO",
        ),
    ))
}

fn terminal_at(number: u32) -> Option<PathBuf> {
    let is_ours = |port: &&Vec<String>| {
        port.get(1).and_then(|port| port.parse().ok()) == Some(number)
            && port.get(2).is_some_and(|state| state == USED)
    };
    let found = ports().ok()?;
    let device = found.iter().find(is_ours)?.get(6)?;
    let interface = PathBuf::from(format!("/sys/bus/usb/devices/{device}:1.0"));
    let names = fs::read_dir(interface).ok()?.flatten();
    let name =
        names.map(|entry| entry.file_name()).find(|name| name.to_string_lossy().starts_with("ttyUSB"))?;
    let terminal = Path::new("/dev").join(name);
    terminal.exists().then_some(terminal)
}

/// Returns true if an adapter of Outboard is plugged in, of this process or another.
#[cfg(feature = "media")]
pub(super) fn has_own_adapter() -> bool {
    let is_ours = |port: &Vec<String>| {
        let manufacturer = |device| fs::read_to_string(format!("/sys/bus/usb/devices/{device}/manufacturer"));
        port.get(2).is_some_and(|state| state == USED)
            && port
                .get(6)
                .is_some_and(|device| manufacturer(device).is_ok_and(|name| name.trim() == MANUFACTURER))
    };
    ports().is_ok_and(|ports| ports.iter().any(is_ours))
}

/// Returns the serial number of the adapter with this terminal, if it is one of Outboard's.
pub(crate) fn own_serial_number(terminal: &Path) -> Option<String> {
    let name = terminal.file_name()?;
    let port = fs::canonicalize(Path::new("/sys/class/tty").join(name).join("device")).ok()?;
    // Terminal, interface, device.
    let device = port.parent()?.parent()?;
    let read = |file| fs::read_to_string(device.join(file)).ok().map(|text| text.trim().to_string());
    (read("manufacturer")? == MANUFACTURER).then(|| read("serial"))?
}
