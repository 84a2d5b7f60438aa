//! `doctor`: what this host lacks, what it is needed for, and how to mend it.

use crate::output::{Failure, print, print_json};
use serde::Serialize;
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::path::Path;

/// How something stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    /// As it should be.
    Ok,
    /// It works, with less.
    Limited,
    /// What needs it does not work.
    Missing,
}

/// One thing that was looked at.
#[derive(Debug, Serialize)]
struct Check {
    name: &'static str,
    state: State,
    found: String,
    needed_for: &'static str,
    /// What to do, unless it is as it should be.
    mend: Option<&'static str>,
}

impl Check {
    fn new(name: &'static str, needed_for: &'static str, answer: Answer) -> Check {
        let Answer { state, found, mend } = answer;
        Check { name, state, found, needed_for, mend }
    }
}

/// How a check came out.
struct Answer {
    state: State,
    found: String,
    mend: Option<&'static str>,
}

impl Answer {
    fn ok(found: impl Into<String>) -> Answer {
        Answer { state: State::Ok, found: found.into(), mend: None }
    }

    fn limited(found: impl Into<String>, mend: &'static str) -> Answer {
        Answer { state: State::Limited, found: found.into(), mend: Some(mend) }
    }

    fn missing(found: impl Into<String>, mend: &'static str) -> Answer {
        Answer { state: State::Missing, found: found.into(), mend: Some(mend) }
    }
}

/// `outboard doctor`. What is missing is its finding, not its failure.
pub(crate) fn doctor(json: bool) -> Result<(), Failure> {
    let checks = [
        Check::new("kernel", "timers to the nanosecond (epoll_pwait2), UDP segmentation offload", kernel()),
        Check::new(
            "uinput",
            "attach --as uinput: keyboards, mice and gamepads for applications here",
            uinput(),
        ),
        Check::new("v4l2loopback", "attach --as v4l2: cameras for programs here", v4l2loopback()),
        Check::new("evdev", "share evdev:...: keyboards, mice and gamepads of this host", evdev()),
        Check::new("serial", "share serial:...: serial ports of this host", serial()),
        Check::new("pty", "attach --as pty: serial ports for programs here", pty()),
        Check::new(
            "breaks and modem lines",
            "programs that set DTR or RTS, or send a break, on a pty",
            Answer::limited(
                "a pty carries neither: data, speed and framing cross, breaks and modem lines do not",
                "a device node of its own (cuse) will carry them; until then use a program that needs none",
            ),
        ),
        Check::new("clock", "creation times that go on through a suspend", clock()),
        Check::new("timer slack", "messages that leave at their time", timer_slack()),
        Check::new("realtime priority", "even spacing on a busy host", realtime()),
        Check::new(
            "isolation",
            "pairs with isolate=true: modules without files, network and other processes",
            isolation(),
        ),
        Check::new(
            "sandbox",
            "flows of other hosts in processes that can open no file, device or socket (--require-sandbox)",
            sandbox(),
        ),
        Check::new("congestion control", "how fast tcp recovers on a bad network", congestion()),
    ];
    match json {
        true => print_json(&checks),
        false => print(&checks.iter().map(describe).collect::<String>()),
    }
}

fn describe(check: &Check) -> String {
    let mark = match check.state {
        State::Ok => "ok     ",
        State::Limited => "limited",
        State::Missing => "missing",
    };
    let mut text = format!("{mark}  {}: {}\n", check.name, check.found);
    if let Some(mend) = check.mend {
        let _ = writeln!(text, "         needed for {}\n         to mend it: {mend}", check.needed_for);
    }
    text
}

