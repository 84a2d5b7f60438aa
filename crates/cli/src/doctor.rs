//! `doctor`: checks this host for missing features and permissions, and shows fixes.

use crate::output::{Failure, print, print_json_lines};
use contract::Listing;
use serde::Serialize;
use std::borrow::Cow;
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use sys::sound_server::pipewire_answers;

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    /// Everything works.
    Ok,
    /// It works with restrictions.
    Limited,
    /// The dependent features do not work.
    Missing,
}

/// One check.
#[derive(Debug, Serialize)]
struct Check {
    name: &'static str,
    state: State,
    found: String,
    needed_for: &'static str,
    /// The fix; `None` if the state is `Ok`.
    fix: Option<Cow<'static, str>>,
}

impl Check {
    fn new(name: &'static str, needed_for: &'static str, answer: Answer) -> Check {
        let Answer { state, found, fix } = answer;
        Check { name, state, found, needed_for, fix }
    }
}

/// The fix of a program without the feature `media`. There is a package for one kind of processor.
const MEDIA: &str = if cfg!(target_arch = "x86_64") {
    "on Debian and Ubuntu use the package; elsewhere run `sudo make install FEATURES=media` in the source"
} else {
    "run `sudo make install FEATURES=media` in the source"
};

/// The finding of a check.
struct Answer {
    state: State,
    found: String,
    fix: Option<Cow<'static, str>>,
}

impl Answer {
    fn ok(found: impl Into<String>) -> Answer {
        Answer { state: State::Ok, found: found.into(), fix: None }
    }

    fn limited(found: impl Into<String>, fix: impl Into<Cow<'static, str>>) -> Answer {
        Answer { state: State::Limited, found: found.into(), fix: Some(fix.into()) }
    }

    fn missing(found: impl Into<String>, fix: impl Into<Cow<'static, str>>) -> Answer {
        Answer { state: State::Missing, found: found.into(), fix: Some(fix.into()) }
    }
}

/// `outboard doctor`. A missing feature is a finding; the command still succeeds.
pub(crate) fn doctor(json: bool) -> Result<(), Failure> {
    let checks = [
        Check::new("kernel", "nanosecond timers (epoll_pwait2), UDP segmentation offload", kernel()),
        Check::new(
            "uinput",
            "attach --as uinput: keyboards, mice and gamepads for applications here",
            uinput(),
        ),
        Check::new("uhid", "attach --as hid: whole gamepads and FIDO keys for programs here", uhid()),
        Check::new("hidraw", "share hid:...: whole gamepads and FIDO keys of this host", hidraw()),
        Check::new(
            "camera node",
            "attach --as v4l2 and attach --as pipewire: cameras for programs here",
            camera_node(),
        ),
        Check::new("video codec", "encode: cameras over links that are too thin for their pictures", codec()),
        Check::new("evdev", "share evdev:...: keyboards, mice and gamepads of this host", evdev()),
        Check::new("midi", "share midi:... and attach --as midi: MIDI devices and programs", midi()),
        Check::new("block", "share block:...: disks of this host", disks()),
        Check::new(
            "nbd",
            "a disk in /dev for attach --as nbd: nbd-client and the kernel module",
            kernel_nbd(),
        ),
        Check::new("sound", "share audio:... and attach --as audio: microphones and speakers", sound()),
        Check::new("wayland", "share wayland:...: screens of this host that are not X11", wayland()),
        Check::new("serial", "share serial:...: serial ports of this host", serial()),
        Check::new("pty", "attach --as pty: serial ports for programs here", pty()),
        Check::new(
            "tty",
            "attach --as tty: serial ports with modem lines and breaks for programs here",
            terminals(),
        ),
        Check::new("clock", "creation times that include the time in suspend", clock()),
        Check::new("timer slack", "messages that leave on time", timer_slack()),
        Check::new(
            "isolation",
            "pairs with isolate=true: modules without files, network and other processes",
            isolation(),
        ),
        Check::new(
            "sandbox",
            "worker processes that can open no file, device or socket (--require-sandbox)",
            sandbox(),
        ),
        Check::new("congestion control", "how fast tcp recovers on a bad network", congestion()),
        Check::new("socket buffers", "quic and udp at hundreds of megabits a second", socket_buffers()),
    ];
    if json { print_json_lines(&checks) } else { print(&checks.iter().map(describe).collect::<String>()) }
}

