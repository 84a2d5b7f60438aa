//! Entry points for the fuzzer: both ends of the protocol.

use super::protocol::{Facts, Incoming, PACKET_BYTES, Packet, Program};

/// Answers a program that sends `bytes`.
pub fn program(bytes: &[u8]) {
    let facts = Facts { name: "a name that takes two packets".into(), buttons: 2, ..Facts::default() };
    let (mut program, mut output) = (Program::new(), Vec::new());
    for piece in bytes.chunks(7) {
        program.receive(piece, &facts, &mut output);
    }
    assert!(output.len() <= 4 * bytes.len(), "answers are longer than their requests allow");
}

/// Reads events of a daemon.
pub fn daemon(bytes: &[u8]) {
    for packet in bytes.as_chunks::<PACKET_BYTES>().0 {
        let packet = Packet::from_bytes(packet);
        let _ = (Incoming::parse(&packet), packet.data(), packet.text());
        assert_eq!(&Packet::from_bytes(&packet.to_bytes()), &packet);
    }
}
