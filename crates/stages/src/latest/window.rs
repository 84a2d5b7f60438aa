//! How many messages may be under way.
//!
//! `auto` follows the time from a message's leaving to the sink half's word of it, the round trip. The network
//! is full when round trips grow longer than the shortest. As in FAST TCP (Wei, Jin, Low and Hegde 2006) the
//! window tends to what the network holds plus [`QUEUED`] messages: `window * shortest / round trip + QUEUED`.
//!
//! That is for messages of one size, and it takes some round trips to tend anywhere. Where messages are large enough to
//! tell, how long the network takes for a byte is followed too, and then only what it carries within the shortest round
//! trip may be under way: many that are small, few that are large, and no queue meanwhile.
//!
//! A shortest that nothing has come near for long is measured anew, over an empty network (as BBR does), or a queue
//! of our own would come to be taken for distance.

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
const TIMED_BYTES_MIN: usize = 1 << 11;
/// Messages by whose median it is told how long a byte takes: what one of them waited for somebody else counts for nothing.
const TIMED: usize = 9;
/// Beyond where the network was once full, the window grows by one part in so many at a time.
const GROW_SHARE: usize = 8;
/// How many times as many messages as the window has may be under way if their bytes say so.
const SMALL_ONES: usize = 4;
/// How long a shortest round trip is relied on that nothing comes near.
const MEASURED_FOR: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Window {
    size: usize,
    auto: Option<Auto>,
}

#[derive(Debug, Default)]
struct Auto {
    /// The shortest round trip, and when one was last seen that is hardly longer.
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

/// Whether a round trip is no longer than the shortest, as far as can be told.
fn is_near(round_trip: Duration, shortest: Duration) -> bool {
    round_trip <= shortest.mul_f64(1.0 + SLACK).max(shortest + SLACK_MIN)
}

impl Auto {
    /// Nanoseconds that the network takes for a byte.
    fn byte_ns(&self) -> Option<f64> {
        let mut sorted = self.bytes_ns;
        let sorted = &mut sorted[..self.timed.min(TIMED)];
        sorted.sort_unstable_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied()
    }

    /// Notes how long a message of so many bytes took, which left then; the one before it was heard of at `before`.
    fn time_bytes(&mut self, bytes: usize, left: Time, before: Time, now: Time) {
        let Some((shortest, _)) = self.shortest.filter(|_| bytes >= TIMED_BYTES_MIN) else { return };
        // What went before it held it up; the way alone takes its time whatever goes.
        let own = now.since(before.max(left.after(shortest)));
        self.bytes_ns[self.timed % TIMED] = own.as_nanos() as f64 / bytes as f64;
        self.timed += 1;
    }

    /// Notes the round trip of a message of so many bytes.
    fn note_shortest(&mut self, bytes: usize, round_trip: Duration, now: Time) {
        let own = self.byte_ns().map_or(0.0, |byte_ns| byte_ns * bytes as f64);
        match &mut self.shortest {
            Some((shortest, _)) if round_trip < *shortest => {
                if !is_near(*shortest, round_trip) {
                    // By what was taken for the way, bytes were timed wrongly.
                    self.timed = 0;
                }
                self.shortest = Some((round_trip, now));
            }
            Some((shortest, seen)) => {
                if is_near(round_trip.saturating_sub(Duration::from_nanos(own as u64)), *shortest) {
                    *seen = now;
                }
            }
            None => self.shortest = Some((round_trip, now)),
        }
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

    /// Whether one message more finds no queue beside so many under way, of so many bytes; `None` where that cannot be told
    /// by bytes, and their number counts.
    pub(super) fn has_room(&self, messages: usize, bytes: u64) -> Option<bool> {
        let auto = self.auto.as_ref()?;
        let (byte_ns, (shortest, _)) = (auto.byte_ns()?, auto.shortest?);
        let is_carried = bytes as f64 * byte_ns < shortest.max(SLACK_MIN).as_nanos() as f64;
        let most = self.size.saturating_mul(SMALL_ONES).min(IN_FLIGHT_MAX);
        Some(messages == 0 || is_carried && messages < most)
    }

    /// A message has to wait.
    pub(super) fn fill(&mut self) {
        if let Some(auto) = &mut self.auto {
            auto.was_full = true;
        }
    }

    /// Message `number`, of so many bytes, was heard of, which left then; the next to leave has number `next`.
    pub(super) fn handle_heard(&mut self, number: u64, next: u64, (left, bytes): (Time, usize), now: Time) {
        let Some(auto) = &mut self.auto else { return };
        let before = std::mem::replace(&mut auto.heard, now);
        // While it is measured anew, what left before tells of our own queue.
        if auto.shortest.is_none() && number < auto.until {
            return;
        }
        let round_trip = now.since(left);
        auto.time_bytes(bytes, left, before, now);
        auto.note_shortest(bytes, round_trip, now);
        let lately = auto.lately.map_or(round_trip, |lately| lately.min(round_trip));
        auto.lately = Some(lately);
        let Some((shortest, seen)) = auto.shortest.filter(|_| number >= auto.until) else { return };
        if now.since(seen) > MEASURED_FOR {
            (auto.shortest, auto.timed) = (None, 0);
            auto.resumes = Some(std::mem::replace(&mut self.size, 1));
        } else if let Some(size) = auto.resumes.take() {
            self.size = size;
        } else if is_near(lately, shortest) {
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
