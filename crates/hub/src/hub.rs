//! A hub: one opened device that several hosts use. One host at a time owns the flow back to the device.
//!
//! The device host's broker gives each host that opens the device an endpoint, which is the partner of
//! that host's driver. The hub's thread holds the device and the other ends. The hub accepts the flow to
//! the device only from the host that joined first; when it leaves, the next host becomes the owner. Whether the
//! device is wanted is the sum of all hosts. The source half of a dividing pair runs here, outside the hosts' own
//! pairs.

#[cfg(test)]
mod tests;

use super::client::{Client, Pressure};
use super::spread::{Clients, Fan, Spread};
use crate::endpoint::Endpoint;
use crate::inward::{Inward, PathEnd};
use crate::origin::{PartnerOrigin, make_partner};
use buffers::Ring;
use contract::{
    Attributes, Direction, FlowClass, FlowDirection, FlowKey, FlowOffer, FlowTemplate, Format, Half, Opened,
    OptionKind, OptionSpec, Partner, PartnerError, PartnerResult, Presence, Site, Time, local,
};
use flow::chain_runner::make_link;
use flow::types::{Wake, forget};
use modules::check_options;
use modules::now;
use modules::registry;
use pipeline::DropCounts;
use pipeline::PairUse;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use sys::event::Event;
use sys::poller::Poller;

const COMMANDS_MAX: usize = 1024;
/// Limit of hosts at one device.
const WAYS_MAX: i64 = 64;
/// Limit of messages that wait for each host, by default.
const QUEUE: usize = 64;
/// The same for pictures of a camera. A host does not read while it waits for its network; what waits in front of it becomes old,
/// although the device has newer ones. Changes of a screen need the room: while a whole picture is sent, many may come.
const PICTURES: usize = 2;

/// Options of the policy `copy`.
static OPTIONS: [OptionSpec; 4] = [
    local(
        "ways",
        OptionKind::Integer { min: 1, max: WAYS_MAX },
        "8",
        "hosts at once; a pair that divides the flow says it itself",
    ),
    local(
        "queue",
        OptionKind::OrAuto(&OptionKind::Integer { min: 1, max: 65_536 }),
        "auto",
        "messages that wait for each host; auto: 2 pictures of a camera, 64 others",
    ),
    local(
        "slow",
        OptionKind::Choice(&["wait", "drop"]),
        "wait",
        "a host too slow for a reliable flow: the others wait for it, or it loses the newest",
    ),
    local(
        "patience",
        OptionKind::Duration { min: Duration::from_millis(100), max: Duration::from_secs(86_400) },
        "10s",
        "how long the others wait for a host that takes nothing at all; then it loses the device",
    ),
];

/// The number of hosts that can use a device at the same time.
#[derive(Clone, Default)]
pub enum HubPolicy {
    /// Several if the device's pipeline begins with a dividing pair, else one.
    #[default]
    ByPipeline,
    /// One host.
    Exclusive,
    /// Several hosts.
    Copy(HubOptions),
}

/// The limits of a hub.
#[derive(Debug, Clone, Copy)]
pub struct HubOptions {
    /// Limit of simultaneous hosts.
    pub ways: u16,
    /// Limit of messages that wait for each host; `None`: the one that suits the flow.
    pub queue: Option<usize>,
    /// A host that is too slow for a reliable flow loses the newest messages; if false, the others wait.
    pub may_drop: bool,
    /// Timeout for a host that accepts no messages while the others wait for it; then it loses the
    /// device.
    pub patience: Duration,
}

impl Default for HubOptions {
    fn default() -> Self {
        HubOptions { ways: 8, queue: None, may_drop: false, patience: Duration::from_secs(10) }
    }
}

