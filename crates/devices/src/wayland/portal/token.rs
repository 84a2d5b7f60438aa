//! The portal's token of the last share, with which the next one asks nobody. It is a right to see and use the desktop, so only
//! its user can read it.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The longest token that is read.
const TOKEN_BYTES_MAX: u64 = 1024;

/// Returns the file of a token: shares that are only viewed have one of their own.
pub(super) fn path(is_view_only: bool) -> Option<PathBuf> {
    let name = if is_view_only { "portal-view" } else { "portal-desktop" };
    sys::environment::state_directory().map(|directory| directory.join(name))
}

/// Returns the token in a file; `None` if there is none.
pub(super) fn read(path: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(path).ok()?.take(TOKEN_BYTES_MAX).read_to_string(&mut text).ok()?;
    Some(text.trim().to_string()).filter(|token| !token.is_empty())
}

/// Replaces the token in a file, or removes it.
pub(super) fn write(path: &Path, token: Option<&str>) -> io::Result<()> {
    let Some(token) = token else {
        return match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
    };
    if let Some(directory) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    }
    let beside = path.with_extension("new");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
    file.write_all(token.as_bytes())?;
    fs::rename(beside, path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_token_is_kept_for_its_user_alone() {
        let directory = std::env::temp_dir().join(format!("outboard-token-{}", std::process::id()));
        let path = directory.join("state").join("portal-desktop");
        assert_eq!(read(&path), None);
        write(&path, Some("secret")).unwrap();
        write(&path, Some("secret2")).unwrap();
        assert_eq!(read(&path).as_deref(), Some("secret2"));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        write(&path, None).unwrap();
        write(&path, None).unwrap();
        assert_eq!(read(&path), None);
        fs::remove_dir_all(directory).unwrap();
    }
}
