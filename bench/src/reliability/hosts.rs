//! Two hosts that know each other, and the program on both of them as a user runs it.

use super::fault::ip;
use super::unit::Unit;
use crate::Failure;
use crate::chapter6::{Lab, beside, progress};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Longest wait for a program to say something.
const PATIENCE: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(5);
/// Where host a is, at the port that `share` has by itself.
pub(crate) const ADDRESS_A: &str = "10.77.0.1";
pub(crate) const PORT: u16 = 7845;
/// What a device is called that is the only one.
pub(crate) const DEVICE: &str = "device";

/// One of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Host {
    /// It has the device and runs `share`.
    Device,
    /// It has the application and runs `attach`.
    Application,
}

impl Host {
    pub(crate) const BOTH: [Host; 2] = [Host::Device, Host::Application];

    pub(crate) fn letter(self) -> &'static str {
        match self {
            Host::Device => "a",
            Host::Application => "b",
        }
    }
}

/// The program, running, and what it told so far.
pub(crate) struct Service {
    pub(crate) child: Child,
    events: Arc<Mutex<Vec<(Instant, Value)>>>,
}

impl Service {
    /// Starts it with `--json`.
    pub(crate) fn start(command: Command) -> Result<Service, Failure> {
        let (child, tells) = Service::spawn(command)?;
        Ok(Service::of(child, tells))
    }

    /// Starts its process alone, with `--json`, and says where it tells events.
    pub(crate) fn spawn(mut command: Command) -> io::Result<(Child, ChildStdout)> {
        let mut child = command
            .arg("--json")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()?;
        let stdout = child.stdout.take().ok_or_else(|| io::Error::other("it has no standard output"))?;
        Ok((child, stdout))
    }

    /// A process that tells events there.
    pub(crate) fn of(child: Child, tells: impl Read + Send + 'static) -> Service {
        let events: Arc<Mutex<Vec<(Instant, Value)>>> = Arc::default();
        let told = events.clone();
        thread::spawn(move || {
            for line in BufReader::new(tells).lines().map_while(Result::ok) {
                match serde_json::from_str(&line) {
                    Ok(event) => {
                        told.lock().unwrap_or_else(PoisonError::into_inner).push((Instant::now(), event));
                    }
                    Err(_) => progress(&line),
                }
            }
        });
        Service { child, events }
    }

    fn events(&self) -> MutexGuard<'_, Vec<(Instant, Value)>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All events of a kind, the earliest first.
    fn events_of(&self, kind: &str) -> Vec<Value> {
        let events = self.events();
        events.iter().map(|(_, event)| event).filter(|event| event["event"] == kind).cloned().collect()
    }

    /// Waits until it tells of something of a kind.
    pub(crate) fn wait(&mut self, kind: &str) -> Result<Value, Failure> {
        Ok(self.wait_for(kind, None, PATIENCE)?.1)
    }

    /// Waits until it tells of something of a kind, of this device if one is named; when it did, and what.
    pub(crate) fn wait_for(
        &mut self,
        kind: &str,
        name: Option<&str>,
        patience: Duration,
    ) -> Result<(Instant, Value), Failure> {
        let begun = Instant::now();
        loop {
            let is_it =
                |event: &Value| event["event"] == kind && name.is_none_or(|name| event["name"] == name);
            if let Some(told) = self.events().iter().rev().find(|(_, event)| is_it(event)) {
                return Ok(told.clone());
            }
            if let Some(status) = self.child.try_wait()? {
                return Err(format!("outboard ended ({status}) without `{kind}`").into());
            }
            if begun.elapsed() > patience {
                return Err(format!("outboard did not say `{kind}`; it said {:?}", self.events()).into());
            }
            thread::sleep(LOOK);
        }
    }

    /// It and what it started, oldest first.
    pub(crate) fn processes(&self) -> Vec<Pid> {
        let mut all = vec![self.child.id()];
        let mut at = 0;
        while let Some(process) = all.get(at) {
            let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
            let children =
                threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
            let children: Vec<u32> = children
                .flat_map(|text| text.split(' ').filter_map(|id| id.parse().ok()).collect::<Vec<_>>())
                .collect();
            all.extend(children);
            at += 1;
        }
        all.into_iter().filter_map(|process| Pid::from_raw(process as i32)).collect()
    }

