//! The trace of a broker: one client at a time requests the stamps that the workers collect.

use console::{Answer, Traced};
use contract::Time;
use flow::trace::{FlowTrace, LEASE};
use rustix::process::getpid;
use std::num::NonZeroU32;

/// The client that traces, and the stamps collected since its last request.
#[derive(Debug, Default)]
pub struct Tracing {
    asker: Option<(u64, Time)>,
    flows: Vec<FlowTrace>,
}

impl Tracing {
    /// Starts, continues or (without a rate) ends the trace of a client. Returns false while another client traces.
    pub fn ask(&mut self, asker: u64, one_in: Option<NonZeroU32>, now: Time) -> bool {
        let holds = self.holds(asker);
        let is_free = holds || self.asker.is_none_or(|(_, until)| now >= until);
        if is_free {
            if !holds {
                self.flows.clear();
            }
            self.asker = one_in.map(|_| (asker, now.after(LEASE)));
        }
        is_free
    }

    fn holds(&self, asker: u64) -> bool {
        self.asker.is_some_and(|(known, _)| known == asker)
    }

    /// Adds stamps from workers.
    pub fn add(&mut self, flows: impl IntoIterator<Item = FlowTrace>) {
        self.flows.extend(flows);
    }

    /// Returns the collected stamps, if `asker` is the client that traces.
    pub fn answer(&mut self, asker: u64, role: &str) -> Answer {
        let process = getpid().as_raw_nonzero().get();
        let flows = if self.holds(asker) { std::mem::take(&mut self.flows) } else { Vec::new() };
        Answer::Traced(Traced { role: role.into(), process, flows })
    }
}
