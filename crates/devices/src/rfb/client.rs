//! The client side of RFB without I/O: takes a server's bytes, keeps the picture and reports its changes.
//!
//! `handshake` runs on a blocking stream, in the broker. `Client` continues from there: `Client::receive` takes
//! bytes and `Client::next` parses them. The parser stops wherever a message is incomplete:
//!
//! | state | waits for | next state |
//! |---|---|---|
//! | `Message` | a whole message, or the header of an update | `Update` after such a header, `Skip` if there is data to ignore |
//! | `Skip` | the bytes to ignore | `Message` |
//! | `Update` | the header of a rectangle | `Rectangle`; `Message` after the last one |
//! | `Rectangle` | the content of the rectangle; of plain pixels, at least one row | `Update` |
//!
//! `Client::ask` requests updates:
//!
//! | state | `ask` | an update begins | resize |
//! |---|---|---|---|
//! | `FullDue` (initial) | requests the whole picture, → `Outstanding` | | |
//! | `Due` | requests changes, → `Outstanding` | | → `FullDue` |
//! | `Outstanding` | | → `Due`: the next request overlaps with this update | → `FullDue` |

use super::auth::{CHALLENGE_BYTES, Password};
use super::clipboard::{self, Clipboard, Received};
use super::decode::Decoder;
use super::picture::Picture;
use super::pixels::{PIXEL_BYTES, PixelFormat};
use super::protocol::{
    CURSOR_SIDE_MAX, Fault, VERSION, encoding, parse_version, security, to_server, to_viewer,
};
use crate::clipboard::{TEXT_BYTES_MAX, from_latin_1, to_latin_1};
use bytes::Buf;
use std::io::{self, Read, Write};
use wire::formats::video::{Cursor, Geometry, PixelFormat as VideoPixels, Rectangle};
use wire::formats::viewer::Event;

/// The most bytes of a server's reason or name.
const REASON_BYTES_MAX: usize = 4096;

/// The most pixels of a cursor that is accepted. A cursor larger than [`CURSOR_SIDE_MAX`] is cropped.
const CURSOR_AREA_MAX: usize = 1 << 20;

/// Bytes of a rectangle's header.
const RECTANGLE_HEADER_BYTES: usize = 12;

/// The encodings requested in addition to the preferred pixel encodings. Every server must support Raw.
const ENCODINGS: [i32; 8] = [
    encoding::COPY_RECT,
    encoding::RAW,
    encoding::CURSOR,
    encoding::CURSOR_WITH_ALPHA,
    encoding::DESKTOP_SIZE,
    encoding::EXTENDED_DESKTOP_SIZE,
    encoding::LAST_RECT,
    // Level 1, the fastest: the server is near, or the pipeline compresses the pixels again.
    encoding::COMPRESS_LEVEL_0 + 1,
];

/// Returns the encodings to request from the server of a desktop, the preferred ones first. `pixels` selects the pixel
/// encoding. With `raw` no other encoding is listed, since a server might prefer it to Raw.
pub(super) fn preferring(pixels: &str, desktop: &str, has_clipboard: bool) -> Vec<i32> {
    let pixels: &[i32] = match pixels {
        "zrle" => &[encoding::ZRLE],
        "raw" => &[],
        _ => &[encoding::TIGHT, encoding::ZRLE],
    };
    let clipboard: &[i32] = if has_clipboard { &[encoding::EXTENDED_CLIPBOARD] } else { &[] };
    let mut encodings: Vec<i32> = [pixels, &ENCODINGS, clipboard].concat();
    if is_qemu(desktop) {
        // QEMU exchanges red and blue in this encoding, and prefers it to the other one, which it sends well.
        encodings.retain(|number| *number != encoding::CURSOR_WITH_ALPHA);
    }
    encodings
}

/// Returns whether QEMU names its desktops like this: `QEMU`, or `QEMU (MACHINE)`.
fn is_qemu(desktop: &str) -> bool {
    desktop.strip_prefix("QEMU").is_some_and(|rest| rest.is_empty() || rest.starts_with(" ("))
}

/// A server's description of its screen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServerInit {
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) name: String,
}

