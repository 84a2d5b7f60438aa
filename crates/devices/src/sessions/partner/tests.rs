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
    let (slot, socket, may_receive, outlasts, given_up_at) = (None, Some(socket), true, false, None);
    Lost { name: FIRST_NAME, slot, socket, may_receive, outlasts, given_up_at, until }
}

/// A disk whose server may count its clients.
fn disk() -> Disk {
    let geometry =
        Geometry { size_bytes: 4096, block_bytes: 1, preferred_bytes: 4096, abilities: Abilities::default() };
    let (name, count, timeout) = ("disk".into(), SessionCount::Fixed(1), Duration::from_secs(10));
    let session = Box::new(|_: u32| Box::new(Deaf::default()) as Box<dyn Session>);
    Disk { name, geometry, count, counts_clients: true, ends_with_last: false, timeout, session }
}

/// Writes 4 bytes behind those of the earlier writes. `id`: from 1 on.
fn write(partner: &mut DiskPartner, id: u64) {
    let (command, force, keep_space) = (Command::Write, false, false);
    let request = Request { id, command, force, keep_space, offset: 4 * id, length: 4 };
    let write = [&request.to_bytes()[..], &[7; 4]].concat();
    assert!(partner.accept(&mut Message::new(now(), Body::from(write))).unwrap());
}

/// A partner with these sessions, each of which has a write without a reply.
fn writing_on_all(sessions: Vec<OwnedFd>) -> DiskPartner {
    let count = sessions.len() as u32;
    let disk = Disk { count: SessionCount::Fixed(count), ..disk() };
    let mut partner = DiskPartner::begin(disk, Vec::new()).unwrap();
    assert_eq!(partner.connections_wanted(), count);
    sessions.into_iter().for_each(|ours| partner.connected(Ok(ours)).unwrap());
    let begin = ToDisk::Begin { number: 1 }.to_bytes();
    assert!(partner.accept(&mut Message::new(now(), Body::from(begin))).unwrap());
    (1..=count).for_each(|id| write(&mut partner, id.into()));
    partner.serve().unwrap();
    partner
}

/// The same with one session.
fn writing_on(ours: OwnedFd) -> DiskPartner {
    writing_on_all(vec![ours])
}

/// Returns both ends of a local session; reads of the second one do not wait.
fn local() -> (OwnedFd, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    theirs.set_nonblocking(true).unwrap();
    (ours.into(), theirs)
}

