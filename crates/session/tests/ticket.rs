//! Flows that resume from tickets: from their own without any difference, from invalid ones not at all.

use contract::{FlowClass, Message, Time};
use proptest::collection::vec;
use proptest::prelude::*;
use session::{Admission, Limits, Received, SinkFlow, SourceFlow, StoreFull, TicketError};
use wire::ticket::{SinkTicket, SourceTicket};
use wire::{Container, RecordHeader};

const FLOW: u32 = 3;

fn limits() -> Limits {
    Limits { store_messages: 10, store_bytes: 200, held_records: 8, held_bytes: 200, ..Limits::default() }
}

fn class() -> impl Strategy<Value = FlowClass> {
    prop_oneof![Just(FlowClass::Reliable), Just(FlowClass::Timely), Just(FlowClass::State)]
}

fn store_full() -> impl Strategy<Value = StoreFull> {
    prop_oneof![Just(StoreFull::Block), Just(StoreFull::DropOldest), Just(StoreFull::Close)]
}

/// Small numbers, and numbers at the end of the range.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![6 => 0..6u64, 1 => any::<u64>(), 1 => u64::MAX - 3..=u64::MAX]
}

fn epoch() -> impl Strategy<Value = u32> {
    prop_oneof![6 => 0..4u32, 1 => any::<u32>(), 1 => u32::MAX - 1..=u32::MAX]
}

fn record(epoch: u32, sequence: u64, bytes: usize) -> Message {
    let mut record = Message::new(Time(sequence), vec![7; bytes]);
    let container = Container { length: bytes as u32, created: sequence };
    record.body.push_front(&RecordHeader { flow: FLOW, epoch, sequence, container }.emit());
    record
}

fn bytes(records: impl Iterator<Item = Message>) -> Vec<Vec<u8>> {
    records.map(|record| record.body.into_bytes().to_vec()).collect()
}

#[derive(Debug, Clone)]
enum SourceEvent {
    Admit(usize),
    Acknowledge(u64),
    Restart,
    Continue,
    LinkLost,
    Link,
}

