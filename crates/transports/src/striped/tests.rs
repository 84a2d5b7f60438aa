//! Tests of the transport `striped`.

use super::unit::{Piece, Unit, emit_piece};
use super::*;
use crate::test_records::{
    WATCHDOG, figure, hex, keys, partner, pattern, pull, push, record, tcp_pair, vector,
};
use bytes::BytesMut;
use contract::Body;
use proptest::prelude::*;
use std::io::Write;
use std::net::TcpStream;
use std::time::Instant;

fn serve(partner: &mut dyn Partner) -> PartnerResult<u64> {
    match partner.ctl(FlowKey::DEFAULT, Ctl::Transport(TransportCtl::ServeWays))? {
        CtlReply::Count(ways) => Ok(ways),
        other => panic!("{other:?}"),
    }
}

fn add(partner: &mut dyn Partner, socket: OwnedFd, keys: Option<SealKeys>) {
    partner.ctl(FlowKey::DEFAULT, Ctl::Transport(TransportCtl::AddWay(socket, keys))).expect("a way");
}

/// Both ends of a link, the application host's first, and the connections that a broker makes for them.
struct Link {
    ends: [Box<dyn Partner>; 2],
    is_sealed: bool,
}

impl Link {
    fn new(ways: [&str; 2], is_sealed: bool) -> Link {
        let mut roles = [End::Dialled, End::Accepted].into_iter().zip(ways).zip(keys());
        let ends = tcp_pair().map(|socket| {
            let ((end, ways), keys) = roles.next().expect("two of each");
            let options = Options::check(&OPTIONS, [("ways", ways)]).expect("options");
            Striped.partner(socket, end, &options, is_sealed.then_some(&keys)).expect("partner")
        });
        Link { ends, is_sealed }
    }

    /// Runs both ends once, and makes the connections that they request.
    fn turn(&mut self) {
        serve(&mut *self.ends[1]).expect("the device host's end");
        for _ in 0..serve(&mut *self.ends[0]).expect("the application host's end") {
            let keys = keys().map(|keys| self.is_sealed.then_some(keys));
            for ((end, socket), keys) in self.ends.iter_mut().zip(tcp_pair()).zip(keys) {
                add(&mut **end, socket, keys);
            }
        }
    }

    /// Runs both ends until each has this number of open ways.
    fn settle(&mut self, ways: f64) {
        let begun = Instant::now();
        while self.ends.iter_mut().any(|end| figure(&mut **end, "ways_open") != ways) {
            assert!(begun.elapsed() < WATCHDOG, "the ways do not settle");
            self.turn();
        }
    }

    /// Sends records from one end to the other, and compares.
    fn exchange(&mut self, from: usize, lengths: &[usize]) {
        let sent: Vec<Body> =
            (0..).zip(lengths).map(|(i, &length)| record(9, i, &pattern(length, i))).collect();
        let (mut queued, mut received) = (sent.iter(), Vec::new());
        let mut next = queued.next();
        let begun = Instant::now();
        while received.len() < sent.len() {
            assert!(begun.elapsed() < WATCHDOG, "{} of {} records arrive", received.len(), sent.len());
            if let Some(body) = next {
                let pushed = self.ends[from].push(FlowKey::DEFAULT, Message::new(Time::ZERO, body.clone()));
                if let Pushed::Taken = pushed.map_err(|(error, _)| error).expect("push") {
                    next = queued.next();
                }
            }
            self.turn();
            while let Pulled::Message(flow, message) =
                self.ends[1 - from].pull(FlowKey::DEFAULT, Pull::Yours).expect("pull")
            {
                assert_eq!(flow, FlowKey(9));
                received.push(message.body);
            }
        }
        assert!(received == sent, "records arrive as they were sent");
    }
}

#[test]
fn records_cross_over_any_number_of_ways_in_order() {
    let lengths: Vec<usize> = (0..300).map(|i| [10, 1000, 70_000, 131_073, 400_000, 0][i % 6] + i).collect();
    for is_sealed in [false, true] {
        for ways in [["1", "1"], ["2", "1"], ["1", "7"], ["16", "3"]] {
            let mut link = Link::new(ways, is_sealed);
            link.exchange(0, &lengths);
            link.exchange(1, &lengths);
            let most =
                ways.map(|ways| ways.parse::<f64>().expect("a number")).into_iter().fold(0.0, f64::max);
            link.settle(most);
            for (from, ways) in ways.iter().enumerate() {
                assert_eq!(figure(&mut *link.ends[from], "ways").to_string(), *ways);
                link.exchange(from, &lengths);
            }
        }
    }
}

