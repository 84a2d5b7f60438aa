//! `outboard control`: shows and changes the settings of a device, through the console of its `attach`.

use crate::arguments::Control;
use crate::change::find;
use crate::output::{Failure, print, print_json, printable};
use console::{Answer, Operation, ask};
use serde::Serialize;

/// Output of `--json`.
#[derive(Serialize)]
struct Report<'a> {
    name: &'a str,
    controls: Vec<&'a str>,
}

/// `outboard control`.
pub(crate) fn control(words: Control) -> Result<(), Failure> {
    let Control { name, settings, json } = words;
    let console = find(&name, false)?;
    let operation = Operation::Say { name: name.clone(), words: settings.join("\n") };
    let answer = ask(&console, &operation)
        .map_err(|error| Failure::Failed(format!("{}: no answer: {error}", console.display())))?;
    match answer {
        Answer::Said { text } => {
            let controls: Vec<_> = text.lines().collect();
            if json.json {
                return print_json(&Report { name: &name, controls });
            }
            let text =
                if controls.is_empty() { format!("{name} has no settings") } else { controls.join("\n") };
            print(&printable(&format!("{text}\n")))
        }
        Answer::Refused { problem } => Err(Failure::Failed(printable(&problem))),
        other => Err(Failure::Failed(format!("{}: unexpected answer {other:?}", console.display()))),
    }
}