    /// What it says of a device's messages that did not arrive, in units, and whether it still runs.
    pub(crate) fn told(&mut self, name: &str, unit: Unit) -> Told {
        let mut told = Told { alive: matches!(self.child.try_wait(), Ok(None)), ..Told::default() };
        let mut events = self.events_of("stats");
        events.retain(|event| event["name"] == name);
        let Some(stats) = events.last().map(|event| event["stats"].clone()) else { return told };
        let overflows = |event: &Value| partner_figure(&event["stats"], "kernel overflows");
        let missed = |event: &Value| partner_figure(&event["stats"], "frames missed by the driver") as u64;
        let missed = events.iter().map(missed).max().unwrap_or_default();
        *told.reasons.entry("missed by the driver".into()).or_default() += missed;
        told.is_unnumbered |= events.iter().any(|event| overflows(event) > 0.0);
        for flow in [&stats["outgoing"], &stats["incoming"]] {
            let drops = flow["drops"].as_object().into_iter().flatten();
            let never = ["lost", "stale"].map(|figure| (figure.to_string(), &flow[figure]));
            let drops = drops.map(|(reason, count)| (reason.clone(), count)).chain(never);
            for (reason, count) in drops.filter_map(|(reason, count)| Some((reason, count.as_u64()?))) {
                let count = match reason.starts_with("bytes ") {
                    true => count.div_ceil(unit.bytes(0).len() as u64),
                    false => count,
                };
                *told.reasons.entry(reason).or_default() += count;
            }
        }
        told.reasons.retain(|_, count| *count > 0);
        told
    }

    fn signal(&self, signal: Signal) {
        for process in self.processes() {
            // It may have ended by itself.
            let _ = kill_process(process, signal);
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        let _ = self.child.wait();
    }
}

/// A device that one host shares and the other attaches.
#[derive(Debug, Clone)]
pub(crate) struct Use {
    pub(crate) name: String,
    pub(crate) device: String,
    pub(crate) application: String,
    /// Pipelines, from the device and back to it.
    pub(crate) via: [Option<String>; 2],
}

/// Both hosts, and what runs on them.
pub(crate) struct Hosts {
    pub(crate) lab: Lab,
    /// The transport, as it is asked for.
    scheme: String,
    directory: PathBuf,
    share: Option<(Service, Vec<String>)>,
    attach: Option<(Service, Vec<String>)>,
}

impl Hosts {
    /// Makes them, with a network of 5 ms each way, and introduces them to each other. What they keep lies below `directory`.
    /// `transport`: what is asked for, if anything is.
    pub(crate) fn new(
        transport: Option<&str>,
        netlab: &Path,
        directory: &Path,
        seed: u64,
    ) -> Result<Hosts, Failure> {
        let lab = Lab::up(netlab, &["--seed", &seed.to_string(), "delay=5ms"])?;
        let directory = directory.to_path_buf();
        let scheme = transport.map(|transport| format!("{transport}://")).unwrap_or_default();
        let hosts = Hosts { lab, scheme, directory, share: None, attach: None };
        let mut shows = hosts.command(Host::Device)?;
        shows.args(["pair", "--listen", &format!("{ADDRESS_A}:{PORT}")]);
        let mut shows = Service::start(shows)?;
        let code = shows.wait("code")?;
        let with = code["command"].as_str().and_then(|command| command.strip_prefix("outboard pair "));
        let with = with.ok_or("`pair` does not say how")?.to_string();
        let typed = hosts.command(Host::Application)?.args(["pair", &with]).output()?;
        if !typed.status.success() {
            return Err(format!("the hosts do not pair: {}", String::from_utf8_lossy(&typed.stderr)).into());
        }
        shows.wait("paired")?;
        drop(shows);
        Ok(hosts)
    }

    /// The program, on a host, as that host's user.
    pub(crate) fn command(&self, host: Host) -> Result<Command, Failure> {
        let program = beside("outboard")?;
        let mut command = self.lab.program(host.letter(), &program.display().to_string());
        for (name, path) in self.homes(host) {
            fs::create_dir_all(&path)?;
            command.env(name, path);
        }
        Ok(command)
    }

