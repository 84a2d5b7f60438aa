//! The devices of the experiments: where messages come from and where they go.

use crate::Setting;
use crate::measure::Times;
use contract::{
    Attributes, Body, Ctl, CtlReply, Direction, FlowKey, FlowTemplate, Message, Next, Partner, PartnerError,
    Pull, PullSlot, Pulled, Pushed, Readiness, Time,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;

/// The half of a partner that all of these share.
macro_rules! partner {
    ($device:ty, $self:ident, next: $next:expr, take: |$message:ident| $take:expr, ready: $ready:expr) => {
        impl Partner for $device {
            /// Called by the thread that runs the path: where it goes, the path goes.
            fn open(&mut self, _: &FlowTemplate, _: &Attributes) -> Result<FlowKey, PartnerError> {
                self.place.settle();
                Ok(FlowKey::DEFAULT)
            }

            fn close(&mut self, _: FlowKey) -> Result<(), PartnerError> {
                Ok(())
            }

            fn push(&mut $self, _: FlowKey, $message: Message) -> Result<Pushed, (PartnerError, Message)> {
                $take;
                Ok(Pushed::Taken)
            }

            fn pull(&mut $self, flow: FlowKey, want: Pull<'_>) -> Result<Pulled, PartnerError> {
                let next = $next;
                PullSlot::default().answer(flow, want, || Ok(next))
            }

            fn ctl(&mut self, _: FlowKey, _: Ctl<'_>) -> Result<CtlReply, PartnerError> {
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

/// Which of the setting's processors a path runs on.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    setting: Setting,
    which: usize,
}

impl Place {
    pub(crate) fn new(setting: &Setting, which: usize) -> Self {
        Place { setting: setting.clone(), which }
    }

    fn settle(&self) {
        self.setting.settle(self.which);
    }
}

/// Makes a message when the one before has come back, and notes how long it took, there and back.
pub(crate) struct Ping {
    place: Place,
    body: Body,
    left: usize,
    /// How many of the first are not noted.
    warm_up: usize,
    /// When the message that is under way was made.
    made: Option<u64>,
    times: Times,
    results: Sender<Times>,
}

impl Ping {
    pub(crate) fn new(
        place: Place,
        body: Body,
        warm_up: usize,
        count: usize,
        results: Sender<Times>,
    ) -> Self {
        let times = Times::with_capacity(count);
        Ping { place, body, left: warm_up + count, warm_up, made: None, times, results }
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
        assert_eq!(message.body.len(), self.body.len(), "what comes back is what went");
        match self.warm_up.checked_sub(1) {
            Some(left) => self.warm_up = left,
            None => self.times.add((now - made) / 2),
        }
    }
}

partner!(Ping, self, next: self.next(), take: |message| self.back(message), ready: self.made.is_none());

/// Makes a message when the one before has come back, until the window is finished.
pub(crate) struct Rally {
    place: Place,
    body: Body,
    window: Window,
    is_away: bool,
}

impl Rally {
    pub(crate) fn new(place: Place, body: Body, window: Window) -> Self {
        Rally { place, body, window, is_away: false }
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

/// Gives back what it is given.
pub(crate) struct Echo {
    place: Place,
    held: Option<Message>,
}

impl Echo {
    pub(crate) fn new(place: Place) -> Self {
        Echo { place, held: None }
    }
}

partner!(
    Echo,
    self,
    next: self.held.take().map_or(Next::Nothing, Next::Message),
    take: |message| self.held = Some(message),
    ready: self.held.is_some()
);

/// How much may be on its way where the transport itself sets no limit, as a session's acknowledgements would.
#[derive(Debug, Default, Clone)]
pub(crate) struct Window {
    received_bytes: Arc<AtomicU64>,
    /// When, on the boot clock.
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

    /// When something was received last, nanoseconds.
    pub(crate) fn received_ns(&self) -> u64 {
        self.received_ns.load(Ordering::Acquire)
    }

    /// The sender has sent all.
    pub(crate) fn finish(&self) {
        self.is_done.store(true, Ordering::Release);
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.is_done.load(Ordering::Acquire)
    }
}

/// What is on its way, as the sender knows it.
#[derive(Debug)]
pub(crate) struct InFlight {
    window: Window,
    bytes_max: u64,
    sent_bytes: u64,
    /// Given up as lost.
    lost_bytes: u64,
    /// What had been received when that last changed, and when that was.
    seen: (u64, u64),
}

impl InFlight {
    /// Without progress for so long, what is on its way is lost: longer than a busy machine lets a thread wait.
    const PATIENCE_NS: u64 = 300_000_000;

    pub(crate) fn new(window: Window, bytes_max: u64) -> Self {
        InFlight { window, bytes_max, sent_bytes: 0, lost_bytes: 0, seen: (u64::MAX, 0) }
    }

    /// Whether `bytes` more may be sent now.
    pub(crate) fn has_room(&mut self, bytes: usize) -> bool {
        let received = self.window.received_bytes();
        // What was given up may come after all.
        self.lost_bytes = self.lost_bytes.min(self.sent_bytes - received);
        let on_their_way = self.sent_bytes - self.lost_bytes - received;
        if on_their_way == 0 || on_their_way + bytes as u64 <= self.bytes_max {
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

/// Makes messages as long as there is room on the way.
pub(crate) struct Flood {
    place: Place,
    body: Body,
    left: usize,
    in_flight: InFlight,
}

impl Flood {
    pub(crate) fn new(place: Place, body: Body, count: usize, in_flight: InFlight) -> Self {
        Flood { place, body, left: count, in_flight }
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

/// Counts what it is given.
pub(crate) struct Count {
    place: Place,
    window: Window,
}

impl Count {
    pub(crate) fn new(place: Place, window: Window) -> Self {
        Count { place, window }
    }
}

partner!(Count, self, next: Next::Nothing, take: |message| self.window.received(message.body.len()), ready: false);
