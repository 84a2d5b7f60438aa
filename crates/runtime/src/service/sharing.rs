//! One address that a run file listens on: its sharer, and the devices that it is told to offer.

use super::hotplug;
use super::manager::Inherited;
use super::plan::SharePlan;
use super::unit::{Ends, Retry, new_stop, run_sharer};
use super::{Reloaded, STOP_PATIENCE};
use crate::config::ShareWords;
use crate::error::RuntimeError;
use crate::events::{Event, Stop};
use crate::listening::Listening;
use crate::share::{Orders, ShareRequest, Sharer, now};
use contract::Time;
use std::net::SocketAddr;
use std::thread::JoinHandle;
use std::time::Duration;

/// A sharer that listens on one address.
pub(super) struct Sharing {
    id: u64,
    /// Without devices.
    request: ShareRequest,
    stop: Stop,
    /// Until it runs.
    sharer: Option<Sharer>,
    /// While it runs.
    running: Option<(Orders, JoinHandle<()>)>,
    retry: Retry,
    devices: Vec<Device>,
    /// Those that stand for whatever suits them.
    rules: Vec<ShareWords>,
    next: u64,
}

/// One `[[share]]`, or one device that a rule stands for.
struct Device {
    /// What it is known by to the sharer.
    index: u64,
    words: ShareWords,
    offered: bool,
    retry: Retry,
    /// What only the device showed to be wrong with the words.
    wrong: Option<String>,
    /// Of a rule's device: which rule, and what the device is.
    found: Option<(ShareWords, String)>,
}

impl Device {
    fn new(index: u64, words: ShareWords, found: Option<(ShareWords, String)>) -> Device {
        Device { index, words, offered: false, retry: Retry::default(), wrong: None, found }
    }
}

impl Sharing {
    /// Begins to listen, with no device yet.
    pub(super) fn start(
        id: u64,
        request: &ShareRequest,
        inherited: &mut Inherited,
    ) -> Result<Sharing, RuntimeError> {
        let mut sharing = Sharing {
            id,
            request: request.clone(),
            stop: new_stop()?,
            sharer: None,
            running: None,
            retry: Retry::default(),
            devices: Vec::new(),
            rules: Vec::new(),
            next: 0,
        };
        sharing.listen_on(inherited)?;
        Ok(sharing)
    }

    fn listen_on(&mut self, inherited: &mut Inherited) -> Result<(), RuntimeError> {
        let at = self.request.listen;
        let failed = |error| RuntimeError::os(format!("listening on {at}"), error);
        let listening = match inherited.listening(at).map_err(failed)? {
            Some(listening) => listening,
            None => Listening::at(at).map_err(failed)?,
        };
        self.stop = new_stop()?;
        self.sharer = Some(Sharer::start_on(listening, self.request.clone())?);
        Ok(())
    }

