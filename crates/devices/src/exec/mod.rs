//! `exec:COMMAND`: a program; what it writes flows out, what flows in it reads.

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
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process_group, pidfd_open, waitid,
};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

/// The class.
#[derive(Debug)]
pub struct Exec;

const OPTIONS: &[OptionSpec] = &[FRAME_OPTION, MAX_OPTION];

/// How long a killed program may take to be gone before it is left to the system.
const REAP_MS: u64 = 200;

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
        let refused = |error| os(format!("starting `{}`", spec.target), error, None);
        // A group of its own, so that the whole pipeline of a shell can be ended.
        let mut child = Command::new("/bin/sh")
            .args(["-c", &spec.target])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(refused)?;
        let pid = Pid::from_child(&child);
        let ends = child.stdin.take().map(OwnedFd::from).zip(child.stdout.take().map(OwnedFd::from));
        let process = pidfd_open(pid, PidfdFlags::empty());
        let ((stdin, stdout), process) = match (ends, process) {
            (Some(ends), Ok(process)) => (ends, process),
            (_, error) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(refused(error.err().unwrap_or(Errno::BADF).into()));
            }
        };
        let mut description = plain::description(spec, plain::both_flows(), "stdout");
        description.properties = pid.as_raw_pid().to_le_bytes().to_vec();
        Ok(Opened { spec: spec.clone(), role, description, descriptors: vec![stdout, stdin, process] })
    }

    /// Who started a program knows how it ended, and nobody else.
    fn is_lockable(&self, _role: Role) -> bool {
        false
    }

    fn partner(&self, opened: Opened) -> Result<Box<dyn Partner>, DeviceError> {
        let framing = Framing::of(&opened.spec)?;
        let name = format!("`{}`", opened.spec.target);
        let pid = <[u8; 4]>::try_from(&opened.description.properties[..]).ok();
        let pid = pid.and_then(|pid| Pid::from_raw(i32::from_le_bytes(pid))).ok_or_else(|| {
            DeviceError::Spec { what: name.clone(), problem: "the broker handed over no process id".into() }
        })?;
        let [stdout, stdin, process] = plain::descriptors(opened)?;
        let program = Program { name: name.clone(), pid, process, outcome: None };
        let own = |end| Channel::own(end).map_err(|error| os(format!("preparing {name}"), error, None));
        Ok(Box::new(ExecPartner {
            outlet: Outlet::new(name.clone(), own(stdout)?, framing),
            inlet: Inlet::new(name.clone(), own(stdin)?, framing),
            flows: Flows::new(true, true),
            slot: PullSlot::default(),
            program,
        }))
    }
}

/// The process group of a program. Dropped, it is killed and reaped.
#[derive(Debug)]
struct Program {
    name: String,
    pid: Pid,
    process: OwnedFd,
    /// Once it has ended: its exit status, or the number of the signal that ended it.
    outcome: Option<Outcome>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Status(i32),
    Signal(i32),
}

impl Program {
    /// Whether the program has ended; an error if it ended badly.
    fn has_ended(&mut self) -> Result<bool, PartnerError> {
        self.reap();
        let how = match self.outcome {
            None => return Ok(false),
            Some(Outcome::Status(0)) => return Ok(true),
            Some(Outcome::Status(status)) => format!("it ended with status {status}"),
            Some(Outcome::Signal(signal)) => format!("it was ended by signal {signal}"),
        };
        Err(PartnerError::Os {
            operation: format!("running {}", self.name),
            error: std::io::Error::other(how),
        })
    }

    fn reap(&mut self) {
        if self.outcome.is_some() {
            return;
        }
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        self.outcome = match waitid(WaitId::PidFd(self.process.as_fd()), options) {
            Ok(None) => None,
            Ok(Some(status)) => Some(match (status.exit_status(), status.terminating_signal()) {
                (Some(status), _) => Outcome::Status(status),
                (None, signal) => Outcome::Signal(signal.unwrap_or(0)),
            }),
            // It is no child of this process (any more): whoever started it has its status.
            Err(Errno::CHILD) => Some(Outcome::Status(0)),
            Err(_) => None,
        };
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.reap();
        if self.outcome.is_some() {
            return;
        }
        // Not reaped yet, so the number still belongs to this group.
        let _ = kill_process_group(self.pid, Signal::KILL);
        for _ in 0..REAP_MS {
            self.reap();
            if self.outcome.is_some() {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[derive(Debug)]
struct ExecPartner {
    outlet: Outlet,
    inlet: Inlet,
    flows: Flows,
    slot: PullSlot,
    program: Program,
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
            Direction::In => self.inlet.close(),
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
        let (outlet, program) = (&mut self.outlet, &mut self.program);
        self.slot.answer(OUT, want, || match outlet.next(now())? {
            // A program's output ends when the program does; that may be later than its last byte.
            Next::End if !program.has_ended()? => Ok(Next::Nothing),
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
                // What a program was given arrived when it ended well.
                match self.inlet.finish()? {
                    CtlReply::Done if !self.program.has_ended()? => Ok(CtlReply::Pending),
                    reply => Ok(reply),
                }
            }
            Ctl::Neutral => Ok(CtlReply::Done),
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
        let end = Some((self.program.process.as_fd(), Interest::Read));
        match direction {
            Direction::Out if self.slot.is_held() => Readiness::now(),
            Direction::Out if self.outlet.has_ended() && self.program.outcome.is_some() => Readiness::never(),
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
