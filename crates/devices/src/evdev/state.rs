//! State of a device's keys, switches, axes and fingers, and the events that lead from one state to another.
//!
//! Fingers follow the kernel's multitouch protocol B (`multi-touch-protocol.rst`): `ABS_MT_SLOT` selects a slot, and
//! `ABS_MT_TRACKING_ID` identifies the finger in it; -1 means that the slot is empty.

use super::properties::Properties;
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;
use sys::input::code::*;
use sys::input::{Axis, Bits, Event, evdev};

/// Axes of a finger (`ABS_MT_TOUCH_MAJOR` to `ABS_MT_TOOL_Y`).
const FINGER_AXES: usize = (ABS_MT_TOOL_Y - ABS_MT_TOUCH_MAJOR + 1) as usize;

/// Index of the tracking ID among a finger's axes.
const TRACKING_ID: usize = (ABS_MT_TRACKING_ID - ABS_MT_TOUCH_MAJOR) as usize;

/// An axis is at rest within this share of its range: a quarter of the way of a stick, as games assume too.
const REST_SHARE: u32 = 8;

/// Axes of sticks, wheels, throttles and pedals. A device reports all of them at once.
const POSITIONS: RangeInclusive<u16> = ABS_X..=ABS_BRAKE;

/// Axes that are pedals of some wheels.
const PEDALS: [u16; 5] = [ABS_Y, ABS_Z, ABS_RZ, ABS_GAS, ABS_BRAKE];

type Finger = [i32; FINGER_AXES];

/// State of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct State {
    pub(super) keys: Bits,
    pub(super) switches: Bits,
    pub(super) lights: Bits,
    axes: [i32; ABS_CNT],
    fingers: Vec<Finger>,
    /// The selected slot.
    slot: usize,
}

fn finger_axis(code: u16) -> Option<usize> {
    let at = usize::from(code).checked_sub(ABS_MT_TOUCH_MAJOR.into())?;
    (at < FINGER_AXES).then_some(at)
}

/// The value of an axis that is not known: no axis has it.
const UNKNOWN: i32 = i32::MIN;

impl State {
    /// Returns the state of an untouched device, with the axes of its description.
    pub(super) fn new(properties: &Properties) -> State {
        let mut finger = [0; FINGER_AXES];
        finger[TRACKING_ID] = -1;
        let mut axes = [0; ABS_CNT];
        properties.axes.iter().for_each(|(code, axis)| axes[usize::from(*code)] = axis.value);
        State {
            keys: Bits::new(),
            switches: Bits::new(),
            lights: Bits::new(),
            axes,
            fingers: vec![finger; properties.slots()],
            slot: 0,
        }
    }

    /// Returns the worst-case state of a node that another process has driven: all keys and fingers are down, and no axis has
    /// the value that it will get.
    pub(super) fn all_pressed(properties: &Properties) -> State {
        let mut state = State::new(properties);
        state.keys = properties.codes(EV_KEY);
        let axes = properties.axes.keys().filter(|code| is_plain(**code));
        axes.for_each(|code| state.axes[usize::from(*code)] = UNKNOWN);
        state.fingers.iter_mut().for_each(|finger| finger[TRACKING_ID] = 0);
        state
    }

    /// Reads the state of an event node.
    pub(super) fn read(node: BorrowedFd<'_>, properties: &Properties) -> io::Result<State> {
        let mut state = State::new(properties);
        state.keys = evdev::state(node, EV_KEY)?;
        state.switches = evdev::state(node, EV_SW)?;
        state.lights = evdev::state(node, EV_LED)?;
        for code in properties.axes.keys() {
            match (finger_axis(*code), state.fingers.len()) {
                (None, _) => state.axes[usize::from(*code)] = evdev::axis(node, *code)?.value,
                (Some(_), 0) => {}
                (Some(axis), count) => {
                    let values = evdev::slots(node, *code, count)?;
                    state.fingers.iter_mut().zip(values).for_each(|(finger, value)| finger[axis] = value);
                }
            }
        }
        if !state.fingers.is_empty() {
            state.select(state.axes[usize::from(ABS_MT_SLOT)]);
        }
        Ok(state)
    }

