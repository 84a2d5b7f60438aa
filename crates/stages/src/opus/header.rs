//! The header in front of a body. `doc.md` has the layout.

use opusic_c::{Channels, SampleRate};
use wire::formats::audio::{SampleFormat, SampleSpec};

/// The bytes of the header of a packet.
pub(super) const BYTES: usize = 6;
/// The kind of a packet.
pub(super) const PACKET: u8 = 1;

/// The rates that the codec knows, in the order of their numbers in the header.
const RATES: [SampleRate; 5] =
    [SampleRate::Hz8000, SampleRate::Hz12000, SampleRate::Hz16000, SampleRate::Hz24000, SampleRate::Hz48000];
const FORMATS: [SampleFormat; 3] = [SampleFormat::S16, SampleFormat::S32, SampleFormat::F32];

/// The codec's name of a rate, if it knows it.
pub(super) fn rate(rate_hz: u32) -> Option<SampleRate> {
    RATES.into_iter().find(|rate| *rate as u32 == rate_hz)
}

/// The codec's name of a number of channels, if it knows it.
pub(super) fn channels(channels: u8) -> Option<Channels> {
    match channels {
        1 => Some(Channels::Mono),
        2 => Some(Channels::Stereo),
        _ => None,
    }
}

/// The header of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    /// The properties of the decoded samples.
    pub(super) spec: SampleSpec,
    /// The low bits of the position of the first frame.
    pub(super) position: u32,
}

impl Header {
    /// Returns the bytes; the codec must know the rate and the channels.
    pub(super) fn emit(&self) -> [u8; BYTES] {
        let rate = RATES.iter().position(|rate| *rate as u32 == self.spec.rate_hz).unwrap_or(0) as u8;
        let format = FORMATS.iter().position(|format| *format == self.spec.format).unwrap_or(0) as u8;
        let [a, b, c, d] = self.position.to_le_bytes();
        [PACKET, (self.spec.channels - 1) | format << 1 | rate << 3, a, b, c, d]
    }

    /// Parses the bytes; `None` if the second has an unknown value.
    pub(super) fn parse(bytes: [u8; BYTES]) -> Option<Header> {
        let [_, properties, position @ ..] = bytes;
        let format = *FORMATS.get(usize::from(properties >> 1 & 3))?;
        let rate_hz = *RATES.get(usize::from(properties >> 3))? as u32;
        let spec = SampleSpec { format, channels: 1 + (properties & 1), rate_hz };
        Some(Header { spec, position: u32::from_le_bytes(position) })
    }
}
