//! The application side: a device made with `/dev/uhid` as a partner. Input reports and answers are pushed into it; output reports and
//! requests are pulled out of it.
//!
//! A driver or a program that asks for a report blocks in the kernel until this process answers, for 5 s at most. A thread reads the
//! requests, whatever the path is doing, and answers each in time:
//!
//! | request | answer |
//! |---|---|
//! | for a feature report of the description | at once |
//! | for another report | that of the device; after [`ANSWER_TIMEOUT`] the last answer, or an error |
//! | the same, since the node went neutral | the last answer at once, if there is one |
//! | to set a report | that of the device; after [`ANSWER_TIMEOUT`] an error |

use super::outputs::Outputs;
use super::properties::Properties;
use super::reports::Inputs;
use super::uhid::{self, EVENT_BYTES, Event as Uhid};
use crate::flows::{Endpoint, FlowPartner, OUT, invalid};
use crate::stream::now;
use contract::{
    Ctl, CtlReply, Direction, FlowClass, FlowKey, FlowTemplate, Format, Interest, Message, Next,
    PartnerError, PartnerResult, PullSlot, Readiness, Report, Time,
};
use rustix::io::Errno;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use sys::event::Event;
use sys::poller::Poller;
use wire::formats::hid::{ReportKind, Update};

/// Time for the device's answer. The kernel waits 5 s from the request on, also while a worker is restarted.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(4);
/// Output reports and requests that wait for the path, at most.
const QUEUE_MAX: usize = 1024;
/// Events that are read before the thread lets the path proceed, at most. The kernel holds 32.
const EVENTS_MAX: usize = 64;
/// Requests without an answer, at most. The kernel makes one at a time for each device.
const WAITING_MAX: usize = 16;

/// A device made with `/dev/uhid` as a partner.
pub(super) struct NodePartner {
    name: String,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// The state that partner and thread share.
struct Shared {
    node: OwnedFd,
    state: Mutex<State>,
    /// Ends the thread.
    stop: Event,
    /// Signalled when the thread has queued messages for the path.
    queued: Event,
}

impl Shared {
    /// Ignores poisoning: each change leaves the state usable.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, event: &[u8]) -> rustix::io::Result<()> {
        rustix::io::write(&self.node, event).map(drop)
    }
}

/// A request without an answer.
#[derive(Debug)]
struct Waiting {
    request: u32,
    /// The report that it asks for; `None` if it sets one.
    asks_for: Option<(ReportKind, u8)>,
    until: Time,
}

struct State {
    inputs: Inputs,
    /// Feature reports that never change.
    features: BTreeMap<u8, Vec<u8>>,
    /// The last answer for each report.
    answers: BTreeMap<(ReportKind, u8), Vec<u8>>,
    outputs: Outputs,
    waiting: Vec<Waiting>,
    queue: VecDeque<(Time, Update)>,
    is_flow_open: bool,
    /// The flow out has the class state: a snapshot may replace its reports.
    is_state: bool,
    needs_snapshot: bool,
    /// Messages of the device arrive.
    is_live: bool,
    has_driver: bool,
    is_open: bool,
    counts: Counts,
}

/// Figures of [`Ctl::Report`].
#[derive(Debug, Default)]
struct Counts {
    reports: u64,
    snapshots: u64,
    neutrals: u64,
    refused: u64,
    outputs: u64,
    requests: u64,
    answered: u64,
    answered_from_memory: u64,
    timeouts: u64,
    dropped: u64,
}

