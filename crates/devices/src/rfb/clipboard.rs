//! Texts in UTF-8 between viewer and server: the pseudo-encoding Extended Clipboard (`rfbproto`). Both ends tell what
//! they take; who has a text sends it, or says that there is one and sends it when asked.

use super::deflate::{Deflater, Inflater};
use super::protocol::{Fault, TEXT_BYTES_MAX};
use bytes::Buf;
use std::borrow::Cow;

/// Most bytes of a message that is read: a text that is compressed badly, and its head.
pub(super) const MESSAGE_BYTES_MAX: usize = TEXT_BYTES_MAX + (TEXT_BYTES_MAX >> 4);

/// Texts are compressed as well as is quick.
const LEVEL: u32 = 6;

/// Formats, of which we take one: text in UTF-8.
const TEXT: u32 = 1;

/// Actions.
const ACTIONS: u32 = 0xff00_0000;
const CAPS: u32 = 1 << 24;
const REQUEST: u32 = 1 << 25;
const PEEK: u32 = 1 << 26;
const NOTIFY: u32 = 1 << 27;
const PROVIDE: u32 = 1 << 28;

/// One end's clipboard, and what is known of the other's.
#[derive(Debug)]
pub(super) struct Clipboard {
    /// Of the messages that bear what is said here.
    kind: u8,
    /// How long a text is taken from the other end; 0 if none is.
    bytes_max: usize,
    /// What was said of that.
    is_introduced: bool,
    /// What the other end understands, and how long a text it takes without having asked; none before it says so.
    peer: Option<(u32, usize)>,
    /// What was put on it here.
    text: Option<String>,
}

impl Clipboard {
    /// Speaks in messages of this kind, and takes texts of so many bytes.
    pub(super) fn new(kind: u8, bytes_max: usize) -> Clipboard {
        Clipboard { kind, bytes_max, is_introduced: false, peer: None, text: None }
    }

    /// Says what is understood here. The viewer answers the server's.
    pub(super) fn introduce(&mut self, output: &mut Vec<u8>) {
        let unasked = self.bytes_max as u32;
        self.emit(output, CAPS | REQUEST | PEEK | NOTIFY | PROVIDE | TEXT, &unasked.to_be_bytes());
        self.is_introduced = true;
    }

    /// The other end has to say this, behind the head of its message; the text that it sends.
    pub(super) fn handle(&mut self, mut body: &[u8], output: &mut Vec<u8>) -> Result<Option<String>, Fault> {
        let flags = body.try_get_u32()?;
        let is_text = flags & TEXT != 0;
        if flags & CAPS != 0 {
            // Sizes stand in the order of the formats, and text is the first.
            let unasked = if is_text { body.try_get_u32()? } else { 0 };
            self.peer = Some((flags & ACTIONS, unasked as usize));
            if !self.is_introduced {
                self.introduce(output);
            }
        } else if !is_text {
            // Of other formats there is nothing here, and nothing is wanted.
        } else if flags & PROVIDE != 0 && self.bytes_max > 0 {
            return inflated(body, self.bytes_max).map(Some);
        } else if flags & REQUEST != 0
            && let Some(text) = &self.text
            // Who asks again before it has read what it asked for has it already.
            && output.len() <= MESSAGE_BYTES_MAX
        {
            self.emit(output, PROVIDE | TEXT, &deflated(&to_lines(text)));
        } else if flags & NOTIFY != 0 && self.bytes_max > 0 {
            self.emit(output, REQUEST | TEXT, &[]);
        }
        if flags & (CAPS | PEEK) == PEEK {
            let formats = if self.text.is_some() { TEXT } else { 0 };
            self.emit(output, NOTIFY | formats, &[]);
        }
        Ok(None)
    }

