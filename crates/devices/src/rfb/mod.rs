//! `rfb:PORT` and `rfb:HOST:PORT`: the VNC protocol RFB (RFC 6143). On the application side it is a server for any
//! viewer; on the device side it is a client of any VNC server.
//!
//! | side | partner | protocol state without I/O | pixels |
//! |---|---|---|---|
//! | application | `application`: a thread with sockets | `server` (and `handshake`, `framing`, `tracker`) | `encode` |
//! | device | `device` | `client` | `decode` |

mod application;
mod auth;
mod client;
mod clipboard;
mod codec;
mod decode;
mod deflate;
mod device;
mod encode;
mod framing;
pub mod fuzz;
mod handshake;
mod huffman;
mod palette;
#[cfg(test)]
mod partner_tests;
mod picture;
mod pixels;
mod protocol;
mod server;
#[cfg(test)]
mod tests;
mod tracker;

use crate::plain::{self, os, unreached};
use application::ServerPartner;
use auth::Password;
use client::{ServerInit, handshake};
use contract::{
    Description, DeviceClass, DeviceError, DeviceSpec, FlowDirection, FlowOffer, Format, Kind, ModuleEntry,
    NodeName, Opened, OptionKind, OptionSpec, Partner, Role, local,
};
use device::DevicePartner;
use rustix::fs::{Mode, OFlags};
use rustix::net::Shutdown;
use server::Settings;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;
use wire::{Reader, Writer};

/// The device class `rfb`.
#[derive(Debug)]
pub struct Rfb;

/// The most bytes of a desktop name.
const NAME_BYTES_MAX: usize = 256;

/// The most bytes that are read from a password file.
const PASSWORD_FILE_BYTES: u64 = 4096;

/// The longest timeout while a session waits for the new connection of its next worker.
const RENEW_TIMEOUT: Duration = Duration::from_secs(2);

/// The port of display 0.
const PORT: u16 = 5900;

const OPTIONS: &[OptionSpec] = &[
    local(
        "password_file",
        OptionKind::Text { max: 4096 },
        "",
        "a file with the password in its first line, at most eight bytes count; empty: no password",
    ),
    local(
        "anyone",
        OptionKind::Flag,
        "false",
        "as an application: allow viewers on other hosts without a password",
    ),
    local(
        "viewers",
        OptionKind::Integer { min: 1, max: 64 },
        "8",
        "as an application: most viewers at a time; others are refused",
    ),
    local(
        "name",
        OptionKind::Text { max: NAME_BYTES_MAX },
        "",
        "as an application: the desktop name, which viewers show as title; empty: the device's name",
    ),
    local(
        "encoding",
        OptionKind::Choice(&["tight", "zrle", "raw"]),
        "tight",
        "as a device: the preferred encoding of pixels; all are lossless",
    ),
    local(
        "timeout",
        OptionKind::Duration { min: Duration::from_millis(1), max: Duration::from_secs(3600) },
        "10s",
        "as a device: time limit for connecting, and for each step of the handshake",
    ),
    crate::clipboard::OPTION,
    plain::VIEW,
];

fn wrong(spec: &DeviceSpec, problem: impl Into<String>) -> DeviceError {
    DeviceError::Spec { what: format!("`rfb:{}`", spec.target), problem: problem.into() }
}

