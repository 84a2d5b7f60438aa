//! The session to which a log belongs. A peer that restarts has no state of the flows: the worker clears its logs and begins
//! again. If the worker is killed before, its successor must not resume.
//!
//! | event | `EXPECTED_SESSION` | `SESSION` |
//! |---|---|---|
//! | the broker requests new paths | advances | |
//! | the worker has cleared the log | | follows |
//! | a new worker finds them different | | clears the log, keeps the losses, follows |

use super::{EXPECTED_SESSION, PROGRESS, RecoveryLog, SESSION, VOLATILE, map};
use session::Limits;
use std::io;
use std::os::fd::OwnedFd;

/// Notes that the peer has no state of the flows: a log that its worker does not clear is not resumed.
pub fn expect_rebuild(memory: &OwnedFd, limits: &Limits) -> io::Result<()> {
    for log in map(memory.try_clone()?, limits)? {
        log.store(EXPECTED_SESSION, log.load(EXPECTED_SESSION).wrapping_add(1));
    }
    Ok(())
}

impl RecoveryLog {
    pub(super) fn enter_session(&self) {
        self.store(SESSION, self.load(EXPECTED_SESSION));
    }

    /// Returns the log, cleared if it belongs to an earlier session. Messages in flight count as lost or in doubt.
    pub fn of_this_session(mut self) -> RecoveryLog {
        if self.load(SESSION) == self.load(EXPECTED_SESSION) {
            return self;
        }
        let losses = self.lose_all();
        let log = self.cleared();
        log.store_losses(0, &losses);
        log.save_dropped(losses.dropped);
        log
    }

    /// Adds the messages in flight to the losses.
    pub(super) fn lose_all(&mut self) -> super::Losses {
        let in_transfer = self.load(VOLATILE) & 1 | self.load(PROGRESS) & 1;
        let unacknowledged = self.records().map_or(0, |records| records.len() as u64);
        self.add_losses(in_transfer.saturating_add(unacknowledged), self.load(PROGRESS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recovery::{Losses, memory};
    use wire::ticket::{FlowTicket, SinkTicket};

    #[test]
    fn a_log_of_an_earlier_session_is_not_resumed() {
        let limits = Limits::default();
        let memory = memory(&limits).unwrap();
        let read = || {
            let [log, _] = map(memory.try_clone().unwrap(), &limits).unwrap();
            log.of_this_session()
        };
        let save = |mut log: RecoveryLog, next| {
            let (flow, epoch, abandoned, lost, upcoming, trimmed_to) = (0, 1, 0, 0, None, (0, 0));
            let ticket = SinkTicket { flow, epoch, abandoned, next, lost, upcoming, trimmed_to };
            log.end_push(next, None);
            let _ = log.settle();
            log.save_ticket(&FlowTicket::Sink(ticket), "");
        };
        save(read(), 4);
        let mut log = read();
        assert_eq!(log.sink().unwrap().ticket.next, 4);
        log.begin_push();
        log.save_dropped(2);
        expect_rebuild(&memory, &limits).unwrap();
        let mut log = read();
        assert!(log.sink().is_none());
        assert_eq!(log.losses(), Losses { in_doubt: 1, dropped: 2, ..Losses::default() });
        save(log, 3);
        let saved = read().sink().unwrap();
        assert_eq!((saved.ticket.next, saved.accepted), (3, 0));
        // The worker lives, and clears the log itself.
        expect_rebuild(&memory, &limits).unwrap();
        let [log, _] = map(memory.try_clone().unwrap(), &limits).unwrap();
        let mut log = log.cleared();
        assert!(log.sink().is_none());
        // Killed after its first ticket, and after the partner had accepted one output.
        save(log, 0);
        assert_eq!(read().sink().unwrap().accepted, 0);
        let mut log = read();
        let _ = log.sink();
        log.end_push(1, None);
        assert_eq!(read().sink().unwrap().accepted, 1);
    }

    /// The partner of a rebuilt path still writes a part of an output of the session before.
    #[test]
    fn a_part_of_an_earlier_session_is_abandoned() {
        let limits = Limits::default();
        let memory = memory(&limits).unwrap();
        let read = || map(memory.try_clone().unwrap(), &limits).unwrap().into_iter().next().unwrap();
        let mut log = read().cleared();
        let (flow, epoch, abandoned, next, lost, upcoming, trimmed_to) = (0, 1, 0, 0, 0, None, (0, 0));
        let ticket = SinkTicket { flow, epoch, abandoned, next, lost, upcoming, trimmed_to };
        log.save_ticket(&FlowTicket::Sink(ticket), "");
        log.end_push(0, Some(9));
        let mut log = read();
        let saved = log.sink().unwrap();
        assert_eq!((saved.accepted, saved.partial_bytes, log.abandoned()), (0, 0, Some(9)));
    }
}
