//! Two paired hosts, and the program on both as a user runs it.

use super::unit::Unit;
use crate::lab::{Lab, ip};
use crate::processes::with_descendants;
use crate::programs::{beside, progress};
use crate::setting::Failure;
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The longest wait for an event of a program.
const PATIENCE: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(5);
/// The address of host a and the default port of `share`.
pub(crate) const ADDRESS_A: &str = "10.77.0.1";
pub(crate) const PORT: u16 = 7845;
/// The name of the device where it is the only one.
pub(crate) const DEVICE: &str = "device";

/// One of the two hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Host {
    /// The device host, which runs `share`.
    Device,
    /// The application host, which runs `attach`.
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

/// A running program and its events.
pub(crate) struct Service {
    pub(crate) child: Child,
    events: Arc<Mutex<Vec<(Instant, Value)>>>,
    has_printed_else: Arc<AtomicBool>,
    reader: JoinHandle<()>,
}

impl Service {
    /// Starts the program with `--json`.
    pub(crate) fn start(command: Command) -> Result<Service, Failure> {
        let (child, events) = Service::spawn(command)?;
        Ok(Service::of(child, events))
    }

    /// Starts the process with `--json`. Returns it with the stream of its events.
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

    /// Collects the events of a process.
    pub(crate) fn of(child: Child, stream: impl Read + Send + 'static) -> Service {
        let events: Arc<Mutex<Vec<(Instant, Value)>>> = Arc::default();
        let collected = events.clone();
        let has_printed_else: Arc<AtomicBool> = Arc::default();
        let else_printed = has_printed_else.clone();
        let reader = thread::spawn(move || {
            for line in BufReader::new(stream).lines().map_while(Result::ok) {
                let is_clean = !line.contains(char::is_control);
                else_printed.fetch_or(!is_clean, Ordering::Relaxed);
                match serde_json::from_str(&line) {
                    Ok(event) => {
                        collected
                            .lock()
                            .unwrap_or_else(PoisonError::into_inner)
                            .push((Instant::now(), event));
                    }
                    Err(_) => {
                        else_printed.store(true, Ordering::Relaxed);
                        progress(&line);
                    }
                }
            }
        });
        Service { child, events, has_printed_else, reader }
    }

    fn events(&self) -> MutexGuard<'_, Vec<(Instant, Value)>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if it printed a control character, or a line that is no event.
    pub(crate) fn has_printed_else(&self) -> bool {
        self.has_printed_else.load(Ordering::Relaxed)
    }

    /// Returns all events of a kind, the earliest first.
    pub(crate) fn events_of(&self, kind: &str) -> Vec<Value> {
        let events = self.events();
        events.iter().map(|(_, event)| event).filter(|event| event["event"] == kind).cloned().collect()
    }

    /// Waits for an event of a kind.
    pub(crate) fn wait(&mut self, kind: &str) -> Result<Value, Failure> {
        Ok(self.wait_for(kind, None, PATIENCE)?.1)
    }

    /// Waits for an event of a kind, about the named device if there is a name. Returns its time and the event.
    pub(crate) fn wait_for(
        &mut self,
        kind: &str,
        name: Option<&str>,
        patience: Duration,
    ) -> Result<(Instant, Value), Failure> {
        let begun = Instant::now();
        loop {
            // A program prints its last events just before it exits.
            let has_read_all = self.reader.is_finished();
            let is_it =
                |event: &Value| event["event"] == kind && name.is_none_or(|name| event["name"] == name);
            if let Some(event) = self.events().iter().rev().find(|(_, event)| is_it(event)) {
                return Ok(event.clone());
            }
            if has_read_all && let Some(status) = self.child.try_wait()? {
                return Err(format!("outboard exited ({status}) without `{kind}`").into());
            }
            if begun.elapsed() > patience {
                return Err(format!("outboard printed no `{kind}`, only {:?}", self.events()).into());
            }
            thread::sleep(LOOK);
        }
    }

    /// Returns the process and its descendants, oldest first.
    pub(crate) fn processes(&self) -> Vec<Pid> {
        let all = with_descendants(self.child.id());
        all.into_iter().filter_map(|process| Pid::from_raw(process as i32)).collect()
    }

