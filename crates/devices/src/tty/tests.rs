//! Tests with the kernel's end of the adapter's connection: the transfers of `vhci_hcd` and `ftdi_sio`.

use super::suspend::{self, Announced, Announcements};
use super::test_worker::{KernelEnd, TestWorker, terminal_conforms};
use super::usbip::{HEADER_BYTES, STALL, WAS_UNLINKED};
use super::*;
use crate::serial::{Fault, Inputs, OutputLines, Outputs, Parity, SerialMessage, Settings, Speed};
use contract::{Body, Ctl, CtlReply};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);
/// The time after which nothing more comes.
const QUIET: Duration = Duration::from_millis(50);
const MODEM: u8 = 1;

/// The kernel, the adapter's thread, and the worker.
struct Kernel {
    usb: UnixStream,
    worker: TestWorker,
    sequence: u32,
    /// A transfer in is pending.
    is_reading: bool,
}

/// The end of a transfer.
#[derive(Debug, PartialEq)]
struct End {
    command: u32,
    sequence: u32,
    status: i32,
    data: Vec<u8>,
}

impl Kernel {
    fn new() -> Kernel {
        Kernel::with_announcements(None).0
    }

    /// Also returns the kernel's ends of adapters that are plugged in later.
    fn with_announcements(announcements: Option<Announcements>) -> (Kernel, Receiver<UnixStream>) {
        let (sender, plugged) = channel();
        let plug = move |usb: OwnedFd| {
            let usb = UnixStream::from(usb);
            usb.set_read_timeout(Some(PATIENCE)).unwrap();
            sender.send(usb).unwrap();
            Ok(PathBuf::from("/dev/ttyUSB0"))
        };
        let (_, worker) = adapter::start("board".into(), Arc::new(plug), announcements).unwrap();
        let usb = plugged.recv().unwrap();
        let mut worker = TestWorker::new(worker);
        worker.close();
        let mut kernel = Kernel { usb, worker, sequence: 0, is_reading: false };
        // A program opens the terminal.
        kernel.request(0x40, 0, 0, 0);
        (kernel, plugged)
    }

    /// Sends a submit. Returns its number.
    fn submit(&mut self, endpoint: u32, is_in: bool, length: u32, setup: [u8; 8], data: &[u8]) -> u32 {
        self.sequence += 1;
        let words = [1, self.sequence, 0, is_in.into(), endpoint, 0, length, 0, 0, 0];
        let mut packet: Vec<u8> = words.iter().flat_map(|word: &u32| word.to_be_bytes()).collect();
        packet.extend(setup);
        packet.extend(data);
        self.usb.write_all(&packet).unwrap();
        self.sequence
    }

    fn unlink(&mut self, target: u32) -> u32 {
        self.sequence += 1;
        let words = [2, self.sequence, 0, 0, 0, target];
        let mut packet: Vec<u8> = words.iter().flat_map(|word: &u32| word.to_be_bytes()).collect();
        packet.resize(HEADER_BYTES, 0);
        self.usb.write_all(&packet).unwrap();
        self.sequence
    }

    /// Reads the end of a transfer. Returns `None` after the timeout.
    fn end_of_transfer(&mut self, timeout: Duration, is_in: bool) -> Option<End> {
        let mut header = [0; HEADER_BYTES];
        self.usb.set_read_timeout(Some(timeout)).unwrap();
        match self.usb.read_exact(&mut header[..1]) {
            Ok(()) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return None,
            Err(error) => panic!("the adapter: {error}"),
        }
        self.usb.set_read_timeout(Some(PATIENCE)).unwrap();
        self.usb.read_exact(&mut header[1..]).unwrap();
        let word = |at: usize| u32::from_be_bytes(header[4 * at..4 * at + 4].try_into().unwrap());
        let mut data = vec![0; if is_in && word(0) == 3 { word(6) as usize } else { 0 }];
        self.usb.read_exact(&mut data).unwrap();
        Some(End { command: word(0), sequence: word(1), status: word(5).cast_signed(), data })
    }

