//! The hosts of the experiments: this one, and a process that is the far one, on the loopback interface or in
//! namespaces of `netlab`.

use super::far::{Ports, SCREEN, answers, pipelines};
use super::instruments::ping;
use super::{Block, ChapterSetting, beside, paper, progress};
use crate::Failure;
use crate::display::cpu_ns;
use clap::ValueEnum;
use contract::{Options, TransportClass};
use runtime::worker::TransportPlan;
use runtime::{
    ApplicationChoice, AttachRequest, AttachTarget, Attacher, Event, Limits, Pipelines, Stop, registry,
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;
use std::thread;
use std::time::Duration;

/// Longer than anything takes.
pub(crate) const WATCHDOG: Duration = Duration::from_secs(120);
/// The processor of this host, and that of the far one: a host has one, as the dissertation's had in section 6.8.
pub(crate) const CPUS: [usize; 2] = [0, 1];
/// What of an Ethernet packet of 1500 bytes TCP leaves to the payload.
const PAYLOAD_SHARE: f64 = 1448.0 / 1500.0;
/// Round trips that tell what the lab itself takes.
const PINGS: usize = 200;

/// Where the two hosts stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum NetworkKind {
    /// Two processes and the loopback interface
    Loopback,
    /// Two namespaces and a link without delay or limit
    Lab,
    /// Two namespaces and a link as the dissertation's: 11.3 MB/s, 0.235 ms there and back
    Paper,
}

impl fmt::Display for NetworkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl NetworkKind {
    pub(crate) const EVERY: [NetworkKind; 3] = [NetworkKind::Loopback, NetworkKind::Lab, NetworkKind::Paper];

    pub(crate) fn name(self) -> &'static str {
        match self {
            NetworkKind::Loopback => "loopback",
            NetworkKind::Lab => "lab",
            NetworkKind::Paper => "paper",
        }
    }
}

/// Two hosts of `netlab`; taken down with this value.
pub(crate) struct Lab {
    netlab: PathBuf,
    name: String,
}

impl Lab {
    /// Makes them, with links like this.
    pub(crate) fn up(netlab: &Path, link: &[&str]) -> Result<Lab, Failure> {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let lab = Lab { netlab: netlab.into(), name: format!("bench-{}-{number}", std::process::id()) };
        lab.ask(&[&["up"], link].concat())?;
        Ok(lab)
    }

    /// A program on one of them, `a` or `b`.
    pub(crate) fn program(&self, host: &str, program: &str) -> Command {
        let mut command = self.command("exec");
        command.args([host, "--", program]);
        command
    }

    /// The network namespace of one of them.
    pub(crate) fn namespace(&self, host: &str) -> String {
        format!("{}-{host}", self.name)
    }

    /// Does something on a thread of one of them.
    pub(crate) fn on<T: Send>(
        &self,
        host: &str,
        act: impl FnOnce() -> Result<T, Failure> + Send,
    ) -> Result<T, Failure> {
        in_namespace(&self.namespace(host), act)
    }

    fn command(&self, verb: &str) -> Command {
        let mut command = Command::new(&self.netlab);
        command.args([verb, "--name", &self.name]);
        command
    }

    pub(crate) fn ask(&self, words: &[&str]) -> Result<String, Failure> {
        let output = self.command(words[0]).args(&words[1..]).output()?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(String::from_utf8_lossy(&output.stderr).trim().into()),
        }
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if let Err(error) = self.ask(&["down"]) {
            progress(&format!("the lab {} is still there: {error}", self.name));
        }
    }
}

/// Does something on a thread of the network namespace of this name.
pub(crate) fn in_namespace<T: Send>(
    name: &str,
    act: impl FnOnce() -> Result<T, Failure> + Send,
) -> Result<T, Failure> {
    let namespace = File::open(format!("/run/netns/{name}"))?;
    apart(|| {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
        act()
    })
}

/// Does something on a thread of its own.
fn apart<T: Send>(act: impl FnOnce() -> Result<T, Failure> + Send) -> Result<T, Failure> {
    thread::scope(|scope| scope.spawn(act).join().map_err(|_| "a thread panicked")?)
}

