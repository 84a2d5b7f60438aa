//! The devices that a host offers, and the users of each.
//!
//! A device is used by one peer at a time, or by several through a hub. A user that is dead or silent loses the
//! device when another peer asks for it, or when the other users of the hub have to wait for it.

#[cfg(test)]
mod tests;

use crate::handover::Left;
use crate::share_request::{DeviceChoice, MakePartner, ShareDevice};
use contract::ServiceError;
use contract::{
    Description, DeviceClass, DeviceError, DeviceSpec, FlowDirection, FlowOffer, FurtherUse, Opened, Role,
    Time,
};
use flow::types::FlowPlan;
use hub::hub::{Hub, HubPlan, HubStats};
use hub::origin::PartnerOrigin;
use modules::Pipelines;
use modules::TransportPlan;
use modules::now;
use modules::registry;
use modules::search::Search;
use rustix::fs::{FileType, fstat};
use sandbox::is_sandbox_required;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use sys::hang_up::{HangUpWatch, is_hung_up};
use sys::poller::Poller;
use trust::PeerKey;

/// Interval between two attempts to reopen an unavailable device.
const REOPEN_INTERVAL: Duration = Duration::from_millis(250);

/// The same while the device moves to a hub: its first user is about to release it.
const MOVE_INTERVAL: Duration = Duration::from_millis(10);

/// A peer does not answer if this many checks in a row find no sign of it. Counted in checks rather than time,
/// because a host that stands still receives nothing.
const ANSWER_LOOKS: u32 = 8;

/// A user that stops says goodbye, but the next request for its device may arrive first: packets overtake each other,
/// and TCP sends the goodbye again only seconds after a cut of the network. So a user counts as present only if it is
/// heard for so long, without a gap of this length, after the request.
const GOODBYE_DELAY: Duration = Duration::from_millis(500);

/// The devices on offer, by number. A device that another process added has the number of that process's connection.
pub type Offers = BTreeMap<u64, Shared>;

/// Liveness of a user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UserLiveness {
    /// Time of the last arrival. `None` if the user is silent or has no connection; others then need not wait for it.
    pub last_heard: Option<Time>,
    /// The user's host reports that nothing listens there. Others can forge this, so it counts only together with another sign.
    pub is_refused: bool,
    /// Round trip to the user, which cannot answer sooner.
    pub round_trip: Duration,
}

/// A peer that uses a device.
#[derive(Debug, Clone)]
pub struct User {
    /// The number of the peer's session.
    pub session: u64,
    /// The peer's key.
    key: Option<PeerKey>,
    /// The session's number for this driver.
    pub driver: u32,
    /// The peer's client number at the hub, if there is one.
    client: u16,
    liveness: UserLiveness,
    /// The end of the last gap of [`GOODBYE_DELAY`] without a sign of it.
    heard_since: Time,
    /// The reason to take the device from this user, if there is one.
    removal: Option<&'static str>,
}

/// A device on offer.
pub struct Shared {
    /// Its name in the catalogue.
    pub name: String,
    /// Names of the peers that may see it; empty for all peers.
    pub allow: Vec<PeerKey>,
    source: Source,
    /// Its class, flows and properties.
    pub description: Description,
    /// The pipelines of its flows.
    pub pipelines: Pipelines,
    transport: Option<TransportPlan>,
    /// The device, opened for its first user.
    opened: Option<PartnerOrigin>,
    /// The state of a pipe, which stays open from user to user.
    pipe: Option<Pipe>,
    /// The users, the earliest first. The first one owns the flow to the device.
    pub users: Vec<User>,
    /// The plan of the hub; `None` if one peer at a time uses the device.
    hub_plan: Option<HubPlan>,
    /// The device moves from its only user to a hub, because that host uses it again.
    is_moving: bool,
    /// The session and the driver that have not released the moving device yet.
    releasing: Option<(u64, u32)>,
    /// A copy of the device of the only user, if it has to stay open when it moves to a hub.
    kept: Option<Opened>,
    /// The first user, and its new origin, until its driver has that.
    moved: Option<(User, PartnerOrigin)>,
    /// The hub lasts as long as its users.
    is_hub_temporary: bool,
    /// The hub, while the device has users.
    hub: Option<Hub>,
    /// The next owner of the flow to the device, until it is notified.
    next_owner: Option<User>,
    /// The time of the latest request, and the number of checks since then.
    looks: (Time, u32),
    /// The time of the latest check.
    wanted_at: Time,
    hang_up: HangUp,
    /// Set if the device is plugged in.
    pub present: bool,
    /// Time of the next attempt to reopen it.
    pub reopen_at: Time,
    search: Search,
}

