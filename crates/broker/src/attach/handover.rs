//! An `attach` as one program leaves it to the next ([`crate::handover`]).

use super::{ApplicationHost, AttachRequest, Opening, service};
use crate::control_link::ControlLink;
use crate::events::Event;
use crate::handover::{SavedSession, put_driver, read_driver, text};
use console::Console;
use contract::ServiceError;
use flow::nodes;
use modules::now;
use wire::{Reader, Writer};
use worker::{Handover, TakenDriver};

/// The next program numbers its connections from so far above the last one: a search of this program may have made some.
const ATTEMPTS_BETWEEN: u32 = 1000;

/// The saved part of one driver.
struct SavedDriver {
    is_open: bool,
    node: String,
    taken: TakenDriver,
}

impl ApplicationHost {
    /// Leaves the session and the nodes to the next program. Returns `None` and changes nothing if a part of it is no descriptor.
    pub(super) fn hand_over(&mut self) -> Option<Handover> {
        let is_settled = |opening: &Opening| matches!(opening, Opening::Open | Opening::Unavailable { .. });
        let mut drivers = self.common.drivers.values();
        if !drivers
            .all(|driver| driver.own.has_node() && is_settled(&driver.own.opening) && !driver.own.has_ended)
            || !self.common.can_hand_over()
        {
            return None;
        }
        let token = self.token?;
        let (drivers, channel) = self.common.hand_over(&mut self.poller).ok()?;
        let (mut w, mut descriptors) = (Writer::new(), Vec::new());
        let (attempt, address) = (self.attempt.saturating_add(ATTEMPTS_BETWEEN), self.address.to_string());
        SavedSession { token, attempt, key: self.key, address, channel }.write(&mut w);
        w.u16(drivers.len() as u16);
        for (number, driver) in drivers {
            let own = &self.common.drivers.get(&number)?.own;
            w.u8(matches!(own.opening, Opening::Open).into()).text(&own.node);
            put_driver(&mut w, driver, &mut descriptors);
        }
        Some(Handover { bytes: w.finish(), descriptors })
    }

    /// Continues the session that the previous program has left. The request has to be the same.
    pub fn resume(request: AttachRequest, handover: Handover) -> Result<ApplicationHost, ServiceError> {
        let unusable = |problem: String| {
            ServiceError::Peer(format!("the session of the previous program does not continue: {problem}"))
        };
        let (saved, drivers) = parse(handover).map_err(unusable)?;
        let address = saved.address.parse().map_err(|_| unusable("an invalid address".into()))?;
        if drivers.len() != request.targets.len() {
            return Err(unusable("it has other devices".into()));
        }
        let mut host = ApplicationHost::new(request)?;
        host.address = address;
        host.token = Some(saved.token);
        host.attempt = saved.attempt;
        host.key = saved.key;
        host.common.link = ControlLink::restore(&host.limits, saved.channel, now());
        for SavedDriver { is_open, node, taken } in drivers {
            let driver = host.common.drivers.get_mut(&taken.driver);
            let driver = driver.ok_or_else(|| unusable("it has other devices".into()))?;
            let name = service(host.known.as_ref(), host.key.as_ref(), &host.target, &driver.name);
            let claim = nodes::claim_again(&taken.opened, name);
            driver.own.claim = claim.map_err(|error| unusable(error.to_string()))?;
            driver.own.application = None;
            driver.own.node = node;
            driver.own.opening = match is_open {
                true => Opening::Open,
                false => Opening::Unavailable { retry_at: now() },
            };
            driver.plans = taken.plan.flows.clone();
            host.common.workers.take_over(taken).map_err(|error| unusable(error.to_string()))?;
        }
        host.common.handle_link_failure("the program was upgraded".into(), &mut host.poller);
        host.console = Console::open().ok();
        Ok(host)
    }

    /// Reports the nodes that came from the previous program.
    pub(super) fn report_resumed(&self, emit: &mut dyn FnMut(Event)) {
        for driver in self.common.drivers.values().filter(|driver| driver.own.has_node()) {
            let pipelines = driver.plans.iter().map(|plan| plan.pipeline.canonical().to_string()).collect();
            let (name, node) = (driver.name.clone(), driver.own.node.clone());
            emit(Event::Attached { name, node, pipelines });
        }
    }
}

fn parse(handover: Handover) -> Result<(SavedSession, Vec<SavedDriver>), String> {
    let Handover { bytes, descriptors } = handover;
    let (mut r, mut descriptors) = (Reader::new(&bytes), descriptors.into_iter());
    let error = |error: wire::WireError| error.to_string();
    let saved = SavedSession::read(&mut r).map_err(error)?;
    let count = r.u16("drivers").map_err(error)?;
    let mut drivers = Vec::new();
    for _ in 0..count {
        let is_open = r.u8("open").map_err(error)? != 0;
        let node = text(&mut r, "node").map_err(error)?;
        drivers.push(SavedDriver { is_open, node, taken: read_driver(&mut r, &mut descriptors)? });
    }
    r.end("session").map_err(error)?;
    Ok((saved, drivers))
}
