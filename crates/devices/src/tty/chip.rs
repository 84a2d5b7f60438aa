//! A simulated FTDI FT232BM: descriptors, control requests and the packets of received bytes, as the kernel's driver `ftdi_sio`
//! expects them (`drivers/usb/serial/ftdi_sio.h`). No I/O.

use super::uplink::Change;
use crate::serial::{Fault, FlowControl, Inputs, OutputLines, Parity, Settings, Speed};
use std::collections::VecDeque;
use std::ops::RangeInclusive;

/// Names in the descriptors, by which udev makes links and Outboard recognizes its own adapters.
pub(super) const MANUFACTURER: &str = "Outboard";
pub(super) const PRODUCT: &str = "serial port";

/// Bytes of a packet, and of the status at its front.
const PACKET_BYTES: usize = 64;
const STATUS_BYTES: usize = 2;
/// Received bytes that wait for the program; then the network waits.
const RECEIVED_BYTES_MAX: usize = 16 << 10;

const DEVICE_DESCRIPTOR: [u8; 18] = [
    18, 1, 0x10, 0x01, 0, 0, 0, 8, // USB 1.1, packets of 8 bytes
    0x03, 0x04, 0x01, 0x60, 0x00, 0x04, // vendor 0403, product 6001, release 4.00: an FT232BM
    1, 2, 3, 1, // manufacturer, product, serial number, one configuration
];
const CONFIGURATION: [u8; 32] = [
    9, 2, 32, 0, 1, 1, 0, 0x80, 45, // one interface, powered by the bus, 90 mA
    9, 4, 0, 0, 2, 0xff, 0xff, 0xff, 0, // two endpoints, vendor's class
    7, 5, 0x81, 2, 64, 0, 0, // received bytes
    7, 5, 0x02, 2, 64, 0, 0, // bytes to send
];

/// Type and number of a request, as in a setup packet.
const GET_STATUS: RangeInclusive<u8> = 0x80..=0x82;
const STANDARD_OUT: RangeInclusive<u8> = 0x00..=0x02;
const VENDOR_OUT: u8 = 0x40;
const VENDOR_IN: u8 = 0xc0;
const REQUEST_GET_STATUS: u8 = 0;
const REQUEST_GET_DESCRIPTOR: u8 = 6;
const REQUEST_GET_CONFIGURATION: u8 = 8;
const RESET: u8 = 0;
const SET_MODEM_CONTROL: u8 = 1;
const SET_FLOW_CONTROL: u8 = 2;
const SET_BAUD_RATE: u8 = 3;
const SET_DATA: u8 = 4;
const GET_MODEM_STATUS: u8 = 5;
const GET_LATENCY_TIMER: u8 = 0x0a;
const READ_EEPROM: u8 = 0x90;

const SEND_BREAK: u16 = 1 << 14;
/// Milliseconds of the latency timer. This adapter answers at once.
const LATENCY_MS: u8 = 1;

/// Bits of the two status bytes.
const CTS: u8 = 1 << 4;
const DSR: u8 = 1 << 5;
const RI: u8 = 1 << 6;
const DCD: u8 = 1 << 7;
const PARITY_ERROR: u8 = 1 << 2;
const BREAK: u8 = 1 << 4;
const TRANSMITTER_EMPTY: u8 = 3 << 5;

/// Usual speeds. The driver asks for a divisor; the speed that a program set is the usual one with this divisor. The chip
/// has none below 183.
const BAUDS: [u32; 35] = [
    200, 300, 600, 1200, 1800, 2400, 4800, 7200, 9600, 10_400, 14_400, 19_200, 28_800, 31_250, 38_400,
    56_000, 57_600, 74_880, 76_800, 100_000, 115_200, 128_000, 187_500, 230_400, 250_000, 256_000, 460_800,
    500_000, 576_000, 921_600, 1_000_000, 1_152_000, 1_500_000, 2_000_000, 3_000_000,
];
/// Eighths of the chip's clock in a bit at 1 baud: 48 MHz / 2.
const DIVISOR_CLOCK: u32 = 24_000_000;
/// Fractions of the divisor, in eighths, by their code.
const FRACTIONS: [u32; 8] = [0, 4, 2, 1, 3, 5, 6, 7];

