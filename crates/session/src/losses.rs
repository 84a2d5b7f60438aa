//! Lost messages of reliable flows, counted by reason.
//!
//! The device host reports its own with [`Control::Lost`]. A flow may lose a thousand messages a second, one by one. So losses
//! are added up and reported after [`INTERVAL`], or before the message that lets the flow end on the application host, if
//! that is earlier.

use contract::Time;
use std::collections::BTreeMap;
use std::time::Duration;
use wire::{Control, FlowControl};

/// Time for which losses are added up.
const INTERVAL: Duration = Duration::from_millis(100);
/// Most reasons of one driver that are counted apart.
const REASONS_MAX: usize = 64;

/// The lost messages of one driver, by reason.
#[derive(Debug, Default)]
pub struct LossCounts(BTreeMap<String, u64>);

impl LossCounts {
    /// Counts lost messages. Returns whether the reason is new.
    pub fn add(&mut self, reason: String, messages: u64) -> bool {
        // A worker or the peer chooses the reasons, and is not trusted.
        let is_known = self.0.len() < REASONS_MAX || self.0.contains_key(&reason);
        let reason = if is_known { reason } else { "other reasons".into() };
        let count = self.0.entry(reason).or_default();
        let is_new = *count == 0;
        *count = count.saturating_add(messages);
        is_new
    }

    /// Returns the reasons, and their messages.
    pub fn iter(&self) -> impl Iterator<Item = (&String, u64)> {
        self.0.iter().map(|(reason, count)| (reason, *count))
    }
}

/// Losses that are not reported yet.
#[derive(Debug)]
pub struct UnreportedLosses {
    /// The peer has the feature [`LOSSES`](crate::features::LOSSES); `None`: unknown until it returns.
    is_wanted: Option<bool>,
    /// By driver.
    counts: BTreeMap<u32, LossCounts>,
    due_at: Time,
}

impl UnreportedLosses {
    /// Creates an empty list. `is_wanted`: the peer has the feature; `None` if that is unknown until it returns.
    pub fn new(is_wanted: Option<bool>) -> UnreportedLosses {
        UnreportedLosses { is_wanted, counts: BTreeMap::new(), due_at: Time(u64::MAX) }
    }

    /// Records whether the peer, on its new connection, has the feature.
    pub fn set_wanted(&mut self, is_wanted: bool) {
        self.is_wanted = Some(is_wanted);
        if !self.counts.is_empty() {
            self.due_at = Time::ZERO;
        }
    }

    /// Adds a loss.
    pub fn add(&mut self, driver: u32, reason: String, messages: u64, now: Time) {
        if self.counts.is_empty() {
            self.due_at = now.after(INTERVAL);
        }
        self.counts.entry(driver).or_default().add(reason, messages);
    }

    /// Returns the time of the next report.
    pub fn due_at(&self) -> Time {
        self.due_at
    }

    /// Takes the messages that report all losses. Empty while it is unknown whether the peer has the feature.
    pub fn take(&mut self) -> Vec<Control> {
        self.due_at = Time(u64::MAX);
        let Some(is_wanted) = self.is_wanted else { return Vec::new() };
        let all = std::mem::take(&mut self.counts).into_iter().filter(|_| is_wanted);
        let of_driver = |(driver, counts): (u32, LossCounts)| {
            counts.0.into_iter().map(move |(reason, messages)| Control::Lost { driver, messages, reason })
        };
        all.flat_map(of_driver).collect()
    }

    /// Returns whether losses must be reported before this message, after which the flow may end on the application host.
    pub fn precede(message: &FlowControl) -> bool {
        matches!(message, FlowControl::End { .. } | FlowControl::Acknowledge { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_added_up_and_reported_to_a_peer_with_the_feature() {
        let mut losses = UnreportedLosses::new(None);
        losses.add(3, "a".into(), 1, Time::ZERO);
        losses.add(3, "a".into(), 2, Time::from_millis(50));
        losses.add(4, "b".into(), u64::MAX, Time::from_millis(60));
        assert_eq!(losses.due_at(), Time::from_millis(100));
        assert_eq!(losses.take(), []);
        losses.set_wanted(true);
        assert_eq!(losses.due_at(), Time::ZERO);
        let lost = |driver, messages, reason: &str| Control::Lost { driver, messages, reason: reason.into() };
        assert_eq!(losses.take(), [lost(3, 3, "a"), lost(4, u64::MAX, "b")]);
        assert_eq!((losses.take(), losses.due_at()), (vec![], Time(u64::MAX)));
        let mut others = UnreportedLosses::new(Some(false));
        others.add(3, "a".into(), 1, Time::ZERO);
        assert_eq!(others.take(), []);
    }

    #[test]
    fn the_reasons_of_a_peer_are_bounded() {
        let mut counts = LossCounts::default();
        (0..1000).for_each(|number| _ = counts.add(number.to_string(), 1));
        assert_eq!(counts.iter().count(), REASONS_MAX + 1);
        assert_eq!(counts.iter().map(|(_, count)| count).sum::<u64>(), 1000);
        assert!(!counts.add("7".into(), u64::MAX));
    }
}
