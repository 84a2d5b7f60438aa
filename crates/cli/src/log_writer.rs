//! The writer of a log: a thread behind a bounded queue. A reader that stops reading fills the queue; further lines are
//! dropped and counted, and no flow waits.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::Duration;

/// Most bytes in the queue.
const QUEUE_BYTES_MAX: usize = 1 << 20;
/// Wait at the end for the reader to take the queued lines.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// Makes the line that tells the number of dropped lines.
type DroppedLine = dyn Fn(u64) -> String + Send;

/// The sender's end of the queue. On drop it waits for the writer, up to [`END_TIMEOUT`].
pub(crate) struct LogWriter(Arc<Queue>);

struct Queue {
    state: Mutex<State>,
    /// Signalled when lines are added, and at both ends.
    changed: Condvar,
}

struct State {
    lines: VecDeque<String>,
    bytes: usize,
    /// Lines dropped since the last line in the queue.
    dropped: u64,
    dropped_line: Box<DroppedLine>,
    /// The sender has ended.
    is_ended: bool,
    /// The writer has ended.
    is_written: bool,
}

impl LogWriter {
    /// Writes to `out` on a thread of its own.
    pub(crate) fn new(mut out: Box<dyn Write + Send>, dropped_line: Box<DroppedLine>) -> LogWriter {
        let (lines, bytes, dropped) = (VecDeque::new(), 0, 0);
        let state = State { lines, bytes, dropped, dropped_line, is_ended: false, is_written: false };
        let queue = Arc::new(Queue { state: Mutex::new(state), changed: Condvar::new() });
        let shared = queue.clone();
        let write = move || {
            while let Some(line) = shared.next() {
                // A service continues after the reader of its log has closed it.
                let _ = writeln!(out, "{line}").and_then(|()| out.flush());
            }
            shared.lock().is_written = true;
            shared.changed.notify_all();
        };
        // Without a thread, the queue fills and the log is lost.
        let started = Builder::new().name("log-writer".into()).spawn(write);
        queue.lock().is_written = started.is_err();
        LogWriter(queue)
    }

    /// Adds a line, or drops it if the queue is full.
    pub(crate) fn push(&self, line: String) {
        self.0.lock().push(line);
        self.0.changed.notify_all();
    }
}

impl Drop for LogWriter {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.is_ended = true;
        self.0.changed.notify_all();
        drop(self.0.changed.wait_timeout_while(state, END_TIMEOUT, |state| !state.is_written));
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next line. Returns `None` after the last one.
    fn next(&self) -> Option<String> {
        let waits = |state: &mut State| state.lines.is_empty() && state.dropped == 0 && !state.is_ended;
        let waited = self.changed.wait_while(self.lock(), waits);
        waited.unwrap_or_else(PoisonError::into_inner).pop()
    }
}

impl State {
    fn push(&mut self, line: String) {
        if self.bytes + line.len() > QUEUE_BYTES_MAX {
            self.dropped += 1;
            return;
        }
        if let Some(line) = self.take_dropped() {
            self.add(line);
        }
        self.add(line);
    }

    fn add(&mut self, line: String) {
        self.bytes += line.len();
        self.lines.push_back(line);
    }

    fn pop(&mut self) -> Option<String> {
        let Some(line) = self.lines.pop_front() else { return self.take_dropped() };
        self.bytes -= line.len();
        Some(line)
    }

    /// Returns the line that tells the number of dropped lines, if there are some.
    fn take_dropped(&mut self) -> Option<String> {
        match std::mem::take(&mut self.dropped) {
            0 => None,
            dropped => Some((self.dropped_line)(dropped)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{self, BufRead, BufReader};

    #[test]
    fn a_reader_that_does_not_read_costs_lines_and_gets_their_number() {
        let (reader, writer) = io::pipe().unwrap();
        let log = LogWriter::new(Box::new(writer), Box::new(|dropped| format!("dropped {dropped}")));
        let line = |number: u64| format!("{number:01024}");
        const COUNT: u64 = 4096;
        (0..COUNT).for_each(|number| log.push(line(number)));
        let mut lines = BufReader::new(reader).lines().map(Result::unwrap);
        let mut next = || lines.next().unwrap();
        // A number stands where its lines are missing.
        let (mut number, mut dropped) = (0, 0);
        while number < COUNT {
            let text = next();
            match text.strip_prefix("dropped ") {
                Some(count) => {
                    let count: u64 = count.parse().unwrap();
                    (number, dropped) = (number + count, dropped + count);
                }
                None => {
                    assert_eq!(text, line(number));
                    number += 1;
                }
            }
        }
        assert!(number == COUNT && dropped > 0, "{number}, {dropped}");
        log.push("later".into());
        assert_eq!(next(), "later");
        log.push("last".into());
        drop(log);
        assert_eq!(next(), "last");
    }
}
