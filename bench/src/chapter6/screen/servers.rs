//! The programs that serve the far host's screen.

use super::super::network::{Far, Network};
use super::super::setting::{Block, Carrier};
use super::receive::{self, Looker, Seen, gauge};
use crate::display::{self, Canvas, Display, Film, PIXEL_BYTES};
use crate::setting::{Failure, be_like_a_worker};
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Outboard's pipeline of the compressed row.
pub(crate) const COMPRESSED: &str = "compress(zstd, level=1)";
/// Pictures that the painter is ahead of the newest that arrived.
const AHEAD: u32 = 2;
/// A picture that does not arrive in this time was skipped, and the painter continues.
const SKIPPED: Duration = Duration::from_millis(200);
/// The most time that a server may take to start.
const PATIENCE: Duration = Duration::from_secs(15);
/// The rate setting of GStreamer and of the fastest TigerVNC: more than either reaches.
const MOST_HZ: &str = "1000";

/// The kind of a program.
enum Kind {
    /// One loop that paints, captures and writes to a plain socket.
    Bare,
    Outboard {
        pipeline: String,
        carrier: Carrier,
    },
    /// Outboard with its own RFB server on this host and a viewer of this encoding.
    OutboardRfb {
        encoding: &'static str,
    },
    Gstreamer,
    Tigervnc {
        encoding: &'static str,
        rate_hz: &'static str,
    },
    X11vnc {
        encoding: &'static str,
    },
}

/// A program of the tables.
pub(super) struct Program {
    pub(super) name: &'static str,
    /// True if every size is measured, not only the largest.
    pub(super) shows_every_size: bool,
    kind: Kind,
}

/// Returns all programs. `compressed` is the pipeline of Outboard's compressed row.
pub(super) fn programs(compressed: &str) -> Vec<Program> {
    let program = |name, shows_every_size, kind| Program { name, shows_every_size, kind };
    let outboard = |pipeline: &str, carrier| Kind::Outboard { pipeline: pipeline.into(), carrier };
    let tigervnc = |encoding, rate_hz| Kind::Tigervnc { encoding, rate_hz };
    vec![
        program("bare", true, Kind::Bare),
        program("outboard", true, outboard("", Carrier::Tcp)),
        program("outboard quic", true, outboard("", Carrier::Sealed)),
        program("outboard compressed", true, outboard(compressed, Carrier::Tcp)),
        program("outboard rfb raw", false, Kind::OutboardRfb { encoding: "raw" }),
        program("outboard rfb tight", false, Kind::OutboardRfb { encoding: "tight" }),
        program("gstreamer", false, Kind::Gstreamer),
        program("tigervnc raw", false, tigervnc("raw", "60")),
        program("tigervnc zrle", false, tigervnc("zrle", "60")),
        program("tigervnc tight", true, tigervnc("tight", "60")),
        program("tigervnc raw, rate 1000", true, tigervnc("raw", MOST_HZ)),
        program("tigervnc zrle, rate 1000", false, tigervnc("zrle", MOST_HZ)),
        program("tigervnc tight, rate 1000", true, tigervnc("tight", MOST_HZ)),
        program("x11vnc raw", false, Kind::X11vnc { encoding: "raw" }),
        program("x11vnc zrle", false, Kind::X11vnc { encoding: "zrle" }),
        program("x11vnc tight", false, Kind::X11vnc { encoding: "tight" }),
    ]
}

/// Returns an unused address of the far host.
fn free_address(network: &Network) -> Result<SocketAddr, Failure> {
    network.on(1, || Ok(TcpListener::bind((network.address(), 0))?.local_addr()?))
}