/// A device that is a pipe. It stays open between users, so that its writer does not lose its reader; data that was
/// read from it cannot be read again.
struct Pipe {
    opened: Opened,
    /// The recovery log of the last driver that read from it ([`flow::recovery`]).
    left: Option<OwnedFd>,
}

impl Pipe {
    /// Returns the pipe, or `None` if `origin` is something else.
    fn of(origin: &PartnerOrigin) -> Option<Pipe> {
        let PartnerOrigin::Opened(opened) = origin else { return None };
        let is_pipe = |descriptor: &OwnedFd| {
            fstat(descriptor).is_ok_and(|known| FileType::from_raw_mode(known.st_mode) == FileType::Fifo)
        };
        let are_pipes = !opened.descriptors.is_empty() && opened.descriptors.iter().all(is_pipe);
        let opened = are_pipes.then(|| opened.try_clone().ok()).flatten()?;
        Some(Pipe { opened, left: None })
    }
}

/// The kernel's report that an unused device was unplugged.
enum HangUp {
    /// The device is in use, or gone, or cannot be unplugged.
    Unwatched,
    Watched(HangUpWatch),
    /// The kernel reports nothing.
    Unknown,
}

enum Source {
    Spec(DeviceSpec),
    Own(Arc<MakePartner>),
}

impl Shared {
    /// Returns whether the device has its full number of users.
    fn is_full(&self) -> bool {
        let ways = self.hub_plan.as_ref().map_or(1, HubPlan::ways);
        self.users.len() >= usize::from(ways)
    }

    /// Returns the transport of this name for the device's records; `None` if there is no such transport.
    pub fn transport(&self, name: &str) -> Option<TransportPlan> {
        let own = self.transport.as_ref().filter(|own| own.class.name() == name);
        own.cloned().or_else(|| TransportPlan::defaults(name).filter(|plan| plan.class.program().is_none()))
    }

    /// Checks that the peer with `key` may use the device now, beside its present users.
    pub fn check_free(&self, key: Option<PeerKey>) -> Result<(), String> {
        let name = &self.name;
        match self.users.len() {
            1 if self.may_move_to_hub(key) => Ok(()),
            // A hub for one host's own uses is none for others.
            _ if self.is_hub_temporary && self.users.iter().any(|user| user.key != key) => {
                Err(format!("`{name}` is in use by another peer"))
            }
            1 if self.is_full() && key.is_some() && self.users[0].key == key => {
                Err(format!("`{name}` is in use by your own host: `outboard top` there shows the process"))
            }
            1 if self.is_full() => Err(format!("`{name}` is in use by another peer")),
            all if self.is_full() => Err(format!("`{name}` has the most uses at once that it allows: {all}")),
            _ if !self.present && !self.is_moving => Err(format!("`{name}` is not plugged in")),
            _ => Ok(()),
        }
    }

    /// Returns whether the peer with `key` has to wait until a user loses the device.
    fn is_full_for(&self, key: Option<PeerKey>) -> bool {
        // A hub for one host's own uses is none for others.
        self.is_full() || self.is_hub_temporary && self.users.iter().any(|user| user.key != key)
    }

