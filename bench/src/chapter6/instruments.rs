//! What measures: partners that make and take messages, a transport that says when records pass, and the bare
//! mechanisms beside them.

use super::Block;
use crate::Failure;
use crate::measure::Times;
use bytes::Bytes;
use contract::{
    Attributes, Body, Ctl, CtlReply, DatagramFacts, Direction, End, FlowKey, FlowTemplate, Message, Next,
    OptionSpec, Options, Partner, PartnerError, Pull, PullSlot, Pulled, Pushed, Readiness, SealKeys, Time,
    TransportClass,
};
use rustix::net::sockopt;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use testkit::taker::Taker;
use transports::tcp::Tcp;
use wire::RecordHeader;

/// Flows by their direction: a partner of the experiments has one each way at most.
pub(crate) const OUT: FlowKey = FlowKey(1);
pub(crate) const IN: FlowKey = FlowKey(2);

/// A figure that a panic elsewhere cannot spoil.
pub(crate) fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes without a pattern (splitmix64), the dissertation's random characters.
pub(crate) fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 1u64;
    let mut words = std::iter::repeat_with(|| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^ (mixed >> 31)
    });
    let mut noise: Vec<u8> = words.by_ref().take(bytes.div_ceil(8)).flat_map(u64::to_le_bytes).collect();
    noise.truncate(bytes);
    noise
}

/// Messages one after the other, block after block: the next when the one before was answered and a pause is over.
pub(crate) struct Pacer {
    blocks: VecDeque<Block>,
    body: Body,
    pause_ns: u64,
    /// When the message that is under way was made.
    made: Option<u64>,
    /// The next is not made before.
    resume_ns: u64,
    begun_ns: u64,
    sent: usize,
    times: Times,
    done: Vec<Times>,
    /// Nothing is made yet: it would be dropped, for there is no connection.
    is_held: bool,
}

/// What to do next.
enum Step {
    Make(Message),
    Wait,
    End(Vec<Times>),
}

impl Pacer {
    pub(crate) fn new(blocks: &[Block], pause: Duration) -> Arc<Mutex<Pacer>> {
        let mut pacer = Pacer {
            blocks: blocks.iter().copied().collect(),
            body: Body::new(),
            pause_ns: pause.as_nanos() as u64,
            made: None,
            resume_ns: 0,
            begun_ns: 0,
            sent: 0,
            times: Times::default(),
            done: Vec::new(),
            is_held: false,
        };
        pacer.begin_block();
        Arc::new(Mutex::new(pacer))
    }

    fn begin_block(&mut self) {
        let Some(block) = self.blocks.front() else { return };
        self.body = Body::from(noise(block.bytes));
        self.times = Times::with_capacity(block.count);
        (self.sent, self.begun_ns) = (0, sys::clock::boot_ns());
    }

    /// Makes nothing until the connection is there.
    pub(crate) fn hold(&mut self) {
        self.is_held = true;
    }

    pub(crate) fn release(&mut self) {
        self.is_held = false;
        self.begun_ns = sys::clock::boot_ns();
    }

    fn next(&mut self) -> Step {
        if self.made.is_some() || self.is_held {
            return Step::Wait;
        }
        let now = sys::clock::boot_ns();
        let Some(block) = self.blocks.front() else {
            return Step::End(std::mem::take(&mut self.done));
        };
        if block.is_done(self.sent, now - self.begun_ns) {
            self.done.push(std::mem::take(&mut self.times));
            self.blocks.pop_front();
            self.begin_block();
            return self.next();
        }
        if now < self.resume_ns {
            return Step::Wait;
        }
        self.sent += 1;
        let body = self.body.clone();
        let now = sys::clock::boot_ns();
        self.made = Some(now);
        Step::Make(Message::new(Time(now), body))
    }

    /// The message that is under way has come where it is measured; gives the way's share of the time.
    pub(crate) fn answer(&mut self, at: u64, ways: u64) {
        let Some(made) = self.made.take() else { return };
        self.resume_ns = at + self.pause_ns;
        if self.sent > Block::WARM_UP {
            self.times.add((at - made) / ways);
        }
    }

    fn readiness(&self) -> Readiness<'_> {
        match self.made {
            _ if self.is_held => Readiness::never(),
            Some(_) => Readiness::never(),
            None if self.pause_ns == 0 => Readiness::now(),
            None => Readiness::at(Time(self.resume_ns)),
        }
    }
}

