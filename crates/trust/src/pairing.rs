//! Pairing: two hosts learn each other's keys by a one-time code, with SPAKE2 (RFC 9382, in the encoding
//! of the crate `spake2`) inside TLS.
//!
//! The code is the password of the exchange. Its identities are the keys that the hosts showed in TLS,
//! and the proofs of the code are bound to this TLS channel by its exporter. A man in the middle shows
//! other keys to each host, or has another channel with each, so it must guess the code like any
//! attacker. The host on which the code is typed proves it first: a wrong guess reveals only that it is
//! wrong, and uses up one attempt.

use crate::channel::{SecureStream, read_exact};
use crate::peers::Added;
use crate::visitors::Visitors;
use crate::{PeerKey, Trust, tls};
use contract::ServiceError;
use ring::hkdf::{HKDF_SHA256, Salt};
use ring::hmac;
use rustls::ServerConfig;
use spake2::{Ed25519Group, Identity, Password, Spake2};
use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use sys::address::{host_name, interface_advice};
use sys::listening::{bind_tcp, canonical};
use sys::poller::Poller;
use sys::stop::Stop;
use thiserror::Error;
use wire::pairing::{Pairing, SHARE_BYTES};
use wire::{Control, Preamble};

/// Lifetime of a code.
pub const CODE_LIFETIME: Duration = Duration::from_secs(600);
/// Limit of wrong guesses, after which the code is void.
const TRIES: usize = 3;
/// Digits of a code.
const CODE_DIGITS: usize = 8;
/// Timeout for one step of the other host.
const PATIENCE: Duration = Duration::from_secs(10);
/// Timeout for a whole connection.
const VISIT: Duration = Duration::from_secs(30);
/// Refusals by the host that shows the code.
const WRONG: &str = "the code is wrong";
const VOID: &str = "the code is void";
/// Advice for a connection that fails for no better known reason.
const UNREACHABLE: &str = "is the host up, and does the network lead there?";
const EXPORTER: &[u8] = b"EXPORTER-outboard-pairing";

/// Reasons for a failed pairing.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PairError {
    /// The typed text is not a code.
    #[error("{} is no code: it has {CODE_DIGITS} digits, such as 1234-5678", quoted(.0))]
    Code(String),
    /// The other host did not prove the code.
    #[error("{0}")]
    Refused(String),
    /// Too many wrong guesses: the code is void.
    #[error(
        "the code was guessed wrong {TRIES} times and is void: if that was not you, somebody else tries. Say \
         `outboard pair` for another code"
    )]
    Void,
    /// No host paired before the timeout.
    #[error("the code has expired: say `outboard pair` for another")]
    Expired,
    /// Stopped by the caller.
    #[error("nobody paired with this host")]
    Stopped,
    /// The other host is unreachable or closed the connection.
    #[error("{0}")]
    Unreachable(String),
    /// The files of this host cannot be read or written.
    #[error("{0}")]
    Trust(#[from] ServiceError),
}

fn quoted(typed: &str) -> String {
    if typed.is_empty() { "an empty line".into() } else { format!("`{typed}`") }
}

/// A host that has just been paired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paired {
    /// Its name on this host.
    pub name: String,
    /// The name that it calls itself, if that one is taken.
    pub claimed: Option<String>,
    /// Its key.
    pub key: PeerKey,
}

/// The digits shown on one host and typed on the other; never logged.
#[derive(Clone, PartialEq, Eq)]
pub struct Code([u8; CODE_DIGITS]);

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Code(..)")
    }
}

impl Code {
    fn draw() -> io::Result<Code> {
        let mut digits = [0; CODE_DIGITS];
        // Bytes from 250 are skipped, so that all digits are equally likely.
        for digit in &mut digits {
            *digit = loop {
                let [byte] = sys::random::bytes()?;
                if byte < 250 {
                    break b'0' + byte % 10;
                }
            };
        }
        Ok(Code(digits))
    }

    /// Parses a typed code, with or without separators between the digits.
    pub fn parse(text: &str) -> Result<Code, PairError> {
        let digits: Vec<u8> = text.bytes().filter(|byte| !b"- ".contains(byte)).collect();
        match <[u8; CODE_DIGITS]>::try_from(digits) {
            Ok(digits) if digits.iter().all(u8::is_ascii_digit) => Ok(Code(digits)),
            _ => Err(PairError::Code(text.into())),
        }
    }

    /// The code in two groups, for display.
    fn text(&self) -> String {
        let text = String::from_utf8_lossy(&self.0);
        let (one, other) = text.split_at(CODE_DIGITS / 2);
        format!("{one}-{other}")
    }
}