#[test]
fn an_end_on_either_side_arrives_behind_all_records() {
    for from in [0, 1] {
        let mut link = Link::new(["4", "4"], true);
        link.settle(4.0);
        for i in 0..100 {
            push(&mut *link.ends[from], record(9, i, &pattern(30_000, i)));
            link.turn();
            assert_eq!(
                pull(&mut *link.ends[1 - from]),
                Some((FlowKey(9), record(9, i, &pattern(30_000, i))))
            );
        }
        // The other direction continues.
        let begun = Instant::now();
        while !matches!(link.ends[from].ctl(FlowKey::DEFAULT, Ctl::Finish), Ok(CtlReply::Done)) {
            assert!(begun.elapsed() < WATCHDOG);
            link.turn();
        }
        assert_eq!(pull(&mut *link.ends[1 - from]), None);
        link.exchange(1 - from, &[5, 500_000, 7]);
    }
}

#[test]
fn a_broken_way_fails_the_link_and_a_refused_way_does_not() {
    let mut link = Link::new(["3", "1"], false);
    link.turn();
    let [here, there] = &mut link.ends;
    // The peer closes both new ways at once, one with words of another protocol.
    let closed = tcp_pair();
    let [ours, theirs] = closed;
    TcpStream::from(theirs).write_all(&[7; 60]).expect("write");
    add(&mut **here, ours, None);
    let [ours, theirs] = tcp_pair();
    drop(theirs);
    add(&mut **here, ours, None);
    let begun = Instant::now();
    while figure(&mut **here, "ways_refused") < 2.0 {
        assert!(begun.elapsed() < WATCHDOG);
        serve(&mut **here).expect("the link continues");
        serve(&mut **there).expect("the link continues");
    }
    let mut link = Link::new(["2", "1"], false);
    link.settle(2.0);
    link.exchange(0, &[200_000; 20]);
    // Without the end mark.
    let [here, there] = link.ends;
    drop(here);
    let mut there = there;
    let begun = Instant::now();
    while serve(&mut *there).is_ok() {
        assert!(begun.elapsed() < WATCHDOG);
    }
}

#[test]
fn a_way_that_is_refused_before_the_peer_wants_several_does_not_limit_them() {
    let mut link = Link::new(["1", "3"], false);
    let [ours, theirs] = tcp_pair();
    drop(theirs);
    add(&mut *link.ends[0], ours, None);
    serve(&mut *link.ends[0]).expect("the link continues");
    assert_eq!(figure(&mut *link.ends[0], "ways_refused"), 1.0);
    link.settle(3.0);
    link.exchange(1, &[200_000; 20]);
}

#[test]
fn a_way_without_an_answer_is_replaced() {
    let mut link = Link::new(["1", "3"], false);
    let begun = Instant::now();
    while serve(&mut *link.ends[0]).expect("the application host's end") != 2 {
        assert!(begun.elapsed() < WATCHDOG, "the device host's demand does not arrive");
        serve(&mut *link.ends[1]).expect("the device host's end");
    }
    let silent = [tcp_pair(), tcp_pair()].map(|[ours, theirs]| {
        add(&mut *link.ends[0], ours, None);
        theirs
    });
    link.settle(3.0);
    drop(silent);
    link.exchange(1, &[200_000; 20]);
}

