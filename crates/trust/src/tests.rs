//! Tests of identities, known hosts and pairing, in one process over real sockets.

use super::channel::SecureStream;
use super::link_keys::LinkKeys;
use super::pairing::{Code, Offer, PairError};
use super::quic_stream::{QuicStream, QuicTrust};
use super::*;
use proptest::prelude::*;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use sys::stop::Stop;
use transports::quic::ServerKeys;
use wire::Preamble;

/// A user on a host of its own; its directory is removed on drop.
struct User {
    trust: Trust,
    directory: PathBuf,
}

impl User {
    fn new() -> User {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("outboard-trust-{}-{number}", std::process::id()));
        User { trust: Trust::at(&directory).unwrap(), directory }
    }
}

impl Drop for User {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn anywhere() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

/// Offers a pairing code at `user`'s host: returns the address, the code and the outcome.
fn show(user: &User) -> (SocketAddr, String, thread::JoinHandle<Result<Paired, PairError>>) {
    let offer = Offer::new(user.trust.clone(), anywhere(), None).unwrap();
    let (address, code, stop) = (offer.address(), offer.code(), Stop::new().unwrap());
    (address, code, thread::spawn(move || offer.wait(Duration::from_secs(60), &stop, &mut |_| {})))
}

fn join(trust: &Trust, code: &str, host: &str, address: SocketAddr) -> Result<Paired, PairError> {
    super::join(trust, &Code::parse(code)?, (host, address), None)
}

fn wrong(code: &str) -> String {
    let last = if code.ends_with('0') { "1" } else { "0" };
    format!("{}{last}", &code[..code.len() - 1])
}

#[test]
fn an_identity_is_created_once_and_private_to_its_user() {
    let user = User::new();
    let key = user.trust.key();
    let again: Vec<_> = (0..4)
        .map(|_| user.directory.clone())
        .map(|at| thread::spawn(move || Trust::at(&at).unwrap().key()))
        .collect();
    assert!(again.into_iter().all(|again| again.join().unwrap() == key));
    let file = user.directory.join("identity.key");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let shown = format!("{:?} {:?}", user.trust, user.trust.identity);
    let secret = std::fs::read(&file).unwrap();
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    // The seed follows 16 bytes of algorithm identifier (RFC 8410, section 7).
    assert!(!shown.contains(&hex(&secret[16..24])), "{shown}");

    let set = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    set(&file, 0o640);
    let refused = Trust::at(&user.directory).unwrap_err().to_string();
    assert!(refused.contains("chmod 600") && refused.contains("identity.key"), "{refused}");
    set(&file, 0o600);
    set(&user.directory, 0o755);
    let refused = Trust::at(&user.directory).unwrap_err().to_string();
    assert!(refused.contains("chmod 700"), "{refused}");
    set(&user.directory, 0o700);
    std::fs::write(&file, b"no key").unwrap();
    let refused = Trust::at(&user.directory).unwrap_err().to_string();
    assert!(refused.contains("pair anew"), "{refused}");
}

#[test]
fn concurrent_processes_create_one_identity() {
    let directory = std::env::temp_dir().join(format!("outboard-race-{}", std::process::id()));
    let makers: Vec<_> = (0..8)
        .map(|_| directory.clone())
        .map(|at| thread::spawn(move || Trust::at(&at).unwrap().key()))
        .collect();
    let keys: std::collections::BTreeSet<_> = makers.into_iter().map(|maker| maker.join().unwrap()).collect();
    let files = std::fs::read_dir(&directory).unwrap().count();
    std::fs::remove_dir_all(&directory).unwrap();
    assert_eq!((keys.len(), files), (1, 1), "one key, and nothing left of the others");
}

#[test]
fn a_place_that_is_on_record_needs_no_write() {
    let user = User::new();
    let (key, other) = (PeerKey([1; 32]), PeerKey([2; 32]));
    let add = |peers: &mut Peers| peers.add("a", None, key, None).and(peers.add("c", None, other, None));
    user.trust.edit(add).unwrap();
    let mut known = Known::new(user.trust.clone()).unwrap();
    known.record(&key, "desk:7845").unwrap();
    // Nobody can open a directory for writing, as on a read-only file system.
    let lock = user.directory.join(LOCK_FILE);
    std::fs::remove_file(&lock).unwrap();
    std::fs::create_dir(&lock).unwrap();
    known.record(&key, "desk:7845").unwrap();
    assert!(known.record(&other, "desk:7845").is_err(), "a place changes its key only with a record");
    assert!(known.record(&key, "lab:7845").is_err());
}

#[test]
fn concurrent_edits_are_all_saved_and_reloaded() {
    let user = User::new();
    let mut known = Known::new(user.trust.clone()).unwrap();
    let editors: Vec<_> = (0..16u8)
        .map(|number| {
            let trust = user.trust.clone();
            let add = move |peers: &mut Peers| peers.add("host", None, PeerKey([number; 32]), None);
            thread::spawn(move || trust.edit(add).unwrap().name)
        })
        .collect();
    let names: std::collections::BTreeSet<_> =
        editors.into_iter().map(|editor| editor.join().unwrap()).collect();
    assert_eq!(names.len(), 16, "each has a name of its own");
    assert!(known.refresh().unwrap() && !known.refresh().unwrap());
    let key = PeerKey([3; 32]);
    let name = known.name_of(&key).unwrap().to_string();
    let permit = |known: &mut Known| {
        known.refresh().unwrap();
        known.permit(&key)
    };
    assert!(permit(&mut known).unwrap().covers("cam", &[]));
    assert!(!permit(&mut known).unwrap().covers("cam", &[PeerKey([4; 32])]));
    user.trust.edit(|peers| peers.restrict(&name, Some(vec!["cam".into()]))).unwrap();
    let restricted = permit(&mut known).unwrap();
    assert!(restricted.covers("cam", &[key]) && !restricted.covers("mouse", &[]));
    user.trust.edit(|peers| peers.rename(&name, "studio")).unwrap();
    assert!(user.trust.edit(|peers| peers.rename("studio", "a/b")).is_err());
    user.trust.edit(|peers| peers.remove("studio")).unwrap();
    assert_eq!(permit(&mut known), None);
    std::fs::write(user.directory.join("peers.json"), b"{").unwrap();
    assert!(known.refresh().is_err());
    assert_eq!(known.permit(&PeerKey([4; 32])), None, "a file that is broken knows nobody");
    assert_eq!(known.permit(&user.trust.key()), Some(Permit::All));
}

#[test]
fn a_name_belongs_to_one_key_for_ever() {
    let [one, other, third] = [1, 2, 3].map(|number| PeerKey([number; 32]));
    let mut peers = Peers::default();
    let add = |peers: &mut Peers, key, chosen| {
        let added = peers.add("studio", chosen, key, Some("10.0.0.5".into())).unwrap();
        (added.name, added.claimed)
    };
    let claimed = Some("studio".to_string());
    assert_eq!(add(&mut peers, one, None), ("studio".into(), None));
    assert_eq!(add(&mut peers, other, None), ("studio-2".into(), claimed.clone()));
    // A removed name and the old name of a renamed host stay taken, also in the file.
    peers.remove("studio").unwrap();
    peers.rename("studio-2", "desk").unwrap();
    let mut peers = Peers::parse(&peers.emit().unwrap()).unwrap();
    assert_eq!(add(&mut peers, third, None), ("studio-3".into(), claimed));
    for name in ["studio", "studio-2", "desk"] {
        assert!(peers.rename("studio-3", name).is_err() && peers.check_name(name, &third).is_err(), "{name}");
    }
    let missing = peers.required("studio").unwrap_err().to_string();
    assert!(missing.contains("was removed") && missing.contains("desk, studio-3"), "{missing}");
    // The same key gets its own name back.
    assert_eq!(add(&mut peers, one, None), ("studio".into(), None));
    peers.rename("desk", "studio-2").unwrap();
    assert_eq!(add(&mut peers, other, Some("desk")), ("desk".into(), None));
    // No host calls itself like an address, or like the host of another peer.
    for (claimed, name) in [("10.0.0.9", "10-0-0-9"), ("nas.lan", "nas.lan-2"), ("this user", "this-user")] {
        let mut peers = Peers::parse(br#"{"peers": []}"#).unwrap();
        peers.add("x", None, one, Some("nas.lan".into())).unwrap();
        assert_eq!(peers.add(claimed, None, other, None).unwrap().name, name);
    }
    for name in ["10.0.0.9", "a@b", "a:1", "a/b", "", "this user", "localhost"] {
        assert!(peers.rename("desk", name).is_err(), "{name}");
    }
}

#[test]
fn no_host_is_called_like_this_one() {
    let user = User::new();
    let names = ["localhost", "LocalHost.localdomain", "a.localhost", "ip6-localhost", "localhost6"];
    for name in names {
        let (mut peers, key) = (Peers::default(), PeerKey([1; 32]));
        assert_eq!(peers.add(name, None, key, None).unwrap().name, "host", "{name}");
        for chosen in [peers.rename("host", name), peers.add_line(&line(2, name, None), &key, true).map(drop)]
        {
            let problem = chosen.unwrap_err().to_string();
            assert!(problem.contains("cannot be a host's name"), "{problem}");
        }
        assert_eq!(user.trust.key_line(name, None).name, "host", "{name}");
    }
    // A list of an earlier version, and a directory with its lines, stay valid.
    let content = format!(r#"{{"peers": [{{"name": "localhost", "key": "{}"}}]}}"#, PeerKey([1; 32]));
    let mut peers = Peers::parse(content.as_bytes()).unwrap();
    peers.declare("/etc/peers.d", &[line(1, "localhost", None)], &PeerKey([9; 32])).unwrap();
    assert_eq!(peers.named("localhost").map(|peer| peer.key), Some(PeerKey([1; 32])));
    for name in ["localhosts", "my-localhost", "local"] {
        assert_eq!(Peers::default().add(name, None, PeerKey([1; 32]), None).unwrap().name, name);
    }
}

#[test]
fn the_names_of_a_host_include_its_own_host_name() {
    let [one, two, three] = [1, 2, 3].map(|byte| PeerKey([byte; 32]));
    let mut peers = Peers::default();
    peers.add("studio", None, one, None).unwrap();
    peers.add("studio", Some("desk"), two, None).unwrap();
    peers.add("studio", None, three, None).unwrap();
    peers.rename("desk", "plant").unwrap();
    let names = |peers: &Peers, name: &str| {
        peers.names_of(peers.named(name).unwrap()).map(String::from).collect::<Vec<_>>()
    };
    let read = Peers::parse(&peers.emit().unwrap()).unwrap();
    assert_eq!(names(&read, "studio"), ["studio"]);
    assert_eq!(names(&read, "plant"), ["plant", "desk", "studio"]);
    assert_eq!(names(&read, "studio-2"), ["studio-2", "studio"]);
    // A line has the user's name for the host. A pairing and a session have its own.
    peers.add_line(&line(2, "plant", None), &PeerKey([9; 32]), false).unwrap();
    assert_eq!(names(&peers, "plant"), ["plant", "desk", "studio"]);
    peers.add("lab", None, two, None).unwrap();
    assert_eq!(names(&peers, "plant"), ["plant", "desk", "lab"]);
    let user = User::new();
    user.trust
        .edit(|stored| {
            *stored = peers;
            Ok(())
        })
        .unwrap();
    let mut known = Known::new(user.trust.clone()).unwrap();
    for host in ["plant", "nas.lan", "a\nb"] {
        known.record_host_name(&two, host).unwrap();
    }
    assert_eq!(names(known.peers(), "plant"), ["plant", "desk", "a-b"]);
    known.record_host_name(&PeerKey([7; 32]), "stranger").unwrap();
    assert_eq!(user.trust.peers().unwrap(), *known.peers());
}

/// Returns the line of a host whose key has this byte.
fn line(byte: u8, name: &str, may_open: Option<&[&str]>) -> KeyLine {
    let may_open = may_open.map(|devices| devices.iter().map(|device| device.to_string()).collect());
    KeyLine { key: PeerKey([byte; 32]), name: name.into(), address: None, may_open }
}

#[test]
fn a_key_line_has_its_effect_once() {
    let (mut peers, own) = (Peers::default(), PeerKey([9; 32]));
    let mut add = |line: KeyLine| peers.add_line(&line, &own, false);
    assert_eq!(add(line(9, "self", None)).unwrap(), LineEffect::Own);
    for (effect, line) in [
        (LineEffect::Added, line(1, "studio", Some(&["cam"]))),
        (LineEffect::Unchanged, line(1, "studio", Some(&["cam"]))),
        (LineEffect::Unchanged, line(1, "studio", None)),
        (LineEffect::Changed, line(1, "studio", Some(&[]))),
        (LineEffect::Changed, line(1, "desk", None)),
        (LineEffect::Added, line(2, "lab", None)),
    ] {
        let shown = line.to_string();
        assert_eq!(add(line).unwrap(), effect, "{shown}");
    }
    assert_eq!(
        peers.named("desk").unwrap().may_open,
        Some(Vec::new()),
        "a line without a permit changes none"
    );
    // Names of present and of former hosts stay theirs, until the owner decides.
    for taken in ["desk", "studio"] {
        let error = peers.add_line(&line(3, taken, None), &own, false).unwrap_err().to_string();
        assert!(error.contains("`--replace`"), "{error}");
        assert_eq!(
            peers.add_line(&line(3, taken, None), &own, true).unwrap() == LineEffect::Added,
            taken == "desk"
        );
    }
    let lines: Vec<_> = peers.key_lines().map(|line| line.to_string()).collect();
    assert_eq!(lines, [line(2, "lab", None), line(3, "studio", None)].map(|line| line.to_string()));
    assert!(peers.add_line(&line(3, SELF, None), &own, true).is_err());
}

#[test]
fn a_directory_of_key_lines_decides_on_its_hosts() {
    let (mut peers, own) = (Peers::default(), PeerKey([9; 32]));
    peers.add("guest", None, PeerKey([5; 32]), None).unwrap();
    let names = |peers: &Peers| -> Vec<(String, u8)> {
        let mut names: Vec<_> = peers.iter().map(|peer| (peer.name.clone(), peer.key.0[0])).collect();
        names.sort();
        names
    };
    let mut declare = |lines: &[KeyLine]| {
        peers.declare("/etc/peers.d", lines, &own).map(|()| names(&peers)).map_err(|error| error.to_string())
    };
    let is = |found: Result<Vec<(String, u8)>, String>, expected: &[(&str, u8)]| {
        let expected: Vec<_> = expected.iter().map(|(name, byte)| (name.to_string(), *byte)).collect();
        assert_eq!(found.unwrap(), expected);
    };
    let [a, b, own_line] = [line(1, "a", Some(&["cam"])), line(2, "b", None), line(9, "me", None)];
    is(declare(&[a, b, own_line]), &[("a", 1), ("b", 2), ("guest", 5)]);
    // Two hosts swap names, and one loses its permit.
    is(declare(&[line(1, "b", None), line(2, "a", Some(&[]))]), &[("a", 2), ("b", 1), ("guest", 5)]);
    // A host has a new key; the other one is gone.
    is(declare(&[line(3, "a", None)]), &[("a", 3), ("guest", 5)]);
    for name in ["a/b", "10.0.0.9", "a@b", "localhost"] {
        assert!(declare(&[line(3, name, None)]).unwrap_err().contains(name));
    }
    assert!(declare(&[line(3, "a", None), line(4, "guest", None)]).unwrap_err().contains("`guest`"));
    let listed: Vec<_> = peers.iter().map(|peer| peer.listed_in.is_some()).collect();
    assert_eq!(listed, [false, true]);
    // A former host keeps its name from every host but a listed one.
    assert!(peers.rename("a", "b").is_err());
    peers.declare("/etc/peers.d", &[line(5, "guest", Some(&["cam"]))], &own).unwrap();
    assert_eq!(names(&peers), [("guest".to_string(), 5)]);
    peers.declare("/etc/peers.d", &[], &own).unwrap();
    assert!(peers.iter().next().is_none(), "a host leaves with its line");
}

#[test]
fn the_right_code_pairs_once() {
    let (a, b) = (User::new(), User::new());
    let (address, code, shown) = show(&a);
    let joined = join(&b.trust, &code, "studio", address).unwrap();
    assert_eq!(joined.key, a.trust.key());
    assert_eq!(shown.join().unwrap().unwrap().key, b.trust.key());
    let of = |user: &User, key| user.trust.peers().unwrap().of_key(&key).cloned().unwrap();
    assert_eq!(of(&b, a.trust.key()).address.as_deref(), Some("studio"));
    assert_eq!(of(&a, b.trust.key()).address.as_deref(), Some("127.0.0.1"));
    assert!(matches!(join(&b.trust, &code, "studio", address), Err(PairError::Unreachable(_))));
    // A second pairing keeps the name and the permitted devices.
    a.trust.edit(|peers| peers.restrict(&of(&a, b.trust.key()).name, Some(Vec::new()))).unwrap();
    let (address, code, shown) = show(&a);
    join(&b.trust, &code, "elsewhere", address).unwrap();
    shown.join().unwrap().unwrap();
    assert_eq!(of(&a, b.trust.key()).may_open, Some(Vec::new()));
    assert_eq!(of(&b, a.trust.key()).address.as_deref(), Some("elsewhere"));
}

#[test]
fn a_code_is_void_after_three_of_a_thousand_guesses() {
    let (a, guesser) = (User::new(), User::new());
    let (address, code, shown) = show(&a);
    let guess = wrong(&code);
    let judged: usize = thread::scope(|scope| {
        let guessers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let tries = (0..250).map(|_| join(&guesser.trust, &guess, "a", address));
                    tries
                        .filter(
                            |tried| matches!(tried, Err(PairError::Refused(why)) if why.contains("wrong")),
                        )
                        .count()
                })
            })
            .collect();
        guessers.into_iter().map(|guesser| guesser.join().unwrap()).sum()
    });
    assert_eq!(judged, 3);
    assert!(matches!(shown.join().unwrap(), Err(PairError::Void)));
    assert!(join(&guesser.trust, &code, "a", address).is_err(), "void is void for the right code too");
    assert_eq!(a.trust.peers().unwrap(), Peers::default());
    assert_eq!(guesser.trust.peers().unwrap(), Peers::default());
}

