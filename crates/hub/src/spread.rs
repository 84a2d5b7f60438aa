//! Distributes one flow of one partner to several clients.

use super::client::{Client, Pressure};
use contract::{
    Ctl, Direction, FlowClass, FlowKey, Input, Link, Message, Outbox, Partner, PartnerResult, Port, Pull,
    Pulled, Readiness, Time,
};
use flow::types::Wake;
use pipeline::DropCounts;
use std::collections::BTreeMap;
use std::time::Duration;
use sys::poller::Poller;

/// Limit of messages taken in one run.
const BURST: usize = 64;
/// Limit of the wait for messages that the stage still holds after the flow has ended.
const LINGER: Duration = Duration::from_secs(10);

/// The clients of a junction, by number.
pub type Clients = BTreeMap<u16, Client>;

/// The source half of a pair that divides a flow among the clients, with one port for each.
pub struct Fan {
    name: &'static str,
    link: Box<dyn Link>,
    outbox: Outbox,
}

impl Fan {
    /// Creates a fan that runs the stage `name` over `link`.
    pub fn new(name: &'static str, link: Box<dyn Link>) -> Fan {
        Fan { name, link, outbox: Outbox::default() }
    }
}

/// One flow, from its partner to all clients.
pub struct Spread {
    key: FlowKey,
    class: FlowClass,
    pressure: Pressure,
    fan: Option<Fan>,
    /// Dropped messages, by reason.
    pub drops: DropCounts,
    /// Messages taken from the partner.
    pub messages: u64,
    /// Set when the flow has ended: the deadline for messages that the stage holds.
    ended: Option<Time>,
    finished: bool,
}

impl Spread {
    /// `fan` divides the flow; without it every client receives every message.
    pub fn new(key: FlowKey, class: FlowClass, pressure: Pressure, fan: Option<Fan>) -> Spread {
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

    /// The class of the flow.
    pub fn class(&self) -> FlowClass {
        self.class
    }

    /// Continues with a reopened partner, whose flow has this key.
    pub fn reopen(&mut self, key: FlowKey, clients: &mut Clients, now: Time) {
        self.key = key;
        self.process(Input::Gap(Port::MAIN), clients, now);
    }

    /// Moves the available messages; returns true if it should run again at once.
    pub fn run(
        &mut self,
        partner: &mut dyn Partner,
        clients: &mut Clients,
        now: Time,
    ) -> PartnerResult<bool> {
        clients.values_mut().for_each(Client::poll);
        if self.fan.as_ref().and_then(|fan| fan.link.poll_timeout()).is_some_and(|at| at <= now) {
            self.process(Input::Timeout, clients, now);
        }
        self.send_snapshots(partner, clients, now)?;
        for _ in 0..BURST {
            if !self.has_room(clients) {
                return Ok(self.finish(clients, now));
            }
            match partner.pull(self.key, Pull::Yours)? {
                Pulled::Message(_, message) => {
                    self.messages += 1;
                    self.feed(message, clients, now);
                }
                Pulled::End => self.ended = Some(now.after(LINGER)),
                _ => return Ok(false),
            }
        }
        Ok(true)
    }

    fn has_room(&self, clients: &Clients) -> bool {
        self.ended.is_none()
            && !clients.is_empty()
            && self.fan.as_ref().is_none_or(|fan| fan.link.has_room())
            && !clients.values().any(Client::is_blocked)
    }

    /// After the end: flushes the stage, then ends the flow to every client, also to those that join
    /// later.
    fn finish(&mut self, clients: &mut Clients, now: Time) -> bool {
        let Some(until) = self.ended else { return false };
        if !self.finished {
            let held = self.fan.as_ref().map_or(0, |fan| fan.link.held());
            if held > 0 && now < until {
                return false;
            }
            self.process(Input::End(Port::MAIN), clients, now);
            self.finished = true;
        }
        clients.values_mut().filter(|client| !client.is_finished()).for_each(Client::finish);
        false
    }

    /// Fetches a snapshot for the clients that need one. Only a pair can divide a snapshot: with a pair
    /// every client receives it, which repeats known state to the others.
    fn send_snapshots(
        &mut self,
        partner: &mut dyn Partner,
        clients: &mut Clients,
        now: Time,
    ) -> PartnerResult {
        let requests =
            |(number, client): (&u16, &mut Client)| client.take_snapshot_request().then_some(*number);
        let requests: Vec<u16> = clients.iter_mut().filter_map(requests).collect();
        if requests.is_empty() || self.class != FlowClass::State || self.ended.is_some() {
            return Ok(());
        }
        if partner.ctl(self.key, Ctl::Snapshot).is_err() {
            // The partner has no snapshot.
            return Ok(());
        }
        let Pulled::Message(_, snapshot) = partner.pull(self.key, Pull::Yours)? else { return Ok(()) };
        if self.fan.is_some() {
            self.feed(snapshot, clients, now);
            return Ok(());
        }
        for number in requests {
            if let Some(client) = clients.get_mut(&number) {
                client.deliver(snapshot.clone(), self.pressure);
            }
        }
        Ok(())
    }

    fn feed(&mut self, message: Message, clients: &mut Clients, now: Time) {
        if self.fan.is_some() {
            return self.process(Input::Message(Port::MAIN, message), clients, now);
        }
        for client in clients.values_mut() {
            client.deliver(message.clone(), self.pressure);
        }
    }

    /// Passes an input to the stage, and the stage's output to the clients.
    fn process(&mut self, input: Input<'_>, clients: &mut Clients, now: Time) {
        let Some(Fan { name, link, outbox }) = &mut self.fan else { return };
        let is_message = matches!(input, Input::Message(..));
        if link.hand(input, now, outbox).is_err() && is_message {
            self.drops.add(&format!("{name}: {}", pipeline::REFUSED), 1);
        }
        for drop in outbox.drops.drain(..) {
            self.drops.add(&format!("{name}: {}", drop.reason), drop.count);
        }
        for (Port(port), message) in outbox.messages.drain(..) {
            match clients.get_mut(&port) {
                Some(client) => client.deliver(message, self.pressure),
                None => self.drops.add("no host for this part", 1),
            }
        }
        outbox.controls.clear();
    }

    /// Registers the partner and the timers with the poller; the clients register themselves.
    pub fn register(&self, partner: &dyn Partner, clients: &Clients, poller: &mut Poller, wake: &mut Wake) {
        if self.has_room(clients) {
            wake.add(poller, partner.readiness(self.key, Direction::Out));
        }
        let stage_at = self.fan.as_ref().and_then(|fan| fan.link.poll_timeout());
        let end_at = self.ended.filter(|_| !self.finished);
        wake.add(poller, Readiness::never().or_at(stage_at).or_at(end_at));
    }
}
