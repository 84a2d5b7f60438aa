//! A device of each class and its application, with a continuous flow of units between them.

use super::camera::{self, Scene};
use super::count::{Count, Tally};
use super::port::{End, Port, Written, fifo, keyboard, serial_port};
use super::unit::{Reader, Unit};
use crate::programs::{progress, run};
use crate::setting::Failure;
use clap::ValueEnum;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use sys::input::code::EV_KEY;
use sys::input::{Bits, evdev};

const READ_BYTES: usize = 64 << 10;
/// The longest wait for the application's node.
const PATIENCE: Duration = Duration::from_secs(10);
/// The time in which drivers pass on the last units.
const DRAIN: Duration = Duration::from_millis(100);
/// The shortest time of a number before a camera: longer than the interval of pictures.
const SHOWN_MIN: Duration = Duration::from_millis(120);

/// A class of devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Class {
    /// A serial port (a pseudo-terminal), lines both streams
    Serial,
    /// A file that grows, lines
    File,
    /// A film, frames
    Video,
    /// A keyboard, keys that go down and up (needs `/dev/uinput`)
    Input,
    /// A camera, pictures (needs the kernel's vivid, and v4l2loopback)
    Camera,
}

impl Class {
    /// All classes.
    pub(crate) const EVERY: [Class; 5] =
        [Class::Input, Class::Camera, Class::Serial, Class::Video, Class::File];

    /// Returns the reason if the class is not available on this machine.
    pub(crate) fn is_possible(self) -> Result<(), &'static str> {
        match self {
            Class::Input if !Path::new("/dev/uinput").exists() => {
                Err("this kernel has no uinput: `lab/vm` boots one with it")
            }
            Class::Camera if camera::vivid().is_none() || camera::loopback().is_none() => {
                Err("vivid and v4l2loopback are not loaded: `lab/vm` has both")
            }
            _ => Ok(()),
        }
    }

    /// Returns the unit of the class.
    pub(crate) fn unit(self) -> Unit {
        match self {
            Class::Serial | Class::File => Unit::Line,
            Class::Video => Unit::Frame,
            Class::Input => Unit::Report,
            Class::Camera => Unit::Shade,
        }
    }

    /// Returns true if the class's flow is a state: late messages are dropped, and a snapshot follows.
    pub(crate) fn is_state(self) -> bool {
        self == Class::Input
    }
}

/// Finds the event node in the event `attached`.
fn event_node(attached: &str) -> Result<PathBuf, Failure> {
    let node = attached.split([' ', ',', ')']).find(|word| word.starts_with("/dev/input/event"));
    node.map(PathBuf::from).ok_or_else(|| format!("there is no event node in {attached:?}").into())
}

/// One direction: a thread that creates units and one that counts them.
struct Stream {
    count: Arc<Mutex<Count>>,
    maker: JoinHandle<()>,
    watcher: JoinHandle<()>,
}

/// Signals to the threads of all streams.
#[derive(Default)]
struct Signals {
    pause: AtomicBool,
    /// Send the header again.
    restart: AtomicBool,
    stop_making: AtomicBool,
    stop_watching: AtomicBool,
}

fn lock(count: &Mutex<Count>) -> MutexGuard<'_, Count> {
    count.lock().unwrap_or_else(PoisonError::into_inner)
}

fn make(unit: Unit, to: &Port, count: &Mutex<Count>, signals: &Signals) {
    let mut head = unit.head();
    let mut due = Instant::now();
    while !signals.stop_making.load(Ordering::Relaxed) {
        if let Some(number) = make_number(count, signals) {
            if signals.restart.swap(false, Ordering::Relaxed) {
                head = unit.head();
            }
            let bytes = [head.as_slice(), &unit.bytes(number)].concat();
            match to.write(&bytes, &signals.stop_making) {
                Written::Nothing => lock(count).unmake(),
                Written::All | Written::Part => head.clear(),
            }
        }
        let now = Instant::now();
        // A number must stay before a camera for a while, or it is in no picture.
        let since = if unit == Unit::Shade { now } else { due };
        due = (since + Duration::from_secs_f64(1.0 / unit.rate_hz())).max(now);
        if unit == Unit::Shade {
            thread::sleep(SHOWN_MIN);
        }
        // `make_now` ends the wait.
        thread::park_timeout(due.saturating_duration_since(Instant::now()));
    }
}

