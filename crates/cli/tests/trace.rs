//! `outboard trace` of real processes over loopback.

mod support;

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;
use support::{PATIENCE, Scratch, Service, outboard};

/// Two hosts with this device between them, in use.
fn hosts(device: &str, name: &str, via: &str) -> (Service, Service) {
    let (share, address) = Service::share(device, &["--name", name, "--via", via]);
    // Only a connection of the kernel (TCP) has kernel steps.
    let from = format!("tcp://{address}/{name}");
    let mut attach = Service::start(&["attach", &from, "--as", "null", "--stats"]);
    attach.wait("stats");
    (share, attach)
}

/// Returns the flow that this process traced.
fn flow<'a>(view: &'a Value, process: &Service) -> &'a Value {
    let flows = view["flows"].as_array().unwrap();
    flows.iter().find(|flow| flow["process"] == process.child.id()).unwrap_or_else(|| panic!("{view}"))
}

fn parts(flow: &Value) -> BTreeSet<&str> {
    flow["rows"].as_array().unwrap().iter().map(|row| row["part"].as_str().unwrap()).collect()
}

/// Returns whether this kernel reports the times at which it sends and receives the bytes of a socket.
fn kernel_tells() -> bool {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let tells = sys::net::keep_times(&socket, false, sys::net::Timestamps::Arrivals).is_ok();
    if !tells {
        testkit::skip::until_vm("this kernel keeps no times of packets");
    }
    tells
}

#[track_caller]
fn assert_has(flow: &Value, expected: &[&str]) {
    let parts = parts(flow);
    for part in expected {
        assert!(parts.contains(part), "no `{part}` in {parts:?}");
    }
}

/// A complete event: its start, its duration, and the whole event.
type Complete = (f64, f64, Value);

/// The trace file's complete events by track, checked: on each track they nest.
fn tracks(file: &str) -> BTreeMap<(i64, i64), Vec<Complete>> {
    let trace: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    assert_eq!(trace["displayTimeUnit"], "ns");
    let mut tracks: BTreeMap<_, Vec<_>> = BTreeMap::new();
    let mut named = BTreeSet::new();
    for event in trace["traceEvents"].as_array().unwrap() {
        let place = (event["pid"].as_i64().unwrap(), event["tid"].as_i64().unwrap());
        match event["ph"].as_str().unwrap() {
            "M" if event["name"] == "thread_name" => _ = named.insert(place),
            "M" => assert_eq!(event["name"], "process_name"),
            "X" => {
                let (ts, dur) = (event["ts"].as_f64().unwrap(), event["dur"].as_f64().unwrap());
                assert!(event["name"].is_string() && event["cat"].is_string() && dur >= 0.0, "{event}");
                tracks.entry(place).or_default().push((ts, dur, event.clone()));
            }
            other => panic!("an event of phase {other}"),
        }
    }
    for (place, events) in &mut tracks {
        assert!(named.contains(place), "a track without a name");
        // The earliest event contains the others; of two with one start, the longer one.
        events.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.total_cmp(&a.1)));
        let mut ends: Vec<f64> = Vec::new();
        for (ts, dur, event) in events {
            ends.retain(|end| *end > *ts + 0.0005);
            assert!(ends.last().is_none_or(|end| *ts + *dur <= end + 0.001), "{event} reaches out");
            ends.push(*ts + *dur);
        }
    }
    tracks
}

