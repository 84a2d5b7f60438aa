//! The clipboard of a shared screen, as both desktop classes (`x11`, `rfb`) use it.
//!
//! A text leaves the device host only when the viewer asks for it, and a viewer asks only while it has the focus:
//!
//! ```text
//! device host                                    application host
//! a program copies a text
//!        ── clipboard, without text ──▶          remembers that there is a new text
//!                                                the viewer has the focus, or gets it
//!        ◀── fetch ──
//! reads the text from its owner
//!        ── clipboard, with the text ──▶         offers it to this host's programs
//! ```
//!
//! In the other direction a viewer with the focus sends its host's text as `Event::Text`. A text that comes back
//! unchanged, for example from a clipboard manager, goes no further, so two hosts do not exchange it for ever.

use contract::{Attributes, Body, Message, OptionKind, OptionSpec, Time, local};
use wire::formats::video::{Geometry, Header, Kind};
pub(crate) use wire::formats::viewer::TEXT_BYTES_MAX;

/// The option of a screen, a window or a viewer's server to exchange texts.
pub(crate) const OPTION: OptionSpec = local(
    "clipboard",
    OptionKind::Flag,
    "true",
    "exchange the text on the clipboard, while the viewer has the focus; `no`: in neither direction",
);

/// The key of clipboard messages: newer pictures do not replace them.
const KEY: u64 = 2;

/// Removes control characters, except tabs and line ends: a text from another host may be pasted into a terminal.
pub(crate) fn clean(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control() || matches!(letter, '\t' | '\n' | '\r')).collect()
}

/// Converts a text to Latin-1, for programs that know no other encoding. Other characters become question marks.
pub(crate) fn to_latin_1(text: &str) -> Vec<u8> {
    text.chars().map(|letter| u8::try_from(letter).unwrap_or(b'?')).collect()
}

/// Converts a text from Latin-1.
pub(crate) fn from_latin_1(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| char::from(*byte)).collect()
}

/// The state of a text on the device's clipboard.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum CopyState {
    /// There is none that the viewer does not have.
    #[default]
    None,
    /// There is one, and its announcement is due.
    New,
    /// The viewer knows of it, and has not asked for it.
    Announced,
}

/// The device's half: the announcement of texts, and the text that the viewer has asked for.
///
/// | state | a program copies | the viewer asks | snapshot |
/// |---|---|---|---|
/// | `None` | → `New` | ignored | |
/// | `New`, and the announcement is sent → `Announced` | | the text is read → `None` | |
/// | `Announced` | → `New` | the text is read → `None` | → `New` |
#[derive(Debug, Default)]
pub(crate) struct Copies {
    state: CopyState,
    /// The text to send.
    text: Option<String>,
    /// The last text that the viewer has sent.
    received: Option<String>,
    /// A program has copied since then: the clipboard may have something else, such as a picture.
    is_replaced: bool,
    /// Texts that were sent, and texts that were too long.
    pub(crate) sent: u64,
    pub(crate) refused: u64,
}

impl Copies {
    /// A program of the device host has copied a text.
    pub(crate) fn handle_copy(&mut self) {
        self.state = CopyState::New;
        self.is_replaced = true;
    }

    /// The application may have missed the last announcement.
    pub(crate) fn handle_snapshot(&mut self) {
        if self.state == CopyState::Announced {
            self.state = CopyState::New;
        }
    }

    /// The viewer asks for the text. Returns whether there is one to read: each is sent once.
    pub(crate) fn handle_fetch(&mut self) -> bool {
        std::mem::take(&mut self.state) != CopyState::None
    }

    /// The viewer has sent a text. Returns the text to offer; `None` if it is empty or on the clipboard already.
    pub(crate) fn handle_text(&mut self, text: &str) -> Option<String> {
        let text = clean(text);
        // An older application host forwards the empty text that some VNC viewers send when a picture is copied.
        if text.is_empty() {
            return None;
        }
        if !std::mem::take(&mut self.is_replaced) && self.received.as_ref() == Some(&text) {
            return None;
        }
        self.received = Some(text.clone());
        Some(text)
    }

    /// Sends the text that was read.
    pub(crate) fn provide(&mut self, text: String) {
        if text.len() > TEXT_BYTES_MAX {
            self.refused += 1;
        } else if self.received.as_ref() == Some(&text) {
            // A clipboard manager has taken it over.
            self.is_replaced = false;
        } else if !text.is_empty() {
            // From now on the viewer's host has this text on its clipboard, too.
            self.received = None;
            self.text = Some(text);
        }
    }

    /// Returns whether a message is due.
    pub(crate) fn is_ready(&self) -> bool {
        self.text.is_some() || self.state == CopyState::New
    }

