//! Processes of modules that a test moves by a virtual clock. They have the pipes and sockets of real ones.

use super::launch::Started;
use super::member::Start;
use contract::Time;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::pipe::{PipeFlags, pipe_with};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::{Arc, Weak};
use std::time::Duration;
use wire::module::{MODULE_HEADER_BYTES, MODULE_VERSION, ModuleHeader};
use wire::{Container, ModuleFrame, Word};

/// Bytes of each message, with its header: the message is its number.
const MESSAGE_BYTES: usize = Container::BYTES + 8;
/// Time between an error report and the exit.
const EXIT_DELAY: Duration = Duration::from_millis(3);

/// Effect of a message that the module cannot process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Poison {
    /// The module reports an error, prints it, and exits with status 1.
    Exception,
    /// It reports an error and does not exit.
    Stuck,
    Signal(i32),
    /// It does nothing more.
    Hang,
    /// It writes bytes that are no container.
    Rubbish,
    /// It exits with status 0.
    Exit,
}

/// Behaviour of a module.
#[derive(Debug, Clone, Default)]
pub(super) struct Behaviour {
    /// It is in a chain of pipes.
    pub(super) has_words: bool,
    /// It reports `done`, and reads control frames.
    pub(super) reports_done: bool,
    /// Most messages that it reads at once; it writes their outputs together.
    pub(super) batch: usize,
    /// It holds messages until there are so many, or a flush, or the end.
    pub(super) hold: usize,
    /// It ignores a flush.
    pub(super) is_deaf: bool,
    /// Time until it reads anything, and time for a message.
    pub(super) start: Duration,
    pub(super) work: Duration,
    /// Messages that it cannot process.
    pub(super) poison: BTreeMap<u64, Poison>,
}

thread_local! {
    /// Behaviours of the modules by the first word of their command, and the started processes.
    static MODELS: RefCell<Option<Models>> = const { RefCell::new(None) };
}

/// The modules that this thread starts.
#[derive(Default)]
struct Models {
    behaviours: Vec<Behaviour>,
    running: Vec<Model>,
    now: Time,
}

/// From now on this thread starts no processes, but models: the words of a command are the index of its behaviour.
pub(super) fn use_models(behaviours: Vec<Behaviour>) {
    MODELS.set(Some(Models { behaviours, ..Models::default() }));
}

fn with_models<T>(act: impl FnOnce(&mut Models) -> T) -> Option<T> {
    MODELS.with_borrow_mut(|models| models.as_mut().map(act))
}

/// Returns true if this thread starts models.
pub(super) fn are_used() -> bool {
    MODELS.with_borrow(Option::is_some)
}

/// Starts a model.
pub(super) fn start(start: Start<'_>, descriptors: Vec<OwnedFd>) -> io::Result<(Started, OwnedFd)> {
    let (errors, theirs) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    let (end, exit) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    let index: usize = start.words[0].to_str().and_then(|word| word.parse().ok()).unwrap();
    let control = descriptors.into_iter().next().unwrap();
    let ends = Ends { input: start.input.unwrap(), output: start.output.unwrap(), control, errors: theirs };
    rustix::io::ioctl_fionbio(&ends.output, true)?;
    let exit = Arc::new(exit);
    with_models(|models| {
        let behaviour = models.behaviours[index].clone();
        models.running.push(Model {
            busy_until: models.now.after(behaviour.start),
            behaviour,
            ends: Some(ends),
            exit: Arc::downgrade(&exit),
            bytes: Vec::new(),
            frames: Vec::new(),
            batch: VecDeque::new(),
            held: Vec::new(),
            unwritten: Vec::new(),
            flush_at: None,
            has_ended: false,
            inputs: 0,
            outputs: 0,
            done: None,
            is_greeted: false,
            is_stuck: false,
            exits: None,
        });
    });
    Ok((Started::Model(ModelHandle { end, exit }), errors))
}

/// The handle of the supervisor. Dropping it kills the model.
pub(super) struct ModelHandle {
    end: OwnedFd,
    exit: Arc<OwnedFd>,
}

impl ModelHandle {
    pub(super) fn end(&self) -> BorrowedFd<'_> {
        self.end.as_fd()
    }

    pub(super) fn kill(&self) {
        let _ = rustix::io::write(&*self.exit, &9i32.to_le_bytes());
    }

    pub(super) fn reap(&mut self) -> Option<ExitStatus> {
        let mut status = [0; 4];
        let count = rustix::io::read(&self.end, &mut status[..]).ok()?;
        (count == status.len()).then(|| ExitStatus::from_raw(i32::from_le_bytes(status)))
    }
}

