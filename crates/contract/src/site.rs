//! Values that a half of a pair gets from its own host only.

use crate::Format;
use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// Thirty-two secret bytes, never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub [u8; 32]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Local values for a new half of a pair.
#[derive(Debug, Clone)]
pub struct Site {
    /// The flow's key, equal on both hosts. It comes from the session or from a file.
    pub key: Option<Secret>,
    /// Random bytes for this half alone. A stage has no other source of randomness.
    pub seed: [u8; 32],
    /// State shared by the halves of one pair in a driver's two flows.
    pub shared: Shared,
    /// The largest message accepted here, by this host's limit and the flow's format. It overrides the sizes that
    /// the other host claims.
    pub message_bytes: usize,
    /// The formats of the ports of a half that joins flows, in order; empty elsewhere.
    pub inputs: Vec<Format>,
}

impl Default for Site {
    fn default() -> Site {
        let message_bytes = wire::BODY_BYTES_MAX;
        Site { key: None, seed: [0; 32], shared: Shared::default(), message_bytes, inputs: Vec::new() }
    }
}

/// Named states, shared by the halves of one driver on one host. A pair that is in both flows uses it.
#[derive(Clone, Default)]
pub struct Shared {
    states: Arc<Mutex<BTreeMap<&'static str, Arc<dyn Any + Send + Sync>>>>,
}

impl Shared {
    /// Returns the state with this name and type; makes it on first use.
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
