//! A hub: one opened device that feeds several hosts, and one owner of what flows back.
//!
//! The sharer's broker gives each host that opens the device a way of the hub: an endpoint that is the partner of
//! that host's driver. The hub's thread holds the device and the other ends. What flows back is taken from the
//! host that came first; when it leaves, the next is the owner. A pair that divides the flow has its source half
//! here, outside all of the hosts' own pairs.

use super::spread::{Fan, Spread, Ways};
use super::way::{Pressure, Way};
use crate::active::{Endpoint, Taken};
use crate::config::check_options;
use crate::driver::{Wake, forget};
use crate::segment::{DropCounts, make_link};
use crate::share::now;
use crate::worker::{PartnerOrigin, make_partner};
use buffers::Ring;
use contract::{
    Attributes, Ctl, Direction, FlowClass, FlowDirection, FlowKey, FlowOffer, FlowTemplate, Half, OptionKind,
    OptionSpec, Partner, PartnerError, Pushed, Scope, Site, Time,
};
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
/// Most hosts at one device.
const WAYS_MAX: i64 = 64;
/// Messages taken from one way in one run.
const BURST: usize = 64;

/// Options of the policy `copy`.
static OPTIONS: [OptionSpec; 4] = [
    OptionSpec {
        name: "ways",
        kind: OptionKind::Integer { min: 1, max: WAYS_MAX },
        default: "8",
        scope: Scope::Local,
        doc: "hosts at once; a pair that divides the flow says it itself",
    },
    OptionSpec {
        name: "queue",
        kind: OptionKind::Integer { min: 1, max: 65_536 },
        default: "64",
        scope: Scope::Local,
        doc: "messages that wait for each host",
    },
    OptionSpec {
        name: "slow",
        kind: OptionKind::Choice(&["wait", "drop"]),
        default: "wait",
        scope: Scope::Local,
        doc: "a host too slow for a reliable flow: the others wait for it, or it loses the newest",
    },
    OptionSpec {
        name: "patience",
        kind: OptionKind::Duration { min: Duration::from_millis(100), max: Duration::from_secs(86_400) },
        default: "10s",
        scope: Scope::Local,
        doc: "how long the others wait for a host that takes nothing at all; then it loses the device",
    },
];

/// Who may use a device at once.
#[derive(Clone, Default)]
pub enum HubPolicy {
    /// Several if the device's pipeline begins with a pair that divides it, one if not.
    #[default]
    ByPipeline,
    /// One host.
    Exclusive,
    /// Several hosts.
    Copy(HubOptions),
}

/// The bounds of a hub.
#[derive(Debug, Clone, Copy)]
pub struct HubOptions {
    /// Hosts at once.
    pub ways: u16,
    /// Messages that wait for each host.
    pub queue: usize,
    /// A host too slow for a reliable flow loses the newest; else the others wait for it.
    pub may_drop: bool,
    /// How long the others wait for a host that takes nothing at all; then it loses the device.
    pub patience: Duration,
}

impl Default for HubOptions {
    fn default() -> Self {
        HubOptions { ways: 8, queue: 64, may_drop: false, patience: Duration::from_secs(10) }
    }
}

