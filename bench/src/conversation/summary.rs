//! The figures of a conversation.

use super::recorder::Sound;
use super::{Measured, Record};
use crate::measure::percentile;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ops::Range;

/// A gap between pictures counts as a freeze above this.
const FREEZE_MS: f64 = 100.0;
/// A beep may seem to come this much before it was made: programs on one host take turns.
const EARLY_NS: u64 = 100_000_000;

/// The sound of one direction.
#[derive(Debug, Default)]
pub(super) struct Heard {
    /// Lengths of silences above 10 ms.
    gaps_ms: Vec<f64>,
    clicks: usize,
    delays_ms: Vec<f64>,
    /// Gaps and clicks of the same sound where it was made.
    before: [usize; 2],
    seconds: f64,
}

/// The figures of a conversation.
#[derive(Debug)]
pub(super) struct Summary {
    frames_per_s: f64,
    picture_gaps_ms: Vec<f64>,
    picture_delays_ms: Vec<f64>,
    unreadable: usize,
    sound: Heard,
    back: Heard,
    /// Delay of the picture less that of the sound, at each beep.
    distances_ms: Vec<f64>,
    /// Time until the first picture and the first sound.
    starts_s: [Option<f64>; 2],
    bytes_per_s: [f64; 2],
    cpu_share: [f64; 2],
    /// Pictures a second, by time.
    pub(super) frames_course: Vec<[f64; 2]>,
    /// The distance at each beep without its sign, by time.
    pub(super) distance_course: Vec<[f64; 2]>,
}

/// A picture that was shown for the first time.
struct New {
    created_ns: u64,
    arrived_ns: u64,
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

/// Finds the pictures that show something new.
fn new_pictures(record: &Record) -> Vec<New> {
    let mut times: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
    for (number, created_ns) in &record.made {
        times.entry(*number as usize).or_default().push(*created_ns);
    }
    let (mut new, mut last) = (Vec::new(), None);
    for shown in record.shown.iter() {
        let Some(number) = shown.number.filter(|number| Some(*number) != last) else { continue };
        let made =
            times.get(&number).and_then(|times| times.iter().rfind(|created| **created <= shown.arrived_ns));
        if let Some(created_ns) = made {
            new.push(New { created_ns: *created_ns, arrived_ns: shown.arrived_ns });
            last = Some(number);
        }
    }
    new
}

/// Beeps by their time where they were made, with their delays.
fn beep_delays(spoken: &[(usize, u64)], heard: &[(usize, u64)]) -> Vec<(u64, u64)> {
    let delay = |(pitch, at): &(usize, u64)| {
        let made = spoken.iter().rfind(|(other, made)| other == pitch && *made <= at + EARLY_NS)?.1;
        Some((made, at.saturating_sub(made)))
    };
    heard.iter().filter_map(delay).collect()
}

fn listen(spoken: &Sound, heard: &Sound, time: &Range<u64>) -> (Heard, Vec<(u64, u64)>) {
    let measured = heard.within(time);
    let (before, after) = (spoken.within(time).read(), measured.read());
    // The first beep may have been made before the time.
    let delays = beep_delays(&spoken.beeps(&spoken.read()), &measured.beeps(&after));
    let summary = Heard {
        gaps_ms: after
            .gaps
            .iter()
            .map(|(_, length)| *length as f64 * 1e3 / super::tone::RATE_HZ as f64)
            .collect(),
        clicks: after.clicks.len(),
        delays_ms: delays.iter().map(|(_, delay)| ms(*delay)).collect(),
        before: [before.gaps.len(), before.clicks.len()],
        seconds: measured.seconds(),
    };
    (summary, delays)
}

impl Summary {
    pub(super) fn of(record: &Record) -> Summary {
        let Measured { time, bytes_per_s, cpu_share, spoken } = &record.measured;
        let (sound, beeps) = listen(&spoken[0], &record.sound, time);
        let (back, _) = listen(&spoken[1], &record.back, time);
        let new = new_pictures(record);
        let within: Vec<&New> = new.iter().filter(|picture| time.contains(&picture.arrived_ns)).collect();
        let seconds = (time.end - time.start) as f64 / 1e9;
        let distance = |(made, delay): &(u64, u64)| {
            // The picture of the moment of the beep, or the next that was shown.
            let next = new.partition_point(|picture| picture.created_ns < *made);
            let picture = new.get(next)?;
            Some((*made, ms(picture.arrived_ns.saturating_sub(picture.created_ns)) - ms(*delay)))
        };
        let distances: Vec<(u64, f64)> = beeps.iter().filter_map(distance).collect();
        let mut frames_course = vec![[0.0; 2]; seconds as usize];
        frames_course.iter_mut().enumerate().for_each(|(second, point)| point[0] = second as f64);
        for picture in &within {
            let second = (picture.arrived_ns - time.start) / 1_000_000_000;
            if let Some(point) = frames_course.get_mut(second as usize) {
                point[1] += 1.0;
            }
        }
        let since = |at: u64| at.saturating_sub(record.begun_ns) as f64 / 1e9;
        // A picture before the first and after the last would hide a freeze there.
        let ends =
            [time.start].into_iter().chain(within.iter().map(|picture| picture.arrived_ns)).chain([time.end]);
        let ends: Vec<u64> = ends.collect();
        Summary {
            frames_per_s: within.len() as f64 / seconds,
            picture_gaps_ms: ends.windows(2).map(|pair| ms(pair[1] - pair[0])).collect(),
            picture_delays_ms: within
                .iter()
                .map(|picture| ms(picture.arrived_ns - picture.created_ns))
                .collect(),
            unreadable: record
                .shown
                .iter()
                .filter(|shown| shown.number.is_none() && time.contains(&shown.arrived_ns))
                .count(),
            sound,
            back,
            distances_ms: distances.iter().map(|(_, distance)| *distance).collect(),
            starts_s: [new.first().map(|first| since(first.arrived_ns)), record.sound.first_ns().map(since)],
            bytes_per_s: *bytes_per_s,
            cpu_share: *cpu_share,
            frames_course,
            distance_course: distances
                .iter()
                .map(|(at, distance)| [at.saturating_sub(time.start) as f64 / 1e9, distance.abs()])
                .collect(),
        }
    }

