//! Report descriptors (Device Class Definition for HID 1.11, 6.2.2): the reports of a device, their lengths, its kind, and the parts of
//! input reports that have a neutral value.
//!
//! | part of an input report | neutral value |
//! |---|---|
//! | button, key, bit of a pen or finger | 0 |
//! | list of keys that are down | 0 for each |
//! | relative motion | 0 |
//! | hat switch | its null state |
//! | stick, pedal, cap | its minimum, centre or maximum: the one that its first value was nearest to |
//! | anything else: throttles, positions of pens, sensors, vendor-defined bytes | the last value |

use contract::Kind;
use std::collections::{BTreeMap, BTreeSet};
use wire::WireError;
use wire::formats::hid::{REPORT_BYTES_MAX, ReportKind};

/// The longest descriptor (`HID_MAX_DESCRIPTOR_SIZE` of `linux/hid.h`).
pub(super) const DESCRIPTOR_BYTES_MAX: usize = 4096;
/// Parts with a neutral value, at most.
const PARTS_MAX: usize = 1 << 15;
/// Usages and ranges of usages of one main item, at most.
const USAGES_MAX: usize = 1024;
/// Usages of one main item in the kernel (`HID_MAX_USAGES` of `linux/hid.h`).
const KERNEL_USAGES_MAX: u32 = 12288;
/// Depth of collections and of pushed states, at most.
const DEPTH_MAX: usize = 64;
/// A stick within this share of its range from its rest is neutral, as in `evdev`.
const REST_SHARE: u64 = 8;

/// Bits of the data of a main item.
mod flag {
    pub(super) const CONSTANT: u32 = 1;
    pub(super) const VARIABLE: u32 = 1 << 1;
    pub(super) const RELATIVE: u32 = 1 << 2;
    pub(super) const NULL_STATE: u32 = 1 << 6;
}

/// Usage pages and usages, with the page in the upper half (HID Usage Tables).
mod usage {
    pub(super) const DESKTOP: u32 = 0x01;
    pub(super) const SIMULATION: u32 = 0x02;
    pub(super) const KEYBOARD_PAGE: u32 = 0x07;
    pub(super) const CONSUMER: u32 = 0x0c;
    pub(super) const DIGITIZER: u32 = 0x0d;
    /// Pages with buttons among their parts of two values: desktop, simulation, games, keyboard, buttons, telephony, consumer, digitizer.
    pub(super) const BUTTON_PAGES: [u32; 8] = [0x01, 0x02, 0x05, 0x07, 0x09, 0x0b, 0x0c, 0x0d];
    pub(super) const BUTTONS: u32 = 0x09;
    /// The number of an effect of force feedback, which goes on until a report stops it.
    pub(super) const EFFECT: u32 = 0xf_0022;
    pub(super) const FIDO: u32 = 0xf1d0;
    /// Pages from here on have no meaning of their own.
    pub(super) const RESERVED_PAGES: u32 = 0xf000;
    pub(super) const HAT: u32 = 0x1_0039;
    pub(super) const X: u32 = 0x1_0030;
    pub(super) const RZ: u32 = 0x1_0035;
    /// Pedals, and the wheel of a car.
    pub(super) const ACCELERATOR: u32 = 0x2_00c4;
    pub(super) const CLUTCH: u32 = 0x2_00c6;
    pub(super) const STEERING: u32 = 0x2_00c8;
    /// The first key that types; those below report errors.
    pub(super) const FIRST_KEY: u32 = 0x7_0004;
}

/// Usages of the consumer page that neither type nor start a program: power, sleep, playback, volume, back and forward.
const HARMLESS: [u32; 17] =
    [0x30, 0x32, 0xb0, 0xb1, 0xb2, 0xb3, 0xb4, 0xb5, 0xb6, 0xb7, 0xb8, 0xcd, 0xe2, 0xe9, 0xea, 0x224, 0x225];

/// A part of an input report with a neutral value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Part {
    /// The first bit, counted from the beginning of the report with its number.
    bit: usize,
    /// 1 to 32.
    bits: usize,
    rest: Rest,
}

/// The neutral value of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rest {
    /// This value.
    At(u32),
    /// 0, because it is a distance.
    Relative,
    /// One of these, in order: minimum, centre, maximum.
    Axis([i64; 3]),
}

