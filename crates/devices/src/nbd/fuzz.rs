//! Entry points for the fuzzer: bytes of a client, and of a server.

use super::client::NbdSession;
use wire::formats::block::{Abilities, Geometry};
use wire::nbd::{ClientNegotiation, ClientStep, Reply, Request, ServerNegotiation};

/// Negotiates as a server and as a client; requests and replies have one meaning.
pub fn bytes(bytes: &[u8]) {
    let geometry = Geometry {
        size_bytes: 1 << 20,
        block_bytes: 1,
        preferred_bytes: 4096,
        abilities: Abilities::default(),
    };
    let (mut server, mut left) = (ServerNegotiation::Flags, bytes);
    while server.needs() > 0 && left.len() >= server.needs() {
        let (now, rest) = left.split_at(server.needs());
        left = rest;
        let Ok((_, next)) = server.take(now, &geometry) else { break };
        server = next;
    }
    let (mut client, mut left) = (ClientNegotiation::new("disk"), bytes);
    while left.len() >= client.needs() {
        let (now, rest) = left.split_at(client.needs());
        left = rest;
        if !matches!(client.take(now), Ok(ClientStep::Send(_))) {
            break;
        }
    }
    if let Some(Ok(request)) = bytes.first_chunk().map(Request::parse)
        && !request.has_unknown_flags
    {
        assert_eq!(request.to_bytes()[..], bytes[..request.to_bytes().len()]);
    }
    if let Some(Ok(reply)) = bytes.first_chunk().map(Reply::parse) {
        assert_eq!(Reply::parse(&reply.to_bytes()), Ok(reply));
    }
}

/// Reads replies to the requests of a session with a server.
pub fn replies(bytes: &[u8]) {
    crate::sessions::fuzz::replies(Box::new(NbdSession::default()), bytes);
}
