//! One of the paths that meet in a junction.

use crate::endpoint::{Endpoint, Failure, Incoming};
use contract::{
    Attributes, Ctl, Direction, Fill, FlowClass, FlowKey, FlowTemplate, Format, Message, Partner,
    PartnerError, Pushed, Readiness,
};
use flow::types::Wake;
use pipeline::DropCounts;
use std::collections::VecDeque;
use sys::poller::Poller;

/// Drop reason of a message that found no room on the way to its host.
const TOO_SLOW: &str = "host too slow";

/// The treatment of a host that receives a flow too slowly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pressure {
    /// All hosts wait for it: a reliable flow loses nothing.
    Wait,
    /// It loses the newest messages; they are counted as drops.
    DropNewest,
    /// It loses the oldest messages, which are worthless when late; they are counted as drops.
    DropOldest,
    /// It loses everything, counted as drops, until it has taken the older messages. Then it receives a snapshot of
    /// the state. An earlier one would wait behind them, become old itself, and be sent to all other hosts, too.
    Resync,
}

impl Pressure {
    /// The treatment that suits a flow class; `may_drop`: drop messages of reliable flows too.
    pub fn of(class: FlowClass, may_drop: bool) -> Pressure {
        match class {
            FlowClass::Reliable if may_drop => Pressure::DropNewest,
            FlowClass::Reliable => Pressure::Wait,
            FlowClass::Timely => Pressure::DropOldest,
            FlowClass::State => Pressure::Resync,
        }
    }
}

/// The flow to a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outflow {
    /// More messages may follow.
    Open,
    /// It ends after the waiting messages.
    Finishing,
    /// All messages and the end are delivered.
    Finished,
}

/// The junction's end of one path.
pub struct Client {
    endpoint: Endpoint,
    /// Messages that the endpoint has no room for; later messages queue behind them.
    waiting: VecDeque<Message>,
    is_lagging: bool,
    needs_snapshot: bool,
    /// Messages delivered to the path.
    pub delivered: u64,
    /// Dropped messages, by reason.
    pub drops: DropCounts,
    outflow: Outflow,
    /// The path sends nothing more.
    has_ended: bool,
    /// A message from the path that found no room at the device.
    held: Option<Incoming>,
}

impl Client {
    /// `outward`: the class of the flow to the path.
    pub fn new(mut endpoint: Endpoint, outward: FlowClass) -> Client {
        let template = FlowTemplate { direction: Direction::In, format: Format::Bytes, class: outward };
        // An endpoint opens any flow.
        let _ = endpoint.open(&template, &Attributes::default());
        Client {
            endpoint,
            waiting: VecDeque::new(),
            is_lagging: false,
            needs_snapshot: false,
            delivered: 0,
            drops: DropCounts::default(),
            outflow: Outflow::Open,
            has_ended: false,
            held: None,
        }
    }

    /// Delivers a message to the path. If the path is full, `pressure` decides.
    pub fn deliver(&mut self, message: Message, pressure: Pressure) {
        if self.endpoint.is_other_closed() {
            return self.drops.add("host disconnected", 1);
        }
        if self.is_lagging {
            return self.drops.add(TOO_SLOW, 1);
        }
        if pressure == Pressure::DropOldest {
            self.delivered += 1;
            let dropped = self.endpoint.push_over_oldest(message);
            return self.drops.add(TOO_SLOW, dropped);
        }
        let message = if self.waiting.is_empty() { self.push(message) } else { Some(message) };
        match (message, pressure) {
            (None, _) => {}
            (Some(message), Pressure::Wait) => self.waiting.push_back(message),
            (Some(_), _) => {
                self.drops.add(TOO_SLOW, 1);
                self.is_lagging = pressure == Pressure::Resync;
            }
        }
    }

    /// Tells the path how much of its sound the application holds.
    pub fn report_fill(&self, fill: Fill) {
        self.endpoint.report_fill(fill);
    }

    /// Returns the message if there is no room.
    fn push(&mut self, message: Message) -> Option<Message> {
        match self.endpoint.push(FlowKey::DEFAULT, message) {
            Ok(Pushed::Full(message)) => Some(message),
            Ok(Pushed::Taken) => {
                self.delivered += 1;
                None
            }
            Err((PartnerError::Message(_), _)) => {
                self.drops.add("too large", 1);
                None
            }
            // The path released its end; the next delivery finds it closed.
            Err(_) => None,
        }
    }

    /// Delivers waiting messages, and receives requests of the path.
    pub fn poll(&mut self) {
        while let Some(message) = self.waiting.pop_front() {
            if let Some(message) = self.push(message) {
                self.waiting.push_front(message);
                break;
            }
        }
        if self.endpoint.take_snapshot_request() || self.is_lagging && self.endpoint.is_drained() {
            self.is_lagging = false;
            self.needs_snapshot = true;
        }
        if self.outflow == Outflow::Finishing && self.waiting.is_empty() {
            let _ = self.endpoint.ctl(FlowKey::DEFAULT, Ctl::Finish);
            self.outflow = Outflow::Finished;
        }
    }

    /// The path needs a snapshot.
    pub fn request_snapshot(&mut self) {
        self.needs_snapshot = true;
    }

    /// Returns true once for each snapshot that the path needs.
    pub fn take_snapshot_request(&mut self) -> bool {
        std::mem::take(&mut self.needs_snapshot)
    }

