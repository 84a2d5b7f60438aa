//! `rfb:PORT` and `rfb:HOST:PORT`: the protocol of VNC (RFC 6143), either side. As the application's side it is a
//! server, so that any viewer is the screen; as a device it is a client, so that any VNC server is one.

mod application;
mod auth;
mod client;
mod clipboard;
mod decode;
mod deflate;
mod device;
mod encode;
pub mod fuzz;
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
mod way;

use crate::plain::{self, os};
use application::Server;
use auth::Password;
use client::{ServerInit, handshake, preferring};
use contract::{
    Description, DeviceClass, DeviceError, DeviceSpec, FlowClass, FlowDirection, FlowOffer, Format, Opened,
    OptionKind, OptionSpec, Partner, Role, Scope,
};
use device::Screen;
use rustix::fs::{Mode, OFlags};
use server::Settings;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;
use wire::{Reader, Writer};

/// The class.
#[derive(Debug)]
pub struct Rfb;

/// Longest name of a desktop, in bytes.
const NAME_BYTES_MAX: usize = 256;

/// Most bytes that are read of a password's file.
const PASSWORD_FILE_BYTES: u64 = 4096;

/// The port of display 0.
const PORT: u16 = 5900;

const fn option(
    name: &'static str,
    kind: OptionKind,
    default: &'static str,
    doc: &'static str,
) -> OptionSpec {
    OptionSpec { name, kind, default, scope: Scope::Local, doc }
}

const OPTIONS: &[OptionSpec] = &[
    option(
        "password_file",
        OptionKind::Text { max: 4096 },
        "",
        "a file whose first line is the password, of which eight bytes count; empty: none",
    ),
    option(
        "anyone",
        OptionKind::Flag,
        "false",
        "as an application: serves other computers without a password, too",
    ),
    option(
        "viewers",
        OptionKind::Integer { min: 1, max: 64 },
        "8",
        "as an application: viewers at a time; who comes then is turned away",
    ),
    option(
        "plain",
        OptionKind::Flag,
        "true",
        "as an application: sends pixels uncompressed where a viewer has them sooner so, by what is measured",
    ),
    option(
        "name",
        OptionKind::Text { max: NAME_BYTES_MAX },
        "",
        "as an application: what viewers show as the title; empty: the device's name",
    ),
    option(
        "encoding",
        OptionKind::Choice(&["tight", "zrle", "raw"]),
        "tight",
        "as a device: how pixels are asked for, if the server can; none of them loses anything",
    ),
    option(
        "timeout",
        OptionKind::Duration { min: Duration::from_millis(1), max: Duration::from_secs(3600) },
        "10s",
        "as a device: longest time to connect, and for each step of the server's greeting",
    ),
];

/// What matters of a screen is what it shows, and of a hand what it holds.
fn flows() -> Vec<FlowOffer> {
    vec![
        FlowOffer {
            direction: FlowDirection::DeviceToApplication,
            format: Format::Video,
            class: FlowClass::State,
        },
        FlowOffer {
            direction: FlowDirection::ApplicationToDevice,
            format: Format::Viewer,
            class: FlowClass::State,
        },
    ]
}

fn wrong(spec: &DeviceSpec, problem: impl Into<String>) -> DeviceError {
    DeviceError::Spec { what: format!("`rfb:{}`", spec.target), problem: problem.into() }
}

/// The file of the password, if there is one.
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

/// Where to listen: `PORT`, `ADDRESS:PORT` or `[ADDRESS]:PORT`.
fn listening_address(spec: &DeviceSpec) -> Result<SocketAddr, DeviceError> {
    let target = spec.target.as_str();
    let address = match target.parse::<u16>() {
        Ok(port) => Some(SocketAddr::from(([127, 0, 0, 1], port))),
        Err(_) => target.parse().ok(),
    };
    address.ok_or_else(|| {
        wrong(spec, "write a port or an address and a port of this computer: `rfb:5901`, `rfb:0.0.0.0:5901`")
    })
}

fn listen(spec: &DeviceSpec, like: Option<&Description>) -> Result<Opened, DeviceError> {
    let address = listening_address(spec)?;
    let password = password_file(spec)?;
    let is_local = match address.ip() {
        IpAddr::V4(ip) => ip.is_loopback(),
        IpAddr::V6(ip) => ip.is_loopback(),
    };
    if password.is_none() && !is_local && !spec.options.flag("anyone") {
        return Err(wrong(
            spec,
            "other computers could see and use this screen: give `password_file=PATH`, or `anyone=true` if they may",
        ));
    }
    let operation = format!("listening at {address}");
    let (listener, address) = TcpListener::bind(address)
        .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
        .and_then(|listener| listener.local_addr().map(|address| (listener, address)))
        .map_err(|error| os(operation, error, Some("is another VNC server there? Choose another port")))?;
    let mut properties = Writer::new();
    let name = match (spec.options.text("name"), like) {
        ("", Some(like)) => like.summary.as_str(),
        ("", None) => "Outboard",
        (name, _) => name,
    };
    properties.text(cut(name));
    let description = Description {
        class: Rfb.name().into(),
        summary: format!("VNC server at {address}"),
        flows: flows(),
        application: Rfb.application(),
        properties: properties.finish(),
    };
    let descriptors = std::iter::once(listener.into()).chain(password).collect();
    Ok(Opened { spec: spec.clone(), role: Role::Application, description, descriptors })
}

/// As much of a name as may be said.
fn cut(name: &str) -> &str {
    &name[..name.floor_char_boundary(NAME_BYTES_MAX)]
}

