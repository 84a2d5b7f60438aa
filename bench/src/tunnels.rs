//! The same messages through other programs' tunnels: a port forwarded by OpenSSH, and WireGuard in user space (wireguard-go),
//! beside bare TCP and Outboard over the same network.
//!
//! OpenSSH runs over loopback. WireGuard joins two network namespaces with a veth pair of 1,500 bytes: within one namespace the
//! kernel would not use it.

use crate::bare;
use crate::devices::Window;
use crate::flood::{self, Load};
use crate::lab::in_namespace;
use crate::latency::{self, joined};
use crate::measure::{Times, median};
use crate::ours::Link;
use crate::setting::{Failure, Setting};
use rustix::net::sockopt;
use serde_json::{Value, json};
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Round trips of a turn and bytes of each message.
const PINGS: [(usize, usize); 2] = [(1000, 24), (50, 1_000_000)];
/// Messages of a turn and bytes of each, for throughput.
const LOADS: [(usize, usize); 2] = [(50_000, 1000), (200, 1_000_000)];
/// The longest start of a tunnel.
const PATIENCE: Duration = Duration::from_secs(20);

/// The route of the messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Route {
    Bare,
    Tunnel,
    Tcp,
    Quic,
}

const ROUTES: [Route; 4] = [Route::Bare, Route::Tunnel, Route::Tcp, Route::Quic];

/// A network with its tunnel.
trait Network {
    fn name(&self) -> &'static str;

    fn tunnel(&self) -> &'static str;

    /// Returns both ends of a connection, the other host's second.
    fn connection(&self, through_tunnel: bool) -> Result<(TcpStream, TcpStream), Failure>;

    /// Returns both ends for datagrams without the tunnel, the other host's second.
    fn datagrams(&self) -> Result<(UdpSocket, UdpSocket), Failure>;
}

