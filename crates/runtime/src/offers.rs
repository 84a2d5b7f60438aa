//! The devices that a sharer offers, and who uses each.

use crate::agree::Pipelines;
use crate::driver::FlowPlan;
use crate::error::RuntimeError;
use crate::junction::hub::{Hub, HubPlan, HubStats};
use crate::registry;
use crate::share::{DeviceChoice, MakePartner, ShareDevice, now};
use crate::trust::PeerKey;
use crate::worker::{PartnerOrigin, TransportPlan, is_sandbox_required};
use contract::{Description, DeviceError, DeviceSpec, FlowDirection, Opened, Role, Time};
use rustix::fs::{FileType, fstat};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// Time between two attempts to find a device that went away.
pub(crate) const REOPEN_INTERVAL: Duration = Duration::from_millis(250);

/// A peer that was not heard of at so many looks, one after the other, does not answer. Looks and not a time: while this host
/// stands still it hears of nobody.
const ANSWER_LOOKS: u32 = 8;

/// The devices on offer, by number. One that another process joined with has that process's number.
pub(crate) type Offers = BTreeMap<u64, Shared>;

/// Signs of a peer's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Signs {
    /// When it was last heard of; none: it is silent, and others need not wait for it. `None` is also one whose connection
    /// broke, as long as there is no other.
    pub(crate) heard: Option<Time>,
    /// Nobody listens where it was, as far as its host says. Others may say so in its name: it counts only beside a better
    /// sign.
    pub(crate) is_refused: bool,
}

/// A peer that uses a device.
#[derive(Debug, Clone)]
pub(crate) struct User {
    pub(crate) session: u64,
    /// What it is known by.
    key: Option<PeerKey>,
    pub(crate) driver: u32,
    /// Its way of the hub, if there is one.
    way: u16,
    signs: Signs,
    /// Why the device is taken from it, if it is.
    taken: Option<&'static str>,
}

/// A device on offer.
pub(crate) struct Shared {
    pub(crate) name: String,
    /// Names of the peers that may see it; empty: all that are known.
    pub(crate) allow: Vec<String>,
    source: Source,
    pub(crate) description: Description,
    pub(crate) pipelines: Pipelines,
    transport: Option<TransportPlan>,
    /// Open and waiting for its first peer.
    opened: Option<PartnerOrigin>,
    /// It is a pipe, which stays open from peer to peer.
    pipe: Option<Pipe>,
    /// Who uses it, the earliest first: that one owns what flows back.
    pub(crate) users: Vec<User>,
    /// How it is divided among several; one at a time uses it if it is not.
    hub_plan: Option<HubPlan>,
    /// Runs while it is divided and somebody uses it.
    hub: Option<Hub>,
    /// Who owns what flows back from now on, and is to be told.
    heir: Option<User>,
    /// When it was asked for last, and how often its users were looked at since.
    looks: (Time, u32),
    pub(crate) present: bool,
    pub(crate) reopen_at: Time,
}

/// A device that is a pipe: whoever writes into it would see its reader go, and what was read of it cannot be read again.
struct Pipe {
    opened: Opened,
    /// Memory of the driver that read of it last ([`kept`](crate::kept)).
    left: Option<OwnedFd>,
}

impl Pipe {
    /// `None` if what was opened is no pipe.
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

enum Source {
    Spec(DeviceSpec),
    Own(Arc<MakePartner>),
}

impl Shared {
    /// Whether as many use it as may.
    fn is_full(&self) -> bool {
        let ways = self.hub_plan.as_ref().map_or(1, HubPlan::ways);
        self.users.len() >= usize::from(ways)
    }

    /// How its records travel to a peer that comes by the transport of this name; `None` if there is none of it.
    pub(crate) fn transport(&self, name: &str) -> Option<TransportPlan> {
        let own = self.transport.as_ref().filter(|own| own.class.name() == name);
        own.cloned().or_else(|| TransportPlan::defaults(name))
    }

    /// Whether another may use it now, or why not.
    pub(crate) fn check_free(&self) -> Result<(), String> {
        let name = &self.name;
        match self.users.len() {
            1 if self.is_full() => Err(format!("`{name}` is in use by another peer")),
            all if self.is_full() => Err(format!("`{name}` is in use by as many peers as may: {all}")),
            _ if !self.present => Err(format!("`{name}` is not plugged in")),
            _ => Ok(()),
        }
    }

