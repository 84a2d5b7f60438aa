//! Outboard's own links, driven as a path drives them: modules as processes, and one thread that waits for them.

use crate::setting::Failure;
use contract::{Half, Input, Link, Message, Outbox, Port, Readiness, Time};
use modules::process::{Limits, Module, Process, SharedRun};
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use sys::poller::Poller;
use wire::module::SHARED_MEMORY;
use wire::{MODULE_VERSION, ModuleFrame};

/// Longest wait for a message.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn now() -> Time {
    Time(sys::clock::boot_ns())
}

/// A pair whose stages pass each message on unread.
pub(crate) const PASSING: &str = "null";
/// A pair whose stages receive each message and return it unchanged: with these options `fault` injects no faults.
pub(crate) const HANDLING: &str = "fault";

/// The source half of a pair as a module: at a position of a shared-memory run, or in a chain of pipes.
fn module(pair: &str, position: Option<usize>) -> Result<Module, Failure> {
    let mut words: Vec<OsString> = vec![crate::programs::beside("outboard")?.into()];
    words.extend(["module", pair, "--fd-control", "3"].map(OsString::from));
    match position {
        Some(position) => words.extend(["--place".into(), position.to_string().into()]),
        None => words.push("--chain".into()),
    }
    let (version, role, format) = (MODULE_VERSION, "source".into(), "bytes".into());
    let hello = ModuleFrame::Hello { version, role, format, options: Vec::new() };
    Ok(Module {
        words,
        environment: None,
        half: Half::Source,
        greeting: vec![hello],
        is_own: true,
        is_chained: position.is_none(),
        has_history: false,
        patience: Duration::from_secs(5),
        limits: Limits::default(),
    })
}

/// Stages in a row, each behind a link.
pub(crate) struct Stages {
    pub(crate) links: Vec<Process>,
    poller: Poller,
    out: Outbox,
}

impl Stages {
    /// Starts a run of these pairs on shared memory.
    pub(crate) fn shared(pairs: &[&str], setting: SharedRun) -> Result<Stages, Failure> {
        let module = |(index, pair): (usize, &&str)| module(pair, Some(index + 1));
        let modules = pairs.iter().enumerate().map(module).collect::<Result<Vec<_>, _>>()?;
        Stages::new(Process::start_run(modules, setting)?)
    }

    /// Starts a chain of passing stages on pipes.
    pub(crate) fn pipes(stages: usize) -> Result<Stages, Failure> {
        let modules = (0..stages).map(|_| module(PASSING, None)).collect::<Result<Vec<_>, _>>()?;
        Stages::new(Process::start_chain(modules)?)
    }

    /// Starts the example `negative` of the SDK for C: on shared memory, or between pipes.
    pub(crate) fn program(shared: Option<SharedRun>) -> Result<Stages, Failure> {
        let sdk = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sdk/c");
        let binary = std::env::temp_dir().join(format!("outboard-negative-{}", std::process::id()));
        let mut compiler = Command::new("cc");
        compiler.args(["-std=c99", "-O2", "-I"]).arg(&sdk).arg(sdk.join("examples/negative.c"));
        if !compiler.arg("-o").arg(&binary).status()?.success() {
            return Err("cc did not build sdk/c/examples/negative.c".into());
        }
        let (version, role, format) = (MODULE_VERSION, "source".into(), "bytes".into());
        let options = shared.iter().map(|_| (SHARED_MEMORY.into(), "true".into())).collect();
        let module = Module {
            words: vec![binary.clone().into()],
            environment: None,
            half: Half::Source,
            greeting: vec![ModuleFrame::Hello { version, role, format, options }],
            is_own: false,
            is_chained: false,
            has_history: false,
            patience: Duration::from_secs(5),
            limits: Limits::default(),
        };
        let links = match shared {
            Some(setting) => Process::start_run(vec![module], setting)?,
            None => vec![Process::start(module)?],
        };
        std::fs::remove_file(binary)?;
        Stages::new(links)
    }

    fn new(links: Vec<Process>) -> Result<Stages, Failure> {
        Ok(Stages { links, poller: Poller::new()?, out: Outbox::default() })
    }

    /// Returns true if the first link accepts another message.
    pub(crate) fn has_room(&self) -> bool {
        self.links[0].has_room()
    }

    /// Passes a message to the first stage.
    pub(crate) fn hand(&mut self, message: Message) -> Result<(), Failure> {
        self.hand_at(now(), message)
    }

    #[inline]
    fn hand_at(&mut self, now: Time, message: Message) -> Result<(), Failure> {
        self.links[0].hand(Input::Message(Port::MAIN, message), now, &mut self.out)?;
        self.pass_on(1)
    }

    /// Ends the flow.
    pub(crate) fn end(&mut self) -> Result<(), Failure> {
        self.links[0].hand(Input::End(Port::MAIN), now(), &mut self.out)?;
        self.pass_on(1)
    }

    /// Passes the output to stage `next`. The last stage's output stays in the outbox.
    #[inline]
    fn pass_on(&mut self, next: usize) -> Result<(), Failure> {
        if next < self.links.len() {
            while let Some((_, message)) = self.out.messages.pop_front() {
                let mut made = Outbox::default();
                self.links[next].hand(Input::Message(Port::MAIN, message), now(), &mut made)?;
                self.out.drops.append(&mut made.drops);
            }
        }
        Ok(())
    }

    /// Collects the output of all stages and returns that of the last.
    pub(crate) fn collect(&mut self) -> Result<&mut Outbox, Failure> {
        self.collect_at(now())
    }

    #[inline]
    fn collect_at(&mut self, now: Time) -> Result<&mut Outbox, Failure> {
        for index in 0..self.links.len() {
            self.links[index].collect(now, &mut self.out)?;
            self.pass_on(index + 1)?;
        }
        Ok(&mut self.out)
    }

    /// Waits as a path does. Returns true if it slept.
    #[inline]
    pub(crate) fn wait(&mut self) -> Result<bool, Failure> {
        let mut at: Option<Time> = None;
        for link in &self.links {
            let Readiness { now, descriptors, .. } = link.readiness();
            if now {
                return Ok(false);
            }
            for (descriptor, _) in descriptors.into_iter().flatten() {
                self.poller.register(descriptor.as_fd(), true, false);
            }
            at = at.into_iter().chain(link.poll_timeout()).min();
        }
        let wait = at.map_or(PATIENCE, |at| at.since(now()).min(PATIENCE));
        self.poller.wait(Some(wait))?;
        Ok(true)
    }

    /// Passes one message, created at `begun`, through all stages. As a path does, it reads the clock once per turn, and
    /// again after a sleep.
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
                let incidents: Vec<_> =
                    self.links.iter_mut().flat_map(Link::incidents).map(|incident| incident.text).collect();
                return Err(format!("nothing came back: {}", incidents.join("; ")).into());
            }
        }
    }
}
