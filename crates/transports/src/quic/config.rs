//! What a QUIC connection is set up with: keys, windows, congestion control.

use super::gate::Gates;
use super::ids::{Tag, TaggedIds};
use crate::socket::DATAGRAM_BYTES_MAX;
use crate::tls;
use contract::{End, SealKeys, Secret};
use quinn_proto::congestion::{BbrConfig, ControllerFactory, CubicConfig, NewRenoConfig};
use quinn_proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn_proto::{ClientConfig, EndpointConfig, MtuDiscoveryConfig, ServerConfig, TransportConfig, VarInt};
use ring::hkdf::{HKDF_SHA256, Prk};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// What a data connection is for (ALPN, RFC 7301).
const DATA: &[u8] = b"outboard-data";
/// Round trip that is assumed until one is measured. What is lost of a handshake is said again after three.
const ROUND_TRIP: Duration = Duration::from_millis(100);
/// A connection on which nothing happens says something so often, for those who translate addresses on the way.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// What is not heard for so long is over. Who uses it notices much sooner.
const IDLE: Duration = Duration::from_secs(60);
/// Largest datagrams that may be under way at first, where these are known: a first one has to fit, and one more.
const WINDOW_DATAGRAMS: u64 = 4;
/// Most bytes of a handshake that wait for what comes before them.
const CRYPTO_BYTES_MAX: usize = 16 << 10;

/// How one connection behaves.
#[derive(Debug, Clone, Copy)]
pub struct Tuning {
    /// Bytes that the peer may have under way to here.
    pub window: u32,
    /// Streams of one direction that the peer may have open at once.
    pub streams: u32,
    /// Largest datagram that is tried, bytes.
    pub datagram: u16,
    /// The way is known to take such datagrams: none are sent to find out. Of 64 KiB, a dozen of these on each side of
    /// each connection cost more than a keyboard's messages of an hour.
    pub is_known: bool,
    /// Who decides how fast to send.
    pub congestion: Congestion,
}

/// Congestion control.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Congestion {
    /// RFC 9438.
    Cubic,
    /// RFC 9002, section 7.
    NewReno,
    /// BBR, draft-cardwell-iccrg-bbr-congestion-control.
    Bbr,
}

impl Tuning {
    fn transport(&self) -> Arc<TransportConfig> {
        let window = VarInt::from_u32(self.window);
        let (mut cubic, mut new_reno, mut bbr) =
            (CubicConfig::default(), NewRenoConfig::default(), BbrConfig::default());
        if self.is_known {
            let window = WINDOW_DATAGRAMS * u64::from(self.datagram);
            cubic.initial_window(window);
            new_reno.initial_window(window);
            bbr.initial_window(window);
        }
        let congestion: Arc<dyn ControllerFactory + Send + Sync> = match self.congestion {
            Congestion::Cubic => Arc::new(cubic),
            Congestion::NewReno => Arc::new(new_reno),
            Congestion::Bbr => Arc::new(bbr),
        };
        let mut mtu = MtuDiscoveryConfig::default();
        mtu.upper_bound(self.datagram);
        let congestion = Arc::new(Gates { inner: congestion, is_open: Arc::default() });
        let mut config = TransportConfig::default();
        if self.is_known {
            config.initial_mtu(self.datagram);
        }
        config
            .stream_receive_window(window)
            .receive_window(window)
            .send_window(self.window.into())
            .datagram_receive_buffer_size(Some(self.window as usize))
            .max_concurrent_uni_streams(VarInt::from_u32(self.streams))
            .max_concurrent_bidi_streams(VarInt::from_u32(1))
            .max_idle_timeout(IDLE.try_into().ok())
            .keep_alive_interval(Some(KEEP_ALIVE))
            .initial_rtt(ROUND_TRIP)
            .crypto_buffer_size(CRYPTO_BYTES_MAX)
            .mtu_discovery_config(Some(mtu))
            // Who listens on the way need not know the round trip.
            .allow_spin(false)
            .congestion_controller_factory(congestion);
        Arc::new(config)
    }
}

/// One side of a connection, ready to begin.
#[derive(Clone)]
pub enum Beginning {
    /// It connects.
    Client(ClientConfig),
    /// It waits for the peer, and tags what the peer sends.
    Server(Arc<ServerConfig>, Tag, ServerKeys),
}

