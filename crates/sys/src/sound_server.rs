//! The sound servers of this user: PipeWire, and the daemon of PulseAudio.

use std::env::var_os;
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// The process of a daemon, in its directory. PipeWire writes it too where it takes the place of PulseAudio.
const PROCESS_FILE: &str = "pid";
/// The name of the process.
const PULSEAUDIO: &str = "pulseaudio";

/// Returns true if a PipeWire answers (`pipewire(1)`).
pub fn pipewire_answers() -> bool {
    let directory = var_os("PIPEWIRE_RUNTIME_DIR").or_else(|| var_os("XDG_RUNTIME_DIR")).unwrap_or_default();
    let name = var_os("PIPEWIRE_REMOTE").unwrap_or_else(|| "pipewire-0".into());
    let socket = PathBuf::from(directory).join(name);
    socket.is_absolute() && UnixStream::connect(socket).is_ok()
}

/// Returns true if the daemon of PulseAudio runs, and not PipeWire in its place.
pub fn pulseaudio_runs() -> bool {
    let standard = || var_os("XDG_RUNTIME_DIR").map(|directory| Path::new(&directory).join("pulse"));
    let directory = var_os("PULSE_RUNTIME_PATH").map(PathBuf::from).or_else(standard);
    directory.is_some_and(|directory| has_pulseaudio(&directory))
}

fn has_pulseaudio(directory: &Path) -> bool {
    let process = fs::read_to_string(directory.join(PROCESS_FILE)).unwrap_or_default();
    // A number: it becomes a part of a path.
    let name = |process: u32| fs::read_to_string(format!("/proc/{process}/comm"));
    process.trim().parse().is_ok_and(|process: u32| name(process).is_ok_and(|name| name.trim() == PULSEAUDIO))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_of_the_file_tells_which_server_it_is() {
        let directory = std::env::temp_dir().join(format!("outboard-pulse-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let is_pulseaudio = |process: &str| {
            fs::write(directory.join(PROCESS_FILE), process).unwrap();
            has_pulseaudio(&directory)
        };
        assert!(!has_pulseaudio(&directory), "no daemon");
        assert!(!is_pulseaudio(&format!("{}\n", std::process::id())), "another process");
        assert!(!is_pulseaudio("self"));
        // The kernel has the names of threads as those of processes.
        let thread = || format!("{}\n", rustix::thread::gettid().as_raw_nonzero());
        let found = std::thread::scope(|scope| {
            let named = std::thread::Builder::new().name(PULSEAUDIO.into());
            named.spawn_scoped(scope, || is_pulseaudio(&thread())).unwrap().join().unwrap()
        });
        assert!(found);
        fs::remove_dir_all(&directory).unwrap();
    }
}
