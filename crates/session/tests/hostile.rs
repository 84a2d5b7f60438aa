//! The halves of a flow against peers that send anything, compared with simple models of their promises.

use contract::{FlowClass, Message, Time};
use proptest::collection::vec;
use proptest::prelude::*;
use session::{Admission, FIRST_EPOCH, Limits, Received, SinkFlow, SourceFlow};
use std::collections::{BTreeSet, HashSet};
use std::time::Duration;
use wire::control::MISSING_RANGES_MAX;
use wire::{Container, RecordHeader};

fn class() -> impl Strategy<Value = FlowClass> {
    prop_oneof![Just(FlowClass::Reliable), Just(FlowClass::Timely), Just(FlowClass::State)]
}

/// Small numbers, near the flow's own, and numbers at the end of the range.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![6 => 0..40u64, 1 => any::<u64>(), 1 => u64::MAX - 3..=u64::MAX, 1 => 1000..1100u64]
}

fn epoch() -> impl Strategy<Value = u32> {
    prop_oneof![6 => 0..4u32, 1 => any::<u32>(), 1 => u32::MAX - 1..=u32::MAX]
}

fn limits() -> Limits {
    Limits { store_messages: 10, store_bytes: 200, held_records: 8, held_bytes: 200, ..Limits::default() }
}

fn message(bytes: usize) -> Message {
    Message::new(Time::ZERO, vec![0; bytes])
}

#[derive(Debug, Clone)]
enum SourceEvent {
    Admit(usize),
    Acknowledge(u32, u64),
    Missing(u32, Vec<(u64, u64)>),
    Resend,
    Link,
    Wait(u64),
    Restart,
}

fn source_event() -> impl Strategy<Value = SourceEvent> {
    prop_oneof![
        6 => (0..60usize).prop_map(SourceEvent::Admit),
        3 => (epoch(), number()).prop_map(|(epoch, next)| SourceEvent::Acknowledge(epoch, next)),
        3 => (epoch(), vec((number(), number()), 0..6)).prop_map(|(e, ranges)| SourceEvent::Missing(e, ranges)),
        4 => Just(SourceEvent::Resend),
        1 => Just(SourceEvent::Link),
        1 => (0..10_000u64).prop_map(SourceEvent::Wait),
        1 => Just(SourceEvent::Restart),
    ]
}

