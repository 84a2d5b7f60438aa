//! An unmodified viewer on one host, an X11 desktop on another, and a slow network between them: the response time to keys,
//! clicks and moves, and its bytes, through Outboard, and from the servers of TigerVNC and xpra.
//!
//! Host a has the desktop: a window manager, a terminal and, in one part, a film. Host b has a viewer, full screen, on
//! its own display: xpra's for xpra's server, TigerVNC's for the others. [`sight::Sight`] observes that display and injects events
//! there. The response to a key is a change of the viewer's pixels. All servers get the same events and the same desktop.

mod original;
mod png;
mod server;
mod sight;

use crate::display::{Canvas, Content, Display, Program, is_installed};
use crate::lab::Lab;
use crate::measure::percentile;
use crate::programs::{beside, progress};
use crate::provenance::Provenance;
use crate::setting::Failure;
use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use server::Server;
use sight::{EXACT_PATIENCE, Sight, Sign};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use wire::formats::video::Rectangle;
use wire::formats::viewer::{Event, button};

/// Size of the desktop.
const WIDTH: u32 = 1024;
const HEIGHT: u32 = 768;
/// Geometry of the terminal, and its text area.
const TERMINAL: &str = "100x40+360+60";
const TEXT: Rectangle = Rectangle { x: 362, y: 82, width: 600, height: 516 };
/// An area with the window manager's background only.
const GROUND: Rectangle = Rectangle { x: 10, y: 620, width: 330, height: 140 };
/// No area: a wait that no change extends.
const NOWHERE: Rectangle = Rectangle { x: 0, y: 0, width: 0, height: 0 };
/// Side of the film, in the upper left corner.
const FILM_SIDE: usize = 300;
/// The address of the desktop's host.
const HOST_A: &str = "10.77.0.1";
/// A change in several steps has ended after this time without a change.
const QUIET: Duration = Duration::from_millis(600);
/// The pause between two acts.
const PAUSE: Duration = Duration::from_millis(250);
const PATIENCE: Duration = Duration::from_secs(30);

/// The terminal's program: it echoes keys, and Return shows another page of letters.
const PAGES: &str = r#"n=0; while read -r line; do n=$((n+1)); clear; awk -v n=$n 'BEGIN { srand(n); for (r = 0; r < 38; r++)
{ s = ""; for (c = 0; c < 98; c++) s = s sprintf("%c", 33 + int(rand() * 90)); print s } }'; done"#;

/// The settings of `viewer`.
#[derive(Args, Debug, Clone)]
pub(crate) struct ViewerSetting {
    /// The link between the hosts, in the words of `netlab`
    #[arg(long, value_delimiter = ' ', default_value = "delay=50ms rate=10mbit")]
    link: Vec<String>,
    /// Number of keys, and again during a film; a third as many pages, clicks and moves
    #[arg(long, default_value_t = 60)]
    keys: usize,
    /// Outboard's pipeline from the desktop to the viewer [default: the default of a screen]
    #[arg(long)]
    via: Option<String>,
    /// Servers [default: all]
    #[arg(long = "server", value_delimiter = ',', value_enum)]
    servers: Vec<Server>,
    /// Measure only keys during the film, in a fifth of the time
    #[arg(long)]
    only_film: bool,
    /// The program `netlab` [default: beside this one]
    #[arg(long)]
    netlab: Option<PathBuf>,
    /// Write the page to this file
    #[arg(long)]
    page: Option<PathBuf>,
    /// Write the viewer's picture of Outboard's desktop to this file (PNG)
    #[arg(long)]
    picture: Option<PathBuf>,
}

/// Commands that every server needs, and their packages.
const NEEDED: [(&str, &str); 3] = [("Xvfb", "xvfb"), ("openbox", "openbox"), ("xterm", "xterm")];

/// A repeated act with its response times and bytes.
struct Act {
    name: &'static str,
    /// Response times, milliseconds.
    times: Vec<f64>,
    /// Bytes from the desktop's host to the viewer's host, each.
    bytes: f64,
}

/// The desktop's host and the viewer's host with their programs.
struct Desk<'a> {
    lab: &'a Lab,
    desktop: Display,
    sight: Sight,
    // Dropped before the displays.
    _programs: Vec<Program>,
    _shown: Display,
}

fn on_display(command: &mut Command, display: &Display) -> Result<Program, Failure> {
    Program::start(command.env("DISPLAY", &display.name))
}

