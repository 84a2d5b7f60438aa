//! `exec:COMMAND`: a program. Its output flows out, and the flow in is its input.

mod program;
#[cfg(test)]
mod tests;

use crate::flows::{Endpoint, FlowPartner};
use crate::plain::{self, os};
use crate::stream::{
    Channel, FRAME_OPTION, Framing, MAX_OPTION, MessageReader, MessageWriter, StreamReader, StreamWriter, now,
};
use contract::{
    Ctl, CtlReply, Description, DeviceClass, DeviceError, DeviceSpec, Direction, FlowKey, FlowOffer,
    FlowTemplate, Format, Interest, Message, ModuleEntry, Next, Opened, OptionSpec, Partner, PartnerError,
    PartnerResult, PullSlot, Pushed, Readiness, RecoveryCtl, Role, Time,
};
use program::{Outcome, Program};
use std::os::fd::AsFd;

/// The class `exec`.
#[derive(Debug)]
pub struct Exec;

const OPTIONS: &[OptionSpec] = &[FRAME_OPTION, MAX_OPTION];

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
        Framing::of(spec)?;
        if let Some(word) = program::unknown(&spec.target) {
            let problem = format!("there is no program `{word}`");
            return Err(DeviceError::Spec { what: format!("`exec:{}`", spec.target), problem });
        }
        Ok(plain::both_flows())
    }

    fn open(&self, spec: &DeviceSpec, role: Role, _: Option<&Description>) -> Result<Opened, DeviceError> {
        let flows = self.flows(spec)?;
        let started = program::start(&spec.target)
            .map_err(|error| os(format!("starting `{}`", spec.target), error, None))?;
        let description = plain::description(spec, flows, "stdout");
        let descriptors = vec![started.output, started.control];
        Ok(Opened { spec: spec.clone(), role, description, descriptors })
    }

    /// The program is a child of this process.
    fn can_hand_over(&self, _: Role) -> bool {
        false
    }

    fn release(&self, opened: &Opened) {
        if let [_, control] = &opened.descriptors[..] {
            program::release(control.as_fd());
        }
    }

    fn partner(&self, opened: Opened) -> Result<Box<dyn Partner>, DeviceError> {
        let framing = Framing::of(&opened.spec)?;
        let name = format!("`{}`", opened.spec.target);
        let [output, control] = plain::descriptors(opened)?;
        let own = |end| Channel::own(end).map_err(|error| os(format!("preparing {name}"), error, None));
        let (program, input) = Program::new(control)
            .map_err(|error| os(format!("requesting the input of {name}"), error, None))?;
        let partner = ExecPartner {
            reader: StreamReader::new(name.clone(), own(output)?, framing),
            writer: StreamWriter::new(name.clone(), own(input)?, framing),
            is_out_open: false,
            program,
            name,
        };
        Ok(Box::new(FlowPartner::new(partner, Some(Format::Bytes), Some(Format::Bytes))))
    }
}

#[derive(Debug)]
struct ExecPartner {
    reader: StreamReader,
    writer: StreamWriter,
    is_out_open: bool,
    program: Program,
    name: String,
}

/// Returns true if the program has exited with status 0, an error if it has exited otherwise.
fn has_ended(program: &mut Program, name: &str) -> PartnerResult<bool> {
    let failure = match program.outcome() {
        None => return Ok(false),
        Some(Outcome::Status(0)) => return Ok(true),
        Some(Outcome::Status(status)) => format!("it exited with status {status}"),
        Some(Outcome::Signal(signal)) => format!("it was killed by signal {signal}"),
        Some(Outcome::Unknown) => "it exited, and its status is unknown".into(),
    };
    Err(PartnerError::Os { operation: format!("running {name}"), error: std::io::Error::other(failure) })
}

impl ExecPartner {
    /// Reads and discards the output while the flow out is not open: otherwise the program would block on a full pipe.
    fn discard_output(&mut self) -> PartnerResult {
        if !self.is_out_open {
            while let Next::Message(_) = self.reader.next(now())? {}
        }
        Ok(())
    }
}

impl Endpoint for ExecPartner {
    fn opened(&mut self, template: &FlowTemplate, _slot: &mut PullSlot) -> PartnerResult {
        self.is_out_open |= template.direction == Direction::Out;
        Ok(())
    }

    fn closed(&mut self, direction: Direction, _slot: &mut PullSlot) -> PartnerResult {
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

    fn push(&mut self, message: Message) -> Result<Pushed, (PartnerError, Message)> {
        match self.discard_output() {
            Ok(()) => self.writer.push(message),
            Err(error) => Err((error, message)),
        }
    }

    fn next(&mut self, now: Time) -> PartnerResult<Next> {
        match self.reader.next(now)? {
            // The flow ends with the program, which may close its output earlier.
            Next::End if !has_ended(&mut self.program, &self.name)? => Ok(Next::Nothing),
            next => Ok(next),
        }
    }

    fn ctl(&mut self, _flow: FlowKey, operation: Ctl<'_>, _slot: &mut PullSlot) -> PartnerResult<CtlReply> {
        match operation {
            Ctl::Flush => {
                self.discard_output()?;
                self.writer.flush()
            }
            Ctl::Finish => {
                self.discard_output()?;
                let was_finished = self.writer.is_finished();
                let finished = self.writer.finish()?;
                if self.writer.is_finished() && !was_finished {
                    self.program.close_input();
                }
                // Only a successful exit shows that the program has processed its input.
                match finished {
                    CtlReply::Done if !has_ended(&mut self.program, &self.name)? => Ok(CtlReply::Pending),
                    reply => Ok(reply),
                }
            }
            Ctl::Neutral => Ok(CtlReply::Done),
            Ctl::Recovery(RecoveryCtl::PartialWrite) | Ctl::Recovery(RecoveryCtl::Skip(_)) => {
                self.writer.resume_write(operation)
            }
            Ctl::Report => Ok(CtlReply::Report(vec![
                ("read bytes", self.reader.bytes() as f64),
                ("written bytes", self.writer.bytes() as f64),
            ])),
            _ => Err(PartnerError::Unsupported("this operation")),
        }
    }

    fn readiness(&self, direction: Direction) -> Readiness<'_> {
        let exit = Some((self.program.as_fd(), Interest::Read));
        match direction {
            Direction::Out if self.reader.has_ended() && self.program.has_outcome() => Readiness::never(),
            Direction::Out if self.reader.has_ended() => {
                Readiness { descriptors: [exit, None], ..Readiness::never() }
            }
            Direction::Out => self.reader.readiness(),
            Direction::In => {
                let mut readiness = match self.writer.is_finished() {
                    true => Readiness { descriptors: [exit, None], ..Readiness::never() },
                    false => self.writer.readiness(),
                };
                if !readiness.now && !self.is_out_open {
                    readiness.descriptors[1] = self.reader.readiness().descriptors[0];
                }
                readiness
            }
        }
    }
}
