//! The adapter: a thread that answers the kernel's transfers, and exchanges messages with the worker.
//!
//! ```text
//! ftdi_sio ◄─► vhci_hcd ◄── USB/IP ──► adapter ◄── messages ──► worker
//! ```
//!
//! The kernel remembers which transfers are pending, so the adapter must not forget them when a worker is killed. It is therefore
//! a thread of the broker. The worker has one end of a socket pair (`uplink`).
//!
//! Nothing waits without a bound: transfers in wait at the kernel's request, transfers out until the worker takes their bytes. The
//! thread exits when all copies of the worker's end are closed, or when the kernel removes the adapter.
//!
//! While the computer is suspended the adapter is out of its port ([`suspend`](super::suspend)); the worker keeps its end.

use super::chip::{Answer, Chip};
use super::suspend::{Announced, Announcements};
use super::uplink::{self, Ended, SNAPSHOT, Uplink, WAITING_MAX};
use super::usbip::{self, HEADER_BYTES, Request, STALL, TRANSFER_BYTES_MAX, Transfer, WAS_UNLINKED};
use crate::plain::os;
use crate::serial::SerialMessage;
use crate::stream::now;
use contract::{Body, DeviceError};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use sys::poller::Poller;

/// Bytes to the kernel that wait for the socket. Each transfer in brings one reply at most, so more would be an error.
const OUTPUT_BYTES_MAX: usize = 1 << 20;
/// Number of the endpoint of received bytes.
const IN_ENDPOINT: u32 = 1;

/// Plugs the kernel's end of an adapter's connection in. Returns the path of the terminal.
pub(super) type Plug = Arc<dyn Fn(OwnedFd) -> Result<PathBuf, DeviceError> + Send + Sync>;

fn pair(kind: SocketType) -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?)
}

/// Starts the thread, and plugs the adapter in. Returns the path of the terminal, and the worker's end.
pub(super) fn start(
    serial_number: String,
    plug: Plug,
    announcements: Option<Announcements>,
) -> Result<(PathBuf, OwnedFd), DeviceError> {
    let failed = |error| os("starting a serial adapter".into(), error, None);
    let (usb, kernel) = pair(SocketType::STREAM).map_err(failed)?;
    let (messages, worker) = pair(SocketType::SEQPACKET).map_err(failed)?;
    let adapter = Adapter {
        usb: Some(usb),
        messages,
        announcements,
        plug: plug.clone(),
        bus: Bus::new(serial_number),
        input: Vec::new(),
    };
    let poller = Poller::new().map_err(failed)?;
    std::thread::Builder::new().name("adapter".into()).spawn(move || adapter.run(poller)).map_err(failed)?;
    Ok((plug(kernel)?, worker))
}

/// The thread's state.
struct Adapter {
    /// `None` while the computer is suspended.
    usb: Option<OwnedFd>,
    messages: OwnedFd,
    announcements: Option<Announcements>,
    plug: Plug,
    bus: Bus,
    /// Bytes of the kernel that are no packet yet.
    input: Vec<u8>,
}

impl Adapter {
    fn run(mut self, mut poller: Poller) {
        while self.turn(&mut poller).is_ok() {}
    }

    fn turn(&mut self, poller: &mut Poller) -> Result<(), Ended> {
        self.bus.advance();
        self.write()?;
        if let Some(usb) = &self.usb {
            poller.register(usb.as_fd(), true, !self.bus.output.is_empty());
        }
        if let Some(announcements) = &self.announcements {
            poller.register(announcements.as_fd(), true, false);
        }
        // A worker that does not read is not read either, so that its queue of replies has a bound.
        poller.register(self.messages.as_fd(), self.bus.chip.has_room(), self.bus.uplink.len() > 0);
        poller.wait(None).map_err(|_| Ended)?;
        self.read_announcement(poller)?;
        self.read_usb()?;
        self.read_message()
    }

