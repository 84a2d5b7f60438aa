//! Texts in UTF-8 between viewer and server: the pseudo-encoding Extended Clipboard (`rfbproto`).
//!
//! Both ends announce their capabilities (`CAPS`). A new text of the viewer is sent at once (`PROVIDE`) if it is shorter
//! than the server's limit. Otherwise the viewer announces it (`NOTIFY`), and the server requests it (`REQUEST`). A new
//! text of the server is only announced: a viewer with the focus requests it. An end may also ask for an announcement
//! (`PEEK`).

use super::deflate::{Deflater, Inflater};
use super::protocol::Fault;
use crate::clipboard::TEXT_BYTES_MAX;
use bytes::Buf;
use std::borrow::Cow;

/// The most bytes of a message that is read: a text that compresses badly, and its header.
pub(super) const MESSAGE_BYTES_MAX: usize = TEXT_BYTES_MAX + (TEXT_BYTES_MAX >> 4);

/// The most bytes of a text, with CR, LF and a zero at its end, for a peer that announces no limit: libvncclient (Remmina, KRDC,
/// guacd) ends the connection at a longer one.
const UNLIMITED_BYTES_MAX: usize = 1 << 20;

/// The deflate level of texts.
const LEVEL: u32 = 6;

/// The flag of the only supported format: text in UTF-8.
const TEXT: u32 = 1;

/// The mask of the action flags.
const ACTIONS: u32 = 0xff00_0000;
const CAPS: u32 = 1 << 24;
const REQUEST: u32 = 1 << 25;
const PEEK: u32 = 1 << 26;
const NOTIFY: u32 = 1 << 27;
const PROVIDE: u32 = 1 << 28;

/// The result of the peer's message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Received {
    /// There is nothing to do.
    Nothing,
    /// The peer's text.
    Text(String),
    /// The peer has a new text, which can be requested.
    Announcement,
    /// The peer requests the text that was announced to it.
    Request,
}

/// The text on this end's clipboard.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Own {
    None,
    /// It was announced, and is elsewhere.
    Announced,
    Text(String),
}

/// One end's clipboard, and the peer's capabilities.
#[derive(Debug)]
pub(super) struct Clipboard {
    /// The type of the messages that this end sends.
    kind: u8,
    /// The most bytes of a text that the peer may send without a request.
    unrequested_max: usize,
    has_sent_caps: bool,
    /// The peer's actions, and its limit for texts that it has not requested; `None` before it announces them.
    peer: Option<(u32, usize)>,
    own: Own,
}

impl Clipboard {
    /// Makes a clipboard that sends messages of type `kind`. `unrequested_max` limits the texts that the peer may send
    /// without a request.
    pub(super) fn new(kind: u8, unrequested_max: usize) -> Clipboard {
        Clipboard { kind, unrequested_max, has_sent_caps: false, peer: None, own: Own::None }
    }

    /// Sends the capabilities. The server does so first, the viewer in reply.
    pub(super) fn send_caps(&mut self, output: &mut Vec<u8>) {
        let unrequested_max = self.unrequested_max as u32;
        self.emit(output, CAPS | REQUEST | PEEK | NOTIFY | PROVIDE | TEXT, &unrequested_max.to_be_bytes());
        self.has_sent_caps = true;
    }

    /// Processes the body of the peer's message.
    pub(super) fn handle(&mut self, mut body: &[u8], output: &mut Vec<u8>) -> Result<Received, Fault> {
        let flags = body.try_get_u32()?;
        let is_text = flags & TEXT != 0;
        if flags & CAPS != 0 {
            // There is a size for each format, and text is the first format.
            let unrequested_max = if is_text { body.try_get_u32()? } else { 0 };
            self.peer = Some((flags & ACTIONS, unrequested_max as usize));
            if !self.has_sent_caps {
                self.send_caps(output);
            }
        } else if !is_text {
            // Other formats are not supported.
        } else if flags & PROVIDE != 0 {
            return Ok(inflate(body)?.map_or(Received::Nothing, Received::Text));
        // Under backpressure ignore repeated requests: the text is already in the output.
        } else if flags & REQUEST != 0 && output.len() <= MESSAGE_BYTES_MAX {
            match &self.own {
                Own::Text(text) => self.provide(text, output),
                Own::Announced => return Ok(Received::Request),
                Own::None => {}
            }
        } else if flags & NOTIFY != 0 {
            return Ok(Received::Announcement);
        }
        if flags & (CAPS | PEEK) == PEEK {
            let formats = if self.own == Own::None { 0 } else { TEXT };
            self.emit(output, NOTIFY | formats, &[]);
        }
        Ok(Received::Nothing)
    }

    /// Requests the peer's text.
    pub(super) fn request(&self, output: &mut Vec<u8>) {
        self.emit(output, REQUEST | TEXT, &[]);
    }

    /// Announces a text that is elsewhere. Returns `false` if the peer does not support that.
    pub(super) fn announce(&mut self, output: &mut Vec<u8>) -> bool {
        let is_supported = self.peer.is_some_and(|(actions, _)| actions & NOTIFY != 0);
        if is_supported {
            self.own = Own::Announced;
            self.emit(output, NOTIFY | TEXT, &[]);
        }
        is_supported
    }

