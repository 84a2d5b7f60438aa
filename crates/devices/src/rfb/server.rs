//! The server side of RFB without I/O, for one viewer: takes the viewer's bytes, returns its input events and the bytes
//! to send.
//!
//! | phase | the viewer's messages | updates | next phase |
//! |---|---|---|---|
//! | `Handshake` | steps of the handshake | none | `Waiting` |
//! | `Waiting` | processed | none | `Running` with the first picture, whose size the viewer needs |
//! | `Running` | processed | as below | |
//!
//! An update is made when all earlier output is sent, and the viewer has requested an update or enabled continuous
//! ones. It has the latest pixels of the viewer's damage. So a slow viewer gets fewer updates, none is outdated, and no
//! update waits in memory.

use super::auth::{CHALLENGE_BYTES, Password};
use super::clipboard::{Clipboard, Received};
use super::encode::{Encoder, Encoding};
use super::framing::message_length;
use super::handshake::Handshake;
use super::picture::Screen;
use super::pixels::{Expander, PIXEL_BYTES, PixelFormat};
use super::protocol::{Fault, VERSION, emit_fence, emit_rectangle, encoding, fence, to_server, to_viewer};
use super::tracker::{Compression, TRIAL_PIXELS, UpdateTracker};
use crate::clipboard::{TEXT_BYTES_MAX, from_latin_1, to_latin_1};
use crate::damage::{Damage, TILE};
use bytes::Buf;
use contract::Time;
use std::collections::BTreeSet;
use wire::formats::video::{Rectangle, SIDE_MAX};
use wire::formats::viewer::Event;

/// The most keys that a viewer may hold at a time.
const KEYS_PRESSED_MAX: usize = 64;

/// Bytes of unsent replies above which the viewer is not read.
const REPLY_BYTES_MAX: usize = 1 << 16;

/// The user's options.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) password: Option<Password>,
    /// The name of the desktop.
    pub(super) name: String,
    /// Texts on the clipboard are exchanged.
    pub(super) has_clipboard: bool,
}

/// The phase of the connection; see the table above.
#[derive(Debug)]
enum Phase {
    Handshake(Handshake),
    Waiting,
    Running,
}

/// The extensions that the viewer supports.
#[derive(Debug, Clone, Copy, Default)]
struct Capabilities {
    cursor: bool,
    cursor_with_alpha: bool,
    desktop_size: bool,
    extended_desktop_size: bool,
    desktop_name: bool,
    fence: bool,
    continuous_updates: bool,
    extended_clipboard: bool,
}

/// The announcements that are due with the next update.
#[derive(Debug, Clone, Copy, Default)]
struct Due {
    cursor: bool,
    name: bool,
    colour_map: bool,
    size: bool,
    /// The reply to a size request of the viewer.
    size_reply: bool,
    /// The announcement of a text; it does not wait for a request.
    copy: bool,
}

/// Bytes from the viewer.
#[derive(Debug, Default)]
struct Input {
    bytes: Vec<u8>,
    /// The number of bytes that are parsed.
    parsed: usize,
    /// The number of bytes to skip: the rest of a text that is too long.
    skip: usize,
}

/// Bytes to the viewer.
#[derive(Debug)]
struct Output {
    bytes: Vec<u8>,
    /// The number of bytes that are sent.
    sent: usize,
    /// Bytes of replies that were added since the output was last empty.
    reply_bytes: usize,
}

impl Output {
    fn unsent(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }
}

/// The keys and buttons that the viewer holds.
#[derive(Debug, Default)]
struct Pressed {
    keys: BTreeSet<u32>,
    /// The pointer's position and buttons.
    pointer: (u32, u32, u16),
}

/// The regions that the viewer wants updates of.
#[derive(Debug, Default)]
struct Requests {
    /// The region of its requests since the last update.
    requested: Option<Rectangle>,
    /// The region of continuous updates, if they are enabled.
    continuous: Option<Rectangle>,
}

/// The pixels of an update: their number and form.
struct SentPixels {
    count: u64,
    compression: Compression,
}

/// The viewer's part in the transfer of a text that a program on the device host has copied.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum CopyState {
    /// There is no new text.
    #[default]
    None,
    /// The viewer knows of it, and requests it when it has the focus.
    Announced,
    /// The viewer knows nothing of announcements: its next key or pointer message shows that it has the focus.
    AwaitsInput,
    /// The text is requested.
    Requested,
}

