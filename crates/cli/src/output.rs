//! What is said to people and to scripts: one quiet line an event, or one JSON object.

use runtime::{DriverStats, Event, FlowStats, HubStats, JointStats};
use serde::Serialize;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

/// Why a command did not do what it was asked.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The user asked for something that cannot be: exit status 2.
    Usage(String),
    /// It could not be done: exit status 1.
    Failed(String),
    /// Whoever reads the output has enough: nothing to complain about.
    OutputClosed,
}

impl Failure {
    /// Says it on standard error; the exit status.
    pub(crate) fn report(self) -> ExitCode {
        let (text, status) = match self {
            Failure::Usage(text) => (text, 2),
            Failure::Failed(text) => (text, 1),
            Failure::OutputClosed => return ExitCode::SUCCESS,
        };
        let _ = writeln!(io::stderr(), "outboard: {}", printable(&text));
        ExitCode::from(status)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::OutputClosed,
            _ => Failure::Failed(error.to_string()),
        }
    }
}

/// Prints a value as JSON on standard output.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(|error| Failure::Failed(error.to_string()))?;
    print(&format!("{text}\n"))
}

/// Prints text on standard output.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Where the events of services go, from whatever thread.
pub(crate) struct Events {
    json: bool,
    stats: bool,
    out: Mutex<Box<dyn Write + Send>>,
}

impl Events {
    /// `data_on_stdout`: standard output belongs to the data, and events go to standard error.
    pub(crate) fn new(json: bool, stats: bool, data_on_stdout: bool) -> Events {
        let out: Box<dyn Write + Send> = match data_on_stdout {
            true => Box::new(io::stderr()),
            false => Box::new(io::stdout()),
        };
        Events { json, stats, out: Mutex::new(out) }
    }

    /// Tells one event.
    pub(crate) fn tell(&self, event: Event) {
        if matches!(event, Event::Stats { .. } | Event::Hub { .. } | Event::Joint { .. }) && !self.stats {
            return;
        }
        match self.json {
            true => self.tell_json(&event),
            false => self.line(&describe(&event)),
        }
    }

    /// Tells something that is no event of a service.
    pub(crate) fn tell_result(&self, what: &impl Serialize, text: &str) {
        match self.json {
            true => self.tell_json(what),
            false => self.line(text),
        }
    }

    fn tell_json(&self, what: &impl Serialize) {
        if let Ok(text) = serde_json::to_string(what) {
            self.line(&text);
        }
    }

    fn line(&self, text: &str) {
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        // A service goes on when nobody listens to it any more.
        let _ = writeln!(out, "{}", printable(text)).and_then(|()| out.flush());
    }
}

/// The text without what a terminal would obey: names and reasons may come from a stranger.
pub(crate) fn printable(text: &str) -> String {
    let harmless = |c: char| if c.is_control() && c != '\n' && c != '\t' { '\u{fffd}' } else { c };
    text.chars().map(harmless).collect()
}

