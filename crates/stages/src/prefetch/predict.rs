//! Predicts the next requests of an application.

use super::{PREFETCH_BYTES_MAX, from_hex};
use crate::field::Field;
use contract::{Body, Bytes, Options};
use std::collections::VecDeque;

/// Requests remembered, so that several interleaved runs are recognised.
const RECENT: usize = 16;

/// Recognises runs of requests.
#[derive(Debug)]
pub(super) struct Predictor {
    number: Field,
    step: u64,
    only: Vec<u8>,
    around: bool,
    ahead: usize,
    recent: VecDeque<u64>,
}

impl Predictor {
    pub(super) fn new(options: &Options) -> Self {
        Predictor {
            number: Field { at: options.count("at"), width: options.count("width") },
            step: options.count("step") as u64,
            // [`Pair::check`](contract::Pair::check) has checked the digits.
            only: from_hex(options.text("only")).unwrap_or_default(),
            around: options.text("guess") == "around",
            ahead: options.count("ahead"),
            recent: VecDeque::new(),
        }
    }

    /// The number in a request; `None` if requests of its kind are not prefetched.
    pub(super) fn number(&self, request: &Body) -> Option<u64> {
        let matches = request.chunks().flatten().take(self.only.len()).eq(&self.only);
        let number = self.number.read(request)?;
        (matches && request.len() <= PREFETCH_BYTES_MAX).then_some(number)
    }

    /// The numbers of the requests that probably follow this one, the nearest first.
    pub(super) fn predict(&mut self, number: u64) -> Vec<u64> {
        let is_recent = |other: Option<u64>| other.is_some_and(|other| self.recent.contains(&other));
        let up = is_recent(number.checked_sub(self.step));
        let down = is_recent(number.checked_add(self.step));
        // A request between two recent ones counts as a run upwards, as most are.
        let both = self.around && !up && !down;
        let mut numbers = Vec::with_capacity(2 * self.ahead);
        for distance in 1..=self.ahead as u64 {
            let distance = self.step.saturating_mul(distance);
            let above = number.checked_add(distance).filter(|above| self.fits(*above));
            numbers.extend(above.filter(|_| up || both));
            numbers.extend(number.checked_sub(distance).filter(|_| (down && !up) || both));
        }
        numbers.truncate(self.ahead);
        if !self.recent.contains(&number) {
            self.recent.push_back(number);
        }
        while self.recent.len() > RECENT {
            self.recent.pop_front();
        }
        numbers
    }

    /// The request `like` with another number.
    pub(super) fn request(&self, like: &Bytes, number: u64) -> Bytes {
        let mut request = like.to_vec();
        let Field { at, width } = self.number;
        request[at..at + width].copy_from_slice(&number.to_le_bytes()[..width]);
        request.into()
    }

    fn fits(&self, number: u64) -> bool {
        let bits = 8 * self.number.width as u32;
        number.checked_shr(bits).unwrap_or(0) == 0
    }
}
