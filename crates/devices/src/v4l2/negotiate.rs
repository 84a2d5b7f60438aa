//! Which pictures a node gives or takes: V4L2's words for them and ours, and the choice among what a driver has.

use crate::pixels::is_convertible;
use crate::plain::os;
use contract::{DeviceError, Options};
use std::io;
use std::os::fd::BorrowedFd;
use sys::v4l2::{self, Direction, PixelLayout};
use wire::formats::video::{Geometry, PixelFormat, SIDE_MAX};

/// What V4L2 calls what we have; of several names the usual first.
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

/// What readers of a node know best, where the pictures' own kind cannot be had.
const USUAL: [PixelFormat; 5] =
    [PixelFormat::Yuyv, PixelFormat::I420, PixelFormat::Rgb24, PixelFormat::Bgrx32, PixelFormat::Gray8];

fn known(fourcc: [u8; 4]) -> Option<PixelFormat> {
    NAMES.iter().find(|(name, _)| *name == fourcc).map(|(_, pixels)| *pixels)
}

fn shown(fourcc: [u8; 4]) -> String {
    String::from_utf8_lossy(&fourcc).into_owned()
}

/// What a user asks of the pictures.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Wanted {
    /// Pixels across and down.
    pub(super) size: Option<(u32, u32)>,
    /// Frames a second.
    pub(super) rate_hz: Option<f64>,
    /// What a pixel is.
    pub(super) pixels: Option<PixelFormat>,
}

impl Wanted {
    pub(super) fn of(options: &Options) -> Result<Wanted, String> {
        let size = match options.is_auto("size") {
            true => None,
            false => Some(parse_size(options.text("size"))?),
        };
        let rate_hz = (!options.is_auto("rate")).then(|| options.number("rate"));
        let named = |fourcc: &[u8; 4]| fourcc == options.text("pixels").as_bytes();
        let pixels = PixelFormat::ALL.iter().find(|(_, fourcc)| named(fourcc)).map(|(pixels, _)| *pixels);
        Ok(Wanted { size, rate_hz, pixels })
    }
}

fn parse_size(text: &str) -> Result<(u32, u32), String> {
    let sides = text.split_once('x').and_then(|(width, height)| {
        let side = |text: &str| text.parse().ok().filter(|side| (1..=SIDE_MAX).contains(side));
        Some((side(width)?, side(height)?))
    });
    sides.ok_or_else(|| format!("`{text}` is no size: write WIDTHxHEIGHT, such as 1280x720"))
}

