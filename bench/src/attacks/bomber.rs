//! A peer that attaches an allowed device with the program itself and makes the device host work.

use super::assault::{Assault, Attack, AttackerSetting, Attempt, Orders, PAUSE};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

/// Returns the file in the attacker's directory that gets a byte for each bomb for this device host.
pub(super) fn bombs_made(directory: &Path, host: SocketAddr) -> PathBuf {
    directory.join(format!("bombs-{}", host.port()))
}

/// A peer that sends decompression bombs, or that attaches an expensive device, or that reads nothing.
pub(super) struct Bomber {
    setting: AttackerSetting,
    child: Option<Child>,
}

impl Bomber {
    pub(super) fn new(setting: &AttackerSetting) -> Bomber {
        Bomber { setting: setting.clone(), child: None }
    }

    /// Returns the application side that sends containers of zeros, which compress to less than a thousandth.
    fn bombs(&self, bytes: usize) -> String {
        let length: String =
            (bytes as u32).to_le_bytes().iter().map(|byte| format!("\\{byte:03o}")).collect();
        let created = r"\000".repeat(8);
        let made = bombs_made(&self.setting.directory, self.setting.address);
        format!(
            r#"exec:while :; do printf "{length}{created}"; head -c {bytes} /dev/zero; printf . >>{}; done,frame=container,max=64MiB"#,
            made.display()
        )
    }

    /// Returns the arguments of `attach`.
    fn words(&self) -> [String; 5] {
        let Bomber { setting, .. } = self;
        let [name, application, option, pipeline] = match (setting.attack, setting.attack.bomb_bytes()) {
            (_, Some(bytes)) => ["toy", &self.bombs(bytes), "--via-back", "compress"],
            (Attack::Costly, None) => ["spring", "null", "--via", "compress(zstd, level=19)"],
            (Attack::Member, None) => ["device", "exec:sleep 1000", "--via", "null"],
            _ => ["spring", "exec:sleep 1000", "--via", "null"],
        };
        let target = format!("device-host@{}/{name}", setting.address);
        [&target, "--as", application, option, pipeline].map(String::from)
    }
}

impl Assault for Bomber {
    fn attempt(&mut self, _: &Orders) -> Attempt {
        if self.child.is_none() {
            let mut command = Command::new(&self.setting.program);
            let state = self.setting.directory.parent();
            command.args(["attach", "--json"]).args(self.words());
            command.env("XDG_STATE_HOME", state.unwrap_or(&self.setting.directory));
            command.env("XDG_RUNTIME_DIR", &self.setting.directory);
            command.stdin(Stdio::null()).stdout(Stdio::null());
            self.child = command.spawn().ok();
            return Attempt::Refused("welcomed (allowed)".into());
        }
        thread::sleep(PAUSE);
        Attempt::Silence
    }

    fn rest(&mut self) {
        if let Some(mut child) = self.child.take() {
            let pid = rustix::process::Pid::from_child(&child);
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            let _ = child.wait();
        }
    }
}