impl Part {
    fn get(&self, report: &[u8]) -> Option<u32> {
        let mut value = 0;
        for bit in 0..self.bits {
            let at = self.bit + bit;
            value |= u32::from(report.get(at / 8)? >> (at % 8) & 1) << bit;
        }
        Some(value)
    }

    /// Does nothing behind the end of the report.
    fn set(&self, report: &mut [u8], value: u32) {
        for bit in 0..self.bits {
            let at = self.bit + bit;
            if let Some(byte) = report.get_mut(at / 8) {
                *byte = *byte & !(1 << (at % 8)) | ((value >> bit & 1) as u8) << (at % 8);
            }
        }
    }

    /// The value of an axis: it has a sign if its minimum is negative.
    fn get_axis(&self, report: &[u8], minimum: i64) -> Option<i64> {
        let value = i64::from(self.get(report)?);
        let is_negative = minimum < 0 && value >> (self.bits - 1) & 1 == 1;
        Some(if is_negative { value - (1 << self.bits) } else { value })
    }

    /// The rest of an axis, which its first value tells; its centre if there is none yet.
    fn rest_of(&self, first: Option<&[u8]>, rests: [i64; 3]) -> i64 {
        let first = first.and_then(|report| self.get_axis(report, rests[0])).unwrap_or(rests[1]);
        rests.into_iter().min_by_key(|rest| rest.abs_diff(first)).unwrap_or(rests[1])
    }
}

/// One report.
#[derive(Debug, Clone, Default)]
struct Report {
    /// Length in bits, without the number.
    bits: usize,
    parts: Vec<Part>,
}

/// A parsed report descriptor.
#[derive(Debug, Clone)]
pub(super) struct Descriptor {
    reports: BTreeMap<(ReportKind, u8), Report>,
    /// Reports start with their number.
    is_numbered: bool,
    kind: Kind,
    has_fido: bool,
    has_vendor: bool,
    has_forces: bool,
}

impl Descriptor {
    /// Parses a descriptor.
    pub(super) fn parse(bytes: &[u8]) -> Result<Descriptor, WireError> {
        if bytes.len() > DESCRIPTOR_BYTES_MAX {
            let (length, limit) = (bytes.len() as u64, DESCRIPTOR_BYTES_MAX as u64);
            return Err(WireError::TooLong { what: "report descriptor", length, limit });
        }
        let mut parser = Parser::default();
        let mut left = bytes;
        while let Some((prefix, rest)) = left.split_first() {
            let (data, after) = match prefix {
                // A long item: its length, its tag, its data. None is defined.
                0xfe => {
                    (None, rest.split_first().and_then(|(length, rest)| rest.get(usize::from(*length) + 1..)))
                }
                _ => {
                    let length = [0, 1, 2, 4][usize::from(prefix & 3)];
                    (rest.get(..length), rest.get(length..))
                }
            };
            left = after.ok_or(WireError::Short { what: "report descriptor", needed: 1, left: 0 })?;
            if let Some(data) = data {
                parser.handle(prefix >> 2, data)?;
            }
        }
        parser.finish()
    }

    /// Returns the device's kind.
    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns true if the device has a state that its last reports tell, such as buttons that are down. Otherwise each report
    /// counts, as those of a FIDO key do.
    pub(super) fn has_state(&self) -> bool {
        !self.has_fido && self.reports.values().any(|report| !report.parts.is_empty())
    }

    /// Returns true if reports have parts that only the driver of this device understands.
    pub(super) fn has_vendor_parts(&self) -> bool {
        self.has_vendor
    }

    /// Returns true if output reports play forces.
    pub(super) fn has_forces(&self) -> bool {
        self.has_forces
    }

    /// Returns true if input reports have no parts with a neutral value.
    pub(super) fn has_opaque_inputs(&self) -> bool {
        let mut inputs = self.reports.iter().filter(|((kind, _), _)| *kind == ReportKind::Input);
        inputs.any(|(_, report)| report.parts.is_empty())
    }

    /// Returns true if the device has this report.
    pub(super) fn has(&self, kind: ReportKind, number: u8) -> bool {
        self.reports.contains_key(&(kind, number))
    }

