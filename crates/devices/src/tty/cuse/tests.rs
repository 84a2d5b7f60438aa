//! Tests with the kernel's end of the connection: requests as `fs/fuse/cuse.c` makes them.

use super::ioctl::*;
use super::packets::REQUEST_BYTES;
use super::termios::{Termios, VMIN, VTIME};
use super::*;
use crate::serial::{Fault, Inputs, OutputLines, Outputs, Parity, SerialMessage, Settings, Speed};
use crate::tty::test_worker::{KernelEnd, TestWorker, terminal_conforms};
use contract::{Body, Ctl, CtlReply};
use std::time::Instant;

const PATIENCE: Duration = Duration::from_secs(60);
/// The time after which nothing more comes.
const QUIET: Duration = Duration::from_millis(50);
const NONBLOCK: u32 = OFlags::NONBLOCK.bits();
const IN: u32 = 1;
const OUT: u32 = 4;
const HANGUP: u32 = 0x10;

/// The kernel, the terminal's thread, and the worker.
struct Kernel {
    device: OwnedFd,
    worker: TestWorker,
    number: u64,
    /// The handle of the program that has the terminal open.
    handle: u64,
}

/// A reply: its error, its number, its results.
type Reply = (i32, u64, Vec<u8>);

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

impl Kernel {
    /// A terminal that a program has open, raw.
    fn new() -> Kernel {
        let mut kernel = Kernel::closed();
        kernel.handle = kernel.open(0).expect("an open terminal");
        kernel.set_raw(0, 1, 0);
        // Settings, lines, and the flow control that raw mode changes.
        for _ in 0..3 {
            kernel.worker.pull();
        }
        kernel.worker.close();
        kernel
    }

