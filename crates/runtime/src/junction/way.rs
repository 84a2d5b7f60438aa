//! One of the several paths that meet in a junction.

use crate::active::{Endpoint, Taken};
use crate::driver::Wake;
use crate::segment::DropCounts;
use contract::{
    Attributes, Ctl, Direction, FlowClass, FlowKey, FlowTemplate, Format, Message, Partner, PartnerError,
    Pushed,
};
use std::collections::VecDeque;
use sys::poller::Poller;

/// What a message is counted as that found no room on the way to its host.
const TOO_SLOW: &str = "host too slow";

/// What happens to the others when one host takes a flow too slowly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pressure {
    /// All wait: nothing of a reliable flow is lost.
    Wait,
    /// It loses the newest, counted.
    DropNewest,
    /// It loses the oldest, counted: late is worthless.
    DropOldest,
    /// It loses everything until it has room, counted, and then gets to know where things stand.
    Resync,
}

impl Pressure {
    /// What suits a flow; `may_drop`: also where it is reliable.
    pub(crate) fn of(class: FlowClass, may_drop: bool) -> Pressure {
        match class {
            FlowClass::Reliable if may_drop => Pressure::DropNewest,
            FlowClass::Reliable => Pressure::Wait,
            FlowClass::Timely => Pressure::DropOldest,
            FlowClass::State => Pressure::Resync,
        }
    }
}

/// One path's end at the junction.
pub(crate) struct Way {
    endpoint: Endpoint,
    /// What could not be handed on yet; what comes goes behind it.
    waiting: VecDeque<Message>,
    is_lagging: bool,
    wants_snapshot: bool,
    /// Messages that were handed on.
    pub(crate) handed: u64,
    pub(crate) drops: DropCounts,
    finishing: bool,
    finished: bool,
    /// The path will hand over nothing more.
    ended: bool,
    /// What the path handed over and nobody had room for.
    held: Option<Taken>,
}

impl Way {
    /// `outward`: what the flow to the path promises.
    pub(crate) fn new(mut endpoint: Endpoint, outward: FlowClass) -> Way {
        let template = FlowTemplate { direction: Direction::In, format: Format::Bytes, class: outward };
        // An endpoint opens whatever it is asked for.
        let _ = endpoint.open(&template, &Attributes::default());
        Way {
            endpoint,
            waiting: VecDeque::new(),
            is_lagging: false,
            wants_snapshot: false,
            handed: 0,
            drops: DropCounts::default(),
            finishing: false,
            finished: false,
            ended: false,
            held: None,
        }
    }

    /// Hands a message to the path, or does with it what `pressure` says.
    pub(crate) fn deliver(&mut self, message: Message, pressure: Pressure) {
        if self.endpoint.is_other_closed() {
            return self.drops.add("host gone", 1);
        }
        if self.is_lagging {
            return self.drops.add(TOO_SLOW, 1);
        }
        if pressure == Pressure::DropOldest {
            self.handed += 1;
            let dropped = self.endpoint.push_over_oldest(message);
            return self.drops.add(TOO_SLOW, dropped);
        }
        let message = match self.waiting.is_empty() {
            true => self.push(message),
            false => Some(message),
        };
        match (message, pressure) {
            (None, _) => {}
            (Some(message), Pressure::Wait) => self.waiting.push_back(message),
            (Some(_), _) => {
                self.drops.add(TOO_SLOW, 1);
                self.is_lagging = pressure == Pressure::Resync;
            }
        }
    }

    /// The message comes back if there is no room.
    fn push(&mut self, message: Message) -> Option<Message> {
        match self.endpoint.push(FlowKey::DEFAULT, message) {
            Ok(Pushed::Full(message)) => Some(message),
            Ok(Pushed::Taken) => {
                self.handed += 1;
                None
            }
            Err((PartnerError::Message(_), _)) => {
                self.drops.add("too long", 1);
                None
            }
            // The path gave its end up; it is found closed.
            Err(_) => None,
        }
    }

    /// Hands on what waited, and sees what the path asks for.
    pub(crate) fn attend(&mut self) {
        while let Some(message) = self.waiting.pop_front() {
            if let Some(message) = self.push(message) {
                self.waiting.push_front(message);
                break;
            }
        }
        if self.endpoint.take_snapshot_asked() || self.is_lagging && !self.endpoint.is_full() {
            self.is_lagging = false;
            self.wants_snapshot = true;
        }
        if self.finishing && !self.finished && self.waiting.is_empty() {
            let _ = self.endpoint.ctl(FlowKey::DEFAULT, Ctl::Finish);
            self.finished = true;
        }
    }

    /// Whether the path wants to know where things stand; asked once.
    pub(crate) fn take_wants_snapshot(&mut self) -> bool {
        std::mem::take(&mut self.wants_snapshot)
    }

    /// Whether something waits for the path to take more.
    pub(crate) fn is_blocked(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Nothing more will be handed to the path.
    pub(crate) fn finish(&mut self) {
        self.finishing = true;
        self.attend();
    }

    /// Whether everything was handed on, and the end said.
    pub(crate) fn is_finished(&self) -> bool {
        self.finished
    }

    /// What stands behind the junction has failed.
    pub(crate) fn fail(&mut self, error: &PartnerError) {
        self.drops.add("device gone", self.waiting.len() as u64);
        self.waiting.clear();
        match error {
            PartnerError::Gone(what) => self.endpoint.fail(true, what),
            other => self.endpoint.fail(false, &other.to_string()),
        }
    }

    /// What the path did next.
    pub(crate) fn take(&mut self) -> Taken {
        if let Some(held) = self.held.take() {
            return held;
        }
        if self.ended {
            return Taken::Nothing;
        }
        let taken = self.endpoint.take();
        self.ended = matches!(taken, Taken::End);
        taken
    }

    /// There was no room for this: the next [`Way::take`] gives it again.
    pub(crate) fn put_back(&mut self, taken: Taken) {
        self.held = Some(taken);
    }

    /// Whether the path will hand over nothing more, and all of it was taken.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Whether something taken waits for room behind the junction.
    pub(crate) fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// Puts what to wait for into the poller; `takes`: also for what the path hands over.
    pub(crate) fn want(&self, takes: bool, poller: &mut Poller, wake: &mut Wake) {
        if takes && !self.is_held() {
            wake.add(poller, self.endpoint.readiness(FlowKey::DEFAULT, Direction::Out));
        }
        if self.is_blocked() || self.is_lagging {
            wake.add(poller, self.endpoint.readiness(FlowKey::DEFAULT, Direction::In));
        }
    }

    /// Takes it out of the poller.
    pub(crate) fn forget(&self, poller: &mut Poller) {
        crate::driver::forget(poller, &self.endpoint);
    }
}
