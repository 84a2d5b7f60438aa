//! Events of `/dev/uhid` as bytes (`linux/uhid.h`, `Documentation/hid/uhid.rst`). Each has its type in four bytes; numbers are in the
//! host's byte order, and structures are packed.

use super::properties::{Ids, NAME_BYTES_MAX, PLACE_BYTES_MAX, Properties};
use wire::formats::hid::{REPORT_BYTES_MAX, ReportKind};

/// The length of an event that is read: all have that of the longest.
pub(super) const EVENT_BYTES: usize = 4 + CREATE_BYTES;
/// `struct uhid_create2_req`.
const CREATE_BYTES: usize = 128 + 64 + 64 + 2 + 2 + 4 * 4 + REPORT_BYTES_MAX;

/// Types of events.
mod kind {
    pub(super) const START: u32 = 2;
    pub(super) const STOP: u32 = 3;
    pub(super) const OPEN: u32 = 4;
    pub(super) const CLOSE: u32 = 5;
    pub(super) const OUTPUT: u32 = 6;
    pub(super) const GET_REPORT: u32 = 9;
    pub(super) const GET_REPORT_REPLY: u32 = 10;
    pub(super) const CREATE2: u32 = 11;
    pub(super) const INPUT2: u32 = 12;
    pub(super) const SET_REPORT: u32 = 13;
    pub(super) const SET_REPORT_REPLY: u32 = 14;
}

/// The error of a refused request; the kernel passes on `EIO` whatever it is.
const REFUSED: u16 = rustix::io::Errno::IO.raw_os_error() as u16;

/// An event of the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Event {
    /// A driver has taken the device.
    Start,
    /// The driver has left it.
    Stop,
    /// The first program or driver uses the device.
    Open,
    /// None does any more.
    Close,
    /// A report for the device.
    Output(Vec<u8>),
    /// A request for a report, which must be answered.
    Get { request: u32, kind: ReportKind, number: u8 },
    /// A report to set, which must be answered.
    Set { request: u32, kind: ReportKind, number: u8, data: Vec<u8> },
    /// Any other.
    Other,
}

impl Event {
    /// Parses the bytes of one read.
    pub(super) fn parse(bytes: &[u8]) -> Event {
        Self::try_parse(bytes).unwrap_or(Event::Other)
    }

    fn try_parse(bytes: &[u8]) -> Option<Event> {
        let (kind, body) = bytes.split_first_chunk::<4>()?;
        let u16_at = |at: usize| Some(u16::from_ne_bytes(*body.get(at..)?.first_chunk()?));
        let u32_at = |at: usize| Some(u32::from_ne_bytes(*body.get(at..)?.first_chunk()?));
        let data = |at: usize, length: u16| Some(body.get(at..at + usize::from(length))?.to_vec());
        Some(match u32::from_ne_bytes(*kind) {
            kind::START => Event::Start,
            kind::STOP => Event::Stop,
            kind::OPEN => Event::Open,
            kind::CLOSE => Event::Close,
            kind::OUTPUT => {
                let length = u16_at(REPORT_BYTES_MAX)?;
                match ReportKind::from_number(*body.get(REPORT_BYTES_MAX + 2)?)? {
                    ReportKind::Output => Event::Output(data(0, length)?),
                    _ => Event::Other,
                }
            }
            kind::GET_REPORT => Event::Get {
                request: u32_at(0)?,
                number: *body.get(4)?,
                kind: ReportKind::from_number(*body.get(5)?)?,
            },
            kind::SET_REPORT => Event::Set {
                request: u32_at(0)?,
                number: *body.get(4)?,
                kind: ReportKind::from_number(*body.get(5)?)?,
                data: data(8, u16_at(6)?)?,
            },
            _ => Event::Other,
        })
    }
}

fn event(kind: u32) -> Vec<u8> {
    kind.to_ne_bytes().to_vec()
}

