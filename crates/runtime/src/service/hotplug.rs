//! Rules: a `[[share]]` whose device is a pattern stands for every device of its class that suits it, whenever one comes.
//!
//! `evdev:*` is every input device, `serial:/dev/ttyUSB*` what has such a path, `evdev:name=Logitech*` what is called so.
//! What Outboard made itself is never meant: it would share what it attaches.

use crate::config::ShareWords;
use crate::registry;
use contract::Listing;
use std::time::Duration;
use sys::uevent::{Uevent, Uevents};

/// When to look after the kernel told something: a node may be opened only when the system has set its rights.
pub(super) const LOOKS: [Duration; 4] =
    [Duration::ZERO, Duration::from_millis(100), Duration::from_millis(400), Duration::from_millis(1500)];

/// Whether a `[[share]]` is a rule: a pattern that stands for what suits it.
pub fn is_rule(words: &ShareWords) -> bool {
    words.device.split_once(':').is_some_and(|(class, pattern)| {
        pattern.contains('*')
            && registry::device_class(class).is_some_and(|class| class.subsystem().is_some())
    })
}

/// A device that a rule stands for: what it is told apart by, and the words that share it.
pub(super) struct Found {
    pub(super) spec: String,
    /// What it is, wherever it is plugged in.
    pub(super) summary: String,
    /// What it would like to be called.
    pub(super) name: String,
}

/// What a rule stands for now.
pub(super) fn find(rule: &ShareWords) -> Vec<Found> {
    let Some((class, pattern)) = rule.device.split_once(':') else { return Vec::new() };
    let Some(class) = registry::device_class(class) else { return Vec::new() };
    let suits = |listing: &Listing| {
        let target = listing.spec.split_once(':').map_or("", |(_, target)| target);
        let meant = match pattern.strip_prefix("name=") {
            Some(name) => is_like(name, &listing.summary) || is_like(name, title(&listing.summary)),
            None => is_like(pattern, target),
        };
        meant && !listing.ours && listing.problem.is_none()
    };
    let found = |listing: Listing| Found {
        name: rule.name.clone().unwrap_or_else(|| name(&listing)),
        spec: listing.spec,
        summary: listing.summary,
    };
    class.list().into_iter().filter(suits).map(found).collect()
}

/// What a device is called by itself: by its path, where that is all that people know it by.
fn name(listing: &Listing) -> String {
    let (class, target) = listing.spec.split_once(':').unwrap_or((&listing.spec, ""));
    match class {
        "serial" | "fb" => word(target.rsplit('/').next().unwrap_or_default()),
        _ => word(title(&listing.summary)),
    }
}

/// A summary without what stands in brackets behind it.
fn title(summary: &str) -> &str {
    summary.rsplit_once(" (").map_or(summary, |(title, _)| title)
}

/// A name that can be written after a slash: letters and digits, all else a hyphen.
fn word(title: &str) -> String {
    let parts: Vec<_> = title.split(|c: char| !c.is_alphanumeric()).filter(|part| !part.is_empty()).collect();
    match parts.join("-").to_lowercase() {
        name if name.is_empty() => "device".into(),
        name => name,
    }
}

/// Whether a text is like a pattern, in which `*` stands for anything.
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

/// Whether what the kernel told may concern a device that can be shared.
fn concerns(event: &Uevent) -> bool {
    let mut subsystems = registry::device_classes().iter().filter_map(|class| class.subsystem());
    // One without a subsystem stands for those that were missed.
    event.subsystem.is_empty() || subsystems.any(|subsystem| subsystem == event.subsystem)
}

/// Takes what the kernel told; whether any of it is worth a look.
pub(super) fn heard(uevents: &Uevents) -> bool {
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
    fn patterns_are_like_what_they_say() {
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
    fn rules_are_of_classes_that_can_be_listed() {
        let rule = |device: &str| is_rule(&ShareWords { device: device.into(), ..ShareWords::default() });
        assert!(rule("evdev:*") && rule("serial:/dev/ttyUSB*"));
        assert!(!rule("evdev:/dev/input/event3") && !rule("file:/tmp/*") && !rule("*"));
    }
}
