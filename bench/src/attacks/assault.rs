//! Attacks, their results, and the parts that all attackers share.

use super::channel::{Channel, Own, reason};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use session::Limits;
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use wire::Control;
use wire::control::PublicKey;

/// The pause of an attacker without work.
pub(super) const PAUSE: Duration = Duration::from_millis(5);
/// Most characters of a kind of answer.
const REASON_CHARS: usize = 60;
/// Most kinds of answers.
const REASONS_MAX: usize = 32;

/// An attack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Attack {
    /// No attack: the difference of two measurements
    Nothing,
    /// A host that is not paired
    Unknown,
    /// A host whose pairing was removed
    Removed,
    /// A peer requests devices that it may not see
    Forbidden,
    /// Packets of the running flow are replayed, unchanged and altered
    Replay,
    /// A man in the middle of two pairing hosts
    Middle,
    /// Guesses of a pairing code
    Guesses,
    /// Pipelines with paths, commands, keys and endless nesting
    Pipelines,
    /// A peer that opens sessions endlessly
    Sessions,
    /// Connections that send almost nothing
    SlowOpens,
    /// A peer that pings endlessly
    Chatter,
    /// A peer that endlessly acknowledges, misses and requests records that were never sent
    Acknowledgements,
    /// A peer that changes its flows' pipelines endlessly
    Changes,
    /// Handshakes as fast as possible
    Handshakes,
    /// Datagrams and connections of noise
    Noise,
    /// Messages that decompress to 64 MiB
    Bombs,
    /// Messages that decompress to the largest allowed size, endlessly
    Inflation,
    /// A peer that attaches a device with the most expensive compression
    Costly,
    /// A peer that attaches an endless source and reads nothing
    Stalled,
    /// A peer that attaches the running flow's device too and reads nothing
    Member,
    /// A peer that opens and closes a device endlessly
    Flicker,
    /// Messages of excessive length
    Oversized,
}

impl Attack {
    /// Returns the attacker's relation to the device host.
    pub(super) fn attacker(self) -> Relation {
        match self {
            Attack::Removed => Relation::Removed,
            Attack::Forbidden => Relation::Restricted,
            Attack::Pipelines | Attack::Sessions | Attack::Oversized | Attack::Chatter => Relation::Guest,
            Attack::Acknowledgements | Attack::Changes => Relation::Guest,
            Attack::Costly | Attack::Stalled | Attack::Member | Attack::Flicker => Relation::Guest,
            bombs if bombs.bomb_bytes().is_some() => Relation::Guest,
            _ => Relation::Stranger,
        }
    }

    /// Returns true if the device host shows a pairing code meanwhile.
    pub(super) fn needs_code(self) -> bool {
        matches!(self, Attack::Middle | Attack::Guesses)
    }

    /// Returns the decompressed size of its messages, if they are bombs.
    pub(super) fn bomb_bytes(self) -> Option<usize> {
        match self {
            Attack::Bombs => Some(64 << 20),
            Attack::Inflation => Some(Limits::default().message_bytes),
            _ => None,
        }
    }

    /// Returns the number of attacking threads.
    pub(super) fn threads(self) -> usize {
        match self {
            Attack::Nothing | Attack::Replay | Attack::Middle | Attack::SlowOpens => 1,
            Attack::Bombs | Attack::Inflation | Attack::Costly | Attack::Stalled | Attack::Member => 1,
            Attack::Chatter | Attack::Acknowledgements | Attack::Changes | Attack::Flicker => 1,
            Attack::Noise | Attack::Forbidden | Attack::Pipelines => 2,
            Attack::Guesses => 8,
            _ => 16,
        }
    }

    /// Returns the pause between two attempts of a thread, for a link of some ten thousand packets a second.
    pub(super) fn pause(self) -> Duration {
        Duration::from_micros(match self {
            Attack::Noise => 1000,
            Attack::SlowOpens | Attack::Forbidden | Attack::Pipelines => 2000,
            _ => 0,
        })
    }
}

