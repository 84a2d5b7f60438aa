//! Output for people and scripts: one line or one JSON object for each event.

use crate::arguments::Log;
use crate::log_lines::{LogLines, counted};
use crate::log_writer::LogWriter;
use broker::Event;
use flow::raw_path::Connected;
use flow::{DriverStats, FlowStats};
use hub::{HubStats, JointStats};
use serde::Serialize;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};
use trust::owners_command;

/// Failure of a command.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Wrong usage: exit status 2.
    Usage(String),
    /// The command failed: exit status 1.
    Failed(String),
    /// The reader of standard output has closed it: exit status 0.
    OutputClosed,
}

impl Failure {
    /// Prints the failure on standard error and returns the exit status.
    pub(crate) fn report(self) -> u8 {
        let (text, status) = match self {
            Failure::Usage(text) => (text, 2),
            Failure::Failed(text) => (text, 1),
            Failure::OutputClosed => return 0,
        };
        let _ = writeln!(io::stderr(), "outboard: {}", printable(&text));
        status
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

/// Returns the failure of a file that cannot be written.
pub(crate) fn unwritable(path: &Path, error: &io::Error) -> Failure {
    let advice = match (error.kind(), path.parent()) {
        (io::ErrorKind::NotFound, Some(directory)) => {
            format!(" (make the directory first: mkdir -p {})", directory.display())
        }
        _ => String::new(),
    };
    Failure::Failed(format!("writing {}: {error}{advice}", path.display()))
}

/// Prints a value as one line of JSON on standard output.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(value).map_err(|error| Failure::Failed(error.to_string()))?;
    // JSON does not escape every control character of a terminal.
    print(&printable(&format!("{text}\n")))
}

/// Prints each value as one line of JSON on standard output.
pub(crate) fn print_json_lines<T: Serialize>(values: &[T]) -> Result<(), Failure> {
    values.iter().try_for_each(print_json)
}

/// Prints text on standard output.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// The event log of services, usable from every thread.
pub(crate) struct Events {
    format: LineFormat,
    stats: bool,
    out: LogLines,
}

/// The format of the lines of a log.
#[derive(Clone, Copy)]
struct LineFormat {
    log: Log,
    /// The journal reads the log: each line begins with its level (`sd-daemon(3)`).
    journal: bool,
}

impl LineFormat {
    fn line(self, event: &Event) -> String {
        match self.log {
            Log::Events => json(event),
            Log::Json => json(&Logged::now(event)),
            Log::Text => {
                let level = if self.journal { format!("<{}>", level(event).0) } else { String::new() };
                shown(&format!("{level}{}", describe(event)))
            }
        }
    }

    /// Returns a log in this format.
    fn log_to(self, out: Box<dyn Write + Send>) -> LogLines {
        LogLines::new(LogWriter::new(out, Box::new(move |lines| self.line(&Event::LinesDropped { lines }))))
    }
}

impl Events {
    /// Creates a log. With `data_on_stdout` it writes to standard error, because standard output carries data.
    pub(crate) fn new(json: bool, stats: bool, data_on_stdout: bool) -> Events {
        let log = if json { Log::Events } else { Log::Text };
        Events::with(LineFormat { log, journal: false }, stats, data_on_stdout)
    }

    /// Creates the log of a service, which may write to the journal.
    pub(crate) fn of_service(log: Log, stats: bool, data_on_stdout: bool) -> Events {
        let journal = match data_on_stdout {
            true => is_journal(rustix::stdio::stderr()),
            false => is_journal(rustix::stdio::stdout()),
        };
        Events::with(LineFormat { log, journal }, stats, data_on_stdout)
    }

    fn with(format: LineFormat, stats: bool, data_on_stdout: bool) -> Events {
        let out: Box<dyn Write + Send> = match data_on_stdout {
            true => Box::new(io::stderr()),
            false => Box::new(io::stdout()),
        };
        Events { format, stats, out: format.log_to(out) }
    }

    /// Returns whether the reader of the log is a person, who can answer questions.
    pub(crate) fn may_ask(&self) -> bool {
        self.format.log == Log::Text
    }

    /// Writes one event.
    pub(crate) fn emit(&self, event: Event) {
        let is_periodic = matches!(event, Event::Stats { .. } | Event::Hub { .. } | Event::Joint { .. });
        if is_periodic && !self.stats {
            return;
        }
        let line = self.format.line(&event);
        match self.format.log {
            Log::Text if !is_periodic => self.out.write(&line),
            _ => self.out.write_always(&line),
        }
    }

