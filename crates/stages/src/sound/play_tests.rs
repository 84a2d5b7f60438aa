//! The pairs that play sound, together: `resample | buffer(play, delay=auto)`, from a device with one clock over a network to a device
//! with another, in virtual time. The sound is a sine, so each frame that the device plays tells whether it clicks.
//!
//! The short forms take some minutes of virtual time; with `OUTBOARD_LONG` set, as `scripts/prove` sets it, one hour and 24 hours.

use super::Sound;
use crate::buffer::Buffer;
use crate::random::Random;
use crate::resample::Resample;
use contract::{Fill, Format, Half, Message, Outbox, Pair, Port, Site, Stage, Time};
use netsim::{Link, Params};
use std::collections::BTreeMap;
use std::time::Duration;
use testkit::stage::{options, steady};
use wire::formats::audio::{SampleFormat, SampleSpec};

const SPEC: SampleSpec = SampleSpec { format: SampleFormat::S16, channels: 1, rate_hz: 48_000 };
const RATE_HZ: f64 = 48_000.0;
/// Frames of a quantum: 5 ms.
const QUANTUM: usize = 240;
/// The period of the sine, in frames: 200 Hz.
const PERIOD: u64 = 240;
const PEAK: f64 = 0.5;
/// The difference from a sine that is a click, as a share of the peak. 16 bits are exact to 0.0001 of it.
const CLICK: f64 = 0.01;
/// The same where sound is concealed: it fades, which bends the sine.
const CLICK_OF_FADE: f64 = 0.1;
/// The sound that the device is to hold.
const TARGET: Duration = Duration::from_millis(8);
/// The time in which the controllers learn the clocks.
const SETTLES: Duration = Duration::from_secs(120);
const STARTED: Time = Time::from_millis(1000);
/// Messages of which the network holds no more: those on their way.
const CROSSING_MAX: usize = 1000;

fn quiet() -> Params {
    Params { jitter_ns: 200_000, ..steady(Duration::from_millis(20)) }
}

fn half(pair: &dyn Pair, given: &[(&str, &str)]) -> Box<dyn Stage> {
    pair.half(Half::Sink, &options(pair, given), &Format::Audio, &Site::default()).unwrap()
}

/// The device that plays. Its clock is exact. A device that runs dry plays silence until it holds its target again.
struct Device {
    /// The time at which it plays the next frame that comes.
    plays_at: f64,
    last: [f64; 2],
    /// The largest difference from a sine, as a share of the peak.
    worst_bend: f64,
    underruns: u64,
}

impl Device {
    fn play(&mut self, sample: f64) {
        let [before, last] = self.last;
        let twice_cos = 2.0 * (std::f64::consts::TAU / PERIOD as f64).cos();
        let bend = (sample - twice_cos * last + before).abs() / PEAK;
        self.worst_bend = self.worst_bend.max(bend);
        self.last = [last, sample];
    }
}

struct Room {
    buffer: Box<dyn Stage>,
    resample: Box<dyn Stage>,
    network: Link<u64>,
    /// Messages on their way, by their number.
    crossing: BTreeMap<u64, Message>,
    device: Device,
    random: Random,
    /// The time between two quanta, in seconds: the source's clock.
    spacing: f64,
    sent: u64,
    now: Time,
    /// The lowest and the highest time from the creation of a frame to its end at the device, in seconds.
    delays: [f64; 2],
}

impl Room {
    fn new(drift: f64, seed: u64) -> Room {
        let device = Device { plays_at: 0.0, last: [0.0; 2], worst_bend: 0.0, underruns: 0 };
        Room {
            buffer: half(&Buffer, &[("mode", "play"), ("delay", "auto")]),
            resample: half(&Resample, &[]),
            network: Link::new(quiet(), seed),
            crossing: BTreeMap::new(),
            device,
            random: Random::new(seed),
            spacing: QUANTUM as f64 / RATE_HZ / (1.0 + drift),
            sent: 0,
            now: STARTED,
            delays: [f64::MAX, 0.0],
        }
    }

    /// Forgets the figures so far.
    fn begin(&mut self) {
        (self.delays, self.device.worst_bend) = ([f64::MAX, 0.0], 0.0);
    }

    fn run(&mut self, time: Duration) {
        let end = self.now.after(time);
        loop {
            let next_quantum = STARTED.after(Duration::from_secs_f64(self.sent as f64 * self.spacing));
            let arrival = self.network.deadline().map(Time);
            let events = [Some(next_quantum), arrival, self.buffer.poll_timeout()];
            let at = events.into_iter().flatten().min().unwrap_or(end);
            if at > end {
                self.now = end;
                return;
            }
            self.now = self.now.max(at);
            if next_quantum <= self.now {
                self.send(next_quantum);
            }
            let mut out = Outbox::default();
            while let Some((_, number)) = self.network.pop(self.now.0) {
                let message = self.crossing.remove(&number).unwrap();
                self.buffer.handle(Port::MAIN, message, self.now, &mut out).unwrap();
            }
            if self.buffer.poll_timeout().is_some_and(|at| at <= self.now) {
                self.buffer.handle_timeout(self.now, &mut out).unwrap();
            }
            out.messages.into_iter().for_each(|(_, message)| self.push(message));
        }
    }