/// A picture as a driver lays it out, at this time between frames.
fn geometry(layout: &PixelLayout, interval: (u32, u32)) -> Result<Geometry, String> {
    let pixels = known(layout.fourcc).ok_or_else(|| shown(layout.fourcc))?;
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

/// Frames a second as a time between them.
fn interval_of(rate_hz: f64) -> (u32, u32) {
    match rate_hz.fract() == 0.0 {
        true => (1, rate_hz as u32),
        false => (1000, (rate_hz * 1000.0).round() as u32),
    }
}

fn hz((numerator, denominator): (u32, u32)) -> f64 {
    f64::from(denominator) / f64::from(numerator.max(1))
}

/// Has a camera give pictures that come nearest to what is wanted: those it gives now, if they do.
pub(super) fn camera(node: BorrowedFd<'_>, name: &str, wanted: &Wanted) -> Result<Geometry, DeviceError> {
    let failed = |error| os(format!("choosing the pictures of {name}"), error, None);
    let now = v4l2::format(node, Direction::Capture).map_err(failed)?;
    let mut kinds = v4l2::formats(node, Direction::Capture).map_err(failed)?;
    kinds.insert(0, now.fourcc);
    let all = kinds.iter().map(|fourcc| shown(*fourcc)).skip(1).collect::<Vec<_>>().join(", ");
    kinds.retain(|fourcc| known(*fourcc).is_some_and(|pixels| wanted.pixels.is_none_or(|own| own == pixels)));
    let (width, height) = wanted.size.unwrap_or((now.width, now.height));
    let mut best: Option<(f64, [u8; 4])> = None;
    for fourcc in kinds {
        let got = set(node, fourcc, (width, height), wanted.rate_hz).map_err(failed)?;
        let (layout, interval) = got;
        if layout.fourcc != fourcc || geometry(&layout, interval).is_err() {
            continue;
        }
        let far = f64::from(layout.width.abs_diff(width) + layout.height.abs_diff(height)) * 1e3
            + wanted.rate_hz.map_or(0.0, |rate_hz| (hz(interval) - rate_hz).abs());
        if best.is_none_or(|(least, _)| far < least) {
            best = Some((far, fourcc));
        }
        if far < 0.5 {
            break;
        }
    }
    let Some((_, fourcc)) = best else {
        let problem = format!(
            "it gives {all}, and of these none that is wanted and crosses here: YUYV, YU12, 422P, RGB3, XR24, GREY, MJPG"
        );
        return Err(DeviceError::Spec { what: name.into(), problem });
    };
    let (layout, interval) = set(node, fourcc, (width, height), wanted.rate_hz).map_err(failed)?;
    let wrong = |problem| DeviceError::Spec { what: name.into(), problem };
    geometry(&layout, interval).map_err(|problem| wrong(format!("its pictures cannot cross: {problem}")))
}

fn set(
    node: BorrowedFd<'_>,
    fourcc: [u8; 4],
    (width, height): (u32, u32),
    rate_hz: Option<f64>,
) -> io::Result<(PixelLayout, (u32, u32))> {
    let asked = PixelLayout { width, height, fourcc, stride: 0, size_bytes: 0 };
    let now = v4l2::format(node, Direction::Capture)?;
    // What is so already is left alone: another program may be watching.
    let is_so = (now.fourcc, now.width, now.height) == (fourcc, width, height);
    let layout = if is_so { now } else { v4l2::set_format(node, Direction::Capture, &asked)? };
    let interval = match rate_hz {
        // A camera without a rate of its own keeps what it has.
        Some(rate_hz) => v4l2::set_interval(node, Direction::Capture, interval_of(rate_hz)),
        None => v4l2::interval(node, Direction::Capture),
    };
    Ok((layout, interval.unwrap_or((0, 0))))
}

/// Has a node take pictures as near to these as it can, and says which those are. Once it has readers, v4l2loopback
/// takes no others than they were told of.
pub(super) fn sink(node: BorrowedFd<'_>, pictures: &Geometry, wanted: &Wanted) -> Result<Geometry, String> {
    let (width, height) = wanted.size.unwrap_or((pictures.width(), pictures.height()));
    let own = wanted.pixels.unwrap_or(pictures.pixels());
    let others = USUAL.into_iter().filter(|_| wanted.pixels.is_none());
    let (numerator, denominator) = match wanted.rate_hz {
        Some(rate_hz) => interval_of(rate_hz),
        None => (pictures.rate().1, pictures.rate().0),
    };
    let mut answered = String::new();
    for pixels in std::iter::once(own).chain(others) {
        // Pixels that share their colour stay together: most readers have even sides only.
        let (across, down) = match pixels {
            PixelFormat::Yuyv | PixelFormat::I422 => (2, 1),
            PixelFormat::I420 => (2, 2),
            _ => (1, 1),
        };
        let (width, height) = (width.next_multiple_of(across), height.next_multiple_of(down));
        for (fourcc, _) in NAMES.iter().filter(|(_, named)| *named == pixels) {
            let asked = PixelLayout { width, height, fourcc: *fourcc, stride: 0, size_bytes: 0 };
            let Ok(layout) = v4l2::set_format(node, Direction::Output, &asked) else { continue };
            answered = shown(layout.fourcc);
            let Ok(taken) = geometry(&layout, (numerator, denominator)) else { continue };
            let is_usable = taken.pixels() == pictures.pixels()
                || is_convertible(taken.pixels()) && is_convertible(pictures.pixels());
            // A node that took anything else than was asked takes nothing but that.
            if is_usable && (taken.pixels() == pixels || wanted.pixels.is_none()) {
                if denominator > 0 {
                    // Only tells its readers; many drivers have no rate.
                    let _ = v4l2::set_interval(node, Direction::Output, (numerator, denominator));
                }
                return Ok(taken);
            }
        }
    }
    let theirs = shown(pictures.pixels().fourcc());
    Err(match answered.as_str() {
        "" => format!("it takes no pictures of {theirs}, nor of what these could be made into"),
        answered => format!(
            "its readers were told of {answered}, which pictures of {theirs} cannot be made into: close them, and attach again"
        ),
    })
}
