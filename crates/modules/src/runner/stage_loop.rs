//! The event loop of one half of a pair: input, output, control frames and the timers of the stage. It waits for
//! all of them at once and never blocks on one.
//!
//! | phase | meaning | ends when |
//! |---|---|---|
//! | `Running` | reads input | every input has ended, or a stop is requested |
//! | `Draining` | all inputs have ended; the stage may still hold messages | it holds none, none leaves for [`LINGER`], or a runner is present |
//! | `Finishing` | the stage was told the end of every port and has sent everything | all output is written |

use super::carrier::Carrier;
use super::control::Control;
use crate::now;
use contract::ServiceError;
use contract::{Choice, Feedback, Half, Outbox, Port, Promises, Stage, StageError, StageResult, Time};
use links::shm::Received;
use pipeline::DropCounts;
use pipeline::REFUSED;
use std::collections::VecDeque;
use std::time::Duration;
use sys::poller::Poller;
use sys::stop::Stop;
use wire::{ModuleFeedback, ModuleFrame, ModuleReport};

/// Containers handled before the other descriptors are polled.
const BURST: usize = 256;
/// At the end of the flow, how long to wait for the stage to send another held message.
const LINGER: Duration = Duration::from_secs(10);
/// Interval between reports to a runner.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// Polling interval while something waits for room without a notification.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// How long to wait for the other side to read the last frames.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The other side of the control channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Peer {
    /// The other half of the pair, or nobody. Every frame is for the stage.
    OtherHalf,
    /// A runner. It counts containers: frames have a position among them, and the half reports `done` to it.
    Runner,
}

/// Properties of a half.
#[derive(Debug, Clone, Copy)]
pub(super) struct HalfProperties {
    pub(super) half: Half,
    pub(super) promises: Promises,
    /// Ports other than the first are side ports: their output never goes to the first output.
    pub(super) has_side_ports: bool,
}

/// Result of a half that did not fail.
#[derive(Debug)]
pub(super) struct Ended {
    /// Dropped messages, by reason, and those among them that were lost.
    pub(super) drops: DropCounts,
    /// Error of the first container that the stage rejected.
    pub(super) refusal: Option<StageError>,
}

/// A running half.
pub(super) struct StageLoop {
    pub(super) stage: Box<dyn Stage>,
    pub(super) properties: HalfProperties,
    carrier: Carrier,
    pub(super) control: Control,
    pub(super) peer: Peer,
    out: Outbox,
    drops: DropCounts,
    /// Drops that will be sent with the next `done`.
    unsent_drops: DropCounts,
    /// Error of the first container that the stage rejected.
    refusal: Option<StageError>,
    /// Containers handled; ports whose end the stage has received.
    inputs: u64,
    ended: Vec<bool>,
    /// Containers sent, and the last `done`.
    outputs: u64,
    done: Option<(u64, u64)>,
    /// The newest input with output that was sent.
    newest: u64,
    /// The next `done` to report: inputs, and outputs of exactly those inputs.
    pending_done: Option<(u64, u64)>,
    /// In a run or chain: unfinished inputs, with the `covers` to send once they are finished.
    covers: VecDeque<(u64, u64)>,
    /// The control channel must be read.
    control_is_due: bool,
    phase: Phase,
    /// Time of the next report (`None`: nothing has happened since), and time and content of the last one.
    report_at: Option<Time>,
    reported: (Time, ModuleReport),
    /// A flush is in progress: handle nothing until a `done` has answered it.
    is_flushing: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    /// Fewest messages held so far, and how long to wait for fewer.
    Draining(usize, Time),
    /// The stage has sent everything.
    Finishing,
}

impl StageLoop {
    pub(super) fn new(
        stage: Box<dyn Stage>,
        properties: HalfProperties,
        carrier: Carrier,
        control: Control,
        peer: Peer,
    ) -> StageLoop {
        let ended = vec![false; carrier.inputs()];
        StageLoop {
            stage,
            properties,
            carrier,
            control,
            peer,
            out: Outbox::default(),
            drops: DropCounts::default(),
            unsent_drops: DropCounts::default(),
            refusal: None,
            inputs: 0,
            ended,
            outputs: 0,
            done: None,
            newest: 0,
            pending_done: None,
            covers: VecDeque::new(),
            control_is_due: true,
            phase: Phase::Running,
            report_at: None,
            reported: (now(), ModuleReport::default()),
            is_flushing: false,
        }
    }

