//! `unix:PATH` and `tcp:HOST:PORT`: the bytes of a connection to any server.

#[cfg(test)]
mod tests;

use crate::plain::{self, os, unreached};
use crate::stream::{Channel, FRAME_OPTION, Framing, MAX_OPTION, StreamPartner, StreamReader, StreamWriter};
use contract::{
    Description, DeviceClass, DeviceError, DeviceSpec, FlowOffer, ModuleEntry, Opened, OptionKind,
    OptionSpec, Partner, Role, local,
};
use rustix::net::sockopt;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// The kernel's send buffer of a local socket.
const SEND_BYTES: usize = 1 << 20;

/// The class `unix`.
#[derive(Debug)]
pub struct Unix;

/// The class `tcp`.
#[derive(Debug)]
pub struct Tcp;

const UNIX_OPTIONS: &[OptionSpec] = &[FRAME_OPTION, MAX_OPTION];

const TCP_OPTIONS: &[OptionSpec] = &[
    FRAME_OPTION,
    MAX_OPTION,
    local(
        "timeout",
        OptionKind::Duration { min: Duration::from_millis(1), max: Duration::from_secs(3600) },
        "10s",
        "time limit for connecting",
    ),
];

fn flows(spec: &DeviceSpec) -> Result<Vec<FlowOffer>, DeviceError> {
    Framing::of(spec)?;
    Ok(plain::both_flows())
}

fn opened(spec: &DeviceSpec, role: Role, connected: io::Result<OwnedFd>) -> Result<Opened, DeviceError> {
    let flows = flows(spec)?;
    let operation = || format!("connecting to {}:{}", spec.class, spec.target);
    let descriptor =
        connected.map_err(|error| unreached(operation(), error, "is a server listening there?"))?;
    let description = plain::description(spec, flows, "stdout");
    Ok(Opened { spec: spec.clone(), role, description, descriptors: vec![descriptor] })
}

fn partner(opened: Opened) -> Result<Box<dyn Partner>, DeviceError> {
    let framing = Framing::of(&opened.spec)?;
    let name = format!("{}:{}", opened.spec.class, opened.spec.target);
    let [socket] = plain::descriptors(opened)?;
    let refused = |error: io::Error| os(format!("preparing {name}"), error, None);
    let reading =
        Channel::own(socket.try_clone().map_err(refused)?).map_err(|error| refused(error.into()))?;
    let writing = Channel::own(socket).map_err(|error| refused(error.into()))?;
    let writer = StreamWriter::new(name.clone(), writing, framing).with_reconnect();
    Ok(Box::new(StreamPartner::new(Some(StreamReader::new(name, reading, framing)), Some(writer))))
}

fn connect_tcp(target: &str, timeout: Duration) -> io::Result<OwnedFd> {
    Ok(sys::address::connect(&sys::address::resolve(target)?, timeout)?.into())
}

impl DeviceClass for Unix {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry {
            name: "unix",
            summary: "the bytes of a connection to a local socket",
            doc: include_str!("doc.md"),
            options: UNIX_OPTIONS,
        }
    }

    fn target(&self) -> &'static str {
        "PATH"
    }

    fn flows(&self, spec: &DeviceSpec) -> Result<Vec<FlowOffer>, DeviceError> {
        flows(spec)
    }

    fn open(&self, spec: &DeviceSpec, role: Role, _: Option<&Description>) -> Result<Opened, DeviceError> {
        let connected = UnixStream::connect(&spec.target).map(|socket| {
            // Best effort: the kernel's default is three chunks, and each full buffer costs two wake-ups.
            let _ = sockopt::set_socket_send_buffer_size(&socket, SEND_BYTES);
            OwnedFd::from(socket)
        });
        opened(spec, role, connected)
    }

    fn partner(&self, opened: Opened) -> Result<Box<dyn Partner>, DeviceError> {
        partner(opened)
    }
}

impl DeviceClass for Tcp {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry {
            name: "tcp",
            summary: "the bytes of a TCP connection to a server",
            doc: include_str!("doc.md"),
            options: TCP_OPTIONS,
        }
    }

    fn target(&self) -> &'static str {
        "HOST:PORT"
    }

    fn flows(&self, spec: &DeviceSpec) -> Result<Vec<FlowOffer>, DeviceError> {
        flows(spec)
    }

    fn waits_for_host(&self) -> bool {
        true
    }

    fn open(&self, spec: &DeviceSpec, role: Role, _: Option<&Description>) -> Result<Opened, DeviceError> {
        opened(spec, role, connect_tcp(&spec.target, spec.options.duration("timeout")))
    }

    fn partner(&self, opened: Opened) -> Result<Box<dyn Partner>, DeviceError> {
        partner(opened)
    }
}
