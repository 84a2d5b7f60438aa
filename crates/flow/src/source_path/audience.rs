//! The peer's view of a flow: decides whether the source reads, drops or retransmits.
//!
//! | view | reliable flow | state flow | timely flow |
//! |---|---|---|---|
//! | `Unlinked` | messages wait in the device | messages are dropped | messages are dropped |
//! | `Silent` | – | messages are dropped | messages are dropped |
//! | `Stale` | – | messages are dropped | messages are sent if there is a link |
//! | `Following` | messages are sent or stored | messages are sent or stored | messages are sent if there is a link |
//!
//! | view | event | next view | action |
//! |---|---|---|---|
//! | any, reliable | a new link | `Following` | retransmit |
//! | `Following`, state | a new link | `Following` | retransmit |
//! | `Silent` | a new link | `Silent` | |
//! | any other | a new link | `Stale` | begin an epoch |
//! | any, not reliable | silence | `Silent` | |
//! | `Silent` | the end of the silence | `Stale` | begin an epoch, if there is a link |
//! | any but `Silent`, not reliable | `Resync` | `Stale` | begin an epoch, if there is a link |
//! | any but `Silent`, state | the device returned | `Stale` | begin an epoch, if there is a link |
//! | `Stale` | an epoch begins | `Following` | send `Epoch`, request a snapshot |
//!
//! A reliable flow is stored while the peer is silent, so it never needs a new view.

use contract::FlowClass;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum View {
    /// There was no link yet.
    Unlinked,
    /// The peer is silent and may not receive anything.
    Silent,
    /// The peer is not silent, but it missed messages. The next epoch begins as soon as there is a link.
    Stale,
    /// The peer has received, or will receive, everything of this epoch.
    Following,
}

/// The peer's view of one flow.
#[derive(Debug, Clone, Copy)]
pub(super) struct Audience {
    class: FlowClass,
    view: View,
}

impl Audience {
    /// The view of a peer without a link.
    pub(super) fn new(class: FlowClass) -> Audience {
        Audience { class, view: View::Unlinked }
    }

    /// Handles a new link. Returns whether the epoch continues: then unacknowledged records are retransmitted.
    pub(super) fn handle_link(&mut self) -> bool {
        if self.class == FlowClass::Reliable {
            self.view = View::Following;
        }
        self.class != FlowClass::Timely && self.view == View::Following
    }

    /// Handles the peer's silence.
    pub(super) fn handle_silence(&mut self) {
        if self.class != FlowClass::Reliable {
            self.view = View::Silent;
        }
    }

    /// Handles the end of the peer's silence. Returns whether the peer was silent.
    pub(super) fn handle_silence_end(&mut self) -> bool {
        let was_silent = self.view == View::Silent;
        if was_silent {
            self.view = View::Stale;
        }
        was_silent
    }

    /// Handles that the peer missed messages. Returns whether a new epoch is needed as soon as there is a link.
    pub(super) fn handle_gap(&mut self) -> bool {
        let is_needed = self.class != FlowClass::Reliable && self.view != View::Silent;
        if is_needed {
            self.view = View::Stale;
        }
        is_needed
    }

    /// Handles the start of an epoch that does not continue the previous one.
    pub(super) fn handle_epoch(&mut self) {
        // A reliable flow follows from its first link on.
        if self.class != FlowClass::Reliable {
            self.view = View::Following;
        }
    }

    /// Returns whether messages may be read from the device.
    pub(super) fn may_read(&self) -> bool {
        self.class != FlowClass::Reliable || self.view != View::Unlinked
    }

    /// Returns whether messages are dropped now. A state flow sends a snapshot later; for a timely flow late messages
    /// are useless.
    pub(super) fn is_dropping(&self, linked: bool) -> bool {
        match self.class {
            FlowClass::Reliable => false,
            FlowClass::State => self.view != View::Following,
            FlowClass::Timely => self.view == View::Silent || !linked,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reliable_flow_waits_for_its_first_link_only() {
        let mut audience = Audience::new(FlowClass::Reliable);
        audience.handle_epoch();
        assert!(!audience.may_read() && !audience.is_dropping(false));
        assert!(audience.handle_link());
        audience.handle_silence();
        assert!(audience.may_read() && !audience.is_dropping(false));
        assert!(!audience.handle_silence_end() && !audience.handle_gap());
    }

    #[test]
    fn a_state_flow_drops_until_an_epoch_begins() {
        let mut audience = Audience::new(FlowClass::State);
        assert!(audience.may_read() && audience.is_dropping(false));
        assert!(!audience.handle_link() && audience.handle_gap());
        audience.handle_epoch();
        assert!(audience.handle_link() && !audience.is_dropping(false));
        audience.handle_silence();
        assert!(!audience.handle_link() && !audience.handle_gap(), "a silent peer needs no epoch yet");
        assert!(audience.is_dropping(true));
        assert!(audience.handle_silence_end() && audience.handle_gap());
    }

    #[test]
    fn a_timely_flow_begins_an_epoch_on_each_link() {
        let mut audience = Audience::new(FlowClass::Timely);
        for _ in 0..2 {
            assert!(!audience.handle_link() && audience.handle_gap());
            audience.handle_epoch();
            assert!(!audience.is_dropping(true) && audience.is_dropping(false));
        }
    }
}