/// Connections that send a byte now and then keep nobody out, and the user who shows the code is told once.
#[test]
fn dripping_connections_make_room() {
    let [shows, types] = [User::new(), User::new()];
    let offer = Offer::new(shows.trust.clone(), anywhere(), None).unwrap();
    let (address, code, stop) = (offer.address(), offer.code(), Stop::new().unwrap());
    let waits = thread::spawn(move || {
        let mut incidents = Vec::new();
        let paired = offer.wait(Duration::from_secs(60), &stop, &mut |incident| incidents.push(incident));
        (paired, incidents)
    });
    let mut dripping: Vec<TcpStream> = (0..40).map(|_| TcpStream::connect(address).unwrap()).collect();
    dripping.iter_mut().for_each(|stream| drop(stream.write_all(b"o")));
    join(&types.trust, &code, "there", address).unwrap();
    let (paired, incidents) = waits.join().unwrap();
    paired.unwrap();
    assert_eq!(incidents, [PairingIncident::Crowded { address: address.ip() }]);
}

fn in_time() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

#[test]
fn single_bytes_do_not_extend_the_handshake_timeout() {
    let user = User::new();
    let listener = TcpListener::bind(anywhere()).unwrap();
    let mut slow = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (socket, _) = listener.accept().unwrap();
    thread::scope(|scope| {
        scope.spawn(move || {
            // A TLS record with a length of 8 KiB.
            for byte in [22, 3, 1, 32, 0].into_iter().chain([0; 8192]) {
                if slow.write_all(&[byte]).is_err() {
                    break;
                }
                thread::sleep(Duration::from_millis(1));
            }
        });
        let config = Arc::new(tls::server(&user.trust.identity, tls::PAIRING).unwrap());
        let mut stream = SecureStream::server(socket, config).unwrap();
        let shaken = stream.shake_hands(&[], Instant::now() + Duration::from_millis(50));
        assert_eq!(shaken.unwrap_err().kind(), std::io::ErrorKind::TimedOut);
        // The other end stops when this stream ends.
        drop(stream);
    });
}

