//! Signals of D-Bus.

use futures_core::Stream;
use std::future::poll_fn;
use std::pin::Pin;
use zbus::{Message, MessageStream, block_on};

/// Returns the next message; `None` at the end of the connection.
pub(crate) fn next(stream: &mut MessageStream) -> Option<Message> {
    loop {
        match block_on(poll_fn(|context| Pin::new(&mut *stream).poll_next(context))) {
            Some(Ok(message)) => return Some(message),
            // A message that cannot be parsed. A broken connection ends the stream next.
            Some(Err(_)) => {}
            None => return None,
        }
    }
}