fn describe(check: &Check) -> String {
    let mark = match check.state {
        State::Ok => "ok     ",
        State::Limited => "limited",
        State::Missing => "missing",
    };
    let mut text = format!("{mark}  {}: {}\n", check.name, check.found);
    if let Some(fix) = &check.fix {
        let _ = writeln!(text, "         needed for {}\n         fix: {fix}", check.needed_for);
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

/// The commands that let the user make devices with a kernel module. A rule without `static_node` acts only once the module is loaded,
/// which a user who may not open the node cannot do. The number is behind that of the packages' rule.
macro_rules! permit {
    ($module:literal) => {
        concat!(
            "echo 'KERNEL==\"",
            $module,
            "\", GROUP=\"input\", MODE=\"0660\", OPTIONS+=\"static_node=",
            $module,
            "\"' | sudo tee /etc/udev/rules.d/70-",
            $module,
            ".rules; sudo modprobe ",
            $module,
            "; sudo udevadm control --reload; sudo udevadm trigger --sysname-match=",
            $module,
            "; sudo usermod -aG input $USER; then log in again"
        )
    };
}

fn uinput() -> Answer {
    const NODE: &str = "/dev/uinput";
    match OpenOptions::new().read(true).write(true).open(NODE) {
        Ok(_) => Answer::ok(format!("{NODE} can be opened")),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            Answer::missing(format!("{NODE}: {error}"), permit!("uinput"))
        }
        Err(error) => Answer::missing(
            format!("{NODE}: {error}"),
            "sudo modprobe uinput; if the module is missing, install a kernel with CONFIG_INPUT_UINPUT",
        ),
    }
}

fn uhid() -> Answer {
    const NODE: &str = "/dev/uhid";
    match OpenOptions::new().read(true).write(true).open(NODE) {
        Ok(_) => Answer::ok(format!("{NODE} can be opened")),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            Answer::limited(format!("{NODE}: {error}"), permit!("uhid"))
        }
        Err(error) => Answer::limited(
            format!("{NODE}: {error}"),
            "sudo modprobe uhid; if the module is missing, install a kernel with CONFIG_UHID",
        ),
    }
}

fn hidraw() -> Answer {
    let nodes = entries("/sys/class/hidraw");
    let opens =
        |name: &&String| OpenOptions::new().read(true).write(true).open(Path::new("/dev").join(name)).is_ok();
    match (nodes.len(), nodes.iter().filter(opens).count()) {
        (0, _) => Answer::limited("no HID device", "plug one in"),
        (all, open) if open < all => Answer::limited(
            format!("{open} of {all} HID devices can be opened"),
            "a udev rule for those to share: SUBSYSTEM==\"hidraw\", TAG+=\"uaccess\" in /etc/udev/rules.d/70-hidraw.rules",
        ),
        (all, _) => Answer::ok(format!("{} can be opened", counted(all, "HID device"))),
    }
}

fn midi() -> Answer {
    const NODE: &str = "/dev/snd/seq";
    match OpenOptions::new().read(true).write(true).open(NODE) {
        Ok(_) => Answer::ok(format!("{NODE} can be opened")),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            Answer::missing(format!("{NODE}: {error}"), "sudo usermod -aG audio $USER, then log in again")
        }
        Err(error) => Answer::limited(
            format!("{NODE}: {error}"),
            "sudo modprobe snd-seq; sudo modprobe snd-virmidi for programs that open a raw MIDI device",
        ),
    }
}

fn codec() -> Answer {
    match cfg!(feature = "media") {
        true => Answer::ok("VP8 by libvpx"),
        false => Answer::limited("this build has none: cameras are sent and received as they are", MEDIA),
    }
}

/// Disks belong to a group; a file with the bytes of one needs nothing.
fn disks() -> Answer {
    let found = listed("block");
    let usable = found.iter().filter(|disk| disk.problem.is_none()).count();
    match (found.len(), usable) {
        (0, _) => Answer::ok("no disk is here"),
        (all, 0) => Answer::missing(
            format!("none of {all} disks and partitions can be read"),
            "sudo usermod -aG disk $USER, then log in again; or pair and share with sudo",
        ),
        (all, usable) => Answer::ok(format!("{usable} of {all} disks and partitions can be read")),
    }
}

/// Programs with libnbd need no module.
fn kernel_nbd() -> Answer {
    match Path::new("/sys/block/nbd0").exists() {
        true => Answer::ok("the kernel module nbd is loaded"),
        false => Answer::limited(
            "the kernel module nbd is not loaded",
            format!("{}; sudo modprobe nbd", install(has_apt(), "nbd-client", "nbd-client (package nbd)")),
        ),
    }
}

fn has_apt() -> bool {
    Path::new("/usr/bin/apt-get").exists()
}

