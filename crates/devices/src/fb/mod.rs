//! A framebuffer: a file with the pixels of a screen. It belongs to a graphics card (`/dev/fb0`) or to an X server with
//! a virtual screen (`Xvfb -fbdir`).

mod application;
mod device;
mod layout;
#[cfg(test)]
mod tests;

use crate::plain::{self, os};
use application::ApplicationPartner;
use contract::{
    Description, DeviceClass, DeviceError, DeviceSpec, FlowClass, FlowDirection, FlowOffer, Format,
    FurtherUse, Kind, Listing, ModuleEntry, NodeName, Opened, OptionKind, OptionSpec, Partner, Role, local,
};
use device::DevicePartner;
use layout::{GRAPHICS, Layout};
use rustix::fs::{Mode, OFlags, open};
use std::path::Path;

/// The device class `fb`.
#[derive(Debug)]
pub struct Fb;

static OPTIONS: [OptionSpec; 2] = [
    local(
        "rate",
        OptionKind::Number { min: 0.0, max: 1000.0 },
        "60",
        "comparisons per second; 0: whenever the path takes a picture",
    ),
    local("whole", OptionKind::Flag, "false", "send whole pictures, even if only a part changed"),
];

impl DeviceClass for Fb {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry {
            name: "fb",
            summary: "a framebuffer: a file with the pixels of a screen",
            doc: include_str!("doc.md"),
            options: &OPTIONS,
        }
    }

    fn target(&self) -> &'static str {
        "PATH"
    }

    fn application(&self) -> &'static str {
        "window"
    }

    fn takes(&self) -> Option<Format> {
        Some(Format::Video)
    }

    fn kind(&self, _described: &Description) -> Result<Kind, DeviceError> {
        Ok(Kind::Screen)
    }

    fn pipeline(&self, direction: FlowDirection) -> &'static str {
        plain::screen_pipeline(direction)
    }

    fn subsystem(&self) -> Option<&'static str> {
        Some("graphics")
    }

    fn further_use(&self) -> FurtherUse {
        FurtherUse::Reopened
    }

    fn list(&self) -> Vec<Listing> {
        let listing = |number: u32| {
            let spec = format!("fb:/dev/fb{number}");
            let path = spec.strip_prefix("fb:").filter(|path| Path::new(path).exists())?;
            let problem = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).err();
            let problem = problem.map(|error| format!("{error}: root or the group `video` has access"));
            let name = std::fs::read_to_string(format!("{GRAPHICS}/fb{number}/name")).unwrap_or_default();
            Some(Listing { spec, summary: format!("framebuffer {}", name.trim()), problem, ours: false })
        };
        (0..32).filter_map(listing).collect()
    }

    fn flows(&self, _spec: &DeviceSpec) -> Result<Vec<FlowOffer>, DeviceError> {
        let flows = plain::video_flow().into_iter();
        Ok(flows.map(|flow| FlowOffer { class: FlowClass::State, ..flow }).collect())
    }

    fn nodes(&self, spec: &DeviceSpec) -> Vec<NodeName> {
        vec![NodeName::File(spec.target.clone().into())]
    }

    fn open(&self, spec: &DeviceSpec, role: Role, _: Option<&Description>) -> Result<Opened, DeviceError> {
        let (access, operation) = match role {
            Role::Device => (OFlags::RDONLY, "opening"),
            Role::Application => (OFlags::RDWR, "opening to write"),
        };
        let file = open(&spec.target, access | OFlags::CLOEXEC, Mode::empty()).map_err(|error| {
            let advice = "the file of an X server exists only if the server runs with -fbdir";
            os(format!("{operation} {}", spec.target), error, Some(advice))
        })?;
        let layout = Layout::find(&file, Path::new(&spec.target))
            .map_err(|problem| DeviceError::Spec { what: format!("`{}`", spec.target), problem })?;
        let mut description = plain::description(spec, self.flows(spec)?, "window");
        description.properties = layout.emit();
        Ok(Opened { spec: spec.clone(), role, description, descriptors: vec![file] })
    }

    fn partner(&self, opened: Opened) -> Result<Box<dyn Partner>, DeviceError> {
        let (role, name) = (opened.role, format!("fb:{}", opened.spec.target));
        let (rate_hz, whole) = (opened.spec.options.number("rate"), opened.spec.options.flag("whole"));
        let layout = Layout::parse(&opened.description.properties)
            .map_err(|problem| DeviceError::Spec { what: name.clone(), problem })?;
        let [file] = plain::descriptors(opened)?;
        Ok(match role {
            Role::Device => Box::new(DevicePartner::new(name, file, layout, rate_hz, whole)),
            Role::Application => Box::new(ApplicationPartner::new(name, file, layout)),
        })
    }
}