impl fmt::Display for Attack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Attack::Nothing => "nothing",
            Attack::Unknown => "unknown peer",
            Attack::Removed => "removed peer",
            Attack::Forbidden => "peer requests forbidden devices",
            Attack::Replay => "packets replayed and altered",
            Attack::Middle => "man in the middle of pairing",
            Attack::Guesses => "guesses of a pairing code",
            Attack::Pipelines => "hostile pipelines",
            Attack::Sessions => "endless sessions",
            Attack::SlowOpens => "slow opens",
            Attack::Chatter => "endless pings",
            Attack::Acknowledgements => "endless acknowledgements and requests",
            Attack::Changes => "endless changes of pipelines",
            Attack::Handshakes => "flood of handshakes",
            Attack::Noise => "flood of noise",
            Attack::Bombs => "decompression bombs, 64 MiB",
            Attack::Inflation => "decompression bombs, largest allowed",
            Attack::Costly => "costly pipeline",
            Attack::Stalled => "reader that reads nothing",
            Attack::Member => "host of the same device that reads nothing",
            Attack::Flicker => "device opened and closed endlessly",
            Attack::Oversized => "oversized messages",
        })
    }
}

/// The relation of an attacker to the device host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Relation {
    /// Not paired.
    Stranger,
    /// No longer paired.
    Removed,
    /// A peer that may open no device.
    Restricted,
    /// A peer that may open the toy devices.
    Guest,
}

impl Relation {
    pub(super) const EVERY: [Relation; 4] =
        [Relation::Stranger, Relation::Removed, Relation::Restricted, Relation::Guest];

    /// Returns its name, which is also the name of its directory.
    pub(super) fn name(self) -> &'static str {
        match self {
            Relation::Stranger => "stranger",
            Relation::Removed => "removed",
            Relation::Restricted => "restricted",
            Relation::Guest => "guest",
        }
    }
}

/// The arguments of the attacker.
#[derive(Args, Debug, Clone)]
pub(crate) struct AttackerSetting {
    /// Attack
    pub(super) attack: Attack,
    /// Address of the device host
    pub(super) address: SocketAddr,
    /// Address of the pairing
    pub(super) pairing: SocketAddr,
    /// Address of the running flow's device host
    pub(super) flow: SocketAddr,
    /// Directory of the attacker's files
    pub(super) directory: PathBuf,
    /// The program `outboard`
    pub(super) program: PathBuf,
    /// Priority
    pub(super) priority: Priority,
}

/// The attacker's priority on the processor that it shares with the application.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Priority {
    /// Only when no other thread wants the processor
    Idle,
    /// The default priority
    Ordinary,
}

impl Priority {
    /// Sets the priority of the calling thread. Its children inherit it.
    pub(super) fn take(self) {
        if self == Priority::Idle {
            sys::thread::be_idle();
        }
    }
}

/// The attacker's report at its end.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Tally {
    pub(super) tries: u64,
    /// Successful attempts.
    pub(super) got_in: Vec<String>,
    /// Answers with their counts.
    pub(super) refused: BTreeMap<String, u64>,
}

impl Tally {
    pub(super) fn note(&mut self, attempt: Attempt) {
        self.tries += u64::from(!matches!(attempt, Attempt::NotTried));
        match attempt {
            Attempt::Silence | Attempt::NotTried => {}
            Attempt::GotIn(how) => self.got_in.push(how),
            Attempt::Refused(why) => {
                let why = kind_of(&why);
                if self.refused.contains_key(&why) || self.refused.len() < REASONS_MAX {
                    *self.refused.entry(why).or_default() += 1;
                }
            }
        }
    }
}

