//! The trace as a file for viewers: Chrome's Trace Event Format, which Perfetto reads too.
//!
//! Each flow of a process has tracks (the format calls them threads). A track contains messages that were not in flight
//! at the same time, so events nest: a message contains its steps. Steps in the kernel have separate tracks. Times are
//! microseconds of this host's boot clock.

use super::passage::{Passage, Path};
use crate::output::{Failure, unwritable};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path as File;
use std::rc::Rc;

/// Maximum number of messages in a file.
const MESSAGES_MAX: usize = 200_000;
/// Maximum number of tracks of a flow: messages in flight at the same time.
const TRACKS_MAX: usize = 256;
/// Track numbers for one flow: its messages and its kernel steps.
const TRACKS_OF_FLOW: usize = 2 * TRACKS_MAX;
/// Offset of the other host's process ids, which may equal local ones.
const OTHER_HOST: i64 = 1 << 24;
/// The category of whole messages.
const MESSAGE: &str = "message";

/// Checks that the file can be written, and that the other host's file `with` can be read.
pub(super) fn check(file: &File, with: Option<&File>) -> Result<(), Failure> {
    let opened = fs::OpenOptions::new().append(true).create(true).open(file);
    opened.map_err(|error| unwritable(file, &error))?;
    let read = with.map_or(Ok(()), |with| fs::File::open(with).map(drop));
    read.map_err(|error| Failure::Failed(format!("--with {}: {error}", with.unwrap_or(file).display())))
}

/// The content of the file.
#[derive(Debug, Default)]
pub(super) struct TraceFile {
    events: Vec<Value>,
    /// By flow: its number, and its tracks for messages and for kernel steps.
    flows: BTreeMap<Rc<Path>, (usize, Tracks, Tracks)>,
    /// Offset to add to the other host's clock to get this host's, nanoseconds, by device.
    offsets: BTreeMap<String, i64>,
    messages: usize,
    /// Messages that did not fit.
    pub(super) left_out: u64,
}

/// The end of the last event of each track, nanoseconds.
#[derive(Debug, Default)]
struct Tracks(Vec<u64>);

impl Tracks {
    /// Reserves a track from `from` to `to`.
    fn take(&mut self, from: u64, to: u64) -> Option<usize> {
        let free = self.0.iter().position(|until| *until <= from);
        let track = free.or((self.0.len() < TRACKS_MAX).then_some(self.0.len()))?;
        if track == self.0.len() {
            self.0.push(0);
        }
        self.0[track] = to;
        Some(track)
    }
}

fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

fn complete(name: &str, category: &str, (from, to): (u64, u64), place: (i32, usize), args: &Value) -> Value {
    json!({ "ph": "X", "name": name, "cat": category, "ts": us(from), "dur": us(to - from),
            "pid": place.0, "tid": place.1, "args": args })
}

impl TraceFile {
    /// Sets the clock offset that the session of a flow measured.
    pub(super) fn set_offset(&mut self, device: &str, offset_ns: Option<i64>) {
        if let Some(offset_ns) = offset_ns {
            self.offsets.insert(device.into(), offset_ns);
        }
    }

    /// Adds one message.
    pub(super) fn add(&mut self, passage: &Passage) {
        let flows = self.flows.len();
        let path = &passage.path;
        let (flow, own, kernel) = self
            .flows
            .entry(Rc::clone(path))
            .or_insert_with(|| (flows, Tracks::default(), Tracks::default()));
        let Some((_, from, to)) = passage.sums().last() else { return };
        let track = own.take(from, to).filter(|_| self.messages < MESSAGES_MAX);
        let Some(track) = track else {
            self.left_out += 1;
            return;
        };
        self.messages += 1;
        let (epoch, sequence) = passage.number.unzip();
        let args = json!({
            "device": path.device, "flow": path.flow, "to_application": path.to_application,
            "side": if path.is_source { "source" } else { "sink" },
            "epoch": epoch, "sequence": sequence, "bytes": passage.bytes,
        });
        let first = 1 + *flow * TRACKS_OF_FLOW;
        let place = (path.process, first + track);
        self.events.push(complete("message", MESSAGE, (from, to), place, &args));
        for (part, from, to) in passage.parts() {
            self.events.push(complete(&part.name, part.kind, (from, to), place, &args));
        }
        let begins = passage.kernel.iter().map(|part| part.1).min();
        let ends = passage.kernel.iter().map(|part| part.2).max();
        if let Some(track) = begins.zip(ends).and_then(|(begins, ends)| kernel.take(begins, ends)) {
            let place = (path.process, first + TRACKS_MAX + track);
            for (part, from, to) in &passage.kernel {
                self.events.push(complete(&part.name, part.kind, (*from, *to), place, &args));
            }
        }
    }

