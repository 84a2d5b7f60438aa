use crate::stream::tests::{FarStream, partner_on};
use contract::Role;
use rustix::fs::{OFlags, fcntl_getfl};
use std::os::unix::net::UnixStream;
use testkit::partner::conforms;

#[test]
fn standard_input_from_a_pipe_conforms() {
    conforms(|| {
        let (reader, writer) = std::io::pipe().unwrap();
        FarStream::new(partner_on("stdin", Role::Device, reader), Some(writer.into()), None)
    });
}

#[test]
fn standard_input_from_a_socket_in_containers_conforms() {
    conforms(|| {
        let (near, far) = UnixStream::pair().unwrap();
        let partner = partner_on("stdin:frame=container", Role::Device, near);
        FarStream { in_containers: true, ..FarStream::new(partner, Some(far.into()), None) }
    });
}

#[test]
fn standard_output_to_a_pipe_conforms() {
    conforms(|| {
        let (reader, writer) = std::io::pipe().unwrap();
        FarStream::new(partner_on("stdout:frame=line", Role::Application, writer), None, Some(reader.into()))
    });
}

#[test]
fn standard_output_to_a_socket_conforms() {
    conforms(|| {
        let (near, far) = UnixStream::pair().unwrap();
        FarStream::new(partner_on("stdout", Role::Application, near), None, Some(far.into()))
    });
}

#[test]
fn standard_output_to_a_terminal_conforms() {
    conforms(|| {
        let (master, slave) = crate::serial::tests::raw_pair();
        FarStream::new(partner_on("stdout", Role::Application, slave), None, Some(master))
    });
}

#[test]
fn the_file_flags_of_standard_streams_stay() {
    let (reader, writer) = std::io::pipe().unwrap();
    let (master, slave) = crate::serial::tests::raw_pair();
    let kept =
        [reader.try_clone().unwrap().into(), writer.try_clone().unwrap().into(), slave.try_clone().unwrap()];
    let partners = [
        partner_on("stdin", Role::Device, reader),
        partner_on("stdout", Role::Application, writer),
        partner_on("stdout", Role::Application, slave),
    ];
    for descriptor in &kept {
        assert!(!fcntl_getfl(descriptor).unwrap().contains(OFlags::NONBLOCK));
    }
    drop((partners, master));
}