/// Returns the number of the next unit, unless the flow is paused. The unit is recorded before it is written, since it may
/// arrive at once.
fn make_number(count: &Mutex<Count>, signals: &Signals) -> Option<u64> {
    let mut count = lock(count);
    let number = (!signals.pause.load(Ordering::Relaxed)).then(|| count.next())?;
    count.make();
    Some(number)
}

fn watch(unit: Unit, from: &Port, count: &Mutex<Count>, signals: &Signals) {
    let mut reader = Reader::new(unit);
    let mut bytes = vec![0; READ_BYTES];
    while !signals.stop_watching.load(Ordering::Relaxed) {
        let Some(length) = from.read(&mut bytes) else {
            reader = Reader::new(unit);
            continue;
        };
        for number in reader.read(&bytes[..length]) {
            match number {
                Ok(number) => {
                    let mut count = lock(count);
                    let number = unit.newest(number, count.next());
                    count.see(number);
                }
                Err(piece) => lock(count).see_torn(piece),
            }
        }
        lock(count).overrun(reader.take_overruns());
    }
}

impl Stream {
    fn start(unit: Unit, from: &Arc<Port>, to: &Arc<Port>, signals: &Arc<Signals>) -> Stream {
        let count = Arc::<Mutex<Count>>::default();
        let (made, source, by) = (count.clone(), from.clone(), signals.clone());
        let maker = thread::spawn(move || make(unit, &source, &made, &by));
        let (seen, sink, by) = (count.clone(), to.clone(), signals.clone());
        let watcher = thread::spawn(move || watch(unit, &sink, &seen, &by));
        Stream { count, maker, watcher }
    }
}

/// The result of a subject.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ended {
    pub(crate) tally: Tally,
    /// Keys whose state differs from the device's.
    pub(crate) stuck: u64,
    /// Number of times that the application lost its node.
    pub(crate) node_losses: u64,
    /// Number of overruns that the kernel reported to the application.
    pub(crate) overruns: u64,
    /// Number of gaps in the units.
    pub(crate) gaps: u64,
}

/// A device and its application with the streams between them.
pub(crate) struct Subject {
    class: Class,
    /// The permanent path of the device.
    device: PathBuf,
    hardware: Arc<Port>,
    application: Arc<Port>,
    /// The path of the application's node, if it is on this machine.
    out: Option<PathBuf>,
    streams: Vec<Stream>,
    signals: Arc<Signals>,
    /// The open node of the device: the kernel keeps unread data and returns the keys' state.
    node: Option<fs::File>,
}

/// A device before it is shared.
pub(crate) struct Made {
    class: Class,
    /// Specification of the device and of the application side.
    pub(crate) shared: String,
    pub(crate) used: String,
    device: PathBuf,
    hardware: End,
    node: Option<fs::File>,
    /// The path of the application's node; a keyboard's is in the event `attached`.
    pub(crate) out: PathBuf,
}

/// Opens the application's node. `attached` is the event's node, `out` the requested path. Returns the port and the path.
pub(crate) fn open_application(class: Class, attached: &str, out: &Path) -> Result<(Port, PathBuf), Failure> {
    let out = if class == Class::Input { event_node(attached)? } else { out.to_path_buf() };
    let begun = Instant::now();
    while !out.exists() {
        if begun.elapsed() > PATIENCE {
            return Err(format!("there is no {}", out.display()).into());
        }
        thread::sleep(Duration::from_millis(5));
    }
    let port = match class {
        // The node is a camera once a worker has opened it.
        Class::Camera => patiently(&out, Port::view)?,
        _ => Port::application(&out)?,
    };
    Ok((port, out))
}

impl Made {
    /// Creates the device. Its application writes to a `Disk` below `directory`.
    pub(crate) fn new(class: Class, directory: &Path) -> Result<Made, Failure> {
        let (device, mut out) = (directory.join("in"), directory.join("disk/out"));
        let (hardware, node) = match class {
            Class::File | Class::Video => (fifo(&device)?, None),
            Class::Serial | Class::Input | Class::Camera => {
                plug(class, &device).map(|(hardware, node)| (hardware, Some(node)))?
            }
        };
        let shown = device.display();
        let (shared, used) = match class {
            Class::Serial => {
                out = directory.join("tty");
                (format!("serial:{shown}"), format!("pty:{}", out.display()))
            }
            Class::File => {
                (format!("file:{shown},frame=line"), format!("file:{},frame=line,append=true", out.display()))
            }
            Class::Video => (format!("y4m:{shown},rate=0"), format!("y4m:{}", out.display())),
            Class::Input => (format!("evdev:{}", fs::read_link(&device)?.display()), "uinput".into()),
            Class::Camera => {
                let name = fs::read_link(&device)?;
                out = camera::loopback().ok_or("there is no v4l2loopback")?;
                let ((width, height), rate) = (camera::SIZE, camera::RATE_HZ);
                (
                    format!("v4l2:{},size={width}x{height},rate={rate},pixels=GREY", name.display()),
                    format!("v4l2:{}", out.display()),
                )
            }
        };
        Ok(Made { class, shared, used, device, hardware, node, out })
    }

