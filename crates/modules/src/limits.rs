//! The limits of a session by name, and their parser.

use crate::check_options;
use contract::{OptionKind, OptionSpec, ServiceError, local};
use session::{Admittance, Limits, Rates, StoreFull};
use std::time::Duration;

const COUNT: OptionKind = OptionKind::Integer { min: 1, max: 1 << 20 };
/// Percent of one processor, up to the most processors that Linux supports (`CONFIG_NR_CPUS`), so that a run file is
/// valid on every host.
const PERCENT: OptionKind = OptionKind::Integer { min: 0, max: 100 * 8192 };
const RATE_BYTES: OptionKind = OptionKind::Size { min: 0, max: 1 << 50 };
const BYTES: OptionKind = OptionKind::Size { min: 1, max: 1 << 40 };
const TIME: OptionKind =
    OptionKind::Duration { min: Duration::from_millis(1), max: Duration::from_secs(86_400) };

/// The limits that `--limit` sets.
pub static LIMITS: &[OptionSpec] = &[
    local("silence", TIME, "700ms", "silence of the other host after which a device goes neutral"),
    local("keep", TIME, "120s", "how long a session without a connection waits for its peer"),
    local("drain", TIME, "2s", "how long a stopping host delivers flows whose source has ended"),
    local("sessions", COUNT, "128", "sessions at once"),
    local("sessions_per_peer", COUNT, "64", "sessions of one peer at once"),
    local("drivers", COUNT, "64", "open devices of one session"),
    local("device_bytes", RATE_BYTES, "0", "bytes of one device in a second, both ways; 0: no limit"),
    local("session_bytes", RATE_BYTES, "0", "bytes of one session in a second, both ways; 0: no limit"),
    local(
        "cpu_percent_per_peer",
        PERCENT,
        "0",
        "processor time for the flows of one peer, per cent of one processor; 0: no limit",
    ),
    local("store_bytes", BYTES, "16MiB", "unacknowledged bytes of one flow"),
    local(
        "store_full",
        OptionKind::Choice(StoreFull::WORDS),
        "block",
        "reaction to a full replay store: stop reading the device, drop the oldest records, or end the flow",
    ),
    local(
        "message_bytes",
        BYTES,
        "4MiB",
        "bytes of a decompressed message of the other host, pictures apart",
    ),
];

/// The limits that are the same on every host. An error that names one carries its value too.
pub static FIXED_LIMITS: &[OptionSpec] = &[
    local("ping_interval", TIME, "100ms", "time between pings while a session holds something"),
    local("rest_interval", TIME, "12s", "longest time between pings of a session that holds nothing"),
    local("greeting", TIME, "5s", "time in which a new connection must introduce itself"),
    local("greetings", COUNT, "256", "connections without an introduction"),
    local("greetings_per_address", COUNT, "128", "connections of one address without an introduction"),
    local("connections_per_second", COUNT, "100", "new connections of one address in a second"),
    local("handshakes_per_second", COUNT, "200", "handshakes of all addresses in a second"),
    local("control_messages_per_peer", COUNT, "20000", "control messages of one peer in a second"),
    local(
        "control_requests_per_peer",
        COUNT,
        "200",
        "control messages of one peer in a second that are work for the broker: open, close, change",
    ),
    local("drivers_of_all", COUNT, "4096", "open devices of all sessions"),
    local("store_bytes_of_all", BYTES, "16GiB", "bytes that the replay stores of all flows may reserve"),
    local("store_messages", COUNT, "65536", "unacknowledged records of one flow"),
    local("held_bytes", BYTES, "16MiB", "bytes of one flow that wait for an earlier record"),
    local("held_records", COUNT, "4096", "records of one flow that wait for an earlier record"),
    local("control_bytes", BYTES, "4MiB", "bytes of control messages in the send queue of a session"),
];

/// Parses `name=value,...` with the names of [`LIMITS`].
pub fn limits(given: Option<&str>) -> Result<Limits, ServiceError> {
    let wrong = |problem: String| ServiceError::Usage(format!("limits: {problem}"));
    let names = given.unwrap_or_default().split(',').filter_map(|word| word.split('=').next());
    for name in names.map(str::trim) {
        if let Some(fixed) = FIXED_LIMITS.iter().find(|fixed| fixed.name == name) {
            return Err(wrong(format!("`{name}` is {} on every host and cannot be set", fixed.default)));
        }
    }
    let options = check_options(LIMITS, given).map_err(wrong)?;
    let defaults = Limits::default();
    Ok(Limits {
        store_bytes: options.size("store_bytes"),
        store_full: StoreFull::parse(options.text("store_full")).unwrap_or_default(),
        message_bytes: options.size("message_bytes"),
        silence: options.duration("silence"),
        keep: options.duration("keep"),
        drain: options.duration("drain"),
        sessions: options.count("sessions"),
        drivers: options.count("drivers"),
        admission: Admittance { sessions_per_peer: options.count("sessions_per_peer"), ..defaults.admission },
        rates: Rates {
            device_bytes: options.size("device_bytes") as u64,
            session_bytes: options.size("session_bytes") as u64,
            cpu_percent_per_peer: options.count("cpu_percent_per_peer") as u64,
            ..defaults.rates
        },
        ..defaults
    })
}