fn run_program(program: &str, arguments: &[&str]) -> Result<(), Failure> {
    let output = Command::new(program).args(arguments).output();
    let output = output.map_err(|error| format!("{program}: {error}; install it"))?;
    match output.status.success() {
        true => Ok(()),
        false => {
            Err(format!("{program} {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr))
                .into())
        }
    }
}

pub(crate) fn wait_until<T>(program: &str, mut attempt: impl FnMut() -> Option<T>) -> Result<T, Failure> {
    let begun = Instant::now();
    loop {
        if let Some(done) = attempt() {
            return Ok(done);
        }
        if begun.elapsed() > PATIENCE {
            return Err(format!("{program} is not ready within {} s", PATIENCE.as_secs()).into());
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// A temporary directory. Dropping the value removes it.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Result<Scratch, Failure> {
        let path = std::env::temp_dir().join(format!("outboard-{name}-{}", std::process::id()));
        std::fs::create_dir(&path)?;
        Ok(Scratch(path))
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Processes that stop when the value is dropped.
#[derive(Default)]
pub(crate) struct Processes(Vec<Child>);

impl Processes {
    pub(crate) fn start(&mut self, command: &mut Command) -> Result<(), Failure> {
        let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let program = quiet.get_program().to_string_lossy().into_owned();
        self.0.push(quiet.spawn().map_err(|error| format!("{program}: {error}; install it"))?);
        Ok(())
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for process in &mut self.0 {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// A port forwarded by OpenSSH over loopback with the default cipher.
pub(crate) struct Ssh {
    _processes: Processes,
    _scratch: Scratch,
    /// The destination of the forwarded port.
    listener: TcpListener,
    forwarded: SocketAddr,
}

impl Ssh {
    pub(crate) fn start() -> Result<Ssh, Failure> {
        let scratch = Scratch::new("ssh")?;
        let (host, user, allowed) = (scratch.path("host"), scratch.path("user"), scratch.path("allowed"));
        for key in [&host, &user] {
            run_program("ssh-keygen", &["-q", "-t", "ed25519", "-N", "", "-f", key])?;
        }
        std::fs::copy(format!("{user}.pub"), &allowed)?;
        // The directory for sshd's privilege separation.
        std::fs::create_dir_all("/run/sshd")?;
        let free = || Ok::<_, Failure>(TcpListener::bind("127.0.0.1:0")?.local_addr()?);
        let (server, forwarded) = (free()?, free()?);
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let mut processes = Processes::default();
        let mut sshd = Command::new("/usr/sbin/sshd");
        sshd.args(["-D", "-f", "/dev/null"]);
        for option in [
            format!("Port={}", server.port()),
            "ListenAddress=127.0.0.1".into(),
            format!("HostKey={host}"),
            format!("AuthorizedKeysFile={allowed}"),
            "StrictModes=no".into(),
            "UsePAM=no".into(),
            "PidFile=none".into(),
        ] {
            sshd.args(["-o", &option]);
        }
        processes.start(&mut sshd)?;
        wait_until("sshd", || TcpStream::connect(server).ok())?;
        let mut ssh = Command::new("ssh");
        ssh.args(["-N", "-F", "none", "-i", &user, "-p", &server.port().to_string()]);
        ssh.args(["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]);
        ssh.args(["-o", "ExitOnForwardFailure=yes", "-o", "BatchMode=yes"]);
        ssh.args(["-L", &format!("{forwarded}:{}", listener.local_addr()?), "127.0.0.1"]);
        processes.start(&mut ssh)?;
        let ssh = Ssh { _processes: processes, _scratch: scratch, listener, forwarded };
        wait_until("the port that ssh forwards", || TcpStream::connect(ssh.forwarded).ok())?;
        ssh.listener.accept()?;
        Ok(ssh)
    }
}

impl Ssh {
    /// Returns both ends of a connection through the forwarded port, the other host's second.
    pub(crate) fn forwarded(&self) -> Result<(TcpStream, TcpStream), Failure> {
        let near = TcpStream::connect(self.forwarded)?;
        Ok((near, self.listener.accept()?.0))
    }
}

impl Network for Ssh {
    fn name(&self) -> &'static str {
        "loopback"
    }

    fn tunnel(&self) -> &'static str {
        "ssh -L"
    }

    fn connection(&self, through_tunnel: bool) -> Result<(TcpStream, TcpStream), Failure> {
        if through_tunnel {
            return self.forwarded();
        }
        let near = TcpStream::connect(self.listener.local_addr()?)?;
        Ok((near, self.listener.accept()?.0))
    }

    fn datagrams(&self) -> Result<(UdpSocket, UdpSocket), Failure> {
        flood::datagram_pair()
    }
}

/// WireGuard between two network namespaces.
struct WireGuard {
    _processes: Processes,
    names: [String; 2],
}

/// Addresses of the two hosts on the network and in the tunnel.
const PLAIN: [&str; 2] = ["10.231.7.1", "10.231.7.2"];
const TUNNELLED: [&str; 2] = ["10.232.7.1", "10.232.7.2"];
const WIREGUARD_PORT: &str = "51820";

impl WireGuard {
    fn start() -> Result<WireGuard, Failure> {
        let scratch = Scratch::new("wireguard")?;
        let names = ["a", "b"].map(|host| format!("outboard-{}-{host}", std::process::id()));
        // Created first: dropping it removes the namespaces after any failure.
        let mut made = WireGuard { _processes: Processes::default(), names };
        let ip = |words: String| run_program("ip", &words.split_whitespace().collect::<Vec<_>>());
        let [a, b] = made.names.clone();
        ip(format!("netns add {a}"))?;
        ip(format!("netns add {b}"))?;
        ip(format!("-n {a} link add wire type veth peer name wire netns {b}"))?;
        let devices = ["a", "b"].map(|host| format!("wg{}{host}", std::process::id()));
        let mut public = Vec::new();
        for (host, name) in made.names.iter().enumerate() {
            ip(format!("-n {name} addr add {}/24 dev wire", PLAIN[host]))?;
            ip(format!("-n {name} link set wire up"))?;
            ip(format!("-n {name} link set lo up"))?;
            let mut wireguard = Command::new("ip");
            wireguard.args(["netns", "exec", name, "wireguard-go", "-f", &devices[host]]);
            wireguard.env("LOG_LEVEL", "error").env("WG_PROCESS_FOREGROUND", "1");
            made._processes.start(&mut wireguard)?;
            let control = format!("/var/run/wireguard/{}.sock", devices[host]);
            wait_until("wireguard-go", || Path::new(&control).exists().then_some(()))?;
            let private = Command::new("wg").arg("genkey").output()?.stdout;
            std::fs::write(scratch.path(&devices[host]), &private)?;
            let mut wg =
                Command::new("wg").arg("pubkey").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
            wg.stdin.take().ok_or("wg without an input")?.write_all(&private)?;
            public.push(String::from_utf8(wg.wait_with_output()?.stdout)?.trim().to_string());
        }
        for (host, name) in made.names.iter().enumerate() {
            let (device, other) = (&devices[host], 1 - host);
            let private = scratch.path(device);
            let endpoint = format!("{}:{WIREGUARD_PORT}", PLAIN[other]);
            run_program(
                "wg",
                &[
                    "set",
                    device,
                    "listen-port",
                    WIREGUARD_PORT,
                    "private-key",
                    &private,
                    "peer",
                    &public[other],
                    "allowed-ips",
                    &format!("{}/32", TUNNELLED[other]),
                    "endpoint",
                    &endpoint,
                ],
            )?;
            ip(format!("-n {name} addr add {}/24 dev {device}", TUNNELLED[host]))?;
            ip(format!("-n {name} link set {device} mtu 1420 up"))?;
        }
        Ok(made)
    }
}

impl Network for WireGuard {
    fn name(&self) -> &'static str {
        "veth, 1500 B"
    }

    fn tunnel(&self) -> &'static str {
        "wireguard-go"
    }

    fn connection(&self, through_tunnel: bool) -> Result<(TcpStream, TcpStream), Failure> {
        let address = if through_tunnel { TUNNELLED } else { PLAIN }[1];
        let listener = in_namespace(&self.names[1], || Ok(TcpListener::bind((address, 0))?))?;
        let to = listener.local_addr()?;
        let near = in_namespace(&self.names[0], || Ok(TcpStream::connect(to)?))?;
        Ok((near, listener.accept()?.0))
    }

    fn datagrams(&self) -> Result<(UdpSocket, UdpSocket), Failure> {
        let bind = |host: usize| in_namespace(&self.names[host], || Ok(UdpSocket::bind((PLAIN[host], 0))?));
        let (near, far) = (bind(0)?, bind(1)?);
        near.connect(far.local_addr()?)?;
        far.connect(near.local_addr()?)?;
        Ok((near, far))
    }
}

impl Drop for WireGuard {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = run_program("ip", &["netns", "delete", name]);
        }
    }
}

/// Returns Outboard's link and the sockets for it.
fn ours(
    setting: &Setting,
    network: &dyn Network,
    route: Route,
    both_ways: bool,
) -> Result<(Link, [OwnedFd; 2]), Failure> {
    if route == Route::Quic {
        let (near, far) = network.datagrams()?;
        return Ok((flood::quic(both_ways)?, [near.into(), far.into()]));
    }
    let (near, far) = connection(setting, network, false)?;
    let mut link = latency::tcp(setting, both_ways)?;
    link.sealed = true;
    Ok((link, [near.into(), far.into()]))
}

fn connection(
    setting: &Setting,
    network: &dyn Network,
    through_tunnel: bool,
) -> Result<(TcpStream, TcpStream), Failure> {
    let (near, far) = network.connection(through_tunnel)?;
    for socket in [&near, &far] {
        socket.set_nodelay(true)?;
        sockopt::set_tcp_congestion(socket, &setting.congestion)?;
    }
    Ok((near, far))
}

/// Measures the median one-way time in nanoseconds, one message at a time.
fn ping(
    setting: &Setting,
    network: &dyn Network,
    route: Route,
    (count, size): (usize, usize),
) -> Result<f64, Failure> {
    let times: Times = match route {
        Route::Bare | Route::Tunnel => {
            let sockets = connection(setting, network, route == Route::Tunnel)?;
            latency::bare_turn_over(setting, sockets, size, count)?
        }
        Route::Tcp | Route::Quic => {
            let (link, sockets) = ours(setting, network, route, true)?;
            latency::our_turn_over(setting, &link, sockets, size, count)?
        }
    };
    Ok(times.percentile_us(0.5) * 1e3)
}

/// Measures the time of a message in nanoseconds at full throughput.
fn stream(
    setting: &Setting,
    network: &dyn Network,
    route: Route,
    (messages, size): (usize, usize),
) -> Result<f64, Failure> {
    let nanoseconds = match route {
        Route::Bare | Route::Tunnel => {
            let (near, far) = connection(setting, network, route == Route::Tunnel)?;
            let (window, begun_ns) = (Window::default(), sys::clock::boot_ns());
            thread::scope(|scope| {
                let drain = scope.spawn(|| {
                    setting.settle(1);
                    bare::drain(far, size, &window)
                });
                let flood = scope.spawn(|| {
                    setting.settle(0);
                    bare::flood(near, size, messages)
                });
                joined(flood)?;
                joined(drain)
            })?;
            window.received_ns().saturating_sub(begun_ns)
        }
        Route::Tcp | Route::Quic => {
            let (link, sockets) = ours(setting, network, route, false)?;
            let load = Load { messages, message_bytes: size, window_bytes: u64::MAX };
            flood::our_turn(setting, &link, sockets, load)?.nanoseconds
        }
    };
    Ok(nanoseconds as f64 / messages as f64)
}

/// Runs `tunnels`.
pub(crate) fn run(setting: &Setting) -> Result<Value, Failure> {
    println!(
        "Nanoseconds per message, and the ratio to bare TCP ({}); {} rounds",
        setting.congestion, setting.rounds
    );
    println!(
        "Ours: both hosts in the measuring process, without the sockets of programs (`sockets` has them); bare TCP writes \
         each message by itself"
    );
    println!(
        "{:<14} {:<20} {:>8} {:>10} {:>22} {:>18} {:>18}",
        "", "", "bytes", "bare", "tunnel", "ours, tcp sealed", "ours, quic"
    );
    type Start = fn() -> Result<Box<dyn Network>, Failure>;
    let starts: [Start; 2] = [|| Ok(Box::new(Ssh::start()?)), || Ok(Box::new(WireGuard::start()?))];
    let mut rows = Vec::new();
    for start in starts {
        let network = match start() {
            Ok(network) => network,
            Err(error) => {
                println!("SKIPPED: {error}");
                continue;
            }
        };
        type Turn = fn(&Setting, &dyn Network, Route, (usize, usize)) -> Result<f64, Failure>;
        let pings = PINGS.iter().map(|load| ("one-way delay (p50)", *load, ping as Turn));
        let loads = LOADS.iter().map(|load| ("full throughput", *load, stream as Turn));
        for (load_name, load, turn) in pings.chain(loads) {
            let mut times: [Vec<f64>; ROUTES.len()] = Default::default();
            for round in 0..setting.rounds {
                // Each route is first in turn.
                for index in 0..ROUTES.len() {
                    let route = (index + round) % ROUTES.len();
                    times[route].push(turn(setting, network.as_ref(), ROUTES[route], load)?);
                }
            }
            let [bare, tunnel, tcp, quic] = times.map(|times| median(&times));
            let (place, by, size) = (network.name(), network.tunnel(), load.1);
            let against = |time: f64| format!("{time:.0} {:6.2}", time / bare);
            println!(
                "{place:<14} {load_name:<20} {size:>8} {bare:>10.0} {:>22} {:>18} {:>18}",
                format!("{by} {}", against(tunnel)),
                against(tcp),
                against(quic)
            );
            rows.push(
                json!({ "network": place, "tunnel": by, "load": load_name, "bytes": size, "bare_ns": bare,
                              "tunnel_ns": tunnel, "tcp_sealed_ns": tcp, "quic_ns": quic }),
            );
        }
    }
    Ok(
        json!({ "experiment": "tunnels", "congestion": setting.congestion, "rounds": setting.rounds, "rows": rows }),
    )
}
