//! What a user says, in words, and what it comes to: the command line and the run file use the same words.
//!
//! ```toml
//! [[share]]
//! device = "evdev:/dev/input/event3"
//!
//! [[attach]]
//! from = "udp://studio/event3"
//! via = "buffer(play, delay=40ms)"
//!
//! [[connect]]
//! source = "serial:/dev/ttyUSB0"
//! sink = "pty:/tmp/tty"
//!
//! [service]
//! metrics = "9845"
//! ```

use crate::agree::Pipelines;
use crate::application::ApplicationChoice;
use crate::attach::{AttachRequest, AttachTarget};
use crate::error::RuntimeError;
use crate::junction::hub::HubPolicy;
use crate::junction::joint::Joint;
use crate::junction::outlet;
use crate::keys::read_key_file;
use crate::registry;
use crate::share::{DeviceChoice, ShareDevice, ShareRequest};
use crate::trust::Trust;
use crate::worker::TransportPlan;
use contract::{OptionKind, OptionSpec, Options, Role, Scope};
use pipeline::Joined;
use serde::{Deserialize, Serialize};
use session::{Admittance, Limits, Rates, StoreFull};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The port that nobody has to write.
pub const DEFAULT_PORT: u16 = 7845;
/// Where `share` listens, unless it is told otherwise: at every address, of IPv4 too.
pub const DEFAULT_LISTEN: &str = "[::]:7845";
/// Bytes of a run file's line that is shown whole.
const SHOWN_BYTES_MAX: usize = 500;
/// How records travel, unless it is said otherwise.
pub(crate) const DEFAULT_TRANSPORT: &str = "quic";
/// How they do where that does not get through.
pub(crate) const FALLBACK_TRANSPORT: &str = "tcp";

/// The words of `share`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShareWords {
    /// `kind:rest`.
    pub device: String,
    /// Its name in the catalogue; the device's own if none.
    pub name: Option<String>,
    /// Pipeline, device to application.
    pub via: Option<String>,
    /// Pipeline, application to device.
    pub via_back: Option<String>,
    /// The only pipeline, device to application, that a peer may ask for.
    pub require: Option<String>,
    /// The key of pairs that seal, beside the session's own.
    pub key_file: Option<PathBuf>,
    /// Where what leaves pairs by side ports goes, `PAIR[.PORT]=SPEC` each.
    #[serde(default, rename = "port", deserialize_with = "one_or_several")]
    pub ports: Vec<String>,
    /// Who may use it at once: [`HubPolicy::parse`]; what its pipeline says if none.
    pub hub: Option<String>,
    /// `[TRANSPORT://]ADDRESS[:PORT]`, UDP and TCP alike; [`DEFAULT_LISTEN`] if none.
    pub listen: Option<String>,
    /// `name=value,...` of the options of that transport, for peers that come by it.
    pub transport: Option<String>,
    /// Whether the local network is told that this host shares.
    #[serde(default)]
    pub announce: bool,
    /// Names of the peers that may see and open it; none: all that are known.
    #[serde(default, deserialize_with = "one_or_several")]
    pub allow: Vec<String>,
    /// Whether peers are let in that nobody knows.
    #[serde(default)]
    pub insecure: bool,
    /// `name=value,...` of [`LIMITS`].
    pub limits: Option<String>,
}

/// The words of `attach`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttachWords {
    /// `[TRANSPORT://]HOST[:PORT]/NAME`, one or several.
    #[serde(deserialize_with = "one_or_several")]
    pub from: Vec<String>,
    /// `kind:rest`: one for each of `from`, or none for what suits the device.
    #[serde(default, rename = "as", deserialize_with = "one_or_several")]
    pub applications: Vec<String>,
    /// Pipeline, device to application.
    pub via: Option<String>,
    /// Pipeline, application to device.
    pub via_back: Option<String>,
    /// The key of pairs that seal, beside the session's own.
    pub key_file: Option<PathBuf>,
    /// Where what leaves pairs by side ports goes, `PAIR[.PORT]=SPEC` each.
    #[serde(default, rename = "port", deserialize_with = "one_or_several")]
    pub ports: Vec<String>,
    /// `name=value,...` of the transport's options.
    pub transport: Option<String>,
    /// Whether the other host may be one that nobody knows.
    #[serde(default)]
    pub insecure: bool,
    /// `name=value,...` of [`LIMITS`].
    pub limits: Option<String>,
}