/// Returns the step that installs a package of Debian, or `elsewhere`, its name on distributions without apt.
fn install(has_apt: bool, package: &str, elsewhere: &str) -> String {
    if has_apt { format!("sudo apt install {package}") } else { format!("install {elsewhere}") }
}

fn sound() -> Answer {
    if !cfg!(feature = "media") {
        return Answer::limited("this program was built without sound", MEDIA);
    }
    if pipewire_answers() {
        // Only the devices of ALSA are listed where PipeWire carries no sound.
        let is_carried = || listed("audio").iter().any(|device| !device.spec.starts_with("audio:hw:"));
        return match sys::sound_server::pulseaudio_runs() && !is_carried() {
            false => Answer::ok("PipeWire answers"),
            true => Answer::limited(
                "PulseAudio has the sound, PipeWire only pictures: `share audio` uses PulseAudio, and \
                 `attach --as audio` needs snd-aloop",
                "sudo modprobe snd-aloop; or let PipeWire carry the sound (package pipewire-pulse)",
            ),
        };
    }
    match fs::read_dir("/dev/snd")
        .is_ok_and(|mut nodes| nodes.any(|node| node.is_ok_and(|node| is_pcm(&node))))
    {
        true => Answer::ok("no PipeWire answers; ALSA has devices"),
        false => Answer::limited(
            "no PipeWire answers, and ALSA has no devices",
            "systemctl --user start pipewire; without PipeWire: sudo modprobe snd-aloop",
        ),
    }
}

/// Returns true for a device of ALSA that plays or records.
fn is_pcm(node: &fs::DirEntry) -> bool {
    node.file_name().to_string_lossy().starts_with("pcm")
}

/// Reports the way that the running compositors offer: the protocols of wlroots, or the portal.
fn wayland() -> Answer {
    let found = listed("wayland");
    if found.is_empty() {
        return Answer::ok("no Wayland desktop of this user runs");
    }
    let describe = |output: &Listing| format!("{} ({})", output.spec, output.summary);
    let usable: Vec<_> = found.iter().filter(|output| output.problem.is_none()).map(describe).collect();
    if !usable.is_empty() {
        return Answer::ok(usable.join(", "));
    }
    let problem = found.iter().find_map(|output| output.problem.as_deref()).unwrap_or_default();
    let names: Vec<_> = found.iter().map(|output| output.spec.as_str()).collect();
    Answer::limited(
        format!("{}: {problem}", names.join(" ")),
        "use a desktop of GNOME, KDE, sway, labwc, river, Wayfire or Hyprland; or share its VNC server (krfb on KDE; gnome-remote-desktop \
         on GNOME, after gsettings set org.gnome.desktop.remote-desktop.vnc encryption \"['none']\") as rfb:localhost:5900",
    )
}

/// A camera is a node of v4l2loopback, or a video source of PipeWire, which needs no module.
fn camera_node() -> Answer {
    let has_pipewire = cfg!(feature = "media") && pipewire_answers();
    match (Path::new("/sys/module/v4l2loopback").exists(), has_pipewire) {
        (true, true) => Answer::ok("v4l2loopback is loaded, and PipeWire answers"),
        (true, false) => Answer::ok("v4l2loopback is loaded"),
        (false, true) => Answer::ok("v4l2loopback is not loaded: cameras are video sources of PipeWire"),
        (false, false) => {
            let elsewhere =
                "v4l2loopback (Arch: v4l2loopback-dkms; Fedora: akmod-v4l2loopback of RPM Fusion)";
            Answer::limited(
                "v4l2loopback is not loaded, and this program reaches no PipeWire",
                format!(
                    "systemctl --user start pipewire, with a build that has --features media; or {}; \
                     sudo modprobe v4l2loopback exclusive_caps=1",
                    install(has_apt(), "v4l2loopback-dkms", elsewhere)
                ),
            )
        }
    }
}

fn evdev() -> Answer {
    let nodes: Vec<_> = entries("/dev/input").into_iter().filter(|name| name.starts_with("event")).collect();
    let opens =
        |name: &&String| OpenOptions::new().read(true).open(Path::new("/dev/input").join(name)).is_ok();
    let open = nodes.iter().filter(opens).count();
    match (nodes.len(), open) {
        (0, _) => Answer::limited(
            "no input device in /dev/input",
            "plug one in; sudo modprobe evdev if the module is not loaded",
        ),
        (all, open) if open < all => Answer::missing(
            format!("{open} of {all} input devices can be opened"),
            "sudo usermod -aG input $USER, and log in again",
        ),
        (all, _) => Answer::ok(format!("{} can be opened", counted(all, "input device"))),
    }
}

