use super::*;
use crate::endpoint::Incoming;
use contract::{Message, Pushed};
use pipeline::{Origin, Pipeline};

#[test]
fn a_host_that_joins_a_reliable_flow_with_a_state_receives_the_state() {
    let cases = [
        (FlowClass::Reliable, Format::Serial, true),
        (FlowClass::Reliable, Format::Bytes, false),
        (FlowClass::State, Format::Serial, false),
    ];
    for (class, format, is_requested) in cases {
        let flows = vec![FlowOffer { direction: FlowDirection::DeviceToApplication, format, class }];
        let shared = (Ring::new(1), Event::new().unwrap(), Arc::default());
        let hub = Loop::build(&HubPlan::copy(), None, flows, shared, Poller::new().unwrap());
        let mut hub = hub.unwrap_or_else(|problem| panic!("{problem}"));
        let (ours, _far) = Endpoint::pair(1).unwrap();
        hub.handle(Command::Join(1, Box::new(ours)));
        assert_eq!(hub.clients.get_mut(&1).unwrap().take_snapshot_request(), is_requested);
    }
}

/// A camera that another program uses stays open, and every host learns why it sends nothing.
#[test]
fn every_host_learns_of_an_absence_also_one_that_joins_later() {
    let flows = vec![FlowOffer {
        direction: FlowDirection::DeviceToApplication,
        format: Format::Video,
        class: FlowClass::Timely,
    }];
    let shared = (Ring::new(1), Event::new().unwrap(), Arc::default());
    let hub = Loop::build(&HubPlan::copy(), None, flows, shared, Poller::new().unwrap());
    let mut hub = hub.unwrap_or_else(|problem| panic!("{problem}"));
    let (mut behind, device) = Endpoint::pair(1).unwrap();
    hub.device = Some(Box::new(device.open().unwrap()));
    let join = |hub: &mut Loop, number| {
        let (ours, far) = Endpoint::pair(1).unwrap();
        hub.handle(Command::Join(number, Box::new(ours)));
        far.open().unwrap()
    };
    let mut hosts = vec![join(&mut hub, 1)];
    behind.report_absence(Some("in use"));
    hub.report_presence();
    hosts.push(join(&mut hub, 2));
    for host in &mut hosts {
        assert_eq!(host.presence(), Some(Presence::Absent("in use".into())));
        assert_eq!(host.presence(), None, "once");
    }
    behind.report_absence(None);
    hub.report_presence();
    hosts.push(join(&mut hub, 3));
    let told: Vec<_> = hosts.iter_mut().map(Endpoint::presence).collect();
    assert_eq!(told, [Some(Presence::Present), Some(Presence::Present), None]);
}

/// A hub of a device that takes messages of a reliable flow, one at a time, and the other end of that device.
fn slow_device() -> (Loop, Endpoint) {
    device([(Format::Bytes, FlowClass::Reliable), (Format::Bytes, FlowClass::Reliable)])
}

fn camera() -> (Loop, Endpoint) {
    device([(Format::Video, FlowClass::Timely), (Format::Controls, FlowClass::State)])
}

/// A hub of a device with these flows to the hosts and back, and the other end of that device.
fn device(flows: [(Format, FlowClass); 2]) -> (Loop, Endpoint) {
    let directions = [FlowDirection::DeviceToApplication, FlowDirection::ApplicationToDevice];
    let flow = |(direction, (format, class))| FlowOffer { direction, format, class };
    let flows = directions.into_iter().zip(flows).map(flow).collect();
    let shared = (Ring::new(1), Event::new().unwrap(), Arc::default());
    let hub = Loop::build(&HubPlan::copy(), None, flows, shared, Poller::new().unwrap());
    let mut hub = hub.unwrap_or_else(|problem| panic!("{problem}"));
    let behind = plug(&mut hub);
    (hub, behind)
}

fn plug(hub: &mut Loop) -> Endpoint {
    let (behind, device) = Endpoint::pair(1).unwrap();
    hub.handle(Command::Device(PartnerOrigin::Hub(device)));
    behind
}