/// One side of an exchange in progress.
struct Exchange {
    spake: Spake2<Ed25519Group>,
    share: [u8; SHARE_BYTES],
    /// Both keys, the showing host's first, and the channel.
    bound: Vec<u8>,
}

/// The role of this host.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Shows,
    Types,
}

impl Exchange {
    fn begin(code: &Code, place: Place, ours: &PeerKey, stream: &SecureStream) -> io::Result<Exchange> {
        let theirs = stream.peer().ok_or_else(|| io::Error::other("the other host showed no key"))?;
        let (shows, types) = match place {
            Place::Shows => (ours, &theirs),
            Place::Types => (&theirs, ours),
        };
        let (password, a, b) = (Password::new(code.0), Identity::new(&shows.0), Identity::new(&types.0));
        let (spake, share) = match place {
            Place::Shows => Spake2::<Ed25519Group>::start_a(&password, &a, &b),
            Place::Types => Spake2::<Ed25519Group>::start_b(&password, &a, &b),
        };
        let share =
            share.try_into().map_err(|_| io::Error::other("SPAKE2 made a message of another length"))?;
        let bound = [&shows.0[..], &types.0, &stream.export(EXPORTER)?].concat();
        Ok(Exchange { spake, share, bound })
    }

    /// The proofs of the code, of the host that shows it and of the host on which it is typed.
    fn finish(self, theirs: &[u8; SHARE_BYTES]) -> Option<[hmac::Key; 2]> {
        let agreed = self.spake.finish(theirs).ok()?;
        let root = Salt::new(HKDF_SHA256, b"outboard pairing").extract(&agreed);
        let key = |label: &[u8]| {
            let info = [label, &self.bound];
            let okm =
                root.expand(&info, hmac::HMAC_SHA256).expect("a digest's length can always be expanded");
            hmac::Key::from(okm)
        };
        Some([key(b"shows"), key(b"types")])
    }
}

/// The message under a proof: the name sent with it.
fn prove(key: &hmac::Key, host: &str) -> [u8; 32] {
    let mut proof = [0; 32];
    proof.copy_from_slice(hmac::sign(key, host.as_bytes()).as_ref());
    proof
}

fn say(stream: &mut SecureStream, message: &Pairing) -> io::Result<()> {
    stream.write_all(&message.emit())?;
    stream.flush()
}

fn hear(stream: &mut SecureStream, until: Instant) -> io::Result<Pairing> {
    let invalid = |error: wire::WireError| io::Error::new(io::ErrorKind::InvalidData, error.to_string());
    let mut length = [0; 2];
    read_exact(stream, &mut length, until)?;
    let mut frame = vec![0; Pairing::frame_bytes(length).map_err(invalid)?];
    read_exact(stream, &mut frame, until)?;
    Pairing::parse(&frame).map_err(invalid)
}

fn be_patient(socket: &TcpStream) -> io::Result<()> {
    socket.set_nonblocking(false)?;
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))
}

/// A code that this host shows, and the listener on which the other host proves it.
pub struct Offer {
    trust: Trust,
    /// The name for the other host.
    name: Option<String>,
    code: Code,
    listener: TcpListener,
    address: SocketAddr,
}

/// An incident while this host shows a code, for its user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PairingIncident {
    /// A host proved another code.
    WrongGuess {
        /// Attempts left.
        left: usize,
    },
    /// An address has so many connections without a proof that its oldest ones are closed. Reported once an address.
    Crowded {
        /// The address.
        address: IpAddr,
    },
}

/// Events of a visitor's connection that concern the others.
enum Visit {
    Paired(Result<Paired, ServiceError>),
    /// One attempt is used up.
    Wrong,
}

/// State shared by the visitors of one offer.
struct Host {
    trust: Trust,
    /// The name for the other host.
    name: Option<String>,
    config: Arc<ServerConfig>,
    code: Code,
    /// Attempts left; locked while a proof is checked. `None` after a successful pairing.
    tries: Mutex<usize>,
    visitors: Visitors,
}

impl Offer {
    /// Draws a code and starts to listen. The other host gets `name`, or the name that it claims.
    pub fn new(trust: Trust, listen: SocketAddr, name: Option<&str>) -> Result<Offer, PairError> {
        let failed = |error| ServiceError::os(format!("listening on {listen}"), error);
        let listener = bind_tcp(listen).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let code = Code::draw().map_err(|error| ServiceError::os("drawing a code", error))?;
        Ok(Offer { trust, name: name.map(String::from), code, listener, address })
    }

    /// The code, for display only; it must not be logged.
    pub fn code(&self) -> String {
        self.code.text()
    }

