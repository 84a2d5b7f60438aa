//! The rate control on emulated links, in virtual time: alone, on a link that changes, and beside a flow of CUBIC.

use super::{RateControl, Sample};
use contract::Time;
use std::collections::VecDeque;
use std::time::Duration;

const PACKET_BYTES: usize = 1452;
const WIRE_BYTES: f64 = 1480.0;
const STEP_S: f64 = 1e-4;
const ROOM_BYTES: usize = 4 << 20;
/// A packet is lost once this many later ones arrived.
const REORDER: u64 = 3;

/// Packets in flight, by number.
#[derive(Default)]
struct InFlight {
    /// Time sent, and true once acknowledged.
    packets: VecDeque<(Time, bool)>,
    first: u64,
}

impl InFlight {
    fn send(&mut self, now: Time) -> u64 {
        self.packets.push_back((now, false));
        self.first + self.packets.len() as u64 - 1
    }

    /// Acknowledges a packet. Returns its round trip, and the number of packets that are lost now.
    fn acknowledge(&mut self, number: u64, now: Time) -> Option<(Duration, usize)> {
        let at = number.checked_sub(self.first)?;
        let (sent, is_acknowledged) = self.packets.get_mut(at as usize)?;
        if std::mem::replace(is_acknowledged, true) {
            return None;
        }
        let round_trip = now.since(*sent);
        let mut lost = 0;
        while let Some((_, is_acknowledged)) = self.packets.front() {
            if !is_acknowledged && self.first + REORDER > number {
                break;
            }
            lost += usize::from(!is_acknowledged);
            self.packets.pop_front();
            self.first += 1;
        }
        Some((round_trip, lost))
    }
}

/// A flow of ours.
struct Ours {
    rate: RateControl,
    in_flight: InFlight,
    in_flight_bytes: usize,
    /// The application has made a packet that is not sent.
    has_packet: bool,
    received_bytes: u64,
    lost_packets: u64,
    /// Of the acknowledgements of one step.
    acknowledged: usize,
    lost: usize,
    round_trip: Option<Duration>,
    /// The last acknowledgement or timeout, and the timeouts since the former.
    last_progress: Time,
    timeouts: u32,
}

impl Ours {
    /// Counts everything in flight as lost if nothing is acknowledged for the timeout, as `udp` does.
    fn check_timeout(&mut self, now: Time) {
        let timeout = self.rate.timeout() * (1 << self.timeouts.min(6));
        if self.in_flight_bytes == 0 || now.since(self.last_progress) < timeout {
            return;
        }
        self.timeouts += 1;
        self.last_progress = now;
        self.lost_packets += (self.in_flight_bytes / PACKET_BYTES) as u64;
        self.in_flight_bytes = 0;
        self.in_flight.first += self.in_flight.packets.len() as u64;
        self.in_flight.packets.clear();
        self.rate.on_timeout(self.timeouts);
    }

    fn acknowledge(&mut self, number: u64, now: Time) {
        let Some((round_trip, lost)) = self.in_flight.acknowledge(number, now) else { return };
        self.round_trip = Some(round_trip);
        self.acknowledged += PACKET_BYTES;
        self.received_bytes += PACKET_BYTES as u64;
        self.lost += lost * PACKET_BYTES;
        self.lost_packets += lost as u64;
        self.in_flight_bytes -= (1 + lost) * PACKET_BYTES;
    }

    fn end_step(&mut self, now: Time) {
        let acknowledged = std::mem::take(&mut self.acknowledged);
        if acknowledged == 0 {
            self.check_timeout(now);
            return;
        }
        (self.last_progress, self.timeouts) = (now, 0);
        let sample = Sample {
            round_trip: self.round_trip.take(),
            came: now,
            received_bytes: self.received_bytes,
            acknowledged,
            lost: std::mem::take(&mut self.lost),
            room: ROOM_BYTES,
            is_limited: 2 * (self.in_flight_bytes + acknowledged) >= self.rate.window(),
            is_idle: !self.has_packet,
        };
        self.rate.on_receipt(&sample, now);
    }
}