    /// Handles a request for a device that is in use, made at `asked` by the peer with `key`. Marks a dead or silent
    /// user for removal. Returns whether the requester should wait and ask again shortly, because a user is about to
    /// lose the device or may have stopped before `asked`.
    ///
    /// A host that requests a device that it already uses has probably restarted. Its former session then gets only
    /// [`ANSWER_LOOKS`] checks to answer instead of the silence limit, and none if nothing listens there any more. At a
    /// hub with room it is removed once it is silent; otherwise it would remain the owner of the flow to the device.
    pub fn request(&mut self, asked: Time, key: Option<PeerKey>) -> bool {
        let is_unanswered =
            |user: &User| key.is_some() && user.key == key && user.liveness.last_heard < Some(asked);
        let is_full = self.is_full_for(key);
        if !is_full && !self.users.iter().any(is_unanswered) {
            return false;
        }
        self.looks = if self.looks.0 == asked { (asked, self.looks.1 + 1) } else { (asked, 1) };
        self.wanted_at = now();
        let (is_early, waited) = (self.looks.1 <= ANSWER_LOOKS, self.wanted_at.since(asked));
        let is_before = |user: &&mut User| {
            let is_patient = is_early || waited < user.liveness.round_trip * 2;
            // A host may use a hub several times on purpose, so one that is only slow to answer keeps its uses.
            let is_dead = !is_patient && (is_full || user.liveness.last_heard.is_none());
            is_unanswered(user) && (is_dead || user.liveness.is_refused)
        };
        if let Some(before) = self.users.iter_mut().find(is_before) {
            before.removal = Some("the same host requested it again, and this session did not answer");
            return true;
        }
        if !is_full {
            return true;
        }
        if let Some(silent) = self.users.iter_mut().find(|user| user.liveness.last_heard.is_none()) {
            silent.removal = Some("another peer requested it while this one was silent");
            return true;
        }
        let is_present =
            |user: &User| user.liveness.last_heard >= Some(asked.max(user.heard_since).after(GOODBYE_DELAY));
        !self.users.iter().all(is_present)
    }

    /// Returns whether a peer has requested the device since `at`, while it was in use.
    pub fn is_wanted_since(&self, at: Time) -> bool {
        self.wanted_at > at
    }

    /// Records the liveness of each user, and marks users that block the hub: at once if silent, otherwise when the
    /// hub's patience is over.
    pub fn update_liveness(&mut self, liveness: impl Fn(u64) -> UserLiveness) {
        for user in &mut self.users {
            let before = user.liveness.last_heard;
            user.liveness = liveness(user.session);
            if let Some(heard) = user.liveness.last_heard
                && before.is_none_or(|before| heard.since(before) > GOODBYE_DELAY)
            {
                user.heard_since = heard;
            }
            let Some(hub) = &self.hub else { continue };
            match hub.blocked_since(user.client) {
                Some(_) if user.liveness.last_heard.is_none() => {
                    user.removal = Some("the other users waited for this one while it was silent");
                }
                Some(since) if now().since(since) >= hub.patience() => {
                    user.removal = Some("the other users waited for this one, which did not read");
                }
                _ => {}
            }
        }
    }

    /// Takes the users marked for removal, with the reasons.
    pub fn take_marked(&mut self) -> Vec<(User, &'static str)> {
        let removal = |user: &mut User| user.removal.take().map(|reason| (user.clone(), reason));
        self.users.iter_mut().filter_map(removal).collect()
    }

    /// Takes the user that has become the owner of the flow to the device since the last call.
    pub fn take_next_owner(&mut self) -> Option<User> {
        self.next_owner.take()
    }

    /// Opens the device for its first user, who asked for it at `asked`. Returns false while its server delays that.
    pub fn prepare(&mut self, asked: Time) -> Result<bool, DeviceError> {
        if self.users.is_empty() && self.opened.is_none() && self.pipe.is_none() {
            self.opened = self.find(asked).transpose()?;
            return Ok(self.opened.is_some());
        }
        Ok(true)
    }