/// Performs the handshake with a server (RFC 6143, 7.1 to 7.3). Reads no byte beyond it.
pub(super) fn handshake(
    stream: &mut (impl Read + Write),
    password: Option<&Password>,
) -> io::Result<ServerInit> {
    let mut version = [0; VERSION.len()];
    stream.read_exact(&mut version)?;
    let minor = parse_version(&version).map_err(rejected)?;
    let reply = match minor {
        8 => *VERSION,
        7 => *b"RFB 003.007\n",
        _ => *b"RFB 003.003\n",
    };
    stream.write_all(&reply)?;
    let kind = choose_security(stream, minor, password.is_some())?;
    if kind == security::PASSWORD {
        let password = password
            .ok_or_else(|| rejected(Fault::new("it requires a password: give `password_file=PATH`")))?;
        let mut challenge = [0; CHALLENGE_BYTES];
        stream.read_exact(&mut challenge)?;
        stream.write_all(&password.respond(&challenge))?;
    }
    if minor == 8 || kind == security::PASSWORD {
        let mut result = [0; 4];
        stream.read_exact(&mut result)?;
        if u32::from_be_bytes(result) != 0 {
            let reason = if minor == 8 { read_text(stream)? } else { "the password is wrong".into() };
            return Err(rejected(Fault(format!("it refuses: {reason}"))));
        }
    }
    // Shared: other viewers may stay connected.
    stream.write_all(&[1])?;
    let mut size = [0; 4];
    stream.read_exact(&mut size)?;
    // The server's own pixel format does not matter, since the client sets another one.
    stream.read_exact(&mut [0; PixelFormat::BYTES])?;
    let name = read_text(stream)?;
    let [width, height] = [u16::from_be_bytes([size[0], size[1]]), u16::from_be_bytes([size[2], size[3]])];
    check_size(width.into(), height.into()).map_err(rejected)?;
    Ok(ServerInit { width: width.into(), height: height.into(), name })
}

/// Chooses a security type that both sides support.
fn choose_security(stream: &mut (impl Read + Write), minor: u8, has_password: bool) -> io::Result<u8> {
    if minor == 3 {
        let mut kind = [0; 4];
        stream.read_exact(&mut kind)?;
        return match u32::from_be_bytes(kind) {
            0 => Err(rejected(Fault(format!("it refuses: {}", read_text(stream)?)))),
            1 => Ok(security::NONE),
            2 => Ok(security::PASSWORD),
            other => {
                Err(rejected(Fault(format!("it requires security type {other}; only 1 and 2 are supported"))))
            }
        };
    }
    let mut count = [0];
    stream.read_exact(&mut count)?;
    if count[0] == 0 {
        return Err(rejected(Fault(format!("it refuses: {}", read_text(stream)?))));
    }
    let mut kinds = vec![0; count[0].into()];
    stream.read_exact(&mut kinds)?;
    let preferred = match has_password {
        true => [security::PASSWORD, security::NONE],
        false => [security::NONE, security::PASSWORD],
    };
    let example = match kinds.contains(&security::TLS) {
        true => "GNOME: `gsettings set org.gnome.desktop.remote-desktop.vnc encryption \"['none']\"`",
        false => "TigerVNC: `-SecurityTypes VncAuth`",
    };
    let chosen = preferred.into_iter().find(|kind| kinds.contains(kind)).ok_or_else(|| {
        rejected(Fault(format!(
            "it offers only the security types {kinds:?}; supported are 1 (none) and 2 (VNC password): configure it to \
             offer one of these ({example})"
        )))
    })?;
    stream.write_all(&[chosen])?;
    Ok(chosen)
}

fn read_text(stream: &mut impl Read) -> io::Result<String> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length) as usize;
    if length > REASON_BYTES_MAX {
        return Err(rejected(Fault(format!("it sends a text of {length} bytes, over {REASON_BYTES_MAX}"))));
    }
    let mut text = vec![0; length];
    stream.read_exact(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn rejected(fault: Fault) -> io::Error {
    io::Error::other(fault.0)
}

/// Checks that a picture may have this size.
fn check_size(width: u32, height: u32) -> Result<Geometry, Fault> {
    Geometry::new(VideoPixels::Bgrx32, width, height)
        .map_err(|error| Fault(format!("its screen of {width}x{height} is not supported: {error}")))
}

/// An event that results from a server's bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ServerEvent {
    /// An update is complete; `Client::take_changes` returns the changes.
    Update,
    /// The pointer shape has changed: blue, green, red and opacity of each pixel.
    Cursor(Cursor, Vec<u8>),
    /// The server's clipboard has a new text; [`Client::request_text`] requests it.
    Copied,
    /// The text on the server's clipboard.
    Text(String),
}

