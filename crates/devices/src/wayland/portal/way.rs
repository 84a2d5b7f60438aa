//! The worker's side: frames from the shared memory, and input as orders on the control socket.

use super::keys::HeldKeys;
use super::memory::{End, Frames, Newest, Word};
use super::order::{Order, Wheel};
use crate::helper_thread::{Other, clear};
use crate::wayland::picture::{Frame, Turn};
use crate::wayland::screen::Screen;
use crate::wayland::way::Way;
use contract::{Interest, PartnerError, Readiness, Report, Time};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// Queued orders above which no more input is taken.
const QUEUE_MAX: usize = 256;
/// Codes of buttons (`linux/input-event-codes.h`) by the bit of the viewer's format.
const BUTTONS: [(u8, u32); 5] = [(0, 0x110), (1, 0x112), (2, 0x111), (7, 0x113), (8, 0x114)];
const WHEEL: [(u8, Wheel); 4] = [(3, Wheel::Up), (4, Wheel::Down), (5, Wheel::Left), (6, Wheel::Right)];

/// The error of a share that has ended.
const ENDED: io::ErrorKind = io::ErrorKind::NotConnected;

/// A share that the user of the desktop has granted.
#[derive(Debug)]
pub(in crate::wayland) struct Portal {
    control: OwnedFd,
    frames: Frames,
    size: (u32, u32),
    queue: VecDeque<Order>,
    keys: HeldKeys,
    buttons: u16,
    position: Option<(u32, u32)>,
}

impl Portal {
    /// Continues a share. The worker before may have left keys down.
    pub(in crate::wayland) fn new([control, memory]: [OwnedFd; 2], size: (u32, u32)) -> io::Result<Portal> {
        Ok(Portal {
            control,
            frames: Frames::map(memory)?,
            size,
            queue: VecDeque::from([Order::ReleaseAll]),
            keys: HeldKeys::default(),
            buttons: 0,
            position: None,
        })
    }

    fn read(&self, newest: &Newest, screen: &mut Screen, now: Time) -> io::Result<()> {
        let Newest { start, layout, damaged } = newest;
        let frame =
            Frame { memory: self.frames.memory(), start: *start, layout: *layout, turn: Turn::default() };
        screen.read(&frame, Some(*damaged), now)
    }
}

impl Way for Portal {
    fn exchange(&mut self, _: &mut Screen, _: Time) -> io::Result<()> {
        let other = clear(self.control.as_fd());
        if other == Other::Gone || self.frames.end().is_some() {
            return Err(ENDED.into());
        }
        self.flush()
    }

    fn pull(&mut self, screen: &mut Screen, now: Time) -> io::Result<()> {
        // A worker that was killed may have taken the newest frame.
        if screen.size().is_none()
            && !self.frames.is_fresh()
            && let Some(newest) = self.frames.front()
        {
            return self.read(&newest, screen, now);
        }
        if screen.rhythm.next_at() > now {
            return Ok(());
        }
        let Some(newest) = self.frames.take() else { return Ok(()) };
        screen.rhythm.advance(now);
        self.read(&newest, screen, now)
    }

    fn set_watched(&mut self, is_watched: bool) {
        self.queue.push_back(Order::Watch(is_watched));
    }

    fn frame_readiness(&self, screen: &Screen) -> Readiness<'_> {
        let writes = (!self.queue.is_empty()).then(|| (self.control.as_fd(), Interest::Write));
        let descriptors = [Some((self.control.as_fd(), Interest::Read)), writes];
        let due = self.frames.is_fresh().then(|| screen.rhythm.next_at());
        Readiness { descriptors, ..Readiness::default() }.or_at(due)
    }

    fn size(&self) -> (u32, u32) {
        self.size
    }

    fn change_key(&mut self, keysym: u32, pressed: bool) -> io::Result<bool> {
        let changes = match pressed {
            true => self.keys.press(keysym).map(|key| key.into_iter().collect()),
            false => Ok(self.keys.release(keysym)),
        };
        let Ok(changes) = changes else { return Ok(false) };
        self.queue.extend(changes.into_iter().map(|keysym| Order::Key { keysym, pressed }));
        Ok(true)
    }

    fn change_pointer(
        &mut self,
        (x, y): (u32, u32),
        buttons: u16,
        (width, height): (u32, u32),
    ) -> io::Result<()> {
        let position = (x.min(width.saturating_sub(1)), y.min(height.saturating_sub(1)));
        // The user of the screen may have moved the pointer, so a change of buttons needs the position, too.
        if self.position != Some(position) || self.buttons != buttons {
            self.position = Some(position);
            self.queue.push_back(Order::Motion { x: position.0, y: position.1 });
        }
        let changed = self.buttons ^ buttons;
        self.buttons = buttons;
        for (bit, code) in BUTTONS.into_iter().filter(|(bit, _)| changed >> bit & 1 != 0) {
            self.queue.push_back(Order::Button { code, pressed: buttons >> bit & 1 != 0 });
        }
        for (_, wheel) in WHEEL.into_iter().filter(|(bit, _)| (changed & buttons) >> bit & 1 != 0) {
            self.queue.push_back(Order::Wheel(wheel));
        }
        Ok(())
    }

    fn release_all(&mut self, _: (u32, u32)) -> io::Result<()> {
        self.keys.clear();
        self.buttons = 0;
        // Input that has not left yet is void.
        self.queue.retain(|order| matches!(order, Order::Watch(_)));
        self.queue.push_back(Order::ReleaseAll);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        while let Some(order) = self.queue.front() {
            match rustix::io::write(&self.control, &order.emit()) {
                Ok(_) => drop(self.queue.pop_front()),
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(ENDED.into()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.queue.len() >= QUEUE_MAX
    }

    fn input_readiness(&self) -> Readiness<'_> {
        Readiness::descriptor(self.control.as_fd(), Interest::Write)
    }

    fn figures(&self) -> Vec<Report> {
        vec![
            ("frames of the compositor", self.frames.load(Word::Frames) as f64),
            ("inputs that the portal refused", self.frames.load(Word::Refused) as f64),
        ]
    }

    fn error(&self, error: io::Error) -> PartnerError {
        match (error.kind(), self.frames.end()) {
            (ENDED, Some(End::Desktop)) => PartnerError::Gone(
                "the share of the monitor, which the desktop has ended (GNOME does so when its screen is locked; run `outboard share` again \
                 to ask for it),"
                    .into(),
            ),
            (ENDED, _) => PartnerError::Gone("the desktop behind the portal".into()),
            _ => PartnerError::os("using the desktop behind the portal", error),
        }
    }
}