    /// Writes the result of a command.
    pub(crate) fn emit_result(&self, result: &impl Serialize, text: &str) {
        self.out.write_always(&match self.format.log {
            Log::Text => shown(text),
            Log::Json | Log::Events => json(result),
        });
    }
}

/// Returns whether the journal reads this descriptor. `JOURNAL_STREAM` holds the device and inode of the one that it reads
/// (`systemd.exec(5)`); the variable alone says nothing, because every program of a desktop inherits it.
fn is_journal(output: BorrowedFd<'_>) -> bool {
    let stream = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    rustix::fs::fstat(output).is_ok_and(|found| stream == format!("{}:{}", found.st_dev, found.st_ino))
}

fn json(value: &impl Serialize) -> String {
    shown(&serde_json::to_string(value).unwrap_or_default())
}

fn shown(text: &str) -> String {
    printable(&continued(text))
}

/// An event in the format of `--log json`.
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

/// Level of an event: the journal's number and its name.
fn level(event: &Event) -> (u8, &'static str) {
    match event {
        Event::Warning { .. }
        | Event::Insecure { .. }
        | Event::Refused { .. }
        | Event::LinkLost { .. }
        | Event::Missed { .. }
        | Event::Forbidden { .. }
        | Event::DeviceGone { .. }
        | Event::Module { .. }
        | Event::LinesDropped { .. }
        | Event::StoreFull { .. } => (4, "warning"),
        Event::Stats { .. } | Event::Hub { .. } | Event::Joint { .. } => (7, "debug"),
        _ => (6, "info"),
    }
}

/// Formats milliseconds since 1970 as an RFC 3339 date. The Gregorian calendar repeats every 400 years.
fn rfc3339(ms: u64) -> String {
    let (days, second) = (ms / 86_400_000, ms / 1000 % 86_400);
    // Count days from 1 March of the year 0: then the leap day is the last day of a year.
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

/// Indents all lines but the first, so that text from another host cannot imitate a log line.
fn continued(text: &str) -> String {
    text.replace('\n', "\n    ")
}

/// Replaces control characters: names and reasons may come from an untrusted host.
pub(crate) fn printable(text: &str) -> String {
    let harmless = |c: char| if c.is_control() && c != '\n' && c != '\t' { '\u{fffd}' } else { c };
    text.chars().map(harmless).collect()
}

/// Replaces control characters and line breaks, for a cell of a table.
pub(crate) fn one_line(text: &str) -> String {
    printable(text).replace(['\n', '\t'], "\u{fffd}")
}

fn describe(event: &Event) -> String {
    match event {
        Event::Listening { address } => format!("listening on {address}"),
        Event::Insecure { address } => format!(
            "WARNING: --insecure: anyone who reaches {address} can use its devices, and anyone on the network path can read \
             and change the data"
        ),
        Event::KnownPeers { peers } if peers.is_empty() => format!(
            "no host is paired yet: run `{}` here, and its printed command on the other host",
            owners_command("pair")
        ),
        Event::KnownPeers { peers } => format!("paired hosts: {}", peers.join(", ")),
        Event::FallbackStarted { from, to, reason } => {
            format!("WARNING: `{from}` does not connect, falling back to `{to}`: {reason}")
        }
        Event::FallbackEnded { from, to } => format!("returned to `{to}` from `{from}`"),
        Event::Question { question } => question.clone(),
        Event::Warning { problem } => format!("WARNING: {problem}"),
        Event::Waiting { device } => {
            format!(
                "waiting for `{device}`: no such device is plugged in; `outboard devices` lists the devices"
            )
        }
        Event::Offered { name, summary } => format!("offering {name}: {summary}"),
        Event::Withdrawn { name } => format!("no longer offering {name}"),
        Event::Joined { process } => format!("joined the running share (process {process})"),
        Event::PeerJoined { peer } => format!("{peer} connected"),
        Event::PeerLeft { peer, reason } => format!("{peer} disconnected: {reason}"),
        Event::Refused { peer, reason } => format!("{peer} was refused: {reason}"),
        Event::Kind { name, class, kind, known: true } => {
            format!("{name} is of kind {kind} (class {class}), as before")
        }
        Event::Kind { name, class, kind, known: false } => {
            format!("{name} is of kind {kind} (class {class})")
        }
        Event::Attached { name, node, pipelines } => {
            let via: Vec<_> = pipelines.iter().filter(|pipeline| !pipeline.is_empty()).cloned().collect();
            match via.is_empty() {
                true => format!("{name} is attached to {node}"),
                false => format!("{name} is attached to {node}, via {}", via.join(" and back via ")),
            }
        }
        Event::Detached { name, reason } => format!("{name} is no longer in use: {reason}"),
        Event::LinkLost { reason } => format!("link lost: {reason}"),
        Event::LinkBack { seconds } => format!("link restored after {seconds:.1} s"),
        Event::Missed { name, messages, unit } => {
            format!("{name}: {messages} {unit} were dropped while the link was lost")
        }
        Event::Forbidden { peer, name, remedy } => {
            format!("{peer} asked for {name}, which it may not use: {remedy} permits it")
        }
        Event::DeviceGone { name, reason } => format!("{name} is unavailable: {reason}"),
        Event::DeviceBack { name } => format!("{name} is available again"),
        Event::Module { name, incident } | Event::Worker { name, incident } => format!("{name}: {incident}"),
        Event::StoreFull { name, policy } => {
            let then = match *policy {
                "drop-oldest" => "the oldest records are discarded",
                "close" => "the flow ends",
                _ => "the source waits for acknowledgements",
            };
            format!("{name}: the replay store is full; {then} (store_full={policy})")
        }
        Event::Changed { name, back, pipeline } => {
            let side = if *back { "to" } else { "from" };
            match pipeline.as_str() {
                "" => format!("the flow {side} {name} now has no pairs"),
                pipeline => format!("the flow {side} {name} now uses {pipeline}"),
            }
        }
        Event::LinesDropped { lines } => {
            format!("{lines} lines of this log were dropped, because its reader did not read")
        }
        Event::Metrics { address } => format!("metrics at http://{address}/metrics"),
        Event::Reloaded { done } => {
            format!("reloaded: {} started, {} ended, {} unchanged", done.started, done.ended, done.unchanged)
        }
        Event::Connected { source, sink, moved } => describe_connected(source, sink, moved),
        Event::FlowEnded { name } => format!("{name} has ended"),
        Event::Link { peer, offset_ms, error_ms, round_trip_ms } => {
            let peer = peer.as_deref().unwrap_or("not paired");
            format!(
                "other host: {peer}; round trip {round_trip_ms:.2} ms; clock offset {offset_ms:+.3} ms, error below {error_ms:.3} ms"
            )
        }
        Event::Stats { name, stats } => describe_stats(name, stats),
        Event::Hub { name, hub } => describe_hub(name, hub),
        Event::Joint { name, joint } => describe_joint(name, joint),
        other => format!("{other:?}"),
    }
}

fn describe_connected(source: &str, sink: &str, moved: &Connected) -> String {
    let Connected { messages, bytes, drops, losses: _, incidents } = moved;
    let mut text = format!("{source} to {sink}: {messages} messages, {bytes} bytes");
    for (reason, count) in drops {
        let _ = write!(text, ", {count} dropped ({reason})");
    }
    for incident in counted(incidents) {
        let _ = write!(text, "\n{incident}");
    }
    text
}

fn describe_joint(name: &str, joint: &JointStats) -> String {
    let (inputs, outputs): (u64, u64) = (joint.inputs.iter().sum(), joint.outputs.iter().sum());
    let mut text = format!("{name}: {inputs} messages joined, {outputs} delivered");
    for (reason, count) in &joint.drops {
        let _ = write!(text, ", {count} dropped ({reason})");
    }
    text
}

fn describe_hub(name: &str, hub: &HubStats) -> String {
    let mut text = format!("{name}: {} messages to {} hosts", hub.messages, hub.clients.len());
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
    for (applies, note) in [(!stats.linked, "no link"), (!stats.present, "no device")] {
        if applies {
            let _ = write!(text, " ({note})");
        }
    }
    text
}

fn describe_flow(text: &mut String, direction: &str, flow: &FlowStats) {
    let _ = write!(text, " {direction} {} messages, {} bytes", flow.messages, flow.bytes);
    for (count, label) in
        [(flow.resent, "resent"), (flow.repeated, "repeated"), (flow.lost, "lost"), (flow.stale, "stale")]
    {
        if count > 0 {
            let _ = write!(text, ", {count} {label}");
        }
    }
    if let Some(store) = flow.store.as_ref().filter(|store| store.full || store.discarded > 0) {
        let full = if store.full { ", store full" } else { "" };
        let _ = write!(text, "{full}, {} discarded", store.discarded);
    }
    if let Some([_, median, worst]) = flow.delay_us {
        let _ = write!(text, ", delay {:.2} ms (99 %: {:.2} ms)", median / 1e3, worst / 1e3);
    }
    for (reason, count) in &flow.drops {
        let _ = write!(text, ", {count} dropped ({reason})");
    }
    text.push(';');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log_lines::tests::Written;

    #[test]
    fn a_table_cell_stays_on_its_line() {
        assert_eq!(one_line("kbd\n\x1b[31mroot\t\u{9b}2J"), "kbd\u{fffd}\u{fffd}[31mroot\u{fffd}\u{fffd}2J");
    }

    #[test]
    fn text_of_other_hosts_starts_no_log_line() {
        let log = Written::default();
        let format = LineFormat { log: Log::Text, journal: true };
        let events = Events { format, stats: false, out: format.log_to(Box::new(log.clone())) };
        let reason = "gone\n<0>offering root: a shell\r\n\x1b[2Jlistening on nothing".to_string();
        events.emit(Event::PeerLeft { peer: "studio".into(), reason });
        drop(events);
        let text = log.text();
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some("<6>studio disconnected: gone"));
        assert!(lines.all(|line| line.starts_with("    ")), "{text:?}");
        assert!(!text.contains(['\r', '\x1b']), "{text:?}");
    }

    #[test]
    fn dates_follow_the_calendar() {
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
