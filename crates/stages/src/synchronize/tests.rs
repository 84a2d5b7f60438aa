use super::Synchronize;
use crate::sound::Sound;
use crate::sound::tests::{steepest_step, tone};
use contract::{Fill, Format, Message, Outbox, Pair, Port, Shape, Site, Stage, StageError, Time};
use netsim::Params;
use proptest::prelude::*;
use std::time::Duration;
use testkit::joint::{JointSetting, Passage, run};
use testkit::stage::{TwoHalves, conforms, options, site, steady};
use wire::formats::audio::{SampleFormat, SampleSpec};

#[test]
fn it_conforms() {
    conforms(&Synchronize, &[("flows", "3")], &Format::Motion);
    conforms(&Synchronize, &[("flows", "3"), ("align", "false"), ("apart", "true")], &Format::Evdev);
    conforms(&Synchronize, &[("flows", "3"), ("silent", "wait"), ("wait", "50ms")], &Format::Bytes);
    conforms(&Synchronize, &[("flows", "3"), ("silent", "last"), ("silence", "20ms")], &Format::Bytes);
    conforms(&Synchronize, &[("flows", "64"), ("late", "drop"), ("window", "1")], &Format::Bytes);
    conforms(&Synchronize, &[("flows", "3"), ("wait", "0s")], &Format::Bytes);
}

#[test]
fn its_shape_is_a_joint() {
    assert_eq!(Synchronize.shape(&options(&Synchronize, &[])), Shape::Joint);
}

/// A sink half with its outbox.
struct Rig {
    sink: Box<dyn Stage>,
    out: Outbox,
}

impl Rig {
    /// With `align=false`.
    fn ordering(given: &[(&str, &str)]) -> Self {
        let given = [&[("align", "false")], given].concat();
        let sink = Synchronize.sink(&options(&Synchronize, &given), &Format::Bytes, &site(1)).unwrap();
        Rig { sink, out: Outbox::default() }
    }

    /// Flow `port` brings a message created at `created_ms` at `now_ms`; returns flow and creation
    /// time of each message released.
    fn push(&mut self, port: u16, created_ms: u64, now_ms: u64) -> Vec<(u8, u64)> {
        let message = Message::new(Time::from_millis(created_ms), vec![port as u8]);
        self.sink.handle(Port(port), message, Time::from_millis(now_ms), &mut self.out).unwrap();
        self.released()
    }

    /// Lets time pass until `now_ms`.
    fn run_until(&mut self, now_ms: u64) -> Vec<(u8, u64)> {
        let now = Time::from_millis(now_ms);
        while let Some(at) = self.sink.poll_timeout().filter(|at| *at <= now) {
            self.sink.handle_timeout(at, &mut self.out).unwrap();
        }
        self.released()
    }

    fn released(&mut self) -> Vec<(u8, u64)> {
        let released = self.out.messages.drain(..);
        released.map(|(_, m)| (m.body.peek_front::<1>().unwrap()[0], m.created.0 / 1_000_000)).collect()
    }

    fn figure(&self, name: &str) -> f64 {
        self.sink.report().iter().find(|(known, _)| *known == name).unwrap().1
    }
}

