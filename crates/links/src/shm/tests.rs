//! A host and its stages in one process, each with its own mappings; and stages that write arbitrary data.

use super::block::{Block, Broken, Consumer, Producer};
use super::entry::{Entry, Piece};
use super::host_end::{self, HostEnd, Returned};
use super::{Forwarded, Received, StageEnd};
use contract::{Body, Bytes, Message, Port, Time};
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use sys::memory::{Access, Shared, Words};

/// Longest time that a test may take.
const WATCHDOG: Duration = Duration::from_secs(60);

/// Work of a stage in a test.
#[derive(Debug, Clone, Copy)]
enum Work {
    Pass,
    /// Forwards entries without reading them.
    PassOn,
    /// Prepends a header of this many bytes.
    Head(usize),
    /// Removes a header of this many bytes.
    Behead(usize),
    /// Joins this many messages into one.
    Join(usize),
    /// Cuts each message into messages of at most this many bytes.
    Cut(usize),
    /// Replaces every byte.
    Flip,
    /// Keeps this many messages.
    Hold(usize),
}

/// Runs a stage that forwards everything.
fn forward(mut stage_end: StageEnd) {
    loop {
        match stage_end.forward().unwrap() {
            Forwarded::End => return,
            Forwarded::All => {}
            Forwarded::Nothing if stage_end.go_to_sleep().unwrap() => {}
            Forwarded::Nothing => stage_end.sleep(Some(WATCHDOG)),
            Forwarded::NoRoom => {
                stage_end.prepare_sleep();
                stage_end.sleep(Some(Duration::from_millis(1)));
            }
        }
        stage_end.wake_up();
    }
}

/// Runs one stage to the end of the flow.
fn work(mut stage_end: StageEnd, work: Work) {
    if let Work::PassOn = work {
        return forward(stage_end);
    }
    let (mut held, mut covers) = (Vec::<Message>::new(), Vec::new());
    loop {
        match stage_end.receive().unwrap() {
            Some(Received { message: Some(mut message), covers: acknowledged, .. }) => {
                covers.push(acknowledged);
                match work {
                    Work::Pass | Work::PassOn => stage_end.send(Port::MAIN, message).unwrap(),
                    Work::Head(bytes) => {
                        message.body.push_front(&vec![9; bytes]);
                        stage_end.send(Port::MAIN, message).unwrap();
                    }
                    Work::Behead(bytes) => {
                        assert_eq!(message.body.split_front(bytes).unwrap(), vec![9; bytes]);
                        stage_end.send(Port::MAIN, message).unwrap();
                    }
                    Work::Join(count) => {
                        held.push(message);
                        if held.len() < count {
                            continue;
                        }
                        let mut joined = Message::new(held[0].created, Body::new());
                        held.drain(..).for_each(|message| joined.body.append(message.body));
                        stage_end.send(Port::MAIN, joined).unwrap();
                    }
                    Work::Cut(bytes) => {
                        while let Some(front) = message.body.split_off_front(bytes.min(message.body.len())) {
                            stage_end.send(Port::MAIN, Message::new(message.created, front)).unwrap();
                            if message.body.is_empty() {
                                break;
                            }
                        }
                    }
                    Work::Flip => {
                        let flipped: Vec<u8> = message.body.chunks().flatten().map(|byte| !byte).collect();
                        stage_end.send(Port::MAIN, Message::new(message.created, flipped)).unwrap();
                    }
                    Work::Hold(count) => {
                        held.push(message);
                        if held.len() <= count {
                            continue;
                        }
                        stage_end.send(Port::MAIN, held.remove(0)).unwrap();
                        let done = covers.remove(0);
                        if done > 0 {
                            stage_end.cover(done).unwrap();
                        }
                        continue;
                    }
                }
                if let Some(last) = covers.drain(..).next_back().filter(|covers| *covers > 0) {
                    stage_end.cover(last).unwrap();
                }
            }
            Some(Received { is_end: true, .. }) => {
                let joined = matches!(work, Work::Join(_)).then(|| {
                    held.drain(..).reduce(|mut joined, message| {
                        joined.body.append(message.body);
                        joined
                    })
                });
                held.extend(joined.flatten());
                held.drain(..).for_each(|message| stage_end.send(Port::MAIN, message).unwrap());
                if let Some(last) = covers.drain(..).next_back() {
                    stage_end.cover(last).unwrap();
                }
                stage_end.end().unwrap();
                while stage_end.is_blocked() {
                    stage_end.flush().unwrap();
                    std::thread::yield_now();
                }
                stage_end.flush().unwrap();
                return;
            }
            Some(Received { covers: acknowledged, .. }) if held.is_empty() => {
                stage_end.cover(acknowledged).unwrap()
            }
            Some(Received { covers: acknowledged, .. }) => *covers.last_mut().unwrap() = acknowledged,
            None => {
                stage_end.flush().unwrap();
                if stage_end.is_blocked() {
                    std::thread::sleep(Duration::from_millis(1));
                } else if !stage_end.go_to_sleep().unwrap() {
                    stage_end.sleep(Some(WATCHDOG));
                }
                stage_end.wake_up();
            }
        }
    }
}

