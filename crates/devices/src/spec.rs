//! Parses device specifications, `kind:target,option=value`, and checks them against the class.

use crate::address::{advice, path_below_dev, with_class};
use crate::side::wrong_side;
use contract::{DeviceClass, DeviceError, DeviceSpec, Options, Role, nearest};

/// Parses and checks a device specification for `role`. The kind may be left out in front of an obvious address
/// ([`with_class`]).
///
/// The target extends from the colon to the options at the end: `,name=value`, with the name of an option of the class.
/// Other commas, and commas inside parentheses, belong to the target. The options of a class without a target follow the
/// colon directly.
pub fn parse(text: &str, role: Role) -> Result<(&'static dyn DeviceClass, DeviceSpec), DeviceError> {
    let classed = with_class(text, role);
    // The colon may be left out before options: `window,clipboard=no`.
    let (kind, rest) = classed.split_at(classed.find([':', ',']).unwrap_or(classed.len()));
    let rest = rest.strip_prefix(':').unwrap_or(rest);
    let class = crate::find(kind).ok_or_else(|| wrong(text, advice(text, role)))?;
    if !class.has_role(role) {
        return Err(wrong_side(class.name(), role));
    }
    let has_target = !class.target().is_empty();
    let (target, given) = match has_target {
        true => peel(rest, class),
        false => ("", split_commas(rest).filter(|piece| !piece.is_empty()).collect()),
    };
    if let Some((name, near)) = misspelled(target, class) {
        return Err(wrong(text, format!("there is no option `{name}`; did you mean `{near}`?")));
    }
    let mut pairs = Vec::with_capacity(given.len());
    for piece in given {
        let pair = piece.split_once('=').ok_or_else(|| {
            wrong(text, format!("`{piece}` is not an option; write `{}:name=value,...`", class.name()))
        })?;
        pairs.push(pair);
    }
    if let Some(path) = path_below_dev(class.name(), target).filter(|_| role == Role::Device) {
        return Err(wrong(
            text,
            format!("the path of a device is absolute; write `{}:{path}`", class.name()),
        ));
    }
    let options = Options::check(class.options(), pairs).map_err(|error| wrong(text, error.problem))?;
    if target.is_empty() && has_target && !is_optional(class) {
        let mut problem =
            format!("the target after the colon is missing; write `{}:{}`", class.name(), class.target());
        if role == Role::Device && class.subsystem().is_some() {
            problem.push_str(", as in the list of `outboard devices`");
        }
        return Err(wrong(text, problem));
    }
    Ok((class, DeviceSpec { class: class.name().into(), target: target.into(), options }))
}

/// Returns true if the class's target is in brackets, which marks it as optional.
fn is_optional(class: &dyn DeviceClass) -> bool {
    class.target().starts_with('[')
}

/// Splits off the options at the end of `rest`. Returns the target and the options in their order.
fn peel<'a>(rest: &'a str, class: &dyn DeviceClass) -> (&'a str, Vec<&'a str>) {
    let (mut target, mut given) = (rest, Vec::new());
    while let Some(comma) = last_comma(target) {
        let piece = &target[comma + 1..];
        let name = piece.split_once('=').map_or("", |(name, _)| name);
        if !class.options().iter().any(|option| option.name == name) {
            break;
        }
        given.push(piece);
        target = &target[..comma];
    }
    given.reverse();
    (target, given)
}

/// Returns the name behind the last comma of a target if it resembles an option, and that option. A command has commas of
/// its own.
fn misspelled<'a>(target: &'a str, class: &dyn DeviceClass) -> Option<(&'a str, &'static str)> {
    let (name, _) = target[last_comma(target)? + 1..].split_once('=')?;
    let names = class.options().iter().map(|option| option.name);
    (class.target() != "COMMAND").then(|| nearest(name, names)).flatten().map(|near| (name, near))
}

fn last_comma(text: &str) -> Option<usize> {
    let mut depth = 0usize;
    text.char_indices().rev().find_map(|(at, letter)| {
        match letter {
            ')' => depth += 1,
            '(' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => return Some(at),
            _ => {}
        }
        None
    })
}

