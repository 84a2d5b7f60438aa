//! Questions at the terminal: about a peer at an address that is not on record, and about another kind of device.

use crate::output::one_line;
use rustix::event::{PollFd, PollFlags, poll};
use std::io::{self, BufRead, IsTerminal, Read};
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};
use sys::stop::Stop;

/// Longest answer.
const ANSWER_BYTES_MAX: u64 = 100;
/// Locked during a question: services in several threads ask one after the other.
static QUESTION: Mutex<()> = Mutex::new(());

/// Asks the user at the terminal whether this peer is the right host at `address`.
pub(crate) fn confirm_place(address: &str, peer: &str, fingerprint: &str, stop: &Stop) -> bool {
    ask(&format!("The host at {address} is {peer}, fingerprint {fingerprint}. Attach?"), stop)
}

/// Asks the user at the terminal. Returns false without a terminal, and after a stop.
pub(crate) fn ask(question: &str, stop: &Stop) -> bool {
    let stdin = io::stdin();
    if !stdin.is_terminal() || !io::stderr().is_terminal() {
        return false;
    }
    let _question = QUESTION.lock().unwrap_or_else(PoisonError::into_inner);
    eprint!("{} [y/N] ", one_line(question));
    let wakes = stop.wakes();
    let mut sources = [
        PollFd::from_borrowed_fd(stdin.as_fd(), PollFlags::IN),
        PollFd::from_borrowed_fd(wakes, PollFlags::IN),
    ];
    while poll(&mut sources, None).is_err_and(|error| error == rustix::io::Errno::INTR) {}
    if stop.is_requested() {
        eprintln!();
        return false;
    }
    let mut answer = String::new();
    let read = stdin.lock().take(ANSWER_BYTES_MAX).read_line(&mut answer);
    read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes")
}
