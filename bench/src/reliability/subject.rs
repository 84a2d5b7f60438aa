//! A device of each class, and an application: units go from one to the other all the time.

use super::camera::{self, Scene};
use super::count::{Count, Tally};
use super::port::{End, Port, Written, fifo, keyboard, serial_port};
use super::unit::{Reader, Unit};
use crate::Failure;
use crate::chapter6::progress;
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
/// Longest wait for the application's node.
const PATIENCE: Duration = Duration::from_secs(10);
/// For what is in a driver's hands when nothing more is made.
const DRAIN: Duration = Duration::from_millis(100);
/// How long a camera is shown a number at least: longer than it takes a picture.
const SHOWN_MIN: Duration = Duration::from_millis(120);

/// What kind of device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Class {
    /// A serial port (a pseudo-terminal), lines both ways
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
    /// All.
    pub(crate) const EVERY: [Class; 5] =
        [Class::Input, Class::Camera, Class::Serial, Class::Video, Class::File];

    /// Whether such devices can be made here, or why not.
    pub(crate) fn is_possible(self) -> Result<(), &'static str> {
        match self {
            Class::Input if !Path::new("/dev/uinput").exists() => {
                Err("this kernel has no uinput; `lab/vm` boots one that has")
            }
            Class::Camera if camera::vivid().is_none() || camera::loopback().is_none() => {
                Err("vivid and v4l2loopback are not loaded; `lab/vm` has both")
            }
            _ => Ok(()),
        }
    }

    /// What such a device makes.
    pub(crate) fn unit(self) -> Unit {
        match self {
            Class::Serial | Class::File => Unit::Line,
            Class::Video => Unit::Frame,
            Class::Input => Unit::Report,
            Class::Camera => Unit::Shade,
        }
    }

    /// Whether its flow is a state: what is late is dropped, and where things stand is told anew.
    pub(crate) fn is_state(self) -> bool {
        self == Class::Input
    }
}

/// The event node in what `attach` says of an application.
fn event_node(told: &str) -> Result<PathBuf, Failure> {
    let node = told.split([' ', ',', ')']).find(|word| word.starts_with("/dev/input/event"));
    node.map(PathBuf::from).ok_or_else(|| format!("there is no event node in {told:?}").into())
}

/// One way: who makes units and who counts them.
struct Way {
    count: Arc<Mutex<Count>>,
    maker: JoinHandle<()>,
    watcher: JoinHandle<()>,
}

/// What the threads of all ways are told.
#[derive(Default)]
struct Told {
    pause: AtomicBool,
    begin_anew: AtomicBool,
    make_no_more: AtomicBool,
    watch_no_more: AtomicBool,
}

fn lock(count: &Mutex<Count>) -> MutexGuard<'_, Count> {
    count.lock().unwrap_or_else(PoisonError::into_inner)
}

fn make(unit: Unit, to: &Port, count: &Mutex<Count>, told: &Told) {
    let mut head = unit.head();
    let mut due = Instant::now();
    while !told.make_no_more.load(Ordering::Relaxed) {
        if !told.pause.load(Ordering::Relaxed) {
            if told.begin_anew.swap(false, Ordering::Relaxed) {
                head = unit.head();
            }
            let number = lock(count).next();
            let bytes = [head.as_slice(), &unit.bytes(number)].concat();
            // Counted before it is written, or it might be seen before it was made.
            lock(count).make();
            match to.write(&bytes, &told.make_no_more) {
                Written::Nothing => lock(count).unmake(),
                Written::All | Written::Part => head.clear(),
            }
        }
        let now = Instant::now();
        // What a camera is shown must stand for a while, or it is in no picture.
        let since = if unit == Unit::Shade { now } else { due };
        due = (since + Duration::from_secs_f64(1.0 / unit.rate_hz())).max(now);
        if unit == Unit::Shade {
            thread::sleep(SHOWN_MIN);
        }
        // Or until the next is to be made at once.
        thread::park_timeout(due.saturating_duration_since(Instant::now()));
    }
}