/// Opens the password file, if the options name one.
fn password_file(spec: &DeviceSpec) -> Result<Option<OwnedFd>, DeviceError> {
    let path = spec.options.text("password_file");
    if path.is_empty() {
        return Ok(None);
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let opened = rustix::fs::open(path, flags, Mode::empty());
    opened.map(Some).map_err(|error| os(format!("opening the password file {path}"), error, None))
}

fn read_password(spec: &DeviceSpec, file: OwnedFd) -> Result<Password, DeviceError> {
    let mut bytes = Vec::new();
    File::from(file)
        .take(PASSWORD_FILE_BYTES)
        .read_to_end(&mut bytes)
        .map_err(|error| os("reading the password file".into(), error, None))?;
    Password::parse(&bytes).ok_or_else(|| wrong(spec, "the first line of the password file is empty"))
}

/// Parses the address to listen at: `PORT`, `ADDRESS:PORT` or `[ADDRESS]:PORT`.
fn listening_address(spec: &DeviceSpec) -> Result<SocketAddr, DeviceError> {
    let target = spec.target.as_str();
    let address = match target.parse::<u16>() {
        Ok(port) => Some(SocketAddr::from(([127, 0, 0, 1], port))),
        Err(_) => target.parse().ok(),
    };
    address.ok_or_else(|| {
        wrong(spec, "write a port, or an address of this host and a port: `rfb:5901`, `rfb:0.0.0.0:5901`")
    })
}

fn listen(spec: &DeviceSpec, like: Option<&Description>) -> Result<Opened, DeviceError> {
    let address = listening_address(spec)?;
    if plain::is_view_only(spec) {
        return Err(wrong(spec, "`view=only` is an option of the shared screen: give it to `share`"));
    }
    let password = password_file(spec)?;
    let is_local = match address.ip() {
        IpAddr::V4(ip) => ip.is_loopback(),
        IpAddr::V6(ip) => ip.is_loopback(),
    };
    if password.is_none() && !is_local && !spec.options.flag("anyone") {
        return Err(wrong(
            spec,
            "other hosts could see and use this screen: give `password_file=PATH`, or `anyone=true` to allow that",
        ));
    }
    let operation = format!("listening at {address}");
    let (listener, address) = TcpListener::bind(address)
        .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
        .and_then(|listener| listener.local_addr().map(|address| (listener, address)))
        .map_err(|error| os(operation, sys::port_user::explain(address, error), None))?;
    let mut properties = Writer::new();
    let name = match (spec.options.text("name"), like) {
        ("", Some(like)) => like.summary.as_str(),
        ("", None) => "Outboard",
        (name, _) => name,
    };
    properties.text(truncated(name));
    let description = Description {
        class: Rfb.name().into(),
        summary: format!("VNC server at {address}"),
        flows: plain::screen_flows(false),
        application: Rfb.application(),
        properties: properties.finish(),
    };
    let descriptors = std::iter::once(listener.into()).chain(password).collect();
    Ok(Opened { spec: spec.clone(), role: Role::Application, description, descriptors })
}

/// Truncates a name to [`NAME_BYTES_MAX`].
fn truncated(name: &str) -> &str {
    &name[..name.floor_char_boundary(NAME_BYTES_MAX)]
}

fn connect(spec: &DeviceSpec, timeout: Duration) -> Result<Opened, DeviceError> {
    let password = password_file(spec)?.map(|file| read_password(spec, file)).transpose()?;
    let operation = || format!("connecting to the VNC server {}", spec.target);
    let mut stream = connect_tcp(&spec.target, timeout).map_err(|error| {
        unreached(operation(), error, "is it listening there? Display N has port 5900 + N")
    })?;
    let result = stream
        .set_read_timeout(Some(timeout))
        .and_then(|()| stream.set_write_timeout(Some(timeout)))
        .and_then(|()| handshake(&mut stream, password.as_ref()))
        .and_then(|init| stream.set_nonblocking(true).map(|()| init));
    let init = result.map_err(|error| match error.kind() {
        // The read timeout of the socket. The system's text for it would mislead.
        ErrorKind::WouldBlock => {
            let silent = io::Error::other(format!("it sends nothing for {timeout:?}"));
            let advice = "is it a VNC server? If it serves another viewer first, use a longer `timeout`";
            os(operation(), silent, Some(advice))
        }
        ErrorKind::UnexpectedEof => {
            let closed = io::Error::other("it closes the connection during the handshake");
            os(operation(), closed, Some("is it a VNC server, and does it accept this host?"))
        }
        _ => os(operation(), error, None),
    })?;
    let is_view_only = plain::is_view_only(spec);
    let mut properties = Writer::new();
    properties.u32(init.width).u32(init.height).text(truncated(&init.name));
    let description = Description {
        class: Rfb.name().into(),
        summary: format!(
            "VNC screen {} of {}x{}{}",
            truncated(&init.name),
            init.width,
            init.height,
            plain::view_note(is_view_only)
        ),
        flows: Rfb.flows(spec)?,
        application: Rfb.application(),
        properties: properties.finish(),
    };
    let descriptors = vec![stream.into()];
    Ok(Opened { spec: spec.clone(), role: Role::Device, description, descriptors })
}

fn connect_tcp(target: &str, timeout: Duration) -> io::Result<TcpStream> {
    let has_port =
        target.rsplit_once(':').is_some_and(|(host, _)| !host.contains(':') || host.ends_with(']'));
    let address = if has_port { target.into() } else { format!("{target}:{PORT}") };
    sys::address::connect(&sys::address::resolve(&address)?, timeout)
}

/// Parses the properties that [`listen`] emits.
fn parse_name(properties: &[u8]) -> Result<String, DeviceError> {
    let mut reader = Reader::new(properties);
    let name = reader.text("desktop name", NAME_BYTES_MAX).map(String::from);
    name.map_err(invalid_description)
}

/// Parses the properties that [`connect`] emits.
fn parse_init(properties: &[u8]) -> Result<ServerInit, DeviceError> {
    let mut reader = Reader::new(properties);
    let mut parse = || {
        let (width, height) = (reader.u32("screen width")?, reader.u32("screen height")?);
        let name = reader.text("desktop name", NAME_BYTES_MAX)?.to_string();
        Ok(ServerInit { width, height, name })
    };
    parse().map_err(invalid_description)
}

fn invalid_description(error: wire::WireError) -> DeviceError {
    DeviceError::Spec { what: "the description of the VNC screen".into(), problem: error.to_string() }
}

impl DeviceClass for Rfb {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry {
            name: "rfb",
            summary: "a screen over VNC: a server for any viewer (application), or the screen of any server (device)",
            doc: include_str!("doc.md"),
            options: OPTIONS,
        }
    }

    fn target(&self) -> &'static str {
        "ADDRESS:PORT"
    }

    fn application(&self) -> &'static str {
        "rfb"
    }

    fn takes(&self) -> Option<Format> {
        Some(Format::Video)
    }

    fn kind(&self, _described: &Description) -> Result<Kind, DeviceError> {
        Ok(Kind::Screen)
    }

    fn pipeline(&self, direction: FlowDirection) -> &'static str {
        plain::screen_pipeline(direction)
    }

    fn flows(&self, spec: &DeviceSpec) -> Result<Vec<FlowOffer>, DeviceError> {
        Ok(plain::screen_flows(plain::is_view_only(spec)))
    }

    fn nodes(&self, spec: &DeviceSpec) -> Vec<NodeName> {
        let address = listening_address(spec).ok().filter(|address| address.port() != 0);
        address.map(NodeName::Listener).into_iter().collect()
    }

    fn waits_for_host(&self) -> bool {
        true
    }

    fn open(&self, spec: &DeviceSpec, role: Role, like: Option<&Description>) -> Result<Opened, DeviceError> {
        if spec.target.is_empty() {
            return Err(wrong(
                spec,
                "the address is missing: `rfb:5901` serves viewers at that port, `rfb:HOST:5901` is that host's screen",
            ));
        }
        match role {
            Role::Application => listen(spec, like),
            Role::Device => connect(spec, spec.options.duration("timeout")),
        }
    }

    fn reopen(&self, spec: &DeviceSpec, role: Role, _: &Description) -> Result<Opened, DeviceError> {
        self.open(spec, role, None)
    }

    /// Connects again: only the exited worker knew its place in the server's stream, and the streams that it inflates.
    fn renew(&self, opened: &mut Opened) -> Result<(), DeviceError> {
        if opened.role != Role::Device {
            return Ok(());
        }
        // A server may accept one viewer only. If the new connection fails, the next worker finds this one closed, and the device is
        // opened again.
        for socket in &opened.descriptors {
            let _ = rustix::net::shutdown(socket, Shutdown::Both);
        }
        let timeout = opened.spec.options.duration("timeout").min(RENEW_TIMEOUT);
        let renewed = connect(&opened.spec, timeout)?;
        opened.descriptors = renewed.descriptors;
        // They have the size.
        opened.description.properties = renewed.description.properties;
        Ok(())
    }

    fn partner(&self, opened: Opened) -> Result<Box<dyn Partner>, DeviceError> {
        let (role, spec) = (opened.role, opened.spec.clone());
        let properties = opened.description.properties.clone();
        if role == Role::Device {
            let init = parse_init(&properties)?;
            let [socket] = plain::descriptors(opened)?;
            return Ok(Box::new(DevicePartner::new(&spec, socket, &init)));
        }
        let mut descriptors = opened.descriptors.into_iter();
        let (Some(listener), password) = (descriptors.next(), descriptors.next()) else {
            return Err(wrong(&spec, "the broker passed no socket"));
        };
        let password = password.map(|file| read_password(&spec, file)).transpose()?;
        let has_clipboard = plain::has_clipboard(&spec);
        let settings = Settings { password, name: parse_name(&properties)?, has_clipboard };
        let server = ServerPartner::new(listener, settings, spec.options.count("viewers"))
            .map_err(|error| os("serving viewers".into(), error, None))?;
        Ok(Box::new(server))
    }
}
