//! Negotiates the format of pictures with a node: maps V4L2's pixel formats to those of `video`, and chooses among the
//! formats of a driver.
//!
//! | the camera is set to | pictures by default |
//! |---|---|
//! | pixels in a layout of `video` | as the camera is set |
//! | JPEG, which no pair encodes, converts or scales; or a format that `video` lacks | raw pictures of the same size, if they have colours and are fast enough; else JPEG |

use crate::pixels::is_convertible;
use crate::plain::os;
use contract::{DeviceError, Options};
use rustix::io::Errno;
use std::io;
use std::os::fd::BorrowedFd;
use sys::v4l2::{self, Direction, PixelLayout};
use wire::formats::video::{Geometry, PixelFormat, SIDE_MAX};

/// V4L2's names of the pixel formats, the usual name first.
const NAMES: [([u8; 4], PixelFormat); 10] = [
    (*b"YUYV", PixelFormat::Yuyv),
    (*b"YU12", PixelFormat::I420),
    (*b"422P", PixelFormat::I422),
    (*b"RGB3", PixelFormat::Rgb24),
    (*b"XR24", PixelFormat::Bgrx32),
    (*b"AR24", PixelFormat::Bgrx32),
    (*b"BGR4", PixelFormat::Bgrx32),
    (*b"GREY", PixelFormat::Gray8),
    (*b"MJPG", PixelFormat::Mjpeg),
    (*b"JPEG", PixelFormat::Mjpeg),
];

/// The formats that most readers of a node support, the most common first. They are tried if a node does not accept the
/// format of the pictures.
const COMMON: [PixelFormat; 5] =
    [PixelFormat::Yuyv, PixelFormat::I420, PixelFormat::Rgb24, PixelFormat::Bgrx32, PixelFormat::Gray8];

/// Frames per second at which raw pictures replace JPEG of a higher rate: below that, everybody sees the difference, also on
/// a link that carries both.
const RAW_HZ_MIN: f64 = 25.0;
/// Two rates that differ by less are the same rate.
const RATE_TOLERANCE_HZ: f64 = 0.01;

fn known(fourcc: [u8; 4]) -> Option<PixelFormat> {
    NAMES.iter().find(|(name, _)| *name == fourcc).map(|(_, pixels)| *pixels)
}

fn text(fourcc: [u8; 4]) -> String {
    String::from_utf8_lossy(&fourcc).into_owned()
}

/// The user's options for the pictures.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct PictureOptions {
    /// Width and height.
    pub(crate) size: Option<(u32, u32)>,
    /// Frames per second.
    pub(crate) rate_hz: Option<f64>,
    /// The pixel format.
    pub(crate) pixels: Option<PixelFormat>,
}

impl PictureOptions {
    pub(crate) fn parse(options: &Options) -> Result<PictureOptions, String> {
        let size = if options.is_auto("size") { None } else { Some(parse_size(options.text("size"))?) };
        let rate_hz = (!options.is_auto("rate")).then(|| options.number("rate"));
        let named = |fourcc: &[u8; 4]| fourcc == options.text("pixels").as_bytes();
        let pixels = PixelFormat::ALL.iter().find(|(_, fourcc)| named(fourcc)).map(|(pixels, _)| *pixels);
        Ok(PictureOptions { size, rate_hz, pixels })
    }

    /// Returns the options that request exactly these pictures.
    pub(super) fn of(geometry: &Geometry) -> PictureOptions {
        let rate_hz = match geometry.rate() {
            (0, _) | (_, 0) => None,
            (numerator, denominator) => Some(f64::from(numerator) / f64::from(denominator)),
        };
        let size = Some((geometry.width(), geometry.height()));
        PictureOptions { size, rate_hz, pixels: Some(geometry.pixels()) }
    }
}

fn parse_size(text: &str) -> Result<(u32, u32), String> {
    let sides = text.split_once('x').and_then(|(width, height)| {
        let side = |text: &str| text.parse().ok().filter(|side| (1..=SIDE_MAX).contains(side));
        Some((side(width)?, side(height)?))
    });
    sides.ok_or_else(|| format!("`{text}` is not a size: write WIDTHxHEIGHT, such as 1280x720"))
}

/// Converts a driver's layout and frame interval to a geometry.
fn geometry(layout: &PixelLayout, interval: (u32, u32)) -> Result<Geometry, String> {
    let pixels = known(layout.fourcc).ok_or_else(|| text(layout.fourcc))?;
    let geometry = Geometry::new(pixels, layout.width, layout.height);
    let geometry = match pixels {
        PixelFormat::Mjpeg => geometry,
        _ => geometry.and_then(|geometry| geometry.with_stride(layout.stride)),
    };
    let geometry = geometry.map_err(|error| error.to_string())?;
    Ok(match interval {
        (0, _) | (_, 0) => geometry,
        (numerator, denominator) => geometry.with_rate(denominator, numerator),
    })
}

/// Converts frames per second to a frame interval in seconds, as a fraction.
pub(crate) fn interval_of(rate_hz: f64) -> (u32, u32) {
    if rate_hz.fract() == 0.0 { (1, rate_hz as u32) } else { (1000, (rate_hz * 1000.0).round() as u32) }
}

