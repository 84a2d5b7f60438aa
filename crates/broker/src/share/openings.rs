//! The devices of processes that join are opened on threads of their own: a device, or the dialog that asks its user, may
//! take long, and the peers of other devices need this host meanwhile.

use crate::offers::OpenDevice;
use crate::share_request::ShareDevice;
use contract::ServiceError;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SendError, Sender, channel};
use std::thread;
use sys::event::Event as Wake;
use sys::poller::Poller;

/// Most devices that are being opened at once.
const OPENINGS_MAX: usize = 32;

/// The device of a process that joins, open or refused.
pub(super) struct Opening {
    pub(super) visitor: u64,
    pub(super) device: ShareDevice,
    pub(super) result: Result<OpenDevice, ServiceError>,
}

pub(super) struct Openings {
    sender: Sender<Opening>,
    finished: Receiver<Opening>,
    wake: Wake,
    /// Each thread has a copy.
    count: Arc<()>,
}

impl Openings {
    pub(super) fn new() -> io::Result<Openings> {
        let (sender, finished) = channel();
        Ok(Openings { sender, finished, wake: Wake::new()?, count: Arc::new(()) })
    }

    pub(super) fn begin(&self, visitor: u64, device: ShareDevice) -> io::Result<()> {
        if Arc::strong_count(&self.count) > OPENINGS_MAX {
            return Err(io::Error::other("too many devices are being opened"));
        }
        let (sender, wake, counted) = (self.sender.clone(), self.wake.clone(), self.count.clone());
        let open = move || {
            let result = OpenDevice::open(&device);
            // The host may have ended.
            if let Err(SendError(Opening { result: Ok(open), .. })) =
                sender.send(Opening { visitor, device, result })
            {
                open.discard();
            }
            drop(counted);
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