impl HubPolicy {
    /// Reads `exclusive` or `copy[,ways=N][,queue=N][,slow=wait|drop][,patience=TIME]`.
    pub fn parse(text: &str) -> Result<HubPolicy, String> {
        let (policy, options) = text.split_once(',').unwrap_or((text, ""));
        match policy.trim() {
            "exclusive" if options.is_empty() => Ok(HubPolicy::Exclusive),
            "copy" => {
                let options = check_options(&OPTIONS, Some(options))?;
                Ok(HubPolicy::Copy(HubOptions {
                    ways: options.count("ways") as u16,
                    queue: options.count("queue"),
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

/// How one device is divided.
#[derive(Clone)]
pub(crate) struct HubPlan {
    options: HubOptions,
    /// The pair that divides the flow; without one every host gets everything.
    fan: Option<PairUse>,
}

impl HubPlan {
    /// What the policy and the device's own pipeline come to; `None` if one host at a time has the device.
    pub(crate) fn decide(
        policy: &HubPolicy,
        own: Option<&pipeline::Pipeline>,
    ) -> Result<Option<HubPlan>, String> {
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
                "the halves of `{}` talk to each other, which a hub cannot carry",
                fan.pair.name()
            ));
        }
        if i64::from(ways) > WAYS_MAX {
            return Err(format!("a device has at most {WAYS_MAX} hosts, not {ways}"));
        }
        options.ways = ways;
        Ok(Some(HubPlan { options, fan: Some(fan.clone()) }))
    }

    /// How many hosts at once.
    pub(crate) fn ways(&self) -> u16 {
        self.options.ways
    }

    /// Checks that a host's flow begins with the pair that divides the device, and leaves that to the hub.
    pub(crate) fn settle(&self, plan: &mut crate::driver::FlowPlan) -> Result<(), String> {
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

/// What a hub did so far.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HubStats {
    /// Messages that the device made.
    pub messages: u64,
    /// Messages that were handed to each host, by the number of its way.
    #[serde(deserialize_with = "by_number")]
    pub ways: BTreeMap<u16, u64>,
    /// Whose messages flow back to the device.
    pub owner: Option<u16>,
    /// Messages that ended here, by reason.
    pub drops: BTreeMap<String, u64>,
}

/// Numbers that are names in JSON, inside of what is told apart by a name too: there serde finds texts alone.
fn by_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<u16, u64>, D::Error> {
    let number = |(name, count): (String, u64)| Ok((name.parse().map_err(D::Error::custom)?, count));
    BTreeMap::deserialize(deserializer)?.into_iter().map(number).collect()
}

/// Those that the others wait for, by the numbers of their ways: what each was handed when it last took something, and since
/// when it takes nothing.
type Blocked = BTreeMap<u16, (u64, Time)>;

#[derive(Default)]
struct Shown {
    stats: HubStats,
    blocked: Blocked,
}

enum Command {
    Join(u16, Box<Endpoint>),
    Leave(u16),
    Own(Option<u16>),
    Device(PartnerOrigin),
    Show,
    Stop,
}

/// A broker's handle on a hub; dropping it ends the hub and lets the device go.
pub(crate) struct Hub {
    options: HubOptions,
    commands: Ring<Command>,
    wake: Event,
    shown: Arc<Mutex<Shown>>,
    thread: Option<JoinHandle<()>>,
}

impl Hub {
    /// Takes the device over, in a thread of its own.
    pub(crate) fn start(
        name: &str,
        plan: &HubPlan,
        origin: PartnerOrigin,
        flows: &[FlowOffer],
    ) -> Result<Hub, String> {
        let failed = |error: std::io::Error| format!("starting a hub: {error}");
        let commands = Ring::new(COMMANDS_MAX);
        let wake = Event::new().map_err(failed)?;
        let shown = Arc::<Mutex<Shown>>::default();
        let (told, answer) = sync_channel(1);
        let (plan_there, flows, poller) = (plan.clone(), flows.to_vec(), Poller::new().map_err(failed)?);
        let (commands_there, wake_there, shown_there) = (commands.clone(), wake.clone(), shown.clone());
        let run = move || {
            let built =
                Loop::build(&plan_there, origin, flows, (commands_there, wake_there, shown_there), poller);
            run(built, &told);
        };
        let thread = std::thread::Builder::new().name(format!("hub {name}")).spawn(run).map_err(failed)?;
        let hub = Hub { options: plan.options, commands, wake, shown, thread: Some(thread) };
        match answer.recv() {
            Ok(Ok(())) => Ok(hub),
            Ok(Err(problem)) => Err(problem),
            Err(_) => Err("the hub ended before it began".into()),
        }
    }

    /// A partner for the host on this way, which begins now or gets the device back.
    pub(crate) fn join(&self, way: u16) -> Result<PartnerOrigin, String> {
        let (ours, theirs) = Endpoint::pair(self.options.queue)
            .map_err(|error| format!("an endpoint of the hub cannot be made: {error}"))?;
        self.send(Command::Join(way, Box::new(ours)));
        Ok(PartnerOrigin::Way(theirs))
    }

    /// The host on this way is gone.
    pub(crate) fn leave(&self, way: u16) {
        self.send(Command::Leave(way));
    }

    /// Who may write to the device.
    pub(crate) fn own(&self, way: Option<u16>) {
        self.send(Command::Own(way));
    }

    /// The device is back.
    pub(crate) fn return_device(&self, origin: PartnerOrigin) {
        self.send(Command::Device(origin));
    }

    /// What it had done when this was last asked.
    pub(crate) fn stats(&self) -> HubStats {
        self.send(Command::Show);
        lock(&self.shown).stats.clone()
    }

    /// Since when the others wait for the host on this way, which takes nothing; `None` if they do not.
    pub(crate) fn blocked_since(&self, way: u16) -> Option<Time> {
        lock(&self.shown).blocked.get(&way).map(|(_, since)| *since)
    }

    /// How long the others wait for a host that takes nothing.
    pub(crate) fn patience(&self) -> Duration {
        self.options.patience
    }

    fn send(&self, command: Command) {
        // The hub takes commands before all else: only one that hangs lets so many pile up.
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

fn lock(shown: &Mutex<Shown>) -> MutexGuard<'_, Shown> {
    shown.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run(built: Result<Loop, String>, told: &SyncSender<Result<(), String>>) {
    match built {
        Ok(mut hub) => {
            // Who asked is waiting for the answer.
            let _ = told.send(Ok(()));
            hub.run();
        }
        Err(problem) => {
            let _ = told.send(Err(problem));
        }
    }
}

struct Loop {
    device: Option<Box<dyn Partner>>,
    flows: Vec<FlowOffer>,
    /// What becomes of the flow to the hosts.
    outward: FlowClass,
    forward: Option<Spread>,
    back: Option<FlowKey>,
    ways: Ways,
    owner: Option<u16>,
    /// Drops of hosts that left.
    drops: DropCounts,
    unflushed: bool,
    blocked: Blocked,
    commands: Ring<Command>,
    wake: Event,
    shown: Arc<Mutex<Shown>>,
    poller: Poller,
}

impl Loop {
    fn build(
        plan: &HubPlan,
        origin: PartnerOrigin,
        flows: Vec<FlowOffer>,
        (commands, wake, shown): (Ring<Command>, Event, Arc<Mutex<Shown>>),
        poller: Poller,
    ) -> Result<Loop, String> {
        let mut device = make_partner(origin).map_err(|error| error.to_string())?;
        let keys = open(device.as_mut(), &flows).map_err(|error| error.to_string())?;
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
            device: Some(device),
            outward: offer.map_or(FlowClass::Reliable, |offer| offer.class),
            flows,
            forward,
            back: keys.back,
            ways: Ways::new(),
            owner: None,
            drops: DropCounts::default(),
            unflushed: false,
            blocked: Blocked::new(),
            commands,
            wake,
            shown,
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

    /// Notes for whom the others wait. Those may have the hub take what they say meanwhile, and never sleep.
    fn note_blocked(&mut self) {
        let known = |(number, way): (&u16, &Way)| {
            let before = self.blocked.get(number).filter(|(handed, _)| *handed == way.handed);
            (*number, before.copied().unwrap_or_else(|| (way.handed, now())))
        };
        let blocked: Blocked = self.ways.iter().filter(|(_, way)| way.is_blocked()).map(known).collect();
        if blocked != self.blocked {
            lock(&self.shown).blocked.clone_from(&blocked);
            self.blocked = blocked;
        }
    }

    fn stop(&mut self) {
        if let Some(device) = self.device.as_mut() {
            let _ = device.ctl(FlowKey::DEFAULT, Ctl::Neutral);
        }
    }

    fn handle(&mut self, command: Command) {
        match command {
            Command::Join(number, endpoint) => {
                self.remove(number);
                self.ways.insert(number, Way::new(*endpoint, self.outward));
            }
            Command::Leave(number) => self.remove(number),
            Command::Own(owner) => {
                if self.owner.is_some() && self.owner != owner {
                    self.let_go();
                }
                self.owner = owner;
            }
            Command::Device(origin) => self.take_back(origin),
            Command::Show => self.show(),
            Command::Stop => {}
        }
    }

    fn remove(&mut self, number: u16) {
        let Some(way) = self.ways.remove(&number) else { return };
        way.forget(&mut self.poller);
        for (reason, count) in &way.drops.counts {
            self.drops.add(reason, *count);
        }
    }

    /// What the last owner set at the device is undone.
    fn let_go(&mut self) {
        if let (Some(device), Some(back)) = (self.device.as_mut(), self.back) {
            // A device without a neutral state has nothing to let go of.
            let _ = device.ctl(back, Ctl::Neutral);
        }
    }

    fn take_back(&mut self, origin: PartnerOrigin) {
        let opened =
            make_partner(origin).and_then(|mut device| Ok((open(device.as_mut(), &self.flows)?, device)));
        match opened {
            Ok((keys, device)) => {
                if let (Some(forward), Some(key)) = (self.forward.as_mut(), keys.forward) {
                    forward.reopen(key, &mut self.ways, now());
                }
                self.back = keys.back;
                self.device = Some(device);
            }
            Err(error) => self.lose_device(&error),
        }
    }

    /// Every host is told, and has its way again when the device is back.
    fn lose_device(&mut self, error: &PartnerError) {
        if let Some(device) = self.device.take() {
            forget(&mut self.poller, device.as_ref());
        }
        self.unflushed = false;
        self.ways.values_mut().for_each(|way| way.fail(error));
    }

    fn turn(&mut self) -> Result<bool, PartnerError> {
        let Some(device) = self.device.as_mut() else { return Ok(false) };
        let mut again = false;
        if let Some(forward) = self.forward.as_mut() {
            again |= forward.run(device.as_mut(), &mut self.ways, now())?;
        }
        again |= self.take_back_flows()?;
        self.flush()?;
        Ok(again)
    }

    /// Hands on what the owner says; what others say ends here.
    fn take_back_flows(&mut self) -> Result<bool, PartnerError> {
        let Some(device) = self.device.as_mut() else { return Ok(false) };
        let mut again = false;
        for (number, way) in &mut self.ways {
            let is_owner = self.owner == Some(*number);
            let mut left = BURST;
            loop {
                if left == 0 {
                    again = true;
                    break;
                }
                left -= 1;
                match (way.take(), self.back.filter(|_| is_owner)) {
                    (Taken::Message(message), Some(back)) => match device.push(back, message) {
                        Ok(Pushed::Taken) => self.unflushed = true,
                        Ok(Pushed::Full(message)) => {
                            way.put_back(Taken::Message(message));
                            break;
                        }
                        Err((PartnerError::Message(_), _)) => way.drops.add("refused by the device", 1),
                        Err((error, message)) => {
                            way.put_back(Taken::Message(message));
                            return Err(error);
                        }
                    },
                    (Taken::Message(_), None) => way.drops.add("not the owner", 1),
                    (Taken::Neutral, Some(back)) => {
                        let _ = device.ctl(back, Ctl::Neutral);
                    }
                    (Taken::Neutral, None) => {}
                    // The others may still write: the device's input does not end with one of them.
                    (Taken::Nothing | Taken::End, _) => break,
                }
            }
        }
        Ok(again)
    }

    fn flush(&mut self) -> Result<(), PartnerError> {
        if let Some(device) = self.device.as_mut().filter(|_| self.unflushed) {
            self.unflushed = crate::driver::flush(Some(device))?;
        }
        Ok(())
    }

    fn sleep(&mut self) {
        let mut wake = Wake::default();
        self.poller.want(self.wake.as_fd(), true, false);
        if let Some(device) = self.device.as_deref() {
            if let Some(forward) = &self.forward {
                forward.want(device, &self.ways, &mut self.poller, &mut wake);
            }
            self.ways.values().for_each(|way| way.want(true, &mut self.poller, &mut wake));
            let is_full = self.ways.values().any(Way::is_held);
            if let Some(back) = self.back.filter(|_| is_full || self.unflushed) {
                let readiness = device.readiness(back, Direction::In);
                wake.add(
                    &mut self.poller,
                    contract::Readiness { now: readiness.now && is_full, ..readiness },
                );
            }
        }
        let timeout = if wake.now { Some(Duration::ZERO) } else { wake.at.map(|at| at.since(now())) };
        // Waiting fails only for lack of memory; a pause is then all there is to do.
        if self.poller.wait(timeout).is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
        if self.poller.is_ready(self.wake.as_fd()) {
            self.wake.clear();
        }
    }

    fn show(&self) {
        let mut shown = lock(&self.shown);
        let stats = &mut shown.stats;
        stats.owner = self.owner;
        stats.ways = self.ways.iter().map(|(number, way)| (*number, way.handed)).collect();
        let forward = self.forward.as_ref();
        stats.messages = forward.map_or(0, |forward| forward.messages);
        let mut drops = self.drops.clone();
        let counts = forward.map(|forward| &forward.drops).into_iter();
        for counts in counts.chain(self.ways.values().map(|way| &way.drops)) {
            counts.counts.iter().for_each(|(reason, count)| drops.add(reason, *count));
        }
        stats.drops = drops.counts;
    }
}

/// The flows of a device, open.
struct Keys {
    forward: Option<FlowKey>,
    back: Option<FlowKey>,
}

fn open(device: &mut dyn Partner, flows: &[FlowOffer]) -> Result<Keys, PartnerError> {
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
