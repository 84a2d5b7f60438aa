//! Heartbeats of two hosts: quiet at rest, fast once something is held, and no living link counts as dead.

use contract::Time;
use proptest::prelude::*;
use session::{Heartbeat, Limits};
use std::time::Duration;
use testkit::heartbeats::Heartbeats;

const NOW: [bool; 2] = [false, false];
const SILENCE: Duration = Duration::from_millis(700);
const TRIP: Duration = Duration::from_millis(5);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Two hosts that have held nothing for a minute.
fn at_rest(delay: Duration) -> Heartbeats {
    let mut hosts = Heartbeats::new(delay, Duration::ZERO, NOW, 1);
    hosts.run_for(ms(1000));
    (0..2).for_each(|host| hosts.hold(host, false));
    hosts.run_for(ms(60_000));
    hosts
}

#[test]
fn a_session_that_holds_nothing_is_quiet() {
    let mut hosts = at_rest(TRIP);
    let before = hosts.messages();
    hosts.run_for(ms(600_000));
    let messages = hosts.messages() - before;
    // Every 12 seconds a ping and its answer, and a third of that from the device host.
    assert!((125..=145).contains(&messages), "{messages} messages in ten minutes");
    assert_eq!([0, 1].map(|host| hosts.silent_at(host)), [None; 2]);
}

#[test]
fn a_held_key_is_released_in_time_on_both_hosts() {
    for holder in 0..2 {
        for held_for in [0, 50, 150, 1000, 20_000] {
            let mut hosts = at_rest(TRIP);
            hosts.run_for(ms(600_000));
            hosts.hold(holder, true);
            // The record arrives, and the other host holds it until it is acknowledged and has lingered.
            hosts.run_for(TRIP);
            hosts.hold(1 - holder, true);
            hosts.run_for(ms(held_for.min(1000)));
            if held_for > 1000 {
                // Only the holder knows that the key is still down. Its rhythm tells the other.
                hosts.hold(1 - holder, false);
                hosts.run_for(ms(held_for));
            }
            hosts.cut();
            let cut_at = hosts.now();
            hosts.run_for(ms(5000));
            for host in 0..2 {
                let silent_at = hosts.silent_at(host).expect("the cut is noticed");
                let after = silent_at.since(cut_at);
                assert!(after <= SILENCE + TRIP * 4, "host {host}: {after:?} after a hold of {held_for} ms");
            }
        }
    }
}

#[test]
fn a_link_that_died_at_rest_is_found_dead_soon_after_the_next_event() {
    let mut hosts = at_rest(TRIP);
    hosts.run_for(ms(3000));
    hosts.cut();
    hosts.run_for(ms(1));
    hosts.hold(1, true);
    let event_at = hosts.now();
    hosts.run_for(ms(20_000));
    let after = [0, 1].map(|host| hosts.silent_at(host).expect("it is noticed").since(event_at));
    assert!(after[1] <= SILENCE + TRIP * 4, "{after:?}");
    assert!(after[0] <= ms(12_800), "the other host has nothing to lose: {after:?}");
}

#[test]
fn a_numbered_message_is_acknowledged_soon() {
    let mut hosts = at_rest(TRIP);
    let before = hosts.messages();
    hosts.send(0);
    hosts.run_for(ms(120));
    // The message, and pings of both hosts with their answers.
    assert!(hosts.messages() - before >= 5, "{}", hosts.messages() - before);
}

proptest! {
    /// Neither the rhythm of the other host nor delays make a living link look dead.
    #[test]
    fn a_living_link_is_never_silent(
        delay_ms in 0..2000u64,
        jitter_ms in 0..150u64,
        is_old: [bool; 2],
        seed: u64,
        events in proptest::collection::vec((0..2usize, 0..3u8, 0..30_000u64), 1..60),
    ) {
        let mut hosts = Heartbeats::new(ms(delay_ms), ms(jitter_ms), is_old, seed);
        for (host, event, pause_ms) in events {
            match event {
                0 => hosts.hold(host, true),
                1 => hosts.hold(host, false),
                _ => hosts.send(host),
            }
            hosts.run_for(ms(pause_ms));
            let silent = [0, 1].map(|host| hosts.silent_at(host));
            prop_assert_eq!(silent, [None; 2], "at {:?}", hosts.now());
        }
    }
}

#[test]
fn silence_during_a_short_sleep_of_this_host_does_not_count() {
    let (limits, begun) = (Limits::default(), Time::from_millis(1000));
    let connected = || {
        let mut heartbeat = Heartbeat::new(&limits, begun);
        heartbeat.handle_connection(begun);
        heartbeat
    };
    let later = begun.after(limits.silence * 2);
    let mut asleep = connected();
    asleep.handle_sleep(later);
    assert!(!asleep.is_silent(later) && asleep.is_silent(later.after(limits.silence)));
    let much_later = begun.after(limits.silence * 3);
    let mut long_asleep = connected();
    long_asleep.handle_sleep(much_later);
    assert!(long_asleep.is_silent(much_later), "after a long sleep the connection is replaced");
    let mut awake = connected();
    let mut now = begun;
    while !awake.is_silent(now) {
        awake.handle_sleep(now);
        awake.handle_ping(true, now);
        now = now.after(limits.ping_interval);
    }
    awake.handle_sleep(now);
    assert!(awake.is_silent(later), "it was before this host slept");
}

#[test]
fn a_host_at_rest_that_slept_for_long_replaces_the_connection() {
    let (limits, mut now) = (Limits::default(), Time::from_millis(1000));
    let mut heartbeat = Heartbeat::new(&limits, now);
    heartbeat.handle_connection(now);
    heartbeat.hold(false, now);
    while !heartbeat.is_resting() {
        now = heartbeat.ping_at();
        heartbeat.handle_ping(true, now);
        heartbeat.handle_message(now);
    }
    let due = heartbeat.ping_at();
    heartbeat.handle_sleep(due);
    assert!(!heartbeat.is_silent(due), "nothing is expected");
    let much_later = due.after(limits.silence * 3);
    heartbeat.handle_sleep(much_later);
    assert!(heartbeat.is_silent(much_later));
}

#[test]
fn data_keeps_a_silent_control_channel_alive_only_for_so_long() {
    let limits = Limits::default();
    let mut heartbeat = Heartbeat::new(&limits, Time::ZERO);
    let dead = Time::ZERO.after(limits.silence * 10);
    let mut now = Time::ZERO;
    while now < dead {
        assert!(!heartbeat.is_silent(now), "{now:?}");
        heartbeat.handle_data(now);
        now = now.after(limits.silence / 2);
    }
    assert!(heartbeat.is_silent(dead));
    let heartbeat = Heartbeat::new(&limits, Time::ZERO);
    assert!(heartbeat.is_silent(Time::ZERO.after(limits.silence)), "nothing came at all");
}
