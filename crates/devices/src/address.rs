//! Devices named by their address alone, such as `/dev/ttyUSB0` or `film.y4m`: the class of an obvious address, and
//! advice for other words that users try.

use crate::side::counterpart;
use contract::{Role, nearest};
use std::borrow::Cow;
use std::path::Path;

/// The class of a device, and the class of its stand-in, if the stand-in can have such an address.
struct Classes {
    device: &'static str,
    application: Option<&'static str>,
}

const fn classes(device: &'static str, application: &'static str) -> Classes {
    Classes { device, application: Some(application) }
}

/// Starts of paths that belong to a class.
const STARTS: &[(&str, Classes)] = &[
    ("/dev/input/event", Classes { device: "evdev", application: None }),
    ("/dev/input/by-id/", Classes { device: "evdev", application: None }),
    ("/dev/input/by-path/", Classes { device: "evdev", application: None }),
    ("/dev/hidraw", Classes { device: "hid", application: None }),
    ("/dev/tty", classes("serial", "pty")),
    ("/dev/serial/", classes("serial", "pty")),
    ("/dev/rfcomm", classes("serial", "pty")),
    ("/dev/pts/", classes("serial", "pty")),
    ("/dev/video", classes("v4l2", "v4l2")),
    ("/dev/v4l/", classes("v4l2", "v4l2")),
    ("/dev/fb", classes("fb", "fb")),
    ("/dev/snd/midi", classes("midi", "midi")),
    ("/dev/sd", Classes { device: "block", application: None }),
    ("/dev/nvme", Classes { device: "block", application: None }),
    ("/dev/mmcblk", Classes { device: "block", application: None }),
    ("/dev/vd", Classes { device: "block", application: None }),
    ("/dev/loop", Classes { device: "block", application: None }),
    ("/dev/sr", Classes { device: "block", application: None }),
    ("/dev/disk/", Classes { device: "block", application: None }),
    ("/run/spnav.sock", classes("spnav", "spnav")),
    ("/var/run/spnav.sock", classes("spnav", "spnav")),
];

/// Ends of paths that belong to a class.
const ENDS: &[(&str, Classes)] = &[
    (".y4m", classes("y4m", "y4m")),
    (".mjpeg", classes("mjpeg", "mjpeg")),
    (".mjpg", classes("mjpeg", "mjpeg")),
];

const DISPLAY: Classes = classes("x11", "window");
const WAYLAND: Classes = Classes { device: "wayland", application: None };

/// Words of users for things that a class carries under another name.
const OTHER_NAMES: &[(&str, &str)] = &[
    ("keyboard", "evdev"),
    ("mouse", "evdev"),
    ("gamepad", "evdev"),
    ("joystick", "evdev"),
    ("input", "evdev"),
    ("event", "evdev"),
    ("hidraw", "hid"),
    ("uhid", "hid"),
    ("fido", "hid"),
    ("u2f", "hid"),
    ("yubikey", "hid"),
    ("dualsense", "hid"),
    ("spacemouse", "spnav"),
    ("spacenav", "spnav"),
    ("spacenavd", "spnav"),
    ("spacenavigator", "spnav"),
    ("3dconnexion", "spnav"),
    ("piano", "midi"),
    ("synth", "midi"),
    ("synthesizer", "midi"),
    ("rawmidi", "midi"),
    ("sequencer", "midi"),
    ("sound", "audio"),
    ("alsa", "audio"),
    ("pulse", "audio"),
    ("mic", "audio"),
    ("microphone", "audio"),
    ("speaker", "audio"),
    ("headset", "audio"),
    ("snd", "audio"),
    ("camera", "v4l2"),
    ("webcam", "v4l2"),
    ("cam", "v4l2"),
    ("video", "v4l2"),
    ("v4l", "v4l2"),
    ("com", "serial"),
    ("uart", "serial"),
    ("rs232", "serial"),
    ("vnc", "rfb"),
    ("x", "x11"),
    ("xorg", "x11"),
    ("wlroots", "wayland"),
    ("sway", "wayland"),
    ("framebuffer", "fb"),
    ("cmd", "exec"),
    ("run", "exec"),
    ("sh", "exec"),
    ("socket", "unix"),
    ("disk", "block"),
    ("drive", "block"),
    ("hdd", "block"),
    ("ssd", "block"),
    ("partition", "block"),
];

