//! A device is opened again on a thread of its own if a server may delay that.

use crate::registry;
use contract::{Description, DeviceError, DeviceSpec, Opened, Role, Time};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::thread;

/// The openings of one device, one at a time.
#[derive(Default)]
pub struct Search {
    running: Option<Running>,
}

struct Running {
    since: Time,
    found: Receiver<Result<Opened, DeviceError>>,
}

impl Search {
    /// Returns the device; `None` while it is being opened. A failure counts only if that opening began after the request,
    /// which was made at `asked`; otherwise the device is opened once more.
    pub fn find(
        &mut self,
        spec: &DeviceSpec,
        known: &Description,
        (asked, now): (Time, Time),
    ) -> Option<Result<Opened, DeviceError>> {
        if let Some(Running { since, found }) = self.running.take() {
            match found.try_recv() {
                Err(TryRecvError::Empty) => {
                    self.running = Some(Running { since, found });
                    return None;
                }
                Ok(opened) if opened.is_ok() || since >= asked => return Some(opened),
                // The opening of an earlier request failed, or it panicked.
                Ok(_) | Err(TryRecvError::Disconnected) => {}
            }
        }
        let (sender, found) = sync_channel(1);
        let (spec, known) = (spec.clone(), known.clone());
        let open = move || {
            // The device may be shared no longer.
            if let Err(unread) = sender.send(registry::reopen(&spec, Role::Device, &known))
                && let Ok(opened) = unread.0
            {
                registry::release(&opened);
            }
        };
        match thread::Builder::new().name("reopen".into()).spawn(open) {
            Ok(_) => {
                self.running = Some(Running { since: now, found });
                None
            }
            Err(error) => {
                Some(Err(DeviceError::Os { operation: "starting a thread".into(), error, advice: None }))
            }
        }
    }
}
