//! The size of a window, which two sides change: the window's user, and the screen that the window shows.
//!
//! A screen that supports it takes the window's size and then sends pictures of that size. If the window took the size of each
//! picture meanwhile, sizes would circulate between the two. So the window takes no size while its user changes it, and none until
//! the screen has the user's size.
//!
//! | state | event | effect |
//! |---|---|---|
//! | following (initial) | a picture of another size | the window gets it |
//! | any | the window has another size than the last one agreed | that size is due; no picture changes the window until then |
//! | any | the window has the last size agreed again | nothing is due |
//! | any | a size is due, and the window has kept it for [`STILL`] | it is requested, → requested |
//! | requested | a picture of the window's size, and none is due | → following |
//! | requested | a picture of another size | it is placed in the window |

use contract::Time;
use std::time::Duration;

/// The time for which a window keeps its size before the screen is asked for it: each step of a drag would change the screen.
const STILL: Duration = Duration::from_millis(500);

type Size = (u32, u32);

/// The size of a window.
#[derive(Debug, Default)]
pub(super) struct WindowSize {
    /// The size that the X server reported last.
    reported: Option<Size>,
    /// The size that the window got from a picture, or that was requested from the screen, whichever was last.
    agreed: Size,
    /// The user's size was requested from the screen, which has not sent a picture of it.
    is_requested: bool,
    /// The time at which the user's size is requested.
    due: Option<Time>,
}

impl WindowSize {
    /// Takes the size that a picture needs. Returns it if the window is to get it.
    pub(super) fn fit(&mut self, size: Size) -> Option<Size> {
        if self.due.is_some() || self.is_requested && self.reported != Some(size) {
            return None;
        }
        let is_known = std::mem::take(&mut self.is_requested);
        let is_new = std::mem::replace(&mut self.agreed, size) != size;
        (is_new && !is_known).then_some(size)
    }

    /// Takes a size that the X server reports.
    pub(super) fn handle_report(&mut self, size: Size, now: Time) {
        if self.reported.replace(size) != Some(size) {
            self.due = (size != self.agreed).then(|| now.after(STILL));
        }
    }

    /// Returns the size in which a picture is placed: the one that the window has or is about to get.
    pub(super) fn expected(&self) -> Size {
        let is_users = self.due.is_some() || self.is_requested;
        self.reported.filter(|_| is_users).unwrap_or(self.agreed)
    }

    /// Returns the size to request from the screen, once it is due.
    pub(super) fn take_due(&mut self, now: Time) -> Option<Size> {
        self.due.take_if(|due| now >= *due)?;
        self.is_requested = true;
        self.agreed = self.reported?;
        Some(self.agreed)
    }

    /// Returns the time at which a size is due.
    pub(super) fn due(&self) -> Option<Time> {
        self.due
    }

    /// Returns the size that the screen was asked for and does not have.
    pub(super) fn requested(&self) -> Option<Size> {
        self.is_requested.then_some(self.agreed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Size = (980, 700);
    const MIDDLE: Size = (990, 700);
    const LARGE: Size = (1000, 700);

    fn at(milliseconds: u64) -> Time {
        Time::from_millis(milliseconds)
    }

    /// A window that has the size of its picture.
    fn window() -> WindowSize {
        let mut window = WindowSize::default();
        assert_eq!(window.fit(SMALL), Some(SMALL));
        window.handle_report(SMALL, at(0));
        assert_eq!((window.due(), window.fit(SMALL)), (None, None));
        window
    }

    #[test]
    fn a_drag_is_one_request_and_its_pictures_do_not_change_the_window() {
        let mut window = window();
        window.handle_report(MIDDLE, at(100));
        window.handle_report(LARGE, at(400));
        assert_eq!((window.take_due(at(700)), window.requested()), (None, None));
        assert_eq!(window.take_due(window.due().unwrap()), Some(LARGE));
        assert_eq!((window.due(), window.requested()), (None, Some(LARGE)));
        for late in [MIDDLE, SMALL] {
            assert_eq!((window.fit(late), window.expected()), (None, LARGE));
        }
        assert_eq!((window.fit(LARGE), window.requested()), (None, None));
        // The screen changes by itself.
        assert_eq!((window.fit(MIDDLE), window.expected()), (Some(MIDDLE), MIDDLE));
        window.handle_report(MIDDLE, at(2000));
        assert_eq!(window.due(), None);
    }

    #[test]
    fn a_window_changes_while_a_request_is_on_its_way() {
        let mut window = window();
        window.handle_report(MIDDLE, at(100));
        assert_eq!(window.take_due(at(1000)), Some(MIDDLE));
        window.handle_report(SMALL, at(1001));
        assert_eq!((window.fit(MIDDLE), window.expected()), (None, SMALL));
        assert_eq!(window.take_due(at(2000)), Some(SMALL));
        assert_eq!((window.fit(SMALL), window.requested()), (None, None));
    }

    #[test]
    fn a_window_that_returns_to_its_size_requests_nothing() {
        let mut window = window();
        window.handle_report(LARGE, at(100));
        assert_eq!(window.fit(MIDDLE), None, "the user changes it");
        window.handle_report(SMALL, at(200));
        assert_eq!(window.due(), None);
        assert_eq!(window.fit(MIDDLE), Some(MIDDLE));
    }

    #[test]
    fn a_window_keeps_the_size_that_its_screen_refuses() {
        let mut window = window();
        window.handle_report(LARGE, at(100));
        assert_eq!(window.take_due(at(1000)), Some(LARGE));
        assert_eq!((window.fit(MIDDLE), window.expected()), (None, LARGE));
        window.handle_report(LARGE, at(1001));
        assert_eq!((window.due(), window.requested()), (None, Some(LARGE)));
    }

    /// Two pictures of new sizes arrive before the window has the first one.
    #[test]
    fn reports_of_the_windows_own_changes_request_nothing() {
        let mut window = window();
        assert_eq!([window.fit(MIDDLE), window.fit(LARGE)], [Some(MIDDLE), Some(LARGE)]);
        window.handle_report(MIDDLE, at(1));
        window.handle_report(LARGE, at(2));
        assert_eq!((window.due(), window.requested(), window.expected()), (None, None, LARGE));
    }
}
