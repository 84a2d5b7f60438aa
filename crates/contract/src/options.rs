//! Options of modules. Parsing, checks, help, documentation and completion derive from one declaration.

use crate::nearest::nearest;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;
use thiserror::Error;

/// The hosts that may set an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Either host: the option is part of a proposed pipeline.
    Agreed,
    /// Only this host's command line or configuration file: paths, commands, keys. A peer may name the pair, and the option
    /// then has its default, which must be harmless.
    Local,
}

/// The values that an option accepts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum OptionKind {
    /// A whole number.
    Integer {
        /// Smallest.
        min: i64,
        /// Largest.
        max: i64,
    },
    /// A number.
    Number {
        /// Smallest.
        min: f64,
        /// Largest.
        max: f64,
    },
    /// A time with its unit: `250us`, `20ms`, `1.5s`.
    Duration {
        /// Shortest.
        min: Duration,
        /// Longest.
        max: Duration,
    },
    /// Bytes: `512`, `64KiB`, `1MiB`.
    Size {
        /// Smallest.
        min: u64,
        /// Largest.
        max: u64,
    },
    /// A probability: `0.5%` or `0.005`.
    Share,
    /// `true` or `false`.
    Flag,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// Any text of at most this many bytes.
    Text {
        /// Bytes.
        max: usize,
    },
    /// A value of this kind, or `auto`: the module chooses the value from its measurements.
    OrAuto(&'static OptionKind),
}

/// One option of a module.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OptionSpec {
    /// The name.
    pub name: &'static str,
    /// The accepted values.
    pub kind: OptionKind,
    /// The default, as a user would write it.
    pub default: &'static str,
    /// The hosts that may set it.
    pub scope: Scope,
    /// One line of help: the meaning and the unit.
    pub doc: &'static str,
}

/// Declares an option that both hosts agree on.
pub const fn agreed(
    name: &'static str,
    kind: OptionKind,
    default: &'static str,
    doc: &'static str,
) -> OptionSpec {
    OptionSpec { name, kind, default, scope: Scope::Agreed, doc }
}

/// Declares an option that only this host may set.
pub const fn local(
    name: &'static str,
    kind: OptionKind,
    default: &'static str,
    doc: &'static str,
) -> OptionSpec {
    OptionSpec { name, kind, default, scope: Scope::Local, doc }
}

/// The entry of a module in the table of its kind. Help, checks and completion derive from it.
#[derive(Debug, Clone, Copy)]
pub struct ModuleEntry {
    /// The name: of a pair in a pipeline, before the colon of a device, before the `://` of a transport.
    pub name: &'static str,
    /// One line of help.
    pub summary: &'static str,
    /// The full documentation in Markdown.
    pub doc: &'static str,
    /// The options.
    pub options: &'static [OptionSpec],
}

/// A checked value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A value of [`OptionKind::Integer`].
    Integer(i64),
    /// A value of [`OptionKind::Number`] or [`OptionKind::Share`] (0 to 1).
    Number(f64),
    /// A value of [`OptionKind::Duration`].
    Duration(Duration),
    /// A value of [`OptionKind::Size`], in bytes.
    Size(u64),
    /// A value of [`OptionKind::Flag`].
    Flag(bool),
    /// A value of [`OptionKind::Choice`] or [`OptionKind::Text`].
    Text(String),
    /// `auto`.
    Auto,
}

/// An option has an invalid name or value.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{problem}")]
pub struct OptionError {
    /// The problem, and the accepted form.
    pub problem: String,
}

/// Checked options with every default filled in.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Options {
    values: BTreeMap<&'static str, Value>,
}

impl Options {
    /// Checks `given` (name and text) against `specs` and fills in the defaults.
    pub fn check<'a>(
        specs: &'static [OptionSpec],
        given: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Options, OptionError> {
        let mut values = BTreeMap::new();
        for (name, text) in given {
            let spec =
                specs.iter().find(|spec| spec.name == name).ok_or_else(|| unknown_option(name, specs))?;
            if values.insert(spec.name, parse_value(spec, text)?).is_some() {
                return Err(OptionError { problem: format!("option `{name}` is given twice") });
            }
        }
        for spec in specs {
            if !values.contains_key(spec.name) {
                values.insert(spec.name, parse_value(spec, spec.default)?);
            }
        }
        Ok(Options { values })
    }