    fn send(&mut self, created: Time) {
        let position = self.sent * QUANTUM as u64;
        let sample = |frame: u64| {
            let phase = std::f64::consts::TAU * (frame % PERIOD) as f64 / PERIOD as f64;
            (PEAK * phase.sin()) as f32
        };
        let samples = (position..position + QUANTUM as u64).map(sample).collect();
        let message = Sound { spec: SPEC, position, samples }.into_message(created);
        let bytes = message.body.len() as u32;
        let _ = self.network.push(self.now.0, self.sent, bytes);
        self.crossing.insert(self.sent, message);
        // Lost messages stay until then.
        while self.crossing.len() > CROSSING_MAX {
            self.crossing.pop_first();
        }
        self.sent += 1;
    }

    /// A message of the buffer is resampled, and waits in the device.
    fn push(&mut self, message: Message) {
        let mut out = Outbox::default();
        self.resample.handle(Port::MAIN, message, self.now, &mut out).unwrap();
        let now = self.now.0 as f64 / 1e9;
        for (_, message) in out.messages {
            let sound = Sound::parse(&message.body).unwrap();
            if self.device.plays_at < now {
                self.device.underruns += 1;
                (0..10).for_each(|_| self.device.play(0.0));
                self.device.plays_at = now + TARGET.as_secs_f64() - sound.frames() as f64 / RATE_HZ;
            }
            let delay = self.device.plays_at - message.created.0 as f64 / 1e9;
            self.delays = [self.delays[0].min(delay), self.delays[1].max(delay)];
            self.device.plays_at += sound.frames() as f64 / RATE_HZ;
            sound.samples.iter().for_each(|sample| self.device.play(f64::from(*sample)));
        }
        // The measurement is wrong by up to half a millisecond.
        let noise = (self.random.up_to(1000) as f64 - 500.0) * 1e-6;
        let held = Duration::from_secs_f64((self.device.plays_at - now + noise).max(0.0));
        let fill = Fill { held, target: TARGET, lead: Duration::ZERO, rate_hz: SPEC.rate_hz };
        self.resample.handle_fill(Port::MAIN, fill, self.now, &mut Outbox::default()).unwrap();
    }

    fn figure(&self, stage: &dyn Stage, name: &str) -> f64 {
        stage.report().into_iter().find(|(known, _)| *known == name).unwrap().1
    }
}

/// The times of clocks that differ: a short one, or an hour and a day.
fn times() -> Vec<Duration> {
    let minutes: &[u64] = if std::env::var_os("OUTBOARD_LONG").is_some() { &[60, 24 * 60] } else { &[4] };
    minutes.iter().map(|minutes| Duration::from_secs(minutes * 60)).collect()
}

#[test]
fn clocks_that_differ_make_no_click_and_no_drift() {
    for time in times() {
        for (drift, seed) in [(100e-6, 1), (-100e-6, 2)] {
            let mut room = Room::new(drift, seed);
            room.run(SETTLES);
            room.begin();
            room.run(time);
            let [low, high] = room.delays;
            let figures = format!(
                "seed {seed}, {:.0} ppm, {} minutes: delay {:.3} to {:.3} ms, largest bend {:.5} of the peak, {} concealed, {} left \
                 out, {} underruns",
                drift * 1e6,
                time.as_secs() / 60,
                low * 1e3,
                high * 1e3,
                room.device.worst_bend,
                room.figure(&*room.buffer, "concealed"),
                room.figure(&*room.buffer, "splices"),
                room.device.underruns - 1
            );
            println!("{figures}");
            assert!(room.device.worst_bend < CLICK, "a click: {figures}");
            assert!(high - low < 1e-3, "the delay drifts: {figures}");
            assert_eq!(room.device.underruns, 1, "the device ran dry: {figures}");
        }
    }
}

/// 10 s of 100 ms of jitter: 30 s later the delay is as before, up to the shortest piece that can be left out.
#[test]
fn jitter_is_forgotten() {
    for seed in 1..=3 {
        let mut room = Room::new(100e-6, seed);
        room.run(SETTLES);
        room.begin();
        room.run(Duration::from_secs(5));
        let before = room.delays[1];
        room.network.configure(room.now.0, Params { jitter_ns: 100_000_000, ..quiet() });
        room.run(Duration::from_secs(10));
        let during = room.delays[1];
        room.network.configure(room.now.0, quiet());
        room.run(Duration::from_secs(30));
        room.begin();
        room.run(Duration::from_secs(10));
        let (after, bend) = (room.delays[1], room.device.worst_bend);
        let ms = [before, during, after].map(|delay| delay * 1e3);
        println!(
            "seed {seed}: {ms:.1?} ms before, with jitter, and 30 s later; largest bend {bend:.5} of the peak"
        );
        assert!(during > before + 0.05 && after < before + 0.003, "seed {seed}: {ms:?} ms");
        assert!(bend < CLICK, "seed {seed}: a click of {bend} after the delay has returned");
    }
}

#[test]
fn a_burst_is_concealed() {
    for seed in 1..=3 {
        let mut room = Room::new(100e-6, seed);
        room.run(SETTLES);
        let before = room.delays[1];
        room.network.configure(room.now.0, Params { loss_ppm: 1_000_000, ..quiet() });
        room.begin();
        room.run(Duration::from_millis(200));
        room.network.configure(room.now.0, quiet());
        room.run(Duration::from_secs(1));
        let bend = room.device.worst_bend;
        println!("seed {seed}: 200 ms lost: largest bend {bend:.5} of the peak");
        assert!(bend < CLICK_OF_FADE, "seed {seed}: a click of {bend}");
        room.run(Duration::from_secs(30));
        room.begin();
        room.run(Duration::from_secs(10));
        let after = room.delays[1];
        assert!(after < before + 0.003, "seed {seed}: {before} s before the burst, {after} s afterwards");
    }
}