/// Words of users for the screen of this session, which may be one of Wayland.
const SCREENS: &[&str] = &["screen", "display", "desktop", "monitor"];

/// Things without a class of their own, and the way to share them.
const WITHOUT_CLASS: &[(&[&str], &str)] = &[
    (
        &["usb", "/dev/bus/usb/"],
        "there is no class for a whole USB device yet: share its function as `evdev:PATH` (keyboard, mouse, gamepad), \
         `hid:PATH` (whole gamepad, FIDO key), `serial:PATH` (serial board) or `v4l2:PATH` (camera); `outboard devices` lists them",
    ),
    (
        &["hiddev", "/dev/usb/hiddev"],
        "this is an old interface of a HID device: share its `/dev/hidraw…`; `outboard devices` lists them",
    ),
    (
        &["/dev/input/js", "/dev/input/mouse", "/dev/input/mice"],
        "this is an old interface of an input device: share its `/dev/input/event…`; `outboard devices` lists them",
    ),
    (
        &["/dev/snd/", "/dev/dsp"],
        "sound devices have names: `audio` is the default microphone and speaker, `audio:hw:CARD` a card of ALSA; `outboard devices` \
         lists them",
    ),
    (
        &["gpio", "i2c", "spi", "/dev/gpiochip", "/dev/i2c-", "/dev/spidev"],
        "there is no class for GPIO, I2C and SPI yet: share a program that uses the pins as `exec:COMMAND`",
    ),
    (
        &["rtsp", "http", "https"],
        "there is no class for media servers: ffmpeg reads them, `ffmpeg -i URL -f yuv4mpegpipe - | outboard share y4m`",
    ),
];

/// Ends of compressed films, which travel as the bytes of a file.
const FILMS: &[&str] = &[".mp4", ".mkv", ".webm", ".avi", ".mov", ".m4v", ".h264", ".264", ".h265", ".ts"];
const FILM: Classes = classes("file", "file");

/// Returns `CLASS:ADDRESS` for a device that is written as an obvious address; any other text unchanged.
pub fn with_class(text: &str, role: Role) -> Cow<'_, str> {
    match classes_of(text).and_then(|classes| class(classes, role)) {
        Some(class) => format!("{class}:{text}").into(),
        None => text.into(),
    }
}

fn class(classes: &Classes, role: Role) -> Option<&'static str> {
    match role {
        Role::Device => Some(classes.device),
        Role::Application => classes.application,
    }
}

/// Finds the classes of an address. Options may follow it.
fn classes_of(text: &str) -> Option<&'static Classes> {
    if is_display(text) {
        return Some(&DISPLAY);
    }
    if is_wayland_display(text) {
        return Some(&WAYLAND);
    }
    if is_of_class(text) {
        return None;
    }
    let address = without_options(text);
    let end_of = |address: &str| {
        let mut ends = ENDS.iter().filter(|(end, _)| address.len() > end.len() && address.ends_with(end));
        ends.next().map(|(_, classes)| classes)
    };
    let film =
        || FILMS.iter().any(|end| address.len() > end.len() && address.ends_with(end)).then_some(&FILM);
    start_of(address).or_else(|| end_of(address)).or_else(film)
}

fn start_of(path: &str) -> Option<&'static Classes> {
    STARTS.iter().find(|(start, _)| path.starts_with(start)).map(|(_, classes)| classes)
}

/// Returns the text without the options at its end, `,name=value`. Other commas belong to the address.
fn without_options(text: &str) -> &str {
    let is_option = |at: &usize| {
        let name = text[at + 1..].split('=').next().unwrap_or_default();
        text[at + 1..].len() > name.len()
            && !name.is_empty()
            && name.chars().all(|c| c.is_ascii_alphanumeric())
    };
    let mut commas = text.match_indices(',').map(|(at, _)| at);
    commas.find(is_option).map_or(text, |at| &text[..at])
}