    /// A text was put on the clipboard here: tells the other end; `false` if it does not understand that.
    pub(super) fn offer(&mut self, text: &str, output: &mut Vec<u8>) -> bool {
        let Some((actions, unasked)) = self.peer else { return false };
        let lines = to_lines(text);
        match actions {
            _ if actions & PROVIDE != 0 && lines.len() < unasked => {
                self.emit(output, PROVIDE | TEXT, &deflated(&lines));
            }
            _ if actions & NOTIFY != 0 => self.emit(output, NOTIFY | TEXT, &[]),
            _ => return false,
        }
        self.text = Some(text.into());
        true
    }

    /// A negative length says that it is not the text of old.
    fn emit(&self, output: &mut Vec<u8>, flags: u32, body: &[u8]) {
        output.extend([self.kind, 0, 0, 0]);
        output.extend((-(body.len() as i32) - 4).to_be_bytes());
        output.extend(flags.to_be_bytes());
        output.extend(body);
    }
}

/// A text as it goes: lines end in CR and LF.
fn to_lines(text: &str) -> Cow<'_, str> {
    if !text.contains(['\r', '\n']) {
        return text.into();
    }
    from_lines(text).replace('\n', "\r\n").into()
}

/// A text as it came, with lines that end in LF.
fn from_lines(text: &str) -> String {
    text.replace("\r\n", "\n").replace('\r', "\n")
}

/// Its length, the text and a zero, compressed.
fn deflated(text: &str) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len() + 5);
    plain.extend((text.len() as u32 + 1).to_be_bytes());
    plain.extend(text.as_bytes());
    plain.push(0);
    let mut out = Vec::new();
    Deflater::new(LEVEL).append(&plain, &mut out);
    out
}

