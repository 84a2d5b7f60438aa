//! The attacker: a process of its own, on the application's host or on this one, that attacks while it is told to.
//! It runs when nothing else wants the processors (`SCHED_IDLE`), as if it had a machine of its own, unless it is asked to
//! be as everybody.

use super::bomber::Bomber;
use super::channel::{Channel, Own, identity, reason};
use super::guests::{Chatter, Flicker, Flooder, Opener};
use super::middle::Middle;
use super::packets::Replayer;
use crate::Failure;
use clap::{Args, ValueEnum};
use runtime::Limits;
use runtime::trust::{Code, PairError, Trust, join};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io::{BufRead, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;
use wire::control::PublicKey;
use wire::preamble::SessionToken;
use wire::{Control, Preamble};

/// Connections that are held open and say next to nothing.
const SLOW: usize = 300;
/// How long nothing is done where there is nothing to do.
pub(super) const PAUSE: Duration = Duration::from_millis(5);
/// Of one kind of refusal no more is kept than this.
const REASON_CHARS: usize = 60;
/// Kinds of answers that are told apart.
const REASONS_MAX: usize = 32;

/// What is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Attack {
    /// Nothing: how far two measurements differ by themselves
    Nothing,
    /// A host that nobody knows
    Unknown,
    /// A host that was known once
    Removed,
    /// A peer asks for devices that it may not see
    Forbidden,
    /// Packets of the running flow are said again, as they were and altered
    Replay,
    /// Somebody stands between two hosts that pair
    Middle,
    /// Guesses of a code
    Guesses,
    /// A peer's pipeline names paths, commands and keys, and nests without end
    Pipelines,
    /// A peer opens sessions without end
    Sessions,
    /// Connections that say next to nothing
    SlowOpens,
    /// A peer that pings without end
    Chatter,
    /// A peer acknowledges, misses and asks anew what nobody sent, without end
    Acknowledgements,
    /// A peer wants other pipelines for its flows, without end
    Changes,
    /// Handshakes as fast as they go
    Handshakes,
    /// Datagrams and connections of noise
    Noise,
    /// A peer's messages would become 64 MiB each when they are decompressed
    Bombs,
    /// A peer's messages become as large as they may when they are decompressed, without end
    Inflation,
    /// A peer has what it attaches compressed at the greatest cost
    Costly,
    /// A peer attaches what has always more to say, and reads nothing of it
    Stalled,
    /// A peer attaches, beside the running flow, the device of which that comes, and reads nothing
    Member,
    /// A peer opens and closes a device without end
    Flicker,
    /// Everything is too long
    Oversized,
}

impl Attack {
    /// Who does it.
    pub(super) fn attacker(self) -> Who {
        match self {
            Attack::Removed => Who::Removed,
            Attack::Forbidden => Who::Restricted,
            Attack::Pipelines | Attack::Sessions | Attack::Oversized | Attack::Chatter => Who::Guest,
            Attack::Acknowledgements | Attack::Changes => Who::Guest,
            Attack::Costly | Attack::Stalled | Attack::Member | Attack::Flicker => Who::Guest,
            bombs if bombs.bomb_bytes().is_some() => Who::Guest,
            _ => Who::Stranger,
        }
    }

    /// Whether a code is shown meanwhile.
    pub(super) fn wants_code(self) -> bool {
        matches!(self, Attack::Middle | Attack::Guesses)
    }

    /// What its messages become, where they become more than they are.
    pub(super) fn bomb_bytes(self) -> Option<usize> {
        match self {
            Attack::Bombs => Some(64 << 20),
            Attack::Inflation => Some(Limits::default().message_bytes),
            _ => None,
        }
    }

    /// Threads that do it.
    fn threads(self) -> usize {
        match self {
            Attack::Nothing | Attack::Replay | Attack::Middle | Attack::SlowOpens => 1,
            Attack::Bombs | Attack::Inflation | Attack::Costly | Attack::Stalled | Attack::Member => 1,
            Attack::Chatter | Attack::Acknowledgements | Attack::Changes | Attack::Flicker => 1,
            Attack::Noise | Attack::Forbidden | Attack::Pipelines => 2,
            Attack::Guesses => 8,
            _ => 16,
        }
    }