    /// Returns true if messages wait for room in the path.
    pub fn is_blocked(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Ends the flow to the path after the waiting messages.
    pub fn finish(&mut self) {
        if self.outflow == Outflow::Open {
            self.outflow = Outflow::Finishing;
        }
        self.poll();
    }

    /// Returns true if all messages and the end are delivered.
    pub fn is_finished(&self) -> bool {
        self.outflow == Outflow::Finished
    }

    /// Reports to the path that the device behind the junction failed.
    pub fn fail(&mut self, error: &PartnerError) {
        self.drops.add("device gone", self.waiting.len() as u64);
        self.waiting.clear();
        match error {
            PartnerError::Gone(reason) => self.endpoint.fail(Failure::Gone, reason),
            PartnerError::Data(reason) => self.endpoint.fail(Failure::Data, reason),
            other => self.endpoint.fail(Failure::Broken, &other.to_string()),
        }
    }

    /// Reports to the path that the device behind the junction is absent for this reason, or present.
    pub fn report_absence(&mut self, reason: Option<&str>) {
        self.endpoint.report_absence(reason);
    }

    /// Returns the next item from the path.
    pub fn receive(&mut self) -> Incoming {
        if let Some(held) = self.held.take() {
            return held;
        }
        // Also after the end, because this clears the wakeups for snapshot requests and room.
        let incoming = self.endpoint.receive();
        if self.has_ended {
            return Incoming::Nothing;
        }
        self.has_ended = matches!(incoming, Incoming::End);
        incoming
    }

    /// Puts an item back for which there was no room: the next [`Client::receive`] returns it.
    pub fn put_back(&mut self, incoming: Incoming) {
        self.held = Some(incoming);
    }

    /// Returns true if the path has ended and every item was received.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Returns true if a received item waits for room behind the junction.
    pub fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// Registers the path with the poller; `receives`: also for items from the path.
    pub fn register(&self, receives: bool, poller: &mut Poller, wake: &mut Wake) {
        if receives && !self.is_held() {
            wake.add(poller, self.endpoint.readiness(FlowKey::DEFAULT, Direction::Out));
        }
        let room = self.endpoint.readiness(FlowKey::DEFAULT, Direction::In);
        if self.is_blocked() {
            wake.add(poller, room);
        } else if self.is_lagging && !self.endpoint.is_other_closed() {
            wake.add(poller, Readiness { now: self.endpoint.is_drained(), ..room });
        }
    }

    /// Removes the path from the poller.
    pub fn forget(&self, poller: &mut Poller) {
        flow::types::forget(poller, &self.endpoint);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::FarEnd;
    use contract::Time;
    use std::time::Duration;

    fn connect() -> (Client, FarEnd) {
        let (ours, far) = Endpoint::pair(1).unwrap();
        (Client::new(ours, FlowClass::State), far)
    }

    /// Runs the client as the thread of a junction does; returns true if that thread would then sleep.
    fn sleeps(client: &mut Client) -> bool {
        client.poll();
        while !matches!(client.receive(), Incoming::Nothing) {}
        !is_woken(client)
    }

    /// Returns true if the thread of a junction that sleeps would wake up.
    fn is_woken(client: &Client) -> bool {
        let (mut poller, mut wake) = (Poller::new().unwrap(), Wake::default());
        client.register(true, &mut poller, &mut wake);
        poller.wait(Some(Duration::ZERO)).unwrap();
        let (descriptor, _) =
            client.endpoint.readiness(FlowKey::DEFAULT, Direction::Out).descriptors[0].unwrap();
        wake.now || poller.is_ready(descriptor)
    }

    #[test]
    fn a_client_whose_flow_has_ended_requests_snapshots_and_keeps_no_thread_awake() {
        let (mut client, far) = connect();
        let mut far = far.open().unwrap();
        let template =
            FlowTemplate { direction: Direction::In, format: Format::Bytes, class: FlowClass::State };
        far.open(&template, &Attributes::default()).unwrap();
        far.ctl(FlowKey::DEFAULT, Ctl::Finish).unwrap();
        assert!(sleeps(&mut client) && client.has_ended());
        far.ctl(FlowKey::DEFAULT, Ctl::Snapshot).unwrap();
        assert!(sleeps(&mut client) && client.take_snapshot_request());
    }

    #[test]
    fn a_slow_client_gets_a_snapshot_when_it_has_taken_everything_else() {
        let (ours, far) = Endpoint::pair(2).unwrap();
        let (mut client, mut far) = (Client::new(ours, FlowClass::State), far.open().unwrap());
        for body in [1, 2, 3] {
            client.deliver(Message::new(Time::ZERO, vec![body]), Pressure::Resync);
        }
        for _ in 0..2 {
            assert!(sleeps(&mut client) && !client.take_snapshot_request());
            assert!(matches!(far.receive(), Incoming::Message(_)));
            assert!(is_woken(&client));
        }
        client.poll();
        assert!(client.take_snapshot_request() && sleeps(&mut client));
        client.deliver(Message::new(Time::ZERO, vec![4]), Pressure::Resync);
        assert!(matches!(far.receive(), Incoming::Message(_)), "it receives again");
    }

    #[test]
    fn a_client_that_failed_keeps_no_thread_awake() {
        let (mut client, far) = connect();
        for body in [1, 2] {
            client.deliver(Message::new(Time::ZERO, vec![body]), Pressure::Resync);
        }
        assert!(client.is_lagging && sleeps(&mut client));
        far.open().unwrap().fail(Failure::Broken, "by a compromised worker");
        assert!(sleeps(&mut client) && client.has_ended());
    }
}