/// The other way round: a stranger's bytes, of which text is the first thing. What is behind it is of no interest.
fn inflated(body: &[u8], bytes_max: usize) -> Result<String, Fault> {
    let mut plain = Vec::new();
    // A line ends in two bytes on its way.
    Inflater::default().append_to_end(body, &mut plain, 4 + 2 * bytes_max + 1)?;
    let mut rest = &plain[..];
    let length = rest.try_get_u32()? as usize;
    let text = rest.get(..length).ok_or_else(|| Fault::new("a clipboard's text is cut short"))?;
    let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
    let mut text = from_lines(&String::from_utf8_lossy(text));
    text.truncate(text.floor_char_boundary(bytes_max));
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KIND: u8 = 6;

    fn end() -> Clipboard {
        Clipboard { is_introduced: true, ..Clipboard::new(KIND, TEXT_BYTES_MAX) }
    }

    /// What a message says behind its head.
    fn body(message: &[u8]) -> &[u8] {
        let length = i32::from_be_bytes(message[4..8].try_into().unwrap());
        assert_eq!((message[0], length), (KIND, 8 - message.len() as i32));
        &message[8..]
    }

    fn message(flags: u32, rest: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        end().emit(&mut out, flags, rest);
        out
    }

    /// Carries what two ends say until both are silent; the text that came to the second.
    fn talk(ends: &mut [Clipboard; 2], mut to: usize, mut said: Vec<u8>) -> Option<String> {
        let mut text = None;
        while !said.is_empty() {
            let mut output = Vec::new();
            let came = ends[to].handle(body(&said), &mut output).unwrap();
            assert!(to == 1 || came.is_none());
            text = text.or(came);
            (to, said) = (1 - to, output);
        }
        text
    }

    #[test]
    fn who_asks_again_and_has_not_read_is_not_told_again() {
        let mut end = end();
        end.peer = Some((NOTIFY, 0));
        assert!(end.offer("a text", &mut Vec::new()));
        let request = message(REQUEST | TEXT, &[]);
        for (waiting, is_told) in [(0, true), (MESSAGE_BYTES_MAX + 1, false)] {
            let mut output = vec![0; waiting];
            end.handle(body(&request), &mut output).unwrap();
            assert_eq!(output.len() > waiting, is_told);
        }
    }

    #[test]
    fn bytes_are_as_the_specification_has_them() {
        let mut out = Vec::new();
        Clipboard::new(3, TEXT_BYTES_MAX).introduce(&mut out);
        assert_eq!(out, [3, 0, 0, 0, 255, 255, 255, 248, 0x1f, 0, 0, 1, 0, 16, 0, 0]);
        assert_eq!(message(REQUEST | TEXT, &[]), [6, 0, 0, 0, 255, 255, 255, 252, 2, 0, 0, 1]);
        // zlib, to its end, of 4 bytes of length, "hé", CR, LF and zero, as Python's has it.
        let theirs = [
            0x78, 0x9c, 0x63, 0x60, 0x60, 0x60, 0xcb, 0x38, 0xbc, 0x92, 0x97, 0x8b, 0x01, 0x00, 0x09, 0x52,
            0x01, 0xf2,
        ];
        let provide = message(PROVIDE | TEXT, &theirs);
        assert_eq!(end().handle(body(&provide), &mut Vec::new()), Ok(Some("hé\n".into())));
    }

    #[test]
    fn a_short_text_is_sent_at_once_and_a_long_one_when_asked() {
        for unasked in [1000, 4] {
            let mut viewer = Clipboard::new(KIND, 0);
            let mut output = Vec::new();
            let caps = message(CAPS | REQUEST | NOTIFY | PROVIDE | TEXT, &u32::to_be_bytes(unasked));
            assert_eq!(viewer.handle(body(&caps), &mut output), Ok(None));
            let mut ends = [viewer, end()];
            assert_eq!(talk(&mut ends, 1, output), None, "it is told what is understood here");
            let mut output = Vec::new();
            assert!(ends[0].offer("Grüße, 世界 🦀", &mut output));
            assert_eq!(output.len() > 12, unasked > 4);
            assert_eq!(talk(&mut ends, 1, output).as_deref(), Some("Grüße, 世界 🦀"));
            assert_eq!(talk(&mut ends, 0, message(PEEK, &[])).as_deref(), Some("Grüße, 世界 🦀"));
        }
    }

    #[test]
    fn who_does_not_understand_it_is_told_nothing() {
        let mut end = end();
        assert!(!end.offer("text", &mut Vec::new()));
        let caps = message(CAPS | PEEK | 2, &[0; 4]);
        assert_eq!(end.handle(body(&caps), &mut Vec::new()), Ok(None));
        assert!(!end.offer("text", &mut Vec::new()));
    }

    #[test]
    fn what_grows_without_end_or_breaks_off_is_refused() {
        let mut bomb = Vec::new();
        Deflater::new(9).append(&vec![0; 3 * TEXT_BYTES_MAX], &mut bomb);
        assert!(bomb.len() < 10_000);
        for wrong in [&bomb[..], &[][..], &[1, 2, 3], &deflated("cut")[..8]] {
            let provide = message(PROVIDE | TEXT, wrong);
            assert!(end().handle(body(&provide), &mut Vec::new()).is_err(), "{} bytes", wrong.len());
        }
        assert!(end().handle(&[0x01, 0, 0], &mut Vec::new()).is_err());
        assert!(end().handle(&[0x01, 0, 0, 1, 0], &mut Vec::new()).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(128) })]

        /// Whatever it says, it comes as it was, with lines as they end here.
        #[test]
        fn a_text_comes_as_it_was(text in "([^\u{0}]|\r\n|\n|\r){0,300}") {
            let came = inflated(&deflated(&to_lines(&text)), TEXT_BYTES_MAX).unwrap();
            prop_assert_eq!(came, from_lines(&text));
        }

        /// No bytes make it panic, and none make it say more than it was told.
        #[test]
        fn any_bytes_are_taken_or_refused(flags in any::<u32>(), rest in prop::collection::vec(any::<u8>(), 0..100)) {
            let mut end = Clipboard { text: Some("here".into()), ..end() };
            let said = [&flags.to_be_bytes()[..], &rest].concat();
            let mut output = Vec::new();
            if let Ok(Some(text)) = end.handle(&said, &mut output) {
                prop_assert!(text.len() <= TEXT_BYTES_MAX);
            }
            prop_assert!(output.len() < 100);
        }
    }
}
