//! A peer that attaches what it may, with the program itself, and makes the sharer work for it.

use super::attacker::{Assault, Attack, AttackerSetting, Came, Orders, PAUSE};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

/// Where each bomb that was made for this sharer leaves a byte, in the attacker's directory.
pub(super) fn bombs_made(directory: &Path, sharer: SocketAddr) -> PathBuf {
    directory.join(format!("bombs-{}", sharer.port()))
}

/// A peer whose messages become far larger when they are decompressed, who has its device's compressed at great cost, or who
/// reads none of it.
pub(super) struct Bomber {
    setting: AttackerSetting,
    child: Option<Child>,
}

impl Bomber {
    pub(super) fn new(setting: &AttackerSetting) -> Bomber {
        Bomber { setting: setting.clone(), child: None }
    }

    /// Zeros in containers, again and again, which are compressed to a thousandth and less.
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

    /// What is attached, as what and through what.
    fn words(&self) -> [String; 5] {
        let Bomber { setting, .. } = self;
        let [name, application, option, pipeline] = match (setting.attack, setting.attack.bomb_bytes()) {
            (_, Some(bytes)) => ["toy", &self.bombs(bytes), "--via-back", "compress"],
            (Attack::Costly, None) => ["spring", "null", "--via", "compress(zstd, level=19)"],
            (Attack::Member, None) => ["device", "exec:sleep 1000", "--via", "null"],
            _ => ["spring", "exec:sleep 1000", "--via", "null"],
        };
        let target = format!("{}/{name}", setting.address);
        [&target, "--as", application, option, pipeline].map(String::from)
    }
}

impl Assault for Bomber {
    fn attempt(&mut self, _: &Orders) -> Came {
        if self.child.is_none() {
            let mut command = Command::new(&self.setting.program);
            let state = self.setting.directory.parent();
            command.args(["attach", "--json"]).args(self.words());
            command.env("XDG_STATE_HOME", state.unwrap_or(&self.setting.directory));
            command.env("XDG_RUNTIME_DIR", &self.setting.directory);
            command.stdin(Stdio::null()).stdout(Stdio::null());
            self.child = command.spawn().ok();
            return Came::Refused("welcomed, as it may be".into());
        }
        thread::sleep(PAUSE);
        Came::Silence
    }

    fn rest(&mut self) {
        if let Some(mut child) = self.child.take() {
            let pid = rustix::process::Pid::from_child(&child);
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            let _ = child.wait();
        }
    }
}
