//! Outboard's own links, driven as a path drives them: modules as processes, and a thread that waits for them.

use crate::Failure;
use contract::{Body, Half, Input, Link, Message, Outbox, Port, Readiness, Time};
use links::process::{Limits, Module, Process, SharedRun};
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::time::Duration;
use sys::poller::Poller;
use wire::{MODULE_VERSION, ModuleFrame};

/// Longest wait for a message.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn now() -> Time {
    Time(sys::clock::boot_ns())
}

/// A stage that passes each message on, unread.
pub(crate) const PASSING: &str = "null";
/// One that is handed each message, and lets go of it as it is: it loses, repeats and corrupts none of them.
pub(crate) const HANDLING: &str = "fault";

/// The source half of a pair, at a place in a run or in a chain of pipes.
fn module(pair: &str, place: Option<usize>, is_realtime: bool) -> Result<Module, Failure> {
    let mut words: Vec<OsString> = vec![crate::program()?.into()];
    words.extend(["module", pair, "--fd-control", "3"].map(OsString::from));
    match place {
        Some(place) => words.extend(["--place".into(), place.to_string().into()]),
        None => words.push("--chain".into()),
    }
    if is_realtime {
        words.push("--realtime".into());
    }
    let (version, role, format) = (MODULE_VERSION, "source".into(), "bytes".into());
    let hello = ModuleFrame::Hello { version, role, format, options: Vec::new() };
    Ok(Module {
        words,
        environment: None,
        half: Half::Source,
        greeting: vec![hello],
        is_own: true,
        is_chained: place.is_none(),
        has_history: false,
        patience: Duration::from_secs(5),
        limits: Limits::default(),
    })
}

/// Stages behind links, one behind the other.
pub(crate) struct Stages {
    pub(crate) links: Vec<Process>,
    poller: Poller,
    out: Outbox,
}

impl Stages {
    /// A run of these pairs on shared memory.
    pub(crate) fn shared(pairs: &[&str], setting: SharedRun) -> Result<Stages, Failure> {
        let module = |(index, pair): (usize, &&str)| module(pair, Some(index + 1), setting.is_realtime);
        let modules = pairs.iter().enumerate().map(module).collect::<Result<Vec<_>, _>>()?;
        Stages::new(Process::start_run(modules, setting)?)
    }

    /// A chain of pipes.
    pub(crate) fn pipes(stages: usize) -> Result<Stages, Failure> {
        let modules = (0..stages).map(|_| module(PASSING, None, false)).collect::<Result<Vec<_>, _>>()?;
        Stages::new(Process::start_chain(modules)?)
    }

    fn new(links: Vec<Process>) -> Result<Stages, Failure> {
        Ok(Stages { links, poller: Poller::new()?, out: Outbox::default() })
    }

    /// A body of so many bytes, made in shared memory where there is such.
    pub(crate) fn body(&self, size: usize) -> Body {
        match self.links[0].lease() {
            Some(mut lease) if size <= lease.len() => {
                lease[..size].fill(7);
                Body::from(lease.freeze(size))
            }
            _ => Body::from(vec![7; size]),
        }
    }

    /// Whether another message may be handed over.
    pub(crate) fn has_room(&self) -> bool {
        self.links[0].has_room()
    }

    /// Hands a message to the first.
    pub(crate) fn hand(&mut self, message: Message) -> Result<(), Failure> {
        self.hand_at(now(), message)
    }

    #[inline]
    fn hand_at(&mut self, now: Time, message: Message) -> Result<(), Failure> {
        self.links[0].hand(Input::Message(Port::MAIN, message), now, &mut self.out)?;
        self.go_on(1)
    }

    /// The flow ends.
    pub(crate) fn end(&mut self) -> Result<(), Failure> {
        self.links[0].hand(Input::End(Port::MAIN), now(), &mut self.out)?;
        self.go_on(1)
    }

    /// Hands what came out to the stage `next`, or lets it be taken behind the last.
    #[inline]
    fn go_on(&mut self, next: usize) -> Result<(), Failure> {
        if next < self.links.len() {
            while let Some((_, message)) = self.out.messages.pop_front() {
                let mut made = Outbox::default();
                self.links[next].hand(Input::Message(Port::MAIN, message), now(), &mut made)?;
                self.out.drops.append(&mut made.drops);
            }
        }
        Ok(())
    }

    /// Fetches what the stages made; gives what left the last.
    pub(crate) fn collect(&mut self) -> Result<&mut Outbox, Failure> {
        self.collect_at(now())
    }

    #[inline]
    fn collect_at(&mut self, now: Time) -> Result<&mut Outbox, Failure> {
        for index in 0..self.links.len() {
            self.links[index].collect(now, &mut self.out)?;
            self.go_on(index + 1)?;
        }
        Ok(&mut self.out)
    }

    /// Waits as a path does; whether it slept.
    #[inline]
    pub(crate) fn wait(&mut self) -> Result<bool, Failure> {
        let mut at: Option<Time> = None;
        for link in &self.links {
            let Readiness { now, descriptors, .. } = link.readiness();
            if now {
                return Ok(false);
            }
            for (descriptor, _) in descriptors.into_iter().flatten() {
                self.poller.want(descriptor.as_fd(), true, false);
            }
            at = at.into_iter().chain(link.poll_timeout()).min();
        }
        let wait = at.map_or(PATIENCE, |at| at.since(now()).min(PATIENCE));
        self.poller.wait(Some(wait))?;
        Ok(true)
    }

    /// One message through all stages, that comes now. As a path, it reads its clock once a turn: while the message is on
    /// its way, or when it has slept meanwhile.
    #[inline]
    pub(crate) fn pass(&mut self, begun: Time, message: Message) -> Result<Message, Failure> {
        self.hand_at(begun, message)?;
        loop {
            let mut at = now();
            if self.wait()? {
                at = now();
            }
            if let Some((_, message)) = self.collect_at(at)?.messages.pop_front() {
                return Ok(message);
            }
            if at > begun.after(PATIENCE) {
                let told: Vec<_> = self.links.iter_mut().flat_map(Link::incidents).collect();
                return Err(format!("nothing came back: {}", told.join("; ")).into());
            }
        }
    }
}