    /// Returns the defaults of all options.
    pub fn defaults(specs: &'static [OptionSpec]) -> Result<Options, OptionError> {
        Options::check(specs, [])
    }

    /// Iterates over names and values, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Value)> {
        self.values.iter().map(|(name, value)| (*name, value))
    }

    /// Returns the value of an option, if the module declares it.
    pub fn value(&self, name: &str) -> Option<&Value> {
        self.values.get(name)
    }

    /// Returns true if the value is `auto`.
    pub fn is_auto(&self, name: &str) -> bool {
        matches!(self.value(name), Some(Value::Auto))
    }

    /// Returns a whole number; 0 if the module declares no such option.
    pub fn integer(&self, name: &str) -> i64 {
        match self.value(name) {
            Some(Value::Integer(value)) => *value,
            _ => 0,
        }
    }

    /// Returns a whole number that is never negative.
    pub fn count(&self, name: &str) -> usize {
        usize::try_from(self.integer(name)).unwrap_or(0)
    }

    /// Returns a number or a share; 0 if the module declares no such option.
    pub fn number(&self, name: &str) -> f64 {
        match self.value(name) {
            Some(Value::Number(value)) => *value,
            _ => 0.0,
        }
    }

    /// Returns a duration; zero if the module declares no such option.
    pub fn duration(&self, name: &str) -> Duration {
        match self.value(name) {
            Some(Value::Duration(value)) => *value,
            _ => Duration::ZERO,
        }
    }

    /// Returns a size in bytes; 0 if the module declares no such option.
    pub fn size(&self, name: &str) -> usize {
        match self.value(name) {
            Some(Value::Size(value)) => usize::try_from(*value).unwrap_or(usize::MAX),
            _ => 0,
        }
    }

    /// Returns a flag; false if the module declares no such option.
    pub fn flag(&self, name: &str) -> bool {
        matches!(self.value(name), Some(Value::Flag(true)))
    }

    /// Returns a word or a text; empty if the module declares no such option.
    pub fn text(&self, name: &str) -> &str {
        match self.value(name) {
            Some(Value::Text(value)) => value,
            _ => "",
        }
    }
}

fn unknown_option(name: &str, specs: &[OptionSpec]) -> OptionError {
    let names: Vec<_> = specs.iter().map(|spec| spec.name).collect();
    let problem = match nearest(name, names.iter().copied()) {
        Some(near) => format!("there is no option `{name}`; did you mean `{near}`?"),
        None if names.is_empty() => format!("there is no option `{name}`: this module has none"),
        None => format!("there is no option `{name}`; there is: {}", names.join(", ")),
    };
    OptionError { problem }
}

/// Parses one value of the kind that `spec` declares.
pub fn parse_value(spec: &OptionSpec, text: &str) -> Result<Value, OptionError> {
    let kind = match spec.kind {
        OptionKind::OrAuto(_) if text == "auto" => return Ok(Value::Auto),
        OptionKind::OrAuto(kind) => *kind,
        kind => kind,
    };
    let wrong = || {
        let unit = match kind {
            OptionKind::Duration { .. } if text.parse::<f64>().is_ok() => {
                format!("; its unit is missing: {text}ms or {text}s")
            }
            _ => String::new(),
        };
        OptionError {
            problem: format!("`{text}` is not a value of `{}`, which takes {}{unit}", spec.name, spec.kind),
        }
    };
    let value = match kind {
        OptionKind::Integer { min, max } => {
            Value::Integer(text.parse().ok().filter(|n| (min..=max).contains(n)).ok_or_else(wrong)?)
        }
        OptionKind::Number { min, max } => {
            Value::Number(text.parse().ok().filter(|n: &f64| (min..=max).contains(n)).ok_or_else(wrong)?)
        }
        OptionKind::Duration { min, max } => {
            Value::Duration(parse_duration(text).filter(|d| (min..=max).contains(d)).ok_or_else(wrong)?)
        }
        OptionKind::Size { min, max } => {
            Value::Size(parse_size(text).filter(|s| (min..=max).contains(s)).ok_or_else(wrong)?)
        }
        OptionKind::Share => Value::Number(parse_share(text).ok_or_else(wrong)?),
        OptionKind::Flag => Value::Flag(match text {
            "true" | "yes" | "on" => true,
            "false" | "no" | "off" => false,
            _ => return Err(wrong()),
        }),
        OptionKind::Choice(words) if words.contains(&text) => Value::Text(text.into()),
        OptionKind::Text { max } if text.len() <= max => Value::Text(text.into()),
        OptionKind::Choice(_) | OptionKind::Text { .. } | OptionKind::OrAuto(_) => return Err(wrong()),
    };
    Ok(value)
}