/// The same with a local session. Returns the server's end of it, too.
fn writing() -> (DiskPartner, UnixStream) {
    let (ours, theirs) = local();
    (writing_on(ours), theirs)
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
    let partner = DiskPartner::begin(Disk { counts_clients: false, ..disk() }, vec![ours]).unwrap();
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
fn the_kernel_drops_the_writes_of_a_killed_program_that_the_server_has_not_taken() {
    let (ours, _theirs, copy) = tcp();
    let mut partner = writing_on(ours);
    assert_eq!(sockopt::socket_linger(&copy).unwrap(), None, "short requests cost no call");
    partner.check_at = Some(now());
    partner.serve().unwrap();
    assert_eq!(sockopt::socket_linger(&copy).unwrap(), Some(Duration::ZERO));
    partner.schedule = Schedule::new(partner.disk.geometry, CHUNK_BYTES);
    partner.serve().unwrap();
    assert_eq!(sockopt::socket_linger(&copy).unwrap(), None, "the server has to learn the end");
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
    let (ours, mut second) = local();
    partner.connected(Ok(ours)).unwrap();
    assert!(partner.connections.len() == 1 && !partner.connections[0].is_silent);
    assert_eq!(partner.lost.len(), 1, "the write may still reach the disk");
    assert_eq!(second.read(&mut [0; 9]).unwrap(), 4, "the write was sent again");
    assert_eq!(first.read(&mut [0; 9]).unwrap(), 0, "the server learns that the session is over");
}

#[test]
fn each_silent_session_stays_until_another_one_has_its_place() {
    let ((one, mut first), (two, mut second)) = (local(), local());
    let mut partner = writing_on_all(vec![one, two]);
    let read = |server: &mut UnixStream| server.read(&mut [0; 99]).ok();
    assert_eq!([read(&mut first), read(&mut second)], [Some(4); 2]);
    partner.connections.iter_mut().for_each(|one| one.is_silent = true);
    write(&mut partner, 3);
    partner.serve().unwrap();
    assert_eq!([read(&mut first), read(&mut second)], [None; 2], "no further orders for a silent session");
    assert_eq!(partner.connections_wanted(), 2);
    // The server has one more place, and keeps counting the session that is given up.
    let (ours, mut third) = local();
    partner.connected(Ok(ours)).unwrap();
    partner.connected(Err("it does not answer".into())).unwrap();
    assert_eq!((partner.connections.len(), partner.lost.len(), partner.count_open()), (2, 1, 1));
    assert_eq!([read(&mut first), read(&mut third)], [Some(0), Some(8)]);
    assert_eq!(read(&mut second), None, "without its place there may be no other one");
    // The network is back.
    partner.connections.iter_mut().for_each(|one| one.is_silent = false);
    write(&mut partner, 4);
    partner.serve().unwrap();
    assert_eq!(read(&mut second), Some(4));
    partner.connections[0].is_silent = true;
    let (ours, mut fourth) = local();
    partner.connected(Ok(ours)).unwrap();
    assert_eq!((partner.connections.len(), partner.lost.len(), partner.count_open()), (2, 2, 2));
    assert_eq!([read(&mut second), read(&mut fourth)], [Some(0), Some(8)]);
}

#[test]
fn a_session_that_answers_is_not_surplus_beside_a_silent_one() {
    let ((one, _first), (two, mut second)) = (local(), local());
    let mut partner = writing_on_all(vec![one, two]);
    partner.connections[0].is_silent = true;
    partner.schedule.use_sessions(1);
    partner.demand = Demand::new(SessionCount::Fixed(1));
    partner.serve().unwrap();
    assert_eq!(partner.connections_wanted(), 1, "the write on the silent one waits for it");
    let (ours, mut third) = local();
    partner.connected(Ok(ours)).unwrap();
    assert_eq!((partner.connections.len(), partner.lost.len()), (1, 1));
    assert_eq!(second.read(&mut [0; 99]).unwrap(), 8, "the oldest that answers has both writes");
    assert_eq!(third.read(&mut [0; 99]).unwrap(), 0, "it has taken the place, and is one too many");
}

#[test]
fn a_session_whose_way_to_the_server_has_gone_is_given_up_while_another_one_answers() {
    let ((one, _first), (two, mut second)) = (local(), local());
    let mut partner = writing_on_all(vec![one, two]);
    partner.connections.iter_mut().for_each(|one| one.is_silent = true);
    partner.connections[0].given_up_at = Some(now());
    partner.serve().unwrap();
    assert_eq!((partner.connections.len(), partner.lost.len()), (2, 0), "the server is silent on both");
    partner.connections[1].is_silent = false;
    partner.serve().unwrap();
    let at = partner.connections[0].given_up_at.unwrap();
    assert!(at > now().after(Duration::from_secs(120)), "its kernel may not have tried again");
    partner.connections[0].given_up_at = Some(now());
    partner.serve().unwrap();
    assert_eq!((partner.connections.len(), partner.lost.len()), (1, 1));
    assert_eq!(second.read(&mut [0; 99]).unwrap(), 8);
}

#[test]
fn each_session_of_an_earlier_process_keeps_its_place_until_another_one_is_open() {
    let ((one, _first, first), (two, _second, second)) = (tcp(), tcp());
    [&first, &second].into_iter().for_each(outlast);
    let mut partner = DiskPartner::begin(disk(), vec![one, two]).unwrap();
    let limits = || [&first, &second].map(|copy| sockopt::tcp_user_timeout(copy).unwrap());
    assert_eq!(partner.connections_wanted(), 1);
    let (ours, _third) = local();
    partner.connected(Ok(ours)).unwrap();
    assert_eq!(limits(), [10_000, 86_400_000]);
    assert_eq!(partner.connections_wanted(), 1, "all writes wait for the other one");
    let (ours, _fourth) = local();
    partner.connected(Ok(ours)).unwrap();
    assert_eq!(limits(), [10_000; 2]);
    assert_eq!((partner.connections.len(), partner.connections_wanted()), (1, 0));
}

#[test]
fn a_server_that_ends_with_its_last_client_keeps_one_through_a_restart_of_the_worker() {
    let read = |server: &mut UnixStream| server.read(&mut [0; 9]).ok();
    for is_let_in in [true, false] {
        let ((one, mut first), (two, mut second)) = (local(), local());
        let mut partner =
            DiskPartner::begin(Disk { ends_with_last: true, ..disk() }, vec![one, two]).unwrap();
        partner.serve().unwrap();
        assert_eq!([read(&mut first), read(&mut second)], [Some(0), None]);
        let (ours, _third) = local();
        partner.connected(if is_let_in { Ok(ours) } else { Err("it is full".into()) }).unwrap();
        assert_eq!(read(&mut second), Some(0), "it may have the only place");
    }
    let (one, mut first) = local();
    let _partner = DiskPartner::begin(disk(), vec![one]).unwrap();
    assert_eq!(read(&mut first), Some(0), "there is no other place");
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
