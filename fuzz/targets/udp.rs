//! Datagrams from anybody, reassembled to records. Each piece of the input starts with a length of two bytes.
#![no_main]

use contract::{End, FlowKey, Options, Pull, Pulled};
use libfuzzer_sys::fuzz_target;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use wire::{BODY_BYTES_MAX, Reader, RecordHeader};

fuzz_target!(|bytes: &[u8]| {
    let udp = transports::find("udp").expect("it is in the table");
    let options = Options::check(udp.options(), [("socket_bytes", "0")]).expect("its own options");
    let (peer, ours) = socketpair(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::NONBLOCK, None)
        .expect("a pair of sockets");
    let mut partner = udp.partner(ours, End::Accepted, &options, None).expect("a partner");
    let mut reader = Reader::new(bytes);
    loop {
        let Ok(length) = reader.u16("length") else { break };
        let length = usize::from(length).min(reader.left());
        let datagram = reader.bytes("datagram", length).expect("so many are left");
        let _ = rustix::io::write(&peer, datagram);
        match partner.pull(FlowKey::DEFAULT, Pull::Yours) {
            Ok(Pulled::Message(_, record)) => {
                let bytes = record.body.into_bytes();
                let header = RecordHeader::parse(&bytes, BODY_BYTES_MAX).expect("a whole record");
                assert_eq!(header.container.length as usize, bytes.len() - RecordHeader::BYTES);
            }
            Ok(_) => {}
            Err(_) => break,
        }
    }
});
