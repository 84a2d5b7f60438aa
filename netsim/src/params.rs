//! What a link does to its packets, and how that is written.

use std::fmt;
use std::str::FromStr;

/// The longest delay and the widest jitter, an hour: far beyond any link, and far from overflow.
const TIME_MAX_NS: u64 = 3_600_000_000_000;
/// Below 1 kbit/s one packet would hold the link for over ten seconds.
const RATE_MIN_BPS: u64 = 1_000;
const RATE_MAX_BPS: u64 = 1_000_000_000_000;
/// One in a million is the unit of every probability here: `loss=0.0001%`.
pub(crate) const ALL_PPM: u32 = 1_000_000;

/// What one direction of a link does to its packets. The default does nothing.
///
/// Written as words joined by commas (or blanks), each of which may be left out:
///
/// | word | meaning |
/// |---|---|
/// | `delay=20ms` | one-way propagation delay; units `ns`, `us`, `ms`, `s` |
/// | `jitter=5ms` | each packet takes longer by a time uniform in 0 to 5 ms |
/// | `reorder`, `in-order` | whether jitter may change the order of packets |
/// | `loss=0.1%` | each packet is lost with this probability, on its own |
/// | `burst=1%/8` | 1 % of packets are lost in bursts, 8 long on average (Gilbert-Elliott) |
/// | `duplicate=0.1%` | a packet arrives twice |
/// | `corrupt=0.1%` | one bit of a packet is flipped |
/// | `rate=10mbit` | bits of packet per second; `kbit`, `mbit`, `gbit`, or `unlimited` |
/// | `queue=100` | packets that may wait for the rate; what comes to a full queue is dropped |
/// | `down`, `up` | whether the link is cut |
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Params {
    /// One-way propagation delay.
    pub delay_ns: u64,
    /// Each packet gets a further delay, uniform in `0..=jitter_ns`.
    pub jitter_ns: u64,
    /// Let jitter, and a delay that shrinks, change the order of packets.
    pub reorder: bool,
    /// Packets lost independently, in a million.
    pub loss_ppm: u32,
    /// Packets lost in bursts, in a million.
    pub burst_loss_ppm: u32,
    /// Mean length of those bursts, in packets.
    pub burst_packets: u32,
    /// Packets that arrive twice, in a million.
    pub duplicate_ppm: u32,
    /// Packets of which a bit is flipped, in a million.
    pub corrupt_ppm: u32,
    /// Bits of packet per second; 0 is unlimited.
    pub rate_bps: u64,
    /// Packets that may wait for the rate before the tail is dropped.
    pub queue_packets: u32,
    /// The link is cut: nothing comes through.
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
    /// Changes what `text` names and leaves the rest alone; on an error, everything.
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

/// The canonical form, which parses back to the same: the delay, then all that is not the default.
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

/// A word that says nothing about a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParamsError {
    word: String,
}

impl fmt::Display for ParamsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "link parameter {:?} is not understood; write words such as \
             delay=20ms,jitter=5ms,reorder,loss=0.1%,burst=1%/8,duplicate=0.1%,corrupt=0.1%,\
             rate=10mbit,queue=100,down",
            self.word
        )
    }
}

impl std::error::Error for ParamsError {}

/// A number as it is written, exactly: `digits` without their point, in units of 10^-`places`.
fn parse_decimal(text: &str) -> Option<(u64, u32, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits: u64 = format!("{whole}{fraction}").parse().ok()?;
    Some((digits, u32::try_from(fraction.len()).ok()?, unit))
}

/// `digits * scale / 10^places`, to the nearest.
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

/// `1%/8`. A burst starts at most once a packet, so short bursts cannot make up a large share.
fn parse_burst(text: &str) -> Option<(u32, u32)> {
    let (share, length) = text.split_once('/').unwrap_or((text, "1"));
    let (ppm, packets): (u32, u32) = (parse_ppm(share)?, length.parse().ok()?);
    let (part, whole) = burst_chance(ppm, packets);
    (packets > 0 && part <= whole).then_some((ppm, packets))
}

/// With what chance (a part of a whole) a burst begins at a packet, for bursts of `packets` to take
/// `share_ppm` of all packets: a share is enter / (enter + leave), and leave is 1 / `packets`.
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

/// Nanoseconds in the largest unit that keeps them whole to three places.
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

/// `value / unit_size` in decimal, exactly; `unit_size` is a power of ten.
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
    fn refuses_nonsense_and_names_it() {
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
        fn what_is_written_reads_back(params in any_params()) {
            prop_assert_eq!(params.to_string().parse(), Ok(params));
        }

        #[test]
        fn no_text_panics(text in "[a-z=0-9.,%/ ]{0,40}") {
            let _ = text.parse::<Params>();
        }
    }
}