/// The changes of a picture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Changes {
    /// The whole picture is new.
    All,
    /// These rectangles have changed.
    Only(Vec<Rectangle>),
}

/// A rectangle whose content is being read.
#[derive(Debug, Clone, Copy)]
struct PartialRectangle {
    rectangle: Rectangle,
    encoding: i32,
    /// The number of rows already read; only plain pixels are read row by row.
    rows: u32,
}

/// The state of the parser; see the table above. `left` is the number of rectangles that the update still has,
/// including the current one.
#[derive(Debug, Clone, Copy)]
enum ReadState {
    Message,
    Skip(usize),
    Update { left: u16 },
    Rectangle { left: u16, current: PartialRectangle },
}

/// The state of update requests; see the table above.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RequestState {
    FullDue,
    Due,
    Outstanding,
}

/// The result of one step of the parser.
enum Step {
    /// The input is incomplete.
    NeedsInput,
    /// Input was consumed or the state has changed.
    Continue,
    Event(ServerEvent),
}

/// A connection to a server after the handshake.
#[derive(Debug)]
pub(super) struct Client {
    decoder: Decoder,
    picture: Picture,
    /// Bytes to write to the server.
    pub(super) output: Vec<u8>,
    input: Vec<u8>,
    /// The number of bytes of `input` that are parsed.
    parsed: usize,
    state: ReadState,
    request: RequestState,
    changes: Vec<Rectangle>,
    /// The picture was made since the changes were last taken.
    is_new_picture: bool,
    /// The identifier and flags of the server's first screen, if the server accepts size requests.
    screen: Option<[u8; 8]>,
    clipboard: Clipboard,
}

impl Client {
    /// Makes a client after the handshake, and sets the pixel format and the encodings.
    pub(super) fn new(init: &ServerInit, format: PixelFormat, encodings: &[i32]) -> Client {
        let mut output = vec![to_server::SET_PIXEL_FORMAT, 0, 0, 0];
        output.extend(format.emit());
        output.extend([to_server::SET_ENCODINGS, 0, 0, encodings.len() as u8]);
        output.extend(encodings.iter().flat_map(|encoding| encoding.to_be_bytes()));
        Client {
            decoder: Decoder::new(format),
            picture: Picture::new(init.width, init.height),
            output,
            input: Vec::new(),
            parsed: 0,
            state: ReadState::Message,
            request: RequestState::FullDue,
            changes: Vec::new(),
            is_new_picture: true,
            screen: None,
            // The server only announces its texts: they are requested when the viewer has the focus.
            clipboard: Clipboard::new(to_server::CUT_TEXT, 0),
        }
    }

    pub(super) fn picture(&self) -> &Picture {
        &self.picture
    }

    /// Requests the next update, unless a request is outstanding.
    pub(super) fn ask(&mut self) {
        let is_incremental = match self.request {
            RequestState::Outstanding => return,
            RequestState::Due => true,
            RequestState::FullDue => false,
        };
        self.request = RequestState::Outstanding;
        self.output.extend([to_server::UPDATE_REQUEST, is_incremental.into(), 0, 0, 0, 0]);
        for side in [self.picture.width(), self.picture.height()] {
            self.output.extend((side as u16).to_be_bytes());
        }
    }

    /// Returns the changes since the last call, if there are any.
    pub(super) fn take_changes(&mut self) -> Option<Changes> {
        let changes = std::mem::take(&mut self.changes);
        match changes.is_empty() {
            true => None,
            false if std::mem::take(&mut self.is_new_picture) => Some(Changes::All),
            false => Some(Changes::Only(changes)),
        }
    }

