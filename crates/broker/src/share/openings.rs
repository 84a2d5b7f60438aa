//! The devices of processes that join are opened on threads of their own: a device, or the dialog that asks its user, may
//! take long, and the peers of other devices need this host meanwhile. A device of this process is opened likewise if its class
//! asks the user or another host, so that neither a stop nor a service manager's watchdog waits for the answer.

use crate::offers::OpenDevice;
use crate::share_request::ShareDevice;
use contract::ServiceError;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SendError, Sender, channel};
use std::thread;
use std::time::Duration;
use sys::event::Event as Wake;
use sys::poller::Poller;
use sys::stop::Stop;

/// Most devices that are being opened at once.
const OPENINGS_MAX: usize = 32;

/// The wait for an answer to a withdrawn question.
const WITHDRAWAL_TIMEOUT: Duration = Duration::from_secs(2);

/// A device, open or refused.
pub struct Opening {
    /// The number that the caller chose for it: the process that joins, or the device.
    pub visitor: u64,
    /// The request.
    pub device: ShareDevice,
    /// The open device, or the reason of the refusal.
    pub result: Result<OpenDevice, ServiceError>,
}

/// Opens a device of this process. Returns `None` if the stop is raised while its user is asked.
pub(super) fn open_until(device: &ShareDevice, stop: &Stop) -> Result<Option<OpenDevice>, ServiceError> {
    if device.question().is_none() {
        return OpenDevice::open(device).map(Some);
    }
    let failed = |error| ServiceError::os("opening a device", error);
    let mut openings = Openings::new().map_err(failed)?;
    openings.begin(0, device.clone()).map_err(failed)?;
    let mut poller = Poller::new().map_err(failed)?;
    loop {
        poller.register(stop.wakes(), true, false);
        openings.register(&mut poller);
        poller.wait(None).map_err(failed)?;
        if let Some(opening) = openings.next(&poller) {
            return opening.result.map(Some);
        }
        if stop.is_requested() {
            openings.end();
            return Ok(None);
        }
    }
}

/// The devices that are being opened.
pub struct Openings {
    sender: Sender<Opening>,
    finished: Receiver<Opening>,
    wake: Wake,
    /// The devices that are being opened, by visitor.
    opening: BTreeMap<u64, ShareDevice>,
    /// Each thread has a copy.
    count: Arc<()>,
}

impl Openings {
    /// Opens nothing yet.
    pub fn new() -> io::Result<Openings> {
        let (sender, finished) = channel();
        Ok(Openings { sender, finished, wake: Wake::new()?, opening: BTreeMap::new(), count: Arc::new(()) })
    }

    /// Returns whether the most devices are being opened that may be at once. The next wake-up may change this.
    pub fn is_full(&self) -> bool {
        Arc::strong_count(&self.count) > OPENINGS_MAX
    }

    /// Opens a device on a thread.
    pub fn begin(&mut self, visitor: u64, device: ShareDevice) -> io::Result<()> {
        if self.is_full() {
            return Err(io::Error::other("too many devices are being opened"));
        }
        self.opening.insert(visitor, device.clone());
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

    /// Registers for the next device that is open or refused.
    pub fn register(&self, poller: &mut Poller) {
        poller.register(self.wake.as_fd(), true, false);
    }

    /// Closes the dialog of a visitor that has left.
    pub fn withdraw(&self, visitor: u64) {
        if let Some(device) = self.opening.get(&visitor) {
            device.withdraw();
        }
    }

    /// Returns the next device that is open or refused.
    pub fn next(&mut self, poller: &Poller) -> Option<Opening> {
        if !poller.is_ready(self.wake.as_fd()) {
            return None;
        }
        self.wake.clear();
        self.finished.try_recv().ok().inspect(|opening| drop(self.opening.remove(&opening.visitor)))
    }

    /// Closes all dialogs. Waits until the desktop has closed them, because this process may end.
    pub fn end(&mut self) {
        self.opening.retain(|_, device| !device.waits_for_host());
        self.opening.values().for_each(ShareDevice::withdraw);
        while !self.opening.is_empty()
            && let Ok(Opening { visitor, result, .. }) = self.finished.recv_timeout(WITHDRAWAL_TIMEOUT)
        {
            self.opening.remove(&visitor);
            if let Ok(open) = result {
                open.discard();
            }
        }
        self.opening.clear();
    }
}