impl Block {
    /// Whether no more are to be sent.
    pub(crate) fn is_done(&self, sent: usize, gone_ns: u64) -> bool {
        let least = (Block::WARM_UP + Block::LEAST).min(Block::WARM_UP + self.count);
        sent >= Block::WARM_UP + self.count || sent >= least && gone_ns > self.budget.as_nanos() as u64
    }
}

/// What every partner here answers alike.
macro_rules! plain_partner {
    () => {
        fn open(&mut self, template: &FlowTemplate, _: &Attributes) -> Result<FlowKey, PartnerError> {
            Ok(match template.direction {
                Direction::Out => OUT,
                Direction::In => IN,
            })
        }

        fn close(&mut self, _: FlowKey) -> Result<(), PartnerError> {
            Ok(())
        }

        fn ctl(&mut self, _: FlowKey, _: Ctl<'_>) -> Result<CtlReply, PartnerError> {
            Ok(CtlReply::Done)
        }
    };
}
pub(crate) use plain_partner;

/// Makes a pacer's messages. What comes back answers them, if anything does.
pub(crate) struct Probe {
    pub(crate) pacer: Arc<Mutex<Pacer>>,
    pub(crate) results: Sender<Vec<Times>>,
}

impl Partner for Probe {
    plain_partner!();

    fn push(&mut self, _: FlowKey, _: Message) -> Result<Pushed, (PartnerError, Message)> {
        lock(&self.pacer).answer(sys::clock::boot_ns(), 2);
        Ok(Pushed::Taken)
    }

    fn pull(&mut self, flow: FlowKey, want: Pull<'_>) -> Result<Pulled, PartnerError> {
        let next = match lock(&self.pacer).next() {
            Step::Make(message) => Next::Message(message),
            Step::Wait => Next::Nothing,
            Step::End(times) => {
                // Who wanted them may have given up.
                let _ = self.results.send(times);
                Next::End
            }
        };
        PullSlot::default().answer(flow, want, || Ok(next))
    }

    fn readiness(&self, _: FlowKey, direction: Direction) -> Readiness<'_> {
        match direction {
            Direction::In => Readiness::now(),
            Direction::Out => {
                let pacer = lock(&self.pacer);
                let ready = pacer.readiness();
                Readiness { now: ready.now, at: ready.at, ..Readiness::never() }
            }
        }
    }
}

/// Gives back what it is given: all of it, or a byte for each message that asks for one.
pub(crate) struct Answer {
    whole: bool,
    held: VecDeque<Message>,
}

/// Opens a message that wants to be acknowledged.
pub(crate) const WANTS_ACKNOWLEDGEMENT: u8 = 1;

impl Answer {
    pub(crate) fn new(whole: bool) -> Self {
        Answer { whole, held: VecDeque::new() }
    }
}

impl Partner for Answer {
    plain_partner!();

    fn push(&mut self, _: FlowKey, message: Message) -> Result<Pushed, (PartnerError, Message)> {
        if self.whole {
            self.held.push_back(message);
        } else if message.body.peek_front() == Some([WANTS_ACKNOWLEDGEMENT]) {
            self.held.push_back(Message::new(message.created, vec![0]));
        }
        Ok(Pushed::Taken)
    }

    fn pull(&mut self, flow: FlowKey, want: Pull<'_>) -> Result<Pulled, PartnerError> {
        let next = self.held.pop_front().map_or(Next::Nothing, Next::Message);
        PullSlot::default().answer(flow, want, || Ok(next))
    }

    fn readiness(&self, _: FlowKey, direction: Direction) -> Readiness<'_> {
        match direction {
            Direction::Out if self.held.is_empty() => Readiness::never(),
            _ => Readiness::now(),
        }
    }
}

/// Makes messages as long as they are taken, and tells when the last was acknowledged.
pub(crate) struct Flood {
    body: Bytes,
    left: usize,
    results: Sender<u64>,
    begun_ns: Option<u64>,
}

impl Flood {
    pub(crate) fn new(bytes: usize, count: usize, results: Sender<u64>) -> Self {
        Flood { body: noise(bytes).into(), left: count, results, begun_ns: None }
    }
}

impl Partner for Flood {
    plain_partner!();

    fn push(&mut self, _: FlowKey, _: Message) -> Result<Pushed, (PartnerError, Message)> {
        if let Some(begun) = self.begun_ns {
            // Who wanted it may have given up.
            let _ = self.results.send(sys::clock::boot_ns() - begun);
        }
        Ok(Pushed::Taken)
    }

