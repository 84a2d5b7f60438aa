//! The state of a flow as its messages tell it: is a key, a button or an axis away from rest?
//!
//! The state of a device at rest harms nobody when the link is lost. So a session whose state flows are neutral may stay
//! quiet (`docs/design/idle.md`). A device class that knows its state answers [`contract::Ctl::IsNeutral`]. For the
//! others, such as the end of a hub, this module reads the messages.
//!
//! | format | not neutral while |
//! |---|---|
//! | `evdev` | a key is down, a hat is pressed; the rest of other axes is unknown |
//! | `viewer` | a key or a button is down |
//! | `motion` | a button is down, or the cap is not in its centre |
//! | `hid` | always: only the partner can read its reports |
//! | `midi` | a note sounds, a pedal is down |
//! | others | never: they have no state that a silence ends |

use contract::{Body, Ctl, CtlReply, FlowClass, FlowKey, Format, Partner};
use std::collections::BTreeSet;
use wire::formats::{evdev, midi, motion, viewer};

/// Keys that are counted, at most. More keys are not down at once; a peer that says so is not neutral.
const KEYS_MAX: usize = 256;
/// Event types and codes of the kernel (`linux/input-event-codes.h`).
const EV_KEY: u16 = 1;
const EV_ABS: u16 = 3;
const ABS_HAT0X: u16 = 0x10;
const ABS_HAT3Y: u16 = 0x17;
/// Controllers of MIDI that hold notes, and the first of those that end all notes.
const SUSTAIN: u8 = 64;
const SOSTENUTO: u8 = 66;
const SECOND_SUSTAIN: u8 = 69;
const ALL_SOUND_OFF: u8 = 120;
const ALL_NOTES_OFF: u8 = 123;
/// Marks a pedal among the notes.
const PEDAL: u32 = 1 << 16;
/// Marks a hat among the keys.
const HAT: u32 = 1 << 16;

/// Returns true if the silence of the peer ends a state of the flow: of every state flow, and of a reliable one whose format
/// has a state. Other reliable flows wait for the link with their partner as it is.
pub(crate) fn is_tracked(class: FlowClass, format: &Format) -> bool {
    class == FlowClass::State || class == FlowClass::Reliable && format.has_state()
}

/// The parts of one flow's state that are away from rest.
#[derive(Debug, Clone, Default)]
pub(crate) struct StateTracker {
    held: BTreeSet<u32>,
    /// Buttons of a viewer's pointer.
    buttons: u16,
    is_moved: bool,
}

impl StateTracker {
    /// Returns true if everything is at rest.
    pub(crate) fn is_neutral(&self) -> bool {
        self.held.is_empty() && self.buttons == 0 && !self.is_moved
    }

    /// Returns true if the state of a partner's flow is neutral, as the partner knows it or else as its messages tell it. A
    /// partner that is gone has no state.
    pub(crate) fn is_neutral_at(&self, partner: Option<&mut Box<dyn Partner>>, flow: FlowKey) -> bool {
        match partner.map(|partner| partner.ctl(flow, Ctl::IsNeutral)) {
            None => true,
            Some(Ok(CtlReply::Count(is_neutral))) => is_neutral != 0,
            Some(_) => self.is_neutral(),
        }
    }

    /// Handles that the partner went neutral.
    pub(crate) fn clear(&mut self) {
        *self = StateTracker::default();
    }

    /// Reads a message of this format. An invalid one changes nothing: the partner refuses it too.
    pub(crate) fn observe(&mut self, format: &Format, body: &mut Body) {
        match format {
            Format::Evdev => match evdev::Update::parse(body.as_slice()) {
                Ok(evdev::Update::Frame(events)) => self.handle_events(&events),
                Ok(evdev::Update::Snapshot(events)) => {
                    self.held.retain(|key| key & HAT != 0);
                    self.handle_events(&events);
                }
                _ => {}
            },
            Format::Viewer => match viewer::Event::parse(body.as_slice()) {
                Ok(viewer::Event::Key { keysym, pressed }) => self.set(keysym, pressed),
                Ok(viewer::Event::Pointer { buttons, .. }) => self.buttons = buttons,
                _ => {}
            },
            Format::Motion => match motion::Update::parse(body.as_slice()) {
                Ok(motion::Update::Motion(motion)) => self.is_moved = motion.axes != [0; motion::AXES],
                Ok(motion::Update::Button { number, pressed }) => self.set(number.into(), pressed),
                Ok(motion::Update::Snapshot { axes, pressed }) => {
                    self.is_moved = axes != [0; motion::AXES];
                    self.held.clear();
                    pressed.into_iter().for_each(|number| self.set(number.into(), true));
                }
                _ => {}
            },
            Format::Hid => self.is_moved = true,
            Format::Midi => {
                if let Ok(message) = midi::MidiMessage::parse(body.as_slice()) {
                    self.handle_midi(message.as_bytes());
                }
            }
            _ => {}
        }
    }