    /// Somebody of this key asked for it at `asked`: a user that is dead or cut off loses it, if nobody else makes room.
    /// Whether one does, or may yet, as it has not been heard of since; then it is looked again a little later. A host that
    /// asks for what it has already has likely begun anew: what it was before has an answer's time, [`ANSWER_LOOKS`], and
    /// not that of a link which may come back; none, if nobody listens there any more.
    pub(crate) fn want(&mut self, asked: Time, key: Option<PeerKey>) -> bool {
        if !self.is_full() {
            return false;
        }
        self.looks = if self.looks.0 == asked { (asked, self.looks.1 + 1) } else { (asked, 1) };
        let is_patient = self.looks.1 <= ANSWER_LOOKS;
        let is_before = |user: &&mut User| {
            let is_same = key.is_some() && user.key == key && user.signs.heard < Some(asked);
            is_same && (!is_patient || user.signs.is_refused)
        };
        if let Some(before) = self.users.iter_mut().find(is_before) {
            before.taken = Some("the same host asked for it anew, and this one did not answer");
            return true;
        }
        if let Some(silent) = self.users.iter_mut().find(|user| user.signs.heard.is_none()) {
            silent.taken = Some("another peer asked for it while this one was silent");
            return true;
        }
        self.users.iter().any(|user| user.signs.heard < Some(asked))
    }

    /// Notes what is known of each user; one that keeps the others waiting loses the device: at once if it is silent, else if
    /// it takes nothing for longer than they are patient.
    pub(crate) fn handle_signs(&mut self, signs: impl Fn(u64) -> Signs) {
        for user in &mut self.users {
            user.signs = signs(user.session);
            let Some(hub) = &self.hub else { continue };
            match hub.blocked_since(user.way) {
                Some(_) if user.signs.heard.is_none() => {
                    user.taken = Some("the others waited for this one while it was silent");
                }
                Some(since) if now().since(since) >= hub.patience() => {
                    user.taken = Some("the others waited for this one, which took nothing");
                }
                _ => {}
            }
        }
    }

    /// Those that lose the device, and why.
    pub(crate) fn take_wanted(&mut self) -> Vec<(User, &'static str)> {
        let taken = |user: &mut User| user.taken.take().map(|reason| (user.clone(), reason));
        self.users.iter_mut().filter_map(taken).collect()
    }

    /// Who became the owner of what flows back since the last call.
    pub(crate) fn take_heir(&mut self) -> Option<User> {
        self.heir.take()
    }

    /// The device, or its way of the device, for a peer that begins to use it; and, if it goes on with what another used
    /// before, what is kept of that driver.
    pub(crate) fn begin_use(
        &mut self,
        (session, key): (u64, Option<PeerKey>),
        driver: u32,
        plans: &mut [FlowPlan],
    ) -> Result<(PartnerOrigin, Option<OwnedFd>), String> {
        let mut way = 0;
        let mut left = None;
        let origin = match self.hub_plan.clone() {
            None => match self.pipe.as_mut() {
                Some(pipe) => {
                    left = pipe.left.take();
                    let opened = pipe.opened.try_clone().map_err(|error| error.to_string())?;
                    PartnerOrigin::Opened(Box::new(opened))
                }
                None => {
                    let opened = self.open().map_err(|error| error.to_string())?;
                    self.pipe = Pipe::of(&opened);
                    opened
                }
            },
            Some(plan) => {
                plans.iter_mut().try_for_each(|flow| plan.settle(flow))?;
                while self.users.iter().any(|user| user.way == way) {
                    way += 1;
                }
                let hub = match self.hub.take() {
                    Some(hub) => hub,
                    None => {
                        let opened = self.open().map_err(|error| error.to_string())?;
                        Hub::start(&self.name, &plan, opened, &self.description.flows)?
                    }
                };
                let hub = self.hub.insert(hub);
                if self.users.is_empty() {
                    hub.own(Some(way));
                }
                hub.join(way)?
            }
        };
        self.users.push(User {
            session,
            key,
            driver,
            way,
            signs: Signs { heard: Some(now()), is_refused: false },
            taken: None,
        });
        Ok((origin, left))
    }

    /// A peer uses it no longer. `left` is what is kept of its driver; without that nobody could go on with a pipe.
    pub(crate) fn end_use(&mut self, session: u64, driver: u32, left: Option<OwnedFd>) {
        let Some(index) = self.users.iter().position(|user| (user.session, user.driver) == (session, driver))
        else {
            return;
        };
        let user = self.users.remove(index);
        self.pipe = self.pipe.take().and_then(|pipe| Some(Pipe { left: Some(left?), ..pipe }));
        if let Some(hub) = &self.hub {
            hub.leave(user.way);
            if index == 0 {
                self.heir = self.users.first().cloned();
                hub.own(self.heir.as_ref().map(|heir| heir.way));
            }
        }
        if self.users.is_empty() {
            self.hub = None;
        }
    }

    /// If it is a pipe, it came to its end: who uses it next waits for another to write into it.
    pub(crate) fn end_pipe(&mut self) {
        self.pipe = None;
    }

    /// The device went away: it is looked for from now on.
    pub(crate) fn mark_gone(&mut self) {
        self.pipe = None;
        self.present = false;
        self.reopen_at = now().after(REOPEN_INTERVAL);
    }