fn split_commas(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0usize;
    text.split(move |letter| {
        match letter {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        letter == ',' && depth == 0
    })
}

fn wrong(text: &str, problem: String) -> DeviceError {
    DeviceError::Spec { what: format!("`{text}`"), problem }
}

#[cfg(test)]
mod tests {
    use super::*;
    use contract::Value;
    use proptest::prelude::*;

    fn spec(text: &str, role: Role) -> DeviceSpec {
        parse(text, role).unwrap_or_else(|error| panic!("{text}: {error}")).1
    }

    fn refusal(text: &str, role: Role) -> String {
        match parse(text, role) {
            Err(error) => error.to_string(),
            Ok((_, spec)) => panic!("{text} is accepted as {spec:?}"),
        }
    }

    #[test]
    fn options_are_split_from_the_end_of_the_target() {
        let serial = spec("serial:/dev/ttyUSB0,baud=9600", Role::Device);
        assert_eq!((serial.class.as_str(), serial.target.as_str()), ("serial", "/dev/ttyUSB0"));
        assert_eq!(serial.options.integer("baud"), 9600);
        let file = spec("file:/tmp/a,b=c,frame=chunk(4KiB),append=true", Role::Application);
        assert_eq!(file.target, "/tmp/a,b=c");
        assert_eq!(file.options.text("frame"), "chunk(4KiB)");
        assert!(file.options.flag("append"));
        for text in ["window,clipboard=no", "window:,clipboard=no"] {
            let window = spec(text, Role::Application);
            assert_eq!((window.target.as_str(), window.options.flag("clipboard")), ("", false), "{text}");
        }
    }

    #[test]
    fn a_comma_in_parentheses_does_not_split() {
        assert_eq!(spec("exec:f(a,frame=line)", Role::Device).target, "f(a,frame=line)");
    }

    #[test]
    fn a_class_without_a_target_takes_options_only() {
        let pattern = spec("pattern:size=1000,rate=62.5", Role::Device);
        assert_eq!(pattern.target, "");
        assert_eq!(pattern.options.value("rate"), Some(&Value::Number(62.5)));
        assert_eq!(spec("null", Role::Application).target, "");
    }

    #[test]
    fn refusals_name_the_text_and_a_remedy() {
        let cases = [
            ("seral:/dev/x", Role::Device, "did you mean `serial:/dev/x`"),
            ("wibblewobble:x", Role::Device, "the classes are: "),
            ("serial", Role::Device, "write `serial:PATH`"),
            ("pattern:size", Role::Device, "`size` is not an option"),
            ("pattern:sise=3", Role::Device, "did you mean `size`?"),
            ("pattern:teleport=3", Role::Device, "there is: format, size"),
            ("evdev:/dev/input/event3,grb=on", Role::Device, "did you mean `grab`?"),
            ("file:x,frame=line,frame=line", Role::Device, "given twice"),
            ("pattern:size=-1", Role::Device, "takes a size from"),
            ("serial:/dev/x", Role::Application, "cannot be attached"),
            ("pty:/tmp/x", Role::Device, "cannot be shared"),
            ("serial:ttyUSB0", Role::Device, "write `serial:/dev/ttyUSB0`"),
            ("evdev:event3", Role::Device, "write `evdev:/dev/input/event3`"),
            ("evdev", Role::Device, "`outboard devices`"),
        ];
        for (text, role, expected) in cases {
            let refusal = refusal(text, role);
            assert!(refusal.contains(expected), "{text}: {refusal}");
        }
        assert!(refusal("seral:/dev/x", Role::Device).starts_with("`seral:/dev/x`: "));
    }

    proptest! {
        #[test]
        fn any_text_is_answered(text in "\\PC{0,80}") {
            for role in [Role::Device, Role::Application] {
                let _ = parse(&text, role);
            }
        }

        #[test]
        fn any_path_is_kept_in_front_of_options(path in "[a-z/,=()]{1,20}[a-z]") {
            let text = format!("file:{path},max=1MiB");
            let Ok((_, spec)) = parse(&text, Role::Device) else { return Ok(()) };
            if path.contains("frame=") || path.contains("max=") || path.contains("append=") {
                return Ok(());
            }
            prop_assert_eq!(spec.target, path);
        }
    }
}
