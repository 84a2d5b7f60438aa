//! The limits of a session by name.

use contract::ServiceError;
use modules::check_options;
use modules::limits::{FIXED_LIMITS, limits};
use session::{Admittance, Limits, Rates};
use std::time::Duration;

fn problem<T>(result: Result<T, ServiceError>) -> String {
    match result {
        Err(ServiceError::Usage(problem)) => problem,
        Err(other) => panic!("not the user's error: {other}"),
        Ok(_) => panic!("accepted"),
    }
}

#[test]
fn the_names_of_limits_give_the_defaults_of_the_session() {
    assert_eq!(limits(None).unwrap(), Limits::default());
    assert!(problem(limits(Some("sessions=2, greeting=1s"))).contains("`greeting` is 5s on every host"));
    assert_eq!(limits(Some("silence=2s, sessions=1")).unwrap().silence, Duration::from_secs(2));
    assert!(problem(limits(Some("colour=red"))).contains("there is no option `colour`"));
}

#[test]
fn fixed_limits_are_listed_with_their_values() {
    let listed = check_options(FIXED_LIMITS, None).unwrap();
    let defaults = Limits::default();
    let (admission, rates) = (defaults.admission.clone(), defaults.rates.clone());
    let expected = Limits {
        ping_interval: listed.duration("ping_interval"),
        rest_interval: listed.duration("rest_interval"),
        greeting: listed.duration("greeting"),
        greetings: listed.count("greetings"),
        store_messages: listed.count("store_messages"),
        held_bytes: listed.size("held_bytes"),
        held_records: listed.count("held_records"),
        control_bytes: listed.size("control_bytes"),
        admission: Admittance {
            greetings_per_address: listed.count("greetings_per_address"),
            connections_per_second: listed.count("connections_per_second"),
            handshakes_per_second: listed.count("handshakes_per_second"),
            drivers_of_all: listed.count("drivers_of_all"),
            store_bytes_of_all: listed.size("store_bytes_of_all"),
            ..admission
        },
        rates: Rates {
            control_messages_per_peer: listed.count("control_messages_per_peer") as u64,
            control_requests_per_peer: listed.count("control_requests_per_peer") as u64,
            ..rates
        },
        ..defaults.clone()
    };
    assert_eq!(expected, defaults);
}
