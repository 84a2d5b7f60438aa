//! Records from anybody on an encrypted connection: none is accepted. Each piece of the input starts with a
//! length of two bytes.
#![no_main]

use contract::{End, FlowKey, Options, Pull, Pulled, SealKeys, Secret};
use libfuzzer_sys::fuzz_target;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use wire::Reader;

fuzz_target!(|bytes: &[u8]| {
    let udp = transports::find("udp").expect("it is in the table");
    let options = Options::check(udp.options(), [("socket_bytes", "0")]).expect("its own options");
    let (peer, ours) = socketpair(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::NONBLOCK, None)
        .expect("a pair of sockets");
    let keys = SealKeys { sending: Secret([1; 32]), receiving: Secret([2; 32]) };
    let mut partner = udp.partner(ours, End::Accepted, &options, Some(&keys)).expect("a partner");
    let mut reader = Reader::new(bytes);
    while let Ok(length) = reader.u16("length") {
        let length = usize::from(length).min(reader.left());
        let _ = rustix::io::write(&peer, reader.bytes("piece", length).expect("so many are left"));
        match partner.pull(FlowKey::DEFAULT, Pull::Yours) {
            Ok(Pulled::Message(..)) => panic!("a record that nobody sealed"),
            Ok(_) => {}
            Err(_) => break,
        }
    }
});
