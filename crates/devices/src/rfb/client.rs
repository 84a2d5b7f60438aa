//! The client's side of RFB without I/O: a server's bytes in, a picture and what changed of it out.

use super::auth::{CHALLENGE_BYTES, Password};
use super::clipboard::{self, Clipboard};
use super::decode::Decoder;
use super::picture::Picture;
use super::pixels::{PIXEL_BYTES, PixelFormat};
use super::protocol::{
    CURSOR_SIDE_MAX, Fault, TEXT_BYTES_MAX, VERSION, encoding, from_latin_1, security, to_latin_1, to_server,
    to_viewer,
};
use bytes::Buf;
use std::io::{self, Read, Write};
use wire::formats::video::{Cursor, Geometry, PixelFormat as VideoPixels, Rectangle};
use wire::formats::viewer::Event;

/// Most bytes of a server's reason or name.
const REASON_BYTES_MAX: usize = 4096;

/// Most pixels of a cursor that is read at all; what is beyond [`CURSOR_SIDE_MAX`] is cut off.
const CURSOR_AREA_MAX: usize = 1 << 20;

/// What we ask for besides pixels, and the one that a server has to know.
const ENCODINGS: [i32; 9] = [
    encoding::COPY_RECT,
    encoding::RAW,
    encoding::CURSOR,
    encoding::CURSOR_WITH_ALPHA,
    encoding::DESKTOP_SIZE,
    encoding::EXTENDED_DESKTOP_SIZE,
    encoding::LAST_RECT,
    encoding::EXTENDED_CLIPBOARD,
    // The least effort: it is a local line, or it is compressed again behind us.
    encoding::COMPRESS_LEVEL_0 + 1,
];

/// What we ask for, the best first: pixels in the one that is named. What a server would take instead of plain ones is not.
pub(super) fn preferring(name: &str) -> Vec<i32> {
    let pixels: &[i32] = match name {
        "zrle" => &[encoding::ZRLE],
        "raw" => &[],
        _ => &[encoding::TIGHT, encoding::ZRLE],
    };
    [pixels, &ENCODINGS].concat()
}

/// What a server says of its screen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServerInit {
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) name: String,
}

/// Talks to a server up to its first picture (RFC 6143, 7.1 to 7.3). It reads no byte beyond that.
pub(super) fn handshake(
    stream: &mut (impl Read + Write),
    password: Option<&Password>,
) -> io::Result<ServerInit> {
    let mut version = [0; VERSION.len()];
    stream.read_exact(&mut version)?;
    let minor = parse_version(&version).map_err(refused)?;
    let spoken = match minor {
        8 => *VERSION,
        7 => *b"RFB 003.007\n",
        _ => *b"RFB 003.003\n",
    };
    stream.write_all(&spoken)?;
    let kind = choose_security(stream, minor, password.is_some())?;
    if kind == security::PASSWORD {
        let password = password
            .ok_or_else(|| refused(Fault::new("it asks for a password: give `password_file=PATH`")))?;
        let mut challenge = [0; CHALLENGE_BYTES];
        stream.read_exact(&mut challenge)?;
        stream.write_all(&password.answer(&challenge))?;
    }
    if minor == 8 || kind == security::PASSWORD {
        let mut result = [0; 4];
        stream.read_exact(&mut result)?;
        if u32::from_be_bytes(result) != 0 {
            let why = if minor == 8 { read_text(stream)? } else { "the password is wrong".into() };
            return Err(refused(Fault(format!("it refuses: {why}"))));
        }
    }
    // Others may look on, too.
    stream.write_all(&[1])?;
    let mut size = [0; 4];
    stream.read_exact(&mut size)?;
    // How its pixels lie is of no interest: it is told how they shall.
    stream.read_exact(&mut [0; PixelFormat::BYTES])?;
    let name = read_text(stream)?;
    let [width, height] = [u16::from_be_bytes([size[0], size[1]]), u16::from_be_bytes([size[2], size[3]])];
    check_size(width.into(), height.into()).map_err(refused)?;
    Ok(ServerInit { width: width.into(), height: height.into(), name })
}

/// The minor version to speak with who says this: 3, 7 or 8.
pub(super) fn parse_version(said: &[u8; VERSION.len()]) -> Result<u8, Fault> {
    let number = |digits: &[u8]| std::str::from_utf8(digits).ok()?.parse::<u16>().ok();
    match (&said[..4], number(&said[4..7]), said[7], number(&said[8..11]), said[11]) {
        (b"RFB ", Some(major), b'.', Some(minor), b'\n') => Ok(match (major, minor) {
            (..3, _) => return Err(Fault(format!("it speaks version {major}.{minor} of RFB, not 3"))),
            (3, ..7) => 3,
            (3, 7) => 7,
            _ => 8,
        }),
        _ => Err(Fault::new("it does not speak RFB")),
    }
}

