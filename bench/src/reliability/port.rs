//! The descriptors of the experiment: the hardware behind a device and the application at a node.

use super::camera::{Scene, View};
use super::unit::KEYS;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::pty::OpenptFlags;
use rustix::termios::OptionalActions;
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use sys::input::code::{
    ABS_RX, ABS_RY, ABS_X, ABS_Y, BTN_GAMEPAD, BUS_USB, EV_ABS, EV_KEY, EV_MSC, KEY_A, MSC_SCAN,
};
use sys::input::{Axis, Ids, uinput};

/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(2);

/// An open descriptor.
#[derive(Debug)]
pub(crate) enum End {
    /// A stream of bytes.
    File(File),
    /// The scene before a camera.
    Scene(Scene),
    /// A reader of a camera.
    View(View),
}

impl End {
    fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            End::File(file) => (&*file).read(into),
            End::View(view) => view.read(into),
            End::Scene(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            End::File(file) => (&*file).write(bytes),
            End::Scene(scene) => scene.show(bytes),
            End::View(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Returns true if a file is shorter than the position of its reader.
    fn is_shorter(&self) -> bool {
        let End::File(file) = self else { return false };
        let length = file.metadata().map_or(0, |known| if known.is_file() { known.len() } else { u64::MAX });
        (&*file).stream_position().is_ok_and(|read| read > length)
    }
}

impl AsFd for End {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            End::File(file) => file.as_fd(),
            End::Scene(scene) => scene.as_fd(),
            End::View(view) => view.as_fd(),
        }
    }
}

/// Opens an end by its path.
type Open = fn(&Path) -> io::Result<End>;

/// A descriptor that may be lost and opened again.
#[derive(Debug)]
pub(crate) struct Port {
    end: Mutex<Option<Arc<End>>>,
    /// The path and the function for opening it again.
    path: Option<(PathBuf, Open)>,
    losses: AtomicU64,
}

/// The result of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Written {
    All,
    /// Nothing was written before the stop.
    Nothing,
    /// A part was written before the stop or the loss of the descriptor.
    Part,
}

impl Port {
    /// The hardware's side. [`Port::set`] removes it.
    pub(crate) fn hardware(end: End) -> Port {
        Port { end: Mutex::new(Some(Arc::new(end))), path: None, losses: AtomicU64::new(0) }
    }

    /// An application's node or file.
    pub(crate) fn application(path: &Path) -> io::Result<Port> {
        Port::opened(path, |path| open(path).map(End::File))
    }

    /// A camera's node, which an application reads.
    pub(crate) fn view(path: &Path) -> io::Result<Port> {
        Port::opened(path, |path| View::new(open(path)?).map(End::View))
    }

    fn opened(path: &Path, open: Open) -> io::Result<Port> {
        let end = open(path)?;
        Ok(Port {
            end: Mutex::new(Some(Arc::new(end))),
            path: Some((path.into(), open)),
            losses: AtomicU64::new(0),
        })
    }

    /// Removes the hardware or adds it again.
    pub(crate) fn set(&self, end: Option<End>) {
        *self.end.lock().unwrap_or_else(PoisonError::into_inner) = end.map(Arc::new);
    }

    /// Returns the number of times that the application lost its descriptor.
    pub(crate) fn losses(&self) -> u64 {
        self.losses.load(Ordering::Relaxed)
    }

    fn get(&self) -> Option<Arc<End>> {
        let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        if end.is_none() {
            *end = self.path.as_ref().and_then(|(path, open)| open(path).ok()).map(Arc::new);
        }
        end.clone()
    }

    fn lose(&self) {
        if self.path.is_some() {
            self.losses.fetch_add(1, Ordering::Relaxed);
            self.set(None);
        }
        std::thread::sleep(PAUSE);
    }

    /// Writes all bytes and waits for room until `stop`.
    pub(crate) fn write(&self, bytes: &[u8], stop: &AtomicBool) -> Written {
        let mut done = 0;
        let mut begun: Option<Arc<End>> = None;
        while done < bytes.len() {
            if stop.load(Ordering::Relaxed) {
                return if done == 0 { Written::Nothing } else { Written::Part };
            }
            let Some(end) = self.get() else {
                if done > 0 {
                    return Written::Part;
                }
                std::thread::sleep(PAUSE);
                continue;
            };
            // The rest of a unit must not go to a new device, which may need a header first.
            if begun.as_ref().is_some_and(|begun| !Arc::ptr_eq(begun, &end)) {
                return if done == 0 { Written::Nothing } else { Written::Part };
            }
            begun = Some(end.clone());
            match end.write(&bytes[done..]) {
                Ok(count) => done += count,
                Err(error) if is_temporary(&error) => wait(&end, PollFlags::OUT),
                Err(_) => {
                    self.lose();
                    if done > 0 {
                        return Written::Part;
                    }
                }
            }
        }
        Written::All
    }

