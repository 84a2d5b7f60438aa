//! `mjpeg:PATH`: a stream of JPEG images.

mod reader;
mod scan;
#[cfg(test)]
mod tests;
mod writer;

use crate::stream::{Channel, StreamPartner};
use crate::{plain, y4m};
use contract::{
    Description, DeviceClass, DeviceError, DeviceSpec, FlowOffer, Format, ModuleEntry, NodeName, Opened,
    OptionKind, OptionSpec, Partner, Role, local,
};
use reader::Reader;
use writer::Writer;

/// The device class `mjpeg`.
#[derive(Debug)]
pub struct Mjpeg;

const OPTIONS: &[OptionSpec] = &[
    local(
        "rate",
        OptionKind::OrAuto(&OptionKind::Number { min: 0.0, max: 10_000.0 }),
        "auto",
        "as a device: images per second; auto: 25 of a file, and those of a pipe as they arrive; 0: as fast as the path takes them",
    ),
    y4m::LOOP_OPTION,
    local(
        "max",
        OptionKind::Size { min: 1 << 10, max: 60 << 20 },
        "16MiB",
        "as a device: most bytes of an image",
    ),
];

impl DeviceClass for Mjpeg {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry {
            name: "mjpeg",
            summary: "a stream of JPEG images in a file, a FIFO or a pipe, as cameras write them",
            doc: include_str!("doc.md"),
            options: OPTIONS,
        }
    }

    fn target(&self) -> &'static str {
        "[PATH]"
    }

    fn application(&self) -> &'static str {
        "mjpeg"
    }

    fn takes(&self) -> Option<Format> {
        Some(Format::Video)
    }

    fn flows(&self, _spec: &DeviceSpec) -> Result<Vec<FlowOffer>, DeviceError> {
        Ok(plain::video_flow())
    }

    fn nodes(&self, spec: &DeviceSpec) -> Vec<NodeName> {
        plain::file_nodes(y4m::path(spec))
    }

    fn open(&self, spec: &DeviceSpec, role: Role, like: Option<&Description>) -> Result<Opened, DeviceError> {
        let descriptor = y4m::open_film(spec, role, like)?;
        let description = plain::description(spec, self.flows(spec)?, self.application());
        Ok(Opened { spec: spec.clone(), role, description, descriptors: vec![descriptor] })
    }

    fn partner(&self, opened: Opened) -> Result<Box<dyn Partner>, DeviceError> {
        let (role, spec) = (opened.role, opened.spec.clone());
        let (name, channel): (String, Channel) = y4m::film_channel(opened)?;
        let rate_hz = (!spec.options.is_auto("rate")).then(|| spec.options.number("rate"));
        let (loops, max) = (spec.options.flag("loop"), spec.options.size("max"));
        let (reader, writer) = match role {
            Role::Device => (Some(Reader::new(name, channel, rate_hz, loops, max)), None),
            Role::Application => (None, Some(Writer::new(name, channel))),
        };
        Ok(Box::new(StreamPartner::of(Format::Video, reader, writer)))
    }
}