    /// Sends an input event to the server.
    pub(super) fn send(&mut self, event: &Event) {
        match event {
            Event::Key { keysym, pressed } => {
                self.output.extend([to_server::KEY, (*pressed).into(), 0, 0]);
                self.output.extend(keysym.to_be_bytes());
            }
            Event::Pointer { x, y, buttons } => {
                // RFB has eight buttons: the cast drops the ninth.
                self.output.extend([to_server::POINTER, *buttons as u8]);
                self.output.extend((*x as u16).to_be_bytes());
                self.output.extend((*y as u16).to_be_bytes());
            }
            Event::Text(text) => {
                if self.clipboard.offer(text, &mut self.output) {
                    return;
                }
                let text = to_latin_1(text);
                self.output.extend([to_server::CUT_TEXT, 0, 0, 0]);
                self.output.extend((text.len() as u32).to_be_bytes());
                self.output.extend(text);
            }
            // The client has the whole picture: the caller sends it again. The caller requests texts, too.
            Event::Refresh | Event::Fetch => {}
            Event::Size { width, height } => self.send_size(*width, *height),
        }
    }

    /// Requests the text that the server has announced.
    pub(super) fn request_text(&mut self) {
        self.clipboard.request(&mut self.output);
    }

    /// Requests another size of the first screen, if the server accepts such requests.
    fn send_size(&mut self, width: u32, height: u32) {
        let Some(screen) = self.screen else { return };
        let size: Vec<u8> = [width, height].iter().flat_map(|side| (*side as u16).to_be_bytes()).collect();
        self.output.extend([to_server::SET_DESKTOP_SIZE, 0]);
        self.output.extend(&size);
        self.output.extend([1, 0]);
        self.output.extend(&screen[..4]);
        self.output.extend([0; 4]);
        self.output.extend(&size);
        self.output.extend(&screen[4..]);
    }

    /// Takes bytes from the server.
    pub(super) fn receive(&mut self, bytes: &[u8]) {
        self.input.drain(..self.parsed);
        self.parsed = 0;
        self.input.extend(bytes);
    }

    /// Returns the next event, if the input has a whole one.
    pub(super) fn next(&mut self) -> Result<Option<ServerEvent>, Fault> {
        loop {
            let step = match self.state {
                ReadState::Message => self.parse_message()?,
                ReadState::Skip(count) => self.skip(count),
                ReadState::Update { left: 0 } => {
                    self.state = ReadState::Message;
                    Step::Event(ServerEvent::Update)
                }
                ReadState::Update { left } => self.parse_rectangle_header(left)?,
                ReadState::Rectangle { left, current } => self.parse_rectangle(left, &current)?,
            };
            match step {
                Step::NeedsInput => return Ok(None),
                Step::Continue => {}
                Step::Event(event) => return Ok(Some(event)),
            }
        }
    }

    /// Returns the bytes that are not parsed.
    fn rest(&self) -> &[u8] {
        &self.input[self.parsed..]
    }

    fn skip(&mut self, count: usize) -> Step {
        let skipped = count.min(self.rest().len());
        self.parsed += skipped;
        self.state = match count - skipped {
            0 => ReadState::Message,
            left => ReadState::Skip(left),
        };
        if skipped == count { Step::Continue } else { Step::NeedsInput }
    }

    /// Parses a message, or the header of an update.
    fn parse_message(&mut self) -> Result<Step, Fault> {
        let mut rest = &self.input[self.parsed..];
        let Some(&kind) = rest.first() else { return Ok(Step::NeedsInput) };
        let header_bytes = match kind {
            to_viewer::UPDATE => 4,
            to_viewer::COLOUR_MAP => 6,
            to_viewer::BELL => 1,
            to_viewer::CUT_TEXT => 8,
            other => return Err(Fault(format!("it sends a message of unknown type {other}"))),
        };
        if rest.len() < header_bytes {
            return Ok(Step::NeedsInput);
        }
        match kind {
            to_viewer::UPDATE => {
                rest.advance(2);
                self.state = ReadState::Update { left: rest.try_get_u16()? };
                if self.request == RequestState::Outstanding {
                    self.request = RequestState::Due;
                }
            }
            to_viewer::COLOUR_MAP => {
                rest.advance(4);
                self.state = ReadState::Skip(usize::from(rest.try_get_u16()?) * 6);
            }
            to_viewer::CUT_TEXT => {
                rest.advance(4);
                // A negative length marks a message of Extended Clipboard.
                let length = rest.try_get_i32()?;
                let (is_latin_1, bytes) = (length >= 0, length.unsigned_abs() as usize);
                let bytes_max = if is_latin_1 { TEXT_BYTES_MAX / 2 } else { clipboard::MESSAGE_BYTES_MAX };
                if bytes > bytes_max {
                    self.state = ReadState::Skip(bytes);
                } else {
                    let Some(body) = rest.get(..bytes) else { return Ok(Step::NeedsInput) };
                    let received = match is_latin_1 {
                        true => Received::Text(from_latin_1(body)),
                        false => self.clipboard.handle(body, &mut self.output)?,
                    };
                    self.parsed += header_bytes + bytes;
                    return Ok(match received {
                        Received::Text(text) => Step::Event(ServerEvent::Text(text)),
                        Received::Announcement => Step::Event(ServerEvent::Copied),
                        Received::Nothing | Received::Request => Step::Continue,
                    });
                }
            }
            _ => {}
        }
        self.parsed += header_bytes;
        Ok(Step::Continue)
    }

