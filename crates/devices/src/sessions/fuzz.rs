//! Entry point for the fuzzer: bytes of a server.

use super::connection::Connection;
use super::schedule::Schedule;
use super::{CHUNK_BYTES, Session};
use buffers::Body;
use std::io::Write;
use std::os::unix::net::UnixStream;
use wire::formats::block::{Abilities, Command, Geometry, Request, ToDisk};

/// Reads replies to three requests.
pub(crate) fn replies(session: Box<dyn Session>, bytes: &[u8]) {
    let abilities = Abilities { flush: true, trim: true, many_connections: true, ..Abilities::default() };
    let geometry = Geometry { size_bytes: 1 << 20, block_bytes: 1, preferred_bytes: 4096, abilities };
    let mut schedule = Schedule::new(geometry, CHUNK_BYTES);
    let begin = ToDisk::Begin { number: 1 };
    schedule.accept(begin, Body::from(begin.to_bytes()));
    for (id, command, length) in
        [(1, Command::Read, 512), (2, Command::Flush, 0), (3, Command::Read, 200_000)]
    {
        let request = Request { id, command, force: false, keep_space: false, offset: 0, length };
        schedule.accept(ToDisk::Request(request), Body::from(request.to_bytes().to_vec()));
    }
    let Ok((ours, mut theirs)) = UnixStream::pair() else { return };
    if ours.set_nonblocking(true).is_err() || theirs.set_nonblocking(true).is_err() {
        return;
    }
    schedule.open(1, CHUNK_BYTES);
    let mut connection = Connection::new(1, 0, ours.into(), session);
    while let Some(assigned) = schedule.assign() {
        connection.submit(assigned);
    }
    // A full socket takes a part of the bytes.
    let _ = theirs.write(bytes);
    drop(theirs);
    if let Err(loss) = connection.receive(&mut schedule) {
        let _ = schedule.handle_lost(1, loss.order(), 2);
    }
    while schedule.take_answer().is_some() {}
}