/// One viewer.
#[derive(Debug)]
pub(super) struct Viewer {
    phase: Phase,
    input: Input,
    output: Output,
    encoder: Encoder,
    encoding: Encoding,
    capabilities: Capabilities,
    due: Due,
    /// The size of the picture as last announced to the viewer.
    size: (u32, u32),
    damage: Damage,
    requests: Requests,
    tracker: UpdateTracker,
    pressed: Pressed,
    /// `None` if no texts are exchanged.
    clipboard: Option<Clipboard>,
    copy: CopyState,
    /// A buffer for the rectangles of an update.
    rectangles: Vec<Rectangle>,
    pub(super) updates: u64,
}

impl Viewer {
    /// Starts the connection. `challenge` is random; it is used if there is a password.
    pub(super) fn new(settings: &Settings, challenge: [u8; CHALLENGE_BYTES]) -> Viewer {
        Viewer {
            phase: Phase::Handshake(Handshake::new(settings.password.clone(), challenge)),
            input: Input::default(),
            output: Output { bytes: VERSION.to_vec(), sent: 0, reply_bytes: 0 },
            encoder: Encoder::new(PixelFormat::NATIVE),
            encoding: Encoding::Raw,
            capabilities: Capabilities::default(),
            due: Due::default(),
            size: (0, 0),
            damage: Damage::default(),
            requests: Requests::default(),
            tracker: UpdateTracker::new(),
            pressed: Pressed::default(),
            clipboard: settings.has_clipboard.then(|| Clipboard::new(to_viewer::CUT_TEXT, TEXT_BYTES_MAX)),
            copy: CopyState::None,
            rectangles: Vec::new(),
            updates: 0,
        }
    }

    /// Returns whether the viewer wants an update and there is damage that it has not received.
    pub(super) fn awaits_update(&self) -> bool {
        self.requests.requested.or(self.requests.continuous).is_some() && !self.damage.is_empty()
    }

    /// Returns, after an error, whether the password was wrong.
    pub(super) fn has_wrong_password(&self) -> bool {
        matches!(&self.phase, Phase::Handshake(handshake) if handshake.is_at_challenge())
    }

    /// Returns whether the handshake is complete.
    pub(super) fn is_running(&self) -> bool {
        !matches!(self.phase, Phase::Handshake(_))
    }

    /// Returns the bytes to send.
    pub(super) fn output(&self) -> &[u8] {
        self.output.unsent()
    }

    /// Returns whether the viewer may be read. Unsent pixels do not prevent that, only unsent replies.
    pub(super) fn has_room(&self) -> bool {
        self.output.reply_bytes <= REPLY_BYTES_MAX
    }

    /// The first `count` bytes of [`Viewer::output`] were sent.
    pub(super) fn handle_written(&mut self, count: usize) {
        self.output.sent += count;
        if self.output.sent >= self.output.bytes.len() {
            self.output.bytes.clear();
            (self.output.sent, self.output.reply_bytes) = (0, 0);
            // Release the memory of a large update.
            self.output.bytes.shrink_to(1 << 20);
        }
    }

    /// Releases all pressed keys and buttons. Returns the events.
    pub(super) fn release(&mut self) -> Vec<Event> {
        let keys = std::mem::take(&mut self.pressed.keys).into_iter();
        let mut events: Vec<_> = keys.map(|keysym| Event::Key { keysym, pressed: false }).collect();
        let (x, y, buttons) = self.pressed.pointer;
        if buttons != 0 {
            self.pressed.pointer.2 = 0;
            events.push(Event::Pointer { x, y, buttons: 0 });
        }
        events
    }

    /// Returns the pressed keys and buttons as events.
    pub(super) fn pressed(&self) -> Vec<Event> {
        let keys = self.pressed.keys.iter();
        let mut events: Vec<_> = keys.map(|&keysym| Event::Key { keysym, pressed: true }).collect();
        let (x, y, buttons) = self.pressed.pointer;
        if buttons != 0 {
            events.push(Event::Pointer { x, y, buttons });
        }
        events
    }

    /// Adds the screen's damage to the viewer's.
    pub(super) fn handle_damage(&mut self, screen: &Screen) {
        match (screen.picture.width(), screen.picture.height()) == self.damage.size() {
            true => self.damage.merge(&screen.damage),
            false => self.handle_size(screen),
        }
    }

