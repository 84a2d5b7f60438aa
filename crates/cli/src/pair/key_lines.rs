//! `outboard peers self`, `add` and `export`: pairs hosts by their key lines, without a code, from scripts.

use super::shown_address;
use crate::output::{Failure, print, print_json, printable};
use serde::Serialize;
use std::io::{self, Read};
use std::path::Path;
use sys::address::host_name;
use trust::{KeyLine, LineEffect, PeerKey, Trust};

/// Most bytes of standard input that are read as key lines.
const INPUT_BYTES_MAX: u64 = 16 << 20;

/// Output of `self` and `export` with `--json`.
#[derive(Serialize)]
struct Shown<'a> {
    line: String,
    name: &'a str,
    key: PeerKey,
    address: Option<&'a str>,
    may_open: Option<&'a [String]>,
}

/// Output of `add --json`, one object for each line.
#[derive(Serialize)]
struct Added<'a> {
    effect: LineEffect,
    name: &'a str,
    key: PeerKey,
}

fn show(line: &KeyLine, json: bool) -> Result<(), Failure> {
    match json {
        true => print_json(&Shown {
            line: line.to_string(),
            name: &line.name,
            key: line.key,
            address: line.address.as_deref(),
            may_open: line.may_open.as_deref(),
        }),
        false => print(&printable(&format!("{line}\n"))),
    }
}

/// `outboard peers self`.
pub(super) fn own(trust: &Trust, json: bool) -> Result<(), Failure> {
    show(&trust.key_line(&host_name(), shown_address()), json)
}

/// `outboard peers export`.
pub(super) fn export(trust: &Trust, json: bool) -> Result<(), Failure> {
    trust.peers()?.key_lines().try_for_each(|line| show(&line, json))
}

/// `outboard peers add`. An error in one line changes nothing.
pub(super) fn add(
    trust: &Trust,
    text: &str,
    name: Option<String>,
    replace: bool,
    json: bool,
) -> Result<(), Failure> {
    let mut lines = match text {
        "-" => match KeyLine::parse_all(&read_input()?).map_err(Failure::Usage)? {
            lines if lines.is_empty() => {
                return Err(Failure::Usage(
                    "standard input has no key line: did the command before the pipe fail?".into(),
                ));
            }
            lines => lines,
        },
        path if Path::new(path).is_file() => {
            return Err(Failure::Usage(format!(
                "`{path}` is a file: `outboard peers add - <{path}` reads it"
            )));
        }
        line => vec![line.parse().map_err(Failure::Usage)?],
    };
    match (name, &mut lines[..]) {
        (None, _) => {}
        (Some(name), [line]) => line.name = name,
        (Some(_), _) => return Err(Failure::Usage("--name names one host: give one key line".into())),
    }
    let effects = trust.edit(|peers| {
        let add = |line| peers.add_line(line, &trust.key(), replace);
        lines.iter().map(add).collect::<Result<Vec<_>, _>>()
    })?;
    for (KeyLine { name, key, .. }, effect) in lines.iter().zip(effects) {
        let text = match effect {
            LineEffect::Added => "added",
            LineEffect::Changed => "changed",
            LineEffect::Unchanged => "unchanged",
            LineEffect::Own => "this host",
        };
        match json {
            true => print_json(&Added { effect, name, key: *key })?,
            false => print(&printable(&format!("{text}: {name} (key {})\n", key.short())))?,
        }
    }
    Ok(())
}

fn read_input() -> Result<String, Failure> {
    let mut text = String::new();
    let read = io::stdin().lock().take(INPUT_BYTES_MAX).read_to_string(&mut text);
    read.map_err(|error| Failure::Failed(format!("reading key lines: {error}")))?;
    Ok(text)
}

/// Tells the user that a host's line in a file overrides a change of the list.
pub(super) fn warn_if_listed(trust: &Trust, name: &str) -> Result<(), Failure> {
    if let Some(directory) = trust.peers()?.named(name).and_then(|peer| peer.listed_in.as_deref()) {
        let warning = format!(
            "outboard: {name} has a line in {directory}, which counts again when `outboard run` reads its file: edit it there"
        );
        eprintln!("{}", printable(&warning));
    }
    Ok(())
}