    /// Starts the flow of units after share and attach. `attached` is the event's node.
    pub(crate) fn begin(self, attached: &str) -> Result<Subject, Failure> {
        let (application, out) = open_application(self.class, attached, &self.out)?;
        Ok(self.flow(application, Some(out)))
    }

    /// Starts the flow of units to an application on another machine. `application` reads its output.
    pub(crate) fn begin_far(self, application: Port) -> Subject {
        self.flow(application, None)
    }

    fn flow(self, application: Port, out: Option<PathBuf>) -> Subject {
        let Made { class, device, hardware, node, .. } = self;
        let (hardware, application) = (Arc::new(Port::hardware(hardware)), Arc::new(application));
        let signals = Arc::<Signals>::default();
        let unit = class.unit();
        let mut streams = vec![Stream::start(unit, &hardware, &application, &signals)];
        if class == Class::Serial {
            streams.push(Stream::start(unit, &application, &hardware, &signals));
        }
        Subject { class, device, hardware, application, out, streams, signals, node }
    }
}

impl Subject {
    pub(crate) fn class(&self) -> Class {
        self.class
    }

    /// Creates the next unit now, or after the shortest time of the current one.
    pub(crate) fn make_now(&self) {
        self.streams.iter().for_each(|stream| stream.maker.thread().unpark());
    }

    /// Pauses the flow until [`Subject::plug`] or [`Subject::resume`]. Returns true if all units arrived in time.
    pub(crate) fn pause(&self, patience: Duration) -> bool {
        // The lock of a count separates the units that are recorded before the pause from those that are not made.
        self.signals.pause.store(true, Ordering::Relaxed);
        let begun = Instant::now();
        let is_complete = || self.streams.iter().all(|stream| lock(&stream.count).is_complete());
        while begun.elapsed() < patience && !is_complete() {
            thread::sleep(Duration::from_millis(5));
        }
        is_complete()
    }

    /// Resumes the flow.
    pub(crate) fn resume(&self) {
        self.signals.pause.store(false, Ordering::Relaxed);
    }

    /// Unplugs the device after its units have been read.
    pub(crate) fn unplug(&mut self) -> Result<(), Failure> {
        self.pause(PATIENCE);
        self.hardware.set(None);
        match (self.class, &self.node) {
            // An open node would keep the camera away.
            (Class::Camera, Some(node)) => camera::disconnect(node)?,
            _ => self.node = None,
        }
        // The link may be gone already.
        let _ = fs::remove_file(&self.device);
        Ok(())
    }

    /// Restarts the source with its host: a film starts again from its header.
    pub(crate) fn restart_source(&mut self) -> Result<(), Failure> {
        if self.class == Class::Video {
            self.signals.pause.store(true, Ordering::Relaxed);
            thread::sleep(DRAIN);
            fs::remove_file(&self.device)?;
            self.hardware.set(Some(fifo(&self.device)?));
            self.signals.restart.store(true, Ordering::Relaxed);
            self.resume();
        }
        Ok(())
    }

    /// Plugs the device in again at its path.
    pub(crate) fn plug(&mut self) -> Result<(), Failure> {
        self.node = None;
        let (hardware, node) = plug(self.class, &self.device)?;
        self.hardware.set(Some(hardware));
        self.node = Some(node);
        self.resume();
        Ok(())
    }

    /// Returns the time by which units created after `since` had arrived in each direction.
    pub(crate) fn made_after_came(&self, since: Instant) -> Option<Instant> {
        let came: Option<Vec<Instant>> =
            self.streams.iter().map(|stream| lock(&stream.count).first_made_after(since)).collect();
        came?.into_iter().max()
    }