/// The listing opens no port: that raises DTR and RTS, which resets boards and printers.
fn serial() -> Answer {
    let ports = listed("serial");
    match ports.iter().find_map(|port| Some((port, port.problem.as_ref()?))) {
        Some((port, problem)) => {
            let groups = fs::read_to_string("/etc/group").unwrap_or_default();
            let node = port.spec.trim_start_matches("serial:");
            let group = owning_group(Path::new(node), &groups).unwrap_or("dialout");
            Answer::missing(
                format!("{}: {problem}", port.spec),
                format!(
                    "sudo usermod -aG {group} $USER, and log in again; for a node that is missing, start udev"
                ),
            )
        }
        None if ports.is_empty() => Answer::limited("no serial port", "plug one in"),
        None => Answer::ok(counted(ports.len(), "serial port")),
    }
}

/// Returns the group that owns a node, from the text of `/etc/group`. Serial ports belong to `dialout` on most distributions, and to
/// `uucp` on Arch. A node of the group `root` has none to join.
fn owning_group<'a>(node: &Path, groups: &'a str) -> Option<&'a str> {
    let number = fs::metadata(node).ok()?.gid().to_string();
    groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == number && name != "root").then_some(name)
    })
}

fn pty() -> Answer {
    use rustix::pty::{OpenptFlags, grantpt, openpt, unlockpt};
    let opened = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)
        .and_then(|master| grantpt(&master).and_then(|()| unlockpt(&master)));
    match opened {
        Ok(()) => Answer::ok("pseudo-terminals can be created"),
        Err(error) => Answer::missing(
            format!("/dev/ptmx: {error}"),
            "sudo mount -t devpts -o ptmxmode=0666 devpts /dev/pts",
        ),
    }
}

/// The way that `tty` takes on this host. A module that is not loaded is a choice: a process that can use the controller can plug
/// in any USB device, and one that can use CUSE can make any character device.
fn terminals() -> Answer {
    let attach = Path::new("/sys/devices/platform/vhci_hcd.0/attach");
    let denied =
        "attach as root, or as the packaged service, whose udev rule opens the file to the group `outboard`";
    match OpenOptions::new().write(true).open(attach) {
        Ok(_) if Path::new("/sys/bus/usb-serial/drivers/ftdi_sio").exists() => {
            Answer::ok("virtual adapters can be plugged in")
        }
        Ok(_) => Answer::limited(
            "virtual adapters can be plugged in; ftdi_sio is not loaded, which udev does when one is plugged in",
            "sudo modprobe ftdi_sio on a host without udev",
        ),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => terminals_in_user_space(),
        Err(error) => Answer::limited(format!("{}: {error}", attach.display()), denied),
    }
}

fn terminals_in_user_space() -> Answer {
    match OpenOptions::new().read(true).write(true).open("/dev/cuse") {
        Ok(_) => Answer::ok("vhci_hcd is not loaded: terminals are devices in user space (/dev/cuse)"),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Answer::limited(
            format!("vhci_hcd is not loaded; /dev/cuse: {error}"),
            "attach as root, or sudo modprobe vhci-hcd",
        ),
        Err(error) => Answer::limited(
            format!("vhci_hcd and cuse are not loaded ({error}): only `pty`, without breaks and modem lines"),
            "sudo modprobe vhci-hcd, or where that module is missing sudo modprobe cuse",
        ),
    }
}

fn clock() -> Answer {
    let source = read("/sys/devices/system/clocksource/clocksource0/current_clocksource").unwrap_or_default();
    let (before, after) = (sys::clock::boot_ns(), sys::clock::boot_ns());
    match (after >= before && before > 0, source.as_str()) {
        (false, _) => Answer::missing("the boot clock does not advance", "install Linux 2.6.39 or newer"),
        (true, "hpet" | "acpi_pm") => Answer::limited(
            format!("clock source {source}: each read of the clock takes a microsecond"),
            "boot with clocksource=tsc if the processor has a stable counter",
        ),
        (true, "") => Answer::ok("the boot clock advances"),
        (true, source) => Answer::ok(format!("the boot clock advances, source {source}")),
    }
}

fn timer_slack() -> Answer {
    sys::thread::be_punctual();
    match rustix::thread::current_timer_slack() {
        Ok(nanoseconds) if nanoseconds <= 1 => Answer::ok("1 ns, as requested"),
        Ok(nanoseconds) => Answer::limited(
            format!("{nanoseconds} ns"),
            "allow prctl(PR_SET_TIMERSLACK) in the sandbox of this process",
        ),
        Err(error) => Answer::limited(
            error.to_string(),
            "allow prctl(PR_GET_TIMERSLACK) in the sandbox of this process",
        ),
    }
}

