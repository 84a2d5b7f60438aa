//! Counts numbered units from a device to an application: lost, repeated and out-of-order units, and the arrival of the
//! first unit created after a given time.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Instant;

/// Bytes of a torn unit that are printed.
const SHOWN_BYTES: usize = 40;

/// The units of one direction.
#[derive(Debug, Default)]
pub(crate) struct Count {
    /// Creation times by number.
    made: Vec<Instant>,
    /// Arrival times and numbers in order of arrival.
    seen: Vec<(Instant, u64)>,
    /// Number of torn units, and the first of them.
    torn: u64,
    first_torn: Option<Vec<u8>>,
    /// Number of overruns that the kernel reported to the application.
    overruns: u64,
}

/// The result of a count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) made: u64,
    /// Units that did not arrive.
    pub(crate) lost: u64,
    /// Units that arrived again.
    pub(crate) repeated: u64,
    /// Units that arrived after a later one.
    pub(crate) disordered: u64,
    /// Torn units, and units with a number that was never created.
    pub(crate) torn: u64,
}

impl Count {
    /// Returns the number of the next unit.
    pub(crate) fn next(&self) -> u64 {
        self.made.len() as u64
    }

    /// Records the creation of a unit.
    pub(crate) fn make(&mut self) {
        self.made.push(Instant::now());
    }

    /// Removes the last creation.
    pub(crate) fn unmake(&mut self) {
        self.made.pop();
    }

    /// Records the arrival of a unit.
    pub(crate) fn see(&mut self, number: u64) {
        self.seen.push((Instant::now(), number));
    }

    /// Records a torn unit.
    pub(crate) fn see_torn(&mut self, piece: Vec<u8>) {
        self.torn += 1;
        self.first_torn.get_or_insert(piece);
    }

    /// Records overruns.
    pub(crate) fn overrun(&mut self, times: u64) {
        self.overruns += times;
    }

    /// Returns the number of overruns.
    pub(crate) fn overruns(&self) -> u64 {
        self.overruns
    }

    /// Returns the start of the first torn unit.
    pub(crate) fn first_torn(&self) -> Option<String> {
        let piece = self.first_torn.as_ref()?;
        Some(piece[..piece.len().min(SHOWN_BYTES)].escape_ascii().to_string())
    }

    /// Returns the arrival time of the first unit created after `since`.
    pub(crate) fn first_made_after(&self, since: Instant) -> Option<Instant> {
        let first = self.made.partition_point(|at| *at < since) as u64;
        self.seen.iter().find(|(at, number)| *number >= first && *at >= since).map(|(at, _)| *at)
    }

    /// Returns true if the last unit has arrived.
    pub(crate) fn is_complete(&self) -> bool {
        let last = self.next().checked_sub(1);
        last.is_none_or(|last| self.seen.iter().rev().any(|(_, number)| *number == last))
    }

    /// Returns the number of gaps. A lost message may contain several consecutive units.
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
    /// Adds another direction.
    pub(crate) fn and(self, other: Tally) -> Tally {
        Tally {
            made: self.made + other.made,
            lost: self.lost + other.lost,
            repeated: self.repeated + other.repeated,
            disordered: self.disordered + other.disordered,
            torn: self.torn + other.torn,
        }
    }

    /// Returns true if every unit arrived once, whole and in order.
    pub(crate) fn is_exact(&self) -> bool {
        *self == Tally { made: self.made, ..Tally::default() }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { made, lost, repeated, disordered, torn } = self;
        write!(f, "{made} created, {lost} lost, {repeated} repeated, {disordered} out of order, {torn} torn")
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
    fn a_flow_has_recovered_when_a_new_unit_arrives() {
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