    fn control(&mut self, setup: [u8; 8]) -> End {
        let is_in = setup[0] >= 0x80;
        let length = u16::from_le_bytes([setup[6], setup[7]]).into();
        let sequence = self.submit(0, is_in, length, setup, &[]);
        let end = self.end_of_transfer(PATIENCE, is_in).expect("the adapter answers");
        assert_eq!((end.command, end.sequence), (3, sequence));
        end
    }

    /// Sends a request of the driver without data.
    fn request(&mut self, kind: u8, request: u8, value: u16, index: u16) {
        let ([low, high], [index, channel]) = (value.to_le_bytes(), index.to_le_bytes());
        assert_eq!(self.control([kind, request, low, high, index, channel, 0, 0]).status, 0);
    }

    /// The lines as `TIOCMGET` gets them.
    fn status(&mut self) -> u8 {
        self.control([0xc0, 5, 0, 0, 0, 0, 2, 0]).data[0] & 0xf0
    }

    /// A program writes.
    fn write(&mut self, data: &[u8]) {
        self.submit(2, false, data.len() as u32, [0; 8], data);
        assert_eq!(self.end_of_transfer(PATIENCE, false).expect("the adapter takes it").status, 0);
    }

    /// The driver reads. Returns the packets of the next transfer; `None` after the timeout.
    fn transfer(&mut self, timeout: Duration) -> Option<Vec<Vec<u8>>> {
        if !std::mem::replace(&mut self.is_reading, true) {
            self.submit(1, true, 512, [0; 8], &[]);
        }
        let end = self.end_of_transfer(timeout, true)?;
        self.is_reading = false;
        Some(end.data.chunks(64).map(<[u8]>::to_vec).collect())
    }

    /// Returns the packet of the next transfer, which has one.
    fn packet(&mut self) -> Vec<u8> {
        let mut packets = self.transfer(PATIENCE).expect("a packet");
        assert_eq!(packets.len(), 1, "{packets:?}");
        packets.remove(0)
    }
}

impl KernelEnd for Kernel {
    fn worker(&mut self) -> &mut TestWorker {
        &mut self.worker
    }

    fn write_text(&mut self, text: &[u8]) {
        self.write(text);
    }

    fn read_all(&mut self) -> Vec<u8> {
        let mut read = Vec::new();
        while let Some(packets) = self.transfer(QUIET) {
            read.extend(packets.iter().flat_map(|packet| packet[2..].to_vec()));
        }
        read
    }
}

#[test]
fn a_terminal_conforms() {
    terminal_conforms(Kernel::new);
}

#[test]
fn the_kernel_finds_an_adapter_with_its_name() {
    let mut kernel = Kernel::new();
    let device = kernel.control([0x80, 6, 0, 1, 0, 0, 18, 0]).data;
    assert_eq!((device.len(), &device[8..12]), (18, &[0x03, 0x04, 0x01, 0x60][..]));
    // At first the kernel asks for the head alone.
    let head = kernel.control([0x80, 6, 0, 2, 0, 0, 9, 0]).data;
    assert_eq!((head.len(), head[2]), (9, 32));
    assert_eq!(kernel.control([0x80, 6, 0, 2, 0, 0, 32, 0]).data.len(), 32);
    let number = kernel.control([0x80, 6, 3, 3, 9, 4, 255, 0]).data;
    assert_eq!(number, [12, 3, b'b', 0, b'o', 0, b'a', 0, b'r', 0, b'd', 0]);
    assert_eq!(kernel.control([0x80, 6, 0, 6, 0, 0, 10, 0]).status, STALL, "no other speeds");
    kernel.request(0, 9, 1, 0);
    assert_eq!(kernel.control([0xc0, 0x0a, 0, 0, 0, 0, 1, 0]).data, [1]);
}

