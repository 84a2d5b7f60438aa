//! The format `audio`: frames of sound without compression. `docs/reference/formats-audio.md` has the layout and vectors.

use crate::{Reader, WireError, Writer};

/// The most channels of a frame.
pub const CHANNELS_MAX: u8 = 8;
/// The slowest rate, in frames a second: that of a telephone.
pub const RATE_HZ_MIN: u32 = 8_000;
/// The fastest rate, in frames a second: that of a studio.
pub const RATE_HZ_MAX: u32 = 192_000;
/// The most frames of a message: the longest quantum of PipeWire.
pub const FRAMES_MAX: usize = 8192;
/// The bytes of a message before its samples.
pub const HEADER_BYTES: usize = 1 + 1 + 1 + 4 + 8;

const FRAMES: u8 = 0;

/// The encoding of one sample. All are little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SampleFormat {
    /// A signed integer of 16 bits.
    S16,
    /// A signed integer of 32 bits.
    S32,
    /// A floating-point number of 32 bits; full scale is -1 to 1.
    F32,
}

impl SampleFormat {
    /// The bytes of a sample.
    pub fn bytes(self) -> usize {
        match self {
            SampleFormat::S16 => 2,
            SampleFormat::S32 | SampleFormat::F32 => 4,
        }
    }

    fn parse(value: u8) -> Result<SampleFormat, WireError> {
        match value {
            0 => Ok(SampleFormat::S16),
            1 => Ok(SampleFormat::S32),
            2 => Ok(SampleFormat::F32),
            value => Err(WireError::Value { what: "sample format", value: value.into() }),
        }
    }
}

/// The properties of all samples of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SampleSpec {
    /// The encoding of a sample.
    pub format: SampleFormat,
    /// The samples of a frame: 1 to [`CHANNELS_MAX`]. Two are left and right.
    pub channels: u8,
    /// Frames a second: [`RATE_HZ_MIN`] to [`RATE_HZ_MAX`].
    pub rate_hz: u32,
}

impl SampleSpec {
    /// The bytes of a frame.
    pub fn frame_bytes(&self) -> usize {
        self.format.bytes() * usize::from(self.channels)
    }

    /// The time that `frames` take, rounded down.
    pub fn duration_ns(&self, frames: u64) -> u64 {
        let ns = u128::from(frames) * 1_000_000_000 / u128::from(self.rate_hz.max(1));
        u64::try_from(ns).unwrap_or(u64::MAX)
    }

    fn check(self) -> Result<SampleSpec, WireError> {
        if !(1..=CHANNELS_MAX).contains(&self.channels) {
            return Err(WireError::Value { what: "channels", value: self.channels.into() });
        }
        if !(RATE_HZ_MIN..=RATE_HZ_MAX).contains(&self.rate_hz) {
            return Err(WireError::Value { what: "rate", value: self.rate_hz.into() });
        }
        Ok(self)
    }
}

/// One message: frames that follow each other. The creation time of the message is that of its first frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frames<'a> {
    /// The properties of the samples.
    pub spec: SampleSpec,
    /// The number of the first frame since the source began. A jump shows frames that were lost.
    pub position: u64,
    /// The samples, interleaved: 1 to [`FRAMES_MAX`] whole frames.
    pub samples: &'a [u8],
}

impl<'a> Frames<'a> {
    /// Parses a message from the network. Samples may have any value; floating-point ones may also be no numbers.
    pub fn parse(body: &'a [u8]) -> Result<Frames<'a>, WireError> {
        let mut reader = Reader::new(body);
        match reader.u8("kind")? {
            FRAMES => {}
            value => return Err(WireError::Value { what: "kind", value: value.into() }),
        }
        let format = SampleFormat::parse(reader.u8("sample format")?)?;
        let (channels, rate_hz) = (reader.u8("channels")?, reader.u32("rate")?);
        let spec = SampleSpec { format, channels, rate_hz }.check()?;
        let position = reader.u64("position")?;
        let samples = reader.rest();
        let (frames, extra) = (samples.len() / spec.frame_bytes(), samples.len() % spec.frame_bytes());
        match (frames, extra) {
            (0, _) => {
                Err(WireError::Short { what: "frames", needed: spec.frame_bytes(), left: samples.len() })
            }
            (frames, _) if frames > FRAMES_MAX => {
                let (length, limit) = (frames as u64, FRAMES_MAX as u64);
                Err(WireError::TooLong { what: "frames", length, limit })
            }
            (_, 0) => Ok(Frames { spec, position, samples }),
            (_, left) => Err(WireError::Trailing { what: "frames", left }),
        }
    }

    /// Returns the bytes that [`Frames::parse`] reads.
    pub fn emit(&self) -> Vec<u8> {
        let SampleSpec { format, channels, rate_hz } = self.spec;
        let mut writer = Writer::new();
        writer.u8(FRAMES).u8(format as u8).u8(channels).u32(rate_hz).u64(self.position);
        writer.raw(self.samples).finish()
    }

    /// The number of frames.
    pub fn count(&self) -> usize {
        self.samples.len() / self.spec.frame_bytes()
    }

    /// The time that the frames take, rounded down.
    pub fn duration_ns(&self) -> u64 {
        self.spec.duration_ns(self.count() as u64)
    }

    /// Returns the samples, interleaved, -1 to 1 at full scale. Values that are no number are silence.
    pub fn to_f32(&self) -> Vec<f32> {
        decode(self.spec.format, self.samples)
    }
}

/// Returns the values of samples, -1 to 1 at full scale. Values that are no number are silence.
pub fn decode(format: SampleFormat, samples: &[u8]) -> Vec<f32> {
    match format {
        SampleFormat::S16 => samples
            .as_chunks()
            .0
            .iter()
            .map(|bytes| f32::from(i16::from_le_bytes(*bytes)) / 32_768.0)
            .collect(),
        SampleFormat::S32 => {
            let value = |bytes| (f64::from(i32::from_le_bytes(bytes)) / 2_147_483_648.0) as f32;
            samples.as_chunks().0.iter().map(|bytes| value(*bytes)).collect()
        }
        SampleFormat::F32 => {
            let value = |bytes| Some(f32::from_le_bytes(bytes)).filter(|value| value.is_finite());
            samples.as_chunks().0.iter().map(|bytes| value(*bytes).unwrap_or(0.0)).collect()
        }
    }
}

/// Returns the bytes of samples, which are -1 to 1 at full scale. Integers are rounded and limited to full scale, so values
/// that [`decode`] read from integers of 16 bits come back as they were.
pub fn encode(format: SampleFormat, samples: &[f32]) -> Vec<u8> {
    match format {
        SampleFormat::S16 => {
            let bytes = |value: &f32| ((value * 32_768.0).round() as i16).to_le_bytes();
            samples.iter().flat_map(bytes).collect()
        }
        SampleFormat::S32 => {
            let bytes = |value: &f32| ((f64::from(*value) * 2_147_483_648.0).round() as i32).to_le_bytes();
            samples.iter().flat_map(bytes).collect()
        }
        SampleFormat::F32 => samples.iter().flat_map(|value| value.to_le_bytes()).collect(),
    }
}
