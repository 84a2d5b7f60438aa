//! Joins frames of pure motion into one.

use super::code::*;
use super::{EVENTS_MAX, Event};
use std::collections::BTreeMap;

/// Returns true if a frame holds only distances and positions, so that it may be joined with its neighbours. A
/// frame with a key or hat press, or one that distinguishes fingers or tools, is not pure motion.
pub fn is_motion(events: &[Event]) -> bool {
    !events.is_empty()
        && events.iter().all(|event| match event.kind {
            EV_REL => true,
            EV_ABS => !matches!(
                event.code,
                ABS_HAT0X
                    ..=ABS_HAT3Y
                        | ABS_PROFILE
                        | ABS_MISC
                        | ABS_MT_TOOL_TYPE
                        | ABS_MT_BLOB_ID
                        | ABS_MT_TRACKING_ID
            ),
            EV_MSC => event.code == MSC_TIMESTAMP,
            _ => false,
        })
}

/// Joined frames of pure motion. Distances are added. A position is the last one or the mean of all. Of
/// timestamps the last one counts. Positions of different fingers (the slot that `ABS_MT_SLOT` selected) are
/// never mixed.
#[derive(Debug, Clone, Default)]
pub struct Movement {
    distances: BTreeMap<u16, i32>,
    /// By finger and axis. `None` for an axis that belongs to no finger, and before a finger is selected.
    positions: BTreeMap<(Option<i32>, u16), Positions>,
    timestamp: Option<i32>,
    /// The finger that the device selected last, and the finger selected in the output.
    selected: Option<i32>,
    told: Option<i32>,
}

/// The positions of one axis.
#[derive(Debug, Clone, Copy, Default)]
struct Positions {
    sum: i64,
    /// The number of positions; 0 if the mean was sent but the axis is at another position.
    count: u32,
    last: i32,
}

impl Positions {
    /// The mean, rounded to the nearest integer.
    fn mean(&self) -> i32 {
        match i64::from(self.count) {
            0 => self.last,
            // The mean is within the range of its values, so it fits.
            count => ((self.sum + self.sum.signum() * (count / 2)) / count) as i32,
        }
    }
}

impl Movement {
    /// Adds a frame. Returns `false` without any change if the frame is not pure motion ([`is_motion`]) or the
    /// result would not fit a frame.
    pub fn add(&mut self, events: &[Event]) -> bool {
        // Each position may need a further event to select its finger.
        let events_max = 2 * (self.distances.len() + self.positions.len() + events.len() + 1);
        if events_max > EVENTS_MAX || !is_motion(events) {
            return false;
        }
        for event in events {
            match (event.kind, event.code) {
                (EV_REL, code) => {
                    let distance = self.distances.entry(code).or_default();
                    *distance = distance.saturating_add(event.value);
                }
                (EV_ABS, ABS_MT_SLOT) => self.selected = Some(event.value),
                (EV_ABS, code) => {
                    let finger = self.selected.filter(|_| code > ABS_MT_SLOT);
                    let positions = self.positions.entry((finger, code)).or_default();
                    positions.sum = positions.sum.saturating_add(event.value.into());
                    positions.count = positions.count.saturating_add(1);
                    positions.last = event.value;
                }
                _ => self.timestamp = Some(event.value),
            }
        }
        true
    }

    /// Records the selected finger of a frame that is sent separately. The joined frames must be sent before
    /// it.
    pub fn pass(&mut self, events: &[Event]) {
        let is_selection = |event: &&Event| (event.kind, event.code) == (EV_ABS, ABS_MT_SLOT);
        if let Some(selection) = events.iter().rfind(is_selection) {
            self.selected = Some(selection.value);
            self.told = self.selected;
        }
    }

    /// Returns true if no output is pending.
    pub fn is_empty(&self) -> bool {
        self.distances.is_empty()
            && self.positions.is_empty()
            && self.timestamp.is_none()
            && self.selected == self.told
    }

    /// Returns the events of one frame that moves everything to its last position.
    pub fn take_last(&mut self) -> Vec<Event> {
        let events = self.events(|positions| positions.last);
        self.positions.clear();
        events
    }

    /// Returns the events of one frame with the mean of every position. If the last position of an axis
    /// differs, the next frame holds it, unless the axis moves again.
    pub fn take_mean(&mut self) -> Vec<Event> {
        let events = self.events(Positions::mean);
        self.positions.retain(|_, positions| positions.mean() != positions.last);
        self.positions.values_mut().for_each(|positions| (positions.sum, positions.count) = (0, 0));
        events
    }

    fn events(&mut self, position: impl Fn(&Positions) -> i32) -> Vec<Event> {
        let mut events = Vec::with_capacity(self.distances.len() + self.positions.len() + 2);
        let mut told = self.told;
        for ((finger, code), positions) in &self.positions {
            if finger.is_some() && *finger != told {
                events.extend(finger.map(|finger| Event::new(EV_ABS, ABS_MT_SLOT, finger)));
                told = *finger;
            }
            events.push(Event::new(EV_ABS, *code, position(positions)));
        }
        if let Some(selected) = self.selected.filter(|_| self.selected != told) {
            events.push(Event::new(EV_ABS, ABS_MT_SLOT, selected));
        }
        self.told = self.selected;
        events.extend(self.distances.iter().map(|(code, distance)| Event::new(EV_REL, *code, *distance)));
        events.extend(self.timestamp.take().map(|time| Event::new(EV_MSC, MSC_TIMESTAMP, time)));
        self.distances.clear();
        events
    }
}