    fn handle_size(&mut self, screen: &Screen) {
        let whole = screen.picture.whole();
        self.damage = Damage::none(whole.width, whole.height);
        self.damage.add(&whole);
        self.due.size |= (whole.width, whole.height) != self.size;
    }

    /// The pointer shape has changed.
    pub(super) fn handle_cursor(&mut self) {
        self.due.cursor = true;
    }

    /// The name of the desktop has changed.
    pub(super) fn handle_name(&mut self) {
        self.due.name = true;
    }

    /// A program on the device host has copied a text.
    pub(super) fn handle_copy(&mut self) {
        self.due.copy = self.clipboard.is_some();
        self.copy = CopyState::None;
    }

    /// Announces the text that was copied.
    fn announce_copy(&mut self) {
        let Some(clipboard) = &mut self.clipboard else { return };
        self.copy = match clipboard.announce(&mut self.output.bytes) {
            true => CopyState::Announced,
            false => CopyState::AwaitsInput,
        };
    }

    /// The text that was copied has arrived. Sends it, if the viewer has requested it.
    pub(super) fn handle_text(&mut self, text: &str) {
        let (Some(clipboard), CopyState::Requested) = (&self.clipboard, self.copy) else { return };
        let output = &mut self.output;
        let prev_len = output.bytes.len();
        match self.capabilities.extended_clipboard {
            true => clipboard.provide(text, &mut output.bytes),
            false => {
                let text = to_latin_1(text);
                output.bytes.extend([to_viewer::CUT_TEXT, 0, 0, 0]);
                output.bytes.extend((text.len() as u32).to_be_bytes());
                output.bytes.extend(text);
            }
        }
        output.reply_bytes += output.bytes.len() - prev_len;
        self.copy = CopyState::None;
    }

    /// The viewer requests the text, or shows that it has the focus.
    fn request_copy(&mut self, events: &mut Vec<Event>) {
        self.copy = CopyState::Requested;
        events.push(Event::Fetch);
    }

    /// Processes bytes from the viewer. Appends its input to `events`.
    pub(super) fn receive(&mut self, bytes: &[u8], now: Time, events: &mut Vec<Event>) -> Result<(), Fault> {
        self.input.bytes.drain(..self.input.parsed);
        self.input.parsed = 0;
        self.input.bytes.extend(bytes);
        let prev_len = self.output.bytes.len();
        let result = self.parse_input(now, events);
        self.output.reply_bytes += self.output.bytes.len() - prev_len;
        result
    }

    /// Parses all complete messages of the input.
    fn parse_input(&mut self, now: Time, events: &mut Vec<Event>) -> Result<(), Fault> {
        loop {
            let skipped = self.input.skip.min(self.input.bytes.len() - self.input.parsed);
            self.input.skip -= skipped;
            self.input.parsed += skipped;
            // Moved out for the borrow checker: parsing borrows the input and changes the viewer.
            let bytes = std::mem::take(&mut self.input.bytes);
            let mut rest = &bytes[self.input.parsed..];
            let result = match &mut self.phase {
                Phase::Handshake(handshake) => handshake.step(&mut rest, &mut self.output.bytes),
                Phase::Waiting | Phase::Running => self.parse_message(&mut rest, now, events),
            };
            let left = rest.len();
            self.input.bytes = bytes;
            if !result? {
                return Ok(());
            }
            self.input.parsed = self.input.bytes.len() - left;
            if matches!(&self.phase, Phase::Handshake(handshake) if handshake.is_done()) {
                self.phase = Phase::Waiting;
            }
        }
    }