    /// Adds a user of a [prepared](Shared::prepare) device. Returns the device, or the user's client of the hub, and the recovery log of the previous driver
    /// if this one continues it.
    pub fn begin_use(
        &mut self,
        (session, key): (u64, Option<PeerKey>),
        driver: u32,
        plans: &mut [FlowPlan],
    ) -> Result<(PartnerOrigin, Option<OwnedFd>), String> {
        let mut client = 0;
        let mut left = None;
        if self.is_full() && self.may_move_to_hub(key) {
            self.move_to_hub()?;
        }
        let origin = match self.hub_plan.clone() {
            None => match self.pipe.as_mut() {
                Some(pipe) => {
                    left = pipe.left.take();
                    let opened = pipe.opened.try_clone().map_err(|error| error.to_string())?;
                    PartnerOrigin::Opened(Box::new(opened))
                }
                None => {
                    let opened = self.opened.take().ok_or("the device is not open")?;
                    self.pipe = Pipe::of(&opened);
                    self.keep(&opened);
                    opened
                }
            },
            Some(plan) => {
                plans.iter_mut().try_for_each(|flow| plan.apply(flow))?;
                while self.users.iter().any(|user| user.client == client) {
                    client += 1;
                }
                let hub = match self.hub.take() {
                    Some(hub) => hub,
                    None => {
                        let opened = self.opened.take().ok_or("the device is not open")?;
                        Hub::start(&self.name, &plan, Some(opened), &self.description.flows)?
                    }
                };
                let hub = self.hub.insert(hub);
                if self.users.is_empty() {
                    hub.set_owner(Some(client));
                }
                hub.join(client)?
            }
        };
        self.add_user((session, key), driver, client);
        Ok((origin, left))
    }

    /// Returns whether the peer with `key` may use the device once more: it is the only user, and the device allows
    /// several uses.
    fn may_move_to_hub(&self, key: Option<PeerKey>) -> bool {
        self.hub_plan.is_none()
            && self.present
            && key.is_some()
            && self.users.iter().all(|user| user.key == key)
            && self.further_use() != FurtherUse::Refused
            && !breaks_sandbox(&self.description.flows)
    }

    fn further_use(&self) -> FurtherUse {
        let class = self.spec().and_then(|spec| registry::device_class(&spec.class));
        class.map_or(FurtherUse::Refused, DeviceClass::further_use)
    }

    /// Keeps a copy of a device that its only user gets, if it has to stay open when it moves to a hub.
    fn keep(&mut self, origin: &PartnerOrigin) {
        self.kept = match origin {
            PartnerOrigin::Opened(opened) if self.further_use() == FurtherUse::KeptOpen => {
                opened.try_clone().ok()
            }
            _ => None,
        };
    }

    /// Starts a hub for the only user and the next one. The user's driver releases the device when it has its new origin;
    /// then the hub gets it.
    fn move_to_hub(&mut self) -> Result<(), String> {
        let Some(first) = self.users.first().cloned() else { return Ok(()) };
        let plan = HubPlan::copy();
        let hub = Hub::start(&self.name, &plan, None, &self.description.flows)?;
        hub.set_owner(Some(first.client));
        self.moved = Some((first.clone(), hub.join(first.client)?));
        (self.hub, self.hub_plan) = (Some(hub), Some(plan));
        (self.is_moving, self.is_hub_temporary) = (true, true);
        self.releasing = Some((first.session, first.driver));
        (self.present, self.reopen_at) = (false, now());
        Ok(())
    }

    /// Takes the user whose device moves to a hub, with its new origin.
    pub fn take_moved(&mut self) -> Option<(User, PartnerOrigin)> {
        self.moved.take()
    }

    /// Handles the report that a driver has another origin. If the device moves to a hub, the driver has released it now.
    pub fn handle_released(&mut self, session: u64, driver: u32) {
        if self.releasing == Some((session, driver)) {
            (self.releasing, self.reopen_at) = (None, now());
        }
    }