    fn parse_rectangle_header(&mut self, left: u16) -> Result<Step, Fault> {
        let mut rest = self.rest();
        if rest.len() < RECTANGLE_HEADER_BYTES {
            return Ok(Step::NeedsInput);
        }
        let mut side = || rest.try_get_u16().map(u32::from);
        let rectangle = Rectangle { x: side()?, y: side()?, width: side()?, height: side()? };
        let encoding = rest.try_get_i32()?;
        self.parsed += RECTANGLE_HEADER_BYTES;
        let current = PartialRectangle { rectangle, encoding, rows: 0 };
        self.state = ReadState::Rectangle { left, current };
        Ok(Step::Continue)
    }

    /// Parses the content of a rectangle.
    fn parse_rectangle(&mut self, left: u16, current: &PartialRectangle) -> Result<Step, Fault> {
        let Rectangle { width, height, .. } = current.rectangle;
        let mut left_after = left - 1;
        let mut event = None;
        match current.encoding {
            encoding::LAST_RECT => left_after = 0,
            encoding::CURSOR | encoding::CURSOR_WITH_ALPHA => {
                let Some((cursor, bytes)) = self.parse_cursor(current)? else { return Ok(Step::NeedsInput) };
                self.parsed += bytes;
                event = Some(cursor);
            }
            encoding::DESKTOP_SIZE => self.resize(width, height)?,
            encoding::EXTENDED_DESKTOP_SIZE => {
                let Some(bytes) = self.parse_extended_size(&current.rectangle)? else {
                    return Ok(Step::NeedsInput);
                };
                self.parsed += bytes;
            }
            _ => {
                if !self.parse_pixels(left, current)? {
                    return Ok(Step::NeedsInput);
                }
            }
        }
        self.state = ReadState::Update { left: left_after };
        Ok(event.map_or(Step::Continue, Step::Event))
    }

    /// Parses pixels. Returns whether the rectangle is complete.
    fn parse_pixels(&mut self, left: u16, current: &PartialRectangle) -> Result<bool, Fault> {
        let PartialRectangle { rectangle, encoding, rows } = *current;
        if rectangle.width == 0 || rectangle.height == 0 {
            return Ok(true);
        }
        if rectangle.intersection(&self.picture.whole()) != Some(rectangle) {
            return Err(Fault::new("it sends pixels outside its picture"));
        }
        if encoding != encoding::RAW {
            let input = &self.input[self.parsed..];
            let consumed = self.decoder.decode(encoding, &rectangle, input, &mut self.picture)?;
            self.parsed += consumed.unwrap_or(0);
            if consumed.is_some() {
                self.changes.push(rectangle);
            }
            return Ok(consumed.is_some());
        }
        let row_bytes = rectangle.width as usize * self.decoder.format().pixel().bytes;
        let available = (self.rest().len() / row_bytes).min((rectangle.height - rows) as usize) as u32;
        for row in rows..rows + available {
            let line = &self.input[self.parsed..self.parsed + row_bytes];
            let into = self.picture.row_mut(rectangle.x, rectangle.y + row, rectangle.width);
            self.decoder.raw_row(line, into);
            self.parsed += row_bytes;
        }
        let rows = rows + available;
        let is_complete = rows == rectangle.height;
        match is_complete {
            true => self.changes.push(rectangle),
            false => {
                self.state = ReadState::Rectangle { left, current: PartialRectangle { rows, ..*current } }
            }
        }
        Ok(is_complete)
    }

