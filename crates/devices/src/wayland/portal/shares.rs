//! The shares of this process. A share outlives its uses: each peer, and each worker, continues it.
//!
//! | state | `open` (the user shares the device) | `reopen` (a peer uses it, or it was gone) |
//! |---|---|---|
//! | none | asks the user, or restores by the token | refuses |
//! | running | refuses if it is used | continues it |
//! | ended | asks the user, or restores by the token | refuses |

use super::OpenedShare;
use super::bus::{Offers, Patience, Wish};
use super::share::Share;
use super::token;
use crate::plain::is_view_only;
use contract::{DeviceError, DeviceSpec};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The time for the user to answer the dialog.
const ASK_TIMEOUT: Duration = Duration::from_secs(60);
/// A share: its wish and its display.
type Key = (Wish, String);
/// The shares.
static SHARES: Mutex<BTreeMap<Key, Share>> = Mutex::new(BTreeMap::new());
/// The questions without an answer; true if withdrawn.
static QUESTIONS: Mutex<BTreeMap<Key, Arc<AtomicBool>>> = Mutex::new(BTreeMap::new());

fn questions() -> MutexGuard<'static, BTreeMap<Key, Arc<AtomicBool>>> {
    QUESTIONS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn lock() -> MutexGuard<'static, BTreeMap<Key, Share>> {
    SHARES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn key(spec: &DeviceSpec) -> Key {
    let wish = Wish { is_view_only: is_view_only(spec), with_cursor: spec.options.flag("cursor") };
    (wish, spec.target.clone())
}

fn refused(problem: String) -> DeviceError {
    DeviceError::Spec { what: "the desktop".into(), problem }
}

/// Returns the reason why the portal cannot share the desktop.
pub(in crate::wayland) fn problem(is_view_only: bool) -> Option<String> {
    let offers = Share::connect().and_then(|(bus, _)| bus.offers());
    match offers {
        Ok(offers) => offers.problem(is_view_only).map(String::from),
        Err(DeviceError::Spec { problem, .. }) => Some(problem),
        Err(error) => Some(error.to_string()),
    }
}

/// Returns the question of the dialog of [`open`].
pub(in crate::wayland) fn question(spec: &DeviceSpec) -> Option<String> {
    let is_view_only = is_view_only(spec);
    let has_token = token::path(is_view_only).is_some_and(|path| token::read(&path).is_some());
    let asked = match is_view_only {
        true => "select the monitor and confirm",
        false => "select the monitor, allow remote interaction, and confirm",
    };
    let seconds = ASK_TIMEOUT.as_secs();
    (!has_token && problem(is_view_only).is_none())
        .then(|| format!("the desktop asks for your permission in a dialog: {asked} within {seconds} s"))
}

/// Closes the dialog of an [`open`] that waits for its answer.
pub(in crate::wayland) fn withdraw(spec: &DeviceSpec) {
    if let Some(is_withdrawn) = questions().get(&key(spec)) {
        is_withdrawn.store(true, Ordering::Relaxed);
    }
}

fn ask(spec: &DeviceSpec, wish: Wish, is_withdrawn: Arc<AtomicBool>) -> Result<Share, DeviceError> {
    let (bus, state) = Share::connect()?;
    let offers: Offers = bus.offers()?;
    if let Some(problem) = offers.problem(wish.is_view_only) {
        return Err(refused(problem.into()));
    }
    let path = token::path(wish.is_view_only);
    let token = path.as_deref().and_then(token::read);
    let patience = Patience { deadline: Instant::now() + ASK_TIMEOUT, is_withdrawn };
    let rate_hz = spec.options.number("rate");
    let (share, token) = Share::ask((bus, state), &offers, wish, rate_hz, token.as_deref(), &patience)?;
    if let Some(path) = path {
        // A token that cannot be kept costs a question the next time.
        let _ = token::write(&path, token.as_deref());
    }
    Ok(share)
}

fn opened(share: &Share) -> Result<OpenedShare, DeviceError> {
    Ok(OpenedShare { size: share.size(), descriptors: share.connect_worker()? })
}

/// Asks for a share, unless the token of an earlier one restores it.
pub(in crate::wayland) fn open(spec: &DeviceSpec) -> Result<OpenedShare, DeviceError> {
    let key = key(spec);
    if let Some(running) = running(&key) {
        return running;
    }
    // The user takes time, and peers use other shares meanwhile.
    let is_withdrawn = Arc::<AtomicBool>::default();
    questions().insert(key.clone(), is_withdrawn.clone());
    let share = ask(spec, key.0, is_withdrawn);
    questions().remove(&key);
    let share = share?;
    running(&key).unwrap_or_else(|| {
        let opened = opened(&share);
        lock().insert(key, share);
        opened
    })
}

/// Opens a share that is running and not used; `None` if there is none.
fn running(key: &Key) -> Option<Result<OpenedShare, DeviceError>> {
    let mut shares = lock();
    match shares.get(key) {
        Some(share) if share.ended().is_none() => Some(match share.is_used() {
            true => Err(refused("this process shares it already".into())),
            false => opened(share),
        }),
        _ => {
            shares.remove(key);
            None
        }
    }
}

/// Continues a share. Asks nobody, and uses no token: the user may have ended the share just now.
pub(in crate::wayland) fn reopen(spec: &DeviceSpec) -> Result<OpenedShare, DeviceError> {
    let (key, mut shares) = (key(spec), lock());
    match shares.get(&key) {
        Some(share) if share.ended().is_none() => opened(share),
        _ => {
            shares.remove(&key);
            let problem = "it has ended the share, as GNOME does when its screen is locked: run `outboard share` again to ask for it";
            Err(refused(problem.into()))
        }
    }
}
