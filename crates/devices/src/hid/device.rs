//! The device side: a `hidraw` node as a partner. Input reports and answers are pulled out of it; output reports and requests are pushed
//! into it.
//!
//! A device may take seconds for a report or an answer, and the kernel blocks the caller meanwhile. So a thread sends reports and makes
//! requests, in their order:
//!
//! ```text
//! push ─► queue ─► thread ─► device          a full queue: pushes return Full
//!                    └─► answers ─► pull
//! ```
//!
//! | event | effect |
//! |---|---|
//! | flow opened, [`Ctl::Snapshot`], queue of a device with a state full | the next pull returns a snapshot |
//! | the kernel may have dropped reports | a report without a successor within [`SUCCESSOR_TIMEOUT`] is made neutral: the drop may have been a release |
//! | flow out open | the event nodes of the device are grabbed as soon as no key is down; released when it is closed |
//! | unplugged | neutral reports are queued, then pulls return [`PartnerError::Gone`] |

use super::outputs::Outputs;
use super::properties::Properties;
use super::reports::Inputs;
use crate::evdev::momentary;
use crate::flows::{Endpoint, FlowPartner, OUT, invalid};
use crate::stream::now;
use contract::{
    Ctl, CtlReply, Direction, FlowClass, FlowKey, FlowTemplate, Format, Interest, Message, Next,
    PartnerError, PartnerResult, PullSlot, Readiness, RecoveryCtl, Report, Time,
};
use rustix::io::Errno;
use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use sys::event::Event;
use sys::hidraw::{Request, request};
use sys::input::code::EV_KEY;
use sys::input::evdev;
use wire::formats::hid::{REPORT_BYTES_MAX, Refused, ReportKind, Update};

/// Reports that wait for the path, at most: 4 s of a device that sends 250 a second.
pub(super) const QUEUE_MAX: usize = 1024;
/// Reports and requests that wait for the device, at most.
pub(super) const WORK_MAX: usize = 64;
/// Answers that wait for the path, at most. The oldest are dropped: nobody waits for them any more.
const ANSWERS_MAX: usize = 64;
/// Reports that the kernel holds for a program that does not read (`HIDRAW_BUFFER_SIZE`, less one). It drops further ones.
const KERNEL_REPORTS: usize = 63;
/// Time in which a device that is used sends its next report.
const SUCCESSOR_TIMEOUT: Duration = Duration::from_millis(200);
/// Time that the last reports have. A device takes one within a few milliseconds; a silent one must not hold up the path.
const LAST_REPORTS_TIMEOUT: Duration = Duration::from_millis(200);

/// A HID device as a partner.
pub(super) struct DevicePartner {
    name: String,
    node: Arc<OwnedFd>,
    inputs: Inputs,
    queue: VecDeque<(Time, Vec<u8>)>,
    /// The flow out has the class state; otherwise no report may be missing.
    is_state: bool,
    needs_snapshot: bool,
    is_gone: bool,
    /// Reports that the kernel may have dropped the last of, and the time at which they are made neutral.
    suspects: BTreeSet<u8>,
    suspects_until: Time,
    grab: Grab,
    shared: Arc<Shared>,
    outputs: Outputs,
    /// [`Ctl::Flush`] waits for the thread.
    is_flushing: bool,
    counts: Counts,
    buffer: Vec<u8>,
}

/// Figures of [`Ctl::Report`].
#[derive(Debug, Default)]
struct Counts {
    reports: u64,
    refused: u64,
    snapshots: u64,
    overflows: u64,
    dropped: u64,
    outputs: u64,
    requests: u64,
}

/// The event nodes of the device. Grabbed, they are silent on this host.
#[derive(Debug)]
struct Grab {
    nodes: Vec<OwnedFd>,
    /// Nodes that are not grabbed yet, while the flow is open.
    waiting: Vec<usize>,
}

impl Grab {
    fn begin(&mut self) {
        self.waiting = (0..self.nodes.len()).collect();
        self.advance();
    }

