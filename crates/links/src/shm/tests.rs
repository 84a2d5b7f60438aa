//! A host and its stages in one process, each with mappings of its own; and stages that write what they like.

use super::block::{Block, Consumer, Producer};
use super::entry::Entry;
use super::lane::{self, Given, Lane};
use super::{Came, Passed, Seat};
use contract::{Body, Bytes, Message, Port, Time};
use proptest::prelude::*;
use std::sync::Arc;
use std::time::{Duration, Instant};
use sys::memory::Words;

/// Longest that anything here may take.
const WATCHDOG: Duration = Duration::from_secs(60);

fn now() -> Time {
    Time(sys::clock::boot_ns())
}

/// What a stage of a test does.
#[derive(Debug, Clone, Copy)]
enum Work {
    Pass,
    /// The same, unread.
    PassOn,
    /// Puts a header of so many bytes in front.
    Head(usize),
    /// Takes as many off.
    Behead(usize),
    /// So many messages are one.
    Join(usize),
    /// Cuts into messages of so many bytes at most.
    Cut(usize),
    /// Writes all anew.
    Flip,
    /// Keeps so many before it lets the first go.
    Hold(usize),
}

/// A stage that passes everything on.
fn pass_on(mut seat: Seat) {
    loop {
        match seat.pass_on().unwrap() {
            Passed::End => return,
            Passed::All => {}
            Passed::Nothing if seat.go_to_sleep(now).unwrap() => {}
            Passed::Nothing => seat.sleep(Some(WATCHDOG)),
            Passed::NoRoom => {
                seat.want_room();
                seat.sleep(Some(Duration::from_millis(1)));
            }
        }
        seat.wake_up(now);
    }
}

/// One stage, to the end of the flow.
fn work(mut seat: Seat, work: Work) {
    if let Work::PassOn = work {
        return pass_on(seat);
    }
    let (mut held, mut covers) = (Vec::<Message>::new(), Vec::new());
    loop {
        match seat.receive().unwrap() {
            Some(Came { message: Some(mut message), covers: said, .. }) => {
                covers.push(said);
                match work {
                    Work::Pass | Work::PassOn => seat.send(Port::MAIN, message).unwrap(),
                    Work::Head(bytes) => {
                        message.body.push_front(&vec![9; bytes]);
                        seat.send(Port::MAIN, message).unwrap();
                    }
                    Work::Behead(bytes) => {
                        assert_eq!(message.body.split_front(bytes).unwrap(), vec![9; bytes]);
                        seat.send(Port::MAIN, message).unwrap();
                    }
                    Work::Join(count) => {
                        held.push(message);
                        if held.len() < count {
                            continue;
                        }
                        let mut joined = Message::new(held[0].created, Body::new());
                        held.drain(..).for_each(|message| joined.body.append(message.body));
                        seat.send(Port::MAIN, joined).unwrap();
                    }
                    Work::Cut(bytes) => {
                        while let Some(front) = message.body.split_off_front(bytes.min(message.body.len())) {
                            seat.send(Port::MAIN, Message::new(message.created, front)).unwrap();
                            if message.body.is_empty() {
                                break;
                            }
                        }
                    }
                    Work::Flip => {
                        let flipped: Vec<u8> = message.body.chunks().flatten().map(|byte| !byte).collect();
                        seat.send(Port::MAIN, Message::new(message.created, flipped)).unwrap();
                    }
                    Work::Hold(count) => {
                        held.push(message);
                        if held.len() <= count {
                            continue;
                        }
                        seat.send(Port::MAIN, held.remove(0)).unwrap();
                        let done = covers.remove(0);
                        if done > 0 {
                            seat.cover(done).unwrap();
                        }
                        continue;
                    }
                }
                if let Some(last) = covers.drain(..).next_back().filter(|covers| *covers > 0) {
                    seat.cover(last).unwrap();
                }
            }
            Some(Came { is_end: true, .. }) => {
                let joined = matches!(work, Work::Join(_)).then(|| {
                    held.drain(..).reduce(|mut joined, message| {
                        joined.body.append(message.body);
                        joined
                    })
                });
                held.extend(joined.flatten());
                held.drain(..).for_each(|message| seat.send(Port::MAIN, message).unwrap());
                if let Some(last) = covers.drain(..).next_back() {
                    seat.cover(last).unwrap();
                }
                seat.end().unwrap();
                while seat.is_blocked() {
                    seat.flush().unwrap();
                    std::thread::yield_now();
                }
                seat.flush().unwrap();
                return;
            }
            Some(Came { covers: said, .. }) if held.is_empty() => seat.cover(said).unwrap(),
            Some(Came { covers: said, .. }) => *covers.last_mut().unwrap() = said,
            None => {
                seat.flush().unwrap();
                if seat.is_blocked() {
                    std::thread::sleep(Duration::from_millis(1));
                } else if !seat.go_to_sleep(now).unwrap() {
                    seat.sleep(Some(WATCHDOG));
                }
                seat.wake_up(now);
            }
        }
    }
}

