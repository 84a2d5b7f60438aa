//! What another worker would go on with, and when that is acknowledged.
//!
//! The ticket says what the partner took; the source sends everything behind it again. Where stages remember, that is
//! of no use to fresh ones, so the ticket stays where it is until the next acknowledgement is due, and moves on with a
//! checkpoint of them: whoever goes on restores it, takes again what has come since, and leaves out what of that the
//! partner took. An acknowledgement is what the source forgets by, so nothing more rarely would do, and
//! more often none is needed.

use super::Incoming;
use crate::driver::Notice;
use crate::kept::Kept;
use contract::{Ctl, CtlReply, FlowClass, FlowKey, Partner, Time};
use std::time::Duration;
use wire::Control;
use wire::ticket::FlowTicket;

/// Longest time that an acknowledgement is put off: while nothing is lost, and where it may be.
///
/// Where stages remember, what they do is kept with each acknowledgement, and takes a copy: a share of the time only.
const ACKNOWLEDGE_WAIT: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(5)];
const WAIT_PER_BYTE: Duration = Duration::from_nanos(10);

/// Some messages of a flow.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Amount {
    pub(super) bytes: usize,
    pub(super) messages: usize,
}

impl Amount {
    pub(super) fn add(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.messages += 1;
    }

    /// Whether these are as many, or as large.
    fn reaches(self, amount: Amount) -> bool {
        self.bytes >= amount.bytes || self.messages >= amount.messages
    }
}

impl Incoming {
    /// What the partner took of a reliable flow is kept with its taking.
    pub(super) fn keeps(&mut self) -> Option<&mut Kept> {
        self.kept.as_mut().filter(|_| self.plan.class == FlowClass::Reliable)
    }

    /// The partner is about to be told to write what it has taken.
    pub(crate) fn handle_flush(&mut self) {
        if let Some(kept) = self.keeps() {
            kept.begin_pushing();
        }
    }

    /// What there was to do is done: what the partner took, unless some of it is `unflushed`, is kept and
    /// acknowledged.
    pub(crate) fn handle_done(
        &mut self,
        partner: Option<&mut Box<dyn Partner>>,
        unflushed: bool,
        now: Time,
        notices: &mut Vec<Notice>,
    ) {
        let (key, held) = (self.key, self.segment.kept());
        let dropped = self.drops.total().saturating_add(self.sink.counters().stale);
        let is_whole = !unflushed && self.segment.out.messages.is_empty();
        // What comes again of what was taken before does not end there.
        let is_caught_up = self.taken_before == 0 && self.partway_before.is_none();
        let settles = self.keep_checkpoint(is_whole && is_caught_up, now);
        let mut has_moved = false;
        if let Some(kept) = self.keeps() {
            if let Some(partner) = partner {
                kept.keep_legacy(partner.as_mut(), key);
                if kept.is_pushing() {
                    kept.handle_pushed(0, partway(partner.as_mut(), key));
                }
            }
            has_moved = settles && kept.handle_settled();
        }
        if let Some(kept) = &self.kept {
            kept.handle_taken(held, 0);
            kept.keep_dropped(dropped);
        }
        // The ticket and the count of what was taken before it move together, or the next worker leaves out too much.
        if settles {
            self.sink.handle_taken();
        }
        if has_moved || self.kept_ticket != Some(self.sink.ticket(self.plan.flow)) {
            self.keep_ticket();
        }
        self.tell_acknowledged(now, notices);
    }

    /// Keeps what the stages remember, if they do and an acknowledgement is due; says whether what the partner took, if
    /// that `is_all` there was to take, is to be kept with it.
    pub(super) fn keep_checkpoint(&mut self, is_all: bool, now: Time) -> bool {
        if !self.remembers || self.keeps().is_none() {
            return is_all;
        }
        if self.sink.next_sequence() == self.sink.taken() {
            return false;
        }
        if !self.keeps_next && self.is_due(now) {
            (self.keeps_next, self.acknowledge_at) = (true, None);
        }
        let is_now = is_all && self.keeps_next;
        let Some(checkpoint) = is_now.then(|| self.segment.checkpoint()).flatten() else { return false };
        self.checkpoint_bytes = checkpoint.len();
        // Of what is too large for it the next worker knows nothing, as if it were the first.
        let _ = self.keeps().is_some_and(|kept| kept.put_checkpoint(&checkpoint));
        (self.keeps_next, self.acknowledge_at) = (false, Some(now));
        true
    }

