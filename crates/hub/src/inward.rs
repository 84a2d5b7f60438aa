//! The flow from the hosts to the device of a hub. Only its owner writes; but each host says whether it wants the device
//! ([`crate::wanted`]).
//!
//! The messages of a reliable flow were acknowledged when its host wrote them. So those that the device had no room for
//! outlive the end of the host's path: they precede the messages of the next path.
//!
//! | the path ends because | its messages |
//! |---|---|
//! | the device was gone and is back | wait for the device, like those of the host's next path |
//! | the owner left, and others use the device | wait for the device, for the hub's patience; then they are dropped |
//! | the owner left while the device was gone | are dropped: it would get them at any later time |
//! | the last host left | those that the device has room for precede its end; the others are lost |
//!
//! Those of an unreliable flow are dropped: a snapshot replaces them.

use crate::client::Client;
use crate::endpoint::Incoming;
use crate::spread::Clients;
use crate::wanted::Wanted;
use contract::{
    Ctl, Direction, FlowClass, FlowDirection, FlowKey, FlowOffer, Partner, PartnerError, PartnerResult,
    Pushed, Readiness, Time,
};
use flow::types::Wake;
use pipeline::DropCounts;
use std::collections::VecDeque;
use std::time::Duration;
use sys::poller::Poller;

/// Limit of messages taken from one client in one run.
const BURST: usize = 64;
/// Limit of ended paths whose messages wait: a device comes and goes more often than it takes a message.
const ENDED_MAX: usize = 8;
/// Drop reason of a message that the device did not take before its host left.
const HOST_LEFT: &str = "host left";

/// The end of a client's path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PathEnd {
    /// The device was gone; the host has a new path.
    Replaced,
    /// The host left.
    Left,
}

/// The result of forwarding the messages of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Forwarded {
    /// Nothing more is available.
    All,
    /// More may be available.
    Burst,
    /// The device has no room.
    Full,
}

/// A client whose path has ended, with messages for the device.
struct Ended {
    client: Client,
    /// The time at which its messages are dropped; `None` while its host uses the device.
    until: Option<Time>,
    /// Limit of messages that are still taken from it: a worker may go on writing.
    left: usize,
}

/// The flow to the device.
pub(crate) struct Inward {
    /// The flow at the device; `None` if it takes no messages.
    key: Option<FlowKey>,
    is_reliable: bool,
    owner: Option<u16>,
    unflushed: bool,
    /// Former paths of owners, the earliest first. Their messages precede those of the owner.
    ended: VecDeque<Ended>,
    /// The settings of the last owner are undone after its messages.
    is_reset_due: bool,
    wanted: Wanted,
}

impl Inward {
    /// `key`: the flow at the device, if that is open and takes messages.
    pub(crate) fn new(key: Option<FlowKey>, flows: &[FlowOffer]) -> Inward {
        let is_reliable = |flow: &FlowOffer| {
            flow.direction == FlowDirection::ApplicationToDevice && flow.class == FlowClass::Reliable
        };
        Inward {
            key,
            is_reliable: flows.iter().any(is_reliable),
            owner: None,
            unflushed: false,
            ended: VecDeque::new(),
            is_reset_due: false,
            wanted: Wanted::new(flows),
        }
    }

    /// The client that owns the flow.
    pub(crate) fn owner(&self) -> Option<u16> {
        self.owner
    }

    /// Sets the owner. The settings of the former one are undone.
    pub(crate) fn set_owner(&mut self, owner: Option<u16>, device: Option<&mut Box<dyn Partner>>) {
        self.is_reset_due |= self.owner.is_some() && self.owner != owner;
        self.owner = owner;
        self.reset_if_due(device);
    }

    fn reset_if_due(&mut self, device: Option<&mut Box<dyn Partner>>) {
        if self.ended.is_empty()
            && std::mem::take(&mut self.is_reset_due)
            && let (Some(device), Some(key)) = (device, self.key)
        {
            // A device without a neutral state has nothing to release.
            let _ = device.ctl(key, Ctl::Neutral);
        }
    }

