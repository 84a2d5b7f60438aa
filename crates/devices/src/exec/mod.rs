//! `exec:COMMAND`: a program; what it writes flows out, what flows in it reads.

mod program;
#[cfg(test)]
mod tests;

use crate::flows::{Flows, OUT};
use crate::plain::{self, os};
use crate::stream::{Channel, FRAME_OPTION, Framing, Gives, Inlet, MAX_OPTION, Outlet, Takes, now};
use contract::{
    Attributes, Ctl, CtlReply, Description, DeviceClass, DeviceError, DeviceSpec, Direction, FlowKey,
    FlowTemplate, Format, Interest, Message, Next, Opened, OptionSpec, Partner, PartnerError, Pull, PullSlot,
    Pulled, Pushed, Readiness, Role,
};
use program::{Outcome, Program};
use std::os::fd::AsFd;

/// The class.
#[derive(Debug)]
pub struct Exec;

const OPTIONS: &[OptionSpec] = &[FRAME_OPTION, MAX_OPTION];

impl DeviceClass for Exec {
    fn name(&self) -> &'static str {
        "exec"
    }

    fn summary(&self) -> &'static str {
        "a program: its output flows out, what flows in is its input"
    }

    fn doc(&self) -> &'static str {
        include_str!("doc.md")
    }

    fn target(&self) -> &'static str {
        "COMMAND"
    }

    fn has_role(&self, _role: Role) -> bool {
        true
    }

    fn options(&self) -> &'static [OptionSpec] {
        OPTIONS
    }

    fn open(&self, spec: &DeviceSpec, role: Role, _: Option<&Description>) -> Result<Opened, DeviceError> {
        Framing::of(spec)?;
        let started = program::start(&spec.target)
            .map_err(|error| os(format!("starting `{}`", spec.target), error, None))?;
        let description = plain::description(spec, plain::both_flows(), "stdout");
        let descriptors = vec![started.output, started.leash];
        Ok(Opened { spec: spec.clone(), role, description, descriptors })
    }

    fn release(&self, opened: &Opened) {
        if let [_, leash] = &opened.descriptors[..] {
            program::let_go(leash.as_fd());
        }
    }

    fn partner(&self, opened: Opened) -> Result<Box<dyn Partner>, DeviceError> {
        let framing = Framing::of(&opened.spec)?;
        let name = format!("`{}`", opened.spec.target);
        let [output, leash] = plain::descriptors(opened)?;
        let own = |end| Channel::own(end).map_err(|error| os(format!("preparing {name}"), error, None));
        let (program, input) = Program::new(leash)
            .map_err(|error| os(format!("asking for the input of {name}"), error, None))?;
        Ok(Box::new(ExecPartner {
            outlet: Outlet::new(name.clone(), own(output)?, framing),
            inlet: Inlet::new(name.clone(), own(input)?, framing),
            flows: Flows::new(true, true),
            slot: PullSlot::default(),
            program,
            name,
        }))
    }
}

#[derive(Debug)]
struct ExecPartner {
    outlet: Outlet,
    inlet: Inlet,
    flows: Flows,
    slot: PullSlot,
    program: Program,
    name: String,
}

/// Whether the program has ended; an error if it ended badly.
fn has_ended(program: &mut Program, name: &str) -> Result<bool, PartnerError> {
    let how = match program.outcome() {
        None => return Ok(false),
        Some(Outcome::Status(0)) => return Ok(true),
        Some(Outcome::Status(status)) => format!("it ended with status {status}"),
        Some(Outcome::Signal(signal)) => format!("it was ended by signal {signal}"),
        Some(Outcome::Unknown) => "it ended, and nobody knows how".into(),
    };
    Err(PartnerError::Os { operation: format!("running {name}"), error: std::io::Error::other(how) })
}

impl ExecPartner {
    /// Where nobody wants the program's output, it must not wait for someone to take it.
    fn discard_output(&mut self) -> Result<(), PartnerError> {
        if !self.flows.is_open(Direction::Out) {
            while let Next::Message(_) = self.outlet.next(now())? {}
        }
        Ok(())
    }
}

impl Partner for ExecPartner {
    fn open(&mut self, template: &FlowTemplate, _attributes: &Attributes) -> Result<FlowKey, PartnerError> {
        self.flows.open(template, &Format::Bytes)
    }

    fn close(&mut self, flow: FlowKey) -> Result<(), PartnerError> {
        match self.flows.close(flow)? {
            Direction::In => {
                let closed = self.inlet.close();
                self.program.close_input();
                closed
            }
            Direction::Out => Ok(()),
        }
    }

    fn push(&mut self, flow: FlowKey, message: Message) -> Result<Pushed, (PartnerError, Message)> {
        match self.flows.check(flow, Direction::In).and_then(|()| self.discard_output()) {
            Ok(()) => self.inlet.push(message),
            Err(error) => Err((error, message)),
        }
    }

    fn pull(&mut self, flow: FlowKey, want: Pull<'_>) -> Result<Pulled, PartnerError> {
        self.flows.check(flow, Direction::Out)?;
        let (outlet, program, name) = (&mut self.outlet, &mut self.program, &self.name);
        self.slot.answer(OUT, want, || match outlet.next(now())? {
            // A program's output ends when the program does; that may be later than its last byte.
            Next::End if !has_ended(program, name)? => Ok(Next::Nothing),
            next => Ok(next),
        })
    }

    fn ctl(&mut self, flow: FlowKey, operation: Ctl<'_>) -> Result<CtlReply, PartnerError> {
        self.flows.check_any(flow)?;
        match operation {
            Ctl::Flush => {
                self.discard_output()?;
                self.inlet.flush()
            }
            Ctl::Finish => {
                self.discard_output()?;
                let was_finished = self.inlet.is_finished();
                let finished = self.inlet.finish()?;
                if self.inlet.is_finished() && !was_finished {
                    self.program.close_input();
                }
                // What a program was given arrived when it ended well.
                match finished {
                    CtlReply::Done if !has_ended(&mut self.program, &self.name)? => Ok(CtlReply::Pending),
                    reply => Ok(reply),
                }
            }
            Ctl::Neutral => Ok(CtlReply::Done),
            Ctl::Partway | Ctl::Skip(_) => self.inlet.go_on(operation),
            Ctl::Report => Ok(CtlReply::Report(vec![
                ("read bytes", self.outlet.bytes() as f64),
                ("written bytes", self.inlet.bytes() as f64),
            ])),
            _ => Err(PartnerError::Unsupported("this operation")),
        }
    }

    fn readiness(&self, flow: FlowKey, direction: Direction) -> Readiness<'_> {
        if !self.flows.names(flow, direction) {
            return Readiness::never();
        }
        let end = Some((self.program.as_fd(), Interest::Read));
        match direction {
            Direction::Out if self.slot.is_held() => Readiness::now(),
            Direction::Out if self.outlet.has_ended() && self.program.has_said() => Readiness::never(),
            Direction::Out if self.outlet.has_ended() => {
                Readiness { descriptors: [end, None], ..Readiness::never() }
            }
            Direction::Out => self.outlet.readiness(),
            Direction::In => {
                let mut readiness = match self.inlet.is_finished() {
                    true => Readiness { descriptors: [end, None], ..Readiness::never() },
                    false => self.inlet.readiness(),
                };
                if !readiness.now && !self.flows.is_open(Direction::Out) {
                    readiness.descriptors[1] = self.outlet.readiness().descriptors[0];
                }
                readiness
            }
        }
    }
}