    /// Time between two tries of a thread: what a link of some ten thousand packets a second carries.
    fn pause(self) -> Duration {
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
            Attack::Forbidden => "peer asks for what it may not see",
            Attack::Replay => "packets said again, and altered",
            Attack::Middle => "man in the middle of pairing",
            Attack::Guesses => "guesses of a code",
            Attack::Pipelines => "hostile pipelines",
            Attack::Sessions => "sessions without end",
            Attack::SlowOpens => "slow opens",
            Attack::Chatter => "pings without end",
            Attack::Acknowledgements => "acknowledgements and the like without end",
            Attack::Changes => "changes of pipelines without end",
            Attack::Handshakes => "flood of handshakes",
            Attack::Noise => "flood of noise",
            Attack::Bombs => "decompression bombs, 64 MiB",
            Attack::Inflation => "decompression bombs, as large as may be",
            Attack::Costly => "costly pipeline",
            Attack::Stalled => "reader that reads nothing",
            Attack::Member => "host of the same device that reads nothing",
            Attack::Flicker => "device opened and closed without end",
            Attack::Oversized => "oversized everything",
        })
    }
}

/// Whom a sharer takes an attacker for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Who {
    /// Nobody it knows.
    Stranger,
    /// Nobody any more.
    Removed,
    /// A peer that may open nothing.
    Restricted,
    /// A peer that may open the toy.
    Guest,
}

impl Who {
    pub(super) const EVERY: [Who; 4] = [Who::Stranger, Who::Removed, Who::Restricted, Who::Guest];

    /// Its name, and that of its directory.
    pub(super) fn name(self) -> &'static str {
        match self {
            Who::Stranger => "stranger",
            Who::Removed => "removed",
            Who::Restricted => "restricted",
            Who::Guest => "guest",
        }
    }
}

/// How the attacker is started.
#[derive(Args, Debug, Clone)]
pub(crate) struct AttackerSetting {
    /// What it does
    pub(super) attack: Attack,
    /// The sharer
    pub(super) address: SocketAddr,
    /// Where a code is shown
    pub(super) pairing: SocketAddr,
    /// The sharer of the running flow
    pub(super) flow: SocketAddr,
    /// The attacker's own files
    pub(super) directory: PathBuf,
    /// The program `outboard`
    pub(super) program: PathBuf,
    /// Its priority
    pub(super) priority: Priority,
}

/// How an attacker's machine has the processor that it shares with the application.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Priority {
    /// When nothing else wants it
    Idle,
    /// As everybody
    Ordinary,
}

impl Priority {
    /// The calling thread, and what it starts, has it from now on.
    pub(super) fn take(self) {
        if self == Priority::Idle {
            sys::thread::be_idle();
        }
    }
}

/// What it tells at its end.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Tally {
    pub(super) tries: u64,
    /// Never.
    pub(super) got_in: Vec<String>,
    /// How often it was told what.
    pub(super) refused: BTreeMap<String, u64>,
}

impl Tally {
    fn note(&mut self, came: Came) {
        self.tries += u64::from(!matches!(came, Came::NotTried));
        match came {
            Came::Silence | Came::NotTried => {}
            Came::GotIn(how) => self.got_in.push(how),
            Came::Refused(why) => {
                let why = kind_of(&why);
                if self.refused.contains_key(&why) || self.refused.len() < REASONS_MAX {
                    *self.refused.entry(why).or_default() += 1;
                }
            }
        }
    }
}

/// A reason without what differs from one to the next.
fn kind_of(reason: &str) -> String {
    let is_address = |word: &&str| word.trim_end_matches(':').parse::<SocketAddr>().is_ok();
    let reason = reason.split(' ').filter(|word| !is_address(word)).collect::<Vec<_>>().join(" ");
    let end =
        [" (", ": ", " `", "\n"].iter().filter_map(|mark| reason.find(mark)).min().unwrap_or(reason.len());
    let limit = reason.split("--limit ").nth(1).and_then(|rest| rest.split([')', ' ', ',']).next());
    let kind: String = reason[..end].chars().take(REASON_CHARS).collect();
    limit.map_or(kind, |limit| format!("--limit {limit}"))
}

