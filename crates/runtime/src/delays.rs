//! One-way delays and spacing of the last messages of a flow, as percentiles.

use contract::Time;

const SAMPLES: usize = 512;

/// The last delays of a flow, from creation to hand-over.
#[derive(Debug, Clone, Default)]
pub(crate) struct Delays {
    samples_ns: Vec<i64>,
    at: usize,
}

impl Delays {
    /// A message created at `created` is handed over at `now`, both on this host's clock.
    pub(crate) fn record(&mut self, created: Time, now: Time) {
        let delay_ns = now.signed_since(created);
        if self.samples_ns.len() < SAMPLES {
            self.samples_ns.push(delay_ns);
        } else {
            self.samples_ns[self.at] = delay_ns;
        }
        self.at = (self.at + 1) % SAMPLES;
    }

    /// 1st, 50th and 99th percentile, nanoseconds; `None` before the first message.
    pub(crate) fn percentiles(&self) -> Option<[i64; 3]> {
        let mut sorted = self.samples_ns.clone();
        sorted.sort_unstable();
        let last = sorted.len().checked_sub(1)?;
        Some([sorted[last / 100], sorted[last / 2], sorted[last * 99 / 100]])
    }
}
