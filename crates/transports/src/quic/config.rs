//! Configuration of a QUIC connection: keys, windows, congestion control.

use super::ack_bypass::{BypassFactory, Inner};
use super::ids::{Tag, TaggedIds};
use super::receive_window::FACTOR_MAX;
use crate::socket::DATAGRAM_BYTES_MAX;
use crate::tls;
use contract::{End, SealKeys, Secret};
use quinn_proto::congestion::{BbrConfig, CubicConfig, NewRenoConfig};
use quinn_proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn_proto::{ClientConfig, EndpointConfig, MtuDiscoveryConfig, ServerConfig, TransportConfig, VarInt};
use ring::hkdf::{HKDF_SHA256, Prk};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Protocol of a data connection (ALPN, RFC 7301).
const DATA: &[u8] = b"outboard-data";
/// Round trip assumed before the first measurement. A lost handshake datagram is retransmitted after three times this.
const ROUND_TRIP: Duration = Duration::from_millis(100);
/// An idle connection sends a packet at this interval, to keep the bindings of NATs alive. Most keep them for at least 30 s
/// (RFC 9000, section 10.1.2).
const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// Idle timeout. The session detects a silent peer much sooner.
const IDLE: Duration = Duration::from_secs(60);
/// Initial window in datagrams where the datagram size is known: the first must fit, and one more.
const WINDOW_DATAGRAMS: u64 = 4;
/// Buffer for handshake bytes that arrive out of order.
const CRYPTO_BYTES_MAX: usize = 16 << 10;

/// Memory for datagrams that wait in quinn-proto. `record_streams` lets fewer wait.
pub(super) const DATAGRAM_BUFFER_BYTES: usize = 1 << 20;

/// Parameters of one connection.
#[derive(Debug, Clone, Copy)]
pub struct Tuning {
    /// Receive window, bytes.
    pub window: u32,
    /// Unidirectional streams that the peer may have open.
    pub streams: u32,
    /// Largest datagram to use or to probe for, bytes.
    pub datagram: u16,
    /// The path is known to carry datagrams of this size, so no probes are sent. A dozen probes of 64 KiB on each side
    /// of a connection would cost more than an hour of a keyboard's messages.
    pub is_size_known: bool,
    /// Congestion control algorithm.
    pub congestion: Congestion,
}

/// Congestion control.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Congestion {
    /// The rate control of `udp`.
    Rate,
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
        if self.is_size_known {
            let window = WINDOW_DATAGRAMS * u64::from(self.datagram);
            cubic.initial_window(window);
            new_reno.initial_window(window);
            bbr.initial_window(window);
        }
        let inner = match self.congestion {
            Congestion::Rate => Inner::Rate,
            Congestion::Cubic => Inner::Window(Arc::new(cubic)),
            Congestion::NewReno => Inner::Window(Arc::new(new_reno)),
            Congestion::Bbr => Inner::Window(Arc::new(bbr)),
        };
        let mut mtu = MtuDiscoveryConfig::default();
        mtu.upper_bound(self.datagram);
        let congestion = Arc::new(BypassFactory { inner, is_bypassed: Arc::default() });
        let mut config = TransportConfig::default();
        if self.is_size_known {
            config.initial_mtu(self.datagram);
        }
        config
            // The window of the connection bounds the memory. It may grow, those of its streams are fixed.
            .stream_receive_window(VarInt::from_u32(self.window.saturating_mul(FACTOR_MAX)))
            .receive_window(window)
            .send_window(self.window.into())
            .datagram_receive_buffer_size(Some(self.window as usize))
            .datagram_send_buffer_size(DATAGRAM_BUFFER_BYTES)
            .max_concurrent_uni_streams(VarInt::from_u32(self.streams))
            .max_concurrent_bidi_streams(VarInt::from_u32(1))
            .max_idle_timeout(IDLE.try_into().ok())
            .keep_alive_interval(Some(KEEP_ALIVE))
            .initial_rtt(ROUND_TRIP)
            // A packet is lost once it is late by a quarter of a round trip (RFC 8985, section 6.2), not when three packets overtook
            // it (RFC 9002, section 6.1.1): on a path that reorders, many packets would be.
            .packet_threshold(u32::MAX)
            .time_threshold(1.25)
            .crypto_buffer_size(CRYPTO_BYTES_MAX)
            .mtu_discovery_config(Some(mtu))
            // The spin bit would show the round trip to observers (RFC 9000, section 17.4).
            .allow_spin(false)
            .congestion_controller_factory(congestion);
        Arc::new(config)
    }
}