/// The answer to a control request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    /// Done, with bytes for a request in.
    Done(Vec<u8>),
    /// Refused.
    Stall,
}

/// Received bytes with the same fault.
#[derive(Debug)]
struct Received {
    fault: Option<Fault>,
    bytes: Vec<u8>,
    taken: usize,
}

/// The chip.
#[derive(Debug)]
pub(super) struct Chip {
    serial_number: String,
    /// Settings since the last reset.
    settings: Settings,
    outputs: OutputLines,
    inputs: Inputs,
    /// The lines that the last packet reported.
    reported: Option<Inputs>,
    received: VecDeque<Received>,
    received_bytes: usize,
    /// A program has the terminal open.
    is_open: bool,
    /// The bytes to send have been sent.
    pub(super) is_idle: bool,
    /// Bytes that arrived while no program had the terminal open.
    pub(super) dropped_bytes: u64,
}

impl Chip {
    pub(super) fn new(serial_number: String) -> Chip {
        Chip {
            serial_number,
            settings: Settings::default(),
            outputs: OutputLines::default(),
            inputs: Inputs::default(),
            reported: None,
            received: VecDeque::new(),
            received_bytes: 0,
            is_open: false,
            is_idle: true,
            dropped_bytes: 0,
        }
    }

    /// The settings and lines of the program.
    pub(super) fn state(&self) -> (Settings, OutputLines) {
        (self.settings, self.outputs)
    }

    /// Handles a control request.
    pub(super) fn control(&mut self, setup: [u8; 8], changes: &mut Vec<Change>) -> Answer {
        let [kind, request, value_low, value_high, index_low, index_high, length_low, length_high] = setup;
        let (value, index) =
            (u16::from_le_bytes([value_low, value_high]), u16::from_le_bytes([index_low, index_high]));
        let answer = match (kind, request) {
            (VENDOR_OUT, _) => {
                self.set(request, value, index, changes);
                Answer::Done(Vec::new())
            }
            (VENDOR_IN, GET_MODEM_STATUS) => Answer::Done(self.status(None).to_vec()),
            (VENDOR_IN, GET_LATENCY_TIMER) => Answer::Done(vec![LATENCY_MS]),
            // An empty EEPROM.
            (VENDOR_IN, READ_EEPROM) => Answer::Done(vec![0xff, 0xff]),
            (0x80, REQUEST_GET_DESCRIPTOR) => self.descriptor(value_high, value_low),
            (0x80, REQUEST_GET_CONFIGURATION) => Answer::Done(vec![1]),
            (kind, REQUEST_GET_STATUS) if GET_STATUS.contains(&kind) => Answer::Done(vec![0, 0]),
            // Configuration, interface and features are as they are.
            (kind, _) if STANDARD_OUT.contains(&kind) => Answer::Done(Vec::new()),
            _ => Answer::Stall,
        };
        match answer {
            Answer::Done(mut bytes) => {
                bytes.truncate(u16::from_le_bytes([length_low, length_high]).into());
                Answer::Done(bytes)
            }
            Answer::Stall => Answer::Stall,
        }
    }

    fn descriptor(&self, kind: u8, number: u8) -> Answer {
        Answer::Done(match (kind, number) {
            (1, 0) => DEVICE_DESCRIPTOR.to_vec(),
            (2, 0) => CONFIGURATION.to_vec(),
            // English.
            (3, 0) => vec![4, 3, 0x09, 0x04],
            (3, 1) => string(MANUFACTURER),
            (3, 2) => string(PRODUCT),
            (3, 3) => string(&self.serial_number),
            _ => return Answer::Stall,
        })
    }

