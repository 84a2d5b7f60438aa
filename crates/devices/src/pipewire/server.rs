//! The user's PipeWire server.

/// Returns true if a server of this user answers, and this program has the library to use it.
pub(crate) fn is_running() -> bool {
    cfg!(feature = "media") && sys::sound_server::pipewire_answers()
}