/// A killed worker holds messages that the source does not send again: its successor has them from the checkpoint.
#[test]
fn a_successor_releases_the_messages_that_are_held() {
    for given in [&[][..], &[("align", "false")], &[("silent", "last")]] {
        let made = || Synchronize.sink(&options(&Synchronize, given), &Format::Bytes, &site(1)).unwrap();
        for flows in [1, 2] {
            let mut rig = Rig { sink: made(), out: Outbox::default() };
            let (mut sent, mut released, mut held_most) = (Vec::new(), Vec::new(), 0);
            for number in 0..200u64 {
                // Each message is 0 to 60 ms on its way, but keeps its place.
                let (port, now_ms) = ((number % flows) as u16, 1000 + 10 * number);
                let created_ms = now_ms - 60 + 6 * (number % 10);
                sent.push((port as u8, created_ms));
                released.extend(rig.run_until(now_ms));
                released.extend(rig.push(port, created_ms, now_ms));
                held_most = held_most.max(rig.sink.held());
                let checkpoint = rig.sink.checkpoint().unwrap();
                rig.sink = made();
                rig.sink.restore(checkpoint.clone()).unwrap();
                assert_eq!(rig.sink.checkpoint(), Some(checkpoint), "restored to something else");
            }
            for port in 0..flows as u16 {
                rig.sink.handle_end(Port(port), Time::from_millis(4000), &mut rig.out).unwrap();
            }
            released.extend(rig.released());
            released.sort_unstable();
            sent.sort_unstable();
            assert_eq!(released, sent, "{given:?}, {flows} flows");
            assert!(held_most > 1 || !given.is_empty(), "nothing was held");
        }
    }
}

#[test]
fn a_refused_checkpoint_leaves_the_half_whole() {
    // Port, horizon, arrival, lead, whether it ended, messages, repeatable; then the message.
    let flow: &[u8] = &[0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 7];
    let (once, twice) = ([&[0; 4][..], flow].concat(), [&[0; 4][..], flow, flow].concat());
    let mut rig = Rig::ordering(&[]);
    rig.sink.restore(twice.into()).unwrap_err();
    assert_eq!(rig.sink.held(), 0);
    for port in [0, 1] {
        rig.sink.handle_end(Port(port), Time::from_millis(220), &mut rig.out).unwrap();
    }
    assert_eq!(rig.released(), []);
    rig.sink.restore(once.into()).unwrap();
    assert_eq!(rig.sink.held(), 1);
}

#[test]
fn messages_leave_in_order_of_creation_across_flows() {
    let mut rig = Rig::ordering(&[("flows", "3")]);
    assert_eq!(rig.push(0, 100, 110), [(0, 100)], "an unknown flow is not awaited");
    assert_eq!(rig.push(1, 105, 111), []);
    assert_eq!(rig.push(0, 120, 125), [(1, 105)]);
    assert_eq!(rig.push(1, 116, 130), [(1, 116)]);
    assert_eq!(rig.push(1, 118, 131), [(1, 118)]);
    assert_eq!(rig.push(1, 120, 132), [(0, 120), (1, 120)]);
    assert_eq!(rig.sink.held(), 0);
    assert_eq!(rig.sink.poll_timeout(), None);
}

#[test]
fn no_message_is_held_longer_than_wait() {
    let mut rig = Rig::ordering(&[("wait", "50ms"), ("silent", "wait")]);
    rig.push(0, 100, 100);
    rig.push(1, 101, 101);
    rig.run_until(151);
    assert_eq!(rig.push(0, 200, 210), []);
    assert_eq!(rig.push(0, 201, 220), []);
    assert_eq!(rig.run_until(259), []);
    assert_eq!(rig.run_until(260), [(0, 200)]);
    assert_eq!(rig.push(1, 150, 261), [(1, 150)], "late, released at once");
    assert_eq!((rig.figure("late"), rig.figure("held")), (1.0, 1.0));
    assert_eq!(rig.push(0, u64::MAX / 1_000_000, 262), []);
    assert_eq!(rig.run_until(312).len(), 2, "an impossible time is bounded");
    assert_eq!(rig.push(0, 263, 320).len(), 0);
    assert_eq!(rig.run_until(371).len(), 1, "and holds its flow back no longer");
}

#[test]
fn late_messages_may_be_dropped() {
    let mut rig = Rig::ordering(&[("late", "drop")]);
    assert_eq!(rig.push(0, 100, 110), [(0, 100)]);
    assert_eq!(rig.push(1, 90, 111), []);
    assert_eq!(rig.out.drops.iter().map(|drop| drop.count).sum::<u64>(), 1);
}

