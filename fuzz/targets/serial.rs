//! A message of a serial flow: data, or settings of a line.
#![no_main]

use contract::Body;
use devices::serial::SerialMessage;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(message) = SerialMessage::parse(&Body::from(bytes.to_vec())) {
        assert!(message.emit().into_bytes() == bytes);
    }
});