#[test]
fn every_step_of_a_path_is_traced_and_the_steps_add_up() {
    let scratch = Scratch::new();
    let file = scratch.path("trace.json");
    let (share, attach) = hosts("pattern:rate=250,size=500", "seen", "compress | buffer(play, delay=2ms)");
    let view =
        outboard(&["trace", "seen", "--sample", "1/1", "--seconds", "2", "--json", "--perfetto", &file]);
    let view = view.done().json();
    let (source, sink) = (flow(&view, &share), flow(&view, &attach));
    assert_eq!(view["flows"].as_array().unwrap().len(), 2, "only this device's flows: {view}");
    assert_has(
        source,
        &[
            "waits in the device",
            "read of the device",
            "compress",
            "buffer",
            "number and store",
            "hand to the transport",
            "waits for the end of the burst",
            "write to the socket",
            "device to program",
            "program to socket",
            "whole",
        ],
    );
    let on_sink = [
        "read of the socket",
        "order",
        "buffer",
        "compress",
        "waits for the node",
        "write to the node",
        "flush of the node",
        "socket to program",
        "program to node",
        "whole",
    ];
    assert_has(sink, &on_sink);
    if kernel_tells() {
        assert_has(source, &["write to scheduler", "scheduler to driver", "driver to acknowledged"]);
        assert_has(sink, &["waits in the kernel"]);
    }
    for flow in [source, sink] {
        let (passed, sampled) = (flow["passed"].as_u64().unwrap(), flow["sampled"].as_u64().unwrap());
        assert!(passed > 30 && passed == sampled, "{flow}");
        for row in flow["rows"].as_array().unwrap() {
            let time = |name: &str| row[name].as_f64().unwrap();
            assert!(time("p50_us") <= time("p90_us") && time("p90_us") <= time("p99_us"), "{row}");
            assert!(time("p99_us") <= time("max_us") && row["count"].as_u64().unwrap() <= sampled, "{row}");
        }
    }
    let messages = tracks(&file).into_values().flat_map(|events| {
        let (whole, inner): (Vec<_>, Vec<_>) =
            events.into_iter().partition(|event| event.2["cat"] == "message");
        let inner: Vec<_> = inner.into_iter().filter(|_| !whole.is_empty()).collect();
        whole.into_iter().map(move |whole| {
            let same = |event: &&Complete| event.2["args"] == whole.2["args"];
            let sum: f64 = inner.iter().filter(same).map(|event| event.1).sum();
            (whole, sum)
        })
    });
    let mut numbers: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
    for ((_, dur, event), sum) in messages {
        assert!((dur - sum).abs() < 0.05, "{event}: parts of {sum} us");
        let args = &event["args"];
        assert!(args["bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{event}");
        numbers.entry(args["side"].to_string()).or_default().insert(args["sequence"].as_u64().unwrap());
    }
    // Both hosts traced the same messages: their sequence numbers are equal.
    let both = numbers["\"source\""].intersection(&numbers["\"sink\""]).count();
    assert!(both > 20, "{both} of {} and {}", numbers["\"source\""].len(), numbers["\"sink\""].len());
    let text = outboard(&["trace", "seen", "--sample", "1/1", "--seconds", "1"]).done();
    assert!(
        text.text().contains("device -> application") && text.text().contains("P50 us"),
        "{}",
        text.text()
    );
}

#[test]
fn sampling_and_lost_stamps_are_counted() {
    let (share, attach) = hosts("pattern:rate=20000,size=10", "many", "null");
    let view = outboard(&["trace", "many", "--sample", "1/50", "--seconds", "2", "--json"]).done().json();
    for process in [&share, &attach] {
        let flow = flow(&view, process);
        let (passed, sampled) = (flow["passed"].as_f64().unwrap(), flow["sampled"].as_f64().unwrap());
        let share = sampled / passed;
        assert!(passed > 1000.0 && (0.5 / 50.0..2.0 / 50.0).contains(&share), "{sampled} of {passed}");
        assert_eq!(flow["overwritten"], 0);
    }
    let view = outboard(&["trace", "many", "--sample", "1/1", "--seconds", "2", "--json"]).done().json();
    let overwritten = |process| flow(&view, process)["overwritten"].as_u64().unwrap();
    assert!(overwritten(&share) > 0, "{view}");
}

#[test]
fn a_trace_ends_with_its_client_and_excludes_a_second_one() {
    let (share, _attach) = hosts("pattern:rate=100", "lone", "null");
    let mut first = support::command(&["trace", "lone", "--json"]).spawn().unwrap();
    let is_traced = || {
        let top = outboard(&["top", "--once", "--json"]).done().json();
        let flows = top["flows"].as_array().unwrap();
        flows.iter().find(|flow| flow["process"] == share.child.id()).unwrap()["traced"] == true
    };
    let wait_for = |traced: bool| {
        let since = Instant::now();
        while is_traced() != traced {
            assert!(since.elapsed() < PATIENCE, "never traced: {traced}");
        }
    };
    wait_for(true);
    outboard(&["trace", "lone"]).refused(1, &["another process already traces it"]);
    first.kill().unwrap();
    first.wait().unwrap();
    wait_for(false);
    outboard(&["trace", "lone", "--seconds", "0.5"]).done();
    outboard(&["trace", "absent"]).refused(1, &["no device `absent`", "outboard top"]);
    outboard(&["trace", "--sample", "1/0"]).refused(2, &["1/N"]);
    outboard(&["trace", "--seconds=-1"]).refused(2, &["--seconds"]);
}
