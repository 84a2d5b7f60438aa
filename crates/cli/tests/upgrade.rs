//! The upgrade of a service under a service manager: the program exits and leaves its devices, nodes and sessions, the next one
//! continues them. A reliable flow in each direction has no gap and no repeat, and the application's terminal stays open.

mod support;

use bytes::BytesMut;
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::thread::{self, JoinHandle};
use std::time::Duration;
use support::{FRAME_LENGTH, Scratch, Service, below_manager, wait_until};
use sys::descriptor::receive_with;
use wire::Container;

/// Lines in each direction between two upgrades.
const LINES: u32 = 200;
/// The begin of the notification that carries the state.
const STORE: &str = "FDSTORE=1\nFDNAME=outboard-state\nFDPOLL=0";
/// Upgrades of each host.
const UPGRADES: u32 = 3;

/// A service manager with one service.
struct Manager {
    place: String,
    socket: UnixDatagram,
    file: String,
    service: Service,
}

impl Manager {
    /// Runs a file as a service.
    fn start(scratch: &Scratch, name: &str, text: &str) -> Manager {
        let (place, file) = (scratch.path(&format!("{name}.notify")), scratch.path(&format!("{name}.toml")));
        std::fs::write(&file, text).unwrap();
        let socket = UnixDatagram::bind(&place).unwrap();
        let service = run(&file, &place, None);
        Manager { place, socket, file, service }
    }

    /// Returns the next notification, with its descriptors.
    fn told(&self) -> Option<(String, VecDeque<OwnedFd>)> {
        let (mut words, mut descriptors) = (BytesMut::new(), VecDeque::new());
        receive_with(&self.socket, &mut words, 4096, Some(&mut descriptors)).ok()?;
        Some((String::from_utf8_lossy(&words).into_owned(), descriptors))
    }

    /// Ends the service as systemd does for a restart: `RestartKillSignal=SIGUSR2`.
    fn hand_over(&self) {
        kill_process(Pid::from_child(&self.service.child), Signal::USR2).unwrap();
    }

    /// Restarts the service, with the stored descriptor for the next program.
    fn upgrade(&mut self) {
        self.hand_over();
        let mut stored = None;
        wait_until("the service has left its state and ended", || {
            // The end of a barrier is closed here.
            while let Some((told, mut descriptors)) = self.told() {
                if told.starts_with(STORE) {
                    stored = descriptors.pop_front();
                }
            }
            self.service.child.try_wait().unwrap().is_some()
        });
        assert_eq!(self.service.child.wait().unwrap().code(), Some(0));
        self.service = run(&self.file, &self.place, Some(stored.expect("the service has left its state")));
    }
}

fn run(file: &str, notify: &str, stored: Option<OwnedFd>) -> Service {
    let mut shell = below_manager(file);
    shell.env("NOTIFY_SOCKET", notify);
    if stored.is_some() {
        shell.env("LISTEN_FDS", "1").env("LISTEN_FDNAMES", "outboard-state");
    }
    Service::of(sys::process::start_with(&mut shell, stored.into_iter().collect()).unwrap())
}

/// Creates a terminal whose slave is a serial port. Returns the device's side, the name of the port, and a descriptor that keeps it.
fn serial_port() -> (File, String, File) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let port = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    let kept = OpenOptions::new().read(true).write(true).open(&port).unwrap();
    (master.into(), port, kept)
}

/// Writes numbered lines, slowly enough that they are in flight during the upgrades.
fn write_lines(mut to: File, count: u32) -> JoinHandle<()> {
    thread::spawn(move || {
        for number in 0..count {
            writeln!(to, "{number}").unwrap();
            thread::sleep(Duration::from_millis(1));
        }
    })
}

/// Reads exactly these lines.
struct Lines {
    from: BufReader<File>,
    next: u32,
}

impl Lines {
    fn read_to(&mut self, end: u32) {
        while self.next < end {
            let mut line = String::new();
            self.from.read_line(&mut line).expect("the terminal stays open");
            assert_eq!(line.trim_end().parse(), Ok(self.next), "{line:?}");
            self.next += 1;
        }
    }
}