/// Returns the kind of an answer without its variable parts.
fn kind_of(reason: &str) -> String {
    let is_address = |word: &&str| word.trim_end_matches(':').parse::<SocketAddr>().is_ok();
    let reason = reason.split(' ').filter(|word| !is_address(word)).collect::<Vec<_>>().join(" ");
    let end =
        [" (", ": ", " `", "\n"].iter().filter_map(|mark| reason.find(mark)).min().unwrap_or(reason.len());
    let limit = reason.split("limit ").nth(1).and_then(|rest| rest.split([')', ' ', ',']).next());
    let kind: String = reason[..end].chars().take(REASON_CHARS).collect();
    limit.map_or(kind, |limit| format!("limit {limit}"))
}

/// The result of an attempt.
pub(super) enum Attempt {
    GotIn(String),
    Refused(String),
    /// There was no answer.
    Silence,
    /// There was no attempt.
    NotTried,
}

/// The shared state of an attack's threads.
#[derive(Default)]
pub(super) struct Orders {
    /// True during an attack. Waiting for it does not wake a processor.
    active: Mutex<bool>,
    changed: Condvar,
    /// The current pairing code, for the honest side, and the number of codes so far.
    code: Mutex<String>,
    codes: AtomicU64,
    pub(super) tally: Mutex<Tally>,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Orders {
    pub(super) fn is_active(&self) -> bool {
        *lock(&self.active)
    }

    /// Waits for the next attack.
    pub(super) fn wait(&self) {
        let waited = self.changed.wait_while(lock(&self.active), |active| !*active);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    pub(super) fn set_active(&self, active: bool) {
        *lock(&self.active) = active;
        self.changed.notify_all();
    }

    pub(super) fn set_code(&self, code: &str) {
        *lock(&self.code) = code.into();
        self.codes.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the current pairing code and the number of codes so far.
    pub(super) fn code(&self) -> (String, u64) {
        let codes = self.codes.load(Ordering::Relaxed);
        (lock(&self.code).clone(), codes)
    }
}

/// The attack of one thread.
pub(super) trait Assault {
    /// Makes one attempt.
    fn attempt(&mut self, orders: &Orders) -> Attempt;

    /// Prepares for a pause between attacks.
    fn rest(&mut self) {}
}

/// Opens channels to the device host.
pub(super) struct Caller {
    pub(super) address: SocketAddr,
    pub(super) own: Own,
    /// True if the last channel was over QUIC, not TCP.
    pub(super) over_quic: bool,
}

impl Caller {
    /// Opens a channel, over QUIC and TCP in turns.
    pub(super) fn call(&mut self) -> std::io::Result<Channel> {
        self.over_quic = !self.over_quic;
        Channel::open(self.over_quic, self.address, &self.own)
    }

    /// Opens a session unless there is one. Returns the refusal, if any.
    pub(super) fn enter(&mut self, session: &mut Option<Channel>) -> std::io::Result<Option<Attempt>> {
        if session.is_none() {
            let mut channel = self.call()?;
            match channel.greet()? {
                Control::Welcome { .. } => *session = Some(channel),
                other => return Ok(Some(Attempt::Refused(reason(other)))),
            }
        }
        Ok(None)
    }
}

/// Returns the attempt that ended with an error.
pub(super) fn refused(error: &std::io::Error) -> Attempt {
    use std::io::ErrorKind::{TimedOut, WouldBlock};
    match error.kind() {
        TimedOut | WouldBlock => Attempt::Refused("no answer".into()),
        _ if error.to_string().is_empty() => Attempt::Refused("the connection was closed".into()),
        _ => Attempt::Refused(error.to_string()),
    }
}

/// Closes a session with `Goodbye`, so that the device host does not keep it.
pub(super) fn part(channel: &mut Option<Channel>) {
    if let Some(mut channel) = channel.take() {
        let _ = channel.send(&Control::Goodbye { reason: "pause".into() }.emit());
    }
}

/// Returns the request to open a device.
pub(super) fn open(name: &str, via: Option<String>) -> Control {
    Control::Open {
        driver: 0,
        name: name.into(),
        application: String::new(),
        transport: "tcp".into(),
        via,
        via_back: None,
        key: PublicKey([9; 32]),
    }
}
