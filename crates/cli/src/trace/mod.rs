//! `outboard trace`: measures the time that messages spend in each step inside this host, from the consoles of every
//! `share`, `attach` and `run` of this user ("Multimedia teleconferencing driver" (1995), chapters 4 and 5).

mod passage;
mod perfetto;
mod table;

use crate::arguments::Trace;
use crate::output::{Failure, print, print_json};
use crate::services::stop_on_signals;
use crate::terminal::{Terminal, pause};
use console::{Answer, Operation, PATIENCE, ask_all, survey};
use passage::Assembly;
use perfetto::TraceFile;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};
use sys::stop::Stop;
use table::{Table, View};

/// Time between two collections of stamps; a path stores a bounded number between them.
const COLLECT_INTERVAL: Duration = Duration::from_millis(250);
/// Time between two updates.
const SHOW_INTERVAL: Duration = Duration::from_secs(1);
/// Time after which the trace of a process that died has expired.
const REFUSED_PATIENCE: Duration = Duration::from_secs(4);
/// Default duration of a trace file.
const FILE_SECONDS: f64 = 10.0;

/// `outboard trace`.
pub(crate) fn trace(words: &Trace) -> Result<(), Failure> {
    let seconds = words.seconds.or(words.perfetto.as_ref().map(|_| FILE_SECONDS));
    let length = seconds.map(Duration::try_from_secs_f64).transpose();
    let length = length.map_err(|error| Failure::Usage(format!("--seconds: {error}")))?;
    if let Some(name) = &words.name {
        find(name)?;
    }
    // A trace that cannot be written at its end would be lost.
    if let Some(path) = &words.perfetto {
        perfetto::check(path, words.with.as_deref())?;
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
    tracer.release();
    result?;
    if let (Some(file), Some(path)) = (&tracer.file, &words.perfetto) {
        file.write(path, words.with.as_deref())?;
        if file.left_out > 0 {
            eprintln!("outboard: {} messages do not fit into {}", file.left_out, path.display());
        }
    }
    Ok(())
}

/// Checks that a device with this name is in use.
fn find(name: &str) -> Result<(), Failure> {
    let survey = survey(PATIENCE)?;
    if survey.statuses.iter().flat_map(|(_, status)| &status.drivers).any(|driver| driver.name == name) {
        return Ok(());
    }
    Err(Failure::Failed(format!(
        "this user has no device `{name}` in use here: `outboard top` lists the devices"
    )))
}

struct Tracer {
    name: Option<String>,
    sample: NonZeroU32,
    /// Reason of a refusal in the last round.
    refused: Option<String>,
    assembly: Assembly,
    table: Table,
    file: Option<TraceFile>,
}

impl Tracer {
    fn run(&mut self, length: Option<Duration>, json: bool) -> Result<(), Failure> {
        let begun = Instant::now();
        let stop = Stop::new()?;
        stop_on_signals(&stop)?;
        let mut terminal = if json { None } else { Terminal::take(&stop)? };
        let mut show_at = begun + SHOW_INTERVAL;
        loop {
            self.collect(false)?;
            let is_over = length.is_some_and(|length| begun.elapsed() >= length);
            if let Some(problem) = self.refused.take_if(|_| is_over || begun.elapsed() > REFUSED_PATIENCE) {
                return Err(Failure::Failed(problem));
            }
            let is_ended = match &mut terminal {
                Some(terminal) => {
                    let columns = terminal.columns();
                    let cut = |line: String| line.chars().take(columns).collect();
                    let lines: Vec<String> = self.table.view().lines().into_iter().map(cut).collect();
                    terminal.show(&lines, "q quits", COLLECT_INTERVAL)? == Some('q')
                }
                None => {
                    pause(COLLECT_INTERVAL, &stop);
                    false
                }
            };
            if is_over || is_ended || stop.is_requested() {
                break;
            }
            let is_due = Instant::now() >= show_at && self.refused.is_none();
            if terminal.is_none() && length.is_none() && is_due {
                write(&self.table.view(), json)?;
                show_at = Instant::now() + SHOW_INTERVAL;
            }
        }
        drop(terminal);
        self.collect(true)?;
        write(&self.table.view(), json)
    }

    fn question(&self, one_in: Option<NonZeroU32>) -> Operation {
        Operation::Trace { asker: std::process::id().into(), name: self.name.clone(), one_in }
    }

    /// Ends the trace at every console. A console that misses this ends it after a timeout.
    fn release(&self) {
        let _ = ask_all(self.question(None), SHOW_INTERVAL).map(Iterator::count);
    }

    /// Collects the new stamps of every console. Skips processes that end meanwhile.
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
}

fn write(view: &View<'_>, json: bool) -> Result<(), Failure> {
    match json {
        true => print_json(view),
        false => print(&format!("{}\n\n", view.lines().join("\n"))),
    }
}
