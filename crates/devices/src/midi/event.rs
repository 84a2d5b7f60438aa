//! Events of the ALSA sequencer (`struct snd_seq_event` of `sound/asequencer.h`) and MIDI messages.
//!
//! An event has 28 bytes; behind a system exclusive one its bytes follow, padded to a multiple of 28 when they are read.

use std::collections::VecDeque;
use sys::sequencer::Address;
use wire::formats::midi::{MidiMessage, SYSEX, SYSEX_BYTES_MAX, SYSEX_END};

/// Bytes of an event without data behind it.
pub(super) const EVENT_BYTES: usize = 28;
/// Bytes of one event with data that a read returns, at most: more do not fit the kernel's pool of a client.
pub(super) const READ_BYTES: usize = 64 << 10;
/// Sequencers take system exclusive messages in pieces: the kernel's own have 256 bytes.
pub(super) const PIECE_BYTES: usize = 256;
/// Programs whose system exclusive messages are joined at the same time.
const JOINED_MAX: usize = 8;

/// Types of events (`SNDRV_SEQ_EVENT_*`).
mod kind {
    pub(super) const NOTE_ON: u8 = 6;
    pub(super) const NOTE_OFF: u8 = 7;
    pub(super) const KEY_PRESSURE: u8 = 8;
    pub(super) const CONTROLLER: u8 = 10;
    pub(super) const PROGRAM: u8 = 11;
    pub(super) const CHANNEL_PRESSURE: u8 = 12;
    pub(super) const PITCH_BEND: u8 = 13;
    pub(super) const CONTROLLER_14: u8 = 14;
    pub(super) const NON_REGISTERED: u8 = 15;
    pub(super) const REGISTERED: u8 = 16;
    pub(super) const SONG_POSITION: u8 = 20;
    pub(super) const SONG: u8 = 21;
    pub(super) const QUARTER_FRAME: u8 = 22;
    pub(super) const CLIENT_EXIT: u8 = 61;
    pub(super) const PORT_EXIT: u8 = 64;
    pub(super) const SUBSCRIBED: u8 = 66;
    pub(super) const UNSUBSCRIBED: u8 = 67;
    pub(super) const SYSEX: u8 = 130;
}

/// Types of events that are one status byte, with that byte.
const SINGLE: [(u8, u8); 7] =
    [(30, 0xfa), (31, 0xfb), (32, 0xfc), (36, 0xf8), (40, 0xf6), (41, 0xff), (42, 0xfe)];

/// The queue that delivers at once (`SNDRV_SEQ_QUEUE_DIRECT`).
const DIRECT: u8 = 253;
/// All ports that are subscribed to the sender (`SNDRV_SEQ_ADDRESS_SUBSCRIBERS`), and no port in particular.
const SUBSCRIBERS: [u8; 2] = [254, 253];
/// `SNDRV_SEQ_EVENT_LENGTH_VARIABLE`, and the bits of the length that are flags.
const VARIABLE: u8 = 1 << 2;
const LENGTH_MASK: u8 = 3 << 2;
const EXTERNAL_FLAGS: u32 = 0xc000_0000;
/// Pitch bend that is 0 in an event.
const BEND_CENTRE: i32 = 0x2000;

/// An event that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Event<'a> {
    kind: u8,
    pub(super) source: Address,
    data: [u8; 12],
    /// The bytes behind the event.
    external: &'a [u8],
}

/// News of the kernel about clients and ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum News {
    ClientExit(u8),
    PortExit(Address),
    Subscribed { sender: Address, receiver: Address },
    Unsubscribed { sender: Address, receiver: Address },
}