    /// Whether what is not acknowledged is to be by now.
    pub(super) fn is_due(&mut self, now: Time) -> bool {
        let mut wait = ACKNOWLEDGE_WAIT[usize::from(self.lossy)];
        if self.remembers {
            wait = wait.max(WAIT_PER_BYTE * u32::try_from(self.checkpoint_bytes).unwrap_or(u32::MAX));
        }
        let due = *self.acknowledge_at.get_or_insert(now.after(wait));
        now >= due || self.unacknowledged.reaches(self.acknowledge_amount)
    }

    /// Another epoch begins, with stages that have taken nothing yet: kept before the partner is given anything of it.
    pub(super) fn keep_begun(&mut self) {
        let comes_again = self.taken_before;
        self.keeps_next = false;
        if let Some(kept) = self.keeps() {
            kept.begin_anew(comes_again);
        }
        self.keep_ticket();
    }

    /// Keeps where the flow stands.
    pub(super) fn keep_ticket(&mut self) {
        let ticket = self.sink.ticket(self.plan.flow);
        if let Some(kept) = self.kept.as_mut() {
            kept.put_ticket(&FlowTicket::Sink(ticket), self.plan.pipeline.text());
            self.kept_ticket = Some(ticket);
        }
    }

    pub(super) fn keep_pushed(&mut self, count: u64, partner: &mut dyn Partner) {
        let key = self.key;
        if let Some(kept) = self.keeps() {
            kept.handle_pushed(count, partway(partner, key));
        }
    }

    /// What would be acknowledged soon is acknowledged in the next turn; whether there is anything.
    pub(crate) fn hurry(&mut self, now: Time) -> bool {
        let waits = self.acknowledge_at.is_some_and(|at| at > now);
        if waits {
            self.acknowledge_at = Some(now);
        }
        waits
    }

    pub(super) fn tell_acknowledged(&mut self, now: Time, notices: &mut Vec<Notice>) {
        let kept = self.plan.class != FlowClass::Timely;
        let next = self.sink.taken();
        if !kept || self.sink.epoch() == 0 || next == self.acknowledged {
            return;
        }
        if self.is_due(now) {
            let (flow, epoch) = (self.plan.flow, self.sink.epoch());
            notices.push(Notice::Control(Control::Acknowledge { flow, epoch, next }));
            self.acknowledged = next;
            self.unacknowledged = Amount::default();
            self.acknowledge_at = None;
        }
    }
}

/// How much of the last message that the partner took it has written, if not all and it can tell.
pub(super) fn partway(partner: &mut dyn Partner, key: FlowKey) -> Option<u64> {
    match partner.ctl(key, Ctl::Partway) {
        Ok(CtlReply::Count(bytes)) => Some(bytes),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::epochs::tests::in_its_first_epoch;
    use super::*;
    use session::Limits;

    /// A source whose store is full takes nothing more until it hears of that.
    #[test]
    fn an_eighth_of_the_store_is_acknowledged_before_its_time_in_bytes_and_in_messages() {
        let (store, now) = (Limits::default(), Time::ZERO);
        for (bytes, messages) in [(store.store_bytes / 8, 1), (1, store.store_messages / 8)] {
            let mut flow = in_its_first_epoch(FlowClass::Reliable);
            (1..messages).for_each(|_| flow.unacknowledged.add(bytes));
            assert!(!flow.is_due(now));
            flow.unacknowledged.add(bytes);
            assert!(flow.is_due(now));
        }
    }
}
