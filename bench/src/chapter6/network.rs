//! The two hosts of the experiments: this process and a process that is the far host, on the loopback interface or in
//! namespaces of `netlab`.

use super::far::{Ports, SCREEN, answers, pipelines};
use super::paper;
use super::services::ping;
use super::setting::{Block, CPUS, Carrier, ChapterSetting, NetworkKind, WATCHDOG, limits};
use crate::display::cpu_ns;
use crate::lab::{Lab, apart};
use crate::programs::{beside, progress};
use crate::setting::Failure;
use broker::{ApplicationHost, AttachRequest, AttachTarget, Event};
use contract::{Options, TransportClass};
use flow::nodes::Conflict;
use hub::ApplicationChoice;
use modules::{Pipelines, TransportPlan, registry};
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;
use std::thread;
use std::time::Duration;
use sys::stop::Stop;
use trust::Trust;

/// Share of an Ethernet packet of 1500 bytes that TCP leaves to the payload.
const PAYLOAD_SHARE: f64 = 1448.0 / 1500.0;
/// Round trips that measure the lab's own delay.
const PINGS: usize = 200;

/// This host and the far one.
pub(super) struct Network {
    pub(super) kind: NetworkKind,
    far: Far,
    /// The pipeline of the far host's devices, each way. Both hosts choose its links.
    pipeline: String,
    lab: Option<Lab>,
    sides: Vec<usize>,
    /// Dropped after the far host.
    identity: Identity,
}

/// The directory of the identity that both hosts use for sealed connections. Dropping the value removes it.
struct Identity(PathBuf);

impl Identity {
    fn new() -> Result<Identity, Failure> {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("outboard-bench-{}-{number}", std::process::id()));
        // Creates the directory, for this user only, and the key.
        Trust::at(&path)?;
        Ok(Identity(path))
    }
}

impl Drop for Identity {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A process of the far host. Dropping the value stops it.
pub(super) struct Far {
    process: Child,
    ports: Ports,
}

impl Network {
    /// Creates the hosts. Returns `None` for a lab without root, with the reason on standard error.
    fn open(
        kind: NetworkKind,
        setting: &ChapterSetting,
        sides: &[usize],
    ) -> Result<Option<Network>, Failure> {
        let lab = match kind {
            NetworkKind::Loopback => None,
            _ if !rustix::process::geteuid().is_root() => {
                progress(&format!("SKIPPED the network `{kind}`: it needs root, for network namespaces"));
                return Ok(None);
            }
            _ => {
                let netlab = setting.netlab.clone().map_or_else(|| beside("netlab"), Ok)?;
                Some(Lab::up(&netlab, &[])?)
            }
        };
        let identity = Identity::new()?;
        let far = Far::start(lab.as_ref(), &identity.0, "", &cameras(sides))?;
        let mut network =
            Network { kind, far, pipeline: String::new(), lab, sides: sides.to_vec(), identity };
        if kind == NetworkKind::Paper {
            network.be_like_the_papers()?;
        }
        Ok(Some(network))
    }

    /// Sets the pipeline of the far host's devices.
    pub(super) fn set_pipeline(&mut self, pipeline: &str) -> Result<(), Failure> {
        if self.pipeline != pipeline {
            self.far = Far::start(self.lab.as_ref(), &self.identity.0, pipeline, &cameras(&self.sides))?;
            self.pipeline = pipeline.into();
        }
        Ok(())
    }

    /// Runs `act` on each network of the setting that can be created. The far hosts have cameras with frames of these
    /// sides.
    pub(super) fn each(
        setting: &ChapterSetting,
        sides: &[usize],
        mut act: impl FnMut(&mut Network) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        for kind in &setting.networks {
            if let Some(mut network) = Network::open(*kind, setting, sides)? {
                act(&mut network)?;
            }
        }
        Ok(())
    }

    /// Sets rate and delay to the dissertation's. The delay is shorter by the lab's own delay.
    fn be_like_the_papers(&mut self) -> Result<(), Failure> {
        let Some(lab) = &self.lab else { return Ok(()) };
        let rate = format!("rate={:.0}kbit", paper::NETWORK_MB_PER_S * 8e3 / PAYLOAD_SHARE);
        lab.ask(&["set", &rate])?;
        let own_us = self.round_trip_us()?;
        let delay_us = ((paper::PING_US - own_us) / 2.0).max(0.0);
        lab.ask(&["set", &rate, &format!("delay={delay_us:.0}us")])?;
        progress(&format!(
            "the paper's network: {rate}, a delay of {delay_us:.0} us; a round trip takes {:.0} us",
            self.round_trip_us()?
        ));
        Ok(())
    }

