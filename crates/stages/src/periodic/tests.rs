use super::Periodic;
use contract::{Format, Message, Outbox, Pair, Port, Time};
use std::time::Duration;
use testkit::stage::{TwoHalves, conforms, options, site, steady};
use wire::formats::evdev;
use wire::formats::motion::{Motion, Update};

#[test]
fn it_conforms() {
    conforms(&Periodic, &[], &Format::Motion);
    conforms(&Periodic, &[("period", "250us")], &Format::Bytes);
    conforms(&Periodic, &[("period", "1s")], &Format::Video);
    conforms(&Periodic, &[("period", "5ms")], &Format::Evdev);
}

fn received_ms(run: &TwoHalves) -> Vec<(u64, u8)> {
    let one = |(at, m): &(Time, Message)| (at.0 / 1_000_000 - 1000, m.body.clone().into_bytes()[0]);
    run.received.iter().map(one).collect()
}

#[test]
fn the_newest_leaves_at_the_end_of_each_period() {
    let mut run =
        TwoHalves::new(&Periodic, &[("period", "10ms")], &Format::Motion, steady(Duration::ZERO), 1);
    // One every 4 ms until 40 ms, then a pause, then two more.
    for (at_ms, number) in (0..=10).map(|i| (i * 4, i as u8)).chain([(75, 11), (77, 12)]) {
        run.run_until(Time::from_millis(1000 + at_ms));
        run.push(Message::new(run.now, vec![number]));
    }
    run.run_until(Time::from_millis(1200));
    assert_eq!(received_ms(&run), [(0, 0), (10, 2), (20, 4), (30, 7), (40, 9), (50, 10), (75, 11), (85, 12)]);
    assert_eq!(run.dropped(), 5);
    assert_eq!(run.figure(contract::Half::Source, "replaced"), 5.0);
}

#[test]
fn a_message_is_held_until_the_end_of_the_period() {
    let motion = evdev::Update::Frame(vec![evdev::Event::new(evdev::code::EV_REL, 0, 1)]).to_bytes();
    for (format, body) in [(Format::Bytes, vec![7]), (Format::Evdev, motion)] {
        let mut source =
            Periodic.source(&options(&Periodic, &[("period", "10ms")]), &format, &site(1)).unwrap();
        let mut out = Outbox::default();
        let mut held = |at_ms| {
            let message = Message::new(Time::ZERO, body.clone());
            source.handle(Port::MAIN, message, Time::from_millis(at_ms), &mut out).unwrap();
            (source.held(), source.kept())
        };
        assert_eq!([held(100), held(101), held(102)], [(0, 0), (1, 1), (1, 1)], "{format:?}");
        source.handle_timeout(Time::from_millis(110), &mut out).unwrap();
        assert_eq!((source.held(), out.messages.len()), (0, 2), "{format:?}");
    }
}

#[test]
fn formats_that_need_every_message_are_refused() {
    let options = options(&Periodic, &[]);
    for needs_all in
        [Format::Midi, Format::Serial, Format::Viewer, Format::Controls, Format::Hid, Format::Block]
    {
        assert!(Periodic.accept(&needs_all, &options).is_err(), "{needs_all:?}");
    }
    assert_eq!(Periodic.accept(&Format::Motion, &options), Ok(Format::Motion));
}

#[test]
fn buttons_do_not_wait_and_are_not_replaced() {
    let motion = |x| Update::Motion(Motion { axes: [x, 0, 0, 0, 0, 0], period_us: 0 });
    let button = |pressed| Update::Button { number: 1, pressed };
    let mut run =
        TwoHalves::new(&Periodic, &[("period", "10ms")], &Format::Motion, steady(Duration::ZERO), 1);
    let updates = [motion(1), motion(2), motion(3), button(true), motion(4), button(false), motion(5)];
    for update in &updates {
        run.push(Message::new(run.now, update.to_bytes()));
    }
    run.run_until(Time::from_millis(2000));
    let received: Vec<_> = run.received.iter().map(|(_, m)| m.body.clone().into_bytes().to_vec()).collect();
    let expected = [motion(1), motion(3), button(true), motion(4), button(false), motion(5)];
    assert_eq!(received, expected.map(|update| update.to_bytes()));
}

#[test]
fn a_replaced_motion_leaves_its_time_to_its_successor() {
    let motion = |x, period_us| Update::Motion(Motion { axes: [x, 0, 0, 0, 0, 0], period_us });
    let mut run =
        TwoHalves::new(&Periodic, &[("period", "100ms")], &Format::Motion, steady(Duration::ZERO), 1);
    for period_us in [0].into_iter().chain([8000; 12]) {
        run.push(Message::new(run.now, motion(100, period_us).to_bytes()));
        run.run_until(run.now.after(Duration::from_millis(8)));
    }
    for period_us in [u32::MAX, 8000] {
        run.push(Message::new(run.now, motion(7, period_us).to_bytes()));
    }
    run.run_until(Time::from_millis(2000));
    let received: Vec<_> = run.received.iter().map(|(_, m)| m.body.clone().into_bytes().to_vec()).collect();
    let expected = [motion(100, 0), motion(100, 12 * 8000), motion(7, u32::MAX)];
    assert_eq!(received, expected.map(|update| update.to_bytes()));
    assert_eq!(run.figure(contract::Half::Source, "replaced"), 12.0);
}

#[test]
fn keys_do_not_wait_and_the_pointer_ends_at_the_same_place() {
    use evdev::code::{EV_KEY, EV_REL};
    use evdev::{Event, Update::Frame};
    let frame = |events: &[(u16, u16, i32)]| {
        Frame(events.iter().map(|&(kind, code, value)| Event::new(kind, code, value)).collect()).to_bytes()
    };
    let moved = |x, y| frame(&[(EV_REL, 0, x), (EV_REL, 1, y)]);
    let key = |value| frame(&[(EV_KEY, 30, value)]);
    let mut run = TwoHalves::new(&Periodic, &[("period", "10ms")], &Format::Evdev, steady(Duration::ZERO), 1);
    let updates =
        [moved(1, 1), moved(2, 0), moved(3, -5), key(1), moved(4, 4), key(0), moved(5, 0), moved(6, 7)];
    for update in &updates {
        run.push(Message::new(run.now, update.clone()));
    }
    run.run_until(Time::from_millis(2000));
    let received: Vec<_> = run.received.iter().map(|(_, m)| m.body.clone().into_bytes().to_vec()).collect();
    assert_eq!(received, [moved(1, 1), moved(5, -5), key(1), moved(4, 4), key(0), moved(11, 7)]);
    assert_eq!(run.dropped(), 0);
}
