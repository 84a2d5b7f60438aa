//! The state that a stream of messages leaves at its receiver: notes that sound, pedals that are down, pitch bend.

use wire::formats::midi::MidiMessage;

const CHANNELS: usize = 16;
/// Controllers that hold notes: sustain, sostenuto, second sustain.
const PEDALS: [u8; 3] = [64, 66, 69];
const BEND_CENTRE: u16 = 0x2000;
const CHANNEL_BYTES: usize = 16 + PEDALS.len() + 2;
/// Bytes of [`Held::to_bytes`].
pub(super) const HELD_BYTES: usize = CHANNELS * CHANNEL_BYTES;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Channel {
    /// A bit for each note that sounds.
    notes: u128,
    pedals: [u8; PEDALS.len()],
    /// 14 bits.
    bend: u16,
}

impl Default for Channel {
    fn default() -> Channel {
        Channel { notes: 0, pedals: [0; PEDALS.len()], bend: BEND_CENTRE }
    }
}

impl Channel {
    fn release_controls(&mut self) {
        (self.pedals, self.bend) = ([0; PEDALS.len()], BEND_CENTRE);
    }
}

/// The state of all channels.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Held {
    channels: [Channel; CHANNELS],
}

/// The way to the neutral state.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Release {
    /// Releases pedals, ends notes, centres pitch bend.
    pub(super) messages: Vec<MidiMessage>,
    /// Pedals and pitch bend as they were.
    pub(super) controls: Vec<MidiMessage>,
}

impl Held {
    /// Applies a message.
    pub(super) fn apply(&mut self, message: &MidiMessage) {
        let (status, first, second) = match *message.as_bytes() {
            [status, first] => (status, first, 0),
            [status, first, second] => (status, first, second),
            // A system reset.
            [0xff] => return *self = Held::default(),
            _ => return,
        };
        let channel = &mut self.channels[usize::from(status & 0xf)];
        let bit = 1 << (first & 0x7f);
        match status & 0xf0 {
            0x80 => channel.notes &= !bit,
            0x90 if second == 0 => channel.notes &= !bit,
            0x90 => channel.notes |= bit,
            0xb0 => match (PEDALS.iter().position(|pedal| *pedal == first), first) {
                (Some(pedal), _) => channel.pedals[pedal] = second,
                // All controllers at rest.
                (None, 121) => channel.release_controls(),
                // All sound off, all notes off, and the modes, which end all notes too.
                (None, 120 | 123..) => channel.notes = 0,
                _ => {}
            },
            0xe0 => channel.bend = u16::from(first) | u16::from(second) << 7,
            _ => {}
        }
    }

    /// Returns true if nothing is held.
    pub(super) fn is_neutral(&self) -> bool {
        *self == Held::default()
    }

    /// Goes to the neutral state.
    pub(super) fn release(&mut self) -> Release {
        let mut release = Release::default();
        let push = |into: &mut Vec<_>, bytes: [u8; 3]| into.extend(MidiMessage::parse(&bytes));
        for (number, channel) in (0_u8..).zip(std::mem::take(&mut self.channels)) {
            for (controller, value) in PEDALS.into_iter().zip(channel.pedals).filter(|(_, value)| *value > 0)
            {
                push(&mut release.messages, [0xb0 | number, controller, 0]);
                push(&mut release.controls, [0xb0 | number, controller, value]);
            }
            for note in (0..128_u8).filter(|note| channel.notes >> note & 1 != 0) {
                push(&mut release.messages, [0x80 | number, note, 64]);
            }
            if channel.bend != BEND_CENTRE {
                push(&mut release.messages, [0xe0 | number, 0, 0x40]);
                let [low, high] = [channel.bend & 0x7f, channel.bend >> 7].map(|part| part as u8);
                push(&mut release.controls, [0xe0 | number, low, high]);
            }
        }
        release
    }

    pub(super) fn to_bytes(&self) -> [u8; HELD_BYTES] {
        let mut bytes = [0; HELD_BYTES];
        for (into, channel) in bytes.chunks_exact_mut(CHANNEL_BYTES).zip(&self.channels) {
            into[..16].copy_from_slice(&channel.notes.to_le_bytes());
            into[16..19].copy_from_slice(&channel.pedals);
            // Zeros are the neutral state.
            into[19..].copy_from_slice(&(channel.bend ^ BEND_CENTRE).to_le_bytes());
        }
        bytes
    }

    /// Any bytes are a state: a worker that was compromised may have written them.
    pub(super) fn from_bytes(bytes: &[u8; HELD_BYTES]) -> Held {
        let mut held = Held::default();
        for (channel, from) in held.channels.iter_mut().zip(bytes.chunks_exact(CHANNEL_BYTES)) {
            let mut notes = [0; 16];
            notes.copy_from_slice(&from[..16]);
            channel.notes = u128::from_le_bytes(notes);
            channel.pedals = [from[16], from[17], from[18]].map(|value| value & 0x7f);
            channel.bend = (u16::from_le_bytes([from[19], from[20]]) ^ BEND_CENTRE) & 0x3fff;
        }
        held
    }
}

/// Returns true if a later message makes this one of [`Release::controls`] void.
pub(super) fn is_overridden(control: &MidiMessage, by: &MidiMessage) -> bool {
    match (control.as_bytes(), by.as_bytes()) {
        ([status, ..], [other, ..]) if status != other => *other == 0xff,
        ([0xe0..=0xef, ..], _) => true,
        ([_, controller, ..], [_, other, ..]) => other == controller || *other == 121,
        _ => false,
    }
}
