//! The suite must fail for pairs that break their promises. Each pair here breaks one.

use super::*;
use contract::{ModuleEntry, Site};
use std::panic::{AssertUnwindSafe, catch_unwind};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Flaw {
    None,
    Swallows,
    SwallowsTheTenth,
    Reorders,
    Repeats,
    ChangesABit,
    ForgetsItsCreation,
    KeepsItAtTheEnd,
    Delays,
    SpinsOnTimeouts,
    NeverHasRoomAgain,
    PanicsOnShortBodies,
    MakesTooMuch,
    RefusesItsOwn,
}

struct Flawed(Flaw);

impl Pair for Flawed {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry { name: "flawed", summary: "breaks its word", doc: "", options: &[] }
    }

    fn promises(&self, _: &Options) -> Promises {
        Promises {
            may_delay: matches!(self.0, Flaw::KeepsItAtTheEnd | Flaw::NeverHasRoomAgain),
            ..Promises::default()
        }
    }
    fn source(&self, _: &Options, _: &Format, _: &Site) -> StageResult<Box<dyn Stage>> {
        Ok(Box::new(Marks))
    }
    fn sink(&self, _: &Options, _: &Format, _: &Site) -> StageResult<Box<dyn Stage>> {
        Ok(match self.0 {
            Flaw::NeverHasRoomAgain => Box::new(Narrow(0)),
            flaw => Box::new(Sink { flaw, count: 0, kept: None, spins: None }),
        })
    }
}

/// Adds a mark in front.
struct Marks;

impl Stage for Marks {
    fn handle(&mut self, port: Port, mut m: Message, _: Time, out: &mut Outbox) -> StageResult {
        m.body.push_front(b"mark");
        out.send(port, m);
        Ok(())
    }
}

struct Sink {
    flaw: Flaw,
    count: u64,
    kept: Option<Message>,
    spins: Option<Time>,
}

impl Stage for Sink {
    fn handle(&mut self, port: Port, mut m: Message, now: Time, out: &mut Outbox) -> StageResult {
        if self.flaw == Flaw::PanicsOnShortBodies {
            assert_eq!(m.body.take_front::<4>().unwrap(), *b"mark");
            out.send(port, m);
            return Ok(());
        }
        if m.body.take_front::<4>() != Some(*b"mark") {
            return Err(StageError::Input("no mark".into()));
        }
        self.count += 1;
        match self.flaw {
            Flaw::Swallows => return Ok(()),
            Flaw::SwallowsTheTenth if self.count == 10 => return Ok(()),
            Flaw::RefusesItsOwn if self.count == 10 => return Err(StageError::Own("no".into())),
            Flaw::Reorders if self.count == 10 => {
                self.kept = Some(m);
                return Ok(());
            }
            Flaw::Repeats if self.count == 10 => out.send(port, m.clone()),
            Flaw::ChangesABit if self.count == 10 => m.body.push_front(&[1]),
            Flaw::ForgetsItsCreation => m.created = now,
            Flaw::KeepsItAtTheEnd | Flaw::Delays => {
                self.spins = Some(now.after(Duration::from_millis(50)));
                if let Some(kept) = self.kept.replace(m) {
                    out.send(port, kept);
                }
                return Ok(());
            }
            Flaw::SpinsOnTimeouts => self.spins = Some(now),
            Flaw::MakesTooMuch => {
                (0..100).for_each(|_| m.body.append(Body::from(vec![0; 1 << 20])));
            }
            _ => {}
        }
        out.send(port, m);
        if let Some(kept) = self.kept.take() {
            out.send(port, kept);
        }
        Ok(())
    }

    fn handle_end(&mut self, port: Port, _: Time, out: &mut Outbox) -> StageResult {
        if self.flaw != Flaw::KeepsItAtTheEnd
            && let Some(kept) = self.kept.take()
        {
            out.send(port, kept);
        }
        Ok(())
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.spins
    }

    fn handle_timeout(&mut self, _: Time, out: &mut Outbox) -> StageResult {
        if self.flaw != Flaw::SpinsOnTimeouts {
            self.spins = None;
            if let Some(kept) = self.kept.take() {
                out.send(Port::MAIN, kept);
            }
        }
        Ok(())
    }
}

/// Accepts three messages, then never has room again.
struct Narrow(u64);

impl Stage for Narrow {
    fn handle(&mut self, port: Port, mut m: Message, _: Time, out: &mut Outbox) -> StageResult {
        self.0 += 1;
        m.body.take_front::<4>();
        out.send(port, m);
        Ok(())
    }
    fn has_room(&self) -> bool {
        self.0 < 3
    }
}

fn passes(flaw: Flaw) -> bool {
    catch_unwind(AssertUnwindSafe(|| conforms(&Flawed(flaw), &[], &Format::Bytes))).is_ok()
}

#[test]
fn a_correct_pair_passes() {
    assert!(passes(Flaw::None));
}

#[test]
fn every_broken_promise_is_found() {
    for flaw in [
        Flaw::Swallows,
        Flaw::SwallowsTheTenth,
        Flaw::Reorders,
        Flaw::Repeats,
        Flaw::ChangesABit,
        Flaw::ForgetsItsCreation,
        Flaw::KeepsItAtTheEnd,
        Flaw::Delays,
        Flaw::SpinsOnTimeouts,
        Flaw::NeverHasRoomAgain,
        Flaw::PanicsOnShortBodies,
        Flaw::MakesTooMuch,
        Flaw::RefusesItsOwn,
    ] {
        assert!(!passes(flaw), "{flaw:?} was not found");
    }
}

#[test]
fn virtual_time_is_exact() {
    let mut run =
        TwoHalves::new(&Flawed(Flaw::None), &[], &Format::Bytes, steady(Duration::from_millis(7)), 1);
    run.push(Message::new(run.now, vec![1]));
    run.run_until(Time::from_millis(1006));
    assert!(run.received.is_empty() && run.now == Time::from_millis(1006));
    run.run_until(Time::from_millis(1007));
    assert_eq!(run.received, [(Time::from_millis(1007), Message::new(Time::from_millis(1000), vec![1]))]);
}
