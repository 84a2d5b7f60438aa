//! What an attacher is asked at its console, and what is changed of its flows, by who asks there or by the other host.

use super::{Attacher, Driver};
use crate::agree::Pipelines;
use crate::change::{self, Changes, Step, driver_of};
use crate::console::{Answer, DriverStatus, Operation, PeerStatus, Status};
use crate::driver::FlowPlan;
use crate::share::now;
use crate::worker::Command;
use contract::Role;
use pipeline::Edit;
use std::num::NonZeroU32;
use wire::Control;

impl Attacher {
    /// Answers who asks what it does.
    pub(super) fn attend_console(&mut self) {
        let Some(mut console) = self.console.take() else { return };
        for (visitor, operation) in console.poll(&mut self.poller) {
            match operation {
                Operation::Stats {} => {
                    let peers = vec![self.peer_status()];
                    let status = Status { peers, ..Status::of("attach", self.status()) };
                    console.answer(visitor, &Answer::Status(status), &mut self.poller);
                }
                Operation::Reload {} => {
                    console.answer(visitor, &Answer::no_file(), &mut self.poller);
                }
                Operation::Change { name, back, edit } => {
                    let step = self.ask_change(visitor, &name, back, &edit);
                    self.step(step);
                }
                Operation::Say { name, words } => self.say(visitor, &name, words),
                Operation::Trace { asker, name, one_in } => {
                    let answer = self.trace(asker, name.as_deref(), one_in);
                    console.answer(visitor, &answer, &mut self.poller);
                }
            }
        }
        for (visitor, answer) in self.answers.drain(..) {
            console.answer(visitor, &answer, &mut self.poller);
        }
        self.console = Some(console);
    }

    /// Passes words on to what stands in for a device here.
    fn say(&mut self, visitor: u64, name: &str, words: String) {
        let number = self.drivers.iter().position(|driver| driver.name == name && driver.plans.is_some());
        match number {
            Some(number) => self.workers.send(Command::Say { driver: number as u32, visitor, words }),
            None => {
                let problem = format!("no device `{name}` is in use here");
                self.answers.push((visitor, Answer::Refused { problem }));
            }
        }
    }

    /// Answers with what was traced until now, and has it go on.
    fn trace(&mut self, asker: u64, name: Option<&str>, one_in: Option<NonZeroU32>) -> Answer {
        let is_named = |driver: &Driver| name.is_none_or(|name| driver.name == name);
        if self.drivers.iter().any(is_named) && !self.tracing.ask(asker, one_in, now()) {
            return Answer::traced_already();
        }
        for (driver, _) in (0..).zip(&self.drivers).filter(|(_, driver)| is_named(driver)) {
            self.workers.send(Command::Trace { driver, one_in });
        }
        self.tracing.answer(asker, "attach")
    }

    fn ask_change(&mut self, visitor: u64, name: &str, back: bool, edit: &Edit) -> Step {
        let direction = change::direction(back);
        let plans = self.drivers.iter().filter(|driver| driver.name == name);
        let mut plans = plans.flat_map(|driver| driver.plans.iter().flatten());
        match plans.find(|plan| plan.direction == direction) {
            Some(plan) => self.changes.ask(visitor, Role::Application, plan, edit),
            None => Step::Answer(visitor, change::no_such_flow(name, back)),
        }
    }

    pub(super) fn step(&mut self, step: Step) {
        match step {
            Step::Command(command) => self.workers.send(command),
            // A failing control channel shows when it is next served.
            Step::Say(message) => drop(self.link.send(&message)),
            Step::Answer(visitor, answer) => self.answers.push((visitor, answer)),
            Step::Wait => {}
            Step::TakeUp(flow, wish) => self.change_flow(flow, |changes, plan, own| {
                vec![changes.take_up(&wish, Role::Application, plan, own)]
            }),
        }
    }

    /// What the other host wants changed.
    pub(super) fn handle_change(&mut self, message: &Control) {
        let Some(flow) = change::flow_of(message) else { return };
        self.change_flow(flow, |changes, plan, own| changes.handle(message, plan, own));
    }

    fn change_flow(&mut self, flow: u32, act: impl FnOnce(&mut Changes, &FlowPlan, &Pipelines) -> Vec<Step>) {
        let Some(driver) = self.drivers.get(driver_of(flow) as usize) else { return };
        let Some(plan) = driver.plans.iter().flatten().find(|plan| plan.flow == flow) else { return };
        let steps = act(&mut self.changes, plan, &driver.pipelines);
        steps.into_iter().for_each(|step| self.step(step));
    }

    /// Gives up what was asked of a driver that is gone.
    pub(super) fn forget_changes(&mut self, driver: u32) {
        self.changes.forget(driver).into_iter().for_each(|step| self.step(step));
    }

    /// What it runs, with the last figures.
    fn status(&self) -> Vec<DriverStatus> {
        let one = |driver: &Driver| DriverStatus {
            name: driver.name.clone(),
            peer: self.peer.to_string(),
            node: driver.node.clone(),
            at_ns: driver.stats.0.0,
            stats: driver.stats.1.clone(),
        };
        self.drivers.iter().filter(|driver| driver.plans.is_some()).map(one).collect()
    }

    pub(super) fn peer_status(&self) -> PeerStatus {
        let stats = self.drivers.iter().map(|driver| &driver.stats.1);
        PeerStatus {
            name: self.peer_name().unwrap_or(&self.place).into(),
            address: self.peer.to_string(),
            silent_seconds: self.silent_since.map(|since| now().since(since).as_secs_f64()),
            round_trip_seconds: self.facts.map(|facts| facts.round_trip.as_secs_f64()),
            drivers: self.drivers.iter().filter(|driver| driver.plans.is_some()).count(),
            ..PeerStatus::of(stats)
        }
    }
}