    /// Parses a message. Returns `false` if it is incomplete.
    fn parse_message(&mut self, rest: &mut &[u8], now: Time, events: &mut Vec<Event>) -> Result<bool, Fault> {
        let Some(length) = message_length(rest)? else { return Ok(false) };
        let Some((mut body, remaining)) = rest.split_at_checked(length) else { return Ok(false) };
        *rest = remaining;
        let kind = body.try_get_u8()?;
        if self.copy == CopyState::AwaitsInput && matches!(kind, to_server::KEY | to_server::POINTER) {
            self.request_copy(events);
        }
        match kind {
            to_server::SET_PIXEL_FORMAT => {
                body.advance(3);
                let bytes = body.try_into().map_err(|_| Fault::new("a pixel format is truncated"))?;
                let (format, has_colour_map) = PixelFormat::parse(bytes)?;
                self.encoder.set_format(format);
                (self.due.cursor, self.due.colour_map) = (true, has_colour_map);
            }
            to_server::SET_ENCODINGS => {
                body.advance(3);
                self.set_encodings(body);
            }
            to_server::UPDATE_REQUEST => {
                let is_incremental = body.try_get_u8()? != 0;
                let region = get_rectangle(&mut body)?;
                if !is_incremental {
                    self.damage.add(&region);
                }
                let requested = &mut self.requests.requested;
                *requested = Some(requested.map_or(region, |prev| enclosing(&prev, &region)));
            }
            to_server::KEY => {
                let pressed = body.try_get_u8()? != 0;
                body.advance(2);
                self.handle_key(body.try_get_u32()?, pressed, events);
            }
            to_server::POINTER => {
                let buttons = u16::from(body.try_get_u8()?);
                let (x, y) = (u32::from(body.try_get_u16()?), u32::from(body.try_get_u16()?));
                // A position outside the picture is moved to its edge.
                let (x, y) = (x.min(self.size.0.saturating_sub(1)), y.min(self.size.1.saturating_sub(1)));
                self.pressed.pointer = (x, y, buttons);
                events.push(Event::Pointer { x, y, buttons });
            }
            to_server::CUT_TEXT => {
                body.advance(3);
                self.handle_cut_text(body, events)?;
            }
            to_server::CONTINUOUS_UPDATES => {
                let is_on = body.try_get_u8()? != 0;
                let region = get_rectangle(&mut body)?;
                self.requests.continuous = is_on.then_some(region);
                if !is_on {
                    self.output.bytes.push(to_viewer::END_OF_CONTINUOUS_UPDATES);
                }
            }
            to_server::FENCE => {
                body.advance(3);
                let flags = body.try_get_u32()?;
                body.advance(1);
                self.handle_fence(flags, body, now);
            }
            to_server::SET_DESKTOP_SIZE => {
                body.advance(1);
                let (width, height) = (u32::from(body.try_get_u16()?), u32::from(body.try_get_u16()?));
                self.due.size_reply = true;
                if width > 0 && height > 0 {
                    let (width, height) = (width.min(SIDE_MAX), height.min(SIDE_MAX));
                    events.push(Event::Size { width, height });
                }
            }
            kind => return Err(Fault(format!("it sends a message of unknown type {kind}"))),
        }
        Ok(true)
    }

    fn handle_key(&mut self, keysym: u32, pressed: bool, events: &mut Vec<Event>) {
        let keys = &mut self.pressed.keys;
        match pressed {
            true if keys.len() >= KEYS_PRESSED_MAX && !keys.contains(&keysym) => return,
            true => keys.insert(keysym),
            false => keys.remove(&keysym),
        };
        events.push(Event::Key { keysym, pressed });
    }

    /// Processes a clipboard message, from its length field on.
    fn handle_cut_text(&mut self, mut body: &[u8], events: &mut Vec<Event>) -> Result<(), Fault> {
        let length = body.try_get_i32()?;
        let bytes = length.unsigned_abs() as usize;
        if body.len() < bytes {
            self.input.skip = bytes;
            return Ok(());
        }
        let Some(clipboard) = &mut self.clipboard else { return Ok(()) };
        let output = &mut self.output.bytes;
        let received = match length {
            0.. => Received::Text(from_latin_1(body)),
            _ => clipboard.handle(body, output)?,
        };
        match received {
            // KRDC sends one when a picture is copied on its host. The screen's clipboard keeps its content.
            Received::Text(text) if text.is_empty() => {}
            Received::Text(text) => events.push(Event::Text(text)),
            Received::Announcement => clipboard.request(output),
            Received::Request => self.request_copy(events),
            Received::Nothing => {}
        }
        Ok(())
    }