    /// Opens the device again if it is time for that. Returns it, and whether it was gone for its users.
    pub fn try_reopen(&mut self) -> Option<(PartnerOrigin, bool)> {
        // Two partners would share the messages of one device in any order.
        if self.present || self.releasing.is_some() || now() < self.reopen_at {
            return None;
        }
        let found = match self.kept.take() {
            Some(kept) => Some(Ok(PartnerOrigin::Opened(Box::new(kept)))),
            None => self.find(now()),
        };
        self.reopen_at = now().after(if self.is_moving { MOVE_INTERVAL } else { REOPEN_INTERVAL });
        let opened = found?.ok()?;
        self.present = true;
        Some((opened, !std::mem::take(&mut self.is_moving)))
    }

    /// Adds a user that uses the device since before this program.
    pub(crate) fn resume_use(
        &mut self,
        (session, key): (u64, Option<PeerKey>),
        driver: u32,
        opened: &Opened,
    ) -> Result<(), String> {
        if self.hub_plan.is_some() {
            return Err(format!("`{}` is shared in another way now", self.name));
        }
        self.check_free(key)?;
        let opened = opened.try_clone().map_err(|error| error.to_string())?;
        let opened = PartnerOrigin::Opened(Box::new(opened));
        self.pipe = Pipe::of(&opened);
        self.keep(&opened);
        self.add_user((session, key), driver, 0);
        Ok(())
    }

    /// Returns the specification that the device is opened from, if it has one.
    pub(crate) fn spec(&self) -> Option<&DeviceSpec> {
        match &self.source {
            Source::Spec(spec) => Some(spec),
            Source::Own(_) => None,
        }
    }

    fn add_user(&mut self, (session, key): (u64, Option<PeerKey>), driver: u32, client: u16) {
        self.users.push(User {
            session,
            key,
            driver,
            client,
            liveness: UserLiveness { last_heard: Some(now()), is_refused: false, round_trip: Duration::ZERO },
            heard_since: Time::ZERO,
            removal: None,
        });
    }

    /// Removes a user. `left` is the recovery log of its driver; without one, no later user can continue a pipe.
    pub fn end_use(&mut self, session: u64, driver: u32, left: Option<OwnedFd>) {
        let Some(index) = self.users.iter().position(|user| (user.session, user.driver) == (session, driver))
        else {
            return;
        };
        let user = self.users.remove(index);
        self.handle_released(session, driver);
        self.pipe = self.pipe.take().and_then(|pipe| Some(Pipe { left: Some(left?), ..pipe }));
        if let Some(hub) = &self.hub {
            hub.leave(user.client);
            if index == 0 {
                self.next_owner = self.users.first().cloned();
                hub.set_owner(self.next_owner.as_ref().map(|next_owner| next_owner.client));
            }
        }
        if self.users.is_empty() {
            self.hub = None;
            if let Some(kept) = self.kept.take() {
                registry::release(&kept);
            }
            if std::mem::take(&mut self.is_hub_temporary) {
                (self.hub_plan, self.moved) = (None, None);
            }
        }
    }

    /// Handles the end of the data: a pipe is opened again for the next user.
    pub fn end_pipe(&mut self) {
        self.pipe = None;
    }

    /// Returns whether the device can be unplugged.
    pub fn is_pluggable(&self) -> bool {
        let Source::Spec(spec) = &self.source else { return false };
        registry::device_class(&spec.class).is_some_and(|class| class.subsystem().is_some())
    }

    /// Returns whether this process has to notice that the device was unplugged. A user's worker notices it by itself.
    fn is_watched(&self) -> bool {
        self.present && self.users.is_empty() && self.is_pluggable()
    }