/// Hands bodies through stages; gives what came out, and the sizes that were covered in order.
fn run(stages: &[Work], slots: usize, bodies: &[Body]) -> (Vec<Body>, u64) {
    let geometry = lane::geometry(stages.len(), slots, [true; 2]);
    let region = lane::slots(geometry).unwrap();
    let (mut lane, descriptors) = Lane::begin(geometry, region.clone()).unwrap();
    lane.window = slots;
    let mut threads = Vec::new();
    for (index, (descriptors, stage)) in descriptors.into_iter().zip(stages).enumerate() {
        let (seat, stage) = (Seat::take(index + 1, descriptors.into_iter().map(Ok)).unwrap(), *stage);
        threads.push(std::thread::spawn(move || work(seat, stage)));
    }
    let mut poller = sys::poller::Poller::new().unwrap();
    let (mut came, mut covered, mut next, mut is_over) = (Vec::new(), 0, 0, false);
    let begun = Instant::now();
    let mut is_told = false;
    while !is_over {
        assert!(begun.elapsed() < WATCHDOG, "{} of {} handed over, {} came", next, bodies.len(), came.len());
        let mut has_moved = false;
        while next < bodies.len() && lane.push(Time(next as u64), &bodies[next], false).unwrap() {
            (next, has_moved) = (next + 1, true);
        }
        if next == bodies.len() && !is_told {
            is_told = lane.end().unwrap();
        }
        while let Some(given) = lane.pop().unwrap() {
            has_moved = true;
            match given {
                Given::Back(number) => {
                    assert_eq!(number, covered + 1, "one after the other");
                    covered = number;
                    came.push(bodies[number as usize - 1].clone());
                }
                Given::Message(message, covers) => {
                    assert!(covers == 0 || covers >= covered, "covers only rises");
                    covered = covered.max(covers);
                    came.push(message.body);
                }
                Given::Covers(covers) => covered = covered.max(covers),
                Given::End => is_over = true,
            }
        }
        if !has_moved && !is_over && !lane.go_to_sleep(true, now) {
            poller.want(lane.bell(), true, false);
            poller.wait(Some(Duration::from_millis(5))).unwrap();
        }
        lane.wake_up(now());
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!((lane.out(), region.taken()), (0, 0), "no slot is lost");
    (came, covered)
}

fn body(seed: usize, bytes: usize) -> Body {
    let bytes: Vec<u8> = (0..bytes).map(|at| (at * 31 + seed * 7) as u8).collect();
    Body::from(bytes)
}

#[test]
fn messages_pass_stages_whole_and_in_order() {
    let sizes = [0, 1, 100, 511, 512, 513, 4096, 70_000, 1 << 20, 3 << 20];
    let bodies: Vec<Body> = (0..60).map(|at| body(at, sizes[at % sizes.len()])).collect();
    for (slots, stages) in [(1, vec![Work::Pass]), (4, vec![Work::Pass; 3]), (2, vec![Work::Flip; 2])] {
        assert_eq!(run(&stages, slots, &bodies), (bodies.clone(), 60), "{stages:?}");
    }
}

#[test]
fn headers_come_and_go_and_messages_are_cut_and_joined() {
    let bodies: Vec<Body> = (0..50).map(|at| body(at, at * 2000)).collect();
    let stages =
        [Work::Head(14), Work::Head(700), Work::Flip, Work::Flip, Work::Behead(700), Work::Behead(14)];
    assert_eq!(run(&stages, 3, &bodies), (bodies.clone(), 50));
    let whole =
        |bodies: &[Body]| bodies.iter().flat_map(Body::chunks).flatten().copied().collect::<Vec<u8>>();
    let (came, covered) = run(&[Work::Join(7), Work::Cut(5000), Work::Pass], 2, &bodies);
    assert_eq!((whole(&came), covered), (whole(&bodies), 50));
    assert!(came.len() > 200);
    // Two entries a message, in a ring that such do not fill evenly.
    let small: Vec<Body> = (0..999).map(|at| body(at, 600)).collect();
    let (came, covered) = run(&[Work::Join(11)], 2, &small);
    assert_eq!((whole(&came), covered), (whole(&small), 999));
}

#[test]
fn who_passes_everything_on_changes_nothing_loses_nothing_and_holds_nothing() {
    let sizes = [0, 1, 511, 513, 70_000, 1 << 20, 20 << 20];
    let bodies: Vec<Body> = (0..70).map(|at| body(at, sizes[at % sizes.len()])).collect();
    for (slots, stages) in [(1, vec![Work::PassOn]), (16, vec![Work::PassOn; 3])] {
        assert_eq!(run(&stages, slots, &bodies), (bodies.clone(), 70), "{stages:?}");
    }
    // Between others, in whose slots a message lies in pieces that take several entries.
    let whole =
        |bodies: &[Body]| bodies.iter().flat_map(Body::chunks).flatten().copied().collect::<Vec<u8>>();
    let small: Vec<Body> = (0..999).map(|at| body(at, 600)).collect();
    let (came, covered) = run(
        &[Work::PassOn, Work::Join(11), Work::PassOn, Work::PassOn, Work::Hold(3), Work::PassOn],
        2,
        &small,
    );
    assert_eq!((whole(&came), covered), (whole(&small), 999));
}

#[test]
fn a_message_that_is_cut_short_or_has_no_end_is_passed_on_to_nobody() {
    let geometry = lane::geometry(2, 2, [true; 2]);
    for (entries, why) in [(1, "cut short"), (100, "more entries than any")] {
        let (_lane, mut descriptors) = Lane::begin(geometry, lane::slots(geometry).unwrap()).unwrap();
        let block = Arc::new(Block::join(Words::map(&descriptors[0][0]).unwrap()).unwrap());
        let (mut before, behind) = (Producer::new(block.clone(), 0), Consumer::new(block, 1));
        let mut seat = Seat::take(1, descriptors.remove(0).into_iter().map(Ok)).unwrap();
        for _ in 0..entries {
            before.write(&Entry { is_message: true, has_more: true, ..Entry::default() });
        }
        before.publish();
        assert!(seat.pass_on().unwrap_err().0.contains(why));
        assert!(!behind.has_next());
    }
}

#[test]
fn who_finds_no_room_behind_passes_on_whole_messages_and_then_the_rest() {
    let geometry = lane::geometry(2, 2, [true; 2]);
    let (mut lane, mut descriptors) = Lane::begin(geometry, lane::slots(geometry).unwrap()).unwrap();
    let block = Arc::new(Block::join(Words::map(&descriptors[0][0]).unwrap()).unwrap());
    let (mut before, mut behind) = (Producer::new(block.clone(), 0), Consumer::new(block.clone(), 1));
    let mut seat = Seat::take(1, descriptors.remove(0).into_iter().map(Ok)).unwrap();
    // Three entries a message: a ring's size is no multiple of that.
    let three = |before: &mut Producer| {
        for place in 0..3 {
            before.write(&Entry {
                is_message: true,
                has_more: place < 2,
                created: place,
                ..Entry::default()
            });
        }
        before.publish();
    };
    let fits = geometry.ring / 3;
    for _ in 0..fits {
        three(&mut before);
    }
    assert_eq!(seat.pass_on().unwrap(), Passed::All);
    three(&mut before);
    assert_eq!((seat.pass_on().unwrap(), block.wants_room(1)), (Passed::NoRoom, true));
    assert_eq!(behind.peek(3 * fits).unwrap(), None, "not a part of it");
    behind.advance(3);
    assert_eq!((seat.pass_on().unwrap(), block.wants_room(1)), (Passed::All, false));
    let last = behind.peek(3 * fits - 1).unwrap().unwrap();
    assert_eq!((last.created, last.has_more), (2, false));
    assert_eq!(seat.pass_on().unwrap(), Passed::Nothing);
    assert_eq!(lane.pop().unwrap(), None);
}

#[test]
fn what_comes_back_as_it_went_is_said_to_and_nothing_else_is() {
    let geometry = lane::geometry(1, 4, [true; 2]);
    let (mut lane, descriptors) = Lane::begin(geometry, lane::slots(geometry).unwrap()).unwrap();
    let block = Arc::new(Block::join(Words::map(&descriptors[0][0]).unwrap()).unwrap());
    let (mut before, mut behind) = (Consumer::new(block.clone(), 0), Producer::new(block, 1));
    let changes: [fn(&mut Entry); 5] = [
        |_| {},
        |entry| entry.created += 1,
        |entry| entry.pieces[0].length -= 1,
        |entry| entry.covers -= 1,
        |_| {},
    ];
    for (number, change) in (1..).zip(changes) {
        assert!(lane.push(Time(9), &body(number, 600), false).unwrap());
        let mut entry = before.peek(0).unwrap().unwrap();
        before.advance(1);
        change(&mut entry);
        behind.write(&entry);
        behind.publish();
        let given = lane.pop().unwrap().unwrap();
        match (number, given) {
            (1 | 5, given) => assert_eq!(given, Given::Back(number as u64)),
            (2, Given::Message(message, 2)) => assert_eq!(message, Message::new(Time(10), body(2, 600))),
            (3, Given::Message(message, 3)) => assert_eq!(message.body.len(), 599),
            (4, Given::Message(message, 3)) => assert_eq!(message.body, body(4, 600)),
            (_, given) => panic!("{given:?} for {number}"),
        }
        if number == 4 {
            // Which is not complete, and is what is to come back next.
            entry.covers += 1;
            behind.write(&entry);
            behind.publish();
            assert_eq!(lane.pop().unwrap(), Some(Given::Back(4)));
        }
    }
    behind.write(&Entry::default());
    behind.publish();
    assert_eq!(lane.pop().unwrap(), Some(Given::Covers(0)));
    assert_eq!(lane.untaken(), (0, 0));
}

/// More than there are slots: what is kept is copied, so nothing stops.
#[test]
fn a_stage_that_keeps_more_messages_than_there_are_slots_does_not_stop_its_flow() {
    let bodies: Vec<Body> = (0..80).map(|at| body(at, 5000)).collect();
    for slots in [1, 3] {
        assert_eq!(run(&[Work::Hold(30), Work::Pass, Work::Join(1)], slots, &bodies), (bodies.clone(), 80));
    }
}

#[test]
fn a_message_larger_than_a_slot_takes_several() {
    let bodies = vec![body(1, 20 << 20), body(2, 5)];
    assert_eq!(run(&[Work::Pass, Work::Flip, Work::Flip], 16, &bodies), (bodies.clone(), 2));
}

#[test]
fn what_passes_through_is_not_copied_and_what_is_made_in_place_neither() {
    let geometry = lane::geometry(1, 2, [true; 2]);
    let region = lane::slots(geometry).unwrap();
    let (mut lane, mut descriptors) = Lane::begin(geometry, region.clone()).unwrap();
    let mut seat = Seat::take(1, descriptors.remove(0).into_iter().map(Ok)).unwrap();
    let elsewhere = Bytes::from(vec![5; 100_000]);
    let mut lease = lane.lease().unwrap();
    lease[..100_000].fill(6);
    let in_place = lease.freeze(100_000);
    for original in [elsewhere, in_place] {
        assert!(lane.push(Time(1), &Body::from(original.clone()), false).unwrap());
        let Some(Came { message: Some(mut message), .. }) = seat.receive().unwrap() else {
            panic!("nothing came")
        };
        message.body.push_front(b"head");
        seat.send(Port::MAIN, message).unwrap();
        seat.flush().unwrap();
        let Some(Given::Message(message, _)) = lane.pop().unwrap() else { panic!("nothing came back") };
        let shares: Vec<Bytes> = message.body.shares().collect();
        assert_eq!((&shares[0][..], &shares[1]), (&b"head"[..], &original));
        assert_eq!(shares[1].as_ptr(), original.as_ptr(), "the host has its own bytes back");
    }
    assert_eq!((lane.out(), region.taken()), (0, 0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]

    /// A stage that writes anything anywhere in what it can write: the host errs, or goes on with what it finds.
    #[test]
    fn a_stage_that_writes_rubbish_does_no_harm(
        scribbles in prop::collection::vec((any::<prop::sample::Index>(), any::<u64>(), 0u8..3), 1..60),
        sizes in prop::collection::vec(0usize..3000, 1..10),
    ) {
        let geometry = lane::geometry(1, 2, [true; 2]);
        let region = lane::slots(geometry).unwrap();
        let (mut lane, mut descriptors) = Lane::begin(geometry, region.clone()).unwrap();
        let block = Words::map(&descriptors[0][0]).unwrap();
        let mut seat = Seat::take(1, descriptors.remove(0).into_iter().map(Ok)).unwrap();
        let kept: Vec<Body> = sizes.iter().map(|size| body(*size, *size)).collect();
        let mut scribbles = scribbles.into_iter();
        'flow: for body in &kept {
            for (place, value, kind) in scribbles.by_ref().take(6) {
                // Small numbers, and the words in front, are where a ring breaks.
                let place = if kind == 0 { place.index(block.len()) } else { place.index(200.min(block.len())) };
                let value = if kind == 2 { value % 8 } else { value };
                block[place].store(value, std::sync::atomic::Ordering::SeqCst);
            }
            if lane.push(Time(0), body, false).is_err() {
                break;
            }
            while let Ok(Some(came)) = seat.receive() {
                if let Came { message: Some(message), covers, .. } = came
                    && (seat.send(Port::MAIN, message).is_err() || seat.cover(covers).is_err())
                {
                    break 'flow;
                }
            }
            let _ = seat.flush();
            for _ in 0..1000 {
                match lane.pop() {
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    Err(_) => break 'flow,
                }
            }
        }
        // Its own are as they were, and every slot is there for the next run.
        for (body, size) in kept.iter().zip(&sizes) {
            prop_assert_eq!(body, &self::body(*size, *size));
        }
        drop(lane);
        drop(seat);
        prop_assert_eq!(region.taken(), 0);
        prop_assert!(Lane::begin(geometry, region).unwrap().0.lease().is_some());
    }
}