    /// Sends a text that the peer has requested, unless a peer without capabilities would end the connection.
    pub(super) fn provide(&self, text: &str, output: &mut Vec<u8>) {
        let lines = to_lines(text);
        if self.peer.is_some() || lines.len() < UNLIMITED_BYTES_MAX {
            self.emit(output, PROVIDE | TEXT, &deflate(&lines));
        }
    }

    /// Puts a text on this end's clipboard, and provides or announces it. Returns `false` if the peer supports neither.
    pub(super) fn offer(&mut self, text: &str, output: &mut Vec<u8>) -> bool {
        let Some((actions, unrequested_max)) = self.peer else { return false };
        let lines = to_lines(text);
        match actions {
            _ if actions & PROVIDE != 0 && lines.len() < unrequested_max => {
                self.emit(output, PROVIDE | TEXT, &deflate(&lines));
            }
            _ if actions & NOTIFY != 0 => self.emit(output, NOTIFY | TEXT, &[]),
            _ => return false,
        }
        self.own = Own::Text(text.into());
        true
    }

    /// Appends a message. Its length is negative, to distinguish it from a message with a Latin-1 text.
    fn emit(&self, output: &mut Vec<u8>, flags: u32, body: &[u8]) {
        output.extend([self.kind, 0, 0, 0]);
        output.extend((-(body.len() as i32) - 4).to_be_bytes());
        output.extend(flags.to_be_bytes());
        output.extend(body);
    }
}

/// Converts line ends to CR and LF, as the protocol requires.
fn to_lines(text: &str) -> Cow<'_, str> {
    if !text.contains(['\r', '\n']) {
        return text.into();
    }
    from_lines(text).replace('\n', "\r\n").into()
}

/// Converts line ends to LF.
fn from_lines(text: &str) -> String {
    text.replace("\r\n", "\n").replace('\r', "\n")
}

/// Compresses the body of a `PROVIDE` message: the length of the text, the text and a zero.
fn deflate(text: &str) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len() + 5);
    plain.extend((text.len() as u32 + 1).to_be_bytes());
    plain.extend(text.as_bytes());
    plain.push(0);
    let mut out = Vec::new();
    Deflater::new(LEVEL).append(&plain, &mut out);
    out
}