/// A TCP flow with CUBIC (RFC 9438) and HyStart (RFC 9406).
struct Cubic {
    in_flight: InFlight,
    packets_in_flight: usize,
    window: f64,
    slow_start_until: f64,
    window_before_loss: f64,
    lost_at: Time,
    round_trip_s: f64,
    round_trip_min_s: f64,
    received_packets: u64,
}

impl Cubic {
    fn new() -> Cubic {
        Cubic {
            in_flight: InFlight::default(),
            packets_in_flight: 0,
            window: 10.0,
            slow_start_until: f64::MAX,
            window_before_loss: 0.0,
            lost_at: Time::ZERO,
            round_trip_s: 0.1,
            round_trip_min_s: f64::MAX,
            received_packets: 0,
        }
    }

    fn acknowledge(&mut self, number: u64, now: Time) {
        let Some((round_trip, lost)) = self.in_flight.acknowledge(number, now) else { return };
        self.received_packets += 1;
        self.packets_in_flight -= 1 + lost;
        let round_trip_s = round_trip.as_secs_f64();
        self.round_trip_s += (round_trip_s - self.round_trip_s) / 8.0;
        self.round_trip_min_s = self.round_trip_min_s.min(round_trip_s);
        let elapsed_s = now.since(self.lost_at).as_secs_f64();
        if lost > 0 && elapsed_s > self.round_trip_s {
            self.window_before_loss = self.window;
            self.window = (self.window * 0.7).max(2.0);
            (self.slow_start_until, self.lost_at) = (self.window, now);
        } else if self.window < self.slow_start_until {
            self.window += 1.0;
            let queue_s = round_trip_s - self.round_trip_min_s;
            if queue_s > (self.round_trip_min_s / 8.0).clamp(0.004, 0.016) {
                (self.slow_start_until, self.window_before_loss, self.lost_at) =
                    (self.window, self.window, now);
            }
        } else {
            let returns_s = (self.window_before_loss * 0.3 / 0.4).cbrt();
            let cubic = 0.4 * (elapsed_s + self.round_trip_s - returns_s).powi(3) + self.window_before_loss;
            self.window += ((cubic - self.window) / self.window).clamp(0.53 / self.window, 0.5);
        }
    }
}

/// A link with both flows.
struct Model {
    ours: Ours,
    cubic: Option<Cubic>,
    bytes_per_s: f64,
    delay_s: f64,
    /// Longest further delay of a packet. Packets overtake each other.
    jitter_s: f64,
    loss: f64,
    queue_packets: f64,
    now_s: f64,
    /// Packets that our application has made by a time, as a rate; `None`: any number.
    made_per_s: Option<f64>,
    /// All packets that our application has made; `None`: any number.
    made_packets: Option<u64>,
    /// The sender's processor sends so much, and the sender still has more to send.
    processor_mbit: Option<f64>,
    /// The processor is busy with a packet until then.
    processor_free_s: f64,
    sent_packets: u64,
    /// The receiver's process is stopped until then.
    stopped_until_s: f64,
    /// Pauses a second of each of the two processes, and the longest time of one.
    pauses: (f64, f64),
    /// The sender and the receiver are paused until then.
    paused_until_s: [f64; 2],
    /// End of the transmission of all packets in the queue.
    free_s: f64,
    /// Arrivals of packets and of acknowledgements: time, ours or not, number.
    arrivals: [VecDeque<(f64, bool, u64)>; 2],
    random: u64,
}

/// Rates in Mbit/s, and the longest queue in milliseconds.
#[derive(Debug)]
struct Seen {
    ours: f64,
    cubic: f64,
    queue_ms: f64,
    lost_packets: u64,
}