    /// The open descriptors of a device that nobody uses. The kernel reports on them that the device was unplugged.
    fn watched_descriptors(&self) -> &[OwnedFd] {
        match &self.opened {
            Some(PartnerOrigin::Opened(opened)) if self.is_watched() => &opened.descriptors,
            _ => &[],
        }
    }

    /// Registers an unused device with the poller. Returns true if its unplugging shows only in a check.
    pub fn register(&mut self, poller: &mut Poller) -> bool {
        if !self.is_watched() {
            self.hang_up = HangUp::Unwatched;
            return false;
        }
        if let HangUp::Unwatched = self.hang_up {
            let watched = self.watched_descriptors();
            self.hang_up = HangUpWatch::new(watched).map_or(HangUp::Unknown, HangUp::Watched);
        }
        let HangUp::Watched(set) = &self.hang_up else { return true };
        poller.register(set.as_fd(), true, false);
        false
    }

    /// Returns whether the last wait found that an unused device was unplugged. Some drivers report errors at all times;
    /// their devices are not watched any more.
    pub fn has_hung_up(&mut self, poller: &Poller) -> bool {
        let HangUp::Watched(set) = &self.hang_up else { return false };
        let is_ready = poller.is_ready(set.as_fd());
        let has_hung_up = is_ready && self.unplugged().is_some();
        if is_ready && !has_hung_up {
            self.hang_up = HangUp::Unknown;
        }
        has_hung_up
    }

    /// Returns the reason if the device was unplugged while no peer uses it.
    pub fn unplugged(&self) -> Option<&'static str> {
        let Source::Spec(spec) = &self.source else { return None };
        if !self.is_watched() {
            return None;
        }
        if self.watched_descriptors().iter().any(is_hung_up) {
            return Some("it was unplugged");
        }
        let is_missing = spec.target.starts_with("/dev/") && !Path::new(&spec.target).exists();
        // The same device may have another path since it was plugged in again, but an open one works.
        (is_missing && self.opened.is_none()).then_some("its node is gone")
    }

    /// Marks the device as unavailable; the host searches for it from now on.
    pub fn mark_gone(&mut self) {
        (self.is_moving, self.releasing, self.kept) = (false, None, None);
        self.pipe = None;
        self.opened = None;
        self.hang_up = HangUp::Unwatched;
        self.present = false;
        self.reopen_at = now().after(REOPEN_INTERVAL);
    }

    /// Returns the reopened device to its users: each with its new origin, if it `was_gone` for them.
    pub fn take_back(&mut self, opened: PartnerOrigin, was_gone: bool) -> Vec<(User, PartnerOrigin)> {
        match (&self.hub, self.users.first()) {
            (Some(hub), _) => {
                hub.return_device(opened);
                if !was_gone {
                    return Vec::new();
                }
                let again = |user: &User| Some((user.clone(), hub.join(user.client).ok()?));
                self.users.iter().filter_map(again).collect()
            }
            (None, Some(user)) => {
                let user = user.clone();
                self.pipe = Pipe::of(&opened);
                self.keep(&opened);
                vec![(user, opened)]
            }
            (None, None) => {
                self.opened = Some(opened);
                Vec::new()
            }
        }
    }

    /// Returns the statistics of the hub, if there is one.
    pub fn hub_stats(&self) -> Option<HubStats> {
        self.hub.as_ref().map(Hub::stats)
    }

    /// Opens the device, wherever it is plugged in now. Returns `None` while its server delays that.
    fn find(&mut self, asked: Time) -> Option<Result<PartnerOrigin, DeviceError>> {
        let found = match &self.source {
            Source::Own(make) => return Some(make().map(PartnerOrigin::Ready)),
            Source::Spec(spec) if self.is_pluggable() => {
                registry::reopen(spec, Role::Device, &self.description)
            }
            Source::Spec(spec) => self.search.find(spec, &self.description, (asked, now()))?,
        };
        Some(found.map(|opened| PartnerOrigin::Opened(Box::new(opened))))
    }
}

