//! Which counters came already (RFC 6479: a ring of words, cleared a word at a time).

/// Remembers the last counters, at least as many as asked for.
#[derive(Debug, Clone)]
pub struct Window {
    words: Box<[u64]>,
    /// Counters behind the highest that are told apart.
    size: u64,
    /// One more than the highest counter that came.
    next: u64,
}

impl Window {
    /// Tells the last `size` counters apart.
    pub fn new(size: usize) -> Self {
        // One word more than the window, as the newest is seldom full.
        Window { words: vec![0; size.div_ceil(64) + 1].into(), size: size as u64, next: 0 }
    }

    /// One more than the highest counter that came.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Whether `counter` is within the window and did not come yet.
    pub fn is_new(&self, counter: u64) -> bool {
        let (word, bit) = self.place(counter);
        counter >= self.next || (self.next - counter <= self.size && self.words[word] & bit == 0)
    }

    /// `counter` came.
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
        // Less than the length, which fits.
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

        /// A set of all counters that came, and the highest, say the same.
        #[test]
        fn it_is_the_set_of_what_came(
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
    fn a_great_leap_forgets_all_and_costs_little() {
        let mut window = Window::new(64);
        window.insert(5);
        window.insert(1 << 62);
        assert!(!window.is_new(1 << 62) && !window.is_new(5));
        assert!(window.is_new((1 << 62) - 63) && !window.is_new((1 << 62) - 64));
    }
}