    /// Returns the length of a report with its number, for a device without numbers with a 0 in the place of the number.
    pub(super) fn bytes_of(&self, kind: ReportKind, number: u8) -> Option<usize> {
        self.reports.get(&(kind, number)).map(|report| 1 + report.bits.div_ceil(8))
    }

    /// Returns the number of an input report of this device.
    pub(super) fn number_of(&self, input: &[u8]) -> Option<u8> {
        let number = if self.is_numbered { *input.first()? } else { 0 };
        self.has(ReportKind::Input, number).then_some(number)
    }

    /// Puts the number in front of a report that a program or a driver at this host sends. Drivers of devices without numbers leave it
    /// out and send whole reports; programs write a 0, and may write less than a whole report.
    pub(super) fn with_number(&self, kind: ReportKind, number: u8, data: &[u8]) -> Vec<u8> {
        match !self.is_numbered && self.bytes_of(kind, 0) == Some(data.len() + 1) {
            true => [&[number], data].concat(),
            false => data.to_vec(),
        }
    }

    /// Returns the numbers of the input reports that have a neutral state.
    pub(super) fn inputs_with_state(&self) -> impl Iterator<Item = u8> {
        let inputs = self.reports.iter().filter(|((kind, _), _)| *kind == ReportKind::Input);
        inputs.filter(|(_, report)| !report.parts.is_empty()).map(|((_, number), _)| *number)
    }

    fn parts(&self, number: u8) -> &[Part] {
        self.reports.get(&(ReportKind::Input, number)).map_or(&[], |report| &report.parts)
    }

    /// Makes an input report neutral. `first` is the first that the device has sent.
    pub(super) fn release(&self, number: u8, report: &mut [u8], first: Option<&[u8]>) {
        for part in self.parts(number) {
            let value = match part.rest {
                Rest::At(value) => value,
                Rest::Relative => 0,
                Rest::Axis(rests) => part.rest_of(first, rests) as u32,
            };
            part.set(report, value);
        }
    }

    /// Removes distances from an input report, so that it can be sent again.
    pub(super) fn stop(&self, number: u8, report: &mut [u8]) {
        let parts = self.parts(number).iter().filter(|part| part.rest == Rest::Relative);
        parts.for_each(|part| part.set(report, 0));
    }

    /// Returns true if an input report is neutral. A stick that nobody touches is seldom exactly in its middle.
    pub(super) fn is_neutral(&self, number: u8, report: &[u8], first: Option<&[u8]>) -> bool {
        self.parts(number).iter().all(|part| match part.rest {
            Rest::At(value) => part.get(report).is_none_or(|now| now == value),
            Rest::Relative => true,
            Rest::Axis(rests) => {
                let play = rests[2].abs_diff(rests[0]) / REST_SHARE;
                let rest = part.rest_of(first, rests);
                part.get_axis(report, rests[0]).is_none_or(|now| now.abs_diff(rest) <= play)
            }
        })
    }

    /// Returns a neutral report for a device that has sent none yet. `None` if it has axes, whose rest is unknown then, or no state.
    pub(super) fn blank(&self, number: u8) -> Option<Vec<u8>> {
        let report = self.reports.get(&(ReportKind::Input, number))?;
        let has_axes = report.parts.iter().any(|part| matches!(part.rest, Rest::Axis(_)));
        if has_axes || report.parts.is_empty() {
            return None;
        }
        let mut blank = vec![0; report.bits.div_ceil(8) + usize::from(self.is_numbered)];
        if self.is_numbered {
            blank[0] = number;
        }
        self.release(number, &mut blank, None);
        Some(blank)
    }
}

/// Global items.
#[derive(Debug, Clone, Default)]
struct Globals {
    page: u32,
    minimum: i64,
    /// The maximum as it was written: it has a sign if the minimum is negative.
    maximum: [i64; 2],
    size: usize,
    count: usize,
    number: u8,
}

/// A usage or a range of usages.
#[derive(Debug, Clone, Copy)]
struct Usages {
    first: u32,
    last: u32,
    /// The page that holds where the usages stand, unless they have one of their own.
    page: Option<u32>,
}

