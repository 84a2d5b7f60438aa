//! What several frames of mere motion say together.

use super::code::*;
use super::{EVENTS_MAX, Event};
use std::collections::BTreeMap;

/// Whether a frame says nothing but how far and where to: what may be joined with its neighbours. What a
/// hand presses (keys, a hat) and what tells one finger or tool from another are no motion.
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

/// Frames of mere motion taken together, each thing as what it is: distances add up, a position is where it
/// last was or the mean of where it was, of times the last counts. Positions of one finger (the slot that
/// `ABS_MT_SLOT` selected) never mix with another's.
#[derive(Debug, Clone, Default)]
pub struct Movement {
    distances: BTreeMap<u16, i32>,
    /// By finger and axis; an axis that no finger has, and those before a finger was selected, by none.
    positions: BTreeMap<(Option<i32>, u16), Positions>,
    timestamp: Option<i32>,
    /// The finger that the device selected last, and the one that whoever gets the frames has selected.
    selected: Option<i32>,
    told: Option<i32>,
}

/// Where an axis was.
#[derive(Debug, Clone, Copy, Default)]
struct Positions {
    sum: i64,
    /// None is an axis whose mean was told and that stands elsewhere.
    count: u32,
    last: i32,
}

impl Positions {
    /// The mean, rounded to the nearest.
    fn mean(&self) -> i32 {
        match i64::from(self.count) {
            0 => self.last,
            // A mean lies among what it is of.
            count => ((self.sum + self.sum.signum() * (count / 2)) / count) as i32,
        }
    }
}

impl Movement {
    /// Takes a frame in; `false`, and nothing taken, if it is more than mere motion ([`is_motion`]) or there
    /// would be more than fits a frame.
    pub fn add(&mut self, events: &[Event]) -> bool {
        // Each position may take an event of its own to select its finger.
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

    /// Notes the finger that a frame selects which goes its own way. What was taken in must have left before.
    pub fn pass(&mut self, events: &[Event]) {
        let is_selection = |event: &&Event| (event.kind, event.code) == (EV_ABS, ABS_MT_SLOT);
        if let Some(selection) = events.iter().rfind(is_selection) {
            self.selected = Some(selection.value);
            self.told = self.selected;
        }
    }

    /// Whether there is nothing to tell.
    pub fn is_empty(&self) -> bool {
        self.distances.is_empty()
            && self.positions.is_empty()
            && self.timestamp.is_none()
            && self.selected == self.told
    }

    /// The events of one frame that leads to where everything is now.
    pub fn take_last(&mut self) -> Vec<Event> {
        let events = self.events(|positions| positions.last);
        self.positions.clear();
        events
    }

    /// The events of one frame with the mean of every position. An axis that stands elsewhere is in the next
    /// frame, where it stands, unless it has moved again.
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