fn split_unit(text: &str) -> Option<(f64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    Some((number.parse().ok()?, unit))
}

fn parse_duration(text: &str) -> Option<Duration> {
    let (number, unit) = split_unit(text)?;
    let nanoseconds = match unit {
        "ns" => 1.0,
        "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        "" if number == 0.0 => 0.0,
        _ => return None,
    };
    // Rounded in nanoseconds, so that `0.1 s` is exactly 100 ms.
    let nanoseconds = (number * nanoseconds).round();
    (nanoseconds < 1e18).then(|| Duration::from_nanos(nanoseconds as u64))
}

fn parse_size(text: &str) -> Option<u64> {
    let (number, unit) = split_unit(text)?;
    let bytes = match unit {
        "" | "B" => 1.0,
        "kB" => 1e3,
        "MB" => 1e6,
        "KiB" => 1024.0,
        "MiB" => 1024.0 * 1024.0,
        "GiB" => 1024.0 * 1024.0 * 1024.0,
        _ => return None,
    };
    let bytes = number * bytes;
    (bytes < 1e18 && bytes.fract() == 0.0).then_some(bytes as u64)
}

fn parse_share(text: &str) -> Option<f64> {
    let (number, unit) = split_unit(text)?;
    let share = match unit {
        "%" => number / 100.0,
        "" => number,
        _ => return None,
    };
    (0.0..=1.0).contains(&share).then_some(share)
}

impl fmt::Display for OptionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OptionKind::Integer { min, max } => write!(f, "a whole number from {min} to {max}"),
            OptionKind::Number { min, max } => write!(f, "a number from {min} to {max}"),
            OptionKind::Duration { min, max } => {
                write!(f, "a duration from {} to {}", Value::Duration(*min), Value::Duration(*max))
            }
            OptionKind::Size { min, max } => {
                write!(f, "a size from {} to {}", Value::Size(*min), Value::Size(*max))
            }
            OptionKind::Share => f.write_str("a share from 0% to 100%"),
            OptionKind::Flag => f.write_str("true or false"),
            OptionKind::Choice(words) => write!(f, "one of {}", words.join(", ")),
            OptionKind::Text { max } => write!(f, "text of at most {max} bytes"),
            OptionKind::OrAuto(kind) => write!(f, "{kind}, or auto"),
        }
    }
}

impl fmt::Display for Value {
    /// Writes the value as a user would; parsing the text gives the same value.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Integer(value) => write!(f, "{value}"),
            Value::Number(value) => write!(f, "{value}"),
            Value::Duration(value) => {
                let nanoseconds = value.as_nanos();
                match nanoseconds {
                    0 => f.write_str("0s"),
                    n if n % 1_000_000_000 == 0 => write!(f, "{}s", n / 1_000_000_000),
                    n if n % 1_000_000 == 0 => write!(f, "{}ms", n / 1_000_000),
                    n if n % 1_000 == 0 => write!(f, "{}us", n / 1_000),
                    n => write!(f, "{n}ns"),
                }
            }
            Value::Size(value) => match *value {
                n if n >= 1 << 30 && n % (1 << 30) == 0 => write!(f, "{}GiB", n >> 30),
                n if n >= 1 << 20 && n % (1 << 20) == 0 => write!(f, "{}MiB", n >> 20),
                n if n >= 1 << 10 && n % (1 << 10) == 0 => write!(f, "{}KiB", n >> 10),
                n => write!(f, "{n}"),
            },
            Value::Flag(value) => write!(f, "{value}"),
            Value::Text(value) => f.write_str(value),
            Value::Auto => f.write_str("auto"),
        }
    }
}
