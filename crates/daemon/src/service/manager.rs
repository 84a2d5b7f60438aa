//! Sockets inherited from the service manager, which keeps listening while the service restarts
//! (`systemd.socket(5)`).

use super::handover::Handovers;
use contract::ServiceError;
use rustix::net::{SocketType, getsockname, sockopt};
use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use sys::listening::Listening;

/// The inherited sockets by address.
pub(super) struct Inherited {
    pub(super) handovers: Arc<Handovers>,
    tcp: Vec<(SocketAddr, TcpListener)>,
    udp: Vec<(SocketAddr, UdpSocket)>,
}

impl Inherited {
    /// Sorts the inherited sockets. A socket that is not IP is an error of the unit file.
    pub(super) fn new(sockets: Vec<OwnedFd>, handovers: Arc<Handovers>) -> Result<Inherited, ServiceError> {
        let mut inherited = Inherited { handovers, tcp: Vec::new(), udp: Vec::new() };
        for socket in sockets {
            let address = getsockname(&socket).ok().and_then(|address| SocketAddr::try_from(address).ok());
            match (address, sockopt::socket_type(&socket)) {
                (Some(at), Ok(SocketType::STREAM)) => inherited.tcp.push((at, socket.into())),
                (Some(at), Ok(SocketType::DGRAM)) => inherited.udp.push((at, socket.into())),
                _ => {
                    let problem = "the service manager hands over a socket that is neither TCP nor UDP: its socket \
                                   unit must have ListenStream= and ListenDatagram= of one port";
                    return Err(ServiceError::Usage(problem.into()));
                }
            }
        }
        Ok(inherited)
    }

    /// Returns duplicates of the sockets for `at`; unspecified addresses of IPv4 and IPv6 match each other. A TCP
    /// socket without its UDP counterpart, or the reverse, is an error.
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
                "the service manager hands over only one of TCP and UDP: its socket unit must have ListenStream= and \
                 ListenDatagram= of this port",
            )),
        }
    }

    /// Explains why this host cannot listen at `at`. The kernel names this process if an inherited socket has the port at another
    /// address; the cause is the socket unit, until somebody corrects it.
    pub(super) fn explain(&self, at: SocketAddr, error: io::Error) -> ServiceError {
        let tcp = self.tcp.iter().map(|(bound, _)| bound);
        let mut bound = tcp.chain(self.udp.iter().map(|(bound, _)| bound));
        match bound.find(|bound| bound.port() == at.port() && error.kind() == io::ErrorKind::AddrInUse) {
            Some(bound) => ServiceError::Usage(format!(
                "cannot listen on {at}: outboard.socket listens on {bound}: set its ListenStream= and ListenDatagram= to \
                 {at} with `systemctl edit outboard.socket`"
            )),
            None => ServiceError::os(format!("listening on {at}"), error),
        }
    }
}