fn connect(spec: &DeviceSpec) -> Result<Opened, DeviceError> {
    let timeout = spec.options.duration("timeout");
    let password = password_file(spec)?.map(|file| read_password(spec, file)).transpose()?;
    let operation = || format!("connecting to the VNC server {}", spec.target);
    let mut stream = dial(&spec.target, timeout).map_err(|error| {
        os(operation(), error, Some("is one listening there? Display N is port 5900 + N"))
    })?;
    let greeted = stream
        .set_read_timeout(Some(timeout))
        .and_then(|()| stream.set_write_timeout(Some(timeout)))
        .and_then(|()| handshake(&mut stream, password.as_ref()))
        .and_then(|init| stream.set_nonblocking(true).map(|()| init));
    let init = greeted.map_err(|error| match error.kind() {
        // Its words, not the system's, which are of a read that came too early.
        ErrorKind::WouldBlock => {
            let silent = io::Error::other(format!("it says nothing for {timeout:?}"));
            os(operation(), silent, Some("is that a VNC server? Another may be busy with it: `timeout=30s`"))
        }
        ErrorKind::UnexpectedEof => {
            let closed = io::Error::other("it hangs up amid its greeting");
            os(operation(), closed, Some("is that a VNC server, and does it let this computer in?"))
        }
        _ => os(operation(), error, None),
    })?;
    let mut properties = Writer::new();
    properties.u32(init.width).u32(init.height).text(cut(&init.name));
    let description = Description {
        class: Rfb.name().into(),
        summary: format!("VNC screen {} of {}x{}", cut(&init.name), init.width, init.height),
        flows: flows(),
        application: Rfb.application(),
        properties: properties.finish(),
    };
    let descriptors = vec![stream.into()];
    Ok(Opened { spec: spec.clone(), role: Role::Device, description, descriptors })
}

fn dial(target: &str, timeout: Duration) -> io::Result<TcpStream> {
    let has_port =
        target.rsplit_once(':').is_some_and(|(host, _)| !host.contains(':') || host.ends_with(']'));
    let place = match has_port {
        true => target.into(),
        false => format!("{target}:{PORT}"),
    };
    sys::address::connect(&sys::address::resolve(&place)?, timeout)
}

/// What [`listen`] wrote down.
fn parse_name(properties: &[u8]) -> Result<String, DeviceError> {
    let mut reader = Reader::new(properties);
    let name = reader.text("desktop name", NAME_BYTES_MAX).map(String::from);
    name.map_err(described_wrong)
}

/// What [`connect`] wrote down.
fn parse_init(properties: &[u8]) -> Result<ServerInit, DeviceError> {
    let mut reader = Reader::new(properties);
    let mut parse = || {
        let (width, height) = (reader.u32("screen width")?, reader.u32("screen height")?);
        let name = reader.text("desktop name", NAME_BYTES_MAX)?.to_string();
        Ok(ServerInit { width, height, name })
    };
    parse().map_err(described_wrong)
}

fn described_wrong(error: wire::WireError) -> DeviceError {
    DeviceError::Spec { what: "the description of the VNC screen".into(), problem: error.to_string() }
}

impl DeviceClass for Rfb {
    fn name(&self) -> &'static str {
        "rfb"
    }

    fn summary(&self) -> &'static str {
        "a screen over VNC: as an application a server for any viewer, as a device the screen of any server"
    }

    fn doc(&self) -> &'static str {
        include_str!("doc.md")
    }

    fn target(&self) -> &'static str {
        "ADDRESS:PORT"
    }

    fn has_role(&self, _role: Role) -> bool {
        true
    }

    fn application(&self) -> &'static str {
        "rfb"
    }

    fn options(&self) -> &'static [OptionSpec] {
        OPTIONS
    }

    fn pipeline(&self, direction: FlowDirection) -> &'static str {
        plain::screen_pipeline(direction)
    }

    fn open(&self, spec: &DeviceSpec, role: Role, like: Option<&Description>) -> Result<Opened, DeviceError> {
        if spec.target.is_empty() {
            return Err(wrong(
                spec,
                "write where: `rfb:5901` to serve viewers there, `rfb:HOST:5901` for its screen",
            ));
        }
        match role {
            Role::Application => listen(spec, like),
            Role::Device => connect(spec),
        }
    }

    fn reopen(&self, spec: &DeviceSpec, role: Role, _: &Description) -> Result<Opened, DeviceError> {
        self.open(spec, role, None)
    }

    fn partner(&self, opened: Opened) -> Result<Box<dyn Partner>, DeviceError> {
        let (role, spec) = (opened.role, opened.spec.clone());
        let properties = opened.description.properties.clone();
        if role == Role::Device {
            let init = parse_init(&properties)?;
            let [socket] = plain::descriptors(opened)?;
            let encodings = preferring(spec.options.text("encoding"));
            return Ok(Box::new(Screen::new(format!("rfb:{}", spec.target), socket, &init, &encodings)));
        }
        let mut descriptors = opened.descriptors.into_iter();
        let (Some(listener), password) = (descriptors.next(), descriptors.next()) else {
            return Err(wrong(&spec, "the broker handed over no socket"));
        };
        let password = password.map(|file| read_password(&spec, file)).transpose()?;
        let may_be_plain = spec.options.flag("plain");
        let settings = Settings { password, name: parse_name(&properties)?, may_be_plain };
        let server = Server::new(listener, settings, spec.options.count("viewers"))
            .map_err(|error| os("serving viewers".into(), error, None))?;
        Ok(Box::new(server))
    }
}
