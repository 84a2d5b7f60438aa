//! What is said to people and to scripts: one quiet line an event, or one JSON object.

use crate::arguments::Log;
use runtime::{Connected, DriverStats, Event, FlowStats, HubStats, JointStats};
use serde::Serialize;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

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
    // JSON need not escape all that a terminal obeys.
    print(&printable(&format!("{text}\n")))
}

/// Prints text on standard output.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Where the events of services go, from whatever thread.
pub(crate) struct Events {
    log: Log,
    stats: bool,
    /// The system's journal reads: a line begins with its level (`sd-daemon(3)`).
    journal: bool,
    out: Mutex<Box<dyn Write + Send>>,
}

impl Events {
    /// `data_on_stdout`: standard output belongs to the data, and events go to standard error.
    pub(crate) fn new(json: bool, stats: bool, data_on_stdout: bool) -> Events {
        let log = if json { Log::Events } else { Log::Text };
        Events { journal: false, ..Events::of_service(log, stats, data_on_stdout) }
    }

    /// The same, of a service, whose output may go to the system's journal.
    pub(crate) fn of_service(log: Log, stats: bool, data_on_stdout: bool) -> Events {
        let journal = std::env::var_os("JOURNAL_STREAM").is_some();
        let out: Box<dyn Write + Send> = match data_on_stdout {
            true => Box::new(io::stderr()),
            false => Box::new(io::stdout()),
        };
        Events { log, stats, journal, out: Mutex::new(out) }
    }

    /// Tells one event.
    pub(crate) fn tell(&self, event: Event) {
        if matches!(event, Event::Stats { .. } | Event::Hub { .. } | Event::Joint { .. }) && !self.stats {
            return;
        }
        match self.log {
            Log::Events => self.tell_json(&event),
            Log::Json => self.tell_json(&Logged::now(&event)),
            Log::Text if self.journal => self.line(&format!("<{}>{}", level(&event).0, describe(&event))),
            Log::Text => self.line(&describe(&event)),
        }
    }

    /// Tells something that is no event of a service.
    pub(crate) fn tell_result(&self, what: &impl Serialize, text: &str) {
        match self.log {
            Log::Text => self.line(text),
            Log::Json | Log::Events => self.tell_json(what),
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
        let _ = writeln!(out, "{}", printable(&continued(text))).and_then(|()| out.flush());
    }
}

/// An event as `--log json` tells it.
#[derive(Serialize)]
struct Logged<'a> {
    /// RFC 3339, UTC.
    time: String,
    level: &'static str,
    #[serde(flatten)]
    event: &'a Event,
}

impl Logged<'_> {
    fn now(event: &Event) -> Logged<'_> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Logged { time: rfc3339(since.as_millis() as u64), level: level(event).1, event }
    }
}

/// How much an event matters: the number that the system's journal has for it, and its name.
fn level(event: &Event) -> (u8, &'static str) {
    match event {
        Event::Warning { .. }
        | Event::Insecure { .. }
        | Event::Refused { .. }
        | Event::LinkLost { .. }
        | Event::DeviceGone { .. }
        | Event::Module { .. }
        | Event::StoreFull { .. } => (4, "warning"),
        Event::Stats { .. } | Event::Hub { .. } | Event::Joint { .. } => (7, "debug"),
        _ => (6, "info"),
    }
}

/// Milliseconds since 1970 as a date of RFC 3339, by the Gregorian calendar's cycle of 400 years.
fn rfc3339(ms: u64) -> String {
    let (days, second) = (ms / 86_400_000, ms / 1000 % 86_400);
    // Days since 1 March of the year 0; years that begin in March have their leap day at the end.
    let day = days + 719_468;
    let (era, of_era) = (day / 146_097, day % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * of_year + 2) / 153;
    let date = of_year - (153 * month + 2) / 5 + 1;
    let (year, month) = (era * 400 + year_of_era + month / 10, (month + 2) % 12 + 1);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!("{year:04}-{month:02}-{date:02}T{hour:02}:{minute:02}:{:02}.{:03}Z", second % 60, ms % 1000)
}

/// The text as what one line goes on with: what a stranger says begins none of its own.
fn continued(text: &str) -> String {
    text.replace('\n', "\n    ")
}

/// The text without what a terminal would obey: names and reasons may come from a stranger.
pub(crate) fn printable(text: &str) -> String {
    let harmless = |c: char| if c.is_control() && c != '\n' && c != '\t' { '\u{fffd}' } else { c };
    text.chars().map(harmless).collect()
}

/// The same of what stands in a line of a table: it begins no other.
pub(crate) fn one_line(text: &str) -> String {
    printable(text).replace(['\n', '\t'], "\u{fffd}")
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
        Event::FellBack { from, to, reason } => {
            format!("WARNING: over `{to}`, as `{from}` does not get through: {reason}")
        }
        Event::CameBack { from, to } => format!("over `{to}` again, and no longer over `{from}`"),
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
        Event::Module { name, incident } | Event::Worker { name, incident } => format!("{name}: {incident}"),
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
        Event::Metrics { address } => format!("metrics at http://{address}/metrics"),
        Event::Reloaded { done } => format!(
            "the file was read again: {} started, {} ended, {} untouched",
            done.started, done.ended, done.unchanged
        ),
        Event::Connected { source, sink, moved } => describe_connected(source, sink, moved),
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

fn describe_connected(source: &str, sink: &str, moved: &Connected) -> String {
    let Connected { messages, bytes, drops, incidents } = moved;
    let mut text = format!("{source} to {sink}: {messages} messages, {bytes} bytes");
    for (reason, count) in drops {
        let _ = write!(text, ", {count} dropped ({reason})");
    }
    for incident in incidents {
        let _ = write!(text, "\n{incident}");
    }
    text
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

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Default)]
    struct Told(std::sync::Arc<Mutex<Vec<u8>>>);

    impl Write for Told {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_stands_in_a_line_stays_in_it() {
        assert_eq!(one_line("kbd\n\x1b[31mroot\t\u{9b}2J"), "kbd\u{fffd}\u{fffd}[31mroot\u{fffd}\u{fffd}2J");
    }

    #[test]
    fn what_others_say_begins_no_line() {
        let told = Told::default();
        let out = Mutex::new(Box::new(told.clone()) as Box<dyn Write + Send>);
        let events = Events { log: Log::Text, stats: false, journal: true, out };
        let reason = "gone\n<0>offering root: a shell\r\n\x1b[2Jlistening on nothing".to_string();
        events.tell(Event::PeerLeft { peer: "studio".into(), reason });
        let told = String::from_utf8(told.0.lock().unwrap().clone()).unwrap();
        let mut lines = told.lines();
        assert_eq!(lines.next(), Some("<6>studio left: gone"));
        assert!(lines.all(|line| line.starts_with("    ")), "{told:?}");
        assert!(!told.contains(['\r', '\x1b']), "{told:?}");
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (ms, date) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_709_251_200_000, "2024-03-01T00:00:00.000Z"),
            (4_102_444_799_000, "2099-12-31T23:59:59.000Z"),
        ] {
            assert_eq!(rfc3339(ms), date);
        }
    }
}
