//! A man in the middle of two pairing hosts: to each it is the other one, with its own key.

use super::channel::Own;
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, ServerConnection, StreamOwned};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;
use wire::Preamble;

/// The protocol name of pairing (ALPN, RFC 7301).
const PAIRING: &[u8] = b"outboard-pairing";
const PATIENCE: Duration = Duration::from_secs(2);
/// The messages of a pairing, in turns: begin, share, confirm, confirm.
const TURNS: usize = 4;

pub(super) struct Middle {
    listener: TcpListener,
    own: Own,
    /// Address of the pairing host.
    towards: SocketAddr,
}

impl Middle {
    pub(super) fn new(towards: SocketAddr, own: &Own) -> io::Result<Middle> {
        Ok(Middle { listener: TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?, own: own.clone(), towards })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.listener.local_addr().unwrap_or(self.towards)
    }

    /// Relays one pairing.
    pub(super) fn relay(&self) -> io::Result<()> {
        let (mut near, _) = self.listener.accept()?;
        let mut preamble = [0; Preamble::BYTES];
        near.set_read_timeout(Some(PATIENCE))?;
        near.read_exact(&mut preamble)?;
        let mut far = TcpStream::connect_timeout(&self.towards, PATIENCE)?;
        far.set_read_timeout(Some(PATIENCE))?;
        far.write_all(&preamble)?;
        let server = transports::tls::server(self.own.clone(), PAIRING, None).map_err(io::Error::other)?;
        let client = transports::tls::client(self.own.clone(), PAIRING, None).map_err(io::Error::other)?;
        let name = ServerName::try_from(transports::tls::SERVER_NAME).map_err(io::Error::other)?;
        let server = ServerConnection::new(Arc::new(server)).map_err(io::Error::other)?;
        let client = ClientConnection::new(Arc::new(client), name).map_err(io::Error::other)?;
        let (mut near, mut far) = (StreamOwned::new(server, near), StreamOwned::new(client, far));
        for turn in 0..TURNS {
            match turn % 2 {
                0 => pass(&mut near, &mut far)?,
                _ => pass(&mut far, &mut near)?,
            }
        }
        Ok(())
    }
}

fn pass(from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut bytes = [0; 8192];
    let count = from.read(&mut bytes)?;
    to.write_all(&bytes[..count])?;
    to.flush()
}
