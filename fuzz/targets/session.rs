//! Both halves of a flow and the control channel, with a peer that sends anything in any order.
#![no_main]

use contract::{FlowClass, Message, Time};
use libfuzzer_sys::fuzz_target;
use session::{Admission, ClockEstimator, ControlChannel, Limits, Received, SinkFlow, SourceFlow};
use std::time::Duration;
use wire::{Container, Control, Reader, RecordHeader, WireError};

const MESSAGES_MAX: usize = 8;

fuzz_target!(|bytes: &[u8]| {
    // The run ends with the input.
    let _ = play(&mut Reader::new(bytes));
});

/// Usually a small number, sometimes any.
fn number(reader: &mut Reader<'_>) -> Result<u64, WireError> {
    match reader.u8("number")? {
        255 => reader.u64("number"),
        254 => Ok(u64::MAX - u64::from(reader.u8("number")?)),
        small => Ok(small.into()),
    }
}

fn play(reader: &mut Reader<'_>) -> Result<(), WireError> {
    let class = [FlowClass::Reliable, FlowClass::Timely, FlowClass::State][reader.u8("class")? as usize % 3];
    let limits = Limits {
        store_messages: MESSAGES_MAX,
        store_bytes: 1000,
        held_records: MESSAGES_MAX,
        held_bytes: 1000,
        ..Limits::default()
    };
    let mut source = SourceFlow::new(1, class, reader.u8("lossy")? % 2 == 0, &limits);
    let mut sink = SinkFlow::new(class, &limits);
    let mut clock = ClockEstimator::new();
    let mut channel = ControlChannel::new(1000);
    let (mut now, mut held) = (Time::ZERO, 0);
    loop {
        match reader.u8("event")? {
            0 => {
                let body = vec![0; usize::from(reader.u8("body")?)];
                if let Admission::Record(record) = source.admit(Message::new(now, body), now) {
                    held += hand_in(&mut sink, record);
                }
            }
            1 => source.handle_acknowledge(number(reader)? as u32, number(reader)?, now),
            2 => {
                let ranges = [(number(reader)?, number(reader)?), (number(reader)?, number(reader)?)];
                source.handle_missing(number(reader)? as u32, &ranges);
            }
            3 => {
                let epoch = source.epoch();
                source.handle_missing(epoch, &sink.missing());
            }
            4 => {
                if let Some(record) = source.poll_retransmit(now) {
                    held += hand_in(&mut sink, record);
                }
            }
            5 => source.handle_link(now),
            6 => {
                now = now.after(Duration::from_nanos(number(reader)?));
                source.handle_timeout(now, Duration::from_nanos(number(reader)?));
            }
            7 => {
                source.restart();
            }
            8 => {
                let (epoch, sequence) = (number(reader)? as u32, number(reader)?);
                let container = Container { length: 0, created: 0 };
                let header = RecordHeader { flow: 1, epoch, sequence, container };
                let mut message = Message::default();
                message.body.push_front(&header.emit());
                held += hand_in(&mut sink, message);
            }
            9 => {
                sink.abandon();
                held = 0;
            }
            10 => held -= sink.begin(number(reader)? as u32) as usize,
            11 => sink.handle_end(number(reader)? as u32, number(reader)?),
            12 => held -= usize::from(sink.poll().is_some()),
            13 => source.handle_acknowledge(sink.epoch(), sink.next_sequence(), now),
            14 => {
                clock.handle_pong(number(reader)?, number(reader)?, number(reader)?, Time(number(reader)?));
            }
            15 => {
                let count = usize::from(reader.u8("bytes")?);
                if channel.has_room() {
                    channel.handle_bytes(reader.bytes("bytes", count)?);
                    while let Ok(Some(_)) = channel.poll() {}
                }
            }
            16 => {
                let _ = channel.send(&Control::Linked { driver: 0 });
            }
            17 => channel.handle_sent(number(reader)? as usize),
            18 => {
                let _ = channel.resume(number(reader)?, None);
            }
            19 => sink.handle_epoch_end(number(reader)? as u32, number(reader)?),
            _ => {
                let _ = channel.handle_received(number(reader)?);
            }
        }
        assert!(held <= MESSAGES_MAX + 1);
        assert!(channel.front().len() <= 1000);
        assert!(sink.missing().iter().all(|(from, to)| from < to));
        assert_eq!(clock.offset().is_some(), clock.error_ns().is_some());
    }
}

/// Passes a record to the sink, as from the network; returns the number of newly buffered records.
fn hand_in(sink: &mut SinkFlow, mut record: Message) -> usize {
    let bytes = record.body.take_front::<{ RecordHeader::BYTES }>().expect("a record has a header");
    let header = RecordHeader::parse(&bytes, usize::MAX).expect("a header of our own");
    usize::from(sink.handle(&header, record) == Received::Accepted)
}