    fn pull(&mut self, flow: FlowKey, want: Pull<'_>) -> Result<Pulled, PartnerError> {
        let next = match self.left {
            0 => Next::Nothing,
            left => {
                let now = sys::clock::boot_ns();
                self.begun_ns.get_or_insert(now);
                self.left -= 1;
                let first = if left == 1 { WANTS_ACKNOWLEDGEMENT } else { 0 };
                let mut body = Body::from(self.body.slice(1..));
                body.push_front(&[first]);
                Next::Message(Message::new(Time(now), body))
            }
        };
        PullSlot::default().answer(flow, want, || Ok(next))
    }

    fn readiness(&self, _: FlowKey, direction: Direction) -> Readiness<'_> {
        match direction {
            Direction::Out if self.left == 0 => Readiness::never(),
            _ => Readiness::now(),
        }
    }
}

/// Memory that frames are painted into, as /dev/fb0 is written: a file in memory.
pub(crate) struct Screen {
    file: File,
}

impl Screen {
    pub(crate) fn new() -> Result<Screen, Failure> {
        let memory = rustix::fs::memfd_create("screen", rustix::fs::MemfdFlags::CLOEXEC)?;
        Ok(Screen { file: memory.into() })
    }

    fn paint(&self, pieces: impl Iterator<Item = impl AsRef<[u8]>>) -> std::io::Result<()> {
        let mut at = 0;
        for piece in pieces {
            self.file.write_all_at(piece.as_ref(), at)?;
            at += piece.as_ref().len() as u64;
        }
        Ok(())
    }
}

/// Paints every frame and notes the time since the one before.
pub(crate) struct Painter {
    screen: Screen,
    block: Block,
    painted: usize,
    begun_ns: u64,
    last_ns: u64,
    times: Times,
    results: Sender<Times>,
}

impl Painter {
    pub(crate) fn new(block: &Block, results: Sender<Times>) -> Result<Painter, Failure> {
        let times = Times::with_capacity(block.count);
        Ok(Painter {
            screen: Screen::new()?,
            block: *block,
            painted: 0,
            begun_ns: 0,
            last_ns: 0,
            times,
            results,
        })
    }

    /// Paints one frame; says whether it was the last that counts.
    fn frame(&mut self, pieces: impl Iterator<Item = impl AsRef<[u8]>>) -> std::io::Result<bool> {
        self.screen.paint(pieces)?;
        let now = sys::clock::boot_ns();
        match self.painted {
            0 => self.begun_ns = now,
            painted if painted > Block::WARM_UP => self.times.add(now - self.last_ns),
            _ => {}
        }
        (self.painted, self.last_ns) = (self.painted + 1, now);
        // The first frame only begins the time of the second.
        Ok(self.block.is_done(self.painted - 1, now - self.begun_ns))
    }
}

impl Painter {
    /// A partner that paints what it takes.
    pub(crate) fn into_partner(mut self) -> Box<dyn Partner> {
        Box::new(Taker::new(move |message: Message| {
            // What a frame opens with says how its pixels lie; here all lie alike.
            let mut pixels = message.body.clone();
            pixels.skip_front(wire::formats::video::Header::BYTES);
            match self.frame(pixels.chunks()) {
                Ok(true) => {
                    // Who wanted them may have given up.
                    let _ = self.results.send(std::mem::take(&mut self.times));
                    Ok(())
                }
                Ok(false) => Ok(()),
                Err(error) => Err((PartnerError::os("painting", error), message)),
            }
        }))
    }
}

/// What is seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Passing {
    /// The connection is there; no record yet.
    Begin,
    /// A record goes to the network.
    Out,
    /// A record came from the network, its body so long.
    In(usize),
}

/// Is told of every record: which way, when, and when its message was made, on this host's clock where it goes out; and of
/// the connection before any.
pub(crate) type Watch = Arc<dyn Fn(Passing, u64, u64) + Send + Sync>;

/// TCP whose records are seen: right before they go to the socket, and right after they came from it.
pub(crate) struct Gauge {
    watch: Mutex<Option<Watch>>,
}

impl Gauge {
    pub(crate) const fn new() -> Self {
        Gauge { watch: Mutex::new(None) }
    }

    /// Who is told from the next connection on.
    pub(crate) fn set(&self, watch: Watch) {
        *lock(&self.watch) = Some(watch);
    }

    /// TCP with no queue of its own: what is handed over is written next.
    pub(crate) fn unqueued() -> Result<Options, Failure> {
        Ok(Options::check(Tcp.options(), [("outbox", "1")])?)
    }
}