    /// Grabs nodes without a pressed key: the program that received a press must also receive the release. Switches of a
    /// joystick stay down and do not count.
    fn advance(&mut self) {
        self.waiting.retain(|at| {
            let node = self.nodes[*at].as_fd();
            let is_at_rest = evdev::state(node, EV_KEY).is_ok_and(|keys| momentary(&keys).is_empty());
            !(is_at_rest && evdev::grab(node, true).is_ok())
        });
    }

    fn end(&mut self) {
        for node in &self.nodes {
            // A killed worker may have grabbed a node that waits here. It fails if it is not grabbed, or the device is gone.
            let _ = evdev::grab(node.as_fd(), false);
        }
        self.waiting.clear();
    }
}

/// A task for the thread.
#[derive(Debug)]
enum Work {
    Output(Vec<u8>),
    Get { request: u32, kind: ReportKind, report: Vec<u8> },
    Set { request: u32, kind: ReportKind, report: Vec<u8> },
}

/// The state that partner and thread share.
struct Shared {
    state: Mutex<State>,
    /// Wakes the thread.
    has_work: Condvar,
    /// Wakes the partner that is being dropped.
    is_finished: Condvar,
    /// The thread has finished a work: there is room, and perhaps an answer.
    progress: [Event; 2],
}

/// Places in [`Shared::progress`].
const ROOM: usize = 0;
const ANSWER: usize = 1;

#[derive(Debug, Default)]
struct State {
    work: VecDeque<Work>,
    is_busy: bool,
    is_over: bool,
    answers: VecDeque<Update>,
    failures: u64,
}

impl State {
    fn answer(&mut self, answer: Update) {
        if self.answers.len() >= ANSWERS_MAX {
            self.answers.pop_front();
        }
        self.answers.push_back(answer);
    }
}

impl Shared {
    /// Ignores poisoning: each change leaves the state usable.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a work. Returns it if the queue is full.
    fn add(&self, work: Work) -> Result<(), Work> {
        let mut state = self.lock();
        if state.work.len() >= WORK_MAX {
            return Err(work);
        }
        state.work.push_back(work);
        self.has_work.notify_one();
        Ok(())
    }

    fn is_idle(&self) -> bool {
        let state = self.lock();
        state.work.is_empty() && !state.is_busy
    }
}

