use crate::file::tests::Scratch;
use crate::stream::tests::{FarStream, open, pull_all};
use contract::Role;
use std::io::Write;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use testkit::partner::conforms;

fn both_ways(partner: Box<dyn contract::Partner>, far: OwnedFd, options: bool) -> FarStream {
    let taker = far.try_clone().unwrap();
    // Reader and writer of the far side share one connection: dropping one does not end it.
    FarStream { in_containers: options, ends: false, ..FarStream::new(partner, Some(far), Some(taker)) }
}

#[test]
fn a_local_socket_conforms() {
    conforms(|| {
        let scratch = Scratch::new();
        let path = scratch.path("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let partner = open(&format!("unix:{path}"), Role::Device);
        both_ways(partner, listener.accept().unwrap().0.into(), false)
    });
}

#[test]
fn a_tcp_connection_conforms() {
    conforms(|| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let partner = open(&format!("tcp:{address},frame=container"), Role::Application);
        both_ways(partner, listener.accept().unwrap().0.into(), true)
    });
}

#[test]
fn the_flow_ends_when_the_server_closes() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut partner = open(&format!("tcp:{}", listener.local_addr().unwrap()), Role::Device);
    listener.accept().unwrap().0.write_all(b"good bye").unwrap();
    let messages = pull_all(partner.as_mut()).unwrap();
    let bytes: Vec<u8> = messages.into_iter().flat_map(|message| message.body.into_bytes()).collect();
    assert_eq!(bytes, b"good bye");
}

#[test]
fn a_refused_connection_is_reported_with_the_address() {
    let (class, spec) = crate::spec::parse("unix:/nonexistent/socket", Role::Device).unwrap();
    let error = class.open(&spec, Role::Device, None).unwrap_err().to_string();
    assert!(error.contains("unix:/nonexistent/socket") && error.contains("listening"), "{error}");
}

#[test]
fn the_kernel_asks_whether_an_idle_server_is_there() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    for role in [Role::Device, Role::Application] {
        let (class, spec) =
            crate::spec::parse(&format!("tcp:{}", listener.local_addr().unwrap()), role).unwrap();
        let opened = class.open(&spec, role, None).unwrap();
        assert!(rustix::net::sockopt::socket_keepalive(&opened.descriptors[0]).unwrap());
    }
}