#[test]
fn a_silent_flow_is_skipped_until_its_next_message() {
    let mut rig = Rig::ordering(&[("wait", "10s"), ("silence", "100ms")]);
    rig.push(0, 100, 100);
    assert_eq!(rig.push(1, 100, 101), [(1, 100)]);
    assert_eq!(rig.push(0, 150, 150), []);
    assert_eq!(rig.run_until(200), []);
    assert_eq!(rig.run_until(201), [(0, 150)], "flow 1 has been silent for 100 ms");
    assert_eq!(rig.push(0, 210, 210), [(0, 210)], "and is not awaited");
    assert_eq!(rig.push(1, 220, 220), []);
    assert_eq!(rig.push(0, 230, 230), [(1, 220)]);
    assert_eq!(rig.run_until(300), [], "it is awaited again");
}

#[test]
fn the_last_message_of_a_silent_flow_may_be_repeated() {
    let mut rig = Rig::ordering(&[("silent", "last"), ("silence", "100ms"), ("apart", "true")]);
    rig.push(1, 95, 100);
    let mut repeats = Vec::new();
    for now_ms in (100..1000).step_by(10) {
        let message = Message::new(Time::from_millis(now_ms - 5), vec![0]);
        let now = Time::from_millis(now_ms);
        rig.sink.handle(Port(0), message, now, &mut rig.out).unwrap();
        while let Some(at) = rig.sink.poll_timeout().filter(|at| *at < now.after(Duration::from_millis(10))) {
            rig.sink.handle_timeout(at, &mut rig.out).unwrap();
        }
        repeats.extend(rig.out.messages.drain(..).filter(|(_, m)| m.attributes.stale));
    }
    let created: Vec<u64> = repeats.iter().map(|(_, m)| m.created.0 / 1_000_000).collect();
    assert_eq!(created, [195, 295, 395, 495, 595, 695, 795, 895]);
    assert!(repeats.iter().all(|(port, m)| *port == Port(1) && m.body.peek_front() == Some([1])));
    // Both are silent: repetition stops.
    assert!(rig.run_until(1_000_000).len() <= 2);
    assert_eq!(rig.sink.poll_timeout(), None);
}

#[test]
fn repetitions_missed_in_a_pause_are_left_out() {
    let mut rig = Rig::ordering(&[("silent", "last"), ("silence", "100ms"), ("apart", "true")]);
    for port in [0, 1] {
        rig.push(port, 95, 100);
    }
    assert_eq!(rig.run_until(1000), []);
    let after_hours_ms = 18_000_030;
    assert_eq!(rig.push(0, after_hours_ms - 5, after_hours_ms), [(0, after_hours_ms - 5)]);
    let now = Time::from_millis(after_hours_ms);
    while rig.sink.poll_timeout().is_some_and(|at| at <= now) {
        rig.sink.handle_timeout(now, &mut rig.out).unwrap();
    }
    assert_eq!(rig.released(), [(1, 17_999_995)]);
    assert_eq!(rig.sink.poll_timeout(), Some(Time::from_millis(18_000_100)));
}

#[test]
fn a_message_from_before_a_gap_is_not_repeated() {
    let mut rig = Rig::ordering(&[("silent", "last"), ("silence", "100ms"), ("apart", "true")]);
    let repeats = |rig: &mut Rig, range_ms: std::ops::Range<u64>| {
        let mut all = Vec::new();
        for now_ms in range_ms.step_by(10) {
            all.extend(rig.run_until(now_ms));
            all.extend(rig.push(0, now_ms, now_ms));
        }
        all.retain(|(port, _)| *port == 1);
        all
    };
    rig.push(1, 100, 100);
    assert_eq!(repeats(&mut rig, 110..350), [(1, 200), (1, 300)]);
    rig.sink.handle_gap(Port(0), Time::from_millis(350), &mut rig.out).unwrap();
    assert_eq!(repeats(&mut rig, 350..450), [(1, 400)], "the gap is of the other flow");
    rig.sink.handle_gap(Port(1), Time::from_millis(450), &mut rig.out).unwrap();
    assert_eq!(repeats(&mut rig, 450..1000), []);
    rig.push(1, 1000, 1000);
    assert_eq!(repeats(&mut rig, 1010..1150), [(1, 1000), (1, 1100)], "the message and its repetition");
}

