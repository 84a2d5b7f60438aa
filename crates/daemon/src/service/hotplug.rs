//! Hotplug rules. A `[[share]]` with a pattern shares every matching device of its class, whenever it is plugged in.
//!
//! `evdev:*` matches all input devices, `serial:/dev/ttyUSB*` matches by path, `evdev:name=Logitech*` matches by
//! name. Devices created by Outboard never match, as the host would share its own attached devices.

use broker::share_words::ShareWords;
use contract::{Listing, Role, ServiceError};
use modules::registry;
use std::time::Duration;
use sys::uevent::{Uevent, Uevents};

/// Delays of the checks after a kernel event: the node can be opened only once udev has set its permissions.
pub(super) const LOOKS: [Duration; 4] =
    [Duration::ZERO, Duration::from_millis(100), Duration::from_millis(400), Duration::from_millis(1500)];

/// Returns whether a `[[share]]` is a rule: its device is a pattern.
pub fn is_rule(words: &ShareWords) -> bool {
    registry::with_class(&words.device, Role::Device).split_once(':').is_some_and(|(class, pattern)| {
        pattern.contains('*')
            && registry::device_class(class).is_some_and(|class| class.subsystem().is_some())
    })
}

/// Checks that a rule can match: the devices of some classes have only paths besides their names.
pub fn check_rule(words: &ShareWords) -> Result<(), ServiceError> {
    let device = registry::with_class(&words.device, Role::Device);
    let Some((class, pattern)) = device.split_once(':').filter(|_| is_rule(words)) else { return Ok(()) };
    let has_paths = registry::device_class(class)
        .is_some_and(|class| class.target().trim_start_matches('[').starts_with("PATH"));
    if !has_paths || pattern.starts_with(['/', '*']) || pattern.starts_with("name=") {
        return Ok(());
    }
    Err(ServiceError::Usage(format!(
        "`{}`: a pattern without `name=` is compared with paths, which begin with /; write `{class}:name={pattern}`",
        words.device
    )))
}

/// A device that matches a rule.
pub(super) struct Found {
    pub(super) spec: String,
    /// Identifies the device wherever it is plugged in.
    pub(super) summary: String,
    /// The preferred name in the catalogue.
    pub(super) name: String,
}

/// Returns the class of a device, its target, and the options behind it with their comma.
fn parts(device: &str) -> Option<(String, String, String)> {
    let spec = registry::device_spec(device, Role::Device).ok()?;
    let classed = registry::with_class(device, Role::Device);
    let options = classed.strip_prefix(&format!("{}:{}", spec.class, spec.target)).unwrap_or_default();
    Some((spec.class, spec.target, options.into()))
}

/// Returns whether two specs are of one device, with any options.
pub(super) fn is_same_device(one: &str, other: &str) -> bool {
    let address = |device| parts(device).map(|(class, target, _)| (class, target));
    one == other || address(one).is_some_and(|one| Some(one) == address(other))
}

/// The devices that match a rule.
#[derive(Default)]
pub(super) struct Matches {
    /// The devices that can be opened.
    pub(super) found: Vec<Found>,
    /// The reason for each of the others, with its name.
    pub(super) blocked: Vec<String>,
}

/// Lists the devices that match a rule now. They get its options.
pub(super) fn find(rule: &ShareWords) -> Matches {
    let class = parts(&rule.device).and_then(|(class, ..)| registry::device_class(&class));
    class.map(|class| matching(rule, class.list())).unwrap_or_default()
}

fn matching(rule: &ShareWords, listings: Vec<Listing>) -> Matches {
    let Some((_, pattern, options)) = parts(&rule.device) else { return Matches::default() };
    let suits = |listing: &Listing| {
        let target = listing.spec.split_once(':').map_or("", |(_, target)| target);
        let meant = match pattern.strip_prefix("name=") {
            Some(name) => is_like(name, &listing.summary) || is_like(name, title(&listing.summary)),
            None => is_like(&pattern, target),
        };
        meant && !listing.ours
    };
    let mut matches = Matches::default();
    for listing in listings.into_iter().filter(suits) {
        match &listing.problem {
            Some(problem) => matches
                .blocked
                .push(format!("`{}` is plugged in and cannot be opened: {problem}", title(&listing.summary))),
            None => matches.found.push(Found {
                name: rule.name.clone().unwrap_or_else(|| name(&listing)),
                spec: listing.spec + &options,
                summary: listing.summary,
            }),
        }
    }
    matches
}

/// Derives a device's name: from its path for classes that are known by path, otherwise from its summary.
fn name(listing: &Listing) -> String {
    let (class, target) = listing.spec.split_once(':').unwrap_or((&listing.spec, ""));
    match class {
        "serial" | "fb" => word(target.rsplit('/').next().unwrap_or_default()),
        _ => word(title(&listing.summary)),
    }
}

/// Returns a summary without the part in brackets at its end.
fn title(summary: &str) -> &str {
    summary.rsplit_once(" (").map_or(summary, |(title, _)| title)
}

