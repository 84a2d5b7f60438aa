//! Several devices with drifting clocks, each behind its own network, whose flows are joined at one sink.
//! Measures the skew of updates made at the same moment, before and after a pair (Networked Device Driver
//! Architecture (2012), figure 4.5).
//!
//! Time is virtual and is the sink's. The times of each device are translated as in a session: by pings over
//! the same kind of network.

use crate::stage::{options, site};
use contract::{Format, Half, Message, Outbox, Pair, Port, Report, Time};
use netsim::{Link, Params};
use session::ClockEstimator;
use std::time::Duration;

/// The time between two pings, as in a session.
const PING_INTERVAL: Duration = Duration::from_millis(100);
/// The time of the first updates. By then the clocks have been compared.
const STARTED: Time = Time::from_millis(10_000);

/// The setting of a run.
#[derive(Debug, Clone)]
pub struct JointSetting {
    /// The drift of each device's clock against the sink's, in parts per million.
    pub drifts_ppm: Vec<i64>,
    /// The time between two updates of a device. All devices update at the same moments.
    pub period: Duration,
    /// The number of updates of each device.
    pub updates: u64,
    /// The network of each device, in both directions.
    pub link: Params,
    /// Translate times by pings; otherwise only once, at the start.
    pub compares_clocks: bool,
    /// The seed of the networks.
    pub seed: u64,
}

/// One update at the sink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Passage {
    /// Creation time on the sink's clock.
    pub made: Time,
    /// Arrival at the sink half.
    pub came: Option<Time>,
    /// Departure from the sink half.
    pub left: Option<Time>,
}

/// The result of a run.
#[derive(Debug)]
pub struct JointRun {
    /// Indexed by device, then by number.
    pub passages: Vec<Vec<Passage>>,
    /// The statistics of the sink half at the end.
    pub report: Vec<Report>,
}

impl JointRun {
    /// For each moment of updates: the difference between the first and the last device, in arrival or
    /// departure. Moments before `from`, and moments with a missing update, are left out.
    pub fn skew(&self, from: Duration, when: impl Fn(&Passage) -> Option<Time>) -> Vec<(Time, Duration)> {
        let updates = self.passages.iter().map(Vec::len).min().unwrap_or(0);
        let spread = |number: usize| {
            let made = self.passages[0][number].made;
            let times: Option<Vec<Time>> = self.passages.iter().map(|flow| when(&flow[number])).collect();
            let times = times?;
            let (first, last) = (times.iter().min()?, times.iter().max()?);
            (made.since(STARTED) >= from).then(|| (made, last.since(*first)))
        };
        (0..updates).filter_map(spread).collect()
    }
}

/// One device and its network.
struct Device {
    drift_ppm: i64,
    data: Link<u64>,
    /// The creation time of each update on its own clock.
    made: Vec<Time>,
    /// For each ping: the time of sending on the sink's clock, and of the answer on its own.
    pinged: Vec<[u64; 2]>,
    pings: Link<u64>,
    pongs: Link<u64>,
    clock: ClockEstimator,
    /// All its updates have arrived.
    ended: bool,
}

impl Device {
    fn new(drift_ppm: i64, link: &Params, seed: u64) -> Self {
        Device {
            drift_ppm,
            data: Link::new(link.clone(), seed).hold_at_most(u64::MAX),
            made: Vec::new(),
            pinged: Vec::new(),
            pings: Link::new(link.clone(), seed + 1),
            pongs: Link::new(link.clone(), seed + 2),
            clock: ClockEstimator::new(),
            ended: false,
        }
    }

    /// The reading of its clock at a time of the sink's: it has an offset and drifts.
    fn reads(&self, at: Time) -> Time {
        let drift = i128::from(at.0) * i128::from(self.drift_ppm) / 1_000_000;
        Time(at.0.saturating_add_signed(drift as i64) + (self.drift_ppm.unsigned_abs() + 1) * 10_000_000_000)
    }

    fn deadline(&self) -> Option<Time> {
        let deadlines = [self.data.deadline(), self.pings.deadline(), self.pongs.deadline()];
        deadlines.into_iter().flatten().min().map(Time)
    }

    fn ping(&mut self, now: Time) {
        let _ = self.pings.push(now.0, self.pinged.len() as u64, 64);
        self.pinged.push([now.0, 0]);
    }

    fn carry_pings(&mut self, now: Time, compares_clocks: bool) {
        while let Some((_, number)) = self.pings.pop(now.0) {
            self.pinged[number as usize][1] = self.reads(now).0;
            let _ = self.pongs.push(now.0, number, 64);
        }
        while let Some((_, number)) = self.pongs.pop(now.0) {
            let [sent, answered] = self.pinged[number as usize];
            if compares_clocks || now < STARTED {
                self.clock.handle_pong(sent, answered, answered, now);
            }
        }
    }
}

/// Joins the updates of the devices in the sink half of `pair`, which must keep flows separate.
pub fn run(pair: &dyn Pair, given: &[(&str, &str)], setting: &JointSetting) -> JointRun {
    let mut sink = pair.half(Half::Sink, &options(pair, given), &Format::Bytes, &site(1)).unwrap();
    let seeds = (0..).map(|number| setting.seed.wrapping_add(number << 32));
    let mut devices: Vec<Device> = setting
        .drifts_ppm
        .iter()
        .zip(seeds)
        .map(|(ppm, seed)| Device::new(*ppm, &setting.link, seed))
        .collect();
    let mut passages = vec![Vec::new(); devices.len()];
    let (mut now, mut ping_at, mut out) = (Time::ZERO, Time::ZERO, Outbox::default());
    let mut number = 0;
    loop {
        let make_at = (number < setting.updates).then(|| STARTED.after(setting.period * number as u32));
        let waiting = devices.iter().filter_map(Device::deadline).chain(sink.poll_timeout()).min();
        let Some(at) = make_at.into_iter().chain(waiting).min() else { break };
        now = now.max(if make_at.is_some() { at.min(ping_at) } else { at });
        for device in devices.iter_mut().filter(|_| make_at.is_some() && now >= ping_at) {
            device.ping(now);
        }
        if now >= ping_at {
            ping_at = now.after(PING_INTERVAL);
        }
        if make_at.is_some_and(|at| at <= now) {
            for (device, passages) in devices.iter_mut().zip(&mut passages) {
                device.made.push(device.reads(now));
                passages.push(Passage { made: now, came: None, left: None });
                let _ = device.data.push(now.0, number, 64);
            }
            number += 1;
        }
        for (index, device) in devices.iter_mut().enumerate() {
            device.carry_pings(now, setting.compares_clocks);
            while let Some((_, number)) = device.data.pop(now.0) {
                passages[index][number as usize].came = Some(now);
                let offset = device.clock.offset().unwrap_or_default();
                let created = device.made[number as usize].shifted(offset);
                let message = Message::new(created, number.to_le_bytes().to_vec());
                sink.handle(Port(index as u16), message, now, &mut out).unwrap();
            }
            if number == setting.updates && device.data.deadline().is_none() && !device.ended {
                device.ended = true;
                sink.handle_end(Port(index as u16), now, &mut out).unwrap();
            }
        }
        if sink.poll_timeout().is_some_and(|at| at <= now) {
            sink.handle_timeout(now, &mut out).unwrap();
        }
        for (port, message) in out.messages.drain(..) {
            let number = u64::from_le_bytes(message.body.peek_front().unwrap());
            passages[usize::from(port.0)][number as usize].left.get_or_insert(now);
        }
    }
    JointRun { passages, report: sink.report() }
}