/// Configuration of one side of a connection.
#[derive(Clone)]
pub enum ConnectionConfig {
    /// The side that connects.
    Client(ClientConfig),
    /// The side that waits for the peer. Its connection IDs carry the tag.
    Server(Arc<ServerConfig>, Tag, ServerKeys),
}

impl ConnectionConfig {
    /// Configures the side that connects.
    pub fn client(tls: rustls::ClientConfig, tuning: &Tuning) -> io::Result<ConnectionConfig> {
        let crypto = QuicClientConfig::try_from(tls).map_err(io::Error::other)?;
        let mut config = ClientConfig::new(Arc::new(crypto));
        config.transport_config(tuning.transport());
        Ok(ConnectionConfig::Client(config))
    }

    /// Configures the side that waits.
    pub fn server(
        tls: rustls::ServerConfig,
        tag: Tag,
        keys: &ServerKeys,
        tuning: &Tuning,
    ) -> io::Result<ConnectionConfig> {
        let crypto = QuicServerConfig::try_from(tls).map_err(io::Error::other)?;
        let mut config = ServerConfig::new(Arc::new(crypto), keys.tokens.clone());
        config.transport_config(tuning.transport());
        Ok(ConnectionConfig::Server(Arc::new(config), tag, keys.clone()))
    }

    /// Configures one side of a data connection. The Ed25519 keys of both sides are derived from the connection's
    /// secrets, and each side accepts only the key of the other. Without secrets the keys are public constants and
    /// authenticate nobody (`--insecure`).
    pub fn data(end: End, keys: Option<&SealKeys>, tuning: &Tuning) -> io::Result<ConnectionConfig> {
        let public = SealKeys { sending: Secret([0; 32]), receiving: Secret([0; 32]) };
        let keys = keys.unwrap_or(&public);
        let impossible = || io::Error::other("no key pair of Ed25519");
        let (_, own) =
            tls::key_pair_from_seed(&derive(&keys.sending, b"outboard quic key")).ok_or_else(impossible)?;
        let (pinned, _) =
            tls::key_pair_from_seed(&derive(&keys.receiving, b"outboard quic key")).ok_or_else(impossible)?;
        match end {
            End::Dialled => ConnectionConfig::client(
                tls::client(own, DATA, Some(pinned)).map_err(io::Error::other)?,
                tuning,
            ),
            End::Accepted => {
                let tls = tls::server(own, DATA, Some(pinned)).map_err(io::Error::other)?;
                ConnectionConfig::server(tls, data_tag(keys), &ServerKeys::new(None)?, tuning)
            }
        }
    }

    pub(super) fn endpoint(&self) -> io::Result<EndpointConfig> {
        let resets = match self {
            ConnectionConfig::Client(_) => ServerKeys::new(None)?.resets,
            ConnectionConfig::Server(_, _, keys) => keys.resets.clone(),
        };
        let mut config = EndpointConfig::new(resets);
        config.max_udp_payload_size(DATAGRAM_BYTES_MAX as u16).map_err(io::Error::other)?;
        if let ConnectionConfig::Server(_, tag, _) = *self {
            config.cid_generator(move || Box::new(TaggedIds::new(tag)));
        }
        Ok(config)
    }
}

/// Keys that all connections of a listening host share.
#[derive(Clone)]
pub struct ServerKeys {
    /// Encrypts address validation tokens (RFC 9000, section 8.1). Random for each run of the program.
    tokens: Arc<Prk>,
    /// Authenticates stateless resets (RFC 9000, section 10.3).
    resets: Arc<hmac::Key>,
}

impl ServerKeys {
    /// Creates keys. `resets` is a secret that belongs to the listening address and survives a restart: with it a
    /// restarted host can reset the connections from before. Otherwise the key is random.
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

/// Returns the tag of a data connection, from the keys of the accepting side.
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
        .expect("HKDF can always produce one digest length");
    derived
}
