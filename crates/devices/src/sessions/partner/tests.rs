use super::*;
use crate::sessions::server::outlast;
use crate::sessions::tests::Deaf;
use contract::Body;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair, sockopt};
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use wire::formats::block::{Abilities, Command, Request};

fn lost(socket: OwnedFd) -> Lost {
    let until = now().after(LATE_UNKNOWN);
    Lost { name: FIRST_NAME, slot: None, socket: Some(socket), may_receive: true, until }
}

/// A disk whose server may let in one client only.
fn disk() -> Disk {
    let geometry =
        Geometry { size_bytes: 4096, block_bytes: 1, preferred_bytes: 4096, abilities: Abilities::default() };
    let (name, count, timeout) = ("disk".into(), SessionCount::Fixed(1), Duration::from_secs(10));
    let session = Box::new(|_: u32| Box::new(Deaf::default()) as Box<dyn Session>);
    Disk { name, geometry, count, is_alone: true, timeout, session }
}

/// A partner with this session, which has a write without a reply.
fn writing_on(ours: OwnedFd) -> DiskPartner {
    let mut partner = DiskPartner::begin(disk(), Vec::new()).unwrap();
    assert_eq!(partner.connections_wanted(), 1);
    partner.connected(Ok(ours)).unwrap();
    let (command, force, keep_space) = (Command::Write, false, false);
    let request = Request { id: 1, command, force, keep_space, offset: 0, length: 4 };
    let begin = ToDisk::Begin { number: 1 }.to_bytes();
    let write = [&request.to_bytes()[..], &[7; 4]].concat();
    for bytes in [Body::from(begin), Body::from(write)] {
        assert!(partner.accept(&mut Message::new(now(), bytes)).unwrap());
    }
    partner.serve().unwrap();
    partner
}

/// The same with a local session. Returns the server's end of it, too.
fn writing() -> (DiskPartner, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    theirs.set_nonblocking(true).unwrap();
    (writing_on(ours.into()), theirs)
}

/// Returns a connection with both its ends, and another descriptor of the first.
fn tcp() -> (OwnedFd, TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let copy = ours.try_clone().unwrap();
    (ours.into(), listener.accept().unwrap().0, copy)
}

#[test]
fn a_session_of_an_earlier_process_is_waited_for_until_its_bytes_are_dropped() {
    let (ours, _theirs, copy) = tcp();
    outlast(&copy);
    let mut partner = DiskPartner::begin(disk(), vec![ours]).unwrap();
    partner.serve().unwrap();
    assert!(partner.lost[0].until > now().after(LATE_SILENT), "its kernel may still send them");
    assert_eq!(sockopt::tcp_user_timeout(&copy).unwrap(), 86_400_000);
    let (next, _next_theirs, _) = tcp();
    partner.connected(Ok(next)).unwrap();
    assert!(partner.lost[0].until <= now().after(LATE_SILENT));
    assert_eq!(sockopt::tcp_user_timeout(&copy).unwrap(), 10_000);
    let (ours, _theirs, copy) = tcp();
    let partner = DiskPartner::begin(Disk { is_alone: false, ..disk() }, vec![ours]).unwrap();
    // Its kernel may have waited for 119 s since its last attempt to send them.
    assert!(partner.lost[0].until > now().after(Duration::from_secs(120)));
    assert!(partner.lost[0].until <= now().after(LATE_SILENT));
    assert_eq!(sockopt::tcp_user_timeout(&copy).unwrap(), 10_000);
}

#[test]
fn a_partner_that_ends_leaves_no_write_to_the_kernel_for_long() {
    let (ours, theirs, copy) = tcp();
    outlast(&copy);
    drop(writing_on(ours));
    assert_eq!(sockopt::tcp_user_timeout(&copy).unwrap(), 10_000);
    assert!(!sys::descriptor::is_hung_up(&copy), "the next process has to wait for the server");
    drop(theirs);
    let (ours, _theirs, copy) = tcp();
    outlast(&copy);
    let mut partner = DiskPartner::begin(disk(), Vec::new()).unwrap();
    partner.connected(Ok(ours)).unwrap();
    drop(partner);
    // A server that lets in one client only has to learn that it has gone.
    assert_eq!(sockopt::tcp_user_timeout(&copy).unwrap(), 86_400_000);
}

#[test]
fn a_silent_session_stays_until_the_server_lets_in_another_one() {
    let (mut partner, mut first) = writing();
    assert_eq!(first.read(&mut [0; 9]).unwrap(), 4);
    assert_eq!(partner.connections_wanted(), 0);
    partner.connections[0].is_silent = true;
    partner.serve().unwrap();
    assert_eq!(partner.connections_wanted(), 1, "another one may end the silence");
    partner.connected(Err("it does not answer".into())).unwrap();
    assert!(partner.connections.len() == 1 && partner.lost.is_empty());
    let note = partner.notes.pop_front().unwrap();
    assert!(note.contains("it does not answer; requests wait"), "{note}");
    let (ours, mut second) = UnixStream::pair().unwrap();
    second.set_nonblocking(true).unwrap();
    partner.connected(Ok(ours.into())).unwrap();
    assert!(partner.connections.len() == 1 && !partner.connections[0].is_silent);
    assert_eq!(partner.lost.len(), 1, "the write may still reach the disk");
    assert_eq!(second.read(&mut [0; 9]).unwrap(), 4, "the write was sent again");
    assert_eq!(first.read(&mut [0; 9]).unwrap(), 0, "the server learns that the session is over");
}

#[test]
fn a_session_that_has_become_idle_is_not_silent() {
    let (mut partner, _first) = writing();
    partner.connections[0].is_silent = true;
    partner.schedule = Schedule::new(partner.disk.geometry, CHUNK_BYTES);
    partner.serve().unwrap();
    assert_eq!(partner.count_open(), 1);
}

fn packets() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::NONBLOCK, None).unwrap()
}

#[test]
fn only_the_end_by_the_server_shortens_the_wait_for_a_lost_session() {
    let set = PollSet::new().unwrap();
    // A file that is no socket stands for a connection that has timed out: each call fails.
    let failing = std::fs::File::open("/dev/null").unwrap();
    let (ended, theirs) = packets();
    drop(theirs);
    for (socket, is_shorter) in [(ended, true), (failing.into(), false)] {
        let mut lost = lost(socket);
        let before = lost.until;
        discard(&mut lost, &set);
        assert_eq!((lost.until < before, lost.socket.is_none()), (is_shorter, true));
    }
}

#[test]
fn a_server_that_sends_on_and_on_does_not_hold_up_the_others() {
    let (ours, theirs) = packets();
    let mut lost = lost(ours);
    (0..=CALLS_MAX).for_each(|_| _ = send(&theirs, &[7], SendFlags::empty()).unwrap());
    let set = PollSet::new().unwrap();
    discard(&mut lost, &set);
    assert!(lost.may_receive, "no event follows for what is left");
    discard(&mut lost, &set);
    assert!(!lost.may_receive && lost.socket.is_some());
}
