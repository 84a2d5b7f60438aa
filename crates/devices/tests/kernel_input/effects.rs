//! Force feedback: effects of an application reach the device under the device's IDs, and the application never waits
//! for the device.

use crate::needs_uinput;
use crate::rig::*;
use contract::{Ctl, DeviceClass, Role};
use devices::evdev::Evdev;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use sys::input::code::*;
use sys::input::{EFFECT_PARAMETERS_MAX, Effect, Event, evdev, read_events, uinput};

/// A request that the device's driver received.
#[derive(Debug, PartialEq)]
enum Seen {
    Upload(Effect),
    Erase(u32),
    Event(Event),
}

/// Starts the device's driver: a thread that replies to uploads like hardware, until the device is gone.
fn drive(driver: OwnedFd) -> Receiver<Seen> {
    let (sender, seen) = channel();
    thread::spawn(move || {
        loop {
            let mut events = Vec::new();
            match read_events(driver.as_fd(), &mut events) {
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    thread::sleep(std::time::Duration::from_millis(1));
                    if sender.send(Seen::Event(Event::REPORT)).is_err() {
                        return;
                    }
                    continue;
                }
                Err(_) => return,
            }
            for (_, event) in events {
                let request = event.value as u32;
                let seen = match (event.kind, event.code) {
                    (EV_UINPUT, UI_FF_UPLOAD) => {
                        let mut uploaded = None;
                        let refuses_periodic = |effect: Option<Effect>| {
                            uploaded = effect;
                            if effect.is_some_and(|effect| effect.kind == FF_PERIODIC) { -28 } else { 0 }
                        };
                        uinput::answer_upload(driver.as_fd(), request, refuses_periodic).unwrap();
                        Seen::Upload(uploaded.unwrap())
                    }
                    (EV_UINPUT, UI_FF_ERASE) => {
                        Seen::Erase(uinput::answer_erase(driver.as_fd(), request).unwrap())
                    }
                    _ => Seen::Event(event),
                };
                if sender.send(seen).is_err() {
                    return;
                }
            }
        }
    });
    seen
}

/// Returns the driver's next request, without its idle reports.
fn next(seen: &Receiver<Seen>) -> Seen {
    loop {
        match seen.recv_timeout(WATCHDOG).expect("a request") {
            Seen::Event(Event::REPORT) => {}
            other => return other,
        }
    }
}

/// Returns the ID of the next erased effect. The kernels stop it first, any number of times.
fn erased(seen: &Receiver<Seen>) -> u32 {
    loop {
        match next(seen) {
            Seen::Erase(id) => return id,
            Seen::Event(stop) => assert_eq!((stop.kind, stop.value), (EV_FF, 0)),
            other => panic!("{other:?}"),
        }
    }
}

fn rumble(strong: u16, length_ms: u16) -> Effect {
    let mut parameters = [0; EFFECT_PARAMETERS_MAX];
    parameters[..2].copy_from_slice(&[strong, strong / 2]);
    Effect {
        kind: FF_RUMBLE,
        id: -1,
        direction: 0x4000,
        trigger_button: 0,
        trigger_interval_ms: 0,
        length_ms,
        delay_ms: 20,
        parameters,
    }
}

/// Uploads an effect from an application. Meanwhile nothing runs the paths, so the reply must not depend on them.
fn upload(joined: &mut Joined, effect: Effect) -> i16 {
    let id = evdev::upload_effect(joined.application.node.as_fd(), &effect).unwrap();
    joined.carry();
    id
}

fn joined_gamepad(name: &str) -> (Joined, Receiver<Seen>) {
    let mut joined = Joined::new(&gamepad(name), &[]);
    let seen = drive(joined.device.driver.try_clone().unwrap());
    // Another program has an effect on the device, so that the device's IDs differ from the application's.
    let other = Application::open(&joined.device.path);
    assert_eq!(evdev::upload_effect(other.node.as_fd(), &rumble(1, 1)).unwrap(), 0);
    assert!(matches!(next(&seen), Seen::Upload(_)));
    joined.carry();
    // Closing it would erase the effect.
    std::mem::forget(other);
    (joined, seen)
}

