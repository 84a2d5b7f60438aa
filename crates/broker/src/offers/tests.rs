use super::*;
use contract::{Attributes, Direction, FlowClass, FlowKey, FlowTemplate, Format, Partner, Pull, Pulled};
use flow::types::Wake;
use hub::HubPolicy;
use hub::make_partner;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

const FIRST: Option<PeerKey> = Some(PeerKey([1; 32]));
const OTHER: Option<PeerKey> = Some(PeerKey([2; 32]));

fn share(device: DeviceChoice) -> ShareDevice {
    ShareDevice {
        device,
        name: None,
        pipelines: Pipelines::default(),
        hub: HubPolicy::default(),
        allow: Vec::new(),
        transport: None,
    }
}

/// A device with these users, each with the number of its session.
fn device(users: &[(u64, Option<PeerKey>)]) -> Shared {
    let flow = |direction| FlowOffer { direction, format: Format::Bytes, class: FlowClass::Reliable };
    let description = Description {
        class: "test".into(),
        summary: "a device".into(),
        flows: vec![flow(FlowDirection::DeviceToApplication), flow(FlowDirection::ApplicationToDevice)],
        application: "stdout",
        properties: Vec::new(),
    };
    let make: Arc<MakePartner> = Arc::new(|| unreachable!("no test opens it"));
    let share = share(DeviceChoice::Own(description.clone(), make.clone()));
    let open = OpenDevice { source: Source::Own(make), description, opened: None };
    let mut device = shared(&share, "device".into(), open, (Pipelines::default(), Some(HubPlan::copy())));
    for (client, (session, key)) in (0..).zip(users) {
        device.add_user((*session, *key), 0, client);
    }
    device
}

/// Asks for the device until the answer is to ask no more, with the silent sessions of `is_silent`. Returns the sessions that
/// lose the device.
fn removed(device: &mut Shared, key: Option<PeerKey>, is_silent: impl Fn(u64) -> bool) -> Vec<u64> {
    let asked = now();
    let mut removed = Vec::new();
    for tenths in 0..100 {
        device.update_liveness(|session| UserLiveness {
            last_heard: (!is_silent(session)).then(|| asked.after(Duration::from_millis(tenths * 100))),
            is_refused: false,
            round_trip: Duration::ZERO,
        });
        if !device.request(asked, key) {
            return removed;
        }
        for (user, _) in device.take_marked() {
            device.end_use(user.session, user.driver, None);
            removed.push(user.session);
        }
    }
    panic!("the request has no end");
}

/// The killed session of a host that restarted would otherwise stay the owner of the flow to the device.
#[test]
fn a_restarted_host_replaces_its_dead_session_at_a_hub() {
    let mut hub = device(&[(1, FIRST), (2, OTHER), (3, FIRST)]);
    assert_eq!(removed(&mut hub, FIRST, |session| session == 1), [1]);
    assert_eq!(removed(&mut hub, FIRST, |_| false), [0; 0], "live uses of the same host stay");
    assert_eq!(removed(&mut hub, FIRST, |session| session == 2), [0; 0], "another host may come back");
    assert_eq!(hub.users.len(), 2);
}

#[test]
fn a_slow_answer_of_the_same_host_at_a_hub_is_waited_for() {
    let mut hub = device(&[(1, FIRST)]);
    let asked = now();
    let earlier = UserLiveness { last_heard: Some(Time(0)), is_refused: false, round_trip: Duration::ZERO };
    hub.update_liveness(|_| earlier);
    assert!((0..ANSWER_LOOKS * 4).all(|_| hub.request(asked, FIRST)) && hub.take_marked().is_empty());
    hub.update_liveness(|_| UserLiveness { last_heard: Some(now()), ..earlier });
    assert!(!hub.request(asked, FIRST));
}

#[test]
fn another_host_gets_a_device_from_all_silent_uses_of_one_host() {
    let mut hub = device(&[(1, FIRST), (2, FIRST)]);
    hub.is_hub_temporary = true;
    assert_eq!(removed(&mut hub, OTHER, |_| false), [0; 0]);
    assert!(hub.check_free(OTHER).is_err_and(|error| error.contains("another peer")));
    assert_eq!(removed(&mut hub, OTHER, |_| true), [1, 2]);
    assert_eq!(hub.check_free(OTHER), Ok(()));
}

#[test]
fn a_device_is_named_after_its_path_or_kind() {
    for (spec, name) in [
        ("evdev:/dev/input/event3", "event3"),
        ("serial:/dev/ttyUSB0,baud=9600", "ttyUSB0"),
        ("pattern:rate=5", "pattern"),
        ("pattern", "pattern"),
        ("x11::0", "x11"),
        (":0", "x11"),
        ("/dev/ttyUSB0", "ttyUSB0"),
        ("film.y4m", "film.y4m"),
        ("rfb:192.168.1.5:5900", "rfb"),
        ("exec:cat /etc/hosts", "exec"),
    ] {
        assert_eq!(default_name(spec), name, "{spec}");
    }
}

/// Waits for a message with this text from the hub.
fn wait_for(host: &mut dyn Partner, text: &[u8]) {
    let mut poller = Poller::new().unwrap();
    loop {
        match host.pull(FlowKey::DEFAULT, Pull::Yours).unwrap() {
            Pulled::Message(_, message) => {
                let body = message.body.into_bytes();
                if body.windows(text.len()).any(|part| part == text) {
                    return;
                }
            }
            _ => {
                let mut wake = Wake::default();
                wake.add(&mut poller, host.readiness(FlowKey::DEFAULT, Direction::Out));
                let timeout = if wake.now { Duration::ZERO } else { Duration::from_secs(60) };
                assert!(poller.wait(Some(timeout)).unwrap() || wake.now, "nothing came");
            }
        }
    }
}

/// The last close of a port would reset the board behind it, and discard received bytes.
#[test]
fn a_serial_port_stays_open_when_its_host_uses_it_again() {
    let board = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&board).unwrap();
    unlockpt(&board).unwrap();
    let port = ptsname(&board, Vec::new()).unwrap().into_string().unwrap();
    let share = share(DeviceChoice::Spec(format!("serial:{port}")));
    let mut offers = Offers::new();
    add_offer(&mut offers, 1, &share, OpenDevice::open(&share).unwrap()).unwrap();
    let port = offers.get_mut(&1).unwrap();
    let (alone, _) = port.begin_use((1, FIRST), 0, &mut []).unwrap();
    assert_eq!(port.check_free(FIRST), Ok(()));
    let (second, _) = port.begin_use((2, FIRST), 0, &mut []).unwrap();
    let (moved, first) = port.take_moved().unwrap();
    assert!(port.try_reopen().is_none(), "its first user has it still");
    drop(alone);
    let mut closed = [PollFd::new(&board, PollFlags::empty())];
    poll(&mut closed, Some(&rustix::time::Timespec::default())).unwrap();
    assert!(!closed[0].revents().contains(PollFlags::HUP), "the port was closed");
    port.handle_released(moved.session, moved.driver);
    let (opened, was_gone) = port.try_reopen().unwrap();
    assert!(port.take_back(opened, was_gone).is_empty());
    let mut hosts = [first, second].map(|origin| make_partner(origin).unwrap());
    let template =
        FlowTemplate { direction: Direction::Out, format: Format::Serial, class: FlowClass::Reliable };
    for host in &mut hosts {
        host.open(&template, &Attributes::default()).unwrap();
    }
    rustix::io::write(&board, b"hello").unwrap();
    hosts.iter_mut().for_each(|host| wait_for(host.as_mut(), b"hello"));
}