    /// Returns the names of processes and tracks.
    fn names(&self) -> Vec<Value> {
        let name = |kind: &str, pid: i32, tid: usize, name: String| json!({ "ph": "M", "name": kind, "pid": pid, "tid": tid, "args": { "name": name } });
        let mut names = Vec::new();
        for (path, (flow, own, kernel)) in &self.flows {
            let Path { process, role, device, .. } = &**path;
            names.push(name("process_name", *process, 0, format!("outboard {role}")));
            let direction = path.direction();
            let first = 1 + flow * TRACKS_OF_FLOW;
            let own = (0..own.0.len()).map(|track| (first + track, format!("{device}: {direction}")));
            let kernel = (0..kernel.0.len())
                .map(|track| (first + TRACKS_MAX + track, format!("{device}: {direction}, kernel")));
            names.extend(own.chain(kernel).map(|(tid, text)| name("thread_name", *process, tid, text)));
        }
        names
    }

    /// Writes the file, merged with the other host's file `with`.
    pub(super) fn write(&self, file: &File, with: Option<&File>) -> Result<(), Failure> {
        let failed = |file: &File, error: &dyn std::fmt::Display| {
            Failure::Failed(format!("{}: {error}", file.display()))
        };
        let mut events = self.names();
        events.extend(self.events.iter().cloned());
        if let Some(with) = with {
            let text = fs::read(with).map_err(|error| failed(with, &error))?;
            let theirs = serde_json::from_slice(&text).map_err(|error| failed(with, &error))?;
            let theirs = self.translate(theirs).map_err(|problem| failed(with, &problem))?;
            let arrows = arrows(&events, &theirs);
            events.extend(theirs);
            events.extend(arrows);
        }
        let trace = json!({
            "traceEvents": events,
            "displayTimeUnit": "ns",
            "otherData": { "clock": "CLOCK_BOOTTIME of this host", "offsets_ns": self.offsets },
        });
        let text = serde_json::to_vec(&trace).map_err(|error| failed(file, &error))?;
        fs::write(file, text).map_err(|error| unwritable(file, &error))
    }

    /// Converts the other host's events to this host's clock.
    fn translate(&self, mut theirs: Value) -> Result<Vec<Value>, String> {
        let Some(Value::Array(mut events)) = theirs.get_mut("traceEvents").map(Value::take) else {
            return Err("not a trace file of `outboard trace --perfetto`".into());
        };
        // All sessions of two hosts measure the same offset, so use the first.
        let offset_ns =
            self.offsets.values().next().ok_or("the clocks of the two hosts were not compared")?;
        for event in &mut events {
            let pid = event["pid"].as_i64().unwrap_or(0);
            event["pid"] = json!(pid.saturating_add(OTHER_HOST));
            if let Some(ts) = event["ts"].as_f64() {
                event["ts"] = json!(ts + *offset_ns as f64 / 1e3);
            }
        }
        Ok(events)
    }
}

