//! Console requests of an attached host.

use super::{ApplicationHost, AttachedDevice};
use crate::change;
use crate::peer_session::Driver;
use console::{Answer, DriverStatus, Operation, PeerStatus, Status};
use modules::now;
use std::num::NonZeroU32;

impl ApplicationHost {
    /// Serves the console: reads requests and writes answers.
    pub(super) fn serve_console(&mut self) {
        let Some(mut console) = self.console.take() else { return };
        for (visitor, operation) in console.poll(&mut self.poller) {
            let answer = match operation {
                Operation::Stats {} => {
                    let peers = vec![self.peer_status()];
                    self.common.ask_stats();
                    Some(Answer::Status(Status { peers, ..Status::of("attach", self.status()) }))
                }
                Operation::Reload {} => Some(Answer::no_file()),
                Operation::Change { name, back, edit } => {
                    let is_asked = self.common.ask_change(visitor, &name, change::direction(back), &edit);
                    (!is_asked).then(|| change::no_such_flow(&name, back))
                }
                Operation::Say { name, words } => self.pass_words(visitor, &name, words),
                Operation::Trace { asker, name, one_in } => Some(self.trace(asker, name.as_deref(), one_in)),
            };
            self.common.answers.extend(answer.map(|answer| (visitor, answer)));
        }
        for (visitor, answer) in self.common.answers.drain(..) {
            console.answer(visitor, &answer, &mut self.poller);
        }
        self.console = Some(console);
    }

    /// Passes a `Say` request on to the local partner of a device; returns a refusal if there is none.
    fn pass_words(&mut self, visitor: u64, name: &str, words: String) -> Option<Answer> {
        let is_meant = |driver: &Driver<AttachedDevice>| driver.name == name && driver.own.has_node();
        let Some((&driver, _)) = self.common.drivers.iter().find(|(_, driver)| is_meant(driver)) else {
            return Some(Answer::Refused { problem: format!("no device `{name}` is in use here") });
        };
        self.common.say(driver, visitor, words);
        None
    }

    /// Returns the stamps traced since the last request, and keeps tracing on.
    fn trace(&mut self, asker: u64, name: Option<&str>, one_in: Option<NonZeroU32>) -> Answer {
        let is_named = self.common.drivers.values().any(|driver| driver.is_named(name));
        if is_named && !self.tracing.ask(asker, one_in, now()) {
            return Answer::traced_already();
        }
        self.common.trace(name, one_in);
        self.tracing.answer(asker, "attach")
    }

    /// Returns the drivers with their latest statistics.
    fn status(&self) -> Vec<DriverStatus> {
        let open = self.common.drivers.values().filter(|driver| driver.own.has_node());
        open.map(|driver| driver.status(&self.common.peer, &driver.own.node)).collect()
    }

    pub(super) fn peer_status(&self) -> PeerStatus {
        let open = self.common.drivers.values().filter(|driver| driver.own.has_node()).count();
        let name = self.peer_name().unwrap_or(self.target.host());
        self.common.peer_status(name, self.address.to_string(), open)
    }
}