    fn select(&mut self, slot: i32) {
        if let Ok(slot) = usize::try_from(slot)
            && slot < self.fingers.len()
        {
            self.slot = slot;
        }
    }

    /// Applies an event.
    pub(super) fn apply(&mut self, event: Event) {
        let is_on = event.value != 0;
        match (event.kind, event.code) {
            (EV_KEY, code) => _ = self.keys.set(code, is_on),
            (EV_SW, code) => _ = self.switches.set(code, is_on),
            (EV_LED, code) => _ = self.lights.set(code, is_on),
            (EV_ABS, ABS_MT_SLOT) => self.select(event.value),
            (EV_ABS, code) => {
                if let Some(value) = self.axis_mut(code) {
                    *value = event.value;
                }
            }
            _ => {}
        }
    }

    /// Returns the value of an absolute axis, for a finger's axis in the selected slot. `None` for a finger's axis on a
    /// device without slots, whose fingers have no state.
    pub(super) fn axis(&self, code: u16) -> Option<i32> {
        match finger_axis(code) {
            None => self.axes.get(usize::from(code)).copied(),
            Some(axis) => self.fingers.get(self.slot).map(|finger| finger[axis]),
        }
    }

    fn axis_mut(&mut self, code: u16) -> Option<&mut i32> {
        match finger_axis(code) {
            None => self.axes.get_mut(usize::from(code)),
            Some(axis) => self.fingers.get_mut(self.slot).map(|finger| &mut finger[axis]),
        }
    }

    /// Takes the values of the first report into a description that was made before it: they tell where the axes rest.
    /// `events`: events of the device, after which this is the state.
    pub(super) fn learn_rest(&self, properties: &mut Properties, events: &[Event]) {
        let is_report =
            |event: &Event| event.kind == EV_ABS && POSITIONS.contains(&event.code) && event.value != 0;
        if has_reported(properties) || !events.iter().any(is_report) {
            return;
        }
        for (code, axis) in properties.axes.range_mut(POSITIONS) {
            let value = self.axes[usize::from(*code)];
            axis.value = if value == UNKNOWN { axis.value } else { value };
        }
    }

    /// Returns true if no key but those in `except` is down, no finger is on the device, and the sticks, hats and pedals of a
    /// joystick and the cap of a 3D mouse are at rest, or have not reported yet. A stick that nobody touches is seldom exactly
    /// in its middle.
    pub(super) fn is_neutral(&self, properties: &Properties, except: &Bits) -> bool {
        let is_at_rest = |(code, axis): (&u16, &Axis)| {
            let Some(rest) = rest(properties, *code, axis) else { return true };
            // A cap has springs: it rests in its middle.
            let play =
                if properties.is_joystick() { axis.maximum.abs_diff(axis.minimum) / REST_SHARE } else { 0 };
            let value = self.axes.get(usize::from(*code)).copied().unwrap_or(rest);
            value.abs_diff(rest) <= play.max(axis.flat.unsigned_abs())
        };
        self.keys.without(except).is_empty()
            && self.fingers.iter().all(|finger| finger[TRACKING_ID] < 0)
            && (!properties.has_rest() || !has_reported(properties) || properties.axes.iter().all(is_at_rest))
    }

    /// Returns a snapshot without the keys in `except`. It has no lights: they belong to the application.
    pub(super) fn snapshot(&self, properties: &Properties, except: &Bits) -> Vec<Event> {
        let mut events: Vec<Event> =
            self.keys.without(except).iter().map(|code| Event::new(EV_KEY, code, 1)).collect();
        for code in properties.codes(EV_SW).iter() {
            events.push(Event::new(EV_SW, code, self.switches.contains(code).into()));
        }
        for code in properties.axes.keys().filter(|code| is_plain(**code)) {
            events.push(Event::new(EV_ABS, *code, self.axes[usize::from(*code)]));
        }
        for (slot, finger) in self.fingers.iter().enumerate() {
            events.push(Event::new(EV_ABS, ABS_MT_SLOT, slot as i32));
            for (code, axis) in finger_axes(properties) {
                events.push(Event::new(EV_ABS, code, finger[axis]));
            }
        }
        events.extend(self.selection());
        events
    }