/// The words of `connect`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConnectWords {
    /// `kind:rest`: the side of the device.
    pub source: String,
    /// `kind:rest`: the side of the application.
    pub sink: String,
    /// Pipeline, source to sink.
    pub via: Option<String>,
    /// Pipeline, sink to source.
    pub via_back: Option<String>,
    /// The key of pairs that seal.
    pub key_file: Option<PathBuf>,
    /// Where what leaves pairs by side ports goes, `PAIR[.PORT]=SPEC` each.
    #[serde(default, rename = "port", deserialize_with = "one_or_several")]
    pub ports: Vec<String>,
}

/// A run file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunFile {
    /// Devices to share.
    #[serde(default)]
    pub share: Vec<ShareWords>,
    /// Devices of other hosts to use.
    #[serde(default)]
    pub attach: Vec<AttachWords>,
    /// Raw paths on this host.
    #[serde(default)]
    pub connect: Vec<ConnectWords>,
    /// What concerns the process as a whole.
    #[serde(default)]
    pub service: ServiceWords,
}

/// The words of a run file's `[service]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceWords {
    /// `[ADDRESS:]PORT` where metrics are served: [`crate::metrics`].
    pub metrics: Option<String>,
}

impl RunFile {
    /// Reads TOML. An error names line and column, and shows them.
    pub fn parse(text: &str) -> Result<RunFile, RuntimeError> {
        let wrong = |error: toml::de::Error| RuntimeError::Usage(shown(&error));
        let file: RunFile = toml::from_str(text).map_err(wrong)?;
        if file.share.is_empty() && file.attach.is_empty() && file.connect.is_empty() {
            let problem = "there is nothing to do: it has neither [[share]] nor [[attach]] nor [[connect]]";
            return Err(RuntimeError::Usage(problem.into()));
        }
        Ok(file)
    }

    /// Whether standard output is where data goes.
    pub fn writes_stdout(&self) -> bool {
        let attached = |attach: &AttachWords| {
            attach.applications.is_empty() || attach.applications.iter().any(|text| is_stdout(text))
        };
        self.attach.iter().any(attached) || self.connect.iter().any(|connect| is_stdout(&connect.sink))
    }

    /// What its `[[share]]` come to, one request for each place to listen; errors say which.
    pub fn share_requests(&self) -> Result<Vec<ShareRequest>, RuntimeError> {
        let mut requests: Vec<ShareRequest> = Vec::new();
        for (index, words) in self.share.iter().enumerate() {
            let request = words.request().map_err(|error| place(error, "share", index, &words.device))?;
            match requests.iter_mut().find(|known| known.listen == request.listen) {
                Some(known) if known.trust != request.trust || known.limits != request.limits => {
                    let problem =
                        format!("another [[share]] on {} differs in `insecure` or `limits`", known.listen);
                    return Err(place(RuntimeError::Usage(problem), "share", index, &words.device));
                }
                Some(known) => {
                    known.announce |= request.announce;
                    known.devices.extend(request.devices);
                }
                None => requests.push(request),
            }
        }
        Ok(requests)
    }

    /// What its `[[attach]]` come to, one request for each host; errors say which.
    pub fn attach_requests(&self) -> Result<(Vec<AttachRequest>, Vec<Joint>), RuntimeError> {
        let (mut requests, mut joints) = (Vec::new(), Vec::new());
        for (index, words) in self.attach.iter().enumerate() {
            let (some, joint) =
                words.requests().map_err(|error| place(error, "attach", index, &words.from.join(" ")))?;
            requests.extend(some);
            joints.extend(joint);
        }
        Ok((requests, joints))
    }