/// Relays a pairing between two hosts, with a different identity towards each.
fn relay_pairing(attacker: &User, listener: TcpListener, address: SocketAddr) {
    let config = |purpose| Arc::new(tls::server(&attacker.trust.identity, purpose).unwrap());
    let (mut victim, _) = listener.accept().unwrap();
    victim.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut preamble = [0; Preamble::BYTES];
    victim.read_exact(&mut preamble).unwrap();
    let mut to_b = SecureStream::server(victim, config(tls::PAIRING)).unwrap();
    to_b.shake_hands(&[], in_time()).unwrap();
    let mut onward = TcpStream::connect(address).unwrap();
    onward.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    onward.write_all(&preamble).unwrap();
    let client = Arc::new(tls::client(&attacker.trust.identity, tls::PAIRING).unwrap());
    let mut to_a = SecureStream::client(onward, client).unwrap();
    to_a.shake_hands(&[], in_time()).unwrap();
    // Begin, Share, Confirm, and the reply of the host that shows the code.
    let mut pass = |from_b: bool| {
        let (from, to) = if from_b { (&mut to_b, &mut to_a) } else { (&mut to_a, &mut to_b) };
        let mut bytes = [0; 8192];
        let count = from.read(&mut bytes).unwrap();
        to.write_all(&bytes[..count]).unwrap();
    };
    [true, false, true, false].into_iter().for_each(&mut pass);
}