    fn read_announcement(&mut self, poller: &mut Poller) -> Result<(), Ended> {
        let Some(announcements) = &self.announcements else { return Ok(()) };
        match announcements.next() {
            Ok(None) => return Ok(()),
            Ok(Some(Announced::Suspend)) => {
                if let Some(usb) = self.usb.take() {
                    poller.forget(usb.as_fd());
                }
                self.input.clear();
                self.bus.pull_out();
            }
            Ok(Some(Announced::Awake)) if self.usb.is_none() => {
                let (usb, kernel) = pair(SocketType::STREAM).map_err(|_| Ended)?;
                let plug = self.plug.clone();
                // The kernel asks this thread for the adapter's descriptors. If it is not plugged in, its end closes.
                let plugged = std::thread::Builder::new().name("adapter-plug".into());
                plugged.spawn(move || plug(kernel)).map_err(|_| Ended)?;
                self.usb = Some(usb);
            }
            Ok(Some(Announced::Awake)) => {}
            Err(Ended) => {
                poller.forget(announcements.as_fd());
                self.announcements = None;
                return Ok(());
            }
        }
        announcements.answer();
        Ok(())
    }

    /// Writes as much as both sockets take.
    fn write(&mut self) -> Result<(), Ended> {
        while let Some(usb) = self.usb.as_ref().filter(|_| !self.bus.output.is_empty()) {
            match send(usb, &self.bus.output, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(count) => drop(self.bus.output.drain(..count)),
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(_) => return Err(Ended),
            }
        }
        while self.bus.uplink.write(&self.messages)? {
            self.bus.advance();
        }
        Ok(())
    }

    fn read_usb(&mut self) -> Result<(), Ended> {
        let Some(usb) = &self.usb else { return Ok(()) };
        let mut bytes = [0; 4096];
        match recv(usb, &mut bytes[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Err(Ended),
            Ok((count, _)) => self.input.extend_from_slice(&bytes[..count]),
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            Err(_) => return Err(Ended),
        }
        self.bus.receive(&mut self.input)
    }

    fn read_message(&mut self) -> Result<(), Ended> {
        // The end of the connection shows without room, too.
        if let Some(packet) = uplink::read(&self.messages, self.bus.chip.has_room())? {
            self.bus.handle_message(&packet);
        }
        Ok(())
    }
}

/// The chip, its pending transfers and what waits for both sockets. No I/O.
#[derive(Debug)]
pub(super) struct Bus {
    chip: Chip,
    /// Transfers that wait for received bytes: number, room.
    reads: VecDeque<(u32, usize)>,
    /// Transfers of bytes to send that the worker has no room for.
    writes: VecDeque<Transfer>,
    /// Messages to the worker.
    uplink: Uplink,
    /// Bytes to the kernel.
    output: Vec<u8>,
}

impl Bus {
    pub(super) fn new(serial_number: String) -> Bus {
        let mut bus = Bus {
            chip: Chip::new(serial_number),
            reads: VecDeque::new(),
            writes: VecDeque::new(),
            uplink: Uplink::default(),
            output: Vec::new(),
        };
        // The port's lines are off until a program opens the terminal.
        bus.uplink.send_state(bus.chip.state(), now());
        bus
    }

    /// Leaves the port: for the worker, as if the program had closed the terminal.
    fn pull_out(&mut self) {
        self.reads.clear();
        self.writes.clear();
        self.output.clear();
        self.chip.pull_out();
        self.uplink.request_state();
    }

    /// Handles the complete packets of the kernel.
    fn receive(&mut self, input: &mut Vec<u8>) -> Result<(), Ended> {
        while let Some(request) = Request::take(input).map_err(|_| Ended)? {
            match request {
                Request::Submit(transfer) => self.submit(transfer),
                Request::Unlink { sequence, target } => self.unlink(sequence, target),
            }
            self.advance();
        }
        // A packet that never ends cannot be read.
        let is_bounded =
            input.len() <= HEADER_BYTES + TRANSFER_BYTES_MAX && self.output.len() <= OUTPUT_BYTES_MAX;
        is_bounded.then_some(()).ok_or(Ended)
    }

    fn submit(&mut self, transfer: Transfer) {
        let Transfer { sequence, endpoint, is_in, length, setup, .. } = transfer;
        match (endpoint, is_in) {
            (0, _) => {
                let mut changes = Vec::new();
                match self.chip.control(setup, &mut changes) {
                    Answer::Done(bytes) if is_in => {
                        usbip::finish_in(sequence, &bytes[..bytes.len().min(length)], &mut self.output);
                    }
                    Answer::Done(_) => usbip::finish(sequence, 0, length, &mut self.output),
                    Answer::Stall => usbip::finish(sequence, STALL, 0, &mut self.output),
                }
                for change in changes {
                    self.uplink.send_change(change, now());
                }
            }
            (IN_ENDPOINT, true) if self.reads.len() < WAITING_MAX => self.reads.push_back((sequence, length)),
            (2, false) if self.writes.len() < WAITING_MAX => self.writes.push_back(transfer),
            _ => usbip::finish(sequence, STALL, 0, &mut self.output),
        }
    }