/// Body of the thread.
fn serve(node: &OwnedFd, shared: &Shared) {
    let mut state = shared.lock();
    loop {
        let Some(work) = state.work.pop_front() else {
            if state.is_over {
                return;
            }
            state = shared.has_work.wait(state).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        state.is_busy = true;
        drop(state);
        let answer = perform(node, work);
        state = shared.lock();
        state.is_busy = false;
        match answer {
            Done::Silent => {}
            Done::Failed => state.failures += 1,
            Done::Answer(answer) => state.answer(answer),
        }
        shared.progress.iter().for_each(Event::signal);
        if state.is_over {
            shared.is_finished.notify_one();
        }
    }
}

/// The end of a work.
enum Done {
    Silent,
    Failed,
    Answer(Update),
}

/// Sends a report or makes a request, which may take seconds.
fn perform(node: &OwnedFd, work: Work) -> Done {
    match work {
        Work::Output(report) => match rustix::io::write(node, &report) {
            Ok(_) => Done::Silent,
            Err(_) => Done::Failed,
        },
        Work::Get { request: id, kind, mut report } => {
            let operation = match kind {
                ReportKind::Feature => Request::GetFeature,
                ReportKind::Output => Request::GetOutput,
                ReportKind::Input => Request::GetInput,
            };
            let result = request(node.as_fd(), operation, &mut report).map(|length| {
                report.truncate(length);
                report
            });
            Done::Answer(Update::Answer { request: id, result: result.map_err(|_| Refused) })
        }
        Work::Set { request: id, kind, mut report } => {
            let result = match kind {
                ReportKind::Feature => request(node.as_fd(), Request::SetFeature, &mut report),
                ReportKind::Output => request(node.as_fd(), Request::SetOutput, &mut report),
                ReportKind::Input => Err(io::Error::from(io::ErrorKind::Unsupported)),
            };
            Done::Answer(Update::Answer {
                request: id,
                result: result.map(|_| Vec::new()).map_err(|_| Refused),
            })
        }
    }
}

impl DevicePartner {
    /// Creates a partner on a non-blocking node. `event_nodes` are to be silent on this host while the flow is open.
    pub(super) fn new(
        properties: &Properties,
        inputs: Inputs,
        node: OwnedFd,
        event_nodes: Vec<OwnedFd>,
    ) -> io::Result<FlowPartner<Self>> {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            has_work: Condvar::new(),
            is_finished: Condvar::new(),
            progress: [Event::new()?, Event::new()?],
        });
        let node = Arc::new(node);
        let (thread_node, thread_shared) = (node.clone(), shared.clone());
        // It is not joined: a device that does not answer must not hold up the path. It ends once the queue is empty.
        std::thread::Builder::new().name("hid".into()).spawn(move || serve(&thread_node, &thread_shared))?;
        let partner = DevicePartner {
            name: properties.name.clone(),
            node,
            inputs,
            queue: VecDeque::new(),
            is_state: true,
            needs_snapshot: false,
            is_gone: false,
            suspects: BTreeSet::new(),
            suspects_until: Time::ZERO,
            grab: Grab { nodes: event_nodes, waiting: Vec::new() },
            shared,
            outputs: Outputs::new(properties),
            is_flushing: false,
            counts: Counts::default(),
            buffer: vec![0; REPORT_BYTES_MAX],
        };
        Ok(FlowPartner::new(partner, Some(Format::Hid), Some(Format::Hid)))
    }

    fn gone(&self) -> PartnerError {
        PartnerError::Gone(self.name.clone())
    }

    /// Reads the kernel's reports into the queue.
    fn fill(&mut self) -> PartnerResult {
        let mut read = 0;
        while self.queue.len() < QUEUE_MAX {
            match rustix::io::read(&self.node, self.buffer.as_mut_slice()) {
                Ok(0) | Err(Errno::IO | Errno::NODEV | Errno::SHUTDOWN) => {
                    self.on_unplugged();
                    return Ok(());
                }
                Ok(length) => {
                    read += 1;
                    self.handle(length);
                }
                Err(Errno::AGAIN | Errno::INTR) => {
                    if read >= KERNEL_REPORTS {
                        self.on_overflow();
                    }
                    break;
                }
                Err(error) => return Err(PartnerError::os(format!("reading {}", self.name), error)),
            }
        }
        self.release_suspects();
        self.needs_snapshot |= self.is_state && self.queue.len() >= QUEUE_MAX;
        self.grab.advance();
        Ok(())
    }

    /// Queues the report in the buffer.
    fn handle(&mut self, length: usize) {
        let report = &self.buffer[..length];
        if !self.inputs.observe(report) {
            self.counts.refused += 1;
            return;
        }
        self.inputs.descriptor().number_of(report).inspect(|number| _ = self.suspects.remove(number));
        self.counts.reports += 1;
        self.queue.push_back((now(), Update::Input(report.into()).to_bytes()));
    }

    /// The kernel's queue was full, so the last report may be missing, such as that of a release.
    fn on_overflow(&mut self) {
        self.counts.overflows += 1;
        if self.is_state {
            self.suspects = self.inputs.numbers().collect();
            self.suspects_until = now().after(SUCCESSOR_TIMEOUT);
        }
    }

    /// Makes the reports neutral that had no successor after an overflow.
    fn release_suspects(&mut self) {
        if !self.suspects.is_empty() && now() >= self.suspects_until {
            let suspects = std::mem::take(&mut self.suspects);
            let others: Vec<u8> = self.inputs.numbers().filter(|number| !suspects.contains(number)).collect();
            self.queue_release(&others);
        }
    }

    fn queue_release(&mut self, except: &[u8]) {
        let released = self.inputs.release(except);
        self.queue.extend(released.into_iter().map(|report| (now(), Update::Input(report).to_bytes())));
    }

    fn on_unplugged(&mut self) {
        self.is_gone = true;
        if self.is_state {
            self.queue_release(&[]);
        }
    }

    /// Drops all reports that were not pulled.
    fn drop_queue(&mut self, slot: &mut PullSlot) {
        self.counts.dropped += u64::from(slot.is_held()) + self.queue.len() as u64;
        self.queue.clear();
        *slot = PullSlot::default();
    }

    /// Queues a report for the device, or a request. Returns false if there is no room.
    fn apply(&mut self, update: Update) -> PartnerResult<bool> {
        let descriptor = self.inputs.descriptor();
        let work = match update {
            Update::Output(report) => Work::Output(report),
            Update::Get { request, kind, number } => match descriptor.bytes_of(kind, number) {
                Some(bytes) => {
                    let mut report = vec![0; bytes];
                    report[0] = number;
                    Work::Get { request, kind, report }
                }
                None => {
                    self.refuse(request);
                    return Ok(true);
                }
            },
            Update::Set { request, kind, report } => match descriptor.has(kind, report[0]) {
                true => Work::Set { request, kind, report },
                false => {
                    self.refuse(request);
                    return Ok(true);
                }
            },
            Update::Snapshot(reports) => return Ok(self.apply_snapshot(reports)),
            Update::Input(_) | Update::Answer { .. } => {
                return Err(PartnerError::Message("a device sends this message, and takes none".into()));
            }
        };
        let output = match &work {
            Work::Output(report) if !descriptor.has(ReportKind::Output, report[0]) => {
                self.counts.refused += 1;
                return Ok(true);
            }
            Work::Output(report) => Some(report.clone()),
            _ => None,
        };
        let is_taken = self.shared.add(work).is_ok();
        if is_taken {
            self.counts.requests += u64::from(output.is_none());
            self.counts.outputs += u64::from(output.is_some());
            output.iter().for_each(|report| self.outputs.observe(report));
        }
        Ok(is_taken)
    }

    /// Sends the reports of a snapshot that differ from the last. All of them must find room.
    fn apply_snapshot(&mut self, reports: Vec<Vec<u8>>) -> bool {
        let descriptor = self.inputs.descriptor();
        let fresh: Vec<_> = reports
            .into_iter()
            .filter(|report| descriptor.has(ReportKind::Output, report[0]) && !self.outputs.has(report))
            .collect();
        let mut state = self.shared.lock();
        if !state.work.is_empty() && state.work.len() + fresh.len() > WORK_MAX {
            return false;
        }
        state.work.extend(fresh.iter().cloned().map(Work::Output));
        drop(state);
        self.shared.has_work.notify_one();
        self.counts.outputs += fresh.len() as u64;
        fresh.iter().for_each(|report| self.outputs.observe(report));
        true
    }

    /// Refuses a request for a report that the device does not have.
    fn refuse(&mut self, request: u32) {
        self.counts.refused += 1;
        self.shared.lock().answer(Update::Answer { request, result: Err(Refused) });
        self.shared.progress[ANSWER].signal();
    }

    /// Stops the motors. Lights keep their state, as they do for `evdev`.
    fn stop_effects(&mut self) {
        for stop in self.outputs.stops() {
            // A full queue holds a later report of the motors, or a device that does not take any.
            if self.shared.add(Work::Output(stop.clone())).is_ok() {
                self.outputs.observe(&stop);
            }
        }
    }

    fn is_flushed(&mut self) -> bool {
        self.shared.progress[ROOM].clear();
        self.is_flushing = !self.shared.is_idle();
        !self.is_flushing
    }

    fn report(&self) -> Vec<Report> {
        let counts = &self.counts;
        vec![
            ("reports", counts.reports as f64),
            ("snapshots", counts.snapshots as f64),
            ("reports dropped", counts.dropped as f64),
            ("reports refused", counts.refused as f64),
            ("kernel overflows", counts.overflows as f64),
            ("output reports", counts.outputs as f64),
            ("output reports failed", self.shared.lock().failures as f64),
            ("requests", counts.requests as f64),
            ("grabbed", (self.grab.nodes.len() - self.grab.waiting.len()) as f64),
        ]
    }
}

