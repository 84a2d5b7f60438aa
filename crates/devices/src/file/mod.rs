//! `file:PATH`: a file or a FIFO, as a source and as a sink.

#[cfg(test)]
pub(crate) mod tests;

use crate::plain::{self, os};
use crate::stream::{Channel, FRAME_OPTION, Framing, MAX_OPTION, StreamPartner, StreamReader, StreamWriter};
use contract::{
    Description, DeviceClass, DeviceError, DeviceSpec, FlowOffer, ModuleEntry, NodeName, Opened, OptionKind,
    OptionSpec, Partner, Role, local,
};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::path::Path;

/// The class `file`.
#[derive(Debug)]
pub struct File;

const OPTIONS: &[OptionSpec] = &[
    FRAME_OPTION,
    local(
        "append",
        OptionKind::Flag,
        "false",
        "as an application: append to the file instead of truncating it",
    ),
    MAX_OPTION,
];

/// Opens a file or a FIFO: for reading as a device, for writing as an application. A recording, which a side port creates,
/// is readable by its user only. It opens before the device does, and again for a retry and an upgrade: nothing in it is
/// overwritten.
pub(crate) fn open(
    path: &str,
    role: Role,
    append: bool,
    like: Option<&Description>,
) -> Result<OwnedFd, DeviceError> {
    let flags = OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let descriptor = match role {
        Role::Device => rustix::fs::open(path, flags | OFlags::RDONLY, Mode::empty()),
        Role::Application => {
            let is_recording = like.is_some_and(|like| like.class == Description::SIDE_PORT);
            let end = if append || is_recording { OFlags::APPEND } else { OFlags::TRUNC };
            let flags = flags | OFlags::CREATE | end;
            let mode = Mode::from_raw_mode(if is_recording { 0o600 } else { 0o666 });
            match rustix::fs::open(path, flags | OFlags::WRONLY, mode) {
                // A FIFO without a reader. Opened for both, it accepts data before a reader comes.
                Err(Errno::NXIO) => rustix::fs::open(path, flags | OFlags::RDWR, Mode::empty()),
                other => other,
            }
        }
    };
    descriptor.map_err(|error| {
        let advice = (error == Errno::NOENT).then(|| missing(path, role)).flatten();
        os(format!("opening {path}"), error, advice.as_deref())
    })
}

/// Returns the reason why a path names nothing, if it can be seen in the path.
fn missing(path: &str, role: Role) -> Option<String> {
    if path == "~" || path.starts_with("~/") {
        let rest = &path[1..];
        return Some(format!(
            "`~` is not expanded behind the colon: write $HOME{rest} in a shell, and the whole path in a run file"
        ));
    }
    let directory = Path::new(path).parent().filter(|directory| !directory.as_os_str().is_empty())?;
    let is_missing = role == Role::Application && !directory.exists();
    is_missing.then(|| format!("the directory {} does not exist", directory.display()))
}

impl DeviceClass for File {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry {
            name: "file",
            summary: "a file or a FIFO: read to its end as a device, written as an application",
            doc: include_str!("doc.md"),
            options: OPTIONS,
        }
    }

    fn target(&self) -> &'static str {
        "PATH"
    }

    fn flows(&self, spec: &DeviceSpec) -> Result<Vec<FlowOffer>, DeviceError> {
        Framing::of(spec)?;
        Ok(plain::forward_flow())
    }

    fn nodes(&self, spec: &DeviceSpec) -> Vec<NodeName> {
        match spec.options.flag("append") {
            true => vec![NodeName::Appended(spec.target.clone().into())],
            false => plain::file_nodes(&spec.target),
        }
    }

    fn open(&self, spec: &DeviceSpec, role: Role, like: Option<&Description>) -> Result<Opened, DeviceError> {
        let flows = self.flows(spec)?;
        let descriptor = open(&spec.target, role, spec.options.flag("append"), like)?;
        let description = plain::description(spec, flows, "stdout");
        Ok(Opened { spec: spec.clone(), role, description, descriptors: vec![descriptor] })
    }

    fn partner(&self, opened: Opened) -> Result<Box<dyn Partner>, DeviceError> {
        let framing = Framing::of(&opened.spec)?;
        let (path, role) = (opened.spec.target.clone(), opened.role);
        let [descriptor] = plain::descriptors(opened)?;
        let channel =
            Channel::own(descriptor).map_err(|error| os(format!("preparing {path}"), error, None))?;
        Ok(Box::new(match role {
            Role::Device => StreamPartner::new(Some(StreamReader::new(path, channel, framing)), None),
            Role::Application => StreamPartner::new(None, Some(StreamWriter::new(path, channel, framing))),
        }))
    }
}
