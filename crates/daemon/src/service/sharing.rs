//! One address of a run file: its `DeviceHost`, and the devices offered there.

use super::STOP_PATIENCE;
use super::hotplug::{self, Matches};
use super::manager::Inherited;
use super::plan::SharePlan;
use super::unit::{Retry, UnitContext, new_stop, run_device_host};
use broker::events::Event;
use broker::handover::Left;
use broker::share::{DeviceHost, Opening, Openings, Orders};
use broker::share_request::ShareRequest;
use broker::share_words::ShareWords;
use console::Reloaded;
use contract::ServiceError;
use contract::Time;
use modules::now;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::thread::{JoinHandle, ThreadId};
use std::time::Duration;
use sys::listening::Listening;
use sys::poller::Poller;
use sys::stop::Stop;

/// A `DeviceHost` on one address.
///
/// | state | `device_host` | `running` | `retry.at` |
/// |---|---|---|---|
/// | listening, not started | `Some` | `None` | `None` |
/// | running | `None` | `Some` | `None` |
/// | failed, to be retried | `None` | `None` | `Some` |
/// | new, while one that leaves has its port | `None` | `None` | `None` |
pub(super) struct Sharing {
    id: u64,
    /// The request, with an empty list of devices.
    request: ShareRequest,
    stop: Stop,
    /// Set until it runs.
    device_host: Option<DeviceHost>,
    /// Set while it runs.
    running: Option<(Orders, JoinHandle<()>)>,
    retry: Retry,
    devices: Vec<Device>,
    /// The devices that are being opened on threads, because a user is asked or another host may not answer.
    openings: Openings,
    /// The entries that are hotplug rules.
    rules: Vec<ShareWords>,
    /// The devices that match a rule and cannot be opened, as of the last search.
    blocked: Vec<Blocked>,
    next: u64,
}

/// A device that matches a rule and cannot be opened.
struct Blocked {
    rule: ShareWords,
    problem: String,
    /// A device is not reported at once: its node can be opened only once udev has set its permissions.
    is_reported: bool,
}

impl Blocked {
    fn problem(&self) -> String {
        format!("share {}: {}", self.rule.device, self.problem)
    }
}

/// The state of a device.
///
/// | state | event | next |
/// |---|---|---|
/// | `Idle` | it is due, and opens at once | `Offered`; on an error `Idle`, with a retry or a permanent error |
/// | `Idle` | it is due, and waits for its user or another host | `Opening`; `Queued` if too many are being opened |
/// | `Queued` | another one has been opened | `Opening` |
/// | `Opening` | it is open | `Offered` |
/// | `Opening` | the other host does not answer | `Idle`, with a retry |
/// | `Opening` | its user refuses, or does not answer | `Idle`, with a permanent error |
/// | `Offered` | the `DeviceHost` has ended | `Idle` |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    Idle,
    Queued,
    Opening,
    Offered,
}

/// One `[[share]]`, or one device that matches a rule.
struct Device {
    /// The device's number in orders.
    index: u64,
    words: ShareWords,
    progress: Progress,
    retry: Retry,
    /// An error of the entry, found when the device was opened, or the refusal of the user. It lasts until a reload.
    wrong: Option<String>,
    /// The rule that the device matches, and the device's summary; `None` for a plain `[[share]]`.
    found: Option<(ShareWords, String)>,
}

impl Device {
    fn new(index: u64, words: ShareWords, found: Option<(ShareWords, String)>) -> Device {
        Device { index, words, progress: Progress::Idle, retry: Retry::default(), wrong: None, found }
    }

    fn is_offered(&self) -> bool {
        self.progress == Progress::Offered
    }

    /// Returns whether it waits to be opened, perhaps for its retry.
    fn waits(&self) -> bool {
        self.progress == Progress::Idle && self.wrong.is_none()
    }

    /// Records the result of an attempt to open and offer it.
    fn settle(&mut self, result: Result<Progress, ServiceError>, cx: &UnitContext) {
        match result {
            Ok(Progress::Offered) => {
                self.progress = Progress::Offered;
                self.retry.succeed();
            }
            // The problem of the last attempt lasts until the device is open.
            Ok(progress) => (self.progress, self.retry.at) = (progress, None),
            Err(ServiceError::Usage(problem)) => self.refuse(&problem, cx),
            Err(error) => {
                self.progress = Progress::Idle;
                let name = format!("share {}", self.words.device);
                self.retry.fail(&name, error.to_string(), &cx.emit);
            }
        }
    }