impl Drop for DevicePartner {
    /// The broker may keep the descriptors open, so effects and grab must be released explicitly. The thread sends the reports that
    /// are queued, such as that which stops the motors; the process may exit after this call, and the thread with it.
    fn drop(&mut self) {
        self.grab.end();
        let mut state = self.shared.lock();
        state.is_over = true;
        state.work.retain(|work| !matches!(work, Work::Get { .. }));
        self.shared.has_work.notify_one();
        let is_unfinished = |state: &mut State| state.is_busy || !state.work.is_empty();
        drop(self.shared.is_finished.wait_timeout_while(state, LAST_REPORTS_TIMEOUT, is_unfinished));
    }
}

impl Endpoint for DevicePartner {
    fn opened(&mut self, template: &FlowTemplate, _slot: &mut PullSlot) -> PartnerResult {
        if template.direction == Direction::Out {
            self.is_state = template.class != FlowClass::Reliable;
            self.needs_snapshot = self.is_state;
            self.grab.begin();
        }
        Ok(())
    }

    fn closed(&mut self, direction: Direction, slot: &mut PullSlot) -> PartnerResult {
        match direction {
            Direction::Out => {
                self.drop_queue(slot);
                self.grab.end();
            }
            Direction::In => self.stop_effects(),
        }
        Ok(())
    }