impl TransportClass for Gauge {
    fn name(&self) -> &'static str {
        Tcp.name()
    }

    fn summary(&self) -> &'static str {
        Tcp.summary()
    }

    fn doc(&self) -> &'static str {
        Tcp.doc()
    }

    fn options(&self) -> &'static [OptionSpec] {
        Tcp.options()
    }

    fn facts(&self) -> DatagramFacts {
        Tcp.facts()
    }

    fn is_datagram(&self) -> bool {
        Tcp.is_datagram()
    }

    fn dial(&self, peer: SocketAddr, options: &Options) -> Result<OwnedFd, PartnerError> {
        Tcp.dial(peer, options)
    }

    fn partner(
        &self,
        socket: OwnedFd,
        end: End,
        options: &Options,
        keys: Option<&SealKeys>,
    ) -> Result<Box<dyn Partner>, PartnerError> {
        let inner = Tcp.partner(socket, end, options, keys)?;
        let watch = lock(&self.watch).clone().unwrap_or_else(|| Arc::new(|_, _, _| ()));
        watch(Passing::Begin, sys::clock::boot_ns(), 0);
        Ok(Box::new(Gauged { inner, watch }))
    }
}

struct Gauged {
    inner: Box<dyn Partner>,
    watch: Watch,
}

/// When a record's message was made.
fn created(record: &Body) -> u64 {
    let header = record.peek_front::<{ RecordHeader::BYTES }>();
    let header = header.and_then(|bytes| RecordHeader::parse(&bytes, wire::BODY_BYTES_MAX).ok());
    header.map_or(0, |header| header.container.created)
}

impl Partner for Gauged {
    fn open(&mut self, template: &FlowTemplate, attributes: &Attributes) -> Result<FlowKey, PartnerError> {
        self.inner.open(template, attributes)
    }

    fn close(&mut self, flow: FlowKey) -> Result<(), PartnerError> {
        self.inner.close(flow)
    }

    fn push(&mut self, flow: FlowKey, record: Message) -> Result<Pushed, (PartnerError, Message)> {
        let (at, created) = (sys::clock::boot_ns(), created(&record.body));
        let pushed = self.inner.push(flow, record)?;
        if matches!(pushed, Pushed::Taken) {
            (self.watch)(Passing::Out, at, created);
        }
        Ok(pushed)
    }

    fn pull(&mut self, flow: FlowKey, want: Pull<'_>) -> Result<Pulled, PartnerError> {
        let pulled = self.inner.pull(flow, want)?;
        if let Pulled::Message(_, record) = &pulled {
            (self.watch)(Passing::In(record.body.len()), sys::clock::boot_ns(), created(&record.body));
        }
        Ok(pulled)
    }

    fn ctl(&mut self, flow: FlowKey, operation: Ctl<'_>) -> Result<CtlReply, PartnerError> {
        self.inner.ctl(flow, operation)
    }

    fn readiness(&self, flow: FlowKey, direction: Direction) -> Readiness<'_> {
        self.inner.readiness(flow, direction)
    }
}

/// A bare ping-pong with the far host: half of the time there and back.
pub(crate) fn ping(mut socket: TcpStream, block: &Block, pause: Duration) -> Result<Times, Failure> {
    super::far::ask(&mut socket, super::far::Service::Echo, block.bytes as u64)?;
    let mut message = noise(block.bytes);
    let mut times = Times::with_capacity(block.count);
    let begun = sys::clock::boot_ns();
    for sent in 0.. {
        if block.is_done(sent, sys::clock::boot_ns() - begun) {
            break;
        }
        std::thread::sleep(pause);
        let made = sys::clock::boot_ns();
        socket.write_all(&message)?;
        socket.read_exact(&mut message)?;
        if sent >= Block::WARM_UP {
            times.add((sys::clock::boot_ns() - made) / 2);
        }
    }
    Ok(times)
}

/// Bare frames from the far host, painted: the time between them.
pub(crate) fn paint(mut socket: TcpStream, block: &Block) -> Result<Times, Failure> {
    super::far::ask(&mut socket, super::far::Service::Frames, block.bytes as u64)?;
    let mut frame = vec![0; block.bytes];
    let (results, times) = std::sync::mpsc::channel();
    let mut painter = Painter::new(block, results)?;
    loop {
        socket.read_exact(&mut frame)?;
        if painter.frame(std::iter::once(&frame))? {
            drop(times);
            return Ok(painter.times);
        }
    }
}

/// The congestion control that this host's sockets have by themselves.
pub(crate) fn congestion() -> String {
    let probe = || -> Result<String, Failure> {
        let socket =
            rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None)?;
        Ok(sockopt::tcp_congestion(&socket)?)
    };
    probe().unwrap_or_else(|_| "unknown".into())
}