#[test]
fn a_flow_that_ended_is_not_waited_for() {
    let mut rig = Rig::ordering(&[("silent", "wait"), ("wait", "10s")]);
    rig.push(0, 100, 100);
    assert_eq!(rig.push(1, 100, 101), [(1, 100)]);
    assert_eq!(rig.push(0, 150, 150), []);
    rig.sink.handle_end(Port(1), Time::from_millis(160), &mut rig.out).unwrap();
    assert_eq!(rig.released(), [(0, 150)]);
    assert_eq!(rig.push(0, 170, 170), [(0, 170)]);
}

#[test]
fn the_bounds_hold() {
    let mut rig = Rig::ordering(&[("window", "2"), ("silent", "wait")]);
    rig.push(1, 50, 50);
    rig.push(0, 51, 51);
    assert_eq!(rig.push(0, 52, 52), []);
    assert_eq!(rig.push(0, 53, 53), [(0, 51)]);
    assert_eq!(rig.figure("early"), 1.0);
    let message = Message::new(Time::ZERO, vec![0]);
    let error = rig.sink.handle(Port(2), message, Time::ZERO, &mut rig.out);
    assert_eq!(error, Err(StageError::Port(Port(2))), "more flows than were agreed on");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Flows with any delays are merged in order of creation if `wait` covers the difference.
    #[test]
    fn flows_are_merged_in_order(
        delays_ms in prop::collection::vec((0u64..80, 0u64..80), 2..5),
        align in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let lanes: Vec<Params> = delays_ms
            .iter()
            .map(|(delay, jitter)| Params {
                jitter_ns: jitter * 1_000_000, ..steady(Duration::from_millis(*delay))
            })
            .collect();
        let flows = lanes.len();
        let given = [("flows", "64"), ("wait", "300ms"), ("align", if align { "true" } else { "false" })];
        let mut run = TwoHalves::with_lanes(&Synchronize, &given, &Format::Motion, &lanes, seed);
        for number in 0..300u64 {
            let message = Message::new(run.now, number.to_le_bytes().to_vec());
            run.push_at(number as usize % flows, message);
            run.run_until(run.now.after(Duration::from_millis(3)));
        }
        run.end();
        prop_assert_eq!((run.received.len(), run.dropped()), (300, 0));
        let settled = run.received.iter().map(|(_, m)| m.created).filter(|created| *created > Time::from_millis(1400));
        // A flow and its delay are known only after its first message.
        prop_assert!(align || settled.is_sorted());
    }
}

/// Median and 99th percentile, milliseconds.
fn percentiles(skew: &[(Time, Duration)]) -> [f64; 2] {
    let mut spreads: Vec<Duration> = skew.iter().map(|(_, spread)| *spread).collect();
    spreads.sort();
    [50, 99].map(|percent| spreads[(spreads.len() - 1) * percent / 100].as_secs_f64() * 1e3)
}

/// Two devices at 62.5 Hz for ten minutes; one clock is 3 ms per minute fast.
fn two_devices(jitter_ms: u64, compares_clocks: bool) -> JointSetting {
    JointSetting {
        drifts_ppm: vec![0, 50],
        period: Duration::from_millis(16),
        updates: 37_500,
        link: Params { jitter_ns: jitter_ms * 1_000_000, ..steady(Duration::from_millis(20)) },
        compares_clocks,
        seed: 1,
    }
}

