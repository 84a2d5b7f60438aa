//! Describes why a process ended.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::{Mutex, PoisonError};

/// Most names that are interned.
const REASONS_MAX: usize = 256;
/// Longest name.
const REASON_BYTES_MAX: usize = 100;

/// Describes an exit status.
pub(super) fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with status {code}"),
        (None, Some(signal)) => format!("was killed by {}", signal_name(signal)),
        (None, None) => "ended".into(),
    }
}

/// Returns true if the signal came from outside: a program does not send these to itself because of a message.
pub(super) fn is_outside(status: ExitStatus) -> bool {
    const OUTSIDE: [i32; 4] = [1, 2, 9, 15];
    status.signal().is_some_and(|signal| OUTSIDE.contains(&signal))
}

/// A hint if the last line of standard error is about memory.
pub(super) fn memory_hint(last_line: Option<&str>) -> String {
    let words =
        ["MemoryError", "memory allocation of", "Cannot allocate memory", "out of memory", "bad_alloc"];
    match last_line {
        Some(line) if words.iter().any(|word| line.contains(word)) => ": it reached its memory limit".into(),
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

/// Interns a name of a drop or figure, which must live as long as the program; `None` if there are too many.
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
