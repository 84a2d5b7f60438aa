//! The attacker: a process on the application host that attacks on command. By default it runs at idle priority
//! (`SCHED_IDLE`), as if it had a machine of its own.

use super::assault::{
    Assault, Attack, AttackerSetting, Attempt, Caller, Orders, PAUSE, lock, open, part, refused,
};
use super::bomber::Bomber;
use super::channel::{Channel, Own, identity, reason};
use super::guests::{Chatter, Flicker, Flooder, Opener};
use super::middle::Middle;
use super::packets::Replayer;
use crate::setting::Failure;
use std::collections::VecDeque;
use std::io::{BufRead, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use trust::{Code, PairError, Trust, join};
use wire::preamble::SessionToken;
use wire::{Control, FlowControl, Preamble};

/// Open connections that send almost nothing.
const SLOW: usize = 300;
/// Runs the attacker with commands from standard input: `attack`, `pause`, `code CODE`. Prints its report at the end.
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
                if orders.is_active() {
                    let attempt = assault.attempt(&orders);
                    lock(&orders.tally).note(attempt);
                    thread::sleep(pause);
                } else {
                    assault.rest();
                    orders.wait();
                }
            }
        });
    }
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("code", code) => orders.set_code(code),
            ("attack", _) => orders.set_active(true),
            ("pause", _) => orders.set_active(false),
            _ => {}
        }
    }
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, &*lock(&orders.tally))?;
    out.flush()?;
    // The threads' current attempts do not matter.
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
    fn attempt(&mut self, _: &Orders) -> Attempt {
        thread::sleep(PAUSE);
        Attempt::Silence
    }
}

/// Opens a session as if it were paired.
struct Greeter {
    caller: Caller,
}

impl Assault for Greeter {
    fn attempt(&mut self, _: &Orders) -> Attempt {
        match self.caller.call().and_then(|mut channel| channel.greet()) {
            Ok(Control::Welcome { .. }) => Attempt::GotIn("welcomed".into()),
            Ok(other) => Attempt::Refused(reason(other)),
            Err(error) => refused(&error),
        }
    }
}

/// A peer that opens forbidden devices or pipelines.
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

    fn ask(&mut self) -> std::io::Result<Attempt> {
        if let Some(refusal) = self.caller.enter(&mut self.channel)? {
            return Ok(refusal);
        }
        let Some(channel) = &mut self.channel else { return Ok(Attempt::Silence) };
        let open = &self.opens[self.next % self.opens.len()];
        self.next += 1;
        channel.send(&open.emit())?;
        loop {
            match channel.receive_alive()? {
                Control::Opened { .. } => {
                    return Ok(Attempt::GotIn(format!("{open:?}").chars().take(200).collect()));
                }
                Control::Refused { reason, .. } => return Ok(Attempt::Refused(reason)),
                Control::Catalogue { entries } if *open == Control::List => {
                    // Peers that may open devices see the toys.
                    return Ok(
                        match entries.iter().find(|entry| !["toy", "spring"].contains(&&entry.name[..])) {
                            Some(entry) => Attempt::GotIn(format!("sees {}", entry.name)),
                            None => Attempt::Refused("no device visible".into()),
                        },
                    );
                }
                goodbye @ Control::Goodbye { .. } => {
                    self.channel = None;
                    return Ok(Attempt::Refused(reason(goodbye)));
                }
                _ => {}
            }
        }
    }
}

impl Assault for Asker {
    fn attempt(&mut self, _: &Orders) -> Attempt {
        self.ask().unwrap_or_else(|error| {
            self.channel = None;
            refused(&error)
        })
    }

    fn rest(&mut self) {
        part(&mut self.channel);
    }
}

fn forbidden() -> Vec<Control> {
    let names = ["device", "secret", "device ", "../device", "DEVICE", "", "this user", "secret\0"];
    names.into_iter().map(|name| open(name, None)).chain([Control::List]).collect()
}

