//! The parameters of a link, and their text form.

use std::fmt;
use std::str::FromStr;

/// The longest delay and the widest jitter: an hour, far beyond any link, and far from overflow.
const TIME_MAX_NS: u64 = 3_600_000_000_000;
/// Below 1 kbit/s a single packet would occupy the link for over ten seconds.
const RATE_MIN_BPS: u64 = 1_000;
const RATE_MAX_BPS: u64 = 1_000_000_000_000;
/// Probabilities are in parts per million: `loss=0.0001%` is one.
pub(crate) const ALL_PPM: u32 = 1_000_000;

/// The behaviour of one direction of a link. The default is a perfect link.
///
/// The text form is a list of words, separated by commas or blanks. Every word is optional.
///
/// | word | meaning |
/// |---|---|
/// | `delay=20ms` | one-way propagation delay; units `ns`, `us`, `ms`, `s` |
/// | `jitter=5ms` | a random extra delay of each packet, uniform in 0 to 5 ms |
/// | `reorder`, `in-order` | lets jitter reorder packets, or not |
/// | `loss=0.1%` | each packet is lost with this probability, independently |
/// | `burst=1%/8` | 1 % of packets are lost in bursts, 8 long on average (Gilbert-Elliott) |
/// | `duplicate=0.1%` | a packet arrives twice |
/// | `corrupt=0.1%` | one bit of a packet is flipped |
/// | `rate=10mbit` | bits of packets a second; `kbit`, `mbit`, `gbit`, or `unlimited` |
/// | `queue=100` | packets that may wait for the rate; a packet that finds the queue full is dropped |
/// | `down`, `up` | cuts or restores the link |
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Params {
    /// One-way propagation delay.
    pub delay_ns: u64,
    /// A random extra delay of each packet, uniform in `0..=jitter_ns`.
    pub jitter_ns: u64,
    /// Jitter, or a delay that becomes shorter, may reorder packets.
    pub reorder: bool,
    /// Independent losses, in parts per million of packets.
    pub loss_ppm: u32,
    /// Losses in bursts, in parts per million of packets.
    pub burst_loss_ppm: u32,
    /// The mean length of a burst, in packets.
    pub burst_packets: u32,
    /// Duplicated packets, in parts per million.
    pub duplicate_ppm: u32,
    /// Packets with a flipped bit, in parts per million.
    pub corrupt_ppm: u32,
    /// Bits a second; 0 is unlimited.
    pub rate_bps: u64,
    /// The length of the bottleneck queue in packets. A packet that finds it full is dropped.
    pub queue_packets: u32,
    /// The link is cut: no packet passes.
    pub down: bool,
}

impl Default for Params {
    fn default() -> Self {
        Params {
            delay_ns: 0,
            jitter_ns: 0,
            reorder: false,
            loss_ppm: 0,
            burst_loss_ppm: 0,
            burst_packets: 1,
            duplicate_ppm: 0,
            corrupt_ppm: 0,
            rate_bps: 0,
            queue_packets: 1000,
            down: false,
        }
    }
}

impl Params {
    /// Applies the words of `text` and keeps all other parameters. After an error nothing is changed.
    pub fn apply(&mut self, text: &str) -> Result<(), ParamsError> {
        let mut changed = self.clone();
        for word in text.split([',', ' ']).filter(|word| !word.is_empty()) {
            changed.apply_word(word).ok_or_else(|| ParamsError { word: word.into() })?;
        }
        *self = changed;
        Ok(())
    }

    fn apply_word(&mut self, word: &str) -> Option<()> {
        match word.split_once('=') {
            Some(("delay", value)) => self.delay_ns = parse_time_ns(value)?,
            Some(("jitter", value)) => self.jitter_ns = parse_time_ns(value)?,
            Some(("loss", value)) => self.loss_ppm = parse_ppm(value)?,
            Some(("burst", value)) => (self.burst_loss_ppm, self.burst_packets) = parse_burst(value)?,
            Some(("duplicate", value)) => self.duplicate_ppm = parse_ppm(value)?,
            Some(("corrupt", value)) => self.corrupt_ppm = parse_ppm(value)?,
            Some(("rate", value)) => self.rate_bps = parse_rate_bps(value)?,
            Some(("queue", value)) => self.queue_packets = value.parse().ok().filter(|q| *q > 0)?,
            None if word == "reorder" => self.reorder = true,
            None if word == "in-order" => self.reorder = false,
            None if word == "down" => self.down = true,
            None if word == "up" => self.down = false,
            _ => return None,
        }
        Some(())
    }
}

impl FromStr for Params {
    type Err = ParamsError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut params = Params::default();
        params.apply(text)?;
        Ok(params)
    }
}