    fn refuse(&mut self, problem: &str, cx: &UnitContext) {
        let problem = format!("share {}: {problem}", self.words.device);
        (cx.emit)(Event::Warning { problem: problem.clone() });
        self.progress = Progress::Idle;
        self.retry.succeed();
        self.wrong = Some(problem);
    }
}

impl Sharing {
    /// Starts to listen, without devices.
    pub(super) fn start(
        id: u64,
        request: &ShareRequest,
        inherited: &mut Inherited,
    ) -> Result<Sharing, ServiceError> {
        let mut sharing = Sharing::new(id, request)?;
        sharing.listen_on(inherited)?;
        Ok(sharing)
    }

    /// Makes one that does not listen before [`Sharing::restart`] or [`Sharing::retry`].
    pub(super) fn new(id: u64, request: &ShareRequest) -> Result<Sharing, ServiceError> {
        Ok(Sharing {
            id,
            request: request.clone(),
            stop: new_stop()?,
            device_host: None,
            running: None,
            retry: Retry::default(),
            devices: Vec::new(),
            openings: Openings::new().map_err(|error| ServiceError::os("eventfd", error))?,
            rules: Vec::new(),
            blocked: Vec::new(),
            next: 0,
        })
    }

    fn listen_on(&mut self, inherited: &mut Inherited) -> Result<(), ServiceError> {
        let at = self.request.listen;
        let failed = |error| ServiceError::os(format!("listening on {at}"), error);
        // State that cannot be read ends the sessions in it, whose peers then open their devices again.
        let left = inherited.handovers.take(&self.key());
        let mut left = left.and_then(|handover| Left::parse(handover).ok());
        let left_listening = left.as_mut().and_then(Left::take_listening);
        let listening = match (inherited.listening(at).map_err(failed)?, left_listening) {
            (Some(listening), _) | (None, Some(listening)) => listening,
            (None, None) => Listening::at(at).map_err(|error| inherited.explain(at, error))?,
        };
        self.stop = new_stop()?;
        let device_host = self.device_host.insert(DeviceHost::start_on(listening, self.request.clone())?);
        if let Some(left) = left {
            device_host.take_over(left);
        }
        Ok(())
    }

    /// Returns the name of its state at the next program.
    fn key(&self) -> String {
        format!("share {}", self.request.listen)
    }

