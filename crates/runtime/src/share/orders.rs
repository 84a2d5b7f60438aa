//! What the process that runs a sharer tells it while it runs: to offer one more device, or to withdraw one. Whoever
//! uses another device notices nothing.

use super::Sharer;
use crate::error::RuntimeError;
use crate::events::Event;
use crate::offers::add_offer;
use crate::share::ShareDevice;
use buffers::Ring;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;
use sys::event::Event as Wake;

/// Orders that wait for the sharer.
const ORDERS_MAX: usize = 256;
/// How long an order may take: a device may take its time to open.
const PATIENCE: Duration = Duration::from_secs(30);
/// Numbers of devices from here on are those of orders; smaller ones are of the request and of processes that joined.
const FIRST_NUMBER: u64 = 1 << 40;

struct Order {
    number: u64,
    wish: Wish,
    answer: SyncSender<Result<(), RuntimeError>>,
}

enum Wish {
    Offer(Box<ShareDevice>),
    Withdraw,
    /// Unless somebody uses it.
    WithdrawUnused,
}

/// Tells a running sharer what to offer; clones are handles on the same one.
#[derive(Clone)]
pub struct Orders {
    ring: Ring<Order>,
    wake: Wake,
}

impl Orders {
    pub(super) fn new() -> io::Result<Orders> {
        Ok(Orders { ring: Ring::new(ORDERS_MAX), wake: Wake::new()? })
    }

    /// Has a device offered, which `index` stands for from then on. Waits until it is; the error says why it is not.
    pub fn offer(&self, index: u64, device: ShareDevice) -> Result<(), RuntimeError> {
        self.give(index, Wish::Offer(Box::new(device)))
    }

    /// Has what `index` stands for withdrawn: whoever uses it loses it. Waits until it is.
    pub fn withdraw(&self, index: u64) -> Result<(), RuntimeError> {
        self.give(index, Wish::Withdraw)
    }

    /// The same, unless somebody uses it: that is an error.
    pub fn withdraw_unused(&self, index: u64) -> Result<(), RuntimeError> {
        self.give(index, Wish::WithdrawUnused)
    }

    fn give(&self, index: u64, wish: Wish) -> Result<(), RuntimeError> {
        let (answer, answered): (_, Receiver<_>) = sync_channel(1);
        let order = Order { number: FIRST_NUMBER + index, wish, answer };
        let lost = || RuntimeError::Peer("the sharer does not answer: it has ended, or hangs".into());
        self.ring.push(order).map_err(|_| lost())?;
        self.wake.signal();
        answered.recv_timeout(PATIENCE).unwrap_or_else(|_| Err(lost()))
    }

    pub(super) fn wakes(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

impl Sharer {
    /// Through which it is told what to offer while it runs.
    pub fn orders(&self) -> Orders {
        self.orders.clone()
    }

    /// Offers a device before it runs: whoever hears that it listens finds it on offer.
    pub(crate) fn offer_at_start(&mut self, index: u64, device: &ShareDevice) -> Result<(), RuntimeError> {
        add_offer(&mut self.shared, FIRST_NUMBER + index, device).map(drop)
    }

    /// Does what it was told.
    pub(super) fn attend_orders(&mut self, tell: &mut dyn FnMut(Event)) {
        if !self.poller.is_ready(self.orders.wakes()) {
            return;
        }
        self.orders.wake.clear();
        while let Some((Order { number, wish, answer }, _)) = self.orders.ring.pop() {
            let is_used = self.shared.get(&number).is_some_and(|device| !device.users.is_empty());
            let done = match wish {
                Wish::WithdrawUnused if is_used => Err(RuntimeError::Peer("somebody uses it".into())),
                Wish::Withdraw | Wish::WithdrawUnused => {
                    self.withdraw(number, tell);
                    Ok(())
                }
                Wish::Offer(device) => add_offer(&mut self.shared, number, &device).map(|offered| {
                    let summary = offered.description.summary.clone();
                    tell(Event::Offered { name: offered.name.clone(), summary });
                }),
            };
            // Who gave it up to wait is told nothing.
            let _ = answer.try_send(done);
        }
    }
}