#[test]
fn a_man_in_the_middle_fails_with_the_right_code_on_both_sides() {
    let (a, b, attacker) = (User::new(), User::new(), User::new());
    let (address, code, shown) = show(&a);
    let listener = TcpListener::bind(anywhere()).unwrap();
    let between = listener.local_addr().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| relay_pairing(&attacker, listener, address));
        let joined = join(&b.trust, &code, "a", between);
        assert!(matches!(&joined, Err(PairError::Refused(why)) if why.contains("wrong")), "{joined:?}");
    });
    // The attempt is used up, the code is not: the two hosts still pair without the attacker.
    join(&b.trust, &code, "a", address).unwrap();
    assert_eq!(shown.join().unwrap().unwrap().key, b.trust.key());
    let knows = |user: &User| user.trust.peers().unwrap().of_key(&attacker.trust.key()).is_some();
    assert!(!knows(&a) && !knows(&b));
}

#[test]
fn an_invalid_code_is_rejected_before_anything_is_sent() {
    let user = User::new();
    for text in ["", "1234", "1234-567a", "1234-56789", "１２３４-5678"] {
        let refused = join(&user.trust, text, "nowhere", anywhere());
        assert!(matches!(refused, Err(PairError::Code(_))), "{text}: {refused:?}");
    }
}

