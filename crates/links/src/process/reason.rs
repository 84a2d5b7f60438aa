//! Why a process ended, for people.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::{Mutex, PoisonError};

/// Reasons of modules that are remembered.
const REASONS_MAX: usize = 256;
/// Longest of them.
const REASON_BYTES_MAX: usize = 100;

/// How a process ended.
pub(super) fn of(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with status {code}"),
        (None, Some(signal)) => format!("was ended by {}", signal_name(signal)),
        (None, None) => "ended".into(),
    }
}

/// Whether somebody else ended it: no message makes a program send itself these.
pub(super) fn is_outside(status: ExitStatus) -> bool {
    const OUTSIDE: [i32; 4] = [1, 2, 9, 15];
    status.signal().is_some_and(|signal| OUTSIDE.contains(&signal))
}

/// A hint at memory, if that is what its last words are about.
pub(super) fn of_memory(last_line: Option<&str>) -> String {
    let words =
        ["MemoryError", "memory allocation of", "Cannot allocate memory", "out of memory", "bad_alloc"];
    match last_line {
        Some(line) if words.iter().any(|word| line.contains(word)) => {
            ": it ran out of the memory it was given".into()
        }
        _ => String::new(),
    }
}

fn signal_name(number: i32) -> String {
    let name = match number {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        5 => "SIGTRAP",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        15 => "SIGTERM",
        24 => "SIGXCPU",
        25 => "SIGXFSZ",
        31 => "SIGSYS",
        other => return format!("signal {other}"),
    };
    format!("signal {name}")
}

/// Drops and figures go by names that live as long as the program: those that modules give are remembered, as many as
/// there is room for.
pub(super) fn interned(reason: &str) -> Option<&'static str> {
    static KNOWN: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let reason: String = reason.chars().filter(|c| !c.is_control()).take(REASON_BYTES_MAX).collect();
    match known.iter().find(|name| **name == reason) {
        Some(name) => Some(name),
        None if known.len() < REASONS_MAX => {
            let name: &'static str = Box::leak(reason.into_boxed_str());
            known.push(name);
            Some(name)
        }
        None => None,
    }
}
