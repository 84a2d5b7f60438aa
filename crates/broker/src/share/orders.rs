//! Orders to a running `share` from the process that runs it: to offer or withdraw a device. Users of other devices
//! are not affected.

use super::DeviceHost;
use crate::events::Event;
use crate::offers::{OpenDevice, add_offer, is_left, open_offer};
use crate::share_request::ShareDevice;
use buffers::Ring;
use contract::ServiceError;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;
use sys::event::Event as Wake;

/// Most orders in the queue.
const ORDERS_MAX: usize = 256;
/// Timeout of an order.
const PATIENCE: Duration = Duration::from_secs(30);
/// First device number for orders; smaller numbers belong to the request and to processes that joined.
const FIRST_NUMBER: u64 = 1 << 40;

struct Order {
    number: u64,
    kind: OrderKind,
    answer: SyncSender<Result<(), ServiceError>>,
}

enum OrderKind {
    Offer(Box<ShareDevice>, OpenDevice),
    Withdraw,
    /// Withdraw only if no peer uses the device.
    WithdrawUnused,
}

/// A handle for giving orders to a running `share`; clones share the queue.
#[derive(Clone)]
pub struct Orders {
    ring: Ring<Order>,
    wake: Wake,
}

impl Orders {
    pub(super) fn new() -> io::Result<Orders> {
        Ok(Orders { ring: Ring::new(ORDERS_MAX), wake: Wake::new()? })
    }

    /// Opens a device on this thread and offers it under `index`, and waits until it is offered. Returns the error if it cannot be.
    pub fn offer(&self, index: u64, device: ShareDevice) -> Result<(), ServiceError> {
        let open = OpenDevice::open(&device)?;
        self.offer_open(index, device, open)
    }

    /// Offers an open device under `index`, and waits until it is offered.
    pub fn offer_open(&self, index: u64, device: ShareDevice, open: OpenDevice) -> Result<(), ServiceError> {
        self.give(index, OrderKind::Offer(Box::new(device), open))
    }

    /// Withdraws the device at `index` from all its users, and waits until it is withdrawn.
    pub fn withdraw(&self, index: u64) -> Result<(), ServiceError> {
        self.give(index, OrderKind::Withdraw)
    }

    /// Withdraws the device at `index` unless a peer uses it, which is an error.
    pub fn withdraw_unused(&self, index: u64) -> Result<(), ServiceError> {
        self.give(index, OrderKind::WithdrawUnused)
    }

    fn give(&self, index: u64, kind: OrderKind) -> Result<(), ServiceError> {
        let (answer, answered): (_, Receiver<_>) = sync_channel(1);
        let order = Order { number: FIRST_NUMBER + index, kind, answer };
        let lost = || ServiceError::Peer("the device host does not answer: it has ended, or hangs".into());
        self.ring.push(order).map_err(|_| lost())?;
        self.wake.signal();
        answered.recv_timeout(PATIENCE).unwrap_or_else(|_| Err(lost()))
    }

    pub(super) fn wakes(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

impl DeviceHost {
    /// Returns a handle for orders.
    pub fn orders(&self) -> Orders {
        self.orders.clone()
    }

    /// Offers a device before `run`, so that it is on offer when the first peer connects.
    pub fn offer_at_start(&mut self, index: u64, device: &ShareDevice) -> Result<(), ServiceError> {
        open_offer(&mut self.shared, FIRST_NUMBER + index, device, self.left.as_ref())
    }

    /// Returns whether a session of the previous program has the device open, so that [`DeviceHost::offer_at_start`] does not
    /// open it.
    pub fn has_left(&self, device: &ShareDevice) -> bool {
        self.left.as_ref().is_some_and(|left| is_left(device, left))
    }

    /// Executes the queued orders.
    pub(super) fn execute_orders(&mut self, emit: &mut dyn FnMut(Event)) {
        if !self.poller.is_ready(self.orders.wakes()) {
            return;
        }
        self.orders.wake.clear();
        while let Some((Order { number, kind, answer }, _)) = self.orders.ring.pop() {
            let is_used = self.shared.get(&number).is_some_and(|device| !device.users.is_empty());
            let done = match kind {
                OrderKind::WithdrawUnused if is_used => Err(ServiceError::Peer("a peer uses it".into())),
                OrderKind::Withdraw | OrderKind::WithdrawUnused => {
                    self.withdraw(number, emit);
                    Ok(())
                }
                OrderKind::Offer(device, open) => {
                    add_offer(&mut self.shared, number, &device, open).map(|offered| {
                        let summary = offered.description.summary.clone();
                        emit(Event::Offered { name: offered.name.clone(), summary });
                    })
                }
            };
            // The sender of the order may have timed out.
            let _ = answer.try_send(done);
        }
    }
}