fn keys(exported: u8) -> LinkKeys {
    LinkKeys::new([exported; 32])
}

#[test]
fn an_introduction_is_valid_once_and_gives_both_ends_the_same_keys() {
    let (mut application_host, mut device_host) = (keys(1), keys(1));
    let (one, ours) = application_host.introduce(5, false);
    let (other, _) = application_host.introduce(5, false);
    // Connections that open at the same time can overtake each other.
    assert!(device_host.accept(&other).is_some());
    let theirs = device_host.accept(&one).unwrap();
    assert_eq!((&ours.sending, &ours.receiving), (&theirs.receiving, &theirs.sending));
    assert_ne!(ours.sending, ours.receiving);
    assert!(device_host.accept(&one).is_none() && device_host.accept(&other).is_none(), "said again");
    let (next, keys_next) = application_host.introduce(5, false);
    assert_ne!(keys_next, ours, "each connection has its own");
    assert!(keys(2).accept(&next).is_none(), "of another channel");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn an_altered_introduction_is_rejected(place in 0..wire::preamble::Introduction::BYTES, bit in 0..8u32) {
        let (mut application_host, mut device_host) = (keys(1), keys(1));
        let mut bytes = application_host.introduce(7, true).0.emit();
        bytes[place] ^= 1 << bit;
        if let Ok(altered) = wire::preamble::Introduction::parse(&bytes) {
            prop_assert!(device_host.accept(&altered).is_none());
        }
    }
}