impl Usages {
    /// Puts the usages onto a page, unless they have one of their own.
    fn with_page(self, page: u32) -> (u32, u32) {
        match self.page {
            None => (self.first, self.last),
            // The kernel counts on behind the end of a page and begins the page again.
            Some(_) if self.first >> 16 != self.last >> 16 => (page << 16, page << 16 | 0xffff),
            Some(_) => (page << 16 | self.first & 0xffff, page << 16 | self.last & 0xffff),
        }
    }

    /// Returns true if these usages have a key that types or starts a program. Where a main item has another page than its usages,
    /// kernels choose either of the two, which depends on their version.
    fn have_keys(self, page: u32) -> bool {
        has_keys(self.with_page(page)) || has_keys(self.with_page(self.page.unwrap_or(page)))
    }
}

#[derive(Debug, Default)]
struct Parser {
    globals: Globals,
    pushed: Vec<Globals>,
    usages: Vec<Usages>,
    /// The beginning of the ranges of this main item.
    minimum: u32,
    /// Usages of the open collections.
    collections: Vec<u32>,
    /// Usages of the outermost collections.
    applications: BTreeSet<u32>,
    reports: BTreeMap<(ReportKind, u8), Report>,
    is_numbered: bool,
    parts: usize,
    /// A key that types or starts a program.
    has_keys: bool,
    has_vendor: bool,
    has_forces: bool,
}

fn too_many(what: &'static str, limit: usize) -> WireError {
    WireError::TooLong { what, length: limit as u64 + 1, limit: limit as u64 }
}

impl Parser {
    /// Handles an item. `tag` has the type of the item in its lower two bits.
    fn handle(&mut self, tag: u8, data: &[u8]) -> Result<(), WireError> {
        let mut bytes = [0; 4];
        bytes[..data.len()].copy_from_slice(data);
        let value = u32::from_le_bytes(bytes);
        let unused_bits = 32 - 8 * data.len() as u32;
        let signed = match data.len() {
            0 => 0,
            _ => i64::from((value << unused_bits).cast_signed() >> unused_bits),
        };
        let globals = &mut self.globals;
        match (tag & 3, tag >> 2) {
            (1, 0) => globals.page = value & 0xffff,
            (1, 1) => globals.minimum = signed,
            (1, 2) => globals.maximum = [i64::from(value), signed],
            (1, 7) => globals.size = value as usize,
            (1, 8) => match u8::try_from(value) {
                Ok(number) if number > 0 => {
                    globals.number = number;
                    self.is_numbered = true;
                }
                _ => return Err(WireError::Value { what: "number of a report", value: value.into() }),
            },
            (1, 9) => globals.count = value as usize,
            (1, 10) if self.pushed.len() == DEPTH_MAX => return Err(too_many("pushed states", DEPTH_MAX)),
            (1, 10) => self.pushed.push(globals.clone()),
            (1, 11) => *globals = self.pushed.pop().unwrap_or_default(),
            (2, 0) => self.add_usages(value, value, data.len())?,
            (2, 1) => self.minimum = value,
            (2, 2) => {
                // As in the kernel: a minimum holds for each maximum up to the main item, and a range that ends before it begins has
                // as many usages as the kernel's table.
                let first = self.minimum;
                let last = if value < first { first.saturating_add(KERNEL_USAGES_MAX - 1) } else { value };
                self.add_usages(first, last, data.len())?;
            }
            (0, 8) => self.add_field(ReportKind::Input, value)?,
            (0, 9) => self.add_field(ReportKind::Output, value)?,
            (0, 11) => self.add_field(ReportKind::Feature, value)?,
            (0, 10) if self.collections.len() == DEPTH_MAX => return Err(too_many("collections", DEPTH_MAX)),
            (0, 10) => {
                let usage = self.ranges().first().map_or(0, |(first, _)| *first);
                if self.collections.is_empty() {
                    self.applications.insert(usage);
                }
                self.collections.push(usage);
            }
            (0, 12) => _ = self.collections.pop(),
            _ => {}
        }
        if tag & 3 == 0 {
            self.usages.clear();
            self.minimum = 0;
        }
        Ok(())
    }

