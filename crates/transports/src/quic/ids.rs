//! Connection IDs of who accepts: they begin with a tag that says whose the connection is, so that a datagram from
//! an address nobody knows, because the peer moved, finds its way (RFC 9000, sections 5.1 and 9).
//!
//! The tag lets an observer tell that two addresses are one peer's, which plain random identifiers would not
//! (RFC 9000, section 9.5).

use quinn_proto::{ConnectionId, ConnectionIdGenerator, InvalidCid};
use ring::rand::{SecureRandom, SystemRandom};
use std::time::Duration;

/// Bytes of a tag.
const TAG_BYTES: usize = 8;
/// Bytes of a connection ID: the tag, and as many at random.
const ID_BYTES: usize = 2 * TAG_BYTES;
/// Where the destination's connection ID stands in a long header: behind its first byte, the version, and its
/// length (RFC 9000, section 17.2).
const LONG_ID_AT: usize = 6;

/// Says whose a connection is.
pub type Tag = [u8; TAG_BYTES];

/// Makes the connection IDs of one connection.
#[derive(Debug)]
pub(super) struct TaggedIds {
    tag: Tag,
    made: u64,
}

impl TaggedIds {
    pub(super) fn new(tag: Tag) -> TaggedIds {
        TaggedIds { tag, made: 0 }
    }
}

impl ConnectionIdGenerator for TaggedIds {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut id = [0; ID_BYTES];
        id[..TAG_BYTES].copy_from_slice(&self.tag);
        // They have to differ; that nobody can guess them serves only against who is not on the way.
        if SystemRandom::new().fill(&mut id[TAG_BYTES..]).is_err() {
            self.made += 1;
            id[TAG_BYTES..].copy_from_slice(&self.made.to_be_bytes());
        }
        ConnectionId::new(&id)
    }

    fn validate(&self, id: &ConnectionId) -> Result<(), InvalidCid> {
        if id.starts_with(&self.tag) { Ok(()) } else { Err(InvalidCid) }
    }

    fn cid_len(&self) -> usize {
        ID_BYTES
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

/// Of who has no connection: all that come may have been made here, and those that it makes lead nowhere.
#[derive(Debug)]
pub(super) struct AnyIds(TaggedIds);

impl AnyIds {
    pub(super) fn new() -> AnyIds {
        AnyIds(TaggedIds::new(Tag::default()))
    }
}

impl ConnectionIdGenerator for AnyIds {
    fn generate_cid(&mut self) -> ConnectionId {
        self.0.generate_cid()
    }

    fn cid_len(&self) -> usize {
        self.0.cid_len()
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        self.0.cid_lifetime()
    }
}

/// What a datagram is that came to a socket where QUIC is listened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// Somebody new begins a connection.
    Initial,
    /// It is for the connection of this tag, if there is one.
    Tagged(Tag),
    /// Nothing that anybody waits for.
    Other,
}

/// Looks at the readable part of a datagram's header (RFC 8999).
pub fn arrival(datagram: &[u8]) -> Arrival {
    let tag = |at: usize| datagram.get(at..)?.first_chunk::<TAG_BYTES>().copied();
    let found = match datagram.first() {
        None => None,
        Some(first) if first & 0x80 == 0 => tag(1).map(Arrival::Tagged),
        // An Initial of version 1 has type 0. To a server that has answered it comes with the server's own ID.
        Some(first) => match (first & 0x30, datagram.get(LONG_ID_AT - 1)) {
            (0, _) => Some(Arrival::Initial),
            (_, Some(&length)) if usize::from(length) == ID_BYTES => tag(LONG_ID_AT).map(Arrival::Tagged),
            _ => None,
        },
    };
    found.unwrap_or(Arrival::Other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ids_lead_to_their_connection() {
        let mut ids = TaggedIds::new(*b"whose it");
        let (one, other) = (ids.generate_cid(), ids.generate_cid());
        assert_ne!(one, other);
        assert!(ids.validate(&one).is_ok() && ids.validate(&ConnectionId::new(&[7; ID_BYTES])).is_err());
        let short = [&[0x40][..], &one, b"sealed"].concat();
        let handshake = [&[0xe0, 0, 0, 0, 1, ID_BYTES as u8][..], &other, b"\0sealed"].concat();
        assert_eq!(arrival(&short), Arrival::Tagged(*b"whose it"));
        assert_eq!(arrival(&handshake), Arrival::Tagged(*b"whose it"));
        assert_eq!(arrival(&[0xc0, 0, 0, 0, 1, 0]), Arrival::Initial);
        assert_eq!(arrival(&[0x40, 1]), Arrival::Other);
    }

    proptest! {
        #[test]
        fn any_bytes_are_something(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = arrival(&bytes);
        }
    }
}
