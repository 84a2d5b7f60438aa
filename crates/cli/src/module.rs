//! `module`: runs one module as a process.

use crate::arguments::Module;
use crate::output::{Events, Failure};
use crate::services::stop_on_signals;
use contract::ServiceError;
use modules::{CarrierKind, ModuleRequest};
use std::os::fd::AsFd;
use sys::stop::Stop;

/// The first descriptor of a process in a shared-memory chain.
const RUN_DESCRIPTORS: i32 = 4;

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
            Some(number) => CarrierKind::Shared { number: number.into(), first: RUN_DESCRIPTORS },
            None if words.chain => CarrierKind::Chain,
            None => CarrierKind::Pipes,
        };
        return Ok(modules::serve_module(&request, descriptor.as_fd(), carried)?);
    }
    let stop = Stop::new()?;
    stop_on_signals(&stop)?;
    let end = daemon::run_module(&request, &stop).map_err(|error| match error {
        // A shell line may run several modules, so the message names this one.
        ServiceError::Peer(problem) => ServiceError::Peer(format!("{}: {problem}", request.name)),
        other => other,
    })?;
    let events = Events::new(false, false, true);
    for (reason, count) in &end.drops {
        events.emit_result(&(), &format!("{}: {count} dropped ({reason})", request.name));
    }
    if let Some(problem) = &end.refusal {
        events.emit_result(&(), &format!("{}: first refused message: {problem}", request.name));
    }
    ServiceError::check_losses(&end.losses)
        .map_err(|lost| Failure::Failed(format!("{}: {lost}", request.name)))
}