/// Returns arrows from each message at its source to the same message at its sink.
fn arrows(ours: &[Value], theirs: &[Value]) -> Vec<Value> {
    let key = |event: &Value| {
        let args = &event["args"];
        args["sequence"].as_u64()?;
        let named =
            ["device", "flow", "to_application", "epoch", "sequence"].map(|name| args[name].to_string());
        Some(named.join(" "))
    };
    let messages = |events: &'_ [Value]| -> Vec<Value> {
        events.iter().filter(|event| event["cat"] == MESSAGE).cloned().collect()
    };
    let known: HashMap<String, Value> =
        messages(ours).into_iter().filter_map(|event| Some((key(&event)?, event))).collect();
    let mut arrows = Vec::new();
    for (id, theirs) in messages(theirs).into_iter().enumerate() {
        let Some(ours) = key(&theirs).and_then(|key| known.get(&key).cloned()) else { continue };
        let (from, to) = if ours["args"]["side"] == "source" { (ours, theirs) } else { (theirs, ours) };
        let end = |event: &Value| event["ts"].as_f64().unwrap_or(0.0) + event["dur"].as_f64().unwrap_or(0.0);
        let arrow = |phase: &str, at: Value, event: &Value| {
            json!({ "ph": phase, "name": "network", "cat": "network", "id": id, "ts": at, "bp": "e",
                    "pid": event["pid"], "tid": event["tid"] })
        };
        arrows.push(arrow("s", json!(end(&from)), &from));
        arrows.push(arrow("f", to["ts"].clone(), &to));
    }
    arrows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::passage::tests::{SINK, SOURCE, passage};
    use pipeline::Point;

    fn file(is_source: bool, points: &[(Point, u64)], shifts_ns: &[u64]) -> TraceFile {
        let mut file = TraceFile::default();
        file.set_offset("pad", Some(5000));
        for (mark, shift) in (1..).zip(shifts_ns) {
            let points: Vec<_> = points.iter().map(|(point, at)| (*point, at + shift)).collect();
            file.add(&passage(is_source, mark, &points));
        }
        file
    }

    fn events<'a>(trace: &'a Value, phase: &str) -> Vec<&'a Value> {
        trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == phase).collect()
    }

    #[test]
    fn simultaneous_messages_have_separate_tracks() {
        let file = file(true, SOURCE, &[0, 100, 8000, 8100]);
        let messages = file.events.iter().filter(|event| event["cat"] == MESSAGE);
        let tracks: Vec<_> = messages.map(|event| event["tid"].as_u64().unwrap()).collect();
        assert_eq!(tracks, [1, 2, 1, 2]);
        let names = file.names();
        // One process, two tracks of messages and two of kernel steps.
        assert_eq!(names.len(), 5, "{names:?}");
    }

    #[test]
    fn traces_of_two_hosts_merge_by_this_hosts_clock() {
        let directory = std::env::temp_dir().join(format!("outboard-trace-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let (theirs, ours) = (directory.join("theirs.json"), directory.join("ours.json"));
        file(true, SOURCE, &[0, 100_000]).write(&theirs, None).unwrap();
        file(false, SINK, &[0]).write(&ours, Some(&theirs)).unwrap();
        let trace: Value = serde_json::from_slice(&fs::read(&ours).unwrap()).unwrap();
        let nonsense = directory.join("nonsense.json");
        fs::write(&nonsense, "[1, 2]").unwrap();
        assert!(file(false, SINK, &[0]).write(&ours, Some(&nonsense)).is_err());
        fs::remove_dir_all(&directory).unwrap();

        let messages: Vec<_> =
            events(&trace, "X").into_iter().filter(|event| event["cat"] == MESSAGE).collect();
        let times: Vec<_> = messages.iter().map(|event| event["ts"].as_f64().unwrap()).collect();
        assert_eq!(times, [15.0, 6.0, 106.0], "the other host's times are shifted by the offset");
        assert!(messages[0]["pid"] != messages[1]["pid"]);
        // Both hosts traced only the first message.
        let (from, to) = (events(&trace, "s"), events(&trace, "f"));
        assert_eq!((from.len(), to.len()), (1, 1));
        assert_eq!(
            (from[0]["pid"].clone(), to[0]["pid"].clone()),
            (messages[1]["pid"].clone(), messages[0]["pid"].clone())
        );
        assert_eq!((from[0]["ts"].as_f64(), to[0]["ts"].as_f64()), (Some(14.0), Some(15.0)));
        assert_eq!(from[0]["id"], to[0]["id"]);
    }
}
