//! The search on modelled paths, with a virtual clock and seeds.

use super::*;
use proptest::prelude::*;

const MBIT: f64 = 1e6 / 8.0;

/// A path: each way reaches `way_mbit`, all together `path_mbit`; each way beyond `best` costs a share of the goodput.
#[derive(Debug, Clone, Copy)]
struct Path {
    way_mbit: f64,
    path_mbit: f64,
    cost: f64,
    /// The sender has no more to send.
    demand_mbit: f64,
    /// Largest random deviation of an interval, as a share.
    noise: f64,
    /// The most ways that the peer grants.
    ways_most: u32,
}

impl Path {
    fn new(way_mbit: f64, path_mbit: f64) -> Path {
        Path { way_mbit, path_mbit, cost: 0.002, demand_mbit: f64::MAX, noise: 0.01, ways_most: WAYS_MAX }
    }

    fn mbit(&self, ways: u32) -> f64 {
        let full = f64::from(ways) * self.way_mbit;
        let over = (full / self.path_mbit - 1.0).max(0.0);
        full.min(self.path_mbit) * (1.0 - self.cost * over).max(0.1)
    }

    fn best_mbit(&self) -> f64 {
        (1..=self.ways_most).map(|ways| self.mbit(ways)).fold(0.0, f64::max)
    }
}

/// A search on a path.
struct Run {
    search: Search,
    now: Time,
    observation: Observation,
    random: u64,
}

impl Run {
    fn new(seed: u64) -> Run {
        let observation =
            Observation { ways_open: 1, round_trip: Duration::from_millis(80), ..Observation::default() };
        Run { search: Search::new(), now: Time::ZERO, observation, random: seed }
    }

    /// Returns a number between -1 and 1 (SplitMix64).
    fn random(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.random;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ (word >> 31)) as f64 / u64::MAX as f64 * 2.0 - 1.0
    }

    /// Runs on a path for this time.
    fn go(&mut self, path: Path, seconds: u64) {
        let end = self.now.after(Duration::from_secs(seconds));
        while self.now < end {
            let in_use = self.search.ways().min(self.observation.ways_open);
            let mbit = path.mbit(in_use) * (1.0 + path.noise * self.random());
            let is_limited = mbit < path.demand_mbit;
            if is_limited {
                self.search.on_limited(self.now, &self.observation);
            }
            let granted = self.search.ways_kept().min(path.ways_most);
            self.observation.ways_open = granted.max(1);
            self.search.on_opened(&self.observation, self.now);
            let until = self.search.due().unwrap_or(end).min(end);
            let lasts = until.since(self.now);
            let sent = mbit.min(path.demand_mbit) * MBIT * lasts.as_secs_f64();
            self.observation.acknowledged_bytes += sent as u64;
            if is_limited {
                self.observation.limited += lasts;
            }
            self.now = until;
            self.search.on_due(&self.observation, self.now);
            assert!((1..=WAYS_MAX).contains(&self.search.ways()));
            assert!(self.search.ways_kept() >= self.search.ways());
        }
    }

    /// Runs for this time, and then until no search is in progress.
    fn settle(&mut self, path: Path, seconds: u64) {
        self.go(path, seconds);
        for _ in 0..300 {
            if self.is_holding() {
                return;
            }
            self.go(path, 1);
        }
        panic!("the search does not end: {:?}", self.search);
    }

    fn is_holding(&self) -> bool {
        matches!(self.search.plan, Plan::Hold(_))
    }
}

#[test]
fn the_bracket_and_its_division_are_those_of_the_thesis() {
    // Figure 2.3: 6 → 7 → 5 in the bracket (4, 6, 8).
    assert_eq!(
        [divide(2, 4, 8), divide(4, 6, 8), divide(4, 6, 7), divide(5, 6, 7)],
        [Some(6), Some(7), Some(5), None]
    );
    assert_eq!(divide(16, 32, 64), Some(44));
    assert_eq!(divide(30, 32, 35), None, "as narrow as the noise");
}

#[test]
fn the_path_of_the_thesis_needs_no_more_steps_than_there() {
    // 33 ways fill 900 Mbit/s.
    let path = Path { cost: 0.05, ..Path::new(27.3, 900.0) };
    let mut run = Run::new(1);
    run.settle(path, 20);
    let Searched { searches, steps, lasted } = run.search.searched();
    assert_eq!(searches, 1);
    assert!(run.is_holding() && steps <= 12, "{steps} steps");
    assert!(lasted < Duration::from_secs(100), "{lasted:?}");
    assert!(path.mbit(run.search.ways()) >= 0.95 * path.best_mbit(), "{} ways", run.search.ways());
}

