//! `exec:COMMAND`: a program. Its output flows out, and the flow in is its input.
//!
//! | module | purpose |
//! |---|---|
//! | `program` | starts, supervises and kills the program |
//! | `hello` | the first control frames of a program with `frame=declared` |
//! | `declared` | such a program as a partner |
//! | `containers` | its output |
//! | `frames` | its control frames |

mod containers;
mod declared;
mod frames;
mod hello;
mod program;
#[cfg(test)]
mod tests;

use crate::flows::{Endpoint, FlowPartner};
use crate::plain::{self, os};
use crate::stream::{
    Channel, FRAME_OPTION, Framing, MAX_OPTION, MessageReader, MessageWriter, StreamReader, StreamWriter,
};
use contract::{
    Ctl, CtlReply, Description, DeviceClass, DeviceError, DeviceSpec, Direction, FlowKey, FlowOffer,
    FlowTemplate, Format, Interest, Message, ModuleEntry, Next, Opened, OptionSpec, Partner, PartnerError,
    PartnerResult, PullSlot, Pushed, Readiness, RecoveryCtl, Role, Time,
};
use hello::{ADVICE, NoHello};
use program::{Outcome, Program, Started};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// The class `exec`.
#[derive(Debug)]
pub struct Exec;

const OPTIONS: &[OptionSpec] = &[FRAME, MAX_OPTION];

/// The option `frame`, with a value of this class alone.
const FRAME: OptionSpec = OptionSpec {
    doc: "framing of bytes into messages: `chunk(SIZE)`, `line` or `container`; `declared`: the program declares its format",
    ..FRAME_OPTION
};

/// Returns true if the program declares its flows.
fn is_declared(spec: &DeviceSpec) -> bool {
    spec.options.text(FRAME.name) == "declared"
}

fn name(spec: &DeviceSpec) -> String {
    format!("`{}`", spec.target)
}

fn start(spec: &DeviceSpec) -> Result<Started, DeviceError> {
    program::start(&spec.target, is_declared(spec))
        .map_err(|error| os(format!("starting {}", name(spec)), error, None))
}

fn refused(spec: &DeviceSpec, problem: String) -> DeviceError {
    DeviceError::Spec { what: format!("`exec:{}`", spec.target), problem }
}

/// Time between the end of the control frames and the exit of the program.
const EXIT_PATIENCE: Duration = Duration::from_secs(1);

/// Exchanges hellos, and gives the reason why there is none.
fn exchange(
    (frames, control): (BorrowedFd<'_>, BorrowedFd<'_>),
    role: Role,
    like: Option<&Description>,
) -> Result<hello::Declaration, String> {
    hello::exchange(frames, role, like).map_err(|error| match error {
        NoHello::Problem(problem) => problem,
        NoHello::Closed => match program::exit_within(control, EXIT_PATIENCE) {
            Some(outcome) => format!("{outcome}, without a hello: {ADVICE}"),
            None => format!("it closed descriptor 3 without a hello: {ADVICE}"),
        },
    })
}

/// Starts a program that declares its flows. A program that is started `again` may take its time: the partner checks that it declares
/// the same.
fn open_declared(
    spec: &DeviceSpec,
    role: Role,
    like: Option<&Description>,
    again: Option<&Description>,
) -> Result<Opened, DeviceError> {
    let written = sys::memory::create("outboard-exec", size_of::<u64>())
        .map_err(|error| plain::os("preparing shared memory".into(), error, None))?;
    let Started { output, control, frames } = start(spec)?;
    let frames = frames.expect("the program was started with a socket for frames");
    let description = match again {
        Some(known) => hello::request(frames.as_fd(), role, None).map(|()| known.clone()),
        None => exchange((frames.as_fd(), control.as_fd()), role, like).and_then(|declared| {
            like.filter(|_| role == Role::Application)
                .map_or(Ok(()), |like| hello::check_flows(&declared, like))?;
            let plain = plain::description(spec, declared.flows, "stdout");
            let summary = if declared.summary.is_empty() { plain.summary } else { declared.summary };
            Ok(Description { summary, properties: vec![declared.has_snapshots.into()], ..plain })
        }),
    };
    match description {
        Ok(description) => {
            let descriptors = vec![output, control, frames, written];
            Ok(Opened { spec: spec.clone(), role, description, descriptors })
        }
        Err(problem) => {
            program::release(control.as_fd());
            Err(refused(spec, problem))
        }
    }
}

impl DeviceClass for Exec {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry {
            name: "exec",
            summary: "a program: its output flows out, the flow in is its input",
            doc: include_str!("doc.md"),
            options: OPTIONS,
        }
    }

    fn target(&self) -> &'static str {
        "COMMAND"
    }

    fn flows(&self, spec: &DeviceSpec) -> Result<Vec<FlowOffer>, DeviceError> {
        if let Some(word) = program::unknown(&spec.target) {
            return Err(refused(spec, format!("there is no program `{word}`")));
        }
        if is_declared(spec) {
            return Ok(Vec::new());
        }
        Framing::of(spec)?;
        Ok(plain::both_flows())
    }

    fn open(&self, spec: &DeviceSpec, role: Role, like: Option<&Description>) -> Result<Opened, DeviceError> {
        let flows = self.flows(spec)?;
        if is_declared(spec) {
            return open_declared(spec, role, like, None);
        }
        let Started { output, control, .. } = start(spec)?;
        let description = plain::description(spec, flows, "stdout");
        Ok(Opened { spec: spec.clone(), role, description, descriptors: vec![output, control] })
    }

    fn reopen(&self, spec: &DeviceSpec, role: Role, known: &Description) -> Result<Opened, DeviceError> {
        match is_declared(spec) {
            true => open_declared(spec, role, None, Some(known)),
            false => self.open(spec, role, Some(known)),
        }
    }

    /// The program is a child of this process.
    fn can_hand_over(&self, _: &Opened) -> bool {
        false
    }

    fn release(&self, opened: &Opened) {
        if let [_, control, ..] = &opened.descriptors[..] {
            program::release(control.as_fd());
        }
    }

    fn partner(&self, opened: Opened) -> Result<Box<dyn Partner>, DeviceError> {
        if is_declared(&opened.spec) {
            return declared::partner(opened);
        }
        let framing = Framing::of(&opened.spec)?;
        let name = name(&opened.spec);
        let [output, control] = plain::descriptors(opened)?;
        let own = |end| Channel::own(end).map_err(|error| os(format!("preparing {name}"), error, None));
        let (program, input) = Program::new(control)
            .map_err(|error| os(format!("requesting the input of {name}"), error, None))?;
        let partner = ExecPartner {
            reader: StreamReader::new(name.clone(), own(output)?, framing),
            running: Running {
                writer: StreamWriter::new(name.clone(), own(input)?, framing),
                is_out_open: false,
                program,
                name,
            },
        };
        Ok(Box::new(FlowPartner::new(partner, Some(Format::Bytes), Some(Format::Bytes))))
    }
}

