//! The line that a YUV4MPEG2 stream opens with, without I/O (yuv4mpeg(5) of the mjpegtools).

use wire::formats::video::{Geometry, PixelFormat};

/// What a stream opens with.
const MAGIC: &[u8] = b"YUV4MPEG2";
/// The line that every frame opens with, where it says no more.
pub(super) const FRAME_LINE: &[u8] = b"FRAME\n";

/// How the stream calls what we have, the common name first.
const COLOURS: &[(&str, PixelFormat)] = &[
    ("420jpeg", PixelFormat::I420),
    ("420", PixelFormat::I420),
    ("420mpeg2", PixelFormat::I420),
    ("420paldv", PixelFormat::I420),
    ("422", PixelFormat::I422),
    ("444", PixelFormat::I444),
    ("mono", PixelFormat::Gray8),
];

/// Reads the line, without its newline. Parameters that say nothing of where pixels lie are not looked at.
pub(super) fn parse(line: &[u8]) -> Result<Geometry, String> {
    let no_beginning = || {
        "it does not begin with YUV4MPEG2 (ffmpeg writes it with `-f yuv4mpegpipe`); where another has read the beginning, \
         start again what writes it"
    };
    let text = std::str::from_utf8(line).map_err(|_| no_beginning())?;
    let mut words = text.split(' ');
    if words.next().map(str::as_bytes) != Some(MAGIC) {
        return Err(no_beginning().into());
    }
    let (mut width, mut height, mut rate, mut pixels) = (None, None, (0, 1), PixelFormat::I420);
    for word in words.filter(|word| !word.is_empty()) {
        let wrong = || format!("`{word}` in its first line has no meaning");
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
                    format!("its colours are `{value}`: have them written as 420, 422, 444 or mono (ffmpeg: -pix_fmt yuv420p)")
                })?;
            }
            _ => {}
        }
    }
    let (Some(width), Some(height)) = (width, height) else {
        return Err("its first line says no width or no height".into());
    };
    let geometry = Geometry::new(pixels, width, height).map_err(|error| error.to_string())?;
    Ok(match rate {
        (0, _) | (_, 0) => geometry,
        (numerator, denominator) => geometry.with_rate(numerator, denominator),
    })
}

/// The line for pictures of this geometry, with its newline; `None` if such pixels have no name there.
pub(super) fn emit(geometry: &Geometry) -> Option<String> {
    let colour = COLOURS.iter().find(|(_, pixels)| *pixels == geometry.pixels())?.0;
    let (width, height) = (geometry.width(), geometry.height());
    let (numerator, denominator) = geometry.rate();
    let denominator = if numerator == 0 { 0 } else { denominator };
    Some(format!("YUV4MPEG2 W{width} H{height} F{numerator}:{denominator} Ip A0:0 C{colour}\n"))
}
