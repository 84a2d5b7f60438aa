//! Recognizes Xwayland, the X server of a Wayland desktop. A rootless one has the windows of X11 programs, but no desktop: its
//! screen stays black. A rootful one is a desktop of its own, in a window.
//!
//! The X11 protocol does not tell these two apart. The process that listens to the display does:
//!
//! | process | server |
//! |---|---|
//! | `Xwayland` without `-rootless` | rootful |
//! | `Xwayland` with `-rootless` | rootless |
//! | another one: a compositor, which starts Xwayland for the first program | rootless |
//! | unknown: on another host, or in another container | rootless or rootful |

use super::client::Client;
use super::display::wait_reply;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, getsockname};
use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;
use x11rb_protocol::protocol::randr::{
    self, GetOutputInfoReply, GetOutputInfoRequest, GetScreenResourcesCurrentReply,
    GetScreenResourcesCurrentRequest,
};
use x11rb_protocol::protocol::xproto::{QueryExtensionReply, QueryExtensionRequest};

/// The extension of an Xwayland, from version 23.1 on.
const EXTENSION: &str = "XWAYLAND";
/// The start of the names of an older Xwayland's outputs.
const OUTPUT: &[u8] = b"XWAYLAND";

/// The desktop on the screen of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ScreenKind {
    /// The server is no Xwayland, or a rootful one.
    Desktop,
    /// The server is a rootless Xwayland.
    Rootless,
    /// The server is an Xwayland of one or the other kind.
    Unknown,
}

/// Returns the kind of the screen of a server that has accepted a connection.
pub(super) fn screen_kind(socket: &OwnedFd, deadline: Instant) -> io::Result<ScreenKind> {
    let command = command_line(socket);
    let mut client = Client::new(socket.try_clone()?, deadline)?;
    Ok(match is_xwayland(&mut client, deadline)? {
        true => command.map_or(ScreenKind::Unknown, |command| kind_of(&command)),
        false => ScreenKind::Desktop,
    })
}

fn is_xwayland(client: &mut Client, deadline: Instant) -> io::Result<bool> {
    let [own, randr] = [EXTENSION, randr::X11_EXTENSION_NAME]
        .map(|name| client.query(QueryExtensionRequest { name: name.as_bytes().into() }.serialize()));
    let own: QueryExtensionReply = wait_reply(client, own, deadline)?;
    let randr: QueryExtensionReply = wait_reply(client, randr, deadline)?;
    if own.present || !randr.present {
        return Ok(own.present);
    }
    let (opcode, window) = (randr.major_opcode, client.setup().roots[0].root);
    let version = randr::QueryVersionRequest { major_version: 1, minor_version: 3 };
    let version = client.query(version.serialize(opcode));
    let version: randr::QueryVersionReply = wait_reply(client, version, deadline)?;
    if (version.major_version, version.minor_version) < (1, 3) {
        return Ok(false);
    }
    let resources = client.query(GetScreenResourcesCurrentRequest { window }.serialize(opcode));
    let resources: GetScreenResourcesCurrentReply = wait_reply(client, resources, deadline)?;
    let Some(output) = resources.outputs.first() else { return Ok(false) };
    let config_timestamp = resources.config_timestamp;
    let output = client.query(GetOutputInfoRequest { output: *output, config_timestamp }.serialize(opcode));
    let output: GetOutputInfoReply = wait_reply(client, output, deadline)?;
    Ok(output.name.starts_with(OUTPUT))
}

/// Returns the program and the arguments of the process that listens to the display, each with a zero byte behind it.
fn command_line(socket: &OwnedFd) -> Option<Vec<u8>> {
    let is_local = getsockname(socket).ok()?.address_family() == AddressFamily::UNIX;
    let process = is_local.then(|| socket_peercred(socket).ok()).flatten()?.pid;
    std::fs::read(format!("/proc/{process}/cmdline")).ok().filter(|command| !command.is_empty())
}

/// Returns the kind of the screen of an Xwayland whose display this command listens to.
fn kind_of(command: &[u8]) -> ScreenKind {
    let mut words = command.split(|byte| *byte == 0);
    let program = words.next().and_then(|path| path.rsplit(|byte| *byte == b'/').next());
    // A wrapper of a distribution has a longer name.
    let is_xwayland = program.is_some_and(|name| name.windows(8).any(|part| part == b"Xwayland"));
    match is_xwayland && !words.any(|word| word == b"-rootless") {
        true => ScreenKind::Desktop,
        false => ScreenKind::Rootless,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::x11::tests::Server;
    use contract::Role;
    use std::process::Command;

    #[test]
    fn the_process_that_listens_tells_a_rootful_xwayland() {
        for (command, expected) in [
            ("/usr/bin/Xwayland\0:1\0-geometry\x001280x800\0", ScreenKind::Desktop),
            ("Xwayland\0", ScreenKind::Desktop),
            ("/nix/store/x/bin/.Xwayland-wrapped\0:3\0", ScreenKind::Desktop),
            ("/usr/bin/Xwayland\0:0\0-rootless\0-listenfd\x0030\0", ScreenKind::Rootless),
            ("/usr/bin/gnome-shell\0", ScreenKind::Rootless),
            ("/usr/bin/kwin_wayland_wrapper\0--xwayland\0", ScreenKind::Rootless),
            ("sway\0", ScreenKind::Rootless),
        ] {
            assert_eq!(kind_of(command.as_bytes()), expected, "{command:?}");
        }
    }

    #[test]
    fn the_screen_of_a_rootless_xwayland_is_refused_with_the_way_out() {
        let Some(desktop) = testkit::desktop::Desktop::start("") else { return };
        for options in [&[][..], &["-rootless"]] {
            let mut xwayland = Command::new("Xwayland");
            xwayland.arg("-noreset").args(options).env("WAYLAND_DISPLAY", desktop.display());
            let Some(server) = Server::start_program(&mut xwayland, "xwayland") else { return };
            let text = format!("x11:{}", server.display);
            let (class, spec) = crate::spec::parse(&text, Role::Device).unwrap();
            let opened = class.open(&spec, Role::Device, None).map(|opened| opened.description.summary);
            let listed = class.list().into_iter().find(|listing| listing.spec == text).unwrap();
            if options.is_empty() {
                assert_eq!(opened.unwrap(), format!("x11 {}", server.display));
                assert_eq!(listed.problem, None);
                continue;
            }
            for problem in [opened.unwrap_err().to_string(), listed.problem.unwrap_or_default()] {
                assert!(problem.contains("share the desktop as `wayland`"), "{problem}");
            }
            // A window of this host may be there.
            let (class, spec) =
                crate::spec::parse(&text.replace("x11", "window"), Role::Application).unwrap();
            assert!(class.open(&spec, Role::Application, None).is_ok());
        }
    }
}
