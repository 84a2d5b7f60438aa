//! A peer whose messages become far larger when they are decompressed.

use super::attacker::{Assault, AttackerSetting, Came, Orders, PAUSE};
use std::process::{Child, Command, Stdio};
use std::thread;

/// Where each bomb that was made leaves a byte, in the attacker's directory.
pub(super) const BOMBS_MADE: &str = "bombs";

/// A peer that sends what becomes so many bytes: the program itself does.
pub(super) struct Bomber {
    setting: AttackerSetting,
    bytes: usize,
    child: Option<Child>,
}

impl Bomber {
    pub(super) fn new(setting: &AttackerSetting) -> Bomber {
        let bytes = setting.attack.bomb_bytes().unwrap_or_default();
        Bomber { setting: setting.clone(), bytes, child: None }
    }

    /// Zeros in containers, again and again, which are compressed to a thousandth and less.
    fn bombs(&self) -> String {
        let Bomber { setting, bytes, .. } = self;
        let length: String =
            (*bytes as u32).to_le_bytes().iter().map(|byte| format!("\\{byte:03o}")).collect();
        let created = r"\000".repeat(8);
        let made = setting.directory.join(BOMBS_MADE);
        format!(
            r#"exec:while :; do printf "{length}{created}"; head -c {bytes} /dev/zero; printf . >>{}; done,frame=container,max=64MiB"#,
            made.display()
        )
    }
}

impl Assault for Bomber {
    fn attempt(&mut self, _: &Orders) -> Came {
        if self.child.is_none() {
            let mut command = Command::new(&self.setting.program);
            let state = self.setting.directory.parent();
            command.args(["attach", &format!("{}/toy", self.setting.address), "--json"]);
            command.args(["--as", &self.bombs(), "--via-back", "compress"]);
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