/// Converts a frame interval to frames per second; 0 if there is none.
fn hz((numerator, denominator): (u32, u32)) -> f64 {
    if numerator == 0 { 0.0 } else { f64::from(denominator) / f64::from(numerator) }
}

/// The format of a camera before the negotiation, and its formats.
#[derive(Debug)]
pub(super) struct Offer {
    pub(super) current: PixelLayout,
    /// The time between frames in the current format.
    pub(super) interval: (u32, u32),
    /// The driver's preference first.
    pub(super) formats: Vec<[u8; 4]>,
}

impl Offer {
    fn query(node: BorrowedFd<'_>) -> io::Result<Offer> {
        let current = v4l2::format(node, Direction::Capture)?;
        let interval = v4l2::interval(node, Direction::Capture).unwrap_or((0, 0));
        Ok(Offer { current, interval, formats: v4l2::formats(node, Direction::Capture)? })
    }

    /// Returns true if a raw format is better than the current one.
    fn prefers_raw(&self, options: &PictureOptions) -> bool {
        let current = known(self.current.fourcc);
        options.pixels.is_none() && current.is_none_or(|pixels| pixels == PixelFormat::Mjpeg)
    }

    fn size(&self, options: &PictureOptions) -> (u32, u32) {
        options.size.unwrap_or((self.current.width, self.current.height))
    }

    /// Returns the formats to try, the preferred one first.
    fn candidates(&self, options: &PictureOptions) -> Vec<[u8; 4]> {
        let is_preferred = |fourcc: &&[u8; 4]| self.prefers_raw(options) && is_raw(**fourcc);
        let raw = self.formats.iter().filter(is_preferred);
        let all = raw.chain([&self.current.fourcc]).chain(&self.formats).copied();
        let matches_options = |pixels| options.pixels.is_none_or(|wanted| wanted == pixels);
        all.filter(|fourcc| known(*fourcc).is_some_and(matches_options)).collect()
    }

    /// Returns the distance of pictures from the wanted ones. One pixel of size weighs as much as 1000 Hz of rate.
    fn distance(&self, options: &PictureOptions, layout: &PixelLayout, interval: (u32, u32)) -> f64 {
        let (width, height) = self.size(options);
        let rate = match options.rate_hz {
            Some(rate_hz) => (hz(interval) - rate_hz).abs(),
            None if self.prefers_raw(options) => (hz(self.interval).min(RAW_HZ_MIN) - hz(interval)).max(0.0),
            None => 0.0,
        };
        f64::from(layout.width.abs_diff(width) + layout.height.abs_diff(height)) * 1e3 + rate
    }
}

/// Returns true for pixels with colours.
fn is_raw(fourcc: [u8; 4]) -> bool {
    known(fourcc).is_some_and(|pixels| !matches!(pixels, PixelFormat::Mjpeg | PixelFormat::Gray8))
}

/// Chooses the format whose pictures come nearest to the options; `None` if the camera has none that is supported. `set` sets
/// the camera to a format, as near as possible to the wanted size and rate.
pub(super) fn choose(
    offer: &Offer,
    options: &PictureOptions,
    mut set: impl FnMut([u8; 4]) -> io::Result<(PixelLayout, (u32, u32))>,
) -> io::Result<Option<[u8; 4]>> {
    let mut best: Option<(f64, [u8; 4])> = None;
    let mut busy = None;
    for fourcc in offer.candidates(options) {
        let (layout, interval) = match set(fourcc) {
            // Another program uses the camera in its current format, which may do, too.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::BUSY) => {
                busy = Some(error);
                continue;
            }
            set => set?,
        };
        if layout.fourcc != fourcc || geometry(&layout, interval).is_err() {
            continue;
        }
        let distance = offer.distance(options, &layout, interval);
        if best.is_none_or(|(least, _)| distance < least) {
            best = Some((distance, fourcc));
        }
        if distance < 0.5 {
            break;
        }
    }
    match (best, busy) {
        (None, Some(error)) => Err(error),
        (best, _) => Ok(best.map(|(_, fourcc)| fourcc)),
    }
}

/// Sets a camera to the pictures that come nearest to the options.
pub(super) fn camera(
    node: BorrowedFd<'_>,
    name: &str,
    options: &PictureOptions,
) -> Result<Geometry, DeviceError> {
    let failed = |error| os(format!("choosing the pictures of {name}"), error, None);
    let wrong = |problem| DeviceError::Spec { what: name.into(), problem };
    let offer = Offer::query(node).map_err(failed)?;
    let size = offer.size(options);
    // The current format keeps its rate, also if another format was tried in between.
    let kept_hz = |fourcc| Some(hz(offer.interval)).filter(|hz| fourcc == offer.current.fourcc && *hz > 0.0);
    let try_format = |fourcc| set(node, fourcc, size, options.rate_hz.or(kept_hz(fourcc)));
    let Some(fourcc) = choose(&offer, options, try_format).map_err(failed)? else {
        let all = offer.formats.iter().map(|fourcc| text(*fourcc)).collect::<Vec<_>>().join(", ");
        return Err(wrong(format!(
            "its formats are {all}; none of them matches the options and is one of YUYV, YU12, 422P, RGB3, XR24, GREY, MJPG"
        )));
    };
    let (layout, interval) = try_format(fourcc).map_err(failed)?;
    geometry(&layout, interval).map_err(|problem| wrong(format!("its pictures are not supported: {problem}")))
}

