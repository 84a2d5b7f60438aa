//! The application's side: pictures to a stream of YUV4MPEG2.

use super::header::{self, FRAME_LINE};
use crate::pixels;
use crate::stream::{Channel, Framing, Inlet, Takes, Unwritten};
use buffers::Pool;
use contract::{Body, Bytes, CtlReply, Message, PartnerError, Pushed, Readiness};
use wire::formats::video::{Geometry, PixelFormat, unpack_yuyv};

/// Pictures' worth of memory kept for use again.
const PICTURES_KEPT: usize = 4;

/// Writes pictures of one geometry.
pub(super) struct Writer {
    inlet: Inlet,
    /// The first line was written, here or by somebody before.
    has_begun: bool,
    /// What is being written is a picture, and not the first line.
    is_picture: bool,
    /// Of all pictures, once it is known.
    geometry: Option<Geometry>,
    pool: Pool,
}

impl Writer {
    pub(super) fn new(name: String, channel: Channel) -> Self {
        let has_begun = channel.is_begun();
        let inlet = Inlet::new(name, channel, Framing::none());
        Writer { inlet, has_begun, is_picture: false, geometry: None, pool: Pool::new(0, 0) }
    }

    /// Writes the first line; says whether all of it.
    fn begin(&mut self, geometry: &Geometry, first: &Message) -> Result<bool, PartnerError> {
        let problem = || PartnerError::Message("such pixels have no name in YUV4MPEG2".into());
        let line = header::emit(geometry).ok_or_else(problem)?;
        let line = Message::new(first.created, Body::from(Bytes::from(line)));
        self.inlet.push(line).map_err(|(error, _)| error)?;
        self.has_begun = true;
        Ok(matches!(self.inlet.flush()?, CtlReply::Done))
    }

    /// The bytes of the stream for one message, and the geometry of what is in them.
    fn frame(&mut self, message: &Message) -> Result<(Body, Geometry), String> {
        let (from, picture) = pixels::picture(&message.body)?;
        let to = written(&from)?;
        if let Some(first) = self.geometry.filter(|first| *first != to) {
            let (was, is) = (describe(&first), describe(&to));
            return Err(format!(
                "the picture is {is} now and was {was}, and YUV4MPEG2 has one size: put `scale(width=.., height=..)` before"
            ));
        }
        let mut body = Body::new();
        body.push(Bytes::from_static(FRAME_LINE));
        body.push(self.laid_out(&from, picture, &to));
        Ok((body, to))
    }

    /// The pixels as YUV4MPEG2 has them: in planes, without what fills up rows. Shared if they lie so already.
    fn laid_out(&mut self, from: &Geometry, pixels: Bytes, to: &Geometry) -> Bytes {
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

/// How pictures of this geometry are written.
fn written(from: &Geometry) -> Result<Geometry, String> {
    let pixels = match from.pixels() {
        PixelFormat::Rgb24 | PixelFormat::Bgrx32 => PixelFormat::I444,
        PixelFormat::Yuyv => PixelFormat::I422,
        PixelFormat::Mjpeg => {
            return Err("YUV4MPEG2 has no compressed pictures (MJPG): have the device give raw ones".into());
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

/// Red, green and blue to planes of Y, Cb and Cr.
fn separate<const BYTES: usize>(from: &Geometry, picture: &[u8], into: &mut [u8], places: [usize; 3]) {
    let width = from.width() as usize;
    let (luma, chroma) = into.split_at_mut(width * from.height() as usize);
    let (blue, red) = chroma.split_at_mut(luma.len());
    let chroma = blue.chunks_exact_mut(width).zip(red.chunks_exact_mut(width));
    let planes = luma.chunks_exact_mut(width).zip(chroma);
    for (row, (luma, (blue, red))) in from.plane(0).rows(picture).zip(planes) {
        let into = luma.iter_mut().zip(blue.iter_mut().zip(red));
        for (pixel, (y, (cb, cr))) in row.as_chunks::<BYTES>().0.iter().zip(into) {
            [*y, *cb, *cr] = pixels::from_rgb(places.map(|place| pixel[place]));
        }
    }
}

impl Takes for Writer {
    fn push(&mut self, message: Message) -> Result<Pushed, (PartnerError, Message)> {
        match self.inlet.flush() {
            Ok(CtlReply::Pending) => return Ok(Pushed::Full(message)),
            Ok(_) => {}
            Err(error) => return Err((error, message)),
        }
        let (body, geometry) = match self.frame(&message) {
            Ok(frame) => frame,
            Err(problem) => return Err((PartnerError::Message(problem), message)),
        };
        // By itself, so that who goes on knows how much of a picture was written.
        if !self.has_begun {
            match self.begin(&geometry, &message) {
                Ok(true) => {}
                Ok(false) => return Ok(Pushed::Full(message)),
                Err(error) => return Err((error, message)),
            }
        }
        self.geometry = Some(geometry);
        self.is_picture = true;
        match self.inlet.push(Message::new(message.created, body)) {
            Ok(Pushed::Taken) => Ok(Pushed::Taken),
            Ok(Pushed::Full(_)) => Ok(Pushed::Full(message)),
            Err((error, _)) => Err((error, message)),
        }
    }

    fn unwritten(&mut self) -> Option<&mut Unwritten> {
        // What is skipped is a picture's, too.
        (self.is_picture || self.has_begun).then(|| self.inlet.unwritten()).flatten()
    }

    /// The first line, which is written once.
    fn leave(&self) -> Result<CtlReply, PartnerError> {
        let line = self.geometry.as_ref().and_then(header::emit);
        Ok(line.map_or(CtlReply::Pending, |line| CtlReply::Bytes(line.into_bytes())))
    }

    fn inherit(&mut self, left: &[u8]) -> Result<CtlReply, PartnerError> {
        let geometry = header::parse(left.trim_ascii_end());
        self.geometry = Some(geometry.map_err(PartnerError::Message)?);
        self.has_begun = true;
        Ok(CtlReply::Done)
    }

    fn flush(&mut self) -> Result<CtlReply, PartnerError> {
        self.inlet.flush()
    }

    fn finish(&mut self) -> Result<CtlReply, PartnerError> {
        self.inlet.finish()
    }

    fn close(&mut self) -> Result<(), PartnerError> {
        self.inlet.close()
    }

    fn readiness(&self) -> Readiness<'_> {
        self.inlet.readiness()
    }

    fn bytes(&self) -> u64 {
        self.inlet.bytes()
    }

    fn disk_full(&self) -> u64 {
        self.inlet.disk_full()
    }
}