/// `epoll_pwait2(2)` came with 5.11; UDP_SEGMENT, with 4.18, is older.
fn kernel() -> Answer {
    let release = read("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers =
        release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    match version >= (5, 11) {
        true => Answer::ok(format!("Linux {release}")),
        false => Answer::missing(format!("Linux {release}"), "install Linux 5.11 or newer"),
    }
}

fn uinput() -> Answer {
    const NODE: &str = "/dev/uinput";
    match OpenOptions::new().read(true).write(true).open(NODE) {
        Ok(_) => Answer::ok(format!("{NODE} can be opened")),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Answer::missing(
            format!("{NODE}: {error}"),
            "sudo setfacl -m u:$USER:rw /dev/uinput, or a udev rule: KERNEL==\"uinput\", GROUP=\"input\", MODE=\"0660\"",
        ),
        Err(error) => Answer::missing(
            format!("{NODE}: {error}"),
            "sudo modprobe uinput; where there is no such module, install a kernel that has CONFIG_INPUT_UINPUT",
        ),
    }
}

fn v4l2loopback() -> Answer {
    match Path::new("/sys/module/v4l2loopback").exists() {
        true => Answer::ok("the module is loaded"),
        false => Answer::limited(
            "the module is not loaded",
            "sudo apt install v4l2loopback-dkms; sudo modprobe v4l2loopback exclusive_caps=1",
        ),
    }
}

fn evdev() -> Answer {
    let nodes: Vec<_> = entries("/dev/input").into_iter().filter(|name| name.starts_with("event")).collect();
    let opens =
        |name: &&String| OpenOptions::new().read(true).open(Path::new("/dev/input").join(name)).is_ok();
    let open = nodes.iter().filter(opens).count();
    match (nodes.len(), open) {
        (0, _) => Answer::limited(
            "there is no input device in /dev/input",
            "plug one in; sudo modprobe evdev if the module is not loaded",
        ),
        (all, open) if open < all => Answer::missing(
            format!("{open} of {all} input devices can be opened"),
            "sudo usermod -aG input $USER, and log in again",
        ),
        (all, _) => Answer::ok(format!("{all} input devices can be opened")),
    }
}

fn serial() -> Answer {
    let is_port =
        |name: &String| ["ttyS", "ttyUSB", "ttyACM", "ttyAMA"].iter().any(|kind| name.starts_with(kind));
    let ports: Vec<_> = entries("/sys/class/tty").into_iter().filter(is_port).collect();
    let denied = ports.iter().find(|name| {
        let opened = OpenOptions::new().read(true).write(true).open(Path::new("/dev").join(name));
        opened.is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
    });
    match denied {
        Some(port) => Answer::missing(
            format!("/dev/{port} may not be opened"),
            "sudo usermod -aG dialout $USER, and log in again",
        ),
        None if ports.is_empty() => Answer::limited("there is no serial port", "plug one in"),
        None => Answer::ok(format!("{} serial ports", ports.len())),
    }
}

fn pty() -> Answer {
    use rustix::pty::{OpenptFlags, grantpt, openpt, unlockpt};
    let opened = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)
        .and_then(|master| grantpt(&master).and_then(|()| unlockpt(&master)));
    match opened {
        Ok(()) => Answer::ok("pseudo-terminals can be made"),
        Err(error) => Answer::missing(
            format!("/dev/ptmx: {error}"),
            "sudo mount -t devpts -o ptmxmode=0666 devpts /dev/pts",
        ),
    }
}

fn clock() -> Answer {
    let source = read("/sys/devices/system/clocksource/clocksource0/current_clocksource").unwrap_or_default();
    let (before, after) = (sys::clock::boot_ns(), sys::clock::boot_ns());
    match (after >= before && before > 0, source.as_str()) {
        (false, _) => Answer::missing("the boot clock stands still", "install Linux 2.6.39 or newer"),
        (true, "hpet" | "acpi_pm") => Answer::limited(
            format!("clock source {source}: a microsecond for every look at the clock"),
            "boot with clocksource=tsc where the processor's counter is stable",
        ),
        (true, "") => Answer::ok("the boot clock goes"),
        (true, source) => Answer::ok(format!("the boot clock goes, on {source}")),
    }
}

fn timer_slack() -> Answer {
    sys::thread::be_punctual();
    match rustix::thread::current_timer_slack() {
        Ok(nanoseconds) if nanoseconds <= 1 => Answer::ok("1 ns, as asked for"),
        Ok(nanoseconds) => Answer::limited(
            format!("{nanoseconds} ns"),
            "allow prctl(PR_SET_TIMERSLACK) in the sandbox around it",
        ),
        Err(error) => {
            Answer::limited(error.to_string(), "allow prctl(PR_GET_TIMERSLACK) in the sandbox around it")
        }
    }
}

/// Tried in a thread that ends at once.
fn realtime() -> Answer {
    match std::thread::spawn(sys::thread::be_urgent).join() {
        Ok(true) => Answer::ok("may be asked for"),
        _ => Answer::limited(
            "may not be asked for",
            "allow it in /etc/security/limits.d: `@audio - rtprio 10`, and be in that group",
        ),
    }
}

/// What landlock's versions can take is in `landlock(7)`.
fn isolation() -> Answer {
    match sys::process::landlock_version() {
        None => Answer::missing("this kernel has no landlock, or it is off", links::confine::ADVICE),
        Some(version @ 1..4) => Answer::ok(format!(
            "landlock version {version}: files; network and processes are taken by seccomp alone"
        )),
        Some(version) => Answer::ok(format!("landlock version {version}, and seccomp")),
    }
}

/// What workers take from themselves, tried on a thread.
fn sandbox() -> Answer {
    match links::confine::try_lock() {
        Ok(()) => Answer::ok("landlock and seccomp lock every worker up"),
        Err(problem) => Answer::limited(
            problem,
            "boot Linux 5.13 or newer with `landlock` in the list of `lsm=` and CONFIG_SECCOMP_FILTER; where a \
             container forbids either, allow `landlock_*` and `seccomp` in its profile",
        ),
    }
}

fn congestion() -> Answer {
    let current = read("/proc/sys/net/ipv4/tcp_congestion_control").unwrap_or_else(|| "unknown".into());
    let available = read("/proc/sys/net/ipv4/tcp_available_congestion_control").unwrap_or_default();
    match available.split(' ').any(|name| name == "bbr") {
        true => Answer::ok(format!("{current}; there is: {available}")),
        false => Answer::limited(
            format!("{current}; there is: {available}"),
            "sudo modprobe tcp_bbr, then attach --transport congestion=bbr, where the network loses packets",
        ),
    }
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_string())
}

/// Names in a directory; none if it cannot be read.
fn entries(directory: &str) -> Vec<String> {
    let Ok(found) = fs::read_dir(directory) else { return Vec::new() };
    let mut names: Vec<_> =
        found.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}
