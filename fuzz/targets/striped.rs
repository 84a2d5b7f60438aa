//! Bytes from anybody on a way of `striped` that is not sealed.
#![no_main]

use contract::{Ctl, End, FlowKey, Options, Pull, Pulled, TransportCtl};
use libfuzzer_sys::fuzz_target;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::LazyLock;

/// Most records of one input: each needs 36 bytes, and an input of the fuzzer has 4 KiB.
const RECORDS_MAX: usize = 1000;

static LISTENER: LazyLock<TcpListener> = LazyLock::new(|| TcpListener::bind("127.0.0.1:0").expect("a port"));

fuzz_target!(|bytes: &[u8]| {
    let striped = transports::find("striped").expect("it is in the table");
    let options = Options::check(striped.options(), [("ways", "3")]).expect("its own options");
    let mut peer = TcpStream::connect(LISTENER.local_addr().expect("an address")).expect("a connection");
    let (ours, _) = LISTENER.accept().expect("a connection");
    let mut partner = striped.partner(ours.into(), End::Accepted, &options, None).expect("a partner");
    peer.write_all(bytes).expect("the socket has room");
    for _ in 0..RECORDS_MAX {
        let served = partner.ctl(FlowKey::DEFAULT, Ctl::Transport(TransportCtl::ServeWays));
        match served.and_then(|_| partner.pull(FlowKey::DEFAULT, Pull::Yours)) {
            Ok(Pulled::Message(_, record)) => assert!(record.body.len() <= bytes.len()),
            _ => break,
        }
    }
});