    fn unlink(&mut self, sequence: u32, target: u32) {
        let (reads, writes) = (self.reads.len(), self.writes.len());
        self.reads.retain(|(number, _)| *number != target);
        self.writes.retain(|transfer| transfer.sequence != target);
        let was_read = self.reads.len() < reads;
        if was_read && self.reads.is_empty() {
            self.chip.close();
        }
        let was_pending = was_read || self.writes.len() < writes;
        usbip::finish_unlink(sequence, if was_pending { WAS_UNLINKED } else { 0 }, &mut self.output);
    }

    /// Completes the transfers that can be completed.
    fn advance(&mut self) {
        while let Some((sequence, room)) = self.reads.front().copied() {
            let Some(transfer) = self.chip.transfer(room) else { break };
            usbip::finish_in(sequence, &transfer, &mut self.output);
            self.reads.pop_front();
        }
        while self.uplink.has_room()
            && let Some(transfer) = self.writes.pop_front()
        {
            self.uplink.send_data(&transfer.data, now());
            usbip::finish(transfer.sequence, 0, transfer.length, &mut self.output);
        }
        if self.uplink.wants_state() {
            self.uplink.send_state(self.chip.state(), now());
        }
        self.chip.is_idle = self.writes.is_empty() && self.uplink.len() == 0;
    }

    /// Handles a packet of the worker, which may have been compromised.
    fn handle_message(&mut self, packet: &[u8]) {
        if packet == [SNAPSHOT] {
            self.uplink.request_state();
            return;
        }
        match SerialMessage::parse(&Body::from(packet.to_vec())) {
            Ok(SerialMessage::Data(data)) => self.chip.receive(data.into_bytes().to_vec(), None),
            Ok(SerialMessage::Fault(fault, data)) => {
                self.chip.receive(data.into_bytes().to_vec(), Some(fault));
            }
            Ok(SerialMessage::Inputs(inputs)) => self.chip.set_inputs(inputs),
            // The program decides about its settings.
            Ok(SerialMessage::Settings(_) | SerialMessage::Outputs(_)) | Err(_) => {}
        }
    }
}

/// Entry points for the fuzzer.
pub mod fuzz {
    use super::*;

    /// Bytes of the input that become one packet of the kernel.
    const STEP_BYTES: usize = 12;

    /// Handles `bytes` as packets of a worker, and of a kernel: as they are, and as the fields of transfers.
    pub fn handle(bytes: &[u8]) {
        let mut bus = Bus::new("fuzz".into());
        for (number, piece) in bytes.chunks(STEP_BYTES).enumerate() {
            bus.handle_message(piece);
            if let Ok(fields) = <&[u8; STEP_BYTES]>::try_from(piece)
                && bus.receive(&mut packet(number as u32, fields)).is_err()
            {
                return;
            }
        }
        assert!(bus.uplink.len() < 2 * WAITING_MAX + bytes.len(), "more waits than was sent");
        let _ = bus.receive(&mut bytes.to_vec());
    }

    fn packet(
        sequence: u32,
        [kind, endpoint, length_low, length_high, setup @ ..]: &[u8; STEP_BYTES],
    ) -> Vec<u8> {
        let length = u16::from_le_bytes([*length_low, *length_high]);
        let is_in = u32::from(endpoint & 1);
        let words =
            [1 + u32::from(kind & 1), sequence, 0, is_in, u32::from(endpoint >> 1 & 3), length.into()];
        let mut packet: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        packet.extend(u32::from(length).to_be_bytes());
        packet.resize(HEADER_BYTES - setup.len(), 0);
        packet.extend(setup);
        let data_bytes = if is_in == 0 && kind & 1 == 0 { usize::from(length) } else { 0 };
        packet.resize(HEADER_BYTES + data_bytes, *kind);
        packet
    }
}