/// What came of a try.
pub(super) enum Came {
    GotIn(String),
    Refused(String),
    /// It was told nothing.
    Silence,
    /// There was nothing to try.
    NotTried,
}

/// What the threads of an attack share.
#[derive(Default)]
pub(super) struct Orders {
    /// Who waits for it wakes no processor meanwhile.
    go: Mutex<bool>,
    changed: Condvar,
    /// The code that is shown, for who should know it, and how many were shown.
    code: Mutex<String>,
    codes: AtomicU64,
    tally: Mutex<Tally>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Orders {
    fn go(&self) -> bool {
        *lock(&self.go)
    }

    fn wait_to_go(&self) {
        let waited = self.changed.wait_while(lock(&self.go), |go| !*go);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    fn set(&self, go: bool) {
        *lock(&self.go) = go;
        self.changed.notify_all();
    }
}

/// One thread's attack.
pub(super) trait Assault {
    /// Tries once.
    fn attempt(&mut self, orders: &Orders) -> Came;

    /// Nothing is to be done for a while.
    fn rest(&mut self) {}
}

/// Attacks as standard input says: `go`, `stop`, `code CODE`. At its end it tells what came of it.
pub(crate) fn run(setting: &AttackerSetting) -> Result<(), Failure> {
    setting.priority.take();
    let trust = Trust::at(&setting.directory)?;
    let own = identity(&setting.directory)?;
    let orders = Arc::<Orders>::default();
    for number in 0..setting.attack.threads() {
        let (mut assault, orders) = (assault(setting, &trust, &own, number)?, orders.clone());
        let pause = setting.attack.pause();
        thread::spawn(move || {
            loop {
                if orders.go() {
                    let came = assault.attempt(&orders);
                    lock(&orders.tally).note(came);
                    thread::sleep(pause);
                } else {
                    assault.rest();
                    orders.wait_to_go();
                }
            }
        });
    }
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        match line?.split_once(' ').unwrap_or_default() {
            ("code", code) => {
                *lock(&orders.code) = code.into();
                orders.codes.fetch_add(1, Ordering::Relaxed);
            }
            ("be", what) => orders.set(what == "hostile"),
            _ => {}
        }
    }
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, &*lock(&orders.tally))?;
    out.flush()?;
    // What the threads are at is of no use any more.
    std::process::exit(0)
}

fn assault(
    setting: &AttackerSetting,
    trust: &Trust,
    own: &Own,
    number: usize,
) -> Result<Box<dyn Assault + Send>, Failure> {
    let address = setting.address;
    let caller = Caller { address, own: own.clone(), over_quic: number.is_multiple_of(2) };
    Ok(match setting.attack {
        Attack::Nothing => Box::new(Nothing),
        Attack::Unknown | Attack::Removed => Box::new(Greeter { caller }),
        Attack::Forbidden => Box::new(Asker::new(caller, forbidden())),
        Attack::Pipelines => Box::new(Asker::new(caller, hostile_pipelines())),
        Attack::Oversized => Box::new(Oversized { caller, number }),
        Attack::Sessions => Box::new(Opener { caller }),
        Attack::Handshakes => Box::new(Shaker { caller }),
        Attack::Chatter => Box::new(Chatter { caller, channel: None }),
        Attack::SlowOpens => Box::new(Slow { address, open: VecDeque::new() }),
        Attack::Noise => {
            Box::new(Noise { address, socket: UdpSocket::bind("0.0.0.0:0")?, state: 1 + number as u64 })
        }
        Attack::Replay => Box::new(ReplayAll(Replayer::new(setting.flow.port(), address.port())?)),
        Attack::Guesses => Box::new(Guesser { trust: trust.clone(), address: setting.pairing, guess: 0 }),
        Attack::Middle => Box::new(Between {
            middle: Middle::new(setting.pairing, own)?,
            honest: Trust::at(&setting.directory.join("honest"))?,
            met: 0,
        }),
        Attack::Acknowledgements => Box::new(Flooder::new(caller, false)),
        Attack::Changes => Box::new(Flooder::new(caller, true)),
        Attack::Bombs | Attack::Inflation | Attack::Costly | Attack::Stalled | Attack::Member => {
            Box::new(Bomber::new(setting))
        }
        Attack::Flicker => Box::new(Flicker { caller, channel: None }),
    })
}

