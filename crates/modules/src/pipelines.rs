//! The pipelines that one host requests for a driver.

use crate::registry;
use contract::{FlowDirection, FlowOffer, Secret};
use pipeline::{NamedOutlet, Origin, Pipeline};

/// The pipelines that one host requests for a driver.
#[derive(Debug, Clone, Default)]
pub struct Pipelines {
    /// Device to application.
    pub via: Option<Pipeline>,
    /// Application to device.
    pub via_back: Option<Pipeline>,
    /// Device to application; any other pipeline is rejected.
    pub require: Option<Pipeline>,
    /// Key from a key file. The other host must have the same key.
    pub key: Option<Secret>,
    /// Outlets of the side ports on this host.
    pub outlets: Vec<NamedOutlet>,
}

impl Pipelines {
    /// Parses the pipelines that the user of this host wrote.
    pub fn parse(
        via: Option<&str>,
        via_back: Option<&str>,
        require: Option<&str>,
    ) -> Result<Pipelines, String> {
        let read = |text: Option<&str>| {
            let parse = |text| Pipeline::parse(text, registry::pairs(), Origin::Local);
            text.map(parse).transpose().map_err(|error| error.to_string())
        };
        Ok(Pipelines {
            via: read(via)?,
            via_back: read(via_back)?,
            require: read(require)?,
            ..Pipelines::default()
        })
    }

    /// Fills in the pipeline that the device class recommends, for each of these flows that has none.
    pub fn or_recommended(mut self, class: &str, flows: &[FlowOffer]) -> Result<Pipelines, String> {
        let Some(class) = registry::device_class(class) else { return Ok(self) };
        for flow in flows {
            let own = match flow.direction {
                FlowDirection::DeviceToApplication if self.require.is_some() => continue,
                FlowDirection::DeviceToApplication => &mut self.via,
                FlowDirection::ApplicationToDevice => &mut self.via_back,
            };
            let recommended = class.pipeline(flow.direction);
            if own.is_none() && !recommended.is_empty() {
                let parsed = Pipeline::parse(recommended, registry::pairs(), Origin::Local);
                *own = Some(parsed.map_err(|error| error.to_string())?);
            }
        }
        Ok(self)
    }

    /// Checks that each pair accepts its input format in flows of these formats. An error names the two pairs that
    /// do not fit together.
    pub fn check(&self, flows: &[FlowOffer]) -> Result<(), String> {
        for offer in flows {
            let pipeline = match offer.direction {
                FlowDirection::DeviceToApplication => &self.via,
                FlowDirection::ApplicationToDevice => &self.via_back,
            };
            if let Some(pipeline) = pipeline {
                pipeline.check(&offer.format).map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }
}

#[cfg(all(test, feature = "media"))]
mod tests {
    use super::*;
    use contract::{FlowClass, Format};

    #[test]
    fn the_pictures_of_a_camera_are_encoded_by_default() {
        let offer = |direction, format, class| FlowOffer { direction, format, class };
        let flows = [
            offer(FlowDirection::DeviceToApplication, Format::Video, FlowClass::Timely),
            offer(FlowDirection::ApplicationToDevice, Format::Controls, FlowClass::State),
        ];
        let recommended = Pipelines::default().or_recommended("v4l2", &flows).unwrap();
        recommended.check(&flows).unwrap();
        let text =
            |pipeline: &Option<Pipeline>| pipeline.as_ref().map(|pipeline| pipeline.text().to_string());
        assert_eq!((text(&recommended.via), text(&recommended.via_back)), (Some("encode".into()), None));
    }

    #[test]
    fn sound_follows_its_clock_and_its_network_by_default() {
        let offer = |direction| FlowOffer { direction, format: Format::Audio, class: FlowClass::Timely };
        let flows = [FlowDirection::DeviceToApplication, FlowDirection::ApplicationToDevice].map(offer);
        let recommended = Pipelines::default().or_recommended("audio", &flows).unwrap();
        recommended.check(&flows).unwrap();
        for pipeline in [recommended.via, recommended.via_back] {
            let text = pipeline.unwrap().text().to_string();
            assert_eq!(text, "resample | buffer(play, delay=auto) | opus(when=needed)");
        }
    }
}