/// The network drops the goodbye and the next datagram; the peer still receives both.
#[test]
fn a_goodbye_over_quic_is_retransmitted_until_acknowledged() {
    const LOST: u32 = 3;
    let [near, middle, beyond, far] = [(); 4].map(|()| UdpSocket::bind(anywhere()).unwrap());
    for (one, other) in [(&near, &middle), (&beyond, &far)] {
        one.connect(other.local_addr().unwrap()).unwrap();
        other.connect(one.local_addr().unwrap()).unwrap();
    }
    let to_lose = Arc::new(AtomicU32::new(0));
    let pass = |from: &UdpSocket, to: &UdpSocket, to_lose: Arc<AtomicU32>| {
        let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
        thread::spawn(move || {
            let mut bytes = [0; 65_536];
            loop {
                // The error that the peer is unreachable is reported once, before the received bytes.
                let count = match from.recv(&mut bytes) {
                    Err(error) if error.kind() == ErrorKind::ConnectionRefused => continue,
                    count => count.unwrap(),
                };
                let lost =
                    to_lose.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
                if lost.is_err() {
                    let _ = to.send(&bytes[..count]);
                }
            }
        });
    };
    pass(&middle, &beyond, to_lose.clone());
    pass(&beyond, &middle, Arc::default());
    let patience = Duration::from_secs(60);
    let listener = thread::spawn(move || {
        let mut first = [0; 2048];
        let (count, peer) = far.recv_from(&mut first).unwrap();
        far.set_nonblocking(true).unwrap();
        let beginning = QuicTrust { trust: None }.listen([7; 8], &ServerKeys::new(None).unwrap()).unwrap();
        let mut stream = QuicStream::accept(far.into(), beginning, false, (&first[..count], peer)).unwrap();
        stream.shake_hands(patience).unwrap();
        let mut said = Vec::new();
        stream.patient(patience).read_to_end(&mut said).unwrap();
        said
    });
    near.set_nonblocking(true).unwrap();
    let mut stream = QuicTrust { trust: None }.connect(near.into()).unwrap();
    stream.shake_hands(patience).unwrap();
    to_lose.store(LOST, Ordering::Relaxed);
    stream.write_all(b"goodbye").unwrap();
    stream.finish(patience).unwrap();
    assert_eq!(to_lose.load(Ordering::Relaxed), 0, "all of them were lost");
    stream.close("it stops");
    assert_eq!(listener.join().unwrap(), b"goodbye");
}
