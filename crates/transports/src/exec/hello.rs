//! The first container in each direction: both sides introduce themselves (`docs/reference/transport-exec.md`).

use super::MESSAGE_BYTES_MAX;
use contract::{End, Meeting};
use wire::module::{HELLO, MODULE_HEADER_BYTES, MODULE_VERSION};
use wire::{Container, ModuleFrame};

/// Longest body of a hello, bytes.
pub(super) const HELLO_BYTES_MAX: usize = 4096;
/// Smallest limit that a program may declare, bytes. A record of the largest size then still has fewer parts than a number can
/// count.
pub(super) const DECLARED_BYTES_MIN: usize = 1200;
/// Limit for a program that declares none, bytes.
const UNDECLARED_BYTES: usize = 64 << 10;
/// Values of a hello, at most.
const VALUES_MAX: usize = 64;
const ROLE: &str = "transport";
const FORMAT: &str = "records";

/// The properties that a program declares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Declared {
    /// Largest message, bytes.
    pub(super) message_bytes_max: usize,
    /// Nothing is lost.
    pub(super) is_reliable: bool,
    /// Nothing overtakes.
    pub(super) is_ordered: bool,
}

/// Returns the container with the hello of this host.
pub(super) fn emit(meeting: &Meeting<'_>) -> Vec<u8> {
    let end = match meeting.end {
        End::Dialled => "dialled",
        End::Accepted => "accepted",
    };
    let value = |name: &str, value: String| (name.to_string(), value);
    let options = vec![
        value("end", end.into()),
        value("peer", meeting.peer.to_string()),
        value("device", meeting.device.into()),
        value("driver", meeting.driver.to_string()),
    ];
    let hello =
        ModuleFrame::Hello { version: MODULE_VERSION, role: ROLE.into(), format: FORMAT.into(), options };
    let frame = hello.emit(0);
    let body = &frame[MODULE_HEADER_BYTES..];
    let mut container = Container { length: body.len() as u32, created: 0 }.emit().to_vec();
    container.extend_from_slice(body);
    container
}

/// Parses the body of a program's hello.
pub(super) fn parse(body: &[u8]) -> Result<Declared, String> {
    let parsed = ModuleFrame::parse(HELLO, body).map_err(|error| format!("its hello is invalid: {error}"))?;
    let ModuleFrame::Hello { version, role, options, .. } = parsed else {
        return Err("its first container is no hello".into());
    };
    if version != MODULE_VERSION {
        return Err(format!("its hello has version {version}, this host has {MODULE_VERSION}"));
    }
    if role != ROLE {
        return Err(format!("it declares the role `{role}`, and it is used as `{ROLE}`"));
    }
    if options.len() > VALUES_MAX {
        return Err(format!("its hello has {} values, over the limit of {VALUES_MAX}", options.len()));
    }
    let value = |name: &str| options.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
    let flag = |name: &str| match value(name) {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(other) => {
            Err(format!("its hello has `{name}` = `{other}`, which is neither `true` nor `false`"))
        }
    };
    let message_bytes_max = match value("bytes") {
        None => UNDECLARED_BYTES,
        Some(text) => text.parse().ok().filter(|bytes| *bytes >= DECLARED_BYTES_MIN).ok_or_else(|| {
            format!("its hello has `bytes` = `{text}`; a program carries messages of at least {DECLARED_BYTES_MIN} bytes")
        })?,
    };
    Ok(Declared {
        message_bytes_max: message_bytes_max.min(MESSAGE_BYTES_MAX),
        is_reliable: flag("reliable")?,
        is_ordered: flag("ordered")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(role: &str, values: &[(&str, &str)]) -> Vec<u8> {
        let options = values.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        let hello =
            ModuleFrame::Hello { version: MODULE_VERSION, role: role.into(), format: FORMAT.into(), options };
        hello.emit(0)[MODULE_HEADER_BYTES..].to_vec()
    }

    fn problem(role: &str, values: &[(&str, &str)]) -> String {
        parse(&hello(role, values)).unwrap_err()
    }

    #[test]
    fn a_program_declares_its_properties() {
        let declared = parse(&hello(ROLE, &[("bytes", "1400"), ("ordered", "true")])).unwrap();
        assert_eq!(declared, Declared { message_bytes_max: 1400, is_reliable: false, is_ordered: true });
        assert_eq!(parse(&hello(ROLE, &[])).unwrap().message_bytes_max, UNDECLARED_BYTES);
        assert_eq!(
            parse(&hello(ROLE, &[("bytes", "99999999999")])).unwrap().message_bytes_max,
            MESSAGE_BYTES_MAX
        );
    }

    #[test]
    fn a_wrong_hello_is_refused_by_name() {
        assert!(problem("source", &[]).contains("`source`"));
        assert!(problem(ROLE, &[("bytes", "100")]).contains("at least 1200 bytes"));
        assert!(problem(ROLE, &[("bytes", "many")]).contains("`many`"));
        assert!(problem(ROLE, &[("reliable", "yes")]).contains("neither"));
        assert!(parse(b"rubbish").unwrap_err().contains("invalid"));
    }

    #[test]
    fn the_example_of_the_page_is_made_here() {
        let page =
            include_str!("../../../../docs/reference/transport-exec.md").replace(char::is_whitespace, "");
        let hex = |bytes: &[u8]| -> String { bytes.iter().map(|byte| format!("{byte:02x}")).collect() };
        let body = hello(ROLE, &[("bytes", "1400")]);
        let header = Container { length: body.len() as u32, created: 0 }.emit();
        assert!(page.contains(&(hex(&header) + &hex(&body))));
        let mut probe = Vec::new();
        let content = [super::super::message::Signal::Probe as u8];
        super::super::message::append(std::iter::once(&content[..]), None, &mut probe);
        assert!(page.contains(&hex(&probe)));
    }

    #[test]
    fn the_hello_of_a_host_names_the_meeting() {
        let peer = [192, 0, 2, 7].into();
        let container = emit(&Meeting { end: End::Accepted, peer, device: "film", driver: 3 });
        let body = &container[Container::BYTES..];
        assert_eq!(Container::parse(&container, HELLO_BYTES_MAX).unwrap().length as usize, body.len());
        let ModuleFrame::Hello { role, options, .. } = ModuleFrame::parse(HELLO, body).unwrap() else {
            panic!("no hello")
        };
        assert_eq!(role, ROLE);
        let text = format!("{options:?}");
        for value in ["\"accepted\"", "\"192.0.2.7\"", "\"film\"", "\"3\""] {
            assert!(text.contains(value), "{text}");
        }
    }
}
