//! What a session's workers may use of the processor. They rest by themselves ([`crate::fair::Processor`]); a process that
//! does not, as one that was taken over, is seen from outside.

use super::Session;
use crate::fair::Processor;
use crate::share::now;
use crate::worker::Command;

/// Processor time that a worker may have used in advance before it is taken for one that does not rest: what one turn takes
/// is rested for afterwards.
const OWED_NS_MAX: u64 = 10_000_000_000;

impl Session {
    /// Its workers may use their part of `percent` of a processor, which `sessions` of its peer have together. Says whether
    /// they keep to it.
    pub(crate) fn allot(&mut self, percent: u64, sessions: u64) -> bool {
        let ns_per_second = Processor::share(percent, sessions);
        if ns_per_second != self.processor.ns_per_second() {
            self.processor.set(ns_per_second, now());
            self.command(Command::Processor { ns_per_second });
        }
        self.processor.read(|| self.workers.cpu_ns(), now());
        self.processor.owed_ns(now()) <= OWED_NS_MAX
    }

    /// Ends a worker that does not keep to it.
    pub(crate) fn kill_worker(&mut self) {
        self.workers.kill();
    }
}