/// Joins a host that writes these messages.
fn join(hub: &mut Loop, number: u16, messages: &[&'static str]) -> Endpoint {
    let (ours, far) = Endpoint::pair(hub.queue).unwrap();
    hub.handle(Command::Join(number, Box::new(ours)));
    let mut host = far.open().unwrap();
    let template =
        FlowTemplate { direction: Direction::In, format: Format::Bytes, class: FlowClass::Reliable };
    host.open(&template, &Attributes::default()).unwrap();
    messages.iter().for_each(|text| say(&mut host, text));
    host
}

fn say(host: &mut Endpoint, text: &'static str) {
    let pushed = host.push(FlowKey::DEFAULT, Message::new(Time::ZERO, text.as_bytes()));
    assert!(matches!(pushed, Ok(Pushed::Taken)));
}

/// Runs the hub until the device gets nothing more. Returns the messages of the device.
fn received(hub: &mut Loop, behind: &mut Endpoint) -> Vec<String> {
    let mut received = Vec::new();
    loop {
        hub.turn().unwrap();
        match behind.receive() {
            Incoming::Message(message) => {
                received.push(String::from_utf8(message.body.into_bytes().to_vec()).unwrap());
            }
            Incoming::Neutral => {}
            Incoming::Nothing | Incoming::End => return received,
        }
    }
}

#[test]
fn messages_that_an_unplugged_device_has_not_taken_wait_for_it() {
    let (mut hub, behind) = slow_device();
    hub.handle(Command::SetOwner(Some(1)));
    let before = join(&mut hub, 1, &["taken", "a", "b"]);
    hub.turn().unwrap();
    hub.lose_device(&PartnerError::Gone("unplugged".into()));
    drop((behind, before));
    let mut behind = plug(&mut hub);
    let _after = join(&mut hub, 1, &["c"]);
    assert_eq!(received(&mut hub, &mut behind), ["a", "b", "c"]);
    assert!(hub.drops.counts.is_empty(), "{:?}", hub.drops.counts);
}

#[test]
fn messages_of_an_owner_that_leaves_precede_those_of_the_next() {
    let (mut hub, mut behind) = slow_device();
    hub.handle(Command::SetOwner(Some(1)));
    let first = join(&mut hub, 1, &["a", "b", "c"]);
    let _second = join(&mut hub, 2, &[]);
    hub.turn().unwrap();
    drop(first);
    hub.handle(Command::Leave(1));
    hub.handle(Command::SetOwner(Some(2)));
    let _second = join(&mut hub, 2, &["d"]);
    assert_eq!(received(&mut hub, &mut behind), ["a", "b", "c", "d"]);
}

#[test]
fn a_device_that_takes_nothing_loses_the_messages_of_a_former_owner_after_the_patience() {
    let (mut hub, mut behind) = slow_device();
    hub.options.patience = Duration::ZERO;
    hub.handle(Command::SetOwner(Some(1)));
    let _first = join(&mut hub, 1, &["a", "b", "c"]);
    hub.turn().unwrap();
    hub.handle(Command::Leave(1));
    hub.handle(Command::SetOwner(Some(2)));
    let _second = join(&mut hub, 2, &["d"]);
    assert_eq!(received(&mut hub, &mut behind), ["a", "d"]);
    assert_eq!(hub.drops.counts.get("host left"), Some(&2));
}

#[test]
fn a_former_owner_that_goes_on_writing_keeps_nobody_waiting() {
    let (mut hub, mut behind) = slow_device();
    hub.handle(Command::SetOwner(Some(1)));
    let mut first = join(&mut hub, 1, &["a"]);
    hub.handle(Command::Leave(1));
    hub.handle(Command::SetOwner(Some(2)));
    let _second = join(&mut hub, 2, &["d"]);
    let is_next_served = (0..2 * hub.queue + 8).any(|_| {
        let _ = first.push(FlowKey::DEFAULT, Message::new(Time::ZERO, b"x".as_slice()));
        hub.turn().unwrap();
        match behind.receive() {
            Incoming::Message(message) => *message.body.into_bytes() == *b"d",
            _ => false,
        }
    });
    assert!(is_next_served);
}

/// It might return at any later time, to the surprise of everybody.
#[test]
fn a_device_that_returns_gets_nothing_of_an_owner_that_left_meanwhile() {
    let (mut hub, behind) = slow_device();
    hub.handle(Command::SetOwner(Some(1)));
    let first = join(&mut hub, 1, &["taken", "a", "b"]);
    hub.turn().unwrap();
    hub.lose_device(&PartnerError::Gone("unplugged".into()));
    drop((behind, first));
    hub.handle(Command::Leave(1));
    hub.handle(Command::SetOwner(Some(2)));
    let _second = join(&mut hub, 2, &["d"]);
    let mut behind = plug(&mut hub);
    assert_eq!(received(&mut hub, &mut behind), ["d"]);
    assert_eq!(hub.drops.counts.get("host left"), Some(&2));
}

/// The messages `Wanted` of the format `controls`.
const NOBODY: &str = "\x01\x00";
const SOMEBODY: &str = "\x01\x01";

/// Otherwise the first host switches the camera off for the others.
#[test]
fn a_camera_is_on_while_one_of_its_hosts_wants_it() {
    let (mut hub, mut behind) = camera();
    hub.handle(Command::SetOwner(Some(1)));
    let mut first = join(&mut hub, 1, &["brightness", NOBODY]);
    assert_eq!(received(&mut hub, &mut behind), ["brightness", NOBODY]);
    let mut second = join(&mut hub, 2, &["of another host"]);
    assert_eq!(received(&mut hub, &mut behind), [SOMEBODY], "a host wants it until it says otherwise");
    say(&mut second, NOBODY);
    assert_eq!(received(&mut hub, &mut behind), [NOBODY]);
    say(&mut second, SOMEBODY);
    say(&mut first, SOMEBODY);
    assert_eq!(received(&mut hub, &mut behind), [SOMEBODY]);
    say(&mut first, NOBODY);
    assert!(received(&mut hub, &mut behind).is_empty(), "the second host still wants it");
    assert_eq!(hub.clients[&2].drops.counts.get("not the owner"), Some(&1), "its settings alone");
}

#[test]
fn a_camera_is_wanted_by_the_hosts_that_are_left() {
    let (mut hub, mut behind) = camera();
    hub.handle(Command::SetOwner(Some(1)));
    let first = join(&mut hub, 1, &[NOBODY]);
    let second = join(&mut hub, 2, &[SOMEBODY]);
    assert!(received(&mut hub, &mut behind).is_empty(), "it is on when it is opened");
    drop(second);
    hub.handle(Command::Leave(2));
    assert_eq!(received(&mut hub, &mut behind), [NOBODY]);
    // Such as an application without a flow back.
    let _third = join(&mut hub, 3, &[]);
    assert_eq!(received(&mut hub, &mut behind), [SOMEBODY]);
    drop(first);
    hub.handle(Command::Leave(1));
    hub.handle(Command::SetOwner(Some(3)));
    assert!(received(&mut hub, &mut behind).is_empty());
}

#[test]
fn a_camera_that_returns_learns_that_nobody_wants_it() {
    let (mut hub, mut behind) = camera();
    let _host = join(&mut hub, 1, &[NOBODY]);
    assert_eq!(received(&mut hub, &mut behind), [NOBODY]);
    hub.lose_device(&PartnerError::Gone("unplugged".into()));
    drop(behind);
    let mut behind = plug(&mut hub);
    assert_eq!(received(&mut hub, &mut behind), [NOBODY]);
}

/// While a host waits for its network, it does not read.
#[test]
fn a_host_that_reads_slowly_gets_recent_pictures() {
    let (mut hub, mut behind) = camera();
    let template = FlowTemplate { direction: Direction::In, format: Format::Video, class: FlowClass::Timely };
    behind.open(&template, &Attributes::default()).unwrap();
    let mut host = join(&mut hub, 1, &[]);
    let mut ages = Vec::new();
    for picture in 1..=60_u8 {
        let pushed = behind.push(FlowKey::DEFAULT, Message::new(Time::ZERO, vec![picture]));
        assert!(matches!(pushed, Ok(Pushed::Taken)));
        hub.turn().unwrap();
        if picture.is_multiple_of(10) {
            let Incoming::Message(taken) = host.receive() else { panic!("no picture") };
            ages.push(picture - taken.body.into_bytes()[0]);
        }
    }
    assert_eq!(ages, [1; 6], "in pictures");
}

#[test]
fn a_queue_that_the_user_sets_is_used_for_every_flow() {
    let (hub, _) = camera();
    let Ok(HubPolicy::Copy(set)) = HubPolicy::parse("copy,queue=64") else { panic!("it is a policy") };
    assert_eq!((hub.queue, set.queue_for(&hub.flows)), (PICTURES, 64));
    let (other, _) = slow_device();
    let Ok(HubPolicy::Copy(default)) = HubPolicy::parse("copy") else { panic!("it is a policy") };
    assert_eq!((other.queue, default.queue_for(&other.flows)), (QUEUE, QUEUE));
}

/// Two hosts number their requests alike, and the device answers each request to both.
#[test]
fn a_device_that_answers_requests_has_no_hub() {
    let flow = |direction, format| FlowOffer { direction, format, class: FlowClass::State };
    let flows = |format: Format| {
        [
            flow(FlowDirection::DeviceToApplication, format.clone()),
            flow(FlowDirection::ApplicationToDevice, format),
        ]
    };
    let copy = HubPolicy::Copy(HubOptions::default());
    let divides = Pipeline::parse("multiplex(join=false)", registry::pairs(), Origin::Local).unwrap();
    for (format, device) in [(Format::Block, "a disk serves"), (Format::Hid, "a whole HID device serves")] {
        for (policy, own) in [(&copy, None), (&HubPolicy::ByPipeline, Some(&divides))] {
            let Err(problem) = HubPlan::decide(policy, own, &flows(format.clone())) else {
                panic!("{format} has a hub")
            };
            assert!(problem.starts_with(device), "{problem}");
        }
        let alone = HubPlan::decide(&HubPolicy::ByPipeline, None, &flows(format));
        assert!(alone.is_ok_and(|plan| plan.is_none()));
    }
    let joined = Pipeline::parse("multiplex", registry::pairs(), Origin::Local).unwrap();
    let paths = HubPlan::decide(&HubPolicy::ByPipeline, Some(&joined), &flows(Format::Hid));
    assert!(paths.is_ok_and(|plan| plan.is_some()), "they end at one host");
    let reports_only = [flow(FlowDirection::DeviceToApplication, Format::Hid)];
    for several in [&flows(Format::Evdev)[..], &reports_only[..]] {
        assert!(HubPlan::decide(&copy, None, several).is_ok_and(|plan| plan.is_some()));
    }
}
