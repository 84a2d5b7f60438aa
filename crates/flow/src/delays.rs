//! One-way delays of a flow's last messages, as percentiles.

use contract::Time;

const SAMPLES: usize = 512;

/// One-way delays of a flow's last messages, from creation to delivery.
#[derive(Debug, Clone, Default)]
pub struct Delays {
    samples_ns: Vec<i64>,
    at: usize,
}

impl Delays {
    /// Records the delay of a message created at `created` and delivered at `now`, both by this host's clock.
    pub fn record(&mut self, created: Time, now: Time) {
        let delay_ns = now.signed_since(created);
        if self.samples_ns.len() < SAMPLES {
            self.samples_ns.push(delay_ns);
        } else {
            self.samples_ns[self.at] = delay_ns;
        }
        self.at = (self.at + 1) % SAMPLES;
    }

    /// Returns the 1st, 50th and 99th percentile in nanoseconds; `None` before the first message.
    pub fn percentiles(&self) -> Option<[i64; 3]> {
        let mut sorted = self.samples_ns.clone();
        sorted.sort_unstable();
        let last = sorted.len().checked_sub(1)?;
        Some([sorted[last / 100], sorted[last / 2], sorted[last * 99 / 100]])
    }
}
