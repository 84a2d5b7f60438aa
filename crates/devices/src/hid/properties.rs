//! The description of a HID device: its names, its ids, its report descriptor, and the feature reports that drivers read at the start.
//!
//! Layout, little-endian: `name`, `phys`, `uniq` (texts), `bus: u16`, `vendor`, `product`, `version` (`u32`), the report descriptor
//! (blob), then `count: u16` and each feature report (blob, its number first).

use super::descriptor::{DESCRIPTOR_BYTES_MAX, Descriptor};
use wire::formats::hid::{REPORT_BYTES_MAX, ReportKind};
use wire::{Reader, WireError, Writer};

/// The longest texts, bytes (`struct uhid_create2_req`, less the final zeros).
pub(super) const NAME_BYTES_MAX: usize = 127;
pub(super) const PLACE_BYTES_MAX: usize = 63;
/// Feature reports of a description, at most, and their length.
const FEATURES_MAX: usize = 16;
const FEATURE_BYTES_MAX: usize = REPORT_BYTES_MAX / 4;

/// Bus, vendor, product and version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Ids {
    /// `BUS_USB`, `BUS_BLUETOOTH` and so on.
    pub(super) bus: u16,
    pub(super) vendor: u32,
    pub(super) product: u32,
    pub(super) version: u32,
}

/// A device's properties.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Properties {
    pub(super) name: String,
    /// The physical location.
    pub(super) phys: String,
    /// The serial number or address.
    pub(super) uniq: String,
    pub(super) ids: Ids,
    pub(super) descriptor: Vec<u8>,
    /// Feature reports that never change, their number first.
    pub(super) features: Vec<Vec<u8>>,
}

impl Properties {
    /// Encodes the properties.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        let Properties { name, phys, uniq, ids, descriptor, features } = self;
        writer.text(name).text(phys).text(uniq);
        writer.u16(ids.bus).u32(ids.vendor).u32(ids.product).u32(ids.version);
        writer.blob(descriptor).u16(features.len() as u16);
        features.iter().for_each(|feature| _ = writer.blob(feature));
        writer.finish()
    }

    /// Decodes and checks properties, which come from the network.
    pub(super) fn parse(bytes: &[u8]) -> Result<(Properties, Descriptor), WireError> {
        let mut reader = Reader::new(bytes);
        let name = reader.text("name", NAME_BYTES_MAX)?.into();
        let phys = reader.text("physical location", PLACE_BYTES_MAX)?.into();
        let uniq = reader.text("serial number", PLACE_BYTES_MAX)?.into();
        let ids = Ids {
            bus: reader.u16("bus")?,
            vendor: reader.u32("vendor")?,
            product: reader.u32("product")?,
            version: reader.u32("version")?,
        };
        let descriptor = reader.blob("report descriptor", DESCRIPTOR_BYTES_MAX)?.to_vec();
        let parsed = Descriptor::parse(&descriptor)?;
        let mut features = Vec::new();
        for _ in 0..reader.count("feature reports", FEATURES_MAX)? {
            let feature = reader.blob("feature report", FEATURE_BYTES_MAX)?.to_vec();
            match feature.first() {
                Some(number) if parsed.has(ReportKind::Feature, *number) => features.push(feature),
                number => {
                    let value = number.copied().unwrap_or_default().into();
                    return Err(WireError::Value { what: "number of a feature report", value });
                }
            }
        }
        reader.end("description of a HID device")?;
        Ok((Properties { name, phys, uniq, ids, descriptor, features }, parsed))
    }
}
