//! Makes the node of a device in a thread: a program that stands in for the device may take longer to start than the silence limit,
//! and the broker's thread keeps the session alive meanwhile.

use super::{ApplicationHost, Opening};
use crate::events::Event;
use contract::{Description, Role, ServiceError};
use hosts::dial::Dialling;
use hub::application::{ApplicationChoice, ApplicationNode, make_node};
use modules::now;
use std::os::fd::AsFd;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use sys::event::Event as Wake;
use sys::poller::Poller;
use worker::{Command, DriverPlan};

/// A node that is being made. Without it, the node is released as soon as it is there.
pub(super) struct Making {
    made: Receiver<Result<ApplicationNode, ServiceError>>,
    wake: Wake,
}

impl Making {
    /// Returns false if the node exists already, in this process.
    pub(super) fn takes_time(choice: &ApplicationChoice) -> bool {
        !matches!(choice, ApplicationChoice::Partner(_) | ApplicationChoice::Joint(_))
    }

    pub(super) fn begin(
        choice: ApplicationChoice,
        suitable: &'static str,
        description: Description,
        service: String,
    ) -> Result<Making, ServiceError> {
        let wake = Wake::new().map_err(|error| ServiceError::os("an eventfd", error))?;
        let (emit, made) = mpsc::sync_channel(1);
        let done = wake.clone();
        let run = move || {
            // The receiver has gone if the broker stopped meanwhile.
            let _ = emit.send(make_node(choice, suitable, &description, service));
            done.signal();
        };
        let thread = std::thread::Builder::new().name("node".into()).spawn(run);
        thread.map_err(|error| ServiceError::os("a thread", error))?;
        Ok(Making { made, wake })
    }

    /// Returns the node once it is made.
    pub(super) fn poll(&self) -> Option<Result<ApplicationNode, ServiceError>> {
        match self.made.try_recv() {
            Ok(made) => Some(made),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => {
                Some(Err(ServiceError::Peer("the thread that makes the node ended unexpectedly".into())))
            }
        }
    }

    /// Registers the completion with the poller.
    pub(super) fn register(&self, poller: &mut Poller) {
        poller.register(self.wake.as_fd(), true, false);
    }

    /// Removes it from the poller.
    pub(super) fn forget(&self, poller: &mut Poller) {
        poller.forget(self.wake.as_fd());
    }
}

impl ApplicationHost {
    /// Adds the nodes that have been made.
    pub(super) fn finish_nodes(&mut self, emit: &mut dyn FnMut(Event)) -> Result<(), ServiceError> {
        let mut made = Vec::new();
        for (&number, driver) in &mut self.common.drivers {
            if let Some(node) = driver.own.making.as_ref().and_then(Making::poll) {
                driver.own.making.take().into_iter().for_each(|making| making.forget(&mut self.poller));
                made.push((number, node?));
            }
        }
        made.into_iter().for_each(|(number, node)| self.add_node(number, node, emit));
        Ok(())
    }

    /// Starts the paths of a new node.
    pub(super) fn add_node(&mut self, number: u32, node: ApplicationNode, emit: &mut dyn FnMut(Event)) {
        let Some(driver) = self.common.drivers.get_mut(&number) else { return };
        let ApplicationNode { origin, summary: node, claim } = node;
        let (role, transport) = (Role::Application, self.transport.clone());
        let plan = DriverPlan { role, flows: driver.plans.clone(), transport };
        self.common.workers.send(Command::Add { driver: number, origin, plan });
        driver.own.claim = claim.or_else(|| driver.own.claim.take());
        driver.own.node = node.clone();
        emit(Event::Attached { name: driver.name.clone(), node, pipelines: driver.own.agreed.clone() });
        if let Opening::Open = driver.own.opening {
            driver.own.dialling = Some(Dialling::new(&self.transport, self.address, now()));
        }
    }
}