    /// Returns the event that selects the current slot, on a device with slots.
    fn selection(&self) -> Option<Event> {
        (!self.fingers.is_empty()).then(|| Event::new(EV_ABS, ABS_MT_SLOT, self.slot as i32))
    }

    /// Returns the state after a snapshot.
    pub(super) fn with_snapshot(&self, snapshot: &[Event]) -> State {
        let mut state = self.clone();
        state.keys = Bits::new();
        snapshot.iter().for_each(|event| state.apply(*event));
        state
    }

    /// Returns two frames that lead to `target`: releases, then presses. In a single frame one finger could turn into
    /// another without being lifted.
    pub(super) fn changes_to(&self, target: &State, properties: &Properties) -> [Vec<Event>; 2] {
        let mut released: Vec<Event> =
            self.keys.without(&target.keys).iter().map(|code| Event::new(EV_KEY, code, 0)).collect();
        let mut pressed: Vec<Event> =
            target.keys.without(&self.keys).iter().map(|code| Event::new(EV_KEY, code, 1)).collect();
        for (kind, from, to) in
            [(EV_SW, &self.switches, &target.switches), (EV_LED, &self.lights, &target.lights)]
        {
            released.extend(from.without(to).iter().map(|code| Event::new(kind, code, 0)));
            pressed.extend(to.without(from).iter().map(|code| Event::new(kind, code, 1)));
        }
        for code in properties.axes.keys().filter(|code| is_plain(**code)) {
            let value = target.axes[usize::from(*code)];
            if value != self.axes[usize::from(*code)] {
                pressed.push(Event::new(EV_ABS, *code, value));
            }
        }
        // The target's slot comes last: the kernel delays a slot selection until a finger in that slot changes, so a
        // final selection alone would not reach applications.
        let mut fingers: Vec<_> = self.fingers.iter().zip(&target.fingers).enumerate().collect();
        fingers.sort_by_key(|(slot, _)| *slot == target.slot);
        for (slot, (from, to)) in fingers {
            let select = Event::new(EV_ABS, ABS_MT_SLOT, slot as i32);
            let is_other_finger = from[TRACKING_ID] != to[TRACKING_ID];
            if is_other_finger && from[TRACKING_ID] >= 0 {
                released.extend([select, Event::new(EV_ABS, ABS_MT_TRACKING_ID, -1)]);
            }
            let changes: Vec<Event> = finger_axes(properties)
                .filter(|(_, axis)| from[*axis] != to[*axis])
                .filter(|(_, axis)| *axis != TRACKING_ID || to[TRACKING_ID] >= 0)
                .map(|(code, axis)| Event::new(EV_ABS, code, to[axis]))
                .collect();
            if !changes.is_empty() {
                pressed.push(select);
                // The tracking ID comes first, as in events of devices.
                pressed.extend(changes.iter().filter(|event| event.code == ABS_MT_TRACKING_ID));
                pressed.extend(changes.iter().filter(|event| event.code != ABS_MT_TRACKING_ID));
            }
        }
        if pressed.iter().chain(&released).any(|event| event.code == ABS_MT_SLOT && event.kind == EV_ABS)
            || self.slot != target.slot
        {
            pressed.extend(target.selection());
        }
        [released, pressed]
    }
}

fn is_plain(code: u16) -> bool {
    code != ABS_MT_SLOT && finger_axis(code).is_none()
}

fn finger_axes(properties: &Properties) -> impl Iterator<Item = (u16, usize)> {
    properties.axes.keys().filter_map(|code| finger_axis(*code).map(|axis| (*code, axis)))
}

