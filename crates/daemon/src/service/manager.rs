//! Sockets inherited from the service manager, which keeps listening while the service restarts
//! (`systemd.socket(5)`).

use super::handover::Handovers;
use contract::ServiceError;
use rustix::io::ioctl_fionbio;
use rustix::net::{RecvFlags, SocketFlags, SocketType, accept_with, getsockname, recv, sockopt};
use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use sys::listening::Listening;

/// Most connections and datagrams that [`discard_waiting`] takes from one socket: more than any queue holds.
const WAITING_MAX: usize = 1 << 16;

/// Closes the connections and drops the datagrams that wait in these sockets. The service manager starts a service that has ended
/// again as long as anything waits: without this, one packet of a peer would restart a service that refuses its file for ever, as
/// fast as it fails.
pub(super) fn discard_waiting(sockets: &[OwnedFd]) {
    for socket in sockets {
        if ioctl_fionbio(socket, true).is_err() {
            continue;
        }
        for _ in 0..WAITING_MAX {
            // Each fails on sockets of the other type.
            let accepted = accept_with(socket, SocketFlags::CLOEXEC);
            if accepted.is_err() && recv(socket, &mut [0u8], RecvFlags::empty()).is_err() {
                break;
            }
        }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};
    use std::io::Read;
    use std::net::TcpStream;

    #[test]
    fn nothing_waits_in_a_discarded_socket() {
        let (tcp, udp) = (TcpListener::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        let mut client = TcpStream::connect(tcp.local_addr().unwrap()).unwrap();
        udp.send_to(&[1; 1000], udp.local_addr().unwrap()).unwrap();
        poll(&mut [PollFd::new(&tcp, PollFlags::IN)], None).unwrap();
        poll(&mut [PollFd::new(&udp, PollFlags::IN)], None).unwrap();
        discard_waiting(&[tcp.try_clone().unwrap().into(), udp.try_clone().unwrap().into()]);
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
        assert_eq!(tcp.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(udp.recv(&mut [0]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
}