impl State {
    /// Handles an event of the kernel. Returns the answer to it, if there is one already.
    fn handle(&mut self, event: Uhid) -> Option<Vec<u8>> {
        match event {
            Uhid::Start => self.has_driver = true,
            Uhid::Stop => self.has_driver = false,
            Uhid::Open => self.is_open = true,
            Uhid::Close => self.is_open = false,
            Uhid::Other => {}
            Uhid::Output(data) => {
                let descriptor = self.inputs.descriptor();
                let report = descriptor.with_number(ReportKind::Output, 0, &data);
                if !report.first().is_some_and(|number| descriptor.has(ReportKind::Output, *number)) {
                    self.counts.refused += 1;
                    return None;
                }
                self.counts.outputs += 1;
                self.outputs.observe(&report);
                self.queue(Update::Output(report));
            }
            Uhid::Get { request, kind, number } => {
                self.counts.requests += 1;
                let constant = self.features.get(&number).filter(|_| kind == ReportKind::Feature);
                let remembered = self.answers.get(&(kind, number)).filter(|_| !self.is_live);
                if let Some(report) = constant.or(remembered) {
                    self.counts.answered_from_memory += 1;
                    return Some(uhid::got(request, Some(report)));
                }
                if !self.wait_for(request, Some((kind, number))) {
                    return Some(uhid::got(request, None));
                }
                self.queue(Update::Get { request, kind, number });
            }
            Uhid::Set { request, kind, number, data } => {
                self.counts.requests += 1;
                let report = self.inputs.descriptor().with_number(kind, number, &data);
                if report.is_empty() || !self.wait_for(request, None) {
                    return Some(uhid::set(request, false));
                }
                self.queue(Update::Set { request, kind, report });
            }
        }
        None
    }

    /// Remembers a request. Returns false if there are too many.
    fn wait_for(&mut self, request: u32, asks_for: Option<(ReportKind, u8)>) -> bool {
        let has_room = self.waiting.len() < WAITING_MAX;
        if has_room {
            self.waiting.push(Waiting { request, asks_for, until: now().after(ANSWER_TIMEOUT) });
        }
        has_room
    }

    /// Takes the answers of the requests whose time is over.
    fn expire(&mut self, now: Time) -> Vec<Vec<u8>> {
        let (over, waiting) =
            std::mem::take(&mut self.waiting).into_iter().partition(|waiting| waiting.until <= now);
        self.waiting = waiting;
        let answer = |waiting: Waiting| {
            self.counts.timeouts += 1;
            match waiting.asks_for {
                None => uhid::set(waiting.request, false),
                Some(asked) => uhid::got(waiting.request, self.answers.get(&asked).map(Vec::as_slice)),
            }
        };
        over.into_iter().map(answer).collect()
    }

    /// Handles an answer of the device. Returns that for the kernel, unless nobody waits for it any more.
    fn answer(&mut self, request: u32, result: Option<Vec<u8>>) -> Option<Vec<u8>> {
        let at = self.waiting.iter().position(|waiting| waiting.request == request)?;
        let waiting = self.waiting.swap_remove(at);
        self.counts.answered += 1;
        let Some((kind, number)) = waiting.asks_for else {
            return Some(uhid::set(request, result.is_some()));
        };
        let report = result.filter(|report| report.first() == Some(&number));
        let answer = uhid::got(request, report.as_deref());
        report.into_iter().for_each(|report| _ = self.answers.insert((kind, number), report));
        Some(answer)
    }

    fn queue(&mut self, update: Update) {
        if !self.is_flow_open {
            return;
        }
        if self.queue.len() >= QUEUE_MAX {
            self.counts.dropped += 1;
            if !self.is_state {
                return;
            }
            self.counts.dropped += self.queue.len() as u64;
            self.queue.clear();
            self.needs_snapshot = true;
        }
        self.queue.push_back((now(), update));
    }

    fn next(&mut self) -> Option<(Time, Update)> {
        if std::mem::take(&mut self.needs_snapshot) {
            let snapshot = Update::Snapshot(self.outputs.snapshot());
            self.queue.push_front((now(), snapshot));
        }
        self.queue.pop_front()
    }

    fn has_next(&self) -> bool {
        !self.queue.is_empty() || self.needs_snapshot
    }