    /// The address of the listener.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until another host proves the code, wrong guesses void it, it expires after `lifetime`, or
    /// `stop` is set. Reports the incidents in the meantime to `tell_user`.
    pub fn wait(
        self,
        lifetime: Duration,
        stop: &Stop,
        tell_user: &mut dyn FnMut(PairingIncident),
    ) -> Result<Paired, PairError> {
        let failed = |error| ServiceError::os("waiting", error);
        let config = tls::server(&self.trust.identity, tls::PAIRING)
            .map_err(|error| ServiceError::Usage(format!("TLS cannot be set up: {error}")))?;
        let host = Arc::new(Host {
            trust: self.trust,
            name: self.name,
            config: Arc::new(config),
            code: self.code,
            tries: Mutex::new(TRIES),
            visitors: Visitors::default(),
        });
        let (tell, visits): (Sender<Visit>, Receiver<Visit>) = channel();
        let wake = sys::event::Event::new().map_err(failed)?;
        let mut poller = Poller::new().map_err(failed)?;
        let until = Instant::now() + lifetime;
        let mut left = TRIES;
        let mut crowding = BTreeSet::new();
        loop {
            while let Ok(visit) = visits.try_recv() {
                match visit {
                    Visit::Paired(paired) => return Ok(paired?),
                    Visit::Wrong => {
                        left -= 1;
                        tell_user(PairingIncident::WrongGuess { left });
                        if left == 0 {
                            return Err(PairError::Void);
                        }
                    }
                }
            }
            if stop.is_requested() {
                return Err(PairError::Stopped);
            }
            let Some(rest) = until.checked_duration_since(Instant::now()) else {
                // A check in progress completes; no other starts.
                host.close();
                return Err(PairError::Expired);
            };
            while let Ok((socket, peer)) = self.listener.accept() {
                let Ok((number, closed)) = host.visitors.admit(canonical(peer).ip(), &socket) else {
                    continue;
                };
                if let Some(address) = closed.filter(|address| crowding.insert(*address)) {
                    tell_user(PairingIncident::Crowded { address });
                }
                let (host, tell, wake) = (host.clone(), tell.clone(), wake.clone());
                thread::Builder::new()
                    .name("pairing".into())
                    .spawn(move || {
                        // An error of an unknown host ends only its own connection.
                        if let Ok(Some(visit)) = host.receive(socket, peer) {
                            let _ = tell.send(visit);
                        }
                        host.visitors.forget(number);
                        wake.signal();
                    })
                    .map_err(failed)?;
            }
            poller.register(self.listener.as_fd(), true, false);
            poller.register(wake.as_fd(), true, false);
            poller.register(stop.wakes(), true, false);
            poller.wait(Some(rest)).map_err(failed)?;
            wake.clear();
        }
    }
}

impl Host {
    fn close(&self) {
        *self.tries.lock().unwrap_or_else(PoisonError::into_inner) = 0;
    }

    fn receive(&self, mut socket: TcpStream, peer: SocketAddr) -> io::Result<Option<Visit>> {
        be_patient(&socket)?;
        let until = Instant::now() + VISIT;
        let mut preamble = [0; Preamble::BYTES];
        read_exact(&mut socket, &mut preamble, until)?;
        if Preamble::parse(&preamble) != Ok(Preamble::Pairing) {
            let reason = "this host waits for `outboard pair` here, and shares nothing on this port".into();
            return socket.write_all(&Control::Goodbye { reason }.emit()).map(|()| None);
        }
        let mut stream = SecureStream::server(socket, self.config.clone())?;
        let key = stream.shake_hands(&[], until)?;
        let exchange = Exchange::begin(&self.code, Place::Shows, &self.trust.key(), &stream)?;
        let Pairing::Begin { share: theirs } = hear(&mut stream, until)? else { return Ok(None) };
        say(&mut stream, &Pairing::Share { share: exchange.share })?;
        let Pairing::Confirm { proof, host } = hear(&mut stream, until)? else { return Ok(None) };
        let refuse = |reason: &str| Pairing::Refused { reason: reason.into() };
        // The attempt is counted before the check, one at a time.
        let mut tries = self.tries.lock().unwrap_or_else(PoisonError::into_inner);
        if *tries == 0 {
            drop(tries);
            return say(&mut stream, &refuse(VOID)).map(|()| None);
        }
        *tries -= 1;
        let keys = exchange.finish(&theirs);
        let right = keys.filter(|[_, types]| hmac::verify(types, host.as_bytes(), &proof).is_ok());
        let Some([shows, _]) = right else {
            drop(tries);
            let _ = say(&mut stream, &refuse(WRONG));
            return Ok(Some(Visit::Wrong));
        };
        *tries = 0;
        drop(tries);
        let address = Some(sys::address::host_of(&canonical(peer).to_string()).to_string());
        let added = self.trust.edit(|peers| peers.add(&host, self.name.as_deref(), key, address));
        let paired = match added {
            Ok(Added { name, claimed }) => Paired { name, claimed, key },
            Err(error) => {
                let _ = say(&mut stream, &refuse("this host could not save the pairing"));
                return Ok(Some(Visit::Paired(Err(error))));
            }
        };
        let host = host_name();
        let _ = say(&mut stream, &Pairing::Confirmed { proof: prove(&shows, &host), host });
        Ok(Some(Visit::Paired(Ok(paired))))
    }
}

