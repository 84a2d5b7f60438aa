//! Other projects' mechanisms, measured by the program of the workspace `bench/rivals`.

use crate::setting::Failure;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The program's argument for each mechanism and its name in the tables.
pub(super) const LIBRARIES: [(&str, &str); 3] =
    [("iceoryx2", "iceoryx2, events"), ("zenoh", "zenoh, TCP"), ("zenoh-shm", "zenoh, shared memory")];

/// The program's two processes for one mechanism and one message size.
pub(super) struct Rival {
    process: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Rival {
    pub(super) fn start(program: &Path, library: &str, size: usize) -> Result<Rival, Failure> {
        let mut command = Command::new(program);
        command.args([library, &size.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().map_err(|error| format!("{}: {error}", program.display()))?;
        let to = process.stdin.take();
        let from = process.stdout.take().ok_or("a process without pipes")?;
        let mut rival = Rival { process, to, from: BufReader::new(from) };
        // A mechanism that cannot work fails here, not in the middle of the rounds.
        rival.measure(1).map_err(|error| format!("{library}, {size} bytes: {error}"))?;
        Ok(rival)
    }

    /// Sends `count` messages there and back. Returns half of each round trip in nanoseconds.
    pub(super) fn measure(&mut self, count: usize) -> Result<Vec<u64>, Failure> {
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
        // At the end of its input the program stops its second process and exits.
        self.to = None;
        let _ = self.process.wait();
    }
}