    /// Adds the usages of an item of this length. As in the kernel, the end of a range decides whether it has pages.
    fn add_usages(&mut self, first: u32, last: u32, length: usize) -> Result<(), WireError> {
        if self.usages.len() == USAGES_MAX {
            return Err(too_many("usages", USAGES_MAX));
        }
        let page = (length < 4).then_some(self.globals.page);
        self.usages.push(Usages { first, last, page });
        Ok(())
    }

    /// Returns the ranges of usages of a main item. As in the kernel since Linux 5.4, the page of the main item is that of the usages
    /// behind the last one that already has it, and earlier usages keep the page that holds where they stand.
    fn ranges(&self) -> Vec<(u32, u32)> {
        let page = self.globals.page;
        let mut is_behind = true;
        let complete = |usages: &Usages| {
            is_behind &= usages.page != Some(page);
            usages.with_page(if is_behind { page } else { usages.page.unwrap_or(page) })
        };
        let mut ranges: Vec<(u32, u32)> = self.usages.iter().rev().map(complete).collect();
        ranges.reverse();
        ranges
    }

    fn add_field(&mut self, kind: ReportKind, flags: u32) -> Result<(), WireError> {
        let Globals { page, size, count, number, .. } = self.globals;
        let report = self.reports.entry((kind, number)).or_default();
        let begin = report.bits;
        let bits = size.checked_mul(count).and_then(|bits| bits.checked_add(begin));
        // One byte is for the number.
        report.bits = bits
            .filter(|bits| *bits <= 8 * (REPORT_BYTES_MAX - 1))
            .ok_or_else(|| too_many("bytes of a report", REPORT_BYTES_MAX))?;
        let ranges = self.ranges();
        let is_constant = flags & flag::CONSTANT != 0;
        // Constant parts without a usage fill gaps. A Switch Pro Controller declares whole reports as constant.
        self.has_vendor |= page >= usage::RESERVED_PAGES && !is_constant
            || ranges.iter().any(|(first, _)| is_reserved(*first));
        if is_constant {
            return Ok(());
        }
        let has_effect = ranges.iter().any(|(first, last)| (*first..=*last).contains(&usage::EFFECT));
        self.has_forces |= kind == ReportKind::Output && has_effect;
        if kind != ReportKind::Input || size == 0 {
            return Ok(());
        }
        self.has_keys |= self.usages.iter().any(|usages| usages.have_keys(page));
        // The kernel takes the lower 32 bits of a larger part. No known device has one with a neutral value.
        if size > 32 {
            return Ok(());
        }
        let is_list = flags & flag::VARIABLE == 0;
        // A list has as many places as it has parts, and each place any of the usages. Of others, each part has the next usage, and the
        // last usage is that of all further parts.
        let mut each = ranges.iter().flat_map(|(first, last)| *first..=*last);
        let mut now = each.next();
        let is_meaningless = ranges.iter().all(|(first, _)| is_reserved(*first));
        for at in 0..count {
            let usage = now.unwrap_or(page << 16);
            let rest = match is_list {
                true => (!is_meaningless).then_some(Rest::At(0)),
                false => self.rest(usage, flags),
            };
            now = each.next().or(now);
            let Some(rest) = rest else { continue };
            self.parts += 1;
            if self.parts > PARTS_MAX {
                return Err(too_many("parts of reports", PARTS_MAX));
            }
            let part = Part { bit: begin + at * size, bits: size, rest };
            if let Some(report) = self.reports.get_mut(&(kind, number)) {
                report.parts.push(part);
            }
        }
        Ok(())
    }

    /// Returns the rest of a part with this usage.
    fn rest(&self, usage: u32, flags: u32) -> Option<Rest> {
        let Globals { minimum, maximum: [unsigned, signed], size, .. } = self.globals;
        let maximum = if minimum < 0 { signed } else { unsigned };
        let page = usage >> 16;
        let application = self.collections.first().copied().unwrap_or_default();
        let is_axis =
            matches!(usage, usage::X..=usage::RZ | usage::ACCELERATOR..=usage::CLUTCH | usage::STEERING);
        let has_sticks = matches!(application, 0x1_0004 | 0x1_0005 | 0x1_0008 | 0x2_0001..=0x2_ffff);
        match () {
            () if is_reserved(usage) => None,
            () if flags & flag::RELATIVE != 0 => Some(Rest::Relative),
            () if usage == usage::HAT && flags & flag::NULL_STATE != 0 => {
                let is_within = |value: &i64| *value >= 0 && *value < 1 << size;
                [maximum + 1, minimum - 1].into_iter().find(is_within).map(|value| Rest::At(value as u32))
            }
            () if is_axis && has_sticks && minimum < maximum => {
                Some(Rest::Axis([minimum, (minimum + maximum + 1).div_euclid(2), maximum]))
            }
            () if page == usage::BUTTONS => Some(Rest::At(0)),
            () if maximum - minimum == 1 && usage::BUTTON_PAGES.contains(&page) => Some(Rest::At(0)),
            () => None,
        }
    }

