//! The devices of processes that join are opened on threads of their own: a device, or the dialog that asks its user, may
//! take long, and the peers of other devices need this host meanwhile.

use crate::offers::OpenDevice;
use crate::share_request::ShareDevice;
use contract::ServiceError;
use std::io;
use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use sys::event::Event as Wake;
use sys::poller::Poller;

/// The device of a process that joins, open or refused.
pub(super) struct Opening {
    pub(super) visitor: u64,
    pub(super) device: ShareDevice,
    pub(super) result: Result<OpenDevice, ServiceError>,
}

/// The devices that are being opened.
pub(super) struct Openings {
    sender: Sender<Opening>,
    finished: Receiver<Opening>,
    wake: Wake,
}

impl Openings {
    pub(super) fn new() -> io::Result<Openings> {
        let (sender, finished) = channel();
        Ok(Openings { sender, finished, wake: Wake::new()? })
    }

    /// Begins to open a device. The process that asks for it is one of a limited number.
    pub(super) fn begin(&self, visitor: u64, device: ShareDevice) -> io::Result<()> {
        let (sender, wake) = (self.sender.clone(), self.wake.clone());
        let open = move || {
            let result = OpenDevice::open(&device);
            if let Err(unsent) = sender.send(Opening { visitor, device, result }) {
                // The host has ended.
                unsent.0.discard();
            }
            wake.signal();
        };
        thread::Builder::new().name("open".into()).spawn(open).map(drop)
    }

    pub(super) fn register(&self, poller: &mut Poller) {
        poller.register(self.wake.as_fd(), true, false);
    }

    /// Returns the next device that is open or refused.
    pub(super) fn next(&self, poller: &Poller) -> Option<Opening> {
        if !poller.is_ready(self.wake.as_fd()) {
            return None;
        }
        self.wake.clear();
        self.finished.try_recv().ok()
    }
}

impl Opening {
    /// Closes a device that nobody wants any more.
    pub(super) fn discard(self) {
        if let Ok(open) = self.result {
            open.discard();
        }
    }
}
