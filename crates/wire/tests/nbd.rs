//! The NBD codec: a client and a server of this crate understand each other, and any bytes end in a state or an error.

use proptest::prelude::*;
use wire::formats::block::{Abilities, Command, Failure, Geometry};
use wire::nbd::{Asked, ClientNegotiation, ClientStep, NegotiationError, Reply, Request, ServerNegotiation};

fn geometry() -> Geometry {
    let abilities = Abilities { flush: true, force: true, many_connections: true, ..Abilities::default() };
    Geometry { size_bytes: 64 << 20, block_bytes: 512, preferred_bytes: 4096, abilities }
}

/// Lets a client negotiate with a server. Returns the facts that the client has learned, and the server's last state.
fn negotiate(name: &str) -> Result<(Geometry, ServerNegotiation), NegotiationError> {
    let (mut client, mut server) = (ClientNegotiation::new(name), ServerNegotiation::Flags);
    let (mut to_client, mut to_server) = (ServerNegotiation::greeting(), Vec::new());
    loop {
        if to_client.len() >= client.needs() {
            let bytes: Vec<u8> = to_client.drain(..client.needs()).collect();
            match client.take(&bytes)? {
                ClientStep::Send(bytes) => to_server.extend(bytes),
                ClientStep::Done { geometry, .. } => return Ok((geometry, server)),
            }
        } else {
            assert!(to_server.len() >= server.needs(), "neither side proceeds: {client:?}, {server:?}");
            let bytes: Vec<u8> = to_server.drain(..server.needs()).collect();
            let (out, next) = server.take(&bytes, &geometry()).unwrap();
            to_client.extend(out);
            server = next;
        }
    }
}

#[test]
fn a_client_learns_the_geometry() {
    assert_eq!(negotiate(""), Ok((geometry(), ServerNegotiation::Done)));
}

#[test]
fn another_export_does_not_exist() {
    let error = negotiate("other").unwrap_err().to_string();
    assert!(error.contains("no export `other`"), "{error}");
}

#[test]
fn a_server_without_go_is_asked_by_export_name() {
    let mut client = ClientNegotiation::new("old");
    client.take(&ServerNegotiation::greeting()).unwrap();
    // The reply to "go": unsupported, as in the protocol's table of errors.
    let mut header = 0x0003_e889_0455_65a9_u64.to_be_bytes().to_vec();
    header.extend([0, 0, 0, 7, 0x80, 0, 0, 1, 0, 0, 0, 0]);
    let ClientStep::Send(option) = client.take(&header).unwrap() else { panic!("it waits for facts") };
    assert_eq!(option, b"IHAVEOPT\0\0\0\x01\0\0\0\x03old");
    assert_eq!(client.needs(), 10);
    let ClientStep::Done { geometry, .. } = client.take(&[0, 0, 0, 0, 0, 0x10, 0, 0, 0, 3]).unwrap() else {
        panic!("it has all facts")
    };
    assert_eq!((geometry.size_bytes, geometry.block_bytes), (1 << 20, 1));
    assert!(geometry.abilities.read_only && !geometry.abilities.flush);
}

#[test]
fn the_bytes_are_those_of_the_protocol() {
    assert_eq!(ServerNegotiation::greeting(), b"NBDMAGICIHAVEOPT\0\x03");
    let request = Request {
        asked: Asked::Do(Command::Write),
        force: true,
        keep_space: false,
        has_unknown_flags: false,
        cookie: 0x0102_0304_0506_0708,
        offset: 4096,
        length: 512,
    };
    let bytes = request.to_bytes();
    let expected = [0x25, 0x60, 0x95, 0x13, 0, 1, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8];
    assert_eq!(bytes[..16], expected);
    assert_eq!(bytes[16..], [0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 2, 0]);
    assert_eq!(Request::parse(&bytes), Ok(request));
    let reply = Reply { cookie: 9, result: Err(Failure::NoSpace) };
    assert_eq!(reply.to_bytes(), [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 28, 0, 0, 0, 0, 0, 0, 0, 9]);
    assert_eq!(Reply::parse(&reply.to_bytes()), Ok(reply));
}

#[test]
fn a_server_answers_each_option() {
    let take = |option: u32, data: &[u8]| {
        let state = ServerNegotiation::Data { no_zeroes: false, count: 1, option, length: data.len() as u32 };
        state.take(data, &geometry()).unwrap()
    };
    let kind = |bytes: &[u8]| u32::from_be_bytes(bytes[12..16].try_into().unwrap());
    assert_eq!(take(1, b"").0.len(), 134, "facts and padding");
    assert_eq!(take(1, b"x"), (Vec::new(), ServerNegotiation::Ended));
    assert_eq!(take(2, b"").1, ServerNegotiation::Ended);
    assert_eq!(kind(&take(3, b"").0), 2);
    assert_eq!(kind(&take(3, b"x").0), 0x8000_0003);
    assert_eq!(kind(&take(7, b"\0\0\0\x01").0), 0x8000_0003);
    assert_eq!(kind(&take(8, b"").0), 0x8000_0001, "structured replies");
    let header = [&b"IHAVEOPT"[..], &7u32.to_be_bytes(), &(1u32 << 20).to_be_bytes()].concat();
    let state = ServerNegotiation::Option { no_zeroes: false, count: 0 };
    assert!(state.take(&header, &geometry()).is_err(), "an option of 1 MiB");
}

proptest! {
    #[test]
    fn any_bytes_end_in_a_state_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let (mut server, mut left) = (ServerNegotiation::Flags, &bytes[..]);
        while server.needs() > 0 && left.len() >= server.needs() {
            let (now, rest) = left.split_at(server.needs());
            left = rest;
            match server.take(now, &geometry()) {
                Ok((_, next)) => server = next,
                Err(_) => break,
            }
        }
        let (mut client, mut left) = (ClientNegotiation::new("x"), &bytes[..]);
        while left.len() >= client.needs() {
            let (now, rest) = left.split_at(client.needs());
            left = rest;
            if !matches!(client.take(now), Ok(ClientStep::Send(_))) {
                break;
            }
        }
    }

    #[test]
    fn requests_survive_their_bytes(
        command in prop::sample::select(vec![Command::Read, Command::Write, Command::Flush, Command::Trim, Command::Zeroes]),
        force in any::<bool>(),
        cookie in any::<u64>(),
        offset in any::<u64>(),
        length in any::<u32>(),
    ) {
        let (asked, keep_space) = (Asked::Do(command), command == Command::Zeroes);
        let request = Request { asked, force, keep_space, has_unknown_flags: false, cookie, offset, length };
        prop_assert_eq!(Request::parse(&request.to_bytes()), Ok(request));
    }
}
