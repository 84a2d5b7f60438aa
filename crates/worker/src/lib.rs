//! Workers run the paths of drivers on descriptors that the broker passes to them.
//!
//! The interface between broker and worker consists of [`Command`] and [`Report`]: plain data and open descriptors. A
//! worker opens neither devices nor sockets.
//!
//! The [`Workers`] of a session are a *process* ([`run_in_processes`]) and a *thread* of the broker ([`Worker`]). The
//! process enters its sandbox before it reads the first command (`sandbox::confine::lock_up`). The thread runs drivers
//! whose partner is an object of the broker process (test instruments). Both run the same loop, in `paths`. Drivers
//! that share a junction or a side port run in processes too; their ways are shared memory ([`hub::endpoint`]).
//!
//! Threads of the broker perform operations that the sandbox forbids. They see no messages. The *spawner* starts the
//! processes of stages, but only those named in a pipeline of its driver (`modules::process`). Another thread waits
//! for the program of `exec`, and another watches the readers of a camera's node.

mod codec;
mod command;
mod handover;
mod line;
mod offers;
mod paths;
mod process;
mod report;
#[cfg(test)]
mod tests;
mod thread;
mod turns;
mod workers;

pub use command::{Command, DriverPlan};
pub use handover::{Handover, TakenDriver};
pub use process::{run_in_processes, serve_worker};
pub use report::{Report, next_report};
pub use thread::Worker;
pub use workers::{ExitWaiter, Workers};

/// Returns the message for people about a restarted worker.
pub fn restarted(end: &str) -> String {
    format!("its worker {end}; a new worker resumes")
}
