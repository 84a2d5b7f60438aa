//! Starts that a camera refuses for now: another program uses it, or its bus is full. It is tried again, and counts as absent
//! after a while.
//!
//! | state | event | next state |
//! |---|---|---|
//! | `None` (initial) | a start is refused | `Waiting` |
//! | `Waiting` | a start is refused, `WAIT_MAX` after the first | `Absent` |
//! | | the camera starts, or is not wanted any more | `None` |
//! | `Absent` | the camera starts | `None` |

use contract::{Presence, Time};
use rustix::io::Errno;
use std::io;
use std::time::Duration;

/// The time that starts may be refused before the camera counts as absent: programs take turns, and frames that are lent out
/// keep a camera busy, too.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// The interval between two tries before that.
const WAIT_INTERVAL: Duration = Duration::from_millis(20);
/// The interval between two tries of an absent camera.
const ABSENT_INTERVAL: Duration = Duration::from_secs(1);

/// Returns the reason of a refusal that may pass; `None` for any other error.
pub(super) fn reason(error: &io::Error) -> Option<&'static str> {
    match Errno::from_io_error(error)? {
        Errno::BUSY => Some("in use by another program"),
        Errno::NOSPC => Some(
            "the USB bus has no bandwidth left for this camera: another port, a smaller `size` or `rate`, or `pixels=MJPG`",
        ),
        _ => None,
    }
}

/// The refused starts since the last start; see the table above.
#[derive(Debug, Clone, Copy, Default)]
enum State {
    #[default]
    None,
    Waiting {
        since: Time,
    },
    Absent(&'static str),
}

/// The refused starts of a camera.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    state: State,
    /// The time of the next try; in the past without refusals.
    retry_at: Time,
    /// The camera was last reported as absent.
    is_reported: bool,
}

impl Refusals {
    /// The time of the next try; `None` if the camera may be started at once.
    pub(super) fn retry_at(&self) -> Option<Time> {
        match self.state {
            State::None => None,
            State::Waiting { .. } | State::Absent(_) => Some(self.retry_at),
        }
    }

    /// Handles a refused start.
    pub(super) fn refused(&mut self, reason: &'static str, now: Time) {
        self.state = match self.state {
            State::None => State::Waiting { since: now },
            State::Waiting { since } if now.since(since) >= WAIT_MAX => State::Absent(reason),
            state => state,
        };
        let is_absent = matches!(self.state, State::Absent(_));
        self.retry_at = now.after(if is_absent { ABSENT_INTERVAL } else { WAIT_INTERVAL });
    }

    /// Handles a start.
    pub(super) fn started(&mut self) {
        self.state = State::None;
    }

    /// Handles that the camera is not wanted any more. An absent one stays absent: nobody tries whether it is free.
    pub(super) fn stopped(&mut self) {
        if let State::Waiting { .. } = self.state {
            self.state = State::None;
        }
    }

    /// Returns the change of the camera's presence since the last call.
    pub(super) fn presence(&mut self) -> Option<Presence> {
        match (self.state, self.is_reported) {
            (State::Absent(reason), false) => {
                self.is_reported = true;
                Some(Presence::Absent(reason.into()))
            }
            (State::None, true) => {
                self.is_reported = false;
                Some(Presence::Present)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Refuses all starts for so long, at the times that it asks for. Returns the number of tries and the reports.
    fn refuse(refusals: &mut Refusals, now: &mut Time, duration: Duration) -> (u32, Vec<Presence>) {
        let (end, mut tries, mut reports) = (now.after(duration), 0, Vec::new());
        while *now < end {
            refusals.refused("busy", *now);
            tries += 1;
            reports.extend(refusals.presence());
            *now = refusals.retry_at().unwrap();
        }
        (tries, reports)
    }

    #[test]
    fn a_camera_that_another_program_uses_is_reported_once_and_once_when_it_is_free() {
        let (mut refusals, mut now) = (Refusals::default(), Time::from_millis(5000));
        let (tries, reports) = refuse(&mut refusals, &mut now, Duration::from_secs(3600));
        assert_eq!(reports, [Presence::Absent("busy".into())]);
        assert!((3600..3700).contains(&tries), "{tries} tries in an hour");
        refusals.stopped();
        assert_eq!(refusals.presence(), None, "nobody has tried whether it is free");
        refusals.started();
        assert_eq!((refusals.presence(), refusals.presence()), (Some(Presence::Present), None));
        assert_eq!(refusals.retry_at(), None);
    }

    #[test]
    fn a_camera_that_is_free_soon_is_not_reported() {
        let (mut refusals, mut now) = (Refusals::default(), Time::from_millis(5000));
        for pause in 0..3 {
            let (_, reports) = refuse(&mut refusals, &mut now, Duration::from_millis(900));
            assert_eq!(reports, []);
            if pause == 1 {
                refusals.stopped()
            } else {
                refusals.started()
            }
            assert_eq!((refusals.presence(), refusals.retry_at()), (None, None));
        }
    }

    #[test]
    fn refusals_that_may_pass_have_a_reason() {
        let of = |errno: Errno| reason(&errno.into());
        assert_eq!(of(Errno::BUSY), Some("in use by another program"));
        let full = of(Errno::NOSPC).unwrap();
        for part in ["USB bus has no bandwidth", "another port", "`size`", "`rate`", "`pixels=MJPG`"] {
            assert!(full.contains(part), "{full}");
        }
        assert_eq!((of(Errno::NODEV), of(Errno::IO)), (None, None));
        assert_eq!(reason(&io::Error::other("no error of the system")), None);
    }
}