    /// Returns the median round trip of a byte in microseconds.
    fn round_trip_us(&self) -> Result<f64, Failure> {
        let socket = self.connect()?;
        let block = Block { bytes: 1, count: PINGS, budget: Duration::from_secs(5) };
        Ok(2.0 * self.here(|| ping(socket, &block, Duration::ZERO))?.percentile_us(0.5))
    }

    /// Runs `act` on a thread of this host.
    pub(super) fn here<T: Send>(
        &self,
        act: impl FnOnce() -> Result<T, Failure> + Send,
    ) -> Result<T, Failure> {
        self.on(0, act)
    }

    /// Runs `act` on a thread of this host (0) or of the far host (1).
    pub(super) fn on<T: Send>(
        &self,
        host: usize,
        act: impl FnOnce() -> Result<T, Failure> + Send,
    ) -> Result<T, Failure> {
        let act = || {
            crate::setting::pin_to_cpu(CPUS[host]);
            act()
        };
        match &self.lab {
            Some(lab) => lab.on(["a", "b"][host], act),
            None => apart(act),
        }
    }

    /// Connects to the far host's bare services.
    pub(super) fn connect(&self) -> Result<TcpStream, Failure> {
        let address = (self.far.ports.address, self.far.ports.bare);
        self.here(|| {
            let socket = TcpStream::connect(address)?;
            socket.set_nodelay(true)?;
            Ok(socket)
        })
    }

    /// Returns both ends of a TCP connection between the hosts, this host's first.
    pub(super) fn pair(&self) -> Result<[TcpStream; 2], Failure> {
        let listener = self.on(1, || Ok(TcpListener::bind((self.far.ports.address, 0))?))?;
        let address = listener.local_addr()?;
        let near = self.here(|| Ok(TcpStream::connect(address)?))?;
        let (far, _) = listener.accept()?;
        Ok([near, far])
    }

    /// Returns both ends of a connection for the transport of `carrier`, this host's first.
    pub(super) fn ends(&self, carrier: Carrier) -> Result<[OwnedFd; 2], Failure> {
        if carrier == Carrier::Tcp {
            return Ok(self.pair()?.map(OwnedFd::from));
        }
        let bind = |host: usize| {
            // The hosts of the lab reach each other by the far host's subnet.
            let any = if self.lab.is_some() { Ipv4Addr::UNSPECIFIED } else { Ipv4Addr::LOCALHOST };
            let address = if host == 1 { self.far.ports.address } else { any.into() };
            self.on(host, || Ok(UdpSocket::bind((address, 0))?))
        };
        let (near, far) = (bind(0)?, bind(1)?);
        near.connect(far.local_addr()?)?;
        far.connect(near.local_addr()?)?;
        Ok([near, far].map(OwnedFd::from))
    }

    /// Attaches a device of the far host to a partner of this host until the partner returns its results.
    pub(super) fn attach<T: Send>(
        &self,
        carrier: Carrier,
        device: &str,
        application: Box<dyn contract::Partner>,
        results: &Receiver<T>,
    ) -> Result<T, Failure> {
        let name = if carrier == Carrier::Tcp { "tcp" } else { "quic" };
        let class = registry::transport(name).ok_or_else(|| format!("there is no transport {name}"))?;
        let pipelines = pipelines(&self.pipeline, answers(device))?;
        self.attach_to(&self.far, (carrier, class), device, pipelines, application, results)
    }

    /// Starts a process of the far host that shares the screen of a display.
    pub(super) fn share_screen(&self, display: &str, pipeline: &str) -> Result<Far, Failure> {
        Far::start(self.lab.as_ref(), &self.identity.0, pipeline, &[format!("--screen={display}")])
    }

