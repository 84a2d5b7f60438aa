//! The connections to a host that shows a pairing code. Their number is bounded: when there are too many, the address
//! with the most connections loses its oldest one, so that no address keeps another one out.

use std::io;
use std::net::{IpAddr, Shutdown, TcpStream};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Most concurrent connections.
const VISITORS_MAX: usize = 16;

struct Visitor {
    number: u64,
    address: IpAddr,
    /// The same connection as that of the visitor's thread.
    socket: TcpStream,
}

/// The connections, oldest first.
#[derive(Default)]
pub(crate) struct Visitors {
    connected: Mutex<(u64, Vec<Visitor>)>,
}

impl Visitors {
    /// Admits a connection. Returns its number, and the address whose oldest connection was closed for it, if any.
    pub(crate) fn admit(&self, address: IpAddr, socket: &TcpStream) -> io::Result<(u64, Option<IpAddr>)> {
        let socket = socket.try_clone()?;
        let mut connected = self.lock();
        let (next, visitors) = &mut *connected;
        *next += 1;
        visitors.push(Visitor { number: *next, address, socket });
        let closed = (visitors.len() > VISITORS_MAX).then(|| busiest(visitors)).flatten();
        if let Some(closed) = closed
            && let Some(oldest) = visitors.iter().position(|visitor| visitor.address == closed)
        {
            // Its thread gets an error and ends.
            let _ = visitors.remove(oldest).socket.shutdown(Shutdown::Both);
        }
        Ok((*next, closed))
    }

    /// Forgets a connection that has ended.
    pub(crate) fn forget(&self, number: u64) {
        self.lock().1.retain(|visitor| visitor.number != number);
    }

    fn lock(&self) -> MutexGuard<'_, (u64, Vec<Visitor>)> {
        self.connected.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the address with the most connections; of several, the one with the oldest connection.
fn busiest(visitors: &[Visitor]) -> Option<IpAddr> {
    let count = |address| visitors.iter().filter(|visitor| visitor.address == address).count();
    // `max_by_key` returns the last maximum.
    visitors.iter().rev().max_by_key(|visitor| count(visitor.address)).map(|visitor| visitor.address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::TcpListener;

    #[test]
    fn the_busiest_address_loses_its_oldest_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let connect = || {
            let far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            (listener.accept().unwrap().0, far)
        };
        let [honest, hostile]: [IpAddr; 2] = ["192.0.2.1", "192.0.2.2"].map(|text| text.parse().unwrap());
        let visitors = Visitors::default();
        let admit = |address| {
            let (near, far) = connect();
            let (number, closed) = visitors.admit(address, &near).unwrap();
            (near, far, number, closed)
        };
        let mut first = admit(honest);
        let mut others: Vec<_> = (0..100).map(|_| admit(hostile)).collect();
        assert_eq!(
            others.iter().filter(|(.., closed)| *closed == Some(hostile)).count(),
            100 - (VISITORS_MAX - 1)
        );
        assert!(others.iter().all(|(.., closed)| *closed != Some(honest)));
        // The oldest hostile connection is closed, the honest one open.
        assert_eq!(others[0].1.read(&mut [0]).unwrap(), 0);
        first.1.set_nonblocking(true).unwrap();
        assert_eq!(first.1.read(&mut [0]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        others.iter().for_each(|(_, _, number, _)| visitors.forget(*number));
        assert_eq!(visitors.lock().1.len(), 1);
    }
}
