//! The first line of a YUV4MPEG2 stream, without I/O (yuv4mpeg(5) of the mjpegtools).

use wire::formats::video::{Geometry, PixelFormat};

/// The first word of a stream.
const MAGIC: &[u8] = b"YUV4MPEG2";
/// The line before each frame, without parameters.
pub(super) const FRAME_LINE: &[u8] = b"FRAME\n";

/// The stream's names of the pixel formats, the common name first.
const COLOURS: &[(&str, PixelFormat)] = &[
    ("420jpeg", PixelFormat::I420),
    ("420", PixelFormat::I420),
    ("420mpeg2", PixelFormat::I420),
    ("420paldv", PixelFormat::I420),
    ("422", PixelFormat::I422),
    ("444", PixelFormat::I444),
    ("mono", PixelFormat::Gray8),
];

/// Parses the first line, without its newline. Ignores parameters that do not concern size, rate and pixel format.
pub(super) fn parse(line: &[u8]) -> Result<Geometry, String> {
    let wrong_magic = || {
        "it does not begin with YUV4MPEG2 (ffmpeg: `-f yuv4mpegpipe`); if another program has read the beginning, restart \
         the program that writes it"
    };
    let text = std::str::from_utf8(line).map_err(|_| wrong_magic())?;
    let mut words = text.split(' ');
    if words.next().map(str::as_bytes) != Some(MAGIC) {
        return Err(wrong_magic().into());
    }
    let (mut width, mut height, mut rate, mut pixels) = (None, None, (0, 1), PixelFormat::I420);
    for word in words.filter(|word| !word.is_empty()) {
        let wrong = || format!("`{word}` in its first line is invalid");
        let Some((tag, value)) = word.split_at_checked(1) else { return Err(wrong()) };
        match tag {
            "W" => width = Some(value.parse().map_err(|_| wrong())?),
            "H" => height = Some(value.parse().map_err(|_| wrong())?),
            "F" => {
                let (numerator, denominator) = value.split_once(':').ok_or_else(wrong)?;
                rate = (numerator.parse().map_err(|_| wrong())?, denominator.parse().map_err(|_| wrong())?);
            }
            "C" => {
                let known = COLOURS.iter().find(|(name, _)| *name == value);
                pixels = known.map(|(_, pixels)| *pixels).ok_or_else(|| {
                    format!(
                        "its colours are `{value}`; supported are 420, 422, 444 and mono of 8 bits (ffmpeg: -pix_fmt yuv420p)"
                    )
                })?;
            }
            _ => {}
        }
    }
    let (Some(width), Some(height)) = (width, height) else {
        return Err("its first line has no width or no height".into());
    };
    let geometry = Geometry::new(pixels, width, height).map_err(|error| error.to_string())?;
    Ok(match rate {
        (0, _) | (_, 0) => geometry,
        (numerator, denominator) => geometry.with_rate(numerator, denominator),
    })
}

/// Returns the first line for pictures of this geometry, with its newline; `None` if the format does not support them.
pub(super) fn emit(geometry: &Geometry) -> Option<String> {
    let colour = COLOURS.iter().find(|(_, pixels)| *pixels == geometry.pixels())?.0;
    let (width, height) = (geometry.width(), geometry.height());
    let (numerator, denominator) = geometry.rate();
    let denominator = if numerator == 0 { 0 } else { denominator };
    Some(format!("YUV4MPEG2 W{width} H{height} F{numerator}:{denominator} Ip A0:0 C{colour}\n"))
}