/// A device that is open, before it is offered.
pub struct OpenDevice {
    source: Source,
    description: Description,
    /// `None` if this program implements the device, or a session has it.
    opened: Option<Box<Opened>>,
}

impl OpenDevice {
    /// Opens a device. This may wait for the device, or for an answer of this host's user.
    pub fn open(device: &ShareDevice) -> Result<OpenDevice, ServiceError> {
        OpenDevice::open_left(device, None)
    }

    /// Does the same as [`OpenDevice::open`]. A device that the previous program has left open for a session is not opened again.
    pub(crate) fn open_left(device: &ShareDevice, left: Option<&Left>) -> Result<OpenDevice, ServiceError> {
        let text = match &device.device {
            DeviceChoice::Spec(text) => text,
            DeviceChoice::Own(description, make) => {
                let (source, description) = (Source::Own(make.clone()), description.clone());
                return Ok(OpenDevice { source, description, opened: None });
            }
        };
        let spec = registry::device_spec(text, Role::Device)?;
        let name = offer_name(device)?;
        let (description, opened) = match left.and_then(|left| left.device(&name, &spec)) {
            Some(opened) => (opened.description.clone(), None),
            None => {
                let opened = registry::open(&spec, Role::Device, None)?;
                (opened.description.clone(), Some(Box::new(opened)))
            }
        };
        Ok(OpenDevice { source: Source::Spec(spec), description, opened })
    }

    /// Closes the device, and removes its leftovers.
    pub fn discard(self) {
        if let Some(opened) = self.opened {
            registry::release(&opened);
        }
    }
}

/// Returns whether a session of the previous program has the device open.
pub(crate) fn is_left(device: &ShareDevice, left: &Left) -> bool {
    let DeviceChoice::Spec(text) = &device.device else { return false };
    let (spec, name) = (registry::device_spec(text, Role::Device), offer_name(device));
    spec.is_ok_and(|spec| name.is_ok_and(|name| left.device(&name, &spec).is_some()))
}

/// Returns the name under which a device would be offered. Fails if another one has it.
pub(crate) fn free_name(offers: &Offers, device: &ShareDevice) -> Result<String, ServiceError> {
    let name = offer_name(device)?;
    match offers.values().any(|other| other.name == name) {
        true => Err(taken(&name)),
        false => Ok(name),
    }
}

/// Opens a device and offers it under this number.
pub(crate) fn open_offer(
    offers: &mut Offers,
    number: u64,
    device: &ShareDevice,
    left: Option<&Left>,
) -> Result<(), ServiceError> {
    free_name(offers, device)?;
    add_offer(offers, number, device, OpenDevice::open_left(device, left)?).map(drop)
}

/// Offers an open device under this number.
pub fn add_offer<'a>(
    offers: &'a mut Offers,
    number: u64,
    device: &ShareDevice,
    open: OpenDevice,
) -> Result<&'a Shared, ServiceError> {
    let planned = free_name(offers, device).and_then(|name| {
        Ok((plan_flows(device, &name, &open.description.class, &open.description.flows)?, name))
    });
    match planned {
        Ok((plan, name)) => {
            Ok(offers.entry(number).insert_entry(shared(device, name, open, plan)).into_mut())
        }
        Err(error) => {
            open.discard();
            Err(error)
        }
    }
}

/// Checks a device that is to be offered beside others with these names, as far as this is possible without opening it,
/// and adds its name.
pub fn check_offer(device: &ShareDevice, names: &mut Vec<String>) -> Result<(), ServiceError> {
    let name = offer_name(device)?;
    if let DeviceChoice::Spec(text) = &device.device {
        let spec = registry::device_spec(text, Role::Device)?;
        plan_flows(device, &name, &spec.class, &registry::flows(&spec)?)?;
    }
    if names.contains(&name) {
        return Err(taken(&name));
    }
    names.push(name);
    Ok(())
}

fn taken(name: &str) -> ServiceError {
    ServiceError::Usage(format!(
        "two devices are called `{name}`: give one another name (`--name`, in a run file `name`)"
    ))
}

