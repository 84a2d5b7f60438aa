use super::Buffer;
use crate::sound::Sound;
use crate::sound::tests::{segmental_snr_db, steepest_step, tone, voice};
use contract::{Format, Half, Message, Time};
use netsim::Params;
use proptest::prelude::*;
use std::time::Duration;
use testkit::stage::{TwoHalves, conforms, steady};
use wire::formats::audio::{SampleFormat, SampleSpec};

const MONO: SampleSpec = SampleSpec { format: SampleFormat::F32, channels: 1, rate_hz: 48_000 };
/// Frames of a quantum: 5 ms.
const QUANTUM: usize = 240;
const AUTO: [(&str, &str); 2] = [("mode", "play"), ("delay", "auto")];

#[test]
fn it_conforms() {
    for delay in ["0s", "50ms", "auto"] {
        conforms(&Buffer, &[("mode", "play"), ("delay", delay)], &Format::Audio);
    }
}

/// A source that sends `samples` over a modelled link to the sink half.
struct Rig {
    run: TwoHalves,
    samples: Vec<f32>,
    sent: usize,
}

impl Rig {
    fn new(given: &[(&str, &str)], samples: Vec<f32>, link: Params, seed: u64) -> Rig {
        Rig { run: TwoHalves::new(&Buffer, given, &Format::Audio, link, seed), samples, sent: 0 }
    }

    fn seconds(&mut self, seconds: f64) {
        let end = self.sent + (seconds * 48_000.0) as usize;
        while self.sent < end.min(self.samples.len()) {
            self.quantum();
        }
    }

    fn quantum(&mut self) {
        let samples = self.samples[self.sent..(self.sent + QUANTUM).min(self.samples.len())].to_vec();
        let sound = Sound { spec: MONO, position: self.sent as u64, samples };
        self.sent += sound.frames();
        self.run.push(sound.into_message(self.run.now));
        self.run.run_until(self.run.now.after(Duration::from_millis(5)));
    }

    /// The device records for the time of all these quanta, and then hands them over at once.
    fn burst(&mut self, quanta: usize, frames: usize) {
        let began = self.run.now;
        let time = |frames| crate::sound::duration(&MONO, frames);
        self.run.run_until(began.after(time(quanta * frames)));
        for number in 0..quanta {
            let samples = self.samples[self.sent..self.sent + frames].to_vec();
            let sound = Sound { spec: MONO, position: self.sent as u64, samples };
            self.sent += frames;
            self.run.push(sound.into_message(began.after(time(number * frames))));
        }
    }

    /// The released sound from `skip` on, and the largest time by which it was released late: after all sound before it ended.
    fn released(&self, skip: Time) -> (Vec<f32>, Duration) {
        let (mut samples, mut latest) = (Vec::new(), Duration::ZERO);
        let mut ends: Option<Time> = None;
        for (at, message) in self.run.received.iter().filter(|(at, _)| *at >= skip) {
            let sound = Sound::parse(&message.body).unwrap();
            latest = latest.max(ends.map_or(Duration::ZERO, |ends| at.since(ends)));
            let begins = ends.map_or(*at, |ends| ends.max(*at));
            ends = Some(begins.after(crate::sound::duration(&MONO, sound.frames())));
            samples.extend(sound.samples);
        }
        (samples, latest)
    }

    fn figure(&self, name: &str) -> f64 {
        self.run.figure(Half::Sink, name)
    }
}

fn link(delay_ms: u64, jitter_ms: u64, loss_ppm: u32) -> Params {
    let steady = steady(Duration::from_millis(delay_ms));
    Params { jitter_ns: jitter_ms * 1_000_000, loss_ppm, ..steady }
}

#[test]
fn a_quiet_network_passes_sound_unchanged_and_at_once() {
    let samples = voice(&MONO, 3.0);
    let mut rig = Rig::new(&AUTO, samples.clone(), link(3, 0, 0), 1);
    rig.seconds(3.0);
    rig.run.run_until(rig.run.now.after(Duration::from_secs(1)));
    let (heard, _) = rig.released(Time::ZERO);
    // The start is faded in, and the end fades out.
    assert_eq!(heard[QUANTUM..samples.len()], samples[QUANTUM..]);
    assert_eq!((rig.figure("late"), rig.figure("splices"), rig.figure("delay_ms")), (0.0, 0.0, 0.0));
}

/// A microphone with a period of up to 8,192 frames.
#[test]
fn quanta_that_come_in_bursts_are_released_evenly() {
    for (quanta, frames, jitter_ms) in [(8, 128, 0), (8, 1024, 0), (64, 128, 0), (8, 1024, 2)] {
        let mut rig = Rig::new(&AUTO, voice(&MONO, 20.0), link(3, jitter_ms, 0), 7);
        let [begun, later] = [5, 19].map(|seconds| {
            while rig.sent < 48_000 * seconds {
                rig.burst(quanta, frames);
            }
            (rig.run.now, rig.figure("concealed"), rig.figure("late"))
        });
        let case = format!("{quanta} quanta of {frames}, {jitter_ms} ms of jitter");
        assert_eq!((later.1, later.2), (begun.1, begun.2), "{case}: concealed, late");
        let (_, latest) = rig.released(begun.0);
        assert!(latest < Duration::from_micros(100), "{case}: sound paused for {latest:?}");
    }
}

