//! Entry points for the fuzzer: messages of a peer, and memory that a compromised worker wrote.

use super::memory::{Memory, Word};
use super::player::Player;
use super::writer::{RingWriter, SlotReader};
use super::{Frame, partner};
use std::sync::Arc;
use wire::formats::audio::{Frames, encode};

/// Parses a message and converts its frames.
pub fn message(bytes: &[u8]) {
    let Ok(message) = Frames::parse(bytes) else { return };
    assert_eq!(message.emit(), bytes);
    let values = message.to_f32();
    assert_eq!(values.len(), message.count() * usize::from(message.spec.channels));
    assert_eq!(encode(message.spec.format, &values).len(), message.samples.len());
    if let Ok(frames) = partner::frames(&message) {
        assert_eq!(frames.len(), message.count());
    }
}

/// Plays and reads memory whose numbers are arbitrary.
pub fn memory(bytes: &[u8]) {
    let Ok(memory) = Memory::create().and_then(Memory::map) else { return };
    let memory = Arc::new(memory);
    let (mut player, mut slots) = (Player::new(memory.clone()), SlotReader::new(memory.clone()));
    let words = [
        Word::Written,
        Word::Read,
        Word::MessageFrames,
        Word::Margin,
        Word::Pull,
        Word::Left,
        Word::Recorded,
        Word::Taken,
        Word::IsWanted,
    ];
    for step in bytes.as_chunks::<8>().0 {
        let value = u64::from_le_bytes(*step);
        memory.store(words[value as usize % words.len()], value >> 3);
        let mut writer = RingWriter::new(memory.clone());
        let _ = writer.fill();
        let mut frames = vec![Frame::default(); (value % 1024) as usize];
        player.pull(&mut frames);
        let _ = slots.next();
        writer.write(value, frames);
    }
}