/// The canonical form: the delay, then all parameters that differ from the default. Parsing it gives the same
/// parameters.
impl fmt::Display for Params {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let default = Params::default();
        write!(f, "delay={}", Time(self.delay_ns))?;
        if self.jitter_ns > 0 {
            write!(f, ",jitter={}", Time(self.jitter_ns))?;
        }
        if self.reorder {
            write!(f, ",reorder")?;
        }
        if self.burst_loss_ppm > 0 || self.burst_packets != default.burst_packets {
            write!(f, ",burst={}/{}", Percent(self.burst_loss_ppm), self.burst_packets)?;
        }
        for (name, ppm) in
            [("loss", self.loss_ppm), ("duplicate", self.duplicate_ppm), ("corrupt", self.corrupt_ppm)]
        {
            if ppm > 0 {
                write!(f, ",{name}={}", Percent(ppm))?;
            }
        }
        if self.rate_bps > 0 {
            write!(f, ",rate={}", Rate(self.rate_bps))?;
        }
        if self.queue_packets != default.queue_packets {
            write!(f, ",queue={}", self.queue_packets)?;
        }
        if self.down {
            write!(f, ",down")?;
        }
        Ok(())
    }
}

/// An invalid word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParamsError {
    word: String,
}

impl fmt::Display for ParamsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "link parameter {:?} is unknown; write words such as \
             delay=20ms,jitter=5ms,reorder,loss=0.1%,burst=1%/8,duplicate=0.1%,corrupt=0.1%,\
             rate=10mbit,queue=100,down",
            self.word
        )
    }
}

impl std::error::Error for ParamsError {}

/// Parses a decimal number exactly: `digits` without the point, in units of 10^-`places`.
fn parse_decimal(text: &str) -> Option<(u64, u32, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits: u64 = format!("{whole}{fraction}").parse().ok()?;
    Some((digits, u32::try_from(fraction.len()).ok()?, unit))
}

/// `digits * scale / 10^places`, rounded to the nearest integer.
fn scaled(digits: u64, places: u32, scale: u64) -> Option<u64> {
    let unit = 10u128.checked_pow(places)?;
    u64::try_from((u128::from(digits) * u128::from(scale) + unit / 2) / unit).ok()
}

fn parse_time_ns(text: &str) -> Option<u64> {
    let (digits, places, unit) = parse_decimal(text)?;
    let scale = match unit {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "" if digits == 0 => 1,
        _ => return None,
    };
    scaled(digits, places, scale).filter(|ns| *ns <= TIME_MAX_NS)
}

fn parse_ppm(text: &str) -> Option<u32> {
    let (digits, places, unit) = parse_decimal(text)?;
    let ppm = match unit {
        "%" => scaled(digits, places, 10_000)?,
        "" if digits == 0 => 0,
        _ => return None,
    };
    u32::try_from(ppm).ok().filter(|ppm| *ppm <= ALL_PPM)
}

/// Parses `1%/8`. At most one burst starts at a packet, so short bursts cannot make up a large share.
fn parse_burst(text: &str) -> Option<(u32, u32)> {
    let (share, length) = text.split_once('/').unwrap_or((text, "1"));
    let (ppm, packets): (u32, u32) = (parse_ppm(share)?, length.parse().ok()?);
    let (part, whole) = burst_chance(ppm, packets);
    (packets > 0 && part <= whole).then_some((ppm, packets))
}

/// The probability, as part of a whole, that a burst starts at a packet, such that bursts of `packets` lose
/// `share_ppm` of all packets: the share is enter / (enter + leave), and leave is 1 / `packets`.
pub(crate) fn burst_chance(share_ppm: u32, packets: u32) -> (u64, u64) {
    (u64::from(share_ppm), u64::from(ALL_PPM.saturating_sub(share_ppm)) * u64::from(packets))
}

fn parse_rate_bps(text: &str) -> Option<u64> {
    if text == "unlimited" {
        return Some(0);
    }
    let (digits, places, unit) = parse_decimal(text)?;
    let scale = match unit {
        "bit" => 1,
        "kbit" => 1_000,
        "mbit" => 1_000_000,
        "gbit" => 1_000_000_000,
        "" if digits == 0 => 1,
        _ => return None,
    };
    let limited = |bps: &u64| (RATE_MIN_BPS..=RATE_MAX_BPS).contains(bps);
    scaled(digits, places, scale).filter(|bps| *bps == 0 || limited(bps))
}

/// Nanoseconds, written in the largest unit that needs at most three decimal places.
struct Time(u64);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit_ns, unit) = match self.0 {
            ns if ns % 1_000_000_000 == 0 && ns > 0 => (1_000_000_000, "s"),
            ns if ns % 1_000 == 0 => (1_000_000, "ms"),
            ns if ns > 1_000 => (1_000, "us"),
            _ => (1, "ns"),
        };
        write_fraction(f, self.0, unit_ns, unit)
    }
}

