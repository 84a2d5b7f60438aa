//! A worker that is a thread of the broker process.

use super::paths::{ControlChannel, Loop};
use super::{Command, Report};
use buffers::{Ring, RingFull};
use session::Limits;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::thread::JoinHandle;
use std::time::Duration;
use sys::event::Event;
use sys::poller::Poller;

const COMMANDS_MAX: usize = 1024;
const REPORTS_MAX: usize = 4096;

/// A broker's handle on a worker thread. Dropping it ends the worker.
pub struct Worker {
    commands: Ring<Command>,
    wake_worker: Event,
    reports: Ring<Report>,
    wake_broker: Event,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts a worker thread with this name.
    pub fn start(name: &str, limits: Limits) -> io::Result<Worker> {
        let (commands, reports) = (Ring::new(COMMANDS_MAX), Ring::new(REPORTS_MAX));
        let (wake_worker, wake_broker) = (Event::new()?, Event::new()?);
        let rings = Rings {
            commands: commands.clone(),
            wake: wake_worker.clone(),
            reports: reports.clone(),
            wake_broker: wake_broker.clone(),
        };
        let mut work = Loop::new(rings, limits, Poller::new()?);
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
            sys::thread::be_prompt();
            work.run()
        })?;
        Ok(Worker { commands, wake_worker, reports, wake_broker, thread: Some(thread) })
    }

    /// Sends a command. Returns `false` if the last [`COMMANDS_MAX`] commands are unread, which means that the worker
    /// hangs.
    #[must_use]
    pub fn send(&self, command: Command) -> bool {
        match self.commands.push(command) {
            Ok(_) => {
                self.wake_worker.signal();
                true
            }
            Err(RingFull(_)) => false,
        }
    }

    /// Returns the next report.
    pub fn poll(&self) -> Option<Report> {
        let (report, was_full) = self.reports.pop()?;
        if was_full {
            self.wake_worker.signal();
        }
        Some(report)
    }

    /// Clears the wake-up, before [`Worker::poll`].
    pub fn clear(&self) {
        self.wake_broker.clear();
    }

    /// Returns the descriptor that becomes readable when there are reports.
    pub fn wakes(&self) -> BorrowedFd<'_> {
        self.wake_broker.as_fd()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // A live worker empties a full ring. A worker that has exited needs no command.
        while !self.send(Command::Stop) && self.thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            std::thread::sleep(Duration::from_millis(1));
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The worker's ends of the rings.
struct Rings {
    commands: Ring<Command>,
    wake: Event,
    reports: Ring<Report>,
    wake_broker: Event,
}

impl ControlChannel for Rings {
    fn cpu_ns(&self) -> u64 {
        sys::clock::thread_cpu_ns()
    }

    fn take(&mut self) -> Option<Command> {
        self.commands.pop().map(|(command, _)| command)
    }

    fn put(&mut self, report: Report) -> Result<(), Report> {
        self.reports.push(report).map(drop).map_err(|RingFull(report)| report)
    }

    fn notify(&mut self) {
        self.wake_broker.signal();
    }

    fn register(&self, poller: &mut Poller) {
        poller.register(self.wake.as_fd(), true, false);
    }

    fn handle_wait(&mut self, poller: &Poller) {
        if poller.is_ready(self.wake.as_fd()) {
            self.wake.clear();
        }
    }
}
