//! The server's side of RFB without I/O: one viewer, its bytes in, what it did and what it is to be sent out.
//!
//! A viewer is never sent more than it can take: an update is made when all before it is on its way and the viewer
//! asked for one, out of what changed by then. However slow it is, it keeps nothing waiting and nothing waits for it.

use super::auth::{CHALLENGE_BYTES, Password};
use super::client::parse_version;
use super::clipboard::{self, Clipboard};
use super::encode::{Encoder, Encoding};
use super::picture::Screen;
use super::pixels::{Expander, PIXEL_BYTES, PixelFormat};
use super::protocol::{
    ENCODINGS_MAX, FENCE_BYTES_MAX, Fault, TEXT_BYTES_MAX, VERSION, emit_fence, emit_rectangle, encoding,
    fence, from_latin_1, security, to_server, to_viewer,
};
use super::way::{Choice, TRIAL, Way};
use crate::damage::{Damage, TILE};
use bytes::Buf;
use contract::Time;
use std::collections::BTreeSet;
use wire::formats::video::Rectangle;
use wire::formats::viewer::Event;

/// Keys that a viewer may hold down at a time; hands have fewer fingers.
const KEYS_HELD_MAX: usize = 64;

/// Bytes of answers beyond which a viewer that reads none of them is not read any more.
const ANSWER_BYTES_MAX: usize = 1 << 16;

/// What the user may choose.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) password: Option<Password>,
    /// The desktop's name.
    pub(super) name: String,
    /// Plain pixels are sent where that is quicker.
    pub(super) may_be_plain: bool,
}

/// Where a conversation stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Version,
    /// A kind of security is to be chosen.
    Security,
    Challenge,
    /// It is to say whether it shares the screen.
    Init,
    /// It is to be told the size of the first picture, which has not come.
    Waiting,
    Running,
}

/// What a viewer said that it understands.
#[derive(Debug, Clone, Copy, Default)]
struct Abilities {
    cursor: bool,
    cursor_with_alpha: bool,
    desktop_size: bool,
    extended_desktop_size: bool,
    desktop_name: bool,
    fence: bool,
    continuous_updates: bool,
    extended_clipboard: bool,
}

/// What is owed to a viewer besides pixels.
#[derive(Debug, Clone, Copy, Default)]
struct Owed {
    cursor: bool,
    name: bool,
    /// The colours of the numbers that its pixels are.
    colour_map: bool,
    /// The size, as news or for the first time.
    size: bool,
    /// The answer to its wish for another size.
    size_answer: bool,
}

/// One viewer.
#[derive(Debug)]
pub(super) struct Viewer {
    phase: Phase,
    minor: u8,
    password: Option<Password>,
    challenge: [u8; CHALLENGE_BYTES],
    input: Vec<u8>,
    /// How much of `input` was read.
    read: usize,
    /// Bytes of a text too long for us.
    skip: usize,
    output: Vec<u8>,
    /// How much of `output` was written.
    written: usize,
    /// How much was answered since all was written.
    answered: usize,
    encoder: Encoder,
    encoding: Encoding,
    abilities: Abilities,
    owed: Owed,
    /// What it was told last.
    size: (u32, u32),
    damage: Damage,
    requested: Option<Rectangle>,
    /// What it gets without asking.
    continuous: Option<Rectangle>,
    way: Way,
    keys: BTreeSet<u32>,
    pointer: (u32, u32, u16),
    clipboard: Clipboard,
    rectangles: Vec<Rectangle>,
    pub(super) updates: u64,
}

impl Viewer {
    /// Whether it waits for something that it has not been sent.
    pub(super) fn is_owed(&self) -> bool {
        self.requested.or(self.continuous).is_some() && !self.damage.is_empty()
    }

    /// Whether it failed to give the password.
    pub(super) fn is_refused(&self) -> bool {
        self.phase == Phase::Challenge
    }

