//! Further connections to devices that several connections serve. A worker cannot connect, so its broker does.

use crate::registry;
use contract::{Description, DeviceSpec};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Builder;
use sys::event::Event;

/// The most connections that a device may wait for.
const WANTED_MAX: usize = 128;
/// The most that are made at once. Each has a thread of its own: it may wait for a slow server.
const RUNNING_MAX: usize = 32;

/// A device that may want connections.
#[derive(Debug)]
struct Device {
    /// Distinguishes it from an earlier device of the same driver.
    number: u64,
    spec: DeviceSpec,
    description: Description,
}

/// The end of an attempt: the driver, the number of its device, and the connection.
type Attempt = (u32, u64, Result<OwnedFd, String>);

/// Makes connections for the devices of several drivers.
#[derive(Debug)]
pub struct Connector {
    devices: BTreeMap<u32, Device>,
    next_number: u64,
    /// Driver and number of the device of each attempt that has not begun.
    wanted: VecDeque<(u32, u64)>,
    running: usize,
    sender: Sender<Attempt>,
    results: Receiver<Attempt>,
    ready: Event,
}

impl Connector {
    /// Creates a connector without devices.
    pub fn new() -> io::Result<Connector> {
        let (sender, results) = channel();
        Ok(Connector {
            devices: BTreeMap::new(),
            next_number: 0,
            wanted: VecDeque::new(),
            running: 0,
            sender,
            results,
            ready: Event::new()?,
        })
    }

    /// Ends the attempts for a driver without a result.
    pub fn forget(&mut self, driver: u32) {
        self.devices.remove(&driver);
    }

    /// Requests `count` connections for a driver, to the device with this description. Attempts for another device of the driver
    /// end without a result.
    pub fn request(&mut self, driver: u32, count: u32, (spec, description): (&DeviceSpec, &Description)) {
        let is_same = |device: &Device| device.spec == *spec && device.description == *description;
        let number = match self.devices.get(&driver).filter(|device| is_same(device)) {
            Some(device) => device.number,
            None => {
                self.next_number += 1;
                let (number, spec, description) = (self.next_number, spec.clone(), description.clone());
                self.devices.insert(driver, Device { number, spec, description });
                number
            }
        };
        let name = (driver, number);
        let waiting = self.wanted.iter().filter(|wanted| **wanted == name).count();
        let count = (count as usize).min(WANTED_MAX.saturating_sub(waiting));
        self.wanted.extend(std::iter::repeat_n(name, count));
        self.start();
    }

    fn start(&mut self) {
        while self.running < RUNNING_MAX
            && let Some((driver, number)) = self.wanted.pop_front()
        {
            let Some(device) = self.devices.get(&driver).filter(|device| device.number == number) else {
                continue;
            };
            let (spec, description) = (device.spec.clone(), device.description.clone());
            let (sender, ready) = (self.sender.clone(), self.ready.clone());
            let connect = move || {
                let result = registry::connect(&spec, &description).map_err(|error| error.to_string());
                // Nobody waits for it any more if the connector is gone.
                let _ = sender.send((driver, number, result));
                ready.signal();
            };
            self.running += 1;
            if let Err(error) = Builder::new().name("device-connect".into()).spawn(connect) {
                let _ = self.sender.send((driver, number, Err(format!("starting a thread: {error}"))));
                self.ready.signal();
            }
        }
    }

    /// Returns the next finished attempt, with its driver.
    pub fn take(&mut self) -> Option<(u32, Result<OwnedFd, String>)> {
        self.ready.clear();
        while let Ok((driver, number, result)) = self.results.try_recv() {
            self.running -= 1;
            self.start();
            if self.devices.get(&driver).is_some_and(|device| device.number == number) {
                // There may be another one.
                self.ready.signal();
                return Some((driver, result));
            }
        }
        None
    }

    /// Returns the descriptor that is readable when [`Connector::take`] has something.
    pub fn wakes(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}
