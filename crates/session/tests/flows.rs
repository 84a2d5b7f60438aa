//! A flow between two hosts in virtual time, over links that lose, repeat, delay, reorder and break.

use contract::FlowClass;
use netsim::Params;
use proptest::collection::vec;
use proptest::prelude::*;
use session::Limits;
use std::time::Duration;
use testkit::peers::{Peers, PeersSetup};

/// Far longer than any of these runs takes. A run that reaches it has stalled.
const PATIENCE: Duration = Duration::from_secs(3600);

/// Limits so narrow that every run reaches them.
fn narrow() -> impl Strategy<Value = Limits> {
    (1..20usize, 1..20_000usize, 1..10usize, 1..20_000usize).prop_map(
        |(store_messages, store_bytes, held_records, held_bytes)| Limits {
            store_messages,
            store_bytes,
            held_records,
            held_bytes,
            ..Limits::default()
        },
    )
}

fn limits() -> impl Strategy<Value = Limits> {
    prop_oneof![Just(Limits::default()), narrow()]
}

/// A link with all the faults of datagrams.
fn bad_link() -> impl Strategy<Value = Params> {
    let losses = (0..300_000u32, 0..100_000u32, 1..20u32, 0..300_000u32);
    let times = (0..100_000_000u64, 0..100_000_000u64, any::<bool>());
    (losses, times).prop_map(
        |((loss_ppm, burst_loss_ppm, burst_packets, duplicate_ppm), (delay_ns, jitter_ns, reorder))| Params {
            delay_ns,
            jitter_ns,
            reorder,
            loss_ppm,
            burst_loss_ppm,
            burst_packets,
            duplicate_ppm,
            ..Params::default()
        },
    )
}

/// A link that loses nothing and keeps the order, like a stream.
fn good_link() -> impl Strategy<Value = Params> {
    (0..100_000_000u64, 0..100_000_000u64).prop_map(|(delay_ns, jitter_ns)| Params {
        delay_ns,
        jitter_ns,
        queue_packets: 1 << 20,
        ..Params::default()
    })
}

fn setup(class: FlowClass, lossy: bool, data: Params, limits: Limits, seed: u64) -> Peers {
    let control_delay = Duration::from_nanos(data.delay_ns + data.jitter_ns / 2);
    Peers::new(PeersSetup { class, lossy, data, control_delay, limits, seed })
}

/// A body of at least eight bytes that holds `serial`.
fn body(serial: u64, more_bytes: usize) -> Vec<u8> {
    let mut body = serial.to_le_bytes().to_vec();
    body.resize(8 + more_bytes, serial as u8);
    body
}

