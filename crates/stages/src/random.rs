//! Seeded random numbers, the same on every machine.

/// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014). Not for
/// secrets.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// 64 random bits.
    pub(crate) fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform in `0..=max`.
    pub(crate) fn up_to(&mut self, max: u64) -> u64 {
        ((u128::from(self.draw()) * (u128::from(max) + 1)) >> 64) as u64
    }

    /// True with the probability `share`.
    pub(crate) fn chance(&mut self, share: f64) -> bool {
        const STEPS: u64 = 1 << 53;
        ((self.draw() % STEPS) as f64) < share * STEPS as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_published_generator() {
        let mut random = Random::new(1234567);
        let drawn: Vec<u64> = (0..3).map(|_| random.draw()).collect();
        assert_eq!(drawn, [6457827717110365317, 3203168211198807973, 9817491932198370423]);
    }

    #[test]
    fn chances_and_bounds_hold() {
        let mut random = Random::new(1);
        let hits = (0..100_000).filter(|_| random.chance(0.01)).count();
        assert!((850..1150).contains(&hits), "{hits}");
        assert!(!(0..1000).any(|_| random.chance(0.0)) && (0..1000).all(|_| random.chance(1.0)));
        assert!((0..1000).all(|_| random.up_to(3) <= 3));
    }
}
