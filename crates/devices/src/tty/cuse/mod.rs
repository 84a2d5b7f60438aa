//! The terminal on a kernel without `vhci_hcd`: a character device in user space (CUSE, `fs/fuse/cuse.c`).
//!
//! ```text
//! program ◄─► kernel ◄── /dev/cuse ──► thread of the broker ◄── messages ──► worker
//! ```
//!
//! | module | content |
//! |---|---|
//! | `packets` | the kernel's packets; no I/O |
//! | `port`, `control` | the behaviour of the terminal, its ioctls; no I/O |
//! | `input`, `termios`, `ioctl` | received bytes, settings, numbers |
//!
//! The device exists until its last descriptor of `/dev/cuse` is closed, and the thread has the only one. So the terminal and the
//! open handles of programs survive a killed worker. The thread exits when all copies of the worker's end are closed.
//!
//! The codec is the project's own: of the kernel's interface a terminal needs eight operations, and the libraries for FUSE in Rust
//! mount file systems, without CUSE.

mod control;
mod input;
mod ioctl;
mod packets;
mod port;
mod termios;
#[cfg(test)]
mod tests;

use super::uplink::{self, Ended};
use crate::plain::os;
use crate::stream::now;
use contract::DeviceError;
use packets::{BUFFER_BYTES, Call, Request};
use port::Port;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Gid, Mode, OFlags, chown};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use sys::poller::Poller;

/// The kernel's end.
pub(super) const CONTROL: &str = "/dev/cuse";
/// Start of the names of the terminals.
pub(super) const TERMINALS: &str = "/dev/ttyOutboard-";
/// Directory of the devices of CUSE.
const DEVICES: &str = "/sys/class/cuse";
/// Groups of serial ports: Debian's and Fedora's, Arch's.
const GROUPS: [&str; 2] = ["dialout", "uucp"];
/// Time limit for the kernel to answer an open of [`CONTROL`].
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Requests that are read before the replies to them are written.
const REQUESTS_MAX: usize = 32;

/// Returns true if the terminal with this path exists.
pub(super) fn is_live(terminal: &Path) -> bool {
    let name = terminal.file_name().unwrap_or_default();
    terminal.to_string_lossy().starts_with(TERMINALS) && Path::new(DEVICES).join(name).exists()
}

/// Makes a terminal with this name. Returns its path, and the worker's end of its connection.
pub(super) fn plug(name: &str) -> Result<(PathBuf, OwnedFd), DeviceError> {
    let terminal = PathBuf::from(format!("{TERMINALS}{name}"));
    if is_live(&terminal) {
        return Err(DeviceError::Spec {
            what: format!("`tty:{name}`"),
            problem: format!(
                "{} exists already: end the process that made it, or choose another name",
                terminal.display()
            ),
        });
    }
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let kernel = rustix::fs::open(CONTROL, flags, Mode::empty()).map_err(refused)?;
    let failed = |error: io::Error| os(format!("making {}", terminal.display()), error, None);
    let mut poller = Poller::new().map_err(failed)?;
    start(&kernel, &terminal, &mut poller).map_err(failed)?;
    if !terminal.exists() {
        return Err(os(
            format!("looking for {}", terminal.display()),
            io::Error::from(ErrorKind::NotFound),
            Some("mount devtmpfs at /dev, where the kernel makes it"),
        ));
    }
    allow_group(&terminal).map_err(failed)?;
    let worker = serve(kernel, poller).map_err(failed)?;
    Ok((terminal, worker))
}

/// Starts the thread. Returns the worker's end of its connection.
fn serve(kernel: OwnedFd, mut poller: Poller) -> io::Result<OwnedFd> {
    let (messages, worker) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let mut line = Line { kernel, messages, port: Port::new(now()) };
    let run = move || while line.turn(&mut poller).is_ok() {};
    std::thread::Builder::new().name("terminal".into()).spawn(run)?;
    Ok(worker)
}

fn refused(error: Errno) -> DeviceError {
    let advice = match error {
        Errno::ACCESS | Errno::PERM => {
            "attach as root: a process that may open it can make any character device, so no group has it"
        }
        _ => {
            "sudo modprobe vhci-hcd, or without that module sudo modprobe cuse; if both are missing, install a kernel with \
             CONFIG_USBIP_VHCI_HCD or CONFIG_CUSE, or use `pty`, which has no modem lines"
        }
    };
    os(format!("opening {CONTROL}"), error, Some(advice))
}