impl HubOptions {
    /// Returns the limit of messages that wait for each host of a device with these flows.
    fn queue_for(&self, flows: &[FlowOffer]) -> usize {
        let outward = flows.iter().find(|flow| flow.direction == FlowDirection::DeviceToApplication);
        let suitable = match outward.map(|flow| (&flow.format, flow.class)) {
            Some((Format::Video, FlowClass::Timely)) => PICTURES,
            _ => QUEUE,
        };
        self.queue.unwrap_or(suitable)
    }
}

impl HubPolicy {
    /// Parses `exclusive` or `copy[,ways=N][,queue=N][,slow=wait|drop][,patience=TIME]`.
    pub fn parse(text: &str) -> Result<HubPolicy, String> {
        let (policy, options) = text.split_once(',').unwrap_or((text, ""));
        match policy.trim() {
            "exclusive" if options.is_empty() => Ok(HubPolicy::Exclusive),
            "copy" => {
                let options = check_options(&OPTIONS, Some(options))?;
                Ok(HubPolicy::Copy(HubOptions {
                    ways: options.count("ways") as u16,
                    queue: (!options.is_auto("queue")).then(|| options.count("queue")),
                    may_drop: options.text("slow") == "drop",
                    patience: options.duration("patience"),
                }))
            }
            _ => Err(format!(
                "`{text}` is no policy: write `exclusive`, or `copy` with ways=N, queue=N, slow=wait|drop, \
                 patience=TIME behind it"
            )),
        }
    }
}

/// The division of one device among hosts.
#[derive(Clone)]
pub struct HubPlan {
    options: HubOptions,
    /// The pair that divides the flow; without one every host receives every message.
    fan: Option<PairUse>,
}

impl HubPlan {
    /// Combines the policy, the device's own pipeline and its flows; `None` if only one host at a time uses
    /// the device.
    pub fn decide(
        policy: &HubPolicy,
        own: Option<&pipeline::Pipeline>,
        flows: &[FlowOffer],
    ) -> Result<Option<HubPlan>, String> {
        let plan = HubPlan::of_policy(policy, own)?;
        // Its answers belong to one application. Without this error, the others would wait for ever, or take the answers
        // to the requests of another one for those to their own.
        let fan = plan.as_ref().and_then(|plan| plan.fan.as_ref());
        // Several paths to one application, which alone asks.
        let is_joined = fan.is_some_and(|fan| fan.options.flag("join"));
        let device = flows.iter().find_map(|flow| match (&flow.format, flow.direction) {
            (Format::Block, _) => Some(("a disk", "")),
            (Format::Hid, FlowDirection::ApplicationToDevice) if !is_joined => {
                Some(("a whole HID device", ", or share its event node (`evdev`)"))
            }
            _ => None,
        });
        match device {
            Some((device, other_way)) if plan.is_some() => Err(format!(
                "{device} serves one host at a time: share it without `--hub` and without a pair that divides its \
                 flow{other_way}"
            )),
            _ => Ok(plan),
        }
    }

    fn of_policy(policy: &HubPolicy, own: Option<&pipeline::Pipeline>) -> Result<Option<HubPlan>, String> {
        let mut options = match policy {
            HubPolicy::Exclusive => return Ok(None),
            HubPolicy::ByPipeline => HubOptions::default(),
            HubPolicy::Copy(options) => *options,
        };
        let fan =
            own.map(|own| own.outermost_fan().map_err(|error| error.to_string())).transpose()?.flatten();
        let Some((fan, ways)) = fan else {
            return Ok(matches!(policy, HubPolicy::Copy(_)).then_some(HubPlan { options, fan: None }));
        };
        if fan.pair.promises(&fan.options).needs_control {
            return Err(format!(
                "the halves of `{}` exchange control messages, which a hub cannot carry",
                fan.pair.name()
            ));
        }
        if i64::from(ways) > WAYS_MAX {
            return Err(format!("a device has at most {WAYS_MAX} hosts, not {ways}"));
        }
        options.ways = ways;
        Ok(Some(HubPlan { options, fan: Some(fan.clone()) }))
    }

