//! The levels that `level=auto` chooses from, and the time that each takes.
//!
//! The constants were measured by `outboard-bench efforts`: one core of an AMD EPYC server, zstd
//! 1.5.7, lz4_flex 0.14 (safe), bodies of 1 KiB to 490 KB. Other hosts differ by a factor, which
//! `auto` measures.

use super::codec::Method;
use contract::Value;

/// A rung of the ladder: a method and level. Times are in nanoseconds per byte before compression,
/// for three kinds of content: flat (compresses to almost nothing), text, and noise (does not
/// compress).
#[derive(Debug)]
pub(super) struct Effort {
    /// `None`: no compression.
    pub(super) method: Option<Method>,
    pub(super) level: i32,
    compress_ns: [f64; 3],
    decompress_ns: [f64; 3],
    /// Compressed share of text.
    pub(super) text_share: f64,
}

/// From the cheapest to the smallest.
pub(super) static LADDER: [Effort; 6] = [
    Effort { method: None, level: 0, compress_ns: [0.0; 3], decompress_ns: [0.0; 3], text_share: 1.0 },
    Effort {
        method: Some(Method::Lz4),
        level: 0,
        compress_ns: [0.08, 2.14, 0.31],
        decompress_ns: [0.43, 0.73, 0.01],
        text_share: 0.575,
    },
    zstd(1, [0.23, 3.65, 0.78], [0.17, 1.54, 0.01], 0.343),
    zstd(3, [0.30, 4.59, 0.93], [0.14, 1.63, 0.01], 0.340),
    zstd(6, [0.86, 14.43, 2.36], [0.11, 1.54, 0.01], 0.330),
    zstd(9, [0.80, 35.15, 4.75], [0.10, 1.41, 0.01], 0.328),
];

const fn zstd(level: i32, compress_ns: [f64; 3], decompress_ns: [f64; 3], text_share: f64) -> Effort {
    Effort { method: Some(Method::Zstd), level, compress_ns, decompress_ns, text_share }
}

/// The rung at which `auto` starts: the default level.
pub(super) const FIRST: usize = 3;

impl Effort {
    /// The rung with this method and level, if there is one.
    pub(super) fn find(method: Method, level: i32) -> Option<&'static Effort> {
        LADDER
            .iter()
            .find(|effort| effort.method == Some(method) && (method == Method::Lz4 || effort.level == level))
    }

    /// Shares of flat, text and noise content in a body that compressed to `share`. They add up to
    /// one.
    pub(super) fn kinds(&self, share: f64) -> [f64; 3] {
        let text = self.text_share;
        if share <= text {
            return [1.0 - share / text, share / text, 0.0];
        }
        let noise = ((share - text) / (1.0 - text)).min(1.0);
        [0.0, 1.0 - noise, noise]
    }

    /// Nanoseconds to compress, and to decompress, a body of `before` bytes that compressed to
    /// `after`.
    pub(super) fn work_ns(&self, before: usize, after: usize) -> [f64; 2] {
        let kinds = self.kinds(after as f64 / before.max(1) as f64);
        [self.compress_ns(kinds), self.decompress_ns(kinds)].map(|ns| ns * before as f64)
    }

    /// Nanoseconds to compress a byte of such content.
    pub(super) fn compress_ns(&self, kinds: [f64; 3]) -> f64 {
        weighted_sum(self.compress_ns, kinds)
    }

    /// Nanoseconds to decompress a byte of such content.
    pub(super) fn decompress_ns(&self, kinds: [f64; 3]) -> f64 {
        weighted_sum(self.decompress_ns, kinds)
    }

    /// The rung as the value of the option `level`: levels of zstd are numbers.
    pub(super) fn value(&self) -> Value {
        match self.method {
            None => Value::Text("stored".into()),
            Some(Method::Lz4) => Value::Text("lz4".into()),
            Some(_) => Value::Integer(self.level.into()),
        }
    }
}

fn weighted_sum(costs: [f64; 3], kinds: [f64; 3]) -> f64 {
    costs.iter().zip(kinds).map(|(cost, kind)| cost * kind).sum()
}