/// Moves all models that can move now. Returns true if one did.
pub(super) fn step(now: Time) -> bool {
    with_models(|models| {
        models.now = now;
        models.running.retain(|model| model.ends.is_some() && model.exit.strong_count() > 0);
        models.running.iter_mut().fold(false, |moved, model| model.step(now) | moved)
    })
    .unwrap_or(false)
}

/// Returns the time of the next event in a model.
pub(super) fn next_at(now: Time) -> Option<Time> {
    with_models(|models| models.running.iter().filter_map(|model| model.next_at(now)).min()).flatten()
}

/// Kills a running model from outside.
pub(super) fn kill_one(index: usize) {
    with_models(|models| {
        let mut alive =
            models.running.iter_mut().filter(|model| model.ends.is_some() && model.exits.is_none());
        if let Some(model) = alive.nth(index) {
            model.exit(9);
        }
    });
}

/// Descriptors of a module.
struct Ends {
    input: OwnedFd,
    output: OwnedFd,
    control: OwnedFd,
    errors: OwnedFd,
}

/// An item of the input.
#[derive(Debug, Clone, Copy)]
enum Item {
    Message(u64),
    Complete(u64),
}

struct Model {
    behaviour: Behaviour,
    /// `None`: it has exited.
    ends: Option<Ends>,
    exit: Weak<OwnedFd>,
    bytes: Vec<u8>,
    frames: Vec<u8>,
    batch: VecDeque<Item>,
    held: Vec<Item>,
    unwritten: Vec<u8>,
    /// A flush after so many inputs.
    flush_at: Option<u64>,
    has_ended: bool,
    inputs: u64,
    outputs: u64,
    done: Option<(u64, u64)>,
    busy_until: Time,
    is_greeted: bool,
    is_stuck: bool,
    exits: Option<(Time, i32)>,
}

impl Model {
    fn next_at(&self, now: Time) -> Option<Time> {
        let exits = self.exits.map(|(at, _)| at);
        let busy = (!self.is_stuck && self.exits.is_none()).then_some(self.busy_until);
        exits.or(busy).filter(|at| *at > now && self.ends.is_some())
    }

    fn exit(&mut self, status: i32) {
        self.ends = None;
        if let Some(exit) = self.exit.upgrade() {
            let _ = rustix::io::write(&*exit, &status.to_le_bytes());
        }
    }

    fn step(&mut self, now: Time) -> bool {
        if let Some((at, status)) = self.exits {
            if now >= at {
                self.exit(status);
            }
            return now >= at;
        }
        if self.is_stuck || now < self.busy_until || self.ends.is_none() {
            return false;
        }
        if !std::mem::replace(&mut self.is_greeted, true) && self.behaviour.reports_done {
            let options = vec![("done".into(), "true".into())];
            let (role, format) = ("source".into(), "bytes".into());
            self.say(&ModuleFrame::Hello { version: MODULE_VERSION, role, format, options });
            self.report_done();
            return true;
        }
        match self.batch.pop_front() {
            Some(item) => self.take(item, now),
            None if self.receive() => self.busy_until = now.after(self.behaviour.work),
            None if self.flush_at.is_some_and(|at| at <= self.inputs) => {
                self.flush_at = None;
                self.release_held(now);
                self.finish_batch(now);
            }
            None if self.has_ended => {
                self.release_held(now);
                self.finish_batch(now);
                if self.exits.is_none() && !self.is_stuck {
                    self.exit(0);
                }
            }
            None => return false,
        }
        true
    }

    /// Handles an item; after the last one of the batch, writes all outputs.
    fn take(&mut self, item: Item, now: Time) {
        self.held.push(item);
        self.inputs += u64::from(matches!(item, Item::Message(_)));
        let messages = self.held.iter().filter(|item| matches!(item, Item::Message(_))).count();
        // A word that completes a held message is held with it.
        let is_held = messages > 0 && messages < self.behaviour.hold;
        if !is_held {
            self.release_held(now);
        }
        match self.batch.front() {
            Some(_) => self.busy_until = now.after(self.behaviour.work),
            None => self.finish_batch(now),
        }
    }

    /// Processes the held messages.
    fn release_held(&mut self, now: Time) {
        for item in std::mem::take(&mut self.held) {
            if self.exits.is_some() || self.is_stuck || self.ends.is_none() {
                return;
            }
            match item {
                Item::Complete(messages) => self.unwritten.extend(Word::Complete(messages).emit()),
                Item::Message(value) => self.process(value, now),
            }
        }
    }