/// Settles on a kind of security, if there is one that we have.
fn choose_security(stream: &mut (impl Read + Write), minor: u8, has_password: bool) -> io::Result<u8> {
    if minor == 3 {
        let mut kind = [0; 4];
        stream.read_exact(&mut kind)?;
        return match u32::from_be_bytes(kind) {
            0 => Err(refused(Fault(format!("it refuses: {}", read_text(stream)?)))),
            1 => Ok(security::NONE),
            2 => Ok(security::PASSWORD),
            other => Err(refused(Fault(format!("it asks for security of kind {other}: there is 1 and 2")))),
        };
    }
    let mut count = [0];
    stream.read_exact(&mut count)?;
    if count[0] == 0 {
        return Err(refused(Fault(format!("it refuses: {}", read_text(stream)?))));
    }
    let mut kinds = vec![0; count[0].into()];
    stream.read_exact(&mut kinds)?;
    let wanted = match has_password {
        true => [security::PASSWORD, security::NONE],
        false => [security::NONE, security::PASSWORD],
    };
    let chosen = wanted.into_iter().find(|kind| kinds.contains(kind)).ok_or_else(|| {
        refused(Fault(format!(
            "it has security of kinds {kinds:?} only, and here there is 1 (none) and 2 (VNC's password): have it offer one \
             of these (`-SecurityTypes VncAuth` of TigerVNC's)"
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
        return Err(refused(Fault(format!("a text of {length} bytes"))));
    }
    let mut text = vec![0; length];
    stream.read_exact(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn refused(fault: Fault) -> io::Error {
    io::Error::other(fault.0)
}

/// Whether a picture may have this size.
fn check_size(width: u32, height: u32) -> Result<Geometry, Fault> {
    Geometry::new(VideoPixels::Bgrx32, width, height)
        .map_err(|error| Fault(format!("its screen of {width}x{height} is none: {error}")))
}

/// What came of a server's bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Said {
    /// An update is complete: [`Client::take_changes`] has what changed.
    Update,
    /// The pointer has another shape: blue, green, red and opacity.
    Cursor(Cursor, Vec<u8>),
    /// Text was put on its clipboard.
    Text(String),
}

/// What changed of a picture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Changes {
    /// It is a new one.
    All,
    /// Some rectangles of it.
    Only(Vec<Rectangle>),
}

/// A rectangle that is being read.
#[derive(Debug, Clone, Copy)]
struct Reading {
    rectangle: Rectangle,
    encoding: i32,
    /// Rows of plain pixels that were read.
    rows: u32,
}

/// A connection to a server, from its first picture on.
#[derive(Debug)]
pub(super) struct Client {
    decoder: Decoder,
    picture: Picture,
    /// To be written to the server.
    pub(super) output: Vec<u8>,
    input: Vec<u8>,
    /// How much of `input` was read.
    read: usize,
    /// Rectangles that an update still has; all ones if it ends with one that says so.
    left: Option<u16>,
    reading: Option<Reading>,
    /// Bytes of a text too long for us.
    skip: usize,
    changes: Vec<Rectangle>,
    /// The picture is a new one.
    is_new: bool,
    /// The next update to be asked for is one of everything.
    ask_all: bool,
    /// An update was asked for and has not begun to come. While one comes the server makes the next.
    is_asked: bool,
    /// Identity and flags of the server's first screen, if it can be told a size.
    screen: Option<[u8; 8]>,
    clipboard: Clipboard,
}

impl Client {
    /// Begins to talk behind the handshake: pixels shall travel in this format and these encodings.
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
            read: 0,
            left: None,
            reading: None,
            skip: 0,
            changes: Vec::new(),
            is_new: true,
            ask_all: true,
            is_asked: false,
            screen: None,
            // A clipboard crosses the other way only.
            clipboard: Clipboard::new(to_server::CUT_TEXT, 0),
        }
    }

    pub(super) fn picture(&self) -> &Picture {
        &self.picture
    }

    /// Asks for an update of what changed since the last one, if none is asked for. The first is of everything.
    pub(super) fn ask(&mut self) {
        if std::mem::replace(&mut self.is_asked, true) && !self.ask_all {
            return;
        }
        let incremental = u8::from(!std::mem::take(&mut self.ask_all));
        self.output.extend([to_server::UPDATE_REQUEST, incremental, 0, 0, 0, 0]);
        for side in [self.picture.width(), self.picture.height()] {
            self.output.extend((side as u16).to_be_bytes());
        }
    }

    /// What changed since this was last called, if anything did.
    pub(super) fn take_changes(&mut self) -> Option<Changes> {
        let changes = std::mem::take(&mut self.changes);
        match changes.is_empty() {
            true => None,
            false if std::mem::take(&mut self.is_new) => Some(Changes::All),
            false => Some(Changes::Only(changes)),
        }
    }

    /// Tells the server what somebody did.
    pub(super) fn tell(&mut self, event: &Event) {
        match event {
            Event::Key { keysym, pressed } => {
                self.output.extend([to_server::KEY, (*pressed).into(), 0, 0]);
                self.output.extend(keysym.to_be_bytes());
            }
            Event::Pointer { x, y, buttons } => {
                // The protocol has eight buttons.
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
            // The picture is kept whole here.
            Event::Refresh => {}
            Event::Size { width, height } => self.tell_size(*width, *height),
        }
    }

    /// Asks for another size, of one screen; a server that cannot is not asked.
    fn tell_size(&mut self, width: u32, height: u32) {
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

    /// Takes bytes of the server's.
    pub(super) fn receive(&mut self, bytes: &[u8]) {
        self.input.drain(..self.read);
        self.read = 0;
        self.input.extend(bytes);
    }

    /// The next thing that the server said, if it is whole.
    pub(super) fn next(&mut self) -> Result<Option<Said>, Fault> {
        loop {
            let before = (self.read, self.left, self.skip);
            let said = match self.left {
                Some(_) => self.rectangle()?,
                None => self.message()?,
            };
            if said.is_some() {
                return Ok(said);
            }
            if before == (self.read, self.left, self.skip) {
                return Ok(None);
            }
        }
    }

    /// The bytes that were not read.
    fn rest(&self) -> &[u8] {
        &self.input[self.read..]
    }

    /// Reads a message, or the head of an update.
    fn message(&mut self) -> Result<Option<Said>, Fault> {
        if self.skip > 0 {
            let count = self.skip.min(self.rest().len());
            self.skip -= count;
            self.read += count;
            return Ok(None);
        }
        let mut rest = &self.input[self.read..];
        let Some(&kind) = rest.first() else { return Ok(None) };
        let head = match kind {
            to_viewer::UPDATE => 4,
            to_viewer::COLOUR_MAP => 6,
            to_viewer::BELL => 1,
            to_viewer::CUT_TEXT => 8,
            other => return Err(Fault(format!("it sends a message of kind {other}, which there is not"))),
        };
        if rest.len() < head {
            return Ok(None);
        }
        match kind {
            to_viewer::UPDATE => {
                rest.advance(2);
                self.left = Some(rest.try_get_u16()?);
                self.is_asked = false;
            }
            to_viewer::COLOUR_MAP => {
                rest.advance(4);
                self.skip = usize::from(rest.try_get_u16()?) * 6;
            }
            to_viewer::CUT_TEXT => {
                rest.advance(4);
                let length = rest.try_get_i32()?;
                let (is_old, bytes) = (length >= 0, length.unsigned_abs() as usize);
                if bytes > if is_old { TEXT_BYTES_MAX / 2 } else { clipboard::MESSAGE_BYTES_MAX } {
                    self.skip = bytes;
                } else {
                    let Some(body) = rest.get(..bytes) else { return Ok(None) };
                    let text = match is_old {
                        true => Some(from_latin_1(body)),
                        false => self.clipboard.handle(body, &mut self.output)?,
                    };
                    self.read += head + bytes;
                    return Ok(text.map(Said::Text));
                }
            }
            _ => {}
        }
        self.read += head;
        Ok(None)
    }

    /// Reads on in an update.
    fn rectangle(&mut self) -> Result<Option<Said>, Fault> {
        if self.left == Some(0) {
            self.left = None;
            return Ok(Some(Said::Update));
        }
        let Some(reading) = self.reading else {
            let mut rest = self.rest();
            if rest.len() < 12 {
                return Ok(None);
            }
            let mut side = || rest.try_get_u16().map(u32::from);
            let rectangle = Rectangle { x: side()?, y: side()?, width: side()?, height: side()? };
            let encoding = rest.try_get_i32()?;
            self.read += 12;
            self.reading = Some(Reading { rectangle, encoding, rows: 0 });
            return self.rectangle();
        };
        let before = self.read;
        let said = match reading.encoding {
            encoding::LAST_RECT => {
                self.left = Some(1);
                None
            }
            encoding::CURSOR | encoding::CURSOR_WITH_ALPHA => match self.cursor(&reading)? {
                Some((said, bytes)) => {
                    self.read += bytes;
                    Some(said)
                }
                None => return Ok(None),
            },
            encoding::DESKTOP_SIZE => {
                self.resize(reading.rectangle.width, reading.rectangle.height)?;
                None
            }
            encoding::EXTENDED_DESKTOP_SIZE => match self.extended_size(&reading.rectangle)? {
                Some(bytes) => {
                    self.read += bytes;
                    None
                }
                None => return Ok(None),
            },
            _ if !self.pixels(&reading)? => {
                // Some rows may have been read, which makes room.
                return match self.read == before {
                    true => Ok(None),
                    false => self.rectangle(),
                };
            }
            _ => None,
        };
        self.reading = None;
        self.left = self.left.map(|left| left - 1);
        Ok(said)
    }

    /// Reads pixels; says whether all were there.
    fn pixels(&mut self, reading: &Reading) -> Result<bool, Fault> {
        let Reading { rectangle, encoding, rows } = *reading;
        if rectangle.width == 0 || rectangle.height == 0 {
            return Ok(true);
        }
        if rectangle.intersection(&self.picture.whole()) != Some(rectangle) {
            return Err(Fault::new("it sends pixels that lie outside its picture"));
        }
        if encoding != encoding::RAW {
            let input = &self.input[self.read..];
            let taken = self.decoder.decode(encoding, &rectangle, input, &mut self.picture)?;
            self.read += taken.unwrap_or(0);
            if taken.is_some() {
                self.changes.push(rectangle);
            }
            return Ok(taken.is_some());
        }
        let row_bytes = rectangle.width as usize * self.decoder.format().pixel().bytes;
        let there = (self.rest().len() / row_bytes).min((rectangle.height - rows) as usize) as u32;
        for row in rows..rows + there {
            let line = &self.input[self.read..self.read + row_bytes];
            let into = self.picture.row_mut(rectangle.x, rectangle.y + row, rectangle.width);
            self.decoder.raw_row(line, into);
            self.read += row_bytes;
        }
        let is_whole = rows + there == rectangle.height;
        match is_whole {
            true => self.changes.push(rectangle),
            false => self.reading = Some(Reading { rows: rows + there, ..*reading }),
        }
        Ok(is_whole)
    }

    fn resize(&mut self, width: u32, height: u32) -> Result<(), Fault> {
        check_size(width, height)?;
        self.picture = Picture::new(width, height);
        self.changes.clear();
        (self.is_new, self.ask_all) = (true, true);
        Ok(())
    }

    /// The server's size and screens, or its answer to a wish for another size; says how many bytes these are.
    fn extended_size(&mut self, rectangle: &Rectangle) -> Result<Option<usize>, Fault> {
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

    /// The pointer's shape, and how many bytes it has.
    fn cursor(&self, reading: &Reading) -> Result<Option<(Said, usize)>, Fault> {
        let Rectangle { x, y, width, height } = reading.rectangle;
        let (across, down) = (width as usize, height as usize);
        if across * down > CURSOR_AREA_MAX {
            return Err(Fault(format!("a cursor of {width}x{height}")));
        }
        let packing = self.decoder.format().pixel();
        let with_alpha = reading.encoding == encoding::CURSOR_WITH_ALPHA;
        let (pixel_bytes, mask_stride) =
            if with_alpha { (4, 0) } else { (packing.bytes, across.div_ceil(8)) };
        let head = if with_alpha { 4 } else { 0 };
        let pixels = across * down * pixel_bytes;
        let bytes = head + pixels + mask_stride * down;
        let Some(all) = self.rest().get(..bytes) else { return Ok(None) };
        if with_alpha && all[..4] != encoding::RAW.to_be_bytes() {
            return Err(Fault::new("it sends a cursor in an encoding that is not plain"));
        }
        let (kept_across, kept_down) =
            (across.min(CURSOR_SIDE_MAX as usize), down.min(CURSOR_SIDE_MAX as usize));
        let (colours, mask) = all[head..].split_at(pixels);
        let mut shape = Vec::with_capacity(kept_across * kept_down * PIXEL_BYTES);
        for row in 0..kept_down {
            for column in 0..kept_across {
                let colour = &colours[(row * across + column) * pixel_bytes..][..pixel_bytes];
                if with_alpha {
                    // Its colours are multiplied by their opacity, ours are not.
                    let opacity = u16::from(colour[3]).max(1);
                    let straight = |colour: u8| (u16::from(colour) * 255 / opacity).min(255) as u8;
                    shape.extend([straight(colour[2]), straight(colour[1]), straight(colour[0]), colour[3]]);
                } else {
                    let is_seen = mask[row * mask_stride + column / 8] >> (7 - column % 8) & 1 == 1;
                    let [blue, green, red, _] = self.decoder.expander().pixel(packing.get(colour));
                    shape.extend([blue, green, red, if is_seen { 255 } else { 0 }]);
                }
            }
        }
        let (width, height) = match shape.is_empty() {
            true => (0, 0),
            false => (kept_across as u32, kept_down as u32),
        };
        let hot = |place: u32, side: u32| place.min(side.saturating_sub(1));
        let cursor = Cursor { width, height, hot_x: hot(x, width), hot_y: hot(y, height) };
        Ok(Some((Said::Cursor(cursor, shape), bytes)))
    }
}