fn hostile_pipelines() -> Vec<Control> {
    let local = modules::registry::pairs().iter().flat_map(|pair| {
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

/// A peer with messages that are too long or of no kind.
struct Oversized {
    caller: Caller,
    number: usize,
}

impl Oversized {
    fn send(&mut self) -> std::io::Result<Attempt> {
        self.number += 1;
        let mut channel = self.caller.call()?;
        let most = wire::control::FRAME_BYTES_MAX;
        let huge = |length: u32, bytes: usize| [&length.to_le_bytes()[..], &vec![b'x'; bytes]].concat();
        if self.number.is_multiple_of(2) {
            match channel.greet()? {
                Control::Welcome { .. } => {}
                other => return Ok(Attempt::Refused(reason(other))),
            }
        }
        let message = match self.number % 6 {
            0 | 1 => huge(u32::MAX, 4096),
            2 | 3 => huge(most as u32, most),
            4 => {
                let body = vec![0; wire::control::CONTROL_BODY_BYTES_MAX + 1];
                Control::Flow { flow: 0, message: FlowControl::Pair { epoch: 1, pair: 0, body } }.emit()
            }
            _ => Control::Hello {
                host: "h".repeat(70_000),
                resume: None,
                received: 0,
                attempt: 1,
                features: vec![],
            }
            .emit(),
        };
        channel.send(&message)?;
        loop {
            match channel.receive()? {
                Control::Opened { .. } => return Ok(Attempt::GotIn("opened a device".into())),
                Control::Welcome { .. } => return Ok(Attempt::GotIn("welcomed despite its name".into())),
                goodbye @ Control::Goodbye { .. } => return Ok(Attempt::Refused(reason(goodbye))),
                _ => {}
            }
        }
    }
}

impl Assault for Oversized {
    fn attempt(&mut self, _: &Orders) -> Attempt {
        self.send().unwrap_or_else(|error| refused(&error))
    }
}

/// Completes handshakes and sends nothing more.
struct Shaker {
    caller: Caller,
}

impl Assault for Shaker {
    fn attempt(&mut self, _: &Orders) -> Attempt {
        match self.caller.call() {
            Ok(_) => Attempt::Refused("handshake only".into()),
            Err(error) => refused(&error),
        }
    }
}

/// Keeps connections open with an occasional byte.
struct Slow {
    address: SocketAddr,
    open: VecDeque<TcpStream>,
}

impl Assault for Slow {
    fn attempt(&mut self, _: &Orders) -> Attempt {
        if self.open.len() >= SLOW {
            self.open.pop_front();
        }
        let preamble = Preamble::SecureControl.emit();
        for (at, stream) in self.open.iter_mut().enumerate().take(8) {
            // The device host may have closed it.
            let _ = stream.write(&preamble[at..=at]);
        }
        match TcpStream::connect_timeout(&self.address, Duration::from_secs(1)) {
            Ok(stream) => {
                let _ = stream.set_nonblocking(true);
                self.open.push_back(stream);
                Attempt::Silence
            }
            Err(error) => refused(&error),
        }
    }

    fn rest(&mut self) {
        self.open.clear();
    }
}

/// Sends noise, some of it behind valid preambles.
struct Noise {
    address: SocketAddr,
    socket: UdpSocket,
    /// State of the generator (xorshift).
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
    fn attempt(&mut self, _: &Orders) -> Attempt {
        let kind = self.next() % 8;
        let length = (self.next() % 1400 + 1) as usize;
        let mut bytes: Vec<u8> =
            std::iter::repeat_with(|| self.next().to_le_bytes()).take(length / 8 + 1).flatten().collect();
        let token = SessionToken(self.next().to_le_bytes().repeat(2).try_into().unwrap_or([7; 16]));
        let preamble = match kind {
            0 => Preamble::Data { session: token, driver: 0 }.emit().to_vec(),
            1 => Preamble::SecureData { channel: token.0, driver: 0 }.emit().to_vec(),
            // Like the first datagram of QUIC version 1 (RFC 9000, section 17.2.2).
            2 => vec![0xc3, 0, 0, 0, 1, 8],
            _ => Vec::new(),
        };
        bytes.splice(..0, preamble);
        if kind == 2 {
            bytes.resize(1200, 0);
        }
        // Noise gets no answer, and a failed send is no attempt.
        let _ = self.socket.send_to(&bytes, self.address);
        Attempt::Silence
    }
}

struct ReplayAll(Replayer);

impl Assault for ReplayAll {
    fn attempt(&mut self, _: &Orders) -> Attempt {
        self.0.replay();
        Attempt::Silence
    }

    fn rest(&mut self) {
        self.0.capture();
    }
}

/// Guesses pairing codes.
struct Guesser {
    trust: Trust,
    address: SocketAddr,
    guess: u32,
}

impl Assault for Guesser {
    fn attempt(&mut self, orders: &Orders) -> Attempt {
        let (right, _) = orders.code();
        self.guess = (self.guess + 1) % 10_000;
        let guess = format!("{:04}-{:04}", self.guess, 9999 - self.guess);
        let Ok(code) = Code::parse(&guess) else { return Attempt::Silence };
        match join(&self.trust, &code, ("a", self.address), None) {
            Ok(_) if guess == right => Attempt::Refused("guessed right by chance".into()),
            Ok(_) => Attempt::GotIn(format!("with {guess}")),
            Err(PairError::Refused(why)) if why.contains("wrong") => Attempt::Refused("wrong code".into()),
            Err(PairError::Unreachable(_)) => {
                // The pairing has ended.
                thread::sleep(PAUSE);
                Attempt::Refused("the code is void".into())
            }
            Err(error) => Attempt::Refused(error.to_string()),
        }
    }
}

/// A man in the middle of two pairing hosts. It also runs the host that enters the right code.
struct Between {
    middle: Middle,
    honest: Trust,
    /// Number of codes so far.
    met: u64,
}

impl Assault for Between {
    fn attempt(&mut self, orders: &Orders) -> Attempt {
        let (text, codes) = orders.code();
        let (true, Ok(code)) = (codes > self.met, Code::parse(&text)) else {
            thread::sleep(PAUSE);
            return Attempt::NotTried;
        };
        let between = self.middle.address();
        let joined = thread::scope(|scope| {
            let relay = scope.spawn(|| self.middle.relay());
            let joined = join(&self.honest, &code, ("a", between), None);
            // If one side closes the connection, so does the other.
            let _ = relay.join();
            joined
        });
        match joined {
            Ok(_) => Attempt::GotIn("both hosts paired with the man in the middle".into()),
            Err(PairError::Refused(why)) if why.contains("wrong") => {
                Attempt::Refused("the code matches on neither side".into())
            }
            Err(error) => {
                self.met = codes;
                Attempt::Refused(error.to_string())
            }
        }
    }
}
