//! The processes of a run, and what carries messages to them and back.

use super::ledger::{Ledger, Rubbish};
use super::member::{Member, NAMES, Said, Start};
use super::pipes::Pipes;
use super::together::Together;
use crate::shm::{Broken, Given, Lane};
use contract::{Message, Time};
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;
use sys::memory::Lease;
use sys::poller::PollSet;
use wire::{Container, ModuleFrame};

/// The bell of a run's host in the set.
const BELL: u64 = 5;
/// While messages come, the kernel is asked so often what else there is.
const ASK: Duration = Duration::from_millis(1);
/// Messages that are taken from a ring before others have their turn.
const TAKEN_MAX: usize = 4096;

/// What processes did.
pub(super) enum Event {
    Output(Message),
    /// The message of this number, as it went: all before it is finished, too.
    Back(u64),
    /// So many of what was handed over is finished, in what came so far.
    Covers(u64),
    /// Of which stage, its place, and what it says.
    Frame(usize, u64, ModuleFrame),
    Line(usize, String),
}

/// Something that one stage of a run is to be blamed for.
pub(super) struct Blame {
    pub(super) stage: usize,
    pub(super) what: Rubbish,
}

/// A program and its environment; `None`: that of this process.
pub(super) type Program<'a> = (&'a [OsString], Option<&'a [(OsString, OsString)]>);

/// How far a look went.
pub(super) enum Seen {
    /// Messages, or nothing; for the rest it was too soon.
    Messages,
    /// Everything; with it, whose end ended the run, and how: the first that it was not told to come to, or the last.
    All(Option<(usize, ExitStatus)>),
}

/// What carries messages.
enum Carrier {
    Pipes(Pipes),
    Shared(Box<Lane>),
}

/// Running processes. Dropped, they are killed with everything they started, and reaped.
pub(super) struct Child {
    // Dropped first: what a stage may write is unmapped after the stage has gone.
    members: Vec<Member>,
    carrier: Carrier,
    together: Together,
    set: Arc<PollSet>,
    /// The next one goes only when nothing is on its way, so that it is known who ends whom.
    pub(super) is_cautious: bool,
    /// Something waits for room.
    is_blocked: bool,
    /// It was waited for since it was looked at.
    is_awaited: bool,
    end_told: bool,
    end_waits: bool,
    broken: Option<Broken>,
    asked_at: Time,
    looked_at: Time,
}