    fn process(&mut self, value: u64, now: Time) {
        let problem = format!("ValueError: bad line {value}");
        match self.behaviour.poison.get(&value) {
            None => self.put(value),
            Some(Poison::Rubbish) => {
                self.unwritten.extend([0xfd; 8]);
                self.put(value);
            }
            Some(Poison::Signal(signal)) => self.exit(*signal),
            Some(Poison::Exit) => self.exit(0),
            Some(Poison::Hang) => self.is_stuck = true,
            Some(Poison::Stuck) => {
                self.say(&ModuleFrame::Error(problem));
                self.is_stuck = true;
            }
            Some(Poison::Exception) => {
                if self.behaviour.reports_done {
                    self.say(&ModuleFrame::Error(problem.clone()));
                }
                if let Some(ends) = &self.ends {
                    let text = format!("Traceback:\n  a line\n{problem}");
                    let _ = rustix::io::write(&ends.errors, text.as_bytes());
                }
                self.exits = Some((now.after(EXIT_DELAY), 1 << 8));
            }
        }
    }

    fn put(&mut self, value: u64) {
        self.unwritten.extend(Container { length: 8, created: value }.emit());
        self.unwritten.extend(value.to_le_bytes());
        self.outputs += 1;
    }

    fn finish_batch(&mut self, _now: Time) {
        if self.exits.is_some() || self.is_stuck {
            return;
        }
        let Some(ends) = &self.ends else { return };
        let bytes = std::mem::take(&mut self.unwritten);
        if !bytes.is_empty() && rustix::io::write(&ends.output, &bytes) != Ok(bytes.len()) {
            // The next process of the chain has ended.
            return self.exit(0);
        }
        if self.held.is_empty() {
            self.report_done();
        }
    }

    fn report_done(&mut self) {
        let (inputs, outputs) = (self.inputs, self.outputs);
        if self.behaviour.reports_done && self.done.replace((inputs, outputs)) != Some((inputs, outputs)) {
            self.say(&ModuleFrame::Done { inputs, outputs });
        }
    }

    fn say(&mut self, frame: &ModuleFrame) {
        if let Some(ends) = &self.ends {
            let _ = send(&ends.control, &frame.emit(self.outputs), SendFlags::NOSIGNAL);
        }
    }

    /// Reads a batch, then control frames. Returns true if there is a batch.
    fn receive(&mut self) -> bool {
        let Some(ends) = &self.ends else { return false };
        let mut chunk = vec![0; self.behaviour.batch * MESSAGE_BYTES];
        let is_readable = || {
            let mut polled = [PollFd::new(&ends.input, PollFlags::IN)];
            poll(&mut polled, Some(&rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(1)
        };
        if !self.has_ended && is_readable() {
            match rustix::io::read(&ends.input, &mut chunk[..]) {
                Ok(0) => self.has_ended = true,
                Ok(count) => self.bytes.extend(&chunk[..count]),
                Err(_) => {}
            }
        }
        if self.behaviour.reports_done || self.behaviour.has_words {
            let mut frames = [0; 4096];
            while let Ok((count @ 1.., _)) = recv(&ends.control, &mut frames[..], RecvFlags::DONTWAIT) {
                self.frames.extend(&frames[..count]);
            }
        }
        self.parse_frames();
        while let Some(header) = self.bytes.first_chunk::<{ Container::BYTES }>() {
            let item = match Word::parse(header) {
                Some(Word::Complete(messages)) => Some(Item::Complete(messages)),
                Some(Word::Gap) => None,
                // Rubbish of the process before this one.
                None if header[..4] != 8u32.to_le_bytes() => {
                    self.exit(1 << 8);
                    return false;
                }
                None if self.bytes.len() < MESSAGE_BYTES => break,
                None => {
                    let value = self.bytes[Container::BYTES..MESSAGE_BYTES].try_into().unwrap();
                    Some(Item::Message(u64::from_le_bytes(value)))
                }
            };
            let length = if let Some(Item::Message(_)) = item { MESSAGE_BYTES } else { Word::BYTES };
            self.bytes.drain(..length);
            self.batch.extend(item);
        }
        !self.batch.is_empty()
    }

    fn parse_frames(&mut self) {
        while let Some(header) = self.frames.get(..MODULE_HEADER_BYTES) {
            let header = ModuleHeader::parse(header).unwrap();
            let length = MODULE_HEADER_BYTES + header.length as usize;
            if self.frames.len() < length {
                return;
            }
            let frame = ModuleFrame::parse(header.kind, &self.frames[MODULE_HEADER_BYTES..length]).unwrap();
            if frame == ModuleFrame::Flush && !self.behaviour.is_deaf {
                self.flush_at = Some(header.at);
            }
            self.frames.drain(..length);
        }
    }
}