    fn finish(mut self) -> Result<Descriptor, WireError> {
        if self.reports.is_empty() {
            return Err(WireError::Short { what: "reports of a device", needed: 1, left: 0 });
        }
        if self.is_numbered {
            let parts = self.reports.values_mut().flat_map(|report| &mut report.parts);
            parts.for_each(|part| part.bit += 8);
        }
        Ok(Descriptor {
            kind: kind_of(&self.applications, self.has_keys),
            has_fido: self.applications.iter().any(|usage| usage >> 16 == usage::FIDO),
            has_vendor: self.has_vendor,
            has_forces: self.has_forces,
            is_numbered: self.is_numbered,
            reports: self.reports,
        })
    }
}

fn is_reserved(usage: u32) -> bool {
    usage >> 16 >= usage::RESERVED_PAGES
}

/// Returns true if a range of usages has a key that types or starts a program. It may reach over several pages.
fn has_keys((first, last): (u32, u32)) -> bool {
    let within = |page: u32| first.max(page << 16)..=last.min(page << 16 | 0xffff);
    // A list begins with 0, no usage.
    let is_foreign = |usage: u32| usage & 0xffff != 0 && !HARMLESS.contains(&(usage & 0xffff));
    let types = within(usage::KEYBOARD_PAGE).last().is_some_and(|last| last >= usage::FIRST_KEY);
    types || within(usage::CONSUMER).take(HARMLESS.len() + 2).any(is_foreign)
}

/// Returns the kind of a device with these outermost collections. Vendor-defined ones do not count.
///
/// | collections | kind |
/// |---|---|
/// | any, with a key that types or starts a program | `keyboard`: nothing limits it |
/// | of one kind, also with media keys besides | that kind |
/// | mouse, and touchpad, touchscreen or pen | the latter: many have a mouse for systems without a driver |
/// | others | `hid` |
fn kind_of(applications: &BTreeSet<u32>, has_keys: bool) -> Kind {
    if has_keys {
        return Kind::Keyboard;
    }
    let mut kinds: Vec<Kind> = Vec::new();
    for usage in applications.iter().filter(|usage| *usage >> 16 < 0xff00) {
        let kind = match (usage >> 16, usage & 0xffff) {
            (usage::DESKTOP, 1 | 2) => Kind::Mouse,
            (usage::DESKTOP, 4 | 5) | (usage::SIMULATION, _) => Kind::Gamepad,
            (usage::DESKTOP, 6 | 7) => Kind::Keyboard,
            (usage::DESKTOP, 8) => Kind::Mouse3d,
            (usage::DESKTOP, 0x80) | (usage::CONSUMER, 1) => Kind::Buttons,
            (usage::DIGITIZER, 1..=3) => Kind::Tablet,
            (usage::DIGITIZER, 4) => Kind::Touchscreen,
            (usage::DIGITIZER, 5) => Kind::Touchpad,
            // A touchpad's settings.
            (usage::DIGITIZER, 0xe) => continue,
            (usage::FIDO, 1) => Kind::SecurityKey,
            _ => Kind::Hid,
        };
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    if kinds.contains(&Kind::Keyboard) {
        return Kind::Keyboard;
    }
    if kinds.len() > 1 {
        kinds.retain(|kind| *kind != Kind::Buttons);
    }
    match kinds.as_slice() {
        [kind] => *kind,
        [Kind::Mouse, other @ (Kind::Touchpad | Kind::Touchscreen | Kind::Tablet)] => *other,
        _ => Kind::Hid,
    }
}
