//! A program and the thread that waits for it.
//!
//! ```text
//! broker ──starts──► supervisor thread ──starts, waits, kills──► program
//! worker ◄────────────── one Unix socket ──────────────► descriptors 0 and 1
//! ```
//!
//! The worker alone holds this host's end of the socket, so its close tells both the program and the supervisor that the connection is
//! over. The supervisor holds a copy of the program's end, and shuts it down when the program has exited.
//!
//! | event | action |
//! |---|---|
//! | the program exits | kill its children, shut the socket down |
//! | this host closes the socket | wait [`EXIT_PATIENCE`] for the program, then kill it and its children |

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use std::io;
use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::time::Duration;

/// Time for a program to exit after the connection is over.
const EXIT_PATIENCE: Duration = Duration::from_secs(1);

/// Starts `command` in a shell. Returns this host's end of the socket on which the program carries messages.
pub(super) fn start(command: &str) -> io::Result<OwnedFd> {
    let (report, started) = std::sync::mpsc::sync_channel(1);
    let command = command.to_string();
    // The supervisor starts the program: the kernel kills a program together with the thread that started it.
    let run = move || match spawn(&command) {
        Ok((mut child, process, theirs, ours)) => {
            // Without a receiver, `ours` is closed here, which ends the program.
            drop(report.send(Ok(ours)));
            wait(&mut child, &process, &theirs);
        }
        Err(error) => drop(report.send(Err(error))),
    };
    std::thread::Builder::new().name("carrier".into()).spawn(run)?;
    started.recv().map_err(io::Error::other)?
}

/// Returns the program, its pidfd, its end of the socket and this host's end.
fn spawn(command: &str) -> io::Result<(Child, OwnedFd, OwnedFd, OwnedFd)> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    rustix::io::ioctl_fionbio(&ours, true)?;
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", command]).stdin(theirs.try_clone()?).stdout(theirs.try_clone()?);
    let mut child = sys::process::start_with(&mut shell, Vec::new())?;
    // Its copies of the socket.
    drop(shell);
    match pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
        Ok(process) => Ok((child, process, theirs, ours)),
        Err(error) => {
            kill(&mut child);
            Err(error.into())
        }
    }
}

/// Waits until the program has exited or the connection is over, and ends both.
fn wait(child: &mut Child, process: &OwnedFd, theirs: &OwnedFd) {
    let mut limit = None;
    loop {
        // `HUP` needs no request. Once this host's end is closed, it is there for ever.
        let mut events = [PollFd::new(process, PollFlags::IN), PollFd::new(theirs, PollFlags::empty())];
        let watched = if limit.is_none() { 2 } else { 1 };
        match poll(&mut events[..watched], limit.as_ref()) {
            Err(Errno::INTR) => continue,
            Ok(count) if count > 0 && !events[0].revents().contains(PollFlags::IN) && limit.is_none() => {
                limit = Timespec::try_from(EXIT_PATIENCE).ok();
            }
            _ => break,
        }
    }
    kill(child);
    // The messages that the program has written stay readable.
    let _ = shutdown(theirs, Shutdown::Both);
}

/// Kills the program's session, and reaps the program.
fn kill(child: &mut Child) {
    let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
    let _ = child.wait();
}