    /// Checks its `[[connect]]`; errors say which.
    pub fn connections(&self) -> Result<Vec<(&ConnectWords, Pipelines)>, RuntimeError> {
        self.connect
            .iter()
            .enumerate()
            .map(|(index, words)| match words.pipelines() {
                Ok(pipelines) => Ok((words, pipelines)),
                Err(error) => Err(place(error, "connect", index, &words.source)),
            })
            .collect()
    }
}

impl ShareWords {
    /// What they come to.
    pub fn request(&self) -> Result<ShareRequest, RuntimeError> {
        registry::device_spec(&self.device, Role::Device)?;
        let pipelines = pipelines(
            [&self.via, &self.via_back, &self.require].map(Option::as_deref),
            self.key_file.as_deref(),
            (&self.ports, false),
        )?;
        let hub = self.hub.as_deref().map(HubPolicy::parse).transpose();
        let device = ShareDevice {
            device: DeviceChoice::Spec(self.device.clone()),
            name: self.name.clone(),
            pipelines,
            hub: hub.map_err(|problem| RuntimeError::Usage(format!("hub: {problem}")))?.unwrap_or_default(),
            allow: self.allow.clone(),
            transport: self.transport_plan()?,
        };
        let trust = trust(self.insecure)?;
        match &trust {
            None if !self.allow.is_empty() => {
                let problem =
                    "`allow` names peers, and with `insecure` nobody is asked who comes: say one of them";
                return Err(RuntimeError::Usage(problem.into()));
            }
            None => {}
            Some(trust) => {
                let peers = trust.peers()?;
                if let Some(unknown) = self.allow.iter().find(|name| peers.named(name).is_none()) {
                    return Err(RuntimeError::Usage(format!(
                        "no host called `{unknown}` is paired; `outboard peers` lists them, `outboard pair` adds one"
                    )));
                }
            }
        }
        Ok(ShareRequest {
            devices: vec![device],
            listen: self.listen_address()?,
            trust,
            limits: limits(self.limits.as_deref())?,
            host: host_name(),
            announce: self.announce,
        })
    }
}

impl ShareWords {
    pub(crate) fn listen_address(&self) -> Result<SocketAddr, RuntimeError> {
        listen_address(self.listen.as_deref().unwrap_or(DEFAULT_LISTEN))
    }

    fn transport_plan(&self) -> Result<Option<TransportPlan>, RuntimeError> {
        let Some(options) = self.transport.as_deref() else { return Ok(None) };
        let (name, _) = split_transport(self.listen.as_deref().unwrap_or(DEFAULT_LISTEN))?;
        transport_plan(name, Some(options)).map(Some)
    }
}

impl AttachWords {
    /// What they come to: one request for each host and transport, and what joins the devices if their pipeline
    /// says so.
    pub fn requests(&self) -> Result<(Vec<AttachRequest>, Option<Joint>), RuntimeError> {
        let usage = |error: pipeline::PipelineError| RuntimeError::Usage(error.to_string());
        let read = |text: &String| Joined::parse(text, registry::pairs()).map_err(usage);
        let joined = self.via.as_ref().filter(|_| self.from.len() > 1).map(read).transpose()?.flatten();
        let Some(joined) = joined else { return Ok((self.each()?, None)) };
        let origins = self.from.iter().map(|from| Origin::parse(from)).collect::<Result<Vec<_>, _>>()?;
        let names: Vec<_> = self.from.iter().zip(&origins).map(|(from, origin)| origin.names(from)).collect();
        let pipelines = joined.pipelines(&names).map_err(usage)?;
        let nodes = if Joint::keeps_apart(joined.joint()) { self.from.len() } else { 1 };
        let mut applications = Vec::new();
        for text in &self.applications {
            registry::device_spec(text, Role::Application)?;
            applications.push(ApplicationChoice::Spec(text.clone()));
        }
        if applications.is_empty() {
            applications.extend((0..nodes).map(|_| ApplicationChoice::Suitable));
        }
        let devices: Vec<_> = origins.iter().map(|origin| origin.name.to_string()).collect();
        let apart = AttachWords { via: None, applications: Vec::new(), ..self.clone() };
        let mut requests = apart.each()?;
        let outlets = requests.first().map(|request| &request.targets[0].pipelines.outlets[..]);
        let after = joined.after().clone().with_outlets(outlets.unwrap_or_default());
        let (joint, ports) = Joint::new(&devices, joined.joint().clone(), after, applications)?;
        // Each host's devices stand in its request in the order of the words.
        let mut filled = vec![0; requests.len()];
        for ((origin, pipeline), port) in origins.iter().zip(pipelines).zip(ports) {
            let Some(request) = requests.iter().position(|request| origin.is_of(request)) else { continue };
            let target = &mut requests[request].targets[filled[request]];
            filled[request] += 1;
            target.application = ApplicationChoice::Joint(port);
            target.pipelines.via = Some(pipeline);
        }
        Ok((requests, Some(joint)))
    }

