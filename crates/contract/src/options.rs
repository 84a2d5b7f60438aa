//! Options of modules: declared once; parsing, checking, help, docs and completion derive from that.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;
use thiserror::Error;

/// Whether an option may come from the other host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// It travels in a proposed pipeline.
    Agreed,
    /// Paths, commands, keys: only this host's own command line or file sets it.
    Local,
}

/// What values an option takes.
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
    /// A value of this kind, or `auto`: the module sets it by what it measures.
    OrAuto(&'static OptionKind),
}

/// One option of a module.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OptionSpec {
    /// Its name.
    pub name: &'static str,
    /// What values it takes.
    pub kind: OptionKind,
    /// Its default, written as a user would.
    pub default: &'static str,
    /// Whether it may come from the other host.
    pub scope: Scope,
    /// One line: what it is, its unit.
    pub doc: &'static str,
}

/// A checked value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Of [`OptionKind::Integer`].
    Integer(i64),
    /// Of [`OptionKind::Number`] and [`OptionKind::Share`] (0 to 1).
    Number(f64),
    /// Of [`OptionKind::Duration`].
    Duration(Duration),
    /// Of [`OptionKind::Size`], bytes.
    Size(u64),
    /// Of [`OptionKind::Flag`].
    Flag(bool),
    /// Of [`OptionKind::Choice`] and [`OptionKind::Text`].
    Text(String),
    /// `auto`.
    Auto,
}

/// An option's name or value is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{problem}")]
pub struct OptionError {
    /// What is wrong, and what would be right.
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

    /// All defaults.
    pub fn defaults(specs: &'static [OptionSpec]) -> Result<Options, OptionError> {
        Options::check(specs, [])
    }

    /// Names and values, in the order of the names.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Value)> {
        self.values.iter().map(|(name, value)| (*name, value))
    }

    /// The value of an option, if the module declares it.
    pub fn value(&self, name: &str) -> Option<&Value> {
        self.values.get(name)
    }

    /// Whether an option was left to the module.
    pub fn is_auto(&self, name: &str) -> bool {
        matches!(self.value(name), Some(Value::Auto))
    }

    /// A whole number; 0 if the module declares no such option.
    pub fn integer(&self, name: &str) -> i64 {
        match self.value(name) {
            Some(Value::Integer(value)) => *value,
            _ => 0,
        }
    }

    /// A count: a whole number that is never negative.
    pub fn count(&self, name: &str) -> usize {
        usize::try_from(self.integer(name)).unwrap_or(0)
    }

    /// A number or a share; 0 if the module declares no such option.
    pub fn number(&self, name: &str) -> f64 {
        match self.value(name) {
            Some(Value::Number(value)) => *value,
            _ => 0.0,
        }
    }

    /// A duration; zero if the module declares no such option.
    pub fn duration(&self, name: &str) -> Duration {
        match self.value(name) {
            Some(Value::Duration(value)) => *value,
            _ => Duration::ZERO,
        }
    }

    /// Bytes; 0 if the module declares no such option.
    pub fn size(&self, name: &str) -> usize {
        match self.value(name) {
            Some(Value::Size(value)) => usize::try_from(*value).unwrap_or(usize::MAX),
            _ => 0,
        }
    }

    /// A flag; false if the module declares no such option.
    pub fn flag(&self, name: &str) -> bool {
        matches!(self.value(name), Some(Value::Flag(true)))
    }

    /// A word or a text; empty if the module declares no such option.
    pub fn text(&self, name: &str) -> &str {
        match self.value(name) {
            Some(Value::Text(value)) => value,
            _ => "",
        }
    }
}

fn unknown_option(name: &str, specs: &[OptionSpec]) -> OptionError {
    let names: Vec<_> = specs.iter().map(|spec| spec.name).collect();
    let problem = match names.is_empty() {
        true => format!("there is no option `{name}`: this module has none"),
        false => format!("there is no option `{name}`; there is: {}", names.join(", ")),
    };
    OptionError { problem }
}

/// Reads one value as `spec` says.
pub fn parse_value(spec: &OptionSpec, text: &str) -> Result<Value, OptionError> {
    let wrong = || OptionError {
        problem: format!("`{text}` is not a value of `{}`, which takes {}", spec.name, spec.kind),
    };
    let kind = match spec.kind {
        OptionKind::OrAuto(_) if text == "auto" => return Ok(Value::Auto),
        OptionKind::OrAuto(kind) => *kind,
        kind => kind,
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
    // Rounded in nanoseconds: `0.1 s` must be read as 100 ms exactly.
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
    /// As a user would write it; reading it gives the same value.
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
