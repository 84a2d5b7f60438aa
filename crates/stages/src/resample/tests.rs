use super::*;
use crate::sound::tests::{TONE_HZ, snr_db, steepest_step, tone};
use contract::{Format, Half};
use proptest::prelude::*;
use std::time::Duration;
use testkit::stage::conforms;
use wire::formats::audio::SampleFormat;

#[test]
fn it_conforms() {
    conforms(&Resample, &[], &Format::Audio);
}

/// Of few samples, where only time counts.
const SPEECH: SampleSpec = SampleSpec { format: SampleFormat::F32, channels: 1, rate_hz: 16_000 };
const STEREO: SampleSpec = SampleSpec { format: SampleFormat::F32, channels: 2, rate_hz: 48_000 };
const TARGET: Duration = Duration::from_millis(8);

/// A source, a sink half and a device, in virtual time.
struct Rig {
    sink: Box<dyn Stage>,
    spec: SampleSpec,
    /// Frames of a quantum.
    quantum: usize,
    /// The share by which the source's clock is faster than the device's.
    drift: f64,
    device_hz: u32,
    /// Frames that were pushed to the device.
    pushed: f64,
    played: Vec<f32>,
    sent: u64,
    now: Time,
}

impl Rig {
    fn new(spec: SampleSpec, quantum: usize, drift: f64, device_hz: u32) -> Rig {
        let options = Options::defaults(Resample.options()).unwrap();
        let sink = Resample.half(Half::Sink, &options, &Format::Audio, &Site::default()).unwrap();
        let (played, now) = (Vec::new(), Time::from_millis(1000));
        Rig { sink, spec, quantum, drift, device_hz, pushed: 0.0, played, sent: 0, now }
    }

    /// Seconds of sound that the device holds now. Its clock is exact.
    fn held(&self) -> f64 {
        let elapsed = self.now.since(Time::from_millis(1000)).as_secs_f64();
        self.pushed / f64::from(self.device_hz) - elapsed + TARGET.as_secs_f64()
    }

    /// One quantum of the tone, and the device's answer, whose fill is wrong by `noise` seconds. Returns how far the fill
    /// is from its target, in seconds.
    fn step(&mut self, noise: f64) -> f64 {
        let samples = tone(&self.spec, self.sent, self.quantum);
        let sound = Sound { spec: self.spec, position: self.sent, samples };
        self.sent += self.quantum as u64;
        let seconds = self.sent as f64 / f64::from(self.spec.rate_hz) / (1.0 + self.drift);
        self.now = Time::from_millis(1000).after(Duration::from_secs_f64(seconds));
        let mut out = Outbox::default();
        self.sink.handle(Port::MAIN, sound.into_message(self.now), self.now, &mut out).unwrap();
        for (_, message) in out.messages {
            let sound = Sound::parse(&message.body).unwrap();
            self.pushed += sound.frames() as f64;
            self.played.extend(sound.samples.iter().step_by(usize::from(self.spec.channels)));
        }
        let held = Duration::from_secs_f64((self.held() + noise).max(0.0));
        let fill = Fill { held, target: TARGET, lead: Duration::ZERO, rate_hz: self.device_hz };
        self.sink.handle_fill(Port::MAIN, fill, self.now, &mut Outbox::default()).unwrap();
        self.held() - TARGET.as_secs_f64()
    }

    fn seconds(&mut self, seconds: f64) -> f64 {
        let steps = (seconds * f64::from(self.spec.rate_hz)) as usize / self.quantum;
        (0..steps).map(|_| self.step(0.0).abs()).fold(0.0, f64::max)
    }
}

#[test]
fn clocks_that_differ_keep_the_fill_within_a_millisecond() {
    for drift_ppm in [0.0, 100.0, -100.0, 500.0, -500.0] {
        let mut rig = Rig::new(SPEECH, 80, drift_ppm * 1e-6, 16_000);
        let worst = rig.seconds(60.0);
        assert!(worst < 1e-3, "{drift_ppm} ppm: {worst} s");
        let found_ppm = rig.sink.report()[0].1;
        assert!((found_ppm - drift_ppm).abs() < 5.0, "{drift_ppm}: {found_ppm} ppm");
    }
}

