//! `outboard trace`: where the time of messages goes inside this host (paper M, chapters 4 and 5), asked of every
//! `share`, `attach` and `run` of this user through their consoles.

mod passage;
mod perfetto;
mod table;

use crate::arguments::Trace;
use crate::output::{Failure, print};
use crate::terminal::Terminal;
use passage::Assembly;
use perfetto::TraceFile;
use runtime::console::{Answer, Operation, PATIENCE, ask_all, survey};
use std::num::NonZeroU32;
use std::time::{Duration, Instant};
use table::{Table, View};

/// Time between two collections of stamps: what paths keep in between is bounded.
const COLLECT_INTERVAL: Duration = Duration::from_millis(250);
/// Time between two looks.
const SHOW_INTERVAL: Duration = Duration::from_secs(1);
/// How long another may still be thought to trace who has gone.
const REFUSED_PATIENCE: Duration = Duration::from_secs(4);
/// How long a trace file is of, if nothing else is said.
const FILE_SECONDS: f64 = 10.0;

/// `outboard trace`.
pub(crate) fn trace(words: &Trace) -> Result<(), Failure> {
    let seconds = words.seconds.or(words.perfetto.as_ref().map(|_| FILE_SECONDS));
    let length = seconds.map(Duration::try_from_secs_f64).transpose();
    let length = length.map_err(|error| Failure::Usage(format!("--seconds: {error}")))?;
    if let Some(name) = &words.name {
        find(name)?;
    }
    let mut tracer = Tracer {
        name: words.name.clone(),
        sample: words.sample,
        refused: None,
        assembly: Assembly::default(),
        table: Table::default(),
        file: words.perfetto.as_ref().map(|_| TraceFile::default()),
    };
    let result = tracer.run(length, words.json.json);
    tracer.say_end();
    result?;
    if let (Some(file), Some(path)) = (&tracer.file, &words.perfetto) {
        file.write(path, words.with.as_deref())?;
        if file.left_out > 0 {
            eprintln!("outboard: {} messages found no place in {}", file.left_out, path.display());
        }
    }
    Ok(())
}

/// Whether something of this name runs.
fn find(name: &str) -> Result<(), Failure> {
    let survey = survey(PATIENCE)?;
    if survey.told.iter().flat_map(|(_, status)| &status.drivers).any(|driver| driver.name == name) {
        return Ok(());
    }
    Err(Failure::Failed(format!(
        "no device `{name}` is in use here: `outboard top` lists those that are, and this user's alone are seen"
    )))
}

struct Tracer {
    name: Option<String>,
    sample: NonZeroU32,
    /// What one of the last answers said.
    refused: Option<String>,
    assembly: Assembly,
    table: Table,
    file: Option<TraceFile>,
}

impl Tracer {
    fn run(&mut self, length: Option<Duration>, json: bool) -> Result<(), Failure> {
        let begun = Instant::now();
        let terminal = if json { None } else { Terminal::take()? };
        let mut show_at = begun + SHOW_INTERVAL;
        loop {
            self.collect(false)?;
            let is_over = length.is_some_and(|length| begun.elapsed() >= length);
            if let Some(problem) = self.refused.take_if(|_| is_over || begun.elapsed() > REFUSED_PATIENCE) {
                return Err(Failure::Failed(problem));
            }
            let is_ended = match &terminal {
                Some(terminal) => {
                    self.show(terminal)?;
                    terminal.key(COLLECT_INTERVAL) == Some('q')
                }
                None => {
                    std::thread::sleep(COLLECT_INTERVAL);
                    false
                }
            };
            if is_over || is_ended {
                break;
            }
            let is_due = Instant::now() >= show_at && self.refused.is_none();
            if terminal.is_none() && length.is_none() && is_due {
                tell(&self.table.view(), json)?;
                show_at = Instant::now() + SHOW_INTERVAL;
            }
        }
        drop(terminal);
        self.collect(true)?;
        tell(&self.table.view(), json)
    }

    fn question(&self, one_in: Option<NonZeroU32>) -> Operation {
        Operation::Trace { asker: std::process::id().into(), name: self.name.clone(), one_in }
    }

    /// Tells every console that it is over; one that does not hear it finds out by itself.
    fn say_end(&self) {
        let _ = ask_all(self.question(None), SHOW_INTERVAL).map(Iterator::count);
    }

    /// Asks every console for what was stamped since. One that ends meanwhile is left out.
    fn collect(&mut self, is_last: bool) -> Result<(), Failure> {
        self.refused = None;
        for (_, answer) in ask_all(self.question(Some(self.sample)), SHOW_INTERVAL)? {
            match answer {
                Ok(Answer::Traced(traced)) => {
                    for flow in &traced.flows {
                        let path = self.assembly.add(&traced.role, traced.process, flow);
                        self.table.count(&path, &flow.stamps);
                        if let Some(file) = &mut self.file {
                            file.set_offset(&flow.name, flow.offset_ns);
                        }
                    }
                }
                Ok(Answer::Refused { problem }) => self.refused = Some(problem),
                _ => {}
            }
        }
        for passage in self.assembly.finish(is_last) {
            self.table.add(&passage);
            if let Some(file) = &mut self.file {
                file.add(&passage);
            }
        }
        self.table.set_unfinished(&self.assembly.unfinished);
        Ok(())
    }

    fn show(&self, terminal: &Terminal) -> Result<(), Failure> {
        let mut lines = self.table.view().lines();
        let keys = if terminal.has_keys() { "q ends it" } else { "Ctrl-C ends it" };
        lines.extend([String::new(), keys.into()]);
        let columns = terminal.columns();
        let cut = |line: String| line.chars().take(columns).collect();
        Ok(terminal.show(&lines.into_iter().map(cut).collect::<Vec<String>>())?)
    }
}

fn tell(view: &View<'_>, json: bool) -> Result<(), Failure> {
    match json {
        true => {
            let text = serde_json::to_string(view).map_err(|error| Failure::Failed(error.to_string()))?;
            print(&format!("{text}\n"))
        }
        false => print(&format!("{}\n\n", view.lines().join("\n"))),
    }
}