    fn set(&mut self, request: u8, value: u16, index: u16, changes: &mut Vec<Change>) {
        let (outputs, settings) = (self.outputs, self.settings);
        match request {
            // The driver resets the chip whenever a program opens the terminal. Bytes from before that are dropped.
            RESET if value == 0 => {
                self.is_open = true;
                self.drop_received();
                self.settings = Settings::default();
                return;
            }
            SET_MODEM_CONTROL => {
                for (mask, line) in [(1, &mut self.outputs.dtr), (2, &mut self.outputs.rts)] {
                    if (value >> 8) & mask != 0 {
                        *line = value & mask != 0;
                    }
                }
            }
            SET_FLOW_CONTROL => {
                let (rts_cts, xon) = (index & 0x100 != 0, index & 0x400 != 0);
                self.settings.flow = Some(FlowControl { xon_output: xon, xoff_input: xon, rts_cts });
            }
            SET_BAUD_RATE => {
                let baud = baud(value, index);
                self.settings.speed = Some(Speed { input_baud: baud, output_baud: baud });
            }
            SET_DATA => {
                self.outputs.breaks = value & SEND_BREAK != 0;
                // The driver has 0 for 5 bits, and knows no 6.
                self.settings.data_bits = Some(if value & 0xff == 0 { 5 } else { (value as u8).clamp(7, 8) });
                self.settings.parity = Some(match (value >> 8) & 7 {
                    1 => Parity::Odd,
                    2 => Parity::Even,
                    3 => Parity::Mark,
                    4 => Parity::Space,
                    _ => Parity::None,
                });
                self.settings.stop_bits = Some(if (value >> 11) & 3 == 0 { 1 } else { 2 });
            }
            // Purging, the latency timer and special characters change nothing here.
            _ => {}
        }
        let changed = self.settings.changed_from(&settings);
        if changed != Settings::default() {
            changes.push(Change::Settings(changed));
        }
        if self.outputs != outputs {
            changes.push(Change::Outputs(self.outputs));
        }
    }

    /// The status at the front of a packet of bytes with this fault.
    fn status(&self, fault: Option<Fault>) -> [u8; STATUS_BYTES] {
        let Inputs { cts, dsr, dcd, ri } = self.inputs;
        let lines = [(cts, CTS), (dsr, DSR), (ri, RI), (dcd, DCD)];
        let lines = lines.iter().filter(|(is_on, _)| *is_on).map(|(_, bit)| bit).sum::<u8>();
        let fault = match fault {
            None => 0,
            Some(Fault::Break) => BREAK,
            Some(Fault::Corrupt) => PARITY_ERROR,
        };
        [lines | 1, fault | if self.is_idle { TRANSMITTER_EMPTY } else { 0 }]
    }

    /// The driver has ended its transfers in: the program has closed the terminal.
    pub(super) fn close(&mut self) {
        self.is_open = false;
        self.drop_received();
    }

    /// Handles a chip that has lost its power: it knows the lines of the port alone.
    pub(super) fn pull_out(&mut self) {
        self.close();
        (self.settings, self.outputs, self.reported) = Default::default();
    }

    fn drop_received(&mut self) {
        self.received.clear();
        self.dropped_bytes += std::mem::take(&mut self.received_bytes) as u64;
    }

    /// Returns true if there is room for received bytes.
    pub(super) fn has_room(&self) -> bool {
        self.received_bytes < RECEIVED_BYTES_MAX
    }

    /// Sets the lines of the port.
    pub(super) fn set_inputs(&mut self, inputs: Inputs) {
        self.inputs = inputs;
    }

    /// Takes received bytes. Without a program they are dropped, as a port drops them.
    pub(super) fn receive(&mut self, bytes: Vec<u8>, fault: Option<Fault>) {
        self.received_bytes += bytes.len();
        self.received.push_back(Received { fault, bytes, taken: 0 });
        if !self.is_open {
            self.drop_received();
        }
    }