struct Percent(u32);

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_fraction(f, u64::from(self.0), 10_000, "%")
    }
}

struct Rate(u64);

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit_bps, unit) = match self.0 {
            bps if bps % 100_000_000 == 0 && bps >= 1_000_000_000 => (1_000_000_000, "gbit"),
            bps if bps % 1_000 == 0 && bps >= 1_000_000 => (1_000_000, "mbit"),
            bps if bps % 100 == 0 => (1_000, "kbit"),
            _ => (1, "bit"),
        };
        write_fraction(f, self.0, unit_bps, unit)
    }
}

/// Writes `value / unit_size` in decimal, exactly; `unit_size` is a power of ten.
fn write_fraction(f: &mut fmt::Formatter<'_>, value: u64, unit_size: u64, unit: &str) -> fmt::Result {
    let (whole, rest) = (value / unit_size, value % unit_size);
    if rest == 0 {
        return write!(f, "{whole}{unit}");
    }
    let places = unit_size.ilog10() as usize;
    let fraction = format!("{rest:0places$}");
    write!(f, "{whole}.{}{unit}", fraction.trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_every_word() {
        let text = "delay=20ms,jitter=500us,reorder,loss=0.1%,burst=2%/8,duplicate=1%,corrupt=0.0001%,\
                    rate=1.5mbit,queue=7,down";
        let want = Params {
            delay_ns: 20_000_000,
            jitter_ns: 500_000,
            reorder: true,
            loss_ppm: 1_000,
            burst_loss_ppm: 20_000,
            burst_packets: 8,
            duplicate_ppm: 10_000,
            corrupt_ppm: 1,
            rate_bps: 1_500_000,
            queue_packets: 7,
            down: true,
        };
        assert_eq!(text.parse(), Ok(want));
        assert_eq!("".parse(), Ok(Params::default()));
        assert_eq!(Params::default().to_string(), "delay=0ms");
        assert_eq!(
            "delay=20ms,jitter=0.5ms".parse::<Params>().unwrap().to_string(),
            "delay=20ms,jitter=0.5ms"
        );
    }

    #[test]
    fn later_words_leave_the_others_alone() {
        let mut params: Params = "delay=1s,rate=1gbit,reorder".parse().unwrap();
        params.apply("rate=unlimited in-order").unwrap();
        assert_eq!(params.to_string(), "delay=1s");
        assert!(params.apply("loss=1%,colour=red").is_err());
        assert_eq!(params.to_string(), "delay=1s");
    }

    #[test]
    fn errors_name_the_invalid_word() {
        for bad in [
            "delay",
            "delay=",
            "delay=20",
            "delay=-1ms",
            "delay=1h",
            "delay=2000000s",
            "loss=101%",
            "loss=x",
            "loss=0.5",
            "burst=50%/0",
            "burst=90%/1",
            "burst=100%/9",
            "rate=5",
            "rate=1bit",
            "queue=0",
            "queue=-3",
            "jitter=.ms",
            "reorder=1",
            "delay=99999999999999999999s",
        ] {
            let error = bad.parse::<Params>().expect_err(bad);
            assert!(error.to_string().contains(bad), "{error}");
        }
    }

    fn any_params() -> impl Strategy<Value = Params> {
        let times = (0..=TIME_MAX_NS, prop_oneof![Just(0), 0..=TIME_MAX_NS]);
        let shares = (0..=ALL_PPM, 0..=500_000u32, 1..1000u32, 0..=ALL_PPM, 0..=ALL_PPM);
        let rate = prop_oneof![Just(0), RATE_MIN_BPS..=RATE_MAX_BPS];
        (times, shares, rate, 1..u32::MAX, any::<bool>(), any::<bool>()).prop_map(
            |((delay_ns, jitter_ns), shares, rate_bps, queue_packets, reorder, down)| Params {
                delay_ns,
                jitter_ns,
                reorder,
                loss_ppm: shares.0,
                burst_loss_ppm: shares.1,
                burst_packets: shares.2,
                duplicate_ppm: shares.3,
                corrupt_ppm: shares.4,
                rate_bps,
                queue_packets,
                down,
            },
        )
    }

    proptest! {
        #[test]
        fn the_text_form_parses_back(params in any_params()) {
            prop_assert_eq!(params.to_string().parse(), Ok(params));
        }

        #[test]
        fn no_text_panics(text in "[a-z=0-9.,%/ ]{0,40}") {
            let _ = text.parse::<Params>();
        }
    }
}