#[test]
fn skew_of_two_devices_whose_clocks_drift() {
    let settle = Duration::from_secs(60);
    let aligned = run(&Synchronize, &[("apart", "true")], &two_devices(80, true));
    let before = percentiles(&aligned.skew(settle, |passage: &Passage| passage.came));
    let after = percentiles(&aligned.skew(settle, |passage: &Passage| passage.left));
    assert!(before[0] > 8.0 && before[1] > 40.0, "{before:?}");
    assert!(after[0] < 4.0 && after[1] < 12.0, "{after:?}");
    let drifting = run(&Synchronize, &[("apart", "true")], &two_devices(80, false));
    let last = percentiles(&drifting.skew(Duration::from_secs(570), |passage: &Passage| passage.left));
    assert!((20.0..40.0).contains(&last[0]), "clocks that are not compared drift apart: {last:?}");
}

#[test]
fn skew_is_never_worse_than_without_the_pair() {
    for jitter_ms in [0, 2, 5, 20, 80, 160] {
        let setting = JointSetting { updates: 6000, seed: jitter_ms, ..two_devices(jitter_ms, true) };
        let aligned = run(&Synchronize, &[("apart", "true")], &setting);
        let settle = Duration::from_secs(20);
        let before = percentiles(&aligned.skew(settle, |passage: &Passage| passage.came));
        let after = percentiles(&aligned.skew(settle, |passage: &Passage| passage.left));
        // The comparison of clocks over the same network has an error of its own.
        let bound = |before: f64| before.max(1.0);
        assert!(
            after[0] <= bound(before[0]) && after[1] <= bound(before[1]),
            "J={jitter_ms}: {before:?} {after:?}"
        );
    }
}

/// A microphone and a camera of one conversation, over networks with loss, different delay and jitter, and a cut of both: at
/// each picture, the sound that leaves at the same time was created less than 20 ms before or after it.
#[test]
fn sound_and_pictures_stay_in_step() {
    /// The seconds of the cut.
    const CUT: (u64, u64) = (30, 35);
    let [quantum, frame] = [Duration::from_millis(5), Duration::from_millis(33)];
    for seed in 0..5 {
        let lanes = [(20, 60), (60, 100)].map(|(delay_ms, jitter_ms)| Params {
            jitter_ns: jitter_ms * 1_000_000,
            loss_ppm: 20_000,
            ..steady(Duration::from_millis(delay_ms))
        });
        let given = [("apart", "true"), ("wait", "400ms")];
        let mut run = TwoHalves::with_lanes(&Synchronize, &given, &Format::Audio, &lanes, seed);
        let (mut sound_at, mut picture_at, started) = (run.now, run.now, run.now);
        while run.now < started.after(Duration::from_secs(60)) {
            let now = sound_at.min(picture_at);
            run.run_until(now);
            let is_cut = (CUT.0..CUT.1).contains(&now.since(started).as_secs());
            if sound_at <= now {
                if !is_cut {
                    run.push_at(0, Message::new(now, vec![0]));
                }
                sound_at = now.after(quantum);
            }
            if picture_at <= now {
                if !is_cut {
                    run.push_at(1, Message::new(now, vec![1]));
                }
                picture_at = now.after(frame);
            }
        }
        let left = |flow: u16| {
            let flow = move |(_, port): &(_, &Port)| port.0 == flow;
            run.received.iter().zip(&run.ports).filter(flow).map(|((at, message), _)| (*at, message.created))
        };
        let sound: Vec<(Time, Time)> = left(0).collect();
        let pictures = left(1).filter(|(at, _)| *at > started.after(Duration::from_secs(10)));
        let mut worst = Duration::ZERO;
        let mut count = 0;
        for (at, created) in pictures {
            let next = sound.partition_point(|(sound_at, _)| *sound_at <= at);
            let (sound_at, sound_created) = sound[next - 1];
            // The sample that plays as the picture appears.
            let playing = sound_created.after(at.since(sound_at));
            worst = worst.max(Duration::from_nanos(playing.signed_since(created).unsigned_abs()));
            count += 1;
        }
        println!("seed {seed}: {count} pictures, {worst:?} apart");
        assert!(
            count > 1200 && worst < Duration::from_millis(20),
            "seed {seed}: {count} pictures, {worst:?} apart"
        );
    }
}