    /// Drops all messages that were not pulled; `more`: those that the caller drops too. Requests are kept: somebody waits for them.
    fn drop_queue(&mut self, more: u64) {
        let before = self.queue.len();
        self.queue.retain(|(_, update)| !matches!(update, Update::Output(_) | Update::Snapshot(_)));
        self.counts.dropped += more + (before - self.queue.len()) as u64;
    }

    fn report(&self) -> Vec<Report> {
        let counts = &self.counts;
        vec![
            ("reports", counts.reports as f64),
            ("snapshots", counts.snapshots as f64),
            ("neutral", counts.neutrals as f64),
            ("reports refused", counts.refused as f64),
            ("output reports", counts.outputs as f64),
            ("output reports dropped", counts.dropped as f64),
            ("requests", counts.requests as f64),
            ("requests answered", counts.answered as f64),
            ("requests answered from memory", counts.answered_from_memory as f64),
            ("requests timed out", counts.timeouts as f64),
            ("driver", f64::from(u8::from(self.has_driver))),
            ("in use", f64::from(u8::from(self.is_open))),
        ]
    }
}

impl NodePartner {
    /// Creates a partner on an existing, non-blocking node.
    pub(super) fn new(
        node: OwnedFd,
        properties: Properties,
        inputs: Inputs,
    ) -> io::Result<FlowPartner<Self>> {
        let outputs = Outputs::new(&properties);
        let features = properties.features.into_iter().filter_map(|report| Some((*report.first()?, report)));
        let state = State {
            inputs,
            features: features.collect(),
            answers: BTreeMap::new(),
            outputs,
            waiting: Vec::new(),
            queue: VecDeque::new(),
            // A driver may ask before the flow is open.
            is_flow_open: true,
            is_state: true,
            needs_snapshot: false,
            is_live: true,
            has_driver: false,
            is_open: false,
            counts: Counts::default(),
        };
        let shared =
            Arc::new(Shared { node, state: Mutex::new(state), stop: Event::new()?, queued: Event::new()? });
        let (poller, thread_shared) = (Poller::new()?, shared.clone());
        let thread =
            std::thread::Builder::new().name("uhid".into()).spawn(move || serve(poller, &thread_shared))?;
        let partner = NodePartner { name: properties.name, shared, thread: Some(thread) };
        Ok(FlowPartner::new(partner, Some(Format::Hid), Some(Format::Hid)))
    }

    fn failed(&self, operation: &str, error: Errno) -> PartnerError {
        let name = format!("the node of {}", self.name);
        match error {
            // The kernel has destroyed it: it did not accept the report descriptor.
            Errno::INVAL | Errno::NODEV => PartnerError::Gone(name),
            _ => PartnerError::os(format!("{operation} {name}"), error),
        }
    }

    /// Writes input reports of the device.
    fn write_inputs(&self, reports: &[Vec<u8>]) -> PartnerResult {
        let written = reports.iter().try_for_each(|report| self.shared.write(&uhid::input(report)));
        written.map_err(|error| self.failed("writing to", error))
    }
}

impl Drop for NodePartner {
    fn drop(&mut self) {
        self.shared.stop.signal();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported already.
            let _ = thread.join();
        }
    }
}

/// Body of the thread: reads events and answers requests.
fn serve(mut poller: Poller, shared: &Shared) {
    let mut buffer = vec![0; EVENT_BYTES];
    loop {
        poller.register(shared.stop.as_fd(), true, false);
        poller.register(shared.node.as_fd(), true, false);
        let until = shared.lock().waiting.iter().map(|waiting| waiting.until).min();
        let left = until.map(|until| until.since(now()));
        if poller.wait(left).is_err() || shared.stop.clear() {
            return;
        }
        let mut state = shared.lock();
        let mut answers = state.expire(now());
        for _ in 0..EVENTS_MAX {
            match rustix::io::read(&shared.node, buffer.as_mut_slice()) {
                Ok(length) => answers.extend(state.handle(Uhid::parse(&buffer[..length]))),
                Err(Errno::AGAIN | Errno::INTR) => break,
                // The next call on the path reports it.
                Err(_) => return,
            }
        }
        if state.has_next() {
            shared.queued.signal();
        }
        drop(state);
        // It fails when the kernel has destroyed the device, and nobody waits then.
        answers.iter().for_each(|answer| _ = shared.write(answer));
    }
}

