//! Entry points for the fuzzer: everything that parses bytes of a compositor, or of a worker that may be compromised.

use super::client::Client;
use super::desktop::Desktop;
use super::portal::Order;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Parses the bytes of a compositor: its globals, its outputs, and any further events.
pub fn compositor(bytes: &[u8]) {
    let Ok((ours, mut theirs)) = UnixStream::pair() else { return };
    // Bytes that do not fit into the socket are not parsed.
    let _ = theirs.set_nonblocking(true).and_then(|()| theirs.write(bytes));
    let _ = theirs.shutdown(std::net::Shutdown::Write);
    if ours.set_nonblocking(true).is_ok() {
        let deadline = Instant::now() + Duration::from_secs(1);
        let _ = Desktop::query(ours.into(), deadline);
    }
}

/// Parses a stream of events one by one, as the worker does after the setup.
pub fn events(bytes: &[u8]) {
    let Ok((ours, mut theirs)) = UnixStream::pair() else { return };
    let _ = theirs.set_nonblocking(true).and_then(|()| theirs.write(bytes));
    let _ = ours.set_nonblocking(true);
    let Ok(mut client) = Client::new(ours.into()) else { return };
    if client.receive().is_ok() {
        while let Ok(Some(mut event)) = client.next_event() {
            while event.number().is_ok() {}
            let _ = event.text();
        }
    }
}

/// Parses a packet of a worker.
pub fn order(packet: &[u8]) {
    if let Ok(order) = Order::parse(packet) {
        assert_eq!(order.emit(), packet, "an order has one form");
    }
}
