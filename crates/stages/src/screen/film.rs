//! The film: the part of a screen that moves, as VP8, while the link is too slow for its pixels as they are.
//!
//! ```text
//! state   event                                                             → state
//! as is   hot tiles change before the link had room for them, and their     → coded
//!         pixels as they are need more than DEMAND_FROM of its rate
//! coded   they need less than DEMAND_TO, and the time of this state is over → as is; the next time in the state is twice as long
//! coded   the region is larger than a picture of VP8 may be                 → too large
//! large   TOO_LARGE_FOR is over                                             → as is
//! any     the other half has no decoder                                     → as is, for good
//! ```
//!
//! In the state *coded*, all tiles in motion are in one picture, whose region is the rectangle around them. Tiles of the region
//! that stand still keep the pixels with which they were last coded, so they cost next to nothing; a mask tells the sink half
//! which tiles to show. A region of another size begins with a key picture.

use super::TILE;
use super::canvas::{Canvas, PIXEL_BYTES};
use super::tiles::Tiles;
use crate::encode::Encoding;
use crate::picture::Picture;
use crate::varint;
use contract::{Body, Bytes, Choice, StageResult, Time, Value};
use std::time::Duration;
use wire::formats::video::{Geometry, Header, Kind, PixelFormat, Rectangle};

/// Shares of the link's rate that the moving pixels need, to begin and to end the film.
const DEMAND_FROM: f64 = 0.6;
const DEMAND_TO: f64 = 0.4;
/// Period of the measurement of that need.
const DEMAND_EVERY: Duration = Duration::from_millis(250);
/// Time in the state coded, and its bound.
const CODED_FOR: Duration = Duration::from_secs(2);
const CODED_FOR_MAX: Duration = Duration::from_secs(300);
/// Time without a film after its region was too large.
const TOO_LARGE_FOR: Duration = Duration::from_secs(2);
/// Shortest time between two pictures.
const INTERVAL_MIN: Duration = Duration::from_millis(28);
/// Time between two pictures before it is known, and its longest.
const INTERVAL_FIRST: Duration = Duration::from_millis(40);
const INTERVAL_MAX: Duration = Duration::from_secs(1);
/// Shares of the link's rate: of the film and the text together, and the least of the film.
const RATE_SHARE: f64 = 0.8;
const RATE_SHARE_MIN: f64 = 0.3;
/// Rate until the link is measured, and the lowest, thousands of bits a second.
const RATE_FIRST_KBIT: u32 = 1000;
const RATE_MIN_KBIT: u32 = 64;
/// Most bits for a pixel of each picture, on average.
const PIXEL_BITS_MAX: f64 = 1.0;
/// A change of the rate by less than this share is left to the next one.
const RATE_STEP: f64 = 0.05;
/// Tiles to whose multiples a region is extended, so that it changes rarely.
const ALIGN: u32 = 4;
/// A region is replaced when one with this fraction of its tiles is enough, and is not younger than this.
const SHRINK: u32 = 2;
const REGION_FOR: Duration = Duration::from_secs(3);

/// How moving tiles are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    AsIs,
    Coded {
        until: Time,
    },
    /// As they are, because the rectangle around them is too large for VP8.
    TooLarge {
        until: Time,
    },
    Undecodable,
}

/// The part of the screen in the film.
struct Region {
    /// In tiles, and in pixels.
    tiles: Rectangle,
    part: Rectangle,
    geometry: Geometry,
    /// The pixels as they were last coded; grey before.
    pixels: Vec<u8>,
    made_at: Time,
}

/// A coded picture.
pub(super) struct FilmPicture {
    pub(super) body: Body,
    /// The tiles that it shows.
    pub(super) tiles: Vec<usize>,
}

/// The film of a screen.
pub(super) struct Film {
    mode: Mode,
    coded_for: Duration,
    encoding: Encoding,
    region: Option<Region>,
    rate_kbit: u32,
    last_at: Option<Time>,
    interval: Duration,
    needs_key: bool,
    /// Time of the last key picture.
    key_at: Option<Time>,
    /// Begin of the measurement of the demand, hot changes since then, and bytes a second.
    demand: (Option<Time>, usize, f64),
    overrun: bool,
    pub(super) pictures: u64,
    pub(super) keys: u64,
}

impl Film {
    pub(super) fn new(is_allowed: bool) -> Film {
        Film {
            mode: if is_allowed { Mode::AsIs } else { Mode::Undecodable },
            coded_for: CODED_FOR,
            encoding: Encoding::default(),
            region: None,
            rate_kbit: RATE_FIRST_KBIT,
            last_at: None,
            interval: INTERVAL_FIRST,
            needs_key: false,
            key_at: None,
            demand: (None, 0, 0.0),
            overrun: false,
            pictures: 0,
            keys: 0,
        }
    }