#[test]
fn one_way_remains_where_one_is_enough() {
    let mut run = Run::new(2);
    run.settle(Path::new(2000.0, 900.0), 20);
    assert_eq!((run.search.ways(), run.search.ways_kept()), (1, 1));
}

#[test]
fn a_sender_without_much_to_send_keeps_one_way_and_no_timer() {
    let path = Path { demand_mbit: 10.0, ..Path::new(27.0, 900.0) };
    let mut run = Run::new(3);
    run.go(path, 100);
    assert_eq!((run.search.ways(), run.search.due()), (1, None));
    assert_eq!(run.search.searched(), Searched::default());
    // It sends much, and then little again.
    run.settle(Path::new(27.0, 900.0), 20);
    assert!(run.search.ways() >= 16);
    run.go(path, 200);
    assert_eq!((run.search.ways(), run.search.due()), (1, None));
}

#[test]
fn background_traffic_that_comes_and_goes_begins_a_search() {
    let [alone, beside] = [Path::new(27.0, 900.0), Path::new(27.0, 300.0)];
    let mut run = Run::new(4);
    run.settle(alone, 20);
    let first = run.search.ways();
    run.settle(beside, 40);
    let second = run.search.ways();
    assert!(beside.mbit(second) >= 0.95 * beside.best_mbit(), "{second} ways");
    assert!(second < first, "{first} ways, then {second}");
    // A path whose ways limit themselves shows no change: a check finds it.
    run.settle(alone, 600);
    assert!(alone.mbit(run.search.ways()) >= 0.95 * alone.best_mbit(), "{} ways", run.search.ways());
}

/// The number is clamped to the middle, or its ways do not open, and the goodput of the middle has fallen since.
#[test]
fn a_number_that_does_not_open_is_not_tried_for_ever() {
    for ways_most in [8, WAYS_MAX] {
        let mut run = Run::new(9);
        let middle = Point { ways: 8, bytes_per_second: 100.0, is_limited: true };
        run.search.plan = Plan::Golden { low: 4, middle, high: 16 };
        (run.search.best, run.search.ways, run.search.ways_most) = (100.0, 16, ways_most);
        run.observation.ways_open = 8;
        let measured = Point { bytes_per_second: 50.0, ..middle };
        let steps = (0..10).take_while(|_| {
            run.search.decide(measured, &run.observation, Time::ZERO);
            !run.is_holding()
        });
        assert!(steps.count() <= 2, "{:?}", run.search);
    }
}

#[test]
fn a_peer_that_grants_few_ways_limits_the_search() {
    let path = Path { ways_most: 5, ..Path::new(27.0, 900.0) };
    let mut run = Run::new(5);
    run.settle(path, 20);
    assert!(run.search.ways() == 5 && run.search.ways_kept() == 5);
    run.search.on_refused(2);
    assert_eq!((run.search.ways(), run.search.ways_kept()), (2, 2));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn the_number_found_is_as_good_as_the_best(
        way_mbit in 5.0..500f64, path_mbit in 50.0..1000f64, cost in 0.0..0.05f64, seed in any::<u64>(),
    ) {
        let path = Path { cost, noise: 0.005, ..Path::new(way_mbit, path_mbit) };
        let mut run = Run::new(seed);
        run.settle(path, 20);
        let ways = run.search.ways();
        prop_assert!(path.mbit(ways) >= 0.9 * path.best_mbit(), "{ways} ways: {:.1} of {:.1}", path.mbit(ways), path.best_mbit());
        prop_assert!(run.search.searched().steps <= 20);
    }

    #[test]
    fn any_observations_are_accepted(
        observations in prop::collection::vec((any::<u64>(), any::<u32>(), any::<u32>(), any::<u16>(), 0..5u8), 1..200),
    ) {
        let mut search = Search::new();
        let mut now = Time::ZERO;
        for (acknowledged_bytes, limited, ways_open, round_trip, event) in observations {
            let observation = Observation {
                acknowledged_bytes,
                limited: Duration::from_millis(limited.into()),
                ways_open,
                round_trip: Duration::from_millis(round_trip.into()),
            };
            match event {
                0 => search.on_limited(now, &observation),
                1 => search.on_opened(&observation, now),
                2 => search.on_refused(ways_open),
                _ => {
                    now = search.due().unwrap_or(now);
                    search.on_due(&observation, now);
                }
            }
            prop_assert!((1..=WAYS_MAX).contains(&search.ways()) && search.ways_kept() <= WAYS_MAX);
        }
    }
}