    /// Returns the program's report about a device's lost messages, in units.
    pub(crate) fn reported(&mut self, name: &str, unit: Unit) -> Reported {
        let mut reported =
            Reported { alive: matches!(self.child.try_wait(), Ok(None)), ..Reported::default() };
        let mut events = self.events_of("stats");
        events.retain(|event| event["name"] == name);
        let Some(stats) = events.last().map(|event| event["stats"].clone()) else { return reported };
        let overflows = |event: &Value| partner_figure(&event["stats"], "kernel overflows");
        let missed = |event: &Value| {
            let figures = ["frames missed by the driver", "frames dropped as old"];
            figures.map(|figure| partner_figure(&event["stats"], figure)).iter().sum::<f64>() as u64
        };
        let missed = events.iter().map(missed).max().unwrap_or_default();
        *reported.reasons.entry("missed by the driver".into()).or_default() += missed;
        reported.is_unnumbered |= events.iter().any(|event| overflows(event) > 0.0);
        for flow in [&stats["outgoing"], &stats["incoming"]] {
            let drops = flow["drops"].as_object().into_iter().flatten();
            let never = ["lost", "stale"].map(|figure| (figure.to_string(), &flow[figure]));
            let drops = drops.map(|(reason, count)| (reason.clone(), count)).chain(never);
            for (reason, count) in drops.filter_map(|(reason, count)| Some((reason, count.as_u64()?))) {
                let count = match reason.starts_with("bytes ") {
                    true => count.div_ceil(unit.bytes(0).len() as u64),
                    false => count,
                };
                *reported.reasons.entry(reason).or_default() += count;
            }
        }
        reported.reasons.retain(|_, count| *count > 0);
        reported
    }

