//! The links by which applications find a terminal whose own path the kernel chooses.

use crate::plain::os;
use contract::DeviceError;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time limit for a terminal to end whose process was killed.
const EXIT_WAIT: Duration = Duration::from_secs(1);

/// A link to a terminal. Removed on drop, unless another process has replaced it.
#[derive(Debug)]
pub(crate) struct PathLink {
    pub(crate) path: PathBuf,
    pub(crate) target: PathBuf,
}

impl Drop for PathLink {
    fn drop(&mut self) {
        if fs::read_link(&self.path).is_ok_and(|target| target == self.target) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Makes `path` a link to the terminal of a node of `class`. Replaces only a stale link to such a terminal: one to a path that
/// starts with `targets`, and not live.
pub(crate) fn create(
    path: &Path,
    terminal: &Path,
    class: &str,
    targets: &str,
    is_live: impl Fn(&fs::Metadata, &Path) -> bool,
) -> Result<(), DeviceError> {
    let refused = |error| os(format!("linking {} to {}", path.display(), terminal.display()), error, None);
    let to_terminal = |old: PathBuf| old.to_str().is_some_and(|old| old.starts_with(targets));
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(refused(error)),
        Ok(found) if fs::read_link(path).is_ok_and(to_terminal) => {
            // The worker of an `attach` that was killed exits soon.
            let until = Instant::now() + EXIT_WAIT;
            while is_live(&found, path) && Instant::now() < until {
                std::thread::sleep(EXIT_WAIT / 50);
            }
            if is_live(&found, path) {
                return Err(DeviceError::Spec {
                    what: format!("`{class}:{}`", path.display()),
                    problem: "another program has made it, and its terminal still exists: end that program, or choose \
                              another path"
                        .into(),
                });
            }
            fs::remove_file(path).map_err(refused)?;
        }
        Ok(_) => {
            return Err(DeviceError::Spec {
                what: format!("`{class}:{}`", path.display()),
                problem: "it exists and is not a link to a terminal of this class; remove it or choose another path"
                    .into(),
            });
        }
    }
    std::os::unix::fs::symlink(terminal, path).map_err(refused)
}
