//! Software, virtual and hardware at several clocks: figures 3.5 to 3.10 of the thesis, with AES in place of the TCP checksum.

use super::ask::{Answer, Point, Processors, Question, pair_times};
use super::clock::Clock;
use super::{Bench, Study, percent};
use crate::measure::{median, paired_ratio};
use crate::plot::{Chart, Line, Scale, Stroke};
use crate::setting::Failure;
use serde_json::{Value, json};
use std::fmt::Write as _;

const VIA: &str = "encrypt";
/// The largest error of a throughput that the thesis found, over 10 Gigabit Ethernet (3.5.3).
const ERROR_MAX: f64 = 0.03;
/// Without extensions AES is slower by more than this, or they are still there.
const RATIO_MIN: f64 = 1.2;
/// The verdict on a prediction that is wrong by more.
const BROKEN: &str = "**broken**";
/// The throughput and both halves' processor time have an error each.
const FIGURES: [&str; 3] = ["throughput", "sender", "receiver"];
const CASES: [&str; 4] = ["software", "virtual", "virtual, no time", "hardware"];

/// The figures of a case: throughput, processor time of the sender and of the receiver, one of each a round.
type Case = [Vec<f64>; 3];

/// All cases at one clock.
struct AtClock {
    share: f64,
    /// In the order of [`CASES`].
    cases: [Case; 4],
    /// Errors of the method with its work left out for exactly its own time: of the software and of the hardware.
    own_time: [Vec<f64>; 2],
}

/// The error of a prediction with its interval of 95 %.
#[derive(Clone, Copy)]
struct Deviation([f64; 3]);

impl Deviation {
    fn of(predicted: &[f64], truth: &[f64], seed: u64) -> Deviation {
        Deviation(paired_ratio(predicted, truth, seed).map(|ratio| ratio - 1.0))
    }

    /// Judges a throughput.
    fn verdict(self) -> &'static str {
        let Deviation([_, low, high]) = self;
        match () {
            () if low >= -ERROR_MAX && high <= ERROR_MAX => "",
            () if low > ERROR_MAX || high < -ERROR_MAX => BROKEN,
            () => "**uncertain**",
        }
    }

    fn text(self) -> String {
        let Deviation([middle, low, high]) = self;
        format!("{} ({} to {})", percent(middle), percent(low), percent(high))
    }
}

impl AtClock {
    fn add(&mut self, software: &Answer, hardware: &Answer) -> Result<(), Failure> {
        let as_it_is = |answer: &Answer| (answer.bytes_per_second, answer.processors);
        let of = |point: &Point| (point.bytes_per_second, point.processors);
        let points = software.rows.first().map(|row| &row.points[..]);
        let Some([virtually, without_time]) = points else { return Err("whatif has no two points".into()) };
        let all = [as_it_is(software), of(virtually), of(without_time), as_it_is(hardware)];
        for (case, (rate, Processors { sender, receiver })) in self.cases.iter_mut().zip(all) {
            for (figures, figure) in case.iter_mut().zip([rate, sender, receiver]) {
                figures.push(figure);
            }
        }
        for (errors, answer) in self.own_time.iter_mut().zip([software, hardware]) {
            errors.push(answer.method_error);
        }
        Ok(())
    }

    /// Returns the errors of case 1 or 2, for each of [`FIGURES`].
    fn deviations(&self, case: usize, seed: u64) -> [Deviation; 3] {
        let [.., truth] = &self.cases;
        std::array::from_fn(|at| Deviation::of(&self.cases[case][at], &truth[at], seed))
    }

    fn json(&self, seed: u64) -> Value {
        let case = |(name, case): (&&str, &Case)| {
            let [rate, sender, receiver] = case.each_ref().map(|figures| median(figures));
            json!({ "case": name, "bytes_per_second": rate, "sender": sender, "receiver": receiver })
        };
        let cases: Vec<Value> = CASES.iter().zip(&self.cases).map(case).collect();
        let error = |case| self.deviations(case, seed).map(|deviation| deviation.0);
        json!({ "clock": self.share, "cases": cases, "virtual_error": error(1), "no_time_error": error(2),
                "own_time_error": self.own_time.each_ref().map(|errors| median(errors)) })
    }
}

/// Measures all cases. Returns the ratio of the times of AES in software and in hardware, too.
pub(super) fn study(bench: &Bench<'_>, clock: &Clock) -> Result<(Study, f64), Failure> {
    let setting = bench.setting;
    let (mut times, mut ratios) = ([Vec::new(), Vec::new()], Vec::new());
    for _ in 0..setting.rounds {
        let measured = [&bench.software, &bench.hardware].map(|programs| {
            Ok::<_, Failure>(pair_times(programs, VIA, &bench.sample, setting.seconds)?[0].sum())
        });
        let [software, hardware] = measured;
        let (software, hardware) = (software?, hardware?);
        ratios.push(software / hardware);
        times[0].push(software);
        times[1].push(hardware);
    }
    let ratio = median(&ratios);
    if ratio < RATIO_MIN {
        return Err(format!(
            "AES is as fast in the copy without extensions (ratio {ratio:.2}): this processor has none, or ring has changed"
        )
        .into());
    }
    let question =
        |by| Question { via: VIA, faster: &[], by, sample: &bench.sample, seconds: setting.seconds };
    let (virtually, without_time) = ([ratio, f64::INFINITY], [f64::INFINITY]);
    let empty = |share: &f64| AtClock {
        share: *share,
        cases: std::array::from_fn(|_| Case::default()),
        own_time: Default::default(),
    };
    let mut rows: Vec<AtClock> = setting.clocks.iter().map(empty).collect();
    for _ in 0..setting.rounds {
        for row in &mut rows {
            clock.set(row.share)?;
            let software = question(&virtually).ask(&bench.software, clock)?;
            let hardware = question(&without_time).ask(&bench.hardware, clock)?;
            row.add(&software, &hardware)?;
        }
    }
    let times = times.each_ref().map(|times| median(times));
    let text = text(bench, clock, &rows, (ratio, times));
    let figures: Vec<Value> = rows.iter().map(|row| row.json(setting.seed)).collect();
    let study = Study {
        title: "Prediction and truth",
        text,
        charts: charts(&rows),
        figures: json!({ "ratio": ratio, "clocks": figures }),
        broken: broken(&rows, setting.seed),
    };
    Ok((study, ratio))
}