    /// Starts its thread, unless it runs already.
    fn launch(&mut self, cx: &UnitContext) {
        let Some(device_host) = self.device_host.take() else { return };
        let orders = device_host.orders();
        match run_device_host((self.id, self.key()), device_host, self.stop.clone(), cx) {
            Ok(thread) => self.running = Some((orders, thread)),
            Err(error) => self.retry.fail("share", error.to_string(), &cx.emit),
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

    /// Returns the number of devices on offer.
    pub(super) fn devices(&self) -> usize {
        self.devices.iter().filter(|device| device.is_offered()).count()
    }

    /// Returns whether the `DeviceHost` satisfies the plan.
    pub(super) fn continues(&self, plan: &SharePlan) -> bool {
        let is_new = self.device_host.is_none() && self.running.is_none() && self.retry.at.is_none();
        !is_new && plan.continues(self.request.trust.is_some(), self.request.announce, &self.request.limits)
    }

    /// Restarts with another request, without devices.
    pub(super) fn restart(&mut self, request: &ShareRequest, inherited: &mut Inherited, cx: &UnitContext) {
        self.request = request.clone();
        self.devices.clear();
        self.rules.clear();
        self.blocked.clear();
        self.listen_again(inherited, cx);
    }

    /// Records that it cannot listen yet.
    pub(super) fn postpone(&mut self, error: &ServiceError, cx: &UnitContext) {
        self.retry.fail("share", error.to_string(), &cx.emit);
    }

    fn listen_again(&mut self, inherited: &mut Inherited, cx: &UnitContext) {
        match self.listen_on(inherited) {
            Ok(()) => self.retry.succeed(),
            Err(error) => self.postpone(&error, cx),
        }
    }

    /// Withdraws missing devices, then offers new ones.
    pub(super) fn apply(&mut self, words: &[ShareWords], cx: &UnitContext, done: &mut Reloaded) {
        let (rules, mut fresh): (Vec<_>, Vec<_>) = words.iter().cloned().partition(hotplug::is_rule);
        let new_rules: Vec<_> = rules.iter().filter(|rule| !self.rules.contains(rule)).cloned().collect();
        done.unchanged += rules.iter().filter(|rule| self.rules.contains(rule)).count();
        done.started += new_rules.len();
        done.ended += self.rules.iter().filter(|rule| !rules.contains(rule)).count();
        self.rules = rules;
        let rules = &self.rules;
        let (orders, openings) = (self.running.as_ref().map(|(orders, _)| orders), &self.openings);
        self.devices.retain_mut(|device| {
            // A reload tries again.
            device.wrong = None;
            if let Some((rule, _)) = &device.found {
                let stays = rules.contains(rule);
                if !stays {
                    withdraw(orders, openings, device);
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
                    withdraw(orders, openings, device);
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
        self.look(cx);
        self.report_blocked(cx);
        for rule in self.unmatched().filter(|rule| new_rules.contains(rule)) {
            (cx.emit)(Event::Waiting { device: rule.device.clone() });
        }
        self.offer(cx, |device| device.waits() && device.retry.at.is_none());
        self.launch(cx);
    }

    pub(super) fn has_rules(&self) -> bool {
        !self.rules.is_empty()
    }

    /// Offers new devices that match the rules, withdraws unplugged ones, and retries failed ones. A device in use
    /// is not withdrawn: its user keeps the node, and gets the device again when it is back.
    pub(super) fn look(&mut self, cx: &UnitContext) {
        self.look_with(&hotplug::find, cx);
    }

    fn look_with(&mut self, find: &dyn Fn(&ShareWords) -> Matches, cx: &UnitContext) {
        let before = std::mem::take(&mut self.blocked);
        for rule in self.rules.clone() {
            let Matches { mut found, blocked } = find(&rule);
            self.blocked.extend(blocked.into_iter().map(|problem| {
                let is_known = |one: &Blocked| one.is_reported && one.rule == rule && one.problem == problem;
                let is_reported = before.iter().any(is_known);
                Blocked { rule: rule.clone(), problem, is_reported }
            }));
            let (orders, openings) = (self.running.as_ref().map(|(orders, _)| orders), &self.openings);
            retain_found(&mut self.devices, &rule, &mut found, &mut |device| {
                if device.progress == Progress::Opening {
                    openings.withdraw(device.index);
                }
                let is_used = device.is_offered()
                    && orders.is_some_and(|orders| orders.withdraw_unused(device.index).is_err());
                !is_used
            });
            for one in found {
                if self.devices.iter().any(|device| hotplug::is_same_device(&device.words.device, &one.spec))
                {
                    continue;
                }
                let name = self.free_name(&one.name);
                let words = ShareWords { device: one.spec, name: Some(name), ..rule.clone() };
                self.devices.push(Device::new(self.next, words, Some((rule.clone(), one.summary))));
                self.next += 1;
            }
        }
        self.offer(cx, Device::waits);
    }

    /// Reports the devices that match a rule and cannot be opened, each one once.
    pub(super) fn report_blocked(&mut self, cx: &UnitContext) {
        for blocked in self.blocked.iter_mut().filter(|blocked| !blocked.is_reported) {
            blocked.is_reported = true;
            (cx.emit)(Event::Warning { problem: blocked.problem() });
        }
    }

    /// Returns the name, with a number appended if another device already has it.
    fn free_name(&self, name: &str) -> String {
        let is_free =
            |name: &String| !self.devices.iter().any(|device| device.words.name.as_ref() == Some(name));
        let numbered = (2..).map(|number| format!("{name}-{number}"));
        std::iter::once(name.to_string()).chain(numbered).find(is_free).unwrap_or_default()
    }

    fn offer(&mut self, cx: &UnitContext, is_due: impl Fn(&Device) -> bool) {
        if self.device_host.is_none() && self.running.is_none() {
            return;
        }
        for device in self.devices.iter_mut().filter(|device| is_due(device)) {
            let progress = device.words.request().and_then(|mut request| {
                let Some(wanted) = request.devices.pop() else { return Ok(Progress::Offered) };
                let is_left = self.device_host.as_ref().is_some_and(|host| host.has_left(&wanted));
                let question = wanted.question();
                if question.is_some() || (wanted.waits_for_host() && !is_left) {
                    if self.openings.is_full() {
                        return Ok(Progress::Queued);
                    }
                    question.into_iter().for_each(|question| (cx.emit)(Event::Question { question }));
                    let begun = self.openings.begin(device.index, wanted);
                    return begun
                        .map(|()| Progress::Opening)
                        .map_err(|error| ServiceError::os("opening a device", error));
                }
                match (&mut self.device_host, &self.running) {
                    (Some(device_host), _) => device_host.offer_at_start(device.index, &wanted)?,
                    (None, Some((orders, _))) => orders.offer(device.index, wanted)?,
                    (None, None) => {}
                }
                Ok(Progress::Offered)
            });
            device.settle(progress, cx);
        }
    }

    /// Registers for the devices that are being opened.
    pub(super) fn register(&self, poller: &mut Poller) {
        self.openings.register(poller);
    }

    /// Offers the devices that were opened, and opens queued ones.
    pub(super) fn finish_openings(&mut self, poller: &Poller, cx: &UnitContext) {
        while let Some(opening) = self.openings.next(poller) {
            self.finish(opening, cx);
        }
        self.offer(cx, |device| device.progress == Progress::Queued);
    }

    fn finish(&mut self, Opening { visitor: index, device: wanted, result }: Opening, cx: &UnitContext) {
        let is_meant = |device: &&mut Device| device.index == index && device.progress == Progress::Opening;
        let device = self.devices.iter_mut().find(is_meant);
        match (device, &self.running, result) {
            (Some(device), Some((orders, _)), Ok(open)) => {
                let offered = orders.offer_open(index, wanted, open);
                device.settle(offered.map(|()| Progress::Offered), cx);
            }
            (Some(device), _, Err(error)) if wanted.waits_for_host() => device.settle(Err(error), cx),
            (Some(device), _, Err(error)) => {
                // Another question would annoy the user, and follow this one at once.
                device.refuse(&error.to_string(), cx);
            }
            (device, _, Ok(open)) => {
                open.discard();
                // It is offered when the `DeviceHost` starts again.
                device.into_iter().for_each(|device| device.progress = Progress::Idle);
            }
            (None, _, Err(_)) => {}
        }
    }

    /// Takes the first permanent error of an entry.
    pub(super) fn take_wrong(&mut self) -> Option<String> {
        self.devices.iter_mut().find_map(|device| device.wrong.take())
    }

    /// Lists the devices that are not on offer, with the reason.
    pub(super) fn problems(&self) -> impl Iterator<Item = String> {
        let own = self.retry.problem.iter().map(|problem| format!("share: {problem}"));
        let blocked = self.blocked.iter().filter(|blocked| blocked.is_reported).map(Blocked::problem);
        own.chain(blocked).chain(self.devices.iter().filter_map(|device| {
            let waits = device.retry.problem.as_ref();
            let waits = waits.map(|problem| format!("share {}: {problem}", device.words.device));
            device.wrong.clone().or(waits)
        }))
    }

    /// Returns the rules without a device that is plugged in.
    fn unmatched(&self) -> impl Iterator<Item = &ShareWords> {
        let has_device = |rule: &ShareWords| {
            let is_found = |device: &Device| device.found.as_ref().is_some_and(|(own, _)| own == rule);
            self.devices.iter().any(is_found) || self.blocked.iter().any(|blocked| blocked.rule == *rule)
        };
        self.rules.iter().filter(move |rule| !has_device(rule))
    }

    /// Describes the rules without a device.
    pub(super) fn waiting(&self) -> impl Iterator<Item = String> {
        self.unmatched().map(|rule| format!("share {}: no such device is plugged in", rule.device))
    }

    /// Returns the time of the next retry.
    pub(super) fn retry_at(&self) -> Option<Time> {
        let devices = self.devices.iter().filter_map(|device| device.retry.at);
        devices.filter(|_| self.running.is_some()).chain(self.retry.at).min()
    }

    pub(super) fn retry(&mut self, at: Time, inherited: &mut Inherited, cx: &UnitContext) {
        if self.retry.is_due(at) && self.running.is_none() {
            self.listen_again(inherited, cx);
            self.offer(cx, Device::waits);
            self.launch(cx);
        }
        self.offer(cx, |device| device.retry.is_due(at));
    }

    /// Handles the end of a thread; schedules a retry unless it was stopped, or was not the latest one.
    pub(super) fn handle_end(&mut self, ended: ThreadId, result: Result<(), ServiceError>, cx: &UnitContext) {
        let is_latest = self.running.as_ref().is_some_and(|(_, running)| running.thread().id() == ended);
        if !is_latest || self.stop.is_requested() {
            return;
        }
        self.running = None;
        let offered = self.devices.iter_mut().filter(|device| device.is_offered());
        offered.for_each(|device| device.progress = Progress::Idle);
        let problem = result.err().map_or_else(|| "it ended".into(), |error| error.to_string());
        self.retry.fail(&format!("share on {}", self.request.listen), problem, &cx.emit);
    }

    /// Requests the stop of the thread, and that it leaves its state to the next program.
    pub(super) fn hand_over(&self) {
        self.stop.hand_over();
    }

    /// Requests the stop of the thread.
    pub(super) fn stop(&self) {
        self.stop.stop();
    }

    /// Stops the thread and waits for it, up to the timeout. Returns the number of devices that it had.
    pub(super) fn end(&mut self) -> usize {
        self.stop();
        self.openings.end();
        let until = now().after(STOP_PATIENCE);
        self.device_host = None;
        while self.runs() && now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.running = None;
        self.devices.len()
    }
}

/// Keeps the devices of a rule that are plugged in, and those that `withdraw` does not remove because they are in use. Leaves
/// in `found` those without an entry.
fn retain_found(
    devices: &mut Vec<Device>,
    rule: &ShareWords,
    found: &mut Vec<hotplug::Found>,
    withdraw: &mut dyn FnMut(&Device) -> bool,
) {
    // First the devices that stayed: one that is away must not take the place of another of the same name.
    let mut present = BTreeSet::new();
    for device in devices.iter() {
        let Some((_, summary)) = device.found.as_ref().filter(|(own, _)| own == rule) else {
            present.insert(device.index);
            continue;
        };
        let same = |one: &hotplug::Found| one.spec == device.words.device && one.summary == *summary;
        if let Some(at) = found.iter().position(same) {
            found.remove(at);
            present.insert(device.index);
        }
    }
    devices.retain_mut(|device| {
        if present.contains(&device.index) {
            return true;
        }
        let stays = !withdraw(device);
        let summary = device.found.as_ref().map(|(_, summary)| summary);
        // The `DeviceHost` finds a device in use again, wherever it is plugged in.
        if stays && let Some(at) = found.iter().position(|one| Some(&one.summary) == summary) {
            device.words.device = found.remove(at).spec;
        }
        stays
    });
}

fn withdraw(orders: Option<&Orders>, openings: &Openings, device: &Device) {
    if device.progress == Progress::Opening {
        openings.withdraw(device.index);
    }
    if let Some(orders) = orders.filter(|_| device.is_offered()) {
        // A `DeviceHost` that does not answer has ended, or the watchdog will find that it hangs.
        let _ = orders.withdraw(device.index);
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::Source;
    use super::*;
    use broker::events::EmitEvent;
    use contract::DeviceError;
    use std::net::TcpListener;
    use std::sync::{Arc, mpsc};
    use sys::event::Event as Wake;

    fn context() -> UnitContext {
        let (emit, handovers): (EmitEvent, _) = (Arc::new(|_| {}), Arc::default());
        UnitContext { to: mpsc::channel().0, wake: Wake::new().unwrap(), emit, handovers }
    }

    fn planned(text: &str) -> SharePlan {
        Source::Text(text.into()).plan().unwrap().shares.remove(0)
    }

    /// Listens, and returns the devices to apply.
    fn started(text: &str) -> (Sharing, Vec<ShareWords>, UnitContext) {
        let SharePlan { request, devices } = planned(text);
        let mut inherited = Inherited::new(Vec::new(), Arc::default()).unwrap();
        (Sharing::start(0, &request, &mut inherited).unwrap(), devices, context())
    }

    #[test]
    fn a_refused_question_is_asked_again_only_after_a_reload() {
        let text = "[[share]]\ndevice = 'pattern:rate=5'\nlisten = '127.0.0.1:0'\ninsecure = true\n";
        let (mut sharing, devices, cx) = started(text);
        let device = Device::new(0, devices[0].clone(), None);
        sharing.devices.push(Device { progress: Progress::Opening, ..device });
        // The user takes time, and nothing asks again.
        sharing.look(&cx);
        assert_eq!((sharing.devices(), sharing.retry_at()), (0, None));
        let device = devices[0].request().unwrap().devices.remove(0);
        let result = Err(DeviceError::Spec { what: "the desktop".into(), problem: "refused".into() }.into());
        sharing.finish(Opening { visitor: 0, device, result }, &cx);
        sharing.look(&cx);
        assert_eq!((sharing.devices(), sharing.devices[0].retry.at), (0, None));
        assert!(sharing.problems().any(|problem| problem.contains("refused")));
        let mut done = Reloaded::default();
        sharing.apply(&devices, &cx, &mut done);
        assert_eq!((sharing.devices(), sharing.problems().count(), done.unchanged), (1, 0, 1));
        sharing.end();
    }
    #[test]
    fn an_address_that_appears_later_is_used() {
        let text = "[[share]]\ndevice = 'pattern:rate=5'\nlisten = '127.0.0.1:0'\ninsecure = true\n";
        let (plan, cx) = (planned(text), context());
        let mut inherited = Inherited::new(Vec::new(), cx.handovers.clone()).unwrap();
        let mut sharing = Sharing::new(0, &plan.request).unwrap();
        sharing.postpone(&ServiceError::os("listening", std::io::ErrorKind::AddrNotAvailable), &cx);
        assert!(sharing.continues(&plan));
        sharing.apply(&plan.devices, &cx, &mut Reloaded::default());
        assert_eq!((sharing.devices(), sharing.problems().count()), (0, 1));
        sharing.retry(Time(u64::MAX), &mut inherited, &cx);
        assert_eq!((sharing.devices(), sharing.problems().count(), sharing.runs()), (1, 0, true));
        sharing.end();
    }
    #[test]
    fn a_device_that_is_away_does_not_take_the_entry_of_its_twin() {
        let rule = ShareWords { device: "evdev:name=*Controller*".into(), ..ShareWords::default() };
        let found = |node: &str| hotplug::Found {
            spec: format!("evdev:/dev/input/{node}"),
            summary: "Controller".into(),
            name: "controller".into(),
        };
        let device = |index, node: &str| {
            let words = ShareWords { device: found(node).spec, ..rule.clone() };
            Device::new(index, words, Some((rule.clone(), found(node).summary)))
        };
        let nodes = |devices: &[Device]| {
            let node = |device: &Device| device.words.device.rsplit('/').next().unwrap().to_string();
            devices.iter().map(node).collect::<Vec<_>>()
        };
        let mut devices = vec![device(0, "a"), device(1, "b")];
        let mut asked = Vec::new();
        // The first one is in use.
        let mut withdraw = |device: &Device| {
            asked.push(device.index);
            device.index != 0
        };
        let mut now = vec![found("b")];
        retain_found(&mut devices, &rule, &mut now, &mut withdraw);
        assert_eq!((nodes(&devices), now.len()), (vec!["a".to_string(), "b".into()], 0));
        // It is back elsewhere, and its twin has left.
        let mut now = vec![found("c"), found("d")];
        retain_found(&mut devices, &rule, &mut now, &mut withdraw);
        assert_eq!((nodes(&devices), now.len(), asked), (vec!["c".to_string()], 1, vec![0, 0, 1]));
    }
    #[test]
    fn a_device_that_cannot_be_opened_is_a_problem_of_its_rule_and_reported_once() {
        let text =
            "[[share]]\ndevice = 'evdev:name=no such device*'\nlisten = '127.0.0.1:0'\ninsecure = true\n";
        let (mut sharing, rules, mut cx) = started(text);
        let (warn, warned) = mpsc::channel();
        cx.emit = Arc::new(move |event| {
            if let Event::Warning { problem } = event {
                warn.send(problem).unwrap();
            }
        });
        sharing.rules = rules;
        let denied = "`no such device 1` is plugged in and cannot be opened: Permission denied";
        let find = |_: &ShareWords| Matches { found: Vec::new(), blocked: vec![denied.into()] };
        sharing.look_with(&find, &cx);
        assert_eq!((sharing.problems().count(), sharing.waiting().count()), (0, 0), "udev may be at work");
        for _ in 0..2 {
            sharing.look_with(&find, &cx);
            sharing.report_blocked(&cx);
        }
        let problem = format!("share evdev:name=no such device*: {denied}");
        assert_eq!(sharing.problems().collect::<Vec<_>>(), [problem.as_str()]);
        assert_eq!(warned.try_iter().collect::<Vec<_>>(), [problem]);
        // It is unplugged.
        sharing.look_with(&|_| Matches::default(), &cx);
        assert_eq!((sharing.problems().count(), sharing.waiting().count()), (0, 1));
        sharing.end();
    }
    #[test]
    fn a_thread_that_reports_its_end_before_it_returns_is_followed_by_a_retry() {
        let text = "[[share]]\ndevice = 'pattern:rate=5'\nlisten = '127.0.0.1:0'\ninsecure = true\n";
        let (mut sharing, devices, cx) = started(text);
        sharing.apply(&devices, &cx, &mut Reloaded::default());
        let (ends, waits) = mpsc::channel::<()>();
        let latest = std::thread::spawn(move || assert!(waits.recv().is_err()));
        let latest_id = latest.thread().id();
        let (orders, earlier) = sharing.running.take().unwrap();
        sharing.running = Some((orders, latest));
        let failed = || Err(ServiceError::os("waiting", std::io::ErrorKind::OutOfMemory));
        sharing.handle_end(earlier.thread().id(), failed(), &cx);
        assert_eq!((sharing.devices(), sharing.retry_at()), (1, None));
        sharing.handle_end(latest_id, failed(), &cx);
        assert!(sharing.retry_at().is_some());
        assert_eq!((sharing.devices(), sharing.problems().count()), (0, 1));
        drop(ends);
        sharing.end();
        earlier.join().unwrap();
    }
    /// Waits for the threads that open devices until `is_done`.
    fn finish_until(sharing: &mut Sharing, cx: &UnitContext, is_done: impl Fn(&Sharing) -> bool) {
        let mut poller = Poller::new().unwrap();
        while !is_done(sharing) {
            sharing.register(&mut poller);
            poller.wait(None).unwrap();
            sharing.finish_openings(&poller, cx);
        }
    }

    #[test]
    fn a_server_that_does_not_answer_delays_no_other_device() {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let share = |device: &str| {
            format!("[[share]]\ndevice = '{device}'\nlisten = '127.0.0.1:0'\ninsecure = true\n")
        };
        let server = format!("rfb:{}", silent.local_addr().unwrap());
        let (mut sharing, devices, cx) = started(&(share(&server) + &share("pattern:rate=5")));
        sharing.apply(&devices, &cx, &mut Reloaded::default());
        let states = |sharing: &Sharing| [0, 1].map(|at| sharing.devices[at].progress);
        assert_eq!(states(&sharing), [Progress::Opening, Progress::Offered]);
        assert!(sharing.runs() && sharing.problems().count() == 0);
        // The server closes the connection.
        drop(silent.accept().unwrap());
        finish_until(&mut sharing, &cx, |sharing| sharing.devices[0].progress == Progress::Idle);
        assert!(sharing.retry_at().is_some() && sharing.problems().count() == 1);
        // It stays a problem during the next attempt.
        sharing.retry(Time(u64::MAX), &mut Inherited::new(Vec::new(), Arc::default()).unwrap(), &cx);
        assert_eq!(states(&sharing), [Progress::Opening, Progress::Offered]);
        assert_eq!((sharing.retry_at(), sharing.problems().count()), (None, 1));
        sharing.end();
    }

    #[test]
    fn devices_beyond_the_most_that_are_opened_at_once_wait() {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = silent.local_addr().unwrap();
        let share = |number| {
            format!(
                "[[share]]\ndevice = 'rfb:{server}'\nname = 's{number}'\nlisten = '127.0.0.1:0'\ninsecure = true\n"
            )
        };
        let (mut sharing, devices, cx) = started(&(0..34).map(share).collect::<String>());
        sharing.apply(&devices, &cx, &mut Reloaded::default());
        let queued = |sharing: &Sharing| {
            sharing.devices.iter().filter(|device| device.progress == Progress::Queued).count()
        };
        assert_eq!((queued(&sharing), sharing.retry_at()), (2, None));
        drop(silent.accept().unwrap());
        finish_until(&mut sharing, &cx, |sharing| queued(sharing) == 1);
        sharing.end();
    }
}