/// Returns the snapshot of the neutral state: keys and buttons up, fingers lifted, sticks, hats, pedals and caps at rest.
/// Controls without a rest position (pens, throttles, switches) are not in it and keep their values.
pub(super) fn neutral(properties: &Properties) -> Vec<Event> {
    let mut events: Vec<Event> = Vec::new();
    if properties.has_rest() {
        let rests =
            properties.axes.iter().filter_map(|(code, axis)| Some((*code, rest(properties, *code, axis)?)));
        events.extend(rests.map(|(code, value)| Event::new(EV_ABS, code, value)));
    }
    if properties.axes.contains_key(&ABS_MT_TRACKING_ID) {
        for slot in 0..properties.slots() {
            events.push(Event::new(EV_ABS, ABS_MT_SLOT, slot as i32));
            events.push(Event::new(EV_ABS, ABS_MT_TRACKING_ID, -1));
        }
    }
    events
}

/// Returns the rest position of an axis, if it has one, from its value when the device was described, or at its first report
/// after that ([`State::learn_rest`]).
///
/// | axis | rest |
/// |---|---|
/// | stick, rudder, wheel, hat | the middle |
/// | pedal of a joystick with two pedals or more at their maximum | the nearest of minimum, middle and maximum |
/// | `ABS_Z`, `ABS_RZ`: a trigger on some gamepads, half a stick or a pedal on others | the nearer of minimum and middle |
/// | `ABS_GAS`, `ABS_BRAKE` | the minimum |
/// | these four before the first report | unknown: they keep their values |
fn rest(properties: &Properties, code: u16, axis: &Axis) -> Option<i32> {
    let middle = middle(axis);
    let from_middle = axis.value.abs_diff(middle);
    if PEDALS.contains(&code) && has_pedals_at_maximum(properties) {
        return Some(match axis.value.abs_diff(axis.minimum) {
            _ if is_at_maximum(axis) => axis.maximum,
            from_minimum if from_minimum < from_middle => axis.minimum,
            _ => middle,
        });
    }
    let is_nearer_middle = axis.minimum < 0 || from_middle < axis.value.abs_diff(axis.minimum);
    match code {
        ABS_X | ABS_Y | ABS_RX | ABS_RY | ABS_RUDDER | ABS_WHEEL | ABS_HAT0X..=ABS_HAT3Y => Some(middle),
        _ if !has_reported(properties) => None,
        ABS_Z | ABS_RZ => Some(if is_nearer_middle { middle } else { axis.minimum }),
        ABS_GAS | ABS_BRAKE => Some(axis.minimum),
        _ => None,
    }
}

/// Returns false if the axes of the description are older than the first report that the kernel let through: it polls many
/// devices only while a program has them open, and until then every axis is 0. Of a range without negative values that is
/// the end, and no stick or wheel is there while all else is at 0 too.
fn has_reported(properties: &Properties) -> bool {
    properties.axes.get(&ABS_X).is_none_or(|axis| axis.minimum < 0)
        || properties.axes.range(POSITIONS).any(|(_, axis)| axis.value != 0)
}

fn middle(axis: &Axis) -> i32 {
    ((i64::from(axis.minimum) + i64::from(axis.maximum)) / 2) as i32
}

fn is_at_maximum(axis: &Axis) -> bool {
    axis.value.abs_diff(axis.maximum) < axis.value.abs_diff(middle(axis))
}

/// Returns true if the device is a wheel with pedals that rest at their maximum. A single axis there is no evidence: it
/// may be a stick that somebody held when the device was described. Two are, except for the triggers of a gamepad.
fn has_pedals_at_maximum(properties: &Properties) -> bool {
    let pedals = PEDALS.iter().filter_map(|code| properties.axes.get(code));
    properties.is_joystick()
        && !properties.codes(EV_KEY).contains(BTN_GAMEPAD)
        && pedals.filter(|axis| is_at_maximum(axis)).count() >= 2
}
