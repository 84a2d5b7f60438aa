//! Model checking: all states that a flow between two hosts can reach, in a small scope. In every state the
//! promises hold, and from every state the good moves alone lead to the end.
//!
//! The search is breadth first, so that a counterexample is shortest; it is printed. `OUTBOARD_SCOPE=large`
//! searches further.

use contract::FlowClass;
use session::StoreFull;
use std::collections::hash_map::{DefaultHasher, Entry};
use std::collections::{HashMap, VecDeque};
use std::fmt::Write;
use std::hash::Hasher;
use testkit::resume::{Move, Scope, World};

/// A scope with more states than this is not small.
const STATES_MAX: usize = 20_000_000;

/// All states of a scope, numbered in order of discovery.
#[derive(Default)]
struct Found {
    numbers: HashMap<u64, u32>,
    /// The predecessor of each state, and the move from it.
    ways: Vec<(u32, Move)>,
    /// Good moves between states.
    good: Vec<(u32, u32)>,
    done: Vec<u32>,
}

impl Found {
    /// Returns the number of a state, and true if the state is new. States are identified by a 64-bit hash:
    /// among a million states, a collision is less likely than one in ten million.
    fn number(&mut self, world: &World, key: &mut String) -> (u32, bool) {
        world.write_key(key);
        let mut hasher = DefaultHasher::new();
        hasher.write(key.as_bytes());
        let next = self.numbers.len() as u32;
        match self.numbers.entry(hasher.finish()) {
            Entry::Occupied(known) => (*known.get(), false),
            Entry::Vacant(new) => {
                new.insert(next);
                (next, true)
            }
        }
    }

    /// The moves that lead to a state.
    fn trace(&self, mut number: u32) -> Vec<Move> {
        let mut moves = Vec::new();
        while number != 0 {
            let (from, made) = self.ways[number as usize];
            moves.push(made);
            number = from;
        }
        moves.reverse();
        moves
    }

    /// The first state from which good moves alone do not lead to the end.
    fn stuck(&self) -> Option<u32> {
        let mut before = vec![Vec::new(); self.ways.len()];
        for (from, to) in &self.good {
            before[*to as usize].push(*from);
        }
        let mut ends = vec![false; self.ways.len()];
        let mut open = self.done.clone();
        while let Some(number) = open.pop() {
            if !std::mem::replace(&mut ends[number as usize], true) {
                open.extend(&before[number as usize]);
            }
        }
        ends.iter().position(|ends| !ends).map(|number| number as u32)
    }
}

/// Visits every state of a scope.
fn explore(scope: &Scope) {
    let mut found = Found::default();
    let mut key = String::new();
    let first = World::new(scope);
    found.number(&first, &mut key);
    found.ways.push((0, Move::Send));
    let mut open = VecDeque::from([(0, first)]);
    while let Some((from, world)) = open.pop_front() {
        if world.is_done() {
            found.done.push(from);
        }
        for made in Move::ALL {
            let mut next = world.clone();
            match next.step(*made) {
                Ok(false) => continue,
                Ok(true) => {}
                Err(broken) => fail(scope, &broken, found.trace(from), Some(*made)),
            }
            let (number, is_new) = found.number(&next, &mut key);
            if is_new {
                found.ways.push((from, *made));
                open.push_back((number, next));
            }
            if made.is_good() {
                found.good.push((from, number));
            }
        }
        assert!(found.ways.len() < STATES_MAX, "{scope:?} is not small");
    }
    assert!(!found.done.is_empty(), "{scope:?}: nothing ever ends");
    if let Some(stuck) = found.stuck() {
        fail(scope, "from here nothing leads to the end", found.trace(stuck), None);
    }
    println!("{:>9} states, {:>9} good moves: {scope:?}", found.ways.len(), found.good.len());
}

/// Prints the broken promise and the shortest way to it.
fn fail(scope: &Scope, broken: &str, trace: Vec<Move>, last: Option<Move>) -> ! {
    let mut world = World::new(scope);
    let mut story = String::new();
    for made in trace.into_iter().chain(last) {
        writeln!(story, "  {made:?}").expect("a string takes everything");
        let _ = world.step(made);
    }
    panic!("{broken}, after\n{story}in {scope:?}\nwhere {world:#?}");
}

/// The count, or one more in a large scope.
fn more<T: From<bool> + std::ops::Add<Output = T>>(count: T) -> T {
    count + T::from(std::env::var("OUTBOARD_SCOPE").is_ok_and(|scope| scope == "large"))
}

fn reliable(lossy: bool, messages: u64) -> Scope {
    Scope::new(FlowClass::Reliable, lossy, messages)
}