    fn closed() -> Kernel {
        let (device, kernel) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::NONBLOCK, None).unwrap();
        let worker = TestWorker::new(serve(kernel, Poller::new().unwrap()).unwrap());
        Kernel { device, worker, number: 0, handle: 0 }
    }

    /// Sends a request. Returns its number.
    fn submit(&mut self, operation: u32, fields: &[u8]) -> u64 {
        self.number += 2;
        let mut packet = words(&[(REQUEST_BYTES + fields.len()) as u32, operation]);
        packet.extend(self.number.to_ne_bytes());
        packet.extend([0; 8]);
        packet.extend(words(&[1000, 1000, 7, 0]));
        packet.extend(fields);
        rustix::io::write(&self.device, &packet).unwrap();
        self.number
    }

    /// Returns the next reply; `None` after the timeout.
    fn reply(&mut self, timeout: Duration) -> Option<Reply> {
        let mut polled = [PollFd::new(&self.device, PollFlags::IN)];
        let timeout = rustix::event::Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: timeout.subsec_nanos().into(),
        };
        poll(&mut polled, Some(&timeout)).unwrap();
        let mut bytes = [0; 20_000];
        let count = match rustix::io::read(&self.device, &mut bytes) {
            Ok(count) => count,
            Err(Errno::AGAIN) => return None,
            Err(error) => panic!("the terminal: {error}"),
        };
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!(word(0) as usize, count);
        let number = u64::from_ne_bytes(bytes[8..16].try_into().unwrap());
        Some((-word(4).cast_signed(), number, bytes[16..count].to_vec()))
    }

    /// Makes a request, and returns its results or its error.
    fn call(&mut self, operation: u32, fields: &[u8]) -> Result<Vec<u8>, Errno> {
        let number = self.submit(operation, fields);
        // A wakeup may come first.
        let (error, found, results) = std::iter::repeat_with(|| self.reply(PATIENCE).expect("a reply"))
            .find(|reply| reply.1 != 0)
            .unwrap();
        assert_eq!(found, number);
        if error == 0 { Ok(results) } else { Err(Errno::from_raw_os_error(error)) }
    }

    fn open(&mut self, flags: u32) -> Result<u64, Errno> {
        let results = self.call(14, &words(&[flags, 0]))?;
        Ok(u64::from_ne_bytes(results[..8].try_into().unwrap()))
    }

    fn release(&mut self, handle: u64) {
        self.call(18, &[&handle.to_ne_bytes()[..], &[0; 16]].concat()).unwrap();
    }

    /// The fields of a read or write.
    fn transfer(&self, room: usize, flags: u32) -> Vec<u8> {
        [&self.handle.to_ne_bytes()[..], &[0; 8], &words(&[room as u32, 0, 0, 0, flags, 0])].concat()
    }

    fn submit_read(&mut self, room: usize) -> u64 {
        self.submit(15, &self.transfer(room, 0))
    }

    fn read(&mut self, room: usize, flags: u32) -> Result<Vec<u8>, Errno> {
        self.call(15, &self.transfer(room, flags))
    }

    fn write(&mut self, data: &[u8], flags: u32) -> Result<usize, Errno> {
        let fields = [&self.transfer(data.len(), flags)[..], data].concat();
        let results = self.call(16, &fields)?;
        Ok(u32::from_ne_bytes(results[..4].try_into().unwrap()) as usize)
    }

    fn ioctl_fields(&self, command: u32, argument: u64, input: &[u8], room: usize) -> Vec<u8> {
        let head = [&self.handle.to_ne_bytes()[..], &words(&[2, command]), &argument.to_ne_bytes()].concat();
        [&head[..], &words(&[input.len() as u32, room as u32]), input].concat()
    }

    /// Makes an ioctl as the kernel does: without memory at first, then with the memory that the reply names.
    fn ioctl(&mut self, command: u32, argument: u64, memory: &[u8]) -> Result<Vec<u8>, Errno> {
        let results = self.call(39, &self.ioctl_fields(command, argument, &[], 0))?;
        let word = |at: usize| u32::from_ne_bytes(results[at..at + 4].try_into().unwrap());
        if word(4) != 4 {
            return Ok(results[16..].to_vec());
        }
        let length = |at: usize| u64::from_ne_bytes(results[at + 8..at + 16].try_into().unwrap()) as usize;
        let (input, room) = match (word(8), word(12)) {
            (1, 0) => (&memory[..length(16)], 0),
            (0, 1) => (&[][..], length(16)),
            other => panic!("{other:?} vectors"),
        };
        let results = self.call(39, &self.ioctl_fields(command, argument, input, room))?;
        assert_eq!(results.len(), 16 + room);
        Ok(results[16..].to_vec())
    }

    fn number(&mut self, command: u32) -> u32 {
        u32::from_ne_bytes(self.ioctl(command, 8, &[]).unwrap().try_into().unwrap())
    }

    fn termios(&mut self) -> Termios {
        let bytes = self.ioctl(TCGETS2, 8, &[]).unwrap();
        Termios::default().parse(&bytes).unwrap()
    }

    /// Makes the terminal raw, as cfmakeraw(3) does.
    fn set_raw(&mut self, input: u32, least: u8, timeout: u8) {
        let mut termios = self.termios();
        (termios.characters[VMIN], termios.characters[VTIME]) = (least, timeout);
        let mut bytes = termios.emit();
        bytes[..4].copy_from_slice(&input.to_ne_bytes());
        bytes[4..8].fill(0);
        bytes[12..16].fill(0);
        self.ioctl(TCSETS, 8, &bytes).unwrap();
    }

    fn poll(&mut self, wakeup: Option<u64>) -> u32 {
        let flags = u32::from(wakeup.is_some());
        let fields =
            [&self.handle.to_ne_bytes()[..], &wakeup.unwrap_or(0).to_ne_bytes(), &words(&[flags, IN])]
                .concat();
        let results = self.call(40, &fields).unwrap();
        u32::from_ne_bytes(results[..4].try_into().unwrap())
    }

    fn pull_lines(&mut self) -> OutputLines {
        self.worker.pull_outputs().lines
    }

    /// Pushes lines, and waits until the terminal has them.
    fn set_inputs(&mut self, inputs: Inputs, bits: u32) {
        self.worker.push(SerialMessage::Inputs(inputs));
        let start = Instant::now();
        while self.number(TIOCMGET) & !(TIOCM_DTR | TIOCM_RTS) != bits {
            assert!(start.elapsed() < PATIENCE, "the lines do not change");
        }
    }
}

fn data(bytes: &[u8]) -> SerialMessage {
    SerialMessage::Data(Body::from(bytes.to_vec()))
}

impl KernelEnd for Kernel {
    fn worker(&mut self) -> &mut TestWorker {
        &mut self.worker
    }