/// Sends bodies through stages. Returns the bodies that came out and the last `covers`.
fn run(stages: &[Work], slots: usize, bodies: &[Body]) -> (Vec<Body>, u64) {
    let geometry = host_end::geometry(stages.len(), slots);
    let (mut host, descriptors) = HostEnd::create(geometry).unwrap();
    host.window = slots;
    let mut threads = Vec::new();
    for (index, (descriptors, stage)) in descriptors.into_iter().zip(stages).enumerate() {
        let (stage_end, stage) =
            (StageEnd::open(index + 1, descriptors.into_iter().map(Ok)).unwrap(), *stage);
        threads.push(std::thread::spawn(move || work(stage_end, stage)));
    }
    let mut poller = sys::poller::Poller::new().unwrap();
    let (mut received, mut covered, mut next, mut is_over) = (Vec::new(), 0, 0, false);
    let started = Instant::now();
    let mut has_ended = false;
    while !is_over {
        assert!(
            started.elapsed() < WATCHDOG,
            "{} of {} handed over, {} received",
            next,
            bodies.len(),
            received.len()
        );
        let mut has_moved = false;
        while next < bodies.len() && host.push(Time(next as u64), &bodies[next], false).unwrap() {
            (next, has_moved) = (next + 1, true);
        }
        if next == bodies.len() && !has_ended {
            has_ended = host.end().unwrap();
        }
        while let Some(returned) = host.pop().unwrap() {
            has_moved = true;
            match returned {
                Returned::Unchanged(number) => {
                    assert_eq!(number, covered + 1, "one after the other");
                    covered = number;
                    received.push(bodies[number as usize - 1].clone());
                }
                Returned::Message(message, covers) => {
                    assert!(covers == 0 || covers >= covered, "covers only rises");
                    covered = covered.max(covers);
                    received.push(message.body);
                }
                Returned::Covers(covers) => covered = covered.max(covers),
                Returned::End => is_over = true,
            }
        }
        if !has_moved && !is_over && !host.go_to_sleep() {
            poller.register(host.wakeup(), true, false);
            poller.wait(Some(Duration::from_millis(5))).unwrap();
        }
        host.wake_up();
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(host.slots_held(), 0, "no slot is lost");
    (received, covered)
}

fn body(seed: usize, bytes: usize) -> Body {
    let bytes: Vec<u8> = (0..bytes).map(|at| (at * 31 + seed * 7) as u8).collect();
    Body::from(bytes)
}

#[test]
fn messages_pass_stages_complete_and_in_order() {
    let sizes = [0, 1, 100, 511, 512, 513, 4096, 70_000, 1 << 20, 3 << 20];
    let bodies: Vec<Body> = (0..60).map(|at| body(at, sizes[at % sizes.len()])).collect();
    for (slots, stages) in [(1, vec![Work::Pass]), (4, vec![Work::Pass; 3]), (2, vec![Work::Flip; 2])] {
        assert_eq!(run(&stages, slots, &bodies), (bodies.clone(), 60), "{stages:?}");
    }
}

#[test]
fn stages_add_and_remove_headers_and_cut_and_join_messages() {
    let bodies: Vec<Body> = (0..50).map(|at| body(at, at * 2000)).collect();
    let stages =
        [Work::Head(14), Work::Head(700), Work::Flip, Work::Flip, Work::Behead(700), Work::Behead(14)];
    assert_eq!(run(&stages, 3, &bodies), (bodies.clone(), 50));
    let whole =
        |bodies: &[Body]| bodies.iter().flat_map(Body::chunks).flatten().copied().collect::<Vec<u8>>();
    let (received, covered) = run(&[Work::Join(7), Work::Cut(5000), Work::Pass], 2, &bodies);
    assert_eq!((whole(&received), covered), (whole(&bodies), 50));
    assert!(received.len() > 200);
    // Two entries a message; the size of the ring is not a multiple of their total.
    let small: Vec<Body> = (0..999).map(|at| body(at, 600)).collect();
    let (received, covered) = run(&[Work::Join(11)], 2, &small);
    assert_eq!((whole(&received), covered), (whole(&small), 999));
}

#[test]
fn forwarding_changes_loses_and_holds_nothing() {
    let sizes = [0, 1, 511, 513, 70_000, 1 << 20, 20 << 20];
    let bodies: Vec<Body> = (0..70).map(|at| body(at, sizes[at % sizes.len()])).collect();
    for (slots, stages) in [(1, vec![Work::PassOn]), (16, vec![Work::PassOn; 3])] {
        assert_eq!(run(&stages, slots, &bodies), (bodies.clone(), 70), "{stages:?}");
    }
    // Between stages in whose slots a message has pieces that need several entries.
    let whole =
        |bodies: &[Body]| bodies.iter().flat_map(Body::chunks).flatten().copied().collect::<Vec<u8>>();
    let small: Vec<Body> = (0..999).map(|at| body(at, 600)).collect();
    let (received, covered) = run(
        &[Work::PassOn, Work::Join(11), Work::PassOn, Work::PassOn, Work::Hold(3), Work::PassOn],
        2,
        &small,
    );
    assert_eq!((whole(&received), covered), (whole(&small), 999));
}

#[test]
fn a_truncated_or_endless_message_is_not_forwarded() {
    let geometry = host_end::geometry(2, 2);
    for (entries, why) in [(1, "truncated"), (100, "too many entries")] {
        let (_host, mut descriptors) = HostEnd::create(geometry).unwrap();
        let block = Arc::new(Block::open(Words::map(&descriptors[0][0]).unwrap()).unwrap());
        let (mut input, output) = (Producer::new(block.clone(), 0), Consumer::new(block, 1));
        let mut stage_end = StageEnd::open(1, descriptors.remove(0).into_iter().map(Ok)).unwrap();
        for _ in 0..entries {
            input.write(&Entry { is_message: true, has_more: true, ..Entry::default() });
        }
        input.publish();
        assert!(stage_end.forward().unwrap_err().0.contains(why));
        assert!(!output.has_next());
    }
}

#[test]
fn forwarding_without_room_keeps_messages_whole_and_continues_later() {
    let geometry = host_end::geometry(2, 2);
    let (mut host, mut descriptors) = HostEnd::create(geometry).unwrap();
    let block = Arc::new(Block::open(Words::map(&descriptors[0][0]).unwrap()).unwrap());
    let (mut input, mut output) = (Producer::new(block.clone(), 0), Consumer::new(block.clone(), 1));
    let mut stage_end = StageEnd::open(1, descriptors.remove(0).into_iter().map(Ok)).unwrap();
    // Three entries a message: the size of the ring is not a multiple of three.
    let three = |input: &mut Producer| {
        for index in 0..3 {
            input.write(&Entry { is_message: true, has_more: index < 2, created: index, ..Entry::default() });
        }
        input.publish();
    };
    let fits = geometry.ring / 3;
    for _ in 0..fits {
        three(&mut input);
    }
    assert_eq!(stage_end.forward().unwrap(), Forwarded::All);
    three(&mut input);
    assert_eq!((stage_end.forward().unwrap(), block.waits_for_room(1)), (Forwarded::NoRoom, true));
    assert_eq!(output.peek(3 * fits).unwrap(), None, "not a part of it");
    output.advance(3);
    assert_eq!((stage_end.forward().unwrap(), block.waits_for_room(1)), (Forwarded::All, false));
    let last = output.peek(3 * fits - 1).unwrap().unwrap();
    assert_eq!((last.created, last.has_more), (2, false));
    assert_eq!(stage_end.forward().unwrap(), Forwarded::Nothing);
    assert_eq!(host.pop().unwrap(), None);
}

#[test]
fn only_an_unchanged_entry_is_reported_as_unchanged() {
    let geometry = host_end::geometry(1, 4);
    let (mut host, descriptors) = HostEnd::create(geometry).unwrap();
    let block = Arc::new(Block::open(Words::map(&descriptors[0][0]).unwrap()).unwrap());
    let (mut input, mut output) = (Consumer::new(block.clone(), 0), Producer::new(block, 1));
    let changes: [fn(&mut Entry); 5] = [
        |_| {},
        |entry| entry.created += 1,
        |entry| entry.pieces[0].length -= 1,
        |entry| entry.covers -= 1,
        |_| {},
    ];
    for (number, change) in (1..).zip(changes) {
        assert!(host.push(Time(9), &body(number, 600), false).unwrap());
        let mut entry = input.peek(0).unwrap().unwrap();
        input.advance(1);
        change(&mut entry);
        output.write(&entry);
        output.publish();
        let returned = host.pop().unwrap().unwrap();
        match (number, returned) {
            (1 | 5, returned) => assert_eq!(returned, Returned::Unchanged(number as u64)),
            (2, Returned::Message(message, 2)) => assert_eq!(message, Message::new(Time(10), body(2, 600))),
            (3, Returned::Message(message, 3)) => assert_eq!(message.body.len(), 599),
            (4, Returned::Message(message, 3)) => assert_eq!(message.body, body(4, 600)),
            (_, returned) => panic!("{returned:?} for {number}"),
        }
        if number == 4 {
            // The fourth message is not complete, so it may still come back.
            entry.covers += 1;
            output.write(&entry);
            output.publish();
            assert_eq!(host.pop().unwrap(), Some(Returned::Unchanged(4)));
        }
    }
    output.write(&Entry::default());
    output.publish();
    assert_eq!(host.pop().unwrap(), Some(Returned::Covers(0)));
    assert_eq!(host.unread(), (0, 0));
}

/// The stage copies what it keeps beyond its limit.
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
fn a_forwarded_body_is_not_copied_back() {
    let (mut host, mut descriptors) = HostEnd::create(host_end::geometry(1, 2)).unwrap();
    let mut stage_end = StageEnd::open(1, descriptors.remove(0).into_iter().map(Ok)).unwrap();
    let original = Bytes::from(vec![5; 100_000]);
    assert!(host.push(Time(1), &Body::from(original.clone()), false).unwrap());
    let Some(Received { message: Some(mut message), .. }) = stage_end.receive().unwrap() else {
        panic!("nothing received")
    };
    message.body.push_front(b"head");
    stage_end.send(Port::MAIN, message).unwrap();
    stage_end.flush().unwrap();
    let Some(Returned::Message(message, _)) = host.pop().unwrap() else { panic!("nothing returned") };
    let shares: Vec<Bytes> = message.body.shares().collect();
    assert_eq!((&shares[0][..], &shares[1]), (&b"head"[..], &original));
    assert_eq!(shares[1].as_ptr(), original.as_ptr(), "the host has its own bytes back");
    assert_eq!(host.slots_held(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]

    /// A stage stores arbitrary values wherever it can write: the host reports an error or continues.
    #[test]
    fn a_stage_that_writes_garbage_does_no_harm(
        scribbles in prop::collection::vec((any::<prop::sample::Index>(), any::<u64>(), 0u8..3), 1..60),
        sizes in prop::collection::vec(0usize..3000, 1..10),
    ) {
        let geometry = host_end::geometry(1, 2);
        let (mut host, mut descriptors) = HostEnd::create(geometry).unwrap();
        let block = Words::map(&descriptors[0][0]).unwrap();
        let mut stage_end = StageEnd::open(1, descriptors.remove(0).into_iter().map(Ok)).unwrap();
        let kept: Vec<Body> = sizes.iter().map(|size| body(*size, *size)).collect();
        let mut scribbles = scribbles.into_iter();
        'flow: for body in &kept {
            for (word, value, kind) in scribbles.by_ref().take(6) {
                // Small values and the first words are the most likely to break a ring.
                let word = if kind == 0 { word.index(block.len()) } else { word.index(200.min(block.len())) };
                let value = if kind == 2 { value % 8 } else { value };
                block[word].store(value, Ordering::SeqCst);
            }
            if host.push(Time(0), body, false).is_err() {
                break;
            }
            while let Ok(Some(received)) = stage_end.receive() {
                if let Received { message: Some(message), covers, .. } = received
                    && (stage_end.send(Port::MAIN, message).is_err() || stage_end.cover(covers).is_err())
                {
                    break 'flow;
                }
            }
            let _ = stage_end.flush();
            for _ in 0..1000 {
                match host.pop() {
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    Err(_) => break 'flow,
                }
            }
        }
        // The host's bodies are intact.
        for (body, size) in kept.iter().zip(&sizes) {
            prop_assert_eq!(body, &self::body(*size, *size));
        }
    }
}

/// A thread of a stage stores values wherever it can write, all the time: the host checks what it copied, so that its own
/// bodies stay intact.
#[test]
fn a_stage_that_writes_during_reads_does_no_harm() {
    const ROUNDS: usize = 40;
    let geometry = host_end::geometry(1, 2);
    for round in 0..ROUNDS {
        let (mut host, mut descriptors) = HostEnd::create(geometry).unwrap();
        let block = Words::map(&descriptors[0][0]).unwrap();
        let mut stage_end = StageEnd::open(1, descriptors.remove(0).into_iter().map(Ok)).unwrap();
        let is_over = AtomicBool::new(false);
        let kept: Vec<Body> = (0..50).map(|number| body(number, number * 37 % 3000)).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut state = round as u64 + 1;
                while !is_over.load(Ordering::Relaxed) {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let word = (state >> 33) as usize % block.len().min(300);
                    let value = if state & 1 == 0 { state >> 20 } else { (state >> 20) % 8 };
                    block[word].store(value, Ordering::SeqCst);
                }
            });
            for body in &kept {
                let mut is_broken = host.push(Time(0), body, false).is_err();
                while let Ok(Some(Received { message: Some(message), covers, .. })) = stage_end.receive() {
                    is_broken |= stage_end.send(Port::MAIN, message).is_err();
                    is_broken |= stage_end.cover(covers).is_err();
                }
                let _ = stage_end.flush();
                is_broken |= (0..1000).any(|_| host.pop().is_err());
                if is_broken {
                    break;
                }
            }
            is_over.store(true, Ordering::Relaxed);
        });
        for (number, body) in kept.iter().enumerate() {
            assert_eq!(body, &self::body(number, number * 37 % 3000), "round {round}");
        }
    }
}