struct Nothing;

impl Assault for Nothing {
    fn attempt(&mut self, _: &Orders) -> Came {
        thread::sleep(PAUSE);
        Came::Silence
    }
}

/// Who calls, and whom.
pub(super) struct Caller {
    address: SocketAddr,
    own: Own,
    /// The next time; else over TCP.
    over_quic: bool,
}

impl Caller {
    /// Over the one and the other in turns.
    pub(super) fn call(&mut self) -> std::io::Result<Channel> {
        self.over_quic = !self.over_quic;
        Channel::open(self.over_quic, self.address, &self.own)
    }

    /// Begins a session, unless there is one; what it was told, if it was not let in.
    pub(super) fn come_in(&mut self, session: &mut Option<Channel>) -> std::io::Result<Option<Came>> {
        if session.is_none() {
            let mut channel = self.call()?;
            match channel.greet()? {
                Control::Welcome { .. } => *session = Some(channel),
                other => return Ok(Some(Came::Refused(reason(other)))),
            }
        }
        Ok(None)
    }
}

pub(super) fn refused(error: &std::io::Error) -> Came {
    use std::io::ErrorKind::{TimedOut, WouldBlock};
    match error.kind() {
        TimedOut | WouldBlock => Came::Refused("no answer".into()),
        _ if error.to_string().is_empty() => Came::Refused("the connection was closed".into()),
        _ => Came::Refused(error.to_string()),
    }
}

/// Comes in, as if it were known.
struct Greeter {
    caller: Caller,
}

impl Assault for Greeter {
    fn attempt(&mut self, _: &Orders) -> Came {
        match self.caller.call().and_then(|mut channel| channel.greet()) {
            Ok(Control::Welcome { .. }) => Came::GotIn("it was welcomed".into()),
            Ok(other) => Came::Refused(reason(other)),
            Err(error) => refused(&error),
        }
    }
}

/// A peer that opens what it should not.
struct Asker {
    caller: Caller,
    opens: Vec<Control>,
    next: usize,
    channel: Option<Channel>,
}

impl Asker {
    fn new(caller: Caller, opens: Vec<Control>) -> Asker {
        Asker { caller, opens, next: 0, channel: None }
    }

    fn ask(&mut self) -> std::io::Result<Came> {
        if let Some(refusal) = self.caller.come_in(&mut self.channel)? {
            return Ok(refusal);
        }
        let Some(channel) = &mut self.channel else { return Ok(Came::Silence) };
        let open = &self.opens[self.next % self.opens.len()];
        self.next += 1;
        channel.say(&open.emit())?;
        loop {
            match channel.hear_on()? {
                Control::Opened { .. } => {
                    return Ok(Came::GotIn(format!("{open:?}").chars().take(200).collect()));
                }
                Control::Refused { reason, .. } => return Ok(Came::Refused(reason)),
                Control::Catalogue { entries } if *open == Control::List => {
                    // The toy is for who may open anything.
                    return Ok(
                        match entries.iter().find(|entry| !["toy", "spring"].contains(&&entry.name[..])) {
                            Some(entry) => Came::GotIn(format!("it sees {}", entry.name)),
                            None => Came::Refused("nothing to be seen".into()),
                        },
                    );
                }
                said @ Control::Goodbye { .. } => {
                    self.channel = None;
                    return Ok(Came::Refused(reason(said)));
                }
                _ => {}
            }
        }
    }
}

impl Assault for Asker {
    fn attempt(&mut self, _: &Orders) -> Came {
        self.ask().unwrap_or_else(|error| {
            self.channel = None;
            refused(&error)
        })
    }

    fn rest(&mut self) {
        part(&mut self.channel);
    }
}

