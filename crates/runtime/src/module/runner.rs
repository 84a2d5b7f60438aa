//! One half of a pair between descriptors: data in, data out, control, and the stage's time. One loop, which
//! waits for all of them at once and blocks for none.

use super::control::Control;
use super::ways::Ways;
use crate::error::RuntimeError;
use crate::events::Stop;
use crate::segment::DropCounts;
use crate::share::now;
use contract::{Choice, Feedback, Half, Outbox, Port, Promises, Stage, StageError, Time};
use links::shm::Came;
use pipeline::REFUSED;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use sys::poller::Poller;
use wire::{ModuleFeedback, ModuleFrame, ModuleReport};

/// Containers handled before the other descriptors are looked at again.
const BURST: usize = 256;
/// How long a flow that has ended waits for held messages of which none leaves.
const LINGER: Duration = Duration::from_secs(10);
/// Time between two words to a runner of how the half fares.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// Where nobody tells of room, it is looked for so often.
const LOOK: Duration = Duration::from_millis(1);
/// How long the other half, or the runner, may take to read what was last said to it.
const FAREWELL: Duration = Duration::from_secs(1);

/// Who is at the other end of the control channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Talk {
    /// The other half of the pair, or nobody: everything said is for it.
    Half,
    /// A runner, which counts containers: frames have their place among them, and it is told what is done.
    Runner,
}

/// What a half is, and how its outputs are shared out.
#[derive(Debug, Clone, Copy)]
pub(super) struct Nature {
    pub(super) half: Half,
    pub(super) promises: Promises,
    /// What leaves by ports besides the first is something else, and never goes the way of the first.
    pub(super) has_sides: bool,
}

/// How a half ended that did not fail.
#[derive(Debug)]
pub(super) struct Ended {
    /// Messages that ended in it, by reason.
    pub(super) drops: BTreeMap<String, u64>,
    /// What was wrong with the first container that it refused.
    pub(super) refusal: Option<StageError>,
}

/// A half that runs.
pub(super) struct Runner {
    pub(super) stage: Box<dyn Stage>,
    pub(super) nature: Nature,
    ways: Ways,
    pub(super) control: Control,
    pub(super) talk: Talk,
    out: Outbox,
    drops: DropCounts,
    /// Drops that the runner is told of with the next done.
    untold: DropCounts,
    /// What was wrong with the first container that the stage refused.
    refusal: Option<StageError>,
    /// Containers handled, and ports whose end the stage was told.
    inputs: u64,
    ended: Vec<bool>,
    /// Containers pushed, and what the runner knows.
    outputs: u64,
    done: Option<(u64, u64)>,
    /// The newest input of which something was pushed.
    newest: u64,
    /// So many inputs, and what came of them: all of that, and nothing else, was pushed. Still to be said.
    whole: Option<(u64, u64)>,
    /// In a run or a chain: inputs that are not finished, and what they complete.
    covers: VecDeque<(u64, u64)>,
    /// Whether the control channel is worth a look.
    control_is_due: bool,
    phase: Phase,
    /// When the runner is told next how the half fares, and what it was told; `None`: nothing happened since.
    report_at: Option<Time>,
    reported: (Time, ModuleReport),
    /// A flush is under way: nothing more is handled until a done has answered it.
    flushed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    /// All inputs have ended; the fewest messages held so far, and how long they are waited for.
    Draining(usize, Time),
    /// The stage has given out everything.
    Finishing,
}

impl Runner {
    pub(super) fn new(
        stage: Box<dyn Stage>,
        nature: Nature,
        ways: Ways,
        control: Control,
        talk: Talk,
    ) -> Runner {
        let ended = vec![false; ways.inputs()];
        Runner {
            stage,
            nature,
            ways,
            control,
            talk,
            out: Outbox::default(),
            drops: DropCounts::default(),
            untold: DropCounts::default(),
            refusal: None,
            inputs: 0,
            ended,
            outputs: 0,
            done: None,
            newest: 0,
            whole: None,
            covers: VecDeque::new(),
            control_is_due: true,
            phase: Phase::Running,
            report_at: None,
            reported: (now(), ModuleReport::default()),
            flushed: false,
        }
    }

