//! The random number generator: small, seeded, and equal on every machine.

/// SplitMix64 (Steele, Lea, Flood 2014: "Fast splittable pseudorandom number generators"). It is good enough
/// for losses and jitter, but not for secrets.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator for one `purpose`. Purposes are independent: the same packets are lost with and without
    /// jitter.
    pub fn new(seed: u64, purpose: u64) -> Rng {
        Rng(Rng(seed ^ purpose.rotate_left(32)).draw())
    }

    /// Returns 64 random bits.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns a number uniform in `0..=max`.
    pub fn up_to(&mut self, max: u64) -> u64 {
        ((u128::from(self.draw()) * (u128::from(max) + 1)) >> 64) as u64
    }

    /// Returns true with a probability of `part` in `whole`.
    pub fn chance(&mut self, part: u64, whole: u64) -> bool {
        part > 0 && self.up_to(whole.saturating_sub(1)) < part
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chances_have_the_right_frequency() {
        let mut rng = Rng::new(7, 0);
        let hits = (0..1_000_000).filter(|_| rng.chance(1, 1_000)).count();
        assert!((880..1120).contains(&hits), "{hits}");
        assert!(!(0..1000).any(|_| rng.chance(0, 10)));
        assert!((0..1000).all(|_| rng.chance(10, 10)));
    }

    #[test]
    fn purposes_differ_and_seeds_repeat() {
        let first = |seed, purpose| Rng::new(seed, purpose).draw();
        assert_eq!(first(1, 0), first(1, 0));
        assert_ne!(first(1, 0), first(1, 1));
        assert_ne!(first(1, 0), first(2, 0));
    }
}