impl Beginning {
    /// The side that connects, as `tls` has it.
    pub fn client(tls: rustls::ClientConfig, tuning: &Tuning) -> io::Result<Beginning> {
        let crypto = QuicClientConfig::try_from(tls).map_err(io::Error::other)?;
        let mut config = ClientConfig::new(Arc::new(crypto));
        config.transport_config(tuning.transport());
        Ok(Beginning::Client(config))
    }

    /// The side that waits, as `tls` has it.
    pub fn server(
        tls: rustls::ServerConfig,
        tag: Tag,
        keys: &ServerKeys,
        tuning: &Tuning,
    ) -> io::Result<Beginning> {
        let crypto = QuicServerConfig::try_from(tls).map_err(io::Error::other)?;
        let mut config = ServerConfig::new(Arc::new(crypto), keys.tokens.clone());
        config.transport_config(tuning.transport());
        Ok(Beginning::Server(Arc::new(config), tag, keys.clone()))
    }

    /// Of a data connection between hosts that share its keys: each shows a key that follows from what it would seal
    /// with, and takes no other. Without keys anybody can (`--insecure`, on one machine).
    pub fn data(end: End, keys: Option<&SealKeys>, tuning: &Tuning) -> io::Result<Beginning> {
        let nobody = SealKeys { sending: Secret([0; 32]), receiving: Secret([0; 32]) };
        let keys = keys.unwrap_or(&nobody);
        let impossible = || io::Error::other("no key pair of Ed25519");
        let (_, own) =
            tls::key_pair_of_seed(&derive(&keys.sending, b"outboard quic key")).ok_or_else(impossible)?;
        let (pinned, _) =
            tls::key_pair_of_seed(&derive(&keys.receiving, b"outboard quic key")).ok_or_else(impossible)?;
        match end {
            End::Dialled => {
                Beginning::client(tls::client(own, DATA, Some(pinned)).map_err(io::Error::other)?, tuning)
            }
            End::Accepted => {
                let tls = tls::server(own, DATA, Some(pinned)).map_err(io::Error::other)?;
                Beginning::server(tls, data_tag(keys), &ServerKeys::new(None)?, tuning)
            }
        }
    }

    pub(super) fn endpoint(&self) -> io::Result<EndpointConfig> {
        let resets = match self {
            Beginning::Client(_) => ServerKeys::new(None)?.resets,
            Beginning::Server(_, _, keys) => keys.resets.clone(),
        };
        let mut config = EndpointConfig::new(resets);
        config.max_udp_payload_size(DATAGRAM_BYTES_MAX as u16).map_err(io::Error::other)?;
        if let Beginning::Server(_, tag, _) = *self {
            config.cid_generator(move || Box::new(TaggedIds::new(tag)));
        }
        Ok(config)
    }
}

/// What the side that waits keeps for all its connections.
#[derive(Clone)]
pub struct ServerKeys {
    /// Seals proofs of an address (RFC 9000, section 8.1), for as long as the program runs.
    tokens: Arc<Prk>,
    /// Shows that a connection is over which nobody here knows any more (RFC 9000, section 10.3).
    resets: Arc<hmac::Key>,
}

impl ServerKeys {
    /// New ones. With `resets`, a secret of who waits at this very address, who comes back there after its end can tell its
    /// former peers so.
    pub fn new(resets: Option<&Secret>) -> io::Result<ServerKeys> {
        let key = || {
            let mut key = [0; 32];
            SystemRandom::new().fill(&mut key).map_err(|_| io::Error::other("no random bytes for a key"))?;
            Ok::<_, io::Error>(key)
        };
        let resets = resets.map_or_else(key, |secret| Ok(secret.0))?;
        Ok(ServerKeys {
            tokens: Arc::new(Prk::new_less_safe(HKDF_SHA256, &key()?)),
            resets: Arc::new(hmac::Key::new(hmac::HMAC_SHA256, &resets)),
        })
    }
}

/// The tag of the data connection that these keys are for, as the side has them that accepts it.
pub fn data_tag(keys: &SealKeys) -> Tag {
    let mut tag = Tag::default();
    let derived = derive(&keys.receiving, b"outboard quic tag");
    tag.copy_from_slice(&derived[..size_of::<Tag>()]);
    tag
}

fn derive(key: &Secret, label: &[u8]) -> [u8; tls::KEY_BYTES] {
    let mut derived = [0; tls::KEY_BYTES];
    Prk::new_less_safe(HKDF_SHA256, &key.0)
        .expand(&[label], HKDF_SHA256)
        .and_then(|okm| okm.fill(&mut derived))
        .expect("a digest's length of key can always be expanded");
    derived
}