/// Returns true if the text names a class before its colon.
fn is_of_class(text: &str) -> bool {
    crate::find(text.split(':').next().unwrap_or_default()).is_some()
}

/// `:0` or `:0.0`, an X11 display of this host. A VNC server is `:5900`.
fn is_display(text: &str) -> bool {
    let address = without_options(text);
    let Some(numbers) = address.strip_prefix(':') else { return false };
    let mut numbers = numbers.split('.');
    let is_number = |text: &str| (1..=3).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    numbers.next().is_some_and(is_number) && numbers.next().is_none_or(is_number) && numbers.next().is_none()
}

/// `wayland-0`, the usual name of a Wayland display, also as the end of a path.
fn is_wayland_display(text: &str) -> bool {
    let address = without_options(text);
    let name = if address.starts_with('/') { address.rsplit('/').next() } else { Some(address) };
    let number = name.and_then(|name| name.strip_prefix("wayland-")).unwrap_or_default();
    (1..=3).contains(&number.len()) && number.bytes().all(|b| b.is_ascii_digit())
}

/// Explains a text without a known class, and gives the text to write.
pub(crate) fn advice(text: &str, role: Role) -> String {
    let address = without_options(text);
    let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
    let is_meant = |word: &&str| match word.starts_with('/') {
        true => text.starts_with(word),
        false => kind.eq_ignore_ascii_case(word),
    };
    if let Some((_, advice)) = WITHOUT_CLASS.iter().find(|(words, _)| words.iter().any(is_meant)) {
        return (*advice).into();
    }
    if let Some(classes) = classes_of(text) {
        let node = match classes.device {
            "block" => {
                return "a disk of another host is a server at a local socket: write `nbd`, or `nbd:PATH`"
                    .into();
            }
            "hid" => "hid",
            "wayland" => {
                return "a screen of another host is shown in a window: write `window` on an X11 desktop (Xwayland is one), or `rfb:5901` for \
                        any VNC viewer"
                    .into();
            }
            _ => "uinput",
        };
        return format!("the kernel chooses the path of a new input device: write `{node}`");
    }
    if let Some(place) = rest.strip_prefix("//") {
        let near = other_name(kind, role).unwrap_or("tcp");
        return format!("a device is no URL: write `{near}:{place}`");
    }
    if rest.parse::<u16>().is_ok() && other_name(kind, role) == Some("rfb") {
        let host = if role == Role::Device { "localhost:" } else { "" };
        return format!("there is no device class `{kind}`; did you mean `rfb:{host}{rest}`?");
    }
    if rest.parse::<u16>().is_ok() && !kind.is_empty() {
        return format!(
            "write `rfb:{text}` for the screen of a VNC server, or `tcp:{text}` for the bytes of a server"
        );
    }
    if kind.is_empty() || address.parse::<u16>().is_ok() {
        let port = address.trim_start_matches(':');
        return match role {
            Role::Device => {
                format!("write `rfb:localhost:{port}` for the screen of a VNC server on this host")
            }
            Role::Application => format!("write `rfb:{port}` for a VNC server on this host"),
        };
    }
    let is_name = !text.contains([':', '/']);
    if let Some(path) = below_dev(text).find(|path| is_name && start_of(path).is_some()) {
        return match with_class(&path, role) {
            Cow::Owned(_) => format!("did you mean `{path}`?"),
            Cow::Borrowed(_) => advice(&path, role),
        };
    }
    if kind.contains('/') || kind.starts_with('.') || (rest.is_empty() && kind.contains('.')) {
        return path(address, role);
    }
    unknown_class(kind, rest, role)
}

fn below_dev(name: &str) -> impl Iterator<Item = String> {
    ["/dev/", "/dev/input/"].into_iter().map(move |directory| format!("{directory}{name}"))
}

/// The path below `/dev` that `serial:ttyUSB0` means.
pub(crate) fn path_below_dev(class: &str, target: &str) -> Option<String> {
    below_dev(target).find(|path| start_of(path).is_some_and(|classes| classes.device == class))
}