#[test]
fn a_lost_quantum_is_concealed_at_its_time() {
    for loss_ppm in [10_000, 50_000] {
        let samples = voice(&MONO, 8.0);
        let mut rig =
            Rig::new(&[("mode", "play"), ("delay", "20ms")], samples.clone(), link(3, 2, loss_ppm), 3);
        rig.seconds(8.0);
        let (heard, latest) = rig.released(Time::ZERO);
        assert!(rig.figure("concealed") > 0.0 && rig.figure("late") == 0.0);
        assert!(latest < Duration::from_millis(2), "{loss_ppm}: sound paused for {latest:?}");
        // The same losses with silence instead.
        let mut silent = vec![0.0; samples.len()];
        for (_, message) in rig.run.received.iter().filter(|(_, message)| !message.attributes.stale) {
            let sound = Sound::parse(&message.body).unwrap();
            let at = sound.position as usize;
            silent[at..at + sound.frames()].copy_from_slice(&samples[at..at + sound.frames()]);
        }
        let frames = heard.len().min(samples.len());
        let ratios =
            [&heard, &silent].map(|heard| segmental_snr_db(&samples[..frames], &heard[..frames], 48_000));
        assert!(ratios[0] > ratios[1] + 0.05, "{loss_ppm}: {} dB, {} dB with silence", ratios[0], ratios[1]);
    }
}

#[test]
fn a_burst_fades_out_and_in_without_a_click() {
    let samples = tone(&MONO, 0, 48_000 * 3);
    let mut rig = Rig::new(&[("mode", "play"), ("delay", "10ms")], samples, link(3, 0, 0), 1);
    rig.seconds(1.0);
    rig.run.configure(link(3, 0, 1_000_000));
    rig.seconds(0.2);
    rig.run.configure(link(3, 0, 0));
    rig.seconds(1.0);
    let (heard, latest) = rig.released(Time::ZERO);
    // The sound ends 60 ms into the burst, and the device is silent for the rest.
    assert!((130..150).contains(&latest.as_millis()), "{latest:?}");
    let slope = std::f32::consts::TAU * crate::sound::tests::TONE_HZ as f32 / 48_000.0 * 0.5;
    assert!(steepest_step(&heard, 1) < slope * 1.5);
    // The position keeps the gap.
    let positions = rig.run.received.iter().map(|(_, message)| Sound::parse(&message.body).unwrap().position);
    assert!(positions.collect::<Vec<_>>().is_sorted());
}

/// 10 s of 100 ms jitter: within 30 s the delay is as before, up to the shortest piece that can be left out.
#[test]
fn the_delay_comes_down_after_jitter() {
    for (quiet_jitter_ms, seed) in [(0, 1), (0, 2), (1, 5), (1, 6)] {
        let quiet = link(3, quiet_jitter_ms, 0);
        let mut rig = Rig::new(&AUTO, tone(&MONO, 0, 48_000 * 60), quiet.clone(), seed);
        rig.seconds(10.0);
        let before = rig.figure("delay_ms");
        rig.run.configure(link(3, 100, 0));
        rig.seconds(10.0);
        let during = rig.figure("delay_ms");
        assert!(during > 60.0, "seed {seed}: {during} ms");
        rig.run.configure(quiet);
        let end = rig.run.now;
        rig.seconds(30.0);
        let after = rig.figure("delay_ms");
        assert!(
            after < before + 2.6,
            "seed {seed}: {before} ms, {during} ms with jitter, {after} ms 30 s later"
        );
        let (heard, latest) = rig.released(end.after(Duration::from_secs(1)));
        assert!(latest < Duration::from_millis(2), "seed {seed}: sound paused for {latest:?}");
        let slope = std::f32::consts::TAU * crate::sound::tests::TONE_HZ as f32 / 48_000.0 * 0.5;
        assert!(rig.figure("splices") > 5.0 && steepest_step(&heard, 1) < slope * 1.3);
    }
}

#[test]
fn an_interruption_does_not_delay_the_sound_after_it() {
    let samples = tone(&MONO, 0, 48_000 * 30);
    let mut rig = Rig::new(&AUTO, samples, link(3, 1, 0), 5);
    rig.seconds(10.0);
    // The network holds everything for 800 ms, as TCP does after a loss.
    rig.run.configure(Params { jitter_ns: 0, ..steady(Duration::from_millis(800)) });
    rig.quantum();
    rig.run.configure(link(3, 1, 0));
    rig.seconds(5.0);
    assert!(rig.figure("delay_ms") < 50.0, "{} ms", rig.figure("delay_ms"));
}