    /// Returns true while moving tiles are left to the film.
    pub(super) fn is_on(&self) -> bool {
        matches!(self.mode, Mode::Coded { .. })
    }

    /// Returns true while the film has a part of the screen.
    pub(super) fn has_region(&self) -> bool {
        self.region.is_some()
    }

    /// Bits of the film, thousands a second.
    pub(super) fn rate_kbit(&self) -> u32 {
        self.rate_kbit
    }

    /// The current way of moving tiles and its reason, for a link of this rate.
    pub(super) fn choice(&self, rate: Option<f64>) -> Choice {
        let needed = self.demand.2 * 8e-6;
        let measured = match rate {
            None => "the link is not measured yet".into(),
            Some(rate) => {
                format!(
                    "the link carries {:.1} Mbit/s, and moving pixels need {needed:.1} as they are",
                    rate * 8e-6
                )
            }
        };
        let (value, why) = match self.mode {
            Mode::AsIs => ("exact", measured),
            Mode::Coded { .. } => ("vp8", format!("{measured}: encoded at {} kbit/s", self.rate_kbit)),
            Mode::TooLarge { .. } => {
                ("exact", format!("{measured}, but a region around them is too large for VP8"))
            }
            Mode::Undecodable => ("exact", "the other host's Outboard cannot decode VP8".into()),
        };
        Choice { option: "film", value: Value::Text(value.into()), why }
    }

    /// Bytes a second that moving tiles need as they are.
    pub(super) fn demand(&self) -> f64 {
        self.demand.2
    }

    /// The screen has another size.
    pub(super) fn restart(&mut self) {
        self.region = None;
    }

    pub(super) fn request_key(&mut self) {
        self.needs_key = true;
    }

    /// Returns true if the sink half did not yet have the last key picture when it sent what arrives now.
    pub(super) fn has_key_on_its_way(&self, round_trip: Option<Duration>, now: Time) -> bool {
        self.key_at.zip(round_trip).is_some_and(|(at, round_trip)| now < at.after(round_trip))
    }

    /// The other half has no decoder.
    pub(super) fn forbid(&mut self) {
        self.mode = Mode::Undecodable;
        self.region = None;
    }

    /// Chooses the state after a message was compared. `tile_bytes` are those of a moving tile as it is, compressed.
    pub(super) fn choose_mode(&mut self, tiles: &mut Tiles, tile_bytes: f64, rate: Option<f64>, now: Time) {
        self.overrun |= std::mem::take(&mut tiles.overrun) > 0;
        self.demand.1 += std::mem::take(&mut tiles.hot_changes);
        let since = *self.demand.0.get_or_insert(now);
        let time = now.since(since);
        if time < DEMAND_EVERY {
            return;
        }
        self.demand = (Some(now), 0, self.demand.1 as f64 * tile_bytes / time.as_secs_f64());
        let exceeds = |share| rate.is_none_or(|rate| self.demand.2 > rate * share);
        let overrun = std::mem::take(&mut self.overrun);
        match self.mode {
            Mode::AsIs if overrun && exceeds(DEMAND_FROM) => {
                self.mode = Mode::Coded { until: now.after(self.coded_for) };
            }
            // A screen that stands still says nothing about the next film, and costs nothing in this state.
            Mode::Coded { until } if now >= until && self.demand.2 > 0.0 && !exceeds(DEMAND_TO) => {
                self.coded_for = (self.coded_for * 2).min(CODED_FOR_MAX);
                self.mode = Mode::AsIs;
                self.region = None;
            }
            Mode::TooLarge { until } if now >= until => self.mode = Mode::AsIs,
            _ => {}
        }
    }

    /// The time of the next picture.
    pub(super) fn due(&self) -> Time {
        self.last_at.map_or(Time::ZERO, |at| at.after(INTERVAL_MIN))
    }

    /// Places the region around the tiles in motion. Returns false if the film has none.
    fn place(&mut self, canvas: &Canvas, tiles: &Tiles, now: Time, now_ms: u32) -> bool {
        let Some(bounds) = tiles.moving(now_ms) else { return false };
        let (x, y) = (bounds.x / ALIGN * ALIGN, bounds.y / ALIGN * ALIGN);
        let right = (bounds.x + bounds.width).next_multiple_of(ALIGN).min(tiles.across);
        let below = (bounds.y + bounds.height).next_multiple_of(ALIGN).min(tiles.down);
        let needed = Rectangle { x, y, width: right - x, height: below - y };
        let area = |part: &Rectangle| part.width * part.height;
        if let Some(region) = &self.region {
            let is_inside = needed.intersection(&region.tiles) == Some(needed);
            let is_large = area(&region.tiles) >= area(&needed) * SHRINK;
            if is_inside && !(is_large && now.since(region.made_at) >= REGION_FOR) {
                return true;
            }
        }
        let part = tiles.pixels(&needed);
        let geometry = Geometry::new(PixelFormat::Bgrx32, part.width, part.height);
        let (numerator, denominator) = canvas.geometry().rate();
        let Ok(geometry) = geometry.map(|geometry| geometry.with_rate(numerator, denominator)) else {
            return false;
        };
        if !Encoding::can_code(part.width, part.height) {
            // Tiles in motion are not left to a film that cannot have them.
            self.mode = Mode::TooLarge { until: now.after(TOO_LARGE_FOR) };
            self.region = None;
            return false;
        }
        let pixels = vec![128; geometry.bytes()];
        self.region = Some(Region { tiles: needed, part, geometry, pixels, made_at: now });
        self.needs_key = true;
        true
    }

