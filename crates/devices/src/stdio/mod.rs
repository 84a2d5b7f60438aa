//! `stdin` and `stdout`: the program's standard streams.

#[cfg(test)]
mod tests;

use crate::plain::{self, os};
use crate::stream::{
    Channel, FRAME_OPTION, Framing, MAX_OPTION, StreamPartner, StreamReader, StreamWriter, reopen,
};
use contract::{
    Description, DeviceClass, DeviceError, DeviceSpec, FlowOffer, ModuleEntry, Opened, OptionKind,
    OptionSpec, Partner, Role, local,
};
use std::os::fd::{BorrowedFd, OwnedFd};

/// The class `stdin`.
#[derive(Debug)]
pub struct Stdin;

/// The class `stdout`.
#[derive(Debug)]
pub struct Stdout;

const OPTIONS: &[OptionSpec] = &[FRAME_OPTION, MAX_OPTION];

const RAW: &str = "raw";

const STDOUT_OPTIONS: &[OptionSpec] = &[
    FRAME_OPTION,
    MAX_OPTION,
    local(RAW, OptionKind::Flag, "false", "write control characters to a terminal, too"),
];

/// Properties of a standard output that is a terminal and gets no control characters. A locked worker cannot ask the
/// terminal.
const FILTERED: &[u8] = b"filtered";

/// Duplicates a standard stream. A terminal is reopened, so that its file flags are not shared with the shell.
pub(crate) fn duplicate(stream: BorrowedFd<'_>, class: &str) -> Result<OwnedFd, DeviceError> {
    if rustix::termios::isatty(stream)
        && let Ok(own) = reopen(stream)
    {
        return Ok(own);
    }
    rustix::io::fcntl_dupfd_cloexec(stream, 3)
        .map_err(|error| os(format!("opening {class}"), error, Some("it is closed")))
}

fn flows(spec: &DeviceSpec) -> Result<Vec<FlowOffer>, DeviceError> {
    Framing::of(spec)?;
    Ok(plain::forward_flow())
}

fn open(spec: &DeviceSpec, role: Role, stream: BorrowedFd<'_>) -> Result<Opened, DeviceError> {
    let flows = flows(spec)?;
    let descriptor = duplicate(stream, &spec.class)?;
    let description = plain::description(spec, flows, "stdout");
    Ok(Opened { spec: spec.clone(), role, description, descriptors: vec![descriptor] })
}

fn channel(opened: Opened) -> Result<Channel, DeviceError> {
    let operation = format!("preparing {}", opened.spec.class);
    let [descriptor] = plain::descriptors(opened)?;
    Channel::shared(descriptor).map_err(|error| os(operation, error, None))
}

impl DeviceClass for Stdin {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry {
            name: "stdin",
            summary: "standard input, as a device",
            doc: include_str!("doc.md"),
            options: OPTIONS,
        }
    }

    fn target(&self) -> &'static str {
        ""
    }

    fn has_role(&self, role: Role) -> bool {
        role == Role::Device
    }

    fn flows(&self, spec: &DeviceSpec) -> Result<Vec<FlowOffer>, DeviceError> {
        flows(spec)
    }

    fn open(&self, spec: &DeviceSpec, role: Role, _: Option<&Description>) -> Result<Opened, DeviceError> {
        open(spec, role, rustix::stdio::stdin())
    }

    fn partner(&self, opened: Opened) -> Result<Box<dyn Partner>, DeviceError> {
        let framing = Framing::of(&opened.spec)?;
        let outlet = StreamReader::new("standard input", channel(opened)?, framing);
        Ok(Box::new(StreamPartner::new(Some(outlet), None)))
    }
}

impl DeviceClass for Stdout {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry {
            name: "stdout",
            summary: "standard output, as an application",
            doc: include_str!("doc.md"),
            options: STDOUT_OPTIONS,
        }
    }

    fn target(&self) -> &'static str {
        ""
    }

    fn has_role(&self, role: Role) -> bool {
        role == Role::Application
    }

    fn open(&self, spec: &DeviceSpec, role: Role, _: Option<&Description>) -> Result<Opened, DeviceError> {
        let stdout = rustix::stdio::stdout();
        let mut opened = open(spec, role, stdout)?;
        if rustix::termios::isatty(stdout) && !spec.options.flag(RAW) {
            opened.description.properties = FILTERED.into();
        }
        Ok(opened)
    }

    fn partner(&self, opened: Opened) -> Result<Box<dyn Partner>, DeviceError> {
        let framing = Framing::of(&opened.spec)?;
        let is_filtered = opened.description.properties == FILTERED;
        let mut inlet = StreamWriter::new("standard output", channel(opened)?, framing);
        if is_filtered {
            inlet = inlet.without_control_characters();
        }
        Ok(Box::new(StreamPartner::new(None, Some(inlet))))
    }
}
