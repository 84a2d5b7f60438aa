//! Tests of a driver with a data connection in virtual time.

use super::*;
use contract::{Body, FlowClass, Format, Message, Pushed, Site};
use modules::registry;
use pipeline::Origin;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use wire::{Container, RecordHeader};

/// A device that has no messages.
struct Device;

impl Partner for Device {
    fn open(&mut self, _template: &FlowTemplate, _attributes: &Attributes) -> PartnerResult<FlowKey> {
        Ok(FlowKey::DEFAULT)
    }

    fn close(&mut self, _flow: FlowKey) -> PartnerResult {
        Ok(())
    }

    fn push(&mut self, _flow: FlowKey, message: Message) -> Result<Pushed, (PartnerError, Message)> {
        Ok(Pushed::Full(message))
    }

    fn pull(&mut self, _flow: FlowKey, _request: Pull<'_>) -> PartnerResult<Pulled> {
        Ok(Pulled::Nothing)
    }

    fn ctl(&mut self, _flow: FlowKey, _operation: Ctl<'_>) -> PartnerResult<CtlReply> {
        Ok(CtlReply::Done)
    }

    fn readiness(&self, _flow: FlowKey, _direction: Direction) -> Readiness<'_> {
        Readiness::never()
    }
}

/// A data connection that has sent everything and checks at a time whether the peer has acknowledged it.
#[derive(Default)]
struct Connection {
    check_at: Time,
    /// Records of flow 1 that have arrived, by their sequence.
    arrived: VecDeque<u64>,
    /// Records that the session had no room for.
    overflow: Arc<Mutex<Vec<u64>>>,
}

impl Partner for Connection {
    fn open(&mut self, template: &FlowTemplate, attributes: &Attributes) -> PartnerResult<FlowKey> {
        Device.open(template, attributes)
    }

    fn close(&mut self, _flow: FlowKey) -> PartnerResult {
        Ok(())
    }

    fn push(&mut self, _flow: FlowKey, _message: Message) -> Result<Pushed, (PartnerError, Message)> {
        Ok(Pushed::Taken)
    }

    fn pull(&mut self, _flow: FlowKey, _request: Pull<'_>) -> PartnerResult<Pulled> {
        let Some(sequence) = self.arrived.pop_front() else { return Ok(Pulled::Nothing) };
        let container = Container { length: 0, created: 0 };
        let header = RecordHeader { flow: 1, epoch: 1, sequence, container };
        let record = Message::new(Time::ZERO, Body::from(header.emit().to_vec()));
        Ok(Pulled::Message(FlowKey(1), record))
    }

    fn ctl(&mut self, _flow: FlowKey, operation: Ctl<'_>) -> PartnerResult<CtlReply> {
        match operation {
            Ctl::Transport(TransportCtl::HeldBack) => Ok(CtlReply::Count(1)),
            Ctl::Transport(TransportCtl::Overflow { flow: 1, epoch: 1, sequence }) => {
                self.overflow.lock().unwrap().push(sequence);
                Ok(CtlReply::Done)
            }
            _ => Ok(CtlReply::Done),
        }
    }

    fn readiness(&self, _flow: FlowKey, _direction: Direction) -> Readiness<'_> {
        Readiness::never()
    }

    fn upkeep(&self) -> Readiness<'_> {
        Readiness::never().or_at(Some(self.check_at))
    }
}

fn driver(lossy: bool, direction: FlowDirection) -> Driver {
    let plan = FlowPlan {
        flow: 1,
        direction,
        class: FlowClass::Reliable,
        format: Format::Bytes,
        pipeline: Pipeline::parse("", registry::pairs(), Origin::Local).unwrap(),
        requested: Vec::new(),
        site: Site::default(),
    };
    let limits = Limits { held_records: 1, ..Limits::default() };
    Driver::resume(Box::new(Device), Role::Application, &[plan], lossy, &limits, Default::default()).unwrap()
}

/// Runs the driver. Returns whether it reported that the link is held back.
fn run(driver: &mut Driver, poller: &mut Poller, at_ms: u64) -> bool {
    let mut notices = Vec::new();
    driver.run(Time::from_millis(at_ms), poller, &mut notices);
    notices.iter().any(|notice| matches!(notice, Notice::LinkHeldBack))
}

