//! Other projects' means of handing messages on: the program of the workspace `bench/rivals`, which is built by itself.

use crate::Failure;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// What it knows, as the tables call it.
pub(crate) const MEANS: [(&str, &str); 3] =
    [("iceoryx2", "iceoryx2, events"), ("zenoh", "zenoh, TCP"), ("zenoh-shm", "zenoh, shared memory")];

/// Its two processes for one means and one size.
pub(crate) struct Rival {
    process: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Rival {
    pub(crate) fn start(program: &Path, means: &str, size: usize) -> Result<Rival, Failure> {
        let mut command = Command::new(program);
        command.args([means, &size.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().map_err(|error| format!("{}: {error}", program.display()))?;
        let to = process.stdin.take();
        let from = process.stdout.take().ok_or("a process without pipes")?;
        let mut rival = Rival { process, to, from: BufReader::new(from) };
        // What it cannot do at all it is not asked for later.
        rival.measure(1).map_err(|error| format!("{means}, {size} bytes: {error}"))?;
        Ok(rival)
    }

    /// So many messages there and back; half of the time of each, nanoseconds.
    pub(crate) fn measure(&mut self, count: usize) -> Result<Vec<u64>, Failure> {
        writeln!(self.to.as_mut().ok_or("a process without pipes")?, "{count}")?;
        let mut line = String::new();
        self.from.read_line(&mut line)?;
        let times = line.split_whitespace().map(str::parse).collect::<Result<Vec<_>, _>>()?;
        match times.len() == count {
            true => Ok(times),
            false => Err("it ended".into()),
        }
    }
}

impl Drop for Rival {
    fn drop(&mut self) {
        // It ends the process that answers, and then itself.
        self.to = None;
        let _ = self.process.wait();
    }
}
