//! Two hosts in network namespaces, joined by `netlab`.

use crate::programs::{progress, run};
use crate::setting::Failure;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Two hosts of `netlab`, `a` and `b`. Dropping the value removes them.
pub(crate) struct Lab {
    netlab: PathBuf,
    name: String,
}

impl Lab {
    /// Creates the hosts. `link` is the link's description in netlab's words.
    pub(crate) fn up(netlab: &Path, link: &[&str]) -> Result<Lab, Failure> {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let lab = Lab { netlab: netlab.into(), name: format!("bench-{}-{number}", std::process::id()) };
        lab.ask(&[&["up"], link].concat())?;
        Ok(lab)
    }

    /// Returns the command of a program on one of the hosts.
    pub(crate) fn program(&self, host: &str, program: &str) -> Command {
        let mut command = self.command("exec");
        command.args([host, "--", program]);
        command
    }

    /// Returns the name of a host's network namespace.
    pub(crate) fn namespace(&self, host: &str) -> String {
        format!("{}-{host}", self.name)
    }

    /// Runs `act` on a thread of one of the hosts.
    pub(crate) fn on<T: Send>(
        &self,
        host: &str,
        act: impl FnOnce() -> Result<T, Failure> + Send,
    ) -> Result<T, Failure> {
        in_namespace(&self.namespace(host), act)
    }

    /// Returns the bytes that have left a host.
    pub(crate) fn sent_bytes(&self, host: &str) -> Result<f64, Failure> {
        let status = self.ask(&["status"])?;
        let line = status.lines().find(|line| line.starts_with(&format!("from {host}: sent=")));
        let bytes = line.and_then(|line| line.split("bytes=").nth(1)?.split(' ').next()?.parse().ok());
        bytes.ok_or_else(|| format!("netlab reports no sent bytes: {status}").into())
    }

    fn command(&self, verb: &str) -> Command {
        let mut command = Command::new(&self.netlab);
        command.args([verb, "--name", &self.name]);
        command
    }

    /// Runs `netlab` with these words for this lab and returns its output.
    pub(crate) fn ask(&self, words: &[&str]) -> Result<String, Failure> {
        let output = self.command(words[0]).args(&words[1..]).output();
        let output = output.map_err(|error| format!("{}: {error}", self.netlab.display()))?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(String::from_utf8_lossy(&output.stderr).trim().into()),
        }
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if let Err(error) = self.ask(&["down"]) {
            progress(&format!("the lab {} is still up: {error}", self.name));
        }
    }
}

/// Runs `act` on a thread in the network namespace of this name.
pub(crate) fn in_namespace<T: Send>(
    name: &str,
    act: impl FnOnce() -> Result<T, Failure> + Send,
) -> Result<T, Failure> {
    let namespace = File::open(format!("/run/netns/{name}"))?;
    apart(|| {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
        act()
    })
}

/// Runs `ip` with these words.
pub(crate) fn ip(words: &[&str]) -> Result<(), Failure> {
    run("ip", words)
}

/// Runs `act` on a thread of its own.
pub(crate) fn apart<T: Send>(act: impl FnOnce() -> Result<T, Failure> + Send) -> Result<T, Failure> {
    thread::scope(|scope| scope.spawn(act).join().map_err(|_| "a thread panicked")?)
}