#[test]
fn a_connection_that_has_sent_everything_is_checked_at_its_time() {
    let (mut driver, mut poller) =
        (driver(false, FlowDirection::ApplicationToDevice), Poller::new().unwrap());
    let check_at = Time::from_millis(200);
    driver.handle_link(
        Box::new(Connection { check_at, ..Connection::default() }),
        false,
        Time::ZERO,
        &mut Vec::new(),
    );
    assert!(!run(&mut driver, &mut poller, 199));
    assert_eq!(driver.register(&mut poller).at, Some(check_at));
    assert!(run(&mut driver, &mut poller, 200));
}

#[test]
fn a_lossy_link_is_replaced_less_and_less_often() {
    let (mut driver, mut poller) = (driver(true, FlowDirection::ApplicationToDevice), Poller::new().unwrap());
    driver.handle_link(Box::<Connection>::default(), false, Time::ZERO, &mut Vec::new());
    let reports = |driver: &mut Driver, poller: &mut Poller, seconds: std::ops::Range<u64>| {
        let is_reported = |second: &u64| run(driver, poller, second * 1000);
        seconds.filter(is_reported).collect::<Vec<_>>()
    };
    let first = reports(&mut driver, &mut poller, 1000..1200);
    assert_eq!(first, [1000, 1001, 1003, 1007, 1015, 1031, 1063, 1127, 1191]);
    assert_eq!(reports(&mut driver, &mut poller, 1400..1405), [1400, 1401, 1403], "after a calm time");
}

#[test]
fn a_transport_learns_which_records_the_session_had_no_room_for() {
    let (mut driver, mut poller) = (driver(true, FlowDirection::DeviceToApplication), Poller::new().unwrap());
    driver.handle_facts(LinkFacts::default());
    let connection = Connection { arrived: VecDeque::from([2, 3, 4]), ..Connection::default() };
    let overflow = Arc::clone(&connection.overflow);
    driver.handle_link(Box::new(connection), false, Time::ZERO, &mut Vec::new());
    run(&mut driver, &mut poller, 1);
    assert_eq!(*overflow.lock().unwrap(), [3, 4], "one early record is held");
}

#[test]
fn missing_records_are_requested_only_while_the_peer_answers() {
    let (mut driver, mut poller) = (driver(true, FlowDirection::DeviceToApplication), Poller::new().unwrap());
    let begin = FlowControl::Epoch { epoch: 1, prev: (0, 0), continues: false };
    driver.handle_control(1, &begin, Time::ZERO, &mut Vec::new());
    driver.handle_facts(LinkFacts::default());
    let requests = |driver: &mut Driver, poller: &mut Poller, times: std::ops::Range<u64>| {
        let is_request = |notice: &Notice| matches!(notice, Notice::Flow { message: FlowControl::Missing { ranges, .. }, .. } if ranges == &[(0, 1)]);
        let mut notices = Vec::new();
        for at_ms in times {
            driver.run(Time::from_millis(at_ms), poller, &mut notices);
        }
        notices.iter().filter(|notice| is_request(notice)).count()
    };
    let link = |driver: &mut Driver| {
        let connection = Connection {
            check_at: Time::from_millis(60_000),
            arrived: VecDeque::from([1]),
            ..Connection::default()
        };
        driver.handle_link(Box::new(connection), false, Time::ZERO, &mut Vec::new());
    };
    link(&mut driver);
    assert_eq!(requests(&mut driver, &mut poller, 0..100), 5, "every 20 ms");
    driver.handle_silence(Time::from_millis(100), &mut Vec::new());
    assert_eq!(requests(&mut driver, &mut poller, 100..1000), 0, "the peer is silent");
    assert_eq!(driver.register(&mut poller).at, Some(Time::from_millis(60_000)));
    driver.handle_silence_end(Time::from_millis(1000), &mut Vec::new());
    assert_eq!(requests(&mut driver, &mut poller, 1000..1010), 1, "the peer is back");
    driver.handle_link_lost(&mut poller);
    assert_eq!(requests(&mut driver, &mut poller, 2000..3000), 0, "there is no link");
    assert_eq!(driver.register(&mut poller).at, None);
    assert!(driver.is_holding(), "the gap remains");
    link(&mut driver);
    assert_eq!(requests(&mut driver, &mut poller, 3000..3010), 1, "there is a new link");
}
