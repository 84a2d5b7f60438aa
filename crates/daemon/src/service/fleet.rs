//! The hosts of a fleet: the directory `peers.d` beside a run file. Its files hold key lines ([`KeyLine`]), with a permit
//! for each host. They are read with the run file, and decide which of their hosts this host knows.

use super::plan::text_at;
use contract::ServiceError;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use trust::{KeyLine, PEERS_MAX, Peers, Trust};

/// Name of the directory.
const DIRECTORY: &str = "peers.d";
/// Extension of its files. Others, such as the backup of an editor, are not read.
const EXTENSION: &str = "peer";

/// The key lines of a directory.
pub(super) struct Fleet {
    directory: String,
    lines: Vec<KeyLine>,
    /// Files that are not read.
    ignored: Vec<PathBuf>,
}

impl Fleet {
    /// Reads the directory beside the run file at `path`; `None` if there is none. An error names the file and the line.
    pub(super) fn beside(path: &Path) -> Result<Option<Fleet>, ServiceError> {
        let directory = path.parent().unwrap_or(Path::new("")).join(DIRECTORY);
        let failed = |error| ServiceError::os(format!("reading {}", directory.display()), error);
        let entries = match fs::read_dir(&directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            entries => entries.map_err(failed)?,
        };
        check_writers(&directory)?;
        let mut paths = Vec::new();
        for entry in entries {
            paths.push(entry.map_err(failed)?.path());
        }
        paths.sort();
        let is_read = |path: &PathBuf| path.extension().is_some_and(|extension| extension == EXTENSION);
        let (read, ignored): (Vec<_>, Vec<_>) = paths.into_iter().partition(is_read);
        let mut lines: Vec<KeyLine> = Vec::new();
        for path in read {
            check_writers(&path)?;
            let wrong = |problem: String| ServiceError::Usage(format!("{}: {problem}", path.display()));
            for line in KeyLine::parse_all(&text_at(&path)?).map_err(wrong)? {
                let is_other =
                    |known: &&KeyLine| (known.key == line.key || known.name == line.name) && **known != line;
                if let Some(other) = lines.iter().find(is_other) {
                    let alike = if other.key == line.key { "key" } else { "name" };
                    return Err(wrong(format!("another line has the {alike} of `{line}`: `{other}`")));
                }
                if !lines.contains(&line) {
                    lines.push(line);
                }
            }
            if lines.len() > PEERS_MAX {
                return Err(wrong(format!("more than {PEERS_MAX} hosts, which is all there may be")));
            }
        }
        // The path identifies the directory in the list of peers, wherever the service starts.
        let directory = fs::canonicalize(&directory).map_err(failed)?.display().to_string();
        Ok(Some(Fleet { directory, lines, ignored }))
    }

    /// Returns the known hosts as they will be, without an effect on the list.
    pub(super) fn preview(&self, trust: &Trust) -> Result<Peers, ServiceError> {
        let mut peers = trust.peers()?;
        self.declare(&mut peers, trust)?;
        Ok(peers)
    }

    /// Makes its hosts known, and removes those that it lists no longer.
    pub(super) fn apply(&self, trust: &Trust) -> Result<(), ServiceError> {
        trust.edit(|peers| self.declare(peers, trust))
    }

    /// Names the files that are not read.
    pub(super) fn remarks(&self) -> Vec<String> {
        let remark = |path: &PathBuf| {
            format!(
                "{} is not read: a file of key lines has a name that ends in .{EXTENSION}",
                path.display()
            )
        };
        self.ignored.iter().map(remark).collect()
    }

    fn declare(&self, peers: &mut Peers, trust: &Trust) -> Result<(), ServiceError> {
        peers.declare(&self.directory, &self.lines, &trust.key())
    }
}

/// Refuses a file or directory with keys that every user can change.
fn check_writers(path: &Path) -> Result<(), ServiceError> {
    let name = path.display();
    let found = fs::metadata(path).map_err(|error| ServiceError::os(format!("reading {name}"), error))?;
    if found.mode() & 0o002 == 0 {
        return Ok(());
    }
    Err(ServiceError::Usage(format!("{name} can be written by every user: say `chmod o-w {name}`")))
}
