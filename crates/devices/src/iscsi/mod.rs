//! `iscsi://HOST[:PORT]/TARGET/LUN`: the disk of an iSCSI target that nobody modifies, over several sessions.
//!
//! | module | content |
//! |---|---|
//! | `session` | one session, sans-IO: login, orders, their data |
//! | `greeting` | the questions about the unit with which a session begins |
//! | `device` | the device side: connects, and gives the sessions to `crates/devices/src/sessions` |
//!
//! The initiator is written by hand. A worker opens nothing, so it gets connected sockets from its broker; and it must know when a
//! lost session is over before it sends a write again. libiscsi makes its connections itself, and sends the commands of a lost session
//! again by itself. The crate `iscsi-client-rs` makes its connections itself as well, and its licence (AGPL-3.0) does not suit.

mod device;
pub mod fuzz;
mod greeting;
mod session;
#[cfg(test)]
mod tests;

use crate::block::flows;
use crate::block::properties::{Properties, check_same};
use crate::sessions::server::{SESSIONS, TIMEOUT};
use contract::{
    Description, DeviceClass, DeviceError, DeviceSpec, FlowOffer, Kind, ModuleEntry, Opened, OptionKind,
    OptionSpec, Partner, Role, local,
};
use std::os::fd::OwnedFd;
use wire::iscsi::NAME_BYTES_MAX;

/// The class `iscsi`.
#[derive(Debug)]
pub struct Iscsi;

/// The option `initiator`.
const INITIATOR: OptionSpec = local(
    "initiator",
    OptionKind::OrAuto(&OptionKind::Text { max: NAME_BYTES_MAX }),
    "auto",
    "name of this host at the target; auto makes it of the host's name",
);

static OPTIONS: [OptionSpec; 3] = [SESSIONS, TIMEOUT, INITIATOR];

impl DeviceClass for Iscsi {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry {
            name: "iscsi",
            summary: "the disk of an iSCSI target",
            doc: include_str!("doc.md"),
            options: &OPTIONS,
        }
    }

    fn target(&self) -> &'static str {
        "//HOST/TARGET/LUN"
    }

    fn application(&self) -> &'static str {
        "nbd"
    }

    fn has_role(&self, role: Role) -> bool {
        role == Role::Device
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

    fn waits_for_host(&self) -> bool {
        true
    }

    fn open(&self, spec: &DeviceSpec, _: Role, _: Option<&Description>) -> Result<Opened, DeviceError> {
        device::open(spec)
    }

    fn connect(&self, spec: &DeviceSpec, _: &Description) -> Result<OwnedFd, DeviceError> {
        device::connect(spec)
    }

    fn can_hand_over(&self, _: &Opened) -> bool {
        true
    }

    fn partner(&self, opened: Opened) -> Result<Box<dyn Partner>, DeviceError> {
        device::partner(opened)
    }
}