    /// Shares a device and attaches it; what stands in for it.
    pub(crate) fn begin(&mut self, device: &str, application: &str) -> Result<String, Failure> {
        self.share(device)?;
        let attach = attach_words(&self.from(), application).map(str::to_string).to_vec();
        self.attach = Some((self.service(Host::Application, &attach)?, attach));
        self.node(DEVICE)
    }

    /// Shares a device.
    pub(crate) fn share(&mut self, device: &str) -> Result<(), Failure> {
        let words = ["share", device, "--name", DEVICE, "--stats"].map(str::to_string).to_vec();
        self.share = Some((self.service(Host::Device, &words)?, words));
        Ok(())
    }

    /// What `attach` attaches.
    pub(crate) fn from(&self) -> String {
        format!("{}{ADDRESS_A}/{DEVICE}", self.scheme)
    }

    /// What a host keeps, and where it runs.
    pub(crate) fn homes(&self, host: Host) -> [(&'static str, PathBuf); 2] {
        let home = self.directory.join(host.letter());
        [("XDG_STATE_HOME", home.join("state")), ("XDG_RUNTIME_DIR", home.join("run"))]
    }

    /// The same of several devices, each host by one run file, with these limits; what stands in for each.
    pub(crate) fn begin_all(&mut self, uses: &[Use], limits: &str) -> Result<Vec<String>, Failure> {
        let (mut share, mut attach) = (String::new(), String::new());
        for Use { name, device, application, via } in uses {
            // Writing to a string cannot fail. TOML's literal strings have no escapes, and a pipeline no quotes.
            let _ = writeln!(share, "[[share]]\ndevice = '{device}'\nname = '{name}'\nlimits = '{limits}'");
            let from = format!("{}{ADDRESS_A}/{name}", self.scheme);
            let _ =
                writeln!(attach, "[[attach]]\nfrom = '{from}'\nas = '{application}'\nlimits = '{limits}'");
            for (key, via) in ["via", "via_back"].into_iter().zip(via) {
                let _ = via.iter().try_for_each(|via| writeln!(attach, "{key} = '{via}'"));
            }
        }
        for (host, text) in Host::BOTH.into_iter().zip([share, attach]) {
            let file = self.directory.join(format!("{}.toml", host.letter()));
            fs::write(&file, text)?;
            let words = ["run".into(), file.display().to_string(), "--stats".into()];
            *self.running(host) = Some((self.service(host, &words)?, words.into()));
        }
        uses.iter().map(|used| self.node(&used.name)).collect()
    }

    /// What stands in for a device.
    fn node(&mut self, name: &str) -> Result<String, Failure> {
        let (service, _) = self.attach.as_mut().ok_or("nothing is attached")?;
        let (_, attached) = service.wait_for("attached", Some(name), PATIENCE)?;
        Ok(attached["node"].as_str().unwrap_or_default().into())
    }

    fn service(&self, host: Host, words: &[String]) -> Result<Service, Failure> {
        let mut command = self.command(host)?;
        command.args(words);
        let mut service = Service::start(command)?;
        if host == Host::Device {
            service.wait("listening")?;
        }
        Ok(service)
    }

    fn running(&mut self, host: Host) -> &mut Option<(Service, Vec<String>)> {
        match host {
            Host::Device => &mut self.share,
            Host::Application => &mut self.attach,
        }
    }

    /// The process that a host's user started, and those that it started, oldest first.
    pub(crate) fn processes(&mut self, host: Host) -> Vec<Pid> {
        self.running(host).as_ref().map(|(service, _)| service.processes()).unwrap_or_default()
    }

    /// Has a host's process end, as its user would; how it did, if it did.
    pub(crate) fn stop(&mut self, host: Host, patience: Duration) -> Result<Option<ExitStatus>, Failure> {
        let (service, _) = self.running(host).as_mut().ok_or("nothing runs there")?;
        let child = &mut service.child;
        // It may have ended by itself.
        let _ = Pid::from_raw(child.id() as i32).map(|process| kill_process(process, Signal::TERM));
        let begun = Instant::now();
        loop {
            let end = child.try_wait()?;
            if end.is_some() || begun.elapsed() > patience {
                return Ok(end);
            }
            thread::sleep(LOOK);
        }
    }

    /// Kills the process of a host that the user started, and starts another in its place, after `between`.
    pub(crate) fn restart(
        &mut self,
        host: Host,
        between: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let (service, words) = self.running(host).take().ok_or("nothing runs there")?;
        drop(service);
        between()?;
        let service = self.service(host, &words)?;
        *self.running(host) = Some((service, words));
        Ok(())
    }

    /// Kills the processes that a host's own started; how many.
    pub(crate) fn kill_workers(&mut self, host: Host) -> usize {
        let Some((service, _)) = self.running(host) else { return 0 };
        let workers = service.processes().split_off(1);
        workers.iter().filter(|worker| kill_process(**worker, Signal::KILL).is_ok()).count()
    }

    /// Has both hosts take no datagram of the other, without a word, or take them again.
    pub(crate) fn pass_udp(&mut self, pass: bool) -> Result<(), Failure> {
        for host in ["a", "b"] {
            let namespace = self.lab.namespace(host);
            let rule = |words: &[&str]| ip(&[&["-n", &namespace, "rule"], words].concat());
            if pass {
                rule(&["add", "pref", "0", "lookup", "local"])?;
                rule(&["del", "pref", "10"])?;
                rule(&["del", "pref", "5"])?;
                continue;
            }
            // What is for this host is looked up before any rule, and what a socket expects before that.
            self.lab.on(host, || Ok(fs::write("/proc/sys/net/ipv4/udp_early_demux", "0")?))?;
            rule(&["add", "pref", "10", "lookup", "local"])?;
            rule(&["del", "pref", "0"])?;
            rule(&["add", "pref", "5", "iif", "wan0", "ipproto", "udp", "blackhole"])?;
        }
        Ok(())
    }

    /// Has all processes of a host stand still, or go on.
    pub(crate) fn halt(&mut self, host: Host, halt: bool) {
        if let Some((service, _)) = self.running(host) {
            service.signal(if halt { Signal::STOP } else { Signal::CONT });
        }
    }

    /// What a host's process has told but for figures, and when, seconds since `begun`.
    pub(crate) fn log(&mut self, host: Host, begun: Instant) -> Vec<String> {
        let Some((service, _)) = self.running(host) else { return Vec::new() };
        let events = service.events();
        let told = events.iter().filter(|(_, event)| event["event"] != "stats" && event["event"] != "link");
        let told = told.map(|(at, event)| (at.saturating_duration_since(begun).as_secs_f64(), event));
        told.map(|(at_s, event)| format!("{at_s:7.3} s: {host:?}: {event}")).collect()
    }

    /// What both hosts say of a device's messages that did not arrive, and whether they still run. What they say in bytes
    /// is counted in units.
    pub(crate) fn told(&mut self, name: &str, unit: Unit) -> Told {
        let running = Host::BOTH.map(|host| {
            let (service, _) = self.running(host).as_mut()?;
            Some(service.told(name, unit))
        });
        running.into_iter().flatten().reduce(Told::and).unwrap_or_default()
    }
}

/// How a host attaches a device.
pub(crate) fn attach_words<'a>(from: &'a str, application: &'a str) -> [&'a str; 5] {
    ["attach", from, "--as", application, "--stats"]
}

/// One figure of a flow's partner; 0 if it tells no such thing.
fn partner_figure(stats: &Value, name: &str) -> f64 {
    let figures = stats["partner"].as_array().into_iter().flatten();
    figures.filter(|figure| figure[0] == name).filter_map(|figure| figure[1].as_f64()).sum()
}

/// What hosts told.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Told {
    /// Messages that they say did not arrive, by reason.
    pub(crate) reasons: BTreeMap<String, u64>,
    /// The kernel told that it dropped others, too, and not how many.
    pub(crate) is_unnumbered: bool,
    /// Those who told it still run.
    pub(crate) alive: bool,
}

impl Told {
    /// What both of them told.
    pub(crate) fn and(mut self, other: Told) -> Told {
        for (reason, count) in other.reasons {
            *self.reasons.entry(reason).or_default() += count;
        }
        let is_unnumbered = self.is_unnumbered || other.is_unnumbered;
        Told { is_unnumbered, alive: self.alive && other.alive, ..self }
    }

    /// Messages that they say did not arrive.
    pub(crate) fn dropped(&self) -> u64 {
        self.reasons.values().sum()
    }
}