    /// One request for each host and transport, each device by itself.
    fn each(&self) -> Result<Vec<AttachRequest>, RuntimeError> {
        let applications = self.applications.len();
        if self.from.is_empty() || applications != 0 && applications != self.from.len() {
            return Err(RuntimeError::Usage(format!(
                "{} devices are to be attached as {applications} applications: give one for each, or none",
                self.from.len()
            )));
        }
        let words = [self.via.as_deref(), self.via_back.as_deref(), None];
        let ports = (&self.ports[..], self.from.len() > 1);
        let pipelines = pipelines(words, self.key_file.as_deref(), ports)?;
        let mut requests: Vec<AttachRequest> = Vec::new();
        for (index, from) in self.from.iter().enumerate() {
            let origin = Origin::parse(from)?;
            let application = match self.applications.get(index) {
                Some(text) => {
                    registry::device_spec(text, Role::Application)?;
                    ApplicationChoice::Spec(text.clone())
                }
                None => ApplicationChoice::Suitable,
            };
            let target = AttachTarget { name: origin.name.into(), application, pipelines: pipelines.clone() };
            match requests.iter_mut().find(|request| origin.is_of(request)) {
                Some(request) => request.targets.push(target),
                None => requests.push(AttachRequest {
                    address: origin.address,
                    transport: transport_plan(origin.transport, self.transport.as_deref())?,
                    fallback: fallback(from, self.transport.as_deref())?,
                    targets: vec![target],
                    trust: trust(self.insecure)?,
                    limits: limits(self.limits.as_deref())?,
                    host: host_name(),
                }),
            }
        }
        Ok(requests)
    }
}

impl ConnectWords {
    /// Checks them, and reads the pipelines.
    pub fn pipelines(&self) -> Result<Pipelines, RuntimeError> {
        registry::device_spec(&self.source, Role::Device)?;
        registry::device_spec(&self.sink, Role::Application)?;
        let words = [self.via.as_deref(), self.via_back.as_deref(), None];
        pipelines(words, self.key_file.as_deref(), (&self.ports, false))
    }
}

/// Who is known to this user, unless nobody is asked.
fn trust(insecure: bool) -> Result<Option<Trust>, RuntimeError> {
    (!insecure).then(Trust::open).transpose()
}

fn pipelines(
    [via, via_back, require]: [Option<&str>; 3],
    key_file: Option<&Path>,
    (ports, are_shared): (&[String], bool),
) -> Result<Pipelines, RuntimeError> {
    let pipelines = Pipelines::parse(via, via_back, require).map_err(RuntimeError::Usage)?;
    let key = key_file.map(read_key_file).transpose()?;
    let outlets = outlet::open(ports, are_shared).map_err(RuntimeError::Usage)?;
    Ok(Pipelines { key, outlets, ..pipelines })
}

/// `[TRANSPORT://]HOST[:PORT]/NAME`, taken apart.
#[derive(Debug, PartialEq, Eq)]
struct Origin<'a> {
    transport: &'a str,
    /// With its port.
    address: String,
    name: &'a str,
}