    /// Begins to talk. `challenge` is to be random; it is used if there is a password.
    pub(super) fn new(settings: &Settings, challenge: [u8; CHALLENGE_BYTES]) -> Viewer {
        Viewer {
            phase: Phase::Version,
            minor: 8,
            password: settings.password.clone(),
            challenge,
            input: Vec::new(),
            read: 0,
            skip: 0,
            output: VERSION.to_vec(),
            written: 0,
            answered: 0,
            encoder: Encoder::new(PixelFormat::OURS),
            encoding: Encoding::Raw,
            abilities: Abilities::default(),
            owed: Owed::default(),
            size: (0, 0),
            damage: Damage::default(),
            requested: None,
            continuous: None,
            way: Way::new(settings.may_be_plain),
            keys: BTreeSet::new(),
            pointer: (0, 0, 0),
            clipboard: Clipboard::new(to_viewer::CUT_TEXT, TEXT_BYTES_MAX),
            rectangles: Vec::new(),
            updates: 0,
        }
    }

    /// Whether it is past its introduction.
    pub(super) fn is_running(&self) -> bool {
        matches!(self.phase, Phase::Waiting | Phase::Running)
    }

    /// What is to be written to it.
    pub(super) fn output(&self) -> &[u8] {
        &self.output[self.written..]
    }

    /// Whether it reads what it is answered. While a picture is on its way, what it does is still heard.
    pub(super) fn has_room(&self) -> bool {
        self.answered <= ANSWER_BYTES_MAX
    }

    /// So much of [`Viewer::output`] was written.
    pub(super) fn handle_written(&mut self, count: usize) {
        self.written += count;
        if self.written >= self.output.len() {
            self.output.clear();
            (self.written, self.answered) = (0, 0);
            // One large update makes no large buffer for ever.
            self.output.shrink_to(1 << 20);
        }
    }

    /// Keys and buttons that it holds down, as messages that let go of them.
    pub(super) fn release(&mut self) -> Vec<Event> {
        let keys = std::mem::take(&mut self.keys).into_iter();
        let mut events: Vec<_> = keys.map(|keysym| Event::Key { keysym, pressed: false }).collect();
        let (x, y, buttons) = self.pointer;
        if buttons != 0 {
            self.pointer.2 = 0;
            events.push(Event::Pointer { x, y, buttons: 0 });
        }
        events
    }

    /// What it holds down, as messages that press it.
    pub(super) fn held(&self) -> Vec<Event> {
        let mut events: Vec<_> =
            self.keys.iter().map(|&keysym| Event::Key { keysym, pressed: true }).collect();
        let (x, y, buttons) = self.pointer;
        if buttons != 0 {
            events.push(Event::Pointer { x, y, buttons });
        }
        events
    }

