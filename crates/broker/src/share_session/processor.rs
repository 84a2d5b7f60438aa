//! The processor limit of a session's workers. A worker keeps to it by resting ([`flow::fair::Processor`]). The
//! broker measures it from outside, in case a worker was compromised and does not rest.

use super::Session;
use flow::fair::Processor;
use modules::now;
use worker::Command;

/// Processor time that a worker may owe before it counts as one that does not rest. A worker rests only after a
/// turn, so it always owes some.
const OWED_NS_MAX: u64 = 10_000_000_000;

impl Session {
    /// Sets the workers' limit: a part of `percent` of a processor, which the peer's `sessions` share. Returns
    /// whether they have kept to it.
    pub fn allot(&mut self, percent: u64, sessions: u64) -> bool {
        let ns_per_second = Processor::share(percent, sessions);
        if ns_per_second != self.processor.ns_per_second() {
            self.processor.set(ns_per_second, now());
            self.command(Command::Processor { ns_per_second });
        }
        self.processor.read(|| self.common.workers.cpu_ns(), now());
        self.processor.owed_ns(now()) <= OWED_NS_MAX
    }

    /// Kills the worker, which exceeds its limit or has lost a permission.
    pub fn kill_worker(&mut self) {
        self.common.workers.kill();
    }
}