    fn signal(&self, signal: Signal) {
        for process in self.processes() {
            // The process may have exited.
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
    /// Pipelines from the device and to it.
    pub(crate) via: [Option<String>; 2],
}

/// Both hosts with their programs.
pub(crate) struct Hosts {
    pub(crate) lab: Lab,
    /// The transport as part of an address, empty for the default.
    scheme: String,
    directory: PathBuf,
    share: Option<(Service, Vec<String>)>,
    attach: Option<(Service, Vec<String>)>,
}

impl Hosts {
    /// Creates the hosts with a delay of 5 ms each way and pairs them. Their files are below `directory`.
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
        pair(&format!("{ADDRESS_A}:{PORT}"), |host| hosts.command(host))?;
        Ok(hosts)
    }

    /// Returns the command of the program on a host with that host's files.
    pub(crate) fn command(&self, host: Host) -> Result<Command, Failure> {
        let program = beside("outboard")?;
        let mut command = self.lab.program(host.letter(), &program.display().to_string());
        for (name, path) in self.homes(host) {
            fs::create_dir_all(&path)?;
            command.env(name, path);
        }
        Ok(command)
    }

    /// Shares a device and attaches it. Returns the application's node.
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

    /// Returns the path of a file of both hosts.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Returns the address that `attach` uses.
    pub(crate) fn from(&self) -> String {
        format!("{}{ADDRESS_A}/{DEVICE}", self.scheme)
    }

    /// Returns the variables for a host's directories.
    pub(crate) fn homes(&self, host: Host) -> [(&'static str, PathBuf); 2] {
        let home = self.directory.join(host.letter());
        [("XDG_STATE_HOME", home.join("state")), ("XDG_RUNTIME_DIR", home.join("run"))]
    }

    /// Shares and attaches several devices with these limits, with one run file a host. Returns their nodes.
    pub(crate) fn begin_all(&mut self, uses: &[Use], limits: &str) -> Result<Vec<String>, Failure> {
        let (mut share, mut attach) = (String::new(), String::new());
        for Use { name, device, application, via } in uses {
            // Writing to a string cannot fail. TOML's literal strings have no escapes, and pipelines have no quotes.
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

    /// Returns the application's node of a device.
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

    /// Returns a host's process and its descendants, oldest first.
    pub(crate) fn processes(&mut self, host: Host) -> Vec<Pid> {
        self.running(host).as_ref().map(|(service, _)| service.processes()).unwrap_or_default()
    }

    /// Terminates a host's process as a user would. Returns its status, or `None` after `patience`.
    pub(crate) fn stop(&mut self, host: Host, patience: Duration) -> Result<Option<ExitStatus>, Failure> {
        let (service, _) = self.running(host).as_mut().ok_or("nothing runs there")?;
        let child = &mut service.child;
        // The process may have exited.
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

    /// Kills a host's process, calls `between` and starts the process again.
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

    /// Kills a host's workers. Returns their number.
    pub(crate) fn kill_workers(&mut self, host: Host) -> usize {
        let Some((service, _)) = self.running(host) else { return 0 };
        let workers = service.processes().split_off(1);
        workers.iter().filter(|worker| kill_process(**worker, Signal::KILL).is_ok()).count()
    }

    /// Makes both hosts drop or accept each other's datagrams silently.
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
            // The local table is the first rule, and early demultiplexing precedes all rules.
            self.lab.on(host, || Ok(fs::write("/proc/sys/net/ipv4/udp_early_demux", "0")?))?;
            rule(&["add", "pref", "10", "lookup", "local"])?;
            rule(&["del", "pref", "0"])?;
            rule(&["add", "pref", "5", "iif", "wan0", "ipproto", "udp", "blackhole"])?;
        }
        Ok(())
    }

    /// Stops all processes of a host or continues them.
    pub(crate) fn halt(&mut self, host: Host, halt: bool) {
        if let Some((service, _)) = self.running(host) {
            service.signal(if halt { Signal::STOP } else { Signal::CONT });
        }
    }

    /// Formats a host's events without statistics, with seconds since `begun`.
    pub(crate) fn log(&mut self, host: Host, begun: Instant) -> Vec<String> {
        let Some((service, _)) = self.running(host) else { return Vec::new() };
        let events = service.events();
        let events = events.iter().filter(|(_, event)| event["event"] != "stats" && event["event"] != "link");
        let events = events.map(|(at, event)| (at.saturating_duration_since(begun).as_secs_f64(), event));
        events.map(|(at_s, event)| format!("{at_s:7.3} s: {host:?}: {event}")).collect()
    }

    /// Returns both hosts' reports about a device's lost messages, in units.
    pub(crate) fn reported(&mut self, name: &str, unit: Unit) -> Reported {
        let running = Host::BOTH.map(|host| {
            let (service, _) = self.running(host).as_mut()?;
            Some(service.reported(name, unit))
        });
        running.into_iter().flatten().reduce(Reported::and).unwrap_or_default()
    }
}

/// Pairs two hosts at this address. `command` returns the program with the files of a host.
pub(crate) fn pair(listen: &str, command: impl Fn(Host) -> Result<Command, Failure>) -> Result<(), Failure> {
    let mut shown = command(Host::Device)?;
    shown.args(["pair", "--listen", listen]);
    let mut shown = Service::start(shown)?;
    let code = shown.wait("code")?;
    let with = code["command"].as_str().and_then(|command| command.strip_prefix("outboard pair "));
    let with = with.ok_or("`pair` prints no command")?;
    let typed = command(Host::Application)?.args(["pair", with]).output()?;
    if !typed.status.success() {
        return Err(format!("the hosts do not pair: {}", String::from_utf8_lossy(&typed.stderr)).into());
    }
    shown.wait("paired")?;
    Ok(())
}

/// Returns the arguments that attach a device.
pub(crate) fn attach_words<'a>(from: &'a str, application: &'a str) -> [&'a str; 5] {
    ["attach", from, "--as", application, "--stats"]
}

/// Returns a figure of a flow's partner, 0 if it has none of this name.
fn partner_figure(stats: &Value, name: &str) -> f64 {
    let figures = stats["partner"].as_array().into_iter().flatten();
    figures.filter(|figure| figure[0] == name).filter_map(|figure| figure[1].as_f64()).sum()
}

/// The report of one host or of both about lost messages.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Reported {
    /// Lost messages by reason.
    pub(crate) reasons: BTreeMap<String, u64>,
    /// True if the kernel dropped more messages without a count.
    pub(crate) is_unnumbered: bool,
    /// True if all reporting programs still run.
    pub(crate) alive: bool,
}

impl Reported {
    /// Adds another report.
    pub(crate) fn and(mut self, other: Reported) -> Reported {
        for (reason, count) in other.reasons {
            *self.reasons.entry(reason).or_default() += count;
        }
        let is_unnumbered = self.is_unnumbered || other.is_unnumbered;
        Reported { is_unnumbered, alive: self.alive && other.alive, ..self }
    }

    /// Returns the number of messages reported as lost.
    pub(crate) fn dropped(&self) -> u64 {
        self.reasons.values().sum()
    }
}
