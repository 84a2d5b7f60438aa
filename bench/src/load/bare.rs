//! The same messages over bare datagrams with as many threads and sockets. Their delay is the machine's own.

use super::{LoadSetting, Received};
use crate::setting::Failure;
use clap::Args;
use std::io::{BufRead, Write};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use sys::poller::Poller;

/// Bytes of a message: the due time and padding to Outboard's size.
const MESSAGE_BYTES: usize = 24;
/// The longest time until a receiver notices the stop.
const LOOK: Duration = Duration::from_secs(1);

/// The arguments of the sending process.
#[derive(Args, Debug)]
pub(crate) struct SendersSetting {
    peers: usize,
    flows: usize,
    rate: u32,
}

/// A process that sends and threads that receive. Dropping the value stops them.
pub(super) struct Bare {
    senders: Child,
    stop: Arc<AtomicBool>,
    receivers: Vec<JoinHandle<()>>,
}

impl Bare {
    pub(super) fn start(setting: &LoadSetting, received: &Arc<Received>) -> Result<Bare, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("load-senders");
        command.args([setting.peers, setting.flows, setting.rate as usize].map(|count| count.to_string()));
        let senders = command.stdin(Stdio::piped()).spawn()?;
        let mut bare = Bare { senders, stop: Arc::default(), receivers: Vec::new() };
        let mut to = bare.senders.stdin.take().ok_or("the senders have no input")?;
        for _ in 0..setting.peers {
            let mut sockets = Vec::new();
            for _ in 0..setting.flows {
                let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
                socket.set_nonblocking(true)?;
                writeln!(to, "{}", socket.local_addr()?.port())?;
                sockets.push(socket);
            }
            let (received, stop, poller) = (received.clone(), bare.stop.clone(), Poller::new()?);
            bare.receivers.push(thread::spawn(move || receive(&sockets, poller, &received, &stop)));
        }
        Ok(bare)
    }

    pub(super) fn senders(&self) -> u32 {
        self.senders.id()
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.senders.kill();
        let _ = self.senders.wait();
        for receiver in self.receivers.drain(..) {
            // A panic has been printed.
            let _ = receiver.join();
        }
    }
}

fn receive(sockets: &[UdpSocket], mut poller: Poller, received: &Received, stop: &AtomicBool) {
    sys::thread::be_punctual();
    sys::thread::be_prompt();
    let mut bytes = [0; MESSAGE_BYTES];
    while !stop.load(Ordering::Relaxed) {
        sockets.iter().for_each(|socket| poller.register(socket.as_fd(), true, false));
        if poller.wait(Some(LOOK)).is_err() {
            return;
        }
        for socket in sockets.iter().filter(|socket| poller.is_ready(socket.as_fd())) {
            while socket.recv(&mut bytes).is_ok() {
                let due = bytes.first_chunk().map_or(0, |due| u64::from_le_bytes(*due));
                received.add(sys::clock::boot_ns().saturating_sub(due), bytes.len());
            }
        }
    }
}

/// Sends to the ports from standard input with a thread for each peer.
pub(crate) fn send(setting: &SendersSetting) -> Result<(), Failure> {
    let mut ports = std::io::stdin().lock().lines();
    let interval_ns = 1_000_000_000 / u64::from(setting.rate.max(1));
    let count = (setting.peers * setting.flows) as u64;
    let begun = sys::clock::boot_ns();
    let mut threads = Vec::new();
    for peer in 0..setting.peers {
        let mut flows = Vec::new();
        for flow in 0..setting.flows {
            let port: u16 = ports.next().ok_or("there are fewer ports than flows")??.parse()?;
            let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
            socket.connect((Ipv4Addr::LOCALHOST, port))?;
            // The flows start one after another, those of a peer together, as Outboard's do.
            let place = (peer * setting.flows + flow) as u64;
            flows.push((begun + interval_ns * place / count.max(1), socket));
        }
        threads.push(thread::spawn(move || send_flows(flows, interval_ns)));
    }
    for thread in threads {
        thread.join().map_err(|_| "a sender panicked")??;
    }
    Ok(())
}

fn send_flows(mut flows: Vec<(u64, UdpSocket)>, interval_ns: u64) -> std::io::Result<()> {
    sys::thread::be_punctual();
    sys::thread::be_prompt();
    let mut bytes = [0; MESSAGE_BYTES];
    loop {
        let Some((due, socket)) = flows.iter_mut().min_by_key(|(due, _)| *due) else { return Ok(()) };
        thread::sleep(Duration::from_nanos(due.saturating_sub(sys::clock::boot_ns())));
        bytes[..8].copy_from_slice(&due.to_le_bytes());
        // A closed receiver belongs to a stopped process.
        let _ = socket.send(&bytes);
        *due += interval_ns;
    }
}