    fn set_encodings(&mut self, mut numbers: &[u8]) {
        let prev = std::mem::take(&mut self.capabilities);
        let mut chosen = None;
        self.encoder.has_gradient = true;
        while let Ok(number) = numbers.try_get_i32() {
            chosen = chosen.or(Encoding::from_number(number));
            let capabilities = &mut self.capabilities;
            match number {
                encoding::CURSOR => capabilities.cursor = true,
                encoding::CURSOR_WITH_ALPHA => capabilities.cursor_with_alpha = true,
                encoding::DESKTOP_SIZE => capabilities.desktop_size = true,
                encoding::EXTENDED_DESKTOP_SIZE => capabilities.extended_desktop_size = true,
                encoding::DESKTOP_NAME => capabilities.desktop_name = true,
                encoding::FENCE => capabilities.fence = true,
                encoding::TIGHT_PNG => self.encoder.has_gradient = false,
                encoding::CONTINUOUS_UPDATES => capabilities.continuous_updates = true,
                encoding::EXTENDED_CLIPBOARD => capabilities.extended_clipboard = true,
                _ => {}
            }
        }
        self.encoding = chosen.unwrap_or(Encoding::Raw);
        let is_new = |had: bool, has: bool| has && !had;
        let capabilities = self.capabilities;
        self.due.cursor |= is_new(prev.cursor, capabilities.cursor);
        self.due.cursor |= is_new(prev.cursor_with_alpha, capabilities.cursor_with_alpha);
        self.due.size |= is_new(prev.extended_desktop_size, capabilities.extended_desktop_size);
        // The first message of each of these extensions tells the viewer that the server supports it.
        let output = &mut self.output.bytes;
        if is_new(prev.fence, capabilities.fence) {
            emit_fence(output, fence::REQUEST, &[]);
        }
        if let Some(clipboard) = &mut self.clipboard
            && is_new(prev.extended_clipboard, capabilities.extended_clipboard)
        {
            clipboard.send_caps(output);
        }
        if is_new(prev.continuous_updates, capabilities.continuous_updates) {
            output.push(to_viewer::END_OF_CONTINUOUS_UPDATES);
        }
    }

    fn handle_fence(&mut self, flags: u32, payload: &[u8], now: Time) {
        if flags & fence::REQUEST != 0 {
            // Messages are processed in order, so both conditions hold.
            let supported = fence::BLOCK_BEFORE | fence::BLOCK_AFTER;
            return emit_fence(&mut self.output.bytes, flags & supported, payload);
        }
        if let [number] = payload {
            self.tracker.handle_reply(*number, now);
        }
    }

    /// Makes an update, if one is wanted and there is something to send. Returns whether there is new output.
    pub(super) fn update(&mut self, screen: &Screen, name: &str, now: Time) -> bool {
        if screen.is_empty() || !self.output().is_empty() {
            return false;
        }
        match self.phase {
            Phase::Running => {}
            Phase::Waiting => self.send_init(screen, name),
            Phase::Handshake(_) => return false,
        }
        if std::mem::take(&mut self.due.copy) {
            self.announce_copy();
        }
        let continuous = self.requests.continuous.filter(|_| self.tracker.has_room(now));
        let region = match (self.requests.requested, continuous) {
            (Some(a), Some(b)) => enclosing(&a, &b),
            (a, b) => match a.or(b) {
                Some(region) => region,
                None => return !self.output().is_empty(),
            },
        };
        let is_fenced = continuous.is_some() && self.capabilities.fence;
        if std::mem::take(&mut self.due.colour_map) {
            emit_colour_map(&mut self.output.bytes);
        }
        let start = self.output.bytes.len();
        self.output.bytes.extend([to_viewer::UPDATE, 0, 0, 0]);
        let mut sent = SentPixels { count: 0, compression: Compression::Compressed };
        let mut count = self.send_announcements(screen, name);
        match self.size_encoding().filter(|_| std::mem::take(&mut self.due.size)) {
            // A new size voids the viewer's picture, so pixels follow only in the next update.
            Some(number) => {
                self.send_size(screen, number);
                count += 1;
            }
            None => count += self.send_pixels(screen, &region, is_fenced, &mut sent),
        }
        if count == 0 {
            self.output.bytes.truncate(start);
            return start > 0;
        }
        self.output.bytes[start + 2..start + 4].copy_from_slice(&(count as u16).to_be_bytes());
        self.requests.requested = None;
        self.updates += 1;
        if is_fenced {
            let number = self.tracker.handle_sent(sent.count, sent.compression, now);
            emit_fence(&mut self.output.bytes, fence::REQUEST | fence::BLOCK_BEFORE, &[number]);
        }
        true
    }

