//! `--require-sandbox`: flows run in locked processes or not at all.

use crate::confine;
use contract::ServiceError;
use std::sync::OnceLock;

/// Set: no process reads data of other hosts unless it is locked.
static SANDBOX: OnceLock<()> = OnceLock::new();

/// Requires locked processes from now on: flows run in locked workers or not at all, and no other process of this
/// program reads data of other hosts. Returns an error if this kernel cannot lock processes.
pub fn require_sandbox() -> Result<(), ServiceError> {
    confine::try_lock().map_err(|problem| {
        ServiceError::Usage(format!(
            "--require-sandbox: this host cannot provide the sandbox: {problem}; see `outboard doctor`"
        ))
    })?;
    SANDBOX.get_or_init(|| ());
    Ok(())
}

/// Returns true after [`require_sandbox`].
pub fn is_sandbox_required() -> bool {
    SANDBOX.get().is_some()
}