    /// The device is back: what each of its users gets.
    pub(crate) fn take_back(&mut self, opened: PartnerOrigin) -> Vec<(User, PartnerOrigin)> {
        match (&self.hub, self.users.first()) {
            (Some(hub), _) => {
                hub.return_device(opened);
                let again = |user: &User| Some((user.clone(), hub.join(user.way).ok()?));
                self.users.iter().filter_map(again).collect()
            }
            (None, Some(user)) => {
                self.pipe = Pipe::of(&opened);
                vec![(user.clone(), opened)]
            }
            (None, None) => {
                self.opened = Some(opened);
                Vec::new()
            }
        }
    }

    /// Figures of the hub, if there is one.
    pub(crate) fn hub_stats(&self) -> Option<HubStats> {
        self.hub.as_ref().map(Hub::stats)
    }

    fn open(&mut self) -> Result<PartnerOrigin, DeviceError> {
        match self.opened.take() {
            Some(opened) => Ok(opened),
            None => self.find(),
        }
    }

    /// Opens the device, wherever it is by now.
    pub(crate) fn find(&self) -> Result<PartnerOrigin, DeviceError> {
        match &self.source {
            Source::Spec(spec) => {
                let opened = registry::reopen(spec, Role::Device, &self.description)?;
                Ok(PartnerOrigin::Opened(Box::new(opened)))
            }
            Source::Own(make) => Ok(PartnerOrigin::Ready(make()?)),
        }
    }
}

/// Opens a device and puts it on offer under this number.
pub(crate) fn add_offer<'a>(
    offers: &'a mut Offers,
    number: u64,
    device: &ShareDevice,
) -> Result<&'a Shared, RuntimeError> {
    let name = match (&device.name, &device.device) {
        (Some(name), _) => name.clone(),
        (None, DeviceChoice::Spec(text)) => default_name(text),
        (None, DeviceChoice::Own(description, _)) => description.class.clone(),
    };
    if name.is_empty() || name.len() > wire::control::NAME_BYTES_MAX {
        return Err(RuntimeError::Usage(format!("`{name}` cannot be a device's name: 1 to 255 bytes")));
    }
    if offers.values().any(|other| other.name == name) {
        return Err(RuntimeError::Usage(format!("two devices are called `{name}`: give one a --name")));
    }
    let opened = open_shared(device, name)?;
    Ok(offers.entry(number).insert_entry(opened).into_mut())
}

fn open_shared(device: &ShareDevice, name: String) -> Result<Shared, RuntimeError> {
    let (source, description, opened) = match &device.device {
        DeviceChoice::Spec(text) => {
            let spec = registry::device_spec(text, Role::Device)?;
            let opened = registry::open(&spec, Role::Device, None)?;
            let description = opened.description.clone();
            let opened = Some(PartnerOrigin::Opened(Box::new(opened)));
            (Source::Spec(spec), description, opened)
        }
        DeviceChoice::Own(description, make) => (Source::Own(make.clone()), description.clone(), None),
    };
    for offer in &description.flows {
        let pipelines = &device.pipelines;
        let own = match offer.direction {
            FlowDirection::DeviceToApplication => [&pipelines.via, &pipelines.require],
            FlowDirection::ApplicationToDevice => [&pipelines.via_back, &None],
        };
        for pipeline in own.into_iter().flatten() {
            pipeline.check(&offer.format).map_err(|error| RuntimeError::Usage(error.to_string()))?;
        }
    }
    let pipelines = device.pipelines.clone().or_recommended(&description).map_err(RuntimeError::Usage)?;
    let own = pipelines.require.as_ref().or(pipelines.via.as_ref());
    let hub_plan = HubPlan::decide(&device.hub, own).map_err(RuntimeError::Usage)?;
    let hears = description.flows.iter().any(|flow| flow.direction == FlowDirection::ApplicationToDevice);
    if hub_plan.is_some() && hears && is_sandbox_required() {
        return Err(RuntimeError::Usage(format!(
            "`{name}`, shared by several hosts at once, hears in this process what they say, and a sandbox is required \
             (--require-sandbox): share it with one at a time"
        )));
    }
    let reopen_at = Time::ZERO;
    Ok(Shared {
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
        heir: None,
        looks: (Time::ZERO, 0),
        present: true,
        reopen_at,
    })
}

/// The last part of a path, or the kind: `evdev:/dev/input/event3` is `event3`, `pattern:rate=5` is `pattern`.
fn default_name(spec: &str) -> String {
    let (kind, rest) = spec.split_once(':').unwrap_or((spec, ""));
    let target = rest.split(',').next().unwrap_or_default();
    let last = target.rsplit('/').next().unwrap_or_default();
    if last.is_empty() || last.contains(['=', ' ']) { kind.into() } else { last.into() }
}