    fn accept(&mut self, message: &mut Message) -> PartnerResult<bool> {
        let update = Update::parse(message.body.as_slice()).map_err(invalid)?;
        self.shared.progress[ROOM].clear();
        self.apply(update)
    }

    fn next(&mut self, _now: Time) -> PartnerResult<Next> {
        // Clearing before the answers are read keeps later signals.
        self.shared.progress[ANSWER].clear();
        if !self.is_gone {
            self.fill()?;
        }
        let answer = self.shared.lock().answers.pop_front();
        if let Some(answer) = answer {
            // Others may wait.
            self.shared.progress[ANSWER].signal();
            return Ok(Next::Message(Message::new(now(), answer.to_bytes())));
        }
        if std::mem::take(&mut self.needs_snapshot) {
            // It includes the effect of the queue.
            self.counts.dropped += self.queue.len() as u64;
            self.queue.clear();
            self.counts.snapshots += 1;
            self.queue.push_back((now(), Update::Snapshot(self.inputs.snapshot()).to_bytes()));
        }
        match self.queue.pop_front() {
            Some((created, bytes)) => Ok(Next::Message(Message::new(created, bytes))),
            None if self.is_gone => Err(self.gone()),
            None => Ok(Next::Nothing),
        }
    }

    fn ctl(&mut self, flow: FlowKey, operation: Ctl<'_>, slot: &mut PullSlot) -> PartnerResult<CtlReply> {
        match operation {
            Ctl::Flush | Ctl::Finish => match self.is_flushed() {
                true => Ok(CtlReply::Done),
                false => Ok(CtlReply::Pending),
            },
            Ctl::Snapshot => {
                self.drop_queue(slot);
                self.needs_snapshot = true;
                Ok(CtlReply::Done)
            }
            Ctl::Neutral => {
                if flow != OUT {
                    self.stop_effects();
                }
                Ok(CtlReply::Done)
            }
            Ctl::IsNeutral if flow != OUT => Ok(CtlReply::Count(self.outputs.is_neutral().into())),
            Ctl::IsNeutral => Ok(CtlReply::Count(self.inputs.is_neutral().into())),
            Ctl::Recovery(RecoveryCtl::Discarded) => Ok(CtlReply::Count(self.counts.dropped)),
            Ctl::Report => Ok(CtlReply::Report(self.report())),
            _ => Err(PartnerError::Unsupported("this control operation")),
        }
    }

    fn readiness(&self, direction: Direction) -> Readiness<'_> {
        let progress = |place: usize| (self.shared.progress[place].as_fd(), Interest::Read);
        match direction {
            Direction::In if self.is_flushing || self.shared.lock().work.len() >= WORK_MAX => {
                let (descriptor, interest) = progress(ROOM);
                Readiness::descriptor(descriptor, interest)
            }
            Direction::In => Readiness::now(),
            Direction::Out if !self.queue.is_empty() || self.needs_snapshot || self.is_gone => {
                Readiness::now()
            }
            Direction::Out => Readiness {
                descriptors: [Some((self.node.as_fd(), Interest::Read)), Some(progress(ANSWER))],
                at: (!self.suspects.is_empty()).then_some(self.suspects_until),
                ..Readiness::default()
            },
        }
    }
}