#[test]
fn an_effect_of_the_application_plays_on_the_device() {
    needs_uinput!();
    let (mut joined, seen) = joined_gamepad("rumble");
    let there = upload(&mut joined, rumble(0x8000, 500));
    assert_eq!(there, 0);
    assert_eq!(next(&seen), Seen::Upload(Effect { id: 1, ..rumble(0x8000, 500) }));

    joined.application.write(&[Event::new(EV_FF, 0, 2), Event::new(EV_FF, FF_GAIN, 0x6000)]);
    joined.carry();
    assert_eq!(next(&seen), Seen::Event(Event::new(EV_FF, 1, 2)));
    assert_eq!(next(&seen), Seen::Event(Event::new(EV_FF, FF_GAIN, 0x6000)));

    let changed = Effect { id: there, ..rumble(0x2000, 100) };
    assert_eq!(upload(&mut joined, changed), there);
    assert_eq!(next(&seen), Seen::Upload(Effect { id: 1, ..changed }));

    evdev::erase_effect(joined.application.node.as_fd(), there).unwrap();
    joined.carry();
    assert_eq!(erased(&seen), 1);
    assert_eq!(joined.source.figure("effects"), 0.0);
    assert_eq!(joined.source.figure("feedback refused"), 0.0);
    assert!(joined.carry().is_empty(), "no echo comes back");
}

#[test]
fn effects_stop_with_the_link_and_are_restored() {
    needs_uinput!();
    let (mut joined, seen) = joined_gamepad("rumble cut");
    let for_ever = upload(&mut joined, rumble(0x7000, 0));
    let short = upload(&mut joined, rumble(0x100, 100));
    (0..2).for_each(|_| assert!(matches!(next(&seen), Seen::Upload(_))));
    joined.application.write(&[
        Event::new(EV_FF, for_ever as u16, 1),
        Event::new(EV_FF, short as u16, 1),
        Event::new(EV_FF, FF_GAIN, 0x5000),
    ]);
    joined.carry();
    (0..3).for_each(|_| assert!(matches!(next(&seen), Seen::Event(_))));

    joined.source.ctl(Ctl::Neutral);
    assert_eq!([erased(&seen), erased(&seen)], [1, 2]);

    joined.sink.ctl(Ctl::Snapshot);
    joined.carry();
    assert_eq!(next(&seen), Seen::Event(Event::new(EV_FF, FF_GAIN, 0x5000)));
    assert_eq!(next(&seen), Seen::Upload(Effect { id: 1, ..rumble(0x7000, 0) }));
    assert_eq!(next(&seen), Seen::Upload(Effect { id: 2, ..rumble(0x100, 100) }));
    assert_eq!(next(&seen), Seen::Event(Event::new(EV_FF, 1, 1)), "only the endless effect plays again");
}

#[test]
fn closing_the_application_erases_its_effects() {
    needs_uinput!();
    let (mut joined, seen) = joined_gamepad("rumble close");
    upload(&mut joined, rumble(0x7000, 100));
    assert!(matches!(next(&seen), Seen::Upload(_)));
    joined.application = Application::open("/dev/null");
    joined.carry();
    assert_eq!(erased(&seen), 1);
}

#[test]
fn a_new_worker_stops_the_effects_of_a_killed_one() {
    needs_uinput!();
    let device = Device::plug_in(&gamepad("rumble killed"));
    let seen = drive(device.driver.try_clone().unwrap());
    let opened = Evdev.open(&spec(&Evdev, &device.path, &[]), Role::Device, None).unwrap();
    // The broker keeps the node open, and the effect with it.
    assert_eq!(evdev::upload_effect(opened.descriptors[0].as_fd(), &rumble(0x7000, 0)).unwrap(), 0);
    assert!(matches!(next(&seen), Seen::Upload(_)));
    let _source = End::new(&Evdev, opened);
    assert_eq!(erased(&seen), 0);
}

#[test]
fn an_effect_that_the_device_refuses_is_counted() {
    needs_uinput!();
    let (mut joined, seen) = joined_gamepad("rumble refused");
    let mut parameters = [0; EFFECT_PARAMETERS_MAX];
    parameters[..3].copy_from_slice(&[0x58, 100, 0x4000]);
    let id = upload(&mut joined, Effect { kind: FF_PERIODIC, parameters, ..rumble(0, 100) });
    assert!(matches!(next(&seen), Seen::Upload(_)));
    assert_eq!(joined.source.figure("effects refused"), 1.0);
    joined.application.write(&[Event::new(EV_FF, id as u16, 1)]);
    joined.carry();
    assert_eq!(joined.source.figure("feedback refused"), 1.0);
    upload(&mut joined, rumble(0x4000, 100));
    assert!(matches!(next(&seen), Seen::Upload(Effect { kind: FF_RUMBLE, .. })));
}