    /// Runs to the end of the data, or until `stop` is requested.
    pub(super) fn run(mut self, stop: Option<&Stop>) -> Result<Ended, ServiceError> {
        let result = self.run_to_end(stop);
        if let Err(error) = &result
            && self.peer == Peer::Runner
        {
            self.control.send(self.outputs, &ModuleFrame::Error(error.to_string()));
        }
        self.close();
        result.map(|()| Ended { drops: self.drops, refusal: self.refusal })
    }

    fn run_to_end(&mut self, stop: Option<&Stop>) -> Result<(), ServiceError> {
        sys::thread::be_punctual();
        let mut poller = Poller::new().map_err(|error| ServiceError::os("epoll", error))?;
        let mut deadline = None;
        loop {
            let again = self.step()?;
            if self.phase == Phase::Finishing && self.carrier.is_written() || self.carrier.is_disconnected() {
                return Ok(());
            }
            let is_stopped = stop.is_some_and(Stop::is_requested);
            if is_stopped && self.phase != Phase::Finishing {
                self.finish(now())?;
                continue;
            }
            if again {
                continue;
            }
            let mut wake = self.register(&mut poller)?;
            match stop {
                // A reader that no longer reads must not keep the process from exiting.
                Some(_) if is_stopped => {
                    let until = *deadline.get_or_insert_with(|| now().after(CLOSE_TIMEOUT));
                    if now() >= until {
                        return Ok(());
                    }
                    wake = Some(wake.map_or(until, |at| at.min(until)));
                }
                Some(stop) => poller.register(stop.wakes(), true, false),
                None => {}
            }
            let timeout = wake.map(|at| if at == Time::ZERO { Duration::ZERO } else { at.since(now()) });
            self.carrier.wait(&mut poller, timeout).map_err(waiting)?;
            self.carrier.wake_up();
            self.control_is_due = match &mut self.carrier {
                // A frame must be read before the containers after it are handled.
                Carrier::Pipes(..) => true,
                Carrier::Chain(_) => self.control.is_ready(&poller),
                Carrier::Run(stage_end, _) => stage_end.take_control(),
            };
            if self.control_is_due && matches!(self.carrier, Carrier::Run(..)) {
                // A timer for each sleep would cost a tenth of a hop. The runner's request replaces it.
                self.report_at = self.report_at.map(|at| at.min(self.reported.0.after(REPORT_INTERVAL / 2)));
            }
        }
    }

    /// Does everything that can be done now. Returns true if there is more to do at once.
    fn step(&mut self) -> Result<bool, ServiceError> {
        let mut again = self.receive()?;
        let now = now();
        self.run_timeout(now)?;
        for _ in 0..BURST {
            self.handle_frames(now)?;
            if !self.has_room() || !self.handle_next(now)? {
                break;
            }
        }
        self.handle_frames(now)?;
        self.check_partner()?;
        self.check_end(now)?;
        self.send_covers()?;
        self.carrier.flush(now)?;
        self.send_done();
        self.send_report(now);
        self.control.flush().map_err(control_failed)?;
        again |= self.has_room() && self.has_next()? || self.next_frame().is_some();
        Ok(again)
    }

    /// Reads input, then control frames: so a frame that was written before a container is read before it is
    /// handled.
    fn receive(&mut self) -> Result<bool, ServiceError> {
        let mut always_ready = false;
        if self.has_room() && self.phase == Phase::Running {
            let ended = &self.ended;
            always_ready = self.carrier.receive(|index| !ended[index])?;
        }
        if std::mem::replace(&mut self.control_is_due, matches!(self.carrier, Carrier::Pipes(..))) {
            self.control.receive().map_err(control_failed)?;
        }
        Ok(always_ready)
    }

    fn run_timeout(&mut self, now: Time) -> Result<(), ServiceError> {
        if self.phase != Phase::Finishing && self.stage.poll_timeout().is_some_and(|at| at <= now) {
            let result = self.stage.handle_timeout(now, &mut self.out);
            self.take_outputs(result, 0, now)?;
        }
        Ok(())
    }

    /// Returns true if another container may be handled.
    fn has_room(&self) -> bool {
        !self.is_flushing && self.stage.has_room() && self.carrier.has_room() && self.control.has_room()
    }