#[test]
fn a_tone_stays_a_tone_without_a_click() {
    for (drift_ppm, device_hz) in [(100.0, 48_000), (-500.0, 48_000), (100.0, 44_100)] {
        let mut rig = Rig::new(STEREO, 240, drift_ppm * 1e-6, device_hz);
        rig.seconds(8.0);
        let played = &rig.played[4800..];
        // A tone of full scale rises by its angular frequency at most; the resampled one is higher by the drift.
        let slope = std::f32::consts::TAU * TONE_HZ as f32 / device_hz as f32 * 0.5;
        let steepest = steepest_step(played, 1);
        assert!(steepest < slope * 1.01, "{drift_ppm} ppm {device_hz} Hz: {steepest} above {slope}");
        // In a tenth of a second, the ratio changes too little to be heard: noise beside a tone of that time.
        let rate = device_hz as usize;
        for part in played.chunks_exact(rate / 10).step_by(20) {
            let snr = snr_db(part, device_hz);
            assert!(snr > 70.0, "{drift_ppm} ppm {device_hz} Hz: {snr} dB");
        }
    }
}

/// The controller alone, with the fill of an ideal resampler, for 24 hours of clocks 100 ppm apart that also change with the
/// temperature, and measurements that are wrong by up to 1 ms.
#[test]
fn a_day_of_clocks_that_differ() {
    let mut random = crate::random::Random::new(24);
    let mut control = ClockControl::default();
    let quantum = Duration::from_nanos(5_333_333);
    let (mut now, mut held) = (Time::ZERO, TARGET.as_secs_f64());
    let (mut worst, mut fastest_change) = (0.0f64, 0.0f64);
    let mut before = 0.0;
    while now < Time::from_millis(24 * 3_600_000) {
        let hours = now.0 as f64 / 3.6e12;
        let drift = 100e-6 + 10e-6 * (hours * std::f64::consts::TAU / 2.0).sin();
        held += quantum.as_secs_f64() * (drift - control.correction());
        now = now.after(quantum);
        let noise = (random.up_to(2000) as f64 - 1000.0) * 1e-6;
        let measured = Duration::from_secs_f64((held + noise).max(0.0));
        control.update(&Fill { held: measured, target: TARGET, lead: Duration::ZERO, rate_hz: 48_000 }, now);
        worst = worst.max((held - TARGET.as_secs_f64()).abs());
        if hours > 0.1 {
            fastest_change = fastest_change.max((control.correction() - before).abs());
        }
        before = control.correction();
    }
    assert!(worst < 1e-3, "the fill was off by {worst} s");
    assert!(fastest_change < 2e-6, "the pitch changed by {fastest_change} from one quantum to the next");
}

/// A device that takes a whole period of 128 frames at a time does not tell how much of it has been played. Where the period lies
/// between two quanta moves with the drift, so the error is a saw tooth of 2.7 ms that lasts half a minute.
#[test]
fn a_device_that_takes_whole_periods_is_followed() {
    for drift in [100e-6, -100e-6, 5e-6] {
        let mut control = ClockControl::default();
        let (quantum, period) = (Duration::from_micros(5000), 128.0 / 48_000.0);
        let (mut now, mut held, mut worst) = (Time::ZERO, TARGET.as_secs_f64(), 0.0f64);
        while now < Time::from_millis(3_600_000) {
            held += quantum.as_secs_f64() * (drift - control.correction());
            now = now.after(quantum);
            let since_pull = (now.0 as f64 / 1e9 * (1.0 - drift)) % period;
            let measured = Duration::from_secs_f64((held + since_pull).max(0.0));
            control
                .update(&Fill { held: measured, target: TARGET, lead: Duration::ZERO, rate_hz: 48_000 }, now);
            worst = worst.max((held - TARGET.as_secs_f64()).abs());
            assert!((control.correction() - drift).abs() < 0.0015, "the pitch is off");
        }
        assert!(worst < period + 1e-3, "{drift}: the fill was off by {worst} s");
    }
}

