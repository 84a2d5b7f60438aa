//! One flow of one partner, spread over several ways.

use super::way::{Pressure, Way};
use crate::driver::Wake;
use crate::segment::DropCounts;
use contract::{
    Ctl, Direction, FlowClass, FlowKey, Input, Link, Message, Outbox, Partner, PartnerError, Port, Pull,
    Pulled, Readiness, Time,
};
use std::collections::BTreeMap;
use std::time::Duration;
use sys::poller::Poller;

/// Messages taken in one run.
const BURST: usize = 64;
/// How long a flow that has ended waits for what its stage holds.
const LINGER: Duration = Duration::from_secs(10);

/// The ways of a junction, by number.
pub(crate) type Ways = BTreeMap<u16, Way>;

/// The source half of a pair that divides a flow among the ways, one a port.
pub(crate) struct Fan {
    name: &'static str,
    link: Box<dyn Link>,
    outbox: Outbox,
}

impl Fan {
    pub(crate) fn new(name: &'static str, link: Box<dyn Link>) -> Fan {
        Fan { name, link, outbox: Outbox::default() }
    }
}

/// One flow, from where it starts to all its ways.
pub(crate) struct Spread {
    key: FlowKey,
    class: FlowClass,
    pressure: Pressure,
    fan: Option<Fan>,
    pub(crate) drops: DropCounts,
    /// Messages that were taken from the partner.
    pub(crate) messages: u64,
    /// The flow has ended; until when what the stage holds is waited for.
    ended: Option<Time>,
    finished: bool,
}

impl Spread {
    /// `fan` divides the flow; without one every way gets everything.
    pub(crate) fn new(key: FlowKey, class: FlowClass, pressure: Pressure, fan: Option<Fan>) -> Spread {
        Spread {
            key,
            class,
            pressure,
            fan,
            drops: DropCounts::default(),
            messages: 0,
            ended: None,
            finished: false,
        }
    }

    /// What the flow promises.
    pub(crate) fn class(&self) -> FlowClass {
        self.class
    }

    /// The partner is back, with the flow under this key.
    pub(crate) fn reopen(&mut self, key: FlowKey, ways: &mut Ways, now: Time) {
        self.key = key;
        self.hand(Input::Gap(Port::MAIN), ways, now);
    }

    /// Moves what can be moved; says whether it is worth running again at once.
    pub(crate) fn run(
        &mut self,
        partner: &mut dyn Partner,
        ways: &mut Ways,
        now: Time,
    ) -> Result<bool, PartnerError> {
        ways.values_mut().for_each(Way::attend);
        if self.fan.as_ref().and_then(|fan| fan.link.poll_timeout()).is_some_and(|at| at <= now) {
            self.hand(Input::Timeout, ways, now);
        }
        self.say_where_things_stand(partner, ways, now)?;
        for _ in 0..BURST {
            if !self.has_room(ways) {
                return Ok(self.finish(ways, now));
            }
            match partner.pull(self.key, Pull::Yours)? {
                Pulled::Message(_, message) => {
                    self.messages += 1;
                    self.feed(message, ways, now);
                }
                Pulled::End => self.ended = Some(now.after(LINGER)),
                _ => return Ok(false),
            }
        }
        Ok(true)
    }

    fn has_room(&self, ways: &Ways) -> bool {
        self.ended.is_none()
            && !ways.is_empty()
            && self.fan.as_ref().is_none_or(|fan| fan.link.has_room())
            && !ways.values().any(Way::is_blocked)
    }

    /// After the end: gives out what is held, then tells every way. One that joins now is told as well.
    fn finish(&mut self, ways: &mut Ways, now: Time) -> bool {
        let Some(until) = self.ended else { return false };
        if !self.finished {
            let held = self.fan.as_ref().map_or(0, |fan| fan.link.held());
            if held > 0 && now < until {
                return false;
            }
            self.hand(Input::End(Port::MAIN), ways, now);
            self.finished = true;
        }
        ways.values_mut().filter(|way| !way.is_finished()).for_each(Way::finish);
        false
    }

    /// Fetches where things stand for the ways that ask. Only a pair knows what belongs together: through one,
    /// all get it, which says nothing new to those that know.
    fn say_where_things_stand(
        &mut self,
        partner: &mut dyn Partner,
        ways: &mut Ways,
        now: Time,
    ) -> Result<(), PartnerError> {
        let wanting = |(number, way): (&u16, &mut Way)| way.take_wants_snapshot().then_some(*number);
        let wanting: Vec<u16> = ways.iter_mut().filter_map(wanting).collect();
        if wanting.is_empty() || self.class != FlowClass::State || self.ended.is_some() {
            return Ok(());
        }
        if partner.ctl(self.key, Ctl::Snapshot).is_err() {
            // It has no state that could be asked for.
            return Ok(());
        }
        let Pulled::Message(_, snapshot) = partner.pull(self.key, Pull::Yours)? else { return Ok(()) };
        if self.fan.is_some() {
            self.feed(snapshot, ways, now);
            return Ok(());
        }
        for way in wanting {
            if let Some(way) = ways.get_mut(&way) {
                way.deliver(snapshot.clone(), self.pressure);
            }
        }
        Ok(())
    }

    fn feed(&mut self, message: Message, ways: &mut Ways, now: Time) {
        if self.fan.is_some() {
            return self.hand(Input::Message(Port::MAIN, message), ways, now);
        }
        for way in ways.values_mut() {
            way.deliver(message.clone(), self.pressure);
        }
    }

    /// Hands something to the stage, and what that makes to the ways.
    fn hand(&mut self, input: Input<'_>, ways: &mut Ways, now: Time) {
        let Some(Fan { name, link, outbox }) = &mut self.fan else { return };
        let is_message = matches!(input, Input::Message(..));
        if link.hand(input, now, outbox).is_err() && is_message {
            self.drops.add(&format!("{name}: {}", pipeline::REFUSED), 1);
        }
        for drop in outbox.drops.drain(..) {
            self.drops.add(&format!("{name}: {}", drop.reason), drop.count);
        }
        for (Port(port), message) in outbox.messages.drain(..) {
            match ways.get_mut(&port) {
                Some(way) => way.deliver(message, self.pressure),
                None => self.drops.add("no host at this way", 1),
            }
        }
        outbox.controls.clear();
    }

    /// Puts what to wait for into the poller, besides what the ways want.
    pub(crate) fn want(&self, partner: &dyn Partner, ways: &Ways, poller: &mut Poller, wake: &mut Wake) {
        if self.has_room(ways) {
            wake.add(poller, partner.readiness(self.key, Direction::Out));
        }
        let stage_at = self.fan.as_ref().and_then(|fan| fan.link.poll_timeout());
        let end_at = self.ended.filter(|_| !self.finished);
        wake.add(poller, Readiness::never().or_at(stage_at).or_at(end_at));
    }
}