impl Model {
    fn new(mbit: f64, round_trip_ms: f64, loss_percent: f64, queue_packets: f64) -> Model {
        let ours = Ours {
            rate: RateControl::new(),
            in_flight: InFlight::default(),
            in_flight_bytes: 0,
            has_packet: false,
            received_bytes: 0,
            lost_packets: 0,
            acknowledged: 0,
            lost: 0,
            round_trip: None,
            last_progress: Time::ZERO,
            timeouts: 0,
        };
        Model {
            ours,
            cubic: None,
            bytes_per_s: mbit * 1e6 / 8.0,
            delay_s: round_trip_ms / 2e3,
            jitter_s: 0.0,
            loss: loss_percent / 100.0,
            queue_packets,
            now_s: 0.0,
            made_per_s: None,
            made_packets: None,
            processor_mbit: None,
            processor_free_s: 0.0,
            sent_packets: 0,
            stopped_until_s: f64::NEG_INFINITY,
            pauses: (0.0, 0.0),
            paused_until_s: [f64::NEG_INFINITY; 2],
            free_s: 0.0,
            arrivals: Default::default(),
            random: 88_172_645_463_325_252,
        }
    }

    fn draw(&mut self) -> f64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn transmit(&mut self, is_ours: bool, number: u64) {
        let queued = (self.free_s - self.now_s).max(0.0) * self.bytes_per_s / WIRE_BYTES;
        if self.draw() < self.loss || queued >= self.queue_packets {
            return;
        }
        self.free_s = self.free_s.max(self.now_s) + WIRE_BYTES / self.bytes_per_s;
        let late_s = if self.jitter_s > 0.0 { self.jitter_s * self.draw() } else { 0.0 };
        let at_s = self.free_s + self.delay_s + late_s;
        let place = self.arrivals[0].partition_point(|(earlier_s, ..)| *earlier_s <= at_s);
        self.arrivals[0].insert(place, (at_s, is_ours, number));
    }

    fn step(&mut self) {
        let now = Time::from_millis(1000).after(Duration::from_secs_f64(self.now_s));
        for process in 0..2 {
            let (per_s, most_s) = self.pauses;
            if self.now_s >= self.paused_until_s[process] && self.draw() < per_s * STEP_S {
                self.paused_until_s[process] = self.now_s + most_s * self.draw();
            }
        }
        if self.now_s < self.paused_until_s[1] {
            self.stopped_until_s = self.paused_until_s[1];
        }
        let is_sender_paused = self.now_s < self.paused_until_s[0];
        // A stopped receiver handles the packets in its socket's buffer one by one when it runs again.
        let mut handled = 0;
        let most = match self.now_s - self.stopped_until_s {
            ..0.0 => 0,
            _ if self.pauses.0 > 0.0 => usize::MAX,
            0.0..0.1 => usize::from(((self.now_s / STEP_S) as u64).is_multiple_of(10)),
            _ => usize::MAX,
        };
        while handled < most
            && let Some((at_s, is_ours, number)) =
                self.arrivals[0].pop_front_if(|(at_s, ..)| *at_s <= self.now_s)
        {
            handled += 1;
            self.arrivals[1].push_back((at_s.max(self.stopped_until_s) + self.delay_s, is_ours, number));
        }
        while !is_sender_paused
            && let Some((_, is_ours, number)) =
                self.arrivals[1].pop_front_if(|(at_s, ..)| *at_s <= self.now_s)
        {
            match (is_ours, &mut self.cubic) {
                (true, _) => self.ours.acknowledge(number, now),
                (false, Some(cubic)) => cubic.acknowledge(number, now),
                (false, None) => {}
            }
        }
        self.ours.end_step(now);
        loop {
            if is_sender_paused {
                break;
            }
            let ours = &mut self.ours;
            ours.has_packet =
                self.made_per_s.is_none_or(|per_s| (self.sent_packets as f64) < per_s * self.now_s)
                    && self.made_packets.is_none_or(|made| self.sent_packets < made);
            let may_send = ours.has_packet
                && self.processor_free_s <= self.now_s
                && ours.rate.next() <= now
                && ours.in_flight_bytes + PACKET_BYTES <= ours.rate.window();
            if may_send {
                self.sent_packets += 1;
                if let Some(mbit) = self.processor_mbit {
                    let begun_s = self.processor_free_s.max(self.now_s - STEP_S);
                    self.processor_free_s = begun_s + PACKET_BYTES as f64 * 8e-6 / mbit;
                }
                if ours.in_flight_bytes == 0 {
                    ours.last_progress = now;
                }
                ours.in_flight_bytes += PACKET_BYTES;
                ours.rate.sent(PACKET_BYTES, now);
                let number = ours.in_flight.send(now);
                self.transmit(true, number);
            }
            let cubic = self.cubic.as_mut().filter(|cubic| (cubic.packets_in_flight as f64) < cubic.window);
            let number = cubic.map(|cubic| {
                cubic.packets_in_flight += 1;
                cubic.in_flight.send(now)
            });
            match number {
                Some(number) => self.transmit(false, number),
                None if !may_send => break,
                None => {}
            }
        }
        self.now_s += STEP_S;
    }

