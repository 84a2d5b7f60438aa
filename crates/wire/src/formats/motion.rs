//! The format `motion`: six axes and the buttons of a 3D mouse. `docs/reference/formats-motion.md` has the
//! layout and vectors.

use crate::{Reader, WireError, Writer};

/// The axes of a cap: three translations and three rotations.
pub const AXES: usize = 6;

/// Button numbers are below this.
pub const BUTTONS_MAX: u16 = 256;

/// The length of a motion in bytes.
pub const MOTION_BYTES: usize = 1 + 4 * AXES + 4;

const MOTION: u8 = 0;
const BUTTON: u8 = 1;
const SNAPSHOT: u8 = 2;

/// A position of the cap, and how long it was there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Motion {
    /// x, y, z and the rotations about them, in the device's own units; 0 is the centre.
    pub axes: [i32; AXES],
    /// The time since the device's last motion.
    pub period_us: u32,
}

impl Motion {
    /// Returns the bytes of an [`Update::Motion`], without an allocation.
    pub fn to_array(&self) -> [u8; MOTION_BYTES] {
        let mut bytes = [MOTION; MOTION_BYTES];
        for (into, axis) in bytes[1..].chunks_exact_mut(4).zip(&self.axes) {
            into.copy_from_slice(&axis.to_le_bytes());
        }
        bytes[MOTION_BYTES - 4..].copy_from_slice(&self.period_us.to_le_bytes());
        bytes
    }
}

/// One message of the format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Update {
    /// The cap moved or was released.
    Motion(Motion),
    /// A button was pressed or released.
    Button {
        /// The button, below [`BUTTONS_MAX`].
        number: u16,
        /// True if it is down.
        pressed: bool,
    },
    /// The complete state.
    Snapshot {
        /// The position of the cap.
        axes: [i32; AXES],
        /// The buttons that are down, in rising order. All others are up.
        pressed: Vec<u16>,
    },
}

impl Update {
    /// Parses a message from the network.
    pub fn parse(body: &[u8]) -> Result<Update, WireError> {
        let mut reader = Reader::new(body);
        let update = match reader.u8("kind")? {
            MOTION => {
                let axes = parse_axes(&mut reader)?;
                Update::Motion(Motion { axes, period_us: reader.u32("period")? })
            }
            BUTTON => {
                let number = parse_button(&mut reader)?;
                let pressed = match reader.u8("pressed")? {
                    0 => false,
                    1 => true,
                    value => return Err(WireError::Value { what: "pressed", value: value.into() }),
                };
                Update::Button { number, pressed }
            }
            SNAPSHOT => {
                let axes = parse_axes(&mut reader)?;
                let mut pressed: Vec<u16> = Vec::new();
                while reader.left() > 0 {
                    let number = parse_button(&mut reader)?;
                    if pressed.last().is_some_and(|last| *last >= number) {
                        return Err(WireError::Value { what: "button out of order", value: number.into() });
                    }
                    pressed.push(number);
                }
                Update::Snapshot { axes, pressed }
            }
            kind => return Err(WireError::Value { what: "kind", value: kind.into() }),
        };
        reader.end("motion message")?;
        Ok(update)
    }

    /// Returns the bytes that [`Update::parse`] reads.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        match self {
            Update::Motion(motion) => return motion.to_array().to_vec(),
            Update::Button { number, pressed } => {
                writer.u8(BUTTON).u16(*number).u8((*pressed).into());
            }
            Update::Snapshot { axes, pressed } => {
                writer.u8(SNAPSHOT);
                for axis in axes {
                    writer.u32(axis.cast_unsigned());
                }
                for number in pressed {
                    writer.u16(*number);
                }
            }
        }
        writer.finish()
    }
}

fn parse_axes(reader: &mut Reader<'_>) -> Result<[i32; AXES], WireError> {
    let mut axes = [0; AXES];
    for axis in &mut axes {
        *axis = reader.u32("axis")?.cast_signed();
    }
    Ok(axes)
}

fn parse_button(reader: &mut Reader<'_>) -> Result<u16, WireError> {
    match reader.u16("button")? {
        number if number < BUTTONS_MAX => Ok(number),
        number => Err(WireError::Value { what: "button", value: number.into() }),
    }
}

/// Joined motions: the result has the same distance and the same duration.
#[derive(Debug, Clone, Default)]
pub struct Movement {
    /// The sum of axes times periods.
    distances: [i128; AXES],
    period_us: u64,
    last: [i32; AXES],
    motions: u64,
    /// The last output is not the cap's position.
    is_elsewhere: bool,
}

impl Movement {
    /// Adds a motion. Returns `false` without any change if the sum of the periods would not fit a motion.
    pub fn add(&mut self, motion: &Motion) -> bool {
        let period_us = self.period_us + u64::from(motion.period_us);
        if period_us > u32::MAX.into() {
            return false;
        }
        self.period_us = period_us;
        for (distance, axis) in self.distances.iter_mut().zip(motion.axes) {
            *distance += i128::from(axis) * i128::from(motion.period_us);
        }
        self.last = motion.axes;
        self.motions += 1;
        true
    }

    /// A snapshot was sent separately; it holds the cap's position.
    pub fn pass_snapshot(&mut self) {
        self.is_elsewhere = false;
    }

    /// Returns true if no output is pending.
    pub fn is_empty(&self) -> bool {
        self.motions == 0 && !self.is_elsewhere
    }

    /// Returns one motion: the mean of each axis, weighted by time, and the sum of all periods. If the cap is
    /// at another position, the next motion has that position and no duration, unless the cap moves again.
    pub fn take(&mut self) -> Option<Motion> {
        if self.is_empty() {
            return None;
        }
        let period_us = std::mem::take(&mut self.period_us) as u32;
        let weight = i128::from(period_us);
        let mut axes = self.last;
        for (axis, distance) in axes.iter_mut().zip(std::mem::take(&mut self.distances)) {
            // Rounded to the nearest integer. The mean is within the range of its values, so it fits.
            *axis = (distance + distance.signum() * weight / 2)
                .checked_div(weight)
                .map_or(*axis, |mean| mean as i32);
        }
        self.motions = 0;
        self.is_elsewhere = axes != self.last;
        Some(Motion { axes, period_us })
    }
}