    /// Reads the available bytes, 0 after a short wait. Returns `None` if a file was truncated and starts again.
    pub(crate) fn read(&self, into: &mut [u8]) -> Option<usize> {
        let Some(end) = self.get() else {
            std::thread::sleep(PAUSE);
            return Some(0);
        };
        match end.read(into) {
            Ok(0) if end.is_shorter() => {
                self.lose();
                None
            }
            // The end of a file that is still growing.
            Ok(0) => {
                std::thread::sleep(PAUSE);
                Some(0)
            }
            Ok(count) => Some(count),
            Err(error) => {
                match is_temporary(&error) {
                    true => wait(&end, PollFlags::IN),
                    false => self.lose(),
                }
                Some(0)
            }
        }
    }
}

fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

fn wait(end: &End, flags: PollFlags) {
    let longest = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
    // An interruption only shortens the wait.
    let _ = poll(&mut [PollFd::new(end, flags)], Some(&longest));
}

fn open(path: &Path) -> io::Result<File> {
    let file = rustix::fs::open(
        path,
        OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    make_raw(&file)?;
    Ok(file.into())
}

/// Sets a terminal to raw mode. Other files stay unchanged.
fn make_raw(file: &OwnedFd) -> io::Result<()> {
    if rustix::termios::isatty(file) {
        let mut settings = rustix::termios::tcgetattr(file)?;
        settings.make_raw();
        rustix::termios::tcsetattr(file, OptionalActions::Now, &settings)?;
    }
    Ok(())
}

/// Opens a serial port. Returns the hardware's side and the path of the port.
pub(crate) fn serial_port() -> io::Result<(End, PathBuf)> {
    let master = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    rustix::pty::grantpt(&master)?;
    rustix::pty::unlockpt(&master)?;
    let name = rustix::pty::ptsname(&master, Vec::new())?;
    rustix::fs::fcntl_setfl(master.as_fd(), OFlags::NONBLOCK)?;
    // Without raw mode the port would echo before its first open.
    make_raw(&master)?;
    Ok((End::File(master.into()), PathBuf::from(name.to_string_lossy().into_owned())))
}

/// Creates a FIFO and opens it for reading and writing, so that it needs no reader.
pub(crate) fn fifo(path: &Path) -> io::Result<End> {
    rustix::fs::mkfifoat(rustix::fs::CWD, path, Mode::RUSR | Mode::WUSR)?;
    open(path).map(End::File)
}

/// Creates a keyboard of the kernel. Returns it with the path of its event node. Closing it removes the keyboard.
pub(crate) fn keyboard() -> io::Result<(End, PathBuf)> {
    let keys = (0..KEYS).map(|number| (EV_KEY, KEY_A + number as u16));
    input_device("Outboard reliability keyboard", &keys.chain([(EV_MSC, MSC_SCAN)]).collect::<Vec<_>>(), &[])
}

/// Creates a gamepad with two sticks, which nobody touches.
pub(crate) fn gamepad() -> io::Result<(End, PathBuf)> {
    let (minimum, maximum) = (-32_768, 32_767);
    let axis = Axis { value: 0, minimum, maximum, fuzz: 16, flat: 128, resolution: 0 };
    let buttons: Vec<_> = (0..8).map(|number| (EV_KEY, BTN_GAMEPAD + number)).collect();
    input_device("Outboard idle gamepad", &buttons, &[ABS_X, ABS_Y, ABS_RX, ABS_RY].map(|code| (code, axis)))
}

fn input_device(name: &str, codes: &[(u16, u16)], axes: &[(u16, Axis)]) -> io::Result<(End, PathBuf)> {
    let file = open(Path::new("/dev/uinput"))?;
    let device = file.as_fd();
    let ids = Ids { bus: BUS_USB, vendor: 0x0ade, product: 1, version: 1 };
    uinput::set_up(device, name, ids, 0)?;
    for &(kind, code) in codes {
        uinput::enable_kind(device, kind)?;
        uinput::enable_code(device, kind, code)?;
    }
    for &(code, axis) in axes {
        uinput::enable_kind(device, EV_ABS)?;
        uinput::set_axis(device, code, axis)?;
    }
    uinput::create(device)?;
    let system = format!("/sys/devices/virtual/input/{}", uinput::system_name(device)?);
    let mut names =
        fs::read_dir(&system)?.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let node = names.find(|name| name.starts_with("event"));
    let node = node.ok_or_else(|| io::Error::other(format!("{system} has no event node")))?;
    Ok((End::File(file), Path::new("/dev/input").join(node)))
}