/// `landlock(7)` lists the rights that each version restricts.
fn isolation() -> Answer {
    match sys::process::landlock_version() {
        None => Answer::missing("this kernel has no landlock, or it is off", sandbox::confine::ADVICE),
        Some(version @ 1..4) => Answer::ok(format!(
            "landlock version {version} restricts files; seccomp alone restricts network and processes"
        )),
        Some(version @ 4..6) => Answer::ok(format!(
            "landlock version {version} restricts files and TCP; seccomp alone restricts signals and local sockets"
        )),
        Some(version) => Answer::ok(format!("landlock version {version}, and seccomp")),
    }
}

/// Applies the sandbox of a worker to a thread.
fn sandbox() -> Answer {
    match sandbox::confine::try_lock() {
        Ok(()) => Answer::ok("landlock and seccomp confine every worker"),
        Err(problem) => Answer::limited(
            problem,
            "boot Linux 5.13 or newer with `landlock` in the list of `lsm=` and CONFIG_SECCOMP_FILTER; in a \
             container, allow `landlock_*` and `seccomp` in its profile",
        ),
    }
}

fn congestion() -> Answer {
    let current = read("/proc/sys/net/ipv4/tcp_congestion_control").unwrap_or_else(|| "unknown".into());
    let available = read("/proc/sys/net/ipv4/tcp_available_congestion_control").unwrap_or_default();
    match available.split(' ').any(|name| name == "bbr") {
        true => Answer::ok(format!("{current}; available: {available}")),
        false => Answer::limited(
            format!("{current}; available: {available}"),
            "sudo modprobe tcp_bbr; the transport tcp then uses it by itself where packets are lost at random",
        ),
    }
}

/// The transports ask for this much (`socket_bytes`). Debian's limit is 212,992 bytes, which fill in 2 ms at a gigabit
/// a second while the process waits for a processor.
fn socket_buffers() -> Answer {
    const WANTED_BYTES: u64 = 4 << 20;
    const LIMIT: &str = "net.core.rmem_max";
    let limit = read("/proc/sys/net/core/rmem_max").and_then(|text| text.parse::<u64>().ok());
    match limit {
        // Only the first network namespace shows it.
        None => Answer::ok(format!("{LIMIT} is not shown here")),
        Some(bytes) if bytes >= WANTED_BYTES => Answer::ok(format!("{LIMIT} is {bytes}")),
        Some(bytes) => Answer::limited(
            format!("{LIMIT} is {bytes}"),
            "echo net.core.rmem_max=4194304 | sudo tee /etc/sysctl.d/10-outboard.conf && sudo sysctl --system",
        ),
    }
}

/// Returns the devices of a class.
fn listed(class: &str) -> Vec<Listing> {
    let mut classes = modules::registry::device_classes().iter();
    classes.find(|found| found.name() == class).map(|found| found.list()).unwrap_or_default()
}

/// `1 serial port`, `2 serial ports`.
fn counted(count: usize, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_string())
}

/// Returns the names in a directory; an unreadable directory counts as empty.
fn entries(directory: &str) -> Vec<String> {
    let Ok(found) = fs::read_dir(directory) else { return Vec::new() };
    let mut names: Vec<_> =
        found.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_of_a_port_is_that_of_its_node() {
        let node = std::env::current_exe().unwrap();
        let number = fs::metadata(&node).unwrap().gid();
        let groups = |name: &str| format!("dialout:x:{}:\n{name}:x:{number}:ada\n", number + 1);
        assert_eq!(owning_group(&node, &groups("uucp")), Some("uucp"));
        assert_eq!(owning_group(&node, &groups("root")), None);
        assert_eq!(owning_group(Path::new("/nowhere/ttyUSB0"), &groups("uucp")), None);
    }

    #[test]
    fn only_a_host_with_apt_is_told_to_run_it() {
        let step = |has_apt| install(has_apt, "nbd-client", "nbd-client (package nbd)");
        assert_eq!(step(true), "sudo apt install nbd-client");
        assert_eq!(step(false), "install nbd-client (package nbd)");
        let fixes = [kernel_nbd(), camera_node()].map(|answer| answer.fix.unwrap_or_default());
        assert!(has_apt() || fixes.iter().all(|fix| !fix.contains("apt install")), "{fixes:?}");
    }

    #[test]
    fn one_thing_is_not_counted_in_the_plural() {
        let counted = |count| super::counted(count, "serial port");
        assert_eq!([1, 2].map(counted), ["1 serial port", "2 serial ports"]);
    }
}
