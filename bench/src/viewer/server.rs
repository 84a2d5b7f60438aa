//! The servers of the desktop, each with the viewer that shows it.

use super::{HEIGHT, HOST_A, WIDTH};
use crate::display::{Display, Program, is_installed};
use crate::lab::Lab;
use crate::programs::beside;
use crate::setting::Failure;
use clap::ValueEnum;
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const PORT: u16 = 7845;
/// The port for the viewer.
const VIEWER_PORT: u16 = 5901;
const PATIENCE: Duration = Duration::from_secs(30);

/// A server of the desktop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Server {
    Outboard,
    Tigervnc,
    /// TigerVNC's, with a viewer that refuses JPEG
    TigervncLossless,
    Xpra,
}

/// A desktop with its server, and the command of its viewer.
pub(super) struct Served {
    pub(super) desktop: Display,
    pub(super) programs: Vec<Program>,
    pub(super) viewer: Command,
    /// The address that the viewer connects to.
    address: &'static str,
}

impl Served {
    /// Waits until the viewer can connect. A connection works across namespaces; `ss` would not.
    pub(super) fn await_port(&self, lab: &Lab) -> Result<(), Failure> {
        await_port(lab, "b", self.address, VIEWER_PORT)
    }
}

/// Waits for a port on one of the hosts.
fn await_port(lab: &Lab, host: &str, address: &str, port: u16) -> Result<(), Failure> {
    let begun = Instant::now();
    while lab.on(host, || Ok(TcpStream::connect((address, port)).is_err()))? {
        if begun.elapsed() > PATIENCE {
            return Err(format!("no program listens at {address}:{port} on host {host}").into());
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Returns true if xpra's own Python has a module.
fn has_module(name: &str) -> bool {
    let mut python = Command::new("/usr/bin/python3");
    python.args(["-c", &format!("import {name}")]).stdout(Stdio::null()).stderr(Stdio::null());
    python.status().is_ok_and(|status| status.success())
}

impl Server {
    pub(super) fn name(self) -> &'static str {
        match self {
            Server::Outboard => "outboard",
            Server::Tigervnc => "tigervnc",
            Server::TigervncLossless => "tigervnc-lossless",
            Server::Xpra => "xpra",
        }
    }

    /// Returns what is missing and how to install it, if the server cannot run here.
    pub(super) fn missing(self) -> Option<String> {
        let commands: &[(&str, &str)] = match self {
            Server::Outboard => &[("xtigervncviewer", "tigervnc-viewer")],
            Server::Tigervnc | Server::TigervncLossless => {
                &[("Xtigervnc", "tigervnc-standalone-server"), ("xtigervncviewer", "tigervnc-viewer")]
            }
            Server::Xpra => &[("xpra", "xpra")],
        };
        // Without the first, xpra's viewer shows nothing, and its package does not demand it. It recommends the others.
        let modules: &[(&str, &str)] = match self {
            Server::Xpra => &[
                ("gi._gi_cairo", "python3-gi-cairo"),
                ("lz4", "python3-lz4"),
                ("numpy", "python3-numpy"),
                ("PIL", "python3-pil"),
            ],
            _ => &[],
        };
        if let Some((command, package)) = commands.iter().find(|needed| !is_installed(needed.0)) {
            return Some(format!("there is no {command}: scripts/setup {command}:{package}"));
        }
        let (module, package) = modules.iter().find(|needed| !has_module(needed.0))?;
        Some(format!("its Python has no {module}: install {package}"))
    }

    /// Describes the server for the page.
    pub(super) fn description(self, via: Option<&str>) -> String {
        match self {
            Server::Outboard => format!(
                "`outboard share x11:DISPLAY` at an X server (Xvfb), and `outboard attach HOST/desk --as rfb:{VIEWER_PORT}` beside \
                 the viewer, with {}. The viewer connects to its own host.",
                via.map_or("the default pipeline".into(), |via| format!("the pipeline `{via}`"))
            ),
            Server::Tigervnc => "TigerVNC's X server with its own VNC server. The viewer connects over the link and accepts JPEG.".into(),
            Server::TigervncLossless => "the same with `-NoJPEG=1`, so pictures have no loss. With Outboard, the letters have none, \
                 and the film has a loss only if the link is too slow for its pixels."
                .into(),
            Server::Xpra => "`xpra start-desktop --use-display` at an X server (Xvfb) and `xpra attach tcp://HOST` with xpra's own \
                 defaults for pictures. Off: sound, notifications, discovery, a change of the desktop's size, and memory that both \
                 hosts share, as here they are one machine."
                .into(),
        }
    }

    /// Starts the desktop and its server.
    pub(super) fn start(self, lab: &Lab, via: Option<&str>) -> Result<Served, Failure> {
        match self {
            Server::Outboard => outboard(lab, via),
            Server::Tigervnc => tigervnc(lab, &[]),
            Server::TigervncLossless => tigervnc(lab, &["-NoJPEG=1"]),
            Server::Xpra => xpra(lab),
        }
    }
}

/// TigerVNC's viewer for a server at `address`.
fn tigervnc_viewer(lab: &Lab, address: &str) -> Command {
    let mut viewer = lab.program("b", "xtigervncviewer");
    viewer.args(["-FullScreen", "-RemoteResize=0", "-AlertOnFatalError=0", "-ReconnectOnError=0"]);
    viewer.arg(format!("{address}::{VIEWER_PORT}"));
    viewer
}

fn outboard(lab: &Lab, via: Option<&str>) -> Result<Served, Failure> {
    let desktop = Display::headless(WIDTH as usize, HEIGHT as usize)?;
    let outboard = beside("outboard")?.display().to_string();
    let mut share = lab.program("a", &outboard);
    share.args(["share", &format!("x11:{}", desktop.name), "--name", "desk", "--insecure"]);
    share.args(["--listen", &format!("tcp://{HOST_A}:{PORT}")]);
    share.args(via.map(|via| ["--via", via]).into_iter().flatten());
    let share = Program::start(&mut share)?;
    await_port(lab, "a", HOST_A, PORT)?;
    let mut attach = lab.program("b", &outboard);
    attach.args(["attach", &format!("tcp://{HOST_A}:{PORT}/desk"), "--insecure"]);
    let attach = Program::start(attach.args(["--as", &format!("rfb:{VIEWER_PORT}")]))?;
    let address = "127.0.0.1";
    Ok(Served { desktop, programs: vec![share, attach], viewer: tigervnc_viewer(lab, address), address })
}

fn tigervnc(lab: &Lab, viewer_options: &[&str]) -> Result<Served, Failure> {
    let desktop = Display::start(|name| {
        let mut command = lab.program("a", "Xtigervnc");
        command.args([name, "-depth", "24", "-SecurityTypes", "None", "-noreset", "-nolisten", "tcp"]);
        command.args(["-geometry", &format!("{WIDTH}x{HEIGHT}"), "-rfbport", &VIEWER_PORT.to_string()]);
        command
    })?;
    let mut viewer = tigervnc_viewer(lab, HOST_A);
    viewer.args(viewer_options);
    Ok(Served { desktop, programs: Vec::new(), viewer, address: HOST_A })
}

/// An xpra command on a host. Debian's own settings would start a session with a dialog on the desktop; xpra's do not.
fn xpra_command(lab: &Lab, host: &str, arguments: &[&str]) -> Command {
    let mut command = lab.program(host, "xpra");
    command.args(arguments).args(["--notifications=no", "--speaker=off"]);
    command.env("XPRA_SYSTEM_CONF_DIRS", "/nonexistent");
    command
}

fn xpra(lab: &Lab) -> Result<Served, Failure> {
    let desktop = Display::headless(WIDTH as usize, HEIGHT as usize)?;
    let server = ["start-desktop", &desktop.name, "--use-display", "--daemon=no", "--bind=none"];
    let mut server = xpra_command(lab, "a", &server);
    server.args(["--mdns=no", "--pulseaudio=no", "--resize-display=no"]);
    let server = Program::start(server.arg(format!("--bind-tcp={HOST_A}:{VIEWER_PORT}")))?;
    let viewer = xpra_command(lab, "b", &["attach", &format!("tcp://{HOST_A}:{VIEWER_PORT}/"), "--mmap=no"]);
    Ok(Served { desktop, programs: vec![server], viewer, address: HOST_A })
}