/// Starts a window manager that shows every window on the whole display.
fn manage_full_screen(display: &Display) -> Result<Program, Failure> {
    let file = std::env::temp_dir().join(format!("outboard-viewer-{}.xml", std::process::id()));
    fs::write(&file, include_str!("full-screen.xml"))?;
    let started = display.manage(Command::new("openbox").arg("--config-file").arg(&file));
    fs::remove_file(&file)?;
    started
}

impl<'a> Desk<'a> {
    fn set_up(lab: &'a Lab, server: Server, via: Option<&str>) -> Result<Desk<'a>, Failure> {
        let name = server.name();
        let mut served = server.start(lab, via)?;
        let mut programs = std::mem::take(&mut served.programs);
        programs.push(served.desktop.manage(&mut Command::new("openbox"))?);
        let mut terminal = Command::new("xterm");
        terminal.args(["-geometry", TERMINAL, "-fn", "fixed", "-e", "sh", "-c", PAGES]);
        programs.push(on_display(&mut terminal, &served.desktop)?);
        let shown = Display::headless(WIDTH as usize, HEIGHT as usize)?;
        programs.push(manage_full_screen(&shown)?);
        served.await_port(lab)?;
        programs.push(on_display(&mut served.viewer, &shown)?);
        let desktop = served.desktop;
        let mut sight = Sight::new(&shown.name, &desktop.name)?;
        let begun = Instant::now();
        let (x, y) = (TEXT.x + 200, TEXT.y + 200);
        // Nearly white is enough: TigerVNC's server may lose quality.
        while !sight.pixel(x, y).is_some_and(|pixel| pixel.iter().all(|colour| *colour > 0xe0)) {
            let ended = programs.iter_mut().find_map(Program::end);
            if ended.is_some() || begun.elapsed() > PATIENCE {
                let why = ended.unwrap_or_else(|| "all programs run".into());
                return Err(format!("{name}: the viewer shows no terminal: {why}").into());
            }
            sight.rest(QUIET, &whole())?;
        }
        sight.act(&click(x, y, button::LEFT))?;
        sight.rest(QUIET, &whole())?;
        sight
            .time(&press(0x78), Sign::Pixel(TEXT))
            .map_err(|error| format!("{name}: no key reaches the terminal: {error}"))?;
        sight.rest(QUIET, &whole())?;
        Ok(Desk { lab, desktop, sight, _programs: programs, _shown: shown })
    }

    /// Returns the bytes that left host a.
    fn sent(&self) -> Result<f64, Failure> {
        let status = self.lab.ask(&["status"])?;
        let line = status.lines().find(|line| line.starts_with("from a: sent="));
        let bytes = line.and_then(|line| line.split("bytes=").nth(1)?.split(' ').next()?.parse().ok());
        bytes.ok_or_else(|| format!("netlab reports no sent bytes: {status}").into())
    }

    /// Repeats an act and waits for its sign each time.
    fn measure(
        &mut self,
        name: &'static str,
        count: usize,
        mut act: impl FnMut(usize) -> (Vec<Event>, Sign),
        mut undo: impl FnMut(usize) -> Vec<Event>,
    ) -> Result<Act, Failure> {
        let before = self.sent()?;
        let mut times = Vec::new();
        for number in 0..count {
            let (events, sign) = act(number);
            times.push(self.sight.time(&events, sign)?.as_secs_f64() * 1e3);
            let undo = undo(number);
            if !undo.is_empty() {
                self.sight.act(&undo)?;
                self.sight.rest(QUIET, &GROUND)?;
            }
            self.sight.rest(PAUSE, &NOWHERE)?;
        }
        let bytes = (self.sent()? - before) / count.max(1) as f64;
        Ok(Act { name, times, bytes })
    }

    /// Measures the acts at a quiet desktop.
    fn work(&mut self, keys: usize) -> Result<Vec<Act>, Failure> {
        let new_line = 0xff0d;
        let third = (keys / 3).max(1);
        let mut acts = vec![self.measure("a key, until its letter appears", keys, echo, nothing)?];
        let page = |_| (press(new_line).to_vec(), Sign::Settled(TEXT, QUIET));
        acts.push(self.measure("a page of letters, until all of it appears", third, page, nothing)?);
        let spot = |number: usize| (GROUND.x + 5 + number as u32 % 20, GROUND.y + 2);
        let menu = |number| {
            let (x, y) = spot(number);
            (click(x, y, button::RIGHT).to_vec(), Sign::Pixel(whole()))
        };
        let escape = |_| press(0xff1b).to_vec();
        acts.push(self.measure("a click, until its menu appears", third, menu, escape)?);
        let shape = |number: usize| {
            let (x, y) = if number.is_multiple_of(2) { (TEXT.x + 50, TEXT.y + 50) } else { spot(number) };
            (vec![Event::Pointer { x, y, buttons: 0 }], Sign::Cursor)
        };
        acts.push(self.measure(
            "a move, until the pointer has the new place's shape",
            third,
            shape,
            nothing,
        )?);
        Ok(acts)
    }

    /// Measures the time between two pictures of the film at the viewer, in the middle of the film.
    fn watch_film(&mut self, count: usize) -> Result<Act, Failure> {
        let middle = FILM_SIDE as u32 / 2;
        let place = Rectangle { x: middle, y: middle, width: 16, height: 16 };
        self.sight.time(&[], Sign::Pixel(place))?;
        let before = self.sent()?;
        let mut times = Vec::new();
        for _ in 0..count {
            times.push(self.sight.time(&[], Sign::Pixel(place))?.as_secs_f64() * 1e3);
        }
        let bytes = (self.sent()? - before) / count.max(1) as f64;
        Ok(Act { name: "a film, until a place in it changes again", times, bytes })
    }

    /// Measures the time until the text with a new letter has the desktop's own pixels.
    fn type_exact(&mut self, count: usize) -> Result<Act, Failure> {
        let before = self.sent()?;
        let mut times = Vec::new();
        for number in 0..count {
            let time = self.sight.time_until_exact(&echo(number).0, &TEXT)?;
            times.push(time.map_or(f64::INFINITY, |time| time.as_secs_f64() * 1e3));
            self.sight.rest(PAUSE, &NOWHERE)?;
        }
        let bytes = (self.sent()? - before) / count.max(1) as f64;
        Ok(Act { name: "a key while a film plays, until the text is exact", times, bytes })
    }

    /// Measures keys during a film, and the film.
    fn type_beside_film(&mut self, keys: usize) -> Result<Vec<Act>, Failure> {
        let (x, y) = (TEXT.x + 200, TEXT.y + 200);
        self.sight.act(&click(x, y, button::LEFT))?;
        self.sight.rest(QUIET, &whole())?;
        let stop = AtomicBool::new(false);
        let film = Content::Film.film(FILM_SIDE);
        let canvas = Canvas::open(&self.desktop.name, &film, FILM_SIDE)?;
        let acts = thread::scope(|scope| {
            let painter = scope.spawn(|| {
                let begun = Instant::now();
                for number in (1..).take_while(|_| !stop.load(Ordering::Relaxed)) {
                    canvas.paint(number)?;
                    let due = begun + Duration::from_secs_f64(f64::from(number) / film.rate_hz);
                    thread::sleep(due.saturating_duration_since(Instant::now()));
                }
                Ok::<(), Failure>(())
            });
            thread::sleep(Duration::from_secs(3));
            let act = self.measure("a key while a film plays", keys, echo, nothing);
            let acts = act.and_then(|act| Ok(vec![act, self.type_exact(keys)?, self.watch_film(keys)?]));
            stop.store(true, Ordering::Relaxed);
            painter.join().map_err(|_| "a thread panicked")??;
            acts
        })?;
        drop(canvas);
        self.sight.rest(Duration::from_secs(2), &whole())?;
        Ok(acts)
    }
}

fn whole() -> Rectangle {
    Rectangle { x: 0, y: 0, width: WIDTH, height: HEIGHT }
}

/// Returns a letter's events and its sign.
fn echo(number: usize) -> (Vec<Event>, Sign) {
    (press(0x61 + (number % 26) as u32).to_vec(), Sign::Pixel(TEXT))
}

/// Returns no events: the act needs no undoing.
fn nothing(_: usize) -> Vec<Event> {
    Vec::new()
}

fn press(keysym: u32) -> [Event; 2] {
    [true, false].map(|pressed| Event::Key { keysym, pressed })
}

fn click(x: u32, y: u32, which: u16) -> [Event; 3] {
    [0, which, 0].map(|buttons| Event::Pointer { x, y, buttons })
}

/// Formats a time in milliseconds.
fn shown(time: f64) -> String {
    match time.is_finite() {
        true => format!("{time:.0}"),
        false => format!("> {}", EXACT_PATIENCE.as_millis()),
    }
}

/// Formats the acts of all servers side by side.
fn table(servers: &[(Server, Vec<Act>)]) -> String {
    let mut text = String::from("| ");
    for (server, _) in servers {
        // Writing to a string cannot fail.
        let _ = write!(text, "| {}: p50, ms | p90, ms | bytes each ", server.name());
    }
    text += "|\n|---";
    text += &"|---:|---:|---:".repeat(servers.len());
    text += "|\n";
    let Some((_, first)) = servers.first() else { return text };
    for (number, act) in first.iter().enumerate() {
        let _ = write!(text, "| {} ", act.name);
        for act in servers.iter().filter_map(|(_, acts)| acts.get(number)) {
            let [p50, p90] = [0.5, 0.9].map(|share| percentile(&act.times, share));
            let _ = write!(text, "| {} | {} | {:.0} ", shown(p50), shown(p90), act.bytes);
        }
        text += "|\n";
    }
    text
}

/// Formats the page.
fn page(setting: &ViewerSetting, provenance: &Provenance, servers: &[(Server, Vec<Act>)]) -> String {
    let picture = setting.picture.as_deref().and_then(Path::file_name);
    let picture = picture.map_or(String::new(), |name| {
        format!("![Outboard's desktop in the viewer]({})\n\n", name.to_string_lossy())
    });
    let items = servers.iter().map(|(server, _)| {
        format!("- **{}**: {}\n", server.name(), server.description(setting.via.as_deref()))
    });
    include_str!("page.md")
        .replace("{LINK}", &setting.link.join(" "))
        .replace("{SERVERS}", &items.collect::<String>())
        .replace("{PROVENANCE}", &provenance.to_string())
        .replace("{PICTURE}", &picture)
        .replace("{TABLE}", &table(servers))
}

/// Returns the servers to measure: those that the setting names, and of these the ones that can run here.
fn chosen(setting: &ViewerSetting) -> Vec<Server> {
    let wanted = |server: &Server| setting.servers.is_empty() || setting.servers.contains(server);
    let can_run = |server: &Server| match server.missing() {
        Some(what) => {
            progress(&format!("SKIPPED viewer, {}: {what}", server.name()));
            false
        }
        None => true,
    };
    Server::value_variants().iter().copied().filter(wanted).filter(can_run).collect()
}

/// Runs `viewer`.
pub(crate) fn run(setting: &ViewerSetting) -> Result<Value, Failure> {
    if !rustix::process::geteuid().is_root() {
        progress("SKIPPED viewer: it needs root, for network namespaces");
        return Ok(json!([]));
    }
    if let Some((command, package)) = NEEDED.iter().find(|needed| !is_installed(needed.0)) {
        progress(&format!("SKIPPED viewer: there is no {command}: scripts/setup {command}:{package}"));
        return Ok(json!([]));
    }
    let provenance = Provenance::of_this_run();
    let netlab = setting.netlab.clone().map_or_else(|| beside("netlab"), Ok)?;
    let link: Vec<&str> = setting.link.iter().map(String::as_str).collect();
    let mut servers = Vec::new();
    for server in chosen(setting) {
        progress(&format!("viewer, {}", server.name()));
        let lab = Lab::up(&netlab, &link)?;
        let mut desk = Desk::set_up(&lab, server, setting.via.as_deref())?;
        let mut acts = if setting.only_film { Vec::new() } else { desk.work(setting.keys)? };
        acts.extend(desk.type_beside_film(setting.keys)?);
        if let (Some(file), Server::Outboard) = (&setting.picture, server) {
            fs::write(file, png::encode(desk.sight.width as u32, &desk.sight.pixels)?)
                .map_err(|error| format!("cannot write {}: {error}", file.display()))?;
        }
        servers.push((server, acts));
    }
    print!("{}", table(&servers));
    if let Some(file) = &setting.page {
        fs::write(file, page(setting, &provenance, &servers))
            .map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    }
    let rows = servers.iter().flat_map(|(server, acts)| {
        acts.iter().map(move |act| {
            let [p50, p90, p99] = [0.5, 0.9, 0.99].map(|share| percentile(&act.times, share));
            json!({
                "experiment": "viewer", "params": {"server": server.name(), "act": act.name, "bytes": act.bytes, "p90": p90},
                "unit": "ms", "ours": act.times.iter().sum::<f64>() / act.times.len().max(1) as f64,
                "bare": null, "paper": null, "runs": act.times.len(), "p50": p50, "p99": p99,
            })
        })
    });
    Ok(Value::Array(rows.collect()))
}
