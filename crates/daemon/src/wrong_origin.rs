//! Texts that users write for `attach` in place of HOST/NAME, and the text to write.

use contract::{Role, ServiceError};
use hosts::place::{WRONG_PORT, has_wrong_port};
use modules::registry;
use std::borrow::Cow;
use std::net::Ipv6Addr;

const FORM: &str = "[TRANSPORT://][PEER@]HOST[:PORT]/NAME, such as studio/event3";

/// Returns true for a device of this host, as `share` takes it: `/dev/ttyUSB0`, or `CLASS:ADDRESS` with a known class.
pub(crate) fn is_device(text: &str) -> bool {
    let host = text.split('/').next().unwrap_or_default();
    let has_port = |rest: &str| rest.starts_with(|c: char| c.is_ascii_digit());
    match text.split_once(':') {
        _ if host.parse::<Ipv6Addr>().is_ok() => false,
        Some((class, rest)) if registry::device_class(class).is_some() => {
            !rest.starts_with("//") && !has_port(rest)
        }
        _ => {
            matches!(registry::with_class(text, Role::Device), Cow::Owned(_))
                && (host.is_empty() || host == text)
        }
    }
}

/// Returns the error for a text that is not `HOST/NAME`.
pub(crate) fn wrong_origin(text: &str) -> ServiceError {
    ServiceError::Usage(format!("`{text}` does not name a device of a host: {}", advice(text)))
}

fn advice(text: &str) -> String {
    let host = text.trim_end_matches('/');
    if is_device(text) {
        return format!(
            "run `outboard share {text}` on its host, and attach HOST/NAME here, with the name that it shows"
        );
    }
    if text.starts_with(['/', '.', '~']) {
        return format!("write {FORM}, and the application after `--as`, such as `--as pty:{text}`");
    }
    let place = text.split_once("://").map_or(text, |(_, rest)| rest).split('/').next().unwrap_or_default();
    match host.split_once(':') {
        _ if has_wrong_port(place) => format!("{WRONG_PORT}; write {FORM}"),
        _ if host.is_empty() || host.ends_with(':') || host.contains(['/', '@', '[']) => {
            format!("write {FORM}")
        }
        Some((host, name)) if !name.is_empty() && name.parse::<u16>().is_err() && !name.contains(':') => {
            format!("write {host}/{name}")
        }
        _ => format!("write {host}/NAME; `outboard devices {host}` lists the names"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_right_text_is_named() {
        for (text, says) in [
            ("studio", "write studio/NAME; `outboard devices studio` lists"),
            ("studio/", "write studio/NAME"),
            ("10.0.0.5:7846", "write 10.0.0.5:7846/NAME"),
            ("studio:plc", "write studio/plc"),
            ("10.0.0.5:99999", "a port is a number below 65536; write [TRANSPORT://]"),
            ("tcp://studio@[::1]:99999/plc", "a port is a number below 65536"),
            ("/dev/ttyUSB0", "`outboard share /dev/ttyUSB0`"),
            ("serial:/dev/ttyUSB0", "`outboard share serial:/dev/ttyUSB0`"),
            (":0", "`outboard share :0`"),
            ("x11::0", "`outboard share x11::0`"),
            ("film.y4m", "`outboard share film.y4m`"),
            ("/tmp/plc", "`--as pty:/tmp/plc`"),
            ("", "HOST[:PORT]/NAME"),
            ("/mouse", "HOST[:PORT]/NAME"),
            ("studio@/mouse", "HOST[:PORT]/NAME"),
        ] {
            let error = wrong_origin(text).to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn a_host_is_no_device() {
        for text in ["serial:7846/x", "fb::1/x", "studio/film.y4m", "tcp://studio/x", "file/x"] {
            assert!(!is_device(text), "{text}");
        }
    }
}
