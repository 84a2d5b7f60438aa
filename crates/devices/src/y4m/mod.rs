//! `y4m:PATH`: a stream of uncompressed pictures as YUV4MPEG2, which ffmpeg, mpv and many other programs read and
//! write.

mod header;
mod reader;
#[cfg(test)]
mod tests;
mod writer;

use crate::plain::{self, os};
use crate::stream::{Channel, StreamPartner};
use crate::{file, stdio};
use contract::{
    Description, DeviceClass, DeviceError, DeviceSpec, FlowOffer, Format, ModuleEntry, NodeName, Opened,
    OptionKind, OptionSpec, Partner, Role, local,
};
use reader::Reader;
use rustix::fs::FileType;
use std::os::fd::OwnedFd;
use writer::Writer;

/// The device class `y4m`.
#[derive(Debug)]
pub struct Y4m;

/// The requested capacity of a pipe: the most that an unprivileged program may set (`pipe(7)`).
const PIPE_BYTES: usize = 1 << 20;

/// The option `loop` of all classes that read films.
pub(crate) const LOOP_OPTION: OptionSpec =
    local("loop", OptionKind::Flag, "false", "as a device: start again at the end of the file");

const OPTIONS: &[OptionSpec] = &[
    local(
        "rate",
        OptionKind::OrAuto(&OptionKind::Number { min: 0.0, max: 10_000.0 }),
        "auto",
        "as a device: frames per second; auto: the rate of the stream; 0: as fast as the path takes them",
    ),
    LOOP_OPTION,
];

impl DeviceClass for Y4m {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry {
            name: "y4m",
            summary: "a stream of YUV4MPEG2 pictures in a file, a FIFO or a pipe, as ffmpeg and mpv use it",
            doc: include_str!("doc.md"),
            options: OPTIONS,
        }
    }

    fn target(&self) -> &'static str {
        "[PATH]"
    }

    fn application(&self) -> &'static str {
        "y4m"
    }

    fn takes(&self) -> Option<Format> {
        Some(Format::Video)
    }

    fn flows(&self, _spec: &DeviceSpec) -> Result<Vec<FlowOffer>, DeviceError> {
        Ok(plain::video_flow())
    }

    fn nodes(&self, spec: &DeviceSpec) -> Vec<NodeName> {
        plain::file_nodes(path(spec))
    }

    fn open(&self, spec: &DeviceSpec, role: Role, like: Option<&Description>) -> Result<Opened, DeviceError> {
        let descriptor = open_film(spec, role, like)?;
        let description = plain::description(spec, self.flows(spec)?, self.application());
        Ok(Opened { spec: spec.clone(), role, description, descriptors: vec![descriptor] })
    }

    fn partner(&self, opened: Opened) -> Result<Box<dyn Partner>, DeviceError> {
        let (role, spec) = (opened.role, opened.spec.clone());
        let (name, channel) = film_channel(opened)?;
        let rate_hz = (!spec.options.is_auto("rate")).then(|| spec.options.number("rate"));
        let (reader, writer) = match role {
            Role::Device => (Some(Reader::new(name, channel, rate_hz, spec.options.flag("loop"))), None),
            Role::Application => (None, Some(Writer::new(name, channel, !path(&spec).is_empty()))),
        };
        Ok(Box::new(StreamPartner::of(Format::Video, reader, writer)))
    }
}

/// Returns the name of the stream in errors.
fn name(spec: &DeviceSpec, role: Role) -> String {
    match (path(spec), role) {
        ("", Role::Device) => "standard input".into(),
        ("", Role::Application) => "standard output".into(),
        (path, _) => path.into(),
    }
}

/// Opens a film: a file, a FIFO, or standard input or output.
pub(crate) fn open_film(
    spec: &DeviceSpec,
    role: Role,
    like: Option<&Description>,
) -> Result<OwnedFd, DeviceError> {
    let descriptor = match (path(spec), role) {
        ("", Role::Device) => stdio::duplicate(rustix::stdio::stdin(), &spec.class)?,
        ("", Role::Application) if rustix::termios::isatty(rustix::stdio::stdout()) => {
            return Err(DeviceError::Spec {
                what: format!("`{}`", spec.class),
                problem: format!(
                    "standard output is a terminal, which shows no pictures: name a file, `{}:PATH`",
                    spec.class
                ),
            });
        }
        ("", Role::Application) => stdio::duplicate(rustix::stdio::stdout(), &spec.class)?,
        (path, role) => file::open(path, role, false, like)?,
    };
    if role == Role::Device && spec.options.flag("loop") {
        let status = rustix::fs::fstat(&descriptor)
            .map_err(|error| os(format!("opening {}", name(spec, role)), error, None))?;
        if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile {
            return Err(DeviceError::Spec {
                what: format!("`{}:{}`", spec.class, spec.target),
                problem: "only a file can start again: omit `loop`".into(),
            });
        }
    }
    Ok(descriptor)
}

/// Returns the path of a film; empty for standard input or output, which `-` also means.
pub(crate) fn path(spec: &DeviceSpec) -> &str {
    if spec.target == "-" { "" } else { &spec.target }
}

/// Returns the channel of an opened film, and its name in errors.
pub(crate) fn film_channel(opened: Opened) -> Result<(String, Channel), DeviceError> {
    let spec = opened.spec.clone();
    let name = name(&spec, opened.role);
    let [descriptor] = plain::descriptors(opened)?;
    let channel = match path(&spec) {
        "" => Channel::shared(descriptor),
        _ => Channel::own(descriptor),
    };
    let channel = channel.map_err(|error| os(format!("preparing {name}"), error, None))?;
    // A larger pipe holds a whole picture, which saves wakeups. An error is harmless.
    let _ = rustix::pipe::fcntl_setpipe_size(&channel, PIPE_BYTES);
    Ok((name, channel))
}