/// A path without an obvious class.
fn path(path: &str, role: Role) -> String {
    let host = path.split('/').next().unwrap_or_default();
    let is_remote = !host.is_empty() && !host.starts_with('.') && path.matches('/').count() == 1;
    match role {
        Role::Application => format!("write `pty:{path}` for a serial port, or `file:{path}` for a file"),
        Role::Device if path.starts_with("/dev/") && !Path::new(path).exists() => {
            "there is no such device; `outboard devices` lists the devices".into()
        }
        Role::Device if is_remote => format!(
            "write `file:{path}` for a file of this host; `outboard attach {path}` uses a device of the host `{host}`"
        ),
        Role::Device => format!("write `file:{path}` for a file, or `serial:{path}` for a serial port"),
    }
}

fn unknown_class(kind: &str, rest: &str, role: Role) -> String {
    let known = || crate::DEVICES.iter().filter(|class| class.has_role(role)).map(|class| class.name());
    let target = if rest.is_empty() { String::new() } else { format!(":{rest}") };
    match other_name(kind, role).or_else(|| nearest(kind, known())) {
        Some(near) => {
            let is_listed = crate::find(near).is_some_and(|class| class.subsystem().is_some());
            let list = match role == Role::Device && rest.is_empty() && is_listed {
                true => " `outboard devices` lists the devices",
                false => "",
            };
            format!("there is no device class `{kind}`; did you mean `{near}{target}`?{list}")
        }
        None if kind.contains(char::is_whitespace) => {
            format!("write `exec:{kind}{target}` for a program, which `sh` runs")
        }
        None => {
            let known: Vec<_> = known().collect();
            let file = match role {
                Role::Application if rest.is_empty() => format!(" (`file:{kind}` is a file)"),
                _ => String::new(),
            };
            format!("there is no device class `{kind}`{file}; the classes are: {}", known.join(", "))
        }
    }
}

/// The class that users call `kind`, for this side.
pub fn other_name(kind: &str, role: Role) -> Option<&'static str> {
    let is_wayland = std::env::var_os("WAYLAND_DISPLAY").is_some_and(|name| !name.is_empty());
    other_name_in(is_wayland, kind, role)
}