    /// The plan for several uses by one host: each receives every message.
    pub fn copy() -> HubPlan {
        HubPlan { options: HubOptions::default(), fan: None }
    }

    /// The number of simultaneous hosts.
    pub fn ways(&self) -> u16 {
        self.options.ways
    }

    /// Checks that a host's flow begins with the dividing pair, and removes that pair: the hub runs it.
    pub fn apply(&self, plan: &mut flow::types::FlowPlan) -> Result<(), String> {
        let Some(fan) = &self.fan else { return Ok(()) };
        if plan.direction != FlowDirection::DeviceToApplication {
            return Ok(());
        }
        let wanted = fan.canonical();
        if plan.pipeline.pairs().first().is_none_or(|first| first.canonical() != wanted) {
            return Err(format!(
                "the device is divided among hosts by `{wanted}`: a pipeline for it begins with that, or is left \
                 to its host"
            ));
        }
        plan.pipeline.leave_first_to_junction();
        Ok(())
    }
}

/// Counters of a hub.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HubStats {
    /// Messages produced by the device.
    pub messages: u64,
    /// Messages delivered to each host, by client number.
    #[serde(deserialize_with = "by_number")]
    pub clients: BTreeMap<u16, u64>,
    /// The client that owns the flow back to the device.
    pub owner: Option<u16>,
    /// Messages dropped by the hub, by reason.
    pub drops: BTreeMap<String, u64>,
}

/// Reads a map with numeric keys from JSON inside a tagged enum, where serde passes the keys as strings.
fn by_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<u16, u64>, D::Error> {
    let number = |(name, count): (String, u64)| Ok((name.parse().map_err(D::Error::custom)?, count));
    BTreeMap::deserialize(deserializer)?.into_iter().map(number).collect()
}

/// The clients that the others wait for, by number: the delivered count at the last progress, and the
/// start of the stall.
type Blocked = BTreeMap<u16, (u64, Time)>;

#[derive(Default)]
struct Published {
    stats: HubStats,
    blocked: Blocked,
}

enum Command {
    Join(u16, Box<Endpoint>),
    Leave(u16),
    SetOwner(Option<u16>),
    Device(PartnerOrigin),
    Publish,
    Stop,
}

/// A broker's handle on a hub. Dropping it stops the hub and releases the device.
pub struct Hub {
    options: HubOptions,
    /// Limit of messages that wait for each host.
    queue: usize,
    commands: Ring<Command>,
    wake: Event,
    published: Arc<Mutex<Published>>,
    thread: Option<JoinHandle<()>>,
}

impl Hub {
    /// Starts a thread that owns the device. Without an origin the device comes later ([`Hub::return_device`]).
    pub fn start(
        name: &str,
        plan: &HubPlan,
        origin: Option<PartnerOrigin>,
        flows: &[FlowOffer],
    ) -> Result<Hub, String> {
        let failed = |error: std::io::Error| format!("starting a hub: {error}");
        let commands = Ring::new(COMMANDS_MAX);
        let wake = Event::new().map_err(failed)?;
        let published = Arc::<Mutex<Published>>::default();
        let (sender, result) = sync_channel(1);
        let queue = plan.options.queue_for(flows);
        let (loop_plan, flows, poller) = (plan.clone(), flows.to_vec(), Poller::new().map_err(failed)?);
        let shared = (commands.clone(), wake.clone(), published.clone());
        let run = move || run(Loop::build(&loop_plan, origin, flows, shared, poller), &sender);
        let thread = std::thread::Builder::new().name(format!("hub {name}")).spawn(run).map_err(failed)?;
        let hub = Hub { options: plan.options, queue, commands, wake, published, thread: Some(thread) };
        match result.recv() {
            Ok(Ok(())) => Ok(hub),
            Ok(Err(problem)) => Err(problem),
            Err(_) => Err("the hub ended before it began".into()),
        }
    }