/// An outage that is longer than the delays that `auto` remembers.
#[test]
fn a_quantum_of_an_outage_delays_none_behind_it() {
    let mut rig = Rig::new(&AUTO, tone(&MONO, 0, 48_000 * 30), link(3, 0, 0), 5);
    rig.seconds(5.0);
    rig.run.configure(steady(Duration::from_secs(15)));
    rig.quantum();
    rig.run.run_until(rig.run.now.after(Duration::from_secs(15)));
    rig.run.configure(link(3, 0, 0));
    let released = rig.figure("released");
    // Nothing was sent meanwhile.
    rig.sent += 48_000 * 15;
    rig.seconds(2.0);
    assert_eq!((rig.figure("late"), rig.figure("released") - released), (0.0, 400.0));
    assert!(rig.figure("delay_ms") < 1.0, "{} ms", rig.figure("delay_ms"));
}

/// A queue of seconds in front of the network, which ends: the sound is not seconds old for as long as splices need.
#[test]
fn the_delay_of_a_queue_of_seconds_ends_with_it() {
    let mut rig = Rig::new(&AUTO, tone(&MONO, 0, 48_000 * 60), link(3, 1, 0), 4);
    rig.seconds(5.0);
    rig.run.configure(steady(Duration::from_secs(4)));
    rig.seconds(15.0);
    rig.run.configure(link(3, 1, 0));
    rig.seconds(5.0);
    let skipped = rig.run.now;
    rig.seconds(5.0);
    assert!(rig.figure("delay_ms") < 100.0, "{} ms", rig.figure("delay_ms"));
    let (_, latest) = rig.released(skipped);
    assert!(latest < Duration::from_millis(2), "sound paused for {latest:?}");
    let (heard, _) = rig.released(Time::ZERO);
    let slope = std::f32::consts::TAU * crate::sound::tests::TONE_HZ as f32 / 48_000.0 * 0.5;
    assert!(steepest_step(&heard, 1) < slope * 1.5, "a click");
}

#[test]
fn reordered_quanta_are_put_in_order_within_the_delay() {
    let samples = voice(&MONO, 4.0);
    let network = Params { reorder: true, ..link(3, 20, 0) };
    let mut rig = Rig::new(&[("mode", "play"), ("delay", "30ms")], samples.clone(), network, 9);
    rig.seconds(4.0);
    rig.run.run_until(rig.run.now.after(Duration::from_secs(1)));
    assert_eq!((rig.figure("late"), rig.figure("released")), (0.0, 800.0));
    let (heard, _) = rig.released(Time::ZERO);
    assert_eq!(heard[QUANTUM..samples.len()], samples[QUANTUM..]);
}

#[test]
fn a_source_that_begins_anew_is_heard() {
    let mut rig = Rig::new(&AUTO, tone(&MONO, 0, 48_000 * 30), link(3, 1, 0), 2);
    rig.sent = 48_000 * 20;
    rig.seconds(1.0);
    rig.sent = 0;
    rig.seconds(1.0);
    assert_eq!((rig.figure("late"), rig.figure("released")), (0.0, 400.0));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    /// Any quanta of a peer, at any time: each is released or counted, and nothing is held for ever.
    #[test]
    fn any_sound_is_released_or_counted(
        quanta in prop::collection::vec((any::<u64>(), 0u64..4, 1usize..4000, 0u64..3000, 1u8..3), 1..60),
        auto in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let delay = if auto { "auto" } else { "30ms" };
        let network = Params { reorder: true, ..link(3, 40, 0) };
        let mut run = TwoHalves::new(&Buffer, &[("mode", "play"), ("delay", delay)], &Format::Audio, network, seed);
        let mut next = 0u64;
        let count = quanta.len() as u64;
        for (position, kind, frames, wait_us, channels) in quanta {
            let spec = SampleSpec { channels, ..MONO };
            let position = if kind == 0 { position } else { next };
            let samples = vec![0.1; frames * usize::from(channels)];
            next = position.wrapping_add(frames as u64);
            let created = Time(run.now.0.wrapping_sub(wait_us * 1000));
            let message: Message = Sound { spec, position, samples }.into_message(created);
            run.push(message);
            run.run_until(run.now.after(Duration::from_micros(wait_us)));
        }
        run.run_until(run.now.after(Duration::from_secs(120)));
        prop_assert_eq!(run.held(Half::Sink), 0);
        let released = run.figure(Half::Sink, "released") as u64;
        prop_assert!(run.errors.is_empty());
        // A splice may change the number of quanta; with a single kind of sound it removes less than one in four.
        prop_assert!(released + run.dropped() >= count / 2);
    }
}