/// The class that users call `kind` in a session of Wayland or of X11.
fn other_name_in(is_wayland: bool, kind: &str, role: Role) -> Option<&'static str> {
    let is_meant = |word: &&str| kind.eq_ignore_ascii_case(word);
    let device = match SCREENS.iter().any(is_meant) {
        true if is_wayland => "wayland",
        true => "x11",
        false => OTHER_NAMES.iter().find(|(word, _)| is_meant(word)).map(|(_, device)| *device)?,
    };
    let is_one_sided = crate::find(device).is_some_and(|class| !class.has_role(role));
    if is_one_sided { Some(counterpart(device)) } else { Some(device) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::parse;

    #[track_caller]
    fn class_of(text: &str, role: Role) -> &'static str {
        parse(text, role).unwrap_or_else(|error| panic!("{text}: {error}")).0.name()
    }

    #[test]
    fn obvious_addresses_find_their_class() {
        for (address, device, application) in [
            ("/dev/ttyUSB0", "serial", "pty"),
            ("/dev/ttyS0", "serial", "pty"),
            ("/dev/serial/by-id/usb-FTDI_FT232R-if00-port0", "serial", "pty"),
            ("/dev/video0", "v4l2", "v4l2"),
            ("/dev/v4l/by-path/pci-0000:00:14.0-usb-0:1:1.0-video-index0", "v4l2", "v4l2"),
            ("/dev/fb0", "fb", "fb"),
            ("/dev/snd/midiC1D0", "midi", "midi"),
            (":0", "x11", "window"),
            (":1.0", "x11", "window"),
            ("film.y4m", "y4m", "y4m"),
            ("./a,b/x.mjpeg", "mjpeg", "mjpeg"),
            ("film.mkv", "file", "file"),
        ] {
            assert_eq!(class_of(address, Role::Device), device, "{address}");
            assert_eq!(class_of(address, Role::Application), application, "{address}");
        }
        for address in ["/dev/sdb1", "/dev/nvme0n1", "/dev/disk/by-id/usb-disk"] {
            assert_eq!(class_of(address, Role::Device), "block", "{address}");
        }
        for address in ["wayland-0", "wayland-1,output=DP-1", "/run/user/1000/wayland-0"] {
            assert_eq!(class_of(address, Role::Device), "wayland", "{address}");
            assert!(advice(address, Role::Application).contains("`window`"), "{address}");
        }
        for address in ["/dev/input/event3", "/dev/input/by-path/pci-0000:00:14.0-usb-0:2:1.0-event-kbd"] {
            assert_eq!(class_of(address, Role::Device), "evdev", "{address}");
            assert!(advice(address, Role::Application).contains("`uinput`"), "{address}");
        }
        assert_eq!(class_of("file:film.y4m", Role::Device), "file", "a class that the user writes counts");
        let (_, serial) = parse("/dev/ttyUSB0,baud=9600", Role::Device).unwrap();
        assert_eq!((serial.target.as_str(), serial.options.integer("baud")), ("/dev/ttyUSB0", 9600));
    }

    #[test]
    fn advice_names_the_text_to_write() {
        let (device, application) = (Role::Device, Role::Application);
        for (text, role, says) in [
            ("usb:1-2", device, "`evdev:PATH`"),
            ("hidraw:/dev/hidraw0", device, "did you mean `hid:/dev/hidraw0`?"),
            ("hidraw0", device, "did you mean `/dev/hidraw0`?"),
            ("/dev/hidraw0", application, "write `hid`"),
            ("/dev/usb/hiddev0", device, "/dev/hidraw"),
            ("microphone", device, "did you mean `audio`?"),
            ("/dev/snd/pcmC0D0c", device, "`audio:hw:CARD`"),
            ("/dev/sda", application, "write `nbd`"),
            ("disk:/dev/sda", device, "did you mean `block:/dev/sda`?"),
            ("/dev/input/js0", device, "/dev/input/event"),
            ("/dev/input/evnt3", device, "there is no such device; `outboard devices` lists the devices"),
            ("/dev/null", device, "write `file:/dev/null`"),
            ("/dev/nothing", application, "write `pty:/dev/nothing`"),
            ("vnc://studio:5901", device, "write `rfb:studio:5901`"),
            ("localhost:5901", device, "write `rfb:localhost:5901`"),
            (":5900", application, "write `rfb:5900`"),
            ("5900", application, "write `rfb:5900`"),
            ("ttyUSB0", device, "did you mean `/dev/ttyUSB0`?"),
            ("event3", device, "did you mean `/dev/input/event3`?"),
            ("event3", application, "write `uinput`"),
            ("uart:/dev/ttyUSB0", device, "did you mean `serial:/dev/ttyUSB0`?"),
            ("uart:/tmp/a", application, "did you mean `pty:/tmp/a`?"),
            ("webcam", device, "did you mean `v4l2`?"),
            ("/tmp/plc", application, "write `pty:/tmp/plc`"),
            ("notes.txt", device, "write `file:notes.txt`"),
            ("studio/plc", device, "`outboard attach studio/plc`"),
        ] {
            let advice = advice(text, role);
            assert!(advice.contains(says), "{text}: {advice}");
        }
    }

    #[test]
    fn the_words_for_a_screen_mean_that_of_the_session() {
        for word in ["screen", "display", "Desktop", "monitor"] {
            for (is_wayland, device) in [(true, "wayland"), (false, "x11")] {
                assert_eq!(other_name_in(is_wayland, word, Role::Device), Some(device), "{word}");
                assert_eq!(other_name_in(is_wayland, word, Role::Application), Some("window"), "{word}");
            }
        }
        assert_eq!(other_name_in(true, "xorg", Role::Device), Some("x11"));
    }

    #[test]
    fn every_class_with_one_side_has_a_counterpart() {
        for class in crate::DEVICES {
            let sides = [Role::Device, Role::Application].map(|role| class.has_role(role));
            let has_counterpart = crate::find(counterpart(class.name())).is_some();
            assert!(has_counterpart || sides == [true, true], "{}", class.name());
        }
        for (_, name) in OTHER_NAMES {
            assert!(crate::find(name).is_some(), "{name}");
        }
    }
}