/// Says goodbye: a session need not be kept for who rests.
pub(super) fn part(channel: &mut Option<Channel>) {
    if let Some(mut channel) = channel.take() {
        let _ = channel.say(&Control::Goodbye { reason: "it rests".into() }.emit());
    }
}

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

fn forbidden() -> Vec<Control> {
    let names = ["device", "secret", "device ", "../device", "DEVICE", "", "this user", "secret\0"];
    names.into_iter().map(|name| open(name, None)).chain([Control::List]).collect()
}

fn hostile_pipelines() -> Vec<Control> {
    let local = runtime::registry::pairs().iter().flat_map(|pair| {
        let options = pair.options().iter().filter(|option| option.scope == contract::Scope::Local);
        options.map(|option| format!("{}({}=/etc/passwd)", pair.name(), option.name)).collect::<Vec<_>>()
    });
    let more = [
        "exec(command=id)".to_string(),
        "record(path=/root/.ssh/authorized_keys)".into(),
        "null(path=/etc/passwd)".into(),
        "encrypt(key=0000000000000000000000000000000000000000000000000000000000000000)".into(),
        "@pipe null".into(),
        "(".repeat(4000),
        "null(".repeat(800),
        "null | ".repeat(500) + "null",
        "null | ".repeat(5000) + "null",
        "compress(level=99999999999999999999)".into(),
        "\u{0}\u{1b}[2J".into(),
        "bundle(count=18446744073709551615)".into(),
    ];
    local.chain(more).map(|via| open("toy", Some(via))).collect()
}

/// A peer whose messages are too long, or of no kind.
struct Oversized {
    caller: Caller,
    number: usize,
}

impl Oversized {
    fn say(&mut self) -> std::io::Result<Came> {
        self.number += 1;
        let mut channel = self.caller.call()?;
        let most = wire::control::FRAME_BYTES_MAX;
        let huge = |length: u32, bytes: usize| [&length.to_le_bytes()[..], &vec![b'x'; bytes]].concat();
        if self.number.is_multiple_of(2) {
            match channel.greet()? {
                Control::Welcome { .. } => {}
                other => return Ok(Came::Refused(reason(other))),
            }
        }
        let said = match self.number % 6 {
            0 | 1 => huge(u32::MAX, 4096),
            2 | 3 => huge(most as u32, most),
            4 => Control::Ask {
                driver: 0,
                id: 1,
                operation: 1,
                body: vec![0; wire::control::CONTROL_BODY_BYTES_MAX],
            }
            .emit(),
            _ => Control::Hello { host: "h".repeat(70_000), resume: None, received: 0, attempt: 1 }.emit(),
        };
        channel.say(&said)?;
        loop {
            match channel.hear()? {
                Control::Opened { .. } => return Ok(Came::GotIn("it opened something".into())),
                Control::Welcome { .. } => return Ok(Came::GotIn("welcomed in spite of its name".into())),
                said @ Control::Goodbye { .. } => return Ok(Came::Refused(reason(said))),
                Control::Answer { status, .. } => return Ok(Came::Refused(format!("status {status}"))),
                _ => {}
            }
        }
    }
}

impl Assault for Oversized {
    fn attempt(&mut self, _: &Orders) -> Came {
        self.say().unwrap_or_else(|error| refused(&error))
    }
}

/// Only shakes hands.
struct Shaker {
    caller: Caller,
}

impl Assault for Shaker {
    fn attempt(&mut self, _: &Orders) -> Came {
        match self.caller.call() {
            Ok(_) => Came::Refused("hands shaken, nothing said".into()),
            Err(error) => refused(&error),
        }
    }
}

/// Holds connections open, and says a byte now and then.
struct Slow {
    address: SocketAddr,
    open: VecDeque<TcpStream>,
}

impl Assault for Slow {
    fn attempt(&mut self, _: &Orders) -> Came {
        if self.open.len() >= SLOW {
            self.open.pop_front();
        }
        let preamble = Preamble::SecureControl.emit();
        for (at, stream) in self.open.iter_mut().enumerate().take(8) {
            // It may have been turned away.
            let _ = stream.write(&preamble[at..=at]);
        }
        match TcpStream::connect_timeout(&self.address, Duration::from_secs(1)) {
            Ok(stream) => {
                let _ = stream.set_nonblocking(true);
                self.open.push_back(stream);
                Came::Silence
            }
            Err(error) => refused(&error),
        }
    }