impl Event<'_> {
    /// Returns the first event and its length; `None` while it is not complete.
    pub(super) fn first(bytes: &[u8]) -> Option<(Event<'_>, usize)> {
        let (head, rest) = bytes.split_first_chunk::<EVENT_BYTES>()?;
        let mut data = [0; 12];
        data.copy_from_slice(&head[16..]);
        let source = Address { client: head[12], port: head[13] };
        let mut event = Event { kind: head[0], source, data, external: &[] };
        if head[1] & LENGTH_MASK != VARIABLE {
            return Some((event, EVENT_BYTES));
        }
        let length = (event.word(0) & !EXTERNAL_FLAGS) as usize;
        let padded = length.checked_next_multiple_of(EVENT_BYTES)?;
        event.external = &rest.get(..padded)?[..length];
        Some((event, EVENT_BYTES + padded))
    }

    fn word(&self, at: usize) -> u32 {
        u32::from_ne_bytes([self.data[at], self.data[at + 1], self.data[at + 2], self.data[at + 3]])
    }

    fn addresses(&self) -> [Address; 2] {
        let [client, port, receiver, receiver_port, ..] = self.data;
        [Address { client, port }, Address { client: receiver, port: receiver_port }]
    }

    /// Returns the news in an event of the system client.
    pub(super) fn news(&self) -> Option<News> {
        let [sender, receiver] = self.addresses();
        match self.kind {
            kind::CLIENT_EXIT => Some(News::ClientExit(sender.client)),
            kind::PORT_EXIT => Some(News::PortExit(sender)),
            kind::SUBSCRIBED => Some(News::Subscribed { sender, receiver }),
            kind::UNSUBSCRIBED => Some(News::Unsubscribed { sender, receiver }),
            _ => None,
        }
    }
}

/// Makes messages of events.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    /// System exclusive messages that are not complete, by their sender.
    partial: VecDeque<(Address, Vec<u8>)>,
    /// Events without a MIDI message.
    pub(super) other_events: u64,
    /// System exclusive messages that were too long, never ended, or lost a piece.
    pub(super) sysex_dropped: u64,
}

impl Decoder {
    /// Calls `emit` for each message of an event: most have one, a controller of 14 bits has several.
    pub(super) fn decode(&mut self, event: &Event<'_>, mut emit: impl FnMut(MidiMessage)) {
        let mut send = |bytes: &[u8]| match MidiMessage::parse(bytes) {
            Ok(message) => {
                emit(message);
                true
            }
            Err(_) => false,
        };
        let channel = event.data[0] & 0xf;
        let (parameter, value) = (event.word(4), event.word(8).cast_signed());
        let seven = |value: i32| (value & 0x7f) as u8;
        let (high, low) = (seven(value >> 7), seven(value));
        let sent = match event.kind {
            kind::NOTE_OFF | kind::NOTE_ON | kind::KEY_PRESSURE => {
                let status = match event.kind {
                    kind::NOTE_OFF => 0x80,
                    kind::NOTE_ON => 0x90,
                    _ => 0xa0,
                };
                send(&[status | channel, event.data[1] & 0x7f, event.data[2] & 0x7f])
            }
            kind::CONTROLLER => send(&[0xb0 | channel, (parameter & 0x7f) as u8, seven(value)]),
            kind::PROGRAM => send(&[0xc0 | channel, seven(value)]),
            kind::CHANNEL_PRESSURE => send(&[0xd0 | channel, seven(value)]),
            kind::PITCH_BEND => {
                let bend = value.saturating_add(BEND_CENTRE);
                send(&[0xe0 | channel, seven(bend), seven(bend >> 7)])
            }
            kind::CONTROLLER_14 => {
                let parameter = (parameter & 0x7f) as u8;
                match parameter < 0x20 {
                    true => {
                        send(&[0xb0 | channel, parameter, high])
                            && send(&[0xb0 | channel, parameter + 0x20, low])
                    }
                    false => send(&[0xb0 | channel, parameter, low]),
                }
            }
            kind::NON_REGISTERED | kind::REGISTERED => {
                let numbers = if event.kind == kind::REGISTERED { [101, 100] } else { [99, 98] };
                let parameter = parameter.cast_signed();
                send(&[0xb0 | channel, numbers[0], seven(parameter >> 7)])
                    && send(&[0xb0 | channel, numbers[1], seven(parameter)])
                    && send(&[0xb0 | channel, 6, high])
                    && send(&[0xb0 | channel, 38, low])
            }
            kind::SONG_POSITION => send(&[0xf2, low, high]),
            kind::SONG => send(&[0xf3, low]),
            kind::QUARTER_FRAME => send(&[0xf1, low]),
            kind::SYSEX => {
                if let Some(message) = self.join(event.source, event.external) {
                    send(&message);
                }
                true
            }
            single => match SINGLE.iter().find(|(kind, _)| *kind == single) {
                Some((_, status)) => send(&[*status]),
                None => false,
            },
        };
        self.other_events += u64::from(!sent);
    }

