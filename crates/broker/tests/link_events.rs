//! The source of a state flow under link events in any order: silence, new links, lost links and resync requests.
//! Once the other host is heard and linked, it must know the complete state.

mod support;

use contract::{
    Attributes, Ctl, CtlReply, Direction, FlowClass, FlowDirection, FlowKey, FlowTemplate, Format, Message,
    Partner, PartnerError, PartnerResult, Pull, Pulled, Pushed, Readiness, Role, Site, Time,
};
use flow::{Driver, FlowPlan, Notice};
use modules::registry;
use pipeline::{Origin, Pipeline};
use session::Limits;
use std::sync::{Arc, Mutex};
use support::{BenchPartner, Handle};
use sys::poller::Poller;
use wire::{BODY_BYTES_MAX, FlowControl, RecordHeader};

#[derive(Debug, Clone, Copy, PartialEq)]
enum Happens {
    Silence,
    Heard,
    Link,
    LinkLost,
    /// The other host requests a resync.
    Resync,
    DeviceBack,
    /// The worker runs the path.
    Run,
}

const ALL: [Happens; 7] = [
    Happens::Silence,
    Happens::Heard,
    Happens::Link,
    Happens::LinkLost,
    Happens::Resync,
    Happens::DeviceBack,
    Happens::Run,
];
const EVENTS: u32 = 5;

/// Epoch, sequence number and body.
type Record = (u32, u64, Vec<u8>);

/// A data connection that accepts everything.
#[derive(Clone, Default)]
struct Wire(Arc<Mutex<Vec<Record>>>);

impl Partner for Wire {
    fn open(&mut self, _template: &FlowTemplate, _attributes: &Attributes) -> PartnerResult<FlowKey> {
        Ok(FlowKey::DEFAULT)
    }

    fn close(&mut self, _flow: FlowKey) -> PartnerResult {
        Ok(())
    }

    fn push(&mut self, _flow: FlowKey, mut record: Message) -> Result<Pushed, (PartnerError, Message)> {
        let header = record.body.take_front::<{ RecordHeader::BYTES }>().unwrap();
        let header = RecordHeader::parse(&header, BODY_BYTES_MAX).unwrap();
        let body = record.body.into_bytes().to_vec();
        self.0.lock().unwrap().push((header.epoch, header.sequence, body));
        Ok(Pushed::Taken)
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

/// The source of a state flow. Its device emits numbers without repetition; its state is the set of all of them.
struct Source {
    driver: Driver,
    device: Handle,
    poller: Poller,
    /// The last connection, if there is one.
    wire: Option<Wire>,
    is_silent: bool,
    epoch: u32,
    /// The other host has abandoned the epochs up to this one.
    given_up: u32,
    notices: Vec<Notice>,
}

impl Source {
    fn new(poller: Poller) -> Source {
        let device = Handle::new();
        let plan = FlowPlan {
            flow: 1,
            direction: FlowDirection::ApplicationToDevice,
            class: FlowClass::State,
            format: Format::Bytes,
            pipeline: Pipeline::parse("", registry::pairs(), Origin::Local).unwrap(),
            requested: Vec::new(),
            site: Site::default(),
        };
        let partner = Box::new(BenchPartner::new(&device));
        let (role, limits) = (Role::Application, Limits::default());
        let driver = Driver::resume(partner, role, &[plan], false, &limits, Default::default()).unwrap();
        Source {
            driver,
            device,
            poller,
            wire: None,
            is_silent: false,
            epoch: 1,
            given_up: 0,
            notices: Vec::new(),
        }
    }

    fn happen(&mut self, what: Happens) {
        let now = Time::ZERO;
        match what {
            Happens::Silence => self.driver.handle_silence(now, &mut self.notices),
            Happens::Heard => self.driver.handle_silence_end(now, &mut self.notices),
            Happens::Link => {
                self.driver.handle_link_lost(&mut self.poller);
                let wire = self.wire.insert(Wire::default()).clone();
                self.driver.handle_link(Box::new(wire), false, now, &mut self.notices);
            }
            Happens::LinkLost => {
                self.driver.handle_link_lost(&mut self.poller);
                self.wire = None;
            }
            Happens::Resync => {
                self.given_up = self.epoch;
                let resync = FlowControl::Resync { epoch: self.epoch };
                self.driver.handle_control(1, &resync, now, &mut self.notices);
            }
            Happens::DeviceBack => {
                let partner = Box::new(BenchPartner::new(&self.device));
                self.driver.handle_partner(partner, now, &mut self.notices).unwrap();
            }
            Happens::Run => while self.driver.run(now, &mut self.poller, &mut self.notices) {},
        }
        match what {
            Happens::Silence => self.is_silent = true,
            Happens::Heard => self.is_silent = false,
            _ => {}
        }
        for notice in self.notices.drain(..) {
            if let Notice::Flow { message: FlowControl::Epoch { epoch, .. }, .. } = notice {
                self.epoch = epoch;
            }
        }
    }

    fn press(&mut self, key: u8) {
        self.device.with(|bench| {
            bench.held.push(key);
            bench.to_pull.push_back(vec![key]);
        });
    }

    /// Returns the state known to the other host, according to the last connection and epoch.
    fn known(&self) -> Vec<u8> {
        let records = self.wire.as_ref().expect("it is linked").0.lock().unwrap();
        let mut known = Vec::new();
        let own = records.iter().filter(|(epoch, ..)| *epoch == self.epoch && *epoch > self.given_up);
        for ((_, sequence, body), expected) in own.zip(0..) {
            assert_eq!(*sequence, expected, "a record of the epoch is missing");
            match body.strip_prefix(b"held:") {
                Some(held) => known = held.to_vec(),
                None if expected == 0 => panic!("the epoch does not begin with where things stand"),
                None => known.extend(body),
            }
        }
        // A press before a snapshot is in the snapshot, and may be sent again.
        known.sort_unstable();
        known.dedup();
        known
    }
}

/// Plays the events, then the missing ones until the other host is heard and linked; `heard_first` selects the
/// order.
fn play(events: &[Happens], heard_first: bool, poller: Poller) -> Poller {
    let mut source = Source::new(poller);
    for (event, key) in events.iter().zip(0..) {
        source.happen(*event);
        source.press(key);
    }
    let mut last = [Happens::Heard, Happens::Link];
    if !heard_first {
        last.reverse();
    }
    for event in last {
        let is_missing = match event {
            Happens::Heard => source.is_silent,
            _ => source.wire.is_none(),
        };
        if is_missing {
            source.happen(event);
        }
    }
    source.happen(Happens::Run);
    let held = source.device.with(|bench| bench.held.clone());
    assert_eq!(source.known(), held, "{events:?}, heard first: {heard_first}");
    let Source { driver, mut poller, .. } = source;
    driver.close(&mut poller);
    poller
}

#[test]
fn link_events_in_any_order_leave_the_sink_with_the_complete_state() {
    let mut poller = Poller::new().unwrap();
    for case in 0..ALL.len().pow(EVENTS) {
        let events = (0..EVENTS).map(|place| ALL[case / ALL.len().pow(place) % ALL.len()]);
        for start in [&[][..], &[Happens::Link, Happens::Run]] {
            let events: Vec<Happens> = start.iter().copied().chain(events.clone()).collect();
            for heard_first in [true, false] {
                poller = play(&events, heard_first, poller);
            }
        }
    }
}
