//! What the figures of `links` come to beside its goals: ratios of medians over turns, with the interval that they lie in
//! with a certainty of 95 % ([`ratio`]).

use crate::links_chain::SIZES;
use crate::measure::ratio;
use crate::rivals;
use serde_json::Value;

/// What is measured by what, and what is wanted of that; a second measure: the one that comes out lower.
type Goal = (&'static str, [&'static str; 3], Option<&'static str>, &'static str);

/// For each size.
const GOALS: [Goal; 16] = [
    (
        "shm hop by the bare futex or eventfd",
        ["hop", "shm, waking", "bare eventfd"],
        Some("bare futex"),
        "<= 1.3",
    ),
    ("shm hop, spinning, by bare spinning", ["hop", "shm, spinning", "bare spinning"], None, "<= 2"),
    (
        "the same by bare spinning on our lines",
        ["hop", "shm, spinning", "bare spinning, our lines"],
        None,
        "",
    ),
    (
        "the same by that, and a clock read once a turn",
        ["hop", "shm, spinning", "bare spinning, and clock"],
        None,
        "",
    ),
    (
        "the same with a stage that is handed each",
        ["hop", "shm, spinning, handled", "bare spinning"],
        None,
        "",
    ),
    ("pipe hop by the bare pipe", ["hop", "pipe", "bare pipe"], None, "<= 1.3"),
    ("8 pipe stages by bare splicing", ["chain", "pipes", "bare splice"], None, ""),
    ("8 shm stages by bare descriptors", ["chain", "shm", "bare eventfds"], None, "<= 1.3"),
    ("8 shm stages by bare futexes, together", ["chain", "shm", "bare futexes, together"], None, ""),
    ("8 bare whole-message pipes by 8 shm stages", ["chain", "bare pipes", "shm"], None, ">= 60 *"),
    ("the same pipes by 8 of real-time priority", ["chain", "bare pipes", "shm, realtime"], None, ">= 60 *"),
    (
        "pipes of that priority by 8 of it",
        ["chain", "bare pipes, realtime", "shm, realtime"],
        None,
        ">= 60 *",
    ),
    (
        "8 of it by bare futexes of it, together",
        ["chain", "shm, realtime", "bare futexes, realtime"],
        None,
        "",
    ),
    ("the same pipes by 8 that are handed each", ["chain", "bare pipes", "shm, handled"], None, ""),
    ("the same pipes by bare futexes, together", ["chain", "bare pipes", "bare futexes, together"], None, ""),
    (
        "the same pipes by 8 shm stages, made and read",
        ["chain", "bare pipes", "shm, made and read"],
        None,
        "",
    ),
];

/// A way's turns, one a round; `None` if it was not measured.
fn turns(rows: &[Value], size: usize, what: &str, way: &str) -> Option<Vec<f64>> {
    let row = rows.iter().find(|row| row["bytes"] == size && row["what"] == what && row["way"] == way)?;
    row["turns_us"].as_array()?.iter().map(Value::as_f64).collect()
}

/// Who is faster, if that is certain.
fn verdict([_, low, high]: [f64; 3]) -> &'static str {
    if high < 1.0 {
        "ahead"
    } else if low > 1.0 {
        "behind"
    } else {
        "level"
    }
}

/// Prints each goal's ratio.
pub(crate) fn judge(rows: &[Value], seed: u64) {
    println!();
    println!("{:<58} {:>8} {:>8}   {:<18}", "goal (medians)", "wanted", "is", "with 95 %");
    let say = |what: String, wanted: &str, [is, low, high]: [f64; 3], word: &str| {
        let line = format!("{what:<58} {wanted:>8} {is:>8.2}   [{low:.2}, {high:.2}] {word}");
        println!("{}", line.trim_end());
    };
    let ratio_of = |size, what, ours, theirs| {
        Some(ratio(&turns(rows, size, what, ours)?, &turns(rows, size, what, theirs)?, seed))
    };
    for size in SIZES {
        let calls = rows.iter().find(|row| row["bytes"] == size && row["way"] == "call");
        if let Some(us) = calls.and_then(|row| row["p50_us"].as_f64()) {
            println!("{:<58} {:>8} {:>8.2}", format!("8 calls, {size} B, ns"), "< 100", us * 1e3);
        }
        for (name, [what, ours, theirs], other, wanted) in GOALS {
            let first = ratio_of(size, what, ours, theirs);
            let second = other.and_then(|other| ratio_of(size, what, ours, other));
            if let Some(is) = first.into_iter().chain(second).min_by(|one, other| one[0].total_cmp(&other[0]))
            {
                say(format!("{name}, {size} B"), wanted, is, "");
            }
        }
        for (_, rival) in rivals::MEANS {
            if let Some(is) = ratio_of(size, "hop", "shm, waking", rival) {
                say(format!("shm hop, waking, by {rival}, {size} B"), "< 1", is, verdict(is));
            }
        }
    }
    let [small, large] =
        [SIZES[0], SIZES[SIZES.len() - 1]].map(|size| turns(rows, size, "hop", "shm, waking"));
    if let Some((small, large)) = small.zip(large) {
        say("shm hop, 1 MB by 100 B".into(), "<= 1.2", ratio(&large, &small, seed), "");
    }
    println!("* at 1 MB");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_certainly_ahead_is_and_who_may_not_be_is_level() {
        let turns =
            |middle: f64| -> Vec<f64> { (0..30).map(|at| middle + f64::from(at % 5) / 10.0).collect() };
        let shifted: Vec<f64> = turns(10.0).into_iter().rev().collect();
        let [is, low, high] = ratio(&turns(8.0), &turns(10.0), 1);
        assert!(low <= is && is <= high && (is - 8.2 / 10.2).abs() < 1e-9);
        assert_eq!(verdict([is, low, high]), "ahead");
        assert_eq!(verdict(ratio(&turns(10.0), &turns(8.0), 1)), "behind");
        assert_eq!(verdict(ratio(&turns(10.0), &shifted, 1)), "level");
    }
}