    /// Sends the size, the pixel format and the name (7.3.2).
    fn send_init(&mut self, screen: &Screen, name: &str) {
        let Rectangle { width, height, .. } = screen.picture.whole();
        self.size = (width, height);
        // This message announces the size. An update with the size again would use up the only request of a viewer that
        // wants a single picture.
        self.due.size = self.capabilities.extended_desktop_size;
        self.damage = Damage::none(width, height);
        self.damage.add(&screen.picture.whole());
        let output = &mut self.output.bytes;
        output.extend((width as u16).to_be_bytes());
        output.extend((height as u16).to_be_bytes());
        output.extend(PixelFormat::NATIVE.emit());
        output.extend((name.len() as u32).to_be_bytes());
        output.extend(name.as_bytes());
        self.phase = Phase::Running;
    }

    /// Returns the encoding that announces a size, if the viewer supports one.
    fn size_encoding(&self) -> Option<i32> {
        match self.capabilities {
            Capabilities { extended_desktop_size: true, .. } => Some(encoding::EXTENDED_DESKTOP_SIZE),
            Capabilities { desktop_size: true, .. } => Some(encoding::DESKTOP_SIZE),
            _ => None,
        }
    }

    fn send_size(&mut self, screen: &Screen, number: i32) {
        let Rectangle { width, height, .. } = screen.picture.whole();
        self.size = (width, height);
        emit_rectangle(&mut self.output.bytes, &Rectangle { x: 0, y: 0, width, height }, number);
        if number == encoding::EXTENDED_DESKTOP_SIZE {
            self.send_screens(width, height);
        }
    }

    /// Sends the list of screens in an extended size, which always has one.
    fn send_screens(&mut self, width: u32, height: u32) {
        let output = &mut self.output.bytes;
        output.extend([1, 0, 0, 0]);
        // libvncclient (Remmina, KRDC, guacd) ignores a size whose screen has the identifier 0, and ends at the first pixel
        // outside the size before.
        output.extend(1u32.to_be_bytes());
        output.extend([0; 4]);
        output.extend((width as u16).to_be_bytes());
        output.extend((height as u16).to_be_bytes());
        output.extend([0; 4]);
    }

    /// Sends the announcements that are due, except the size. Returns the number of rectangles.
    fn send_announcements(&mut self, screen: &Screen, name: &str) -> usize {
        let mut count = 0;
        if std::mem::take(&mut self.due.cursor) && self.send_cursor(screen) {
            count += 1;
        }
        if std::mem::take(&mut self.due.name) && self.capabilities.desktop_name {
            let nowhere = Rectangle { x: 0, y: 0, width: 0, height: 0 };
            emit_rectangle(&mut self.output.bytes, &nowhere, encoding::DESKTOP_NAME);
            self.output.bytes.extend((name.len() as u32).to_be_bytes());
            self.output.bytes.extend(name.as_bytes());
            count += 1;
        }
        if std::mem::take(&mut self.due.size_reply) && self.capabilities.extended_desktop_size {
            // Reason 1 (this client), status 4 (request forwarded): the device may change its size later.
            let (width, height) = self.size;
            let reply = Rectangle { x: 1, y: 4, width, height };
            emit_rectangle(&mut self.output.bytes, &reply, encoding::EXTENDED_DESKTOP_SIZE);
            self.send_screens(width, height);
            count += 1;
        }
        count
    }

    /// Sends the pointer shape. Returns `false` if there is none or the viewer does not support shapes.
    fn send_cursor(&mut self, screen: &Screen) -> bool {
        let Some(cursor) = screen.cursor else { return false };
        let Viewer { output: Output { bytes: output, .. }, encoder, capabilities, .. } = self;
        let place =
            Rectangle { x: cursor.hot_x, y: cursor.hot_y, width: cursor.width, height: cursor.height };
        let pixels = &screen.cursor_pixels;
        if capabilities.cursor_with_alpha {
            emit_rectangle(output, &place, encoding::CURSOR_WITH_ALPHA);
            output.extend(encoding::RAW.to_be_bytes());
            // Red, green and blue, multiplied by the opacity.
            output.extend(pixels.as_chunks::<PIXEL_BYTES>().0.iter().flat_map(|[b, g, r, a]| {
                let times = |colour: &u8| ((u16::from(*colour) * u16::from(*a) + 127) / 255) as u8;
                [times(r), times(g), times(b), *a]
            }));
            return true;
        }
        if !capabilities.cursor {
            return false;
        }
        emit_rectangle(output, &place, encoding::CURSOR);
        let row_bytes = cursor.width as usize * PIXEL_BYTES;
        let rows = || pixels.chunks_exact(row_bytes.max(1));
        rows().for_each(|row| encoder.raw_row(row, output));
        for row in rows() {
            output.extend(row.as_chunks::<PIXEL_BYTES>().0.chunks(8).map(|group| {
                let bits = group.iter().enumerate().map(|(at, pixel)| u8::from(pixel[3] >= 128) << (7 - at));
                bits.fold(0, |byte, bit| byte | bit)
            }));
        }
        true
    }

