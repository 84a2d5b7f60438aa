//! How many messages may be under way.
//!
//! `auto` follows the time from a message's leaving to the sink half's word of it, the round trip. The network
//! is full when round trips grow longer than the shortest. As in FAST TCP (Wei, Jin, Low and Hegde 2006) the
//! window tends to what the network holds plus [`QUEUED`] messages: `window * shortest / round trip + QUEUED`.
//!
//! That is for messages of one size. Where they differ, as parts of a screen do, small ones need not wait for each
//! other's round trips: how long the network takes for a byte is followed too, and what fits into the shortest round trip may be under
//! way whatever their number.
//!
//! The shortest is measured anew now and then, over an empty network (as BBR does), or a queue of our own
//! would come to be taken for distance.

use super::IN_FLIGHT_MAX;
use contract::{Options, Time, Value};
use std::time::Duration;

/// Messages that may wait in the network, so that it is never idle.
const QUEUED: f64 = 1.0;
/// Where `auto` begins.
const FIRST: usize = 4;
/// Round trips this much longer than the shortest, in parts of it, say nothing of a queue.
const SLACK: f64 = 0.125;
/// And neither do those by so much.
const SLACK_MIN: Duration = Duration::from_millis(2);
/// Messages of fewer bytes say nothing of how long a byte takes.
const TIMED_BYTES_MIN: usize = 1 << 12;
/// Messages by whose median it is told how long a byte takes: what one of them waited for somebody else counts for nothing.
const TIMED: usize = 9;
/// Beyond where the network was once full, the window grows by one part in so many at a time.
const GROW_SHARE: usize = 8;
/// How long a shortest round trip is relied on.
const MEASURED_FOR: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Window {
    size: usize,
    auto: Option<Auto>,
}

#[derive(Debug, Default)]
struct Auto {
    /// The shortest round trip, and when it was seen.
    shortest: Option<(Duration, Time)>,
    /// The shortest of those that came since the window was last set.
    lately: Option<Duration>,
    /// The window is set again when this message is heard of.
    until: u64,
    /// Messages had to wait meanwhile.
    was_full: bool,
    /// It was seen where the network is full.
    was_beyond: bool,
    /// The window from before the shortest began to be measured anew.
    resumes: Option<usize>,
    /// Nanoseconds that the network took for a byte of the last messages, and how many there were.
    bytes_ns: [f64; TIMED],
    timed: usize,
    /// When something was last heard of.
    heard: Time,
}

impl Auto {
    /// Nanoseconds that the network takes for a byte.
    fn byte_ns(&self) -> Option<f64> {
        let mut sorted = self.bytes_ns;
        let sorted = &mut sorted[..self.timed.min(TIMED)];
        sorted.sort_unstable_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied()
    }
}

impl Window {
    pub(super) fn new(options: &Options) -> Window {
        match options.is_auto("in_flight") {
            true => Window { size: FIRST, auto: Some(Auto::default()) },
            false => Window { size: options.count("in_flight"), auto: None },
        }
    }

    /// Messages that may be under way.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// Whether the network carries so many bytes within the shortest round trip, so that one message more finds no queue.
    pub(super) fn holds(&self, bytes: u64) -> bool {
        let known = self.auto.as_ref().and_then(|auto| Some((auto.byte_ns()?, auto.shortest?.0)));
        known.is_some_and(|(byte_ns, shortest)| bytes as f64 * byte_ns < shortest.as_nanos() as f64)
    }

    /// A message of so many bytes, which left then, was heard of.
    pub(super) fn handle_bytes(&mut self, bytes: usize, left: Time, now: Time) {
        let Some(auto) = &mut self.auto else { return };
        let heard = std::mem::replace(&mut auto.heard, now);
        let Some((shortest, _)) = auto.shortest.filter(|_| bytes >= TIMED_BYTES_MIN) else { return };
        // What went before it held it up; the way alone takes its time whatever goes.
        let own = now.since(heard.max(left.after(shortest)));
        auto.bytes_ns[auto.timed % TIMED] = own.as_nanos() as f64 / bytes as f64;
        auto.timed += 1;
    }

    /// A message has to wait.
    pub(super) fn fill(&mut self) {
        if let Some(auto) = &mut self.auto {
            auto.was_full = true;
        }
    }

    /// Message `number` was heard of after `round_trip`; the next to leave has number `next`.
    pub(super) fn handle_round_trip(&mut self, number: u64, next: u64, round_trip: Duration, now: Time) {
        let Some(auto) = &mut self.auto else { return };
        // While it is measured anew, what left before tells of our own queue.
        if auto.shortest.is_none() && number < auto.until {
            return;
        }
        if auto.shortest.is_none_or(|(shortest, _)| round_trip <= shortest) {
            auto.shortest = Some((round_trip, now));
        }
        let lately = auto.lately.map_or(round_trip, |lately| lately.min(round_trip));
        auto.lately = Some(lately);
        let Some((shortest, seen)) = auto.shortest.filter(|_| number >= auto.until) else { return };
        if now.since(seen) > MEASURED_FOR {
            auto.shortest = None;
            auto.resumes = Some(std::mem::replace(&mut self.size, 1));
        } else if let Some(size) = auto.resumes.take() {
            self.size = size;
        } else if lately <= shortest.mul_f64(1.0 + SLACK).max(shortest + SLACK_MIN) {
            if auto.was_full {
                let more = if auto.was_beyond { (self.size / GROW_SHARE).max(1) } else { self.size };
                self.size = (self.size + more).min(IN_FLIGHT_MAX);
            }
        } else {
            auto.was_beyond = true;
            let holds = self.size as f64 * shortest.as_secs_f64() / lately.as_secs_f64();
            self.size = ((holds + QUEUED).round() as usize).clamp(1, IN_FLIGHT_MAX);
        }
        (auto.lately, auto.until, auto.was_full) = (None, next, false);
    }

    /// What `auto` stands at, and why.
    pub(super) fn choice(&self) -> Option<contract::Choice> {
        let auto = self.auto.as_ref()?;
        let why = match auto.shortest {
            None => "how long a round trip takes is being measured".into(),
            Some((shortest, _)) => format!(
                "round trips take {:.1} ms at least: so many messages keep the network busy, and more would only wait",
                shortest.as_secs_f64() * 1e3
            ),
        };
        let size = i64::try_from(self.size).unwrap_or(i64::MAX);
        Some(contract::Choice { option: "in_flight", value: Value::Integer(size), why })
    }
}
