//! A replay window: detects repeated counters (RFC 6479: a ring of words, cleared one word at a time).

/// The most recent counters, at least as many as requested.
#[derive(Debug, Clone)]
pub struct Window {
    words: Box<[u64]>,
    /// The number of counters below the highest that are tracked.
    size: u64,
    /// One more than the highest counter seen.
    next: u64,
}

impl Window {
    /// Tracks the last `size` counters.
    pub fn new(size: usize) -> Self {
        // One extra word, because the newest word is only partly used.
        Window { words: vec![0; size.div_ceil(64) + 1].into(), size: size as u64, next: 0 }
    }

    /// One more than the highest counter seen.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Returns true if `counter` is within the window and was not seen. The last counter is never new: no other can follow it.
    pub fn is_new(&self, counter: u64) -> bool {
        let (word, bit) = self.place(counter);
        match self.next.checked_sub(counter) {
            None | Some(0) => counter < u64::MAX,
            Some(below) => below <= self.size && self.words[word] & bit == 0,
        }
    }

    /// Records a new counter.
    pub fn insert(&mut self, counter: u64) {
        if counter >= self.next {
            let fresh = self.next.div_ceil(64)..=counter / 64;
            for word in fresh.take(self.words.len()) {
                let place = self.word(word);
                self.words[place] = 0;
            }
            self.next = counter + 1;
        }
        let (word, bit) = self.place(counter);
        self.words[word] |= bit;
    }

    fn word(&self, number: u64) -> usize {
        // The remainder is less than the length, so it fits.
        (number % self.words.len() as u64) as usize
    }

    fn place(&self, counter: u64) -> (usize, u64) {
        (self.word(counter / 64), 1 << (counter % 64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        /// Compares the window with a set of all counters seen.
        #[test]
        fn the_window_equals_a_set(
            size in 64usize..300,
            steps in prop::collection::vec((0u64..3, 0u64..700), 1..400),
        ) {
            let (mut window, mut came, mut next) = (Window::new(size), BTreeSet::new(), 0u64);
            for (kind, by) in steps {
                let counter = match kind {
                    0 => next + by % 3,
                    1 => next.saturating_sub(by % 400),
                    _ => next + by,
                };
                let is_new = counter >= next || (next - counter <= size as u64 && !came.contains(&counter));
                prop_assert_eq!(window.is_new(counter), is_new, "{} of {}", counter, next);
                if is_new {
                    window.insert(counter);
                    came.insert(counter);
                    next = next.max(counter + 1);
                }
                prop_assert_eq!(window.next(), next);
            }
        }
    }

    #[test]
    fn a_large_jump_clears_all_at_little_cost() {
        let mut window = Window::new(64);
        window.insert(5);
        window.insert(1 << 62);
        assert!(!window.is_new(1 << 62) && !window.is_new(5));
        assert!(window.is_new((1 << 62) - 63) && !window.is_new((1 << 62) - 64));
    }

    #[test]
    fn the_last_counter_is_refused() {
        let mut window = Window::new(64);
        assert!(!window.is_new(u64::MAX));
        window.insert(u64::MAX - 1);
        assert_eq!(window.next(), u64::MAX);
        assert!(window.is_new(u64::MAX - 2) && !window.is_new(u64::MAX - 1) && !window.is_new(u64::MAX));
    }
}
