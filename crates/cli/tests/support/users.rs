//! Users of the real program, each with its own identity, as on separate hosts.

use super::{Ended, Scratch, Service, command, end};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::process::Command;

/// A user with a separate state directory, as on a separate host.
pub(crate) struct User(pub(crate) Scratch);

impl User {
    pub(crate) fn new() -> User {
        let user = User(Scratch::new());
        let directory = user.0.path("run");
        fs::DirBuilder::new().mode(0o700).create(directory).unwrap();
        user
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = command(arguments);
        command.env("XDG_STATE_HOME", self.0.path("state")).env("XDG_RUNTIME_DIR", self.0.path("run"));
        command
    }

    #[track_caller]
    pub(crate) fn says(&self, arguments: &[&str]) -> Ended {
        end(self.command(arguments).spawn().unwrap(), &arguments.join(" "))
    }

    pub(crate) fn serves(&self, arguments: &[&str]) -> Service {
        Service::start_as(self.command(arguments))
    }

    pub(crate) fn shares(&self, device: &str, more: &[&str]) -> (Service, String) {
        let mut service = self.serves(&[&["share", device, "--listen", "127.0.0.1:0"], more].concat());
        let address = service.wait("listening")["address"].as_str().unwrap().to_string();
        (service, address)
    }

    /// Starts `pair` and returns the command for the other host.
    pub(crate) fn shows(&self) -> (Service, String) {
        let mut service = self.serves(&["pair", "--listen", "127.0.0.1:0"]);
        let code = service.wait("code");
        let command = code["command"].as_str().unwrap();
        (service, command.strip_prefix("outboard pair ").unwrap().to_string())
    }

    pub(crate) fn peers(&self) -> Value {
        self.says(&["peers", "--json"]).done().json()["peers"].take()
    }
}

/// Pairs `a` with `b`. Returns the name of `b` on `a`, and the name of `a` on `b`.
pub(crate) fn pair(a: &User, b: &User) -> [String; 2] {
    let (mut shown, with) = a.shows();
    let joined = b.says(&["pair", &with, "--json"]).done().json();
    [shown.wait("paired"), joined].map(|event| event["name"].as_str().unwrap().to_string())
}

/// Returns two paired users, named `a` and `b`.
pub(crate) fn paired() -> (User, User) {
    let (a, b) = (User::new(), User::new());
    let [name_of_b, name_of_a] = pair(&a, &b);
    a.says(&["peers", "rename", &name_of_b, "b"]).done();
    b.says(&["peers", "rename", &name_of_a, "a"]).done();
    (a, b)
}