/// The event that creates a device with these properties, and with this physical location.
pub(super) fn create(properties: &Properties, phys: &str) -> Vec<u8> {
    let mut bytes = event(kind::CREATE2);
    let mut put_text = |text: &str, limit: usize| {
        let text = &text.as_bytes()[..text.floor_char_boundary(limit)];
        bytes.extend(text);
        // At least one zero behind it.
        bytes.resize(bytes.len() + limit + 1 - text.len(), 0);
    };
    put_text(&properties.name, NAME_BYTES_MAX);
    put_text(phys, PLACE_BYTES_MAX);
    put_text(&properties.uniq, PLACE_BYTES_MAX);
    let Ids { bus, vendor, product, version } = properties.ids;
    let descriptor = &properties.descriptor;
    bytes.extend((descriptor.len() as u16).to_ne_bytes());
    bytes.extend(bus.to_ne_bytes());
    let country = 0_u32;
    bytes.extend([vendor, product, version, country].into_iter().flat_map(u32::to_ne_bytes));
    bytes.extend(descriptor);
    bytes
}

/// The event of a report of the device.
pub(super) fn input(report: &[u8]) -> Vec<u8> {
    let mut bytes = event(kind::INPUT2);
    bytes.extend((report.len() as u16).to_ne_bytes());
    bytes.extend(report);
    bytes
}

/// The answer to [`Event::Get`]; `None` refuses it.
pub(super) fn got(request: u32, report: Option<&[u8]>) -> Vec<u8> {
    let mut bytes = event(kind::GET_REPORT_REPLY);
    let (error, report) = report.map_or((REFUSED, [].as_slice()), |report| (0, report));
    bytes.extend(request.to_ne_bytes());
    bytes.extend(error.to_ne_bytes());
    bytes.extend((report.len() as u16).to_ne_bytes());
    bytes.extend(report);
    bytes
}

/// The answer to [`Event::Set`].
pub(super) fn set(request: u32, is_done: bool) -> Vec<u8> {
    let mut bytes = event(kind::SET_REPORT_REPLY);
    bytes.extend(request.to_ne_bytes());
    bytes.extend((if is_done { 0 } else { REFUSED }).to_ne_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_created_device_has_the_kernels_layout() {
        let properties = Properties {
            name: "n".repeat(200),
            uniq: "12".into(),
            ids: Ids { bus: 3, vendor: 0x54c, product: 0xce6, version: 0x111 },
            descriptor: vec![5, 1],
            ..Properties::default()
        };
        let bytes = create(&properties, "outboard/usb");
        assert_eq!(EVENT_BYTES, 4376);
        assert_eq!(bytes.len(), 4 + 128 + 64 + 64 + 4 + 16 + 2);
        assert_eq!((bytes[4 + 126], bytes[4 + 127]), (b'n', 0), "the name is cut and ends with a zero");
        assert_eq!(&bytes[132..144], b"outboard/usb");
        assert_eq!(&bytes[196..199], b"12\0");
        assert_eq!(bytes[260..264], [2_u16.to_ne_bytes(), 3_u16.to_ne_bytes()].concat());
    }

    #[test]
    fn events_of_the_kernel_are_parsed() {
        let padded = |kind: u32, body: &[u8]| {
            let mut bytes = [&kind.to_ne_bytes(), body].concat();
            bytes.resize(EVENT_BYTES, 0);
            bytes
        };
        let request = 7_u32.to_ne_bytes();
        let get = padded(kind::GET_REPORT, &[&request[..], &[0x20, 0]].concat());
        assert_eq!(Event::parse(&get), Event::Get { request: 7, kind: ReportKind::Feature, number: 0x20 });
        let set = padded(kind::SET_REPORT, &[&request[..], &[8, 0], &2_u16.to_ne_bytes(), &[8, 1]].concat());
        let data = vec![8, 1];
        assert_eq!(Event::parse(&set), Event::Set { request: 7, kind: ReportKind::Feature, number: 8, data });
        let mut output = padded(kind::OUTPUT, &[2, 3]);
        output[4 + REPORT_BYTES_MAX] = 2;
        output[4 + REPORT_BYTES_MAX + 2] = 1;
        assert_eq!(Event::parse(&output), Event::Output(vec![2, 3]));
        assert_eq!(Event::parse(&[1, 0]), Event::Other);
        assert_eq!(Event::parse(&padded(99, &[])), Event::Other);
    }
}
