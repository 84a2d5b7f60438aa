//! What a host gives a half of a pair besides what both hosts agreed on.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// Thirty-two secret bytes, never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub [u8; 32]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// What a half is given when it is made.
#[derive(Debug, Clone)]
pub struct Site {
    /// The flow's key, the same at both hosts: of their session, or from a file.
    pub key: Option<Secret>,
    /// Random bytes that no other half is given: it has no other way to any.
    pub seed: [u8; 32],
    /// Where the halves of one pair in a driver's two flows meet.
    pub shared: Shared,
    /// Bytes that a message which is no picture may come to here, whatever the other host says that it was.
    pub message_bytes: usize,
}

impl Default for Site {
    fn default() -> Site {
        let message_bytes = wire::BODY_BYTES_MAX;
        Site { key: None, seed: [0; 32], shared: Shared::default(), message_bytes }
    }
}

/// State by name that the halves of one driver on one host share (a pair that stands in both flows).
#[derive(Clone, Default)]
pub struct Shared {
    states: Arc<Mutex<BTreeMap<&'static str, Arc<dyn Any + Send + Sync>>>>,
}

impl Shared {
    /// The state of this name and type, made on first use.
    pub fn state<T: Default + Send + Sync + 'static>(&self, name: &'static str) -> Arc<T> {
        let mut states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        let state = states.entry(name).or_insert_with(|| Arc::new(T::default())).clone();
        state.downcast().unwrap_or_else(|_| {
            let fresh = Arc::new(T::default());
            states.insert(name, fresh.clone());
            fresh
        })
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shared(..)")
    }
}