fn source_event() -> impl Strategy<Value = SourceEvent> {
    prop_oneof![
        8 => (0..60usize).prop_map(SourceEvent::Admit),
        3 => (0..12u64).prop_map(SourceEvent::Acknowledge),
        1 => Just(SourceEvent::Restart),
        1 => Just(SourceEvent::Continue),
        1 => Just(SourceEvent::LinkLost),
        1 => Just(SourceEvent::Link),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Whatever happened to a source, its successor stores and retransmits the same records and continues the
    /// numbering.
    #[test]
    fn a_source_resumes_from_its_ticket(
        lossy in any::<bool>(),
        full in store_full(),
        events in vec(source_event(), 0..60),
        damaged in any::<prop::sample::Index>(),
    ) {
        let limits = Limits { store_full: full, ..limits() };
        let mut source = SourceFlow::new(FLOW, FlowClass::Reliable, lossy, &limits);
        for event in events {
            match event {
                SourceEvent::Admit(bytes) => drop(source.admit(Message::new(Time(5), vec![1; bytes]), Time::ZERO)),
                SourceEvent::Acknowledge(behind) => {
                    let next = source.next_sequence().saturating_sub(behind);
                    source.handle_acknowledge(source.epoch(), next, Time::ZERO);
                }
                SourceEvent::Restart => drop(source.restart()),
                // The sink is in this epoch, and has everything before it, when the epoch continues.
                SourceEvent::Continue => {
                    source.handle_acknowledge(source.epoch(), 0, Time::ZERO);
                    source.continue_in(source.epoch() + 3);
                }
                SourceEvent::LinkLost => source.handle_link_lost(),
                SourceEvent::Link => source.handle_link(Time::ZERO),
            }
        }
        let ticket = source.ticket();
        let resume = |records: Vec<Message>| SourceFlow::resume(&ticket, records, FlowClass::Reliable, lossy, &limits);
        let mut next = resume(source.stored().collect()).expect("its own ticket");
        prop_assert_eq!(next.ticket(), ticket);
        prop_assert_eq!(bytes(next.stored()), bytes(source.stored()));
        prop_assert_eq!(next.unacknowledged_bytes(), source.unacknowledged_bytes());
        source.handle_link(Time::ZERO);
        next.handle_link(Time::ZERO);
        let again = |flow: &mut SourceFlow| bytes(std::iter::from_fn(|| flow.poll_retransmit(Time::ZERO)));
        prop_assert_eq!(again(&mut source), again(&mut next));
        if let Admission::Record(record) = next.admit(Message::default(), Time::ZERO) {
            let header = record.body.into_bytes();
            let header = RecordHeader::parse(&header, 0).expect("a whole record");
            prop_assert_eq!((header.epoch, header.sequence), (ticket.epoch, ticket.next));
        }
        // With one record missing it does not resume, unless the missing one is the oldest: that may be
        // acknowledged.
        let mut stored: Vec<Message> = source.stored().collect();
        if stored.len() > 1 {
            stored.remove(1 + damaged.index(stored.len() - 1));
            prop_assert_eq!(resume(stored).err(), Some(TicketError::Record));
        }
    }

    /// A damaged ticket is refused or bounded.
    #[test]
    fn a_source_refuses_or_bounds_any_ticket(
        (epoch, next, prev, continues) in (epoch(), number(), (epoch(), number()), any::<bool>()),
        records in vec((epoch(), number(), 0..60usize, any::<bool>()), 0..30),
        class in class(),
        lossy in any::<bool>(),
    ) {
        let ticket = SourceTicket { flow: FLOW, epoch, next, prev, continues };
        let records = records.into_iter().map(|(epoch, sequence, bytes, whole)| match whole {
            true => record(epoch, sequence, bytes),
            false => Message::new(Time::ZERO, vec![9; bytes]),
        });
        if let Ok(mut source) = SourceFlow::resume(&ticket, records, class, lossy, &limits()) {
            prop_assert!(source.unacknowledged() <= limits().store_messages);
            prop_assert!(source.next_sequence() >= next);
            source.handle_link(Time::ZERO);
            prop_assert!(std::iter::from_fn(|| source.poll_retransmit(Time::ZERO)).count() <= limits().store_messages);
        }
    }

    /// Whatever happened to a sink, its successor resumes after the delivered messages and receives the rest
    /// again.
    #[test]
    fn a_sink_resumes_from_its_ticket(
        full in any::<bool>(),
        events in vec((0..3u32, 0..8u64, 0..9u8), 0..60),
    ) {
        let mut sink = SinkFlow::new(FlowClass::Reliable, &limits());
        for (epoch, sequence, event) in events {
            match event {
                0 => drop(sink.begin(epoch)),
                1 => drop(sink.expect(epoch)),
                2 => sink.expect_end(sequence),
                3 => sink.handle_delivered(),
                4 if full => sink.handle_trimmed(epoch, sequence),
                5 | 6 => drop(sink.poll()),
                _ => {
                    let container = Container { length: 0, created: 0 };
                    sink.handle(&RecordHeader { flow: FLOW, epoch, sequence, container }, Message::default());
                }
            }
        }
        let ticket = sink.ticket(FLOW);
        let mut next = SinkFlow::resume(&ticket, FlowClass::Reliable, &limits()).expect("its own ticket");
        prop_assert_eq!(next.ticket(FLOW), ticket);
        prop_assert_eq!((next.epoch(), next.is_abandoned()), (sink.epoch(), sink.is_abandoned()));
        prop_assert!(full || next.next_sequence() == ticket.next);
        // Undelivered messages come again and are delivered.
        let wanted = next.next_sequence();
        if sink.epoch() > 0 && !next.is_abandoned() {
            let container = Container { length: 0, created: 0 };
            let header = RecordHeader { flow: FLOW, epoch: next.epoch(), sequence: wanted, container };
            prop_assert_eq!(next.handle(&header, Message::default()), Received::Accepted);
            prop_assert!(next.poll().is_some());
        }
    }

    /// A damaged ticket is refused or bounded.
    #[test]
    fn a_sink_refuses_or_bounds_any_ticket(
        (epoch_, abandoned, next, lost) in (epoch(), epoch(), number(), number()),
        upcoming in prop::option::of((epoch(), prop::option::of(number()))),
        trimmed_to in (epoch(), number()),
        class in class(),
        records in vec((epoch(), number()), 0..30),
    ) {
        let ticket = SinkTicket { flow: FLOW, epoch: epoch_, abandoned, next, lost, upcoming, trimmed_to };
        let Ok(mut sink) = SinkFlow::resume(&ticket, class, &limits()) else { return Ok(()) };
        for (epoch, sequence) in records {
            let container = Container { length: 0, created: 0 };
            sink.handle(&RecordHeader { flow: FLOW, epoch, sequence, container }, Message::default());
            prop_assert!(sink.missing().iter().all(|(from, to)| from < to));
        }
        prop_assert!(std::iter::from_fn(|| sink.poll()).count() <= limits().held_records + 1);
        if sink.is_over() {
            sink.advance();
        }
    }
}

/// The notice of the dropped records reaches the sink's host while the sink's process is killed.
#[test]
fn a_resumed_sink_is_notified_again_of_dropped_records() {
    let limits = Limits { store_messages: 2, store_full: StoreFull::DropOldest, ..limits() };
    let mut source = SourceFlow::new(FLOW, FlowClass::Reliable, false, &limits);
    let ticket = SinkFlow::new(FlowClass::Reliable, &limits).ticket(FLOW);
    for _ in 0..5 {
        assert!(matches!(source.admit(Message::default(), Time::ZERO), Admission::Record(_)));
    }
    assert_eq!(source.poll_trimmed(), Some((1, 3)));
    assert_eq!(source.poll_trimmed(), None);
    source.handle_link_lost();
    let mut sink = SinkFlow::resume(&ticket, FlowClass::Reliable, &limits).expect("its own ticket");
    sink.begin(1);
    source.handle_link(Time::ZERO);
    for record in bytes(std::iter::from_fn(|| source.poll_retransmit(Time::ZERO))) {
        let header = RecordHeader::parse(&record, 0).expect("a whole record");
        assert_eq!(sink.handle(&header, Message::default()), Received::Accepted);
    }
    assert!(sink.poll().is_none(), "it waits for the records before");
    let (epoch, sequence) = source.poll_trimmed().expect("a second notice");
    sink.handle_trimmed(epoch, sequence);
    assert_eq!((std::iter::from_fn(|| sink.poll()).count(), sink.counters().lost), (2, 3));
    source.restart();
    source.handle_link(Time::ZERO);
    assert_eq!(source.poll_trimmed(), None, "the next epoch has lost nothing");
}