/// Answers the kernel's first request with the name. The device exists when the reply has been written.
fn start(kernel: &OwnedFd, terminal: &Path, poller: &mut Poller) -> io::Result<()> {
    poller.register(kernel.as_fd(), true, false);
    if !poller.wait(Some(START_TIMEOUT))? {
        return Err(ErrorKind::TimedOut.into());
    }
    let mut buffer = [0; BUFFER_BYTES];
    let count = rustix::io::read(kernel, &mut buffer)?;
    let request = Request::parse(&buffer[..count]).map_err(io::Error::other)?;
    match request.call {
        Call::Init { major, minor } if packets::is_supported(major, minor) => {}
        other => return Err(io::Error::other(format!("the kernel's first request is {other:?}"))),
    }
    let name = terminal.file_name().unwrap_or_default().to_string_lossy();
    rustix::io::write(kernel, &packets::name_device(request.number, &name))?;
    // The kernel reports a refusal by an error of the connection.
    let mut polled = [PollFd::new(kernel, PollFlags::IN)];
    poll(&mut polled, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    match polled[0].revents().contains(PollFlags::ERR) {
        true => Err(io::Error::other("the kernel refuses the name; `dmesg` may have the reason")),
        false => Ok(()),
    }
}

/// Gives the terminal to the group of serial ports, if this host has one.
fn allow_group(terminal: &Path) -> io::Result<()> {
    let groups = fs::read_to_string("/etc/group").unwrap_or_default();
    let found = GROUPS.iter().find_map(|name| {
        let mut fields =
            groups.lines().map(|line| line.split(':')).find(|line| line.clone().next() == Some(name))?;
        fields.nth(2)?.parse::<u32>().ok()
    });
    let Some(group) = found else { return Ok(()) };
    chown(terminal, None, Some(Gid::from_raw(group)))?;
    fs::set_permissions(terminal, fs::Permissions::from_mode(0o660))
}

/// The thread's state.
struct Line {
    kernel: OwnedFd,
    messages: OwnedFd,
    port: Port,
}

impl Line {
    fn turn(&mut self, poller: &mut Poller) -> Result<(), Ended> {
        self.write()?;
        poller.register(self.kernel.as_fd(), true, false);
        // A worker that does not read is not read either, so that its queue of replies has a bound.
        poller.register(self.messages.as_fd(), self.port.input.has_room(), self.port.uplink.len() > 0);
        let timeout = self.port.deadline().map(|deadline| deadline.since(now()));
        poller.wait(timeout).map_err(|_| Ended)?;
        self.read_requests()?;
        if let Some(packet) = uplink::read(&self.messages, self.port.input.has_room())? {
            self.port.handle_message(&packet, now());
        }
        Ok(())
    }

    /// Writes as much as both ends take.
    fn write(&mut self) -> Result<(), Ended> {
        loop {
            self.port.advance(now());
            for reply in self.port.take_replies() {
                match rustix::io::write(&self.kernel, &reply) {
                    // The kernel has forgotten a request whose program was killed.
                    Ok(_) | Err(Errno::NOENT) => {}
                    Err(_) => return Err(Ended),
                }
            }
            if !self.port.uplink.write(&self.messages)? {
                return Ok(());
            }
        }
    }

    fn read_requests(&mut self) -> Result<(), Ended> {
        let mut buffer = [0; BUFFER_BYTES];
        for _ in 0..REQUESTS_MAX {
            match rustix::io::read(&self.kernel, &mut buffer) {
                Ok(count) => {
                    let request = Request::parse(&buffer[..count]).map_err(|_| Ended)?;
                    self.port.handle(request, now());
                }
                Err(Errno::AGAIN) => return Ok(()),
                // A program gave up while its request was read.
                Err(Errno::INTR | Errno::NOENT) => {}
                Err(_) => return Err(Ended),
            }
        }
        Ok(())
    }
}

/// Entry points for the fuzzer.
pub mod fuzz {
    use super::packets::REQUEST_BYTES;
    use super::*;
    use contract::Time;

    /// Bytes of the input that become one request.
    const STEP_BYTES: usize = 24;

    /// Handles `bytes` as packets of a worker and of the kernel: as they are, and as the fields of requests.
    pub fn handle(bytes: &[u8]) {
        let _ = Request::parse(bytes);
        let mut port = Port::new(Time::ZERO);
        for (number, step) in bytes.chunks(STEP_BYTES).enumerate() {
            let now = Time::from_millis(50 * number as u64);
            port.handle_message(step, now);
            if let Ok(request) = Request::parse(&packet(number as u64 + 1, step)) {
                port.handle(request, now);
            }
            while port.uplink.take_packet().is_some_and(|_| number % 3 == 0) {}
            assert!(port.take_replies().iter().all(|reply| reply.len() >= 16), "a short reply");
        }
    }

    /// Returns a request whose operation is among the real ones, for one of the first handles.
    fn packet(number: u64, step: &[u8]) -> Vec<u8> {
        let operation = [14, 15, 16, 18, 36, 39, 39, 40][usize::from(step[0] & 7)];
        let mut fields = u64::from(step[0] >> 6).to_ne_bytes().to_vec();
        fields.extend(&step[1..]);
        fields.resize(64, 0);
        let mut packet = ((REQUEST_BYTES + fields.len()) as u32).to_ne_bytes().to_vec();
        packet.extend(u32::to_ne_bytes(operation));
        packet.extend(number.to_ne_bytes());
        packet.resize(REQUEST_BYTES, 0);
        packet.extend(fields);
        packet
    }
}