    /// Runs to the end of the data, or until `stop` is said.
    pub(super) fn run(mut self, stop: Option<&Stop>) -> Result<Ended, RuntimeError> {
        let result = self.run_to_end(stop);
        if let Err(error) = &result
            && self.talk == Talk::Runner
        {
            self.control.send(self.outputs, &ModuleFrame::Error(error.to_string()));
        }
        self.take_leave();
        result.map(|()| Ended { drops: self.drops.counts, refusal: self.refusal })
    }

    fn run_to_end(&mut self, stop: Option<&Stop>) -> Result<(), RuntimeError> {
        sys::thread::be_punctual();
        let mut poller = Poller::new().map_err(|error| RuntimeError::os("epoll", error))?;
        let mut leave_at = None;
        loop {
            let again = self.turn()?;
            if self.phase == Phase::Finishing && self.ways.is_written() || self.ways.is_cut_off() {
                return Ok(());
            }
            let is_stopped = stop.is_some_and(Stop::is_said);
            if is_stopped && self.phase != Phase::Finishing {
                self.finish(now())?;
                continue;
            }
            if again {
                continue;
            }
            let mut wake = self.want(&mut poller)?;
            match stop {
                // Who does not read any more does not keep the process from ending.
                Some(_) if is_stopped => {
                    let until = *leave_at.get_or_insert_with(|| now().after(FAREWELL));
                    if now() >= until {
                        return Ok(());
                    }
                    wake = Some(wake.map_or(until, |at| at.min(until)));
                }
                Some(stop) => poller.want(stop.wakes(), true, false),
                None => {}
            }
            let timeout = wake.map(|at| if at == Time::ZERO { Duration::ZERO } else { at.since(now()) });
            self.ways.wait(&mut poller, timeout).map_err(waiting)?;
            self.ways.wake_up();
            self.control_is_due = match &mut self.ways {
                // A frame waits for the containers before it: it must be there when they are.
                Ways::Pipes(..) => true,
                Ways::Chain(_) => self.control.is_ready(&poller),
                Ways::Run(seat, _) => seat.was_told(),
            };
            if self.control_is_due && matches!(self.ways, Ways::Run(..)) {
                // A timer for each sleep would cost as much as a tenth of a hop: the runner's asks.
                self.report_at = self.report_at.map(|at| at.min(self.reported.0.after(REPORT_INTERVAL / 2)));
            }
        }
    }

    /// Does what can be done now; whether there is more to do at once.
    fn turn(&mut self) -> Result<bool, RuntimeError> {
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
        self.look_for_partner()?;
        self.look_for_end(now)?;
        self.vouch()?;
        self.ways.flush(now)?;
        self.say_done();
        self.say_report(now);
        self.control.flush().map_err(control_failed)?;
        again |= self.has_room() && self.has_next()? || self.has_frame();
        Ok(again)
    }

    /// Reads data, then control: so that a frame that was written before a container is seen before it.
    fn receive(&mut self) -> Result<bool, RuntimeError> {
        let mut always_ready = false;
        if self.has_room() && self.phase == Phase::Running {
            let ended = &self.ended;
            always_ready = self.ways.receive(|index| !ended[index])?;
        }
        if std::mem::replace(&mut self.control_is_due, matches!(self.ways, Ways::Pipes(..))) {
            self.control.receive().map_err(control_failed)?;
        }
        Ok(always_ready)
    }

    fn run_timeout(&mut self, now: Time) -> Result<(), RuntimeError> {
        if self.phase != Phase::Finishing && self.stage.poll_timeout().is_some_and(|at| at <= now) {
            let result = self.stage.handle_timeout(now, &mut self.out);
            self.settle(result, 0, now)?;
        }
        Ok(())
    }

    /// Whether another container may be handled.
    fn has_room(&self) -> bool {
        !self.flushed && self.stage.has_room() && self.ways.has_room() && self.control.has_room()
    }

