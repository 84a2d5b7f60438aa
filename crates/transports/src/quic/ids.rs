//! Connection IDs of the accepting side. They start with a tag that identifies the connection's user on this host, so
//! that a datagram from an unknown address reaches it after the peer has migrated (RFC 9000, sections 5.1 and 9).
//!
//! The tag stays the same, so an observer can link the peer's addresses; random IDs would prevent that (RFC 9000,
//! section 9.5).

use quinn_proto::{ConnectionId, ConnectionIdGenerator, InvalidCid};
use ring::rand::{SecureRandom, SystemRandom};
use std::time::Duration;

const TAG_BYTES: usize = 8;
/// Size of a connection ID: the tag and as many random bytes.
const ID_BYTES: usize = 2 * TAG_BYTES;
/// Offset of the destination connection ID in a long header: behind the first byte, the version and the ID's length
/// (RFC 9000, section 17.2).
const LONG_ID_AT: usize = 6;

/// Identifies the user of a connection on the accepting host.
pub type Tag = [u8; TAG_BYTES];

/// Generates the connection IDs of one connection.
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
        // IDs must differ. Randomness only keeps off-path attackers from guessing them, so a counter may replace it.
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

/// Connection IDs of an endpoint without connections: accepts every ID, and generates IDs that match no tag.
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

/// Kind of a datagram that arrived at a listening socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DatagramKind {
    /// It starts a connection.
    Initial,
    /// It belongs to the connection with this tag, if that exists.
    Tagged(Tag),
    /// It is to be dropped.
    Other,
}

/// Classifies a datagram by the readable part of its header (RFC 8999).
pub fn classify(datagram: &[u8]) -> DatagramKind {
    let tag = |at: usize| datagram.get(at..)?.first_chunk::<TAG_BYTES>().copied();
    let found = match datagram.first() {
        None => None,
        Some(first) if first & 0x80 == 0 => tag(1).map(DatagramKind::Tagged),
        // An Initial of version 1 has type 0. Later long headers carry the server's own ID.
        Some(first) => match (first & 0x30, datagram.get(LONG_ID_AT - 1)) {
            (0, _) => Some(DatagramKind::Initial),
            (_, Some(&length)) if usize::from(length) == ID_BYTES => {
                tag(LONG_ID_AT).map(DatagramKind::Tagged)
            }
            _ => None,
        },
    };
    found.unwrap_or(DatagramKind::Other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ids_carry_the_tag_of_their_connection() {
        let mut ids = TaggedIds::new(*b"some tag");
        let (one, other) = (ids.generate_cid(), ids.generate_cid());
        assert_ne!(one, other);
        assert!(ids.validate(&one).is_ok() && ids.validate(&ConnectionId::new(&[7; ID_BYTES])).is_err());
        let short = [&[0x40][..], &one, b"sealed"].concat();
        let handshake = [&[0xe0, 0, 0, 0, 1, ID_BYTES as u8][..], &other, b"\0sealed"].concat();
        assert_eq!(classify(&short), DatagramKind::Tagged(*b"some tag"));
        assert_eq!(classify(&handshake), DatagramKind::Tagged(*b"some tag"));
        assert_eq!(classify(&[0xc0, 0, 0, 0, 1, 0]), DatagramKind::Initial);
        assert_eq!(classify(&[0x40, 1]), DatagramKind::Other);
    }

    proptest! {
        #[test]
        fn any_bytes_are_classified(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = classify(&bytes);
        }
    }
}
