//! Bodies of pictures to and from their coded form: a header of the format `video`, then the picture as VP8.

#[cfg(feature = "media")]
pub(crate) use with_codec::{Decoding, Encoding};
#[cfg(not(feature = "media"))]
pub(crate) use without_codec::Decoding;

#[cfg(feature = "media")]
mod with_codec {
    use crate::picture::{Memory, Picture};
    use contract::{Body, Bytes, StageError, StageResult, Time};
    use std::time::Duration;
    use video::planes::{Buffer, from_picture, to_picture};
    use video::{Decoder, Encoder, VpxError};
    use wire::formats::video::{Header, Kind, PixelFormat};

    /// Decodes pictures of a peer.
    pub(crate) struct Decoding {
        decoder: Decoder,
        memory: Memory,
    }

    impl Default for Decoding {
        fn default() -> Self {
            Decoding { decoder: Decoder::default(), memory: Memory::new() }
        }
    }

    impl Decoding {
        pub(crate) const IS_POSSIBLE: bool = true;

        /// Decodes the body of a coded picture into the body of the picture.
        pub(crate) fn decode(&mut self, mut body: Body) -> StageResult<Body> {
            let malformed = |problem: String| StageError::Input(problem);
            let header = body
                .take_front::<{ Header::BYTES }>()
                .ok_or_else(|| malformed("its header of a picture is cut short".into()))?;
            let header = Header::parse(&header).map_err(|error| malformed(error.to_string()))?;
            let geometry = header.geometry;
            if header.kind != Kind::Frame || geometry.pixels() == PixelFormat::Mjpeg {
                return Err(malformed("it is coded, but no picture in pixels".into()));
            }
            let planes = self
                .decoder
                .decode(body.as_slice(), geometry.width(), geometry.height())
                .map_err(|error| malformed(error.to_string()))?;
            let mut into = self.memory.take(Header::BYTES + geometry.bytes());
            into[..Header::BYTES].copy_from_slice(&header.emit());
            to_picture(&planes, &geometry, &mut into[Header::BYTES..]);
            Ok(into.freeze().into())
        }
    }

    /// Encodes pictures.
    #[derive(Default)]
    pub(crate) struct Encoding {
        encoder: Option<(Encoder, (u32, u32), u32)>,
        buffer: Buffer,
        /// Time of the last picture. libvpx demands that times rise.
        last_ticks: i64,
    }

    impl Encoding {
        /// Returns true if pictures of this size can be coded.
        pub(crate) fn can_code(width: u32, height: u32) -> bool {
            video::can_code(width, height)
        }

        /// Encodes a picture, made at `created` and shown for `interval`, at `rate_kbit`. Returns the coded body, and
        /// whether it is a key picture: on demand, as the first one, and when the size changed.
        pub(crate) fn encode(
            &mut self,
            picture: &Picture,
            (created, interval): (Time, Duration),
            rate_kbit: u32,
            is_key: bool,
        ) -> StageResult<(Body, bool)> {
            let own = |VpxError(text): VpxError| StageError::Own(format!("encode: {text}"));
            let geometry = picture.geometry;
            let size = (geometry.width(), geometry.height());
            let Some(planes) = from_picture(&geometry, &picture.pixels, &mut self.buffer) else {
                return Err(StageError::Own("encode: the picture is not in pixels".into()));
            };
            let fitting = self.encoder.take().filter(|(_, made_for, _)| *made_for == size);
            let (mut encoder, _, rate) = match fitting {
                Some(fitting) => fitting,
                None => {
                    let encoder = Encoder::new(size.0, size.1, rate_kbit)
                        .ok_or_else(|| StageError::Own("encode: no memory for an encoder".into()))?;
                    (encoder, size, rate_kbit)
                }
            };
            if rate != rate_kbit {
                encoder.set_rate(rate_kbit).map_err(own)?;
            }
            let ticks = |ns: u64| (u128::from(ns) * u128::from(Encoder::TICKS_HZ) / 1_000_000_000) as i64;
            let interval_ticks = ticks(interval.as_nanos() as u64) as u32;
            self.last_ticks = ticks(created.0).max(self.last_ticks + 1);
            let encoded = encoder.encode(&planes, self.last_ticks, interval_ticks, is_key).map_err(own)?;
            let is_key = encoded.is_key;
            let mut body = Body::from(Bytes::copy_from_slice(encoded.bytes));
            body.push_front(&Header::frame(geometry).emit());
            self.encoder = Some((encoder, size, rate_kbit));
            Ok((body, is_key))
        }
    }
}

#[cfg(not(feature = "media"))]
mod without_codec {
    use contract::{Body, StageError, StageResult};

    /// Refuses coded pictures.
    #[derive(Default)]
    pub(crate) struct Decoding {}

    impl Decoding {
        pub(crate) const IS_POSSIBLE: bool = false;

        /// Returns an error: this build has no decoder.
        pub(crate) fn decode(&mut self, _body: Body) -> StageResult<Body> {
            Err(StageError::Input(format!("it is coded, and {}", super::super::MISSING)))
        }
    }
}
