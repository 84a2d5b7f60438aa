//! The half that restores the order of messages and decodes pictures. It shows no picture whose reference is missing.
//!
//! ```text
//! state     event                                   effect
//! in order  the next message                        released
//!           a later message                         held; wait → gap
//! gap       the missing message                     released with all behind it: → in order, or the next gap
//!           the wait is over                        ask for all missing messages; a wait twice as long
//!           the source half does not keep it        skip it: → in order, or the next gap
//!           that wait is over for the first time    ask again
//!           for the last time, or held full         skip to the first held message: → in order, or the next gap
//! any       a message far from the next one         the flow is there: held messages are released
//! ```
//!
//! A picture whose reference was skipped is dropped, and a key picture is requested.

use super::decoding::Decoding;
use super::header::{Coding, Control, Header};
use crate::{HELD_BYTES_MAX, dispersion};
use contract::{Message, Outbox, Port, Report, Stage, StageResult, Time};
use std::collections::BTreeMap;
use std::time::Duration;

/// Drop reason: the picture that this one depends on did not arrive.
pub(super) const LOST: &str = "its reference was lost";
/// Most held messages. A message that is further away than this shows that the flow is elsewhere.
const HELD_MAX: u64 = 64;
/// How often the source half is asked for a message: a repetition is lost as easily.
const ASKS_MAX: u8 = 2;
/// Bounds of the wait that the source half proposes.
const WAIT_MS: [u64; 2] = [5, 1000];

/// The wait for missing messages.
#[derive(Debug, Clone, Copy)]
enum Gap {
    /// They may still come by themselves.
    Waiting { until: Time },
    /// The source half was asked for all below `below`.
    Asked { until: Time, below: u64, times: u8 },
}

impl Gap {
    fn until(self) -> Time {
        match self {
            Gap::Waiting { until } | Gap::Asked { until, .. } => until,
        }
    }
}

pub(super) struct Sink {
    decoding: Decoding,
    /// Number of the next message to release.
    next: u64,
    held: BTreeMap<u64, (Coding, Message)>,
    held_bytes: usize,
    gap: Option<Gap>,
    wait: Duration,
    /// The last marker: the number of its message, and its arrival.
    marker: Option<(u64, Time)>,
    /// Number of the last decoded picture; `None` if the decoder needs a key picture.
    reference: Option<u64>,
    requested_at: Option<Time>,
    has_told: bool,
    pictures: u64,
    stored: u64,
    repeated: u64,
    asked: u64,
    skipped: u64,
}

impl Sink {
    pub(super) fn new() -> Sink {
        Sink {
            decoding: Decoding::default(),
            next: 0,
            held: BTreeMap::new(),
            held_bytes: 0,
            gap: None,
            wait: Duration::from_millis(WAIT_MS[0]),
            marker: None,
            reference: None,
            requested_at: None,
            has_told: false,
            pictures: 0,
            stored: 0,
            repeated: 0,
            asked: 0,
            skipped: 0,
        }
    }

    fn acknowledge(&mut self, sequence: u64, now: Time, out: &mut Outbox) {
        let spread = self.marker.filter(|(marked, _)| *marked == sequence).map(|(_, at)| now.since(at));
        // 0 means that there was no marker.
        let spread_us = spread.map_or(0, dispersion::spread_us);
        out.control(Control::Arrived { sequence, spread_us }.emit());
    }

    /// Releases a message whose turn it is.
    fn release(
        &mut self,
        sequence: u64,
        (coding, mut message): (Coding, Message),
        now: Time,
        out: &mut Outbox,
    ) -> StageResult {
        self.next = sequence.saturating_add(1);
        let is_decodable = match coding {
            Coding::Difference { back } => self.reference == Some(sequence - back),
            _ => true,
        };
        match coding {
            Coding::Gone => {
                self.skipped += 1;
                return Ok(());
            }
            Coding::Stored | Coding::Marker => self.stored += 1,
            _ if !is_decodable => {
                out.drop_counted(LOST, 1);
                self.request_key(sequence, now, out);
                return Ok(());
            }
            Coding::Key | Coding::Difference { .. } => {
                self.reference = None;
                let decoded = self.decoding.decode(std::mem::take(&mut message.body));
                match decoded {
                    Ok(body) => message.body = body,
                    Err(error) => {
                        self.request_key(sequence, now, out);
                        return Err(error);
                    }
                }
                self.reference = Some(sequence);
                self.pictures += 1;
            }
        }
        out.send(Port::MAIN, message);
        Ok(())
    }

    fn request_key(&mut self, sequence: u64, now: Time, out: &mut Outbox) {
        if self.requested_at.is_none_or(|at| now >= at.after(self.wait)) {
            self.requested_at = Some(now);
            out.control(Control::KeyNeeded { sequence }.emit());
        }
    }

    fn hold(&mut self, sequence: u64, item: (Coding, Message)) {
        self.held_bytes += item.1.body.len();
        if let Some((_, repeated)) = self.held.insert(sequence, item) {
            self.held_bytes -= repeated.body.len();
            self.repeated += 1;
        }
    }