    /// Fills a transfer in of at most `room` bytes with packets. Returns `None` if there is nothing to report.
    pub(super) fn transfer(&mut self, room: usize) -> Option<Vec<u8>> {
        let mut transfer = Vec::new();
        while room - transfer.len() >= PACKET_BYTES
            && let Some(front) = self.received.front_mut()
        {
            // The driver takes a break for the last byte of a packet.
            let most = if front.fault == Some(Fault::Break) { 1 } else { PACKET_BYTES - STATUS_BYTES };
            let end = front.bytes.len().min(front.taken + most);
            let (fault, piece) = (front.fault, front.bytes[front.taken..end].to_vec());
            front.taken = end;
            if end == front.bytes.len() {
                self.received.pop_front();
            }
            self.received_bytes -= piece.len();
            transfer.extend(self.status(fault));
            transfer.extend_from_slice(&piece);
            // A short packet ends a transfer.
            if piece.len() < PACKET_BYTES - STATUS_BYTES {
                break;
            }
        }
        if transfer.is_empty() && self.reported != Some(self.inputs) && room >= STATUS_BYTES {
            transfer.extend(self.status(None));
        }
        if transfer.is_empty() {
            return None;
        }
        self.reported = Some(self.inputs);
        Some(transfer)
    }
}

fn string(text: &str) -> Vec<u8> {
    let units: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
    [&[(units.len() + 2) as u8, 3], &units[..]].concat()
}

/// Returns the speed of a divisor: its whole part, and the code of its fraction behind 14 bits.
fn baud(value: u16, index: u16) -> u32 {
    let divisor = u32::from(value) | u32::from(index & 1) << 16;
    let eighths = match divisor {
        0 => 8,
        1 => 12,
        _ => (divisor & 0x3fff) << 3 | FRACTIONS[(divisor >> 14 & 7) as usize],
    };
    let rounded = |divided: u32, by: u32| (divided + by / 2) / by;
    let usual = BAUDS.iter().find(|baud| rounded(DIVISOR_CLOCK, **baud) == eighths);
    usual.copied().unwrap_or_else(|| rounded(DIVISOR_CLOCK, eighths.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the divisor as the driver computes it (`ftdi_232bm_baud_base_to_divisor`).
    fn divisor(baud: u32) -> (u16, u16) {
        let eighths = (48_000_000 + baud) / (2 * baud);
        let fraction = [0, 3, 2, 4, 1, 5, 6, 7][(eighths & 7) as usize];
        let divisor = match eighths >> 3 | fraction << 14 {
            1 => 0,
            0x4001 => 1,
            other => other,
        };
        (divisor as u16, (divisor >> 16) as u16)
    }

    #[test]
    fn the_speed_of_a_divisor_is_the_one_that_the_program_set() {
        for wanted in BAUDS {
            let (value, index) = divisor(wanted);
            assert_eq!(baud(value, index), wanted);
        }
        let (value, index) = divisor(12_345);
        assert!(baud(value, index).abs_diff(12_345) < 10);
    }

    #[test]
    fn packets_carry_status_and_at_most_62_bytes() {
        let mut chip = Chip::new("board".into());
        chip.control([VENDOR_OUT, RESET, 0, 0, 0, 0, 0, 0], &mut Vec::new());
        assert_eq!(chip.transfer(512), Some(vec![1, 0x60]), "the lines at first");
        assert_eq!(chip.transfer(512), None);
        chip.receive(vec![7; 100], None);
        chip.receive(vec![0, 0], Some(Fault::Break));
        let transfer = chip.transfer(512).unwrap();
        assert_eq!(
            (transfer.len(), &transfer[..3], &transfer[64..67]),
            (104, &[1, 0x60, 7][..], &[1, 0x60, 7][..])
        );
        for _ in 0..2 {
            assert_eq!(chip.transfer(512), Some(vec![1, 0x60 | BREAK, 0]));
        }
        chip.set_inputs(Inputs { cts: true, dcd: true, ..Inputs::default() });
        assert_eq!(chip.transfer(512), Some(vec![1 | CTS | DCD, 0x60]));
    }

    #[test]
    fn bytes_without_a_program_are_dropped() {
        let mut chip = Chip::new("board".into());
        chip.receive(vec![1; 10], None);
        chip.control([VENDOR_OUT, RESET, 0, 0, 0, 0, 0, 0], &mut Vec::new());
        chip.receive(vec![2; 10], None);
        chip.close();
        chip.receive(vec![3; 10], None);
        assert_eq!((chip.dropped_bytes, chip.received_bytes), (30, 0));
    }
}
