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
        self.request_snapshot(partner, clients);
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

    /// Makes the partner emit its state if a client needs it. Every client receives it: it repeats known
    /// state to the others, but the partner may have discarded the changes that it contains.
    fn request_snapshot(&self, partner: &mut dyn Partner, clients: &mut Clients) {
        let mut is_needed = false;
        clients.values_mut().for_each(|client| is_needed |= client.take_snapshot_request());
        if is_needed && self.ended.is_none() {
            // A partner without snapshots has no state to restore.
            let _ = partner.ctl(self.key, Ctl::Snapshot);
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::{Endpoint, Incoming};
    use contract::{Attributes, CtlReply, FlowTemplate, Format, Next, PartnerError, PullSlot, Pushed};
    use std::collections::VecDeque;

    /// A device with a snapshot. That of a state flow replaces the waiting changes, as with evdev; that of
    /// a reliable flow follows the waiting data, as with a serial port.
    struct Device {
        class: FlowClass,
        waiting: VecDeque<&'static str>,
        slot: PullSlot,
    }

    impl Partner for Device {
        fn open(&mut self, _: &FlowTemplate, _: &Attributes) -> PartnerResult<FlowKey> {
            Ok(FlowKey::DEFAULT)
        }

        fn close(&mut self, _: FlowKey) -> PartnerResult {
            Ok(())
        }

        fn push(&mut self, _: FlowKey, message: Message) -> Result<Pushed, (PartnerError, Message)> {
            Ok(Pushed::Full(message))
        }

        fn pull(&mut self, flow: FlowKey, request: Pull<'_>) -> PartnerResult<Pulled> {
            let next = self.waiting.pop_front();
            self.slot.answer(flow, request, || {
                Ok(next
                    .map_or(Next::Nothing, |text| Next::Message(Message::new(Time::ZERO, text.as_bytes()))))
            })
        }

        fn ctl(&mut self, _: FlowKey, operation: Ctl<'_>) -> PartnerResult<CtlReply> {
            let Ctl::Snapshot = operation else { return Err(PartnerError::Unsupported("this operation")) };
            if self.class == FlowClass::State {
                self.waiting.clear();
            }
            self.waiting.push_back("snapshot");
            Ok(CtlReply::Done)
        }

        fn readiness(&self, _: FlowKey, _: Direction) -> Readiness<'_> {
            Readiness::never()
        }
    }

    /// A client with a flow of this class, and its host's end.
    fn connect(class: FlowClass) -> (Client, Endpoint) {
        let (ours, far) = Endpoint::pair(8).unwrap();
        let mut far = far.open().unwrap();
        let template = FlowTemplate { direction: Direction::Out, format: Format::Bytes, class };
        far.open(&template, &Attributes::default()).unwrap();
        (Client::new(ours, class), far)
    }

    fn received(host: &mut Endpoint) -> Vec<String> {
        let next = || match host.receive() {
            Incoming::Message(message) => {
                Some(String::from_utf8(message.body.into_bytes().to_vec()).unwrap())
            }
            _ => None,
        };
        std::iter::from_fn(next).collect()
    }

    fn setup(class: FlowClass) -> (Spread, Device, Clients, [Endpoint; 2]) {
        let spread = Spread::new(FlowKey::DEFAULT, class, Pressure::of(class, false), None);
        let device = Device { class, waiting: VecDeque::from(["first"]), slot: PullSlot::default() };
        let [(one, first), (two, second)] = [connect(class), connect(class)];
        (spread, device, Clients::from([(1, one), (2, two)]), [first, second])
    }

    #[test]
    fn a_snapshot_for_one_host_replaces_the_changes_that_the_others_miss() {
        let (mut spread, mut device, mut clients, mut hosts) = setup(FlowClass::State);
        spread.run(&mut device, &mut clients, Time::ZERO).unwrap();
        device.waiting.push_back("release");
        hosts[1].ctl(FlowKey::DEFAULT, Ctl::Snapshot).unwrap();
        spread.run(&mut device, &mut clients, Time::ZERO).unwrap();
        for host in &mut hosts {
            assert_eq!(received(host), ["first", "snapshot"]);
        }
    }

    #[test]
    fn the_state_of_a_reliable_flow_follows_its_data() {
        let (mut spread, mut device, mut clients, mut hosts) = setup(FlowClass::Reliable);
        hosts[1].ctl(FlowKey::DEFAULT, Ctl::Snapshot).unwrap();
        spread.run(&mut device, &mut clients, Time::ZERO).unwrap();
        for host in &mut hosts {
            assert_eq!(received(host), ["first", "snapshot"]);
        }
        let (mut client, mut joined) = connect(FlowClass::Reliable);
        client.request_snapshot();
        clients.insert(3, client);
        spread.run(&mut device, &mut clients, Time::ZERO).unwrap();
        for host in hosts.iter_mut().chain([&mut joined]) {
            assert_eq!(received(host), ["snapshot"]);
        }
    }
}
