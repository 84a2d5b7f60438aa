//! Numbered units that a device makes and an application is given: how many are lost, come twice or out of order, and how
//! soon after a time what was made since is there.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Instant;

/// Of a piece that is no unit, so much is shown.
const SHOWN_BYTES: usize = 40;

/// Units of one way.
#[derive(Debug, Default)]
pub(crate) struct Count {
    /// When each was made; its number is its place.
    made: Vec<Instant>,
    /// Numbers in the order in which they came, and when.
    seen: Vec<(Instant, u64)>,
    /// Pieces that are no unit, and the first of them.
    torn: u64,
    first_torn: Option<Vec<u8>>,
    /// How often the application was told that it missed something, as it read too late.
    overruns: u64,
}

/// What became of all units.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) made: u64,
    /// Never seen.
    pub(crate) lost: u64,
    /// Seen more than once.
    pub(crate) repeated: u64,
    /// Seen after a unit that was made later.
    pub(crate) disordered: u64,
    /// Pieces that are no unit, or of a number that was never made.
    pub(crate) torn: u64,
}

impl Count {
    /// The number of the unit to be made next.
    pub(crate) fn next(&self) -> u64 {
        self.made.len() as u64
    }

    /// That unit was made.
    pub(crate) fn make(&mut self) {
        self.made.push(Instant::now());
    }

    /// The unit made last was not made after all.
    pub(crate) fn unmake(&mut self) {
        self.made.pop();
    }

    /// A unit came.
    pub(crate) fn see(&mut self, number: u64) {
        self.seen.push((Instant::now(), number));
    }

    /// Something came that is no unit.
    pub(crate) fn see_torn(&mut self, piece: Vec<u8>) {
        self.torn += 1;
        self.first_torn.get_or_insert(piece);
    }

    /// The application missed something so many times.
    pub(crate) fn overrun(&mut self, times: u64) {
        self.overruns += times;
    }

    /// How often it did.
    pub(crate) fn overruns(&self) -> u64 {
        self.overruns
    }

    /// The beginning of the first piece that is no unit.
    pub(crate) fn first_torn(&self) -> Option<String> {
        let piece = self.first_torn.as_ref()?;
        Some(piece[..piece.len().min(SHOWN_BYTES)].escape_ascii().to_string())
    }

    /// When the first unit that was made after `since` came.
    pub(crate) fn first_made_after(&self, since: Instant) -> Option<Instant> {
        let first = self.made.partition_point(|at| *at < since) as u64;
        self.seen.iter().find(|(at, number)| *number >= first && *at >= since).map(|(at, _)| *at)
    }

    /// Whether the last unit came.
    pub(crate) fn is_complete(&self) -> bool {
        let last = self.next().checked_sub(1);
        last.is_none_or(|last| self.seen.iter().rev().any(|(_, number)| *number == last))
    }

    /// In how many places units are missing: a message that is lost may have had several in a row.
    pub(crate) fn gaps(&self) -> u64 {
        let seen: BTreeSet<u64> = self.seen.iter().map(|(_, number)| *number).collect();
        let is_gap = |number: &u64| !seen.contains(number) && (*number == 0 || seen.contains(&(number - 1)));
        (0..self.next()).filter(is_gap).count() as u64
    }

    pub(crate) fn tally(&self) -> Tally {
        let mut tally = Tally { made: self.next(), torn: self.torn, ..Tally::default() };
        let mut numbers = BTreeSet::new();
        for (_, number) in &self.seen {
            match () {
                () if *number >= tally.made => tally.torn += 1,
                () if numbers.contains(number) => tally.repeated += 1,
                () if numbers.last().is_some_and(|last| last > number) => tally.disordered += 1,
                () => {}
            }
            if *number < tally.made {
                numbers.insert(*number);
            }
        }
        tally.lost = tally.made - numbers.len() as u64;
        tally
    }
}

impl Tally {
    /// Both ways together.
    pub(crate) fn and(self, other: Tally) -> Tally {
        Tally {
            made: self.made + other.made,
            lost: self.lost + other.lost,
            repeated: self.repeated + other.repeated,
            disordered: self.disordered + other.disordered,
            torn: self.torn + other.torn,
        }
    }

    /// Everything came, once, in order, whole.
    pub(crate) fn is_exact(&self) -> bool {
        *self == Tally { made: self.made, ..Tally::default() }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { made, lost, repeated, disordered, torn } = self;
        write!(f, "{made} made, {lost} lost, {repeated} repeated, {disordered} out of order, {torn} torn")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(made: u64, seen: &[u64]) -> Count {
        let mut count = Count::default();
        (0..made).for_each(|_| count.make());
        seen.iter().for_each(|number| count.see(*number));
        count
    }

    #[test]
    fn every_fault_of_a_flow_shows() {
        assert!(counted(3, &[0, 1, 2]).tally().is_exact());
        let tally = |made, seen: &[u64]| counted(made, seen).tally();
        assert_eq!(tally(3, &[0, 2]), Tally { made: 3, lost: 1, ..Tally::default() });
        assert_eq!(tally(3, &[0, 1, 1, 2]), Tally { made: 3, repeated: 1, ..Tally::default() });
        assert_eq!(tally(3, &[0, 2, 1]), Tally { made: 3, disordered: 1, ..Tally::default() });
        assert_eq!([counted(6, &[1, 4, 5]).gaps(), counted(2, &[0, 1]).gaps()], [2, 0]);
        assert_eq!(tally(1, &[0, 7]), Tally { made: 1, torn: 1, ..Tally::default() });
    }

    #[test]
    fn a_flow_has_recovered_when_what_was_made_since_is_there() {
        let mut count = counted(2, &[0]);
        let since = Instant::now();
        count.see(1);
        assert_eq!(count.first_made_after(since), None);
        count.make();
        assert!(!count.is_complete());
        count.see(2);
        assert!(count.first_made_after(since).is_some() && count.is_complete());
    }
}