    /// Returns the message that is due.
    pub(crate) fn next(&mut self, geometry: Geometry, now: Time) -> Option<Message> {
        let text = match self.text.take() {
            Some(text) => {
                self.sent += 1;
                text
            }
            None if self.state == CopyState::New => {
                self.state = CopyState::Announced;
                String::new()
            }
            None => return None,
        };
        let mut body = Body::from(text.into_bytes());
        body.push_front(&Header { kind: Kind::Clipboard, geometry }.emit());
        let attributes = Attributes { key: Some(KEY), ..Attributes::default() };
        Some(Message { attributes, ..Message::new(now, body) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use wire::formats::video::{Content, PixelFormat};

    /// Returns the text of the next message; empty for an announcement.
    fn next(copies: &mut Copies) -> Option<String> {
        let geometry = Geometry::new(PixelFormat::Bgrx32, 8, 8).unwrap();
        let ready = copies.is_ready();
        let message = copies.next(geometry, Time(1));
        assert_eq!(message.is_some(), ready);
        let bytes = message?.body.into_bytes();
        let header = Header::parse(&bytes).unwrap();
        let Content::Clipboard(text) = header.parse_content(&bytes[Header::BYTES..]).unwrap() else {
            panic!()
        };
        Some(text.unwrap_or_default().into())
    }

    #[test]
    fn a_text_is_announced_and_sent_once_when_it_is_fetched() {
        let mut copies = Copies::default();
        assert!(!copies.handle_fetch(), "nothing was copied since the start");
        for _ in 0..3 {
            copies.handle_copy();
        }
        assert_eq!(next(&mut copies).as_deref(), Some(""));
        assert_eq!(next(&mut copies), None, "several copies are announced once");
        copies.handle_snapshot();
        assert_eq!(
            next(&mut copies).as_deref(),
            Some(""),
            "an announcement is repeated after an interruption"
        );
        assert!(copies.handle_fetch());
        copies.provide("παράδειγμα".into());
        assert_eq!(next(&mut copies).as_deref(), Some("παράδειγμα"));
        copies.handle_snapshot();
        assert_eq!((next(&mut copies), copies.handle_fetch()), (None, false));
    }

    #[test]
    fn a_text_that_comes_back_goes_no_further() {
        let mut copies = Copies::default();
        assert_eq!(copies.handle_text("same").as_deref(), Some("same"));
        assert_eq!(copies.handle_text("same"), None);
        copies.provide("same".into());
        assert_eq!(next(&mut copies), None, "the device's clipboard manager took over the viewer's text");
        copies.provide("other".into());
        assert_eq!(next(&mut copies).as_deref(), Some("other"));
        assert_eq!(copies.handle_text("same").as_deref(), Some("same"), "it is new again");
    }

    #[test]
    fn a_text_is_offered_again_after_a_copy_that_was_no_text() {
        let mut copies = Copies::default();
        assert_eq!(copies.handle_text("same").as_deref(), Some("same"));
        copies.handle_copy();
        assert_eq!(copies.handle_text("same").as_deref(), Some("same"));
        assert_eq!(copies.handle_text("same"), None);
        copies.handle_copy();
        for empty in ["", "\u{0}\u{1b}"] {
            assert_eq!(copies.handle_text(empty), None, "the copy stays on the clipboard");
        }
        copies.provide("same".into());
        assert_eq!(copies.handle_text("same"), None, "a clipboard manager holds it");
    }

    #[test]
    fn a_text_that_is_too_long_or_empty_is_not_sent() {
        let mut copies = Copies::default();
        copies.provide(String::new());
        copies.provide("x".repeat(TEXT_BYTES_MAX + 1));
        assert_eq!((next(&mut copies), copies.refused), (None, 1));
        copies.provide("x".repeat(TEXT_BYTES_MAX));
        assert_eq!(next(&mut copies).map(|text| text.len()), Some(TEXT_BYTES_MAX));
    }

    proptest! {
        #[test]
        fn only_control_characters_are_removed(text in any::<String>()) {
            let cleaned = clean(&text);
            prop_assert!(!cleaned.chars().any(|letter| letter.is_control() && !matches!(letter, '\t' | '\n' | '\r')));
            let kept: String = text.chars().filter(|letter| cleaned.contains(*letter)).collect();
            prop_assert_eq!(kept, cleaned);
        }
    }

    #[test]
    fn every_script_survives_cleaning() {
        let text = "Grüße\t世界\r\nسلام 🦀\nह\u{200d}";
        assert_eq!(clean(text), text);
        assert_eq!(clean("\u{1b}[201~rm -rf\u{0}\u{9b}\u{7f}"), "[201~rm -rf");
    }
}
