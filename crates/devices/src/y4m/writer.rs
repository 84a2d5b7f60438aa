//! The application side: writes pictures to a YUV4MPEG2 stream.
//!
//! A worker may be killed within a picture. All pictures have one size, so its successor finds the boundary:
//!
//! | stream | the picture is repeated | it is abandoned |
//! |---|---|---|
//! | file of this device | write the picture again, from its start | write the next picture in its place |
//! | FIFO, pipe, socket, standard output | write the rest | the next picture continues it: one torn picture |

use super::header::{self, FRAME_LINE};
use crate::pixels;
use crate::stream::{Channel, Framing, MessageWriter, PendingWrite, StreamWriter};
use buffers::Pool;
use contract::{Body, Bytes, Ctl, CtlReply, Message, PartnerError, PartnerResult, Pushed, RecoveryCtl};
use wire::formats::video::{Geometry, PixelFormat, unpack_yuyv};

/// The number of picture buffers that are recycled.
const PICTURES_KEPT: usize = 4;

/// Writes pictures. All have the geometry of the first one.
pub(super) struct Writer {
    writer: StreamWriter,
    /// The first line was written, by this worker or an earlier one.
    has_first_line: bool,
    /// The geometry of the stream, once it is known.
    geometry: Option<Geometry>,
    alignment: Alignment,
    pool: Pool,
}

/// The position at which this process begins to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Alignment {
    /// The stream has no positions, or begins with other data.
    Unknown,
    /// A file that begins with the first line: find the boundary of a picture before the first write.
    Due,
    Done,
}

impl Writer {
    /// `is_whole`: the stream begins with its first line.
    pub(super) fn new(name: String, channel: Channel, is_whole: bool) -> Self {
        let has_first_line = channel.is_in_use();
        let alignment = if is_whole && channel.is_on_disk() { Alignment::Due } else { Alignment::Unknown };
        let writer = StreamWriter::new(name, channel, Framing::none());
        Writer { writer, has_first_line, geometry: None, alignment, pool: Pool::new(0, 0) }
    }

    /// Writes the first line. Returns whether all of it is written.
    fn write_first_line(&mut self, geometry: &Geometry, first: &Message) -> PartnerResult<bool> {
        let problem = || PartnerError::Message("YUV4MPEG2 does not support this pixel format".into());
        let line = header::emit(geometry).ok_or_else(problem)?;
        let line = Message::new(first.created, Body::from(Bytes::from(line)));
        self.writer.push(line).map_err(|(error, _)| error)?;
        self.has_first_line = true;
        Ok(matches!(self.writer.flush()?, CtlReply::Done))
    }

    /// Returns the bytes of a frame, and its geometry in the stream.
    fn frame(&mut self, message: &Message) -> Result<(Body, Geometry), String> {
        let (from, picture) = pixels::picture(&message.body)?;
        let to = written(&from)?;
        if let Some(first) = self.geometry.filter(|first| *first != to) {
            let (first, current) = (describe(&first), describe(&to));
            return Err(format!(
                "the picture is {current} and the first one was {first}; all pictures of YUV4MPEG2 have one format: put \
                 `scale(width=.., height=..)` before it"
            ));
        }
        let mut body = Body::new();
        body.push(Bytes::from_static(FRAME_LINE));
        body.push(self.converted(&from, picture, &to));
        Ok((body, to))
    }

    /// Goes back to the boundary of a picture, or to the start if the first line is not complete. The part of a picture
    /// behind it stays: the next picture replaces it.
    fn align(&mut self, geometry: &Geometry) -> PartnerResult {
        let (Alignment::Due, Some(channel)) = (self.alignment, self.writer.channel()) else { return Ok(()) };
        let line_bytes = header::emit(geometry).map_or(0, |line| line.len() as u64);
        let boundary = match channel.position()?.checked_sub(line_bytes) {
            Some(pictures) => line_bytes + pictures - pictures % (FRAME_LINE.len() + geometry.bytes()) as u64,
            None => 0,
        };
        channel.seek(boundary)?;
        self.has_first_line = boundary > 0;
        self.alignment = Alignment::Done;
        Ok(())
    }

    /// Returns the pixels in planes, rows without padding; the same bytes, if they have that layout already.
    fn converted(&mut self, from: &Geometry, pixels: Bytes, to: &Geometry) -> Bytes {
        if from.pixels() == to.pixels() && from.is_tight() {
            return pixels;
        }
        if self.pool.capacity() != to.bytes() {
            self.pool = Pool::new(to.bytes(), PICTURES_KEPT);
        }
        let mut into = self.pool.take();
        match from.pixels() {
            PixelFormat::Yuyv => unpack_yuyv(from, &pixels, &mut into),
            PixelFormat::Rgb24 => separate::<3>(from, &pixels, &mut into, [0, 1, 2]),
            PixelFormat::Bgrx32 => separate::<4>(from, &pixels, &mut into, [2, 1, 0]),
            _ => {
                for number in 0..from.planes() {
                    let rows = from.plane(number).rows(&pixels).zip(to.plane(number).rows_mut(&mut into));
                    rows.for_each(|(from, into)| into.copy_from_slice(from));
                }
            }
        }
        into.freeze()
    }
}