/// The messages of a sink with their release times.
type Released = Vec<(Time, Port, Message)>;

/// Sound of quanta of 5 ms beside pictures that take as long as `picture_age_ms` says for the time, from 1 s to `end_ms`. Checks that
/// the sound has neither a gap nor a pause nor a jump, and that a program that plays it never holds more than `held_max`. The node of
/// the sound says that it plays a message as much later as `lead_ms` says for the time.
fn sound_beside_pictures(
    picture_age_ms: impl Fn(u64) -> u64,
    lead_ms: impl Fn(u64) -> u64,
    end_ms: u64,
    held_max: Duration,
) -> (Rig, Released) {
    const SPEC: SampleSpec = SampleSpec { format: SampleFormat::F32, channels: 1, rate_hz: 48_000 };
    const QUANTUM: usize = 240;
    let site = Site { inputs: vec![Format::Audio, Format::Video], ..site(1) };
    let given = [("apart", "true")];
    let sink = Synchronize.sink(&options(&Synchronize, &given), &Format::Audio, &site).unwrap();
    let mut rig = Rig { sink, out: Outbox::default() };
    let mut released = Released::new();
    for ms in 1000..end_ms {
        let now = Time::from_millis(ms);
        while let Some(at) = rig.sink.poll_timeout().filter(|at| *at <= now) {
            rig.sink.handle_timeout(at, &mut rig.out).unwrap();
            released.extend(rig.out.messages.drain(..).map(|(port, message)| (at, port, message)));
        }
        if ms % 5 == 0 {
            let position = (ms - 1000) * 48;
            let sound = Sound { spec: SPEC, position, samples: tone(&SPEC, position, QUANTUM) };
            rig.sink
                .handle(Port(0), sound.into_message(Time::from_millis(ms - 20)), now, &mut rig.out)
                .unwrap();
            let lead = Duration::from_millis(lead_ms(ms));
            let fill = Fill { held: lead, target: lead, lead, rate_hz: SPEC.rate_hz };
            rig.sink.handle_fill(Port(0), fill, now, &mut rig.out).unwrap();
        }
        if ms % 33 == 0 {
            let picture = Message::new(Time::from_millis(ms - picture_age_ms(ms)), vec![1; 40]);
            rig.sink.handle(Port(1), picture, now, &mut rig.out).unwrap();
        }
        released.extend(rig.out.messages.drain(..).map(|(port, message)| (now, port, message)));
    }
    let sound: Vec<(Time, Sound)> = released
        .iter()
        .filter(|(_, port, _)| *port == Port(0))
        .map(|(at, _, message)| (*at, Sound::parse(&message.body).unwrap()))
        .collect();
    let (mut samples, mut position, mut ends) = (Vec::new(), sound[0].1.position, sound[0].0);
    for (at, quantum) in &sound {
        assert_eq!(quantum.position, position, "no gap");
        // A program that plays holds a quantum.
        assert!(*at <= ends.after(Duration::from_millis(5)), "a pause of {:?} at {at:?}", at.since(ends));
        assert!(ends <= at.after(held_max), "{:?} wait to be played at {at:?}", ends.since(*at));
        ends = ends.max(*at).after(crate::sound::duration(&SPEC, quantum.frames()));
        position += quantum.frames() as u64;
        samples.extend_from_slice(&quantum.samples);
    }
    // The tone itself moves by 0.03 a sample. The first quantum is faded in.
    let step = steepest_step(&samples[QUANTUM..], 1);
    assert!(step < 0.05, "a jump of {step}");
    (rig, released)
}