/// This host and the far one.
pub(crate) struct Network {
    pub(crate) kind: NetworkKind,
    far: Far,
    /// What happens to the flows of the far host's devices, each way. Both hosts choose its links.
    pipeline: String,
    lab: Option<Lab>,
    sides: Vec<usize>,
}

/// A process of the far host. Dropping it ends it.
pub(crate) struct Far {
    process: Child,
    ports: Ports,
}

impl Network {
    /// Makes the hosts. `None`, with the reason on standard error, where the labs need what is not there.
    pub(crate) fn open(
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
        let far = Far::start(lab.as_ref(), "", &cameras(sides))?;
        let mut network = Network { kind, far, pipeline: String::new(), lab, sides: sides.to_vec() };
        if kind == NetworkKind::Paper {
            network.be_like_the_papers()?;
        }
        Ok(Some(network))
    }

    /// Has the flows of the far host's devices go through `pipeline` from here on.
    pub(crate) fn set_pipeline(&mut self, pipeline: &str) -> Result<(), Failure> {
        if self.pipeline != pipeline {
            self.far = Far::start(self.lab.as_ref(), pipeline, &cameras(&self.sides))?;
            self.pipeline = pipeline.into();
        }
        Ok(())
    }

    /// The networks of a setting, one at a time, those that can be made. Their far hosts have cameras for pictures
    /// with these `sides`.
    pub(crate) fn each(
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

    /// Takes from the delay what the lab itself takes.
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

    /// Median of a byte there and back, microseconds.
    fn round_trip_us(&self) -> Result<f64, Failure> {
        let socket = self.connect()?;
        let block = Block { bytes: 1, count: PINGS, budget: Duration::from_secs(5) };
        Ok(2.0 * ping(socket, &block, Duration::ZERO)?.percentile_us(0.5))
    }

    /// Does something on a thread that is on this host.
    pub(crate) fn here<T: Send>(
        &self,
        act: impl FnOnce() -> Result<T, Failure> + Send,
    ) -> Result<T, Failure> {
        self.on(0, act)
    }

    /// Does something on a thread of host 0, this one, or of 1, the far one.
    pub(crate) fn on<T: Send>(
        &self,
        host: usize,
        act: impl FnOnce() -> Result<T, Failure> + Send,
    ) -> Result<T, Failure> {
        let act = || {
            sys::thread::pin_to_cpu(CPUS[host]);
            act()
        };
        match &self.lab {
            Some(lab) => lab.on(["a", "b"][host], act),
            None => apart(act),
        }
    }

    /// A connection to the far host's bare services.
    pub(crate) fn connect(&self) -> Result<TcpStream, Failure> {
        let address = (self.far.ports.address, self.far.ports.bare);
        self.here(|| {
            let socket = TcpStream::connect(address)?;
            socket.set_nodelay(true)?;
            Ok(socket)
        })
    }

    /// Both ends of a connection between the hosts, this one's first.
    pub(crate) fn pair(&self) -> Result<[TcpStream; 2], Failure> {
        let listener = self.on(1, || Ok(TcpListener::bind((self.far.ports.address, 0))?))?;
        let address = listener.local_addr()?;
        let near = self.here(|| Ok(TcpStream::connect(address)?))?;
        let (far, _) = listener.accept()?;
        Ok([near, far])
    }

    /// Attaches a device of the far host to a partner of this one, until that gives its results.
    pub(crate) fn attach<T: Send>(
        &self,
        device: &str,
        application: Box<dyn contract::Partner>,
        results: &Receiver<T>,
    ) -> Result<T, Failure> {
        let class = registry::transport("tcp").ok_or("there is no transport tcp")?;
        let pipelines = pipelines(&self.pipeline, answers(device))?;
        self.attach_to(&self.far, class, device, pipelines, application, results)
    }

    /// A process of the far host that shares the screen of a display.
    pub(crate) fn share_screen(&self, display: &str, pipeline: &str) -> Result<Far, Failure> {
        Far::start(self.lab.as_ref(), pipeline, &[format!("--screen={display}")])
    }

    /// Attaches the screen that [`Network::share_screen`] shares, over a transport of the experiment's.
    pub(crate) fn attach_screen<T: Send>(
        &self,
        far: &Far,
        class: &'static dyn TransportClass,
        pipeline: &str,
        application: Box<dyn contract::Partner>,
        results: &Receiver<T>,
    ) -> Result<T, Failure> {
        self.attach_to(far, class, SCREEN, pipelines(pipeline, false)?, application, results)
    }

    /// Attaches the screen that [`Network::share_screen`] shares to an application side of this host, while something is done.
    pub(crate) fn attach_screen_as<T: Send>(
        &self,
        far: &Far,
        pipeline: &str,
        application: &str,
        act: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let class = registry::transport("tcp").ok_or("there is no transport tcp")?;
        let application = ApplicationChoice::Spec(application.into());
        self.attached(far, class, SCREEN, pipelines(pipeline, false)?, application, act)
    }

    /// Where the far host is.
    pub(crate) fn address(&self) -> IpAddr {
        self.far.ports.address
    }

    fn attach_to<T: Send>(
        &self,
        far: &Far,
        class: &'static dyn TransportClass,
        device: &str,
        pipelines: Pipelines,
        application: Box<dyn contract::Partner>,
        results: &Receiver<T>,
    ) -> Result<T, Failure> {
        let application = ApplicationChoice::Partner(application);
        self.attached(far, class, device, pipelines, application, || {
            Ok(results.recv_timeout(WATCHDOG).map_err(|_| "the experiment gave no results")?)
        })
    }

    /// Does something while a device is attached.
    fn attached<T: Send>(
        &self,
        far: &Far,
        class: &'static dyn TransportClass,
        device: &str,
        pipelines: Pipelines,
        application: ApplicationChoice,
        act: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let target = AttachTarget { name: device.into(), application, pipelines };
        let request = AttachRequest {
            address: format!("{}:{}", far.ports.address, far.ports.share),
            transport: TransportPlan { class, options: Options::defaults(class.options())? },
            fallback: None,
            targets: vec![target],
            trust: None,
            limits: limits(),
            host: "near".into(),
        };
        let stop = Stop::new()?;
        let broker = || {
            Ok(Attacher::start(request)?.run(&stop, &mut |event| {
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
    /// Processor time that it used.
    pub(crate) fn cpu_ns(&self) -> u64 {
        cpu_ns(self.process.id())
    }

    /// `more` says which devices it has besides those that answer.
    fn start(lab: Option<&Lab>, pipeline: &str, more: &[String]) -> Result<Far, Failure> {
        let own = std::env::current_exe()?;
        let (mut command, address) = match lab {
            None => (Command::new(own), Ipv4Addr::LOCALHOST),
            Some(lab) => {
                let mut command = lab.command("exec");
                command.args(["b", "--"]).arg(own);
                (command, Ipv4Addr::new(10, 77, 0, 2))
            }
        };
        command.arg("far-host").arg(format!("--address={address}")).arg(format!("--via={pipeline}"));
        command.args(more);
        let process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut far = Far { process, ports: Ports::default() };
        let mut line = String::new();
        if let Some(stdout) = far.process.stdout.as_mut() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        far.ports = serde_json::from_str(&line)
            .map_err(|_| format!("the far host did not start: it said {line:?}"))?;
        Ok(far)
    }
}

/// Says that the far host has cameras for square pictures.
fn cameras(sides: &[usize]) -> Vec<String> {
    sides.iter().map(|side| format!("--side={side}")).collect()
}

impl Drop for Far {
    fn drop(&mut self) {
        // It ends by itself when its standard input does; then its modules end, too.
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

/// A busy machine is no lost link.
pub(crate) fn limits() -> Limits {
    Limits { silence: Duration::from_secs(10), ..Limits::default() }
}
