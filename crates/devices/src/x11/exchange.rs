//! The window's half of the clipboard: texts cross only while the window has the focus (see `crate::clipboard`).
//!
//! The last copy wins. `newest` is the copy that has not crossed yet:
//!
//! | `newest` | a program of this host copies | the device announces a copy | the window has the focus |
//! |---|---|---|---|
//! | `None` | → `Ours` | → `Theirs` | |
//! | `Ours` | | → `Theirs` | reads the text, then sends it → `None` |
//! | `Theirs` | → `Ours` | | fetches the text, then offers it → `None` |
//!
//! It begins as `Ours`: a text that was copied before the window appeared can be pasted into it.

use super::client::{Client, Packet};
use super::clipboard::{Clipboard, ClipboardEvent};
use super::display::parse;
use crate::clipboard::{TEXT_BYTES_MAX, clean};
use contract::Time;
use std::io;
use wire::formats::viewer::Event;
use x11rb_protocol::protocol::xproto::{self, EnterNotifyEvent, FocusInEvent, NotifyDetail};

/// The bit of an `EnterNotify` event that says that the window, or one around it, has the focus.
const HAS_FOCUS: u8 = 1;

/// The copy that has not crossed yet; see the table above.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Newest {
    None,
    Ours,
    Theirs,
}

/// The reasons for which a window gets key presses.
#[derive(Debug, Clone, Copy, Default)]
struct Focus {
    /// It has the focus.
    own: bool,
    /// The pointer is inside, and the focus follows the pointer: there is no window manager.
    pointer: bool,
}

/// The clipboard of the window's display, and the texts that cross.
pub(super) struct Exchange {
    clipboard: Clipboard,
    focus: Focus,
    newest: Newest,
    /// The device's text is requested and has not arrived.
    is_fetching: bool,
    /// The text that is on the device's clipboard, as far as is known, because it was sent.
    sent: Option<String>,
    /// The last text from the device.
    received: Option<String>,
    /// Texts from the device that were offered, and texts of this host that were too long.
    pub(super) texts: u64,
    pub(super) refused: u64,
}

impl Exchange {
    pub(super) fn new(clipboard: Clipboard) -> Exchange {
        Exchange {
            clipboard,
            focus: Focus::default(),
            newest: Newest::Ours,
            is_fetching: false,
            sent: None,
            received: None,
            texts: 0,
            refused: 0,
        }
    }

    fn has_focus(&self) -> bool {
        self.focus.own || self.focus.pointer
    }

    /// Processes a packet. Returns whether it concerns the clipboard alone, and a text to send.
    pub(super) fn handle(
        &mut self,
        client: &mut Client,
        packet: &Packet,
    ) -> io::Result<(bool, Option<Event>)> {
        let event = self.clipboard.handle(client, packet)?;
        let is_processed = event != ClipboardEvent::Unrelated;
        if !is_processed && let Packet::Event(event) = packet {
            self.handle_focus(event)?;
        }
        Ok((is_processed, self.handle_event(event)))
    }

    fn handle_event(&mut self, event: ClipboardEvent) -> Option<Event> {
        match event {
            ClipboardEvent::Copied => self.newest = Newest::Ours,
            ClipboardEvent::Read(Some(text)) => return self.handle_own(text),
            _ => {}
        }
        None
    }

    /// A text of this host was read. Returns the event that sends it.
    fn handle_own(&mut self, text: String) -> Option<Event> {
        if !self.has_focus() {
            // It waits until the window has the focus again.
            if self.newest == Newest::None {
                self.newest = Newest::Ours;
            }
            return None;
        }
        if text.len() > TEXT_BYTES_MAX {
            self.refused += 1;
            return None;
        }
        // A clipboard manager may have taken over the device's text.
        let is_known = [&self.sent, &self.received].into_iter().flatten().any(|known| *known == text);
        if text.is_empty() || is_known {
            return None;
        }
        (self.sent, self.received) = (Some(text.clone()), None);
        Some(Event::Text(text))
    }

    fn handle_focus(&mut self, event: &[u8]) -> io::Result<()> {
        match event[0] & 0x7f {
            code @ (xproto::FOCUS_IN_EVENT | xproto::FOCUS_OUT_EVENT) => {
                let event: FocusInEvent = parse(event)?;
                let has_focus = code == xproto::FOCUS_IN_EVENT;
                match event.detail {
                    NotifyDetail::POINTER => self.focus.pointer = has_focus,
                    // If the focus follows the pointer from now on, another event says so.
                    _ => self.focus = Focus { own: has_focus, pointer: false },
                }
            }
            xproto::ENTER_NOTIFY_EVENT => {
                let event: EnterNotifyEvent = parse(event)?;
                self.focus.pointer = event.same_screen_focus & HAS_FOCUS != 0;
            }
            xproto::LEAVE_NOTIFY_EVENT => self.focus.pointer = false,
            _ => {}
        }
        Ok(())
    }

    /// Lets the newest text cross if the window has the focus. Returns the request for it, if it is the device's.
    pub(super) fn advance(&mut self, client: &mut Client, now: Time) -> Option<Event> {
        self.clipboard.handle_time(now);
        if !self.has_focus() {
            return None;
        }
        match self.newest {
            Newest::Ours if !self.clipboard.is_reading() => {
                self.newest = Newest::None;
                self.clipboard.read(client, now);
                None
            }
            Newest::Theirs => {
                (self.newest, self.is_fetching) = (Newest::None, true);
                Some(Event::Fetch)
            }
            _ => None,
        }
    }

    /// Returns the time to call [`Exchange::advance`].
    pub(super) fn due(&self) -> Option<Time> {
        self.clipboard.due()
    }

    /// A message of the device: its text, or the announcement of one.
    pub(super) fn handle_device(&mut self, client: &mut Client, text: Option<String>) {
        let Some(text) = text else {
            (self.newest, self.sent) = (Newest::Theirs, None);
            return;
        };
        // A text that was not requested, or that is older than a copy on this host, is ignored.
        if !std::mem::take(&mut self.is_fetching) || self.newest == Newest::Ours {
            return;
        }
        let text = clean(&text);
        self.texts += 1;
        self.received = Some(text.clone());
        self.clipboard.offer(client, text);
    }

    /// The device is unreachable.
    pub(super) fn handle_neutral(&mut self) {
        self.is_fetching = false;
        if self.newest == Newest::Theirs {
            self.newest = Newest::None;
        }
    }

    /// Returns the events after which the device has the current state.
    pub(super) fn state(&self) -> impl Iterator<Item = Event> {
        self.sent.clone().map(Event::Text).into_iter().chain(self.is_fetching.then_some(Event::Fetch))
    }
}