/// Returns the geometry in which pictures of this geometry are written.
fn written(from: &Geometry) -> Result<Geometry, String> {
    let pixels = match from.pixels() {
        PixelFormat::Rgb24 | PixelFormat::Bgrx32 => PixelFormat::I444,
        PixelFormat::Yuyv => PixelFormat::I422,
        PixelFormat::Mjpeg => {
            return Err("YUV4MPEG2 has no compressed pictures (MJPG): set the device to a raw format".into());
        }
        plain => plain,
    };
    let (numerator, denominator) = from.rate();
    let to = Geometry::new(pixels, from.width(), from.height()).map_err(|error| error.to_string())?;
    Ok(to.with_rate(numerator, denominator))
}

fn describe(geometry: &Geometry) -> String {
    let fourcc = geometry.pixels().fourcc();
    let fourcc = String::from_utf8_lossy(&fourcc);
    let (numerator, denominator) = geometry.rate();
    format!("{fourcc} of {}x{} at {numerator}/{denominator} Hz", geometry.width(), geometry.height())
}

/// Converts red, green and blue to planes of Y, Cb and Cr. `offsets` are those of the colours in a pixel.
fn separate<const BYTES: usize>(from: &Geometry, picture: &[u8], into: &mut [u8], offsets: [usize; 3]) {
    let width = from.width() as usize;
    let (luma, chroma) = into.split_at_mut(width * from.height() as usize);
    let (blue, red) = chroma.split_at_mut(luma.len());
    let chroma = blue.chunks_exact_mut(width).zip(red.chunks_exact_mut(width));
    let planes = luma.chunks_exact_mut(width).zip(chroma);
    for (row, (luma, (blue, red))) in from.plane(0).rows(picture).zip(planes) {
        let into = luma.iter_mut().zip(blue.iter_mut().zip(red));
        for (pixel, (y, (cb, cr))) in row.as_chunks::<BYTES>().0.iter().zip(into) {
            [*y, *cb, *cr] = pixels::from_rgb(offsets.map(|offset| pixel[offset]));
        }
    }
}

impl MessageWriter for Writer {
    fn stream(&self) -> &StreamWriter {
        &self.writer
    }

    fn stream_mut(&mut self) -> &mut StreamWriter {
        &mut self.writer
    }

    fn push(&mut self, message: Message) -> Result<Pushed, (PartnerError, Message)> {
        match self.writer.flush() {
            Ok(CtlReply::Pending) => return Ok(Pushed::Full(message)),
            Ok(_) => {}
            Err(error) => return Err((error, message)),
        }
        let (body, geometry) = match self.frame(&message) {
            Ok(frame) => frame,
            Err(problem) => return Err((PartnerError::Message(problem), message)),
        };
        if let Err(error) = self.align(&geometry) {
            return Err((error, message));
        }
        // A write of its own, so that after a restart the count of written bytes concerns the picture alone.
        if !self.has_first_line {
            match self.write_first_line(&geometry, &message) {
                Ok(true) => {}
                Ok(false) => return Ok(Pushed::Full(message)),
                Err(error) => return Err((error, message)),
            }
        }
        self.geometry = Some(geometry);
        match self.writer.push(Message::new(message.created, body)) {
            Ok(Pushed::Taken) => Ok(Pushed::Taken),
            Ok(Pushed::Full(_)) => Ok(Pushed::Full(message)),
            Err((error, _)) => Err((error, message)),
        }
    }

    fn pending(&mut self) -> Option<&mut PendingWrite> {
        self.has_first_line.then(|| self.writer.pending())
    }

    fn resume_write(&mut self, operation: Ctl<'_>) -> PartnerResult<CtlReply> {
        match (self.alignment, self.pending(), operation) {
            // The whole picture is written again.
            (Alignment::Due, _, Ctl::Recovery(RecoveryCtl::Skip(_))) => Ok(CtlReply::Done),
            (_, Some(pending), operation) => pending.resume(operation),
            _ => Err(PartnerError::Unsupported("a partial first line")),
        }
    }

    fn abandon(&mut self, bytes: u64) -> PartnerResult<CtlReply> {
        self.resume_write(Ctl::Recovery(RecoveryCtl::Skip(bytes)))
    }

    /// Saves the first line, which must not be written twice.
    fn save_state(&self) -> PartnerResult<CtlReply> {
        let line = self.geometry.as_ref().and_then(header::emit);
        Ok(line.map_or(CtlReply::Pending, |line| CtlReply::Bytes(line.into_bytes())))
    }

    fn restore_state(&mut self, saved: &[u8]) -> PartnerResult<CtlReply> {
        let geometry = header::parse(saved.trim_ascii_end());
        self.geometry = Some(geometry.map_err(PartnerError::Message)?);
        self.has_first_line = true;
        Ok(CtlReply::Done)
    }
}