#[test]
fn an_upgrade_of_either_host_keeps_the_node_and_the_flows() {
    let scratch = Scratch::new();
    let (device, port, _kept) = serial_port();
    let node = scratch.path("node");
    let at = {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = tcp.local_addr().unwrap();
        UdpSocket::bind(at).expect("the same port of UDP is free");
        at
    };
    let share =
        format!("[[share]]\ndevice = 'serial:{port}'\nname = 'port'\nlisten = '{at}'\ninsecure = true\n");
    let attach = format!("[[attach]]\nfrom = '{at}/port'\nas = 'pty:{node}'\ninsecure = true\n");
    let mut device_host = Manager::start(&scratch, "share", &share);
    device_host.service.wait("listening");
    let mut application_host = Manager::start(&scratch, "attach", &attach);
    let attached = application_host.service.wait("attached");
    let terminal = OpenOptions::new().read(true).write(true).open(&node).unwrap();

    let count = LINES * (2 * UPGRADES + 1);
    let writers =
        [write_lines(device.try_clone().unwrap(), count), write_lines(terminal.try_clone().unwrap(), count)];
    let lines = |from: &File| Lines { from: BufReader::with_capacity(1, from.try_clone().unwrap()), next: 0 };
    let (mut at_terminal, mut at_device) = (lines(&terminal), lines(&device));
    let mut end = 0;
    for _ in 0..UPGRADES {
        for is_device_host in [false, true] {
            end += LINES;
            at_terminal.read_to(end);
            at_device.read_to(end);
            if is_device_host {
                device_host.upgrade();
                device_host.service.wait("peer-joined");
            } else {
                application_host.upgrade();
                assert_eq!(application_host.service.wait("attached"), attached, "the same node");
            }
        }
    }
    at_terminal.read_to(count);
    at_device.read_to(count);
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    for (name, service) in [("share", &device_host.service), ("attach", &application_host.service)] {
        let warned = service.seen.iter().find(|event| event["event"] == "warning");
        assert!(warned.is_none(), "{name}: {warned:?}");
    }
    assert_eq!([application_host.service.stop(), device_host.service.stop()], [Some(0); 2]);
}

#[test]
fn a_first_connection_that_lasts_delays_no_upgrade() {
    let scratch = Scratch::new();
    let host = TcpListener::bind("127.0.0.1:0").unwrap();
    let share = "[[share]]\ndevice = 'pattern:rate=5'\nlisten = '127.0.0.1:0'\ninsecure = true\n";
    let attach = format!(
        "[[attach]]\nfrom = 'tcp://{}/p'\nas = 'null'\ninsecure = true\n",
        host.local_addr().unwrap()
    );
    let mut manager = Manager::start(&scratch, "both", &(share.to_string() + &attach));
    manager.service.wait("listening");
    let mut connection = host.accept().unwrap().0;
    connection.write_all(&FRAME_LENGTH).unwrap();
    manager.hand_over();
    wait_until("the begin of the end", || {
        connection.write_all(&[0]).unwrap();
        std::iter::from_fn(|| manager.told()).any(|(told, _)| told.starts_with("STOPPING=1"))
    });
    // From now on the host is silent, and the connection ends after the timeout of one step.
    let mut stored = None;
    wait_until("the state of the share", || {
        stored = manager.told();
        stored.is_some()
    });
    // The service waits for the end of its barrier.
    let (told, _state) = stored.unwrap();
    assert!(told.starts_with(STORE), "{told}");
    connection.set_nonblocking(true).unwrap();
    let end = connection.read_to_end(&mut Vec::new());
    assert_eq!(end.unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "the connection has ended before");
    wait_until("the end", || {
        while manager.told().is_some() {}
        manager.service.child.try_wait().unwrap().is_some()
    });
}

#[test]
fn an_upgrade_keeps_a_recording_whole() {
    const COUNT: u64 = 4000;
    let scratch = Scratch::new();
    let recording = scratch.path("recording");
    let device = format!("pattern:rate=400,size=64,count={COUNT}");
    let (_share, at) = Service::share(&device, &["--insecure"]);
    let attach = format!(
        "[[attach]]\nfrom = '{at}/pattern'\nas = 'null'\ninsecure = true\nvia = 'record(sink)'\n\
         port = 'record=file:{recording},frame=container'\n"
    );
    let mut manager = Manager::start(&scratch, "attach", &attach);
    manager.service.wait("attached");
    wait_until("messages are recorded", || recorded_in(&recording).len() > 100);
    manager.upgrade();
    manager.service.wait("flow-ended");
    assert_eq!(manager.service.child.wait().unwrap().code(), Some(0));
    let mut recorded = recorded_in(&recording);
    // The next program delivers again what the last one had not acknowledged.
    recorded.sort_unstable();
    recorded.dedup();
    assert!(recorded == Vec::from_iter(0..COUNT), "{} of {COUNT}: {recorded:?}", recorded.len());
}

/// Returns the numbers of the complete messages in a recording of `pattern`.
fn recorded_in(path: &str) -> Vec<u64> {
    let bytes = std::fs::read(path).unwrap_or_default();
    let (mut rest, mut numbers) = (&bytes[..], Vec::new());
    while !rest.is_empty() {
        let Ok(container) = Container::parse(rest, 1 << 20) else { break };
        let Some((whole, behind)) = rest.split_at_checked(Container::BYTES + container.length as usize)
        else {
            break;
        };
        numbers.push(u64::from_le_bytes(whole[Container::BYTES..][..8].try_into().unwrap()));
        rest = behind;
    }
    numbers
}
