//! Hardware for the commands of the documentation.
//!
//! | need of a block | its name on the page | here |
//! |---|---|---|
//! | `serial-port` | `/dev/ttyUSB0` | a pseudo-terminal, on every machine |
//! | `x11` | `:0` | `Xvfb`, on machines with its package |
//! | others, such as `gamepad` | a path of a device | those that [`HAVE`] names, in the virtual machine (`tests/vm/long/guide`) |

use crate::support::display::Display;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use std::fs::{File, OpenOptions};

/// The environment variable with the hardware of this machine: `NEED NAME-ON-THE-PAGE NAME-HERE`, separated by commas.
pub(crate) const HAVE: &str = "OUTBOARD_PAGES_HAVE";

/// Hardware under one need.
struct Item {
    need: String,
    /// Text on the page, and in its place here.
    names: Vec<[String; 2]>,
}

/// All hardware that the pages may use here.
pub(crate) struct Hardware {
    items: Vec<Item>,
    /// Both ends of the serial line, open so that it stays.
    _line: [File; 2],
    _display: Option<Display>,
}

impl Hardware {
    /// Makes a serial line, and an X server for a page that needs it, and reads [`HAVE`].
    pub(crate) fn find(needs_screen: bool) -> Hardware {
        let item = |need: &str, names: &[[&str; 2]]| Item {
            need: need.into(),
            names: names.iter().map(|pair| pair.map(str::to_owned)).collect(),
        };
        let (line, port) = serial_line();
        let mut items = vec![item("serial-port", &[["/dev/ttyUSB0", &port]])];
        let display = needs_screen.then(Display::start).flatten();
        if let Some(Display { name, .. }) = &display {
            let (class, own) = (format!("x11:{name}"), format!(" {name}"));
            items.push(item("x11", &[["x11::0", &class], [" :0", &own]]));
        }
        items.extend(given().into_iter().map(|(need, names)| Item { need, names }));
        Hardware { items, _line: line, _display: display }
    }

    /// Returns true if this machine has all of `needs`.
    pub(crate) fn has(&self, needs: &str) -> bool {
        needs.split(',').all(|need| self.items.iter().any(|item| item.need == need))
    }

    /// Returns a line of a page with the names of this machine.
    pub(crate) fn here(&self, line: &str) -> String {
        let names = self.items.iter().flat_map(|item| &item.names);
        names.fold(line.to_owned(), |line, [page, here]| line.replace(page, here))
    }

    /// The X display, for programs that take it from their environment.
    pub(crate) fn display(&self) -> Option<&str> {
        let x11 = self.items.iter().find(|item| item.need == "x11")?;
        x11.names[0][1].strip_prefix("x11:")
    }
}

/// Returns the needs that [`HAVE`] names, with the names on the page and here.
pub(crate) fn given() -> Vec<(String, Vec<[String; 2]>)> {
    let text = std::env::var(HAVE).unwrap_or_default();
    let mut given = Vec::new();
    for words in text.split(',').filter(|words| !words.is_empty()) {
        let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
        given.push(match &words[..] {
            [need] => (need.clone(), Vec::new()),
            [need, page, here] => (need.clone(), vec![[page.clone(), here.clone()]]),
            _ => panic!("{HAVE}: {words:?}"),
        });
    }
    given
}

/// Returns both ends of a serial line, and the name of its port.
fn serial_line() -> ([File; 2], String) {
    let device = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&device).unwrap();
    unlockpt(&device).unwrap();
    let port = ptsname(&device, Vec::new()).unwrap().into_string().unwrap();
    let kept = OpenOptions::new().read(true).write(true).open(&port).unwrap();
    ([device.into(), kept], port)
}