/// Returns the device's name in the catalogue.
fn offer_name(device: &ShareDevice) -> Result<String, ServiceError> {
    let name = match (&device.name, &device.device) {
        (Some(name), _) => name.clone(),
        (None, DeviceChoice::Spec(text)) => default_name(text),
        (None, DeviceChoice::Own(description, _)) => description.class.clone(),
    };
    if name.is_empty() || name.len() > wire::control::NAME_BYTES_MAX {
        return Err(ServiceError::Usage(format!("`{name}` cannot be a device's name: 1 to 255 bytes")));
    }
    Ok(name)
}

/// Checks the pipelines and the policy for several hosts with the device's flows, and completes them.
fn plan_flows(
    device: &ShareDevice,
    name: &str,
    class: &str,
    flows: &[FlowOffer],
) -> Result<(Pipelines, Option<HubPlan>), ServiceError> {
    for offer in flows {
        let pipelines = &device.pipelines;
        let own = match offer.direction {
            FlowDirection::DeviceToApplication => [&pipelines.via, &pipelines.require],
            FlowDirection::ApplicationToDevice => [&pipelines.via_back, &None],
        };
        for pipeline in own.into_iter().flatten() {
            pipeline.check(&offer.format).map_err(|error| ServiceError::Usage(error.to_string()))?;
        }
    }
    let pipelines = device.pipelines.clone().or_recommended(class, flows).map_err(ServiceError::Usage)?;
    let own = pipelines.require.as_ref().or(pipelines.via.as_ref());
    let hub_plan = HubPlan::decide(&device.hub, own, flows).map_err(ServiceError::Usage)?;
    if hub_plan.is_some() && breaks_sandbox(flows) {
        return Err(ServiceError::Usage(format!(
            "`{name}` cannot be shared with several hosts at once under --require-sandbox: this process would handle \
             their messages without a sandbox. Share it with one host at a time"
        )));
    }
    Ok((pipelines, hub_plan))
}

/// Returns whether a hub of a device with these flows would handle messages of its hosts in this process, although a
/// sandbox is required.
fn breaks_sandbox(flows: &[FlowOffer]) -> bool {
    is_sandbox_required() && flows.iter().any(|flow| flow.direction == FlowDirection::ApplicationToDevice)
}

fn shared(
    device: &ShareDevice,
    name: String,
    open: OpenDevice,
    (pipelines, hub_plan): (Pipelines, Option<HubPlan>),
) -> Shared {
    let OpenDevice { source, description, opened } = open;
    let opened = opened.map(PartnerOrigin::Opened);
    let reopen_at = Time::ZERO;
    Shared {
        name,
        allow: device.allow.clone(),
        source,
        description,
        pipelines,
        transport: device.transport.clone(),
        opened,
        pipe: None,
        users: Vec::new(),
        hub_plan,
        hub: None,
        next_owner: None,
        looks: (Time::ZERO, 0),
        wanted_at: Time::ZERO,
        hang_up: HangUp::Unwatched,
        present: true,
        reopen_at,
        search: Search::default(),
        is_moving: false,
        releasing: None,
        kept: None,
        moved: None,
        is_hub_temporary: false,
    }
}

/// Derives a device's name from its spec: the last part of a path, or the kind. `evdev:/dev/input/event3` becomes
/// `event3`, `pattern:rate=5` becomes `pattern`, `x11::0` and `:0` become `x11`.
fn default_name(spec: &str) -> String {
    let spec = registry::with_class(spec, Role::Device);
    let (kind, rest) = spec.split_once(':').unwrap_or((&spec, ""));
    let target = rest.split(',').next().unwrap_or_default();
    let last = target.rsplit('/').next().unwrap_or_default();
    let is_path = !last.is_empty() && !last.contains(['=', ':']) && !target.contains(' ');
    if is_path { last.into() } else { kind.into() }
}
