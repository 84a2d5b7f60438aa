//! The devices of the experiments: sources and sinks of messages.

use crate::measure::Times;
use crate::setting::Setting;
use contract::{
    Attributes, Body, Ctl, CtlReply, Direction, FlowKey, FlowTemplate, Message, Next, Partner, PartnerError,
    PartnerResult, Pull, PullSlot, Pulled, Pushed, Readiness, Time,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;

/// The common part of these partners.
macro_rules! partner {
    ($device:ty, $self:ident, next: $next:expr, take: |$message:ident| $take:expr, ready: $ready:expr) => {
        impl Partner for $device {
            /// Runs on the path's thread and pins it.
            fn open(&mut self, _: &FlowTemplate, _: &Attributes) -> PartnerResult<FlowKey> {
                self.processor.settle();
                Ok(FlowKey::DEFAULT)
            }

            fn close(&mut self, _: FlowKey) -> PartnerResult {
                Ok(())
            }

            fn push(&mut $self, _: FlowKey, $message: Message) -> Result<Pushed, (PartnerError, Message)> {
                $take;
                Ok(Pushed::Taken)
            }

            fn pull(&mut $self, flow: FlowKey, request: Pull<'_>) -> PartnerResult<Pulled> {
                let next = $next;
                PullSlot::default().answer(flow, request, || Ok(next))
            }

            fn ctl(&mut self, _: FlowKey, _: Ctl<'_>) -> PartnerResult<CtlReply> {
                Ok(CtlReply::Done)
            }

            fn readiness(&$self, _: FlowKey, direction: Direction) -> Readiness<'_> {
                match direction {
                    Direction::Out if $ready => Readiness::now(),
                    Direction::Out => Readiness::never(),
                    Direction::In => Readiness::now(),
                }
            }
        }
    };
}

/// The processor of a path: the first or the second one of the setting.
#[derive(Debug, Clone)]
pub(crate) struct Processor {
    setting: Setting,
    which: usize,
}

impl Processor {
    pub(crate) fn new(setting: &Setting, which: usize) -> Self {
        Processor { setting: setting.clone(), which }
    }

    fn settle(&self) {
        self.setting.settle(self.which);
    }
}

/// Sends a message after each echo and records half of the round trip.
pub(crate) struct Ping {
    processor: Processor,
    body: Body,
    left: usize,
    /// Messages at the start that are not recorded.
    warm_up: usize,
    /// Creation time of the message that waits for its echo.
    made: Option<u64>,
    times: Times,
    results: Sender<Times>,
}

impl Ping {
    pub(crate) fn new(
        processor: Processor,
        body: Body,
        warm_up: usize,
        count: usize,
        results: Sender<Times>,
    ) -> Self {
        let times = Times::with_capacity(count);
        Ping { processor, body, left: warm_up + count, warm_up, made: None, times, results }
    }

    fn next(&mut self) -> Next {
        if self.made.is_some() {
            return Next::Nothing;
        }
        if self.left == 0 {
            // The receiver outlives the paths.
            let _ = self.results.send(std::mem::take(&mut self.times));
            return Next::End;
        }
        self.left -= 1;
        let now = sys::clock::boot_ns();
        self.made = Some(now);
        Next::Message(Message::new(Time(now), self.body.clone()))
    }

    fn back(&mut self, message: Message) {
        let now = sys::clock::boot_ns();
        let Some(made) = self.made.take() else { return };
        assert_eq!(message.body.len(), self.body.len(), "an echo has another length");
        match self.warm_up.checked_sub(1) {
            Some(left) => self.warm_up = left,
            None => self.times.add((now - made) / 2),
        }
    }
}

partner!(Ping, self, next: self.next(), take: |message| self.back(message), ready: self.made.is_none());

/// Sends a message after each echo until the window is finished.
pub(crate) struct Rally {
    processor: Processor,
    body: Body,
    window: Window,
    is_away: bool,
}

impl Rally {
    pub(crate) fn new(processor: Processor, body: Body, window: Window) -> Self {
        Rally { processor, body, window, is_away: false }
    }

    fn next(&mut self) -> Next {
        if std::mem::replace(&mut self.is_away, true) {
            return Next::Nothing;
        }
        if self.window.is_finished() {
            return Next::End;
        }
        Next::Message(Message::new(Time(sys::clock::boot_ns()), self.body.clone()))
    }

    fn back(&mut self, message: Message) {
        self.is_away = false;
        self.window.received(message.body.len());
    }
}

