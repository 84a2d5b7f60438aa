//! Bytes from a program that carries records: its hello, and messages that are not sealed.
#![no_main]

use contract::{Ctl, End, FlowKey, Options, Pull, Pulled, TransportCtl};
use libfuzzer_sys::fuzz_target;
use std::io::Write;
use std::os::unix::net::UnixStream;

/// Most records of one input: each needs 57 bytes, and an input of the fuzzer has 4 KiB.
const RECORDS_MAX: usize = 1000;

fuzz_target!(|bytes: &[u8]| {
    let _ = transports::exec::look_in(bytes);
    let exec = transports::find("exec").expect("it is in the table");
    let options = Options::check(exec.options(), [("command", "fuzz")]).expect("its own options");
    let (mut program, ours) = UnixStream::pair().expect("a socket pair");
    ours.set_nonblocking(true).expect("a socket that does not block");
    let mut partner = exec.partner(ours.into(), End::Accepted, &options, None).expect("a partner");
    program.write_all(bytes).expect("the socket has room");
    drop(program);
    for _ in 0..RECORDS_MAX {
        let received = partner.ctl(FlowKey::DEFAULT, Ctl::Transport(TransportCtl::Received));
        match received.and_then(|_| partner.pull(FlowKey::DEFAULT, Pull::Yours)) {
            Ok(Pulled::Message(_, record)) => assert!(record.body.len() <= bytes.len()),
            _ => break,
        }
    }
});