    /// Handles the loss of the device. The messages of owners that left are dropped.
    pub(crate) fn handle_device_lost(&mut self, queue: usize, drops: &mut DropCounts) {
        (self.unflushed, self.is_reset_due) = (false, false);
        for ended in std::mem::take(&mut self.ended) {
            match ended.until {
                None => self.ended.push_back(ended),
                Some(_) => drop_all(ended.client, queue, "device gone", drops),
            }
        }
    }

    /// Continues with a reopened device.
    pub(crate) fn reopen(&mut self, key: Option<FlowKey>) {
        self.key = key;
        self.wanted.reopen();
    }

    /// Takes the client of a path that has ended at `now`. Drops the messages that the device will not get; `queue` is
    /// their limit. Without a `patience` the device is gone.
    pub(crate) fn end_path(
        &mut self,
        (number, client): (u16, Client),
        end: PathEnd,
        (now, patience, queue): (Time, Option<Duration>, usize),
        drops: &mut DropCounts,
    ) {
        self.wanted.forget(number);
        let reason = match end {
            PathEnd::Replaced => "device gone",
            PathEnd::Left => HOST_LEFT,
        };
        if self.owner != Some(number) || !self.is_reliable || self.ended.len() >= ENDED_MAX {
            return drop_all(client, queue, reason, drops);
        }
        // Those in the memory of the path, and the one that the client holds.
        self.ended.push_back(Ended { client, until: None, left: queue + 1 });
        match (end, patience) {
            (PathEnd::Replaced, _) => {}
            (PathEnd::Left, Some(patience)) => {
                let until = Some(now.after(patience));
                self.ended.iter_mut().for_each(|ended| ended.until = ended.until.or(until));
            }
            (PathEnd::Left, None) => {
                let ended = std::mem::take(&mut self.ended);
                ended.into_iter().for_each(|ended| drop_all(ended.client, queue, HOST_LEFT, drops));
            }
        }
    }

    /// Forwards the messages of former paths, then those of the owner; drops those of other clients. Returns true if it
    /// should run again at once.
    pub(crate) fn run(
        &mut self,
        device: &mut Box<dyn Partner>,
        clients: &mut Clients,
        (now, queue): (Time, usize),
        drops: &mut DropCounts,
    ) -> PartnerResult<bool> {
        let mut again = self.forward_ended(device, (now, queue), drops)?;
        for (number, client) in clients.iter_mut() {
            let is_owner = self.owner == Some(*number);
            if is_owner && !self.ended.is_empty() {
                continue;
            }
            let key = self.key.filter(|_| is_owner);
            let mut limit = BURST;
            let limits = (&mut self.unflushed, &mut limit);
            let wanted = Some((&mut self.wanted, *number));
            let forwarded = forward(client, device.as_mut(), key, limits, wanted)?;
            again |= forwarded == Forwarded::Burst;
        }
        self.unflushed |= self.wanted.send(device.as_mut(), self.key, clients, now)?;
        self.flush(device)?;
        Ok(again)
    }

    fn forward_ended(
        &mut self,
        device: &mut Box<dyn Partner>,
        (now, queue): (Time, usize),
        drops: &mut DropCounts,
    ) -> PartnerResult<bool> {
        while let Some(first) = self.ended.front_mut() {
            if first.left > 0 && first.until.is_none_or(|until| now < until) {
                let limits = (&mut self.unflushed, &mut first.left);
                match forward(&mut first.client, device.as_mut(), self.key, limits, None)? {
                    Forwarded::Burst => return Ok(true),
                    Forwarded::Full => return Ok(false),
                    Forwarded::All => {}
                }
            }
            if let Some(ended) = self.ended.pop_front() {
                drop_all(ended.client, queue, HOST_LEFT, drops);
            }
        }
        self.reset_if_due(Some(device));
        Ok(false)
    }

