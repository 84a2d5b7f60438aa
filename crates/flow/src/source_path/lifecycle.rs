//! The end of a flow at its source.
//!
//! ```text
//! Reading ──► Draining ──► Drained ──► EndSent ──► Settled ──► Reopened
//!                             ▲           │           ▲            │
//!                             └───────────┘           └────────────┘
//! ```
//!
//! | state | event | next state | action |
//! |---|---|---|---|
//! | `Reading` | the device has no further message | `Draining` | stop reading |
//! | `Draining` | the stages have released everything, or time out | `Drained` | |
//! | `Drained` | linked, and every record was sent | `EndSent` | send `End` |
//! | `EndSent` | every record is acknowledged | `Settled` | report the end of the flow |
//! | `EndSent` | a new link or a new epoch | `Drained` | |
//! | `Settled` | a new link or a new epoch | `Reopened` | |
//! | `Reopened` | linked, and every record was sent | `Settled` | send `End` |
//!
//! `End` is not retransmitted on a link. A new link or a new epoch therefore needs it again. The end of the flow is
//! reported once.

/// Progress of a flow towards its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Lifecycle {
    /// The device may have further messages.
    #[default]
    Reading,
    /// The stages may hold messages.
    Draining,
    /// The sink needs `End`.
    Drained,
    /// `End` was sent.
    EndSent,
    /// The sink has received everything.
    Settled,
    /// The sink had received everything, but needs `End` again.
    Reopened,
}

impl Lifecycle {
    /// Handles the end of the device's messages.
    pub(super) fn handle_device_end(&mut self) {
        if *self == Lifecycle::Reading {
            *self = Lifecycle::Draining;
        }
    }

    /// Handles the end of the stages' output.
    pub(super) fn handle_drained(&mut self) {
        if *self == Lifecycle::Draining {
            *self = Lifecycle::Drained;
        }
    }

    /// Handles a new link or a new epoch: the sink has not received `End` there.
    pub(super) fn handle_fresh_start(&mut self) {
        *self = match *self {
            Lifecycle::EndSent => Lifecycle::Drained,
            Lifecycle::Settled => Lifecycle::Reopened,
            other => other,
        };
    }

    /// Handles that every record was sent. Returns whether `End` must be sent now.
    pub(super) fn handle_all_sent(&mut self) -> bool {
        *self = match *self {
            Lifecycle::Drained => Lifecycle::EndSent,
            Lifecycle::Reopened => Lifecycle::Settled,
            _ => return false,
        };
        true
    }

    /// Handles that every record is acknowledged. Returns whether the end of the flow must be reported now.
    pub(super) fn handle_settled(&mut self) -> bool {
        let is_settled = *self == Lifecycle::EndSent;
        if is_settled {
            *self = Lifecycle::Settled;
        }
        is_settled
    }

    /// Returns whether the device has no further message.
    pub(super) fn has_ended(self) -> bool {
        self != Lifecycle::Reading
    }

    /// Returns whether the stages may still hold messages after the end of the device's.
    pub(super) fn is_draining(self) -> bool {
        self == Lifecycle::Draining
    }

    /// Returns whether the stages have released everything.
    pub(super) fn is_drained(self) -> bool {
        !matches!(self, Lifecycle::Reading | Lifecycle::Draining)
    }

    /// Returns whether the flow has ended and its end was not reported yet.
    pub(super) fn is_ending(self) -> bool {
        matches!(self, Lifecycle::Draining | Lifecycle::Drained | Lifecycle::EndSent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_sent_on_each_link_and_reported_once() {
        let mut lifecycle = Lifecycle::default();
        assert!(!lifecycle.handle_all_sent() && !lifecycle.has_ended());
        lifecycle.handle_device_end();
        assert!(lifecycle.is_draining() && !lifecycle.handle_all_sent());
        lifecycle.handle_drained();
        for is_reported in [false, true] {
            assert!(lifecycle.handle_all_sent());
            assert!(!lifecycle.handle_all_sent(), "once on a link");
            lifecycle.handle_fresh_start();
            assert!(lifecycle.handle_all_sent());
            assert_eq!(lifecycle.handle_settled(), !is_reported);
            assert!(!lifecycle.handle_settled() && !lifecycle.is_ending());
            lifecycle.handle_fresh_start();
        }
    }
}
