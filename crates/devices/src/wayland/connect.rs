//! Connects to a compositor by name, as libwayland does: a socket in `XDG_RUNTIME_DIR`, or a path.

use contract::{DeviceError, DeviceSpec};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// The name without one in the environment.
const NAME: &str = "wayland-0";
/// The most sockets that are listed.
const SOCKETS_MAX: usize = 64;

fn runtime_directory() -> Option<PathBuf> {
    std::env::var_os("XDG_RUNTIME_DIR").filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Returns the name of a display: the target, or `$WAYLAND_DISPLAY` if it is empty.
pub(super) fn display_name(spec: &DeviceSpec) -> String {
    match spec.target.as_str() {
        "" => std::env::var("WAYLAND_DISPLAY").ok().filter(|name| !name.is_empty()).unwrap_or(NAME.into()),
        target => target.into(),
    }
}

/// Returns the names of the sockets of this user.
pub(super) fn local_displays() -> Vec<String> {
    let Some(entries) = runtime_directory().and_then(|path| std::fs::read_dir(path).ok()) else {
        return Vec::new();
    };
    let name = |entry: io::Result<std::fs::DirEntry>| entry.ok()?.file_name().into_string().ok();
    let is_display = |name: &String| name.starts_with("wayland-") && !name.ends_with(".lock");
    let mut names: Vec<String> = entries.filter_map(name).filter(is_display).take(SOCKETS_MAX).collect();
    names.sort_unstable();
    names
}

/// Connects to a display.
pub(super) fn connect(display: &str) -> Result<OwnedFd, DeviceError> {
    let path = match (Path::new(display), runtime_directory()) {
        (path, _) if path.is_absolute() => path.to_path_buf(),
        (name, Some(directory)) => directory.join(name),
        (_, None) => {
            return Err(DeviceError::Spec {
                what: format!("`wayland:{display}`"),
                problem: "XDG_RUNTIME_DIR is not set: run this in the session of the desktop, or write the path of its \
                          socket, as in `wayland:/run/user/1000/wayland-0`"
                    .into(),
            });
        }
    };
    let stream = UnixStream::connect(&path).and_then(|stream| stream.set_nonblocking(true).map(|()| stream));
    stream.map(OwnedFd::from).map_err(|error| {
        let advice = match error.kind() {
            io::ErrorKind::PermissionDenied => "run this as the user of the desktop",
            _ => "is a Wayland desktop running, and is this its name? `outboard devices` lists the desktops of this user",
        };
        DeviceError::Os {
            operation: format!("connecting to the compositor at {}", path.display()),
            error,
            advice: Some(advice.into()),
        }
    })
}
