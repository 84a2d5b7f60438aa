//! The ratios of `links` beside its goals: ratios of medians over turns, each with its 95 % confidence interval
//! ([`ratio`]). A goal is reached or missed if the whole interval is.

use super::rivals;
use crate::measure::ratio;
use serde_json::Value;

/// The goal of a ratio.
#[derive(Debug, Clone, Copy)]
enum Goal {
    Free,
    AtMost(f64),
    Below(f64),
    /// At this message size only, bytes.
    AtLeast(f64, usize),
}

impl Goal {
    /// Returns the goal at a message size.
    fn at(self, size: usize) -> Goal {
        match self {
            Goal::AtLeast(_, only) if only != size => Goal::Free,
            goal => goal,
        }
    }

    fn text(self) -> String {
        match self {
            Goal::Free => String::new(),
            Goal::AtMost(goal) => format!("<= {goal}"),
            Goal::Below(goal) => format!("< {goal}"),
            Goal::AtLeast(goal, _) => format!(">= {goal}"),
        }
    }

    fn verdict(self, [_, low, high]: [f64; 3]) -> &'static str {
        let (is_reached, is_missed) = match self {
            Goal::Free => return "",
            Goal::AtMost(goal) => (high <= goal, low > goal),
            Goal::Below(goal) => (high < goal, low >= goal),
            Goal::AtLeast(goal, _) => (low >= goal, high < goal),
        };
        match (is_reached, is_missed) {
            (true, _) => "reached",
            (_, true) => "missed",
            _ => "uncertain",
        }
    }
}

/// A ratio: its name, its path, numerator and denominator, an alternative denominator, and the goal. With an alternative
/// the lower ratio counts.
type Ratio = (&'static str, [&'static str; 3], Option<&'static str>, Goal);

/// The ratios of each size.
const RATIOS: [Ratio; 10] = [
    (
        "shm hop / bare futex or eventfd (the lower ratio)",
        ["hop", "shm", "bare eventfd"],
        Some("bare futex"),
        Goal::AtMost(1.3),
    ),
    ("pipe hop / bare pipe", ["hop", "pipe", "bare pipe"], None, Goal::AtMost(1.3)),
    ("program in C, shm / pipe", ["hop", "program in C, shm", "program in C, pipe"], None, Goal::Free),
    ("8 stages, pipes / bare splice", ["chain", "pipes", "bare splice"], None, Goal::Free),
    ("8 stages, shm / bare eventfds", ["chain", "shm", "bare eventfds"], None, Goal::AtMost(1.3)),
    ("8 stages, shm / bare futexes, together", ["chain", "shm", "bare futexes, together"], None, Goal::Free),
    ("8 bare pipes / 8 stages, shm", ["chain", "bare pipes", "shm"], None, Goal::AtLeast(60.0, 1_000_000)),
    ("8 bare pipes / 8 stages, shm, handled", ["chain", "bare pipes", "shm, handled"], None, Goal::Free),
    (
        "8 bare pipes / bare futexes, together",
        ["chain", "bare pipes", "bare futexes, together"],
        None,
        Goal::Free,
    ),
    (
        "8 bare pipes / 8 stages, shm, made and read",
        ["chain", "bare pipes", "shm, made and read"],
        None,
        Goal::Free,
    ),
];

/// Returns the turns of a mechanism, one a round, or `None` where it was not measured.
fn turns(rows: &[Value], size: usize, path: &str, mechanism: &str) -> Option<Vec<f64>> {
    let is_row = |row: &&Value| row["bytes"] == size && row["path"] == path && row["mechanism"] == mechanism;
    let row = rows.iter().find(is_row)?;
    row["turns_us"].as_array()?.iter().map(Value::as_f64).collect()
}

/// Prints each ratio of `rows` beside its goal.
pub(super) fn judge(rows: &[Value], sizes: &[usize], seed: u64) {
    println!();
    println!("{:<62} {:>8} {:>8}   {:<16} verdict", "ratio of medians", "goal", "measured", "95 % interval");
    let print = |name: String, goal: Goal, is: [f64; 3]| {
        let [middle, low, high] = is;
        let interval = format!("[{low:.2}, {high:.2}]");
        let line =
            format!("{name:<62} {:>8} {middle:>8.2}   {interval:<16} {}", goal.text(), goal.verdict(is));
        println!("{}", line.trim_end());
    };
    let ratio_of = |size, path, ours, theirs| {
        Some(ratio(&turns(rows, size, path, ours)?, &turns(rows, size, path, theirs)?, seed))
    };
    for size in sizes.iter().copied() {
        let calls = rows.iter().find(|row| row["bytes"] == size && row["mechanism"] == "call");
        if let Some(us) = calls.and_then(|row| row["p50_us"].as_f64()) {
            let (name, goal, ns) = (format!("8 calls, ns, {size} B"), Goal::Below(100.0), us * 1e3);
            println!("{name:<62} {:>8} {ns:>8.2}   {:<16} {}", goal.text(), "", goal.verdict([ns; 3]));
        }
        for (name, [path, ours, theirs], other, goal) in RATIOS {
            let first = ratio_of(size, path, ours, theirs);
            let second = other.and_then(|other| ratio_of(size, path, ours, other));
            if let Some(is) = first.into_iter().chain(second).min_by(|one, other| one[0].total_cmp(&other[0]))
            {
                print(format!("{name}, {size} B"), goal.at(size), is);
            }
        }
        for (_, rival) in rivals::LIBRARIES {
            if let Some(is) = ratio_of(size, "hop", "shm, waking", rival) {
                print(format!("shm hop, waking / {rival}, {size} B"), Goal::Below(1.0), is);
            }
        }
    }
    let [Some(small), Some(large)] = [sizes.first(), sizes.last()] else { return };
    let [one, other] = [small, large].map(|size| turns(rows, *size, "hop", "shm, waking"));
    if let Some((one, other)) = one.zip(other) {
        print(format!("shm hop, {large} B / {small} B"), Goal::AtMost(1.2), ratio(&other, &one, seed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_around_the_goal_is_uncertain() {
        let turns =
            |middle: f64| -> Vec<f64> { (0..30).map(|at| middle + f64::from(at % 5) / 10.0).collect() };
        let shifted: Vec<f64> = turns(10.0).into_iter().rev().collect();
        let [is, low, high] = ratio(&turns(8.0), &turns(10.0), 1);
        assert!(low <= is && is <= high && (is - 8.2 / 10.2).abs() < 1e-9);
        let below_one = |is| Goal::Below(1.0).verdict(is);
        assert_eq!(below_one([is, low, high]), "reached");
        assert_eq!(below_one(ratio(&turns(10.0), &turns(8.0), 1)), "missed");
        assert_eq!(below_one(ratio(&turns(10.0), &shifted, 1)), "uncertain");
    }

    #[test]
    fn a_goal_holds_at_its_size_only() {
        let goal = Goal::AtLeast(60.0, 1_000_000);
        assert_eq!(goal.at(1_000_000).verdict([44.17, 42.35, 46.71]), "missed");
        assert_eq!(goal.at(100).verdict([2.69, 2.55, 3.17]), "");
    }
}