    /// Notes and pedals are keys with their channel.
    fn handle_midi(&mut self, message: &[u8]) {
        let [status, number, value] = *message else { return };
        let key = u32::from(status & 0xf) << 8 | u32::from(number);
        match (status & 0xf0, number) {
            (0x80, _) => self.set(key, false),
            (0x90, _) => self.set(key, value > 0),
            (0xb0, SUSTAIN | SOSTENUTO | SECOND_SUSTAIN) => self.set(PEDAL | key, value > 0),
            (0xb0, ALL_SOUND_OFF | ALL_NOTES_OFF..) => {
                self.held.retain(|held| held & PEDAL != 0 || held >> 8 != u32::from(status & 0xf));
            }
            _ => {}
        }
    }

    fn handle_events(&mut self, events: &[evdev::Event]) {
        for event in events {
            match (event.kind, event.code) {
                (EV_KEY, code) => self.set(code.into(), event.value != 0),
                (EV_ABS, code @ ABS_HAT0X..=ABS_HAT3Y) => self.set(HAT | u32::from(code), event.value != 0),
                _ => {}
            }
        }
    }

    fn set(&mut self, key: u32, is_held: bool) {
        match is_held {
            true if self.held.len() < KEYS_MAX => _ = self.held.insert(key),
            true => {}
            false => _ = self.held.remove(&key),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn neutral_after(format: &Format, messages: &[Vec<u8>]) -> bool {
        let mut tracker = StateTracker::default();
        for message in messages {
            tracker.observe(format, &mut Body::from(message.clone()));
        }
        tracker.is_neutral()
    }

    #[test]
    fn a_key_that_is_down_is_not_neutral() {
        let key = |value| evdev::Event { kind: EV_KEY, code: 30, value };
        let frame = |event| evdev::Update::Frame(vec![event]).to_bytes();
        let snapshot = evdev::Update::Snapshot(Vec::new()).to_bytes();
        let is_neutral = |messages: &[Vec<u8>]| neutral_after(&Format::Evdev, messages);
        assert!(!is_neutral(&[frame(key(1))]));
        assert!(!is_neutral(&[frame(key(1)), frame(key(2))]), "it repeats");
        assert!(is_neutral(&[frame(key(1)), frame(key(0))]));
        assert!(is_neutral(&[frame(key(1)), snapshot.clone()]), "the snapshot has no key");
        let hat = |value| frame(evdev::Event { kind: EV_ABS, code: ABS_HAT0X, value });
        assert!(!is_neutral(&[hat(-1), snapshot]), "a snapshot names only the keys");
        assert!(is_neutral(&[hat(-1), hat(0)]));
        assert!(is_neutral(&[b"nonsense".to_vec()]));
    }

    #[test]
    fn buttons_of_a_viewer_and_of_a_3d_mouse_count() {
        let pointer = |buttons| viewer::Event::Pointer { x: 5, y: 5, buttons }.to_bytes();
        assert!(!neutral_after(&Format::Viewer, &[pointer(1)]));
        assert!(neutral_after(&Format::Viewer, &[pointer(1), pointer(0)]));
        let key = |pressed| viewer::Event::Key { keysym: 97, pressed }.to_bytes();
        assert!(!neutral_after(&Format::Viewer, &[key(true), pointer(0)]));
        assert!(neutral_after(&Format::Viewer, &[key(true), key(false)]));
        let moved = motion::Update::Snapshot { axes: [0, 1, 0, 0, 0, 0], pressed: vec![] };
        assert!(!neutral_after(&Format::Motion, &[moved.to_bytes()]));
        assert!(neutral_after(&Format::Bytes, &[b"any".to_vec()]));
    }

    #[test]
    fn notes_and_pedals_of_midi_count() {
        let is_neutral = |messages: &[[u8; 3]]| {
            neutral_after(&Format::Midi, &messages.iter().map(|message| message.to_vec()).collect::<Vec<_>>())
        };
        assert!(!is_neutral(&[[0x90, 60, 1]]) && !is_neutral(&[[0x90, 60, 1], [0x81, 60, 0]]));
        assert!(is_neutral(&[[0x90, 60, 1], [0x80, 60, 0]]) && is_neutral(&[[0x90, 60, 1], [0x90, 60, 0]]));
        assert!(
            is_neutral(&[[0x95, 60, 1], [0xb5, 123, 0]]) && !is_neutral(&[[0x95, 60, 1], [0xb4, 123, 0]])
        );
        assert!(!is_neutral(&[[0xb0, 64, 127]]) && is_neutral(&[[0xb0, 64, 127], [0xb0, 64, 0]]));
        assert!(!is_neutral(&[[0xb0, 64, 127], [0xb0, 120, 0]]) && is_neutral(&[[0xb0, 7, 100]]));
    }

    #[test]
    fn a_peer_that_presses_everything_is_not_neutral() {
        let mut tracker = StateTracker::default();
        for keysym in 0..2 * KEYS_MAX as u32 {
            let key = viewer::Event::Key { keysym, pressed: true }.to_bytes();
            tracker.observe(&Format::Viewer, &mut Body::from(key));
        }
        assert_eq!(tracker.held.len(), KEYS_MAX);
        tracker.clear();
        assert!(tracker.is_neutral());
    }
}
