//! Film files: the first byte selects the format, the rest is the file.
#![no_main]

use contract::{Attributes, Direction, FlowClass, FlowTemplate, Format, Pull, Pulled, Role};
use libfuzzer_sys::fuzz_target;
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use wire::formats::video::Header;

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    let mut file = File::from(memfd_create("film", MemfdFlags::CLOEXEC).expect("a file in memory"));
    file.write_all(bytes).expect("room for it");
    let kind = if kind & 1 == 0 { "y4m" } else { "mjpeg" };
    let text = format!("{kind}:/proc/self/fd/{},rate=0", file.as_raw_fd());
    let (class, spec) = devices::spec::parse(&text, Role::Device).expect("a device");
    let opened = class.open(&spec, Role::Device, None).expect("a file is opened");
    let mut partner = class.partner(opened).expect("a file is a film");
    let template =
        FlowTemplate { direction: Direction::Out, format: Format::Video, class: FlowClass::Reliable };
    let key = partner.open(&template, &Attributes::default()).expect("a flow of pictures");
    loop {
        match partner.pull(key, Pull::Yours) {
            Ok(Pulled::Message(_, message)) => {
                Header::parse(&message.body.into_bytes()).expect("a picture");
            }
            Ok(Pulled::End) => return,
            Ok(_) => {}
            Err(error) => {
                assert!(!error.to_string().is_empty());
                return;
            }
        }
    }
});