    /// Attaches the screen of [`Network::share_screen`] to a partner over the experiment's own transport.
    pub(super) fn attach_screen<T: Send>(
        &self,
        far: &Far,
        transport: (Carrier, &'static dyn TransportClass),
        pipeline: &str,
        application: Box<dyn contract::Partner>,
        results: &Receiver<T>,
    ) -> Result<T, Failure> {
        self.attach_to(far, transport, SCREEN, pipelines(pipeline, false)?, application, results)
    }

    /// Attaches the screen of [`Network::share_screen`] to an application side while `act` runs.
    pub(super) fn attach_screen_as<T: Send>(
        &self,
        far: &Far,
        pipeline: &str,
        application: &str,
        act: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let class = registry::transport("tcp").ok_or("there is no transport tcp")?;
        let application = ApplicationChoice::Spec(application.into(), Conflict::Refuse);
        let target = AttachTarget {
            name: SCREEN.into(),
            application,
            pipelines: pipelines(pipeline, false)?,
            expect: None,
        };
        self.attached(far, (Carrier::Tcp, class), target, act)
    }

    /// Returns the far host's address.
    pub(super) fn address(&self) -> IpAddr {
        self.far.ports.address
    }

    fn attach_to<T: Send>(
        &self,
        far: &Far,
        transport: (Carrier, &'static dyn TransportClass),
        device: &str,
        pipelines: Pipelines,
        application: Box<dyn contract::Partner>,
        results: &Receiver<T>,
    ) -> Result<T, Failure> {
        let application = ApplicationChoice::Partner(application);
        let target = AttachTarget { name: device.into(), application, pipelines, expect: None };
        self.attached(far, transport, target, || {
            Ok(results.recv_timeout(WATCHDOG).map_err(|_| "the experiment gave no results")?)
        })
    }

    /// Runs `act` while a device is attached.
    fn attached<T: Send>(
        &self,
        far: &Far,
        (carrier, class): (Carrier, &'static dyn TransportClass),
        target: AttachTarget,
        act: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let (port, trust) = match carrier {
            Carrier::Tcp => (far.ports.insecure, None),
            Carrier::Sealed => (far.ports.sealed, Some(Trust::at(&self.identity.0)?)),
        };
        let request = AttachRequest {
            peer: None,
            address: format!("{}:{port}", far.ports.address),
            transport: TransportPlan { class, options: Options::defaults(class.options())? },
            fallback: None,
            targets: vec![target],
            trust,
            limits: limits(),
            host: "near".into(),
        };
        let stop = Stop::new()?;
        let broker = || {
            Ok(ApplicationHost::start(request)?.run(&stop, &mut |event| {
                if matches!(event, Event::Refused { .. } | Event::Module { .. } | Event::LinkLost { .. }) {
                    progress(&format!("{event:?}"));
                }
            })?)
        };
        thread::scope(|scope| {
            let broker = scope.spawn(|| self.here(broker));
            let result = act();
            stop.stop();
            broker.join().map_err(|_| "a thread panicked")??;
            result
        })
    }
}

impl Far {
    /// Returns the processor time that the process used.
    pub(super) fn cpu_ns(&self) -> u64 {
        cpu_ns(self.process.id())
    }

    /// Starts the process. `more` are arguments for further devices.
    fn start(lab: Option<&Lab>, identity: &Path, pipeline: &str, more: &[String]) -> Result<Far, Failure> {
        let own = std::env::current_exe()?;
        let (mut command, address) = match lab {
            None => (Command::new(own), Ipv4Addr::LOCALHOST),
            Some(lab) => (lab.program("b", &own.display().to_string()), Ipv4Addr::new(10, 77, 0, 2)),
        };
        command.arg("far-host").arg(format!("--address={address}")).arg(format!("--via={pipeline}"));
        command.arg("--identity").arg(identity).args(more);
        let process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut far = Far { process, ports: Ports::default() };
        let mut line = String::new();
        if let Some(stdout) = far.process.stdout.as_mut() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        far.ports = serde_json::from_str(&line)
            .map_err(|_| format!("the far host did not start; it printed {line:?}"))?;
        Ok(far)
    }
}

/// Returns the arguments for cameras with square frames.
fn cameras(sides: &[usize]) -> Vec<String> {
    sides.iter().map(|side| format!("--side={side}")).collect()
}

impl Drop for Far {
    fn drop(&mut self) {
        // The process and its modules exit at the end of its standard input.
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}