/// A stage changes the header and the bytes of a message that it published, while the host reads it. The host sees each
/// header word once, either as published or as changed, and delivers bytes that do not change afterwards.
#[test]
fn a_message_that_changes_after_its_delivery_is_copied_once() {
    const ROUNDS: u64 = 500;
    /// The published and the changed piece: both inside the region, and one beyond it.
    const PIECES: [Piece; 3] = [
        Piece { region: 1, slot: 0, offset: 0, length: 700 },
        Piece { region: 1, slot: 1, offset: 4096, length: 9000 },
        Piece { region: 1, slot: u16::MAX, offset: u32::MAX, length: u32::MAX },
    ];
    let geometry = host_end::geometry(1, 2);
    let (mut delivered, mut refused) = (0, 0);
    while delivered < ROUNDS || refused < 10 {
        let (mut host, descriptors) = HostEnd::create(geometry).unwrap();
        let words = Words::map(&descriptors[0][0]).unwrap();
        let block = Arc::new(Block::open(Words::map(&descriptors[0][0]).unwrap()).unwrap());
        let bytes = Shared::map(descriptors[0].last().unwrap(), Access::Write).unwrap();
        let mut output = Producer::new(block.clone(), 1);
        let (is_over, mut seen) = (AtomicBool::new(false), Vec::new());
        let entry =
            |piece| Entry { is_message: true, pieces: [piece].into_iter().collect(), ..Entry::default() };
        // The words of the first line of the stage's ring, found by what is published there.
        output.write(&Entry { created: u64::MAX - 7, ..entry(PIECES[0]) });
        output.publish();
        let line = words.iter().position(|word| word.load(Ordering::Relaxed) == u64::MAX - 7).unwrap() - 1;
        assert!(matches!(host.pop(), Ok(Some(Returned::Message(..)))));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for turn in 0u64.. {
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                    // A location and a length of different pieces may meet; the one out of bounds is rare.
                    let piece = if turn % 64 == 63 { 2 } else { (turn % 2) as usize };
                    let Piece { region, slot, offset, length } = PIECES[piece];
                    let location = u64::from(region) | u64::from(slot) << 16 | u64::from(offset) << 32;
                    for index in 0..geometry.ring * 8 {
                        match index % 8 {
                            3 => words[line + index].store(location, Ordering::Relaxed),
                            6 => words[line + index].store(length.into(), Ordering::Relaxed),
                            _ => {}
                        }
                    }
                    bytes.copy_in(0, &[turn as u8; 16 << 10]);
                }
            });
            'run: while delivered < ROUNDS || refused < 10 {
                // Many at once: the thread changes those that wait.
                (0..geometry.ring / 2).for_each(|_| output.write(&entry(PIECES[0])));
                output.publish();
                for _ in 0..geometry.ring / 2 {
                    match host.pop() {
                        Ok(Some(Returned::Message(message, _))) => {
                            delivered += 1;
                            let bytes: Vec<u8> = message.body.chunks().flatten().copied().collect();
                            assert!([700, 9000].contains(&bytes.len()), "{} bytes", bytes.len());
                            seen.push((message, bytes));
                        }
                        Err(Broken(problem)) => {
                            refused += 1;
                            let is_named = problem.contains("out of bounds") || problem.contains("too many");
                            assert!(is_named, "{problem}");
                            break 'run;
                        }
                        other => panic!("{other:?}"),
                    }
                }
            }
            is_over.store(true, Ordering::Relaxed);
        });
        for (message, bytes) in seen {
            assert!(message.body.chunks().flatten().eq(&bytes), "delivered bytes changed");
        }
    }
}