/// The header of a record, checked against its body.
fn header(record: Message) -> RecordHeader {
    let bytes = record.body.into_bytes();
    let header = RecordHeader::parse(&bytes, usize::MAX).expect("a whole record");
    assert_eq!(header.container.length as usize, bytes.len() - RecordHeader::BYTES);
    header
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn a_source_retransmits_only_stored_records(
        class in class(),
        lossy in any::<bool>(),
        events in vec(source_event(), 0..120),
    ) {
        let limits = limits();
        let mut source = SourceFlow::new(1, class, lossy, &limits);
        let (mut now, mut epoch) = (Time::ZERO, FIRST_EPOCH);
        let keeps = class != FlowClass::Timely;
        // Unacknowledged sequences, the next sequence, and the bytes of all.
        let (mut kept, mut next) = (BTreeSet::new(), 0);
        for event in events {
            match event {
                SourceEvent::Admit(bytes) => match source.admit(message(bytes), now) {
                    Admission::Record(record) => {
                        let header = header(record);
                        prop_assert_eq!((header.epoch, header.sequence), (epoch, next));
                        if keeps {
                            kept.insert(next);
                        }
                        next += 1;
                    }
                    Admission::Full(_) | Admission::Closed(_) => prop_assert!(keeps && !kept.is_empty()),
                },
                SourceEvent::Acknowledge(of, to) => {
                    source.handle_acknowledge(of, to, Time::ZERO);
                    if of == epoch && to <= next {
                        kept = kept.split_off(&to);
                    }
                }
                SourceEvent::Missing(of, ranges) => source.handle_missing(of, &ranges),
                SourceEvent::Resend => {
                    if let Some(record) = source.poll_retransmit(now) {
                        let header = header(record);
                        prop_assert_eq!(header.epoch, epoch);
                        prop_assert!(kept.contains(&header.sequence));
                    }
                }
                SourceEvent::Link => source.handle_link(now),
                SourceEvent::Wait(ms) => {
                    now = now.after(Duration::from_millis(ms));
                    source.handle_timeout(now, Duration::from_millis(ms));
                }
                SourceEvent::Restart => {
                    prop_assert_eq!(source.restart(), kept.len() as u64);
                    (kept, next) = (BTreeSet::new(), 0);
                    epoch += 1;
                }
            }
            prop_assert!(kept.len() <= limits.store_messages);
            prop_assert_eq!(source.is_settled(), kept.is_empty());
            prop_assert_eq!((source.epoch(), source.next_sequence()), (epoch, next));
            // A single message may exceed the byte limit.
            prop_assert!(kept.len() as u64 * 60 <= 200 + 60 || !source.has_room() || kept.len() < 10);
        }
        // Retransmission ends, whatever was requested.
        let again = std::iter::from_fn(|| source.poll_retransmit(now)).take(1000).count();
        prop_assert!(again <= kept.len().max(64));
    }

    #[test]
    fn a_sink_buffers_within_bounds_and_delivers_once(
        class in class(),
        events in vec((epoch(), number(), 0..60usize, 0..10u8), 0..150),
    ) {
        let limits = limits();
        let mut sink = SinkFlow::new(class, &limits);
        let mut held = 0usize;
        let mut came: HashSet<(u32, u64)> = HashSet::new();
        for (epoch, sequence, bytes, what) in events {
            match what {
                0 => {
                    prop_assert_eq!(sink.abandon(), held as u64);
                    prop_assert!(sink.is_abandoned() && sink.poll().is_none());
                    held = 0;
                }
                1 => {
                    let begins = epoch > sink.epoch();
                    let given_up = sink.begin(epoch);
                    prop_assert_eq!(given_up, if begins { held as u64 } else { 0 });
                    held -= given_up as usize;
                }
                2 if bytes % 2 == 0 => sink.handle_end(epoch, sequence),
                2 => sink.handle_epoch_end(epoch, sequence),
                3 => {
                    let next = sink.next_sequence();
                    if sink.poll().is_some() {
                        held -= 1;
                        prop_assert!(class == FlowClass::Timely || sink.next_sequence() == next + 1);
                    }
                }
                _ => {
                    let container = Container { length: bytes as u32, created: 0 };
                    let header = RecordHeader { flow: 1, epoch, sequence, container };
                    let (before, given_up) = (sink.epoch(), sink.is_abandoned());
                    match sink.handle(&header, message(bytes)) {
                        Received::Accepted => {
                            prop_assert!(epoch == before && !given_up);
                            prop_assert!(came.insert((epoch, sequence)), "twice");
                            held += 1;
                        }
                        Received::NewEpoch(_) => prop_assert!(epoch > before),
                        Received::Stale => prop_assert!(epoch == 0 || given_up || epoch < before),
                        Received::Repeated => prop_assert!(epoch <= before),
                        Received::Overflow => {}
                    }
                }
            }
            prop_assert!(held <= limits.held_records + 1);
            let missing = sink.missing();
            prop_assert!(missing.len() <= MISSING_RANGES_MAX);
            prop_assert!(missing.iter().all(|(from, to)| from < to));
            prop_assert!(missing.windows(2).all(|pair| pair[0].1 < pair[1].0));
            prop_assert!(missing.first().is_none_or(|(from, _)| *from >= sink.next_sequence()));
            prop_assert_eq!(sink.has_gap(), missing.first().is_some_and(|(from, _)| *from == sink.next_sequence()));
        }
    }

    /// Compared with the definition: lost are all numbers below the newest that never arrived.
    #[test]
    fn a_timely_sink_counts_like_a_set(sequences in vec(0..900u64, 1..300)) {
        let mut sink = SinkFlow::new(FlowClass::Timely, &Limits::default());
        sink.begin(FIRST_EPOCH);
        let mut came = BTreeSet::new();
        for sequence in sequences {
            let container = Container { length: 0, created: 0 };
            let header = RecordHeader { flow: 1, epoch: FIRST_EPOCH, sequence, container };
            let is_new = came.insert(sequence);
            let expected = if is_new { Received::Accepted } else { Received::Repeated };
            prop_assert_eq!(sink.handle(&header, message(0)), expected);
            prop_assert_eq!(sink.poll().is_some(), is_new);
            let newest = came.last().expect("one came");
            prop_assert_eq!(sink.counters().lost, newest + 1 - came.len() as u64);
        }
    }
}

/// A request for everything costs no more than the stored records, however it is written.
#[test]
fn a_request_for_everything_gives_a_bounded_answer() {
    let mut source = SourceFlow::new(1, FlowClass::Reliable, true, &Limits::default());
    while let Admission::Record(_) = source.admit(message(0), Time::ZERO) {}
    assert_eq!(source.next_sequence(), Limits::default().held_records as u64);
    for _ in 0..1000 {
        source.handle_missing(FIRST_EPOCH, &[(0, u64::MAX); MISSING_RANGES_MAX]);
    }
    let sequences: Vec<u64> = std::iter::from_fn(|| source.poll_retransmit(Time::ZERO))
        .map(|record| header(record).sequence)
        .collect();
    assert_eq!(sequences, (0..64).collect::<Vec<_>>());
}