/// Sets a camera to the announced pictures again, because another program may have set others. A camera that has lost that
/// format is set by the options, as at first.
pub(super) fn restore(
    node: BorrowedFd<'_>,
    name: &str,
    announced: &Geometry,
    options: &PictureOptions,
) -> Result<Geometry, DeviceError> {
    match camera(node, name, &PictureOptions::of(announced)) {
        Err(DeviceError::Spec { .. }) => camera(node, name, options),
        restored => restored,
    }
}

/// Returns the note for a camera with these formats that sends JPEG although its user did not ask for that.
pub(super) fn jpeg_note(name: &str, formats: &[[u8; 4]]) -> String {
    let raw = formats.iter().find(|fourcc| is_raw(**fourcc)).and_then(|fourcc| known(*fourcc));
    let advice = raw.map(|pixels| {
        format!(": `pixels={},size=640x480` requests pictures without these limits", text(pixels.fourcc()))
    });
    let advice = advice.unwrap_or_default();
    format!("{name} sends JPEG, which is neither encoded for a thin link nor converted nor scaled{advice}")
}

fn set(
    node: BorrowedFd<'_>,
    fourcc: [u8; 4],
    (width, height): (u32, u32),
    rate_hz: Option<f64>,
) -> io::Result<(PixelLayout, (u32, u32))> {
    let requested = PixelLayout { width, height, fourcc, stride: 0, size_bytes: 0 };
    let current = v4l2::format(node, Direction::Capture)?;
    // Do not set a format that is set already: another program may be using the camera.
    let is_set = (current.fourcc, current.width, current.height) == (fourcc, width, height);
    let layout = if is_set { current } else { v4l2::set_format(node, Direction::Capture, &requested)? };
    let interval = v4l2::interval(node, Direction::Capture).unwrap_or((0, 0));
    let differs = |rate_hz: &f64| (hz(interval) - rate_hz).abs() > RATE_TOLERANCE_HZ;
    let interval = match rate_hz.filter(differs) {
        // A camera without a settable rate returns an error and keeps its rate.
        Some(rate_hz) => {
            v4l2::set_interval(node, Direction::Capture, interval_of(rate_hz)).unwrap_or(interval)
        }
        None => interval,
    };
    Ok((layout, interval))
}

/// Sets a node to a format as near as possible to that of the pictures, and returns it. While v4l2loopback has readers,
/// it keeps the format that they know.
pub(super) fn sink(
    node: BorrowedFd<'_>,
    pictures: &Geometry,
    options: &PictureOptions,
) -> Result<Geometry, String> {
    let (width, height) = options.size.unwrap_or((pictures.width(), pictures.height()));
    let preferred = options.pixels.unwrap_or(pictures.pixels());
    let others = COMMON.into_iter().filter(|_| options.pixels.is_none());
    let (numerator, denominator) = match options.rate_hz {
        Some(rate_hz) => interval_of(rate_hz),
        None => (pictures.rate().1, pictures.rate().0),
    };
    let mut last_reply = String::new();
    for pixels in std::iter::once(preferred).chain(others) {
        // Most readers support only even sides for pixels that share Cb and Cr.
        let (across, down) = match pixels {
            PixelFormat::Yuyv | PixelFormat::I422 => (2, 1),
            PixelFormat::I420 => (2, 2),
            _ => (1, 1),
        };
        let (width, height) = (width.next_multiple_of(across), height.next_multiple_of(down));
        for (fourcc, _) in NAMES.iter().filter(|(_, named)| *named == pixels) {
            let requested = PixelLayout { width, height, fourcc: *fourcc, stride: 0, size_bytes: 0 };
            let Ok(layout) = v4l2::set_format(node, Direction::Output, &requested) else { continue };
            last_reply = text(layout.fourcc);
            let Ok(accepted) = geometry(&layout, (numerator, denominator)) else { continue };
            let is_usable = accepted.pixels() == pictures.pixels()
                || is_convertible(accepted.pixels()) && is_convertible(pictures.pixels());
            // A node that replies with a format other than the requested one accepts only that one.
            if is_usable && (accepted.pixels() == pixels || options.pixels.is_none()) {
                if denominator > 0 {
                    // Informs the readers only. Many drivers do not support it.
                    let _ = v4l2::set_interval(node, Direction::Output, (numerator, denominator));
                }
                return Ok(accepted);
            }
        }
    }
    let fourcc = text(pictures.pixels().fourcc());
    Err(match last_reply.as_str() {
        "" => format!("it takes neither {fourcc} pictures nor a format that they can be converted to"),
        format => format!(
            "its readers expect {format}, and {fourcc} pictures cannot be converted to that: close them and attach again"
        ),
    })
}