#[test]
fn a_way_of_another_link_is_closed() {
    let mut link = Link::new(["1", "1"], false);
    link.exchange(0, &[1]);
    let [ours, theirs] = tcp_pair();
    add(&mut *link.ends[1], theirs, None);
    let mut ours = TcpStream::from(ours);
    ours.write_all(&Mark::Join(1).emit().into_bytes()).expect("write");
    ours.set_read_timeout(Some(WATCHDOG)).expect("a timeout");
    for _ in 0..50 {
        link.turn();
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(std::io::Read::read(&mut ours, &mut [0; 64]).expect("closed"), 0);
    link.exchange(0, &[1, 2, 3]);
}

#[test]
fn a_flood_of_ways_is_bounded() {
    let mut link = Link::new(["1", "1"], false);
    link.exchange(0, &[1]);
    let mut kept = Vec::new();
    for _ in 0..3 * WAYS_MAX / 2 {
        let [ours, theirs] = tcp_pair();
        add(&mut *link.ends[1], theirs, None);
        kept.push(ours);
    }
    link.exchange(0, &[1, 2, 3]);
    // A peer that wants 10,000 ways gets no more than the most.
    let mut ours = TcpStream::from(kept.swap_remove(0));
    ours.write_all(&Mark::Want(10_000).emit().into_bytes()).expect("write");
    link.turn();
}

/// Sends units to an end that expects them on its first way. Returns its error.
fn error_after(units: &[Body]) -> Option<PartnerError> {
    let [ours, theirs] = tcp_pair();
    let options = Options::check(&OPTIONS, [("ways", "1")]).expect("options");
    let mut partner = Striped.partner(theirs, End::Accepted, &options, None).expect("partner");
    let mut ours = TcpStream::from(ours);
    for unit in units {
        ours.write_all(&unit.clone().into_bytes()).expect("write");
    }
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(200) {
        let pulled =
            partner.pull(FlowKey::DEFAULT, Pull::Yours).map(drop).and(serve(&mut *partner).map(drop));
        if let Err(error) = pulled {
            return Some(error);
        }
    }
    None
}

#[test]
fn a_peer_that_breaks_the_order_of_units_is_refused() {
    let piece = |number| emit_piece(record(1, number, b"body"), number, false);
    let part = |flow, number| emit_piece(record(flow, 0, b"body"), number, true);
    let join = || Mark::Join(5).emit();
    for (units, is_wrong) in [
        (vec![join(), piece(0), piece(1), Mark::Want(5).emit()], false),
        (vec![piece(0)], true),
        (vec![join(), join()], true),
        (vec![join(), piece(0), piece(0)], true),
        // Piece 1 may come on another way; until then the link waits.
        (vec![join(), piece(0), piece(2)], false),
        (vec![join(), part(1, 0), part(2, 1)], true),
        (vec![join(), Mark::End.emit(), piece(0)], true),
    ] {
        let error = error_after(&units);
        assert_eq!(error.is_some(), is_wrong, "{units:?}: {error:?}");
    }
}

#[test]
fn units_match_the_documented_vectors() {
    let vectors = include_str!("../../../../docs/reference/vectors/striped.txt");
    let bytes = |unit: Body| hex(&unit.into_bytes());
    assert_eq!(bytes(Mark::Join(0x0102_0304_0506_0708).emit()), vector(vectors, "join"));
    assert_eq!(bytes(Mark::Want(33).emit()), vector(vectors, "want"));
    assert_eq!(bytes(Mark::End.emit()), vector(vectors, "end"));
    assert_eq!(bytes(emit_piece(record(1, 2, b"hello"), 7, false)), vector(vectors, "piece 7"));
    assert_eq!(bytes(emit_piece(record(1, 3, b"hel"), 8, true)), vector(vectors, "piece 8"));
}

proptest! {
    #[test]
    fn any_bytes_are_a_unit_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..100), is_mark in any::<bool>()) {
        let mut unit = BytesMut::from(&bytes[..]);
        if is_mark {
            unit.extend_from_slice(&u64::MAX.to_le_bytes());
        }
        let whole = unit.to_vec();
        match Unit::parse(5, unit) {
            Ok(Unit::Mark(mark)) => prop_assert_eq!(mark.emit().into_bytes().to_vec(), whole),
            Ok(Unit::Piece(Piece { number, continues, bytes, .. })) => {
                prop_assert_eq!(emit_piece(Body::from(bytes), number, continues).into_bytes().to_vec(), whole);
            }
            Err(_) => {}
        }
    }
}

#[test]
fn a_way_that_the_network_drops_after_an_idle_time_is_found() {
    let [ours, theirs] = tcp_pair();
    let mut end = partner(&Striped, ours, &[("ways", "1")]);
    push(&mut *end, record(1, 0, &[1]));
    sys::net::take_nothing(&theirs).expect("a filter");
    push(&mut *end, record(1, 1, &[1]));
    let begun = Instant::now();
    loop {
        let at = end.upkeep().at.expect("a record is not acknowledged");
        std::thread::sleep(at.since(Time(sys::clock::boot_ns())));
        match end.ctl(FlowKey::DEFAULT, Ctl::Transport(TransportCtl::HeldBack)) {
            Ok(CtlReply::Count(0)) => assert!(begun.elapsed() < WATCHDOG, "the loss is not found"),
            Ok(CtlReply::Count(1)) => break,
            other => panic!("{other:?}"),
        }
    }
}
