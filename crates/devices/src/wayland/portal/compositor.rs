//! The compositor behind the portal. The portals pass input on as it is, and the compositors take it in different units.
//!
//! | compositor | turn of the wheel | position of the pointer | its screen is locked |
//! |---|---|---|---|
//! | mutter (GNOME) | steps | pixels of the stream | it closes all sessions |
//! | KWin (KDE) | a length; a step of a wheel is 15, as libinput has | coordinates of the desktop | not known |
//! | others | steps | coordinates of the desktop, as the portal's documentation says | not known |

use super::order::Wheel;

/// A compositor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Compositor {
    Mutter,
    Kwin,
    Other,
}

/// The names of compositors on the session bus. The environment of a service or of a remote shell may name no desktop.
const NAMES: [(&str, Compositor); 2] =
    [("org.gnome.Mutter.RemoteDesktop", Compositor::Mutter), ("org.kde.KWin", Compositor::Kwin)];
/// The length of a step of the wheel for KWin.
const KWIN_STEP: i32 = 15;

impl Compositor {
    /// Finds the compositor by the names on the session bus.
    pub(super) fn find(has_name: impl Fn(&str) -> bool) -> Compositor {
        let found = NAMES.into_iter().find(|(name, _)| has_name(name));
        found.map_or(Compositor::Other, |(_, compositor)| compositor)
    }

    /// Returns true if the desktop ends its shares when its screen is locked, which it does by itself when it has been idle.
    pub(super) fn ends_shares_when_locked(self) -> bool {
        self == Compositor::Mutter
    }

    /// Returns the axis and the turn of `NotifyPointerAxisDiscrete` for a step of the wheel.
    pub(super) fn turn(self, wheel: Wheel) -> (u32, i32) {
        let (axis, steps) = wheel.axis();
        match self {
            Compositor::Kwin => (axis, steps * KWIN_STEP),
            Compositor::Mutter | Compositor::Other => (axis, steps),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compositors_are_told_apart_by_their_names() {
        let kwin = Compositor::find(|name| name == "org.kde.KWin");
        assert_eq!(kwin.turn(Wheel::Up), (0, -15));
        assert_eq!(kwin.turn(Wheel::Right), (1, 15));
        assert!(!kwin.ends_shares_when_locked());
        let mutter = Compositor::find(|name| name == "org.gnome.Mutter.RemoteDesktop");
        assert!(mutter.ends_shares_when_locked());
        for compositor in [mutter, Compositor::find(|_| false)] {
            assert_eq!(compositor.turn(Wheel::Down), (0, 1));
            assert_eq!(compositor.turn(Wheel::Left), (1, -1));
        }
    }
}
