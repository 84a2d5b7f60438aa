//! Console requests of a device host.

use super::DeviceHost;
use crate::change;
use crate::share_session::Session;
use console::{Answer, Operation};
use modules::now;
use pipeline::Edit;
use std::num::NonZeroU32;

impl DeviceHost {
    /// Passes a request for another pipeline to the sessions that use the device; returns their number.
    fn ask_change(&mut self, visitor: u64, name: &str, back: bool, edit: &Edit) -> usize {
        let direction = change::direction(back);
        let mut ask = |is_silent: bool| -> usize {
            let all = self.sessions.values_mut().map(|session| &mut session.common);
            let meant = all.filter(|common| common.silent_since().is_some() == is_silent);
            meant.map(|common| usize::from(common.ask_change(visitor, name, direction, edit))).sum()
        };
        let asked = ask(false);
        // A silent host would delay the answers of the others.
        if asked > 0 { asked } else { ask(true) }
    }

    /// Returns the stamps traced since the last request, and keeps tracing on.
    fn trace(&mut self, asker: u64, name: Option<&str>, one_in: Option<NonZeroU32>) -> Answer {
        let traced = self.sessions.values_mut().flat_map(|session| session.common.traced.drain(..));
        self.tracing.add(traced);
        let mut drivers = self.sessions.values().flat_map(|session| session.common.drivers.values());
        if drivers.any(|driver| driver.is_named(name)) && !self.tracing.ask(asker, one_in, now()) {
            return Answer::traced_already();
        }
        for session in self.sessions.values_mut() {
            session.common.trace(name, one_in);
        }
        self.tracing.answer(asker, "share")
    }

    /// Serves the console: reads requests and writes answers.
    pub(super) fn serve_console(&mut self) {
        let Some(mut console) = self.console.take() else { return };
        for (visitor, operation) in console.poll(&mut self.poller) {
            let answer = match operation {
                Operation::Stats {} => {
                    self.sessions.values_mut().for_each(Session::ask_stats);
                    Some(Answer::Status(self.status()))
                }
                Operation::Reload {} => Some(Answer::no_file()),
                Operation::Change { name, back, edit } => {
                    let asked = self.ask_change(visitor, &name, back, &edit);
                    console.expect(visitor, asked);
                    (asked == 0).then(|| change::no_such_flow(&name, back))
                }
                Operation::Say { .. } => {
                    let problem = "the device is on this host: use its own tools, such as v4l2-ctl".into();
                    Some(Answer::Refused { problem })
                }
                Operation::Trace { asker, name, one_in } => Some(self.trace(asker, name.as_deref(), one_in)),
            };
            if let Some(answer) = answer {
                console.answer(visitor, &answer, &mut self.poller);
            }
        }
        for common in self.sessions.values_mut().map(|session| &mut session.common) {
            for (visitor, answer) in common.answers.drain(..) {
                console.answer_part(visitor, &common.peer, answer, &mut self.poller);
            }
        }
        self.console = Some(console);
    }
}
