//! The relay between real sockets: the output equals the input and is never early. Times have only lower
//! bounds, because a busy machine may delay anything.

use netsim::relay::{Direction, Relay, WINDOW_BYTES};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
/// The longest wait of a test.
const PATIENCE: Duration = Duration::from_secs(60);

fn relay(target: SocketAddr, params: &str) -> Relay {
    Relay::start(ANY, target, params.parse().unwrap(), 1).unwrap()
}

/// A client connected to a server through a relay.
fn connection(params: &str) -> (Relay, TcpStream, TcpStream) {
    let listener = TcpListener::bind(ANY).unwrap();
    let relay = relay(listener.local_addr().unwrap(), params);
    let client = TcpStream::connect(relay.address()).unwrap();
    let (server, _) = listener.accept().unwrap();
    for socket in [&client, &server] {
        socket.set_nodelay(true).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    (relay, client, server)
}

fn datagrams(params: &str) -> (Relay, UdpSocket, UdpSocket) {
    let (client, server) = (UdpSocket::bind(ANY).unwrap(), UdpSocket::bind(ANY).unwrap());
    let relay = relay(server.local_addr().unwrap(), params);
    client.connect(relay.address()).unwrap();
    for socket in [&client, &server] {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    (relay, client, server)
}

/// Bytes without any pattern that could hide a swapped or duplicated segment.
fn noise(count: usize) -> Vec<u8> {
    let mut state = 88172645463325252u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..count).map(|_| next()).collect()
}

fn wait_until(event: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < end, "timeout: {event}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_stream_survives_everything_both_ways() {
    let bad =
        "delay=1ms,jitter=2ms,reorder,loss=0.5%,burst=0.5%/3,duplicate=5%,corrupt=0.5%,rate=200mbit,queue=50";
    let (relay, client, server) = connection(bad);
    let (up, down) = (noise(300_000), noise(200_000));
    thread::scope(|scope| {
        for (mut socket, sent, expected) in [(client, &up, &down), (server, &down, &up)] {
            let mut reader = socket.try_clone().unwrap();
            scope.spawn(move || {
                socket.write_all(sent).unwrap();
                socket.shutdown(Shutdown::Write).unwrap();
            });
            scope.spawn(move || {
                let mut got = Vec::new();
                reader.read_to_end(&mut got).unwrap();
                assert!(got == *expected, "{} of {} bytes, or wrong ones", got.len(), expected.len());
            });
        }
    });
    let counters = relay.traffic(Direction::ToTarget).counters;
    assert!(counters.lost > 0 && counters.duplicated > 0 && counters.corrupted > 0, "{counters:?}");
}

#[test]
fn a_byte_takes_the_delay_each_way() {
    let (relay, mut client, mut server) = connection("delay=20ms");
    relay.set(Direction::FromTarget, "delay=50ms".parse().unwrap());
    let mut byte = [0];
    let begin = Instant::now();
    client.write_all(b"x").unwrap();
    server.read_exact(&mut byte).unwrap();
    assert!(begin.elapsed() >= Duration::from_millis(20));
    let begin = Instant::now();
    server.write_all(b"y").unwrap();
    client.read_exact(&mut byte).unwrap();
    assert!(begin.elapsed() >= Duration::from_millis(50));
    assert_eq!(&byte, b"y");
}

#[test]
fn a_lost_segment_delays_all_that_follow() {
    let (relay, mut client, mut server) = connection("loss=100%");
    let begin = Instant::now();
    client.write_all(b"first").unwrap();
    wait_until("the loss", || relay.traffic(Direction::ToTarget).counters.lost == 1);
    relay.set_both("".parse().unwrap());
    client.write_all(b" second").unwrap();
    let mut got = [0; 12];
    server.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"first second");
    assert!(begin.elapsed() >= Duration::from_millis(200));
}

#[test]
fn bytes_wait_while_the_link_is_cut() {
    let (relay, mut client, mut server) = connection("delay=30ms");
    client.write_all(b"in flight").unwrap();
    wait_until("the segment", || relay.traffic(Direction::ToTarget).held_packets == 1);
    relay.cut();
    wait_until("the cut", || relay.traffic(Direction::ToTarget).counters.cut == 1);
    client.write_all(b", waiting").unwrap();
    server.set_read_timeout(Some(Duration::from_millis(400))).unwrap();
    let mut got = [0; 18];
    assert_eq!(server.read(&mut got).unwrap_err().kind(), ErrorKind::WouldBlock);
    relay.restore();
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    server.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"in flight, waiting");
    assert_eq!(relay.traffic(Direction::ToTarget).params.to_string(), "delay=30ms");
}

