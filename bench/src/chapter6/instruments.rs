//! The instruments: partners that create and take messages, and a transport that reports passing records.

use super::setting::Block;
use crate::measure::Times;
use crate::setting::Failure;
use bytes::Bytes;
use contract::{
    Attributes, Body, Ctl, CtlReply, Direction, End, FlowKey, FlowTemplate, Message, ModuleEntry, Next,
    Options, Partner, PartnerError, PartnerResult, Pull, PullSlot, Pulled, Pushed, Readiness, SealKeys, Time,
    TransportClass,
};
use rustix::net::sockopt;
use std::collections::VecDeque;
use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use testkit::taker::Taker;
use transports::quic::Quic;
use transports::tcp::Tcp;
use wire::RecordHeader;

/// The flows of a partner: at most one in each direction.
pub(crate) const OUT: FlowKey = FlowKey(1);
pub(crate) const IN: FlowKey = FlowKey(2);

/// Locks a value, also after a panic of another thread.
pub(crate) fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns bytes without a pattern (splitmix64), like the dissertation's random characters.
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

/// Creates messages block by block: the next after the answer to the previous one and a pause.
pub(crate) struct Pacer {
    blocks: VecDeque<Block>,
    body: Body,
    pause_ns: u64,
    /// Creation time of the message that waits for its answer.
    made: Option<u64>,
    /// The earliest time of the next message.
    resume_ns: u64,
    begun_ns: u64,
    sent: usize,
    times: Times,
    done: Vec<Times>,
    /// True until the connection exists. Without it a message would be dropped.
    is_held: bool,
}

/// The next step of a pacer.
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

    /// Stops creating messages until [`Pacer::release`].
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

    /// Records the answer to the current message, which covered the measured path `times` times.
    pub(crate) fn answer(&mut self, at: u64, times: u64) {
        let Some(made) = self.made.take() else { return };
        self.resume_ns = at + self.pause_ns;
        if self.sent > Block::WARM_UP {
            self.times.add((at - made) / times);
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

/// The operations that are the same for every partner here.
macro_rules! plain_partner {
    () => {
        fn open(&mut self, template: &FlowTemplate, _: &Attributes) -> PartnerResult<FlowKey> {
            Ok(match template.direction {
                Direction::Out => OUT,
                Direction::In => IN,
            })
        }

        fn close(&mut self, _: FlowKey) -> PartnerResult {
            Ok(())
        }

        fn ctl(&mut self, _: FlowKey, _: Ctl<'_>) -> PartnerResult<CtlReply> {
            Ok(CtlReply::Done)
        }
    };
}
pub(crate) use plain_partner;

/// A device that creates a pacer's messages. Each message that comes back answers the current one.
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

    fn pull(&mut self, flow: FlowKey, request: Pull<'_>) -> PartnerResult<Pulled> {
        let next = match lock(&self.pacer).next() {
            Step::Make(message) => Next::Message(message),
            Step::Wait => Next::Nothing,
            Step::End(times) => {
                // The receiver may have timed out.
                let _ = self.results.send(times);
                Next::End
            }
        };
        PullSlot::default().answer(flow, request, || Ok(next))
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

/// A device that answers: with the whole message, or with a byte to each message that asks for one.
pub(crate) struct Answer {
    whole: bool,
    held: VecDeque<Message>,
}

/// The first byte of a message that asks for an acknowledgement.
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

    fn pull(&mut self, flow: FlowKey, request: Pull<'_>) -> PartnerResult<Pulled> {
        let next = self.held.pop_front().map_or(Next::Nothing, Next::Message);
        PullSlot::default().answer(flow, request, || Ok(next))
    }

    fn readiness(&self, _: FlowKey, direction: Direction) -> Readiness<'_> {
        match direction {
            Direction::Out if self.held.is_empty() => Readiness::never(),
            _ => Readiness::now(),
        }
    }
}

/// A device that creates messages as fast as its flow takes them and reports the time until the last acknowledgement.
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
            // The receiver may have timed out.
            let _ = self.results.send(sys::clock::boot_ns() - begun);
        }
        Ok(Pushed::Taken)
    }

    fn pull(&mut self, flow: FlowKey, request: Pull<'_>) -> PartnerResult<Pulled> {
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
        PullSlot::default().answer(flow, request, || Ok(next))
    }

    fn readiness(&self, _: FlowKey, direction: Direction) -> Readiness<'_> {
        match direction {
            Direction::Out if self.left == 0 => Readiness::never(),
            _ => Readiness::now(),
        }
    }
}

/// A file in memory that frames are written to, as to `/dev/fb0`.
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

/// Paints frames and records the time between them.
pub(crate) struct Painter {
    screen: Screen,
    block: Block,
    painted: usize,
    begun_ns: u64,
    last_ns: u64,
    times: Times,
}

impl Painter {
    pub(crate) fn new(block: &Block) -> Result<Painter, Failure> {
        let times = Times::with_capacity(block.count);
        Ok(Painter { screen: Screen::new()?, block: *block, painted: 0, begun_ns: 0, last_ns: 0, times })
    }

    /// Returns the times between frames.
    pub(crate) fn times(&mut self) -> Times {
        std::mem::take(&mut self.times)
    }

