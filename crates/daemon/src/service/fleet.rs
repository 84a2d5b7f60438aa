//! The hosts of a fleet: the directory `peers.d` beside a run file. Its files hold key lines ([`KeyLine`]), with a permit
//! for each host. They are read with the run file, and decide which of their hosts this host knows.

use super::plan::{named, text_at};
use contract::ServiceError;
use std::collections::BTreeMap;
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
    /// Remarks for the user: files that are not read, and hosts of directories that are gone.
    pub(super) remarks: Vec<String>,
}

impl Fleet {
    /// Reads the directory beside the run file at `path`. An error names the file and the line. `None` if there is no
    /// directory and no known host is of one.
    pub(super) fn beside(path: &Path) -> Result<Option<Fleet>, ServiceError> {
        let directory = path.parent().unwrap_or(Path::new("")).join(DIRECTORY);
        let failed = |error| ServiceError::os(format!("reading {}", directory.display()), error);
        let entries = match fs::read_dir(&directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Fleet::without(&directory)),
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
            let place = path.display().to_string();
            let wrong = |problem: String| ServiceError::Usage(format!("{place}: {problem}"));
            let text = text_at(&path).map_err(|error| named(&place, error))?;
            for line in KeyLine::parse_all(&text).map_err(wrong)? {
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
        let mut remarks: Vec<_> = ignored.iter().map(|path| not_read(path)).collect();
        remarks.extend(left_behind(&directory, &lines, &known_hosts()));
        Ok(Some(Fleet { directory, lines, remarks }))
    }

    /// Returns the fleet of a directory that is missing: its hosts, if some are known, leave.
    fn without(directory: &Path) -> Option<Fleet> {
        let known = known_hosts();
        if known.iter().all(|peer| peer.listed_in.is_none()) {
            return None;
        }
        let parent = directory.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = fs::canonicalize(parent.unwrap_or(Path::new("."))).ok()?;
        let directory = parent.join(DIRECTORY).display().to_string();
        let remarks = left_behind(&directory, &[], &known);
        Some(Fleet { directory, lines: Vec::new(), remarks })
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

    fn declare(&self, peers: &mut Peers, trust: &Trust) -> Result<(), ServiceError> {
        peers.declare(&self.directory, &self.lines, &trust.key())
    }
}

fn known_hosts() -> Peers {
    Trust::existing().and_then(|trust| trust.peers().ok()).unwrap_or_default()
}

fn not_read(path: &Path) -> String {
    format!("{} is not read: a file of key lines has a name that ends in .{EXTENSION}", path.display())
}

/// Names the hosts of other directories that are gone, for example because the run file was moved: no line removes them.
fn left_behind(directory: &str, lines: &[KeyLine], known: &Peers) -> Vec<String> {
    let mut hosts: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for peer in known.iter() {
        if let Some(other) = peer.listed_in.as_deref().filter(|other| *other != directory)
            && lines.iter().all(|line| line.key != peer.key)
            && matches!(Path::new(other).try_exists(), Ok(false))
        {
            hosts.entry(other).or_default().push(&peer.name);
        }
    }
    let remark = |(other, names): (&str, Vec<&str>)| {
        let names = names.join(", ");
        format!(
            "{other} is gone, and its hosts stay known: {names}; `outboard peers remove NAME` removes one"
        )
    };
    hosts.into_iter().map(remark).collect()
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
