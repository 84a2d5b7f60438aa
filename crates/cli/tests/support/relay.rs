//! A relay of TCP connections that can be cut.

use std::io::copy;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

#[derive(Clone, Default)]
pub(crate) struct Relay(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    target: String,
    open: Vec<TcpStream>,
    is_down: bool,
}

impl Relay {
    /// Starts to relay connections to `target`. Returns the address for them.
    pub(crate) fn start(&self, target: &str) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, relay) = (listener.local_addr().unwrap(), self.clone());
        self.set_target(target);
        thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let mut state = relay.0.lock().unwrap();
                if state.is_down {
                    continue;
                }
                let far = TcpStream::connect(&state.target).unwrap();
                for (from, to) in [(&near, &far), (&far, &near)] {
                    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    thread::spawn(move || {
                        let _ = copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Write);
                    });
                }
                state.open.push(near);
            }
        });
        address
    }

    /// Relays later connections to another target.
    pub(crate) fn set_target(&self, target: &str) {
        self.0.lock().unwrap().target = target.into();
    }

    /// Cuts the newest `count` connections.
    pub(crate) fn cut(&self, count: usize) {
        let open = &mut self.0.lock().unwrap().open;
        let kept = open.len().saturating_sub(count);
        open.drain(kept..).for_each(|near| drop(near.shutdown(Shutdown::Both)));
    }

    /// Cuts all connections and refuses others, or lets new ones pass again.
    pub(crate) fn set_down(&self, is_down: bool) {
        self.0.lock().unwrap().is_down = is_down;
        if is_down {
            self.cut(usize::MAX);
        }
    }
}