    fn run(&mut self, seconds: f64) -> Seen {
        let received = |model: &Model| {
            let cubic = model.cubic.as_ref().map_or(0, |cubic| cubic.received_packets * PACKET_BYTES as u64);
            (model.ours.received_bytes, cubic, model.ours.lost_packets)
        };
        let (begun, until_s) = (received(self), self.now_s + seconds);
        let mut queue_ms = 0.0_f64;
        while self.now_s < until_s {
            self.step();
            queue_ms = queue_ms.max((self.free_s - self.now_s) * 1e3);
        }
        let ended = received(self);
        let mbit = |bytes: u64| bytes as f64 * 8.0 / 1e6 / seconds;
        let lost_packets = ended.2 - begun.2;
        Seen { ours: mbit(ended.0 - begun.0), cubic: mbit(ended.1 - begun.1), queue_ms, lost_packets }
    }
}

#[test]
fn a_flow_fills_any_link_and_its_queue_stays_short() {
    for mbit in [40.0, 400.0] {
        for round_trip_ms in [20.0, 100.0, 200.0] {
            for loss_percent in [0.0, 0.01, 0.1, 1.0] {
                let mut model = Model::new(mbit, round_trip_ms, loss_percent, 1000.0);
                model.run(10.0);
                let seen = model.run(5.0);
                let context = format!("{mbit} Mbit/s, {round_trip_ms} ms, {loss_percent} %: {seen:?}");
                assert!(seen.ours > 0.9 * mbit, "the link is idle: {context}");
                assert!(seen.queue_ms < 25.0, "the queue is long: {context}");
            }
        }
    }
}

#[test]
fn a_queue_too_short_to_show_loses_little() {
    for (mbit, round_trip_ms) in [(20.0, 40.0), (100.0, 20.0)] {
        for queue_packets in [10.0, 30.0] {
            let mut model = Model::new(mbit, round_trip_ms, 0.0, queue_packets);
            model.run(10.0);
            let seen = model.run(20.0);
            let lost = seen.lost_packets as f64 * PACKET_BYTES as f64 * 8.0 / (mbit * 1e6 * 20.0);
            assert!(
                seen.ours > 0.85 * mbit && lost < 0.01,
                "{mbit} Mbit/s, {queue_packets}: {seen:?}, lost {lost}"
            );
        }
    }
}

#[test]
fn a_stopped_receiver_is_no_long_path() {
    for (mbit, round_trip_ms) in [(5.0, 10.0), (40.0, 10.0), (40.0, 100.0), (400.0, 20.0)] {
        for made_per_s in [None, Some(150.0)] {
            let mut model = Model::new(mbit, round_trip_ms, 0.0, 1000.0);
            model.made_per_s = made_per_s;
            model.run(5.0);
            model.stopped_until_s = model.now_s + 10.0;
            model.run(10.0);
            // A backlog of 1,500 packets takes at most this time at the rate of the link.
            let seen = model.run(1.0 + 18.0 / mbit);
            let backlog = 1500.0 * PACKET_BYTES as f64 * 8.0 / 1e6 / (1.0 + 18.0 / mbit);
            let expected = made_per_s.map_or(0.5 * mbit, |_| 0.7 * backlog.min(mbit));
            assert!(seen.ours > expected, "{mbit} Mbit/s, {round_trip_ms} ms, {made_per_s:?}: {seen:?}");
        }
    }
}

