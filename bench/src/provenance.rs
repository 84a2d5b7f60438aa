//! The line under each title of a measured page: date, commit, build, machine, load and command.

use std::fmt;
use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// The origin of a measurement that starts now. It prints as one paragraph of Markdown.
#[derive(Debug, Clone)]
pub(crate) struct Provenance(String);

impl Provenance {
    /// The origin of a measurement by this program with its current arguments.
    pub(crate) fn of_this_run() -> Provenance {
        let directory = std::env::current_dir().unwrap_or_default();
        Provenance::of(&command(std::env::args(), &directory))
    }

    /// The origin of a measurement by another command.
    pub(crate) fn of(command: &str) -> Provenance {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let build = if cfg!(debug_assertions) { "development" } else { "release" };
        Provenance(format!(
            "Measured on {}, commit {}, {build} build. {}\nCommand: `{command}`.",
            date(seconds / 86_400),
            env!("OUTBOARD_COMMIT"),
            machine()
        ))
    }
}

impl fmt::Display for Provenance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Describes kernel, processors and load.
fn machine() -> String {
    let read = |file: &str| fs::read_to_string(file).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    format!(
        "Linux {}, {} × {}, load {} at the start.",
        read("/proc/sys/kernel/osrelease").trim(),
        std::thread::available_parallelism().map_or(0, usize::from),
        model.map_or("unknown processor", |(_, name)| name),
        read("/proc/loadavg").split(' ').next().unwrap_or("unknown")
    )
}

/// Returns the command line without directories of the machine and without the options that only place the output.
fn command(arguments: impl Iterator<Item = String>, directory: &Path) -> String {
    let mut words = Vec::new();
    let mut arguments = arguments.peekable();
    while let Some(argument) = arguments.next() {
        if matches!(argument.as_str(), "--section" | "--json") {
            arguments.next();
            continue;
        }
        let path = Path::new(&argument);
        let shown = match path.strip_prefix(directory) {
            _ if words.is_empty() || path.is_relative() => path.file_name().filter(|_| words.is_empty()),
            Ok(inside) => Some(inside.as_os_str()),
            Err(_) => path.file_name(),
        };
        let word = shown.map_or(argument.clone(), |name| name.to_string_lossy().into_owned());
        let is_plain = word.chars().all(|c| c.is_alphanumeric() || "-_.,=:/@%".contains(c));
        words.push(if is_plain && !word.is_empty() { word } else { format!("'{word}'") });
    }
    words.join(" ")
}

/// The date of a day since 1970 (Howard Hinnant: "chrono-Compatible Low-Level Date Algorithms", `civil_from_days`).
fn date(day: u64) -> String {
    let day = day + 719_468;
    let (era, of_era) = (day / 146_097, day % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let of_month = of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    format!("{:04}-{month:02}-{of_month:02}", era * 400 + year + next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_become_dates() {
        for (day, text) in [
            (0, "1970-01-01"),
            (59, "1970-03-01"),
            (11_016, "2000-02-29"),
            (20_453, "2025-12-31"),
            (20_454, "2026-01-01"),
        ] {
            assert_eq!(date(day), text);
        }
    }

    #[test]
    fn a_command_has_no_directories_of_the_machine() {
        let words =
            ["/a/target/release/outboard-bench", "links", "--section", "A title", "--rivals", "/b/rivals"];
        let more = ["--page", "/a/docs/measurements/figures.md", "--only", "chain: shm", "--seed", "1"];
        let arguments = words.into_iter().chain(more).map(String::from);
        assert_eq!(
            command(arguments, Path::new("/a")),
            "outboard-bench links --rivals rivals --page docs/measurements/figures.md --only 'chain: shm' --seed 1"
        );
    }
}
