//! Addresses on the command line and in run files: `[TRANSPORT://]HOST[:PORT]`, and the defaults.

use contract::ServiceError;
use modules::registry;
use std::net::SocketAddr;
use sys::address::{is_bare_v6, with_port_of};

/// Default port.
pub const DEFAULT_PORT: u16 = 7845;
/// Default address of `share`: all addresses, IPv6 and IPv4.
pub const DEFAULT_LISTEN: &str = "[::]:7845";
/// Default transport of the records.
pub const DEFAULT_TRANSPORT: &str = "quic";
/// Fallback if the default transport does not connect.
pub const FALLBACK_TRANSPORT: &str = "tcp";

/// Splits `[TRANSPORT://]REST` into the transport's name and the rest.
pub fn split_transport(text: &str) -> Result<(&str, &str), ServiceError> {
    let Some((transport, rest)) = text.split_once("://") else { return Ok((DEFAULT_TRANSPORT, text)) };
    if registry::transport(transport).is_some() {
        return Ok((transport, rest));
    }
    let known: Vec<_> = registry::transports().iter().map(|class| class.name()).collect();
    Err(ServiceError::Usage(format!(
        "`{text}`: there is no transport `{transport}`; there is: {}",
        known.join(", ")
    )))
}

/// Adds the default port if `host` has none; an IPv6 address gets brackets.
pub fn with_port(host: &str) -> String {
    match host.rsplit_once(':') {
        Some((_, port)) if !is_bare_v6(host) && port.parse::<u16>().is_ok() => host.into(),
        _ => with_port_of(host, &DEFAULT_PORT.to_string()),
    }
}

/// Parses the address that a device host listens on.
pub fn listen_address(text: &str) -> Result<SocketAddr, ServiceError> {
    let (_, host) = split_transport(text)?;
    let wrong = |why: String| {
        ServiceError::Usage(format!("cannot listen on `{text}`: {why}; write [TRANSPORT://]ADDRESS[:PORT]"))
    };
    Ok(sys::address::resolve(&with_port(host)).map_err(|error| wrong(error.to_string()))?[0])
}