/// Decompresses the body of a `PROVIDE` message. Text is the first format in it; others are ignored. Returns `None` for a
/// text that is too long.
fn inflate(body: &[u8]) -> Result<Option<String>, Fault> {
    let mut plain = Vec::new();
    // Each LF may be two bytes in the message.
    let plain_max = 4 + 2 * TEXT_BYTES_MAX + 1;
    let inflated = Inflater::default().append_to_end(body, &mut plain, plain_max);
    if plain.len() > plain_max {
        return Ok(None);
    }
    inflated?;
    let mut rest = &plain[..];
    let length = rest.try_get_u32()? as usize;
    let text = rest.get(..length).ok_or_else(|| Fault::new("a clipboard text is truncated"))?;
    let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
    let text = from_lines(&String::from_utf8_lossy(text));
    Ok((text.len() <= TEXT_BYTES_MAX).then_some(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KIND: u8 = 6;

    fn server() -> Clipboard {
        Clipboard { has_sent_caps: true, ..Clipboard::new(KIND, TEXT_BYTES_MAX) }
    }

    /// Returns the body of a message.
    fn body(message: &[u8]) -> &[u8] {
        let length = i32::from_be_bytes(message[4..8].try_into().unwrap());
        assert_eq!((message[0], length), (KIND, 8 - message.len() as i32));
        &message[8..]
    }

    fn message(flags: u32, rest: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        server().emit(&mut out, flags, rest);
        out
    }

    /// Passes messages between two ends until neither replies. Returns the text that the second end receives.
    fn exchange(ends: &mut [Clipboard; 2], mut to: usize, mut message: Vec<u8>) -> Option<String> {
        let mut text = None;
        while !message.is_empty() {
            let mut output = Vec::new();
            match ends[to].handle(body(&message), &mut output).unwrap() {
                Received::Text(received) if to == 1 => text = Some(received),
                Received::Announcement => ends[to].request(&mut output),
                Received::Nothing => {}
                other => panic!("{other:?}"),
            }
            (to, message) = (1 - to, output);
        }
        text
    }

    #[test]
    fn a_repeated_request_is_ignored_under_backpressure() {
        let mut end = server();
        end.peer = Some((NOTIFY, 0));
        assert!(end.offer("a text", &mut Vec::new()));
        let request = message(REQUEST | TEXT, &[]);
        for (queued, is_provided) in [(0, true), (MESSAGE_BYTES_MAX + 1, false)] {
            let mut output = vec![0; queued];
            end.handle(body(&request), &mut output).unwrap();
            assert_eq!(output.len() > queued, is_provided);
        }
    }

    #[test]
    fn messages_match_the_specification() {
        let mut out = Vec::new();
        Clipboard::new(3, TEXT_BYTES_MAX).send_caps(&mut out);
        assert_eq!(out, [3, 0, 0, 0, 255, 255, 255, 248, 0x1f, 0, 0, 1, 0, 16, 0, 0]);
        assert_eq!(message(REQUEST | TEXT, &[]), [6, 0, 0, 0, 255, 255, 255, 252, 2, 0, 0, 1]);
        // A complete zlib stream, made by Python: 4 bytes of length, "hé", CR, LF and zero.
        let deflated = [
            0x78, 0x9c, 0x63, 0x60, 0x60, 0x60, 0xcb, 0x38, 0xbc, 0x92, 0x97, 0x8b, 0x01, 0x00, 0x09, 0x52,
            0x01, 0xf2,
        ];
        let provide = message(PROVIDE | TEXT, &deflated);
        assert_eq!(server().handle(body(&provide), &mut Vec::new()), Ok(Received::Text("hé\n".into())));
    }

    #[test]
    fn a_short_text_is_provided_at_once_and_a_long_one_on_request() {
        for unrequested_max in [1000, 4] {
            let mut viewer = Clipboard::new(KIND, 0);
            let mut output = Vec::new();
            let caps = message(CAPS | REQUEST | NOTIFY | PROVIDE | TEXT, &u32::to_be_bytes(unrequested_max));
            assert_eq!(viewer.handle(body(&caps), &mut output), Ok(Received::Nothing));
            let mut ends = [viewer, server()];
            assert_eq!(exchange(&mut ends, 1, output), None, "the capabilities");
            let mut output = Vec::new();
            assert!(ends[0].offer("Grüße, 世界 🦀", &mut output));
            assert_eq!(output.len() > 12, unrequested_max > 4);
            assert_eq!(exchange(&mut ends, 1, output).as_deref(), Some("Grüße, 世界 🦀"));
            assert_eq!(exchange(&mut ends, 0, message(PEEK, &[])).as_deref(), Some("Grüße, 世界 🦀"));
        }
    }

    #[test]
    fn nothing_is_offered_to_a_peer_without_support() {
        let mut end = server();
        assert!(!end.offer("text", &mut Vec::new()));
        let caps = message(CAPS | PEEK | 2, &[0; 4]);
        assert_eq!(end.handle(body(&caps), &mut Vec::new()), Ok(Received::Nothing));
        assert!(!end.offer("text", &mut Vec::new()));
    }

    #[test]
    fn a_peer_without_capabilities_gets_no_text_that_ends_its_connection() {
        let provided = |end: &Clipboard, text: &str| {
            let mut output = Vec::new();
            end.provide(text, &mut output);
            !output.is_empty()
        };
        let longest = "x".repeat(TEXT_BYTES_MAX - 1);
        let with_lines = "x".repeat(TEXT_BYTES_MAX - 110) + &"\n".repeat(100);
        let mut end = server();
        assert!(provided(&end, &longest), "the zero still fits");
        assert!(!provided(&end, &with_lines), "each line end is two bytes");
        end.peer = Some((NOTIFY, 0));
        assert!(provided(&end, &with_lines));
    }

    #[test]
    fn long_texts_are_ignored_and_truncated_ones_rejected() {
        for length in [TEXT_BYTES_MAX + 1, 3 * TEXT_BYTES_MAX] {
            let provide = message(PROVIDE | TEXT, &deflate(&"x".repeat(length)));
            assert!(provide.len() < 10_000);
            assert_eq!(server().handle(body(&provide), &mut Vec::new()), Ok(Received::Nothing));
        }
        for wrong in [&[][..], &[1, 2, 3], &deflate("cut")[..8]] {
            let provide = message(PROVIDE | TEXT, wrong);
            assert!(server().handle(body(&provide), &mut Vec::new()).is_err(), "{} bytes", wrong.len());
        }
        assert!(server().handle(&[0x01, 0, 0], &mut Vec::new()).is_err());
        assert!(server().handle(&[0x01, 0, 0, 1, 0], &mut Vec::new()).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(128) })]

        /// Only the line ends of a text may change.
        #[test]
        fn a_text_round_trips(text in "([^\u{0}]|\r\n|\n|\r){0,300}") {
            let received = inflate(&deflate(&to_lines(&text))).unwrap();
            prop_assert_eq!(received, Some(from_lines(&text)));
        }

        /// No input causes a panic or a large output.
        #[test]
        fn any_bytes_are_processed_or_rejected(flags in any::<u32>(), rest in prop::collection::vec(any::<u8>(), 0..100)) {
            let mut end = Clipboard { own: Own::Text("here".into()), ..server() };
            let body = [&flags.to_be_bytes()[..], &rest].concat();
            let mut output = Vec::new();
            if let Ok(Received::Text(text)) = end.handle(&body, &mut output) {
                prop_assert!(text.len() <= TEXT_BYTES_MAX);
            }
            prop_assert!(output.len() < 100);
        }
    }
}