    /// Adds a piece of a system exclusive message. Returns the message with its last piece.
    fn join(&mut self, source: Address, piece: &[u8]) -> Option<Vec<u8>> {
        let at = self.partial.iter().position(|(sender, _)| *sender == source);
        let mut message = at.and_then(|at| self.partial.remove(at)).map(|(_, message)| message);
        if piece.first() == Some(&SYSEX) {
            self.sysex_dropped += u64::from(message.is_some());
            message = Some(Vec::new());
        }
        // The rest of a message that was dropped has no beginning.
        let mut message = message?;
        if message.len() + piece.len() > SYSEX_BYTES_MAX {
            self.sysex_dropped += 1;
            return None;
        }
        message.extend(piece);
        if message.last() == Some(&SYSEX_END) {
            return Some(message);
        }
        if self.partial.len() == JOINED_MAX {
            self.partial.pop_front();
            self.sysex_dropped += 1;
        }
        self.partial.push_back((source, message));
        None
    }

    /// Drops the messages that are not complete: the kernel may have dropped a piece of them, and what follows would close the
    /// gap.
    pub(super) fn drop_partial(&mut self) {
        self.sysex_dropped += self.partial.len() as u64;
        self.partial.clear();
    }

    /// Returns the number of bytes of messages that are not complete.
    pub(super) fn partial_bytes(&self) -> usize {
        self.partial.iter().map(|(_, message)| message.len()).sum()
    }
}

fn event(kind: u8, length: u8, data: [u8; 12]) -> [u8; EVENT_BYTES] {
    let mut event = [0; EVENT_BYTES];
    [event[0], event[1], event[3]] = [kind, length, DIRECT];
    event[14..16].copy_from_slice(&SUBSCRIBERS);
    event[16..].copy_from_slice(&data);
    event
}

fn control(kind: u8, channel: u8, parameter: u8, value: i32) -> [u8; EVENT_BYTES] {
    let mut data = [0; 12];
    data[0] = channel;
    data[4..8].copy_from_slice(&u32::from(parameter).to_ne_bytes());
    data[8..].copy_from_slice(&value.to_ne_bytes());
    event(kind, 0, data)
}

/// Returns the event of a valid message, from port 0 of this client to its subscribers: of a system exclusive one the piece that
/// begins at `written`. The second value is the number of message bytes in it.
pub(super) fn encode(message: &[u8], written: usize) -> (Vec<u8>, usize) {
    let status = message.first().copied().unwrap_or_default();
    if status == SYSEX {
        let left = message.get(written..).unwrap_or_default();
        let piece = &left[..left.len().min(PIECE_BYTES)];
        let mut data = [0; 12];
        data[..4].copy_from_slice(&(piece.len() as u32).to_ne_bytes());
        return ([&event(kind::SYSEX, VARIABLE, data)[..], piece].concat(), piece.len());
    }
    let at = |at: usize| message.get(at).copied().unwrap_or_default();
    let (channel, first, second) = (status & 0xf, at(1), at(2));
    let joined = i32::from(first) | i32::from(second) << 7;
    let note = |kind| {
        let mut data = [0; 12];
        [data[0], data[1], data[2]] = [channel, first, second];
        event(kind, 0, data)
    };
    let event = match status {
        0x80..=0x8f => note(kind::NOTE_OFF),
        0x90..=0x9f => note(kind::NOTE_ON),
        0xa0..=0xaf => note(kind::KEY_PRESSURE),
        0xb0..=0xbf => control(kind::CONTROLLER, channel, first, second.into()),
        0xc0..=0xcf => control(kind::PROGRAM, channel, 0, first.into()),
        0xd0..=0xdf => control(kind::CHANNEL_PRESSURE, channel, 0, first.into()),
        0xe0..=0xef => control(kind::PITCH_BEND, channel, 0, joined - BEND_CENTRE),
        0xf1 => control(kind::QUARTER_FRAME, 0, 0, first.into()),
        0xf2 => control(kind::SONG_POSITION, 0, 0, joined),
        0xf3 => control(kind::SONG, 0, 0, first.into()),
        _ => {
            let single = SINGLE.iter().find(|(_, byte)| *byte == status);
            event(single.map_or(u8::MAX, |(kind, _)| *kind), 0, [0; 12])
        }
    };
    (event.to_vec(), message.len() - written.min(message.len()))
}
