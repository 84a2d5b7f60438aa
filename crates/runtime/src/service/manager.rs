//! Sockets that the service manager made and keeps listening on while the service is begun anew
//! (`systemd.socket(5)`).

use crate::error::RuntimeError;
use crate::listening::Listening;
use rustix::net::{SocketType, getsockname, sockopt};
use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;

/// What was handed over, by the address that it is bound to.
pub(super) struct Inherited {
    tcp: Vec<(SocketAddr, TcpListener)>,
    udp: Vec<(SocketAddr, UdpSocket)>,
}

impl Inherited {
    /// Looks at what was handed over. What is no socket of IP is the unit's mistake.
    pub(super) fn new(sockets: Vec<OwnedFd>) -> Result<Inherited, RuntimeError> {
        let mut inherited = Inherited { tcp: Vec::new(), udp: Vec::new() };
        for socket in sockets {
            let address = getsockname(&socket).ok().and_then(|address| SocketAddr::try_from(address).ok());
            match (address, sockopt::socket_type(&socket)) {
                (Some(at), Ok(SocketType::STREAM)) => inherited.tcp.push((at, socket.into())),
                (Some(at), Ok(SocketType::DGRAM)) => inherited.udp.push((at, socket.into())),
                _ => {
                    let problem = "the service manager hands over a socket that is neither TCP nor UDP: its socket \
                                   unit is to have ListenStream= and ListenDatagram= of one port";
                    return Err(RuntimeError::Usage(problem.into()));
                }
            }
        }
        Ok(inherited)
    }

    /// Those for this address; what is bound to every address will do for another that is. One protocol without the
    /// other is an error. The sockets stay here too, for the next that wants them.
    pub(super) fn listening(&mut self, at: SocketAddr) -> io::Result<Option<Listening>> {
        let suits = |bound: &SocketAddr| {
            let any = bound.ip().is_unspecified() && at.ip().is_unspecified();
            bound.port() == at.port() && (bound.ip() == at.ip() || any)
        };
        let tcp = self.tcp.iter().find(|(bound, _)| suits(bound)).map(|(_, socket)| socket);
        let udp = self.udp.iter().find(|(bound, _)| suits(bound)).map(|(_, socket)| socket);
        match (tcp, udp) {
            (None, None) => Ok(None),
            (Some(tcp), Some(udp)) => Listening::on(tcp.try_clone()?, udp.try_clone()?).map(Some),
            _ => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the service manager hands over one of TCP and UDP: its socket unit is to have ListenStream= and \
                 ListenDatagram= of this port",
            )),
        }
    }
}