impl Child {
    /// Starts programs with a pipe from each to the next, and to here from the last. `has_words`: they are a chain.
    pub(super) fn between_pipes(
        programs: &[Program<'_>],
        has_words: bool,
        set: &Arc<PollSet>,
    ) -> io::Result<Child> {
        let (input, mut theirs) = Pipes::input()?;
        let mut members = Vec::new();
        for (index, (words, environment)) in programs.iter().enumerate() {
            let (next, output) = Pipes::between()?;
            let (input, output) = (Some(std::mem::replace(&mut theirs, next)), Some(output));
            let start = Start { words, environment: *environment, input, output, given: Vec::new() };
            members.push(Member::start(start, index, set)?);
        }
        let pipes = Pipes::new(input, theirs, has_words, set)?;
        Ok(Child::new(members, Carrier::Pipes(pipes), false, set))
    }

    /// Starts a run of programs on shared memory, each with what belongs to its place.
    pub(super) fn in_a_row(
        programs: &[Program<'_>],
        (lane, descriptors): (Lane, Vec<Vec<OwnedFd>>),
        is_realtime: bool,
        set: &Arc<PollSet>,
    ) -> io::Result<Child> {
        let mut members = Vec::new();
        for (index, ((words, environment), given)) in programs.iter().zip(descriptors).enumerate() {
            let start = Start { words, environment: *environment, input: None, output: None, given };
            members.push(Member::start(start, index, set)?);
        }
        set.add(lane.bell(), BELL, true, false)?;
        Ok(Child::new(members, Carrier::Shared(Box::new(lane)), is_realtime, set))
    }

    fn new(members: Vec<Member>, carrier: Carrier, is_realtime: bool, set: &Arc<PollSet>) -> Child {
        Child {
            together: Together::new(is_realtime),
            members,
            carrier,
            set: set.clone(),
            is_cautious: false,
            is_blocked: false,
            is_awaited: true,
            end_told: false,
            end_waits: false,
            broken: None,
            asked_at: Time::ZERO,
            looked_at: Time::ZERO,
        }
    }

    /// The number of a process.
    pub(super) fn id(&self, stage: usize) -> Option<u32> {
        self.members.get(stage).map(|member| member.process.id())
    }

    /// Reads what there is; what it found goes to `take`.
    pub(super) fn read(
        &mut self,
        now: Time,
        mut take: impl FnMut(Event) -> Result<(), Rubbish>,
    ) -> Result<Seen, Blame> {
        let last = self.members.len() - 1;
        let of_last = |what| Blame { stage: last, what };
        self.looked_at = now;
        let is_awaited = std::mem::take(&mut self.is_awaited);
        let has_come = match &mut self.carrier {
            Carrier::Pipes(pipes) => pipes.read(now, false, &mut take).map_err(of_last)?,
            Carrier::Shared(lane) => {
                lane.wake_up(now);
                let has_come = take_given(lane, &mut take).map_err(of_last)?;
                if let Some(Broken(what)) = self.broken.take() {
                    return Err(Blame { stage: 0, what: Rubbish(what) });
                }
                has_come
            }
        };
        if (has_come || !is_awaited) && now < self.asked_at.after(ASK) {
            return Ok(Seen::Messages);
        }
        self.asked_at = now;
        let ready = self.set.ready().map_err(|error| of_last(Rubbish(error.to_string())))?;
        let names: Vec<u64> = ready.collect();
        let mut ended = Vec::new();
        for (stage, member) in self.members.iter_mut().enumerate() {
            let mut said = |said| take(event(stage, said));
            if member.read(&names, &mut said).map_err(|what| Blame { stage, what })? {
                ended.push(stage);
            }
        }
        // What a stage said of messages that the one behind has covered counts, whoever ended.
        if !ended.is_empty() {
            for (stage, member) in self.members.iter_mut().enumerate() {
                let mut said = |said| take(event(stage, said));
                member.read_control(true, &mut said).map_err(|what| Blame { stage, what })?;
            }
        }
        match &mut self.carrier {
            _ if ended.is_empty() => {}
            // What it gave before it ended counts, too.
            Carrier::Pipes(pipes) => drop(pipes.read(now, true, &mut take).map_err(of_last)?),
            Carrier::Shared(lane) => drop(take_given(lane, &mut take).map_err(of_last)?),
        }
        ended.into_iter().for_each(|stage| self.members[stage].reap());
        Ok(Seen::All(self.end()))
    }

    /// The end that ended the run.
    fn end(&self) -> Option<(usize, ExitStatus)> {
        let ends = || self.members.iter().enumerate().filter_map(|(stage, m)| Some((stage, m.status()?)));
        // In a chain, who ends well may have lost its neighbour: that one ended first.
        let is_own_doing = |status: &ExitStatus| {
            !status.success() || !self.end_told && matches!(self.carrier, Carrier::Shared(_))
        };
        let unasked = ends().find(|(_, status)| is_own_doing(status));
        unasked.or_else(|| ends().next_back().filter(|_| ends().count() == self.members.len()))
    }

    /// Queues a frame for a stage behind `at` containers; `false` if it reads none.
    pub(super) fn tell(&mut self, stage: usize, frame: &ModuleFrame, at: u64) -> bool {
        self.members.get_mut(stage).is_some_and(|member| member.tell(frame, at))
    }

    /// Queues a frame for every stage.
    pub(super) fn tell_all(&mut self, frame: &ModuleFrame, at: u64) {
        for member in &mut self.members {
            member.tell(frame, at);
        }
    }

    /// Whether a message before which nothing waits may be handed over before it is kept.
    pub(super) fn takes_at_once(&self) -> bool {
        let is_plain = !self.is_cautious && !self.end_told && self.broken.is_none();
        is_plain && matches!(self.carrier, Carrier::Shared(_))
    }

    /// Hands that one over, to be followed by [`Child::wake`]; whether there was room for it.
    pub(super) fn hand_over(&mut self, message: &Message) -> bool {
        let Carrier::Shared(lane) = &mut self.carrier else { return false };
        let result = lane.put(message.created, &message.body, false);
        self.is_blocked = result == Ok(false);
        let is_over = result == Ok(true);
        self.broken = result.err();
        is_over
    }

    /// Wakes whom that is for, if it sleeps.
    pub(super) fn wake(&mut self) {
        if let Carrier::Shared(lane) = &mut self.carrier {
            lane.wake_next();
        }
    }

    /// Writes what there is, as far as the processes take it.
    pub(super) fn write(&mut self, ledger: &mut Ledger) {
        match &mut self.carrier {
            Carrier::Pipes(pipes) => {
                let first = &mut self.members[0];
                self.is_blocked = !pipes.write(ledger, first, self.is_cautious, self.looked_at);
            }
            Carrier::Shared(lane) => {
                let result = give(lane, ledger, self.is_cautious);
                self.is_blocked = result.as_ref().is_ok_and(|has_room| !has_room);
                self.broken = result.err().or(self.broken.take());
                if self.end_waits && !ledger.has_next() {
                    self.end_waits = !lane.end().unwrap_or(true);
                }
            }
        }
        for (stage, member) in self.members.iter_mut().enumerate() {
            if member.write()
                && let Carrier::Shared(lane) = &self.carrier
            {
                lane.tell(stage);
            }
        }
    }

    /// On shared memory: asks every stage how it fares.
    pub(super) fn ask_reports(&self) {
        if let Carrier::Shared(lane) = &self.carrier {
            (0..self.members.len()).for_each(|stage| lane.tell(stage));
        }
    }

    /// Whether something waits for room that nobody may tell of.
    pub(super) fn is_blocked(&self) -> bool {
        self.is_blocked || self.end_waits
    }

    /// Ends the first one's input.
    pub(super) fn end_input(&mut self) {
        match &mut self.carrier {
            Carrier::Pipes(pipes) => pipes.end_input(),
            Carrier::Shared(lane) if !self.end_told => self.end_waits = !lane.end().unwrap_or(true),
            Carrier::Shared(_) => {}
        }
        self.end_told = true;
    }

    /// Whether that was ended.
    pub(super) fn was_told_end(&self) -> bool {
        self.end_told
    }

    /// Bytes that the first one was handed and has not read.
    pub(super) fn unread(&mut self) -> u64 {
        match &mut self.carrier {
            Carrier::Pipes(pipes) => pipes.unread(),
            Carrier::Shared(lane) => {
                let (bytes, messages) = lane.untaken();
                (bytes + messages * Container::BYTES) as u64
            }
        }
    }

    /// The first stage that does not read what it is told.
    pub(super) fn deaf(&self) -> Option<usize> {
        self.members.iter().position(|member| !member.listens())
    }

    /// On shared memory: at most so many messages on their way.
    pub(super) fn set_window(&mut self, messages: usize) {
        if let Carrier::Shared(lane) = &mut self.carrier {
            lane.window = messages;
        }
    }

    /// On shared memory: slots of the host's region that the stages have.
    pub(super) fn slots_out(&mut self) -> Option<usize> {
        match &mut self.carrier {
            Carrier::Pipes(_) => None,
            Carrier::Shared(lane) => Some(lane.out()),
        }
    }

    /// On shared memory: a slot to make a body in.
    pub(super) fn lease(&mut self) -> Option<Lease> {
        match &mut self.carrier {
            Carrier::Pipes(_) => None,
            Carrier::Shared(lane) => lane.lease(),
        }
    }

    /// Before the host waits, with so many messages unfinished: whether there is something to take after all.
    pub(super) fn go_to_sleep(&mut self, unfinished: usize, now: impl Fn() -> Time + Copy) -> bool {
        self.is_awaited = true;
        let Child { carrier: Carrier::Shared(lane), together, members, .. } = self else { return false };
        let is_alone = unfinished == 1;
        let pays = together.always_pays();
        if is_alone && together.would(true, members) && (pays || lane.is_about_to_look(now)) {
            together.keep(true, members);
        }
        let has_come = lane.go_to_sleep(unfinished > 0, now);
        if !is_alone && unfinished > 0 || !pays && !lane.looking_pays() {
            together.keep(false, members);
        }
        has_come
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if let Carrier::Shared(lane) = &self.carrier {
            self.set.remove(lane.bell());
        }
    }
}

fn event(stage: usize, said: Said) -> Event {
    match said {
        Said::Frame(at, frame) => Event::Frame(stage, at, frame),
        Said::Line(line) => Event::Line(stage, line),
    }
}

/// Takes what came back; whether there was anything.
fn take_given(lane: &mut Lane, take: &mut impl FnMut(Event) -> Result<(), Rubbish>) -> Result<bool, Rubbish> {
    for taken in 0..TAKEN_MAX {
        match lane.pop().map_err(|Broken(what)| Rubbish(what))? {
            None => return Ok(taken > 0),
            Some(Given::Back(number)) => {
                take(Event::Back(number))?;
                if !lane.is_owed() {
                    return Ok(true);
                }
            }
            Some(Given::End) => {}
            Some(Given::Covers(covers)) => take(Event::Covers(covers))?,
            Some(Given::Message(message, covers)) => {
                take(Event::Output(message))?;
                if covers > 0 {
                    take(Event::Covers(covers))?;
                }
            }
        }
    }
    Ok(true)
}

/// Hands over what there is room for; whether that was everything.
fn give(lane: &mut Lane, ledger: &mut Ledger, is_cautious: bool) -> Result<bool, Broken> {
    while let Some((created, body, has_gap)) = ledger.next_whole() {
        if is_cautious && !lane.is_quiet() || !lane.push(created, body, has_gap)? {
            return Ok(false);
        }
        ledger.hand_over_whole();
    }
    Ok(true)
}

const _: () = assert!(BELL < NAMES);
