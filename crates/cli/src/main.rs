//! `outboard`: shares I/O devices with other hosts, for unchanged applications.

mod arguments;
mod bench;
mod browse;
mod catalogue;
mod change;
mod confined;
mod confirm;
mod control;
mod demo;
mod doctor;
mod log_lines;
mod log_writer;
mod module;
mod network_path;
mod output;
mod pair;
mod partners;
mod run;
mod services;
mod shell;
mod terminal;
mod top;
mod trace;
mod whatif;
mod wrong_words;

use arguments::Command;
use output::Failure;

fn main() -> ! {
    let done = match wrong_words::parse().command {
        Command::Pair(words) => pair::pair(words),
        Command::Peers(words) => pair::peers(words),
        Command::Devices(words) => browse::devices(words),
        Command::Find { seconds, json } => browse::find(seconds, json.json),
        Command::Share(words) => services::share(words),
        Command::Attach(words) => services::attach(words),
        Command::Connect(words) => services::connect(words),
        Command::Run(words) => run::run(words),
        Command::Reload { process, json } => run::reload(process, json.json),
        Command::Health { process, json } => run::health(process, json.json),
        Command::Modules { name, json } => catalogue::modules(name.as_deref(), json.json),
        Command::Top { once, json } => top::top(once, json.json),
        Command::Trace(words) => trace::trace(&words),
        Command::Change(words) => change::change(words),
        Command::Control(words) => control::control(words),
        Command::Module(words) => module::module(words),
        Command::Confined(words) => confined::confined(words),
        Command::Worker { name: _ } => services::worker(),
        Command::Doctor { json } => doctor::doctor(json.json),
        Command::Demo(words) => demo::demo(&words),
        Command::Whatif(words) => whatif::whatif(&words),
        Command::Bench { words } => bench::bench(&words),
        Command::Completions { shell } => shell::completions(shell),
        Command::Man { directory } => shell::man(directory.as_deref()),
    };
    sys::exit::end(match done {
        Ok(()) => 0,
        Err(failure) => failure.report(),
    })
}

impl From<contract::ServiceError> for Failure {
    fn from(error: contract::ServiceError) -> Self {
        use contract::ServiceError;
        let text = error.to_string();
        match error {
            ServiceError::Usage(_) => Failure::Usage(text),
            ServiceError::Device(contract::DeviceError::Spec { .. } | contract::DeviceError::Role { .. }) => {
                Failure::Usage(text)
            }
            _ => Failure::Failed(text),
        }
    }
}