#[test]
fn a_slower_link_gets_a_short_queue_again() {
    for factor in [0.2, 0.4, 0.6, 0.8] {
        for round_trip_ms in [20.0, 100.0] {
            let mut model = Model::new(40.0, round_trip_ms, 0.0, 1000.0);
            model.run(15.0);
            model.bytes_per_s *= factor;
            model.run(10.0);
            let seen = model.run(10.0);
            let context = format!("factor {factor}, {round_trip_ms} ms: {seen:?}");
            assert!(seen.ours > 0.9 * 40.0 * factor && seen.queue_ms < 25.0, "{context}");
        }
    }
}

/// A link that is bad, then away, then good again. A cut is no short queue that a higher rate overflows.
#[test]
fn a_flow_catches_up_after_a_cut() {
    for (bad_s, cut_s) in [(0.0, 1.0), (0.0, 4.0), (3.0, 1.0), (3.0, 4.0), (3.0, 15.0), (8.0, 4.0)] {
        for made_per_s in [50.0, 100.0, 1000.0] {
            let mut model = Model::new(100.0, 10.0, 0.0, 1000.0);
            model.made_per_s = Some(made_per_s);
            model.run(5.0);
            (model.loss, model.delay_s, model.jitter_s) = (0.17, 0.02, 0.05);
            model.run(bad_s);
            model.loss = 1.0;
            model.run(cut_s);
            (model.loss, model.delay_s, model.jitter_s) = (0.0, 0.005, 0.0);
            let acknowledged = model.ours.received_bytes;
            // The last retransmission may be a while ago, because the timeout doubles.
            while model.ours.received_bytes == acknowledged {
                model.step();
            }
            let behind = |model: &Model| model.now_s * made_per_s - model.sent_packets as f64;
            model.run(1.0 + 1.3 * behind(&model) * WIRE_BYTES / model.bytes_per_s);
            let behind = behind(&model);
            assert!(
                behind < 0.1 * made_per_s,
                "{bad_s} s bad, cut for {cut_s} s: {behind} of {made_per_s} packets a second are still not sent"
            );
        }
    }
}

#[test]
fn a_flow_shares_a_link_with_cubic() {
    for (mbit, round_trip_ms, queue_packets) in [
        (40.0, 20.0, 1000.0),
        (40.0, 100.0, 1000.0),
        (40.0, 200.0, 1000.0),
        (100.0, 20.0, 300.0),
        (400.0, 20.0, 500.0),
    ] {
        let mut model = Model::new(mbit, round_trip_ms, 0.0, queue_packets);
        model.cubic = Some(Cubic::new());
        model.run(30.0);
        let seen = model.run(60.0);
        let context = format!("{mbit} Mbit/s, {round_trip_ms} ms, queue of {queue_packets}: {seen:?}");
        assert!(seen.ours > 0.3 * mbit && seen.cubic > 0.3 * mbit, "{context}");
    }
}

/// Pauses of the two processes are jitter: no single queueing delay shows the neighbour.
#[test]
fn a_flow_keeps_its_share_beside_cubic_with_jitter() {
    for seed in 1..8_u64 {
        for (mbit, queue_packets) in [(100.0, 200.0), (400.0, 600.0)] {
            for pauses in [(20.0, 0.01), (100.0, 0.005)] {
                let mut model = Model::new(mbit, 20.0, 0.0, queue_packets);
                model.random ^= seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
                model.pauses = pauses;
                model.cubic = Some(Cubic::new());
                model.run(20.0);
                let seen = model.run(20.0);
                let context = format!("seed {seed}, {mbit} Mbit/s, pauses {pauses:?}: {seen:?}");
                assert!(seen.ours > 0.15 * mbit && seen.cubic > 0.15 * mbit, "{context}");
            }
        }
    }
}