/// Epoch and number of each delivered message.
fn delivered(peers: &Peers) -> Vec<(u32, u64)> {
    let serial = |bytes: &[u8]| u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
    peers.delivered().iter().map(|d| (d.epoch, serial(&d.body.clone().into_bytes()))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// An ordered flow is complete and in order, whatever a lossy transport does.
    #[test]
    fn nothing_is_lost_repeated_or_reordered(
        class in prop_oneof![Just(FlowClass::Reliable), Just(FlowClass::State)],
        link in bad_link(),
        limits in limits(),
        messages in vec((0..20_000u64, 0..3000usize), 1..120),
        seed in any::<u64>(),
    ) {
        let store_messages = limits.store_messages as u64;
        let mut peers = setup(class, true, link, limits, seed);
        for (serial, (wait_us, more_bytes)) in messages.iter().enumerate() {
            peers.run_for(Duration::from_micros(*wait_us));
            peers.send(body(serial as u64, *more_bytes));
            // The store holds every record that the sink has not delivered.
            prop_assert!(peers.source().next_sequence() - peers.sink().next_sequence() <= store_messages);
        }
        prop_assert!(peers.run_until_settled(PATIENCE), "standstill after {:?}", delivered(&peers).last());
        let serials: Vec<u64> = delivered(&peers).iter().map(|(_, serial)| *serial).collect();
        prop_assert_eq!(serials, (0..messages.len() as u64).collect::<Vec<_>>());
        let sizes = peers.delivered().iter().map(|d| d.body.len() - 8);
        prop_assert!(sizes.eq(messages.iter().map(|(_, more_bytes)| *more_bytes)));
        prop_assert_eq!(peers.sink().counters().lost, 0);
    }

    /// A reliable flow changes its pipeline over links that break. Nothing is lost or repeated, and each
    /// message arrives in the epoch that it was sent in.
    #[test]
    fn a_continued_epoch_loses_nothing(
        (lossy, link) in prop_oneof![good_link().prop_map(|link| (false, link)), bad_link().prop_map(|link| (true, link))],
        limits in limits(),
        messages in vec((0..20_000u64, 0..3000usize), 1..100),
        changes in vec(0..100usize, 0..12),
        cuts in vec((0..100usize, 0..3000u64), 0..3),
        seed in any::<u64>(),
    ) {
        let mut peers = setup(FlowClass::Reliable, lossy, link, limits, seed);
        for (serial, (wait_us, more_bytes)) in messages.iter().enumerate() {
            peers.run_for(Duration::from_micros(*wait_us));
            peers.send(body(serial as u64, *more_bytes));
            for (_, length_ms) in cuts.iter().filter(|(at, _)| *at == serial) {
                peers.cut();
                peers.run_for(Duration::from_millis(*length_ms));
                peers.join();
            }
            if changes.contains(&serial) {
                peers.go_on();
            }
        }
        prop_assert!(peers.run_until_settled(PATIENCE), "standstill after {:?}", delivered(&peers).last());
        let came = delivered(&peers);
        prop_assert!(came.iter().map(|(_, serial)| *serial).eq(0..messages.len() as u64), "{came:?}");
        prop_assert!(came.windows(2).all(|pair| pair[0].0 <= pair[1].0), "{came:?}");
        prop_assert_eq!(peers.sink().counters().repeated * u64::from(!lossy && cuts.is_empty()), 0);
    }

    /// A reliable flow resumes after its link broke, without a gap or a repeat, over streams and datagrams.
    #[test]
    fn a_reliable_flow_survives_its_links(
        (lossy, link) in prop_oneof![good_link().prop_map(|link| (false, link)), bad_link().prop_map(|link| (true, link))],
        limits in limits(),
        messages in vec((0..20_000u64, 0..3000usize), 1..100),
        cuts in vec((0..100usize, 0..3000u64), 0..5),
        seed in any::<u64>(),
    ) {
        let mut peers = setup(FlowClass::Reliable, lossy, link, limits, seed);
        for (serial, (wait_us, more_bytes)) in messages.iter().enumerate() {
            peers.run_for(Duration::from_micros(*wait_us));
            peers.send(body(serial as u64, *more_bytes));
            for (_, length_ms) in cuts.iter().filter(|(at, _)| *at == serial) {
                peers.cut();
                peers.run_for(Duration::from_millis(*length_ms));
                peers.join();
            }
        }
        prop_assert!(peers.run_until_settled(PATIENCE), "standstill after {:?}", delivered(&peers).last());
        let serials: Vec<u64> = delivered(&peers).iter().map(|(_, serial)| *serial).collect();
        prop_assert_eq!(serials, (0..messages.len() as u64).collect::<Vec<_>>());
    }
}

/// An event of a flow.
#[derive(Debug, Clone)]
enum Event {
    Send(usize),
    Run(u64),
    GiveUp,
    Restart,
    GoOn,
    Cut,
    Join,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => (0..2000usize).prop_map(Event::Send),
        6 => (0..200u64).prop_map(Event::Run),
        1 => Just(Event::GiveUp),
        1 => Just(Event::Restart),
        1 => Just(Event::GoOn),
        1 => Just(Event::Cut),
        1 => Just(Event::Join),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    /// Abandoned epochs: no message of one arrives after the next began, each epoch starts at 0 without gaps,
    /// and the last one is complete.
    #[test]
    fn epochs_never_mix(
        (lossy, link) in prop_oneof![good_link().prop_map(|link| (false, link)), bad_link().prop_map(|link| (true, link))],
        class in prop_oneof![Just(FlowClass::Reliable), Just(FlowClass::State)],
        events in vec(event(), 1..120),
        seed in any::<u64>(),
    ) {
        let mut peers = setup(class, lossy, link, Limits::default(), seed);
        let (mut serial, mut up) = (0, true);
        // The epoch of the source when each message was sent.
        let mut given = Vec::new();
        for event in events {
            match event {
                Event::Send(more_bytes) if up => {
                    peers.send(body(serial, more_bytes));
                    given.push(peers.source().epoch());
                    serial += 1;
                }
                Event::Send(_) => {}
                Event::Run(time_ms) => peers.run_for(Duration::from_millis(time_ms)),
                Event::GiveUp => {
                    let before = delivered(&peers).len();
                    let given_up = peers.sink().epoch().max(1);
                    peers.give_up();
                    prop_assert!(delivered(&peers)[before..].iter().all(|(epoch, _)| *epoch > given_up));
                    prop_assert!(peers.sink().is_abandoned() || peers.sink().epoch() > given_up);
                }
                Event::Restart => peers.restart(),
                Event::GoOn => {
                    peers.go_on();
                }
                Event::Cut => {
                    peers.cut();
                    up = false;
                }
                Event::Join => {
                    // A state flow does not survive a broken stream: its unacknowledged messages are abandoned.
                    if !up && class == FlowClass::State {
                        peers.restart();
                    }
                    if !up {
                        peers.join();
                    }
                    up = true;
                }
            }
        }
        if !up {
            if class == FlowClass::State {
                peers.restart();
            }
            peers.join();
        }
        // Time for the source to learn of an abandoned epoch.
        peers.run_for(Duration::from_secs(5));
        peers.send(body(serial, 0));
        prop_assert!(peers.run_until_settled(PATIENCE));
        // Records of a stream are not stored, so "settled" does not cover them.
        peers.run_for(Duration::from_secs(5));
        let came = delivered(&peers);
        prop_assert!(came.windows(2).all(|pair| pair[0].0 <= pair[1].0 && pair[0].1 < pair[1].1), "{came:?}");
        for of_one in came.chunk_by(|a, b| a.0 == b.0) {
            prop_assert!(of_one.windows(2).all(|pair| pair[0].1 + 1 == pair[1].1), "{of_one:?}");
        }
        prop_assert_eq!(came.last().map(|(_, serial)| *serial), Some(serial));
        prop_assert_eq!(peers.sink().epoch(), peers.source().epoch());
        prop_assert!(came.iter().filter(|(_, s)| *s < serial).all(|(epoch, s)| *epoch >= given[*s as usize]));
    }

    /// Each timely message arrives at most once. When the end is known, every missing one is counted, in every
    /// epoch.
    #[test]
    fn a_timely_flow_counts_what_it_loses(
        link in bad_link(),
        messages in vec((0..20_000u64, 0..500usize, prop::bool::weighted(0.05)), 1..200),
        seed in any::<u64>(),
    ) {
        let mut peers = setup(FlowClass::Timely, true, link, Limits::default(), seed);
        for (serial, (wait_us, more_bytes, ends_epoch)) in messages.iter().enumerate() {
            peers.run_for(Duration::from_micros(*wait_us));
            peers.send(body(serial as u64, *more_bytes));
            if *ends_epoch {
                peers.restart();
            }
        }
        peers.end();
        peers.run_for(Duration::from_secs(2));
        let mut serials: Vec<u64> = delivered(&peers).iter().map(|(_, serial)| *serial).collect();
        let count = serials.len();
        serials.sort_unstable();
        serials.dedup();
        prop_assert_eq!(serials.len(), count, "one came twice");
        let counters = peers.sink().counters();
        prop_assert_eq!(counters.received, count as u64);
        prop_assert_eq!(counters.lost, (messages.len() - count) as u64);
        prop_assert_eq!(counters.repeated + counters.received, peers.link().delivered);
    }
}

/// Without loss there is no waiting: the flight is as large as the sink's buffer.
#[test]
fn a_long_link_is_filled() {
    let link: Params = "delay=50ms".parse().expect("a link");
    let mut peers = setup(FlowClass::Reliable, true, link, Limits::default(), 1);
    let began = peers.now();
    (0..4000).for_each(|serial| peers.send(body(serial, 992)));
    assert!(peers.run_until_settled(PATIENCE));
    assert_eq!(peers.source().counters().retransmitted, 0);
    assert!(peers.now().since(began) < Duration::from_millis(900), "{:?}", peers.now().since(began));
}

/// The loss of the last records in a burst is repaired without a round trip for each.
#[test]
fn a_lost_tail_is_repaired_soon() {
    let link = |text: &str| -> Params { text.parse().expect("a link") };
    let mut peers = setup(FlowClass::State, true, link("delay=50ms"), Limits::default(), 1);
    peers.send(body(0, 0));
    peers.run_for(Duration::from_secs(1));
    peers.cut();
    // The control channel is down together with the datagrams, so the tail is lost.
    (1..=50).for_each(|serial| peers.send(body(serial, 16)));
    let before = peers.now();
    peers.join();
    assert!(peers.run_until_settled(PATIENCE));
    assert_eq!(delivered(&peers).len(), 51);
    assert!(peers.now().since(before) < Duration::from_millis(400), "{:?}", peers.now().since(before));
}
