//! `outboard module`: runs one module as a process, with containers in and containers out
//! (docs/reference/modules.md).
//!
//! A pair runs in `modules::runner`. A device or a transport is connected to its pipes by a raw path.

mod ends;
mod transport;

use contract::{DeviceClass, FlowClass, FlowDirection, Role, ServiceError};
use ends::Ends;
use flow::nodes::{self, Claimant, Conflict};
use flow::raw_path::{Connection, Held};
use modules::runner::{pipes, reject_options, run_pair};
use modules::{ModuleEnd, ModuleRequest, Pipelines, registry};
use sys::stop::Stop;

/// Runs a module until its data ends or `stop` is raised.
pub fn run_module(request: &ModuleRequest, stop: &Stop) -> Result<ModuleEnd, ServiceError> {
    let name = &request.name;
    if name.contains("://") {
        return run_transport(request, stop);
    }
    if name.contains(':') {
        return run_device(request, stop);
    }
    match registry::pairs().iter().find(|pair| pair.name() == *name) {
        Some(pair) => run_pair(*pair, request, stop),
        None if registry::device_class(name).is_some() => run_device(request, stop),
        None => Err(ServiceError::Usage(format!(
            "there is no pair, device or transport `{name}`; `outboard modules` lists them"
        ))),
    }
}

fn run_device(request: &ModuleRequest, stop: &Stop) -> Result<ModuleEnd, ServiceError> {
    reject_options(
        &request.name,
        &[
            ("--format", request.format.is_some()),
            ("-c", request.control.is_some()),
            ("--key-file", request.key_file.is_some()),
            ("--listen", request.listen),
            ("--insecure", request.insecure),
        ],
    )?;
    let kind = request.name.split(':').next().unwrap_or_default();
    let class = registry::device_class(kind);
    let role = class.map_or(Role::Device, |class| side(class, request));
    let mut text = request.name.clone();
    for option in &request.options {
        let separator = if text.contains(':') { ',' } else { ':' };
        text.push(separator);
        text.push_str(option);
    }
    let spec = registry::device_spec(&text, role)?;
    let like = match &request.like {
        Some(like) => {
            let spec = registry::device_spec(like, Role::Device)?;
            Some(registry::open(&spec, Role::Device, None)?.description)
        }
        None => None,
    };
    let claimant =
        Claimant { service: format!("module {}", request.name), conflict: Conflict::Refuse, yields: true };
    let (opened, claim) = match role {
        Role::Device => (registry::open(&spec, role, like.as_ref())?, None),
        Role::Application => nodes::open(&spec, like.as_ref(), &claimant)?,
    };
    let flows = opened.description.flows.clone();
    let has = |direction| flows.iter().any(|offer| offer.direction == direction);
    let (out, into) = match role {
        Role::Device => (FlowDirection::DeviceToApplication, FlowDirection::ApplicationToDevice),
        Role::Application => (FlowDirection::ApplicationToDevice, FlowDirection::DeviceToApplication),
    };
    // A flow has a pipe if the user names one, or uses the standard stream if it is the main flow of the role.
    let ends = ends(
        request,
        has(into) && (!request.read.is_empty() || role == Role::Application),
        has(out) && (!request.write.is_empty() || role == Role::Device),
    )?;
    let held = vec![Held::of(&opened)?];
    let partner = registry::partner(opened)
        .map_err(|error| ServiceError::Peer(format!("{}: {error}", request.name)))?;
    let pipelines = Pipelines::default();
    let connection = match role {
        Role::Device => Connection::new(partner, Box::new(ends), &flows, &pipelines)?,
        Role::Application => Connection::new(Box::new(ends), partner, &flows, &pipelines)?,
    };
    run_connection(connection.with_held(held).with_claim(claim), stop)
}

/// Returns the role of the device: the only one that the class has, or the one selected by `--undo` or by the pipes.
fn side(class: &dyn DeviceClass, request: &ModuleRequest) -> Role {
    let only_reads = !request.read.is_empty() && request.write.is_empty();
    match (class.has_role(Role::Device), class.has_role(Role::Application)) {
        (true, false) => Role::Device,
        (false, true) => Role::Application,
        _ if request.undo || only_reads => Role::Application,
        _ => Role::Device,
    }
}

fn run_transport(request: &ModuleRequest, stop: &Stop) -> Result<ModuleEnd, ServiceError> {
    reject_options(
        &request.name,
        &[
            ("--format", request.format.is_some()),
            ("-c", request.control.is_some()),
            ("--key-file", request.key_file.is_some()),
            ("--like", request.like.is_some()),
        ],
    )?;
    // Data from the connection is the way back: `--undo`, or `-w` alone.
    let writes = !request.write.is_empty() || (request.undo && request.read.is_empty());
    let reads = !request.read.is_empty() || !writes;
    let ends = ends(request, reads, writes)?;
    let options = request.options.join(",");
    let connected = transport::connect(&request.name, &options, request.listen, request.insecure, stop)?;
    let Some(records) = connected else { return Ok(ModuleEnd::default()) };
    let flows = transport::flows(FlowClass::Reliable);
    let connection = Connection::new(Box::new(records), Box::new(ends), &flows, &Pipelines::default())?;
    run_connection(connection, stop)
}

fn run_connection(connection: Connection, stop: &Stop) -> Result<ModuleEnd, ServiceError> {
    let moved = connection.run(stop)?;
    Ok(ModuleEnd { drops: moved.drops, losses: moved.losses, refusal: None })
}

/// Opens the pipes of a device or a transport: at most one for each direction.
fn ends(request: &ModuleRequest, reads: bool, writes: bool) -> Result<Ends, ServiceError> {
    for (option, paths) in [("-r", &request.read), ("-w", &request.write)] {
        if paths.len() > 1 {
            return Err(ServiceError::Usage(format!("`{}` takes one {option}", request.name)));
        }
    }
    for (option, given, used) in
        [("-r", !request.read.is_empty(), reads), ("-w", !request.write.is_empty(), writes)]
    {
        if given && !used {
            return Err(ServiceError::Usage(format!("`{}` has no flow for {option}", request.name)));
        }
    }
    let reader =
        reads.then(|| request.read.first().map_or_else(pipes::standard_input, |p| pipes::open_reader(p)));
    let writer =
        writes.then(|| request.write.first().map_or_else(pipes::standard_output, |p| pipes::open_writer(p)));
    Ok(Ends::new(reader.transpose()?, writer.transpose()?))
}