    fn has_next(&mut self) -> Result<bool, RuntimeError> {
        for index in 0..self.ended.len() {
            if self.phase == Phase::Running && !self.ended[index] && self.ways.has_next(index)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Handles one container of each reader that has one.
    fn handle_next(&mut self, now: Time) -> Result<bool, RuntimeError> {
        let mut handled = false;
        for index in 0..self.ended.len() {
            if self.phase != Phase::Running {
                break;
            }
            let Some(Came { message, has_gap, covers, .. }) = self.ways.next(index)? else { continue };
            handled = true;
            let Some(mut message) = message else {
                self.covers.push_back((self.inputs, covers));
                self.vouch()?;
                continue;
            };
            if has_gap {
                self.ways.tell_gap();
                let result = self.stage.handle_gap(Port::MAIN, now, &mut self.out);
                self.settle(result, 0, now)?;
            }
            self.inputs += 1;
            if self.talk == Talk::Runner {
                message.attributes.mark = self.inputs as u32;
            }
            let result = self.stage.handle(Port(index as u16), message, now, &mut self.out);
            self.settle(result, 1, now)?;
            if self.ways.has_covers() {
                self.covers.push_back((self.inputs, covers));
                self.vouch()?;
            }
        }
        Ok(handled)
    }

    /// Whether a frame waits whose place has come. A stage that takes nothing more may do so until the other half
    /// speaks: then it hears it at once.
    fn has_frame(&self) -> bool {
        let has_come = |(at, frame): &(u64, ModuleFrame)| {
            let is_said = matches!(frame, ModuleFrame::Peer(_));
            self.talk == Talk::Half || *at <= self.inputs || is_said && !self.stage.has_room()
        };
        self.phase != Phase::Finishing && !self.flushed && self.control.peek().is_some_and(has_come)
    }

    fn handle_frames(&mut self, now: Time) -> Result<(), RuntimeError> {
        while self.has_frame()
            && let Some((_, frame)) = self.control.take()
        {
            let result = match &frame {
                ModuleFrame::Peer(bytes) => self.stage.handle_control(bytes, now, &mut self.out),
                ModuleFrame::Gap => self.stage.handle_gap(Port::MAIN, now, &mut self.out),
                ModuleFrame::Feedback(said) => {
                    self.stage.handle_feedback(&feedback(said), now, &mut self.out)
                }
                ModuleFrame::Flush if self.talk == Talk::Runner => {
                    self.flushed = true;
                    self.stage.handle_end(Port::MAIN, now, &mut self.out)
                }
                // A second hello, what only a module says, and what later versions say.
                _ => continue,
            };
            self.settle(result, 0, now)?;
        }
        Ok(())
    }

    /// Takes what the stage made; `messages` were handed over, and are counted if it erred.
    fn settle(
        &mut self,
        result: Result<(), StageError>,
        messages: u64,
        now: Time,
    ) -> Result<(), RuntimeError> {
        if self.talk == Talk::Runner {
            self.report_at.get_or_insert(self.reported.0.after(REPORT_INTERVAL));
        }
        let is_told = self.talk == Talk::Runner && !self.nature.promises.may_reorder;
        let is_told = is_told && self.stage.finished(0).is_some();
        while let Some((port, message)) = self.out.messages.pop_front() {
            if is_told {
                let input = self.input_marked(message.attributes.mark);
                // What was pushed came of those before it, and nothing of those is here any more.
                if input > self.newest {
                    self.handle_whole(input - 1)?;
                    self.newest = input;
                }
            }
            let way = match self.ways.outputs() {
                1 if port == Port::MAIN || !self.nature.has_sides => Some(0),
                1 => None,
                outputs => Some(usize::from(port.0)).filter(|way| *way < outputs),
            };
            match way.map(|way| self.ways.push(way, message)).transpose()? {
                Some(None) => self.outputs += 1,
                Some(Some(_)) => self.drop_counted("larger than a container", 1),
                None => self.drop_counted("no pipe for its port", 1),
            }
        }
        self.ways.flush_bursts(now)?;
        for said in std::mem::take(&mut self.out.controls) {
            self.control.send(self.outputs, &ModuleFrame::Peer(said));
        }
        for dropped in std::mem::take(&mut self.out.drops) {
            self.drop_counted(dropped.reason, dropped.count);
        }
        match result {
            Err(StageError::Own(problem)) if messages == 0 => Err(RuntimeError::Peer(problem)),
            Err(error) if messages > 0 => {
                self.drop_counted(REFUSED, messages);
                self.refusal.get_or_insert(error);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn drop_counted(&mut self, reason: &str, count: u64) {
        self.drops.add(reason, count);
        if self.talk == Talk::Runner {
            self.untold.add(reason, count);
        }
    }

    /// Tells the runner what was dropped; it counts with what is said done next, at `at`.
    fn tell_drops(&mut self, at: u64) {
        for (reason, count) in std::mem::take(&mut self.untold.counts) {
            self.control.send(at, &ModuleFrame::drop(&reason, count));
        }
    }

    /// A source half whose other half has gone, and whose last words were heard, has nobody to work for.
    fn look_for_partner(&self) -> Result<(), RuntimeError> {
        if self.talk == Talk::Half
            && self.control.has_ended()
            && self.nature.half == Half::Source
            && self.nature.promises.needs_control
            && self.phase == Phase::Running
        {
            return Err(RuntimeError::Peer("the other half of this pair has ended".into()));
        }
        Ok(())
    }

    /// What has ended is told to the stage; once all has, it may give out what it holds in its time.
    fn look_for_end(&mut self, now: Time) -> Result<(), RuntimeError> {
        let is_open = |index: usize| !self.ended[index] && !self.ways.has_ended(index);
        if self.phase == Phase::Running && !(0..self.ended.len()).any(is_open) {
            self.phase = Phase::Draining(self.stage.held(), now.after(LINGER));
        }
        for index in 0..self.ended.len() {
            if self.phase == Phase::Running && !self.ended[index] && self.ways.has_ended(index) {
                self.end(index, now)?;
            }
        }
        if let Phase::Draining(least, until) = self.phase {
            let held = self.stage.held();
            // To a runner, the end of the data is the end.
            if held == 0 || now >= until || self.talk == Talk::Runner {
                return self.finish(now);
            }
            if held < least {
                self.phase = Phase::Draining(held, now.after(LINGER));
            }
        }
        Ok(())
    }

    /// One port has ended.
    fn end(&mut self, index: usize, now: Time) -> Result<(), RuntimeError> {
        self.ended[index] = true;
        let result = self.stage.handle_end(Port(index as u16), now, &mut self.out);
        self.settle(result, 0, now)
    }

    /// The end: everything held comes out at once.
    fn finish(&mut self, now: Time) -> Result<(), RuntimeError> {
        for index in 0..self.ended.len() {
            if !self.ended[index] {
                self.end(index, now)?;
            }
        }
        self.phase = Phase::Finishing;
        self.flushed = true;
        self.report_at = Some(now);
        Ok(())
    }

    /// Tells a runner which inputs are finished with: all of them, once nothing that came of them is still
    /// here. A flush and the end are always answered.
    fn say_done(&mut self) {
        let is_said_so = self.talk == Talk::Runner && matches!(self.ways, Ways::Pipes(..));
        if !is_said_so || !self.ways.is_written() {
            return;
        }
        let Some(inputs) = self.finished_inputs() else {
            if let Some((inputs, outputs)) = self.whole.take().filter(|whole| Some(*whole) > self.done) {
                self.done = Some((inputs, outputs));
                self.control.send(outputs, &ModuleFrame::Done { inputs, outputs });
            }
            return;
        };
        let outputs = self.outputs;
        if Some((inputs, outputs)) != self.done || self.flushed || !self.untold.counts.is_empty() {
            self.done = Some((inputs, outputs));
            self.flushed = false;
            self.tell_drops(outputs);
            self.control.send(outputs, &ModuleFrame::Done { inputs, outputs });
        }
    }

    /// Of the first so many inputs, and of no other, is what was pushed, and nothing is held.
    fn handle_whole(&mut self, finished: u64) -> Result<(), RuntimeError> {
        self.whole = Some((finished, self.outputs));
        match self.take_covers(Some(finished)) {
            Some(covers) => self.ways.cover(covers),
            None => Ok(()),
        }
    }

    /// What these inputs complete of the host's, if they complete more than was said.
    fn take_covers(&mut self, finished: Option<u64>) -> Option<u64> {
        let mut last = None;
        while let Some((input, covers)) = self.covers.pop_front_if(|(input, _)| Some(*input) <= finished) {
            last = Some((input, covers));
        }
        last.filter(|(input, covers)| Some(*input) == finished && *covers > 0).map(|(_, covers)| covers)
    }

    /// Which input has this mark, of the last ones.
    fn input_marked(&self, mark: u32) -> u64 {
        self.inputs.saturating_sub(u64::from((self.inputs as u32).wrapping_sub(mark)))
    }

    /// In a run, and a chain, the same is said with the messages themselves: what is finished completes what the last of it did.
    fn vouch(&mut self) -> Result<(), RuntimeError> {
        let finished = self.finished_inputs();
        if !self.ways.has_covers() {
            return Ok(());
        }
        let covered = self.take_covers(finished);
        // The host has it before what covers it.
        let is_end = self.flushed && self.phase == Phase::Finishing;
        if !self.untold.counts.is_empty() && (covered.is_some() || is_end) {
            self.tell_drops(covered.unwrap_or(0));
            self.control.flush().map_err(control_failed)?;
        }
        if let Some(covers) = covered {
            self.ways.cover(covers)?;
        }
        if std::mem::take(&mut self.flushed) && self.phase == Phase::Finishing {
            self.ways.end()?;
        }
        Ok(())
    }

    /// Tells a runner how the half fares, now and then, if that has changed.
    fn say_report(&mut self, now: Time) {
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

    /// How many inputs are finished with, if all outputs so far came of those and of no other.
    fn finished_inputs(&self) -> Option<u64> {
        let Promises { may_delay, may_drop, may_reorder, .. } = self.nature.promises;
        let held = self.stage.held() as u64;
        if self.flushed || !may_delay || (held == 0 && self.stage.poll_timeout().is_none()) {
            return Some(self.inputs);
        }
        if let Some(mark) = self.stage.finished(self.inputs as u32) {
            let finished = self.input_marked(mark);
            // One that changes the order gave out what came of later ones: that comes again when its process dies.
            return (self.newest <= finished || may_reorder).then_some(finished);
        }
        // One out for each one in, in order: what is held are the last ones.
        let left = self.inputs.saturating_sub(held);
        (!may_drop
            && !may_reorder
            && left == self.outputs
            && Some(left) > self.done.map(|(inputs, _)| inputs))
        .then_some(left)
    }

    /// Puts what to wait for into the poller; when to look again otherwise.
    fn want(&mut self, poller: &mut Poller) -> Result<Option<Time>, RuntimeError> {
        let wake = match self.phase {
            Phase::Finishing => None,
            Phase::Running => self.stage.poll_timeout(),
            Phase::Draining(_, until) => Some(self.stage.poll_timeout().map_or(until, |at| at.min(until))),
        };
        let look = match self.ways {
            // Asleep in shared memory, it is not told of room in the control channel; how it fares, it is asked.
            Ways::Run(..) => self.control.is_unsent().then(|| now().after(LOOK)),
            _ => {
                self.control.want(poller);
                self.report_at
            }
        };
        let reads = self.phase == Phase::Running && self.has_room();
        Ok(wake.into_iter().chain(self.ways.want(reads, poller)?).chain(look).min())
    }

    /// Lets readers see the end, and writes what was last said, if anybody reads it soon.
    fn take_leave(&mut self) {
        self.ways.close();
        let until = now().after(FAREWELL);
        let Ok(mut poller) = Poller::new() else { return };
        while let Ok(false) = self.control.flush()
            && now() < until
        {
            self.control.want(&mut poller);
            if poller.wait(Some(until.since(now()))).is_err() || self.control.receive().is_err() {
                return;
            }
        }
    }
}

fn feedback(said: &ModuleFeedback) -> Feedback {
    Feedback {
        received: said.received,
        lost: said.lost,
        delay: Duration::from_nanos(said.delay_ns),
        jitter: Duration::from_nanos(said.jitter_ns),
        round_trip: Duration::from_nanos(said.round_trip_ns),
        rate_bytes: said.rate_bytes,
        waiting_bytes: said.waiting_bytes,
    }
}

fn control_failed(error: std::io::Error) -> RuntimeError {
    RuntimeError::os("the control channel", error)
}

fn waiting(error: std::io::Error) -> RuntimeError {
    RuntimeError::os("waiting", error)
}