    /// Runs it, if it does not yet.
    fn launch(&mut self, ends: &Ends) {
        let Some(sharer) = self.sharer.take() else { return };
        let orders = sharer.orders();
        match run_sharer(self.id, sharer, self.stop.clone(), ends) {
            Ok(thread) => self.running = Some((orders, thread)),
            Err(error) => self.retry.fail("share", error.to_string(), &ends.tell),
        }
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn listen(&self) -> SocketAddr {
        self.request.listen
    }

    pub(super) fn runs(&self) -> bool {
        self.running.as_ref().is_some_and(|(_, thread)| !thread.is_finished())
    }

    /// Devices on offer.
    pub(super) fn devices(&self) -> usize {
        self.devices.iter().filter(|device| device.offered).count()
    }

    /// Whether the plan of this address is one for the sharer that runs.
    pub(super) fn goes_on(&self, plan: &SharePlan) -> bool {
        plan.goes_on(self.request.trust.is_some(), self.request.announce, &self.request.limits)
    }

    /// Listens with other bounds; nothing is on offer yet.
    pub(super) fn begin_anew(&mut self, request: &ShareRequest, inherited: &mut Inherited, ends: &Ends) {
        self.request = request.clone();
        self.devices.clear();
        self.rules.clear();
        self.try_again(inherited, ends);
    }

    fn try_again(&mut self, inherited: &mut Inherited, ends: &Ends) {
        match self.listen_on(inherited) {
            Ok(()) => self.retry.succeed(),
            Err(error) => self.retry.fail("share", error.to_string(), &ends.tell),
        }
    }

    /// Withdraws what is gone, then offers what is new.
    pub(super) fn apply(&mut self, words: &[ShareWords], ends: &Ends, done: &mut Reloaded) {
        let (rules, mut fresh): (Vec<_>, Vec<_>) = words.iter().cloned().partition(hotplug::is_rule);
        done.unchanged += rules.iter().filter(|rule| self.rules.contains(rule)).count();
        done.started += rules.iter().filter(|rule| !self.rules.contains(rule)).count();
        done.ended += self.rules.iter().filter(|rule| !rules.contains(rule)).count();
        self.rules = rules;
        let rules = &self.rules;
        let orders = self.running.as_ref().map(|(orders, _)| orders.clone());
        self.devices.retain(|device| {
            if let Some((rule, _)) = &device.found {
                let stays = rules.contains(rule);
                if !stays {
                    withdraw(orders.as_ref(), device);
                }
                return stays;
            }
            let place = fresh.iter().position(|words| *words == device.words);
            match place {
                Some(index) => {
                    fresh.remove(index);
                    done.unchanged += 1;
                }
                None => {
                    withdraw(orders.as_ref(), device);
                    done.ended += 1;
                }
            }
            place.is_some()
        });
        for words in fresh {
            self.devices.push(Device::new(self.next, words, None));
            self.next += 1;
            done.started += 1;
        }
        self.look(ends);
        self.offer(ends, |device| !device.offered && device.retry.at.is_none() && device.wrong.is_none());
        self.launch(ends);
    }

    pub(super) fn has_rules(&self) -> bool {
        !self.rules.is_empty()
    }

    /// Offers what rules stand for now, and withdraws what is gone, as soon as nobody uses it: who does keeps its node,
    /// and the device when it is back. What else waits for its device is tried now.
    pub(super) fn look(&mut self, ends: &Ends) {
        for rule in self.rules.clone() {
            let mut found = hotplug::find(&rule);
            let orders = self.running.as_ref().map(|(orders, _)| orders);
            self.devices.retain_mut(|device| {
                let Some((_, summary)) = device.found.as_ref().filter(|(own, _)| *own == rule) else {
                    return true;
                };
                let same = |one: &hotplug::Found| one.spec == device.words.device && one.summary == *summary;
                let back = |one: &hotplug::Found| one.summary == *summary;
                if let Some(at) = found.iter().position(same) {
                    found.swap_remove(at);
                    return true;
                }
                let is_used = device.offered
                    && orders.is_some_and(|orders| orders.withdraw_unused(device.index).is_err());
                // The sharer finds again by itself what somebody uses, wherever it is plugged in.
                if is_used && let Some(at) = found.iter().position(back) {
                    device.words.device = found.swap_remove(at).spec;
                }
                is_used
            });
            for one in found {
                if self.devices.iter().any(|device| device.words.device == one.spec) {
                    continue;
                }
                let name = self.free_name(&one.name);
                let words = ShareWords { device: one.spec, name: Some(name), ..rule.clone() };
                self.devices.push(Device::new(self.next, words, Some((rule.clone(), one.summary))));
                self.next += 1;
            }
        }
        self.offer(ends, |device| !device.offered && device.wrong.is_none());
    }

    /// This name, or with a number behind it what nobody has.
    fn free_name(&self, name: &str) -> String {
        let is_free =
            |name: &String| !self.devices.iter().any(|device| device.words.name.as_ref() == Some(name));
        let numbered = (2..).map(|number| format!("{name}-{number}"));
        std::iter::once(name.to_string()).chain(numbered).find(is_free).unwrap_or_default()
    }

    fn offer(&mut self, ends: &Ends, is_due: impl Fn(&Device) -> bool) {
        if self.sharer.is_none() && self.running.is_none() {
            return;
        }
        for device in self.devices.iter_mut().filter(|device| is_due(device)) {
            let name = format!("share {}", device.words.device);
            let offered = device.words.request().and_then(|mut request| match request.devices.pop() {
                Some(wanted) => match (&mut self.sharer, &self.running) {
                    (Some(sharer), _) => sharer.offer_at_start(device.index, &wanted),
                    (None, Some((orders, _))) => orders.offer(device.index, wanted),
                    (None, None) => Ok(()),
                },
                None => Ok(()),
            });
            match offered {
                Ok(()) => {
                    device.offered = true;
                    device.retry.succeed();
                }
                Err(RuntimeError::Usage(problem)) => {
                    (ends.tell)(Event::Warning { problem: format!("{name}: {problem}") });
                    device.retry.succeed();
                    device.wrong = Some(format!("{name}: {problem}"));
                }
                Err(error) => device.retry.fail(&name, error.to_string(), &ends.tell),
            }
        }
    }

    /// What was found to be wrong with its words when it began.
    pub(super) fn take_wrong(&mut self) -> Option<String> {
        self.devices.iter_mut().find_map(|device| device.wrong.take())
    }

    /// What is not on offer, and why.
    pub(super) fn problems(&self) -> impl Iterator<Item = String> {
        let own = self.retry.problem.iter().map(|problem| format!("share: {problem}"));
        own.chain(self.devices.iter().filter_map(|device| {
            let waits = device.retry.problem.as_ref();
            let waits = waits.map(|problem| format!("share {}: {problem}", device.words.device));
            device.wrong.clone().or(waits)
        }))
    }

    /// When to try again what failed.
    pub(super) fn retry_at(&self) -> Option<Time> {
        let devices = self.devices.iter().filter_map(|device| device.retry.at);
        devices.filter(|_| self.running.is_some()).chain(self.retry.at).min()
    }

    pub(super) fn retry(&mut self, at: Time, inherited: &mut Inherited, ends: &Ends) {
        if self.retry.is_due(at) && self.running.is_none() {
            self.try_again(inherited, ends);
            self.offer(ends, |device| !device.offered && device.wrong.is_none());
            self.launch(ends);
        }
        self.offer(ends, |device| device.retry.is_due(at));
    }

    /// The sharer ended although nobody told it to.
    pub(super) fn handle_end(&mut self, result: Result<(), RuntimeError>, ends: &Ends) {
        if self.runs() || self.stop.is_said() {
            return;
        }
        self.running = None;
        self.devices.iter_mut().for_each(|device| device.offered = false);
        let problem = result.err().map_or_else(|| "it ended".into(), |error| error.to_string());
        self.retry.fail(&format!("share on {}", self.request.listen), problem, &ends.tell);
    }

    /// Says that it is to end.
    pub(super) fn stop(&self) {
        self.stop.stop();
    }

    /// Ends it, and waits for it, not for ever; how many devices it had.
    pub(super) fn end(&mut self) -> usize {
        self.stop();
        let until = now().after(STOP_PATIENCE);
        self.sharer = None;
        while self.runs() && now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.running = None;
        self.devices.len()
    }
}

fn withdraw(orders: Option<&Orders>, device: &Device) {
    if let Some(orders) = orders.filter(|_| device.offered) {
        // A sharer that does not answer has nothing on offer any more, or is found hanging by the watchdog.
        let _ = orders.withdraw(device.index);
    }
}
