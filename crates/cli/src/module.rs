//! `module`: one module as a process.

use crate::arguments::Module;
use crate::output::{Events, Failure};
use crate::services::stop_on_signals;
use runtime::{Carried, ModuleRequest, RuntimeError, Stop};
use std::os::fd::AsFd;
use std::time::Duration;

/// The first descriptor of a place in a run.
const RUN_DESCRIPTORS: i32 = 4;
/// Who has real-time priority may keep a processor from everybody else so long.
const LONGEST_RUN: Duration = Duration::from_millis(500);

/// `outboard module`.
pub(crate) fn module(words: Module) -> Result<(), Failure> {
    let request = ModuleRequest {
        name: words.name,
        options: words.options,
        read: words.read,
        write: words.write,
        control: words.control,
        undo: words.undo,
        format: words.format,
        like: words.like,
        key_file: words.key_file,
        listen: words.listen,
        insecure: words.insecure,
    };
    if let Some(number) = words.fd_control {
        let missing = |error| Failure::Usage(format!("--fd-control {number}: {error}"));
        let descriptor = sys::descriptor::inherited(number).map_err(missing)?;
        let carried = match words.place {
            Some(number) => Carried::Shared { number: number.into(), first: RUN_DESCRIPTORS },
            None if words.chain => Carried::Chain,
            None => Carried::Pipes,
        };
        if words.realtime
            && let Err(error) = sys::thread::be_realtime(LONGEST_RUN)
        {
            eprintln!("no real-time priority: {error}: `outboard doctor` says what to do");
        }
        return Ok(runtime::serve_module(&request, descriptor.as_fd(), carried)?);
    }
    let stop = Stop::new()?;
    stop_on_signals(&stop)?;
    let end = runtime::run_module(&request, &stop).map_err(|error| match error {
        // Several of these make up a shell line: which one spoke must be told.
        RuntimeError::Peer(problem) => RuntimeError::Peer(format!("{}: {problem}", request.name)),
        other => other,
    })?;
    let events = Events::new(false, false, true);
    for (reason, count) in &end.drops {
        events.tell_result(&(), &format!("{}: {count} dropped ({reason})", request.name));
    }
    if let Some(problem) = &end.refusal {
        events.tell_result(&(), &format!("{}: the first that was refused: {problem}", request.name));
    }
    Ok(())
}