/// A late picture makes the common delay rise: the sound has neither a pause nor a jump.
#[test]
fn sound_plays_on_while_the_common_delay_rises() {
    // From the third second on, the network needs 120 ms more for pictures.
    let picture_age_ms = |ms| if ms < 3000 { 60 } else { 180 };
    let (rig, released) = sound_beside_pictures(picture_age_ms, |_| 0, 9000, Duration::from_millis(20));
    assert_eq!(rig.figure("delay_ms"), 180.0, "the delay is that of the pictures");
    let last = |port: u16| {
        released.iter().rfind(|(_, from, _)| from.0 == port).map(|(at, _, message)| at.since(message.created))
    };
    assert_eq!([last(0), last(1)], [Some(Duration::from_millis(180)); 2]);
}

/// Pictures were slow for a while: sound and pictures are not late for minutes because of it.
#[test]
fn sound_plays_on_while_an_excess_of_the_common_delay_falls() {
    let picture_age_ms = |ms| if ms < 6000 { 200 } else { 60 };
    let (rig, released) = sound_beside_pictures(picture_age_ms, |_| 0, 20_000, Duration::from_millis(20));
    let delay_ms = rig.figure("delay_ms");
    assert!((60.0..=100.0).contains(&delay_ms), "a delay of {delay_ms} ms");
    let (at, _, sound) = released.iter().rfind(|(_, from, _)| from.0 == 0).unwrap();
    let age = at.since(sound.created);
    assert!(age <= Duration::from_millis(101), "sound of {age:?} ago");
}

/// The node of the sound plays it later: the sound is released earlier, without a pause or a jump, and so are pictures and sound in step.
#[test]
fn sound_that_waits_in_its_node_is_released_earlier() {
    let held_max = Duration::from_millis(80);
    for (picture_age_ms, leads_ms) in [(100, [40, 40]), (30, [40, 40]), (100, [60, 20]), (60, [20, 70])] {
        let lead_ms = |ms: u64| if ms < 3000 { 0 } else { leads_ms[usize::from(ms > 6000)] };
        let (_, released) = sound_beside_pictures(|_| picture_age_ms, lead_ms, 90_000, held_max);
        let age = |port: u16| {
            let last = released.iter().rfind(|(_, from, _)| from.0 == port);
            last.map(|(at, _, message)| at.since(message.created)).unwrap()
        };
        let lead = Duration::from_millis(leads_ms[1]);
        assert_eq!(age(0) + lead, age(1), "pictures of {picture_age_ms} ms, leads of {leads_ms:?} ms");
        assert_eq!(age(1), Duration::from_millis(picture_age_ms.max(20 + leads_ms[1])));
    }
}

/// The node of the sound plays it sooner than before: the delay of the other flows is at once the one that is needed.
#[test]
fn a_lead_that_falls_leaves_no_excess() {
    for (picture_age_ms, delay_ms) in [(30, 40.0), (100, 100.0)] {
        let lead_ms = |ms: u64| if ms < 6000 { 60 } else { 20 };
        let held_max = Duration::from_millis(80);
        let (rig, _) = sound_beside_pictures(|_| picture_age_ms, lead_ms, 8000, held_max);
        assert_eq!(rig.figure("delay_ms"), delay_ms, "pictures of {picture_age_ms} ms");
    }
}

#[test]
fn an_excess_of_the_common_delay_falls_without_sound() {
    let sink = Synchronize.sink(&options(&Synchronize, &[]), &Format::Bytes, &site(1)).unwrap();
    let mut rig = Rig { sink, out: Outbox::default() };
    for ms in (1000..20_000).step_by(10) {
        rig.run_until(ms);
        rig.push(0, ms - 20, ms);
        rig.push(1, ms - if ms < 6000 { 200 } else { 60 }, ms);
    }
    let delay_ms = rig.figure("delay_ms");
    assert!((60.0..=100.0).contains(&delay_ms), "a delay of {delay_ms} ms");
}