/// Converts a title to a name: letters and digits, and hyphens for everything else.
fn word(title: &str) -> String {
    let parts: Vec<_> = title.split(|c: char| !c.is_alphanumeric()).filter(|part| !part.is_empty()).collect();
    match parts.join("-").to_lowercase() {
        name if name.is_empty() => "device".into(),
        name => name,
    }
}

/// Returns whether `text` matches `pattern`, in which `*` matches any text.
fn is_like(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let mut parts: Vec<_> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// Returns whether a kernel event may concern a device that can be shared.
fn concerns(event: &Uevent) -> bool {
    let mut subsystems = registry::device_classes().iter().filter_map(|class| class.subsystem());
    // An event without a subsystem reports that events were missed.
    event.subsystem.is_empty() || subsystems.any(|subsystem| subsystem == event.subsystem)
}

/// Reads the pending kernel events; returns whether any may concern a device that can be shared.
pub(super) fn poll(uevents: &Uevents) -> bool {
    let mut any = false;
    while let Some(event) = uevents.poll() {
        any |= concerns(&event);
    }
    any
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_with_wildcards() {
        for (pattern, text, is) in [
            ("*", "", true),
            ("*", "/dev/input/event3", true),
            ("/dev/ttyUSB*", "/dev/ttyUSB0", true),
            ("/dev/ttyUSB*", "/dev/ttyACM0", false),
            ("*Wheel*", "Logitech G29 Wheel (gamepad)", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("ab", "ab", true),
            ("ab", "abc", false),
            ("a*a", "a", false),
        ] {
            assert_eq!(is_like(pattern, text), is, "{pattern} {text}");
        }
        assert_eq!(word(title("Logitech G29: Wheel! (gamepad)")), "logitech-g29-wheel");
        assert_eq!(word("***"), "device");
    }

    #[test]
    fn a_pattern_that_no_path_can_match_is_refused() {
        let check = |device: &str| check_rule(&ShareWords { device: device.into(), ..ShareWords::default() });
        for device in
            ["evdev:Logitech*", "serial:USB*", "v4l2:UVC*", "fb:efi*", "hid:Sony*,grab=off", "block:sd*"]
        {
            let (class, pattern) = device.split_once(':').unwrap();
            let problem = check(device).unwrap_err().to_string();
            assert!(problem.contains(&format!("write `{class}:name={pattern}`")), "{problem}");
        }
        for device in
            ["evdev:name=Logitech*", "evdev:*", "/dev/ttyUSB*", "evdev:*-kbd", "midi:Piano*", "audio:Yeti*"]
        {
            check(device).unwrap();
        }
    }

    #[test]
    fn a_matching_device_that_cannot_be_opened_is_named() {
        let listing = |node: &str, summary: &str, problem: Option<&str>, ours| Listing {
            spec: format!("evdev:/dev/input/{node}"),
            summary: summary.into(),
            problem: problem.map(String::from),
            ours,
        };
        let denied = Some("Permission denied (add yourself to the group `input`)");
        let rule = ShareWords { device: "evdev:name=Logitech*,grab=off".into(), ..ShareWords::default() };
        let matches = matching(
            &rule,
            vec![
                listing("a", "Logitech G29 (gamepad)", None, false),
                listing("b", "Logitech K120 (input)", denied, false),
                listing("c", "Power Button (input)", denied, false),
                listing("d", "Logitech K120 (input, a node of Outboard)", denied, true),
            ],
        );
        let specs: Vec<_> = matches.found.iter().map(|found| found.spec.as_str()).collect();
        assert_eq!(specs, ["evdev:/dev/input/a,grab=off"]);
        let says = "`Logitech K120` is plugged in and cannot be opened: Permission denied (add yourself to the group \
                    `input`)";
        assert_eq!(matches.blocked, [says]);
    }

    #[test]
    fn the_options_of_a_rule_are_no_part_of_its_pattern() {
        let (class, pattern, options) = parts("evdev:name=Logitech*,grab=off").unwrap();
        assert_eq!((&*class, &*pattern, &*options), ("evdev", "name=Logitech*", ",grab=off"));
        let (class, pattern, options) = parts("/dev/ttyUSB*").unwrap();
        assert_eq!((&*class, &*pattern, &*options), ("serial", "/dev/ttyUSB*", ""));
        assert!(is_same_device("/dev/input/event3", "evdev:/dev/input/event3,grab=off"));
        assert!(!is_same_device("evdev:/dev/input/event3", "evdev:/dev/input/event30"));
    }

    #[test]
    fn only_classes_that_can_be_listed_have_rules() {
        let rule = |device: &str| is_rule(&ShareWords { device: device.into(), ..ShareWords::default() });
        assert!(rule("evdev:*") && rule("serial:/dev/ttyUSB*") && rule("/dev/ttyUSB*"));
        assert!(!rule("evdev:/dev/input/event3") && !rule("file:/tmp/*") && !rule("*"));
    }
}
