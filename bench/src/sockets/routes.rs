//! The programs that carry bytes from one local socket to another.

use crate::programs;
use crate::reliability::hosts::{DEVICE, Host, Service, pair};
use crate::setting::Failure;
use crate::tunnels::{Processes, Scratch, Ssh, wait_until};
use clap::ValueEnum;
use std::fs::File;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

/// Both ends of a connection through the programs.
pub(super) type Ends = [File; 2];

/// A program that carries the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Route {
    /// No program: a TCP connection
    Bare,
    /// Two of socat, plain
    Socat,
    /// Two of socat, plain, with large buffers
    SocatLarge,
    /// Outboard over tcp with --insecure
    Insecure,
    /// Two of socat, with TLS and large buffers
    SocatTls,
    /// A port forwarded by OpenSSH
    Ssh,
    /// Outboard over tcp
    Tcp,
    /// Outboard with its default transport
    Default,
}

impl Route {
    pub(super) const ALL: [Route; 8] = [
        Route::Bare,
        Route::Socat,
        Route::SocatLarge,
        Route::Insecure,
        Route::SocatTls,
        Route::Ssh,
        Route::Tcp,
        Route::Default,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Route::Bare => "bare TCP",
            Route::Socat => "socat",
            Route::SocatLarge => "socat -b 262144",
            Route::Insecure => "outboard tcp insecure",
            Route::SocatTls => "socat TLS -b 262144",
            Route::Ssh => "ssh -L",
            Route::Tcp => "outboard tcp",
            Route::Default => "outboard default",
        }
    }
}

/// The running programs of a route. Dropping the value ends them.
pub(super) struct Running {
    ends: Option<Ends>,
    _services: Vec<Service>,
    _processes: Processes,
    _ssh: Option<Ssh>,
    _scratch: Scratch,
}

/// The two local sockets that programs connect to.
struct Sockets {
    listeners: [UnixListener; 2],
    paths: [String; 2],
}

impl Sockets {
    fn bind(scratch: &Scratch) -> Result<Sockets, Failure> {
        let paths = ["near", "far"].map(|name| scratch.path(name));
        let [near, far] = &paths;
        Ok(Sockets { listeners: [UnixListener::bind(near)?, UnixListener::bind(far)?], paths })
    }

    fn accept(&self) -> Result<Ends, Failure> {
        let [near, far] = &self.listeners;
        Ok([near.accept()?.0, far.accept()?.0].map(|stream| File::from(OwnedFd::from(stream))))
    }
}

impl Running {
    /// Starts the programs. `outboard` is the path of that program.
    pub(super) fn start(route: Route, outboard: &Path) -> Result<Running, Failure> {
        let mut running = Running {
            ends: None,
            _services: Vec::new(),
            _processes: Processes::default(),
            _ssh: None,
            _scratch: Scratch::new("sockets")?,
        };
        let ends = match route {
            Route::Bare => {
                let listener = TcpListener::bind("127.0.0.1:0")?;
                let near = TcpStream::connect(listener.local_addr()?)?;
                of_tcp(near, listener.accept()?.0)?
            }
            Route::Ssh => {
                let ssh = Ssh::start()?;
                let (near, far) = ssh.forwarded()?;
                running._ssh = Some(ssh);
                of_tcp(near, far)?
            }
            Route::Socat | Route::SocatLarge | Route::SocatTls => running.start_socat(route)?,
            Route::Insecure | Route::Tcp | Route::Default => running.start_outboard(route, outboard)?,
        };
        running.ends = Some(ends);
        Ok(running)
    }

    /// Returns the ends, once.
    pub(super) fn ends(&mut self) -> Result<Ends, Failure> {
        Ok(self.ends.take().ok_or("the ends are in use")?)
    }

    fn start_socat(&mut self, route: Route) -> Result<Ends, Failure> {
        let sockets = Sockets::bind(&self._scratch)?;
        let [near, far] = &sockets.paths;
        let address = free_address()?;
        let port = address.port();
        let (listen, connect) = match route {
            Route::SocatTls => {
                let [key, certificate] = ["key", "certificate"].map(|name| self._scratch.path(name));
                let words = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost";
                let mut words: Vec<&str> = words.split_whitespace().collect();
                words.extend(["-keyout", &key, "-out", &certificate]);
                programs::run("openssl", &words)?;
                (
                    format!(
                        "OPENSSL-LISTEN:{port},bind=127.0.0.1,reuseaddr,nodelay,cert={certificate},key={key},verify=0"
                    ),
                    format!("OPENSSL:127.0.0.1:{port},nodelay,verify=0"),
                )
            }
            _ => (
                format!("TCP-LISTEN:{port},bind=127.0.0.1,reuseaddr,nodelay"),
                format!("TCP:127.0.0.1:{port},nodelay"),
            ),
        };
        let buffers: &[&str] = if route == Route::Socat { &[] } else { &["-b", "262144"] };
        let mut socat = |from: &str, to: &str| {
            self._processes.start(Command::new("socat").args(buffers).args([from, to]))
        };
        socat(&format!("UNIX-CONNECT:{near}"), &listen)?;
        // A connection in order to see whether it listens would be the one that it accepts.
        wait_until("socat", || is_listening(port).then_some(()))?;
        socat(&connect, &format!("UNIX-CONNECT:{far}"))?;
        sockets.accept()
    }

    fn start_outboard(&mut self, route: Route, outboard: &Path) -> Result<Ends, Failure> {
        let sockets = Sockets::bind(&self._scratch)?;
        let [near, far] = &sockets.paths;
        let address = free_address()?;
        let command = |host: Host| {
            let mut command = Command::new(outboard);
            for (name, directory) in [("XDG_STATE_HOME", "state"), ("XDG_RUNTIME_DIR", "run")] {
                let path = self._scratch.path(&format!("{}-{directory}", host.letter()));
                std::fs::create_dir_all(&path)?;
                command.env(name, path);
            }
            Ok(command)
        };
        let scheme = if route == Route::Default { "" } else { "tcp://" };
        let (mut share, mut attach) = (command(Host::Device)?, command(Host::Application)?);
        share.args(["share", &format!("unix:{near}"), "--name", DEVICE]);
        share.args(["--listen", &format!("{scheme}{address}")]);
        attach.args(["attach", &format!("{scheme}{address}/{DEVICE}"), "--as", &format!("unix:{far}")]);
        match route {
            Route::Insecure => [&mut share, &mut attach].map(|command| command.arg("--insecure")),
            _ => {
                pair(&address.to_string(), command)?;
                [&mut share, &mut attach]
            }
        };
        let mut share = Service::start(share)?;
        share.wait("listening")?;
        let mut attach = Service::start(attach)?;
        attach.wait("attached")?;
        self._services = vec![attach, share];
        sockets.accept()
    }
}

fn of_tcp(near: TcpStream, far: TcpStream) -> Result<Ends, Failure> {
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    Ok([near, far].map(|stream| File::from(OwnedFd::from(stream))))
}

fn free_address() -> Result<SocketAddr, Failure> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

/// Returns true if a socket listens on this port of 127.0.0.1 (`proc_pid_net(5)`).
fn is_listening(port: u16) -> bool {
    let local = format!("0100007F:{port:04X} 00000000:0000 0A");
    std::fs::read_to_string("/proc/net/tcp").is_ok_and(|table| table.contains(&local))
}
