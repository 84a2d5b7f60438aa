//! `nbd:PATH`: a server of the NBD protocol at a local socket, for unmodified clients: the kernel, qemu, nbdkit's and libnbd's programs.
//!
//! ```text
//! client ◄─► socket ◄─► worker: Server ◄─► flows
//!               ▲             ▲
//!           acceptor       memory       both of the broker: they outlive the worker
//! ```
//!
//! | module | content |
//! |---|---|
//! | `acceptor` | a thread of the broker that accepts clients and keeps their descriptors |
//! | `memory` | the state of the connections, which outlives the worker |
//! | `requests` | requests without a reply, and the room for their data |
//! | `connection` | one client |
//! | `unflushed` | writes that the disk has answered and may lose |
//! | `server` | all clients as a partner |
//!
//! `nbd://HOST:PORT/EXPORT`: the disk of a server on the network.
//!
//! | module | content |
//! |---|---|
//! | `client` | one session with a server |
//! | `device` | the device side: connects, and gives the sessions to `crates/devices/src/sessions` |

mod acceptor;
mod client;
mod connection;
mod device;
pub mod fuzz;
mod memory;
mod requests;
mod server;
#[cfg(test)]
mod tests;
mod unflushed;

use crate::block::properties::{Properties, check_same};
use crate::block::{describe, flows};
use crate::local_socket;
use crate::plain::{self, os};
use crate::sessions::server::{SESSIONS, TIMEOUT};
use contract::{
    Description, DeviceClass, DeviceError, DeviceSpec, FlowOffer, Format, Kind, ModuleEntry, NodeName,
    Opened, OptionSpec, Partner, Role,
};
use server::Server;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// The class `nbd`.
#[derive(Debug)]
pub struct Nbd;

static OPTIONS: [OptionSpec; 2] = [SESSIONS, TIMEOUT];

/// The name of the socket, if the user gives no path.
const SOCKET: &str = "outboard-disk.sock";
/// Only the user connects: the disk is as private as the files on it.
const MODE: u32 = 0o600;

/// Returns the path of the socket. Without a path it is in the user's runtime directory, which a login makes: another user could occupy a
/// name in `/tmp`. `None` if there is none.
fn path(target: &str) -> Option<PathBuf> {
    let user = rustix::process::geteuid();
    let directory = match target {
        "" if user.is_root() => Some(PathBuf::from("/run")),
        "" => {
            let named = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
            let places = named.into_iter().chain([PathBuf::from(format!("/run/user/{}", user.as_raw()))]);
            places.into_iter().find(|place| place.is_absolute() && place.is_dir())
        }
        target => return Some(target.into()),
    };
    directory.map(|directory| directory.join(SOCKET))
}

fn listen(spec: &DeviceSpec, like: Option<&Description>) -> Result<Opened, DeviceError> {
    let like = like.ok_or_else(|| DeviceError::Spec {
        what: "nbd".into(),
        problem: "a server needs a disk: attach a device of class `block`".into(),
    })?;
    let properties = Properties::of(like)?;
    let summary = properties.summary(&like.class);
    let path = path(&spec.target).ok_or_else(|| DeviceError::Spec {
        what: "nbd".into(),
        problem: "this user has no runtime directory: write a path, as in `--as nbd:PATH`".into(),
    })?;
    let listening = |error| {
        let advice = Some("give another path, as in `--as nbd:PATH`");
        os(format!("listening at {}", path.display()), error, advice)
    };
    let memory = sys::memory::create("nbd", memory::MEMORY_BYTES)
        .map_err(|error| os("making memory for connections".into(), error, None))?;
    let (listener, inode) = local_socket::bind(&path, MODE).map_err(listening)?;
    let acceptor = acceptor::start(listener).map_err(listening)?;
    let mut description = describe(Nbd.name(), &Properties { identity: inode.to_string(), ..properties });
    // The sectors are those of the disk's class: an NBD server does not tell them, a disk of another class does.
    description.summary = format!("{summary} at {}", path.display());
    Ok(Opened {
        spec: spec.clone(),
        role: Role::Application,
        description,
        descriptors: vec![acceptor, memory],
    })
}

impl DeviceClass for Nbd {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry {
            name: "nbd",
            summary: "the disk of an NBD server (device); a local NBD server for programs and for the kernel (application)",
            doc: include_str!("doc.md"),
            options: &OPTIONS,
        }
    }

    fn target(&self) -> &'static str {
        "[PATH]"
    }

    fn application(&self) -> &'static str {
        "nbd"
    }

    fn takes(&self) -> Option<Format> {
        Some(Format::Block)
    }

    fn kind(&self, described: &Description) -> Result<Kind, DeviceError> {
        Properties::of(described).map(|_| Kind::Disk)
    }

    fn check_same(&self, known: &Description, found: &Description) -> Result<(), String> {
        check_same(known, found)
    }

    fn flows(&self, _spec: &DeviceSpec) -> Result<Vec<FlowOffer>, DeviceError> {
        Ok(flows())
    }

    fn nodes(&self, spec: &DeviceSpec) -> Vec<NodeName> {
        // The address of a server is no node of this host.
        let is_node = !spec.target.starts_with("//");
        is_node.then(|| path(&spec.target)).flatten().map(NodeName::File).into_iter().collect()
    }

    fn waits_for_host(&self) -> bool {
        true
    }

    fn open(&self, spec: &DeviceSpec, role: Role, like: Option<&Description>) -> Result<Opened, DeviceError> {
        match role {
            Role::Application => listen(spec, like),
            Role::Device => device::open(spec),
        }
    }

    fn connect(&self, spec: &DeviceSpec, known: &Description) -> Result<OwnedFd, DeviceError> {
        device::connect(spec, known)
    }

    fn release(&self, opened: &Opened) {
        if opened.role == Role::Device {
            return device::release(&opened.spec);
        }
        let inode = Properties::of(&opened.description).ok().and_then(|own| own.identity.parse().ok());
        if let Some((path, inode)) = path(&opened.spec.target).zip(inode) {
            local_socket::remove(&path, inode);
        }
    }

    /// A thread of this process accepts the clients of a node.
    fn can_hand_over(&self, opened: &Opened) -> bool {
        opened.role == Role::Device
    }

    fn partner(&self, opened: Opened) -> Result<Box<dyn Partner>, DeviceError> {
        if opened.role == Role::Device {
            return device::partner(opened);
        }
        let geometry = Properties::of(&opened.description)?.geometry;
        let name = path(&opened.spec.target).unwrap_or_else(|| SOCKET.into()).display().to_string();
        let [acceptor, memory] = plain::descriptors(opened)?;
        Server::new(name.clone(), geometry, acceptor, memory)
            .map(|partner| Box::new(partner) as Box<dyn Partner>)
            .map_err(|error| os(format!("serving {name}"), error, None))
    }
}
