//! The functions that run in the virtual case and with hardware: tables 3.1 and 3.2 of the thesis, by perf.

use super::ask::Question;
use super::{Bench, Study};
use crate::setting::Failure;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// Functions with a smaller share are left out, as in the thesis.
const SHARE_MIN: f64 = 1.0;
/// Three runs follow one another: as it is, with its own time, and faster. These parts lie within the first one and the last one.
const AS_IT_IS: &str = "15%-30%";
const FASTER: &str = "80%-95%";
const FREQUENCY: &str = "997";

/// A function with its samples and their share, per cent.
struct Function {
    samples: u64,
    share: f64,
    name: String,
}

/// Parses the lines of `perf report`: share, samples, function.
fn parse(report: &str) -> Vec<Function> {
    let function = |line: &str| {
        let mut words = line.split_whitespace();
        let share = words.next()?.strip_suffix('%')?.parse().ok()?;
        let samples = words.next()?.parse().ok()?;
        // The space of the function, as `[k]`, stands before it, and columns without a value behind it.
        let name: Vec<&str> = words.filter(|word| !matches!(*word, "[k]" | "[.]" | "[H]" | "-")).collect();
        let name = name.join(" ");
        Some(Function { samples, share, name: short(&name) })
    };
    report.lines().filter_map(function).collect()
}

/// Shortens the name of a generic function.
fn short(name: &str) -> String {
    const LENGTH_MAX: usize = 72;
    let name = name.replace('|', "/").replace('`', "'");
    match name.char_indices().nth(LENGTH_MAX) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name,
    }
}

/// Records a run of `whatif`, and returns the functions in a part of it. The error says why perf has none.
fn functions(
    question: &Question<'_>,
    program: &Path,
    part: &str,
    data: &Path,
) -> Result<Vec<Function>, String> {
    let whatif = question.command(program);
    let mut record = Command::new("perf");
    record.args(["record", "--quiet", "-e", "cpu-clock", "-F", FREQUENCY, "-o"]).arg(data).arg("--");
    record.arg(whatif.get_program()).args(whatif.get_args());
    let said = |output: &std::process::Output| String::from_utf8_lossy(&output.stderr).trim().to_string();
    let recorded = record.stdin(Stdio::null()).output().map_err(|error| format!("perf: {error}"))?;
    if !recorded.status.success() {
        return Err(format!("perf record: {}", said(&recorded)));
    }
    let mut report = Command::new("perf");
    report.args(["report", "--stdio", "--show-nr-samples", "--sort", "symbol", "--percent-limit"]);
    report.args([&SHARE_MIN.to_string(), "--time", part, "-i"]).arg(data);
    let reported = report.stdin(Stdio::null()).output().map_err(|error| format!("perf: {error}"))?;
    if !reported.status.success() {
        return Err(format!("perf report: {}", said(&reported)));
    }
    let found = parse(&String::from_utf8_lossy(&reported.stdout));
    if found.is_empty() {
        Err(format!("perf report has no functions: {}", said(&reported)))
    } else {
        Ok(found)
    }
}

/// Compares the functions. Without perf the study says so.
pub(super) fn study(bench: &Bench<'_>, ratio: f64) -> Result<Study, Failure> {
    let question = |by| Question {
        via: "encrypt",
        faster: &[],
        by,
        sample: &bench.sample,
        seconds: bench.setting.seconds.max(1.0),
    };
    let data = bench.directory.join("perf.data");
    let measured = [
        ("Hardware (table 3.1)", question(&[f64::INFINITY]), &bench.hardware, AS_IT_IS),
        ("Virtual (table 3.2)", question(&[ratio]), &bench.software, FASTER),
    ]
    .map(|(title, question, programs, part)| (title, functions(&question, &programs.outboard, part, &data)));
    let mut text = String::from(
        "Samples of the processor's clock by perf in both halves; functions below 1 % are left out, as in tables 3.1 and 3.2. The thesis \
         finds functions of the driver of its network card that cost less in the virtual case, because nothing hands work to hardware. \
         Here the extensions are instructions, which cost nothing to call; in the virtual case a busy wait stands in their place.\n",
    );
    let mut figures = Vec::new();
    for (title, functions) in measured {
        // Writing to a string cannot fail.
        let _ = write!(text, "\n{title}:\n\n");
        match functions {
            Ok(functions) => {
                text += "| samples | % | function |\n|---|---|---|\n";
                for Function { samples, share, name } in &functions {
                    let _ = writeln!(text, "| {samples} | {share:.1} | `{name}` |");
                }
                let row = |function: &Function| json!({ "samples": function.samples, "percent": function.share, "function": function.name });
                figures.push(
                    json!({ "case": title, "functions": functions.iter().map(row).collect::<Vec<Value>>() }),
                );
            }
            Err(problem) => {
                let _ = writeln!(text, "not measured: {problem}");
                figures.push(json!({ "case": title, "problem": problem }));
            }
        }
    }
    Ok(Study { title: "Profiles", text, charts: Vec::new(), figures: figures.into(), broken: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_of_a_report_are_functions_and_all_others_are_not() {
        let report = "# Samples: 2K of event 'cpu-clock'\n#\n    26.30%        1717  [k] copy_from_user  -      -\n     1.10%          72  [.] \
                      <a::B as c::D>::e\n";
        let found: Vec<_> = parse(report).into_iter().map(|f| (f.samples, f.share, f.name)).collect();
        assert_eq!(found, [(1717, 26.3, "copy_from_user".into()), (72, 1.1, "<a::B as c::D>::e".into())]);
        assert_eq!(short(&"x".repeat(100)).chars().count(), 73);
    }
}
