//! Options of `share`, `attach` and `connect`, and their conversion to requests. The command line and the run file
//! use the same options:
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

mod tables;

use crate::wrong_origin::{is_device, wrong_origin};
use broker::ShareRequest;
use broker::attach::{AttachRequest, AttachTarget};
use broker::programs::check_transport;
use broker::share_words::{ShareWords, one_or_several, pipelines, trust};
use contract::{Kind, KindChange, Role, ServiceError, nearest};
use flow::nodes::Conflict;
use hosts::place::{DEFAULT_TRANSPORT, FALLBACK_TRANSPORT, check_peer, parse_target, split_transport};
use hub::application::ApplicationChoice;
use hub::joint::Joint;
use modules::limits::limits;
use modules::{Pipelines, TransportPlan, registry, transport_plan};
use pipeline::Joined;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::PathBuf;
use sys::address::host_name;
use trust::{Peers, Target};

/// Longest line of a run file that an error shows in full.
const SHOWN_BYTES_MAX: usize = 500;

/// The error of a file without entries.
const NO_ENTRIES: &str = "the file has no entries: write [[share]] and a line such as device = \"/dev/ttyUSB0\", or [[attach]] and \
                          from = \"HOST/NAME\", or [[connect]] with source and sink";

/// The options of `attach`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct AttachWords {
    /// The devices, `[TRANSPORT://][PEER@]HOST[:PORT]/NAME`.
    #[serde(deserialize_with = "one_or_several")]
    pub from: Vec<String>,
    /// The local partners, `kind:rest`: one for each of `from`, or none to use the default of the device class.
    #[serde(default, rename = "as", deserialize_with = "one_or_several")]
    pub applications: Vec<String>,
    /// Writes control characters to a terminal, too, with `stdout`.
    #[serde(default)]
    pub raw: bool,
    /// The decision about nodes that other processes have.
    #[serde(skip)]
    pub conflict: Conflict,
    /// The kinds that the devices must have: one for each of `from`, or none.
    #[serde(default, deserialize_with = "one_or_several")]
    pub expect: Vec<String>,
    /// Kinds that the user has accepted in this process.
    #[serde(skip)]
    pub accepted: Vec<KindChange>,
    /// Hosts to look names up in, instead of the stored list: a check changes no list.
    #[serde(skip)]
    pub known: Option<Peers>,
    /// Pipeline, device to application.
    pub via: Option<String>,
    /// Pipeline, application to device.
    #[serde(alias = "via-back")]
    pub via_back: Option<String>,
    /// A key file for pairs that encrypt, in addition to the session's key.
    #[serde(alias = "key-file")]
    pub key_file: Option<PathBuf>,
    /// Outlets of side ports, `PAIR[.PORT]=SPEC` each.
    #[serde(default, rename = "port", deserialize_with = "one_or_several")]
    pub ports: Vec<String>,
    /// Options of the transport, `name=value,...`.
    pub transport: Option<String>,
    /// Disables authentication and encryption.
    #[serde(default)]
    pub insecure: bool,
    /// Limits, `name=value,...` of [`LIMITS`](modules::limits::LIMITS).
    #[serde(alias = "limit")]
    pub limits: Option<String>,
}

/// The options of `connect`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConnectWords {
    /// The device's side, `kind:rest`.
    pub source: String,
    /// The application's side, `kind:rest`.
    pub sink: String,
    /// Pipeline, source to sink.
    pub via: Option<String>,
    /// Pipeline, sink to source.
    #[serde(alias = "via-back")]
    pub via_back: Option<String>,
    /// A key file for pairs that encrypt.
    #[serde(alias = "key-file")]
    pub key_file: Option<PathBuf>,
    /// Outlets of side ports, `PAIR[.PORT]=SPEC` each.
    #[serde(default, rename = "port", deserialize_with = "one_or_several")]
    pub ports: Vec<String>,
}

/// A run file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunFile {
    /// Devices to share.
    #[serde(default, deserialize_with = "tables::share")]
    pub share: Vec<ShareWords>,
    /// Devices of other hosts to attach.
    #[serde(default, deserialize_with = "tables::attach")]
    pub attach: Vec<AttachWords>,
    /// Raw paths on this host.
    #[serde(default, deserialize_with = "tables::connect")]
    pub connect: Vec<ConnectWords>,
    /// Options of the process.
    #[serde(default, deserialize_with = "tables::service")]
    pub service: ServiceWords,
}