#[test]
fn lines_settings_and_data_of_a_program_arrive_in_order() {
    let mut kernel = Kernel::new();
    // 7E2, 115200 baud, RTS and CTS.
    kernel.request(0x40, 4, 7 | 2 << 8 | 2 << 11, 0);
    kernel.request(0x40, 3, 26, 0);
    kernel.request(0x40, 2, 0, 0x100);
    kernel.request(0x40, MODEM, 0x303, 0);
    kernel.write(b"AT");
    std::thread::sleep(Duration::from_millis(20));
    kernel.request(0x40, MODEM, 0x100, 0);
    kernel.request(0x40, 4, 7 | 2 << 8 | 2 << 11 | 1 << 14, 0);
    let expected = Settings {
        data_bits: Some(7),
        parity: Some(Parity::Even),
        stop_bits: Some(2),
        ..Settings::default()
    };
    assert_eq!(kernel.worker.pull(), SerialMessage::Settings(expected));
    let baud = Speed { input_baud: 115_200, output_baud: 115_200 };
    assert_eq!(
        kernel.worker.pull(),
        SerialMessage::Settings(Settings { speed: Some(baud), ..Settings::default() })
    );
    let SerialMessage::Settings(Settings { flow: Some(flow), .. }) = kernel.worker.pull() else {
        panic!("no flow control")
    };
    assert!(flow.rts_cts && !flow.xon_output);
    let both = OutputLines { dtr: true, rts: true, breaks: false };
    assert_eq!(kernel.worker.pull_outputs(), Outputs { lines: both, since_us: Outputs::UNRELATED });
    assert_eq!(kernel.worker.pull(), SerialMessage::Data(Body::from(&b"AT"[..])));
    let Outputs { lines: one, since_us } = kernel.worker.pull_outputs();
    assert_eq!(one, OutputLines { dtr: false, ..both });
    assert!((20_000..60_000_000).contains(&since_us), "{since_us}");
    let broken = OutputLines { breaks: true, ..one };
    assert_eq!(kernel.worker.pull_outputs().lines, broken);
    // A snapshot has everything once more.
    kernel.worker.ctl(Ctl::Snapshot);
    let SerialMessage::Settings(all) = kernel.worker.pull() else { panic!("no settings") };
    assert_eq!((all.speed, all.data_bits, all.flow), (Some(baud), Some(7), Some(flow)));
    assert_eq!(kernel.worker.pull_outputs(), Outputs { lines: broken, since_us: Outputs::UNRELATED });
}

#[test]
fn lines_and_faults_of_the_port_reach_the_driver_and_silence_is_neutral() {
    let mut kernel = Kernel::new();
    assert_eq!(kernel.packet(), [1, 0x60], "the lines at first");
    kernel.worker.push(SerialMessage::Inputs(Inputs { cts: true, dsr: true, dcd: false, ri: true }));
    assert_eq!(kernel.packet(), [0x71, 0x60]);
    assert_eq!(kernel.status(), 0x70);
    for (message, expected) in [
        (SerialMessage::Fault(Fault::Corrupt, Body::from(&b"x"[..])), &[0x71, 0x64, b'x'][..]),
        (SerialMessage::Fault(Fault::Break, Body::from(&b"\0"[..])), &[0x71, 0x70, 0]),
        (SerialMessage::Data(Body::from(&b"ok"[..])), &[0x71, 0x60, b'o', b'k']),
    ] {
        kernel.worker.push(message);
        assert_eq!(kernel.packet(), expected);
    }
    kernel.worker.ctl(Ctl::Neutral);
    assert_eq!(kernel.packet(), [1, 0x60]);
    assert_eq!(kernel.status(), 0);
    assert!(matches!(kernel.worker.ctl(Ctl::IsNeutral), CtlReply::Count(1)));
}

#[test]
fn a_new_worker_finds_the_pending_transfers() {
    let mut kernel = Kernel::new();
    assert_eq!(kernel.packet(), [1, 0x60]);
    kernel.submit(1, true, 512, [0; 8], &[]);
    kernel.is_reading = true;
    // Its answer tells that the adapter has both.
    kernel.status();
    kernel.worker.restart();
    kernel.worker.push(SerialMessage::Data(Body::from(&b"again"[..])));
    assert_eq!(kernel.packet(), b"\x01\x60again");
}