    fn resize(&mut self, width: u32, height: u32) -> Result<(), Fault> {
        check_size(width, height)?;
        self.picture = Picture::new(width, height);
        self.changes.clear();
        self.is_new_picture = true;
        self.request = RequestState::FullDue;
        Ok(())
    }

    /// Parses the server's size and screens, or its reply to a size request. Returns the number of bytes.
    fn parse_extended_size(&mut self, rectangle: &Rectangle) -> Result<Option<usize>, Fault> {
        let rest = self.rest();
        let Some(&count) = rest.first() else { return Ok(None) };
        let bytes = 4 + usize::from(count) * 16;
        if rest.len() < bytes {
            return Ok(None);
        }
        if count > 0 {
            let mut screen = [0; 8];
            screen[..4].copy_from_slice(&rest[4..8]);
            screen[4..].copy_from_slice(&rest[16..20]);
            self.screen = Some(screen);
        }
        let (is_refused, size) = (rectangle.y != 0, (rectangle.width, rectangle.height));
        if !is_refused && size != (self.picture.width(), self.picture.height()) {
            self.resize(size.0, size.1)?;
        }
        Ok(Some(bytes))
    }

    /// Parses a pointer shape. Returns it with its number of bytes.
    fn parse_cursor(&self, current: &PartialRectangle) -> Result<Option<(ServerEvent, usize)>, Fault> {
        let Rectangle { x, y, width, height } = current.rectangle;
        let (across, down) = (width as usize, height as usize);
        if across * down > CURSOR_AREA_MAX {
            return Err(Fault(format!("it sends a cursor of {width}x{height} pixels")));
        }
        let packing = self.decoder.format().pixel();
        let with_alpha = current.encoding == encoding::CURSOR_WITH_ALPHA;
        let (pixel_bytes, mask_stride) =
            if with_alpha { (4, 0) } else { (packing.bytes, across.div_ceil(8)) };
        let header_bytes = if with_alpha { 4 } else { 0 };
        let pixels = across * down * pixel_bytes;
        let bytes = header_bytes + pixels + mask_stride * down;
        let Some(content) = self.rest().get(..bytes) else { return Ok(None) };
        if with_alpha && content[..4] != encoding::RAW.to_be_bytes() {
            return Err(Fault::new("it sends a cursor in an encoding other than Raw"));
        }
        let (kept_across, kept_down) =
            (across.min(CURSOR_SIDE_MAX as usize), down.min(CURSOR_SIDE_MAX as usize));
        let (colours, mask) = content[header_bytes..].split_at(pixels);
        let mut shape = Vec::with_capacity(kept_across * kept_down * PIXEL_BYTES);
        for row in 0..kept_down {
            for column in 0..kept_across {
                let colour = &colours[(row * across + column) * pixel_bytes..][..pixel_bytes];
                if with_alpha {
                    // Here the colours are multiplied by the opacity; in `video` they are not.
                    let opacity = u16::from(colour[3]).max(1);
                    let straight = |colour: u8| (u16::from(colour) * 255 / opacity).min(255) as u8;
                    shape.extend([straight(colour[2]), straight(colour[1]), straight(colour[0]), colour[3]]);
                } else {
                    let is_opaque = mask[row * mask_stride + column / 8] >> (7 - column % 8) & 1 == 1;
                    let [blue, green, red, _] = self.decoder.expander().pixel(packing.get(colour));
                    shape.extend([blue, green, red, if is_opaque { 255 } else { 0 }]);
                }
            }
        }
        let (width, height) = if shape.is_empty() { (0, 0) } else { (kept_across as u32, kept_down as u32) };
        let hot = |position: u32, side: u32| position.min(side.saturating_sub(1));
        let cursor = Cursor { width, height, hot_x: hot(x, width), hot_y: hot(y, height) };
        Ok(Some((ServerEvent::Cursor(cursor, shape), bytes)))
    }
}
