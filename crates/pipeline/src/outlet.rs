//! Outlets: the local destinations of side ports.

use contract::{Message, Pair, Port};
use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// The destination of messages from a side port.
pub trait Outlet: Any + Send + Sync {
    /// Takes a message; `false` if there is no room for it.
    fn put(&self, message: Message) -> bool;

    /// Returns a problem of the outlet, once.
    fn take_problem(&self) -> Option<String>;

    /// Waits, for a limited time, until the target has all messages, and refuses later ones. Returns the problem if some are
    /// missing there.
    fn finish(&self) -> Option<String> {
        self.take_problem()
    }
}

/// The outlet of a side port, for every pair with this name.
#[derive(Clone)]
pub struct NamedOutlet {
    /// Name of the pair.
    pub pair: &'static str,
    /// Its side port.
    pub port: Port,
    /// The outlet.
    pub outlet: Arc<dyn Outlet>,
}

impl NamedOutlet {
    /// Ends the outlet ([`Outlet::finish`]). The problem has the name of the pair.
    pub fn finish(&self) -> Option<String> {
        self.outlet.finish().map(|problem| format!("`{}`: {problem}", self.pair))
    }
}

impl fmt::Debug for NamedOutlet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NamedOutlet({}.{})", self.pair, self.port.0)
    }
}

/// Parses `PAIR` or `PAIR.PORT`.
pub fn side_port(name: &str, table: &[&'static dyn Pair]) -> Result<(&'static str, Port), String> {
    let (pair, port) = name.split_once('.').map_or((name, None), |(pair, port)| (pair, Some(port)));
    let has_ports = || table.iter().filter(|pair| !pair.side_ports().is_empty());
    let Some(pair) = has_ports().find(|known| known.name() == pair) else {
        let known: Vec<_> = has_ports().map(|pair| pair.name()).collect();
        return Err(format!("`{pair}` is not a pair with a side port; there is: {}", known.join(", ")));
    };
    let ports = pair.side_ports();
    let index = match port {
        None if ports.len() == 1 => Some(0),
        None => None,
        Some(port) => ports.iter().position(|known| *known == port),
    };
    match index {
        Some(index) => Ok((pair.name(), Port(index as u16 + 1))),
        None => Err(format!("`{}` has these side ports: {}", pair.name(), ports.join(", "))),
    }
}