    /// Returns the bits a second that each host sent.
    pub(super) fn rates(&self) -> [f64; 2] {
        self.bytes_per_s.map(|bytes| bytes * 8.0)
    }

    /// Returns the rows of the table: a name and a value.
    fn rows(&self) -> Vec<(&'static str, String)> {
        let three = |figures: &[f64]| match figures.is_empty() {
            true => "–".into(),
            false => {
                let [p50, p95, worst] = [0.5, 0.95, 1.0].map(|share| percentile(figures, share));
                format!("{p50:.0}, {p95:.0}, {worst:.0}")
            }
        };
        let gaps = |heard: &Heard| {
            let sum = heard.gaps_ms.iter().fold(0.0, |sum, gap| sum + gap);
            let longest = heard.gaps_ms.iter().copied().fold(0.0, f64::max);
            format!("{}, {sum:.0}, {longest:.0}", heard.gaps_ms.len())
        };
        let before = |heard: &Heard| format!("{}, {}", heard.before[0], heard.before[1]);
        let seconds = |time: Option<f64>| time.map_or("–".into(), |time| format!("{time:.1}"));
        let distances: Vec<f64> = self.distances_ms.iter().map(|distance| distance.abs()).collect();
        let late = self.picture_gaps_ms.iter().filter(|gap| **gap > FREEZE_MS).count();
        let longest = self.picture_gaps_ms.iter().copied().fold(0.0, f64::max);
        let [a, b] = self.rates();
        vec![
            ("pictures a second", format!("{:.1}", self.frames_per_s)),
            ("longest freeze, ms", format!("{longest:.0}")),
            ("gaps between pictures above 100 ms", late.to_string()),
            ("damaged pictures", self.unreadable.to_string()),
            ("delay of pictures, ms: p50, p95, worst", three(&self.picture_delays_ms)),
            ("microphone: gaps above 10 ms: number, sum, longest, ms", gaps(&self.sound)),
            ("microphone: clicks", self.sound.clicks.to_string()),
            ("microphone: gaps and clicks before the network", before(&self.sound)),
            ("microphone: delay, ms: p50, p95, worst", three(&self.sound.delays_ms)),
            ("microphone: recorded, s", format!("{:.2}", self.sound.seconds)),
            ("speaker: gaps above 10 ms: number, sum, longest, ms", gaps(&self.back)),
            ("speaker: clicks", self.back.clicks.to_string()),
            ("speaker: gaps and clicks before the network", before(&self.back)),
            ("speaker: delay, ms: p50, p95, worst", three(&self.back.delays_ms)),
            ("speaker: recorded, s", format!("{:.2}", self.back.seconds)),
            (
                "distance of picture and sound, ms: p50",
                format!("{:+.0}", percentile(&self.distances_ms, 0.5)),
            ),
            ("distance without its sign, ms: p50, p95, worst", three(&distances)),
            (
                "first picture and first sound, s",
                format!("{}, {}", seconds(self.starts_s[0]), seconds(self.starts_s[1])),
            ),
            ("sent by a and by b, kbit/s", format!("{:.0}, {:.0}", a / 1e3, b / 1e3)),
            (
                "processor of a and of b, %",
                format!("{:.1}, {:.1}", self.cpu_share[0] * 100.0, self.cpu_share[1] * 100.0),
            ),
        ]
    }

    pub(super) fn json(&self, program: &str, link: &str) -> Value {
        let figures = |figures: &[f64]| [0.5, 0.95, 1.0].map(|share| percentile(figures, share));
        let heard = |heard: &Heard| {
            json!({ "gaps_ms": heard.gaps_ms, "clicks": heard.clicks, "delay_ms": figures(&heard.delays_ms),
                "gaps_and_clicks_before": heard.before, "seconds": heard.seconds })
        };
        let distances: Vec<f64> = self.distances_ms.iter().map(|distance| distance.abs()).collect();
        json!({
            "experiment": "conversation",
            "params": {
                "link": link, "program": program, "longest_freeze_ms": figures(&self.picture_gaps_ms)[2],
                "picture_delay_ms": figures(&self.picture_delays_ms), "damaged": self.unreadable,
                "microphone": heard(&self.sound), "speaker": heard(&self.back), "distance_ms": figures(&distances),
                "starts_s": self.starts_s, "sent_bits": self.rates(), "cpu_share": self.cpu_share,
            },
            "unit": "pictures/s", "ours": self.frames_per_s, "bare": null, "paper": null,
            "runs": self.picture_delays_ms.len(), "p50": null, "p99": null,
        })
    }
}

/// Prints the table.
pub(super) fn print(summaries: &[(&str, Summary)]) {
    let names: Vec<&str> = summaries.iter().map(|(name, _)| *name).collect();
    println!("| | {} |", names.join(" | "));
    println!("|---|{}", "---:|".repeat(names.len()));
    let all: Vec<_> = summaries.iter().map(|(_, summary)| summary.rows()).collect();
    for (index, (name, _)) in all.first().into_iter().flatten().enumerate() {
        let values: Vec<&str> = all.iter().map(|rows| rows[index].1.as_str()).collect();
        println!("| {name} | {} |", values.join(" | "));
    }
}