impl<'a> Origin<'a> {
    /// What its flow may be called, the sharpest first; `whole` is what it was read from.
    fn names(&self, whole: &'a str) -> Vec<&'a str> {
        let plain = whole.split_once("://").map_or(whole, |(_, plain)| plain);
        vec![whole, plain, self.name]
    }

    fn is_of(&self, request: &AttachRequest) -> bool {
        request.address == self.address && request.transport.class.name() == self.transport
    }

    fn parse(text: &'a str) -> Result<Origin<'a>, RuntimeError> {
        let (transport, rest) = split_transport(text)?;
        match rest.split_once('/') {
            Some((host, name)) if !host.is_empty() && !name.is_empty() => {
                Ok(Origin { transport, address: with_port(host), name })
            }
            _ => Err(RuntimeError::Usage(format!(
                "`{text}` names no device of a host: write [TRANSPORT://]HOST[:PORT]/NAME, such as \
                 studio/event3 or udp://studio:{DEFAULT_PORT}/event3"
            ))),
        }
    }
}

/// An error with the line that is wrong, unless that is longer than a person reads.
fn shown(error: &toml::de::Error) -> String {
    let text = error.to_string();
    match text.lines().all(|line| line.len() <= SHOWN_BYTES_MAX) {
        true => text.trim_end().into(),
        false => format!("{}, in a line of more than {SHOWN_BYTES_MAX} bytes", error.message()),
    }
}

/// What is tried if the transport does not get through: only where the user left the choice of it.
fn fallback(from: &str, options: Option<&str>) -> Result<Option<TransportPlan>, RuntimeError> {
    let is_free = !from.contains("://") && options.is_none();
    is_free.then(|| transport_plan(FALLBACK_TRANSPORT, None)).transpose()
}

fn split_transport(text: &str) -> Result<(&str, &str), RuntimeError> {
    let Some((transport, rest)) = text.split_once("://") else { return Ok((DEFAULT_TRANSPORT, text)) };
    if registry::transport(transport).is_some() {
        return Ok((transport, rest));
    }
    let known: Vec<_> = registry::transports().iter().map(|class| class.name()).collect();
    Err(RuntimeError::Usage(format!(
        "`{text}`: there is no transport `{transport}`; there is: {}",
        known.join(", ")
    )))
}

/// The host with its port. An IPv6 address stands in brackets where it has one.
pub fn with_port(host: &str) -> String {
    match host.rsplit_once(':') {
        Some((_, port)) if !is_bare_v6(host) && port.parse::<u16>().is_ok() => host.into(),
        _ => with_port_of(host, &DEFAULT_PORT.to_string()),
    }
}

/// A host without a port, with this one.
pub(crate) fn with_port_of(host: &str, port: &str) -> String {
    if is_bare_v6(host) { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Whether it is an address of IPv6 without brackets, perhaps with its interface.
fn is_bare_v6(host: &str) -> bool {
    let address = host.split_once('%').map_or(host, |(address, _)| address);
    address.parse::<std::net::Ipv6Addr>().is_ok()
}

fn listen_address(text: &str) -> Result<SocketAddr, RuntimeError> {
    let (_, host) = split_transport(text)?;
    let wrong = |why: String| {
        RuntimeError::Usage(format!("cannot listen on `{text}`: {why}; write [TRANSPORT://]ADDRESS[:PORT]"))
    };
    Ok(sys::address::resolve(&with_port(host)).map_err(|error| wrong(error.to_string()))?[0])
}

/// A transport with its options, `name=value,...`, checked.
pub fn transport_plan(name: &str, options: Option<&str>) -> Result<TransportPlan, RuntimeError> {
    let class = registry::transport(name)
        .ok_or_else(|| RuntimeError::Usage(format!("there is no transport `{name}`")))?;
    let options = check_options(class.options(), options).map_err(|problem| {
        RuntimeError::Usage(format!(
            "transport `{name}`: {problem}; `outboard modules {name}` lists its options"
        ))
    })?;
    Ok(TransportPlan { class, options })
}

pub(crate) fn check_options(specs: &'static [OptionSpec], given: Option<&str>) -> Result<Options, String> {
    let words = given.unwrap_or_default().split(',').map(str::trim).filter(|word| !word.is_empty());
    let pairs = words
        .map(|word| word.split_once('=').ok_or_else(|| format!("`{word}` is no option: write name=value")))
        .collect::<Result<Vec<_>, _>>()?;
    Options::check(specs, pairs).map_err(|error| error.problem)
}

const COUNT: OptionKind = OptionKind::Integer { min: 1, max: 1 << 20 };
const RATE: OptionKind = OptionKind::Integer { min: 0, max: 1 << 40 };
/// Of one processor: of as many as Linux can be built for (`CONFIG_NR_CPUS`), whatever host the run file comes to.
const PERCENT: OptionKind = OptionKind::Integer { min: 0, max: 100 * 8192 };
const RATE_BYTES: OptionKind = OptionKind::Size { min: 0, max: 1 << 50 };
const BYTES: OptionKind = OptionKind::Size { min: 1, max: 1 << 40 };
const TIME: OptionKind =
    OptionKind::Duration { min: Duration::from_millis(1), max: Duration::from_secs(86_400) };

const fn limit(name: &'static str, kind: OptionKind, default: &'static str, doc: &'static str) -> OptionSpec {
    OptionSpec { name, kind, default, scope: Scope::Local, doc }
}

/// Every bound of a session, by name.
pub static LIMITS: &[OptionSpec] = &[
    limit("silence", TIME, "700ms", "silence of the other host after which what depends on it goes neutral"),
    limit("keep", TIME, "120s", "how long a session without a connection is kept for its peer to come back"),
    limit("ping_interval", TIME, "100ms", "time between pings"),
    limit(
        "drain",
        TIME,
        "2s",
        "how long what has ended at its source may take to arrive when this host is told to stop",
    ),
    limit("greeting", TIME, "5s", "how long a connection may take to introduce itself"),
    limit("greetings", COUNT, "256", "connections that have not introduced themselves yet"),
    limit("connections_per_second", COUNT, "100", "connections of one address in a second"),
    limit(
        "greetings_per_address",
        COUNT,
        "128",
        "connections of one address that have not introduced themselves yet",
    ),
    limit("handshakes_per_second", COUNT, "200", "handshakes of all together in a second"),
    limit("sessions", COUNT, "128", "peers at once"),
    limit("sessions_per_peer", COUNT, "64", "sessions of one peer at once"),
    limit("drivers_of_all", COUNT, "4096", "devices of all sessions"),
    limit(
        "store_bytes_of_all",
        BYTES,
        "16GiB",
        "what all flows may come to keep to send again, bytes: store_bytes of each",
    ),
    limit("device_messages", RATE, "0", "messages of one device in a second, both ways; 0: no bound"),
    limit("device_bytes", RATE_BYTES, "0", "bytes of one device in a second, both ways; 0: no bound"),
    limit("session_messages", RATE, "0", "messages of one session in a second, both ways; 0: no bound"),
    limit("session_bytes", RATE_BYTES, "0", "bytes of one session in a second, both ways; 0: no bound"),
    limit(
        "cpu_percent_per_peer",
        PERCENT,
        "0",
        "processor time for the flows of one peer, per cent of one processor; 0: no bound",
    ),
    limit(
        "control_percent_per_peer",
        PERCENT,
        "10",
        "processor time for what one peer says beside its flows, per cent of one processor; 0: no bound",
    ),
    limit("drivers", COUNT, "64", "devices of one session"),
    limit("store_bytes", BYTES, "16MiB", "what one flow keeps to send again, bytes"),
    limit("store_messages", COUNT, "65536", "what one flow keeps to send again, messages"),
    limit(
        "store_full",
        OptionKind::Choice(StoreFull::WORDS),
        "block",
        "when that is reached: let the device wait, give up the oldest, or end the flow",
    ),
    limit("held_bytes", BYTES, "16MiB", "what one flow holds while it waits for an earlier record, bytes"),
    limit("held_records", COUNT, "4096", "what one flow holds while it waits for an earlier record, records"),
    limit(
        "message_bytes",
        BYTES,
        "4MiB",
        "what a message of the other host may become when it is decompressed, pictures apart, bytes",
    ),
    limit("control_bytes", BYTES, "4MiB", "control messages waiting to be sent, bytes"),
];

/// Reads `name=value,...` of [`LIMITS`].
pub fn limits(given: Option<&str>) -> Result<Limits, RuntimeError> {
    let options =
        check_options(LIMITS, given).map_err(|problem| RuntimeError::Usage(format!("limits: {problem}")))?;
    Ok(Limits {
        store_bytes: options.size("store_bytes"),
        store_messages: options.count("store_messages"),
        store_full: StoreFull::parse(options.text("store_full")).unwrap_or_default(),
        held_records: options.count("held_records"),
        held_bytes: options.size("held_bytes"),
        message_bytes: options.size("message_bytes"),
        control_bytes: options.size("control_bytes"),
        silence: options.duration("silence"),
        ping_interval: options.duration("ping_interval"),
        keep: options.duration("keep"),
        drain: options.duration("drain"),
        greeting: options.duration("greeting"),
        greetings: options.count("greetings"),
        sessions: options.count("sessions"),
        drivers: options.count("drivers"),
        admission: Admittance {
            connections_per_second: options.count("connections_per_second"),
            greetings_per_address: options.count("greetings_per_address"),
            handshakes_per_second: options.count("handshakes_per_second"),
            sessions_per_peer: options.count("sessions_per_peer"),
            drivers_of_all: options.count("drivers_of_all"),
            store_bytes_of_all: options.size("store_bytes_of_all"),
        },
        rates: Rates {
            device_messages: options.count("device_messages") as u64,
            device_bytes: options.size("device_bytes") as u64,
            session_messages: options.count("session_messages") as u64,
            session_bytes: options.size("session_bytes") as u64,
            cpu_percent_per_peer: options.count("cpu_percent_per_peer") as u64,
            control_percent_per_peer: options.count("control_percent_per_peer") as u64,
        },
    })
}

/// Whether this application's data go to standard output.
pub fn is_stdout(application: &str) -> bool {
    application == "stdout" || application.starts_with("stdout:") || matches!(application, "y4m" | "y4m:")
}

/// This host's name, for people.
pub fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => "a host without a name".into(),
        name => name.into(),
    }
}

/// The error, with the place in the run file that it is about.
fn place(error: RuntimeError, table: &str, index: usize, which: &str) -> RuntimeError {
    let at = format!("[[{table}]] number {} ({which})", index + 1);
    match error {
        RuntimeError::Usage(problem) => RuntimeError::Usage(format!("{at}: {problem}")),
        other => RuntimeError::Usage(format!("{at}: {other}")),
    }
}

fn one_or_several<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "a text, or a list of texts")]
    enum Words {
        One(String),
        Several(Vec<String>),
    }
    Ok(match Words::deserialize(deserializer)? {
        Words::One(word) => vec![word],
        Words::Several(words) => words,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem<T>(result: Result<T, RuntimeError>) -> String {
        match result {
            Err(RuntimeError::Usage(problem)) => problem,
            Err(other) => panic!("not the user's error: {other}"),
            Ok(_) => panic!("accepted"),
        }
    }

    #[test]
    fn hosts_are_read_in_every_form() {
        for (text, transport, address, name) in [
            ("studio/mouse", "quic", "studio:7845", "mouse"),
            ("udp://studio:9/a/b", "udp", "studio:9", "a/b"),
            ("[::1]:9/m", "quic", "[::1]:9", "m"),
            ("::1/m", "quic", "[::1]:7845", "m"),
            ("[::1]/m", "quic", "[::1]:7845", "m"),
            ("fe80::1%eth0/m", "quic", "[fe80::1%eth0]:7845", "m"),
            ("[fe80::1%eth0]:9/m", "quic", "[fe80::1%eth0]:9", "m"),
        ] {
            assert_eq!(
                Origin::parse(text).unwrap(),
                Origin { transport, address: address.into(), name },
                "{text}"
            );
        }
        for wrong in ["studio", "/mouse", "studio/", "", "tcp://"] {
            assert!(problem(Origin::parse(wrong)).contains("HOST[:PORT]/NAME"), "{wrong}");
        }
        assert!(problem(Origin::parse("smoke://a/b")).contains("there is no transport `smoke`"));
    }

    #[test]
    fn a_sharer_has_options_of_the_transport_it_listens_by() {
        let plan = |listen: Option<&str>, options: &str| {
            let (listen, transport) = (listen.map(String::from), Some(options.into()));
            ShareWords { listen, transport, ..ShareWords::default() }.transport_plan()
        };
        let named = |listen, options| plan(listen, options).unwrap().unwrap().class.name();
        assert_eq!(named(None, "congestion=bbr"), "quic");
        assert_eq!(named(Some("tcp://127.0.0.1"), "congestion=bbr"), "tcp");
        assert!(ShareWords::default().transport_plan().unwrap().is_none());
        assert!(problem(plan(Some("udp://[::]:1"), "colour=red")).contains("there is no option `colour`"));
    }

    #[test]
    fn another_transport_is_tried_only_where_none_was_chosen() {
        let name = |from, options| fallback(from, options).unwrap().map(|plan| plan.class.name());
        assert_eq!(name("studio/mouse", None), Some("tcp"));
        assert_eq!(name("quic://studio/mouse", None), None);
        assert_eq!(name("studio/mouse", Some("outbox=9")), None);
    }

    #[test]
    fn the_names_of_limits_give_the_defaults_of_the_session() {
        assert_eq!(limits(None).unwrap(), Limits::default());
        assert_eq!(limits(Some("silence=2s, sessions=1")).unwrap().silence, Duration::from_secs(2));
        assert!(problem(limits(Some("colour=red"))).contains("there is no option `colour`"));
    }

    #[test]
    fn a_run_file_says_what_the_command_line_says() {
        let file = RunFile::parse(
            r#"
            [[share]]
            device = "pattern:rate=5"
            name = "p"
            listen = "udp://127.0.0.1:9"
            [[share]]
            device = "null"
            listen = "127.0.0.1:9"
            [[attach]]
            from = ["a/x", "b/y", "a/z"]
            as = ["null", "stdout", "null"]
            via = "null"
            [[connect]]
            source = "pattern"
            sink = "null"
            "#,
        )
        .unwrap();
        let shares = file.share_requests().unwrap();
        assert_eq!(shares.len(), 1, "one place to listen is one sharer");
        assert_eq!((shares[0].devices.len(), shares[0].devices[0].name.as_deref()), (2, Some("p")));
        let attaches = file.attach_requests().unwrap().0;
        let targets: Vec<_> =
            attaches.iter().map(|request| (request.address.as_str(), request.targets.len())).collect();
        assert_eq!(targets, [("a:7845", 2), ("b:7845", 1)]);
        assert_eq!(file.connections().unwrap().len(), 1);
    }

    #[test]
    fn what_a_run_file_says_wrong_is_named() {
        for (text, says) in [
            ("", "nothing to do"),
            ("[[share]]\nname = 'x'", "missing field `device`"),
            ("[[share]]\ndevice = 'null'\ncolour = 'red'", "line 3"),
            ("[[attach]]\nfrom = 7", "a text, or a list of texts"),
            ("[[teleport]]", "unknown field `teleport`"),
        ] {
            let problem = problem(RunFile::parse(text));
            assert!(problem.contains(says), "{text}: {problem}");
        }
        let endless = problem(RunFile::parse(&"\0".repeat(100_000)));
        assert!(endless.len() < 1000, "{} bytes", endless.len());
        let file =
            RunFile::parse("[[share]]\ndevice = 'null'\n[[share]]\ndevice = 'pattern'\nvia = 'nul'").unwrap();
        let problem = problem(file.share_requests());
        assert!(
            problem.starts_with("[[share]] number 2 (pattern): ") && problem.contains("^^^"),
            "{problem}"
        );
    }
}