    /// Creates a partner for the host with this number, which joins or gets the device back.
    pub fn join(&self, client: u16) -> Result<PartnerOrigin, String> {
        let (ours, theirs) = Endpoint::pair(self.queue)
            .map_err(|error| format!("an endpoint of the hub cannot be made: {error}"))?;
        self.send(Command::Join(client, Box::new(ours)));
        Ok(PartnerOrigin::Hub(theirs))
    }

    /// Removes the host with this number.
    pub fn leave(&self, client: u16) {
        self.send(Command::Leave(client));
    }

    /// Sets the owner: the only host that may write to the device.
    pub fn set_owner(&self, owner: Option<u16>) {
        self.send(Command::SetOwner(owner));
    }

    /// Supplies the reopened device.
    pub fn return_device(&self, origin: PartnerOrigin) {
        self.send(Command::Device(origin));
    }

    /// Requests new counters; returns those of the previous request.
    pub fn stats(&self) -> HubStats {
        self.send(Command::Publish);
        lock(&self.published).stats.clone()
    }

    /// The start of the stall if the others wait for this host; `None` if they do not.
    pub fn blocked_since(&self, client: u16) -> Option<Time> {
        lock(&self.published).blocked.get(&client).map(|(_, since)| *since)
    }

    /// Timeout for a host that accepts no messages while the others wait for it.
    pub fn patience(&self) -> Duration {
        self.options.patience
    }