    /// Releases held messages whose turn it is. Returns the first error of a picture.
    fn release_held(&mut self, now: Time, out: &mut Outbox) -> StageResult {
        let mut result = Ok(());
        while let Some(item) = self.held.remove(&self.next) {
            self.held_bytes -= item.1.body.len();
            let released = self.release(self.next, item, now, out);
            result = result.and(released);
        }
        self.gap = match (self.held.is_empty(), self.gap) {
            (true, _) => None,
            // Some of the missing messages came: the source half has been asked for the others.
            (false, Some(asked @ Gap::Asked { below, .. })) if self.next < below => Some(asked),
            (false, Some(Gap::Waiting { until })) if result.is_ok() && until > now => {
                Some(Gap::Waiting { until })
            }
            _ => Some(Gap::Waiting { until: now.after(self.wait) }),
        };
        result
    }

    /// Skips a missing message that the source half does not keep: its turn passes as if it were held.
    fn handle_gone(&mut self, sequence: u64, message: Message, now: Time, out: &mut Outbox) -> StageResult {
        let newest = self.held.keys().next_back().copied().unwrap_or(self.next);
        if !(self.next..newest).contains(&sequence) || self.held.contains_key(&sequence) {
            return Ok(());
        }
        self.hold(sequence, (Coding::Gone, message));
        self.release_held(now, out)
    }

    /// Gives up the missing messages before the first held one.
    fn skip(&mut self, now: Time, out: &mut Outbox) -> StageResult {
        if let Some(first) = self.held.keys().next() {
            self.skipped += first - self.next;
            self.next = *first;
        }
        self.release_held(now, out)
    }

    fn skip_all(&mut self, now: Time, out: &mut Outbox) -> StageResult {
        let mut result = Ok(());
        while !self.held.is_empty() {
            let skipped = self.skip(now, out);
            result = result.and(skipped);
        }
        result
    }

    /// Asks for every missing message up to the newest held one.
    fn ask(&mut self, times: u8, now: Time, out: &mut Outbox) {
        let below = self.held.keys().next_back().copied().unwrap_or(self.next);
        for sequence in (self.next..below).filter(|sequence| !self.held.contains_key(sequence)) {
            out.control(Control::Missing { sequence }.emit());
            self.asked += 1;
        }
        self.gap = Some(Gap::Asked { until: now.after(self.wait * 2), below, times });
    }
}

impl Stage for Sink {
    fn handle(&mut self, _port: Port, mut message: Message, now: Time, out: &mut Outbox) -> StageResult {
        if !Decoding::IS_POSSIBLE && !self.has_told {
            self.has_told = true;
            out.control(Control::NoDecoder.emit());
        }
        let Header { coding, sequence, wait_ms, padding } = Header::take(&mut message.body)?;
        if padding > 0 {
            let content = message.body.len() - padding;
            message.body = message.body.split_off_front(content).unwrap_or_default();
        }
        if coding == Coding::Gone {
            return self.handle_gone(sequence, message, now, out);
        }
        self.wait = Duration::from_millis(wait_ms.clamp(WAIT_MS[0], WAIT_MS[1]));
        if coding == Coding::Marker {
            self.marker = Some((sequence, now));
            return Ok(());
        }
        self.acknowledge(sequence, now, out);
        let mut result = Ok(());
        if sequence.abs_diff(self.next) >= HELD_MAX {
            result = self.skip_all(now, out);
            self.next = sequence;
        }
        if sequence < self.next {
            self.repeated += 1;
            return result;
        }
        self.hold(sequence, (coding, message));
        let released = self.release_held(now, out);
        result = result.and(released);
        if self.held_bytes > HELD_BYTES_MAX {
            let skipped = self.skip_all(now, out);
            result = result.and(skipped);
        }
        result
    }

    fn handle_end(&mut self, _port: Port, now: Time, out: &mut Outbox) -> StageResult {
        self.skip_all(now, out)
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.gap.map(Gap::until)
    }

    fn handle_timeout(&mut self, now: Time, out: &mut Outbox) -> StageResult {
        match self.gap {
            Some(Gap::Waiting { until }) if until <= now => self.ask(1, now, out),
            Some(Gap::Asked { until, times, .. }) if until <= now && times < ASKS_MAX => {
                self.ask(times + 1, now, out);
            }
            Some(Gap::Asked { until, .. }) if until <= now => return self.skip(now, out),
            _ => {}
        }
        Ok(())
    }

    fn held(&self) -> usize {
        self.held.len()
    }

    fn report(&self) -> Vec<Report> {
        vec![
            ("pictures", self.pictures as f64),
            ("stored", self.stored as f64),
            ("repeated", self.repeated as f64),
            ("asked", self.asked as f64),
            ("skipped", self.skipped as f64),
            ("held", self.held.len() as f64),
        ]
    }
}