    fn flush(&mut self, device: &mut Box<dyn Partner>) -> PartnerResult {
        if self.unflushed {
            self.unflushed = flow::types::flush(Some(device))?;
        }
        Ok(())
    }

    /// Makes the device neutral at the end of the hub, after the messages that it has room for.
    pub(crate) fn stop(&mut self, device: &mut Box<dyn Partner>, now: Time) {
        while let Ok(true) = self.forward_ended(device, (now, 0), &mut DropCounts::default()) {}
        let _ = self.flush(device);
        let _ = device.ctl(FlowKey::DEFAULT, Ctl::Neutral);
    }

    /// Registers the clients, and the device if messages wait for it.
    pub(crate) fn register(
        &self,
        device: &dyn Partner,
        clients: &Clients,
        poller: &mut Poller,
        wake: &mut Wake,
    ) {
        let waits_for_ended = !self.ended.is_empty();
        for (number, client) in clients {
            client.register(!waits_for_ended || self.owner != Some(*number), poller, wake);
        }
        wake.at(self.ended.front().and_then(|first| first.until));
        let is_held = clients.values().any(Client::is_held);
        let is_full = waits_for_ended || is_held || self.wanted.is_due(clients);
        if let Some(key) = self.key.filter(|_| is_full || self.unflushed) {
            let readiness = device.readiness(key, Direction::In);
            wake.add(poller, Readiness { now: readiness.now && is_full, ..readiness });
        }
    }
}

/// Forwards the available messages of a client to this flow of the device; without one, drops them. Takes at most a burst, and at most
/// `limit` messages, which it lowers. `wanted` records the values of this client, which the hub sends itself.
fn forward(
    client: &mut Client,
    device: &mut dyn Partner,
    key: Option<FlowKey>,
    (unflushed, limit): (&mut bool, &mut usize),
    mut wanted: Option<(&mut Wanted, u16)>,
) -> PartnerResult<Forwarded> {
    for _ in 0..BURST.min(*limit) {
        *limit -= 1;
        let mut incoming = client.receive();
        if let (Incoming::Message(message), Some((wanted, number))) = (&mut incoming, wanted.as_mut())
            && wanted.record(*number, message)
        {
            continue;
        }
        match (incoming, key) {
            (Incoming::Message(message), Some(key)) => match device.push(key, message) {
                Ok(Pushed::Taken) => *unflushed = true,
                Ok(Pushed::Full(message)) => {
                    client.put_back(Incoming::Message(message));
                    *limit += 1;
                    return Ok(Forwarded::Full);
                }
                Err((PartnerError::Message(_), _)) => client.drops.add("refused by the device", 1),
                Err((error, message)) => {
                    client.put_back(Incoming::Message(message));
                    return Err(error);
                }
            },
            (Incoming::Message(_), None) => client.drops.add("not the owner", 1),
            (Incoming::Neutral, Some(key)) => {
                let _ = device.ctl(key, Ctl::Neutral);
            }
            (Incoming::Neutral, None) => {}
            // Other clients may still write: the device's input does not end with one of them.
            (Incoming::Nothing | Incoming::End, _) => return Ok(Forwarded::All),
        }
    }
    Ok(Forwarded::Burst)
}

/// Counts the messages of a client as dropped, with its earlier drops. A worker fills the memory of the path, so the
/// `queue` limits their number.
fn drop_all(mut client: Client, queue: usize, reason: &'static str, drops: &mut DropCounts) {
    for _ in 0..=queue {
        match client.receive() {
            Incoming::Message(_) => client.drops.add(reason, 1),
            Incoming::Neutral => {}
            Incoming::Nothing | Incoming::End => break,
        }
    }
    for (reason, count) in &client.drops.counts {
        drops.add(reason, *count);
    }
}
