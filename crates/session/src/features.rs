//! Features: abilities that hosts announce to each other in `Hello` and `Welcome`, so that a program with a new one still
//! works with programs without it.
//!
//! | a feature that the peer lists | this program knows it | this program does not |
//! |---|---|---|
//! | not needed | it is in use if this program lists it too | ignored |
//! | needed | the same | the session ends, and the error names the feature |

use contract::Role;
use thiserror::Error;
use wire::control::Feature;

/// The device host reports messages that it lost: [`Control::Lost`](wire::Control::Lost).
pub const LOSSES: &str = "losses";

/// The features of this program, each with whether it refuses a peer without it. Protocol version 5 includes everything else.
const FEATURES: &[(&str, bool)] = &[(LOSSES, false)];

/// The peer needs a feature that this program does not know.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "Outboard {version} of {ours} does not have the feature `{name}`, which {theirs} needs: upgrade it on {ours}",
    version = env!("CARGO_PKG_VERSION"),
    ours = host(.role, Role::Device),
    theirs = host(.role, Role::Application)
)]
pub struct MissingFeature {
    /// The feature.
    pub name: String,
    /// The role of this host.
    pub role: Role,
}

/// Returns the name of a host in errors, which both hosts show: that of the device host if `role` is `device`.
fn host(role: &Role, device: Role) -> &'static str {
    if *role == device { "the device host" } else { "the application host" }
}

/// Returns the features that this program announces.
pub fn offered() -> Vec<Feature> {
    FEATURES.iter().map(|(name, is_needed)| Feature { name: (*name).into(), is_needed: *is_needed }).collect()
}

/// Returns whether a peer that lists these features has this one.
pub fn has(theirs: &[Feature], name: &str) -> bool {
    theirs.iter().any(|feature| feature.name == name)
}

/// Checks the features of a peer: this program, which has this role, must know those that the peer needs.
pub fn check(theirs: &[Feature], role: Role) -> Result<(), MissingFeature> {
    let is_known = |feature: &&Feature| FEATURES.iter().any(|(name, _)| *name == feature.name);
    match theirs.iter().filter(|feature| feature.is_needed).find(|feature| !is_known(feature)) {
        Some(missing) => Err(MissingFeature { name: missing.name.clone(), role }),
        None => Ok(()),
    }
}