/// Paints until the receiver stops: [`AHEAD`] of the newest picture that arrived, or at a film's rate.
fn paint(canvas: &Canvas, rate_hz: f64, seen: Receiver<u32>) -> Result<(), Failure> {
    let (begun, mut newest) = (Instant::now(), 0);
    for number in 1.. {
        canvas.paint(number)?;
        let due = (rate_hz > 0.0).then(|| begun + Duration::from_secs_f64(f64::from(number) / rate_hz));
        while due.is_some() || number >= newest + AHEAD {
            let left = due.map_or(SKIPPED, |due| due.saturating_duration_since(Instant::now()));
            match seen.recv_timeout(left) {
                Ok(number) => newest = number,
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
    }
    Ok(())
}

impl Program {
    /// Returns the commands that the program needs and their packages.
    pub(super) fn needs(&self) -> Vec<(&'static str, &'static str)> {
        let headless = ("Xvfb", "xvfb");
        match self.kind {
            Kind::Bare | Kind::Outboard { .. } | Kind::OutboardRfb { .. } => vec![headless],
            Kind::Gstreamer => vec![headless, ("gst-launch-1.0", "gstreamer1.0-tools")],
            Kind::Tigervnc { .. } => vec![("Xtigervnc", "tigervnc-standalone-server")],
            Kind::X11vnc { .. } => vec![headless, ("x11vnc", "x11vnc")],
        }
    }

    /// Shows a film until the block is complete.
    pub(super) fn run(
        &self,
        network: &Network,
        film: &Film,
        side: usize,
        block: &Block,
    ) -> Result<Seen, Failure> {
        let address = free_address(network)?;
        let display = network.on(1, || self.display(address, side))?;
        let canvas = network.on(1, || Canvas::open(&display.name, film, side))?;
        let serving = Arc::new(self.serve(network, display, address)?);
        let used = serving.clone();
        let cpu_ns = move || sys::clock::process_cpu_ns() + used.cpu_ns();
        if matches!(self.kind, Kind::Bare) {
            let [near, far] = network.pair()?;
            let looker = Looker::new(side, block, None, Box::new(cpu_ns));
            return thread::scope(|scope| {
                scope.spawn(|| network.on(1, || send(&canvas, film.rate_hz, side, far)));
                network.here(|| receive::frames(near, looker))
            });
        }
        let (painter, seen) = channel();
        let looker = Looker::new(side, block, Some(painter), Box::new(cpu_ns));
        thread::scope(|scope| {
            // The painter stops when the looker is dropped.
            let canvas = &canvas;
            scope.spawn(move || network.on(1, move || paint(canvas, film.rate_hz, seen)));
            match &self.kind {
                Kind::Outboard { pipeline, carrier } => {
                    let far = serving.far.as_ref().ok_or("the screen is not shared")?;
                    let (results, all) = channel();
                    let screen = Box::new(receive::Screen::new(looker, *carrier, results));
                    network.attach_screen(far, (*carrier, gauge(*carrier)), pipeline, screen, &all)
                }
                Kind::OutboardRfb { encoding } => {
                    let far = serving.far.as_ref().ok_or("the screen is not shared")?;
                    let address = network.here(|| Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?))?;
                    network.attach_screen_as(far, "", &format!("rfb:{address}"), || {
                        drop(reach(network, address)?);
                        network.here(|| receive::rfb(address, encoding, looker))
                    })
                }
                Kind::Tigervnc { encoding, .. } | Kind::X11vnc { encoding } => {
                    drop(reach(network, address)?);
                    network.here(|| receive::rfb(address, encoding, looker))
                }
                Kind::Bare | Kind::Gstreamer => {
                    let socket = reach(network, address)?;
                    network.here(|| receive::frames(socket, looker))
                }
            }
        })
    }

    /// Starts the X server. TigerVNC has its own.
    fn display(&self, address: SocketAddr, side: usize) -> Result<Display, Failure> {
        let Kind::Tigervnc { rate_hz, .. } = self.kind else { return Display::headless(side, side) };
        Display::start(|name| {
            let mut command = Command::new("Xtigervnc");
            command.args([name, "-depth", "24", "-SecurityTypes", "None", "-noreset", "-nolisten", "tcp"]);
            command.args(["-geometry", &format!("{side}x{side}"), "-FrameRate", rate_hz]);
            command.args(["-rfbport", &address.port().to_string(), "-AlwaysShared"]);
            command
        })
    }

    /// Starts the program that serves the display. TigerVNC's X server needs none.
    fn serve(&self, network: &Network, display: Display, address: SocketAddr) -> Result<Serving, Failure> {
        let (host, port) = (address.ip().to_string(), address.port().to_string());
        let (mut far, mut command) = (None, None);
        match &self.kind {
            Kind::Bare | Kind::Tigervnc { .. } => {}
            Kind::Outboard { pipeline, .. } => far = Some(network.share_screen(&display.name, pipeline)?),
            Kind::OutboardRfb { .. } => far = Some(network.share_screen(&display.name, "")?),
            Kind::Gstreamer => {
                let source = format!("display-name={}", display.name);
                let rate = format!("video/x-raw,framerate={MOST_HZ}/1");
                let (host, port) = (format!("host={host}"), format!("port={port}"));
                let launch = command.insert(Command::new("gst-launch-1.0"));
                launch.args(["-q", "ximagesrc", &source, "use-damage=false", "show-pointer=false", "!"]);
                launch.args([&rate, "!", "tcpserversink", "sync=false", &host, &port]);
                // The newest frame is sent, as by all other programs here.
                launch.args(["buffers-soft-max=2", "recover-policy=latest"]);
            }
            Kind::X11vnc { .. } => {
                let serve = command.insert(Command::new("x11vnc"));
                serve.args(["-display", &display.name, "-listen", &host, "-rfbport", &port]);
                serve.args(["-nopw", "-forever", "-shared", "-quiet", "-wait", "1", "-defer", "1"]);
            }
        }
        let start = |command: &mut Command| network.on(1, || display::Program::start(command));
        Ok(Serving { server: command.as_mut().map(start).transpose()?, display, far })
    }
}

/// The programs of the far host while it shows a film.
struct Serving {
    // In the order of their drop.
    far: Option<Far>,
    server: Option<display::Program>,
    display: Display,
}

impl Serving {
    fn cpu_ns(&self) -> u64 {
        self.display.program.cpu_ns()
            + self.server.as_ref().map_or(0, display::Program::cpu_ns)
            + self.far.as_ref().map_or(0, Far::cpu_ns)
    }
}

/// Connects to a server that may still be starting.
fn reach(network: &Network, address: SocketAddr) -> Result<TcpStream, Failure> {
    let begun = Instant::now();
    loop {
        match network.here(|| Ok(TcpStream::connect(address)?)) {
            Ok(socket) => return Ok(socket),
            Err(error) if begun.elapsed() > PATIENCE => return Err(error),
            Err(_) => thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// The bare program: paints, captures and sends until the receiver closes the connection.
fn send(canvas: &Canvas, rate_hz: f64, side: usize, mut socket: TcpStream) -> Result<(), Failure> {
    be_like_a_worker();
    let mut frame = vec![0; side * side * PIXEL_BYTES];
    let begun = Instant::now();
    for number in 1.. {
        canvas.paint(number)?;
        canvas.capture(&mut frame)?;
        if socket.write_all(&frame).is_err() {
            break;
        }
        if rate_hz > 0.0 {
            let due = begun + Duration::from_secs_f64(f64::from(number) / rate_hz);
            thread::sleep(due.saturating_duration_since(Instant::now()));
        }
    }
    Ok(())
}