/// The options of the `[service]` table.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceWords {
    /// The address that serves metrics, `[ADDRESS:]PORT`: [`crate::metrics`].
    pub metrics: Option<String>,
}

impl AttachWords {
    /// Returns a text that only equal options have, in later versions too: options that are not set are not in it.
    pub fn identity(&self) -> String {
        let is_set = |value: &Value| match value {
            Value::Null | Value::Bool(false) => false,
            Value::Array(values) => !values.is_empty(),
            _ => true,
        };
        match serde_json::to_value(self) {
            Ok(Value::Object(mut options)) => {
                options.retain(|_, value| is_set(value));
                Value::Object(options).to_string()
            }
            _ => self.from.join(" "),
        }
    }
}

impl RunFile {
    /// Parses TOML. An error names and shows the line.
    pub fn parse(text: &str) -> Result<RunFile, ServiceError> {
        let wrong = |error: toml::de::Error| ServiceError::Usage(shown(&error, text));
        let file: RunFile = toml::from_str(text).map_err(wrong)?;
        if file.share.is_empty() && file.attach.is_empty() && file.connect.is_empty() {
            return Err(ServiceError::Usage(NO_ENTRIES.into()));
        }
        Ok(file)
    }

    /// Returns whether standard output carries data.
    pub fn writes_stdout(&self) -> bool {
        let attached = |attach: &AttachWords| {
            attach.applications.is_empty() || attach.applications.iter().any(|text| is_stdout(text))
        };
        self.attach.iter().any(attached) || self.connect.iter().any(|connect| is_stdout(&connect.sink))
    }