partner!(Rally, self, next: self.next(), take: |message| self.back(message), ready: !self.is_away);

/// Echoes each message.
pub(crate) struct Echo {
    processor: Processor,
    held: Option<Message>,
}

impl Echo {
    pub(crate) fn new(processor: Processor) -> Self {
        Echo { processor, held: None }
    }
}

partner!(
    Echo,
    self,
    next: self.held.take().map_or(Next::Nothing, Next::Message),
    take: |message| self.held = Some(message),
    ready: self.held.is_some()
);

/// The receiver's side of a window, for a transport without flow control. It replaces a session's acknowledgements.
#[derive(Debug, Default, Clone)]
pub(crate) struct Window {
    received_bytes: Arc<AtomicU64>,
    /// Time of the last reception on the boot clock.
    received_ns: Arc<AtomicU64>,
    is_done: Arc<AtomicBool>,
}

impl Window {
    pub(crate) fn received(&self, bytes: usize) {
        self.received_ns.store(sys::clock::boot_ns(), Ordering::Relaxed);
        self.received_bytes.fetch_add(bytes as u64, Ordering::Release);
    }

    pub(crate) fn received_bytes(&self) -> u64 {
        self.received_bytes.load(Ordering::Acquire)
    }

    /// Returns the time of the last reception in nanoseconds.
    pub(crate) fn received_ns(&self) -> u64 {
        self.received_ns.load(Ordering::Acquire)
    }

    /// Records that the sender has finished.
    pub(crate) fn finish(&self) {
        self.is_done.store(true, Ordering::Release);
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.is_done.load(Ordering::Acquire)
    }
}

/// The sender's side of a window.
#[derive(Debug)]
pub(crate) struct InFlight {
    window: Window,
    bytes_max: u64,
    sent_bytes: u64,
    /// Bytes considered lost.
    lost_bytes: u64,
    /// The last change of the received bytes: value and time.
    seen: (u64, u64),
}

impl InFlight {
    /// Bytes in flight are lost after this time without progress. A busy machine schedules every thread earlier.
    const PATIENCE_NS: u64 = 300_000_000;

    pub(crate) fn new(window: Window, bytes_max: u64) -> Self {
        InFlight { window, bytes_max, sent_bytes: 0, lost_bytes: 0, seen: (u64::MAX, 0) }
    }

    /// Returns true if `bytes` more may be sent.
    pub(crate) fn has_room(&mut self, bytes: usize) -> bool {
        let received = self.window.received_bytes();
        // Bytes considered lost may arrive late.
        self.lost_bytes = self.lost_bytes.min(self.sent_bytes - received);
        let in_flight = self.sent_bytes - self.lost_bytes - received;
        if in_flight == 0 || in_flight + bytes as u64 <= self.bytes_max {
            return true;
        }
        let now = sys::clock::boot_ns();
        if self.seen.0 != received {
            self.seen = (received, now);
        } else if now - self.seen.1 > Self::PATIENCE_NS {
            self.lost_bytes = self.sent_bytes - received;
        }
        false
    }

    pub(crate) fn sent(&mut self, bytes: usize) {
        self.sent_bytes += bytes as u64;
    }
}

/// Sends messages while the window has room.
pub(crate) struct Flood {
    processor: Processor,
    body: Body,
    left: usize,
    in_flight: InFlight,
}

impl Flood {
    pub(crate) fn new(processor: Processor, body: Body, count: usize, in_flight: InFlight) -> Self {
        Flood { processor, body, left: count, in_flight }
    }

    fn next(&mut self) -> Next {
        if self.left == 0 || self.in_flight.window.is_finished() {
            return Next::End;
        }
        if !self.in_flight.has_room(self.body.len()) {
            std::thread::yield_now();
            return Next::Nothing;
        }
        self.left -= 1;
        self.in_flight.sent(self.body.len());
        Next::Message(Message::new(Time(sys::clock::boot_ns()), self.body.clone()))
    }
}

partner!(Flood, self, next: self.next(), take: |message| drop(message), ready: true);

/// Counts received bytes.
pub(crate) struct Count {
    processor: Processor,
    window: Window,
}

impl Count {
    pub(crate) fn new(processor: Processor, window: Window) -> Self {
        Count { processor, window }
    }
}

partner!(Count, self, next: Next::Nothing, take: |message| self.window.received(message.body.len()), ready: false);
