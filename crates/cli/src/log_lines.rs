//! The lines of a log for people. A line that repeats is written once; the number of its repetitions follows after a second, or
//! before the next other line.

use crate::log_writer::LogWriter;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, sleep};
use std::time::Duration;

/// Time in which repetitions are counted before their number is written.
const COUNT_TIME: Duration = Duration::from_secs(1);

/// A log, usable from every thread.
pub(crate) struct LogLines(Arc<Mutex<State>>);

struct State {
    /// Set until the log has ended.
    out: Option<LogWriter>,
    last: String,
    /// Repetitions of the last line that were not written.
    repeats: u64,
}

impl LogLines {
    pub(crate) fn new(out: LogWriter) -> LogLines {
        LogLines(Arc::new(Mutex::new(State { out: Some(out), last: String::new(), repeats: 0 })))
    }

    /// Writes a line, unless it repeats the last one.
    pub(crate) fn write(&self, line: &str) {
        let mut state = lock(&self.0);
        if state.last != line {
            state.write_always(line);
            state.last = line.into();
            return;
        }
        state.repeats += 1;
        if state.repeats == 1 {
            let shared = self.0.clone();
            let count = move || {
                sleep(COUNT_TIME);
                lock(&shared).write_repeats();
            };
            // Without a thread, the next line or the end writes the number.
            let _ = Builder::new().name("log".into()).spawn(count);
        }
    }

    /// Writes a line, even if it repeats the last one.
    pub(crate) fn write_always(&self, line: &str) {
        lock(&self.0).write_always(line);
    }
}

impl Drop for LogLines {
    fn drop(&mut self) {
        let mut state = lock(&self.0);
        state.write_repeats();
        // The thread that counts may keep the state. The last lines are written now.
        state.out = None;
    }
}

impl State {
    fn write_always(&mut self, line: &str) {
        self.write_repeats();
        self.put(line.into());
        self.last.clear();
    }

    fn write_repeats(&mut self) {
        let text = match std::mem::take(&mut self.repeats) {
            0 => return,
            1 => "    (the same once more)".to_string(),
            count => format!("    (the same {count} more times)"),
        };
        self.put(text);
    }

    fn put(&self, line: String) {
        if let Some(out) = &self.out {
            out.push(line);
        }
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Merges equal lines into one with their number, at the place of the first.
pub(crate) fn counted(lines: &[String]) -> Vec<String> {
    let mut counts: Vec<(&String, u64)> = Vec::new();
    for line in lines {
        match counts.iter_mut().find(|(known, _)| *known == line) {
            Some((_, count)) => *count += 1,
            None => counts.push((line, 1)),
        }
    }
    let shown = |(line, count): (&String, u64)| match count {
        1 => line.clone(),
        count => format!("{line} ({count} times)"),
    };
    counts.into_iter().map(shown).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::io::{self, Write};

    #[derive(Clone, Default)]
    pub(crate) struct Written(Arc<Mutex<Vec<u8>>>);

    impl Written {
        pub(crate) fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    pub(crate) fn log_to(written: &Written) -> LogLines {
        LogLines::new(LogWriter::new(Box::new(written.clone()), Box::new(|dropped| dropped.to_string())))
    }

    #[test]
    fn equal_lines_are_written_once_with_their_number() {
        let written = Written::default();
        let log = log_to(&written);
        ["a", "b", "b", "b", "a"].iter().for_each(|line| log.write(line));
        log.write_always("c");
        log.write_always("c");
        (0..7).for_each(|_| log.write("d"));
        drop(log);
        // The thread that counts may have written a part of the last number.
        let text = written.text();
        assert!(text.starts_with("a\nb\n    (the same 2 more times)\na\nc\nc\nd\n    (the same "), "{text}");
        assert_eq!(text.matches("d\n").count(), 1, "{text}");
    }

    #[test]
    fn the_number_follows_without_another_line() {
        let written = Written::default();
        let log = log_to(&written);
        log.write("a");
        log.write("a");
        while written.text() != "a\n    (the same once more)\n" {
            sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn equal_incidents_are_counted() {
        let lines = ["x", "y", "x"].map(String::from);
        assert_eq!(counted(&lines), ["x (2 times)", "y"]);
    }
}
