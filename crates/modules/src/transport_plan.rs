//! The transport of a driver, with its checked options.

use crate::registry;
use contract::{OptionSpec, Options, ServiceError, TransportClass};

/// The transport of a driver, with its checked options.
#[derive(Clone)]
pub struct TransportPlan {
    /// The transport.
    pub class: &'static dyn TransportClass,
    /// Its options.
    pub options: Options,
}

impl TransportPlan {
    /// Returns the transport of this name with its default options; `None` if there is none.
    pub fn defaults(name: &str) -> Option<TransportPlan> {
        let class = registry::transport(name)?;
        Some(TransportPlan { class, options: Options::defaults(class.options()).ok()? })
    }

    /// Returns true if a driver that was built for `other` can continue over this transport.
    pub fn may_replace(&self, other: &TransportPlan) -> bool {
        self.class.may_lose() == other.class.may_lose()
    }

    /// Returns true if the control channel uses this transport, too.
    pub fn is_quic(&self) -> bool {
        self.class.name() == transports::quic::Quic.name()
    }
}

/// Parses and checks a transport with its options `name=value,...`, or the program `exec:COMMAND[,name=value,...]` that carries the
/// records instead.
pub fn transport_plan(name: &str, options: Option<&str>) -> Result<TransportPlan, ServiceError> {
    if let Some((name, words)) = options.and_then(|options| options.split_once(':'))
        && let Some(class) = registry::transport(name).filter(|class| class.program().is_some())
    {
        return program_plan(class, words).map_err(|problem| {
            ServiceError::Usage(format!(
                "transport `{name}:{words}`: {problem}; `outboard modules {name}` lists its options"
            ))
        });
    }
    let class = registry::transport(name)
        .ok_or_else(|| ServiceError::Usage(format!("there is no transport `{name}`")))?;
    if class.program().is_some() {
        return Err(ServiceError::Usage(format!(
            "transport `{name}`: its program is missing: leave `{name}://` out, and write --transport '{name}:COMMAND'"
        )));
    }
    let options = check_options(class.options(), options).map_err(|problem| {
        ServiceError::Usage(format!(
            "transport `{name}`: {problem}; `outboard modules {name}` lists its options"
        ))
    })?;
    Ok(TransportPlan { class, options })
}

/// Parses the command of a program, and the options of its transport at the end: other commas belong to the command.
fn program_plan(class: &'static dyn TransportClass, words: &str) -> Result<TransportPlan, String> {
    let (mut command, mut given) = (words, Vec::new());
    while let Some((before, option)) = command.rsplit_once(',') {
        let Some(pair) =
            option.split_once('=').filter(|(name, _)| class.options().iter().any(|spec| spec.name == *name))
        else {
            break;
        };
        given.push(pair);
        command = before;
    }
    if command.trim().is_empty() {
        return Err("the command behind the colon is missing".into());
    }
    given.push(("command", command));
    let options = Options::check(class.options(), given).map_err(|error| error.problem)?;
    Ok(TransportPlan { class, options })
}

/// Parses `name=value,...` and checks it against the options that exist.
pub fn check_options(specs: &'static [OptionSpec], given: Option<&str>) -> Result<Options, String> {
    let words = given.unwrap_or_default().split(',').map(str::trim).filter(|word| !word.is_empty());
    let pairs = words
        .map(|word| {
            word.split_once('=').ok_or_else(|| format!("`{word}` is not an option: write name=value"))
        })
        .collect::<Result<Vec<_>, _>>()?;
    Options::check(specs, pairs).map_err(|error| error.problem)
}