    /// Paints one frame. Returns true after the last frame of the block.
    pub(crate) fn frame(&mut self, pieces: impl Iterator<Item = impl AsRef<[u8]>>) -> std::io::Result<bool> {
        self.screen.paint(pieces)?;
        let now = sys::clock::boot_ns();
        match self.painted {
            0 => self.begun_ns = now,
            painted if painted > Block::WARM_UP => self.times.add(now - self.last_ns),
            _ => {}
        }
        (self.painted, self.last_ns) = (self.painted + 1, now);
        // The first frame has no previous one.
        Ok(self.block.is_done(self.painted - 1, now - self.begun_ns))
    }

    /// Returns a partner that paints each message and reports the times at the end of the block.
    pub(crate) fn into_partner(mut self, results: Sender<Times>) -> Box<dyn Partner> {
        Box::new(Taker::new(move |message: Message| {
            // All frames have the same geometry.
            let mut pixels = message.body.clone();
            pixels.skip_front(wire::formats::video::Header::BYTES);
            match self.frame(pixels.chunks()) {
                Ok(true) => {
                    // The receiver may have timed out.
                    let _ = results.send(self.times());
                    Ok(())
                }
                Ok(false) => Ok(()),
                Err(error) => Err((PartnerError::os("painting", error), message)),
            }
        }))
    }
}

/// An event of a transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Passing {
    /// The connection is established. No record has passed yet.
    Begin,
    /// The transport takes a record.
    Out,
    /// The transport delivers a record of this many bytes.
    In(usize),
}

/// Receives each event with its time and the creation time of the record's message, which is on this host's clock for
/// records that leave.
pub(crate) type Watch = Arc<dyn Fn(Passing, u64, u64) + Send + Sync>;

/// A transport that reports its records: when it takes them, right before the write, and when it delivers them, right
/// after the read.
pub(crate) struct Gauge {
    inner: &'static dyn TransportClass,
    watch: Mutex<Option<Watch>>,
}

impl Gauge {
    /// A gauge over TCP.
    pub(crate) const fn tcp() -> Self {
        Gauge { inner: &Tcp, watch: Mutex::new(None) }
    }

    /// A gauge over QUIC.
    pub(crate) const fn quic() -> Self {
        Gauge { inner: &Quic, watch: Mutex::new(None) }
    }

    /// Sets the receiver of events from the next connection on.
    pub(crate) fn set(&self, watch: Watch) {
        *lock(&self.watch) = Some(watch);
    }

    /// Options of TCP without a queue: it writes each record before it takes the next.
    pub(crate) fn unqueued() -> Result<Options, Failure> {
        Ok(Options::check(Tcp.options(), [("outbox", "1")])?)
    }
}

impl TransportClass for Gauge {
    fn entry(&self) -> ModuleEntry {
        self.inner.entry()
    }

    fn may_lose(&self) -> bool {
        self.inner.may_lose()
    }

    fn is_datagram(&self) -> bool {
        self.inner.is_datagram()
    }

    fn dial(&self, peer: SocketAddr, options: &Options) -> PartnerResult<OwnedFd> {
        self.inner.dial(peer, options)
    }

    fn partner(
        &self,
        socket: OwnedFd,
        end: End,
        options: &Options,
        keys: Option<&SealKeys>,
    ) -> PartnerResult<Box<dyn Partner>> {
        let inner = self.inner.partner(socket, end, options, keys)?;
        let watch = lock(&self.watch).clone().unwrap_or_else(|| Arc::new(|_, _, _| ()));
        watch(Passing::Begin, sys::clock::boot_ns(), 0);
        Ok(Box::new(Gauged { inner, watch }))
    }
}

struct Gauged {
    inner: Box<dyn Partner>,
    watch: Watch,
}

/// Returns the creation time of a record's message.
fn created(record: &Body) -> u64 {
    let header = record.peek_front::<{ RecordHeader::BYTES }>();
    let header = header.and_then(|bytes| RecordHeader::parse(&bytes, wire::BODY_BYTES_MAX).ok());
    header.map_or(0, |header| header.container.created)
}

impl Partner for Gauged {
    fn open(&mut self, template: &FlowTemplate, attributes: &Attributes) -> PartnerResult<FlowKey> {
        self.inner.open(template, attributes)
    }

    fn close(&mut self, flow: FlowKey) -> PartnerResult {
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

    fn pull(&mut self, flow: FlowKey, request: Pull<'_>) -> PartnerResult<Pulled> {
        let pulled = self.inner.pull(flow, request)?;
        if let Pulled::Message(_, record) = &pulled {
            (self.watch)(Passing::In(record.body.len()), sys::clock::boot_ns(), created(&record.body));
        }
        Ok(pulled)
    }

    fn ctl(&mut self, flow: FlowKey, operation: Ctl<'_>) -> PartnerResult<CtlReply> {
        self.inner.ctl(flow, operation)
    }

    fn readiness(&self, flow: FlowKey, direction: Direction) -> Readiness<'_> {
        self.inner.readiness(flow, direction)
    }
}

/// Returns the congestion control of new sockets on this host.
pub(crate) fn congestion() -> String {
    let probe = || -> Result<String, Failure> {
        let socket =
            rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None)?;
        Ok(sockopt::tcp_congestion(&socket)?)
    };
    probe().unwrap_or_else(|_| "unknown".into())
}