#[test]
fn a_stream_that_is_cut_loses_and_repeats_nothing() {
    explore(&Scope { cuts: more(1), ..reliable(false, 3) });
}

#[test]
fn datagrams_lost_repeated_and_late_change_nothing() {
    explore(&Scope { losses: more(1), repeats: 1, ..reliable(true, 3) });
    explore(&Scope { cuts: more(1), repeats: 1, ..reliable(true, 2) });
}

#[test]
fn killed_processes_resume_from_their_tickets() {
    explore(&Scope { kills: more(1), ..reliable(false, 3) });
    explore(&Scope { kills: more(1), losses: 1, ..reliable(true, 2) });
}

/// Stages with memory are saved now and then. Later messages come again and are left out.
#[test]
fn stages_with_memory_resume_from_their_checkpoints() {
    let remembers = |scope| Scope { remembers: true, ..scope };
    explore(&remembers(Scope { kills: more(1), ..reliable(false, 3) }));
    explore(&remembers(Scope { kills: 2, ..reliable(false, 2) }));
    explore(&remembers(Scope { kills: 1, losses: 1, ..reliable(true, 2) }));
    explore(&remembers(Scope { kills: 1, changes: 1, ..reliable(false, 2) }));
    explore(&remembers(Scope { kills: 1, brokers: 1, ..reliable(false, 2) }));
}

/// The hosts change from one link to the other at different moments, in either order.
#[test]
fn a_change_of_transport_loses_and_repeats_nothing() {
    explore(&Scope { switches: more(1), ..reliable(false, 3) });
    explore(&Scope { switches: 1, cuts: 1, ..reliable(false, more(2)) });
    explore(&Scope { switches: 1, kills: 1, ..reliable(false, more(2)) });
    explore(&Scope { switches: 1, changes: 1, ..reliable(false, more(1)) });
    explore(&Scope { switches: 1, losses: more(0), repeats: 1, ..reliable(true, 2) });
}

/// A crashed broker loses the state that it retained, and nothing else. Nothing of the old session enters the
/// new one, and only messages that were delivered but not acknowledged are repeated.
#[test]
fn a_killed_broker_loses_only_its_retained_state() {
    explore(&Scope { brokers: more(1), ..reliable(false, 4) });
    explore(&Scope { brokers: more(1), kills: 1, ..reliable(false, 2) });
    explore(&Scope { brokers: 1, cuts: 1, switches: 1, ..reliable(false, more(2)) });
    explore(&Scope { brokers: 1, changes: 1, ..reliable(false, more(1)) });
    explore(&Scope { brokers: 1, losses: 1, repeats: more(0), ..reliable(true, 2) });
}

#[test]
fn a_pipeline_that_changes_loses_nothing() {
    explore(&Scope { changes: more(1), cuts: 1, ..reliable(false, 2) });
    explore(&Scope { changes: 1, kills: 1, ..reliable(false, more(2)) });
    // A crashed process forgets its wish for a change, and its successor makes another.
    explore(&Scope { changes: 2, kills: 1, ..reliable(false, 1) });
    explore(&Scope { changes: 1, losses: 1, ..reliable(true, more(1)) });
}

#[test]
fn a_full_store_that_drops_counts_exactly() {
    let drops = |scope| Scope { store_full: StoreFull::DropOldest, ..scope };
    explore(&drops(Scope { cuts: more(1), ..reliable(false, 4) }));
    explore(&drops(Scope { kills: 1, ..reliable(false, more(3)) }));
    explore(&drops(Scope { cuts: 1, kills: 1, ..reliable(false, 3) }));
    explore(&drops(Scope { cuts: more(0), changes: 1, ..reliable(false, 3) }));
    explore(&drops(Scope { losses: 1, under_way: 1, ..reliable(true, more(3)) }));
}

#[test]
fn a_flow_closed_by_a_full_store_loses_nothing_before() {
    explore(&Scope { store_full: StoreFull::Close, cuts: more(1), ..reliable(false, 4) });
}

#[test]
fn a_state_flow_goes_neutral_and_sends_its_state_again() {
    let state = |lossy, messages| Scope::new(FlowClass::State, lossy, messages);
    explore(&Scope { cuts: 1, ..state(false, more(1)) });
    explore(&Scope { kills: more(1), ..state(false, 1) });
    explore(&Scope { cuts: more(0), losses: 1, ..state(true, 1) });
    explore(&Scope { changes: more(1), ..state(false, 1) });
    explore(&Scope { switches: more(1), ..state(false, 1) });
}