#[test]
fn a_fill_far_off_returns_and_the_drift_is_kept_over_a_pause() {
    let mut rig = Rig::new(SPEECH, 80, 100e-6, 16_000);
    rig.seconds(60.0);
    rig.pushed += 0.02 * 16_000.0;
    rig.seconds(60.0);
    assert!(rig.step(0.0).abs() < 1e-3, "20 ms are gone within a minute");
    let drift = rig.sink.report()[0].1;
    rig.now = rig.now.after(Duration::from_secs(5));
    let fill = Fill { held: Duration::ZERO, target: TARGET, lead: Duration::ZERO, rate_hz: 16_000 };
    rig.sink.handle_fill(Port::MAIN, fill, rig.now, &mut Outbox::default()).unwrap();
    assert_eq!(rig.sink.report()[0].1, drift);
}

#[test]
fn the_rate_becomes_that_of_the_device_and_other_bodies_pass() {
    let mut rig =
        Rig::new(SampleSpec { format: SampleFormat::S16, channels: 1, rate_hz: 16_000 }, 160, 0.0, 44_100);
    let mut out = Outbox::default();
    rig.seconds(2.0);
    let sound = Sound { spec: rig.spec, position: rig.sent, samples: vec![0.0; 160] };
    rig.sink.handle(Port::MAIN, sound.into_message(rig.now), rig.now, &mut out).unwrap();
    let sound = Sound::parse(&out.messages.pop_front().unwrap().1.body).unwrap();
    assert_eq!(sound.spec, SampleSpec { rate_hz: 44_100, ..rig.spec });
    let other = Message::new(rig.now, b"no sound".to_vec());
    rig.sink.handle(Port::MAIN, other.clone(), rig.now, &mut out).unwrap();
    assert_eq!(out.messages.pop_front().unwrap().1, other);
}

#[test]
fn positions_follow_each_other_and_keep_gaps() {
    let mut rig = Rig::new(STEREO, 256, 0.0, 44_100);
    let mut next = None;
    for round in 0..50u64 {
        let position = round * 256 + if round >= 25 { 48_000 } else { 0 };
        let sound = Sound { spec: STEREO, position, samples: tone(&STEREO, position, 256) };
        let mut out = Outbox::default();
        rig.sink.handle(Port::MAIN, sound.into_message(rig.now), rig.now, &mut out).unwrap();
        let sound = Sound::parse(&out.messages.pop_front().unwrap().1.body).unwrap();
        let jump = next.map_or(0, |next: u64| sound.position - next);
        assert_eq!(jump, if round == 25 { 48_000 } else { 0 }, "round {round}");
        next = Some(sound.position + sound.frames() as u64);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    /// Any quantum, rate and drift: as much sound leaves as the ratio demands, and no step is steeper than the tone.
    #[test]
    fn any_quantum_is_resampled_without_a_click(
        quantum in 1usize..2000,
        rates in (0usize..5, 0usize..5),
        drift_ppm in -500.0f64..500.0,
        channels in 1u8..=3,
    ) {
        let rates_hz = [16_000, 22_050, 44_100, 48_000, 96_000];
        let spec = SampleSpec { format: SampleFormat::F32, channels, rate_hz: rates_hz[rates.0] };
        let device_hz = rates_hz[rates.1];
        let mut rig = Rig::new(spec, quantum, drift_ppm * 1e-6, device_hz);
        rig.step(0.0);
        let (before, played) = (rig.sent, rig.pushed);
        for _ in 0..(8000 / quantum).max(3) {
            rig.step(0.0);
        }
        let ratio = f64::from(device_hz) / f64::from(spec.rate_hz);
        let expected = (rig.sent - before) as f64 * ratio;
        prop_assert!((rig.pushed - played - expected).abs() <= 2.0 + expected * STEER_MAX);
        let settled = &rig.played[rig.played.len().min(64 + (64.0 * ratio) as usize + quantum * 4)..];
        let slope = std::f32::consts::TAU * TONE_HZ as f32 / device_hz as f32 * 0.5;
        prop_assert!(steepest_step(settled, 1) < slope * 1.02);
    }
}