#[test]
fn a_program_that_is_faster_than_the_network_waits_and_may_give_up() {
    let mut kernel = Kernel::new();
    let mut taken = 0;
    let held = loop {
        let sequence = kernel.submit(2, false, 256, [0; 8], &[taken as u8; 256]);
        if kernel.end_of_transfer(Duration::from_millis(500), false).is_none() {
            break sequence;
        }
        taken += 1;
        assert!(taken < 100_000, "nothing ever waits");
    };
    // Closing the terminal must not wait for the network.
    let unlink = kernel.unlink(held);
    let end = kernel.end_of_transfer(PATIENCE, false).unwrap();
    assert_eq!((end.command, end.sequence, end.status), (4, unlink, WAS_UNLINKED));
    // Changes without a bound: the last state counts.
    for number in 0..2000 {
        kernel.request(0x40, MODEM, 0x300 | (number % 4), 0);
    }
    let (mut data, mut last) = (0, None);
    while last != Some(OutputLines { dtr: true, rts: true, breaks: false }) || data < taken {
        match kernel.worker.pull() {
            SerialMessage::Data(_) => data += 1,
            SerialMessage::Outputs(Outputs { lines, .. }) => last = Some(lines),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(data, taken);
}

#[test]
fn the_adapter_is_unplugged_when_nobody_holds_it() {
    let Kernel { mut usb, worker, .. } = Kernel::new();
    drop(worker);
    assert_eq!(usb.read(&mut [0]).unwrap(), 0);
    // And the worker notices that the kernel removed it.
    let Kernel { usb, worker, .. } = Kernel::new();
    usb.shutdown(std::net::Shutdown::Both).unwrap();
    worker.await_removal();
}

#[test]
fn the_adapter_leaves_its_port_while_the_computer_is_suspended() {
    let (announcer, announcements) = suspend::pair().unwrap();
    let (mut kernel, plugged) = Kernel::with_announcements(Some(announcements));
    kernel.request(0x40, MODEM, 0x0303, 0);
    assert!(kernel.worker.pull_outputs().lines.dtr);
    kernel.submit(1, true, 512, [0; 8], &[]);
    assert!(announcer.announce(Announced::Suspend));
    // A status packet may be on its way, and the transfer may still be unread.
    let ended = kernel.usb.read_to_end(&mut Vec::new()).map_err(|error| error.kind());
    assert!(matches!(ended, Ok(_) | Err(ErrorKind::ConnectionReset)), "{ended:?}");
    assert_eq!(
        kernel.worker.pull_outputs().lines,
        OutputLines::default(),
        "the program has lost its terminal"
    );
    kernel.worker.push(SerialMessage::Data(Body::from(b"meanwhile".to_vec())));

    // A suspend that failed is announced as one that is over, once or twice.
    assert!(announcer.announce(Announced::Awake) && announcer.announce(Announced::Awake));
    (kernel.usb, kernel.is_reading) = (plugged.recv_timeout(PATIENCE).unwrap(), false);
    assert!(matches!(kernel.control([0x80, 6, 0, 1, 0, 0, 18, 0]), End { status: 0, .. }));
    kernel.request(0x40, 0, 0, 0);
    kernel.request(0x40, MODEM, 0x0101, 0);
    assert!(kernel.worker.pull_outputs().lines.dtr, "the next program");
    drop(announcer);
    kernel.request(0x40, MODEM, 0x0100, 0);
    assert!(!kernel.worker.pull_outputs().lines.dtr, "the adapter goes on without a watch");
    assert!(plugged.try_recv().is_err(), "it is plugged in once");
}

#[test]
fn names_are_plain_and_paths_are_links() {
    let class = crate::find("tty").unwrap();
    let nodes =
        |text: &str| crate::spec::parse(text, Role::Application).map(|(_, spec)| class.nodes(&spec)).unwrap();
    assert_eq!(nodes("tty:/tmp/board"), [NodeName::Link("/tmp/board".into())]);
    let by_id = "/dev/serial/by-id/usb-Outboard_serial_port_board-if00-port0";
    assert_eq!(nodes("tty:board"), [NodeName::Link(by_id.into())]);
    // As the claim to the node has it.
    let (_, claimed) = crate::spec::parse(&format!("tty:{by_id}"), Role::Application).unwrap();
    assert_eq!((name(&claimed).unwrap(), own_link(&claimed)), ("board", None));
    for wrong in ["tty:a b", "tty:/tmp/", "tty:ü"] {
        let (class, spec) = crate::spec::parse(wrong, Role::Application).unwrap();
        let error = class.open(&spec, Role::Application, None).unwrap_err().to_string();
        assert!(error.contains("letters"), "{wrong}: {error}");
    }
}