#[test]
fn a_receiver_that_does_not_read_stops_the_sender() {
    let (_relay, mut client, mut server) = connection("delay=1ms");
    client.set_write_timeout(Some(Duration::from_millis(700))).unwrap();
    let block = noise(1 << 20);
    let mut sent = 0;
    // Each socket's buffer accepts some megabytes as well.
    let refused = loop {
        match client.write(&block) {
            Ok(count) => sent += count,
            Err(error) => break error,
        }
        assert!(sent < WINDOW_BYTES + (64 << 20), "nothing holds the sender back");
    };
    assert_eq!(refused.kind(), ErrorKind::WouldBlock);
    client.shutdown(Shutdown::Write).unwrap();
    let mut got = Vec::new();
    server.read_to_end(&mut got).unwrap();
    assert_eq!(got.len(), sent);
}

#[test]
fn sides_end_independently_and_a_refusal_is_forwarded() {
    let (_relay, mut client, mut server) = connection("delay=2ms");
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(server.read(&mut [0; 9]).unwrap(), 0);
    server.write_all(b"still here").unwrap();
    drop(server);
    let mut got = String::new();
    client.read_to_string(&mut got).unwrap();
    assert_eq!(got, "still here");

    let nobody = TcpListener::bind(ANY).unwrap().local_addr().unwrap();
    let relay = relay(nobody, "");
    let mut client = TcpStream::connect(relay.address()).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    assert!(matches!(client.read(&mut [0; 9]), Ok(0) | Err(_)));
}

#[test]
fn the_rate_limits_a_stream() {
    let (_relay, mut client, mut server) = connection("rate=8mbit,queue=10");
    let begin = Instant::now();
    let bytes = noise(200_000); // a fifth of a second at 8 Mbit/s
    let sender = thread::spawn(move || client.write_all(&bytes).unwrap());
    server.read_exact(&mut vec![0; 200_000]).unwrap();
    assert!(begin.elapsed() >= Duration::from_millis(200));
    sender.join().unwrap();
}

#[test]
fn datagrams_go_both_ways_for_several_clients() {
    let (relay, client, server) = datagrams("delay=20ms");
    let other = UdpSocket::bind(ANY).unwrap();
    other.set_read_timeout(Some(PATIENCE)).unwrap();
    other.connect(relay.address()).unwrap();
    let begin = Instant::now();
    client.send(b"one").unwrap();
    other.send(b"two").unwrap();
    let mut buffer = [0; 64];
    for _ in 0..2 {
        let (count, from) = server.recv_from(&mut buffer).unwrap();
        server.send_to(&buffer[..count], from).unwrap();
    }
    assert!(begin.elapsed() >= Duration::from_millis(20));
    for (socket, want) in [(&client, b"one"), (&other, b"two")] {
        let count = socket.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..count], want);
    }
    assert!(begin.elapsed() >= Duration::from_millis(40));
}

#[test]
fn lost_datagrams_are_counted() {
    let (relay, client, server) = datagrams("loss=30%,jitter=3ms,reorder");
    for i in 0..200u32 {
        client.send(&i.to_le_bytes()).unwrap();
        thread::sleep(Duration::from_micros(200));
    }
    let to_target = || relay.traffic(Direction::ToTarget);
    wait_until("all datagrams", || to_target().counters.sent == 200 && to_target().held_packets == 0);
    let traffic = to_target();
    assert!((30..100).contains(&traffic.counters.lost), "{traffic:?}");
    assert_eq!(traffic.counters.delivered + traffic.counters.lost, 200);
    let mut got = Vec::new();
    server.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let mut number = [0; 4];
    while server.recv(&mut number).is_ok() {
        got.push(u32::from_le_bytes(number));
    }
    assert_eq!(got.len() as u64, traffic.counters.delivered);
    assert!(!got.is_sorted(), "nothing was reordered");

    relay.cut();
    client.send(b"gone").unwrap();
    wait_until("the cut", || to_target().counters.cut == 1);
    relay.set_both("".parse().unwrap());
    client.send(b"here").unwrap();
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    server.recv(&mut number).unwrap();
    assert_eq!(&number, b"here");
}

#[test]
fn the_same_seed_loses_the_same_datagrams() {
    let run = || {
        let (relay, client, server) = datagrams("loss=20%,burst=10%/4");
        for i in 0..200u8 {
            client.send(&[i]).unwrap();
        }
        wait_until("all datagrams", || relay.traffic(Direction::ToTarget).counters.sent == 200);
        let delivered = relay.traffic(Direction::ToTarget).counters.delivered;
        let mut byte = [0];
        (0..delivered).map(|_| server.recv(&mut byte).map(|_| byte[0]).unwrap()).collect::<Vec<u8>>()
    };
    assert_eq!(run(), run());
}