    fn rest(&mut self) {
        self.open.clear();
    }
}

/// Says what means nothing, or the beginnings of what does.
struct Noise {
    address: SocketAddr,
    socket: UdpSocket,
    /// Of a generator (xorshift), which is the seed at first.
    state: u64,
}

impl Noise {
    fn next(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state
    }
}

impl Assault for Noise {
    fn attempt(&mut self, _: &Orders) -> Came {
        let kind = self.next() % 8;
        let length = (self.next() % 1400 + 1) as usize;
        let mut bytes: Vec<u8> =
            std::iter::repeat_with(|| self.next().to_le_bytes()).take(length / 8 + 1).flatten().collect();
        let token = SessionToken(self.next().to_le_bytes().repeat(2).try_into().unwrap_or([7; 16]));
        let preamble = match kind {
            0 => Preamble::Data { session: token, driver: 0 }.emit().to_vec(),
            1 => Preamble::SecureData { channel: token.0, driver: 0 }.emit().to_vec(),
            // What looks like the first datagram of QUIC, version 1 (RFC 9000, section 17.2.2).
            2 => vec![0xc3, 0, 0, 0, 1, 8],
            _ => Vec::new(),
        };
        bytes.splice(..0, preamble);
        if kind == 2 {
            bytes.resize(1200, 0);
        }
        // A stranger's datagrams are not answered, and what is not sent was not tried.
        let _ = self.socket.send_to(&bytes, self.address);
        Came::Silence
    }
}

struct ReplayAll(Replayer);

impl Assault for ReplayAll {
    fn attempt(&mut self, _: &Orders) -> Came {
        self.0.replay();
        Came::Silence
    }

    fn rest(&mut self) {
        self.0.listen();
    }
}

/// Guesses codes.
struct Guesser {
    trust: Trust,
    address: SocketAddr,
    guess: u32,
}

impl Assault for Guesser {
    fn attempt(&mut self, orders: &Orders) -> Came {
        let right = lock(&orders.code).clone();
        self.guess = (self.guess + 1) % 10_000;
        let guess = format!("{:04}-{:04}", self.guess, 9999 - self.guess);
        let Ok(code) = Code::parse(&guess) else { return Came::Silence };
        match join(&self.trust, &code, "a", self.address) {
            Ok(_) if guess == right => Came::Refused("guessed right by chance".into()),
            Ok(_) => Came::GotIn(format!("with {guess}")),
            Err(PairError::Refused(why)) if why.contains("wrong") => Came::Refused("wrong code".into()),
            Err(PairError::Unreachable(_)) => {
                // Nobody listens there any more.
                thread::sleep(PAUSE);
                Came::Refused("the code is void".into())
            }
            Err(error) => Came::Refused(error.to_string()),
        }
    }
}

/// Stands between two hosts that pair, of which it plays the one that types the right code.
struct Between {
    middle: Middle,
    honest: Trust,
    /// Codes that it has met.
    met: u64,
}

impl Assault for Between {
    fn attempt(&mut self, orders: &Orders) -> Came {
        let codes = orders.codes.load(Ordering::Relaxed);
        let text = lock(&orders.code).clone();
        let (true, Ok(code)) = (codes > self.met, Code::parse(&text)) else {
            thread::sleep(PAUSE);
            return Came::NotTried;
        };
        let between = self.middle.address();
        let joined = thread::scope(|scope| {
            let stands = scope.spawn(|| self.middle.stand());
            let joined = join(&self.honest, &code, "a", between);
            // Where the one side broke off, so does the other.
            let _ = stands.join();
            joined
        });
        match joined {
            Ok(_) => Came::GotIn("the two paired with the one between them".into()),
            Err(PairError::Refused(why)) if why.contains("wrong") => {
                Came::Refused("the code fits neither side".into())
            }
            Err(error) => {
                self.met = codes;
                Came::Refused(error.to_string())
            }
        }
    }
}