fn describe(event: &Event) -> String {
    match event {
        Event::Listening { address } => format!("listening on {address}"),
        Event::Insecure { address } => format!(
            "WARNING: --insecure: anyone who reaches {address} may use what is there, and anyone on the way may read and \
             change it"
        ),
        Event::Knows { peers } if peers.is_empty() => {
            "no host is paired yet: `outboard pair` here, and what it says there".into()
        }
        Event::Knows { peers } => format!("known here: {}", peers.join(", ")),
        Event::Warning { problem } => format!("WARNING: {problem}"),
        Event::Offered { name, summary } => format!("offering {name}: {summary}"),
        Event::Withdrawn { name } => format!("no longer offering {name}"),
        Event::Joined { process } => format!("joined the share that runs already (process {process})"),
        Event::PeerJoined { peer } => format!("{peer} is here"),
        Event::PeerLeft { peer, reason } => format!("{peer} left: {reason}"),
        Event::Refused { peer, reason } => format!("{peer} was turned away: {reason}"),
        Event::Attached { name, node, pipelines } => {
            let via: Vec<_> = pipelines.iter().filter(|pipeline| !pipeline.is_empty()).cloned().collect();
            match via.is_empty() {
                true => format!("{name} is {node}"),
                false => format!("{name} is {node}, via {}", via.join(" and back via ")),
            }
        }
        Event::Detached { name, reason } => format!("{name} is no longer in use: {reason}"),
        Event::LinkLost { reason } => format!("the link is lost: {reason}"),
        Event::LinkBack { seconds } => format!("the link is back after {seconds:.1} s"),
        Event::DeviceGone { name, reason } => format!("{name} went away: {reason}"),
        Event::DeviceBack { name } => format!("{name} is back"),
        Event::Module { name, incident } => format!("{name}: {incident}"),
        Event::StoreFull { name, policy } => {
            let then = match *policy {
                "drop-oldest" => "the oldest is given up for the newest",
                "close" => "the flow ends",
                _ => "nothing more is taken until the other host has some of it",
            };
            format!(
                "{name}: what is kept to be sent again is as much as it may be; {then} (store_full={policy})"
            )
        }
        Event::Changed { name, back, pipeline } => {
            let way = if *back { "to" } else { "from" };
            match pipeline.as_str() {
                "" => format!("the flow {way} {name} goes without any pair now"),
                pipeline => format!("the flow {way} {name} goes through {pipeline} now"),
            }
        }
        Event::FlowEnded { name } => format!("{name} has ended"),
        Event::Link { peer, offset_ms, error_ms, round_trip_ms } => {
            let peer = peer.as_deref().unwrap_or("nobody that is known");
            format!(
                "the other host is {peer}; round trip {round_trip_ms:.2} ms; its clock is {offset_ms:+.3} ms off, known to \
                 {error_ms:.3} ms"
            )
        }
        Event::Stats { name, stats } => describe_stats(name, stats),
        Event::Hub { name, hub } => describe_hub(name, hub),
        Event::Joint { name, joint } => describe_joint(name, joint),
        other => format!("{other:?}"),
    }
}

fn describe_joint(name: &str, joint: &JointStats) -> String {
    let (inputs, outputs): (u64, u64) = (joint.inputs.iter().sum(), joint.outputs.iter().sum());
    let mut text = format!("{name}: {inputs} messages joined, {outputs} handed on");
    for (reason, count) in &joint.drops {
        let _ = write!(text, ", {count} dropped ({reason})");
    }
    text
}

fn describe_hub(name: &str, hub: &HubStats) -> String {
    let mut text = format!("{name}: {} messages to {} hosts", hub.messages, hub.ways.len());
    for (reason, count) in &hub.drops {
        let _ = write!(text, ", {count} dropped ({reason})");
    }
    text
}

fn describe_stats(name: &str, stats: &DriverStats) -> String {
    let mut text = format!("{name}:");
    for (direction, flow) in [("out", &stats.outgoing), ("in", &stats.incoming)] {
        if let Some(flow) = flow {
            describe_flow(&mut text, direction, flow);
        }
    }
    for (wrong, what) in [(!stats.linked, "no link"), (!stats.present, "no device")] {
        if wrong {
            let _ = write!(text, " ({what})");
        }
    }
    text
}

fn describe_flow(text: &mut String, direction: &str, flow: &FlowStats) {
    let _ = write!(text, " {direction} {} messages, {} bytes", flow.messages, flow.bytes);
    for (count, what) in
        [(flow.resent, "resent"), (flow.repeated, "repeated"), (flow.lost, "lost"), (flow.stale, "stale")]
    {
        if count > 0 {
            let _ = write!(text, ", {count} {what}");
        }
    }
    if let Some(store) = flow.store.as_ref().filter(|store| store.full || store.given_up > 0) {
        let full = if store.full { ", store full" } else { "" };
        let _ = write!(text, "{full}, {} given up", store.given_up);
    }
    if let Some([_, median, worst]) = flow.delay_us {
        let _ = write!(text, ", {:.2} ms late (99 %: {:.2} ms)", median / 1e3, worst / 1e3);
    }
    for (reason, count) in &flow.drops {
        let _ = write!(text, ", {count} dropped ({reason})");
    }
    text.push(';');
}