fn watch(unit: Unit, from: &Port, count: &Mutex<Count>, told: &Told) {
    let mut reader = Reader::new(unit);
    let mut bytes = vec![0; READ_BYTES];
    while !told.watch_no_more.load(Ordering::Relaxed) {
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

impl Way {
    fn start(unit: Unit, from: &Arc<Port>, to: &Arc<Port>, told: &Arc<Told>) -> Way {
        let count = Arc::<Mutex<Count>>::default();
        let (made, source, by) = (count.clone(), from.clone(), told.clone());
        let maker = thread::spawn(move || make(unit, &source, &made, &by));
        let (seen, sink, by) = (count.clone(), to.clone(), told.clone());
        let watcher = thread::spawn(move || watch(unit, &sink, &seen, &by));
        Way { count, maker, watcher }
    }
}

/// What came of all that was made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ended {
    pub(crate) tally: Tally,
    /// Keys that are not as they are at the device.
    pub(crate) stuck: u64,
    /// How often the application lost its node.
    pub(crate) node_losses: u64,
    /// How often the kernel told the application that it read too late.
    pub(crate) overruns: u64,
    /// In how many places units are missing.
    pub(crate) gaps: u64,
}

/// The device, the application, and what goes on between them.
pub(crate) struct Subject {
    class: Class,
    /// Its name, which stays.
    device: PathBuf,
    hardware: Arc<Port>,
    application: Arc<Port>,
    /// Where the application has it, if that is on this machine.
    out: Option<PathBuf>,
    ways: Vec<Way>,
    told: Arc<Told>,
    /// The device's node, open, so that the kernel keeps what nobody reads, and tells where keys are.
    node: Option<fs::File>,
}

/// A device that nobody shares yet.
pub(crate) struct Made {
    class: Class,
    /// The device, as it is shared, and the application, as it is attached.
    pub(crate) shared: String,
    pub(crate) used: String,
    device: PathBuf,
    hardware: End,
    node: Option<fs::File>,
    /// Where the application has it; a keyboard's is told by who made it.
    pub(crate) out: PathBuf,
}

/// Opens what `attach` made, as an application does; `told` is what it says of that, `out` where it was to be. And where it is.
pub(crate) fn open_application(class: Class, told: &str, out: &Path) -> Result<(Port, PathBuf), Failure> {
    let out = if class == Class::Input { event_node(told)? } else { out.to_path_buf() };
    let begun = Instant::now();
    while !out.exists() {
        if begun.elapsed() > PATIENCE {
            return Err(format!("there is no {}", out.display()).into());
        }
        thread::sleep(Duration::from_millis(5));
    }
    let port = match class {
        // It is a camera to others once a worker has it.
        Class::Camera => patiently(&out, Port::view)?,
        _ => Port::application(&out)?,
    };
    Ok((port, out))
}

impl Made {
    /// Makes the device. A `Disk` below `directory` is where its application writes.
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

    /// Has units flow, once it is shared and attached; `told` is what `attach` says of the application.
    pub(crate) fn begin(self, told: &str) -> Result<Subject, Failure> {
        let (application, out) = open_application(self.class, told, &self.out)?;
        Ok(self.flow(application, Some(out)))
    }

    /// The same with an application on another machine: `application` is what it reads.
    pub(crate) fn begin_far(self, application: Port) -> Subject {
        self.flow(application, None)
    }

    fn flow(self, application: Port, out: Option<PathBuf>) -> Subject {
        let Made { class, device, hardware, node, .. } = self;
        let (hardware, application) = (Arc::new(Port::hardware(hardware)), Arc::new(application));
        let told = Arc::<Told>::default();
        let unit = class.unit();
        let mut ways = vec![Way::start(unit, &hardware, &application, &told)];
        if class == Class::Serial {
            ways.push(Way::start(unit, &application, &hardware, &told));
        }
        Subject { class, device, hardware, application, out, ways, told, node }
    }
}

impl Subject {
    pub(crate) fn class(&self) -> Class {
        self.class
    }

    /// Has the next be made now, or as soon as the one before has been shown.
    pub(crate) fn make_now(&self) {
        self.ways.iter().for_each(|way| way.maker.thread().unpark());
    }

    /// Has no more units made until it is plugged or [`Subject::go_on`]; whether all that were made came in time.
    pub(crate) fn pause(&self, patience: Duration) -> bool {
        self.told.pause.store(true, Ordering::Relaxed);
        // A unit is made whole, and none after it.
        thread::sleep(DRAIN);
        let begun = Instant::now();
        let is_complete = || self.ways.iter().all(|way| lock(&way.count).is_complete());
        while begun.elapsed() < patience && !is_complete() {
            thread::sleep(Duration::from_millis(5));
        }
        is_complete()
    }

    /// Has units made again.
    pub(crate) fn go_on(&self) {
        self.told.pause.store(false, Ordering::Relaxed);
    }

    /// Takes the device away, once everything that it made has been read.
    pub(crate) fn unplug(&mut self) -> Result<(), Failure> {
        self.pause(PATIENCE);
        self.hardware.set(None);
        match (self.class, &self.node) {
            // While this has it open, it does not come back.
            (Class::Camera, Some(node)) => camera::disconnect(node)?,
            _ => self.node = None,
        }
        // Removed or not, nothing answers there.
        let _ = fs::remove_file(&self.device);
        Ok(())
    }

    /// The host of the device begins anew: who plays a film into a program that was killed begins again.
    pub(crate) fn begin_anew(&mut self) -> Result<(), Failure> {
        if self.class == Class::Video {
            self.told.pause.store(true, Ordering::Relaxed);
            thread::sleep(DRAIN);
            fs::remove_file(&self.device)?;
            self.hardware.set(Some(fifo(&self.device)?));
            self.told.begin_anew.store(true, Ordering::Relaxed);
            self.go_on();
        }
        Ok(())
    }

    /// Brings it back, under its name.
    pub(crate) fn plug(&mut self) -> Result<(), Failure> {
        self.node = None;
        let (hardware, node) = plug(self.class, &self.device)?;
        self.hardware.set(Some(hardware));
        self.node = Some(node);
        self.go_on();
        Ok(())
    }

    /// When units made after `since` had come, each way.
    pub(crate) fn made_after_came(&self, since: Instant) -> Option<Instant> {
        let came: Option<Vec<Instant>> =
            self.ways.iter().map(|way| lock(&way.count).first_made_after(since)).collect();
        came?.into_iter().max()
    }

    /// Stops making units, waits for those on the way, and counts.
    pub(crate) fn end(&mut self, patience: Duration) -> Result<Ended, Failure> {
        self.told.make_no_more.store(true, Ordering::Relaxed);
        let begun = Instant::now();
        let mut watchers = Vec::new();
        let mut counts = Vec::new();
        for way in std::mem::take(&mut self.ways) {
            // A thread that panicked has said so.
            let _ = way.maker.join();
            watchers.push(way.watcher);
            counts.push(way.count);
        }
        while begun.elapsed() < patience && !counts.iter().all(|count| lock(count).is_complete()) {
            thread::sleep(Duration::from_millis(5));
        }
        // What comes twice may come late.
        thread::sleep(DRAIN);
        self.told.watch_no_more.store(true, Ordering::Relaxed);
        for watcher in watchers {
            let _ = watcher.join();
        }
        let torn = counts.iter().filter_map(|count| lock(count).first_torn());
        torn.for_each(|torn| progress(&format!("the first that is no unit: {torn}")));
        let stuck = match (self.class, &self.out) {
            (Class::Input, Some(out)) => self.stuck(&pressed(&fs::File::open(out)?)?)?,
            _ => 0,
        };
        let tally = counts.iter().fold(Tally::default(), |sum, count| sum.and(lock(count).tally()));
        let overruns = counts.iter().map(|count| lock(count).overruns()).sum();
        let gaps = counts.iter().map(|count| lock(count).gaps()).sum();
        Ok(Ended { gaps, tally, stuck, node_losses: self.application.losses(), overruns })
    }

    /// Of keys that are pressed at the application, and of those at the device, the ones that are not at the other.
    pub(crate) fn stuck(&self, there: &Bits) -> Result<u64, Failure> {
        let here = pressed(self.node.as_ref().ok_or("it is no keyboard")?)?;
        Ok((here.without(there).len() + there.without(&here).len()) as u64)
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        self.told.make_no_more.store(true, Ordering::Relaxed);
        self.told.watch_no_more.store(true, Ordering::Relaxed);
        for way in std::mem::take(&mut self.ways) {
            let _ = way.maker.join();
            let _ = way.watcher.join();
        }
    }
}

/// A device that can be taken out, by a name that stays: the hardware, and its node.
fn plug(class: Class, name: &Path) -> Result<(End, fs::File), Failure> {
    let (hardware, port) = match class {
        Class::Input => keyboard().map(|(end, port)| (Some(end), port))?,
        Class::Camera => (None, camera::vivid().ok_or("there is no vivid")?),
        _ => serial_port().map(|(end, port)| (Some(end), port))?,
    };
    // A node of the kernel's may take a moment to be there.
    let node = patiently(&port, |port| fs::File::options().read(true).write(true).open(port))?;
    std::os::unix::fs::symlink(port, name)?;
    let hardware = match hardware {
        Some(hardware) => hardware,
        None => End::Scene(Scene::new(node.try_clone()?)?),
    };
    Ok((hardware, node))
}

/// Opens what may not be there yet.
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

/// Keys that are pressed.
pub(crate) fn pressed(keyboard: &fs::File) -> io::Result<Bits> {
    evdev::state(keyboard.as_fd(), EV_KEY)
}

/// A small disk, where an application writes.
pub(crate) struct Disk {
    path: PathBuf,
}

impl Disk {
    const ROOM: &str = "size=256m";

    pub(crate) fn mount(directory: &Path) -> Result<Disk, Failure> {
        let path = directory.join("disk");
        fs::create_dir_all(&path)?;
        mount(&["-t", "tmpfs", "-o", Disk::ROOM, "disk", &path.display().to_string()])?;
        Ok(Disk { path })
    }

    /// Leaves no room, or room again.
    pub(crate) fn fill(&self, full: bool) -> Result<(), Failure> {
        let remount =
            |size: &str| mount(&["-o", &format!("remount,{size}"), &self.path.display().to_string()]);
        if !full {
            return remount(Disk::ROOM);
        }
        loop {
            let used_kib = self.used_kib()?;
            match remount(&format!("size={used_kib}k")) {
                // Less than what is used by then is refused.
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
        // What cannot be unmounted now goes when its last user does.
        let _ = Command::new("umount").arg("-l").arg(&self.path).status();
    }
}

fn mount(words: &[&str]) -> Result<(), Failure> {
    let output = Command::new("mount").args(words).output()?;
    match output.status.success() {
        true => Ok(()),
        false => {
            Err(format!("mount {}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim())
                .into())
        }
    }
}