    /// Sends the damage in a region as pixels, and stores their number and form in `sent`. Returns the number of
    /// rectangles. `is_fenced`: the viewer replies to a fence, so the update can be measured.
    fn send_pixels(
        &mut self,
        screen: &Screen,
        region: &Rectangle,
        is_fenced: bool,
        sent: &mut SentPixels,
    ) -> usize {
        let known = Rectangle { x: 0, y: 0, width: self.size.0, height: self.size.1 };
        let Some(region) = region.intersection(&known) else { return 0 };
        let mut rectangles = std::mem::take(&mut self.rectangles);
        rectangles.clear();
        self.damage.take(&region, &mut rectangles);
        let mut compression = Compression::Compressed;
        if is_fenced && self.encoding != Encoding::Raw {
            let is_trial;
            (compression, is_trial) = self.tracker.choose(rectangles.iter().map(area).sum());
            if is_trial {
                self.shrink_to_trial(&mut rectangles);
            }
        }
        *sent = SentPixels { count: rectangles.iter().map(area).sum(), compression };
        let encoding = if compression == Compression::Plain { Encoding::Raw } else { self.encoding };
        let mut count = 0;
        for rectangle in &rectangles {
            // A viewer without support for sizes gets the part that fits into the size it knows.
            if let Some(visible) = rectangle.intersection(&known) {
                let output = &mut self.output.bytes;
                count += self.encoder.encode(encoding, &screen.picture, &visible, output);
            }
        }
        self.rectangles = rectangles;
        count
    }

    /// Reduces the rectangles to about the pixels of a trial. The rest becomes damage again.
    fn shrink_to_trial(&mut self, rectangles: &mut Vec<Rectangle>) {
        let Some(largest) = rectangles.iter().copied().max_by_key(area) else { return };
        let rows = (TRIAL_PIXELS.div_ceil(largest.width.into()) as u32).next_multiple_of(TILE);
        let piece = Rectangle { height: rows.min(largest.height), ..largest };
        for rectangle in rectangles.drain(..) {
            if rectangle != largest {
                self.damage.add(&rectangle);
            }
        }
        if piece.height < largest.height {
            let (y, height) = (largest.y + piece.height, largest.height - piece.height);
            self.damage.add(&Rectangle { y, height, ..largest });
        }
        rectangles.push(piece);
    }
}

/// Appends the colour map of [`PixelFormat::MAPPED`] (7.6.2).
fn emit_colour_map(out: &mut Vec<u8>) {
    let colours = Expander::new(&PixelFormat::MAPPED);
    out.extend([to_viewer::COLOUR_MAP, 0, 0, 0, 1, 0]);
    for index in 0..256 {
        let [blue, green, red, _] = colours.pixel(index);
        out.extend([red, green, blue].iter().flat_map(|colour| (u16::from(*colour) * 257).to_be_bytes()));
    }
}

fn area(rectangle: &Rectangle) -> u64 {
    u64::from(rectangle.width) * u64::from(rectangle.height)
}

fn get_rectangle(body: &mut &[u8]) -> Result<Rectangle, Fault> {
    let mut side = || body.try_get_u16().map(u32::from);
    Ok(Rectangle { x: side()?, y: side()?, width: side()?, height: side()? })
}

/// Returns the smallest rectangle that contains two others.
fn enclosing(a: &Rectangle, b: &Rectangle) -> Rectangle {
    let (x, y) = (a.x.min(b.x), a.y.min(b.y));
    let (right, bottom) = ((a.x + a.width).max(b.x + b.width), (a.y + a.height).max(b.y + b.height));
    Rectangle { x, y, width: right - x, height: bottom - y }
}