impl Endpoint for NodePartner {
    fn opened(&mut self, template: &FlowTemplate, _slot: &mut PullSlot) -> PartnerResult {
        if template.direction == Direction::Out {
            let mut state = self.shared.lock();
            state.is_flow_open = true;
            state.is_state = template.class != FlowClass::Reliable;
            state.needs_snapshot = state.is_state;
        }
        Ok(())
    }

    fn closed(&mut self, direction: Direction, slot: &mut PullSlot) -> PartnerResult {
        if direction == Direction::Out {
            let mut state = self.shared.lock();
            state.drop_queue(slot.is_held().into());
            state.queue.clear();
            state.is_flow_open = false;
            *slot = PullSlot::default();
        }
        Ok(())
    }

    fn accept(&mut self, message: &mut Message) -> PartnerResult<bool> {
        let update = Update::parse(message.body.as_slice()).map_err(invalid)?;
        let mut state = self.shared.lock();
        state.is_live = true;
        let reports = match update {
            Update::Input(report) => {
                let is_known = state.inputs.observe(&report);
                state.counts.reports += u64::from(is_known);
                state.counts.refused += u64::from(!is_known);
                if is_known { vec![report] } else { Vec::new() }
            }
            Update::Snapshot(reports) => {
                state.counts.snapshots += 1;
                state.inputs.move_to(reports)
            }
            Update::Answer { request, result } => {
                if let Some(answer) = state.answer(request, result.ok()) {
                    self.shared.write(&answer).map_err(|error| self.failed("answering", error))?;
                }
                Vec::new()
            }
            Update::Output(_) | Update::Get { .. } | Update::Set { .. } => {
                return Err(PartnerError::Message("a device takes this message, and sends none".into()));
            }
        };
        // The lock keeps the order of reports.
        let written = self.write_inputs(&reports);
        drop(state);
        written.map(|()| true)
    }

    fn next(&mut self, _now: Time) -> PartnerResult<Next> {
        // Clearing before the queue is read keeps later signals.
        self.shared.queued.clear();
        let next = self.shared.lock().next();
        Ok(next.map_or(Next::Nothing, |(created, update)| {
            Next::Message(Message::new(created, update.to_bytes()))
        }))
    }

    fn ctl(&mut self, flow: FlowKey, operation: Ctl<'_>, slot: &mut PullSlot) -> PartnerResult<CtlReply> {
        let mut state = self.shared.lock();
        match operation {
            Ctl::Flush | Ctl::Finish => Ok(CtlReply::Done),
            Ctl::Snapshot => {
                state.drop_queue(slot.is_held().into());
                state.needs_snapshot = true;
                *slot = PullSlot::default();
                Ok(CtlReply::Done)
            }
            Ctl::Neutral if flow == OUT => Ok(CtlReply::Done),
            Ctl::Neutral => {
                state.counts.neutrals += 1;
                state.is_live = false;
                let released = state.inputs.release(&[]);
                let written = self.write_inputs(&released);
                drop(state);
                written.map(|()| CtlReply::Done)
            }
            Ctl::IsNeutral if flow == OUT => Ok(CtlReply::Count(state.outputs.is_neutral().into())),
            Ctl::IsNeutral => Ok(CtlReply::Count(state.inputs.is_neutral().into())),
            Ctl::Report => Ok(CtlReply::Report(state.report())),
            _ => Err(PartnerError::Unsupported("this control operation")),
        }
    }

    fn readiness(&self, direction: Direction) -> Readiness<'_> {
        match direction {
            Direction::In => Readiness::now(),
            Direction::Out if self.shared.lock().has_next() => Readiness::now(),
            Direction::Out => Readiness::descriptor(self.shared.queued.as_fd(), Interest::Read),
        }
    }
}