    /// The picture changed: where, or its size.
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
        self.owed.size |= (whole.width, whole.height) != self.size;
    }

    /// The pointer has another shape.
    pub(super) fn handle_cursor(&mut self) {
        self.owed.cursor = true;
    }

    /// The desktop has another name.
    pub(super) fn handle_name(&mut self) {
        self.owed.name = true;
    }

    /// Takes bytes of the viewer's; what it did goes to `events`.
    pub(super) fn receive(&mut self, bytes: &[u8], now: Time, events: &mut Vec<Event>) -> Result<(), Fault> {
        self.input.drain(..self.read);
        self.read = 0;
        self.input.extend(bytes);
        let before = self.output.len();
        let done = self.messages(now, events);
        self.answered += self.output.len() - before;
        done
    }

    /// Reads what came, as far as it is whole.
    fn messages(&mut self, now: Time, events: &mut Vec<Event>) -> Result<(), Fault> {
        loop {
            let skipped = self.skip.min(self.input.len() - self.read);
            self.skip -= skipped;
            self.read += skipped;
            // Borrowed apart from the rest of the viewer while it is read.
            let input = std::mem::take(&mut self.input);
            let mut rest = &input[self.read..];
            let taken = match self.phase {
                Phase::Waiting | Phase::Running => self.message(&mut rest, now, events),
                _ => self.introduction(&mut rest),
            };
            let left = rest.len();
            self.input = input;
            match taken? {
                true => self.read = self.input.len() - left,
                false => return Ok(()),
            }
        }
    }

    /// Reads a step of the introduction (RFC 6143, 7.1 to 7.3), if it is whole.
    fn introduction(&mut self, rest: &mut &[u8]) -> Result<bool, Fault> {
        match self.phase {
            Phase::Version => {
                let Some((version, behind)) = rest.split_first_chunk() else { return Ok(false) };
                self.minor = parse_version(version)?;
                *rest = behind;
                let kind = if self.password.is_some() { security::PASSWORD } else { security::NONE };
                if self.minor >= 7 {
                    self.output.extend([1, kind]);
                    self.phase = Phase::Security;
                } else {
                    self.output.extend(u32::from(kind).to_be_bytes());
                    self.begin_security();
                }
            }
            Phase::Security => {
                let Some((&kind, behind)) = rest.split_first() else { return Ok(false) };
                *rest = behind;
                let offered = if self.password.is_some() { security::PASSWORD } else { security::NONE };
                if kind != offered {
                    return Err(Fault(format!("it chose security of kind {kind}, which was not offered")));
                }
                self.begin_security();
            }
            Phase::Challenge => {
                let Some((answer, behind)) = rest.split_first_chunk() else { return Ok(false) };
                *rest = behind;
                let challenge = self.challenge;
                if !self.password.as_ref().is_some_and(|password| password.is_answer(&challenge, answer)) {
                    self.output.extend(1u32.to_be_bytes());
                    if self.minor >= 8 {
                        let reason = b"the password is wrong";
                        self.output.extend((reason.len() as u32).to_be_bytes());
                        self.output.extend(reason);
                    }
                    return Err(Fault::new("it gave a wrong password"));
                }
                self.output.extend(0u32.to_be_bytes());
                self.phase = Phase::Init;
            }
            _ => {
                // Whether it shares: here all do.
                let Some((_, behind)) = rest.split_first() else { return Ok(false) };
                *rest = behind;
                self.phase = Phase::Waiting;
            }
        }
        Ok(true)
    }

    fn begin_security(&mut self) {
        if self.password.is_some() {
            self.output.extend(self.challenge);
            self.phase = Phase::Challenge;
            return;
        }
        if self.minor >= 8 {
            self.output.extend(0u32.to_be_bytes());
        }
        self.phase = Phase::Init;
    }

    /// Reads a message, if it is whole.
    fn message(&mut self, rest: &mut &[u8], now: Time, events: &mut Vec<Event>) -> Result<bool, Fault> {
        let Some(length) = message_length(rest)? else { return Ok(false) };
        let Some((mut body, behind)) = rest.split_at_checked(length) else { return Ok(false) };
        *rest = behind;
        match body.try_get_u8()? {
            to_server::SET_PIXEL_FORMAT => {
                body.advance(3);
                let bytes = body.try_into().map_err(|_| Fault::new("a pixel format is cut short"))?;
                let (format, has_colour_map) = PixelFormat::parse(bytes)?;
                self.encoder.set_format(format);
                (self.owed.cursor, self.owed.colour_map) = (true, has_colour_map);
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
                self.requested = Some(self.requested.map_or(region, |before| around(&before, &region)));
            }
            to_server::KEY => {
                let pressed = body.try_get_u8()? != 0;
                body.advance(2);
                self.handle_key(body.try_get_u32()?, pressed, events);
            }
            to_server::POINTER => {
                let buttons = u16::from(body.try_get_u8()?);
                let (x, y) = (u32::from(body.try_get_u16()?), u32::from(body.try_get_u16()?));
                // A hand that leaves the window stays at its edge.
                let (x, y) = (x.min(self.size.0.saturating_sub(1)), y.min(self.size.1.saturating_sub(1)));
                self.pointer = (x, y, buttons);
                events.push(Event::Pointer { x, y, buttons });
            }
            to_server::CUT_TEXT => {
                body.advance(3);
                let length = body.try_get_i32()?;
                if body.len() < length.unsigned_abs() as usize {
                    self.skip = length.unsigned_abs() as usize;
                } else if length >= 0 {
                    events.push(Event::Text(from_latin_1(body)));
                } else {
                    let text = self.clipboard.handle(body, &mut self.output)?;
                    events.extend(text.map(Event::Text));
                }
            }
            to_server::CONTINUOUS_UPDATES => {
                let is_on = body.try_get_u8()? != 0;
                let region = get_rectangle(&mut body)?;
                self.continuous = is_on.then_some(region);
                if !is_on {
                    self.output.push(to_viewer::END_OF_CONTINUOUS_UPDATES);
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
                self.owed.size_answer = true;
                if width > 0 && height > 0 {
                    events.push(Event::Size { width: width.min(16384), height: height.min(16384) });
                }
            }
            kind => return Err(Fault(format!("a message of kind {kind}, which there is not"))),
        }
        Ok(true)
    }

    fn handle_key(&mut self, keysym: u32, pressed: bool, events: &mut Vec<Event>) {
        match pressed {
            true if self.keys.len() >= KEYS_HELD_MAX && !self.keys.contains(&keysym) => return,
            true => self.keys.insert(keysym),
            false => self.keys.remove(&keysym),
        };
        events.push(Event::Key { keysym, pressed });
    }

    fn set_encodings(&mut self, mut numbers: &[u8]) {
        let before = std::mem::take(&mut self.abilities);
        let mut chosen = None;
        self.encoder.has_gradient = true;
        while let Ok(number) = numbers.try_get_i32() {
            chosen = chosen.or(Encoding::from_number(number));
            let known = &mut self.abilities;
            match number {
                encoding::CURSOR => known.cursor = true,
                encoding::CURSOR_WITH_ALPHA => known.cursor_with_alpha = true,
                encoding::DESKTOP_SIZE => known.desktop_size = true,
                encoding::EXTENDED_DESKTOP_SIZE => known.extended_desktop_size = true,
                encoding::DESKTOP_NAME => known.desktop_name = true,
                encoding::FENCE => known.fence = true,
                encoding::TIGHT_PNG => self.encoder.has_gradient = false,
                encoding::CONTINUOUS_UPDATES => known.continuous_updates = true,
                encoding::EXTENDED_CLIPBOARD => known.extended_clipboard = true,
                _ => {}
            }
        }
        self.encoding = chosen.unwrap_or(Encoding::Raw);
        let is_new = |had: bool, has: bool| has && !had;
        let abilities = self.abilities;
        self.owed.cursor |= is_new(before.cursor, abilities.cursor);
        self.owed.cursor |= is_new(before.cursor_with_alpha, abilities.cursor_with_alpha);
        self.owed.size |= is_new(before.extended_desktop_size, abilities.extended_desktop_size);
        // A first one of each says that there is such a thing.
        if is_new(before.fence, abilities.fence) {
            emit_fence(&mut self.output, fence::REQUEST, &[]);
        }
        if is_new(before.extended_clipboard, abilities.extended_clipboard) {
            self.clipboard.introduce(&mut self.output);
        }
        if is_new(before.continuous_updates, abilities.continuous_updates) {
            self.output.push(to_viewer::END_OF_CONTINUOUS_UPDATES);
        }
    }

    fn handle_fence(&mut self, flags: u32, payload: &[u8], now: Time) {
        if flags & fence::REQUEST != 0 {
            // All before it is done already.
            let known = fence::BLOCK_BEFORE | fence::BLOCK_AFTER;
            return emit_fence(&mut self.output, flags & known, payload);
        }
        if let [number] = payload {
            self.way.arrive(*number, now);
        }
    }

    /// Makes an update, if it is due and there is something to say; says whether it did.
    pub(super) fn update(&mut self, screen: &Screen, name: &str, now: Time) -> bool {
        if screen.is_empty() || !self.output().is_empty() {
            return false;
        }
        match self.phase {
            Phase::Running => {}
            Phase::Waiting => self.begin(screen, name),
            _ => return false,
        }
        let continuous = self.continuous.filter(|_| self.way.is_free(now));
        let region = match (self.requested, continuous) {
            (Some(a), Some(b)) => around(&a, &b),
            (a, b) => match a.or(b) {
                Some(region) => region,
                None => return !self.output().is_empty(),
            },
        };
        let is_fenced = continuous.is_some() && self.abilities.fence;
        if std::mem::take(&mut self.owed.colour_map) {
            emit_colour_map(&mut self.output);
        }
        let start = self.output.len();
        self.output.extend([to_viewer::UPDATE, 0, 0, 0]);
        let mut sent = (0, Choice::Compressed);
        let mut count = self.extras(screen, name);
        match self.size_encoding().filter(|_| std::mem::take(&mut self.owed.size)) {
            // Nothing may stand behind it, for what lay before is void.
            Some(number) => {
                self.size(screen, number);
                count += 1;
            }
            None => count += self.pixels(screen, &region, is_fenced, &mut sent),
        }
        if count == 0 {
            self.output.truncate(start);
            return start > 0;
        }
        self.output[start + 2..start + 4].copy_from_slice(&(count as u16).to_be_bytes());
        self.requested = None;
        self.updates += 1;
        if is_fenced {
            let number = self.way.depart(sent.0, sent.1, now);
            emit_fence(&mut self.output, fence::REQUEST | fence::BLOCK_BEFORE, &[number]);
        }
        true
    }

    /// Tells it what there is to see (7.3.2).
    fn begin(&mut self, screen: &Screen, name: &str) {
        let Rectangle { width, height, .. } = screen.picture.whole();
        self.size = (width, height);
        // That is how it learns the size. Told once more instead of pixels, a viewer that asks for one picture never has it.
        self.owed.size = self.abilities.extended_desktop_size;
        self.damage = Damage::none(width, height);
        self.damage.add(&screen.picture.whole());
        self.output.extend((width as u16).to_be_bytes());
        self.output.extend((height as u16).to_be_bytes());
        self.output.extend(PixelFormat::OURS.emit());
        self.output.extend((name.len() as u32).to_be_bytes());
        self.output.extend(name.as_bytes());
        self.phase = Phase::Running;
    }

    /// How it can be told of another size, if at all.
    fn size_encoding(&self) -> Option<i32> {
        match self.abilities {
            Abilities { extended_desktop_size: true, .. } => Some(encoding::EXTENDED_DESKTOP_SIZE),
            Abilities { desktop_size: true, .. } => Some(encoding::DESKTOP_SIZE),
            _ => None,
        }
    }

    /// Says the size, once for all that changed it.
    fn size(&mut self, screen: &Screen, number: i32) {
        let Rectangle { width, height, .. } = screen.picture.whole();
        self.size = (width, height);
        emit_rectangle(&mut self.output, &Rectangle { x: 0, y: 0, width, height }, number);
        if number == encoding::EXTENDED_DESKTOP_SIZE {
            self.screens(width, height);
        }
    }

    /// The one screen of an extended size.
    fn screens(&mut self, width: u32, height: u32) {
        self.output.extend([1, 0, 0, 0]);
        self.output.extend([0; 8]);
        self.output.extend((width as u16).to_be_bytes());
        self.output.extend((height as u16).to_be_bytes());
        self.output.extend([0; 4]);
    }

    /// What is owed besides pixels and size; says how many rectangles that took.
    fn extras(&mut self, screen: &Screen, name: &str) -> usize {
        let mut count = 0;
        if std::mem::take(&mut self.owed.cursor) && self.cursor(screen) {
            count += 1;
        }
        if std::mem::take(&mut self.owed.name) && self.abilities.desktop_name {
            emit_rectangle(
                &mut self.output,
                &Rectangle { x: 0, y: 0, width: 0, height: 0 },
                encoding::DESKTOP_NAME,
            );
            self.output.extend((name.len() as u32).to_be_bytes());
            self.output.extend(name.as_bytes());
            count += 1;
        }
        if std::mem::take(&mut self.owed.size_answer) && self.abilities.extended_desktop_size {
            // Its wish was handed on, and may come true later.
            let (width, height) = self.size;
            let answer = Rectangle { x: 1, y: 4, width, height };
            emit_rectangle(&mut self.output, &answer, encoding::EXTENDED_DESKTOP_SIZE);
            self.screens(width, height);
            count += 1;
        }
        count
    }

    /// The pointer's shape, if there is one and the viewer draws it.
    fn cursor(&mut self, screen: &Screen) -> bool {
        let Some(cursor) = screen.cursor else { return false };
        let place =
            Rectangle { x: cursor.hot_x, y: cursor.hot_y, width: cursor.width, height: cursor.height };
        let pixels = &screen.cursor_pixels;
        if self.abilities.cursor_with_alpha {
            emit_rectangle(&mut self.output, &place, encoding::CURSOR_WITH_ALPHA);
            self.output.extend(encoding::RAW.to_be_bytes());
            // Red, green and blue here, multiplied by their opacity.
            self.output.extend(pixels.as_chunks::<PIXEL_BYTES>().0.iter().flat_map(|[b, g, r, a]| {
                let times = |colour: &u8| ((u16::from(*colour) * u16::from(*a) + 127) / 255) as u8;
                [times(r), times(g), times(b), *a]
            }));
            return true;
        }
        if !self.abilities.cursor {
            return false;
        }
        emit_rectangle(&mut self.output, &place, encoding::CURSOR);
        let row_bytes = cursor.width as usize * PIXEL_BYTES;
        let rows = || pixels.chunks_exact(row_bytes.max(1));
        rows().for_each(|row| self.encoder.raw_row(row, &mut self.output));
        for row in rows() {
            self.output.extend(row.as_chunks::<PIXEL_BYTES>().0.chunks(8).map(|some| {
                let bits = some.iter().enumerate().map(|(at, pixel)| u8::from(pixel[3] >= 128) << (7 - at));
                bits.fold(0, |byte, bit| byte | bit)
            }));
        }
        true
    }

    /// What changed in a region, as pixels; says how many rectangles that took, and in `sent` how many pixels went how.
    /// Only what is answered can be learned from.
    fn pixels(
        &mut self,
        screen: &Screen,
        region: &Rectangle,
        is_answered: bool,
        sent: &mut (u64, Choice),
    ) -> usize {
        let known = Rectangle { x: 0, y: 0, width: self.size.0, height: self.size.1 };
        let Some(region) = region.intersection(&known) else { return 0 };
        let mut rectangles = std::mem::take(&mut self.rectangles);
        rectangles.clear();
        self.damage.take(&region, &mut rectangles);
        let mut choice = Choice::Compressed;
        if is_answered && self.encoding != Encoding::Raw {
            let is_trial;
            (choice, is_trial) = self.way.choose(rectangles.iter().map(area).sum());
            if is_trial {
                self.keep_trial(&mut rectangles);
            }
        }
        *sent = (rectangles.iter().map(area).sum(), choice);
        let encoding = if choice == Choice::Plain { Encoding::Raw } else { self.encoding };
        let mut count = 0;
        for rectangle in &rectangles {
            // A viewer that cannot be told a size sees what fits into the one it knows.
            if let Some(seen) = rectangle.intersection(&known) {
                count += self.encoder.encode(encoding, &screen.picture, &seen, &mut self.output);
            }
        }
        self.rectangles = rectangles;
        count
    }

    /// Leaves of what changed as much as a trial takes; the rest is still to be sent.
    fn keep_trial(&mut self, rectangles: &mut Vec<Rectangle>) {
        let Some(largest) = rectangles.iter().copied().max_by_key(area) else { return };
        let rows = (TRIAL.div_ceil(largest.width.into()) as u32).next_multiple_of(TILE);
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

/// Says the colours of [`PixelFormat::MAPPED`] (7.6.2).
fn emit_colour_map(out: &mut Vec<u8>) {
    let colours = Expander::new(&PixelFormat::MAPPED);
    out.extend([to_viewer::COLOUR_MAP, 0, 0, 0, 1, 0]);
    for number in 0..256 {
        let [blue, green, red, _] = colours.pixel(number);
        out.extend([red, green, blue].iter().flat_map(|colour| (u16::from(*colour) * 257).to_be_bytes()));
    }
}

fn area(rectangle: &Rectangle) -> u64 {
    u64::from(rectangle.width) * u64::from(rectangle.height)
}

/// How long the message at the front is; `None` if that cannot be told yet. A text too long for us counts without
/// what is skipped.
fn message_length(rest: &[u8]) -> Result<Option<usize>, Fault> {
    let Some(&kind) = rest.first() else { return Ok(None) };
    let at = |at: usize, bytes: usize| rest.get(at..at + bytes);
    Ok(Some(match kind {
        to_server::SET_PIXEL_FORMAT => 20,
        to_server::SET_ENCODINGS => {
            let Some(count) = at(2, 2) else { return Ok(None) };
            let count = usize::from(u16::from_be_bytes([count[0], count[1]]));
            if count > ENCODINGS_MAX {
                return Err(Fault(format!("it lists {count} encodings, over {ENCODINGS_MAX}")));
            }
            4 + 4 * count
        }
        to_server::UPDATE_REQUEST | to_server::CONTINUOUS_UPDATES => 10,
        to_server::KEY => 8,
        to_server::POINTER => 6,
        to_server::CUT_TEXT => {
            let Some(mut length) = at(4, 4) else { return Ok(None) };
            let length = length.try_get_i32()?;
            // Latin-1 becomes up to twice as long in UTF-8. A negative length is that of an extended text.
            let bytes_max = if length < 0 { clipboard::MESSAGE_BYTES_MAX } else { TEXT_BYTES_MAX / 2 };
            let bytes = length.unsigned_abs() as usize;
            8 + if bytes <= bytes_max { bytes } else { 0 }
        }
        to_server::FENCE => {
            let Some(&[length]) = at(8, 1) else { return Ok(None) };
            if usize::from(length) > FENCE_BYTES_MAX {
                return Err(Fault(format!("a fence of {length} bytes, over {FENCE_BYTES_MAX}")));
            }
            9 + usize::from(length)
        }
        to_server::SET_DESKTOP_SIZE => {
            let Some(&[screens]) = at(6, 1) else { return Ok(None) };
            8 + 16 * usize::from(screens)
        }
        kind => return Err(Fault(format!("a message of kind {kind}, which there is not"))),
    }))
}

fn get_rectangle(body: &mut &[u8]) -> Result<Rectangle, Fault> {
    let mut side = || body.try_get_u16().map(u32::from);
    Ok(Rectangle { x: side()?, y: side()?, width: side()?, height: side()? })
}

/// The smallest rectangle around two.
fn around(a: &Rectangle, b: &Rectangle) -> Rectangle {
    let (x, y) = (a.x.min(b.x), a.y.min(b.y));
    let (right, bottom) = ((a.x + a.width).max(b.x + b.width), (a.y + a.height).max(b.y + b.height));
    Rectangle { x, y, width: right - x, height: bottom - y }
}