#[test]
fn a_flow_leaves_cubic_its_rate_where_random_loss_limits_it() {
    let run = |ours: bool| {
        let mut model = Model::new(100.0, 20.0, 1.0, 1000.0);
        model.cubic = Some(Cubic::new());
        if !ours {
            model.ours.in_flight_bytes = usize::MAX / 2;
        }
        model.run(10.0);
        model.run(60.0)
    };
    let (alone, beside) = (run(false), run(true));
    assert!(beside.cubic > 0.66 * alone.cubic && beside.ours > 80.0, "{alone:?}, {beside:?}");
}

#[test]
fn a_host_that_pauses_is_no_full_queue() {
    for seed in 100..260_u64 {
        for pause_s in [0.01, 0.03, 0.1, 0.25] {
            for loss_percent in [0.0, 5.0] {
                let mut model = Model::new(10.0, 40.0, loss_percent, 100.0);
                model.random ^= seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
                // Each process runs three quarters of the time.
                model.pauses = (0.5 / pause_s, pause_s);
                model.run(3.0);
                let seen = model.run(4.0);
                assert!(seen.ours > 2.0, "seed {seed}, {pause_s} s, {loss_percent} %: {seen:?}");
            }
        }
    }
}

#[test]
fn a_burst_after_a_pause_is_sent_at_the_pace_of_before() {
    for mbit in [20.0, 100.0] {
        for (round_trips, pause_s) in [(1.1, 0.5), (1.3, 1.0), (1.6, 1.0), (2.0, 5.0)] {
            let mut model = Model::new(mbit, 50.0, 0.0, 1000.0);
            model.run(5.0);
            let packets = (round_trips * 0.05 * model.bytes_per_s / WIRE_BYTES) as u64;
            for burst in 0..10 {
                model.made_packets = Some(model.sent_packets + 1);
                model.run(pause_s);
                let (made, begun_s) = (model.sent_packets + packets, model.now_s);
                model.made_packets = Some(made);
                while model.sent_packets < made {
                    model.step();
                }
                let (took_s, expected_s) = (model.now_s - begun_s, 0.05 * round_trips);
                assert!(
                    took_s < 1.5 * expected_s,
                    "{mbit} Mbit/s, pauses of {pause_s} s, burst {burst}: {took_s} s instead of {expected_s} s"
                );
                model.run(pause_s);
            }
        }
    }
}

#[test]
fn a_slow_processor_gets_no_window_that_it_cannot_use() {
    for round_trip_ms in [20.0, 100.0, 200.0] {
        for loss_percent in [0.0, 0.1, 1.0] {
            let mut model = Model::new(400.0, round_trip_ms, loss_percent, 1000.0);
            model.processor_mbit = Some(200.0);
            model.run(10.0);
            let seen = model.run(5.0);
            let on_path = 200e6 / 8.0 * (round_trip_ms / 1e3 + 0.05);
            let window = model.ours.rate.window() as f64;
            let context = format!("{round_trip_ms} ms, {loss_percent} %: {seen:?}, window {window}");
            assert!(seen.ours > 180.0 && window < 3.0 * on_path, "{context}");
        }
    }
}

#[test]
fn a_flow_is_limited_by_the_link_only_while_its_queue_is_seldom_empty() {
    const ROUND_TRIP: Duration = Duration::from_millis(20);
    let mut rate = RateControl::new();
    let mut received_bytes = 0;
    let mut exchange = |rate: &mut RateControl, sent: Time, is_idle: bool| {
        rate.sent(1000, sent);
        received_bytes += 1000;
        let now = sent.after(ROUND_TRIP);
        let sample = Sample {
            round_trip: Some(ROUND_TRIP),
            came: now,
            received_bytes,
            acknowledged: 1000,
            lost: 0,
            room: usize::MAX,
            is_limited: !is_idle,
            is_idle,
        };
        rate.on_receipt(&sample, now);
        rate.view().is_idle
    };
    // A message a second.
    assert!((1..30).all(|second| exchange(&mut rate, Time::from_millis(1000 * second), true)));
    let busy = (0..500).map(|count| exchange(&mut rate, Time::from_millis(30_000 + 10 * count), false));
    assert!(!busy.last().unwrap(), "five seconds with a full queue");
}
