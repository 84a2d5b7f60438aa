//! How a process ended (`wait(2)`), and the end of this one.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// Ends this process. Unlike `exit(3)`, it runs no handlers and destructors of libraries: a thread of PipeWire may unload one of
/// them meanwhile, and the process would be killed by SIGSEGV.
pub fn end(status: u8) -> ! {
    // Each writer flushes its own output. A flush here would wait for a writer whose reader has stopped.
    // SAFETY: it ends all threads at once and returns never.
    unsafe { libc::_exit(status.into()) }
}

/// Describes an exit status.
pub fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with status {code}"),
        (None, Some(signal)) => format!("was killed by {}", signal_name(signal)),
        (None, None) => "ended".into(),
    }
}

/// Returns true if the signal came from outside: a program does not send these to itself because of a message.
pub fn is_outside(status: ExitStatus) -> bool {
    const OUTSIDE: [i32; 4] = [1, 2, 9, 15];
    status.signal().is_some_and(|signal| OUTSIDE.contains(&signal))
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