    fn choose_rate(&mut self, count: usize, text_rate: f64, rate: Option<f64>) {
        let Some(rate) = rate else { return };
        let pixels = count as f64 * f64::from(TILE * TILE);
        let most = PIXEL_BITS_MAX * pixels / self.interval.as_secs_f64();
        let bytes = (rate * RATE_SHARE - text_rate).max(rate * RATE_SHARE_MIN);
        let rate_kbit = ((bytes * 8.0).min(most) / 1000.0).min(4e6) as u32;
        let rate_kbit = rate_kbit.max(RATE_MIN_KBIT);
        if f64::from(rate_kbit.abs_diff(self.rate_kbit)) > RATE_STEP * f64::from(self.rate_kbit) {
            self.rate_kbit = rate_kbit;
        }
    }

    /// Encodes the tiles in motion that changed; `None` if there are none. `text_rate` are the bytes a second beside the film.
    pub(super) fn encode(
        &mut self,
        canvas: &Canvas,
        tiles: &Tiles,
        (text_rate, rate): (f64, Option<f64>),
        (now, now_ms): (Time, u32),
    ) -> StageResult<Option<FilmPicture>> {
        if !self.is_on() || now < self.due() || !self.place(canvas, tiles, now, now_ms) {
            return Ok(None);
        }
        let Some(region) = &mut self.region else { return Ok(None) };
        let (mask, shown) = mask(&region.tiles, tiles, now_ms);
        if shown.is_empty() {
            return Ok(None);
        }
        copy_tiles(region, canvas, tiles, &shown);
        let pixels = Bytes::copy_from_slice(&region.pixels);
        let picture = Picture { geometry: region.geometry, pixels };
        let part = region.part;
        if let Some(last_at) = self.last_at.replace(now) {
            let gap = now.since(last_at).clamp(INTERVAL_MIN, INTERVAL_MAX);
            self.interval = (self.interval * 7 + gap) / 8;
        }
        self.choose_rate(shown.len(), text_rate, rate);
        let (mut body, is_key) =
            self.encoding.encode(&picture, (now, self.interval), self.rate_kbit, self.needs_key)?;
        self.needs_key = false;
        self.pictures += 1;
        if is_key {
            self.key_at = Some(now);
            self.keys += 1;
        }
        let mut front = Header { kind: Kind::Rectangles, geometry: canvas.geometry() }.emit().to_vec();
        front.push(is_key.into());
        for number in [part.x, part.y, part.width, part.height] {
            varint::put(&mut front, number.into());
        }
        front.extend(mask);
        body.push_front(&front);
        Ok(Some(FilmPicture { body, tiles: shown }))
    }
}

/// The mask of the region's tiles that changed in motion, as lengths of runs; and their numbers.
fn mask(region: &Rectangle, tiles: &Tiles, now_ms: u32) -> (Vec<u8>, Vec<usize>) {
    let (mut mask, mut shown) = (Vec::new(), Vec::new());
    let (mut run, mut is_shown_run) = (0u64, false);
    for row in region.y..region.y + region.height {
        for column in region.x..region.x + region.width {
            let number = tiles.number(column, row);
            let is_shown = tiles.is_filmable(number, now_ms);
            if is_shown {
                shown.push(number);
            }
            if is_shown != is_shown_run {
                varint::put(&mut mask, run);
                (run, is_shown_run) = (0, is_shown);
            }
            run += 1;
        }
    }
    varint::put(&mut mask, run);
    (mask, shown)
}

/// Copies tiles of the canvas to the pixels of the region.
fn copy_tiles(region: &mut Region, canvas: &Canvas, tiles: &Tiles, numbers: &[usize]) {
    let stride = region.part.width as usize * PIXEL_BYTES;
    for number in numbers {
        let (column, row) = (*number as u32 % tiles.across, *number as u32 / tiles.across);
        let part = tiles.pixels(&Rectangle { x: column, y: row, width: 1, height: 1 });
        let left = (part.x - region.part.x) as usize * PIXEL_BYTES;
        for y in part.y..part.y + part.height {
            let from = canvas.row(part.x, y, part.width);
            let start = (y - region.part.y) as usize * stride + left;
            region.pixels[start..start + from.len()].copy_from_slice(from);
        }
    }
}
