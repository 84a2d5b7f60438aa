//! Names that come from other processes and must live as long as the program.

use std::sync::{Mutex, PoisonError};

/// Most names that are interned.
const REASONS_MAX: usize = 256;
/// Longest name.
const REASON_BYTES_MAX: usize = 100;

/// Interns a name of a drop or figure, which must live as long as the program; `None` if there are too many.
pub fn interned(reason: &str) -> Option<&'static str> {
    static KNOWN: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let reason: String = reason.chars().filter(|c| !c.is_control()).take(REASON_BYTES_MAX).collect();
    match known.iter().find(|name| **name == reason) {
        Some(name) => Some(name),
        None if known.len() < REASONS_MAX => {
            let name: &'static str = Box::leak(reason.into_boxed_str());
            known.push(name);
            Some(name)
        }
        None => None,
    }
}