/// Returns the remedy for a refusal by the other host.
fn remedy(reason: &str) -> &'static str {
    match reason {
        WRONG => ": type the code that `outboard pair` shows there (three wrong ones end it)",
        VOID => ": run `outboard pair` there again",
        _ => "",
    }
}

/// Completes a pairing with the host at `address`, which shows `code`. `host` is the address as the user
/// typed it, without the port. The other host gets `name`, or the name that it claims.
pub fn join(
    trust: &Trust,
    code: &Code,
    (host, address): (&str, SocketAddr),
    name: Option<&str>,
) -> Result<Paired, PairError> {
    let unreachable = |error: io::Error| {
        let advice = match error.kind() {
            io::ErrorKind::ConnectionRefused => {
                "nothing listens there: does `outboard pair` still run there?"
            }
            io::ErrorKind::InvalidData => {
                "another program listens there: type the command with the port that `outboard pair` shows"
            }
            io::ErrorKind::InvalidInput => interface_advice(address).unwrap_or(UNREACHABLE),
            _ => UNREACHABLE,
        };
        PairError::Unreachable(format!("{address}: {error} ({advice})"))
    };
    let broken = || PairError::Refused(format!("{address}: the other host broke the protocol of pairing"));
    let config = tls::client(&trust.identity, tls::PAIRING)
        .map_err(|error| ServiceError::Usage(format!("TLS cannot be set up: {error}")))?;
    let mut socket = TcpStream::connect_timeout(&address, PATIENCE).map_err(unreachable)?;
    be_patient(&socket).map_err(unreachable)?;
    let until = Instant::now() + VISIT;
    socket.write_all(&Preamble::Pairing.emit()).map_err(unreachable)?;
    let mut stream = SecureStream::client(socket, Arc::new(config)).map_err(unreachable)?;
    let key = stream.shake_hands(&[], until).map_err(unreachable)?;
    if key == trust.key() {
        return Err(PairError::Refused("this is this very host: there is nobody to pair with".into()));
    }
    // Before the other host saves the pairing.
    if let Some(name) = name {
        trust.peers()?.check_name(name, &key)?;
    }
    let exchange = Exchange::begin(code, Place::Types, &trust.key(), &stream).map_err(unreachable)?;
    say(&mut stream, &Pairing::Begin { share: exchange.share }).map_err(unreachable)?;
    let refused =
        |reason: String| PairError::Refused(format!("{address} refused: {reason}{}", remedy(&reason)));
    let theirs = match hear(&mut stream, until).map_err(unreachable)? {
        Pairing::Share { share } => share,
        Pairing::Refused { reason } => return Err(refused(reason)),
        _ => return Err(broken()),
    };
    let [shows, types] = exchange.finish(&theirs).ok_or_else(broken)?;
    let own_name = host_name();
    let confirm = Pairing::Confirm { proof: prove(&types, &own_name), host: own_name };
    say(&mut stream, &confirm).map_err(unreachable)?;
    match hear(&mut stream, until).map_err(unreachable)? {
        Pairing::Confirmed { proof, host: their_name } => {
            if hmac::verify(&shows, their_name.as_bytes(), &proof).is_err() {
                return Err(PairError::Refused(format!(
                    "{address} does not have the code: somebody else may have answered. It was not paired"
                )));
            }
            let added = trust.edit(|peers| peers.add(&their_name, name, key, Some(host.into())))?;
            Ok(Paired { name: added.name, claimed: added.claimed, key })
        }
        Pairing::Refused { reason } => Err(refused(reason)),
        _ => Err(broken()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_code_has_a_remedy() {
        assert!(remedy(WRONG).contains("type the code that `outboard pair` shows there"));
        assert!(remedy(VOID).contains("run `outboard pair` there again"));
        assert_eq!(remedy("this host could not save the pairing"), "");
        let empty = Code::parse("").unwrap_err().to_string();
        assert_eq!(empty, "an empty line is no code: it has 8 digits, such as 1234-5678");
    }
}