    /// Converts `[[share]]` to requests, one for each address. An error names the entry.
    pub fn share_requests(&self) -> Result<Vec<ShareRequest>, ServiceError> {
        let mut requests: Vec<ShareRequest> = Vec::new();
        for (index, words) in self.share.iter().enumerate() {
            let request = words.request().map_err(|error| place(error, "share", index, &words.device))?;
            match requests.iter_mut().find(|known| known.listen == request.listen) {
                Some(known) if known.trust != request.trust || known.limits != request.limits => {
                    let problem =
                        format!("another [[share]] on {} differs in `insecure` or `limits`", known.listen);
                    return Err(place(ServiceError::Usage(problem), "share", index, &words.device));
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

    /// Converts `[[attach]]` to requests, one for each host and transport, and joints. An error names the entry.
    pub fn attach_requests(&self) -> Result<(Vec<AttachRequest>, Vec<Joint>), ServiceError> {
        let (mut requests, mut joints) = (Vec::new(), Vec::new());
        for (index, words) in self.attach.iter().enumerate() {
            let (some, joint) =
                words.requests().map_err(|error| place(error, "attach", index, &words.from.join(" ")))?;
            requests.extend(some);
            joints.extend(joint);
        }
        Ok((requests, joints))
    }

    /// Checks `[[connect]]`. An error names the entry.
    pub fn connections(&self) -> Result<Vec<(&ConnectWords, Pipelines)>, ServiceError> {
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

impl AttachWords {
    /// Converts the options to requests, one for each host and transport, and to a joint of the devices if their
    /// pipeline asks for one.
    pub fn requests(&self) -> Result<(Vec<AttachRequest>, Option<Joint>), ServiceError> {
        let usage = |error: pipeline::PipelineError| ServiceError::Usage(error.to_string());
        let read = |text: &String| Joined::parse(text, registry::pairs()).map_err(usage);
        let joined = self.via.as_ref().filter(|_| self.from.len() > 1).map(read).transpose()?.flatten();
        let Some(joined) = joined else { return Ok((self.each()?, None)) };
        let origins = self.from.iter().map(|from| Origin::parse(from)).collect::<Result<Vec<_>, _>>()?;
        let names: Vec<_> = self.from.iter().zip(&origins).map(|(from, origin)| origin.names(from)).collect();
        let pipelines = joined.pipelines(&names).map_err(usage)?;
        let nodes = if Joint::keeps_apart(joined.joint()) { self.from.len() } else { 1 };
        let mut applications = Vec::new();
        for text in self.application_specs()? {
            applications.push(ApplicationChoice::Spec(text, self.conflict));
        }
        if applications.is_empty() {
            applications.extend((0..nodes).map(|_| ApplicationChoice::Suitable));
        }
        let devices: Vec<_> = origins.iter().map(|origin| origin.name.to_string()).collect();
        let apart = AttachWords { via: None, applications: Vec::new(), raw: false, ..self.clone() };
        let mut requests = apart.each()?;
        let outlets = requests.first().map(|request| &request.targets[0].pipelines.outlets[..]);
        let after = joined.after().clone().with_outlets(outlets.unwrap_or_default());
        let (joint, ports) = Joint::new(&devices, joined.joint().clone(), after, applications)?;
        // Each host's request lists its devices in the order of `from`.
        let mut filled = vec![0; requests.len()];
        for ((origin, pipeline), port) in origins.iter().zip(pipelines).zip(ports) {
            let transport = transport_plan(origin.transport, self.transport.as_deref())?;
            let is_its = |request: &AttachRequest| origin.is_of(request, &transport);
            let Some(request) = requests.iter().position(is_its) else { continue };
            let target = &mut requests[request].targets[filled[request]];
            filled[request] += 1;
            target.application = ApplicationChoice::Joint(port);
            target.pipelines.via = Some(pipeline);
        }
        Ok((requests, Some(joint)))
    }

    /// Converts the options to requests without a joint.
    fn each(&self) -> Result<Vec<AttachRequest>, ServiceError> {
        let specs = self.application_specs()?;
        let applications = specs.len();
        if self.from.is_empty() || applications != 0 && applications != self.from.len() {
            return Err(ServiceError::Usage(format!(
                "there are {} devices and {applications} applications: give one for each, or none",
                self.from.len()
            )));
        }
        if !self.expect.is_empty() && self.expect.len() != self.from.len() {
            return Err(ServiceError::Usage(format!(
                "there are {} devices and {} expected kinds: give one for each, or none",
                self.from.len(),
                self.expect.len()
            )));
        }
        let words = [self.via.as_deref(), self.via_back.as_deref(), None];
        let ports = (&self.ports[..], self.from.len() > 1);
        let pipelines = pipelines(words, self.key_file.as_deref(), ports, Some(Role::Application))?;
        let mut requests: Vec<AttachRequest> = Vec::new();
        for (index, from) in self.from.iter().enumerate() {
            let origin = Origin::parse(from)?;
            let chosen = specs.get(index).map(|text| ApplicationChoice::Spec(text.clone(), self.conflict));
            let application = chosen.unwrap_or(ApplicationChoice::Suitable);
            let (name, pipelines) = (origin.name.into(), pipelines.clone());
            let target =
                AttachTarget { name, application, pipelines, expect: self.expected(index, &origin)? };
            let known = trust(self.insecure)?;
            check_peer(&origin.target, known.as_ref(), self.known.as_ref())?;
            let transport = transport_plan(origin.transport, self.transport.as_deref())?;
            check_transport(&transport)?;
            match requests.iter_mut().find(|request| origin.is_of(request, &transport)) {
                Some(request) => request.targets.push(target),
                None => requests.push(AttachRequest {
                    peer: origin.target.peer,
                    address: origin.target.address,
                    fallback: fallback(from, &transport)?,
                    transport,
                    targets: vec![target],
                    trust: known,
                    limits: limits(self.limits.as_deref())?,
                    host: host_name(),
                }),
            }
        }
        Ok(requests)
    }
}

impl AttachWords {
    /// Returns the options of a retry.
    pub(crate) fn retried(mut self) -> AttachWords {
        self.applications.iter_mut().for_each(append);
        self
    }

    /// Returns the checked specs of the local partners, with `raw` applied.
    fn application_specs(&self) -> Result<Vec<String>, ServiceError> {
        let mut specs = self.applications.clone();
        for spec in &specs {
            registry::device_spec(spec, Role::Application)?;
        }
        if self.raw {
            let is_output = |spec: &&mut String| *spec == "stdout" || spec.starts_with("stdout:");
            let outputs: Vec<&mut String> = specs.iter_mut().filter(is_output).collect();
            if outputs.is_empty() {
                let problem = "`raw` has an effect only with `stdout`: add `--as stdout`";
                return Err(ServiceError::Usage(problem.into()));
            }
            for spec in outputs {
                spec.push_str(if spec.contains(':') { ",raw=true" } else { ":raw=true" });
            }
        }
        Ok(specs)
    }

    /// Returns the kind that a device must have.
    fn expected(&self, index: usize, origin: &Origin<'_>) -> Result<Option<Kind>, ServiceError> {
        let is_of =
            |change: &&KindChange| change.name == origin.name && change.address == origin.target.address;
        if let Some(accepted) = self.accepted.iter().rfind(is_of) {
            return Ok(Some(accepted.now));
        }
        let Some(text) = self.expect.get(index) else { return Ok(None) };
        let unknown = || {
            ServiceError::Usage(format!(
                "there is no kind `{text}` of devices; the kinds are: {}",
                Kind::names().join(", ")
            ))
        };
        Kind::from_name(text).map(Some).ok_or_else(unknown)
    }
}

impl ConnectWords {
    /// Returns the options of a retry.
    pub(crate) fn retried(mut self) -> ConnectWords {
        append(&mut self.sink);
        self
    }

    /// Checks the options and parses the pipelines.
    pub fn pipelines(&self) -> Result<Pipelines, ServiceError> {
        registry::device_spec(&self.source, Role::Device)?;
        registry::device_spec(&self.sink, Role::Application)?;
        let words = [self.via.as_deref(), self.via_back.as_deref(), None];
        pipelines(words, self.key_file.as_deref(), (&self.ports, false), None)
    }
}

/// Makes a retry append to the file of the attempts before it, unless the user has chosen otherwise.
fn append(application: &mut String) {
    let is_file = |spec: contract::DeviceSpec| spec.class == "file";
    let has_chosen = application.contains(",append=");
    if !has_chosen && registry::device_spec(application, Role::Application).is_ok_and(is_file) {
        application.push_str(",append=true");
    }
}

/// The parts of `[TRANSPORT://][PEER@]HOST[:PORT]/NAME`.
#[derive(Debug, PartialEq, Eq)]
struct Origin<'a> {
    transport: &'a str,
    target: Target,
    name: &'a str,
}

impl<'a> Origin<'a> {
    /// Returns the names that select the device's flow in a joint, the most specific first; `whole` is the text
    /// before parsing.
    fn names(&self, whole: &'a str) -> Vec<&'a str> {
        let plain = whole.split_once("://").map_or(whole, |(_, plain)| plain);
        let peer = plain.split_once('/').and_then(|(host, _)| host.rfind('@'));
        let unnamed = peer.map_or(plain, |at| &plain[at + 1..]);
        vec![whole, plain, unnamed, self.name]
    }

    fn is_of(&self, request: &AttachRequest, transport: &TransportPlan) -> bool {
        (&request.peer, &request.address) == (&self.target.peer, &self.target.address)
            && request.transport.class.name() == transport.class.name()
    }

    fn parse(text: &'a str) -> Result<Origin<'a>, ServiceError> {
        if is_device(text) {
            return Err(wrong_origin(text));
        }
        let (transport, rest) = split_transport(text)?;
        let parts = rest.split_once('/').and_then(|(host, name)| Some((parse_target(host)?, name)));
        match parts {
            Some((target, name)) if !name.is_empty() => Ok(Origin { transport, target, name }),
            _ => Err(wrong_origin(text)),
        }
    }
}

/// Formats an error with the line that contains it, unless that line is too long.
fn shown(error: &toml::de::Error, file: &str) -> String {
    let rest = error.span().and_then(|span| file.get(span.start..)).unwrap_or_default();
    let text = format!("{}{}", error.to_string().trim_end(), advice(error.message(), rest));
    match text.lines().all(|line| line.len() <= SHOWN_BYTES_MAX) {
        true => text,
        false => format!("{}, in a line of more than {SHOWN_BYTES_MAX} bytes", error.message()),
    }
}

/// Returns advice for a word that is unknown: the nearest known one, or the way to write an option of the command line.
/// `rest` is the file from the place of the error.
fn advice(message: &str, rest: &str) -> String {
    if message.starts_with("duplicate key") {
        let word = rest.trim_start_matches('[').split(|letter: char| !letter.is_alphanumeric()).next();
        let entry = word.filter(|word| ["share", "attach", "connect"].contains(word));
        return entry
            .map_or_else(String::new, |name| format!("; write `[[{name}]]` for each, with two brackets"));
    }
    let mut words = message.strip_prefix("unknown field ").unwrap_or_default().split('`').skip(1).step_by(2);
    let Some(unknown) = words.next() else { return String::new() };
    match unknown {
        "host" | "hostname" | "peer" | "address" if message.contains("`from`") => {
            "; write from = \"HOST/NAME\"".into()
        }
        "silence" => "; write limits = \"silence=...\"".into(),
        "require_sandbox" | "require-sandbox" => "; it is an option of `outboard run`".into(),
        "json" | "stats" | "log" => format!("; write `outboard run --{unknown}`"),
        // Words with a hyphen are the forms of the command line, which are read too.
        _ => nearest(unknown, words.filter(|word| !word.contains('-')))
            .map_or_else(String::new, |near| format!("; did you mean `{near}`?")),
    }
}

/// Returns the fallback of the default transport; `None` if the user has chosen a transport. Options choose none: a network
/// that blocks UDP blocks it with any options.
fn fallback(from: &str, transport: &TransportPlan) -> Result<Option<TransportPlan>, ServiceError> {
    let is_free = !from.contains("://") && transport.class.name() == DEFAULT_TRANSPORT;
    is_free.then(|| transport_plan(FALLBACK_TRANSPORT, None)).transpose()
}

/// Returns whether this application writes its data to standard output.
pub fn is_stdout(application: &str) -> bool {
    let (class, rest) = application.split_once(':').unwrap_or((application, ""));
    let target = rest.split(',').next().unwrap_or_default();
    class == "stdout"
        || matches!((class, target), ("y4m" | "mjpeg", "" | "-"))
        || matches!(target, "/dev/stdout" | "/dev/fd/1" | "/proc/self/fd/1")
}

/// Returns the name of an entry of the run file in errors.
pub(crate) fn entry(table: &str, index: usize, which: &str) -> String {
    format!("[[{table}]] number {} ({which})", index + 1)
}

/// Adds the entry of the run file to an error.
pub(crate) fn place(error: ServiceError, table: &str, index: usize, which: &str) -> ServiceError {
    let at = entry(table, index, which);
    match error {
        ServiceError::Usage(problem) => ServiceError::Usage(format!("{at}: {problem}")),
        // The cause is outside the file, and may end.
        ServiceError::Os { operation, error } => ServiceError::os(format!("{at}: {operation}"), error),
        other => ServiceError::Usage(format!("{at}: {other}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem<T>(result: Result<T, ServiceError>) -> String {
        match result {
            Err(ServiceError::Usage(problem)) => problem,
            Err(other) => panic!("not the user's error: {other}"),
            Ok(_) => panic!("accepted"),
        }
    }

    #[test]
    fn hosts_are_parsed_in_every_form() {
        for (text, transport, peer, address, name) in [
            ("studio/mouse", "quic", None, "studio:7845", "mouse"),
            ("udp://studio:9/a/b", "udp", None, "studio:9", "a/b"),
            ("[::1]:9/m", "quic", None, "[::1]:9", "m"),
            ("::1/m", "quic", None, "[::1]:7845", "m"),
            ("[::1]/m", "quic", None, "[::1]:7845", "m"),
            ("fe80::1%eth0/m", "quic", None, "[fe80::1%eth0]:7845", "m"),
            ("[fe80::1%eth0]:9/m", "quic", None, "[fe80::1%eth0]:9", "m"),
            ("studio@10.0.0.5/m", "quic", Some("studio"), "10.0.0.5:7845", "m"),
            ("tcp://studio@[::1]:9/a@b", "tcp", Some("studio"), "[::1]:9", "a@b"),
        ] {
            let target = Target { peer: peer.map(String::from), address: address.into() };
            assert_eq!(Origin::parse(text).unwrap(), Origin { transport, target, name }, "{text}");
        }
        for wrong in
            ["studio", "/mouse", "studio/", "", "tcp://", "@studio/mouse", "studio@/mouse", "studio:no/m"]
        {
            assert!(problem(Origin::parse(wrong)).contains("does not name a device of a host"), "{wrong}");
        }
        assert!(problem(Origin::parse("smoke://a/b")).contains("there is no transport `smoke`"));
    }

    #[test]
    fn there_is_a_fallback_only_without_a_chosen_transport() {
        let fallback = |from: &str, options: Option<&str>| {
            let words = AttachWords {
                from: vec![from.into()],
                transport: options.map(String::from),
                insecure: true,
                ..AttachWords::default()
            };
            let request = words.requests().unwrap().0.remove(0);
            request.fallback.map(|plan| (plan.class.name(), plan.options.count("outbox")))
        };
        let tcp = TransportPlan::defaults("tcp").unwrap();
        let tcp = Some((tcp.class.name(), tcp.options.count("outbox")));
        assert_eq!(fallback("studio/mouse", None), tcp);
        assert_eq!(fallback("studio/mouse", Some("outbox=9")), tcp);
        assert_eq!(fallback("quic://studio/mouse", None), None);
        assert_eq!(fallback("studio/mouse", Some("exec:cat")), None);
    }

    #[test]
    fn a_run_file_has_the_options_of_the_command_line() {
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
        assert_eq!(shares.len(), 1, "one place to listen is one device_host");
        assert_eq!((shares[0].devices.len(), shares[0].devices[0].name.as_deref()), (2, Some("p")));
        let attaches = file.attach_requests().unwrap().0;
        let targets: Vec<_> =
            attaches.iter().map(|request| (request.address.as_str(), request.targets.len())).collect();
        assert_eq!(targets, [("a:7845", 2), ("b:7845", 1)]);
        assert_eq!(file.connections().unwrap().len(), 1);
    }

    #[test]
    fn a_retry_appends_to_its_files() {
        for (first, again) in [
            ("file:/tmp/a", "file:/tmp/a,append=true"),
            ("file:/tmp/a,frame=line", "file:/tmp/a,frame=line,append=true"),
            ("file:/tmp/a,append=false", "file:/tmp/a,append=false"),
            ("y4m:/tmp/a", "y4m:/tmp/a"),
            ("null", "null"),
        ] {
            let sink = String::from(first);
            assert_eq!(ConnectWords { sink, ..ConnectWords::default() }.retried().sink, again);
            let applications = vec![first.into()];
            let attach = AttachWords { applications, ..AttachWords::default() };
            assert_eq!(attach.retried().applications, [again]);
        }
    }

    #[test]
    fn an_error_in_a_run_file_is_located() {
        for (text, says) in [
            ("", "the file has no entries: write [[share]]"),
            ("[service]\nmetrics = '9845'", "the file has no entries"),
            ("[share]\ndevice = 'null'\n[share]\ndevice = 'null'", "write `[[share]]` for each"),
            ("[attach]\nfrom = 'a/b'\n\n[attach]\nfrom = 'a/c'", "write `[[attach]]` for each"),
            ("[[attach]]\nhost = 'a'\nname = 'b'", "write from = \"HOST/NAME\""),
            ("[[attach]]\nform = 'a/b'", "did you mean `from`?"),
            ("[[share]]\nname = 'x'", "missing field `device`"),
            ("[[share]]\ndevice = 'null'\ncolour = 'red'", "line 3"),
            ("[[attach]]\nfrom = 7", "a string, or a list of strings"),
            ("[[teleport]]", "unknown field `teleport`"),
            ("[[shares]]\ndevice = 'null'", "did you mean `share`?"),
            ("[share]\ndevice = 'null'", "write `[[share]]`"),
            ("[attach]\nfrom = 'a/b'", "write `[[attach]]`"),
            ("[connect]\nsource = 'null'\nsink = 'null'", "write `[[connect]]`"),
            ("[[service]]\nmetrics = '1'", "write `[service]`"),
            ("[[share]]\ndevise = 'null'", "did you mean `device`?"),
            ("[[share]]\ndevice = 'null'\nvia_bak = 'null'", "did you mean `via_back`?"),
            ("[[attach]]\nfrom = 'a/b'\nsilence = '1s'", "limits = \"silence="),
            ("[[share]]\ndevice = 'null'\nrequire-sandbox = true", "an option of `outboard run`"),
        ] {
            let problem = problem(RunFile::parse(text));
            assert!(problem.contains(says), "{text}: {problem}");
        }
        let endless = problem(RunFile::parse(&"\0".repeat(100_000)));
        assert!(endless.len() < 1000, "{} bytes", endless.len());
        let apart = "[[share]]\ndevice = 'null'\nlisten = '1'\n[[share]]\ndevice = 'null'\nlisten = ':2'";
        let apart = RunFile::parse(apart).unwrap().share_requests().unwrap();
        let listens: Vec<_> = apart.iter().map(|request| request.listen.to_string()).collect();
        assert_eq!(listens, ["[::]:1", "[::]:2"]);
        let alike = "[[connect]]\nsource = 'null'\nsink = 'null'\nvia-back = 'null'\nkey-file = 'x'";
        assert_eq!(RunFile::parse(alike).unwrap().connect[0].via_back.as_deref(), Some("null"));
        let file =
            RunFile::parse("[[share]]\ndevice = 'null'\n[[share]]\ndevice = 'pattern'\nvia = 'nul'").unwrap();
        let problem = problem(file.share_requests());
        assert!(
            problem.starts_with("[[share]] number 2 (pattern): ") && problem.contains("^^^"),
            "{problem}"
        );
    }
}
