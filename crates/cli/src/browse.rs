//! `devices` and `find`: lists the devices of this or another host, and the hosts on the network.

use crate::arguments::Devices;
use crate::catalogue;
use crate::confirm::confirm_place;
use crate::output::{Failure, one_line, print, print_json, print_json_lines};
use crate::services::stop_on_signals;
use broker::{Offered, browse, parse_target};
use hosts::discovery;
use hosts::place::{WRONG_PORT, check_peer, has_wrong_port};
use serde::Serialize;
use std::fmt::Write;
use std::time::Duration;
use sys::address::host_name;
use sys::stop::Stop;
use trust::Trust;

/// Maximum duration of a search, seconds.
const SECONDS_MAX: f64 = 3600.0;

/// `outboard devices`.
pub(crate) fn devices(words: Devices) -> Result<(), Failure> {
    let Some(host) = words.host else { return catalogue::devices(words.json.json) };
    let trust = (!words.insecure).then(Trust::open).transpose()?;
    let target = parse_target(&host).ok_or_else(|| Failure::Usage(wrong_host(&host)))?;
    check_peer(&target, trust.as_ref(), None)?;
    let stop = Stop::new()?;
    if words.watch {
        stop_on_signals(&stop)?;
    }
    let (json, watched) = (words.json.json, words.watch.then_some(&stop));
    let mut told = Ok(());
    let mut tell = |devices: Vec<Offered>| {
        told = show(&devices, json, words.watch);
        if told.is_err() {
            stop.stop();
        }
    };
    let mut confirm = |address: &str, peer: &str, fingerprint: &str| {
        !json && confirm_place(address, peer, fingerprint, &stop)
    };
    let done = browse(&target, trust, host_name(), watched, &mut confirm, &mut tell);
    told?;
    Ok(done?)
}

/// Returns the error for a text that is not `HOST`.
fn wrong_host(text: &str) -> String {
    let rest = text.split_once("://").map_or(text, |(_, rest)| rest);
    let host = rest.split('/').next().filter(|host| parse_target(host).is_some());
    match host {
        None if has_wrong_port(rest) => {
            format!("`{text}` is no host: {WRONG_PORT}; write [PEER@]HOST[:PORT]")
        }
        Some(host) => format!("`{text}` is no host: `outboard devices {host}` lists the devices of a host"),
        None => format!("`{text}` is no host: write [PEER@]HOST[:PORT]"),
    }
}

/// The devices at one time, with `--watch`.
#[derive(Serialize)]
struct Catalogue<'a> {
    devices: &'a [Offered],
}

fn show(devices: &[Offered], json: bool, watch: bool) -> Result<(), Failure> {
    if json && watch {
        return print_json(&Catalogue { devices });
    }
    if json {
        return print_json_lines(devices);
    }
    let mut text = String::new();
    let width = devices.iter().map(|device| device.name.chars().count()).max().unwrap_or_default();
    for Offered { name, class, summary, present } in devices {
        let [name, class, summary] = [name, class, summary].map(|text| one_line(text));
        let gone = if *present { "" } else { " (not plugged in)" };
        let _ = writeln!(text, "{name:width$}  {class}  {summary}{gone}");
    }
    if devices.is_empty() {
        text.push_str("That host shares no device with this one.\n");
    }
    if watch {
        text.push('\n');
    }
    print(&text)
}

/// `outboard find`.
pub(crate) fn find(seconds: f64, json: bool) -> Result<(), Failure> {
    let time = Duration::try_from_secs_f64(seconds.min(SECONDS_MAX));
    let time =
        time.map_err(|_| Failure::Usage(format!("`{seconds}` is not a duration: write seconds, such as 3")))?;
    let found = discovery::find(time)?;
    if json {
        return print_json_lines(&found);
    }
    let mut text = String::new();
    let width = found.iter().map(|host| host.name.chars().count()).max().unwrap_or_default();
    for host in &found {
        let _ = writeln!(text, "{:width$}  {}", one_line(&host.name), host.addresses.join("  "));
    }
    if found.is_empty() {
        text.push_str("No host announces itself: run `outboard share --announce` on the device host.\n");
    }
    print(&text)
}