    fn send(&self, command: Command) {
        // The hub handles commands first, so the ring is full only if the hub hangs.
        let _ = self.commands.push(command);
        self.wake.signal();
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.send(Command::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn lock(published: &Mutex<Published>) -> MutexGuard<'_, Published> {
    published.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run(built: Result<Loop, String>, sender: &SyncSender<Result<(), String>>) {
    match built {
        Ok(mut hub) => {
            // The caller waits for this result.
            let _ = sender.send(Ok(()));
            hub.run();
        }
        Err(problem) => {
            let _ = sender.send(Err(problem));
        }
    }
}

struct Loop {
    device: Option<Box<dyn Partner>>,
    /// A copy of the device's descriptors, to remove its leftovers ([`registry::release`]).
    opened: Option<Box<Opened>>,
    /// The reason why the device is absent, while its partner waits for it.
    absence: Option<String>,
    flows: Vec<FlowOffer>,
    /// Class of the flow to the hosts.
    outward: FlowClass,
    /// The format of the flow to the hosts has a state.
    has_state: bool,
    forward: Option<Spread>,
    inward: Inward,
    options: HubOptions,
    /// Limit of messages that wait for each host.
    queue: usize,
    clients: Clients,
    /// Drops of clients that left.
    drops: DropCounts,
    blocked: Blocked,
    commands: Ring<Command>,
    wake: Event,
    published: Arc<Mutex<Published>>,
    poller: Poller,
}

impl Loop {
    fn build(
        plan: &HubPlan,
        origin: Option<PartnerOrigin>,
        flows: Vec<FlowOffer>,
        (commands, wake, published): (Ring<Command>, Event, Arc<Mutex<Published>>),
        poller: Poller,
    ) -> Result<Loop, String> {
        let opened = origin.as_ref().and_then(copy_of);
        let mut device = origin.map(make_partner).transpose().map_err(|error| error.to_string())?;
        let keys = match device.as_mut() {
            Some(device) => open(device.as_mut(), &flows).map_err(|error| error.to_string())?,
            // A device that comes later has keys of its own.
            None => Keys { forward: Some(FlowKey::DEFAULT), back: None },
        };
        let offer = flows.iter().find(|offer| offer.direction == FlowDirection::DeviceToApplication);
        let forward = match (keys.forward, offer) {
            (Some(key), Some(offer)) => {
                let make = |used: &PairUse| {
                    let name = used.pair.name();
                    let link = make_link(used, Half::Source, &offer.format, &Site::default());
                    link.map(|link| Fan::new(name, link))
                        .map_err(|error| format!("`{name}` does not start: {error}"))
                };
                let fan = plan.fan.as_ref().map(make).transpose()?;
                let pressure = Pressure::of(offer.class, plan.options.may_drop);
                Some(Spread::new(key, offer.class, pressure, fan))
            }
            _ => None,
        };
        Ok(Loop {
            device,
            opened,
            absence: None,
            outward: offer.map_or(FlowClass::Reliable, |offer| offer.class),
            has_state: offer.is_some_and(|offer| offer.format.has_state()),
            inward: Inward::new(keys.back, &flows),
            queue: plan.options.queue_for(&flows),
            flows,
            forward,
            options: plan.options,
            clients: Clients::new(),
            drops: DropCounts::default(),
            blocked: Blocked::new(),
            commands,
            wake,
            published,
            poller,
        })
    }

    fn run(&mut self) {
        sys::thread::be_punctual();
        loop {
            while let Some((command, _)) = self.commands.pop() {
                if matches!(command, Command::Stop) {
                    return self.stop();
                }
                self.handle(command);
            }
            let turn = self.turn();
            self.note_blocked();
            match turn {
                Ok(true) => {}
                Ok(false) => self.sleep(),
                Err(error) => self.lose_device(&error),
            }
        }
    }

    /// Records the clients that the others wait for. Those may keep the hub busy with their own
    /// messages, so that it never sleeps.
    fn note_blocked(&mut self) {
        let stalled = |(number, client): (&u16, &Client)| {
            let prev = self.blocked.get(number).filter(|(delivered, _)| *delivered == client.delivered);
            (*number, prev.copied().unwrap_or_else(|| (client.delivered, now())))
        };
        let blocked: Blocked =
            self.clients.iter().filter(|(_, client)| client.is_blocked()).map(stalled).collect();
        if blocked != self.blocked {
            lock(&self.published).blocked.clone_from(&blocked);
            self.blocked = blocked;
        }
    }

    fn stop(&mut self) {
        if let Some(mut device) = self.device.take() {
            self.inward.stop(&mut device, now());
        }
        self.release();
    }

    /// Removes the leftovers of the device, after its partner is dropped.
    fn release(&mut self) {
        if let Some(opened) = self.opened.take() {
            registry::release(&opened);
        }
    }

    fn handle(&mut self, command: Command) {
        match command {
            Command::Join(number, endpoint) => {
                self.remove(number, PathEnd::Replaced);
                let mut client = Client::new(*endpoint, self.outward);
                // The host of a state flow requests a snapshot itself. That of a reliable flow does not
                // know that the device was opened before.
                if self.outward == FlowClass::Reliable && self.has_state {
                    client.request_snapshot();
                }
                if self.absence.is_some() {
                    client.report_absence(self.absence.as_deref());
                }
                self.clients.insert(number, client);
            }
            Command::Leave(number) => self.remove(number, PathEnd::Left),
            Command::SetOwner(owner) => self.inward.set_owner(owner, self.device.as_mut()),
            Command::Device(origin) => self.reopen_device(origin),
            Command::Publish => self.publish(),
            Command::Stop => {}
        }
    }

    fn remove(&mut self, number: u16, end: PathEnd) {
        let Some(client) = self.clients.remove(&number) else { return };
        client.forget(&mut self.poller);
        let patience = self.device.is_some().then_some(self.options.patience);
        let limits = (now(), patience, self.queue);
        self.inward.end_path((number, client), end, limits, &mut self.drops);
    }

    fn reopen_device(&mut self, origin: PartnerOrigin) {
        self.opened = copy_of(&origin);
        let opened =
            make_partner(origin).and_then(|mut device| Ok((open(device.as_mut(), &self.flows)?, device)));
        match opened {
            Ok((keys, device)) => {
                if let (Some(forward), Some(key)) = (self.forward.as_mut(), keys.forward) {
                    forward.reopen(key, &mut self.clients, now());
                }
                self.inward.reopen(keys.back);
                self.device = Some(device);
            }
            Err(error) => self.lose_device(&error),
        }
    }

    /// Reports the failure to every host. They rejoin when the device is back.
    fn lose_device(&mut self, error: &PartnerError) {
        if let Some(device) = self.device.take() {
            forget(&mut self.poller, device.as_ref());
        }
        self.release();
        self.inward.handle_device_lost(self.queue, &mut self.drops);
        self.absence = None;
        self.clients.values_mut().for_each(|client| client.fail(error));
    }

    fn turn(&mut self) -> PartnerResult<bool> {
        let Some(device) = self.device.as_mut() else { return Ok(false) };
        let mut again = false;
        if let Some(forward) = self.forward.as_mut() {
            again |= forward.run(device.as_mut(), &mut self.clients, now())?;
        }
        let limits = (now(), self.queue);
        again |= self.inward.run(device, &mut self.clients, limits, &mut self.drops)?;
        self.report_presence();
        Ok(again)
    }

    /// Reports to every host that the device is absent, or back.
    fn report_presence(&mut self) {
        while let Some(change) = self.device.as_mut().and_then(|device| device.presence()) {
            self.absence = match change {
                Presence::Absent(reason) => Some(reason),
                Presence::Present => None,
            };
            let reason = self.absence.as_deref();
            self.clients.values_mut().for_each(|client| client.report_absence(reason));
        }
    }

    fn sleep(&mut self) {
        let mut wake = Wake::default();
        self.poller.register(self.wake.as_fd(), true, false);
        if let Some(device) = self.device.as_deref() {
            if let Some(forward) = &self.forward {
                forward.register(device, &self.clients, &mut self.poller, &mut wake);
            }
            self.inward.register(device, &self.clients, &mut self.poller, &mut wake);
        }
        let timeout = if wake.now { Some(Duration::ZERO) } else { wake.at.map(|at| at.since(now())) };
        // Polling fails only for lack of memory; pause and try again.
        if self.poller.wait(timeout).is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
        if self.poller.is_ready(self.wake.as_fd()) {
            self.wake.clear();
        }
    }

    fn publish(&self) {
        let mut published = lock(&self.published);
        let stats = &mut published.stats;
        stats.owner = self.inward.owner();
        stats.clients = self.clients.iter().map(|(number, client)| (*number, client.delivered)).collect();
        let forward = self.forward.as_ref();
        stats.messages = forward.map_or(0, |forward| forward.messages);
        let mut drops = self.drops.clone();
        let counts = forward.map(|forward| &forward.drops).into_iter();
        for counts in counts.chain(self.clients.values().map(|client| &client.drops)) {
            counts.counts.iter().for_each(|(reason, count)| drops.add(reason, *count));
        }
        stats.drops = drops.counts;
    }
}

fn copy_of(origin: &PartnerOrigin) -> Option<Box<Opened>> {
    match origin {
        PartnerOrigin::Opened(opened) => opened.try_clone().ok().map(Box::new),
        PartnerOrigin::Hub(_) | PartnerOrigin::Ready(_) => None,
    }
}

/// The opened flows of a device.
struct Keys {
    forward: Option<FlowKey>,
    back: Option<FlowKey>,
}

fn open(device: &mut dyn Partner, flows: &[FlowOffer]) -> PartnerResult<Keys> {
    let mut keys = Keys { forward: None, back: None };
    for offer in flows {
        let (key, direction) = match offer.direction {
            FlowDirection::DeviceToApplication => (&mut keys.forward, Direction::Out),
            FlowDirection::ApplicationToDevice => (&mut keys.back, Direction::In),
        };
        let template = FlowTemplate { direction, format: offer.format.clone(), class: offer.class };
        *key = Some(device.open(&template, &Attributes::default())?);
    }
    Ok(keys)
}
