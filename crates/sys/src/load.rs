//! How many threads of this machine want a processor at this moment (`/proc/loadavg`, `proc_loadavg(5)`).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Longer than the file's one line.
const LINE_BYTES: usize = 128;

/// The kernel's count, asked as often as one likes for about a microsecond each time.
#[derive(Debug)]
pub struct Load {
    file: File,
}

impl Load {
    /// Opens it; refused where there is no such file, or no right to it.
    pub fn open() -> io::Result<Load> {
        Ok(Load { file: File::open("/proc/loadavg")? })
    }

    /// Threads that run or wait for a processor, the asking one among them; `None` if the kernel does not say.
    pub fn runnable(&self) -> Option<usize> {
        let mut line = [0; LINE_BYTES];
        let count = self.file.read_at(&mut line, 0).ok()?;
        let line = std::str::from_utf8(&line[..count]).ok()?;
        line.split_ascii_whitespace().nth(3)?.split_once('/')?.0.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_is_among_those_that_run() {
        let load = Load::open().unwrap();
        assert!(load.runnable().is_some_and(|count| count >= 1));
        assert!(load.runnable().is_some_and(|count| count >= 1), "and again");
    }
}