    fn write_text(&mut self, text: &[u8]) {
        self.write(text, 0).unwrap();
    }

    fn read_all(&mut self) -> Vec<u8> {
        let mut read = Vec::new();
        loop {
            match self.read(4096, NONBLOCK) {
                Ok(bytes) => read.extend(bytes),
                Err(Errno::AGAIN) => {
                    self.poll(Some(1));
                    // The wakeup tells that more has arrived.
                    if self.reply(QUIET).is_none() {
                        return read;
                    }
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
}

#[test]
fn a_terminal_conforms() {
    terminal_conforms(Kernel::new);
}

#[test]
fn settings_lines_and_data_of_a_program_arrive_in_order() {
    let mut kernel = Kernel::closed();
    kernel.handle = kernel.open(0).unwrap();
    let SerialMessage::Settings(first) = kernel.worker.pull() else { panic!("no settings") };
    let baud = |baud| Some(Speed { input_baud: baud, output_baud: baud });
    assert_eq!((first.speed, first.data_bits, first.parity), (baud(9600), Some(8), Some(Parity::None)));
    let both = OutputLines { dtr: true, rts: true, breaks: false };
    assert_eq!(kernel.pull_lines(), both);
    // 115200 baud, 7E2.
    let mut bytes = kernel.termios().emit();
    bytes[8..12]
        .copy_from_slice(&(0o10002_u32 | 0o40 | 0o100 | 0o200 | 0o400 | 0o2000 | 0o4000).to_ne_bytes());
    kernel.ioctl(TCSETSF, 8, &bytes).unwrap();
    kernel.set_raw(0, 1, 0);
    kernel.write(b"AT", 0).unwrap();
    kernel.ioctl(TIOCMBIC, 8, &TIOCM_DTR.to_ne_bytes()).unwrap();
    kernel.ioctl(TIOCMSET, 8, &TIOCM_DTR.to_ne_bytes()).unwrap();
    let expected = Settings {
        speed: baud(115_200),
        data_bits: Some(7),
        parity: Some(Parity::Even),
        stop_bits: Some(2),
        flow: None,
    };
    assert_eq!(kernel.worker.pull(), SerialMessage::Settings(expected));
    assert!(matches!(
        kernel.worker.pull(),
        SerialMessage::Settings(Settings { flow: Some(_), speed: None, .. })
    ));
    assert_eq!(kernel.worker.pull(), data(b"AT"));
    assert_eq!(kernel.pull_lines(), OutputLines { dtr: false, ..both });
    assert_eq!(kernel.pull_lines(), OutputLines { rts: false, ..both });
    assert_eq!(kernel.number(TIOCMGET), TIOCM_DTR);
    // The speed 0 hangs up.
    let mut bytes = kernel.termios().emit();
    bytes[8] &= !0xf;
    bytes[9] &= !0x10;
    kernel.ioctl(TCSETS2, 8, &bytes).unwrap();
    assert_eq!(kernel.pull_lines(), OutputLines::default());
    // A snapshot has everything once more.
    kernel.worker.ctl(Ctl::Snapshot);
    let SerialMessage::Settings(all) = kernel.worker.pull() else { panic!("no settings") };
    assert_eq!((all.speed, all.data_bits), (baud(115_200), Some(7)));
    assert_eq!(kernel.pull_lines(), OutputLines::default());
}

#[test]
fn reads_end_by_count_time_line_and_signal() {
    let mut kernel = Kernel::new();
    assert_eq!(kernel.read(10, NONBLOCK), Err(Errno::AGAIN));
    let read = kernel.submit_read(10);
    kernel.worker.push(data(b"one"));
    assert_eq!(kernel.reply(PATIENCE), Some((0, read, b"one".to_vec())));
    // VMIN: a read takes what arrives, and ends with enough.
    kernel.set_raw(0, 5, 0);
    let read = kernel.submit_read(10);
    kernel.worker.push(data(b"abc"));
    assert_eq!(kernel.reply(QUIET), None);
    kernel.worker.push(data(b"def"));
    assert_eq!(kernel.reply(PATIENCE), Some((0, read, b"abcdef".to_vec())));
    // A signal: the bytes that it has, or none.
    let read = kernel.submit_read(10);
    kernel.submit(36, &read.to_ne_bytes());
    assert_eq!(kernel.reply(PATIENCE), Some((Errno::INTR.raw_os_error(), read, Vec::new())));
    let read = kernel.submit_read(10);
    kernel.worker.push(data(b"xy"));
    assert_eq!(kernel.reply(QUIET), None);
    kernel.submit(36, &read.to_ne_bytes());
    assert_eq!(kernel.reply(PATIENCE), Some((0, read, b"xy".to_vec())));
    // VTIME: without VMIN a read ends by itself.
    kernel.set_raw(0, 0, 1);
    assert_eq!(kernel.read(10, 0), Ok(Vec::new()));
    kernel.set_raw(0, 0, 0);
    assert_eq!(kernel.read(10, NONBLOCK), Ok(Vec::new()));
    // With both the time runs from the first byte on.
    kernel.set_raw(0, 200, 1);
    let read = kernel.submit_read(10);
    assert_eq!(kernel.reply(Duration::from_millis(300)), None);
    kernel.worker.push(data(b"z"));
    assert_eq!(kernel.reply(PATIENCE), Some((0, read, b"z".to_vec())));
    // Lines.
    kernel.ioctl(TCSETS, 8, &Termios::default().emit()).unwrap();
    let read = kernel.submit_read(10);
    kernel.worker.push(data(b"line\rmore"));
    assert_eq!(kernel.reply(PATIENCE), Some((0, read, b"line\n".to_vec())));
    assert_eq!((kernel.poll(None) & IN, kernel.number(TIOCINQ)), (0, 0));
}

#[test]
fn a_poll_is_woken_and_a_carrier_hangs_up() {
    let mut kernel = Kernel::new();
    assert_eq!(kernel.poll(Some(77)) & (IN | OUT), OUT);
    kernel.worker.push(data(b"x"));
    let wakeup = (-1, 0, 77_u64.to_ne_bytes().to_vec());
    assert_eq!(kernel.reply(PATIENCE), Some(wakeup.clone()));
    assert_eq!(kernel.poll(None) & IN, IN);
    kernel.ioctl(TCFLSH, 0, &[]).unwrap();
    assert_eq!(kernel.poll(Some(77)) & IN, 0);
    // With CLOCAL a lost carrier is a changed line.
    let on = Inputs { dcd: true, ..Inputs::default() };
    kernel.set_inputs(on, TIOCM_CD);
    kernel.set_inputs(Inputs::default(), 0);
    let mut bytes = kernel.termios().emit();
    bytes[9] &= !0x8;
    kernel.ioctl(TCSETS, 8, &bytes).unwrap();
    kernel.set_inputs(on, TIOCM_CD);
    let read = kernel.submit_read(10);
    kernel.worker.push(SerialMessage::Inputs(Inputs::default()));
    assert_eq!(kernel.reply(PATIENCE), Some((0, read, Vec::new())), "the end of the file");
    assert_eq!(kernel.reply(PATIENCE), Some(wakeup));
    assert_eq!(kernel.poll(None) & HANGUP, HANGUP);
    assert_eq!(kernel.write(b"lost", 0), Err(Errno::IO));
    assert_eq!(kernel.ioctl(TIOCMGET, 8, &[]), Err(Errno::IO));
    assert_eq!(kernel.pull_lines(), OutputLines::default());
    // The next open waits for a carrier; a signal ends its wait.
    let open = kernel.submit(14, &words(&[0, 0]));
    assert_eq!(kernel.reply(QUIET), None);
    kernel.submit(36, &open.to_ne_bytes());
    assert_eq!(kernel.reply(PATIENCE), Some((Errno::INTR.raw_os_error(), open, Vec::new())));
    let open = kernel.submit(14, &words(&[0, 0]));
    assert_eq!(kernel.reply(QUIET), None);
    kernel.worker.push(SerialMessage::Inputs(on));
    let (error, number, _) = kernel.reply(PATIENCE).unwrap();
    assert_eq!((error, number), (0, open));
}

#[test]
fn lines_of_the_port_are_waited_for_and_counted() {
    let mut kernel = Kernel::new();
    kernel.set_inputs(Inputs { cts: true, ..Inputs::default() }, TIOCM_CTS);
    let mask = u64::from(TIOCM_DSR | TIOCM_RI);
    let wait = kernel.submit(39, &kernel.ioctl_fields(TIOCMIWAIT, mask, &[], 0));
    kernel.worker.push(SerialMessage::Inputs(Inputs::default()));
    kernel.worker.push(SerialMessage::Inputs(Inputs { ri: true, ..Inputs::default() }));
    assert_eq!(kernel.reply(QUIET), None, "CTS is not waited for, and a ring counts at its end");
    kernel.worker.push(SerialMessage::Inputs(Inputs::default()));
    assert_eq!(kernel.reply(PATIENCE), Some((0, wait, vec![0; 16])));
    kernel.worker.push(SerialMessage::Fault(Fault::Break, Body::from(vec![0])));
    kernel.worker.push(data(b"abc"));
    let read = kernel.submit_read(10);
    let (_, number, bytes) = kernel.reply(PATIENCE).unwrap();
    assert!(number == read && bytes[0] == 0, "{bytes:?}");
    while kernel.number(TIOCINQ) as usize + bytes.len() < 4 {}
    kernel.write(b"hello", 0).unwrap();
    let counts = kernel.ioctl(TIOCGICOUNT, 8, &[]).unwrap();
    // CTS, DSR, RI, DCD, received, sent; breaks.
    assert_eq!(counts[..24], words(&[2, 0, 1, 0, 3, 5]));
    assert_eq!(counts[36..40], words(&[1]));
    // As if the cable were pulled out.
    kernel.set_inputs(Inputs { cts: true, dsr: true, dcd: true, ri: true }, 0x1e0);
    kernel.worker.ctl(Ctl::Neutral);
    let start = Instant::now();
    while kernel.number(TIOCMGET) != TIOCM_DTR | TIOCM_RTS {
        assert!(start.elapsed() < PATIENCE, "the lines stay on");
    }
    assert!(matches!(kernel.worker.ctl(Ctl::IsNeutral), CtlReply::Count(1)));
}

#[test]
fn breaks_last_and_the_last_close_turns_the_lines_off() {
    let mut kernel = Kernel::new();
    let both = OutputLines { dtr: true, rts: true, breaks: false };
    kernel.write(b"before", 0).unwrap();
    let wait = kernel.submit(39, &kernel.ioctl_fields(TCSBRK, 0, &[], 0));
    assert_eq!(kernel.worker.pull(), data(b"before"));
    assert_eq!(kernel.pull_lines(), OutputLines { breaks: true, ..both });
    let Outputs { lines, since_us } = kernel.worker.pull_outputs();
    assert_eq!(lines, both);
    assert!(since_us >= 250_000, "{since_us}");
    assert_eq!(kernel.reply(PATIENCE), Some((0, wait, vec![0; 16])));
    kernel.ioctl(TIOCSBRK, 0, &[]).unwrap();
    assert_eq!(kernel.pull_lines(), OutputLines { breaks: true, ..both });
    // Exclusive use, and the last of two closes.
    let second = kernel.open(NONBLOCK).unwrap();
    kernel.ioctl(TIOCEXCL, 0, &[]).unwrap();
    assert_eq!(kernel.open(0), Err(Errno::BUSY));
    kernel.release(second);
    assert_eq!(kernel.number(TIOCGEXCL), 1);
    kernel.worker.push(data(b"unread"));
    let start = Instant::now();
    while kernel.number(TIOCINQ) < 6 {
        assert!(start.elapsed() < PATIENCE, "no bytes arrive");
    }
    kernel.release(kernel.handle);
    assert_eq!(kernel.pull_lines(), OutputLines::default());
    kernel.handle = kernel.open(0).unwrap();
    assert_eq!((kernel.number(TIOCINQ), kernel.number(TIOCGEXCL)), (0, 0));
    assert!(matches!(kernel.worker.pull(), SerialMessage::Settings(Settings { speed: Some(_), .. })));
    assert_eq!(kernel.pull_lines(), both);
}

#[test]
fn other_ioctls_are_those_of_a_terminal() {
    let mut kernel = Kernel::new();
    assert_eq!(kernel.ioctl(0x540f, 8, &[]), Err(Errno::NOTTY), "no process group");
    assert_eq!(kernel.ioctl(TIOCGWINSZ, 8, &[]), Ok(vec![0; 8]));
    kernel.ioctl(TIOCSWINSZ, 8, &[24, 0, 80, 0, 0, 0, 0, 0]).unwrap();
    assert_eq!(kernel.ioctl(TIOCGWINSZ, 8, &[]).unwrap()[2], 80);
    let mut serial = kernel.ioctl(TIOCGSERIAL, 8, &[]).unwrap();
    assert_eq!(serial[17], 0x20, "low latency");
    serial[17] = 0;
    kernel.ioctl(TIOCSSERIAL, 8, &serial).unwrap();
    assert_eq!(kernel.ioctl(TIOCGSERIAL, 8, &[]), Ok(serial.clone()));
    serial[16] = 0x30;
    assert_eq!(kernel.ioctl(TIOCSSERIAL, 8, &serial), Err(Errno::INVAL), "a divisor");
    // TCXONC: bytes of the program's, and a stopped output.
    kernel.ioctl(TCXONC, 2, &[]).unwrap();
    assert_eq!(kernel.worker.pull(), data(&[19]));
    kernel.ioctl(TCXONC, 0, &[]).unwrap();
    assert_eq!(kernel.write(b"x", NONBLOCK), Err(Errno::AGAIN));
    let head = kernel.transfer(1, 0);
    let write = kernel.submit(16, &[&head[..], b"x"].concat());
    assert_eq!(kernel.reply(QUIET), None);
    assert_eq!(kernel.number(TIOCOUTQ), 1);
    let resume = kernel.submit(39, &kernel.ioctl_fields(TCXONC, 1, &[], 0));
    let mut numbers = [kernel.reply(PATIENCE).unwrap().1, kernel.reply(PATIENCE).unwrap().1];
    numbers.sort_unstable();
    assert_eq!(numbers, [write, resume]);
    assert_eq!(kernel.worker.pull(), data(b"x"));
    // Operations of file systems.
    assert_eq!(kernel.call(3, &[0; 16]), Err(Errno::NOSYS));
}

#[test]
fn a_new_worker_finds_the_pending_read() {
    let mut kernel = Kernel::new();
    let read = kernel.submit_read(10);
    kernel.worker.restart();
    kernel.worker.push(data(b"again"));
    assert_eq!(kernel.reply(PATIENCE), Some((0, read, b"again".to_vec())));
}

#[test]
fn a_program_that_is_faster_than_the_network_waits_and_may_give_up() {
    let mut kernel = Kernel::new();
    let mut taken = 0;
    while let Ok(count) = kernel.write(&[7; 256], NONBLOCK) {
        taken += count;
        assert!(taken < 100_000_000, "nothing ever waits");
    }
    assert_eq!(kernel.poll(None) & OUT, 0);
    let head = kernel.transfer(1, 0);
    let write = kernel.submit(16, &[&head[..], b"x"].concat());
    assert_eq!(kernel.reply(QUIET), None);
    kernel.submit(36, &write.to_ne_bytes());
    assert_eq!(kernel.reply(PATIENCE), Some((Errno::INTR.raw_os_error(), write, Vec::new())));
    // Changes without a bound: the last state counts.
    for number in 0..2000_u32 {
        kernel.ioctl(TIOCMSET, 8, &(number % 4 * TIOCM_DTR).to_ne_bytes()).unwrap();
    }
    let (mut received, mut last) = (0, None);
    while received < taken || last != Some(OutputLines { dtr: true, rts: true, breaks: false }) {
        match kernel.worker.pull() {
            SerialMessage::Data(data) => received += data.len(),
            SerialMessage::Outputs(Outputs { lines, .. }) => last = Some(lines),
            SerialMessage::Settings(_) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(received, taken);
}

#[test]
fn the_terminal_ends_when_nobody_holds_it() {
    let Kernel { device, worker, .. } = Kernel::new();
    drop(worker);
    let mut polled = [PollFd::new(&device, PollFlags::IN)];
    poll(&mut polled, None).unwrap();
    assert_eq!(rustix::io::read(&device, &mut [0; 100]), Ok(0));
    // And the worker notices that the kernel removed the device.
    let Kernel { device, worker, .. } = Kernel::new();
    drop(device);
    worker.await_removal();
}

#[test]
fn any_input_of_the_fuzzer_passes() {
    for seed in 0..200_u8 {
        let bytes: Vec<u8> =
            (0..2000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 16) as u8 ^ seed).collect();
        fuzz::handle(&bytes);
    }
}