#[derive(Debug)]
struct ExecPartner {
    reader: StreamReader,
    running: Running,
}

/// A program and its input: the part that both partners have.
#[derive(Debug)]
struct Running {
    name: String,
    writer: StreamWriter,
    program: Program,
    is_out_open: bool,
}

impl Running {
    /// Returns true if the program has exited with status 0, an error if it has exited otherwise.
    fn has_ended(&mut self) -> PartnerResult<bool> {
        let failure = match self.program.outcome() {
            None => return Ok(false),
            Some(Outcome::Status(0)) => return Ok(true),
            Some(outcome) => outcome,
        };
        let operation = format!("running {}", self.name);
        Err(PartnerError::Os { operation, error: std::io::Error::other(failure.to_string()) })
    }

    /// Ends the program's input after everything is written, and waits for its exit.
    fn finish(&mut self) -> PartnerResult<CtlReply> {
        let was_finished = self.writer.is_finished();
        let finished = self.writer.finish()?;
        if self.writer.is_finished() && !was_finished {
            self.program.close_input();
        }
        // Only a successful exit shows that the program has processed its input.
        match finished {
            CtlReply::Done if !self.has_ended()? => Ok(CtlReply::Pending),
            reply => Ok(reply),
        }
    }

    fn opened(&mut self, direction: Direction) {
        self.is_out_open |= direction == Direction::Out;
    }

    fn closed(&mut self, direction: Direction) -> PartnerResult {
        match direction {
            Direction::In => {
                let closed = self.writer.close();
                self.program.close_input();
                closed
            }
            Direction::Out => {
                self.is_out_open = false;
                Ok(())
            }
        }
    }
}

impl ExecPartner {
    /// Reads and discards the output while the flow out is not open: otherwise the program would block on a full pipe.
    fn discard_output(&mut self) -> PartnerResult {
        match self.running.is_out_open {
            true => Ok(()),
            false => self.reader.discard(),
        }
    }
}

impl Endpoint for ExecPartner {
    fn opened(&mut self, template: &FlowTemplate, _slot: &mut PullSlot) -> PartnerResult {
        self.running.opened(template.direction);
        Ok(())
    }

    fn closed(&mut self, direction: Direction, _slot: &mut PullSlot) -> PartnerResult {
        self.running.closed(direction)
    }

    fn push(&mut self, message: Message) -> Result<Pushed, (PartnerError, Message)> {
        match self.discard_output() {
            Ok(()) => self.running.writer.push(message),
            Err(error) => Err((error, message)),
        }
    }

    fn next(&mut self, now: Time) -> PartnerResult<Next> {
        match self.reader.next(now)? {
            // The flow ends with the program, which may close its output earlier.
            Next::End if !self.running.has_ended()? => Ok(Next::Nothing),
            next => Ok(next),
        }
    }

    fn ctl(&mut self, _flow: FlowKey, operation: Ctl<'_>, _slot: &mut PullSlot) -> PartnerResult<CtlReply> {
        match operation {
            Ctl::Flush => {
                self.discard_output()?;
                self.running.writer.flush()
            }
            Ctl::Finish => {
                self.discard_output()?;
                self.running.finish()
            }
            Ctl::Neutral => Ok(CtlReply::Done),
            Ctl::Recovery(RecoveryCtl::PartialWrite) | Ctl::Recovery(RecoveryCtl::Skip(_)) => {
                self.running.writer.resume_write(operation)
            }
            Ctl::Report => Ok(CtlReply::Report(vec![
                ("read bytes", self.reader.bytes() as f64),
                ("written bytes", self.running.writer.bytes() as f64),
            ])),
            _ => Err(PartnerError::Unsupported("this operation")),
        }
    }

    fn readiness(&self, direction: Direction) -> Readiness<'_> {
        let exit = Some((self.running.program.as_fd(), Interest::Read));
        match direction {
            Direction::Out if self.reader.has_ended() && self.running.program.has_outcome() => {
                Readiness::never()
            }
            Direction::Out if self.reader.has_ended() => {
                Readiness { descriptors: [exit, None], ..Readiness::never() }
            }
            Direction::Out => self.reader.readiness(),
            Direction::In => {
                let mut readiness = match self.running.writer.is_finished() {
                    true => Readiness { descriptors: [exit, None], ..Readiness::never() },
                    false => self.running.writer.readiness(),
                };
                if !readiness.now && !self.running.is_out_open {
                    readiness.descriptors[1] = self.reader.readiness().descriptors[0];
                }
                readiness
            }
        }
    }
}
