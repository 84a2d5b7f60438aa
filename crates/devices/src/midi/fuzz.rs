//! Entry points for the fuzzer: bytes of a cable, events of a sequencer, messages of a peer.

use super::event::{Decoder, Event, encode};
use super::held::Held;
use super::stream::Splitter;
use wire::formats::midi::MidiMessage;

/// Splits bytes of a cable; each message comes back as itself.
pub fn cable(bytes: &[u8]) {
    let mut splitter = Splitter::default();
    for message in bytes.iter().flat_map(|byte| splitter.push(*byte)).flatten() {
        let mut again = Splitter::default();
        let same: Vec<_> = message.as_bytes().iter().flat_map(|byte| again.push(*byte)).flatten().collect();
        assert_eq!(same, [message]);
    }
    let saved = splitter.save();
    assert_eq!(Splitter::restore(saved).save(), saved, "a state is restored");
}

/// Decodes events of a sequencer.
pub fn events(bytes: &[u8]) {
    let (mut decoder, mut left) = (Decoder::default(), bytes);
    while let Some((event, length)) = Event::first(left) {
        let _ = event.news();
        decoder.decode(&event, |_| {});
        left = &left[length..];
    }
}

/// Encodes a message of a peer as events; they decode to it. The neutral state follows.
pub fn message(bytes: &[u8]) {
    let Ok(message) = MidiMessage::parse(bytes) else { return };
    assert_eq!(message.as_bytes(), bytes);
    let (mut decoder, mut decoded, mut written) = (Decoder::default(), Vec::new(), 0);
    while written < bytes.len() {
        let (mut event, taken) = encode(bytes, written);
        // A read pads what a write did not.
        event.resize(event.len().next_multiple_of(super::event::EVENT_BYTES), 0);
        let (event, _) = Event::first(&event).expect("a whole event");
        decoder.decode(&event, |message| decoded.push(message));
        written += taken;
    }
    assert_eq!(decoded, std::slice::from_ref(&message));
    let mut held = Held::default();
    held.apply(&message);
    assert_eq!(Held::from_bytes(&held.to_bytes()), held);
    held.release();
    assert!(held.is_neutral());
}