    fn has_next(&mut self) -> Result<bool, ServiceError> {
        for index in 0..self.ended.len() {
            if self.phase == Phase::Running && !self.ended[index] && self.carrier.has_next(index)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Handles one container from each input that has one.
    fn handle_next(&mut self, now: Time) -> Result<bool, ServiceError> {
        let mut handled = false;
        for index in 0..self.ended.len() {
            if self.phase != Phase::Running {
                break;
            }
            let Some(Received { message, has_gap, covers, .. }) = self.carrier.next(index)? else { continue };
            handled = true;
            let Some(mut message) = message else {
                self.covers.push_back((self.inputs, covers));
                self.send_covers()?;
                continue;
            };
            if has_gap {
                self.carrier.mark_gap();
                let result = self.stage.handle_gap(Port::MAIN, now, &mut self.out);
                self.take_outputs(result, 0, now)?;
            }
            self.inputs += 1;
            if self.peer == Peer::Runner {
                message.attributes.mark = self.inputs as u32;
            }
            let result = self.stage.handle(Port(index as u16), message, now, &mut self.out);
            self.take_outputs(result, 1, now)?;
            if self.carrier.has_covers() {
                self.covers.push_back((self.inputs, covers));
                self.send_covers()?;
            }
        }
        Ok(handled)
    }

    /// The index of the next frame that can be handled now. A stage without room may wait for the other half, so it receives
    /// that half's frames early, and past frames that wait for their message.
    fn next_frame(&self) -> Option<usize> {
        if self.phase == Phase::Finishing || self.is_flushing {
            return None;
        }
        let (at, _) = self.control.waiting().next()?;
        if self.peer == Peer::OtherHalf || *at <= self.inputs {
            return Some(0);
        }
        if self.stage.has_room() {
            return None;
        }
        self.control.waiting().position(|(_, frame)| matches!(frame, ModuleFrame::Peer(_)))
    }

    fn handle_frames(&mut self, now: Time) -> Result<(), ServiceError> {
        while let Some(index) = self.next_frame()
            && let Some((_, frame)) = self.control.take_at(index)
        {
            let result = match &frame {
                ModuleFrame::Peer(bytes) => self.stage.handle_control(bytes, now, &mut self.out),
                ModuleFrame::Gap => self.stage.handle_gap(Port::MAIN, now, &mut self.out),
                ModuleFrame::Feedback(frame) => {
                    self.stage.handle_feedback(&feedback(frame), now, &mut self.out)
                }
                ModuleFrame::Flush if self.peer == Peer::Runner => {
                    self.is_flushing = true;
                    self.stage.handle_end(Port::MAIN, now, &mut self.out)
                }
                // A second hello, frames that only modules send, and frames of later versions.
                _ => continue,
            };
            self.take_outputs(result, 0, now)?;
        }
        Ok(())
    }

    /// Takes the output of the stage. `messages` is the number of inputs handled; they count as dropped after an
    /// error.
    fn take_outputs(&mut self, result: StageResult, messages: u64, now: Time) -> Result<(), ServiceError> {
        if self.peer == Peer::Runner {
            self.report_at.get_or_insert(self.reported.0.after(REPORT_INTERVAL));
        }
        let tracks_inputs = self.peer == Peer::Runner && !self.properties.promises.may_reorder;
        let tracks_inputs = tracks_inputs && self.stage.finished(0).is_some();
        while let Some((port, message)) = self.out.messages.pop_front() {
            if tracks_inputs {
                let input = self.input_marked(message.attributes.mark);
                // Output of a later input: the output of all earlier inputs has been sent.
                if input > self.newest {
                    self.on_inputs_finished(input - 1)?;
                    self.newest = input;
                }
            }
            let port = match self.carrier.outputs() {
                1 if port == Port::MAIN || !self.properties.has_side_ports => Some(0),
                1 => None,
                outputs => Some(usize::from(port.0)).filter(|port| *port < outputs),
            };
            match port.map(|port| self.carrier.push(port, message)).transpose()? {
                Some(None) => self.outputs += 1,
                Some(Some(_)) => self.drop_counted("larger than a container", 1, true),
                None => self.drop_counted("no pipe for its port", 1, false),
            }
        }
        self.carrier.flush_bursts(now)?;
        for control in std::mem::take(&mut self.out.controls) {
            self.control.send(self.outputs, &ModuleFrame::Peer(control));
        }
        for dropped in std::mem::take(&mut self.out.drops) {
            self.drop_counted(dropped.reason, dropped.count, dropped.is_loss);
        }
        match result {
            Err(StageError::Own(problem)) if messages == 0 => Err(ServiceError::Peer(problem)),
            Err(error) if messages > 0 => {
                self.drop_counted(REFUSED, messages, true);
                self.refusal.get_or_insert(error);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn drop_counted(&mut self, reason: &str, count: u64, is_loss: bool) {
        match is_loss {
            true => self.drops.add_loss(reason, count),
            false => self.drops.add(reason, count),
        }
        if self.peer == Peer::Runner {
            self.unsent_drops.add(reason, count);
        }
    }

    /// Sends the drops to the runner, at position `at`; the next `done` confirms them.
    fn send_drops(&mut self, at: u64) {
        for (reason, count) in std::mem::take(&mut self.unsent_drops.counts) {
            self.control.send(at, &ModuleFrame::drop(&reason, count));
        }
    }

    /// A source half whose other half has ended has nothing to work for.
    fn check_partner(&self) -> Result<(), ServiceError> {
        if self.peer == Peer::OtherHalf
            && self.control.has_ended()
            && self.properties.half == Half::Source
            && self.properties.promises.needs_control
            && self.phase == Phase::Running
        {
            return Err(ServiceError::Peer("the other half of this pair has ended".into()));
        }
        Ok(())
    }

    /// Reports the end of inputs to the stage. When all have ended, the stage may take its time to send the
    /// messages that it holds.
    fn check_end(&mut self, now: Time) -> Result<(), ServiceError> {
        let is_open = |index: usize| !self.ended[index] && !self.carrier.has_ended(index);
        if self.phase == Phase::Running && !(0..self.ended.len()).any(is_open) {
            self.phase = Phase::Draining(self.stage.held(), now.after(LINGER));
        }
        for index in 0..self.ended.len() {
            if self.phase == Phase::Running && !self.ended[index] && self.carrier.has_ended(index) {
                self.end(index, now)?;
            }
        }
        if let Phase::Draining(least, until) = self.phase {
            let held = self.stage.held();
            // A runner expects everything at the end of the data.
            if held == 0 || now >= until || self.peer == Peer::Runner {
                return self.finish(now);
            }
            if held < least {
                self.phase = Phase::Draining(held, now.after(LINGER));
            }
        }
        Ok(())
    }

    /// Ends one input port.
    fn end(&mut self, index: usize, now: Time) -> Result<(), ServiceError> {
        self.ended[index] = true;
        let result = self.stage.handle_end(Port(index as u16), now, &mut self.out);
        self.take_outputs(result, 0, now)
    }

    /// Ends all ports: the stage sends everything that it holds.
    fn finish(&mut self, now: Time) -> Result<(), ServiceError> {
        for index in 0..self.ended.len() {
            if !self.ended[index] {
                self.end(index, now)?;
            }
        }
        self.phase = Phase::Finishing;
        self.is_flushing = true;
        self.report_at = Some(now);
        Ok(())
    }

    /// Reports finished inputs to a runner: all inputs, once no output of theirs is left here. Always answers a
    /// flush and the end.
    fn send_done(&mut self) {
        let uses_done_frames = self.peer == Peer::Runner && matches!(self.carrier, Carrier::Pipes(..));
        if !uses_done_frames || !self.carrier.is_written() {
            return;
        }
        let Some(inputs) = self.finished_inputs() else {
            if let Some((inputs, outputs)) = self.pending_done.take().filter(|done| Some(*done) > self.done) {
                self.done = Some((inputs, outputs));
                self.control.send(outputs, &ModuleFrame::Done { inputs, outputs });
            }
            return;
        };
        let outputs = self.outputs;
        if Some((inputs, outputs)) != self.done || self.is_flushing || !self.unsent_drops.counts.is_empty() {
            self.done = Some((inputs, outputs));
            self.is_flushing = false;
            self.send_drops(outputs);
            self.control.send(outputs, &ModuleFrame::Done { inputs, outputs });
        }
    }

    /// All output of the first `finished` inputs has been sent, and nothing else.
    fn on_inputs_finished(&mut self, finished: u64) -> Result<(), ServiceError> {
        self.pending_done = Some((finished, self.outputs));
        match self.take_covers(Some(finished)) {
            Some(covers) => self.carrier.cover(covers),
            None => Ok(()),
        }
    }

    /// The `covers` of these inputs, if it was not sent yet.
    fn take_covers(&mut self, finished: Option<u64>) -> Option<u64> {
        let mut last = None;
        while let Some((input, covers)) = self.covers.pop_front_if(|(input, _)| Some(*input) <= finished) {
            last = Some((input, covers));
        }
        last.filter(|(input, covers)| Some(*input) == finished && *covers > 0).map(|(_, covers)| covers)
    }

    /// Number of the recent input that has this mark.
    fn input_marked(&self, mark: u32) -> u64 {
        self.inputs.saturating_sub(u64::from((self.inputs as u32).wrapping_sub(mark)))
    }

    /// In a run or chain, acknowledges finished inputs in order with the messages: the `covers` of the last one.
    fn send_covers(&mut self) -> Result<(), ServiceError> {
        let finished = self.finished_inputs();
        if !self.carrier.has_covers() {
            return Ok(());
        }
        let covered = self.take_covers(finished);
        // Send drops before the acknowledgement that confirms them.
        let is_end = self.is_flushing && self.phase == Phase::Finishing;
        if !self.unsent_drops.counts.is_empty() && (covered.is_some() || is_end) {
            self.send_drops(covered.unwrap_or(0));
            self.control.flush().map_err(control_failed)?;
        }
        if let Some(covers) = covered {
            self.carrier.cover(covers)?;
        }
        if std::mem::take(&mut self.is_flushing) && self.phase == Phase::Finishing {
            self.carrier.end()?;
        }
        Ok(())
    }

    /// Sends a report to a runner, at intervals and if it has changed.
    fn send_report(&mut self, now: Time) {
        if self.report_at.take_if(|at| *at <= now).is_none() {
            return;
        }
        let name = |name: &str| name.to_string();
        let choice = |choice: Choice| (name(choice.option), choice.value.to_string(), choice.why);
        let report = ModuleReport {
            figures: self.stage.report().into_iter().map(|(figure, value)| (name(figure), value)).collect(),
            choices: self.stage.choices().into_iter().map(choice).collect(),
            problem: self.refusal.as_ref().map(StageError::to_string).unwrap_or_default(),
        };
        if report != self.reported.1 {
            self.control.send(self.outputs, &ModuleFrame::Report(report.clone()));
        }
        self.reported = (now, report);
    }

    /// Number of finished inputs, if the output so far came from exactly those.
    fn finished_inputs(&self) -> Option<u64> {
        let Promises { may_delay, may_drop, may_reorder, .. } = self.properties.promises;
        let held = self.stage.held() as u64;
        if self.is_flushing || !may_delay || (held == 0 && self.stage.poll_timeout().is_none()) {
            return Some(self.inputs);
        }
        if let Some(mark) = self.stage.finished(self.inputs as u32) {
            let finished = self.input_marked(mark);
            // A stage that reorders has sent output of later inputs; it will be sent again if its process dies.
            return (self.newest <= finished || may_reorder).then_some(finished);
        }
        // One output for each input, in order: the held messages are the last ones.
        let left = self.inputs.saturating_sub(held);
        (!may_drop
            && !may_reorder
            && left == self.outputs
            && Some(left) > self.done.map(|(inputs, _)| inputs))
        .then_some(left)
    }

    /// Registers with the poller. Returns when to continue otherwise.
    fn register(&mut self, poller: &mut Poller) -> Result<Option<Time>, ServiceError> {
        let wake = match self.phase {
            Phase::Finishing => None,
            Phase::Running => self.stage.poll_timeout(),
            Phase::Draining(_, until) => Some(self.stage.poll_timeout().map_or(until, |at| at.min(until))),
        };
        let next_poll = match self.carrier {
            // Asleep on shared memory, it gets no notification of room in the control channel. Reports are
            // requested.
            Carrier::Run(..) => self.control.is_unsent().then(|| now().after(POLL_INTERVAL)),
            _ => {
                self.control.register(poller);
                self.report_at
            }
        };
        let reads = self.phase == Phase::Running && self.has_room();
        Ok(wake.into_iter().chain(self.carrier.register(reads, poller)?).chain(next_poll).min())
    }

    /// Closes the outputs, and writes the last frames if the other side reads them soon.
    fn close(&mut self) {
        self.carrier.close();
        let until = now().after(CLOSE_TIMEOUT);
        let Ok(mut poller) = Poller::new() else { return };
        while let Ok(false) = self.control.flush()
            && now() < until
        {
            self.control.register(&mut poller);
            if poller.wait(Some(until.since(now()))).is_err() || self.control.receive().is_err() {
                return;
            }
        }
    }
}

fn feedback(frame: &ModuleFeedback) -> Feedback {
    Feedback {
        received: frame.received,
        lost: frame.lost,
        delay: Duration::from_nanos(frame.delay_ns),
        jitter: Duration::from_nanos(frame.jitter_ns),
        round_trip: Duration::from_nanos(frame.round_trip_ns),
        rate_bytes: frame.rate_bytes,
        waiting_bytes: frame.waiting_bytes,
    }
}

fn control_failed(error: std::io::Error) -> ServiceError {
    ServiceError::os("the control channel", error)
}

fn waiting(error: std::io::Error) -> ServiceError {
    ServiceError::os("waiting", error)
}