/// Returns the broken promise: at the full clock the prediction has the accuracy of the thesis. At a quota both are approximations.
fn broken(rows: &[AtClock], seed: u64) -> Option<String> {
    let full = rows.iter().find(|row| row.share == 1.0)?;
    let [throughput, ..] = full.deviations(1, seed);
    let is_broken = throughput.verdict() == BROKEN;
    is_broken.then(|| format!("the prediction at the full clock is wrong by {}", throughput.text()))
}

fn text(bench: &Bench<'_>, clock: &Clock, rows: &[AtClock], (ratio, times): (f64, [f64; 2])) -> String {
    let seed = bench.setting.seed;
    let mut text = format!(
        "A message takes {:.1} us in both halves of `encrypt` in software and {:.1} us in hardware, each pair alone: a ratio of {ratio:.2}. \
         *Virtual* is the work left out for its time divided by this ratio; *no time* is without any time for it, as in figures 3.5 to \
         3.10. The clock: {}.\n\n\
         | clock | software, MB/s | virtual | no time | hardware | error of virtual (95 %) | error without time | verdict |\n\
         |---|---|---|---|---|---|---|---|\n",
        times[0],
        times[1],
        clock.name()
    );
    // Writing to a string cannot fail.
    for row in rows {
        let rates = row.cases.each_ref().map(|case| format!("{:.1}", median(&case[0]) / 1e6));
        let [predicted, without_time] = [1, 2].map(|case| row.deviations(case, seed)[0]);
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} |",
            row.share,
            rates.join(" | "),
            predicted.text(),
            without_time.text(),
            predicted.verdict()
        );
    }
    let _ = write!(
        text,
        "\nAn error is the median of the rounds' errors with its interval (bootstrap). The verdict is empty if the interval of *virtual* lies \
         within {:.0} %, the error of the thesis over 10 Gigabit Ethernet; *broken* if it lies outside, *uncertain* otherwise.\n\n\
         Processor time, shares of one processor:\n\n\
         | clock | half | software | virtual | no time | hardware | error of virtual | error without time | error of the thesis |\n\
         |---|---|---|---|---|---|---|---|---|\n",
        100.0 * ERROR_MAX
    );
    for row in rows {
        for (at, thesis) in [(1, "3 % and -19 %"), (2, "1 % and 5 %")] {
            let shares = row.cases.each_ref().map(|case| format!("{:.2}", median(&case[at])));
            let [predicted, without_time] = [1, 2].map(|case| row.deviations(case, seed)[at].text());
            let _ = writeln!(
                text,
                "| {} | {} | {} | {predicted} | {without_time} | {thesis} |",
                row.share,
                FIGURES[at],
                shares.join(" | ")
            );
        }
    }
    text += "\nThe thesis has one error for each of its networks. Work left out for exactly its own time, beside the work itself:\n\n\
             | clock | software | hardware |\n|---|---|---|\n";
    for row in rows {
        let [software, hardware] = row.own_time.each_ref().map(|errors| percent(median(errors)));
        let _ = writeln!(text, "| {} | {software} | {hardware} |", row.share);
    }
    text
}

fn charts(rows: &[AtClock]) -> Vec<(&'static str, Chart<'static>)> {
    let line = |name: String, stroke, case: usize, at: usize, unit: f64| {
        let points = rows.iter().map(|row| [row.share, median(&row.cases[case][at]) / unit]).collect();
        Line { stroke, ..Line::solid(name, points) }
    };
    let all = || CASES.iter().enumerate();
    let rates = all().map(|(case, name)| line(name.to_string(), Stroke::Solid, case, 0, 1e6)).collect();
    let halves = [(1, Stroke::Solid), (2, Stroke::Dashed)];
    let shares = all()
        .flat_map(|(case, name)| halves.map(|(at, stroke)| line(name.to_string(), stroke, case, at, 1.0)));
    vec![
        (
            "clock",
            Chart {
                title: "Throughput by clock (figures 3.5 and 3.6)",
                axes: ["share of the clock", "MB/s"],
                scales: [Scale::Linear; 2],
                lines: rates,
            },
        ),
        (
            "processors",
            Chart {
                title: "Processor time by clock (figures 3.7 to 3.10; solid: sender, dashed: receiver)",
                axes: ["share of the clock", "share of one processor"],
                scales: [Scale::Linear; 2],
                lines: shares.collect(),
            },
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_needs_the_whole_interval() {
        for (deviation, verdict) in [
            ([0.01, -0.02, 0.025], ""),
            ([0.05, 0.04, 0.07], "**broken**"),
            ([-0.05, -0.07, -0.04], "**broken**"),
            ([0.02, -0.01, 0.04], "**uncertain**"),
        ] {
            assert_eq!(Deviation(deviation).verdict(), verdict, "{deviation:?}");
        }
    }
}