    /// Stops creating units, waits for those on their stream, and counts.
    pub(crate) fn end(&mut self, patience: Duration) -> Result<Ended, Failure> {
        self.signals.stop_making.store(true, Ordering::Relaxed);
        let begun = Instant::now();
        let mut watchers = Vec::new();
        let mut counts = Vec::new();
        for stream in std::mem::take(&mut self.streams) {
            // A panic has been printed.
            let _ = stream.maker.join();
            watchers.push(stream.watcher);
            counts.push(stream.count);
        }
        while begun.elapsed() < patience && !counts.iter().all(|count| lock(count).is_complete()) {
            thread::sleep(Duration::from_millis(5));
        }
        // Repeated units may arrive late.
        thread::sleep(DRAIN);
        self.signals.stop_watching.store(true, Ordering::Relaxed);
        for watcher in watchers {
            let _ = watcher.join();
        }
        let torn = counts.iter().filter_map(|count| lock(count).first_torn());
        torn.for_each(|torn| progress(&format!("the first torn unit: {torn}")));
        let stuck = match (self.class, &self.out) {
            (Class::Input, Some(out)) => self.stuck(&pressed(&fs::File::open(out)?)?)?,
            _ => 0,
        };
        let tally = counts.iter().fold(Tally::default(), |sum, count| sum.and(lock(count).tally()));
        let overruns = counts.iter().map(|count| lock(count).overruns()).sum();
        let gaps = counts.iter().map(|count| lock(count).gaps()).sum();
        Ok(Ended { gaps, tally, stuck, node_losses: self.application.losses(), overruns })
    }

    /// Returns the number of keys that are pressed on one side only.
    pub(crate) fn stuck(&self, there: &Bits) -> Result<u64, Failure> {
        let here = pressed(self.node.as_ref().ok_or("it is no keyboard")?)?;
        Ok((here.without(there).len() + there.without(&here).len()) as u64)
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        self.signals.stop_making.store(true, Ordering::Relaxed);
        self.signals.stop_watching.store(true, Ordering::Relaxed);
        for stream in std::mem::take(&mut self.streams) {
            let _ = stream.maker.join();
            let _ = stream.watcher.join();
        }
    }
}

/// Creates a device that can be unplugged, with a permanent link to its node. Returns the hardware and the open node.
fn plug(class: Class, name: &Path) -> Result<(End, fs::File), Failure> {
    let (hardware, port) = match class {
        Class::Input => keyboard().map(|(end, port)| (Some(end), port))?,
        Class::Camera => (None, camera::vivid().ok_or("there is no vivid")?),
        _ => serial_port().map(|(end, port)| (Some(end), port))?,
    };
    // The kernel may need a moment to create the node.
    let node = patiently(&port, |port| fs::File::options().read(true).write(true).open(port))?;
    std::os::unix::fs::symlink(port, name)?;
    let hardware = match hardware {
        Some(hardware) => hardware,
        None => End::Scene(Scene::new(node.try_clone()?)?),
    };
    Ok((hardware, node))
}

/// Opens a file that may not exist yet.
fn patiently<T>(path: &Path, open: impl Fn(&Path) -> io::Result<T>) -> Result<T, Failure> {
    let begun = Instant::now();
    loop {
        match open(path) {
            Ok(end) => return Ok(end),
            Err(error) if begun.elapsed() > PATIENCE => {
                return Err(format!("{}: {error}", path.display()).into());
            }
            Err(_) => thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// Returns the pressed keys.
pub(crate) fn pressed(keyboard: &fs::File) -> io::Result<Bits> {
    evdev::state(keyboard.as_fd(), EV_KEY)
}

/// A small disk for the application.
pub(crate) struct Disk {
    path: PathBuf,
}

impl Disk {
    const ROOM: &str = "size=256m";

    pub(crate) fn mount(directory: &Path) -> Result<Disk, Failure> {
        let path = directory.join("disk");
        fs::create_dir_all(&path)?;
        run("mount", &["-t", "tmpfs", "-o", Disk::ROOM, "disk", &path.display().to_string()])?;
        Ok(Disk { path })
    }

    /// Fills the disk or empties it.
    pub(crate) fn fill(&self, full: bool) -> Result<(), Failure> {
        let remount =
            |size: &str| run("mount", &["-o", &format!("remount,{size}"), &self.path.display().to_string()]);
        if !full {
            return remount(Disk::ROOM);
        }
        loop {
            let used_kib = self.used_kib()?;
            match remount(&format!("size={used_kib}k")) {
                // The kernel refuses a size below the used one.
                Err(_) if self.used_kib()? > used_kib => {}
                done => return done,
            }
        }
    }

    fn used_kib(&self) -> Result<u64, Failure> {
        let used = rustix::fs::statvfs(&self.path)?;
        Ok((used.f_blocks - used.f_bfree) * used.f_frsize / 1024)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // A busy disk is unmounted with its last user.
        let _ = Command::new("umount").arg("-l").arg(&self.path).status();
    }
}
